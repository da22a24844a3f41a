/* The session's course: its queue, the clock of its current run, open, reset and close.  See session.h. */
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "base/sized.h"
#include "layer/layer.h"
#include "session/session.h"
#include "space/space.h"

void cell__session_emit(struct cell_session *session, const struct cell_event *event)
{
	if (session->options.on_event && !session->closing)
		session->options.on_event(session->options.event_arg, event);
}

/* ---- waiters ---- */

void cell__session_end_waiting(struct cell__waiting *waiting, const struct cell_error *err)
{
	json_t *news = cell__take_ptr(waiting->news);
	waiting->failed = err != NULL;
	if (err)
		waiting->err = *err;
	if (news && !err)
		cell__branch_tell(waiting->told, news);
	else
		json_decref(news);
	if (waiting->done)
		waiting->done(waiting);
	else
		cell__waiter_signal(&waiting->waiter);
}

static void end_resets(struct cell_session *session, const struct cell_error *err)
{
	struct cell__waiting *waiting = cell__take_ptr(session->resets);
	while (waiting) {
		struct cell__waiting *next = waiting->next;
		cell__session_end_waiting(waiting, err);
		waiting = next;
	}
}

/* The current slot is ready: ends those that waited for no more than that, or all. */
static void end_ready_resets(struct cell_session *session, bool all)
{
	struct cell__waiting **at = &session->resets, *ready = NULL, **end = &ready;
	while (*at)
		if (all || (*at)->early) {
			*end = *at;
			*at = (*at)->next;
			end = &(*end)->next;
			*end = NULL;
		} else {
			at = &(*at)->next;
		}
	while (ready) {
		struct cell__waiting *next = ready->next;
		cell__session_end_waiting(ready, NULL);
		ready = next;
	}
}

void cell__session_end_opening(struct cell_session *session, const struct cell_error *err)
{
	struct cell__run *run = session->current;
	end_resets(session, err);
	if (run && !run->ending)
		cell__outcome_fail(run, err);
}

/* ---- the current run ---- */

static void handle_timer(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	struct cell__run *run = session->current;
	if (!run || !run->started || run->ending || !session->slot)
		return;
	if (run->over || run->cancelled) {
		cell__slot_leave(session, 0);
	} else if (!run->timed_out) {
		run->timed_out = true;
		session->executor->interrupt(session->slot->kernel, run->id);
		cell__session_start_timer(session, (uint64_t)session->options.grace_ms);
	} else {
		cell__slot_leave(session, 0);
	}
}

void cell__session_start_timer(struct cell_session *session, uint64_t ms)
{
	uv_timer_start(&session->timer, handle_timer, ms, 0);
}

void cell__session_stop_run(struct cell_session *session, struct cell__run *run, const char *limit, uint64_t max, uint64_t used)
{
	if (run->timed_out || !session->slot)
		return;
	run->over_used = used;
	if (run->over)
		return;
	run->over = limit;
	run->over_max = max;
	session->executor->interrupt(session->slot->kernel, run->id);
	cell__session_start_timer(session, (uint64_t)session->options.grace_ms);
}

/* Not a cell: our own question to the kernel, as cell_session_complete() asks one. */
static bool is_question(const struct cell__run *run)
{
	static const char head[] = "%%workcell_";
	return run->size >= sizeof head - 1 && memcmp(run->code, head, sizeof head - 1) == 0;
}

uint64_t cell__session_state_base(struct cell_session *session)
{
	while (!session->state_base) {
		char digits[17];
		cell__random_hex(digits, sizeof digits - 1);
		session->state_base = strtoull(digits, NULL, 16);
	}
	return session->state_base;
}

void cell__session_new_state(struct cell_session *session)
{
	/* The number alone would come again when the session is woken. */
	session->state_id = (struct cell__state_id){ cell__session_state_base(session), ++session->state_count };
}

