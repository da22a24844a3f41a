/*
 * The server's side of MCP: a peer without a session, fed with messages; who may come in by HTTP; and one client on two pipes,
 * with a real session.
 */
#define _GNU_SOURCE
#include "support.h"

#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <unistd.h>

#include "mcp/server/server.h"
#include "mcp/server/uri.h"

/* ---- a peer that runs nothing ---- */

static struct cell_mcp_server server;
static struct cell__mcp_peer *peer;
static struct cell__mcp_handle home;
static json_t *sent;
static size_t n_last;

static void hear(void *arg, void *stream, const char *text, size_t size, bool last)
{
	(void)arg, (void)stream;
	n_last += last;
	if (!text)
		return;
	json_t *message = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
	CHECK(message && !memchr(text, '\n', size));
	json_array_append_new(sent, message);
}

static bool is_full(void *arg, void *stream)
{
	(void)arg, (void)stream;
	return false;
}

static void begin(void)
{
	struct cell__mcp_sink sink = { hear, is_full, NULL, NULL };
	server = (struct cell_mcp_server){ .opts = CELL_MCP_SERVER_OPTIONS_INIT };
	pthread_mutex_init(&server.lock, NULL);
	server.tools = cell__mcp_tools_list(&server.opts);
	sent = json_array();
	peer = cell__mcp_peer_create(&server, &sink, "tests", false, NULL);
	assert_non_null(peer);
	/* A session without a thread is not opened, without room for others none is made, and nothing is called. */
	server.opts.max_sessions = 0;
	home = (struct cell__mcp_handle){ .server = &server, .serial = 7, .home = peer, .is_home = true };
	strcpy(home.owner, "tests");
	cell__mcp_cond_init(&home.changed);
	server.handles = peer->home = &home;
	peer->n_workers = CELL_MCP_MAX_CALLS;
}

static void finish(void)
{
	peer->n_workers = 0;
	while (home.cells) {
		struct cell__mcp_job *job = home.cells;
		home.cells = job->after;
		cell__mcp_job_answer(job, NULL);
	}
	assert_int_equal(cell__mcp_peer_destroy(peer, true, NULL), 0);
	pthread_cond_destroy(&home.changed);
	json_decref(server.tools);
	json_decref(sent);
	pthread_mutex_destroy(&server.lock);
}

/* What is sent for a text, as JSON in the order of keys; `n`: how many requests it says there are. */
static void expect(const char *text, size_t n, const char *wanted)
{
	json_array_clear(sent);
	n_last = 0;
	size_t found = cell__mcp_peer_feed(peer, text, strlen(text), NULL, NULL, NULL);
	CELL_AUTO_FREE char *shown = json_dumps(sent, JSON_COMPACT | JSON_SORT_KEYS);
	if (found != n || n_last != (n > 0))
		fail_msg("%s: %zu requests, %zu ends", text, found, n_last);
	if (wanted)
		assert_string_equal(shown, wanted);
}

#define HELLO(version, capabilities)                                                                         \
	"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"" version \
	"\",\"capabilities\":" capabilities "}}"
#define ERROR(id, code, words) "[{\"error\":{\"code\":" code ",\"message\":\"" words "\"},\"id\":" id ",\"jsonrpc\":\"2.0\"}]"

static void test_messages(void **state)
{
	(void)state;
	begin();
	expect("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}", 1, "[{\"id\":1,\"jsonrpc\":\"2.0\",\"result\":{}}]");
	expect("{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/list\"}", 1, ERROR("2", "-32600", "the first request must be initialize"));
	expect("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}", 1, ERROR("1", "-32602", "initialize needs protocolVersion"));
	expect(HELLO("1999-01-01", "{}"), 1, NULL);
	assert_string_equal(peer->version, "2025-11-25");
	assert_false(peer->elicits);
	expect(HELLO("2025-06-18", "{}"), 1, ERROR("1", "-32600", "the connection is already initialized"));
	expect("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}", 0, "[]");
	expect("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"nothing\"}", 1, ERROR("3", "-32601", "Method not found: nothing"));
	expect("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\",\"params\":[]}", 1, ERROR("3", "-32602", "params must be an object"));
	expect("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/list\",\"params\":{\"cursor\":\"x\"}}", 1,
	       ERROR("3", "-32602", "unknown cursor: the list of tools has one page"));
	expect("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"no\"}}", 1,
	       ERROR("3", "-32602", "Unknown tool: no"));
	expect("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"reset\",\"arguments\":1}}", 1,
	       ERROR("3", "-32602", "arguments must be an object"));
	expect("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"logging/setLevel\",\"params\":{\"level\":\"loud\"}}", 1, NULL);
	assert_int_equal(peer->log_level, -1);
	expect("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"logging/setLevel\",\"params\":{\"level\":\"error\"}}", 1, NULL);
	assert_int_equal(peer->log_level, 4);
	/* Answers to what was not asked, and cancellations of what is not there, are nothing. */
	expect("{\"jsonrpc\":\"2.0\",\"id\":77,\"result\":{}}", 0, "[]");
	expect("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":5}}", 0, "[]");
	expect("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\"}", 0, "[]");
	expect("no JSON", 1, NULL);
	expect("[]", 1, NULL);
	finish();
}

