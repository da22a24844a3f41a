/*
 * Tools: functions that agent code can call on the host.
 *
 * A registry holds tools of three kinds: command-line programs and HTTP services described by YAML files, and
 * functions of the host program.  A tool has callables (recipes, endpoints, functions); calling one goes
 *
 *     tools.call ──▶ find ──▶ merge and check arguments ──▶ adapter: process | request | function ──▶ answer
 *
 * Directories are checked or watched for changes: a changed file counts from the next call on.  A call in progress keeps
 * the definition it started with.  Secrets (`${VAR}` in env and headers) are resolved at the moment of the call through the
 * resolver, are handed to the program or the server only, and are removed from every error text.
 *
 * Belongs to the loop's thread, except functions marked "any thread".
 */
#ifndef CELL_TOOLS_H
#define CELL_TOOLS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "calls/call.h"
#include "loop/loop_ref.h"
#include "spawn/process.h"
#include "wire/yaml.h"

/* ---- limits ---- */

#define CELL_TOOL_LIMIT_FILE_BYTES CELL_YAML_LIMIT_FILE_BYTES   /* one YAML file */
#define CELL_TOOL_LIMIT_DEPTH CELL_YAML_LIMIT_DEPTH /* nesting in it */
#define CELL_TOOL_LIMIT_KEYS CELL_YAML_LIMIT_KEYS/* of one mapping in it */
#define CELL_TOOL_LIMIT_FILES 1000u                 /* YAML files in one directory */
#define CELL_TOOL_LIMIT_DIRS 16u
#define CELL_TOOL_LIMIT_TOOLS 4096u
#define CELL_TOOL_LIMIT_CALLABLES 512u              /* of one tool */
#define CELL_TOOL_LIMIT_PARAMS 256u                 /* of one callable */
#define CELL_TOOL_LIMIT_NAME 64u                    /* bytes of a tool's or callable's name */
#define CELL_TOOL_LIMIT_PROBLEMS CELL_YAML_LIMIT_PROBLEMS   /* reported per file */
#define CELL_TOOL_LIMIT_ARGV 4096u                  /* arguments of a command */
#define CELL_TOOL_LIMIT_ARGV_BYTES (96u * 1024u)    /* their bytes together; fits CELL_LIMIT_SPAWN_MESSAGE with the rest */
#define CELL_TOOL_LIMIT_RUNS 4096u                  /* calls under way in one registry */
#define CELL_TOOL_LIMIT_PROCESSES 64u               /* programs running at once; more calls wait their turn */
#define CELL_TOOL_LIMIT_CONNECTIONS 64              /* open at once; more requests wait their turn */
#define CELL_TOOL_LIMIT_REDIRECTS 5
#define CELL_TOOL_LIMIT_BODY_BYTES (16u * 1024u * 1024u) /* of a request */
#define CELL_TOOL_LIMIT_OUTPUT (16u * 1024u * 1024u)     /* largest max_output */
#define CELL_TOOL_LIMIT_ERROR_TEXT (16u * 1024u)    /* of a stream or response quoted in an error */
#define CELL_TOOL_LIMIT_TIMEOUT_S 86400
#define CELL_TOOL_DEFAULT_OUTPUT (1024u * 1024u)
#define CELL_TOOL_DEFAULT_TIMEOUT_MS 60000
#define CELL_TOOL_DEFAULT_SEARCH 5
#define CELL_TOOL_LIMIT_LEARNED 1000u               /* callables whose results have learned types */
#define CELL_TOOL_LIMIT_LEARN_BYTES (256u * 1024u)  /* of a result that is parsed to learn its type */
#define CELL_TOOL_LIMIT_NOTES 64u                   /* observations on their way to the storage */
#define CELL_TOOL_LIMIT_RESULT_TEXT 240u            /* of a learned type, in a description */
#define CELL_TOOL_LIMIT_RESULT_BRIEF 60u            /* and in a signature of a list */
#define CELL_TOOL_DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* The codes that calls fail with. */
#define CELL_TOOL_E_ARGS CELL_E_INVALID
#define CELL_TOOL_E_UNKNOWN CELL_E_NOT_FOUND
#define CELL_TOOL_E_FAILED CELL_E_TOOL
#define CELL_TOOL_E_TIMEOUT CELL_E_TOOL_TIMEOUT

/* ---- the registry ---- */

struct cell__tools;
struct cell__tool_entry;
struct cell__callable;

/*
 * Ranks documents for a query: fills ret_order[0..limit) with indexes of docs, best first, and returns how many; -1
 * when it cannot, and the plain ranking serves.  `generation` changes whenever the documents do, so that an index made
 * for one generation can be kept.
 */
