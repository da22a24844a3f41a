/* calls/: the checker, schemas made from rows, who may ask for what, and that tools of the MCP server and routes agree with the table. */
#include "support.h"

#include "calls/schema.h"
#include "calls/table.h"
#include "mcp/server/server.h"
#include "server/server.h"

/* ---- the checker ---- */

struct told {
	char text[200];
};

static void tell(void *arg, const struct cell__misfit *misfit)
{
	static const char *const words[] = { "missing", "type", "range", "empty", "nul", "choice", "unknown" };
	struct told *told = arg;
	size_t n = strlen(told->text);
	snprintf(told->text + n, sizeof told->text - n, "%s%s:%s", n ? " " : "", misfit->name, words[misfit->wrong]);
}

/* Properties and an object with ' for "; wanted: "name:what ..." in order. */
static void check(const char *properties, const char *more, const char *object, const char *wanted)
{
	char text[600];
	struct told told = { "" };
	snprintf(text, sizeof text, "{'type':'object','properties':{%s}%s}", properties, more);
	for (char *at = text; *at; at++)
		*at = *at == '\'' ? '"' : *at;
	json_t *schema = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	snprintf(text, sizeof text, "%s", object);
	for (char *at = text; *at; at++)
		*at = *at == '\'' ? '"' : *at;
	json_t *value = json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	assert_non_null(schema);
	assert_non_null(value);
	size_t n = cell__members_check(schema, value, tell, &told);
	if (strcmp(told.text, wanted) != 0 || (n == 0) != (*wanted == '\0') || cell__members_check(schema, value, NULL, NULL) != n)
		fail_msg("%s against %s: %zu, \"%s\", expected \"%s\"", object, properties, n, told.text, wanted);
	json_decref(schema);
	json_decref(value);
}

static void test_types(void **state)
{
	(void)state;
	static const char *const types[] = { "string", "integer", "number", "boolean", "array", "object", "null" };
	static const char *const values[] = { "'x'", "1", "1.5", "true", "[]", "{}", "null" };
	for (size_t t = 0; t < COUNT(types); t++)
		for (size_t v = 0; v < COUNT(values); v++) {
			char property[64], object[64];
			bool fits = t == v || (strcmp(types[t], "number") == 0 && strcmp(values[v], "1") == 0);
			snprintf(property, sizeof property, "'a':{'type':'%s'}", types[t]);
			snprintf(object, sizeof object, "{'a':%s}", values[v]);
			check(property, "", object, fits ? "" : "a:type");
		}
	check("'a':{'type':['string','null']}", "", "{'a':null}", "");
	check("'a':{'type':['string','null']}", "", "{'a':'x'}", "");
	check("'a':{'type':['string','null']}", "", "{'a':1}", "a:type");
	check("'a':{'description':'anything'}", "", "{'a':[1]}", "");
	check("'a':{'type':'array','items':{'type':'string'}}", "", "{'a':['x','y']}", "");
	check("'a':{'type':'array','items':{'type':'string'}}", "", "{'a':['x',1]}", "a:type");
	check("'a':{'type':'array','items':{'type':'string'}}", "", "{'a':[null]}", "a:type");
}