static void start_run(struct cell_session *session)
{
	struct cell__run *run = session->current;
	struct cell_error err;
	session->executor->drain(session->slot->kernel);
	session->running_on = session->slot;
	session->slot->gate.refused = 0;
	session->parked_before = session->slot->gate.n_parked;
	session->clock_stopped = false;
	session->cell_hash[0] = '\0';
	if (session->options.audit)
		(void)cell__sha256_hex(run->code, run->size, session->cell_hash); /* without a hash the record has null */
	run->result->own_isolation = cell__branch_receipt(
		session, session->executor->receipt_of ? cell__strdup(session->executor->receipt_of(session->slot->kernel))
						       : cell__files_receipt(session));
	if (run->result->own_isolation)
		run->result->isolation = run->result->own_isolation;
	run->started = true;
	if (session->recorder && !is_question(run)) {
		run->recorded = true;
		cell__recorder_begin_cell(session->recorder, run->code, run->size, run->timeout_ms);
	}
	cell__durable_tell_run(session, run);
	session->cells++;
	if (cell__state_id_known(run->state_id))
		session->state_id = run->state_id;
	else if (!is_question(run))
		cell__session_new_state(session);
	run->started_us = cell__now_us();
	cell__quota_touch(session->quota, true);
	if (*run->trace.parent || *session->slot->calls.trace.parent)
		session->slot->calls.trace = run->trace;
	if (session->executor->trace)
		session->executor->trace(session->slot->kernel, run->trace.parent);
	if (session->executor->run(session->slot->kernel, run->id, run->code, run->size, &err) < 0) {
		cell__outcome_fail(run, &err);
		return;
	}
	free(cell__take_ptr(run->code));
	if (run->interrupt_asked)
		session->executor->interrupt(session->slot->kernel, run->id);
	int64_t patience_ms = run->cancelled ? session->options.grace_ms : run->timeout_ms;
	if (patience_ms >= 0) {
		uv_update_time(cell__loop_uv(session->engine->loop));
		cell__session_start_timer(session, (uint64_t)patience_ms);
	}
}

/* ---- disk quota ---- */

static void handle_over_quota(void *owner)
{
	struct cell_session *session = owner;
	const struct cell__excess *excess = cell__quota_excess(session->quota);
	struct cell__run *run = session->current;
	if (run && run->started && !run->ending) {
		cell__session_stop_run(session, run, excess->limit, excess->max, excess->used);
	} else if (session->slot && session->slot->ready && !run) {
		/* Processes that earlier cells left running may still write. */
		char message[160];
		cell__outcome_describe_excess(excess, message, sizeof message);
		struct cell_event event = { .type = CELL_EVENT_KERNEL_DIED, .message = message };
		cell__slot_leave(session, 0);
		cell__durable_restore_idle(session, message);
		cell__session_emit(session, &event);
	}
}

static void handle_quota_measured(void *owner)
{
	cell__session_advance(owner);
}

int cell__session_watch_folders(struct cell_session *session, struct cell_error *err)
{
	const struct cell__sandbox_policy *policy = &session->options.confine;
	const char *folders[2 + CELL_POLICY_LIMIT_PATHS];
	size_t n = 0;
	if (!session->options.confined || (!policy->workspace_bytes && !policy->workspace_files))
		return 0;
	if (policy->workspace == CELL_WORKSPACE_RW)
		folders[n++] = session->options.cwd;
	if (session->layer) {
		folders[n++] = cell__layer_upper(session->layer);
		folders[n++] = cell__layer_points(session->layer);
	}
	for (size_t i = 0; i < policy->write.count; i++)
		folders[n++] = policy->write.items[i];
	if (n == 0)
		return 0;
	struct cell__quota_config config = {
		.loop = session->engine->loop,
		.folders = folders,
		.n_folders = n,
		.max_bytes = policy->workspace_bytes,
		.max_files = policy->workspace_files,
		.over = handle_over_quota,
		.measured = handle_quota_measured,
		.owner = session,
	};
	return cell__quota_create(&config, &session->quota, err);
}

static void admit_run(struct cell_session *session)
{
	struct cell__excess excess;
	int rc = cell__quota_admit(session->quota, &excess);
	if (rc < 0)
		cell__outcome_refused(session->current, &excess);
	if (rc == 0)
		cell__branch_before_run(session);
	if (rc == 0 && !session->freezing)
		start_run(session);
}

