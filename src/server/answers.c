/* Answers to requests: as values, bytes and errors, and those that end a body which is still being sent. */
#define _GNU_SOURCE
#include "server/http.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>

#include "server/oauth.h"
#include "server/peers.h"

#define LINGER_BYTES (16 * 1024 * 1024) /* of a body that is too large, thrown away so that its sender can hear of it */
#define SHORTAGE_RETRY_S 5              /* descriptors come back when sessions end */

void cell__http_kick(struct cell_server *server)
{
	server->due = true;
}

void cell__answer_crosses(const struct cell__request *request, struct MHD_Response *response)
{
	MHD_add_response_header(response, "Access-Control-Allow-Origin", cell__request_header(request, "Origin"));
	MHD_add_response_header(response, "Access-Control-Expose-Headers", "Mcp-Session-Id, Retry-After, X-Request-ID, X-Session-ID");
	MHD_add_response_header(response, "Vary", "Origin");
}

void cell__answer_response(struct cell__request *request, unsigned status, struct MHD_Response *response)
{
	if (request->state == CELL_REQUEST_ANSWERED || request->held || request->task) {
		if (response)
			MHD_destroy_response(response);
		if (request->task) /* its answers are JSON, which the functions below keep */
			cell__task_answer(request, status, NULL);
		return;
	}
	request->status = status;
	request->response = response;
	if (response) {
		MHD_add_response_header(response, "X-Request-ID", request->id);
		/* A browser must not run content that code has made, whatever it looks like. */
		MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
		if (!MHD_get_response_header(response, "Content-Security-Policy"))
			MHD_add_response_header(response, "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox");
	}
	if (response && request->crosses)
		cell__answer_crosses(request, response);
	if (response && request->served && !request->ends_session) /* for proxies that send a session's requests to one server */
		MHD_add_response_header(response, "X-Session-ID", request->served->id);
	if (cell__directory_hold(request))
		return; /* until others can find what it tells of */
	request->state = CELL_REQUEST_ANSWERED;
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

/* A body that comes in pieces may have to be refused in the middle, where libmicrohttpd sends nothing (cell__http_refuse_body()). */
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

struct MHD_Response *cell__http_error(int code, const char *words)
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
				   : cell__http_error(code, words ? words : "out of memory");
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
	response = request->is_e2b ? foreign_error(request, &status, CELL_E_BUSY, words) : cell__http_error(CELL_E_BUSY, words);
	note_refusal(request, CELL_E_BUSY, words);
	snprintf(seconds, sizeof(seconds), "%d", retry_s);
	if (response)
		MHD_add_response_header(response, "Retry-After", seconds);
	/* Nothing was done: the server that forwarded it may ask again, here or elsewhere (peers.c). */
	if (response && (request->moving || request->server->draining) && cell__request_header(request, CELL_FORWARD_HOP))
		MHD_add_response_header(response, CELL_FORWARD_ELSEWHERE, "1");
	cell__answer_response(request, status, response);
}

void cell__answer_moving(struct cell__request *request, const char *words)
{
	request->moving = true;
	answer_later(request, MHD_HTTP_SERVICE_UNAVAILABLE, 1, words);
}

void cell__answer_busy(struct cell__request *request, int retry_s, const char *words)
{
	answer_later(request, request->server->leaving ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_TOO_MANY_REQUESTS, retry_s, words);
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

/* ---- bodies that are refused ---- */

/*
 * libmicrohttpd sends answers before a body and after it. This one must be sent at once, and the client's further bytes must be read for a
 * while: closed with unread bytes, the connection would be reset, and the answer lost with it. So it is written here, bypassing
 * libmicrohttpd, which sends nothing itself at this time.
 */
void cell__http_refuse(struct cell__request *request, unsigned status, const char *type, const char *body)
{
	const union MHD_ConnectionInfo *tls = MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
	const union MHD_ConnectionInfo *fd = MHD_get_connection_info(request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__connection *connection = cell__http_connection(request->connection);
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

void cell__http_refuse_body(struct cell__request *request, unsigned status, int code, const char *words)
{
	json_t *error = json_pack("{s:s,s:s}", "detail", words, "code", cell_code_word(code));
	const char *type = "application/json";
	size_t size = 0; /* only of the streamed uploads, whose errors are text */
	CELL_AUTO_FREE char *body = request->is_e2b ? cell__e2b_error(request, code, words, &status, &type, &size)
				    : error         ? json_dumps(error, JSON_COMPACT)
						    : NULL;

	json_decref(error);
	cell__http_refuse(request, status, type, body);
}

int64_t cell__http_max_body(const struct cell__request *request)
{
	const struct cell_server_limits *limits = &request->server->limits;

	return request->route && request->route->streamed ? limits->max_file_bytes : limits->max_body_bytes;
}

void cell__http_refuse_large(struct cell__request *request)
{
	char words[64];

	snprintf(words, sizeof(words), "a body may have at most %lld bytes", (long long)cell__http_max_body(request));
	cell__http_refuse_body(request, MHD_HTTP_CONTENT_TOO_LARGE, CELL_E_LIMIT, words);
}

enum MHD_Result cell__http_discard(struct cell__request *request, size_t *data_size)
{
	bool over = !*data_size || request->thrown_bytes + *data_size > LINGER_BYTES;

	request->thrown_bytes += *data_size;
	*data_size = 0;
	return over ? MHD_NO : MHD_YES;
}