static void test_keywords(void **state)
{
	(void)state;
	check("'a':{'type':'string'}", ",'required':['a']", "{'a':''}", "");
	check("'a':{'type':'string'}", ",'required':['a']", "{}", "a:missing");
	check("'a':{'type':'string'}", ",'required':['a']", "{'a':null}", "a:type");
	check("'a':{'type':'string'}", "", "{}", "");
	check("'a':{'type':'integer','minimum':1,'maximum':1000}", "", "{'a':1}", "");
	check("'a':{'type':'integer','minimum':1,'maximum':1000}", "", "{'a':0}", "a:range");
	check("'a':{'type':'integer','minimum':1,'maximum':1000}", "", "{'a':1000}", "");
	check("'a':{'type':'integer','minimum':1,'maximum':1000}", "", "{'a':1001}", "a:range");
	check("'a':{'type':'integer','maximum':9007199254740993}", "", "{'a':9007199254740993}", "");
	check("'a':{'type':'integer','maximum':9007199254740993}", "", "{'a':9007199254740994}", "a:range");
	check("'a':{'type':'number','minimum':0}", "", "{'a':0.0}", "");
	check("'a':{'type':'number','minimum':0}", "", "{'a':-0.001}", "a:range");
	check("'a':{'type':'string','minLength':1}", "", "{'a':'x'}", "");
	check("'a':{'type':'string','minLength':1}", "", "{'a':''}", "a:empty");
	check("'a':{'type':'string','minLength':1}", "", "{'a':'\\u0000'}", "a:nul");
	check("'a':{'type':'string'}", "", "{'a':'x\\u0000y'}", "a:nul");
	check("'a':{'type':'string','x-nul':true}", "", "{'a':'x\\u0000y'}", "");
	check("'a':{'type':'string','enum':['x','y']}", "", "{'a':'y'}", "");
	check("'a':{'type':'string','enum':['x','y']}", "", "{'a':'z'}", "a:choice");
	check("'a':{'type':'string'}", "", "{'b':1}", "");
	check("'a':{'type':'string'}", ",'additionalProperties':false", "{'a':'x'}", "");
	check("'a':{'type':'string'}", ",'additionalProperties':false", "{'c':1,'a':'x','b':1}", "c:unknown b:unknown");
	/* Every member is told, in the order of the schema. */
	check("'b':{'type':'string'},'a':{'type':'integer','minimum':1}", ",'required':['b']", "{'a':0}", "b:missing a:range");
}

static void test_whole_numbers(void **state)
{
	(void)state;
	json_t *schema = json_loads("{\"properties\":{\"a\":{\"type\":[\"integer\",\"null\"]},\"b\":{\"type\":\"number\"}}}", 0, NULL);
	json_t *object = json_loads("{\"a\":3.0,\"b\":3.0}", 0, NULL);
	assert_int_equal(cell__members_check(schema, object, NULL, NULL), 0);
	assert_true(json_is_integer(json_object_get(object, "a")) && json_integer_value(json_object_get(object, "a")) == 3);
	assert_true(json_is_real(json_object_get(object, "b")));
	json_decref(object);
	static const char *const bad[] = { "{\"a\":3.5}", "{\"a\":1e300}", "{\"a\":-1e17}" };
	for (size_t i = 0; i < COUNT(bad); i++) {
		object = json_loads(bad[i], 0, NULL);
		assert_int_equal(cell__members_check(schema, object, NULL, NULL), 1);
		json_decref(object);
	}
	json_decref(schema);
}

static void test_defaults(void **state)
{
	(void)state;
	json_t *schema = json_loads("{\"properties\":{\"a\":{\"default\":5},\"b\":{\"default\":false},\"c\":{}}}", 0, NULL);
	json_t *object = json_loads("{\"a\":null,\"b\":true}", 0, NULL), *wanted = json_loads("{\"a\":5,\"b\":true}", 0, NULL);
	assert_int_equal(cell__schema_add_defaults(schema, object), 0);
	assert_true(json_equal(object, wanted));
	json_decref(schema);
	json_decref(object);
	json_decref(wanted);
}

static void words_of(const char *schema, const char *wanted)
{
	struct cell__buf out = CELL_BUF_INIT;
	json_t *parsed = json_loads(schema, 0, NULL);
	cell__schema_add_words(&out, parsed);
	assert_string_equal(out.data, wanted);
	cell__buf_finish(&out);
	json_decref(parsed);
}

static void test_words(void **state)
{
	(void)state;
	words_of("{\"type\":\"string\"}", "a string");
	words_of("{\"type\":[\"object\",\"null\"]}", "an object");
	words_of("{\"type\":[\"array\",\"object\",\"null\"]}", "an array or object");
	words_of("{\"type\":\"array\",\"items\":{\"type\":\"string\"}}", "an array of strings");
	words_of("{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000}", "an integer from 1 to 1000");
	words_of("{\"type\":\"integer\",\"minimum\":1}", "an integer of 1 or more");
	words_of("{\"type\":\"string\",\"enum\":[\"text\",\"json\",\"bytes\"]}", "text, json or bytes");
}

