/* The public functions of a session, and the same for callers on the loop's thread, which do not wait. */
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "engine/engine.h"
#include "sandbox/build.h"
#include "layer/layer.h"
#include "session/session.h"
#include "spawn/proc.h"
#include "space/space.h"

/* ---- open ---- */

int cell__session_await(struct cell_engine *engine, struct cell__waiting *waiting, struct cell_error *err)
{
	cell__waiter_init(&waiting->waiter);
	cell__loop_do(engine->loop, &waiting->task, &waiting->waiter);
	cell__waiter_finish(&waiting->waiter);
	if (waiting->failed && err)
		*err = waiting->err;
	return waiting->failed ? -1 : 0;
}

static int wait_for(struct cell_session *session, void (*fn)(struct cell__task *), struct cell__prepared *prepared, struct cell_error *err)
{
	struct cell__waiting waiting = { .task.fn = fn, .session = session, .prepared = prepared };
	return cell__session_await(session->engine, &waiting, err);
}

/* Looks at files: any thread but the loop's. */
static struct cell_session *make_session(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_error *err)
{
	struct cell_session *session = cell__alloc(1, sizeof *session);
	if (!session) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
		return NULL;
	}
	session->engine = engine;
	session->next_run_id = session->next_call_id = 1;
	cell__engine_name_session(session->engine, session->id);
	if (cell__options_init(&session->options, opts, err) < 0 ||
	    (opts->resume && cell__durable_resume(session, opts->resume, err) < 0) ||
	    cell__image_folder_init(&session->images, opts->images_dir, session->id, err) < 0 ||
	    (opts->space && cell__space_read_tools(opts->space, &session->stored_tools, err) < 0)) {
		cell__session_free(session);
		return NULL;
	}
	session->executor = session->options.executor;
	if ((opts->record || opts->replay) &&
	    cell__recorder_create(opts->record, opts->replay, session->id, session->executor->name, session->options.python,
				  opts->space != NULL, &session->recorder, err) < 0) {
		cell__session_free(session);
		return NULL;
	}
	if (cell__session_make_layer(session, err) < 0 || cell__session_watch_folders(session, err) < 0) {
		cell__session_free(session);
		return NULL;
	}
	cell__principal_init(&session->principal, CELL__PRINCIPAL_CODE, cell__executor_is_trusted(session->executor),
			     &session->options.limits, NULL);
	return session;
}

/* *all has the defaults. */
static int take_options(const struct cell_session_options *opts, struct cell_session_options *all, struct cell_error *err)
{
	return opts ? cell__sized_read(all, sizeof *all, opts, "cell_session_options", err) : 0;
}

int cell_session_check(const struct cell_session_options *opts, int is_open, struct cell_error *err)
{
	struct cell_session_options all = CELL_SESSION_OPTIONS_INIT;
	struct cell__options options;
	if (take_options(opts, &all, err) < 0)
		return -1;
	int rc = cell__options_init(&options, &all, err);
	if (rc == 0 && is_open && all.policy && cell__policy_can_ask(all.policy) && cell__options_reach_host(&options))
		rc = cell_fail(err, CELL_E_INVALID, 0,
			       "with the executor \"%s\" code could reach a listener that requires no token and approve its own "
			       "calls; set a token, or use the sandbox without a network",
			       options.executor->name);
	cell__options_finish(&options);
	return rc;
}

struct place_question {
	struct cell_session *session;
	struct cell__writable_list writable;
	struct cell_error *err;
	int rc;
};

static void do_check_places(void *arg)
{
	struct place_question *question = arg;
	question->rc = cell__slot_check_places(question->session, &question->writable, question->err);
}

