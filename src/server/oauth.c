/*
 * See oauth.h.  An exchange is one conversation with the issuer: the fetch of its keys (metadata first, unless the configuration has their
 * address), of which there is at most one, or a question about one token.  Requests wait at an exchange, and are resumed when it ends:
 *
 *     exchange:  metadata 1 ─404─▶ metadata 2 ─404─▶ metadata 3      question
 *                     └──────────────┴──jwks_uri──────┴──▶ keys         │
 *                                                            └──────────┴──▶ ended: its waits have a verdict, their requests resume
 *
 * Keys are fetched when the first token comes, when a token names a key that is not known (at most every RETRY_US), and every REFRESH_US.  Keys
 * that could not be refreshed for STALE_US are not used any more: a key that the issuer withdrew would be accepted for ever.
 */
#define _GNU_SOURCE
#include "server/oauth.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>

#include "loop/http.h"
#include "wire/access.h"
#include "wire/jwt.h"
#include "wire/oauth.h"

#define RETRY_US INT64_C(10000000)
#define REFRESH_US INT64_C(600000000)
#define STALE_US INT64_C(3600000000)
#define CONNECT_MS 5000
#define EXCHANGE_MS 10000
#define CONNECTIONS 16
#define METADATA_PLACES 3

struct cell__oauth_wait {
	struct cell__request *request;
	struct exchange *exchange; /* NULL: it has ended */
	struct cell__oauth_wait *next, **at;
	enum cell__oauth_verdict verdict; /* WAITING: look again, the keys may be there */
	struct cell__token who;
	struct cell_error err;
};

struct exchange {
	struct cell__http_transfer transfer; /* first */
	struct cell__oauth_resource *oauth;
	struct exchange *next, **at;
	struct cell__oauth_wait *waits;
	struct cell__buf body, form;
	char *url;
	int place; /* of the metadata that is asked for; METADATA_PLACES: the keys */
	bool is_question;
	unsigned char hash[CELL_ACCESS_HASH_BYTES]; /* of the token in question */
};

struct accepted {
	int64_t until_us; /* 0: free */
	struct cell__token who; /* with its hash */
};

struct cell__oauth_resource {
	struct cell_server *server;
	struct cell__oauth_config *config;
	struct cell__http *http; /* NULL: not running */
	struct cell__jwks keys;
	int64_t keys_us, tried_us; /* when keys were received, and last asked for; 0: never */
	struct cell_error problem; /* of the last fetch; code 0: none */
	struct exchange *exchanges;
	unsigned waiting;
	struct accepted *accepted; /* CELL_OAUTH_ACCEPTED, by hash */
};

/* ---- tokens that are known ---- */

static struct accepted *place_of(const struct cell__oauth_resource *oauth, const unsigned char *hash)
{
	return &oauth->accepted[(hash[0] | (unsigned)hash[1] << 8) % CELL_OAUTH_ACCEPTED];
}

static bool is_accepted(const struct cell__oauth_resource *oauth, const unsigned char *hash, struct cell__token *ret_who)
{
	const struct accepted *place = place_of(oauth, hash);
	if (place->until_us <= cell__now_us() || !cell__access_same(hash, place->who.hash))
		return false;
	*ret_who = place->who;
	return true;
}

static void accept_for(struct cell__oauth_resource *oauth, const struct cell__token *who, const json_t *claims, int64_t now_s,
		       int64_t max_s)
{
	const json_t *expires = json_object_get(claims, "exp");
	double left_s = expires ? json_number_value(expires) + (double)oauth->config->skew_s - (double)now_s : (double)max_s;
	if (left_s > (double)max_s)
		left_s = (double)max_s;
	if (left_s > 0)
		*place_of(oauth, who->hash) = (struct accepted){ .until_us = cell__now_us() + (int64_t)(left_s * 1e6), .who = *who };
}

static void forget_accepted(struct cell__oauth_resource *oauth)
{
	OPENSSL_cleanse(oauth->accepted, CELL_OAUTH_ACCEPTED * sizeof *oauth->accepted);
}