/* ---- rows ---- */

static void check_row(enum cell__op op, const char *args, const char *wanted)
{
	struct cell__buf why = CELL_BUF_INIT;
	json_t *object = json_loads(args, JSON_ALLOW_NUL, NULL);
	int rc = cell__operation_check(&cell__operations[op], object, &why);
	if ((rc == 0) != (wanted == NULL) || (wanted && strcmp(why.data, wanted) != 0))
		fail_msg("%s: \"%s\", expected \"%s\"", args, why.data ? why.data : "", wanted ? wanted : "");
	cell__buf_finish(&why);
	json_decref(object);
}

static void test_messages(void **state)
{
	(void)state;
	check_row(CELL__OP_DEPS_ADD, "{\"package\":\"six\"}", NULL);
	check_row(CELL__OP_DEPS_ADD, "{}", "deps.add needs 'package', a string or array of strings");
	check_row(CELL__OP_DEPS_ADD, "{\"package\":null}", "deps.add needs 'package', a string or array of strings");
	check_row(CELL__OP_WORKFLOWS_GET, "{\"name\":\"\"}", "workflows.get: 'name' must not be empty");
	check_row(CELL__OP_DEPS_ADD, "{\"package\":\"a\\u0000b\"}", "deps.add: 'package' must not contain NUL");
	check_row(CELL__OP_TOOLS_SEARCH, "{\"query\":\"x\",\"limit\":null}", NULL);
	check_row(CELL__OP_TOOLS_SEARCH, "{\"query\":\"x\",\"limit\":1001}", "tools.search: 'limit' must be an integer from 1 to 1000");
	check_row(CELL__OP_WORKFLOWS_CREATE, "{\"name\":\"w\",\"source\":\"a\\u0000b\"}", NULL);
	check_row(CELL__OP_SHELL_APPROVE, "{\"name\":\"sh\",\"args\":{}}", "shell.approve needs 'name', shell or shell_magic");
}

static void test_rows(void **state)
{
	(void)state;
	for (size_t i = 0; i < CELL__OPS; i++) {
		const struct cell__operation *row = &cell__operations[i];
		json_t *takes = cell__operation_takes(row, NULL), *gives = cell__operation_gives(row, NULL), *property, *one;
		const char *name;
		size_t k;
		assert_int_equal(row->id, i);
		assert_ptr_equal(cell__operation_find(row->method), row);
		assert_non_null(takes);
		assert_non_null(gives);
		/* "Lists ...", "Returns ...": a sentence without its end. */
		const char *end = row->about + strlen(row->about);
		if (*row->about < 'A' || *row->about > 'Z' || end[-1] == '.' || strchr(row->about, ' ')[-1] != 's')
			fail_msg("%s: \"%s\"", row->method, row->about);
		json_object_foreach(json_object_get(takes, "properties"), name, property)
			assert_null(json_object_get(property, "x-internal"));
		json_array_foreach(json_object_get(takes, "required"), k, one)
			assert_non_null(json_object_get(json_object_get(takes, "properties"), json_string_value(one)));
		json_decref(takes);
		json_decref(gives);
	}
}

static void test_changes(void **state)
{
	(void)state;
	const char *changes =
		"{\"rename\":{\"package\":\"package_name\"},\"properties\":{\"more\":{\"type\":\"string\"}},\"required\":[\"package_name\",\"more\"]}";
	json_t *schema = cell__operation_takes(&cell__operations[CELL__OP_DEPS_ADD], changes);
	json_t *args = json_pack("{s:s, s:s}", "package_name", "six", "more", "x"),
	       *wanted = json_pack("{s:s, s:s}", "package", "six", "more", "x");
	json_t *properties = json_object_get(schema, "properties");
	assert_non_null(schema);
	assert_int_equal(json_object_size(properties), 2);
	json_t *types = json_pack("[s, s]", "string", "array");
	assert_true(json_equal(json_object_get(json_object_get(properties, "package_name"), "type"), types));
	json_decref(types);
	assert_null(json_object_get(schema, "rename"));
	assert_int_equal(cell__operation_unrename(changes, args), 0);
	assert_true(json_equal(args, wanted));
	json_decref(schema);
	json_decref(args);
	json_decref(wanted);
	assert_null(cell__operation_takes(&cell__operations[CELL__OP_DEPS_ADD], "{no JSON"));
	schema = cell__operation_takes(&cell__operations[CELL__OP_WORKFLOWS_CREATE], "{\"properties\":{\"overwrite\":null}}");
	assert_null(json_object_get(json_object_get(schema, "properties"), "overwrite"));
	assert_null(json_object_get(json_object_get(schema, "properties"), "parameters"));
	json_t *shown = cell__schema_shown(schema);
	assert_non_null(json_object_get(json_object_get(json_object_get(schema, "properties"), "source"), "x-nul"));
	assert_null(json_object_get(json_object_get(json_object_get(shown, "properties"), "source"), "x-nul"));
	json_decref(shown);
	json_decref(schema);
}

