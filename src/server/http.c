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
#include "base/hole.h"
#include "base/libraries.h"
#include "server/server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#include "server/oauth.h"
#include "server/pool.h"
#include "wire/access.h"

#define BODY_GRACE_US 30000000    /* for a body of any size */
#define BODY_MIN_RATE 16384       /* bytes a second after that */
#define SEND_BUFFER_BYTES (256 * 1024) /* bytes that may be in transit to a lost client, and must be sent again */
#define LINGER_BYTES (16 * 1024 * 1024) /* of a body that is too large, thrown away so that its sender can hear of it */
#define LINGER_US 2000000         /* for that */
#define MAX_GUESTS 512            /* connections without a good token */
#define SHORTAGE_RETRY_S 5         /* descriptors come back when sessions end */
#define MAX_ROUNDS 16             /* of MHD_run() in one iteration of the loop */

const char *cell__request_header(const struct cell__request *request, const char *name)
{
	if (request->detached)
		return !strcasecmp(name, "X-Session-ID")  ? request->detached->session
		       : !strcasecmp(name, "traceparent") ? request->detached->traceparent
							  : NULL;
	return MHD_lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

/* ---- answers ---- */

void cell__http_kick(struct cell_server *server)
{
	server->due = true;
}

void cell__answer_response(struct cell__request *request, unsigned status, struct MHD_Response *response)
{
	if (request->state == CELL_REQUEST_ANSWERED || request->task) {
		if (response)
			MHD_destroy_response(response);
		if (request->task) /* its answers are JSON, which the functions below keep */
			cell__task_answer(request, status, NULL);
		return;
	}
	request->state = CELL_REQUEST_ANSWERED;
	request->status = status;
	request->response = response;
	if (response) {
		MHD_add_response_header(response, "X-Request-ID", request->id);
		/* A browser must not run content that code has made, whatever it looks like. */
		MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
		if (!MHD_get_response_header(response, "Content-Security-Policy"))
			MHD_add_response_header(response, "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox");
	}
	if (response && request->crosses) {
		MHD_add_response_header(response, "Access-Control-Allow-Origin", cell__request_header(request, "Origin"));
		MHD_add_response_header(response, "Access-Control-Expose-Headers",
					"Mcp-Session-Id, Retry-After, X-Request-ID, X-Session-ID");
		MHD_add_response_header(response, "Vary", "Origin");
	}
	if (response && request->served && !request->ends_session) /* for proxies that send a session's requests to one server */
		MHD_add_response_header(response, "X-Session-ID", request->served->id);
	cell__request_resume(request);
}

void cell__request_suspend(struct cell__request *request)
{
	/* libmicrohttpd goes on with further chunks that it has read, and must not suspend a connection twice. */
	if (request->suspended)
		return;
	request->suspended = true;
	MHD_suspend_connection(request->connection);
}

void cell__request_resume(struct cell__request *request)
{
	if (!request->suspended)
		return;
	request->suspended = false;
	MHD_resume_connection(request->connection);
	cell__http_kick(request->server);
}

struct MHD_Response *cell__http_response(void *bytes, size_t size, const char *type)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(size, bytes ? bytes : (void *)"",
									bytes ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);

	if (!response)
		free(bytes);
	else if (type)
		MHD_add_response_header(response, "Content-Type", type);
	return response;
}

void cell__answer_text(struct cell__request *request, unsigned status, char *text)
{
	if (request->task) {
		cell__task_answer(request, status, text);
		free(text);
	} else if (text) {
		cell__answer_response(request, status, cell__http_response(text, strlen(text), "application/json"));
	} else {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the answer");
	}
}

void cell__answer_json(struct cell__request *request, unsigned status, json_t *value)
{
	cell__answer_text(request, status, value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL);
	json_decref(value);
}

void cell__answer_none(struct cell__request *request, unsigned status)
{
	if (request->task)
		cell__task_answer(request, status, "null");
	else
		cell__answer_response(request, status, cell__http_response(NULL, 0, NULL));
}

void cell__answer_bytes(struct cell__request *request, const char *type, void *bytes, size_t size)
{
	struct MHD_Response *response = cell__http_response(bytes, size, type);

	if (response)
		MHD_add_response_header(response, "Content-Disposition", "attachment");
	cell__answer_response(request, MHD_HTTP_OK, response);
}

