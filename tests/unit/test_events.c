/* The public API: events, cells that are started and not waited for, and what callbacks may do. */
#define _GNU_SOURCE
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>

/* Everything that was heard, from whatever thread. */
struct heard {
	enum cell_event_type type;
	uint64_t run_id;
	enum cell_stream stream;
	pthread_t thread;
	int code; /* RESULT */
};

struct ear {
	pthread_mutex_t lock;
	struct heard event[2048];
	size_t n;
	size_t results;
	struct cell__buf text;
	bool owns; /* results are ours */
	void (*also)(struct ear *ear, const struct cell_event *event);
	struct cell_session *session, *other;
	struct cell_engine *engine;
	int rc[8];
	struct cell_error err[8];
};

/*
 * Kept until the program ends: after an assertion failed in the middle of a test there may still be events on their way.
 */
static struct ear *ear_create(void)
{
	static struct ear *all[32];
	static size_t n;
	CHECK(n < COUNT(all));
	struct ear *ear = all[n++] = cell__alloc(1, sizeof *ear);
	CHECK(ear);
	pthread_mutex_init(&ear->lock, NULL);
	return ear;
}

static void hear(void *arg, const struct cell_event *event)
{
	struct ear *ear = arg;
	pthread_mutex_lock(&ear->lock);
	CHECK(ear->n < COUNT(ear->event));
	struct heard *heard = &ear->event[ear->n++];
	*heard = (struct heard){ .type = event->type, .run_id = event->run_id, .stream = event->stream, .thread = pthread_self() };
	if (event->type == CELL_EVENT_CHUNK)
		CHECK(event->data && event->size > 0 && cell__buf_add(&ear->text, event->data, event->size) == 0);
	if (event->type == CELL_EVENT_KERNEL_DIED)
		CHECK(event->message && cell__buf_add_str(&ear->text, event->message) == 0);
	if (event->type == CELL_EVENT_RESULT) {
		CHECK(event->result);
		heard->code = support_outcome(event->result);
		ear->results++;
	}
	pthread_mutex_unlock(&ear->lock);
	if (ear->also)
		ear->also(ear, event);
	if (event->type == CELL_EVENT_RESULT && ear->owns)
		cell_result_destroy(event->result);
}

struct wanted {
	struct ear *ear;
	size_t results;
	const char *text;
};

static bool was_heard(void *arg)
{
	struct wanted *wanted = arg;
	pthread_mutex_lock(&wanted->ear->lock);
	bool there = wanted->ear->results >= wanted->results;
	if (wanted->text)
		there &= wanted->ear->text.data && strstr(wanted->ear->text.data, wanted->text);
	pthread_mutex_unlock(&wanted->ear->lock);
	return there;
}

/* Without calling the library: events must come by themselves. */
static void wait_for(struct ear *ear, size_t results, const char *text)
{
	struct wanted wanted = { ear, results, text };
	if (!support_wait(was_heard, &wanted))
		fail_msg("not heard: %zu results, %s; but %zu, %s", results, text ? text : "", ear->results,
			 ear->text.data ? ear->text.data : "");
}

static void ear_finish(struct ear *ear)
{
	cell__buf_finish(&ear->text);
}

static const struct heard *last_result(struct ear *ear)
{
	for (size_t i = ear->n; i-- > 0;)
		if (ear->event[i].type == CELL_EVENT_RESULT)
			return &ear->event[i];
	return NULL;
}

/* ---- while waiting ---- */

