/*
 * The executor `inprocess` in a C program: libpython is loaded into this process, and when the sessions are closed the
 * process is as it was.
 */
#define _GNU_SOURCE
#include "support.h"

#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "executors/inprocess/libpython.h"

#define THREADS 4
#define CELLS 50

#ifdef SANITIZED
/* What Python keeps for the life of the process is not ours to free. */
__attribute__((visibility("default"))) const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
	return "leak:libpython\n";
}
#endif

static struct cell_session *open_one(struct cell_engine *engine, struct cell_space *space)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.executor = "inprocess";
	opts.python = TEST_PYTHON;
	opts.space = space;
	return support_session_with(engine, &opts);
}

/* ---- the host ---- */

struct host_state {
	struct sigaction handlers[32];
	sigset_t mask;
	char cwd[4096], locale[256];
	size_t n_env;
	const char *canary;
};

static void look(struct host_state *state)
{
	memset(state, 0, sizeof *state);
	for (int i = 1; i < 32; i++)
		sigaction(i, NULL, &state->handlers[i]);
	pthread_sigmask(SIG_BLOCK, NULL, &state->mask);
	assert_non_null(getcwd(state->cwd, sizeof state->cwd));
	snprintf(state->locale, sizeof state->locale, "%s", setlocale(LC_CTYPE, NULL));
	for (char **e = environ; *e; e++)
		state->n_env++;
	state->canary = getenv("WC_CANARY");
}

static void assert_same(const struct host_state *a, const struct host_state *b)
{
	for (int i = 1; i < 32; i++)
		assert_true(a->handlers[i].sa_handler == b->handlers[i].sa_handler);
	assert_memory_equal(&a->mask, &b->mask, sizeof a->mask);
	assert_string_equal(a->cwd, b->cwd);
	assert_string_equal(a->locale, b->locale);
	assert_int_equal(a->n_env, b->n_env);
	assert_string_equal(b->canary, "here");
}

static void test_host_as_before(void **state)
{
	(void)state;
	struct host_state before, after;
	setenv("WC_CANARY", "here", 1);
	look(&before);
	/* Twice: engines come and go, the interpreter stays. */
	for (int i = 0; i < 2; i++) {
		struct cell_engine *engine = support_engine(0);
		struct cell_session *session = open_one(engine, NULL);
		assert_int_equal(cell_session_kernel_pid(session), getpid());
		support_expect(session, "import os\nos.environ['WC_CANARY']", "'here'");
		support_expect(session, "os.chdir('/')\nos.environ['WC_CANARY'] = 'gone'\nos.environ['WC_MORE'] = '1'\nos.getcwd()", "'/'");
		assert_int_equal(cell_session_reset(session, NULL), 0);
		support_expect(session, "import os\nos.environ['WC_CANARY'], 'WC_MORE' in os.environ", "('here', False)");
		support_expect(session, "os.chdir('/')", NULL);
		cell_session_close(session);
		look(&after);
		assert_same(&before, &after);
		cell_engine_destroy(engine);
	}
	unsetenv("WC_CANARY");
}

static void test_two_sessions(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *a = open_one(engine, NULL), *b = open_one(engine, NULL);
	support_expect(a, "x = 'a'\nimport sys\nsys.modules['__main__'].x", "'a'");
	support_expect(b, "x = 'b'\nimport sys\nsys.modules['__main__'].x", "'b'");
	support_expect(a, "x", "'a'");
	cell_session_close(a);
	support_expect(b, "x", "'b'");
	struct cell_result *result = support_run(b, "import sys\nsys.exit(3)");
	assert_int_equal(support_outcome(result), CELL_OUT_EXCEPTION);
	assert_int_equal(cell_result_state_kept(result), 1);
	assert_non_null(strstr(cell_result_isolation_json(result), "\"level\":\"none\""));
	cell_result_destroy(result);
	support_expect(b, "x", "'b'");
	cell_engine_destroy(engine);
}

/* ---- threads ---- */

struct worker {
	struct cell_session *session;
	int own;
};

static void *work(void *arg)
{
	struct worker *worker = arg;
	for (int i = 0; i < CELLS; i++) {
		struct cell_result *result = NULL;
		char code[64];
		snprintf(code, sizeof code, "n = globals().get('n', 0) + 1\nn * 0 + %d", i);
		CHECK(cell_session_run(worker->session, code, strlen(code), NULL, &result, NULL) == 0);
		CHECK(!cell_result_error(result) && atoi(cell_result_repr(result)) == i);
		cell_result_destroy(result);
	}
	return NULL;
}

