/* YAML that people write (tool definitions, sandbox policies) as a tree with line numbers, and its problems. Pure: takes bytes. */
#ifndef CELL_WIRE_YAML_H
#define CELL_WIRE_YAML_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/base.h"

#define CELL_YAML_LIMIT_FILE_BYTES (256u * 1024u)
#define CELL_YAML_LIMIT_DEPTH 32u
#define CELL_YAML_LIMIT_KEYS 1024u    /* of one mapping */
#define CELL_YAML_LIMIT_PROBLEMS 100u /* reported per file */

/* ---- problems of definitions ---- */

struct cell__problem {
	char *file;
	int line; /* 1-based */
	char *message;
};

struct cell__problems {
	struct cell__problem *list;
	size_t count;
};

/* Past the limit, or without memory, problems are only counted less exactly: the list never becomes empty again. */
void cell__problem_add(struct cell__problems *problems, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
void cell__problems_finish(struct cell__problems *problems);

/* ---- YAML: a tree with line numbers ---- */

enum cell__yaml_kind { CELL_YAML_SCALAR, CELL_YAML_SEQUENCE, CELL_YAML_MAPPING };

struct cell__yaml {
	enum cell__yaml_kind kind;
	int line;
	char *text; /* scalar; holds no NUL */
	bool plain; /* scalar without quotes and without the tag !!str */
	struct cell__yaml **items; /* mapping: key, value, key, value; keys are scalars and differ */
	size_t count;
};

/*
 * One document. NULL when there is no document or it is invalid, and then a problem is recorded. Anchors, aliases and tags other than !!str
 * are refused, depth is bounded: the tree is never larger than the text.
 */
struct cell__yaml *cell__yaml_parse(const char *file, const char *bytes, size_t size, struct cell__problems *problems);
/* The same for texts that may be larger than definitions are. */
struct cell__yaml *cell__yaml_parse_within(const char *file, const char *bytes, size_t size, size_t limit, struct cell__problems *problems);
void cell__yaml_destroy(struct cell__yaml *node);
/* The value of a key, and its key's line; NULL: the mapping does not have the key. */
const struct cell__yaml *cell__yaml_get(const struct cell__yaml *map, const char *key);
bool cell__yaml_is_null(const struct cell__yaml *node);
/* Whether there is a value other than null. */
static inline bool cell__yaml_is_given(const struct cell__yaml *node)
{
	return node && !cell__yaml_is_null(node);
}
/* Scalars are converted as YAML's core schema says. NULL: out of memory. */
json_t *cell__yaml_to_json(const struct cell__yaml *node);

/* ---- reading the tree strictly ---- */

/* Shared by the loaders; `bad` is set with every problem. */
struct cell__loader {
	const char *file;
	struct cell__problems *problems;
	bool bad;
};
void cell__load_problem(struct cell__loader *loader, const struct cell__yaml *at, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Value NULL or YAML null: leaves the target unchanged. `what` names it in the problem. */
void cell__load_text(struct cell__loader *loader, const struct cell__yaml *value, const char *what, char **ret);
/* Whether the node is a mapping with these keys only. */
bool cell__load_keys(struct cell__loader *loader, const struct cell__yaml *map, const char *what, const char *const *known);

#endif
