/* Who issues tokens for a server: its own metadata, then that of its authorization server. */
#define _GNU_SOURCE
#include <string.h>

#include "loop/http.h"
#include "mcp/client/client.h"
#include "mcp/client/oauth.h"
#include "wire/oauth.h"

static int perform(const struct cell__http_request *request, const char *const *headers, bool allow_private, struct cell__http_reply *reply,
		   struct cell_error *err)
{
	const struct cell__http_rules rules = { CELL_OAUTH_LIMIT_METADATA, allow_private };
	return cell__http_perform(request, headers, &rules, reply, err);
}

static json_t *json_of(const struct cell__http_reply *reply)
{
	json_t *json = reply->status >= 200 && reply->status < 300 ? json_loadb(reply->body.data, reply->body.size, 0, NULL) : NULL;
	if (json_is_object(json))
		return json;
	json_decref(json);
	return NULL;
}

/* A URL that a remote party named: https, or this computer if the server is there too. */
static int check_url(const char *url, bool allow_private, struct cell__oauth_url *ret_parts, struct cell_error *err)
{
	if (!url || strlen(url) > CELL_OAUTH_LIMIT_VALUE || cell__oauth_url_read(url, ret_parts) < 0)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the server's OAuth metadata has an invalid URL");
	if (!ret_parts->secure && !(allow_private && cell__oauth_is_loopback(ret_parts->host)))
		return cell_fail(err, CELL_E_FORBIDDEN, 0, "the server's OAuth metadata has a URL without https: %.120s", url);
	return 0;
}

int cell__oauth_post(const char *url, const char *type, const char *body, const char *authorization, bool allow_private, json_t **ret_json,
		     long *ret_status, struct cell_error *err)
{
	struct cell__http_reply reply = { 0 };
	const char *headers[] = { type, "Accept: application/json", authorization, NULL };
	const struct cell__http_request request = {
		.method = "POST", .url = url, .body = body, .body_size = strlen(body), .timeout_ms = CELL_OAUTH_TIMEOUT_MS
	};
	int rc = perform(&request, headers, allow_private, &reply, err);
	*ret_status = reply.status;
	json_t *json = rc == 0 ? json_loadb(reply.body.data ? reply.body.data : "", reply.body.size, 0, NULL) : NULL;
	if (rc == 0 && reply.status >= 200 && reply.status < 300 && json_is_object(json)) {
		*ret_json = json_incref(json);
	} else if (rc == 0) {
		const char *error = json_string_value(json_object_get(json, "error"));
		const char *words = json_string_value(json_object_get(json, "error_description"));
		CELL_AUTO_BUF struct cell__buf shown = CELL_BUF_INIT;
		if (words)
			(void)cell__buf_add_json_escaped(&shown, words, strnlen(words, 100));
		rc = cell_fail(err, CELL_E_FORBIDDEN, 0, "%.80s answered HTTP %ld%s%.40s%s%.100s", url, reply.status, error ? ": " : "",
			       error && strspn(error, "abcdefghijklmnopqrstuvwxyz_") == strlen(error) ? error : "", shown.data ? ", " : "",
			       shown.data ? shown.data : "");
	}
	json_decref(json);
	cell__http_reply_finish(&reply);
	return rc;
}

/* ---- the server's own metadata ---- */

static json_t *get_json(const char *url, bool allow_private, struct cell_error *err)
{
	struct cell__http_reply reply = { 0 };
	const char *headers[] = { "Accept: application/json", "MCP-Protocol-Version: " CELL_MCP_MODERN, NULL };
	const struct cell__http_request request = { .method = "GET", .url = url, .timeout_ms = CELL_OAUTH_TIMEOUT_MS };
	int rc = perform(&request, headers, allow_private, &reply, err);
	json_t *json = rc == 0 ? json_of(&reply) : NULL;
	if (rc == 0 && !json)
		cell_fail(err, CELL_E_NOT_FOUND, 0, "%.120s answered HTTP %ld", url, reply.status);
	cell__http_reply_finish(&reply);
	return json;
}

