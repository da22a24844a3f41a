/*
 * A space: tools, storage and deps behind one interface, for kernels (session/kernel_calls.c) and for the host (cell_space_call()). Belongs
 * to the loop's thread. File work runs on libuv's pool.
 */
#ifndef CELL_SPACE_H
#define CELL_SPACE_H

#include "calls/call.h"
#include "calls/table.h"
#include "deps/deps.h"
#include "gate/gate.h"
#include "space/engine.h"
#include "storage/operations.h"
#include "tools/tools.h"

/* The way to a space's parts, for the gates of its sessions. */
extern const struct cell__gate_target cell__space_target;
/* The same for calls that belong to no session, as cell_space_call() makes them: middlewares see them. */
void cell__space_submit(struct cell_space *space, const struct cell__principal *principal, struct cell__call *call);
/* Sets the gate and the audit log of such calls, as in these options. cannot_ask: see struct cell__gate. Loop's thread. */
void cell__space_guard_on_loop(struct cell_space *space, const struct cell_session_options *session, const char *cannot_ask);
/* Any thread but the loop's: makes such a call and waits for it.  canceller may be NULL; the answer is the caller's to finish. */
int cell__space_wait(struct cell_space *space, const struct cell__principal *principal, const char *method, const char *args_json,
		     const void *raw, size_t raw_size, struct cell_canceller *canceller, struct cell_answer *ret_answer,
		     struct cell_error *err);
/* The principal; the session on whose behalf, or NULL. */
struct cell__asking_for {
	struct cell_space *space;
	struct cell_session *session;
	const struct cell__principal *principal;
	void *client;
	struct cell__own_work *work; /* NULL: the operation is not the asker's own */
};
/* cell_space_call_with() for others than the host program. */
int cell__space_answer_for(const struct cell__asking_for *who, const char *method, const char *args_json, const void *raw, size_t raw_size,
			   struct cell_canceller *canceller, struct cell_answer *ret_answer, struct cell_error *err);
/* Passes a line to the progress callback, outside the loop; false: no callback.  line may be NULL. */
bool cell__space_progress(const struct cell_space *space, const char *line);
/* The short way to a function of the host, see cell__tools_fits_host(). */
bool cell__space_fits_function(struct cell_space *space, const char *cwd, const char *name, struct cell__host_ask *ask);
void cell__space_call_function(struct cell_space *space, const struct cell__host_ask *ask, struct cell__call *call);
/* The location of its artifacts for display, without secrets; "": no storage. */
const char *cell__space_artifacts_path(const struct cell_space *space);
/* Drops the artifacts that a kernel of a session had open. */
void cell__space_session_ended(struct cell_space *space, const char *session_id, const void *origin);
/* Whether there is exactly one session. */
bool cell__space_is_alone(const struct cell_space *space);
/* Ends its MCP servers; done(arg) from a later iteration of the loop. */
void cell__space_stop_servers_on_loop(struct cell_space *space, void (*done)(void *arg), void *arg);
/*
 * Hears of artifacts and workflows that calls of this space save or delete, on the loop's thread.  The caller's memory until it is removed.
 * Both: loop's thread.
 */
struct cell__space_watcher {
	cell__storage_changed_fn changed;
	void *arg;
	struct cell__space_watcher *next;
};
void cell__space_watch(struct cell_space *space, struct cell__space_watcher *watcher);
void cell__space_unwatch(struct cell_space *space, struct cell__space_watcher *watcher);
/* Sessions hold their space; closing does not wait: it is refused while a session holds the space. */
void cell__space_ref(struct cell_space *space);
void cell__space_unref(struct cell_space *space);
/* The interpreter of sessions without one in their options. Any thread. */
const char *cell__space_python(const struct cell_space *space);
bool cell__space_has_storage(const struct cell_space *space);
/* Whether its storage answers now; may wait.  Any thread but the loop's. */
int cell__space_check(const struct cell_space *space, struct cell_error *err);
const char *cell__space_workspace(const struct cell_space *space); /* NULL: none */
/* For sync_deps_on_start: waits until the configured packages are installed, on behalf of a session's code. Any thread but the loop's. */
int cell__space_sync(struct cell_space *space, const struct cell__principal *principal, bool pyodide, struct cell_error *err);
/* The current definitions of tools in the storage, or NULL if they are not needed; may wait. Any thread but the loop's. */
struct cell__stored_tools;
int cell__space_read_tools(struct cell_space *space, struct cell__stored_tools **ret_tools, struct cell_error *err);
/* Installs them in the space, unless it has newer ones, and frees them; NULL is allowed.  Loop's thread. */
void cell__space_take_tools(struct cell_space *space, struct cell__stored_tools *tools);
/* Frees them untaken.  Any thread. */
void cell__stored_tools_destroy(struct cell__stored_tools *tools);
/* A folder of wheels for Pyodide (executors/deno/deno.h), if there is one; free() it.  Any thread but the loop's. */
char *cell__space_wheels(struct cell_space *space);
/*
 * Looks up where the project's packages are, of the host's environment or that of untrusted principals; wants_folder: for code that only
 * sees the folders it needs.  Any thread but the loop's.
 */
void cell__space_find_packages(struct cell_space *space, bool trusted, bool wants_folder, struct cell__deps_place *ret_place);
/* The same after the last change that this space made itself; all NULL: it made none.  Loop's thread. */
const struct cell__deps_place *cell__space_changed_packages(const struct cell_space *space, bool trusted);
/* How many changes there were.  Any thread. */
unsigned cell__space_package_changes(struct cell_space *space);
/* Are packages to be installed before a session opens? */
bool cell__space_syncs(const struct cell_space *space);
/* Loop's thread: done(arg) when all memory is free. */
void cell__space_close_on_loop(struct cell_space *space, void (*done)(void *arg), void *arg);

#endif
