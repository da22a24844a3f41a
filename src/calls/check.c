/* Arguments of operations against their schemas, which are our own and use few keywords: type, required, minimum, maximum, minLength. */
#include <string.h>

#include "calls/table.h"
#include "core/hole.h"

static bool has_type(const json_t *value, const char *type)
{
	if (strcmp(type, "string") == 0)
		return json_is_string(value);
	if (strcmp(type, "integer") == 0)
		return json_is_integer(value);
	if (strcmp(type, "boolean") == 0)
		return json_is_boolean(value);
	if (strcmp(type, "array") == 0)
		return json_is_array(value);
	return json_is_object(value);
}

static bool fits(const json_t *schema, const json_t *value)
{
	const json_t *type = json_object_get(schema, "type"), *one;
	size_t i;
	if (json_is_string(type))
		return has_type(value, json_string_value(type));
	json_array_foreach(type, i, one)
		if (has_type(value, json_string_value(one)))
			return true;
	return false;
}

/* "a string", "an integer from 1 to 1000" */
static void add_type(struct cell__buf *why, const json_t *schema)
{
	const char *type = json_string_value(json_object_get(schema, "type"));
	const json_t *least = json_object_get(schema, "minimum"), *most = json_object_get(schema, "maximum");
	type = type ? type : "array or object";
	(void)cell__buf_printf(why, "%s %s", strchr("aio", *type) ? "an" : "a", type);
	if (strcmp(type, "array") == 0)
		(void)cell__buf_add_str(why, " of strings");
	if (least && most)
		(void)cell__buf_printf(why, " from %lld to %lld", (long long)json_integer_value(least), (long long)json_integer_value(most));
}

static bool in_range(const json_t *schema, const json_t *value)
{
	const json_t *least = json_object_get(schema, "minimum"), *most = json_object_get(schema, "maximum");
	if (!json_is_integer(value))
		return true;
	return (!least || json_integer_value(value) >= json_integer_value(least)) &&
	       (!most || json_integer_value(value) <= json_integer_value(most));
}

/* Texts are C strings from here on: one with a NUL in it would mean another.  A source is handled with its length. */
static bool has_nul(const char *name, const json_t *value)
{
	return json_is_string(value) && strlen(json_string_value(value)) != json_string_length(value) && strcmp(name, "source") != 0;
}

static bool is_required(const json_t *schema, const char *name)
{
	const json_t *one;
	size_t i;
	json_array_foreach(json_object_get(schema, "required"), i, one)
		if (strcmp(json_string_value(one), name) == 0)
			return true;
	return false;
}

static int check_all(const struct cell__operation *operation, const json_t *schema, const json_t *args, struct cell__buf *why)
{
	const char *name;
	json_t *property;
	json_object_foreach(json_object_get(schema, "properties"), name, property) {
		const json_t *value = json_object_get(args, name);
		bool required = is_required(schema, name);
		if ((!value || json_is_null(value)) && !required)
			continue;
		if (!value || !fits(property, value) || !in_range(property, value)) {
			(void)cell__buf_printf(why, required ? "%s needs '%s', " : "%s: '%s' must be ", operation->method, name);
			add_type(why, property);
			return -1;
		}
		if (has_nul(name, value)) {
			(void)cell__buf_printf(why, "%s: '%s' must not contain NUL", operation->method, name);
			return -1;
		}
	}
	return 0;
}

int cell__operation_check(const struct cell__operation *operation, const json_t *args, struct cell__buf *why)
{
	static json_t *schemas[CELL__OPS]; /* read once, by the first thread that needs one */
	json_t *schema = __atomic_load_n(&schemas[operation->id], __ATOMIC_ACQUIRE);
	if (!schema) {
		json_t *none = NULL;
		schema = json_loads(operation->args, JSON_REJECT_DUPLICATES, NULL);
		if (!schema) {
			(void)cell__buf_add_str(why, "out of memory");
			return -1;
		}
		if (!__atomic_compare_exchange_n(&schemas[operation->id], &none, schema, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
			json_decref(schema);
			schema = none;
		}
	}
	return check_all(operation, schema, args, why);
}

int cell__call_prepare(struct cell__call *call, const struct cell__principal *principal)
{
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	const struct cell__operation *operation = cell__operation_find(call->method);
	call->principal = principal;
	call->operation = operation;
	if (!operation || (!cell__operation_is_open_to(operation, principal) && !is_hole("door-who")))
		(void)cell__buf_printf(&why, "there is no method \"%.100s\"", call->method);
	else if (cell__operation_check(operation, call->args, &why) == 0)
		return 0;
	call->fail(call, CELL_E_INVALID, "ValueError", why.data ? why.data : "out of memory");
	return -1;
}
