#define _GNU_SOURCE
#include "mcp/client/param_headers.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define LARGEST 9007199254740991ll /* 2^53 - 1 */

/* ---- values ---- */

static bool is_plain(const char *value)
{
	size_t size = strlen(value);
	if (size == 0 || value[0] == ' ' || value[size - 1] == ' ')
		return false;
	for (size_t i = 0; i < size; i++)
		if (value[i] < 0x20 || value[i] > 0x7e)
			return false;
	return strncasecmp(value, "=?base64?", 9) != 0;
}

int cell__header_list_add(struct cell__header_list *list, const char *name, const char *value)
{
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	int rc = cell__buf_printf(&line, "%s: ", name);
	if (is_plain(value)) {
		rc |= cell__buf_add_str(&line, value);
	} else {
		rc |= cell__buf_add_str(&line, "=?base64?");
		rc |= cell__buf_add_base64(&line, value, strlen(value));
		rc |= cell__buf_add_str(&line, "?=");
	}
	char **lines = rc < 0 ? NULL : cell__realloc(list->lines, (list->count + 2) * sizeof *lines);
	if (!lines)
		return -1;
	list->lines = lines;
	lines[list->count++] = cell__buf_take(&line);
	lines[list->count] = NULL;
	return 0;
}

void cell__header_list_finish(struct cell__header_list *list)
{
	cell__strings_free(list->lines);
	*list = (struct cell__header_list){ 0 };
}

/* ---- annotations ---- */

struct search {
	const char *names[CELL_MCP_LIMIT_PARAM_HEADERS];
	int count;
	const char *why; /* invalid */
	/* when headers are added */
	struct cell__header_list *list;
	struct cell_error *err;
};

static bool is_token(const char *name)
{
	for (const char *at = name; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("!#$%&'*+-.^_`|~", *at))
			return false;
	return *name != '\0' && strlen(name) <= CELL_MCP_LIMIT_PARAM_NAME;
}

static bool has_sendable_type(const json_t *schema)
{
	const char *type = json_string_value(json_object_get(schema, "type"));
	return type && (strcmp(type, "string") == 0 || strcmp(type, "integer") == 0 || strcmp(type, "boolean") == 0);
}

static int invalid(struct search *search, const char *why)
{
	search->why = why;
	return -1;
}

static int note(struct search *search, const json_t *schema, const json_t *annotation, bool reachable)
{
	const char *name = json_string_value(annotation);
	if (!name || !is_token(name) || strlen(name) != json_string_length(annotation))
		return invalid(search, "x-mcp-header is not a header name");
	if (!reachable)
		return invalid(search, "x-mcp-header is on a value that is not a named parameter");
	if (!has_sendable_type(schema))
		return invalid(search, "x-mcp-header is on a parameter that is not a string, an integer or a boolean");
	for (int i = 0; i < search->count; i++)
		if (strcasecmp(search->names[i], name) == 0)
			return invalid(search, "two parameters have the same x-mcp-header");
	if (search->count >= (int)CELL_MCP_LIMIT_PARAM_HEADERS)
		return invalid(search, "too many parameters have an x-mcp-header");
	search->names[search->count++] = name;
	return 0;
}

static int walk(struct search *search, const json_t *value, bool reachable, bool is_schema, unsigned depth);

static int walk_properties(struct search *search, const json_t *properties, bool reachable, unsigned depth)
{
	const char *name;
	json_t *each;
	json_object_foreach((json_t *)properties, name, each)
		if (walk(search, each, reachable, true, depth) < 0)
			return -1;
	return 0;
}

/* Annotations count where a schema stands, and only `properties` of `properties` name a parameter. */
static int walk(struct search *search, const json_t *value, bool reachable, bool is_schema, unsigned depth)
{
	const char *key;
	json_t *each;
	size_t i;
	if (depth >= CELL_MCP_LIMIT_PARAM_DEPTH)
		return invalid(search, "its schema is too deep");
	json_array_foreach((json_t *)value, i, each)
		if (walk(search, each, false, is_schema, depth + 1) < 0)
			return -1;
	json_object_foreach((json_t *)value, key, each) {
		int rc;
		if (strcmp(key, "x-mcp-header") == 0 && is_schema)
			rc = note(search, value, each, reachable && depth > 0);
		else if (strcmp(key, "properties") == 0 && is_schema)
			rc = walk_properties(search, each, reachable, depth + 1);
		else if (strcmp(key, "default") == 0 || strcmp(key, "const") == 0 || strcmp(key, "enum") == 0 ||
			 strcmp(key, "examples") == 0)
			rc = 0; /* data, not a schema */
		else
			rc = walk(search, each, false, true, depth + 1);
		if (rc < 0)
			return -1;
	}
	return 0;
}

int cell__param_headers_check(const json_t *schema, const char **ret_why)
{
	struct search search = { 0 };
	if (walk(&search, schema, true, true, 0) == 0)
		return search.count;
	*ret_why = search.why;
	return -1;
}

/* ---- headers of a call ---- */

static int add_value(struct cell__header_list *list, const char *header, const json_t *value, struct cell_error *err)
{
	char name[160], number[32];
	const char *text = json_string_value(value);
	snprintf(name, sizeof name, "Mcp-Param-%s", header);
	if (json_is_integer(value)) {
		if (json_integer_value(value) > LARGEST || json_integer_value(value) < -LARGEST)
			return cell_fail(err, CELL_E_INVALID, 0, "the value of parameter '%s' is too large for a header", header);
		snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
		text = number;
	} else if (json_is_real(value) && json_real_value(value) >= -LARGEST && json_real_value(value) <= LARGEST &&
		   json_real_value(value) == (double)(long long)json_real_value(value)) {
		snprintf(number, sizeof number, "%lld", (long long)json_real_value(value)); /* 5.0 is an integer as well */
		text = number;
	} else if (json_is_boolean(value)) {
		text = json_is_true(value) ? "true" : "false";
	}
	if (!text)
		return 0; /* null, or not of the schema's type: the server says so */
	if (strlen(text) > CELL_MCP_LIMIT_PARAM_VALUE || (json_is_string(value) && strlen(text) != json_string_length(value)))
		return cell_fail(err, CELL_E_INVALID, 0, "the value of parameter '%s' cannot be sent as a header", header);
	return cell__header_list_add(list, name, text) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : 0;
}

static int add_below(struct cell__header_list *list, const json_t *schema, const json_t *args, unsigned depth, struct cell_error *err)
{
	const char *key;
	json_t *each;
	json_object_foreach(json_object_get(schema, "properties"), key, each) {
		const json_t *value = json_object_get(args, key);
		const char *header = json_string_value(json_object_get(each, "x-mcp-header"));
		if (value && header && add_value(list, header, value, err) < 0)
			return -1;
		if (json_is_object(value) && depth < CELL_MCP_LIMIT_PARAM_DEPTH && add_below(list, each, value, depth + 1, err) < 0)
			return -1;
	}
	return 0;
}

int cell__param_headers_add(struct cell__header_list *list, const json_t *schema, const json_t *args, struct cell_error *err)
{
	return add_below(list, schema, args, 0, err);
}
