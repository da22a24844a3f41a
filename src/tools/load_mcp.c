/* MCP servers from their YAML tree, and from the JSON of a registration at run time. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "tools/mcp.h"

/* The keys that a YAML file and a registration at run time both have. */
#define COMMON_KEYS                                                                                                                        \
	"type", "description", "timeout", "tags", "transport", "command", "args", "env", "cwd", "url", "headers", "start_timeout", "host", \
		"auth", "client_id", "client_secret", "client_metadata_url", "scope"

struct cell__mcp_params *cell__mcp_params_create(void)
{
	struct cell__mcp_params *params = cell__alloc(1, sizeof *params);
	if (params) {
		params->refs = 1;
		params->start_timeout_ms = CELL_MCP_DEFAULT_START_MS;
	}
	return params;
}

void cell__mcp_params_unref(struct cell__mcp_params *params)
{
	if (!params || --params->refs > 0)
		return;
	for (size_t i = 0; i < params->n_args; i++)
		free(params->args[i]);
	free(params->args);
	cell__pairs_finish(&params->env);
	cell__pairs_finish(&params->headers);
	free(params->command);
	free(params->cwd);
	free(params->url);
	free(params->client_id);
	free(params->client_secret);
	free(params->client_metadata_url);
	free(params->scope);
	free(params);
}

