/* See oauth.h: our client at the issuer, the loopback redirect, and tokens. */
#define _GNU_SOURCE
#include "mcp/client/oauth.h"

#include <arpa/inet.h>
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "wire/oauth.h"

#define MAX_REQUEST 16384u /* bytes of a request to the loopback redirect */
#define MAX_VISITS 64u     /* requests that are not the answer */
#define OFFLINE "offline_access" /* the scope of refresh tokens, where the server knows it */
#define VISIT_MS 5000      /* for one of them to be sent */
#define FORM "Content-Type: application/x-www-form-urlencoded"

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static int random_text(struct cell__buf *out)
{
	unsigned char bytes[32];
	int rc = getrandom(bytes, sizeof bytes, 0) == sizeof bytes ? cell__buf_add_base64url(out, bytes, sizeof bytes) : -1;
	explicit_bzero(bytes, sizeof bytes);
	return rc;
}

/* ---- our client at the issuer ---- */

static bool lists(const json_t *metadata, const char *key, const char *word)
{
	size_t i;
	json_t *each;
	json_array_foreach(json_object_get(metadata, key), i, each)
		if (json_is_string(each) && strcmp(json_string_value(each), word) == 0)
			return true;
	return false;
}

/* How a client with this secret proves who it is at the token endpoint. */
static const char *choose_method(const json_t *metadata, const char *secret, const char *registered)
{
	static const char key[] = "token_endpoint_auth_methods_supported";
	if (registered)
		return registered;
	if (!secret)
		return "none";
	if (!json_object_get(metadata, key) || lists(metadata, key, "client_secret_basic"))
		return "client_secret_basic";
	return lists(metadata, key, "client_secret_post") ? "client_secret_post" : "none";
}

static int set_client(json_t *kept, const json_t *metadata, const char *id, const char *secret, const char *registered,
		      struct cell_error *err)
{
	const char *method = choose_method(metadata, secret, registered);
	int rc = json_object_set_new(kept, "client_id", json_string(id)) | json_object_set_new(kept, "method", json_string(method));
	if (secret)
		rc |= json_object_set_new(kept, "client_secret", json_string(secret));
	return rc < 0 ? cell_fail(err, CELL_E_PROTOCOL, 0, "the client's id is not valid") : 0;
}

/* scope: all that it will ask for: some servers let a client ask for nothing else. */
static int register_client(const struct cell__oauth_issuer *issuer, const char *redirect, const char *scope, json_t *kept,
			   struct cell_error *err)
{
	static const char key[] = "token_endpoint_auth_methods_supported";
	const char *endpoint = cell__oauth_endpoint(issuer, "registration_endpoint", err);
	if (!endpoint)
		return cell_fail(err, CELL_E_FORBIDDEN, 0,
				 "the authorization server %.80s accepts no new clients: set client_id in the tool's definition",
				 issuer->issuer);
	const char *method = !json_object_get(issuer->metadata, key) || lists(issuer->metadata, key, "none") ? "none"
			     : lists(issuer->metadata, key, "client_secret_basic")                           ? "client_secret_basic"
													     : "client_secret_post";
	json_t *ask = json_pack("{s:s, s:[s], s:[s,s], s:[s], s:s, s:s}", "client_name", "Workcell", "redirect_uris", redirect,
				"grant_types", "authorization_code", "refresh_token", "response_types", "code",
				"token_endpoint_auth_method", method, "application_type",
				strncmp(redirect, "https://", 8) == 0 ? "web" : "native");
	if (ask && scope)
		json_object_set_new(ask, "scope", json_string(scope));
	CELL_AUTO_FREE char *body = ask ? json_dumps(ask, JSON_COMPACT) : NULL;
	json_t *client = NULL;
	long status;
	json_decref(ask);
	if (!body ||
	    cell__oauth_post(endpoint, "Content-Type: application/json", body, NULL, issuer->allow_private, &client, &status, err) < 0)
		return cell_fail_wrap(err, "the registration of a client");
	const char *id = text_of(client, "client_id");
	int rc = id ? set_client(kept, issuer->metadata, id, text_of(client, "client_secret"),
				 text_of(client, "token_endpoint_auth_method"), err)
		    : cell_fail(err, CELL_E_PROTOCOL, 0, "the authorization server registered a client without an id");
	json_decref(client);
	return rc;
}

