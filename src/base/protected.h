/*
 * Protected names: files by which a later program of the host runs code without being asked to (docs/branches.md lists them).  Pure; any
 * thread.
 */
#ifndef CELL_BASE_PROTECTED_H
#define CELL_BASE_PROTECTED_H

#include <stdbool.h>
#include <stddef.h>

/* All names, in lower case; one "*" at the beginning or the end stands for any characters.  NULL-terminated. */
const char *const *cell__protected_names(void);
/* Does this one name fit the pattern?  Upper and lower case are the same. */
bool cell__protected_fits(const char *pattern, const char *name, size_t size);
/* Is this one name protected? */
bool cell__protected_name(const char *name, size_t size);
/* Is a name in this relative path protected?  A protected folder protects everything below it. */
bool cell__protected_path(const char *path);

#endif
