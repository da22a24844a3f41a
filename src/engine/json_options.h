/*
 * Options in JSON: fills the structs of the public header from an object whose members have the names of the struct's members.  Pure;
 * any thread.
 */
#ifndef CELL_ENGINE_JSON_OPTIONS_H
#define CELL_ENGINE_JSON_OPTIONS_H

#include <jansson.h>

#include "base/base.h"

enum cell__json_kind {
	CELL__JSON_TEXT = 1, /* const char *; a string, borrowed from the JSON */
	CELL__JSON_INT, /* int */
	CELL__JSON_INT64,
	CELL__JSON_FLAG, /* int; true or false */
	CELL__JSON_TEXTS, /* const char *const *; an array of strings */
	CELL__JSON_PAIRS, /* const char *const *, "K=V"; an object of strings */
	CELL__JSON_OTHER, /* read by the caller: any value is accepted */
};

/* One table per struct ends with a row without a name. */
struct cell__json_field {
	const char *name;
	enum cell__json_kind kind;
	size_t offset;
};

extern const struct cell__json_field cell__json_engine_fields[], cell__json_session_fields[], cell__json_space_fields[],
	cell__json_container_fields[], cell__json_kubernetes_fields[], cell__json_audit_fields[], cell__json_answer_fields[];

/* Memory that options point to; free when they are no longer used. */
struct cell__json_memory {
	void **list;
	size_t count;
};
void cell__json_memory_finish(struct cell__json_memory *memory);

/*
 * *ret has the defaults.  what: the object's name for messages.  CELL_E_INVALID: a member is unknown or has a wrong type.  Null means the
 * default.  ret and memory may be NULL if the caller reads every member.
 */
int cell__json_read(const json_t *object, const char *what, const struct cell__json_field *fields, void *ret,
		    struct cell__json_memory *memory, struct cell_error *err);

#endif
