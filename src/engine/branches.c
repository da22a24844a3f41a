/* The public functions of a session that copy it, keep its states and go back to one, and the same for callers on the loop's thread. */
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "engine/engine.h"
#include "layer/layer.h"
#include "session/session.h"
#include "spawn/proc.h"

static int cannot_fork(const struct cell_session *session, struct cell_error *err)
{
	return cell_fail(err, CELL_E_UNSUPPORTED, 0, "the executor \"%s\" cannot fork a session; \"subprocess\" can",
			 session->executor->name);
}

/* Files go with the memory: a layer over the same workspace takes them, in the same form. */
static int check_layers(const struct cell_session *session, const struct cell_session *other, struct cell_error *err)
{
	if (!session->layer == !other->layer && (!session->layer || cell__layer_fits(session->layer, other->layer)))
		return 0;
	return cell_fail(err, CELL_E_UNSUPPORTED, 0, "a session with a layer can continue only from another one over the same workspace");
}

static int check_point_name(const char *name, struct cell_error *err)
{
	if (!name[0] || strlen(name) > CELL_LIMIT_POINT_NAME || !cell__utf8_ok(name, strlen(name)))
		return cell_fail(err, CELL_E_INVALID, 0, "the name of a point is 1 to %d bytes of UTF-8", CELL_LIMIT_POINT_NAME);
	return 0;
}

static int check_fork(const struct cell_session *session, const struct cell_fork_options *opts, const char *caller,
		      struct cell_fork_options *all, struct cell_error *err)
{
	if (opts && cell__sized_read(all, sizeof *all, opts, "cell_fork_options", err) < 0)
		return -1;
	if (cell__engine_may_wait(session->engine, caller, err) < 0)
		return -1;
	return session->executor->fork ? 0 : cannot_fork(session, err);
}

struct forking;
struct one_fork {
	struct cell__branching branching; /* first */
	struct forking *forking;
};

struct forking {
	struct cell__task task; /* first */
	struct cell__waiter waiter;
	struct one_fork *forks;
	size_t n, left;
};

static void do_forks(struct cell__task *task)
{
	struct forking *forking = (struct forking *)task;
	size_t n = forking->n; /* the caller may be gone with the last one */
	for (size_t i = 0; i < n; i++)
		cell__session_do_branch(&forking->forks[i].branching.waiting.task);
}

static void handle_forked(struct cell__waiting *waiting)
{
	struct forking *forking = ((struct one_fork *)waiting)->forking;
	if (!waiting->failed)
		cell__branch_forked(((struct one_fork *)waiting)->branching.target);
	if (--forking->left == 0)
		cell__waiter_signal(&forking->waiter);
}

/* On failure the sessions that were made are closed. */
static int run_forks(struct cell_session *session, struct forking *forking, struct cell_error *err)
{
	int rc = 0;
	cell__waiter_init(&forking->waiter);
	cell__loop_do(session->engine->loop, &forking->task, &forking->waiter);
	cell__waiter_finish(&forking->waiter);
	for (size_t i = 0; i < forking->n; i++) {
		const struct cell__waiting *waiting = &forking->forks[i].branching.waiting;
		if (waiting->failed && rc == 0 && err)
			*err = waiting->err;
		if (waiting->failed)
			rc = -1;
	}
	for (size_t i = 0; rc < 0 && i < forking->n; i++)
		cell_session_close(forking->forks[i].branching.target);
	return rc;
}

int cell_session_fork(struct cell_session *session, const struct cell_fork_options *opts, size_t n, struct cell_session **ret_sessions,
		      struct cell_error *err)
{
	struct cell_fork_options all = CELL_FORK_OPTIONS_INIT;
	if (cell__require(err, session, ret_sessions) < 0 || check_fork(session, opts, "cell_session_fork", &all, err) < 0)
		return -1;
	if (n == 0 || n > CELL_LIMIT_FORKS)
		return cell_fail(err, CELL_E_INVALID, 0, "n is %zu, expected 1 to %d", n, CELL_LIMIT_FORKS);
	if (all.point && check_point_name(all.point, err) < 0)
		return -1;
	CELL_AUTO_FREE struct one_fork *forks = cell__alloc(n, sizeof *forks);
	if (!forks)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for %zu sessions", n);
	struct forking forking = { .task.fn = do_forks, .forks = forks, .n = n, .left = n };
	for (size_t i = 0; i < n; i++) {
		if (all.event_args)
			all.event_arg = all.event_args[i];
		struct cell_session *target = cell__session_make_fork(session, &all, err);
		forks[i] = (struct one_fork){ .branching = { .waiting = { .session = session, .done = handle_forked },
							     .target = target,
							     .name = all.point,
							     .flags = all.drop ? CELL__FORK_DROP : 0 },
					      .forking = &forking };
		if (target)
			continue;
		while (i > 0)
			cell__session_free(forks[--i].branching.target);
		return -1;
	}
	if (run_forks(session, &forking, err) < 0)
		return -1;
	for (size_t i = 0; i < n; i++)
		ret_sessions[i] = forks[i].branching.target;
	return 0;
}

