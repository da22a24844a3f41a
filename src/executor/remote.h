/* The executor "remote": sessions of a session server elsewhere, see remote.c.  Loop's thread. */
#ifndef CELL_EXECUTOR_REMOTE_H
#define CELL_EXECUTOR_REMOTE_H

#include "executor/executor.h"

/* What its kernels share; NULL is fine.  All of them have exited.  done(arg) from a later turn of the loop. */
void cell__remote_destroy(struct cell__remote *remote, void (*done)(void *arg), void *arg);

#endif
