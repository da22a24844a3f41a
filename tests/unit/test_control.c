/* The public API: interrupt, timeout, reset, close, and the deaths of zygote and spawner. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

/* A cell in a thread of its own, and whether its first output has been seen. */
struct cell {
	struct cell_session *session;
	const char *code;
	int64_t timeout_ms;
	pthread_t thread;
	atomic_int begun;
	int rc;
	struct cell_error err;
	struct cell_result *result;
};

static void note_begin(void *arg, const struct cell_event *event)
{
	struct cell *cell = arg;
	if (event->type == CELL_EVENT_CHUNK)
		atomic_store(&cell->begun, 1);
}

static void *run_cell(void *arg)
{
	struct cell *cell = arg;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = note_begin;
	options.event_arg = cell;
	options.timeout_ms = cell->timeout_ms;
	cell->rc = cell_session_run(cell->session, cell->code, strlen(cell->code), &options, &cell->result, &cell->err);
	return NULL;
}

static void launch(struct cell *cell)
{
	assert_int_equal(pthread_create(&cell->thread, NULL, run_cell, cell), 0);
}

static bool has_begun(void *arg)
{
	return atomic_load(&((struct cell *)arg)->begun) != 0;
}

/* Starts a cell that prints something first, and waits for that. */
static void launch_and_see(struct cell *cell)
{
	launch(cell);
	assert_true(support_wait(has_begun, cell));
}

static void join(struct cell *cell)
{
	pthread_join(cell->thread, NULL);
}

#define FOREVER "print('begun')\nwhile True: pass"

/* ---- interrupt ---- */

static void test_interrupt(void **state)
{
	(void)state;
	static const char *const codes[] = {
		FOREVER,
		"import time; print('begun'); time.sleep(1000)",
		"import subprocess; print('begun'); subprocess.run(['sleep', '1000'])",
		"try:\n    print('begun')\n    while True: pass\nfinally:\n    cleaned = True",
	};
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	support_expect(session, "x = 'kept'", NULL);
	for (size_t i = 0; i < COUNT(codes); i++) {
		struct cell cell = { .session = session, .code = codes[i] };
		launch_and_see(&cell);
		assert_int_equal(cell_session_interrupt(session, NULL), 0);
		join(&cell);
		assert_int_equal(cell.rc, 0);
		assert_int_equal(support_outcome(cell.result), CELL_OUT_INTERRUPTED);
		assert_string_equal(cell_result_error(cell.result)->type, "KeyboardInterrupt");
		assert_int_equal(cell_result_state_kept(cell.result), 1);
		cell_result_destroy(cell.result);
		support_expect(session, "x", "'kept'");
	}
	support_expect(session, "cleaned", "True");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* Nothing runs: nothing happens, and above all not to the next cell. */
/* ---- cancel ---- */

/* A cell of cell_session_start(). */
struct started {
	atomic_int begun, over;
	int code, kept;
	uint64_t id;
};

static void note_started(void *arg, const struct cell_event *event)
{
	struct started *started = arg;
	if (event->type == CELL_EVENT_CHUNK)
		atomic_store(&started->begun, 1);
	if (event->type != CELL_EVENT_RESULT)
		return;
	const struct cell_outcome *outcome = cell_result_error(event->result);
	started->code = outcome ? outcome->code : CELL_OK;
	started->kept = cell_result_state_kept(event->result);
	cell_result_destroy(event->result);
	atomic_store(&started->over, 1);
}

static bool has_started(void *arg)
{
	return atomic_load(&((struct started *)arg)->begun) != 0;
}

static bool is_over(void *arg)
{
	return atomic_load(&((struct started *)arg)->over) != 0;
}

static void start_cell(struct cell_session *session, const char *code, struct started *started)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = note_started;
	options.event_arg = started;
	assert_int_equal(cell_session_start(session, code, strlen(code), &options, &started->id, NULL), 0);
}

