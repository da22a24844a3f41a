/*
 * An endpoint and its arguments into a request.  Pure.
 *
 * No argument can change where the request goes: values in the path are encoded whole, `/` too, and may not make a
 * segment empty, "." or ".."; values in headers hold no control characters.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "tools/internal.h"

#define FORM_DEPTH 8u /* objects in objects of a form */

void cell__httpreq_finish(struct cell__httpreq *req)
{
	free(req->method);
	free(req->url);
	for (size_t i = 0; i < req->n_headers; i++)
		free(req->headers[i]);
	free(req->headers);
	free(req->body);
	*req = (struct cell__httpreq){ 0 };
}

const char *cell__http_placeholder(const char *path, size_t *ret_size)
{
	size_t n = 1;
	if (path[0] != '{')
		return NULL;
	while (isalnum((unsigned char)path[n]) || path[n] == '_')
		n++;
	if (n == 1 || path[n] != '}')
		return NULL;
	*ret_size = n + 1;
	return path + 1;
}

bool cell__http_header_name_ok(const char *name)
{
	if (!*name)
		return false;
	for (; *name; name++)
		if (!isalnum((unsigned char)*name) && !strchr("!#$%&'*+-.^_`|~", *name))
			return false;
	return true;
}

bool cell__http_is_json(const char *content_type)
{
	size_t n = content_type ? strcspn(content_type, "; \t") : 0;
	return (n == 16 && strncasecmp(content_type, "application/json", 16) == 0) ||
	       (n > 5 && strncasecmp(content_type + n - 5, "+json", 5) == 0);
}

/* ---- where a URL leads ---- */

struct origin {
	const char *scheme, *host;
	size_t scheme_size, host_size; /* host without its port */
	long port;
};

static bool parse_origin(const char *url, struct origin *ret)
{
	const char *sep = strstr(url, "://");
	if (!sep)
		return false;
	ret->scheme = url;
	ret->scheme_size = (size_t)(sep - url);
	ret->host = sep + 3;
	size_t n = strcspn(ret->host, "/?#");
	if (memchr(ret->host, '@', n) || n == 0)
		return false;
	const char *end = ret->host + n;
	const char *after = ret->host[0] == '[' ? memchr(ret->host, ']', n) : ret->host;
	const char *colon = after ? memchr(after, ':', (size_t)(end - after)) : NULL;
	ret->host_size = colon ? (size_t)(colon - ret->host) : n;
	ret->port = colon ? strtol(colon + 1, NULL, 10) : ret->scheme_size == 5 ? 443 : 80;
	return true;
}

bool cell__http_same_origin(const char *a, const char *b)
{
	struct origin one, two;
	return parse_origin(a, &one) && parse_origin(b, &two) && one.scheme_size == two.scheme_size &&
	       strncasecmp(one.scheme, two.scheme, one.scheme_size) == 0 && one.host_size == two.host_size &&
	       strncasecmp(one.host, two.host, one.host_size) == 0 && one.port == two.port;
}

bool cell__http_base_ok(const char *url)
{
	bool web = strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0;
	/* A URL has the same origin as itself only if it has one. */
	return web && !strpbrk(url, "?#{}@ \t\r\n\\") && cell__http_same_origin(url, url);
}

/* ---- building ---- */

static int out_of_memory(struct cell__buf *why)
{
	cell__buf_add_str(why, "out of memory");
	return -1;
}

int cell__http_add_encoded(struct cell__buf *out, const char *bytes, size_t size)
{
	int rc = 0;
	for (size_t i = 0; i < size && rc == 0; i++) {
		unsigned char c = (unsigned char)bytes[i];
		if ((c < 0x80 && isalnum(c)) || (c && strchr("-._~", c)))
			rc = cell__buf_add(out, &bytes[i], 1);
		else
			rc = cell__buf_printf(out, "%%%02X", c);
	}
	return rc;
}