/* ---- exchanges ---- */

static void leave(struct cell__oauth_wait *wait)
{
	if (!wait->exchange)
		return;
	wait->exchange->oauth->waiting--;
	wait->exchange = NULL;
	*wait->at = wait->next;
	if (wait->next)
		wait->next->at = wait->at;
}

void cell__oauth_leave(struct cell__request *request)
{
	if (!request->wait)
		return;
	leave(request->wait);
	OPENSSL_cleanse(request->wait, sizeof *request->wait);
	free(cell__take_ptr(request->wait));
}

static void exchange_free(struct exchange *exchange)
{
	*exchange->at = exchange->next;
	if (exchange->next)
		exchange->next->at = exchange->at;
	cell__http_finish(&exchange->transfer);
	if (exchange->form.data)
		OPENSSL_cleanse(exchange->form.data, exchange->form.size);
	cell__buf_finish(&exchange->form);
	cell__buf_finish(&exchange->body);
	free(exchange->url);
	free(exchange);
}

/* All that wait are resumed.  The transfer is not running any more. */
static void exchange_end(struct exchange *exchange, enum cell__oauth_verdict verdict, const struct cell__token *who,
			 const struct cell_error *err)
{
	while (exchange->waits) {
		struct cell__oauth_wait *wait = exchange->waits;
		leave(wait);
		wait->verdict = verdict;
		if (who)
			wait->who = *who;
		if (err)
			wait->err = *err;
		cell__request_resume(wait->request);
	}
	exchange_free(exchange);
}

static size_t handle_body(struct cell__http_transfer *transfer, const char *bytes, size_t size)
{
	struct exchange *exchange = (struct exchange *)transfer;
	if (exchange->body.size + size > CELL_JWT_LIMIT_JSON_BYTES || cell__buf_add(&exchange->body, bytes, size) < 0)
		return 0;
	return size;
}

static int begin(struct exchange *exchange)
{
	struct cell__oauth_resource *oauth = exchange->oauth;
	struct cell__http_request request = {
		.method = exchange->is_question ? "POST" : "GET",
		.url = exchange->url,
		.body = exchange->is_question ? exchange->form.data : NULL,
		.body_size = exchange->form.size,
		.ca = oauth->config->ca,
		.connect_ms = CONNECT_MS,
		.timeout_ms = EXCHANGE_MS,
		.repeats = true, /* a question about a token changes nothing */
	};
	exchange->body.size = 0;
	return exchange->url && cell__http_start(oauth->http, &exchange->transfer, &request) == 0 ? 0 : -1;
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code);

static struct exchange *exchange_create(struct cell__oauth_resource *oauth, bool is_question)
{
	struct exchange *exchange = cell__alloc(1, sizeof *exchange);
	if (!exchange)
		return NULL;
	*exchange = (struct exchange){
		.transfer = { .done = handle_done, .body = handle_body },
		.oauth = oauth,
		.next = oauth->exchanges,
		.at = &oauth->exchanges,
		.body = CELL_BUF_INIT,
		.form = CELL_BUF_INIT,
		.is_question = is_question,
	};
	if (exchange->next)
		exchange->next->at = &exchange->next;
	oauth->exchanges = exchange;
	if (cell__http_add_header(&exchange->transfer, "Accept: application/json") < 0) {
		exchange_free(exchange);
		return NULL;
	}
	return exchange;
}

/* ---- keys ---- */

/* RFC 8414 first, then OpenID Connect's place, then the place between the two. */
static char *metadata_url(const char *issuer, int place)
{
	struct cell__oauth_url url;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	if (cell__oauth_url_read(issuer, &url) < 0)
		return NULL;
	int size = (int)url.path_size - (url.path_size > 0 && url.path[url.path_size - 1] == '/');
	int rc = place == 0   ? cell__buf_printf(&out, "%s/.well-known/oauth-authorization-server%.*s", url.origin, size, url.path)
		 : place == 1 ? cell__buf_printf(&out, "%s%.*s/.well-known/openid-configuration", url.origin, size, url.path)
			      : cell__buf_printf(&out, "%s/.well-known/openid-configuration%.*s", url.origin, size, url.path);
	return rc < 0 ? NULL : cell__buf_take(&out);
}

