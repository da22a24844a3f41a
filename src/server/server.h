/*
 * The session server, shared by its files.  All of it belongs to the loop's thread.
 *
 *     libmicrohttpd's epoll ──▶ http.c: a request ──▶ auth.c ──▶ route.c ──▶ a handler ──▶ an answer, now or later
 *                                  │                                           │
 *                                  └── suspended while the handler works ◀─────┤
 *                                                                              ├── sessions.c  opens, finds, expires sessions
 *                                                                              ├── jobs.c      cells: jobs and their events
 *                                                                              ├── fusion.c    programs in fresh processes
 *                                                                              ├── spaces.c    operations on a space
 *                                                                              ├── e2b/        E2B's protocol, on the same sessions
 *                                                                              └── mcp.c       clients of the MCP server, which has a
 *                                                                                              front end of its own with these routes alone
 *
 * events.c keeps events for readers of SSE.  One table (table.c) has every route of the session server with its scope, its parameters
 * and its answer, or the operation (calls/table.h) whose arguments and answer it uses.  Dispatch, the checks of bodies and queries, and
 * /openapi.json are derived from it.
 */
#ifndef CELL_SERVER_H
#define CELL_SERVER_H

#include <jansson.h>
#include <microhttpd.h>

#include "calls/table.h"
#include "server/guests.h"
#include "loop/listen.h"
#include "session/fanout.h"
#include "space/space.h"
#include "wire/traceparent.h"

#define CELL_SERVER_MAX_TOKENS 1024u
#define CELL_SERVER_MAX_TOKEN_BYTES 4096u
#define CELL_SERVER_MAX_NAME 64u
#define CELL_SERVER_MAX_WORKSPACE 128u
#define CELL_SERVER_MAX_WORKSPACES 256u   /* open at once */
#define CELL_E2B_DEBUG_PORTS 3u
#define CELL_SERVER_MAX_PARAMS 3u
#define CELL_SERVER_MAX_PACKAGES 256u     /* of one request; each one that is answered at once is a deeper call */
#define CELL_SERVER_MAX_RUNS_KEPT 16u     /* ended runs of one session whose events can still be read */
#define CELL_SERVER_MAX_READERS 16u       /* of one run */
#define CELL_SERVER_ADDRESSES 1024u       /* whose failures are counted */
#define CELL_SERVER_ENDED 4096u           /* ids of ended sessions that are distinguished from unknown ones */
#define CELL_SERVER_BUCKETS 4096u
#define CELL_SERVER_CODE_LINE 120u        /* bytes of a cell's first line in lists and logs */
#define CELL_SERVER_CLIENT 64u            /* a client's address as text */
#define CELL_SERVER_LEVEL 24u             /* a level of confinement as a word */
#define CELL_SERVER_SECRET 64u            /* hex digits */
#define CELL_SERVER_MAX_TASKS 1024u       /* running and kept ... */
#define CELL_SERVER_TOKEN_TASKS 64u       /* ... and of one token */
#define CELL_SERVER_MAX_TRANSFERS 256u    /* of files, at once ... */
#define CELL_SERVER_TOKEN_TRANSFERS 32u   /* ... and of one token */

struct cell__account;
struct cell__served_task;
struct cell__session_log;
struct cell__history;
struct cell__otlp;
struct cell__trace;
struct cell__served;
struct cell__job;
struct cell__job_form;
struct cell__e2b_context;
struct cell__request;
struct cell__peer_link;
struct cell__forward;
struct cell__gather;
struct cell__workspace;
struct cell__oauth_resource;
struct cell__oauth_wait;
struct cell__login;

/* ---- routes (route.c, table.c) ---- */

enum cell__scope {
	CELL_SCOPE_OPEN = 0,
	CELL_SCOPE_READ = 1,
	CELL_SCOPE_RUN = 2,
	CELL_SCOPE_ADMIN = 4,
	CELL_SCOPE_APPROVE = 8,
	CELL_SCOPE_METRICS = 16,
	CELL_SCOPE_ANY = 31 /* whatever the token may do */
};

/* Converts the answer of an operation: its reference is borrowed, and so are the bytes. */
typedef void (*cell__ask_fn)(struct cell__request *request, json_t *result, const void *raw, size_t raw_size);

struct cell__route {
	const char *method;
	const char *path;    /* "/v1/sessions/{session}"; "{name...}" takes the rest of the path with its slashes */
	unsigned scope;      /* one of enum cell__scope */
	void (*handle)(struct cell__request *request);
	/*
	 * An operation: its arguments come from the path, and the others from the query (GET, or a body of bytes) or the body; `takes` are
	 * changes to them (calls/schema.h), `sets` are arguments that the route sets itself, a JSON object. then: makes the answer; NULL:
	 * the operation's.
	 */
	const struct cell__operation *operation;
	const char *takes, *sets;
	cell__ask_fn then;
	const char *body;    /* without an operation: the schema of an object; NULL: no body is read */
	const char *query;   /* the same of its parameters */
	bool raw;            /* the body is bytes, not JSON */
	bool streamed;       /* such a body is handed over as it comes (cell__upload_take()), and is not kept */
	bool optional_body;
	bool session_header; /* X-Session-ID is used */
	bool basic;          /* also takes a token as the password of Basic credentials, for clients that know no other place */
	const char *gather;  /* with workers: the member whose lists in the answers of all are joined; "": Prometheus' text, added up */
	void (*joined)(struct cell__request *request,
		       json_t *list); /* answers with such a list, taken over; NULL: an object with the member */
	bool former;         /* a former name of another route */
	bool lasting;        /* its client may ask for a task (tasks.c); its answers are JSON */
	bool unlogged;       /* asked every few seconds by machines; its state is logged when it changes */
	bool is_page;        /* for people: its failures are pages too */
	unsigned status;     /* of success */
	const char *answer;  /* the name of a schema in table.c; NULL: the operation's, or no body; "bytes"; "events"; "text"; "html" */
	const char *summary; /* NULL: the operation's */
};
#define CELL_SERVER_MAX_ROUTES 128u
extern const struct cell__route cell__routes[];

/* Schemas of answers, name and JSON text; ends with NULL. */
struct cell__schema {
	const char *name, *text;
};
extern const struct cell__schema cell__schemas[];

/* The position of a parameter in the path, still encoded. */
struct cell__match {
	const struct cell__route *route; /* NULL: no such path, or no such method there */
	const char *params[CELL_SERVER_MAX_PARAMS];
	size_t sizes[CELL_SERVER_MAX_PARAMS];
	char allow[64];                  /* methods of the path, when only the method is wrong */
};
/* The routes end with one without a path.  Pure. */
void cell__route_find(const struct cell__route *routes, const char *method, const char *path, struct cell__match *ret_match);
/* Makes the schemas of all routes.  Any thread; before the first of the following. */
int cell__routes_prepare(struct cell_error *err);
/* The schemas of its body and its query; NULL: not used. */
const json_t *cell__route_body(const struct cell__route *route);
const json_t *cell__route_query(const struct cell__route *route);
/* The problems of an object in FastAPI's form: a new array, empty if there are none; NULL: out of memory.  Pure. */
json_t *cell__fields_check(const json_t *schema, json_t *object, const char *where);
/* The document, as text; NULL: out of memory. */
char *cell__openapi(void);

