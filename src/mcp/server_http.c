/*
 * Many clients by Streamable HTTP, with libmicrohttpd: a thread for each connection, which may wait.
 *
 *     POST /mcp    one message or batch; requests are answered in an SSE stream of their own, anything else with 202
 *     GET /mcp     what belongs to no request; with Last-Event-ID, the rest of a stream that broke off
 *     DELETE /mcp  the end of the client's session
 *
 * A client is made by an initialize and known by Mcp-Session-Id.  It has a peer, and streams: stream 0 is that of GET.  A
 * stream keeps its events, so that a connection can be taken up again; finished ones are dropped when there are too many.
 * http->lock guards all of it and is the last in the order of locks: a peer sends with its own held.
 *
 * Who may come in is server_access.c's to say.
 */
#include "mcp/server.h"

#ifndef CELL_HAVE_LISTEN

int cell_mcp_server_listen(struct cell_mcp_server *server, const struct cell_mcp_http_options *opts, struct cell_error *err)
{
	(void)server;
	(void)opts;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "this workcell was built without libmicrohttpd and cannot listen");
}

#else

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "loop/guests.h"
#include "loop/listen.h"
#include "wire/access.h"
#include "wire/sse.h"

#define MAX_CLIENTS 64u
#define MAX_CONNECTIONS 256u
#define MAX_GUESTS 128u                     /* of them, those that have not shown the token */
#define GUEST_SECONDS 15                    /* until they have to */
#define MAX_STREAMS 16u                     /* finished ones that a client can take up again */
#define MAX_STREAM_BYTES (16u * 1024u * 1024u) /* of stream 0, which nobody may be reading */
#define IDLE_SECONDS 3600                   /* a client that was not heard of for so long makes room for another */
#define ALIVE_SECONDS 15                    /* between comments that keep a quiet connection */
#define SILENT_SECONDS 60u                  /* a connection on which nothing moves for so long is closed */
#define BLOCK_BYTES (64u * 1024u)
#define ID_CHARS 32

struct event {
	char *text;
	size_t size;
	struct event *next;
};

struct stream {
	uint64_t number;
	uint64_t first;      /* number of the first event that is kept; they count from 1 */
	struct event *events, *last;
	size_t bytes;
	bool finished;
	unsigned readers;
	struct stream *next; /* older */
};

struct client {
	struct http *http;
	char id[ID_CHARS + 1];
	struct cell__mcp_peer *peer;
	struct stream *streams; /* newest first; the last one is stream 0 */
	uint64_t next_number;
	unsigned users;         /* connections that work with it */
	bool gone;
	int64_t seen_us;
	struct client *next;
};

struct http {
	struct cell_mcp_server *server;
	const struct cell_mcp_http_options *opts;
	int port;
	unsigned char hash[CELL_ACCESS_HASH_BYTES]; /* of the token */
	struct cell__guests guests;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct client *clients;
	size_t n_clients;
	bool stopping;
};

/* ---- streams, with the lock held ---------------------------------------------------------- */

static void drop_first(struct stream *stream)
{
	struct event *event = stream->events;

	stream->events = event->next;
	if (!stream->events)
		stream->last = NULL;
	stream->bytes -= event->size;
	stream->first++;
	free(event->text);
	free(event);
}

static void stream_destroy(struct stream *stream)
{
	while (stream->events)
		drop_first(stream);
	free(stream);
}

static struct stream *stream_create(struct client *client)
{
	struct stream *stream = cell__alloc(1, sizeof(*stream)), **at;
	size_t finished = 0;

	if (!stream)
		return NULL;
	*stream = (struct stream){ .number = client->next_number++, .first = 1, .next = client->streams };
	client->streams = stream;
	for (at = &client->streams; *at; ) {
		struct stream *old = *at;

		finished += old->finished;
		if (old->finished && !old->readers && finished > MAX_STREAMS) {
			*at = old->next;
			stream_destroy(old);
		} else {
			at = &old->next;
		}
	}
	return stream;
}

