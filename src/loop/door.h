/*
 * A way to the loop that outlives it: for answers that the host's own threads give whenever they like, also when the
 * engine has gone meanwhile.  Counted; any thread.
 */
#ifndef CELL_LOOP_DOOR_H
#define CELL_LOOP_DOOR_H

#include "loop/loop.h"

struct cell__door;

/* NULL: no memory.  The loop's owner holds one reference, which cell__door_close() gives up. */
struct cell__door *cell__door_create(struct cell__loop *loop);
void cell__door_close(struct cell__door *door);
struct cell__door *cell__door_ref(struct cell__door *door);
void cell__door_unref(struct cell__door *door);
/*
 * Runs the task on the loop: at once when this thread runs the loop, else posted.  False: the loop is gone, and the
 * task is still the caller's.
 */
bool cell__door_pass(struct cell__door *door, struct cell__task *task);

#endif