struct cell__rank_doc {
	const char *name;        /* TOOL.CALLABLE, or that of a tool without callables */
	const char *description;
	const char *text;        /* the tool's description and tags, and the parameters with theirs */
};
typedef int (*cell__rank_fn)(void *arg, const char *query, const struct cell__rank_doc *docs, size_t n_docs, uint64_t generation,
			     size_t limit, size_t *ret_order);

struct cell__confinement;

/* The confinement for programs of an untrusted caller's call.  arg must live until the registry is closed. */
struct cell__confine_ops {
	/* A new reference; NULL: it has to be made first. */
	int (*find)(void *arg, const struct cell__call *call, struct cell__confinement **ret_confinement, struct cell_error *err);
	/* Making one looks up paths: begin() and end() on the loop's thread, make() on the pool.  begin(): NULL if out of memory. */
	void *(*begin)(void *arg, const struct cell__call *call);
	void (*make)(void *making);
	/* Frees `making`; gives a new reference, or the reason why make() failed. */
	int (*end)(void *making, struct cell__confinement **ret_confinement, struct cell_error *err);
};

/* Where learned types of results are kept (learn.c).  arg must live until the registry is closed. */
struct cell__learn_ops {
	/* Both on the pool: all entries, and one more observation, which gives the entry (wire/shape.h); new ones. */
	int (*load)(void *arg, json_t **ret_book, struct cell_error *err);
	int (*note)(void *arg, const char *name, const json_t *shape, json_t **ret_entry, struct cell_error *err);
	/* Loop's thread: one of them failed, for the first time. */
	void (*failed)(void *arg, const struct cell_error *err);
};

struct cell__tools_options {
	struct cell__loop *loop;
	struct cell__supervisor *supervisor;
	const char *(*getenv_fn)(void *arg, const char *name); /* for ${VAR}; NULL: every variable is missing */
	void *getenv_arg;
	const char *path;   /* PATH for commands; NULL: CELL_TOOL_DEFAULT_PATH */
	const char *cwd;    /* where MCP servers run, which belong to no session; must live as long; NULL: "/" */
	const char *oauth_dir; /* of the tokens of logins at remote servers; must live as long; NULL: there are none */
	const struct cell__confine_ops *confine; /* NULL: calls of untrusted callers start no program */
	void *confine_arg;
	const struct cell__learn_ops *learn; /* NULL: learned types are kept in memory only */
	void *learn_arg;
	cell__rank_fn rank; /* NULL: names and descriptions that contain the query */
	void *rank_arg;
};

int cell__tools_create(const struct cell__tools_options *opts, struct cell__tools **ret_tools, struct cell_error *err);
/* Ends pending calls with CELL_E_CLOSED.  closed() is called in a later iteration of the loop; then all memory is freed. */
void cell__tools_close(struct cell__tools *tools, void (*closed)(void *arg), void *arg);
/* A directory that was read and is watched; it need not exist yet.  Any thread but the loop's. */
struct cell__tools_dir;
int cell__tools_read_dir(const char *path, struct cell__tools_dir **ret_dir, struct cell_error *err);
/* One that was not added; NULL is allowed.  Any thread. */
void cell__tools_dir_destroy(struct cell__tools_dir *dir);
/* Takes it over, also on failure.  Its files are read again, on the pool, when it changes; checked at each call if it cannot be watched. */
int cell__tools_add_dir(struct cell__tools *tools, struct cell__tools_dir *dir, struct cell_error *err);
/*
 * Replaces the definitions that are not in a directory, {name: text, or null if it cannot be read}; cell__tools_problems() reports invalid
 * ones. `where` is their place in messages.
 */
int cell__tools_set_stored(struct cell__tools *tools, const char *where, json_t *texts, struct cell_error *err);

/* ---- calls ---- */

/* Through whose eyes: one session's. */
struct cell__tools_view {
	const char *cwd; /* for programs whose definition has no cwd; NULL: "/" */
	const char *const *scope; /* tags, NULL-terminated: only tools that have one of them exist; NULL: all */
};

