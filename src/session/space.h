/*
 * A space: tools, storage and deps behind one door, for kernels (calls.c) and for the host (cell_space_call()).
 * Belongs to the loop's thread.  What touches files runs on libuv's pool.
 */
#ifndef CELL_SESSION_SPACE_H
#define CELL_SESSION_SPACE_H

#include "loop/call.h"
#include "session/engine.h"

/* Answers a call, now or later.  cwd: for command-line tools; NULL: the space's. */
void cell__space_handle(struct cell_space *space, const char *cwd, struct cell__call *call);
/* Drops the artifacts that a session had open. */
void cell__space_session_ended(struct cell_space *space, const char *session_id);
/* Sessions hold their space; closing waits for nobody, it is refused while somebody holds it. */
void cell__space_ref(struct cell_space *space);
void cell__space_unref(struct cell_space *space);
/* Folders of the project's installed packages and programs, or NULL. */
const char *cell__space_site(struct cell_space *space);
const char *cell__space_bin(struct cell_space *space);
/* The folder that packages are or will be in; NULL: none. */
const char *cell__space_packages(struct cell_space *space);
/*
 * What the host trusts (tool definitions, workflows, requirements): NULL-terminated paths.  What of the storage does not
 * exist and lies in the workspace is made, so that it can be shown read-only.
 */
int cell__space_protect(struct cell_space *space, const char *workspace, const char *const **ret_paths,
			struct cell_error *err);
/* Loop's thread: done(arg) when all memory is free. */
void cell__space_close(struct cell_space *space, void (*done)(void *arg), void *arg);

#endif
