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
	cell__mcp_drop_elicitations(client);
	if (was_ready && now - client->ready_us >= CELL_MCP_HEALTHY_MS * 1000)
		client->failures = 0;
	client->failures++;
	client->retry_at_us = now + backoff_us(client->failures);
	struct cell__mcp_requests doomed = { 0 };
	move_all(&client->sent, &doomed);
	if (!was_ready)
		move_all(&client->waiting, &doomed);
	/* The strings may change with the next failure, which may come from a callback. */
	struct cell__mcp_failure failure = client->failure;
	CELL_AUTO_FREE char *tail = failure.tail ? cell__strdup(failure.tail) : NULL;
	failure.tail = tail;
	while (doomed.first && !client->closing)
		cell__mcp_request_fail(doomed.first, &failure);
	while (doomed.first)
		cell__mcp_take(doomed.first);
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

static void handle_refused(void *owner, int64_t id, const struct cell_error *err)
{
	struct cell__mcp_client *client = owner;
	struct cell__mcp_request *request = id ? cell__mcp_find(client, id) : NULL;
	if (request == &client->init && request) {
		cell__mcp_drop(client, err);
	} else if (request) {
		struct cell__mcp_failure failure = { .err = *err };
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
	client->transport = NULL;
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

static void handle_gone(void *owner)
{
	struct cell__mcp_client *client = owner;
	client->transports--;
	if (client->transports == 0 && !client->closing && client->opts.ended)
		client->opts.ended(client->opts.arg);
	maybe_free(client);
}

static const struct cell__mcp_transport_events events = {
	.message = handle_message,
	.refused = handle_refused,
	.expired = handle_expired,
	.lost = handle_lost,
	.gone = handle_gone,
};

/* ---- sending ---- */

/* The connection cannot go on; the owner hears of it from a later iteration of the loop. */
static void fail_soon(struct cell__mcp_client *client, const struct cell_error *err)
{
	client->failure.err = *err;
	client->failure.tail = NULL;
	client->broken = true;
	cell__mcp_arm(client, cell__now_us());
}

void cell__mcp_send(struct cell__mcp_client *client, const struct cell__buf *text, int64_t id)
{
	struct cell_error err;
	if (!client->transport || client->transport->ops->send(client->transport, text->data, text->size, id, &err) == 0)
		return;
	/* A server that reads no more is about to be lost, with a better reason than this. */
	if (err.code == CELL_E_CLOSED)
		return;
	fail_soon(client, &err);
}

void cell__mcp_notify(struct cell__mcp_client *client, const char *method, const json_t *params)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__rpc_add_notification(&text, method, params) == 0)
		cell__mcp_send(client, &text, 0);
}

static void send_request(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (request->list)
		unlink_request(request);
	request->id = client->next_id++;
	if (request->progress && json_is_object(request->params))
		json_object_set_new(request->params, "_meta", json_pack("{s:I}", "progressToken", (json_int_t)request->id));
	append(&client->sent, request);
	/* Its time begins now; the connection it waited for has its own timeouts. */
	request->deadline_us = request->timeout_ms < 0 ? 0 : cell__now_us() + request->timeout_ms * 1000;
	if (request->deadline_us)
		cell__mcp_arm(client, request->deadline_us);
	if (cell__rpc_add_request(&text, request->id, request->method, request->params) < 0) {
		/* Too large, or no memory: it expires at once, from a later iteration of the loop. */
		request->id = 0;
		request->deadline_us = cell__now_us();
		cell__mcp_arm(client, request->deadline_us);
		return;
	}
	cell__mcp_send(client, &text, request->id);
}

void cell__mcp_flush(struct cell__mcp_client *client)
{
	while (client->state == CELL_MCP_READY && client->waiting.first && client->sent.count < CELL_MCP_LIMIT_SENT)
		send_request(client, client->waiting.first);
}

/* ---- start ---- */

static const char *const versions[] = { CELL_MCP_VERSION, "2025-06-18", "2025-03-26", "2024-11-05" };

static const char *known_version(const char *asked)
{
	for (size_t i = 0; asked && i < sizeof versions / sizeof *versions; i++)
		if (strcmp(asked, versions[i]) == 0)
			return versions[i];
	return NULL;
}

