#define _GNU_SOURCE
#include "loop/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>

#include "base/spin.h"

/* How long the loop may be idle between two calls before the engine's own thread takes it back. */
#define LINGER_MS 2
#define RECENT_MS 50
#define VISIT_POLL_US 1000
/* How long a waiter spins before it sleeps: for another thread, and for a program that was sent something. */
#define YIELDING_SPIN_NS 50000
/* A wait that slept this long would have been short enough for spinning: both sides had to be woken. */
#define YIELDING_SLEEP_NS (2 * YIELDING_SPIN_NS)
#define EVENT_SPIN_NS 100000

struct cell__loop {
	uv_loop_t uv;
	uv_async_t wake;
	uv_prepare_t before_poll;
	struct cell__waiter *driven_for; /* loop's thread: the waiter of the caller that runs the loop */
	void (*spin)(void *arg);         /* loop's thread; or NULL */
	void *spin_arg;
	int busy;          /* loop's thread: things under way that no caller waits for */
	int64_t polled_us; /* loop's thread: when a visit last polled for events */
	struct cell_spin yielding_spin, event_spin;
	sigset_t host_mask; /* of the thread that created the loop */
	pthread_t thread;
	pthread_mutex_t lock;       /* guards all below */
	pthread_cond_t free_cond;   /* the loop became free: for callers */
	pthread_cond_t engine_cond; /* for the engine's thread */
	struct cell__task *first, *last;
	bool owned;
	pthread_t owner;
	int wanting;     /* callers that wait to run the loop */
	int waiting;     /* callers that wait while another thread runs the loop for them */
	int64_t left_us; /* when a caller last left it */
	bool asleep;     /* the engine's thread sleeps until it is signalled */
	bool watching;   /* it sleeps until watch_fd is readable, or until ... */
	uint64_t watched_until_ms; /* ... this time of the loop; UINT64_MAX: for as long as it takes */
	int watch_fd;              /* an epoll instance with libuv's descriptor in it */
	bool disarmed;             /* events do not wake the engine's thread, because a caller runs the loop */
	bool stopping;
};

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
	bool stopping = loop->stopping && !loop->first; /* tasks posted before the end still run */
	pthread_mutex_unlock(&loop->lock);
	if (stopping && !uv_is_closing((uv_handle_t *)wake)) {
		uv_close((uv_handle_t *)wake, NULL);
		uv_close((uv_handle_t *)&loop->before_poll, NULL);
	}
}

/* Timers run before the poll: the event that the caller waits for may have happened by now, and then there may be nothing to poll for. */
static void handle_before_poll(uv_prepare_t *prepare)
{
	struct cell__loop *loop = prepare->data;
	if (loop->driven_for && cell__waiter_is_done(loop->driven_for))
		uv_stop(&loop->uv);
}

/* ---- which thread runs the loop; all under the lock ---- */

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
 * While callers come and go quickly this thread polls every LINGER_MS, so that they need not wake it each time; when a caller stays (a long
 * cell) this thread sleeps until it leaves.
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

/*
 * The time of the loop's next own activity, on its own clock; 0: at once. libuv tells its descriptor about new watchers only when it polls,
 * and uv_backend_timeout() of versions before 1.45 does not consider them.
 */
static uint64_t due_ms(const struct cell__loop *loop)
{
	const void *queue = &loop->uv.watcher_queue;
	bool has_new_watchers = *(const void *const *)queue != queue;
	int timeout = has_new_watchers ? 0 : uv_backend_timeout(&loop->uv);
	return timeout < 0 ? UINT64_MAX : timeout == 0 ? 0 : uv_now(&loop->uv) + (uint64_t)timeout;
}

static void arm(struct cell__loop *loop, bool armed)
{
	struct epoll_event event = { .events = armed ? EPOLLIN : 0 };
	(void)epoll_ctl(loop->watch_fd, EPOLL_CTL_MOD, uv_backend_fd(&loop->uv), &event); /* fails only if no descriptor is available */
	loop->disarmed = !armed;
}

/* Sleeps until the loop has something to do.  Called with the lock held, by the engine's thread without the loop. */
static void watch(struct cell__loop *loop)
{
	uint64_t due = due_ms(loop);
	if (due == 0)
		return;
	uint64_t left = due == UINT64_MAX ? 0 : due - uv_now(&loop->uv);
	struct epoll_event event;
	if (loop->disarmed)
		arm(loop, true);
	loop->watching = true;
	loop->watched_until_ms = due;
	pthread_mutex_unlock(&loop->lock);
	/* The result does not matter: the loop polls itself. */
	(void)epoll_wait(loop->watch_fd, &event, 1, due == UINT64_MAX ? -1 : left > INT_MAX ? INT_MAX : (int)left);
	pthread_mutex_lock(&loop->lock);
	loop->watching = false;
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
		if (loop->first)
			uv_async_send(&loop->wake); /* some may have been posted lazily */
		pthread_mutex_unlock(&loop->lock);
		alive = uv_run(&loop->uv, UV_RUN_NOWAIT) != 0;
		pthread_mutex_lock(&loop->lock);
		loop->owned = false;
		if (loop->wanting > 0)
			pthread_cond_signal(&loop->free_cond);
		else if (alive && !loop->first && !loop->stopping)
			watch(loop);
		pthread_mutex_unlock(&loop->lock);
	}
	return NULL;
}

