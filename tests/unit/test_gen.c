/* mcp/gen*.c and mcp/codegen/files.c: limits, text that a parser refuses, memory that is gone, the public function. */
#define _GNU_SOURCE
#include "mcp/codegen/internal.h"

#include "mcp/codegen/files.h"
#include "storage/pysource.h"
#include "store_support.h"

static void generate(const char *server, json_t *tools, struct cell__gen_package *ret)
{
	struct cell__codegen_options opts = { .server = server };
	OK(cell__gen_package(&opts, tools, ret, &err));
}

/* The text of one file; "" where there is none. */
static const char *file_of(const struct cell__gen_package *package, const char *name)
{
	for (size_t i = 0; i < package->n_files; i++)
		if (strcmp(package->files[i].name, name) == 0)
			return package->files[i].text;
	return "";
}

/* A package of one tool "t" with a property "x" of this schema, which is taken over. */
static void generate_one(json_t *schema, struct cell__gen_package *ret)
{
	json_t *tools = json_pack("[{s:s, s:{s:s, s:{s:o}}}]", "name", "t", "inputSchema", "type", "object", "properties", "x", schema);
	assert_non_null(tools);
	generate("demo", tools, ret);
	json_decref(tools);
	assert_int_equal(json_array_size(ret->problems), 0);
}

static void assert_has(const struct cell__gen_package *package, const char *part, bool has)
{
	if ((strstr(file_of(package, "t.py"), part) != NULL) != has)
		fail_msg("'%s' %s in:\n%.3000s", part, has ? "is not" : "is", file_of(package, "t.py"));
}

/* ---- limits ---- */

static void test_server_names(void **state)
{
	(void)state;
	char name[CELL_GEN_LIMIT_SERVER + 2];
	struct cell__gen_package package = { 0 };
	struct cell__codegen_options opts = { .server = name };
	json_t *tools = json_array();
	memset(name, 'a', sizeof name);
	name[CELL_GEN_LIMIT_SERVER] = '\0';
	OK(cell__gen_package(&opts, tools, &package, &err));
	assert_string_equal(package.name, name);
	cell__gen_package_finish(&package);
	name[CELL_GEN_LIMIT_SERVER] = 'a';
	name[CELL_GEN_LIMIT_SERVER + 1] = '\0';
	FAILS(CELL_E_INVALID, "1 to 64", cell__gen_package(&opts, tools, &package, &err));
	opts.server = NULL;
	FAILS(CELL_E_INVALID, "1 to 64", cell__gen_package(&opts, tools, &package, &err));
	opts.server = "x";
	FAILS(CELL_E_INVALID, "array", cell__gen_package(&opts, json_null(), &package, &err));
	json_decref(tools);
}

static json_t *named_tools(size_t n)
{
	json_t *tools = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(tools, json_pack("{s:o}", "name", json_sprintf("t%zu", i)));
	return tools;
}

static void test_tool_limits(void **state)
{
	(void)state;
	struct cell__gen_package package = { 0 };
	struct cell__codegen_options opts = { .server = "x" };
	json_t *tools = named_tools(CELL_GEN_LIMIT_TOOLS);
	generate("x", tools, &package);
	assert_int_equal(package.n_files, CELL_GEN_LIMIT_TOOLS + 2);
	cell__gen_package_finish(&package);
	json_decref(tools);
	tools = named_tools(CELL_GEN_LIMIT_TOOLS + 1);
	FAILS(CELL_E_LIMIT, "4097 tools", cell__gen_package(&opts, tools, &package, &err));
	json_decref(tools);
	char name[CELL_GEN_LIMIT_NAME + 2];
	memset(name, 'n', sizeof name);
	name[CELL_GEN_LIMIT_NAME + 1] = '\0';
	tools = json_pack("[{s:s%}, {s:s}, {s:s%}]", "name", name, (size_t)CELL_GEN_LIMIT_NAME, "name", name, "name", "a\0b", (size_t)3);
	generate("x", tools, &package);
	assert_int_equal(json_array_size(package.tools), 1);
	assert_int_equal(strlen(text_of(json_array_get(package.tools, 0), "module")), CELL_GEN_LIMIT_IDENTIFIER);
	assert_string_equal(text_of(json_array_get(package.problems, 0), "message"), "has a name of more than 256 bytes");
	assert_non_null(strstr(text_of(json_array_get(package.problems, 1), "message"), "NUL"));
	cell__gen_package_finish(&package);
	json_decref(tools);
}

