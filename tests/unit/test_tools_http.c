/* tools: requests as they are built, and as a server on this machine sees them. */
#define _GNU_SOURCE
#include "tools_support.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- requests as data ---- */

static const char *const api = "name: api\n"
			       "type: http\n"
			       "base_url: https://h.example/v1/\n"
			       "headers: {Authorization: 'Bearer ${TOKEN}'}\n"
			       "endpoints:\n"
			       "  repo:\n"
			       "    path: /repos/{owner}/{repo_name}\n"
			       "    parameters:\n"
			       "      owner: {type: string}\n"
			       "      page: {type: integer, default: 1}\n"
			       "      flag: {type: boolean}\n"
			       "      label: {type: array}\n"
			       "      x_trace: {in: header}\n"
			       "    query: {fixed: a b, page: 7}\n"
			       "  make:\n"
			       "    method: post\n"
			       "    path: /items/{id}.json\n"
			       "    parameters:\n"
			       "      id: {type: integer}\n"
			       "      title: {type: string, required: true}\n"
			       "      meta: {type: object}\n"
			       "      dry: {in: query, type: boolean}\n"
			       "    body: {kind: thing, title: none}\n"
			       "  bare: {method: PUT, path: /bare}\n"
			       "  kill: {method: DELETE, path: /x, parameters: {why: {}, note: {in: body}}}\n"
			       "  fixed: {method: POST, path: /f, body: [1, 'two', null]}\n";

struct row {
	const char *endpoint;
	const char *args;
	const char *expected; /* "METHOD url\nheaders\nbody", or a part of the error behind "!" */
};

#define U "https://h.example/v1"
#define JSON_HEADER "Content-Type: application/json\n"

static const struct row rows[] = {
	{ "repo", "{'owner':'o','repo_name':'r'}", "GET " U "/repos/o/r?fixed=a%20b&page=1\n\n" },
	{ "repo", "{'owner':'o','repo_name':'r','page':3,'flag':true,'label':['a&b','c']}",
	  "GET " U "/repos/o/r?fixed=a%20b&page=3&flag=true&label=a%26b&label=c\n\n" },
	{ "repo", "{'owner':'a/../b','repo_name':'x?y#z%2f \\u00e9'}",
	  "GET " U "/repos/a%2F..%2Fb/x%3Fy%23z%252f%20%C3%A9?fixed=a%20b&page=1\n\n" },
	{ "repo", "{'owner':'..','repo_name':'r'}", "!must not be '.' or '..'" },
	{ "repo", "{'owner':'.','repo_name':'r'}", "!must not be '.' or '..'" },
	{ "repo", "{'owner':'','repo_name':'r'}", "!'owner' must not be empty" },
	{ "repo", "{'owner':'o'}", "!Required parameter 'repo_name' is missing" },
	{ "repo", "{'owner':5,'repo_name':'r'}", "!'owner' must be a string" },
	{ "repo", "{'owner':'a\\u0000','repo_name':'r'}", "!'owner' contains a NUL" },
	{ "repo", "{'owner':'o','repo_name':5}", "GET " U "/repos/o/5?fixed=a%20b&page=1\n\n" },
	{ "repo", "{'owner':'o','repo_name':'r','x_trace':'t1'}", "GET " U "/repos/o/r?fixed=a%20b&page=1\nx-trace: t1\n\n" },
	{ "repo", "{'owner':'o','repo_name':'r','x_trace':'a\\r\\nHost: evil'}", "!'x_trace' contains a control character" },
	{ "repo", "{'owner':'o','repo_name':'r','x_trace':'${TOKEN}'}", "GET " U "/repos/o/r?fixed=a%20b&page=1\nx-trace: ${TOKEN}\n\n" },
	{ "repo", "{'owner':'o','repo_name':'r','label':[{}]}", "!item 0 is an object" },
	{ "repo", "{'owner':'o','repo_name':'r','body':1}", "!Unknown argument 'body'. Known: owner, page, flag" },
	{ "make", "{'id':4,'title':'t'}", "POST " U "/items/4.json\n" JSON_HEADER "\n{\"kind\":\"thing\",\"title\":\"t\"}" },
	{ "make", "{'id':-4,'title':'\\u0000\\u2028','meta':{'a':[1,null]},'dry':false}",
	  "POST " U "/items/-4.json?dry=false\n" JSON_HEADER
	  "\n{\"kind\":\"thing\",\"title\":\"\\u0000\xe2\x80\xa8\",\"meta\":{\"a\":[1,null]}}" },
	{ "make", "{'id':4}", "!Required parameter 'title' is missing\nSignature: api.make(id: int, title: str," },
	{ "bare", "{}", "PUT " U "/bare\n\n" },
	{ "kill", "{'why':'x y'}", "DELETE " U "/x?why=x%20y\n\n" },
	{ "kill", "{'note':'n'}", "DELETE " U "/x\n" JSON_HEADER "\n{\"note\":\"n\"}" },
	{ "fixed", "{}", "POST " U "/f\n" JSON_HEADER "\n[1,\"two\",null]" },
};

