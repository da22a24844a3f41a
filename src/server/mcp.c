/*
 * The MCP server's clients over Streamable HTTP: three routes on the front end of the session server.
 *
 *     POST /mcp    one message or batch; requests are answered in an SSE stream of their own, anything else with 202
 *     GET /mcp     messages outside of requests; with Last-Event-ID, the rest of a broken stream
 *     DELETE /mcp  the end of the client's session
 *
 * An initialize makes a client; it is identified by Mcp-Session-Id, and only requests with the same token find it.  It has a peer
 * (mcp/server/server.h), and streams: stream 0 is that of GET.
 *
 * Threads.  All of this belongs to the loop's thread, which never waits.  A peer may wait: its lock is held by threads that wait
 * for the loop.  So each client has its own thread that feeds the peer with received messages, in their order, and
 * destroys it in the end.  Answers come back as tasks of the loop:
 *
 *     POST ──▶ inbox ──▶ client's thread: cell__mcp_peer_feed() ──▶ handle_fed() ──▶ 202, or the stream
 *     peer, any thread: send_event() ──▶ handle_note() ──▶ the stream's events ──▶ its readers
 *     DELETE, room for others, the server's end ──▶ client's thread: cell__mcp_peer_destroy() ──▶ handle_over() ──▶ gone
 *
 * Memory.  A stream keeps the events that its reader has not received.  Past CELL_MCP_MAX_OUTBOX_BYTES of them, progress and log are
 * dropped; past MAX_CLIENT_BYTES, answers push out the client's oldest finished stream.  Finished streams without a reader are kept for
 * resuming: MAX_STREAMS a client, kept_bytes in all.
 */
#include "base/hole.h"
#include "server/server.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/sized.h"
#include "mcp/server/server.h"
#include "wire/sse.h"

#define MAX_STREAMS 16u
#define MAX_CLIENT_BYTES (64u * 1024u * 1024u)
#define MAX_INITIALIZE_BYTES (64u * 1024u) /* parsed on the loop */
#define ID_CHARS 32

struct stream {
	struct cell__events events; /* first */
	struct client *client;      /* NULL: gone */
	uint64_t number;
	uint64_t finished;          /* 0: not yet; else its rank among all finished ones */
	unsigned refs;              /* the client's, the peer's until it has finished, a reader's each */
	bool fed;     /* the peer has its message, and the request was answered */
	_Atomic size_t pending;     /* bytes on their way to the loop */
	_Atomic size_t behind;      /* bytes that the reader has not received */
	struct cell__task end;
	struct stream *next;        /* older */
};

struct message {
	struct cell__task fed;
	struct client *client;
	struct cell__request *request;
	struct stream *stream;
	struct cell__buf body;
	size_t n_requests;
	bool refused; /* the client's session ended before */
	struct message *next;
};

struct client {
	struct cell__mcp_http *http;
	char id[ID_CHARS + 1];
	char owner[CELL_SERVER_MAX_NAME + 1];
	struct cell__mcp_peer *peer;
	struct stream *streams; /* newest first */
	struct stream *own;     /* stream 0 */
	uint64_t next_number;
	unsigned n_messages;    /* that are being fed */
	int64_t seen_us;
	struct cell__request *deleter; /* answered when it is gone */
	struct client *next;
	pthread_t thread;
	struct cell__task over;
	bool stuck;             /* its calls did not end in time, and the server does */
	pthread_mutex_t lock;   /* guards all below */
	pthread_cond_t changed;
	struct message *inbox, **inbox_end;
	bool ending;
};

struct cell__mcp_http {
	struct cell_server *server;
	struct cell_mcp_server *mcp;
	struct client *clients;
	size_t n_clients;       /* with those that end */
	size_t n_stuck;
	uint64_t n_finished;
	atomic_bool stopping;
	uv_poll_t told;
};

/* An event on its way to the loop. */
struct note {
	struct cell__task task;
	struct stream *stream;
	size_t size;
	char text[];
};

/* ---- streams ---- */

