/*
 * A way to the loop that outlives it: for answers that the host's own threads give whenever they like, also when the
 * engine has gone meanwhile.  Counted; any thread.
 */
#ifndef CELL_LOOP_LOOP_REF_H
#define CELL_LOOP_LOOP_REF_H

#include "loop/loop.h"

struct cell__loop_ref;

/* NULL: no memory.  The loop's owner holds one reference, which cell__loop_ref_close() gives up. */
struct cell__loop_ref *cell__loop_ref_create(struct cell__loop *loop);
void cell__loop_ref_close(struct cell__loop_ref *ref);
struct cell__loop_ref *cell__loop_ref_ref(struct cell__loop_ref *ref);
void cell__loop_ref_unref(struct cell__loop_ref *ref);
/*
 * Runs the task on the loop: at once when this thread runs the loop, else posted.  False: the loop is gone, and the
 * task is still the caller's.
 */
bool cell__loop_ref_post(struct cell__loop_ref *ref, struct cell__task *task);

#endif
