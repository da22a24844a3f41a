/*
 * What the `sandbox` executor keeps for an engine: plans it has made.  Belongs to the loop's thread.
 */
#ifndef CELL_EXECUTOR_SANDBOX_H
#define CELL_EXECUTOR_SANDBOX_H

#include "executor/executor.h"
#include "executor/subprocess.h"
#include "sandbox/machine.h"

/* NULL is fine. */
void cell__sandbox_destroy(struct cell__sandbox *sandbox);
/* What makes programs take the way out of a filtered network: "K=V", NULL-terminated. */
extern const char *const cell__sandbox_proxy_env[];
/* What this machine allows, found out on the first call.  Any thread. */
const struct cell__machine *cell__sandbox_machine(void);

#endif