static void stream_unref(struct stream *stream)
{
	if (--stream->refs)
		return;
	cell__events_finish(&stream->events);
	free(stream);
}

/* It can no longer be resumed. */
static void stream_drop(struct stream *stream)
{
	struct stream **at = &stream->client->streams;

	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	stream->client = NULL;
	cell__events_forget(&stream->events);
	stream_unref(stream);
}

static void handle_moved(struct cell__events *events)
{
	struct stream *stream = (struct stream *)events;

	atomic_store_explicit(&stream->behind, events->behind_bytes, memory_order_relaxed);
}

static void handle_reader_gone(struct cell__events *events)
{
	struct stream *stream = (struct stream *)events;

	if (stream->client)
		stream->client->seen_us = cell__now_us();
	stream_unref(stream);
}

/* The oldest finished one of a client, or of all; read: also streams with a reader. */
static struct stream *oldest_finished(struct client *client, bool all, bool read)
{
	struct stream *oldest = NULL;

	for (; client; client = all ? client->next : NULL) {
		for (struct stream *stream = client->streams; stream; stream = stream->next) {
			if (stream->finished && stream->fed && (read || !stream->events.n_readers) &&
			    (!oldest || stream->finished < oldest->finished))
				oldest = stream;
		}
	}
	return oldest;
}

/* Too many, or too large: the oldest go. */
static void trim_streams(struct client *client)
{
	struct cell__mcp_http *http = client->http;
	struct stream *oldest;
	size_t count = 0, bytes = 0;

	for (struct stream *stream = client->streams; stream; stream = stream->next) {
		count += stream->finished && !stream->events.n_readers;
		bytes += stream->events.bytes;
	}
	for (; count > MAX_STREAMS && (oldest = oldest_finished(client, false, false)); count--) {
		bytes -= oldest->events.bytes;
		stream_drop(oldest);
	}
	/* A stream with a reader is large because its reader is slow. */
	while (bytes > MAX_CLIENT_BYTES && !is_hole("mcp-unread") && (oldest = oldest_finished(client, false, true)) &&
	       oldest->finished < http->n_finished) {
		bytes -= oldest->events.bytes;
		cell__events_cut(&oldest->events);
		stream_drop(oldest);
	}
	while ((int64_t)http->server->ended_bytes > http->server->limits.kept_bytes &&
	       (oldest = oldest_finished(http->clients, true, false)) && oldest->finished < http->n_finished)
		stream_drop(oldest);
}

static void handle_end(struct cell__task *task)
{
	struct stream *stream = (struct stream *)((char *)task - offsetof(struct stream, end));

	cell__events_end(&stream->events);
	if (stream->client) {
		stream->finished = ++stream->client->http->n_finished;
		cell__events_keep(&stream->events);
		trim_streams(stream->client);
	}
	stream_unref(stream);
}

static struct stream *stream_create(struct client *client)
{
	struct stream *stream = cell__alloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	*stream = (struct stream){
		.client = client, .number = client->next_number++, .refs = 1, .end.fn = handle_end, .next = client->streams
	};
	cell__events_init(&stream->events, client->http->server);
	snprintf(stream->events.prefix, sizeof(stream->events.prefix), "%llu-", (unsigned long long)stream->number);
	stream->events.moved = handle_moved;
	stream->events.unref = handle_reader_gone;
	/* An answer is kept until its reader comes; other messages may never find one. */
	stream->events.awaited = stream->events.patient = stream->number > 0;
	client->streams = stream;
	return stream;
}

static void handle_note(struct cell__task *task)
{
	struct note *note = (struct note *)task;
	struct stream *stream = note->stream;

	(void)cell__events_add(&stream->events, NULL, note->text, note->size); /* no memory: the client hears a little less */
	atomic_fetch_sub_explicit(&stream->pending, note->size, memory_order_relaxed);
	free(note);
}

