/*
 * A session from inside.  Its files:
 *
 *     options.c      its options
 *     slot.c         its kernel: opening, leaving, and the kernel's messages
 *     outcome.c      the end of a run: its result
 *     session.c      the queue, the clocks, open, reset and close
 *     branch.c       forks of its kernel: other sessions, and points to rewind to
 *     durable.c      saving it to a folder, and waking it again
 *     durable_points.c  the points of a session that is saved
 *     recording.c    writing what it does to a file, and answering one that is replayed
 *     files.c        the layer over its workspace: diff, commit, discard
 *     tmp.c          the sandbox's own /tmp
 *     children.c     sessions that its own code forks
 *     speculation.c  a copy of its kernel that goes on while a call waits for a person
 *     commands.c     programs that clients start where its code runs
 *     approvals.c    the gate's requests to its owner, and the owner's answers
 *     engine/session.c  the public functions, and their variants for callers on the loop's thread
 *     engine/branches.c  those that copy a session, keep its states and go back to one
 *
 * A kernel sits in a slot.  The session has at most one current slot; after a reset or a kill the old one is
 * `leaving` until its process and all processes that it started have ended.
 *
 *     slot:     opening ──ready──▶ ready ──exited──▶ gone
 *     session:  open ──▶ (runs, resets) ──close──▶ closing ──no slot left──▶ gone
 *               any ──the spawner dies──▶ broken: every run answers CELL_E_SPAWNER
 *     run:      started ──timeout──▶ interrupted ──grace over──▶ kernel killed
 *
 * Invariants: `current` is the only started run; a run waits for a ready slot; a slot is opened only when a run
 * needs one, at open and at reset, after its files were looked up (struct cell__prepared).  Everything but the public
 * functions and that look runs on the loop's thread.
 */
#ifndef CELL_SESSION_H
#define CELL_SESSION_H

#include <jansson.h>

#include "durable/durable.h"
#include "session/commands.h"
#include "session/kernel_calls.h"
#include "session/fanout.h"
#include "session/on_loop.h"
#include "gate/gate.h"
#include "session/images.h"
#include "session/options.h"
#include "session/quota.h"
#include "session/recording.h"
#include "session/run.h"
#include "space/space.h"

#define CELL_COMPLETE_MS 2000    /* for a completion */
#define CELL_CLOSE_GRACE_MS 1000 /* time for exit handlers and unflushed files of an idle kernel, even on a busy machine */

/* Points of a saved session, until the kernel that woke is ready. */
struct cell__woken_points {
	struct cell__memory_point *points;
	struct cell__frozen **frozen; /* of each: the layer's files; NULL: there is no layer */
	size_t n;
};

/*
 * The files of a kernel that is to be opened, looked up on a thread that is not the loop's: on the caller's at open and reset, otherwise on
 * the pool.  Used for one kernel.
 */
struct cell__prepared {
	struct cell__deps_place own, hosts; /* packages: of its principal; of the host, for an untrusted one */
	unsigned changes;                   /* of the space's packages, before they were looked up */
	char *wheels;
	struct cell__memories woken; /* of a saved session; without files: it is a new kernel */
	struct cell__woken_points points;
	void *found;   /* the executor's */
	struct cell__confinement *confinement; /* of programs, for an executor that cannot confine them; NULL: none, because of ... */
	struct cell_error unconfined;
	struct cell_error err;              /* code != 0: why there can be no kernel */
};

struct cell__slot {
	struct cell_session *session;
	struct cell__kernel *kernel;
	bool ready, leaving, paused;
	bool news; /* packages were installed while it came up */
	struct cell__deps_place own, hosts; /* where they were when it was opened */
	const char *violation; /* the kernel's violation of the protocol */
	struct cell__calls calls;
	struct cell__gate gate;
	struct cell__confinement *confinement; /* of programs run for it, see confine.c; NULL: none was needed yet, or ... */
	struct cell_error unconfined;          /* ... there can be none */
};

