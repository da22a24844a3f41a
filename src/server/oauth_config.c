/* The file of --oauth, and what claims become by it.  Pure, except for reading the file. */
#include "server/oauth.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>

#include "base/file.h"
#include "wire/access.h"
#include "wire/jwt.h"
#include "wire/oauth.h"
#include "wire/yaml.h"

#define DEFAULT_SKEW_S 60
#define DEFAULT_CACHE_S 30
#define HASHED "sha256:"
#define HASHED_DIGITS 48u

void cell__oauth_config_destroy(struct cell__oauth_config *config)
{
	if (!config)
		return;
	char *texts[] = { config->resource, config->issuer,  config->jwks,      config->introspection, config->client_id,
			  config->ca,       config->subject, config->workspace, config->metadata };
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
		free(texts[i]);
	if (config->client_secret)
		OPENSSL_cleanse(config->client_secret, strlen(config->client_secret));
	free(config->client_secret);
	for (size_t i = 0; i < config->n_audiences; i++)
		free(config->audiences[i]);
	for (size_t i = 0; i < config->n_claims; i++) {
		free(config->claims[i].name);
		free(config->claims[i].value);
	}
	for (size_t i = 0; i < config->n_scopes; i++)
		free(config->scopes[i].name);
	free(config);
}

/* ---- the file ---- */

/* An address that secrets and decisions may be exchanged with: HTTPS, or this computer. */
static void load_url(struct cell__loader *loader, const struct cell__yaml *map, const char *name, char **ret)
{
	const struct cell__yaml *value = cell__yaml_get(map, name);
	struct cell__oauth_url url;
	cell__load_text(loader, value, name, ret);
	if (!*ret)
		return;
	if (strlen(*ret) > CELL_JWT_LIMIT_TEXT || cell__oauth_url_read(*ret, &url) < 0)
		cell__load_problem(loader, value, "%s must be a URL that begins with https://, without user and fragment", name);
	else if (!url.secure && !cell__oauth_is_loopback(url.host))
		cell__load_problem(loader, value, "%s must begin with https:// (http:// is for addresses of this computer)", name);
}

static void load_seconds(struct cell__loader *loader, const struct cell__yaml *map, const char *name, int64_t max, int64_t *ret)
{
	const struct cell__yaml *value = cell__yaml_get(map, name);
	char *end = NULL;
	if (!cell__yaml_is_given(value))
		return;
	long long number = value->kind == CELL_YAML_SCALAR && isdigit((unsigned char)*value->text) ? strtoll(value->text, &end, 10) : -1;
	if (!end || *end || number < 0 || number > max)
		cell__load_problem(loader, value, "%s must be a number of seconds from 0 to %lld", name, (long long)max);
	else
		*ret = number;
}

static void add_audience(struct cell__loader *loader, const struct cell__yaml *at, const char *text, struct cell__oauth_config *config)
{
	char *copy = *text && config->n_audiences < CELL_OAUTH_MAX_VALUES ? cell__strdup(text) : NULL;
	if (!copy)
		cell__load_problem(loader, at, "audience must be a string, or a list of at most %u", CELL_OAUTH_MAX_VALUES);
	else
		config->audiences[config->n_audiences++] = copy;
}

static void load_audiences(struct cell__loader *loader, const struct cell__yaml *map, struct cell__oauth_config *config)
{
	const struct cell__yaml *value = cell__yaml_get(map, "audience");
	if (!cell__yaml_is_given(value)) {
		add_audience(loader, map, config->resource ? config->resource : "-", config);
	} else if (value->kind == CELL_YAML_SCALAR) {
		add_audience(loader, value, value->text, config);
	} else {
		for (size_t i = 0; value->kind == CELL_YAML_SEQUENCE && i < value->count; i++)
			add_audience(loader, value->items[i], value->items[i]->kind == CELL_YAML_SCALAR ? value->items[i]->text : "",
				     config);
		if (config->n_audiences == 0)
			cell__load_problem(loader, value, "audience must be a string, or a list of them");
	}
}