/* ---- tokens and scopes (auth.c) ---- */

/* Of a token; -1: no limit. */
struct cell__quotas {
	int64_t sessions;   /* open at once */
	int64_t runs;       /* running and waiting at once */
	int64_t cpu_s;      /* CPU seconds in an hour */
	int64_t disk_bytes; /* in the folders of its sessions */
};
#define CELL_QUOTAS_NONE { -1, -1, -1, -1 }

struct cell__token {
	char name[CELL_SERVER_MAX_NAME + 1];
	unsigned char hash[32];
	unsigned scopes;
	struct cell__quotas quotas;
	char workspace[CELL_SERVER_MAX_WORKSPACE + 1]; /* "": not bound to one */
	bool all_workspaces; /* also workspaces that other tokens are bound to */
	bool is_short;
};

struct cell__tokens {
	struct cell__token *list;
	size_t count;
};

/* Reads the file; may wait. */
int cell__tokens_load(const char *token, const char *token_file, struct cell__tokens *ret_tokens, struct cell_error *err);
/* The same from bytes.  Pure. */
int cell__tokens_parse(const char *file, const char *text, size_t size, struct cell__tokens *ret_tokens, struct cell_error *err);
void cell__tokens_finish(struct cell__tokens *tokens);
/* For the MCP server, which cannot keep quotas. */
int cell__tokens_refuse_quotas(const struct cell__tokens *tokens, struct cell_error *err);
/* Says so in the log where others can reach the server and a token is short. */
void cell__tokens_warn(struct cell_server *server);
bool cell__workspace_id_ok(const char *id);
/*
 * Whether this token may use this workspace ("": none). A token that is bound to a workspace may use only that one. Other tokens may use
 * every workspace that no token is bound to; with "*" or the scope admin also the bound ones.
 */
bool cell__token_may_enter(const struct cell__tokens *tokens, const struct cell__token *who, const char *workspace);

struct cell__loader;
struct cell__yaml;
/* The scopes of a list of words, and the quotas of a mapping (NULL: unchanged).  Pure. */
unsigned cell__scopes_read(struct cell__loader *loader, const struct cell__yaml *list);
void cell__quotas_read(struct cell__loader *loader, const struct cell__yaml *map, struct cell__quotas *quotas);

struct cell__address_count {
	unsigned char address[16];
	int64_t at_us;
	double failures;
};

/* The token of this name, or of anybody where none is asked for; false: there is none. */
bool cell__token_by_name(const struct cell_server *server, const char *name, struct cell__token *ret_token);
/* Whether an address has failed so often that it is refused without looking. */
bool cell__auth_is_locked(struct cell_server *server, const struct sockaddr *from);
/* Counts attempts of an address: 0 for a good one, or the status to refuse with. */
unsigned cell__auth_count(struct cell_server *server, const struct sockaddr *from, bool is_good, bool is_short, const char **ret_words,
			  int *ret_retry_s);
/* The token of a request that another worker forwarded, which has counted its client's failures; false: there is no such token. */
bool cell__auth_again(const struct cell_server *server, const char *header, struct cell__token *ret_token);
/* 0, or the status to refuse with; *ret_token is a copy. */
unsigned cell__auth_check(struct cell_server *server, const char *header, const struct sockaddr *from, struct cell__token *ret_token,
			  const char **ret_words, int *ret_retry_s);

/* ---- requests (http.c) ---- */

/* ASKING: its head waits for an answer about its token (oauth.h). */
enum cell__request_state { CELL_REQUEST_READING, CELL_REQUEST_ASKING, CELL_REQUEST_WORKING, CELL_REQUEST_ANSWERED };

/* Of the head of a request that goes on without its connection. */
struct cell__detached {
	char *session, *traceparent; /* or NULL */
	char client[CELL_SERVER_CLIENT];
};

struct cell__request {
	struct cell_server *server;
	struct MHD_Connection *connection;
	struct cell__match match;
	const struct cell__route *route;
	bool woken; /* wake.c: its session was looked for among those that are saved */
	bool sought; /* peers.c: its session was looked for among those of other servers ... */
	bool hinted;   /* it was found some time ago */
	bool has_peer; /* ... and is that of this one, to which a body is passed on as it comes */
	bool unfound;  /* ... or the storage did not answer */
	bool held;     /* directory.c: its answer is ready, and leaves when others can find what it tells of */
	uint64_t announced; /* when so many changes are noted */
	struct cell__request *held_next;
	bool moving; /* it is refused because its session is on its way to another server */
	struct cell__address peer;
	char subject[33]; /* MCP: the session that its body is about, if it is not here */
	struct cell__request *wake_next; /* that waits for the same session */
	struct cell__token who;
	char *params[CELL_SERVER_MAX_PARAMS]; /* decoded */
	char id[65];
	char method[16];
	char *path;              /* for the log */
	int64_t begun_us;
	enum cell__request_state state;
	bool suspended, counted;
	bool ends_session;       /* with the answer: it was opened for this request alone */
	bool crosses;            /* a page of an allowed origin made it: the browser may show it the answer */
	bool is_last;            /* of its connection: a proxy might see its end elsewhere */
	bool is_e2b;             /* a client of E2B's made it: routes, tokens and errors are E2B's (e2b/e2b.h) */
	bool thrown_away;        /* its body is too large, which has been answered */
	bool inner;              /* another worker forwarded it */
	bool part;               /* ... because it asks all workers */
	struct cell__oauth_wait *wait; /* for an answer about its token; or NULL */
	const char *refused;     /* with 401 or 403: the error of OAuth; NULL: no token came */
	unsigned needs;          /* the scope of its route */
	struct cell__forward *forward; /* it is for another worker; or NULL */
	struct cell__gather *gather;   /* it asks all workers; or NULL */
	size_t thrown_bytes;
	struct cell__buf body;
	uint64_t taken_bytes;    /* of a streamed body */
	struct cell__file_work *files; /* a transfer or another operation on files; or NULL */
	char *refusal;           /* streamed: the words of the error that is the answer; or NULL */
	int refusal_code;
	json_t *json;            /* the body */
	json_t *query;           /* an object of strings and numbers */
	/* the answer */
	unsigned status;
	struct MHD_Response *response;
	/* tasks.c; its client waits for no answer, and there is no connection */
	struct cell__detached *detached;
	struct cell__served_task *task;
	bool cancelled; /* it was asked to end: a handler that cannot be interrupted looks here when it can */
	void (*cancel)(
		struct cell__request *request); /* ends the work that is under way, which then answers; NULL: nothing can end it now */
	void *cancel_arg; /* cancel()'s own */
	/* the handler's own */
	struct cell__served *served;
	struct cell__served *beside; /* a session that is opened works in the folder of this one, which is held; or NULL */
	char **env;              /* of a session that is opened, instead of the server's; one block; or NULL */
	const char *network;     /* the same; or NULL; borrowed, stays until the answer */
	const char *workspace_path; /* of such a session, as its option */
	bool tables;             /* the same, and saved_images */
	const struct cell__job_form *job_form; /* of the events of a cell that is started; NULL: server-sent events */
	char sandbox[33];        /* of E2B's clients, that the request is for; "": none */
	json_t *kept;            /* what a handler of e2b/ needs later; or NULL */
	const json_t *marks;     /* of cell__file_begin(); borrowed, stays until the answer */
	bool in_tmp, unzips;     /* the same */
	struct cell__workspace *workspace;
	bool removes;            /* packages are removed, not added */
	bool together; /* the packages of the request are installed in one operation */
	void (*invalid)(struct cell__request *request); /* an operation's arguments are bad; NULL: that is the answer */
};

