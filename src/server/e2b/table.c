/* Routes of E2B's clients, the tokens that they send, and the errors that they read. */
#include "server/e2b/e2b.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "files/files.h"
#include "server/pool.h"
#include "wire/access.h"
#include "wire/connect.h"

#define NO_SANDBOX "The sandbox was not found" /* clients look for these words */

#define GET "GET"
#define POST "POST"
#define PUT "PUT"
#define DELETE "DELETE"
#define READ CELL_SCOPE_READ
#define RUN CELL_SCOPE_RUN

const struct cell__route cell__e2b_routes[] = {
	{ POST, "/sandboxes", RUN, cell__e2b_handle_create, .raw = true, .status = 201 },
	{ POST, "/v2/sandboxes", RUN, cell__e2b_handle_create, .raw = true, .status = 201 },
	{ GET, "/sandboxes", READ, cell__e2b_handle_list, .gather = "sandboxes", .joined = cell__e2b_answer_list, .status = 200 },
	{ GET, "/v2/sandboxes", READ, cell__e2b_handle_list, .gather = "sandboxes", .joined = cell__e2b_answer_list, .status = 200 },
	{ GET, "/sandboxes/{sandbox}", READ, cell__e2b_handle_get, .status = 200 },
	{ DELETE, "/sandboxes/{sandbox}", RUN, cell__e2b_handle_kill, .status = 204 },
	{ POST, "/sandboxes/{sandbox}/timeout", RUN, cell__e2b_handle_timeout, .raw = true },
	{ POST, "/sandboxes/{sandbox}/refreshes", RUN, cell__e2b_handle_refresh, .raw = true },
	{ POST, "/sandboxes/{sandbox}/pause", RUN, cell__e2b_handle_pause, .raw = true },
	{ POST, "/sandboxes/{sandbox}/resume", RUN, cell__e2b_handle_connect, .raw = true },
	{ POST, "/sandboxes/{sandbox}/connect", RUN, cell__e2b_handle_connect, .raw = true },
	{ POST, "/v2/sandboxes/{sandbox}/connect", RUN, cell__e2b_handle_connect, .raw = true },
	{ POST, "/sandboxes/{sandbox}/fork", RUN, cell__e2b_handle_fork, .raw = true, .status = 201 },
	{ GET, "/sandboxes/{sandbox}/metrics", READ, cell__e2b_handle_metrics, .status = 200 },
	{ PUT, "/sandboxes/{sandbox}/network", RUN, cell__e2b_handle_refused, .raw = true,
	  .summary = "the operator of the server sets the network of its sandboxes (workcell serve --network)" },
	{ POST, "/sandboxes/{sandbox}/snapshots", RUN, cell__e2b_handle_snapshot, .raw = true, .status = 201 },
	{ GET, "/snapshots", READ, cell__e2b_handle_snapshots, .gather = "snapshots", .joined = cell__e2b_answer_snapshots, .status = 200 },
	{ DELETE, "/templates/{snapshot}", RUN, cell__e2b_handle_snapshot_remove, .status = 204 },
	{ GET, "/templates{rest...}", READ, cell__e2b_handle_refused,
	  .summary = "there are no templates here: the operator of the server installs packages (workcell serve --dep)" },
	{ POST, "/v3/templates{rest...}", RUN, cell__e2b_handle_refused, .raw = true,
	  .summary = "there are no templates here: the operator of the server installs packages (workcell serve --dep)" },
	{ GET, "/volumes{rest...}", READ, cell__e2b_handle_refused, .summary = "there are no volumes here" },
	{ POST, "/volumes", RUN, cell__e2b_handle_refused, .raw = true, .summary = "there are no volumes here" },
	/* of a sandbox */
	{ GET, "/health", READ, cell__e2b_handle_health, .status = 204 },
	{ POST, "/execute", RUN, cell__e2b_handle_execute, .raw = true },
	{ GET, "/contexts", READ, cell__e2b_handle_contexts, .status = 200 },
	{ POST, "/contexts", RUN, cell__e2b_handle_context_create, .raw = true },
	{ DELETE, "/contexts/{context}", RUN, cell__e2b_handle_context_remove, .status = 204 },
	{ POST, "/contexts/{context}/restart", RUN, cell__e2b_handle_context_restart, .raw = true },
	{ GET, "/files", READ, cell__e2b_handle_file_get, .status = 200 },
	{ POST, "/files", RUN, cell__e2b_handle_file_post, .raw = true, .streamed = true },
	{ POST, "/filesystem.Filesystem/{method}", RUN, cell__e2b_handle_filesystem, .raw = true },
	{ POST, "/process.Process/{method}", RUN, cell__e2b_handle_process, .raw = true },
	{ 0 },
};

