/* mcp/client: its states, with a server of a revision that begins with initialize. */
#define _GNU_SOURCE
#include "mcp_client_support.h"

/* ---- start ---- */

static void test_starts_with_the_first_request(void **state)
{
	(void)state;
	struct asked asked;
	begin();
	turn();
	assert_int_equal(n_started, 0);
	ask(&asked, -1);
	assert_int_equal(n_started, 1);
	json_t *init = heard_initialize();
	assert_string_equal(json_string_value(json_object_get(json_object_get(init, "params"), "protocolVersion")), "2025-11-25");
	assert_int_equal(json_object_size(json_object_get(json_object_get(init, "params"), "capabilities")), 0);
	int64_t id = json_integer_value(json_object_get(init, "id"));
	json_decref(init);
	expect_nothing(); /* before the answer nothing else may be said */
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'protocolVersion':'2024-11-05','capabilities':{}}}", (int)id);
	expect("notifications/initialized");
	id = expect("tools/call");
	expect("tools/list");
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'ok':1}}", (int)id);
	assert_int_equal(asked.done, 1);
	assert_string_equal(asked.text, "{\"ok\":1}");
	finish();
	assert_int_equal(n_started, 1);
}

static void fail_start(const char *answer, int code, const char *part)
{
	struct asked asked;
	begin();
	ask(&asked, -1);
	sayf(answer, expect_initialize());
	assert_int_equal(asked.done, 1);
	assert_int_equal(asked.code, code);
	assert_non_null(strstr(asked.text, part));
	finish();
}

static void test_starts_that_fail(void **state)
{
	(void)state;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	fail_start("{'jsonrpc':'2.0','id':%d,'error':{'code':-1,'message':'no'}}", CELL_E_TOOL, "refused initialize: no");
	fail_start("{'jsonrpc':'2.0','id':%d,'result':{}}", CELL_E_PROTOCOL, "no protocolVersion");
	fail_start("{'jsonrpc':'2.0','id':%d,'result':{'protocolVersion':'2020-01-01'}}", CELL_E_VERSION, "2020-01-01");
	fail_start("{'jsonrpc':'2.0','id':%d,'result':{'a\\u0000':1}}", CELL_E_PROTOCOL, "cannot be read");
#pragma GCC diagnostic pop
}

static void test_starts_that_cannot_be_made(void **state)
{
	(void)state;
	begin();
	launch_error = CELL_E_INVALID;
	ask(&late, -1);
	assert_true(turn_until(late_done));
	assert_int_equal(late.code, CELL_E_INVALID);
	launch_error = 0;
	start_error = 12;
	ask(&late, -1);
	assert_true(turn_until(late_done));
	assert_int_equal(late.code, CELL_E_IO);
	/* The third has to wait a little, and then works. */
	start_error = 0;
	ask(&late, -1);
	assert_int_equal(n_started, 0);
	assert_true(cell__mcp_client_backing_off(client));
	while (n_started == 0)
		turn();
	greet();
	sayf("{'jsonrpc':'2.0','id':%d,'result':7}", (int)expect("tools/call"));
	assert_string_equal(late.text, "7");
	finish();
}

static void test_initialize_that_is_not_answered(void **state)
{
	(void)state;
	begin();
	close_client();
	assert_true(turn_until(is_closed));
	n_closed = 0;
	closing = false;
	struct cell__mcp_client_options opts = {
		.loop = &loop,
		.start_timeout_ms = 50,
		.launch = handle_launch,
		.listed = handle_listed,
	};
	assert_int_equal(cell__mcp_client_create(&opts, &client, NULL), 0);
	ask(&late, -1);
	processes->spec.output(processes->spec.owner, CELL_STDERR, "why not\xff\n", 9);
	cell__mcp_client_list(client);
	assert_true(turn_until(late_done));
	assert_int_equal(late.code, CELL_E_TIMEOUT);
	assert_int_equal(n_listed, 1);
	assert_int_equal(listed_code, CELL_E_TIMEOUT);
	assert_string_equal(listed_tail, "why not\xef\xbf\xbd");
	finish();
}

