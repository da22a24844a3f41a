/*
 * The table of operations: everything that a space can do, one row each.  Immutable; any thread.
 *
 * From it come dispatch, argument checks and their messages, which kind of call the gate sees, the schemas of MCP tools and HTTP routes
 * (schema.h), and by dump.c and scripts/operations.py documentation and the SDK's types.
 */
#ifndef CELL_CALLS_TABLE_H
#define CELL_CALLS_TABLE_H

#include <jansson.h>

#include "calls/principal.h"
#include "base/base.h"
#include "calls/call.h"

/* The kind of a gated call: policies, questions to a person and the audit log use its word. */
enum cell__gate_kind {
	CELL__GATE_NONE, /* changes nothing */
	CELL__GATE_TOOL,
	CELL__GATE_SHELL,
	CELL__GATE_INSTALL,
	CELL__GATE_REMOVE,
	CELL__GATE_WORKFLOW,
	CELL__GATE_ARTIFACT,
	CELL__GATE_SERVER,
	CELL__GATE_LLM,
	CELL__GATE_QUESTION, /* a question of an MCP server to a person: no policy decides on it */
	CELL__GATE_KINDS,
};

/* "tool", "shell", ...; NULL for CELL__GATE_NONE. */
const char *cell__gate_kind_word(enum cell__gate_kind kind);
/* CELL_GATE_*; 0 for CELL__GATE_NONE. */
unsigned cell__gate_kind_bit(enum cell__gate_kind kind);
/* The bit of a word of policies; 0: unknown kind. */
unsigned cell__gate_kind_of(const char *word);
/* All kinds that a policy can decide on, and the default kinds of a policy without rules: all but artifacts. */
#define CELL__GATE_ALL                                                                                                            \
	(CELL_GATE_TOOLS | CELL_GATE_SHELL | CELL_GATE_INSTALLS | CELL_GATE_WORKFLOWS | CELL_GATE_REMOVES | CELL_GATE_ARTIFACTS | \
	 CELL_GATE_SERVERS | CELL_GATE_LLM)
#define CELL__GATE_USUAL (CELL__GATE_ALL & ~CELL_GATE_ARTIFACTS)

enum cell__op {
	CELL__OP_TOOLS_LIST,
	CELL__OP_TOOLS_SEARCH,
	CELL__OP_TOOLS_CALL,
	CELL__OP_TOOLS_DESCRIBE,
	CELL__OP_TOOLS_LIST_RECIPES,
	CELL__OP_TOOLS_SCHEMA,
	CELL__OP_TOOLS_PROBLEMS,
	CELL__OP_TOOLS_REGISTER,
	CELL__OP_TOOLS_UNREGISTER,
	CELL__OP_WORKFLOWS_LIST,
	CELL__OP_WORKFLOWS_SEARCH,
	CELL__OP_WORKFLOWS_GET,
	CELL__OP_WORKFLOWS_CREATE,
	CELL__OP_WORKFLOWS_DELETE,
	CELL__OP_ARTIFACTS_PATH,
	CELL__OP_ARTIFACTS_LIST,
	CELL__OP_ARTIFACTS_GET,
	CELL__OP_ARTIFACTS_EXISTS,
	CELL__OP_ARTIFACTS_DELETE,
	CELL__OP_ARTIFACTS_SAVE,
	CELL__OP_ARTIFACTS_LOAD,
	CELL__OP_ARTIFACTS_SAVE_BEGIN,
	CELL__OP_ARTIFACTS_SAVE_CHUNK,
	CELL__OP_ARTIFACTS_SAVE_COMMIT,
	CELL__OP_ARTIFACTS_SAVE_ABORT,
	CELL__OP_ARTIFACTS_LOAD_OPEN,
	CELL__OP_ARTIFACTS_LOAD_CHUNK,
	CELL__OP_ARTIFACTS_LOAD_CLOSE,
	CELL__OP_DEPS_LIST,
	CELL__OP_DEPS_ADD,
	CELL__OP_DEPS_REMOVE,
	CELL__OP_DEPS_SYNC,
	CELL__OP_SEARCH_STATUS,
	CELL__OP_SESSIONS_FORK,
	CELL__OP_SESSIONS_READY,
	CELL__OP_SESSIONS_RUN,
	CELL__OP_SESSIONS_CLOSE,
	CELL__OP_SESSIONS_LIST,
	CELL__OP_LLM_QUERY,
	CELL__OP_LLM_USAGE,
	CELL__OP_SHELL_APPROVE,
	CELL__OP_INPUT_READ,
	CELL__OP_QUESTION,
	CELL__OP_OFFERED_CALL,
	CELL__OPS,
};

/* The handler of the operation, and the thread that it works on. */
enum cell__op_part {
	CELL__PART_TOOLS,     /* the loop */
	CELL__PART_SERVERS,   /* the loop; MCP servers as programs */
	CELL__PART_WORKFLOWS, /* the pool */
	CELL__PART_ARTIFACTS, /* the pool */
	CELL__PART_DEPS,      /* the pool; installers as programs */
	CELL__PART_SEARCH,    /* the pool; an embeddings endpoint */
	CELL__PART_SESSIONS,  /* the loop; the session that asks */
	CELL__PART_LLM,       /* the loop; a function of the host */
	CELL__PART_KERNEL,    /* the asking kernel itself, once it is allowed to */
	CELL__PART_NONE,      /* the answer is the result */
	CELL__PART_ASKER,     /* the asker's own thread, once it is allowed to (struct cell__call's `work`) */
};

struct cell__operation {
	const char *method; /* "deps.add" */
	enum cell__op id;
	enum cell__gate_kind kind;
	enum cell__op_part part;
	unsigned who;       /* principals that may call it: 1u << kind */
	const char *shown;  /* its name in the gate; NULL: the part of the method after the dot */
	const char *about;
	const char *args;   /* JSON Schema of an object */
	const char *result; /* JSON Schema; bytes travel beside it */
};

extern const struct cell__operation cell__operations[CELL__OPS];

/* NULL: none. */
const struct cell__operation *cell__operation_find(const char *method);
bool cell__operation_is_open_to(const struct cell__operation *operation, const struct cell__principal *principal);
/* The part after the dot; "" without a dot. */
const char *cell__operation_shown(const struct cell__operation *operation);
/* Checks arguments against the schema of the row (schema.h).  -1: *why has the reason. */
int cell__operation_check(const struct cell__operation *operation, json_t *args, struct cell__buf *why);
/* The first step of every call: checks principal, method and arguments.  -1: the call has failed. */
int cell__call_prepare(struct cell__call *call, const struct cell__principal *principal);

#endif