/* The same path with a form as its body, which is read as a whole. */
static const struct cell__route form_route = { POST, "/files", RUN, cell__e2b_handle_file_form, .raw = true };

void cell__e2b_handle_refused(struct cell__request *request)
{
	cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED, "%s", request->route->summary);
}

/* ---- which requests are E2B's ---- */

static bool starts(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

/* The others are the control plane's: a sandbox's token must not reach them. */
static bool is_of_sandbox(const char *path)
{
	return !strcmp(path, "/health") || !strcmp(path, "/files") || !strcmp(path, "/execute") || !strcmp(path, "/contexts") ||
	       starts(path, "/contexts/") || starts(path, "/filesystem.Filesystem/") || starts(path, "/process.Process/");
}

/* "PORT-ID.DOMAIN": *ret_size is 0 if the host is of another form. */
static const char *id_in_host(const char *host, size_t *ret_size)
{
	size_t digits = host ? strspn(host, "0123456789") : 0;
	const char *id = digits && host[digits] == '-' ? host + digits + 1 : "";

	*ret_size = strcspn(id, ".");
	if (!id[*ret_size])
		*ret_size = 0;
	return id;
}

/* get_host() of a client makes such names for programs that listen in a sandbox. */
static bool is_port_of_program(const char *host)
{
	size_t size;

	(void)id_in_host(host, &size);
	return size && !starts(host, "49983-") && !starts(host, "49999-");
}

bool cell__e2b_domain_ok(const char *domain)
{
	size_t size = strspn(domain, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-");
	const char *port = domain + size;
	size_t digits = *port == ':' ? strspn(port + 1, "0123456789") : 0;

	if (!size || size > CELL_E2B_MAX_DOMAIN || *domain == '.' || *domain == '-' || strstr(domain, ".."))
		return false;
	return !*port || (digits > 0 && digits <= 5 && !port[1 + digits] && atoi(port + 1) <= 65535);
}

bool cell__e2b_is_asked(const struct cell__request *request, const char *path)
{
	size_t size;

	(void)id_in_host(cell__request_header(request, "Host"), &size);
	return size || !strcmp(path, "/files") || cell__request_header(request, "E2b-Sandbox-Id") ||
	       cell__request_header(request, "X-API-Key") ||
	       /* without a key */
	       (request->server->opts.e2b_debug &&
		(starts(path, "/sandboxes") || starts(path, "/v2/sandboxes") || starts(path, "/snapshots")));
}

/* ---- parts of requests ---- */

char *cell__e2b_query(const struct cell__request *request, const char *name)
{
	const char *value = MHD_lookup_connection_value(request->connection, MHD_GET_ARGUMENT_KIND, name);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (!value || cell__url_decode(value, strlen(value), false, &text) < 0)
		return NULL;
	return text.data ? cell__buf_take(&text) : cell__strdup("");
}

json_t *cell__e2b_body(struct cell__request *request)
{
	json_error_t problem;

	if (!request->json)
		request->json = request->body.size ? json_loadb(request->body.data, request->body.size, JSON_REJECT_DUPLICATES, &problem)
						   : json_object();
	if (json_is_object(request->json))
		return request->json;
	cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "the body is not a JSON object");
	return NULL;
}

const char *cell__e2b_id(const struct cell__e2b_sandbox *sandbox)
{
	return sandbox->contexts->served->id;
}

struct cell__e2b_sandbox *cell__e2b_snapshot_by_id(const struct cell_server *server, const char *id)
{
	const struct cell__served *served = cell__served_by_id(server, id);
	struct cell__e2b_sandbox *sandbox = served && served->context ? served->context->sandbox : NULL;

	return sandbox && sandbox->contexts->served == served && !sandbox->ending ? sandbox : NULL;
}

struct cell__e2b_sandbox *cell__e2b_by_id(const struct cell_server *server, const char *id)
{
	struct cell__e2b_sandbox *sandbox = cell__e2b_snapshot_by_id(server, id);

	return sandbox && !sandbox->is_snapshot ? sandbox : NULL;
}

struct cell__e2b_sandbox *cell__e2b_enter(struct cell__request *request)
{
	/* It may have ended, or paused, while the body came. */
	struct cell__e2b_sandbox *sandbox = cell__e2b_by_id(request->server, request->sandbox);

	if (!sandbox || sandbox->paused) {
		cell__answer_fail(request, MHD_HTTP_BAD_GATEWAY, CELL_E_EXPIRED, NO_SANDBOX);
		return NULL;
	}
	return cell__served_find(request, request->sandbox, false) ? sandbox : NULL;
}

const char *cell__e2b_area_name(enum cell__e2b_area area)
{
	return area == CELL_E2B_IN_TMP ? CELL_E2B_TMP : CELL_E2B_HOME;
}

int cell__e2b_open_area(struct cell_session *session, enum cell__e2b_area area, bool writes, cell__root_done done, void *arg,
			struct cell_error *err)
{
	if (area == CELL_E2B_IN_TMP)
		return cell__session_tmp_on_loop(session, writes, done, arg, err);
	return cell__session_root_on_loop(session, writes, done, arg, err);
}

static size_t is_below(const char *path, const char *folder)
{
	size_t size = strlen(folder);

	return !strncmp(path, folder, size) && (!path[size] || path[size] == '/') ? size : 0;
}

int cell__e2b_path(const struct cell__e2b_sandbox *sandbox, const char *given, struct cell__e2b_place *ret_place, struct cell_error *err)
{
	const struct cell__session_folder *folder = sandbox->contexts->served->folder;
	const char *executor = sandbox->server->session.executor;
	/* With other executors than this one /tmp is the machine's. */
	bool has_tmp = executor && !strcmp(executor, "sandbox");
	/* The folder may be one in /tmp: so that comes last. */
	const char *roots[] = { CELL_E2B_HOME, "~", folder ? folder->path : sandbox->server->session.cwd, has_tmp ? CELL_E2B_TMP : NULL };
	size_t n = sizeof(roots) / sizeof(roots[0]);

	ret_place->area = CELL_E2B_IN_HOME;
	for (size_t i = 0; i < n; i++) {
		size_t size = roots[i] && *roots[i] ? is_below(given, roots[i]) : 0;

		if (!size)
			continue;
		if (i == n - 1)
			ret_place->area = CELL_E2B_IN_TMP;
		given += size;
		given += strspn(given, "/");
		return cell__files_path(given, ret_place->path, err);
	}
	if (*given == '/')
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "%.120s cannot be reached: only files below " CELL_E2B_HOME "%s can", given,
				 has_tmp ? " and " CELL_E2B_TMP : "");
	return cell__files_path(given, ret_place->path, err);
}

