/*
 * JSON Schemas of arguments and answers: the one checker, and the schemas that the front ends publish.  Pure; any thread.
 *
 * The schemas are our own and use few keywords: type (a word or an array of them), properties, required, items, enum (of texts),
 * default, minimum, maximum, minLength 1, additionalProperties false, description.  Two are ours: "x-internal", a member that only our
 * kernels and programs know, and "x-nul", a text that may contain NUL.  Members of members are described, but not checked here.
 *
 * Schemas of others (of tools, of questions of an MCP server) belong to tools/schema.c, which ignores keywords that it does not know.
 */
#ifndef CELL_CALLS_SCHEMA_H
#define CELL_CALLS_SCHEMA_H

#include <jansson.h>

#include "base/base.h"

struct cell__operation;

enum cell__wrong {
	CELL__WRONG_MISSING,
	CELL__WRONG_TYPE,
	CELL__WRONG_RANGE,
	CELL__WRONG_EMPTY,
	CELL__WRONG_NUL,
	CELL__WRONG_CHOICE,
	CELL__WRONG_UNKNOWN, /* additionalProperties is false, and the schema has no such member */
};

struct cell__misfit {
	enum cell__wrong wrong;
	const char *name;     /* of the member */
	const json_t *schema; /* of the member; NULL: unknown */
	const json_t *value;  /* NULL: missing */
	bool required;
};

typedef void (*cell__misfit_fn)(void *arg, const struct cell__misfit *problem);

/*
 * The number of invalid members of the object.  fn gets each of them, in the order of the schema, then unknown ones; fn may be NULL.
 * A whole number that is written like 3.0 is a valid integer, and becomes one in the object.
 */
size_t cell__members_check(const json_t *schema, json_t *object, cell__misfit_fn fn, void *arg);
/* Adds the defaults of members that are missing or null.  -1: out of memory. */
int cell__schema_add_defaults(const json_t *schema, json_t *object);
/* "a string", "an integer from 1 to 1000", "an array of strings", "text, json or bytes" */
void cell__schema_add_words(struct cell__buf *out, const json_t *schema);
/* Members that are not required may also be null, which means that they are missing.  -1: out of memory. */
int cell__schema_allow_null(json_t *schema);

/* A copy for publication, without our own keywords. */
json_t *cell__schema_shown(const json_t *schema);
/* The same for a reader who pays for every word: without bounds, which calls that break them are told. */
json_t *cell__schema_brief(const json_t *schema);

/*
 * The arguments of an operation as a front end takes them: without internal members, and with its changes.  Those are a JSON merge patch
 * (RFC 7396) and may have a member "rename": {"old": "new"}, done first; NULL: none.  A new object; NULL: out of memory, or not JSON.
 */
json_t *cell__operation_takes(const struct cell__operation *operation, const char *changes);
/* Its answer, in the same way. */
json_t *cell__operation_gives(const struct cell__operation *operation, const char *changes);
/* Undoes the renames of `changes` in arguments.  -1: out of memory. */
int cell__operation_unrename(const char *changes, json_t *args);

/* The value that make(arg) returned on the first call; NULL: out of memory.  It is kept until the program ends. */
const json_t *cell__schema_once(json_t **slot, json_t *(*make)(const void *arg), const void *arg);

#endif