/* ---- who may ask ---- */

static int failed_code;
static char failed_words[200];

static void take_failure(struct cell__call *call, int code, const char *type, const char *message)
{
	(void)call, (void)type;
	failed_code = code;
	snprintf(failed_words, sizeof failed_words, "%s", message);
}

static void test_principals(void **state)
{
	(void)state;
	for (size_t i = 0; i < CELL__OPS; i++)
		for (enum cell__principal_kind kind = CELL__PRINCIPAL_NONE; kind <= CELL__PRINCIPAL_MCP; kind++) {
			struct cell__principal principal;
			struct cell__call call = {
				.method = cell__operations[i].method, .args = json_object(), .session_id = "", .fail = take_failure
			};
			bool open = cell__operations[i].who & (1u << kind);
			cell__principal_init(&principal, kind, true, &(struct cell__host_limits){ 0 }, NULL);
			failed_code = 0;
			failed_words[0] = '\0';
			int rc = cell__call_prepare(&call, &principal);
			bool unknown = strstr(failed_words, "there is no method") != NULL;
			if (open == unknown || (!open && rc == 0) || (rc < 0) != (failed_code == CELL_E_INVALID) ||
			    (kind == CELL__PRINCIPAL_NONE && open))
				fail_msg("%s for %s: %d, %s", call.method, cell__principal_word(&principal), rc, failed_words);
			json_decref(call.args);
		}
	/* What runs programs on the host, or makes it hold a whole artifact, is not for code. */
	static const enum cell__op not_code[] = { CELL__OP_TOOLS_REGISTER, CELL__OP_TOOLS_UNREGISTER, CELL__OP_ARTIFACTS_SAVE,
						  CELL__OP_ARTIFACTS_LOAD };
	for (size_t i = 0; i < COUNT(not_code); i++)
		assert_false(cell__operations[not_code[i]].who & (1u << CELL__PRINCIPAL_CODE));
}

/* ---- faces ---- */

static bool is_type(const json_t *type, const char *word)
{
	for (size_t i = 0; i < json_array_size(type); i++)
		if (strcmp(json_string_value(json_array_get(type, i)), word) == 0)
			return true;
	return json_is_string(type) && strcmp(json_string_value(type), word) == 0;
}

/* Whether each of the types of one is a type of the other. */
static bool has_types(const json_t *type, const json_t *of)
{
	for (size_t i = 0; i < json_array_size(of); i++)
		if (!is_type(type, json_string_value(json_array_get(of, i))))
			return false;
	return json_is_array(of) || is_type(type, json_string_value(of));
}

static bool is_required(const json_t *schema, const char *name)
{
	for (size_t i = 0; i < json_array_size(json_object_get(schema, "required")); i++)
		if (strcmp(json_string_value(json_array_get(json_object_get(schema, "required"), i)), name) == 0)
			return true;
	return false;
}

/*
 * The row's members as a face has them, by their new names: of the same type, required where they are there.  `others` names members that are
 * given in another way, or in another form; `given` ones come from elsewhere (a path).
 */
