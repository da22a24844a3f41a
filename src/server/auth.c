/*
 * Authentication. Tokens are kept as SHA-256; the hash of the given token is compared with all of them, each in constant time.
 *
 * The token is checked first. Failures are counted by address: FAILURES at once, then one every REFILL_S seconds; past that the answer is
 * 429 instead of 401. A valid token is never refused for the failures of others behind the same proxy, unless it is so short that it can be
 * guessed: guessing is slow only because even the right guess is refused for a while.
 */
#define _GNU_SOURCE
#include "server/pool.h"

#include <openssl/crypto.h>
#include <string.h>

#include "base/file.h"
#include "base/hole.h"
#include "server/oauth.h"
#include "wire/access.h"
#include "wire/yaml.h"

#define FAILURES 20.0
#define REFILL_S 3.0
#define SHORT_TOKEN_BYTES 16u /* fewer can be guessed with enough time */
#define MAX_QUOTA (INT64_C(1) << 50)
#define ALL_SCOPES (CELL_SCOPE_READ | CELL_SCOPE_RUN | CELL_SCOPE_ADMIN | CELL_SCOPE_APPROVE | CELL_SCOPE_METRICS)

void cell__tokens_finish(struct cell__tokens *tokens)
{
	if (tokens->list)
		OPENSSL_cleanse(tokens->list, tokens->count * sizeof(*tokens->list));
	free(tokens->list);
	*tokens = (struct cell__tokens){ 0 };
}

