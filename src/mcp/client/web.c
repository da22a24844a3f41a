#define _GNU_SOURCE
#include "mcp/client/web.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include <jansson.h>

#include "wire/jsonrpc.h"
#include "wire/oauth.h"

/* ---- from within libcurl: only to put aside ---- */

static void arm(struct cell__web *web, int64_t at_us);

static void classify(struct cell__exchange *exchange)
{
	char *type = NULL;
	exchange->status = cell__http_status(&exchange->transfer);
	curl_easy_getinfo(exchange->transfer.easy, CURLINFO_CONTENT_TYPE, &type);
	size_t n = type ? strcspn(type, "; \t") : 0;
	bool fine = exchange->status >= 200 && exchange->status < 300;
	exchange->is_sse = fine && n == 17 && strncasecmp(type, "text/event-stream", n) == 0;
	exchange->is_json = n == 16 && strncasecmp(type, "application/json", n) == 0;
}

static size_t body_came(struct cell__http_transfer *transfer, const char *bytes, size_t n)
{
	struct cell__exchange *exchange = (struct cell__exchange *)transfer;
	if (exchange->status == 0)
		classify(exchange);
	if (exchange->is_sse) {
		if (cell__buf_add(&exchange->inbox, bytes, n) < 0)
			return 0;
		arm(exchange->web, cell__now_us());
		return n;
	}
	bool fine = exchange->status >= 200 && exchange->status < 300;
	size_t limit = fine ? CELL_RPC_MAX_BYTES : CELL_WEB_LIMIT_ERROR_TEXT;
	size_t room = limit - exchange->text.size;
	if (n > room && fine) {
		exchange->too_big = true;
		return 0;
	}
	return cell__buf_add(&exchange->text, bytes, n < room ? n : room) < 0 ? 0 : n;
}

static void header_came(struct cell__http_transfer *transfer, const char *bytes, size_t n)
{
	static const char name[] = "mcp-session-id:", challenge[] = "www-authenticate:";
	struct cell__exchange *exchange = (struct cell__exchange *)transfer;
	if (n >= sizeof challenge && n < CELL_WEB_LIMIT_CHALLENGE && strncasecmp(bytes, challenge, sizeof challenge - 1) == 0) {
		exchange->challenge.size = 0;
		(void)cell__buf_add(&exchange->challenge, bytes + sizeof challenge - 1, strcspn(bytes, "\r\n") - (sizeof challenge - 1));
	}
	if (n < sizeof name - 1 || strncasecmp(bytes, name, sizeof name - 1) != 0)
		return;
	const char *at = bytes + sizeof name - 1, *end = bytes + n;
	while (at < end && (*at == ' ' || *at == '\t'))
		at++;
	while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ' || end[-1] == '\t'))
		end--;
	size_t size = (size_t)(end - at);
	if (size > CELL_WEB_LIMIT_SESSION)
		return;
	for (size_t i = 0; i < size; i++)
		if (at[i] < 0x21 || at[i] > 0x7e)
			return; /* not a valid id for a header */
	memcpy(exchange->session, at, size);
	exchange->session[size] = '\0';
}

/* ---- processing received bytes ---- */

static void read_stream(struct cell__exchange *exchange)
{
	struct cell__web *web = exchange->web;
	/* Bytes that arrive in the meantime go into a new inbox. */
	struct cell__buf came = exchange->inbox;
	exchange->inbox = (struct cell__buf)CELL_BUF_INIT;
	const char *bytes = came.data;
	size_t size = came.size;
	struct cell__sse_event event;
	int rc = 0;
	while (!exchange->dead && (rc = cell__sse_next(&exchange->sse, &bytes, &size, &event, NULL)) == 1) {
		exchange->fresh = true;
		web->ops->event(web, exchange, &event);
	}
	if (rc < 0 && !exchange->dead && exchange->running) {
		exchange->too_big = true;
		exchange->running = false;
		exchange->ended = true;
		exchange->code = CURLE_WRITE_ERROR;
		cell__http_cancel(web->http, &exchange->transfer);
	}
	cell__buf_finish(&came);
}

