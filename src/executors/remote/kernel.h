/*
 * A kernel of the `remote` executor, for its files:
 *
 *     remote.c   the executor, sessions, the end; theory of operation
 *     request.c  requests to the server
 *     branch.c   forks
 *     layer.c    the layer over the workspace there
 *     command.c  commands of the session there
 *     run.c      a run: its stream of events, resumed when it breaks
 *     answer.c   parsing of events and results
 *
 * What other executors need of it is in remote.h.
 */
#ifndef CELL_EXECUTORS_REMOTE_KERNEL_H
#define CELL_EXECUTORS_REMOTE_KERNEL_H

#include <jansson.h>

#include "executors/remote/remote.h"
#include "loop/http.h"
#include "spawn/process.h"
#include "wire/saved.h"
#include "wire/sse.h"
#include "wire/traceparent.h"

#define CELL_REMOTE_MAX_EVENT_BYTES (512u * 1024u * 1024u) /* the result has all displays in it */
#define CELL_REMOTE_MAX_WAITING_BYTES (1u << 20)
/* How long and how often what a server did not carry out, or a stream that broke, is asked for again. */
#define CELL_REMOTE_REPEAT_MS 30000
#define CELL_REMOTE_FIRST_PAUSE_MS 50
#define CELL_REMOTE_LONGEST_PAUSE_MS 2000

/* What the server last said of the session's state. */
struct cell__remote_known {
	int64_t cells; /* that it has seen; -1: unknown */
	struct cell__state_id state, awake; /* its name; that of the time since the session was opened or woken there */
};

struct cell__remote {
	struct cell__executor_host *host; /* first */
	struct cell__http *http;
};

struct cell__remote_kernel;

struct cell__remote_exchange {
	struct cell__http_transfer transfer; /* first */
	struct cell__remote_kernel *kernel;
	const char *method; /* lives for ever */
	char *url, *body;
	int64_t timeout_ms;
	bool streams;
	/* request.c: what was not carried out is sent again for CELL_REMOTE_REPEAT_MS; 502 of a proxy and a broken connection may have been. */
	bool repeats, repeats_lost;
	bool waits; /* for its timer, which is there from then on */
	int64_t begun_us, pause_ms;
	uv_timer_t timer;
	/* A question about files: whom to tell, also if it is dropped; NULL: it is another request. */
	cell__files_done filed;
	void *filed_arg;
	enum cell__files_verb verb;
	bool with_text;
	bool about; /* something of the session, as a command: that is missing, not the session, if the server says what it misses */
	struct cell__task task;
	struct cell__buf answer;
	void (*done)(struct cell__remote_exchange *exchange, CURLcode code, long status);
	struct cell__remote_exchange *next;
};

/* After a pause: the stream is resumed; the run is started, which the server has not done; the server is asked whether it still knows the session. */
enum cell__remote_retry { CELL_REMOTE_RESUME, CELL_REMOTE_START, CELL_REMOTE_ASK };
enum cell__remote_state { CELL_REMOTE_OPENING, CELL_REMOTE_IDLE, CELL_REMOTE_RUNNING, CELL_REMOTE_BROKEN, CELL_REMOTE_CLOSING };