/* The text of a scalar; values that no URL or header can carry are refused. */
static int scalar_text(const char *name, const json_t *value, struct cell__buf *out, struct cell__buf *why)
{
	if (json_is_array(value) || json_is_object(value) || json_is_null(value)) {
		cell__buf_printf(why, "Argument '%s' must be a string, a number or a boolean here", name);
		return -1;
	}
	if (cell__arg_text(value, out) < 0)
		return out_of_memory(why);
	if (out->size && memchr(out->data, '\0', out->size)) {
		cell__buf_printf(why, "Argument '%s' contains a NUL character", name);
		return -1;
	}
	return 0;
}

static int add_path_value(const char *name, const json_t *value, struct cell__buf *url, struct cell__buf *why)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (!value) {
		cell__buf_printf(why, "Required parameter '%s' is missing", name);
		return -1;
	}
	if (scalar_text(name, value, &text, why) < 0)
		return -1;
	if (text.size == 0) {
		cell__buf_printf(why, "Argument '%s' must not be empty: it is part of the path", name);
		return -1;
	}
	return cell__http_add_encoded(url, text.data, text.size) < 0 ? out_of_memory(why) : 0;
}

/* The number of dots that a segment is made of, each also written as %2e; 0: it has something else in it. */
static size_t dots_of(const char *segment, size_t size)
{
	size_t dots = 0;
	for (size_t i = 0; i < size; dots++) {
		const bool encoded = size - i >= 3 && strncasecmp(segment + i, "%2e", 3) == 0;
		if (!encoded && segment[i] != '.')
			return 0;
		i += encoded ? 3 : 1;
	}
	return dots;
}

/* "." and ".." would leave the endpoint's path. */
static int check_segments(const char *path, struct cell__buf *why)
{
	while (*path) {
		path += *path == '/';
		size_t n = strcspn(path, "/");
		const size_t dots = dots_of(path, n);
		if (dots == 1 || dots == 2) {
			cell__buf_add_str(why, "An argument in the path must not be '.' or '..'");
			return -1;
		}
		path += n;
	}
	return 0;
}

static int add_path(const struct cell__callable *endpoint, const json_t *args, struct cell__buf *url, struct cell__buf *why)
{
	size_t start = url->size;
	for (const char *at = endpoint->path; *at;) {
		size_t n;
		const char *name = cell__http_placeholder(at, &n);
		if (!name) {
			if (cell__buf_add(url, at++, 1) < 0)
				return out_of_memory(why);
			continue;
		}
		CELL_AUTO_FREE char *copy = cell__strndup(name, n - 2);
		if (!copy)
			return out_of_memory(why);
		if (add_path_value(copy, json_object_get(args, copy), url, why) < 0)
			return -1;
		at += n;
	}
	return url->data ? check_segments(url->data + start, why) : 0;
}

static int add_query_one(const char *name, const json_t *value, char *sep, struct cell__buf *url, struct cell__buf *why)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (scalar_text(name, value, &text, why) < 0)
		return -1;
	int rc = cell__buf_add(url, sep, 1) | cell__http_add_encoded(url, name, strlen(name)) | cell__buf_add_str(url, "=") |
		 cell__http_add_encoded(url, text.data, text.size);
	*sep = '&';
	return rc < 0 ? out_of_memory(why) : 0;
}

/* An object is written as name[key]=value, as forms and deepObject have it; nested values only in forms. */
static int add_members(const char *name, const json_t *value, char *sep, struct cell__buf *url, unsigned depth, struct cell__buf *why);

static int add_query_value(const char *name, const json_t *value, char *sep, struct cell__buf *url, struct cell__buf *why)
{
	if (json_is_object(value))
		return add_members(name, value, sep, url, 1, why);
	if (!json_is_array(value))
		return add_query_one(name, value, sep, url, why);
	for (size_t i = 0; i < json_array_size(value); i++)
		if (add_query_one(name, json_array_get(value, i), sep, url, why) < 0)
			return -1;
	return 0;
}

static int add_member(const char *name, const char *key, const json_t *value, char *sep, struct cell__buf *url, unsigned depth,
		      struct cell__buf *why)
{
	CELL_AUTO_BUF struct cell__buf whole = CELL_BUF_INIT;
	if (cell__buf_printf(&whole, "%s[%s]", name, key) < 0)
		return out_of_memory(why);
	return add_members(whole.data, value, sep, url, depth, why);
}