/* A caller that waits for open, reset or close. */
struct cell__waiting {
	struct cell__task task;
	struct cell_session *session;
	struct cell__waiter waiter;
	struct cell_error err;
	bool failed;
	void (*done)(struct cell__waiting *waiting); /* NULL: a thread waits for the waiter */
	bool early; /* it does not wait for the end of the kernel that was replaced */
	struct cell__prepared *prepared; /* of a reset; taken over by the session */
	struct cell_session *told; /* its end with success is news of this session; or NULL */
	json_t *news;
	struct cell__waiting *next;
};

/* A request for a fork of the kernel: another session, or a point. */
struct cell__branching {
	struct cell__waiting waiting; /* first; its session is the source */
	struct cell_session *target; /* NULL: a point */
	const char *name; /* of the point, copied when it is taken; with a target: of the one that it continues from, NULL: of none */
	bool replaces; /* the target is an open session, which gets the fork in place of its kernel */
	unsigned flags; /* CELL__FORK_* */
	struct cell__branching *next;
};

/* A kept state: a fork of the session's kernel that runs no cells and is forked again to go on from there. */
struct cell__point {
	struct cell_session *session;
	struct cell__kernel *kernel;
	char *name;
	uint64_t number; /* among the points of its session */
	int64_t bytes;  /* of memory, as last measured; 0: not yet */
	uint64_t cells; /* that had been run by then */
	uint64_t upto;  /* and after so many the state was still the same */
	bool automatic; /* taken because of options.undo */
	int64_t taken_us;
	bool ready, leaving;
	bool kernel_ready, freezing; /* it is ready when the kernel is and its files are kept */
	bool gone;  /* its kernel has ended, and the pool still works with its files */
	int used;   /* the pool restores its files for so many */
	struct cell__frozen *frozen; /* the layer's files; NULL: the session has no layer */
	struct cell__waiting *waiting; /* the checkpoint's caller; NULL: it has been told */
	struct cell__rewinding *rewindings; /* they wait until it is ready */
	struct cell__deps_place own, hosts; /* as of its slot */
	struct cell__point *next;
};

/*
 * A session takes over the state of another one that has a layer as well.  The source starts no cell, and both stay, until
 *
 *     the source's files are kept ──▶ the target's kernel is gone ──▶ they are the target's ──▶ the source's kernel is forked
 */
struct cell__becoming {
	struct cell_session *source, *target;
	struct cell__frozen *frozen;
	struct cell_error err; /* code != 0: they could not be kept */
	bool ready, restoring;
};

struct cell_session {
	struct cell_engine *engine;
	const struct cell__executor *executor; /* that of the options */
	char id[33];
	struct cell__principal principal; /* its code */
	struct cell__pace *pace; /* or NULL */
	struct cell__gate clients; /* calls by clients other than its code */
	struct cell__options options;
	struct cell__image_folder images;
	struct cell__stored_tools *stored_tools; /* until it is open; or NULL */
	bool trusts;        /* options.places are the engine's */

