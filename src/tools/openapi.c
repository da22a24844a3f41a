/*
 * An OpenAPI document (3.0, 3.1) into callables of an HTTP tool, one for each operation.  Pure; the document is not trusted.
 *
 * References are followed within the document, a bounded number of times, so a cycle costs no more than that. An operation that cannot be
 * called (a body of a type that we do not write, two required parameters of one name) is left out, and the tool's description says how many were.
 */
#define _GNU_SOURCE
#include "tools/openapi.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define MAX_HOPS 16u         /* references to references */
#define MAX_POINTER 1024u    /* bytes of a reference */
#define MAX_DESCRIPTION 800u /* bytes, of an operation or a parameter */
#define MAX_SHAPE_DEPTH 4u
#define MAX_SHAPE_NODES 60u
#define MAX_BODY_PARAMS 64u  /* more members: the body is one argument */
#define MAX_CHOICES 256u

struct reader {
	const json_t *document;
	const struct cell__openapi_wish *wish;
	struct cell__tool_entry *tool;
	struct cell__buf *why;
	size_t left_out;
};

static int no_memory(struct reader *reader)
{
	cell__buf_add_str(reader->why, "out of memory");
	return -1;
}

/* ---- references ---- */

static int hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One step of a pointer, decoded (~0, ~1, %xx); returns the rest. */
static const char *next_step(const char *at, char *step, size_t room)
{
	size_t n = 0;
	for (; *at && *at != '/'; at++) {
		char c = *at;
		if (c == '~' && (at[1] == '0' || at[1] == '1'))
			c = *++at == '0' ? '~' : '/';
		else if (c == '%' && hex_digit(at[1]) >= 0 && hex_digit(at[2]) >= 0) {
			c = (char)(hex_digit(at[1]) * 16 + hex_digit(at[2]));
			at += 2;
		}
		if (n + 1 < room)
			step[n++] = c;
	}
	step[n] = '\0';
	return *at == '/' ? at + 1 : at;
}

static const json_t *follow(const json_t *document, const char *pointer)
{
	char step[MAX_POINTER];
	const json_t *at = document;
	if (strncmp(pointer, "#/", 2) != 0 || strlen(pointer) >= MAX_POINTER)
		return NULL;
	pointer += 2;
	while (at && *pointer) {
		pointer = next_step(pointer, step, sizeof step);
		at = json_is_array(at) ? json_array_get(at, (size_t)strtoul(step, NULL, 10)) : json_object_get(at, step);
	}
	return at;
}

/* The object itself, or the one that it refers to; NULL: there is none. */
static const json_t *resolve(const struct reader *reader, const json_t *node)
{
	for (unsigned hops = 0; hops < MAX_HOPS && json_is_object(node); hops++) {
		const char *reference = json_string_value(json_object_get(node, "$ref"));
		if (!reference)
			return node;
		node = follow(reader->document, reference);
	}
	return NULL;
}

static const char *text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	return text && strlen(text) == json_string_length(json_object_get(object, name)) ? text : "";
}

/* ---- names ---- */

/* A name that Python can write: letters, digits and _; at most `room`. */
static void add_name(struct cell__buf *out, const char *text, size_t room)
{
	if (!isalpha((unsigned char)*text))
		cell__buf_add_str(out, "op_");
	for (; *text && out->size < room; text++) {
		char c = isalnum((unsigned char)*text) ? *text : '_';
		if (c != '_' || (out->size > 0 && out->data[out->size - 1] != '_'))
			cell__buf_add(out, &c, 1);
	}
	while (out->size > 0 && out->data[out->size - 1] == '_')
		out->data[--out->size] = '\0';
}

static bool is_taken(const struct cell__tool_entry *tool, const char *name)
{
	for (size_t i = 0; i < tool->n_callables; i++)
		if (strcmp(tool->callables[i].name, name) == 0)
			return true;
	return false;
}

