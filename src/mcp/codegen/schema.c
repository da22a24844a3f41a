/*
 * From a schema to a type.
 *
 * References. The target of a reference is visited once. An object becomes a class, which is found by its schema from the moment it is
 * begun, so that a reference back to it finds its name. Any other type is inlined where it is used, unless it contains itself: then the
 * reference back makes it a class with a root (`made`), which is filled when the traversal returns there.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "mcp/codegen/internal.h"

/* ---- types ---- */

struct cell__gen_type cell__gen_any(struct cell__gen_module *m)
{
	(void)m;
	return (struct cell__gen_type){ .any = true, .nullable = true, .plain = true };
}

struct cell__gen_type cell__gen_one(struct cell__gen_module *m, const char *expression, bool plain)
{
	struct cell__gen_type type = { .members = cell__gen_alloc(m, 1, sizeof *type.members), .plain = plain };
	if (type.members) {
		type.members[0] = expression;
		type.n = 1;
	}
	return type;
}

void cell__gen_union_add(struct cell__gen_module *m, struct cell__gen_type *into, const struct cell__gen_type *more)
{
	if (into->any || more->any || into->n + more->n > CELL_GEN_LIMIT_UNION) {
		*into = cell__gen_any(m);
		return;
	}
	struct cell__gen_class *named = into->n == 0 ? more->named : NULL;
	const char **members = cell__gen_alloc(m, into->n + more->n + 1, sizeof *members);
	if (!members)
		return;
	size_t n = 0;
	for (size_t i = 0; i < into->n; i++)
		members[n++] = into->members[i];
	for (size_t i = 0; i < more->n; i++) {
		size_t k = 0;
		while (k < n && strcmp(members[k], more->members[i]) != 0)
			k++;
		if (k == n)
			members[n++] = more->members[i];
	}
	if (n == into->n)
		named = into->named; /* nothing new */
	into->members = members;
	into->plain = (into->n == 0 || into->plain) && (more->n == 0 || more->plain);
	into->n = n;
	into->named = named;
	into->nullable = into->nullable || more->nullable;
}

const char *cell__gen_type_text(struct cell__gen_module *m, const struct cell__gen_type *type)
{
	if (type->any) {
		cell__gen_use(m, GEN_ANY);
		return "Any";
	}
	if (type->n == 0)
		return "None";
	const char *text = type->members[0];
	if (type->n > 1) {
		CELL_AUTO_BUF struct cell__buf all = CELL_BUF_INIT;
		int rc = cell__buf_add_str(&all, "Union[");
		for (size_t i = 0; i < type->n && rc == 0; i++)
			rc = cell__buf_printf(&all, "%s%s", i ? ", " : "", type->members[i]);
		/* Not Optional[Union[...]]: typing caches those by their members, and may return another order. */
		if (rc < 0 || cell__buf_add_str(&all, type->nullable ? ", None]" : "]") < 0) {
			m->nomem = true;
			return "";
		}
		cell__gen_use(m, GEN_UNION);
		return cell__gen_copy(m, all.data, all.size);
	}
	if (!type->nullable)
		return text;
	cell__gen_use(m, GEN_OPTIONAL);
	return cell__gen_printf(m, "Optional[%s]", text);
}

/* ---- classes ---- */

struct cell__gen_class *cell__gen_begin_class(struct cell__gen_module *m, enum cell__gen_kind kind, const char *hint, const json_t *schema)
{
	static const enum cell__gen_import bases[] = { GEN_BASE_MODEL, GEN_ROOT_MODEL, GEN_STR_ENUM, GEN_INT_ENUM };
	struct cell__gen_class *class = cell__gen_alloc(m, 1, sizeof *class);
	if (!class)
		return NULL;
	class->kind = kind;
	class->output = m->output;
	class->name = "";
	class->base_name = hint;
	class->schema = schema;
	class->description = json_object_get(schema, "description");
	class->next_known = m->known;
	m->known = class;
	m->n_classes++;
	cell__gen_use(m, bases[kind]);
	return class;
}

void cell__gen_end_class(struct cell__gen_module *m, struct cell__gen_class *class)
{
	class->done = true;
	*m->last = class;
	m->last = &class->next;
}

