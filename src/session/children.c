/*
 * Children: sessions that the code of a session forks from itself, in the middle of a cell (kernel/workcell_kernel/ns_sessions.py).
 *
 *     sessions.fork   ──▶ a child is made; FORK to the kernel ──▶ answered: its id
 *     sessions.ready  ──▶ answered when its kernel is ready, or with the reason why there is none
 *     sessions.run    ──▶ a cell of the child ──▶ answered with its result
 *     sessions.close  ──▶ answered when the child is gone
 *
 *     child:  forking ──ready──▶ open ──close, limit, its parent's kernel ends──▶ closing ──▶ gone
 *
 * A child is a session like others, with the options of its parent, so it has no right that its parent lacks.  It belongs to the kernel that
 * forked it: the handles are in that kernel's memory.  When that kernel ends (a reset, a rewind, a crash, the end of its session), so do its
 * children, and a session is gone only after its children.  The root of a tree, which no code made, has the budgets for all of it.
 *
 * Approvals of a child are asked for where those of its parent are: the ids of calls are the root's, the events go up to the root's run.
 *
 * A keeper (the session server) counts children among its sessions, lists them and ends them.
 */
#include "session/session.h"

#include <string.h>

#include "spawn/proc.h"

#define TICK_MS 200 /* between two looks at the budgets of a tree */

/* From sessions.fork to the answer of sessions.ready.  Lives as long as the child. */
struct cell__birth {
	struct cell__waiting waiting; /* first; its session is the child */
	struct cell__call *asked, *awaited; /* sessions.fork and sessions.ready; NULL: it is answered, or nobody waits */
	bool over; /* the child is open, or failed */
};

/* A cell of a child that its parent waits for. */
struct child_run {
	struct cell_session *child;
	struct cell__call *call; /* NULL: nobody waits */
	uint64_t run_id;
	bool counted; /* by the keeper */
};

/* The budgets of a tree, while it has children and budgets of memory or time. */
struct cell__tree {
	uv_timer_t timer;
	struct cell_session *root;
	bool measuring;
};

/* ---- the tree ---- */

struct cell_session *cell__children_root(struct cell_session *session)
{
	while (session->mother)
		session = session->mother;
	return session;
}

static size_t count_below(const struct cell_session *session)
{
	size_t n = 0;
	for (const struct cell_session *child = session->children; child; child = child->sibling)
		n += 1 + count_below(child);
	return n;
}

static void tell(struct cell_session *child, const char *kind)
{
	cell__branch_tell_as(child->mother, &child->mother->principal,
			     json_pack("{s:s, s:s, s:s}", "kind", kind, "session_id", child->id, "parent", child->mother->id));
}

static void fail(struct cell__call *call, const struct cell_error *err)
{
	call->fail(call, err->code, "ChildError", err->msg);
}

/* ---- events ---- */

/* News of a child's calls reach the receiver of its parent's. */
static void pass_on(struct cell_session *child, const struct cell_event *event)
{
	struct cell_session *mother = child->mother;
	struct cell__run *run = mother->slot ? cell__slot_run(mother->slot) : NULL;
	switch (event->type) {
	case CELL_EVENT_CALL_STARTED:
	case CELL_EVENT_CALL_ENDED:
	case CELL_EVENT_APPROVAL:
	case CELL_EVENT_APPROVAL_ENDED:
	case CELL_EVENT_TOOL_PROGRESS:
	case CELL_EVENT_TOOL_LOG:
		if (run) {
			cell__run_call_event(run, event);
			cell__slot_update_pause(mother);
			break;
		}
		cell__session_emit(mother, event);
		break;
	case CELL_EVENT_BRANCH:
		cell__session_emit(mother, event);
		break;
	default: /* its output is in its results */
		break;
	}
}

static void handle_child_event(void *arg, const struct cell_event *event)
{
	pass_on(arg, event);
}

/* ---- the end of a child ---- */

static void ignore_closed(void *arg)
{
	(void)arg;
}

void cell__child_end(struct cell_session *child)
{
	if (child->closing)
		return;
	if (child->kept && child->kept_open)
		child->mother->keeper->end(child->kept);
	else
		cell__session_close_on_loop(child, ignore_closed, NULL);
}

void cell__children_end(struct cell_session *session, const struct cell__slot *slot)
{
	/* Closing may change the list: each is looked for again. */
	for (struct cell_session *child = session->children; child;) {
		if (child->forked_by != slot) {
			child = child->sibling;
			continue;
		}
		child->forked_by = NULL;
		cell__child_end(child);
		child = session->children;
	}
}