/* One run and no other: the running one is interrupted, a waiting one is taken out, what is over is left alone. */
static void test_cancel(void **state)
{
	(void)state;
	struct started first = { 0 }, second = { 0 }, third = { 0 };
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	start_cell(session, FOREVER, &first);
	assert_true(support_wait(has_started, &first));
	start_cell(session, "ran = True", &second);
	start_cell(session, "third = 3", &third);
	assert_int_equal(cell_session_cancel(session, second.id, NULL), 0);
	assert_true(support_wait(is_over, &second));
	assert_int_equal(second.code, CELL_OUT_INTERRUPTED);
	assert_int_equal(second.kept, 1);
	assert_false(is_over(&first));
	assert_int_equal(cell_session_cancel(session, first.id, NULL), 0);
	assert_true(support_wait(is_over, &first));
	assert_int_equal(first.code, CELL_OUT_INTERRUPTED);
	assert_int_equal(first.kept, 1);
	assert_true(support_wait(is_over, &third));
	assert_int_equal(third.code, CELL_OK);
	assert_int_equal(cell_session_cancel(session, first.id, NULL), 0);
	assert_int_equal(cell_session_cancel(session, 12345, NULL), 0);
	support_expect(session, "'ran' in globals(), third", "(False, 3)");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* Code that does not stop is killed after the grace, and the session goes on. */
static void test_cancel_of_the_stubborn(void **state)
{
	(void)state;
	struct started cell = { 0 };
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.python = TEST_PYTHON;
	options.grace_ms = 100;
	struct cell_session *session = support_session_with(engine, &options);
	start_cell(session, "while True:\n    try:\n        print('begun')\n        while True: pass\n    except KeyboardInterrupt: pass",
		   &cell);
	assert_true(support_wait(has_started, &cell));
	assert_int_equal(cell_session_cancel(session, cell.id, NULL), 0);
	assert_true(support_wait(is_over, &cell));
	assert_int_equal(cell.code, CELL_OUT_INTERRUPTED);
	assert_int_equal(cell.kept, 0);
	support_expect(session, "1 + 1", "2");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_interrupt_of_nothing(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	for (int i = 0; i < 200; i++) {
		assert_int_equal(cell_session_interrupt(session, NULL), 0);
		support_expect(session, "sum(range(100))", "4950");
	}
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void *interrupt_often(void *arg)
{
	struct cell *cell = arg;
	while (!atomic_load(&cell->begun))
		cell_session_interrupt(cell->session, NULL);
	return NULL;
}

/* Interrupts that rain down while short cells run hit one cell or none, and never hurt the kernel. */
static void test_interrupt_rain(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	support_expect(session, "x = 'kept'", NULL);
	int64_t pid = cell_session_kernel_pid(session);
	struct cell rain = { .session = session };
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, interrupt_often, &rain), 0);
	for (int i = 0; i < 300; i++) {
		struct cell_result *result = support_run(session, "sum(range(1000))");
		int code = support_outcome(result);
		if (code != 0 && code != CELL_OUT_INTERRUPTED)
			fail_msg("%s: %s", cell_code_word(code), cell_result_error(result)->message);
		cell_result_destroy(result);
	}
	atomic_store(&rain.begun, 1);
	pthread_join(thread, NULL);
	support_expect(session, "x", "'kept'");
	assert_int_equal(cell_session_kernel_pid(session), pid);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* ---- timeout ---- */

static void test_timeout_kept(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.timeout_ms = 200;
	options.grace_ms = DEADLINE_MS;
	struct cell_session *session = support_session_with(engine, &options);
	support_expect(session, "x = 'kept'", NULL);
	static const char *const codes[] = { "while True: pass", "import time; time.sleep(1000)" };
	for (size_t i = 0; i < COUNT(codes); i++) {
		struct cell_result *result = support_run(session, codes[i]);
		assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
		assert_string_equal(cell_result_error(result)->type, "TimeoutError");
		assert_non_null(strstr(cell_result_error(result)->message, "0.2 s"));
		assert_int_equal(cell_result_state_kept(result), 1);
		assert_true(cell_result_duration_ms(result) >= 199);
		cell_result_destroy(result);
		support_expect(session, "x", "'kept'");
	}
	/* The run's own wish goes first: longer, and none. */
	struct cell longer = { .session = session, .code = "import time; time.sleep(0.4); 1", .timeout_ms = DEADLINE_MS };
	run_cell(&longer);
	assert_int_equal(longer.rc, 0);
	assert_int_equal(support_outcome(longer.result), 0);
	cell_result_destroy(longer.result);
	longer.timeout_ms = -1;
	run_cell(&longer);
	assert_int_equal(support_outcome(longer.result), 0);
	cell_result_destroy(longer.result);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_timeout_lost(void **state)
{
	(void)state;
	static const char *const codes[] = {
		"import time\nwhile True:\n    try: time.sleep(1000)\n    except BaseException: pass",
		"import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\nwhile True: time.sleep(1)",
		"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
		"import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
	};
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.timeout_ms = 100;
	options.grace_ms = 200;
	struct cell_session *session = support_session_with(engine, &options);
	for (size_t i = 0; i < COUNT(codes); i++) {
		support_expect(session, "x = 'lost'", NULL);
		pid_t pid = (pid_t)cell_session_kernel_pid(session);
		struct cell_result *result = support_run(session, codes[i]);
		assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
		assert_int_equal(cell_result_state_kept(result), 0);
		assert_true(cell_result_duration_ms(result) >= 299);
		assert_true(cell_result_duration_ms(result) < 10000);
		cell_result_destroy(result);
		assert_true(support_wait(support_pid_gone, &pid));
		support_expect(session, "'x' in globals()", "False");
	}
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* ---- reset ---- */

static void test_reset(void **state)
{
	(void)state;
	for (int pool = 0; pool < 2; pool++) {
		struct cell_engine *engine = support_engine(pool);
		struct cell_session *session = support_session(engine);
		for (int i = 0; i < 5; i++) {
			support_expect(session, "'x' in globals()", "False");
			support_expect(session, "x = 1", NULL);
			pid_t pid = (pid_t)cell_session_kernel_pid(session);
			assert_int_equal(cell_session_reset(session, NULL), 0);
			assert_true(cell_session_kernel_pid(session) > 1);
			assert_int_not_equal(cell_session_kernel_pid(session), pid);
			assert_int_equal(kill(pid, 0), -1); /* gone when reset returns */
		}
		cell_session_close(session);
		cell_engine_destroy(engine);
	}
}

static void test_reset_while_running(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(1);
	struct cell_session *session = support_session(engine);
	struct cell running = { .session = session, .code = FOREVER };
	launch_and_see(&running);
	/* One that waits behind it goes on, on the new kernel. */
	struct cell queued = { .session = session, .code = "print('queued'); 'x' in globals()" };
	launch(&queued);
	assert_int_equal(cell_session_reset(session, NULL), 0);
	join(&running);
	join(&queued);
	assert_int_equal(running.rc, 0);
	assert_int_equal(support_outcome(running.result), CELL_OUT_INTERRUPTED);
	assert_int_equal(cell_result_state_kept(running.result), 0);
	assert_int_equal(queued.rc, 0);
	assert_int_equal(support_outcome(queued.result), 0);
	assert_string_equal(cell_result_repr(queued.result), "False");
	cell_result_destroy(running.result);
	cell_result_destroy(queued.result);
	support_expect(session, "1", "1");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void *do_reset(void *arg)
{
	struct cell *cell = arg;
	cell->rc = cell_session_reset(cell->session, &cell->err);
	return NULL;
}

/*
 * The old kernel takes its time to leave (an exit handler), a new one is there already: a cell that comes meanwhile
 * is the new one's, and neither the old one's end nor its last words touch it.
 */
static void test_run_while_the_old_kernel_leaves(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(2);
	struct cell_session *session = support_session(engine);
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, NULL, NULL, NULL), 0);
	for (int round = 0; round < 3; round++) {
		support_expect(session,
			       "import atexit, time\ndef slow():\n    time.sleep(0.15)\n    print('last words')\n"
			       "_ = atexit.register(slow)",
			       NULL);
		pid_t old = (pid_t)cell_session_kernel_pid(session);
		struct cell reset = { .session = session };
		assert_int_equal(pthread_create(&reset.thread, NULL, do_reset, &reset), 0);
		while (cell_session_kernel_pid(session) == old)
			sched_yield();
		struct cell_result *result = support_run(session, "import time; time.sleep(0.4); print('mine'); 11");
		join(&reset);
		assert_int_equal(reset.rc, 0);
		if (support_outcome(result) != 0)
			fail_msg("%s: %s", cell_code_word(support_outcome(result)), cell_result_error(result)->message);
		assert_string_equal(cell_result_repr(result), "11");
		struct cell_text text;
		cell_result_stdout(result, &text);
		assert_string_equal(text.data, "mine\n");
		cell_result_destroy(result);
		support_expect(session, "'slow' in globals()", "False");
	}
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_resets_at_once(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(2);
	struct cell_session *session = support_session(engine);
	for (int round = 0; round < 5; round++) {
		struct cell running = { .session = session, .code = FOREVER };
		launch_and_see(&running);
		struct cell queued = { .session = session, .code = "print('q'); 12" };
		launch(&queued);
		struct cell resets[4];
		for (size_t i = 0; i < COUNT(resets); i++) {
			resets[i] = (struct cell){ .session = session };
			assert_int_equal(pthread_create(&resets[i].thread, NULL, do_reset, &resets[i]), 0);
		}
		for (size_t i = 0; i < COUNT(resets); i++) {
			join(&resets[i]);
			assert_int_equal(resets[i].rc, 0);
		}
		join(&running);
		join(&queued);
		assert_int_equal(support_outcome(running.result), CELL_OUT_INTERRUPTED);
		/* The queued one began on some new kernel, which one of the later resets may have ended. */
		assert_int_equal(queued.rc, 0);
		int code = support_outcome(queued.result);
		assert_true(code == 0 || (code == CELL_OUT_INTERRUPTED && !cell_result_state_kept(queued.result)));
		cell_result_destroy(running.result);
		cell_result_destroy(queued.result);
		support_expect(session, "13", "13");
	}
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* ---- children ---- */

static pid_t pid_in(const struct cell_result *result)
{
	assert_int_equal(support_outcome(result), 0);
	return (pid_t)atoi(cell_result_repr(result));
}

static const char *const leave_child = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True).pid";

static void test_children_go_along(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct cell_result *result = support_run(session, leave_child);
	pid_t child = pid_in(result);
	cell_result_destroy(result);
	assert_int_equal(kill(child, 0), 0);
	assert_int_equal(cell_session_reset(session, NULL), 0);
	assert_int_equal(kill(child, 0), -1); /* gone when reset returns, not soon after */
	result = support_run(session, leave_child);
	child = pid_in(result);
	cell_result_destroy(result);
	cell_session_close(session);
	assert_int_equal(kill(child, 0), -1);
	cell_engine_destroy(engine);
}

/* ---- close ---- */

static void *do_close(void *arg)
{
	cell_session_close(((struct cell *)arg)->session);
	return NULL;
}

static void test_close_while_running(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	for (int round = 0; round < 3; round++) {
		struct cell running = { .session = support_session(engine), .code = FOREVER };
		launch_and_see(&running);
		pid_t pid = (pid_t)cell_session_kernel_pid(running.session);
		struct cell closing = { .session = running.session };
		assert_int_equal(pthread_create(&closing.thread, NULL, do_close, &closing), 0);
		join(&closing);
		assert_int_equal(kill(pid, 0), -1);
		join(&running);
		assert_int_equal(running.rc, -1); /* the session under it ended: that is no outcome of the code */
		assert_int_equal(running.err.code, CELL_E_CLOSED);
	}
	cell_engine_destroy(engine);
}

/* Engines take everything along that is still open: idle sessions, and those with a cell under way. */
static void hear_nothing(void *arg, const struct cell_event *event)
{
	if (event->type == CELL_EVENT_CHUNK)
		atomic_store(&((struct cell *)arg)->begun, 1);
	if (event->type == CELL_EVENT_RESULT)
		cell_result_destroy(event->result);
}

static void test_destroy_with_open_sessions(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(2);
	pid_t pids[5];
	struct cell running[5];
	for (int i = 0; i < 5; i++) {
		struct cell_session *session = support_session(engine);
		cell_result_destroy(support_run(session, leave_child));
		pids[i] = (pid_t)cell_session_kernel_pid(session);
		running[i] = (struct cell){ .session = session };
		struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
		options.on_event = hear_nothing;
		options.event_arg = &running[i];
		if (i % 2) {
			assert_int_equal(cell_session_start(session, FOREVER, strlen(FOREVER), &options, NULL, NULL), 0);
			assert_true(support_wait(has_begun, &running[i]));
		}
	}
	cell_engine_destroy(engine);
	for (int i = 0; i < 5; i++)
		assert_int_equal(kill(pids[i], 0), -1);
}

/* ---- the processes above the kernels ---- */

static pid_t parent_of(pid_t pid)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	int parent = 0;
	assert_true(support_read_file(path, &line));
	assert_int_equal(sscanf(strrchr(line.data, ')') + 1, " %*c %d", &parent), 1);
	return parent;
}

static void test_zygote_dies(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	support_expect(session, "x = 'kept'", NULL);
	struct cell_env_info info = { .size = sizeof info };
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, NULL, &info, NULL), 0);
	pid_t zygote = (pid_t)info.zygote_pid;
	kill(zygote, SIGKILL);
	assert_true(support_wait(support_pid_gone, &zygote));
	support_expect(session, "x", "'kept'"); /* its kernels live on */
	struct cell_session *other = support_session(engine);
	support_expect(other, "1", "1");
	assert_int_equal(cell_session_reset(session, NULL), 0);
	support_expect(session, "'x' in globals()", "False");
	cell_session_close(session);
	cell_session_close(other);
	cell_engine_destroy(engine);
}

static void test_spawner_dies(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(2);
	struct cell_session *idle = support_session(engine), *busy = support_session(engine);
	struct cell_result *result = support_run(idle, leave_child);
	pid_t child = pid_in(result);
	cell_result_destroy(result);
	struct cell_env_info info = { .size = sizeof info };
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, NULL, &info, NULL), 0);
	pid_t kernel = (pid_t)cell_session_kernel_pid(idle);
	struct cell running = { .session = busy, .code = FOREVER };
	launch_and_see(&running);
	kill(parent_of((pid_t)info.zygote_pid), SIGKILL);
	join(&running);
	assert_int_equal(running.rc, -1);
	assert_int_equal(running.err.code, CELL_E_SPAWNER);
	struct cell_error err;
	/* The end of the spawner may reach us after the run: then the kernel dies under it. */
	if (cell_session_run(idle, "1", 1, NULL, &result, &err) == 0) {
		assert_int_equal(support_outcome(result), CELL_OUT_KERNEL_DIED);
		cell_result_destroy(result);
		assert_int_equal(cell_session_run(idle, "1", 1, NULL, &result, &err), -1);
	}
	assert_int_equal(err.code, CELL_E_SPAWNER);
	assert_int_equal(cell_session_reset(idle, &err), -1);
	assert_int_equal(err.code, CELL_E_SPAWNER);
	assert_true(support_wait(support_pid_gone, &kernel));
	assert_true(support_wait(support_pid_gone, &child));
	struct cell_session *fresh = support_session(engine);
	support_expect(fresh, "'a new spawner'", "'a new spawner'");
	cell_session_close(fresh);
	cell_session_close(idle);
	cell_session_close(busy);
	cell_engine_destroy(engine);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_interrupt),
		TEST(test_interrupt_of_nothing),
		TEST(test_cancel),
		TEST(test_cancel_of_the_stubborn),
		TEST(test_interrupt_rain),
		TEST(test_timeout_kept),
		TEST(test_timeout_lost),
		TEST(test_reset),
		TEST(test_reset_while_running),
		TEST(test_run_while_the_old_kernel_leaves),
		TEST(test_resets_at_once),
		TEST(test_children_go_along),
		TEST(test_close_while_running),
		TEST(test_destroy_with_open_sessions),
		TEST(test_zygote_dies),
		TEST(test_spawner_dies),
	};
	return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