static void check_row(const struct cell__tool_entry *tool, const struct row *row)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT, text = CELL_BUF_INIT;
	struct cell__httpreq req = { 0 };
	json_t *given = quick_json(row->args), *args = NULL;
	const struct cell__callable *endpoint = cell__tool_callable(tool, row->endpoint);
	int rc = cell__args_merge(tool, endpoint, given, &args, &why);
	if (rc == 0)
		rc = cell__httpreq_build(tool, endpoint, args, &req, &why);
	if (row->expected[0] == '!') {
		if (rc == 0 || !strstr(why.data, row->expected + 1))
			fail_msg("%s: not '%s' but %s", row->args, row->expected + 1, rc ? why.data : req.url);
	} else {
		if (rc < 0)
			fail_msg("%s: %s", row->args, why.data);
		cell__buf_printf(&text, "%s %s\n", req.method, req.url);
		for (size_t i = 0; i < req.n_headers; i++)
			cell__buf_printf(&text, "%s\n", req.headers[i]);
		cell__buf_printf(&text, "\n%s", req.body ? req.body : "");
		assert_string_equal(text.data, row->expected);
	}
	cell__httpreq_finish(&req);
	json_decref(given);
	json_decref(args);
}

static void test_requests(void **state)
{
	(void)state;
	struct cell__tool_entry *tool = load_ok(api);
	for (size_t i = 0; i < COUNT(rows); i++)
		check_row(tool, &rows[i]);
	cell__tool_unref(tool);
}

static void test_words(void **state)
{
	(void)state;
	assert_true(cell__http_same_origin("http://a/x", "HTTP://A:80/y?z"));
	assert_true(cell__http_same_origin("https://a:443", "https://a/"));
	assert_true(cell__http_same_origin("http://[::1]:8/x", "http://[::1]:8"));
	assert_false(cell__http_same_origin("http://a/", "https://a/"));
	assert_false(cell__http_same_origin("http://a/", "http://a:81/"));
	assert_false(cell__http_same_origin("http://a/", "http://a.b/"));
	assert_false(cell__http_same_origin("http://a/", "http://a@b/"));
	assert_false(cell__http_same_origin("http://a/", "/x"));
	assert_true(cell__http_is_json("application/json"));
	assert_true(cell__http_is_json("Application/JSON; charset=utf-8"));
	assert_true(cell__http_is_json("application/problem+json"));
	assert_false(cell__http_is_json("text/html"));
	assert_false(cell__http_is_json(NULL));
	assert_false(cell__http_is_json(""));
}

/* ---- a server ---- */

static struct {
	int listen_fd, port, stop_fd[2];
	pthread_t thread;
	atomic_int connections, requests, open;
} server;

static _Thread_local bool is_head;

static void reply(int fd, int status, const char *headers, const char *body, size_t size)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	cell__buf_printf(&out, "HTTP/1.1 %d X\r\n%sContent-Length: %zu\r\n\r\n", status, headers, size);
	cell__buf_add(&out, body, is_head ? 0 : size);
	for (size_t done = 0; done < out.size;) {
		ssize_t n = send(fd, out.data + done, out.size - done, MSG_NOSIGNAL);
		if (n < 0)
			return;
		done += (size_t)n;
	}
}

