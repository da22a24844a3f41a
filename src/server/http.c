/*
 * libmicrohttpd on the engine's loop.  libuv watches its epoll descriptor, and MHD_run() is called once an iteration, after
 * all other work of that iteration: answers of several kernels leave together.
 *
 *     request:  head ──auth, route──▶ reading ──body──▶ handler ──┬── answered at once
 *                  └── refused ──▶ answered                       └── working (suspended) ──answer──▶ resumed ──▶ answered
 *
 * A suspended connection is not read from: a client that went away is noticed with the answer.  libmicrohttpd's own
 * timeout only detects silence; cell__http_sweep() closes a client that sends a byte now and then.
 */
#define _GNU_SOURCE
#include "base/libraries.h"
#include "server/http.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "server/oauth.h"
#include "server/peers.h"
#include "server/pool.h"
#include "wire/access.h"

#define BODY_GRACE_US 30000000    /* for a body of any size */
#define BODY_MIN_RATE 16384       /* bytes a second after that */
#define SEND_BUFFER_BYTES (256 * 1024) /* bytes that may be in transit to a lost client, and must be sent again */
#define LINGER_US 2000000         /* for the rest of a body that was refused */
#define MAX_GUESTS 512            /* connections without a good token */
#define MAX_ROUNDS 16             /* of MHD_run() in one iteration of the loop */