/*
 * The thread that runs the loop does the task. Called with the lock held, and releases it. A yielding waiter does not need the loop
 * afterwards, so it is not counted in `waiting`.
 */
static void leave_to_others(struct cell__loop *loop, struct cell__task *task, bool yielding)
{
	loop->waiting += !yielding;
	pthread_mutex_unlock(&loop->lock);
	if (task)
		cell__loop_post(loop, task);
}

/* Makes this thread the one that runs the loop. False: another caller runs it already, and will serve us. */
static bool enter(struct cell__loop *loop, struct cell__task *task, bool yielding)
{
	pthread_mutex_lock(&loop->lock);
	if (loop->owned && (loop->wanting > 0 || !pthread_equal(loop->owner, loop->thread))) {
		leave_to_others(loop, task, yielding);
		return false;
	}
	if (loop->owned) {
		loop->wanting++;
		while (loop->owned && pthread_equal(loop->owner, loop->thread))
			pthread_cond_wait(&loop->free_cond, &loop->lock);
		loop->wanting--;
	}
	/* Another caller took the loop first; hand it our task, because its own wait may depend on it. */
	if (loop->owned) {
		leave_to_others(loop, task, yielding);
		return false;
	}
	loop->owned = true;
	loop->owner = pthread_self();
	pthread_mutex_unlock(&loop->lock);
	return true;
}

/*
 * Before a caller waits for events: the engine's thread need not wake up for them.  Callers that come quickly one after the other do
 * without, and the first event makes that thread linger.
 */
static void keep_events(struct cell__loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	if (loop->watching && !loop->disarmed && cell__now_us() - loop->left_us >= LINGER_MS * 1000)
		arm(loop, false);
	pthread_mutex_unlock(&loop->lock);
}

/* soon: this thread comes back, so work in progress may wait until the engine's thread polls by itself. */
static void leave_for(struct cell__loop *loop, bool soon)
{
	pthread_mutex_lock(&loop->lock);
	loop->owned = false;
	/* A caller asked the engine for the loop, and we took it first. */
	if (loop->wanting > 0)
		pthread_cond_signal(&loop->free_cond);
	/* Other callers have work in progress: the engine must run the loop for them at once. Else it polls soon by itself. */
	loop->left_us = cell__now_us();
	bool cares = soon ? loop->waiting > 0 || loop->first || loop->stopping : !nobody_else_cares(loop);
	bool look_again = loop->watching && (loop->waiting > 0 || loop->first || loop->stopping || due_ms(loop) < loop->watched_until_ms);
	if (loop->asleep || (cares && !loop->watching))
		pthread_cond_signal(&loop->engine_cond);
	if (loop->watching && loop->disarmed)
		arm(loop, true);
	pthread_mutex_unlock(&loop->lock);
	if (look_again)
		uv_async_send(&loop->wake);
}

static void leave(struct cell__loop *loop)
{
	leave_for(loop, false);
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

/* Before there is a thread. */
static void close_uv(struct cell__loop *loop)
{
	cell__close_fd(&loop->watch_fd);
	uv_close((uv_handle_t *)&loop->wake, NULL);
	uv_run(&loop->uv, UV_RUN_DEFAULT);
	uv_loop_close(&loop->uv);
}

int cell__loop_create(struct cell__loop **ret_loop, struct cell_error *err)
{
	CELL_AUTO_FREE struct cell__loop *loop = cell__alloc(1, sizeof *loop);
	if (!loop)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the engine's loop");
	loop->wake.data = loop;
	int rc = init_uv(loop);
	if (rc < 0)
		return cell_fail(err, CELL_E_IO, -rc, "start the engine's loop");
	struct epoll_event event = { .events = EPOLLIN };
	loop->watch_fd = epoll_create1(EPOLL_CLOEXEC);
	if (loop->watch_fd < 0 || epoll_ctl(loop->watch_fd, EPOLL_CTL_ADD, uv_backend_fd(&loop->uv), &event) < 0) {
		rc = errno;
		close_uv(loop);
		return cell_fail(err, CELL_E_IO, rc, "watch the engine's loop");
	}
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
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &loop->host_mask);
	rc = pthread_create(&loop->thread, NULL, thread_main, loop);
	pthread_sigmask(SIG_SETMASK, &loop->host_mask, NULL);
	if (rc != 0) {
		uv_close((uv_handle_t *)&loop->before_poll, NULL);
		close_uv(loop);
		return cell_fail(err, CELL_E_IO, rc, "start the engine's thread");
	}
	*ret_loop = cell__take_ptr(loop);
	return 0;
}

