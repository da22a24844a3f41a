/*
 * The tools that a client sees. Most are operations on the space: schemas and descriptions come from their rows (calls/table.c), and only
 * differences are here. run_code, execute_ipython_cell, checkpoint, rewind, fork_session and list_variables are run by the session's thread (cells.c).
 */
#include "mcp/server/server.h"

#include <string.h>

#include "calls/schema.h"
#include "executors/executor.h"

#define OBJECT(properties, required) \
	"{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "],\"additionalProperties\":false}"
/* Answers may gain fields. */
#define ANSWER(properties, required) "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "]}"
#define DONE ANSWER("\"result\":{\"type\":\"string\"}," SESSION, "\"result\"")
#define STRINGS "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"
#define SESSION "\"session\":{\"type\":\"string\"}"
/* Where one is made if none is named, and where there has to be one. */
#define SESSION_OR_NEW "\"session\":{\"type\":\"string\",\"minLength\":1,\"description\":\"Id from an earlier answer\"}"
#define WAIT_MS "\"wait_ms\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":3600000"
#define JOB_ID "\"job\":{\"type\":\"string\",\"minLength\":1}"
#define SESSION_ID "\"session\":{\"type\":\"string\",\"minLength\":1}"
#define OF(id) &cell__operations[CELL__OP_##id]
/* Their names say it, and the tool's description what a query is. */
#define SOME_QUERY "{\"properties\":{\"query\":{\"minLength\":1,\"description\":null},\"limit\":{\"description\":null}}}"
/* Members without a value are left out. */
#define CELL_RESULT                                                                                                                       \
	ANSWER("\"value\":{\"description\":\"The value as JSON where that is exact and not too long\"},"                                  \
	       "\"repr\":{\"type\":\"string\",\"description\":\"The value otherwise\"},\"stdout\":{\"type\":\"string\"},"                 \
	       "\"stderr\":{\"type\":\"string\"},\"displays\":" STRINGS ",\"notices\":" STRINGS ","                                       \
	       "\"error\":{\"type\":\"object\",\"properties\":{\"type\":{\"type\":\"string\"},\"message\":{\"type\":\"string\"},"         \
	       "\"traceback\":{\"type\":\"string\"},\"code\":{\"type\":\"string\"}},\"required\":[\"type\",\"message\",\"code\"]},"       \
	       "\"images\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"Paths of image files\"},"                \
	       "\"duration_ms\":{\"type\":\"number\"},\"state\":{\"type\":\"string\",\"enum\":[\"kept\",\"restored\",\"lost\"]}," SESSION \
	       ",\"truncated\":{\"type\":\"boolean\"},\"job\":{\"type\":\"string\"},\"result\":{\"type\":\"string\"},"                    \
	       "\"output_file\":{\"type\":\"string\",\"description\":\"File with the whole output, if it is too long for the answer\"}",  \
	       "")