static int fetch_next(struct exchange *exchange, char *url)
{
	free(exchange->url);
	exchange->url = url;
	return begin(exchange);
}

/* The address of the keys by the issuer's metadata; NULL and err. */
static char *keys_url(const struct exchange *exchange, struct cell_error *err)
{
	const struct cell__oauth_config *config = exchange->oauth->config;
	json_t *root = json_loadb(exchange->body.data ? exchange->body.data : "", exchange->body.size, JSON_REJECT_DUPLICATES, NULL);
	const char *issuer = json_string_value(json_object_get(root, "issuer")),
		   *keys = json_string_value(json_object_get(root, "jwks_uri"));
	struct cell__oauth_url url;
	char *copy = NULL;
	if (!issuer || strcmp(issuer, config->issuer) != 0)
		cell_fail(err, CELL_E_INVALID, 0, "%.100s is the metadata of another issuer", exchange->url);
	else if (!keys || strlen(keys) > CELL_JWT_LIMIT_TEXT || cell__oauth_url_read(keys, &url) < 0 ||
		 (!url.secure && !cell__oauth_is_loopback(url.host)))
		cell_fail(err, CELL_E_INVALID, 0, "%.100s has no valid jwks_uri", exchange->url);
	else if (!(copy = cell__strdup(keys)))
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_decref(root);
	return copy;
}

static void keys_failed(struct exchange *exchange, const struct cell_error *err)
{
	struct cell__oauth_resource *oauth = exchange->oauth;
	oauth->problem = *err;
	cell__server_log(oauth->server, CELL_LOG_WARN, "the keys of %s could not be fetched: %s", oauth->config->issuer, err->msg);
	exchange_end(exchange, CELL_OAUTH_WAITING, NULL, NULL);
}

static void keys_came(struct exchange *exchange)
{
	struct cell__oauth_resource *oauth = exchange->oauth;
	struct cell__jwks keys;
	struct cell_error err, wrapped;
	if (cell__jwks_parse(exchange->body.data ? exchange->body.data : "", exchange->body.size, &keys, &err) < 0) {
		cell_fail(&wrapped, err.code, 0, "%.100s: %.100s", exchange->url, err.msg);
		keys_failed(exchange, &wrapped);
		return;
	}
	cell__jwks_finish(&oauth->keys);
	oauth->keys = keys;
	oauth->keys_us = cell__now_us();
	oauth->problem.code = 0;
	forget_accepted(oauth); /* those of withdrawn keys */
	exchange_end(exchange, CELL_OAUTH_WAITING, NULL, NULL);
}

static void handle_keys(struct exchange *exchange, CURLcode code)
{
	const struct cell__oauth_config *config = exchange->oauth->config;
	long status = cell__http_status(&exchange->transfer);
	struct cell_error err;
	char *url;
	if (code == CURLE_OK && status == 200 && exchange->place == METADATA_PLACES) {
		keys_came(exchange);
		return;
	}
	if (code == CURLE_OK && status == 200) {
		url = keys_url(exchange, &err);
		if (url) {
			exchange->place = METADATA_PLACES;
			if (fetch_next(exchange, url) == 0)
				return;
			cell_fail(&err, CELL_E_NOMEM, 0, "out of memory");
		}
	} else if (code == CURLE_OK && status >= 400 && status < 500 && exchange->place + 1 < METADATA_PLACES) {
		exchange->place++;
		if (fetch_next(exchange, metadata_url(config->issuer, exchange->place)) == 0)
			return;
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory");
	} else if (code == CURLE_OK) {
		cell_fail(&err, CELL_E_IO, 0, "%.100s: status %ld", exchange->url, status);
	} else {
		cell_fail(&err, CELL_E_IO, 0, "%.100s: %.100s", exchange->url, cell__http_explain(&exchange->transfer, code));
	}
	keys_failed(exchange, &err);
}

