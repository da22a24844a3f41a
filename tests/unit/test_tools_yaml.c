/* tools: definitions, and what is said about bad ones. */
#define _GNU_SOURCE
#include "tools_support.h"

struct bad {
	const char *yaml;
	int line;
	const char *part; /* of the message */
};

#define CLI "name: t\ncommand: c\n"
#define OK_RECIPE "recipes: {r: {}}\n"
#define HTTP "name: t\ntype: http\nbase_url: http://h\n"

static const struct bad bads[] = {
	/* not YAML, or not the kind we take */
	{ "", 1, "the file is empty" },
	{ "# nothing\n", 1, "the file is empty" },
	{ "- a\n", 1, "a tool must be a mapping" },
	{ "just text\n", 1, "a tool must be a mapping" },
	{ "name: t\ncommand: [a\nx: y\n", 3, "malformed YAML" },
	{ "name: t\n\tcommand: c\n", 2, "malformed YAML" },
	{ "name: \"t\n", 2, "malformed YAML" },
	{ "a: \xff\xfe\n", 1, "malformed YAML" },
	{ CLI OK_RECIPE "---\nname: u\n", 4, "must contain only one YAML document" },
	{ "name: &x t\n", 1, "anchors and aliases" },
	{ "a: 1\nb: *x\n", 2, "anchors and aliases" },
	{ "name: !!python/object:os.system t\n", 1, "tags are not supported" },
	{ "name: t\nschema: !x {}\n", 2, "tags are not supported" },
	{ "? [a]\n: b\n", 1, "a key must be a string" },
	{ "name: t\ncommand: c\nname: u\n", 3, "duplicate key 'name', first in line 1" },
	{ CLI "recipes:\n  r: {}\n  r: {}\n", 5, "duplicate key 'r'" },
	{ "name: \"t\\0x\"\n", 1, "NUL" },
	/* the tool */
	{ "command: c\n" OK_RECIPE, 1, "a tool needs a name" },
	{ "\n\ncommand: c\n" OK_RECIPE, 3, "a tool needs a name" },
	{ "command: c\nname: a b\n" OK_RECIPE, 2, "invalid tool name 'a b'" },
	{ "name: _x\ncommand: c\n" OK_RECIPE, 1, "invalid tool name" },
	{ "name: a.b\ncommand: c\n" OK_RECIPE, 1, "invalid tool name" },
	{ "name: list\ncommand: c\n" OK_RECIPE, 1, "tools.list() is reserved" },
	{ "name: [t]\ncommand: c\n" OK_RECIPE, 1, "name must be a string" },
	{ "name: t\n" OK_RECIPE, 1, "Tool 't' has no command" },
	{ "name: t\ncommand:\n" OK_RECIPE, 2, "Tool 't' has no command" },
	{ "name: t\ncommand: {a: b}\n" OK_RECIPE, 2, "command must be a string" },
	{ CLI, 1,
	  "Tool 't' has no recipes defined. Old-format YAML with 'args' template is no longer supported. "
	  "Use schema + recipes format." },
	{ CLI "args: --x {y}\n", 1, "Tool 't' has no recipes defined. Old-format YAML" },
	{ CLI "recipes: {}\n", 3, "Tool 't' has no recipes defined" },
	{ CLI "recipes: [a]\n", 3, "recipes must be a mapping" },
	{ CLI OK_RECIPE "colour: red\n", 4, "unknown key 'colour' in a tool of type cli" },
	{ CLI OK_RECIPE "base_url: http://x\n", 4, "unknown key 'base_url'" },
	{ CLI OK_RECIPE "type: soap\n", 4, "unknown type 'soap'" },
	{ "name: t\ntype: mcp\n", 1, "Tool 't': Neither a \"command\" nor a \"url\"" },
	{ "name: t\ntype: mcp\ncommand: c\nurl: http://h/mcp\n", 4, "not both" },
	{ "name: t\ntype: mcp\nurl: http://h/x\n", 3, "Unable to determine MCP client type from URL" },
	{ "name: t\ntype: mcp\ncommand: c\nargs: [a, [b]]\n", 4, "an item of args must be a string" },
	{ "name: t\ntype: mcp\ncommand: c\nrecipes: {r: }\n", 4, "unknown key 'recipes' in a tool of type mcp" },
	{ CLI OK_RECIPE "timeout: soon\n", 4, "timeout must be a number of seconds" },
	{ CLI OK_RECIPE "timeout: 0\n", 4, "timeout must be a number" },
	{ CLI OK_RECIPE "timeout: -1\n", 4, "timeout must be a number" },
	{ CLI OK_RECIPE "timeout: 86401\n", 4, "timeout must be a number" },
	{ CLI OK_RECIPE "max_output: 0\n", 4, "max_output must be" },
	{ CLI OK_RECIPE "max_output: 16777217\n", 4, "max_output must be" },
	{ CLI OK_RECIPE "tags: web\n", 4, "tags must be a list" },
	{ CLI OK_RECIPE "tags:\n- web\n- [x]\n", 6, "a tag must be a string" },
	{ CLI OK_RECIPE "env: [A]\n", 4, "env must be a mapping" },
	{ CLI OK_RECIPE "env:\n  A: ok\n  B: ${\n", 6, "write a variable as ${NAME}" },
	{ CLI OK_RECIPE "env:\n  A=B: x\n", 5, "invalid variable name" },
	{ CLI OK_RECIPE "end_of_options: maybe\n", 4, "end_of_options must be true or false" },
	/* the schema */
	{ CLI OK_RECIPE "schema:\n  flags: {}\n", 5, "unknown key 'flags' in schema" },
	{ CLI OK_RECIPE "schema:\n  options: [a]\n", 5, "options must be a mapping" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {typ: string}\n", 6, "unknown key 'typ' in an option" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a:\n      type: text\n", 7, "unknown type 'text'" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {type: object}\n", 6, "cannot take an object" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {required: 1}\n", 6, "required must be true or false" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {short: '-a'}\n", 6, "is not a valid short flag" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {long: 'a b'}\n", 6, "is not a valid long flag" },
	{ CLI OK_RECIPE "schema:\n  options:\n    -a: {}\n", 6, "invalid parameter name" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {type: integer, default: x}\n", 6, "default: Argument 'a' must be an integer" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {enum: x}\n", 6, "enum must be a list" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {enum: [x], default: y}\n", 6, "must be one of" },
	{ CLI OK_RECIPE "schema:\n  positional: {a: {}}\n", 5, "positional must be a list" },
	{ CLI OK_RECIPE "schema:\n  positional:\n    - {type: string}\n", 6, "a positional needs a name" },
	{ CLI OK_RECIPE "schema:\n  positional:\n    - {name: a, short: a}\n", 6, "unknown key 'short'" },
	{ CLI OK_RECIPE "schema:\n  positional:\n    - {name: a, type: boolean}\n", 6, "cannot be boolean" },
	{ CLI OK_RECIPE "schema:\n  options:\n    a: {}\n  positional:\n    - name: a\n", 8, "duplicate parameter 'a'" },
	/* recipes */
	{ CLI "recipes:\n  r: {what: 1}\n", 4, "unknown key 'what' in a recipe" },
	{ CLI "recipes:\n  r: text\n", 4, "a recipe must be a mapping" },
	{ CLI "recipes:\n  a b: {}\n", 4, "invalid recipe name" },
	{ CLI "recipes:\n  r:\n    preset: {a: 1}\n", 5, "preset 'a' is not in the schema" },
	{ CLI "recipes:\n  r:\n    params:\n      a: {}\n", 6, "parameter 'a' is not in the schema" },
	{ CLI "schema: {options: {a: {type: integer}}}\nrecipes:\n  r:\n    preset: {a: x}\n", 6,
	  "preset: Argument 'a' must be an integer" },
	{ CLI "schema: {options: {a: {type: integer}}}\nrecipes:\n  r:\n    params:\n      a: {type: string}\n", 7,
	  "is integer in the schema" },
	{ CLI "schema: {options: {a: {short: a}}}\nrecipes:\n  r:\n    preset:\n      a: \"x\\0\"\n", 7, "contains a NUL byte" },
	/* HTTP */
	{ "name: t\ntype: http\nendpoints: {e: {path: /}}\n", 1, "needs a base_url" },
	{ "name: t\ntype: http\nbase_url: ftp://h\nendpoints: {e: {path: /}}\n", 3, "needs a base_url" },
	{ "name: t\ntype: http\nbase_url: http://u:p@h\nendpoints: {e: {path: /}}\n", 3, "secrets belong in headers" },
	{ "name: t\ntype: http\nbase_url: http:///x\nendpoints: {e: {path: /}}\n", 3, "needs a base_url" },
	{ HTTP, 1, "Tool 't' has no endpoints" },
	{ HTTP "endpoints: {}\n", 4, "Tool 't' has no endpoints" },
	{ HTTP "command: c\nendpoints: {e: {path: /}}\n", 4, "unknown key 'command' in a tool of type http" },
	{ HTTP "endpoints:\n  e: {}\n", 5, "needs a path that begins with /" },
	{ HTTP "endpoints:\n  e: {path: x}\n", 5, "needs a path that begins with /" },
	{ HTTP "endpoints:\n  e: {path: /a?b=c}\n", 5, "contains an invalid character" },
	{ HTTP "endpoints:\n  e: {path: '/a/{b'}\n", 5, "write a placeholder as {name}" },
	{ HTTP "endpoints:\n  e: {path: /, method: FETCH}\n", 5, "unknown method 'FETCH'" },
	{ HTTP "endpoints:\n  e: {path: /, url: x}\n", 5, "unknown key 'url' in an endpoint" },
	{ HTTP "endpoints:\n  e:\n    path: /\n    parameters:\n      p: {in: cookie}\n", 8, "'in' must be path, query, body or header" },
	{ HTTP "endpoints:\n  e:\n    path: /\n    parameters:\n      p: {in: path}\n", 8, "'p' is not in the endpoint's path" },
	{ HTTP "endpoints:\n  e:\n    path: /{p}\n    parameters:\n      p: {in: query}\n", 8, "'p' is in the endpoint's path" },
	{ HTTP "endpoints:\n  e:\n    path: /{p}\n    parameters:\n      p: {type: array}\n", 8, "cannot be of type array" },
	{ HTTP "endpoints:\n  e:\n    path: /\n    query: [a]\n", 7, "query must be a mapping" },
	{ HTTP "endpoints:\n  e:\n    path: /\n    method: POST\n    body: [1]\n    parameters: {p: }\n", 8, "body must be a mapping" },
	{ HTTP "headers:\n  'A B': x\nendpoints: {e: {path: /}}\n", 5, "'A B' is not a valid header" },
	{ HTTP "headers: {X-Key: '${K'}\nendpoints: {e: {path: /}}\n", 4, "write a variable as ${NAME}" },
	{ HTTP "headers: {X-Key: k}\nendpoints:\n  e:\n    path: /\n    parameters:\n      x_key: {in: header}\n", 9,
	  "header 'x_key' is set by the tool" },
};

static void test_bad(void **state)
{
	(void)state;
	int wrong = 0;
	for (size_t i = 0; i < COUNT(bads); i++) {
		struct cell__problems problems = { 0 };
		struct cell__tool_entry *tool = cell__tool_load("dir/x.yaml", bads[i].yaml, strlen(bads[i].yaml), &problems);
		if (tool || problems.count == 0)
			fail_msg("accepted:\n%s", bads[i].yaml);
		const struct cell__problem *p = &problems.list[0];
		if (problems.count != 1 || p->line != bads[i].line || !strstr(p->message, bads[i].part)) {
			for (size_t k = 0; k < problems.count; k++)
				fprintf(stderr, "%d: %s\n", problems.list[k].line, problems.list[k].message);
			fprintf(stderr, "expected only %d: %s, of\n%s", bads[i].line, bads[i].part, bads[i].yaml);
			wrong++;
		}
		assert_string_equal(p->file, "dir/x.yaml");
		cell__problems_finish(&problems);
	}
	assert_int_equal(wrong, 0);
}

/* All problems of a file are told, not only the first. */
static void test_several(void **state)
{
	(void)state;
	const char *yaml = "name: t\ncolour: red\nsize: 3\ncommand: c\nrecipes:\n  r: {x: 1}\n";
	struct cell__problems problems = { 0 };
	assert_null(cell__tool_load("x.yaml", yaml, strlen(yaml), &problems));
	assert_int_equal(problems.count, 3);
	assert_int_equal(problems.list[0].line, 2);
	assert_int_equal(problems.list[1].line, 3);
	assert_int_equal(problems.list[2].line, 6);
	cell__problems_finish(&problems);
}

static size_t count_problems(const struct cell__buf *yaml, const char *part)
{
	struct cell__problems problems = { 0 };
	struct cell__tool_entry *tool = cell__tool_load("x.yaml", yaml->data, yaml->size, &problems);
	size_t n = problems.count;
	assert_int_equal(tool == NULL, n > 0);
	if (n > 0 && part && !strstr(problems.list[0].message, part))
		fail_msg("not '%s': %s", part, problems.list[0].message);
	cell__tool_unref(tool);
	cell__problems_finish(&problems);
	return n;
}

static void nested(struct cell__buf *yaml, size_t depth)
{
	yaml->size = 0;
	/* The document, env's mapping, then brackets. */
	cell__buf_add_str(yaml, HTTP "endpoints: {e: {path: /, method: POST, body: ");
	for (size_t i = 0; i < depth - 3; i++)
		cell__buf_add_str(yaml, "[");
	for (size_t i = 0; i < depth - 3; i++)
		cell__buf_add_str(yaml, "]");
	cell__buf_add_str(yaml, "}}\n");
}

static void test_limits(void **state)
{
	(void)state;
	CELL_AUTO_BUF struct cell__buf yaml = CELL_BUF_INIT;
	nested(&yaml, CELL_TOOL_LIMIT_DEPTH);
	assert_int_equal(count_problems(&yaml, NULL), 0);
	nested(&yaml, CELL_TOOL_LIMIT_DEPTH + 1);
	assert_int_equal(count_problems(&yaml, "nested too deeply"), 1);
	nested(&yaml, 100000);
	assert_int_equal(count_problems(&yaml, "nested too deeply"), 1);

	yaml.size = 0;
	cell__buf_add_str(&yaml, CLI OK_RECIPE "#");
	while (yaml.size < CELL_TOOL_LIMIT_FILE_BYTES)
		cell__buf_add_str(&yaml, "x");
	assert_int_equal(count_problems(&yaml, NULL), 0);
	cell__buf_add_str(&yaml, "x");
	assert_int_equal(count_problems(&yaml, "larger than"), 1);

	for (unsigned past = 0; past < 2; past++) {
		yaml.size = 0;
		cell__buf_add_str(&yaml, CLI "recipes:\n");
		for (unsigned i = 0; i < CELL_TOOL_LIMIT_CALLABLES + past; i++)
			cell__buf_printf(&yaml, "  r%u:\n", i);
		assert_int_equal(count_problems(&yaml, "more than 512 recipes"), past);
	}
	for (unsigned past = 0; past < 2; past++) {
		yaml.size = 0;
		cell__buf_add_str(&yaml, CLI OK_RECIPE "env:\n");
		for (unsigned i = 0; i < CELL_TOOL_LIMIT_KEYS + past; i++)
			cell__buf_printf(&yaml, "  V%u: x\n", i);
		assert_int_equal(count_problems(&yaml, "more than 1024 keys"), past);
	}
	for (unsigned past = 0; past < 2; past++) {
		yaml.size = 0;
		cell__buf_add_str(&yaml, CLI OK_RECIPE "schema:\n  options:\n");
		for (unsigned i = 0; i < CELL_TOOL_LIMIT_PARAMS + past; i++)
			cell__buf_printf(&yaml, "    p%u:\n", i);
		assert_int_equal(count_problems(&yaml, "more than 256 parameters") > 0, past);
	}
	yaml.size = 0;
	cell__buf_add_str(&yaml, CLI OK_RECIPE);
	for (unsigned i = 0; i < CELL_TOOL_LIMIT_PROBLEMS + 10; i++)
		cell__buf_printf(&yaml, "k%u: x\n", i);
	assert_int_equal(count_problems(&yaml, "unknown key"), CELL_TOOL_LIMIT_PROBLEMS);
}

/* Values mean what the parameter's type says. */
static void test_values(void **state)
{
	(void)state;
	struct cell__tool_entry *tool = load_ok("name: t\ncommand: c\ntimeout: 1.5\nmax_output: 10\nenv: {A: 1, B: , C: 'x ${V} $${W}'}\n"
						"cwd: sub\nschema:\n  options:\n"
						"    s: {type: str, default: 010, enum: [010, no, null]}\n"
						"    b: {type: bool, default: on}\n"
						"    i: {type: int, default: -3}\n"
						"    f: {type: float, default: 1e3}\n"
						"    l: {type: list, default: [1, \"2\", x]}\n"
						"recipes:\n  r:\n");
	assert_int_equal(tool->timeout_ms, 1500);
	assert_int_equal(tool->max_output, 10);
	assert_string_equal(tool->cwd, "sub");
	assert_string_equal(tool->env.list[0].value, "1");
	assert_string_equal(tool->env.list[1].value, "");
	json_t *all = json_array();
	for (size_t i = 0; i < tool->schema.count; i++)
		json_array_append(all, tool->schema.list[i].fallback);
	char *text = json_dumps(all, JSON_COMPACT);
	assert_string_equal(text, "[\"010\",true,-3,1000.0,[1,\"2\",\"x\"]]");
	free(text);
	json_decref(all);
	cell__tool_unref(tool);
}

static const char *two_vars(void *arg, const char *name)
{
	(void)arg;
	return strcmp(name, "V") == 0 ? "tops3cret" : strcmp(name, "EMPTY") == 0 ? "" : NULL;
}

static void test_vars(void **state)
{
	(void)state;
	static const struct {
		const char *text, *out, *why;
	} rows[] = {
		{ "", "", NULL },
		{ "plain $HOME $ {x}", "plain $HOME $ {x}", NULL },
		{ "${V}", "tops3cret", NULL },
		{ "a${V}b${V}", "atops3cretbtops3cret", NULL },
		{ "${EMPTY}", "", NULL },
		{ "$${V}", "${V}", NULL },
		{ "$$${V}", "$${V}", NULL },
		{ "x${MISSING}", NULL, "environment variable MISSING is not set" },
	};
	struct cell__tools_options opts = { .getenv_fn = two_vars };
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell__secrets secrets = { 0 };
		CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
		char *out = NULL;
		int rc = cell__vars_expand(rows[i].text, &opts, &secrets, &out, &why);
		assert_int_equal(rc, rows[i].out ? 0 : -1);
		if (rows[i].out)
			assert_string_equal(out, rows[i].out);
		else
			assert_string_equal(why.data, rows[i].why);
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		cell__buf_add_str(&text, "<tops3cret> and tops3cret, tops3");
		assert_int_equal(cell__secrets_redact(&secrets, &text), 0);
		if (secrets.count > 0 && strcmp(secrets.list[0], "tops3cret") == 0)
			assert_string_equal(text.data, "<***> and ***, tops3");
		cell__secret_free(out);
		cell__secrets_finish(&secrets);
	}
	assert_true(cell__vars_ok("a ${B_1} $${ $x"));
	assert_false(cell__vars_ok("${}"));
	assert_false(cell__vars_ok("${a b}"));
	assert_false(cell__vars_ok("${1}"));
}