static const struct cell__mcp_tool table[] = {
	{ .name = "run_code",
	  .title = "Run Python code",
	  .about =
		  "Runs Python and returns the value of the last expression, printed output and plots. Variables stay in the session; pass its id "
		  "to go on with them, or nothing for this connection's session or a new one. The idlest session ends when others need its "
		  "place.\n"
		  "1. Find tools: search_tools, or tools.search('send mail') in code. help(tools.NAME.CALLABLE) explains one.\n"
		  "2. Call them with keyword arguments, many in one cell, and return only what you need: "
		  "tools.mail.send(to='a@b.c', text=report); await tools.x.y.call_async(...) runs calls side by side.\n"
		  "3. Keep what worked: workflows.create(name, source_with_def_run, description), later workflows.NAME(...).\n"
		  "artifacts.save(name, data, description) and artifacts.load(name) outlive sessions. deps.add('pandas') installs. Output past "
		  "50,000 characters goes to a file that the answer names.",
	  .input = OBJECT("\"code\":{\"type\":\"string\",\"x-nul\":true,"
			  "\"description\":\"!cmd, %magic and await work\"}," WAIT_MS
			  ",\"description\":\"Then answer with a job id for get_job\"}," SESSION_OR_NEW,
			  "\"code\""),
	  .answer = CELL_RESULT,
	  .flags = CELL_MCP_DESTRUCTIVE | CELL_MCP_OPEN_WORLD | CELL_MCP_SESSION | CELL_MCP_BEGINS },
	{ .name = "execute_ipython_cell",
	  .title = "Execute an IPython cell",
	  .about = "Executes Python code in the session's IPython kernel, which keeps its variables, and returns the "
		   "output as a notebook shows it. Plots are returned as images.",
	  .input = OBJECT(
		  "\"code\":{\"type\":\"string\",\"x-nul\":true,\"description\":\"Python code to execute in the IPython kernel\"},"
		  "\"timeout\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1000000,\"default\":120,\"description\":\"Seconds; 0: no limit\"},"
		  "\"max_output_chars\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":" CELL__STRING(
			  CELL_MCP_MAX_OUTPUT_CHARS) ",\"default\":5000,\"description\":\"Longer output is cut in the middle; the whole output is kept in a file\"}," SESSION_OR_NEW,
		  "\"code\""),
	  .answer = CELL_RESULT,
	  .flags = CELL_MCP_DESTRUCTIVE | CELL_MCP_OPEN_WORLD | CELL_MCP_SESSION | CELL_MCP_BEGINS | CELL_MCP_COMPAT },
	{ .name = "reset",
	  .title = "Reset the session",
	  .about = "Starts a fresh kernel, also while a cell runs: variables are lost, files are kept.",
	  .input = OBJECT(SESSION_ID, ""),
	  .answer = DONE,
	  .flags = CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT | CELL_MCP_SESSION | CELL_MCP_AT_ONCE,
	  .run = cell__mcp_reset },
	{ .name = "interrupt",
	  .title = "Interrupt the running cell",
	  .about = "Raises KeyboardInterrupt in the running cell; variables are kept.",
	  .input = OBJECT(SESSION_ID, ""),
	  .answer = DONE,
	  .flags = CELL_MCP_IDEMPOTENT | CELL_MCP_SESSION | CELL_MCP_AT_ONCE,
	  .run = cell__mcp_interrupt },
	{ .name = "files",
	  .title = "Files of the session",
	  .about = "Lists, reads (up to 1 MiB), writes or removes files of the session's workspace.",
	  .input = OBJECT(
		  "\"op\":{\"type\":\"string\",\"enum\":[\"list\",\"read\",\"write\",\"remove\"]},\"path\":{\"type\":\"string\",\"default\":\"\"},"
		  "\"data\":{\"type\":\"string\",\"x-nul\":true},\"base64\":{\"type\":\"boolean\",\"description\":\"Of data\"}," SESSION_ID,
		  "\"op\""),
	  .answer = ANSWER("\"result\":{\"type\":\"string\"},\"entries\":{\"type\":\"array\"},\"data\":{\"type\":\"string\"},"
			   "\"base64\":{\"type\":\"boolean\"}," SESSION,
			   ""),
	  .flags = CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT | CELL_MCP_SESSION | CELL_MCP_AT_ONCE,
	  .run = cell__mcp_files },
	{ .name = "command",
	  .title = "Commands of the session",
	  .about = "Runs a program beside the cells. After wait_ms it goes on, with an id for output (from a position), stdin, signal.",
	  .input = OBJECT("\"op\":{\"type\":\"string\",\"enum\":[\"run\",\"output\",\"stdin\",\"signal\",\"list\"]},"
			  "\"line\":{\"type\":[\"string\",\"array\"],\"items\":{\"type\":\"string\"},\"description\":\"For sh, or argv\"},"
			  "\"cwd\":{\"type\":\"string\"},\"timeout\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1000000},"
			  "\"stdin\":{\"type\":\"string\",\"x-nul\":true},\"keep_stdin\":{\"type\":\"boolean\"}," WAIT_MS
			  "},\"command\":{\"type\":\"string\",\"minLength\":1},\"position\":{\"type\":\"integer\"},"
			  "\"signal\":{\"type\":\"string\"}," SESSION_ID,
			  ""),
	  .answer = ANSWER(
		  "\"command\":{\"type\":\"string\"},\"state\":{\"type\":\"string\",\"enum\":[\"running\",\"ended\"]},"
		  "\"output\":{\"type\":\"string\",\"description\":\"stdout and stderr as they came\"},"
		  "\"position\":{\"type\":\"integer\",\"description\":\"Where the output goes on\"},\"more\":{\"type\":\"boolean\"},"
		  "\"exit_code\":{\"type\":\"integer\"},\"reason\":{\"type\":\"string\"},\"commands\":{\"type\":\"array\"}," SESSION,
		  ""),
	  .flags = CELL_MCP_DESTRUCTIVE | CELL_MCP_OPEN_WORLD | CELL_MCP_SESSION | CELL_MCP_BEGINS | CELL_MCP_AT_ONCE | CELL_MCP_COMMANDS |
		   CELL_MCP_LONG,
	  .run = cell__mcp_command },
	{ .name = "get_job",
	  .title = "Get the result of a job",
	  .about = "Returns the result of a job, or that it still runs.",
	  .input = OBJECT(JOB_ID "," WAIT_MS ",\"default\":0}", "\"job\""),
	  .answer = CELL_RESULT,
	  .flags = CELL_MCP_READ_ONLY,
	  .run = cell__mcp_get_job },
	{ .name = "cancel_job",
	  .title = "Cancel a job",
	  .about = "Interrupts a job, or keeps it from running.",
	  .input = OBJECT(JOB_ID, "\"job\""),
	  .answer = DONE,
	  .flags = CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT,
	  .run = cell__mcp_cancel_job },
	{ .name = "close_session",
	  .title = "Close a session",
	  .about = "Ends a session.",
	  .input = OBJECT(SESSION_ID, "\"session\""),
	  .answer = DONE,
	  .flags = CELL_MCP_DESTRUCTIVE | CELL_MCP_SESSION | CELL_MCP_AT_ONCE,
	  .run = cell__mcp_close_session },
	{ .name = "checkpoint",
	  .title = "Keep the state",
	  .about = "Keeps the session's state (variables, imports, open files) under a name, for rewind. Files are included only where the "
		   "workspace is a layer.",
	  .input = OBJECT("\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":200}," SESSION_ID, "\"name\""),
	  .answer = DONE,
	  .flags = CELL_MCP_FORKS | CELL_MCP_IDEMPOTENT | CELL_MCP_SESSION },
	{ .name = "rewind",
	  .title = "Return to a kept state",
	  .about = "Returns to a kept state, which stays kept.",
	  .input = OBJECT("\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":200}," SESSION_ID, "\"name\""),
	  .answer = DONE,
	  .flags = CELL_MCP_FORKS | CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT | CELL_MCP_SESSION },
	{ .name = "fork_session",
	  .title = "Fork a session",
	  .about = "Makes n sessions that go on from this one's state, to try several ways; returns their ids.",
	  .input = OBJECT(
		  "\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":" CELL__STRING(CELL_MCP_MAX_FORKS) ",\"default\":1}," SESSION_ID,
		  ""),
	  .answer = ANSWER("\"sessions\":" STRINGS, "\"sessions\""),
	  .flags = CELL_MCP_FORKS | CELL_MCP_SESSION },
	{ .name = "list_variables",
	  .title = "List variables",
	  .about = "Lists the session's variables: names, types, sizes and short previews, without running code of the session.",
	  .input = OBJECT(SESSION_ID, ""),
	  .answer = ANSWER("\"variables\":{\"type\":\"array\",\"items\":{\"type\":\"object\"}},\"more\":{\"type\":\"integer\"}",
			   "\"variables\",\"more\""),
	  .flags = CELL_MCP_READ_ONLY | CELL_MCP_SESSION },
	{ .name = "list_tools",
	  .title = "List tools",
	  .operation = OF(TOOLS_LIST),
	  .about = "Code calls them as tools.<name>(...) or tools.<name>.<callable>(...).",
	  .brief = "Lists the signatures of all tools that code can call.",
	  .flags = CELL_MCP_READ_ONLY,
	  .run = cell__mcp_list_tools },
	{ .name = "search_tools",
	  .title = "Search tools",
	  .operation = OF(TOOLS_SEARCH),
	  .brief = "Finds callables for a task: signatures, best match first.",
	  .input = SOME_QUERY,
	  .flags = CELL_MCP_READ_ONLY,
	  .run = cell__mcp_list_tools },
	{ .name = "register_mcp_server",
	  .title = "Register an MCP server",
	  .operation = OF(TOOLS_REGISTER),
	  .about = "Code calls them as tools.<server_name>.<tool>(...), and with types: from "
		   "mcptools.<server_name>.<tool> import Params, run; run(Params(...)). Returns the names of its tools. "
		   "After registering a server again, use reset so that code sees the new package.",
	  .input =
		  "{\"rename\":{\"name\":\"server_name\",\"params\":\"server_params\"},\"properties\":{\"server_params\":{\"description\":"
		  "\"{command, args, env} of a program, or {url, headers} of an HTTP server; ${VAR} is taken from the server's environment\"}}}",
	  .answer = ANSWER("\"result\":" STRINGS
			   ",\"package\":{\"type\":[\"string\",\"null\"],\"description\":\"Its name under mcptools\"},"
			   "\"problems\":" STRINGS,
			   "\"result\""),
	  .flags = CELL_MCP_OPEN_WORLD | CELL_MCP_REGISTER,
	  .run = cell__mcp_register_server },
	{ .name = "list_workflows",
	  .title = "List workflows",
	  .operation = OF(WORKFLOWS_LIST),
	  .about = "They are Python functions for code to reuse.",
	  .brief = "Lists stored workflows: functions that code reuses.",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_READ_ONLY,
	  .run = cell__mcp_operate },
	{ .name = "search_workflows",
	  .title = "Search workflows",
	  .operation = OF(WORKFLOWS_SEARCH),
	  .brief = "Finds workflows for a task, best match first.",
	  .input = "{\"properties\":{\"query\":{\"minLength\":1,\"description\":null},\"limit\":{\"maximum\":" CELL__STRING(
		  CELL_LIMIT_SEARCH) ",\"description\":null}}}",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_READ_ONLY,
	  .run = cell__mcp_operate },
	{ .name = "get_workflow",
	  .title = "Get a workflow",
	  .operation = OF(WORKFLOWS_GET),
	  .about = "A workflow that does not exist is an error.",
	  .output = "{\"type\":\"object\",\"required\":[\"name\",\"description\",\"parameters\",\"source\"]}",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_READ_ONLY | CELL_MCP_COMPAT,
	  .run = cell__mcp_get_workflow },
	{ .name = "create_workflow",
	  .title = "Create a workflow",
	  .operation = OF(WORKFLOWS_CREATE),
	  .about = "The source defines run(...), with def or async def.",
	  .brief = "Stores a workflow; its source defines run(...).",
	  .input = "{\"required\":[\"name\",\"source\",\"description\"],\"properties\":{\"source\":{\"description\":null},"
		   "\"overwrite\":{\"description\":null}}}",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_DESTRUCTIVE,
	  .run = cell__mcp_operate },
	{ .name = "delete_workflow",
	  .title = "Delete a workflow",
	  .operation = OF(WORKFLOWS_DELETE),
	  .brief = "Deletes a workflow.",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT,
	  .run = cell__mcp_operate },
	{ .name = "list_artifacts",
	  .title = "List artifacts",
	  .operation = OF(ARTIFACTS_LIST),
	  .about = "They are data that outlives the session.",
	  .brief = "Lists stored artifacts: data that outlives sessions.",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_READ_ONLY,
	  .run = cell__mcp_operate },
	{ .name = "save_artifact",
	  .title = "Save an artifact",
	  .operation = OF(ARTIFACTS_SAVE),
	  .about = "They are given as text, JSON or base64.",
	  .input =
		  "{\"properties\":{\"data\":{\"type\":\"string\",\"x-nul\":true,\"description\":\"Text, JSON, or base64, as type says\"},"
		  "\"type\":{\"enum\":[\"text\",\"json\",\"bytes\"],\"default\":\"text\",\"description\":null},\"description\":{\"default\":\"\"}},"
		  "\"required\":[\"name\",\"data\"]}",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT | CELL_MCP_COMPAT,
	  .run = cell__mcp_save_artifact },
	{ .name = "load_artifact",
	  .title = "Load an artifact",
	  .operation = OF(ARTIFACTS_LOAD),
	  .about = "They are base64 where they are not UTF-8 text.",
	  .output = "{\"properties\":{\"encoding\":{\"type\":\"string\",\"enum\":[\"utf-8\",\"base64\"]},\"data\":{\"type\":\"string\"}},"
		    "\"required\":[\"name\",\"encoding\",\"data\"]}",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_READ_ONLY | CELL_MCP_COMPAT,
	  .run = cell__mcp_load_artifact },
	{ .name = "list_deps",
	  .title = "List dependencies",
	  .operation = OF(DEPS_LIST),
	  .brief = "Lists configured packages.",
	  .flags = CELL_MCP_STORAGE | CELL_MCP_READ_ONLY,
	  .run = cell__mcp_operate },
	{ .name = "add_dep",
	  .title = "Add a dependency",
	  .operation = OF(DEPS_ADD),
	  .brief = "Installs packages and configures them.",
	  .flags = CELL_MCP_DEPS | CELL_MCP_OPEN_WORLD | CELL_MCP_IDEMPOTENT,
	  .run = cell__mcp_add_dep },
	{ .name = "remove_dep",
	  .title = "Remove a dependency",
	  .operation = OF(DEPS_REMOVE),
	  .brief = "Removes a package.",
	  .input = "{\"properties\":{\"package\":{\"minLength\":1}}}",
	  .answer = ANSWER("\"removed\":" STRINGS ",\"not_found\":" STRINGS ",\"failed\":" STRINGS
			   ",\"removed_from_config\":{\"type\":\"boolean\"}",
			   "\"removed\",\"not_found\",\"failed\",\"removed_from_config\""),
	  .flags = CELL_MCP_DEPS | CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT,
	  .run = cell__mcp_remove_dep },
	{ .name = "install_package",
	  .title = "Install a package",
	  .operation = OF(DEPS_ADD),
	  .about = "The same as add_dep.",
	  .input = "{\"rename\":{\"package\":\"package_name\"}}",
	  .flags = CELL_MCP_DEPS | CELL_MCP_OPEN_WORLD | CELL_MCP_IDEMPOTENT | CELL_MCP_COMPAT,
	  .run = cell__mcp_add_dep },
	{ 0 },
};
#define N_TOOLS (sizeof(table) / sizeof(table[0]))