/* Whether the engine's thread must run the loop for it at once, because no other thread would. */
static bool keeps_loop_busy(const struct cell__run *run)
{
	return !run->waited && !run->session->executor->takes_loop;
}

void cell__session_run_finished(struct cell__run *run)
{
	struct cell_session *session = run->session;
	if (run == session->current) {
		session->current = NULL;
		session->running_on = NULL;
		cell__quota_touch(session->quota, false);
		cell__slot_update_pause(session); /* its last output may have come together with its end */
	}
	if (run->recorded)
		cell__recorder_end_cell(session->recorder, run->result);
	cell__loop_add_busy(session->engine->loop, -keeps_loop_busy(run));
	if (!cell__durable_after_cell(session, run))
		cell__run_deliver(run);
	cell__session_advance(session);
}

/* ---- the end ---- */

void cell__session_free(struct cell_session *session)
{
	if (session->forgets && session->durable)
		(void)cell__durable_remove(session->durable, NULL);
	else
		cell__durable_close(session->durable);
	json_decref(session->left);
	free(session->ended);
	cell__recorder_destroy(session->recorder);
	cell__quota_destroy(session->quota);
	cell__prepared_destroy(session, session->prepared);
	cell__durable_drop_woken(&session->woken_points);
	cell__layer_destroy(session->layer);
	cell__options_finish(&session->options);
	cell__image_folder_finish(&session->images);
	cell__stored_tools_destroy(session->stored_tools);
	cell__speculation_forget(session);
	while (session->remembered) {
		struct cell__remembered *next = session->remembered->next;
		free(session->remembered);
		session->remembered = next;
	}
	free(session);
}

static void finish_session(void *arg)
{
	struct cell_session *session = arg;
	cell__pace_destroy(session->pace);
	cell__commands_forget(session);
	void (*closed)(void *) = session->closed;
	void *closed_arg = session->closed_arg;
	if (session->options.space)
		cell__space_unref(session->options.space);
	cell__slot_distrust(session);
	struct cell_session *mother = cell__children_remove(session), *origin = cell__speculation_remove(session);
	cell__session_free(session);
	closed(closed_arg);
	if (mother)
		cell__session_advance(mother);
	if (origin)
		cell__session_advance(origin);
}

static void leave_place(void *arg)
{
	struct cell_session *session = arg;
	if (session->durable)
		cell__durable_leave(session, finish_session);
	else
		finish_session(session);
}

static void handle_session_closed(uv_handle_t *handle)
{
	struct cell_session *session = handle->data;
	if (session->layer)
		cell__session_remove_layer(session, leave_place, session);
	else
		leave_place(session);
}

static void handle_timer_closed(uv_handle_t *handle)
{
	struct cell_session *session = handle->data;
	uv_close((uv_handle_t *)&session->wall, handle_session_closed);
}

static void handle_approval_timer_closed(uv_handle_t *handle)
{
	struct cell_session *session = handle->data;
	uv_close((uv_handle_t *)&session->timer, handle_timer_closed);
}

static void finish_close(struct cell_session *session)
{
	if (session->slot || session->leaving > 0 || session->savings || session->points || session->current || session->stopping > 0 ||
	    session->preparing || session->measuring || session->filing > 0 || session->children || session->tree ||
	    session->closing_trees || session->shadows > 0 || uv_is_closing((uv_handle_t *)&session->approval_timer))
		return;
	for (struct cell_session **at = &session->engine->sessions; *at; at = &(*at)->next)
		if (*at == session) {
			*at = session->next;
			break;
		}
	uv_close((uv_handle_t *)&session->approval_timer, handle_approval_timer_closed);
}

/* ---- going on ---- */

struct preparing {
	uv_work_t work;
	struct cell_session *session;
	struct cell__prepared *prepared;
};

static void handle_prepare(uv_work_t *work)
{
	struct preparing *preparing = work->data;
	preparing->prepared = cell__slot_prepare(preparing->session);
	if (preparing->prepared)
		cell__durable_wake(preparing->session, preparing->prepared);
}

/* Whether a reset or a run still waits for a slot. */
static bool wants_slot(const struct cell_session *session)
{
	const struct cell__run *run = session->current;
	return !session->closing && !session->broken.code && !session->slot &&
	       (session->resets || session->branchings || session->savings || (run && !run->started && !run->ending));
}

