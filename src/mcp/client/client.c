/*
 * Theory of operation: requests wait in `waiting` until there is a connection, then are in `sent` until they are answered, expire or are
 * cancelled. One timer serves all deadlines, the back-off and callbacks that must come from a later iteration of the loop; it may fire
 * early and then only checks. Callbacks may do anything with the client, even close it: its memory stays until the timer's handle and all
 * its transports are gone, and the code after a callback checks the state again before it continues.
 *
 * A connection can be ended by the server (lost), by us (drop: it floods, sends invalid messages or is silent), or by the owner (stop,
 * close). In every case `transport` is NULL at once and `connection` gets another number; the old transport goes away by itself.
 */
#define _GNU_SOURCE
#include <string.h>

#include "mcp/client/internal.h"

static void want_start(struct cell__mcp_client *client);

/* ---- lists of requests ---- */

static void append(struct cell__mcp_requests *list, struct cell__mcp_request *request)
{
	request->list = list;
	request->next = NULL;
	request->prev = list->last;
	if (list->last)
		list->last->next = request;
	else
		list->first = request;
	list->last = request;
	list->count++;
}

static void prepend(struct cell__mcp_requests *list, struct cell__mcp_request *request)
{
	request->list = list;
	request->prev = NULL;
	request->next = list->first;
	if (list->first)
		list->first->prev = request;
	else
		list->last = request;
	list->first = request;
	list->count++;
}

static void unlink_request(struct cell__mcp_request *request)
{
	struct cell__mcp_requests *list = request->list;
	if (request->prev)
		request->prev->next = request->next;
	else
		list->first = request->next;
	if (request->next)
		request->next->prev = request->prev;
	else
		list->last = request->prev;
	list->count--;
	request->list = NULL;
	request->prev = request->next = NULL;
}

void cell__mcp_take(struct cell__mcp_request *request)
{
	if (request->list)
		unlink_request(request);
	json_decref(cell__take_ptr(request->params));
	cell__mcp_round_free(cell__take_ptr(request->round));
}

/* It ends without a callback. */
static void discard(struct cell__mcp_request *request)
{
	cell__mcp_take(request);
	if (request->freed)
		request->freed(request);
}

struct cell__mcp_request *cell__mcp_find(struct cell__mcp_client *client, int64_t id)
{
	struct cell__mcp_request *request = client->sent.first;
	while (request && request->id != id)
		request = request->next;
	return request;
}

/* ---- time ---- */

static void tick(uv_timer_t *timer);
static void handle_noted(void *owner);
static void tell_starting(struct cell__mcp_client *client);

void cell__mcp_arm(struct cell__mcp_client *client, int64_t at_us)
{
	if (client->closing || (client->armed_us != 0 && client->armed_us <= at_us))
		return;
	int64_t left_us = at_us - cell__now_us();
	client->armed_us = at_us;
	uv_timer_start(&client->timer, tick, left_us > 0 ? (uint64_t)(left_us + 999) / 1000 : 0, 0);
}

static int64_t backoff_us(unsigned failures)
{
	if (failures < 2)
		return 0;
	unsigned doublings = failures - 2;
	int64_t ms = doublings > 16 ? CELL_MCP_BACKOFF_MAX_MS : (int64_t)CELL_MCP_BACKOFF_MS << doublings;
	return (ms < CELL_MCP_BACKOFF_MAX_MS ? ms : CELL_MCP_BACKOFF_MAX_MS) * 1000;
}

bool cell__mcp_client_backing_off(const struct cell__mcp_client *client)
{
	return client->state == CELL_MCP_WAITING || (client->state == CELL_MCP_IDLE && cell__now_us() < client->retry_at_us);
}

/* ---- how requests end ---- */

void cell__mcp_finish_request(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_client *client = request->client;
	cell__mcp_take(request);
	if (client->n_elicitations > 0)
		cell__mcp_end_elicitations(client, request);
	request->done(request, answer);
}