/* The request as JSON: method, target, headers, body. */
static void reply_echo(int fd, const char *request, size_t head_size, size_t body_size)
{
	CELL_AUTO_BUF struct cell__buf head = CELL_BUF_INIT;
	cell__buf_add(&head, request, head_size);
	json_t *headers = json_object();
	char *line, *rest = head.data, *first = strsep(&rest, "\n");
	char method[16], target[4096];
	if (sscanf(first, "%15s %4095s", method, target) != 2)
		abort();
	while ((line = strsep(&rest, "\n")) && *line != '\r') {
		char *colon = strchr(line, ':');
		line[strcspn(line, "\r")] = '\0';
		*colon = '\0';
		json_object_set_new(headers, line, json_string(colon + 2));
	}
	json_t *all = json_pack("{s:s, s:s, s:o, s:s#}", "method", method, "target", target, "headers", headers, "body",
				request + head_size, (int)body_size);
	char *text = json_dumps(all, JSON_INDENT(1));
	reply(fd, 200, "Content-Type: application/json; charset=utf-8\r\n", text, strlen(text));
	free(text);
	json_decref(all);
}

static bool stopping(void)
{
	struct pollfd p = { .fd = server.stop_fd[0], .events = POLLIN };
	return poll(&p, 1, 0) > 0;
}

static void hang(int fd)
{
	struct pollfd p[2] = { { .fd = server.stop_fd[0], .events = POLLIN }, { .fd = fd, .events = POLLRDHUP } };
	poll(p, 2, -1);
}

/* False: close the connection. */
static bool serve(int fd, const char *request, size_t head_size, size_t body_size)
{
	const char *target = strchr(request, ' ') + 1;
	static char big[2000000];
	char headers[256];
	atomic_fetch_add(&server.requests, 1);
	is_head = strncmp(request, "HEAD ", 5) == 0;
#define IS(path) (strncmp(target, path " ", sizeof path) == 0)
	if (IS("/text"))
		reply(fd, 200, "Content-Type: text/plain\r\n", "gr\xfc\xdf", 4);
	else if (IS("/empty"))
		reply(fd, 204, "Content-Type: application/json\r\n", "", 0);
	else if (IS("/nothing"))
		reply(fd, 200, "", "", 0);
	else if (IS("/badjson"))
		reply(fd, 200, "Content-Type: application/json\r\n", "{oops", 5);
	else if (IS("/bigint"))
		reply(fd, 200, "Content-Type: application/json\r\n", "[1,\r\n123456789012345678901234567890]\n", 37);
	else if (IS("/missing"))
		reply(fd, 404, "Content-Type: text/plain\r\n", "no such thing", 13);
	else if (IS("/leak"))
		reply(fd, 403, "", request, head_size);
	else if (IS("/floods")) {
		memset(big, 'x', sizeof big);
		reply(fd, 200, "", big, sizeof big);
	} else if (IS("/floodfail")) {
		memset(big, 'x', sizeof big);
		reply(fd, 500, "", big, sizeof big);
	} else if (IS("/moved"))
		reply(fd, 302, "Location: /echo/there\r\n", "", 0);
	else if (IS("/kept"))
		reply(fd, 307, "Location: ../echo/kept\r\n", "", 0);
	else if (IS("/round"))
		reply(fd, 301, "Location: /round\r\n", "", 0);
	else if (IS("/away")) {
		snprintf(headers, sizeof headers, "Location: http://localhost:%d/echo\r\n", server.port);
		reply(fd, 302, headers, "", 0);
	} else if (IS("/scheme"))
		reply(fd, 302, "Location: file:///etc/passwd\r\n", "", 0);
	else if (IS("/hang"))
		hang(fd);
	else if (IS("/drop"))
		return false;
	else
		reply_echo(fd, request, head_size, body_size);
	return !stopping();
}

