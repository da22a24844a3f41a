/* HTTP tools from their YAML tree. */
#define _GNU_SOURCE
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "tools/internal.h"

static bool in_path(const char *path, const char *name)
{
	size_t n, size = strlen(name);
	for (; *path; path++) {
		const char *found = cell__http_placeholder(path, &n);
		if (found && n - 2 == size && strncmp(found, name, size) == 0)
			return true;
	}
	return false;
}

static bool has_body(const char *method)
{
	return strcmp(method, "POST") == 0 || strcmp(method, "PUT") == 0 || strcmp(method, "PATCH") == 0;
}

static void load_place(struct cell__loader *loader, const struct cell__yaml *where, const struct cell__callable *endpoint,
		       struct cell__param *param)
{
	static const struct {
		const char *word;
		enum cell__arg_place place;
	} places[] = { { "path", CELL_IN_PATH }, { "query", CELL_IN_QUERY }, { "body", CELL_IN_BODY }, { "header", CELL_IN_HEADER } };
	if (in_path(endpoint->path, param->name))
		param->place = CELL_IN_PATH;
	else
		param->place = has_body(endpoint->method) ? CELL_IN_BODY : CELL_IN_QUERY;
	if (!cell__yaml_is_given(where))
		return;
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		if (where->kind == CELL_YAML_SCALAR && strcmp(where->text, places[i].word) == 0) {
			if ((param->place == CELL_IN_PATH) != (places[i].place == CELL_IN_PATH))
				cell__load_problem(loader, where, "parameter '%.60s' is %s the endpoint's path", param->name,
						   param->place == CELL_IN_PATH ? "in" : "not in");
			param->place = places[i].place;
			return;
		}
	cell__load_problem(loader, where, "'in' must be path, query, body or header");
}

/* No argument may take the place of a header that the definition sets. */
static bool is_fixed_header(const struct cell__tool_entry *tool, const char *name)
{
	for (size_t i = 0; i < tool->headers.count; i++) {
		const char *fixed = tool->headers.list[i].key, *at = name;
		while (fixed && *fixed && *at && tolower((unsigned char)*fixed) == tolower((unsigned char)(*at == '_' ? '-' : *at))) {
			fixed++;
			at++;
		}
		if (fixed && !*fixed && !*at)
			return true;
	}
	return false;
}

static void load_endpoint_param(struct cell__loader *loader, const struct cell__yaml *key, const struct cell__yaml *spec,
				const struct cell__tool_entry *tool, struct cell__callable *endpoint)
{
	static const char *const known[] = { "type", "required", "default", "description", "enum", "in", NULL };
	if (!*key->text || cell__params_find(&endpoint->params, key->text)) {
		cell__load_problem(loader, key, "invalid or duplicate parameter name '%.60s'", key->text);
		return;
	}
	struct cell__param *param = cell__load_add_param(loader, key, &endpoint->params, key->text);
	if (!param)
		return;
	bool map = cell__yaml_is_given(spec) && cell__load_keys(loader, spec, "a parameter", known);
	load_place(loader, map ? cell__yaml_get(spec, "in") : NULL, endpoint, param);
	if (map)
		cell__load_param(loader, spec, param);
	if (param->place == CELL_IN_PATH && !param->fallback)
		param->required = true;
	if (param->fallback)
		param->required = false;
	if (param->place == CELL_IN_HEADER && !cell__http_header_name_ok(param->name))
		cell__load_problem(loader, key, "invalid header name '%.60s'", param->name);
	else if (param->place == CELL_IN_HEADER && is_fixed_header(tool, param->name))
		cell__load_problem(loader, key, "header '%.60s' is set by the tool", param->name);
	bool list_ok = param->place == CELL_IN_BODY || param->place == CELL_IN_QUERY;
	if ((param->type == CELL_ARG_OBJECT && param->place != CELL_IN_BODY) || (param->type == CELL_ARG_ARRAY && !list_ok))
		cell__load_problem(loader, key, "parameter '%.60s' cannot be of type %s in that place", param->name,
				   cell__arg_type_word(param->type));
}

/* A placeholder without a description is a required string. */
static void add_placeholders(struct cell__loader *loader, const struct cell__yaml *at, struct cell__callable *endpoint)
{
	for (const char *path = endpoint->path; *path; path++) {
		size_t n;
		const char *name = cell__http_placeholder(path, &n);
		if (!name) {
			if (*path == '{' || *path == '}') {
				cell__load_problem(loader, at, "write a placeholder as {name}");
				return;
			}
			continue;
		}
		CELL_AUTO_FREE char *copy = cell__strndup(name, n - 2);
		if (copy && !in_path(path + 1, copy) && !cell__params_find(&endpoint->params, copy)) {
			struct cell__param *param = cell__load_add_param(loader, at, &endpoint->params, copy);
			if (param) {
				param->place = CELL_IN_PATH;
				param->required = true;
			}
		}
		path += n - 1;
	}
}

static void load_method(struct cell__loader *loader, const struct cell__yaml *method, struct cell__callable *endpoint)
{
	static const char *const known[] = { "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS" };
	const char *word = !cell__yaml_is_given(method) ? "GET" : method->kind == CELL_YAML_SCALAR ? method->text : "";
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (strcasecmp(word, known[i]) == 0)
			endpoint->method = cell__strdup(known[i]);
	if (!endpoint->method) {
		cell__load_problem(loader, method, "unknown method '%.20s'", word);
		endpoint->method = cell__strdup("GET");
	}
}