	struct cell__branching *branchings, **branchings_end; /* they wait for a cell to end */
	bool branching;     /* its first slot will be a fork of another session's */
	struct cell__point *points; /* the latest first, also those that are leaving */
	uint64_t next_point;
	bool measuring, measure_again; /* the memory of its points; again: there are new ones since */
	int64_t measured_us;
	char parent[33];    /* the session that it was forked from; "" */
	uint64_t cells;     /* that were started */
	struct cell__state_id state_id;   /* see cell__session_new_state() */
	uint64_t state_base, state_count; /* those that it made itself; 0: none yet */
	bool at_point;      /* nothing has changed since the last automatic point */
	int freezing;       /* files of so many points are being kept: no cell starts */
	struct cell__point *returning; /* a rewind waits for the files of this point; NULL: none */
	struct cell__becoming *becoming; /* it takes over the state of another session, with its files; NULL: it does not */
	bool returning_files; /* the pool works on them */
	bool files_back, files_lost; /* undecided: the files are those of the point, or could not be made so */
	bool undecided;     /* the current run's kernel has ended, and the point before it is still being taken */
	struct cell__exit end; /* then */
	const char *end_violation;
	struct cell__prepared *prepared; /* for the next slot, or NULL */
	bool preparing;     /* the pool looks up its files */
	struct cell__slot *slot;
	int leaving;
	uint32_t next_run_id;
	struct cell__run *current;
	struct cell__slot *running_on; /* where `current` was started; only compared */
	struct cell__run *first, *last; /* queue */
	size_t queued;
	struct cell__waiting *resets; /* waiting for: no slot leaving, the current one ready */
	bool closing;
	struct cell_error broken;
	uv_timer_t timer; /* of the current run: timeout, then grace */
	uv_timer_t approval_timer; /* of the first parked call */
	struct cell__remembered *remembered;
	uint64_t next_call_id;
	char cell_hash[65]; /* of the current run's code; "" without a run or an audit log */
	int stopping; /* servers of the space that a reset ends */
	bool clock_stopped; /* the current run's timeout stands still */
	uint64_t clock_left_ms;
	size_t parked_before; /* calls that were parked when the run started: they do not stop its clock */
	uv_timer_t wall;  /* of the current kernel */
	struct cell__quota *quota; /* of the workspace; NULL: there is no limit */
	struct cell__layer *layer; /* over the workspace; NULL: none */
	struct cell__command *commands; /* the latest first */
	size_t n_commands;
	int filing;         /* the pool works on the layer for so many callers */

	/* durable.c */
	struct cell__durable
		*durable; /* its place among saved sessions, locked; NULL: it has none.  The pool's while it is saved or woken */
	bool close_waits; /* until it is saved */
	bool taking; /* its place is locked again */
	uv_work_t place_work; /* cell__durable_leave(), cell__durable_may_run() */
	struct cell_error take_err;
	void (*place_left)(void *session);
	bool forgets; /* with its end, what was saved of it is removed */
	uint64_t saved_cells; /* of the last save by `durable`, or of what was woken, plus 1; 0: there is none */
	struct cell__state_id saved_state_id; /* of that save */
	uint64_t era, saved_era; /* counts resets and rewinds; what was saved before one is not gone back to */
	uint64_t put_off;     /* cells since then that wait for a pause to be saved */
	int64_t put_off_us;   /* when the first of them ended */
	double credit; /* so many saves may hold up a cell */
	int64_t credit_at_us, held_up_us; /* as of when, 0: nothing has been saved yet; how long the last save held up cells */
	struct cell__saving *savings;  /* the first is under way, or waits for a cell to end */
	json_t *left; /* what it goes without since it was woken, for the next run; or NULL */
	char *ended; /* that it was restored between two cells, for the next run; or NULL */
	struct cell__woken_points woken_points;
	bool asleep; /* its kernel is in the saved session; the next use wakes it */

	struct cell__recorder *recorder; /* it is recorded or replayed (recording.h); or NULL */

	/* speculation.c */
	struct cell__speculation *speculation; /* the one under way; or NULL */
	struct cell__speculation *shadows_for; /* this session is the shadow of another one; NULL: it is not */
	int shadows; /* of this session, that are not gone */
	struct cell__recorded *recorded; /* results of its calls, the latest first */

	/* children.c */
	struct cell_session *mother; /* the code of this session made it; NULL: it is not a child */
	const struct cell__slot *forked_by; /* the kernel of the mother that has its handle; NULL: that has ended, and so does the child */
	struct cell_session *children, *sibling;
	struct cell__birth *birth; /* of a child */
	int64_t born_us;
	bool was_open, is_over; /* is_over: a budget of the tree is used up, and it ends with its cell */
	struct cell__call *closer; /* waits for its end; or NULL */
	struct cell__tree *tree; /* of a root: watches the budgets; or NULL */
	unsigned closing_trees; /* and those of earlier children, whose timers are being closed */
	const struct cell__keeper *keeper; /* of its children; or NULL */
	void *keeper_arg;
	void *kept; /* the keeper's own, of a child; NULL: none */
	bool kept_open; /* the keeper has it among its sessions */
	void (*closed)(void *arg);
	void *closed_arg;
	struct cell_session *next;
};

