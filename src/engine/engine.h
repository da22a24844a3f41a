/* Shared by the files of this folder. */
#ifndef CELL_ENGINE_H
#define CELL_ENGINE_H

#include "executors/subprocess/subprocess.h"
#include "space/engine.h"

/* The folder with workcell-spawner and kernel/; given may be NULL.  Any thread. */
int cell__engine_find_parts(const char *given, char *ret_dir, size_t size, struct cell_error *err);

/*
 * A call of a client of this session that the client's server answers itself: the work's `run`, on this thread, once the gate allows it.
 * Waits for it.  Any thread but the loop's.
 */
struct cell__own_work;
int cell__session_own_call(struct cell_session *session, const char *name, void *client, const char *tool, const json_t *args,
			   struct cell__own_work *work, struct cell_canceller *canceller, struct cell_answer *ret_answer,
			   struct cell_error *err);

#endif
