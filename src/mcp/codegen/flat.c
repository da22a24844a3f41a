/* References and allOf: from a schema to one object that has neither. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

#define MAX_CHAIN 32 /* references to references */

/* ---- references ---- */

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* One part of a JSON pointer in a URL: %2F is "/", ~1 too, ~0 is "~".  -1: it does not fit. */
static int decode_part(const char *part, size_t size, char *out, size_t room)
{
	size_t n = 0;
	for (size_t i = 0; i < size; i++) {
		char c = part[i];
		if (n + 1 >= room)
			return -1;
		if (c == '%' && i + 2 < size && hex_digit(part[i + 1]) >= 0 && hex_digit(part[i + 2]) >= 0) {
			c = (char)(hex_digit(part[i + 1]) * 16 + hex_digit(part[i + 2]));
			i += 2;
		} else if (c == '~' && i + 1 < size && (part[i + 1] == '0' || part[i + 1] == '1')) {
			c = part[++i] == '0' ? '~' : '/';
		}
		if (c == '\0')
			return -1;
		out[n++] = c;
	}
	out[n] = '\0';
	return 0;
}

/* Only within the schema itself: "#", "#/$defs/Name".  No reference makes us read a file or the network. */
static const json_t *find_target(const json_t *root, const char *ref)
{
	char part[1024];
	if (ref[0] != '#' || (ref[1] != '\0' && ref[1] != '/'))
		return NULL;
	const json_t *at = root;
	for (const char *from = ref + 1; at && *from == '/';) {
		const char *end = strchrnul(from + 1, '/');
		if (decode_part(from + 1, (size_t)(end - from - 1), part, sizeof part) < 0)
			return NULL;
		if (json_is_array(at)) {
			char *rest;
			unsigned long index = strtoul(part, &rest, 10);
			at = *part && !*rest ? json_array_get(at, index) : NULL;
		} else {
			at = json_object_get(at, part);
		}
		from = end;
	}
	return at;
}

static bool has_any(const json_t *schema, const char *const *keys)
{
	for (; *keys; keys++)
		if (json_object_get(schema, *keys))
			return true;
	return false;
}

/* The target of a schema that has only "$ref", or only one part of allOf; the schema itself if it has more. */
static const json_t *next_of(const struct cell__gen_module *m, const json_t *schema)
{
	static const char *const beside_ref[] = { "properties", "allOf", NULL };
	static const char *const beside_part[] = { "properties", "$ref",  "type",  "anyOf",    "oneOf",
						   "enum",       "const", "items", "required", "additionalProperties",
						   "nullable",   NULL };
	const char *ref = json_string_value(json_object_get(schema, "$ref"));
	const json_t *parts = json_object_get(schema, "allOf");
	if (ref && !has_any(schema, beside_ref))
		return find_target(m->root, ref);
	if (json_array_size(parts) == 1 && !has_any(schema, beside_part))
		return json_array_get(parts, 0);
	return schema;
}

const json_t *cell__gen_follow(const struct cell__gen_module *m, const json_t *schema)
{
	for (int i = 0; i < MAX_CHAIN && json_is_object(schema); i++) {
		const json_t *next = next_of(m, schema);
		if (next == schema)
			return schema;
		schema = next;
	}
	return NULL;
}

/* ---- allOf ---- */

static void set(struct cell__gen_module *m, json_t *object, const char *key, const json_t *value)
{
	if (json_object_set(object, key, (json_t *)value) < 0)
		m->nomem = true;
}

/* A new object that lives as long as the module. */
static json_t *keep(struct cell__gen_module *m, json_t *value)
{
	if (!value || json_array_append_new(m->kept, value) < 0) {
		m->nomem = true;
		return NULL;
	}
	return value;
}

static void merge_properties(struct cell__gen_module *m, json_t *into, const json_t *more)
{
	json_t *both = keep(m, json_copy(json_object_get(into, "properties")));
	const char *key;
	json_t *value;
	if (!both || !json_is_object(both) || !json_is_object(more))
		return;
	json_object_foreach((json_t *)more, key, value) {
		json_t *old = json_object_get(both, key);
		json_t *pair = old && old != value ? keep(m, json_pack("{s:[O,O]}", "allOf", old, value)) : value;
		if (pair)
			set(m, both, key, pair);
	}
	set(m, into, "properties", both);
}