static void test_several_threads(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *shared = open_one(engine, NULL);
	struct worker workers[2 * THREADS];
	pthread_t threads[2 * THREADS];
	for (int i = 0; i < 2 * THREADS; i++) {
		workers[i] = (struct worker){ .own = i < THREADS };
		workers[i].session = workers[i].own ? open_one(engine, NULL) : shared;
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	char total[16];
	snprintf(total, sizeof total, "%d", THREADS * CELLS);
	for (int i = 0; i < 2 * THREADS; i++)
		pthread_join(threads[i], NULL);
	support_expect(shared, "n", total);
	for (int i = 0; i < THREADS; i++)
		cell_session_close(workers[i].session);
	cell_engine_destroy(engine);
}

/* ---- tools ---- */

static char called_on[32];

static void add_one(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	const char *args = cell_tool_call_args(call);
	char answer[32];
	pthread_getname_np(pthread_self(), called_on, sizeof called_on);
	int n = snprintf(answer, sizeof answer, "%ld", strtol(args + strcspn(args, "-0123456789"), NULL, 10) + 1);
	cell_tool_call_answer_json(call, answer, (size_t)n);
}

/* Answered later, by another thread; the first one is never waited for to its end. */
static struct cell_tool_call *held;
static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;

static void hold(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	pthread_mutex_lock(&held_lock);
	CHECK(!held);
	held = call;
	pthread_mutex_unlock(&held_lock);
}

static bool is_held(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&held_lock);
	bool is = held != NULL;
	pthread_mutex_unlock(&held_lock);
	return is;
}

static void *answer_held(void *unused)
{
	(void)unused;
	CHECK(support_wait(is_held, NULL));
	pthread_mutex_lock(&held_lock);
	struct cell_tool_call *call = cell__take_ptr(held);
	pthread_mutex_unlock(&held_lock);
	cell_tool_call_answer_text(call, "late", 4);
	return NULL;
}

static struct cell_space *open_space(struct cell_engine *engine)
{
	struct cell_space_options opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_space *space = NULL;
	struct cell_tool tools[] = { CELL_TOOL_INIT, CELL_TOOL_INIT };
	assert_int_equal(cell_space_open(engine, &opts, &space, NULL), 0);
	tools[0].name = "add";
	tools[0].parameters = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}}";
	tools[0].fn = add_one;
	tools[1].name = "hold";
	tools[1].fn = hold;
	for (size_t i = 0; i < COUNT(tools); i++)
		assert_int_equal(cell_space_add_tool(space, &tools[i], NULL), 0);
	return space;
}

static void test_tools(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_space *space = open_space(engine);
	struct cell_session *session = open_one(engine, space);
	pthread_t thread;
	/* On a quiet engine the function runs on the thread that calls it. */
	support_expect(session, "[tools.add(a=i) for i in range(3)]", "[1, 2, 3]");
	assert_string_equal(called_on, "workcell-cells");
	support_expect(session,
		       "import asyncio\nawait asyncio.gather(*(tools.add.call_async(a=i) for i in range(50))) == "
		       "list(range(1, 51))",
		       "True");
	assert_int_equal(pthread_create(&thread, NULL, answer_held, NULL), 0);
	support_expect(session, "tools.hold()", "'late'");
	pthread_join(thread, NULL);
	cell_session_close(session);
	cell_space_close(space);
	cell_engine_destroy(engine);
}

struct running {
	struct cell_session *session;
	const char *code;
	struct cell_result *result;
	struct cell_error err;
};

static void *run_it(void *arg)
{
	struct running *running = arg;
	if (cell_session_run(running->session, running->code, strlen(running->code), NULL, &running->result, &running->err) < 0)
		running->result = NULL;
	return NULL;
}

/* A cell that waits for a tool is interrupted, reset and closed under. */
static void test_waiting_for_a_tool(void **state)
{
	(void)state;
	for (int how = 0; how < 3; how++) {
		struct cell_engine *engine = support_engine(0);
		struct cell_space *space = open_space(engine);
		struct running running = { .session = open_one(engine, space), .code = "x = 1\ntools.hold()" };
		pthread_t thread;
		assert_int_equal(pthread_create(&thread, NULL, run_it, &running), 0);
		assert_true(support_wait(is_held, NULL));
		if (how == 0)
			assert_int_equal(cell_session_interrupt(running.session, NULL), 0);
		else if (how == 1)
			assert_int_equal(cell_session_reset(running.session, NULL), 0);
		else
			cell_session_close(cell__take_ptr(running.session));
		pthread_join(thread, NULL);
		assert_int_equal(running.result ? support_outcome(running.result) : running.err.code,
				 how < 2 ? CELL_OUT_INTERRUPTED : CELL_E_CLOSED);
		if (running.result)
			assert_int_equal(cell_result_state_kept(running.result), how == 0);
		cell_result_destroy(running.result);
		if (running.session)
			support_expect(running.session, "'x' in globals()", how == 0 ? "True" : "False");
		cell_session_close(running.session);
		answer_held(NULL);
		cell_space_close(space);
		cell_engine_destroy(engine);
	}
}