static char *name_operation(const struct reader *reader, const char *method, const char *path, const json_t *operation)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT, made = CELL_BUF_INIT;
	const char *id = text_of(operation, "operationId");
	if (*id)
		add_name(&name, id, CELL_TOOL_LIMIT_NAME);
	else if (cell__buf_printf(&made, "%s%s", method, path) == 0) {
		for (size_t i = 0; i < strlen(method); i++)
			made.data[i] = (char)tolower((unsigned char)made.data[i]);
		add_name(&name, made.data, CELL_TOOL_LIMIT_NAME);
	}
	if (!name.data || name.size == 0)
		return NULL;
	for (unsigned i = 2; is_taken(reader->tool, name.data) && i < 1000; i++) {
		size_t keep = name.size < CELL_TOOL_LIMIT_NAME - 4 ? strcspn(name.data, "\0") : CELL_TOOL_LIMIT_NAME - 4;
		made.size = 0;
		if (cell__buf_printf(&made, "%.*s_%u", (int)keep, name.data, i) < 0)
			return NULL;
		if (!is_taken(reader->tool, made.data))
			return cell__strdup(made.data);
	}
	return cell__buf_take(&name);
}

/* ---- schemas ---- */

static enum cell__arg_type word_type(const char *word)
{
	bool ok = false;
	enum cell__arg_type type = cell__arg_type_parse(word, &ok);
	return ok ? type : CELL_ARG_ANY;
}

/* What the schema says itself; *ret_first: its type is that of the first of its allOf. */
static enum cell__arg_type own_type(const struct reader *reader, const json_t *schema, bool *ret_nullable, const json_t **ret_first)
{
	const json_t *type = json_object_get(schema, "type"), *word;
	const char *found = json_string_value(type);
	size_t i, n = 0;
	if (json_is_true(json_object_get(schema, "nullable")))
		*ret_nullable = true;
	json_array_foreach(type, i, word) {
		if (strcmp(json_string_value(word) ? json_string_value(word) : "", "null") == 0) {
			*ret_nullable = true;
		} else {
			found = json_string_value(word);
			n++;
		}
	}
	if (found && n < 2)
		return word_type(found);
	if (n >= 2 || json_object_get(schema, "oneOf") || json_object_get(schema, "anyOf"))
		return CELL_ARG_ANY;
	const json_t *all = json_object_get(schema, "allOf");
	if (json_array_size(all) > 0)
		*ret_first = resolve(reader, json_array_get(all, 0));
	if (json_object_get(schema, "properties"))
		return CELL_ARG_OBJECT;
	return json_object_get(schema, "items") ? CELL_ARG_ARRAY : CELL_ARG_ANY;
}

/* schema may be NULL: anything. A schema may be the first of its own allOf, so the steps are bounded. */
static enum cell__arg_type schema_type(const struct reader *reader, const json_t *schema, bool *ret_nullable)
{
	for (unsigned hops = 0; hops < MAX_HOPS; hops++) {
		const json_t *first = NULL;
		const enum cell__arg_type type = own_type(reader, schema, ret_nullable, &first);
		if (!first)
			return type;
		schema = first;
	}
	return CELL_ARG_ANY;
}

/* What a value looks like, for the person or model that writes one: {"name": "string", "tags": ["string"]}. */
static json_t *shape(const struct reader *reader, const json_t *node, unsigned depth, unsigned *left)
{
	const json_t *schema = resolve(reader, node), *property;
	bool nullable = false;
	if (!schema || depth == 0 || *left == 0)
		return json_string("...");
	--*left;
	const enum cell__arg_type type = schema_type(reader, schema, &nullable);
	if (type == CELL_ARG_ARRAY)
		return json_pack("[o]", shape(reader, json_object_get(schema, "items"), depth - 1, left));
	const json_t *properties = json_object_get(schema, "properties");
	if (!json_is_object(properties))
		return json_string(cell__arg_type_word(type));
	json_t *made = json_object();
	const char *name;
	json_object_foreach((json_t *)properties, name, property) {
		if (*left == 0) {
			json_object_set_new(made, "...", json_string("..."));
			break;
		}
		json_object_set_new(made, name, shape(reader, property, depth - 1, left));
	}
	return made;
}