/* A body that comes in pieces may have to be refused in the middle, where libmicrohttpd sends nothing (refuse_body()). */
static void note_refusal(struct cell__request *request, int code, const char *words)
{
	if (!request->route || !request->route->streamed || request->refusal)
		return;
	request->refusal = cell__strdup(words);
	request->refusal_code = code;
}

/* In the form of E2B's clients for those. */
static struct MHD_Response *foreign_error(const struct cell__request *request, unsigned *status, int code, const char *words)
{
	const char *type;
	size_t size;
	char *text = cell__e2b_error(request, code, words, status, &type, &size);

	return text ? cell__http_response(text, size, type) : NULL;
}

static char *error_text(int code, const char *words)
{
	json_t *error = json_pack("{s:s,s:s}", "detail", words, "code", cell_code_word(code));
	char *text;

	if (!error) /* the message is from outside and not UTF-8 */
		error = json_pack("{s:s,s:s}", "detail", "the request is not UTF-8", "code", cell_code_word(code));
	text = error ? json_dumps(error, JSON_COMPACT) : NULL;
	json_decref(error);
	return text;
}

static struct MHD_Response *error_response(int code, const char *words)
{
	char *text = error_text(code, words);
	return text ? cell__http_response(text, strlen(text), "application/json") : NULL;
}

/* What a client needs to get a token, or a better one. */
static void add_challenge(const struct cell__request *request, struct MHD_Response *response, unsigned status, const char *words)
{
	CELL_AUTO_FREE char *text = NULL;

	if (!response || (status != MHD_HTTP_UNAUTHORIZED && (status != MHD_HTTP_FORBIDDEN || !request->refused)))
		return;
	if (request->server->oauth)
		text = cell__oauth_challenge_for(request->server, request->needs, request->refused, words);
	if (text || status == MHD_HTTP_UNAUTHORIZED)
		MHD_add_response_header(response, "WWW-Authenticate", text ? text : "Bearer realm=\"workcell\"");
}

void cell__answer_fail(struct cell__request *request, unsigned status, int code, const char *fmt, ...)
{
	CELL_AUTO_FREE char *words = NULL;
	struct MHD_Response *response;
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&words, fmt, ap) < 0)
		words = NULL;
	va_end(ap);
	if (request->task) {
		cell__answer_text(request, status, error_text(code, words ? words : "out of memory"));
		return;
	}
	note_refusal(request, code, words ? words : "out of memory");
	response = request->is_e2b ? foreign_error(request, &status, code, words ? words : "out of memory")
				   : error_response(code, words ? words : "out of memory");
	if (!request->is_e2b)
		add_challenge(request, response, status, words ? words : "out of memory");
	cell__answer_response(request, status, response);
}

static void answer_later(struct cell__request *request, unsigned status, int retry_s, const char *words)
{
	struct MHD_Response *response;
	char seconds[16];

	request->server->counts.busy++;
	if (request->task) {
		cell__answer_text(request, status, error_text(CELL_E_BUSY, words));
		return;
	}
	response = request->is_e2b ? foreign_error(request, &status, CELL_E_BUSY, words) : error_response(CELL_E_BUSY, words);
	note_refusal(request, CELL_E_BUSY, words);
	snprintf(seconds, sizeof(seconds), "%d", retry_s);
	if (response)
		MHD_add_response_header(response, "Retry-After", seconds);
	cell__answer_response(request, status, response);
}

void cell__answer_busy(struct cell__request *request, int retry_s, const char *words)
{
	answer_later(request, request->server->draining ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_TOO_MANY_REQUESTS, retry_s, words);
}

void cell__answer_shortage(struct cell__request *request, const char *words)
{
	answer_later(request, MHD_HTTP_SERVICE_UNAVAILABLE, SHORTAGE_RETRY_S, words);
}

void cell__answer_error(struct cell__request *request, const struct cell_error *err)
{
	/* The server's shortage, not the client's mistake, whatever the operation made of it. */
	if (err->sys == EMFILE || err->sys == ENFILE) {
		cell__answer_shortage(request, err->msg);
		return;
	}
	cell__answer_fail(request, (unsigned)cell_code_http_status(err->code), err->code, "%s", err->msg);
}

/* ---- the life of a request ---- */

static const struct sockaddr *address_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

	return info ? info->client_addr : NULL;
}

