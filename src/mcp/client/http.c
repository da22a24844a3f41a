/*
 * Streamable HTTP: every message is a POST; its answer is a JSON body, or an event stream that ends with it.
 *
 *     POST ──┬── 202: a notification or an answer of ours was accepted
 *            ├── 200 JSON: the answer
 *            ├── 200 event stream ──the answer──▶ linger ──▶ over
 *            │        └──ends before it──▶ wait as long as the server asked ──▶ GET with Last-Event-ID ──▶ continues
 *            ├── 404, and we have a session: expired()
 *            └── anything else: refused()
 *     GET (from the agreement on) ── an event stream of messages outside of requests; resumed when it ends
 *     DELETE ── goodbye, when there is a session
 *
 * Messages of revision 2026-07-28 come with headers of their own. They know no session, no GET and no DELETE, a stream that breaks is not
 * resumed, and closing it cancels its request.
 *
 * Redirects are followed to the same origin only, and only those that keep a POST a POST: our headers may hold secrets.
 */
#define _GNU_SOURCE
#include <string.h>
#include <strings.h>

#include "mcp/client/web.h"
#include "wire/jsonrpc.h"

#define ACCEPT_BOTH "application/json, text/event-stream"
#define RETRY_MS 1000          /* before a stream is resumed, unless the server sets it */
#define RETRY_MAX_MS 30000
#define MAX_TRIES 10u          /* in a row without an event */
#define LINGER_MS 2000         /* for a stream to end by itself after its answer */
#define OPENING_MS 5000        /* for the server to take the first message after the agreement */

enum { POST, LISTEN, GOODBYE };

struct http {
	struct cell__mcp_transport base;
	struct cell__web web;
	char session[CELL_WEB_LIMIT_SESSION + 1];
	char version[16]; /* "": not agreed on */
	bool closed, opened;
	bool no_listening; /* the server has no such stream */
	struct cell__exchange *listener;
	struct cell__exchange *opening; /* reports that we are ready; other messages wait for it, or they could arrive first */
};

static struct http *of(struct cell__web *web)
{
	return (struct http *)((char *)web - offsetof(struct http, web));
}

static int add_headers(struct cell__web *web, struct cell__exchange *exchange)
{
	struct http *http = of(web);
	int rc = 0;
	if (exchange->headers)
		return 0; /* it has its own */
	if (http->session[0])
		rc |= cell__exchange_add_header(exchange, "Mcp-Session-Id", http->session);
	/* The header exists since this revision. */
	if (strcmp(http->version, "2025-06-18") >= 0)
		rc |= cell__exchange_add_header(exchange, "MCP-Protocol-Version", http->version);
	if (strcmp(exchange->method, "GET") == 0 && exchange->sse.id[0])
		rc |= cell__exchange_add_header(exchange, "Last-Event-ID", exchange->sse.id);
	return rc;
}

/* ---- reports to the owner ---- */

static void refuse(struct http *http, struct cell__exchange *exchange, const struct cell_error *err)
{
	int64_t id = exchange->id;
	bool answered = exchange->code == CURLE_OK;
	const struct cell__mcp_rejection refusal = {
		.err = *err,
		.status = answered ? exchange->status : 0,
		.text = answered && exchange->is_json && exchange->text.size > 0 ? exchange->text.data : NULL,
		.size = exchange->text.size,
	};
	exchange->id = 0;
	cell__exchange_drop(exchange); /* its memory stays until a later iteration of the loop */
	if (!http->closed)
		http->base.events->refused(http->base.owner, id, &refusal);
}

static void refuse_for(struct http *http, struct cell__exchange *exchange, int code, const char *what)
{
	struct cell_error err;
	cell_fail(&err, code, 0, "%s", what);
	refuse(http, exchange, &err);
}

static void tell(struct http *http, const char *text, size_t size)
{
	if (!http->closed)
		http->base.events->message(http->base.owner, text, size);
}

/* ---- streams that are taken up again ---- */

static int64_t retry_us(const struct cell__exchange *exchange)
{
	int64_t ms = exchange->sse.retry_ms >= 0 ? exchange->sse.retry_ms : RETRY_MS;
	if (exchange->tries > 1)
		ms = (ms > 0 ? ms : 100) << (exchange->tries < 10 ? exchange->tries - 1 : 9);
	int64_t most = exchange->sse.retry_ms > RETRY_MAX_MS ? exchange->sse.retry_ms : RETRY_MAX_MS;
	return cell__now_us() + (ms < most ? ms : most) * 1000;
}

/* True: it will go on. */
static bool take_up_later(struct cell__exchange *exchange)
{
	exchange->tries = exchange->fresh ? 1 : exchange->tries + 1;
	if (exchange->tries > MAX_TRIES)
		return false;
	exchange->method = "GET";
	exchange->accept = "text/event-stream";
	cell__exchange_at(exchange, retry_us(exchange));
	return true;
}