/* A description, cut, and the shape of a value that has parts. */
static char *describe(const struct reader *reader, const char *text, const char *more, const json_t *schema, enum cell__arg_type type)
{
	struct cell__buf out = CELL_BUF_INIT;
	cell__buf_add_str(&out, text);
	if (*more)
		cell__buf_printf(&out, "%s%s", out.size ? " " : "", more);
	if (out.size > MAX_DESCRIPTION) {
		out.size = MAX_DESCRIPTION - cell__utf8_cut(out.data, MAX_DESCRIPTION);
		out.data[out.size] = '\0';
	}
	if (schema && (type == CELL_ARG_OBJECT || type == CELL_ARG_ARRAY || json_object_get(schema, "properties"))) {
		unsigned left = MAX_SHAPE_NODES;
		json_t *made = shape(reader, schema, MAX_SHAPE_DEPTH, &left);
		CELL_AUTO_FREE char *shown = made ? json_dumps(made, JSON_ENCODE_ANY) : NULL;
		json_decref(made);
		if (shown && strlen(shown) <= 2 * MAX_DESCRIPTION)
			cell__buf_printf(&out, "%sShape: %s", out.size ? " " : "", shown);
	}
	return cell__buf_take(&out);
}

/* Only lists of plain values, and short ones, are checked here; the server checks the others. */
static json_t *choices_of(const json_t *schema)
{
	const json_t *list = json_object_get(schema, "enum"), *value;
	size_t i;
	if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > MAX_CHOICES)
		return NULL;
	json_array_foreach(list, i, value)
		if (json_is_object(value) || json_is_array(value))
			return NULL;
	return json_incref((json_t *)list);
}

/* ---- parameters ---- */

static struct cell__param *add_param(struct cell__params *params, const char *name)
{
	struct cell__param *list = params->count < CELL_TOOL_LIMIT_PARAMS ? cell__realloc(params->list, (params->count + 1) * sizeof *list)
									  : NULL;
	if (!list)
		return NULL;
	params->list = list;
	list[params->count] = (struct cell__param){ .name = cell__strdup(name) };
	return list[params->count].name ? &list[params->count++] : NULL;
}

/* -1: there is no room for it. */
static int add_argument(struct reader *reader, struct cell__callable *callable, const char *name, enum cell__arg_place place,
			const char *description, bool required, const json_t *schema)
{
	struct cell__param *param = add_param(&callable->params, name);
	if (!param)
		return -1;
	const char *more = "";
	param->place = place;
	param->required = required;
	param->type = schema_type(reader, schema, &param->nullable);
	const bool in_body = place == CELL_IN_BODY || place == CELL_IN_WHOLE;
	if (param->type == CELL_ARG_ARRAY && place != CELL_IN_QUERY && !in_body) {
		param->type = CELL_ARG_STRING;
		more = "(values with commas between)";
	}
	param->choices = *more ? NULL
			       : choices_of(param->type == CELL_ARG_ARRAY ? resolve(reader, json_object_get(schema, "items")) : schema);
	const json_t *fallback = json_object_get(schema, "default");
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	if (fallback && !required && !json_is_null(fallback) && cell__arg_check(param, fallback, &why) == 0) {
		param->fallback = json_incref((json_t *)fallback);
		param->theirs = true;
	}
	param->description = describe(reader, *description ? description : text_of(schema, "description"), more, schema, param->type);
	return 0;
}

static bool find_place(const char *word, enum cell__arg_place *ret_place)
{
	static const struct {
		const char *word;
		enum cell__arg_place place;
	} places[] = { { "path", CELL_IN_PATH }, { "query", CELL_IN_QUERY }, { "header", CELL_IN_HEADER }, { "cookie", CELL_IN_COOKIE } };
	for (size_t i = 0; i < sizeof places / sizeof *places; i++)
		if (strcmp(word, places[i].word) == 0) {
			*ret_place = places[i].place;
			return true;
		}
	return false;
}

/* The same header: an underscore of an argument's name is sent as a hyphen. */
static bool is_header(const char *name, const char *header)
{
	for (; *name && *header; name++, header++)
		if (tolower((unsigned char)(*name == '_' ? '-' : *name)) != tolower((unsigned char)(*header == '_' ? '-' : *header)))
			return false;
	return *name == *header;
}

/* Headers that are ours to write: the specification's three, those of the tool, and those of the connection, by which code could
 * make the server and a proxy before it see different requests. */
