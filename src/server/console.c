/*
 * The console for browsers: its files, and how a person logs in.
 *
 *     POST /console/login {token | code} ──▶ a cookie (wire/seal.h) and a proof
 *     every other request: the cookie, and the proof in X-CSRF-Token
 *
 * The cookie is http-only and same-site, so scripts cannot read it and other sites cannot use it.  Browsers send it to every port of the host
 * all the same, so another program on this machine may see it: that is why a request needs the proof as well, which the page keeps in storage
 * of its own origin.  The page's policy lets its own files run and connect to this server alone.  Output of cells that is markup is shown
 * in a frame with an origin of its own (/console/frame), which has a policy of its own.
 */
#include "server/console.h"
#include "server/api.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "wire/access.h"
#include "wire/seal.h"

#define COOKIE_SECONDS (12 * 3600)
#define CODE_SECONDS 600

#define PAGE_POLICY                                                                                                             \
	"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "             \
	"frame-src 'self'; font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " \
	"require-trusted-types-for 'script'; trusted-types 'none'"
/* Nothing of the frame may be fetched from anywhere, and its origin is opaque. */
#define FRAME_POLICY                                                                                                             \
	"sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; base-uri 'none'; " \
	"form-action 'none'; frame-ancestors 'self'; script-src "

bool cell__console_is_built(void)
{
	return cell__console_files[0].path;
}

/* ---- files ---- */

static bool is_offered(struct cell__request *request)
{
	if (request->server->opts.console)
		return true;
	cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "this server has no console: start it with --console");
	return false;
}

static void answer_file(struct cell__request *request, const char *path, const char *policy)
{
	const struct cell__console_file *file = cell__console_files;
	const char *known = cell__request_header(request, "If-None-Match");
	struct MHD_Response *response;
	bool is_same;

	while (file->path && strcmp(file->path, path))
		file++;
	if (!file->path) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "the console has no such file");
		return;
	}
	is_same = known && !strcmp(known, file->etag);
	response = MHD_create_response_from_buffer(is_same ? 0 : file->size, (void *)file->bytes, MHD_RESPMEM_PERSISTENT);
	if (!response) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a file");
		return;
	}
	MHD_add_response_header(response, "Content-Type", file->type);
	if (!is_same)
		MHD_add_response_header(response, "Content-Encoding", "gzip");
	MHD_add_response_header(response, "ETag", file->etag);
	MHD_add_response_header(response, "Cache-Control", "no-cache");
	MHD_add_response_header(response, "Content-Security-Policy", policy);
	MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
	MHD_add_response_header(response, "X-DNS-Prefetch-Control", "off"); /* links in output name hosts: a browser looks them up ahead */
	MHD_add_response_header(response, "Cross-Origin-Opener-Policy", "same-origin");
	if (strcmp(path, "frame.js")) /* the frame that runs it has an origin of its own */
		MHD_add_response_header(response, "Cross-Origin-Resource-Policy", "same-origin");
	cell__answer_response(request, is_same ? MHD_HTTP_NOT_MODIFIED : MHD_HTTP_OK, response);
}

void cell__handle_console_page(struct cell__request *request)
{
	if (is_offered(request))
		answer_file(request, "", PAGE_POLICY);
}

void cell__handle_console_file(struct cell__request *request)
{
	if (is_offered(request))
		answer_file(request, request->params[0], PAGE_POLICY);
}

void cell__handle_console_frame(struct cell__request *request)
{
	bool runs = json_is_true(json_object_get(request->query, "scripts"));

	/* Scripts of the output run only in a frame for which a person asked that. */
	if (is_offered(request))
		answer_file(request, "frame.html", runs ? FRAME_POLICY "'self' 'unsafe-inline' 'unsafe-eval'" : FRAME_POLICY "'self'");
}

void cell__handle_console_start(struct cell__request *request)
{
	struct MHD_Response *response;

	if (!is_offered(request))
		return;
	response = cell__http_response(NULL, 0, NULL);
	if (response)
		MHD_add_response_header(response, "Location", "/console/");
	cell__answer_response(request, MHD_HTTP_FOUND, response);
}

