/*
 * Is this text exactly one JSON value (RFC 8259) on one line?  Used for values that pass through as text so that an int
 * of any size stays exact; a JSON library would round it.  Pure, allocates nothing, bounded depth.
 */
#ifndef CELL_WIRE_JSON_CHECK_H
#define CELL_WIRE_JSON_CHECK_H

#include <stdbool.h>
#include <stddef.h>

bool cell__json_check(const char *text, size_t size);

/*
 * What a tree made of this text takes in memory besides the bytes of its strings, at most and roughly: a few bytes of
 * brackets make hundreds.  For text that may not be JSON at all; a fraction of what parsing costs.
 */
size_t cell__json_weigh(const char *text, size_t size);

/*
 * The members of an object whose values are strings, numbers, booleans or null, and whose names have no escapes; checked
 * like the above as they are taken.  It is what most messages are, and for those it spares building a tree.
 */
struct cell__json_walk {
	const char *at, *end;
	bool begun;
};
#define CELL_JSON_WALK(text, size) { (text), (text) + (size), false }
struct cell__json_member {
	const char *name;  /* as it stands in the text, without its quotes */
	size_t name_size;
	const char *value; /* a string with its quotes */
	size_t value_size;
};
/* 1: the next member; 0: no more members, and the text ends here; -1: not such an object. */
int cell__json_walk_next(struct cell__json_walk *walk, struct cell__json_member *ret_member);

#endif
