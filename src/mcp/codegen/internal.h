/*
 * Shared by the files of the generator. One struct cell__gen_module lives while one tool is turned into text; all small allocations are in
 * its arena. A failed allocation sets `nomem`, which is checked once, at the end: until then every function returns a usable value.
 */
#ifndef CELL_MCP_CODEGEN_INTERNAL_H
#define CELL_MCP_CODEGEN_INTERNAL_H

#include <stdint.h>

#include "mcp/codegen/gen.h"

/* Names that a module imports when it uses them.  The order is that of the import lines. */
enum cell__gen_import {
	/* from datetime, ipaddress, typing, uuid */
	GEN_DATE,
	GEN_DATETIME,
	GEN_TIME,
	GEN_IPV4,
	GEN_IPV6,
	GEN_ANNOTATED,
	GEN_ANY,
	GEN_DICT,
	GEN_LIST,
	GEN_LITERAL,
	GEN_OPTIONAL,
	GEN_TUPLE,
	GEN_UNION,
	GEN_UUID,
	/* from ._api */
	GEN_BASE_MODEL,
	GEN_CLIENT,
	GEN_FIELD,
	GEN_INT_ENUM,
	GEN_NULLABLE,
	GEN_ONE_OF,
	GEN_PATTERN,
	GEN_ROOT_MODEL,
	GEN_STR_ENUM,
	GEN_UNIQUE,
	GEN_IMPORTS
};

struct cell__gen_class;

/* A type: a union of expressions, often of one. */
struct cell__gen_type {
	const char **members;
	size_t n;
	bool nullable;                 /* null is one of its values */
	bool any;        /* unknown type */
	bool plain;      /* values are JSON values: a literal can be a default as it is */
	struct cell__gen_class *named; /* if the type is exactly one class */
};

enum cell__gen_kind { GEN_KIND_MODEL, GEN_KIND_ROOT, GEN_KIND_STR_ENUM, GEN_KIND_INT_ENUM };

struct cell__gen_field {
	const char *property;          /* as the server spells it */
	const char *name;              /* given when all classes are known */
	struct cell__gen_type type;
	const char *value;             /* of the default, as an expression; NULL: no default */
	bool required;
	const json_t *description;
};

struct cell__gen_member {
	const char *name;
	const json_t *value;
};

struct cell__gen_class {
	enum cell__gen_kind kind;
	const char *name;              /* "" until it has one */
	const char *base_name;         /* before it was made unique */
	const json_t *schema;          /* its source; NULL: no reference can lead to it */
	const json_t *description;
	const char *extra;             /* "forbid", "allow" */
	struct cell__gen_field *fields;
	size_t n_fields;
	struct cell__gen_member *members;
	size_t n_members;
	struct cell__gen_type root;    /* of GEN_KIND_ROOT */
	bool done;
	bool output;                   /* of results */
	struct cell__gen_class *next;       /* in the order of the text */
	struct cell__gen_class *next_known; /* in the order of their beginning */
};

/* A reference that is being followed, or that was followed and has no class of its own. */
struct cell__gen_ref {
	const json_t *target;
	const char *hint;
	struct cell__gen_class *made;  /* when it turned out to contain itself */
	bool done;
	struct cell__gen_type type;    /* when it is resolved */
	struct cell__gen_ref *next;
};

struct cell__gen_block;

struct cell__gen_module {
	struct cell__gen_block *blocks;
	bool nomem;
	const json_t *root;            /* "#" */
	bool output;                   /* the schema of results, not of parameters */
	json_t *names;                 /* of classes and imports, as the keys of an object */
	json_t *kept;                  /* schemas that we made */
	size_t n_schemas, n_classes;
	bool forward;                  /* a class refers to a later class */
	uint32_t imports;
	struct cell__gen_class *first, **last; /* done */
	struct cell__gen_class *known;
	struct cell__gen_ref *refs;
};

/* ---- text.c ---- */

