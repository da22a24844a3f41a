#define _GNU_SOURCE
#include "loop/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>

/* How long the loop may lie idle between two calls before the engine's own thread takes it back. */
#define LINGER_MS 2
#define RECENT_MS 50

static void run_tasks(struct cell__loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	struct cell__task *task = loop->first;
	loop->first = loop->last = NULL;
	pthread_mutex_unlock(&loop->lock);
	while (task) {
		struct cell__task *next = task->next; /* fn may free the task */
		task->fn(task);
		task = next;
	}
}

static void handle_wake(uv_async_t *wake)
{
	struct cell__loop *loop = wake->data;
	run_tasks(loop);
	pthread_mutex_lock(&loop->lock);
	bool hand_over = loop->wanting > 0 && pthread_equal(loop->owner, loop->thread);
	bool stopping = loop->stopping && !loop->first; /* what was posted before the end still runs */
	pthread_mutex_unlock(&loop->lock);
	if (stopping && !uv_is_closing((uv_handle_t *)wake)) {
		uv_close((uv_handle_t *)wake, NULL);
		uv_close((uv_handle_t *)&loop->before_poll, NULL);
	}
	if (hand_over)
		uv_stop(&loop->uv);
}

static bool is_done(struct cell__waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	bool done = waiter->done;
	pthread_mutex_unlock(&waiter->lock);
	return done;
}

/*
 * Timers run before the poll: what the caller waits for may be done by now, and then there may be nothing to poll for.
 */
static void handle_before_poll(uv_prepare_t *prepare)
{
	struct cell__loop *loop = prepare->data;
	if (loop->driven_for && is_done(loop->driven_for))
		uv_stop(&loop->uv);
}

/* ---- whose turn it is; all under the lock ---- */

static void wait_ms(struct cell__loop *loop, int ms)
{
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += ms * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_cond_timedwait(&loop->engine_cond, &loop->lock, &until);
}

static bool nobody_else_cares(const struct cell__loop *loop)
{
	return loop->waiting == 0 && loop->busy == 0 && !loop->first && !loop->stopping;
}

static bool is_quiet(struct cell__loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	bool quiet = nobody_else_cares(loop);
	pthread_mutex_unlock(&loop->lock);
	return quiet && loop->uv.active_reqs.count == 0; /* work on the pool needs the CPU more */
}

/*
 * While callers come and go quickly we look every LINGER_MS, so that they need not wake us each time; when one stays
 * (a long cell) we sleep until it leaves.
 */
static void wait_while_owned(struct cell__loop *loop)
{
	if (cell__now_us() - loop->left_us < RECENT_MS * 1000) {
		wait_ms(loop, LINGER_MS);
		return;
	}
	loop->asleep = true;
	pthread_cond_wait(&loop->engine_cond, &loop->lock);
	loop->asleep = false;
}

static void *thread_main(void *arg)
{
	struct cell__loop *loop = arg;
	pthread_setname_np(pthread_self(), "workcell");
	bool alive = true;
	while (alive) {
		pthread_mutex_lock(&loop->lock);
		while (loop->owned || loop->wanting > 0)
			wait_while_owned(loop);
		int64_t idle_us = cell__now_us() - loop->left_us;
		if (idle_us < LINGER_MS * 1000 && nobody_else_cares(loop)) {
			wait_ms(loop, LINGER_MS);
			pthread_mutex_unlock(&loop->lock);
			continue;
		}
		loop->owned = true;
		loop->owner = loop->thread;
		pthread_mutex_unlock(&loop->lock);
		alive = uv_run(&loop->uv, UV_RUN_DEFAULT) != 0;
		pthread_mutex_lock(&loop->lock);
		loop->owned = false;
		pthread_cond_signal(&loop->free_cond);
		pthread_mutex_unlock(&loop->lock);
	}
	return NULL;
}

/* Whoever runs the loop does the task.  Called with the lock held, and lets go of it. */
static void leave_to_others(struct cell__loop *loop, struct cell__task *task)
{
	loop->waiting++;
	pthread_mutex_unlock(&loop->lock);
	if (task)
		cell__loop_post(loop, task);
}

/* Makes this thread the one that runs the loop.  False: another caller does already, and will serve us. */
static bool enter(struct cell__loop *loop, struct cell__task *task)
{
	pthread_mutex_lock(&loop->lock);
	if (loop->owned && (loop->wanting > 0 || !pthread_equal(loop->owner, loop->thread))) {
		leave_to_others(loop, task);
		return false;
	}
	if (loop->owned) {
		loop->wanting++;
		uv_async_send(&loop->wake);
		while (loop->owned && pthread_equal(loop->owner, loop->thread))
			pthread_cond_wait(&loop->free_cond, &loop->lock);
		loop->wanting--;
	}
	/* Another caller was faster when the engine let go.  What it waits for may need us: it has to be told. */
	if (loop->owned) {
		leave_to_others(loop, task);
		return false;
	}
	loop->owned = true;
	loop->owner = pthread_self();
	pthread_mutex_unlock(&loop->lock);
	return true;
}

static void leave(struct cell__loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->owned = false;
	/* Somebody asked the engine for it, and we were faster. */
	if (loop->wanting > 0)
		pthread_cond_signal(&loop->free_cond);
	/* Others are under way: the engine must run the loop for them at once.  Else it looks soon by itself. */
	loop->left_us = cell__now_us();
	if (loop->asleep || !nobody_else_cares(loop))
		pthread_cond_signal(&loop->engine_cond);
	pthread_mutex_unlock(&loop->lock);
}

