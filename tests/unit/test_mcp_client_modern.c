/* mcp/client with a server of 2026-07-28, whose requests describe themselves, and the parameters that become headers. */
#define _GNU_SOURCE
#include "mcp_client_support.h"

#include "mcp/client/param_headers.h"

/* ---- the modern era ---- */

static json_t *meta_of(const json_t *message)
{
	return json_object_get(json_object_get(message, "params"), "_meta");
}

/* The next message, which must be this request and describe itself.  Decref it. */
static json_t *heard_modern(const char *method, int *ret_id)
{
	json_t *message = heard();
	assert_non_null(message);
	assert_string_equal(json_string_value(json_object_get(message, "method")), method);
	const json_t *meta = meta_of(message);
	assert_string_equal(json_string_value(json_object_get(meta, "io.modelcontextprotocol/protocolVersion")), "2026-07-28");
	assert_true(json_is_object(json_object_get(meta, "io.modelcontextprotocol/clientCapabilities")));
	*ret_id = (int)json_integer_value(json_object_get(message, "id"));
	return message;
}

static int expect_modern(const char *method)
{
	int id;
	json_decref(heard_modern(method, &id));
	return id;
}

static void greet_modern(const char *capabilities)
{
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'complete','supportedVersions':['2026-07-28','2025-11-25'],'capabilities':%s,"
	     "'_meta':{'io.modelcontextprotocol/serverInfo':{'name':'new','version':'1'}}}}",
	     expect_modern("server/discover"), capabilities);
}

static void make_modern(void)
{
	cell__mcp_client_list(client);
	greet_modern("{}");
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'complete','tools':[],'ttlMs':0,'cacheScope':'private'}}",
	     expect_modern("tools/list"));
	assert_int_equal(n_listed, 1);
	assert_int_equal(listed_code, 0);
}

static void test_modern_start(void **state)
{
	(void)state;
	struct asked a;
	begin();
	make_modern();
	assert_string_equal(json_string_value(json_object_get(cell__mcp_client_server_info(client), "name")), "new");
	assert_true(cell__mcp_client_stale(client));
	ask(&a, -1);
	int id = expect_modern("tools/call");
	expect_nothing(); /* neither initialized nor a subscription */
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'complete','x':1}}", id);
	assert_string_equal(a.text, "{\"resultType\":\"complete\",\"x\":1}");
	/* Its servers send no requests. */
	sayf("{'jsonrpc':'2.0','id':'q','method':'ping'}");
	json_t *reply = heard();
	assert_int_equal(json_integer_value(json_object_get(json_object_get(reply, "error"), "code")), -32601);
	json_decref(reply);
	finish();
}

/* One that knows no other revision of ours, and one that only has older ones. */
static void test_modern_versions(void **state)
{
	(void)state;
	begin();
	ask(&late, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-32022,'message':'?','data':{'supported':['2099-01-01']}}}",
	     expect_modern("server/discover"));
	assert_int_equal(late.code, CELL_E_VERSION);
	assert_non_null(strstr(late.text, "2099-01-01"));
	finish();
	begin();
	ask(&late, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-32022,'message':'?','data':{'supported':['2025-06-18']}}}",
	     expect_modern("server/discover"));
	expect("initialize");
	finish();
	begin();
	ask(&late, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'supportedVersions':['2025-11-25']}}", expect_modern("server/discover"));
	expect("initialize");
	finish();
}

static bool said_something(void)
{
	return processes->written.size > 0;
}

/* A slow server gets both; the first result counts, and it is not asked again. */
static void test_probe_that_is_not_answered(void **state)
{
	(void)state;
	begin();
	ask(&late, -1);
	int probe = expect_modern("server/discover");
	assert_true(turn_until(said_something));
	int init = (int)expect("initialize");
	sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-32601,'message':'?'}}", probe);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'protocolVersion':'2025-06-18'}}", init);
	expect("notifications/initialized");
	expect("tools/call");
	list_nothing();
	end_process(processes, 0);
	assert_true(turn_until(all_dead));
	ask(&late, -1);
	expect("initialize");
	finish();
	/* The other way round. */
	begin();
	ask(&late, -1);
	probe = expect_modern("server/discover");
	assert_true(turn_until(said_something));
	init = (int)expect("initialize");
	sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-32022,'message':'?'}}", init);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'supportedVersions':['2026-07-28'],'capabilities':{}}}", probe);
	expect_modern("tools/call");
	finish();
}