/* ---- slot.c ---- */

/* Looks up the files of the session's next kernel.  NULL: out of memory.  Any thread but the loop's. */
struct cell__prepared *cell__slot_prepare(struct cell_session *session);
/* One that was not used; NULL is allowed.  Any thread. */
void cell__prepared_destroy(struct cell_session *session, struct cell__prepared *prepared);
/*
 * The session's request to an executor, which borrows what was prepared.  read is memory for a list, with room for two folders and its
 * end.  Any thread.
 */
void cell__slot_spec(struct cell_session *session, const struct cell__prepared *prepared, struct cell__kernel_spec *ret_spec,
		     const char *read[static 3]);
/* Files with the session's rules: trusted from its first kernel to its end.  Refuses files that another session can write to. */
int cell__slot_trust(struct cell_session *session, struct cell_error *err);
void cell__slot_distrust(struct cell_session *session);
/* Whether opening the session now would be refused because of the places its code can write to.  The list has the names of cell__places_name(). */
int cell__slot_check_places(struct cell_session *session, struct cell__writable_list *writable, struct cell_error *err);
/* Opens a kernel with the files that were prepared, which are used up, also by a failure. */
int cell__slot_open(struct cell_session *session, struct cell__prepared *prepared, struct cell_error *err);
/*
 * For executors that cannot confine programs themselves: the strictest policy, and the session's folder read-only.  It looks up paths: any
 * thread but the loop's.
 */
int cell__confine_strictly(struct cell__supervisor *supervisor, const char *workspace, struct cell__confinement **ret_confinement,
			   struct cell_error *err);
/* The slot of a session that has none: a fork of this kernel, with the packages that it had. */
int cell__slot_fork(struct cell_session *session, struct cell__kernel *kernel, const struct cell__deps_place *own,
		    const struct cell__deps_place *hosts, unsigned flags, struct cell_error *err);
/* Makes the current kernel leave; the executor reports its end later. */
void cell__slot_leave(struct cell_session *session, int64_t grace_ms);
void cell__slot_update_pause(struct cell_session *session);
/* It has another kernel than before: that one's events and calls are the slot's from now on. */
void cell__slot_took_kernel(struct cell__slot *slot);
/* Tells its kernel where packages are, which may have changed since it was forked. */
void cell__slot_tell_packages(struct cell__slot *slot);
/* Events of a kernel whose words do not count. */
void cell__ignore_output(void *owner, enum cell_stream stream, const char *bytes, size_t size);
void cell__ignore_display(void *owner, const struct cell__bundle *bundle);
void cell__ignore_result(void *owner, uint32_t run_id, const struct cell__kernel_answer *answer);
/* The variables of programs that run where its kernel does; as cell__command_start() needs them.  *ret_env: NULL: the session's own. */
int cell__slot_env(struct cell__slot *slot, const char ***ret_env, char **ret_texts, struct cell_error *err);
/* The run of this kernel, also while the kernel is being killed; NULL: none. */
struct cell__run *cell__slot_run(const struct cell__slot *slot);

/* ---- engine/session.c ---- */

/* Does the task on the loop and waits for its end.  Any thread but the loop\'s. */
int cell__session_await(struct cell_engine *engine, struct cell__waiting *waiting, struct cell_error *err);
/* How long a caller may run the loop after a start; 0 if the executor's kernels need the loop themselves.  Any thread. */
int cell__session_check_spin(const struct cell_session *session, int *spin_us, const int *spin_end, struct cell_error *err);

/* ---- outcome.c ---- */

/* The workspace is over its limit: the cell does not start. */
void cell__outcome_refused(struct cell__run *run, const struct cell__excess *excess);
/* The same while a cell runs, or between cells: the message. */
void cell__outcome_describe_excess(const struct cell__excess *excess, char *out, size_t size);
/* Our failure, not the code's. */
void cell__outcome_fail(struct cell__run *run, const struct cell_error *err);
/* The kernel has reported the end of the cell.  refused: one of its calls was refused. */
void cell__outcome_answered(struct cell__run *run, bool refused, const struct cell__kernel_answer *answer);
/* The kernel of a started run has ended. */
void cell__outcome_dead(struct cell__run *run, const char *violation, const struct cell__exit *how);
void cell__outcome_describe_death(const struct cell__exit *how, const char *violation, char *out, size_t size);