/* Any thread; the stream exists until its last event was sent. */
static void send_event(void *arg, void *to, const char *text, size_t size, bool last)
{
	struct client *client = arg;
	struct stream *stream = to ? to : client->own;
	struct cell__loop *loop = client->http->server->engine->loop;
	struct note *note = text ? cell__alloc(1, sizeof(*note) + size) : NULL;

	if (note) {
		*note = (struct note){ .task.fn = handle_note, .stream = stream, .size = size };
		memcpy(note->text, text, size);
		atomic_fetch_add_explicit(&stream->pending, size, memory_order_relaxed);
		cell__loop_post(loop, &note->task);
	}
	if (to && last)
		cell__loop_post(loop, &stream->end);
}

/* Any thread. */
static bool stream_full(void *arg, void *to)
{
	struct client *client = arg;
	struct stream *stream = to ? to : client->own;

	return atomic_load_explicit(&stream->pending, memory_order_relaxed) + atomic_load_explicit(&stream->behind, memory_order_relaxed) >
	       CELL_MCP_MAX_OUTBOX_BYTES;
}

/* ---- a client's thread ---- */

static struct message *take_message(struct client *client)
{
	struct message *message;

	pthread_mutex_lock(&client->lock);
	while (!client->inbox && !client->ending)
		pthread_cond_wait(&client->changed, &client->lock);
	message = client->inbox;
	if (message) {
		client->inbox = message->next;
		if (!client->inbox)
			client->inbox_end = &client->inbox;
		message->refused = client->ending;
	}
	pthread_mutex_unlock(&client->lock);
	return message;
}

static void *client_main(void *arg)
{
	struct client *client = arg;
	struct cell__loop *loop = client->http->server->engine->loop;
	struct message *message;
	bool busy;

	while ((message = take_message(client))) {
		const struct cell__buf *body = &message->body;

		if (!message->refused)
			message->n_requests = cell__mcp_peer_feed(client->peer, body->size ? body->data : "", body->size, message->stream);
		cell__loop_post(loop, &message->fed);
	}
	/* An installation without a waiter may continue for a while. */
	do {
		busy = cell__mcp_peer_destroy(client->peer, NULL) < 0;
	} while (busy && !atomic_load(&client->http->stopping));
	client->stuck = busy; /* the program is about to exit: the data of its workers is kept */
	cell__loop_post(loop, &client->over);
	return NULL;
}

/* ---- clients ---- */

static void client_free(struct client *client)
{
	while (client->streams)
		stream_drop(client->streams);
	pthread_mutex_destroy(&client->lock);
	pthread_cond_destroy(&client->changed);
	free(client);
}

static void handle_over(struct cell__task *task)
{
	struct client *client = (struct client *)((char *)task - offsetof(struct client, over));
	struct cell__mcp_http *http = client->http;
	struct cell__request *deleter = cell__take_ptr(client->deleter);

	pthread_join(client->thread, NULL); /* it only has to return */
	if (deleter)
		cell__answer_none(deleter, MHD_HTTP_NO_CONTENT);
	if (client->stuck) {
		http->n_stuck++;
		for (struct stream *stream = client->streams; stream; stream = stream->next)
			cell__events_release(&stream->events);
	} else {
		http->n_clients--;
		client_free(client);
	}
	cell__server_advance(http->server);
}

/* It is no longer found; it is freed when its calls have ended. */
static void client_end(struct client *client)
{
	struct client **at = &client->http->clients;

	while (*at != client)
		at = &(*at)->next;
	*at = client->next;
	for (struct stream *stream = client->streams; stream; stream = stream->next)
		cell__events_release(&stream->events);
	pthread_mutex_lock(&client->lock);
	client->ending = true;
	pthread_cond_signal(&client->changed);
	pthread_mutex_unlock(&client->lock);
}

static bool is_used(const struct client *client)
{
	if (client->n_messages)
		return true;
	for (const struct stream *stream = client->streams; stream; stream = stream->next) {
		if (stream->events.n_readers)
			return true;
	}
	return false;
}

