/* Schemas of single values: strings, numbers, enums, and the limits of all types. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

#define EXACT_INT 9007199254740992.0 /* a double is exact up to here */

/* ---- limits ---- */

/* A whole number, also one that was written with a point. */
static bool whole_of(const json_t *value, int64_t *ret)
{
	if (json_is_integer(value)) {
		*ret = json_integer_value(value);
		return true;
	}
	double real = json_real_value(value);
	if (!json_is_real(value) || fabs(real) > EXACT_INT || real != floor(real))
		return false;
	*ret = (int64_t)real;
	return true;
}

int64_t cell__gen_count(const json_t *schema, const char *keyword)
{
	int64_t count;
	return whole_of(json_object_get(schema, keyword), &count) && count >= 0 ? count : -1;
}

/* A keyword's number as a literal, for whole numbers rounded up or down; NULL: missing or meaningless. */
static const char *bound(struct cell__gen_module *m, const json_t *value, bool whole, bool up)
{
	int64_t number;
	if (!json_is_number(value))
		return NULL;
	if (whole_of(value, &number) && (whole || json_is_integer(value)))
		return cell__gen_printf(m, "%" PRId64, number);
	if (!whole)
		return cell__gen_literal(m, value);
	double real = up ? ceil(json_real_value(value)) : floor(json_real_value(value));
	return fabs(real) <= EXACT_INT ? cell__gen_printf(m, "%" PRId64, (int64_t)real) : NULL;
}

static void add_limit(struct cell__gen_module *m, struct cell__buf *list, const char *name, const char *value)
{
	if (value && cell__buf_printf(list, "%s%s=%s", list->size ? ", " : "", name, value) < 0)
		m->nomem = true;
}

/* T, or Annotated[T, Field(limits), note]. */
static const char *annotate(struct cell__gen_module *m, const char *text, const struct cell__buf *limits, const char *note)
{
	if (!limits->size && !note)
		return text;
	cell__gen_use(m, GEN_ANNOTATED);
	if (limits->size)
		cell__gen_use(m, GEN_FIELD);
	return cell__gen_printf(m, "Annotated[%s%s%s%s%s%s]", text, limits->size ? ", Field(" : "", limits->size ? limits->data : "",
				limits->size ? ")" : "", note ? ", " : "", note ? note : "");
}

const char *cell__gen_with_length(struct cell__gen_module *m, const json_t *schema, const char *text, const char *least, const char *most,
				  const char *note)
{
	CELL_AUTO_BUF struct cell__buf limits = CELL_BUF_INIT;
	int64_t min = cell__gen_count(schema, least), max = cell__gen_count(schema, most);
	if (min > 0)
		add_limit(m, &limits, "min_length", cell__gen_printf(m, "%" PRId64, min));
	if (max >= 0)
		add_limit(m, &limits, "max_length", cell__gen_printf(m, "%" PRId64, max));
	return annotate(m, text, &limits, note);
}

static const char *number_text(struct cell__gen_module *m, const json_t *schema, bool whole)
{
	CELL_AUTO_BUF struct cell__buf limits = CELL_BUF_INIT;
	const json_t *min = json_object_get(schema, "minimum"), *above = json_object_get(schema, "exclusiveMinimum");
	const json_t *max = json_object_get(schema, "maximum"), *below = json_object_get(schema, "exclusiveMaximum");
	const json_t *factor = json_object_get(schema, "multipleOf");
	/* In the first drafts "exclusive" was a word about the other bound. */
	if (json_is_true(above)) {
		above = min;
		min = NULL;
	}
	if (json_is_true(below)) {
		below = max;
		max = NULL;
	}
	add_limit(m, &limits, "ge", bound(m, min, whole, true));
	add_limit(m, &limits, "gt", bound(m, above, whole, false));
	add_limit(m, &limits, "le", bound(m, max, whole, false));
	add_limit(m, &limits, "lt", bound(m, below, whole, true));
	int64_t number;
	if (json_is_number(factor) && json_number_value(factor) > 0 && (!whole || whole_of(factor, &number)))
		add_limit(m, &limits, "multiple_of", bound(m, factor, whole, true));
	return annotate(m, whole ? "int" : "float", &limits, NULL);
}

/* ---- texts ---- */