void cell__mcp_request_fail(struct cell__mcp_request *request, const struct cell__mcp_failure *failure)
{
	struct cell__mcp_answer answer = { .failure = failure };
	cell__mcp_finish_request(request, &answer);
}

/* Moves all to another list; requests that a callback cancels in the meantime leave it by themselves. */
static void move_all(struct cell__mcp_requests *from, struct cell__mcp_requests *to)
{
	struct cell__mcp_request *request;
	while ((request = from->first)) {
		unlink_request(request);
		append(to, request);
	}
}

static void show_tail(struct cell__mcp_client *client)
{
	client->failure.tail = NULL;
	client->shown_tail.size = 0;
	const char *bytes = client->tail.data;
	size_t size = client->tail.size;
	while (size > 0 && (bytes[size - 1] == '\n' || bytes[size - 1] == '\r' || bytes[size - 1] == ' '))
		size--;
	if (size > 0 && cell__buf_add_utf8(&client->shown_tail, bytes, size) == 0 &&
	    strlen(client->shown_tail.data) == client->shown_tail.size)
		client->failure.tail = client->shown_tail.data;
}

/*
 * The connection is lost, and client->failure has the reason. Sent requests fail, since it is unknown whether they were carried out; unsent
 * ones fail with the start that they waited for, or else get a new one.
 */
static void handle_down(struct cell__mcp_client *client)
{
	bool was_ready = client->state == CELL_MCP_READY;
	int64_t now = cell__now_us();
	client->state = CELL_MCP_IDLE;
	client->broken = false;
	client->connection++;
	client->probe_at_us = client->listen_at_us = 0;
	if (!was_ready) {
		/* What is not there by either transport is not there for the first reason. */
		if (client->refused.code)
			client->failure.err = client->refused;
		client->refused.code = 0;
		client->legacy = client->restarted = client->renew = client->older = false;
	}
	cell__mcp_drop_elicitations(client);
	if (was_ready && now - client->ready_us >= CELL_MCP_HEALTHY_MS * 1000)
		client->failures = 0;
	client->failures++;
	client->retry_at_us = now + backoff_us(client->failures);
	struct cell__mcp_requests doomed = { 0 };
	move_all(&client->sent, &doomed);
	move_all(&client->held, &client->waiting);
	if (!was_ready)
		move_all(&client->waiting, &doomed);
	/* The strings may change with the next failure, which may come from a callback. */
	struct cell__mcp_failure failure = client->failure;
	CELL_AUTO_FREE char *tail = failure.tail ? cell__strdup(failure.tail) : NULL;
	failure.tail = tail;
	while (doomed.first && !client->closing)
		cell__mcp_request_fail(doomed.first, &failure);
	while (doomed.first)
		discard(doomed.first);
	if (client->listing.wanted && !client->listing.request.list && !client->closing) {
		client->listing.wanted = false;
		client->opts.listed(client->opts.arg, &failure);
	}
	if (client->waiting.first && client->state == CELL_MCP_IDLE)
		want_start(client);
}

void cell__mcp_drop(struct cell__mcp_client *client, const struct cell_error *err)
{
	struct cell__mcp_transport *transport = cell__take_ptr(client->transport);
	client->failure.err = *err;
	show_tail(client);
	if (transport)
		transport->ops->close(transport);
	handle_down(client);
}

/* ---- the transport's events ---- */

static void handle_message(void *owner, const char *text, size_t size)
{
	cell__mcp_handle_text(owner, text, size);
}

static void handle_expired(void *owner, int64_t id);