static int check_places(struct cell_session *session, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	struct place_question question = { .session = session, .writable = CELL_WRITABLE_LIST_INIT, .err = err };
	CELL_AUTO_FREE char *cwd = NULL;
	if (!options->confined)
		return 0;
	if (cell__plan_workspace(options->cwd, options->confine.workspace, &cwd, err) < 0 ||
	    cell__writable_init(&question.writable, &options->confine, cwd, err) < 0)
		return -1;
	question.rc = cell__places_name(session->engine->host.places, &question.writable, err);
	if (question.rc == 0)
		cell__loop_call(session->engine->loop, do_check_places, &question);
	cell__writable_finish(&question.writable);
	return question.rc;
}

/* Packages are installed before there is a kernel: the files that name them must already be out of the code's reach then. */
static int sync_packages(struct cell_session *session, struct cell_error *err)
{
	struct cell_space *space = session->options.space;
	if (!space || !cell__space_syncs(space))
		return 0;
	if (check_places(session, err) < 0)
		return -1;
	return cell__space_sync(space, &session->principal, session->executor->wants_wheels, err);
}

/* Its first kernel's files; the session is not known to the loop yet. */
static int prepare(struct cell_session *session, struct cell_error *err)
{
	session->prepared = cell__slot_prepare(session);
	if (!session->prepared)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
	cell__durable_wake(session, session->prepared);
	return 0;
}

/* For callers that wait; it is not open yet. */
static int create(struct cell_engine *engine, const struct cell_session_options *opts, const char *caller,
		  struct cell_session **ret_session, struct cell_error *err)
{
	struct cell_session_options all = CELL_SESSION_OPTIONS_INIT;
	if (take_options(opts, &all, err) < 0)
		return -1;
	if (cell__engine_may_wait(engine, caller, err) < 0)
		return -1;
	struct cell_session *session = make_session(engine, &all, err);
	if (!session)
		return -1;
	if (sync_packages(session, err) < 0 || prepare(session, err) < 0) {
		cell__session_free(session);
		return -1;
	}
	*ret_session = session;
	return 0;
}

int cell_session_open(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_session **ret_session,
		      struct cell_error *err)
{
	if (cell__require(err, engine, ret_session) < 0)
		return -1;
	struct cell_session *session = NULL;
	if (create(engine, opts, "cell_session_open", &session, err) < 0)
		return -1;
	if (wait_for(session, cell__session_do_open, NULL, err) < 0) {
		cell_session_close(session);
		return -1;
	}
	*ret_session = session;
	return 0;
}

static void handle_prewarmed(void *arg, const struct cell_env_info *info, const struct cell_error *err)
{
	struct cell__waiting *waiting = arg;
	(void)info;
	cell__slot_distrust(waiting->session);
	waiting->failed = err != NULL;
	if (err)
		waiting->err = *err;
	cell__waiter_signal(&waiting->waiter);
}

static void do_prewarm(struct cell__task *task)
{
	struct cell__waiting *waiting = (struct cell__waiting *)task;
	struct cell_session *session = waiting->session;
	struct cell__kernel_spec spec;
	const char *read[3] = { NULL };
	struct cell_error err;
	if (!session->executor->prewarm) {
		cell_fail(&err, CELL_E_UNAVAILABLE, 0, "the executor \"%s\" cannot start kernels in advance", session->executor->name);
		handle_prewarmed(waiting, NULL, &err);
		return;
	}
	if (session->prepared->err.code) {
		handle_prewarmed(waiting, NULL, &session->prepared->err);
		return;
	}
	if (cell__slot_trust(session, &err) < 0) {
		handle_prewarmed(waiting, NULL, &err);
		return;
	}
	cell__slot_spec(session, session->prepared, &spec, read);
	session->prepared->found = NULL;
	if (session->executor->prewarm(&session->engine->host, &spec, handle_prewarmed, waiting, &err) < 0)
		handle_prewarmed(waiting, NULL, &err);
}