static bool is_ours(const struct reader *reader, const char *name)
{
	static const char *const ours[] = { "Accept",
					    "Content-Type",
					    "Authorization",
					    "Cookie",
					    "Host",
					    "Content-Length",
					    "Transfer-Encoding",
					    "Connection",
					    "Keep-Alive",
					    "TE",
					    "Trailer",
					    "Upgrade",
					    "Expect",
					    "Proxy-Authorization",
					    "Proxy-Connection" };
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (is_header(name, ours[i]))
			return true;
	for (size_t i = 0; i < reader->tool->headers.count; i++)
		if (is_header(name, reader->tool->headers.list[i].key))
			return true;
	return false;
}

static const json_t *schema_of(const struct reader *reader, const json_t *parameter)
{
	const json_t *schema = json_object_get(parameter, "schema");
	if (!schema)
		schema = json_object_get(json_object_get(json_object_get(parameter, "content"), "application/json"), "schema");
	return resolve(reader, schema);
}

/* False: the operation cannot be called without it. */
static bool read_parameter(struct reader *reader, const json_t *node, struct cell__callable *callable)
{
	const json_t *parameter = resolve(reader, node);
	const char *name = text_of(parameter, "name");
	enum cell__arg_place place;
	CELL_AUTO_BUF struct cell__buf plain = CELL_BUF_INIT;
	bool required = json_is_true(json_object_get(parameter, "required"));
	if (!*name || !find_place(text_of(parameter, "in"), &place))
		return !required && parameter;
	if (place == CELL_IN_HEADER && is_ours(reader, name))
		return true;
	const json_t *schema = schema_of(reader, parameter);
	bool nullable = false;
	const bool is_object = schema_type(reader, schema, &nullable) == CELL_ARG_OBJECT;
	if (place == CELL_IN_PATH) { /* placeholders are written so, see place_holders() */
		add_name(&plain, name, CELL_TOOL_LIMIT_NAME);
		name = plain.data ? plain.data : name;
		required = true;
	}
	bool bad = (is_object && place != CELL_IN_QUERY) || (place == CELL_IN_HEADER && !cell__http_header_name_ok(name)) ||
		   (place == CELL_IN_COOKIE && !cell__http_header_name_ok(name)) || cell__params_find(&callable->params, name);
	if (bad)
		return !required;
	return add_argument(reader, callable, name, place, text_of(parameter, "description"), required, schema) == 0 || !required;
}

/* A parameter of the path's own list that the operation replaces. */
static bool is_replaced(const struct reader *reader, const json_t *parameter, const json_t *own)
{
	const json_t *each;
	size_t i;
	parameter = resolve(reader, parameter);
	json_array_foreach(own, i, each) {
		each = resolve(reader, each);
		if (strcmp(text_of(each, "name"), text_of(parameter, "name")) == 0 &&
		    strcmp(text_of(each, "in"), text_of(parameter, "in")) == 0)
			return true;
	}
	return false;
}

static bool read_parameters(struct reader *reader, const json_t *item, const json_t *operation, struct cell__callable *callable)
{
	const json_t *shared = json_object_get(item, "parameters"), *own = json_object_get(operation, "parameters"), *each;
	size_t i;
	if (json_array_size(shared) > CELL_TOOL_LIMIT_PARAMS || json_array_size(own) > CELL_TOOL_LIMIT_PARAMS)
		return false;
	json_array_foreach(shared, i, each)
		if (!is_replaced(reader, each, own) && !read_parameter(reader, each, callable))
			return false;
	json_array_foreach(own, i, each)
		if (!read_parameter(reader, each, callable))
			return false;
	return true;
}