static struct cell__gen_type type_of_class(struct cell__gen_module *m, struct cell__gen_class *class)
{
	struct cell__gen_type type = cell__gen_one(m, class->name, false);
	type.named = class;
	if (!class->done)
		m->forward = true;
	return type;
}

/* ---- objects ---- */

/* The names in "required", as the keys of an object: a new reference; NULL: no memory. */
static json_t *required_names(const json_t *schema)
{
	json_t *names = json_object();
	const json_t *each, *list = json_object_get(schema, "required");
	size_t i;
	json_array_foreach(list, i, each) {
		if (names && json_is_string(each) && strlen(json_string_value(each)) == json_string_length(each) &&
		    json_object_set_new(names, json_string_value(each), json_true()) < 0) {
			json_decref(names);
			names = NULL;
		}
	}
	return names;
}

static void make_field(struct cell__gen_module *m, struct cell__gen_field *field, const char *property, const json_t *schema, bool required,
		       unsigned depth)
{
	const char *hint = cell__gen_class_name(m, property, strlen(property));
	field->property = property;
	field->required = required;
	field->type = cell__gen_type_of(m, schema, hint, depth + 1);
	field->description = json_object_get(schema, "description");
	const json_t *value = json_object_get(schema, "default");
	if (!value && (json_object_get(schema, "$ref") || json_object_get(schema, "allOf")))
		value = json_object_get(cell__gen_flatten(m, schema, depth), "default");
	if (!required)
		field->value = value ? cell__gen_default(m, schema, &field->type, value) : "None";
	if (!required && !field->value)
		field->value = "None"; /* a default that does not fit is dropped */
}

/*
 * The treatment of properties that the schema does not name. If the schema leaves it open, a result keeps them, and parameters refuse them,
 * because an unknown parameter is nearly always a mistake.
 */
static const char *extra_of(const struct cell__gen_module *m, const json_t *schema)
{
	const json_t *more = json_object_get(schema, "additionalProperties");
	if (!more)
		more = json_object_get(schema, "unevaluatedProperties");
	if (json_object_get(schema, "patternProperties"))
		return "allow";
	if (more)
		return json_is_false(more) ? "forbid" : "allow";
	return m->output || !json_object_get(schema, "properties") ? "allow" : "forbid";
}

static void fill_model(struct cell__gen_module *m, struct cell__gen_class *class, const json_t *schema, unsigned depth)
{
	json_t *properties = json_object_get(schema, "properties"), *required = required_names(schema);
	const char *key;
	json_t *value;
	size_t n = json_object_size(properties);
	class->extra = extra_of(m, schema);
	class->fields = cell__gen_alloc(m, n, sizeof *class->fields);
	if (!required)
		m->nomem = true;
	if (class->fields && required) {
		json_object_foreach(properties, key, value) {
			make_field(m, &class->fields[class->n_fields++], cell__gen_copy(m, key, strlen(key)), value,
				   json_object_get(required, key) != NULL, depth);
		}
	}
	json_decref(required);
}

static bool fits_in_class(const struct cell__gen_module *m, const json_t *properties)
{
	return json_object_size(properties) <= CELL_GEN_LIMIT_FIELDS && m->n_classes < CELL_GEN_LIMIT_CLASSES;
}

const json_t *cell__gen_dict_item(const json_t *schema)
{
	json_t *more = json_object_get(schema, "additionalProperties");
	json_t *patterns = json_object_get(schema, "patternProperties");
	if (json_is_object(more) && !json_object_size(patterns))
		return more;
	if (json_object_size(patterns) == 1 && !json_is_true(more) && !json_is_object(more))
		return json_object_iter_value(json_object_iter(patterns));
	return NULL;
}

static struct cell__gen_type dict_type(struct cell__gen_module *m, const json_t *schema, const char *hint, unsigned depth)
{
	struct cell__gen_type item = cell__gen_any(m);
	const json_t *of = cell__gen_dict_item(schema);
	if (of)
		item = cell__gen_type_of(m, of, cell__gen_singular(m, hint), depth + 1);
	const char *text = cell__gen_printf(m, "Dict[str, %s]", cell__gen_type_text(m, &item));
	cell__gen_use(m, GEN_DICT);
	text = cell__gen_with_length(m, schema, text, "minProperties", "maxProperties", NULL);
	return cell__gen_one(m, text, item.plain);
}