static json_t *words(size_t n)
{
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, json_sprintf("w%zu", i));
	return list;
}

static json_t *objects(size_t n)
{
	json_t *list = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(
			list, json_pack("{s:s, s:{s:{s:o}}}", "type", "object", "properties", "k", "const", json_integer((json_int_t)i)));
	return list;
}

static json_t *nested(unsigned depth)
{
	json_t *schema = json_pack("{s:s}", "type", "string");
	while (depth-- > 0)
		schema = json_pack("{s:s, s:o}", "type", "array", "items", schema);
	return schema;
}

static void test_schema_limits(void **state)
{
	(void)state;
	struct cell__gen_package package;
	for (int past = 0; past < 2; past++) {
		generate_one(json_pack("{s:s, s:o}", "type", "string", "enum", words(CELL_GEN_LIMIT_MEMBERS + (size_t)past)), &package);
		assert_has(&package, "class X(StrEnum)", !past);
		assert_has(&package, "x: Optional[str]", past);
		cell__gen_package_finish(&package);

		generate_one(json_pack("{s:o}", "anyOf", objects(CELL_GEN_LIMIT_UNION + (size_t)past)), &package);
		assert_has(&package, "x: Union[X, X1", !past);
		assert_has(&package, "x: Annotated[Any, Nullable]", past);
		cell__gen_package_finish(&package);

		/* "x" itself is one step inside. */
		generate_one(nested(CELL_GEN_LIMIT_DEPTH - 1 + (unsigned)past), &package);
		assert_has(&package, "List[str]", !past);
		assert_has(&package, "List[Any]", past);
		cell__gen_package_finish(&package);
	}
	json_t *many = json_object();
	for (size_t i = 0; i < CELL_GEN_LIMIT_FIELDS; i++) {
		char key[32];
		snprintf(key, sizeof key, "f%zu", i);
		json_object_set_new(many, key, json_object());
	}
	generate_one(json_pack("{s:s, s:O}", "type", "object", "properties", many), &package);
	assert_has(&package, "    f4095: Annotated[Any, Nullable] = None\n", true);
	cell__gen_package_finish(&package);
	json_object_set_new(many, "more", json_object());
	generate_one(json_pack("{s:s, s:o}", "type", "object", "properties", many), &package);
	assert_has(&package, "x: Optional[Dict[str, Any]] = None\n", true);
	cell__gen_package_finish(&package);
}

static void test_default_limits(void **state)
{
	(void)state;
	struct cell__gen_package package;
	for (unsigned past = 0; past < 2; past++) {
		json_t *value = json_integer(7);
		for (unsigned i = 0; i < CELL_GEN_LIMIT_LITERAL_DEPTH + past; i++)
			value = json_pack("[o]", value);
		generate_one(json_pack("{s:o}", "default", value), &package);
		assert_has(&package, "7]]]", !past);
		assert_has(&package, "= None\n", past);
		cell__gen_package_finish(&package);
	}
	generate_one(json_pack("{s:s, s:f}", "type", "number", "default", 0.1), &package);
	assert_has(&package, "= 0.1\n", true);
	cell__gen_package_finish(&package);
	generate_one(json_pack("{s:s, s:f}", "type", "number", "default", 1e22), &package);
	assert_has(&package, "= 1e+22\n", true);
	cell__gen_package_finish(&package);
	generate_one(json_pack("{s:s, s:f}", "type", "number", "default", -3.0), &package);
	assert_has(&package, "= -3.0\n", true);
	cell__gen_package_finish(&package);
}

static void test_descriptions_are_cut(void **state)
{
	(void)state;
	struct cell__gen_package package;
	struct cell__buf text = CELL_BUF_INIT;
	for (unsigned i = 0; i < CELL_GEN_LIMIT_DOC_BYTES / 2; i++)
		assert_int_equal(cell__buf_add_str(&text, "\xc3\xa9"), 0);
	generate_one(json_pack("{s:s}", "description", text.data), &package);
	assert_has(&package, "[...]", false);
	cell__gen_package_finish(&package);
	/* One byte more, in the middle of a character. */
	assert_int_equal(cell__buf_add_str(&text, "x"), 0);
	memmove(text.data + 1, text.data, text.size - 1);
	text.data[0] = 'x';
	generate_one(json_pack("{s:s%}", "description", text.data, text.size), &package);
	assert_has(&package, "\xc3\xa9 [...]\"\"\"", true);
	assert_true(cell__utf8_ok(file_of(&package, "t.py"), strlen(file_of(&package, "t.py"))));
	cell__gen_package_finish(&package);
	cell__buf_finish(&text);
}