/* The path with placeholders as they are known to callables, each with a parameter.  NULL: it cannot be written. */
static char *place_holders(struct reader *reader, const char *path, struct cell__callable *callable)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	if (*path != '/')
		return NULL;
	while (*path) {
		const char *end = *path == '{' ? strchr(path, '}') : NULL;
		if (*path == '}' || (*path == '{' && !end) || (unsigned char)*path <= 0x20 || (unsigned char)*path >= 0x7f ||
		    strchr("?#\\", *path))
			return NULL;
		if (*path != '{') {
			cell__buf_add(&out, path++, 1);
			continue;
		}
		CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
		CELL_AUTO_FREE char *raw = cell__strndup(path + 1, (size_t)(end - path - 1));
		if (raw && *raw)
			add_name(&name, raw, CELL_TOOL_LIMIT_NAME);
		if (!name.size || cell__buf_printf(&out, "{%s}", name.data) < 0)
			return NULL;
		const struct cell__param *known = cell__params_find(&callable->params, name.data);
		if (known ? known->place != CELL_IN_PATH : add_argument(reader, callable, name.data, CELL_IN_PATH, "", true, NULL) < 0)
			return NULL;
		path = end + 1;
	}
	return cell__buf_take(&out);
}

/* ---- bodies ---- */

static const json_t *find_content(const json_t *content, struct cell__callable *callable)
{
	const char *type;
	json_t *media;
	json_object_foreach((json_t *)content, type, media)
		if (cell__http_is_json(type) || strcmp(type, "*/*") == 0)
			return media;
	media = json_object_get(content, "application/x-www-form-urlencoded");
	callable->form = media != NULL;
	if (!media)
		media = json_object_get(content, "multipart/form-data");
	callable->multipart = media && !callable->form;
	return media;
}

static bool is_file(const json_t *schema)
{
	return strcmp(text_of(schema, "format"), "binary") == 0 || json_object_get(schema, "contentMediaType") ||
	       json_object_get(schema, "contentEncoding");
}

/* A member of a multipart body that is a file, or a list of files: multipart.c has how it is written. */
static int mark_file(struct reader *reader, struct cell__callable *callable, const json_t *schema)
{
	static const char how[] = "{\"filename\": \"a.txt\", \"content\": text} or {..., \"base64\": bytes}, optionally \"type\"";
	struct cell__param *param = &callable->params.list[callable->params.count - 1];
	const bool list = is_file(resolve(reader, json_object_get(schema, "items")));
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (!list && !is_file(schema))
		return 0;
	if (cell__buf_printf(&text, "%s%s: %s", text_of(schema, "description"), list ? " (files, each" : " (a file", how) < 0 ||
	    cell__buf_add_str(&text, ")") < 0)
		return -1;
	free(param->description);
	param->description = cell__buf_take(&text);
	if (!list)
		param->type = CELL_ARG_OBJECT;
	return 0;
}

/* Whether each member of the body can be an argument of its own. */
static bool is_flat(const struct reader *reader, const json_t *schema, const struct cell__callable *callable)
{
	const json_t *properties = json_object_get(schema, "properties");
	bool nullable = false;
	const char *name;
	json_t *property;
	if (!json_is_object(properties) || json_object_size(properties) == 0 || json_object_size(properties) > MAX_BODY_PARAMS ||
	    json_object_get(schema, "allOf") || json_object_get(schema, "oneOf") || json_object_get(schema, "anyOf") ||
	    schema_type(reader, schema, &nullable) != CELL_ARG_OBJECT)
		return false;
	json_object_foreach((json_t *)properties, name, property)
		if (!*name || cell__params_find(&callable->params, name))
			return false;
	return true;
}

static bool is_listed(const json_t *list, const char *name)
{
	const json_t *each;
	size_t i;
	json_array_foreach(list, i, each)
		if (json_is_string(each) && strcmp(json_string_value(each), name) == 0)
			return true;
	return false;
}

static bool read_body(struct reader *reader, const json_t *operation, struct cell__callable *callable)
{
	const json_t *body = resolve(reader, json_object_get(operation, "requestBody"));
	if (!body)
		return true;
	const bool required = json_is_true(json_object_get(body, "required"));
	const json_t *media = find_content(json_object_get(body, "content"), callable);
	const json_t *schema = resolve(reader, json_object_get(media, "schema"));
	if (!media)
		return !required;
	if (!is_flat(reader, schema, callable)) {
		if (cell__params_find(&callable->params, "body"))
			return !required;
		return add_argument(reader, callable, "body", CELL_IN_WHOLE, text_of(body, "description"), required, schema) == 0;
	}
	const json_t *needed = json_object_get(schema, "required");
	const char *name;
	json_t *property;
	json_object_foreach(json_object_get(schema, "properties"), name, property) {
		const json_t *member = resolve(reader, property);
		if (!json_is_true(json_object_get(member, "readOnly")) &&
		    (add_argument(reader, callable, name, CELL_IN_BODY, "", required && is_listed(needed, name), member) < 0 ||
		     (callable->multipart && mark_file(reader, callable, member) < 0)))
			return false;
	}
	return true;
}