/* ---- answers ---- */

static void test_answers_that_nobody_asked_for(void **state)
{
	(void)state;
	struct asked a, b;
	begin();
	make_ready();
	ask(&a, -1);
	ask(&b, -1);
	int ia = (int)expect("tools/call"), ib = (int)expect("tools/call");
	sayf("{'jsonrpc':'2.0','id':%d,'result':0}", ib + 1);
	sayf("{'jsonrpc':'2.0','id':0,'result':0}");
	sayf("{'jsonrpc':'2.0','id':-1,'result':0}");
	sayf("{'jsonrpc':'2.0','id':'%d','result':0}", ia);
	sayf("{'jsonrpc':'2.0','id':%d}", ia);
	sayf("{'id':%d,'result':0}", ia);
	sayf("[{'jsonrpc':'2.0','id':%d,'result':0}]", ia);
	sayf("not a message {'id':%d}", ia);
	say("");
	assert_int_equal(a.done + b.done, 0);
	sayf("{'jsonrpc':'2.0','id':%d,'result':'b'}", ib);
	sayf("{'jsonrpc':'2.0','id':%d,'result':'again'}", ib);
	sayf("{'jsonrpc':'2.0','id':%d.0,'error':{'code':1,'message':'a'}}", ia);
	sayf("{'jsonrpc':'2.0','id':%d,'result':'again'}", ia);
	assert_int_equal(a.done, 1);
	assert_int_equal(b.done, 1);
	assert_string_equal(a.text, "a");
	assert_string_equal(b.text, "\"b\"");
	finish();
}

