/* /openapi.json, from the table of routes. */
#include "server/server.h"

#include <ctype.h>
#include <string.h>

#include "calls/schema.h"

static json_t *reference(const char *name)
{
	return json_pack("{s:s+}", "$ref", "#/components/schemas/", name);
}

static json_t *body_of(const struct cell__route *route)
{
	json_t *schema, *content;

	if (route->raw) {
		content = json_pack("{s:{s:{s:s,s:s}}}", "application/octet-stream", "schema", "type", "string", "format", "binary");
	} else {
		schema = cell__schema_shown(cell__route_body(route));
		if (!json_array_size(json_object_get(schema, "required")))
			json_object_del(schema, "required");
		content = json_pack("{s:{s:o}}", "application/json", "schema", schema);
	}
	return json_pack("{s:b,s:o}", "required", !route->optional_body, "content", content);
}

static void add_parameter(json_t *list, const char *name, const char *in, bool required, json_t *schema)
{
	json_array_append_new(list, json_pack("{s:s,s:s,s:b,s:o}", "name", name, "in", in, "required", required, "schema", schema));
}

static json_t *parameters_of(const struct cell__route *route)
{
	json_t *list = json_array(), *query = cell__schema_shown(cell__route_query(route)), *property, *one;
	const char *field;
	size_t i;

	for (const char *at = strchr(route->path, '{'); at; at = strchr(at + 1, '{')) {
		char name[32];
		size_t size = strcspn(at + 1, ".}");

		memcpy(name, at + 1, size);
		name[size] = '\0';
		add_parameter(list, name, "path", true, json_pack("{s:s,s:i}", "type", "string", "minLength", 1));
	}
	json_object_foreach(json_object_get(query, "properties"), field, property) {
		bool required = false;

		json_array_foreach(json_object_get(query, "required"), i, one)
			required |= !strcmp(json_string_value(one), field);
		add_parameter(list, field, "query", required, json_incref(property));
	}
	json_decref(query);
	if (route->session_header)
		add_parameter(list, "X-Session-ID", "header", false, json_pack("{s:s}", "type", "string"));
	if (route->lasting)
		add_parameter(list, "Prefer", "header", false, json_pack("{s:[s]}", "enum", "respond-async"));
	if (route->answer && !strcmp(route->answer, "events"))
		add_parameter(list, "Last-Event-ID", "header", false, json_pack("{s:s,s:s}", "type", "string", "pattern", "^[0-9]+$"));
	return list;
}

static json_t *success_of(const struct cell__route *route)
{
	const char *words = route->status == MHD_HTTP_ACCEPTED ? "begun" : "done";

	if (!route->answer && !route->operation)
		return json_pack("{s:s}", "description", words);
	if (!route->answer)
		return json_pack("{s:s,s:{s:{s:o}}}", "description", words, "content", "application/json", "schema",
				 reference(route->operation->method));
	if (!strcmp(route->answer, "bytes"))
		return json_pack("{s:s,s:{s:{s:{}},s:{s:{s:s,s:s}}}}", "description", words, "content", "application/json", "schema",
				 "application/octet-stream", "schema", "type", "string", "format", "binary");
	if (!strcmp(route->answer, "html"))
		return json_pack("{s:s,s:{s:{s:{s:s}}}}", "description", words, "content", "text/html", "schema", "type", "string");
	if (!strcmp(route->answer, "events") || !strcmp(route->answer, "text"))
		return json_pack("{s:s,s:{s:{s:{s:s}}}}", "description", words, "content",
				 strcmp(route->answer, "text") ? "text/event-stream" : "text/plain", "schema", "type", "string");
	return json_pack("{s:s,s:{s:{s:o}}}", "description", words, "content", "application/json", "schema", reference(route->answer));
}