/* ---- operations ---- */

static bool matches(const json_t *patterns, const char *text)
{
	const json_t *each;
	size_t i;
	json_array_foreach(patterns, i, each)
		if (json_is_string(each) && fnmatch(json_string_value(each), text, 0) == 0)
			return true;
	return false;
}

static bool has_tag(const json_t *patterns, const json_t *operation)
{
	const json_t *tag;
	size_t i;
	json_array_foreach(json_object_get(operation, "tags"), i, tag)
		if (json_is_string(tag) && matches(patterns, json_string_value(tag)))
			return true;
	return false;
}

static bool is_chosen(const struct reader *reader, const char *method, const char *path, const json_t *operation)
{
	const struct cell__openapi_wish *wish = reader->wish;
	CELL_AUTO_BUF struct cell__buf place = CELL_BUF_INIT;
	const char *id = text_of(operation, "operationId");
	if (cell__buf_printf(&place, "%s %s", method, path) < 0)
		return false;
	if (has_tag(wish->without_tags, operation) || matches(wish->without_operations, id) ||
	    matches(wish->without_operations, place.data))
		return false;
	if (!wish->tags && !wish->operations)
		return true;
	return has_tag(wish->tags, operation) || matches(wish->operations, id) || matches(wish->operations, place.data);
}

static int add_operation(struct reader *reader, const char *method, const char *path, const json_t *item, const json_t *operation)
{
	struct cell__tool_entry *tool = reader->tool;
	struct cell__callable callable = { .name = name_operation(reader, method, path, operation), .method = cell__strdup(method) };
	struct cell__callable *list = NULL;
	if (tool->n_callables == CELL_TOOL_LIMIT_CALLABLES) {
		cell__callable_finish(&callable);
		cell__buf_printf(reader->why, "the document has more than %u operations: choose some by include",
				 CELL_TOOL_LIMIT_CALLABLES);
		return -1;
	}
	bool works = callable.name && callable.method && read_parameters(reader, item, operation, &callable);
	if (works)
		works = (callable.path = place_holders(reader, path, &callable)) != NULL && read_body(reader, operation, &callable);
	if (works) {
		const char *summary = text_of(operation, "summary"), *text = text_of(operation, "description");
		callable.description = describe(reader, *summary ? summary : text,
						*summary && *text && strcmp(summary, text) != 0 ? text : "", NULL, CELL_ARG_ANY);
		works = cell__params_add_aliases(&callable.params) == 0;
		list = cell__realloc(tool->callables, (tool->n_callables + 1) * sizeof *list);
	}
	if (!list) {
		reader->left_out += !works;
		cell__callable_finish(&callable);
		return works ? no_memory(reader) : 0;
	}
	tool->callables = list;
	list[tool->n_callables++] = callable;
	return 0;
}

static int read_paths(struct reader *reader)
{
	static const char *const methods[] = { "get", "put", "post", "delete", "options", "head", "patch" };
	const json_t *paths = json_object_get(reader->document, "paths");
	const char *path;
	json_t *node;
	json_object_foreach((json_t *)paths, path, node) {
		const json_t *item = resolve(reader, node);
		for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
			const json_t *operation = json_object_get(item, methods[i]);
			char method[8] = "";
			for (size_t k = 0; methods[i][k]; k++)
				method[k] = (char)toupper((unsigned char)methods[i][k]);
			if (json_is_object(operation) && is_chosen(reader, method, path, operation) &&
			    add_operation(reader, method, path, item, operation) < 0)
				return -1;
		}
	}
	if (reader->tool->n_callables > 0)
		return 0;
	cell__buf_add_str(reader->why, reader->left_out ? "none of the chosen operations can be called" : "no operation is chosen");
	return -1;
}

