/* Shared by the files of this folder. */
#ifndef CELL_ENGINE_H
#define CELL_ENGINE_H

#include "executors/subprocess/subprocess.h"
#include "space/engine.h"

/* The folder with workcell-spawner and kernel/; given may be NULL.  Any thread. */
int cell__engine_find_parts(const char *given, char *ret_dir, size_t size, struct cell_error *err);

#endif