/* ---- JSON that a parser refuses ---- */

static void test_soften(void **state)
{
	(void)state;
	static const struct {
		const char *from, *to;
	} rows[] = {
		{ "[1, -2.5e3, \"a\", true, null, {}]", "[1, -2.5e3, \"a\", true, null, {}]" },
		{ "[NaN, -Infinity, Infinity]", "[null, null, null]" },
		{ "[1e999, -1e999, 1e-999]", "[null, null, 1e-999]" },
		{ "9223372036854775807", "9223372036854775807" },
		{ "9223372036854775808", "9223372036854775808.0" },
		{ "-9223372036854775809", "-9223372036854775809.0" },
		{ "1.5e308", "1.5e308" },
		{ "\"\\ud800\"", "\"\\ufffd\"" },
		{ "\"\\udc00\\ud800x\\ud83d\\ude00\"", "\"\\ufffd\\ufffdx\\ud83d\\ude00\"" },
		{ "\"\\ud83d\\u0041\"", "\"\\ufffd\\u0041\"" },
		{ "{\"a\\u0000\": \"NaN 1e999 \\\"Infinity\\\\\"}", "{\"a\\ufffd\": \"NaN 1e999 \\\"Infinity\\\\\"}" },
		{ "\"open \\", "\"open \\" },
		{ "\"\\u12", "\"\\u12" },
		{ "", "" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell__buf out = CELL_BUF_INIT;
		assert_int_equal(cell__gen_soften(rows[i].from, strlen(rows[i].from), &out), 0);
		assert_string_equal(out.data ? out.data : "", rows[i].to);
		cell__buf_finish(&out);
	}
	char digits[700];
	struct cell__buf out = CELL_BUF_INIT;
	memset(digits, '9', sizeof digits);
	assert_int_equal(cell__gen_soften(digits, sizeof digits, &out), 0);
	assert_string_equal(out.data, "null");
	cell__buf_finish(&out);
}

static void test_parse_depth(void **state)
{
	(void)state;
	struct cell__buf text = CELL_BUF_INIT;
	assert_int_equal(cell__buf_add_str(&text, "[{\"a\": "), 0);
	for (int i = 0; i < 5000; i++)
		assert_int_equal(cell__buf_add_str(&text, i % 2 ? "[" : "{\"k\": "), 0);
	for (int i = 4999; i >= 0; i--)
		assert_int_equal(cell__buf_add_str(&text, i % 2 ? "]" : "}"), 0);
	/* The innermost is "[" and holds nothing; all objects have a value. */
	assert_int_equal(cell__buf_add_str(&text, ", \"b\": 1}]"), 0);
	struct cell_error err = { 0 };
	json_t *list = cell__gen_parse(text.data, text.size, &err);
	if (!list)
		fail_msg("%s", err.msg);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(list, 0), "b")), 1);
	unsigned depth = 0;
	for (json_t *at = json_object_get(json_array_get(list, 0), "a"); at && !json_is_null(at); depth++)
		at = json_is_array(at) ? json_array_get(at, 0) : json_object_get(at, "k");
	assert_int_equal(depth, CELL_GEN_LIMIT_JSON_DEPTH - 2);
	json_decref(list);
	cell__buf_finish(&text);
}

static void test_parse_size(void **state)
{
	(void)state;
	struct cell_error err = { 0 };
	assert_null(cell__gen_parse("", CELL_GEN_LIMIT_INPUT_BYTES + 1, &err));
	assert_int_equal(err.code, CELL_E_LIMIT);
	assert_null(cell__gen_parse("[1,\xff]", 5, &err));
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_true(cell__utf8_ok(err.msg, strlen(err.msg)));
}

/* ---- when memory is gone ---- */

