/* Functions of the host as tools of a session: cell_space_add_tool(), called by code in real kernels. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

struct place {
	struct cell_engine *engine;
	struct cell_space *space;
	struct cell_session *session;
	char args[65536]; /* of the last call of `show` */
	char session_id[64];
	struct cell_tool_call *kept;
	atomic_int keeps;
};

/* ---- the functions ---- */

/* Answers with its arguments. */
static void show(void *arg, struct cell_tool_call *call)
{
	struct place *place = arg;
	snprintf(place->args, sizeof place->args, "%s", cell_tool_call_args(call));
	snprintf(place->session_id, sizeof place->session_id, "%s", cell_tool_call_session_id(call));
	cell_tool_call_answer_json(call, place->args, strlen(place->args));
}

static void text(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	cell_tool_call_answer_text(call, "a\nb \xff", 5);
}

static void refuse(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	cell_tool_call_fail(call, "not today");
}

static void lie(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	cell_tool_call_answer_json(call, "{1", 2);
}

static void *answer_later(void *arg)
{
	struct timespec pause = { .tv_nsec = 2000000 };
	nanosleep(&pause, NULL);
	cell_tool_call_answer_json(arg, "\"later\"", 7);
	return NULL;
}

static void later(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, answer_later, call) == 0);
	CHECK(pthread_detach(thread) == 0);
}

static void keep(void *arg, struct cell_tool_call *call)
{
	struct place *place = arg;
	place->kept = call;
	atomic_fetch_add(&place->keeps, 1);
}

static void large(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	static char answer[3000000];
	memset(answer, 'x', sizeof answer);
	answer[0] = answer[sizeof answer - 1] = '"';
	cell_tool_call_answer_json(call, answer, sizeof answer);
}

static void add_tool(struct place *place, const char *name, const char *parameters, cell_tool_fn fn, int64_t timeout_ms)
{
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_error err = { 0 };
	tool.name = name;
	tool.description = "A function";
	tool.parameters = parameters;
	tool.fn = fn;
	tool.arg = place;
	if (timeout_ms)
		tool.timeout_ms = timeout_ms;
	if (cell_space_add_tool(place->space, &tool, &err) < 0)
		fail_msg("%s: %s", name, err.msg);
}

static void open_place(struct place *place)
{
	static const char parameters[] =
		"{\"properties\": {\"i\": {\"type\": \"integer\"}, \"n\": {\"type\": \"number\"}, \"s\": {\"type\": \"string\"},"
		" \"b\": {\"type\": \"boolean\"}, \"a\": {\"type\": \"array\"}, \"o\": {\"type\": \"object\"}, \"x\": {},"
		" \"e\": {\"type\": \"string\", \"enum\": [\"p\", \"q\"]}}}";
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	*place = (struct place){ .engine = support_engine(0) };
	assert_int_equal(cell_space_open(place->engine, NULL, &place->space, &err), 0);
	add_tool(place, "show", parameters, show, 0);
	add_tool(place, "fill", "{\"properties\": {\"i\": {\"type\": \"integer\"}, \"d\": {\"default\": 5}}, \"required\": [\"i\"]}", show,
		 -1);
	add_tool(place, "open", "{\"properties\": {\"i\": {}}, \"additionalProperties\": true}", show, -1);
	add_tool(place, "group.one", NULL, text, -1);
	add_tool(place, "group.two", NULL, refuse, -1);
	add_tool(place, "group.lie", NULL, lie, -1);
	add_tool(place, "later", "{\"properties\": {\"i\": {}}}", later, 20000);
	add_tool(place, "keep", NULL, keep, -1);
	add_tool(place, "brief", NULL, keep, 30);
	add_tool(place, "large", NULL, large, -1);
	options.python = TEST_PYTHON;
	options.space = place->space;
	place->session = support_session_with(place->engine, &options);
}

static void close_place(struct place *place)
{
	cell_session_close(place->session);
	cell_space_close(place->space);
	cell_engine_destroy(place->engine);
}

/* ---- tests ---- */

