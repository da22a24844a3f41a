/*
 * Sessions: a queue of cells, one kernel to run them on, and the truth about whether its state survived.
 *
 * A kernel sits in a seat.  The session has at most one current seat; after a reset or a kill the old one is
 * `leaving` until its process and everything it started are gone.
 *
 *     seat:     opening ──ready──▶ ready ──exited──▶ gone
 *     session:  open ──▶ (runs, resets) ──close──▶ closing ──no seat left──▶ gone
 *               any ──the spawner dies──▶ broken: every run answers CELL_E_SPAWNER
 *     run:      started ──timeout──▶ interrupted ──grace over──▶ kernel killed
 *
 * Invariants: `current` is the only started run; a run waits for a ready seat; a seat is opened only when a run
 * needs one, at open and at reset.  Everything but the public functions at the end runs on the loop's thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "executor/container.h"
#include "executor/sandbox.h"
#include "sandbox/egress.h"
#include "sandbox/policy.h"
#include "session/calls.h"
#include "session/engine.h"
#include "session/gate.h"
#include "session/run.h"
#include "session/space.h"

#define CLOSE_GRACE_MS 250 /* for exit handlers and unflushed files of an idle kernel */

struct seat {
	struct cell_session *session;
	struct cell__kernel *kernel;
	bool ready, leaving, paused;
	bool news; /* packages were installed while it came up */
	const char *violation; /* what the kernel did that no honest one does */
	struct cell__calls calls;
	struct cell__gate gate;
};

/* Somebody who waits for open, reset or close. */
struct waiting {
	struct cell__task task;
	struct cell_session *session;
	struct cell__waiter waiter;
	struct cell_error err;
	bool failed;
	void (*done)(struct waiting *waiting); /* NULL: a thread waits for the waiter */
	struct waiting *next;
};

struct cell_session {
	struct cell_engine *engine;
	const struct cell__executor *executor;
	char *kernel, *jupyter_path; /* jupyter; or NULL */
	char id[33];
	char *python, *preload, *cwd;
	char **env;
	int64_t timeout_ms, grace_ms;
	size_t max_output;
	cell_event_fn on_event;
	void *event_arg;
	struct cell_space *space;
	const struct cell_policy *policy;
	struct cell_audit *audit;
	unsigned gate_kinds;
	int64_t approval_timeout_ms;
	bool approval_stops_clock, require_shell_escape, restore_cwd, portable;
	bool takes_questions; /* of MCP servers */
	struct cell__image_folder images;
	char *remote_url, *remote_token, *remote_workspace, *remote_ca;
	bool remote_reopen;
	char *container; /* cell__container_describe() */
	struct cell__policy confine; /* sandbox */
	bool confined;
	const char *network; /* deno; static */

	struct seat *seat;
	int leaving;
	uint32_t next_run_id;
	struct cell__run *current;
	struct seat *running_on; /* where `current` was started; only compared */
	struct cell__run *first, *last; /* queue */
	size_t queued;
	struct waiting *resets; /* waiting for: no seat leaving, the current one ready */
	bool closing;
	struct cell_error broken;
	uv_timer_t timer; /* of the current run: timeout, then grace */
	uv_timer_t approval_timer; /* of the first parked call */
	struct cell__remembered *remembered;
	uint64_t next_call_id;
	char cell_hash[65]; /* of the current run's code; "" when there is none or nobody keeps an audit log */
	int stopping; /* servers of the space that a reset ends */
	bool clock_stopped; /* the current run's timeout stands still */
	uint64_t clock_left_ms;
	size_t parked_before; /* calls that were parked when the run started: they do not stop its clock */
	uv_timer_t wall;  /* of the current kernel */
	void (*closed)(void *arg);
	void *closed_arg;
	struct cell_session *next;
};

static void advance(struct cell_session *session);
static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size);
static void handle_tool_image(void *owner, const void *bytes, size_t size);
static const struct cell__kernel_events kernel_events;
static void handle_timer(uv_timer_t *timer);
static void handle_wall(uv_timer_t *timer);

/* ---- seats ---- */

/*
 * The session's environment with the project's own programs first on PATH.  ret_env borrows all entries but the one
 * in *ret_path; both are NULL when there is nothing to add.
 */
