/*
 * Zygotes and pools: the part of the `subprocess` executor that outlives single kernels.  Belongs to the loop's
 * thread.
 */
#ifndef CELL_EXECUTOR_SUBPROCESS_H
#define CELL_EXECUTOR_SUBPROCESS_H

#include "executor/executor.h"

struct cell__subprocess_config {
	struct cell__spawn_hub *hub;
	const char *kernel_dir; /* holds workcell_kernel/ and _workcell.abi3.so */
	int pool_size;
	int64_t start_timeout_ms;
};

int cell__subprocess_create(struct cell__executor_host *host, const struct cell__subprocess_config *config,
			    struct cell__subprocess **ret_sub, struct cell_error *err);
/*
 * Starts the environment, warms it, fills its pool; then done(arg, info, NULL), or done(arg, NULL, err).  A
 * returned error means done() never runs.
 */
int cell__subprocess_prewarm(struct cell__subprocess *sub, const char *python, const char *preload,
			     void (*done)(void *arg, const struct cell_env_info *info, const struct cell_error *err),
			     void *arg, struct cell_error *err);
/* Ends every kernel and zygote.  All sessions must have been closed.  done() runs when the handles are gone. */
void cell__subprocess_destroy(struct cell__subprocess *sub, void (*done)(void *arg), void *arg);

#endif