static void handle_prepared(uv_work_t *work, int status)
{
	struct preparing *preparing = work->data;
	struct cell_session *session = preparing->session;
	struct cell__prepared *prepared = preparing->prepared;
	struct cell_error err = { 0 };
	(void)status; /* never cancelled */
	free(preparing);
	session->preparing = false;
	if (!prepared)
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	else if (wants_slot(session))
		(void)cell__slot_open(session, prepared, &err);
	else
		cell__prepared_destroy(session, prepared);
	if (err.code && wants_slot(session))
		cell__session_end_opening(session, &err);
	cell__session_advance(session);
}

/* Has the pool look up the files of the next kernel, and then opens it. */
static int prepare_slot(struct cell_session *session, struct cell_error *err)
{
	struct preparing *preparing = cell__alloc(1, sizeof *preparing);
	if (!preparing)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	preparing->session = session;
	preparing->work.data = preparing;
	session->preparing = true;
	uv_queue_work(cell__loop_uv(session->engine->loop), &preparing->work, handle_prepare, handle_prepared);
	return 0;
}

/* Opens a slot, at once or as soon as its files are known. */
static int open_slot(struct cell_session *session, struct cell_error *err)
{
	if (session->branching || (session->savings && session->savings->releases))
		return 0;
	if (session->prepared)
		return cell__slot_open(session, cell__take_ptr(session->prepared), err);
	return session->preparing ? 0 : prepare_slot(session, err);
}

/* Fails the runs that wait in the queue. */
static void flush_queue(struct cell_session *session, const struct cell_error *err)
{
	while (session->first && !session->current) {
		struct cell__run *run = session->first;
		session->first = run->next;
		if (!session->first)
			session->last = NULL;
		session->queued--;
		cell__outcome_fail(run, err); /* no output was written, so it is delivered from inside */
	}
}

void cell__session_advance(struct cell_session *session)
{
	struct cell_error err = { 0 };
	cell__branch_return(session);
	if (session->closing) {
		cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed");
		end_resets(session, &err);
		cell__branch_end_waiting(session, &err);
		cell__durable_end_waiting(session, &err);
		flush_queue(session, &err);
		finish_close(session);
		return;
	}
	if (session->broken.code) {
		end_resets(session, &session->broken);
		cell__branch_end_waiting(session, &session->broken);
		cell__durable_end_waiting(session, &session->broken);
		flush_queue(session, &session->broken);
		return;
	}
	if (session->resets && !session->slot && session->leaving == 0 && open_slot(session, &err) < 0)
		end_resets(session, &err);
	if (session->resets && session->slot && session->slot->ready) {
		end_ready_resets(session, session->leaving == 0 && session->stopping == 0);
		if (!session->resets)
			(void)cell__durable_after_cell(session, NULL); /* else it would wake as it was before the reset */
	}
	if (session->branchings && !session->slot && open_slot(session, &err) < 0)
		cell__branch_end_waiting(session, &err);
	cell__branch_start_waiting(session);
	cell__durable_start_waiting(session);
	if (!session->current && session->first) {
		session->current = session->first;
		session->first = session->current->next;
		if (!session->first)
			session->last = NULL;
		session->queued--;
		session->current->next = NULL;
	}
	struct cell__run *run = session->current;
	if (!run || run->started || run->ending || (session->asleep && cell__durable_is_writing(session)) || cell__durable_is_due(session))
		return;
	if (!session->slot && open_slot(session, &err) < 0)
		cell__outcome_fail(run, &err);
	else if (session->slot && session->slot->ready && !session->freezing && cell__durable_may_run(session))
		admit_run(session);
}

/* ---- runs and forks that are to be ---- */

static void handle_spill_progress(void *arg)
{
	struct cell__run *run = arg;
	if (run->session->current == run)
		cell__slot_update_pause(run->session);
}