/* ---- session.c ---- */

/* Opens the folders that a quota applies to: any thread but the loop's, before cell__session_do_open(). */
int cell__session_watch_folders(struct cell_session *session, struct cell_error *err);
/* Performs all steps that are possible now.  Called after every change. */
void cell__session_advance(struct cell_session *session);
/* Events that belong to no run. */
void cell__session_emit(struct cell_session *session, const struct cell_event *event);
/* A requested kernel could not be started. */
void cell__session_end_opening(struct cell_session *session, const struct cell_error *err);
/* The timer of the current run: its expiry means timeout first, then end of the grace period. */
void cell__session_start_timer(struct cell_session *session, uint64_t ms);
/* A limit that the host itself enforces was exceeded: as with a timeout, interrupt, grace, kill. */
void cell__session_stop_run(struct cell_session *session, struct cell__run *run, const char *limit, uint64_t max, uint64_t used);
/* A run that is to be submitted, and a session that is to be a fork of this one; neither has begun.  Any thread. */
/* A random number, another one after it was woken; not 0. */
uint64_t cell__session_state_base(struct cell_session *session);
/* Its state is another one now. */
void cell__session_new_state(struct cell_session *session);
struct cell__run *cell__session_make_run(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
					 struct cell_error *err);
struct cell_session *cell__session_make_fork(struct cell_session *source, const struct cell_fork_options *opts, struct cell_error *err);
/* For a run's task: appends the run to the queue. */
void cell__session_submit(struct cell__task *task);
/* The result is complete: deliver it and continue with the next run. */
void cell__session_run_finished(struct cell__run *run);
/* For a waiting's task: see struct cell__waiting. */
void cell__session_do_open(struct cell__task *task);
void cell__session_do_reset(struct cell__task *task);
void cell__session_interrupt_on_loop(struct cell_session *session);
/* For a session that is not open yet, or no longer. */
void cell__session_free(struct cell_session *session);

/* ---- branch.c ---- */

/* For a branching's task. */
void cell__session_do_branch(struct cell__task *task);
/* A point that was saved, of the session's kernel; frozen: taken over, unless it fails. */
int cell__branch_keep(struct cell_session *session, const struct cell__memory_point *saved, struct cell__frozen *frozen,
		      struct cell_error *err);
/* True: its kernel has ended.  It is freed when the pool is done with its files. */
bool cell__branch_free_gone(struct cell__point *point);
/* Starts the forks that wait, between two cells. */
void cell__branch_start_waiting(struct cell_session *session);
/* They cannot be: the session is closed or broken. */
void cell__branch_end_waiting(struct cell_session *session, const struct cell_error *err);
/* Before a cell: keeps a point if options.undo asks for it. */
void cell__branch_before_run(struct cell_session *session);
/* Goes on with a rewind that waits for files. */
void cell__branch_return(struct cell_session *session);
/* After a cell. */
void cell__branch_after_run(struct cell_session *session, bool same);
/*
 * The kernel has ended during the current run: if a point was kept before it, and may_restore, a fork of that takes its place.  The run ends
 * with that, or once it is known whether there is such a point.
 */
void cell__branch_end_run(struct cell_session *session, const char *violation, const struct cell__exit *how, bool may_restore);
/* The kernel has answered the current run and is alive, but its state is lost (a server's): a fork of the point before the cell takes its place. */
bool cell__branch_replace_lost(struct cell_session *session);
void cell__branch_leave_point(struct cell__point *point);
/* A fork is ready: its source, if that is still open, has news. */
void cell__branch_forked(struct cell_session *target);

/* Forks the kernel for another session, which has begun.  For children also in the middle of a cell: the kernel waits for it. */
int cell__branch_fork_now(struct cell_session *source, struct cell_session *target, unsigned flags, struct cell_error *err);