static int env_with_programs(struct cell_session *session, const char ***ret_env, char **ret_path, struct cell_error *err)
{
	const char *bin = session->space ? cell__space_bin(session->space) : NULL;
	*ret_env = NULL;
	*ret_path = NULL;
	if (!bin)
		return 0;
	size_t n = 0, last = 0; /* the first entry is our own PATH; a later one counts, as it does in the kernel */
	for (; session->env[n]; n++)
		if (strncmp(session->env[n], "PATH=", 5) == 0)
			last = n;
	const char **env = cell__alloc(n + 1, sizeof *env);
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (!env || cell__buf_printf(&path, "PATH=%s:%s", bin, session->env[last] + 5) < 0) {
		free(env);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	memcpy(env, session->env, n * sizeof *env);
	env[last] = path.data;
	*ret_env = env;
	*ret_path = cell__buf_take(&path);
	return 0;
}

static struct cell__run *run_on(const struct seat *seat);

/* ---- calls of the seat's kernel ---- */

static bool somebody_listens(void *owner)
{
	struct seat *seat = owner;
	struct cell__run *run = run_on(seat);
	return run ? run->on_event != NULL : seat->session->on_event != NULL;
}

static void emit_call(void *owner, const struct cell_event *event)
{
	struct seat *seat = owner;
	struct cell_session *session = seat->session;
	struct cell__run *run = run_on(seat);
	if (run)
		cell__run_call_event(run, event);
	else if (session->on_event && !session->closing)
		session->on_event(session->event_arg, event);
}

static void handle_timer(uv_timer_t *timer);

/* While somebody is asked, the timeout of the run stands still, if that was asked for. */
static void update_clock(struct cell_session *session, size_t parked)
{
	struct cell__run *run = session->current;
	if (parked < session->parked_before)
		session->parked_before = parked;
	if (!session->approval_stops_clock || !run || !run->started || run->ending || run->timed_out || run->cancelled ||
	    run->timeout_ms < 0)
		return;
	bool stop = parked > session->parked_before;
	if (stop == session->clock_stopped)
		return;
	session->clock_stopped = stop;
	uv_update_time(&session->engine->loop.uv);
	if (stop) {
		session->clock_left_ms = uv_timer_get_due_in(&session->timer);
		uv_timer_stop(&session->timer);
	} else {
		uv_timer_start(&session->timer, handle_timer, session->clock_left_ms, 0);
	}
}

static void handle_approval_timer(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	if (session->seat)
		cell__gate_expire(&session->seat->gate);
}

static void handle_parked(void *owner)
{
	struct seat *seat = owner;
	struct cell_session *session = seat->session;
	if (session->seat != seat)
		return; /* it is leaving: nothing of it expires any more */
	int64_t deadline = cell__gate_deadline(&seat->gate), now = cell__now_us() / 1000;
	if (deadline < 0) {
		uv_timer_stop(&session->approval_timer);
	} else {
		uv_update_time(&session->engine->loop.uv);
		uv_timer_start(&session->approval_timer, handle_approval_timer, deadline > now ? (uint64_t)(deadline - now) : 0,
			       0);
	}
	update_clock(session, seat->gate.n_parked);
}

/* Nobody waits for answers any more, and what was open of artifacts is dropped. */
static void end_calls(struct seat *seat)
{
	struct cell_session *session = seat->session;
	cell__calls_cancel(&seat->calls);
	cell__gate_drop_questions(&seat->gate);
	if (session->space)
		cell__space_session_ended(session->space, session->id);
}

/* Its Python is not of this machine: packages go to it as wheels. */
static bool is_deno(const struct cell_session *session)
{
	return session->executor == &cell__deno_executor;
}

/* What the session asks of an executor.  read is memory for a list, with room for one folder and its end. */
static int fill_spec(struct cell_session *session, struct cell__kernel_spec *ret_spec, const char *read[static 2],
		     struct cell_error *err)
{
	*ret_spec = (struct cell__kernel_spec){
		.session_id = session->id,
		.python = session->python,
		.preload = session->preload,
		.cwd = session->cwd,
		.env = (const char *const *)session->env,
		.namespaces = session->space != NULL,
		.gate_shell = (session->gate_kinds & CELL_GATE_SHELL) != 0,
		.shell_escape = session->require_shell_escape,
		.restore_cwd = session->restore_cwd,
		.portable = session->portable,
		.site = session->space ? cell__space_site(session->space) : NULL,
		.policy = session->confined ? &session->confine : NULL,
		.kernel = session->kernel,
		.jupyter_path = session->jupyter_path,
		.network = session->network,
		.remote_url = session->remote_url,
		.remote_token = session->remote_token,
		.remote_workspace = session->remote_workspace,
		.remote_ca = session->remote_ca,
		.remote_reopen = session->remote_reopen,
		.container = session->container,
	};
	if (!session->confined || !session->space)
		return 0;
	read[0] = cell__space_packages(session->space);
	ret_spec->read = read;
	if (session->confine.workspace != CELL_WORKSPACE_RW)
		return 0;
	return cell__space_protect(session->space, session->cwd, &ret_spec->protect, err);
}

static int open_seat(struct cell_session *session, struct cell_error *err)
{
	CELL_AUTO_FREE const char **env = NULL;
	CELL_AUTO_FREE char *path = NULL;
	CELL_AUTO_FREE char *wheels = is_deno(session) && session->space ? cell__space_wheels(session->space) : NULL;
	if (env_with_programs(session, &env, &path, err) < 0)
		return -1;
	struct seat *seat = cell__alloc(1, sizeof *seat);
	if (!seat)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	seat->session = session;
	struct cell__kernel_spec spec;
	const char *read[2] = { NULL };
	if (fill_spec(session, &spec, read, err) < 0) {
		free(seat);
		return -1;
	}
	spec.wheels = wheels;
	if (env)
		spec.env = (const char *const *)env;
	if (session->executor->open(&session->engine->host, &spec, &kernel_events, seat, &seat->kernel, err) < 0) {
		free(seat);
		return -1;
	}
	seat->gate = (struct cell__gate){
		.space = session->space,
		.session_id = session->id,
		.executor = session->executor->name,
		.cwd = session->cwd,
		.policy = session->policy,
		.kinds = session->gate_kinds,
		.timeout_ms = session->approval_timeout_ms,
		.audit = session->audit ? cell__audit_of(session->audit) : NULL,
		.cell_hash = session->cell_hash,
		.next_id = &session->next_call_id,
		.remembered = &session->remembered,
		.listens = somebody_listens,
		.emit = emit_call,
		.parked = handle_parked,
		.owner = seat,
	};
	seat->calls = (struct cell__calls){
		.kernel = seat->kernel, .session_id = session->id, .gate = &seat->gate,
		.untrusted = session->confined || is_deno(session),
		.output = handle_output, .image = handle_tool_image, .owner = seat,
	};
	session->seat = seat;
	return 0;
}

/* The current kernel goes; its end is reported through exited(). */
static void leave_seat(struct cell_session *session, int64_t grace_ms)
{
	struct seat *seat = session->seat;
	end_calls(seat);
	session->seat = NULL;
	uv_timer_stop(&session->wall);
	seat->leaving = true;
	session->leaving++;
	session->executor->close(seat->kernel, grace_ms);
}

static void update_pause(struct cell_session *session)
{
	struct seat *seat = session->seat;
	if (!seat)
		return;
	/* A run whose kernel was replaced says nothing about the new one. */
	struct cell__run *run = session->current;
	bool paused = run && !run->ending && session->running_on == seat && cell__run_wants_pause(run);
	if (paused == seat->paused)
		return;
	seat->paused = paused;
	session->executor->pause(seat->kernel, paused);
}

/* ---- ends of runs ---- */

/* Must the engine's thread run the loop for it at once, because nobody else would? */
static bool keeps_loop_busy(const struct cell__run *run)
{
	return !run->waited && !run->session->executor->takes_loop;
}

/* The result is complete: hand it over, go on with the next. */
static void handle_run_finished(struct cell__run *run)
{
	struct cell_session *session = run->session;
	if (run == session->current) {
		session->current = NULL;
		session->running_on = NULL;
		update_pause(session); /* its last output may have come together with its end */
	}
	session->engine->loop.busy -= keeps_loop_busy(run);
	cell__run_deliver(run);
	advance(session);
}

static void handle_spill_progress(void *arg)
{
	struct cell__run *run = arg;
	if (run->session->current == run)
		update_pause(run->session);
}

static void fail_run(struct cell__run *run, const struct cell_error *err)
{
	(void)cell__result_set_error(run->result, err->code, "", err->msg, "");
	cell__run_end(run, false);
}

/* how is NULL where the kernel lives on. */
static void end_timed_out(struct cell__run *run, const struct cell__exit *how, const char *traceback)
{
	char message[240];
	bool kept = how == NULL;
	snprintf(message, sizeof message, "the cell ran longer than its timeout of %.3g s; %s",
		 (double)run->timeout_ms / 1000.0,
		 kept ? "it was interrupted and the session's variables are kept"
		 : how->abandoned
			 ? "it did not stop when interrupted: its thread was abandoned and still runs in this process, and the "
			   "session's variables are lost"
		 : run->session->executor->takes_loop
			 ? "it did not stop in time when interrupted, and the session's variables are lost"
			 : "it did not stop when interrupted, so its kernel was killed and the session's variables are lost");
	(void)cell__result_set_error(run->result, CELL_OUT_TIMEOUT, "TimeoutError", message, traceback);
	cell__run_end(run, kept);
}

static int failure_code(const struct cell__run *run, bool refused, bool limited,
			const struct cell__answer *answer)
{
	if (answer->interrupted && run->interrupt_asked)
		return CELL_OUT_INTERRUPTED;
	if (answer->code)
		return answer->code;
	/* Only a run that was refused something can have ended with it. */
	if (refused && (strcmp(answer->error_type, "ApprovalRejectedError") == 0 ||
			strcmp(answer->error_type, "ApprovalTimeoutError") == 0))
		return CELL_OUT_REJECTED;
	return limited ? CELL_OUT_LIMIT : CELL_OUT_EXCEPTION;
}

static void end_over_limit(struct cell__run *run, bool kept, const char *traceback)
{
	char message[240];
	snprintf(message, sizeof message, "the cell went over the limit on %s: %llu of %llu %s; %s", run->over, 
		 (unsigned long long)run->over_used, (unsigned long long)run->over_max,
		 strcmp(run->over, "wall_time") == 0 ? "ms" : "bytes",
		 kept ? "it was interrupted and the session's variables are kept"
		      : "its kernel was killed and the session's variables are lost");
	(void)cell__result_set_error(run->result, CELL_OUT_LIMIT, "LimitExceeded", message, traceback);
	(void)cell__result_set_limit(run->result, run->over, run->over_max, run->over_used);
	cell__run_end(run, kept);
}

static void end_answered(struct cell__run *run, bool refused, const struct cell__answer *answer)
{
	if (run->timed_out) {
		end_timed_out(run, answer->lost ? &(struct cell__exit){ 0 } : NULL, answer->failed ? answer->error_traceback : "");
		return;
	}
	if (run->over) {
		end_over_limit(run, true, answer->failed ? answer->error_traceback : "");
		return;
	}
	struct cell_result *result = run->result;
	bool limited = answer->limit && (run->session->confined || answer->code == CELL_OUT_LIMIT);
	int rc = 0;
	if (answer->failed)
		rc = cell__result_set_error(result, failure_code(run, refused, limited, answer), answer->error_type,
					    answer->error_message, answer->error_traceback);
	if (answer->failed && limited && result->outcome.code == CELL_OUT_LIMIT)
		rc |= cell__result_set_limit(result, answer->limit, answer->limit_max, answer->limit_used);
	else
		rc = cell__result_take_answer(result, answer);
	if (rc < 0 && !result->failed)
		(void)cell__result_set_error(result, CELL_E_NOMEM, "", "out of memory for the result", "");
	if (answer->isolation && !result->own_isolation && (result->own_isolation = cell__strdup(answer->isolation)))
		result->isolation = result->own_isolation;
	cell__run_end(run, !answer->lost);
}

static void describe_death(const struct cell__exit *how, const char *violation, char *out, size_t size)
{
	if (violation)
		snprintf(out, size, "the kernel broke the protocol (%s) and was killed", violation);
	else if (how->error.code)
		snprintf(out, size, "%s", how->error.msg);
	else if (how->oom)
		snprintf(out, size, "the kernel ran out of memory: the system's OOM killer ended it (signal 9)");
	else if (!how->known)
		snprintf(out, size, "the kernel died; how is not known");
	else if (WIFSIGNALED(how->status))
		snprintf(out, size, "the kernel was killed by signal %d (%s)", WTERMSIG(how->status),
			 sigdescr_np(WTERMSIG(how->status)) ? sigdescr_np(WTERMSIG(how->status)) : "unknown");
	else
		snprintf(out, size, "the kernel exited with status %d", WEXITSTATUS(how->status));
}

/* The kernel under a started run is gone. */
static void end_dead(struct cell__run *run, const struct seat *seat, const struct cell__exit *how)
{
	struct cell_session *session = run->session;
	char message[320];
	if (session->broken.code) {
		fail_run(run, &session->broken);
	} else if (session->closing) {
		struct cell_error err;
		cell_fail(&err, CELL_E_CLOSED, 0, "the session was closed while the cell ran");
		fail_run(run, &err);
	} else if (how->error.code == CELL_E_EXPIRED) {
		fail_run(run, &how->error);
	} else if (run->timed_out) {
		end_timed_out(run, how, "");
	} else if (run->over) {
		end_over_limit(run, false, "");
	} else if (how->oom && how->memory_max > 0) {
		char text[200];
		snprintf(text, sizeof text,
			 "the code went over the limit on memory: %llu of %llu bytes; its kernel was killed and the session's "
			 "variables are lost",
			 (unsigned long long)how->memory_used, (unsigned long long)how->memory_max);
		(void)cell__result_set_error(run->result, CELL_OUT_LIMIT, "LimitExceeded", text, "");
		(void)cell__result_set_limit(run->result, "memory", how->memory_max, how->memory_used);
		cell__run_end(run, false);
	} else if (session->confined && session->confine.cpu_time_ms && how->known && WIFSIGNALED(how->status) &&
		   WTERMSIG(how->status) == SIGXCPU) {
		(void)cell__result_set_error(run->result, CELL_OUT_LIMIT, "LimitExceeded",
					     "the code went over the limit on CPU time; its kernel was killed and the session's "
					     "variables are lost",
					     "");
		(void)cell__result_set_limit(run->result, "cpu_time", session->confine.cpu_time_ms, session->confine.cpu_time_ms);
		cell__run_end(run, false);
	} else if (how->asked && !seat->violation) {
		(void)cell__result_set_error(run->result, CELL_OUT_INTERRUPTED, "KeyboardInterrupt",
					     run->cancelled ? "the cell was cancelled and did not stop when interrupted, so its kernel was "
							      "killed and the session's variables are lost"
							    : "the session was reset while the cell ran",
					     "");
		cell__run_end(run, false);
	} else {
		describe_death(how, seat->violation, message, sizeof message);
		(void)cell__result_set_error(run->result, CELL_OUT_KERNEL_DIED, "KernelDied", message, "");
		cell__run_end(run, false);
	}
}

/* ---- what the kernel says ---- */

/* Where packages are now, for a kernel that may have come up before they did. */
static void tell_packages(struct seat *seat)
{
	struct cell_session *session = seat->session;
	if (is_deno(session))
		return;
	const char *site = cell__space_site(session->space);
	if (!site)
		return;
	json_t *news = json_pack("{s:[s]}", "site", site);
	const char *bin = cell__space_bin(session->space); /* after this, site is gone */
	if (bin)
		json_object_set_new(news, "bin", json_string(bin));
	char *text = news ? json_dumps(news, JSON_COMPACT) : NULL;
	/* An answer to nobody.  What cannot be sent is no loss to a kernel that asks itself, with deps.sync(). */
	if (text)
		(void)session->executor->reply(seat->kernel, 0, text, strlen(text), NULL, 0, NULL);
	free(text);
	json_decref(news);
}

void cell__session_tell_packages(struct cell_engine *engine, struct cell_space *space)
{
	for (struct cell_session *session = engine->sessions; session; session = session->next) {
		if (session->space != space || !session->seat)
			continue;
		if (session->seat->ready)
			tell_packages(session->seat);
		else
			session->seat->news = true;
	}
}

/* ---- what MCP servers of its space say ---- */

struct cell_session *cell__session_of(struct cell_engine *engine, const struct cell_space *space, const char *id)
{
	struct cell_session *found = NULL;
	for (struct cell_session *session = engine->sessions; session; session = session->next) {
		if (session->space != space || session->closing)
			continue;
		if (id && strcmp(session->id, id) == 0)
			return session;
		if (!id && found)
			return NULL;
		found = session;
	}
	return id ? NULL : found;
}

bool cell__session_takes_questions(const struct cell_session *session)
{
	return session->takes_questions && session->seat && !session->closing;
}

bool cell__session_any_takes_questions(struct cell_engine *engine, const struct cell_space *space)
{
	for (const struct cell_session *session = engine->sessions; session; session = session->next)
		if (session->space == space && session->takes_questions && !session->closing)
			return true;
	return false;
}

void cell__session_ask(struct cell_session *session, struct cell__call *question)
{
	cell__gate_ask(&session->seat->gate, question);
}

void cell__session_tell(struct cell_session *session, enum cell_event_type type, const struct cell__call *call,
			const char *tool, const char *json)
{
	if (session->seat)
		cell__gate_tell(&session->seat->gate, type, call, tool, json);
}

static void handle_ready(void *owner)
{
	struct seat *seat = owner;
	struct cell_session *session = seat->session;
	seat->ready = true;
	if (seat->leaving)
		return;
	if (session->confined && session->confine.wall_ms)
		uv_timer_start(&session->wall, handle_wall, session->confine.wall_ms, 0);
	if (seat->news)
		tell_packages(seat);
	advance(session);
}

/* The run that this kernel works on, also while it is being killed under it. */
static struct cell__run *run_on(const struct seat *seat)
{
	struct cell__run *run = seat->session->current;
	return run && run->started && !run->ending && seat->session->running_on == seat ? run : NULL;
}

/* A limit that the host itself keeps was passed: as with a timeout, interrupt, grace, kill. */
static void stop_run(struct cell_session *session, struct cell__run *run, const char *limit, uint64_t max, uint64_t used)
{
	if (run->timed_out || !session->seat)
		return;
	run->over_used = used;
	if (run->over)
		return;
	run->over = limit;
	run->over_max = max;
	session->executor->interrupt(session->seat->kernel, run->id);
	uv_timer_start(&session->timer, handle_timer, (uint64_t)session->grace_ms, 0);
}

/* The kernel has lived as long as it may. */
static void handle_wall(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	struct cell__run *run = session->current;
	if (!session->seat)
		return;
	if (run && run->started && !run->ending && session->running_on == session->seat) {
		run->over = "wall_time";
		run->over_max = run->over_used = session->confine.wall_ms;
	}
	leave_seat(session, 0);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct seat *seat = owner;
	struct cell_session *session = seat->session;
	struct cell__run *run = run_on(seat);
	if (run) {
		cell__run_output(run, session->engine->spill_dir, stream, bytes, size);
		if (session->confined && session->confine.output_bytes && run->text.total > session->confine.output_bytes)
			stop_run(session, run, "output", session->confine.output_bytes, run->text.total);
		if (!seat->leaving)
			update_pause(session);
	} else if (session->on_event && !session->closing) {
		struct cell_event event = { .type = CELL_EVENT_CHUNK, .stream = stream, .data = bytes, .size = size };
		session->on_event(session->event_arg, &event);
	}
}

static void handle_tool_image(void *owner, const void *bytes, size_t size)
{
	struct cell__run *run = run_on(owner);
	if (run)
		cell__run_tool_image(run, bytes, size);
}

static void handle_display(void *owner, const struct cell__bundle *bundle)
{
	struct seat *seat = owner;
	struct cell_session *session = seat->session;
	struct cell__run *run = run_on(seat);
	if (run) {
		cell__run_display(run, bundle);
		if (!seat->leaving)
			update_pause(session);
	} else if (session->on_event && !session->closing) {
		struct cell_event event = { .type = CELL_EVENT_DISPLAY, .parts = bundle->parts, .n_parts = bundle->n_parts };
		session->on_event(session->event_arg, &event);
	}
}

static void handle_result(void *owner, uint32_t run_id, const struct cell__answer *answer)
{
	struct seat *seat = owner;
	struct cell_session *session = seat->session;
	struct cell__run *run = run_on(seat);
	if (seat->leaving)
		return; /* too late: it is being killed, and the run ends with that */
	if (!run || run->id != run_id) {
		seat->violation = "a result for a run that does not exist";
		session->executor->close(seat->kernel, 0);
		return;
	}
	uv_timer_stop(&session->timer);
	end_answered(run, seat->gate.refused > 0, answer);
}

static const char *handle_call(void *owner, uint32_t id, const char *json, size_t json_size, const void *raw,
			       size_t raw_size)
{
	struct seat *seat = owner;
	return cell__calls_handle(&seat->calls, id, json, json_size, raw, raw_size);
}

static void end_opening(struct cell_session *session, const struct cell_error *err);

static void handle_exited(void *owner, const struct cell__exit *how)
{
	struct seat *seat = owner;
	struct cell_session *session = seat->session;
	struct cell__run *run = run_on(seat);
	bool was_current = session->seat == seat;
	if (was_current) {
		end_calls(seat);
		session->seat = NULL;
		uv_timer_stop(&session->wall);
	} else {
		cell__calls_cancel(&seat->calls); /* those of its exit handlers */
		cell__gate_drop_questions(&seat->gate);
		session->leaving--;
	}
	if (how->error.code == CELL_E_SPAWNER)
		session->broken = how->error;
	if (run) {
		uv_timer_stop(&session->timer);
		end_dead(run, seat, how);
	} else if (was_current && !seat->ready) {
		struct cell_error err = how->error;
		char message[320];
		if (err.code == 0) {
			describe_death(how, seat->violation, message, sizeof message);
			cell_fail(&err, CELL_E_KERNEL, 0, "%.200s before it was ready", message);
		}
		end_opening(session, &err);
	} else if (was_current && session->on_event && !session->closing) {
		char message[320];
		describe_death(how, seat->violation, message, sizeof message);
		struct cell_event event = { .type = CELL_EVENT_KERNEL_DIED, .message = message };
		session->on_event(session->event_arg, &event);
	}
	free(seat);
	advance(session);
}

static int handle_connection(void *owner, const struct cell__egress_event *event, struct cell_error *err)
{
	struct cell_session *session = ((struct seat *)owner)->session;
	if (!session->audit)
		return 0;
	return cell__audit_connection(cell__audit_of(session->audit), session->id, session->cell_hash, session->executor->name,
				      event, err);
}

static const struct cell__kernel_events kernel_events = {
	.connection = handle_connection,
	.ready = handle_ready,
	.output = handle_output,
	.display = handle_display,
	.result = handle_result,
	.call = handle_call,
	.exited = handle_exited,
};

/* ---- going on ---- */

static void end_waiting(struct waiting *waiting, const struct cell_error *err)
{
	waiting->failed = err != NULL;
	if (err)
		waiting->err = *err;
	if (waiting->done)
		waiting->done(waiting);
	else
		cell__waiter_signal(&waiting->waiter);
}

static void end_resets(struct cell_session *session, const struct cell_error *err)
{
	struct waiting *waiting = cell__take_ptr(session->resets);
	while (waiting) {
		struct waiting *next = waiting->next;
		end_waiting(waiting, err);
		waiting = next;
	}
}

/* A kernel that was wanted could not be had. */
static void end_opening(struct cell_session *session, const struct cell_error *err)
{
	struct cell__run *run = session->current;
	end_resets(session, err);
	if (run && !run->ending)
		fail_run(run, err);
}

static void handle_timer(uv_timer_t *timer)
{
	struct cell_session *session = timer->data;
	struct cell__run *run = session->current;
	if (!run || !run->started || run->ending || !session->seat)
		return;
	if (run->over || run->cancelled) {
		leave_seat(session, 0);
	} else if (!run->timed_out) {
		run->timed_out = true;
		session->executor->interrupt(session->seat->kernel, run->id);
		uv_timer_start(&session->timer, handle_timer, (uint64_t)session->grace_ms, 0);
	} else {
		leave_seat(session, 0);
	}
}

static void start_run(struct cell_session *session)
{
	struct cell__run *run = session->current;
	struct cell_error err;
	session->executor->look(session->seat->kernel);
	session->running_on = session->seat;
	session->seat->gate.refused = 0;
	session->parked_before = session->seat->gate.n_parked;
	session->clock_stopped = false;
	session->cell_hash[0] = '\0';
	if (session->audit)
		(void)cell__sha256_hex(run->code, run->size, session->cell_hash); /* without one the record says null */
	if (session->executor->receipt_of) {
		run->result->own_isolation = cell__strdup(session->executor->receipt_of(session->seat->kernel));
		if (run->result->own_isolation)
			run->result->isolation = run->result->own_isolation;
	}
	run->started = true;
	run->started_us = cell__now_us();
	if (session->executor->run(session->seat->kernel, run->id, run->code, run->size, &err) < 0) {
		fail_run(run, &err);
		return;
	}
	free(cell__take_ptr(run->code));
	if (run->interrupt_asked)
		session->executor->interrupt(session->seat->kernel, run->id);
	int64_t patience_ms = run->cancelled ? session->grace_ms : run->timeout_ms;
	if (patience_ms >= 0) {
		uv_update_time(&session->engine->loop.uv);
		uv_timer_start(&session->timer, handle_timer, (uint64_t)patience_ms, 0);
	}
}

static void free_session(struct cell_session *session)
{
	free(session->remote_url);
	free(session->remote_token);
	free(session->remote_workspace);
	free(session->remote_ca);
	free(session->container);
	free(session->python);
	free(session->preload);
	free(session->kernel);
	free(session->jupyter_path);
	free(session->cwd);
	cell__image_folder_finish(&session->images);
	if (session->confined)
		cell__policy_finish(&session->confine);
	for (char **e = session->env; e && *e; e++)
		free(*e);
	free(session->env);
	while (session->remembered) {
		struct cell__remembered *next = session->remembered->next;
		free(session->remembered);
		session->remembered = next;
	}
	free(session);
}

static void handle_session_closed(uv_handle_t *handle)
{
	struct cell_session *session = handle->data;
	void (*closed)(void *) = session->closed;
	void *arg = session->closed_arg;
	if (session->space)
		cell__space_unref(session->space);
	free_session(session);
	closed(arg);
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
	if (session->seat || session->leaving > 0 || session->current || session->stopping > 0 ||
	    uv_is_closing((uv_handle_t *)&session->approval_timer))
		return;
	for (struct cell_session **at = &session->engine->sessions; *at; at = &(*at)->next)
		if (*at == session) {
			*at = session->next;
			break;
		}
	uv_close((uv_handle_t *)&session->approval_timer, handle_approval_timer_closed);
}

/* Fails what waits in the queue. */
static void flush_queue(struct cell_session *session, const struct cell_error *err)
{
	while (session->first && !session->current) {
		struct cell__run *run = session->first;
		session->first = run->next;
		if (!session->first)
			session->last = NULL;
		session->queued--;
		fail_run(run, err); /* nothing was written, so it is delivered from inside */
	}
}

/* Does whatever can be done now.  Called after every change. */
static void advance(struct cell_session *session)
{
	struct cell_error err = { 0 };
	if (session->closing) {
		cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed");
		end_resets(session, &err);
		flush_queue(session, &err);
		finish_close(session);
		return;
	}
	if (session->broken.code) {
		end_resets(session, &session->broken);
		flush_queue(session, &session->broken);
		return;
	}
	if (session->resets && !session->seat && session->leaving == 0 && open_seat(session, &err) < 0)
		end_resets(session, &err);
	if (session->resets && session->leaving == 0 && session->stopping == 0 && session->seat && session->seat->ready)
		end_resets(session, NULL);
	if (!session->current && session->first) {
		session->current = session->first;
		session->first = session->current->next;
		if (!session->first)
			session->last = NULL;
		session->queued--;
		session->current->next = NULL;
	}
	struct cell__run *run = session->current;
	if (!run || run->started || run->ending)
		return;
	if (!session->seat && open_seat(session, &err) < 0)
		fail_run(run, &err);
	else if (session->seat->ready)
		start_run(session);
}

/* ---- requests, on the loop's thread ---- */

static void do_open(struct cell__task *task)
{
	struct waiting *waiting = (struct waiting *)task;
	struct cell_session *session = waiting->session;
	uv_timer_init(&session->engine->loop.uv, &session->timer);
	session->timer.data = session;
	uv_timer_init(&session->engine->loop.uv, &session->approval_timer);
	session->approval_timer.data = session;
	uv_timer_init(&session->engine->loop.uv, &session->wall);
	session->wall.data = session;
	session->next = session->engine->sessions;
	session->engine->sessions = session;
	if (session->space)
		cell__space_ref(session->space);
	waiting->next = session->resets;
	session->resets = waiting; /* opening is a reset from nothing */
	advance(session);
}

static void handle_servers_stopped(void *arg)
{
	struct cell_session *session = arg;
	session->stopping--;
	advance(session);
}

static void do_reset(struct cell__task *task)
{
	struct waiting *waiting = (struct waiting *)task;
	struct cell_session *session = waiting->session;
	if (session->seat) {
		bool running = session->current && session->current->started && !session->current->ending;
		uv_timer_stop(&session->timer);
		leave_seat(session, running ? 0 : CLOSE_GRACE_MS);
	}
	waiting->next = session->resets;
	session->resets = waiting;
	struct cell_error err;
	/* The new kernel comes up while the old one goes. */
	if (!session->closing && !session->broken.code && open_seat(session, &err) < 0)
		end_resets(session, &err);
	/* What its code had started goes too, and comes back with its first use; others' servers are theirs. */
	if (session->space && !session->closing && cell__space_is_alone(session->space)) {
		session->stopping++;
		cell__space_stop_servers(session->space, handle_servers_stopped, session);
	}
	advance(session);
}

static void do_interrupt(void *arg)
{
	struct cell_session *session = arg;
	struct cell__run *run = session->current;
	if (!run || run->ending)
		return;
	run->interrupt_asked = true;
	if (run->started && session->seat)
		session->executor->interrupt(session->seat->kernel, run->id);
}

struct cancelling {
	struct cell_session *session;
	uint64_t id;
};

static void do_cancel(void *arg)
{
	struct cancelling *cancelling = arg;
	struct cell_session *session = cancelling->session;
	struct cell__run *run = session->current;
	if (run && run->id == cancelling->id) {
		if (run->ending || run->cancelled)
			return;
		run->cancelled = run->interrupt_asked = true;
		if (!run->started || !session->seat || run->timed_out || run->over)
			return; /* it ends in another way already, or will be stopped when it starts */
		session->executor->interrupt(session->seat->kernel, run->id);
		uv_update_time(&session->engine->loop.uv);
		uv_timer_start(&session->timer, handle_timer, (uint64_t)session->grace_ms, 0);
		return;
	}
	struct cell__run *before = NULL;
	for (run = session->first; run && run->id != cancelling->id; run = run->next)
		before = run;
	if (!run)
		return;
	*(before ? &before->next : &session->first) = run->next;
	if (session->last == run)
		session->last = before;
	session->queued--;
	(void)cell__result_set_error(run->result, CELL_OUT_INTERRUPTED, "KeyboardInterrupt",
				     "the cell was cancelled before it began", "");
	cell__run_end(run, true);
}

static void do_submit(struct cell__task *task)
{
	struct cell__run *run = (struct cell__run *)task;
	struct cell_session *session = run->session;
	session->engine->loop.busy += keeps_loop_busy(run);
	if (session->queued >= CELL_LIMIT_QUEUE) {
		struct cell_error err;
		cell_fail(&err, CELL_E_LIMIT, 0, "more than %u cells wait in this session", CELL_LIMIT_QUEUE);
		fail_run(run, &err);
		return;
	}
	run->next = NULL;
	if (session->last)
		session->last->next = run;
	else
		session->first = run;
	session->last = run;
	session->queued++;
	advance(session);
}

void cell__session_close(struct cell_session *session, void (*done)(void *arg), void *arg)
{
	session->closed = done;
	session->closed_arg = arg;
	session->closing = true;
	uv_timer_stop(&session->timer);
	if (session->seat) {
		bool running = session->current && session->current->started && !session->current->ending;
		leave_seat(session, running ? 0 : CLOSE_GRACE_MS);
	}
	if (session->current && !session->current->started && !session->current->ending) {
		struct cell_error err;
		cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed");
		fail_run(session->current, &err); /* goes on to advance() */
		return;
	}
	advance(session);
}

/* ---- options ---- */

static int copy_env(struct cell_session *session, const char *const *extra, struct cell_error *err)
{
	size_t n_extra = 0;
	while (extra && extra[n_extra]) {
		const char *equals = strchr(extra[n_extra], '=');
		if (!equals || equals == extra[n_extra])
			return cell_fail(err, CELL_E_INVALID, 0, "environment entry \"%.80s\" is not K=V", extra[n_extra]);
		if (!cell__utf8_ok(extra[n_extra], strlen(extra[n_extra])))
			return cell_fail(err, CELL_E_INVALID, 0, "environment entry %.*s is not UTF-8",
					 (int)(equals - extra[n_extra]), extra[n_extra]);
		n_extra++;
	}
	session->env = cell__alloc(n_extra + 4, sizeof *session->env);
	if (!session->env)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	/* The interpreter's own folder first, so that a venv's programs are found. */
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, home = CELL_BUF_INIT;
	const char *slash = strrchr(session->python, '/');
	int dir = slash ? (int)(slash - session->python) : 0;
	bool usual = dir == 0 || (dir == 8 && strncmp(session->python, "/usr/bin", 8) == 0);
	int rc = cell__buf_printf(&path, "PATH=%.*s%s/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				  usual ? 0 : dir, session->python, usual ? "" : ":");
	rc |= cell__buf_printf(&home, "HOME=%s", cell__home_dir());
	if (rc == 0) {
		session->env[0] = cell__buf_take(&path);
		session->env[1] = cell__buf_take(&home);
		session->env[2] = cell__strdup("LANG=C.UTF-8");
	}
	for (size_t i = 0; i < n_extra && session->env[i + 2]; i++)
		session->env[i + 3] = cell__strdup(extra[i]);
	return session->env[n_extra + 2] ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

static int copy_cwd(struct cell_session *session, const char *given, struct cell_error *err)
{
	char here[PATH_MAX];
	struct stat st;
	if ((!given || given[0] != '/') && !getcwd(here, sizeof here))
		return cell_fail(err, CELL_E_INVALID, errno, "the current working directory");
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s%s%s", given && given[0] == '/' ? "" : here, given && given[0] != '/' ? "/" : "",
			     given ? given : "") < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	session->cwd = cell__buf_take(&path);
	if (stat(session->cwd, &st) < 0)
		return cell_fail(err, CELL_E_INVALID, errno, "working directory %.160s", session->cwd);
	if (!S_ISDIR(st.st_mode))
		return cell_fail(err, CELL_E_INVALID, 0, "working directory %.160s is not a directory", session->cwd);
	return 0;
}

static int copy_gate(struct cell_session *session, const struct cell_session_options *opts, struct cell_error *err)
{
	const unsigned all = CELL_GATE_TOOLS | CELL_GATE_SHELL | CELL_GATE_INSTALLS | CELL_GATE_WORKFLOWS;
	const unsigned calls = opts->gate & all;
	if (opts->gate & ~(all | CELL_GATE_QUESTIONS))
		return cell_fail(err, CELL_E_INVALID, 0, "gate is 0x%x, expected CELL_GATE_* only", opts->gate);
	if (opts->approval_timeout_ms < -1 || opts->approval_timeout_ms == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "approval_timeout_ms is %lld, expected more than 0, or -1 for none",
				 (long long)opts->approval_timeout_ms);
	session->policy = opts->policy;
	session->audit = opts->audit;
	if (opts->policy)
		session->gate_kinds = calls ? calls : cell__policy_kinds(opts->policy);
	session->takes_questions = opts->gate & CELL_GATE_QUESTIONS || (opts->policy && cell__policy_can_ask(opts->policy));
	if (opts->require_shell_escape && !(session->gate_kinds & CELL_GATE_SHELL))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "require_shell_escape needs a policy and a gate with shell commands in it");
	session->approval_timeout_ms = opts->approval_timeout_ms;
	session->approval_stops_clock = opts->approval_stops_clock != 0;
	session->require_shell_escape = opts->require_shell_escape != 0;
	session->restore_cwd = opts->restore_cwd != 0;
	session->portable = opts->portable_values != 0;
	session->next_call_id = 1;
	return 0;
}

static int copy_confinement(struct cell_session *session, const struct cell_session_options *opts, struct cell_error *err)
{
	if (session->executor != &cell__sandbox_executor) {
		if (opts->sandbox_policy || opts->workspace_mode)
			return cell_fail(err, CELL_E_INVALID, 0, "sandbox policy and workspace mode are for the executor \"sandbox\", not \"%s\"",
					 session->executor->name);
		return 0;
	}
	if (cell__policy_load(&session->confine, opts->sandbox_policy ? opts->sandbox_policy : CELL_POLICY_DEFAULT, err) < 0)
		return -1;
	session->confined = true;
	return opts->workspace_mode ? cell__workspace_from_word(opts->workspace_mode, &session->confine.workspace, err) : 0;
}

static int copy_network(struct cell_session *session, const char *profile, struct cell_error *err)
{
	static const char *const profiles[] = { "none", "deps-only", "full" };
	if (profile && session->executor != &cell__deno_executor)
		return cell_fail(err, CELL_E_INVALID, 0, "a network profile is for the executor \"deno\", not \"%s\"",
				 session->executor->name);
	for (size_t i = 0; profile && i < sizeof profiles / sizeof *profiles; i++)
		if (strcmp(profile, profiles[i]) == 0)
			session->network = profiles[i];
	if (profile && !session->network)
		return cell_fail(err, CELL_E_INVALID, 0, "network profile \"%.40s\", expected none, deps-only or full", profile);
	return 0;
}

/* Code that could write to the audit log could write what it likes there. */
static int check_audit(struct cell_session *session, struct cell_error *err)
{
	char folder[PATH_MAX], workspace[PATH_MAX], path[PATH_MAX];
	if (!session->audit || !session->confined || session->confine.workspace != CELL_WORKSPACE_RW)
		return 0;
	snprintf(path, sizeof path, "%s", cell__audit_path(cell__audit_of(session->audit)));
	if (!realpath(dirname(path), folder) || !realpath(session->cwd, workspace))
		return 0; /* a folder that is not there is nobody's */
	size_t n = strlen(workspace);
	if (strncmp(folder, workspace, n) == 0 && (folder[n] == '/' || folder[n] == '\0'))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the audit log lies in the workspace %.100s, where the code could change it; put it elsewhere, or "
				 "use --workspace-mode ro",
				 workspace);
	return 0;
}

