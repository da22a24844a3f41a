/*
 * The client's side of one MCP server: connects for the first request, keeps the connection, and makes a new one when it
 * was lost.  Belongs to the loop's thread.
 *
 *     idle ──a request──▶ starting ──era agreed on (start.c)──▶ ready ──lost──▶ idle
 *      ▲  └─soon after a failure─▶ waiting ──▲   │
 *      └────────────── failed, stopped ──────────┘
 *
 *     request:  new ──start()──▶ waiting (for the connection) ──▶ sent ──▶ done()
 *                                    └──────── cancel() ──────────┘ never done()
 *
 * Everything that a server sends is hostile: answers without a request are ignored, floods and messages longer than
 * CELL_RPC_MAX_BYTES end the connection, and no server makes the loop wait.
 *
 * Contract: start() returning an error means done() is never called; else it is called exactly once, not from inside start(),
 * unless the request is cancelled first.
 */
#ifndef CELL_MCP_CLIENT_H
#define CELL_MCP_CLIENT_H

#include <jansson.h>

#include "mcp/client/transport.h"
#include "wire/jsonrpc.h"

/* ---- limits ---- */

#define CELL_MCP_LIMIT_REQUESTS 4096u      /* of one server, waiting or sent */
#define CELL_MCP_LIMIT_SENT 256u           /* sent and not answered; more wait */
#define CELL_MCP_LIMIT_PAGES 64u           /* of a list of tools */
#define CELL_MCP_LIMIT_TOOLS 512u          /* in it */
#define CELL_MCP_LIMIT_ELICITATIONS 32u    /* questions of one server to a person at once */
#define CELL_MCP_LIMIT_IDLE_BYTES (64u * 1024u * 1024u) /* not part of an answer; more is a flood, ... */
#define CELL_MCP_LIMIT_IDLE_MESSAGES 50000u
#define CELL_MCP_FORGIVEN_BYTES (1024u * 1024u)         /* ... of which so much is forgotten in a second */
#define CELL_MCP_FORGIVEN_MESSAGES 1000u
#define CELL_MCP_LIST_TIMEOUT_MS 30000     /* for one page */
#define CELL_MCP_PING_TIMEOUT_MS 10000
#define CELL_MCP_DEFAULT_START_MS 30000    /* from the start of a server to its answer to initialize */
#define CELL_MCP_BACKOFF_MS 250            /* before the third start in a row, then doubled */
#define CELL_MCP_BACKOFF_MAX_MS 30000
#define CELL_MCP_HEALTHY_MS 10000          /* a connection that lived so long was a good one */

#define CELL_MCP_PROBE_MS 3000             /* for the answer to server/discover; then initialize is sent too */
#define CELL_MCP_LIMIT_ROUNDS 10u          /* that one call may ask for input */
#define CELL_MCP_LIMIT_TASK_ID 1024u       /* bytes */
#define CELL_MCP_POLL_MS 1000              /* between two looks at a task, unless the server sets it */
#define CELL_MCP_POLL_MIN_MS 20
#define CELL_MCP_STARTING_MS 5000 /* so often at least a server that starts is reported ... */
#define CELL_MCP_NOTE_MS 200      /* ... and at most so often what it writes */
#define CELL_MCP_POLL_MAX_MS 60000
#define CELL_MCP_TTL_MAX_MS (24 * 3600 * 1000) /* for which a list of tools is kept without asking, whatever the server says */

/* The newest revision with a handshake (older ones are accepted), and the one without. */
#define CELL_MCP_VERSION "2025-11-25"
#define CELL_MCP_MODERN "2026-07-28"
#define CELL_MCP_META "io.modelcontextprotocol/"

#define CELL_RPC_HEADER_MISMATCH (-32020)
#define CELL_RPC_NEEDS_CAPABILITY (-32021)
#define CELL_RPC_VERSION (-32022)

struct cell__mcp_client;
struct cell__mcp_request;
struct cell__mcp_elicitation;
struct cell__mcp_round;

enum cell__mcp_era { CELL_MCP_ANY_ERA, CELL_MCP_LEGACY, CELL_MCP_MODERN_ERA };

struct cell__mcp_failure {
	struct cell_error err;
	const char *tail; /* the last bytes the server wrote to stderr, UTF-8; NULL: none, or not related */
};

