/*
 * The MCP server, shared by its files.
 *
 *     stdio.c    the public functions; one client on two descriptors
 *     server.c   a peer, which is one connection: its messages, its requests, questions to it
 *     jobs.c     requests that are answered later, and the jobs that answer them
 *     modern.c   requests of revision 2026-07-28, each of which says everything about itself
 *     handles.c  sessions and their ids: who may use one, which has to go for another
 *     saved.c    sessions that outlive their server
 *     parked.c   calls that wait for a person's answer, by that revision
 *     watch.c    the watch over requests that take long: progress, tasks, ids of jobs
 *     cells.c    the thread of a session: cells in order, their events, approvals
 *     result.c   the outcome of a cell, as a tool's result
 *     table.c    the tools: a table, their schemas, checking of their arguments
 *     tools.c    the tools that work on the space
 *     files.c    the tool that works on files of a session; commands.c  the one for its commands
 *     offers.c   tools, resources and prompts of the program
 *     resources.c, prompts.c  the methods for them, and the storage's own
 *     subscribe.c  news of lists and resources; uri.c, content.c  pure
 *
 * server/mcp.c serves many clients over Streamable HTTP.
 *
 * Four objects.  A *peer* is a connection (or all stateless requests of one token); a *request* is a tools/call that has no answer yet;
 * a *job* is the work for it; a *handle* is a session with its id, its owner, and the thread that runs its cells.  A job has a request while
 * somebody waits for it.
 *
 * Threads.  The transport's thread feeds a peer with received messages, and never waits for a job:
 *
 *     transport ── feed ──┬── queue ──▶ the handle's thread ── cell_session_start() ──▶ engine's thread ── events ──┐
 *                         └── one thread a job ── cell_session_call()                                               │
 *     transport ◀── sink ── answers, progress, log, elicitations ◀──────────────────────────────────────────────────┘
 *
 * One more thread watches over requests that take long (watch.c).
 *
 * server->lock guards all four.  The engine's thread takes it too: it is held briefly, and never while waiting for the engine.  A peer's
 * version and the like belong to the thread that feeds it.
 */
#ifndef CELL_MCP_SERVER_H
#define CELL_MCP_SERVER_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "calls/table.h"
#include "base/base.h"
#include "space/space.h"
#include "wire/call_seal.h"
#include "wire/jsonrpc.h"
#include "wire/traceparent.h"

#define CELL_MCP_MAX_CALLS 32u               /* operations on the space under way for one client */
#define CELL_MCP_MAX_CELLS 256u              /* cells that wait */
#define CELL_MCP_MAX_QUESTIONS 256u          /* elicitations without an answer */
#define CELL_MCP_MAX_LISTENING 64u           /* subscriptions/listen of one client */
#define CELL_MCP_MAX_REQUESTS 2048u          /* without an answer, of one client */
#define CELL_MCP_HANDLE_CHARS 32u            /* of a session's id: 128 random bits */
#define CELL_MCP_JOB_CHARS (CELL_MCP_HANDLE_CHARS + 1 + 16) /* of a job's or task's id: its session's, a dot, 64 random bits */
#define CELL_MCP_MAX_RESUMING 32u            /* saved sessions that are looked for at once */
#define CELL_MCP_MAX_TRACEPARENT 256u        /* bytes; later versions may be longer than 55 */
#define CELL_MCP_MAX_OWNER 136u              /* bytes of the name of a principal, with its kind */
#define CELL_MCP_MAX_FORKS 64                /* sessions that one fork_session makes */
#define CELL_MCP_RUN_CODE_CHARS 50000        /* of output in an answer of run_code */
#define CELL_MCP_MAX_OUTPUT_CHARS 1000000    /* the most that max_output_chars can be */
#define CELL_MCP_MAX_VALUE_BYTES (256u * 1024u) /* of a value as JSON in structuredContent */
#define CELL_MCP_MAX_IMAGES 16u              /* in one answer */
#define CELL_MCP_MAX_IMAGE_BYTES (16u * 1024u * 1024u) /* together */
#define CELL_MCP_MAX_ARTIFACT_BYTES (4u * 1024u * 1024u) /* loaded or saved by one call */
#define CELL_MCP_MAX_FILE_BYTES (1024u * 1024u) /* read or written by one call */
#define CELL_MCP_COMMAND_BYTES 50000u         /* of a command's output in an answer */
#define CELL_MCP_MAX_FILES 100u              /* of long output that are kept */
#define CELL_MCP_MAX_OUTBOX_BYTES (8u * 1024u * 1024u) /* a client that has not read so much gets no progress and log */

