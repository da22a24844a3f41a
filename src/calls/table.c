#include "calls/table.h"

#include <string.h>

static const struct {
	const char *word;
	unsigned bit;
} kinds[CELL__GATE_KINDS] = {
	[CELL__GATE_TOOL] = { "tool", CELL_GATE_TOOLS },
	[CELL__GATE_SHELL] = { "shell", CELL_GATE_SHELL },
	[CELL__GATE_INSTALL] = { "install", CELL_GATE_INSTALLS },
	[CELL__GATE_REMOVE] = { "remove", CELL_GATE_REMOVES },
	[CELL__GATE_WORKFLOW] = { "workflow", CELL_GATE_WORKFLOWS },
	[CELL__GATE_ARTIFACT] = { "artifact", CELL_GATE_ARTIFACTS },
	[CELL__GATE_SERVER] = { "server", CELL_GATE_SERVERS },
	[CELL__GATE_LLM] = { "llm", CELL_GATE_LLM },
	[CELL__GATE_QUESTION] = { "question", CELL_GATE_QUESTIONS },
};

const char *cell__gate_kind_word(enum cell__gate_kind kind)
{
	return kinds[kind].word;
}

unsigned cell__gate_kind_bit(enum cell__gate_kind kind)
{
	return kinds[kind].bit;
}

unsigned cell__gate_kind_of(const char *word)
{
	for (size_t i = CELL__GATE_TOOL; i < CELL__GATE_QUESTION; i++)
		if (strcmp(kinds[i].word, word) == 0)
			return kinds[i].bit;
	return 0;
}

/* ---- schemas ---- */

#define OBJECT(properties, required) "{\"type\":\"object\",\"properties\":{" properties "},\"required\":[" required "]}"
#define NOTHING OBJECT("", "")
#define OF(name, type) "\"" name "\":{\"type\":\"" type "\"}"
#define FIELD(name, type, words) "\"" name "\":{\"type\":\"" type "\",\"description\":\"" words "\"}"
#define TEXT(name, words) "\"" name "\":{\"type\":\"string\",\"minLength\":1,\"description\":\"" words "\"}"
/* Known to our kernels and programs alone: not in schemas that others are shown. */
#define INTERNAL(name, type) "\"" name "\":{\"type\":\"" type "\",\"x-internal\":true}"
#define LIST_OF(item) "{\"type\":\"array\",\"items\":" item "}"
#define STRINGS LIST_OF("{\"type\":\"string\"}")
#define NULL_OR(fields) "{\"type\":[\"object\",\"null\"],\"properties\":{" fields "}}"
#define NO_ANSWER "{\"type\":\"null\"}"
#define CHILD_ID TEXT("session_id", "Id of a child of this session")
#define CHILD OBJECT(CHILD_ID, "\"session_id\"")

#define TAGS "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"Only tools with at least one of these tags\"}"
#define AWAIT "\"await\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"x-internal\":true}"
/* Callables with their signatures instead of whole tools. */
#define BRIEF INTERNAL("callables", "boolean")
#define SEARCH(bounds)                                      \
	FIELD("query", "string", "Description of the task") \
	",\"limit\":{\"type\":\"integer\",\"minimum\":1," bounds ",\"description\":\"Maximum number of results\"}"
#define PARAMETER                                                                                                                          \
	OBJECT(OF("name", "string") "," OF("type", "string") "," OF("required", "boolean") ",\"default\":{}," OF("description", "string"), \
	       "\"name\"")
#define CALLABLE_FIELDS      \
	OF("name", "string") \
	"," OF("description", "string") ",\"parameters\":" LIST_OF(PARAMETER) "," OF("result", "string") "," OF("drift", "string")
#define TOOL                                                                                                        \
	OBJECT(OF("name", "string") "," OF("description", "string") ",\"tags\":" STRINGS ",\"callables\":" LIST_OF( \
		       OBJECT(CALLABLE_FIELDS, "\"name\",\"description\",\"parameters\"")),                         \
	       "\"name\",\"description\",\"tags\",\"callables\"")
#define WORKFLOW_FIELDS                                                                                                     \
	OF("name", "string")                                                                                                \
	"," OF("description", "string") "," OF("params", "object") ",\"parameters\":{\"type\":[\"array\",\"object\"]}," OF( \
		"async", "boolean") ",\"created_at\":{\"type\":[\"string\",\"null\"]}," OF("path", "string")