/* Errors come with a status other than 200 since revision 2026-07-28. */
static bool is_answer(const struct cell__mcp_client *client, struct cell__mcp_request *request, const struct cell__mcp_rejection *refusal)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__rpc_message message;
	bool modern = request->era == CELL_MCP_MODERN_ERA || (client->modern && request->era == CELL_MCP_ANY_ERA);
	if (!modern || !refusal->text || refusal->status == 401 || refusal->status == 403 ||
	    cell__rpc_read(refusal->text, refusal->size, false, &doc, NULL) != 0 || cell__rpc_get(&doc, 0, &message, NULL) != 0)
		return false;
	return message.kind == CELL__RPC_ERROR && json_is_integer(message.id) && json_integer_value(message.id) == request->id;
}

static void handle_refused(void *owner, int64_t id, const struct cell__mcp_rejection *refusal)
{
	struct cell__mcp_client *client = owner;
	struct cell__mcp_request *request = id ? cell__mcp_find(client, id) : NULL;
	if (!request || request->parked)
		return;
	if (is_answer(client, request, refusal)) {
		cell__mcp_handle_text(client, refusal->text, refusal->size);
	} else if (request == &client->init || request == &client->probe) {
		cell__mcp_start_refused(client, request, refusal);
	} else if (refusal->status == 401 && client->logs_in && !request->again && !client->renew) {
		client->renew = true;
		handle_expired(client, id); /* the server did not process it */
	} else {
		struct cell__mcp_failure failure = { .err = refusal->err };
		cell__mcp_request_fail(request, &failure);
	}
}

static void handle_expired(void *owner, int64_t id)
{
	struct cell__mcp_client *client = owner;
	struct cell__mcp_request *request = id ? cell__mcp_find(client, id) : NULL;
	struct cell_error err;
	cell_fail(&err, CELL_E_TOOL, 0, "the server has ended the session");
	if (request && !request->own && !request->again) {
		/* The server did not process it, so it may be sent again. */
		request->again = true;
		request->id = 0;
		unlink_request(request);
		prepend(&client->waiting, request);
	}
	cell__mcp_drop(client, &err);
}

static void handle_lost(void *owner, const struct cell_error *err)
{
	struct cell__mcp_client *client = owner;
	bool exited = client->transport->exited;
	client->transport = NULL;
	if (exited && cell__mcp_restart_legacy(client))
		return;
	client->failure.err = *err;
	show_tail(client);
	handle_down(client);
}

static void maybe_free(struct cell__mcp_client *client)
{
	if (!client->timer_closed || client->transports > 0)
		return;
	void (*closed)(void *) = client->closed;
	void *arg = client->closed_arg;
	cell__buf_finish(&client->tail);
	cell__buf_finish(&client->shown_tail);
	json_decref(client->tools);
	json_decref(client->server_info);
	free(client->instructions);
	free(client);
	closed(arg);
}

void cell__mcp_transport_gone(void *owner)
{
	struct cell__mcp_client *client = owner;
	client->transports--;
	if (client->transports == 0 && !client->closing && client->opts.ended)
		client->opts.ended(client->opts.arg);
	maybe_free(client);
}

const struct cell__mcp_transport_events cell__mcp_events = {
	.message = handle_message,
	.refused = handle_refused,
	.noted = handle_noted,
	.expired = handle_expired,
	.lost = handle_lost,
	.gone = cell__mcp_transport_gone,
};

/* ---- sending ---- */

/* The connection cannot go on; the owner hears of it from a later iteration of the loop. */
void cell__mcp_fail_soon(struct cell__mcp_client *client, const struct cell_error *err)
{
	client->failure.err = *err;
	client->failure.tail = NULL;
	client->broken = true;
	cell__mcp_arm(client, cell__now_us());
}

static void send_out(struct cell__mcp_client *client, const struct cell__mcp_outgoing *out)
{
	struct cell_error err;
	if (!client->transport || client->transport->ops->send(client->transport, out, &err) == 0)
		return;
	/* A server that reads no more is about to be lost, with a better reason than this. */
	if (err.code == CELL_E_CLOSED)
		return;
	cell__mcp_fail_soon(client, &err);
}

