/*
 * A kernel of the `jupyter` executor, for its files:
 *
 *     jupyter.c  the executor, spare kernels, the end; theory of operation
 *     start.c    from files and a process to a kernel that answers
 *     talk.c     its messages, over ZeroMQ and over the link
 */
#ifndef CELL_EXECUTORS_JUPYTER_KERNEL_H
#define CELL_EXECUTORS_JUPYTER_KERNEL_H

#include <jansson.h>

#include "executors/executor.h"
#include "executors/jupyter/answer.h"
#include "executors/jupyter/channels.h"
#include "executors/jupyter/spec.h"
#include "executors/link.h"
#include "spawn/process.h"

enum cell__jupyter_state {
	CELL_JUPYTER_PREPARING,
	CELL_JUPYTER_STARTING,
	CELL_JUPYTER_JOINING,
	CELL_JUPYTER_SPARE,
	CELL_JUPYTER_CONFIGURING,
	CELL_JUPYTER_LIVE,
	CELL_JUPYTER_DYING,
};

struct cell__jupyter_run {
	uint32_t id; /* 0: none */
	char message_id[CELL_JUPYTER_ID_BYTES];
	bool replied, idle, interrupted;
	uint64_t heard; /* messages when it was last looked whether the rest will come */
	json_t *value; /* the data of an execute_result */
	json_t *error; /* the content of an error */
};

struct cell__jupyter_kernel {
	struct cell__kernel base;
	struct cell__jupyter *jupyter;
	enum cell__jupyter_state state;
	char *key; /* kernels with the same one are alike until they have a session */
	char *name, *python, *path, *preload, *cwd;
	char **env;
	struct cell__jupyter_spec spec;
	uv_work_t work;
	bool working;
	struct cell_error error;
	struct cell__process *process;
	int64_t pid;
	struct cell__link *link; /* NULL: not ipykernel */
	struct cell__jupyter_channels *channels;
	bool answered, heard, asked, exiting, told, paused;
	uint64_t n_heard; /* messages and frames so far */
	bool guarded; /* its session needs features of our package: approval of commands, restoring the working directory */
	char join_id[CELL_JUPYTER_ID_BYTES];
	int64_t deadline_us;
	struct cell__buf tail;
	struct cell__jupyter_run run;
	char *init;
	const struct cell__kernel_events *events; /* NULL: no owner */
	void *owner;
	uv_timer_t timer;
	struct cell__task gone;
	struct cell__exit how;
	struct cell__jupyter_kernel *next;
};

/* Options of a session that are this executor's own. */
struct cell__jupyter_options {
	char *kernel; /* name of a kernelspec; NULL: ipykernel of `python` */
	char *path;   /* folders to look for kernelspecs in first; NULL: none */
};

struct cell__jupyter {
	struct cell__executor_host *host;
	struct cell__supervisor *supervisor;
	const char *kernel_dir, *folder; /* the host's */
	int pool_size;
	int64_t start_timeout_ms;
	void *zmq; /* NULL until first used */
	struct cell__jupyter_kernel *kernels;
	int alive; /* kernels whose memory is not gone, and the refill timer */
	uv_timer_t refill;
	bool has_timer;
	char *refill_like; /* the key of the kernel to be made ahead */
	bool destroying;
	void (*destroyed)(void *arg);
	void *destroyed_arg;
};

/* A member of a message, "" where there is no such text. */
static inline const char *cell__jupyter_text(json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	return text ? text : "";
}

/* ---- jupyter.c ---- */

/* Ends a kernel in any state; `how` is filled in when it is gone. */
void cell__jupyter_end(struct cell__jupyter_kernel *kernel);
void cell__jupyter_break(struct cell__jupyter_kernel *kernel, const char *reason);
/* The end of a kernel whose process is gone or never was. */
void cell__jupyter_gone(struct cell__jupyter_kernel *kernel);
/* The kernel answers: it is given to its session, or becomes a spare. */
void cell__jupyter_come_up(struct cell__jupyter_kernel *kernel);

/* ---- start.c ---- */

/* Files in libuv's pool first, then the process. */
void cell__jupyter_prepare(struct cell__jupyter_kernel *kernel);
void cell__jupyter_handle_starting(struct cell__jupyter_kernel *kernel, int channel, const struct cell__jupyter_message *message);

/* ---- talk.c ---- */

extern const struct cell__jupyter_events cell__jupyter_channel_events;
extern const struct cell__link_events cell__jupyter_link_events;

#endif