/* Ends a client that was idle for long, to make room for another. */
static bool make_room(struct cell__mcp_http *http)
{
	const struct cell_server_limits *limits = &http->server->limits;
	int64_t now = cell__now_us();
	struct client *idle = NULL;

	if ((int64_t)http->n_clients < limits->max_sessions)
		return true;
	for (struct client *client = http->clients; client && limits->idle_ms >= 0; client = client->next) {
		if (!is_used(client) && now - client->seen_us > limits->idle_ms * 1000 && (!idle || client->seen_us < idle->seen_us))
			idle = client;
	}
	if (!idle)
		return false;
	/* It counts until it is freed, which is soon for an idle one; one more client for that time does no harm. */
	client_end(idle);
	return (int64_t)http->n_clients <= limits->max_sessions;
}

static struct client *client_create(struct cell__request *request, struct cell_error *err)
{
	struct cell__mcp_http *http = request->server->mcp;
	struct client *client = cell__alloc(1, sizeof(*client));
	struct cell__mcp_sink sink = { send_event, stream_full, client };
	int status;

	if (!client) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
		return NULL;
	}
	*client = (struct client){ .http = http, .over.fn = handle_over, .inbox_end = &client->inbox, .seen_us = cell__now_us() };
	pthread_mutex_init(&client->lock, NULL);
	pthread_cond_init(&client->changed, NULL);
	cell__random_hex(client->id, ID_CHARS);
	strcpy(client->owner, request->who.name);
	client->own = stream_create(client);
	if (!client->own)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
	else
		client->peer = cell__mcp_peer_create(http->mcp, &sink, err);
	if (!client->peer) {
		client_free(client);
		return NULL;
	}
	status = pthread_create(&client->thread, NULL, client_main, client);
	if (status) {
		cell_fail(err, CELL_E_IO, status, "cannot start a thread for a client");
		cell__mcp_peer_destroy(client->peer, NULL); /* it has done nothing yet, and ends at once */
		client_free(client);
		return NULL;
	}
	client->next = http->clients;
	http->clients = client;
	http->n_clients++;
	return client;
}

/* ---- requests ---- */

/* Problems of a message are answered as protocol errors; without an id if the message could not be parsed. */
static void refuse(struct cell__request *request, unsigned status, const char *words)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;

	cell__answer_text(request, status,
			  cell__rpc_add_error(&body, NULL, CELL_RPC_INVALID_REQUEST, words, NULL) < 0 ? NULL : cell__buf_take(&body));
}

/* A session of another token is treated as unknown. */
static struct client *find_client(const struct cell__request *request, const char *id)
{
	struct client *client = request->server->mcp->clients;

	while (client && (strcmp(client->id, id) || (strcmp(client->owner, request->who.name) && !is_hole("mcp-owner"))))
		client = client->next;
	return client;
}

/* Checks for every method. False: it is answered. */
static bool check_request(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const char *version = cell__request_header(request, "MCP-Protocol-Version");
	const char *workspace = cell__space_workspace(server->opts.space);

	if (!cell__token_may_enter(&server->tokens, &request->who, workspace ? workspace : "")) {
		cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN, "the token \"%s\" is not for the workspace of this server",
				  request->who.name);
		return false;
	}
	if (version && !cell__mcp_speaks(version)) {
		refuse(request, MHD_HTTP_BAD_REQUEST, "unsupported MCP-Protocol-Version");
		return false;
	}
	return true;
}

/* The client that the request names; NULL: it is answered. */
static struct client *named_client(struct cell__request *request)
{
	const char *id = cell__request_header(request, "Mcp-Session-Id");
	struct client *client;

	if (!check_request(request))
		return NULL;
	client = id ? find_client(request, id) : NULL;
	if (!client)
		refuse(request, id ? MHD_HTTP_NOT_FOUND : MHD_HTTP_BAD_REQUEST,
		       id ? "no such session: initialize again" : "Mcp-Session-Id is missing");
	else
		client->seen_us = cell__now_us();
	return client;
}