void cell__mcp_send(struct cell__mcp_client *client, const struct cell__buf *text, int64_t id)
{
	send_out(client, &(struct cell__mcp_outgoing){ .text = text->data, .size = text->size, .id = id });
}

void cell__mcp_notify(struct cell__mcp_client *client, const char *method, const json_t *params)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__rpc_add_notification(&text, method, params) == 0)
		cell__mcp_send(client, &text, 0);
}

static int write_request(struct cell__mcp_client *client, struct cell__mcp_request *request, struct cell__buf *text, char ***ret_headers)
{
	bool modern = request->era == CELL_MCP_MODERN_ERA || (client->modern && request->era == CELL_MCP_ANY_ERA);
	cell_fail(&request->unsent, CELL_E_LIMIT, 0, "the arguments are larger than a message may be (%u bytes)", CELL_RPC_MAX_BYTES);
	if (modern && cell__mcp_describe(client, request) < 0)
		return -1;
	if (modern && client->kind == CELL_MCP_HTTP && cell__mcp_make_headers(client, request, ret_headers, &request->unsent) < 0)
		return -1;
	if (!modern && request->progress && json_is_object(request->params))
		json_object_set_new(request->params, "_meta", json_pack("{s:I}", "progressToken", (json_int_t)request->id));
	if (request->traceparent && *request->traceparent && json_is_object(request->params)) {
		if (!json_object_get(request->params, "_meta"))
			json_object_set_new(request->params, "_meta", json_object());
		json_object_set_new(json_object_get(request->params, "_meta"), "traceparent", json_string(request->traceparent));
	}
	return cell__rpc_add_request(text, request->id, request->method, request->params);
}

void cell__mcp_send_request(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char **headers = NULL;
	if (request->list)
		unlink_request(request);
	request->id = client->next_id++;
	append(&client->sent, request);
	/* Its time begins now; the connection it waited for has its own timeouts. */
	request->deadline_us = request->timeout_ms < 0 ? 0 : cell__now_us() + request->timeout_ms * 1000;
	if (request->deadline_us)
		cell__mcp_arm(client, request->deadline_us);
	if (write_request(client, request, &text, &headers) < 0) {
		/* Too large, or no memory: it expires at once, from a later iteration of the loop. */
		request->id = 0;
		request->deadline_us = cell__now_us();
		cell__mcp_arm(client, request->deadline_us);
	} else {
		send_out(client, &(struct cell__mcp_outgoing){ text.data, text.size, request->id, (const char *const *)headers });
	}
	cell__strings_free(headers);
}

void cell__mcp_flush(struct cell__mcp_client *client)
{
	while (client->state == CELL_MCP_READY && client->waiting.first && client->sent.count < CELL_MCP_LIMIT_SENT)
		cell__mcp_send_request(client, client->waiting.first);
}

/* ---- start ---- */

static void want_start(struct cell__mcp_client *client)
{
	if (client->state != CELL_MCP_IDLE || client->closing)
		return;
	if (cell__now_us() >= client->retry_at_us) {
		cell__mcp_connect(client);
		return;
	}
	client->state = CELL_MCP_WAITING;
	cell__mcp_arm(client, client->retry_at_us);
}

/* ---- deadlines ---- */

static void handle_pong(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_client *client = request->client;
	if (!answer->failure || answer->failure->err.code != CELL_E_TOOL_TIMEOUT || client->state != CELL_MCP_READY)
		return;
	struct cell_error err;
	cell_fail(&err, CELL_E_TOOL, 0, "the server did not answer a call in time and does not answer a ping; it was stopped");
	cell__mcp_drop(client, &err);
}

/* A request was not answered in time: checks whether the server is alive. Any message of the server proves it. */
static void send_ping(struct cell__mcp_client *client)
{
	if (client->ping.list || client->state != CELL_MCP_READY)
		return;
	client->ping = (struct cell__mcp_request){
		.method = client->modern ? "server/discover" : "ping",
		.timeout_ms = CELL_MCP_PING_TIMEOUT_MS,
		.done = handle_pong,
		.client = client,
		.own = true,
	};
	cell__mcp_send_request(client, &client->ping);
}