static int copy_remote(struct cell_session *session, const struct cell_session_options *opts, struct cell_error *err)
{
	const char *const texts[] = { opts->remote_url, opts->remote_token, opts->remote_workspace, opts->remote_ca };
	char **const copies[] = { &session->remote_url, &session->remote_token, &session->remote_workspace,
				 &session->remote_ca };
	bool remote = session->executor == &cell__remote_executor, container = session->executor == &cell__container_executor;
	if (opts->container && !container)
		return cell_fail(err, CELL_E_INVALID, 0, "options of a container are for the executor \"container\", not \"%s\"",
				 session->executor->name);
	if (container && cell__container_describe(opts->container, opts->env, &session->container, err) < 0)
		return -1;
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		if (texts[i] && !remote && !(container && i == 2))
			return cell_fail(err, CELL_E_INVALID, 0, "a server's URL, token, workspace and certificates are for the executor \"remote\", not \"%s\"",
					 session->executor->name);
		if (texts[i] && !(*copies[i] = cell__strdup(texts[i])))
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	session->remote_reopen = opts->remote_reopen != 0;
	return 0;
}

static int copy_options(struct cell_session *session, const struct cell_session_options *opts, struct cell_error *err)
{
	const char *executor = opts->executor ? opts->executor : "subprocess";
	session->executor = cell__executor_find(executor);
	if (!session->executor)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "there is no executor \"%.60s\"; `workcell doctor` lists them",
				 executor);
	if (session->executor->check && session->executor->check(opts, err) < 0)
		return -1;
	if (opts->timeout_ms < -1 || opts->timeout_ms == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "timeout_ms is %lld, expected more than 0, or -1 for none",
				 (long long)opts->timeout_ms);
	if (opts->grace_ms < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "grace_ms is %lld, expected 0 or more", (long long)opts->grace_ms);
	if (opts->max_output_bytes < CELL_LIMIT_MIN_OUTPUT)
		return cell_fail(err, CELL_E_INVALID, 0, "max_output_bytes is %lld, expected %d or more",
				 (long long)opts->max_output_bytes, CELL_LIMIT_MIN_OUTPUT);
	if (copy_gate(session, opts, err) < 0)
		return -1;
	const char *python = opts->python ? opts->python : CELL_DEFAULT_PYTHON;
	if (!opts->python && opts->space)
		python = cell__space_python(opts->space);
	if (python[0] != '/')
		return cell_fail(err, CELL_E_INVALID, 0, "python is \"%.100s\", expected an absolute path", python);
	session->timeout_ms = opts->timeout_ms;
	session->grace_ms = opts->grace_ms;
	session->max_output = (size_t)opts->max_output_bytes;
	session->on_event = opts->on_event;
	session->space = opts->space;
	session->event_arg = opts->event_arg;
	session->python = cell__strdup(python);
	session->preload = cell__strdup(opts->preload ? opts->preload : "");
	session->kernel = opts->kernel ? cell__strdup(opts->kernel) : NULL;
	session->jupyter_path = opts->jupyter_path ? cell__strdup(opts->jupyter_path) : NULL;
	if (!session->python || !session->preload || (opts->kernel && !session->kernel) ||
	    (opts->jupyter_path && !session->jupyter_path))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (opts->kernel && session->executor != &cell__jupyter_executor)
		return cell_fail(err, CELL_E_INVALID, 0, "a kernelspec is for the executor \"jupyter\", not \"%s\"", session->executor->name);
	if (copy_confinement(session, opts, err) < 0 || copy_network(session, opts->network_profile, err) < 0 ||
	    copy_remote(session, opts, err) < 0 || copy_cwd(session, opts->cwd, err) < 0 || check_audit(session, err) < 0 ||
	    cell__image_folder_init(&session->images, opts->images_dir, session->id, err) < 0)
		return -1;
	return copy_env(session, opts->env, err);
}

