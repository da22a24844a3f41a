/* The public API from many threads, in several engines, and with many sessions. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

/* In a thread: runs a cell and compares its repr. */
static void run_and_check(struct cell_session *session, const char *code, const char *repr)
{
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };
	if (cell_session_run(session, code, strlen(code), NULL, &result, &err) < 0) {
		fprintf(stderr, "%s: %s\n", cell_code_word(err.code), err.msg);
		abort();
	}
	const struct cell_outcome *outcome = cell_result_error(result);
	if (outcome)
		fprintf(stderr, "%s: %s: %s\n", code, cell_code_word(outcome->code), outcome->message);
	CHECK(!outcome);
	CHECK(strcmp(cell_result_repr(result), repr) == 0);
	CHECK(cell_result_state_kept(result));
	cell_result_destroy(result);
}

static struct cell_session *open_here(struct cell_engine *engine)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	options.python = TEST_PYTHON;
	if (cell_session_open(engine, &options, &session, &err) < 0) {
		fprintf(stderr, "%s: %s\n", cell_code_word(err.code), err.msg);
		abort();
	}
	return session;
}

struct worker {
	struct cell_engine *engine;
	struct cell_session *session;
	int number;
	pthread_t thread;
};

/* ---- several engines ---- */

static void test_several_engines(void **state)
{
	(void)state;
	struct cell_engine *engines[3];
	struct cell_session *sessions[3];
	for (int i = 0; i < 3; i++) {
		engines[i] = support_engine(i);
		sessions[i] = support_session(engines[i]);
	}
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < 3; i++) {
			char code[64], repr[16];
			snprintf(code, sizeof code, round ? "x += 1; x" : "x = %d; x", i * 10);
			snprintf(repr, sizeof repr, "%d", i * 10 + round);
			support_expect(sessions[i], code, repr);
		}
	/* The end of one is nothing to the others. */
	cell_session_close(sessions[1]);
	cell_engine_destroy(engines[1]);
	support_expect(sessions[0], "x", "2");
	support_expect(sessions[2], "x", "22");
	cell_engine_destroy(engines[0]);
	support_expect(sessions[2], "x", "22");
	cell_engine_destroy(engines[2]);
}

static void *engine_life(void *arg)
{
	struct worker *worker = arg;
	for (int i = 0; i < 3; i++) {
		struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
		struct cell_engine *engine;
		options.lib_dir = TEST_LIB_DIR;
		options.pool_size = worker->number % 3;
		CHECK(cell_engine_create(&options, &engine, NULL) == 0);
		struct cell_session *session = open_here(engine);
		run_and_check(session, "1 + 1", "2");
		if (i % 2)
			cell_session_close(session);
		cell_engine_destroy(engine);
	}
	return NULL;
}

static void test_engines_in_threads(void **state)
{
	(void)state;
	struct worker workers[4];
	for (int i = 0; i < 4; i++) {
		workers[i] = (struct worker){ .number = i };
		assert_int_equal(pthread_create(&workers[i].thread, NULL, engine_life, &workers[i]), 0);
	}
	for (int i = 0; i < 4; i++)
		pthread_join(workers[i].thread, NULL);
}

/* ---- many threads on one engine ---- */

static void *use_sessions(void *arg)
{
	struct worker *worker = arg;
	struct cell_session *sessions[3];
	for (int i = 0; i < 3; i++)
		sessions[i] = open_here(worker->engine);
	for (int round = 0; round < 20; round++)
		for (int i = 0; i < 3; i++) {
			char code[64], repr[16];
			int value = worker->number * 1000 + i * 100;
			snprintf(code, sizeof code, round ? "x += 1; x" : "x = %d; x", value);
			snprintf(repr, sizeof repr, "%d", value + round);
			run_and_check(sessions[i], code, repr);
			if (round == 10 && i == 1) {
				CHECK(cell_session_reset(sessions[i], NULL) == 0);
				snprintf(code, sizeof code, "x = %d; x", value + round);
				run_and_check(sessions[i], code, repr);
			}
		}
	for (int i = 0; i < 3; i++)
		cell_session_close(sessions[i]);
	return NULL;
}

static void test_many_threads(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(2);
	struct worker workers[8];
	for (int i = 0; i < 8; i++) {
		workers[i] = (struct worker){ .engine = engine, .number = i };
		assert_int_equal(pthread_create(&workers[i].thread, NULL, use_sessions, &workers[i]), 0);
	}
	for (int i = 0; i < 8; i++)
		pthread_join(workers[i].thread, NULL);
	cell_engine_destroy(engine);
}

/* Opens of one environment that is not up yet: all wait for the same zygote. */
static void *open_and_close(void *arg)
{
	struct worker *worker = arg;
	struct cell_session *session = open_here(worker->engine);
	run_and_check(session, "40 + 2", "42");
	cell_session_close(session);
	return NULL;
}