static void handle_cancelled(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	(void)answer; /* it was a courtesy */
	free(request);
}

static void cancel_task(struct cell__mcp_client *client, const char *task)
{
	struct cell__mcp_request *request = cell__alloc(1, sizeof *request);
	if (!request)
		return;
	*request = (struct cell__mcp_request){
		.method = "tasks/cancel",
		.params = json_pack("{s:s}", "taskId", task),
		.timeout_ms = CELL_MCP_PING_TIMEOUT_MS,
		.done = handle_cancelled,
		.freed = free,
		.client = client,
		.own = true,
	};
	cell__mcp_send_request(client, request);
}

void cell__mcp_abandon(struct cell__mcp_request *request, const char *reason)
{
	struct cell__mcp_client *client = request->client;
	const char *task = cell__mcp_round_task(request);
	if (client->state != CELL_MCP_READY || client->closing)
		return;
	if (task) {
		cancel_task(client, task);
	} else if (request->id == 0 || request->parked) {
		return; /* nothing of it is under way */
	} else if (client->modern && client->transport->ops->abandon) {
		client->transport->ops->abandon(client->transport, request->id);
	} else {
		json_t *params = json_pack("{s:I, s:s}", "requestId", (json_int_t)request->id, "reason", reason);
		if (params)
			cell__mcp_notify(client, "notifications/cancelled", params);
		json_decref(params);
		cell__mcp_transport_forget(client->transport, request->id);
	}
}

static void expire(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	struct cell__mcp_failure failure = { .tail = NULL };
	if (request->id == 0)
		failure.err = request->unsent;
	else
		cell_fail(&failure.err, CELL_E_TOOL_TIMEOUT, 0, "the server did not answer in time");
	if (request->id && request != &client->init && request != &client->probe) {
		cell__mcp_abandon(request, "timed out");
		if (request != &client->ping && !request->parked)
			send_ping(client);
	}
	cell__mcp_request_fail(request, &failure);
}

static bool is_due(const struct cell__mcp_client *client, const struct cell__mcp_request *request, int64_t now)
{
	/* A person is being asked; that time does not count for the server. */
	if (client->n_elicitations > 0 && !request->own)
		return false;
	return request->deadline_us != 0 && request->deadline_us <= now;
}

static struct cell__mcp_request *find_due(const struct cell__mcp_client *client, int64_t now)
{
	struct cell__mcp_request *request = client->sent.first;
	while (request && !is_due(client, request, now))
		request = request->next;
	return request;
}

static void arm_next(struct cell__mcp_client *client)
{
	int64_t next = client->state == CELL_MCP_WAITING ? client->retry_at_us : INT64_MAX;
	for (struct cell__mcp_request *request = client->sent.first; request; request = request->next) {
		int64_t poll = cell__mcp_round_due(request);
		if (request->deadline_us != 0 && request->deadline_us < next && (client->n_elicitations == 0 || request->own))
			next = request->deadline_us;
		if (poll && poll < next)
			next = poll;
	}
	if (client->note_at_us && client->note_at_us < next)
		next = client->note_at_us;
	if (client->probe_at_us && client->probe_at_us < next)
		next = client->probe_at_us;
	if (client->listen_at_us && client->listen_at_us < next)
		next = client->listen_at_us;
	if (next != INT64_MAX)
		cell__mcp_arm(client, next);
}

static struct cell__mcp_request *find_poll(const struct cell__mcp_client *client, int64_t now)
{
	struct cell__mcp_request *request = client->sent.first;
	while (request && (!cell__mcp_round_due(request) || cell__mcp_round_due(request) > now))
		request = request->next;
	return request;
}