#define CELL_MCP_MAX_OFFERS 1000u            /* tools, resources and prompts of the program */
#define CELL_MCP_MAX_OFFER_NAME 128u
#define CELL_MCP_MAX_PROMPTS 1000u           /* in a list */
#define CELL_MCP_MAX_URIS 256u               /* subscriptions of one client, or of one request */
#define CELL_MCP_PAGE 200u                   /* resources or prompts in one answer */
#define CELL_MCP_MAX_EMBEDDED 16u            /* audio and other files in one answer, */
#define CELL_MCP_MAX_EMBEDDED_BYTES (8u * 1024u * 1024u) /* together */
#define CELL_MCP_CONTENT_TYPE "application/vnd.mcp.content+json" /* of a display that is content of the protocol */
#define CELL_MCP_ALL_SCOPES (~0u)
#define CELL_MCP_OWN_QUESTION (UINT64_C(1) << 63) /* ids of questions of offered functions, not of the gate */

#define CELL_MCP_TELL_RELOAD UINT64_C(1)
#define CELL_MCP_TELL_STOP (UINT64_C(1) << 32)

/* The receiver of a peer's messages.  Any thread; never blocks. */
struct cell__mcp_sink {
	/* text NULL: only marks the end of the stream. stream NULL: the message is not an answer and does not concern one. */
	void (*send)(void *arg, void *stream, const char *text, size_t size, bool last);
	/* Whether so much is unread that progress and log messages are dropped. */
	bool (*full)(void *arg, void *stream);
	/* The HTTP status of the stream's only answer, which is sent next.  NULL: the transport has none. */
	void (*set_status)(void *arg, void *stream, unsigned status);
	void *arg;
};

/*
 * Follows cells of clients, for traces (server/trace.c).  begin: any thread; NULL: this cell is not followed.  event: the engine's thread.
 * end: any thread; result NULL: it did not run.  arg NULL: nobody follows any more; end is called all the same and frees.
 */
struct cell__mcp_traced {
	const char *session, *owner;
	struct cell__traceparent *link; /* becomes a link of the cell, and is cleared */
	struct cell__traceparent *last; /* becomes the cell */
};

struct cell__mcp_tracer {
	void *arg;
	/* ret_parent: of the cell's calls. */
	void *(*begin)(void *arg, const char *traceparent, const char *code, size_t size, char ret_parent[static CELL_TRACEPARENT_SIZE]);
	void (*event)(void *arg, void *trace, const struct cell_event *event);
	void (*end)(void *arg, void *trace, const struct cell__mcp_traced *traced, const struct cell_result *result);
	void (*finish)(void *arg); /* NULL, or called by cell_mcp_server_destroy() */
};

struct cell_mcp_server {
	struct cell_engine *engine;
	struct cell_mcp_server_options opts;
	struct cell_session_options session;
	json_t *tools;          /* the result of tools/list; never changes */
	char *temp_dir;
	pthread_mutex_t owners_lock; /* guards the use of ... */
	struct cell__owners *owners; /* tells other servers which sessions are here; NULL: there are no others */
	unsigned char state_key[CELL_CALL_SEAL_KEY_BYTES]; /* of requestState; random */
	char *files[CELL_MCP_MAX_FILES]; /* a ring */
	size_t n_files;
	pthread_mutex_t lock;   /* guards everything below, and what hangs on it */
	pthread_cond_t changed; /* a handle is gone, a kept job has ended */
	struct cell__mcp_tracer tracer;
	struct cell__mcp_peer *peers;
	struct cell__mcp_handle *handles; /* that can be found */
	struct cell__mcp_handle *leaving; /* that no longer can, until their sessions have ended */
	size_t n_handles;       /* of clients, without homes */
	size_t n_threads;       /* of handles, also of those that can no longer be found */
	uint64_t next_serial;
	struct cell__mcp_parked *parked; /* newest first */
	struct cell__mcp_offer *offers;  /* in the order of offering */
	struct cell__mcp_asking *asking; /* questions of functions, on their stacks */
	uint64_t next_question;
	bool watches, watch_ends; /* the thread of watch.c */
	pthread_t watch_thread;
	pthread_cond_t watch_changed;
	int64_t watch_at_us;    /* when it looks again; INT64_MAX: when it is told */
	struct cell__space_watcher watcher; /* the loop's thread */
	int stop_fd;            /* an eventfd: notifications of CELL_MCP_TELL_* */
	atomic_bool listening;  /* while it accepts notifications to read again */
};

/* One incoming text: a message, or a batch, whose answers are sent together. */
struct cell__mcp_unit {
	void *stream;
	size_t left;      /* requests without an answer, plus 1 while it is being read */
	bool batch;
	bool modern;      /* its answers have the members of 2026-07-28 */
	const json_t *param_headers; /* while it is read: those of struct cell__mcp_head; NULL: not by HTTP */
	struct cell__buf answers; /* of a batch */
};

struct cell__mcp_tool;
struct cell__mcp_job;

/* A request that is answered later: a call of a tool, or subscriptions/listen. */
struct cell__mcp_pending {
	struct cell__mcp_peer *peer;
	struct cell__mcp_unit *unit;
	json_t *id, *token;      /* token: of progress, or NULL */
	struct cell__mcp_job *job; /* NULL: it listens */
	json_t *listens;         /* to what; or NULL */
	bool cancelled, killed;
	bool elicits;            /* 2026-07-28: forms can be shown */
	bool tasks;              /* 2026-07-28: the client knows tasks */
	int log_level;           /* 2026-07-28: of log_levels; -1: nothing is wanted */
	struct cell__mcp_pending *next;
};

