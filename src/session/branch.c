/*
 * Forks of a session's kernel: other sessions that continue from its state, and points to which the session can go back.
 *
 *     fork        kernel ──▶ kernel of another session
 *     checkpoint  kernel ──▶ point: a kernel that runs nothing
 *     rewind      point ──▶ kernel of the session; the one that it had is killed
 *
 * A kernel is forked between two cells.  Its executor keeps the order, so the next cell is started without waiting for the fork.
 * A session is gone only when its points are.
 */
#include "layer/layer.h"
#include "session/session.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "space/space.h"

/* ---- points ---- */

static void free_point(struct cell__point *point)
{
	cell__files_drop(point->session, point->frozen);
	cell__deps_place_finish(&point->own);
	cell__deps_place_finish(&point->hosts);
	free(point->name);
	free(point);
}

static void end_checkpoint(struct cell__point *point, const struct cell_error *err)
{
	struct cell__waiting *waiting = cell__take_ptr(point->waiting);
	if (waiting)
		cell__session_end_waiting(waiting, err);
}

static void decide(struct cell_session *session);

/* The point is ready, or gone: those that waited for it look again. */
static void rewind_again(struct cell__point *point)
{
	struct cell__rewinding *rewinding = cell__take_ptr(point->rewindings);
	while (rewinding) {
		struct cell__rewinding *next = rewinding->next;
		cell__session_do_rewind(&rewinding->waiting.task);
		rewinding = next;
	}
}

void cell__branch_leave_point(struct cell__point *point)
{
	if (point->leaving)
		return;
	point->leaving = true;
	point->session->executor->close(point->kernel, 0);
}

static void make_ready(struct cell__point *point)
{
	if (!point->kernel_ready || point->freezing || point->leaving)
		return;
	point->ready = true;
	if (!point->automatic)
		cell__branch_tell(point->session,
				  json_pack("{s:s, s:s, s:I}", "kind", "point", "name", point->name, "cell", (json_int_t)point->cells));
	cell__branch_measure(point->session);
	end_checkpoint(point, NULL);
	decide(point->session);
	rewind_again(point);
}

static void handle_point_ready(void *owner)
{
	struct cell__point *point = owner;
	struct cell_session *session = point->session;
	point->kernel_ready = true;
	make_ready(point);
	if (session->savings)
		cell__session_advance(session); /* a save waits for its points */
}

bool cell__branch_free_gone(struct cell__point *point)
{
	if (!point->gone)
		return false;
	if (!point->freezing && !point->used)
		free_point(point);
	return true;
}

static void handle_frozen(void *arg, struct cell__frozen *frozen, const struct cell_error *err)
{
	struct cell__point *point = arg;
	struct cell_session *session = point->session;
	session->freezing--;
	point->freezing = false;
	point->frozen = frozen;
	if (cell__branch_free_gone(point))
		return;
	if (!err) {
		make_ready(point);
		return;
	}
	if (point->automatic && !session->closing) {
		char message[320];
		snprintf(message, sizeof message, "cell %llu cannot be undone: %.200s", (unsigned long long)point->cells + 1, err->msg);
		cell__session_emit(session, &(struct cell_event){ .type = CELL_EVENT_POINT_LOST, .message = message });
	}
	end_checkpoint(point, err);
	cell__branch_leave_point(point);
	rewind_again(point);
}

/* It runs nothing, so it has nothing to say: what comes was written before the fork, and the source has said it. */
static void handle_point_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	(void)owner;
	(void)stream;
	(void)bytes;
	(void)size;
}

static void handle_point_display(void *owner, const struct cell__bundle *bundle)
{
	(void)owner;
	(void)bundle;
}

static void handle_point_result(void *owner, uint32_t run_id, const struct cell__kernel_answer *answer)
{
	(void)run_id;
	(void)answer;
	cell__branch_leave_point(owner);
}

static const char *handle_point_call(void *owner, const struct cell__asked *asked)
{
	(void)owner;
	(void)asked;
	return "a call of a kernel that runs nothing";
}

