/*
 * Functions of the host as tools, called by code in real kernels: answers of every kind, at once, later and from another
 * thread; wrong arguments; timeouts; callers that go away first; very many at once.
 */
#define _GNU_SOURCE
#include "support.h"

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>

#define MANY 1000

/* ---- calls that wait for an answer ---- */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct cell_tool_call *calls[2 * MANY];
	size_t count, most;
	bool stopping;
} held = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* A tool's function: keeps the call. */
static void hold(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	pthread_mutex_lock(&held.lock);
	CHECK(held.count < COUNT(held.calls));
	held.calls[held.count++] = call;
	if (held.count > held.most)
		held.most = held.count;
	pthread_cond_broadcast(&held.changed);
	pthread_mutex_unlock(&held.lock);
}

static struct cell_tool_call *take_held(void)
{
	pthread_mutex_lock(&held.lock);
	struct cell_tool_call *call = held.count > 0 ? held.calls[--held.count] : NULL;
	pthread_mutex_unlock(&held.lock);
	return call;
}

static bool something_held(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&held.lock);
	bool some = held.count > 0;
	pthread_mutex_unlock(&held.lock);
	return some;
}

static bool nobody_waits(void *call)
{
	return cell_tool_call_cancelled(call);
}

static void answer_doubled(struct cell_tool_call *call)
{
	json_t *args = json_loads(cell_tool_call_args(call), 0, NULL);
	char text[32];
	int n = snprintf(text, sizeof text, "%lld", (long long)json_integer_value(json_object_get(args, "n")) * 2);
	json_decref(args);
	cell_tool_call_answer_json(call, text, (size_t)n);
}

/* A thread of the host's: answers what is held, the last first, once `wait_for` calls have come together. */
static void *answerer(void *arg)
{
	size_t wait_for = *(size_t *)arg;
	pthread_mutex_lock(&held.lock);
	while (!held.stopping) {
		if (held.count == 0 || held.most < wait_for) {
			pthread_cond_wait(&held.changed, &held.lock);
			continue;
		}
		struct cell_tool_call *call = held.calls[--held.count];
		pthread_mutex_unlock(&held.lock);
		answer_doubled(call);
		pthread_mutex_lock(&held.lock);
	}
	pthread_mutex_unlock(&held.lock);
	return NULL;
}

static void start_answerers(pthread_t *threads, size_t n, size_t *wait_for)
{
	held.stopping = false;
	held.most = 0;
	for (size_t i = 0; i < n; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, answerer, wait_for), 0);
}

static void stop_answerers(pthread_t *threads, size_t n)
{
	pthread_mutex_lock(&held.lock);
	held.stopping = true;
	pthread_cond_broadcast(&held.changed);
	pthread_mutex_unlock(&held.lock);
	for (size_t i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(held.count, 0);
}

/* ---- functions that answer at once ---- */

static void add(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	json_t *args = json_loads(cell_tool_call_args(call), 0, NULL);
	json_int_t sum = json_integer_value(json_object_get(args, "a")) + json_integer_value(json_object_get(args, "b"));
	char text[80];
	int n = snprintf(text, sizeof text, "{\"sum\": %lld, \"given\": %zu}", (long long)sum, json_object_size(args));
	json_decref(args);
	cell_tool_call_answer_json(call, text, (size_t)n);
}

static void say_text(void *arg, struct cell_tool_call *call)
{
	cell_tool_call_answer_text(call, arg, strlen(arg));
}

static void say_json(void *arg, struct cell_tool_call *call)
{
	cell_tool_call_answer_json(call, arg, strlen(arg));
}

static void refuse(void *arg, struct cell_tool_call *call)
{
	cell_tool_call_fail(call, arg);
}

static void tell_session(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	const char *id = cell_tool_call_session_id(call);
	cell_tool_call_answer_text(call, id, strlen(id));
}

#define NUMBER "{\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}, \"required\": [\"n\"]}"
#define ADD                                                                                                  \
	"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"description\": \"one\"}, " \
	"\"b\": {\"type\": \"integer\", \"default\": 1}}, \"required\": [\"a\"]}"

static const struct cell_tool tools[] = {
	{ .name = "math.add", .description = "Adds", .parameters = ADD, .fn = add, .timeout_ms = -1 },
	{ .name = "math.later", .description = "Doubles, some time", .parameters = NUMBER, .fn = hold, .timeout_ms = -1 },
	{ .name = "hasty", .parameters = NUMBER, .fn = hold, .timeout_ms = 200 },
	{ .name = "greet", .description = "Greets", .fn = say_text, .arg = (char *)"gr\xc3\xbc\xc3\x9f dich\n", .timeout_ms = -1 },
	{ .name = "empty", .fn = say_text, .arg = (char *)"", .timeout_ms = -1 },
	{ .name = "bytes",
	  .fn = say_text,
	  .arg = (char *)"a\xff"
			 "b",
	  .timeout_ms = -1 },
	{ .name = "big", .fn = say_json, .arg = (char *)"{\"n\": 123456789012345678901234567890, \"l\": [null, 1.5]}", .timeout_ms = -1 },
	{ .name = "garbage", .fn = say_json, .arg = (char *)"{no json", .timeout_ms = -1 },
	{ .name = "refuse", .fn = refuse, .arg = (char *)"out of paper,\nsorry", .timeout_ms = -1 },
	{ .name = "whoami", .fn = tell_session, .timeout_ms = -1 },
};

static struct cell_engine *engine;
static struct cell_space *space;

static struct cell_session *open_session(void)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	if (!engine) {
		engine = support_engine(0);
		if (cell_space_open(engine, NULL, &space, &err) < 0)
			fail_msg("cell_space_open: %s", err.msg);
		for (size_t i = 0; i < COUNT(tools); i++) {
			struct cell_tool tool = tools[i];
			tool.size = sizeof tool;
			if (cell_space_add_tool(space, &tool, &err) < 0)
				fail_msg("%s: %s", tool.name, err.msg);
		}
	}
	options.space = space;
	return support_session_with(engine, &options);
}

