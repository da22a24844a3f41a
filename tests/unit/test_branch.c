/* The public API: forks of a session, and points to rewind to. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* Whether sessions of the test are sandboxed: there the memory is carried into a new sandbox (executors/subprocess/image.c). */
static bool confined;

static int confine(void **state)
{
	confined = true;
	return support_begin(state);
}

static int confine_no_more(void **state)
{
	confined = false;
	return support_end(state);
}

#define CONFINED(name) { #name " (sandbox)", name, confine, confine_no_more, NULL }

static struct cell_session *open_with(struct cell_engine *engine, struct cell_session_options *options)
{
	if (confined) {
		options->executor = "sandbox";
		options->workspace_mode = "none";
	}
	options->python = TEST_PYTHON;
	return support_session_with(engine, options);
}

static struct cell_session *open_session(struct cell_engine *engine)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	return open_with(engine, &options);
}

static struct cell_session *fork_one(struct cell_session *session)
{
	struct cell_session *made = NULL;
	struct cell_error err = { 0 };
	if (cell_session_fork(session, NULL, 1, &made, &err) < 0)
		fail_msg("fork: %s: %s", cell_code_word(err.code), err.msg);
	return made;
}

/* Both go on from the same state and know nothing of each other. */
static void test_fork(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine);
	support_expect(source, "import json\nx = [1, 2]\ndef numbers():\n    for i in range(100): yield i\ng = numbers(); next(g); next(g)",
		       "1");
	struct cell_session *copy = fork_one(source);
	assert_string_not_equal(cell_session_id(copy), cell_session_id(source));
	assert_int_not_equal(cell_session_kernel_pid(copy), cell_session_kernel_pid(source));
	support_expect(copy, "x.append('copy'); (x, next(g), json.dumps(x))", "([1, 2, 'copy'], 2, '[1, 2, \"copy\"]')");
	support_expect(source, "x.append('source'); (x, next(g))", "([1, 2, 'source'], 2)");
	support_expect(copy, "print('output'); x", "[1, 2, 'copy']");
	struct cell_session *grandchild = fork_one(copy);
	cell_session_close(source);
	support_expect(copy, "x", "[1, 2, 'copy']");
	cell_session_close(copy);
	support_expect(grandchild, "(x, next(g))", "([1, 2, 'copy'], 3)");
	assert_int_equal(cell_session_reset(grandchild, NULL), 0);
	support_expect(grandchild, "'x' in globals()", "False");
	cell_session_close(grandchild);
	cell_engine_destroy(engine);
}

static void test_output_of_forks(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine);
	support_expect(source, "import os, subprocess, sys\nsaved = os.dup(1)", NULL);
	struct cell_session *copy = fork_one(source);
	struct cell_session *both[] = { source, copy };
	for (size_t i = 0; i < COUNT(both); i++) {
		struct cell_result *result = support_run(
			both[i],
			"print('print')\nsubprocess.run(['echo', 'program'])\nn = os.write(saved, b'saved\\n')\nprint('end', file=sys.stderr)");
		assert_int_equal(support_outcome(result), CELL_OK);
		struct cell_text out, err;
		cell_result_stdout(result, &out);
		cell_result_stderr(result, &err);
		assert_string_equal(out.data, "print\nprogram\nsaved\n");
		assert_string_equal(err.data, "end\n");
		cell_result_destroy(result);
	}
	cell_session_close(copy);
	cell_session_close(source);
	cell_engine_destroy(engine);
}

