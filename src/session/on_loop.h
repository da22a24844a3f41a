/*
 * Sessions for callers on the loop's thread: the public functions without blocking.  The session server uses them.
 */
#ifndef CELL_SESSION_ON_LOOP_H
#define CELL_SESSION_ON_LOOP_H

#include <jansson.h>

#include "calls/principal.h"
#include "executors/executor.h"
#include "files/files.h"
#include "space/engine.h"
#include "wire/saved.h"

/* For the engine that they belong to. */
extern const struct cell__session_ops cell__session_ops;

/* Loop's thread.  Starts closing; done(arg) is called when its processes have ended and its memory is freed. */
void cell__session_close_on_loop(struct cell_session *session, void (*done)(void *arg), void *arg);
/* When it closes, what was saved of it is removed too. */
void cell__session_forget_on_loop(struct cell_session *session);

/*
 * Loop's thread: the public functions without blocking. -1: done() is never called; else once, with NULL and the error if it failed. The
 * data that opts points to must stay until then; packages are not synchronised. A session whose opening fails is gone.
 */
typedef void (*cell__session_done)(void *arg, struct cell_session *session, const struct cell_error *err);
int cell__session_open_on_loop(struct cell_engine *engine, const struct cell_session_options *opts, cell__session_done done, void *arg,
			       struct cell_error *err);
int cell__session_reset_on_loop(struct cell_session *session, cell__session_done done, void *arg, struct cell_error *err);
/* A fork is done()'s session. */
int cell__session_fork_on_loop(struct cell_session *session, const char *point, bool drop, cell__session_done done, void *arg,
			       struct cell_error *err);
int cell__session_checkpoint_on_loop(struct cell_session *session, const char *name, bool drop, cell__session_done done, void *arg,
				     struct cell_error *err);
/* name NULL: so many cells back. */
int cell__session_rewind_on_loop(struct cell_session *session, const char *name, uint64_t cells, cell__session_done done, void *arg,
				 struct cell_error *err);
/* As cell_session_become(); done()'s session is this one. */
int cell__session_become_on_loop(struct cell_session *session, struct cell_session *other, cell__session_done done, void *arg,
				 struct cell_error *err);
/* As cell_session_variables(): done() gets the events of a run, whose result has the list as its value; it may be called inside the call. */
int cell__session_variables_on_loop(struct cell_session *session, cell_event_fn done, void *arg, struct cell_error *err);
/* As cell_session_hibernate(); answer: borrowed, NULL: err has the reason. */
typedef void (*cell__saved_done)(void *arg, const char *answer, const struct cell_error *err);
int cell__session_hibernate_on_loop(struct cell_session *session, bool with_points, cell__saved_done done, void *arg,
				    struct cell_error *err);
/* -1: there is no such point. */
int cell__session_drop_point_on_loop(struct cell_session *session, const char *name);
/* As cell_session_points(), with "pid" instead of "bytes"; NULL: out of memory. */
json_t *cell__session_points_on_loop(const struct cell_session *session);
/* The layer over the workspace, on the pool or at the executor's server; flag: with texts, or force. */
int cell__session_files_on_loop(struct cell_session *session, enum cell__files_verb verb, const char *const *paths, bool flag,
				cell__files_done done, void *arg, struct cell_error *err);
/* As cell__files_root(), on the pool; done() takes the root over.  root NULL: err has the reason. */
typedef void (*cell__root_done)(void *arg, const struct cell__root *root, const struct cell_error *err);
int cell__session_root_on_loop(struct cell_session *session, bool writes, cell__root_done done, void *arg, struct cell_error *err);
/* The same of the sandbox's own /tmp (tmp.c), for which the session gets a kernel if it has none; other executors refuse it. */
int cell__session_tmp_on_loop(struct cell_session *session, bool writes, cell__root_done done, void *arg, struct cell_error *err);
/* Files were written through a root. */
void cell__session_written_on_loop(struct cell_session *session);
/* A change of files, for the audit log.  The session may be gone. */
struct cell__file_change {
	const struct cell__file_witness *witness;
	const struct cell__principal *principal;
	const char *verb, *path; /* "put", "unpack", "make_folder", "remove" */
	bool in_tmp; /* the path is below /tmp of the sandbox, not below the workspace */
	int64_t bytes; /* -1: not known */
	const struct cell_error *err; /* NULL: it was made */
};
void cell__session_record_on_loop(struct cell_engine *engine, const struct cell__file_change *change);
/* As cell_session_start(), but the result may be delivered inside the call; *ret_run_id is set before. */
int cell__session_start_on_loop(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
				uint64_t *ret_run_id, struct cell_error *err);
/* A cell that every kernel of ours knows, also behind a session server (kernel/workcell_kernel/complete.py). */
#define CELL__COMPLETE_HEAD "%%workcell_complete\n"
/* As cell_session_complete(): the value of the result is the answer.  A cell that runs makes it fail with CELL_E_BUSY. */
int cell__session_complete_on_loop(struct cell_session *session, const char *before, size_t size, const struct cell_run_options *opts,
				   struct cell_error *err);
