/* The gate: approvals, their races, middlewares, and what happens to those who wait when the session goes. */
#define _GNU_SOURCE
#include "support.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <jansson.h>

/* ---- a session with tools that somebody must agree to ---- */

struct desk;
typedef void (*desk_fn)(struct desk *desk, const struct cell_event *event);

struct desk {
	struct cell_engine *engine;
	struct cell_space *space;
	struct cell_policy *policy;
	struct cell_session *session;
	desk_fn on_approval; /* on whatever thread the events come */
	struct cell_run_options run;
	pthread_mutex_t lock;
	uint64_t ids[256];
	size_t asked, ended, called, call_started, call_ended;
	char last_args[256], last_decision[32], last_message[256], last_tool[64], order[256];
	int rc;
	struct cell_error err;
};

static void add(void *arg, struct cell_tool_call *call)
{
	struct desk *desk = arg;
	pthread_mutex_lock(&desk->lock);
	desk->called++;
	pthread_mutex_unlock(&desk->lock);
	json_t *args = json_loads(cell_tool_call_args(call), 0, NULL);
	json_int_t sum = json_integer_value(json_object_get(args, "a")) + json_integer_value(json_object_get(args, "b"));
	json_decref(args);
	char text[32];
	int n = snprintf(text, sizeof text, "%lld", (long long)sum);
	cell_tool_call_answer_json(call, text, (size_t)n);
}

static void length(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	json_t *args = json_loads(cell_tool_call_args(call), 0, NULL);
	char text[32];
	int n = snprintf(text, sizeof text, "%zu", json_string_length(json_object_get(args, "text")));
	json_decref(args);
	cell_tool_call_answer_json(call, text, (size_t)n);
}

static void hear(void *arg, const struct cell_event *event)
{
	struct desk *desk = arg;
	pthread_mutex_lock(&desk->lock);
	if (event->type == CELL_EVENT_APPROVAL) {
		CHECK(event->call && desk->asked < COUNT(desk->ids));
		desk->ids[desk->asked++] = event->call->id;
		snprintf(desk->last_args, sizeof desk->last_args, "%s", event->call->args);
		snprintf(desk->last_tool, sizeof desk->last_tool, "%s/%s/%s/%s", event->call->kind, event->call->tool,
			 event->call->callable, event->call->adapter);
		CHECK(strcmp(event->call->session_id, cell_session_id(desk->session)) == 0);
	} else if (event->type == CELL_EVENT_APPROVAL_ENDED) {
		desk->ended++;
		snprintf(desk->last_decision, sizeof desk->last_decision, "%s", event->decision);
	} else if (event->type == CELL_EVENT_CALL_STARTED) {
		desk->call_started++;
	} else if (event->type == CELL_EVENT_CALL_ENDED) {
		desk->call_ended++;
		snprintf(desk->last_decision, sizeof desk->last_decision, "%s", event->decision);
		snprintf(desk->last_message, sizeof desk->last_message, "%s", event->message ? event->message : "");
	}
	pthread_mutex_unlock(&desk->lock);
	if (event->type == CELL_EVENT_APPROVAL && desk->on_approval)
		desk->on_approval(desk, event);
}

static int answer(struct desk *desk, uint64_t id, int accept, const char *reason, const char *args, struct cell_error *err)
{
	struct cell_approval_answer said = CELL_APPROVAL_ANSWER_INIT;
	said.accept = accept;
	said.reason = reason;
	said.args = args;
	return cell_session_answer(desk->session, id, &said, err);
}

static void say_yes(struct desk *desk, const struct cell_event *event)
{
	CHECK(answer(desk, event->call->id, 1, NULL, NULL, NULL) == 0);
}

static void say_no(struct desk *desk, const struct cell_event *event)
{
	CHECK(answer(desk, event->call->id, 0, "not today", NULL, NULL) == 0);
}

static void add_tool(struct desk *desk, const char *name, const char *parameters, cell_tool_fn fn)
{
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_error err;
	tool.name = name;
	tool.parameters = parameters;
	tool.fn = fn;
	tool.arg = desk;
	if (cell_space_add_tool(desk->space, &tool, &err) < 0)
		fail_msg("%s", err.msg);
}