/* ---- public: any thread ---- */

static int check_thread(struct cell_engine *engine, const char *name, struct cell_error *err)
{
	if (cell__loop_is_current(&engine->loop))
		return cell_fail(err, CELL_E_INVALID, 0, "%s() waits and must not be called from a callback of the engine",
				 name);
	return 0;
}

static int wait_for(struct cell_session *session, void (*fn)(struct cell__task *), struct cell_error *err)
{
	struct waiting waiting = { .task.fn = fn, .session = session };
	cell__waiter_init(&waiting.waiter);
	cell__loop_do(&session->engine->loop, &waiting.task, &waiting.waiter);
	cell__waiter_finish(&waiting.waiter);
	if (waiting.failed && err)
		*err = waiting.err;
	return waiting.failed ? -1 : 0;
}

/* Looks at files: any thread but the loop's. */
static struct cell_session *make_session(struct cell_engine *engine, const struct cell_session_options *opts,
					 struct cell_error *err)
{
	struct cell_session *session = cell__alloc(1, sizeof *session);
	if (!session) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
		return NULL;
	}
	session->engine = engine;
	session->next_run_id = 1;
	cell__random_hex(session->id, 32);
	if (copy_options(session, opts, err) < 0) {
		free_session(session);
		return NULL;
	}
	return session;
}