static void end(void)
{
	cell_space_close(cell__take_ptr(space));
	cell_engine_destroy(cell__take_ptr(engine));
}

static void expect_error(struct cell_session *session, const char *code, const char *type, const char *words)
{
	struct cell_result *result = support_run(session, code);
	const struct cell_outcome *outcome = cell_result_error(result);
	assert_non_null(outcome);
	assert_string_equal(outcome->type, type);
	if (!strstr(outcome->message, words))
		fail_msg("\"%s\" is not in: %s", words, outcome->message);
	cell_result_destroy(result);
}

/* ---- tests ---- */

static void test_answers(void **state)
{
	(void)state;
	struct cell_session *session = open_session();
	support_expect(session, "tools.math.add(a=2, b=3)", "{'sum': 5, 'given': 2}");
	support_expect(session, "tools.math.add(a=2)", "{'sum': 3, 'given': 2}"); /* the default has been filled in */
	support_expect(session, "tools.greet()", "'gr\xc3\xbc\xc3\x9f dich\\n'");
	support_expect(session, "tools.empty()", "''");
	support_expect(session, "tools.bytes()",
		       "'a\xef\xbf\xbd"
		       "b'");
	support_expect(session, "tools.big()", "{'n': 123456789012345678901234567890, 'l': [None, 1.5]}");
	expect_error(session, "tools.garbage()", "ToolCallError", "not JSON");
	expect_error(session, "tools.refuse()", "ToolCallError", "out of paper,\nsorry");
	support_expect(session, "try:\n    tools.refuse()\nexcept ToolError as e:\n    seen = e.code\nseen", "'tool_failed'");
	char repr[64];
	snprintf(repr, sizeof repr, "'%s'", cell_session_id(session));
	support_expect(session, "tools.whoami()", repr);
	support_expect(session, "await tools.math.add.call_async(a=1)", "{'sum': 2, 'given': 2}");
	support_expect(session, "tools.math.add.signature()", "'add(a: int, b: int = 1)'");
	support_expect(session, "'one' in tools.math.add.__doc__ and 'Adds' in tools.math.add.__doc__", "True");
	support_expect(session, "[t['name'] for t in tools.search('greets')][:1]", "['greet']");
	cell_session_close(session);
	end();
}

static void test_wrong_arguments(void **state)
{
	(void)state;
	struct cell_session *session = open_session();
	static const char *const calls[] = { "tools.math.add()", "tools.math.add(a='x')", "tools.math.add(a=1, c=2)",
					     "tools.math.add(a=1.5)" };
	for (size_t i = 0; i < COUNT(calls); i++)
		expect_error(session, calls[i], "ToolCallError", "add(a: int, b: int = 1)");
	expect_error(session, "tools.math.add(1, 2)", "TypeError", "a: int");
	expect_error(session, "tools.math.nope()", "AttributeError", "add, later");
	support_expect(session, "tools.math.add(a=1)['sum']", "2");
	cell_session_close(session);
	end();
}

