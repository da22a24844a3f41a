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
#define FIELD(name, type, words) "\"" name "\":{\"type\":\"" type "\",\"description\":\"" words "\"}"
#define TEXT(name, words) "\"" name "\":{\"type\":\"string\",\"minLength\":1,\"description\":\"" words "\"}"
/* Known to our kernels and programs alone: not in schemas that others are shown. */
#define INTERNAL(name, type) "\"" name "\":{\"type\":\"" type "\",\"x-internal\":true}"
#define STRINGS "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"
#define TAGS "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"Only tools with one of these tags\"}"
#define LIST_OF(item) "{\"type\":\"array\",\"items\":" item "}"
#define NULL_OR(fields) "{\"type\":[\"object\",\"null\"],\"properties\":{" fields "}}"

#define PARAMETER                                                                                            \
	"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},"   \
	"\"required\":{\"type\":\"boolean\"},\"default\":{},\"description\":{\"type\":\"string\"}},\"required\":[\"name\"]}"
#define TOOL                                                                                                 \
	"{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"},\"tags\":" STRINGS "," \
	"\"callables\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}," \
	"\"description\":{\"type\":\"string\"},\"parameters\":{\"type\":\"array\",\"items\":" PARAMETER "}},"   \
	"\"required\":[\"name\",\"description\",\"parameters\"]}}},\"required\":[\"name\",\"description\",\"callables\"]}"
#define WORKFLOW_FIELDS                                                                                      \
	"\"name\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"},\"parameters\":{\"type\":[\"array\",\"object\"]}," \
	"\"async\":{\"type\":\"boolean\"}"
#define WORKFLOW OBJECT(WORKFLOW_FIELDS, "\"name\",\"description\",\"parameters\"")
#define WHOLE_WORKFLOW                                                                                       \
	OBJECT(WORKFLOW_FIELDS ",\"source\":{\"type\":\"string\"}", "\"name\",\"description\",\"parameters\",\"source\"")
#define ARTIFACT_FIELDS                                                                                      \
	"\"name\":{\"type\":\"string\"},\"path\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"},"  \
	"\"created_at\":{\"type\":[\"string\",\"number\",\"null\"]},\"metadata\":{\"type\":[\"object\",\"null\"]},\"size\":{\"type\":\"integer\"}"
#define ARTIFACT OBJECT(ARTIFACT_FIELDS, "\"name\"")
#define INSTALLED                                                                                            \
	OBJECT("\"installed\":" STRINGS ",\"already_present\":" STRINGS ",\"failed\":" STRINGS,                 \
	       "\"installed\",\"already_present\",\"failed\"")
#define NAMED(words) OBJECT(TEXT("name", words), "\"name\"")
#define HANDLE OBJECT("\"handle\":{\"type\":\"integer\"}," INTERNAL("key", "integer"), "")

#define HOST (1u << CELL__PRINCIPAL_HOST)
#define CODE (1u << CELL__PRINCIPAL_CODE)
#define HTTP (1u << CELL__PRINCIPAL_HTTP)
#define MCP (1u << CELL__PRINCIPAL_MCP)
#define ALL (HOST | CODE | HTTP | MCP)

#define ROW(op, name, gate, where, open_to, gate_name, words, takes, gives)                                      \
	[CELL__OP_##op] = { .method = name, .id = CELL__OP_##op, .kind = CELL__GATE_##gate, .part = CELL__PART_##where, \
			    .who = open_to, .shown = gate_name, .about = words, .args = takes, .result = gives }

