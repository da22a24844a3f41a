/*
 * A workflow is code that others run.  What an untrusted principal made carries a mark in its first line, which moves with the file between
 * storages and which no source of such a principal can lack, and is not run by code that nothing confines.  Pure; any thread.
 */
#ifndef CELL_STORAGE_MARK_H
#define CELL_STORAGE_MARK_H

#include <jansson.h>

#include "storage/store.h"

#define CELL__MARK CELL__WORKFLOW_MARK
#define CELL__MARK_BYTES (sizeof CELL__MARK - 1)

/* Does this text, or NULL, begin with it? */
bool cell__mark_is_on(const json_t *source);
/*
 * Takes it off the source of a workflow that is shown.  Confined code sees its workflows as it wrote them: the same code gives the same on
 * every executor.
 */
int cell__mark_hide(json_t *workflow, struct cell_error *err);

#endif
