/* tools: arguments become words, and none of them an option by accident. */
#define _GNU_SOURCE
#include "tools_support.h"

/* The tool of the reference's examples, and some more. */
static const char *const plain = "name: t\n"
				 "command: cmd\n"
				 "schema:\n"
				 "  options:\n"
				 "    v: {type: boolean, short: v}\n"
				 "    hdr: {type: array, short: H}\n"
				 "    n: {type: integer}\n"
				 "    s: {type: string}\n"
				 "    ratio: {type: number}\n"
				 "    level: {type: string, enum: [low, high]}\n"
				 "    many: {type: array, enum: [a, b]}\n"
				 "    max-time: {type: integer, short: m, long: max-time}\n"
				 "    free: {short: f, allow_dash: true}\n"
				 "    single: {long: -single}\n"
				 "  positional:\n"
				 "    - {name: a, required: true}\n"
				 "    - {name: b}\n"
				 "    - {name: rest, type: array}\n"
				 "recipes:\n"
				 "  plain: {}\n"
				 "  set:\n"
				 "    preset: {v: true, n: 3}\n"
				 "    params:\n"
				 "      n: {default: 9}\n"
				 "      s: {default: x}\n"
				 "  strict:\n"
				 "    params:\n"
				 "      a: {}\n"
				 "      s: {required: true}\n"
				 "  short:\n"
				 "    params:\n"
				 "      a: {required: false}\n";

static const char *const dashed = "name: t\n"
				  "command: cmd\n"
				  "end_of_options: true\n"
				  "schema:\n"
				  "  options:\n"
				  "    v: {type: boolean}\n"
				  "    depth: {type: integer, default: 2}\n"
				  "  positional:\n"
				  "    - {name: a}\n"
				  "    - {name: rest, type: array}\n"
				  "recipes:\n"
				  "  plain: {}\n";

static const char *const allowed = "name: t\n"
				   "command: cmd\n"
				   "schema:\n"
				   "  positional:\n"
				   "    - {name: a, allow_dash: true, default: '-'}\n"
				   "recipes:\n"
				   "  plain: {preset: {a: -x}}\n";

/* As a definition of nmap has them. */
static const char *const written = "name: t\n"
				   "command: cmd\n"
				   "schema:\n"
				   "  options:\n"
				   "    p: {short: p, default: '-'}\n"
				   "    many: {type: array, short: m, default: [-x, y]}\n"
				   "    mode: {short: s}\n"
				   "  positional:\n"
				   "    - {name: a}\n"
				   "recipes:\n"
				   "  plain: {}\n"
				   "  all: {preset: {p: -T4, mode: -V}}\n"
				   "  own: {params: {a: {default: -z}}}\n";

struct row {
	const char *const *yaml;
	const char *recipe; /* NULL: by the schema alone */
	const char *args;   /* ' for " */
	const char *words;  /* joined with |, or a part of the error behind "!" */
};

