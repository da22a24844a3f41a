/*
 * tools/mcp_tools: a server's list of tools, any JSON.  What becomes a callable has a name that can be asked for, an alias that
 * is an identifier and nobody else's, and texts within their bounds; arguments are checked without a crash.
 */
#include <ctype.h>

#include "fuzz.h"
#include "tools/mcp.h"

static void check_alias(const char *alias)
{
	MUST(!isdigit((unsigned char)*alias) && *alias);
	for (; *alias; alias++)
		MUST(isalnum((unsigned char)*alias) || *alias == '_' || (*alias & 0x80));
}

static void check_callable(const struct cell__tool_entry *tool, const struct cell__callable *callable, const json_t *given)
{
	MUST(strlen(callable->name) <= CELL_MCP_LIMIT_NAME && *callable->name);
	MUST(cell__tool_callable(tool, callable->name) == callable);
	if (callable->alias) {
		check_alias(callable->alias);
		MUST(cell__tool_callable(tool, callable->alias) == callable);
	}
	for (size_t i = 0; i < callable->params.count; i++) {
		const struct cell__param *param = &callable->params.list[i];
		MUST(cell__params_find(&callable->params, param->name) == param);
		if (param->alias && strlen(param->alias) < 1000) {
			check_alias(param->alias);
			MUST(cell__params_find(&callable->params, param->alias) == param);
		}
	}
	json_t *args = NULL;
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT, signature = CELL_BUF_INIT;
	MUST(cell__callable_signature(callable, &signature) == 0);
	if (cell__args_merge(tool, callable, given, &args, &why) < 0)
		MUST(why.size > 0);
	json_decref(args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *json = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	json_t *given = json_is_object(json) ? json_incref(json) : json_object();
	if (json_is_object(json)) {
		/* One tool that is described by it. */
		json_t *list = json_pack("[{s:s, s:O}]", "name", "t", "inputSchema", json);
		json_decref(json);
		json = list;
	}
	struct cell__tool_entry *tool = calloc(1, sizeof *tool);
	char problem[160] = "";
	MUST(tool);
	tool->adapter = &cell__tool_mcp;
	tool->refs = 1;
	tool->name = strdup("server");
	cell__mcp_fill_callables(tool, json, problem);
	MUST(tool->n_callables <= json_array_size(json) && tool->description);
	for (size_t i = 0; i < tool->n_callables; i++)
		check_callable(tool, &tool->callables[i], given);
	json_t *shown = cell__tool_to_json(tool);
	MUST(shown);
	json_decref(shown);
	cell__tool_unref(tool);
	json_decref(given);
	json_decref(json);
	return 0;
}