int cell_session_checkpoint(struct cell_session *session, const char *name, const struct cell_fork_options *opts, struct cell_error *err)
{
	struct cell_fork_options all = CELL_FORK_OPTIONS_INIT;
	if (cell__require(err, session, name) < 0 || check_fork(session, opts, "cell_session_checkpoint", &all, err) < 0)
		return -1;
	if (check_point_name(name, err) < 0)
		return -1;
	struct cell__branching wanted = { .waiting = { .task.fn = cell__session_do_branch, .session = session },
					  .name = name,
					  .flags = all.drop ? CELL__FORK_DROP : 0 };
	return cell__session_await(session->engine, &wanted.waiting, err);
}

int cell_session_rewind(struct cell_session *session, const char *name, uint64_t cells, struct cell_error *err)
{
	struct cell_fork_options all = CELL_FORK_OPTIONS_INIT;
	if (cell__require(err, session) < 0 || check_fork(session, NULL, "cell_session_rewind", &all, err) < 0)
		return -1;
	struct cell__rewinding rewinding = { .waiting = { .task.fn = cell__session_do_rewind, .session = session },
					     .name = name,
					     .cells = cells };
	return cell__session_await(session->engine, &rewinding.waiting, err);
}

int cell_session_become(struct cell_session *session, struct cell_session *other, struct cell_error *err)
{
	struct cell_fork_options all = CELL_FORK_OPTIONS_INIT;
	if (cell__require(err, session, other) < 0 || check_fork(session, NULL, "cell_session_become", &all, err) < 0)
		return -1;
	if (check_layers(session, other, err) < 0)
		return -1;
	if (session == other || session->engine != other->engine || session->executor != other->executor)
		return cell_fail(err, CELL_E_INVALID, 0, "a session can continue from another session of the same engine and executor");
	struct cell__branching wanted = { .waiting = { .task.fn = cell__session_do_branch, .session = other },
					  .target = session,
					  .replaces = true,
					  .flags = CELL__FORK_DROP | CELL__FORK_HEIR };
	return cell__session_await(session->engine, &wanted.waiting, err);
}

/* ---- the same without waiting ---- */

/* A request of the server's. */
struct branch_asking {
	union {
		struct cell__waiting waiting; /* first of both */
		struct cell__branching branching;
		struct cell__rewinding rewinding;
	};
	struct cell_session *session; /* that done() gets */
	cell__session_done done;
	void *arg;
	char name[CELL_LIMIT_POINT_NAME + 1];
};

static void end_branch_asking(void *arg)
{
	struct branch_asking *asking = arg;
	asking->done(asking->arg, asking->waiting.failed ? NULL : asking->session, &asking->waiting.err);
	free(asking);
}

static void handle_branch_asked(struct cell__waiting *waiting)
{
	end_branch_asking(waiting);
}

/* A fork that failed is gone before its caller is told. */
static void handle_fork_asked(struct cell__waiting *waiting)
{
	struct branch_asking *asking = (struct branch_asking *)waiting;
	if (waiting->failed) {
		cell__session_close_on_loop(asking->session, end_branch_asking, asking);
		return;
	}
	cell__branch_forked(asking->session);
	end_branch_asking(asking);
}

static struct branch_asking *ask_branch(struct cell_session *session, const char *name, cell__session_done done, void *arg,
					struct cell_error *err)
{
	struct branch_asking *asking = NULL;
	if (!session->executor->fork)
		(void)cannot_fork(session, err);
	else if (!name || check_point_name(name, err) == 0)
		asking = cell__alloc(1, sizeof *asking);
	else
		return NULL;
	if (session->executor->fork && !asking)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
	if (!asking)
		return NULL;
	asking->waiting.session = asking->session = session;
	asking->waiting.done = handle_branch_asked;
	asking->done = done;
	asking->arg = arg;
	if (name)
		strcpy(asking->name, name);
	return asking;
}

int cell__session_fork_on_loop(struct cell_session *session, const char *point, bool drop, cell__session_done done, void *arg,
			       struct cell_error *err)
{
	struct cell_fork_options opts = CELL_FORK_OPTIONS_INIT;
	struct branch_asking *asking = ask_branch(session, point, done, arg, err);
	struct cell_session *target = asking ? cell__session_make_fork(session, &opts, err) : NULL;
	if (!target) {
		free(asking);
		return -1;
	}
	asking->session = asking->branching.target = target;
	asking->branching.name = point ? asking->name : NULL;
	asking->branching.flags = drop ? CELL__FORK_DROP : 0;
	asking->waiting.done = handle_fork_asked;
	cell__session_do_branch(&asking->waiting.task);
	return 0;
}

