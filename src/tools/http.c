/*
 * HTTP tools: libcurl's multi interface on the loop.  libcurl says which sockets and which time it waits for, libuv
 * waits, and nothing blocks; connections are kept and used again.
 *
 *     building ──▶ under way ──done──▶ answered
 *                   ▲    └─redirect to the same origin─┐
 *                   └──────────────────────────────────┘   cancel, any time: removed and gone
 *
 * Redirects are followed by hand, because the headers (which may hold secrets) must not reach another host.  Proxies,
 * netrc and other settings of the host's environment play no part.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tools/internal.h"

struct cell__http {
	CURLM *multi;
	struct cell__loop *loop;
	uv_timer_t timer;
	int handles;
	void (*closed)(void *arg);
	void *closed_arg;
};

struct watch {
	uv_poll_t poll;
	struct cell__http *http;
	curl_socket_t fd;
};

struct request {
	struct cell__tool_run *run;
	CURL *easy;
	struct cell__httpreq req;
	struct curl_slist *headers;
	struct cell__buf body;
	bool too_big;
	int redirects;
	int64_t deadline_us;
	char message[CURL_ERROR_SIZE];
};

/* ---- SIGPIPE ---- */

/*
 * TLS writes can raise SIGPIPE, and the thread that runs the loop may be one of the host's, which need not ignore it.
 * Around libcurl it is blocked, and taken when it came.
 */
struct pipe_guard {
	sigset_t old;
	bool pending;
};

static void guard_pipe(struct pipe_guard *guard)
{
	sigset_t set;
	sigpending(&set);
	guard->pending = sigismember(&set, SIGPIPE);
	sigemptyset(&set);
	sigaddset(&set, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &set, &guard->old);
}

static void unguard_pipe(const struct pipe_guard *guard)
{
	sigset_t set;
	sigpending(&set);
	if (!guard->pending && sigismember(&set, SIGPIPE)) {
		struct timespec now = { 0 };
		sigemptyset(&set);
		sigaddset(&set, SIGPIPE);
		sigtimedwait(&set, NULL, &now);
	}
	pthread_sigmask(SIG_SETMASK, &guard->old, NULL);
}

/* ---- libcurl on the loop ---- */

static void handle_done(struct request *request, CURLcode code);

static void take_finished(struct cell__http *http)
{
	CURLMsg *msg;
	int left;
	while ((msg = curl_multi_info_read(http->multi, &left))) {
		if (msg->msg != CURLMSG_DONE)
			continue;
		CURLcode code = msg->data.result;
		struct request *request = NULL;
		curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &request);
		curl_multi_remove_handle(http->multi, msg->easy_handle);
		handle_done(request, code);
	}
}

static void act(struct cell__http *http, curl_socket_t fd, int flags)
{
	struct pipe_guard guard;
	int running;
	guard_pipe(&guard);
	curl_multi_socket_action(http->multi, fd, flags, &running);
	take_finished(http);
	unguard_pipe(&guard);
}

static void handle_timer(uv_timer_t *timer)
{
	act(timer->data, CURL_SOCKET_TIMEOUT, 0);
}

static void handle_poll(uv_poll_t *poll, int status, int events)
{
	struct watch *watch = poll->data;
	int flags = (events & UV_READABLE ? CURL_CSELECT_IN : 0) | (events & UV_WRITABLE ? CURL_CSELECT_OUT : 0);
	act(watch->http, watch->fd, status < 0 ? CURL_CSELECT_ERR : flags);
}

static void one_handle_less(struct cell__http *http)
{
	if (--http->handles > 0 || !http->closed)
		return;
	void (*closed)(void *) = http->closed;
	void *arg = http->closed_arg;
	free(http);
	closed(arg);
}

static void handle_watch_closed(uv_handle_t *handle)
{
	struct watch *watch = handle->data;
	struct cell__http *http = watch->http;
	free(watch);
	one_handle_less(http);
}

static void handle_timer_closed(uv_handle_t *handle)
{
	one_handle_less(handle->data);
}