static void load_claims(struct cell__loader *loader, const struct cell__yaml *map, struct cell__oauth_config *config)
{
	const struct cell__yaml *value = cell__yaml_get(map, "claims");
	if (!cell__yaml_is_given(value))
		return;
	if (value->kind != CELL_YAML_MAPPING || value->count == 0) {
		cell__load_problem(loader, value, "claims must be a mapping of names and values");
		return;
	}
	for (size_t i = 0; i < value->count; i += 2) {
		const struct cell__yaml *text = value->items[i + 1];
		if (text->kind != CELL_YAML_SCALAR || config->n_claims == CELL_OAUTH_MAX_VALUES) {
			cell__load_problem(loader, text, "claims must be at most %u texts", CELL_OAUTH_MAX_VALUES);
			return;
		}
		config->claims[config->n_claims].name = cell__strdup(value->items[i]->text);
		config->claims[config->n_claims].value = cell__strdup(text->text);
		if (!config->claims[config->n_claims].name || !config->claims[config->n_claims].value)
			cell__load_problem(loader, text, "out of memory");
		config->n_claims++;
	}
}

static void load_algs(struct cell__loader *loader, const struct cell__yaml *map, struct cell__oauth_config *config)
{
	const struct cell__yaml *value = cell__yaml_get(map, "algorithms");
	if (!cell__yaml_is_given(value))
		return;
	config->algs = 0;
	for (size_t i = 0; value->kind == CELL_YAML_SEQUENCE && i < value->count; i++) {
		unsigned alg = value->items[i]->kind == CELL_YAML_SCALAR ? cell__jwt_alg(value->items[i]->text) : 0;
		if (alg == 0)
			cell__load_problem(loader, value->items[i], "an algorithm must be RS256, PS256 or ES256");
		config->algs |= alg;
	}
	if (config->algs == 0)
		cell__load_problem(loader, value, "algorithms must be a list of RS256, PS256, ES256");
}

/* A scope of the issuer, as RFC 6749 writes one. */
static bool is_scope(const char *text)
{
	size_t size = 0;
	for (; text[size]; size++) {
		if (text[size] <= ' ' || text[size] > '~' || text[size] == '"' || text[size] == '\\')
			return false;
	}
	return size > 0 && size <= 255;
}

static void add_scope(struct cell__loader *loader, const struct cell__yaml *at, const char *name, unsigned scopes,
		      struct cell__oauth_config *config)
{
	char *copy = is_scope(name) && config->n_scopes < CELL_OAUTH_MAX_SCOPES ? cell__strdup(name) : NULL;
	if (!copy)
		cell__load_problem(loader, at, "a scope's name must be visible ASCII without quotes, at most %u of them",
				   CELL_OAUTH_MAX_SCOPES);
	else
		config->scopes[config->n_scopes++] = (struct cell__oauth_scope){ .name = copy, .scopes = scopes };
}

static void load_scopes(struct cell__loader *loader, const struct cell__yaml *map, struct cell__oauth_config *config)
{
	const struct cell__yaml *value = cell__yaml_get(map, "scopes");
	if (!cell__yaml_is_given(value)) {
		add_scope(loader, map, "workcell:run", CELL_SCOPE_RUN | CELL_SCOPE_READ, config);
		add_scope(loader, map, "workcell:read", CELL_SCOPE_READ, config);
		add_scope(loader, map, "workcell:approve", CELL_SCOPE_APPROVE, config);
		add_scope(loader, map, "workcell:admin", CELL_SCOPE_ADMIN | CELL_SCOPE_METRICS, config);
		add_scope(loader, map, "workcell:metrics", CELL_SCOPE_METRICS, config);
	} else if (value->kind != CELL_YAML_MAPPING || value->count == 0) {
		cell__load_problem(loader, value,
				   "scopes must be a mapping: a scope of the issuer, and a list of read, run, admin, approve, metrics");
	} else {
		for (size_t i = 0; i < value->count; i += 2)
			add_scope(loader, value->items[i], value->items[i]->text, cell__scopes_read(loader, value->items[i + 1]), config);
	}
}