static json_t *operation_of(const struct cell__route *route)
{
	static const char *const scopes[] = {
		[CELL_SCOPE_OPEN] = "",       [CELL_SCOPE_READ] = "read",       [CELL_SCOPE_RUN] = "run",
		[CELL_SCOPE_ADMIN] = "admin", [CELL_SCOPE_APPROVE] = "approve", [CELL_SCOPE_METRICS] = "metrics"
	};
	char status[8], id[128];
	json_t *operation = json_object(), *responses = json_object(), *failure;
	size_t n = 0;

	for (const char *at = route->method; *at; at++)
		id[n++] = (char)tolower(*at);
	for (const char *at = route->path; *at && n < sizeof(id) - 1; at++) {
		if (isalnum((unsigned char)*at))
			id[n++] = *at;
		else if (n && id[n - 1] != '_')
			id[n++] = '_';
	}
	id[n && id[n - 1] == '_' ? n - 1 : n] = '\0';
	json_object_set_new(
		operation, "summary",
		json_sprintf("%s%s", route->summary ? route->summary : route->operation->about, route->former ? " (former name)" : ""));
	json_object_set_new(operation, "operationId", json_string(id));
	json_object_set_new(operation, "parameters", parameters_of(route));
	if (route->raw || cell__route_body(route))
		json_object_set_new(operation, "requestBody", body_of(route));
	snprintf(status, sizeof(status), "%u", route->status);
	json_object_set_new(responses, status, success_of(route));
	/* A run requested with Accept: text/event-stream is answered with its events. */
	if (route->status == MHD_HTTP_ACCEPTED)
		json_object_set_new(responses, "200",
				    json_pack("{s:s,s:{s:{s:{s:s}}}}", "description", "its events", "content", "text/event-stream",
					      "schema", "type", "string"));
	if (route->lasting)
		json_object_set_new(responses, "202",
				    json_pack("{s:s,s:{s:{s:o}}}", "description", "with Prefer: respond-async, a task", "content",
					      "application/json", "schema", reference("Task")));
	failure = json_pack("{s:s,s:{s:{s:o}}}", "description", "it failed", "content", "application/json", "schema", reference("Error"));
	if (route->is_page)
		json_object_set_new(json_object_get(failure, "content"), "text/html", json_pack("{s:{s:s}}", "schema", "type", "string"));
	json_object_set_new(responses, "default", failure);
	json_object_set_new(operation, "responses", responses);
	if (route->scope == CELL_SCOPE_OPEN)
		json_object_set_new(operation, "security", json_array());
	else
		json_object_set_new(operation, "x-scope", json_string(route->scope == CELL_SCOPE_ANY ? "any" : scopes[route->scope]));
	return operation;
}

char *cell__openapi(void)
{
	json_t *paths = json_object(), *schemas = json_object(), *root;
	char *text;

	for (const struct cell__route *route = cell__routes; route->path; route++) {
		char path[128], method[16];
		size_t n = 0;
		json_t *item;

		/* "{name...}" is "{name}" for other readers. */
		for (const char *at = route->path; *at; at++) {
			if (*at != '.' || at[1] == 'j')
				path[n++] = *at;
		}
		path[n] = '\0';
		for (n = 0; route->method[n]; n++)
			method[n] = (char)tolower(route->method[n]);
		method[n] = '\0';
		item = json_object_get(paths, path);
		if (!item) {
			item = json_object();
			json_object_set_new(paths, path, item);
		}
		json_object_set_new(item, method, operation_of(route));
		if (route->operation && !route->answer)
			json_object_set_new(schemas, route->operation->method, cell__operation_gives(route->operation, NULL));
	}
	for (const struct cell__schema *schema = cell__schemas; schema->name; schema++)
		json_object_set_new(schemas, schema->name, json_loads(schema->text, JSON_REJECT_DUPLICATES, NULL));
	root = json_pack("{s:s,s:{s:s,s:s,s:s},s:[{s:[]}],s:o,s:{s:{s:{s:s,s:s}},s:o}}", "openapi", "3.1.0", "info", "title", "workcell",
			 "version", cell_version(), "description", "Sessions that run agents' code.", "security", "bearer", "paths", paths,
			 "components", "securitySchemes", "bearer", "type", "http", "scheme", "bearer", "schemas", schemas);
	text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}