void cell__loop_destroy(struct cell__loop *loop)
{
	if (!loop)
		return;
	pthread_mutex_lock(&loop->lock);
	loop->stopping = true;
	pthread_cond_signal(&loop->engine_cond);
	pthread_mutex_unlock(&loop->lock);
	uv_async_send(&loop->wake);
	pthread_join(loop->thread, NULL);
	cell__close_fd(&loop->watch_fd);
	uv_loop_close(&loop->uv);
	pthread_cond_destroy(&loop->engine_cond);
	pthread_cond_destroy(&loop->free_cond);
	pthread_mutex_destroy(&loop->lock);
	free(loop);
}

uv_loop_t *cell__loop_uv(struct cell__loop *loop)
{
	return &loop->uv;
}

void cell__loop_add_busy(struct cell__loop *loop, int by)
{
	loop->busy += by;
}

void cell__loop_set_spin(struct cell__loop *loop, void (*spin)(void *arg), void *arg)
{
	loop->spin = spin;
	loop->spin_arg = arg;
}

void cell__loop_drop_spin(struct cell__loop *loop, const void *arg)
{
	if (loop->spin_arg == arg)
		cell__loop_set_spin(loop, NULL, NULL);
}

const sigset_t *cell__loop_host_mask(const struct cell__loop *loop)
{
	return &loop->host_mask;
}

/* Under the lock; whether it is the only task. */
static bool append(struct cell__loop *loop, struct cell__task *task)
{
	bool first = loop->first == NULL;
	task->next = NULL;
	if (first)
		loop->first = task;
	else
		loop->last->next = task;
	loop->last = task;
	return first;
}

void cell__loop_post(struct cell__loop *loop, struct cell__task *task)
{
	pthread_mutex_lock(&loop->lock);
	/* Earlier tasks may have been posted lazily. */
	(void)append(loop, task);
	if (!loop->owned)
		pthread_cond_signal(&loop->engine_cond);
	pthread_mutex_unlock(&loop->lock);
	uv_async_send(&loop->wake);
}

void cell__loop_post_lazily(struct cell__loop *loop, struct cell__task *task)
{
	pthread_mutex_lock(&loop->lock);
	bool wake = append(loop, task) && (loop->owned || loop->watching);
	pthread_mutex_unlock(&loop->lock);
	if (wake)
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
	waiter->done = waiter->yielding = false;
}

void cell__waiter_finish(struct cell__waiter *waiter)
{
	pthread_cond_destroy(&waiter->cond);
	pthread_mutex_destroy(&waiter->lock);
}

void cell__waiter_set_yielding(struct cell__waiter *waiter, bool yielding)
{
	waiter->yielding = yielding;
}

void cell__waiter_lock(struct cell__waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
}

void cell__waiter_unlock(struct cell__waiter *waiter)
{
	pthread_mutex_unlock(&waiter->lock);
}

/* Signalled under the lock: the waiter's memory may be gone as soon as its owner has seen `done`. */
void cell__waiter_set_done(struct cell__waiter *waiter, bool done)
{
	waiter->cpu = sched_getcpu();
	__atomic_store_n(&waiter->done, done, __ATOMIC_RELEASE);
	if (done)
		pthread_cond_signal(&waiter->cond);
}

void cell__waiter_signal(struct cell__waiter *waiter)
{
	cell__waiter_lock(waiter);
	cell__waiter_set_done(waiter, true);
	cell__waiter_unlock(waiter);
}

bool cell__waiter_is_done(struct cell__waiter *waiter)
{
	cell__waiter_lock(waiter);
	bool done = waiter->done;
	cell__waiter_unlock(waiter);
	return done;
}

static bool is_announced(const void *arg)
{
	const struct cell__waiter *waiter = arg;
	return __atomic_load_n(&waiter->done, __ATOMIC_ACQUIRE);
}

static bool has_events(const void *arg)
{
	struct pollfd poller = { .fd = *(const int *)arg, .events = POLLIN };
	sched_yield(); /* the program may need this CPU for the event we wait for */
	return poll(&poller, 1, 0) > 0;
}

static void spin_for_events(void *arg)
{
	struct cell__loop *loop = arg;
	int fd = uv_backend_fd(&loop->uv);
	(void)cell_spin(&loop->event_spin, EVENT_SPIN_NS, false, has_events, &fd);
}