static void test_limit_of_what_is_sent(void **state)
{
	(void)state;
	static struct asked many[CELL_MCP_LIMIT_REQUESTS + 1];
	begin();
	make_ready();
	for (size_t i = 0; i < CELL_MCP_LIMIT_REQUESTS; i++)
		ask(&many[i], -1);
	struct asked *one = &many[CELL_MCP_LIMIT_REQUESTS];
	*one = (struct asked){ .request = { .method = "m", .timeout_ms = -1, .done = handle_done } };
	struct cell_error err;
	assert_int_equal(cell__mcp_request_start(client, &one->request, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	int64_t first = expect("tools/call");
	for (size_t i = 1; i < CELL_MCP_LIMIT_SENT; i++)
		expect("tools/call");
	expect_nothing();
	sayf("{'jsonrpc':'2.0','id':%d,'result':0}", (int)first);
	assert_int_equal(many[0].done, 1);
	expect("tools/call");
	expect_nothing();
	/* A cancelled one makes room too; one that was not sent goes without a word. */
	cell__mcp_request_cancel(&many[CELL_MCP_LIMIT_REQUESTS - 1].request, "test");
	expect_nothing();
	cell__mcp_request_cancel(&many[1].request, "test");
	expect("notifications/cancelled");
	expect("tools/call");
	expect_nothing();
	finish();
	assert_int_equal(many[1].done + many[2].done, 0); /* closing says nothing */
}

static void test_timeouts(void **state)
{
	(void)state;
	begin();
	make_ready();
	ask(&late, 20);
	int id = (int)expect("tools/call");
	assert_true(turn_until(late_done));
	assert_int_equal(late.code, CELL_E_TOOL_TIMEOUT);
	json_t *note = heard();
	assert_int_equal(json_integer_value(json_object_get(json_object_get(note, "params"), "requestId")), id);
	json_decref(note);
	int ping = (int)expect("ping");
	sayf("{'jsonrpc':'2.0','id':%d,'result':'late'}", id);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{}}", ping);
	assert_int_equal(late.done, 1);
	assert_int_equal(n_alive, 1);
	finish();
}

/* The time of a request begins when it is sent: the start of its server has its own. */
static void test_timeout_and_start(void **state)
{
	(void)state;
	begin();
	ask(&late, 20);
	for (int i = 0; i < 60; i++) {
		turn();
		usleep(1000);
	}
	assert_int_equal(late.done, 0);
	greet();
	expect("tools/call");
	list_nothing();
	assert_true(turn_until(late_done));
	assert_int_equal(late.code, CELL_E_TOOL_TIMEOUT);
	expect("notifications/cancelled");
	expect("ping");
	finish();
}

/* ---- death ---- */

static void test_death(void **state)
{
	(void)state;
	struct asked a, b;
	begin();
	make_ready();
	ask(&a, -1);
	ask(&b, -1);
	end_process(processes, 3);
	assert_true(turn_until(all_dead));
	assert_int_equal(a.done + b.done, 2);
	assert_int_equal(a.code, CELL_E_TOOL);
	assert_string_equal(a.text, "the server ended with exit status 3");
	assert_int_equal(n_ended, 1);
	ask(&a, -1);
	assert_int_equal(n_started, 2);
	greet();
	sayf("{'jsonrpc':'2.0','id':%d,'result':1}", (int)expect("tools/call"));
	assert_string_equal(a.text, "1");
	finish();
}

/* What was never sent is not lost with the connection. */
static void test_death_with_a_queue(void **state)
{
	(void)state;
	static struct asked many[CELL_MCP_LIMIT_SENT + 2];
	begin();
	make_ready();
	for (size_t i = 0; i < COUNT(many); i++)
		ask(&many[i], -1);
	end_process(processes, 0);
	while (n_started < 2)
		turn();
	assert_int_equal(many[0].code, CELL_E_TOOL);
	assert_int_equal(many[CELL_MCP_LIMIT_SENT - 1].done, 1);
	assert_int_equal(many[CELL_MCP_LIMIT_SENT].done, 0);
	greet();
	sayf("{'jsonrpc':'2.0','id':%d,'result':1}", (int)expect("tools/call"));
	sayf("{'jsonrpc':'2.0','id':%d,'result':2}", (int)expect("tools/call"));
	assert_string_equal(many[CELL_MCP_LIMIT_SENT].text, "1");
	assert_string_equal(many[CELL_MCP_LIMIT_SENT + 1].text, "2");
	finish();
}

static void test_stop(void **state)
{
	(void)state;
	struct asked a;
	begin();
	cell__mcp_client_stop(client); /* nothing to stop */
	make_ready();
	ask(&a, -1);
	cell__mcp_client_stop(client);
	assert_int_equal(a.code, CELL_E_CLOSED);
	assert_true(cell__mcp_client_lives(client));
	assert_true(turn_until(all_dead));
	turn();
	assert_false(cell__mcp_client_lives(client));
	assert_int_equal(n_ended, 1);
	assert_non_null(cell__mcp_client_tools(client)); /* what it had is still known */
	/* While it starts. */
	ask(&a, -1);
	cell__mcp_client_stop(client);
	assert_int_equal(a.code, CELL_E_CLOSED);
	ask(&a, -1);
	assert_int_equal(n_started, 3);
	finish();
	assert_int_equal(a.done, 0);
}

static void test_close_from_a_callback(void **state)
{
	(void)state;
	struct asked a, b;
	begin();
	make_ready();
	ask(&a, -1);
	ask(&b, -1);
	a.close_then = true;
	int id = (int)expect("tools/call");
	sayf("{'jsonrpc':'2.0','id':%d,'result':1}", id);
	assert_int_equal(a.done, 1);
	finish();
	assert_int_equal(b.done, 0);

	begin();
	make_ready();
	ask(&a, -1);
	ask(&b, -1);
	a.close_then = true;
	end_process(processes, 0);
	assert_true(turn_until(is_closed));
	finish();
	assert_int_equal(a.done, 1);
	assert_int_equal(b.done, 0);
}

/* ---- the list ---- */

static void test_list(void **state)
{
	(void)state;
	begin();
	assert_null(cell__mcp_client_tools(client));
	cell__mcp_client_list(client);
	greet();
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[{'name':'a'}],'nextCursor':'2'}}", (int)expect("tools/list"));
	json_t *page = heard();
	assert_string_equal(json_string_value(json_object_get(json_object_get(page, "params"), "cursor")), "2");
	/* It changes while it is read: it is read again, and meanwhile what was read counts. */
	sayf("{'jsonrpc':'2.0','method':'notifications/tools/list_changed'}");
	expect_nothing();
	assert_int_equal(n_listed, 0);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[{'name':'b'}]}}", (int)json_integer_value(json_object_get(page, "id")));
	json_decref(page);
	assert_int_equal(n_listed, 1);
	assert_int_equal(json_array_size(cell__mcp_client_tools(client)), 2);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[{'name':'c'}]}}", (int)expect("tools/list"));
	assert_int_equal(n_listed, 2);
	assert_int_equal(json_array_size(cell__mcp_client_tools(client)), 1);
	expect_nothing();
	/* A list that cannot be had leaves the old one. */
	sayf("{'jsonrpc':'2.0','method':'notifications/tools/list_changed'}");
	sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-1,'message':'lost'}}", (int)expect("tools/list"));
	assert_int_equal(listed_code, CELL_E_TOOL);
	sayf("{'jsonrpc':'2.0','method':'notifications/tools/list_changed'}");
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':7}}", (int)expect("tools/list"));
	assert_int_equal(listed_code, CELL_E_PROTOCOL);
	assert_int_equal(json_array_size(cell__mcp_client_tools(client)), 1);
	/* The same cursor again is no way forward. */
	sayf("{'jsonrpc':'2.0','method':'notifications/tools/list_changed'}");
	for (int i = 0; i < 2; i++)
		sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[],'nextCursor':'x'}}", (int)expect("tools/list"));
	assert_int_equal(listed_code, 0);
	assert_non_null(strstr(cell__mcp_client_list_problem(client), "does not end"));
	finish();
}

