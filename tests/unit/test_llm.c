/* The model of a space: cell_space_set_llm(), asked by code in real kernels; its budget, its room, its end. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>

#define MOST 8

struct place {
	struct cell_engine *engine;
	struct cell_space *space;
	struct cell_session *session;
	char args[4096]; /* of the last query */
	pthread_mutex_t lock;
	struct cell_tool_call *kept[MOST];
	int n_kept;
};

static const char *reply;

static void answer(void *arg, struct cell_tool_call *call)
{
	struct place *place = arg;
	snprintf(place->args, sizeof place->args, "%s", cell_tool_call_args(call));
	cell_tool_call_answer_json(call, reply, strlen(reply));
}

static void keep(void *arg, struct cell_tool_call *call)
{
	struct place *place = arg;
	pthread_mutex_lock(&place->lock);
	assert_true(place->n_kept < MOST);
	place->kept[place->n_kept++] = call;
	pthread_mutex_unlock(&place->lock);
}

static void open_place(struct place *place, const struct cell_llm *llm)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	struct cell_llm all = *llm;
	*place = (struct place){ .engine = support_engine(0), .lock = PTHREAD_MUTEX_INITIALIZER };
	all.arg = place;
	assert_int_equal(cell_space_open(place->engine, NULL, &place->space, NULL), 0);
	assert_int_equal(cell_space_set_llm(place->space, &all, NULL), 0);
	options.python = TEST_PYTHON;
	options.space = place->space;
	place->session = support_session_with(place->engine, &options);
}

static void close_place(struct place *place)
{
	cell_session_close(place->session);
	cell_space_close(place->space);
	/* The host answers whenever it likes, also when everything is gone. */
	for (int i = 0; i < place->n_kept; i++)
		cell_tool_call_answer_text(place->kept[i], "late", 4);
	cell_engine_destroy(place->engine);
}

static void test_options(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_space *space = NULL;
	struct cell_error err;
	assert_int_equal(cell_space_open(engine, NULL, &space, NULL), 0);
	const struct cell_llm good = {
		.size = sizeof good, .fn = answer, .concurrency = 64, .max_calls = -1, .max_tokens = -1, .max_cost = -1
	};
	struct cell_llm bad[] = { good, good, good, good, good, good, good };
	bad[0].fn = NULL;
	bad[1].concurrency = 0;
	bad[2].concurrency = 65;
	bad[3].max_calls = -2;
	bad[4].max_cost = -0.5;
	bad[5].call_tokens = -1;
	bad[6].max_cost = 1.0 / 0.0;
	for (size_t i = 0; i < COUNT(bad); i++) {
		assert_int_equal(cell_space_set_llm(space, &bad[i], &err), -1);
		assert_int_equal(err.code, CELL_E_INVALID);
	}
	assert_int_equal(cell_space_set_llm(space, &good, &err), 0);
	assert_int_equal(cell_space_set_llm(space, &good, &err), -1);
	assert_int_equal(err.code, CELL_E_EXISTS);
	cell_space_close(space);
	cell_engine_destroy(engine);
}

static void test_budget(void **state)
{
	(void)state;
	static struct place place;
	struct cell_llm llm = CELL_LLM_INIT;
	llm.fn = answer;
	llm.max_tokens = 10;
	llm.call_tokens = 4;
	open_place(&place, &llm);
	reply = "{\"text\": \"yes\", \"usage\": {\"tokens\": 3, \"cost\": 0.25}}";
	support_expect(place.session, "llm.query('a', context=[1], model='m')", "'yes'");
	assert_string_equal(place.args, "{\"prompt\":\"a\",\"context\":[1],\"options\":{\"model\":\"m\"},"
					"\"left\":{\"calls\":null,\"tokens\":10,\"cost\":null}}");
	support_expect(place.session, "llm.query('b')", "'yes'");
	/* 6 are used and 4 are left: as much as a query may use. */
	reply = "{\"error\": \"no\", \"usage\": {\"tokens\": 1}}";
	support_expect(place.session, "try: llm.query('c')\nexcept LlmError as e: said = str(e)\nsaid", "'no'");
	support_expect(place.session, "try: llm.query('d')\nexcept LlmBudgetError as e: said = e.code\nsaid", "'limit'");
	support_expect(place.session, "u = llm.usage(); u['calls'], u['tokens'], u['cost']", "(3, 7, 0.5)");
	close_place(&place);
}

static void test_bad_answers(void **state)
{
	(void)state;
	static struct place place;
	static const char *const rows[] = { "{",
					    "[]",
					    "{}",
					    "{\"text\": 1}",
					    "{\"text\": \"x\", \"usage\": 1}",
					    "{\"text\": \"x\", \"usage\": {\"tokens\": -1}}",
					    "{\"text\": \"x\", \"usage\": {\"cost\": \"1\"}}",
					    "{\"text\": \"x\", \"text\": \"y\"}" };
	struct cell_llm llm = CELL_LLM_INIT;
	llm.fn = answer;
	open_place(&place, &llm);
	for (size_t i = 0; i < COUNT(rows); i++) {
		reply = rows[i];
		support_expect(place.session, "try: llm.query('a'); said = 'went well'\nexcept LlmError as e: said = e.code\nsaid",
			       "'tool_failed'");
	}
	close_place(&place);
}

/* A query that nobody waits for holds its place; others wait; the end of everything drops the answers. */
static void test_kept_calls(void **state)
{
	(void)state;
	static struct place place;
	struct cell_llm llm = CELL_LLM_INIT;
	llm.fn = keep;
	llm.concurrency = 2;
	open_place(&place, &llm);
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	options.timeout_ms = 200;
	for (int i = 0; i < 2; i++) {
		struct cell_result *result = NULL;
		const char *code = "llm.batch(['a'] * 20)";
		assert_int_equal(cell_session_run(place.session, code, strlen(code), &options, &result, NULL), 0);
		assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
		cell_result_destroy(result);
		assert_int_equal(place.n_kept, 2);
		assert_int_equal(cell_tool_call_cancelled(place.kept[0]), 1);
	}
	struct cell_tool_call *first = place.kept[0];
	place.kept[0] = place.kept[--place.n_kept];
	cell_tool_call_answer_text(first, "x", 1);
	support_expect(place.session, "llm.usage()['calls']", "2");
	close_place(&place);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = { TEST(test_options), TEST(test_budget), TEST(test_bad_answers), TEST(test_kept_calls) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