static const struct cell__mcp_tool methods[] = {
	{ .name = "resources/list", .run = cell__mcp_resources_list, .flags = CELL_MCP_METHOD | CELL_MCP_TIMELESS },
	{ .name = "resources/templates/list", .run = cell__mcp_templates_list, .flags = CELL_MCP_METHOD | CELL_MCP_TIMELESS },
	{ .name = "resources/read", .run = cell__mcp_resources_read, .flags = CELL_MCP_METHOD | CELL_MCP_TIMELESS },
	{ .name = "prompts/list", .run = cell__mcp_prompts_list, .flags = CELL_MCP_METHOD | CELL_MCP_TIMELESS },
	{ .name = "prompts/get", .run = cell__mcp_prompts_get, .flags = CELL_MCP_METHOD },
	{ .name = "completion/complete", .run = cell__mcp_complete, .flags = CELL_MCP_METHOD },
	{ 0 },
};

const struct cell__mcp_tool *cell__mcp_method_find(const char *name)
{
	const struct cell__mcp_tool *method = methods;

	while (method->name && strcmp(method->name, name))
		method++;
	return method->name ? method : NULL;
}

bool cell__mcp_tools_is_ours(const char *name)
{
	const struct cell__mcp_tool *tool = table;

	while (tool->name && strcmp(tool->name, name))
		tool++;
	return tool->name;
}