/* Well-known metadata stands between origin and path, or behind the path. */
static json_t *get_known(const struct cell__oauth_url *parts, const char *name, bool path, bool behind, bool allow_private,
			 struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;
	size_t size = path ? parts->path_size : 0;
	while (size > 0 && parts->path[size - 1] == '/')
		size--;
	if (cell__buf_printf(&url, "%s%.*s/.well-known/%s%.*s", parts->origin, behind ? (int)size : 0, parts->path, name,
			     behind ? 0 : (int)size, parts->path) < 0)
		return NULL;
	return get_json(url.data, allow_private, err);
}

/* Is `resource` the server's URL, or a folder above it at the same origin? */
static bool covers(const char *resource, const struct cell__oauth_url *server)
{
	struct cell__oauth_url parts;
	if (!resource || cell__oauth_url_read(resource, &parts) < 0 || strcmp(parts.origin, server->origin) != 0)
		return false;
	size_t size = parts.path_size;
	while (size > 0 && parts.path[size - 1] == '/')
		size--;
	return size <= server->path_size && strncmp(parts.path, server->path, size) == 0 &&
	       (size == server->path_size || server->path[size] == '/');
}

static json_t *get_resource(const struct cell__oauth_url *server, const char *named, bool allow_private, struct cell_error *err)
{
	struct cell__oauth_url parts;
	json_t *json = NULL;
	if (named) {
		if (check_url(named, allow_private, &parts, err) < 0)
			return NULL;
		if (strcmp(parts.origin, server->origin) != 0) {
			cell_fail(err, CELL_E_FORBIDDEN, 0, "the server names metadata of another host: %.120s", named);
			return NULL;
		}
		return get_json(named, allow_private, err);
	}
	if (server->path_size > 1)
		json = get_known(server, "oauth-protected-resource", true, false, allow_private, err);
	return json ? json : get_known(server, "oauth-protected-resource", false, false, allow_private, err);
}

/* ---- the authorization server's ---- */

static bool lists(const json_t *list, const char *word)
{
	size_t i;
	json_t *each;
	json_array_foreach((json_t *)list, i, each)
		if (json_is_string(each) && strcmp(json_string_value(each), word) == 0)
			return true;
	return false;
}

static int find_metadata(struct cell__oauth_issuer *issuer, struct cell_error *err)
{
	struct cell__oauth_url parts;
	if (check_url(issuer->issuer, issuer->allow_private, &parts, err) < 0)
		return -1;
	bool deep = parts.path_size > 1;
	json_t *json = get_known(&parts, "oauth-authorization-server", true, false, issuer->allow_private, err);
	if (!json && err->code != CELL_E_FORBIDDEN)
		json = get_known(&parts, "openid-configuration", true, false, issuer->allow_private, err);
	if (!json && deep && err->code != CELL_E_FORBIDDEN)
		json = get_known(&parts, "openid-configuration", true, true, issuer->allow_private, err);
	issuer->metadata = json;
	if (!json)
		return cell_fail_wrap(err, "the metadata of the authorization server %.100s", issuer->issuer);
	/* Compared as text: another issuer must not be able to speak for this one. */
	const char *itself = json_string_value(json_object_get(json, "issuer"));
	if (!itself || strcmp(itself, issuer->issuer) != 0)
		return cell_fail(err, CELL_E_FORBIDDEN, 0, "the metadata of %.100s is of another issuer: %.100s", issuer->issuer,
				 itself ? itself : "(none)");
	if (!lists(json_object_get(json, "code_challenge_methods_supported"), "S256"))
		return cell_fail(err, CELL_E_FORBIDDEN, 0, "the authorization server %.100s does not support PKCE with S256",
				 issuer->issuer);
	return 0;
}

const char *cell__oauth_endpoint(const struct cell__oauth_issuer *issuer, const char *name, struct cell_error *err)
{
	struct cell__oauth_url parts;
	const char *url = json_string_value(json_object_get(issuer->metadata, name));
	if (!url) {
		cell_fail(err, CELL_E_PROTOCOL, 0, "the authorization server %.100s has no %s", issuer->issuer, name);
		return NULL;
	}
	return check_url(url, issuer->allow_private, &parts, err) < 0 ? NULL : url;
}