/* key: the schema that references to this object lead to. */
static struct cell__gen_type object_type(struct cell__gen_module *m, const json_t *schema, const json_t *key, const char *hint,
					 unsigned depth)
{
	const json_t *properties = json_object_get(schema, "properties");
	if (json_object_size(properties) == 0 || !fits_in_class(m, properties))
		return dict_type(m, schema, hint, depth);
	/* allOf brings us here again without a reference, also from inside of itself. */
	for (struct cell__gen_class *same = m->known; same && key; same = same->next_known)
		if (same->schema == key)
			return type_of_class(m, same);
	struct cell__gen_class *class = cell__gen_begin_class(m, GEN_KIND_MODEL, hint, key);
	if (!class)
		return cell__gen_any(m);
	class->name = cell__gen_take_class_name(m, hint);
	class->description = json_object_get(schema, "description");
	fill_model(m, class, schema, depth);
	cell__gen_end_class(m, class);
	return type_of_class(m, class);
}

/* ---- arrays ---- */

static struct cell__gen_type tuple_type(struct cell__gen_module *m, const json_t *first, const char *hint, unsigned depth)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const json_t *each;
	size_t i;
	int rc = cell__buf_add_str(&text, "Tuple[");
	json_array_foreach(first, i, each) {
		struct cell__gen_type item = cell__gen_type_of(m, each, hint, depth + 1);
		if (rc == 0)
			rc = cell__buf_printf(&text, "%s%s", i ? ", " : "", cell__gen_type_text(m, &item));
	}
	if (rc < 0 || cell__buf_add_str(&text, "]") < 0) {
		m->nomem = true;
		return cell__gen_any(m);
	}
	cell__gen_use(m, GEN_TUPLE);
	return cell__gen_one(m, cell__gen_copy(m, text.data, text.size), false);
}

static struct cell__gen_type array_type(struct cell__gen_module *m, const json_t *schema, const char *hint, unsigned depth)
{
	const json_t *items = json_object_get(schema, "items"), *rest = items;
	const json_t *first = json_object_get(schema, "prefixItems");
	if (json_is_array(items)) {
		first = items;
		rest = json_object_get(schema, "additionalItems");
	}
	const char *one = cell__gen_singular(m, hint);
	size_t n = json_array_size(first), i;
	int64_t least = cell__gen_count(schema, "minItems"), most = cell__gen_count(schema, "maxItems");
	bool closed = json_is_false(rest) || (most >= 0 && (uint64_t)most <= n);
	if (n > 0 && n <= CELL_GEN_LIMIT_TUPLE && closed && least >= 0 && (uint64_t)least >= n)
		return tuple_type(m, first, one, depth);
	struct cell__gen_type item = { .plain = true };
	const json_t *each;
	json_array_foreach(first, i, each) {
		struct cell__gen_type type = cell__gen_type_of(m, each, one, depth + 1);
		cell__gen_union_add(m, &item, &type);
	}
	if (n == 0 || !json_is_false(rest)) {
		struct cell__gen_type type = cell__gen_type_of(m, rest, one, depth + 1);
		if (!closed || n == 0)
			cell__gen_union_add(m, &item, &type);
	}
	const char *text = cell__gen_printf(m, "List[%s]", cell__gen_type_text(m, &item));
	cell__gen_use(m, GEN_LIST);
	const char *note = NULL;
	if (json_is_true(json_object_get(schema, "uniqueItems"))) {
		cell__gen_use(m, GEN_UNIQUE);
		note = "Unique()";
	}
	return cell__gen_one(m, cell__gen_with_length(m, schema, text, "minItems", "maxItems", note), item.plain);
}

/* ---- any schema ---- */