static void test_events_of_a_run(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct ear *ear = ear_create();
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	static const char code[] = "import sys\nprint('a')\nprint('b', file=sys.stderr)\ndisplay(1)\nprint('c')\n5";
	struct cell_result *result = NULL;
	assert_int_equal(cell_session_run(session, code, strlen(code), &options, &result, NULL), 0);
	assert_string_equal(ear->text.data, "a\nb\nc\n");
	assert_int_equal(ear->results, 1);
	assert_true(ear->n >= 5);
	size_t display = 0, last_a = 0, first_c = 0;
	for (size_t i = 0; i < ear->n; i++) {
		assert_true(pthread_equal(ear->event[i].thread, pthread_self()));
		assert_true(ear->event[i].run_id != 0 && ear->event[i].run_id == ear->event[0].run_id);
		if (ear->event[i].type == CELL_EVENT_DISPLAY)
			display = i;
		if (ear->event[i].type == CELL_EVENT_CHUNK && ear->event[i].stream == CELL_STDERR)
			last_a = i;
		if (ear->event[i].type == CELL_EVENT_CHUNK && ear->event[i].stream == CELL_STDOUT)
			first_c = i;
	}
	assert_true(last_a < display && display < first_c); /* the display between what was written around it */
	assert_int_equal(ear->event[ear->n - 1].type, CELL_EVENT_RESULT);
	assert_string_equal(cell_result_repr(result), "5"); /* the result in the event was only lent */
	cell_result_destroy(result);
	ear_finish(ear);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void note_time(struct ear *ear, const struct cell_event *event)
{
	/* The first chunk comes while the cell waits for us to have seen it. */
	if (event->type == CELL_EVENT_CHUNK && ear->rc[0]++ == 0)
		CHECK(cell_session_interrupt(ear->session, NULL) == 0);
}

static void test_events_come_at_once(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct ear *ear = ear_create();
	ear->also = note_time;
	ear->session = session;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	static const char code[] = "import time\nprint('now')\ntime.sleep(1000)";
	struct cell_result *result;
	assert_int_equal(cell_session_run(session, code, strlen(code), &options, &result, NULL), 0);
	assert_int_equal(support_outcome(result), CELL_OUT_INTERRUPTED);
	cell_result_destroy(result);
	ear_finish(ear);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* A waiting caller's callbacks are on its own thread and may take their time: they may even run other cells. */
static void run_elsewhere(struct ear *ear, const struct cell_event *event)
{
	if (event->type == CELL_EVENT_CHUNK)
		support_expect(ear->other, "'elsewhere'", "'elsewhere'");
}

static void test_callback_of_a_run_may_wait(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine), *other = support_session(engine);
	struct ear *ear = ear_create();
	ear->also = run_elsewhere;
	ear->other = other;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	struct cell_result *result;
	assert_int_equal(cell_session_run(session, "print(1)\n2", 10, &options, &result, NULL), 0);
	assert_string_equal(cell_result_repr(result), "2");
	cell_result_destroy(result);
	ear_finish(ear);
	cell_session_close(session);
	cell_session_close(other);
	cell_engine_destroy(engine);
}

/* A reader that does not keep up slows its own kernel: the host's memory stays where it is, others go on. */
static size_t slow_bytes;

static void read_slowly(void *arg, const struct cell_event *event)
{
	struct cell_session *other = arg;
	if (event->type != CELL_EVENT_CHUNK)
		return;
	if (slow_bytes == 0)
		for (int i = 0; i < 20; i++)
			support_expect(other, "1 + 1", "2");
	slow_bytes += event->size;
	struct timespec pause = { .tv_nsec = 200000 };
	nanosleep(&pause, NULL);
}

static void test_slow_reader(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options session_options = CELL_SESSION_OPTIONS_INIT;
	session_options.max_output_bytes = 4096;
	struct cell_session *session = support_session_with(engine, &session_options), *other = support_session(engine);
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = read_slowly;
	options.event_arg = other;
	slow_bytes = 0;
	long before = support_private_kb();
	static const char code[] = "line = 'x' * 9999\nfor i in range(2000): print(line)";
	struct cell_result *result;
	assert_int_equal(cell_session_run(session, code, strlen(code), &options, &result, NULL), 0);
	assert_int_equal(support_outcome(result), 0);
	assert_int_equal(slow_bytes, 20000000);
	long grown = support_private_kb() - before;
	print_message("the host grew by %ld kB\n", grown);
#ifndef SANITIZED
	if (grown > 8 * 1024)
		fail_msg("the host grew by %ld kB", grown);
#endif
	cell_result_destroy(result);
	cell_session_close(session);
	cell_session_close(other);
	cell_engine_destroy(engine);
}

/* ---- not waiting ---- */

static void test_start(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct ear *ear = ear_create();
	ear->owns = true;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	uint64_t ids[50];
	for (size_t i = 0; i < COUNT(ids); i++) {
		char code[64];
		snprintf(code, sizeof code, "print(%zu)\nif %zu %% 10 == 9: 1/0", i, i);
		assert_int_equal(cell_session_start(session, code, strlen(code), &options, &ids[i], NULL), 0);
	}
	wait_for(ear, COUNT(ids), "49\n");
	assert_int_equal(cell_session_start(session, "1", 1, NULL, NULL, NULL), 0); /* nobody listens: fine */
	cell_session_close(session);
	cell_engine_destroy(engine);
	/* Each exactly once, in order, and after its own output. */
	assert_int_equal(ear->results, COUNT(ids));
	size_t n = 0;
	for (size_t i = 0; i < ear->n; i++) {
		assert_false(pthread_equal(ear->event[i].thread, pthread_self()));
		assert_true(n < COUNT(ids) && ear->event[i].run_id == ids[n]);
		if (ear->event[i].type == CELL_EVENT_RESULT) {
			assert_int_equal(ear->event[i].code, n % 10 == 9 ? CELL_OUT_EXCEPTION : 0);
			n++;
		}
	}
	assert_int_equal(n, COUNT(ids));
	ear_finish(ear);
}

/* For a callback inside cell_session_start(). */
struct looker {
	struct ear *ear;
	int end;
};

static void hear_and_end(void *arg, const struct cell_event *event)
{
	struct looker *looker = arg;
	looker->end = event->type == CELL_EVENT_RESULT;
	hear(looker->ear, event);
}

/* A short cell is over when it returns, heard on this very thread; one that goes on is heard of later. */
static void test_start_and_look(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct looker looker = { .ear = ear_create() };
	looker.ear->owns = true;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear_and_end;
	options.event_arg = &looker;
	options.spin_us = CELL_LIMIT_SPIN_US;
	options.spin_end = &looker.end;
	size_t cells = 0;
	bool here = false;
	for (; cells < 200 && !here; cells++) { /* a busy machine may need some */
		looker.end = 0;
		assert_int_equal(cell_session_start(session, "print(1)", 8, &options, NULL, NULL), 0);
		wait_for(looker.ear, cells + 1, NULL);
		here = pthread_equal(looker.ear->event[looker.ear->n - 1].thread, pthread_self());
	}
	assert_true(here);
	static const char code[] = "x = __import__('time').sleep(0.1)";
	looker.end = 0;
	assert_int_equal(cell_session_start(session, code, strlen(code), &options, NULL, NULL), 0);
	wait_for(looker.ear, cells + 1, NULL);
	assert_false(pthread_equal(looker.ear->event[looker.ear->n - 1].thread, pthread_self()));
	support_expect(session, "2", "2");
	cell_session_close(session);
	cell_engine_destroy(engine);
	ear_finish(looker.ear);
}

/* Closed while they wait: every one of them gets its result all the same. */
static void test_start_and_close(void **state)
{
	(void)state;
	for (int destroy = 0; destroy < 2; destroy++) {
		struct cell_engine *engine = support_engine(0);
		struct cell_session *session = support_session(engine);
		struct ear *ear = ear_create();
		ear->owns = true;
		struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
		options.on_event = hear;
		options.event_arg = ear;
		static const char code[] = "print('running')\nwhile True: pass";
		for (int i = 0; i < 10; i++)
			assert_int_equal(cell_session_start(session, code, strlen(code), &options, NULL, NULL), 0);
		wait_for(ear, 0, "running");
		if (!destroy)
			cell_session_close(session);
		cell_engine_destroy(engine); /* closes what is open */
		assert_int_equal(ear->results, 10);
		for (size_t i = 0; i < ear->n; i++)
			if (ear->event[i].type == CELL_EVENT_RESULT)
				assert_int_equal(ear->event[i].code, CELL_E_CLOSED);
		ear_finish(ear);
	}
}

static void test_queue_limit(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	struct ear *ear = ear_create();
	ear->owns = true;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	static const char code[] = "print('running')\nwhile True: pass";
	assert_int_equal(cell_session_start(session, code, strlen(code), &options, NULL, NULL), 0);
	wait_for(ear, 0, "running");
	for (unsigned i = 0; i < CELL_LIMIT_QUEUE; i++)
		assert_int_equal(cell_session_start(session, "0", 1, &options, NULL, NULL), 0);
	assert_int_equal(cell_session_start(session, "0", 1, &options, NULL, NULL), 0);
	wait_for(ear, 1, NULL); /* one too many */
	assert_int_equal(last_result(ear)->code, CELL_E_LIMIT);
	struct cell_result *result;
	struct cell_error err;
	assert_int_equal(cell_session_run(session, "0", 1, NULL, &result, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	assert_int_equal(ear->results, 1);
	assert_int_equal(cell_session_interrupt(session, NULL), 0);
	wait_for(ear, CELL_LIMIT_QUEUE + 2, NULL);
	for (size_t i = ear->n - CELL_LIMIT_QUEUE; i < ear->n; i++)
		assert_int_equal(ear->event[i].code, 0);
	ear_finish(ear);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* ---- between runs ---- */

static void test_background_output(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct ear *ear = ear_create();
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	struct cell_session *session = support_session_with(engine, &options);
	for (int round = 0; round < 3; round++) {
		char code[200], wanted[40];
		snprintf(wanted, sizeof wanted, "late %d\n", round);
		snprintf(code, sizeof code,
			 "import threading, time\ndef late():\n    time.sleep(0.05)\n    print('late', %d)\n"
			 "threading.Thread(target=late).start()\nprint('in time')",
			 round);
		struct cell_result *result = support_run(session, code);
		struct cell_text text;
		cell_result_stdout(result, &text);
		assert_string_equal(text.data, "in time\n");
		cell_result_destroy(result);
		wait_for(ear, 0, wanted); /* though nobody calls */
	}
	for (size_t i = 0; i < ear->n; i++) {
		assert_int_equal(ear->event[i].type, CELL_EVENT_CHUNK);
		assert_true(ear->event[i].run_id == 0);
	}
	support_expect(session, "1", "1");
	cell_session_close(session);
	cell_engine_destroy(engine);
	ear_finish(ear);
}

static void test_death_between_runs(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct ear *ear = ear_create();
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	struct cell_session *session = support_session_with(engine, &options);
	support_expect(session, "x = 1", NULL);
	kill((pid_t)cell_session_kernel_pid(session), SIGKILL);
	wait_for(ear, 0, "signal 9");
	assert_int_equal(ear->event[ear->n - 1].type, CELL_EVENT_KERNEL_DIED);
	assert_int_equal(cell_session_kernel_pid(session), 0);
	support_expect(session, "'x' in globals()", "False");
	cell_session_close(session);
	cell_engine_destroy(engine);
	assert_int_equal(ear->n, 1); /* that we close it is no news */
	ear_finish(ear);
}

/* ---- what callbacks on the engine's thread may do ---- */

static void try_everything(struct ear *ear, const struct cell_event *event)
{
	if (event->type != CELL_EVENT_RESULT || ear->rc[7]++)
		return;
	struct cell_result *result = NULL;
	struct cell_session *session = NULL;
	ear->rc[0] = cell_session_run(ear->other, "1", 1, NULL, &result, &ear->err[0]);
	ear->rc[1] = cell_session_open(ear->engine, NULL, &session, &ear->err[1]);
	ear->rc[2] = cell_session_reset(ear->other, &ear->err[2]);
	ear->rc[3] = cell_engine_prewarm(ear->engine, TEST_PYTHON, NULL, NULL, &ear->err[3]);
	/* These do not wait. */
	ear->rc[4] = cell_session_interrupt(ear->other, &ear->err[4]);
	ear->rc[5] = cell_session_kernel_pid(ear->other) > 1 ? 0 : -1;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	ear->rc[6] = cell_session_start(ear->session, "2", 1, &options, NULL, &ear->err[6]);
}

static void test_callbacks_must_not_wait(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine), *other = support_session(engine);
	struct ear *ear = ear_create();
	ear->owns = true;
	ear->also = try_everything;
	ear->session = session;
	ear->other = other;
	ear->engine = engine;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	assert_int_equal(cell_session_start(session, "1", 1, &options, NULL, NULL), 0);
	wait_for(ear, 2, NULL);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(ear->rc[i], -1);
		assert_int_equal(ear->err[i].code, CELL_E_INVALID);
		assert_non_null(strstr(ear->err[i].msg, "callback"));
	}
	for (int i = 4; i < 7; i++)
		assert_int_equal(ear->rc[i], 0);
	ear_finish(ear);
	cell_session_close(session);
	cell_session_close(other);
	cell_engine_destroy(engine);
}

/* The same while another thread runs the loop: the callback comes on that one, and the answer is the same. */
static void test_callbacks_on_a_waiting_caller(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine), *other = support_session(engine);
	struct ear *ear = ear_create();
	ear->owns = true;
	ear->also = try_everything;
	ear->session = session;
	ear->other = other;
	ear->engine = engine;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.on_event = hear;
	options.event_arg = ear;
	static const char code[] = "import time; time.sleep(0.05)";
	assert_int_equal(cell_session_start(session, code, strlen(code), &options, NULL, NULL), 0);
	support_expect(session, "7", "7"); /* waits, and runs the loop meanwhile */
	wait_for(ear, 2, NULL);
	for (int i = 0; i < 4; i++) {
		assert_int_equal(ear->rc[i], -1);
		assert_int_equal(ear->err[i].code, CELL_E_INVALID);
	}
	ear_finish(ear);
	cell_session_close(session);
	cell_session_close(other);
	cell_engine_destroy(engine);
}

/* ---- what has no way to report an error and would wait for itself: it says so, aborts, and does not hang ---- */

enum { CLOSES_SESSION, CLOSES_SPACE, CLOSES_AUDIT, DESTROYS_ENGINE, CLOSINGS };

static struct {
	struct cell_engine *engine;
	struct cell_session *session;
	struct cell_space *space;
	struct cell_audit *audit;
	int closing;
} child;

static void close_here(void *arg, const struct cell_event *event)
{
	(void)arg;
	if (event->type != CELL_EVENT_RESULT)
		return;
	switch (child.closing) {
	case CLOSES_SESSION:
		cell_session_close(child.session);
		break;
	case CLOSES_SPACE:
		cell_space_close(child.space);
		break;
	case CLOSES_AUDIT:
		cell_audit_close(child.audit);
		break;
	default:
		cell_engine_destroy(child.engine);
	}
}

static void log_to_stdout(void *arg, enum cell_log_level level, const char *line)
{
	(void)arg;
	if (level == CELL_LOG_ERROR)
		dprintf(1, "%s\n", line);
}

static void close_in_callback(const char *closing, const char *log)
{
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_space_options space = CELL_SPACE_OPTIONS_INIT;
	struct cell_audit_options audit = CELL_AUDIT_OPTIONS_INIT;
	struct cell_run_options run = CELL_RUN_OPTIONS_INIT;
	options.lib_dir = TEST_LIB_DIR;
	options.log = log_to_stdout;
	audit.path = log;
	run.on_event = close_here;
	child.closing = atoi(closing);
	alarm(30);
	CHECK(cell_engine_create(&options, &child.engine, NULL) == 0);
	CHECK(child.closing != CLOSES_SPACE || cell_space_open(child.engine, &space, &child.space, NULL) == 0);
	CHECK(child.closing != CLOSES_AUDIT || cell_audit_open(child.engine, &audit, &child.audit, NULL) == 0);
	child.session = support_session(child.engine);
	CHECK(cell_session_start(child.session, "1", 1, &run, NULL, NULL) == 0);
	for (;;)
		pause();
}

static void test_close_in_a_callback_aborts(void **state)
{
	(void)state;
	static const char *const names[CLOSINGS] = { "cell_session_close", "cell_space_close", "cell_audit_close", "cell_engine_destroy" };
	char log[] = "/tmp/test_events.XXXXXX";
	close(mkstemp(log));
	for (int i = 0; i < CLOSINGS; i++) {
		pid_t pid;
		int status, out[2];
		char number[8], said[300], expected[300];
		posix_spawn_file_actions_t actions;
		snprintf(number, sizeof number, "%d", i);
		char *const argv[] = { (char *)"test_events", (char *)"close-in-callback", number, log, NULL };
		char *const envp[] = { NULL };
		assert_int_equal(pipe2(out, O_CLOEXEC), 0);
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_adddup2(&actions, out[1], 1);
		assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, envp), 0);
		posix_spawn_file_actions_destroy(&actions);
		close(out[1]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		ssize_t n = read(out[0], said, sizeof said - 1);
		said[n > 0 ? n : 0] = '\0';
		close(out[0]);
		snprintf(expected, sizeof expected, "%s() blocks and must not be called from a callback of the engine\n", names[i]);
		assert_true(WIFSIGNALED(status));
		assert_int_equal(WTERMSIG(status), SIGABRT);
		assert_string_equal(said, expected);
	}
	unlink(log);
}

int main(int argc, char **argv)
{
	if (argc > 3 && strcmp(argv[1], "close-in-callback") == 0)
		close_in_callback(argv[2], argv[3]);
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_events_of_a_run),
		TEST(test_events_come_at_once),
		TEST(test_callback_of_a_run_may_wait),
		TEST(test_slow_reader),
		TEST(test_start),
		TEST(test_start_and_look),
		TEST(test_start_and_close),
		TEST(test_queue_limit),
		TEST(test_background_output),
		TEST(test_death_between_runs),
		TEST(test_callbacks_must_not_wait),
		TEST(test_callbacks_on_a_waiting_caller),
		TEST(test_close_in_a_callback_aborts),
	};
	return cmocka_run_group_tests_name("events", tests, NULL, NULL);
}
