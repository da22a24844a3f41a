/* Finds the route of a request, and checks the request against the route's schemas. Pure. */
#include "server/server.h"

#include <stdio.h>
#include <string.h>

#include "calls/schema.h"

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

void cell__route_find(const struct cell__route *routes, const char *method, const char *path, struct cell__match *ret_match)
{
	struct cell__match match = { 0 };
	size_t used = 0;

	for (const struct cell__route *route = routes; route->path; route++) {
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

/* ---- schemas ---- */

/* Clients must not give members that the path or the route itself sets. */
static void leave_out(json_t *schema, const char *name)
{
	json_t *required = json_object_get(schema, "required");

	json_object_del(json_object_get(schema, "properties"), name);
	for (size_t i = json_array_size(required); i > 0; i--) {
		if (!strcmp(json_string_value(json_array_get(required, i - 1)), name))
			json_array_remove(required, i - 1);
	}
}

static bool is_body(const struct cell__route *route)
{
	return !route->raw && strcmp(route->method, "GET");
}

static json_t *make_arguments(const struct cell__route *route)
{
	json_t *schema = cell__operation_takes(route->operation, route->takes);
	json_t *sets = route->sets ? json_loads(route->sets, JSON_REJECT_DUPLICATES, NULL) : NULL, *value;
	const char *name;

	for (const char *at = strchr(route->path, '{'); at; at = strchr(at + 1, '{')) {
		char param[32];

		snprintf(param, sizeof(param), "%.*s", (int)strcspn(at + 1, ".}"), at + 1);
		leave_out(schema, param);
	}
	json_object_foreach(sets, name, value)
		leave_out(schema, name);
	/* A query has no null. */
	if (!schema || (route->sets && !sets) || (is_body(route) && cell__schema_allow_null(schema) < 0)) {
		json_decref(schema);
		schema = NULL;
	}
	json_decref(sets);
	return schema;
}

static json_t *make_schema(const struct cell__route *route, bool body)
{
	const char *text = body ? route->body : route->query;

	if (route->operation && body == is_body(route) && !text)
		return make_arguments(route);
	return text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : json_object();
}

static json_t *make_body(const void *route)
{
	return make_schema(route, true);
}

static json_t *make_query(const void *route)
{
	return make_schema(route, false);
}

/* Routes of the MCP server, which are not in our table, have no schemas. */
static bool has_schema(const struct cell__route *route)
{
	return route->operation || route->body || route->query;
}

static const json_t *schema_of(const struct cell__route *route, bool body)
{
	static json_t *made[CELL_SERVER_MAX_ROUTES][2];

	if (!has_schema(route))
		return NULL;
	return cell__schema_once(&made[route - cell__routes][body], body ? make_body : make_query, route);
}

int cell__routes_prepare(struct cell_error *err)
{
	for (const struct cell__route *route = cell__routes; route->path; route++) {
		if (has_schema(route) && (!schema_of(route, true) || !schema_of(route, false)))
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the schemas of %s", route->path);
	}
	return 0;
}

static const json_t *unless_empty(const json_t *schema)
{
	return json_object_size(json_object_get(schema, "properties")) ? schema : NULL;
}

const json_t *cell__route_body(const struct cell__route *route)
{
	return unless_empty(schema_of(route, true));
}

const json_t *cell__route_query(const struct cell__route *route)
{
	return unless_empty(schema_of(route, false));
}

json_t *cell__request_args(const struct cell__request *request)
{
	const struct cell__route *route = request->route;
	const json_t *schema = schema_of(route, is_body(route)), *given = is_body(route) ? request->json : request->query;
	json_t *args = route->sets ? json_loads(route->sets, 0, NULL) : json_object(), *property, *value;
	size_t n = 0;
	const char *name;

	json_object_foreach(json_object_get(schema, "properties"), name, property) {
		value = json_object_get(given, name);
		if (value && !json_is_null(value))
			json_object_set(args, name, value);
	}
	(void)cell__schema_add_defaults(schema, args);
	for (const char *at = strchr(route->path, '{'); at; at = strchr(at + 1, '{')) {
		char param[32];

		snprintf(param, sizeof(param), "%.*s", (int)strcspn(at + 1, ".}"), at + 1);
		json_object_set_new(args, param, json_string(request->params[n++]));
	}
	return args;
}

/* ---- fields ---- */

struct problems {
	json_t *list;
	const char *where;
};

static void add_problem(void *arg, const struct cell__misfit *problem)
{
	const struct problems *problems = arg;
	const json_t *type = json_object_get(problem->schema, "type");
	const char *word = json_string_value(json_is_array(type) ? json_array_get(type, 0) : type);
	const char *kind = problem->wrong == CELL__WRONG_MISSING   ? "missing"
			   : problem->wrong == CELL__WRONG_UNKNOWN ? "extra_forbidden"
								   : "type_error";
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT;

	if (problem->wrong == CELL__WRONG_MISSING) {
		cell__buf_add_str(&words, "Field required");
	} else if (problem->wrong == CELL__WRONG_UNKNOWN) {
		cell__buf_add_str(&words, "Extra inputs are not permitted: the server's operator sets this");
	} else if (problem->wrong == CELL__WRONG_EMPTY) {
		cell__buf_add_str(&words, "Input should not be empty");
	} else if (word && !strcmp(word, "array")) {
		cell__buf_add_str(&words, "Input should be a list of strings");
	} else if (word && (!strcmp(word, "string") || !strcmp(word, "boolean")) && !json_object_get(problem->schema, "enum")) {
		cell__buf_printf(&words, "Input should be a valid %s", word);
	} else {
		cell__buf_add_str(&words, "Input should be ");
		cell__schema_add_words(&words, problem->schema);
	}
	json_array_append_new(problems->list, json_pack("{s:[s,s],s:s,s:s}", "loc", problems->where, problem->name, "msg",
							words.data ? words.data : "", "type", kind));
}

json_t *cell__fields_check(const json_t *schema, json_t *object, const char *where)
{
	struct problems problems = { .list = json_array(), .where = where };

	if (!json_is_object(object))
		json_array_append_new(problems.list, json_pack("{s:[s],s:s,s:s}", "loc", where, "msg", "Input should be an object", "type",
							       "model_attributes_type"));
	else
		cell__members_check(schema, object, add_problem, &problems);
	return problems.list;
}