static struct stream *find_stream(struct client *client, uint64_t number)
{
	struct stream *stream = client->streams;

	while (stream && stream->number != number)
		stream = stream->next;
	return stream;
}

static void send_event(void *arg, void *to, const char *text, size_t size, bool last)
{
	struct client *client = arg;
	struct event *event = text ? cell__alloc(1, sizeof(*event)) : NULL;
	char *copy = event ? cell__strndup(text, size) : NULL;
	struct stream *stream;

	pthread_mutex_lock(&client->http->lock);
	stream = to ? to : find_stream(client, 0);
	if (copy) {
		*event = (struct event){ copy, size, NULL };
		if (stream->last)
			stream->last->next = event;
		else
			stream->events = event;
		stream->last = event;
		stream->bytes += size;
		while (!stream->number && stream->bytes > MAX_STREAM_BYTES)
			drop_first(stream);
	} else {
		free(event);
	}
	stream->finished = stream->finished || (to && last);
	pthread_cond_broadcast(&client->http->changed);
	pthread_mutex_unlock(&client->http->lock);
}

static bool stream_full(void *arg, void *to)
{
	struct client *client = arg;
	struct stream *stream;
	bool full;

	pthread_mutex_lock(&client->http->lock);
	stream = to ? to : find_stream(client, 0);
	full = stream->bytes > CELL_MCP_MAX_OUTBOX_BYTES;
	pthread_mutex_unlock(&client->http->lock);
	return full;
}

/* ---- clients ------------------------------------------------------------------------------------ */

/* With the lock held; it may be done already. */
static void unlink_client(struct client *client)
{
	struct client **at = &client->http->clients;

	while (*at && *at != client)
		at = &(*at)->next;
	if (*at) {
		*at = client->next;
		client->http->n_clients--;
	}
}

/* Nobody finds it any more; waits for those who work with it.  Without the lock. */
static void client_destroy(struct client *client, unsigned own)
{
	struct http *http = client->http;
	struct stream *stream;
	int busy;

	pthread_mutex_lock(&http->lock);
	unlink_client(client);
	client->gone = true;
	pthread_cond_broadcast(&http->changed);
	while (client->users > own)
		pthread_cond_wait(&http->changed, &http->lock);
	pthread_mutex_unlock(&http->lock);
	/* An installation that nobody waits for may go on for a while. */
	do {
		busy = client->peer && cell__mcp_peer_destroy(client->peer, NULL) < 0;
	} while (busy && !http->stopping);
	if (busy)
		return; /* the program is to exit: what its workers use stays */
	while ((stream = client->streams)) {
		client->streams = stream->next;
		stream_destroy(stream);
	}
	free(client);
}

static struct client *client_create(struct http *http, struct cell_error *err)
{
	struct client *client = cell__alloc(1, sizeof(*client)), *idle = NULL;
	struct cell__mcp_sink sink = { send_event, stream_full, client };
	int64_t now = cell__now_us();
	bool room;

	if (!client) {
		cell_fail(err, CELL_E_NOMEM, 0, "no memory for a client");
		return NULL;
	}
	*client = (struct client){ .http = http, .users = 1, .seen_us = now };
	cell__random_hex(client->id, ID_CHARS);
	pthread_mutex_lock(&http->lock);
	for (struct client *other = http->clients; other && http->n_clients >= MAX_CLIENTS; other = other->next) {
		if (!other->users && now - other->seen_us > (int64_t)IDLE_SECONDS * 1000000 && (!idle || other->seen_us < idle->seen_us))
			idle = other;
	}
	if (idle)
		unlink_client(idle); /* nobody else chooses it */
	room = http->n_clients < MAX_CLIENTS;
	http->n_clients += room;
	pthread_mutex_unlock(&http->lock);
	if (idle)
		client_destroy(idle, 0);
	if (!room)
		cell_fail(err, CELL_E_LIMIT, 0, "there are as many clients as there can be");
	else if (!stream_create(client))
		cell_fail(err, CELL_E_NOMEM, 0, "no memory for a client");
	else
		client->peer = cell__mcp_peer_create(http->server, &sink, err);
	pthread_mutex_lock(&http->lock);
	if (client->peer) {
		client->next = http->clients;
		http->clients = client;
	} else {
		http->n_clients -= room;
	}
	pthread_mutex_unlock(&http->lock);
	if (client->peer)
		return client;
	client_destroy(client, 1);
	return NULL;
}

