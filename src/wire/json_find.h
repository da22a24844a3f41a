/*
 * Where a member stands in a JSON text, so that it can be passed on as it was written.  Pure; never looks past the
 * text, whatever it holds, but only promises sense for text that is known to be JSON.
 */
#ifndef CELL_WIRE_JSON_FIND_H
#define CELL_WIRE_JSON_FIND_H

#include <stdbool.h>
#include <stddef.h>

/*
 * path: names of members, NULL-terminated; the text is an object, and so is every member but the last.  Of members
 * with the same name the last counts, as for a JSON library.  False where it is not found, also when its name is
 * spelt with escapes.
 */
bool cell__json_find(const char *text, size_t size, const char *const *path, const char **ret_value, size_t *ret_size);

#endif
