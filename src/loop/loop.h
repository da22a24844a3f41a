/*
 * The engine's loop: one libuv loop that everything belongs to, run by one thread at a time.
 *
 * Usually that is the engine's own thread.  A thread that waits for something (cell__loop_do) runs the loop itself
 * instead of waiting for another thread to run it: on a quiet engine a cell then costs two context switches, to the
 * kernel and back, instead of four.
 *
 *     free ──▶ engine's thread runs it until nothing is left to do ──▶ free, watched ──▶ caller runs it ──done──▶ free
 *              ▲                                                       │                                          │
 *              ├── an event or a timer ◀───────────────────────────────┘                                          │
 *              └── after LINGER_MS without a caller, or at once when others wait ◀────────────────────────────────┘
 *
 * The engine's thread does not sleep inside libuv: it gives the loop up and waits for libuv's descriptor to become readable.  So
 * a caller takes an idle loop without waking that thread and waiting for it, which costs two wake-ups of an idle CPU.
 *
 * "The loop's thread" in other headers means the thread that runs the loop now.  Only the functions marked "any thread" may be
 * called by other threads.  The engine's thread blocks all signals, so that the host's handlers never run on it.
 */
#ifndef CELL_LOOP_H
#define CELL_LOOP_H

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <uv.h>

#include "base/base.h"

/* Embedded in the object that is handed over; must stay valid until fn has run. */
struct cell__task {
	void (*fn)(struct cell__task *task);
	struct cell__task *next;
};

struct cell__loop;

/* The caller's signal mask is kept for cell__loop_host_mask(). */
int cell__loop_create(struct cell__loop **ret_loop, struct cell_error *err);
/* Any thread but the loop's.  All handles must have been closed; returns when the thread has ended. */
void cell__loop_destroy(struct cell__loop *loop);
/* The loop's thread: for libuv's own functions. */
uv_loop_t *cell__loop_uv(struct cell__loop *loop);
/* The loop's thread: adds to the number of running operations that no caller waits for. */
void cell__loop_add_busy(struct cell__loop *loop, int by);
/*
 * The loop's thread: called for a caller that runs the loop, before it sleeps.  It spins for a moment in case an event
 * comes.  The last one that was set counts.
 */
void cell__loop_set_spin(struct cell__loop *loop, void (*spin)(void *arg), void *arg);
/* The loop's thread: arg is about to be freed.  No effect if another spin has been set since. */
void cell__loop_drop_spin(struct cell__loop *loop, const void *arg);
/* Any thread: the signal mask of the thread that created the loop, for threads that should behave like the host's. */
const sigset_t *cell__loop_host_mask(const struct cell__loop *loop);
/* Any thread. */
void cell__loop_post(struct cell__loop *loop, struct cell__task *task);
/* Any thread.  As cell__loop_post(), but wakes no thread: some thread will run the loop within LINGER_MS anyway. */
void cell__loop_post_lazily(struct cell__loop *loop, struct cell__task *task);
bool cell__loop_is_current(struct cell__loop *loop);

/* An event that the loop's thread will signal.  Embedded by its owner; only the functions below touch its members. */
struct cell__waiter {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool done;
	bool yielding;
	int cpu; /* where it was signalled */
};
/* All for any thread. */
void cell__waiter_init(struct cell__waiter *waiter);
void cell__waiter_finish(struct cell__waiter *waiter);
void cell__waiter_signal(struct cell__waiter *waiter);
bool cell__waiter_is_done(struct cell__waiter *waiter);
/* Before waiting.  Yielding: the thread that signals the waiter needs the loop for that, so the caller must not keep the loop. */
void cell__waiter_set_yielding(struct cell__waiter *waiter, bool yielding);
/* The waiter's lock may guard the owner's own members too. */
void cell__waiter_lock(struct cell__waiter *waiter);
void cell__waiter_unlock(struct cell__waiter *waiter);
/* Under the lock: signals the waiter, or resets it for another wait. */
void cell__waiter_set_done(struct cell__waiter *waiter, bool done);

/*
 * Any thread but the loop's: runs task (may be NULL) on the loop and returns once the waiter is signalled.  To wait
 * for it again, clear it with cell__waiter_set_done().
 */
void cell__loop_do(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter);
/*
 * The same for frequent callers: the loop polls for events once per millisecond, not each time.  A task that
 * signals the waiter itself costs no system call on a quiet engine.
 */
void cell__loop_visit(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter);
/* The same for a function that has completed when it returns; on the loop's own thread it is called directly. */
void cell__loop_call(struct cell__loop *loop, void (*fn)(void *arg), void *arg);
/*
 * Any thread: runs the task on the loop; then, if this thread can run the loop, runs it for up to `us` microseconds more, until
 * *end is not 0.  The task has incremented the loop's count of running operations.
 */
void cell__loop_drive(struct cell__loop *loop, struct cell__task *task, const int *end, int64_t us);
/* The loop's thread: a program was sent a message and will probably answer soon. */
void cell__loop_expect(struct cell__loop *loop);
/* As cell__loop_call(), and then runs the loop in the same way. */
void cell__loop_call_and_stay(struct cell__loop *loop, void (*fn)(void *arg), void *arg, const int *end, int64_t us);

#endif