int cell_session_prewarm(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_error *err)
{
	if (cell__require(err, engine) < 0)
		return -1;
	struct cell_session *session = NULL;
	struct cell_session_options all = CELL_SESSION_OPTIONS_INIT;
	if (take_options(opts, &all, err) < 0)
		return -1;
	all.record = all.replay = NULL; /* it never runs a cell */
	if (create(engine, &all, "cell_session_prewarm", &session, err) < 0)
		return -1;
	int rc = wait_for(session, do_prewarm, NULL, err);
	cell__session_free(session);
	return rc;
}

/* ---- files ---- */

char *cell_session_diff(struct cell_session *session, int with_text, struct cell_error *err)
{
	if (cell__require(err, session) < 0 || cell__engine_may_wait(session->engine, "cell_session_diff", err) < 0)
		return NULL;
	return cell__files_diff(session, with_text != 0, err);
}

char *cell_session_commit(struct cell_session *session, const char *const *paths, int force, struct cell_error *err)
{
	if (cell__require(err, session) < 0 || cell__engine_may_wait(session->engine, "cell_session_commit", err) < 0)
		return NULL;
	return cell__files_commit(session, paths, force != 0, err);
}

int cell_session_discard(struct cell_session *session, struct cell_error *err)
{
	if (cell__require(err, session) < 0 || cell__engine_may_wait(session->engine, "cell_session_discard", err) < 0)
		return -1;
	return cell__files_discard(session, err);
}

struct limiting {
	struct cell_session *session;
	int64_t memory_bytes, max_output_bytes;
	struct cell_error err;
	int rc;
};

static void do_limit(void *arg)
{
	struct limiting *limiting = arg;
	limiting->rc = cell__session_limit_on_loop(limiting->session, limiting->memory_bytes, limiting->max_output_bytes, &limiting->err);
}

int cell_session_limit(struct cell_session *session, int64_t memory_bytes, int64_t max_output_bytes, struct cell_error *err)
{
	struct limiting limiting = { .session = session, .memory_bytes = memory_bytes, .max_output_bytes = max_output_bytes };
	if (cell__require(err, session) < 0 || cell__engine_may_wait(session->engine, "cell_session_limit", err) < 0)
		return -1;
	cell__loop_call(session->engine->loop, do_limit, &limiting);
	if (limiting.rc < 0 && err)
		*err = limiting.err;
	return limiting.rc;
}

/* ---- the same without waiting ---- */

struct asking {
	struct cell__waiting waiting; /* first */
	uv_work_t work;
	struct cell_engine *engine;
	struct cell_session_options opts;
	cell__session_done done;
	void *arg;
};

static void end_asking(struct asking *asking)
{
	asking->done(asking->arg, asking->waiting.failed ? NULL : asking->waiting.session, &asking->waiting.err);
	free(asking);
}

static void handle_half_open_closed(void *arg)
{
	end_asking(arg);
}

static void handle_opened(struct cell__waiting *waiting)
{
	struct asking *asking = (struct asking *)waiting;
	/* Called by cell__session_advance(), which continues with the session: it is closed from there. */
	if (waiting->failed)
		cell__session_close_on_loop(waiting->session, handle_half_open_closed, asking);
	else
		end_asking(asking);
}

static void do_prepare(uv_work_t *work)
{
	struct asking *asking = work->data;
	struct cell_session *session = make_session(asking->engine, &asking->opts, &asking->waiting.err);
	if (session && prepare(session, &asking->waiting.err) < 0) {
		cell__session_free(session);
		session = NULL;
	}
	asking->waiting.session = session;
}

static void handle_prepared(uv_work_t *work, int status)
{
	struct asking *asking = work->data;
	(void)status;
	if (asking->waiting.session) {
		cell__session_do_open(&asking->waiting.task);
	} else {
		asking->waiting.failed = true;
		end_asking(asking);
	}
}

