/*
 * The tools that a client sees: a table of names, schemas and functions.  Those here are operations on the space and run on
 * a thread of their own; run_code, execute_ipython_cell and reset are the session's (server_cells.c).
 */
#include "mcp/server.h"

#include <string.h>

#define PIECE_BYTES (1024u * 1024u)

/* ---- operations on the space -------------------------------------------------------- */

static int fail(struct cell__buf *message, const char *words)
{
	cell__buf_add_str(message, words);
	return -1;
}

/* Takes over args.  -1: *message has the whole of what went wrong. */
static int call(struct cell__mcp_job *job, const char *method, json_t *args, const void *raw, size_t raw_size,
		json_t **ret_json, struct cell_answer *ret_answer, struct cell__buf *message)
{
	CELL_AUTO_FREE char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	int status = -1;

	json_decref(args);
	if (!text)
		return fail(message, "memory is gone");
	struct cell_session *session = cell__mcp_session(job->peer, &err);

	/* The client is an agent: what it asks for passes what its code's calls pass. */
	if (!session || cell_session_call(session, job->peer->client, job, method, text, raw, raw_size, job->canceller, &answer, &err) < 0) {
		cell__buf_printf(message, "%s: ", cell_code_word(err.code));
		cell__buf_add_str(message, answer.message ? answer.message : err.msg);
	} else {
		*ret_json = json_loads(answer.json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		status = *ret_json ? 0 : fail(message, "the answer is no JSON");
	}
	if (!status && ret_answer)
		*ret_answer = answer;
	else
		cell_answer_finish(&answer);
	return status;
}

/* Text and structure of the same JSON.  Takes over both: text NULL means that of `structured`. */
static int answer_json(struct cell__mcp_answer_out *out, json_t *structured, json_t *text)
{
	CELL_AUTO_FREE char *words = json_dumps(text ? text : structured, JSON_ENCODE_ANY | JSON_INDENT(1));

	json_decref(text);
	out->structured = structured;
	out->content = words ? json_pack("[{s:s, s:s}]", "type", "text", "text", words) : NULL;
	return out->content ? 0 : -1;
}

/* {"result": JSON} of one operation that has the tool's own arguments. */
static int plain(struct cell__mcp_job *job, const char *method, const json_t *args, struct cell__mcp_answer_out *out,
		 struct cell__buf *message)
{
	json_t *answer;

	if (call(job, method, json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	return answer_json(out, json_pack("{s:O}", "result", answer), answer);
}

#define PLAIN(name, method)                                                                                              \
	static int name(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message) \
	{                                                                                                                \
		return plain(job, method, args, out, message);                                                          \
	}
PLAIN(list_tools, "tools.list")
PLAIN(search_tools, "tools.search")
PLAIN(list_workflows, "workflows.list")
PLAIN(search_workflows, "workflows.search")
PLAIN(delete_workflow, "workflows.delete")
PLAIN(list_artifacts, "artifacts.list")
PLAIN(list_deps, "deps.list")

static int create_workflow(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
			   struct cell__buf *message)
{
	json_t *answer;

	if (call(job, "workflows.create", json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	return answer_json(out, answer, NULL);
}

static int get_workflow(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
			struct cell__buf *message)
{
	json_t *answer;

	if (call(job, "workflows.get", json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	if (!json_is_object(answer)) {
		json_decref(answer);
		cell__buf_printf(message, "not_found: there is no workflow '%s'; list_workflows and search_workflows tell what there is",
				 json_string_value(json_object_get(args, "name")));
		return -1;
	}
	return answer_json(out, answer, NULL);
}

/* ---- artifacts ------------------------------------------------------------------------ */

static int save_bytes(struct cell__mcp_job *job, json_t *handle, const char *bytes, size_t size, struct cell__buf *message)
{
	for (size_t at = 0; at < size; at += PIECE_BYTES) {
		json_t *answer;
		size_t n = size - at < PIECE_BYTES ? size - at : PIECE_BYTES;

		if (call(job, "artifacts.save_chunk", json_pack("{s:O}", "handle", handle), bytes + at, n, &answer, NULL, message) < 0)
			return -1;
		json_decref(answer);
	}
	return 0;
}

/* What `data` stands for; NULL: *message says why not. */
static int artifact_bytes(const json_t *args, struct cell__buf *bytes, struct cell__buf *message)
{
	const char *type = json_string_value(json_object_get(args, "type"));
	const json_t *data = json_object_get(args, "data");
	json_t *parsed;
	int status;

	if (!strcmp(type, "bytes"))
		status = cell__buf_add_unbase64(bytes, json_string_value(data), json_string_length(data));
	else
		status = cell__buf_add(bytes, json_string_value(data), json_string_length(data));
	if (status < 0)
		return fail(message, "invalid: argument 'data' is not base64");
	if (bytes->size > CELL_MCP_MAX_ARTIFACT_BYTES)
		return fail(message, "limit: this is too large for one call; save it in code: artifacts.save(name, data)");
	if (strcmp(type, "json"))
		return 0;
	parsed = json_loadb(bytes->size ? bytes->data : "", bytes->size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	json_decref(parsed);
	return parsed ? 0 : fail(message, "invalid: argument 'data' is not JSON");
}

static int save_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
			 struct cell__buf *message)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	json_t *begin = json_copy((json_t *)args), *begun, *handle, *answer;
	int status;

	json_object_del(begin, "data");
	if (artifact_bytes(args, &bytes, message) < 0) {
		json_decref(begin);
		return -1;
	}
	if (call(job, "artifacts.save_begin", begin, NULL, 0, &begun, NULL, message) < 0)
		return -1;
	handle = json_object_get(begun, "handle");
	status = save_bytes(job, handle, bytes.data, bytes.size, message);
	if (!status)
		status = call(job, "artifacts.save_commit", json_pack("{s:O}", "handle", handle), NULL, 0, &answer, NULL, message);
	else if (!call(job, "artifacts.save_abort", json_pack("{s:O}", "handle", handle), NULL, 0, &answer, NULL, message))
		json_decref(answer);
	json_decref(begun);
	return status ? -1 : answer_json(out, answer, NULL);
}

static int load_bytes(struct cell__mcp_job *job, const json_t *opened, struct cell__buf *bytes, struct cell__buf *message)
{
	json_t *handle = json_object_get(opened, "handle"), *answer;
	json_int_t size = json_integer_value(json_object_get(opened, "size"));

	if (size > (json_int_t)CELL_MCP_MAX_ARTIFACT_BYTES)
		return fail(message, "limit: this is too large for one answer; load it in code: artifacts.load(name)");
	while (bytes->size < (size_t)size) {
		struct cell_answer piece = CELL_ANSWER_INIT;
		size_t got;

		if (call(job, "artifacts.load_chunk",
			 json_pack("{s:O, s:I, s:i}", "handle", handle, "offset", (json_int_t)bytes->size, "size", (int)PIECE_BYTES), NULL, 0,
			 &answer, &piece, message) < 0)
			return -1;
		json_decref(answer);
		got = piece.raw_size;
		if (got && cell__buf_add(bytes, piece.raw, got) < 0)
			got = 0;
		cell_answer_finish(&piece);
		if (!got)
			return fail(message, "io: the artifact ends before its size");
	}
	return 0;
}

static int load_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
			 struct cell__buf *message)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, data = CELL_BUF_INIT;
	json_t *opened, *closed, *shown;
	bool text;
	int status;

	if (call(job, "artifacts.load_open", json_copy((json_t *)args), NULL, 0, &opened, NULL, message) < 0)
		return -1;
	status = load_bytes(job, opened, &bytes, message);
	if (!call(job, "artifacts.load_close", json_pack("{s:O}", "handle", json_object_get(opened, "handle")), NULL, 0, &closed, NULL,
		  status ? &data : message))
		json_decref(closed);
	if (status < 0) {
		json_decref(opened);
		return -1;
	}
	cell__buf_shift(&data, data.size);
	text = cell__utf8_ok(bytes.size ? bytes.data : "", bytes.size);
	if ((text ? cell__buf_add(&data, bytes.data, bytes.size) : cell__buf_add_base64(&data, bytes.data, bytes.size)) < 0) {
		json_decref(opened);
		return fail(message, "memory is gone");
	}
	json_object_del(opened, "handle");
	json_object_set_new(opened, "encoding", json_string(text ? "utf-8" : "base64"));
	json_object_set_new(opened, "data", json_stringn(data.size ? data.data : "", data.size));
	shown = json_stringn(data.size ? data.data : "", data.size);
	out->structured = opened;
	out->content = json_pack("[{s:s, s:o}]", "type", "text", "text", shown);
	return out->content ? 0 : -1;
}

/* ---- packages ---------------------------------------------------------------------------- */

static int add_package(struct cell__mcp_job *job, const char *package, struct cell__mcp_answer_out *out,
		       struct cell__buf *message)
{
	static const char *const keys[] = { "installed", "already_present", "failed", NULL };
	json_t *answer, *result = json_object();

	if (call(job, "deps.add", json_pack("{s:s}", "package", package), NULL, 0, &answer, NULL, message) < 0) {
		json_decref(result);
		return -1;
	}
	for (size_t i = 0; keys[i]; i++) {
		json_t *list = json_object_get(answer, keys[i]);

		json_object_set_new(result, keys[i], list ? json_incref(list) : json_array());
	}
	out->failed = json_array_size(json_object_get(result, "failed")) > 0;
	json_decref(answer);
	return answer_json(out, result, NULL);
}

static int add_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	return add_package(job, json_string_value(json_object_get(args, "package")), out, message);
}

static int install_package(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
			   struct cell__buf *message)
{
	return add_package(job, json_string_value(json_object_get(args, "package_name")), out, message);
}

static int remove_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	json_t *answer, *result, *package = json_object_get(args, "package");
	bool was_there;

	if (call(job, "deps.remove", json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	was_there = json_is_true(answer);
	json_decref(answer);
	result = json_pack("{s:[], s:[], s:[], s:b}", "removed", "not_found", "failed", "removed_from_config", was_there);
	json_array_append(json_object_get(result, was_there ? "removed" : "not_found"), package);
	return answer_json(out, result, NULL);
}

/* ---- MCP servers --------------------------------------------------------------------------- */

/* The typed package for code to import; *ret_report is what cell_gen_mcp() says. */
static int make_package(const struct cell_mcp_server *server, const char *name, const json_t *schema, json_t **ret_report,
			struct cell_error *err)
{
	json_t *list = json_pack("{s:O}", "tools", json_object_get(schema, "tools"));
	CELL_AUTO_FREE char *tools = list ? json_dumps(list, JSON_COMPACT) : NULL, *report = NULL;
	CELL_AUTO_BUF struct cell__buf folder = CELL_BUF_INIT;
	struct cell_gen_options options = CELL_GEN_OPTIONS_INIT;

	json_decref(list);
	/* Where the code's `import` looks first. */
	if (!tools || cell__buf_printf(&folder, "%s%smcptools", server->session.cwd ? server->session.cwd : "",
				       server->session.cwd ? "/" : "") < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "memory is gone");
	options.server = name;
	options.tools_json = tools;
	options.out_dir = folder.data;
	if (cell_gen_mcp(&options, &report, err) < 0)
		return -1;
	*ret_report = json_loads(report, 0, NULL);
	return *ret_report ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "memory is gone");
}

/* One text a tool, its module's name; where there is no package, the tool's. */
static void answer_registered(struct cell__mcp_answer_out *out, const json_t *tools, const json_t *report,
			      const struct cell_error *err)
{
	const json_t *entry, *problem;
	json_t *names = json_array(), *problems = json_array();
	size_t i;

	json_array_foreach(report ? json_object_get(report, "tools") : tools, i, entry)
		json_array_append(names, json_object_get(entry, report ? "module" : "name"));
	json_array_foreach(json_object_get(report, "problems"), i, problem)
		json_array_append_new(problems, json_sprintf("%s: %s", json_string_value(json_object_get(problem, "tool")),
							     json_string_value(json_object_get(problem, "message"))));
	if (!report)
		json_array_append_new(problems, json_sprintf("no package was made: %s: %s", cell_code_word(err->code), err->msg));
	out->content = json_array();
	json_array_foreach(names, i, entry)
		json_array_append_new(out->content, json_pack("{s:s, s:O}", "type", "text", "text", entry));
	json_array_foreach(problems, i, entry)
		json_array_append_new(out->content, json_pack("{s:s, s:o}", "type", "text", "text",
							      json_sprintf("Problem: %s", json_string_value(entry))));
	out->structured = json_pack("{s:o, s:o, s:O?}", "result", names, "problems", problems, "package",
				    json_object_get(report, "package"));
}

static int register_mcp_server(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
			       struct cell__buf *message)
{
	const char *name = json_string_value(json_object_get(args, "server_name"));
	json_t *schema, *report = NULL, *done;
	struct cell_error err;

	/* Only a definition on the host may take a server out of the sandbox of the code that uses it. */
	if (json_object_get(json_object_get(args, "server_params"), "host"))
		return fail(message, "invalid: \"host\" cannot be given here, only in a definition in the tools' folder");
	if (call(job, "tools.register", json_pack("{s:s, s:O}", "name", name, "params", json_object_get(args, "server_params")), NULL, 0,
		 &done, NULL, message) < 0)
		return -1;
	json_decref(done);
	/* Asking what it has starts it. */
	if (call(job, "tools.schema", json_pack("{s:s}", "name", name), NULL, 0, &schema, NULL, message) < 0) {
		/* The program itself takes back what it added. */
		cell_space_remove_mcp(job->peer->server->opts.space, name, NULL);
		return -1;
	}
	/* Without a package tools.<server_name>.<tool>() works all the same. */
	(void)make_package(job->peer->server, name, schema, &report, &err);
	answer_registered(out, json_object_get(schema, "tools"), report, &err);
	json_decref(report);
	json_decref(schema);
	return 0;
}

/* ---- the table ------------------------------------------------------------------------------- */

#define OBJECT(properties, required) \
	"{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "],\"additionalProperties\":false}"
/* What comes back may gain fields. */
#define ANSWER(properties, required) "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "]}"
#define TEXT(name, words) "\"" name "\":{\"type\":\"string\",\"minLength\":1,\"description\":\"" words "\"}"
#define LIMIT(standard) \
	"\"limit\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000,\"default\":" standard ",\"description\":\"At most so many\"}"
#define LIST_OF(item) ANSWER("\"result\":{\"type\":\"array\",\"items\":" item "}", "\"result\"")
#define STRINGS "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"

#define PARAMETER                                                                                                        \
	"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},"               \
	"\"required\":{\"type\":\"boolean\"},\"default\":{},\"description\":{\"type\":\"string\"}},\"required\":[\"name\"]}"
#define TOOL_ITEM                                                                                                        \
	"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"},\"tags\":" STRINGS "," \
	"\"callables\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},"  \
	"\"description\":{\"type\":\"string\"},\"parameters\":{\"type\":\"array\",\"items\":" PARAMETER "}},"               \
	"\"required\":[\"name\",\"description\",\"parameters\"]}}},\"required\":[\"name\",\"description\",\"callables\"]}"
#define WORKFLOW_FIELDS                                                                                                  \
	"\"name\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"},\"parameters\":{\"type\":[\"array\",\"object\"]},\"async\":{\"type\":\"boolean\"}"