static void start_listening(struct http *http)
{
	struct cell_error err;
	if (http->listener || http->no_listening || http->closed || !http->version[0])
		return;
	struct cell__exchange *exchange = cell__exchange_create(&http->web, "GET", "text/event-stream", &err);
	if (!exchange)
		return; /* without it there are only answers */
	exchange->kind = LISTEN;
	http->listener = exchange;
	if (cell__exchange_start(exchange, http->web.url, 0, &err) < 0) {
		http->listener = NULL;
		cell__exchange_drop(exchange);
	}
}

static void end_listening(struct http *http, struct cell__exchange *exchange)
{
	struct cell_error err;
	bool answered = exchange->code == CURLE_OK && exchange->status >= 400;
	if (exchange->too_big) {
		cell__exchange_explain(exchange, &err);
		http->closed = true;
		cell__web_close(&http->web);
		http->base.events->lost(http->base.owner, &err);
		return;
	}
	if (!answered && take_up_later(exchange))
		return;
	/* It has no such stream, or does not answer: a later success tries again in the second case. */
	http->no_listening = answered;
	http->listener = NULL;
	cell__exchange_drop(exchange);
	if (answered && exchange->status == 404 && http->session[0])
		http->base.events->expired(http->base.owner, 0);
}

static void end_opening(struct http *http)
{
	http->opening = NULL;
	for (struct cell__exchange *exchange = http->web.list; exchange; exchange = exchange->next)
		if (exchange->held)
			cell__exchange_at(exchange, cell__now_us());
}

static void tick(struct cell__web *web, struct cell__exchange *exchange)
{
	struct http *http = of(web);
	struct cell_error err;
	if (exchange == http->opening) {
		end_opening(http);
		return;
	}
	if (exchange->kind == POST && exchange->id == 0 && !exchange->held) {
		cell__exchange_drop(exchange); /* it lingered long enough */
		return;
	}
	exchange->held = false;
	if (cell__exchange_start(exchange, http->web.url, 0, &err) == 0)
		return;
	if (exchange->kind == LISTEN) {
		http->listener = NULL;
		cell__exchange_drop(exchange);
	} else {
		refuse(http, exchange, &err);
	}
}

/* The id comes with the answer to initialize, and later requests must carry it. */
static void adopt_session(struct http *http, const struct cell__exchange *exchange)
{
	if (exchange->session[0] && !http->session[0] && exchange->kind == POST && !exchange->headers)
		memcpy(http->session, exchange->session, sizeof http->session);
}

static void handle_event(struct cell__web *web, struct cell__exchange *exchange, const struct cell__sse_event *event)
{
	adopt_session(of(web), exchange);
	/* An event without data only gives the position in the stream. */
	if (event->size > 0 && strcmp(event->type, "message") == 0)
		tell(of(web), event->data, event->size);
}

/* ---- the end of a POST ---- */

static bool follow(struct http *http, struct cell__exchange *exchange)
{
	struct cell_error err;
	char *target = NULL;
	curl_easy_getinfo(exchange->transfer.easy, CURLINFO_REDIRECT_URL, &target);
	bool may = target && exchange->redirects++ < CELL_WEB_LIMIT_REDIRECTS;
	char *url = may ? cell__web_resolve(http->web.url, target) : NULL;
	if (!url)
		return false;
	/* It is where the server is from now on. */
	free(http->web.url);
	http->web.url = url;
	return cell__exchange_start(exchange, url, 0, &err) == 0;
}

/* Whether the server has dropped the session. Some servers report that with a wrong status. */
static bool is_expired(const struct http *http, const struct cell__exchange *exchange)
{
	if (!http->session[0])
		return false;
	return exchange->status == 404 ||
	       (exchange->status == 400 && exchange->text.size > 0 && strcasestr(exchange->text.data, "session"));
}

static void end_stream(struct http *http, struct cell__exchange *exchange)
{
	if (exchange->id == 0)
		cell__exchange_drop(exchange);
	else if (exchange->too_big)
		refuse_for(http, exchange, CELL_E_LIMIT, "the server sent a message that is too large");
	else if (exchange->headers)
		refuse_for(http, exchange, CELL_E_TOOL, "the server ended its stream without an answer");
	else if (!exchange->sse.id[0])
		refuse_for(http, exchange, CELL_E_TOOL, "the server ended its stream without an answer and without an id to resume from");
	else if (!take_up_later(exchange))
		refuse_for(http, exchange, CELL_E_TOOL, "the server's stream contained no answer, although it was resumed several times");
}

static void end_json(struct http *http, struct cell__exchange *exchange)
{
	if (exchange->text.size > 0)
		tell(http, exchange->text.data, exchange->text.size);
	if (exchange->dead)
		return;
	if (exchange->id)
		refuse_for(http, exchange, CELL_E_PROTOCOL, "the server accepted the request but did not answer it");
	else
		cell__exchange_drop(exchange);
}