const struct sockaddr *cell__request_address(const struct cell__request *request)
{
	return request->detached ? NULL : address_of(request->connection);
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

static struct cell__connection *connection_of(struct MHD_Connection *connection)
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

/* ---- bodies that are refused ---- */

/*
 * libmicrohttpd sends answers before a body and after it. This one must be sent at once, and the client's further bytes must be read for a
 * while: closed with unread bytes, the connection would be reset, and the answer lost with it. So it is written here, bypassing
 * libmicrohttpd, which sends nothing itself at this time.
 */
static void refuse_with(struct cell__request *request, unsigned status, const char *type, const char *body)
{
	const union MHD_ConnectionInfo *tls = MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	const union MHD_ConnectionInfo *fd = MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__connection *connection = connection_of(request->connection);
	ssize_t sent = -1;

	/* A client that has not read earlier bytes will not read this. */
	if (cell__buf_printf(&text,
			     "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
			     "X-Request-ID: %s\r\n\r\n%s",
			     status, MHD_get_reason_phrase_for(status), type, body ? strlen(body) : 0, request->id, body ? body : "") == 0)
		sent = tls && tls->tls_session ? cell__tls_send(tls->tls_session, text.data, text.size)
		       : fd                    ? send(fd->connect_fd, text.data, text.size, MSG_DONTWAIT | MSG_NOSIGNAL)
					       : -1;
	(void)sent;
	if (connection)
		connection->since_us = cell__now_us();
	request->thrown_away = true;
	request->state = CELL_REQUEST_ANSWERED;
	request->status = status;
	if (request->response)
		MHD_destroy_response(cell__take_ptr(request->response));
	cell__buf_finish(&request->body);
	request->body = (struct cell__buf)CELL_BUF_INIT;
}

static void refuse_body(struct cell__request *request, unsigned status, int code, const char *words)
{
	json_t *error = json_pack("{s:s,s:s}", "detail", words, "code", cell_code_word(code));
	const char *type = "application/json";
	size_t size = 0; /* only of the streamed uploads, whose errors are text */
	CELL_AUTO_FREE char *body = request->is_e2b ? cell__e2b_error(request, code, words, &status, &type, &size)
				    : error         ? json_dumps(error, JSON_COMPACT)
						    : NULL;

	json_decref(error);
	refuse_with(request, status, type, body);
}

static int64_t max_body(const struct cell__request *request)
{
	const struct cell_server_limits *limits = &request->server->limits;

	return request->route && request->route->streamed ? limits->max_file_bytes : limits->max_body_bytes;
}

static void refuse_large(struct cell__request *request)
{
	char words[64];

	snprintf(words, sizeof(words), "a body may have at most %lld bytes", (long long)max_body(request));
	refuse_body(request, MHD_HTTP_CONTENT_TOO_LARGE, CELL_E_LIMIT, words);
}

/* The end of the body, or of our patience, ends the connection. */
static enum MHD_Result throw_away(struct cell__request *request, size_t *data_size)
{
	bool over = !*data_size || request->thrown_bytes + *data_size > LINGER_BYTES;

	request->thrown_bytes += *data_size;
	*data_size = 0;
	return over ? MHD_NO : MHD_YES;
}

/* ---- heads ---- */

static bool check_origin(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const char *host = cell__request_header(request, "Host"), *origin = cell__request_header(request, "Origin");

	/* Without tokens the security depends on the browser's idea of our address; MCP's clients must always be checked. */
	if ((server->opts.auth_disabled || server->mcp) && *server->address.host &&
	    !cell__access_host(host, server->address.host, server->address.port, server->opts.hosts)) {
		cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN, "this Host is not allowed (--allow-host)");
		return false;
	}
	if (!cell__access_origin(origin, host ? host : "", server->opts.origins)) {
		cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN, "this Origin is not allowed (--allow-origin)");
		return false;
	}
	/* Only those that were allowed: a page of our own address needs no permission. */
	request->crosses = origin && cell__access_origin(origin, "", server->opts.origins);
	return true;
}

/* A browser asks whether a page may make its request, without a token.  It learns nothing but that its origin is allowed. */
static bool answer_preflight(struct cell__request *request)
{
	struct MHD_Response *response;

	if (!request->crosses || strcmp(request->method, "OPTIONS") || !cell__request_header(request, "Access-Control-Request-Method"))
		return false;
	response = cell__http_response(NULL, 0, NULL);
	if (response) {
		MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE");
		MHD_add_response_header(response, "Access-Control-Allow-Headers",
					"Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
					"Mcp-Session-Id, X-Session-ID");
		MHD_add_response_header(response, "Access-Control-Max-Age", "600");
	}
	cell__answer_response(request, MHD_HTTP_NO_CONTENT, response);
	return true;
}