const char *cell__request_header(const struct cell__request *request, const char *name)
{
	if (request->detached)
		return !strcasecmp(name, "X-Session-ID")  ? request->detached->session
		       : !strcasecmp(name, "traceparent") ? request->detached->traceparent
							  : NULL;
	return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

/* ---- the life of a request ---- */

const struct sockaddr *cell__http_address(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

	return info ? info->client_addr : NULL;
}

const struct sockaddr *cell__request_address(const struct cell__request *request)
{
	return request->detached ? NULL : cell__http_address(request->connection);
}

void cell__request_client(const struct cell__request *request, char out[static CELL_SERVER_CLIENT])
{
	const char *given = request->detached ? request->detached->client
			    : request->inner  ? cell__request_header(request, CELL_FORWARD_CLIENT)
					      : NULL;
	const struct sockaddr *from = cell__request_address(request);
	const struct in6_addr *six = from && from->sa_family == AF_INET6 ? &((const struct sockaddr_in6 *)from)->sin6_addr : NULL;

	strcpy(out, from && from->sa_family == AF_UNIX ? "unix" : "unknown");
	if (given)
		snprintf(out, CELL_SERVER_CLIENT, "%s", given);
	else if (six && IN6_IS_ADDR_V4MAPPED(six))
		inet_ntop(AF_INET, &six->s6_addr[12], out, CELL_SERVER_CLIENT);
	else if (six)
		inet_ntop(AF_INET6, six, out, CELL_SERVER_CLIENT);
	else if (from && from->sa_family == AF_INET)
		inet_ntop(AF_INET, &((const struct sockaddr_in *)from)->sin_addr, out, CELL_SERVER_CLIENT);
}

struct cell__connection *cell__http_connection(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

	return info ? info->socket_context : NULL;
}

/* The client's id of its request, if it has a harmless form. */
static void name_request(struct cell__request *request)
{
	const char *given = cell__request_header(request, "X-Request-ID");
	size_t size = given ? strspn(given, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") : 0;

	if (size && size < sizeof(request->id) && !given[size])
		strcpy(request->id, given);
	else
		snprintf(request->id, sizeof(request->id), "%s-%llu", request->server->request_prefix,
			 (unsigned long long)++request->server->next_request);
}

static struct cell__request *request_create(struct cell_server *server, struct MHD_Connection *connection, const char *method,
					    const char *path)
{
	struct cell__request *request = cell__alloc(1, sizeof(*request));

	if (!request)
		return NULL;
	*request = (struct cell__request){ .server = server, .connection = connection, .begun_us = cell__now_us() };
	snprintf(request->method, sizeof(request->method), "%s", method);
	request->path = cell__strdup(path);
	if (!request->path) {
		free(request);
		return NULL;
	}
	name_request(request);
	server->counts.in_flight++;
	return request;
}

void cell__request_free(struct cell__request *request)
{
	struct cell_server *server = request->server;

	cell__forward_forget(request);
	cell__directory_forget(request);
	cell__oauth_leave(request);
	server->counts.in_flight -= !request->part;
	cell__served_release(request);
	if (request->beside)
		cell__served_let_go(cell__take_ptr(request->beside));
	json_decref(request->kept);
	free(request->env);
	if (request->workspace)
		cell__workspace_put(request->workspace);
	if (request->response)
		MHD_destroy_response(request->response);
	for (size_t i = 0; i < CELL_SERVER_MAX_PARAMS; i++)
		free(request->params[i]);
	json_decref(request->json);
	json_decref(request->query);
	cell__files_forget(request);
	cell__buf_finish(&request->body);
	free(request->refusal);
	free(request->path);
	if (request->detached) {
		free(request->detached->session);
		free(request->detached->traceparent);
		free(request->detached);
	}
	free(request);
}

struct cell__request *cell__request_detach(struct cell__request *request)
{
	struct cell__request *copy = cell__alloc(1, sizeof(*copy));
	struct cell__detached *detached = cell__alloc(1, sizeof(*detached));
	const char *session = cell__request_header(request, "X-Session-ID"), *traceparent = cell__request_header(request, "traceparent");

	if (detached) {
		detached->session = session ? cell__strdup(session) : NULL;
		detached->traceparent = traceparent ? cell__strdup(traceparent) : NULL;
		cell__request_client(request, detached->client);
	}
	if (!copy || !detached || (session && !detached->session)) {
		if (detached) {
			free(detached->session);
			free(detached->traceparent);
		}
		free(detached);
		free(copy);
		return NULL;
	}
	*copy = (struct cell__request){
		.server = request->server,
		.route = request->route,
		.who = request->who,
		.path = cell__take_ptr(request->path),
		.begun_us = request->begun_us,
		.state = CELL_REQUEST_WORKING,
		.counted = true, /* the client's own request is logged */
		.detached = detached,
		.json = cell__take_ptr(request->json),
		.query = cell__take_ptr(request->query),
	};
	request->path = cell__strdup(copy->path); /* for the log */
	memcpy(copy->id, request->id, sizeof(copy->id));
	memcpy(copy->method, request->method, sizeof(copy->method));
	for (size_t i = 0; i < CELL_SERVER_MAX_PARAMS; i++)
		copy->params[i] = cell__take_ptr(request->params[i]);
	request->server->counts.in_flight++;
	return copy;
}

/* ---- queries and bodies ---- */

struct query {
	struct cell__request *request;
	bool bad;
};

static enum MHD_Result take_argument(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct query *query = arg;
	const json_t *field = json_object_get(json_object_get(cell__route_query(query->request->route), "properties"), name);
	const char *type = json_string_value(json_object_get(field, "type"));
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	json_t *item = NULL;

	(void)kind;
	if (!field)
		return MHD_YES;
	/* libmicrohttpd has made spaces of '+' already. */
	if (cell__url_decode(value ? value : "", value ? strlen(value) : 0, false, &text) < 0) {
		query->bad = true;
		return MHD_NO;
	}
	if (type && strcmp(type, "string"))
		item = json_loads(text.data, JSON_DECODE_ANY, NULL);
	json_object_set_new(query->request->query, name, item ? item : json_string(text.data));
	return MHD_YES;
}

static void answer_problems(struct cell__request *request, json_t *problems)
{
	cell__answer_json(request, MHD_HTTP_UNPROCESSABLE_CONTENT,
			  json_pack("{s:o,s:s}", "detail", problems, "code", cell_code_word(CELL_E_INVALID)));
}

static bool check_fields(struct cell__request *request, const json_t *schema, json_t *object, const char *where)
{
	json_t *problems = cell__fields_check(schema, object, where);

	if (json_array_size(problems)) {
		answer_problems(request, problems);
		return false;
	}
	json_decref(problems);
	return true;
}

static bool read_query(struct cell__request *request)
{
	struct query query = { .request = request };

	request->query = json_object();
	if (!cell__route_query(request->route))
		return true;
	MHD_get_connection_values(request->connection, MHD_GET_ARGUMENT_KIND, take_argument, &query);
	if (query.bad) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "the query is not percent-encoded UTF-8");
		return false;
	}
	return check_fields(request, cell__route_query(request->route), request->query, "query");
}