static void answer_stream(struct cell__request *request, struct stream *stream, uint64_t after)
{
	struct MHD_Response *response = cell__events_read(request, &stream->events, after, false);

	if (!response)
		return;
	stream->refs++;
	MHD_add_response_header(response, "Mcp-Session-Id", stream->client->id);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

static void handle_fed(struct cell__task *task)
{
	struct message *message = (struct message *)task;
	struct stream *stream = message->stream;

	message->client->n_messages--;
	message->client->seen_us = cell__now_us();
	if (message->refused)
		refuse(message->request, MHD_HTTP_NOT_FOUND, "no such session: initialize again");
	else if (message->n_requests)
		answer_stream(message->request, stream, 0);
	else
		cell__answer_none(message->request, MHD_HTTP_ACCEPTED);
	stream->fed = true;
	if (!message->n_requests) {
		stream->refs--; /* the peer's, which has no use for it */
		stream_drop(stream);
	}
	cell__buf_finish(&message->body);
	free(message);
}

/* Takes the body over; the request is answered by handle_fed(). */
static void feed(struct cell__request *request, struct client *client)
{
	struct message *message = cell__alloc(1, sizeof(*message));
	struct stream *stream = message ? stream_create(client) : NULL;

	if (!stream) {
		free(message);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a message");
		return;
	}
	stream->refs++; /* the peer's */
	*message = (struct message){ .fed.fn = handle_fed, .client = client, .request = request, .stream = stream, .body = request->body };
	request->body = (struct cell__buf)CELL_BUF_INIT;
	/* As the token has it now: its file may have changed since the session began. */
	atomic_store(&client->peer->cannot_approve, !(request->who.scopes & CELL_SCOPE_APPROVE) && !is_hole("mcp-approve"));
	client->n_messages++;
	pthread_mutex_lock(&client->lock);
	*client->inbox_end = message;
	client->inbox_end = &message->next;
	pthread_cond_signal(&client->changed);
	pthread_mutex_unlock(&client->lock);
}

static bool is_initialize(const struct cell__buf *body)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__rpc_message message;

	return body->size && body->size <= MAX_INITIALIZE_BYTES && !cell__rpc_read(body->data, body->size, false, &doc, NULL) &&
	       doc.count == 1 && !cell__rpc_get(&doc, 0, &message, NULL) && message.kind == CELL__RPC_REQUEST &&
	       !strcmp(message.method, "initialize");
}

static void begin_session(struct cell__request *request)
{
	struct cell_error err;
	struct client *client;

	if (!is_initialize(&request->body)) {
		refuse(request, MHD_HTTP_BAD_REQUEST, "Mcp-Session-Id is required, except for an initialize request");
		return;
	}
	if (!make_room(request->server->mcp)) {
		cell__answer_busy(request, 5, "the maximum number of sessions is open");
		return;
	}
	client = client_create(request, &err);
	if (client)
		feed(request, client);
	else
		cell__answer_error(request, &err);
}

static void handle_post(struct cell__request *request)
{
	const char *accept = cell__request_header(request, "Accept");
	struct client *client;

	if (accept && !strstr(accept, "text/event-stream") && !strstr(accept, "*/*")) {
		refuse(request, MHD_HTTP_NOT_ACCEPTABLE, "the Accept header must include application/json and text/event-stream");
	} else if (!cell__request_header(request, "Mcp-Session-Id")) {
		if (check_request(request))
			begin_session(request);
	} else {
		client = named_client(request);
		if (client)
			feed(request, client);
	}
}

static void handle_get(struct cell__request *request)
{
	const char *last = cell__request_header(request, "Last-Event-ID");
	struct client *client = named_client(request);
	uint64_t number = 0, after = 0;
	struct stream *stream;

	if (!client)
		return;
	if (last && !cell__sse_read_id(last, &number, &after)) {
		refuse(request, MHD_HTTP_BAD_REQUEST, "Last-Event-ID is not the id of an event of this server");
		return;
	}
	for (stream = client->streams; stream && stream->number != number; stream = stream->next)
		;
	if (!stream)
		refuse(request, MHD_HTTP_NOT_FOUND, "the events after this one are no longer kept");
	else if (!number && stream->events.n_readers)
		refuse(request, MHD_HTTP_CONFLICT, "another connection already reads this stream");
	else
		answer_stream(request, stream, after);
}