static void test_registration(void **state)
{
	(void)state;
	struct cell_session *session = open_session();
	struct cell_error err = { 0 };
	struct cell_tool tool = CELL_TOOL_INIT;
	tool.name = "greet";
	tool.fn = say_text;
	tool.arg = (char *)"again";
	assert_int_equal(cell_space_add_tool(space, &tool, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_non_null(strstr(err.msg, "greet"));
	tool.parameters = "{\"type\": \"object\"";
	tool.name = "broken";
	assert_int_equal(cell_space_add_tool(space, &tool, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	tool.parameters = NULL;
	tool.name = "no name";
	assert_int_equal(cell_space_add_tool(space, &tool, &err), -1);
	tool.name = "fresh";
	tool.fn = NULL;
	assert_int_equal(cell_space_add_tool(space, &tool, &err), -1);
	tool.fn = say_text;
	support_expect(session, "hasattr(tools, 'fresh'), hasattr(tools, 'broken')", "(False, False)");
	assert_int_equal(cell_space_add_tool(space, &tool, &err), 0);
	support_expect(session, "tools.fresh()", "'again'"); /* in a session that was there before */
	cell_session_close(session);
	end();
}

static void test_another_thread(void **state)
{
	(void)state;
	struct cell_session *session = open_session();
	pthread_t threads[1];
	size_t one = 1;
	start_answerers(threads, 1, &one);
	support_expect(session, "tools.math.later(n=21)", "42");
	support_expect(session,
		       "from concurrent.futures import ThreadPoolExecutor\n"
		       "with ThreadPoolExecutor(4) as pool:\n"
		       "    got = list(pool.map(lambda i: tools.math.later(n=i), range(20)))\ngot == list(range(0, 40, 2))",
		       "True");
	stop_answerers(threads, 1);
	cell_session_close(session);
	end();
}

/* All are under way at once before the first is answered, the answers come out of order, from several threads. */
static void test_many_at_once(void **state)
{
	(void)state;
	struct cell_session *session = open_session();
	pthread_t threads[4];
	size_t all = MANY;
	start_answerers(threads, COUNT(threads), &all);
	support_expect(session,
		       "import asyncio\n"
		       "got = await asyncio.gather(*(tools.math.later.call_async(n=i) for i in range(1000)))\n"
		       "got == list(range(0, 2000, 2))",
		       "True");
	assert_int_equal(held.most, MANY);
	stop_answerers(threads, COUNT(threads));
	cell_session_close(session);
	end();
}

static void test_timeout(void **state)
{
	(void)state;
	struct cell_session *session = open_session();
	expect_error(session, "tools.hasty(n=1)", "ToolTimeoutError", "0.2");
	support_expect(session, "tools.greet()[:4]", "'gr\xc3\xbc\xc3\x9f'");
	struct cell_tool_call *call = take_held();
	assert_non_null(call);
	assert_int_equal(cell_tool_call_cancelled(call), 1);
	assert_string_equal(cell_tool_call_args(call), "{\"n\":1}"); /* still the host's */
	answer_doubled(call);
	support_expect(session, "tools.math.add(a=1)['sum']", "2"); /* and nobody got the late answer */
	cell_session_close(session);
	end();
}

static void test_interrupted(void **state)
{
	(void)state;
	struct cell_session *session = open_session();
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };
	static const char code[] = "tools.math.later(n=1)";
	options.timeout_ms = 200;
	assert_int_equal(cell_session_run(session, code, sizeof code - 1, &options, &result, &err), 0);
	assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
	assert_int_equal(cell_result_state_kept(result), 1);
	cell_result_destroy(result);
	struct cell_tool_call *call = take_held();
	assert_true(support_wait(nobody_waits, call));
	answer_doubled(call);
	support_expect(session, "1 + 1", "2");
	cell_session_close(session);
	end();
}

/* Everything goes while calls are pending; their answers come when nobody is left, not even the engine. */
static void test_closed_while_pending(void **state)
{
	(void)state;
	struct cell_session *session = open_session(), *other = open_session();
	static const char code[] = "tools.math.later(n=1)";
	struct cell_tool_call *calls[3];
	struct cell_error err = { 0 };
	struct cell_session *each[] = { session, other, other };
	for (size_t i = 0; i < COUNT(calls); i++) {
		assert_int_equal(cell_session_start(each[i], code, sizeof code - 1, NULL, NULL, &err), 0);
		assert_true(support_wait(something_held, NULL));
		calls[i] = take_held();
		if (i == 1) /* a reset takes the kernel away under it */
			assert_int_equal(cell_session_reset(other, &err), 0);
	}
	assert_int_equal(cell_tool_call_cancelled(calls[1]), 1);
	cell_session_close(session);
	assert_int_equal(cell_tool_call_cancelled(calls[0]), 1);
	assert_int_equal(cell_tool_call_cancelled(calls[2]), 0);
	answer_doubled(calls[0]);
	cell_session_close(other);
	cell_tool_call_fail(calls[1], "too late");
	end();
	assert_string_equal(cell_tool_call_args(calls[2]), "{\"n\":1}");
	answer_doubled(calls[2]);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest all[] = {
		TEST(test_answers),      TEST(test_wrong_arguments), TEST(test_registration), TEST(test_another_thread),
		TEST(test_many_at_once), TEST(test_timeout),         TEST(test_interrupted),  TEST(test_closed_while_pending),
	};
	return cmocka_run_group_tests(all, NULL, NULL);
}