int cell__e2b_cwd(const struct cell__e2b_sandbox *sandbox, const char *given, char ret_path[static PATH_MAX], struct cell_error *err)
{
	struct cell__e2b_place place;

	if (*given == '/' && strncmp(given, CELL_E2B_HOME, strlen(CELL_E2B_HOME)) && strlen(given) < PATH_MAX) {
		strcpy(ret_path, given);
		return 0;
	}
	if (cell__e2b_path(sandbox, given, &place, err) < 0)
		return -1;
	strcpy(ret_path, place.path);
	return 0;
}

/* ---- tokens ---- */

static bool is_same(const char *given, const char *token)
{
	unsigned char one[CELL_ACCESS_HASH_BYTES], other[CELL_ACCESS_HASH_BYTES];

	cell__access_hash(given, strlen(given), one);
	cell__access_hash(token, strlen(token), other);
	return cell__access_same(one, other);
}

/* "v1_" and base64 of the SHA-256 of "PATH:OPERATION:USER:TOKEN[:EXPIRATION]". */
static bool is_signed(const char *token, const char *path, const char *operation, const char *user, const char *expiration,
		      const char *signature)
{
	CELL_AUTO_BUF struct cell__buf raw = CELL_BUF_INIT, expected = CELL_BUF_INIT;
	unsigned char hash[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (cell__buf_printf(&raw, "%s:%s:%s:%s%s%s", path, operation, user, token, expiration ? ":" : "", expiration ? expiration : "") <
		    0 ||
	    EVP_Digest(raw.data, raw.size, hash, &size, EVP_sha256(), NULL) != 1 || cell__buf_add_str(&expected, "v1_") < 0 ||
	    cell__buf_add_base64(&expected, hash, size) < 0)
		return false;
	while (expected.size && expected.data[expected.size - 1] == '=')
		expected.data[--expected.size] = '\0';
	return is_same(signature, expected.data);
}

bool cell__e2b_token(const struct cell_server *server, const char *id, char ret_token[static CELL_E2B_TOKEN + 1])
{
	unsigned char hash[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (!HMAC(EVP_sha256(), cell__pool_secret(server), CELL_SERVER_SECRET, (const unsigned char *)id, strlen(id), hash, &size))
		return false;
	for (unsigned i = 0; i < CELL_E2B_TOKEN / 2; i++)
		snprintf(ret_token + 2 * i, 3, "%02x", hash[i]);
	return true;
}

struct signing {
	const struct cell_server *server;
	const char *path, *operation, *user, *expiration, *signature;
};

static bool signs(const struct signing *signing, const char *id)
{
	char token[CELL_E2B_TOKEN + 1];

	return cell__e2b_token(signing->server, id, token) &&
	       is_signed(token, signing->path, signing->operation, signing->user, signing->expiration, signing->signature);
}

/* The sandbox, of whichever worker, whose signature it is, to request->sandbox. */
static bool find_signer(struct cell__request *request, const struct signing *signing)
{
	char id[33];

	for (const struct cell__served *served = request->server->sessions; served; served = served->next) {
		if (cell__e2b_by_id(request->server, served->id) && signs(signing, served->id)) {
			snprintf(request->sandbox, sizeof(request->sandbox), "%s", served->id);
			return true;
		}
	}
	/* Another worker that passes a request on has found us. */
	for (uint64_t at = 0; !request->inner && cell__pool_next_listed(request->server, &at, id);) {
		if (signs(signing, id)) {
			snprintf(request->sandbox, sizeof(request->sandbox), "%s", id);
			return true;
		}
	}
	return false;
}

/* A URL that is signed has no other token; without a name in its host the sandbox is the one whose signature it is. */
static bool check_signature(struct cell__request *request, const char **ret_words)
{
	CELL_AUTO_FREE char *signature = cell__e2b_query(request, "signature"), *path = cell__e2b_query(request, "path");
	CELL_AUTO_FREE char *user = cell__e2b_query(request, "username"), *expiration = cell__e2b_query(request, "signature_expiration");
	const struct signing signing = { .server = request->server,
					 .path = path ? path : "",
					 .operation = strcmp(request->method, "GET") ? "write" : "read",
					 .user = user ? user : "",
					 .expiration = expiration,
					 .signature = signature };

	*ret_words = "a token (X-Access-Token) or a signature is required";
	if (!signature)
		return false;
	*ret_words = "the signature is not valid";
	if (*request->sandbox ? !signs(&signing, request->sandbox) : !find_signer(request, &signing))
		return false;
	*ret_words = "signature is already expired"; /* as their own servers say it */
	return !expiration || strtoll(expiration, NULL, 10) > time(NULL);
}

static void take_id(struct cell__request *request)
{
	const char *id = cell__request_header(request, "E2b-Sandbox-Id");
	size_t size = id ? strlen(id) : 0;

	if (!id)
		id = id_in_host(cell__request_header(request, "Host"), &size);
	if (size && size < sizeof(request->sandbox))
		snprintf(request->sandbox, sizeof(request->sandbox), "%.*s", (int)size, id);
}

static bool is_elsewhere(const struct cell__request *request)
{
	const struct cell_server *server = request->server;

	return !cell__e2b_by_id(server, request->sandbox) && server->pool && !request->inner &&
	       cell__pool_owner(server, request->sandbox) >= 0;
}

static unsigned check_sandbox(struct cell__request *request, const struct sockaddr *from, const char **ret_words, int *ret_retry_s)
{
	const char *given = cell__request_header(request, "X-Access-Token");
	struct cell_server *server = request->server;
	const struct cell__e2b_sandbox *sandbox;
	char token[CELL_E2B_TOKEN + 1];
	bool is_good, elsewhere, is_debug;
	unsigned status;

	take_id(request);
	if (cell__e2b_debug_waits(request))
		return 0;
	is_debug = server->opts.e2b_debug && !strcmp(request->sandbox, server->e2b_debug.id);
	sandbox = cell__e2b_by_id(server, request->sandbox);
	elsewhere = is_elsewhere(request);
	if (*request->sandbox && !elsewhere && (!sandbox || sandbox->paused)) {
		*ret_words = sandbox ? NO_SANDBOX ": it is paused; connect to it to resume it" : NO_SANDBOX;
		return MHD_HTTP_BAD_GATEWAY; /* ids are not guessed, and one that has ended is asked for by its own clients */
	}
	if (!given)
		given = cell__request_header(request, "E2B-Traffic-Access-Token");
	*ret_words = "Invalid access token";
	if (is_debug && !given) {
		is_good = true;
	} else if (given || strcmp(request->path, "/files")) {
		is_good = *request->sandbox && given && cell__e2b_token(server, request->sandbox, token) && is_same(given, token);
	} else {
		is_good = check_signature(request, ret_words);
		elsewhere = is_elsewhere(request);
	}
	/* The worker that has the client has counted it. */
	status = !request->inner ? cell__auth_count(server, from, is_good, false, ret_words, ret_retry_s)
		 : is_good       ? 0
				 : MHD_HTTP_UNAUTHORIZED;
	if (status)
		return status;
	if (elsewhere) { /* the worker of the sandbox knows the rest */
		request->who = (struct cell__token){ .scopes = CELL_SCOPE_READ | CELL_SCOPE_RUN };
		return 0;
	}
	sandbox = cell__e2b_by_id(server, request->sandbox);
	if (!sandbox || sandbox->paused) {
		*ret_words = NO_SANDBOX ": it is paused; connect to it to resume it";
		return MHD_HTTP_BAD_GATEWAY;
	}
	if (!cell__token_by_name(server, sandbox->contexts->served->owner, &request->who)) {
		*ret_words = "the token that made the sandbox was removed: create a sandbox with another one";
		return MHD_HTTP_UNAUTHORIZED;
	}
	return 0;
}

unsigned cell__e2b_auth_check(struct cell__request *request, const struct sockaddr *from, const char **ret_words, int *ret_retry_s)
{
	const char *key = cell__request_header(request, "X-API-Key"), *type = cell__request_header(request, "Content-Type"), *given;
	CELL_AUTO_BUF struct cell__buf header = CELL_BUF_INIT;
	unsigned status;

	if (is_port_of_program(cell__request_header(request, "Host"))) {
		*ret_words = "ports of a sandbox cannot be reached: no requests are passed on to programs that listen in it";
		return MHD_HTTP_BAD_GATEWAY;
	}
	if (is_of_sandbox(request->path)) {
		status = check_sandbox(request, from, ret_words, ret_retry_s);
		if (request->route && request->route->streamed && type && !strncasecmp(type, "multipart/form-data", 19))
			request->route = &form_route;
		return status;
	}
	if (key && cell__buf_printf(&header, "Bearer %s", key) < 0) {
		*ret_words = "out of memory";
		return MHD_HTTP_INTERNAL_SERVER_ERROR;
	}
	given = key ? header.data : cell__request_header(request, "Authorization");
	if (!request->inner)
		return cell__auth_check(request->server, given, from, &request->who, ret_words, ret_retry_s);
	*ret_words = "Invalid token";
	return cell__auth_again(request->server, given, &request->who) ? 0 : MHD_HTTP_UNAUTHORIZED;
}

/* The id of the snapshot that the client means by its name, or what it gave. */
static const char *id_of_name(struct cell__request *request, const char *given)
{
	char id[sizeof(request->sandbox)];

	if (!given || !cell__pool_named(request->server, request->who.name, given, id))
		return given;
	memcpy(request->sandbox, id, sizeof(id)); /* it is free: the request is not for a sandbox */
	return request->sandbox;
}

const char *cell__e2b_owner_id(struct cell__request *request)
{
	const char *path = request->route->path;

	if (is_of_sandbox(request->path))
		return *request->sandbox ? request->sandbox : NULL;
	if (starts(path, "/templates/{snapshot}"))
		return id_of_name(request, request->params[0]);
	return starts(path, "/sandboxes/{sandbox}") || starts(path, "/v2/sandboxes/{sandbox}") ? request->params[0] : NULL;
}

const char *cell__e2b_owner_by_body(struct cell__request *request)
{
	json_error_t problem;

	if (request->route->handle != cell__e2b_handle_create || !request->body.size)
		return NULL;
	if (!request->json) /* what is wrong with it is said by the handler */
		request->json = json_loadb(request->body.data, request->body.size, JSON_REJECT_DUPLICATES, &problem);
	return id_of_name(request, json_string_value(json_object_get(request->json, "templateID")));
}

/* ---- errors ---- */

static const char *rpc_word(unsigned status)
{
	static const struct {
		unsigned status;
		const char *word;
	} words[] = {
		{ 400, "invalid_argument" }, { 401, "unauthenticated" },    { 403, "permission_denied" }, { 404, "not_found" },
		{ 409, "already_exists" },   { 413, "resource_exhausted" }, { 422, "invalid_argument" },  { 429, "resource_exhausted" },
		{ 501, "unimplemented" },    { 502, "unavailable" },        { 503, "unavailable" },       { 504, "deadline_exceeded" },
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (words[i].status == status)
			return words[i].word;
	}
	return "internal";
}

/* A stream has its errors in its last message. */
static char *stream_error(json_t *error, unsigned *status, size_t *ret_size)
{
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	json_t *end = json_pack("{s:O}", "error", error);
	CELL_AUTO_FREE char *text = end ? json_dumps(end, JSON_COMPACT) : NULL;

	json_decref(end);
	if (!text || cell__connect_add(&message, CELL_CONNECT_END, text, strlen(text)) < 0)
		return NULL;
	*status = MHD_HTTP_OK;
	*ret_size = message.size;
	return cell__buf_take(&message);
}

char *cell__e2b_error(const struct cell__request *request, int code, const char *words, unsigned *status, const char **ret_type,
		      size_t *ret_size)
{
	const char *type = cell__request_header(request, "Content-Type");
	bool is_rpc = strstr(request->path, ".Filesystem/") || strstr(request->path, ".Process/");
	json_t *error;
	char *text;

	(void)code;
	*ret_type = "application/json";
	if (*status == MHD_HTTP_GONE)
		*status = is_of_sandbox(request->path) ? MHD_HTTP_BAD_GATEWAY : MHD_HTTP_NOT_FOUND;
	if (*status == MHD_HTTP_UNPROCESSABLE_CONTENT)
		*status = MHD_HTTP_BAD_REQUEST;
	error = is_rpc ? json_pack("{s:s,s:s}", "code", rpc_word(*status), "message", words)
		       : json_pack("{s:I,s:s}", "code", (json_int_t)*status, "message", words);
	if (!error) /* the message is from outside and not UTF-8 */
		error = json_pack("{s:I,s:s}", "code", (json_int_t)*status, "message", "the request is not UTF-8");
	if (is_rpc && error && type && !strcasecmp(type, "application/connect+json")) {
		*ret_type = type;
		text = stream_error(error, status, ret_size);
	} else {
		text = error ? json_dumps(error, JSON_COMPACT) : NULL;
		*ret_size = text ? strlen(text) : 0;
	}
	json_decref(error);
	return text;
}