/* The running fetch of the keys, or a new one; NULL: it is too early for another. */
static struct exchange *fetch_keys(struct cell__oauth_resource *oauth)
{
	const struct cell__oauth_config *config = oauth->config;
	int64_t now_us = cell__now_us();
	for (struct exchange *at = oauth->exchanges; at; at = at->next) {
		if (!at->is_question)
			return at;
	}
	if (!oauth->http || (oauth->tried_us && now_us - oauth->tried_us < RETRY_US))
		return NULL;
	struct exchange *exchange = exchange_create(oauth, false);
	if (!exchange)
		return NULL;
	oauth->tried_us = now_us;
	exchange->place = config->jwks ? METADATA_PLACES : 0;
	if (fetch_next(exchange, config->jwks ? cell__strdup(config->jwks) : metadata_url(config->issuer, 0)) < 0) {
		exchange_free(exchange);
		return NULL;
	}
	return exchange;
}

/* ---- questions about tokens ---- */

static int take_claims(struct cell__oauth_resource *oauth, const json_t *claims, const unsigned char *hash, bool answered, int64_t max_s,
		       struct cell__token *ret_who, struct cell_error *err)
{
	const struct cell__oauth_config *config = oauth->config;
	int64_t now_s = (int64_t)time(NULL);
	struct cell__claims_rules rules = { .issuer = config->issuer,
					    .audiences = (const char *const *)config->audiences,
					    .skew_s = config->skew_s,
					    .answered = answered };
	struct cell__token who;
	if (cell__claims_check(claims, &rules, now_s, err) < 0 || cell__oauth_principal(config, claims, &who, err) < 0)
		return -1;
	memcpy(who.hash, hash, sizeof who.hash);
	if (max_s > 0)
		accept_for(oauth, &who, claims, now_s, max_s);
	*ret_who = who;
	return 0;
}

static void handle_answer(struct exchange *exchange, CURLcode code)
{
	struct cell__oauth_resource *oauth = exchange->oauth;
	long status = cell__http_status(&exchange->transfer);
	struct cell__token who;
	struct cell_error err;
	json_t *claims = NULL;
	if (code == CURLE_OK && status == 200)
		claims = json_loadb(exchange->body.data ? exchange->body.data : "", exchange->body.size, JSON_REJECT_DUPLICATES, NULL);
	if (!json_is_boolean(json_object_get(claims, "active"))) {
		cell_fail(&err, CELL_E_IO, 0, "the issuer did not answer about a token: %.100s",
			  code != CURLE_OK ? cell__http_explain(&exchange->transfer, code)
			  : status != 200  ? "its status is not 200"
					   : "the answer is not valid");
		cell__server_log(oauth->server, CELL_LOG_WARN, "%s (%s, status %ld)", err.msg, exchange->url, status);
		exchange_end(exchange, CELL_OAUTH_BROKEN, NULL, &err);
	} else if (!json_is_true(json_object_get(claims, "active"))) {
		cell_fail(&err, CELL_E_AUTH, 0, "the token is not active");
		exchange_end(exchange, CELL_OAUTH_REFUSED, NULL, &err);
	} else if (take_claims(oauth, claims, exchange->hash, true, oauth->config->cache_s, &who, &err) < 0) {
		exchange_end(exchange, CELL_OAUTH_REFUSED, NULL, &err);
	} else {
		exchange_end(exchange, CELL_OAUTH_GOOD, &who, NULL);
		OPENSSL_cleanse(&who, sizeof who);
	}
	json_decref(claims);
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct exchange *exchange = (struct exchange *)transfer;
	if (exchange->is_question)
		handle_answer(exchange, code);
	else
		handle_keys(exchange, code);
}

