/*
 * uv.lock, as `uv sync` writes it: the versions it chose, and the hashes of their files. Pure, any thread.
 *
 * Confined programs wrote it, so nothing in it is trusted: the caller checks names, versions and hashes before it uses them
 * (cell__depbook_entry_ok()).
 */
#ifndef CELL_DEPS_UVLOCK_H
#define CELL_DEPS_UVLOCK_H

#include <jansson.h>
#include <stddef.h>

#define CELL__UVLOCK_PACKAGES 5000u

/*
 * [{"name": "rich", "version": "13.0", "hashes": ["<hex>", ...], "files": ["<path without hash>", ...], "bare": <wheels with neither>},
 * ...], of packages that come from an index or a folder of wheels; NULL: not such a file, more than CELL__UVLOCK_PACKAGES packages, or out
 * of memory.
 */
json_t *cell__uvlock_parse(const char *text, size_t size);

#endif