/* ---- the server ---- */

/* Variables of the server's URL, from the definition or as the document has them by default. */
static int expand_server(struct reader *reader, const json_t *server, struct cell__buf *url)
{
	for (const char *at = text_of(server, "url"); *at;) {
		const char *end = *at == '{' ? strchr(at, '}') : NULL;
		if (!end) {
			if (cell__buf_add(url, at++, 1) < 0)
				return no_memory(reader);
			continue;
		}
		CELL_AUTO_FREE char *name = cell__strndup(at + 1, (size_t)(end - at - 1));
		const json_t *variable = name ? json_object_get(json_object_get(server, "variables"), name) : NULL;
		const char *value = name ? text_of(reader->wish->variables, name) : "";
		const bool given = *value;
		if (!given)
			value = text_of(variable, "default");
		if (!*value ||
		    (given && json_is_array(json_object_get(variable, "enum")) && !is_listed(json_object_get(variable, "enum"), value))) {
			cell__buf_printf(reader->why, "the server's variable '%.60s' %s", name ? name : "",
					 *value ? "has a value that the document does not allow" : "needs a value: set it in variables");
			return -1;
		}
		if (cell__buf_add_str(url, value) < 0)
			return no_memory(reader);
		at = end + 1;
	}
	return 0;
}

/* A URL is meant as it is: the document must not have another server that is described by it. */
static const json_t *choose_server(struct reader *reader, const json_t *servers)
{
	const char *wish = reader->wish->server;
	const json_t *each;
	size_t i;
	if (!wish)
		return json_array_get(servers, 0);
	json_array_foreach(servers, i, each)
		if (strcmp(text_of(each, "url"), wish) == 0 || (!strstr(wish, "://") && strcmp(text_of(each, "description"), wish) == 0))
			return each;
	return NULL;
}

/* A document that was fetched may change at any time: it cannot send the tool's requests, and what authenticates them, to a server
 * that the definition does not name. */
static bool is_named(const struct reader *reader, const char *base)
{
	const char *wish = reader->wish->server, *from = reader->wish->document_url;
	return !from || cell__http_same_origin(base, from) || (wish && strstr(wish, "://") && cell__http_same_origin(base, wish));
}

static int find_base(struct reader *reader)
{
	const char *wish = reader->wish->server, *from = reader->wish->document_url;
	const json_t *server = choose_server(reader, json_object_get(reader->document, "servers"));
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT, whole = CELL_BUF_INIT;
	int rc = server ? expand_server(reader, server, &url) : cell__buf_add_str(&url, wish ? wish : from ? "/" : "");
	if (rc < 0)
		return -1;
	if (url.size > 0 && *url.data == '/' && from) { /* relative to the document: its host, or with two slashes its scheme only */
		const char *host = strstr(from, "://");
		const size_t kept = host && url.data[1] == '/' ? 1 : 3;
		rc = host ? cell__buf_printf(&whole, "%.*s%s", (int)(host - from + kept + (kept == 3 ? strcspn(host + 3, "/?#") : 0)), from,
					     url.data)
			  : -1;
	} else {
		rc = cell__buf_add_str(&whole, url.data ? url.data : "");
	}
	if (rc < 0)
		return no_memory(reader);
	while (whole.size > 0 && whole.data[whole.size - 1] == '/')
		whole.data[--whole.size] = '\0';
	if (!whole.data || !cell__http_base_ok(whole.data)) {
		cell__buf_printf(reader->why, "the server '%.120s' is not an http:// or https:// URL with a host: set server",
				 whole.data ? whole.data : "");
		return -1;
	}
	if (!is_named(reader, whole.data)) {
		cell__buf_printf(reader->why,
				 "the document names a server of another host, '%.120s': if that is meant, set server to this URL",
				 whole.data);
		return -1;
	}
	reader->tool->base_url = cell__buf_take(&whole);
	return 0;
}

/* ---- authentication ---- */