/* What fits goes the short way, what does not the long one: the function sees no difference. */
static void test_arguments(void **state)
{
	(void)state;
	static struct place place;
	static const struct {
		const char *code, *args;
	} rows[] = {
		{ "tools.show()", "{}" },
		{ "tools.show(i=1)", "{\"i\":1}" },
		{ "tools.show(i=-12, n=3, s='x', b=True)", "{\"i\":-12,\"n\":3,\"s\":\"x\",\"b\":true}" },
		{ "tools.show(n=2.5)", "{\"n\":2.5}" },
		{ "tools.show(n=1e16)", "{\"n\":10000000000000000.0}" },
		{ "tools.show(i=2**63-1)", "{\"i\":9223372036854775807}" },
		{ "tools.show(s='\\u00e9\\n\"')", "{\"s\":\"\u00e9\\n\\\"\"}" },
		{ "tools.show(s='')", "{\"s\":\"\"}" },
		{ "tools.show(i=None)", "{}" }, /* as if it was not given */
		{ "tools.show(x=True)", "{\"x\":true}" },
		{ "tools.show(x=[1, {'k': None}])", "{\"x\":[1,{\"k\":null}]}" },
		{ "tools.show(a=[1, 'b'], o={'k': 1})", "{\"a\":[1,\"b\"],\"o\":{\"k\":1}}" },
		{ "tools.show(e='q')", "{\"e\":\"q\"}" },
		{ "tools.show.show(i=5)", "{\"i\":5}" },
		{ "tools.fill(i=1)", "{\"i\":1,\"d\":5}" },
		{ "tools.fill(i=1, d='x')", "{\"i\":1,\"d\":\"x\"}" },
		{ "tools.open(i=1, other=2)", "{\"i\":1,\"other\":2}" },
	};
	open_place(&place);
	for (size_t i = 0; i < COUNT(rows); i++) {
		char code[256];
		snprintf(code, sizeof code, "import json; json.dumps(%s, sort_keys=False) is not None", rows[i].code);
		support_expect(place.session, code, "True");
		if (strcmp(place.args, rows[i].args) != 0)
			fail_msg("%s: %s instead of %s", rows[i].code, place.args, rows[i].args);
		assert_string_equal(place.session_id, cell_session_id(place.session));
	}
	close_place(&place);
}

static void test_wrong_arguments(void **state)
{
	(void)state;
	static struct place place;
	static const char *const rows[][2] = {
		{ "tools.show(i='1')", "'i' must be an integer, not a string" },
		{ "tools.show(i=1.0)", "'i' must be an integer, not a number" },
		{ "tools.show(i=True)", "'i' must be an integer, not a boolean" },
		{ "tools.show(n='x')", "'n' must be a number, not a string" },
		{ "tools.show(s=1)", "'s' must be a string, not an integer" },
		{ "tools.show(b=1)", "'b' must be a boolean, not an integer" },
		{ "tools.show(a='x')", "'a' must be an array, not a string" },
		{ "tools.show(e='r')", "'e' must be one of \"p\", \"q\", not \"r\"" },
		{ "tools.show(z=1)", "Unknown argument 'z'. Known: i, n, s, b, a, o, x, e" },
		{ "tools.fill()", "Required parameter 'i' is missing" },
		{ "tools.fill(i=None)", "Required parameter 'i' is missing" },
		{ "tools.group.three()", "Unknown callable: group.three" },
		{ "tools.group()", "name one of its callables" },
	};
	open_place(&place);
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell_result *result = support_run(place.session, rows[i][0]);
		assert_int_equal(support_outcome(result), CELL_OUT_EXCEPTION);
		if (!strstr(cell_result_error(result)->message, rows[i][1]))
			fail_msg("%s: %s", rows[i][0], cell_result_error(result)->message);
		cell_result_destroy(result);
	}
	assert_string_equal(place.args, ""); /* no function was called */
	close_place(&place);
}

static void test_answers(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(place.session, "tools.group.one()", "'a\\nb \xef\xbf\xbd'");
	support_expect(place.session, "len(tools.large())", "2999998");
	support_expect(place.session, "tools.later(i=1)", "'later'");
	for (int i = 0; i < 2; i++) {
		struct cell_result *result = support_run(place.session, i ? "tools.group.two()" : "tools.group.lie()");
		assert_string_equal(cell_result_error(result)->type, "ToolCallError");
		assert_string_equal(cell_result_error(result)->message,
				    i ? "Tool 'group' failed: not today" : "Tool 'group' failed: the host function's answer is not JSON");
		cell_result_destroy(result);
	}
	struct cell_result *result = support_run(place.session, "tools.brief()");
	assert_string_equal(cell_result_error(result)->type, "ToolTimeoutError");
	cell_result_destroy(result);
	cell_tool_call_answer_text(place.kept, "too late", 8);
	close_place(&place);
}

