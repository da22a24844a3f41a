/*
 * Spans of OpenTelemetry for what clients do here (otlp.h has how they leave).
 *
 *     the client's span (traceparent) ──▶ run ──▶ cell ──▶ tool | install | ... ──▶ approval, mcp (the request to its server)
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

#include "base/sized.h"
#include "gate/redact.h"
#include "mcp/server/server.h"
#include "server/otlp.h"

#define MAX_CALLS 64 /* of a run that are open at once; more are not traced */
#define CODE_BYTES (16u << 10)
#define METRICS_US 15000000

struct call {
	uint64_t id; /* 0: free */
	char span[CELL_SPAN_DIGITS + 1], approval[CELL_SPAN_DIGITS + 1];
	char request[CELL_SPAN_DIGITS + 1]; /* to its MCP server; "": of another adapter */
	int64_t begun_ns, asked_ns;
	int64_t allowed_ns; /* 0: nobody was asked */
	bool refused;
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
	const struct cell__traceparent *link; /* NULL: none */
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

/* OTLP's numbers: a server's span, a client's, or one of neither. */
static int kind_of(const char *name)
{
	if (!strcmp(name, "run") || !strcmp(name, "open"))
		return 2;
	return strcmp(name, "mcp") ? 1 : 3;
}

/* Ends the span: its attributes are freed. */
static void send_span(struct cell__tracing *tracing, struct span *span)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc = cell__buf_printf(&json, "{\"traceId\":\"%s\",\"spanId\":\"%s\",", span->trace, span->id);

	if (*span->parent)
		rc |= cell__buf_printf(&json, "\"parentSpanId\":\"%s\",", span->parent);
	rc |= cell__buf_printf(&json,
			       "\"name\":\"%s\",\"kind\":%d,\"startTimeUnixNano\":\"%" PRId64 "\",\"endTimeUnixNano\":\"%" PRId64
			       "\",\"attributes\":[",
			       span->name, kind_of(span->name), span->begun_ns, span->ended_ns ? span->ended_ns : now_ns());
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
		cell__otlp_add(tracing->otlp, json.data, json.size);
	cell__buf_finish(&span->attributes);
}

/* The client's trace, or a new one; false: it is not recorded.  traceparent may be NULL. */
static bool read_parent(const char *traceparent, char trace[static CELL_TRACE_DIGITS + 1], char parent[static CELL_SPAN_DIGITS + 1])
{
	struct cell__traceparent given;

	if (!cell__traceparent_read(traceparent, &given)) {
		cell__random_hex(trace, CELL_TRACE_DIGITS);
		*parent = '\0';
		return true;
	}
	strcpy(trace, given.trace);
	strcpy(parent, given.span);
	return given.sampled;
}

struct cell__trace *cell__trace_begin(const struct cell__tracing *tracing, const char *traceparent, const char *code, size_t size)
{
	struct cell__trace *trace = tracing->otlp ? cell__alloc(1, sizeof(*trace)) : NULL;

	if (!trace)
		return NULL; /* without memory this run is not traced */
	if (!read_parent(traceparent, trace->trace, trace->parent)) {
		free(trace);
		return NULL;
	}
	cell__random_hex(trace->run, CELL_SPAN_DIGITS);
	cell__random_hex(trace->cell, CELL_SPAN_DIGITS);
	trace->begun_ns = now_ns();
	(void)cell__sha256_hex(code, size, trace->hash);
	if (tracing->code)
		trace->code = cell__strndup(code, size < CODE_BYTES ? size : CODE_BYTES - cell__utf8_cut(code, CODE_BYTES));
	return trace;
}

bool cell__trace_parent(const struct cell__trace *trace, const char *traceparent, char ret_parent[static CELL_TRACEPARENT_SIZE])
{
	struct cell__traceparent parent = { .sampled = true };

	if (trace) {
		strcpy(parent.trace, trace->trace);
		strcpy(parent.span, trace->cell);
	} else if (!cell__traceparent_read(traceparent, &parent)) {
		return false;
	}
	cell__traceparent_write(&parent, ret_parent);
	return true;
}

void cell__trace_started(struct cell__trace *trace)
{
	if (trace)
		trace->started_ns = now_ns();
}