/* The server's description of itself. */
static void keep_description(struct cell__mcp_client *client, const json_t *result)
{
	json_t *info = json_object_get(result, "serverInfo");
	const char *instructions = json_string_value(json_object_get(result, "instructions"));
	json_decref(client->server_info);
	client->server_info = json_is_object(info) ? json_incref(info) : NULL;
	free(client->instructions);
	client->instructions = instructions ? cell__strdup(instructions) : NULL;
}

static void handle_initialized(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_client *client = request->client;
	struct cell_error err;
	if (answer->failure) {
		/* Either the connection was lost, which has been reported already, or it took too long. */
		if (client->state == CELL_MCP_STARTING && answer->failure->err.code == CELL_E_TOOL_TIMEOUT) {
			cell_fail(&err, CELL_E_TIMEOUT, 0, "the server did not answer initialize within %gs",
				  (double)request->timeout_ms / 1000);
			cell__mcp_drop(client, &err);
		}
		return;
	}
	const struct cell__rpc_message *message = answer->message;
	const char *asked = NULL, *version = NULL;
	if (message->kind == CELL__RPC_ERROR) {
		cell_fail(&err, CELL_E_TOOL, 0, "the server refused initialize: %.160s (MCP error %lld)", message->error_text,
			  (long long)message->code);
	} else {
		asked = json_string_value(json_object_get(message->result, "protocolVersion"));
		version = known_version(asked);
		if (!asked)
			cell_fail(&err, CELL_E_PROTOCOL, 0, "the server's answer to initialize has no protocolVersion");
		else if (!version)
			cell_fail(&err, CELL_E_VERSION, 0, "the server uses protocol revision %.40s; supported revisions are %s to %s",
				  asked, versions[3], versions[0]);
	}
	if (!version) {
		cell__mcp_drop(client, &err);
		return;
	}
	client->batches = strcmp(version, "2025-03-26") == 0;
	keep_description(client, message->result);
	client->state = CELL_MCP_READY;
	client->ready_us = cell__now_us();
	if (client->transport->ops->agreed)
		client->transport->ops->agreed(client->transport, version);
	cell__mcp_notify(client, "notifications/initialized", NULL);
	cell__mcp_flush(client);
	cell__mcp_list_start(client);
}

static int send_initialize(struct cell__mcp_client *client, struct cell_error *err)
{
	bool elicits = client->opts.elicit && (!client->opts.elicits || client->opts.elicits(client->opts.arg));
	json_t *capabilities = elicits ? json_pack("{s:{}}", "elicitation") : json_object();
	json_t *params = json_pack("{s:s, s:o, s:{s:s, s:s}}", "protocolVersion", CELL_MCP_VERSION, "capabilities", capabilities,
				   "clientInfo", "name", "workcell", "version", cell_version());
	if (!params)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	client->init = (struct cell__mcp_request){
		.method = "initialize",
		.params = params,
		.timeout_ms = client->opts.start_timeout_ms,
		.done = handle_initialized,
		.client = client,
		.own = true,
	};
	send_request(client, &client->init);
	return 0;
}

static int open_transport(struct cell__mcp_client *client, const struct cell__mcp_launch *launch, struct cell_error *err)
{
	struct cell__mcp_transport_spec spec = {
		.loop = client->opts.loop,
		.supervisor = client->opts.supervisor,
		.launch = launch,
		.connect_timeout_ms = client->opts.start_timeout_ms,
		.events = &events,
		.owner = client,
		.tail = &client->tail,
	};
	client->tail.size = 0;
	int rc = launch->kind == CELL_MCP_STDIO  ? cell__mcp_stdio_open(&spec, &client->transport, err)
		 : launch->kind == CELL_MCP_HTTP ? cell__mcp_http_open(&spec, &client->transport, err)
						 : cell__mcp_sse_open(&spec, &client->transport, err);
	if (rc == 0)
		client->transports++;
	return rc;
}

static void open_connection(struct cell__mcp_client *client, const struct cell__mcp_launch *launch)
{
	struct cell_error err;
	if (open_transport(client, launch, &err) < 0 || send_initialize(client, &err) < 0)
		fail_soon(client, &err);
}

/* ---- the check of a program, on the pool ---- */

struct checking {
	uv_work_t work;
	struct cell__mcp_client *client; /* stays until the check is over, as for a transport */
	uint64_t connection;
	struct cell__mcp_launch launch;
	struct cell_error err;
};