static bool can_fork(const struct cell_session_options *session)
{
	const struct cell__executor *executor = cell__executor_find(session && session->executor ? session->executor : "subprocess");

	return executor && executor->fork;
}

/* Where they do not, the tool is not listed, and a call says why. */
static bool has_commands(const struct cell_session_options *session)
{
	const struct cell__executor *executor = cell__executor_find(session && session->executor ? session->executor : "subprocess");

	return executor && (executor->place || executor->command);
}

static bool is_offered(const struct cell__mcp_tool *tool, const struct cell_mcp_server_options *opts)
{
	return (!(tool->flags & CELL_MCP_FORKS) || can_fork(opts->session)) &&
	       (!(tool->flags & (CELL_MCP_STORAGE | CELL_MCP_DEPS)) || opts->storage) &&
	       (!(tool->flags & CELL_MCP_DEPS) || opts->runtime_deps) && (!(tool->flags & CELL_MCP_REGISTER) || opts->allow_register);
}

const struct cell__mcp_tool *cell__mcp_tools_find(const struct cell_mcp_server_options *opts, const char *name)
{
	for (const struct cell__mcp_tool *tool = table; tool->name; tool++) {
		if (!strcmp(tool->name, name))
			return is_offered(tool, opts) ? tool : NULL;
	}
	return NULL;
}

