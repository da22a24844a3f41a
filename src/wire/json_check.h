/*
 * Checks that a text is exactly one JSON value (RFC 8259) on one line. Used for values that are passed on as text so that an int of any
 * size stays exact; a JSON library would round it. Pure, allocates nothing, bounded depth.
 */
#ifndef CELL_WIRE_JSON_CHECK_H
#define CELL_WIRE_JSON_CHECK_H

#include <stdbool.h>
#include <stddef.h>

bool cell__json_check(const char *text, size_t size);

/*
 * A rough upper bound of the memory that a tree made of this text takes besides the bytes of its strings: a few bytes of brackets can take
 * hundreds. Accepts text that is not JSON; costs a fraction of parsing.
 */
size_t cell__json_weigh(const char *text, size_t size);

/*
 * Walks the members of an object whose values are strings, numbers, booleans or null, and whose names have no escapes; checks them like the
 * functions above. Most messages are such objects, and need no tree.
 */
struct cell__json_walk {
	const char *at, *end;
	bool begun;
};
#define CELL_JSON_WALK(text, size) { (text), (text) + (size), false }
struct cell__json_member {
	const char *name; /* as written in the text, without its quotes */
	size_t name_size;
	const char *value; /* a string with its quotes */
	size_t value_size;
};
/* 1: the next member; 0: no more members, and the text ends here; -1: not such an object. */
int cell__json_walk_next(struct cell__json_walk *walk, struct cell__json_member *ret_member);

#endif
