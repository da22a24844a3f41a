/* Everything about a request that is decided before its body: its address and origin, its client, its route. */
#define _GNU_SOURCE
#include "server/http.h"

#include <string.h>
#include <strings.h>

#include "base/hole.h"
#include "server/oauth.h"
#include "server/peers.h"
#include "server/pool.h"
#include "wire/access.h"

static bool check_origin(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const char *host = cell__request_header(request, "Host"), *origin = cell__request_header(request, "Origin");

	/*
	 * Without tokens the security depends on the browser's idea of our address; MCP's clients must always be checked.  The console of
	 * one person has no proxy before it, so a page of another name that was made to point here (DNS rebinding) gets nothing.
	 */
	if ((server->opts.auth_disabled || server->mcp || server->opts.console_code) && *server->address.host &&
	    !cell__access_host(host, server->address.host, server->address.port, server->opts.hosts) &&
	    !(host && server->opts.advertise && !strcasecmp(host, server->opts.advertise + strlen("http://"))) &&
	    !cell__e2b_debug_host(server, host)) {
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

#define ALLOWED_HEADERS                                                                                    \
	"Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, Mcp-Name, " \
	"Mcp-Session-Id, Prefer, traceparent, X-Session-ID"
#define PARAMETER_PREFIX "mcp-param-"
#define PARAMETERS_BYTES 4096u

/* The headers that a page may send.  Those of parameters (MCP) have names that the tools choose: the ones that were asked for are named. */
static int add_allowed_headers(const char *asked, struct cell__buf *out)
{
	static const char name[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

	if (cell__buf_add_str(out, ALLOWED_HEADERS) < 0)
		return -1;
	for (const char *at = asked ? asked : ""; *at;) {
		size_t size;

		at += strspn(at, ", \t");
		size = strspn(at, name);
		if (size > strlen(PARAMETER_PREFIX) && !strncasecmp(at, PARAMETER_PREFIX, strlen(PARAMETER_PREFIX)) &&
		    (!at[size] || strchr(", \t", at[size])) && out->size + size < PARAMETERS_BYTES &&
		    cell__buf_printf(out, ", %.*s", (int)size, at) < 0)
			return -1;
		at += size + strcspn(at + size, ",");
	}
	return 0;
}

/* A browser asks whether a page may make its request, without a token.  It learns nothing but that its origin is allowed. */
static bool answer_preflight(struct cell__request *request)
{
	CELL_AUTO_BUF struct cell__buf headers = CELL_BUF_INIT;
	struct MHD_Response *response;

	if (!request->crosses || strcmp(request->method, "OPTIONS") || !cell__request_header(request, "Access-Control-Request-Method"))
		return false;
	response = add_allowed_headers(cell__request_header(request, "Access-Control-Request-Headers"), &headers) == 0
			   ? cell__http_response(NULL, 0, NULL)
			   : NULL;
	if (response) {
		MHD_add_response_header(response, "Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE");
		MHD_add_response_header(response, "Access-Control-Allow-Headers", headers.data);
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
	const struct sockaddr *from = cell__http_address(request->connection);
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
	struct cell__connection *connection = cell__http_connection(request->connection);
	const char *words = NULL;
	int retry_s = 0;
	const struct sockaddr *from = cell__http_address(request->connection);
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
	if (request->state != CELL_REQUEST_READING)
		return false; /* the sandbox that it wants is being made (e2b/debug.c) */

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
		struct MHD_Response *response = cell__http_error(CELL_E_INVALID, "Method Not Allowed");

		if (response)
			MHD_add_response_header(response, "Allow", request->match.allow);
		cell__answer_response(request, MHD_HTTP_METHOD_NOT_ALLOWED, response);
		return false;
	}
	if (!request->route) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "Not Found");
		return false;
	}
	if (cell__server_refuses(request->server) && request->route->scope != CELL_SCOPE_OPEN && strcmp(request->method, "GET")) {
		cell__answer_moving(request, "the server is stopping");
		return false;
	}
	if (length && strtoll(length, NULL, 10) > cell__http_max_body(request)) {
		/* A client that sends Expect has not sent any of the body. */
		if (!cell__request_header(request, "Expect")) {
			cell__http_refuse_large(request);
			return true;
		}
		cell__answer_fail(request, MHD_HTTP_CONTENT_TOO_LARGE, CELL_E_LIMIT, "a body may have at most %lld bytes",
				  (long long)cell__http_max_body(request));
		return false;
	}
	if (!decode_params(request))
		return false;
	owner = cell__request_owner(request);
	if (owner >= 0) {
		cell__forward_begin(request, owner, cell__http_connection(request->connection)->url);
	} else if (request->has_peer) {
		cell__forward_to_peer(request);
	} else if (request->unfound) {
		cell__peers_unknown(request);
	} else if (request->route->streamed && cell__peers_first(request)) {
		request->state = CELL_REQUEST_ASKING; /* a body that is not kept is passed on as it comes */
		return false;
	}
	return request->state != CELL_REQUEST_ANSWERED;
}

/* An unauthenticated client must not learn which paths exist. */
bool cell__admit_client(struct cell__request *request)
{
	return ((request->route && request->route->scope == CELL_SCOPE_OPEN) ||
		check_client(request, request->route ? request->route->scope : ~0u)) &&
	       check_rest(request);
}

bool cell__admit_head(struct cell__request *request, const char *method, const char *path, const char *version)
{
	struct cell__connection *connection = cell__http_connection(request->connection);
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
	if (cell__greeting_is(request, method, path))
		request->route = &cell__greeting_route;
	return check_origin(request) && !answer_preflight(request) && cell__admit_client(request);
}