static struct cell__gen_type type_by_name(struct cell__gen_module *m, const json_t *schema, const json_t *key, const char *name,
					  const char *hint, unsigned depth)
{
	struct cell__gen_type type;
	if (strcmp(name, "object") == 0)
		return object_type(m, schema, key, hint, depth);
	if (strcmp(name, "array") == 0)
		return array_type(m, schema, hint, depth);
	return cell__gen_scalar(m, schema, name, &type) ? type : cell__gen_any(m);
}

/* "type", or a guess from the other keywords; NULL: any type. */
static const char *type_name(const json_t *schema)
{
	const char *name = json_string_value(json_object_get(schema, "type"));
	if (name || json_object_get(schema, "type"))
		return name;
	if (json_object_get(schema, "properties") || json_object_get(schema, "additionalProperties") ||
	    json_object_get(schema, "patternProperties"))
		return "object";
	return json_object_get(schema, "items") || json_object_get(schema, "prefixItems") ? "array" : NULL;
}

static struct cell__gen_type variants_type(struct cell__gen_module *m, const json_t *schema, const json_t *variants, const char *hint,
					   unsigned depth)
{
	struct cell__gen_type all = { .plain = true };
	json_t *base = NULL;
	const json_t *each;
	size_t i;
	if (json_object_size(json_object_get(schema, "properties")) > 0) {
		/* Properties that all variants share belong to each of them. */
		base = json_copy((json_t *)schema);
		json_object_del(base, "anyOf");
		json_object_del(base, "oneOf");
		if (!base || json_array_append_new(m->kept, base) < 0)
			m->nomem = true;
	}
	json_array_foreach(variants, i, each) {
		json_t *part = base && !m->nomem ? json_pack("{s:[O,O]}", "allOf", base, each) : NULL;
		if (part && json_array_append_new(m->kept, part) < 0)
			m->nomem = true;
		struct cell__gen_type type = cell__gen_type_of(m, part ? part : each, hint, depth + 1);
		cell__gen_union_add(m, &all, &type);
		if (all.any)
			break;
	}
	return all;
}

static struct cell__gen_type inline_type(struct cell__gen_module *m, const json_t *schema, const char *hint, unsigned depth)
{
	struct cell__gen_type type = { .plain = true };
	const json_t *flat = cell__gen_flatten(m, schema, depth), *variants, *each;
	size_t i;
	if (!flat)
		return cell__gen_any(m);
	const json_t *names = json_object_get(flat, "type");
	const char *name = type_name(flat);
	if (cell__gen_enum(m, flat, hint, &type))
		return type;
	variants = cell__gen_variants(flat);
	if (variants) {
		type = variants_type(m, flat, variants, hint, depth);
	} else if (json_is_array(names) && json_array_size(names) > 0) {
		json_array_foreach(names, i, each) {
			struct cell__gen_type one = cell__gen_any(m);
			if (json_is_string(each))
				one = type_by_name(m, flat, NULL, json_string_value(each), hint, depth);
			cell__gen_union_add(m, &type, &one);
		}
	} else if (name) {
		type = type_by_name(m, flat, schema, name, hint, depth);
	} else {
		return cell__gen_any(m);
	}
	if (json_is_true(json_object_get(flat, "nullable")))
		type.nullable = true;
	return type;
}

/* ---- references ---- */

/* A type without the class that it is the root of: X = X | str is str. */
static struct cell__gen_type without(struct cell__gen_module *m, const struct cell__gen_type *type, const char *name)
{
	struct cell__gen_type kept = *type;
	kept.members = cell__gen_alloc(m, type->n + 1, sizeof *kept.members);
	kept.n = 0;
	for (size_t i = 0; i < type->n && kept.members; i++)
		if (strcmp(type->members[i], name) != 0)
			kept.members[kept.n++] = type->members[i];
	if (type->any || (kept.n == 0 && !kept.nullable))
		return cell__gen_any(m);
	return kept;
}

static const char *last_part(struct cell__gen_module *m, const char *ref, const char *otherwise)
{
	const char *slash = ref ? strrchr(ref, '/') : NULL;
	return slash && slash[1] ? cell__gen_class_name(m, slash + 1, strlen(slash + 1)) : otherwise;
}