/* No allocation that fails may crash or leak; what comes out is a tool or a problem. */
static void test_no_memory(void **state)
{
	(void)state;
	const char *yaml = HTTP "headers: {A: '${B}'}\ntags: [x]\nendpoints:\n  e:\n    path: /{a}/{b}\n"
				"    parameters: {a: {description: d}, q: {enum: [x], default: x}}\n";
	const char *cli = CLI "tags: [x, y]\nschema:\n  options: {a: {short: a, long: b, description: d}}\n"
			      "  positional: [{name: p}]\nrecipes:\n  r: {preset: {a: x}, params: {p: {}}}\n";
	for (int kind = 0; kind < 2; kind++) {
		const char *text = kind ? cli : yaml;
		for (long n = 1; n < 400; n++) {
			struct cell__problems problems = { 0 };
			cell__alloc_fail_after(n);
			struct cell__tool_entry *tool = cell__tool_load("x.yaml", text, strlen(text), &problems);
			cell__alloc_fail_after(0);
			cell__tool_unref(tool);
			cell__problems_finish(&problems);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bad),    cmocka_unit_test(test_several), cmocka_unit_test(test_limits),
		cmocka_unit_test(test_values), cmocka_unit_test(test_vars),    cmocka_unit_test(test_no_memory),
	};
	return cmocka_run_group_tests_name("tools_yaml", tests, NULL, NULL);
}
