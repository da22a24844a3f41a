/* loop: who runs it, in which order, and that somebody always does. */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "loop/loop_ref.h"

static struct cell__loop *start(void)
{
	struct cell__loop *loop;
	struct cell_error err;
	if (cell__loop_create(&loop, &err) < 0)
		fail_msg("%s", err.msg);
	return loop;
}

static bool is_set(void *flag)
{
	return atomic_load((atomic_int *)flag) != 0;
}

static void pause_ms(int ms)
{
	struct timespec time = { .tv_nsec = ms * 1000000L };
	nanosleep(&time, NULL);
}

/* ---- start, stop, post ---- */

static void test_start_stop(void **state)
{
	(void)state;
	for (int i = 0; i < 50; i++) {
		struct cell__loop *loop = start();
		assert_false(cell__loop_is_current(loop));
		cell__loop_destroy(loop);
	}
}

#define N_POSTS 1000

struct posted {
	struct cell__task task;
	struct posts *posts;
	int number;
};

struct posts {
	struct cell__loop *loop;
	struct posted task[N_POSTS];
	int order[N_POSTS];
	int n_run;
	atomic_int all;
	bool again; /* each task posts the one 500 after it */
};

static void run_posted(struct cell__task *task)
{
	struct posted *posted = (struct posted *)task;
	struct posts *posts = posted->posts;
	CHECK(cell__loop_is_current(posts->loop));
	posts->order[posts->n_run++] = posted->number;
	if (posts->again && posted->number < N_POSTS / 2)
		cell__loop_post(posts->loop, &posts->task[posted->number + N_POSTS / 2].task);
	if (posts->n_run == N_POSTS)
		atomic_store(&posts->all, 1);
}

static struct posts *make_posts(bool again)
{
	struct posts *posts = cell__alloc(1, sizeof *posts);
	posts->again = again;
	for (int i = 0; i < N_POSTS; i++)
		posts->task[i] = (struct posted){ .task.fn = run_posted, .posts = posts, .number = i };
	posts->loop = start();
	return posts;
}

static void check_posts(struct posts *posts)
{
	assert_true(support_wait(is_set, &posts->all));
	cell__loop_destroy(posts->loop);
	for (int i = 0; i < N_POSTS; i++)
		assert_int_equal(posts->order[i], i);
	free(posts);
}

static void test_post_order(void **state)
{
	(void)state;
	struct posts *posts = make_posts(false);
	for (int i = 0; i < N_POSTS; i++)
		cell__loop_post(posts->loop, &posts->task[i].task);
	check_posts(posts);
}

static void post_half(void *arg)
{
	struct posts *posts = arg;
	for (int i = 0; i < N_POSTS / 2; i++)
		cell__loop_post(posts->loop, &posts->task[i].task);
	CHECK(posts->n_run == 0);
}

/* From the loop's own thread: later, never from inside the call. */
static void test_post_from_the_loop(void **state)
{
	(void)state;
	struct posts *posts = make_posts(true);
	cell__loop_call(posts->loop, post_half, posts);
	check_posts(posts);
}

/* What was posted before the stop is still done. */
static void test_stop_runs_what_was_posted(void **state)
{
	(void)state;
	for (int round = 0; round < 20; round++) {
		struct posts *posts = make_posts(false);
		for (int i = 0; i < N_POSTS; i++)
			cell__loop_post(posts->loop, &posts->task[i].task);
		cell__loop_destroy(posts->loop);
		assert_int_equal(posts->n_run, N_POSTS);
		free(posts);
	}
}

/* ---- calls ---- */

struct counter {
	struct cell__loop *loop;
	long count; /* the loop's: a race would lose some */
	pthread_t ran_on;
	bool was_current;
};

static void add_one(void *arg)
{
	struct counter *counter = arg;
	counter->was_current = cell__loop_is_current(counter->loop);
	counter->count++;
	counter->ran_on = pthread_self();
}

static void test_call(void **state)
{
	(void)state;
	struct counter counter = { .count = 0 };
	counter.loop = start();
	for (int i = 0; i < 10000; i++) {
		cell__loop_call(counter.loop, add_one, &counter);
		assert_int_equal(counter.count, i + 1);
		assert_true(counter.was_current);
	}
	assert_false(cell__loop_is_current(counter.loop));
	cell__loop_destroy(counter.loop);
}

/* A caller runs the loop itself: nobody is woken for it. */
static void test_call_runs_here(void **state)
{
	(void)state;
	struct counter counter = { .count = 0 };
	counter.loop = start();
	for (int i = 0; i < 20; i++) {
		cell__loop_call(counter.loop, add_one, &counter);
		assert_true(pthread_equal(counter.ran_on, pthread_self()));
		pause_ms(i % 5); /* short of, around and past the time after which the engine's thread takes it back */
	}
	cell__loop_destroy(counter.loop);
}