static struct asking *make_asking(struct cell_engine *engine, cell__session_done done, void *arg, struct cell_error *err)
{
	struct asking *asking = cell__alloc(1, sizeof *asking);
	if (!asking) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
		return NULL;
	}
	asking->engine = engine;
	asking->work.data = asking;
	asking->done = done;
	asking->arg = arg;
	return asking;
}

int cell__session_open_on_loop(struct cell_engine *engine, const struct cell_session_options *opts, cell__session_done done, void *arg,
			       struct cell_error *err)
{
	struct asking *asking = make_asking(engine, done, arg, err);
	if (!asking)
		return -1;
	asking->opts = *opts;
	asking->waiting.done = handle_opened;
	uv_queue_work(cell__loop_uv(engine->loop), &asking->work, do_prepare, handle_prepared);
	return 0;
}

static void handle_reset(struct cell__waiting *waiting)
{
	end_asking((struct asking *)waiting);
}

int cell__session_reset_on_loop(struct cell_session *session, cell__session_done done, void *arg, struct cell_error *err)
{
	struct asking *asking = make_asking(session->engine, done, arg, err);
	if (!asking)
		return -1;
	asking->waiting.session = session;
	asking->waiting.done = handle_reset;
	cell__session_do_reset(&asking->waiting.task);
	return 0;
}

/* ---- questions ---- */

const char *cell_session_id(const struct cell_session *session)
{
	if (!session)
		return "";
	return session->id;
}

struct pid_question {
	struct cell_session *session;
	int64_t pid;
};

int64_t cell__session_pid_on_loop(const struct cell_session *session)
{
	return session->slot ? session->executor->pid(session->slot->kernel) : 0;
}

size_t cell__session_waiting_on_loop(const struct cell_session *session)
{
	return (session->slot ? session->slot->gate.n_parked : 0) + session->clients.n_parked;
}

void cell__session_stop_on_loop(struct cell_session *session, const char *limit, uint64_t max, uint64_t used)
{
	if (session->current && session->current->started)
		cell__session_stop_run(session, session->current, limit, max, used);
}

static void do_pid(void *arg)
{
	struct pid_question *question = arg;
	question->pid = cell__session_pid_on_loop(question->session);
}

int64_t cell_session_kernel_pid(struct cell_session *session)
{
	if (!session)
		return 0;
	struct pid_question question = { .session = session };
	cell__loop_call(session->engine->loop, do_pid, &question);
	return question.pid;
}

struct file_question {
	struct cell_session *session;
	char *path;
};

static void do_connection_file(void *arg)
{
	struct file_question *question = arg;
	struct cell__slot *slot = question->session->slot;
	const struct cell__executor *executor = question->session->executor;
	const char *path = slot && slot->ready && executor->connection_file ? executor->connection_file(slot->kernel) : NULL;
	question->path = path ? cell__strdup(path) : NULL;
}

char *cell_session_connection_file(struct cell_session *session)
{
	if (!session)
		return NULL;
	struct file_question question = { .session = session };
	cell__loop_call(session->engine->loop, do_connection_file, &question);
	return question.path;
}

/* ---- runs ---- */

static void do_resume(void *arg)
{
	struct cell__run *run = arg;
	if (run->session->current == run)
		cell__slot_update_pause(run->session);
}

static void resume(struct cell__run *run)
{
	cell__loop_call(run->session->engine->loop, do_resume, run);
}

/* Takes the run. */
static int run_and_wait(struct cell__run *run, struct cell_result **ret_result, struct cell_error *err)
{
	struct cell_session *session = run->session;
	run->waited = true;
	cell__waiter_set_yielding(&run->waiter, session->executor->takes_loop);
	struct cell_result *result = cell__run_wait(run, session->engine->loop, resume);
	cell__run_destroy(run);
	/* Our failure is an error, not an outcome of the code. */
	if (result->failed && !cell__code_is_outcome(result->outcome.code)) {
		cell_fail(err, result->outcome.code, 0, "%s", result->outcome.message);
		cell_result_destroy(result);
		return -1;
	}
	*ret_result = result;
	return 0;
}