static int add_members(const char *name, const json_t *value, char *sep, struct cell__buf *url, unsigned depth, struct cell__buf *why)
{
	const char *key;
	char number[24];
	json_t *each;
	size_t i;
	if (!json_is_object(value) && !json_is_array(value))
		return add_query_one(name, value, sep, url, why);
	if (depth == 0) {
		cell__buf_printf(why, "Argument '%.60s' is nested too deeply", name);
		return -1;
	}
	json_object_foreach((json_t *)value, key, each)
		if (add_member(name, key, each, sep, url, depth - 1, why) < 0)
			return -1;
	json_array_foreach(value, i, each) {
		snprintf(number, sizeof number, "%zu", i);
		if (add_member(name, number, each, sep, url, depth - 1, why) < 0)
			return -1;
	}
	return 0;
}

static int add_query(const struct cell__callable *endpoint, const json_t *args, struct cell__buf *url, struct cell__buf *why)
{
	char sep = '?';
	const char *name;
	json_t *value;
	json_object_foreach(endpoint->query, name, value) {
		const struct cell__param *param = cell__params_find(&endpoint->params, name);
		bool given = param && param->place == CELL_IN_QUERY && json_object_get(args, param->name);
		if (!given && add_query_value(name, value, &sep, url, why) < 0)
			return -1;
	}
	for (size_t i = 0; i < endpoint->params.count; i++) {
		const struct cell__param *param = &endpoint->params.list[i];
		value = param->place == CELL_IN_QUERY ? json_object_get(args, param->name) : NULL;
		if (value && add_query_value(param->name, value, &sep, url, why) < 0)
			return -1;
	}
	return 0;
}

static int add_header(struct cell__httpreq *req, const char *name, const char *value, struct cell__buf *why)
{
	char **list = cell__realloc(req->headers, (req->n_headers + 1) * sizeof *list);
	struct cell__buf line = CELL_BUF_INIT;
	if (list)
		req->headers = list;
	/* A header without a value is written with a semicolon, or libcurl would drop it. */
	if (!list || cell__buf_printf(&line, *value ? "%s: %s" : "%s;", name, value) < 0) {
		cell__buf_finish(&line);
		return out_of_memory(why);
	}
	list[req->n_headers++] = line.data;
	return 0;
}

static int add_header_arg(const struct cell__param *param, const json_t *value, struct cell__httpreq *req, struct cell__buf *why)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *name = cell__strdup(param->name);
	if (!name || scalar_text(param->name, value, &text, why) < 0)
		return name ? -1 : out_of_memory(why);
	for (size_t i = 0; i < text.size; i++)
		if ((unsigned char)text.data[i] < 0x20 || text.data[i] == 0x7f) {
			cell__buf_printf(why, "Argument '%s' contains a control character", param->name);
			return -1;
		}
	for (char *at = name; *at; at++)
		if (*at == '_')
			*at = '-';
	return add_header(req, name, text.data, why);
}

/* One header for all cookies; no value can become a second cookie. */
static int add_cookies(const struct cell__callable *endpoint, const json_t *args, struct cell__httpreq *req, struct cell__buf *why)
{
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	for (size_t i = 0; i < endpoint->params.count; i++) {
		const struct cell__param *param = &endpoint->params.list[i];
		const json_t *value = param->place == CELL_IN_COOKIE ? json_object_get(args, param->name) : NULL;
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		if (!value)
			continue;
		if (scalar_text(param->name, value, &text, why) < 0)
			return -1;
		if (cell__buf_printf(&line, "%s%s=", line.size ? "; " : "", param->name) < 0 ||
		    cell__http_add_encoded(&line, text.data, text.size) < 0)
			return out_of_memory(why);
	}
	return line.size ? add_header(req, "Cookie", line.data, why) : 0;
}

static int add_headers(const struct cell__callable *endpoint, const json_t *args, struct cell__httpreq *req, struct cell__buf *why)
{
	for (size_t i = 0; i < endpoint->params.count; i++) {
		const struct cell__param *param = &endpoint->params.list[i];
		const json_t *value = param->place == CELL_IN_HEADER ? json_object_get(args, param->name) : NULL;
		if (value && add_header_arg(param, value, req, why) < 0)
			return -1;
	}
	return 0;
}