#define SOURCE ",\"source\":{\"type\":\"string\"}"
#define WORKFLOW OBJECT(WORKFLOW_FIELDS, "\"name\",\"description\",\"parameters\"")
#define WHOLE_WORKFLOW OBJECT(WORKFLOW_FIELDS SOURCE, "\"name\",\"description\",\"parameters\",\"source\"")
#define ARTIFACT_FIELDS                                                                                                              \
	OF("name", "string")                                                                                                         \
	"," OF("path", "string") "," OF("description", "string") "," OF("created_at", "string") "," OF("metadata", "object") "," OF( \
		"size", "integer") "," OF("derived", "boolean")
#define ARTIFACT_REQUIRED "\"name\",\"description\",\"created_at\",\"metadata\",\"size\",\"derived\""
#define ARTIFACT OBJECT(ARTIFACT_FIELDS, ARTIFACT_REQUIRED)
#define ARTIFACT_NAME TEXT("name", "Artifact name; may contain folders, like reports/q3.csv")
#define SAVED                                                                                                                   \
	ARTIFACT_NAME "," FIELD("type", "string", "text, json, bytes, or one of the kernel's types (default bytes)") "," FIELD( \
		"description", "string", "Description of the artifact") "," FIELD("metadata", "object",                         \
										  "A JSON object stored with the artifact")
#define INSTALLED                                                                               \
	OBJECT("\"installed\":" STRINGS ",\"already_present\":" STRINGS ",\"failed\":" STRINGS, \
	       "\"installed\",\"already_present\",\"failed\"")
#define LLM_LEFT \
	"{\"type\":\"object\",\"properties\":{\"calls\":{\"type\":[\"integer\",\"null\"]},\"tokens\":{\"type\":[\"integer\",\"null\"]},\"cost\":{\"type\":[\"number\",\"null\"]}}}"
#define LLM_USAGE                                                                                                 \
	OBJECT(OF("calls", "integer") "," OF("tokens", "integer") "," OF("cost", "number") ",\"left\":" LLM_LEFT, \
	       "\"calls\",\"tokens\",\"cost\",\"left\"")
#define NAMED(words) OBJECT(TEXT("name", words), "\"name\"")
#define HANDLE OBJECT("\"handle\":{\"type\":\"integer\"}," INTERNAL("key", "integer"), "")

#define HOST (1u << CELL__PRINCIPAL_HOST)
#define CODE (1u << CELL__PRINCIPAL_CODE)
#define HTTP (1u << CELL__PRINCIPAL_HTTP)
#define MCP (1u << CELL__PRINCIPAL_MCP)
#define ALL (HOST | CODE | HTTP | MCP)

#define ROW(op, name, gate, where, open_to, gate_name, words, takes, gives) \
	[CELL__OP_##op] = { .method = name,                                 \
			    .id = CELL__OP_##op,                            \
			    .kind = CELL__GATE_##gate,                      \
			    .part = CELL__PART_##where,                     \
			    .who = open_to,                                 \
			    .shown = gate_name,                             \
			    .about = words,                                 \
			    .args = takes,                                  \
			    .result = gives }