static void read_arrived(struct cell__exchange *exchange)
{
	if (exchange->dead)
		return;
	if (exchange->inbox.size > 0)
		read_stream(exchange);
	if (exchange->ended && !exchange->dead) {
		exchange->ended = false;
		exchange->web->ops->end(exchange->web, exchange);
	}
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__exchange *exchange = (struct cell__exchange *)transfer;
	exchange->running = false;
	exchange->code = code;
	if (exchange->status == 0)
		classify(exchange);
	exchange->ended = true;
	arm(exchange->web, cell__now_us());
}

/* ---- one timer for all ---- */

static void free_exchange(struct cell__exchange *exchange)
{
	cell__http_finish(&exchange->transfer);
	cell__strings_free(exchange->headers);
	cell__buf_finish(&exchange->body);
	cell__buf_finish(&exchange->text);
	cell__buf_finish(&exchange->inbox);
	cell__buf_finish(&exchange->challenge);
	cell__sse_finish(&exchange->sse);
	free(exchange);
}

/* They may contain secrets. */
static void free_headers(struct cell__web *web)
{
	for (size_t i = 0; web->headers && web->headers[i]; i++)
		explicit_bzero(web->headers[i], strlen(web->headers[i]));
	cell__strings_free(web->headers);
}

static void maybe_gone(struct cell__web *web)
{
	if (!web->timer_closed || !web->http_closed)
		return;
	free(web->url);
	free_headers(web);
	web->ops->gone(web);
}

static void handle_timer_closed(uv_handle_t *handle)
{
	struct cell__web *web = handle->data;
	web->timer_closed = true;
	maybe_gone(web);
}

static void handle_http_closed(void *arg)
{
	struct cell__web *web = arg;
	web->http_closed = true;
	maybe_gone(web);
}

static void reap(struct cell__web *web)
{
	for (struct cell__exchange **at = &web->list; *at;) {
		struct cell__exchange *exchange = *at;
		if (!exchange->dead) {
			at = &exchange->next;
			continue;
		}
		*at = exchange->next;
		web->count--;
		free_exchange(exchange);
	}
	if (web->closing && !web->list && !uv_is_closing((uv_handle_t *)&web->timer)) {
		uv_close((uv_handle_t *)&web->timer, handle_timer_closed);
		cell__http_close(web->http, handle_http_closed, web);
	}
}

static void work(uv_timer_t *timer)
{
	struct cell__web *web = timer->data;
	web->armed_us = 0;
	/* Nothing leaves the list in the meantime; new ones are put at its head. */
	for (struct cell__exchange *exchange = web->list; exchange; exchange = exchange->next)
		read_arrived(exchange);
	int64_t now = cell__now_us(), next = INT64_MAX;
	for (struct cell__exchange *exchange = web->list; exchange; exchange = exchange->next) {
		if (!exchange->dead && exchange->at_us && exchange->at_us <= now) {
			exchange->at_us = 0;
			web->ops->tick(web, exchange);
		}
		if (!exchange->dead && exchange->at_us && exchange->at_us < next)
			next = exchange->at_us;
		if (!exchange->dead && (exchange->ended || exchange->inbox.size > 0))
			next = now;
	}
	reap(web);
	if (next != INT64_MAX && !web->closing)
		arm(web, next);
}

static void arm(struct cell__web *web, int64_t at_us)
{
	if (uv_is_closing((uv_handle_t *)&web->timer) || (web->armed_us != 0 && web->armed_us <= at_us))
		return;
	int64_t left_us = at_us - cell__now_us();
	web->armed_us = at_us;
	uv_timer_start(&web->timer, work, left_us > 0 ? (uint64_t)(left_us + 999) / 1000 : 0, 0);
}

/* ---- exchanges ---- */