static struct desk *desk_open(const struct cell_session_options *more)
{
	struct desk *desk = cell__alloc(1, sizeof *desk);
	struct cell_error err;
	assert_non_null(desk);
	pthread_mutex_init(&desk->lock, NULL);
	desk->engine = support_engine(1);
	struct cell_space_options space = CELL_SPACE_OPTIONS_INIT;
	if (cell_space_open(desk->engine, &space, &desk->space, &err) < 0)
		fail_msg("%s", err.msg);
	add_tool(desk, "math.add",
		 "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\","
		 "\"default\":10}},\"required\":[\"a\"]}",
		 add);
	add_tool(desk, "length", "{\"type\":\"object\",\"properties\":{\"text\":{\"type\":\"string\"}}}", length);
	desk->policy = cell_policy_of(CELL_ASK);
	assert_non_null(desk->policy);
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	if (more)
		opts = *more;
	opts.space = desk->space;
	opts.policy = desk->policy;
	opts.on_event = hear;
	opts.event_arg = desk;
	desk->session = support_session_with(desk->engine, &opts);
	desk->run = (struct cell_run_options)CELL_RUN_OPTIONS_INIT;
	desk->run.on_event = hear;
	desk->run.event_arg = desk;
	return desk;
}

static void desk_close(struct desk *desk)
{
	cell_session_close(desk->session);
	cell_space_close(desk->space);
	cell_policy_destroy(desk->policy);
	cell_engine_destroy(desk->engine);
	pthread_mutex_destroy(&desk->lock);
	free(desk);
}

static struct cell_result *run(struct desk *desk, const char *code)
{
	struct cell_result *result;
	struct cell_error err;
	if (cell_session_run(desk->session, code, strlen(code), &desk->run, &result, &err) < 0)
		fail_msg("%s: %s", code, err.msg);
	return result;
}

static void expect(struct desk *desk, const char *code, const char *repr)
{
	struct cell_result *result = run(desk, code);
	const struct cell_outcome *error = cell_result_error(result);
	if (error)
		fail_msg("%s: %s: %s", code, error->type, error->message);
	assert_string_equal(cell_result_repr(result) ? cell_result_repr(result) : "", repr);
	cell_result_destroy(result);
}

static void expect_error(struct desk *desk, const char *code, int outcome, const char *type, const char *message)
{
	struct cell_result *result = run(desk, code);
	const struct cell_outcome *error = cell_result_error(result);
	if (!error || error->code != outcome)
		fail_msg("%s: %s: %s", code, error ? error->type : "no error", error ? error->message : "");
	assert_string_equal(error->type, type);
	assert_non_null(strstr(error->message, message));
	cell_result_destroy(result);
}

/* ---- a thread that runs a cell while the test does something else ---- */

struct runner {
	pthread_t thread;
	struct desk *desk;
	const char *code;
	struct cell_result *result;
	struct cell_error err;
	int rc;
};

static void *runner_main(void *arg)
{
	struct runner *runner = arg;
	runner->rc = cell_session_run(runner->desk->session, runner->code, strlen(runner->code), &runner->desk->run, &runner->result,
				      &runner->err);
	return NULL;
}

static void runner_start(struct runner *runner, struct desk *desk, const char *code)
{
	*runner = (struct runner){ .desk = desk, .code = code };
	assert_int_equal(pthread_create(&runner->thread, NULL, runner_main, runner), 0);
}

struct number {
	struct desk *desk;
	size_t *value;
	size_t wanted;
};

static bool has_number(void *arg)
{
	struct number *number = arg;
	pthread_mutex_lock(&number->desk->lock);
	bool there = *number->value >= number->wanted;
	pthread_mutex_unlock(&number->desk->lock);
	return there;
}

static void wait_asked(struct desk *desk, size_t n)
{
	struct number number = { desk, &desk->asked, n };
	assert_true(support_wait(has_number, &number));
}

static json_t *pending(struct desk *desk)
{
	char *text;
	assert_int_equal(cell_session_approvals(desk->session, &text, NULL), 0);
	json_t *list = json_loads(text, 0, NULL);
	free(text);
	assert_non_null(list);
	return list;
}

/* ---- tests ---- */

static void accepted_runs_and_shows_what_runs(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_yes;
	expect(desk, "tools.math.add(a=1)", "11");
	assert_string_equal(desk->last_args, "{\"a\":1,\"b\":10}"); /* the default too: it runs with it */
	assert_string_equal(desk->last_tool, "tool/math/add/host");
	assert_int_equal(desk->called, 1);
	assert_int_equal(desk->call_started, 1);
	assert_int_equal(desk->call_ended, 1);
	assert_string_equal(desk->last_decision, "ok");
	desk_close(desk);
}