static void *serve_connection(void *arg)
{
	int fd = (int)(intptr_t)arg;
	CELL_AUTO_BUF struct cell__buf in = CELL_BUF_INIT;
	for (;;) {
		char *end = in.data ? strstr(in.data, "\r\n\r\n") : NULL;
		size_t head = end ? (size_t)(end + 4 - in.data) : 0, body = 0;
		char *length = end ? strcasestr(in.data, "\r\nContent-Length:") : NULL;
		if (length && length < end)
			body = (size_t)atol(length + 17);
		if (end && in.size >= head + body) {
			if (!serve(fd, in.data, head, body))
				break;
			cell__buf_shift(&in, head + body);
			continue;
		}
		struct pollfd p[2] = { { .fd = fd, .events = POLLIN }, { .fd = server.stop_fd[0], .events = POLLIN } };
		char bytes[65536];
		poll(p, 2, -1);
		ssize_t n = p[1].revents ? 0 : read(fd, bytes, sizeof bytes);
		if (n <= 0)
			break;
		cell__buf_add(&in, bytes, (size_t)n);
	}
	close(fd);
	atomic_fetch_sub(&server.open, 1);
	return NULL;
}

static void *accept_all(void *arg)
{
	(void)arg;
	for (;;) {
		struct pollfd p[2] = { { .fd = server.listen_fd, .events = POLLIN }, { .fd = server.stop_fd[0], .events = POLLIN } };
		poll(p, 2, -1);
		if (p[1].revents)
			return NULL;
		int fd = accept4(server.listen_fd, NULL, NULL, SOCK_CLOEXEC);
		pthread_t thread;
		atomic_fetch_add(&server.connections, 1);
		atomic_fetch_add(&server.open, 1);
		if (pthread_create(&thread, NULL, serve_connection, (void *)(intptr_t)fd) != 0)
			abort();
		pthread_detach(thread);
	}
}

static void server_start(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	atomic_store(&server.connections, 0);
	atomic_store(&server.requests, 0);
	server.listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(server.listen_fd, (struct sockaddr *)&address, size), 0);
	assert_int_equal(listen(server.listen_fd, 256), 0);
	getsockname(server.listen_fd, (struct sockaddr *)&address, &size);
	server.port = ntohs(address.sin_port);
	assert_int_equal(pipe(server.stop_fd), 0);
	pthread_create(&server.thread, NULL, accept_all, NULL);
}

static void server_stop(void)
{
	assert_int_equal(write(server.stop_fd[1], "x", 1), 1);
	pthread_join(server.thread, NULL);
	while (atomic_load(&server.open) > 0)
		usleep(1000);
	close(server.listen_fd);
	close(server.stop_fd[0]);
	close(server.stop_fd[1]);
}

/* ---- requests that are made ---- */

static const char *const env[] = { "TOKEN=s3cr3t-t0ken", "EVIL=a\r\nX-Evil: 1", NULL };

static void start(struct bench *bench)
{
	bench_start(bench);
	bench->env = env;
	server_start();
	char text[4096];
	snprintf(text, sizeof text,
		 "name: srv\ntype: http\nbase_url: http://127.0.0.1:%d\nmax_output: 1000000\n"
		 "headers: {Authorization: 'Bearer ${TOKEN}', X-Plain: p}\n"
		 "endpoints:\n"
		 "  any: {path: '/{what}'}\n"
		 "  post: {method: POST, path: '/{what}', parameters: {n: {type: integer}}}\n"
		 "  head: {method: HEAD, path: /floods}\n"
		 "  slow: {path: /hang, timeout: 0.2}\n",
		 server.port);
	bench_write(bench, "srv.yaml", text);
}

static void stop(struct bench *bench)
{
	bench_close(bench);
	server_stop();
	bench_stop(bench);
}

static json_t *call_json(struct bench *bench, const char *name, const char *args)
{
	struct ask ask;
	ask_tool(&ask, bench, name, args);
	if (!ask.answered)
		fail_msg("%s", ask.message.data);
	assert_string_equal(json_string_value(json_object_get(ask.result, "raw")), "json");
	json_t *out = json_loadb(ask.raw.data, ask.raw.size, 0, NULL);
	assert_non_null(out);
	ask_finish(&ask);
	return out;
}

static void expect_member(const json_t *object, const char *key, const char *value)
{
	const char *got = json_string_value(json_object_get(object, key));
	assert_non_null(got);
	assert_string_equal(got, value);
}