static void handle_delete(struct cell__request *request)
{
	struct client *client = named_client(request);

	if (!client)
		return;
	client->deleter = request;
	client_end(client);
}

static const struct cell__route routes[] = {
	{ .method = "POST", .path = "/mcp", .scope = CELL_SCOPE_RUN, .handle = handle_post, .raw = true },
	{ .method = "GET", .path = "/mcp", .scope = CELL_SCOPE_RUN, .handle = handle_get },
	{ .method = "DELETE", .path = "/mcp", .scope = CELL_SCOPE_RUN, .handle = handle_delete },
	{ 0 },
};

/* ---- the server's part ---- */

void cell__mcp_sweep(struct cell_server *server, int64_t now_us)
{
	for (struct client *client = server->mcp->clients; client; client = client->next) {
		for (struct stream *stream = client->streams; stream; stream = stream->next)
			cell__events_sweep(&stream->events, now_us);
	}
}

void cell__mcp_end(struct cell_server *server)
{
	atomic_store(&server->mcp->stopping, true);
	while (server->mcp->clients)
		client_end(server->mcp->clients);
}

bool cell__mcp_ended(const struct cell_server *server)
{
	return server->mcp->n_clients == server->mcp->n_stuck;
}

static void handle_told(uv_poll_t *poll, int status, int events)
{
	struct cell_server *server = poll->data;
	uint64_t told = 0;

	(void)status;
	(void)events;
	if (read(server->mcp->mcp->stop_fd, &told, sizeof(told)) != sizeof(told))
		return;
	if (told >= CELL_MCP_TELL_STOP)
		cell_server_drain(server);
	else
		cell_server_reload(server);
}

uv_handle_t *cell__mcp_start(struct cell_server *server)
{
	struct cell__mcp_http *http = server->mcp;

	uv_poll_init(cell__loop_uv(server->engine->loop), &http->told, http->mcp->stop_fd);
	http->told.data = server;
	uv_poll_start(&http->told, UV_READABLE, handle_told);
	return (uv_handle_t *)&http->told;
}

int cell_mcp_server_listen(struct cell_mcp_server *mcp, const struct cell_server_options *opts, struct cell_error *err)
{
	struct cell_server_options all = CELL_SERVER_OPTIONS_INIT;
	struct cell_server_limits limits = CELL_SERVER_LIMITS_INIT;
	struct cell__mcp_http *http;
	struct cell_server *server;
	int status;

	if (!mcp)
		return cell_fail(err, CELL_E_INVALID, 0, "cell_mcp_server_listen(): server is NULL");
	if (cell__require(err, opts) < 0)
		return -1;
	if (cell__sized_read(&all, sizeof(all), opts, "cell_server_options", err) < 0 ||
	    (all.limits && cell__sized_read(&limits, sizeof(limits), all.limits, "cell_server_limits", err) < 0))
		return -1;
	all.space = mcp->opts.space;
	all.session = &mcp->session;
	all.open_space = NULL;
	all.work_dir = NULL;
	if (limits.max_body_bytes > CELL_RPC_MAX_BYTES)
		limits.max_body_bytes = CELL_RPC_MAX_BYTES;
	all.limits = &limits;
	http = cell__alloc(1, sizeof(*http));
	if (!http)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the server");
	if (cell_server_create(mcp->engine, &all, &server, err) < 0) {
		free(http);
		return -1;
	}
	if (cell__tokens_refuse_quotas(&server->tokens, err) < 0) {
		cell_server_destroy(server);
		free(http);
		return -1;
	}
	*http = (struct cell__mcp_http){ .server = server, .mcp = mcp };
	server->mcp = http;
	server->routes = routes;
	atomic_store(&mcp->listening, true);
	status = cell_server_run(server, err);
	atomic_store(&mcp->listening, false);
	if (http->n_stuck)
		return cell_fail(err, CELL_E_TIMEOUT, 0, "operations are still under way");
	cell_server_destroy(server);
	free(http);
	return status;
}