/* A client that was registered before stays with its issuer; its redirect may have any port (RFC 8252). */
static int find_client(const struct cell__oauth *oauth, const struct cell__oauth_issuer *issuer, const char *redirect, const char *scope,
		       json_t *kept, struct cell_error *err)
{
	if (oauth->client_id)
		return set_client(kept, issuer->metadata, oauth->client_id, oauth->client_secret, NULL, err);
	if (oauth->client_metadata_url && json_is_true(json_object_get(issuer->metadata, "client_id_metadata_document_supported")))
		return set_client(kept, issuer->metadata, oauth->client_metadata_url, NULL, NULL, err);
	return register_client(issuer, redirect, scope, kept, err);
}

/* ---- the loopback redirect ---- */

static int listen_here(char redirect[64], struct cell_error *err)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t size = sizeof address;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, 16) < 0 ||
	    getsockname(fd, (struct sockaddr *)&address, &size) < 0) {
		cell_fail(err, CELL_E_IO, errno, "listen for the redirect of the login");
		if (fd >= 0)
			close(fd);
		return -1;
	}
	snprintf(redirect, 64, "http://127.0.0.1:%u/callback", ntohs(address.sin_port));
	return fd;
}

static bool readable(int fd, int64_t until_us)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	int64_t left = (until_us - cell__now_us()) / 1000;
	return left > 0 && poll(&poll_fd, 1, left > 1000000 ? 1000000 : (int)left) > 0;
}