static void *call_often(void *arg)
{
	struct counter *counter = arg;
	for (int i = 0; i < 10000; i++)
		cell__loop_call(counter->loop, add_one, counter);
	return NULL;
}

static void test_call_from_many_threads(void **state)
{
	(void)state;
	struct counter counter = { .count = 0 };
	pthread_t threads[8];
	counter.loop = start();
	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, call_often, &counter), 0);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(counter.count, 10000 * COUNT(threads));
	cell__loop_destroy(counter.loop);
}

/* The same with rests in between, so that the loop changes hands between callers and the engine's thread. */
static void *call_and_rest(void *arg)
{
	struct counter *counter = arg;
	for (int i = 0; i < 200; i++) {
		cell__loop_call(counter->loop, add_one, counter);
		if (i % 3 == 0)
			pause_ms(1 + i % 4);
		else if (i % 3 == 1)
			sched_yield();
	}
	return NULL;
}

static void test_hand_over(void **state)
{
	(void)state;
	for (int round = 0; round < 5; round++) {
		struct counter counter = { .count = 0 };
		pthread_t threads[6];
		counter.loop = start();
		for (size_t i = 0; i < COUNT(threads); i++)
			assert_int_equal(pthread_create(&threads[i], NULL, call_and_rest, &counter), 0);
		for (size_t i = 0; i < COUNT(threads); i++)
			pthread_join(threads[i], NULL);
		assert_int_equal(counter.count, 200 * COUNT(threads));
		cell__loop_destroy(counter.loop);
	}
}

/* ---- waiting ---- */

/* A task that ends by a timer of the loop. */
struct timed {
	struct cell__task task;
	struct cell__loop *loop;
	struct cell__waiter waiter;
	uv_timer_t timer;
	uint64_t after_ms;
	atomic_int started, fired, closed;
	pthread_t fired_on;
};

static void handle_timed_closed(uv_handle_t *handle)
{
	struct timed *timed = handle->data;
	atomic_store(&timed->closed, 1);
	cell__waiter_signal(&timed->waiter);
}

static void handle_timer(uv_timer_t *timer)
{
	struct timed *timed = timer->data;
	timed->fired_on = pthread_self();
	atomic_store(&timed->fired, 1);
	uv_close((uv_handle_t *)timer, handle_timed_closed);
}

static void start_timed(struct cell__task *task)
{
	struct timed *timed = (struct timed *)task;
	uv_timer_init(cell__loop_uv(timed->loop), &timed->timer);
	timed->timer.data = timed;
	uv_update_time(cell__loop_uv(timed->loop));
	uv_timer_start(&timed->timer, handle_timer, timed->after_ms, 0);
	atomic_store(&timed->started, 1);
}

static void init_timed(struct timed *timed, struct cell__loop *loop, uint64_t after_ms)
{
	*timed = (struct timed){ .task.fn = start_timed, .loop = loop, .after_ms = after_ms };
	cell__waiter_init(&timed->waiter);
}

static void *do_timed(void *arg)
{
	struct timed *timed = arg;
	cell__loop_do(timed->loop, &timed->task, &timed->waiter);
	CHECK(atomic_load(&timed->closed));
	return NULL;
}

/* While one caller waits and runs the loop, others are served by it. */
static void test_served_by_a_waiting_caller(void **state)
{
	(void)state;
	struct counter counter = { .count = 0 };
	counter.loop = start();
	struct timed timed;
	init_timed(&timed, counter.loop, 300);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, do_timed, &timed), 0);
	assert_true(support_wait(is_set, &timed.started));
	for (int i = 0; i < 100; i++) {
		cell__loop_call(counter.loop, add_one, &counter);
		assert_true(pthread_equal(counter.ran_on, thread) || atomic_load(&timed.fired));
	}
	assert_int_equal(counter.count, 100);
	pthread_join(thread, NULL);
	cell__waiter_finish(&timed.waiter);
	cell__loop_destroy(counter.loop);
}

/* The caller that ran the loop is done first: the other, who only waited, must still be served. */
static void test_the_driver_leaves_first(void **state)
{
	(void)state;
	struct cell__loop *loop = start();
	for (int round = 0; round < 20; round++) {
		struct timed first, second;
		pthread_t a, b;
		init_timed(&first, loop, 10);
		init_timed(&second, loop, 30);
		assert_int_equal(pthread_create(&a, NULL, do_timed, &first), 0);
		assert_true(support_wait(is_set, &first.started));
		assert_int_equal(pthread_create(&b, NULL, do_timed, &second), 0);
		pthread_join(a, NULL);
		pthread_join(b, NULL);
		cell__waiter_finish(&first.waiter);
		cell__waiter_finish(&second.waiter);
	}
	cell__loop_destroy(loop);
}