static const struct row rows[] = {
	/* the reference's table, with its defects mended */
	{ &plain, NULL, "{'a':1,'v':true,'hdr':['x','y'],'n':5,'s':null}", "cmd|-v|-H|x|-H|y|--n|5|1" },
	{ &plain, "set", "{'a':'A'}", "cmd|-v|--n|3|--s|x|A" },
	{ &plain, "set", "{'a':'A','v':false}", "cmd|--n|3|--s|x|A" },
	{ &plain, NULL, "{'a':1,'v':1}", "!'v' must be a boolean, not an integer" },
	{ &plain, NULL, "{'a':1,'v':'false'}", "!'v' must be a boolean, not a string" },
	{ &plain, NULL, "{'a':1,'hdr':'abc'}", "!'hdr' must be an array, not a string" },
	{ &plain, NULL, "{'a':1,'unknown':1}", "!Unknown argument 'unknown'. Known: v, hdr, n, s" },
	{ &plain, NULL, "{'a':[1,2]}", "!'a' must be a string, not an array" },
	{ &plain, NULL, "{}", "!Required parameter 'a' is missing" },
	{ &plain, NULL, "{'a':null}", "!Required parameter 'a' is missing" },
	/* presets, defaults, call */
	{ &plain, "set", "{'a':'A','n':7,'s':'q'}", "cmd|-v|--n|7|--s|q|A" },
	{ &plain, "set", "{'a':'A','n':null}", "cmd|-v|--n|3|--s|x|A" },
	{ &plain, "plain", "{'a':'A'}", "cmd|A" },
	{ &plain, "strict", "{'a':'A'}", "!Required parameter 's' is missing\nSignature: t.strict(a: str, s: str)" },
	{ &plain, "strict", "{'a':'A','s':'1','n':4}", "cmd|--n|4|--s|1|A" },
	{ &plain, "short", "{}", "cmd" },
	{ &dashed, "plain", "{}", "cmd|--depth|2" },
	{ &dashed, NULL, "{'depth':5}", "cmd|--depth|5" },
	/* order is the schema's, positionals last, lists repeat */
	{ &plain, NULL, "{'rest':['p','q'],'s':'x','b':'B','a':'A','v':true}", "cmd|-v|--s|x|A|B|p|q" },
	{ &plain, NULL, "{'a':'A','hdr':[]}", "cmd|A" },
	{ &plain, NULL, "{'a':'A','hdr':[1,2.5,true]}", "cmd|-H|1|-H|2.5|-H|true|A" },
	{ &plain, NULL, "{'a':'A','hdr':[['x']]}", "!item 0 is an array" },
	{ &plain, NULL, "{'a':'A','hdr':[null]}", "!item 0 is null" },
	/* types */
	{ &plain, NULL, "{'a':'A','n':5.0}", "!'n' must be an integer, not a number" },
	{ &plain, NULL, "{'a':'A','n':'5'}", "!'n' must be an integer, not a string" },
	{ &plain, NULL, "{'a':'A','n':9007199254740993}", "cmd|--n|9007199254740993|A" },
	{ &plain, NULL, "{'a':'A','ratio':3}", "cmd|--ratio|3|A" },
	{ &plain, NULL, "{'a':'A','ratio':0.1}", "cmd|--ratio|0.1|A" },
	{ &plain, NULL, "{'a':'A','s':5}", "!'s' must be a string, not an integer" },
	{ &plain, NULL, "{'a':2.5}", "cmd|2.5" },
	{ &plain, NULL, "{'a':true}", "!'a' must be a string, not a boolean" },
	{ &plain, NULL, "{'a':{}}", "!'a' must be a string, not an object" },
	{ &plain, NULL, "{'a':'A','level':'low'}", "cmd|--level|low|A" },
	{ &plain, NULL, "{'a':'A','level':'mid'}", "!'level' must be one of \"low\", \"high\", not \"mid\"" },
	{ &plain, NULL, "{'a':'A','many':['a','c']}", "!'many' must be one of" },
	{ &plain, NULL, "{'a':'A','many':['a','b']}", "cmd|--many|a|--many|b|A" },
	/* names with a dash can be Python keywords */
	{ &plain, NULL, "{'a':'A','max_time':3}", "cmd|-m|3|A" },
	{ &plain, NULL, "{'a':'A','max-time':3}", "cmd|-m|3|A" },
	{ &plain, NULL, "{'a':'A','max-time':3,'max_time':4}", "!'max-time' is given twice" },
	/* nothing that begins with a dash becomes an option */
	{ &plain, NULL, "{'a':'-rf'}", "!'a' must not begin with '-'" },
	{ &plain, NULL, "{'a':'--output=/etc/passwd'}", "!'a' must not begin with '-'" },
	{ &plain, NULL, "{'a':'-'}", "!'a' must not begin with '-'" },
	{ &plain, NULL, "{'a':-1}", "!'a' must not begin with '-'" },
	{ &plain, NULL, "{'a':'A','rest':['x','-y']}", "!'rest' must not begin with '-'" },
	{ &plain, NULL, "{'a':'A','hdr':['x','-y']}", "!'hdr' must not begin with '-'" },
	{ &plain, NULL, "{'a':'A','single':'-x'}", "!'single' must not begin with '-'" },
	{ &plain, NULL, "{'a':'A','single':'x'}", "cmd|-single|x|A" },
	{ &plain, NULL, "{'a':'A','s':'-x'}", "cmd|--s=-x|A" },
	{ &plain, NULL, "{'a':'A','n':-5}", "cmd|--n=-5|A" },
	{ &plain, NULL, "{'a':'A','max-time':-1}", "cmd|--max-time=-1|A" },
	{ &plain, NULL, "{'a':'A','free':'-x'}", "cmd|-f|-x|A" },
	{ &dashed, NULL, "{'a':'-rf','rest':['--x','-'],'v':true}", "cmd|--v|--depth|2|--|-rf|--x|-" },
	{ &dashed, NULL, "{'a':'plain'}", "cmd|--depth|2|--|plain" },
	{ &allowed, NULL, "{'a':'--x'}", "cmd|--x" },
	{ &allowed, NULL, "{}", "cmd|-" },
	{ &allowed, "plain", "{}", "cmd|-x" },
	/* but for what the definition itself has, for this recipe and this parameter */
	{ &written, NULL, "{}", "cmd|-p|-|-m|-x|-m|y" },
	{ &written, "plain", "{}", "cmd|-p|-|-m|-x|-m|y" },
	{ &written, "plain", "{'p':'-'}", "cmd|-p|-|-m|-x|-m|y" },
	{ &written, "all", "{}", "cmd|-p|-T4|-m|-x|-m|y|-s|-V" },
	{ &written, "own", "{'many':['y','-x']}", "cmd|-p|-|-m|y|-m|-x|-z" },
	{ &written, NULL, "{'p':'-T4'}", "!'p' must not begin with '-'" },
	{ &written, "plain", "{'p':'-T4'}", "!'p' must not begin with '-'" },
	{ &written, "plain", "{'mode':'-V'}", "!'mode' must not begin with '-'" },
	{ &written, "plain", "{'a':'-'}", "!'a' must not begin with '-'" },
	{ &written, "plain", "{'a':'-z'}", "!'a' must not begin with '-'" },
	{ &written, "all", "{'p':'-'}", "!'p' must not begin with '-'" },
	{ &written, "all", "{'many':['-x','-y']}", "!'many' must not begin with '-'" },
	/* what looks like a shell's business is none */
	{ &plain, NULL, "{'a':'; rm -rf / #','s':'$(id) `id` | x > y\\n'}", "cmd|--s|$(id) `id` | x > y\n|; rm -rf / #" },
	{ &plain, NULL, "{'a':''}", "cmd|" },
	{ &plain, NULL, "{'a':'A','s':''}", "cmd|--s||A" },
	{ &plain, NULL, "{'a':'x\\u0000y'}", "!'a' contains a NUL character" },
	{ &plain, NULL, "{'a':'A','hdr':['x\\u0000-y']}", "!'hdr' contains a NUL character" },
};