/* Some servers end when the first message is not initialize. */
static void test_death_at_the_probe(void **state)
{
	(void)state;
	begin();
	ask(&late, -1);
	expect_modern("server/discover");
	end_process(processes, 1);
	while (n_started < 2)
		turn();
	assert_int_equal(late.done, 0);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'protocolVersion':'2025-06-18'}}", (int)expect("initialize"));
	expect("notifications/initialized");
	expect("tools/call");
	finish();
	/* One that ends in any case is not started for ever. */
	begin();
	ask(&late, -1);
	end_process(processes, 1);
	while (n_started < 2)
		turn();
	end_process(processes, 1);
	assert_true(turn_until(late_done));
	assert_int_equal(late.code, CELL_E_TOOL);
	assert_int_equal(n_started, 2);
	finish();
}

#define QUESTION "{'method':'elicitation/create','params':{'message':'who?','requestedSchema':{'type':'object','properties':{}}}}"

static void test_modern_questions(void **state)
{
	(void)state;
	struct asked a;
	int id;
	begin_with(true);
	make_modern();
	ask(&a, 100);
	json_t *first = heard_modern("tools/call", &id);
	assert_non_null(json_object_get(json_object_get(meta_of(first), "io.modelcontextprotocol/clientCapabilities"), "elicitation"));
	json_decref(first);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'input_required','requestState':'s1','inputRequests':{'a':" QUESTION
	     ",'b':" QUESTION "}}}",
	     id);
	struct cell__mcp_elicitation *second = question;
	assert_ptr_equal(question_of, &a.request);
	assert_non_null(second);
	expect_nothing();
	/* While a person is asked, neither the clock nor the old id ends the call. */
	for (int i = 0; i < 150; i++) {
		turn();
		usleep(1000);
	}
	sayf("{'jsonrpc':'2.0','id':%d,'result':{}}", id);
	assert_int_equal(a.done, 0);
	cell__mcp_elicitation_answer(second, "accept", json_pack("{s:s}", "name", "me"));
	expect_nothing();
	cell__mcp_elicitation_answer(questions[0], "decline", NULL);
	int again;
	json_t *retry = heard_modern("tools/call", &again);
	json_t *params = json_object_get(retry, "params");
	assert_int_not_equal(again, id);
	assert_string_equal(json_string_value(json_object_get(params, "requestState")), "s1");
	char *responses = json_dumps(json_object_get(params, "inputResponses"), JSON_COMPACT | JSON_SORT_KEYS);
	assert_string_equal(responses, "{\"a\":{\"action\":\"decline\"},\"b\":{\"action\":\"accept\",\"content\":{\"name\":\"me\"}}}");
	free(responses);
	json_decref(retry);
	/* Without questions it is made again at once, and only so often. */
	for (unsigned i = 1; i < CELL_MCP_LIMIT_ROUNDS; i++) {
		sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'input_required'}}", again);
		retry = heard_modern("tools/call", &again);
		assert_null(json_object_get(json_object_get(retry, "params"), "requestState"));
		assert_null(json_object_get(json_object_get(retry, "params"), "inputResponses"));
		json_decref(retry);
	}
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'input_required'}}", again);
	assert_int_equal(a.code, CELL_E_LIMIT);
	finish();
}

static void fail_round(const char *result, int code)
{
	struct asked a;
	begin();
	make_modern();
	ask(&a, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'result':%s}", expect_modern("tools/call"), result);
	assert_int_equal(a.done, 1);
	assert_int_equal(a.code, code);
	expect_nothing();
	finish();
}

static void test_results_that_are_not_understood(void **state)
{
	(void)state;
	fail_round("{'resultType':'surprise'}", CELL_E_PROTOCOL);
	fail_round("{'resultType':7}", CELL_E_PROTOCOL);
	fail_round("{'resultType':'input_required','requestState':7}", CELL_E_PROTOCOL);
	fail_round("{'resultType':'input_required','inputRequests':[]}", CELL_E_PROTOCOL);
	fail_round("{'resultType':'input_required','inputRequests':{'a':" QUESTION "}}", CELL_E_TOOL); /* nobody answers */
	fail_round("{'resultType':'task'}", CELL_E_PROTOCOL);
	fail_round("{'resultType':'task','taskId':''}", CELL_E_PROTOCOL);
}