static void handle_tree_closed(uv_handle_t *handle)
{
	struct cell__tree *tree = handle->data;
	struct cell_session *root = tree->root;
	root->closing_trees--;
	free(tree);
	cell__session_advance(root);
}

static void rest_tree(struct cell_session *root)
{
	struct cell__tree *tree = root->tree;
	if (!tree || root->children || tree->measuring)
		return;
	root->tree = NULL; /* the next child gets a new one */
	root->closing_trees++;
	uv_close((uv_handle_t *)&tree->timer, handle_tree_closed);
}

struct cell_session *cell__children_remove(struct cell_session *child)
{
	struct cell_session *mother = child->mother, **at;
	if (!mother)
		return NULL;
	for (at = &mother->children; *at != child;)
		at = &(*at)->sibling;
	*at = child->sibling;
	if (child->birth->over && child->was_open)
		tell(child, "child_ended");
	if (child->kept && !child->kept_open)
		mother->keeper->dropped(child->kept);
	struct cell__call *closer = cell__take_ptr(child->closer);
	if (closer)
		closer->answer(closer, json_null(), NULL, 0);
	rest_tree(cell__children_root(mother));
	free(cell__take_ptr(child->birth));
	return mother;
}

/* ---- budgets ---- */

/* It is stopped as a cell that takes too long is, and ends with its cell. */
static void stop_child(struct cell_session *child, const char *limit, int64_t max, int64_t used)
{
	struct cell__run *run = child->current;
	child->is_over = true;
	if (run && run->started && !run->ending)
		cell__session_stop_run(child, run, limit, (uint64_t)max, (uint64_t)used);
	else
		cell__child_end(child);
}

/* The next one to be stopped, or to be ended after that. */
static struct cell_session *find_old(struct cell_session *session, int64_t born_before_us)
{
	for (struct cell_session *child = session->children; child; child = child->sibling) {
		struct cell_session *found = find_old(child, born_before_us);
		if (found)
			return found;
		/* One that was stopped may have run the cell of another client, whose end is not told here. */
		if (!child->closing && (child->is_over ? !child->current : child->born_us <= born_before_us))
			return child;
	}
	return NULL;
}

struct measured_child {
	char id[33];
	int64_t pid, bytes;
};

struct measuring {
	uv_work_t work; /* its data is this */
	struct cell__tree *tree;
	size_t n;
	struct measured_child children[];
};

static void do_measure(uv_work_t *work)
{
	struct measuring *measuring = work->data;
	for (size_t i = 0; i < measuring->n; i++)
		measuring->children[i].bytes = cell__proc_shared_bytes((pid_t)measuring->children[i].pid);
}

static struct cell_session *find_below(struct cell_session *session, const char *id)
{
	for (struct cell_session *child = session->children; child; child = child->sibling) {
		struct cell_session *found = strcmp(child->id, id) == 0 ? child : find_below(child, id);
		if (found)
			return found;
	}
	return NULL;
}

/* The largest one goes first. */
static void keep_memory(struct cell_session *root, const struct measuring *measuring)
{
	const struct measured_child *largest = NULL;
	int64_t all = 0;
	for (size_t i = 0; i < measuring->n; i++) {
		const struct measured_child *each = &measuring->children[i];
		all += each->bytes > 0 ? each->bytes : 0;
		if (!largest || each->bytes > largest->bytes)
			largest = each;
	}
	struct cell_session *child = all > root->options.fork_memory ? find_below(root, largest->id) : NULL;
	if (child && !child->is_over && !child->closing)
		stop_child(child, "fork_memory", root->options.fork_memory, all);
}

static void handle_measured(uv_work_t *work, int status)
{
	struct measuring *measuring = work->data;
	struct cell__tree *tree = measuring->tree;
	struct cell_session *root = tree->root;
	(void)status;
	tree->measuring = false;
	keep_memory(root, measuring);
	free(measuring);
	rest_tree(root);
}

static void list_pids(const struct cell_session *session, struct measuring *measuring)
{
	for (const struct cell_session *child = session->children; child; child = child->sibling) {
		struct measured_child *each = &measuring->children[measuring->n++];
		strcpy(each->id, child->id);
		each->pid = child->slot ? child->executor->pid(child->slot->kernel) : 0;
		list_pids(child, measuring);
	}
}