/* ---- schemas ---- */

static json_t *make_input(const void *arg)
{
	const struct cell__mcp_tool *tool = arg;
	json_t *schema;

	if (!tool->operation)
		return json_loads(tool->input, JSON_REJECT_DUPLICATES, NULL);
	schema = cell__operation_takes(tool->operation, tool->input);
	if (schema && json_object_set_new(schema, "additionalProperties", json_false()) < 0) {
		json_decref(schema);
		return NULL;
	}
	return schema;
}

const json_t *cell__mcp_tool_input(const struct cell__mcp_tool *tool)
{
	static json_t *inputs[N_TOOLS];

	return cell__schema_once(&inputs[tool - table], make_input, tool);
}

/* A tool answers with an object: other values are wrapped in one. */
json_t *cell__mcp_tool_output(const struct cell__mcp_tool *tool)
{
	json_t *schema = tool->answer ? json_loads(tool->answer, JSON_REJECT_DUPLICATES, NULL)
				      : cell__operation_gives(tool->operation, tool->output);
	const char *type = json_string_value(json_object_get(schema, "type"));

	if (!schema || (type && !strcmp(type, "object")))
		return schema;
	return json_pack("{s:s, s:{s:o}, s:[s]}", "type", "object", "properties", "result", schema, "required", "result");
}

