/*
 * A workflow is code that others run.  A workflow of an untrusted principal carries a mark in its first line, which moves with the
 * file between storages and which such a principal cannot omit; unconfined code does not run it.  Pure; any thread.
 */
#ifndef CELL_STORAGE_MARK_H
#define CELL_STORAGE_MARK_H

#include <jansson.h>

#include "storage/store.h"

#define CELL__MARK CELL__WORKFLOW_MARK
#define CELL__MARK_BYTES (sizeof CELL__MARK - 1)

/* Whether this text, or NULL, begins with the mark. */
bool cell__mark_is_on(const json_t *source);
/*
 * Takes it off the source of a workflow that is shown.  Confined code sees its workflows as it wrote them: the same code gives the same on
 * every executor.
 */
int cell__mark_hide(json_t *workflow, struct cell_error *err);

#endif