static void measure(struct cell__tree *tree)
{
	struct cell_session *root = tree->root;
	struct measuring *measuring = cell__alloc(1, sizeof *measuring + count_below(root) * sizeof *measuring->children);
	if (!measuring)
		return; /* with the next tick */
	measuring->work.data = measuring;
	measuring->tree = tree;
	list_pids(root, measuring);
	tree->measuring = uv_queue_work(cell__loop_uv(root->engine->loop), &measuring->work, do_measure, handle_measured) == 0;
	if (!tree->measuring)
		free(measuring);
}

static void handle_tick(uv_timer_t *timer)
{
	struct cell__tree *tree = timer->data;
	struct cell_session *root = tree->root, *old;
	int64_t now = cell__now_us(), most = root->options.fork_time_ms;
	while ((old = find_old(root, most > 0 ? now - most * 1000 : INT64_MIN)))
		stop_child(old, "fork_time", most, (now - old->born_us) / 1000);
	if (root->options.fork_memory > 0 && !tree->measuring)
		measure(tree);
}

static int watch_tree(struct cell_session *root, struct cell_error *err)
{
	if (root->tree || (root->options.fork_memory == 0 && root->options.fork_time_ms == 0))
		return 0;
	root->tree = cell__alloc(1, sizeof *root->tree);
	if (!root->tree)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
	root->tree->root = root;
	uv_timer_init(cell__loop_uv(root->engine->loop), &root->tree->timer);
	root->tree->timer.data = root->tree;
	uv_timer_start(&root->tree->timer, handle_tick, TICK_MS, TICK_MS);
	return 0;
}

static int check_budget(struct cell_session *session, struct cell_error *err)
{
	struct cell_session *root = cell__children_root(session);
	size_t n = count_below(root);
	if (!session->executor->fork || session->executor->calls_there)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "the executor \"%s\" cannot fork a session from its own code; \"subprocess\" and \"sandbox\" can",
				 session->executor->name);
	if (root->options.allow_fork == 0)
		return cell_fail(err, CELL_E_FORBIDDEN, 0,
				 "this session may not fork itself: its host has to allow it (allow_fork in Python, C and the server's "
				 "configuration, --allow-fork N of the command line)");
	if (n >= root->options.allow_fork)
		return cell_fail(err, CELL_E_LIMIT, 0, "%zu children are open, as many as allow_fork permits: close one first", n);
	return 0;
}

/* ---- fork ---- */

static void handle_born(struct cell__waiting *waiting)
{
	struct cell__birth *birth = (struct cell__birth *)waiting;
	struct cell_session *child = waiting->session;
	struct cell__call *asked = cell__take_ptr(birth->asked), *awaited = cell__take_ptr(birth->awaited);
	birth->over = true;
	if (!waiting->failed) {
		child->was_open = true;
		if (child->kept) {
			child->kept_open = true;
			child->mother->keeper->opened(child->kept, child);
		}
		tell(child, "child");
		if (awaited)
			awaited->answer(awaited, json_null(), NULL, 0);
		return;
	}
	if (asked)
		fail(asked, &waiting->err);
	if (awaited)
		fail(awaited, &waiting->err);
	/* Otherwise sessions.ready will ask for the reason. */
	if ((asked || awaited) && !child->closing)
		cell__child_end(child);
}

static void cancel_fork(struct cell__call *call)
{
	struct cell_session *child = call->handler;
	child->birth->asked = NULL;
	cell__child_end(child);
}

void cell__child_forking(struct cell_session *child)
{
	struct cell__call *asked = child->birth ? cell__take_ptr(child->birth->asked) : NULL;
	if (asked)
		asked->answer(asked, json_pack("{s:s}", "session_id", child->id), NULL, 0);
}