/* ---- login ---- */

/* Servers on other ports of the host have cookies of their own. */
static void name_cookie(const struct cell_server *server, char out[static 40])
{
	snprintf(out, 40, "workcell-console-%d", server->address.port);
}

static json_t *words_of(unsigned scopes)
{
	static const struct {
		unsigned scope;
		const char *word;
	} all[] = { { CELL_SCOPE_READ, "read" },
		    { CELL_SCOPE_RUN, "run" },
		    { CELL_SCOPE_APPROVE, "approve" },
		    { CELL_SCOPE_METRICS, "metrics" },
		    { CELL_SCOPE_ADMIN, "admin" } };
	json_t *list = json_array();

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (scopes & all[i].scope)
			json_array_append_new(list, json_string(all[i].word));
	}
	return list;
}

static json_t *describe(const struct cell__request *request)
{
	const struct cell__token *who = &request->who;
	const char *executor = request->server->session.executor;

	return json_pack("{s:s,s:o,s:s?,s:s,s:s,s:b,s:b}", "name", who->name, "scopes", words_of(who->scopes), "workspace",
			 *who->workspace ? who->workspace : NULL, "version", cell_version(), "executor", executor ? executor : "subprocess",
			 "layers", request->server->session.workspace_mode && !strcmp(request->server->session.workspace_mode, "cow"),
			 "audit", request->server->session.audit != NULL);
}

void cell__handle_v1_whoami(struct cell__request *request)
{
	cell__answer_json(request, MHD_HTTP_OK, describe(request));
}

/* The link that the program printed, for one use. */
static bool take_code(struct cell__request *request, const char *code)
{
	struct cell_server *server = request->server;
	const char *wanted = server->opts.console_code;
	unsigned char given[CELL_ACCESS_HASH_BYTES], hash[CELL_ACCESS_HASH_BYTES];

	if (!wanted || server->code_used || cell__now_us() - server->started_us > (int64_t)CODE_SECONDS * 1000000)
		return false;
	cell__access_hash(code, strlen(code), given);
	cell__access_hash(wanted, strlen(wanted), hash);
	if (!cell__access_same(given, hash) || !server->tokens.count)
		return false;
	server->code_used = true;
	request->who = server->tokens.list[0];
	return true;
}

static unsigned check_login(struct cell__request *request, const char **ret_words, int *ret_retry_s)
{
	struct cell_server *server = request->server;
	const struct sockaddr *from = cell__request_address(request);
	const char *token = json_string_value(json_object_get(request->json, "token"));
	const char *code = json_string_value(json_object_get(request->json, "code"));
	CELL_AUTO_BUF struct cell__buf header = CELL_BUF_INIT;
	unsigned status;

	if (code) {
		status = cell__auth_count(server, from, take_code(request, code), false, ret_words, ret_retry_s);
		if (status == MHD_HTTP_UNAUTHORIZED)
			*ret_words = "this link was used already, or is too old: start the console again, or log in with a token";
		return status;
	}
	/* As a header has it: a token has no spaces and control characters (auth.c), so it cannot become anything else. */
	(void)cell__buf_printf(&header, "Bearer %s", token ? token : "");
	return cell__auth_check(server, header.data, from, &request->who, ret_words, ret_retry_s);
}

static void set_cookie(struct cell__request *request, struct MHD_Response *response, const char *value, int seconds)
{
	const char *origin = cell__request_header(request, "Origin");
	bool is_secure = request->server->tls || (origin && !strncasecmp(origin, "https://", 8)); /* a proxy may have the certificate */
	char cookie[CELL_SEAL_MAX + 160], name[40];

	name_cookie(request->server, name);
	snprintf(cookie, sizeof(cookie), "%s=%s; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict%s", name, value, seconds,
		 is_secure ? "; Secure" : "");
	MHD_add_response_header(response, "Set-Cookie", cookie);
}