static bool read_body(struct cell__request *request)
{
	const struct cell__route *route = request->route;
	const json_t *schema = route->raw ? NULL : cell__route_body(route);
	const struct cell__buf *body = &request->body;
	json_error_t problem;

	if (!schema)
		return true;
	if (!body->size && route->optional_body) {
		request->json = json_object();
		return true;
	}
	request->json = body->size ? json_loadb(body->data, body->size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &problem)
				   : NULL;
	if (!request->json) {
		answer_problems(request,
				json_pack("[{s:[s],s:s,s:s}]", "loc", "body", "msg", body->size ? "JSON decode error" : "Field required",
					  "type", body->size ? "json_invalid" : "missing"));
		return false;
	}
	return check_fields(request, schema, request->json, "body");
}

/* ---- libmicrohttpd's calls ---- */

/* A server that leaves sends its clients away; other servers need it as long as it has sessions. */
static bool ends_connection(const struct cell__request *request)
{
	const struct cell_server *server = request->server;
	const bool is_peer = server->opts.advertise &&
			     (request->route == &cell__greeting_route || cell__request_header(request, CELL_FORWARD_HOP));

	return is_peer ? server->stopping : server->leaving;
}

static enum MHD_Result send_answer(struct cell__request *request)
{
	enum MHD_Result queued;

	if (!request->response)
		return MHD_NO; /* out of memory: the connection ends */
	if (request->is_last || ends_connection(request))
		MHD_add_response_header(request->response, "Connection", "close");
	queued = MHD_queue_response(request->connection, request->status, request->response);
	MHD_destroy_response(request->response);
	request->response = NULL;
	if (!request->counted) {
		request->counted = true;
		cell__server_log_request(request);
	}
	return queued;
}

/* With workers some lists are of all of them, and some requests are for another one. */
void cell__request_dispatch(struct cell__request *request)
{
	int owner = cell__request_owner_by_body(request);

	if (owner >= 0)
		cell__forward_whole(request, owner, cell__http_connection(request->connection)->url);
	else if (request->server->pool && request->route->gather && !request->inner)
		cell__gather_begin(request, cell__http_connection(request->connection)->url);
	else if (cell__peers_first(request))
		return;
	else if (!request->is_e2b && cell__task_is_asked(request))
		cell__task_begin(request);
	else
		cell__request_handle(request);
}

/* A body for another worker.  That one may answer before its end. */
static enum MHD_Result pass_on(struct cell__request *request, const char *data, size_t *data_size)
{
	bool is_end = !*data_size;
	size_t left;

	if (is_end)
		cell__http_connection(request->connection)->in_body = false;
	if (request->state != CELL_REQUEST_ANSWERED && (int64_t)(request->taken_bytes + *data_size) > cell__http_max_body(request)) {
		cell__http_refuse_large(request);
		return cell__http_discard(request, data_size);
	}
	if (request->state != CELL_REQUEST_ANSWERED) {
		left = cell__forward_take(request, data, *data_size);
		request->taken_bytes += *data_size - left;
		*data_size = left;
	}
	if (request->state == CELL_REQUEST_ANSWERED && is_end)
		return send_answer(request);
	if (request->state == CELL_REQUEST_ANSWERED) {
		CELL_AUTO_FREE char *body = cell__forward_text(request);

		cell__http_refuse(request, request->status, "application/json", body);
		return cell__http_discard(request, data_size);
	}
	if (is_end || cell__forward_is_busy(request))
		cell__request_suspend(request);
	return MHD_YES;
}

/*
 * A streamed body: its handler begins with the first bytes, so that the session is not looked for in vain by a client that never sends any.
 * While the upload is busy, the connection is suspended, and libmicrohttpd keeps what was not taken.
 */
static enum MHD_Result take_streamed(struct cell__request *request, const char *data, size_t *data_size)
{
	struct cell__connection *connection = cell__http_connection(request->connection);
	bool is_end = !*data_size;

