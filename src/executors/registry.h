/*
 * The executors by name, for registry.c and for the folder of each.  Everybody else finds them by cell__executor_at() and
 * cell__executor_find(): one that is added does not change what they are compiled from.
 */
#ifndef CELL_EXECUTORS_REGISTRY_H
#define CELL_EXECUTORS_REGISTRY_H

#include "executors/executor.h"

#define CELL__EXECUTOR(name) extern const struct cell__executor cell__##name##_executor;
#include "executors/registry.def"
#undef CELL__EXECUTOR

#endif