/* n at once; random numbers and names differ. */
static void test_many(void **state)
{
	(void)state;
	enum { N = 20 };
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine), *made[N];
	struct cell_error err;
	char seen[N][400];
	support_expect(source, "import random, uuid, secrets, tempfile, os\nown = random.Random(7)\nrandom.seed(7); random.random(); None",
		       NULL);
	assert_int_equal(cell_session_fork(source, NULL, N, made, &err), 0);
	for (size_t i = 0; i < N; i++) {
		struct cell_result *result = support_run(made[i], "(random.random(), own.random(), uuid.uuid4().hex, uuid.uuid1().hex, "
								  "secrets.token_hex(8), tempfile.mktemp(), own.getrandbits(99))");
		for (size_t k = 0; k < i; k++)
			assert_int_not_equal(cell_session_kernel_pid(made[i]), cell_session_kernel_pid(made[k]));
		snprintf(seen[i], sizeof seen[i], "%s", cell_result_repr(result));
		assert_int_equal(seen[i][0], '(');
		for (size_t k = 0; k < i; k++) {
			char mine[400], other[400], *a, *b;
			strcpy(mine, seen[i]);
			strcpy(other, seen[k]);
			for (char *m = strtok_r(mine, ",", &a), *o = strtok_r(other, ",", &b); m && o;
			     m = strtok_r(NULL, ",", &a), o = strtok_r(NULL, ",", &b))
				assert_string_not_equal(m, o);
		}
		cell_result_destroy(result);
	}
	for (size_t i = 0; i < N; i++)
		cell_session_close(made[i]);
	assert_int_equal(cell_session_fork(source, NULL, 0, made, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_session_close(source);
	cell_engine_destroy(engine);
}

static int score_length(void *arg, size_t i, const struct cell_result *result, double *ret_score)
{
	int *calls = arg;
	++*calls;
	*ret_score = strtod(cell_result_value_json(result), NULL);
	return i == 3 ? -1 : 0;
}

/* The winner's state becomes the session's; nothing of the others is left. */
static void test_race(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	const char *codes[] = { "x = 3\nx", "x = 5\nx", "1 / 0", "x = 9\nx" };
	struct cell_race_options options = CELL_RACE_OPTIONS_INIT;
	struct cell_race *race = NULL;
	struct cell_error err = { 0 };
	int calls = 0;
	support_expect(session, "x = 1", NULL);
	options.codes = codes;
	options.n = COUNT(codes);
	options.judge = "-x";
	options.concurrency = 2;
	assert_int_equal(cell_session_race(session, &options, &race, &err), 0);
	assert_int_equal(race->winner, 0);
	assert_true(race->scores[0] == -3 && race->scores[1] == -5 && race->scores[2] != race->scores[2] && race->scores[3] == -9);
	assert_int_equal(support_outcome(race->results[2]), CELL_OUT_EXCEPTION);
	assert_string_equal(cell_result_repr(race->results[3]), "9");
	cell_race_destroy(race);
	support_expect(session, "x", "3");
	options.judge = NULL;
	options.score = score_length;
	options.score_arg = &calls;
	assert_int_equal(cell_session_race(session, &options, &race, &err), 0);
	assert_true(race->winner == 1 && calls == 3);
	cell_race_destroy(race);
	support_expect(session, "x", "5");
	options.score = NULL;
	options.codes = NULL;
	options.code = "x += 1\nx";
	options.n = 3;
	options.keep_none = 1;
	assert_int_equal(cell_session_race(session, &options, &race, &err), 0);
	assert_true(race->winner == 0 && race->n == 3);
	assert_string_equal(cell_result_repr(race->results[2]), "6");
	cell_race_destroy(race);
	support_expect(session, "x", "5");
	options.codes = codes;
	assert_int_equal(cell_session_race(session, &options, &race, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	options.codes = NULL;
	options.n = 0;
	assert_int_equal(cell_session_race(session, &options, &race, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	options.n = 2;
	support_expect(session, "import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait); t.start()", NULL);
	assert_int_equal(cell_session_race(session, &options, &race, &err), -1);
	assert_int_equal(err.code, CELL_E_FORK);
	support_expect(session, "stop.set(); t.join(); x", "5");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* Takes all results; returns how many, and in *ret_failed how many of them have an error. */
static int take_all(struct cell_batch *batch, size_t n, int *ret_failed)
{
	CELL_AUTO_FREE bool *seen = cell__alloc(n, sizeof *seen);
	struct cell_result *result;
	struct cell_error err;
	size_t i;
	int count = 0, rc;
	*ret_failed = 0;
	while ((rc = cell_batch_next(batch, &i, &result, &err)) > 0) {
		assert_true(i < n && !seen[i]);
		seen[i] = true;
		*ret_failed += cell_result_error(result) != NULL;
		cell_result_destroy(result);
		count++;
	}
	assert_int_equal(rc, 0);
	return count;
}

/* Every run begins from the session's state, and leaves nothing; some hang or crash. */
static void test_batch(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = support_session(engine);
	const char *codes[40];
	int64_t timeouts[40];
	struct cell_batch_options options = CELL_BATCH_OPTIONS_INIT;
	struct cell_session_options kind = CELL_SESSION_OPTIONS_INIT;
	struct cell_batch *batch = NULL;
	struct cell_error err = { 0 };
	int failed;
	for (size_t i = 0; i < COUNT(codes); i++) {
		codes[i] = "x.append(2); assert x == [1, 2]";
		timeouts[i] = 60000;
	}
	codes[3] = "while True: pass";
	timeouts[3] = 300;
	codes[7] = "import os; os._exit(1)";
	codes[11] = "1 / 0";
	support_expect(session, "x = [1]", NULL);
	options.codes = codes;
	options.timeouts_ms = timeouts;
	options.n = COUNT(codes);
	options.concurrency = 4;
	assert_int_equal(cell_session_map(session, &options, &batch, &err), 0);
	support_expect(session, "x[0] = 7; x", "[7]"); /* changes no run */
	assert_int_equal(take_all(batch, COUNT(codes), &failed), COUNT(codes));
	assert_int_equal(failed, 3);
	cell_batch_destroy(batch);
	/* Left in the middle; the session may be gone before. */
	options.timeouts_ms = NULL;
	assert_int_equal(cell_session_map(session, &options, &batch, &err), 0);
	cell_session_close(session);
	cell_batch_destroy(batch);
	codes[0] = "x = 1; x";
	kind.python = TEST_PYTHON;
	options.n = 1;
	assert_int_equal(cell_engine_batch(engine, &kind, &options, &batch, &err), 0);
	assert_int_equal(take_all(batch, 1, &failed), 1);
	assert_int_equal(failed, 0);
	cell_batch_destroy(batch);
	options.n = 0;
	assert_int_equal(cell_engine_batch(engine, &kind, &options, &batch, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	options.n = 100001;
	assert_int_equal(cell_engine_batch(engine, &kind, &options, &batch, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_batch_destroy(NULL);
	cell_engine_destroy(engine);
}

struct news {
	pthread_mutex_t lock;
	char text[4096];
};

static void handle_news(void *arg, const struct cell_event *event)
{
	struct news *news = arg;
	if (event->type != CELL_EVENT_BRANCH)
		return;
	pthread_mutex_lock(&news->lock);
	size_t size = strlen(news->text);
	snprintf(news->text + size, sizeof news->text - size, "%.*s\n", (int)event->size, event->data);
	pthread_mutex_unlock(&news->lock);
}

static bool has_news(struct news *news, const char *text)
{
	pthread_mutex_lock(&news->lock);
	bool found = strstr(news->text, text) != NULL;
	pthread_mutex_unlock(&news->lock);
	return found;
}

/* Every branch is told of; the oldest points go when they take too much memory. */
static void test_news_and_budget(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct news news = { .lock = PTHREAD_MUTEX_INITIALIZER };
	struct cell_error err = { 0 };
	char wanted[100];
	options.python = TEST_PYTHON;
	options.on_event = handle_news;
	options.event_arg = &news;
	options.undo = 2;
	options.points_bytes = 150 << 20;
	struct cell_session *session = support_session_with(engine, &options);
	support_expect(session, "x = 1", NULL);
	assert_int_equal(cell_session_checkpoint(session, "first", NULL, &err), 0);
	assert_true(has_news(&news, "{\"kind\":\"point\",\"name\":\"first\",\"cell\":1}"));
	struct cell_session *fork = fork_one(session);
	snprintf(wanted, sizeof wanted, "{\"kind\":\"fork\",\"session_id\":\"%s\"}", cell_session_id(fork));
	assert_true(has_news(&news, wanted));
	cell_session_close(fork);
	assert_int_equal(cell_session_rewind(session, "first", 0, &err), 0);
	assert_true(has_news(&news, "{\"kind\":\"rewind\",\"name\":\"first\",\"cell\":1,\"file_state\":"));
	cell_result_destroy(support_run(session, "import os; os._exit(1)"));
	assert_true(has_news(&news, "{\"kind\":\"restored\",\"cell\":1}"));
	struct cell_race_options race_options = CELL_RACE_OPTIONS_INIT;
	struct cell_race *race;
	race_options.code = "x";
	race_options.n = 2;
	assert_int_equal(cell_session_race(session, &race_options, &race, &err), 0);
	cell_race_destroy(race);
	assert_true(has_news(&news, "{\"kind\":\"race\",\"n\":2,\"winner\":0}"));
	assert_false(has_news(&news, "dropped"));
	for (int i = 0; i < 6; i++) {
		char name[8];
		snprintf(name, sizeof name, "p%d", i);
		support_expect(session, "data = b'x' * 60_000_000", NULL);
		assert_int_equal(cell_session_checkpoint(session, name, NULL, &err), 0);
	}
	for (int tries = 0; !has_news(&news, "\"dropped\",\"name\":\"p0\"") && tries < 3000; tries++)
		usleep(10000);
	assert_true(has_news(&news, "\"dropped\",\"name\":\"first\""));
	assert_true(has_news(&news, "\"dropped\",\"name\":\"p0\""));
	assert_true(has_news(&news, "\"budget\":\"session\""));
	char *points = cell_session_points(session);
	assert_non_null(strstr(points, "\"p5\""));
	assert_null(strstr(points, "\"first\""));
	free(points);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* Files have positions of their own. */
static void test_positions(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine);
	support_expect(source, "import tempfile\nf = tempfile.TemporaryFile('w+')\nn = f.write('abcdefgh'); f.flush(); n = f.seek(2)",
		       NULL);
	struct cell_session *copy = fork_one(source);
	support_expect(copy, "f.read(3)", "'cde'");
	support_expect(source, "f.read(2)", "'cd'");
	support_expect(copy, "f.read(1)", "'f'");
	cell_session_close(copy);
	cell_session_close(source);
	cell_engine_destroy(engine);
}

/* What a fork cannot have is named, and nothing has happened; with drop it goes without. */
static void test_refused(void **state)
{
	(void)state;
	static const struct {
		const char *code, *named, *end;
	} cases[] = {
		{ "import threading\nstop = threading.Event()\nt = threading.Thread(target=stop.wait, name='worker-7'); t.start()",
		  "thread worker-7", "stop.set(); t.join()" },
		{ "import subprocess\np = subprocess.Popen(['sleep', '1000'])", "process sleep", "p.kill(); p.wait(); None" },
		{ "import socket\na, b = socket.socketpair()", "socket descriptor", "a.close(); b.close()" },
		{ "import os\nr, w = os.pipe()", "pipe descriptor", "os.close(r); os.close(w)" },
		{ "import fcntl, tempfile\nf = tempfile.TemporaryFile(); fcntl.flock(f, fcntl.LOCK_EX)", "lock /tmp/", "f.close()" },
	};
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine), *made = NULL;
	struct cell_fork_options drop = CELL_FORK_OPTIONS_INIT;
	drop.drop = 1;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct cell_error err = { 0 };
		support_expect(source, cases[i].code, NULL);
		assert_int_equal(cell_session_fork(source, NULL, 1, &made, &err), -1);
		assert_int_equal(err.code, CELL_E_FORK);
		assert_non_null(strstr(err.msg, cases[i].named));
		assert_int_equal(cell_session_checkpoint(source, "p", NULL, &err), -1);
		assert_int_equal(err.code, CELL_E_FORK);
		assert_int_equal(cell_session_fork(source, &drop, 1, &made, &err), 0);
		support_expect(made, "1 + 1", "2");
		cell_session_close(made);
		support_expect(source, cases[i].end, NULL);
		made = fork_one(source);
		cell_session_close(made);
	}
	cell_session_close(source);
	cell_engine_destroy(engine);
}

static void test_rewind(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = open_session(engine);
	struct cell_error err;
	support_expect(session, "x = 1", NULL);
	assert_int_equal(cell_session_checkpoint(session, "one", NULL, &err), 0);
	support_expect(session, "x = 2", NULL);
	assert_int_equal(cell_session_checkpoint(session, "two", NULL, &err), 0);
	support_expect(session, "x = 3", NULL);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(cell_session_rewind(session, "one", 0, &err), 0);
		support_expect(session, "x += 10; x", "11");
		assert_int_equal(cell_session_rewind(session, "two", 0, &err), 0);
		support_expect(session, "x", "2");
	}
	char *points = cell_session_points(session);
	assert_non_null(strstr(points, "\"name\":\"two\",\"cell\":2"));
	assert_non_null(strstr(points, "\"name\":\"one\",\"cell\":1"));
	free(points);
	/* On from a point in sessions of their own: the session stays where it is. */
	struct cell_fork_options from = { .size = sizeof from, .point = "one" };
	struct cell_session *made[2];
	assert_int_equal(cell_session_fork(session, &from, 2, made, &err), 0);
	for (int i = 0; i < 2; i++) {
		support_expect(made[i], "x += 1; x", "2");
		cell_session_close(made[i]);
	}
	from.point = "three";
	assert_int_equal(cell_session_fork(session, &from, 2, made, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	from.point = "";
	assert_int_equal(cell_session_fork(session, &from, 1, made, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	support_expect(session, "x = 4", NULL); /* the fourth cell after "two": x; x = 4 */
	assert_int_equal(cell_session_rewind(session, NULL, 2, &err), 0);
	support_expect(session, "x", "2");
	assert_int_equal(cell_session_rewind(session, NULL, 1000, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(cell_session_rewind(session, "three", 0, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(cell_session_drop_point(session, "one", &err), 0);
	assert_int_equal(cell_session_drop_point(session, "one", &err), -1);
	assert_int_equal(cell_session_rewind(session, "one", 0, &err), -1);
	/* A name that is taken again. */
	support_expect(session, "x = 'again'", NULL);
	assert_int_equal(cell_session_checkpoint(session, "two", NULL, &err), 0);
	assert_int_equal(cell_session_reset(session, &err), 0);
	support_expect(session, "'x' in globals()", "False");
	assert_int_equal(cell_session_rewind(session, "two", 0, &err), 0);
	support_expect(session, "x", "'again'");
	/* After the kernel's death too. */
	struct cell_result *result = support_run(session, "import os; os._exit(3)");
	assert_int_equal(support_outcome(result), CELL_OUT_KERNEL_DIED);
	cell_result_destroy(result);
	assert_int_equal(cell_session_rewind(session, "two", 0, &err), 0);
	support_expect(session, "x", "'again'");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_become(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine), *other = open_session(engine);
	struct cell_error err;
	support_expect(source, "x = 1", NULL);
	struct cell_session *copy = fork_one(source);
	support_expect(copy, "x = 2", NULL);
	assert_int_equal(cell_session_become(source, copy, &err), 0);
	support_expect(source, "x += 10; x", "12");
	support_expect(copy, "x", "2");
	cell_session_close(copy);
	support_expect(source, "x", "12");
	assert_int_equal(cell_session_become(source, other, &err), 0);
	support_expect(source, "'x' in globals()", "False");
	assert_int_equal(cell_session_become(source, source, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_session_close(other);
	cell_session_close(source);
	cell_engine_destroy(engine);
}

static size_t count_points(struct cell_session *session)
{
	char *points = cell_session_points(session);
	size_t n = 0;
	for (const char *at = points; (at = strstr(at, "\"name\"")); at++)
		n++;
	free(points);
	return n;
}

static bool has_three_points(void *session)
{
	return count_points(session) == 3;
}

static struct cell_session *undoing(struct cell_engine *engine, int undo)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.undo = undo;
	options.grace_ms = 100;
	return open_with(engine, &options);
}

static void test_undo(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = undoing(engine, 3);
	struct cell_error err;
	support_expect(session, "x = 1", NULL);
	support_expect(session, "x = 2", NULL);
	support_expect(session, "x", "2");
	support_expect(session, "print(x, len('abc'), x * 2 + 1)", NULL);
	/* Before each assignment, and before `x`: what follows changes nothing.  A point is listed when its kernel is there, and the cell does not wait for it. */
	assert_true(support_wait(has_three_points, session));
	support_expect(session, "x = 3", NULL);
	assert_true(support_wait(has_three_points, session));
	assert_int_equal(cell_session_rewind(session, NULL, 1, &err), 0);
	support_expect(session, "x", "2");
	assert_int_equal(cell_session_rewind(session, NULL, 2, &err),
			 0); /* that was a cell too, and so were the two that changed nothing */
	support_expect(session, "x", "2");
	assert_int_equal(cell_session_rewind(session, NULL, 3, &err), 0);
	support_expect(session, "x", "1");
	for (int i = 0; i < 10; i++)
		support_expect(session, "x += 1", NULL);
	assert_true(support_wait(has_three_points, session));
	assert_int_equal(cell_session_rewind(session, NULL, 3, &err), 0);
	support_expect(session, "x", "8");
	assert_int_equal(cell_session_rewind(session, NULL, 9, &err), -1);
	cell_session_close(session);
	cell_engine_destroy(engine);
}

static void test_restored(void **state)
{
	(void)state;
	static const char *const codes[] = {
		"x = 'lost'; import os; os._exit(3)",
		"x = 'lost'; import ctypes; ctypes.string_at(0)",
		"x = 'lost'; import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: pass",
	};
	struct cell_engine *engine = support_engine(0);
	struct cell_session *session = undoing(engine, 2);
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.timeout_ms = 1000;
	support_expect(session, "x = 'kept'", NULL);
	for (size_t i = 0; i < COUNT(codes); i++) {
		struct cell_result *result;
		struct cell_error err;
		assert_int_equal(cell_session_run(session, codes[i], strlen(codes[i]), &options, &result, &err), 0);
		assert_int_equal(support_outcome(result), i == 2 ? CELL_OUT_TIMEOUT : CELL_OUT_KERNEL_DIED);
		assert_string_equal(cell_result_state(result), "restored");
		assert_int_equal(cell_result_state_kept(result), 2);
		assert_non_null(strstr(cell_result_error(result)->message, "back in the state before the cell"));
		cell_result_destroy(result);
		support_expect(session, "x", "'kept'");
	}
	/* Each point makes an older one leave, whose end comes at any time. */
	support_expect(session, "x = 0", NULL);
	for (int i = 0; i < 30; i++) {
		support_expect(session, "x += 1", NULL);
		struct cell_result *result = support_run(session, codes[0]);
		assert_string_equal(cell_result_state(result), "restored");
		cell_result_destroy(result);
	}
	support_expect(session, "x", "30");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* Zygote, source and branch die one after the other: each takes nobody else along. */
static void test_deaths(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine);
	support_expect(source, "x = 5; import os", NULL);
	struct cell_session *a = fork_one(source), *b = fork_one(source);
	pid_t zygote = 0;
	struct cell_result *result = support_run(source, "os.getppid()");
	zygote = atoi(cell_result_repr(result));
	cell_result_destroy(result);
	assert_int_equal(kill(zygote, SIGKILL), 0);
	support_expect(a, "x", "5");
	struct cell_session *late = fork_one(source);
	support_expect(late, "x", "5");
	kill((pid_t)cell_session_kernel_pid(source), SIGKILL);
	support_expect(a, "x", "5");
	result = support_run(b, "os._exit(1)");
	assert_int_equal(support_outcome(result), CELL_OUT_KERNEL_DIED);
	cell_result_destroy(result);
	support_expect(a, "x", "5");
	support_expect(late, "x", "5");
	support_expect(b, "'x' in globals()", "False");
	cell_session_close(late);
	cell_session_close(a);
	cell_session_close(b);
	cell_session_close(source);
	cell_engine_destroy(engine);
}

static void test_interrupt_and_children(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine);
	support_expect(source, "import subprocess, time", NULL);
	struct cell_session *copy = fork_one(source);
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.timeout_ms = 300;
	struct cell_result *result;
	struct cell_error err;
	const char *code = "p = subprocess.Popen(['sleep', '1000'])\ntime.sleep(1000)";
	assert_int_equal(cell_session_run(copy, code, strlen(code), &options, &result, &err), 0);
	assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
	assert_int_equal(cell_result_state_kept(result), 1);
	cell_result_destroy(result);
	result = support_run(copy, "p.pid");
	pid_t child = atoi(cell_result_repr(result));
	cell_result_destroy(result);
	cell_session_close(copy);
	assert_true(support_wait(support_pid_gone, &child));
	support_expect(source, "1", "1");
	cell_session_close(source);
	cell_engine_destroy(engine);
}

static void test_event_loop(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine);
	support_expect(source,
		       "import asyncio\nawait asyncio.sleep(0)\nasync def later():\n    await asyncio.sleep(0.2)\n    return 'done'\n"
		       "task = asyncio.ensure_future(later())",
		       NULL);
	struct cell_session *copy = fork_one(source);
	support_expect(copy, "await task", "'done'");
	support_expect(source, "await task", "'done'");
	support_expect(copy, "await asyncio.get_running_loop().run_in_executor(None, lambda: 'thread')", "'thread'");
	cell_session_close(copy);
	cell_session_close(source);
	cell_engine_destroy(engine);
}

/* What a fork leaves behind is not taken from its source; what it wrote is there. */
static void test_ends(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine);
	struct cell_error err;
	support_expect(source,
		       "import atexit, os, tempfile\nd = tempfile.TemporaryDirectory()\nkept = tempfile.NamedTemporaryFile()\n"
		       "path = d.name + '/exit'\nh = atexit.register(lambda: open(path, 'a').write('source'))",
		       NULL);
	struct cell_session *copy = fork_one(source);
	support_expect(copy,
		       "f = open(d.name + '/unflushed', 'w'); n = f.write('written')\n"
		       "h = atexit.register(lambda: open(path, 'a').write('copy'))",
		       NULL);
	cell_session_close(copy);
	support_expect(source, "open(d.name + '/unflushed').read(), open(path).read(), os.path.exists(kept.name)",
		       "('written', 'copy', True)");
	/* A session that was rewound removes its own when it ends. */
	assert_int_equal(cell_session_checkpoint(source, "p", NULL, &err), 0);
	assert_int_equal(cell_session_rewind(source, "p", 0, &err), 0);
	struct cell_result *result = support_run(source, "print(d.name)");
	struct cell_text out;
	char path[200];
	cell_result_stdout(result, &out);
	snprintf(path, sizeof path, "%.*s", (int)out.size - 1, out.data);
	cell_result_destroy(result);
	assert_int_equal(access(path, F_OK), 0);
	cell_session_close(source);
	assert_int_equal(access(path, F_OK), -1);
	cell_engine_destroy(engine);
}

static void assert_same_receipt(struct cell_session *a, struct cell_session *b)
{
	struct cell_result *one = support_run(a, "None"), *two = support_run(b, "None");
	assert_string_equal(cell_result_isolation_json(one), cell_result_isolation_json(two));
	assert_non_null(strstr(cell_result_isolation_json(one), "sandbox"));
	cell_result_destroy(one);
	cell_result_destroy(two);
}

/* Each fork has a sandbox of its own, with what its source had in the folders that are its own; deaths take nobody else along. */
static void test_sandbox(void **state)
{
	(void)state;
	confined = true;
	struct cell_engine *engine = support_engine(0);
	struct cell_session *source = open_session(engine), *made = NULL;
	struct cell_error err = { 0 };
	support_expect(source,
		       "import os, tempfile\nos.makedirs('/tmp/a/b'); open('/tmp/a/b/c', 'w').write('text'); os.symlink('b', '/tmp/a/l')\n"
		       "os.chdir('/tmp/a'); f = open('b/c', 'r+'); n = f.seek(1); d = tempfile.TemporaryDirectory()",
		       NULL);
	struct cell_session *copy = fork_one(source), *other = fork_one(source);
	assert_same_receipt(copy, source);
	support_expect(copy, "(os.getcwd(), f.read(), open('l/c').read(), os.path.isdir(d.name), f.write('!'), f.flush())[:4]",
		       "('/tmp/a', 'ext', 'text', True)");
	support_expect(copy, "open('b/c').read()", "'text!'");
	support_expect(source, "(f.read(), open('b/c').read(), os.path.isdir(d.name))", "('ext', 'text', True)");
	/* It sees no process of its source, and what it kills is its own. */
	support_expect(copy, "sorted(int(n) for n in os.listdir('/proc') if n.isdigit()) == [1, os.getpid()]", "True");
	struct cell_result *result = support_run(copy, "try: os.kill(-1, 9)\nexcept ProcessLookupError: os.kill(os.getpid(), 9)");
	assert_int_equal(support_outcome(result), CELL_OUT_KERNEL_DIED);
	cell_result_destroy(result);
	assert_int_equal(cell_session_checkpoint(source, "p", NULL, &err), 0);
	result = support_run(source, "try: os.kill(-1, 9)\nexcept ProcessLookupError: os.kill(os.getpid(), 9)");
	cell_result_destroy(result);
	support_expect(other, "f.read()", "'ext'");
	assert_int_equal(cell_session_rewind(source, "p", 0, &err), 0);
	support_expect(source, "os.getcwd(), open('b/c').read()", "('/tmp/a', 'text')");
	cell_session_close(source);
	support_expect(other, "open('b/c').read()", "'text'");
	/* More than is carried. */
	support_expect(other, "big = open('/tmp/big', 'wb'); big.truncate(65 << 20)", "68157440");
	assert_int_equal(cell_session_fork(other, NULL, 1, &made, &err), -1);
	assert_int_equal(err.code, CELL_E_FORK);
	assert_non_null(strstr(err.msg, "/tmp"));
	cell_session_close(other);
	cell_session_close(copy);
	cell_engine_destroy(engine);
	confined = false;
}

/* Code that answers for its kernel: the fork fails with a reason, soon, and the session goes on. */
static void test_hostile_images(void **state)
{
	(void)state;
	static const struct {
		const char *code, *words;
	} cases[] = {
		{ "_workcell.image_save = lambda fd, limit, keeps: [1, 2, 3]", "memory that is not its own" },
		{ "_workcell.image_save = lambda fd, limit, keeps: list(range(100000))", "ended before it forked" },
		{ "_workcell.image_save = lambda fd, limit, keeps: []", "could not be loaded" },
		{ "_workcell.image_save = lambda fd, limit, keeps: os.pwrite(fd, b'x' * 100000, 0) and []", "could not be loaded" },
		{ "_workcell.image_save = lambda fd, limit, keeps: os.pwrite(fd, saved(fd)[:9000], 0) and []", NULL },
		{ "_workcell.image_save = lambda fd, limit, keeps: time.sleep(1000)", "did not fork within" },
		{ "_workcell.begin_again = lambda: time.sleep(1000)", "did not fork within" },
		{ "_workcell.begin_again = lambda: os._exit(1)", NULL },
		{ "_workcell.begin_again = lambda: os.kill(os.getpid(), 11)", NULL },
	};
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_error err = { 0 };
	struct cell_engine *engine = NULL;
	options.lib_dir = TEST_LIB_DIR;
	options.pool_size = 0;
	options.start_timeout_ms = 5000;
	assert_int_equal(cell_engine_create(&options, &engine, &err), 0);
	confined = true;
	struct cell_session *good = open_session(engine);
	support_expect(good, "x = 1", NULL);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct cell_session *source = open_session(engine), *made = NULL;
		support_expect(
			source,
			"import _workcell, os, time\nx = 5\nreal = _workcell.image_save\n"
			"def saved(fd):\n    real(fd, 0, True); return bytearray(os.pread(fd, 9000, 0)).replace(b'\\x00' * 64, b'\\xff' * 64)",
			NULL);
		support_expect(source, cases[i].code, NULL);
		assert_int_equal(cell_session_fork(source, NULL, 1, &made, &err), -1);
		if (cases[i].words && !strstr(err.msg, cases[i].words))
			fail_msg("%s: %s", cases[i].code, err.msg);
		assert_int_equal(cell_session_checkpoint(good, "p", NULL, &err), 0);
		assert_int_equal(cell_session_rewind(good, "p", 0, &err), 0);
		support_expect(good, "x", "1");
		if (i != 1 && i != 5) /* that kernel was killed, or sleeps */
			support_expect(source, "x", "5");
		cell_session_close(source);
	}
	cell_session_close(good);
	cell_engine_destroy(engine);
	confined = false;
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_fork),
		TEST(test_output_of_forks),
		TEST(test_many),
		TEST(test_race),
		TEST(test_batch),
		TEST(test_news_and_budget),
		TEST(test_positions),
		TEST(test_refused),
		TEST(test_rewind),
		TEST(test_deaths),
		TEST(test_interrupt_and_children),
		TEST(test_event_loop),
		TEST(test_ends),
		TEST(test_become),
		TEST(test_undo),
		TEST(test_restored),
		CONFINED(test_fork),
		CONFINED(test_output_of_forks),
		CONFINED(test_many),
		CONFINED(test_positions),
		CONFINED(test_refused),
		CONFINED(test_rewind),
		CONFINED(test_event_loop),
		CONFINED(test_become),
		CONFINED(test_undo),
		CONFINED(test_restored),
		TEST(test_sandbox),
		TEST(test_hostile_images),
	};
	return cmocka_run_group_tests_name("branch", tests, NULL, NULL);
}