static void reply(int fd, bool good)
{
	static const char good_text[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 49\r\n\r\n"
					"You are logged in. This window may be closed now\n";
	static const char bad_text[] = "HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
	const char *text = good ? good_text : bad_text;
	(void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* One request: the query of the redirect, if it came to its path and name; free() it. NULL: it was something else. */
static char *read_visit(int fd, const char *redirect)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char bytes[4096];
	int64_t until = cell__now_us() + VISIT_MS * 1000;
	while (text.size < MAX_REQUEST && !(text.data && strstr(text.data, "\r\n\r\n"))) {
		ssize_t n = readable(fd, until) ? recv(fd, bytes, sizeof bytes, 0) : -1;
		if (n <= 0 || memchr(bytes, '\0', (size_t)n) || cell__buf_add(&text, bytes, (size_t)n) < 0)
			return NULL;
	}
	char *line_end = text.data ? strstr(text.data, "\r\n") : NULL;
	if (!line_end || strncmp(text.data, "GET /callback?", 14) != 0)
		return NULL;
	/* Another name for this address would be a page that plays with DNS. */
	CELL_AUTO_FREE char *host = NULL;
	if (asprintf(&host, "\r\nhost: %.*s\r\n", (int)strcspn(redirect + 7, "/"), redirect + 7) < 0 || !strcasestr(text.data, host))
		return NULL;
	const char *query = text.data + 14;
	return cell__strndup(query, strcspn(query, " \r"));
}

/* The query that a person's browser brings; free() it. */
static char *await_redirect(int fd, const char *redirect, const char *state, int64_t until_us, struct cell_error *err)
{
	for (unsigned visits = 0; visits < MAX_VISITS && readable(fd, until_us); visits++) {
		CELL_AUTO_FD int visitor = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		CELL_AUTO_FREE char *query = visitor >= 0 ? read_visit(visitor, redirect) : NULL;
		CELL_AUTO_FREE char *given = query ? cell__query_value(query, strlen(query), "state") : NULL;
		/* Anybody may call us here; only the answer to our own link knows the state. */
		bool good = given && strlen(given) == strlen(state) && CRYPTO_memcmp(given, state, strlen(state)) == 0;
		if (visitor >= 0)
			reply(visitor, good);
		if (good)
			return cell__take_ptr(query);
	}
	cell_fail(err, CELL_E_TIMEOUT, 0, "nobody completed the login in time");
	return NULL;
}

/* The code of the answer; free() it. */
static char *take_code(const struct cell__oauth_issuer *issuer, const char *query, struct cell_error *err)
{
	size_t size = strlen(query);
	CELL_AUTO_FREE char *iss = cell__query_value(query, size, "iss");
	CELL_AUTO_FREE char *error = cell__query_value(query, size, "error");
	bool promised = json_is_true(json_object_get(issuer->metadata, "authorization_response_iss_parameter_supported"));
	if ((promised && !iss) || (iss && strcmp(iss, issuer->issuer) != 0)) {
		cell_fail(err, CELL_E_FORBIDDEN, 0, "the login was answered by another authorization server than %.120s", issuer->issuer);
		return NULL;
	}
	char *code = error ? NULL : cell__query_value(query, size, "code");
	if (!code)
		cell_fail(err, CELL_E_FORBIDDEN, 0, "the authorization server refused the login: %.60s",
			  error && strspn(error, "abcdefghijklmnopqrstuvwxyz_") == strlen(error) ? error : "no code");
	return code;
}

/* ---- tokens ---- */

static int keep_tokens(const struct cell__oauth *oauth, json_t *kept, const json_t *tokens, struct cell_error *err)
{
	static const char *const copied[] = { "access_token", "refresh_token", "scope" };
	const char *access = text_of(tokens, "access_token"), *type = text_of(tokens, "token_type");
	if (!access || !*access || !type || strcasecmp(type, "Bearer") != 0)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the authorization server gave no bearer token");
	for (const char *at = access; *at; at++)
		if (*at <= 0x20 || *at >= 0x7f)
			return cell_fail(err, CELL_E_PROTOCOL, 0, "the authorization server gave a token that no header can hold");
	for (size_t i = 0; i < sizeof copied / sizeof *copied; i++)
		if (text_of(tokens, copied[i]))
			json_object_set(kept, copied[i], json_object_get(tokens, copied[i]));
	const json_t *lasts = json_object_get(tokens, "expires_in");
	json_object_del(kept, "expires");
	if (json_is_number(lasts) && json_number_value(lasts) < 1e9)
		json_object_set_new(kept, "expires", json_integer((json_int_t)time(NULL) + (json_int_t)json_number_value(lasts)));
	return cell__oauth_keep(oauth, kept, err);
}

static int add_client(const json_t *kept, struct cell__buf *body, bool *first, struct cell__buf *authorization)
{
	const char *id = text_of(kept, "client_id"), *secret = text_of(kept, "client_secret"), *method = text_of(kept, "method");
	CELL_AUTO_BUF struct cell__buf both = CELL_BUF_INIT, raw = CELL_BUF_INIT;
	bool none = true;
	if (!secret || !method || strcmp(method, "client_secret_basic") != 0) {
		int rc = cell__buf_add_query(body, first, "client_id", id);
		if (rc == 0 && secret && method && strcmp(method, "client_secret_post") == 0)
			rc = cell__buf_add_query(body, first, "client_secret", secret);
		return rc;
	}
	/* Both parts are escaped as in a form (RFC 6749, 2.3.1); add_query() writes "=id" and "=secret". */
	if (cell__buf_add_query(&both, &none, "", id) < 0 || cell__buf_add_str(&raw, both.data + 1) < 0 || cell__buf_add(&raw, ":", 1) < 0)
		return -1;
	both.size = 0;
	none = true;
	if (cell__buf_add_query(&both, &none, "", secret) < 0 || cell__buf_add_str(&raw, both.data + 1) < 0 ||
	    cell__buf_add_str(authorization, "Authorization: Basic ") < 0)
		return -1;
	return cell__buf_add_base64(authorization, raw.data, raw.size);
}

/* grant: name and value pairs, NULL-terminated. */
static int get_tokens(const struct cell__oauth *oauth, json_t *kept, const char *const *grant, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, authorization = CELL_BUF_INIT;
	bool first = true;
	int rc = 0;
	long status;
	json_t *tokens = NULL;
	for (size_t i = 0; rc == 0 && grant[i]; i += 2)
		rc = cell__buf_add_query(&body, &first, grant[i], grant[i + 1]);
	rc = rc < 0 ? rc : cell__buf_add_query(&body, &first, "resource", text_of(kept, "resource"));
	rc = rc < 0 ? rc : add_client(kept, &body, &first, &authorization);
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	rc = cell__oauth_post(text_of(kept, "token_endpoint"), FORM, body.data, authorization.data,
			      json_is_true(json_object_get(kept, "allow_private")), &tokens, &status, err);
	explicit_bzero(body.data, body.size);
	if (rc == 0)
		rc = keep_tokens(oauth, kept, tokens, err);
	json_decref(tokens);
	return rc;
}

/* ---- login ---- */

/* The words of both, each once. */
static char *join_scopes(const char *one, const char *other, const char *third)
{
	CELL_AUTO_BUF struct cell__buf all = CELL_BUF_INIT;
	const char *lists_of[] = { one, other, third };
	for (size_t i = 0; i < 3; i++) {
		for (const char *at = lists_of[i] ? lists_of[i] : ""; *at;) {
			size_t size = strcspn(at, " ");
			bool known = false;
			for (const char *old = all.size ? all.data : ""; *old && !known;) {
				size_t n = strcspn(old, " ");
				known = n == size && strncmp(old, at, n) == 0;
				old += n + strspn(old + n, " ");
			}
			if (size > 0 && !known && all.size < CELL_OAUTH_LIMIT_VALUE &&
			    cell__buf_printf(&all, "%s%.*s", all.size ? " " : "", (int)size, at) < 0)
				return NULL;
			at += size + strspn(at + size, " ");
		}
	}
	return all.size ? cell__buf_take(&all) : NULL;
}

static char *make_link(const struct cell__oauth_issuer *issuer, const json_t *kept, const char *redirect, const char *state,
		       const char *verifier, const char *scope, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf link = CELL_BUF_INIT, challenge = CELL_BUF_INIT;
	unsigned char hash[EVP_MAX_MD_SIZE];
	unsigned size;
	bool first = true;
	const char *endpoint = cell__oauth_endpoint(issuer, "authorization_endpoint", err);
	if (!endpoint)
		return NULL;
	int rc = EVP_Digest(verifier, strlen(verifier), hash, &size, EVP_sha256(), NULL) == 1 ? 0 : -1;
	rc = rc < 0 ? rc : cell__buf_add_base64url(&challenge, hash, size);
	rc = rc < 0 ? rc : cell__buf_printf(&link, "%s%c", endpoint, strchr(endpoint, '?') ? '&' : '?') < 0 ? -1 : 0;
	const char *pairs[] = { "response_type",
				"code",
				"client_id",
				text_of(kept, "client_id"),
				"redirect_uri",
				redirect,
				"state",
				state,
				"code_challenge",
				challenge.data,
				"code_challenge_method",
				"S256",
				"resource",
				issuer->resource,
				NULL };
	for (size_t i = 0; rc == 0 && pairs[i]; i += 2)
		rc = cell__buf_add_query(&link, &first, pairs[i], pairs[i + 1]);
	if (rc == 0 && scope)
		rc = cell__buf_add_query(&link, &first, "scope", scope);
	/* OpenID Connect gives no refresh token without that (core, 11). */
	if (rc == 0 && lists(issuer->metadata, "scopes_supported", OFFLINE))
		rc = cell__buf_add_query(&link, &first, "prompt", "consent");
	if (rc == 0)
		return cell__buf_take(&link);
	cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return NULL;
}

/* Our client there, the link, and what the answer to it is checked with. */
static int make_pending(const struct cell__oauth *oauth, const char *prefix, struct cell__oauth_pending *pending, struct cell_error *err)
{
	const struct cell__oauth_issuer *issuer = &pending->issuer;
	CELL_AUTO_BUF struct cell__buf state = CELL_BUF_INIT, verifier = CELL_BUF_INIT;
	bool offline = lists(issuer->metadata, "scopes_supported", OFFLINE);
	CELL_AUTO_FREE char *more = join_scopes(oauth->scope, text_of(pending->kept, "scope"), offline ? OFFLINE : NULL);
	CELL_AUTO_FREE char *scope = join_scopes(issuer->scope, more, NULL);
	if (find_client(oauth, issuer, pending->redirect, scope, pending->kept, err) < 0)
		return -1;
	if (cell__buf_add_str(&state, prefix) < 0 || random_text(&state) < 0 || random_text(&verifier) < 0)
		return cell_fail(err, CELL_E_IO, errno, "get random bytes");
	pending->state = cell__buf_take(&state);
	pending->verifier = cell__buf_take(&verifier);
	pending->link = make_link(issuer, pending->kept, pending->redirect, pending->state, pending->verifier, scope, err);
	return pending->link ? 0 : -1;
}

int cell__oauth_begin(const struct cell__oauth *oauth, const char *redirect, const char *prefix, struct cell__oauth_pending *ret_pending,
		      struct cell_error *err)
{
	struct cell__oauth_pending pending = { .redirect = cell__strdup(redirect) };
	json_t *before = NULL;
	if (!pending.redirect)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	int rc = cell__oauth_find(oauth, &pending.issuer, err);
	const char *endpoint = rc == 0 ? cell__oauth_endpoint(&pending.issuer, "token_endpoint", err) : NULL;
	if (endpoint) {
		pending.kept = json_pack("{s:s, s:s, s:s, s:s, s:b}", "url", oauth->url, "issuer", pending.issuer.issuer, "resource",
					 pending.issuer.resource, "token_endpoint", endpoint, "allow_private",
					 pending.issuer.allow_private);
		/* What another issuer gave is of no use here, and must not be shown to this one. */
		if (cell__oauth_load(oauth, &before, err) == 0 && strcmp(text_of(before, "issuer") ?: "", pending.issuer.issuer) == 0 &&
		    text_of(before, "scope"))
			json_object_set(pending.kept, "scope", json_object_get(before, "scope"));
		rc = pending.kept ? make_pending(oauth, prefix, &pending, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	} else {
		rc = -1;
	}
	json_decref(before);
	if (rc < 0)
		cell__oauth_pending_finish(&pending);
	else
		*ret_pending = pending;
	return rc;
}

int cell__oauth_complete(const struct cell__oauth *oauth, struct cell__oauth_pending *pending, const char *query, struct cell_error *err)
{
	CELL_AUTO_FREE char *code = take_code(&pending->issuer, query, err);
	if (!code)
		return -1;
	const char *grant[] = { "grant_type",    "authorization_code", "code", code, "redirect_uri", pending->redirect,
				"code_verifier", pending->verifier,    NULL };
	int rc = get_tokens(oauth, pending->kept, grant, err);
	explicit_bzero(code, strlen(code));
	return rc;
}

void cell__oauth_pending_finish(struct cell__oauth_pending *pending)
{
	if (pending->verifier)
		explicit_bzero(pending->verifier, strlen(pending->verifier));
	cell__oauth_issuer_finish(&pending->issuer);
	json_decref(pending->kept);
	free(pending->redirect);
	free(pending->state);
	free(pending->verifier);
	free(pending->link);
	*pending = (struct cell__oauth_pending){ 0 };
}

int cell__oauth_login(const struct cell__oauth *oauth, const struct cell__oauth_login *login, struct cell_error *err)
{
	char redirect[64];
	struct cell__oauth_pending pending = { 0 };
	CELL_AUTO_FD int fd = listen_here(redirect, err);
	if (fd < 0 || cell__oauth_begin(oauth, redirect, "", &pending, err) < 0)
		return -1;
	int64_t until = cell__now_us() + (login->timeout_ms > 0 ? login->timeout_ms : CELL_OAUTH_LOGIN_MS) * 1000;
	int rc = login->show(login->arg, pending.link) < 0 ? cell_fail(err, CELL_E_CANCELLED, 0, "the login was given up") : 0;
	CELL_AUTO_FREE char *query = rc == 0 ? await_redirect(fd, redirect, pending.state, until, err) : NULL;
	rc = query ? cell__oauth_complete(oauth, &pending, query, err) : -1;
	cell__oauth_pending_finish(&pending);
	return rc;
}

/* ---- use ---- */

static int renew_tokens(const struct cell__oauth *oauth, json_t *kept, struct cell_error *err)
{
	const char *refresh = text_of(kept, "refresh_token");
	if (!refresh || !text_of(kept, "token_endpoint") || !text_of(kept, "client_id") || !text_of(kept, "resource"))
		return cell_fail(err, CELL_E_FORBIDDEN, 0, "the login at %.120s has expired", oauth->url);
	const char *grant[] = { "grant_type", "refresh_token", "refresh_token", refresh, NULL };
	return get_tokens(oauth, kept, grant, err);
}

int cell__oauth_header(const struct cell__oauth *oauth, bool renew, char **ret_header, struct cell_error *err)
{
	json_t *kept = NULL;
	if (cell__oauth_load(oauth, &kept, err) < 0)
		return -1;
	json_int_t expires = json_integer_value(json_object_get(kept, "expires"));
	int rc = 0;
	if (renew || !text_of(kept, "access_token") || (expires && (json_int_t)time(NULL) >= expires - CELL_OAUTH_EARLY_S))
		rc = renew_tokens(oauth, kept, err);
	if (rc == 0 && asprintf(ret_header, "Authorization: Bearer %s", text_of(kept, "access_token")) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_decref(kept);
	return rc;
}

int cell__oauth_logout(const struct cell__oauth *oauth, struct cell_error *err)
{
	return cell__oauth_forget(oauth, err);
}
