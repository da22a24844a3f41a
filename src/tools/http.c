/*
 * HTTP tools, by loop/http.h.
 *
 *     building ──▶ under way ──done──▶ answered
 *                   ▲    └─redirect to the same origin─┐
 *                   └──────────────────────────────────┘   cancel, any time: removed and gone
 *
 * Redirects are followed by hand, because the headers (which may hold secrets) must not reach another host.  Proxies,
 * netrc and other settings of the host's environment play no part.
 */
#define _GNU_SOURCE
#include <string.h>

#include "base/base64.h"
#include "tools/internal.h"

struct request {
	struct cell__http_transfer transfer;
	struct cell__tool_run *run;
	struct cell__httpreq req;
	struct cell__buf body;
	bool too_big;
	int redirects;
	int64_t deadline_us;
};

/* ---- one request ---- */

static void handle_done(struct cell__http_transfer *transfer, CURLcode code);

static void destroy_request(struct request *request)
{
	cell__http_finish(&request->transfer);
	cell__httpreq_finish(&request->req);
	cell__buf_finish(&request->body);
	free(request);
}

static size_t body_came(struct cell__http_transfer *transfer, const char *bytes, size_t n)
{
	struct request *request = (struct request *)transfer;
	bool error = cell__http_status(transfer) >= 400;
	size_t limit = error ? CELL_TOOL_LIMIT_ERROR_TEXT : request->run->tool->max_output;
	size_t room = limit - request->body.size;
	if (n > room && !error) {
		request->too_big = true;
		return 0;
	}
	return cell__buf_add(&request->body, bytes, n < room ? n : room) < 0 ? 0 : n;
}

/* The tool's own headers, with values from the host's environment. */
static int add_tool_headers(struct request *request, struct cell__buf *why)
{
	struct cell__tool_run *run = request->run;
	for (size_t i = 0; i < run->tool->headers.count; i++) {
		const struct cell__pair *pair = &run->tool->headers.list[i];
		char *value = NULL;
		if (cell__vars_expand(pair->value, &run->tools->opts, &run->secrets, &value, why) < 0)
			return -1;
		if (strpbrk(value, "\r\n")) {
			cell__buf_printf(why, "header %s: the resolved value contains a line break", pair->key);
			cell__secret_free(value);
			return -1;
		}
		struct cell__buf line = CELL_BUF_INIT;
		size_t room = strlen(pair->key) + 2 * strlen(value) + 16;
		int rc = cell__buf_reserve(&line, room);
		if (rc == 0)
			rc = pair->basic
				     ? cell__buf_printf(&line, "%s: Basic ", pair->key) | cell__buf_add_base64(&line, value, strlen(value))
				     : cell__buf_printf(&line, *value ? "%s: %s" : "%s;", pair->key, value);
		if (rc == 0)
			rc = cell__http_add_header(&request->transfer, line.data);
		cell__secret_free(value);
		cell__secret_free(cell__take_ptr(line.data));
		if (rc < 0)
			return -1;
	}
	return 0;
}

/* Parts of the query that every request has: keys, mostly.  The URL appears in no message. */
static int add_tool_query(struct request *request, struct cell__buf *why)
{
	struct cell__tool_run *run = request->run;
	struct cell__buf url = CELL_BUF_INIT;
	if (run->tool->query.count == 0)
		return 0;
	int rc = cell__buf_add_str(&url, request->req.url);
	for (size_t i = 0; i < run->tool->query.count && rc == 0; i++) {
		const struct cell__pair *pair = &run->tool->query.list[i];
		char *value = NULL;
		rc = cell__vars_expand(pair->value, &run->tools->opts, &run->secrets, &value, why);
		if (rc == 0)
			rc = cell__buf_add_str(&url, strchr(url.data, '?') ? "&" : "?") |
			     cell__http_add_encoded(&url, pair->key, strlen(pair->key)) | cell__buf_add_str(&url, "=") |
			     cell__http_add_encoded(&url, value, strlen(value));
		if (value)
			cell__secret_free(value);
	}
	if (rc == 0) {
		free(request->req.url);
		request->req.url = cell__buf_take(&url);
	}
	cell__buf_finish(&url);
	return rc;
}