/* What is due besides requests that expire. */
static void do_due(struct cell__mcp_client *client)
{
	struct cell__mcp_request *due;
	int64_t now = cell__now_us();
	if (client->probe_at_us && client->probe_at_us <= now)
		cell__mcp_probe_late(client);
	if (client->state != CELL_MCP_STARTING)
		client->note_at_us = 0;
	else if (client->note_at_us && client->note_at_us <= now)
		tell_starting(client);
	if (client->listen_at_us && client->listen_at_us <= now)
		cell__mcp_listen(client);
	while (client->state == CELL_MCP_READY && (due = find_poll(client, now)))
		cell__mcp_round_poll(client, due);
}

/* ---- starts that take long ---- */

/* The last line with something in it, without what would move a terminal's cursor.  False: none. */
static bool last_line(const struct cell__buf *tail, struct cell__buf *out)
{
	size_t end = tail->size, begin;
	while (end > 0 && (unsigned char)tail->data[end - 1] <= ' ')
		end--;
	for (begin = end; begin > 0 && tail->data[begin - 1] != '\n' && tail->data[begin - 1] != '\r';)
		begin--;
	CELL_AUTO_BUF struct cell__buf plain = CELL_BUF_INIT;
	for (size_t i = begin; i < end && plain.size < 200; i++) {
		unsigned char c = (unsigned char)tail->data[i];
		if (c == 0x1b && i + 1 < end && tail->data[i + 1] == '[') { /* a colour, for example */
			for (i += 2; i < end && (unsigned char)tail->data[i] < '@';)
				i++;
		} else if (c >= ' ' && c != 0x7f && cell__buf_add(&plain, &tail->data[i], 1) < 0) {
			return false;
		}
	}
	return plain.size > 0 && cell__buf_add_utf8(out, plain.data, plain.size) == 0;
}

static void tell_starting(struct cell__mcp_client *client)
{
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	int64_t now = cell__now_us();
	client->noted_us = now;
	client->note_at_us = now + CELL_MCP_STARTING_MS * 1000;
	cell__mcp_arm(client, client->note_at_us);
	client->opts.starting(client->opts.arg, now - client->start_us, last_line(&client->tail, &line) ? line.data : NULL);
}

static void handle_noted(void *owner)
{
	struct cell__mcp_client *client = owner;
	int64_t at = client->noted_us + CELL_MCP_NOTE_MS * 1000;
	if (client->state != CELL_MCP_STARTING || client->closing || !client->note_at_us || at >= client->note_at_us)
		return;
	client->note_at_us = at;
	cell__mcp_arm(client, at);
}

static void tick(uv_timer_t *timer)
{
	struct cell__mcp_client *client = timer->data;
	struct cell__mcp_request *due;
	client->armed_us = 0;
	if (client->broken) {
		struct cell_error err = client->failure.err;
		client->broken = false;
		cell__mcp_drop(client, &err);
	}
	if (client->state == CELL_MCP_WAITING && cell__now_us() >= client->retry_at_us && !client->closing) {
		client->state = CELL_MCP_IDLE;
		if (client->waiting.first || client->listing.wanted)
			cell__mcp_connect(client);
	}
	while (!client->closing && (due = find_due(client, cell__now_us())))
		expire(client, due);
	if (!client->closing)
		do_due(client);
	if (!client->closing) {
		cell__mcp_flush(client);
		arm_next(client);
	}
}

/* ---- the owner's side ---- */

