/*
 * What the `jupyter` executor keeps for an engine: ZeroMQ, kernels that wait for a session.  Belongs to the loop's thread.
 */
#ifndef CELL_EXECUTOR_JUPYTER_H
#define CELL_EXECUTOR_JUPYTER_H

#include "executor/executor.h"

struct cell__spawn_hub;

struct cell__jupyter_config {
	struct cell__spawn_hub *hub;
	const char *kernel_dir; /* holds workcell_kernel/ and _workcell.abi3.so */
	const char *folder;     /* where connection folders are made */
	int pool_size;
	int64_t start_timeout_ms;
};

/* NULL and an error, or, in a build without it, NULL and none. */
int cell__jupyter_create(struct cell__executor_host *host, const struct cell__jupyter_config *config,
			 struct cell__jupyter **ret_jupyter, struct cell_error *err);
/* Ends the kernels that are left.  All sessions must have been closed.  done() runs when all is gone; jupyter may be NULL. */
void cell__jupyter_destroy(struct cell__jupyter *jupyter, void (*done)(void *arg), void *arg);

#endif
