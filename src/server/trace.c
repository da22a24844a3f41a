/*
 * Spans of OpenTelemetry for what clients do here (otlp.h has how they leave).
 *
 *     the client's span (traceparent) ──▶ run ──▶ cell ──▶ tool | mcp | install | ... ──▶ approval
 *                                   └───▶ open
 *
 * A run begins with its request, its cell when it has a slot.  Without a traceparent a run is a trace of its own; one that says that it is
 * not recorded is not recorded here either.  A fork's first cell has a link to the last cell of its source.  The code is a hash, unless the
 * operator asked for its text.
 */
#include "server/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "gate/redact.h"
#include "server/otlp.h"

#define MAX_CALLS 64 /* of a run that are open at once; more are not traced */
#define CODE_BYTES (16u << 10)
#define METRICS_US 15000000

struct call {
	uint64_t id; /* 0: free */
	char span[CELL_SPAN_DIGITS + 1], approval[CELL_SPAN_DIGITS + 1];
	int64_t begun_ns, asked_ns;
};

struct cell__trace {
	char trace[CELL_TRACE_DIGITS + 1], parent[CELL_SPAN_DIGITS + 1];
	char run[CELL_SPAN_DIGITS + 1], cell[CELL_SPAN_DIGITS + 1];
	int64_t begun_ns, started_ns;
	char hash[CELL__SHA256_SIZE];
	char *code; /* or NULL */
	struct call calls[MAX_CALLS];
};

struct span {
	const char *name, *trace, *id, *parent; /* parent "": none */
	int64_t begun_ns, ended_ns;
	const char *error; /* NULL: it succeeded */
	const struct cell__trace_ids *link; /* NULL: none */
	struct cell__buf attributes;
};

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void add_attribute(struct span *span, const char *key, const char *value)
{
	if (!value || !*value)
		return;
	if (cell__buf_printf(&span->attributes, "%s{\"key\":\"%s\",\"value\":{\"stringValue\":", span->attributes.size ? "," : "", key) ==
		    0 &&
	    cell__buf_add_json_string(&span->attributes, value, strlen(value)) == 0)
		(void)cell__buf_add_str(&span->attributes, "}}");
}

/* Ends the span: its attributes are freed. */
static void send_span(struct cell_server *server, struct span *span)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc = cell__buf_printf(&json, "{\"traceId\":\"%s\",\"spanId\":\"%s\",", span->trace, span->id);

	if (*span->parent)
		rc |= cell__buf_printf(&json, "\"parentSpanId\":\"%s\",", span->parent);
	rc |= cell__buf_printf(&json,
			       "\"name\":\"%s\",\"kind\":%d,\"startTimeUnixNano\":\"%" PRId64 "\",\"endTimeUnixNano\":\"%" PRId64
			       "\",\"attributes\":[",
			       span->name, strcmp(span->name, "run") && strcmp(span->name, "open") ? 1 : 2, span->begun_ns,
			       span->ended_ns ? span->ended_ns : now_ns());
	rc |= cell__buf_add(&json, span->attributes.data, span->attributes.size);
	rc |= cell__buf_add_str(&json, "],\"status\":{");
	if (span->error) {
		rc |= cell__buf_add_str(&json, "\"code\":2,\"message\":");
		rc |= cell__buf_add_json_string(&json, span->error, strlen(span->error));
	}
	rc |= cell__buf_add_str(&json, "}");
	if (span->link && *span->link->span)
		rc |= cell__buf_printf(&json, ",\"links\":[{\"traceId\":\"%s\",\"spanId\":\"%s\"}]", span->link->trace, span->link->span);
	rc |= cell__buf_add_str(&json, "}");
	if (!rc)
		cell__otlp_add(server->otlp, json.data, json.size);
	cell__buf_finish(&span->attributes);
}

/* The client's trace, or a new one; false: it is not recorded. */
static bool read_parent(const struct cell__request *request, char trace[static CELL_TRACE_DIGITS + 1],
			char parent[static CELL_SPAN_DIGITS + 1])
{
	struct cell__traceparent given;

	if (!cell__traceparent_read(cell__request_header(request, "traceparent"), &given)) {
		cell__random_hex(trace, CELL_TRACE_DIGITS);
		*parent = '\0';
		return true;
	}
	strcpy(trace, given.trace);
	strcpy(parent, given.span);
	return given.sampled;
}

struct cell__trace *cell__trace_begin(const struct cell__request *request, const char *code, size_t size)
{
	struct cell_server *server = request->server;
	struct cell__trace *trace = server->otlp ? cell__alloc(1, sizeof(*trace)) : NULL;

	if (!trace)
		return NULL; /* without memory this run is not traced */
	if (!read_parent(request, trace->trace, trace->parent)) {
		free(trace);
		return NULL;
	}
	cell__random_hex(trace->run, CELL_SPAN_DIGITS);
	cell__random_hex(trace->cell, CELL_SPAN_DIGITS);
	trace->begun_ns = now_ns();
	(void)cell__sha256_hex(code, size, trace->hash);
	if (server->opts.otlp_code)
		trace->code = cell__strndup(code, size < CODE_BYTES ? size : CODE_BYTES - cell__utf8_cut(code, CODE_BYTES));
	return trace;
}

void cell__trace_started(struct cell__trace *trace)
{
	if (trace)
		trace->started_ns = now_ns();
}