static void merge_required(struct cell__gen_module *m, json_t *into, const json_t *more)
{
	json_t *both = keep(m, json_copy(json_object_get(into, "required")));
	if (!both || !json_is_array(both) || !json_is_array(more))
		return;
	if (json_array_extend(both, (json_t *)more) < 0)
		m->nomem = true;
	set(m, into, "required", both);
}

/* The narrower of two types. */
static void merge_type(struct cell__gen_module *m, json_t *into, const json_t *more)
{
	const json_t *old = json_object_get(into, "type");
	const char *one = json_string_value(old), *other = json_string_value(more);
	if (json_is_array(old) && (other || json_is_array(more)))
		set(m, into, "type", more);
	else if (one && other && strcmp(one, "number") == 0 && strcmp(other, "integer") == 0)
		set(m, into, "type", more);
}

static void merge_bound(struct cell__gen_module *m, json_t *into, const char *key, const json_t *more, bool least)
{
	const json_t *old = json_object_get(into, key);
	if (!json_is_number(old) || !json_is_number(more))
		return;
	bool larger = json_number_value(more) > json_number_value(old);
	if (larger == least)
		set(m, into, key, more);
}

/* Members that `into` has already take precedence, except where both can hold. */
static void merge(struct cell__gen_module *m, json_t *into, const json_t *from)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)from, key, value) {
		if (strcmp(key, "allOf") == 0 || strcmp(key, "$ref") == 0 || strcmp(key, "$defs") == 0 || strcmp(key, "definitions") == 0)
			continue;
		if (!json_object_get(into, key))
			set(m, into, key, value);
		else if (strcmp(key, "properties") == 0)
			merge_properties(m, into, value);
		else if (strcmp(key, "required") == 0)
			merge_required(m, into, value);
		else if (strcmp(key, "type") == 0)
			merge_type(m, into, value);
		else if (strncmp(key, "min", 3) == 0 || strcmp(key, "exclusiveMinimum") == 0)
			merge_bound(m, into, key, value, true);
		else if (strncmp(key, "max", 3) == 0 || strcmp(key, "exclusiveMaximum") == 0)
			merge_bound(m, into, key, value, false);
		else if (strcmp(key, "additionalProperties") == 0 && json_is_false(value))
			set(m, into, key, value);
	}
}

const json_t *cell__gen_flatten(struct cell__gen_module *m, const json_t *schema, unsigned depth)
{
	schema = cell__gen_follow(m, schema);
	if (!schema || depth > CELL_GEN_LIMIT_DEPTH || ++m->n_schemas > CELL_GEN_LIMIT_SCHEMAS)
		return NULL;
	const json_t *parts = json_object_get(schema, "allOf");
	const char *ref = json_string_value(json_object_get(schema, "$ref"));
	if (!json_is_array(parts) && !ref)
		return schema;
	json_t *flat = keep(m, json_object());
	if (!flat)
		return NULL;
	merge(m, flat, schema);
	if (ref) {
		const json_t *part = cell__gen_flatten(m, find_target(m->root, ref), depth + 1);
		if (part)
			merge(m, flat, part);
	}
	size_t i;
	const json_t *each;
	json_array_foreach(parts, i, each) {
		const json_t *part = cell__gen_flatten(m, each, depth + 1);
		if (part)
			merge(m, flat, part);
	}
	return flat;
}

/* ---- anyOf and oneOf ---- */

static bool says_something(const json_t *schema)
{
	static const char *const keys[] = { "$ref",  "type",        "properties",           "enum", "const", "anyOf", "oneOf", "allOf",
					    "items", "prefixItems", "additionalProperties", NULL };
	return json_is_boolean(schema) || has_any(schema, keys) || (json_is_object(schema) && json_object_size(schema) == 0);
}

const json_t *cell__gen_variants(const json_t *schema)
{
	static const char *const keys[] = { "anyOf", "oneOf" };
	for (int k = 0; k < 2; k++) {
		const json_t *list = json_object_get(schema, keys[k]), *each;
		size_t i;
		json_array_foreach(list, i, each)
			if (says_something(each))
				return list;
	}
	return NULL;
}