/* The caller gives it back with put_client(). */
static struct client *get_client(struct http *http, const char *id)
{
	struct client *client;

	pthread_mutex_lock(&http->lock);
	for (client = http->clients; client && strcmp(client->id, id); client = client->next)
		;
	if (client)
		client->users++;
	pthread_mutex_unlock(&http->lock);
	return client;
}

static void put_client(struct client *client)
{
	struct http *http = client->http;

	pthread_mutex_lock(&http->lock);
	client->users--;
	client->seen_us = cell__now_us();
	pthread_cond_broadcast(&http->changed);
	pthread_mutex_unlock(&http->lock);
}

/* ---- an SSE response ------------------------------------------------------------------------------- */

struct reader {
	struct client *client;
	struct stream *stream;
	uint64_t next;         /* event */
	struct cell__buf out;
	size_t sent;           /* of out */
};

/* With the lock held: the next events as text. */
static void take_events(struct reader *reader)
{
	struct event *event = reader->stream->events;
	uint64_t number = reader->stream->first;
	char id[64];

	for (; event && number < reader->next; number++)
		event = event->next;
	reader->next = number;
	for (; event && reader->out.size < BLOCK_BYTES; event = event->next) {
		snprintf(id, sizeof(id), "%llu-%llu", (unsigned long long)reader->stream->number, (unsigned long long)reader->next++);
		cell__sse_add_event(&reader->out, NULL, id, event->text, event->size);
	}
}

static ssize_t read_events(void *arg, uint64_t at, char *buf, size_t max)
{
	struct reader *reader = arg;
	struct http *http = reader->client->http;
	size_t n;

	(void)at;
	pthread_mutex_lock(&http->lock);
	if (reader->sent == reader->out.size) {
		cell__buf_shift(&reader->out, reader->out.size);
		reader->sent = 0;
		take_events(reader);
		while (!reader->out.size && !reader->stream->finished && !reader->client->gone && !http->stopping) {
			int64_t until_us = cell__now_us() + (int64_t)ALIVE_SECONDS * 1000000;
			struct timespec until = { .tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000 };

			if (pthread_cond_timedwait(&http->changed, &http->lock, &until) == ETIMEDOUT)
				cell__sse_add_comment(&reader->out, "still here");
			take_events(reader);
		}
	}
	n = reader->out.size - reader->sent;
	n = n < max ? n : max;
	if (n)
		memcpy(buf, reader->out.data + reader->sent, n);
	reader->sent += n;
	pthread_mutex_unlock(&http->lock);
	return n ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

static void reader_destroy(void *arg)
{
	struct reader *reader = arg;

	pthread_mutex_lock(&reader->client->http->lock);
	reader->stream->readers--;
	pthread_mutex_unlock(&reader->client->http->lock);
	put_client(reader->client);
	cell__buf_finish(&reader->out);
	free(reader);
}

static enum MHD_Result answer_stream(struct MHD_Connection *connection, struct client *client, struct stream *stream, uint64_t next)
{
	struct reader *reader = cell__alloc(1, sizeof(*reader));
	struct MHD_Response *response = NULL;
	enum MHD_Result queued;

	if (reader) {
		*reader = (struct reader){ .client = client, .stream = stream, .next = next };
		response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_events, reader, reader_destroy);
	}
	if (!response) {
		pthread_mutex_lock(&client->http->lock);
		stream->readers--;
		pthread_mutex_unlock(&client->http->lock);
		put_client(client);
		free(reader);
		return MHD_NO;
	}
	MHD_add_response_header(response, "Content-Type", "text/event-stream");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	MHD_add_response_header(response, "Mcp-Session-Id", client->id);
	queued = MHD_queue_response(connection, MHD_HTTP_OK, response);
	MHD_destroy_response(response);
	return queued;
}