static struct watch *make_watch(struct cell__http *http, curl_socket_t fd)
{
	struct watch *watch = cell__alloc(1, sizeof *watch);
	if (!watch)
		return NULL;
	watch->http = http;
	watch->fd = fd;
	watch->poll.data = watch;
	if (uv_poll_init_socket(&http->loop->uv, &watch->poll, fd) < 0) {
		free(watch);
		return NULL;
	}
	http->handles++;
	curl_multi_assign(http->multi, fd, watch);
	return watch;
}

static int socket_wanted(CURL *easy, curl_socket_t fd, int what, void *arg, void *assigned)
{
	(void)easy;
	struct cell__http *http = arg;
	struct watch *watch = assigned;
	if (what == CURL_POLL_REMOVE) {
		if (watch) {
			uv_poll_stop(&watch->poll);
			uv_close((uv_handle_t *)&watch->poll, handle_watch_closed);
			curl_multi_assign(http->multi, fd, NULL);
		}
		return 0;
	}
	if (!watch && !(watch = make_watch(http, fd)))
		return -1;
	int events = (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0);
	return uv_poll_start(&watch->poll, events, handle_poll) < 0 ? -1 : 0;
}

static int time_wanted(CURLM *multi, long timeout_ms, void *arg)
{
	(void)multi;
	struct cell__http *http = arg;
	if (timeout_ms < 0)
		return uv_timer_stop(&http->timer);
	return uv_timer_start(&http->timer, handle_timer, (uint64_t)timeout_ms, 0);
}

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
	curl_global_init(CURL_GLOBAL_DEFAULT);
}

int cell__http_create(struct cell__loop *loop, struct cell__http **ret_http, struct cell_error *err)
{
	pthread_once(&curl_once, init_curl);
	struct cell__http *http = cell__alloc(1, sizeof *http);
	if (!http || !(http->multi = curl_multi_init())) {
		free(http);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for HTTP");
	}
	http->loop = loop;
	http->timer.data = http;
	http->handles = 1;
	uv_timer_init(&loop->uv, &http->timer);
	curl_multi_setopt(http->multi, CURLMOPT_SOCKETFUNCTION, socket_wanted);
	curl_multi_setopt(http->multi, CURLMOPT_SOCKETDATA, http);
	curl_multi_setopt(http->multi, CURLMOPT_TIMERFUNCTION, time_wanted);
	curl_multi_setopt(http->multi, CURLMOPT_TIMERDATA, http);
	curl_multi_setopt(http->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)CELL_TOOL_LIMIT_CONNECTIONS);
	*ret_http = http;
	return 0;
}

void cell__http_close(struct cell__http *http, void (*closed)(void *arg), void *arg)
{
	struct pipe_guard guard;
	http->closed = closed;
	http->closed_arg = arg;
	guard_pipe(&guard);
	curl_multi_cleanup(http->multi);
	unguard_pipe(&guard);
	uv_close((uv_handle_t *)&http->timer, handle_timer_closed);
}

/* ---- one request ---- */

static void free_headers(struct curl_slist *headers)
{
	for (struct curl_slist *at = headers; at; at = at->next)
		explicit_bzero(at->data, strlen(at->data));
	curl_slist_free_all(headers);
}

static void destroy_request(struct request *request)
{
	if (request->easy)
		curl_easy_cleanup(request->easy);
	free_headers(request->headers);
	cell__httpreq_finish(&request->req);
	cell__buf_finish(&request->body);
	free(request);
}

static long status_of(const struct request *request)
{
	long status = 0;
	curl_easy_getinfo(request->easy, CURLINFO_RESPONSE_CODE, &status);
	return status;
}

static size_t body_came(char *bytes, size_t one, size_t n, void *arg)
{
	(void)one;
	struct request *request = arg;
	bool error = status_of(request) >= 400;
	size_t limit = error ? CELL_TOOL_LIMIT_ERROR_TEXT : request->run->tool->max_output;
	size_t room = limit - request->body.size;
	if (n > room && !error) {
		request->too_big = true;
		return 0;
	}
	return cell__buf_add(&request->body, bytes, n < room ? n : room) < 0 ? 0 : n;
}

