/*
 * uv.lock, as `uv sync` writes it: which versions it chose, and the hashes of their files.  Pure, any thread.
 *
 * Confined programs wrote it, so it is read for what is looked for and believed in nothing: names, versions and hashes are
 * checked by whoever takes them over (cell__depbook_entry_ok()).
 */
#ifndef CELL_DEPS_UVLOCK_H
#define CELL_DEPS_UVLOCK_H

#include <jansson.h>
#include <stddef.h>

#define CELL__UVLOCK_PACKAGES 5000u

/*
 * [{"name": "rich", "version": "13.0", "hashes": ["<hex>", ...], "files": ["<path without hash>", ...], "bare": <wheels with neither>}, ...],
 * of packages that come from an index or a folder of wheels; NULL when it is not such a file, has more than
 * CELL__UVLOCK_PACKAGES of them, or memory is gone.
 */
json_t *cell__uvlock_parse(const char *text, size_t size);

#endif
