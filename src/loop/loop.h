/*
 * The engine's loop: one libuv loop that everything belongs to, run by one thread at a time.
 *
 * Usually that is the engine's own thread.  A thread that waits for something (cell__loop_do) runs the loop itself
 * instead of waiting for another thread to run it: on a quiet engine a cell then costs two context switches, to the
 * kernel and back, instead of four.
 *
 *     free ──▶ engine's thread runs it ──a caller wants it──▶ caller runs it ──done──▶ free
 *              ▲                                                                  │
 *              └── after LINGER_MS without a caller, or at once when others wait ◀┘
 *
 * "The loop's thread" in other headers means: whoever runs it now.  Only the functions marked "any thread" may be
 * called by others.  The engine's thread blocks all signals, so that the host's handlers never run on it.
 */
#ifndef CELL_LOOP_H
#define CELL_LOOP_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <uv.h>

#include "base/base.h"
#include "base/spin.h"

/* Embedded in what is handed over; must stay until fn has run. */
struct cell__task {
	void (*fn)(struct cell__task *task);
	struct cell__task *next;
};

struct cell__waiter;

struct cell__loop {
	uv_loop_t uv;
	uv_async_t wake;
	uv_prepare_t before_poll;
	struct cell__waiter *driven_for; /* loop's thread: what the caller that runs the loop waits for */
	/* loop's thread: looks for a moment whether something comes, before a caller that runs the loop sleeps; or NULL */
	void (*spin)(void *arg);
	void *spin_arg;
	pthread_t thread;
	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t free_cond;   /* the loop became free: for callers */
	pthread_cond_t engine_cond; /* for the engine's thread */
	struct cell__task *first, *last;
	bool owned;
	pthread_t owner;
	int wanting;       /* callers that wait to run the loop */
	int waiting;       /* callers that wait for somebody else's turn of the loop to serve them */
	int64_t left_us;   /* when a caller last let go of it */
	bool asleep;       /* the engine's thread sleeps until it is told */
	bool stopping;
	int busy;          /* loop's thread: things under way that nobody waits for */
	int64_t polled_us; /* loop's thread: when a visit last looked for events */
	struct cell_spin lent_spin, event_spin;
	sigset_t mask;     /* of the thread that started the loop, for threads that are to be like the host's */
};

int cell__loop_start(struct cell__loop *loop, struct cell_error *err);
/* Any thread but the loop's.  All handles must have been closed; returns when the thread has ended. */
void cell__loop_stop(struct cell__loop *loop);
/* Any thread. */
void cell__loop_post(struct cell__loop *loop, struct cell__task *task);
/* Any thread.  As cell__loop_post(), but wakes nobody: some thread is going to run the loop within LINGER_MS anyway. */
void cell__loop_post_lazily(struct cell__loop *loop, struct cell__task *task);
bool cell__loop_is_current(struct cell__loop *loop);

/* Something that the loop's thread will announce. */
struct cell__waiter {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
	/* Whoever signals it comes with a thread of its own, and needs the loop: who waits must not keep it. */
	bool lent;
};
void cell__waiter_init(struct cell__waiter *waiter);
void cell__waiter_finish(struct cell__waiter *waiter);
void cell__waiter_signal(struct cell__waiter *waiter); /* any thread */

/*
 * Any thread but the loop's: runs task (may be NULL) on the loop and returns once the waiter is signalled.  The waiter
 * may be signalled again later: clear `done` under its lock first.
 */
void cell__loop_do(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter);
/*
 * The same for one who comes often: events of the loop are looked for once a millisecond, not each time.  A task that
 * signals the waiter itself costs no system call on a quiet engine.
 */
void cell__loop_visit(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter);
/* The same for a function that is done when it returns; on the loop's own thread, at once. */
void cell__loop_call(struct cell__loop *loop, void (*fn)(void *arg), void *arg);
/*
 * Any thread: the task on the loop, and then, where this thread can run the loop, up to `us` microseconds more of it, until
 * *end is not 0.  The task has made the loop busy by one.
 */
void cell__loop_drive(struct cell__loop *loop, struct cell__task *task, const int *end, int64_t us);
/* The loop's thread: a program was told something, and its answer will likely come soon. */
void cell__loop_expect(struct cell__loop *loop);
/* cell__loop_call(), and to stay then in the same way. */
void cell__loop_call_and_stay(struct cell__loop *loop, void (*fn)(void *arg), void *arg, const int *end, int64_t us);

#endif