static struct cell__gen_type ref_type(struct cell__gen_module *m, const json_t *target, const char *hint, unsigned depth)
{
	for (struct cell__gen_class *class = m->known; class; class = class->next_known)
		if (class->schema == target)
			return type_of_class(m, class);
	for (struct cell__gen_ref *ref = m->refs; ref; ref = ref->next) {
		if (ref->target != target)
			continue;
		if (ref->done)
			return ref->type;
		ref->made = cell__gen_begin_class(m, GEN_KIND_ROOT, ref->hint, target);
		if (!ref->made)
			return cell__gen_any(m);
		ref->made->name = cell__gen_take_class_name(m, ref->hint);
		return type_of_class(m, ref->made);
	}
	struct cell__gen_ref *ref = cell__gen_alloc(m, 1, sizeof *ref);
	if (!ref)
		return cell__gen_any(m);
	*ref = (struct cell__gen_ref){ .target = target, .hint = hint, .next = m->refs };
	m->refs = ref;
	struct cell__gen_type type = inline_type(m, target, hint, depth);
	if (ref->made) {
		ref->made->root = without(m, &type, ref->made->name);
		cell__gen_end_class(m, ref->made);
		type = type_of_class(m, ref->made);
		type.nullable = ref->made->root.nullable;
	}
	ref->type = type;
	ref->done = true;
	return type;
}

struct cell__gen_type cell__gen_type_of(struct cell__gen_module *m, const json_t *schema, const char *hint, unsigned depth)
{
	if (!json_is_object(schema) || depth > CELL_GEN_LIMIT_DEPTH || ++m->n_schemas > CELL_GEN_LIMIT_SCHEMAS || m->nomem)
		return cell__gen_any(m);
	const json_t *target = cell__gen_follow(m, schema);
	if (target == schema)
		return inline_type(m, schema, hint, depth);
	if (!target)
		return cell__gen_any(m);
	struct cell__gen_type type = ref_type(m, target, last_part(m, json_string_value(json_object_get(schema, "$ref")), hint), depth);
	if (json_is_true(json_object_get(schema, "nullable")))
		type.nullable = true;
	return type;
}

/* ---- Params and Result ---- */

static bool is_object(const json_t *schema)
{
	const json_t *type = json_object_get(schema, "type"), *each;
	const char *name = type_name(schema);
	size_t i;
	json_array_foreach(type, i, each)
		if (json_is_string(each) && strcmp(json_string_value(each), "object") == 0)
			return true;
	if (name)
		return strcmp(name, "object") == 0;
	return !type && !json_object_get(schema, "enum") && !json_object_get(schema, "const");
}

/* An object whose properties have no names: a mapping. */
static bool is_mapping(const json_t *schema)
{
	return json_object_size(json_object_get(schema, "properties")) == 0 &&
	       (json_is_object(json_object_get(schema, "additionalProperties")) ||
		json_object_size(json_object_get(schema, "patternProperties")) > 0);
}

void cell__gen_top(struct cell__gen_module *m, const json_t *schema, const char *name)
{
	m->root = schema;
	const json_t *key = cell__gen_follow(m, schema), *flat = key ? cell__gen_flatten(m, key, 0) : NULL;
	const json_t *properties = json_object_get(flat, "properties");
	bool object = !flat || is_object(flat);
	/* The parameters of a tool are an object, whatever the schema says. */
	bool root = flat && (cell__gen_variants(flat) || (object && is_mapping(flat)) || (!object && m->output));
	struct cell__gen_class *class = cell__gen_begin_class(m, root ? GEN_KIND_ROOT : GEN_KIND_MODEL, name, key);
	if (!class)
		return;
	class->name = name;
	class->description = json_object_get(flat, "description");
	if (root) {
		struct cell__gen_type type = cell__gen_variants(flat) || !object ? inline_type(m, key, "Variant", 0)
										 : dict_type(m, flat, "Value", 0);
		class->root = without(m, &type, name);
	} else if (flat && object && fits_in_class(m, properties)) {
		fill_model(m, class, flat, 0);
	} else {
		class->extra = "allow";
	}
	cell__gen_end_class(m, class);
}