/* The work for a call of a tool. */
struct cell__mcp_job {
	const struct cell__mcp_tool *tool;
	struct cell__mcp_offer *offer;   /* whose tool it is, with a reference; NULL: ours */
	unsigned scopes;                 /* of its client's token */
	struct cell__mcp_handle *handle; /* counts as one of its users */
	struct cell__mcp_pending *request; /* NULL: nobody waits for it */
	struct cell__mcp_parked *parked; /* it has asked by input_required; NULL: not */
	unsigned refs;    /* its own, and threads that cancel it just now */
	json_t *args;
	char client[64];  /* the client's name, as it gave it */
	bool modern;      /* its request is of 2026-07-28 */
	json_t *can;      /* a method: the client's capabilities; or NULL */
	json_t *lacking;  /* capabilities without which it failed; or NULL */
	char traceparent[CELL_MCP_MAX_TRACEPARENT]; /* of the request's _meta; "": none */
	void *trace;      /* of its cell; or NULL */
	bool new_session; /* its handle was made for it, and its id is part of the answer */
	bool named;       /* the client named its handle */
	struct cell_canceller *canceller; /* of an operation on the space; NULL: a cell */
	struct cell__mcp_job *after; /* in the queue of cells */
	struct cell__mcp_job *dropped; /* reset: cells that were sent before it and have not begun */
	bool overtaken;   /* a reset was sent after it */
	bool stopped;     /* by cancel_job */
	int64_t deadline_us; /* when its client wants an answer in any case; 0: when it has ended */
	int64_t told_us;  /* the last progress */
	/* A cell; the first two also of a function. */
	double progress, progress_base; /* the last one that was told; a function's own begins there */
	bool reports;     /* a function has told its own progress */
	struct cell__buf tails[2];   /* of stdout and stderr: the beginning of a character */
	struct cell_result *result;
	bool done;
};

/* A session. */
struct cell__mcp_handle {
	struct cell_mcp_server *server;
	char id[CELL_MCP_HANDLE_CHARS + 1];
	char owner[CELL_MCP_MAX_OWNER];
	uint64_t serial;        /* never used twice */
	struct cell__mcp_peer *home; /* whose own session it is, which no id finds; NULL: a client's, or closing */
	struct cell__mcp_peer *host; /* the same, until it is gone */
	bool is_home;
	bool counted;           /* among max_sessions: not a home, and there */
	bool resumes;           /* it continues a saved session, which has its id */
	bool saves;             /* where sessions are saved: it is when it goes, and its id finds it afterwards */
	bool discards;          /* ... but not this time, and what was saved before goes too */
	bool unannounced;       /* other servers do not know yet that it is here */
	struct cell_session *session;
	struct cell_error open_error;
	bool opened;            /* session is there, or could not be opened: open_error */
	bool wanted;            /* to be opened before the first cell */
	bool closing;           /* it can no longer be found */
	bool asks;              /* questions of MCP servers find somebody */
	size_t users;           /* jobs, and threads that use the session just now */
	int64_t seen_us;
	pthread_cond_t changed;
	struct cell__mcp_job *cells, *last_cell;
	size_t n_cells;
	size_t n_resets;        /* that were sent; later cells wait for them */
	struct cell__mcp_job *taken;   /* out of the queue by its thread */
	struct cell__mcp_job *current; /* whose events come */
	struct cell__mcp_job *running; /* was given to the session, */
	uint64_t run_id;               /* as this */
	struct cell__traceparent last, link; /* its last cell; the last one of its source, until its own first; span "": none */
	struct cell__mcp_handle *next;
};

/* An elicitation that we sent. */
struct cell__mcp_question {
	int64_t id;
	uint64_t serial;   /* of the handle */
	uint64_t approval;
	bool is_question; /* of an MCP server that the code uses, which gets the answer unchanged */
	struct cell__mcp_question *next;
};

struct cell__mcp_peer {
	struct cell_mcp_server *server;
	struct cell__mcp_sink sink;
	struct cell__mcp_peer *next;
	char owner[CELL_MCP_MAX_OWNER];

	/* Of the thread that feeds it. */
	bool initialized, batches;
	bool stateless;         /* requests of many clients, which use the same ids: a transport tells which to cancel */
	char client[64];        /* its name, as initialize gave it */
	const char *version;
	atomic_uint scopes;     /* of its token */
	atomic_bool cannot_approve; /* its token does not have that scope: approvals are rejected without asking it */