static void join(const struct cell__argv *argv, struct cell__buf *out)
{
	for (size_t i = 0; i < argv->count; i++) {
		cell__buf_add_str(out, i ? "|" : "");
		cell__buf_add_str(out, argv->list[i]);
	}
	assert_null(argv->list[argv->count]);
}

static void check_row(const struct row *row)
{
	struct cell__tool_entry *tool = load_ok(*row->yaml);
	json_t *given = quick_json(row->args), *args = NULL;
	struct cell__argv argv = { 0 };
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT, words = CELL_BUF_INIT;
	const struct cell__callable *recipe = row->recipe ? cell__tool_callable(tool, row->recipe) : NULL;
	assert_int_equal(recipe != NULL, row->recipe != NULL);
	int rc = cell__args_merge(tool, recipe, given, &args, &why);
	if (rc == 0)
		rc = cell__argv_build(tool, recipe, args, &argv, &why);
	if (row->words[0] == '!') {
		if (rc == 0)
			fail_msg("%s was accepted", row->args);
		if (!strstr(why.data, row->words + 1))
			fail_msg("%s: not '%s' in: %s", row->args, row->words + 1, why.data);
	} else {
		if (rc < 0)
			fail_msg("%s: %s", row->args, why.data);
		join(&argv, &words);
		if (strcmp(words.data, row->words) != 0)
			fail_msg("%s: %s instead of %s", row->args, words.data, row->words);
	}
	cell__argv_finish(&argv);
	json_decref(given);
	json_decref(args);
	cell__tool_unref(tool);
}

static void test_rows(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(rows); i++)
		check_row(&rows[i]);
}