static struct call *find_call(struct cell__trace *trace, const struct cell_call_info *info, bool makes)
{
	bool is_mcp = !strcmp(info->kind, "tool") && !strcmp(info->adapter, "mcp");
	struct call *free_one = NULL;

	for (size_t i = 0; i < MAX_CALLS; i++) {
		if (trace->calls[i].id == info->id)
			return &trace->calls[i];
		if (!trace->calls[i].id && !free_one)
			free_one = &trace->calls[i];
	}
	if (!makes || !free_one)
		return NULL;
	*free_one = (struct call){ .id = info->id, .begun_ns = now_ns() };
	cell__random_hex(free_one->span, CELL_SPAN_DIGITS);
	/* The called server knows the call by its span_id: that of the request, where the call is more than its request. */
	if (is_mcp)
		cell__random_hex(free_one->request, CELL_SPAN_DIGITS);
	if (info->span_id && *info->span_id)
		snprintf(is_mcp ? free_one->request : free_one->span, CELL_SPAN_DIGITS + 1, "%s", info->span_id);
	return free_one;
}

static void add_call(struct span *span, const struct cell_call_info *call)
{
	add_attribute(span, "workcell.call.kind", call->kind);
	add_attribute(span, "workcell.tool", call->tool);
	add_attribute(span, "workcell.callable", call->callable);
	add_attribute(span, "workcell.adapter", call->adapter);
	add_attribute(span, "workcell.request.id", call->request_id);
}

/* What the MCP server took for the call; it is asked once the call may run. */
static void send_request(struct cell__tracing *tracing, const struct cell__trace *trace, const struct call *call,
			 const struct cell_event *event, const char *error)
{
	struct span span = { .name = "mcp", .trace = trace->trace, .id = call->request, .parent = call->span, .error = error };

	span.begun_ns = call->allowed_ns ? call->allowed_ns : call->begun_ns;
	add_attribute(&span, "rpc.system", "jsonrpc");
	add_attribute(&span, "rpc.method", "tools/call");
	add_attribute(&span, "workcell.tool", event->call->tool);
	add_attribute(&span, "workcell.callable", event->call->callable);
	send_span(tracing, &span);
}

void cell__trace_event(struct cell__tracing *tracing, struct cell__trace *trace, const struct cell_event *event)
{
	struct span span = { .trace = trace ? trace->trace : "" };
	struct call *call;

	if (!trace || !event->call)
		return;
	call = find_call(trace, event->call, event->type == CELL_EVENT_CALL_STARTED);
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
		call->allowed_ns = now_ns();
		call->refused = event->decision && strcmp(event->decision, "accepted") && strcmp(event->decision, "edited");
		send_span(tracing, &span);
	} else if (event->type == CELL_EVENT_CALL_ENDED) {
		span.name = event->call->kind;
		span.id = call->span;
		span.parent = trace->cell;
		span.begun_ns = call->begun_ns;
		span.error = event->decision && strcmp(event->decision, "ok") ? event->decision : NULL;
		add_call(&span, event->call);
		if (*call->request && !call->refused)
			send_request(tracing, trace, call, event, span.error);
		call->id = 0;
		send_span(tracing, &span);
	}
}