int cell__session_check_spin(const struct cell_session *session, int *spin_us, const int *spin_end, struct cell_error *err)
{
	if (*spin_us < 0 || *spin_us > CELL_LIMIT_SPIN_US || (*spin_us > 0 && !spin_end))
		return cell_fail(err, CELL_E_INVALID, 0, "spin_us is %d, expected 0 to %d; with spin_us, spin_end is required", *spin_us,
				 CELL_LIMIT_SPIN_US);
	if (session->executor->takes_loop)
		*spin_us = 0;
	return 0;
}

struct cell__run *cell__session_make_run(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
					 struct cell_error *err)
{
	struct cell_run_options all = CELL_RUN_OPTIONS_INIT;
	if (opts && cell__sized_read(&all, sizeof all, opts, "cell_run_options", err) < 0)
		return NULL;
	if (all.timeout_ms == 0)
		all.timeout_ms = session->options.timeout_ms;
	if (all.timeout_ms < -1) {
		cell_fail(err, CELL_E_INVALID, 0,
			  "timeout_ms is %lld, expected more than 0, 0 for the session's timeout, or -1 for no limit",
			  (long long)all.timeout_ms);
		return NULL;
	}
	if (all.traceparent && !cell__traceparent_read(all.traceparent, &(struct cell__traceparent){ 0 })) {
		cell_fail(err, CELL_E_INVALID, 0, "traceparent is '%.80s', expected 00-TRACE-SPAN-FLAGS as W3C's Trace Context has it",
			  all.traceparent);
		return NULL;
	}
	if (cell__session_check_spin(session, &all.spin_us, all.spin_end, err) < 0)
		return NULL;
	if (size > CELL_LIMIT_CODE_BYTES) {
		cell_fail(err, CELL_E_LIMIT, 0, "a cell may have at most %u bytes, this one has %zu", CELL_LIMIT_CODE_BYTES, size);
		return NULL;
	}
	struct cell__run_config config = {
		.loop = session->engine->loop,
		.session_id = session->id,
		.isolation = session->executor->receipt,
		.max_output = session->options.max_output,
		.images = &session->images,
		.progress = handle_spill_progress,
		.finished = cell__session_run_finished,
	};
	struct cell__run *run = cell__run_create(code, size, &all, &config, err);
	if (!run)
		return NULL;
	run->session = session;
	run->task.fn = cell__session_submit;
	do
		run->id = __atomic_fetch_add(&session->next_run_id, 1, __ATOMIC_RELAXED);
	while (run->id == 0); /* 0 means no run */
	return run;
}

int cell__session_start_on_loop(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
				uint64_t *ret_run_id, struct cell_error *err)
{
	struct cell__run *run = cell__session_make_run(session, code, size, opts, err);
	if (!run)
		return -1;
	*ret_run_id = run->id;
	cell__session_submit(&run->task);
	return 0;
}

int cell__session_complete_on_loop(struct cell_session *session, const char *before, size_t size, const struct cell_run_options *opts,
				   struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;
	if (session->executor->takes & CELL_TAKES_KERNEL)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the executor %s has no completions", session->executor->name);
	if (cell__buf_add_str(&code, CELL__COMPLETE_HEAD) < 0 || cell__buf_add(&code, before, size) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	struct cell__run *run = cell__session_make_run(session, code.data, code.size, opts, err);
	if (!run)
		return -1;
	run->if_idle = true;
	cell__session_submit(&run->task);
	return 0;
}

struct cell_session *cell__session_make_fork(struct cell_session *source, const struct cell_fork_options *opts, struct cell_error *err)
{
	struct cell_session *session = cell__alloc(1, sizeof *session);
	if (!session) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
		return NULL;
	}
	session->engine = source->engine;
	session->executor = source->executor;
	session->next_run_id = session->next_call_id = 1;
	cell__engine_name_session(session->engine, session->id);
	if (cell__options_copy(&source->options, &session->options, err) < 0 ||
	    (opts->images_dir ? cell__image_folder_init(&session->images, opts->images_dir, session->id, err)
			      : cell__image_folder_copy(&source->images, session->id, &session->images, err)) < 0) {
		cell__session_free(session);
		return NULL;
	}
	session->options.on_event = opts->on_event;
	session->options.event_arg = opts->event_arg;
	cell__principal_init(&session->principal, CELL__PRINCIPAL_CODE, cell__executor_is_trusted(session->executor),
			     &session->options.limits, NULL);
	return session;
}