static int add_pair(struct reader *reader, struct cell__pairs *pairs, const char *key, const char *head, const char *value, bool basic)
{
	struct cell__pair *list = cell__realloc(pairs->list, (pairs->count + 1) * sizeof *list);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (list)
		pairs->list = list;
	if (!list || cell__buf_printf(&text, "%s%s", head, value) < 0)
		return no_memory(reader);
	list[pairs->count] = (struct cell__pair){ .key = cell__strdup(key), .value = cell__buf_take(&text), .basic = basic };
	pairs->count++; /* what is missing for lack of memory is freed as NULL */
	return list[pairs->count - 1].key && list[pairs->count - 1].value ? 0 : no_memory(reader);
}

static int use_scheme(struct reader *reader, const char *name, const json_t *scheme, const char *value)
{
	struct cell__tool_entry *tool = reader->tool;
	const char *type = text_of(scheme, "type"), *in = text_of(scheme, "in"), *key = text_of(scheme, "name"),
		   *kind = text_of(scheme, "scheme");
	CELL_AUTO_BUF struct cell__buf cookie = CELL_BUF_INIT;
	if (strcmp(type, "apiKey") == 0 && strcmp(in, "query") == 0 && *key)
		return add_pair(reader, &tool->query, key, "", value, false);
	if (strcmp(type, "apiKey") == 0 && cell__http_header_name_ok(key)) {
		if (strcmp(in, "header") == 0)
			return add_pair(reader, &tool->headers, key, "", value, false);
		if (strcmp(in, "cookie") == 0 && cell__buf_printf(&cookie, "%s=", key) == 0)
			return add_pair(reader, &tool->headers, "Cookie", cookie.data, value, false);
	}
	if (strcmp(type, "http") == 0 && strcasecmp(kind, "basic") == 0)
		return add_pair(reader, &tool->headers, "Authorization", "", value, true);
	if ((strcmp(type, "http") == 0 && strcasecmp(kind, "bearer") == 0) || strcmp(type, "oauth2") == 0 ||
	    strcmp(type, "openIdConnect") == 0)
		return add_pair(reader, &tool->headers, "Authorization", "Bearer ", value, false);
	cell__buf_printf(reader->why, "the security scheme '%.60s' is of a kind that is not supported", name);
	return -1;
}

static int read_auth(struct reader *reader)
{
	const json_t *schemes = json_object_get(json_object_get(reader->document, "components"), "securitySchemes");
	const char *name, *known;
	json_t *value, *each;
	json_object_foreach((json_t *)reader->wish->auth, name, value) {
		const json_t *scheme = resolve(reader, json_object_get(schemes, name));
		if (!scheme) {
			cell__buf_printf(reader->why, "auth: the document has no security scheme '%.60s'; it has:", name);
			json_object_foreach((json_t *)schemes, known, each)
				if (reader->why->size < 200)
					cell__buf_printf(reader->why, " %.60s", known);
			return -1;
		}
		if (use_scheme(reader, name, scheme, json_string_value(value) ? json_string_value(value) : "") < 0)
			return -1;
	}
	return 0;
}

/* ---- the document ---- */

int cell__openapi_read(const json_t *document, const struct cell__openapi_wish *wish, struct cell__tool_entry *tool, struct cell__buf *why)
{
	struct reader reader = { .document = document, .wish = wish, .tool = tool, .why = why };
	const char *version = text_of(document, "openapi");
	if (json_object_get(document, "swagger")) {
		cell__buf_add_str(why, "this is a Swagger 2 document: convert it to OpenAPI 3");
		return -1;
	}
	if (strncmp(version, "3.0", 3) != 0 && strncmp(version, "3.1", 3) != 0) {
		cell__buf_printf(why, "openapi is '%.20s', expected 3.0 or 3.1", version);
		return -1;
	}
	if (find_base(&reader) < 0 || read_auth(&reader) < 0 || read_paths(&reader) < 0)
		return -1;
	if (!tool->description) {
		CELL_AUTO_BUF struct cell__buf left = CELL_BUF_INIT;
		const json_t *info = json_object_get(document, "info");
		if (reader.left_out)
			cell__buf_printf(&left, "(%zu operations cannot be called and are left out)", reader.left_out);
		tool->description = describe(&reader, text_of(info, "title"), left.data ? left.data : "", NULL, CELL_ARG_ANY);
	}
	return 0;
}
