/*
 * MCP servers as tools, shared by load_mcp.c (definitions), mcp.c (servers and calls), mcp_launch.c (starting them), mcp_tools.c
 * (their tools as callables), mcp_result.c (their answers) and mcp_wait.c (calls that wait for a server's list of tools).
 *
 *     tool (a version of the definition) ──▶ server ──▶ client (mcp/client/client.h) ──▶ the program or the web service
 *
 * A server lives as long as a definition with its parameters does, however often its file is read; other parameters make
 * another server.  When a server lists its tools, the tool is replaced by a new version with these callables; calls in
 * progress keep the version they were made with.
 *
 * A program started for an untrusted caller is confined like the caller's code (confine.c), and serves only callers with the
 * same confinement.  Other callers get further servers of the same definition, each with its own program; it does not matter
 * which of them lists the tools.
 */
#ifndef CELL_TOOLS_MCP_H
#define CELL_TOOLS_MCP_H

#include "mcp/client/client.h"
#include "tools/internal.h"

#define CELL_MCP_LIMIT_LIKE 8u                /* servers of one definition at once, differently confined */
#define CELL_MCP_LIMIT_ARGS 256u              /* arguments of a server's command */
#define CELL_MCP_LIMIT_NAME 128u              /* bytes of a tool's name on a server */
#define CELL_MCP_LIMIT_DESCRIPTION 4096u      /* bytes that are kept of a tool's description */
#define CELL_MCP_LIMIT_PARAM_TEXT 1024u       /* of a parameter's, and of a default value */
#define CELL_MCP_LIMIT_TEXTS (1024u * 1024u)  /* all of that of one server */
#define CELL_MCP_AGAIN_MS 1000                /* after a failure the list of tools is not requested again for so long */
#define CELL_MCP_LIST_WAIT_MS 5000            /* that a listing of all tools waits for servers that start */

/* How a server is reached, as defined: strings may contain ${VAR}.  Immutable and reference-counted. */
struct cell__mcp_params {
	unsigned refs;
	enum cell__mcp_kind kind;
	bool guessed; /* from the URL */
	char *command;
	char **args;
	size_t n_args;
	struct cell__pairs env;
	char *cwd;
	char *url;
	struct cell__pairs headers;
	/* url: with tokens of a login (mcp/client/oauth.h) */
	bool oauth;
	char *client_id, *client_secret, *client_metadata_url, *scope;
	int64_t start_timeout_ms;
	bool host; /* stdio: it runs on the host also for callers that are not trusted */
};
struct cell__mcp_params *cell__mcp_params_create(void);
void cell__mcp_params_unref(struct cell__mcp_params *params);
bool cell__mcp_params_equal(const struct cell__mcp_params *a, const struct cell__mcp_params *b);
/*
 * Settles the transport (`transport` may be NULL: chosen by the given parameters, and for a URL by its form) and checks all parameters.
 * `why` receives the reason if they are invalid.
 */
int cell__mcp_params_settle(struct cell__mcp_params *params, const char *transport, struct cell__buf *why);
void cell__load_mcp(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool);
/* The same from {"command", "args", "env", "cwd"} or {"url", "headers"}; a tool without a file. */
struct cell__tool_entry *cell__mcp_tool_from_json(const char *name, const json_t *json, struct cell_error *err);

struct cell__tool_server {
	unsigned refs; /* versions of its tool, and the registry while a tool has it */
	struct cell__tools *tools;
	struct cell__mcp_params *params;
	char *name;
	struct cell__mcp_client *client; /* made with the first use */
	struct cell__confinement *confine; /* of its program, settled when it has a client; NULL: unconfined */
	struct cell__secrets secrets;    /* of the present connection */
	bool settling;                   /* its list of tools has been requested */
	struct cell__confine_wait confining; /* settling: for the confinement of its program */
	char *problem;                   /* why it could not be used last; NULL: it could, or was not tried */
	int problem_code;
	char *said;        /* the last line of a start that takes long, without secrets; or NULL */
	int64_t failed_us;               /* when that was */
	int64_t asked_us;                /* when its first list was requested */
	int64_t listed_us;               /* when a list that had expired was last requested */
	bool needs_login;                /* its last use failed for want of a login */
	bool closing;
	struct cell__tool_server *next;
};