/* As it is made for callers that wait; it is not open yet. */
static int create(struct cell_engine *engine, const struct cell_session_options *opts, const char *caller,
		  struct cell_session **ret_session, struct cell_error *err)
{
	struct cell_session_options all = CELL_SESSION_OPTIONS_INIT;
	if (opts) {
		if (opts->size < sizeof(size_t) || opts->size > sizeof all)
			return cell_fail(err, CELL_E_INVALID, 0, "cell_session_options.size is %zu, expected up to %zu",
					 opts->size, sizeof all);
		memcpy(&all, opts, opts->size);
	}
	if (check_thread(engine, caller, err) < 0)
		return -1;
	struct cell_session *session = make_session(engine, &all, err);
	if (!session)
		return -1;
	if (all.space && cell__space_sync(all.space, is_deno(session), err) < 0) {
		free_session(session);
		return -1;
	}
	*ret_session = session;
	return 0;
}

int cell_session_open(struct cell_engine *engine, const struct cell_session_options *opts,
		      struct cell_session **ret_session, struct cell_error *err)
{
	struct cell_session *session = NULL;
	if (create(engine, opts, "cell_session_open", &session, err) < 0)
		return -1;
	if (wait_for(session, do_open, err) < 0) {
		cell_session_close(session);
		return -1;
	}
	*ret_session = session;
	return 0;
}