static int add_token(struct cell__tokens *tokens, const struct cell__token *token, struct cell_error *err)
{
	struct cell__token *list;

	if (tokens->count == CELL_SERVER_MAX_TOKENS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u tokens", CELL_SERVER_MAX_TOKENS);
	list = cell__alloc(tokens->count + 1, sizeof(*list));
	if (!list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a token");
	if (tokens->count)
		memcpy(list, tokens->list, tokens->count * sizeof(*list));
	list[tokens->count] = *token;
	free(tokens->list);
	tokens->list = list;
	tokens->count++;
	return 0;
}

static int hash_token(const char *text, size_t size, struct cell__token *token, struct cell_error *err)
{
	if (!size)
		return cell_fail(err, CELL_E_INVALID, 0, "the token is empty");
	if (size > CELL_SERVER_MAX_TOKEN_BYTES)
		return cell_fail(err, CELL_E_INVALID, 0, "a token may have at most %u bytes, this one has %zu", CELL_SERVER_MAX_TOKEN_BYTES,
				 size);
	for (size_t i = 0; i < size; i++) {
		if (text[i] <= ' ' || text[i] > '~')
			return cell_fail(err, CELL_E_INVALID, 0, "a token must consist of visible ASCII characters");
	}
	cell__access_hash(text, size, token->hash);
	token->is_short = size < SHORT_TOKEN_BYTES;
	return 0;
}

static int single_token(const char *text, size_t size, struct cell__tokens *tokens, struct cell_error *err)
{
	struct cell__token token = { .name = "token", .scopes = ALL_SCOPES, .quotas = CELL_QUOTAS_NONE };

	while (size && strchr(" \t\r\n", text[size - 1]))
		size--;
	return hash_token(text, size, &token, err) < 0 ? -1 : add_token(tokens, &token, err);
}

bool cell__workspace_id_ok(const char *id)
{
	size_t size = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");

	return size && size <= CELL_SERVER_MAX_WORKSPACE && !id[size];
}

bool cell__token_may_enter(const struct cell__tokens *tokens, const struct cell__token *who, const char *workspace)
{
	if (*who->workspace || is_hole("workspaces"))
		return !*who->workspace || !strcmp(who->workspace, workspace);
	if (!*workspace || who->all_workspaces || who->scopes & CELL_SCOPE_ADMIN)
		return true;
	for (size_t i = 0; i < tokens->count; i++) {
		if (!strcmp(tokens->list[i].workspace, workspace))
			return false;
	}
	return true;
}

/* ---- a file of several ---- */

static void read_hash(struct cell__loader *loader, const struct cell__yaml *at, const char *text, struct cell__token *token)
{
	if (strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64) {
		cell__load_problem(loader, at, "sha256 must be 64 digits 0-9a-f");
		return;
	}
	for (size_t i = 0; i < 32; i++) {
		const char digits[] = { text[2 * i], text[2 * i + 1], '\0' };

		token->hash[i] = (unsigned char)strtoul(digits, NULL, 16);
	}
}

unsigned cell__scopes_read(struct cell__loader *loader, const struct cell__yaml *list)
{
	static const struct {
		const char *word;
		unsigned scope;
	} words[] = {
		{ "read", CELL_SCOPE_READ },       { "run", CELL_SCOPE_RUN },         { "admin", CELL_SCOPE_ADMIN | CELL_SCOPE_METRICS },
		{ "approve", CELL_SCOPE_APPROVE }, { "metrics", CELL_SCOPE_METRICS },
	};
	unsigned scopes = 0;

	if (!list)
		return CELL_SCOPE_READ | CELL_SCOPE_RUN;
	if (list->kind != CELL_YAML_SEQUENCE || !list->count) {
		cell__load_problem(loader, list, "scopes must be a list of read, run, admin, approve, metrics");
		return 0;
	}
	for (size_t i = 0; i < list->count; i++) {
		unsigned found = 0;

		for (size_t w = 0; list->items[i]->kind == CELL_YAML_SCALAR && w < sizeof(words) / sizeof(words[0]); w++)
			found |= strcmp(words[w].word, list->items[i]->text) ? 0 : words[w].scope;
		if (!found)
			cell__load_problem(loader, list->items[i], "a scope must be read, run, admin, approve or metrics");
		scopes |= found;
	}
	return scopes;
}

/* A whole number; bytes may end in k, M or G. */
static void read_quota(struct cell__loader *loader, const struct cell__yaml *map, const char *name, bool bytes, int64_t *ret)
{
	static const char units[] = "kMG";
	const struct cell__yaml *value = cell__yaml_get(map, name);
	const char *unit;
	char *end = NULL;
	long long number;

	if (!value)
		return;
	number = value->kind == CELL_YAML_SCALAR ? strtoll(value->text, &end, 10) : -1;
	unit = end && bytes && *end ? strchr(units, *end) : NULL;
	if (unit && !end[1] && number <= INT64_MAX >> 30) {
		number <<= 10 * (unit - units + 1);
		end++;
	}
	if (!end || end == value->text || *end || *value->text < '0' || *value->text > '9' || number < 0 || number > MAX_QUOTA)
		cell__load_problem(loader, value, "%s must be a whole number%s from 0", name, bytes ? " of bytes, like 500M," : "");
	else
		*ret = number;
}

void cell__quotas_read(struct cell__loader *loader, const struct cell__yaml *map, struct cell__quotas *quotas)
{
	static const char *const known[] = { "sessions", "runs", "cpu_seconds", "disk", NULL };

	if (!map || !cell__load_keys(loader, map, "a quota", known))
		return;
	read_quota(loader, map, "sessions", false, &quotas->sessions);
	read_quota(loader, map, "runs", false, &quotas->runs);
	read_quota(loader, map, "cpu_seconds", false, &quotas->cpu_s);
	read_quota(loader, map, "disk", true, &quotas->disk_bytes);
}

static void read_token(struct cell__loader *loader, const struct cell__yaml *map, struct cell__tokens *tokens)
{
	static const char *const known[] = { "name", "token", "sha256", "scopes", "workspace", "quota", NULL };
	CELL_AUTO_FREE char *name = NULL, *text = NULL, *hash = NULL, *workspace = NULL;
	struct cell__token token = { .quotas = CELL_QUOTAS_NONE };
	struct cell_error err;

	if (!cell__load_keys(loader, map, "a token", known))
		return;
	cell__load_text(loader, cell__yaml_get(map, "name"), "name", &name);
	cell__load_text(loader, cell__yaml_get(map, "token"), "token", &text);
	cell__load_text(loader, cell__yaml_get(map, "sha256"), "sha256", &hash);
	cell__load_text(loader, cell__yaml_get(map, "workspace"), "workspace", &workspace);
	token.scopes = cell__scopes_read(loader, cell__yaml_get(map, "scopes"));
	cell__quotas_read(loader, cell__yaml_get(map, "quota"), &token.quotas);
	if (!name || !*name || strlen(name) > CELL_SERVER_MAX_NAME) {
		cell__load_problem(loader, map, "a token needs a name of 1 to %u bytes", CELL_SERVER_MAX_NAME);
		return;
	}
	if (!strncmp(name, CELL_OAUTH_PREFIX, strlen(CELL_OAUTH_PREFIX)))
		cell__load_problem(loader, map, "the names that begin with " CELL_OAUTH_PREFIX " are those of subjects of OAuth");
	strcpy(token.name, name);
	for (size_t i = 0; i < tokens->count; i++) {
		if (!strcmp(tokens->list[i].name, name))
			cell__load_problem(loader, map, "two tokens have the name %s", name);
	}
	if (!text == !hash)
		cell__load_problem(loader, map, "give either token or sha256");
	else if (hash)
		read_hash(loader, map, hash, &token);
	else if (hash_token(text, strlen(text), &token, &err) < 0)
		cell__load_problem(loader, map, "%s", err.msg);
	token.all_workspaces = workspace && !strcmp(workspace, "*");
	if (workspace && !token.all_workspaces && !cell__workspace_id_ok(workspace))
		cell__load_problem(loader, map, "workspace must be 1-128 letters, digits, underscores or hyphens, or \"*\" for all");
	else if (workspace && !token.all_workspaces)
		strcpy(token.workspace, workspace);
	if (!loader->bad && add_token(tokens, &token, &err) < 0)
		cell__load_problem(loader, map, "%s", err.msg);
}

static int several_tokens(const char *file, const char *text, size_t size, struct cell__tokens *tokens, struct cell_error *err)
{
	static const char *const known[] = { "tokens", NULL };
	struct cell__problems problems = { 0 };
	struct cell__loader loader = { .file = file, .problems = &problems };
	struct cell__yaml *root = cell__yaml_parse(file, text, size, &problems);
	const struct cell__yaml *list = NULL;
	int status = 0;

	if (root && cell__load_keys(&loader, root, "the file", known))
		list = cell__yaml_get(root, "tokens");
	if (list && (list->kind != CELL_YAML_SEQUENCE || !list->count))
		cell__load_problem(&loader, list, "tokens must be a non-empty list");
	for (size_t i = 0; list && list->kind == CELL_YAML_SEQUENCE && i < list->count; i++)
		read_token(&loader, list->items[i], tokens);
	if (problems.count)
		status = cell_fail(err, CELL_E_INVALID, 0, "%.100s:%d: %s", file, problems.list[0].line,
				   problems.list[0].message ? problems.list[0].message : "it is bad");
	else if (!tokens->count)
		status = cell_fail(err, CELL_E_INVALID, 0, "%.100s contains no token", file);
	cell__problems_finish(&problems);
	cell__yaml_destroy(root);
	return status;
}

int cell__tokens_parse(const char *file, const char *text, size_t size, struct cell__tokens *ret_tokens, struct cell_error *err)
{
	struct cell__tokens tokens = { 0 };
	size_t start = 0;
	int status;

	/* Comments and empty lines precede the list; a single token is a line of its own. */
	while (start < size && (text[start] == '#' || text[start] == '\n')) {
		const char *end = memchr(text + start, '\n', size - start);

		start = end ? (size_t)(end - text) + 1 : size;
	}
	if (size - start >= 7 && !memcmp(text + start, "tokens:", 7))
		status = several_tokens(file, text, size, &tokens, err);
	else if ((status = single_token(text, size, &tokens, err)) < 0)
		cell_fail_wrap(err, "%.100s", file);
	if (status < 0)
		cell__tokens_finish(&tokens);
	else
		*ret_tokens = tokens;
	return status;
}

int cell__tokens_load(const char *token, const char *token_file, struct cell__tokens *ret_tokens, struct cell_error *err)
{
	struct cell__tokens tokens = { 0 };
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (!token_file) {
		if (token && single_token(token, strlen(token), &tokens, err) < 0)
			return -1;
		*ret_tokens = tokens;
		return 0;
	}
	if (cell__file_load("the tokens", token_file, CELL_FILE_ANY, CELL_YAML_LIMIT_FILE_BYTES, &text, err) < 0)
		return -1;
	return cell__tokens_parse(token_file, text.data, text.size, ret_tokens, err);
}

int cell__tokens_refuse_quotas(const struct cell__tokens *tokens, struct cell_error *err)
{
	static const struct cell__quotas none = CELL_QUOTAS_NONE;

	for (size_t i = 0; i < tokens->count; i++) {
		if (memcmp(&tokens->list[i].quotas, &none, sizeof(none)))
			return cell_fail(err, CELL_E_INVALID, 0,
					 "the token \"%s\" has a quota, which only the session server keeps (workcell serve): remove it",
					 tokens->list[i].name);
	}
	return 0;
}

void cell__tokens_warn(struct cell_server *server)
{
	/* One of several workers says it. */
	for (size_t i = 0; !server->address.loopback && !server->worker && i < server->tokens.count; i++) {
		if (server->tokens.list[i].is_short)
			cell__server_log(
				server, CELL_LOG_WARN,
				"the token \"%s\" has fewer than %u characters and could be guessed, because %s can be reached from "
				"other machines",
				server->tokens.list[i].name, SHORT_TOKEN_BYTES, server->url);
	}
}

/* ---- requests ---- */

/* Failures are few; addresses that fall on the same place share a count. */
static struct cell__address_count *count_of(struct cell_server *server, const struct sockaddr *from)
{
	unsigned char address[16];
	struct cell__address_count *count;
	size_t hash = 0;

	cell__guest_address(from, address);
	for (size_t i = 0; i < sizeof(address); i++)
		hash = hash * 31 + address[i];
	count = &server->addresses[hash % CELL_SERVER_ADDRESSES];
	if (memcmp(count->address, address, sizeof(address))) {
		*count = (struct cell__address_count){ .at_us = cell__now_us() };
		memcpy(count->address, address, sizeof(address));
	}
	return count;
}

static const struct cell__token *find_token(const struct cell__tokens *tokens, const char *given)
{
	const struct cell__token *found = NULL;
	unsigned char hash[CELL_ACCESS_HASH_BYTES];

	cell__access_hash(given, strlen(given), hash);
	for (size_t i = 0; i < tokens->count; i++)
		found = cell__access_same(hash, tokens->list[i].hash) ? &tokens->list[i] : found;
	return found;
}

bool cell__token_by_name(const struct cell_server *server, const char *name, struct cell__token *ret_token)
{
	if (server->opts.auth_disabled) {
		/* A server whose code could reach it, and approve itself, does not start without tokens. */
		*ret_token = (struct cell__token){ .name = "anybody", .scopes = ALL_SCOPES, .quotas = CELL_QUOTAS_NONE };
		return true;
	}
	for (size_t i = 0; i < server->tokens.count; i++) {
		if (!strcmp(server->tokens.list[i].name, name)) {
			*ret_token = server->tokens.list[i];
			return true;
		}
	}
	return false;
}

bool cell__auth_again(const struct cell_server *server, const char *header, struct cell__token *ret_token)
{
	const char *given = cell__access_bearer(header);
	const struct cell__token *token = given ? find_token(&server->tokens, given) : NULL;

	if (server->opts.auth_disabled)
		return cell__token_by_name(server, "", ret_token);
	if (token)
		*ret_token = *token;
	return token;
}

bool cell__auth_is_locked(struct cell_server *server, const struct sockaddr *from)
{
	const struct cell__address_count *count;
	bool locked;

	cell__pool_lock(server);
	count = count_of(server, from);
	locked = count->failures - (double)(cell__now_us() - count->at_us) / 1e6 / REFILL_S >= FAILURES;
	cell__pool_unlock(server);
	return locked;
}

unsigned cell__auth_count(struct cell_server *server, const struct sockaddr *from, bool is_good, bool is_short, const char **ret_words,
			  int *ret_retry_s)
{
	struct cell__address_count *count;
	bool locked = false, passes;
	int64_t now;

	cell__pool_lock(server); /* the counts are those of all workers */
	count = count_of(server, from);
	if (count->failures > 0) {
		now = cell__now_us();
		count->failures -= (double)(now - count->at_us) / 1e6 / REFILL_S;
		count->at_us = now;
		if (count->failures < 0)
			count->failures = 0;
		locked = count->failures >= FAILURES;
	}
	passes = is_good && (!locked || (!is_short && !is_hole("lockout")));
	if (!passes && !locked) {
		count->at_us = cell__now_us();
		count->failures += 1;
	}
	cell__pool_unlock(server);
	if (passes)
		return 0;
	server->counts.auth_failures++;
	if (locked) {
		*ret_words = "too many failed attempts from this address";
		*ret_retry_s = (int)REFILL_S;
		return MHD_HTTP_TOO_MANY_REQUESTS;
	}
	return MHD_HTTP_UNAUTHORIZED;
}

unsigned cell__auth_check(struct cell_server *server, const char *header, const struct sockaddr *from, struct cell__token *ret_token,
			  const char **ret_words, int *ret_retry_s)
{
	const char *given = cell__access_bearer(header);
	const struct cell__token *token;
	unsigned status;

	if (server->opts.auth_disabled) {
		(void)cell__token_by_name(server, "", ret_token);
		return 0;
	}
	token = given ? find_token(&server->tokens, given) : NULL;
	status = cell__auth_count(server, from, token, token && token->is_short, ret_words, ret_retry_s);
	if (!status)
		*ret_token = *token;
	else if (status == MHD_HTTP_UNAUTHORIZED && !given && header && *header && strcasecmp(header, "Bearer") &&
		 strncasecmp(header, "Bearer ", 7))
		*ret_words = "Invalid authorization scheme";
	else if (status == MHD_HTTP_UNAUTHORIZED)
		*ret_words = given ? "Invalid token" : "Authorization required";
	return status;
}
