/* MCP servers through the public API: registered, replaced, stopped, heard, answered.  The server is tests/mcp/scripted.py. */
#define _GNU_SOURCE
#include "support.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>

static struct cell_engine *engine;
static struct cell_space *space;

static const char *fake_getenv(void *arg, const char *name)
{
	(void)arg;
	return strcmp(name, "TOKEN") == 0 ? "s3cr3t-of-the-host" : NULL;
}

static void begin(void)
{
	struct cell_space_options opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_error err;
	opts.getenv_fn = fake_getenv;
	opts.cwd = "/tmp";
	engine = support_engine(0);
	if (cell_space_open(engine, &opts, &space, &err) < 0)
		fail_msg("%s", err.msg);
}

static void finish(void)
{
	cell_space_close(space);
	cell_engine_destroy(engine);
}

/* Parameters of the scripted server; more: further members, or "". */
static char *scripted(const char *behaviour, const char *more)
{
	struct cell__buf text = CELL_BUF_INIT;
	assert_int_equal(cell__buf_printf(&text,
					  "{\"command\":\"/usr/bin/python3\",\"args\":[\"-IS\",\"%s/tests/mcp/scripted.py\"%s%s%s]%s}",
					  TEST_SOURCE_DIR, *behaviour ? ",\"" : "", behaviour, *behaviour ? "\"" : "", more),
			 0);
	return text.data;
}

static void add(const char *name, const char *behaviour, const char *more)
{
	struct cell_error err;
	CELL_AUTO_FREE char *params = scripted(behaviour, more);
	if (cell_space_add_mcp(space, name, params, &err) < 0)
		fail_msg("%s", err.msg);
}

/* The answer of tools.call as text: the raw part, or the JSON. */
static char *call(const char *name, const char *args, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf question = CELL_BUF_INIT;
	char *json = NULL;
	void *raw = NULL;
	size_t size = 0;
	assert_int_equal(cell__buf_printf(&question, "{\"name\":\"%s\",\"args\":%s}", name, args), 0);
	if (cell_space_call(space, "tools.call", question.data, NULL, 0, &json, &raw, &size, err) < 0)
		return NULL;
	if (!raw)
		return json;
	free(json);
	return raw;
}

static void expect(const char *name, const char *args, const char *wanted)
{
	struct cell_error err;
	CELL_AUTO_FREE char *found = call(name, args, &err);
	if (!found)
		fail_msg("%s: %s", name, err.msg);
	assert_string_equal(found, wanted);
}

static void expect_fail(const char *name, const char *args, int code, const char *part)
{
	struct cell_error err = { 0 };
	CELL_AUTO_FREE char *found = call(name, args, &err);
	if (found)
		fail_msg("%s answered %s", name, found);
	assert_int_equal(err.code, code);
	if (!strstr(err.msg, part))
		fail_msg("\"%s\" is not in: %s", part, err.msg);
}

static pid_t server_pid(const char *name)
{
	struct cell_error err;
	CELL_AUTO_FREE char *found = call(name, "{}", &err);
	if (!found)
		fail_msg("%s", err.msg);
	json_t *json = json_loads(found, 0, NULL);
	pid_t pid = (pid_t)json_integer_value(json_object_get(json, "pid"));
	json_decref(json);
	assert_true(pid > 1);
	return pid;
}

/* ---- registration ---- */

