/*
 * The transport of revision 2024-11-05: one event stream for everything that the server sends, and a URL named in it
 * for our messages.
 *
 *     GET ──event "endpoint"──▶ connected: events are messages, messages are POSTs ──stream ends──▶ lost()
 *
 * Messages wait until the endpoint is known.
 */
#define _GNU_SOURCE
#include <string.h>

#include "mcp/client/web.h"
#include "wire/jsonrpc.h"

enum { STREAM, POST };

struct sse {
	struct cell__mcp_transport base;
	struct cell__web web;
	char *endpoint; /* NULL: not known yet */
	bool closed;
};

static struct sse *of(struct cell__web *web)
{
	return (struct sse *)((char *)web - offsetof(struct sse, web));
}

static void lose(struct sse *sse, const struct cell_error *err)
{
	if (sse->closed)
		return;
	sse->closed = true;
	cell__web_close(&sse->web);
	sse->base.events->lost(sse->base.owner, err);
}

static void refuse(struct sse *sse, struct cell__exchange *exchange, const struct cell_error *err)
{
	int64_t id = exchange->id;
	cell__exchange_drop(exchange);
	if (!sse->closed)
		sse->base.events->refused(sse->base.owner, id, &(struct cell__mcp_rejection){ .err = *err });
}

static void start_waiting(struct sse *sse)
{
	struct cell_error err;
	/* New ones are at the head of the list, and the oldest must be sent first. */
	for (;;) {
		struct cell__exchange *oldest = NULL;
		for (struct cell__exchange *exchange = sse->web.list; exchange; exchange = exchange->next)
			if (exchange->kind == POST && exchange->status == 0 && !exchange->running && !exchange->dead && !exchange->ended)
				oldest = exchange;
		if (!oldest || sse->closed)
			return;
		if (cell__exchange_start(oldest, sse->endpoint, 0, &err) < 0)
			refuse(sse, oldest, &err);
	}
}

static void handle_endpoint(struct sse *sse, const struct cell__sse_event *event)
{
	struct cell_error err;
	if (sse->endpoint)
		return;
	sse->endpoint = cell__web_resolve(sse->web.url, event->data);
	if (sse->endpoint) {
		start_waiting(sse);
		return;
	}
	cell_fail(&err, CELL_E_PROTOCOL, 0, "the server's endpoint is not a URL on the same host: %.100s", event->data);
	lose(sse, &err);
}

static void handle_event(struct cell__web *web, struct cell__exchange *exchange, const struct cell__sse_event *event)
{
	struct sse *sse = of(web);
	if (exchange->kind != STREAM || sse->closed || event->size == 0)
		return;
	if (strcmp(event->type, "endpoint") == 0)
		handle_endpoint(sse, event);
	else if (strcmp(event->type, "message") == 0)
		sse->base.events->message(sse->base.owner, event->data, event->size);
}

static void handle_end(struct cell__web *web, struct cell__exchange *exchange)
{
	struct sse *sse = of(web);
	struct cell_error err;
	bool fine = exchange->code == CURLE_OK && exchange->status >= 200 && exchange->status < 300;
	if (exchange->kind == STREAM) {
		if (fine && exchange->is_sse)
			cell_fail(&err, CELL_E_TOOL, 0, "the server ended its event stream");
		else if (fine)
			cell_fail(&err, CELL_E_PROTOCOL, 0, "the server's answer is not an event stream");
		else
			cell__exchange_explain(exchange, &err);
		lose(sse, &err);
	} else if (fine) {
		cell__exchange_drop(exchange); /* the answer comes by the stream */
	} else {
		cell__exchange_explain(exchange, &err);
		refuse(sse, exchange, &err);
	}
}

static void handle_gone(struct cell__web *web)
{
	struct sse *sse = of(web);
	const struct cell__mcp_transport_events *events = sse->base.events;
	void *owner = sse->base.owner;
	free(sse->endpoint);
	free(sse);
	if (events)
		events->gone(owner);
}

/* ---- the owner's side ---- */

static int send_message(struct cell__mcp_transport *transport, const struct cell__mcp_outgoing *out, struct cell_error *err)
{
	struct sse *sse = (struct sse *)transport;
	struct cell__exchange *exchange = cell__exchange_create_post(&sse->web, NULL, POST, out, err);
	if (!exchange)
		return -1;
	if (sse->endpoint && cell__exchange_start(exchange, sse->endpoint, 0, err) < 0) {
		cell__exchange_drop(exchange);
		return -1;
	}
	return 0;
}

static void close_sse(struct cell__mcp_transport *transport)
{
	struct sse *sse = (struct sse *)transport;
	sse->closed = true;
	cell__web_close(&sse->web);
}

static const struct cell__web_ops web_ops = { .event = handle_event, .end = handle_end, .gone = handle_gone };

static const struct cell__mcp_transport_ops ops = {
	.name = "sse",
	.send = send_message,
	.close = close_sse,
};

int cell__mcp_sse_open(const struct cell__mcp_transport_spec *spec, struct cell__mcp_transport **ret_transport, struct cell_error *err)
{
	struct sse *sse = cell__mcp_transport_create(sizeof *sse, &ops, spec, err);
	if (!sse)
		return -1;
	if (cell__web_init(&sse->web, &web_ops, spec, err) < 0) {
		free(sse);
		return -1;
	}
	struct cell__exchange *stream = cell__exchange_create(&sse->web, "GET", "text/event-stream", err);
	if (stream && cell__exchange_start(stream, sse->web.url, 0, err) == 0) {
		stream->kind = STREAM;
		*ret_transport = &sse->base;
		return 0;
	}
	/* No callback for a connection that was never made. */
	sse->base.events = NULL;
	sse->closed = true;
	cell__web_close(&sse->web);
	return -1;
}