/* RFC 6749: both parts of Basic credentials are form-encoded. */
static int add_credentials(struct exchange *exchange, const struct cell__oauth_config *config)
{
	CELL_AUTO_BUF struct cell__buf pair = CELL_BUF_INIT, line = CELL_BUF_INIT;
	bool first = true;
	int rc = cell__buf_add_query(&pair, &first, config->client_id, config->client_secret);
	char *between = rc == 0 ? strchr(pair.data, '=') : NULL; /* no other is left in encoded text */
	if (!between)
		return -1;
	*between = ':';
	rc = cell__buf_add_str(&line, "Authorization: Basic ") < 0 || cell__buf_add_base64(&line, pair.data, pair.size) < 0 ||
			     cell__http_add_header(&exchange->transfer, line.data) < 0
		     ? -1
		     : 0;
	OPENSSL_cleanse(pair.data, pair.size);
	if (line.data)
		OPENSSL_cleanse(line.data, line.size);
	return rc;
}

/* The running question about this token, or a new one; NULL: out of memory. */
static struct exchange *ask(struct cell__oauth_resource *oauth, const char *token, const unsigned char *hash)
{
	const struct cell__oauth_config *config = oauth->config;
	bool first = true;
	for (struct exchange *at = oauth->exchanges; at; at = at->next) {
		if (at->is_question && memcmp(at->hash, hash, sizeof at->hash) == 0)
			return at;
	}
	struct exchange *exchange = oauth->http ? exchange_create(oauth, true) : NULL;
	if (!exchange)
		return NULL;
	memcpy(exchange->hash, hash, sizeof exchange->hash);
	if (cell__buf_add_query(&exchange->form, &first, "token", token) < 0 ||
	    cell__buf_add_query(&exchange->form, &first, "token_type_hint", "access_token") < 0 || add_credentials(exchange, config) < 0 ||
	    cell__http_add_header(&exchange->transfer, "Content-Type: application/x-www-form-urlencoded") < 0 ||
	    fetch_next(exchange, cell__strdup(config->introspection)) < 0) {
		exchange_free(exchange);
		return NULL;
	}
	return exchange;
}

/* ---- requests ---- */

static enum cell__oauth_verdict wait_for(struct cell__request *request, struct exchange *exchange, struct cell_error *err)
{
	struct cell__oauth_resource *oauth = request->server->oauth;
	struct cell__oauth_wait *wait = cell__alloc(1, sizeof *wait);
	if (!wait) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return CELL_OAUTH_BROKEN;
	}
	*wait = (struct cell__oauth_wait){
		.request = request, .exchange = exchange, .next = exchange->waits, .at = &exchange->waits, .verdict = CELL_OAUTH_WAITING
	};
	if (wait->next)
		wait->next->at = &wait->next;
	exchange->waits = wait;
	oauth->waiting++;
	request->wait = wait;
	return CELL_OAUTH_WAITING;
}

static enum cell__oauth_verdict check_jwt(struct cell__request *request, const char *token, const unsigned char *hash, bool waited,
					  struct cell_error *err)
{
	struct cell__oauth_resource *oauth = request->server->oauth;
	bool usable = oauth->keys_us && cell__now_us() - oauth->keys_us < STALE_US;
	struct cell__claims_rules rules = { .issuer = oauth->config->issuer,
					    .audiences = (const char *const *)oauth->config->audiences,
					    .skew_s = oauth->config->skew_s };
	struct cell__jwt jwt;
	if (cell__jwt_parse(token, strlen(token), oauth->config->algs, &jwt, err) < 0)
		return CELL_OAUTH_REFUSED;
	enum cell__oauth_verdict verdict = CELL_OAUTH_REFUSED;
	struct exchange *fetch = NULL;
	if (cell__claims_check(jwt.claims, &rules, (int64_t)time(NULL), err) == 0) { /* before anything costs more */
		enum cell__jwt_verdict found = usable ? cell__jwt_verify(&jwt, &oauth->keys) : CELL_JWT_UNKNOWN;
		if (found == CELL_JWT_GOOD)
			verdict = take_claims(oauth, jwt.claims, hash, false, REFRESH_US / 1000000, &request->who, err) == 0
					  ? CELL_OAUTH_GOOD
					  : CELL_OAUTH_REFUSED;
		else if (found == CELL_JWT_BAD)
			cell_fail(err, CELL_E_AUTH, 0, "the token's signature is not valid");
		else if (!waited && oauth->waiting < CELL_OAUTH_MAX_WAITING && (fetch = fetch_keys(oauth)))
			verdict = wait_for(request, fetch, err);
		else if (usable)
			cell_fail(err, CELL_E_AUTH, 0, "the token's key is not one of the issuer's");
		else {
			verdict = CELL_OAUTH_BROKEN;
			cell_fail(err, CELL_E_IO, 0, "the issuer's keys are not available");
		}
	}
	cell__jwt_finish(&jwt);
	return verdict;
}

