/*
 * Checking a tool's arguments by its inputSchema.  The schemas are our own (server_tools.c) and use a few keywords only: type,
 * required, default, enum, minimum, maximum, minLength, additionalProperties false.
 */
#include "mcp/server.h"

#include <string.h>

static bool has_type(const json_t *value, const char *type)
{
	if (!strcmp(type, "string"))
		return json_is_string(value);
	if (!strcmp(type, "integer"))
		return json_is_integer(value) || (json_is_real(value) && json_real_value(value) == (double)(json_int_t)json_real_value(value));
	if (!strcmp(type, "number"))
		return json_is_number(value);
	if (!strcmp(type, "boolean"))
		return json_is_boolean(value);
	return json_is_object(value);
}

static const char *kind_of(const json_t *value)
{
	static const char *const kinds[] = { "an object", "an array", "a string", "an integer", "a number", "true", "false", "null" };

	return kinds[json_typeof(value)];
}

static int check_value(const char *name, const json_t *schema, const json_t *value, struct cell__buf *message)
{
	const char *type = json_string_value(json_object_get(schema, "type"));
	const json_t *least = json_object_get(schema, "minimum"), *most = json_object_get(schema, "maximum");
	const json_t *choices = json_object_get(schema, "enum"), *choice;
	size_t i;

	if (!has_type(value, type)) {
		cell__buf_printf(message, "argument '%s' is of type %s, not %s", name, type, kind_of(value));
		return -1;
	}
	if (json_is_number(value) && ((least && json_number_value(value) < json_number_value(least)) ||
				      (most && json_number_value(value) > json_number_value(most)))) {
		cell__buf_printf(message, "argument '%s' is from %g to %g, not %g", name, json_number_value(least), json_number_value(most),
				 json_number_value(value));
		return -1;
	}
	if (json_is_string(value) && !json_string_length(value) && json_object_get(schema, "minLength")) {
		cell__buf_printf(message, "argument '%s' is empty", name);
		return -1;
	}
	json_array_foreach(choices, i, choice) {
		if (json_equal(choice, value))
			return 0;
	}
	if (!choices)
		return 0;
	cell__buf_printf(message, "argument '%s' is not one of", name);
	json_array_foreach(choices, i, choice)
		cell__buf_printf(message, "%s %s", i ? "," : "", json_string_value(choice));
	return -1;
}

static int check_all(json_t *args, const json_t *schema, struct cell__buf *message)
{
	const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"), *entry;
	const char *name;
	json_t *value;
	size_t i;

	json_object_foreach(args, name, value) {
		if (!json_object_get(properties, name)) {
			cell__buf_printf(message, "there is no argument '%.100s'", name);
			return -1;
		}
		if (check_value(name, json_object_get(properties, name), value, message) < 0)
			return -1;
	}
	json_array_foreach(required, i, entry) {
		if (!json_object_get(args, json_string_value(entry))) {
			cell__buf_printf(message, "argument '%s' is missing", json_string_value(entry));
			return -1;
		}
	}
	json_object_foreach((json_t *)properties, name, value) {
		json_t *standard = json_object_get(value, "default");

		if (standard && !json_object_get(args, name))
			json_object_set(args, name, standard);
		/* Handlers look for integers. */
		if (!strcmp(json_string_value(json_object_get(value, "type")), "integer") && json_is_real(json_object_get(args, name)))
			json_object_set_new(args, name, json_integer((json_int_t)json_real_value(json_object_get(args, name))));
	}
	return 0;
}

json_t *cell__mcp_tools_check(const struct cell__mcp_tool *tool, const json_t *args, struct cell__buf *message)
{
	json_t *schema = json_loads(tool->input, 0, NULL);
	json_t *all = json_is_object(args) ? json_copy((json_t *)args) : json_object();

	if (schema && all && check_all(all, schema, message) < 0) {
		cell__buf_printf(message, "; the arguments of %s are %s", tool->name, tool->input);
		json_decref(all);
		all = NULL;
	}
	json_decref(schema);
	return all;
}