static json_t *merged_body(const struct cell__callable *endpoint, const json_t *args)
{
	json_t *body = endpoint->body ? json_copy(endpoint->body) : NULL;
	for (size_t i = 0; i < endpoint->params.count; i++) {
		const struct cell__param *param = &endpoint->params.list[i];
		if (param->place == CELL_IN_WHOLE && json_object_get(args, param->name)) {
			json_decref(body);
			return json_incref(json_object_get(args, param->name));
		}
		json_t *value = param->place == CELL_IN_BODY ? json_object_get(args, param->name) : NULL;
		if (!value)
			continue;
		if (!body)
			body = json_object();
		json_object_set(body, param->name, value);
	}
	return body;
}

static int write_form(const json_t *body, char **ret_text, struct cell__buf *why)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char sep = '&';
	const char *name;
	json_t *value;
	if (!json_is_object(body)) {
		cell__buf_add_str(why, "The body of this request is a form: it must be an object");
		return -1;
	}
	json_object_foreach((json_t *)body, name, value)
		if (add_members(name, value, &sep, &text, FORM_DEPTH, why) < 0)
			return -1;
	*ret_text = cell__strdup(text.size ? text.data + 1 : "");
	return *ret_text ? 0 : out_of_memory(why);
}

static int add_body(const struct cell__tool_entry *tool, const struct cell__callable *endpoint, const json_t *args,
		    struct cell__httpreq *req, struct cell__buf *why)
{
	json_t *body = merged_body(endpoint, args);
	if (!body)
		return 0;
	int rc = 0;
	CELL_AUTO_BUF struct cell__buf parts = CELL_BUF_INIT;
	CELL_AUTO_FREE char *type = NULL;
	if (endpoint->multipart)
		rc = cell__multipart_write(body, &parts, &type, why);
	else if (endpoint->form)
		rc = write_form(body, &req->body, why);
	else if (!(req->body = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY)))
		rc = out_of_memory(why);
	json_decref(body);
	if (rc < 0)
		return -1;
	req->body_size = endpoint->multipart ? parts.size : strlen(req->body);
	if (endpoint->multipart)
		req->body = cell__buf_take(&parts);
	if (req->body_size > CELL_TOOL_LIMIT_BODY_BYTES) {
		cell__buf_printf(why, "The request's body is larger than %u bytes", CELL_TOOL_LIMIT_BODY_BYTES);
		return -1;
	}
	if (type) /* its boundary is in it */
		return add_header(req, "Content-Type", type, why);
	for (size_t i = 0; i < tool->headers.count; i++)
		if (strcasecmp(tool->headers.list[i].key, "Content-Type") == 0)
			return 0;
	return add_header(req, "Content-Type", endpoint->form ? "application/x-www-form-urlencoded" : "application/json", why);
}

int cell__httpreq_build(const struct cell__tool_entry *tool, const struct cell__callable *endpoint, const json_t *args,
			struct cell__httpreq *ret_req, struct cell__buf *why)
{
	struct cell__httpreq req = { 0 };
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;
	int rc = cell__buf_add_str(&url, tool->base_url) < 0 ? out_of_memory(why) : 0;
	if (rc == 0)
		rc = add_path(endpoint, args, &url, why);
	if (rc == 0)
		rc = add_query(endpoint, args, &url, why);
	if (rc == 0)
		rc = add_headers(endpoint, args, &req, why);
	if (rc == 0)
		rc = add_cookies(endpoint, args, &req, why);
	if (rc == 0)
		rc = add_body(tool, endpoint, args, &req, why);
	if (rc == 0) {
		req.method = cell__strdup(endpoint->method);
		req.url = cell__buf_take(&url);
		if (!req.method || !req.url)
			rc = out_of_memory(why);
	}
	if (rc < 0) {
		cell__httpreq_finish(&req);
		return -1;
	}
	*ret_req = req;
	return 0;
}