static void test_modern_tasks(void **state)
{
	(void)state;
	struct asked a;
	int id;
	begin_with(true);
	make_modern();
	ask(&a, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'task','taskId':'t1','status':'working','pollIntervalMs':1}}",
	     expect_modern("tools/call"));
	assert_true(turn_until(said_something));
	json_t *get = heard_modern("tasks/get", &id);
	assert_string_equal(json_string_value(json_object_get(json_object_get(get, "params"), "taskId")), "t1");
	json_decref(get);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'taskId':'t1','status':'input_required','inputRequests':{'k':" QUESTION "}}}", id);
	cell__mcp_elicitation_answer(question, "accept", json_object());
	sayf("{'jsonrpc':'2.0','id':%d,'result':{}}", expect_modern("tasks/update"));
	/* The server has not read the answer yet: nobody is asked again, but what is new is. */
	question = NULL;
	for (int i = 0; i < 2 * (int)CELL_MCP_LIMIT_ROUNDS; i++) {
		assert_true(turn_until(said_something));
		sayf("{'jsonrpc':'2.0','id':%d,'result':{'taskId':'t1','status':'input_required','inputRequests':{'k':" QUESTION "}}}",
		     expect_modern("tasks/get"));
		assert_null(question);
	}
	assert_true(turn_until(said_something));
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'taskId':'t1','status':'input_required','inputRequests':{'k':" QUESTION ",'l':" QUESTION
	     "}}}",
	     expect_modern("tasks/get"));
	assert_non_null(question);
	cell__mcp_elicitation_answer(question, "decline", NULL);
	json_t *update = heard_modern("tasks/update", &id);
	char *responses = json_dumps(json_object_get(json_object_get(update, "params"), "inputResponses"), JSON_COMPACT);
	assert_string_equal(responses, "{\"l\":{\"action\":\"decline\"}}");
	free(responses);
	json_decref(update);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{}}", id);
	assert_true(turn_until(said_something));
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'taskId':'t1','status':'completed','result':{'x':2}}}", expect_modern("tasks/get"));
	assert_string_equal(a.text, "{\"x\":2}");
	/* One that fails, one that nobody waits for, one that takes too long. */
	ask(&a, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'task','taskId':'t2','status':'failed','error':{'code':-1,'message':'oh'}}}",
	     expect_modern("tools/call"));
	assert_string_equal(a.text, "oh");
	ask(&a, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'task','taskId':'t3','status':'working'}}", expect_modern("tools/call"));
	cell__mcp_request_cancel(&a.request, "enough");
	sayf("{'jsonrpc':'2.0','id':%d,'result':{}}", expect_modern("tasks/cancel"));
	assert_int_equal(a.done, 0);
	ask(&late, 30);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'task','taskId':'t4','status':'working'}}", expect_modern("tools/call"));
	assert_true(turn_until(late_done));
	assert_int_equal(late.code, CELL_E_TOOL_TIMEOUT);
	expect_modern("tasks/cancel");
	/* The server dies with a task. */
	ask(&a, -1);
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'task','taskId':'t5','status':'working'}}", expect_modern("tools/call"));
	end_process(processes, 0);
	assert_true(turn_until(all_dead));
	assert_int_equal(a.code, CELL_E_TOOL);
	finish();
}

static void test_listening(void **state)
{
	(void)state;
	begin();
	cell__mcp_client_list(client);
	greet_modern("{'tools':{'listChanged':true},'logging':{}}");
	int id = expect_modern("tools/list"), listening = expect_modern("subscriptions/listen");
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[],'ttlMs':60000}}", id);
	assert_false(cell__mcp_client_stale(client));
	sayf("{'jsonrpc':'2.0','method':'notifications/subscriptions/acknowledged','params':{}}");
	sayf("{'jsonrpc':'2.0','method':'notifications/tools/list_changed','params':{}}");
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[],'ttlMs':60000}}", expect_modern("tools/list"));
	assert_int_equal(n_listed, 2);
	/* The stream ends: it is opened again, and the list is read again. */
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'resultType':'complete'}}", listening);
	expect_nothing();
	assert_true(turn_until(said_something));
	listening = expect_modern("subscriptions/listen");
	expect_modern("tools/list");
	/* The server does not want it: that is all right. */
	sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-32601,'message':'no'}}", listening);
	expect_nothing();
	/* Log lines are asked for with each call. */
	ask(&late, -1);
	json_t *call = heard_modern("tools/call", &id);
	assert_string_equal(json_string_value(json_object_get(meta_of(call), "io.modelcontextprotocol/logLevel")), "info");
	json_decref(call);
	finish();
}

static void test_modern_timeouts(void **state)
{
	(void)state;
	begin();
	make_modern();
	ask(&late, 20);
	int id = expect_modern("tools/call");
	assert_true(turn_until(late_done));
	json_t *note = heard();
	assert_string_equal(json_string_value(json_object_get(note, "method")), "notifications/cancelled");
	assert_int_equal(json_integer_value(json_object_get(json_object_get(note, "params"), "requestId")), id);
	json_decref(note);
	expect_modern("server/discover"); /* there is no ping */
	finish();
}