/* ---- who may come in --------------------------------------------------------------------------------- */

static enum MHD_Result answer_plain(struct MHD_Connection *connection, unsigned status, const char *words)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;
	struct MHD_Response *response;
	enum MHD_Result queued;

	if (words)
		cell__rpc_add_error(&body, NULL, CELL_RPC_INVALID_REQUEST, words, NULL);
	response = MHD_create_response_from_buffer(body.size, body.data, MHD_RESPMEM_MUST_COPY);
	if (!response)
		return MHD_NO;
	if (words)
		MHD_add_response_header(response, "Content-Type", "application/json");
	if (status == MHD_HTTP_UNAUTHORIZED)
		MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, "Allow", "GET, POST, DELETE");
	queued = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return queued;
}

static const char *header(struct MHD_Connection *connection, const char *name)
{
	return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* 0, or the status to refuse with. */
static unsigned check_access(const struct http *http, struct MHD_Connection *connection, const char *url, const char **ret_words)
{
	const struct cell__mcp_head head = {
		.url = url,
		.authorization = header(connection, "Authorization"),
		.host = header(connection, "Host"),
		.origin = header(connection, "Origin"),
		.version = header(connection, "MCP-Protocol-Version"),
	};

	return cell__mcp_access(http->opts, http->opts->token ? http->hash : NULL, http->port, &head, ret_words);
}

static struct cell__guest *guest_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	return info ? info->socket_context : NULL;
}

static void leave_guests(struct http *http, struct MHD_Connection *connection)
{
	struct cell__guest *guest = guest_of(connection);

	if (!guest)
		return;
	pthread_mutex_lock(&http->lock);
	cell__guests_leave(&http->guests, guest);
	pthread_mutex_unlock(&http->lock);
}

/* On the listening thread or the connection's own. */
static void handle_connection(void *arg, struct MHD_Connection *connection, void **state, enum MHD_ConnectionNotificationCode what)
{
	const union MHD_ConnectionInfo *fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	const union MHD_ConnectionInfo *from = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	struct http *http = arg;

	if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
		leave_guests(http, connection);
		free(*state);
		*state = NULL;
		return;
	}
	*state = fd ? cell__alloc(1, sizeof(struct cell__guest)) : NULL;
	if (!*state) { /* one that could not be counted is not served */
		if (fd)
			shutdown(fd->connect_fd, SHUT_RDWR);
		return;
	}
	pthread_mutex_lock(&http->lock);
	cell__guests_add(&http->guests, *state, fd->connect_fd, from ? from->client_addr : NULL);
	pthread_mutex_unlock(&http->lock);
}

/* ---- requests ------------------------------------------------------------------------------------------ */

static bool is_initialize(const struct cell__buf *body)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__rpc_message message;

	return !cell__rpc_read(body->size ? body->data : "", body->size, false, &doc, NULL) && doc.count == 1 &&
	       !cell__rpc_get(&doc, 0, &message, NULL) && message.kind == CELL__RPC_REQUEST && !strcmp(message.method, "initialize");
}

static enum MHD_Result handle_post(struct http *http, struct MHD_Connection *connection, const struct cell__buf *body)
{
	const char *id = header(connection, "Mcp-Session-Id"), *accept = header(connection, "Accept");
	struct cell_error err = { 0 };
	struct client *client;
	struct stream *stream;