int cell_session_run(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
		     struct cell_result **ret_result, struct cell_error *err)
{
	if (cell__require(err, session, code, ret_result) < 0)
		return -1;
	if (cell__engine_may_wait(session->engine, "cell_session_run", err) < 0)
		return -1;
	struct cell__run *run = cell__session_make_run(session, code, size, opts, err);
	return run ? run_and_wait(run, ret_result, err) : -1;
}

/* A cell that every kernel of ours knows, also behind a session server: it answers with JSON and is not one of the session's cells. */
static int ask_kernel(struct cell_session *session, const char *head, const char *body, size_t size, const char *what, char **ret_json,
		      struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;
	struct cell_run_options opts = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result;
	if (session->executor->takes & CELL_TAKES_KERNEL)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the executor %s has no %s", session->executor->name, what);
	if (cell__buf_add_str(&code, head) < 0 || cell__buf_add(&code, body, size) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	opts.timeout_ms = CELL_COMPLETE_MS;
	struct cell__run *run = cell__session_make_run(session, code.data, code.size, &opts, err);
	if (!run)
		return -1;
	run->if_idle = true;
	if (run_and_wait(run, &result, err) < 0)
		return -1;
	const struct cell_outcome *outcome = cell_result_error(result);
	const char *value = cell_result_value_json(result);
	int rc = 0;
	if (outcome)
		rc = cell_fail(err, outcome->code == CELL_OUT_TIMEOUT ? CELL_E_TIMEOUT : CELL_E_KERNEL, 0, "%s", outcome->message);
	else if (!value)
		rc = cell_fail(err, CELL_E_KERNEL, 0, "the kernel has no %s", what);
	else if (!(*ret_json = cell__strdup(value)))
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	cell_result_destroy(result);
	return rc;
}

int cell_session_complete(struct cell_session *session, const char *before, size_t size, char **ret_json, struct cell_error *err)
{
	if (cell__require(err, session, before, ret_json) < 0 || cell__engine_may_wait(session->engine, "cell_session_complete", err) < 0)
		return -1;
	return ask_kernel(session, CELL__COMPLETE_HEAD, before, size, "completions", ret_json, err);
}

#define LIST_VARIABLES "%%workcell_variables\n"

int cell_session_variables(struct cell_session *session, char **ret_json, struct cell_error *err)
{
	if (cell__require(err, session, ret_json) < 0 || cell__engine_may_wait(session->engine, "cell_session_variables", err) < 0)
		return -1;
	return ask_kernel(session, LIST_VARIABLES, "", 0, "list of variables", ret_json, err);
}

int cell__session_variables_on_loop(struct cell_session *session, cell_event_fn done, void *arg, struct cell_error *err)
{
	struct cell_run_options opts = CELL_RUN_OPTIONS_INIT;
	if (session->executor->takes & CELL_TAKES_KERNEL)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the executor %s has no list of variables", session->executor->name);
	if (cell__session_has_cells(session))
		return cell_fail(err, CELL_E_BUSY, 0, "a cell runs in this session");
	opts.timeout_ms = CELL_COMPLETE_MS;
	opts.on_event = done;
	opts.event_arg = arg;
	struct cell__run *run = cell__session_make_run(session, LIST_VARIABLES, strlen(LIST_VARIABLES), &opts, err);
	if (!run)
		return -1;
	run->if_idle = true;
	cell__session_submit(&run->task);
	return 0;
}

int cell_session_start(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
		       uint64_t *ret_run_id, struct cell_error *err)
{
	if (cell__require(err, session, code) < 0)
		return -1;
	struct cell__run *run = cell__session_make_run(session, code, size, opts, err);
	if (!run)
		return -1;
	uint64_t id = run->id; /* the run may be over before we return */
	cell__loop_drive(session->engine->loop, &run->task, run->spin_end, run->spin_us);
	if (ret_run_id)
		*ret_run_id = id;
	return 0;
}

void cell__session_hold(struct cell_session *session, uint64_t run_id, bool held)
{
	struct cell__run *run = session->current;
	if (!run || run->id != run_id)
		return;
	run->held = held;
	cell__slot_update_pause(session);
}

static void do_interrupt(void *arg)
{
	cell__session_interrupt_on_loop(arg);
}

int cell_session_interrupt(struct cell_session *session, struct cell_error *err)
{
	if (cell__require(err, session) < 0)
		return -1;
	(void)err;
	cell__loop_call(session->engine->loop, do_interrupt, session);
	return 0;
}

struct cancelling {
	struct cell_session *session;
	uint64_t id;
};

static void do_cancel(void *arg)
{
	struct cancelling *cancelling = arg;
	cell__session_cancel_on_loop(cancelling->session, cancelling->id);
}

int cell_session_cancel(struct cell_session *session, uint64_t run_id, struct cell_error *err)
{
	if (cell__require(err, session) < 0)
		return -1;
	struct cancelling cancelling = { .session = session, .id = run_id };
	(void)err;
	cell__loop_call(session->engine->loop, do_cancel, &cancelling);
	return 0;
}

/* ---- reset and close ---- */

int cell_session_reset(struct cell_session *session, struct cell_error *err)
{
	if (cell__require(err, session) < 0)
		return -1;
	if (cell__engine_may_wait(session->engine, "cell_session_reset", err) < 0)
		return -1;
	return wait_for(session, cell__session_do_reset, cell__slot_prepare(session), err);
}

static void start_close(void *session, void (*done)(void *arg), void *arg)
{
	cell__session_close_on_loop(session, done, arg);
}

void cell_session_close(struct cell_session *session)
{
	if (!session)
		return;
	cell__engine_must_wait(session->engine, "cell_session_close");
	cell__engine_wait(session->engine, start_close, session);
}

static int call_for_client(struct cell_session *session, const char *name, void *client, struct cell__own_work *work, const char *method,
			   const char *args_json, const void *raw, size_t raw_size, struct cell_canceller *canceller,
			   struct cell_answer *ret_answer, struct cell_error *err)
{
	struct cell__principal principal;
	cell__principal_init(&principal, CELL__PRINCIPAL_MCP, cell__executor_is_trusted(session->executor), &session->options.limits, name);
	struct cell__asking_for who = {
		.space = session->options.space, .session = session, .principal = &principal, .client = client, .work = work
	};
	if (!who.space)
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "the session has no space, so it has no tools and no storage");
	return cell__space_answer_for(&who, method, args_json, raw, raw_size, canceller, ret_answer, err);
}

int cell__session_own_call(struct cell_session *session, const char *name, void *client, const char *tool, const json_t *args,
			   struct cell__own_work *work, struct cell_canceller *canceller, struct cell_answer *ret_answer,
			   struct cell_error *err)
{
	json_t *both = json_pack("{s:s, s:O}", "name", tool, "args", args);
	CELL_AUTO_FREE char *text = both ? json_dumps(both, JSON_COMPACT) : NULL;
	json_decref(both);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return call_for_client(session, name, client, work, cell__operations[CELL__OP_OFFERED_CALL].method, text, NULL, 0, canceller,
			       ret_answer, err);
}

int cell_session_call(struct cell_session *session, const char *name, void *client, const char *method, const char *args_json,
		      const void *raw, size_t raw_size, struct cell_canceller *canceller, struct cell_answer *ret_answer,
		      struct cell_error *err)
{
	if (cell__require(err, session, method, ret_answer) < 0 || cell__sized_check(ret_answer, "cell_answer", err) < 0)
		return -1;
	return call_for_client(session, name, client, NULL, method, args_json, raw, raw_size, canceller, ret_answer, err);
}