/*
 * Answers tools.list {tags?}, tools.search {query, limit?, tags?}, tools.describe {name}, tools.list_recipes {name},
 * tools.schema {name} (of an MCP server), tools.problems {} and tools.call {name, args}; view may be NULL.  May answer
 * before it returns.  The answer of tools.call is one of
 *
 *     {"value": JSON}      no raw part
 *     {"raw": "text"}      the raw part is UTF-8 text
 *     {"raw": "json"}      the raw part is a JSON value
 *
 *     {"raw": "parts", "parts": [{"type", "size", ...}]}   bytes of several kinds, one after another
 *
 * so that a tool's output is passed on without escaping.  The others answer with the JSON value itself.  tools.list and
 * tools.search start MCP servers whose tools are not known yet, and wait a short time for them; `await`, a list of
 * tools' names, says which servers are of interest.
 */
void cell__tools_handle(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call);

/* tools.call in two steps, for an approval in between: the callable and its exact arguments. */
struct cell__tool_choice {
	struct cell__tool_entry *tool; /* NULL: no tool was chosen */
	const struct cell__callable *callable;
	json_t *args; /* complete and checked */
};
/* Finds the tool and completes the arguments.  -1: it cannot be, and the call has failed. */
int cell__tools_choose(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
		       struct cell__tool_choice *ret_choice);
/*
 * The same tool with other arguments, which may repeat fixed ones (presets) but not change them. `why` receives the reason if they are
 * invalid.
 */
int cell__tool_choice_edit(struct cell__tool_choice *choice, const json_t *args, struct cell__buf *why);
const char *cell__tool_choice_tool(const struct cell__tool_choice *choice);
const char *cell__tool_choice_callable(const struct cell__tool_choice *choice); /* "": the tool itself */
const char *cell__tool_choice_adapter(const struct cell__tool_choice *choice);
/* The result that the definition announces; borrowed; NULL: none. */
const json_t *cell__tool_choice_supposed(const struct cell__tool_choice *choice);
/* Answers the call. */
void cell__tools_run(struct cell__tools *tools, const struct cell__tools_view *view, const struct cell__tool_choice *choice,
		     struct cell__call *call);
void cell__tool_choice_finish(struct cell__tool_choice *choice);
/*
 * The fast path of tools.call to a function of the host, for arguments as text. The caller sets args to the text of an object and asks
 * whether it fits: members are plain values (strings, numbers, booleans), each belongs to a parameter and has its type, no argument is
 * missing, and no default must be added. If it fits, the call is made with the text as it is, and ends in an answer like any other. If not,
 * nothing has happened, and the general path produces the error.
 */
struct cell__host_ask {
	const char *args; /* borrowed */
	size_t args_size;
	struct cell__tool_entry *tool; /* from here on: the registry's, until the loop is left */
	const struct cell__callable *callable;
};
bool cell__tools_fits_host(struct cell__tools *tools, const struct cell__tools_view *view, const char *name, struct cell__host_ask *ask);
void cell__tools_call_host(struct cell__tools *tools, const struct cell__host_ask *ask, struct cell__call *call);

/* Waits until changed directories have been read.  Embedded by its owner, who sets ready. */
struct cell__tools_wait {
	void (*ready)(struct cell__tools_wait *wait); /* once, in a later iteration of the loop; not after _cancel() */
	/* the registry's */
	const char *session_id;
	bool served;
	struct cell__tools_wait *next;
};
/* False: nothing has changed, and ready() is not called.  Before the registry is closed, all waits must be cancelled. */
bool cell__tools_wait(struct cell__tools *tools, struct cell__tools_wait *wait);
void cell__tools_wait_cancel(struct cell__tools *tools, struct cell__tools_wait *wait);
/* As cell__tools_handle(), with the directories as they were read last: for calls that have waited for them. */
void cell__tools_handle_read(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call);
/* Updates the search ranking for the current tools by calling it with an empty query and a limit of 0. */
void cell__tools_prepare_search(struct cell__tools *tools);

/* ---- MCP servers ---- */

/*
 * Adds or replaces a server; params: {"command", "args", "env", "cwd"} or {"url", "headers"}, see docs/mcp.md.  It
 * comes before one of the same name in a directory.  Nothing is started.
 */
int cell__tools_add_mcp(struct cell__tools *tools, const char *name, const json_t *params, struct cell_error *err);
/* CELL_E_NOT_FOUND unless it was added so. */
int cell__tools_remove_mcp(struct cell__tools *tools, const char *name, struct cell_error *err);
/*
 * Ends all servers; calls under way fail, and the next one starts its server again.  done(arg) when their processes
 * are gone, perhaps before this returns.
 */
void cell__tools_stop_mcp(struct cell__tools *tools, void (*done)(void *arg), void *arg);
/* A new {"name", "server", "instructions", "tools"}: the server's own description.  NULL: unknown, or out of memory. */
/*
 * What a login at this server needs (mcp/client/oauth.h), for a thread that may block; free it with cell__tools_oauth_destroy(). NULL: err has
 * the reason.
 */