struct cell__mcp_client_options {
	struct cell__loop *loop;
	struct cell__supervisor *supervisor;
	int64_t start_timeout_ms;
	/* Called at every start; fills *ret_launch, which the client then finishes. */
	int (*launch)(void *arg, struct cell__mcp_launch *ret_launch, struct cell_error *err);
	/* Exactly one call after each cell__mcp_client_list(), and after every further list of the server: NULL for success. */
	void (*listed)(void *arg, const struct cell__mcp_failure *failure);
	/*
	 * It starts, for so long: the last line that it wrote to stderr since, in printable UTF-8 (`npx -y` downloads first), or NULL.  May be
	 * NULL, as the next ones.
	 */
	void (*starting)(void *arg, int64_t since_us, const char *line);
	/* The last of its processes or connections has ended.  */
	void (*ended)(void *arg);
	/* params of notifications/message */
	void (*log)(void *arg, const json_t *params);
	/*
	 * A server asks a person; params of elicitation/create. Answer with cell__mcp_elicitation_answer(), once, in this call or later.
	 * request: the one that the question belongs to, or NULL if it cannot be determined. NULL: every question is declined.
	 */
	void (*elicit)(void *arg, struct cell__mcp_elicitation *elicitation, struct cell__mcp_request *request, const json_t *params);
	/* At each start: whether to tell the server that a person can answer questions. NULL: yes, if there is elicit(). */
	bool (*elicits)(void *arg);
	void *arg;
};

int cell__mcp_client_create(const struct cell__mcp_client_options *opts, struct cell__mcp_client **ret_client, struct cell_error *err);
/* Requests end without done().  closed() is called in a later iteration of the loop, when the server has ended too. */
void cell__mcp_client_close(struct cell__mcp_client *client, void (*closed)(void *arg), void *arg);
/* Ends the server; requests fail with CELL_E_CLOSED.  The next request starts it again. */
void cell__mcp_client_stop(struct cell__mcp_client *client);
/* Whether there is a process or a connection, even one that is about to end. */
bool cell__mcp_client_lives(const struct cell__mcp_client *client);

/* ---- tools ---- */

/* Connects when it must, and gets the list of tools. */
void cell__mcp_client_list(struct cell__mcp_client *client);
/* The server allows to keep the list only for a time, which is over. */
bool cell__mcp_client_stale(const struct cell__mcp_client *client);
/* An array of tools as the server described them, or NULL when it was never got.  Borrowed. */
json_t *cell__mcp_client_tools(const struct cell__mcp_client *client);
/* The problem of the list ("more than ..."), or NULL. */
const char *cell__mcp_client_list_problem(const struct cell__mcp_client *client);
/* {"name", "version", ...}, or NULL before the first connection. */
json_t *cell__mcp_client_server_info(const struct cell__mcp_client *client);
const char *cell__mcp_client_instructions(const struct cell__mcp_client *client); /* NULL: none */
/* Would a start now have to wait because the last ones failed? */
bool cell__mcp_client_backing_off(const struct cell__mcp_client *client);

/* ---- requests ---- */

struct cell__mcp_answer {
	const struct cell__rpc_message *message; /* a result or an error; NULL: not received, see failure */
	const char *text;                        /* the text it was parsed from */
	size_t size;
	const struct cell__mcp_failure *failure; /* CELL_E_TOOL_TIMEOUT, CELL_E_CLOSED, ...; NULL: see message */
};

/* The caller's memory; zeroed, then filled up to `owner`. */
struct cell__mcp_request {
	const char *method;
	json_t *params;      /* taken over by start() when that succeeds */
	int64_t timeout_ms;  /* from the moment it is sent; -1: no limit */
	void (*done)(struct cell__mcp_request *request, const struct cell__mcp_answer *answer);
	/* params of notifications/progress; NULL: not needed */
	void (*progress)(struct cell__mcp_request *request, const json_t *params);
	const char *traceparent; /* for `_meta`; NULL or "": none */
	void *owner;
	/* the client's own */
	void (*freed)(void *request); /* for its own requests on the heap that end without done(); NULL: none */
	struct cell__mcp_client *client;
	int64_t id;          /* 0: not sent */
	int64_t deadline_us;
	bool own;            /* initialize, ping, tools/list */
	bool again;          /* was sent on a connection that had expired, or with other headers than the server wanted */
	bool parked;         /* waits for answers to the server's questions, or for a task (rounds.c) */
	enum cell__mcp_era era; /* that it is written in; any: the connection's */
	struct cell__mcp_round *round;
	struct cell_error unsent; /* why it could not be written as a message, with id 0 */
	struct cell__mcp_requests *list; /* NULL: over */
	struct cell__mcp_request *prev, *next;
};

int cell__mcp_request_start(struct cell__mcp_client *client, struct cell__mcp_request *request, struct cell_error *err);
/* The server is notified. Has no effect on a finished request. */
void cell__mcp_request_cancel(struct cell__mcp_request *request, const char *reason);

/* action: "accept", "decline", "cancel"; content: an object for accept, taken over; NULL otherwise. */
void cell__mcp_elicitation_answer(struct cell__mcp_elicitation *elicitation, const char *action, json_t *content);
/*
 * gone(arg) tells the owner of the question that its answer is no longer needed: the server withdrew it, its connection is lost, or the
 * call that it belongs to is over. It must be answered nevertheless, which may happen in gone().
 */
void cell__mcp_elicitation_watch(struct cell__mcp_elicitation *elicitation, void (*gone)(void *arg), void *arg);

#endif