static void *do_timed_often(void *arg)
{
	struct cell__loop *loop = arg;
	for (int i = 0; i < 100; i++) {
		struct timed timed;
		init_timed(&timed, loop, (uint64_t)(i % 3));
		do_timed(&timed);
		cell__waiter_finish(&timed.waiter);
	}
	return NULL;
}

static void test_do_from_many_threads(void **state)
{
	(void)state;
	struct cell__loop *loop;
	pthread_t threads[8];
	loop = start();
	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, do_timed_often, loop), 0);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	cell__loop_destroy(loop);
}

/* A waiter may be waited for again once `done` is cleared, as a run with events does. */
static void test_waiter_again(void **state)
{
	(void)state;
	struct cell__loop *loop = start();
	for (int i = 0; i < 50; i++) {
		struct timed timed;
		init_timed(&timed, loop, 1);
		cell__waiter_signal(&timed.waiter); /* done before it begins: the task runs all the same */
		cell__loop_do(loop, &timed.task, &timed.waiter);
		assert_true(atomic_load(&timed.started));
		cell__waiter_lock(&timed.waiter);
		cell__waiter_set_done(&timed.waiter, atomic_load(&timed.closed));
		cell__waiter_unlock(&timed.waiter);
		cell__loop_do(loop, NULL, &timed.waiter);
		assert_true(atomic_load(&timed.closed));
		cell__waiter_finish(&timed.waiter);
	}
	cell__loop_destroy(loop);
}

/* ---- nobody calls ---- */

static void arm(void *arg)
{
	start_timed(arg);
}

static bool is_done(void *arg)
{
	return cell__waiter_is_done(arg);
}

/*
 * What the loop has to do between calls (timers, output of idle kernels, deaths) happens although nobody calls: the
 * engine's thread takes the loop back, after the first call as well as after many.
 */
static void test_served_between_calls(void **state)
{
	(void)state;
	struct counter counter = { .count = 0 };
	counter.loop = start();
	for (int round = 0; round < 30; round++) {
		/* Rests that let the engine's thread be in each of its states when the last caller leaves. */
		for (int i = 0; i < round % 4; i++) {
			cell__loop_call(counter.loop, add_one, &counter);
			pause_ms(round % 3 ? 3 : 0);
		}
		struct timed timed;
		init_timed(&timed, counter.loop, 5);
		cell__loop_call(counter.loop, arm, &timed);
		if (!support_wait(is_done, &timed.waiter))
			fail_msg("round %d: nobody ran the loop", round);
		assert_false(pthread_equal(timed.fired_on, pthread_self()));
		cell__waiter_finish(&timed.waiter);
	}
	cell__loop_destroy(counter.loop);
}

static void signals_blocked(struct cell__task *task)
{
	struct timed *timed = (struct timed *)task;
	sigset_t now;
	pthread_sigmask(SIG_SETMASK, NULL, &now);
	timed->fired_on = pthread_self();
	bool all = true;
	for (int signal = 1; signal < 32; signal++)
		all &= signal == SIGKILL || signal == SIGSTOP || sigismember(&now, signal) == 1;
	atomic_store(&timed->fired, all ? 1 : -1);
}

static void test_engine_thread_blocks_signals(void **state)
{
	(void)state;
	struct cell__loop *loop;
	sigset_t before, after;
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	loop = start();
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	for (int signal = 1; signal < 32; signal++)
		assert_int_equal(sigismember(&before, signal), sigismember(&after, signal)); /* ours stay as they were */
	struct timed timed;
	init_timed(&timed, loop, 0);
	timed.task.fn = signals_blocked;
	cell__loop_post(loop, &timed.task);
	assert_true(support_wait(is_set, &timed.fired));
	assert_int_equal(atomic_load(&timed.fired), 1);
	assert_false(pthread_equal(timed.fired_on, pthread_self()));
	cell__waiter_finish(&timed.waiter);
	cell__loop_destroy(loop);
}

/* How often the engine's thread went to sleep. */
static long engine_sleeps(void)
{
	char path[64], line[256];
	long sleeps = -1;
	DIR *tasks = opendir("/proc/self/task");
	assert_non_null(tasks);
	for (struct dirent *entry; sleeps < 0 && (entry = readdir(tasks));) {
		snprintf(path, sizeof path, "/proc/self/task/%.20s/status", entry->d_name);
		FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "re");
		bool is_engine = false;
		while (status && fgets(line, sizeof line, status)) {
			is_engine |= strcmp(line, "Name:\tworkcell\n") == 0;
			if (is_engine && sscanf(line, "voluntary_ctxt_switches: %ld", &sleeps) == 1)
				break;
		}
		if (status)
			fclose(status);
	}
	closedir(tasks);
	return sleeps;
}

