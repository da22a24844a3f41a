/*
 * What the `deno` executor keeps for an engine: where its parts are.  Belongs to the loop's thread.
 */
#ifndef CELL_EXECUTOR_DENO_H
#define CELL_EXECUTOR_DENO_H

#include "executor/executor.h"

#define CELL_DENO_VERSION "2.9.6"      /* as deno/package.json has them */
#define CELL_PYODIDE_VERSION "314.0.7"
#define CELL_PYODIDE_PYTHON "3.14"

/* A folder of wheels: [[name, size, SHA-256 in hex], ...] is in this file of it. */
#define CELL_WHEELS_MANIFEST "manifest.json"
#define CELL_WHEELS_BYTES (60u * 1024u * 1024u) /* of one session; below what a frame carries */

struct cell__deno_config {
	struct cell__spawn_hub *hub;
	const char *lib_dir;   /* holds deno/ and kernel/ */
	const char *cache_dir; /* NULL: ~/.cache/workcell */
	int64_t start_timeout_ms;
};

int cell__deno_create(const struct cell__deno_config *config, struct cell__deno **ret_deno, struct cell_error *err);
/* After the loop has stopped.  NULL is fine. */
void cell__deno_destroy(struct cell__deno *deno);
/* Where Deno and Pyodide are, or would be. */
const char *cell__deno_folder(const struct cell__deno *deno);

#endif