static void test_exchange(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	json_t *seen = call_json(&bench, "srv.any", "{'what':'a/b ../c'}");
	expect_member(seen, "method", "GET");
	expect_member(seen, "target", "/a%2Fb%20..%2Fc");
	expect_member(json_object_get(seen, "headers"), "Authorization", "Bearer s3cr3t-t0ken");
	expect_member(json_object_get(seen, "headers"), "X-Plain", "p");
	json_decref(seen);
	seen = call_json(&bench, "srv.post", "{'what':'x','n':5}");
	expect_member(seen, "method", "POST");
	expect_member(seen, "body", "{\"n\":5}");
	expect_member(json_object_get(seen, "headers"), "Content-Type", "application/json");
	json_decref(seen);
	seen = call_json(&bench, "srv.post", "{'what':'x'}");
	expect_member(seen, "body", "");
	expect_member(json_object_get(seen, "headers"), "Content-Length", "0");
	json_decref(seen);
	expect_text(&bench, "srv.any", "{'what':'text'}", "gr\xef\xbf\xbd\xef\xbf\xbd");
	struct ask ask;
	ask_tool(&ask, &bench, "srv.any", "{'what':'empty'}");
	assert_true(json_is_null(json_object_get(ask.result, "value")));
	ask_finish(&ask);
	ask_tool(&ask, &bench, "srv.any", "{'what':'nothing'}");
	expect_member(ask.result, "value", "");
	ask_finish(&ask);
	ask_tool(&ask, &bench, "srv.head", "{}");
	expect_member(ask.result, "value", "");
	ask_finish(&ask);
	ask_tool(&ask, &bench, "srv.any", "{'what':'bigint'}");
	assert_string_equal(ask.raw.data, "[1,  123456789012345678901234567890] ");
	ask_finish(&ask);
	/* one connection served all of it */
	assert_int_equal(atomic_load(&server.connections), 1);
	stop(&bench);
}

static void test_errors(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	bench_write(&bench, "evil.yaml",
		    "name: evil\ntype: http\nbase_url: http://127.0.0.1:1\n"
		    "headers: {X: '${EVIL}'}\nendpoints: {e: {path: /}}\n");
	bench_write(&bench, "unset.yaml",
		    "name: unset\ntype: http\nbase_url: http://127.0.0.1:1\n"
		    "headers: {X: '${NOT_SET}'}\nendpoints: {e: {path: /}}\n");
	bench_write(&bench, "shut.yaml",
		    "name: shut\ntype: http\nbase_url: http://127.0.0.1:1\n"
		    "endpoints: {e: {path: /}}\n");
	const char *type = "ToolCallError";
	int code = CELL_TOOL_E_FAILED;
	expect_fail(&bench, "srv.any", "{'what':'missing'}", code, type, "Tool 'srv' failed: HTTP 404: no such thing");
	expect_fail(&bench, "srv.any", "{'what':'badjson'}", code, type, "is declared as JSON but is not valid JSON");
	expect_fail(&bench, "srv.any", "{'what':'floods'}", code, type, "larger than 1000000 bytes");
	expect_fail(&bench, "srv.any", "{'what':'drop'}", code, type, "request to http://127.0.0.1");
	expect_fail(&bench, "shut.e", "{}", code, type, "request to http://127.0.0.1:1 failed");
	expect_fail(&bench, "unset.e", "{}", code, type, "environment variable NOT_SET is not set");
	expect_fail(&bench, "evil.e", "{}", code, type, "header X: the resolved value contains a line break");
	expect_fail(&bench, "srv.slow", "{}", CELL_TOOL_E_TIMEOUT, "ToolTimeoutError", "Tool 'srv' timed out after 0.2s");
	expect_fail(&bench, "srv.any", "{'what':'..'}", CELL_TOOL_E_ARGS, type, "must not be '.' or '..'");
	expect_fail(&bench, "srv", "{}", CELL_TOOL_E_UNKNOWN, type, "Available: any, post, head, slow");
	/* a server that repeats the header in its error does not give it to the kernel */
	struct ask ask;
	ask_tool(&ask, &bench, "srv.any", "{'what':'leak'}");
	assert_non_null(strstr(ask.message.data, "HTTP 403: GET /leak"));
	assert_non_null(strstr(ask.message.data, "Authorization: Bearer ***"));
	assert_null(strstr(ask.message.data, "s3cr3t"));
	ask_finish(&ask);
	ask_tool(&ask, &bench, "srv.any", "{'what':'floodfail'}");
	assert_non_null(strstr(ask.message.data, "HTTP 500: xxx"));
	assert_true(ask.message.size < CELL_TOOL_LIMIT_ERROR_TEXT + 100);
	ask_finish(&ask);
	stop(&bench);
}