static void end_post(struct http *http, struct cell__exchange *exchange)
{
	struct cell_error err;
	long status = exchange->status;
	bool fine = exchange->code == CURLE_OK && status >= 200 && status < 300;
	if (fine)
		adopt_session(http, exchange);
	if (exchange->is_sse) {
		end_stream(http, exchange);
	} else if (exchange->sse.id[0] && exchange->id && exchange->code != CURLE_OK && !exchange->headers) {
		end_stream(http, exchange); /* taking it up failed on the way */
	} else if (fine) {
		end_json(http, exchange);
	} else if (exchange->code == CURLE_OK && (status == 307 || status == 308) && follow(http, exchange)) {
		return;
	} else if (exchange->code == CURLE_OK && is_expired(http, exchange)) {
		int64_t id = exchange->id;
		exchange->id = 0;
		cell__exchange_drop(exchange);
		if (!http->closed)
			http->base.events->expired(http->base.owner, id);
		return;
	} else {
		cell__exchange_explain(exchange, &err);
		refuse(http, exchange, &err);
		return;
	}
	/* First the server must have heard that we are ready. */
	if (fine && exchange->late && !exchange->headers && !http->closed)
		start_listening(http);
}

static void handle_end(struct cell__web *web, struct cell__exchange *exchange)
{
	struct http *http = of(web);
	if (exchange->kind == GOODBYE) {
		cell__exchange_drop(exchange);
		cell__web_close(web);
	} else if (exchange->kind == LISTEN) {
		end_listening(http, exchange);
	} else {
		end_post(http, exchange);
		if (exchange == http->opening && exchange->dead)
			end_opening(http);
	}
}

static void handle_gone(struct cell__web *web)
{
	struct http *http = of(web);
	const struct cell__mcp_transport_events *events = http->base.events;
	void *owner = http->base.owner;
	free(http);
	events->gone(owner);
}

/* ---- the owner's side ---- */

static int send_message(struct cell__mcp_transport *transport, const struct cell__mcp_outgoing *out, struct cell_error *err)
{
	struct http *http = (struct http *)transport;
	struct cell__exchange *exchange = cell__exchange_create_post(&http->web, ACCEPT_BOTH, POST, out, err);
	if (!exchange)
		return -1;
	exchange->late = http->version[0] != '\0' && !exchange->headers;
	exchange->held = http->opening != NULL;
	if (exchange->held)
		return 0;
	if (cell__exchange_start(exchange, http->web.url, 0, err) < 0) {
		cell__exchange_drop(exchange);
		return -1;
	}
	if (exchange->late && !http->opened) {
		http->opened = true;
		http->opening = exchange;
		cell__exchange_at(exchange, cell__now_us() + OPENING_MS * 1000);
	}
	return 0;
}

static void forget(struct cell__mcp_transport *transport, int64_t id)
{
	struct http *http = (struct http *)transport;
	for (struct cell__exchange *exchange = http->web.list; exchange; exchange = exchange->next)
		if (!exchange->dead && exchange->kind == POST && exchange->id == id) {
			exchange->id = 0;
			if (exchange->held)
				cell__exchange_drop(exchange);
			else
				cell__exchange_at(exchange, cell__now_us() + LINGER_MS * 1000);
			return;
		}
}

static void abandon(struct cell__mcp_transport *transport, int64_t id)
{
	struct http *http = (struct http *)transport;
	for (struct cell__exchange *exchange = http->web.list; exchange; exchange = exchange->next)
		if (!exchange->dead && exchange->kind == POST && exchange->id == id) {
			exchange->id = 0;
			cell__exchange_drop(exchange);
			return;
		}
}

static void agreed(struct cell__mcp_transport *transport, const char *version)
{
	struct http *http = (struct http *)transport;
	strncpy(http->version, version, sizeof http->version - 1);
}

static void close_http(struct cell__mcp_transport *transport)
{
	struct http *http = (struct http *)transport;
	struct cell_error err;
	http->closed = true;
	struct cell__exchange *goodbye = http->session[0] ? cell__exchange_create(&http->web, "DELETE", NULL, &err) : NULL;
	if (goodbye) {
		goodbye->kind = GOODBYE;
		for (struct cell__exchange *exchange = http->web.list; exchange; exchange = exchange->next)
			if (exchange != goodbye)
				cell__exchange_drop(exchange);
		if (cell__exchange_start(goodbye, http->web.url, CELL_MCP_CLOSE_GRACE_MS, &err) == 0)
			return;
	}
	cell__web_close(&http->web);
}

static const struct cell__web_ops web_ops = {
	.add_headers = add_headers,
	.event = handle_event,
	.end = handle_end,
	.tick = tick,
	.gone = handle_gone,
};

static const struct cell__mcp_transport_ops ops = {
	.name = "streamable_http",
	.send = send_message,
	.forget = forget,
	.abandon = abandon,
	.agreed = agreed,
	.close = close_http,
};

int cell__mcp_http_open(const struct cell__mcp_transport_spec *spec, struct cell__mcp_transport **ret_transport, struct cell_error *err)
{
	struct http *http = cell__mcp_transport_create(sizeof *http, &ops, spec, err);
	if (!http)
		return -1;
	if (cell__web_init(&http->web, &web_ops, spec, err) < 0) {
		free(http);
		return -1;
	}
	*ret_transport = &http->base;
	return 0;
}