void cell__trace_ended(const struct cell__trace_place *place, struct cell__trace *trace, const struct cell_result *result)
{
	const struct cell_outcome *outcome = result ? cell_result_error(result) : NULL;
	const char *error = !result ? "it did not run" : outcome ? cell_code_word(outcome->code) : NULL;
	int64_t end = now_ns();

	if (!trace)
		return;
	if (trace->started_ns) {
		struct span cell = { "cell", trace->trace, trace->cell, trace->run,   trace->started_ns,
				     end,    error,        place->link, CELL_BUF_INIT };

		add_attribute(&cell, "workcell.session.id", place->session);
		add_attribute(&cell, "workcell.executor", place->tracing->executor);
		add_attribute(&cell, "workcell.code.sha256", trace->hash);
		add_attribute(&cell, "workcell.code", trace->code);
		add_attribute(&cell, "workcell.state", result ? cell_result_state(result) : NULL);
		add_attribute(&cell, "exception.type", outcome ? outcome->type : NULL);
		send_span(place->tracing, &cell);
		*place->link = (struct cell__traceparent){ 0 };
		strcpy(place->last->trace, trace->trace);
		strcpy(place->last->span, trace->cell);
	}
	struct span run = { "run", trace->trace, trace->run, trace->parent, trace->begun_ns, end, error, NULL, CELL_BUF_INIT };
	add_attribute(&run, "workcell.session.id", place->session);
	add_attribute(&run, "workcell.owner", place->owner);
	send_span(place->tracing, &run);
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

	if (!request->server->tracing.otlp || !read_parent(cell__request_header(request, "traceparent"), trace, parent))
		return;
	cell__random_hex(id, CELL_SPAN_DIGITS);
	span.ended_ns = now_ns();
	span.begun_ns = span.ended_ns - (cell__now_us() - request->begun_us) * 1000;
	add_attribute(&span, "workcell.session.id", served->id);
	add_attribute(&span, "workcell.executor", request->server->tracing.executor);
	send_span(&request->server->tracing, &span);
}

void cell__trace_sweep(struct cell_server *server, int64_t now_us)
{
	char *text;

	if (!server->tracing.otlp || now_us - server->metrics_us < METRICS_US)
		return;
	server->metrics_us = now_us;
	text = cell__metrics(server);
	if (text)
		cell__otlp_set_metrics(server->tracing.otlp, text);
}

/* ---- cells of MCP clients ---- */

static void *begin_mcp(void *arg, const char *traceparent, const char *code, size_t size, char ret_parent[static CELL_TRACEPARENT_SIZE])
{
	struct cell__trace *trace = cell__trace_begin(arg, traceparent, code, size);

	cell__trace_started(trace);
	if (trace)
		(void)cell__trace_parent(trace, NULL, ret_parent);
	return trace;
}

static void take_mcp(void *arg, void *trace, const struct cell_event *event)
{
	cell__trace_event(arg, trace, event);
}

static void end_mcp(void *arg, void *trace, const struct cell__mcp_traced *traced, const struct cell_result *result)
{
	struct cell__trace_place place = { arg, traced->session, traced->owner, traced->link, traced->last };

	if (arg)
		cell__trace_ended(&place, trace, result);
	cell__trace_destroy(trace);
}

static void follow(struct cell__tracing *tracing, struct cell_mcp_server *mcp, void (*finish)(void *arg))
{
	pthread_mutex_lock(&mcp->lock);
	mcp->tracer = (struct cell__mcp_tracer){ tracing, begin_mcp, take_mcp, end_mcp, finish };
	pthread_mutex_unlock(&mcp->lock);
}

void cell__trace_follow(struct cell__tracing *tracing, struct cell_mcp_server *mcp)
{
	follow(tracing, mcp, NULL);
}

void cell__trace_unfollow(struct cell_mcp_server *mcp)
{
	pthread_mutex_lock(&mcp->lock);
	mcp->tracer.arg = NULL;
	pthread_mutex_unlock(&mcp->lock);
}

static void finish_tracing(void *arg)
{
	struct cell__tracing *tracing = arg;

	cell__otlp_destroy(tracing->otlp);
	free(tracing);
}

int cell_mcp_server_trace(struct cell_mcp_server *server, const struct cell_server_options *opts, struct cell_error *err)
{
	struct cell_server_options all = CELL_SERVER_OPTIONS_INIT;
	struct cell__tracing *tracing;

	if (cell__require(err, server, opts) < 0 || cell__sized_read(&all, sizeof(all), opts, "cell_server_options", err) < 0)
		return -1;
	if (!all.otlp || server->tracer.arg)
		return cell_fail(err, CELL_E_INVALID, 0,
				 all.otlp ? "the server is traced already" : "otlp is required: where spans are sent");
	tracing = cell__alloc(1, sizeof(*tracing));
	if (!tracing)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for traces");
	tracing->code = all.otlp_code;
	tracing->executor = server->session.executor ? server->session.executor : "subprocess";
	if (cell__otlp_create(all.otlp, all.otlp_headers, &tracing->otlp, err) < 0) {
		free(tracing);
		return -1;
	}
	follow(tracing, server, finish_tracing);
	return 0;
}