void cell__loop_expect(struct cell__loop *loop)
{
	cell__loop_set_spin(loop, spin_for_events, loop);
}

static void wait_done(struct cell__waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	while (!waiter->done)
		pthread_cond_wait(&waiter->cond, &waiter->lock);
	pthread_mutex_unlock(&waiter->lock);
}

/* Everything that happened before a call is handled before it: events of the loop, then tasks in the order of the calls. */
static void catch_up(struct cell__loop *loop, bool visit)
{
	int64_t now = visit ? cell__now_us() : 0;
	if (!visit || now - loop->polled_us >= VISIT_POLL_US) {
		uv_run(&loop->uv, UV_RUN_NOWAIT);
		loop->polled_us = now;
	}
	run_tasks(loop);
}

static void run_for(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter, bool visit)
{
	bool yielding = waiter->yielding;
	if (!enter(loop, task, yielding)) {
		wait_done(waiter);
		pthread_mutex_lock(&loop->lock);
		loop->waiting -= !yielding;
		pthread_mutex_unlock(&loop->lock);
		return;
	}
	catch_up(loop, visit || yielding);
	loop->driven_for = waiter;
	if (task)
		task->fn(task);
	while (!cell__waiter_is_done(waiter)) {
		if (yielding) {
			loop->driven_for = NULL;
			leave(loop);
			/* Gives way: the thread that signals it may have been woken on this CPU. */
			(void)cell_spin(&loop->yielding_spin, YIELDING_SPIN_NS, true, is_announced, waiter);
			wait_done(waiter);
			cell_spin_has_slept(&loop->yielding_spin, YIELDING_SLEEP_NS, waiter->cpu != sched_getcpu());
			return;
		}
		keep_events(loop);
		if (loop->spin && is_quiet(loop))
			loop->spin(loop->spin_arg);
		uv_run(&loop->uv, UV_RUN_ONCE);
		cell_spin_has_slept(&loop->event_spin, EVENT_SPIN_NS, true);
	}
	loop->driven_for = NULL;
	leave(loop);
}

void cell__loop_do(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter)
{
	run_for(loop, task, waiter, false);
}

void cell__loop_visit(struct cell__loop *loop, struct cell__task *task, struct cell__waiter *waiter)
{
	run_for(loop, task, waiter, true);
}

/*
 * libuv would need a timer of its own, so wait for its descriptor instead. A wait that ends before the scheduler's next tick is expensive,
 * because the tick is reprogrammed for it and back again: many microseconds in a virtual machine.
 */
static void run_briefly(struct cell__loop *loop, const int *end, int64_t until_us)
{
	while (!__atomic_load_n(end, __ATOMIC_RELAXED)) {
		keep_events(loop);
		if (loop->spin && is_quiet(loop))
			loop->spin(loop->spin_arg);
		int64_t left_us = until_us - cell__now_us();
		if (left_us <= 0)
			return;
		struct pollfd poller = { .fd = uv_backend_fd(&loop->uv), .events = POLLIN };
		struct timespec left = { .tv_sec = left_us / 1000000, .tv_nsec = left_us % 1000000 * 1000 };
		(void)ppoll(&poller, 1, &left, NULL); /* the result does not matter: the loop polls itself */
		cell_spin_has_slept(&loop->event_spin, EVENT_SPIN_NS, true);
		uv_run(&loop->uv, UV_RUN_NOWAIT);
	}
}

/* False: nothing was done, because this thread cannot have the loop. */
static bool drive(struct cell__loop *loop, void (*fn)(void *arg), void *arg, const int *end, int64_t us)
{
	if (us <= 0 || cell__loop_is_current(loop) || !enter(loop, NULL, true))
		return false;
	catch_up(loop, true);
	fn(arg);
	int own = loop->busy > 0; /* while we are here a caller waits for it */
	loop->busy -= own;
	run_briefly(loop, end, cell__now_us() + us);
	loop->busy += own;
	leave_for(loop, __atomic_load_n(end, __ATOMIC_RELAXED) != 0);
	return true;
}

static void run_task(void *arg)
{
	struct cell__task *task = arg;
	task->fn(task);
}

void cell__loop_drive(struct cell__loop *loop, struct cell__task *task, const int *end, int64_t us)
{
	if (!drive(loop, run_task, task, end, us))
		cell__loop_post(loop, task);
}

void cell__loop_call_and_stay(struct cell__loop *loop, void (*fn)(void *arg), void *arg, const int *end, int64_t us)
{
	if (!drive(loop, fn, arg, end, us))
		cell__loop_call(loop, fn, arg);
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
	if (cell__loop_is_current(loop)) {
		fn(arg);
		return;
	}
	cell__waiter_init(&call.waiter);
	cell__loop_do(loop, &call.task, &call.waiter);
	cell__waiter_finish(&call.waiter);
}
