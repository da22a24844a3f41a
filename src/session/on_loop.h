/*
 * Sessions for callers on the loop's thread: the public functions without waiting.  The session server lives on them.
 */
#ifndef CELL_SESSION_ON_LOOP_H
#define CELL_SESSION_ON_LOOP_H

#include "calls/principal.h"
#include "space/engine.h"

/* For the engine that they belong to. */
extern const struct cell__session_ops cell__session_ops;

/* Loop's thread.  Starts closing; done(arg) when its processes are gone and its memory is free. */
void cell__session_close_on_loop(struct cell_session *session, void (*done)(void *arg), void *arg);

/*
 * Loop's thread: the public functions without waiting.  -1: done() never comes; else once, with NULL and the error when it
 * failed.  What opts points to must stay until then; packages are not synchronised.  A session whose opening fails is gone.
 */
typedef void (*cell__session_done)(void *arg, struct cell_session *session, const struct cell_error *err);
int cell__session_open_on_loop(struct cell_engine *engine, const struct cell_session_options *opts, cell__session_done done, void *arg,
			       struct cell_error *err);
int cell__session_reset_on_loop(struct cell_session *session, cell__session_done done, void *arg, struct cell_error *err);
/* As cell_session_start(), but the result may come from inside; *ret_run_id is set before. */
int cell__session_start_on_loop(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
				uint64_t *ret_run_id, struct cell_error *err);
/* The receiver of this run's events cannot take more for now (or can again); the code waits when its buffers are full. */
void cell__session_hold(struct cell_session *session, uint64_t run_id, bool held);

/* Loop's thread.  The kernels of this space's sessions learn of packages that were installed. */
void cell__session_tell_packages(struct cell_engine *engine, struct cell_space *space);

/*
 * What MCP servers of a space say, for its sessions; loop's thread.  The session with this id; id NULL (it cannot be
 * told): the only one that the space has.  NULL: none.
 */
struct cell_session *cell__session_of(struct cell_engine *engine, const struct cell_space *space, const char *id);
/* Is there somebody who answers its questions? */
bool cell__session_takes_questions(const struct cell_session *session);
bool cell__session_any_takes_questions(struct cell_engine *engine, const struct cell_space *space);
/* Only where that is so: see cell__gate_ask(). */
void cell__session_ask(struct cell_session *session, struct cell__call *question);
/*
 * A call of a client of the session, which is not its code: it passes what a call of the code passes (middlewares, policy, approval,
 * audit), and fails when the session is closed.
 */
void cell__session_call_on_loop(struct cell_session *session, const struct cell__principal *principal, struct cell__call *call);
/* See cell__gate_tell(). */
void cell__session_tell(struct cell_session *session, enum cell_event_type type, const struct cell__call *call, const char *tool,
			const char *json);

#endif