static int add_header(struct request *request, const char *line)
{
	struct curl_slist *list = curl_slist_append(request->headers, line);
	if (!list)
		return -1;
	request->headers = list;
	return 0;
}

/* The tool's own headers, with what the host's environment has for them. */
static int add_tool_headers(struct request *request, struct cell__buf *why)
{
	struct cell__tool_run *run = request->run;
	for (size_t i = 0; i < run->tool->headers.count; i++) {
		const struct cell__pair *pair = &run->tool->headers.list[i];
		char *value = NULL;
		if (cell__vars_expand(pair->value, &run->tools->opts, &run->secrets, &value, why) < 0)
			return -1;
		if (strpbrk(value, "\r\n")) {
			cell__buf_printf(why, "header %s: the resolved value holds a line break", pair->key);
			cell__secret_free(value);
			return -1;
		}
		struct cell__buf line = CELL_BUF_INIT;
		size_t room = strlen(pair->key) + strlen(value) + 2;
		int rc = cell__buf_reserve(&line, room);
		if (rc == 0)
			rc = cell__buf_printf(&line, *value ? "%s: %s" : "%s;", pair->key, value);
		if (rc == 0)
			rc = add_header(request, line.data);
		cell__secret_free(value);
		cell__secret_free(cell__take_ptr(line.data));
		if (rc < 0)
			return -1;
	}
	return 0;
}

static int set_headers(struct request *request, struct cell__buf *why)
{
	int rc = add_header(request, "Expect:"); /* no waiting for 100-continue */
	for (size_t i = 0; rc == 0 && i < request->req.n_headers; i++)
		rc = add_header(request, request->req.headers[i]);
	return rc < 0 ? rc : add_tool_headers(request, why);
}

static void set_method(struct request *request)
{
	CURL *easy = request->easy;
	const char *method = request->req.method;
	curl_easy_setopt(easy, CURLOPT_NOBODY, (long)(strcmp(method, "HEAD") == 0));
	if (request->req.body || strcmp(method, "POST") == 0) {
		curl_easy_setopt(easy, CURLOPT_POST, 1L);
		curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request->req.body ? request->req.body : "");
		curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)request->req.body_size);
	} else if (strcmp(method, "HEAD") != 0) {
		curl_easy_setopt(easy, CURLOPT_HTTPGET, 1L);
	}
	curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
}

static void set_options(struct request *request)
{
	CURL *easy = request->easy;
	curl_easy_setopt(easy, CURLOPT_PRIVATE, request);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, request->message);
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_PROXY, "");
	curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request->headers);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, body_came);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, request);
	char agent[64];
	snprintf(agent, sizeof agent, "workcell/%s", cell_version());
	curl_easy_setopt(easy, CURLOPT_USERAGENT, agent);
}

/* Sends it, or sends it on after a redirect. */
static int perform(struct request *request)
{
	int64_t left_ms = (request->deadline_us - cell__now_us()) / 1000;
	set_method(request);
	curl_easy_setopt(request->easy, CURLOPT_URL, request->req.url);
	curl_easy_setopt(request->easy, CURLOPT_TIMEOUT_MS, (long)(left_ms > 0 ? left_ms : 1));
	return curl_multi_add_handle(request->run->tools->http->multi, request->easy) == CURLM_OK ? 0 : -1;
}

static int prepare(struct request *request, json_t *args, struct cell__buf *why)
{
	struct cell__tool_run *run = request->run;
	struct cell_error err;
	if (!run->tools->http && cell__http_create(run->tools->opts.loop, &run->tools->http, &err) < 0) {
		cell__buf_add_str(why, err.msg);
		return -1;
	}
	if (cell__httpreq_build(run->tool, run->callable, args, &request->req, why) < 0 ||
	    set_headers(request, why) < 0)
		return -1;
	request->easy = curl_easy_init();
	if (!request->easy)
		return -1;
	set_options(request);
	request->deadline_us = cell__now_us() + cell__tool_run_timeout_ms(run) * 1000;
	return perform(request);
}