/* "Basic ..." as "Bearer ...", with the password as the token; the user's name does not matter. */
static bool from_basic(const char *header, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf pair = CELL_BUF_INIT;
	const char *colon;

	if (strncasecmp(header, "Basic ", 6) || cell__buf_add_unbase64(&pair, header + 6, strlen(header + 6)) < 0 ||
	    cell__buf_add(&pair, "", 1) < 0)
		return false;
	colon = strchr(pair.data, ':');
	return colon && cell__buf_add_str(out, "Bearer ") == 0 && cell__buf_add_str(out, colon + 1) == 0;
}

/* A token that is not in the file may be one of OAuth's.  False: it is answered, or waits; *ret_status 0: the token is good. */
static bool check_oauth(struct cell__request *request, const char *token, struct cell_error *err, unsigned *ret_status,
			const char **ret_words, int *ret_retry_s)
{
	struct cell_server *server = request->server;
	const struct sockaddr *from = address_of(request->connection);
	enum cell__oauth_verdict verdict = cell__oauth_check(request, token, err);

	if (verdict == CELL_OAUTH_WAITING) {
		request->state = CELL_REQUEST_ASKING;
		return false;
	}
	if (verdict == CELL_OAUTH_BROKEN) {
		cell__answer_shortage(request, err->msg);
		return false;
	}
	if (verdict == CELL_OAUTH_REFUSED)
		cell__server_log(server, CELL_LOG_INFO, "request %s: %s", request->id, err->msg);
	*ret_status = !request->inner ? cell__auth_count(server, from, verdict == CELL_OAUTH_GOOD, false, ret_words, ret_retry_s)
		      : verdict == CELL_OAUTH_GOOD ? 0
						   : MHD_HTTP_UNAUTHORIZED;
	if (*ret_status == MHD_HTTP_UNAUTHORIZED)
		*ret_words = err->msg;
	return true;
}

/* False: it is answered, or its state is CELL_REQUEST_ASKING. */
static bool check_client(struct cell__request *request, unsigned scope)
{
	struct cell_server *server = request->server;
	struct cell__connection *connection = connection_of(request->connection);
	const char *words = NULL;
	int retry_s = 0;
	const struct sockaddr *from = address_of(request->connection);
	CELL_AUTO_BUF struct cell__buf basic = CELL_BUF_INIT;
	const char *given = cell__request_header(request, "Authorization");
	unsigned status = 0;
	struct cell_error err;
	struct cell__token known;
	const char *bearer;

	request->needs = scope == ~0u ? CELL_SCOPE_RUN | CELL_SCOPE_READ : scope;
	if (request->route && request->route->basic && given && from_basic(given, &basic))
		given = basic.data;
	bearer = cell__access_bearer(given);
	request->refused = bearer ? "invalid_token" : NULL;
	if (server->oauth && !request->is_e2b && bearer && !cell__auth_again(server, given, &known)) {
		if (!check_oauth(request, bearer, &err, &status, &words, &retry_s))
			return false;
	} else if (!given && !request->is_e2b && cell__console_auth(request, &status, &words)) {
		/* decided */
	} else if (request->inner && !request->is_e2b && !cell__auth_again(server, given, &request->who)) {
		status = MHD_HTTP_UNAUTHORIZED; /* the tokens were changed in the meantime */
		words = "Invalid token";
	} else if (!request->inner || request->is_e2b) {
		status = request->is_e2b ? cell__e2b_auth_check(request, from, &words, &retry_s)
					 : cell__auth_check(server, given, from, &request->who, &words, &retry_s);
	}

	if (!status && connection)
		cell__guests_leave(&server->guests, &connection->guest);
	if (status == MHD_HTTP_TOO_MANY_REQUESTS)
		cell__answer_busy(request, retry_s, words);
	else if (status)
		cell__answer_fail(request, status,
				  status == MHD_HTTP_BAD_GATEWAY ? CELL_E_NOT_FOUND
				  : status == MHD_HTTP_FORBIDDEN ? CELL_E_FORBIDDEN
								 : CELL_E_AUTH,
				  "%s", words);
	else if (!(request->who.scopes & scope) && !(is_hole("call-approve") && scope == CELL_SCOPE_APPROVE)) {
		request->refused = "insufficient_scope";
		cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN, "the token \"%s\" lacks the scope \"%s\"",
				  request->who.name,
				  scope == CELL_SCOPE_METRICS   ? "metrics"
				  : scope == CELL_SCOPE_APPROVE ? "approve"
				  : scope == CELL_SCOPE_ADMIN   ? "admin"
				  : scope == CELL_SCOPE_RUN     ? "run"
								: "read");
	} else
		return true;
	return false;
}