static enum cell__oauth_verdict check_opaque(struct cell__request *request, const char *token, const unsigned char *hash,
					     struct cell_error *err)
{
	struct cell__oauth_resource *oauth = request->server->oauth;
	if (strlen(token) > CELL_JWT_LIMIT_BYTES) {
		cell_fail(err, CELL_E_AUTH, 0, "the token has more than %u bytes", CELL_JWT_LIMIT_BYTES);
		return CELL_OAUTH_REFUSED;
	}
	/* The issuer is not asked for whoever guesses. */
	if (!request->inner && cell__auth_is_locked(request->server, cell__request_address(request)))
		return CELL_OAUTH_LOCKED;
	struct exchange *question = oauth->waiting < CELL_OAUTH_MAX_WAITING ? ask(oauth, token, hash) : NULL;
	if (question)
		return wait_for(request, question, err);
	cell_fail(err, CELL_E_BUSY, 0, "too many tokens are being checked");
	return CELL_OAUTH_BROKEN;
}

enum cell__oauth_verdict cell__oauth_check(struct cell__request *request, const char *token, struct cell_error *err)
{
	struct cell__oauth_resource *oauth = request->server->oauth;
	unsigned char hash[CELL_ACCESS_HASH_BYTES];
	bool waited = request->wait;
	if (waited && request->wait->verdict != CELL_OAUTH_WAITING) {
		enum cell__oauth_verdict verdict = request->wait->verdict;
		request->who = request->wait->who;
		*err = request->wait->err;
		cell__oauth_leave(request);
		return verdict;
	}
	cell__oauth_leave(request);
	cell__access_hash(token, strlen(token), hash);
	if (is_accepted(oauth, hash, &request->who))
		return CELL_OAUTH_GOOD;
	return oauth->config->introspection ? check_opaque(request, token, hash, err) : check_jwt(request, token, hash, waited, err);
}

/* Characters that a quoted string of RFC 6750 must not have become apostrophes. */
static int add_quoted(struct cell__buf *out, const char *name, const char *text)
{
	int rc = cell__buf_printf(out, ", %s=\"", name);
	for (; *text && rc == 0; text++)
		rc = cell__buf_add(out, *text < ' ' || *text > '~' || *text == '"' || *text == '\\' ? "'" : text, 1);
	return rc < 0 ? -1 : cell__buf_add(out, "\"", 1);
}

char *cell__oauth_challenge_for(const struct cell_server *server, unsigned scopes, const char *error, const char *words)
{
	const struct cell__oauth_config *config = server->oauth->config;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT, names = CELL_BUF_INIT;
	if (cell__oauth_scopes(config, scopes, &names) < 0 || cell__buf_add_str(&out, "Bearer realm=\"workcell\"") < 0 ||
	    (error && (add_quoted(&out, "error", error) < 0 || add_quoted(&out, "error_description", words) < 0)) ||
	    add_quoted(&out, "resource_metadata", config->metadata) < 0 || (names.size > 0 && add_quoted(&out, "scope", names.data) < 0))
		return NULL;
	return cell__buf_take(&out);
}

/* ---- our own metadata ---- */