void cell__oauth_issuer_finish(struct cell__oauth_issuer *issuer)
{
	json_decref(issuer->metadata);
	free(issuer->issuer);
	free(issuer->resource);
	free(issuer->scope);
	*issuer = (struct cell__oauth_issuer){ 0 };
}

/* ---- all of it ---- */

static int ask_server(const struct cell__oauth *oauth, struct cell__http_reply *reply, struct cell_error *err)
{
	static const char body[] = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"server/discover\",\"params\":{\"_meta\":{\"" CELL_MCP_META
				   "protocolVersion\":\"" CELL_MCP_MODERN "\",\"" CELL_MCP_META "clientCapabilities\":{}}}}";
	const char *headers[] = { "Content-Type: application/json", "Accept: application/json, text/event-stream",
				  "MCP-Protocol-Version: " CELL_MCP_MODERN, "Mcp-Method: server/discover", NULL };
	const struct cell__http_request request = {
		.method = "POST", .url = oauth->url, .body = body, .body_size = sizeof body - 1, .timeout_ms = CELL_OAUTH_TIMEOUT_MS
	};
	return perform(&request, headers, true, reply, err);
}

static char *join(const json_t *list)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	size_t i;
	json_t *each;
	json_array_foreach((json_t *)list, i, each)
		if (json_is_string(each) && text.size < CELL_OAUTH_LIMIT_VALUE)
			(void)cell__buf_printf(&text, "%s%s", text.size ? " " : "", json_string_value(each));
	return text.size ? cell__buf_take(&text) : NULL;
}

static int use_resource(struct cell__oauth_issuer *issuer, const struct cell__oauth *oauth, const struct cell__oauth_url *server,
			const json_t *resource, struct cell_error *err)
{
	const char *itself = json_string_value(json_object_get(resource, "resource"));
	const char *first = json_string_value(json_array_get(json_object_get(resource, "authorization_servers"), 0));
	if (resource && !covers(itself, server))
		return cell_fail(err, CELL_E_FORBIDDEN, 0, "the server's metadata is about another resource: %.120s",
				 itself ? itself : "(none)");
	if (resource && !first)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the server's metadata names no authorization server");
	/* Servers of the first revision with OAuth are their own authorization server. */
	issuer->issuer = cell__strdup(first ? first : server->origin);
	issuer->resource = cell__strdup(itself ? itself : oauth->url);
	if (!issuer->scope)
		issuer->scope = join(json_object_get(resource, "scopes_supported"));
	return issuer->issuer && issuer->resource ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

int cell__oauth_find(const struct cell__oauth *oauth, struct cell__oauth_issuer *ret_issuer, struct cell_error *err)
{
	struct cell__http_reply reply = { 0 };
	struct cell__oauth_issuer issuer = { 0 };
	struct cell__oauth_url server;
	if (cell__oauth_url_read(oauth->url, &server) < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "the server's url is not valid: %.120s", oauth->url);
	if (!server.secure && !cell__oauth_is_loopback(server.host))
		return cell_fail(err, CELL_E_FORBIDDEN, 0, "tokens are not sent without https: %.120s", oauth->url);
	int rc = ask_server(oauth, &reply, err);
	if (rc == 0 && reply.status >= 200 && reply.status < 300)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the server %.120s does not ask for a login", oauth->url);
	if (rc == 0) {
		CELL_AUTO_FREE char *named = cell__oauth_challenge(reply.challenge.data, "resource_metadata");
		issuer.allow_private = reply.private_address;
		issuer.scope = cell__oauth_challenge(reply.challenge.data, "scope");
		json_t *resource = get_resource(&server, named, issuer.allow_private, err);
		rc = !resource && named ? -1 : use_resource(&issuer, oauth, &server, resource, err);
		json_decref(resource);
	}
	cell__http_reply_finish(&reply);
	rc = rc < 0 ? rc : find_metadata(&issuer, err);
	if (rc < 0)
		cell__oauth_issuer_finish(&issuer);
	else
		*ret_issuer = issuer;
	return rc;
}