static void rejected_raises_and_may_be_caught(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_no;
	expect_error(desk, "tools.math.add(a=1)", CELL_OUT_REJECTED, "ApprovalRejectedError",
		     "Approval request for math.add rejected: not today");
	assert_int_equal(desk->called, 0);
	assert_string_equal(desk->last_decision, "rejected");
	expect(desk, "try:\n    tools.math.add(a=1)\nexcept ApprovalRejectedError as e:\n    got = str(e)\ngot",
	       "'Approval request for math.add rejected: not today'");
	/* Another error after a caught refusal is that error. */
	expect_error(desk, "try:\n    tools.math.add(a=1)\nexcept ToolError:\n    1/0", CELL_OUT_EXCEPTION, "ZeroDivisionError", "");
	/* The name alone makes no refusal. */
	expect_error(desk, "raise ApprovalRejectedError('made up')", CELL_OUT_EXCEPTION, "ApprovalRejectedError", "made up");
	desk_close(desk);
}

static void wrong_arguments_ask_nobody(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_yes;
	expect_error(desk, "tools.math.add(c=1)", CELL_OUT_EXCEPTION, "ToolCallError", "Unknown argument 'c'");
	expect_error(desk, "tools.nothing.x()", CELL_OUT_EXCEPTION, "AttributeError", "nothing");
	assert_int_equal(desk->asked, 0);
	desk_close(desk);
}

static void say_other(struct desk *desk, const struct cell_event *event)
{
	struct cell_error err;
	/* What does not fit is refused, and the request waits on. */
	CHECK(answer(desk, event->call->id, 1, NULL, "{\"nonsense\":1}", &err) < 0 && err.code == CELL_E_INVALID);
	CHECK(answer(desk, event->call->id, 1, NULL, "[1]", &err) < 0 && err.code == CELL_E_INVALID);
	CHECK(answer(desk, event->call->id, 0, NULL, "{\"a\":1}", &err) < 0 && err.code == CELL_E_INVALID);
	CHECK(answer(desk, event->call->id, 1, NULL, "{\"a\":5,\"b\":6}", NULL) == 0);
}

static void edited_arguments_run_instead(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_other;
	expect(desk, "tools.math.add(a=1)", "11");
	assert_int_equal(desk->called, 1);
	desk_close(desk);
}

static void say_always(struct desk *desk, const struct cell_event *event)
{
	struct cell_approval_answer said = CELL_APPROVAL_ANSWER_INIT;
	said.accept = said.always = 1;
	CHECK(cell_session_answer(desk->session, event->call->id, &said, NULL) == 0);
}

static void always_is_remembered_for_this_callable(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_always;
	expect(desk, "[tools.math.add(a=i) for i in range(3)]", "[10, 11, 12]");
	assert_int_equal(desk->asked, 1);
	expect(desk, "tools.length(text='abc')", "3");
	assert_int_equal(desk->asked, 2);
	desk_close(desk);
}

