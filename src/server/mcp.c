/*
 * The MCP server's clients over Streamable HTTP: three routes on the front end of the session server (and those of logins.c).
 *
 *     POST /mcp    one message or batch; requests are answered in an SSE stream of their own, anything else with 202
 *     GET /mcp     messages outside of requests; with Last-Event-ID, the rest of a broken stream
 *     DELETE /mcp  the end of the client's session
 *
 * An initialize makes a client; it is identified by Mcp-Session-Id, and only requests with the same token find it.  It has a peer
 * (mcp/server/server.h), and streams: stream 0 is that of GET.  Requests of revision 2026-07-28 have no such session: all of a principal share a
 * client, which nothing names.  Their streams cannot be resumed, and a reader that leaves one cancels its request.  An issuer may know any
 * number of principals: a client that is not used ends after idle_ms, or for another one.
 *
 * With `advertise`, requests of revision 2026-07-28 about a session that another server has are passed on to it (peers.c): the body names it.
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
#include "server/api.h"
#include "server/oauth.h"

#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>

#include "base/sized.h"
#include "mcp/client/param_headers.h"
#include "durable/owners.h"
#include "mcp/server/server.h"
#include "server/peers.h"
#include "wire/call_seal.h"
#include "wire/sse.h"

#define MAX_STREAMS 16u
#define MAX_CLIENT_BYTES (64u * 1024u * 1024u)
#define MAX_INITIALIZE_BYTES (64u * 1024u) /* parsed on the loop */
#define MAX_NAMING_BYTES (2u * 1024u * 1024u) /* the same; larger requests are not passed on */
#define ID_CHARS 32
#define WAIT_US 2000000 /* for an answer that can be a body of JSON */
#define MAX_ENDING 64 /* clients whose calls and kernels are being ended */
#define LEAST_NAMELESS 64 /* principals at once, whatever max_sessions says */

struct stream {
	struct cell__events events; /* first */
	struct client *client;      /* NULL: gone */
	uint64_t number;
	uint64_t finished;          /* 0: not yet; else its rank among all finished ones */
	unsigned refs;              /* the client's, the peer's until it has finished, a reader's each */
	bool fed;     /* the peer has its message, and the request was answered */
	bool stateless; /* of the client that nothing names */
	/* Stateless: an answer that comes alone and soon is a body of JSON; else the request becomes a stream. */
	struct cell__request *waiting;
	int64_t waiting_us;
	struct note *held, **held_end;
	bool streams;
	_Atomic unsigned status;    /* ... and its status; 0: 200 */
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
	char *version, *method, *name; /* headers, or NULL */
	json_t *params; /* Mcp-Param-* */
	size_t n_requests;
	struct cell__mcp_refusal refusal;
	bool refused; /* the client's session ended before */
	bool prime;   /* the client knows events without data */
	bool cancels; /* the stream has lost its reader; request is NULL */
	struct message *next;
};

struct client {
	struct cell__mcp_http *http;
	char id[ID_CHARS + 1];
	char owner[CELL_SERVER_MAX_NAME + 1];
	bool stateless;         /* for all requests of its token that name no session */
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
	size_t n_sessions;      /* the same without those of stateless requests */
	size_t n_stuck;
	uint64_t n_finished;
	atomic_bool stopping;
	uv_poll_t told;
};

/* An event on its way to the loop. */
struct note {
	struct cell__task task;
	struct stream *stream;
	bool last;
	struct note *next; /* held */
	size_t size;
	char text[];
};

/* ---- streams ---- */