	if (is_end)
		connection->in_body = false;
	if (request->state == CELL_REQUEST_READING) {
		request->state = CELL_REQUEST_WORKING;
		if (read_query(request))
			request->route->handle(request);
	}
	if (request->state != CELL_REQUEST_ANSWERED && (int64_t)(request->taken_bytes + *data_size) > cell__http_max_body(request)) {
		cell__http_refuse_large(request);
		return cell__http_discard(request, data_size);
	}
	if (request->state != CELL_REQUEST_ANSWERED) {
		size_t left = cell__upload_take(request, data, *data_size);

		request->taken_bytes += *data_size - left;
		*data_size = left;
	}
	if (request->state == CELL_REQUEST_ANSWERED && is_end)
		return send_answer(request);
	if (request->state == CELL_REQUEST_ANSWERED) {
		cell__http_refuse_body(request, request->status, request->refusal_code,
				       request->refusal ? request->refusal : "out of memory");
		return cell__http_discard(request, data_size);
	}
	if (is_end || cell__upload_is_busy(request))
		cell__request_suspend(request);
	return MHD_YES;
}

const char *cell__request_url(const struct cell__request *request)
{
	return cell__http_connection(request->connection)->url;
}

static enum MHD_Result after_head(struct cell__request *request, bool passed)
{
	if (request->state == CELL_REQUEST_ASKING) {
		cell__http_connection(request->connection)->in_body = false;
		cell__request_suspend(request);
		return MHD_YES;
	}
	return passed ? MHD_YES : send_answer(request);
}

static enum MHD_Result handle_request(void *arg, struct MHD_Connection *mhd, const char *path, const char *method, const char *version,
				      const char *data, size_t *data_size, void **state)
{
	struct cell_server *server = arg;
	struct cell__request *request = *state;
	struct cell__connection *connection = cell__http_connection(mhd);

	if (!request) {
		*state = request = connection ? request_create(server, mhd, method, path) : NULL;
		if (!request)
			return MHD_NO; /* no memory: the connection ends */
		connection->request = request;
		connection->in_body = true;
		connection->since_us = request->begun_us;
		request->inner = connection->inner;
		return after_head(request, cell__admit_head(request, method, path, version));
	}
	/* libmicrohttpd calls again as it did for the head, before anything of the body. */
	if (request->state == CELL_REQUEST_ASKING) {
		request->state = CELL_REQUEST_READING;
		connection->in_body = true;
		connection->since_us = cell__now_us();
		return after_head(request, cell__admit_client(request));
	}
	if (request->thrown_away)
		return cell__http_discard(request, data_size);
	if (request->forward)
		return pass_on(request, data, data_size);
	if (request->route && request->route->streamed)
		return take_streamed(request, data, data_size);
	/* A body that no route reads is not kept; a client without a token could fill the memory with it. */
	if (*data_size && request->route && !request->route->raw && !cell__route_body(request->route)) {
		*data_size = 0;
		return MHD_YES;
	}
	if (*data_size) {
		if ((int64_t)(request->body.size + *data_size) > server->limits.max_body_bytes) {
			cell__http_refuse_large(request);
			return cell__http_discard(request, data_size);
		}
		if (cell__buf_add(&request->body, data, *data_size) < 0)
			return MHD_NO; /* no memory: the connection ends */
		*data_size = 0;
		return MHD_YES;
	}
	if (request->state == CELL_REQUEST_READING && request->route) { /* without a route it has been answered */
		connection->in_body = false;
		request->state = CELL_REQUEST_WORKING;
		if (read_query(request) && read_body(request))
			cell__request_dispatch(request);
	}
	if (request->state == CELL_REQUEST_ANSWERED)
		return send_answer(request);
	cell__request_suspend(request);
	return MHD_YES;
}