	if (accept && !strstr(accept, "text/event-stream") && !strstr(accept, "*/*"))
		return answer_plain(connection, MHD_HTTP_NOT_ACCEPTABLE, "answers are application/json and text/event-stream: accept both");
	if (!id && !is_initialize(body))
		return answer_plain(connection, MHD_HTTP_BAD_REQUEST, "Mcp-Session-Id is missing, and this is no initialize");
	client = id ? get_client(http, id) : client_create(http, &err);
	if (!client)
		return id ? answer_plain(connection, MHD_HTTP_NOT_FOUND, "there is no such session: initialize again")
			  : answer_plain(connection, MHD_HTTP_SERVICE_UNAVAILABLE, err.msg);
	pthread_mutex_lock(&http->lock);
	stream = stream_create(client);
	if (stream)
		stream->readers = 1;
	pthread_mutex_unlock(&http->lock);
	if (stream && cell__mcp_peer_feed(client->peer, body->size ? body->data : "", body->size, stream))
		return answer_stream(connection, client, stream, 1);
	if (stream) {
		pthread_mutex_lock(&http->lock);
		stream->readers = 0;
		stream->finished = true;
		pthread_mutex_unlock(&http->lock);
	}
	put_client(client);
	return answer_plain(connection, stream ? MHD_HTTP_ACCEPTED : MHD_HTTP_INTERNAL_SERVER_ERROR, NULL);
}

static enum MHD_Result handle_get(struct http *http, struct MHD_Connection *connection)
{
	const char *id = header(connection, "Mcp-Session-Id"), *last = header(connection, "Last-Event-ID");
	struct client *client = id ? get_client(http, id) : NULL;
	uint64_t number = 0, after = 0;
	struct stream *stream;
	bool taken;

	if (!client)
		return answer_plain(connection, id ? MHD_HTTP_NOT_FOUND : MHD_HTTP_BAD_REQUEST,
				    id ? "there is no such session: initialize again" : "Mcp-Session-Id is missing");
	if (last && !cell__mcp_event_id(last, &number, &after)) {
		put_client(client);
		return answer_plain(connection, MHD_HTTP_BAD_REQUEST, "Last-Event-ID is none of ours");
	}
	pthread_mutex_lock(&http->lock);
	stream = find_stream(client, number);
	taken = stream && !number && stream->readers;
	if (stream && !taken)
		stream->readers++;
	pthread_mutex_unlock(&http->lock);
	if (!stream || taken) {
		put_client(client);
		return taken ? answer_plain(connection, MHD_HTTP_CONFLICT, "somebody reads this stream already")
			     : answer_plain(connection, MHD_HTTP_NOT_FOUND, "what came after this event is not kept any more");
	}
	return answer_stream(connection, client, stream, after + 1);
}

static enum MHD_Result handle_delete(struct http *http, struct MHD_Connection *connection)
{
	const char *id = header(connection, "Mcp-Session-Id");
	struct client *client = id ? get_client(http, id) : NULL;
	bool first;

	if (!client)
		return answer_plain(connection, id ? MHD_HTTP_NOT_FOUND : MHD_HTTP_BAD_REQUEST,
				    id ? "there is no such session" : "Mcp-Session-Id is missing");
	pthread_mutex_lock(&http->lock);
	first = !client->gone;
	client->gone = true;
	pthread_mutex_unlock(&http->lock);
	if (first)
		client_destroy(client, 1);
	else
		put_client(client);
	return answer_plain(connection, MHD_HTTP_NO_CONTENT, NULL);
}

static enum MHD_Result handle_request(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
				      const char *version, const char *data, size_t *data_size, void **state)
{
	struct http *http = arg;
	struct cell__buf *body = *state;
	const char *words;
	unsigned status;

	(void)version;
	if (!body) {
		status = check_access(http, connection, url, &words);
		if (status)
			return answer_plain(connection, status, words);
		leave_guests(http, connection);
		*state = body = cell__alloc(1, sizeof(*body));
		return body ? MHD_YES : MHD_NO;
	}
	if (*data_size) {
		if (body->size + *data_size > CELL_RPC_MAX_BYTES || cell__buf_add(body, data, *data_size) < 0)
			return MHD_NO; /* ends the connection */
		*data_size = 0;
		return MHD_YES;
	}
	if (!strcmp(method, "POST"))
		return handle_post(http, connection, body);
	if (!strcmp(method, "GET"))
		return handle_get(http, connection);
	if (!strcmp(method, "DELETE"))
		return handle_delete(http, connection);
	return answer_plain(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "there are POST, GET and DELETE");
}