	/* server->lock */
	pthread_cond_t changed;
	struct cell__mcp_pending *requests;
	size_t n_requests, n_workers;
	struct cell__mcp_handle *home; /* NULL: not yet */
	size_t n_homes;                /* with those that are closing */
	bool stopping;
	bool hears;      /* an earlier revision, initialized: it is told of lists */
	json_t *subscribed;            /* the same: URIs; or NULL */
	json_t *capabilities;          /* the same: of the client; or NULL.  Of the thread that feeds it */
	bool elicits;
	int log_level;                 /* of log_levels; -1: the client did not set it */
	struct cell__mcp_question *questions;
	size_t n_questions;
	int64_t next_id;
};

/* The headers of an HTTP request that repeat its body; NULL: absent. */
struct cell__mcp_head {
	const char *version, *method, *name;
	const json_t *params; /* Mcp-Param-*: lower-case names without the prefix, and their values; true: not one valid value */
};

/* What a request of 2026-07-28 says about its client. */
struct cell__mcp_said {
	const char *client; /* its name; or NULL */
	const json_t *can;  /* its capabilities */
	bool elicits;       /* it can show forms */
	bool tasks;         /* it knows tasks */
	int log_level;      /* of log_levels; -1: it wants none */
};

/* An HTTP request that gets a status and a body of its own instead of a stream. */
struct cell__mcp_refusal {
	unsigned status; /* 0: it is not refused */
	struct cell__buf body;
};

/* The answer of a tool. */
struct cell__mcp_answer_out {
	json_t *content;    /* an array */
	json_t *structured; /* may be NULL */
	bool failed;
	json_t *whole;      /* CELL_MCP_METHOD: the result, instead of these */
	int code;           /* of its failure; 0: a tool's is a result */
};

typedef int (*cell__mcp_tool_fn)(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
				 struct cell__buf *message);

struct cell__mcp_tool {
	const char *name, *title;
	const struct cell__operation *operation; /* NULL: not an operation */
	const char *about;  /* an operation: text to add to its row's; or NULL */
	const char *brief;  /* the same in short lists, without its row's; NULL: as `about` says */
	const char *input;  /* schema of its arguments; an operation: changes to the row's (calls/schema.h), or NULL */
	const char *output; /* an operation: changes to the row's answer, or NULL */
	const char *answer; /* a schema, if it is not an operation or has another answer */
	unsigned flags;
	/* On the space; NULL: a cell. Fails with -1 and a message for the client in *message. */
	cell__mcp_tool_fn run;
	struct cell__mcp_offer *offer; /* the program's; NULL: ours */
};
#define CELL_MCP_STORAGE 1u     /* offered where the space has one */
#define CELL_MCP_DEPS 2u        /* ... and may be changed */
#define CELL_MCP_READ_ONLY 4u
#define CELL_MCP_DESTRUCTIVE 8u
#define CELL_MCP_IDEMPOTENT 16u
#define CELL_MCP_OPEN_WORLD 32u
#define CELL_MCP_FORKS 128u     /* offered where the executor can fork */
#define CELL_MCP_REGISTER 64u   /* offered with allow_register */
#define CELL_MCP_SESSION 256u   /* works on a session: has the argument `session` */
#define CELL_MCP_BEGINS 512u    /* ... and makes one, where a client has none of its own */
#define CELL_MCP_AT_ONCE 1024u  /* ... and does not wait for its cells */
#define CELL_MCP_COMPAT 2048u   /* listed with compat only */
#define CELL_MCP_METHOD 4096u   /* not a tool: a method of the protocol that works like one */
#define CELL_MCP_COMMANDS 16384u /* listed where the executor has commands */
#define CELL_MCP_LONG 32768u    /* has its own thread, and may take long: it becomes a task, or a job where it cannot keep wait_ms */
#define CELL_MCP_TIMELESS 8192u /* ... whose answers may not be kept (2026-07-28: ttlMs) */

/* server.c */
/* owner: the principal that it speaks for.  stateless: see the struct. */
struct cell__mcp_peer *cell__mcp_peer_create(struct cell_mcp_server *server, const struct cell__mcp_sink *sink, const char *owner,
					     bool stateless, struct cell_error *err);
/*
 * Ends its cells and waits for its calls, at most until the server's grace period is over: then CELL_E_TIMEOUT, and the peer still
 * exists.  kill: also the kernels of cells in sessions that are not its own.
 */
int cell__mcp_peer_destroy(struct cell__mcp_peer *peer, bool kill, struct cell_error *err);
/*
 * One message or batch. Returns the number of requests in it: 0 when nothing will be sent for the stream.  HTTP: head and refusal, which
 * the caller finishes; others: NULL.
 */
size_t cell__mcp_peer_feed(struct cell__mcp_peer *peer, const char *text, size_t size, void *stream, const struct cell__mcp_head *head,
			   struct cell__mcp_refusal *refusal);