int cell__mcp_request_start(struct cell__mcp_client *client, struct cell__mcp_request *request, struct cell_error *err)
{
	if (client->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the server is closed");
	if (client->waiting.count + client->sent.count >= CELL_MCP_LIMIT_REQUESTS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u calls of one server are under way", CELL_MCP_LIMIT_REQUESTS);
	request->client = client;
	request->id = 0;
	request->own = request->again = request->parked = false;
	request->era = CELL_MCP_ANY_ERA;
	request->round = NULL;
	request->deadline_us = 0;
	append(&client->waiting, request);
	if (client->state == CELL_MCP_READY)
		cell__mcp_flush(client);
	else
		want_start(client);
	return 0;
}

void cell__mcp_request_cancel(struct cell__mcp_request *request, const char *reason)
{
	struct cell__mcp_client *client = request->client;
	if (!request->list)
		return;
	bool sent = request->list == &client->sent;
	if (sent)
		cell__mcp_abandon(request, reason);
	cell__mcp_take(request);
	if (sent) {
		cell__mcp_end_elicitations(client, request);
		cell__mcp_flush(client);
	}
}

void cell__mcp_hold(struct cell__mcp_request *request)
{
	request->again = true;
	request->id = 0;
	unlink_request(request);
	append(&request->client->held, request);
}

void cell__mcp_release_held(struct cell__mcp_client *client)
{
	move_all(&client->held, &client->waiting);
	cell__mcp_flush(client);
}

bool cell__mcp_client_stale(const struct cell__mcp_client *client)
{
	return client->tools && client->fresh_until_us && cell__now_us() >= client->fresh_until_us;
}

void cell__mcp_client_list(struct cell__mcp_client *client)
{
	client->listing.wanted = true;
	if (client->state == CELL_MCP_READY)
		cell__mcp_list_start(client);
	else
		want_start(client);
}

json_t *cell__mcp_client_tools(const struct cell__mcp_client *client)
{
	return client->tools;
}

const char *cell__mcp_client_list_problem(const struct cell__mcp_client *client)
{
	return client->list_problem[0] ? client->list_problem : NULL;
}

json_t *cell__mcp_client_server_info(const struct cell__mcp_client *client)
{
	return client->server_info;
}

const char *cell__mcp_client_instructions(const struct cell__mcp_client *client)
{
	return client->instructions;
}

int cell__mcp_client_create(const struct cell__mcp_client_options *opts, struct cell__mcp_client **ret_client, struct cell_error *err)
{
	struct cell__mcp_client *client = cell__alloc(1, sizeof *client);
	if (!client)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an MCP server");
	client->opts = *opts;
	client->next_id = 1;
	client->timer.data = client;
	uv_timer_init(cell__loop_uv(opts->loop), &client->timer);
	*ret_client = client;
	return 0;
}

void cell__mcp_client_stop(struct cell__mcp_client *client)
{
	if (client->state == CELL_MCP_IDLE)
		return;
	struct cell_error err;
	cell_fail(&err, CELL_E_CLOSED, 0, "the server was stopped");
	/* The waiting requests must not start a connection. */
	client->state = CELL_MCP_STARTING;
	cell__mcp_drop(client, &err);
	client->failures = 0;
	client->retry_at_us = 0;
}

bool cell__mcp_client_lives(const struct cell__mcp_client *client)
{
	return client->transports > 0;
}

static void handle_timer_closed(uv_handle_t *handle)
{
	struct cell__mcp_client *client = handle->data;
	client->timer_closed = true;
	maybe_free(client);
}

void cell__mcp_client_close(struct cell__mcp_client *client, void (*closed)(void *arg), void *arg)
{
	struct cell__mcp_transport *transport = cell__take_ptr(client->transport);
	client->closing = true;
	client->closed = closed;
	client->closed_arg = arg;
	client->state = CELL_MCP_IDLE;
	client->connection++;
	while (client->sent.first)
		discard(client->sent.first);
	while (client->waiting.first)
		cell__mcp_take(client->waiting.first);
	while (client->held.first)
		cell__mcp_take(client->held.first);
	cell__mcp_drop_elicitations(client);
	cell__mcp_list_reset(client);
	if (transport)
		transport->ops->close(transport);
	uv_close((uv_handle_t *)&client->timer, handle_timer_closed);
}
