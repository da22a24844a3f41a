/* Schemas as faces show them, made from the table's. */
#include "calls/schema.h"

#include <string.h>

#include "calls/table.h"

const json_t *cell__schema_once(json_t **slot, json_t *(*make)(const void *arg), const void *arg)
{
	json_t *schema = __atomic_load_n(slot, __ATOMIC_ACQUIRE), *none = NULL;
	if (schema)
		return schema;
	schema = make(arg);
	if (schema && !__atomic_compare_exchange_n(slot, &none, schema, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		json_decref(schema); /* another thread was faster */
		schema = none;
	}
	return schema;
}

int cell__schema_allow_null(json_t *schema)
{
	const char *name;
	json_t *property;
	int rc = 0;
	json_object_foreach(json_object_get(schema, "properties"), name, property) {
		json_t *type = json_object_get(property, "type");
		bool required = false;
		for (size_t i = 0; i < json_array_size(json_object_get(schema, "required")); i++)
			required |= strcmp(json_string_value(json_array_get(json_object_get(schema, "required"), i)), name) == 0;
		if (required || !type)
			continue;
		json_t *types = json_is_array(type) ? json_copy(type) : json_pack("[O]", type);
		rc |= json_array_append_new(types, json_string("null"));
		rc |= json_object_set_new(property, "type", types);
	}
	return rc;
}

/* RFC 7396; `onto` is an object. */
static int merge(json_t *onto, const json_t *patch)
{
	const char *name;
	json_t *value;
	json_object_foreach((json_t *)patch, name, value) {
		json_t *old = json_object_get(onto, name);
		if (json_is_null(value)) {
			json_object_del(onto, name);
		} else if (!json_is_object(value)) {
			if (json_object_set_new(onto, name, json_deep_copy(value)) < 0)
				return -1;
		} else {
			if (!json_is_object(old) && json_object_set_new(onto, name, old = json_object()) < 0)
				return -1;
			if (merge(old, value) < 0)
				return -1;
		}
	}
	return 0;
}

/* The properties with other names, in the same order. */
static int rename_all(json_t *schema, const json_t *names)
{
	json_t *old = json_object_get(schema, "properties"), *made = json_object(), *required = json_array(), *value;
	const char *name;
	size_t i;
	int rc = 0;
	json_object_foreach(old, name, value) {
		const char *other = json_string_value(json_object_get(names, name));
		rc |= json_object_set(made, other ? other : name, value);
	}
	json_array_foreach(json_object_get(schema, "required"), i, value) {
		json_t *other = json_object_get(names, json_string_value(value));
		rc |= json_array_append(required, other ? other : value);
	}
	rc |= json_object_set_new(schema, "properties", made);
	rc |= json_object_set_new(schema, "required", required);
	return rc;
}

static void drop_internal(json_t *schema)
{
	json_t *properties = json_object_get(schema, "properties"), *property;
	const char *name;
	void *next;
	json_object_foreach_safe(properties, next, name, property)
		if (json_object_get(property, "x-internal"))
			json_object_del(properties, name);
}

json_t *cell__schema_shown(const json_t *schema)
{
	json_t *shown = json_deep_copy(schema), *property;
	const char *name;
	json_object_foreach(json_object_get(shown, "properties"), name, property)
		json_object_del(property, "x-nul");
	return shown;
}

/* Without bounds, and without a default that anybody would guess. */
static void brief_property(json_t *property)
{
	static const char *const bounds[] = { "minLength", "maxLength", "minimum", "maximum", "items" };
	const json_t *given = json_object_get(property, "default");
	for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++)
		json_object_del(property, bounds[i]);
	if (json_is_false(given) || json_is_null(given) || (json_is_string(given) && !json_string_length(given)) ||
	    (json_is_integer(given) && !json_integer_value(given)))
		json_object_del(property, "default");
}

json_t *cell__schema_brief(const json_t *schema)
{
	json_t *shown = cell__schema_shown(schema), *property;
	const char *name;
	json_object_foreach(json_object_get(shown, "properties"), name, property)
		brief_property(property);
	json_object_del(shown, "additionalProperties");
	if (!json_array_size(json_object_get(shown, "required")))
		json_object_del(shown, "required");
	return shown;
}

static json_t *changed(const char *text, const char *changes)
{
	json_t *schema = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
	json_t *patch = changes ? json_loads(changes, JSON_REJECT_DUPLICATES, NULL) : NULL;
	json_t *names = json_object_get(patch, "rename");
	int rc = schema && (!changes || patch) ? 0 : -1;
	if (rc == 0)
		drop_internal(schema);
	if (rc == 0 && names)
		rc = rename_all(schema, names);
	json_object_del(patch, "rename");
	if (rc == 0 && patch)
		rc = merge(schema, patch);
	json_decref(patch);
	if (rc == 0)
		return schema;
	json_decref(schema);
	return NULL;
}

json_t *cell__operation_takes(const struct cell__operation *operation, const char *changes)
{
	return changed(operation->args, changes);
}

json_t *cell__operation_gives(const struct cell__operation *operation, const char *changes)
{
	return changed(operation->result, changes);
}

int cell__operation_unrename(const char *changes, json_t *args)
{
	json_t *patch = changes ? json_loads(changes, JSON_REJECT_DUPLICATES, NULL) : NULL, *other;
	const char *name;
	int rc = changes && !patch ? -1 : 0;
	json_object_foreach(json_object_get(patch, "rename"), name, other) {
		json_t *value = json_object_get(args, json_string_value(other));
		if (!value)
			continue;
		rc |= json_object_set(args, name, value);
		json_object_del(args, json_string_value(other));
	}
	json_decref(patch);
	return rc;
}