/* The server's spans become children of the call's; a definition that has the header itself keeps it. */
static int add_traceparent(struct request *request)
{
	const struct cell__tool_run *run = request->run;
	char line[sizeof("traceparent: ") + CELL_TRACEPARENT_SIZE];
	if (!*run->call->trace.parent)
		return 0;
	for (size_t i = 0; i < run->tool->headers.count; i++)
		if (strcasecmp(run->tool->headers.list[i].key, "traceparent") == 0)
			return 0;
	for (size_t i = 0; i < request->req.n_headers; i++)
		if (strncasecmp(request->req.headers[i], "traceparent:", 12) == 0)
			return 0;
	snprintf(line, sizeof line, "traceparent: %s", run->call->trace.parent);
	return cell__http_add_header(&request->transfer, line);
}

static int set_headers(struct request *request, struct cell__buf *why)
{
	for (size_t i = 0; i < request->req.n_headers; i++)
		if (cell__http_add_header(&request->transfer, request->req.headers[i]) < 0)
			return -1;
	if (add_tool_headers(request, why) < 0)
		return -1;
	return add_traceparent(request);
}

/* Sends it, or sends it on after a redirect. */
static int perform(struct request *request)
{
	const struct cell__httpreq *req = &request->req;
	int64_t left_ms = (request->deadline_us - cell__now_us()) / 1000;
	const struct cell__http_request what = { .method = req->method,
						 .url = req->url,
						 .body = req->body || strcmp(req->method, "POST") != 0 ? req->body : "",
						 .body_size = req->body_size,
						 .timeout_ms = left_ms > 0 ? left_ms : 1,
						 .path_as_is = true };
	return cell__http_start(request->run->tools->http, &request->transfer, &what);
}

static int prepare(struct request *request, json_t *args, struct cell__buf *why)
{
	struct cell__tool_run *run = request->run;
	struct cell_error err;
	if (!run->tools->http && cell__http_create(run->tools->opts.loop, CELL_TOOL_LIMIT_CONNECTIONS, &run->tools->http, &err) < 0) {
		cell__buf_add_str(why, err.msg);
		return -1;
	}
	if (cell__httpreq_build(run->tool, run->callable, args, &request->req, why) < 0 || set_headers(request, why) < 0 ||
	    add_tool_query(request, why) < 0)
		return -1;
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
	request->transfer.done = handle_done;
	request->transfer.body = body_came;
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
	cell__http_cancel(run->tools->http, &request->transfer);
	destroy_request(request);
}

/* ---- answers ---- */

/* True: follows the redirect. False with *ret_why: it must not; without: not a redirect. */
static bool follow(struct request *request, const char **ret_why)
{
	long status = cell__http_status(&request->transfer);
	char *target = NULL;
	curl_easy_getinfo(request->transfer.easy, CURLINFO_REDIRECT_URL, &target);
	bool keeps_method = status == 307 || status == 308;
	if (!target || !(status == 301 || status == 302 || status == 303 || keeps_method))
		return false;
	*ret_why = "redirected to another host, which must not receive the tool's headers";
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
	curl_easy_getinfo(request->transfer.easy, CURLINFO_CONTENT_TYPE, &type);
	struct cell__buf *body = &request->body;
	bool json = cell__http_is_json(type);
	if (body->size == 0) {
		cell__tool_run_answer(run, json_pack("{s:o}", "value", json ? json_null() : json_string("")), NULL, 0);
		return;
	}
	if (json) {
		if (!cell__json_one_line(body))
			cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the response is declared as JSON but is not valid JSON");
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
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the response is larger than %zu bytes (max_output)", run->tool->max_output);
	else
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "request to %s failed: %s", run->tool->base_url,
				    cell__http_explain(&request->transfer, code));
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct request *request = (struct request *)transfer;
	struct cell__tool_run *run = request->run;
	const char *why = NULL;
	if (code == CURLE_OK && follow(request, &why))
		return;
	run->state = NULL;
	long status = cell__http_status(&request->transfer);
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