static void test_many_at_once(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	support_expect(place.session,
		       "import asyncio\n"
		       "async def many(n):\n"
		       "    return await asyncio.gather(*[tools.show.call_async(i=i) for i in range(n)],\n"
		       "                                *[tools.later.call_async(i=i) for i in range(100)])\n"
		       "answers = await many(500)\n"
		       "[a['i'] for a in answers[:500]] == list(range(500)) and set(answers[500:]) == {'later'}",
		       "True");
	support_expect(place.session,
		       "import threading\n"
		       "seen = []\n"
		       "def work(i):\n"
		       "    for n in range(50): seen.append(tools.show(i=i) == {'i': i} and tools.later() == 'later')\n"
		       "threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]\n"
		       "for t in threads: t.start()\n"
		       "main = [tools.show(i=n)['i'] for n in range(200)] == list(range(200))\n"
		       "for t in threads: t.join()\n"
		       "main, len(seen), all(seen)",
		       "(True, 200, True)");
	close_place(&place);
}

static bool is_kept(void *arg)
{
	return atomic_load(&((struct place *)arg)->keeps) > 0;
}

static void *interrupt(void *arg)
{
	struct place *place = arg;
	CHECK(support_wait(is_kept, place));
	cell_session_interrupt(place->session, NULL);
	return NULL;
}

/* The code waits for a function that does not answer. */
static void test_interrupt(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, interrupt, &place), 0);
	struct cell_result *result = support_run(place.session, "kept = 1\ntools.keep()");
	pthread_join(thread, NULL);
	assert_int_equal(support_outcome(result), CELL_OUT_INTERRUPTED);
	assert_true(cell_result_state_kept(result));
	cell_result_destroy(result);
	/* Its answer comes after the code has gone on; the next call gets its own. */
	support_expect(place.session, "kept + tools.show(i=1)['i']", "2");
	cell_tool_call_answer_text(place.kept, "late", 4);
	support_expect(place.session, "tools.show(i=2)['i']", "2");
	close_place(&place);
}

static void *reset(void *arg)
{
	struct place *place = arg;
	CHECK(support_wait(is_kept, place));
	CHECK(cell_session_reset(place->session, NULL) == 0);
	return NULL;
}

/* The kernel goes while a function has its call. */
static void test_reset(void **state)
{
	(void)state;
	static struct place place;
	open_place(&place);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, reset, &place), 0);
	struct cell_result *result = support_run(place.session, "tools.keep()");
	pthread_join(thread, NULL);
	assert_int_equal(support_outcome(result), CELL_OUT_INTERRUPTED);
	cell_result_destroy(result);
	cell_tool_call_answer_text(place.kept, "late", 4);
	support_expect(place.session, "tools.show(i=2)['i']", "2");
	close_place(&place);
}

/* A kernel that was taken over by its code: what it sends is refused, one way or the other, and nothing breaks. */
static void test_hostile_calls(void **state)
{
	(void)state;
	static struct place place;
	static const struct {
		const char *call;
		bool dies;
	} rows[] = {
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{\"i\":1,\"i\":2}}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{\"i\":99999999999999999999}}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{\"i\":1}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{\"i\":1}}}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{\"i\":01}}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{\"s\":\"\\ud800\"}}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":[]}}", false },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"\",\"args\":{}}}", false },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\".\",\"args\":{}}}", false },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{},\"args\":{}}}", true },
		{ "{\"method\":\"tools.call\",\"args\":{\"name\":\"show\",\"args\":{}},\"x\":{}}", false },
	};
	open_place(&place);
	for (size_t i = 0; i < COUNT(rows); i++) {
		CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;
		cell__buf_add_str(&code, "import _workcell\ntools._channel.link.send(_workcell.CALL, 77, bytes.fromhex('");
		for (const char *at = rows[i].call; *at; at++)
			cell__buf_printf(&code, "%02x", (unsigned char)*at);
		cell__buf_add_str(&code, "'))\nreply = tools._channel._lead_on(77); 1");
		place.args[0] = '\0';
		struct cell_result *result = support_run(place.session, code.data);
		int outcome = support_outcome(result);
		if (outcome != (rows[i].dies ? CELL_OUT_KERNEL_DIED : 0))
			fail_msg("%s: %s", rows[i].call, cell_result_error(result) ? cell_result_error(result)->message : "went well");
		cell_result_destroy(result);
		support_expect(place.session, "tools.show(i=3)['i']", "3");
	}
	close_place(&place);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_arguments), TEST(test_wrong_arguments), TEST(test_answers),       TEST(test_many_at_once),
		TEST(test_interrupt), TEST(test_reset),           TEST(test_hostile_calls),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
