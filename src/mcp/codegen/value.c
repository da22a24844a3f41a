/* Defaults: whether a value fits its schema, and its expression in the module. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

/* ---- does it fit? ---- */

static bool matches(const char *text, const char *shape)
{
	/* 0: a digit, x: a hexadecimal one; others are themselves */
	for (; *shape; shape++, text++) {
		if (*shape == '0'   ? *text < '0' || *text > '9'
		    : *shape == 'x' ? !*text || !strchr("0123456789abcdefABCDEF", *text)
				    : *text != *shape)
			return false;
	}
	return true;
}

/* Accepts only forms that all readers of the format accept. */
static bool format_fits(enum cell__gen_import class, const char *text)
{
	unsigned char address[16];
	const char *zone;
	switch (class) {
	case GEN_DATE:
		return matches(text, "0000-00-00") && text[10] == '\0' && strncmp(text + 5, "12", 2) <= 0 &&
		       strncmp(text + 5, "00", 2) > 0 && strncmp(text + 8, "28", 2) <= 0 && strncmp(text + 8, "00", 2) > 0 &&
		       strncmp(text, "0000", 4) > 0;
	case GEN_DATETIME: {
		char date[11];
		snprintf(date, sizeof date, "%s", text);
		return strlen(text) > 11 && format_fits(GEN_DATE, date) && text[10] == 'T' && format_fits(GEN_TIME, text + 11);
	}
	case GEN_TIME:
		if (!matches(text, "00:00:00") || strncmp(text, "24", 2) >= 0 || text[3] > '5' || text[6] > '5')
			return false;
		zone = text + 8;
		return zone[0] == '\0' || strcmp(zone, "Z") == 0;
	case GEN_UUID:
		return matches(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") && text[36] == '\0';
	case GEN_IPV4:
		return inet_pton(AF_INET, text, address) == 1;
	case GEN_IPV6:
		return inet_pton(AF_INET6, text, address) == 1;
	default:
		return true;
	}
}

/* Characters, not bytes. */
static int64_t length_of(const json_t *text)
{
	const char *at = json_string_value(text);
	size_t size = json_string_length(text);
	int64_t count = 0;
	for (size_t i = 0, n; i < size; i += n, count++)
		(void)cell__gen_char(at + i, size - i, &n);
	return count;
}

static bool length_fits(const json_t *schema, int64_t length, const char *least, const char *most)
{
	int64_t min = cell__gen_count(schema, least), max = cell__gen_count(schema, most);
	return (min < 0 || length >= min) && (max < 0 || length <= max);
}

static bool number_fits(const json_t *schema, const json_t *value)
{
	double number = json_number_value(value);
	const json_t *min = json_object_get(schema, "minimum"), *above = json_object_get(schema, "exclusiveMinimum");
	const json_t *max = json_object_get(schema, "maximum"), *below = json_object_get(schema, "exclusiveMaximum");
	const json_t *factor = json_object_get(schema, "multipleOf");
	double low = json_number_value(min), high = json_number_value(max), step = json_number_value(factor);
	if (json_is_number(min) && (json_is_true(above) ? number <= low : number < low))
		return false;
	if (json_is_number(max) && (json_is_true(below) ? number >= high : number > high))
		return false;
	if (json_is_number(above) && number <= json_number_value(above))
		return false;
	if (json_is_number(below) && number >= json_number_value(below))
		return false;
	if (!json_is_number(factor) || step <= 0)
		return true;
	return fabs(round(number / step) * step - number) <= fabs(number) * DBL_EPSILON;
}

static bool string_fits(const json_t *schema, const json_t *value)
{
	enum cell__gen_import class;
	if (!json_is_string(value))
		return false;
	if (cell__gen_format(schema, &class))
		return format_fits(class, json_string_value(value));
	return length_fits(schema, length_of(value), "minLength", "maxLength");
}

static bool array_fits(struct cell__gen_module *m, const json_t *schema, const json_t *value, unsigned depth)
{
	const json_t *items = json_object_get(schema, "items"), *first = json_object_get(schema, "prefixItems"), *each;
	size_t i;
	if (!json_is_array(value) || !length_fits(schema, (int64_t)json_array_size(value), "minItems", "maxItems"))
		return false;
	if (json_is_array(items))
		first = items;
	json_array_foreach(value, i, each) {
		const json_t *of = json_is_array(items) ? NULL : items;
		if (i < json_array_size(first))
			of = json_array_get(first, i);
		if (of && !cell__gen_fits(m, of, each, depth + 1))
			return false;
		if (json_is_true(json_object_get(schema, "uniqueItems")))
			for (size_t k = 0; k < i; k++)
				if (json_equal((json_t *)each, json_array_get(value, k)))
					return false;
	}
	return true;
}

static bool object_fits(struct cell__gen_module *m, const json_t *schema, const json_t *value, unsigned depth)
{
	json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required"), *each;
	const json_t *more = json_object_get(schema, "additionalProperties");
	const char *key;
	size_t i;
	if (!json_is_object(value) || !length_fits(schema, (int64_t)json_object_size(value), "minProperties", "maxProperties"))
		return false;
	json_array_foreach(required, i, each)
		if (json_is_string(each) && json_object_get(properties, json_string_value(each)) &&
		    !json_object_get(value, json_string_value(each)))
			return false;
	json_object_foreach((json_t *)value, key, each) {
		const json_t *of = json_object_get(properties, key);
		if (!of && json_object_size(properties) > 0 && !json_is_true(more) && !json_is_object(more))
			return false; /* the class would refuse it */
		if (!of && json_object_size(properties) == 0)
			of = cell__gen_dict_item(schema);
		else if (!of)
			of = more;
		if (of && !cell__gen_fits(m, of, each, depth + 1))
			return false;
	}
	return true;
}

static bool type_fits(struct cell__gen_module *m, const json_t *schema, const char *type, const json_t *value, unsigned depth)
{
	if (strcmp(type, "string") == 0)
		return string_fits(schema, value);
	if (strcmp(type, "integer") == 0)
		return json_is_integer(value) && number_fits(schema, value);
	if (strcmp(type, "number") == 0)
		return json_is_number(value) && number_fits(schema, value);
	if (strcmp(type, "boolean") == 0)
		return json_is_boolean(value);
	if (strcmp(type, "null") == 0)
		return json_is_null(value);
	if (strcmp(type, "array") == 0)
		return array_fits(m, schema, value, depth);
	return strcmp(type, "object") != 0 || object_fits(m, schema, value, depth);
}

static bool is_among(const json_t *list, const json_t *value)
{
	const json_t *each;
	size_t i;
	json_array_foreach(list, i, each)
		if (json_equal((json_t *)each, (json_t *)value))
			return true;
	return false;
}

bool cell__gen_fits(struct cell__gen_module *m, const json_t *schema, const json_t *value, unsigned depth)
{
	if (!json_is_object(schema))
		return true;
	const json_t *flat = cell__gen_flatten(m, schema, depth), *each;
	size_t i;
	if (!flat)
		return depth <= CELL_GEN_LIMIT_DEPTH && m->n_schemas <= CELL_GEN_LIMIT_SCHEMAS;
	if (json_is_null(value) && json_is_true(json_object_get(flat, "nullable")))
		return true;
	const json_t *constant = json_object_get(flat, "const"), *list = json_object_get(flat, "enum");
	if (constant && !json_equal((json_t *)constant, (json_t *)value))
		return false;
	if (json_is_array(list) && json_array_size(list) > 0 && !is_among(list, value))
		return false;
	const json_t *variants = cell__gen_variants(flat);
	bool one = !variants;
	json_array_foreach(variants, i, each)
		one = one || cell__gen_fits(m, each, value, depth + 1);
	if (!one)
		return false;
	const json_t *types = json_object_get(flat, "type");
	const char *type = json_string_value(types);
	if (!types && json_object_get(flat, "properties"))
		type = "object";
	if (type)
		return type_fits(m, flat, type, value, depth);
	one = !json_is_array(types) || json_array_size(types) == 0;
	json_array_foreach(types, i, each)
		one = one || (json_is_string(each) && type_fits(m, flat, json_string_value(each), value, depth));
	return one;
}

/* ---- expressions ---- */

static const char *member_text(struct cell__gen_module *m, const struct cell__gen_class *class, const json_t *value)
{
	for (size_t i = 0; i < class->n_members; i++)
		if (json_equal((json_t *)class->members[i].value, (json_t *)value))
			return cell__gen_printf(m, "%s.%s", class->name, class->members[i].name);
	return NULL;
}

/* A default that makes an instance of a class around it might make another one of that, and so on. */
static bool names_open_class(const struct cell__gen_module *m, const struct cell__gen_type *type)
{
	for (const struct cell__gen_class *class = m->known; class; class = class->next_known)
		for (size_t i = 0; i < type->n && !class->done; i++)
			if (class->name[0] && strstr(type->members[i], class->name))
				return true;
	return false;
}

const char *cell__gen_default(struct cell__gen_module *m, const json_t *schema, const struct cell__gen_type *type, const json_t *value)
{
	if (json_is_null(value))
		return "None";
	if (!cell__gen_fits(m, schema, value, 0))
		return NULL;
	bool is_enum = type->named && (type->named->kind == GEN_KIND_STR_ENUM || type->named->kind == GEN_KIND_INT_ENUM);
	if (is_enum)
		return member_text(m, type->named, value);
	const char *text = cell__gen_literal(m, value);
	/* For a union pydantic needs the exact type: 1 is not a float there. */
	if (!text || type->any || (type->plain && type->n == 1 && !strstr(type->members[0], "Union[")))
		return text;
	if (names_open_class(m, type))
		return NULL;
	/* It is converted to the type when an instance is made. */
	cell__gen_use(m, GEN_FIELD);
	return cell__gen_printf(m, "Field(default_factory=lambda: %s, validate_default=True)", text);
}