static void start(struct cell__tool_run *run, json_t *args)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	struct request *request = cell__alloc(1, sizeof *request);
	if (!request) {
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
		return;
	}
	request->run = run;
	run->state = request;
	if (prepare(request, args, &why) < 0) {
		/* Without a method the arguments were not even good for a request. */
		int code = request->req.method ? CELL_TOOL_E_FAILED : CELL_TOOL_E_ARGS;
		run->state = NULL;
		destroy_request(request);
		cell__tool_run_fail(run, code, "%s", why.size ? why.data : "out of memory");
	}
}

static void cancel(struct cell__tool_run *run)
{
	struct request *request = cell__take_ptr(run->state);
	struct pipe_guard guard;
	guard_pipe(&guard);
	curl_multi_remove_handle(run->tools->http->multi, request->easy);
	destroy_request(request);
	unguard_pipe(&guard);
}

/* ---- answers ---- */

/* True: it goes on.  False with *ret_why: it must not; without: this is no redirect. */
static bool follow(struct request *request, const char **ret_why)
{
	long status = status_of(request);
	char *target = NULL;
	curl_easy_getinfo(request->easy, CURLINFO_REDIRECT_URL, &target);
	bool keeps_method = status == 307 || status == 308;
	if (!target || !(status == 301 || status == 302 || status == 303 || keeps_method))
		return false;
	*ret_why = "redirected to another host, which must not get the tool's headers";
	if (!cell__http_same_origin(request->req.url, target))
		return false;
	*ret_why = "redirected too often";
	if (++request->redirects > CELL_TOOL_LIMIT_REDIRECTS)
		return false;
	*ret_why = "out of memory";
	char *url = cell__strdup(target);
	if (!url)
		return false;
	free(request->req.url);
	request->req.url = url;
	if (status == 303 || (!keeps_method && strcmp(request->req.method, "POST") == 0)) {
		char *get = cell__strdup("GET");
		if (!get)
			return false;
		free(request->req.method);
		request->req.method = get;
		free(cell__take_ptr(request->req.body));
		request->req.body_size = 0;
	}
	request->body.size = 0;
	return perform(request) == 0;
}

static void answer_body(struct cell__tool_run *run, struct request *request)
{
	char *type = NULL;
	curl_easy_getinfo(request->easy, CURLINFO_CONTENT_TYPE, &type);
	struct cell__buf *body = &request->body;
	bool json = cell__http_is_json(type);
	if (body->size == 0) {
		cell__tool_run_answer(run, json_pack("{s:o}", "value", json ? json_null() : json_string("")), NULL, 0);
		return;
	}
	if (json) {
		if (!cell__json_one_line(body))
			cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the response says it is JSON, but it is not");
		else
			cell__tool_run_answer_raw(run, "json", body->data, body->size);
		return;
	}
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__buf_add_utf8(&text, body->data, body->size) < 0)
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
	else
		cell__tool_run_answer_raw(run, "text", text.data, text.size);
}

static void fail_status(struct cell__tool_run *run, const struct request *request, long status)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	cell__buf_add_quote(&text, request->body.data, request->body.size);
	cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "HTTP %ld: %s", status, text.data ? text.data : "");
}

static void fail_transfer(struct cell__tool_run *run, const struct request *request, CURLcode code)
{
	if (code == CURLE_OPERATION_TIMEDOUT)
		cell__tool_run_timed_out(run, cell__tool_run_timeout_ms(run));
	else if (request->too_big)
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the response is larger than %zu bytes (max_output)",
				    run->tool->max_output);
	else
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "request to %s failed: %s", run->tool->base_url,
				    request->message[0] ? request->message : curl_easy_strerror(code));
}

static void handle_done(struct request *request, CURLcode code)
{
	struct cell__tool_run *run = request->run;
	const char *why = NULL;
	if (code == CURLE_OK && follow(request, &why))
		return;
	run->state = NULL;
	long status = status_of(request);
	if (code != CURLE_OK)
		fail_transfer(run, request, code);
	else if (why)
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "HTTP %ld: %s", status, why);
	else if (status >= 400)
		fail_status(run, request, status);
	else
		answer_body(run, request);
	destroy_request(request);
}

const struct cell__tool_adapter cell__tool_http = { .name = "http", .start = start, .cancel = cancel };