/* ---- code that will not stop ---- */

static void test_abandoned(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.executor = "inprocess";
	opts.python = TEST_PYTHON;
	opts.timeout_ms = 100;
	opts.grace_ms = 50;
	struct cell_session *session = support_session_with(engine, &opts);
	struct cell_result *result = support_run(session, "x = 1\nimport time\ntime.sleep(1)\nprint('late')");
	assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
	assert_int_equal(cell_result_state_kept(result), 0);
	assert_non_null(strstr(cell_result_error(result)->message, "abandoned"));
	cell_result_destroy(result);
	support_expect(session, "'x' in globals()", "False");
	/* The engine goes while the thread is still there; it finds that out by itself. */
	cell_engine_destroy(engine);
}

/* ---- what is refused ---- */

static void expect_refused(const struct cell_session_options *opts, int code, const char *words)
{
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	assert_int_equal(cell_session_open(engine, opts, &session, &err), -1);
	assert_int_equal(err.code, code);
	assert_non_null(strstr(err.msg, words));
	cell_engine_destroy(engine);
}

static void test_refused(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT, bad;
	const char *const env[] = { "A=b", NULL };
	opts.executor = "inprocess";
	opts.python = TEST_PYTHON;
	bad = opts;
	bad.env = env;
	expect_refused(&bad, CELL_E_INVALID, "environment");
	bad = opts;
	bad.cwd = "/proc";
	expect_refused(&bad, CELL_E_INVALID, "working directory");
	struct cell_engine *engine = support_engine(0);
	cell_session_close(open_one(engine, NULL));
	cell_engine_destroy(engine);
	bad = opts;
	bad.python = "/usr/bin/python3.11-or-another";
	expect_refused(&bad, CELL_E_PYTHON, "one interpreter");
	bad = opts;
	bad.preload = "no_such_module_of_ours";
	expect_refused(&bad, CELL_E_PRELOAD, "no_such_module_of_ours");
}

static void test_no_forks(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_one(engine, NULL), *made;
	struct cell_error err;
	assert_int_equal(cell_session_fork(session, NULL, 1, &made, &err), -1);
	assert_int_equal(err.code, CELL_E_UNSUPPORTED);
	assert_int_equal(cell_session_checkpoint(session, "p", NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_UNSUPPORTED);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_libraries(void **state)
{
	(void)state;
	static const struct {
		const char *said, *words;
	} bad[] = {
		{ "", "cannot find the shared library" },
		{ "{}", "cannot find the shared library" },
		{ "{\"cpython\": false, \"version\": \"7.3.1\", \"name\": \"x\", \"library\": \"/x\"}", "not CPython" },
		{ "{\"cpython\": true, \"version\": \"3.12.1\", \"name\": \"libpython3.12.so.1.0\", \"library\": \"\"}",
		  "libpython3.12), build" },
	};
	struct cell__libpython_info info;
	struct cell_error err;
	for (size_t i = 0; i < COUNT(bad); i++) {
		assert_int_equal(cell__libpython_parse("/p", bad[i].said, strlen(bad[i].said), &info, &err), -1);
		assert_int_equal(err.code, CELL_E_PYTHON);
		assert_non_null(strstr(err.msg, bad[i].words));
	}
	const char good[] = "{\"cpython\": true, \"version\": \"3.12.1\", \"name\": \"n\", \"library\": \"/l.so\"}";
	assert_int_equal(cell__libpython_parse("/p", good, strlen(good), &info, &err), 0);
	assert_string_equal(info.library, "/l.so");
}

/* What sessions leave behind in Python hangs in cycles: gone when Python looks for them, and with it the kernels. */
static int collect(void **state)
{
	(void)state;
	const struct cell__libpython *python = cell__libpython_find();
	int gil = python->gil_ensure();
	void *gc = python->import("gc"), *done = python->call_method(gc, "collect", NULL);
	python->decref(done);
	python->decref(gc);
	python->gil_release(gil);
	return 0;
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_libraries),       TEST(test_host_as_before), TEST(test_two_sessions),
		TEST(test_several_threads), TEST(test_tools),          TEST(test_waiting_for_a_tool),
		TEST(test_abandoned),       TEST(test_no_forks),       TEST(test_refused),
	};
	return cmocka_run_group_tests(tests, NULL, collect);
}