static void handle_prewarmed(void *arg, const struct cell_env_info *info, const struct cell_error *err)
{
	struct waiting *waiting = arg;
	(void)info;
	waiting->failed = err != NULL;
	if (err)
		waiting->err = *err;
	cell__waiter_signal(&waiting->waiter);
}

static void do_prewarm(struct cell__task *task)
{
	struct waiting *waiting = (struct waiting *)task;
	struct cell_session *session = waiting->session;
	struct cell__executor_host *host = &session->engine->host;
	struct cell__sandbox_request *request = NULL;
	struct cell__kernel_spec spec;
	const char *read[2] = { NULL };
	struct cell_error err;
	if (session->executor != &cell__subprocess_executor && session->executor != &cell__sandbox_executor) {
		cell_fail(&err, CELL_E_UNAVAILABLE, 0, "the executor \"%s\" makes no kernels in advance", session->executor->name);
		handle_prewarmed(waiting, NULL, &err);
		return;
	}
	if (fill_spec(session, &spec, read, &err) < 0 ||
	    (session->confined && !(request = cell__sandbox_request_create(host, &spec, &err))) ||
	    cell__subprocess_prewarm(host->subprocess, spec.python, spec.preload, request, handle_prewarmed, waiting, &err) < 0)
		handle_prewarmed(waiting, NULL, &err);
}