#define WORKFLOW_ITEM "{\"type\":\"object\",\"properties\":{" WORKFLOW_FIELDS "},\"required\":[\"name\",\"description\",\"parameters\"]}"
#define WORKFLOW ANSWER(WORKFLOW_FIELDS ",\"source\":{\"type\":\"string\"}", "\"name\",\"description\",\"parameters\",\"source\"")
#define ARTIFACT_FIELDS                                                                                                  \
	"\"name\":{\"type\":\"string\"},\"path\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"},"              \
	"\"created_at\":{\"type\":[\"string\",\"number\",\"null\"]},\"metadata\":{\"type\":[\"object\",\"null\"]},\"size\":{\"type\":\"integer\"}"
#define ARTIFACT_ITEM "{\"type\":\"object\",\"properties\":{" ARTIFACT_FIELDS "},\"required\":[\"name\"]}"
#define INSTALLED                                                                                                        \
	ANSWER("\"installed\":" STRINGS ",\"already_present\":" STRINGS ",\"failed\":" STRINGS,                             \
	       "\"installed\",\"already_present\",\"failed\"")
#define CELL_RESULT                                                                                                      \
	ANSWER("\"result\":{\"type\":\"string\",\"description\":\"The text of the answer\"},"                              \
	       "\"value\":{\"description\":\"The value as JSON where that is exact and not too long, else null\"},"         \
	       "\"repr\":{\"type\":[\"string\",\"null\"]},\"stdout\":{\"type\":\"string\"},\"stderr\":{\"type\":\"string\"}," \
	       "\"error\":{\"type\":[\"object\",\"null\"],\"properties\":{\"type\":{\"type\":\"string\"},\"message\":{\"type\":\"string\"}," \
	       "\"traceback\":{\"type\":\"string\"},\"code\":{\"type\":\"string\"}},\"required\":[\"type\",\"message\",\"code\"]}," \
	       "\"images\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"Paths of image files\"},"    \
	       "\"duration_ms\":{\"type\":\"number\"},\"state\":{\"type\":\"string\",\"enum\":[\"kept\",\"lost\"]},"         \
	       "\"truncated\":{\"type\":\"boolean\"},"                                                                     \
	       "\"output_file\":{\"type\":[\"string\",\"null\"],\"description\":\"All of the output, when it is too long for the answer\"}", \
	       "\"result\",\"stdout\",\"stderr\",\"error\",\"images\",\"duration_ms\",\"state\",\"truncated\"")