static void do_check(uv_work_t *work)
{
	struct checking *checking = work->data;
	if (checking->launch.check(&checking->launch, &checking->err) == 0)
		checking->err.code = 0;
}

static void handle_checked(uv_work_t *work, int status)
{
	struct checking *checking = work->data;
	struct cell__mcp_client *client = checking->client;
	(void)status; /* never cancelled */
	if (client->connection == checking->connection && !checking->err.code)
		open_connection(client, &checking->launch);
	else if (client->connection == checking->connection)
		fail_soon(client, &checking->err);
	cell__mcp_launch_finish(&checking->launch);
	free(checking);
	handle_gone(client);
}

/* Takes the launch over, also on failure. */
static int start_check(struct cell__mcp_client *client, struct cell__mcp_launch *launch, struct cell_error *err)
{
	struct checking *checking = cell__alloc(1, sizeof *checking);
	if (!checking) {
		cell__mcp_launch_finish(launch);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an MCP server");
	}
	*checking = (struct checking){ .work.data = checking, .client = client, .connection = client->connection, .launch = *launch };
	client->transports++;
	uv_queue_work(cell__loop_uv(client->opts.loop), &checking->work, do_check, handle_checked);
	return 0;
}

static void start(struct cell__mcp_client *client)
{
	struct cell_error err;
	struct cell__mcp_launch launch = { 0 };
	client->state = CELL_MCP_STARTING;
	client->connection++;
	client->window_us = cell__now_us();
	client->idle_bytes = client->idle_messages = 0;
	client->batches = false;
	if (client->opts.launch(client->opts.arg, &launch, &err) < 0) {
		fail_soon(client, &err);
	} else if (!launch.check) {
		open_connection(client, &launch);
		cell__mcp_launch_finish(&launch);
	} else if (start_check(client, &launch, &err) < 0) {
		fail_soon(client, &err);
	}
}

static void want_start(struct cell__mcp_client *client)
{
	if (client->state != CELL_MCP_IDLE || client->closing)
		return;
	if (cell__now_us() >= client->retry_at_us) {
		start(client);
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
		.method = "ping",
		.timeout_ms = CELL_MCP_PING_TIMEOUT_MS,
		.done = handle_pong,
		.client = client,
		.own = true,
	};
	send_request(client, &client->ping);
}

static void tell_cancelled(struct cell__mcp_client *client, int64_t id, const char *reason)
{
	json_t *params = json_pack("{s:I, s:s}", "requestId", (json_int_t)id, "reason", reason);
	if (params)
		cell__mcp_notify(client, "notifications/cancelled", params);
	json_decref(params);
	cell__mcp_transport_forget(client->transport, id);
}

static void expire(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	struct cell__mcp_failure failure = { .tail = NULL };
	if (request->id == 0)
		cell_fail(&failure.err, CELL_E_LIMIT, 0, "the arguments are larger than a message may be (%u bytes)", CELL_RPC_MAX_BYTES);
	else
		cell_fail(&failure.err, CELL_E_TOOL_TIMEOUT, 0, "the server did not answer in time");
	if (request->id && request != &client->init) {
		tell_cancelled(client, request->id, "timed out");
		if (request != &client->ping)
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
	for (struct cell__mcp_request *request = client->sent.first; request; request = request->next)
		if (request->deadline_us != 0 && request->deadline_us < next && (client->n_elicitations == 0 || request->own))
			next = request->deadline_us;
	if (next != INT64_MAX)
		cell__mcp_arm(client, next);
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
			start(client);
	}
	while (!client->closing && (due = find_due(client, cell__now_us())))
		expire(client, due);
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
	request->own = request->again = false;
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
	int64_t id = request->list == &client->sent ? request->id : 0;
	cell__mcp_take(request);
	if (id) {
		tell_cancelled(client, id, reason);
		cell__mcp_end_elicitations(client, request);
		cell__mcp_flush(client);
	}
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
		cell__mcp_take(client->sent.first);
	while (client->waiting.first)
		cell__mcp_take(client->waiting.first);
	cell__mcp_drop_elicitations(client);
	cell__mcp_list_reset(client);
	if (transport)
		transport->ops->close(transport);
	uv_close((uv_handle_t *)&client->timer, handle_timer_closed);
}