/* ---- requests ---- */

static void handle_recorded(void *arg)
{
	cell__session_advance(arg);
}

void cell__session_begin(struct cell_session *session, struct cell__waiting *waiting)
{
	uv_timer_init(cell__loop_uv(session->engine->loop), &session->timer);
	session->timer.data = session;
	uv_timer_init(cell__loop_uv(session->engine->loop), &session->approval_timer);
	session->approval_timer.data = session;
	struct cell_error err = { 0 };
	const struct cell__principal *code = &session->principal;
	if (session->options.audit && !cell__principal_is_trusted(code))
		(void)cell__pace_create(session->engine->loop, cell__audit_of(session->options.audit), session->id,
					code->limits.audit_bytes, &session->pace, &err);
	cell__approvals_init_clients(session);
	uv_timer_init(cell__loop_uv(session->engine->loop), &session->wall);
	session->wall.data = session;
	session->next = session->engine->sessions;
	session->engine->sessions = session;
	if (session->options.space) {
		cell__space_ref(session->options.space);
		cell__space_take_tools(session->options.space, cell__take_ptr(session->stored_tools));
	}
	if (session->recorder) {
		session->recorder->loop = session->engine->loop;
		session->recorder->filing = &session->filing;
		session->recorder->progress = handle_recorded;
		session->recorder->arg = session;
	}
	waiting->next = session->resets;
	session->resets = waiting; /* opening counts as a reset */
	cell__quota_start(session->quota);
	if (err.code)
		end_resets(session, &err);
}

void cell__session_do_open(struct cell__task *task)
{
	struct cell__waiting *waiting = (struct cell__waiting *)task;
	struct cell_session *session = waiting->session;
	cell__session_begin(session, waiting);
	cell__session_advance(session);
}

void cell__session_do_need_kernel(struct cell__task *task)
{
	struct cell__waiting *waiting = (struct cell__waiting *)task;
	struct cell_session *session = waiting->session;
	waiting->early = true; /* as a reset that replaces nothing */
	waiting->next = session->resets;
	session->resets = waiting;
	cell__session_advance(session);
}

static void handle_servers_stopped(void *arg)
{
	struct cell_session *session = arg;
	session->stopping--;
	cell__session_advance(session);
}

void cell__session_do_reset(struct cell__task *task)
{
	struct cell__waiting *waiting = (struct cell__waiting *)task;
	struct cell_session *session = waiting->session;
	if (session->slot) {
		bool running = session->current && session->current->started && !session->current->ending;
		uv_timer_stop(&session->timer);
		cell__slot_leave(session, running ? 0 : CELL_CLOSE_GRACE_MS);
	}
	waiting->next = session->resets;
	session->resets = waiting;
	session->at_point = session->asleep = false;
	session->era++;
	cell__session_new_state(session);
	if (session->recorder)
		cell__recorder_reset(session->recorder);
	struct cell_error err;
	if (waiting->prepared) {
		cell__prepared_destroy(session, session->prepared);
		session->prepared = cell__take_ptr(waiting->prepared);
	}
	/* The new kernel comes up while the old one goes. */
	if (!session->closing && !session->broken.code && open_slot(session, &err) < 0)
		end_resets(session, &err);
	/* Servers that its code started stop too, and start again with their first use; servers of other sessions stay. */
	if (session->options.space && !session->closing && cell__space_is_alone(session->options.space)) {
		session->stopping++;
		cell__space_stop_servers_on_loop(session->options.space, handle_servers_stopped, session);
	}
	cell__session_advance(session);
}

void cell__session_interrupt_on_loop(struct cell_session *session)
{
	struct cell__run *run = session->current;
	if (!run || run->ending)
		return;
	run->interrupt_asked = true;
	if (run->started && session->slot)
		session->executor->interrupt(session->slot->kernel, run->id);
}