static bool decode_params(struct cell__request *request)
{
	for (size_t i = 0; i < CELL_SERVER_MAX_PARAMS && request->match.params[i]; i++) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

		if (cell__url_decode(request->match.params[i], request->match.sizes[i], false, &text) < 0) {
			cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "the path is not percent-encoded UTF-8");
			return false;
		}
		request->params[i] = cell__buf_take(&text);
	}
	return true;
}

/* The client is known: everything else that can be decided before the body. False: it is answered. */
static bool check_rest(struct cell__request *request)
{
	const char *length = cell__request_header(request, "Content-Length");
	int owner;

	if (!request->route && request->match.allow[0]) {
		struct MHD_Response *response = error_response(CELL_E_INVALID, "Method Not Allowed");

		if (response)
			MHD_add_response_header(response, "Allow", request->match.allow);
		cell__answer_response(request, MHD_HTTP_METHOD_NOT_ALLOWED, response);
		return false;
	}
	if (!request->route) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "Not Found");
		return false;
	}
	if (request->server->draining && request->route->scope != CELL_SCOPE_OPEN && strcmp(request->method, "GET")) {
		cell__answer_busy(request, 1, "the server is stopping");
		return false;
	}
	if (length && strtoll(length, NULL, 10) > max_body(request)) {
		/* A client that sends Expect has not sent any of the body. */
		if (!cell__request_header(request, "Expect")) {
			refuse_large(request);
			return true;
		}
		cell__answer_fail(request, MHD_HTTP_CONTENT_TOO_LARGE, CELL_E_LIMIT, "a body may have at most %lld bytes",
				  (long long)max_body(request));
		return false;
	}
	if (!decode_params(request))
		return false;
	owner = cell__request_owner(request);
	if (owner >= 0)
		cell__forward_begin(request, owner, connection_of(request->connection)->url);
	return request->state != CELL_REQUEST_ANSWERED;
}

/* An unauthenticated client must not learn which paths exist. */
static bool check_access(struct cell__request *request)
{
	return ((request->route && request->route->scope == CELL_SCOPE_OPEN) ||
		check_client(request, request->route ? request->route->scope : ~0u)) &&
	       check_rest(request);
}

/* Everything that can be decided before the body. False: it is answered, or its state is CELL_REQUEST_ASKING. */
static bool check_head(struct cell__request *request, const char *method, const char *path, const char *version)
{
	struct cell__connection *connection = connection_of(request->connection);
	const char *wrong = cell__head_wrong(request->connection, method, path, connection->url_size, version, &request->is_last);

	if (wrong) {
		request->is_last = true;
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "%s", wrong);
		return false;
	}
	if (request->server->pool && !request->inner &&
	    (cell__request_header(request, CELL_FORWARD_CLIENT) || cell__request_header(request, CELL_FORWARD_PART))) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID,
				  "headers that begin with " CELL_FORWARD_PREFIX " are the server's own");
		return false;
	}
	request->part = request->inner && cell__request_header(request, CELL_FORWARD_PART);
	request->counted = request->part;
	request->server->counts.in_flight -= request->part;
	request->is_e2b = request->server->opts.e2b && cell__e2b_is_asked(request, path);
	cell__route_find(request->is_e2b ? cell__e2b_routes : request->server->routes, request->method, path, &request->match);
	request->route = request->match.route;
	if (cell__oauth_is_metadata(request->server, request->method, path))
		request->route = &cell__oauth_route;
	return check_origin(request) && !answer_preflight(request) && check_access(request);
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

static enum MHD_Result send_answer(struct cell__request *request)
{
	enum MHD_Result queued;