static void load_introspection(struct cell__loader *loader, const struct cell__yaml *map, struct cell__oauth_config *config)
{
	load_url(loader, map, "introspection", &config->introspection);
	cell__load_text(loader, cell__yaml_get(map, "client_id"), "client_id", &config->client_id);
	cell__load_text(loader, cell__yaml_get(map, "client_secret"), "client_secret", &config->client_secret);
	if (config->introspection && (!config->client_id || !config->client_secret))
		cell__load_problem(loader, map, "introspection needs client_id and client_secret");
	if (!config->introspection && (config->client_id || config->client_secret))
		cell__load_problem(loader, map, "client_id and client_secret are for introspection");
	if (config->introspection && config->jwks)
		cell__load_problem(loader, map, "give either jwks or introspection");
}

static void load(struct cell__loader *loader, const struct cell__yaml *root, struct cell__oauth_config *config)
{
	static const char *const known[] = { "resource",   "issuer", "jwks",   "introspection", "client_id", "client_secret",
					     "audience",   "claims", "scopes", "subject",       "workspace", "algorithms",
					     "clock_skew", "cache",  "ca",     "quota",         NULL };
	struct cell__oauth_url url;
	CELL_AUTO_BUF struct cell__buf metadata = CELL_BUF_INIT;
	if (!cell__load_keys(loader, root, "the file", known))
		return;
	load_url(loader, root, "resource", &config->resource);
	load_url(loader, root, "issuer", &config->issuer);
	load_url(loader, root, "jwks", &config->jwks);
	load_introspection(loader, root, config);
	cell__load_text(loader, cell__yaml_get(root, "subject"), "subject", &config->subject);
	cell__load_text(loader, cell__yaml_get(root, "workspace"), "workspace", &config->workspace);
	cell__load_text(loader, cell__yaml_get(root, "ca"), "ca", &config->ca);
	if (!config->resource || !config->issuer)
		cell__load_problem(loader, root, "resource, the URL of this server, and issuer are required");
	load_audiences(loader, root, config);
	load_claims(loader, root, config);
	load_algs(loader, root, config);
	load_scopes(loader, root, config);
	load_seconds(loader, root, "clock_skew", CELL_OAUTH_MAX_SKEW_S, &config->skew_s);
	load_seconds(loader, root, "cache", CELL_OAUTH_MAX_CACHE_S, &config->cache_s);
	cell__quotas_read(loader, cell__yaml_get(root, "quota"), &config->quotas);
	if (loader->bad || cell__oauth_url_read(config->resource, &url) < 0)
		return;
	if (url.path[url.path_size])
		cell__load_problem(loader, root, "resource must not have a query");
	else if (cell__buf_printf(&metadata, "%s" CELL_OAUTH_METADATA "%s", url.origin, strcmp(url.path, "/") == 0 ? "" : url.path) == 0)
		config->metadata = cell__buf_take(&metadata);
}

int cell__oauth_config_parse(const char *file, const char *text, size_t size, struct cell__oauth_config **ret_config,
			     struct cell_error *err)
{
	struct cell__problems problems = { 0 };
	struct cell__loader loader = { .file = file, .problems = &problems };
	struct cell__oauth_config *config = cell__alloc(1, sizeof *config);
	if (!config)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the configuration");
	*config = (struct cell__oauth_config){
		.algs = CELL_JWT_ALL_ALGS, .skew_s = DEFAULT_SKEW_S, .cache_s = DEFAULT_CACHE_S, .quotas = CELL_QUOTAS_NONE
	};
	struct cell__yaml *root = cell__yaml_parse(file, text, size, &problems);
	if (root)
		load(&loader, root, config);
	int rc = 0;
	if (problems.count > 0)
		rc = cell_fail(err, CELL_E_INVALID, 0, "%.100s:%d: %s", file, problems.list[0].line,
			       problems.list[0].message ? problems.list[0].message : "it is bad");
	else if (!config->metadata)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the configuration");
	cell__problems_finish(&problems);
	cell__yaml_destroy(root);
	if (rc < 0)
		cell__oauth_config_destroy(config);
	else
		*ret_config = config;
	return rc;
}

