/* Which route a request is for, and whether what it brings is what the route takes.  Pure. */
#include "server/server.h"

#include <stdio.h>
#include <string.h>

/* Does the path fit, and where are its parameters? */
static bool fits(const char *pattern, const char *path, struct cell__match *match)
{
	size_t n = 0;

	memset(match->params, 0, sizeof(match->params));
	while (*pattern) {
		if (*pattern != '{') {
			if (*pattern++ != *path++)
				return false;
			continue;
		}
		const char *end = strchr(pattern, '}');
		size_t size = end[-1] == '.' ? strlen(path) : strcspn(path, "/");

		if (!size || n == CELL_SERVER_MAX_PARAMS)
			return false;
		match->params[n] = path;
		match->sizes[n++] = size;
		path += size;
		pattern = end + 1;
	}
	return !*path;
}

void cell__route_find(const char *method, const char *path, struct cell__match *ret_match)
{
	struct cell__match match = { 0 };
	size_t used = 0;

	for (const struct cell__route *route = cell__routes; route->path; route++) {
		if (!fits(route->path, path, &match))
			continue;
		if (!strcmp(route->method, method)) {
			match.route = route;
			match.allow[0] = '\0';
			*ret_match = match;
			return;
		}
		/* A fixed path hides the parameter of another: GET /api/tools/search is not a tool. */
		if (!strstr(match.allow, route->method) && used < sizeof(match.allow) - 16)
			used += (size_t)snprintf(match.allow + used, sizeof(match.allow) - used, "%s%s", used ? ", " : "", route->method);
	}
	*ret_match = match;
}

/* ---- fields ---- */

static bool is_kind(enum cell__kind kind, const json_t *value)
{
	size_t i;
	json_t *item;

	switch (kind) {
	case CELL_KIND_STRING:
		return json_is_string(value);
	case CELL_KIND_NUMBER:
		return json_is_number(value);
	case CELL_KIND_INTEGER:
		return json_is_integer(value);
	case CELL_KIND_BOOL:
		return json_is_boolean(value);
	case CELL_KIND_OBJECT:
		return json_is_object(value);
	case CELL_KIND_STRINGS:
		if (!json_is_array(value))
			return false;
		json_array_foreach(value, i, item) {
			if (!json_is_string(item))
				return false;
		}
		return true;
	case CELL_KIND_NAME:
		return json_is_string(value) && strlen(json_string_value(value)) == json_string_length(value);
	case CELL_KIND_SECONDS:
		return json_is_number(value) && json_number_value(value) >= 0;
	case CELL_KIND_COUNT:
		return json_is_integer(value) && json_integer_value(value) > 0;
	case CELL_KIND_ANY:
		return true;
	}
	return false;
}

static const char *kind_words(enum cell__kind kind)
{
	static const char *const words[] = {
		[CELL_KIND_STRING] = "Input should be a valid string",
		[CELL_KIND_NUMBER] = "Input should be a valid number",
		[CELL_KIND_INTEGER] = "Input should be a valid integer",
		[CELL_KIND_BOOL] = "Input should be a valid boolean",
		[CELL_KIND_OBJECT] = "Input should be an object",
		[CELL_KIND_STRINGS] = "Input should be a list of strings",
		[CELL_KIND_ANY] = "",
		[CELL_KIND_NAME] = "Input should be a valid string",
		[CELL_KIND_SECONDS] = "Input should be a number of 0 or more",
		[CELL_KIND_COUNT] = "Input should be an integer of 1 or more",
	};

	return words[kind];
}

json_t *cell__fields_check(const struct cell__field *fields, const json_t *object, const char *where)
{
	json_t *problems = json_array();

	if (!json_is_object(object)) {
		json_array_append_new(problems, json_pack("{s:[s],s:s,s:s}", "loc", where, "msg", "Input should be an object", "type",
							  "model_attributes_type"));
		return problems;
	}
	for (; fields->name; fields++) {
		const json_t *value = json_object_get(object, fields->name);
		const char *words = NULL, *type = "missing";

		if (!value && fields->required) {
			words = "Field required";
		} else if (value && !(json_is_null(value) && fields->nullable) && !is_kind(fields->kind, value)) {
			words = kind_words(fields->kind);
			type = "type_error";
		}
		if (words)
			json_array_append_new(problems, json_pack("{s:[s,s],s:s,s:s}", "loc", where, fields->name, "msg", words, "type",
								  type));
	}
	return problems;
}