static void load_path(struct cell__loader *loader, const struct cell__yaml *at, const struct cell__yaml *path,
		      struct cell__callable *endpoint)
{
	cell__load_text(loader, path, "path", &endpoint->path);
	if (!endpoint->path || endpoint->path[0] != '/') {
		cell__load_problem(loader, path ? path : at, "endpoint '%.60s' needs a path that begins with /", endpoint->name);
		free(endpoint->path);
		endpoint->path = cell__strdup("/");
	}
	for (const unsigned char *c = (const unsigned char *)endpoint->path; c && *c; c++)
		if (*c <= 0x20 || *c >= 0x7f || *c == '#' || *c == '?') {
			cell__load_problem(loader, path, "the path contains an invalid character");
			return;
		}
}

static void load_fixed(struct cell__loader *loader, const struct cell__yaml *spec, struct cell__callable *endpoint)
{
	const struct cell__yaml *query = cell__yaml_get(spec, "query"), *body = cell__yaml_get(spec, "body");
	cell__load_json(loader, query, &endpoint->query);
	if (endpoint->query && !json_is_object(endpoint->query))
		cell__load_problem(loader, query, "query must be a mapping");
	cell__load_json(loader, body, &endpoint->body);
	for (size_t i = 0; endpoint->body && !json_is_object(endpoint->body) && i < endpoint->params.count; i++)
		if (endpoint->params.list[i].place == CELL_IN_BODY) {
			cell__load_problem(loader, body, "body must be a mapping when parameters are merged into it");
			return;
		}
}

static void load_endpoint(struct cell__loader *loader, const struct cell__yaml *key, const struct cell__yaml *spec,
			  struct cell__tool_entry *tool)
{
	static const char *const known[] = { "method", "path", "description", "parameters", "query", "body", "timeout", "supposed", NULL };
	if (!cell__load_keys(loader, spec, "an endpoint", known))
		return;
	struct cell__callable *endpoint = cell__load_callable(loader, key, "endpoint", tool);
	if (!endpoint)
		return;
	load_method(loader, cell__yaml_get(spec, "method"), endpoint);
	load_path(loader, key, cell__yaml_get(spec, "path"), endpoint);
	if (!endpoint->method || !endpoint->path) {
		cell__load_problem(loader, key, "out of memory");
		return;
	}
	cell__load_text(loader, cell__yaml_get(spec, "description"), "description", &endpoint->description);
	cell__load_timeout(loader, cell__yaml_get(spec, "timeout"), &endpoint->timeout_ms);
	const struct cell__yaml *params = cell__yaml_get(spec, "parameters");
	if (cell__yaml_is_given(params) && params->kind != CELL_YAML_MAPPING)
		cell__load_problem(loader, params, "parameters must be a mapping");
	else if (cell__yaml_is_given(params))
		for (size_t i = 0; i < params->count; i += 2)
			load_endpoint_param(loader, params->items[i], params->items[i + 1], tool, endpoint);
	add_placeholders(loader, key, endpoint);
	load_fixed(loader, spec, endpoint);
	cell__load_json(loader, cell__yaml_get(spec, "supposed"), &endpoint->supposed);
}

static void load_base_url(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	const struct cell__yaml *url = cell__yaml_get(doc, "base_url");
	cell__load_text(loader, url, "base_url", &tool->base_url);
	const char *text = tool->base_url ? tool->base_url : "";
	if (!cell__http_base_ok(text)) {
		cell__load_problem(
			loader, url ? url : doc,
			"Tool '%s' needs a base_url: http:// or https://, a host and optionally a path; secrets belong in headers",
			tool->name);
		return;
	}
	size_t n = strlen(text);
	while (n > 0 && tool->base_url[n - 1] == '/')
		tool->base_url[--n] = '\0';
}

static void check_headers(struct cell__loader *loader, const struct cell__yaml *headers, const struct cell__tool_entry *tool)
{
	for (size_t i = 0; i < tool->headers.count; i++) {
		const struct cell__pair *pair = &tool->headers.list[i];
		if (!pair->key || !pair->value)
			return;
		if (!cell__http_header_name_ok(pair->key) || strpbrk(pair->value, "\r\n"))
			cell__load_problem(loader, headers, "'%.60s' is not a valid header", pair->key);
	}
}

void cell__load_headers(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	cell__load_pairs(loader, cell__yaml_get(doc, "headers"), "headers", &tool->headers);
	check_headers(loader, cell__yaml_get(doc, "headers"), tool);
}

void cell__load_http(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	static const char *const known[] = { "name",       "type",     "description", "timeout",   "tags",
					     "max_output", "base_url", "headers",     "endpoints", NULL };
	tool->adapter = &cell__tool_http;
	cell__load_keys(loader, doc, "a tool of type http", known);
	load_base_url(loader, doc, tool);
	cell__load_headers(loader, doc, tool);
	const struct cell__yaml *endpoints = cell__yaml_get(doc, "endpoints");
	if (!cell__yaml_is_given(endpoints) || endpoints->kind != CELL_YAML_MAPPING || endpoints->count == 0) {
		cell__load_problem(loader, endpoints ? endpoints : doc, "Tool '%s' has no endpoints", tool->name);
		return;
	}
	cell__load_callables(loader, endpoints, "endpoints", load_endpoint, tool);
}