static void test_first_use_at_once(void **state)
{
	(void)state;
	for (int round = 0; round < 3; round++) {
		struct cell_engine *engine = support_engine(2);
		struct worker workers[8];
		for (int i = 0; i < 8; i++) {
			workers[i] = (struct worker){ .engine = engine };
			assert_int_equal(pthread_create(&workers[i].thread, NULL, open_and_close, &workers[i]), 0);
		}
		for (int i = 0; i < 8; i++)
			pthread_join(workers[i].thread, NULL);
		cell_engine_destroy(engine);
	}
}

/* ---- many threads on one session ---- */

static void *append(void *arg)
{
	struct worker *worker = arg;
	for (int i = 0; i < 50; i++) {
		char code[200];
		/* Between the two looks at `inside` another cell would show. */
		snprintf(code, sizeof code, "inside.append(1); n = len(inside); log.append((%d, %d)); _ = inside.pop(); n", worker->number,
			 i);
		run_and_check(worker->session, code, "1");
	}
	return NULL;
}

static void test_one_session_from_many_threads(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	support_expect(session, "log = []; inside = []", NULL);
	struct worker workers[8];
	for (int i = 0; i < 8; i++) {
		workers[i] = (struct worker){ .session = session, .number = i };
		assert_int_equal(pthread_create(&workers[i].thread, NULL, append, &workers[i]), 0);
	}
	for (int i = 0; i < 8; i++)
		pthread_join(workers[i].thread, NULL);
	/* All of them, and those of each thread in its order. */
	support_expect(session, "len(log), [[i for t, i in log if t == n] == list(range(50)) for n in range(8)] == [True] * 8",
		       "(400, True)");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* A long cell of one session holds up nobody else. */
static void *run_long(void *arg)
{
	struct worker *worker = arg;
	run_and_check(worker->session, "import time\nwhile not go: time.sleep(0.001)\n'went'", "'went'");
	return NULL;
}

static void test_sessions_run_in_parallel(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *slow = support_session(engine), *quick = support_session(engine);
	/* The long cell ends when the quick session has done its work and touched a file. */
	char path[] = "/tmp/workcell-test-XXXXXX";
	int fd = mkstemp(path);
	assert_true(fd >= 0);
	close(fd);
	char code[256];
	snprintf(code, sizeof code, "import os\nclass Go:\n    def __bool__(self): return not os.path.exists('%s')\ngo = Go()", path);
	support_expect(slow, code, NULL);
	struct worker worker = { .session = slow };
	assert_int_equal(pthread_create(&worker.thread, NULL, run_long, &worker), 0);
	for (int i = 0; i < 50; i++)
		support_expect(quick, "2 + 2", "4");
	unlink(path);
	pthread_join(worker.thread, NULL);
	cell_session_close(slow);
	cell_session_close(quick);
	cell_engine_destroy(engine);
}

/* ---- sixty sessions ---- */

#define MANY 60

static void use_many(struct cell_engine *engine)
{
	struct cell_session *sessions[MANY];
	for (int i = 0; i < MANY; i++)
		sessions[i] = support_session(engine);
	for (int i = 0; i < MANY; i++) {
		char code[64], repr[16];
		snprintf(code, sizeof code, "x = %d * 2\nprint('x' * 1000)\nx", i);
		snprintf(repr, sizeof repr, "%d", i * 2);
		support_expect(sessions[i], code, repr);
	}
	for (int i = 0; i < MANY; i++)
		support_expect(sessions[i], "x % 2", "0");
	for (int i = 0; i < MANY; i++)
		cell_session_close(sessions[i]);
}

static void test_sixty_sessions(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	/* What stays after the first times is no leak: the loop's and the allocator's own tables. */
	use_many(engine);
	use_many(engine);
	size_t fds = support_count_fds();
	long kb = support_private_kb();
	struct cell_env_info info = { .size = sizeof info };
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, NULL, &info, NULL), 0);
	for (int round = 0; round < 3; round++) {
		use_many(engine);
		assert_int_equal(support_count_fds(), fds);
	}
	long grown = support_private_kb() - kb;
	print_message("host grew by %ld kB over %d sessions\n", grown, 3 * MANY);
#ifndef SANITIZED
	if (grown > 512)
		fail_msg("the host grew by %ld kB", grown);
#endif
	/* Of the zygote's children none is left. */
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)info.zygote_pid, (int)info.zygote_pid);
	CELL_AUTO_BUF struct cell__buf children = CELL_BUF_INIT;
	assert_true(support_read_file(path, &children));
	assert_string_equal(children.data, "");
	cell_engine_destroy(engine);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_several_engines),
		TEST(test_engines_in_threads),
		TEST(test_many_threads),
		TEST(test_first_use_at_once),
		TEST(test_one_session_from_many_threads),
		TEST(test_sessions_run_in_parallel),
		TEST(test_sixty_sessions),
	};
	return cmocka_run_group_tests_name("threads", tests, NULL, NULL);
}