static void handle_point_exited(void *owner, const struct cell__exit *how)
{
	struct cell__point *point = owner;
	struct cell_session *session = point->session;
	struct cell_error err = how->error;
	struct cell__point **at = &session->points;
	while (*at != point)
		at = &(*at)->next;
	*at = point->next;
	if (point->waiting && err.code == 0)
		cell_fail(&err, CELL_E_KERNEL, 0, "the point ended before it was kept");
	end_checkpoint(point, &err);
	rewind_again(point);
	if ((point->ready || point->automatic) && !point->leaving && !session->closing) {
		char message[320];
		char why[200];
		cell__outcome_describe_death(how, NULL, why, sizeof why);
		if (point->ready)
			snprintf(message, sizeof message, "the point \"%.60s\" is lost: %s", point->name, why);
		else
			snprintf(message, sizeof message, "cell %llu cannot be undone: %s", (unsigned long long)point->cells + 1, why);
		struct cell_event event = { .type = CELL_EVENT_POINT_LOST, .message = message };
		cell__session_emit(session, &event);
	}
	point->gone = true;
	(void)cell__branch_free_gone(point);
	decide(session);
	cell__session_advance(session);
}

static const struct cell__kernel_events point_events = {
	.ready = handle_point_ready,
	.output = handle_point_output,
	.display = handle_point_display,
	.result = handle_point_result,
	.call = handle_point_call,
	.exited = handle_point_exited,
};

static struct cell__point *find_point(const struct cell_session *session, const char *name, uint64_t cells)
{
	for (struct cell__point *point = session->points; point; point = point->next)
		if (!point->leaving && (name ? strcmp(point->name, name) == 0 : point->cells <= cells && cells <= point->upto))
			return point;
	return NULL;
}

static struct cell__point *take(struct cell_session *session, const char *name, unsigned flags, struct cell_error *err)
{
	struct cell__slot *slot = session->slot;
	struct cell__point *point = cell__alloc(1, sizeof *point);
	if (!point || !(point->name = cell__strdup(name)) || cell__deps_place_copy(&slot->own, &point->own) < 0 ||
	    cell__deps_place_copy(&slot->hosts, &point->hosts) < 0) {
		if (point)
			free_point(point);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a point");
		return NULL;
	}
	point->session = session;
	point->number = session->next_point++;
	point->cells = point->upto = session->cells;
	point->taken_us = cell__now_us();
	if (session->executor->fork(slot->kernel, session->id, session->layer, flags | CELL__FORK_POINT, &point_events, point,
				    &point->kernel, err) < 0) {
		free_point(point);
		return NULL;
	}
	point->next = session->points;
	session->points = point;
	if (session->layer && cell__files_freeze(session, handle_frozen, point, err) < 0) {
		cell__branch_leave_point(point);
		return NULL;
	}
	point->freezing = session->layer != NULL;
	session->freezing += point->freezing;
	return point;
}

int cell__branch_keep(struct cell_session *session, const struct cell__memory_point *saved, struct cell__frozen *frozen,
		      struct cell_error *err)
{
	const struct cell__slot *slot = session->slot;
	struct cell__image_files files = { .n = saved->memory.n };
	struct cell__point *point = cell__alloc(1, sizeof *point);
	struct timespec now;
	if (!point || !(point->name = cell__strdup(saved->name)) || cell__deps_place_copy(&slot->own, &point->own) < 0 ||
	    cell__deps_place_copy(&slot->hosts, &point->hosts) < 0) {
		if (point)
			free_point(point);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a point");
	}
	memcpy(files.fds, saved->memory.fds, files.n * sizeof *files.fds);
	memcpy(files.inodes, saved->memory.inodes, files.n * sizeof *files.inodes);
	memcpy(files.live, saved->memory.live, files.n * sizeof *files.live);
	clock_gettime(CLOCK_REALTIME, &now);
	const int64_t age_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - (int64_t)saved->taken_ms;
	point->session = session;
	point->number = session->next_point++;
	point->cells = saved->cells;
	point->upto = saved->upto;
	point->automatic = saved->automatic;
	point->taken_us = cell__now_us() - (age_ms > 0 && age_ms < INT64_MAX / 1000 ? age_ms * 1000 : 0);
	if (session->executor->keep(slot->kernel, session->id, session->layer, &files, &point_events, point, &point->kernel, err) < 0) {
		free_point(point);
		return -1;
	}
	point->frozen = frozen;
	point->kernel_ready = point->ready = true;
	point->next = session->points;
	session->points = point;
	return 0;
}