bool cell__oauth_is_metadata(const struct cell_server *server, const char *method, const char *path)
{
	size_t size = strlen(CELL_OAUTH_METADATA);
	if (!server->oauth || strcmp(method, "GET") != 0 || strncmp(path, CELL_OAUTH_METADATA, size) != 0)
		return false;
	return path[size] == '\0' || strcmp(strstr(server->oauth->config->metadata, CELL_OAUTH_METADATA), path) == 0;
}

static void handle_metadata(struct cell__request *request)
{
	const struct cell__oauth_config *config = request->server->oauth->config;
	json_t *scopes = json_array();
	for (size_t i = 0; i < config->n_scopes; i++)
		json_array_append_new(scopes, json_string(config->scopes[i].name));
	cell__answer_json(request, MHD_HTTP_OK,
			  json_pack("{s:s,s:[s],s:o,s:[s],s:s}", "resource", config->resource, "authorization_servers", config->issuer,
				    "scopes_supported", scopes, "bearer_methods_supported", "header", "resource_name", "Workcell"));
}

const struct cell__route cell__oauth_route = {
	.method = "GET", .path = CELL_OAUTH_METADATA, .scope = CELL_SCOPE_OPEN, .handle = handle_metadata, .status = 200, .unlogged = false
};

/* ---- its life ---- */

int cell__oauth_create(struct cell_server *server, struct cell__oauth_config *config, struct cell_error *err)
{
	struct cell__oauth_resource *oauth = cell__alloc(1, sizeof *oauth);
	struct accepted *accepted = cell__alloc(CELL_OAUTH_ACCEPTED, sizeof *accepted);
	if (!oauth || !accepted) {
		free(oauth);
		free(accepted);
		cell__oauth_config_destroy(config);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the server");
	}
	*oauth = (struct cell__oauth_resource){ .server = server, .config = config, .accepted = accepted };
	server->oauth = oauth;
	return 0;
}

const struct cell__oauth_config *cell__oauth_config_of(const struct cell_server *server)
{
	return server->oauth ? server->oauth->config : NULL;
}

int cell__oauth_start(struct cell_server *server, struct cell_error *err)
{
	return cell__http_create(server->engine->loop, CONNECTIONS, &server->oauth->http, err);
}

static void end_exchanges(struct cell__oauth_resource *oauth, const char *words)
{
	struct cell_error err;
	cell_fail(&err, CELL_E_BUSY, 0, "%s", words);
	while (oauth->exchanges) {
		cell__http_cancel(oauth->http, &oauth->exchanges->transfer);
		exchange_end(oauth->exchanges, CELL_OAUTH_BROKEN, NULL, &err);
	}
}

void cell__oauth_replace(struct cell_server *server, struct cell__oauth_config *config)
{
	struct cell__oauth_resource *oauth = server->oauth;
	end_exchanges(oauth, "the settings have changed: try again");
	forget_accepted(oauth);
	cell__jwks_finish(&oauth->keys);
	oauth->keys_us = oauth->tried_us = 0;
	cell__oauth_config_destroy(oauth->config);
	oauth->config = config;
}

void cell__oauth_stop(struct cell_server *server)
{
	if (server->oauth && server->oauth->http)
		end_exchanges(server->oauth, "the server is stopping");
}

void cell__oauth_close(struct cell_server *server, void (*closed)(void *arg), void *arg)
{
	cell__oauth_stop(server); /* requests may have come since */
	cell__http_close(cell__take_ptr(server->oauth->http), closed, arg);
}

void cell__oauth_destroy(struct cell_server *server)
{
	struct cell__oauth_resource *oauth = server->oauth;
	if (!oauth)
		return;
	forget_accepted(oauth);
	free(oauth->accepted);
	cell__jwks_finish(&oauth->keys);
	cell__oauth_config_destroy(oauth->config);
	free(cell__take_ptr(server->oauth));
}

void cell__oauth_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__oauth_resource *oauth = server->oauth;
	if (oauth && oauth->keys_us && now_us - oauth->keys_us > REFRESH_US && !server->stopping)
		(void)fetch_keys(oauth); /* a failure is logged, and the next try is soon */
}