	if (!request->response)
		return MHD_NO; /* out of memory: the connection ends */
	if (request->server->draining || request->is_last)
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

/* With workers some lists are of all of them. */
static void dispatch(struct cell__request *request)
{
	if (request->server->pool && request->route->gather && !request->inner)
		cell__gather_begin(request, connection_of(request->connection)->url);
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
		connection_of(request->connection)->in_body = false;
	if (request->state != CELL_REQUEST_ANSWERED && (int64_t)(request->taken_bytes + *data_size) > max_body(request)) {
		refuse_large(request);
		return throw_away(request, data_size);
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

		refuse_with(request, request->status, "application/json", body);
		return throw_away(request, data_size);
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
	struct cell__connection *connection = connection_of(request->connection);
	bool is_end = !*data_size;

	if (is_end)
		connection->in_body = false;
	if (request->state == CELL_REQUEST_READING) {
		request->state = CELL_REQUEST_WORKING;
		if (read_query(request))
			request->route->handle(request);
	}
	if (request->state != CELL_REQUEST_ANSWERED && (int64_t)(request->taken_bytes + *data_size) > max_body(request)) {
		refuse_large(request);
		return throw_away(request, data_size);
	}
	if (request->state != CELL_REQUEST_ANSWERED) {
		size_t left = cell__upload_take(request, data, *data_size);

		request->taken_bytes += *data_size - left;
		*data_size = left;
	}
	if (request->state == CELL_REQUEST_ANSWERED && is_end)
		return send_answer(request);
	if (request->state == CELL_REQUEST_ANSWERED) {
		refuse_body(request, request->status, request->refusal_code, request->refusal ? request->refusal : "out of memory");
		return throw_away(request, data_size);
	}
	if (is_end || cell__upload_is_busy(request))
		cell__request_suspend(request);
	return MHD_YES;
}

static enum MHD_Result after_head(struct cell__request *request, bool passed)
{
	if (request->state == CELL_REQUEST_ASKING) {
		connection_of(request->connection)->in_body = false;
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
	struct cell__connection *connection = connection_of(mhd);

	if (!request) {
		*state = request = connection ? request_create(server, mhd, method, path) : NULL;
		if (!request)
			return MHD_NO; /* no memory: the connection ends */
		connection->request = request;
		connection->in_body = true;
		connection->since_us = request->begun_us;
		request->inner = connection->inner;
		return after_head(request, check_head(request, method, path, version));
	}
	/* libmicrohttpd calls again as it did for the head, before anything of the body. */
	if (request->state == CELL_REQUEST_ASKING) {
		request->state = CELL_REQUEST_READING;
		connection->in_body = true;
		connection->since_us = cell__now_us();
		return after_head(request, check_access(request));
	}
	if (request->thrown_away)
		return throw_away(request, data_size);
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
			refuse_large(request);
			return throw_away(request, data_size);
		}
		if (cell__buf_add(&request->body, data, *data_size) < 0)
			return MHD_NO; /* no memory: the connection ends */
		*data_size = 0;
		return MHD_YES;
	}
	if (request->state == CELL_REQUEST_READING) {
		connection->in_body = false;
		request->state = CELL_REQUEST_WORKING;
		if (read_query(request) && read_body(request))
			dispatch(request);
	}
	if (request->state == CELL_REQUEST_ANSWERED)
		return send_answer(request);
	cell__request_suspend(request);
	return MHD_YES;
}

static void request_done(void *arg, struct MHD_Connection *mhd, void **state, enum MHD_RequestTerminationCode why)
{
	struct cell__request *request = *state;
	struct cell__connection *connection = connection_of(mhd);

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
		if (connection->inner)
			return;
		cell__guests_add(&server->guests, &connection->guest, descriptor_of(mhd), address_of(mhd));
		return;
	}
	if (!connection)
		return;
	if (!connection->inner)
		cell__pool_client_left(server);
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
	struct cell__connection *connection = connection_of(mhd);

	if (!connection)
		return NULL;
	connection->url_size = strlen(url);
	if (((struct cell_server *)arg)->pool) {
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
		if (server->inner)
			MHD_run(server->inner);
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
	if (server->quiesced && !inner) {
		cell__close_fd(&fd);
		cell__pool_client_left(server);
		return;
	}
	server->adding_inner = inner; /* for handle_connection(), which is called from inside */
	is_added = MHD_add_connection(inner ? server->inner : server->daemon, fd, from, from_size) == MHD_YES;
	server->adding_inner = false;
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
	uv_check_start(&server->check, handle_check);
	server->due = true;
	return 0;
}

void cell__http_quiesce(struct cell_server *server)
{
	MHD_socket fd;

	if (server->quiesced)
		return;
	server->quiesced = true;
	if (server->pool)
		return; /* the program that started the workers listens */
	fd = MHD_quiesce_daemon(server->daemon);
	if (fd != MHD_INVALID_SOCKET)
		close(fd);
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
	uv_poll_stop(&server->inbox);
	MHD_stop_daemon(server->inner);
	server->inner = NULL;
}