static void agree(const char *where, const struct cell__operation *row, const json_t *face, const json_t *names, const char *given,
		  const char *others)
{
	json_t *takes = cell__operation_takes(row, NULL), *property;
	const char *name;
	json_object_foreach(json_object_get(takes, "properties"), name, property) {
		const char *other = json_string_value(json_object_get(names, name));
		const json_t *shown = json_object_get(json_object_get(face, "properties"), other ? other : name);
		if (strstr(others, name))
			continue;
		if (is_required(takes, name) && !is_required(face, other ? other : name) && !strstr(given, name))
			fail_msg("%s does not require %s of %s", where, name, row->method);
		if (shown && !has_types(json_object_get(shown, "type"), json_object_get(property, "type")))
			fail_msg("%s has another type of %s than %s", where, name, row->method);
	}
	json_object_foreach(json_object_get(face, "properties"), name, property)
		assert_null(json_object_get(property, "x-internal"));
	json_decref(takes);
}

static void test_tools_agree(void **state)
{
	(void)state;
	struct cell_mcp_server_options opts = { .storage = 1, .runtime_deps = 1, .allow_register = 1, .compat = 1 };
	json_t *list = cell__mcp_tools_list(&opts), *entry;
	size_t i, n = 0;
	assert_non_null(list);
	json_array_foreach(list, i, entry) {
		const char *name = json_string_value(json_object_get(entry, "name"));
		const struct cell__mcp_tool *tool = cell__mcp_tools_find(&opts, name);
		const json_t *input = json_object_get(entry, "inputSchema");
		assert_true(json_is_false(json_object_get(input, "additionalProperties")));
		assert_string_equal(json_string_value(json_object_get(json_object_get(entry, "outputSchema"), "type")), "object");
		/* What is shown is what is checked. */
		json_t *shown = cell__schema_shown(cell__mcp_tool_input(tool));
		assert_true(json_equal(input, shown));
		json_decref(shown);
		if (!tool->operation)
			continue;
		n++;
		json_t *changes = tool->input ? json_loads(tool->input, 0, NULL) : NULL;
		assert_true(tool->operation->who & (1u << CELL__PRINCIPAL_MCP));
		assert_int_equal(strncmp(json_string_value(json_object_get(entry, "description")), tool->operation->about,
					 strlen(tool->operation->about)),
				 0);
		/* What changes the host says so. */
		assert_int_equal(tool->operation->kind == CELL__GATE_NONE, (tool->flags & CELL_MCP_READ_ONLY) != 0);
		agree(name, tool->operation, input, json_object_get(changes, "rename"), "", "");
		json_decref(changes);
	}
	assert_int_equal(n, 15);
	json_decref(list);
}

static void test_routes_agree(void **state)
{
	(void)state;
	struct cell_error err;
	size_t n = 0;
	assert_int_equal(cell__routes_prepare(&err), 0);
	for (const struct cell__route *route = cell__routes; route->path; route++) {
		const json_t *body = cell__route_body(route), *query = cell__route_query(route);
		if (!route->operation)
			continue;
		n++;
		if (!(route->operation->who & (1u << CELL__PRINCIPAL_HTTP)))
			fail_msg("%s is an operation that is not for HTTP clients", route->path);
		assert_int_equal(route->scope, route->operation->kind == CELL__GATE_NONE ? CELL_SCOPE_READ : CELL_SCOPE_RUN);
		assert_true(!body || !query);
		/* In a query, metadata is JSON text. */
		agree(route->path, route->operation, body ? body : query, NULL, strchr(route->path, '{') ? route->path : "",
		      route->raw ? "metadata" : "");
	}
	assert_int_equal(n, 22);
}

static void test_document(void **state)
{
	(void)state;
	char *text = cell__openapi();
	json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	json_t *schemas = json_object_get(json_object_get(document, "components"), "schemas");
	assert_non_null(document);
	/* Every reference leads somewhere. */
	for (const char *at = text; (at = strstr(at, "#/components/schemas/"));) {
		char name[64];
		at += strlen("#/components/schemas/");
		snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "\""), at);
		if (!json_object_get(schemas, name))
			fail_msg("there is no schema %s", name);
	}
	json_t *gives = cell__operation_gives(&cell__operations[CELL__OP_DEPS_ADD], NULL);
	assert_true(json_equal(json_object_get(schemas, "deps.add"), gives));
	assert_null(strstr(text, "x-internal"));
	assert_null(strstr(text, "x-nul"));
	json_decref(gives);
	json_decref(document);
	free(text);
}

