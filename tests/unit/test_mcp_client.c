/*
 * mcp/client: its states, on a stand-in for spawn/process.h.  The test is the server: it sees what the client wrote
 * and puts words into its mouth, all on one thread.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <uv.h>

#include "calls/table.h"
#include "mcp/client/client.h"
#include "mcp/client/param_headers.h"
#include "spawn/confinement.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- a process that is none ---- */

struct cell__process {
	struct cell__process_spec spec;
	struct cell__buf written; /* lines that the client sent */
	uv_timer_t end;
	bool stdin_closed, killed, ended;
	struct cell__process_exit how;
	struct cell__process *next;
};

/* A stand-in for loop/loop.c as well: the test turns it by hand. */
struct cell__loop {
	uv_loop_t uv;
};

uv_loop_t *cell__loop_uv(struct cell__loop *loop)
{
	return &loop->uv;
}

void cell__loop_expect(struct cell__loop *loop)
{
	(void)loop;
}

/* calls/check.c is linked for the defaults of forms alone. */
const struct cell__operation *cell__operation_find(const char *method)
{
	(void)method;
	return NULL;
}

bool cell__operation_is_open_to(const struct cell__operation *operation, const struct cell__principal *principal)
{
	(void)operation, (void)principal;
	return false;
}

static struct cell__loop loop;
static struct cell__process *processes; /* the newest first */
static unsigned n_started, n_alive;
static int start_error;

static void handle_freed(uv_handle_t *handle)
{
	struct cell__process *process = handle->data;
	cell__buf_finish(&process->written);
	free(process);
}

static void handle_end(uv_timer_t *timer)
{
	struct cell__process *process = timer->data;
	for (struct cell__process **at = &processes; *at; at = &(*at)->next)
		if (*at == process) {
			*at = process->next;
			break;
		}
	n_alive--;
	process->spec.exited(process->spec.owner, &process->how);
	uv_close((uv_handle_t *)timer, handle_freed);
}

static void end_process(struct cell__process *process, int status)
{
	if (process->ended)
		return;
	process->ended = true;
	process->how.status = status;
	process->how.killed = process->killed;
	uv_timer_start(&process->end, handle_end, 0, 0);
}

void cell__confinement_unref(struct cell__confinement *confinement)
{
	assert_null(confinement);
}

int cell__process_start(struct cell__supervisor *supervisor, const struct cell__process_spec *spec, struct cell__process **ret_process,
			struct cell_error *err)
{
	(void)supervisor;
	if (start_error)
		return cell_fail(err, CELL_E_IO, start_error, "start it");
	struct cell__process *process = calloc(1, sizeof *process);
	process->spec = *spec;
	process->end.data = process;
	uv_timer_init(&loop.uv, &process->end);
	process->next = processes;
	processes = process;
	n_started++;
	n_alive++;
	*ret_process = process;
	return 0;
}

int cell__process_write(struct cell__process *process, const void *bytes, size_t size, struct cell_error *err)
{
	if (process->stdin_closed || process->ended)
		return cell_fail(err, CELL_E_CLOSED, 0, "closed");
	return cell__buf_add(&process->written, bytes, size);
}

size_t cell__process_unread(const struct cell__process *process)
{
	(void)process;
	return 0;
}

void cell__process_close_stdin(struct cell__process *process)
{
	process->stdin_closed = true;
	end_process(process, 0); /* an honest server */
}

void cell__process_kill(struct cell__process *process)
{
	process->killed = true;
	end_process(process, 0);
}

/* ---- the server's side ---- */

static void turn(void)
{
	uv_run(&loop.uv, UV_RUN_NOWAIT);
}

static bool turn_until(bool (*condition)(void))
{
	for (int i = 0; i < 20000 && !condition(); i++) {
		turn();
		usleep(500);
	}
	return condition();
}