/* Whether a job that it brought goes on, or waits for an answer. */
bool cell__mcp_peer_is_awaited(struct cell__mcp_peer *peer);
/* The requests of a stream are no longer waited for. */
void cell__mcp_peer_cancel(struct cell__mcp_peer *peer, const void *stream);
/* 0 is debug, 7 emergency; -1: unknown name (which may be NULL). */
int cell__mcp_log_level(const char *name);
/* Whether it is a supported revision of the protocol that begins with initialize. */
bool cell__mcp_speaks(const char *version);
/* A request of the unit has its answer; buf NULL: no answer is sent.  Without the lock. */
void cell__mcp_unit_answered(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__buf *buf);
void cell__mcp_answer_result(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, json_t *result);
void cell__mcp_answer_error(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, int64_t code, const char *words);
/* The same with data, which may be NULL, and with the HTTP status that the code has by 2026-07-28. */
void cell__mcp_answer_error_data(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, int64_t code,
				 const char *words, const json_t *data);
void cell__mcp_handle_list(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params);
/* said: NULL for an earlier revision. */
void cell__mcp_handle_call(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const json_t *params,
			   const struct cell__mcp_said *said);
/* A method of the protocol that is a job (CELL_MCP_METHOD); false: the method is not one. */
bool cell__mcp_handle_method(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const char *method, const json_t *params,
			     const struct cell__mcp_said *said);
/* The tools that this client sees: a new array. */
json_t *cell__mcp_peer_tools(struct cell__mcp_peer *peer);
void cell__mcp_handle_unknown(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const char *method);
/* jobs.c */

/* With the lock held.  A request with this id has no answer yet. */
bool cell__mcp_is_pending(const struct cell__mcp_peer *peer, const json_t *id);
/* With the lock held.  NULL: *refused has the reason. */
struct cell__mcp_pending *cell__mcp_pending_create(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id,
						   const char **refused);
/* With the lock held.  Nothing finds it any more; it still counts until it is freed. */
void cell__mcp_pending_unlink(struct cell__mcp_pending *request);
/* With the lock held, after its answer. */
void cell__mcp_pending_free(struct cell__mcp_pending *request);
/* With the lock held. */
void cell__mcp_job_unref(struct cell__mcp_job *job);
/* With the lock held.  Takes the request away from its job: nothing finds it any more.  May be NULL. */
struct cell__mcp_pending *cell__mcp_take_request(struct cell__mcp_job *job);
/* Without the lock, of one that was taken.  Takes the result over; NULL: nothing is sent. */
void cell__mcp_pending_answer(struct cell__mcp_pending *request, json_t *result);
/* The answer of a job; out NULL: it was cancelled.  Ends it. */
void cell__mcp_job_answer(struct cell__mcp_job *job, struct cell__mcp_answer_out *out);
/* The same with the reason of a failure. */
void cell__mcp_job_fail(struct cell__mcp_job *job, const char *words, size_t size);
/* With the lock held.  To its handle's queue, or to a thread of its own.  NULL, or why it cannot be taken. */
const char *cell__mcp_job_queue(struct cell__mcp_peer *peer, struct cell__mcp_job *job);
/* A notification; takes over params. */
void cell__mcp_peer_notify(struct cell__mcp_peer *peer, void *stream, const char *method, json_t *params);
/* With the lock held.  A request, elicitation/create; takes over params.  False: it could not be sent, and will not be answered. */
bool cell__mcp_peer_ask(struct cell__mcp_peer *peer, void *stream, json_t *params, uint64_t serial, uint64_t approval, bool is_question);
/* With the lock held.  The approval is no longer pending; 0: none of the session's is. */
void cell__mcp_peer_forget(struct cell__mcp_peer *peer, void *stream, uint64_t serial, uint64_t approval, const char *why);

/* watch.c: with the lock held */
/* Its request has just been made, or repeated: it is watched from now on. */
void cell__mcp_watch(struct cell__mcp_job *job);
/* Something has changed that it waits for. */
void cell__mcp_watch_again(struct cell_mcp_server *server);
/* The lock is released in between.  Whether its client has a task, and no longer waits; false: it does not know tasks, or too many are kept. */
bool cell__mcp_job_become_task(struct cell__mcp_job *job);
/* Without the lock. */
void cell__mcp_watch_end(struct cell_mcp_server *server);

/* modern.c */
#define CELL_MCP_MODERN "2026-07-28"
#define CELL_MCP_META "io.modelcontextprotocol/"
#define CELL_MCP_TASK_AFTER_US INT64_C(5000000) /* a call that takes longer becomes a task, if its client knows tasks */
#define CELL_MCP_TASKS CELL_MCP_META "tasks" /* an extension */
#define CELL_RPC_HEADER_MISMATCH (-32020)
#define CELL_RPC_NEEDS_CAPABILITY (-32021)
#define CELL_RPC_UNSUPPORTED_VERSION (-32022)
extern const char cell__mcp_instructions[];
/* The revisions before it, newest first. */
extern const char *const cell__mcp_versions[];
/* Whether the request is one of that revision. */
bool cell__mcp_is_modern(const struct cell__rpc_message *message);
/* Checks its envelope, its headers (head NULL: not by HTTP) and its method: 0, or a code, *words and new *data (or NULL). */
int cell__mcp_modern_check(const struct cell__rpc_message *message, const struct cell__mcp_head *head, struct cell__buf *words,
			   json_t **data);