/* A point of the same name is replaced by this one. */
static int take_point(struct cell_session *session, struct cell__branching *wanted, struct cell_error *err)
{
	struct cell__point *same = find_point(session, wanted->name, 0), *point = take(session, wanted->name, wanted->flags, err);
	if (!point)
		return -1;
	point->waiting = &wanted->waiting;
	if (same)
		cell__branch_leave_point(same);
	return 0;
}

/* ---- undo ---- */

static struct cell__point *newest_automatic(const struct cell_session *session)
{
	struct cell__point *point = session->points;
	while (point && (!point->automatic || point->leaving))
		point = point->next;
	return point;
}

void cell__branch_before_run(struct cell_session *session)
{
	size_t n = 0;
	char name[32];
	struct cell_error err = { 0 };
	if (session->options.undo == 0 || session->at_point)
		return;
	snprintf(name, sizeof name, "#%llu", (unsigned long long)session->cells);
	struct cell__point *point = take(session, name, 0, &err);
	if (!point)
		return; /* the kernel is dying: the run tells */
	point->automatic = session->at_point = true;
	for (; point; point = point->next)
		if (point->automatic && !point->leaving && ++n > session->options.undo)
			cell__branch_leave_point(point);
}

void cell__branch_after_run(struct cell_session *session, bool same)
{
	struct cell__point *point = session->at_point ? newest_automatic(session) : NULL;
	session->at_point = same && point;
	if (session->at_point)
		point->upto = session->cells;
}

/* The session is at this point now: later ones belong to cells that have not been. */
static void forget_later(struct cell_session *session, const struct cell__point *point)
{
	for (struct cell__point *other = session->points; other; other = other->next)
		if (other != point && other->automatic && other->cells >= point->cells)
			cell__branch_leave_point(other);
	session->at_point = point->automatic;
}

/* The point whose state is that before the current cell; NULL: there is none, or the session has something else to do. */
static struct cell__point *point_before(const struct cell_session *session)
{
	struct cell__point *point = session->options.undo ? newest_automatic(session) : NULL;
	bool usable = point && point->upto >= session->cells - 1 && !session->closing && !session->broken.code && !session->slot &&
		      !session->resets;
	return usable ? point : NULL;
}

/* The layer's files go back before the kernel does. */
static void handle_files_back(void *arg, struct cell__frozen *frozen, const struct cell_error *err)
{
	struct cell__point *point = arg;
	struct cell_session *session = point->session;
	(void)frozen;
	point->used--;
	session->files_back = true;
	session->files_lost = err != NULL || point->gone;
	(void)cell__branch_free_gone(point);
	decide(session);
}

/* True: the run's end waits for them. */
static bool bring_files_back(struct cell_session *session, struct cell__point *point)
{
	if (!session->layer || session->files_back)
		return false;
	if (point->used == 0 && cell__files_restore(session, point->frozen, handle_files_back, point, NULL) < 0) {
		session->files_lost = true;
		return false;
	}
	point->used += point->used == 0;
	return true;
}

static bool restore(struct cell_session *session)
{
	struct cell__point *point = point_before(session);
	struct cell_error err;
	bool lost = session->files_lost;
	session->files_back = session->files_lost = false;
	if (!point || !point->ready || lost ||
	    cell__slot_fork(session, point->kernel, &point->own, &point->hosts, CELL__FORK_DROP | CELL__FORK_HEIR, &err) < 0)
		return false;
	session->cells--;
	cell__session_new_state(session);
	session->at_point = true;
	cell__branch_tell(session, json_pack("{s:s, s:I}", "kind", "restored", "cell", (json_int_t)session->cells));
	return true;
}

void cell__branch_end_run(struct cell_session *session, const char *violation, const struct cell__exit *how, bool may_restore)
{
	struct cell__run *run = session->current;
	struct cell__point *point = may_restore ? point_before(session) : NULL;
	if (point && (!point->ready || bring_files_back(session, point))) {
		session->undecided = true;
		session->end = *how;
		session->end_violation = violation;
		return;
	}
	run->restored = (point && restore(session)) || (may_restore && cell__durable_restore(session));
	cell__outcome_dead(run, violation, how);
}