static bool same_text(const char *a, const char *b)
{
	return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_pairs(const struct cell__pairs *a, const struct cell__pairs *b)
{
	if (a->count != b->count)
		return false;
	for (size_t i = 0; i < a->count; i++)
		if (!same_text(a->list[i].key, b->list[i].key) || !same_text(a->list[i].value, b->list[i].value))
			return false;
	return true;
}

bool cell__mcp_params_equal(const struct cell__mcp_params *a, const struct cell__mcp_params *b)
{
	if (a->kind != b->kind || a->n_args != b->n_args || a->start_timeout_ms != b->start_timeout_ms || a->host != b->host ||
	    a->guessed != b->guessed)
		return false;
	for (size_t i = 0; i < a->n_args; i++)
		if (!same_text(a->args[i], b->args[i]))
			return false;
	if (a->oauth != b->oauth || !same_text(a->client_id, b->client_id) || !same_text(a->client_secret, b->client_secret) ||
	    !same_text(a->client_metadata_url, b->client_metadata_url) || !same_text(a->scope, b->scope))
		return false;
	return same_text(a->command, b->command) && same_text(a->cwd, b->cwd) && same_text(a->url, b->url) &&
	       same_pairs(&a->env, &b->env) && same_pairs(&a->headers, &b->headers);
}

/* ---- checks ---- */

static int settle_kind(struct cell__mcp_params *params, const char *transport, struct cell__buf *why)
{
	static const struct {
		const char *word;
		enum cell__mcp_kind kind;
	} words[] = {
		{ "stdio", CELL_MCP_STDIO },
		{ "streamable_http", CELL_MCP_HTTP },
		{ "streamable-http", CELL_MCP_HTTP },
		{ "http", CELL_MCP_HTTP },
		{ "sse", CELL_MCP_SSE },
	};
	if (transport) {
		for (size_t i = 0; i < sizeof words / sizeof *words; i++)
			if (strcmp(transport, words[i].word) == 0) {
				params->kind = words[i].kind;
				return 0;
			}
		cell__buf_printf(why, "Unknown MCP transport: %.60s (expected stdio, streamable_http or sse)", transport);
		return -1;
	}
	if (!params->url) {
		params->kind = CELL_MCP_STDIO;
		return 0;
	}
	if (strstr(params->url, "/mcp")) {
		params->kind = CELL_MCP_HTTP;
		params->guessed = true;
	} else if (strstr(params->url, "/sse")) {
		params->kind = CELL_MCP_SSE;
	} else {
		cell__buf_printf(why, "Unable to determine MCP client type from URL: %.100s; set transport: streamable_http or sse",
				 params->url);
		return -1;
	}
	return 0;
}

static int check_pairs(const struct cell__mcp_params *params, struct cell__buf *why)
{
	for (size_t i = 0; i < params->env.count; i++) {
		const char *key = params->env.list[i].key;
		if (key && (!*key || strchr(key, '='))) {
			cell__buf_printf(why, "invalid variable name '%.60s'", key);
			return -1;
		}
	}
	for (size_t i = 0; i < params->headers.count; i++) {
		const char *key = params->headers.list[i].key;
		if (key && !cell__http_header_name_ok(key)) {
			cell__buf_printf(why, "invalid header name '%.60s'", key);
			return -1;
		}
	}
	return 0;
}

static int check_vars(const struct cell__mcp_params *params, struct cell__buf *why)
{
	bool ok = (!params->command || cell__vars_ok(params->command)) && (!params->cwd || cell__vars_ok(params->cwd)) &&
		  (!params->url || cell__vars_ok(params->url));
	for (size_t i = 0; i < params->n_args; i++)
		ok &= !params->args[i] || cell__vars_ok(params->args[i]);
	if (!ok)
		cell__buf_add_str(why, "write a variable as ${NAME}");
	return ok ? 0 : -1;
}

static int check_auth(const struct cell__mcp_params *params, struct cell__buf *why)
{
	bool details = params->client_id || params->client_secret || params->client_metadata_url || params->scope;
	if (params->oauth && params->kind != CELL_MCP_HTTP)
		cell__buf_add_str(why, "auth: oauth requires a url, with the transport streamable_http");
	else if (details && !params->oauth)
		cell__buf_add_str(why, "client_id, client_secret, client_metadata_url and scope require auth: oauth");
	else if (params->client_secret && !params->client_id)
		cell__buf_add_str(why, "client_secret requires client_id");
	for (size_t i = 0; params->oauth && i < params->headers.count; i++)
		if (params->headers.list[i].key && strcasecmp(params->headers.list[i].key, "Authorization") == 0)
			cell__buf_add_str(why, "with auth: oauth there is no header Authorization of your own");
	return why->size > 0 ? -1 : 0;
}

static int set_auth(struct cell__mcp_params *params, const char *auth, struct cell__buf *why)
{
	params->oauth = auth && strcmp(auth, "oauth") == 0;
	if (!auth || params->oauth)
		return 0;
	cell__buf_printf(why, "unknown auth '%.60s' (expected oauth)", auth);
	return -1;
}

int cell__mcp_params_settle(struct cell__mcp_params *params, const char *transport, struct cell__buf *why)
{
	if (!params->command && !params->url) {
		cell__buf_add_str(why, "Neither a \"command\" nor a \"url\"");
		return -1;
	}
	if (params->command && params->url) {
		cell__buf_add_str(why, "give either a command or a url, not both");
		return -1;
	}
	if (settle_kind(params, transport, why) < 0)
		return -1;
	bool stdio = params->kind == CELL_MCP_STDIO;
	if (stdio != (params->command != NULL)) {
		cell__buf_printf(why, "transport %s needs a %s", transport, stdio ? "command" : "url");
		return -1;
	}
	if (stdio && (params->command[0] == '\0' || params->headers.count > 0)) {
		cell__buf_add_str(why, params->headers.count > 0 ? "headers require a url" : "the command is empty");
		return -1;
	}
	if (!stdio && (params->n_args > 0 || params->env.count > 0 || params->cwd || params->host)) {
		cell__buf_add_str(why, "args, env, cwd and host require a command");
		return -1;
	}
	if (!stdio && strncasecmp(params->url, "http://", 7) != 0 && strncasecmp(params->url, "https://", 8) != 0 &&
	    strncmp(params->url, "${", 2) != 0) {
		cell__buf_printf(why, "the url must begin with http:// or https://: %.100s", params->url);
		return -1;
	}
	if (check_auth(params, why) < 0)
		return -1;
	return check_pairs(params, why) < 0 ? -1 : check_vars(params, why);
}

/* ---- YAML ---- */

static void load_args(struct cell__loader *loader, const struct cell__yaml *value, struct cell__mcp_params *params)
{
	if (!cell__yaml_is_given(value))
		return;
	if (value->kind != CELL_YAML_SEQUENCE || value->count > CELL_MCP_LIMIT_ARGS) {
		cell__load_problem(loader, value, "args must be a list of at most %u strings", CELL_MCP_LIMIT_ARGS);
		return;
	}
	for (size_t i = 0; i < value->count; i++) {
		char *word = NULL;
		cell__load_text(loader, value->items[i], "an item of args", &word);
		if (!word) {
			if (!cell__yaml_is_given(value->items[i]))
				cell__load_problem(loader, value->items[i], "an item of args must be a string");
			continue;
		}
		char **list = cell__load_more(loader, value, params->args, &params->n_args, sizeof *list);
		if (!list) {
			free(word);
			return;
		}
		params->args = list;
		list[params->n_args - 1] = word;
	}
}

void cell__load_mcp(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	static const char *const known[] = { "name", "max_output", COMMON_KEYS, NULL };
	tool->adapter = &cell__tool_mcp;
	if (!cell__yaml_get(doc, "max_output"))
		tool->max_output = CELL_TOOL_LIMIT_OUTPUT;
	struct cell__mcp_params *params = tool->mcp = cell__mcp_params_create();
	if (!params) {
		cell__load_problem(loader, doc, "out of memory");
		return;
	}
	cell__load_keys(loader, doc, "a tool of type mcp", known);
	CELL_AUTO_FREE char *transport = NULL;
	cell__load_text(loader, cell__yaml_get(doc, "transport"), "transport", &transport);
	cell__load_text(loader, cell__yaml_get(doc, "command"), "command", &params->command);
	load_args(loader, cell__yaml_get(doc, "args"), params);
	cell__load_pairs(loader, cell__yaml_get(doc, "env"), "env", &params->env);
	cell__load_text(loader, cell__yaml_get(doc, "cwd"), "cwd", &params->cwd);
	cell__load_text(loader, cell__yaml_get(doc, "url"), "url", &params->url);
	cell__load_pairs(loader, cell__yaml_get(doc, "headers"), "headers", &params->headers);
	cell__load_timeout(loader, cell__yaml_get(doc, "start_timeout"), &params->start_timeout_ms);
	cell__load_bool(loader, cell__yaml_get(doc, "host"), "host", &params->host);
	CELL_AUTO_FREE char *auth = NULL;
	cell__load_text(loader, cell__yaml_get(doc, "auth"), "auth", &auth);
	cell__load_text(loader, cell__yaml_get(doc, "client_id"), "client_id", &params->client_id);
	cell__load_text(loader, cell__yaml_get(doc, "client_secret"), "client_secret", &params->client_secret);
	cell__load_text(loader, cell__yaml_get(doc, "client_metadata_url"), "client_metadata_url", &params->client_metadata_url);
	cell__load_text(loader, cell__yaml_get(doc, "scope"), "scope", &params->scope);
	if (loader->bad)
		return;
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	if (set_auth(params, auth, &why) < 0 || cell__mcp_params_settle(params, transport, &why) < 0) {
		const struct cell__yaml *at = cell__yaml_get(doc, params->url ? "url" : "command");
		const struct cell__yaml *named = cell__yaml_get(doc, "transport");
		cell__load_problem(loader,
				   named ? named
				   : at  ? at
					 : doc,
				   "Tool '%s': %s", tool->name, why.size ? why.data : "out of memory");
	}
}

/* ---- JSON ---- */

static int text_from(const json_t *json, const char *key, char **ret, struct cell_error *err)
{
	const json_t *value = json_object_get(json, key);
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_string(value) || strlen(json_string_value(value)) != json_string_length(value))
		return cell_fail(err, CELL_E_INVALID, 0, "'%s' must be a string", key);
	*ret = cell__strdup(json_string_value(value));
	return *ret ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

static int pairs_from(const json_t *json, const char *key, struct cell__pairs *ret, struct cell_error *err)
{
	json_t *object = json_object_get(json, key), *value;
	const char *name;
	if (!object || json_is_null(object))
		return 0;
	if (!json_is_object(object))
		return cell_fail(err, CELL_E_INVALID, 0, "'%s' must be an object of strings", key);
	ret->list = cell__alloc(json_object_size(object), sizeof *ret->list);
	if (!ret->list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_object_foreach(object, name, value) {
		const char *text = json_string_value(value);
		if (!text || strlen(text) != json_string_length(value) || !cell__vars_ok(text))
			return cell_fail(err, CELL_E_INVALID, 0, "'%.60s' in '%s' must be a string, with variables as ${NAME}", name, key);
		struct cell__pair *pair = &ret->list[ret->count++];
		pair->key = cell__strdup(name);
		pair->value = cell__strdup(text);
		if (!pair->key || !pair->value)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	return 0;
}

static int strings_from(const json_t *json, const char *key, char ***ret, size_t *ret_count, struct cell_error *err)
{
	json_t *list = json_object_get(json, key), *value;
	size_t i;
	if (!list || json_is_null(list))
		return 0;
	if (!json_is_array(list))
		return cell_fail(err, CELL_E_INVALID, 0, "'%s' must be a list of strings", key);
	*ret = cell__alloc(json_array_size(list), sizeof **ret);
	if (!*ret)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_array_foreach(list, i, value) {
		const char *text = json_string_value(value);
		if (!text || strlen(text) != json_string_length(value))
			return cell_fail(err, CELL_E_INVALID, 0, "'%s' must be a list of strings", key);
		(*ret)[*ret_count] = cell__strdup(text);
		if (!(*ret)[(*ret_count)++])
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	return 0;
}

static int seconds_from(const json_t *json, const char *key, int64_t *ret_ms, struct cell_error *err)
{
	const json_t *value = json_object_get(json, key);
	if (!value || json_is_null(value))
		return 0;
	double seconds = json_number_value(value); /* 0 if it is not a number */
	if (!(seconds >= 0.001 && seconds <= CELL_TOOL_LIMIT_TIMEOUT_S))
		return cell_fail(err, CELL_E_INVALID, 0, "'%s' must be a number of seconds, more than 0 and at most %d", key,
				 CELL_TOOL_LIMIT_TIMEOUT_S);
	*ret_ms = (int64_t)ceil(seconds * 1000);
	return 0;
}

static int check_keys(const json_t *json, struct cell_error *err)
{
	static const char *const known[] = { COMMON_KEYS, NULL };
	const char *name;
	json_t *value;
	json_object_foreach((json_t *)json, name, value) {
		size_t i = 0;
		while (known[i] && strcmp(known[i], name) != 0)
			i++;
		if (!known[i])
			return cell_fail(err, CELL_E_INVALID, 0, "unknown key '%.60s' for an MCP server", name);
	}
	return 0;
}

static int bool_from(const json_t *json, const char *key, bool *ret, struct cell_error *err)
{
	const json_t *value = json_object_get(json, key);
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_boolean(value))
		return cell_fail(err, CELL_E_INVALID, 0, "'%s' must be true or false", key);
	*ret = json_is_true(value);
	return 0;
}

static int fill_from(const json_t *json, struct cell__tool_entry *tool, struct cell_error *err)
{
	struct cell__mcp_params *params = tool->mcp;
	CELL_AUTO_FREE char *transport = NULL;
	CELL_AUTO_FREE char *type = NULL;
	CELL_AUTO_FREE char *auth = NULL;
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	if (json_array_size(json_object_get(json, "args")) > CELL_MCP_LIMIT_ARGS)
		return cell_fail(err, CELL_E_INVALID, 0, "'args' must be a list of at most %u strings", CELL_MCP_LIMIT_ARGS);
	if (check_keys(json, err) < 0 || text_from(json, "command", &params->command, err) < 0 ||
	    strings_from(json, "args", &params->args, &params->n_args, err) < 0 || pairs_from(json, "env", &params->env, err) < 0 ||
	    text_from(json, "cwd", &params->cwd, err) < 0 || text_from(json, "url", &params->url, err) < 0 ||
	    pairs_from(json, "headers", &params->headers, err) < 0 || text_from(json, "type", &type, err) < 0 ||
	    text_from(json, "transport", &transport, err) < 0 || seconds_from(json, "timeout", &tool->timeout_ms, err) < 0 ||
	    seconds_from(json, "start_timeout", &params->start_timeout_ms, err) < 0 ||
	    text_from(json, "description", &tool->description, err) < 0 || bool_from(json, "host", &params->host, err) < 0 ||
	    strings_from(json, "tags", &tool->tags, &tool->n_tags, err) < 0 || text_from(json, "auth", &auth, err) < 0 ||
	    text_from(json, "client_id", &params->client_id, err) < 0 ||
	    text_from(json, "client_secret", &params->client_secret, err) < 0 ||
	    text_from(json, "client_metadata_url", &params->client_metadata_url, err) < 0 ||
	    text_from(json, "scope", &params->scope, err) < 0)
		return -1;
	if (set_auth(params, auth, &why) < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "%s", why.size ? why.data : "out of memory");
	if (cell__mcp_params_settle(params, transport ? transport : type, &why) < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "%s", why.size ? why.data : "out of memory");
	return 0;
}

struct cell__tool_entry *cell__mcp_tool_from_json(const char *name, const json_t *json, struct cell_error *err)
{
	if (!json_is_object(json)) {
		cell_fail(err, CELL_E_INVALID, 0, "the parameters of an MCP server must be a JSON object");
		return NULL;
	}
	struct cell__tool_entry *tool = cell__alloc(1, sizeof *tool);
	if (!tool) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	tool->refs = 1;
	tool->adapter = &cell__tool_mcp;
	tool->timeout_ms = CELL_TOOL_DEFAULT_TIMEOUT_MS;
	tool->max_output = CELL_TOOL_LIMIT_OUTPUT;
	tool->name = cell__strdup(name);
	tool->mcp = cell__mcp_params_create();
	if (!tool->name || !tool->mcp)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	else if (fill_from(json, tool, err) == 0)
		return tool;
	cell__tool_unref(tool);
	return NULL;
}