/* ---- parameters as headers ---- */

static void check_schema(const char *schema, int count)
{
	char *text = strdup(schema);
	for (char *at = text; *at; at++)
		if (*at == '\'')
			*at = '"';
	json_t *json = json_loads(text, 0, NULL);
	const char *why = "";
	assert_non_null(json);
	assert_int_equal(cell__param_headers_check(json, &why), count);
	assert_true(count >= 0 || *why);
	json_decref(json);
	free(text);
}

static void test_param_headers(void **state)
{
	(void)state;
	check_schema("{'properties':{'a':{'type':'string'}}}", 0);
	check_schema("{'properties':{'a':{'type':'string','x-mcp-header':'A'},'o':{'type':'object','properties':{'b':{'type':'integer',"
		     "'x-mcp-header':'B'}}}}}",
		     2);
	check_schema("{'properties':{'x-mcp-header':{'type':'string'}}}", 0); /* a parameter of that name */
	check_schema("{'properties':{'a':{'type':'string','x-mcp-header':''}}}", -1);
	check_schema("{'properties':{'a':{'type':'string','x-mcp-header':'a b'}}}", -1);
	check_schema("{'properties':{'a':{'type':'string','x-mcp-header':7}}}", -1);
	check_schema("{'properties':{'a':{'type':'number','x-mcp-header':'A'}}}", -1);
	check_schema("{'properties':{'a':{'type':'string','x-mcp-header':'A'},'b':{'type':'string','x-mcp-header':'a'}}}", -1);
	check_schema("{'properties':{'a':{'type':'array','items':{'type':'string','x-mcp-header':'A'}}}}", -1);
	check_schema("{'oneOf':[{'properties':{'a':{'type':'string','x-mcp-header':'A'}}}]}", -1);
	check_schema("{'$defs':{'d':{'type':'string','x-mcp-header':'A'}}}", -1);
	check_schema("{'x-mcp-header':'A','type':'string'}", -1);
	json_t *schema = json_loads(
		"{\"properties\":{\"s\":{\"x-mcp-header\":\"S\"},\"i\":{\"x-mcp-header\":\"I\"},\"b\":{\"x-mcp-header\":\"B\"},"
		"\"n\":{\"x-mcp-header\":\"N\"},\"o\":{\"properties\":{\"d\":{\"x-mcp-header\":\"D\"}}}}}",
		0, NULL);
	json_t *args = json_pack("{s:s, s:i, s:b, s:n, s:{s:s}}", "s", "gr\xc3\xbc\xc3\x9f", "i", 7, "b", 1, "n", "o", "d", " padded");
	struct cell__header_list list = { 0 };
	assert_int_equal(cell__param_headers_add(&list, schema, args, NULL), 0);
	assert_int_equal(list.count, 4);
	assert_string_equal(list.lines[0], "Mcp-Param-S: =?base64?Z3LDvMOf?=");
	assert_string_equal(list.lines[1], "Mcp-Param-I: 7");
	assert_string_equal(list.lines[2], "Mcp-Param-B: true");
	assert_string_equal(list.lines[3], "Mcp-Param-D: =?base64?IHBhZGRlZA==?=");
	struct cell_error err;
	json_object_set_new(args, "i", json_integer(9007199254740992));
	assert_int_equal(cell__param_headers_add(&list, schema, args, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell__header_list_finish(&list);
	assert_int_equal(cell__header_list_add(&list, "N", "=?base64?x?="), 0);
	assert_int_equal(cell__header_list_add(&list, "N", "a\r\nEvil: 1"), 0);
	assert_string_equal(list.lines[0], "N: =?base64?PT9iYXNlNjQ/eD89?=");
	assert_null(strchr(list.lines[1], '\n'));
	cell__header_list_finish(&list);
	json_decref(schema);
	json_decref(args);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_modern_start),
		cmocka_unit_test(test_modern_versions),
		cmocka_unit_test(test_probe_that_is_not_answered),
		cmocka_unit_test(test_death_at_the_probe),
		cmocka_unit_test(test_modern_questions),
		cmocka_unit_test(test_results_that_are_not_understood),
		cmocka_unit_test(test_modern_tasks),
		cmocka_unit_test(test_listening),
		cmocka_unit_test(test_modern_timeouts),
		cmocka_unit_test(test_param_headers),
	};
	return cmocka_run_group_tests_name("mcp_client_modern", tests, NULL, NULL);
}