struct cell__oauth;
struct cell__oauth *cell__tools_oauth(struct cell__tools *tools, const char *name, struct cell_error *err);
void cell__tools_oauth_destroy(struct cell__oauth *oauth);
/* Somebody has logged in or out: the next use of the server begins with the tokens that are kept now. */
void cell__tools_oauth_changed(struct cell__tools *tools, const char *name);
/* Where a person can log in, for messages: a URL to which a server's name is appended.  NULL: nowhere. */
void cell__tools_login_at(struct cell__tools *tools, const char *page);
/* The servers with logins: [{"server", "needed", "link"?}], a new array; NULL: out of memory. */
json_t *cell__tools_logins(const struct cell__tools *tools);
json_t *cell__tools_mcp_schema(struct cell__tools *tools, const char *name);

/* Messages of servers other than answers. */
enum cell__mcp_event_type { CELL_MCP_PROGRESS = 1, CELL_MCP_LOG, CELL_MCP_QUESTION };

struct cell__mcp_elicitation; /* mcp/client/client.h */

struct cell__mcp_event {
	enum cell__mcp_event_type type;
	const char *tool;
	const char *callable; /* NULL: not known */
	const char *session_id; /* NULL: not known */
	const struct cell__call *call; /* that it belongs to; NULL: not known */
	const json_t *params; /* of the notification or the question; may be NULL */
	struct cell__mcp_elicitation *elicitation; /* QUESTION: to be answered once */
};
/*
 * Call before any server is used; without it every question is declined. elicits: at each start of a server, whether to tell it that a
 * person can answer questions.
 */
void cell__tools_on_mcp(struct cell__tools *tools, void (*event)(void *arg, const struct cell__mcp_event *event),
			bool (*elicits)(void *arg), void *arg);
/* Whether an object matches a JSON Schema, as far as we understand it.  `why` gets the problem. */
int cell__schema_check(const json_t *schema, const json_t *object, struct cell__buf *why);

/* ---- functions of the host ---- */

/*
 * One call of a host function.  It must be answered exactly once, by reply(), from any thread, during fn or
 * later, also when it was cancelled; the pointer and all it gave are invalid after that.
 */
struct cell__host_call;
typedef void (*cell__host_fn)(void *arg, struct cell__host_call *call);

struct cell__host_tool {
	const char *name; /* "add", or "math.add" for a function of a tool with several */
	const char *description; /* NULL: none */
	const char *parameters; /* JSON Schema of an object; NULL: no parameters */
	const char *const *tags; /* NULL-terminated; NULL: none */
	int64_t timeout_ms; /* -1: none */
	cell__host_fn fn; /* on the loop's thread; must not block */
	void *arg;
	const char *supposed; /* JSON; NULL: none */
};

int cell__tools_add_host(struct cell__tools *tools, const struct cell__host_tool *tool, struct cell_error *err);
/* Any thread, until it is answered. */
const char *cell__host_call_args(const struct cell__host_call *call); /* a JSON object, checked and complete */
const char *cell__host_call_session_id(const struct cell__host_call *call);
/* The caller no longer waits for the answer. */
bool cell__host_call_cancelled(const struct cell__host_call *call);
/* Any kind but NEXT.  JSON that is not one value makes the call fail. */
void cell__host_call_reply(struct cell__host_call *call, enum cell__reply_kind kind, const char *bytes, size_t size);

/* A call that is not of a tool (space/llm.c). The owner gets the reply on the loop's thread, unless it lets the call go first. */
typedef void (*cell__host_reply_fn)(void *owner, struct cell__reply *reply);
struct cell__host_asked {
	const char *args; /* a JSON object; copied, like session_id */
	size_t args_size;
	const char *session_id; /* NULL: none */
	cell__host_reply_fn handle;
	void *owner;
};
/*
 * NULL: out of memory, or *ret_full: max_calls of this ref are unanswered.  Cancelling a call does not end its function, so calls are
 * counted until they are answered: code must not pile them up.
 */
struct cell__host_call *cell__host_call_make(struct cell__loop_ref *ref, size_t max_calls, const struct cell__host_asked *asked,
					     bool *ret_full);
/* From now on cell__host_call_cancelled().  The owner still gets the reply. */
void cell__host_call_cancel(struct cell__host_call *call);
/* The same, and the reply is dropped.  Returns the owner; NULL: it was let go before. */
void *cell__host_call_let_go(struct cell__host_call *call);

#endif