static const struct cell__mcp_tool table[] = {
	{ "run_code", "Run Python code",
	  "Runs Python code in the session, which keeps its variables. Answers the value of the last expression, then what was "
	  "printed. tools, workflows, artifacts and deps are there in the code.",
	  OBJECT("\"code\":{\"type\":\"string\",\"description\":\"Python code; IPython's !cmd, %magic and top-level await work\"}", "\"code\""),
	  CELL_RESULT, CELL_MCP_DESTRUCTIVE | CELL_MCP_OPEN_WORLD, NULL },
	{ "execute_ipython_cell", "Execute an IPython cell",
	  "Executes Python code in the session's IPython kernel, which keeps its variables, and answers the output as a notebook "
	  "would show it. Plots come back as images.",
	  OBJECT("\"code\":{\"type\":\"string\",\"description\":\"Python code to execute in the IPython kernel\"},"
		 "\"timeout\":{\"type\":\"number\",\"minimum\":0,\"maximum\":1000000,\"default\":120,\"description\":\"Seconds; 0: no limit\"},"
		 "\"max_output_chars\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000000,\"default\":5000,"
		 "\"description\":\"Longer output is cut in the middle, and kept in a file\"}", "\"code\""),
	  CELL_RESULT, CELL_MCP_DESTRUCTIVE | CELL_MCP_OPEN_WORLD, NULL },
	{ "reset", "Reset the session", "Gives the session a fresh kernel: variables and imports are gone, files stay.",
	  OBJECT("", ""), ANSWER("\"result\":{\"type\":\"string\"}", "\"result\""), CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT, NULL },
	{ "list_tools", "List tools", "The tools that code can call as tools.<name>(...) or tools.<name>.<callable>(...).",
	  OBJECT("", ""), LIST_OF(TOOL_ITEM), CELL_MCP_READ_ONLY, list_tools },
	{ "search_tools", "Search tools", "Tools that fit a description of what is to be done, best first.",
	  OBJECT(TEXT("query", "What is to be done, in words") "," LIMIT("10"), "\"query\""), LIST_OF(TOOL_ITEM), CELL_MCP_READ_ONLY,
	  search_tools },
	{ "register_mcp_server", "Register an MCP server",
	  "Adds an MCP server, whose tools code can then call as tools.<server_name>.<tool>(...), and with types: from "
	  "mcptools.<server_name>.<tool> import Params, run; run(Params(...)). Answers the names of its tools. When it is "
	  "registered again, reset makes code see the new package.",
	  OBJECT(TEXT("server_name", "Its name in the code") ",\"server_params\":{\"type\":\"object\",\"description\":"
		 "\"{command, args, env} of a program or {url, headers} of an HTTP server; ${VAR} is taken from the server's environment\"}",
		 "\"server_name\",\"server_params\""),
	  ANSWER("\"result\":" STRINGS ",\"package\":{\"type\":[\"string\",\"null\"],\"description\":\"Its name under mcptools\"},"
		 "\"problems\":" STRINGS, "\"result\""),
	  CELL_MCP_OPEN_WORLD | CELL_MCP_REGISTER, register_mcp_server },
	{ "list_workflows", "List workflows", "The workflows that are kept: Python functions for code to use again.", OBJECT("", ""),
	  LIST_OF(WORKFLOW_ITEM), CELL_MCP_STORAGE | CELL_MCP_READ_ONLY, list_workflows },
	{ "search_workflows", "Search workflows", "Workflows that fit a description of what is to be done, best first.",
	  OBJECT(TEXT("query", "What is to be done, in words") "," LIMIT("5"), "\"query\""), LIST_OF(WORKFLOW_ITEM),
	  CELL_MCP_STORAGE | CELL_MCP_READ_ONLY, search_workflows },
	{ "get_workflow", "Get a workflow", "One workflow with its source.", OBJECT(TEXT("name", "Its name"), "\"name\""), WORKFLOW,
	  CELL_MCP_STORAGE | CELL_MCP_READ_ONLY, get_workflow },
	{ "create_workflow", "Create a workflow",
	  "Keeps a workflow, which code calls as workflows.<name>(...). The source defines run(...), with def or async def.",
	  OBJECT(TEXT("name", "A Python identifier") "," TEXT("source", "Python source that defines run(...)") ","
		 "\"description\":{\"type\":\"string\",\"description\":\"What it does, for searches\"},"
		 "\"overwrite\":{\"type\":\"boolean\",\"default\":false,\"description\":\"Replace one of this name\"}",
		 "\"name\",\"source\",\"description\""),
	  WORKFLOW, CELL_MCP_STORAGE | CELL_MCP_DESTRUCTIVE, create_workflow },
	{ "delete_workflow", "Delete a workflow", "Removes a workflow; answers whether there was one.",
	  OBJECT(TEXT("name", "Its name"), "\"name\""), ANSWER("\"result\":{\"type\":\"boolean\"}", "\"result\""),
	  CELL_MCP_STORAGE | CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT, delete_workflow },
	{ "list_artifacts", "List artifacts", "The artifacts that are kept: data that outlives the session.", OBJECT("", ""),
	  LIST_OF(ARTIFACT_ITEM), CELL_MCP_STORAGE | CELL_MCP_READ_ONLY, list_artifacts },
	{ "save_artifact", "Save an artifact", "Keeps data under a name; replaces what was there.",
	  OBJECT(TEXT("name", "Its name; may have folders, like reports/q3.csv") ","
		 "\"data\":{\"type\":\"string\",\"description\":\"Text, JSON, or base64, as type says\"},"
		 "\"type\":{\"type\":\"string\",\"enum\":[\"text\",\"json\",\"bytes\"],\"default\":\"text\"},"
		 "\"description\":{\"type\":\"string\",\"default\":\"\"},\"metadata\":{\"type\":\"object\"}", "\"name\",\"data\""),
	  ARTIFACT_ITEM, CELL_MCP_STORAGE | CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT, save_artifact },
	{ "load_artifact", "Load an artifact", "The data that is kept under a name; base64 where it is no text.",
	  OBJECT(TEXT("name", "Its name"), "\"name\""),
	  ANSWER(ARTIFACT_FIELDS ",\"type\":{\"type\":\"string\"},\"encoding\":{\"type\":\"string\",\"enum\":[\"utf-8\",\"base64\"]},"
		 "\"data\":{\"type\":\"string\"}", "\"name\",\"encoding\",\"data\""),
	  CELL_MCP_STORAGE | CELL_MCP_READ_ONLY, load_artifact },
	{ "list_deps", "List dependencies", "The packages that are configured.", OBJECT("", ""), LIST_OF("{\"type\":\"string\"}"),
	  CELL_MCP_STORAGE | CELL_MCP_READ_ONLY, list_deps },
	{ "add_dep", "Add a dependency", "Installs a package and keeps it in the configuration.",
	  OBJECT(TEXT("package", "A requirement, like pandas>=2"), "\"package\""), INSTALLED,
	  CELL_MCP_DEPS | CELL_MCP_OPEN_WORLD | CELL_MCP_IDEMPOTENT, add_dep },
	{ "remove_dep", "Remove a dependency", "Takes a package out of the configuration.",
	  OBJECT(TEXT("package", "Its name"), "\"package\""),
	  ANSWER("\"removed\":" STRINGS ",\"not_found\":" STRINGS ",\"failed\":" STRINGS ",\"removed_from_config\":{\"type\":\"boolean\"}",
		 "\"removed\",\"not_found\",\"failed\",\"removed_from_config\""),
	  CELL_MCP_DEPS | CELL_MCP_DESTRUCTIVE | CELL_MCP_IDEMPOTENT, remove_dep },
	{ "install_package", "Install a package", "Installs a Python package for the session's code, as add_dep does.",
	  OBJECT(TEXT("package_name", "A requirement, like pandas>=2"), "\"package_name\""), INSTALLED,
	  CELL_MCP_DEPS | CELL_MCP_OPEN_WORLD | CELL_MCP_IDEMPOTENT, install_package },
	{ 0 },
};