bool cell__branch_replace_lost(struct cell_session *session)
{
	struct cell__point *point = session->options.undo ? newest_automatic(session) : NULL;
	session->at_point = false;
	if (!point || !point->ready || point->upto < session->cells - 1 || session->closing || session->layer)
		return false;
	session->running_on = NULL; /* the run ends with its answer, not with the kernel */
	cell__slot_leave(session, 0);
	return restore(session);
}

/* The point that a run's end waits for is there, or will not be. */
static void decide(struct cell_session *session)
{
	struct cell__point *point = session->undecided ? point_before(session) : NULL;
	if (!session->undecided || (point && (!point->ready || bring_files_back(session, point))))
		return; /* another one */
	session->undecided = false;
	session->current->restored = restore(session);
	cell__outcome_dead(session->current, session->end_violation, &session->end);
	cell__session_advance(session);
}

/* ---- points by their names ---- */

int cell__branch_drop(struct cell_session *session, const char *name)
{
	int rc = -1;
	for (struct cell__point *point = session->points; point; point = point->next)
		if (!point->leaving && (!name || strcmp(point->name, name) == 0)) {
			cell__branch_leave_point(point);
			rc = 0;
		}
	return rc;
}

json_t *cell__branch_list(const struct cell_session *session)
{
	json_t *list = json_array();
	for (const struct cell__point *point = session->points; list && point; point = point->next) {
		if (point->leaving)
			continue;
		json_t *item = json_pack("{s:s, s:I, s:b, s:I, s:I}", "name", point->name, "cell", (json_int_t)point->cells, "automatic",
					 point->automatic, "age_ms", (json_int_t)((cell__now_us() - point->taken_us) / 1000), "pid",
					 (json_int_t)session->executor->pid(point->kernel));
		json_object_set_new(item, "memory_bytes", point->bytes > 0 ? json_integer(point->bytes) : json_null());
		int64_t bytes = session->executor->kept ? session->executor->kept(point->kernel) : -1;
		if (item && bytes >= 0)
			json_object_set_new(item, "bytes", json_integer(bytes));
		if (!item || json_array_append_new(list, item) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

/* ---- forks ---- */

/* Answers that hold for the whole session hold for its fork. */
static int copy_remembered(const struct cell_session *from, struct cell_session *to, struct cell_error *err)
{
	for (const struct cell__remembered *one = from->remembered; one; one = one->next) {
		size_t size = sizeof *one + strlen(one->name) + 1;
		struct cell__remembered *copy = cell__alloc(1, size);
		if (!copy)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
		memcpy(copy, one, size);
		copy->next = to->remembered;
		to->remembered = copy;
	}
	return 0;
}

/* The session's kernel leaves; the waiting is told when the next one is ready, or why it will not be. */
static void leave_kernel(struct cell_session *session, uint64_t cells, struct cell__waiting *waiting)
{
	if (session->slot) {
		uv_timer_stop(&session->timer);
		cell__slot_leave(session, 0);
	}
	waiting->early = true;
	waiting->next = session->resets;
	session->resets = waiting;
	session->cells = cells;
	session->era++;
	cell__session_new_state(session);
}

/* It is replaced by a fork of another. */
static void replace_kernel(struct cell_session *session, struct cell__kernel *kernel, const struct cell__deps_place *own,
			   const struct cell__deps_place *hosts, uint64_t cells, struct cell__waiting *waiting)
{
	struct cell_error err = { 0 };
	leave_kernel(session, cells, waiting);
	session->at_point = false;
	if (cell__slot_fork(session, kernel, own, hosts, CELL__FORK_DROP | CELL__FORK_HEIR, &err) < 0)
		cell__session_end_opening(session, &err);
	cell__session_advance(session);
}

static struct cell_session *find_session(struct cell_engine *engine, const char *id)
{
	struct cell_session *session = engine->sessions;
	while (session && strcmp(session->id, id) != 0)
		session = session->next;
	return session;
}

void cell__branch_forked(struct cell_session *target)
{
	struct cell_session *source = find_session(target->engine, target->parent);
	if (source && !source->closing)
		cell__branch_tell(source, json_pack("{s:s, s:s}", "kind", "fork", "session_id", target->id));
}

/* point NULL: from the session's kernel. */
static int branch_into(struct cell_session *source, struct cell_session *target, const struct cell__point *point, unsigned flags,
		       struct cell_error *err)
{
	struct cell__slot *slot = source->slot;
	target->branching = false;
	if (target->closing)
		return 0;
	target->cells = point ? point->cells : source->cells;
	strcpy(target->parent, source->id);
	if (copy_remembered(source, target, err) < 0)
		return -1;
	/* What a point does not carry was dropped, or was not there, when it was taken. */
	if (point && cell__slot_fork(target, point->kernel, &point->own, &point->hosts, flags | CELL__FORK_DROP, err) < 0)
		return -1;
	if (!point && cell__slot_fork(target, slot->kernel, &slot->own, &slot->hosts, flags, err) < 0)
		return -1;
	cell__child_forking(target);
	return 0;
}

static void handle_files_forked(struct cell_session *source, struct cell_session *target, struct cell__point *point, unsigned flags,
				const struct cell_error *err)
{
	struct cell_error failure = { 0 };
	source->freezing--;
	if (point)
		point->used--;
	if (err)
		failure = *err;
	else if (point && (point->gone || point->leaving))
		cell_fail(&failure, CELL_E_KERNEL, 0, "the point ended before it was forked");
	else if (!point && (!source->slot || !source->slot->ready))
		cell_fail(&failure, CELL_E_KERNEL, 0, "the kernel ended before it forked");
	else
		(void)branch_into(source, target, point, flags, &failure);
	target->branching = false;
	if (failure.code)
		cell__session_end_opening(target, &failure);
	if (point)
		(void)cell__branch_free_gone(point);
}

/* Its own files and limits come first, if it has some. */
static int fork_from(struct cell_session *source, struct cell_session *target, struct cell__point *point, unsigned flags,
		     struct cell_error *err)
{
	if (!source->layer && !source->quota)
		return branch_into(source, target, point, flags, err);
	if (cell__files_fork(source, target, point, flags, handle_files_forked, err) < 0)
		return -1;
	source->freezing++;
	if (point)
		point->used++;
	return 0;
}

int cell__branch_fork_now(struct cell_session *source, struct cell_session *target, unsigned flags, struct cell_error *err)
{
	return fork_from(source, target, NULL, flags, err);
}

static int no_point(const char *name, struct cell_error *err)
{
	return cell_fail(err, CELL_E_NOT_FOUND, 0, "the session has no point \"%.80s\"", name);
}

/* The session, or its point of the name that the fork continues from. */
static int start_fork(struct cell_session *source, const struct cell__branching *wanted, struct cell_error *err)
{
	struct cell__point *point = wanted->name ? find_point(source, wanted->name, 0) : NULL;
	if (wanted->name && !point)
		return no_point(wanted->name, err);
	if (point && !point->ready)
		return cell_fail(err, CELL_E_BUSY, 0, "the point \"%.80s\" is still being kept", wanted->name);
	return fork_from(source, wanted->target, point, wanted->flags, err);
}

static void become_with_files(struct cell_session *source, struct cell_session *target, struct cell__waiting *waiting);

static void end_closed(struct cell__waiting *waiting)
{
	struct cell_error err;
	cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed");
	cell__session_end_waiting(waiting, &err);
}

void cell__branch_start_waiting(struct cell_session *session)
{
	const struct cell__run *run = session->current;
	while (session->branchings && session->slot && session->slot->ready && !(run && run->started && !run->ending)) {
		struct cell__branching *wanted = session->branchings;
		struct cell_error err = { 0 };
		session->branchings = wanted->next;
		if (!session->branchings)
			session->branchings_end = NULL;
		struct cell_session *target = wanted->target; /* what was wanted may be gone after an end */
		if (wanted->replaces && !target->closing && target->layer)
			become_with_files(session, target, &wanted->waiting);
		else if (wanted->replaces && !target->closing)
			replace_kernel(target, session->slot->kernel, &session->slot->own, &session->slot->hosts, session->cells,
				       &wanted->waiting);
		else if (wanted->replaces)
			end_closed(&wanted->waiting);
		else if (!target && take_point(session, wanted, &err) < 0)
			cell__session_end_waiting(&wanted->waiting, &err);
		else if (target && start_fork(session, wanted, &err) < 0)
			cell__session_end_opening(target, &err);
	}
}

void cell__branch_end_waiting(struct cell_session *session, const struct cell_error *err)
{
	struct cell__branching *wanted = cell__take_ptr(session->branchings);
	session->branchings_end = NULL;
	while (wanted) {
		struct cell__branching *next = wanted->next;
		if (wanted->target && !wanted->replaces) {
			wanted->target->branching = false;
			cell__session_end_opening(wanted->target, err);
		} else {
			cell__session_end_waiting(&wanted->waiting, err);
		}
		wanted = next;
	}
}

void cell__session_do_branch(struct cell__task *task)
{
	struct cell__branching *wanted = (struct cell__branching *)task;
	struct cell_session *source = wanted->waiting.session, *target = wanted->target;
	wanted->next = NULL;
	if (target && wanted->replaces && target->recorder) {
		struct cell_error err;
		cell_fail(&err, CELL_E_UNSUPPORTED, 0, "a session that is recorded or replayed takes over no other state");
		cell__session_end_waiting(&wanted->waiting, &err);
		return;
	}
	if (target && !wanted->replaces) {
		target->branching = true;
		cell__session_begin(target, &wanted->waiting);
		if (!target->resets)
			return; /* it failed, and its caller knows */
	}
	*(source->branchings_end ? source->branchings_end : &source->branchings) = wanted;
	source->branchings_end = &wanted->next;
	cell__session_advance(source);
}

/* ---- back to a point ---- */

static void handle_returned(void *arg, struct cell__frozen *frozen, const struct cell_error *err)
{
	struct cell__point *point = arg;
	struct cell_session *session = point->session;
	struct cell_error failure = { 0 };
	(void)frozen;
	point->used--;
	session->returning = NULL;
	session->returning_files = session->branching = false;
	if (err)
		failure = *err;
	else if (point->gone || point->leaving)
		cell_fail(&failure, CELL_E_KERNEL, 0, "the point ended");
	else if (!session->closing)
		(void)cell__slot_fork(session, point->kernel, &point->own, &point->hosts, CELL__FORK_DROP | CELL__FORK_HEIR, &failure);
	if (failure.code)
		cell__session_end_opening(session, &failure);
	rewind_again(point);
	(void)cell__branch_free_gone(point);
}

/* Its kernel leaves, and no other is opened until the waiting's files are there. */
static void leave_for(struct cell_session *session, uint64_t cells, struct cell__waiting *waiting)
{
	leave_kernel(session, cells, waiting);
	session->branching = true;
}

static void finish_becoming(struct cell__becoming *becoming, const struct cell_error *err)
{
	struct cell_session *source = becoming->source, *target = becoming->target;
	const struct cell__slot *slot = source->slot;
	struct cell_error failure = { 0 };
	target->becoming = NULL;
	target->branching = false;
	if (err)
		failure = *err;
	else if (!slot || !slot->ready)
		cell_fail(&failure, CELL_E_KERNEL, 0, "the other session's kernel has ended");
	else if (!target->closing)
		(void)cell__slot_fork(target, slot->kernel, &slot->own, &slot->hosts, CELL__FORK_DROP | CELL__FORK_HEIR, &failure);
	if (failure.code)
		cell__session_end_opening(target, &failure);
	source->freezing--;
	source->filing--;
	target->filing--;
	cell__files_drop(source, becoming->frozen);
	free(becoming);
	cell__session_advance(source);
}

static void handle_became(void *arg, struct cell__frozen *frozen, const struct cell_error *err)
{
	(void)frozen;
	finish_becoming(arg, err);
}

static void handle_becoming_frozen(void *arg, struct cell__frozen *frozen, const struct cell_error *err)
{
	struct cell__becoming *becoming = arg;
	becoming->frozen = frozen;
	becoming->ready = true;
	if (err)
		becoming->err = *err;
	cell__session_advance(becoming->target);
}

static void go_on_becoming(struct cell__becoming *becoming)
{
	struct cell_session *target = becoming->target;
	if (!becoming->ready || becoming->restoring || (target->leaving > 0 && !target->closing))
		return;
	if (target->closing && !becoming->err.code)
		cell_fail(&becoming->err, CELL_E_CLOSED, 0, "the session is closed");
	becoming->restoring = true;
	if (becoming->err.code || cell__files_restore(target, becoming->frozen, handle_became, becoming, &becoming->err) < 0)
		finish_becoming(becoming, &becoming->err);
}

static void become_with_files(struct cell_session *source, struct cell_session *target, struct cell__waiting *waiting)
{
	struct cell_error err = { 0 };
	struct cell__becoming *becoming = NULL;
	if (target->becoming || target->returning)
		cell_fail(&err, CELL_E_BUSY, 0, "the session is being set to another state");
	else if (!(becoming = cell__alloc(1, sizeof *becoming)))
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a session");
	if (becoming)
		*becoming = (struct cell__becoming){ .source = source, .target = target };
	if (!becoming || cell__files_freeze(source, handle_becoming_frozen, becoming, &err) < 0) {
		free(becoming);
		cell__session_end_waiting(waiting, &err);
		return;
	}
	source->freezing++;
	source->filing++;
	target->filing++;
	target->becoming = becoming;
	leave_for(target, source->cells, waiting);
	target->at_point = false;
	cell__session_advance(target);
}

/* The kernel that was replaced writes no more once it is gone. */
void cell__branch_return(struct cell_session *session)
{
	if (session->becoming)
		go_on_becoming(session->becoming);
	if (session->closing)
		return;
	struct cell__point *point = session->returning;
	struct cell_error err = { 0 };
	if (!point || session->returning_files || session->leaving > 0)
		return;
	session->returning_files = true;
	point->used++;
	if (cell__files_restore(session, point->frozen, handle_returned, point, &err) < 0)
		handle_returned(point, NULL, &err);
}

static void return_to(struct cell_session *session, struct cell__point *point, uint64_t cells, struct cell__waiting *waiting)
{
	leave_for(session, cells, waiting);
	session->returning = point;
}

const char *cell__session_file_state(const struct cell_session *session)
{
	if (session->executor->calls_there)
		return "of_server";
	if (!session->layer)
		return "not_included";
	return session->options.confined ? "included" : "without_tmp";
}

void cell__session_do_rewind(struct cell__task *task)
{
	struct cell__rewinding *rewinding = (struct cell__rewinding *)task;
	struct cell__waiting *waiting = &rewinding->waiting;
	struct cell_session *session = waiting->session;
	struct cell_error err = { 0 };
	struct cell__point *point = NULL;
	if (rewinding->name || rewinding->cells <= session->cells)
		point = find_point(session, rewinding->name, session->cells - rewinding->cells);
	if (session->closing) {
		end_closed(waiting);
		return;
	}
	if (session->becoming)
		cell_fail(&err, CELL_E_BUSY, 0, "the session is being set to another state");
	else if (session->recorder)
		cell_fail(&err, CELL_E_UNSUPPORTED, 0, "a session that is recorded or replayed is not rewound");
	else if (!point && rewinding->name)
		(void)no_point(rewinding->name, &err);
	else if (!point)
		cell_fail(&err, CELL_E_NOT_FOUND, 0, "the session has no point %llu cells back", (unsigned long long)rewinding->cells);
	else if (session->layer)
		(void)cell__layer_check_room(session->layer, &err);
	if (err.code) {
		cell__session_end_waiting(waiting, &err);
		return;
	}
	if (!point->ready || session->returning) {
		struct cell__point *until = point->ready ? session->returning : point;
		rewinding->next = until->rewindings;
		until->rewindings = rewinding;
		return;
	}
	uint64_t cells = rewinding->name ? point->cells : session->cells - rewinding->cells;
	waiting->told = session;
	waiting->news = json_pack("{s:s, s:s?, s:I, s:s}", "kind", "rewind", "name", rewinding->name, "cell", (json_int_t)cells,
				  "file_state", cell__session_file_state(session));
	if (session->layer) {
		return_to(session, point, cells, waiting);
		forget_later(session, point);
		cell__session_advance(session);
		return;
	}
	replace_kernel(session, point->kernel, &point->own, &point->hosts, cells, waiting);
	forget_later(session, point);
}