void cell__mcp_modern_request(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__rpc_message *message);
/* Adds the members that every result of that revision has. */
void cell__mcp_modern_result(json_t *result);
/* The end of a subscription that the server ends. */
json_t *cell__mcp_listen_result(const json_t *id);
/* Whether a header's value, plain or as =?base64?...?=, is this text. */
bool cell__mcp_header_is(const char *header, const char *text, size_t size);
/* The x-mcp-header of a parameter whose header does not say what the arguments do; NULL: all do. */
const char *cell__mcp_param_mismatch(const json_t *schema, const json_t *args, const json_t *headers);
/* The needed capabilities that a client does not have: a new object; NULL: it has all. */
json_t *cell__mcp_lacking(const json_t *needs, const json_t *can);

/* offers.c: with the lock held, unless they say otherwise */
enum cell__mcp_offer_kind { CELL__MCP_OFFERS_TOOL, CELL__MCP_OFFERS_RESOURCE, CELL__MCP_OFFERS_PROMPT };
struct cell__mcp_offer {
	enum cell__mcp_offer_kind kind;
	unsigned refs;
	char *name; /* of a resource: its URI or template */
	bool is_template;
	unsigned scope; /* that its users need; 0: none */
	char *principal; /* its only user; NULL: all */
	char *mime_type; /* or NULL */
	json_t *needs; /* capabilities of clients; or NULL; immutable */
	json_t *entry; /* in a list; immutable */
	json_t *schema; /* of a tool's arguments; immutable */
	struct cell__mcp_tool tool;
	cell_mcp_fn fn, complete;
	void *arg;
	struct cell__mcp_offer *next;
};
void cell__mcp_offer_unref(struct cell__mcp_offer *offer);
void cell__mcp_offers_end(struct cell_mcp_server *server);
/* The name of a principal as programs and people know it. */
const char *cell__mcp_principal(const char *owner);
bool cell__mcp_offer_is_for(const struct cell__mcp_offer *offer, const char *owner, unsigned scopes);
/* NULL: unknown, or not for this one. */
struct cell__mcp_offer *cell__mcp_offer_find(struct cell_mcp_server *server, enum cell__mcp_offer_kind kind, const char *name,
					     const char *owner, unsigned scopes);
/* Adds their entries to a list. */
int cell__mcp_offers_add(struct cell_mcp_server *server, enum cell__mcp_offer_kind kind, bool template, const char *owner, unsigned scopes,
			 json_t *list);