int cell__oauth_config_load(const char *file, struct cell__oauth_config **ret_config, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__file_load("the settings of OAuth", file, CELL_FILE_ANY, CELL_YAML_LIMIT_FILE_BYTES, &text, err) < 0)
		return -1;
	int rc = cell__oauth_config_parse(file, text.data ? text.data : "", text.size, ret_config, err);
	if (text.data)
		OPENSSL_cleanse(text.data, text.size);
	return rc;
}

int cell__oauth_refuse_quotas(const struct cell__oauth_config *config, struct cell_error *err)
{
	static const struct cell__quotas none = CELL_QUOTAS_NONE;
	if (memcmp(&config->quotas, &none, sizeof none) == 0)
		return 0;
	return cell_fail(err, CELL_E_INVALID, 0,
			 "the settings of OAuth have a quota, which only the session server keeps (workcell serve): remove it");
}

/* ---- claims ---- */

/* A subject that is too long, or not plain, is named by its hash, and so is one that looks like such a name. */
static void name_subject(const char *subject, char out[static CELL_SERVER_MAX_NAME + 1])
{
	unsigned char hash[CELL_ACCESS_HASH_BYTES];
	size_t size = strlen(subject), prefix = strlen(CELL_OAUTH_PREFIX);
	bool plain = prefix + size <= CELL_SERVER_MAX_NAME && strncmp(subject, HASHED, strlen(HASHED)) != 0;
	for (size_t i = 0; i < size && plain; i++)
		plain = subject[i] > ' ' && subject[i] <= '~';
	if (plain) {
		snprintf(out, CELL_SERVER_MAX_NAME + 1, CELL_OAUTH_PREFIX "%s", subject);
		return;
	}
	cell__access_hash(subject, size, hash);
	size_t n = (size_t)snprintf(out, CELL_SERVER_MAX_NAME + 1, CELL_OAUTH_PREFIX HASHED);
	for (size_t i = 0; i < HASHED_DIGITS / 2; i++)
		n += (size_t)snprintf(out + n, 3, "%02x", hash[i]);
}

int cell__oauth_principal(const struct cell__oauth_config *config, const json_t *claims, struct cell__token *ret_token,
			  struct cell_error *err)
{
	const char *claim = config->subject ? config->subject : "sub";
	const char *subject = json_string_value(json_object_get(claims, claim));
	const char *workspace = config->workspace ? json_string_value(json_object_get(claims, config->workspace)) : "";
	struct cell__token token = { .quotas = config->quotas };
	if (!subject || !*subject || strlen(subject) > CELL_JWT_LIMIT_TEXT)
		return cell_fail(err, CELL_E_AUTH, 0, "the token has no claim \"%.40s\"", claim);
	for (size_t i = 0; i < config->n_claims; i++) {
		if (!cell__claims_has(claims, config->claims[i].name, config->claims[i].value))
			return cell_fail(err, CELL_E_AUTH, 0, "the claim \"%.40s\" of the token has another value", config->claims[i].name);
	}
	if (config->workspace && (!workspace || !cell__workspace_id_ok(workspace)))
		return cell_fail(err, CELL_E_AUTH, 0, "the token's claim \"%.40s\" is not a workspace", config->workspace);
	name_subject(subject, token.name);
	strcpy(token.workspace, workspace);
	for (size_t i = 0; i < config->n_scopes; i++) {
		if (cell__claims_has_scope(claims, config->scopes[i].name))
			token.scopes |= config->scopes[i].scopes;
	}
	*ret_token = token;
	return 0;
}

int cell__oauth_scopes(const struct cell__oauth_config *config, unsigned scopes, struct cell__buf *out)
{
	unsigned given = 0;
	int rc = cell__buf_add(out, "", 0);
	for (size_t i = 0; i < config->n_scopes && rc == 0; i++) {
		/* One that adds nothing is not asked for. */
		if (!(config->scopes[i].scopes & scopes & ~given))
			continue;
		given |= config->scopes[i].scopes;
		rc = cell__buf_printf(out, "%s%s", out->size > 0 ? " " : "", config->scopes[i].name) < 0 ? -1 : 0;
	}
	return rc;
}