static void request_done(void *arg, struct MHD_Connection *mhd, void **state, enum MHD_RequestTerminationCode why)
{
	struct cell__request *request = *state;
	struct cell__connection *connection = cell__http_connection(mhd);

	(void)arg;
	(void)why;
	if (connection) {
		connection->request = NULL;
		connection->in_body = false;
		connection->rested = true;
		connection->since_us = cell__now_us();
	}
	*state = NULL;
	if (!request)
		return;
	if (!request->counted && request->route && !request->forward)
		cell__server_log_request(request);
	cell__request_free(request);
}

static int descriptor_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	return info ? info->connect_fd : -1;
}

static void handle_connection(void *arg, struct MHD_Connection *mhd, void **state, enum MHD_ConnectionNotificationCode what)
{
	struct cell_server *server = arg;
	struct cell__connection *connection = *state;

	if (what == MHD_CONNECTION_NOTIFY_STARTED) {
		connection = cell__alloc(1, sizeof(*connection));
		*state = connection;
		if (!connection)
			return;
		*connection = (struct cell__connection){
			.connection = mhd, .since_us = cell__now_us(), .next = server->connections, .at = &server->connections
		};
		if (connection->next)
			connection->next->at = &connection->next;
		server->connections = connection;
		connection->inner = server->adding_inner;
		if (connection->inner) {
			server->inner_connections++;
			return;
		}
		cell__guests_add(&server->guests, &connection->guest, descriptor_of(mhd), cell__http_address(mhd));
		return;
	}
	if (!connection)
		return;
	if (!connection->inner)
		cell__pool_client_left(server);
	else
		server->inner_connections--;
	server->inner_changed |= connection->inner;
	cell__guests_leave(&server->guests, &connection->guest);
	free(connection->url);
	*connection->at = connection->next;
	if (connection->next)
		connection->next->at = connection->at;
	free(connection);
	*state = NULL;
}

/* Paths and queries are decoded after they are parsed. */
static size_t leave_escapes(void *arg, struct MHD_Connection *connection, char *text)
{
	(void)arg;
	(void)connection;
	return strlen(text);
}

/* The requested URL, before it is parsed; there is no request state yet. */
static void *note_url(void *arg, const char *url, struct MHD_Connection *mhd)
{
	struct cell__connection *connection = cell__http_connection(mhd);

	if (!connection)
		return NULL;
	connection->url_size = strlen(url);
	if (((struct cell_server *)arg)->pool || ((struct cell_server *)arg)->opts.advertise) {
		free(connection->url);
		connection->url = cell__strdup(url);
	}
	return NULL;
}

/* libmicrohttpd sees the end and cleans up. */
static void hang_up(struct cell__connection *connection)
{
	shutdown(descriptor_of(connection->connection), SHUT_RDWR);
}

void cell__http_hang_up(struct cell_server *server)
{
	for (struct cell__connection *at = server->connections; at; at = at->next)
		hang_up(at);
}

/*
 * Whether the client of a connection that is idle, or waits for more of a body, has closed its side. libmicrohttpd learns of that by an edge
 * of epoll, and misses it when the end came together with the last bytes that it read, or while the connection was suspended.
 */