/* A caller that comes after a pause does not wait for the engine's thread to wake up, and does not wake it. */
static void test_idle_loop_is_taken(void **state)
{
	(void)state;
	struct counter counter = { .loop = start() };
	for (int i = 0; i < 10; i++) {
		long before, after;
		do {
			before = engine_sleeps();
			pause_ms(20);
			after = engine_sleeps();
		} while (before != after);
		cell__loop_call(counter.loop, add_one, &counter);
		pause_ms(20);
		assert_int_equal(engine_sleeps(), after);
	}
	assert_int_equal(counter.count, 10);
	cell__loop_destroy(counter.loop);
}

static void test_several_loops(void **state)
{
	(void)state;
	struct counter counters[4] = { { .count = 0 } };
	for (size_t i = 0; i < COUNT(counters); i++)
		counters[i].loop = start();
	for (int round = 0; round < 100; round++)
		for (size_t i = 0; i < COUNT(counters); i++)
			cell__loop_call(counters[i].loop, add_one, &counters[i]);
	for (size_t i = 0; i < COUNT(counters); i++) {
		assert_int_equal(counters[i].count, 100);
		cell__loop_destroy(counters[i].loop);
	}
}

/* ---- replies from the host's threads ---- */

static void test_ref_limits(void **state)
{
	(void)state;
	struct cell__loop *loop = start();
	struct cell__loop_ref *ref = cell__loop_ref_create(loop);
	assert_true(cell__loop_ref_try_ref(ref, 60, 2, 100));
	assert_false(cell__loop_ref_try_ref(ref, 41, 2, 100));
	assert_true(cell__loop_ref_try_ref(ref, 40, 2, 100));
	assert_false(cell__loop_ref_try_ref(ref, 0, 2, 100));
	assert_false(cell__loop_ref_try_ref(ref, 1, 9, 50)); /* more is taken than the limit: no room, and no overflow */
	cell__loop_ref_unref(ref, 60);
	assert_true(cell__loop_ref_try_ref(ref, 60, 2, 100));
	cell__loop_ref_unref(ref, 60);
	cell__loop_ref_unref(ref, 40);
	cell__loop_ref_close(ref);
	cell__loop_destroy(loop);
}

struct replied {
	struct cell__reply reply; /* first */
	struct cell__loop *loop;
	atomic_int handled, dropped;
};

static void handle_reply(struct cell__reply *reply)
{
	struct replied *replied = (struct replied *)reply;
	CHECK(cell__loop_is_current(replied->loop));
	CHECK(strcmp(reply->bytes.data, reply->kind == CELL__REPLY_JSON ? "\xff" : "\xef\xbf\xbd") == 0);
	reply->bytes.size = 0;
	atomic_fetch_add(&replied->handled, 1);
}

static void drop_reply(struct cell__reply *reply)
{
	atomic_fetch_add(&((struct replied *)reply)->dropped, 1);
}

static void send_here(void *arg)
{
	struct replied *replied = arg;
	cell__reply_send(&replied->reply, CELL__REPLY_JSON, "\xff", 1);
	CHECK(atomic_load(&replied->handled) == 2); /* at once on the loop's own thread */
}

static void test_replies(void **state)
{
	(void)state;
	struct cell__loop *loop = start();
	struct cell__loop_ref *ref = cell__loop_ref_create(loop);
	struct replied replied = { .reply = { .ref = cell__loop_ref_ref(ref), .handle = handle_reply, .drop = drop_reply }, .loop = loop };
	cell__reply_send(&replied.reply, CELL__REPLY_TEXT, "\xff", 1);
	assert_true(support_wait(is_set, &replied.handled));
	cell__loop_call(loop, send_here, &replied);
	cell__loop_ref_close(ref);
	cell__loop_destroy(loop);
	cell__reply_send(&replied.reply, CELL__REPLY_FAIL, "late", 4);
	assert_int_equal(atomic_load(&replied.handled), 2);
	assert_int_equal(atomic_load(&replied.dropped), 1);
	cell__loop_ref_unref(replied.reply.ref, 0);
	cell__buf_finish(&replied.reply.bytes);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_start_stop),
		TEST(test_post_order),
		TEST(test_post_from_the_loop),
		TEST(test_stop_runs_what_was_posted),
		TEST(test_call),
		TEST(test_call_runs_here),
		TEST(test_call_from_many_threads),
		TEST(test_hand_over),
		TEST(test_served_by_a_waiting_caller),
		TEST(test_the_driver_leaves_first),
		TEST(test_do_from_many_threads),
		TEST(test_waiter_again),
		TEST(test_served_between_calls),
		TEST(test_engine_thread_blocks_signals),
		TEST(test_idle_loop_is_taken),
		TEST(test_several_loops),
		TEST(test_ref_limits),
		TEST(test_replies),
	};
	return cmocka_run_group_tests_name("loop", tests, NULL, NULL);
}