static void stream_unref(struct stream *stream)
{
	struct note *note;

	if (--stream->refs)
		return;
	while ((note = stream->held)) {
		stream->held = note->next;
		free(note);
	}
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

static void enqueue(struct client *client, struct message *message);
static void answer_waiting(struct stream *stream, bool now);
static void handle_fed(struct cell__task *task);

/* Nobody can read the rest any more. */
static void cancel_stream(struct stream *stream)
{
	struct message *message = cell__alloc(1, sizeof(*message));

	if (!message)
		return; /* the request goes on, for nobody */
	*message = (struct message){ .fed.fn = handle_fed, .client = stream->client, .stream = stream, .cancels = true };
	stream->refs++;
	enqueue(stream->client, message);
}

static void handle_reader_gone(struct cell__events *events)
{
	struct stream *stream = (struct stream *)events;

	if (stream->client)
		stream->client->seen_us = cell__now_us();
	if (stream->client && stream->stateless && stream->finished) {
		stream->refs--; /* the reader's; not the last */
		stream_drop(stream);
		return;
	}
	if (stream->client && stream->stateless && !stream->client->ending)
		cancel_stream(stream);
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

	answer_waiting(stream, true);
	cell__events_end(&stream->events);
	if (stream->client) {
		stream->finished = ++stream->client->http->n_finished;
		cell__events_keep(&stream->events);
		if (stream->stateless && stream->fed && !stream->events.n_readers) {
			stream->refs--; /* the peer's; not the last */
			stream_drop(stream);
			return;
		}
		trim_streams(stream->client);
	}
	stream_unref(stream);
}

static struct stream *stream_create(struct client *client)
{
	struct stream *stream = cell__alloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	*stream = (struct stream){ .client = client,
				   .number = client->next_number++,
				   .refs = 1,
				   .end.fn = handle_end,
				   .next = client->streams,
				   .stateless = client->stateless };
	stream->held_end = &stream->held;
	cell__events_init(&stream->events, client->http->server);
	stream->events.nameless = client->stateless;
	snprintf(stream->events.prefix, sizeof(stream->events.prefix), "%llu-", (unsigned long long)stream->number);
	stream->events.moved = handle_moved;
	stream->events.unref = handle_reader_gone;
	/* An answer is kept until its reader comes; other messages may never find one. */
	stream->events.awaited = stream->events.patient = stream->number > 0 && !client->stateless;
	client->streams = stream;
	return stream;
}

static void handle_note(struct cell__task *task)
{
	struct note *note = (struct note *)task;
	struct stream *stream = note->stream;

	atomic_fetch_sub_explicit(&stream->pending, note->size, memory_order_relaxed);
	if (stream->stateless && !stream->streams) {
		*stream->held_end = note;
		stream->held_end = &note->next;
		answer_waiting(stream, false);
		return;
	}
	(void)cell__events_add(&stream->events, NULL, note->text, note->size); /* no memory: the client hears a little less */
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
		*note = (struct note){ .task.fn = handle_note, .stream = stream, .last = last, .size = size };
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

/* Any thread, before the answer is sent. */
static void set_status(void *arg, void *to, unsigned status)
{
	(void)arg;
	if (to)
		atomic_store(&((struct stream *)to)->status, status);
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
	bool busy = false;

	while ((message = take_message(client))) {
		const struct cell__buf *body = &message->body;

		if (message->cancels)
			cell__mcp_peer_cancel(client->peer, message->stream);
		else if (!message->refused)
			message->n_requests = cell__mcp_peer_feed(
				client->peer, body->size ? body->data : "", body->size, message->stream,
				&(struct cell__mcp_head){ message->version, message->method, message->name, message->params },
				&message->refusal);
		/* Since this revision; `version` belongs to this thread. */
		message->prime = client->peer->version && strcmp(client->peer->version, "2025-11-25") >= 0;
		cell__loop_post(loop, &message->fed);
	}
	/* An installation without a waiter may continue for a while. */
	do {
		busy = cell__mcp_peer_destroy(client->peer, busy || atomic_load(&client->http->stopping), NULL) < 0;
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
		http->n_sessions -= !client->stateless;
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
	for (struct stream *stream = client->streams; stream; stream = stream->next) {
		answer_waiting(stream, true);
		cell__events_release(&stream->events);
	}
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

static size_t count_sessions(const struct cell__mcp_http *http, const char *owner)
{
	size_t n = 0;

	for (const struct client *client = http->clients; client; client = client->next)
		n += !client->stateless && !strcmp(client->owner, owner);
	return n;
}

/* Whether it has to go before the other one does: `rank` first counts the sessions of its owner. */
static bool goes_before(const struct client *client, size_t rank, const struct client *other, size_t other_rank)
{
	return !other || rank > other_rank || (rank == other_rank && client->seen_us < other->seen_us);
}

/*
 * Ends a client to make room for another: one that was idle for idle_ms, else of the owner with the most sessions (counting the one that
 * is to be made) the one that was idle for longest.
 */
static bool make_room(struct cell__mcp_http *http, const char *owner)
{
	const struct cell_server_limits *limits = &http->server->limits;
	int64_t now = cell__now_us();
	struct client *idle = NULL;
	size_t idle_rank = 0;
	int64_t open = 0;

	/* Those that end go soon, but there may not be any number of them either. */
	if ((int64_t)http->n_sessions >= limits->max_sessions + MAX_ENDING)
		return false;
	for (struct client *client = http->clients; client; client = client->next) {
		size_t rank;

		open += !client->stateless;
		if (client->stateless || is_used(client))
			continue;
		rank = limits->idle_ms >= 0 && now - client->seen_us > limits->idle_ms * 1000
			       ? SIZE_MAX
			       : count_sessions(http, client->owner) + !strcmp(client->owner, owner);
		if (goes_before(client, rank, idle, idle_rank)) {
			idle = client;
			idle_rank = rank;
		}
	}
	if (open < limits->max_sessions)
		return true;
	if (idle)
		client_end(idle);
	return idle;
}

/* Nothing of it is under way, and nothing that is kept would be lost with it. */
static bool can_end(const struct client *client)
{
	return client->stateless && !is_used(client) && !cell__mcp_peer_is_awaited(client->peer);
}

/* The same for clients that nothing names. */
static bool make_stateless_room(struct cell__mcp_http *http)
{
	int64_t n = 0, most = http->server->limits.max_sessions > LEAST_NAMELESS ? http->server->limits.max_sessions : LEAST_NAMELESS;
	struct client *idle = NULL;

	for (struct client *client = http->clients; client; client = client->next) {
		n += client->stateless;
		if (can_end(client) && (!idle || client->seen_us < idle->seen_us))
			idle = client;
	}
	if ((int64_t)(http->n_clients - http->n_sessions) >= most + MAX_ENDING)
		return false;
	if (n < most)
		return true;
	if (idle)
		client_end(idle);
	return idle;
}

static struct client *client_create(struct cell__request *request, bool stateless, struct cell_error *err)
{
	struct cell__mcp_http *http = request->server->mcp;
	struct client *client = cell__alloc(1, sizeof(*client));
	struct cell__mcp_sink sink = { send_event, stream_full, set_status, client };
	char owner[CELL_MCP_MAX_OWNER];
	int status;

	if (!client) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
		return NULL;
	}
	*client = (struct client){
		.http = http, .stateless = stateless, .over.fn = handle_over, .inbox_end = &client->inbox, .seen_us = cell__now_us()
	};
	pthread_mutex_init(&client->lock, NULL);
	pthread_cond_init(&client->changed, NULL);
	cell__random_hex(client->id, ID_CHARS);
	strcpy(client->owner, request->who.name);
	snprintf(owner, sizeof(owner), "token %s", client->owner);
	client->own = stream_create(client);
	if (!client->own)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
	else
		client->peer = cell__mcp_peer_create(http->mcp, &sink, owner, stateless, err);
	if (!client->peer) {
		client_free(client);
		return NULL;
	}
	status = pthread_create(&client->thread, NULL, client_main, client);
	if (status) {
		cell_fail(err, CELL_E_IO, status, "cannot start a thread for a client");
		cell__mcp_peer_destroy(client->peer, true, NULL); /* it has done nothing yet, and ends at once */
		client_free(client);
		return NULL;
	}
	client->next = http->clients;
	http->clients = client;
	http->n_clients++;
	http->n_sessions += !stateless;
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

	while (client &&
	       (client->stateless || strcmp(client->id, id) || (strcmp(client->owner, request->who.name) && !is_hole("mcp-owner"))))
		client = client->next;
	return client;
}

/* Checks for every method. False: it is answered. */
static bool check_token(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const char *workspace = cell__space_workspace(server->opts.space);

	if (cell__token_may_enter(&server->tokens, &request->who, workspace ? workspace : ""))
		return true;
	cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN, "the token \"%s\" is not for the workspace of this server",
			  request->who.name);
	return false;
}

/* Whether it is a request of a revision with sessions; without the header it may be. */
static bool has_session(const struct cell__request *request)
{
	const char *version = cell__request_header(request, "MCP-Protocol-Version");

	return !version || cell__mcp_speaks(version);
}

/* The client that the request names; NULL: it is answered. */
static struct client *named_client(struct cell__request *request)
{
	const char *id = cell__request_header(request, "Mcp-Session-Id");
	struct client *client;

	if (!check_token(request))
		return NULL;
	if (!has_session(request)) {
		const char *version = cell__request_header(request, "MCP-Protocol-Version");
		bool modern = !strcmp(version, CELL_MCP_MODERN);

		refuse(request, modern ? MHD_HTTP_METHOD_NOT_ALLOWED : MHD_HTTP_BAD_REQUEST,
		       modern ? "this revision only has POST" : "unsupported MCP-Protocol-Version");
		return NULL;
	}
	client = id ? find_client(request, id) : NULL;
	if (!client)
		refuse(request, id ? MHD_HTTP_NOT_FOUND : MHD_HTTP_BAD_REQUEST,
		       id ? "no such session: initialize again" : "Mcp-Session-Id is missing");
	else
		client->seen_us = cell__now_us();
	return client;
}

static void answer_stream(struct cell__request *request, struct stream *stream, uint64_t after, bool prime)
{
	struct MHD_Response *response = cell__events_read(request, &stream->events, after, false);

	if (!response)
		return;
	stream->refs++;
	if (prime)
		cell__events_prime(&stream->events);
	if (!stream->stateless)
		MHD_add_response_header(response, "Mcp-Session-Id", stream->client->id);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

/* now: it becomes a stream in any case. */
static void answer_waiting(struct stream *stream, bool now)
{
	struct cell__request *request = stream->waiting;
	struct note *note = stream->held;

	if (!request || (!note && !now))
		return;
	stream->waiting = NULL;
	if (note && note->last && !note->next) {
		char *text = cell__alloc(1, note->size + 1);

		if (text) {
			memcpy(text, note->text, note->size);
			text[note->size] = '\0';
		}
		unsigned status = atomic_load(&stream->status);

		cell__answer_text(request, status ? status : MHD_HTTP_OK, text);
		return;
	}
	stream->streams = true;
	for (; (note = stream->held); free(note)) {
		stream->held = note->next;
		(void)cell__events_add(&stream->events, NULL, note->text, note->size);
	}
	answer_stream(request, stream, 0, false);
}

static void message_free(struct message *message)
{
	cell__buf_finish(&message->body);
	cell__buf_finish(&message->refusal.body);
	free(message->version);
	free(message->method);
	free(message->name);
	json_decref(message->params);
	free(message);
}

static void handle_fed(struct cell__task *task)
{
	struct message *message = (struct message *)task;
	struct stream *stream = message->stream;
	struct cell__mcp_refusal *refusal = &message->refusal;

	message->client->n_messages--;
	message->client->seen_us = cell__now_us();
	if (message->cancels) {
		stream_unref(stream);
		message_free(message);
		return;
	}
	if (message->refused)
		refuse(message->request, MHD_HTTP_NOT_FOUND, "no such session: initialize again");
	else if (refusal->status)
		cell__answer_text(message->request, refusal->status, refusal->body.size ? cell__buf_take(&refusal->body) : NULL);
	else if (message->n_requests && !stream->stateless)
		answer_stream(message->request, stream, 0, message->prime);
	else if (!message->n_requests)
		cell__answer_none(message->request, MHD_HTTP_ACCEPTED);
	stream->fed = true;
	if (message->n_requests && stream->stateless) {
		stream->waiting = message->request;
		stream->waiting_us = cell__now_us();
		answer_waiting(stream, stream->finished);
		if (stream->finished && stream->client && !stream->events.n_readers)
			stream_drop(stream);
	} else if (!message->n_requests) {
		stream->refs--; /* the peer's, which has no use for it */
		stream_drop(stream);
	}
	message_free(message);
}

static void enqueue(struct client *client, struct message *message)
{
	client->n_messages++;
	pthread_mutex_lock(&client->lock);
	*client->inbox_end = message;
	client->inbox_end = &message->next;
	pthread_cond_signal(&client->changed);
	pthread_mutex_unlock(&client->lock);
}

/* Without the space around it.  False: out of memory. */
static bool copy_header(const struct cell__request *request, const char *name, char **ret_value)
{
	const char *value = cell__request_header(request, name);

	value = value ? value + strspn(value, " \t") : NULL;
	*ret_value = value ? cell__strdup(value) : NULL;
	for (size_t size = *ret_value ? strlen(*ret_value) : 0; size && strchr(" \t", (*ret_value)[size - 1]); size--)
		(*ret_value)[size - 1] = '\0';
	return !value || *ret_value;
}

#define PARAM "Mcp-Param-"

static enum MHD_Result take_param(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	json_t *params = arg;
	char lower[CELL_MCP_LIMIT_PARAM_NAME + 1];
	const char *rest = name + strlen(PARAM);
	size_t size, length;

	(void)kind;
	if (strncasecmp(name, PARAM, strlen(PARAM)) || strlen(rest) > CELL_MCP_LIMIT_PARAM_NAME)
		return MHD_YES; /* no tool has one that long */
	for (size = 0; rest[size]; size++)
		lower[size] = (char)tolower((unsigned char)rest[size]);
	lower[size] = '\0';
	value = value ? value + strspn(value, " \t") : "";
	for (length = strlen(value); length && strchr(" \t", value[length - 1]); length--)
		;
	/* Two of a name, or bytes that are not text, say nothing that two readers could agree on. */
	if (json_object_get(params, lower) || json_object_set_new(params, lower, json_stringn(value, length)) < 0)
		return json_object_set_new(params, lower, json_true()) < 0 ? MHD_NO : MHD_YES;
	return MHD_YES;
}

/* Takes the body over; the request is answered by handle_fed(). */
static void feed(struct cell__request *request, struct client *client)
{
	struct message *message = cell__alloc(1, sizeof(*message));
	struct stream *stream = NULL;

	if (message) {
		*message = (struct message){ .fed.fn = handle_fed, .client = client, .request = request };
		if (copy_header(request, "MCP-Protocol-Version", &message->version) &&
		    copy_header(request, "Mcp-Method", &message->method) && copy_header(request, "Mcp-Name", &message->name) &&
		    (message->params = json_object()))
			stream = stream_create(client);
	}
	if (!stream) {
		if (message)
			message_free(message);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a message");
		return;
	}
	MHD_get_connection_values(request->connection, MHD_HEADER_KIND, take_param, message->params);
	stream->refs++; /* the peer's */
	message->stream = stream;
	message->body = request->body;
	request->body = (struct cell__buf)CELL_BUF_INIT;
	/* As the token has it now: its file may have changed since the session began. */
	atomic_store(&client->peer->scopes, request->who.scopes);
	atomic_store(&client->peer->cannot_approve, !(request->who.scopes & CELL_SCOPE_APPROVE) && !is_hole("mcp-approve"));
	enqueue(client, message);
}

static bool is_initialize(const struct cell__buf *body)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__rpc_message message;

	return body->size && body->size <= MAX_INITIALIZE_BYTES && !cell__rpc_read(body->data, body->size, false, &doc, NULL) &&
	       doc.count == 1 && !cell__rpc_get(&doc, 0, &message, NULL) && message.kind == CELL__RPC_REQUEST &&
	       !strcmp(message.method, "initialize") && !cell__mcp_is_modern(&message);
}

/* The session that the request needs, or whose job or task it is about: its id, maybe with more behind it; NULL: none. */
static const char *find_subject(const struct cell__rpc_message *message, struct cell__call_seal *seal)
{
	const json_t *args = json_object_get(message->params, "arguments");
	const char *state = json_string_value(json_object_get(message->params, "requestState"));
	const char *id = NULL;

	if (state)
		return cell__call_seal_read(state, seal) ? seal->session : NULL;
	if (!strncmp(message->method, "tasks/", 6))
		id = json_string_value(json_object_get(message->params, "taskId"));
	else if (!strcmp(message->method, "tools/call") && !(id = json_string_value(json_object_get(args, "session"))))
		id = json_string_value(json_object_get(args, "job"));
	return id;
}

void cell__mcp_name(struct cell__request *request)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	const struct cell__buf *body = &request->body;
	struct cell__rpc_message message;
	struct cell__call_seal seal;
	const char *id;

	*request->subject = '\0';
	if (!body->size || body->size > MAX_NAMING_BYTES || has_session(request) ||
	    cell__rpc_read(body->data, body->size, false, &doc, NULL) || doc.count != 1 || cell__rpc_get(&doc, 0, &message, NULL) ||
	    message.kind != CELL__RPC_REQUEST)
		return;
	id = find_subject(&message, &seal);
	if (!id || strlen(id) < CELL_MCP_HANDLE_CHARS || (id[CELL_MCP_HANDLE_CHARS] && id[CELL_MCP_HANDLE_CHARS] != '.') ||
	    cell__mcp_knows(request->server->mcp->mcp, id))
		return;
	memcpy(request->subject, id, CELL_MCP_HANDLE_CHARS);
	request->subject[CELL_MCP_HANDLE_CHARS] = '\0';
}

static void begin_session(struct cell__request *request)
{
	struct cell_error err;
	struct client *client;

	if (!make_room(request->server->mcp, request->who.name)) {
		cell__answer_busy(request, 5, "the maximum number of sessions is open");
		return;
	}
	client = client_create(request, false, &err);
	if (client)
		feed(request, client);
	else
		cell__answer_error(request, &err);
}

/* A request that names no session, and does not begin one. */
static void feed_stateless(struct cell__request *request)
{
	struct client *client = request->server->mcp->clients;
	struct cell_error err;

	while (client && (!client->stateless || strcmp(client->owner, request->who.name)))
		client = client->next;
	if (!client && !make_stateless_room(request->server->mcp)) {
		cell__answer_busy(request, 5, "the maximum number of clients is at work");
		return;
	}
	if (!client)
		client = client_create(request, true, &err);
	if (client)
		feed(request, client);
	else
		cell__answer_error(request, &err);
}

/* A page can make a browser send other types without asking us first. */
static bool is_json(const char *type)
{
	static const char json[] = "application/json";
	const char *rest = type + strlen(json);

	return !strncasecmp(type, json, strlen(json)) && (!*rest || strchr("; \t", *rest));
}

static void handle_post(struct cell__request *request)
{
	const char *accept = cell__request_header(request, "Accept"), *type = cell__request_header(request, "Content-Type");
	struct client *client;

	if (type && !is_json(type)) {
		refuse(request, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE, "the Content-Type must be application/json");
	} else if (accept && !strstr(accept, "*/*") &&
		   (!strstr(accept, "text/event-stream") || (!has_session(request) && !strstr(accept, "application/json")))) {
		refuse(request, MHD_HTTP_NOT_ACCEPTABLE, "the Accept header must include application/json and text/event-stream");
	} else if (has_session(request) && cell__request_header(request, "Mcp-Session-Id")) {
		client = named_client(request);
		if (client)
			feed(request, client);
	} else if (check_token(request)) {
		if (has_session(request) && is_initialize(&request->body))
			begin_session(request);
		else
			feed_stateless(request);
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
		answer_stream(request, stream, after, false);
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
	{ .method = "GET", .path = "/v1/logins", .scope = CELL_SCOPE_READ, .handle = cell__handle_v1_logins },
	{ .method = "GET", .path = "/oauth/login", .scope = CELL_SCOPE_OPEN, .handle = cell__handle_login_page },
	{ .method = "POST", .path = "/oauth/login", .scope = CELL_SCOPE_OPEN, .handle = cell__handle_login, .raw = true },
	{ .method = "GET", .path = "/oauth/callback", .scope = CELL_SCOPE_OPEN, .handle = cell__handle_login_callback },
	{ 0 },
};

/* ---- the server's part ---- */

void cell__mcp_keep(struct cell_server *server, bool all)
{
	struct cell_mcp_server *mcp = server->mcp->mcp;

	if (!mcp->owners)
		return;
	pthread_mutex_lock(&mcp->lock);
	for (struct cell__mcp_handle *handle = mcp->handles; handle; handle = handle->next) {
		if (handle->unannounced)
			cell__directory_add(server, handle->id, NULL);
		else if (all && handle->session)
			cell__directory_keep(server, handle->id);
		handle->unannounced = false;
	}
	pthread_mutex_unlock(&mcp->lock);
}

void cell__mcp_sweep(struct cell_server *server, int64_t now_us)
{
	const struct cell_server_limits *limits = &server->limits;
	struct client *next;

	cell__mcp_keep(server, false);
	for (struct client *client = server->mcp->clients; client; client = next) {
		next = client->next;
		if (limits->idle_ms >= 0 && now_us - client->seen_us > limits->idle_ms * 1000 && can_end(client)) {
			client_end(client);
			continue;
		}
		for (struct stream *stream = client->streams; stream; stream = stream->next) {
			if (stream->waiting && now_us - stream->waiting_us > WAIT_US)
				answer_waiting(stream, true);
			cell__events_sweep(&stream->events, now_us);
		}
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
	if (server->opts.space)
		cell__logins_offer(server, server->opts.space, "");
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
	if (cell__tokens_refuse_quotas(&server->tokens, err) < 0 ||
	    (server->oauth && cell__oauth_refuse_quotas(cell__oauth_config_of(server), err) < 0)) {
		cell_server_destroy(server);
		free(http);
		return -1;
	}
	if (all.advertise && !mcp->owners && cell__owners_open(mcp->session.saved_dir, all.advertise, &mcp->owners, err) < 0) {
		cell_server_destroy(server);
		free(http);
		return -1;
	}
	/* Who finds the lease of a session has found us. */
	if (all.advertise)
		mcp->session.saved_url = all.advertise;
	*http = (struct cell__mcp_http){ .server = server, .mcp = mcp };
	server->mcp = http;
	server->routes = routes;
	if (server->tracing.otlp)
		cell__trace_follow(&server->tracing, mcp);
	atomic_store(&mcp->listening, true);
	status = cell_server_run(server, err);
	cell__trace_unfollow(mcp);
	atomic_store(&mcp->listening, false);
	if (http->n_stuck)
		return cell_fail(err, CELL_E_TIMEOUT, 0, "operations are still under way");
	cell_server_destroy(server);
	free(http);
	return status;
}