static struct cell_session *make_child(struct cell__slot *slot, struct cell__call *call, struct cell_error *err)
{
	struct cell_session *session = slot->session;
	struct cell_fork_options opts = CELL_FORK_OPTIONS_INIT;
	struct cell__birth *birth = cell__alloc(1, sizeof *birth);
	struct cell_session *child = birth ? cell__session_make_fork(session, &opts, err)
					   : (cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session"), NULL);
	if (!child) {
		free(birth);
		return NULL;
	}
	if (session->keeper && !(child->kept = session->keeper->begin(session->keeper_arg, err))) {
		free(birth);
		cell__session_free(child);
		return NULL;
	}
	birth->waiting.session = child;
	birth->waiting.done = handle_born;
	birth->asked = call;
	child->birth = birth;
	child->born_us = cell__now_us();
	child->options.speculate = false;
	child->options.undo = 0; /* its points would be out of every client's reach */
	child->options.on_event = handle_child_event;
	child->options.event_arg = child;
	child->mother = session;
	child->forked_by = slot;
	child->branching = true;
	child->sibling = session->children;
	session->children = child;
	return child;
}

static void fork_child(struct cell__slot *slot, struct cell__call *call)
{
	struct cell_session *session = slot->session, *child = NULL;
	struct cell_error err = { 0 };
	if (session->closing || slot->leaving)
		cell_fail(&err, CELL_E_CLOSED, 0, "the session is closing");
	if (err.code || check_budget(session, &err) < 0 || watch_tree(cell__children_root(session), &err) < 0 ||
	    !(child = make_child(slot, call, &err))) {
		rest_tree(cell__children_root(session));
		fail(call, &err);
		return;
	}
	call->handler = child;
	call->cancel = cancel_fork;
	cell__session_begin(child, &child->birth->waiting);
	if (child->resets &&
	    cell__branch_fork_now(session, child, json_is_true(json_object_get(call->args, "drop")) ? CELL__FORK_DROP : 0, &err) < 0)
		cell__session_end_opening(child, &err);
}

/* ---- the child's calls ---- */

/* A child of this kernel; NULL: the call has failed. */
static struct cell_session *find_own(struct cell__slot *slot, struct cell__call *call)
{
	const char *id = json_string_value(json_object_get(call->args, "session_id"));
	struct cell_session *child = slot->session->children;
	while (child && (child->forked_by != slot || strcmp(child->id, id) != 0))
		child = child->sibling;
	if (child)
		return child;
	call->fail(call, CELL_E_NOT_FOUND, "ChildError",
		   "this is not an open child of this session: it was closed, reached a limit, or another session forked it");
	return NULL;
}

static void cancel_ready(struct cell__call *call)
{
	struct cell_session *child = call->handler;
	child->birth->awaited = NULL;
}

static void await_ready(struct cell__slot *slot, struct cell__call *call)
{
	struct cell_session *child = find_own(slot, call);
	if (!child)
		return;
	struct cell__birth *birth = child->birth;
	if (!birth->over && !birth->awaited && !birth->asked) {
		call->handler = child;
		call->cancel = cancel_ready;
		birth->awaited = call;
	} else if (!birth->over) {
		call->fail(call, CELL_E_BUSY, "ChildError", "another call waits for this child");
	} else if (birth->waiting.failed) {
		fail(call, &birth->waiting.err);
		cell__child_end(child);
	} else {
		call->answer(call, json_null(), NULL, 0);
	}
}

static void cancel_close(struct cell__call *call)
{
	struct cell_session *child = call->handler;
	child->closer = NULL;
}

static void close_child(struct cell__slot *slot, struct cell__call *call)
{
	const char *id = json_string_value(json_object_get(call->args, "session_id"));
	struct cell_session *child = find_below(slot->session, id);
	if (!child || child->forked_by != slot || child->closer) {
		call->answer(call, json_null(), NULL, 0); /* it is closed already, or never was its own */
		return;
	}
	call->handler = child;
	call->cancel = cancel_close;
	child->closer = call;
	cell__child_end(child);
}

static void list_children(struct cell__slot *slot, struct cell__call *call)
{
	json_t *list = json_array();
	for (const struct cell_session *child = slot->session->children; list && child; child = child->sibling)
		if (child->forked_by == slot && child->was_open && !child->closing)
			json_array_append_new(list, json_string(child->id));
	call->answer(call, list, NULL, 0);
}

/* ---- runs ---- */

static json_t *text_of(const struct cell_text *text)
{
	return json_stringn(text->data ? text->data : "", text->size);
}

static json_t *describe_error(const struct cell_result *result)
{
	const struct cell_outcome *outcome = cell_result_error(result);
	if (!outcome)
		return json_null();
	return json_pack("{s:s, s:s, s:s, s:s}", "type", outcome->type, "message", outcome->message, "traceback", outcome->traceback,
			 "code", cell_code_word(outcome->code));
}

static json_t *describe_result(const struct cell_result *result)
{
	struct cell_text out, err, both;
	const char *value = cell_result_value_json(result), *repr = cell_result_repr(result);
	json_t *number = value ? json_loads(value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
	cell_result_stdout(result, &out);
	cell_result_stderr(result, &err);
	cell_result_text(result, &both);
	return json_pack("{s:o?, s:s?, s:o, s:o, s:o, s:o, s:s, s:f}", "value", number, "repr", repr, "stdout", text_of(&out), "stderr",
			 text_of(&err), "text", text_of(&both), "error", describe_error(result), "state", cell_result_state(result),
			 "duration_ms", cell_result_duration_ms(result));
}

static void handle_run_event(void *arg, const struct cell_event *event)
{
	struct child_run *run = arg;
	struct cell_session *child = run->child;
	struct cell__call *call = run->call;
	if (event->type != CELL_EVENT_RESULT) {
		pass_on(child, event);
		return;
	}
	if (run->counted)
		child->mother->keeper->run_ended(child->kept);
	free(run);
	if (call) {
		const struct cell_outcome *outcome = cell_result_error(event->result);
		if (outcome && !cell__code_is_outcome(outcome->code))
			call->fail(call, outcome->code, "ChildError", outcome->message);
		else
			call->answer(call, describe_result(event->result), NULL, 0);
	}
	cell_result_destroy(event->result);
	if (child->is_over)
		cell__child_end(child);
}

static void cancel_run(struct cell__call *call)
{
	struct child_run *run = call->handler;
	run->call = NULL;
	cell__session_cancel_on_loop(run->child, run->run_id);
}

static void run_child(struct cell__slot *slot, struct cell__call *call)
{
	struct cell_session *child = find_own(slot, call);
	struct cell_run_options opts = CELL_RUN_OPTIONS_INIT;
	struct cell_error err = { 0 };
	if (!child)
		return; /* and the call is gone */
	const json_t *code = json_object_get(call->args, "code");
	struct child_run *run = child->was_open && !child->closing ? cell__alloc(1, sizeof *run) : NULL;
	if (!run) {
		if (!child->was_open || child->closing)
			cell_fail(&err, CELL_E_CLOSED, 0, "the child is %s", child->closing ? "ending" : "not open yet");
		else
			cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a cell");
		fail(call, &err);
		return;
	}
	*run = (struct child_run){ .child = child, .call = call, .counted = child->kept != NULL };
	opts.timeout_ms = json_integer_value(json_object_get(call->args, "timeout_ms"));
	opts.on_event = handle_run_event;
	opts.event_arg = run;
	if (run->counted && child->mother->keeper->run_begins(child->kept, &err) < 0) {
		free(run);
		fail(call, &err);
		return;
	}
	struct cell__run *cell = cell__session_make_run(child, json_string_value(code), json_string_length(code), &opts, &err);
	if (!cell) {
		if (run->counted)
			child->mother->keeper->run_ended(child->kept);
		free(run);
		fail(call, &err);
		return;
	}
	call->handler = run;
	call->cancel = cancel_run;
	run->run_id = cell->id;
	cell__session_submit(&cell->task); /* it may end inside of it */
}

/* ---- the door ---- */

void cell__children_handle(void *owner, struct cell__call *call)
{
	struct cell__slot *slot = owner;
	switch (call->operation->id) {
	case CELL__OP_SESSIONS_FORK:
		fork_child(slot, call);
		break;
	case CELL__OP_SESSIONS_READY:
		await_ready(slot, call);
		break;
	case CELL__OP_SESSIONS_RUN:
		run_child(slot, call);
		break;
	case CELL__OP_SESSIONS_CLOSE:
		close_child(slot, call);
		break;
	default:
		list_children(slot, call);
		break;
	}
}

/* ---- for the server, and the public function ---- */

void cell__session_keep_on_loop(struct cell_session *session, const struct cell__keeper *keeper, void *arg)
{
	session->keeper = keeper;
	session->keeper_arg = arg;
}

bool cell__session_is_child_on_loop(const struct cell_session *session)
{
	return session->mother != NULL;
}

bool cell__session_runs_on_loop(const struct cell_session *session)
{
	return session->current != NULL;
}

static int add_below(const struct cell_session *session, json_t *list)
{
	for (const struct cell_session *child = session->children; child; child = child->sibling) {
		if (!child->was_open || child->closing)
			continue;
		json_t *item = json_pack("{s:s, s:s, s:s, s:I, s:I, s:I}", "session_id", child->id, "parent", session->id, "state",
					 child->current ? "busy" : "idle", "cells", (json_int_t)child->cells, "age_ms",
					 (json_int_t)((cell__now_us() - child->born_us) / 1000), "pid",
					 (json_int_t)(child->slot ? child->executor->pid(child->slot->kernel) : 0));
		if (!item || json_array_append_new(list, item) < 0 || add_below(child, list) < 0)
			return -1;
	}
	return 0;
}

json_t *cell__children_list(const struct cell_session *session)
{
	json_t *list = json_array();
	if (list && add_below(session, list) < 0)
		json_decref(cell__take_ptr(list));
	return list;
}
