/* Files of the `deno` executor: its work on libuv's pool. Synchronous, any thread, no state. */
#ifndef CELL_EXECUTORS_DENO_FILES_H
#define CELL_EXECUTORS_DENO_FILES_H

#include <jansson.h>

#include "base/base.h"

/* Whole or not at all.  0, or errno. */
int cell__deno_write_snapshot(const char *path, const char *bytes, size_t size);
/* The manifest of a folder of wheels (deno.h), and their bytes one after another, each with the hash that it should have. */
int cell__deno_read_wheels(const char *folder, json_t **ret_manifest, struct cell__buf *bytes, struct cell_error *err);

/* ---- parts.c ---- */

#define CELL_DENO_PROGRAM "/node_modules/@deno/linux-x64-glibc/deno"

struct cell__deno {
	struct cell__supervisor *supervisor;
	char *runner_dir, *kernel_dir, *folder;
	int64_t start_timeout_ms;
};

struct cell__executor_host;
/* For the vtable. */
int cell__deno_create(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state, struct cell_error *err);
void cell__deno_destroy(void *state, void (*done)(void *arg), void *arg);
void cell__deno_probe(struct cell__executor_host *host, struct cell_executor_info *info);
/* Where the snapshot of these parts with these preloads is.  NULL: out of memory. */
char *cell__deno_snapshot_path(const struct cell__deno *deno, const char *preload);

/* ---- command.c ---- */

#define CELL_DENO_WORDS 25

/* The words of a command line, and the memory that they are in.  Zero it first; finish() must follow, also on failure. */
struct cell__deno_command {
	struct cell__buf program, pyodide, read, map, v8, runner, shell;
	const char *argv[CELL_DENO_WORDS]; /* NULL-terminated; borrows the arguments of init() */
};

extern const char *const cell__deno_env[];
int cell__deno_command_init(struct cell__deno_command *command, const struct cell__deno *deno, const char *snapshot, const char *preload,
			    const char *network, const char *allow_net, struct cell_error *err);
void cell__deno_command_finish(struct cell__deno_command *command);
#define CELL_AUTO_DENO_COMMAND __attribute__((cleanup(cell__deno_command_finish)))

#endif
