/* cell_recording_notebook() of a recording that is still being written.  Any thread but the loop's. */
#ifndef CELL_ENGINE_NOTEBOOK_H
#define CELL_ENGINE_NOTEBOOK_H

#include "base/buffer.h"
#include "base/error.h"

/* The file's first `size` bytes, and then the tail. */
char *cell__notebook_so_far(const char *path, uint64_t size, const struct cell__buf *tail, struct cell_error *err);

#endif