struct cell__remote_kernel {
	struct cell__kernel base; /* first */
	struct cell__remote *remote;
	const struct cell__kernel_events *events;
	void *owner;
	char *url, *socket, *authorization, *workspace, *ca;
	char *receipt; /* members of the receipt that are not the server's; NULL: the executor's name */
	void (*gone)(void *arg, const struct cell__exit *how); /* of whom it was made for, before exited(); may be NULL */
	void *gone_arg;
	bool reopen, reopening, repeat;
	int allow_fork; /* 0: as many as the server allows */
	char session[65];
	enum cell__remote_state state;
	/* the run */
	uint32_t run_id;
	char *code;
	size_t code_size;
	char traceparent[CELL_TRACEPARENT_SIZE]; /* of the run; "": none */
	char run[24]; /* the server's number for it; "" until it is known */
	bool interrupt_wanted, paused, curl_paused;
	struct cell__remote_exchange *stream; /* NULL: there is none now */
	struct cell__buf in; /* of the stream, not looked at yet */
	struct cell__sse sse;
	char *result;
	size_t result_size;
	int64_t broken_us; /* since when; 0: it is not */
	int64_t refused_us; /* the run was, in its stream, for the first time; 0: it was not */
	int64_t pause_ms;
	enum cell__remote_retry retry;
	struct cell_error lost; /* CELL_REMOTE_ASK: how the run was lost */
	bool counting, counted; /* the server is asked for `known` before the run; was */
	bool repeated; /* the run was started twice */
	bool joined; /* the run was found at the server by `after` */
	struct cell__remote_known known; /* before the run */
	struct cell__state_id after; /* the name that the run gives to the state after it */
	/* forks */
	struct cell__remote_kernel *source; /* it is being forked from that; else NULL */
	struct cell__remote_kernel *branches; /* that are being forked from it; a run waits for them */
	struct cell__remote_kernel *next_branch;
	bool run_waits;
	/* the rest */
	struct cell__remote_exchange *exchanges;
	struct cell__remote_command *commands; /* command.c */
	struct cell__task task;
	bool posted, over;
	uv_timer_t timer;
	struct cell__exit how;
};

/* ---- remote.c ---- */

void cell__remote_open_session(struct cell__remote_kernel *kernel);
void cell__remote_fail(struct cell__remote_kernel *kernel, const struct cell_error *err);
void cell__remote_out_of_memory(struct cell__remote_kernel *kernel);
void cell__remote_protocol_error(struct cell__remote_kernel *kernel, const char *problem);
/* The last step of its end. */
void cell__remote_handle_timer_closed(uv_handle_t *handle);

void cell__remote_kernel_free(struct cell__remote_kernel *kernel);
void cell__remote_start_kernel(struct cell__remote_kernel *kernel);
/* The answer to the request for a session. */
void cell__remote_session_opened(struct cell__remote_exchange *exchange, CURLcode code, long status);

/* ---- branch.c ---- */

/* It is no longer being forked, nor its forks from it: a run that waited for that starts. */
void cell__remote_part(struct cell__remote_kernel *kernel);

/* ---- request.c ---- */

/* Takes ownership of body; method lives for ever.  NULL: out of memory; body is freed. */
struct cell__remote_exchange *cell__remote_begin(struct cell__remote_kernel *kernel, const char *method, const char *path, char *body,
						 const char *header, bool streams,
						 void (*done)(struct cell__remote_exchange *exchange, CURLcode code, long status));
/* The server's error message, or that it gave none. */
void cell__remote_describe(struct cell__remote_kernel *kernel, const struct cell__remote_exchange *exchange, CURLcode code, long status,
			   struct cell_error *err);
void cell__remote_drop_exchanges(struct cell__remote_kernel *kernel);
int64_t cell__remote_next_pause(int64_t pause_ms);

/* ---- command.c ---- */

/* The session ends: so do its commands. */
void cell__remote_commands_end(struct cell__remote_kernel *kernel);

/* ---- run.c ---- */

/* The received bytes are processed by a task of the loop. */
void cell__remote_schedule(struct cell__remote_kernel *kernel);
void cell__remote_start_run(struct cell__remote_kernel *kernel);
/* The run has no result: it ends with an error if the server still has its session; else the kernel has failed with err. */
void cell__remote_run_lost(struct cell__remote_kernel *kernel, const struct cell_error *err);

/* ---- answer.c ---- */

/* The code of a server's word; 0: unknown. */
int cell__remote_code(const char *word);
/* Our code for a code of the server. */
int cell__remote_own_code(struct cell__remote_kernel *kernel, int code);
/* The server says in the stream that the run did not begin, and could be started again. */
void cell__remote_run_refused(struct cell__remote_kernel *kernel, const struct cell_error *err);
/* Of a session or a result.  Anything but a number of cells, or a name, is unknown. */
void cell__remote_read_known(const json_t *object, struct cell__remote_known *ret_known);
/* NULL, or the problem, as text for cell__remote_protocol_error(). */
const char *cell__remote_handle_event(struct cell__remote_kernel *kernel, const struct cell__sse_event *event);
/* The run has ended: its session gets the result. */
void cell__remote_deliver(struct cell__remote_kernel *kernel);

#endif