int cell__session_checkpoint_on_loop(struct cell_session *session, const char *name, bool drop, cell__session_done done, void *arg,
				     struct cell_error *err)
{
	struct branch_asking *asking = ask_branch(session, name, done, arg, err);
	if (!asking)
		return -1;
	asking->branching.name = asking->name;
	asking->branching.flags = drop ? CELL__FORK_DROP : 0;
	cell__session_do_branch(&asking->waiting.task);
	return 0;
}

int cell__session_rewind_on_loop(struct cell_session *session, const char *name, uint64_t cells, cell__session_done done, void *arg,
				 struct cell_error *err)
{
	struct branch_asking *asking = ask_branch(session, name, done, arg, err);
	if (!asking)
		return -1;
	asking->rewinding.name = name ? asking->name : NULL;
	asking->rewinding.cells = cells;
	cell__session_do_rewind(&asking->waiting.task);
	return 0;
}

int cell__session_become_on_loop(struct cell_session *session, struct cell_session *other, cell__session_done done, void *arg,
				 struct cell_error *err)
{
	struct branch_asking *asking = NULL;
	if (check_layers(session, other, err) == 0)
		asking = ask_branch(session, NULL, done, arg, err);
	if (!asking)
		return -1;
	asking->waiting.session = other;
	asking->branching.target = session;
	asking->branching.replaces = true;
	asking->branching.flags = CELL__FORK_DROP | CELL__FORK_HEIR;
	cell__session_do_branch(&asking->waiting.task);
	return 0;
}

int cell__session_drop_point_on_loop(struct cell_session *session, const char *name)
{
	return cell__branch_drop(session, name);
}

json_t *cell__session_points_on_loop(const struct cell_session *session)
{
	return cell__branch_list(session);
}

const char *cell__session_parent_on_loop(const struct cell_session *session)
{
	return session->parent;
}

size_t cell__session_kept_on_loop(const struct cell_session *session, int64_t *ret_bytes)
{
	return cell__branch_points(session, ret_bytes);
}

uint64_t cell__session_cells_on_loop(const struct cell_session *session)
{
	return session->cells;
}

void cell__session_state_id_on_loop(struct cell_session *session, struct cell__state_id *ret_id)
{
	/* A session that has run nothing yet, or that an older version saved. */
	if (!cell__state_id_known(session->state_id))
		cell__session_new_state(session);
	*ret_id = session->state_id;
}

void cell__session_awake_id_on_loop(struct cell_session *session, struct cell__state_id *ret_id)
{
	*ret_id = (struct cell__state_id){ session->asleep ? 0 : cell__session_state_base(session), 0 };
}

void cell__session_name_state_on_loop(struct cell_session *session, uint64_t run_id, struct cell__state_id id)
{
	struct cell__run *run = session->current;
	if (run && run->id == run_id && run->started)
		session->state_id = id;
	if (!run || run->id != run_id)
		for (run = session->first; run && run->id != run_id;)
			run = run->next;
	if (run)
		run->state_id = id;
}

void cell__result_tell_state(struct cell_result *result, struct cell_session *session)
{
	result->cells = session->cells + 1;
	cell__session_state_id_on_loop(session, &result->state_id);
	cell__session_awake_id_on_loop(session, &result->awake_id);
}

struct point_question {
	struct cell_session *session;
	const char *name;
	json_t *list;
	int rc;
};

static void do_drop_point(void *arg)
{
	struct point_question *question = arg;
	question->rc = cell__branch_drop(question->session, question->name);
}

int cell_session_drop_point(struct cell_session *session, const char *name, struct cell_error *err)
{
	if (cell__require(err, session, name) < 0)
		return -1;
	struct point_question question = { .session = session, .name = name };
	cell__loop_call(session->engine->loop, do_drop_point, &question);
	return question.rc == 0 ? 0 : cell_fail(err, CELL_E_NOT_FOUND, 0, "the session has no point \"%.80s\"", name);
}

static void do_points(void *arg)
{
	struct point_question *question = arg;
	question->list = cell__branch_list(question->session);
}

char *cell_session_points(struct cell_session *session)
{
	if (!session)
		return NULL;
	struct point_question question = { .session = session };
	size_t i;
	json_t *point;
	cell__loop_call(session->engine->loop, do_points, &question);
	json_array_foreach(question.list, i, point) {
		/* Walks over the page tables of the process, so not on the loop's thread. */
		if (!json_object_get(point, "bytes"))
			json_object_set_new(
				point, "bytes",
				json_integer(cell__proc_private_bytes((pid_t)json_integer_value(json_object_get(point, "pid")))));
		json_object_del(point, "pid");
	}
	char *text = question.list ? json_dumps(question.list, JSON_COMPACT) : NULL;
	json_decref(question.list);
	return text;
}

static void do_children(void *arg)
{
	struct point_question *question = arg;
	question->list = cell__children_list(question->session);
}

char *cell_session_children(struct cell_session *session)
{
	if (!session)
		return NULL;
	struct point_question question = { .session = session };
	cell__loop_call(session->engine->loop, do_children, &question);
	char *text = question.list ? json_dumps(question.list, JSON_COMPACT) : NULL;
	json_decref(question.list);
	return text;
}