/* As cell_session_cancel(). */
void cell__session_cancel_on_loop(struct cell_session *session, uint64_t run_id);
/* The same of the run that runs, and of those that wait. */
void cell__session_cancel_all_on_loop(struct cell_session *session);
/* The id of the session that it was forked from; "": none. */
const char *cell__session_parent_on_loop(const struct cell_session *session);
/*
 * The keeper of a session's children (session/children.c): it counts them among its own sessions.  begin() returns its record of a child that
 * is to be, or NULL if there may be none; then comes opened() or dropped().  One that was opened is closed by end(), which must lead to
 * cell__session_close_on_loop().  Cells that the code runs in a child are counted by run_begins() and run_ended().
 */
struct cell__keeper {
	void *(*begin)(void *arg, struct cell_error *err);
	void (*opened)(void *kept, struct cell_session *child);
	void (*dropped)(void *kept);
	void (*end)(void *kept);
	int (*run_begins)(void *kept, struct cell_error *err);
	void (*run_ended)(void *kept);
	void (*lost)(void *arg); /* another program has the session itself, which cannot be used any more; may be NULL */
};
void cell__session_keep_on_loop(struct cell_session *session, const struct cell__keeper *keeper, void *arg);
/* Whether code of another session made it, which has its handle. */
bool cell__session_is_child_on_loop(const struct cell_session *session);
/* Whether a cell runs or is about to. */
bool cell__session_runs_on_loop(const struct cell_session *session);
/* A cell runs or waits; questions to the kernel (variables, completions) do not count. */
bool cell__session_has_cells(const struct cell_session *session);
/* The number of its points, and their memory as last measured. */
size_t cell__session_kept_on_loop(const struct cell_session *session, int64_t *ret_bytes);
/* The run failed before its code ran. */
bool cell__result_is_unbegun(const struct cell_result *result);
/* Cells that its state has seen: it goes back with the state, and wakes with it. */
uint64_t cell__session_cells_on_loop(const struct cell_session *session);
/* The session's state has a name (wire/saved.h): *ret_id. */
void cell__session_state_id_on_loop(struct cell_session *session, struct cell__state_id *ret_id);
/* Names the time since it was opened or woken; unknown while it sleeps. */
void cell__session_awake_id_on_loop(struct cell_session *session, struct cell__state_id *ret_id);
/* The state after this run gets this name; of a run that has ended it has one already. */
void cell__session_name_state_on_loop(struct cell_session *session, uint64_t run_id, struct cell__state_id id);
/* The result says, as JSON, how many cells the session's state has seen, and its name. */
void cell__result_tell_state(struct cell_result *result, struct cell_session *session);
/* What a rewind does with files: "included"; "without_tmp", the layer but not /tmp; "not_included"; "of_server", which knows.  Any thread. */
const char *cell__session_file_state(const struct cell_session *session);
/* The pid of the kernel; 0: none. */
int64_t cell__session_pid_on_loop(const struct cell_session *session);
/* The number of calls that wait for an answer. */
size_t cell__session_waiting_on_loop(const struct cell_session *session);
/* A limit of the caller was exceeded: the running cell, if any, is stopped like one that takes too long.  limit lives for ever. */
void cell__session_stop_on_loop(struct cell_session *session, const char *limit, uint64_t max, uint64_t used);
/* Pauses or resumes the events of this run for its receiver; the code blocks when its buffers are full. */
void cell__session_hold(struct cell_session *session, uint64_t run_id, bool held);

/* Loop's thread.  Tells the kernels of this space's sessions about installed packages. */
void cell__session_tell_packages(struct cell_engine *engine, struct cell_space *space);

/*
 * Messages of a space's MCP servers, for its sessions; loop's thread. The session with this id; id NULL (unknown): the only session of the
 * space. NULL: not found.
 */
struct cell_session *cell__session_of(struct cell_engine *engine, const struct cell_space *space, const char *id);
/* Whether the session has a receiver that answers questions. */
bool cell__session_takes_questions(const struct cell_session *session);
bool cell__session_any_takes_questions(struct cell_engine *engine, const struct cell_space *space);
/* Only where that is so: see cell__gate_ask(). */
void cell__session_ask(struct cell_session *session, struct cell__call *question);
/*
 * A call by a client of the session other than its code: it is subject to the same checks as a call of the code (middlewares, policy,
 * approval, audit), and fails when the session is closed.
 */
void cell__session_call_on_loop(struct cell_session *session, const struct cell__principal *principal, struct cell__call *call);
/* See cell__gate_tell(). */
void cell__session_tell(struct cell_session *session, enum cell_event_type type, const struct cell__call *call, const char *tool,
			const char *json);

/* Lowers limits of its present kernel; 0: as they are.  See cell_session_limit(). */
int cell__session_limit_on_loop(struct cell_session *session, int64_t memory_bytes, int64_t max_output_bytes, struct cell_error *err);

#endif