struct cell__exchange *cell__exchange_create(struct cell__web *web, const char *method, const char *accept, struct cell_error *err)
{
	if (web->count >= CELL_WEB_LIMIT_EXCHANGES) {
		cell_fail(err, CELL_E_LIMIT, 0, "more than %u requests to one server are under way", CELL_WEB_LIMIT_EXCHANGES);
		return NULL;
	}
	struct cell__exchange *exchange = cell__alloc(1, sizeof *exchange);
	if (!exchange) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	exchange->transfer.done = handle_done;
	exchange->transfer.body = body_came;
	exchange->transfer.header = header_came;
	exchange->web = web;
	exchange->method = method;
	exchange->accept = accept;
	cell__sse_init(&exchange->sse, CELL_RPC_MAX_BYTES);
	exchange->next = web->list;
	web->list = exchange;
	web->count++;
	return exchange;
}

struct cell__exchange *cell__exchange_create_post(struct cell__web *web, const char *accept, int kind, const struct cell__mcp_outgoing *out,
						  struct cell_error *err)
{
	struct cell__exchange *exchange = cell__exchange_create(web, "POST", accept, err);
	if (!exchange)
		return NULL;
	exchange->kind = kind;
	exchange->id = out->id;
	exchange->headers = out->headers ? cell__strings_copy(out->headers) : NULL;
	if ((out->headers && !exchange->headers) || cell__buf_add(&exchange->body, out->text, out->size) < 0) {
		cell__exchange_drop(exchange);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	return exchange;
}

void cell__exchange_drop(struct cell__exchange *exchange)
{
	if (exchange->dead)
		return;
	if (exchange->running)
		cell__http_cancel(exchange->web->http, &exchange->transfer);
	exchange->running = false;
	exchange->dead = true;
	arm(exchange->web, cell__now_us());
}

void cell__exchange_at(struct cell__exchange *exchange, int64_t at_us)
{
	exchange->at_us = at_us;
	arm(exchange->web, at_us);
}

int cell__exchange_add_header(struct cell__exchange *exchange, const char *name, const char *value)
{
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	return cell__buf_printf(&line, "%s: %s", name, value) < 0 ? -1 : cell__http_add_header(&exchange->transfer, line.data);
}

static int set_headers(struct cell__exchange *exchange)
{
	struct cell__web *web = exchange->web;
	int rc = 0;
	for (size_t i = 0; rc == 0 && web->headers && web->headers[i]; i++)
		rc = cell__http_add_header(&exchange->transfer, web->headers[i]);
	for (size_t i = 0; rc == 0 && exchange->headers && exchange->headers[i]; i++)
		rc = cell__http_add_header(&exchange->transfer, exchange->headers[i]);
	if (rc == 0 && exchange->accept)
		rc = cell__exchange_add_header(exchange, "Accept", exchange->accept);
	if (rc == 0 && strcmp(exchange->method, "POST") == 0)
		rc = cell__http_add_header(&exchange->transfer, "Content-Type: application/json");
	return rc < 0 || !web->ops->add_headers ? rc : web->ops->add_headers(web, exchange);
}

int cell__exchange_start(struct cell__exchange *exchange, const char *url, long timeout_ms, struct cell_error *err)
{
	cell__http_clear_headers(&exchange->transfer);
	exchange->status = 0;
	exchange->is_sse = exchange->is_json = exchange->too_big = exchange->fresh = exchange->ended = false;
	exchange->text.size = exchange->challenge.size = 0;
	exchange->session[0] = '\0';
	cell__sse_restart(&exchange->sse);
	if (set_headers(exchange) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	const struct cell__http_request request = { .method = exchange->method,
						    .url = url,
						    .body = strcmp(exchange->method, "POST") == 0 ? exchange->body.data : NULL,
						    .body_size = exchange->body.size,
						    .connect_ms = exchange->web->connect_timeout_ms,
						    .timeout_ms = timeout_ms };
	if (cell__http_start(exchange->web->http, &exchange->transfer, &request) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
	exchange->running = true;
	return 0;
}

/* ---- words ---- */

/* The message of a JSON-RPC error in the body, or the body. */
static void explain_status(const struct cell__exchange *exchange, struct cell_error *ret_err)
{
	const struct cell__buf *body = &exchange->text;
	json_t *json = exchange->is_json && body->data ? json_loadb(body->data, body->size, 0, NULL) : NULL;
	const json_t *error = json_object_get(json, "error");
	const char *words = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (!words && body->size > 0 && cell__buf_add_utf8(&text, body->data, body->size) == 0)
		words = text.data;
	CELL_AUTO_FREE char *scope = exchange->challenge.size > 0 ? cell__oauth_challenge(exchange->challenge.data, "scope") : NULL;
	cell_fail(ret_err, CELL_E_TOOL, 0, "the server answered HTTP %ld%s%.120s%s%.100s", exchange->status, words && *words ? ": " : "",
		  words ? words : "", scope ? "; log in for the scope: " : "", scope ? scope : "");
	json_decref(json);
}

void cell__exchange_explain(const struct cell__exchange *exchange, struct cell_error *ret_err)
{
	if (exchange->too_big)
		cell_fail(ret_err, CELL_E_LIMIT, 0, "the server sent a message of more than %u bytes", CELL_RPC_MAX_BYTES);
	else if (exchange->code != CURLE_OK)
		cell_fail(ret_err, CELL_E_TOOL, 0, "the request to the server failed: %.180s",
			  cell__http_explain(&exchange->transfer, exchange->code));
	else
		explain_status(exchange, ret_err);
}

char *cell__web_resolve(const char *base, const char *target)
{
	CURLU *from = curl_url(), *to = curl_url();
	char *found = NULL;
	static const CURLUPart parts[] = { CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT };
	bool same = from && to && curl_url_set(from, CURLUPART_URL, base, 0) == CURLUE_OK &&
		    curl_url_set(to, CURLUPART_URL, base, 0) == CURLUE_OK && curl_url_set(to, CURLUPART_URL, target, 0) == CURLUE_OK;
	for (size_t i = 0; same && i < sizeof parts / sizeof *parts; i++) {
		char *a = NULL, *b = NULL;
		same = curl_url_get(from, parts[i], &a, CURLU_DEFAULT_PORT) == CURLUE_OK &&
		       curl_url_get(to, parts[i], &b, CURLU_DEFAULT_PORT) == CURLUE_OK && strcasecmp(a, b) == 0;
		curl_free(a);
		curl_free(b);
	}
	char *url = NULL;
	if (same && curl_url_get(to, CURLUPART_URL, &url, 0) == CURLUE_OK)
		found = cell__strdup(url);
	curl_free(url);
	curl_url_cleanup(from);
	curl_url_cleanup(to);
	return found;
}

/* ---- the whole ---- */

int cell__web_init(struct cell__web *web, const struct cell__web_ops *ops, const struct cell__mcp_transport_spec *spec,
		   struct cell_error *err)
{
	web->loop = spec->loop;
	web->ops = ops;
	web->connect_timeout_ms = spec->connect_timeout_ms;
	web->url = cell__strdup(spec->launch->url);
	web->headers = cell__strings_copy((const char *const *)spec->launch->headers);
	if (!web->url || !web->headers || cell__http_create(spec->loop, CELL_WEB_LIMIT_CONNECTIONS, &web->http, err) < 0) {
		free_headers(web);
		free(web->url);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for HTTP");
	}
	web->timer.data = web;
	uv_timer_init(cell__loop_uv(spec->loop), &web->timer);
	return 0;
}

void cell__web_close(struct cell__web *web)
{
	web->closing = true;
	for (struct cell__exchange *exchange = web->list; exchange; exchange = exchange->next)
		cell__exchange_drop(exchange);
	web->armed_us = 0;
	arm(web, cell__now_us());
}