static void test_calls(void **state)
{
	(void)state;
	begin();
	expect(HELLO("2025-03-26", "{}"), 1, NULL);
	expect("{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"run_code\"}}", 1, NULL);
	CELL_AUTO_FREE char *refused = json_dumps(sent, JSON_COMPACT | JSON_SORT_KEYS);
	assert_non_null(strstr(refused, "argument 'code' is missing"));
	assert_non_null(strstr(refused, "\"isError\":true"));
	expect("{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"list_tools\"}}", 1,
	       "[{\"id\":2,\"jsonrpc\":\"2.0\",\"result\":{\"content\":[{\"text\":\"too many calls are pending; wait for some of them\","
	       "\"type\":\"text\"}],\"isError\":true}}]");
	/* A cell waits; its id is taken, it can be cancelled, and then it is not answered. */
	const char *cell =
		"{\"jsonrpc\":\"2.0\",\"id\":\"c\",\"method\":\"tools/call\",\"params\":{\"name\":\"run_code\",\"arguments\":{\"code\":\"1\"}}}";
	json_array_clear(sent);
	n_last = 0;
	assert_int_equal(cell__mcp_peer_feed(peer, cell, strlen(cell), NULL, NULL, NULL), 1);
	assert_int_equal(n_last, 0);
	expect(cell, 1, ERROR("\"c\"", "-32600", "a request with this id is already pending"));
	expect("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"c\"}}", 0, "[]");
	struct cell__mcp_job *job = home.cells;
	assert_true(job->request->cancelled);
	home.cells = home.last_cell = NULL;
	home.n_cells = 0;
	struct cell__mcp_answer_out out = { .content = json_array() };
	cell__mcp_job_answer(job, &out);
	assert_int_equal(json_array_size(sent), 0);
	assert_int_equal(n_last, 1);
	/* The answers of a batch leave together. */
	expect("[{\"jsonrpc\":\"2.0\",\"id\":8,\"method\":\"ping\"},{\"jsonrpc\":\"2.0\",\"method\":\"x\"},5,{\"jsonrpc\":\"2.0\",\"id\":9,\"method\":\"ping\"}]",
	       3, NULL);
	assert_int_equal(json_array_size(sent), 1);
	assert_int_equal(json_array_size(json_array_get(sent, 0)), 3);
	expect("[{\"jsonrpc\":\"2.0\",\"method\":\"x\"}]", 0, "[]");
	finish();
}

static void test_questions(void **state)
{
	(void)state;
	begin();
	expect(HELLO("2025-11-25", "{\"elicitation\":{\"url\":{}}}"), 1, NULL);
	assert_false(peer->elicits); /* it can show pages, not forms */
	for (size_t i = 0; i < CELL_MCP_MAX_QUESTIONS; i++)
		assert_true(cell__mcp_peer_ask(peer, NULL, json_object(), 99, i + 1, i % 2));
	assert_false(cell__mcp_peer_ask(peer, NULL, json_object(), 99, 999, false));
	expect("{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"action\":\"accept\"}}", 0, "[]");
	expect("{\"jsonrpc\":\"2.0\",\"id\":2,\"error\":{\"code\":1,\"message\":\"\"}}", 0, "[]");
	assert_int_equal(peer->n_questions, CELL_MCP_MAX_QUESTIONS - 2);
	json_array_clear(sent);
	cell__mcp_peer_forget(peer, NULL, 99, 3, "expired");
	cell__mcp_peer_forget(peer, NULL, 99, 3, "expired");
	CELL_AUTO_FREE char *shown = json_dumps(sent, JSON_COMPACT | JSON_SORT_KEYS);
	assert_string_equal(
		shown,
		"[{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"reason\":\"expired\",\"requestId\":3}}]");
	finish();
}

/* ---- one client on two pipes ---- */

struct serving {
	struct cell_mcp_server *server;
	int in, out, rc;
};

static void *serve(void *arg)
{
	struct serving *serving = arg;
	serving->rc = cell_mcp_server_run(serving->server, serving->in, serving->out, NULL);
	close(serving->out);
	return NULL;
}