bool cell__gen_format(const json_t *schema, enum cell__gen_import *ret)
{
	/*
	 * Other formats stay strings: a class for them would need a package that may be missing (email), would change the sent value (uri,
	 * duration: "P1M" is not 30 days), or would hide it (password).
	 */
	static const struct {
		const char *format;
		enum cell__gen_import type;
	} known[] = {
		{ "date-time", GEN_DATETIME }, { "date", GEN_DATE }, { "time", GEN_TIME },
		{ "uuid", GEN_UUID },          { "ipv4", GEN_IPV4 }, { "ipv6", GEN_IPV6 },
	};
	const char *format = json_string_value(json_object_get(schema, "format"));
	for (size_t i = 0; format && i < sizeof known / sizeof *known; i++) {
		if (strcmp(format, known[i].format) == 0) {
			*ret = known[i].type;
			return true;
		}
	}
	return false;
}

static struct cell__gen_type string_type(struct cell__gen_module *m, const json_t *schema)
{
	enum cell__gen_import class;
	if (cell__gen_format(schema, &class)) {
		cell__gen_use(m, class);
		return cell__gen_one(m, cell__gen_import_name(class), false);
	}
	const json_t *pattern = json_object_get(schema, "pattern");
	const char *note = NULL;
	if (json_is_string(pattern) && json_string_length(pattern) > 0 && json_string_length(pattern) <= CELL_GEN_LIMIT_PATTERN_BYTES) {
		note = cell__gen_printf(m, "Pattern(%s)", cell__gen_literal(m, pattern));
		cell__gen_use(m, GEN_PATTERN);
	}
	return cell__gen_one(m, cell__gen_with_length(m, schema, "str", "minLength", "maxLength", note), true);
}

bool cell__gen_scalar(struct cell__gen_module *m, const json_t *schema, const char *type, struct cell__gen_type *ret)
{
	if (strcmp(type, "string") == 0)
		*ret = string_type(m, schema);
	else if (strcmp(type, "integer") == 0)
		*ret = cell__gen_one(m, number_text(m, schema, true), true);
	else if (strcmp(type, "number") == 0)
		*ret = cell__gen_one(m, number_text(m, schema, false), true);
	else if (strcmp(type, "boolean") == 0)
		*ret = cell__gen_one(m, "bool", true);
	else if (strcmp(type, "null") == 0)
		*ret = (struct cell__gen_type){ .nullable = true, .plain = true };
	else
		return false;
	return true;
}

/* ---- enums ---- */

enum { HAS_STRING = 1, HAS_INT = 2, HAS_REAL = 4, HAS_BOOL = 8, HAS_OTHER = 16 };

static unsigned kind_of(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_STRING:
		return HAS_STRING;
	case JSON_INTEGER:
		return HAS_INT;
	case JSON_REAL:
		return HAS_REAL;
	case JSON_TRUE:
	case JSON_FALSE:
		return HAS_BOOL;
	default:
		return HAS_OTHER;
	}
}

/* The values without null and without duplicates: a new reference; NULL: too many, or out of memory. */
static json_t *distinct(struct cell__gen_module *m, const json_t *list, unsigned *ret_kinds, bool *ret_null)
{
	json_t *values = json_array(), *texts = json_object();
	const json_t *each;
	size_t i;
	*ret_kinds = 0;
	*ret_null = false;
	json_array_foreach(list, i, each) {
		if (json_is_null(each)) {
			*ret_null = true;
			continue;
		}
		CELL_AUTO_FREE char *text = json_dumps(each, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
		if (!text || json_object_get(texts, text))
			continue; /* NULL: a number that JSON does not have */
		*ret_kinds |= kind_of(each);
		if (json_object_set_new(texts, text, json_true()) < 0 || json_array_append(values, (json_t *)each) < 0)
			m->nomem = true;
	}
	json_decref(texts);
	if (json_array_size(values) > CELL_GEN_LIMIT_MEMBERS || m->nomem) {
		json_decref(values);
		return NULL;
	}
	return values;
}

/* Name(a, b) or Name[a, b]; NULL: a value cannot be written. */
static const char *list_text(struct cell__gen_module *m, const char *name, const json_t *values, char open, char close)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const json_t *each;
	size_t i;
	int rc = cell__buf_printf(&text, "%s%c", name, open);
	json_array_foreach(values, i, each) {
		if (rc == 0 && i > 0)
			rc = cell__buf_add_str(&text, ", ");
		if (rc == 0)
			rc = cell__gen_add_literal(&text, each, 0);
	}
	if (rc == 0)
		rc = cell__buf_add(&text, &close, 1);
	if (rc < 0)
		m->nomem = true;
	return rc == 0 ? cell__gen_copy(m, text.data, text.size) : NULL;
}

