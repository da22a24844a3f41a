/* Files of the `deno` executor: what libuv's pool does for it.  Synchronous, any thread, no state. */
#ifndef CELL_EXECUTOR_DENO_FILES_H
#define CELL_EXECUTOR_DENO_FILES_H

#include <jansson.h>

#include "core/core.h"

/* Whole or not at all.  0, or errno. */
int cell__deno_write_snapshot(const char *path, const char *bytes, size_t size);
/* The manifest of a folder of wheels (deno.h), and their bytes one after another, each with the hash that it should have. */
int cell__deno_read_wheels(const char *folder, json_t **ret_manifest, struct cell__buf *bytes, struct cell_error *err);

#endif
