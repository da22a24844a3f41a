/*
 * The MCP server, shared by its files.
 *
 *     stdio.c   the public functions; one client on two descriptors
 *     server.c  a peer, which is one client: its messages, its calls, questions to it
 *     cells.c   its session: cells in order, their events, approvals
 *     result.c  the outcome of a cell, as a tool's result
 *     table.c   the tools: a table, their schemas, checking of their arguments
 *     tools.c   the tools that work on the space
 *
 * server/mcp.c serves many clients over Streamable HTTP.
 *
 * Threads.  The transport's thread feeds a peer with received messages, and never waits for a call:
 *
 *     transport ── feed ──┬── queue ──▶ the peer's cell thread ── cell_session_start() ──▶ engine's thread ── events ──┐
 *                         └── one thread a call ── cell_session_call()                                                 │
 *     transport ◀── sink ── answers, progress, log, elicitations ◀─────────────────────────────────────────────────────┘
 *
 * peer->lock guards calls and session and may be held while waiting for the engine; so the engine's thread never takes it.
 * peer->out_lock guards the data that the engine's thread needs (questions, the state of a cell) and is held only briefly.
 */
#ifndef CELL_MCP_SERVER_H
#define CELL_MCP_SERVER_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#include "calls/table.h"
#include "base/base.h"
#include "wire/jsonrpc.h"

#define CELL_MCP_MAX_CALLS 32u               /* operations on the space under way for one client */
#define CELL_MCP_MAX_CELLS 256u              /* cells that wait */
#define CELL_MCP_MAX_QUESTIONS 256u          /* elicitations without an answer */
#define CELL_MCP_RUN_CODE_CHARS 50000        /* of output in an answer of run_code */
#define CELL_MCP_MAX_OUTPUT_CHARS 1000000    /* the most that max_output_chars can be */
#define CELL_MCP_MAX_VALUE_BYTES (256u * 1024u) /* of a value as JSON in structuredContent */
#define CELL_MCP_MAX_IMAGES 16u              /* in one answer */
#define CELL_MCP_MAX_IMAGE_BYTES (16u * 1024u * 1024u) /* together */
#define CELL_MCP_MAX_ARTIFACT_BYTES (4u * 1024u * 1024u) /* loaded or saved by one call */
#define CELL_MCP_MAX_FILES 100u              /* of long output that are kept */
#define CELL_MCP_MAX_OUTBOX_BYTES (8u * 1024u * 1024u) /* a client that has not read so much gets no progress and log */

#define CELL_MCP_TELL_RELOAD UINT64_C(1)
#define CELL_MCP_TELL_STOP (UINT64_C(1) << 32)

/* The receiver of a peer's messages.  Any thread; never blocks. */
struct cell__mcp_sink {
	/* text NULL: only marks the end of the stream. stream NULL: the message is not an answer and does not concern one. */
	void (*send)(void *arg, void *stream, const char *text, size_t size, bool last);
	/* Whether so much is unread that progress and log messages are dropped. */
	bool (*full)(void *arg, void *stream);
	void *arg;
};

struct cell_mcp_server {
	struct cell_engine *engine;
	struct cell_mcp_server_options opts;
	struct cell_session_options session;
	json_t *tools;          /* the result of tools/list; never changes */
	char *temp_dir;         /* made with the first file in it; NULL: not yet */
	char *files[CELL_MCP_MAX_FILES]; /* a ring */
	size_t n_files;
	pthread_mutex_t lock;   /* temp_dir, files, peers */
	struct cell__mcp_peer *peers;
	int stop_fd;            /* an eventfd: notifications of CELL_MCP_TELL_* */
	atomic_bool listening;  /* while it accepts notifications to read again */
};

/* One incoming text: a message, or a batch, whose answers are sent together. */
struct cell__mcp_unit {
	void *stream;
	size_t left;      /* requests without an answer, plus 1 while it is being read */
	bool batch;
	struct cell__buf answers; /* of a batch */
};

struct cell__mcp_tool;

/* A call of a tool that has no answer yet. */
struct cell__mcp_job {
	struct cell__mcp_peer *peer;
	struct cell__mcp_unit *unit;
	const struct cell__mcp_tool *tool;
	json_t *id, *args, *token;
	bool cancelled;
	struct cell_canceller *canceller; /* of an operation on the space; NULL: a cell */
	struct cell__mcp_job *next;  /* of all */
	struct cell__mcp_job *after; /* in the queue of cells */
	/* A cell; out_lock. */
	double progress;
	struct cell__buf tails[2];   /* of stdout and stderr: the beginning of a character */
	struct cell_result *result;
	bool done;
};

/* An elicitation that we sent. */
struct cell__mcp_question {
	int64_t id;
	uint64_t approval;
	bool is_question; /* of an MCP server that the code uses, which gets the answer unchanged */
	struct cell__mcp_question *next;
};

