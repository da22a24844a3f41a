/*
 * Structs of the public header that begin with their `size`: the sizeof when the program was compiled.  They grow at their
 * end only, so programs and libraries of different versions understand each other as far as both know a struct:
 *
 *     an older program gives a shorter struct: missing members have their defaults, and are not written;
 *     a newer program gives a longer one: unknown members must be unset (zero) in its input, and are zero in our output.
 */
#ifndef CELL_BASE_SIZED_H
#define CELL_BASE_SIZED_H

#include <stddef.h>

#include "base/base.h"

/* More than any struct grows by; a larger size was never set. */
#define CELL_SIZED_MAX_BYTES (64u * 1024u)

/* Does the program's struct reach as far as this member? */
#define cell__sized_has(given, member) ((given)->size >= offsetof(__typeof__(*(given)), member) + sizeof((given)->member))

/* CELL_E_INVALID: `given` is NULL or its `size` was not set.  name: "cell_engine_options". */
int cell__sized_check(const void *given, const char *name, struct cell_error *err);
/*
 * Takes over what a program gave.  *ret, of ret_bytes, holds the defaults, and keeps its own size.  CELL_E_INVALID: as above, or
 * something is asked for that this version does not know; *ret is untouched then.
 */
int cell__sized_read(void *ret, size_t ret_bytes, const void *given, const char *name, struct cell_error *err);
/* The other way: fills what a program gave, whose size has been checked, and keeps the program's size. */
void cell__sized_write(void *given, const void *from, size_t from_bytes);

#endif
