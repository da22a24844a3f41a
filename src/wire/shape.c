#define _GNU_SOURCE
#include "wire/shape.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One place for each kind of value; integers and other numbers share one. */
enum kind { TEXT, NUMBER, TRUTH, NOTHING, OBJECT, ARRAY, KINDS };

static const char *const type_words[KINDS] = { "string", "number", "boolean", "null", "object", "array" };
static const char *const python_words[KINDS] = { "str", "float", "bool", "None", "dict", "list" };

struct slots {
	bool any;
	const json_t *of[KINDS]; /* borrowed; NULL: no such value */
};

static json_t *field_of(const json_t *shape, const char *key)
{
	return json_object_get(shape, key);
}

static const char *word_of(const json_t *shape)
{
	const char *word = json_string_value(field_of(shape, "type"));
	return word ? word : "";
}

static bool is_integer(const json_t *shape)
{
	return strcmp(word_of(shape), "integer") == 0;
}

/* KINDS: not a type. */
static enum kind kind_of(const json_t *shape)
{
	if (is_integer(shape))
		return NUMBER;
	enum kind kind = TEXT;
	while (kind < KINDS && strcmp(word_of(shape), type_words[kind]) != 0)
		kind++;
	return kind;
}

static struct slots slots_of(const json_t *shape)
{
	struct slots slots = { .any = json_object_size(shape) == 0 };
	const json_t *alternatives = field_of(shape, "anyOf");
	for (size_t i = 0; i < json_array_size(alternatives); i++) {
		const json_t *each = json_array_get(alternatives, i);
		slots.of[kind_of(each)] = each;
	}
	if (!alternatives && !slots.any)
		slots.of[kind_of(shape)] = shape;
	return slots;
}

static bool is_map(const json_t *object)
{
	return field_of(object, "additionalProperties") != NULL;
}

static bool is_required(const json_t *object, const char *name)
{
	const json_t *required = field_of(object, "required");
	for (size_t i = 0; i < json_array_size(required); i++)
		if (strcmp(json_string_value(json_array_get(required, i)), name) == 0)
			return true;
	return false;
}

/* ---- making ---- */

static bool is_field_name(const char *name)
{
	size_t size = strlen(name), digits = 0;
	if (size == 0 || size > CELL_SHAPE_LIMIT_NAME || !(isalpha((unsigned char)*name) || *name == '_' || *name == '$' || *name == '@'))
		return false;
	for (size_t i = 0; i < size; i++) {
		digits += isdigit((unsigned char)name[i]) != 0;
		if (!isalnum((unsigned char)name[i]) && name[i] != '_' && name[i] != '-' && !(i == 0 && (*name == '$' || *name == '@')))
			return false;
	}
	return digits <= CELL_SHAPE_LIMIT_DIGITS;
}