/* ---- what it tells and asks ---- */

static void test_progress_and_log(void **state)
{
	(void)state;
	struct asked a;
	begin();
	make_ready();
	a = (struct asked){ .request = { .method = "tools/call",
					 .params = json_pack("{s:s}", "name", "t"),
					 .timeout_ms = -1,
					 .done = handle_done,
					 .progress = handle_progress } };
	assert_int_equal(cell__mcp_request_start(client, &a.request, NULL), 0);
	json_t *call = heard();
	int token = (int)json_integer_value(json_object_get(json_object_get(json_object_get(call, "params"), "_meta"), "progressToken"));
	assert_int_equal(token, json_integer_value(json_object_get(call, "id")));
	json_decref(call);
	sayf("{'jsonrpc':'2.0','method':'notifications/progress','params':{'progressToken':%d,'progress':1}}", token);
	sayf("{'jsonrpc':'2.0','method':'notifications/progress','params':{'progressToken':%d,'progress':1}}", token + 1);
	sayf("{'jsonrpc':'2.0','method':'notifications/progress','params':{'progressToken':'x'}}");
	sayf("{'jsonrpc':'2.0','method':'notifications/progress'}");
	sayf("{'jsonrpc':'2.0','method':'notifications/message','params':{'level':'info','data':1}}");
	assert_int_equal(a.progress, 1);
	assert_int_equal(n_logged, 1);
	sayf("{'jsonrpc':'2.0','id':%d,'result':1}", token);
	sayf("{'jsonrpc':'2.0','method':'notifications/progress','params':{'progressToken':%d,'progress':1}}", token);
	assert_int_equal(a.progress, 1);
	finish();
}