void cell__handle_console_login(struct cell__request *request)
{
	char seal[CELL_SEAL_MAX + 1], proof[CELL_SEAL_MAC_DIGITS + 1], nonce[33];
	const char *words = "this token is not valid";
	struct MHD_Response *response;
	json_t *answer;
	char *text;
	int retry_s = 0;
	unsigned status;

	if (!is_offered(request))
		return;
	status = check_login(request, &words, &retry_s);
	if (status == MHD_HTTP_TOO_MANY_REQUESTS) {
		cell__answer_busy(request, retry_s, words);
		return;
	}
	if (status) {
		cell__answer_fail(request, status, CELL_E_AUTH, "%s", words);
		return;
	}
	answer = describe(request);
	cell__random_hex(nonce, 32);
	if (!cell__seal_write(request->who.hash, request->who.name, (int64_t)time(NULL) + COOKIE_SECONDS, nonce, seal) ||
	    !cell__seal_proof(request->who.hash, seal, proof) || json_object_set_new(answer, "csrf", json_string(proof)) < 0) {
		json_decref(answer);
		answer = NULL;
	}
	text = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
	json_decref(answer);
	response = text ? cell__http_response(text, strlen(text), "application/json") : NULL;
	if (!response) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a login");
		return;
	}
	MHD_add_response_header(response, "Cache-Control", "no-store");
	if (!request->server->opts.auth_disabled)
		set_cookie(request, response, seal, COOKIE_SECONDS);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

void cell__handle_console_logout(struct cell__request *request)
{
	struct MHD_Response *response = is_offered(request) ? cell__http_response(NULL, 0, NULL) : NULL;

	if (!response)
		return;
	set_cookie(request, response, "", 0);
	cell__answer_response(request, MHD_HTTP_NO_CONTENT, response);
}

struct login {
	struct cell__request *request;
	char cookie[40];
	unsigned status; /* 0: good */
	bool found;
};

static unsigned check_cookie(struct cell__request *request, const char *seal)
{
	const char *proof = cell__request_header(request, "X-CSRF-Token"), *site = cell__request_header(request, "Sec-Fetch-Site");
	char name[CELL_SEAL_MAX_NAME + 1], wanted[CELL_SEAL_MAC_DIGITS + 1];
	struct cell__token token;
	int64_t until_s;

	if (!cell__seal_read(seal, name, &until_s) || until_s < (int64_t)time(NULL) ||
	    !cell__token_by_name(request->server, name, &token) || !cell__seal_check(token.hash, seal))
		return MHD_HTTP_UNAUTHORIZED;
	if (request->crosses || (site && strcasecmp(site, "same-origin")) || !proof || !cell__seal_proof(token.hash, seal, wanted) ||
	    !cell__seal_same(proof, wanted))
		return MHD_HTTP_FORBIDDEN;
	request->who = token;
	return 0;
}

/*
 * A program on another port of this host can set a cookie with our name and a longer path, which browsers send first and nobody could log out
 * of: whichever the proof belongs to is the login.
 */
static enum MHD_Result try_cookie(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct login *login = arg;
	unsigned status;

	(void)kind;
	if (!value || strcmp(name, login->cookie))
		return MHD_YES;
	status = check_cookie(login->request, value);
	if (!login->found || !status || status == MHD_HTTP_FORBIDDEN)
		login->status = status;
	login->found = true;
	return status ? MHD_YES : MHD_NO;
}

bool cell__console_auth(struct cell__request *request, unsigned *ret_status, const char **ret_words)
{
	struct login login = { .request = request };

	if (!request->server->opts.console || request->server->opts.auth_disabled)
		return false;
	name_cookie(request->server, login.cookie);
	MHD_get_connection_values(request->connection, MHD_COOKIE_KIND, try_cookie, &login);
	if (!login.found)
		return false;
	*ret_status = login.status;
	*ret_words = login.status == MHD_HTTP_FORBIDDEN ? "a request with the console's cookie needs its X-CSRF-Token"
							: "the login has expired: log in again";
	return true;
}