static json_t *sample(void)
{
	json_t *list = json_loads(
		"[{\"name\": \"a-b\", \"description\": \"text\", \"inputSchema\": {\"type\": \"object\", \"properties\": {"
		"\"kind\": {\"enum\": [\"x\", \"y\"], \"default\": \"y\"}, \"my-field\": {\"type\": [\"integer\", \"null\"], \"minimum\": 1},"
		"\"node\": {\"$ref\": \"#/$defs/Node\"}, \"both\": {\"allOf\": [{\"$ref\": \"#/$defs/Node\"}, {\"properties\": {\"z\": {}}}]},"
		"\"any\": {\"anyOf\": [{\"type\": \"string\", \"pattern\": \"a\"}, {\"type\": \"array\", \"items\": {\"const\": 1.5}}]}},"
		"\"$defs\": {\"Node\": {\"type\": \"object\", \"properties\": {\"next\": {\"$ref\": \"#/$defs/Node\"}}}}},"
		"\"outputSchema\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"format\": \"date\"}}}, {\"name\": \"\"}]",
		0, NULL);
	assert_non_null(list);
	return list;
}

static void test_out_of_memory(void **state)
{
	struct folder *folder = *state;
	json_t *tools = sample();
	struct cell__codegen_options opts = { .server = "demo" };
	struct cell__gen_package package = { 0 };
	struct cell_error err = { 0 };
	for (long n = 1;; n++) {
		assert_true(n < 3000);
		cell__alloc_fail_after(n);
		int rc = cell__gen_package(&opts, tools, &package, &err);
		cell__alloc_fail_after(0);
		if (rc == 0)
			break;
		assert_int_equal(err.code, CELL_E_NOMEM);
		assert_null(package.files);
	}
	assert_int_equal(cell__gen_write(&package, in(folder, "mcptools"), &err), 0);
	cell__gen_package_finish(&package);
	json_decref(tools);
}

/* ---- text ---- */

/* Everything that the lexer of workflows knows of Python holds for a module. */
static void test_tokens(void **state)
{
	(void)state;
	json_t *tools = sample();
	struct cell__gen_package package;
	generate("demo", tools, &package);
	for (size_t i = 0; i < package.n_files; i++) {
		struct cell__py_lexer lexer;
		struct cell__py_token token = { .kind = CELL__PY_NEWLINE };
		cell__py_lexer_init(&lexer, package.files[i].text, package.files[i].size);
		while (token.kind != CELL__PY_END)
			OK(cell__py_next(&lexer, &token, &err));
	}
	json_decref(tools);
	cell__gen_package_finish(&package);
}

/* ---- the public function ---- */

static void test_public(void **state)
{
	struct folder *folder = *state;
	struct cell_gen_options opts = CELL_GEN_OPTIONS_INIT;
	char *report = NULL, out[200];
	snprintf(out, sizeof out, "%s/deep/er/mcptools", folder->path);
	FAILS(CELL_E_INVALID, "needs a server's name", cell_gen_mcp(&opts, &report, &err));
	opts.server = "demo";
	opts.tools_json = "{\"tools\": [{\"name\": \"t\"}, {\"name\": \"t\"}]}";
	opts.out_dir = out;
	OK(cell_gen_mcp(&opts, &report, &err));
	json_t *parsed = json_loads(report, 0, NULL);
	assert_string_equal(text_of(parsed, "package"), "demo");
	assert_int_equal(json_array_size(json_object_get(parsed, "tools")), 1);
	assert_int_equal(json_array_size(json_object_get(parsed, "problems")), 1);
	json_decref(parsed);
	free(report);
	OK(cell_gen_mcp(&opts, NULL, &err));
	assert_true(there(folder, "deep/er/mcptools/demo/t.py"));
	opts.size = SIZE_MAX;
	FAILS(CELL_E_INVALID, "size", cell_gen_mcp(&opts, NULL, &err));
	opts.size = sizeof opts;
	opts.out_dir = "";
	FAILS(CELL_E_INVALID, "empty", cell_gen_mcp(&opts, NULL, &err));
	opts.out_dir = "/proc/nowhere";
	FAILS(CELL_E_IO, "/proc/nowhere", cell_gen_mcp(&opts, NULL, &err));
	opts.tools_json = "{";
	FAILS(CELL_E_INVALID, "not JSON", cell_gen_mcp(&opts, NULL, &err));
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_server_names),         TEST(test_tool_limits), TEST(test_schema_limits), TEST(test_default_limits),
		TEST(test_descriptions_are_cut), TEST(test_soften),      TEST(test_parse_depth),   TEST(test_parse_size),
		STORE_TEST(test_out_of_memory),  TEST(test_tokens),      STORE_TEST(test_public),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