void cell__session_cancel_on_loop(struct cell_session *session, uint64_t run_id)
{
	struct cell__run *run = session->current;
	if (run && run->id == run_id) {
		if (run->ending || run->cancelled)
			return;
		run->cancelled = run->interrupt_asked = true;
		if (!run->started || !session->slot || run->timed_out || run->over)
			return; /* it ends in another way already, or will be stopped when it starts */
		session->executor->interrupt(session->slot->kernel, run->id);
		uv_update_time(cell__loop_uv(session->engine->loop));
		cell__session_start_timer(session, (uint64_t)session->options.grace_ms);
		return;
	}
	struct cell__run *before = NULL;
	for (run = session->first; run && run->id != run_id; run = run->next)
		before = run;
	if (!run)
		return;
	*(before ? &before->next : &session->first) = run->next;
	if (session->last == run)
		session->last = before;
	session->queued--;
	(void)cell__result_set_error(run->result, CELL_OUT_INTERRUPTED, "KeyboardInterrupt", "the cell was cancelled before it began", "");
	cell__run_end(run, true);
}

void cell__session_cancel_all_on_loop(struct cell_session *session)
{
	while (session->first)
		cell__session_cancel_on_loop(session, session->first->id);
	if (session->current)
		cell__session_cancel_on_loop(session, session->current->id);
}

bool cell__session_has_cells(const struct cell_session *session)
{
	if (session->current && !session->current->if_idle)
		return true;
	for (const struct cell__run *run = session->first; run; run = run->next)
		if (!run->if_idle)
			return true;
	return false;
}

void cell__session_submit(struct cell__task *task)
{
	struct cell__run *run = (struct cell__run *)task;
	struct cell_session *session = run->session;
	cell__loop_add_busy(session->engine->loop, keeps_loop_busy(run));
	if (run->if_idle && cell__session_has_cells(session)) {
		struct cell_error err;
		cell_fail(&err, CELL_E_BUSY, 0, "a cell runs in this session");
		cell__outcome_fail(run, &err);
		return;
	}
	if (session->queued >= CELL_LIMIT_QUEUE) {
		struct cell_error err;
		cell_fail(&err, CELL_E_LIMIT, 0, "more than %u cells wait in this session", CELL_LIMIT_QUEUE);
		cell__outcome_fail(run, &err);
		return;
	}
	run->next = NULL;
	if (session->last)
		session->last->next = run;
	else
		session->first = run;
	session->last = run;
	session->queued++;
	cell__session_advance(session);
}

void cell__session_close_on_loop(struct cell_session *session, void (*done)(void *arg), void *arg)
{
	session->closed = done;
	session->closed_arg = arg;
	/* The last cell is being saved: it must not be lost. */
	cell__durable_catch_up(session);
	session->close_waits = session->options.durable && session->savings && session->slot && !session->current && !session->first;
	if (!session->close_waits)
		cell__session_close_now(session);
}

void cell__session_close_now(struct cell_session *session)
{
	session->close_waits = false;
	session->closing = true;
	cell__speculation_copy_ended(session, "the copy was closed");
	if (session->recorder)
		cell__recorder_close(session->recorder);
	uv_timer_stop(&session->timer);
	cell__gate_drop(&session->clients);
	(void)cell__branch_drop(session, NULL);
	if (session->slot) {
		bool running = session->current && session->current->started && !session->current->ending;
		cell__slot_leave(session, running ? 0 : CELL_CLOSE_GRACE_MS);
	}
	if (session->current && !session->current->started && !session->current->ending) {
		struct cell_error err;
		cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed");
		cell__outcome_fail(session->current, &err); /* goes on to cell__session_advance() */
		return;
	}
	cell__session_advance(session);
}

/* ---- for the spaces ---- */

static bool any_wants_wheels(struct cell_engine *engine, const struct cell_space *space)
{
	for (const struct cell_session *session = engine->sessions; session; session = session->next)
		if (session->options.space == space && session->executor->wants_wheels)
			return true;
	return false;
}

const struct cell__session_ops cell__session_ops = {
	.find = cell__session_of,
	.packages_changed = cell__session_tell_packages,
	.any_wants_wheels = any_wants_wheels,
	.takes_questions = cell__session_takes_questions,
	.any_takes_questions = cell__session_any_takes_questions,
	.ask = cell__session_ask,
	.tell = cell__session_tell,
	.call = cell__session_call_on_loop,
	.confine = &cell__session_confine_ops,
};
