/*
 * The engine's thread: one libuv loop that everything belongs to.
 *
 * Only the functions marked "any thread" may be called from elsewhere; they hand a task over and the loop runs it.
 * The thread blocks all signals, so that the host's handlers never run on it.
 */
#ifndef CELL_LOOP_H
#define CELL_LOOP_H

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#include "core/core.h"

/* Embedded in what is handed over; must stay until fn has run. */
struct cell__task {
	void (*fn)(struct cell__task *task);
	struct cell__task *next;
};

struct cell__loop {
	uv_loop_t uv;
	uv_async_t wake;
	pthread_t thread;
	pthread_mutex_t lock;
	struct cell__task *first, *last; /* under lock */
	bool stopping;
};

int cell__loop_start(struct cell__loop *loop, struct cell_error *err);
/* Any thread but the loop's.  All handles must have been closed; returns when the thread has ended. */
void cell__loop_stop(struct cell__loop *loop);
/* Any thread. */
void cell__loop_post(struct cell__loop *loop, struct cell__task *task);
/* Any thread but the loop's: runs fn there and waits for it to return. */
void cell__loop_call(struct cell__loop *loop, void (*fn)(void *arg), void *arg);
bool cell__loop_is_current(const struct cell__loop *loop);

/* Waiting for something that the loop's thread will announce. */
struct cell__waiter {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
};
void cell__waiter_init(struct cell__waiter *waiter);
void cell__waiter_finish(struct cell__waiter *waiter);
void cell__waiter_wait(struct cell__waiter *waiter);
void cell__waiter_signal(struct cell__waiter *waiter); /* any thread */

#endif