struct cell__mcp_peer {
	struct cell_mcp_server *server;
	struct cell__mcp_sink sink;
	struct cell__mcp_peer *next;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct cell__mcp_job *jobs;
	struct cell__mcp_job *cells, *last_cell;
	struct cell__mcp_job *running; /* was given to the session */
	size_t n_cells, n_workers;
	struct cell_session *session;
	pthread_t thread;
	bool has_thread, stopping;
	bool initialized, batches;
	bool opened;            /* the session was opened, or could not be: open_error */
	struct cell_error open_error;
	char client[64];        /* its name, as it gave it */
	const char *version;
	atomic_bool cannot_approve; /* its token does not have that scope: approvals are rejected without asking it */

	pthread_mutex_t out_lock;
	pthread_cond_t done;
	bool elicits;
	int log_level;                 /* of log_levels; -1: the client did not set it */
	struct cell__mcp_question *questions;
	size_t n_questions;
	int64_t next_id;
	struct cell__mcp_job *current; /* whose events come */
};

/* The answer of a tool. */
struct cell__mcp_answer_out {
	json_t *content;    /* an array */
	json_t *structured; /* may be NULL */
	bool failed;
};

typedef int (*cell__mcp_tool_fn)(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out,
				 struct cell__buf *message);

struct cell__mcp_tool {
	const char *name, *title;
	const struct cell__operation *operation; /* NULL: not an operation */
	const char *about;  /* an operation: text to add to its row's; or NULL */
	const char *input;  /* schema of its arguments; an operation: changes to the row's (calls/schema.h), or NULL */
	const char *output; /* an operation: changes to the row's answer, or NULL */
	const char *answer; /* a schema, if it is not an operation or has another answer */
	unsigned flags;
	/* On the space; NULL: a cell. Fails with -1 and a message for the client in *message. */
	cell__mcp_tool_fn run;
};
#define CELL_MCP_STORAGE 1u     /* offered where the space has one */
#define CELL_MCP_DEPS 2u        /* ... and may be changed */
#define CELL_MCP_READ_ONLY 4u
#define CELL_MCP_DESTRUCTIVE 8u
#define CELL_MCP_IDEMPOTENT 16u
#define CELL_MCP_OPEN_WORLD 32u
#define CELL_MCP_FORKS 128u     /* offered where the executor can fork */
#define CELL_MCP_REGISTER 64u   /* offered with allow_register */

/* server.c */
struct cell__mcp_peer *cell__mcp_peer_create(struct cell_mcp_server *server, const struct cell__mcp_sink *sink, struct cell_error *err);
/*
 * Ends its cells and waits for its calls, at most until the server's grace period is over: then CELL_E_TIMEOUT, and the peer still
 * exists.
 */
int cell__mcp_peer_destroy(struct cell__mcp_peer *peer, struct cell_error *err);
/* One message or batch. Returns the number of requests in it: 0 when nothing will be sent for the stream. */
size_t cell__mcp_peer_feed(struct cell__mcp_peer *peer, const char *text, size_t size, void *stream);
/* 0 is debug, 7 emergency; -1: unknown name (which may be NULL). */
int cell__mcp_log_level(const char *name);
/* Whether it is a supported revision of the protocol. */
bool cell__mcp_speaks(const char *version);
/* The answer of a job, or NULL for one that was cancelled; ends it. */
void cell__mcp_job_answer(struct cell__mcp_job *job, struct cell__mcp_answer_out *out);
/* The same with the reason of a failure. */
void cell__mcp_job_fail(struct cell__mcp_job *job, const char *words, size_t size);
/* A notification; takes over params. */
void cell__mcp_peer_notify(struct cell__mcp_peer *peer, void *stream, const char *method, json_t *params);
/* A request, elicitation/create; takes over params.  False: it could not be sent, and will not be answered. */
bool cell__mcp_peer_ask(struct cell__mcp_peer *peer, void *stream, json_t *params, uint64_t approval, bool is_question);
/* The approval is no longer pending. */
void cell__mcp_peer_forget(struct cell__mcp_peer *peer, void *stream, uint64_t approval, const char *why);

/* cells.c */
/* Waits until the session is open; NULL: it could not be opened, or the peer is closing. Any thread but the cells'. */
struct cell_session *cell__mcp_session(struct cell__mcp_peer *peer, struct cell_error *err);
void *cell__mcp_cells_main(void *peer);
/* The client's answer to an approval request; NULL: an error. */
void cell__mcp_cells_approval(struct cell__mcp_peer *peer, uint64_t approval, const json_t *result);
void cell__mcp_cells_question(struct cell__mcp_peer *peer, uint64_t approval, const json_t *result);

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
int cell__mcp_operate(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_get_workflow(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_save_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_load_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_add_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_remove_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);
int cell__mcp_register_server(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message);

#endif