/* ---- start and stop ---- */

/* libuv aborts when it has to close one of the numbers 0 to 2: in a host without them its own must not land there. */
static int init_uv(struct cell__loop *loop)
{
	int taken[3], n = 0, fd;
	while (n < 3 && (fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) {
		taken[n++] = fd;
		if (fd > 2)
			break;
	}
	int rc = uv_loop_init(&loop->uv);
	if (rc == 0) {
		rc = uv_async_init(&loop->uv, &loop->wake, handle_wake);
		if (rc < 0)
			uv_loop_close(&loop->uv);
	}
	while (n > 0)
		close(taken[--n]);
	return rc;
}

int cell__loop_start(struct cell__loop *loop, struct cell_error *err)
{
	*loop = (struct cell__loop){ 0 };
	loop->wake.data = loop;
	int rc = init_uv(loop);
	if (rc < 0)
		return cell_fail(err, CELL_E_IO, -rc, "start the engine's loop");
	uv_prepare_init(&loop->uv, &loop->before_poll);
	loop->before_poll.data = loop;
	uv_prepare_start(&loop->before_poll, handle_before_poll);
	uv_unref((uv_handle_t *)&loop->before_poll);
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_mutex_init(&loop->lock, NULL);
	pthread_cond_init(&loop->free_cond, NULL);
	pthread_cond_init(&loop->engine_cond, &monotonic);
	pthread_condattr_destroy(&monotonic);
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&loop->thread, NULL, thread_main, loop);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc != 0) {
		uv_close((uv_handle_t *)&loop->wake, NULL);
		uv_close((uv_handle_t *)&loop->before_poll, NULL);
		uv_run(&loop->uv, UV_RUN_DEFAULT);
		uv_loop_close(&loop->uv);
		return cell_fail(err, CELL_E_IO, rc, "start the engine's thread");
	}
	return 0;
}

void cell__loop_stop(struct cell__loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->stopping = true;
	pthread_cond_signal(&loop->engine_cond);
	pthread_mutex_unlock(&loop->lock);
	uv_async_send(&loop->wake);
	pthread_join(loop->thread, NULL);
	uv_loop_close(&loop->uv);
	pthread_cond_destroy(&loop->engine_cond);
	pthread_cond_destroy(&loop->free_cond);
	pthread_mutex_destroy(&loop->lock);
}

void cell__loop_post(struct cell__loop *loop, struct cell__task *task)
{
	task->next = NULL;
	pthread_mutex_lock(&loop->lock);
	bool first = loop->first == NULL;
	if (first)
		loop->first = task;
	else
		loop->last->next = task;
	loop->last = task;
	if (first && !loop->owned)
		pthread_cond_signal(&loop->engine_cond);
	pthread_mutex_unlock(&loop->lock);
	if (first)
		uv_async_send(&loop->wake);
}

bool cell__loop_is_current(struct cell__loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	bool current = loop->owned && pthread_equal(loop->owner, pthread_self());
	pthread_mutex_unlock(&loop->lock);
	return current;
}

/* ---- waiting ---- */

void cell__waiter_init(struct cell__waiter *waiter)
{
	pthread_mutex_init(&waiter->lock, NULL);
	pthread_cond_init(&waiter->cond, NULL);
	waiter->done = false;
}

void cell__waiter_finish(struct cell__waiter *waiter)
{
	pthread_cond_destroy(&waiter->cond);
	pthread_mutex_destroy(&waiter->lock);
}

void cell__waiter_signal(struct cell__waiter *waiter)
{
	/* Signalled under the lock: the waiter's memory may be gone as soon as it has seen `done`. */
	pthread_mutex_lock(&waiter->lock);
	waiter->done = true;
	pthread_cond_signal(&waiter->cond);
	pthread_mutex_unlock(&waiter->lock);
}

void cell__loop_do(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter)
{
	if (!enter(loop, task)) {
		pthread_mutex_lock(&waiter->lock);
		while (!waiter->done)
			pthread_cond_wait(&waiter->cond, &waiter->lock);
		pthread_mutex_unlock(&waiter->lock);
		pthread_mutex_lock(&loop->lock);
		loop->waiting--;
		pthread_mutex_unlock(&loop->lock);
		return;
	}
	/* What happened before this call is handled before it: events of the loop, then tasks in the order of the calls. */
	uv_run(&loop->uv, UV_RUN_NOWAIT);
	run_tasks(loop);
	loop->driven_for = waiter;
	if (task)
		task->fn(task);
	while (!is_done(waiter)) {
		if (loop->look && is_quiet(loop))
			loop->look(loop->look_arg);
		uv_run(&loop->uv, UV_RUN_ONCE);
	}
	loop->driven_for = NULL;
	leave(loop);
}

struct call {
	struct cell__task task;
	void (*fn)(void *arg);
	void *arg;
	struct cell__waiter waiter;
};

static void run_call(struct cell__task *task)
{
	struct call *call = (struct call *)task;
	call->fn(call->arg);
	cell__waiter_signal(&call->waiter);
}

void cell__loop_call(struct cell__loop *loop, void (*fn)(void *arg), void *arg)
{
	struct call call = { .task.fn = run_call, .fn = fn, .arg = arg };
	cell__waiter_init(&call.waiter);
	cell__loop_do(loop, &call.task, &call.waiter);
	cell__waiter_finish(&call.waiter);
}