static void request_done(void *arg, struct MHD_Connection *connection, void **state, enum MHD_RequestTerminationCode why)
{
	struct cell__buf *body = *state;

	(void)arg;
	(void)connection;
	(void)why;
	if (body)
		cell__buf_finish(body);
	free(body);
	*state = NULL;
}

/* ---- listening -------------------------------------------------------------------------------------------- */

static int parse_address(const struct cell_mcp_server *server, const struct cell_mcp_http_options *opts, struct cell__address *ret, struct cell_error *err)
{
	struct cell__address address;

	if (cell__address_set(opts->host, opts->port, &address, err) < 0)
		return -1;
	if (!opts->token && !address.loopback)
		return cell_fail(err, CELL_E_INVALID, 0, "%s can be reached from other machines: a token is needed", opts->host);
	if (!opts->token && cell_session_check(&server->session, 1, err) < 0)
		return -1;
	if (opts->token && !*opts->token)
		return cell_fail(err, CELL_E_INVALID, 0, "the token is empty");
	*ret = address;
	return 0;
}

static void serve_until_stopped(struct http *http)
{
	struct pollfd stop = { .fd = http->server->stop_fd, .events = POLLIN };

	if (http->opts->listening)
		http->opts->listening(http->opts->listening_arg, http->port);
	while (!stop.revents) {
		poll(&stop, 1, 1000);
		pthread_mutex_lock(&http->lock);
		cell__guests_expire(&http->guests, cell__now_us() - (int64_t)GUEST_SECONDS * 1000000);
		pthread_mutex_unlock(&http->lock);
	}
	pthread_mutex_lock(&http->lock);
	http->stopping = true;
	pthread_cond_broadcast(&http->changed);
	pthread_mutex_unlock(&http->lock);
}

int cell_mcp_server_listen(struct cell_mcp_server *server, const struct cell_mcp_http_options *opts, struct cell_error *err)
{
	struct http *http = cell__alloc(1, sizeof(*http));
	const union MHD_DaemonInfo *info;
	struct MHD_Daemon *daemon;
	struct cell__address address;
	pthread_condattr_t attr;
	bool left;
	unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL;

	if (!http || !opts || opts->size != sizeof(*opts) || parse_address(server, opts, &address, err) < 0) {
		free(http);
		return http && opts && opts->size == sizeof(*opts) ? -1 : cell_fail(err, CELL_E_INVALID, 0, "options of another version");
	}
	*http = (struct http){ .server = server, .opts = opts };
	cell__guests_init(&http->guests, MAX_GUESTS);
	if (opts->token)
		cell__access_hash(opts->token, strlen(opts->token), http->hash);
	pthread_mutex_init(&http->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&http->changed, &attr);
	pthread_condattr_destroy(&attr);
	daemon = MHD_start_daemon(flags | (address.at.any.sa_family == AF_INET6 ? MHD_USE_IPv6 : 0), (uint16_t)opts->port, NULL, NULL, handle_request, http,
				  MHD_OPTION_SOCK_ADDR, &address.at.any,
				  MHD_OPTION_CONNECTION_LIMIT, MAX_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT, SILENT_SECONDS,
				  MHD_OPTION_NOTIFY_COMPLETED, request_done, http, MHD_OPTION_NOTIFY_CONNECTION, handle_connection, http,
				  MHD_OPTION_END);
	if (!daemon) {
		free(http);
		return cell_fail(err, CELL_E_IO, errno, "cannot listen on %s port %d", opts->host, opts->port);
	}
	info = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
	http->port = info ? info->port : opts->port;
	serve_until_stopped(http);
	MHD_stop_daemon(daemon);
	while (http->clients)
		client_destroy(http->clients, 0);
	pthread_mutex_lock(&server->lock);
	left = server->peers != NULL;
	pthread_mutex_unlock(&server->lock);
	if (left)
		return cell_fail(err, CELL_E_TIMEOUT, 0, "operations are still under way");
	pthread_mutex_destroy(&http->lock);
	pthread_cond_destroy(&http->changed);
	free(http);
	return 0;
}

#endif