static void say(const char *line)
{
	processes->spec.output(processes->spec.owner, CELL_STDOUT, line, strlen(line));
	if (processes)
		processes->spec.output(processes->spec.owner, CELL_STDOUT, "\n", 1);
}

static void sayf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void sayf(const char *fmt, ...)
{
	char *line = NULL;
	va_list ap;
	va_start(ap, fmt);
	assert_true(vasprintf(&line, fmt, ap) > 0);
	va_end(ap);
	/* ' stands for ". */
	for (char *at = line; *at; at++)
		if (*at == '\'')
			*at = '"';
	say(line);
	free(line);
}

/* The next message from the client; NULL: there is none.  Decref it. */
static json_t *heard(void)
{
	struct cell__buf *written = &processes->written;
	char *end = written->size ? memchr(written->data, '\n', written->size) : NULL;
	if (!end)
		return NULL;
	json_t *message = json_loadb(written->data, (size_t)(end - written->data), 0, NULL);
	assert_non_null(message);
	cell__buf_shift(written, (size_t)(end - written->data) + 1);
	return message;
}

/* The client must have asked this; its id. */
static int64_t expect(const char *method)
{
	json_t *message = heard();
	if (!message)
		fail_msg("the client said nothing, where %s was expected", method);
	assert_string_equal(json_string_value(json_object_get(message, "method")), method);
	int64_t id = json_integer_value(json_object_get(message, "id"));
	json_decref(message);
	return id;
}

static void expect_nothing(void)
{
	json_t *message = heard();
	assert_null(message);
}

/* The client's request to initialize, after its probe for the modern era, unless it knows better.  Decref it. */
static json_t *heard_initialize(void)
{
	json_t *message = heard();
	assert_non_null(message);
	if (strcmp(json_string_value(json_object_get(message, "method")), "server/discover") == 0) {
		sayf("{'jsonrpc':'2.0','id':%d,'error':{'code':-32601,'message':'?'}}",
		     (int)json_integer_value(json_object_get(message, "id")));
		json_decref(message);
		message = heard();
	}
	assert_string_equal(json_string_value(json_object_get(message, "method")), "initialize");
	return message;
}

static int expect_initialize(void)
{
	json_t *message = heard_initialize();
	int id = (int)json_integer_value(json_object_get(message, "id"));
	json_decref(message);
	return id;
}

/* From initialize to the empty list of tools. */
static void greet(void)
{
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'protocolVersion':'2025-06-18','capabilities':{},'serverInfo':{'name':'x'}}}",
	     expect_initialize());
	expect("notifications/initialized");
}

static void list_nothing(void)
{
	sayf("{'jsonrpc':'2.0','id':%d,'result':{'tools':[]}}", (int)expect("tools/list"));
}

/* ---- the owner's side ---- */

static struct cell__mcp_client *client;
static unsigned n_listed, n_closed, n_ended, n_logged;
static int listed_code;
static char listed_msg[240], listed_tail[256];
static int launch_error;

static int handle_launch(void *arg, struct cell__mcp_launch *ret_launch, struct cell_error *err)
{
	(void)arg;
	if (launch_error)
		return cell_fail(err, launch_error, 0, "no launch");
	*ret_launch = (struct cell__mcp_launch){ .kind = CELL_MCP_STDIO };
	ret_launch->argv = cell__alloc(2, sizeof(char *));
	ret_launch->argv[0] = cell__strdup("program");
	ret_launch->env = cell__alloc(1, sizeof(char *));
	ret_launch->path = cell__strdup("/bin");
	ret_launch->cwd = cell__strdup("/");
	return 0;
}

static void handle_listed(void *arg, const struct cell__mcp_failure *failure)
{
	(void)arg;
	n_listed++;
	listed_code = failure ? failure->err.code : 0;
	snprintf(listed_msg, sizeof listed_msg, "%s", failure ? failure->err.msg : "");
	snprintf(listed_tail, sizeof listed_tail, "%s", failure && failure->tail ? failure->tail : "");
}