static bool has_left(const struct cell__connection *connection)
{
	char byte;
	bool waits = connection->request ? connection->in_body && !connection->request->suspended : connection->rested;

	return waits && recv(descriptor_of(connection->connection), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

void cell__http_sweep(struct cell_server *server, int64_t now_us)
{
	for (struct cell__connection *at = server->connections; at; at = at->next) {
		/* Between requests a client with a token may be idle; before the first one it may not. */
		int64_t allowed_us = (at->rested && !at->guest.listed ? server->limits.silent_ms : server->limits.head_ms) * 1000;

		if (at->request && at->request->forward)
			cell__forward_sweep(at->request, descriptor_of(at->connection));
		if (at->inner || (at->request && !at->in_body))
			continue; /* another worker watches its own client */
		if (has_left(at)) {
			hang_up(at);
			continue;
		}
		if (at->in_body) {
			assert(at->request);
			allowed_us = at->request->thrown_away
					     ? LINGER_US
					     : BODY_GRACE_US + (int64_t)(at->request->body.size + at->request->taken_bytes) * 1000000 /
								       BODY_MIN_RATE;
		}
		if (now_us - at->since_us > allowed_us) {
			server->counts.slow_clients++;
			at->since_us = now_us;
			hang_up(at);
		}
	}
}

/* ---- the loop ---- */

static void run_daemon(struct cell_server *server)
{
	MHD_UNSIGNED_LONG_LONG timeout = 0;
	int rounds = 0;

	do {
		server->due = false;
		cell__tls_run(server);
		/* Without connections it has nothing to do, once it has freed the last one. */
		if (server->inner && (server->inner_connections || server->inner_changed)) {
			server->inner_changed = false;
			MHD_run(server->inner);
		}
	} while (++rounds < MAX_ROUNDS && (server->due || (MHD_get_timeout(server->daemon, &timeout) == MHD_YES && !timeout) ||
					   (server->inner && MHD_get_timeout(server->inner, &timeout) == MHD_YES && !timeout)));
	/* Still not done: others have their job first. */
	if (rounds == MAX_ROUNDS)
		server->due = true;
}

static void handle_again(uv_idle_t *idle)
{
	(void)idle; /* its presence keeps the loop from sleeping */
}

static void handle_check(uv_check_t *check)
{
	struct cell_server *server = check->data;

	cell__tasks_reap(server);
	if (server->due)
		run_daemon(server);
	cell__server_flush_log(server);
	if (server->advancing)
		cell__server_step(server);
	if (server->closing)
		return; /* the handles may be closed already */
	if (server->due || server->advancing)
		uv_idle_start(&server->again, handle_again);
	else
		uv_idle_stop(&server->again);
}

void cell__http_soon(struct cell_server *server)
{
	uv_idle_start(&server->again, handle_again);
}

static void handle_poll(uv_poll_t *poll, int status, int events)
{
	struct cell_server *server = poll->data;

	(void)status;
	(void)events;
	server->due = true;
}

/* Like the server for clients, but without TLS, and for descriptors that only other workers can send. */
static int open_inner(struct cell_server *server, struct cell_error *err)
{
	const struct cell_server_limits *limits = &server->limits;
	const union MHD_DaemonInfo *info;

	server->inner = MHD_start_daemon(
		MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_PEDANTIC_CHECKS | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL,
		handle_request, server, MHD_OPTION_CONNECTION_LIMIT, (unsigned)limits->max_connections + 1024,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)limits->max_header_bytes * 2, MHD_OPTION_NOTIFY_COMPLETED, request_done, NULL,
		MHD_OPTION_NOTIFY_CONNECTION, handle_connection, server, MHD_OPTION_URI_LOG_CALLBACK, note_url, server,
		MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes, NULL, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
	info = server->inner ? MHD_get_daemon_info(server->inner, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
	if (!info)
		return cell_fail(err, CELL_E_IO, errno, "start the HTTP server for other workers");
	uv_poll_init(cell__loop_uv(server->engine->loop), &server->inner_poll, info->epoll_fd);
	server->inner_poll.data = server;
	uv_poll_start(&server->inner_poll, UV_READABLE, handle_poll);
	return 0;
}

void cell__http_add(struct cell_server *server, int fd, const struct sockaddr *from, socklen_t from_size, bool inner)
{
	static const struct sockaddr nameless = { .sa_family = AF_UNIX };
	bool is_added;

	if (inner) {
		from = &nameless;
		from_size = sizeof(nameless.sa_family);
	}
	if (server->closing && !inner) {
		cell__close_fd(&fd);
		cell__pool_client_left(server);
		return;
	}
	server->adding_inner = inner; /* for handle_connection(), which is called from inside */
	is_added = MHD_add_connection(inner ? server->inner : server->daemon, fd, from, from_size) == MHD_YES;
	server->adding_inner = false;
	server->inner_changed |= inner;
	if (!is_added && !inner) /* libmicrohttpd has closed it, without a word to us */
		cell__pool_client_left(server);
	server->due = true;
}

int cell__http_open(struct cell_server *server, struct cell_error *err)
{
	const struct cell_server_options *opts = &server->opts;
	const struct cell_server_limits *limits = &server->limits;
	unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_PEDANTIC_CHECKS | (opts->tls_cert ? MHD_USE_TLS : 0) |
			 (server->pool ? MHD_USE_NO_LISTEN_SOCKET : 0);
	struct MHD_OptionItem listens[] = {
		{ MHD_OPTION_LISTEN_SOCKET, server->listen_fd, NULL },
		{ MHD_OPTION_END, 0, NULL },
	};
	struct MHD_OptionItem tls[] = {
		{ MHD_OPTION_HTTPS_CERT_CALLBACK, 0, cell__tls_giver() },
		{ MHD_OPTION_END, 0, NULL },
	};
	struct MHD_OptionItem none[] = { { MHD_OPTION_END, 0, NULL } };
	const union MHD_DaemonInfo *info;
	uv_loop_t *loop = cell__loop_uv(server->engine->loop);
	int buffer = SEND_BUFFER_BYTES;
	unsigned guests = (unsigned)limits->max_connections / 2 / (unsigned)cell__pool_size(server);

	if (cell__library_load(CELL__LIBRARY_MICROHTTPD, err) < 0)
		return -1;
	cell__guests_init(&server->guests, guests < MAX_GUESTS ? guests : MAX_GUESTS); /* of all workers as many as of one */
	if (server->pool && open_inner(server, err) < 0)
		return -1;
	server->daemon = MHD_start_daemon(flags, 0, NULL, NULL, handle_request, server, MHD_OPTION_ARRAY, server->pool ? none : listens,
					  MHD_OPTION_CONNECTION_LIMIT, (unsigned)limits->max_connections,
					  MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)limits->max_header_bytes,
					  MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(limits->silent_ms / 1000), MHD_OPTION_NOTIFY_COMPLETED,
					  request_done, NULL, MHD_OPTION_NOTIFY_CONNECTION, handle_connection, server,
					  MHD_OPTION_URI_LOG_CALLBACK, note_url, server, MHD_OPTION_UNESCAPE_CALLBACK, leave_escapes, NULL,
					  MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY, opts->tls_cert ? tls : none, MHD_OPTION_END);
	info = server->daemon ? MHD_get_daemon_info(server->daemon, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
	if (!info)
		return cell_fail(err, CELL_E_IO, errno, "start the HTTP%s server", opts->tls_cert ? "S" : "");
	if (!server->pool)
		setsockopt(server->listen_fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)); /* connections inherit it */
	server->listen_fd = -1; /* the daemon's */
	uv_poll_init(loop, &server->poll, info->epoll_fd);
	uv_check_init(loop, &server->check);
	uv_idle_init(loop, &server->again);
	server->poll.data = server->check.data = server->again.data = server;
	uv_poll_start(&server->poll, UV_READABLE, handle_poll);
	cell__e2b_debug_start(server);
	uv_check_start(&server->check, handle_check);
	server->due = true;
	return 0;
}

/* Clients that are connected already, as far as they know: with the socket their connections would be reset. */
static void take_waiting(struct cell_server *server, int listen_fd)
{
	struct sockaddr_storage from;
	socklen_t size = sizeof(from);
	int fd;

	while ((fd = accept4(listen_fd, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
		(void)MHD_add_connection(server->daemon, fd, (struct sockaddr *)&from, size); /* closes it if it cannot be added */
		size = sizeof(from);
	}
	server->due = true;
}

void cell__http_quiesce(struct cell_server *server)
{
	MHD_socket fd;

	if (server->quiesced)
		return;
	server->quiesced = true;
	cell__e2b_debug_stop(server);
	if (server->pool)
		return; /* the program that started the workers listens */
	fd = MHD_quiesce_daemon(server->daemon);
	if (fd != MHD_INVALID_SOCKET) {
		take_waiting(server, fd);
		close(fd);
	}
	cell__listen_end(&server->address);
}

void cell__http_shut(struct cell_server *server)
{
	cell__http_quiesce(server);
	uv_poll_stop(&server->poll);
	uv_check_stop(&server->check);
	uv_idle_stop(&server->again);
	MHD_stop_daemon(server->daemon);
	server->daemon = NULL;
	if (!server->inner)
		return;
	uv_poll_stop(&server->inner_poll);
	cell__pool_stop(server);
	MHD_stop_daemon(server->inner);
	server->inner = NULL;
}