int cell_session_prewarm(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_error *err)
{
	struct cell_session *session = NULL;
	if (create(engine, opts, "cell_session_prewarm", &session, err) < 0)
		return -1;
	int rc = wait_for(session, do_prewarm, err);
	free_session(session);
	return rc;
}

/* ---- the same for callers on the loop's thread, which do not wait ---- */

struct asking {
	struct waiting waiting; /* first */
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

static void handle_opened(struct waiting *waiting)
{
	struct asking *asking = (struct asking *)waiting;
	/* Called by advance(), which goes on with the session: it is closed from there. */
	if (waiting->failed)
		cell__session_close(waiting->session, handle_half_open_closed, asking);
	else
		end_asking(asking);
}

static void do_prepare(uv_work_t *work)
{
	struct asking *asking = work->data;
	asking->waiting.session = make_session(asking->engine, &asking->opts, &asking->waiting.err);
}

static void handle_prepared(uv_work_t *work, int status)
{
	struct asking *asking = work->data;
	(void)status;
	if (asking->waiting.session) {
		do_open(&asking->waiting.task);
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

int cell__session_open(struct cell_engine *engine, const struct cell_session_options *opts, cell__session_done done, void *arg,
		       struct cell_error *err)
{
	struct asking *asking = make_asking(engine, done, arg, err);
	if (!asking)
		return -1;
	asking->opts = *opts;
	asking->waiting.done = handle_opened;
	uv_queue_work(&engine->loop.uv, &asking->work, do_prepare, handle_prepared);
	return 0;
}

static void handle_reset(struct waiting *waiting)
{
	end_asking((struct asking *)waiting);
}

int cell__session_reset(struct cell_session *session, cell__session_done done, void *arg, struct cell_error *err)
{
	struct asking *asking = make_asking(session->engine, done, arg, err);
	if (!asking)
		return -1;
	asking->waiting.session = session;
	asking->waiting.done = handle_reset;
	do_reset(&asking->waiting.task);
	return 0;
}

const char *cell_session_id(const struct cell_session *session)
{
	return session->id;
}

struct pid_question {
	struct cell_session *session;
	int64_t pid;
};

static void do_pid(void *arg)
{
	struct pid_question *question = arg;
	struct seat *seat = question->session->seat;
	question->pid = seat ? question->session->executor->pid(seat->kernel) : 0;
}

int64_t cell_session_kernel_pid(struct cell_session *session)
{
	struct pid_question question = { .session = session };
	if (cell__loop_is_current(&session->engine->loop))
		do_pid(&question);
	else
		cell__loop_call(&session->engine->loop, do_pid, &question);
	return question.pid;
}

struct file_question {
	struct cell_session *session;
	char *path;
};

static void do_connection_file(void *arg)
{
	struct file_question *question = arg;
	struct seat *seat = question->session->seat;
	const struct cell__executor *executor = question->session->executor;
	const char *path = seat && seat->ready && executor->connection_file ? executor->connection_file(seat->kernel) : NULL;
	question->path = path ? cell__strdup(path) : NULL;
}

char *cell_session_connection_file(struct cell_session *session)
{
	struct file_question question = { .session = session };
	if (cell__loop_is_current(&session->engine->loop))
		do_connection_file(&question);
	else
		cell__loop_call(&session->engine->loop, do_connection_file, &question);
	return question.path;
}

static struct cell__run *make_run(struct cell_session *session, const char *code, size_t size,
				  const struct cell_run_options *opts, struct cell_error *err)
{
	struct cell_run_options all = CELL_RUN_OPTIONS_INIT;
	if (opts) {
		if (opts->size < sizeof(size_t) || opts->size > sizeof all) {
			cell_fail(err, CELL_E_INVALID, 0, "cell_run_options.size is %zu, expected up to %zu", opts->size,
				  sizeof all);
			return NULL;
		}
		memcpy(&all, opts, opts->size);
	}
	if (all.timeout_ms == 0)
		all.timeout_ms = session->timeout_ms;
	if (all.timeout_ms < -1) {
		cell_fail(err, CELL_E_INVALID, 0, "timeout_ms is %lld, expected more than 0, 0 for the session's, or -1",
			  (long long)all.timeout_ms);
		return NULL;
	}
	if (all.look_us < 0 || all.look_us > CELL_LIMIT_LOOK_US || (all.look_us > 0 && !all.look_end)) {
		cell_fail(err, CELL_E_INVALID, 0, "look_us is %d, expected 0 to %d, and look_end with it", all.look_us,
			  CELL_LIMIT_LOOK_US);
		return NULL;
	}
	if (session->executor->takes_loop)
		all.look_us = 0;
	if (size > CELL_LIMIT_CODE_BYTES) {
		cell_fail(err, CELL_E_LIMIT, 0, "a cell has at most %u bytes, this one %zu", CELL_LIMIT_CODE_BYTES, size);
		return NULL;
	}
	struct cell__run_config config = {
		.loop = &session->engine->loop,
		.session_id = session->id,
		.isolation = session->executor->receipt,
		.max_output = session->max_output,
		.images = &session->images,
		.progress = handle_spill_progress,
		.finished = handle_run_finished,
	};
	struct cell__run *run = cell__run_create(code, size, &all, &config, err);
	if (!run)
		return NULL;
	run->session = session;
	run->task.fn = do_submit;
	do
		run->id = __atomic_fetch_add(&session->next_run_id, 1, __ATOMIC_RELAXED);
	while (run->id == 0); /* 0 means no run */
	return run;
}

static void do_resume(void *arg)
{
	struct cell__run *run = arg;
	if (run->session->current == run)
		update_pause(run->session);
}

static void resume(struct cell__run *run)
{
	cell__loop_call(&run->session->engine->loop, do_resume, run);
}

int cell_session_run(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
		     struct cell_result **ret_result, struct cell_error *err)
{
	if (check_thread(session->engine, "cell_session_run", err) < 0)
		return -1;
	struct cell__run *run = make_run(session, code, size, opts, err);
	if (!run)
		return -1;
	run->waited = true;
	run->waiter.lent = session->executor->takes_loop;
	struct cell_result *result = cell__run_wait(run, &session->engine->loop, resume);
	cell__run_destroy(run);
	/* Our failure is an error, not an outcome of the code. */
	if (result->failed && result->outcome.code < CELL_OUT_EXCEPTION) {
		cell_fail(err, result->outcome.code, 0, "%s", result->outcome.message);
		cell_result_destroy(result);
		return -1;
	}
	*ret_result = result;
	return 0;
}

int cell_session_start(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
		       uint64_t *ret_run_id, struct cell_error *err)
{
	struct cell__run *run = make_run(session, code, size, opts, err);
	if (!run)
		return -1;
	uint64_t id = run->id; /* the run may be over before we return */
	cell__loop_drive(&session->engine->loop, &run->task, run->look_end, run->look_us);
	if (ret_run_id)
		*ret_run_id = id;
	return 0;
}

int cell__session_start(struct cell_session *session, const char *code, size_t size, const struct cell_run_options *opts,
			uint64_t *ret_run_id, struct cell_error *err)
{
	struct cell__run *run = make_run(session, code, size, opts, err);
	if (!run)
		return -1;
	*ret_run_id = run->id;
	do_submit(&run->task);
	return 0;
}

void cell__session_hold(struct cell_session *session, uint64_t run_id, bool held)
{
	struct cell__run *run = session->current;
	if (!run || run->id != run_id)
		return;
	run->held = held;
	update_pause(session);
}

int cell_session_interrupt(struct cell_session *session, struct cell_error *err)
{
	(void)err;
	if (cell__loop_is_current(&session->engine->loop))
		do_interrupt(session);
	else
		cell__loop_call(&session->engine->loop, do_interrupt, session);
	return 0;
}

int cell_session_cancel(struct cell_session *session, uint64_t run_id, struct cell_error *err)
{
	struct cancelling cancelling = { .session = session, .id = run_id };
	(void)err;
	if (cell__loop_is_current(&session->engine->loop))
		do_cancel(&cancelling);
	else
		cell__loop_call(&session->engine->loop, do_cancel, &cancelling);
	return 0;
}

int cell_session_reset(struct cell_session *session, struct cell_error *err)
{
	if (check_thread(session->engine, "cell_session_reset", err) < 0)
		return -1;
	return wait_for(session, do_reset, err);
}

static void handle_closed(void *arg)
{
	struct waiting *waiting = arg;
	cell__waiter_signal(&waiting->waiter);
}

static void do_close(struct cell__task *task)
{
	struct waiting *waiting = (struct waiting *)task;
	cell__session_close(waiting->session, handle_closed, waiting);
}

void cell_session_close(struct cell_session *session)
{
	if (!session)
		return;
	if (check_thread(session->engine, "cell_session_close", NULL) < 0)
		abort(); /* misuse: waiting here for ourselves would hang for ever */
	(void)wait_for(session, do_close, NULL);
}

/* ---- approvals ---- */

struct answering {
	struct cell_session *session;
	uint64_t id;
	const struct cell_approval_answer *answer; /* NULL: list them */
	json_t *list;
	struct cell_error err;
	int rc;
};

static void do_answer(void *arg)
{
	struct answering *answering = arg;
	struct seat *seat = answering->session->seat;
	if (!answering->answer)
		answering->list = seat ? cell__gate_list(&seat->gate) : json_array();
	else if (seat)
		answering->rc = cell__gate_answer(&seat->gate, answering->id, answering->answer, &answering->err);
	else if (answering->id != 0)
		answering->rc = cell_fail(&answering->err, CELL_E_NOT_FOUND, 0, "request %llu is gone with its kernel",
					  (unsigned long long)answering->id);
}

static void ask_loop(struct answering *answering)
{
	struct cell__loop *loop = &answering->session->engine->loop;
	if (cell__loop_is_current(loop))
		do_answer(answering);
	else
		cell__loop_call(loop, do_answer, answering);
}

int cell_session_answer(struct cell_session *session, uint64_t id, const struct cell_approval_answer *answer,
			struct cell_error *err)
{
	struct cell_approval_answer all = CELL_APPROVAL_ANSWER_INIT;
	if (answer->size < sizeof(size_t) || answer->size > sizeof all)
		return cell_fail(err, CELL_E_INVALID, 0, "cell_approval_answer.size is %zu, expected up to %zu", answer->size,
				 sizeof all);
	memcpy(&all, answer, answer->size);
	if (all.args && (!all.accept || id == 0))
		return cell_fail(err, CELL_E_INVALID, 0, "edited arguments go with the acceptance of one request");
	if (all.reason && !cell__utf8_ok(all.reason, strlen(all.reason)))
		return cell_fail(err, CELL_E_INVALID, 0, "the reason is not UTF-8");
	struct answering answering = { .session = session, .id = id, .answer = &all };
	ask_loop(&answering);
	if (answering.rc < 0 && err)
		*err = answering.err;
	return answering.rc;
}

int cell_session_approvals(struct cell_session *session, char **ret_json, struct cell_error *err)
{
	struct answering answering = { .session = session };
	ask_loop(&answering);
	char *text = answering.list ? json_dumps(answering.list, JSON_COMPACT) : NULL;
	json_decref(answering.list);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*ret_json = text;
	return 0;
}