static bool is_offered(const struct cell__mcp_tool *tool, const struct cell_mcp_server_options *opts)
{
	return (!(tool->flags & (CELL_MCP_STORAGE | CELL_MCP_DEPS)) || opts->storage) &&
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

json_t *cell__mcp_tools_list(const struct cell_mcp_server_options *opts)
{
	json_t *list = json_array();

	for (const struct cell__mcp_tool *tool = table; list && tool->name; tool++) {
		json_t *entry;

		if (!is_offered(tool, opts))
			continue;
		entry = json_pack("{s:s, s:s, s:s, s:o, s:o, s:{s:s, s:b, s:b, s:b, s:b}}", "name", tool->name, "title", tool->title,
				  "description", tool->description, "inputSchema", json_loads(tool->input, JSON_REJECT_DUPLICATES, NULL),
				  "outputSchema", json_loads(tool->output, JSON_REJECT_DUPLICATES, NULL), "annotations", "title", tool->title,
				  "readOnlyHint", (tool->flags & CELL_MCP_READ_ONLY) != 0, "destructiveHint",
				  (tool->flags & CELL_MCP_DESTRUCTIVE) != 0, "idempotentHint",
				  (tool->flags & (CELL_MCP_IDEMPOTENT | CELL_MCP_READ_ONLY)) != 0, "openWorldHint",
				  (tool->flags & CELL_MCP_OPEN_WORLD) != 0);
		if (!entry || json_array_append_new(list, entry) < 0) {
			json_decref(list);
			list = NULL;
		}
	}
	return list;
}