/* ---- children.c ---- */

/* Answers a call of the namespace `sessions`; owner: the slot.  For its gate. */
void cell__children_handle(void *owner, struct cell__call *call);
/* The kernel has been asked to fork for it.  No effect on a session that is not a child. */
void cell__child_forking(struct cell_session *child);
/* Starts closing a child. */
void cell__child_end(struct cell_session *child);
/* This kernel has ended, or will at once: so do the children that it forked. */
void cell__children_end(struct cell_session *session, const struct cell__slot *slot);
/* The session is gone: its mother, which it has left; NULL: it is not a child. */
struct cell_session *cell__children_remove(struct cell_session *child);
/* The session at the top of its tree. */
struct cell_session *cell__children_root(struct cell_session *session);
/* [{"session_id", "parent", "state", "cells", "age_ms", "pid"}] of all below it; NULL: out of memory. */
json_t *cell__children_list(const struct cell_session *session);

/* ---- durable.c ---- */

/* A request to save the session; all but the callbacks' members are the receiver's. */
struct cell__saving {
	struct cell__waiting waiting; /* first */
	bool portable; /* as objects */
	bool with_points;
	bool stays; /* the kernel goes on; else the session is asleep afterwards */
	char *answer; /* JSON, for the caller to free */
	bool started, writing, written;
	bool following; /* the memory is copied while the kernel writes it (memories.early) */
	bool is_taken; /* and the kernel has written it meanwhile */
	bool freezes; /* a copy of the layer is being made */
	struct cell__frozen *frozen; /* it; NULL: there is no layer */
	struct cell__saving_point *points; /* durable_points.c */
	size_t n_points, points_waiting, points_open; /* files of their memories that are not ready yet; that are not gone yet */
	bool opened; /* the place was opened for this save */
	bool rests; /* nobody maps files of its place afterwards */
	bool releases, releasing; /* when its kernel has ended, others may have it; that is being done */
	uint64_t cells, era; /* after which it is saved */
	struct cell__state_id state_id; /* then */
	int64_t since_us; /* a save by `durable`: when its cell had ended */
	struct cell__run *run; /* whose result waits for it; or NULL */
	struct cell__kernel *kernel; /* a point; NULL: not made yet, or gone */
	uv_work_t work, follow;
	struct cell__memories memories;
	json_t *left;
	struct cell_error err;
	struct cell__pieces_sum sum;
	struct cell__saving *next;
};

/* For a saving's task. */
void cell__session_do_save(struct cell__task *task);
/* options.durable: the session is saved now.  run: its result waits for that, if the option says so.  False: it does not wait. */
bool cell__durable_after_cell(struct cell_session *session, struct cell__run *run);
/* Cells that were put off are saved now; the session is closed next. */
void cell__durable_catch_up(struct cell_session *session);
/* Its kernel has ended: it goes on as it was saved last.  False: it cannot. */
bool cell__durable_restore(struct cell_session *session);
/* The same between two cells, or before it was ready to run one; how: why it has ended, for the next result. */
void cell__durable_restore_idle(struct cell_session *session, const char *how);
/* A save is written: no kernel can be woken meanwhile. */
bool cell__durable_is_writing(const struct cell_session *session);
/* The memory after the last cell is to be taken for a save by `durable`: the next cell waits for that. */
bool cell__durable_is_due(const struct cell_session *session);
/* All that is saved is there, or will not be: it is written. */
void cell__durable_go_on(struct cell__saving *saving);
/* What cell__session_close_on_loop() left to do: the last cell is saved. */
void cell__session_close_now(struct cell_session *session);
/* Starts the first saving, between two cells. */
void cell__durable_start_waiting(struct cell_session *session);
void cell__durable_end_waiting(struct cell_session *session, const struct cell_error *err);
/* options.resume: takes the saved session's place, id and state.  Any thread but the loop's. */
int cell__durable_resume(struct cell_session *session, const char *id, struct cell_error *err);
/* Another program has the session, or may have it: its kernel ends, and every use fails. */
void cell__durable_lost(struct cell_session *session);
/* Whether no other program can have it now, so that a cell may start.  False: it is taken first, or lost; cell__session_advance() follows. */
bool cell__durable_may_run(struct cell_session *session);
/* The session has ended: gives its place back, or removes it, on the pool. */
void cell__durable_leave(struct cell_session *session, void (*done)(void *session));
/* The memory of a session that is asleep, for its next kernel.  Any thread but the loop's. */
void cell__durable_wake(struct cell_session *session, struct cell__prepared *prepared);
/* Its kernel is ready. */
void cell__durable_woken(struct cell_session *session);
/* The first run after that tells what was not carried. */
void cell__durable_tell_run(struct cell_session *session, struct cell__run *run);