static void test_add_replace_remove(void **state)
{
	(void)state;
	struct cell_error err;
	begin();
	expect_fail("s.echo", "{\"text\":\"x\"}", CELL_E_NOT_FOUND, "Tool 's' not found");
	add("s", "", "");
	expect("s.echo", "{\"text\":\"x\"}", "x");
	pid_t pid = server_pid("s.pid");
	/* The same again changes nothing. */
	add("s", "", "");
	assert_int_equal(server_pid("s.pid"), pid);
	add("s", "one-more-word", "");
	pid_t next = server_pid("s.pid");
	assert_int_not_equal(next, pid);
	assert_true(support_wait(support_pid_gone, &pid));
	add("t", "", ",\"timeout\":5,\"description\":\"The other\",\"tags\":[\"a\"]");
	expect("t.echo", "{\"text\":\"y\"}", "y");
	assert_int_equal(cell_space_remove_mcp(space, "s", &err), 0);
	expect_fail("s.echo", "{\"text\":\"x\"}", CELL_E_NOT_FOUND, "Tool 's' not found. Available: t");
	assert_true(support_wait(support_pid_gone, &next));
	assert_int_equal(cell_space_remove_mcp(space, "s", &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	finish();
}

static void test_bad_parameters(void **state)
{
	(void)state;
	static const struct {
		const char *name, *params, *part;
		int code;
	} rows[] = {
		{ "s", "{", "not JSON", CELL_E_INVALID },
		{ "s", "[]", "needs 'params', an object", CELL_E_INVALID },
		{ "s", "{}", "Neither a \"command\" nor a \"url\"", CELL_E_INVALID },
		{ "s", "{\"command\":1}", "'command' must be a string", CELL_E_INVALID },
		{ "s", "{\"command\":\"\"}", "empty", CELL_E_INVALID },
		{ "s", "{\"command\":\"x\",\"args\":[1]}", "list of strings", CELL_E_INVALID },
		{ "s", "{\"command\":\"x\",\"env\":[]}", "object of strings", CELL_E_INVALID },
		{ "s", "{\"command\":\"x\",\"env\":{\"A\":\"${\"}}", "${NAME}", CELL_E_INVALID },
		{ "s", "{\"command\":\"x\",\"what\":1}", "unknown key 'what'", CELL_E_INVALID },
		{ "s", "{\"command\":\"x\",\"timeout\":-1}", "'timeout' must be", CELL_E_INVALID },
		{ "s", "{\"url\":\"http://h/other\"}", "Unable to determine MCP client type", CELL_E_INVALID },
		{ "s", "{\"url\":\"http://h/mcp\",\"type\":\"stdio\"}", "needs a command", CELL_E_INVALID },
		{ "a b", "{\"command\":\"x\"}", "invalid tool name", CELL_E_INVALID },
		{ "list", "{\"command\":\"x\"}", "invalid tool name", CELL_E_INVALID },
		{ "host", "{\"command\":\"x\"}", "already registered", CELL_E_EXISTS },
	};
	begin();
	struct cell_tool tool = CELL_TOOL_INIT;
	tool.name = "host";
	tool.fn = (cell_tool_fn)abort;
	assert_int_equal(cell_space_add_tool(space, &tool, NULL), 0);
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell_error err = { 0 };
		if (cell_space_add_mcp(space, rows[i].name, rows[i].params, &err) == 0)
			fail_msg("accepted: %s", rows[i].params);
		assert_int_equal(err.code, rows[i].code);
		if (!strstr(err.msg, rows[i].part))
			fail_msg("%s: %s", rows[i].params, err.msg);
	}
	add("s", "", "");
	struct cell_error err = { 0 };
	tool.name = "s.more";
	assert_int_equal(cell_space_add_tool(space, &tool, &err), -1);
	assert_int_equal(err.code, CELL_E_EXISTS);
	finish();
}

static void test_codes_of_failures(void **state)
{
	(void)state;
	begin();
	add("dies", "dies", "");
	expect_fail("dies.echo", "{\"text\":\"x\"}", CELL_E_TOOL, "exit status 7");
	add("mute", "silent", ",\"start_timeout\":0.2");
	expect_fail("mute.echo", "{\"text\":\"x\"}", CELL_E_TIMEOUT, "did not answer initialize");
	add("old", "version=1990-01-01", "");
	expect_fail("old.echo", "{\"text\":\"x\"}", CELL_E_VERSION, "1990-01-01");
	add("lost", "list_error", "");
	expect_fail("lost.echo", "{\"text\":\"x\"}", CELL_E_TOOL, "the list is lost");
	add("odd", "bad_list", "");
	expect_fail("odd.echo", "{\"text\":\"x\"}", CELL_E_PROTOCOL, "not a list");
	add("s", "", ",\"timeout\":0.2,\"env\":{\"A\":\"${TOKEN}\"}");
	expect_fail("s.never", "{}", CELL_E_TOOL_TIMEOUT, "timed out after 0.2s");
	expect_fail("s.nothing", "{}", CELL_E_NOT_FOUND, "Callable 'nothing' not found");
	expect_fail("s.echo", "{}", CELL_E_INVALID, "Required parameter 'text' is missing");
	expect_fail("s.fails", "{\"words\":\"the s3cr3t-of-the-host is out\"}", CELL_E_TOOL, "the *** is out");
	finish();
}

static void test_schema(void **state)
{
	(void)state;
	struct cell_error err;
	char *json = NULL;
	begin();
	add("s", "pages=4", "");
	assert_int_equal(cell_space_call(space, "tools.schema", "{\"name\":\"s\"}", NULL, 0, &json, NULL, NULL, &err), 0);
	json_t *schema = json_loads(json, 0, NULL);
	assert_string_equal(json_string_value(json_object_get(schema, "name")), "s");
	assert_string_equal(json_string_value(json_object_get(json_object_get(schema, "server"), "name")), "scripted");
	assert_string_equal(json_string_value(json_object_get(schema, "instructions")), "Do as you are told.");
	json_t *first = json_array_get(json_object_get(schema, "tools"), 0);
	assert_string_equal(json_string_value(json_object_get(first, "name")), "echo");
	assert_true(json_is_object(json_object_get(json_object_get(first, "inputSchema"), "properties")));
	json_decref(schema);
	free(json);
	assert_int_equal(cell_space_call(space, "tools.schema", "{\"name\":\"t\"}", NULL, 0, &json, NULL, NULL, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	finish();
}

/* ---- stopping ---- */

static void *call_never(void *arg)
{
	(void)arg;
	struct cell_error err = { 0 };
	CHECK(!call("s.never", "{}", &err));
	return (void *)(intptr_t)err.code;
}

static bool is_blocked(void *log)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	return support_read_file(log, &text) && strstr(text.data, "\"never\"");
}

static void test_stop_servers(void **state)
{
	(void)state;
	struct cell_error err;
	char log[64];
	pthread_t thread;
	void *code;
	begin();
	assert_int_equal(cell_space_stop_servers(space, &err), 0); /* none there */
	snprintf(log, sizeof log, "/tmp/workcell-test-mcp-%d", getpid());
	struct cell__buf params = CELL_BUF_INIT;
	cell__buf_printf(&params, "{\"command\":\"/usr/bin/python3\",\"args\":[\"-IS\",\"%s/tests/mcp/scripted.py\",\"--log\",\"%s\"]}",
			 TEST_SOURCE_DIR, log);
	assert_int_equal(cell_space_add_mcp(space, "s", params.data, &err), 0);
	cell__buf_finish(&params);
	add("stubborn", "hang_on_close", "");
	pid_t pid = server_pid("s.pid"), other = server_pid("stubborn.pid");
	pthread_create(&thread, NULL, call_never, NULL);
	assert_true(support_wait(is_blocked, log));
	assert_int_equal(cell_space_stop_servers(space, &err), 0);
	/* When it returns they are gone, and the call has failed. */
	assert_int_equal(kill(pid, 0), -1);
	assert_int_equal(kill(other, 0), -1);
	pthread_join(thread, &code);
	assert_int_equal((intptr_t)code, CELL_E_CLOSED);
	assert_int_not_equal(server_pid("s.pid"), pid);
	finish();
	unlink(log); /* the last server has ended */
}

static void test_close_with_calls_under_way(void **state)
{
	(void)state;
	begin();
	add("s", "", "");
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.space = space;
	struct cell_session *session = support_session_with(engine, &opts);
	support_expect(session, "tools.s.echo(text='x')", "'x'");
	support_expect(session, "import threading; threading.Thread(target=tools.s.never).start()", NULL);
	support_expect(session, "tools.s.echo(text='y')", "'y'");
	cell_session_close(session);
	finish();
}

/* ---- sessions share ---- */

static void test_sessions_share_a_server(void **state)
{
	(void)state;
	begin();
	add("s", "", "");
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.space = space;
	struct cell_session *a = support_session_with(engine, &opts), *b = support_session_with(engine, &opts);
	char pid[32];
	snprintf(pid, sizeof pid, "%d", server_pid("s.pid"));
	support_expect(a, "tools.s.pid()['pid']", pid);
	support_expect(b, "tools.s.pid()['pid']", pid);
	assert_int_equal(cell_session_reset(a, NULL), 0);
	support_expect(a, "tools.s.pid()['pid']", pid); /* a reset is the session's own affair */
	cell_session_close(a);
	support_expect(b, "tools.s.pid()['pid']", pid);
	cell_session_close(b);
	finish();
}

/* ---- events ---- */

struct heard {
	pthread_mutex_t lock;
	unsigned progress, logs, questions;
	char json[512], session[64], callable[64];
	const char *action, *content;
	struct cell_question *open;
};

static void hear(void *arg, const struct cell_tool_event *event)
{
	struct heard *heard = arg;
	pthread_mutex_lock(&heard->lock);
	heard->progress += event->type == CELL_TOOL_PROGRESS;
	heard->logs += event->type == CELL_TOOL_LOG;
	heard->questions += event->type == CELL_TOOL_QUESTION;
	snprintf(heard->json, sizeof heard->json, "%s", event->json);
	snprintf(heard->session, sizeof heard->session, "%s", event->session_id);
	snprintf(heard->callable, sizeof heard->callable, "%s", event->callable);
	CHECK(strcmp(event->tool, "s") == 0);
	if (event->question && heard->action)
		CHECK(cell_question_answer(event->question, heard->action, heard->content, NULL) == 0);
	else if (event->question)
		heard->open = event->question;
	pthread_mutex_unlock(&heard->lock);
}

static void *answer_later(void *arg)
{
	struct heard *heard = arg;
	for (;;) {
		pthread_mutex_lock(&heard->lock);
		struct cell_question *question = heard->open;
		pthread_mutex_unlock(&heard->lock);
		if (!question) {
			usleep(1000);
			continue;
		}
		struct cell_error err;
		CHECK(cell_question_answer(question, "maybe", NULL, &err) < 0 && err.code == CELL_E_INVALID);
		CHECK(cell_question_answer(question, "accept", "[]", &err) < 0 && err.code == CELL_E_INVALID);
		CHECK(cell_question_answer(question, "decline", "{}", &err) < 0 && err.code == CELL_E_INVALID);
		CHECK(cell_question_answer(question, "accept", "{\"name\":\"later\"}", &err) == 0);
		return NULL;
	}
}

static void test_events(void **state)
{
	(void)state;
	static struct heard heard = { .lock = PTHREAD_MUTEX_INITIALIZER };
	begin();
	assert_int_equal(cell_space_on_tool_event(space, hear, &heard, NULL), 0);
	add("s", "", ",\"timeout\":20");
	expect("s.progress", "{\"steps\":3}", "3 steps");
	assert_int_equal(heard.progress, 3);
	assert_string_equal(heard.callable, "progress");
	assert_non_null(strstr(heard.json, "\"message\":\"step 3\""));
	expect("s.log", "{\"text\":\"to the log\"}", "logged");
	assert_int_equal(heard.logs, 1);
	assert_non_null(strstr(heard.json, "\"data\":\"to the log\""));
	heard.action = "accept";
	heard.content = "{\"name\":\"me\"}";
	expect("s.ask", "{\"message\":\"who?\"}", "{\"action\": \"accept\", \"content\": {\"name\": \"me\"}}");
	assert_int_equal(heard.questions, 1);
	assert_non_null(strstr(heard.json, "\"message\":\"who?\""));
	assert_string_equal(heard.callable, "ask");
	heard.action = "cancel";
	heard.content = NULL;
	expect("s.ask", "{\"message\":\"who?\"}", "{\"action\": \"cancel\"}");
	/* From another thread, and for a session. */
	heard.action = NULL;
	pthread_t thread;
	pthread_create(&thread, NULL, answer_later, &heard);
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.space = space;
	struct cell_session *session = support_session_with(engine, &opts);
	support_expect(session, "tools.s.ask(message='who?')['content']", "{'name': 'later'}");
	assert_string_equal(heard.session, cell_session_id(session));
	pthread_join(thread, NULL);
	cell_session_close(session);
	finish();
}

/* A question that is still open when all is closed. */
static void test_questions_that_stay_open(void **state)
{
	(void)state;
	static struct heard heard = { .lock = PTHREAD_MUTEX_INITIALIZER };
	begin();
	assert_int_equal(cell_space_on_tool_event(space, hear, &heard, NULL), 0);
	add("s", "", "");
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	opts.space = space;
	struct cell_session *session = support_session_with(engine, &opts);
	support_expect(session, "import threading; threading.Thread(target=tools.s.ask, kwargs={'message': '?'}).start()", NULL);
	while (!heard.open) {
		support_expect(session, "None", NULL);
	}
	cell_session_close(session);
	cell_space_close(space);
	assert_int_equal(cell_question_answer(heard.open, "decline", NULL, NULL), 0);
	cell_engine_destroy(engine);
}

/* ---- questions and news of a session ---- */

struct seen {
	struct cell_session *session;
	const char *content; /* NULL: rejected */
	int dismiss;
	unsigned progress, logs, ended;
	uint64_t progress_id;
	char kind[16], decision[16], args[256];
};

static void see(void *arg, const struct cell_event *event)
{
	struct seen *seen = arg;
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	struct cell_error err;
	if (event->type == CELL_EVENT_TOOL_PROGRESS) {
		seen->progress++;
		seen->progress_id = event->call->id;
		CHECK(memmem(event->data, event->size, "\"progress\":", 11));
	}
	seen->logs += event->type == CELL_EVENT_TOOL_LOG && strcmp(event->call->tool, "s") == 0;
	if (event->type == CELL_EVENT_APPROVAL_ENDED)
		snprintf(seen->decision, sizeof seen->decision, "%s", event->decision);
	if (event->type != CELL_EVENT_APPROVAL)
		return;
	snprintf(seen->kind, sizeof seen->kind, "%s", event->call->kind);
	snprintf(seen->args, sizeof seen->args, "%s", event->call->args);
	answer.accept = seen->content != NULL;
	answer.args = seen->content;
	answer.dismiss = seen->dismiss;
	if (answer.accept) {
		struct cell_approval_answer wrong = answer;
		wrong.args = "{\"name\":[]}";
		CHECK(cell_session_answer(seen->session, event->call->id, &wrong, &err) < 0 && err.code == CELL_E_INVALID);
	}
	CHECK(cell_session_answer(seen->session, event->call->id, &answer, &err) == 0);
	CHECK(cell_session_answer(seen->session, event->call->id, &answer, &err) < 0 && err.code == CELL_E_NOT_FOUND);
}

static void run_seen(struct seen *seen, const char *code, const char *repr)
{
	struct cell_run_options opts = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result;
	struct cell_error err;
	opts.on_event = see;
	opts.event_arg = seen;
	if (cell_session_run(seen->session, code, strlen(code), &opts, &result, &err) < 0)
		fail_msg("%s", err.msg);
	assert_string_equal(cell_result_repr(result) ? cell_result_repr(result) : cell_result_error(result)->message, repr);
	cell_result_destroy(result);
}

/* A session takes questions without any policy, and others of the same space do not get them. */
static void test_questions_at_the_gate(void **state)
{
	(void)state;
	struct seen seen = { .content = "{\"name\":\"Ada\"}" };
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	begin();
	add("s", "", "");
	opts.space = space;
	struct cell_session *other = support_session_with(engine, &opts);
	opts.gate = CELL_GATE_QUESTIONS;
	seen.session = support_session_with(engine, &opts);
	run_seen(&seen, "tools.s.ask(message='who?')", "{'action': 'accept', 'content': {'name': 'Ada'}}");
	assert_string_equal(seen.kind, "question");
	assert_string_equal(seen.decision, "accepted");
	assert_non_null(strstr(seen.args, "\"message\":\"who?\""));
	seen.content = NULL;
	run_seen(&seen, "tools.s.ask(message='who?')", "{'action': 'decline'}");
	seen.dismiss = 1;
	run_seen(&seen, "tools.s.ask(message='who?')", "{'action': 'cancel'}");
	run_seen(&seen, "tools.s.progress(steps=2), tools.s.log(text='x')", "('2 steps', 'logged')");
	assert_true(seen.progress == 2 && seen.progress_id > 0 && seen.logs == 1);
	support_expect(other, "tools.s.ask(message='who?')", "{'action': 'decline'}");
	opts.gate = 1u << 20;
	struct cell_error err;
	assert_int_equal(cell_session_open(engine, &opts, &other, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_session_close(seen.session);
	cell_session_close(other);
	finish();
}

/* ---- cancelling the host's own calls ---- */

static struct cell_canceller *canceller;

/* Engine's thread: the call is under way, and waits for an answer. */
static void cancel_it(void *arg, const struct cell_tool_event *event)
{
	(void)arg;
	cell_canceller_cancel(canceller);
	CHECK(cell_question_answer(event->question, "decline", NULL, NULL) == 0);
}

static void *cancel_now(void *arg)
{
	(void)arg;
	cell_canceller_cancel(canceller);
	return NULL;
}

/* 0, or the code that a call fails with. */
static int call_with(const char *method, const char *args)
{
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	(void)cell_space_call_with(space, method, args, NULL, 0, canceller, &answer, &err);
	cell_answer_finish(&answer);
	return err.code;
}

static void test_cancelled_calls(void **state)
{
	(void)state;
	static const char asks[] = "{\"name\":\"s.ask\",\"args\":{\"message\":\"?\"}}";
	pthread_t thread;
	begin();
	assert_int_equal(cell_space_on_tool_event(space, cancel_it, NULL, NULL), 0);
	add("s", "", "");
	canceller = cell_canceller_create();
	assert_int_equal(call_with("tools.call", "{\"name\":\"s.echo\",\"args\":{\"text\":\"x\"}}"), 0);
	assert_int_equal(call_with("tools.call", asks), CELL_E_CANCELLED);
	assert_int_equal(call_with("tools.list", "{}"), CELL_E_CANCELLED); /* and so are all that follow */
	cell_canceller_destroy(canceller);
	/* From another thread, at any moment. */
	for (int i = 0; i < 20; i++) {
		canceller = cell_canceller_create();
		assert_int_equal(pthread_create(&thread, NULL, cancel_now, NULL), 0);
		int code = call_with("tools.call", "{\"name\":\"s.never\",\"args\":{}}");
		assert_int_equal(code, CELL_E_CANCELLED);
		pthread_join(thread, NULL);
		cell_canceller_destroy(canceller);
	}
	cell_canceller_destroy(NULL);
	expect("s.echo", "{\"text\":\"goes on\"}", "goes on");
	finish();
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_add_replace_remove),
		TEST(test_bad_parameters),
		TEST(test_codes_of_failures),
		TEST(test_schema),
		TEST(test_stop_servers),
		TEST(test_close_with_calls_under_way),
		TEST(test_sessions_share_a_server),
		TEST(test_events),
		TEST(test_questions_that_stay_open),
		TEST(test_questions_at_the_gate),
		TEST(test_cancelled_calls),
	};
	return cmocka_run_group_tests_name("mcp", tests, NULL, NULL);
}