static void test_limits(void **state)
{
	(void)state;
	struct cell__tool_entry *tool = load_ok(plain);
	for (int past = 0; past < 2; past++) {
		json_t *list = json_array(), *args = json_pack("{s:s, s:o}", "a", "A", "rest", list);
		for (size_t i = 0; i < CELL_TOOL_LIMIT_ARGV - 2 + (size_t)past; i++)
			json_array_append_new(list, json_string("x"));
		struct cell__argv argv = { 0 };
		CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
		assert_int_equal(cell__argv_build(tool, NULL, args, &argv, &why), past ? -1 : 0);
		assert_int_equal(argv.count, past ? 0 : CELL_TOOL_LIMIT_ARGV);
		cell__argv_finish(&argv);
		json_decref(args);
	}
	char *big = malloc(CELL_TOOL_LIMIT_ARGV_BYTES + 1);
	memset(big, 'x', CELL_TOOL_LIMIT_ARGV_BYTES);
	for (int past = 0; past < 2; past++) {
		big[CELL_TOOL_LIMIT_ARGV_BYTES - 5 + past] = '\0'; /* "cmd" and two ends */
		json_t *args = json_pack("{s:s}", "a", big);
		struct cell__argv argv = { 0 };
		CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
		assert_int_equal(cell__argv_build(tool, NULL, args, &argv, &why), past ? -1 : 0);
		cell__argv_finish(&argv);
		json_decref(args);
		big[CELL_TOOL_LIMIT_ARGV_BYTES - 5 + past] = 'x';
	}
	free(big);
	cell__tool_unref(tool);
}

static void check_signature(const struct cell__tool_entry *tool, const char *recipe, const char *text)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	assert_int_equal(cell__callable_signature(cell__tool_callable(tool, recipe), &out), 0);
	assert_string_equal(out.data, text);
}

static void test_signature(void **state)
{
	(void)state;
	struct cell__tool_entry *tool = load_ok(plain);
	check_signature(tool, "plain",
			"plain(a: str, b: str | None = None, rest: list | None = None, v: bool | None = None, "
			"hdr: list | None = None, n: int | None = None, s: str | None = None, ratio: float | None = None, "
			"level: str | None = None, many: list | None = None, max_time: int | None = None, "
			"free: str | None = None, single: str | None = None)");
	check_signature(tool, "set", "set(n: int = 3, s: str = \"x\")");
	cell__tool_unref(tool);
	tool = load_ok("name: t\ncommand: c\nschema:\n  options:\n"
		       "    o: {type: array, default: [1, two, true]}\n"
		       "    q: {type: boolean, default: no}\nrecipes: {r: }\n");
	check_signature(tool, "r", "r(o: list = [1, \"two\", True], q: bool = False)");
	cell__tool_unref(tool);
}

/* What a recipe's parameters leave out comes from the schema. */
static void test_inheritance(void **state)
{
	(void)state;
	struct cell__tool_entry *tool = load_ok(
		"name: curl\ncommand: curl\ndescription: Fetch\ntags: [net, web]\n"
		"schema:\n  options:\n    silent: {type: boolean, short: s, description: Quiet}\n"
		"    t: {type: integer, default: 30}\n"
		"  positional:\n    - {name: url, required: true, description: Where}\n"
		"recipes:\n"
		"  get:\n    description: GET it\n    preset: {silent: yes}\n    params: {url: {}, t: }\n"
		"  loud:\n    params: {url: {description: What, default: http://x}, silent: {default: off}}\n");
	json_t *json = cell__tool_to_json(tool);
	char *text = json_dumps(json, JSON_COMPACT);
	assert_string_equal(
		text, "{\"name\":\"curl\",\"description\":\"Fetch\",\"tags\":[\"net\",\"web\"],\"callables\":["
		      "{\"name\":\"get\",\"description\":\"GET it\",\"parameters\":["
		      "{\"name\":\"url\",\"type\":\"string\",\"required\":true,\"default\":null,\"description\":\"Where\"},"
		      "{\"name\":\"t\",\"type\":\"integer\",\"required\":false,\"default\":30,\"description\":\"\"}]},"
		      "{\"name\":\"loud\",\"description\":\"\",\"parameters\":["
		      "{\"name\":\"url\",\"type\":\"string\",\"required\":false,\"default\":\"http://x\",\"description\":\"What\"},"
		      "{\"name\":\"silent\",\"type\":\"boolean\",\"required\":false,\"default\":false,\"description\":\"Quiet\"}]}]}");
	free(text);
	json_decref(json);
	check_signature(tool, "get", "get(url: str, t: int = 30)");
	cell__tool_unref(tool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_signature),
		cmocka_unit_test(test_inheritance),
	};
	return cmocka_run_group_tests_name("tools_argv", tests, NULL, NULL);
}
