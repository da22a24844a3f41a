/*
 * `workcell jupyter kernel`: a Jupyter kernel whose cells run in a session.
 *
 *     jupyter_ends.c     the five sockets, messages in and out
 *     jupyter_show.c     what the session writes and shows, as messages
 *     jupyter_history.c  the cells that were run
 *     jupyter_kernel.c   requests, threads, the life of the kernel
 *     jupyter_spare.c    a process that is ready to become the next kernel
 *     cmd_jupyter.c      the command: installing, removing and listing kernelspecs
 */
#ifndef CELL_CLI_JUPYTER_H
#define CELL_CLI_JUPYTER_H

#include "cli.h"
#include "wire/jupyter.h"

/* Kernel side: kernel/workcell_kernel/notebook.py and cell.py. */
#define CELL_JUPYTER_HEAD_TYPE "application/vnd.workcell.jupyter+json"
#define CELL_JUPYTER_METADATA_TYPE "application/vnd.workcell.metadata+json"
#define CELL_JUPYTER_ASK "%%workcell_notebook\n"

/* ---- sockets and messages (jupyter_ends.c) ---------------------------------- */

struct cell_cli_ends;
#define CELL_CLI_MAX_IDS 8u

/* A received message.  Zeroed: none. */
struct cell_cli_request {
	struct cell__jupyter_message message;
	char *header; /* JSON text: the parent header of everything that follows from it */
	struct cell__buf ids[CELL_CLI_MAX_IDS];
	size_t n_ids;
	struct cell__buf *buffers;
	size_t n_buffers;
};

int cell__cli_ends_create(const struct cell__jupyter_connection *connection, struct cell_cli_ends **ret_ends, struct cell_error *err);
/* No other thread may use them any more.  Sent messages are on their way.  NULL is allowed. */
void cell__cli_ends_destroy(struct cell_cli_ends *ends);
/*
 * Waits until one of two ports (may be the same) has a message, fd can be read (-1: none), or a signal came.  Bits: 1 and 2 for the
 * ports, 4 for the descriptor.
 */
unsigned cell__cli_ends_wait(struct cell_cli_ends *ends, enum cell__jupyter_port one, enum cell__jupyter_port two, int fd);
/* False: no valid message waits; an invalid one is reported on stderr and dropped. */
bool cell__cli_ends_receive(struct cell_cli_ends *ends, enum cell__jupyter_port port, struct cell_cli_request *ret_request);
void cell__cli_request_finish(struct cell_cli_request *request);
/* Returns what waits on the heartbeat port, so much of it that a flood holds up nothing else. */
void cell__cli_ends_beat(struct cell_cli_ends *ends);

struct cell_cli_sent {
	const char *type;
	const struct cell_cli_request *to; /* whose client gets it; NULL: all that listen */
	const char *parent; /* JSON text */
	const char *content; /* JSON text */
	size_t content_size;
	const char *metadata; /* JSON text; NULL: {} */
	const struct cell_mime_part *buffers;
	size_t n_buffers;
};
/*
 * A client that is gone gets nothing; that is not a failure.  CELL_JUPYTER_PORT_IOPUB: any thread; waits for readers that are slow.
 * Returns the message's number, for cell__cli_ends_is_number().
 */
uint64_t cell__cli_ends_send(struct cell_cli_ends *ends, enum cell__jupyter_port port, const struct cell_cli_sent *sent);
/* Takes the content over; NULL: out of memory, and nothing is sent. */
uint64_t cell__cli_ends_send_json(struct cell_cli_ends *ends, enum cell__jupyter_port port, const struct cell_cli_request *to,
				  const char *parent, const char *type, json_t *content);
/* Whether this is the id of the message that was sent with that number. */
bool cell__cli_ends_is_number(const struct cell_cli_ends *ends, uint64_t number, const char *id);
/* A cell begins: readers that were too slow for earlier output are waited for again. */
void cell__cli_ends_begin(struct cell_cli_ends *ends);

/* ---- output and displays (jupyter_show.c) ------------------------------------ */

/* Where output goes: the request that it follows from, and the start of a character that is not all there.  One thread. */
struct cell_cli_show {
	struct cell_cli_ends *ends;
	const char *parent; /* JSON text */
	json_t *payload; /* of the reply: pages and next inputs; NULL: nobody will reply */
	struct {
		char bytes[4];
		size_t size;
	} carry[2];
};
void cell__cli_show_chunk(struct cell_cli_show *show, enum cell_stream stream, const char *data, size_t size, bool last);
void cell__cli_show_display(struct cell_cli_show *show, const struct cell_mime_part *parts, size_t n);
/* The ends of characters that will not come any more. */
void cell__cli_show_end(struct cell_cli_show *show);
/* {"data", "metadata"} of a value; NULL: it has none, or no memory is left. */
json_t *cell__cli_show_value(const struct cell_result *result);
/* {"ename", "evalue", "traceback"} */
json_t *cell__cli_show_outcome(const struct cell_outcome *outcome);

/* ---- history (jupyter_history.c) ---------------------------------------------- */

#define CELL_CLI_MAX_HISTORY 1000u
#define CELL_CLI_MAX_HISTORY_BYTES (8u * 1024u * 1024u)

/* The latest cells; the oldest are dropped past the limits.  Zeroed: empty. */
struct cell_cli_history {
	struct cell_cli_past {
		unsigned line;
		char *code, *output; /* output: the value's text, or NULL */
	} items[CELL_CLI_MAX_HISTORY];
	size_t first, n, bytes;
};
/* Without memory nothing is added. */
void cell__cli_history_add(struct cell_cli_history *history, unsigned line, const char *code, const char *output);
void cell__cli_history_finish(struct cell_cli_history *history);
/* The answer to a history_request, a list; NULL: out of memory. */
json_t *cell__cli_history_find(const struct cell_cli_history *history, const json_t *content);

/* ---- the kernel (jupyter_kernel.c) --------------------------------------------- */

/* What `workcell jupyter kernel` was started with. */
struct cell_cli_notebook {
	const struct cell_cli_session_flags *flags;
	const char *connection_file; /* one of argv, or the end of one */
	const char *verb; /* one of argv */
	char **argv; /* the first one is the command's name, "jupyter" */
	int argc;
	char **env; /* as it was at the start: --env-file adds to the environment */
	int64_t keep_ms; /* how long a spare waits; not positive: there is none */
};

/*
 * Serves until it is told to end; returns the exit status.  engine: of cell__cli_warm(), taken over; NULL: a new one.  owner_fd: the kernel
 * that this one serves for (jupyter_spare.c), or -1; it stays the caller's.
 */
int cell__cli_jupyter_serve(const struct cell_cli_notebook *notebook, struct cell_engine *engine, int owner_fd);

/* ---- spares (jupyter_spare.c) ---------------------------------------------------- */

/* Hands the notebook to a spare and waits until that has ended.  False: there is no spare. */
bool cell__cli_spare_use(const struct cell_cli_notebook *notebook, int *ret_status);
/* Starts a spare; returns its pid, for waitpid().  -1: it was not asked for, or cannot be started. */
int cell__cli_spare_start(const struct cell_cli_notebook *notebook);
/* The process of a spare: waits for a kernel, and becomes it.  Returns the exit status. */
int cell__cli_spare_serve(const struct cell_cli_notebook *notebook);
/* Something has come from owner_fd: signals are raised here.  False: the owner is gone. */
bool cell__cli_spare_hear(int owner_fd);
void cell__cli_spare_tell_end(int owner_fd, int status);

#endif