/* What an HTTP client is told, as it was before there was one checker. */
static void fields(const char *method, const char *path, const char *object, const char *wanted)
{
	struct cell__match match;
	cell__route_find(cell__routes, method, path, &match);
	assert_non_null(match.route);
	bool has_body = cell__route_body(match.route) != NULL;
	json_t *value = json_loads(object, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	json_t *found = cell__fields_check(has_body ? cell__route_body(match.route) : cell__route_query(match.route), value,
					   has_body ? "body" : "query");
	char *text = json_dumps(found, JSON_COMPACT);
	if (strcmp(text, wanted) != 0)
		fail_msg("%s %s: %s, expected %s", path, object, text, wanted);
	free(text);
	json_decref(found);
	json_decref(value);
}

#define ONE(where, name, words, type) "[{\"loc\":[\"" where "\",\"" name "\"],\"msg\":\"" words "\",\"type\":\"" type "\"}]"

static void test_details(void **state)
{
	(void)state;
	fields("POST", "/execute", "[]", "[{\"loc\":[\"body\"],\"msg\":\"Input should be an object\",\"type\":\"model_attributes_type\"}]");
	fields("POST", "/execute", "{}", ONE("body", "code", "Field required", "missing"));
	fields("POST", "/execute", "{\"code\":\"a\\u0000\",\"timeout\":null}", "[]");
	fields("POST", "/execute", "{\"code\":\"1\",\"timeout\":-1}",
	       ONE("body", "timeout", "Input should be a number of 0 or more", "type_error"));
	fields("POST", "/sessions", "{\"workspace_id\":\"a\\u0000\"}",
	       ONE("body", "workspace_id", "Input should be a valid string", "type_error"));
	fields("POST", "/sessions", "{\"timeout\":1}",
	       ONE("body", "timeout", "Extra inputs are not permitted: the server's operator sets this", "extra_forbidden"));
	fields("POST", "/install_deps", "{\"packages\":[1]}", ONE("body", "packages", "Input should be a list of strings", "type_error"));
	fields("POST", "/api/deps/add", "{\"package\":1}", ONE("body", "package", "Input should be a valid string", "type_error"));
	fields("POST", "/api/tools/x/call", "{\"args\":1}", ONE("body", "args", "Input should be an object", "type_error"));
	fields("POST", "/api/tools/x/call", "{\"args\":null}", "[]");
	fields("POST", "/api/artifacts", "{\"name\":\"a\",\"data\":\"x\\u0000\",\"description\":null,\"metadata\":null}", "[]");
	fields("POST", "/api/artifacts", "{\"name\":\"a\"}", ONE("body", "data", "Field required", "missing"));
	fields("POST", "/api/workflows", "{\"name\":\"a\",\"source\":\"x\"}", ONE("body", "description", "Field required", "missing"));
	fields("GET", "/api/workflows/search", "{\"query\":\"x\",\"limit\":0}",
	       ONE("query", "limit", "Input should be an integer of 1 or more", "type_error"));
	fields("GET", "/api/workflows/search", "{\"query\":\"x\",\"limit\":null}",
	       ONE("query", "limit", "Input should be an integer of 1 or more", "type_error"));
	fields("POST", "/v1/sessions/x/approvals/1", "{\"accept\":1}",
	       ONE("body", "accept", "Input should be a valid boolean", "type_error"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_types),       cmocka_unit_test(test_keywords),     cmocka_unit_test(test_whole_numbers),
		cmocka_unit_test(test_defaults),    cmocka_unit_test(test_words),        cmocka_unit_test(test_messages),
		cmocka_unit_test(test_rows),        cmocka_unit_test(test_changes),      cmocka_unit_test(test_principals),
		cmocka_unit_test(test_tools_agree), cmocka_unit_test(test_routes_agree), cmocka_unit_test(test_document),
		cmocka_unit_test(test_details),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