/* After the set of tools changed: assigns a server to every tool of this kind, and ends servers without a tool. */
void cell__mcp_attach(struct cell__tools *tools);
/* A version of a tool was freed. */
void cell__tool_server_unref(struct cell__tool_server *server);
/* Ends all; then done(tools). */
void cell__mcp_close_all(struct cell__tools *tools, void (*done)(struct cell__tools *tools));
bool cell__mcp_known(const struct cell__tool_server *server); /* whether its tools are known */
/* Requests its list of tools, for this call, unless it is known, already requested, or was requested too recently without success. */
void cell__mcp_ask(struct cell__tool_server *server, const struct cell__call *call);
/* "problem" of its tool in a list: why it cannot be used, or that it still starts; else nothing. */
void cell__mcp_add_problem(json_t *out, const struct cell__tool_server *server);
void cell__mcp_add_problems(const struct cell__tools *tools, json_t *list);

/* mcp_launch.c: the login at a server by its definition; strings owned by the caller, finish it. NULL: err has the reason. */
struct cell__oauth;
struct cell__oauth *cell__mcp_oauth_create(struct cell__tool_server *server, struct cell_error *err);
void cell__mcp_oauth_destroy(struct cell__oauth *oauth);
/* mcp_launch.c: for the client of a server, arg. */
int cell__mcp_launch(void *arg, struct cell__mcp_launch *ret_launch, struct cell_error *err);

/* mcp_tools.c: fills tool->callables; `problem` (may stay empty) says which tools were left out. */
void cell__mcp_fill_callables(struct cell__tool_entry *tool, const json_t *list, char problem[160]);

/* mcp_result.c: ends the run with the server's answer to tools/call. */
void cell__mcp_finish_run(struct cell__tool_run *run, const struct cell__mcp_answer *answer);

/* learn.c */
/* With the first use of a server: reads what is known. */
void cell__learn_begin(struct cell__tools *tools);
/* A result that the server sent: as JSON, or as text. */
void cell__learn_value(const struct cell__tool_run *run, const json_t *value);
void cell__learn_text(const struct cell__tool_run *run, const char *text, size_t size);
/* The learned type of the result if it is stable, an object or an array; borrowed.  NULL: none. */
const json_t *cell__learned_shape(const struct cell__tool_entry *tool, const struct cell__callable *callable);
/* How it changed last after it was stable; NULL: it did not. */
const char *cell__learned_drift(const struct cell__tool_entry *tool, const struct cell__callable *callable);
/* " -> {id: int}", the type with at most max bytes; nothing where it is not known. */
int cell__learned_add_text(const struct cell__tool_entry *tool, const struct cell__callable *callable, size_t max, struct cell__buf *out);
/* Sets "result" and "drift" in the description of a callable. */
int cell__learned_describe(const struct cell__tool_entry *tool, const struct cell__callable *callable, json_t *out);

/* mcp_wait.c */
/* True: the call waits, and cell__tools_handle() handles it again. tool NULL: the call is about all tools, or args.await. */
bool cell__mcp_park(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call, struct cell__tool_entry *tool);
/* True: the tool's server could not list its tools, and the call has failed with the reason. */
bool cell__mcp_explain(const struct cell__tool_entry *tool, struct cell__call *call);
/* The call after this one (NULL: the first) that waits for the server's list. NULL: there is none. */
const struct cell__call *cell__mcp_next_parked(const struct cell__tool_server *server, const struct cell__call *after);
/* A server is settled. */
void cell__mcp_wake(struct cell__tools *tools);
void cell__mcp_fail_parked(struct cell__tools *tools);

#endif