static json_t *describe(const struct cell__mcp_tool *tool)
{
	if (!tool->operation)
		return json_string(tool->about);
	return json_sprintf("%s.%s%s", tool->operation->about, tool->about ? " " : "", tool->about ? tool->about : "");
}

static json_t *hints(const struct cell__mcp_tool *tool)
{
	return json_pack("{s:s, s:b, s:b, s:b, s:b}", "title", tool->title, "readOnlyHint", (tool->flags & CELL_MCP_READ_ONLY) != 0,
			 "destructiveHint", (tool->flags & CELL_MCP_DESTRUCTIVE) != 0, "idempotentHint",
			 (tool->flags & (CELL_MCP_IDEMPOTENT | CELL_MCP_READ_ONLY)) != 0, "openWorldHint",
			 (tool->flags & CELL_MCP_OPEN_WORLD) != 0);
}

static json_t *whole_entry(const struct cell__mcp_tool *tool)
{
	return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "name", tool->name, "title", tool->title, "description", describe(tool),
			 "inputSchema", cell__schema_shown(cell__mcp_tool_input(tool)), "outputSchema", cell__mcp_tool_output(tool),
			 "annotations", hints(tool));
}

/* A model reads the list before every task: no word that it can do without.  Of the hints those that differ from the protocol's defaults. */
static json_t *brief_entry(const struct cell__mcp_tool *tool)
{
	json_t *entry = json_pack("{s:s, s:o, s:o}", "name", tool->name, "description",
				  tool->brief ? json_string(tool->brief) : describe(tool), "inputSchema",
				  cell__schema_brief(cell__mcp_tool_input(tool)));

	if (entry && tool->flags & CELL_MCP_READ_ONLY)
		json_object_set_new(entry, "annotations", json_pack("{s:b}", "readOnlyHint", true));
	else if (entry && !(tool->flags & CELL_MCP_DESTRUCTIVE))
		json_object_set_new(entry, "annotations", json_pack("{s:b}", "destructiveHint", false));
	return entry;
}