/* ---- durable_points.c ---- */

/* One of the points that are to be saved is not ready yet. */
bool cell__durable_waits_for_points(const struct cell__saving *saving);
/* With the session's memory, where it is asked for: the memories of its points are being written, or are there. */
void cell__durable_start_points(struct cell__saving *saving);
/* They are: into saving->memories, which has the session's own. */
void cell__durable_take_points(struct cell__saving *saving);
/* Their files of a layer.  Any thread. */
int cell__durable_pack_points(struct cell__saving *saving, struct cell_error *err);
/* They are written, or will not be; and gone. */
void cell__durable_leave_points(struct cell__saving *saving);
void cell__durable_forget_points(struct cell__saving *saving);
/* What the host has of the session that is not saved, to what its kernel named. */
void cell__durable_add_left(const struct cell__saving *saving, json_t *left);
/* Those that were read: with their files of the layer; any thread.  Then points of the kernel that is ready. */
int cell__durable_unpack_points(struct cell_session *session, struct cell__prepared *prepared, struct cell_error *err);
void cell__durable_keep_points(struct cell_session *session);
void cell__durable_drop_woken(struct cell__woken_points *woken);

/* ---- speculation.c ---- */

/* For the slot's gate and calls; owner: the slot. */
void cell__speculation_call_waits(void *owner, struct cell__call *call, uint64_t id, const json_t *supposed);
bool cell__speculation_answered(void *owner, const struct cell__call *call, const json_t *result, const void *raw, size_t raw_size);
void cell__speculation_become(void *owner);
void cell__speculation_call_ended(void *owner, uint32_t id);
/* Why the session can never speculate; NULL: it can. */
const char *cell__speculation_obstacle(const struct cell_session *session);
/* The kernel of a shadow has ended, or the shadow is being closed.  No effect on other sessions. */
void cell__speculation_copy_ended(struct cell_session *shadow, const char *reason);
/* The shadow is gone: the session it was of, which it has left; NULL: it is not a shadow. */
struct cell_session *cell__speculation_remove(struct cell_session *shadow);
/* Somebody else than its code has changed the files of the session, which a copy would not have. */
void cell__speculation_files_changed(struct cell_session *session);
/* Frees recorded results. */
void cell__speculation_forget(struct cell_session *session);

/* ---- branch_memory.c ---- */

/* An event, and a record of the audit log; news is taken over. */
void cell__branch_tell(struct cell_session *session, json_t *news);
/* The same where not the host did it. */
void cell__branch_tell_as(struct cell_session *session, const struct cell__principal *principal, json_t *news);
/* Starts a measurement of the points' memory, unless one was just made.  Beyond a budget the oldest are dropped. */
void cell__branch_measure(struct cell_session *session);
/* Points that are ready, and their memory as last measured. */
size_t cell__branch_points(const struct cell_session *session, int64_t *ret_bytes);

/* The receipt with them added; receipt is taken over, NULL: the executor's. */
char *cell__branch_receipt(const struct cell_session *session, char *receipt);