bool cell__mcp_offers_any(const struct cell_mcp_server *server, enum cell__mcp_offer_kind kind);
/* Without the lock.  A new object; NULL: *message has the reason. */
json_t *cell__mcp_offer_check(const struct cell__mcp_offer *offer, const json_t *args, struct cell__buf *message);
int cell__mcp_offer_run(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
/* Without the lock, with a reference.  Calls the function of a resource or prompt, or its completion. */
int cell__mcp_offer_ask(struct cell__mcp_job *job, struct cell__mcp_offer *offer, bool completes, const char *name, const json_t *args,
			json_t **ret_result, struct cell_error *err);
/* Without the lock.  The client's answer to a question of a function; NULL: an error. */
void cell__mcp_offer_answered(struct cell_mcp_server *server, uint64_t id, const json_t *result);

/* resources.c, prompts.c: without the lock */
int cell__mcp_resources_list(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_templates_list(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_resources_read(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_prompts_list(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_prompts_get(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_complete(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
/* The failure of a function as one of the protocol; returns -1. */
int cell__mcp_fail_offer(struct cell__mcp_answer_out *out, struct cell__buf *message, const struct cell_error *err);
/* The page that the job's cursor names; takes the list over. */
int cell__mcp_page(struct cell__mcp_job *job, const char *member, json_t *all, struct cell__mcp_answer_out *out, struct cell__buf *message);
/* With the lock held.  The resource of this URI, and new values of its template's variables; NULL: none for this one. */
struct cell__mcp_offer *cell__mcp_resource_find(struct cell_mcp_server *server, const char *uri, const char *owner, unsigned scopes,
						json_t **ret_values);

/* subscribe.c: with the lock held, unless they say otherwise */
/* NULL, or why it cannot be done. */
const char *cell__mcp_subscribe(struct cell__mcp_peer *peer, const json_t *params, bool on);
bool cell__mcp_may_subscribe(struct cell__mcp_peer *peer, const char *uri);
/* What subscriptions/listen gets of what it wants: a new object. */
json_t *cell__mcp_honour(struct cell__mcp_peer *peer, const json_t *wanted);
void cell__mcp_tell_offer(struct cell_mcp_server *server, const struct cell__mcp_offer *offer);
void cell__mcp_tell_updated(struct cell_mcp_server *server, const char *uri);
/* The state of a task of this owner has changed. */
void cell__mcp_tell_task(struct cell_mcp_server *server, const char *owner, const char *id);
/* What a new subscription would have heard before: tasks that no longer work. */
void cell__mcp_tell_tasks(struct cell__mcp_pending *request);
bool cell__mcp_has_lists(const struct cell_mcp_server *server, const char *list);
/* Without the lock. */
void cell__mcp_storage_changed(void *server, enum cell__op op, const char *name);
json_t *cell__mcp_capabilities(struct cell_mcp_server *server, bool modern);

/* content.c: pure */
bool cell__mcp_is_content(const json_t *block);
bool cell__mcp_is_content_list(const json_t *list);
/* Of a resource that was read, or that is embedded. */
bool cell__mcp_is_contents(const json_t *contents);
/* New ones of bytes; type NULL: as text, if they are; NULL: out of memory. */
json_t *cell__mcp_contents(const char *uri, const char *type, const void *bytes, size_t size);
/* The same as content: an image, audio, or an embedded resource with this URI. */
json_t *cell__mcp_content(const char *uri, const char *type, const void *bytes, size_t size);

/* parked.c: all with the lock held */
/*
 * The job waits for this approval.  False: it cannot.  *ret_result answers its request, which the caller takes from it; NULL: it has none just
 * now, and the next one will be asked.
 */
bool cell__mcp_job_park(struct cell__mcp_job *job, json_t *form, uint64_t id, bool is_question, json_t **ret_result);
/* The approval is no longer pending. job may be NULL. */
void cell__mcp_job_unpark(struct cell__mcp_job *job, uint64_t id);
/* A job has ended without a request: its result is kept, and taken over. */
void cell__mcp_parked_result(struct cell__mcp_job *job, json_t *result);
/* The same with a JSON-RPC error, {code, message, data?}. */
void cell__mcp_parked_error(struct cell__mcp_job *job, json_t *error);
/* A job has ended with a request. */
void cell__mcp_parked_taken(struct cell__mcp_job *job);
/* Whether it asks by input_required, also when nobody waits for it. job may be NULL. */
bool cell__mcp_job_asks(const struct cell__mcp_job *job);
/* Its client does not wait any longer: an id for get_job.  NULL: too many are kept. */
const char *cell__mcp_job_keep(struct cell__mcp_job *job);
/* -1: unknown, or of another owner.  *ret_job NULL: it has ended, with *ret_result, borrowed (NULL: it was cancelled). */
int cell__mcp_kept_find(struct cell_mcp_server *server, const char *owner, const char *id, struct cell__mcp_job **ret_job,
			json_t **ret_result);
/* Ends a kept job: -1 unknown, or of another owner; 0: it had ended; 1: it will.  The lock is released in between. */
int cell__mcp_kept_cancel(struct cell_mcp_server *server, const char *owner, const char *id);
/* The answer to the request of a job that becomes a task.  NULL: too many are kept. */
json_t *cell__mcp_job_to_task(struct cell__mcp_job *job);
bool cell__mcp_job_is_task(const struct cell__mcp_job *job);
/* The result of tasks/get.  NULL: unknown, or of another owner. */
json_t *cell__mcp_task_get(struct cell__mcp_peer *peer, const char *id);
/* Gives answers to its questions; false: unknown, or of another owner.  The lock is released in between. */
bool cell__mcp_task_update(struct cell__mcp_peer *peer, const char *id, const json_t *responses);
/* The peer goes. */
void cell__mcp_parked_leave(const struct cell__mcp_peer *peer);
/* A job that waits for an answer, that the peer brought, and that was not returned before; NULL: there are no more. */
struct cell__mcp_job *cell__mcp_parked_leaving(const struct cell__mcp_peer *peer);
/*
 * A call is repeated with requestState and inputResponses; the lock is released in between.  -1: the state is not valid.  *ret_result
 * answers the request, or *ret_error, {code, message, data?}; both NULL: its job will.
 */
int cell__mcp_call_resume(struct cell__mcp_peer *peer, struct cell__mcp_pending *request, const struct cell__mcp_tool *tool,
			  const json_t *args, const json_t *params, json_t **ret_result, json_t **ret_error);
void cell__mcp_parked_end(struct cell_mcp_server *server);
/* Whether a call of the session with this id waits, or its result is kept. */
bool cell__mcp_parked_of(const struct cell_mcp_server *server, const char *session);

/* Conditions whose waits can end at a time of cell__now_us(). */
void cell__mcp_cond_init(pthread_cond_t *cond);
void cell__mcp_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t until_us);

/* handles.c: all with the lock held, unless they say otherwise */
/*
 * A new one of this owner, with a thread that has not opened it yet; home may be NULL.  resume: the id of a saved session to continue, or NULL.
 * NULL: *err has the reason.
 */
struct cell__mcp_handle *cell__mcp_handle_create(struct cell_mcp_server *server, const char *owner, struct cell__mcp_peer *home,
						 const char *resume, struct cell_error *err);
/* What it continues was found: it counts from now on. */
int cell__mcp_handle_admit(struct cell__mcp_handle *handle, struct cell_error *err);
/* NULL: unknown, of another owner, or closed. */
struct cell__mcp_handle *cell__mcp_handle_find(struct cell_mcp_server *server, const char *owner, const char *id, size_t size);
/* err says how a client goes on after it has named a session that there is not. */
int cell__mcp_no_session(const char *id, struct cell_error *err);
/* Without the lock.  Whether something with this id, or of the session with this id, is here, whoever owns it. */
bool cell__mcp_knows(struct cell_mcp_server *server, const char *id);
struct cell__mcp_handle *cell__mcp_handle_by_serial(struct cell_mcp_server *server, uint64_t serial);
/* The peer's own session, which is made if there is none. */
struct cell__mcp_handle *cell__mcp_handle_home(struct cell__mcp_peer *peer, struct cell_error *err);
void cell__mcp_handle_unuse(struct cell__mcp_handle *handle);
/* It is no longer found; its thread closes the session when its users have gone. */
void cell__mcp_handle_close(struct cell__mcp_handle *handle);
/* Without the lock, of a handle with a user.  Ends the running cell; kill: with its kernel, unless the session is to be saved. */
void cell__mcp_handle_stop(struct cell__mcp_handle *handle, bool kill);
/* Without the lock.  Closes all, and waits for their threads. */
void cell__mcp_handles_end(struct cell_mcp_server *server);
/* Without the lock, of a handle with a user.  Waits until the session is open; NULL: *err has the reason.  Any thread but its own. */
struct cell_session *cell__mcp_handle_session(struct cell__mcp_handle *handle, struct cell_error *err);

/* cells.c */
/* The thread of a handle, which ends with it. */
void *cell__mcp_cells_main(void *handle);
/* The client's answer to an approval request; NULL: an error. Without the lock; the handle has a user. */
void cell__mcp_cells_approval(struct cell__mcp_handle *handle, bool cannot_approve, uint64_t approval, const json_t *result);
void cell__mcp_cells_question(struct cell__mcp_handle *handle, uint64_t approval, const json_t *result);
/* Without the lock; the loop's thread.  Output of a job as it comes: progress and log messages, where its client wants them. */
void cell__mcp_tell_output(struct cell__mcp_handle *handle, struct cell__mcp_job *job, enum cell_stream stream, const void *bytes,
			   size_t size);

/* saved.c: of the handle's own thread, without the lock */
/* Opens its session, or continues it.  *ret_session stays NULL: *err has the reason. */
void cell__mcp_saved_open(struct cell__mcp_handle *handle, struct cell_session_options *options, struct cell_session **ret_session,
			  struct cell_error *err);
/* The handle gets the id of its session, where others may find that. */
void cell__mcp_saved_take_id(struct cell__mcp_handle *handle, const struct cell_session *session);
/* Saves and closes its session, or removes it.  Nothing finds the handle any more. */
void cell__mcp_saved_end(struct cell__mcp_handle *handle);

/* result.c */
void cell__mcp_cell_answer(struct cell__mcp_job *job, struct cell_result *result);

/* stdio.c */
/* A file with this text for the client's code to read; free() the path.  NULL: it could not be written. */
char *cell__mcp_keep_text(struct cell_mcp_server *server, const char *text, size_t size);
/* From now on the file is removed when the server goes, or when there are too many. */
void cell__mcp_keep_file(struct cell_mcp_server *server, const char *path);

/* table.c */
/* tools/list's array; NULL: out of memory. */
json_t *cell__mcp_tools_list(const struct cell_mcp_server_options *opts);
/* A method of the protocol that is a job; NULL: it is not one. */
const struct cell__mcp_tool *cell__mcp_method_find(const char *name);
/* Whether a tool of ours has this name, offered or not. */
bool cell__mcp_tools_is_ours(const char *name);
/* NULL: unknown name. */
const struct cell__mcp_tool *cell__mcp_tools_find(const struct cell_mcp_server_options *opts, const char *name);
/* Its schemas: of arguments, borrowed, and of the answer, new.  NULL: out of memory. */
const json_t *cell__mcp_tool_input(const struct cell__mcp_tool *tool);
json_t *cell__mcp_tool_output(const struct cell__mcp_tool *tool);
/*
 * Checks arguments by the tool's schema, adds defaults and gives members the names of the operation; args may be NULL. NULL: *message has
 * the reason.
 */
json_t *cell__mcp_tools_check(const struct cell__mcp_tool *tool, const json_t *args, struct cell__buf *message);

/* tools.c */
/* An operation on the space for a job; takes over args.  -1: *message has the whole error.  ret_answer may be NULL. */
int cell__mcp_space_call(struct cell__mcp_job *job, const char *method, json_t *args, json_t **ret_json, struct cell_answer *ret_answer,
			 struct cell__buf *message);
int cell__mcp_command(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_files(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_reset(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_interrupt(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_get_job(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_cancel_job(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_close_session(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_operate(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_list_tools(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_get_workflow(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_save_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_load_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_add_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_remove_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_register_server(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);

#endif