static void handle_ended(void *arg)
{
	(void)arg;
	n_ended++;
}

static void handle_log(void *arg, const json_t *params)
{
	(void)arg;
	(void)params;
	n_logged++;
}

static struct cell__mcp_elicitation *question, *questions[4]; /* and those before it, the last one first */
static struct cell__mcp_request *question_of;

static void handle_elicit(void *arg, struct cell__mcp_elicitation *elicitation, struct cell__mcp_request *request, const json_t *params)
{
	(void)arg;
	assert_string_equal(json_string_value(json_object_get(params, "message")), "who?");
	memmove(questions + 1, questions, sizeof questions - sizeof *questions);
	questions[0] = question;
	question = elicitation;
	question_of = request;
}

static void handle_closed(void *arg)
{
	(void)arg;
	n_closed++;
}

static bool closing;

static void close_client(void)
{
	closing = true;
	cell__mcp_client_close(client, handle_closed, NULL);
}

static bool is_closed(void)
{
	return n_closed > 0 && n_alive == 0;
}

static void begin_with(bool asks)
{
	assert_int_equal(uv_loop_init(&loop.uv), 0);
	n_listed = n_closed = n_ended = n_logged = n_started = n_alive = 0;
	start_error = launch_error = 0;
	closing = false;
	question = NULL;
	struct cell__mcp_client_options opts = {
		.loop = &loop,
		.start_timeout_ms = 20000,
		.launch = handle_launch,
		.listed = handle_listed,
		.ended = handle_ended,
		.log = handle_log,
		.elicit = asks ? handle_elicit : NULL,
	};
	assert_int_equal(cell__mcp_client_create(&opts, &client, NULL), 0);
}

static void begin(void)
{
	begin_with(false);
}

static void finish(void)
{
	if (!closing)
		close_client();
	assert_true(turn_until(is_closed));
	uv_run(&loop.uv, UV_RUN_DEFAULT);
	assert_int_equal(uv_loop_close(&loop.uv), 0);
	assert_int_equal(n_closed, 1);
}

struct asked {
	struct cell__mcp_request request;
	unsigned done, progress;
	int code;
	char text[240]; /* of the failure, or the result as JSON */
	bool close_then;
};

static void handle_done(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct asked *asked = (struct asked *)request;
	asked->done++;
	if (answer->failure) {
		asked->code = answer->failure->err.code;
		snprintf(asked->text, sizeof asked->text, "%s", answer->failure->err.msg);
	} else {
		const json_t *shown = answer->message->kind == CELL__RPC_RESULT ? answer->message->result : NULL;
		char *text = shown ? json_dumps(shown, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
		snprintf(asked->text, sizeof asked->text, "%s", text ? text : answer->message->error_text);
		free(text);
	}
	if (asked->close_then)
		close_client();
}

static void handle_progress(struct cell__mcp_request *request, const json_t *params)
{
	(void)params;
	((struct asked *)request)->progress++;
}

static void ask(struct asked *asked, int64_t timeout_ms)
{
	*asked = (struct asked){
		.request = { .method = "tools/call",
			     .params = json_pack("{s:s}", "name", "t"),
			     .timeout_ms = timeout_ms,
			     .done = handle_done },
	};
	assert_int_equal(cell__mcp_request_start(client, &asked->request, NULL), 0);
	assert_int_equal(asked->done, 0);
}

/* Ready, with nothing under way. */
static void make_ready(void)
{
	cell__mcp_client_list(client);
	greet();
	list_nothing();
	assert_int_equal(n_listed, 1);
	assert_int_equal(listed_code, 0);
}

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

static struct asked late;

static bool late_done(void)
{
	return late.done > 0;
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

static bool all_dead(void)
{
	return n_alive == 0;
}

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
	return cmocka_run_group_tests_name("mcp_client", tests, NULL, NULL);
}
