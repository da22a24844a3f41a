/*
 * Tool definitions: a YAML text, then, behind a NUL, the arguments of a call as JSON.  Whatever comes in, it is either
 * a tool or there is a problem with a line of that text; and no argument ever becomes an option of the command, nor
 * changes where a request goes.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "tools/mcp.h"

#define CHECK(condition)          \
	do {                      \
		if (!(condition)) \
			abort();  \
	} while (0)

static bool is_flag(const struct cell__tool_entry *tool, const char *word)
{
	for (size_t i = 0; i < tool->schema.count; i++) {
		const struct cell__param *param = &tool->schema.list[i];
		const char *flags[] = { param->short_flag, param->long_flag };
		for (int k = 0; k < 2; k++) {
			size_t n = flags[k] ? strlen(flags[k]) : 0;
			if (n && strncmp(word, flags[k], n) == 0 && (word[n] == '\0' || (k == 1 && word[n] == '=')))
				return true;
		}
	}
	return false;
}

/* Whether the definition has a default or preset, which may begin with a dash. */
static bool has_defaults(const struct cell__tool_entry *tool, const struct cell__callable *recipe)
{
	const json_t *value;
	const char *name;
	bool found = false;
	for (size_t i = 0; i < tool->schema.count; i++)
		found |= tool->schema.list[i].fallback != NULL;
	for (size_t i = 0; recipe && i < recipe->params.count; i++)
		found |= recipe->params.list[i].fallback != NULL;
	json_object_foreach(recipe ? recipe->preset : NULL, name, value)
		found |= !json_is_null(value);
	return found;
}

static void check_argv(const struct cell__tool_entry *tool, const struct cell__callable *recipe, const json_t *args)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	struct cell__argv argv = { 0 };
	if (cell__argv_build(tool, recipe, args, &argv, &why) < 0) {
		CHECK(why.size > 0);
		return;
	}
	bool dashes_allowed = tool->end_of_options || has_defaults(tool, recipe);
	for (size_t i = 0; i < tool->schema.count; i++)
		dashes_allowed |= tool->schema.list[i].allow_dash;
	CHECK(argv.count > 0 && strcmp(argv.list[0], tool->command) == 0);
	for (size_t i = 1; i < argv.count && !dashes_allowed; i++)
		CHECK(argv.list[i][0] != '-' || is_flag(tool, argv.list[i]));
	cell__argv_finish(&argv);
}

static size_t count_slashes(const char *text)
{
	size_t n = 0;
	for (; *text && *text != '?'; text++)
		n += *text == '/';
	return n;
}

static void check_request(const struct cell__tool_entry *tool, const struct cell__callable *endpoint, const json_t *args)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	struct cell__httpreq req = { 0 };
	if (cell__httpreq_build(tool, endpoint, args, &req, &why) < 0) {
		CHECK(why.size > 0);
		return;
	}
	CHECK(strncmp(req.url, tool->base_url, strlen(tool->base_url)) == 0);
	CHECK(cell__http_same_origin(req.url, tool->base_url));
	CHECK(count_slashes(req.url) == count_slashes(tool->base_url) + count_slashes(endpoint->path));
	for (size_t i = 0; i < req.n_headers; i++)
		CHECK(!strpbrk(req.headers[i], "\r\n"));
	cell__httpreq_finish(&req);
}

static void check_call(const struct cell__tool_entry *tool, const struct cell__callable *callable, const json_t *given)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	json_t *args = NULL;
	if (cell__args_merge(tool, callable, given, &args, &why) < 0) {
		CHECK(why.size > 0);
		return;
	}
	if (tool->adapter == &cell__tool_cli)
		check_argv(tool, callable, args);
	else if (callable)
		check_request(tool, callable, args);
	json_decref(args);
}

static void check_tool(const struct cell__tool_entry *tool, const json_t *given)
{
	json_t *shown = cell__tool_to_json(tool);
	CHECK(shown && cell__tool_name_ok(tool->name));
	/* What an MCP server has is known when it runs. */
	if (tool->adapter == &cell__tool_mcp)
		CHECK(tool->n_callables == 0 && tool->mcp && !tool->mcp->command != !tool->mcp->url);
	else
		CHECK(tool->n_callables > 0);
	json_decref(shown);
	for (size_t i = 0; i < tool->n_callables; i++) {
		CELL_AUTO_BUF struct cell__buf signature = CELL_BUF_INIT;
		CHECK(cell__callable_signature(&tool->callables[i], &signature) == 0);
		check_call(tool, &tool->callables[i], given);
	}
	if (tool->adapter == &cell__tool_cli)
		check_call(tool, NULL, given);
}

static int count_lines(const char *bytes, size_t size)
{
	int n = 2; /* the parser may stand behind the last one */
	for (size_t i = 0; i < size; i++)
		n += bytes[i] == '\n' || bytes[i] == '\r' || (unsigned char)bytes[i] >= 0x80;
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *bytes = (const char *)data;
	const char *end = size ? memchr(bytes, '\0', size) : NULL;
	size_t yaml_size = end ? (size_t)(end - bytes) : size;
	json_t *given = end ? json_loadb(end + 1, size - yaml_size - 1, JSON_ALLOW_NUL, NULL) : NULL;
	if (!json_is_object(given)) {
		json_decref(given);
		given = json_object();
	}
	struct cell__problems problems = { 0 };
	struct cell__tool_entry *tool = cell__tool_load("f.yaml", bytes, yaml_size, &problems);
	CHECK((tool != NULL) == (problems.count == 0));
	for (size_t i = 0; i < problems.count; i++)
		CHECK(problems.list[i].message && problems.list[i].line >= 1 && problems.list[i].line <= count_lines(bytes, yaml_size));
	if (tool)
		check_tool(tool, given);
	cell__tool_unref(tool);
	cell__problems_finish(&problems);
	json_decref(given);
	return 0;
}