struct cell__connection {
	struct MHD_Connection *connection;
	struct cell__request *request;
	int64_t since_us;  /* when its current activity began */
	bool in_body, rested;
	bool inner;        /* of another worker */
	size_t url_size;   /* of the request that comes in, with its query */
	char *url;         /* the same, with workers or other servers only */
	struct cell__guest guest;
	struct cell__connection *next, **at;
};

/* head.c: NULL, or why the request is not read any further.  chunked: with a Transfer-Encoding. */
const char *cell__head_wrong(struct MHD_Connection *connection, const char *method, const char *url, size_t url_size, const char *version,
			     bool *ret_chunked);

const char *cell__request_header(const struct cell__request *request, const char *name);
/* The address that the request came from: "192.0.2.1", "::1", "unix". */
/* The address of its connection. */
const struct sockaddr *cell__request_address(const struct cell__request *request);
void cell__request_client(const struct cell__request *request, char out[static CELL_SERVER_CLIENT]);
/* The answer, exactly one; text is taken over, NULL: out of memory. */
void cell__answer_text(struct cell__request *request, unsigned status, char *text);
/* With the value of a cell of ours, when its result comes; what: the value, for an error. */
void cell__answer_value(struct cell__request *request, const struct cell_event *event, const char *what);
void cell__answer_json(struct cell__request *request, unsigned status, json_t *value);
void cell__answer_none(struct cell__request *request, unsigned status);
void cell__answer_bytes(struct cell__request *request, const char *type, void *bytes, size_t size);
/* Takes the bytes over; type may be NULL.  NULL: out of memory. */
struct MHD_Response *cell__http_response(void *bytes, size_t size, const char *type);
void cell__answer_response(struct cell__request *request, unsigned status, struct MHD_Response *response);
/* {"detail", "code"}; code: CELL_E_*. */
void cell__answer_fail(struct cell__request *request, unsigned status, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void cell__answer_busy(struct cell__request *request, int retry_s, const char *words);
/* The machine lacks something for now, descriptors for example: 503. */
void cell__answer_shortage(struct cell__request *request, const char *words);
/* Its session is on its way to another server: 503. */
void cell__answer_moving(struct cell__request *request, const char *words);
/* The headers with which a browser lets a page of an allowed origin see the answer. */
void cell__answer_crosses(const struct cell__request *request, struct MHD_Response *response);
/* Handles a request whose body is here. */
void cell__request_dispatch(struct cell__request *request);
/* As it was asked for, with workers or other servers. */
const char *cell__request_url(const struct cell__request *request);
void cell__answer_error(struct cell__request *request, const struct cell_error *err);

int cell__http_open(struct cell_server *server, struct cell_error *err);
/* No new connections. */
void cell__http_quiesce(struct cell_server *server);
void cell__http_shut(struct cell_server *server);
/* All clients go. */
void cell__http_hang_up(struct cell_server *server);
/* Once a second: slow clients go. */
void cell__http_sweep(struct cell_server *server, int64_t now_us);
/* The loop has another job at once. */
void cell__http_soon(struct cell_server *server);
/* libmicrohttpd has something to do. */
void cell__http_kick(struct cell_server *server);

/* The connection is suspended until cell__request_resume(). */
void cell__request_suspend(struct cell__request *request);
void cell__request_resume(struct cell__request *request);

/* A connection that was made elsewhere: of a client, or of another worker.  Takes the descriptor over. */
void cell__http_add(struct cell_server *server, int fd, const struct sockaddr *from, socklen_t from_size, bool inner);

/* ---- files of sessions (files.c) ---- */

enum cell__file_verb {
	CELL_FILE_GET,
	CELL_FILE_DESCRIBE,
	CELL_FILE_PACK,
	CELL_FILE_PUT,
	CELL_FILE_UNPACK,
	CELL_FILE_FOLDER,
	CELL_FILE_REMOVE
};
/*
 * An operation on files of request->served.  path: as cell__files_path() answers.  then(): answers when it has succeeded, with what was
 * found out (borrowed; NULL for a file that was put); NULL: as /v1 does.  The bytes of a file that is read are the answer in any case.
 * request->marks: metadata of a file that is put; in_tmp: the path is in the sandbox's own /tmp; unzips: the body is compressed (gzip), the file
 * is not.
 */
void cell__file_begin(struct cell__request *request, enum cell__file_verb verb, const char *path, unsigned mode, bool recursive,
		      void (*then)(struct cell__request *request, json_t *found));

/*
 * Takes bytes of a streamed body and returns how many are left; size 0: its end.  Afterwards the request is answered, or waits for the
 * upload (cell__upload_is_busy()), or all bytes were taken.
 */
size_t cell__upload_take(struct cell__request *request, const char *bytes, size_t size);
bool cell__upload_is_busy(const struct cell__request *request);
/* The request ends. */
void cell__files_forget(struct cell__request *request);
/* The server stops: transfers with other servers end soon. */
void cell__files_cancel(struct cell_server *server);
/* Ends transfers of a /tmp whose sandbox has ended. */
void cell__files_sweep(struct cell_server *server);
/* The one range of bytes that a Range header asks for.  0: none that is supported, so all of it; 1; -1: beyond the end.  Pure. */
int cell__range_parse(const char *header, uint64_t size, uint64_t *ret_offset, uint64_t *ret_size);

/* ---- TLS (tls.c) ---- */

struct cell__tls;
/* PEM.  Any thread. */
int cell__tls_load(const char *cert, const char *key, struct cell__tls **ret_tls, struct cell_error *err);
/* With all that were retired before it; NULL is allowed. */
void cell__tls_destroy(struct cell__tls *tls);
/* New handshakes have this one. */
void cell__tls_replace(struct cell_server *server, struct cell__tls *tls);
/* Called once a second: frees those that are no longer needed. */
void cell__tls_sweep(struct cell_server *server, int64_t now_us);
/* MHD_run(), where handshakes are made. */
void cell__tls_run(struct cell_server *server);
/* For MHD_OPTION_HTTPS_CERT_CALLBACK. */
void *cell__tls_giver(void);
/* As send(). */
ssize_t cell__tls_send(void *session, const void *bytes, size_t size);

/* ---- spaces (spaces.c) ---- */

struct cell__workspace {
	struct cell_server *server;
	char id[CELL_SERVER_MAX_WORKSPACE + 1]; /* "": none */
	struct cell_space *space; /* NULL: being opened */
	unsigned users; /* sessions and requests */
	int64_t used_us;
	struct cell__waiting_space *waiting;
	struct cell_error err;
	bool failed;
	struct cell__workspace *next;
};

/* ready() with the workspace, held for the caller, or NULL and why; perhaps from inside. */
typedef void (*cell__workspace_fn)(void *arg, struct cell__workspace *workspace, const struct cell_error *err);
void cell__workspace_get(struct cell_server *server, const char *id, cell__workspace_fn ready, void *arg);
void cell__workspace_put(struct cell__workspace *workspace);
/* done(arg) when all of them are closed. */
void cell__workspaces_close(struct cell_server *server, void (*done)(void *arg), void *arg);

/*
 * One operation on the space of the request; without then() the result is the answer.  A failure is answered.  Takes args over; raw
 * stays until the answer.
 */
void cell__ask(struct cell__request *request, enum cell__op op, json_t *args, const void *raw, size_t raw_size, cell__ask_fn then);
/* tools.call {name, args} of request->served, as if its code called it; the result is the answer. Takes args over. */
void cell__ask_session(struct cell__request *request, json_t *args, cell__ask_fn then);
/* The arguments of the route's operation that the request brings, checked already, with defaults. */
json_t *cell__request_args(const struct cell__request *request);
/* The space that X-Session-ID or the token's workspace names, then fn(request); a failure is answered. */
void cell__with_space(struct cell__request *request, void (*fn)(struct cell__request *request));

/* ---- what sessions consume (sample.c) ---- */

struct cell__consumed {
	bool known; /* its processes could be read */
	int64_t pid; /* of its kernel; 0: none on this machine */
	int64_t memory_bytes; /* resident, of the kernel and its children; pages shared with others count in each */
	double cpu_s; /* of the present kernel and its children */
	int64_t disk_bytes; /* of its folder; -1: not measured */
};

/*
 * Measures all sessions on the pool, then calls then(request); requests that come in the meantime share the measurement.  NULL request:
 * only measures.
 */
void cell__sample(struct cell_server *server, struct cell__request *request, void (*then)(struct cell__request *request));
/* Once a second: measures where a quota or a limit depends on it. */
void cell__sample_sweep(struct cell_server *server, int64_t now_us);
struct cell__sample_job;
struct cell__sample_waiter;

/* Of this process. */
struct cell__own_use {
	int64_t memory_bytes, open_fds, max_fds;
	double cpu_s;
};

struct cell__sampling {
	struct cell__sample_job *job; /* under way */
	struct cell__sample_waiter *waiting; /* requests */
	int64_t at_us; /* the last one's end */
	struct cell__own_use own;
};

/* The client of a request, for calls and for the audit log (spaces.c). */
struct cell__principal cell__request_principal(const struct cell__request *request);

/* ---- the account of a token (accounts.c) ---- */

/* Now. */
struct cell__account_use {
	int64_t sessions, runs;
	int64_t child_runs; /* cells that its code runs in children */
	int64_t disk_bytes;
	int64_t transfers; /* of files */
};

struct cell__account_cpu {
	double cpu_s; /* that count now: they are forgiven within an hour */
	int64_t at_us;
};

/* Lives as long as the server: a token that was replaced under its name goes on with it. */
struct cell__account {
	char name[CELL_SERVER_MAX_NAME + 1];
	struct cell__quotas quotas; /* as its token has them now */
	struct cell__account_use *use; /* of this server */
	struct cell__account_cpu *cpu; /* of all workers */
	struct cell__account_share *share; /* where they are, in the memory of the workers; NULL: without workers, below */
	struct cell__account_use own_use;
	struct cell__account_cpu own_cpu;
	struct cell__account *next;
};

/* The account of a token's name; NULL: out of memory. */
struct cell__account *cell__account_get(struct cell_server *server, const struct cell__token *token);
/* Counts a cell that code runs in a child; -1: there may be no more. */
int cell__account_run_child(struct cell_server *server, struct cell__account *account, struct cell_error *err);
/* Counts a session that is opened; -1: the server or the token has as many as it may have. */
int cell__account_take_session(struct cell_server *server, struct cell__account *account, struct cell_error *err);
void cell__account_give_session(struct cell_server *server, struct cell__account *account);
/* False: the token may not start another cell, and the request was answered. */
bool cell__account_may_run(struct cell__request *request, struct cell__account *account);
/* The same for uploads, where the disk alone counts. */
bool cell__account_may_store(struct cell__request *request, struct cell__account *account);
/* Bytes were written to the folder of a session.  They count until the next measurement; -1: that was too much. */
int cell__account_stored(struct cell_server *server, struct cell__account *account, int64_t bytes, struct cell_error *err);
/* All sessions were measured: cells whose owner has used up CPU time or disk are stopped. */
void cell__accounts_measured(struct cell_server *server);
void cell__accounts_finish(struct cell_server *server);

/* ---- the log of a session (session_log.c) ---- */

/* NULL: out of memory.  NULL is allowed for all of the following. */
struct cell__session_log *cell__session_log_create(struct cell_server *server);
void cell__session_log_end(struct cell__session_log *log);
struct cell__events *cell__session_log_events(struct cell__session_log *log);
/* Takes over news. */
void cell__session_log_branch(struct cell__session_log *log, json_t *news);
void cell__session_log_begin(struct cell__session_log *log, uint64_t run_id, const char *line);
void cell__session_log_chunk(struct cell__session_log *log, uint64_t run_id, const struct cell_event *event);
/* result NULL: it did not run. */
void cell__session_log_ended(struct cell__session_log *log, uint64_t run_id, const struct cell_result *result);
/* The first line of code, as it is; free() it.  NULL: out of memory. */
char *cell__code_line(const char *code, size_t size);
/* Such a line as a JSON string, redacted and cut. */
int cell__add_code_line(const struct cell_server *server, const char *line, struct cell__buf *out);

/* ---- events as JSON (event_json.c) ---- */

/* "text":... or "base64":... */
int cell__add_bytes(struct cell__buf *out, const char *bytes, size_t size);
/* [{"type", "text" | "base64"}] */
int cell__add_parts(struct cell__buf *out, const struct cell_mime_part *parts, size_t n);
/* An object, and its type; NULL: clients do not get such events, or out of memory. */
const char *cell__event_json(const struct cell_event *event, struct cell__buf *out);

/* ---- the events of a session, for the console (history.c) ---- */

/* NULL: not asked for, or out of memory.  NULL is allowed for all of the following. */
struct cell__history *cell__history_create(struct cell_server *server);
void cell__history_end(struct cell__history *history);
struct cell__events *cell__history_events(struct cell__history *history);
void cell__history_begin(struct cell__history *history, uint64_t run_id, const char *code, size_t size);
void cell__history_chunk(struct cell__history *history, uint64_t run_id, const struct cell_event *event);
/* An event of the run, as cell__event_json() made it. */
void cell__history_add(struct cell__history *history, uint64_t run_id, const char *type, const struct cell__buf *event);
/* result NULL: it did not run, and err has the reason. */
void cell__history_ended(struct cell__history *history, uint64_t run_id, const struct cell_result *result, const struct cell_error *err);
/* Takes over news. */
void cell__history_note(struct cell__history *history, const char *type, json_t *news);

/* ---- the console (console.c) ---- */

bool cell__console_is_built(void);
/*
 * Whether the request comes with the console's cookie.  *ret_status: 0, with the client in request->who, or the status to refuse it with.
 */
bool cell__console_auth(struct cell__request *request, unsigned *ret_status, const char **ret_words);

/* ---- sessions (sessions.c) ---- */

/* Of a session and its forks. */
struct cell__session_folder {
	unsigned users;
	char *path;
};

/* ---- spans of OpenTelemetry (trace.c) ---- */

/* Where spans go, and what they say. */
struct cell__tracing {
	struct cell__otlp *otlp; /* NULL: nothing is traced */
	bool code; /* the text of cells, not only its hash */
	const char *executor;
};

/* Whose cell it is. */
struct cell__trace_place {
	struct cell__tracing *tracing;
	const char *session, *owner;
	struct cell__traceparent *link; /* becomes a link of the cell, and is cleared; span "": none */
	struct cell__traceparent *last; /* becomes the cell */
};

/* NULL: this run is not traced.  NULL is allowed for all of the following. */
/* traceparent: as the client gave it; or NULL. */
struct cell__trace *cell__trace_begin(const struct cell__tracing *tracing, const char *traceparent, const char *code, size_t size);
/* What the calls of the run pass on: its cell's span, or without one the client's; false: nothing. */
bool cell__trace_parent(const struct cell__trace *trace, const char *traceparent, char ret_parent[static CELL_TRACEPARENT_SIZE]);
void cell__trace_started(struct cell__trace *trace);
void cell__trace_event(struct cell__tracing *tracing, struct cell__trace *trace, const struct cell_event *event);
/* result NULL: it did not run. */
void cell__trace_ended(const struct cell__trace_place *place, struct cell__trace *trace, const struct cell_result *result);
void cell__trace_destroy(struct cell__trace *trace);
/* The request has opened a session, or not: err is the reason. */
void cell__trace_opened(const struct cell__request *request, const struct cell__served *served, const struct cell_error *err);
/* Once a second: metrics are sent now and then. */
void cell__trace_sweep(struct cell_server *server, int64_t now_us);
/* Cells of the MCP server's clients become spans too, until unfollow. */
void cell__trace_follow(struct cell__tracing *tracing, struct cell_mcp_server *mcp);
void cell__trace_unfollow(struct cell_mcp_server *mcp);

struct cell__served {
	struct cell_server *server;
	struct cell_session *session; /* NULL: being opened or closed */
	char id[33];
	char owner[CELL_SERVER_MAX_NAME + 1];
	char client[CELL_SERVER_CLIENT]; /* that opened it */
	struct cell__account *account; /* of its owner */
	struct cell__session_log *log; /* NULL: out of memory */
	struct cell__history *history; /* NULL: not kept, or out of memory */
	struct cell__traceparent last, link; /* its last cell; the last cell of its source, until its own first one */
	char *receipt; /* of the last cell, if the history is kept; or NULL */
	char level[CELL_SERVER_LEVEL]; /* the receipt's; "": not known */
	struct cell__consumed consumed, measured; /* the last measurement, and the next one as it comes */
	double cpu_since_s; /* between the last two */
	int64_t counted_pid; /* of its account: this kernel's CPU time, up to ... */
	double counted_cpu_s;
	struct cell__workspace *workspace;
	struct cell__session_folder *folder; /* or NULL */
	int64_t created_us, used_us;
	int64_t created_s; /* of the calendar */
	unsigned requests; /* that hold it */
	unsigned jobs; /* waiting and running */
	uint64_t next_job;
	uint64_t cells;
	struct cell_session **racing; /* it runs in a race, which has it here; or NULL */
	struct cell__fanout *batch; /* it runs in this batch or race, as ... */
	size_t batch_run;
	struct cell__job *running;
	struct cell__job *kept; /* newest first: running, waiting and ended */
	bool closing, listed;
	uint64_t announced; /* when so many changes are noted (directory.c), others can find the children that its code has made */
	bool asleep; /* it was saved because nobody used it; its next use wakes it */
	struct cell__request *hibernates; /* is answered when it is closed; or NULL */
	bool sleeping; /* that save is under way */
	bool resting; /* the server stops, and it is busy: other servers bring no more cells, so that it can go to them */
	struct cell__e2b_context *context; /* it belongs to a sandbox of E2B's clients, which ends it; or NULL */
	bool is_short; /* made by /execute without an id, and not named since: execute_idle_ms applies */
	struct cell__served *bucket_next;
	struct cell__served *next, **at; /* all of them */
};

typedef void (*cell__forked_fn)(struct cell__request *request, struct cell__served **forks, size_t n);
/* Forks of the request's session, which belong to the same client: forked() with all of them, or it has answered. */
void cell__served_fork(struct cell__request *request, size_t n, const char *point, bool drop, cell__forked_fn forked);
/* A fork of a session, which belongs to the same client, for nobody's request; NULL: err has the reason. */
typedef void (*cell__branched_fn)(void *arg, struct cell__served *served, const struct cell_error *err);
int cell__served_branch(struct cell__served *source, bool drop, cell__branched_fn branched, void *arg, struct cell_error *err);
/* opened() with the session, held for the request, or it has answered. */
void cell__served_open(struct cell__request *request, const char *workspace_id, void (*opened)(struct cell__request *request));
/*
 * The session of this id, if it is this client's, as request->served; false: it was answered. plain: like the routes without /v1, with 400
 * for every error.
 */
bool cell__served_find(struct cell__request *request, const char *id, bool plain);
/* Its session has been saved and has no kernel; the caller has one of its `requests`. */
void cell__served_sleeps(struct cell__served *served);

/* ---- wake.c ---- */

struct cell__waking;
/* Calls the handler of the request's route.  If it names a session that is saved and not open here, that is woken first. */
void cell__request_handle(struct cell__request *request);
const char *cell__waking_id(const struct cell__waking *waking);
/* The session is open, or its request was answered with the reason. */
void cell__waking_ended(struct cell__waking *waking);
/* opened() with the session; false: it was answered, and the waking has not ended. */
bool cell__served_open_saved(struct cell__request *request, const char *workspace_id, struct cell__waking *waking,
			     void (*opened)(struct cell__request *request));

void cell__served_release(struct cell__request *request);
/* One of its `requests` has ended. */
void cell__served_let_go(struct cell__served *served);
/* Whosever it is; NULL: there is none. */
struct cell__served *cell__served_by_id(const struct cell_server *server, const char *id);
/* Starts closing the session; it is no longer found.  `expired` selects the later error message. */
void cell__served_end(struct cell__served *served);
void cell__served_sweep(struct cell_server *server, int64_t now_us);
/* Sessions that are saved, and that nobody has used for so long, go to sleep, some at a time.  False: there are none any more. */
bool cell__served_rest(struct cell_server *server, int64_t idle_us);
/* Whether new sessions are still there when the server has ended. */
bool cell__served_can_move(const struct cell_server *server);
/* Whether this server can save it. */
int cell__served_check_save(const struct cell__served *served, struct cell_error *err);
json_t *cell__served_describe(const struct cell__served *served);
void cell__served_set_receipt(struct cell__served *served, const char *receipt);

/* ---- events (events.c) ---- */

struct cell__events_reader;

enum cell__events_form {
	CELL_EVENTS_SSE,
	CELL_EVENTS_LINES, /* a line of JSON each; types are not sent */
	CELL_EVENTS_ENVELOPES, /* messages of Connect streams (wire/connect.h); the type "end" marks the last one */
};

struct cell__events_item {
	size_t size;
	struct cell__events_item *next;
	char text[]; /* as it is sent */
};

/* Embedded in its owner. */
struct cell__events {
	struct cell_server *server;
	char prefix[24]; /* of the events' ids, before their numbers */
	struct cell__events_item *first, *last;
	uint64_t first_number, next_number; /* they count from 1 */
	size_t bytes;
	struct cell__events_reader *readers;
	unsigned n_readers;
	int64_t left_us; /* when the last reader went; 0: there is one, or never was */
	bool ended; /* readers leave once they have received everything */
	bool kept; /* its bytes count towards those of the server's ended runs */
	bool awaited; /* a reader was here and may return: events it has not received are kept */
	bool patient; /* ... for as long as the log */
	bool nameless; /* its events have no ids: nobody can resume it */
	bool broken; /* its end is an error: the connection of a reader breaks */
	enum cell__events_form form;
	const char *alive; /* another form than SSE: JSON that tells a reader nothing */
	uint64_t wanted_bytes; /* by it: its position among all events ever added */
	uint64_t dropped_bytes; /* of dropped events */
	size_t max_bytes; /* of all events; slow readers lose the oldest.  0: readers never lose any */
	uint64_t behind_bytes; /* bytes that the slowest reader, or the awaited one, has not received */
	/* behind_bytes may have changed; NULL: no callback */
	void (*moved)(struct cell__events *events);
	/* a reader has left */
	void (*unref)(struct cell__events *events);
};

void cell__events_init(struct cell__events *events, struct cell_server *server);
/* The last reader has left. */
void cell__events_finish(struct cell__events *events);
/* NULL: out of memory, and nothing was added. */
struct cell__events_item *cell__events_add(struct cell__events *events, const char *type, const char *json, size_t size);
/* The oldest; false: there is none, and the next event counts as added and dropped.  Nobody reads. */
bool cell__events_drop(struct cell__events *events);
/* The newest reader first gets an event without data whose id is before all others: with it a stream can be resumed that has sent nothing. */
void cell__events_prime(struct cell__events *events);
void cell__events_end(struct cell__events *events);
/* Starts or stops counting its bytes as those of an ended run. */
void cell__events_keep(struct cell__events *events);
void cell__events_forget(struct cell__events *events);
/* Readers leave once they have received all present events. */
void cell__events_release(struct cell__events *events);
/* The same for the reader that came last. */
void cell__events_release_newest(struct cell__events *events);
/* All events go, and readers at once, without an end. */
void cell__events_cut(struct cell__events *events);
/* Once a second. */
void cell__events_sweep(struct cell__events *events, int64_t now_us);
/*
 * A response with the events after `after`; its reader holds a reference to the owner, which `unref` gives back.  NULL: the
 * request was answered.
 */
struct MHD_Response *cell__events_read(struct cell__request *request, struct cell__events *events, uint64_t after, bool tell_gaps);

/* ---- commands (commands.c) ---- */

struct cell__command_stream;
/* Once a second. */
void cell__command_streams_sweep(struct cell_server *server, int64_t now_us);
/* spaces.c: a client's requests have the trust of the code it may run. */
struct cell__principal cell__request_principal(const struct cell__request *request);

/* ---- runs (jobs.c) ---- */

enum cell__job_state { CELL_JOB_WAITING, CELL_JOB_RUNNING, CELL_JOB_ENDED };

struct cell__job {
	struct cell__events events; /* first */
	struct cell__served *served; /* NULL: its session has ended */
	struct cell_server *server;
	uint64_t number;
	enum cell__job_state state;
	char *code;
	size_t code_size;
	char *line; /* its first, not redacted; or NULL */
	int64_t begun_us, started_us;
	int64_t timeout_ms;
	uint64_t run_id;
	struct cell__state_id state_id; /* that its client chose for the session's state after it; or unknown */
	struct cell__trace *trace; /* or NULL */
	char traceparent[CELL_TRACEPARENT_SIZE]; /* of its calls; "": none */
	struct cell__request *waiter; /* that is answered with the result; or NULL */
	const struct cell__job_form *form; /* NULL: server-sent events */
	void (*answer)(struct cell__request *request, struct cell_result *result);
	bool streams; /* events are kept */
	bool held;
	bool stopped; /* because of a quota */
	const char *result; /* JSON in the last event, when it ended */
	size_t result_size;
	struct cell__job *queue_next;
	struct cell__job *kept_next; /* of the session */
	struct cell__job *ended_next; /* of the server, oldest first */
	unsigned refs;
};

/* The events of a cell in another protocol than ours: each adds to job->events. */
struct cell__job_form {
	enum cell__events_form events;
	const char *alive; /* as in struct cell__events */
	/* Output and displays. */
	void (*event)(struct cell__job *job, const struct cell_event *event);
	/* The last ones; result NULL: it never ran, err has the reason. */
	void (*ended)(struct cell__job *job, const struct cell_result *result, const struct cell_error *err);
	bool stops; /* the cell is interrupted when its last reader leaves */
};

/* Runs the cell of a request on request->served. answer NULL: a run whose events are kept, *ret_job; else the request is answered. */
bool cell__job_begin(struct cell__request *request, const char *code, size_t size, int64_t timeout_ms,
		     void (*answer)(struct cell__request *request, struct cell_result *result), struct cell__job **ret_job);
/* The session's state after this job, which cell__job_begin() has just returned, gets this name. */
void cell__job_name_state(struct cell__job *job, struct cell__state_id id);
void cell__job_unref(struct cell__job *job);
struct cell__job *cell__job_find(struct cell__served *served, const char *number);
/* Answers with its events, from the one after `after` on. */
void cell__job_stream(struct cell__request *request, struct cell__job *job, uint64_t after);
void cell__jobs_sweep(struct cell_server *server, int64_t now_us);
/* The session ends: its runs lose their owner. */
void cell__jobs_forget(struct cell__served *served);
/* The waiting ones of a session, or of all (NULL), end with an error. */
void cell__jobs_cancel(struct cell_server *server, struct cell__served *served);
/* Readers go: the server stops. */
void cell__jobs_release(struct cell_server *server);
/* One that waits ends at once, one that runs soon; one that has ended stays as it is. */
void cell__job_cancel(struct cell__job *job);
/* As JSON text; NULL: out of memory. */
char *cell__job_describe(const struct cell__job *job);
/* The answer of POST /execute; NULL: out of memory. */
char *cell__execute_answer(const struct cell_result *result, const char *session_id);

/* A slot may be free: cells that wait for one start. */
void cell__jobs_advance(struct cell_server *server);

/* ---- batches (batch.c) ---- */

#define CELL_SERVER_MAX_BATCHES 256u
/* A slot may be free. */
void cell__batches_advance(struct cell_server *server);
void cell__batches_sweep(struct cell_server *server, int64_t now_us);
/* cell__directory_keep() for each. */
void cell__batches_keep(struct cell_server *server);
/* All of them are cancelled, and their readers leave. */
void cell__batches_stop(struct cell_server *server);
/* Runs of all of them that have not started. */
size_t cell__batches_waiting(const struct cell_server *server);
/* A session ends: so do its batches. */
void cell__batches_end(const struct cell__served *served);

/* ---- requests that go on without their client (tasks.c, http.c) ---- */

/* Whether the client wants a task, and the route allows it. */
bool cell__task_is_asked(const struct cell__request *request);
/* Answers with an id, and handles a copy of the request without a connection. */
void cell__task_begin(struct cell__request *request);
/* Its answer, JSON; NULL: out of memory for it. */
void cell__task_answer(struct cell__request *request, unsigned status, const char *text);
/* The answer that was held (cell__directory_hold()) leaves. */
void cell__task_release(struct cell__request *request);
/* A line that its work wrote; nothing if the request is not one of a task. */
void cell__task_progress(struct cell__request *request, const char *line, size_t size);
/* Once in an iteration of the loop: requests of ended tasks are freed. */
void cell__tasks_reap(struct cell_server *server);
void cell__tasks_sweep(struct cell_server *server, int64_t now_us);
/* cell__directory_keep() for each. */
void cell__tasks_keep(struct cell_server *server);
/* The server stops: running ones are cancelled, and readers leave. */
void cell__tasks_stop(struct cell_server *server);
/* None is running. */
void cell__tasks_finish(struct cell_server *server);
/* A copy without the connection, which takes over body, query and parameters; NULL: out of memory. */
struct cell__request *cell__request_detach(struct cell__request *request);
void cell__request_free(struct cell__request *request);

/* ---- programs in fresh processes (fusion.c) ---- */

struct cell__fusion;
/* If the options ask for it.  Before the server listens. */
int cell__fusion_create(struct cell_server *server, struct cell_error *err);
/* Before it listens: makes ready what the first program would wait for. */
void cell__fusion_prewarm(struct cell_server *server);
void cell__fusion_advance(struct cell_server *server);
void cell__fusion_sweep(struct cell_server *server, int64_t now_us);
/* Waiting programs are refused, and all sandboxes end. */
void cell__fusion_stop(struct cell_server *server);

/* ---- clients of the MCP server (mcp.c) ---- */

struct cell__mcp_http;
/* Watches for notifications of the MCP server; returns the handle, to be closed in the end. */
uv_handle_t *cell__mcp_start(struct cell_server *server);
void cell__mcp_sweep(struct cell_server *server, int64_t now_us);
/* Sets `subject`. */
void cell__mcp_name(struct cell__request *request);
/* Other servers are told again of sessions that are here; all: not only of those that they could not be told of. */
void cell__mcp_keep(struct cell_server *server, bool all);
/* All clients end, and then cell__server_advance() is called. */
void cell__mcp_end(struct cell_server *server);
bool cell__mcp_ended(const struct cell_server *server);

/* ---- E2B's protocol (e2b/) ---- */

extern const struct cell__route cell__e2b_routes[];
/* Whether the request is one of E2B's clients, by its headers. */
bool cell__e2b_is_asked(const struct cell__request *request, const char *path);
/* As cell__auth_check(), with the tokens that E2B's clients send. */
/* The sandbox that a request is for; NULL: none that it names. */
const char *cell__e2b_owner_id(struct cell__request *request);
/* The snapshot that the body of a request names; NULL: none. */
const char *cell__e2b_owner_by_body(struct cell__request *request);
unsigned cell__e2b_auth_check(struct cell__request *request, const struct sockaddr *from, const char **ret_words, int *ret_retry_s);
/* The body of an error in the form that the client reads, and its status; free() it.  NULL: out of memory. */
char *cell__e2b_error(const struct cell__request *request, int code, const char *words, unsigned *status, const char **ret_type,
		      size_t *ret_size);
/* The debug mode of the clients (e2b/debug.c): nothing without opts.e2b_debug. */
void cell__e2b_debug_init(struct cell_server *server);
int cell__e2b_debug_listen(struct cell_server *server, struct cell_error *err);
void cell__e2b_debug_start(struct cell_server *server);
/* No more clients. */
void cell__e2b_debug_stop(struct cell_server *server);
void cell__e2b_debug_close(struct cell_server *server, void (*close_handle)(struct cell_server *server, uv_handle_t *handle));
/* Whether it is a name of ours at one of its ports. */
bool cell__e2b_debug_host(const struct cell_server *server, const char *host);
/* NAME or NAME:PORT, of a form that a host name can have.  Pure. */
bool cell__e2b_domain_ok(const char *domain);
/* The session ends: its context goes, and with the first session of a sandbox all others. */
void cell__e2b_served_ends(struct cell__served *served);
/* Once a second: sandboxes whose time is over end, or pause. */
void cell__e2b_sweep(struct cell_server *server, int64_t now_us);

/* ---- readiness (ready.c) ---- */

struct cell__ready {
	char *folder; /* of sessions that nobody uses; NULL: as all others */
	char level[CELL_SERVER_LEVEL]; /* of confinement, as the first session had it; "": not known */
	bool opens, stores; /* a session could be opened; the storage answered, or there is none */
	int64_t opened_us, stored_us; /* when that was seen */
	int64_t lost_us; /* since when the storage has not answered */
	bool opening, checking; /* under way */
	struct cell_session_options options;
	uv_work_t work;
	struct cell_error err;
	int status;
};

/* Opens a session and runs a cell, before the server listens.  Any thread but the loop's. */
int cell__ready_probe(struct cell_server *server, struct cell_error *err);
/* Logs executor, storage and limits. */
void cell__ready_summary(struct cell_server *server);
/* A session was opened for a client, or not: err is the reason. */
void cell__ready_opened(struct cell_server *server, const struct cell_error *err);
void cell__ready_sweep(struct cell_server *server, int64_t now_us);
void cell__ready_finish(struct cell_server *server);

/* ---- logins at MCP servers by a browser (logins.c) ---- */

/* When the server knows its URL; -1: public_url is not valid. */
int cell__logins_init(struct cell_server *server, struct cell_error *err);
void cell__logins_finish(struct cell_server *server);
/* On the loop: messages about a missing login name the page of this server. */
void cell__logins_offer(struct cell_server *server, struct cell_space *space, const char *workspace);
/* The worker that has the login of a redirect; -1: this one, or nobody. */
int cell__login_owner(const struct cell__request *request);

/* ---- the server (server.c) ---- */

#define CELL_SERVER_HISTOGRAM 12u /* buckets; metrics.c has their ends */
struct cell__histogram {
	uint64_t buckets[CELL_SERVER_HISTOGRAM];
	double sum;
	uint64_t count;
};

struct cell__counts {
	uint64_t by_class[6]; /* requests by status / 100 */
	uint64_t auth_failures, busy, sessions_opened, sessions_expired, sessions_hibernated, sessions_woken, runs, runs_failed,
		slow_clients;
	uint64_t in_flight;
	struct cell__histogram request_s, run_s, wait_s; /* requests; cells, and how long they waited to start */
	uint64_t calls, calls_failed; /* of tools, by cells */
	double calls_s;
	uint64_t approvals, approvals_accepted, approvals_rejected, approvals_expired; /* asked for, and how they ended */
	uint64_t quota_refusals, quota_stops;
	uint64_t forwarded; /* to other servers */
};

/* Now. */
struct cell__server_use {
	int64_t sessions; /* including opening and closing ones */
	int64_t running, queued; /* cells */
	int64_t transfers; /* of files */
	int64_t oldest_us; /* since when the first cell waits for a slot; 0: none does */
	int64_t oldest_script_us; /* the same of programs (fusion.c) */
	int64_t lost_storage, cannot_open; /* 1: as it was last seen (ready.c) */
	int64_t awake; /* 1: a worker that serves, or that leaves and has sessions that do not sleep yet */
};

struct cell_server {
	struct cell_engine *engine;
	struct cell_server_options opts; /* its limits and session are replaced by those here */
	struct cell_session_options session; /* of each session that is opened */
	struct cell_server_limits limits;
	const struct cell__route *routes;
	struct cell__mcp_http *mcp; /* NULL: this is the session server */
	struct cell__address address;
	int listen_fd;
	struct { /* e2b/debug.c; fds: -1: none */
		int fds[CELL_E2B_DEBUG_PORTS];
		uv_poll_t polls[CELL_E2B_DEBUG_PORTS];
		bool started[CELL_E2B_DEBUG_PORTS];
		char id[33]; /* of its sandbox, which may have ended; "": none was made */
	} e2b_debug;
	char *url;
	char request_prefix[9];
	char own_secret[CELL_SERVER_SECRET + 1]; /* without a pool (pool.h) */
	uint64_t next_request;
	struct cell__tokens tokens;
	struct cell__oauth_resource *oauth; /* NULL: tokens of the file alone */
	struct cell__address_count *addresses; /* CELL_SERVER_ADDRESSES, own_addresses or those of all workers */
	struct cell__address_count own_addresses[CELL_SERVER_ADDRESSES];
	/* logins.c */
	char *login_base; /* the URL that browsers reach this server at; NULL: not known, and there are no logins */
	struct cell__login *logins; /* newest first */
	/* pool.c, forward.c */
	struct cell_server_pool *pool; /* NULL: no workers */
	int worker;
	uv_poll_t inbox;
	struct MHD_Daemon *inner; /* for the other workers */
	uv_poll_t inner_poll;
	struct cell__peer_link *idle_links;
	size_t n_links, n_idle_links, n_forwards;
	struct cell__directory *directory; /* with other servers (directory.c); or NULL */
	struct cell__peer_hint *hints; /* where sessions of others were found (peers.c) */
	char *peer_url; /* our own, as others write it */
	char peer_key[65]; /* of all servers (greeting.c); "": not known yet */
	/* http.c */
	struct MHD_Daemon *daemon;
	uv_poll_t poll;
	uv_check_t check;
	uv_idle_t again;
	struct cell__connection *connections;
	struct cell__guests guests; /* the connections without a valid token */
	bool due, quiesced;
	bool adding_inner; /* cell__http_add() adds a connection of another worker */
	bool inner_changed; /* one came or went, since MHD_run() */
	int inner_connections;
	struct cell__tls *tls; /* NULL: no TLS */
	/* spaces.c */
	struct cell__workspace *workspaces;
	size_t n_workspaces;
	struct cell__host_limits host_limits; /* for clients, as for the code of their sessions */
	bool opening_space;
	/* sessions.c */
	struct cell__served *sessions;
	struct cell__waking *wakings; /* wake.c */
	struct cell__served *buckets[CELL_SERVER_BUCKETS];
	struct cell__ended {
		char id[33];
	} ended[CELL_SERVER_ENDED];
	size_t next_ended;
	struct cell__ready ready; /* ready.c */
	unsigned readings; /* on the pool (inspect.c) */
	struct cell__tracing tracing;
	int64_t metrics_us; /* when they were last sent to it */
	bool code_used; /* of the console's link */
	struct cell__sampling sampling; /* sample.c */
	struct cell__account *accounts; /* accounts.c */
	struct cell__redactor *redactor;
	/* jobs.c */
	struct cell__job *queue, *queue_last;
	struct cell__file_work *transfers; /* of files (files.c) */
	struct cell__command_stream *command_streams;
	struct cell__job *ended_first, *ended_last;
	size_t ended_bytes;
	struct cell__fusion *fusion; /* NULL: not offered */
	struct cell__served_batch *batches;
	size_t n_batches;
	struct cell__served_task *tasks; /* tasks.c */
	size_t n_tasks, tasks_running, task_bytes;
	bool tasks_due; /* one has ended, and its request is to be freed */
	/* server.c */
	int tell_fd[2];
	uv_poll_t tell;
	uv_timer_t tick, leave;
	uv_handle_t *told; /* cell__mcp_start()'s, or NULL */
	struct cell__waiter over;
	unsigned handles;
	bool running, leaving, emptying, draining, stopping, closing, advancing, reloading, reload_again;
	int64_t drain_until_us, stopping_us, started_us;
	int64_t started_s; /* of the calendar */
	struct timespec tokens_changed, oauth_changed;
	struct cell__buf log;
	struct cell__counts counts;
	struct cell__server_use *use; /* own_use, or that of this worker in the workers' memory */
	struct cell__server_use own_use;
};

/* Call after a change that may let a draining server end: it is checked soon, outside of libmicrohttpd's callbacks. */
void cell__server_advance(struct cell_server *server);
/* It stops, and begins nothing new.  Sessions that can move are served until the last of them sleeps. */
bool cell__server_refuses(const struct cell_server *server);
/* The server leaves: idle sessions go to sleep.  Call when one has been saved. */
void cell__server_rest(struct cell_server *server);
void cell__server_step(struct cell_server *server);
/* fields: pairs for the JSON form; the text form has only words. */
void cell__server_log(struct cell_server *server, enum cell_log_level level, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void cell__server_log_request(struct cell__request *request);
void cell__server_flush_log(struct cell_server *server);
void cell__metrics_count(struct cell__request *request, int64_t now_us);
void cell__metrics_observe(struct cell__histogram *histogram, double seconds);
/* Prometheus' text; NULL: out of memory. */
char *cell__metrics(struct cell_server *server);

#endif