const struct cell__operation cell__operations[CELL__OPS] = {
	ROW(TOOLS_LIST, "tools.list", NONE, TOOLS, ALL, NULL, "The tools there are",
	    OBJECT(TAGS ",\"await\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"x-internal\":true}", ""), LIST_OF(TOOL)),
	ROW(TOOLS_SEARCH, "tools.search", NONE, SEARCH, ALL, NULL, "Tools that fit a description of what is to be done, best first",
	    OBJECT(TEXT("query", "What is to be done, in words") ","
		   "\"limit\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":1000,\"default\":10,\"description\":\"At most so many\"}," TAGS
		   ",\"await\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"x-internal\":true}", "\"query\""), LIST_OF(TOOL)),
	ROW(TOOLS_CALL, "tools.call", TOOL, TOOLS, ALL, NULL, "Calls a tool, or a callable of one",
	    OBJECT(TEXT("name", "TOOL or TOOL.CALLABLE") "," FIELD("args", "object", "Its arguments by name"), "\"name\""),
	    OBJECT("\"value\":{},\"raw\":{\"type\":\"string\",\"enum\":[\"text\",\"json\",\"parts\"]},\"parts\":{\"type\":\"array\"}", "")),
	ROW(TOOLS_DESCRIBE, "tools.describe", NONE, TOOLS, ALL, NULL, "A tool or a callable of one, with signatures",
	    NAMED("TOOL or TOOL.CALLABLE"), TOOL),
	ROW(TOOLS_LIST_RECIPES, "tools.list_recipes", NONE, TOOLS, ALL, NULL, "The callables of a tool", NAMED("The tool's"),
	    LIST_OF(OBJECT("\"name\":{\"type\":\"string\"},\"description\":{\"type\":\"string\"}", "\"name\",\"description\""))),
	ROW(TOOLS_SCHEMA, "tools.schema", NONE, TOOLS, ALL, NULL, "An MCP server and its tools, as it says it",
	    NAMED("Of an MCP server"),
	    OBJECT("\"name\":{\"type\":\"string\"},\"server\":{},\"instructions\":{},\"tools\":{\"type\":\"array\"}", "\"name\",\"tools\"")),
	ROW(TOOLS_PROBLEMS, "tools.problems", NONE, TOOLS, ALL, NULL, "What is wrong with tool definitions", NOTHING,
	    LIST_OF(OBJECT("\"file\":{\"type\":\"string\"},\"line\":{\"type\":\"integer\"},\"message\":{\"type\":\"string\"}",
			   "\"file\",\"line\",\"message\""))),
	ROW(TOOLS_REGISTER, "tools.register", SERVER, SERVERS, HOST | MCP, "register", "Adds an MCP server, whose tools code can then call",
	    OBJECT(TEXT("name", "Its name in the code") ","
		   FIELD("params", "object", "{command, args, env} of a program or {url, headers} of an HTTP server"),
		   "\"name\",\"params\""), "{\"type\":\"null\"}"),
	ROW(TOOLS_UNREGISTER, "tools.unregister", SERVER, SERVERS, HOST | MCP, "unregister", "Removes an MCP server that was added so",
	    NAMED("As it was registered"), "{\"type\":\"null\"}"),

	ROW(WORKFLOWS_LIST, "workflows.list", NONE, WORKFLOWS, ALL, NULL, "The workflows that are kept", NOTHING, LIST_OF(WORKFLOW)),
	ROW(WORKFLOWS_SEARCH, "workflows.search", NONE, SEARCH, ALL, NULL, "Workflows that fit a description of what is to be done, best first",
	    OBJECT("\"query\":{\"type\":\"string\",\"description\":\"What is to be done, in words\"},"
		   "\"limit\":{\"type\":\"integer\",\"default\":5,\"description\":\"At most so many\"}", ""), LIST_OF(WORKFLOW)),
	ROW(WORKFLOWS_GET, "workflows.get", NONE, WORKFLOWS, ALL, NULL, "One workflow with its source; null where there is none",
	    NAMED("Its name"), NULL_OR(WORKFLOW_FIELDS ",\"source\":{\"type\":\"string\"}")),
	ROW(WORKFLOWS_CREATE, "workflows.create", WORKFLOW, WORKFLOWS, ALL, NULL, "Keeps a workflow, which code calls as workflows.NAME(...)",
	    OBJECT(TEXT("name", "A Python identifier") "," TEXT("source", "Python source that defines run(...)") ","
		   FIELD("description", "string", "What it does, for searches") ","
		   "\"overwrite\":{\"type\":\"boolean\",\"default\":false,\"description\":\"Replace one of this name\"},"
		   "\"parameters\":{\"type\":[\"array\",\"object\"],\"x-internal\":true}", "\"name\",\"source\""), WHOLE_WORKFLOW),
	ROW(WORKFLOWS_DELETE, "workflows.delete", WORKFLOW, WORKFLOWS, ALL, NULL, "Removes a workflow; whether there was one",
	    NAMED("Its name"), "{\"type\":\"boolean\"}"),

	ROW(ARTIFACTS_PATH, "artifacts.path", NONE, ARTIFACTS, ALL, NULL, "Where artifacts are kept, in words", NOTHING, "{\"type\":\"string\"}"),
	ROW(ARTIFACTS_LIST, "artifacts.list", NONE, ARTIFACTS, ALL, NULL, "The artifacts that are kept", NOTHING, LIST_OF(ARTIFACT)),
	ROW(ARTIFACTS_GET, "artifacts.get", NONE, ARTIFACTS, ALL, NULL, "One of them; null where there is none", NAMED("Its name"),
	    NULL_OR(ARTIFACT_FIELDS)),
	ROW(ARTIFACTS_EXISTS, "artifacts.exists", NONE, ARTIFACTS, ALL, NULL, "Whether there is one", NAMED("Its name"),
	    "{\"type\":\"boolean\"}"),
	ROW(ARTIFACTS_DELETE, "artifacts.delete", ARTIFACT, ARTIFACTS, ALL, NULL, "Removes one", NAMED("Its name"), "{\"type\":\"null\"}"),
	ROW(ARTIFACTS_SAVE_BEGIN, "artifacts.save_begin", ARTIFACT, ARTIFACTS, ALL, "save", "Begins to save one",
	    OBJECT(TEXT("name", "Its name; may have folders, like reports/q3.csv") ","
		   FIELD("type", "string", "text, json, bytes, or a word of the kernel's") ","
		   FIELD("description", "string", "What it is") "," FIELD("metadata", "object", "Anything") ","
		   INTERNAL("key", "integer") "," INTERNAL("size", "integer"), "\"name\""),
	    OBJECT("\"handle\":{\"type\":\"integer\"}", "\"handle\"")),
	ROW(ARTIFACTS_SAVE_CHUNK, "artifacts.save_chunk", NONE, ARTIFACTS, ALL, NULL, "Adds bytes",
	    OBJECT("\"handle\":{\"type\":\"integer\"}," INTERNAL("at", "integer") "," INTERNAL("size", "integer"), "\"handle\""),
	    "{\"type\":\"null\"}"),
	ROW(ARTIFACTS_SAVE_COMMIT, "artifacts.save_commit", NONE, ARTIFACTS, ALL, NULL, "Ends it; from now on the artifact is there",
	    OBJECT("\"handle\":{\"type\":\"integer\"}", "\"handle\""), ARTIFACT),
	ROW(ARTIFACTS_SAVE_ABORT, "artifacts.save_abort", NONE, ARTIFACTS, ALL, NULL, "Drops what was not committed", HANDLE,
	    "{\"type\":\"null\"}"),
	ROW(ARTIFACTS_LOAD_OPEN, "artifacts.load_open", NONE, ARTIFACTS, ALL, NULL, "Opens one for reading",
	    OBJECT(TEXT("name", "Its name") "," INTERNAL("key", "integer"), "\"name\""),
	    OBJECT(ARTIFACT_FIELDS ",\"handle\":{\"type\":\"integer\"},\"type\":{\"type\":\"string\"}", "\"handle\",\"size\"")),
	ROW(ARTIFACTS_LOAD_CHUNK, "artifacts.load_chunk", NONE, ARTIFACTS, ALL, NULL, "How many bytes there are, and the bytes; at most 4 MiB",
	    OBJECT("\"handle\":{\"type\":\"integer\"},\"offset\":{\"type\":\"integer\"},\"size\":{\"type\":\"integer\"}," INTERNAL("at", "integer"),
		   "\"handle\""), "{\"type\":\"integer\"}"),
	ROW(ARTIFACTS_LOAD_CLOSE, "artifacts.load_close", NONE, ARTIFACTS, ALL, NULL, "Ends reading", HANDLE, "{\"type\":\"null\"}"),

	ROW(DEPS_LIST, "deps.list", NONE, DEPS, ALL, NULL, "The packages that are configured", NOTHING, STRINGS),
	ROW(DEPS_ADD, "deps.add", INSTALL, DEPS, ALL, NULL, "Installs a package and keeps it in the configuration",
	    OBJECT(TEXT("package", "A requirement, like pandas>=2") "," INTERNAL("pyodide", "boolean"), "\"package\""), INSTALLED),
	ROW(DEPS_REMOVE, "deps.remove", REMOVE, DEPS, ALL, NULL, "Takes a package out of the configuration; whether it was there",
	    OBJECT("\"package\":{\"type\":\"string\",\"description\":\"Its name\"}," INTERNAL("pyodide", "boolean"), "\"package\""),
	    "{\"type\":\"boolean\"}"),
	ROW(DEPS_SYNC, "deps.sync", INSTALL, DEPS, ALL, NULL, "Installs what is configured and is not there",
	    OBJECT("\"quick\":{\"type\":\"boolean\",\"description\":\"Believe what this space has seen of its environment\"},"
		   INTERNAL("pyodide", "boolean"), ""), INSTALLED),

	ROW(SEARCH_STATUS, "search.status", NONE, SEARCH, ALL, NULL, "How searches by meaning do", NOTHING,
	    OBJECT("\"embeddings\":{\"type\":[\"object\",\"null\"]}", "\"embeddings\"")),
	ROW(SHELL_APPROVE, "shell.approve", SHELL, KERNEL, CODE, "", "The code's kernel asks whether it may run a command",
	    OBJECT(TEXT("name", "shell or shell_magic") "," FIELD("args", "object", "{cmd}"), "\"name\",\"args\""), "{\"type\":\"object\"}"),
	ROW(QUESTION, "question", QUESTION, NONE, 0, NULL, "An MCP server asks a person",
	    OBJECT("\"tool\":{\"type\":\"string\"},\"callable\":{\"type\":\"string\"},\"params\":{\"type\":\"object\"}", "\"tool\",\"params\""),
	    "{\"type\":\"object\"}"),
};

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