static json_t *typed(const char *word)
{
	return json_pack("{s:s}", "type", word);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Takes the fields; `required` are names in any order. */
static json_t *make_object(json_t *fields, const char **required, size_t n)
{
	json_t *list = json_array();
	qsort(required, n, sizeof *required, compare_names);
	for (size_t i = 0; i < n; i++)
		if (json_array_append_new(list, json_string(required[i])) < 0) {
			json_decref(list);
			list = NULL;
			break;
		}
	return json_pack("{s:s, s:o, s:o}", "type", "object", "properties", fields, "required", list);
}

/* Takes the shape of the values; NULL: there are none yet. */
static json_t *make_map(json_t *values)
{
	return json_pack("{s:s, s:o}", "type", "object", "additionalProperties", values ? values : json_object());
}

static json_t *merge(const json_t *a, const json_t *b);

/* Takes both and gives one; either may be NULL: nothing is known.  *failed: out of memory. */
static json_t *join(json_t *a, json_t *b, bool *failed)
{
	if (!a || !b)
		return a ? a : b;
	json_t *both = merge(a, b);
	*failed |= !both;
	json_decref(a);
	json_decref(b);
	return both;
}

static json_t *look(const json_t *value, unsigned depth, size_t *visits);

static json_t *look_at_map(const json_t *value, unsigned depth, size_t *visits)
{
	json_t *values = NULL, *each;
	const char *name;
	bool failed = false;
	json_object_foreach((json_t *)value, name, each) {
		if (*visits == 0 || failed)
			break;
		json_t *shape = look(each, depth + 1, visits);
		failed |= !shape;
		values = join(values, shape, &failed);
	}
	if (failed) {
		json_decref(values);
		return NULL;
	}
	return make_map(values);
}

static json_t *look_at_object(const json_t *value, unsigned depth, size_t *visits)
{
	const char *names[CELL_SHAPE_LIMIT_FIELDS], *name;
	size_t n = 0;
	json_t *fields, *each;
	bool map = json_object_size(value) > CELL_SHAPE_LIMIT_FIELDS;
	json_object_foreach((json_t *)value, name, each)
		map = map || !is_field_name(name);
	if (map)
		return look_at_map(value, depth, visits);
	fields = json_object();
	json_object_foreach((json_t *)value, name, each) {
		if (json_object_set_new(fields, name, look(each, depth + 1, visits)) < 0) {
			json_decref(fields);
			return NULL;
		}
		names[n++] = name;
	}
	return make_object(fields, names, n);
}

static json_t *look_at_array(const json_t *value, unsigned depth, size_t *visits)
{
	json_t *items = NULL;
	bool failed = false;
	for (size_t i = 0; i < json_array_size(value) && i < CELL_SHAPE_LIMIT_ITEMS && *visits > 0 && !failed; i++) {
		json_t *shape = look(json_array_get(value, i), depth + 1, visits);
		failed |= !shape;
		items = join(items, shape, &failed);
	}
	if (failed) {
		json_decref(items);
		return NULL;
	}
	return items ? json_pack("{s:s, s:o}", "type", "array", "items", items) : typed("array");
}

static json_t *look(const json_t *value, unsigned depth, size_t *visits)
{
	if (*visits == 0)
		return json_object();
	--*visits;
	if (json_is_string(value) || json_is_null(value))
		return typed(json_is_string(value) ? "string" : "null");
	if (json_is_number(value))
		return typed(json_is_integer(value) ? "integer" : "number");
	if (json_is_boolean(value))
		return typed("boolean");
	if (depth >= CELL_SHAPE_LIMIT_DEPTH)
		return json_object();
	return json_is_object(value) ? look_at_object(value, depth, visits) : look_at_array(value, depth, visits);
}

/* ---- limits ---- */

static size_t count_nodes(const json_t *shape)
{
	const json_t *alternatives = field_of(shape, "anyOf");
	json_t *each;
	const char *name;
	size_t n = 1;
	for (size_t i = 0; i < json_array_size(alternatives); i++)
		n += count_nodes(json_array_get(alternatives, i));
	json_object_foreach(field_of(shape, "properties"), name, each)
		n += count_nodes(each);
	if (field_of(shape, "items"))
		n += count_nodes(field_of(shape, "items"));
	if (is_map(shape))
		n += count_nodes(field_of(shape, "additionalProperties"));
	return n;
}

/* A copy whose containers at this depth are anything. */
static json_t *cut(const json_t *shape, unsigned depth)
{
	static const char *const inner[] = { "items", "additionalProperties" };
	const json_t *alternatives = field_of(shape, "anyOf");
	const char *name;
	json_t *each;
	if (alternatives) {
		json_t *list = json_array();
		for (size_t i = 0; i < json_array_size(alternatives); i++) {
			enum kind kind = kind_of(json_array_get(alternatives, i));
			if (depth == 0 && (kind == OBJECT || kind == ARRAY)) { /* anything absorbs the others */
				json_decref(list);
				return json_object();
			}
			json_array_append_new(list, cut(json_array_get(alternatives, i), depth));
		}
		return json_pack("{s:o}", "anyOf", list);
	}
	if (kind_of(shape) != OBJECT && kind_of(shape) != ARRAY)
		return json_deep_copy(shape);
	if (depth == 0)
		return json_object();
	json_t *copy = json_deep_copy(shape);
	json_object_foreach(field_of(shape, "properties"), name, each)
		json_object_set_new(field_of(copy, "properties"), name, cut(each, depth - 1));
	for (size_t i = 0; i < 2; i++)
		if (field_of(shape, inner[i]))
			json_object_set_new(copy, inner[i], cut(field_of(shape, inner[i]), depth - 1));
	return copy;
}

/* Takes it, and gives it within the limit of nodes. */
static json_t *within_limits(json_t *shape)
{
	for (unsigned depth = CELL_SHAPE_LIMIT_DEPTH - 1; shape && depth > 0 && count_nodes(shape) > CELL_SHAPE_LIMIT_NODES; depth--) {
		json_t *shorter = cut(shape, depth);
		json_decref(shape);
		shape = shorter;
	}
	/* A union of objects and arrays with many fields each. */
	if (shape && count_nodes(shape) > CELL_SHAPE_LIMIT_NODES) {
		json_decref(shape);
		shape = json_object();
	}
	return shape;
}

json_t *cell__shape_of(const json_t *value)
{
	size_t visits = CELL_SHAPE_LIMIT_VISITS;
	return within_limits(look(value, 0, &visits));
}

/* ---- merging ---- */

/* All values of an object's shape; NULL: it has none. */
static json_t *values_of(const json_t *object, bool *failed)
{
	const char *name;
	json_t *each, *values = is_map(object) ? json_incref(field_of(object, "additionalProperties")) : NULL;
	json_object_foreach(field_of(object, "properties"), name, each)
		values = join(values, json_incref(each), failed);
	return values;
}

static json_t *merge_as_map(const json_t *a, const json_t *b)
{
	bool failed = false;
	json_t *values = values_of(a, &failed);
	values = join(values, values_of(b, &failed), &failed);
	if (!failed)
		return make_map(values);
	json_decref(values);
	return NULL;
}

/* Objects of alike values that share no name: the names are data. */
static bool are_keyed_by_data(const json_t *a, const json_t *b)
{
	const json_t *mine = field_of(a, "properties"), *theirs = field_of(b, "properties");
	const char *name;
	json_t *each, *first = NULL;
	if (json_object_size(mine) == 0 || json_object_size(theirs) == 0)
		return false;
	json_object_foreach((json_t *)mine, name, each) {
		if (json_object_get(theirs, name) || (first && !json_equal(first, each)))
			return false;
		first = each;
	}
	json_object_foreach((json_t *)theirs, name, each)
		if (!json_equal(first, each))
			return false;
	return true;
}

static json_t *merge_objects(const json_t *a, const json_t *b)
{
	const json_t *mine = field_of(a, "properties"), *theirs = field_of(b, "properties");
	const char *required[CELL_SHAPE_LIMIT_FIELDS], *name;
	json_t *each;
	size_t n = 0, more = 0;
	json_object_foreach((json_t *)theirs, name, each)
		more += !json_object_get(mine, name);
	if (is_map(a) || is_map(b) || json_object_size(mine) + more > CELL_SHAPE_LIMIT_FIELDS || are_keyed_by_data(a, b))
		return merge_as_map(a, b);
	json_t *fields = json_copy((json_t *)mine);
	int rc = fields ? 0 : -1;
	json_object_foreach((json_t *)theirs, name, each) {
		const json_t *own = json_object_get(mine, name);
		if (rc == 0)
			rc = json_object_set_new(fields, name, own ? merge(own, each) : json_incref(each));
	}
	json_object_foreach((json_t *)mine, name, each)
		if (is_required(a, name) && is_required(b, name))
			required[n++] = name;
	if (rc == 0)
		return make_object(fields, required, n);
	json_decref(fields);
	return NULL;
}

static json_t *merge_arrays(const json_t *a, const json_t *b)
{
	json_t *mine = field_of(a, "items"), *theirs = field_of(b, "items");
	if (!mine || !theirs)
		return json_incref((json_t *)(mine ? a : b));
	return json_pack("{s:s, s:o}", "type", "array", "items", merge(mine, theirs));
}

static json_t *merge_kind(enum kind kind, const json_t *a, const json_t *b)
{
	if (!a || !b)
		return json_incref((json_t *)(a ? a : b));
	if (kind == OBJECT)
		return merge_objects(a, b);
	if (kind == ARRAY)
		return merge_arrays(a, b);
	return kind == NUMBER && is_integer(a) != is_integer(b) ? typed("number") : json_incref((json_t *)a);
}

static json_t *merge(const json_t *a, const json_t *b)
{
	struct slots mine = slots_of(a), theirs = slots_of(b);
	if (mine.any || theirs.any)
		return json_object();
	json_t *list = json_array();
	for (enum kind kind = TEXT; list && kind < KINDS; kind++) {
		if (!mine.of[kind] && !theirs.of[kind])
			continue;
		if (json_array_append_new(list, merge_kind(kind, mine.of[kind], theirs.of[kind])) < 0) {
			json_decref(list);
			list = NULL;
		}
	}
	if (json_array_size(list) != 1)
		return list ? json_pack("{s:o}", "anyOf", list) : NULL;
	json_t *only = json_incref(json_array_get(list, 0));
	json_decref(list);
	return only;
}

json_t *cell__shape_merge(const json_t *a, const json_t *b)
{
	return within_limits(merge(a, b));
}

/* ---- checking ---- */

static bool ok(const json_t *shape, unsigned depth, bool inner);

static bool object_ok(const json_t *shape, unsigned depth)
{
	const json_t *fields = field_of(shape, "properties"), *required = field_of(shape, "required");
	const char *name, *before = "";
	json_t *each;
	if (is_map(shape))
		return json_object_size(shape) == 2 && ok(field_of(shape, "additionalProperties"), depth + 1, false);
	if (json_object_size(shape) != 3 || !json_is_object(fields) || !json_is_array(required) ||
	    json_object_size(fields) > CELL_SHAPE_LIMIT_FIELDS)
		return false;
	json_object_foreach((json_t *)fields, name, each)
		if (!is_field_name(name) || !ok(each, depth + 1, false))
			return false;
	for (size_t i = 0; i < json_array_size(required); i++) {
		name = json_string_value(json_array_get(required, i));
		if (!name || strcmp(before, name) >= 0 || !json_object_get(fields, name))
			return false;
		before = name;
	}
	return true;
}

static bool union_ok(const json_t *shape, unsigned depth)
{
	const json_t *list = field_of(shape, "anyOf");
	size_t n = json_array_size(list);
	enum kind last = TEXT;
	if (json_object_size(shape) != 1 || n < 2 || n > KINDS)
		return false;
	for (size_t i = 0; i < n; i++) {
		const json_t *each = json_array_get(list, i);
		if (!ok(each, depth, true) || (i > 0 && kind_of(each) <= last))
			return false;
		last = kind_of(each);
	}
	return true;
}

/* inner: an alternative of a union, which is neither anything nor a union itself. */
static bool ok(const json_t *shape, unsigned depth, bool inner)
{
	if (!json_is_object(shape) || (inner && !field_of(shape, "type")))
		return false;
	if (json_object_size(shape) == 0)
		return true;
	if (field_of(shape, "anyOf"))
		return union_ok(shape, depth);
	enum kind kind = kind_of(shape);
	if (kind == KINDS)
		return false;
	if (kind != OBJECT && kind != ARRAY)
		return json_object_size(shape) == 1;
	if (depth >= CELL_SHAPE_LIMIT_DEPTH)
		return false;
	if (kind == OBJECT)
		return object_ok(shape, depth);
	return json_object_size(shape) == 1 ||
	       (json_object_size(shape) == 2 && field_of(shape, "items") && ok(field_of(shape, "items"), depth + 1, false));
}

bool cell__shape_ok(const json_t *shape)
{
	return ok(shape, 0, false) && count_nodes(shape) <= CELL_SHAPE_LIMIT_NODES;
}

/* ---- texts ---- */

static int add_text(const json_t *shape, unsigned depth, struct cell__buf *out);

static int add_object_text(const json_t *shape, unsigned depth, struct cell__buf *out)
{
	const char *name, *comma = "";
	json_t *each;
	if (depth == 0)
		return cell__buf_add_str(out, "dict");
	if (is_map(shape))
		return cell__buf_add_str(out, "{str: ") | add_text(field_of(shape, "additionalProperties"), depth - 1, out) |
		       cell__buf_add_str(out, "}");
	int rc = cell__buf_add_str(out, "{");
	json_object_foreach(field_of(shape, "properties"), name, each) {
		rc |= cell__buf_printf(out, "%s%s%s: ", comma, name, is_required(shape, name) ? "" : "?");
		rc |= add_text(each, depth - 1, out);
		comma = ", ";
	}
	return rc | cell__buf_add_str(out, "}");
}

static int add_kind_text(enum kind kind, const json_t *shape, unsigned depth, struct cell__buf *out)
{
	if (kind == OBJECT)
		return add_object_text(shape, depth, out);
	if (kind == ARRAY && depth > 0 && field_of(shape, "items"))
		return cell__buf_add_str(out, "[") | add_text(field_of(shape, "items"), depth - 1, out) | cell__buf_add_str(out, "]");
	return cell__buf_add_str(out, is_integer(shape) ? "int" : python_words[kind]);
}

static int add_text(const json_t *shape, unsigned depth, struct cell__buf *out)
{
	struct slots slots = slots_of(shape);
	const char *bar = "";
	int rc = slots.any ? cell__buf_add_str(out, "Any") : 0;
	for (enum kind kind = TEXT; kind < KINDS; kind++) {
		if (!slots.of[kind])
			continue;
		rc |= cell__buf_add_str(out, bar) | add_kind_text(kind, slots.of[kind], depth, out);
		bar = " | ";
	}
	return rc;
}

int cell__shape_text(const json_t *shape, size_t max, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	for (unsigned depth = CELL_SHAPE_LIMIT_DEPTH; depth > 0; depth--) {
		text.size = 0;
		if (add_text(shape, depth, &text) < 0)
			return -1;
		if (text.size <= max)
			return cell__buf_add(out, text.data, text.size);
	}
	/* One level is too much as well: as many fields as fit. */
	static const char tail[] = ", ...}";
	size_t end = max < sizeof tail ? 0 : max - (sizeof tail - 1);
	while (end > 0 && text.data[end] != ',')
		end--;
	if (end > 0 && text.data[0] == '{' && kind_of(shape) == OBJECT)
		return cell__buf_add(out, text.data, end) | cell__buf_add_str(out, tail);
	text.size = 0;
	if (add_text(shape, 0, &text) < 0)
		return -1;
	return text.size <= max ? cell__buf_add(out, text.data, text.size) : cell__buf_add_str(out, "Any");
}

static int change(struct cell__buf *path, const json_t *before, const json_t *after, struct cell__buf *out);

static int change_below(struct cell__buf *path, const char *name, const json_t *before, const json_t *after, struct cell__buf *out)
{
	size_t size = path->size;
	int rc = cell__buf_add_str(path, name) | change(path, before, after, out);
	path->size = size;
	path->data[size] = '\0';
	return rc;
}

static int change_of_objects(struct cell__buf *path, const json_t *before, const json_t *after, struct cell__buf *out)
{
	const char *name;
	json_t *each;
	if (is_map(before) != is_map(after))
		return cell__buf_printf(out, "%s: its fields vary like data", path->data);
	if (is_map(before))
		return change_below(path, "{}", field_of(before, "additionalProperties"), field_of(after, "additionalProperties"), out);
	json_object_foreach(field_of(after, "properties"), name, each) {
		const json_t *old = json_object_get(field_of(before, "properties"), name);
		char dotted[CELL_SHAPE_LIMIT_NAME + 2];
		snprintf(dotted, sizeof dotted, ".%s", name);
		if (!old)
			return cell__buf_printf(out, "%s.%s is new", path->data, name);
		if (is_required(before, name) && !is_required(after, name))
			return cell__buf_printf(out, "%s.%s is missing at times", path->data, name);
		if (!json_equal(old, each))
			return change_below(path, dotted, old, each, out);
	}
	return 0;
}

static int change(struct cell__buf *path, const json_t *before, const json_t *after, struct cell__buf *out)
{
	struct slots old = slots_of(before), new = slots_of(after);
	bool same = old.any == new.any;
	for (enum kind kind = TEXT; kind < KINDS; kind++)
		same = same && !old.of[kind] == !new.of[kind] &&
		       (kind != NUMBER || !old.of[kind] || json_equal(old.of[kind], new.of[kind]));
	if (!same)
		return cell__buf_printf(out, "%s: ", path->data) | add_text(before, 0, out) | cell__buf_add_str(out, " became ") |
		       add_text(after, 0, out);
	if (old.of[OBJECT] && !json_equal(old.of[OBJECT], new.of[OBJECT]))
		return change_of_objects(path, old.of[OBJECT], new.of[OBJECT], out);
	if (!old.of[ARRAY] || json_equal(old.of[ARRAY], new.of[ARRAY]))
		return 0;
	const json_t *items = field_of(old.of[ARRAY], "items"), *now = field_of(new.of[ARRAY], "items");
	if (!items || !now)
		return cell__buf_printf(out, "%s: its items are known now", path->data);
	return change_below(path, "[]", items, now, out);
}

int cell__shape_change(const json_t *before, const json_t *after, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (json_equal(before, after))
		return 0;
	return cell__buf_add_str(&path, "result") < 0 ? -1 : change(&path, before, after, out);
}

/* ---- learning ---- */

json_t *cell__shape_stable(const json_t *entry)
{
	return json_integer_value(field_of(entry, "same")) >= CELL_SHAPE_STABLE ? field_of(entry, "shape") : NULL;
}

static json_t *drifted(const json_t *entry, const json_t *shape)
{
	CELL_AUTO_BUF struct cell__buf what = CELL_BUF_INIT;
	json_int_t drifts = json_integer_value(field_of(entry, "drifts"));
	if (cell__shape_change(field_of(entry, "shape"), shape, &what) < 0)
		return NULL;
	size_t size = what.size < CELL_SHAPE_LIMIT_DRIFT_TEXT ? what.size : CELL_SHAPE_LIMIT_DRIFT_TEXT; /* ASCII throughout */
	return json_pack("{s:O, s:i, s:I, s:s%}", "shape", shape, "same", CELL_SHAPE_STABLE, "drifts",
			 drifts < CELL_SHAPE_LIMIT_DRIFTS ? drifts + 1 : drifts, "drift", what.data ? what.data : "", size);
}

json_t *cell__shape_learn(const json_t *entry, const json_t *shape, bool *ret_drift)
{
	*ret_drift = false;
	if (!entry)
		return json_pack("{s:O, s:i}", "shape", shape, "same", 1);
	json_t *merged = cell__shape_merge(field_of(entry, "shape"), shape), *next;
	json_int_t same = json_integer_value(field_of(entry, "same"));
	if (!merged)
		return NULL;
	if (!json_equal(merged, field_of(entry, "shape"))) {
		*ret_drift = same >= CELL_SHAPE_STABLE;
		next = *ret_drift ? drifted(entry, merged) : json_pack("{s:O, s:i}", "shape", merged, "same", 1);
	} else {
		next = json_copy((json_t *)entry);
		if (next && same < CELL_SHAPE_STABLE)
			json_object_set_new(next, "same", json_integer(same + 1));
	}
	json_decref(merged);
	return next;
}

/* Text that this file wrote: a storage may hold another. */
static bool is_drift_text(const json_t *text)
{
	const char *at = json_string_value(text);
	if (!at || json_string_length(text) > CELL_SHAPE_LIMIT_DRIFT_TEXT || strlen(at) != json_string_length(text))
		return false;
	for (; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr(" ._-$@:{}[]|", *at))
			return false;
	return true;
}

bool cell__shape_entry_ok(const json_t *entry)
{
	json_int_t same = json_integer_value(field_of(entry, "same")), drifts = json_integer_value(field_of(entry, "drifts"));
	size_t members = json_object_size(entry);
	if (!json_is_object(entry) || same < 1 || same > CELL_SHAPE_STABLE || !cell__shape_ok(field_of(entry, "shape")))
		return false;
	if (members == 2)
		return true;
	return members == 4 && drifts >= 1 && drifts <= CELL_SHAPE_LIMIT_DRIFTS && is_drift_text(field_of(entry, "drift"));
}