void *cell__gen_alloc(struct cell__gen_module *m, size_t count, size_t size);
/* Never NULL. */
const char *cell__gen_printf(struct cell__gen_module *m, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *cell__gen_copy(struct cell__gen_module *m, const char *text, size_t size);
void cell__gen_free_blocks(struct cell__gen_module *m);
void cell__gen_use(struct cell__gen_module *m, enum cell__gen_import name);

/* The character at text and its size; text is valid UTF-8. */
uint32_t cell__gen_char(const char *text, size_t size, size_t *ret_size);
/* -1: out of memory, as for all functions below. */
int cell__gen_add_string(struct cell__buf *out, const char *text, size_t size);
/* A docstring of at most `limit` bytes with its indentation and line end; nothing if the text is empty. */
int cell__gen_add_doc(struct cell__buf *out, const char *text, size_t size, unsigned indent, size_t limit);
int cell__gen_add_json_doc(struct cell__buf *out, const json_t *text, unsigned indent);
/* 1: the value cannot be written as a literal (it is nested too deeply). */
int cell__gen_add_literal(struct cell__buf *out, const json_t *value, unsigned depth);
/* The same in the module's memory; NULL: it cannot be written. */
const char *cell__gen_literal(struct cell__gen_module *m, const json_t *value);

/* ---- names.c ---- */

bool cell__gen_server_ok(const char *name);
bool cell__gen_is_keyword(const char *word);
/* free() them; NULL: out of memory. */
char *cell__gen_package_name(const char *server);
char *cell__gen_module_name(const char *tool, size_t size);
/* "my-items" -> "MyItems"; one of several things -> "MyItem". */
const char *cell__gen_class_name(struct cell__gen_module *m, const char *text, size_t size);
const char *cell__gen_singular(struct cell__gen_module *m, const char *class_name);
/* base, or base with something behind it, so that no name of the module is like it; taken from now on. */
const char *cell__gen_take_class_name(struct cell__gen_module *m, const char *base);
/* Fills in the names of a model's fields. */
void cell__gen_name_fields(struct cell__gen_module *m, struct cell__gen_class *class);
void cell__gen_name_members(struct cell__gen_module *m, struct cell__gen_class *class);
/* Reserves imported and built-in names, which no class may have. */
void cell__gen_reserve_names(struct cell__gen_module *m);
const char *cell__gen_import_name(enum cell__gen_import name);

/* ---- schema.c, flat.c ---- */

/* The Python type of a schema; `hint` names the classes that it needs. */
struct cell__gen_type cell__gen_type_of(struct cell__gen_module *m, const json_t *schema, const char *hint, unsigned depth);
/* The class Params or Result. */
void cell__gen_top(struct cell__gen_module *m, const json_t *schema, const char *name);
/* The schema at the end of a chain of references, for a schema that is only a reference; NULL: not found. */
const json_t *cell__gen_follow(const struct cell__gen_module *m, const json_t *schema);
/* The same for all references and allOf parts of it: one object without either.  NULL: no object. */
const json_t *cell__gen_flatten(struct cell__gen_module *m, const json_t *schema, unsigned depth);
/* The schema that all values of a mapping have; NULL: anything goes. */
const json_t *cell__gen_dict_item(const json_t *schema);
/* anyOf or oneOf, if it says more than which members are required; else NULL. */
const json_t *cell__gen_variants(const json_t *schema);

struct cell__gen_type cell__gen_any(struct cell__gen_module *m);
struct cell__gen_type cell__gen_one(struct cell__gen_module *m, const char *expression, bool plain);
const char *cell__gen_type_text(struct cell__gen_module *m, const struct cell__gen_type *type);
void cell__gen_union_add(struct cell__gen_module *m, struct cell__gen_type *into, const struct cell__gen_type *more);
struct cell__gen_class *cell__gen_begin_class(struct cell__gen_module *m, enum cell__gen_kind kind, const char *hint, const json_t *schema);
void cell__gen_end_class(struct cell__gen_module *m, struct cell__gen_class *class);

/* ---- scalar.c ---- */

/* One of "string", "integer", "number", "boolean" and "null"; false: another type. */
bool cell__gen_scalar(struct cell__gen_module *m, const json_t *schema, const char *type, struct cell__gen_type *ret);
/* Of a schema with "enum" or "const"; false: it has neither, or an unusable one. */
bool cell__gen_enum(struct cell__gen_module *m, const json_t *schema, const char *hint, struct cell__gen_type *ret);
/* T with min_length and max_length from these keywords. */
const char *cell__gen_with_length(struct cell__gen_module *m, const json_t *schema, const char *text, const char *least, const char *most,
				  const char *note);
/* A count that is a keyword's value; -1: missing. */
int64_t cell__gen_count(const json_t *schema, const char *keyword);
/* The Python type of a "format"; false: plain text. */
bool cell__gen_format(const json_t *schema, enum cell__gen_import *ret);

/* ---- value.c ---- */

bool cell__gen_fits(struct cell__gen_module *m, const json_t *schema, const json_t *value, unsigned depth);
/* The expression of a field's default; NULL: there is no valid default. */
const char *cell__gen_default(struct cell__gen_module *m, const json_t *schema, const struct cell__gen_type *type, const json_t *value);

/* ---- class.c ---- */

void cell__gen_add_imports(struct cell__gen_module *m, struct cell__buf *out);
/* All classes; notes the imports that they need in m->imports. */
int cell__gen_add_classes(struct cell__gen_module *m, struct cell__buf *out);

/* ---- json.c ---- */

int cell__gen_soften(const char *text, size_t size, struct cell__buf *out);

#endif
