/*
 * Cells that run side by side, each in a session of its own: races, and batches of the library and of the server.  Loop's thread.
 *
 *     run:  waiting ──open()──▶ opening ──▶ its cells run ──close()──▶ closing ──▶ ended
 *
 * At most `concurrency` runs are between the first and the last state, so what a run leaves to be killed holds up no other.
 */
#ifndef CELL_SESSION_FANOUT_H
#define CELL_SESSION_FANOUT_H

#include "session/on_loop.h"

struct cell__fanout;

struct cell__fanout_ops {
	/* Makes the session of a run; leads to cell__fanout_opened(), possibly inside the call. */
	void (*open)(struct cell__fanout *batch, size_t i);
	/*
	 * The next cell of a run, after the one with this result, which is taken over (NULL: its first).  NULL: the run is over.  The code must stay
	 * until the next call.
	 */
	const char *(*next)(struct cell__fanout *batch, size_t i, struct cell_result *result, int64_t *ret_timeout_ms);
	/* Our failure: there is no result, and no next(). */
	void (*failed)(struct cell__fanout *batch, size_t i, const struct cell_error *err);
	/* Limits of a run below the session's; 0: those.  Asked once, when its session is there; may be NULL. */
	void (*limits)(struct cell__fanout *batch, size_t i, int64_t *ret_memory_bytes, int64_t *ret_max_output_bytes);
	/* Other events; may be NULL. */
	void (*event)(struct cell__fanout *batch, size_t i, const struct cell_event *event);
	/* Ends the session; leads to cell__fanout_closed(), possibly inside the call. */
	void (*close)(struct cell__fanout *batch, size_t i, struct cell_session *session);
	/* A run that was opened has ended, and its session is closed or closing; may be NULL. */
	void (*ended)(struct cell__fanout *batch, size_t i);
	/* Whether another run may start now; cell__fanout_advance() asks again.  NULL: yes. */
	bool (*may_start)(struct cell__fanout *batch);
	/* All runs have ended.  It may be freed. */
	void (*done)(struct cell__fanout *batch);
};

struct cell__fanout {
	const struct cell__fanout_ops *ops;
	size_t n;
	size_t concurrency; /* 0: all */
	/* batch.c */
	struct cell__fanout_run *runs;
	size_t next, running, ended;
	bool starting, held, cancelled;
};

/* -1: nothing has happened, and done() is never called. */
int cell__fanout_start(struct cell__fanout *batch, struct cell_error *err);
/* session NULL: err has the reason. */
void cell__fanout_opened(struct cell__fanout *batch, size_t i, struct cell_session *session, const struct cell_error *err);
void cell__fanout_closed(struct cell__fanout *batch, size_t i);
/* The session of a run is closed by somebody else: it is not touched again. */
void cell__fanout_lost(struct cell__fanout *batch, size_t i);
void cell__fanout_advance(struct cell__fanout *batch);
/* true: no further runs start. */
void cell__fanout_hold(struct cell__fanout *batch, bool held);
/* Runs that wait fail with CELL_E_CLOSED; those that run are cancelled. */
void cell__fanout_cancel(struct cell__fanout *batch);

/* ---- races (engine/race.c) ---- */

/*
 * The cells of a race.  The caller owns what the members of the first part point to, until done().  A fork that is closed meanwhile must be
 * set to NULL before, and cell__fanout_lost() called.
 */
struct cell__racing {
	struct cell__fanout batch; /* first; n and concurrency */
	struct cell_session **forks;
	const char *const *codes; /* batch.n of them */
	const char *judge;        /* or NULL */
	int64_t timeout_ms;
	cell_event_fn on_event;
	void *event_arg;
	void (*done)(struct cell__racing *racing);
	void *arg; /* done()'s own */

	struct cell_race *race; /* winner is not set */
	struct cell_error err;  /* code != 0: our failure, not the cells' */
};
/* Loop's thread.  -1: done() is never called; else once, possibly inside the call. */
int cell__racing_start(struct cell__racing *racing, struct cell_error *err);
/* Loop's thread.  It is over, and the session has news. */
void cell__race_tell(struct cell_session *session, const struct cell_race *race);
/* The winner by the scores so far. */
int64_t cell__race_winner(const struct cell_race *race);

#endif