static void expect_reply(const char *id, const char *key, const char *wanted)
{
	json_t *reply = heard();
	assert_non_null(reply);
	char *shown = json_dumps(json_object_get(reply, "id"), JSON_ENCODE_ANY);
	assert_string_equal(shown, id);
	free(shown);
	shown = json_dumps(json_object_get(reply, key), JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
	assert_string_equal(shown, wanted);
	free(shown);
	json_decref(reply);
}

static void test_questions(void **state)
{
	(void)state;
	begin();
	make_ready();
	sayf("{'jsonrpc':'2.0','id':'p','method':'ping'}");
	expect_reply("\"p\"", "result", "{}");
	sayf("{'jsonrpc':'2.0','id':5,'method':'roots/list'}");
	expect_reply("5", "error", "{\"code\":-32601,\"message\":\"Method not found\"}");
	sayf("{'jsonrpc':'2.0','id':6,'method':'sampling/createMessage','params':{}}");
	expect_reply("6", "error", "{\"code\":-32601,\"message\":\"Method not found\"}");
	sayf("{'jsonrpc':'2.0','id':7,'method':'elicitation/create','params':{'message':'who?'}}");
	expect_reply("7", "result", "{\"action\":\"decline\"}");
	expect_nothing();
	finish();
}

static void ask_person(const char *id)
{
	question = NULL;
	sayf("{'jsonrpc':'2.0','id':%s,'method':'elicitation/create','params':{'message':'who?'}}", id);
}

static void test_elicitation(void **state)
{
	(void)state;
	struct asked a, b;
	begin_with(true);
	cell__mcp_client_list(client);
	json_t *init = heard_initialize();
	assert_non_null(json_object_get(json_object_get(json_object_get(init, "params"), "capabilities"), "elicitation"));
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'protocolVersion':'2025-06-18'}}", (int)json_integer_value(json_object_get(init, "id")));
	json_decref(init);
	expect("notifications/initialized");
	list_nothing();
	ask(&a, 100);
	int id = (int)expect("tools/call");
	ask_person("1");
	assert_ptr_equal(question_of, &a.request);
	/* The person takes longer than the call may. */
	for (int i = 0; i < 200; i++) {
		turn();
		usleep(1000);
	}
	assert_int_equal(a.done, 0);
	cell__mcp_elicitation_answer(question, "accept", json_pack("{s:s}", "name", "me"));
	expect_reply("1", "result", "{\"action\":\"accept\",\"content\":{\"name\":\"me\"}}");
	turn();
	assert_int_equal(a.done, 0);
	sayf("{'jsonrpc':'2.0','id':%d,'result':1}", id);
	assert_int_equal(a.done, 1);
	/* Two calls: it cannot be told whose question it is. */
	ask(&a, -1);
	ask(&b, -1);
	expect("tools/call");
	expect("tools/call");
	ask_person("2");
	assert_null(question_of);
	/* The server takes it back; the answer is then not sent. */
	sayf("{'jsonrpc':'2.0','method':'notifications/cancelled','params':{'requestId':2}}");
	cell__mcp_elicitation_answer(question, "decline", NULL);
	expect_nothing();
	/* The connection goes; the answer comes later. */
	ask_person("3");
	end_process(processes, 0);
	assert_true(turn_until(all_dead));
	cell__mcp_elicitation_answer(question, "accept", NULL);
	/* More at once than anybody can answer. */
	ask(&a, -1);
	greet();
	struct cell__mcp_elicitation *open[CELL_MCP_LIMIT_ELICITATIONS];
	expect("tools/call");
	list_nothing();
	for (size_t i = 0; i < COUNT(open); i++) {
		ask_person("4");
		open[i] = question;
		assert_non_null(question);
	}
	ask_person("5");
	assert_null(question);
	expect_reply("5", "result", "{\"action\":\"decline\"}");
	close_client();
	for (size_t i = 0; i < COUNT(open); i++)
		cell__mcp_elicitation_answer(open[i], "cancel", NULL);
	finish();
}

int main(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_starts_with_the_first_request),
		cmocka_unit_test(test_starts_that_fail),
		cmocka_unit_test(test_starts_that_cannot_be_made),
		cmocka_unit_test(test_initialize_that_is_not_answered),
		cmocka_unit_test(test_answers_that_nobody_asked_for),
		cmocka_unit_test(test_limit_of_what_is_sent),
		cmocka_unit_test(test_timeouts),
		cmocka_unit_test(test_timeout_and_start),
		cmocka_unit_test(test_death),
		cmocka_unit_test(test_death_with_a_queue),
		cmocka_unit_test(test_stop),
		cmocka_unit_test(test_close_from_a_callback),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_progress_and_log),
		cmocka_unit_test(test_questions),
		cmocka_unit_test(test_elicitation),
	};
	return cmocka_run_group_tests_name("mcp_client", tests, NULL, NULL);
}
