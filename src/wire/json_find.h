/*
 * Finds a member in a JSON text, so that it can be passed on as it was written. Pure. Never reads past the text, whatever its content, but
 * gives a meaningful result only for valid JSON.
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