static struct call *find_call(struct cell__trace *trace, uint64_t id, bool makes)
{
	struct call *free_one = NULL;

	for (size_t i = 0; i < MAX_CALLS; i++) {
		if (trace->calls[i].id == id)
			return &trace->calls[i];
		if (!trace->calls[i].id && !free_one)
			free_one = &trace->calls[i];
	}
	if (!makes || !free_one)
		return NULL;
	*free_one = (struct call){ .id = id, .begun_ns = now_ns() };
	cell__random_hex(free_one->span, CELL_SPAN_DIGITS);
	return free_one;
}

/* The name of a span of a call: what is asked, and of whom. */
static const char *call_name(const struct cell_call_info *call)
{
	if (strcmp(call->kind, "tool"))
		return call->kind;
	return !strcmp(call->adapter, "mcp") ? "mcp" : "tool";
}

static void add_call(struct span *span, const struct cell_call_info *call)
{
	add_attribute(span, "workcell.call.kind", call->kind);
	add_attribute(span, "workcell.tool", call->tool);
	add_attribute(span, "workcell.callable", call->callable);
	add_attribute(span, "workcell.adapter", call->adapter);
	add_attribute(span, "workcell.request.id", call->request_id);
}

void cell__trace_event(struct cell_server *server, struct cell__trace *trace, const struct cell_event *event)
{
	struct span span = { .trace = trace ? trace->trace : "" };
	struct call *call;

	if (!trace || !event->call)
		return;
	call = find_call(trace, event->call->id, event->type == CELL_EVENT_CALL_STARTED);
	if (!call)
		return;
	if (event->type == CELL_EVENT_APPROVAL) {
		call->asked_ns = now_ns();
		cell__random_hex(call->approval, CELL_SPAN_DIGITS);
	} else if (event->type == CELL_EVENT_APPROVAL_ENDED && call->asked_ns) {
		span.name = "approval";
		span.id = call->approval;
		span.parent = call->span;
		span.begun_ns = call->asked_ns;
		add_call(&span, event->call);
		add_attribute(&span, "workcell.decision", event->decision);
		call->asked_ns = 0;
		send_span(server, &span);
	} else if (event->type == CELL_EVENT_CALL_ENDED) {
		span.name = call_name(event->call);
		span.id = call->span;
		span.parent = trace->cell;
		span.begun_ns = call->begun_ns;
		span.error = event->decision && strcmp(event->decision, "ok") ? event->decision : NULL;
		add_call(&span, event->call);
		call->id = 0;
		send_span(server, &span);
	}
}

void cell__trace_ended(struct cell__served *served, struct cell__trace *trace, const struct cell_result *result)
{
	const struct cell_outcome *outcome = result ? cell_result_error(result) : NULL;
	const char *error = !result ? "it did not run" : outcome ? cell_code_word(outcome->code) : NULL;
	const char *executor = served->server->session.executor;
	int64_t end = now_ns();

	if (!trace)
		return;
	if (trace->started_ns) {
		struct span cell = { "cell", trace->trace, trace->cell,   trace->run,   trace->started_ns,
				     end,    error,        &served->link, CELL_BUF_INIT };

		add_attribute(&cell, "workcell.session.id", served->id);
		add_attribute(&cell, "workcell.executor", executor ? executor : "subprocess");
		add_attribute(&cell, "workcell.code.sha256", trace->hash);
		add_attribute(&cell, "workcell.code", trace->code);
		add_attribute(&cell, "workcell.state", result ? cell_result_state(result) : NULL);
		add_attribute(&cell, "exception.type", outcome ? outcome->type : NULL);
		send_span(served->server, &cell);
		served->link = (struct cell__trace_ids){ 0 };
		strcpy(served->last.trace, trace->trace);
		strcpy(served->last.span, trace->cell);
	}
	struct span run = { "run", trace->trace, trace->run, trace->parent, trace->begun_ns, end, error, NULL, CELL_BUF_INIT };
	add_attribute(&run, "workcell.session.id", served->id);
	add_attribute(&run, "workcell.owner", served->owner);
	send_span(served->server, &run);
}

void cell__trace_destroy(struct cell__trace *trace)
{
	if (trace)
		free(trace->code);
	free(trace);
}

void cell__trace_opened(const struct cell__request *request, const struct cell__served *served, const struct cell_error *err)
{
	char trace[CELL_TRACE_DIGITS + 1], parent[CELL_SPAN_DIGITS + 1], id[CELL_SPAN_DIGITS + 1];
	struct span span = { .name = "open", .trace = trace, .id = id, .parent = parent, .error = err ? cell_code_word(err->code) : NULL };

	if (!request->server->otlp || !read_parent(request, trace, parent))
		return;
	cell__random_hex(id, CELL_SPAN_DIGITS);
	span.ended_ns = now_ns();
	span.begun_ns = span.ended_ns - (cell__now_us() - request->begun_us) * 1000;
	add_attribute(&span, "workcell.session.id", served->id);
	add_attribute(&span, "workcell.executor", request->server->session.executor ? request->server->session.executor : "subprocess");
	send_span(request->server, &span);
}

void cell__trace_sweep(struct cell_server *server, int64_t now_us)
{
	char *text;

	if (!server->otlp || now_us - server->metrics_us < METRICS_US)
		return;
	server->metrics_us = now_us;
	text = cell__metrics(server);
	if (text)
		cell__otlp_set_metrics(server->otlp, text);
}