/* For a rewinding's task. */
struct cell__rewinding {
	struct cell__waiting waiting; /* first */
	const char *name; /* NULL: so many cells back */
	uint64_t cells;
	struct cell__rewinding *next;
};
void cell__session_do_rewind(struct cell__task *task);
/* -1: there is no such point.  name NULL: all. */
int cell__branch_drop(struct cell_session *session, const char *name);
/* [{"name", "cell", "automatic", "age_ms", "pid"}], the latest first; NULL: out of memory. */
json_t *cell__branch_list(const struct cell_session *session);

/* ---- session.c, for branch.c ---- */

/* What opening a session does before there is a kernel; the waiting waits for one. */
void cell__session_begin(struct cell_session *session, struct cell__waiting *waiting);
void cell__session_end_waiting(struct cell__waiting *waiting, const struct cell_error *err);

/* ---- tmp.c ---- */

/* Options alone: any thread. */
int cell__tmp_check(const struct cell_session *session, struct cell_error *err);
/* Through this process, which must be the session's kernel: it is refused where it is not.  Never on the loop's thread. */
int cell__tmp_open(const struct cell_session *session, int64_t pid, int *ret_fd, struct cell_error *err);

/* ---- files.c ---- */

/*
 * The open folder that a client's paths are relative to: the workspace as the code sees it.  writes: CELL_E_FORBIDDEN where the code may not
 * write either, CELL_E_LIMIT where the workspace is full.  Any thread but the loop's; waits for a kernel where only a kernel has the view.
 */
int cell__files_root(struct cell_session *session, bool writes, struct cell__root *ret_root, struct cell_error *err);
/* Files were written through a root: their record, and another measurement of the workspace. */
void cell__files_written(struct cell_session *session, const struct cell__file_change *change);
/* For a waiting's task: ends when the session has a ready kernel, which is started if there is none. */
void cell__session_do_need_kernel(struct cell__task *task);

/* If its options ask for one.  Any thread but the loop's, before cell__session_watch_folders(). */
int cell__session_make_layer(struct cell_session *session, struct cell_error *err);
/* The receipt of an executor that does not know of the layer; NULL: it does, or there is none.  free() it. */
char *cell__files_receipt(const struct cell_session *session);
/* The session has ended: the pool removes it, then done(arg). */
void cell__session_remove_layer(struct cell_session *session, void (*done)(void *arg), void *arg);
/* The public functions.  Any thread but the loop's. */
char *cell__files_diff(struct cell_session *session, bool with_text, struct cell_error *err);
char *cell__files_commit(struct cell_session *session, const char *const *paths, bool force, struct cell_error *err);
int cell__files_discard(struct cell_session *session, struct cell_error *err);
/*
 * The layer's states, on the pool; done() on the loop, once, with the error or NULL.  -1: it is never called.  A frozen state is the
 * receiver's, and to be dropped.  When one is restored, the session has no kernel.
 */
typedef void (*cell__frozen_done)(void *arg, struct cell__frozen *frozen, const struct cell_error *err);
int cell__files_freeze(struct cell_session *session, cell__frozen_done done, void *arg, struct cell_error *err);
int cell__files_restore(struct cell_session *session, struct cell__frozen *frozen, cell__frozen_done done, void *arg,
			struct cell_error *err);
/*
 * Gives a session that is to be a fork its layer, with the state of the source's, and its limit on the workspace; on the pool, then done() on
 * the loop.  The source must start no cell until then.
 */
typedef void (*cell__files_forked)(struct cell_session *source, struct cell_session *target, struct cell__point *point, unsigned flags,
				   const struct cell_error *err);
int cell__files_fork(struct cell_session *source, struct cell_session *target, struct cell__point *point, unsigned flags,
		     cell__files_forked done, struct cell_error *err);
/* NULL is allowed. */
void cell__files_drop(struct cell_session *session, struct cell__frozen *frozen);

/* ---- approvals.c ---- */

/* The gate of a slot whose kernel has been opened. */
void cell__approvals_init_gate(struct cell__slot *slot);
void cell__approvals_init_clients(struct cell_session *session);

/* ---- confine.c ---- */

/* For a call in a space (arg) by an untrusted principal: the confinement of its session. */
extern const struct cell__confine_ops cell__session_confine_ops;

#endif