/* clang-format off */
const struct cell__operation cell__operations[CELL__OPS] = {
	ROW(TOOLS_LIST, "tools.list", NONE, TOOLS, ALL, NULL, "Lists the available tools", OBJECT(TAGS "," AWAIT "," BRIEF, ""), LIST_OF(TOOL)),
	ROW(TOOLS_SEARCH, "tools.search", NONE, SEARCH, ALL, NULL, "Searches tools by a description of the task, best match first",
	    OBJECT(SEARCH("\"maximum\":" CELL__STRING(CELL_LIMIT_SEARCH) ",\"default\":10") "," TAGS "," AWAIT "," BRIEF, "\"query\""), LIST_OF(TOOL)),
	ROW(TOOLS_CALL, "tools.call", TOOL, TOOLS, ALL, NULL, "Calls a tool or one of its callables",
	    OBJECT(TEXT("name", "TOOL or TOOL.CALLABLE") "," FIELD("args", "object", "Arguments by name"), "\"name\""),
	    OBJECT("\"value\":{},\"raw\":{\"type\":\"string\",\"enum\":[\"text\",\"json\",\"parts\"]},\"parts\":{\"type\":\"array\"}", "")),
	ROW(TOOLS_DESCRIBE, "tools.describe", NONE, TOOLS, ALL, NULL, "Describes a tool or one of its callables, with signatures",
	    NAMED("TOOL or TOOL.CALLABLE"),
	    OBJECT(CALLABLE_FIELDS "," OF("signature", "string") ",\"tags\":" STRINGS ",\"callables\":{\"type\":\"array\"}",
		   "\"name\",\"description\"")),
	ROW(TOOLS_LIST_RECIPES, "tools.list_recipes", NONE, TOOLS, ALL, NULL, "Lists the callables of a tool", NAMED("Tool name"),
	    LIST_OF(OBJECT(OF("name", "string") "," OF("description", "string"), "\"name\",\"description\""))),
	ROW(TOOLS_SCHEMA, "tools.schema", NONE, TOOLS, ALL, NULL, "Returns an MCP server's own description of itself and its tools, with the learned types of their results",
	    NAMED("Name of an MCP server"),
	    OBJECT(OF("name", "string") ",\"server\":{},\"instructions\":{}," OF("tools", "array"), "\"name\",\"tools\"")),
	ROW(TOOLS_PROBLEMS, "tools.problems", NONE, TOOLS, ALL, NULL, "Lists the problems found in tool definitions", NOTHING,
	    LIST_OF(OBJECT(OF("file", "string") "," OF("line", "integer") "," OF("message", "string"), "\"file\",\"line\",\"message\""))),
	ROW(TOOLS_REGISTER, "tools.register", SERVER, SERVERS, HOST | MCP, "register", "Registers an MCP server, so that code can call its tools",
	    OBJECT(TEXT("name", "Name under which code calls the server") ","
		   FIELD("params", "object", "{command, args, env} of a program, or {url, headers} of an HTTP server"),
		   "\"name\",\"params\""), NO_ANSWER),
	ROW(TOOLS_UNREGISTER, "tools.unregister", SERVER, SERVERS, HOST | MCP, "unregister", "Removes a registered MCP server",
	    NAMED("Name it was registered under"), NO_ANSWER),

	ROW(WORKFLOWS_LIST, "workflows.list", NONE, WORKFLOWS, ALL, NULL, "Lists the stored workflows", NOTHING, LIST_OF(WORKFLOW)),
	ROW(WORKFLOWS_SEARCH, "workflows.search", NONE, SEARCH, ALL, NULL, "Searches workflows by a description of the task, best match first",
	    OBJECT(SEARCH("\"default\":5"), "\"query\""), LIST_OF(WORKFLOW)),
	ROW(WORKFLOWS_GET, "workflows.get", NONE, WORKFLOWS, ALL, NULL, "Returns a workflow with its source, or null when it does not exist",
	    NAMED("Workflow name"), NULL_OR(WORKFLOW_FIELDS SOURCE)),
	ROW(WORKFLOWS_CREATE, "workflows.create", WORKFLOW, WORKFLOWS, ALL, NULL, "Stores a workflow, which code calls as workflows.NAME(...)",
	    OBJECT(TEXT("name", "A Python identifier") ","
		   "\"source\":{\"type\":\"string\",\"minLength\":1,\"x-nul\":true,\"description\":\"Python source that defines run(...)\"},"
		   FIELD("description", "string", "What the workflow does; searches use it") ","
		   "\"overwrite\":{\"type\":\"boolean\",\"default\":false,\"description\":\"Replace an existing workflow of this name\"},"
		   "\"parameters\":{\"type\":[\"array\",\"object\"],\"x-internal\":true}", "\"name\",\"source\""), WHOLE_WORKFLOW),
	ROW(WORKFLOWS_DELETE, "workflows.delete", WORKFLOW, WORKFLOWS, ALL, NULL, "Deletes a workflow, and returns whether it existed",
	    NAMED("Workflow name"), "{\"type\":\"boolean\"}"),

	ROW(ARTIFACTS_PATH, "artifacts.path", NONE, ARTIFACTS, ALL, NULL, "Returns the location where artifacts are stored", NOTHING,
	    "{\"type\":\"string\"}"),
	ROW(ARTIFACTS_LIST, "artifacts.list", NONE, ARTIFACTS, ALL, NULL, "Lists the stored artifacts", NOTHING, LIST_OF(ARTIFACT)),
	ROW(ARTIFACTS_GET, "artifacts.get", NONE, ARTIFACTS, ALL, NULL, "Returns the description of an artifact, or null when it does not exist",
	    NAMED("Artifact name"), NULL_OR(ARTIFACT_FIELDS)),
	ROW(ARTIFACTS_EXISTS, "artifacts.exists", NONE, ARTIFACTS, ALL, NULL, "Returns whether an artifact exists", NAMED("Artifact name"),
	    "{\"type\":\"boolean\"}"),
	ROW(ARTIFACTS_DELETE, "artifacts.delete", ARTIFACT, ARTIFACTS, ALL, NULL, "Deletes an artifact", NAMED("Artifact name"), NO_ANSWER),
	/* Whole: not for kernels, which may not make the host hold so much for them. */
	ROW(ARTIFACTS_SAVE, "artifacts.save", ARTIFACT, ARTIFACTS, HOST | HTTP | MCP, NULL,
	    "Saves bytes as an artifact and replaces an existing one of this name", OBJECT(SAVED, "\"name\""), ARTIFACT),
	ROW(ARTIFACTS_LOAD, "artifacts.load", NONE, ARTIFACTS, HOST | HTTP | MCP, NULL, "Returns an artifact with its bytes",
	    OBJECT(TEXT("name", "Artifact name") ",\"max_bytes\":{\"type\":\"integer\",\"minimum\":0,\"x-internal\":true}", "\"name\""),
	    OBJECT(ARTIFACT_FIELDS "," OF("type", "string"), ARTIFACT_REQUIRED)),
	ROW(ARTIFACTS_SAVE_BEGIN, "artifacts.save_begin", ARTIFACT, ARTIFACTS, ALL, "save", "Starts saving an artifact in chunks",
	    OBJECT(SAVED "," INTERNAL("key", "integer") "," INTERNAL("size", "integer"), "\"name\""),
	    OBJECT(OF("handle", "integer"), "\"handle\"")),
	ROW(ARTIFACTS_SAVE_CHUNK, "artifacts.save_chunk", NONE, ARTIFACTS, ALL, NULL, "Appends the bytes of the call, at most 4 MiB",
	    OBJECT(OF("handle", "integer") "," INTERNAL("at", "integer") "," INTERNAL("size", "integer"), "\"handle\""), NO_ANSWER),
	ROW(ARTIFACTS_SAVE_COMMIT, "artifacts.save_commit", NONE, ARTIFACTS, ALL, NULL, "Completes saving: from now on the artifact exists",
	    OBJECT(OF("handle", "integer"), "\"handle\""), ARTIFACT),
	ROW(ARTIFACTS_SAVE_ABORT, "artifacts.save_abort", NONE, ARTIFACTS, ALL, NULL, "Discards an artifact that was not committed", HANDLE, NO_ANSWER),
	ROW(ARTIFACTS_LOAD_OPEN, "artifacts.load_open", NONE, ARTIFACTS, ALL, NULL, "Opens an artifact for reading in chunks",
	    OBJECT(TEXT("name", "Artifact name") "," INTERNAL("key", "integer"), "\"name\""),
	    OBJECT(ARTIFACT_FIELDS "," OF("handle", "integer") "," OF("type", "string"), ARTIFACT_REQUIRED ",\"handle\"")),
	ROW(ARTIFACTS_LOAD_CHUNK, "artifacts.load_chunk", NONE, ARTIFACTS, ALL, NULL,
	    "Returns the number of bytes read, and the bytes, at most 4 MiB",
	    OBJECT(OF("handle", "integer") "," OF("offset", "integer") "," OF("size", "integer") "," INTERNAL("at", "integer"), "\"handle\""),
	    "{\"type\":\"integer\"}"),
	ROW(ARTIFACTS_LOAD_CLOSE, "artifacts.load_close", NONE, ARTIFACTS, ALL, NULL, "Closes an artifact that was opened for reading", HANDLE,
	    NO_ANSWER),

	ROW(DEPS_LIST, "deps.list", NONE, DEPS, ALL, NULL, "Lists the configured packages", NOTHING, STRINGS),
	ROW(DEPS_ADD, "deps.add", INSTALL, DEPS, ALL, NULL, "Installs packages and adds them to the configuration",
	    OBJECT("\"package\":{\"type\":[\"string\",\"array\"],\"items\":{\"type\":\"string\"},\"description\":\"A requirement, like pandas>=2, or a list of them\"}," INTERNAL("pyodide", "boolean"), "\"package\""), INSTALLED),
	ROW(DEPS_REMOVE, "deps.remove", REMOVE, DEPS, ALL, NULL, "Removes a package from the configuration and the environment, and returns whether it was there",
	    OBJECT(FIELD("package", "string", "Package name") "," INTERNAL("pyodide", "boolean"), "\"package\""), "{\"type\":\"boolean\"}"),
	ROW(DEPS_SYNC, "deps.sync", INSTALL, DEPS, ALL, NULL, "Installs the configured packages that are missing",
	    OBJECT(FIELD("quick", "boolean", "Skip the check of an environment that this space has already checked") "," INTERNAL("pyodide", "boolean"), ""),
	    INSTALLED),

	ROW(SEARCH_STATUS, "search.status", NONE, SEARCH, ALL, NULL, "Returns the state of searches by meaning", NOTHING,
	    OBJECT("\"embeddings\":{\"type\":[\"object\",\"null\"]}", "\"embeddings\"")),
	ROW(SESSIONS_FORK, "sessions.fork", NONE, SESSIONS, CODE, NULL, "Begins a child: a session that goes on from the state of this one",
	    OBJECT(FIELD("drop", "boolean", "Also if threads, child processes or connections cannot go with it"), ""), CHILD),
	ROW(SESSIONS_READY, "sessions.ready", NONE, SESSIONS, CODE, NULL, "Waits until a child can run cells", CHILD, NO_ANSWER),
	ROW(SESSIONS_RUN, "sessions.run", NONE, SESSIONS, CODE, NULL, "Runs a cell in a child and waits for its result",
	    OBJECT(CHILD_ID ",\"code\":{\"type\":\"string\",\"x-nul\":true},\"timeout_ms\":{\"type\":\"integer\",\"minimum\":1}", "\"session_id\",\"code\""),
	    OBJECT("\"value\":{},\"repr\":{\"type\":[\"string\",\"null\"]}," OF("stdout", "string") "," OF("stderr", "string") "," OF("text", "string")
		   ",\"error\":{\"type\":[\"object\",\"null\"]}," OF("state", "string") "," OF("duration_ms", "number"),
		   "\"value\",\"repr\",\"stdout\",\"stderr\",\"text\",\"error\",\"state\",\"duration_ms\"")),
	ROW(SESSIONS_CLOSE, "sessions.close", NONE, SESSIONS, CODE, NULL, "Ends a child", CHILD, NO_ANSWER),
	ROW(SESSIONS_LIST, "sessions.list", NONE, SESSIONS, CODE, NULL, "Lists the ids of the open children", NOTHING, STRINGS),
	ROW(LLM_QUERY, "llm.query", LLM, LLM, CODE, NULL, "Asks the host's model, and returns its answer as bytes and the usage of the budget",
	    OBJECT(TEXT("prompt", "The question") ",\"context\":{\"description\":\"Data that the question is about: a text, or any JSON\"},"
		   FIELD("options", "object", "Options for the host's function"), "\"prompt\""), LLM_USAGE),
	ROW(LLM_USAGE, "llm.usage", NONE, LLM, HOST | CODE, NULL, "Returns what queries have used, and what is left of the budget", NOTHING, LLM_USAGE),
	ROW(SHELL_APPROVE, "shell.approve", SHELL, KERNEL, CODE | MCP, "", "Asks on behalf of a kernel, or of a client, whether it may run a command",
	    OBJECT("\"name\":{\"type\":\"string\",\"enum\":[\"shell\",\"shell_magic\"]}," FIELD("args", "object", "{cmd}"), "\"name\",\"args\""),
	    "{\"type\":\"object\"}"),
	ROW(INPUT_READ, "input.read", QUESTION, NONE, CODE, NULL, "Asks the person at a notebook for a line of text",
	    OBJECT(FIELD("prompt", "string", "What is asked for") "," FIELD("password", "boolean", "Do not show what is typed"), "\"prompt\""),
	    OBJECT(OF("value", "string"), "\"value\"")),
	ROW(QUESTION, "question", QUESTION, NONE, 0, NULL, "Asks a person a question on behalf of an MCP server",
	    OBJECT(OF("tool", "string") "," OF("callable", "string") "," OF("params", "object"), "\"tool\",\"params\""), "{\"type\":\"object\"}"),
	ROW(OFFERED_CALL, "offered.call", TOOL, ASKER, MCP, NULL, "Calls a tool that the program has added to its MCP server",
	    OBJECT(OF("name", "string") "," OF("args", "object"), "\"name\",\"args\""), "{}"),
};
/* clang-format on */

const struct cell__operation *cell__operation_find(const char *method)
{
	for (size_t i = 0; i < CELL__OPS; i++)
		if (strcmp(cell__operations[i].method, method) == 0)
			return &cell__operations[i];
	return NULL;
}

bool cell__operation_is_open_to(const struct cell__operation *operation, const struct cell__principal *principal)
{
	return principal && operation->who & (1u << principal->kind);
}

const char *cell__operation_shown(const struct cell__operation *operation)
{
	const char *dot = strchr(operation->method, '.');
	return operation->shown ? operation->shown : dot ? dot + 1 : "";
}
