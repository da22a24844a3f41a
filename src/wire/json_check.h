/*
 * Is this text exactly one JSON value (RFC 8259) on one line?  Used for values that pass through as text so that an int
 * of any size stays exact; a JSON library would round it.  Pure, allocates nothing, bounded depth.
 */
#ifndef CELL_WIRE_JSON_CHECK_H
#define CELL_WIRE_JSON_CHECK_H

#include <stdbool.h>
#include <stddef.h>

bool cell__json_check(const char *text, size_t size);

#endif