static void unanswered_is_rejected(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.approval_timeout_ms = 30;
	struct desk *desk = desk_open(&opts);
	expect_error(desk, "tools.math.add(a=1)", CELL_OUT_REJECTED, "ApprovalTimeoutError", "Approval request for math.add expired");
	struct cell_error err;
	assert_int_equal(answer(desk, desk->ids[0], 1, NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	/* Both names catch it. */
	expect(desk, "try:\n    tools.math.add(a=1)\nexcept TimeoutError as e:\n    got = isinstance(e, ApprovalRejectedError)\ngot",
	       "True");
	assert_int_equal(desk->called, 0);
	desk_close(desk);
}

static void many_wait_and_are_answered_in_any_order(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct runner runner;
	runner_start(&runner, desk,
		     "import asyncio\n"
		     "await asyncio.gather(*(tools.math.add.call_async(a=i, b=0) for i in range(200)), "
		     "return_exceptions=True)");
	wait_asked(desk, 200);
	json_t *list = pending(desk);
	assert_int_equal(json_array_size(list), 200);
	assert_string_equal(json_string_value(json_object_get(json_array_get(list, 7), "tool")), "math");
	json_decref(list);
	/* The kernel is parked, not busy: variables are as they were, and one by one they go on. */
	for (size_t i = 200; i-- > 100;)
		assert_int_equal(answer(desk, desk->ids[i], i % 2 == 0, "odd", NULL, NULL), 0);
	list = pending(desk);
	assert_int_equal(json_array_size(list), 100);
	json_decref(list);
	assert_int_equal(answer(desk, 0, 1, NULL, NULL, NULL), 0);
	pthread_join(runner.thread, NULL);
	assert_int_equal(runner.rc, 0);
	assert_int_equal(support_outcome(runner.result), 0);
	json_t *value = json_loads(cell_result_value_json(runner.result) ? cell_result_value_json(runner.result) : "null", JSON_DECODE_ANY,
				   NULL);
	json_decref(value);
	cell_result_destroy(runner.result);
	assert_int_equal(desk->called, 150);
	assert_int_equal(answer(desk, 0, 1, NULL, NULL, NULL), 0); /* nothing waits: nothing happens */
	desk_close(desk);
}

static void threads_of_the_code_wait_each_for_itself(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct runner runner;
	runner_start(&runner, desk,
		     "import threading\n"
		     "out, ticks = {}, []\n"
		     "def work(i):\n    out[i] = tools.math.add(a=i, b=0)\n"
		     "ts = [threading.Thread(target=work, args=(i,)) for i in range(4)]\n"
		     "[t.start() for t in ts]\n"
		     "[t.join() for t in ts]\n"
		     "sorted(out.items())");
	wait_asked(desk, 4);
	for (size_t i = 4; i-- > 0;)
		assert_int_equal(answer(desk, desk->ids[i], 1, NULL, NULL, NULL), 0);
	pthread_join(runner.thread, NULL);
	assert_int_equal(support_outcome(runner.result), 0);
	assert_string_equal(cell_result_repr(runner.result), "[(0, 0), (1, 1), (2, 2), (3, 3)]");
	cell_result_destroy(runner.result);
	desk_close(desk);
}

static void an_answer_counts_once(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct runner runner;
	struct cell_error err;
	runner_start(&runner, desk, "tools.math.add(a=1)");
	wait_asked(desk, 1);
	uint64_t id = desk->ids[0];
	assert_int_equal(answer(desk, id, 1, NULL, NULL, NULL), 0);
	assert_int_equal(answer(desk, id, 0, NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(answer(desk, id + 1000, 1, NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	pthread_join(runner.thread, NULL);
	assert_string_equal(cell_result_repr(runner.result), "11");
	cell_result_destroy(runner.result);
	/* Ids are never used again. */
	desk->on_approval = say_yes;
	expect(desk, "tools.math.add(a=2)", "12");
	assert_true(desk->ids[1] > id);
	desk_close(desk);
}

static void *answer_all_the_time(void *arg)
{
	struct desk *desk = arg;
	for (int i = 0; i < 2000; i++)
		(void)answer(desk, 0, i % 3 != 0, "raced", NULL, NULL);
	return NULL;
}

/* Answers from two threads, expiry and the code's own cancels at once: each call ends exactly once. */
static void races_end_each_call_once(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.approval_timeout_ms = 1;
	struct desk *desk = desk_open(&opts);
	pthread_t threads[2];
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, answer_all_the_time, desk), 0);
	for (int round = 0; round < 20; round++) {
		desk->asked = 0;
		struct cell_result *result = run(
			desk, "import asyncio\n"
			      "async def one(i):\n"
			      "    try:\n"
			      "        return await asyncio.wait_for(tools.math.add.call_async(a=i), 0.001 * (i % 3) or 9)\n"
			      "    except (ApprovalRejectedError, asyncio.TimeoutError) as e:\n"
			      "        return type(e).__name__\n"
			      "len(await asyncio.gather(*map(one, range(20))))");
		assert_int_equal(support_outcome(result), 0);
		assert_string_equal(cell_result_repr(result), "20");
		cell_result_destroy(result);
	}
	for (size_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	json_t *list = pending(desk);
	assert_int_equal(json_array_size(list), 0);
	json_decref(list);
	assert_int_equal(desk->call_started, desk->call_ended);
	desk_close(desk);
}

static void interrupt_frees_who_waits(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct runner runner;
	struct cell_error err;
	runner_start(&runner, desk, "kept = 7\ntools.math.add(a=1)");
	wait_asked(desk, 1);
	assert_int_equal(cell_session_interrupt(desk->session, NULL), 0);
	pthread_join(runner.thread, NULL);
	assert_int_equal(support_outcome(runner.result), CELL_OUT_INTERRUPTED);
	assert_int_equal(cell_result_state_kept(runner.result), 1);
	cell_result_destroy(runner.result);
	assert_string_equal(desk->last_decision, "cancelled");
	assert_int_equal(answer(desk, desk->ids[0], 1, NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(desk->called, 0);
	desk->on_approval = say_yes;
	expect(desk, "kept + tools.math.add(a=1)", "18");
	desk_close(desk);
}

static void reset_frees_who_waits(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct runner runner;
	struct cell_error err;
	runner_start(&runner, desk, "tools.math.add(a=1)");
	wait_asked(desk, 1);
	if (cell_session_reset(desk->session, &err) < 0)
		fail_msg("%s", err.msg);
	pthread_join(runner.thread, NULL);
	assert_int_equal(support_outcome(runner.result), CELL_OUT_INTERRUPTED);
	cell_result_destroy(runner.result);
	assert_int_equal(answer(desk, desk->ids[0], 1, NULL, NULL, &err), -1);
	assert_int_equal(desk->called, 0);
	/* The new kernel is guarded like the old one. */
	desk->on_approval = say_no;
	expect_error(desk, "tools.math.add(a=1)", CELL_OUT_REJECTED, "ApprovalRejectedError", "rejected");
	desk_close(desk);
}

struct kernel_pid {
	struct cell_session *session;
	int64_t pid;
};

static bool has_pid(void *arg)
{
	struct kernel_pid *pid = arg;
	pid->pid = cell_session_kernel_pid(pid->session);
	return pid->pid > 0;
}

static void a_kernel_that_died_is_followed_by_a_guarded_one(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct runner runner;
	runner_start(&runner, desk,
		     "import threading, os, time\n"
		     "threading.Thread(target=lambda: tools.math.add(a=1), daemon=True).start()\n"
		     "while True:\n    time.sleep(0.01)");
	wait_asked(desk, 1);
	struct kernel_pid pid = { desk->session, 0 };
	assert_true(support_wait(has_pid, &pid)); /* the spawner may tell it after the kernel has spoken */
	kill((pid_t)pid.pid, SIGKILL);
	pthread_join(runner.thread, NULL);
	assert_int_equal(support_outcome(runner.result), CELL_OUT_KERNEL_DIED);
	cell_result_destroy(runner.result);
	json_t *list = pending(desk);
	assert_int_equal(json_array_size(list), 0);
	json_decref(list);
	desk->on_approval = say_no;
	expect_error(desk, "tools.math.add(a=1)", CELL_OUT_REJECTED, "ApprovalRejectedError", "rejected");
	assert_int_equal(desk->called, 0);
	desk_close(desk);
}

static void *close_now(void *arg)
{
	cell_session_close(arg);
	return NULL;
}

static void close_while_parked(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct cell_error err;
	uint64_t id;
	desk->run.on_event = NULL; /* the request goes nowhere: it is on the list alone */
	assert_int_equal(cell_session_start(desk->session, "tools.math.add(a=1)", 19, &desk->run, &id, &err), 0);
	json_t *list = pending(desk);
	while (json_array_size(list) == 0) {
		json_decref(list);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		list = pending(desk);
	}
	json_decref(list);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, close_now, desk->session), 0);
	pthread_join(thread, NULL);
	desk->session = NULL;
	assert_int_equal(desk->called, 0);
	desk_close(desk);
}

static void timeout_counts_the_wait(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->run.timeout_ms = 100;
	struct cell_result *result = run(desk, "tools.math.add(a=1)");
	assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
	assert_int_equal(cell_result_state_kept(result), 1);
	cell_result_destroy(result);
	desk_close(desk);
}

static void the_clock_can_stand_still(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.approval_stops_clock = 1;
	struct desk *desk = desk_open(&opts);
	struct runner runner;
	desk->run.timeout_ms = 1500;
	runner_start(&runner, desk,
		     "import asyncio\n"
		     "await asyncio.gather(*(tools.math.add.call_async(a=i) for i in range(2)))");
	wait_asked(desk, 2);
	nanosleep(&(struct timespec){ .tv_sec = 2 }, NULL);
	/* One answer of two does not start it again. */
	assert_int_equal(answer(desk, desk->ids[0], 1, NULL, NULL, NULL), 0);
	nanosleep(&(struct timespec){ .tv_sec = 2 }, NULL);
	assert_int_equal(answer(desk, desk->ids[1], 1, NULL, NULL, NULL), 0);
	pthread_join(runner.thread, NULL);
	assert_int_equal(support_outcome(runner.result), 0);
	cell_result_destroy(runner.result);
	/* Running again, it still ends a cell. */
	desk->asked = 0;
	runner_start(&runner, desk, "tools.math.add(a=1)\nwhile True: pass");
	wait_asked(desk, 1);
	assert_int_equal(answer(desk, desk->ids[0], 1, NULL, NULL, NULL), 0);
	pthread_join(runner.thread, NULL);
	assert_int_equal(support_outcome(runner.result), CELL_OUT_TIMEOUT);
	cell_result_destroy(runner.result);
	desk_close(desk);
}

/* The clock goes on after an approval that nobody answered. */
static void an_expired_approval_starts_the_clock_again(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.approval_stops_clock = 1;
	opts.approval_timeout_ms = 20;
	struct desk *desk = desk_open(&opts);
	desk->run.timeout_ms = 500;
	struct cell_result *result = run(desk, "try:\n    tools.math.add(a=1)\nexcept ApprovalTimeoutError:\n    pass\n"
					       "while True: pass");
	assert_int_equal(support_outcome(result), CELL_OUT_TIMEOUT);
	cell_result_destroy(result);
	desk_close(desk);
}

static void four_mebibytes_of_arguments(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_yes;
	expect(desk, "tools.length(text='x' * (4 << 20))", "4194304");
	desk_close(desk);
}

static void background_threads_ask_between_cells(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	expect(desk,
	       "import threading, queue\n"
	       "go, out = queue.Queue(), queue.Queue()\n"
	       "threading.Thread(target=lambda: (go.get(), out.put(tools.math.add(a=1))), daemon=True).start()\n"
	       "threading.Timer(0.05, lambda: go.put(1)).start()",
	       "");
	wait_asked(desk, 1); /* to the session's own callback */
	assert_int_equal(answer(desk, desk->ids[0], 1, NULL, NULL, NULL), 0);
	expect(desk, "out.get()", "11");
	desk_close(desk);
}

/* ---- from the engine's thread ---- */

struct started {
	struct desk *desk;
	bool done;
	int code;
};

static void hear_started(void *arg, const struct cell_event *event)
{
	struct started *started = arg;
	hear(started->desk, event);
	if (event->type == CELL_EVENT_RESULT) {
		pthread_mutex_lock(&started->desk->lock);
		started->code = support_outcome(event->result);
		started->done = true;
		pthread_mutex_unlock(&started->desk->lock);
		cell_result_destroy(event->result);
	}
}

static bool is_done(void *arg)
{
	struct started *started = arg;
	pthread_mutex_lock(&started->desk->lock);
	bool done = started->done;
	pthread_mutex_unlock(&started->desk->lock);
	return done;
}

static void a_callback_of_the_engine_may_answer(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct started started = { .desk = desk };
	desk->on_approval = say_yes;
	desk->run.on_event = hear_started;
	desk->run.event_arg = &started;
	const char *code = "assert [tools.math.add(a=i) for i in range(5)] == [10, 11, 12, 13, 14]";
	assert_int_equal(cell_session_start(desk->session, code, strlen(code), &desk->run, NULL, NULL), 0);
	assert_true(support_wait(is_done, &started));
	assert_int_equal(started.code, 0);
	assert_int_equal(desk->called, 5);
	desk_close(desk);
}

/* ---- shell commands ---- */

static void shell_commands_ask_too(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.gate = CELL_GATE_SHELL;
	struct desk *desk = desk_open(&opts);
	desk->on_approval = say_yes;
	expect(desk, "tools.math.add(a=1)", "11"); /* not asked: only shell commands are */
	assert_int_equal(desk->asked, 0);
	expect(desk, "word = 'hi'\nx = !echo {word} $word\nx", "['hi hi']");
	assert_string_equal(desk->last_args, "{\"cmd\":\"echo hi hi\"}"); /* as it runs */
	assert_string_equal(desk->last_tool, "shell/shell//kernel");
	expect(desk, "%%bash -s a b\necho $1 >/dev/null", "");
	assert_string_equal(desk->last_args, "{\"cmd\":\"echo $1 >/dev/null\\n\",\"program\":\"bash -s a b\"}");
	assert_string_equal(desk->last_tool, "shell/shell_magic//kernel");
	desk->on_approval = say_no;
	size_t asked = desk->asked;
	static const char *const all[] = { "!true",
					   "x = !true",
					   "!!true",
					   "%sx true",
					   "%system true",
					   "%%sh\ntrue",
					   "%%bash\ntrue",
					   "%%script bash\ntrue",
					   "%%python3\n1",
					   "%%!\ntrue",
					   "get_ipython().system('true')",
					   "get_ipython().getoutput('true')",
					   "get_ipython().system_piped('true')",
					   "get_ipython().system_raw('true')",
					   "%pip --version" };
	for (size_t i = 0; i < COUNT(all); i++) {
		expect_error(desk, all[i], CELL_OUT_REJECTED, "ApprovalRejectedError", "rejected: not today");
		assert_int_equal(desk->asked, ++asked);
	}
	desk_close(desk);
}

static void edit_command(struct desk *desk, const struct cell_event *event)
{
	CHECK(answer(desk, event->call->id, 1, NULL, "{\"cmd\":\"echo edited\"}", NULL) == 0);
}

static void an_edited_command_runs_instead(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.gate = CELL_GATE_SHELL;
	struct desk *desk = desk_open(&opts);
	desk->on_approval = edit_command;
	expect(desk, "x = !echo asked\nx", "['edited']");
	desk_close(desk);
}

static void only_the_shell_escape_starts_processes(void **state)
{
	(void)state;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session;
	struct cell_error err;
	opts.require_shell_escape = 1;
	struct cell_engine *engine = support_engine(0);
	assert_int_equal(cell_session_open(engine, &opts, &session, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_engine_destroy(engine);
	opts.gate = CELL_GATE_SHELL;
	struct desk *desk = desk_open(&opts);
	desk->on_approval = say_yes;
	expect(desk, "x = !echo hi\nx", "['hi']");
	static const char *const all[] = {
		"import subprocess; subprocess.run(['true'])",
		"import subprocess, importlib; importlib.reload(subprocess).run(['true'])",
		"import os; os.system('true')",
		"import os; os.fork()",
		"import os; os.posix_spawn('/bin/true', ['true'], {})",
		"import os; os.execv('/bin/true', ['true'])",
		"import os; os.spawnv(os.P_WAIT, '/bin/true', ['true'])",
		"import pty; pty.spawn(['true'])",
		"import _posixsubprocess; _posixsubprocess.fork_exec()",
		"import multiprocessing as m; m.get_context('fork').Process(target=print).start()",
	};
	for (size_t i = 0; i < COUNT(all); i++)
		expect_error(desk, all[i], CELL_OUT_EXCEPTION, "ShellEscapeError", "calls are not allowed. Use ! syntax.");
	desk_close(desk);
}

/* ---- middlewares ---- */

static void note(struct desk *desk, const char *word)
{
	pthread_mutex_lock(&desk->lock);
	strcat(desk->order, word);
	pthread_mutex_unlock(&desk->lock);
}

static void outer_before(void *arg, struct cell_middleware_call *call)
{
	note(arg, "A(");
	CHECK(strcmp(cell_middleware_tool(call), "math") == 0 && strcmp(cell_middleware_callable(call), "add") == 0);
	CHECK(strcmp(cell_middleware_args(call), "{\"a\":1}") == 0);
	CHECK(strcmp(cell_middleware_executor(call), "subprocess") == 0);
	CHECK(strlen(cell_middleware_session_id(call)) == 32 && *cell_middleware_request_id(call));
	cell_middleware_next(call);
}

static void outer_after(void *arg, struct cell_middleware_call *call)
{
	size_t size;
	int is_text;
	note(arg, ")A");
	CHECK(!cell_middleware_error(call));
	CHECK(strcmp(cell_middleware_result(call, &size, &is_text), "\"changed\"") == 0 && size == 9 && !is_text);
	cell_middleware_next(call);
}

static void *next_later(void *call)
{
	nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
	cell_middleware_next(call);
	return NULL;
}

static void later(struct cell_middleware_call *call)
{
	pthread_t thread;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	CHECK(pthread_create(&thread, &attr, next_later, call) == 0);
	pthread_attr_destroy(&attr);
}

static void inner_before(void *arg, struct cell_middleware_call *call)
{
	struct cell_error err;
	note(arg, "B(");
	CHECK(cell_middleware_set_args(call, "[]", 2, &err) < 0);
	CHECK(cell_middleware_set_args(call, "{\"a\":40,\"b\":2}", 14, NULL) == 0);
	CHECK(strcmp(cell_middleware_args(call), "{\"a\":40,\"b\":2}") == 0);
	later(call);
}

static void inner_after(void *arg, struct cell_middleware_call *call)
{
	size_t size;
	int is_text;
	note(arg, ")B");
	const char *result = cell_middleware_result(call, &size, &is_text);
	CHECK(result && strcmp(result, "42") == 0 && !is_text);
	cell_middleware_answer_json(call, "\"changed\"", 9);
}

static void add_middleware(struct desk *desk, cell_middleware_fn before, cell_middleware_fn after)
{
	struct cell_middleware one = CELL_MIDDLEWARE_INIT;
	one.name = "test";
	one.before = before;
	one.after = after;
	one.arg = desk;
	assert_int_equal(cell_space_add_middleware(desk->space, &one, NULL), 0);
}

static void middlewares_stand_around_policy_and_tool(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_yes;
	add_middleware(desk, outer_before, outer_after);
	add_middleware(desk, inner_before, inner_after);
	expect(desk, "tools.math.add(a=1)", "'changed'");
	assert_string_equal(desk->order, "A(B()B)A");
	assert_string_equal(desk->last_args, "{\"a\":40,\"b\":2}"); /* the person sees what the middlewares made of it */
	assert_int_equal(desk->called, 1);
	desk_close(desk);
}

static void deny(void *arg, struct cell_middleware_call *call)
{
	(void)arg;
	cell_middleware_fail(call, "not with me");
}

static void see_error(void *arg, struct cell_middleware_call *call)
{
	struct desk *desk = arg;
	const char *error = cell_middleware_error(call);
	snprintf(desk->order, sizeof desk->order, "%s", error ? error : "(none)");
	cell_middleware_next(call);
}

static void a_middleware_may_deny(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	add_middleware(desk, NULL, see_error);
	add_middleware(desk, deny, NULL);
	expect_error(desk, "tools.math.add(a=1)", CELL_OUT_EXCEPTION, "ToolCallError", "not with me");
	assert_string_equal(desk->order, "not with me");
	assert_int_equal(desk->asked, 0);
	assert_int_equal(desk->called, 0);
	desk_close(desk);
}

static void a_refusal_passes_the_middlewares(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	desk->on_approval = say_no;
	add_middleware(desk, NULL, see_error);
	expect_error(desk, "tools.math.add(a=1)", CELL_OUT_REJECTED, "ApprovalRejectedError", "not today");
	assert_string_equal(desk->order, "Approval request for math.add rejected: not today");
	desk_close(desk);
}

static struct cell_middleware_call *held_call;

static void hold(void *arg, struct cell_middleware_call *call)
{
	struct desk *desk = arg;
	pthread_mutex_lock(&desk->lock);
	held_call = call;
	desk->called++;
	pthread_mutex_unlock(&desk->lock);
}

static void what_a_middleware_holds_outlives_the_engine(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	struct runner runner;
	add_middleware(desk, hold, NULL);
	runner_start(&runner, desk, "tools.math.add(a=1)");
	struct number number = { desk, &desk->called, 1 };
	assert_true(support_wait(has_number, &number));
	assert_int_equal(cell_session_interrupt(desk->session, NULL), 0);
	pthread_join(runner.thread, NULL);
	assert_int_equal(support_outcome(runner.result), CELL_OUT_INTERRUPTED);
	cell_result_destroy(runner.result);
	struct cell_middleware_call *call = held_call;
	desk_close(desk);
	assert_string_equal(cell_middleware_args(call), "{\"a\":1}");
	cell_middleware_answer_text(call, "too late", 8);
}

static void the_hosts_own_calls_pass_middlewares_too(void **state)
{
	(void)state;
	struct desk *desk = desk_open(NULL);
	add_middleware(desk, NULL, see_error);
	char *json;
	struct cell_error err;
	if (cell_space_call(desk->space, "tools.call", "{\"name\":\"math.add\",\"args\":{\"a\":1}}", NULL, 0, &json, NULL, NULL, &err) < 0)
		fail_msg("%s", err.msg);
	free(json);
	assert_string_equal(desk->order, "(none)");
	desk_close(desk);
}

/* ---- the working directory ---- */

static void each_cell_ends_where_it_began(void **state)
{
	(void)state;
	struct cell_engine *engine = support_engine(0);
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.cwd = "/usr";
	opts.restore_cwd = 1;
	struct cell_session *session = support_session_with(engine, &opts);
	struct cell_result *result = support_run(session, "import os; os.chdir('/'); 1/0");
	struct cell_text text;
	cell_result_text(result, &text);
	assert_non_null(strstr(text.data, "[workcell] cwd reset to /usr"));
	cell_result_destroy(result);
	support_expect(session, "os.getcwd()", "'/usr'");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(accepted_runs_and_shows_what_runs),
		TEST(rejected_raises_and_may_be_caught),
		TEST(wrong_arguments_ask_nobody),
		TEST(edited_arguments_run_instead),
		TEST(always_is_remembered_for_this_callable),
		TEST(unanswered_is_rejected),
		TEST(many_wait_and_are_answered_in_any_order),
		TEST(threads_of_the_code_wait_each_for_itself),
		TEST(an_answer_counts_once),
		TEST(races_end_each_call_once),
		TEST(interrupt_frees_who_waits),
		TEST(reset_frees_who_waits),
		TEST(a_kernel_that_died_is_followed_by_a_guarded_one),
		TEST(close_while_parked),
		TEST(timeout_counts_the_wait),
		TEST(the_clock_can_stand_still),
		TEST(an_expired_approval_starts_the_clock_again),
		TEST(four_mebibytes_of_arguments),
		TEST(background_threads_ask_between_cells),
		TEST(a_callback_of_the_engine_may_answer),
		TEST(shell_commands_ask_too),
		TEST(an_edited_command_runs_instead),
		TEST(only_the_shell_escape_starts_processes),
		TEST(middlewares_stand_around_policy_and_tool),
		TEST(a_middleware_may_deny),
		TEST(a_refusal_passes_the_middlewares),
		TEST(what_a_middleware_holds_outlives_the_engine),
		TEST(the_hosts_own_calls_pass_middlewares_too),
		TEST(each_cell_ends_where_it_began),
	};
	support_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