static void test_pipes(void **state)
{
	(void)state;
	struct cell_space_options space_opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_mcp_server_options opts = CELL_MCP_SERVER_OPTIONS_INIT;
	struct cell_engine *engine = support_engine(0);
	struct serving serving = { 0 };
	struct cell_error err;
	int in[2], out[2];
	pthread_t thread;
	char chunk[4096];
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	space_opts.cwd = "/tmp";
	assert_int_equal(cell_space_open(engine, &space_opts, &opts.space, &err), 0);
	opts.storage = 0;
	assert_int_equal(cell_mcp_server_create(engine, &(struct cell_mcp_server_options){ .size = 1 }, &serving.server, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	assert_int_equal(cell_mcp_server_create(engine, &opts, &serving.server, &err), 0);
	assert_int_equal(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC), 0);
	serving.in = in[0];
	serving.out = out[1];
	assert_int_equal(pthread_create(&thread, NULL, serve, &serving), 0);
	static const char *const lines[] = {
		HELLO("2025-11-25", "{}") "\n{\"jsonrpc\":\"2.0\",",
		("\"id\":2,\"method\":\"tools/call\",\"params\":{\"name\":\"run_code\","
		 "\"arguments\":{\"code\":\"6 * 7\"}}}\n\n"),
		"{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"ping\"}\n",
	};
	for (size_t i = 0; i < COUNT(lines); i++)
		assert_int_equal(write(in[1], lines[i], strlen(lines[i])), strlen(lines[i]));
	/* The input stays open until the cell is answered. */
	while (!text.data || !strstr(text.data, "\"id\":2")) {
		ssize_t n = read(out[0], chunk, sizeof chunk);
		assert_true(n > 0);
		assert_int_equal(cell__buf_add(&text, chunk, (size_t)n), 0);
	}
	close(in[1]);
	while (read(out[0], chunk, sizeof chunk) > 0)
		;
	pthread_join(thread, NULL);
	assert_int_equal(serving.rc, 0);
	assert_non_null(strstr(text.data, "\"value\":42"));
	close(in[0]);
	close(out[0]);
	cell_mcp_server_destroy(serving.server);
	cell_space_close(opts.space);
	cell_engine_destroy(engine);
}

/* ---- URIs and content ---- */

static void expect_match(const char *template, const char *uri, const char *wanted)
{
	json_t *values = cell__mcp_template_match(template, uri);
	CELL_AUTO_FREE char *text = values ? json_dumps(values, JSON_COMPACT) : cell__strdup("no");
	assert_string_equal(text, wanted);
	json_decref(values);
}

static void test_uris(void **state)
{
	(void)state;
	assert_int_equal(cell__mcp_template_check("app://x"), 0);
	assert_int_equal(cell__mcp_template_check("app://{a}/{+b}"), 2);
	static const char *const wrong[] = { "",         "x",       "1a:b",         "a b:c",       "app://{",
					     "app://{}", "app://}", "app://{a}{b}", "app://{a b}", "app://x y" };
	for (size_t i = 0; i < COUNT(wrong); i++)
		assert_int_equal(cell__mcp_template_check(wrong[i]), -1);
	CELL_AUTO_BUF struct cell__buf many = CELL_BUF_INIT;
	cell__buf_add_str(&many, "a:");
	for (int i = 0; i < CELL_MCP_MAX_VARIABLES; i++)
		cell__buf_printf(&many, "{v}/");
	assert_int_equal(cell__mcp_template_check(many.data), CELL_MCP_MAX_VARIABLES);
	cell__buf_add_str(&many, "{v}");
	assert_int_equal(cell__mcp_template_check(many.data), -1);
	CELL_AUTO_FREE char *longest = cell__alloc(1, CELL_MCP_MAX_URI + 2);
	memset(longest, 'a', CELL_MCP_MAX_URI);
	longest[1] = ':';
	assert_int_equal(cell__mcp_template_check(longest), 0);
	longest[CELL_MCP_MAX_URI] = 'a';
	assert_int_equal(cell__mcp_template_check(longest), -1);
	expect_match("app://{a}/x/{+b}", "app://1/x/2/3", "{\"a\":\"1\",\"b\":\"2/3\"}");
	expect_match("app://{a}", "app://", "no");
	expect_match("app://{a}", "app://1/2", "no");
	expect_match("app://{a}/x", "app://1/y", "no");
	expect_match("app://{a}", "app://%41%2f", "{\"a\":\"A/\"}");
	expect_match("app://{a}", "app://%00", "no");
	expect_match("app://{a}", "app://%f", "no");
	expect_match("app://x", "app://x", "{}");
	expect_match("app://x", "app://xy", "no");
	CELL_AUTO_FREE char *none = cell__mcp_uri_name("workcell://artifacts/", CELL_MCP_ARTIFACTS);
	assert_null(none);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_messages), TEST(test_calls), TEST(test_questions), TEST(test_pipes), TEST(test_uris),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
