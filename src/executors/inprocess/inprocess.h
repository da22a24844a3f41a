/*
 * A kernel of the `inprocess` executor, for its files:
 *
 *     inprocess.c  the executor, interrupts, the end; theory of operation
 *     calls.c      messages to the kernel, frames and calls from it
 *     output.c     output of the code and of its children
 *     thread.c     the kernel's thread, and which Python it runs
 */
#ifndef CELL_EXECUTORS_INPROCESS_H
#define CELL_EXECUTORS_INPROCESS_H

#include <pthread.h>
#include <stdatomic.h>

#include "executors/executor.h"
#include "executors/inprocess/libpython.h"
#include "wire/frame.h"
#include "wire/inproc_abi.h"
#include "wire/ring_spin.h"

enum cell__inprocess_state {
	CELL_INPROCESS_ASKING,
	CELL_INPROCESS_STARTING,
	CELL_INPROCESS_LIVE,
	CELL_INPROCESS_LEAVING,
	CELL_INPROCESS_FINISHING,
};

struct cell__inprocess_ask {
	struct cell__task task;
	struct cell__inprocess *kernel;
	const struct cell_frame *call;
	struct cell__waiter waiter;
	uint32_t id;
	bool is_main;
	enum cell_inproc_status status;
	struct cell_inproc_message *reply;
	struct cell__inprocess_ask *next;
};

struct cell__inprocess_sending {
	struct cell__task task;
	struct cell__inprocess *kernel;
	const struct cell_frame *frame;
	struct cell__waiter waiter;
	enum cell_inproc_status status;
	struct cell__inprocess_sending *next;
};

struct cell__inprocess {
	struct cell__kernel base;
	struct cell_inproc abi;
	atomic_int refs; /* the loop's side, the thread, Python's link, jobs of the keeper */

	/* loop's thread */
	const struct cell__kernel_events *events;
	void *owner;
	enum cell__inprocess_state state;
	bool asked, abandoned, paused, threaded;
	char *python, *kernel_dir;
	struct cell__libpython_info info;
	struct cell__process *process;
	struct cell__buf said;
	struct cell__inprocess_ask *asks;
	uint32_t next_ask;
	struct cell__inprocess_sending *held, **held_end; /* while paused */
	uv_timer_t timer, pace;
	uv_poll_t polls[2];
	bool polling;
	int open_handles;

	pthread_mutex_t lock;
	/* under the lock */
	pthread_cond_t cond; /* a message, or room for output */
	struct cell__loop *loop; /* NULL: finished */
	bool closed;
	int inside;        /* threads that use the loop */
	bool finish_wanted;
	struct cell_inproc_message *first, *last;
	int event_fd;
	bool watched;
	struct cell__buf out;
	size_t last_record; /* where it begins */
	bool scheduled;     /* the output will be looked at */
	int pipes[2][2];    /* stdout and stderr of children: reading, writing; -1 until asked for */
	struct cell_error error;
	bool job_posted, stop_posted;
	struct cell__task flush, poll_pipes, ended, finish, stop;

	struct cell__libpython_job interrupt_job, abandon_job;
	_Atomic uint32_t interrupt_run;
	int64_t interrupt_us; /* loop's thread */
	struct cell_ring_beat beat; /* messages sent to it */
	struct cell_ring_spin spin;
};

static inline struct cell__inprocess *cell__inprocess_of_abi(struct cell_inproc *abi)
{
	return (struct cell__inprocess *)((char *)abi - offsetof(struct cell__inprocess, abi));
}

/* ---- inprocess.c ---- */

void cell__inprocess_unref(struct cell__inprocess *kernel);
/* Under the lock: posts a task, unless the kernel has finished.  Tasks run before `finish`, which is the last. */
bool cell__inprocess_post(struct cell__inprocess *kernel, struct cell__task *task);
/* Loop's thread: the kernel ends, or never began; see its error. */
void cell__inprocess_finish(struct cell__inprocess *kernel);
/* Whether this process was forked from one that had kernels. */
bool cell__inprocess_is_forked(void);

/* ---- calls.c ---- */

void cell__inprocess_init_calls(struct cell__inprocess *kernel);
int cell__inprocess_push(struct cell__inprocess *kernel, uint8_t type, uint32_t id, const void *json, size_t json_size, const void *raw,
			 size_t raw_size, struct cell_error *err);
/* Under the lock: wakes the watcher of the kernel's descriptor. */
void cell__inprocess_ring(struct cell__inprocess *kernel);
/* Answers are no longer needed. */
void cell__inprocess_end_asks(struct cell__inprocess *kernel);
/* Frames that came while it was paused. */
void cell__inprocess_take_held(struct cell__inprocess *kernel);
int cell__inprocess_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
			  struct cell_error *err);

/* ---- output.c ---- */

void cell__inprocess_init_output(struct cell__inprocess *kernel);
/* Loop's thread: hands on all output so far. */
void cell__inprocess_deliver_output(struct cell__inprocess *kernel);
/* It is no longer paused. */
void cell__inprocess_resume_output(struct cell__inprocess *kernel);

/* ---- thread.c ---- */

/* Starts its thread, or, where there is no Python yet, asks the interpreter for its library first. */
int cell__inprocess_start(struct cell__inprocess *kernel, struct cell__executor_host *host, struct cell_error *err);

#endif