json_t *cell__mcp_tools_list(const struct cell_mcp_server_options *opts)
{
	json_t *list = json_array();

	for (const struct cell__mcp_tool *tool = table; list && tool->name; tool++) {
		if (!is_offered(tool, opts) || (tool->flags & CELL_MCP_COMPAT && !opts->compat) ||
		    (tool->flags & CELL_MCP_COMMANDS && !has_commands(opts->session)))
			continue;
		if (json_array_append_new(list, opts->compat ? whole_entry(tool) : brief_entry(tool)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

/* ---- arguments ---- */

static const char *kind_of(const json_t *value)
{
	static const char *const kinds[] = { "an object", "an array", "a string", "an integer", "a number", "true", "false", "null" };

	return kinds[json_typeof(value)];
}

/* Reports the first problem. */
static void add_problem(void *arg, const struct cell__misfit *problem)
{
	struct cell__buf *message = arg;
	const json_t *type = json_object_get(problem->schema, "type");
	const json_t *choices = json_object_get(problem->schema, "enum"), *choice;
	size_t i;

	if (message->size)
		return;
	switch (problem->wrong) {
	case CELL__WRONG_MISSING:
		cell__buf_printf(message, "argument '%s' is missing", problem->name);
		break;
	case CELL__WRONG_TYPE:
		cell__buf_printf(message, "argument '%s' must be of type %s, not %s", problem->name,
				 json_is_string(type) ? json_string_value(type) : "other", kind_of(problem->value));
		break;
	case CELL__WRONG_RANGE:
		cell__buf_printf(message, "argument '%s' must be from %g to %g, not %g", problem->name,
				 json_number_value(json_object_get(problem->schema, "minimum")),
				 json_number_value(json_object_get(problem->schema, "maximum")), json_number_value(problem->value));
		break;
	case CELL__WRONG_EMPTY:
		cell__buf_printf(message, "argument '%s' must not be empty", problem->name);
		break;
	case CELL__WRONG_NUL:
		cell__buf_printf(message, "argument '%s' must not contain NUL", problem->name);
		break;
	case CELL__WRONG_CHOICE:
		cell__buf_printf(message, "argument '%s' must be one of", problem->name);
		json_array_foreach(choices, i, choice)
			cell__buf_printf(message, "%s %s", i ? "," : "", json_string_value(choice));
		break;
	case CELL__WRONG_UNKNOWN:
		cell__buf_printf(message, "unknown argument '%.100s'", problem->name);
		break;
	}
}

json_t *cell__mcp_tools_check(const struct cell__mcp_tool *tool, const json_t *args, struct cell__buf *message)
{
	const json_t *schema = cell__mcp_tool_input(tool);
	json_t *all = json_is_object(args) ? json_copy((json_t *)args) : json_object(), *shown;
	char *text;

	if (schema && all && !cell__members_check(schema, all, add_problem, message) && !cell__schema_add_defaults(schema, all) &&
	    !(tool->operation && cell__operation_unrename(tool->input, all)))
		return all;
	shown = cell__schema_shown(cell__mcp_tool_input(tool));
	text = shown ? json_dumps(shown, JSON_COMPACT) : NULL;
	if (message->size && text)
		cell__buf_printf(message, "; the arguments of %s are %s", tool->name, text);
	free(text);
	json_decref(shown);
	json_decref(all);
	return NULL;
}