static void test_redirects(void **state)
{
	(void)state;
	static struct bench bench;
	start(&bench);
	json_t *seen = call_json(&bench, "srv.any", "{'what':'moved'}");
	expect_member(seen, "target", "/echo/there");
	expect_member(json_object_get(seen, "headers"), "Authorization", "Bearer s3cr3t-t0ken");
	json_decref(seen);
	seen = call_json(&bench, "srv.post", "{'what':'moved','n':1}");
	expect_member(seen, "method", "GET");
	expect_member(seen, "body", "");
	json_decref(seen);
	seen = call_json(&bench, "srv.post", "{'what':'kept','n':1}");
	expect_member(seen, "method", "POST");
	expect_member(seen, "body", "{\"n\":1}");
	json_decref(seen);
	int before = atomic_load(&server.requests);
	expect_fail(&bench, "srv.any", "{'what':'round'}", CELL_TOOL_E_FAILED, "ToolCallError", "redirected too often");
	assert_int_equal(atomic_load(&server.requests) - before, 1 + CELL_TOOL_LIMIT_REDIRECTS);
	before = atomic_load(&server.requests);
	expect_fail(&bench, "srv.any", "{'what':'away'}", CELL_TOOL_E_FAILED, "ToolCallError", "to another host");
	expect_fail(&bench, "srv.any", "{'what':'scheme'}", CELL_TOOL_E_FAILED, "ToolCallError", "to another host");
	assert_int_equal(atomic_load(&server.requests) - before, 2);
	stop(&bench);
}

#define N_AT_ONCE 200

static void test_many_and_cancel(void **state)
{
	(void)state;
	static struct bench bench;
	static struct ask ask[N_AT_ONCE], hung[3];
	start(&bench);
	for (int i = 0; i < 3; i++)
		ask_start(&hung[i], &bench, "tools.call", quick_json("{'name':'srv.any','args':{'what':'hang'}}"));
	for (int i = 0; i < N_AT_ONCE; i++)
		ask_start(&ask[i], &bench, "tools.call", quick_json("{'name':'srv.any','args':{'what':'text'}}"));
	for (int i = 0; i < N_AT_ONCE; i++) {
		ask_wait(&ask[i]);
		if (!ask[i].answered)
			fail_msg("%s", ask[i].message.data);
		ask_finish(&ask[i]);
	}
	assert_true(atomic_load(&server.connections) <= CELL_TOOL_LIMIT_CONNECTIONS);
	ask_cancel(&hung[0]);
	ask_cancel(&hung[2]);
	expect_text(&bench, "srv.any", "{'what':'text'}", "gr\xef\xbf\xbd\xef\xbf\xbd");
	ask_cancel(&hung[1]);
	/* one more, which ends with the registry */
	struct ask last;
	ask_start(&last, &bench, "tools.call", quick_json("{'name':'srv.any','args':{'what':'hang'}}"));
	expect_text(&bench, "srv.any", "{'what':'text'}", "gr\xef\xbf\xbd\xef\xbf\xbd");
	stop(&bench);
	assert_int_equal(last.code, CELL_E_CLOSED);
	ask_finish(&last);
	for (int i = 0; i < 3; i++)
		ask_finish(&hung[i]);
}

/* The environment of the host's process plays no part. */
static void test_no_proxy(void **state)
{
	(void)state;
	static struct bench bench;
	setenv("http_proxy", "http://127.0.0.1:1", 1);
	setenv("all_proxy", "http://127.0.0.1:1", 1);
	start(&bench);
	json_decref(call_json(&bench, "srv.any", "{'what':'x'}"));
	stop(&bench);
	unsetenv("http_proxy");
	unsetenv("all_proxy");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_requests), cmocka_unit_test(test_words),     cmocka_unit_test(test_exchange),
		cmocka_unit_test(test_errors),   cmocka_unit_test(test_redirects), cmocka_unit_test(test_many_and_cancel),
		cmocka_unit_test(test_no_proxy),
	};
	return cmocka_run_group_tests_name("tools_http", tests, NULL, NULL);
}