static bool same_members(const struct cell__gen_class *class, const json_t *values)
{
	if (class->n_members != json_array_size(values))
		return false;
	for (size_t i = 0; i < class->n_members; i++)
		if (!json_equal((json_t *)class->members[i].value, json_array_get(values, i)))
			return false;
	return true;
}

static struct cell__gen_type enum_class(struct cell__gen_module *m, const json_t *values, enum cell__gen_kind kind, const char *hint)
{
	struct cell__gen_class *class = m->known;
	/* The same enum in several places, as in the items of a list that goes in and comes out, is one class. */
	while (class && !(class->kind == kind && strcmp(class->base_name, hint) == 0 && same_members(class, values)))
		class = class->next_known;
	if (!class) {
		class = cell__gen_begin_class(m, kind, hint, NULL);
		size_t n = json_array_size(values);
		if (class)
			class->members = cell__gen_alloc(m, n, sizeof *class->members);
		if (!class || !class->members)
			return cell__gen_any(m);
		for (size_t i = 0; i < n; i++)
			class->members[class->n_members++].value = json_array_get(values, i);
		class->name = cell__gen_take_class_name(m, hint);
		cell__gen_name_members(m, class);
		cell__gen_end_class(m, class);
	}
	struct cell__gen_type type = cell__gen_one(m, class->name, false);
	type.named = class;
	return type;
}

/* Values that a Python enum cannot distinguish (1, 1.0 and True are equal there), or cannot hold. */
static struct cell__gen_type one_of_type(struct cell__gen_module *m, const json_t *values, unsigned kinds)
{
	const char *text = list_text(m, "OneOf", values, '(', ')');
	bool numbers = !(kinds & ~(unsigned)(HAS_INT | HAS_REAL));
	if (!text)
		return cell__gen_any(m);
	cell__gen_use(m, GEN_ONE_OF);
	cell__gen_use(m, GEN_ANNOTATED);
	if (!numbers)
		cell__gen_use(m, GEN_ANY);
	return cell__gen_one(m, cell__gen_printf(m, "Annotated[%s, %s]", numbers ? "float" : "Any", text), true);
}

static struct cell__gen_type literal_type(struct cell__gen_module *m, const json_t *values)
{
	const char *text = list_text(m, "Literal", values, '[', ']');
	cell__gen_use(m, GEN_LITERAL);
	return cell__gen_one(m, text ? text : "", true);
}

bool cell__gen_enum(struct cell__gen_module *m, const json_t *schema, const char *hint, struct cell__gen_type *ret)
{
	const json_t *list = json_object_get(schema, "enum"), *constant = json_object_get(schema, "const");
	unsigned kinds;
	bool null;
	if (constant)
		list = json_pack("[O]", constant);
	if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > 2 * CELL_GEN_LIMIT_MEMBERS) {
		if (constant)
			json_decref((json_t *)list);
		return false;
	}
	json_t *values = distinct(m, list, &kinds, &null);
	if (constant)
		json_decref((json_t *)list);
	if (!values || json_array_append_new(m->kept, values) < 0)
		return false;
	size_t n = json_array_size(values);
	if (n == 0)
		*ret = (struct cell__gen_type){ .plain = true };
	else if (kinds == HAS_STRING && n > 1)
		*ret = enum_class(m, values, GEN_KIND_STR_ENUM, hint);
	else if (kinds == HAS_INT && n > 1)
		*ret = enum_class(m, values, GEN_KIND_INT_ENUM, hint);
	else if (kinds & (HAS_REAL | HAS_OTHER) || (kinds & HAS_INT && kinds & HAS_BOOL))
		*ret = one_of_type(m, values, kinds);
	else
		*ret = literal_type(m, values);
	if (null || json_is_true(json_object_get(schema, "nullable")))
		ret->nullable = true;
	return true;
}
