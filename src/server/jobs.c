/*
 * Cells on their way through the server.
 *
 *     job:  waiting (for a free running slot, and for earlier ones of its session) ──▶ running ──▶ ended
 *
 * A job answers the request that waits for it, or keeps its events for readers (events.c).  If the slowest reader is more than
 * HOLD_BYTES behind, the kernel is held.  A reader that comes too late is told of the gap.  The result is the last event.
 */
#include "server/pool.h"

#include <stdio.h>
#include <string.h>

#define HOLD_BYTES (1u << 20)

static void start_waiting(struct cell_server *server);

/* ---- jobs ---- */

void cell__job_unref(struct cell__job *job)
{
	if (--job->refs)
		return;
	cell__events_finish(&job->events);
	free(job->code);
	free(job->line);
	cell__trace_destroy(job->trace);
	free(job);
}

/* The session's reference is given up; the caller has another. */
static void unkeep(struct cell__served *served, struct cell__job *job)
{
	struct cell__job **at = &served->kept;

	while (*at && *at != job)
		at = &(*at)->kept_next;
	if (!*at)
		return;
	*at = job->kept_next;
	job->refs--;
}

/* The oldest ended jobs go when a session or the server has too many. */
static void forget_ended(struct cell_server *server, struct cell__job *job)
{
	struct cell__job **at = &server->ended_first, *before = NULL;

	while (*at && *at != job) {
		before = *at;
		at = &(*at)->ended_next;
	}
	if (!*at)
		return;
	*at = job->ended_next;
	if (server->ended_last == job)
		server->ended_last = before;
	cell__events_forget(&job->events);
	if (job->served)
		unkeep(job->served, job);
	cell__job_unref(job);
}

static void keep_ended(struct cell_server *server, struct cell__job *job)
{
	struct cell__job *oldest = NULL;
	unsigned ended = 0;

	job->ended_next = NULL;
	if (server->ended_last)
		server->ended_last->ended_next = job;
	else
		server->ended_first = job;
	server->ended_last = job;
	cell__events_keep(&job->events);
	job->refs++;
	for (struct cell__job *at = job->served->kept; at; at = at->kept_next) {
		if (at->state == CELL_JOB_ENDED) {
			ended++;
			oldest = at;
		}
	}
	if (ended > CELL_SERVER_MAX_RUNS_KEPT)
		forget_ended(server, oldest);
	while ((int64_t)server->ended_bytes > server->limits.kept_bytes / cell__pool_size(server) &&
	       server->ended_first != server->ended_last)
		forget_ended(server, server->ended_first);
}

void cell__jobs_forget(struct cell__served *served)
{
	struct cell__job *job;

	while ((job = served->kept)) {
		job->refs++;
		forget_ended(served->server, job);
		unkeep(served, job);
		job->served = NULL;
		cell__job_unref(job);
	}
}

struct cell__job *cell__job_find(struct cell__served *served, const char *number)
{
	char *end;
	unsigned long long wanted = strtoull(number, &end, 10);
	struct cell__job *job = served->kept;

	if (*end || *number < '0' || *number > '9')
		return NULL;
	while (job && job->number != wanted)
		job = job->kept_next;
	return job;
}

/* ---- events ---- */

static void handle_moved(struct cell__events *events)
{
	struct cell__job *job = (struct cell__job *)events;
	bool held = events->behind_bytes > HOLD_BYTES && job->state == CELL_JOB_RUNNING;

	if (held != job->held && job->served && job->served->session) {
		job->held = held;
		cell__session_hold(job->served->session, job->run_id, held);
	}
}

static void handle_reader_gone(struct cell__events *events)
{
	struct cell__job *job = (struct cell__job *)events;

	if (job->form && job->form->stops && job->state == CELL_JOB_RUNNING && !events->n_readers && job->served->session)
		cell_session_interrupt(job->served->session, NULL);
	cell__job_unref(job);
}

/* Memory that is gone costs an event, and the reader sees that a number is missing. */
static struct cell__events_item *add_event(struct cell__job *job, const char *type, const char *json, size_t size)
{
	return cell__events_add(&job->events, type, json, size);
}

/* The substitute for a missing result: the cell did not run, or out of memory. */
static char *failure_json(const struct cell_error *err)
{
	json_t *failure = json_pack("{s:n,s:n,s:{},s:s,s:s,s:s,s:{s:s,s:s,s:s,s:s},s:[],s:[],s:f,s:s}", "value", "repr", "mime", "stdout",
				    "", "stderr", "", "text", "", "error", "code", cell_code_word(err->code), "type", "", "message",
				    err->msg, "traceback", "", "images", "displays", "duration_ms", 0.0, "state", "lost");
	char *text = failure ? json_dumps(failure, JSON_COMPACT) : NULL;

	json_decref(failure);
	return text;
}

static void add_result(struct cell__job *job, const struct cell_result *result, const struct cell_error *err)
{
	static const char none[] = "{\"error\":{\"code\":\"no_memory\",\"message\":\"out of memory for the result\"}}";
	CELL_AUTO_FREE char *json = result ? cell_result_json(result) : failure_json(err);
	size_t size = json ? strlen(json) : sizeof(none) - 1;
	struct cell__events_item *event = add_event(job, "result", json ? json : none, size);

	/* "...data: JSON\n\n" */
	if (event) {
		job->result = event->text + event->size - 2 - size;
		job->result_size = size;
	}
}

/* ---- beginnings and ends ---- */

/*
 * Nothing was done, and the session is or will be elsewhere, or wakes when its storage answers: whoever asks again finds it.  *ret_busy says so.
 */
static bool may_come_again(const struct cell__served *served, const struct cell_result *result, const struct cell_error *err,
			   struct cell_error *ret_busy)
{
	const struct cell_server *server = served->server;
	const struct cell_outcome *outcome = result && cell__result_is_unbegun(result) ? cell_result_error(result) : NULL;
	int code = err ? err->code : outcome ? outcome->code : 0;
	bool is_away = code == CELL_E_CLOSED && (served->asleep || server->stopping);

	if (!cell__served_can_move(server) || served->context || (!is_away && code != CELL_E_STORAGE && code != CELL_E_CONFLICT))
		return false;
	cell_fail(ret_busy, CELL_E_BUSY, 0, "%.200s: try again", err ? err->msg : outcome->message);
	return true;
}

/* result NULL: it never ran, err has the reason. */
static void job_ended(struct cell__job *job, struct cell_result *result, const struct cell_error *err)
{
	struct cell_server *server = job->server;
	struct cell__served *served = job->served;
	struct cell__request *waiter = cell__take_ptr(job->waiter);
	struct cell__trace_place place = { &server->tracing, served->id, served->owner, &served->link, &served->last };
	struct cell_error busy;
	bool is_refused = may_come_again(served, result, err, &busy);

	server->counts.runs++;
	server->counts.runs_failed += !result || cell_result_error(result);
	if (job->state == CELL_JOB_RUNNING) {
		cell__pool_free_slot(server);
		served->running = NULL;
		cell__metrics_observe(&server->counts.run_s, (double)(cell__now_us() - job->started_us) / 1e6);
	}
	served->account->use->runs--;
	cell__session_log_ended(served->log, job->number, result);
	cell__history_ended(served->history, job->number, result, err);
	cell__trace_ended(&place, job->trace, result);
	if (served->history && result)
		cell__served_set_receipt(served, cell_result_isolation_json(result));
	job->state = CELL_JOB_ENDED;
	job->held = false;
	served->jobs--;
	served->cells++;
	served->used_us = cell__now_us();
	if (waiter)
		waiter->cancel = NULL;
	if (waiter && is_refused) {
		cell__answer_moving(waiter, busy.msg);
	} else if (waiter && result) {
		job->answer(waiter, result);
	} else if (waiter) {
		cell__answer_error(waiter, err);
	} else {
		if (result && served->session)
			cell__result_tell_state(result, served->session);
		if (job->form)
			job->form->ended(job, result, err);
		else
			add_result(job, is_refused ? NULL : result, is_refused ? &busy : err);
		keep_ended(server, job);
		cell__events_end(&job->events);
	}
	cell_result_destroy(result);
	cell__job_unref(job);
	cell__jobs_advance(server);
	cell__fusion_advance(server);
	if (server->draining)
		cell__pool_tell_all(server);
	if (server->batches)
		cell__batches_advance(server);
}

static void count_event(struct cell__counts *counts, const struct cell_event *event)
{
	const char *decision = event->decision ? event->decision : "";

	if (event->type == CELL_EVENT_CALL_ENDED && event->call && !strcmp(event->call->kind, "tool")) {
		counts->calls++;
		counts->calls_failed += strcmp(decision, "ok") != 0;
		counts->calls_s += event->duration_ms / 1e3;
	} else if (event->type == CELL_EVENT_APPROVAL) {
		counts->approvals++;
	} else if (event->type == CELL_EVENT_APPROVAL_ENDED) {
		counts->approvals_accepted += !strcmp(decision, "accepted") || !strcmp(decision, "edited");
		counts->approvals_rejected += !strcmp(decision, "rejected");
		counts->approvals_expired += !strcmp(decision, "expired");
	}
}

static void handle_event(void *arg, const struct cell_event *event)
{
	struct cell__job *job = arg;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	bool is_chunk = event->type == CELL_EVENT_CHUNK;
	const char *type = NULL;

	if (event->type == CELL_EVENT_RESULT) {
		job_ended(job, event->result, NULL);
		return;
	}
	count_event(&job->server->counts, event);
	cell__trace_event(&job->server->tracing, job->trace, event);
	if (is_chunk) {
		cell__session_log_chunk(job->served->log, job->number, event);
		cell__history_chunk(job->served->history, job->number, event);
	}
	/* Once for the readers of the run and of the session. */
	if ((job->streams && !job->form) || (job->served->history && !is_chunk))
		type = cell__event_json(event, &json);
	if (type && !is_chunk)
		cell__history_add(job->served->history, job->number, type, &json);
	if (!job->streams)
		return;
	if (job->form) {
		job->form->event(job, event);
		return;
	}
	if (type)
		(void)add_event(job, type, json.data, json.size);
}

/* A slot is taken for it. */
static void job_start(struct cell__job *job)
{
	struct cell__served *served = job->served;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	CELL_AUTO_FREE char *code = cell__take_ptr(job->code);
	struct cell_error err;

	job->refs++; /* it may end at once: its kernel cannot be started */
	job->state = CELL_JOB_RUNNING;
	served->running = job;
	job->started_us = cell__now_us();
	cell__metrics_observe(&job->server->counts.wait_s, (double)(job->started_us - job->begun_us) / 1e6);
	cell__session_log_begin(served->log, job->number, job->line);
	cell__history_begin(served->history, job->number, code, job->code_size);
	cell__trace_started(job->trace);
	options.timeout_ms = job->timeout_ms;
	options.on_event = handle_event;
	options.event_arg = job;
	options.traceparent = *job->traceparent ? job->traceparent : NULL;
	options.call_spans = job->trace != NULL;
	if (cell__session_start_on_loop(served->session, code, job->code_size, &options, &job->run_id, &err) < 0)
		job_ended(job, NULL, &err);
	else if (job->state == CELL_JOB_RUNNING && cell__state_id_known(job->state_id))
		cell__session_name_state_on_loop(served->session, job->run_id, job->state_id);
	cell__job_unref(job);
}

void cell__job_name_state(struct cell__job *job, struct cell__state_id id)
{
	job->state_id = id;
	if (job->state == CELL_JOB_RUNNING)
		cell__session_name_state_on_loop(job->served->session, job->run_id, id);
}

/* The first whose session is free. */
static void start_waiting(struct cell_server *server)
{
	for (;;) {
		struct cell__job **at = &server->queue, *before = NULL, *job;

		while (*at && (*at)->served->running) {
			before = *at;
			at = &before->queue_next;
		}
		job = *at;
		server->use->oldest_us = job ? job->begun_us : 0;
		if (!job || !cell__pool_take_slot(server, job->begun_us))
			return;
		*at = job->queue_next;
		if (server->queue_last == job)
			server->queue_last = before;
		server->use->queued--;
		job_start(job); /* it may end others: from the beginning */
	}
}

void cell__jobs_advance(struct cell_server *server)
{
	if (server->queue)
		start_waiting(server);
}

static void enqueue(struct cell_server *server, struct cell__job *job)
{
	job->queue_next = NULL;
	if (server->queue_last)
		server->queue_last->queue_next = job;
	else
		server->queue = job;
	server->queue_last = job;
	server->use->queued++;
}

/* Counts it, and queues it where it must wait; false: a limit is reached, and it was answered. */
static bool admit(struct cell__request *request, struct cell__job *job, bool *ret_waits)
{
	struct cell_server *server = request->server;
	struct cell__served *served = request->served;
	bool may_run, waits = false, is_full = false;

	cell__pool_lock(server);
	may_run = cell__account_may_run(request, served->account);
	if (may_run) {
		waits = served->jobs || !cell__pool_take_slot(server, job->begun_us);
		is_full = waits && CELL_ALL(server, queued) >= server->limits.max_queue;
	}
	if (may_run && !is_full) {
		served->account->use->runs++;
		if (waits)
			enqueue(server, job);
	}
	cell__pool_unlock(server);
	if (is_full)
		cell__answer_busy(request, 1, "too many cells are waiting");
	*ret_waits = waits;
	return may_run && !is_full;
}

static void cancel_waited(struct cell__request *request)
{
	cell__job_cancel(request->cancel_arg);
}

bool cell__job_begin(struct cell__request *request, const char *code, size_t size, int64_t timeout_ms,
		     void (*answer)(struct cell__request *request, struct cell_result *result), struct cell__job **ret_job)
{
	struct cell_server *server = request->server;
	struct cell__served *served = request->served;
	struct cell__job *job;
	bool waits;

	if (served->closing) {
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "this session has ended");
		return false;
	}
	if (request->cancelled) {
		cell__answer_fail(request, (unsigned)cell_code_http_status(CELL_E_CANCELLED), CELL_E_CANCELLED,
				  "the request was cancelled");
		return false;
	}
	job = cell__alloc(1, sizeof(*job));
	if (!job || !(job->code = cell__strndup(code, size))) {
		free(job);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the cell");
		return false;
	}
	cell__events_init(&job->events, server);
	job->events.moved = handle_moved;
	job->events.unref = handle_reader_gone;
	job->form = answer ? NULL : request->job_form;
	if (job->form) {
		job->events.form = job->form->events;
		job->events.alive = job->form->alive;
		job->events.nameless = true;
	}
	job->served = served;
	job->server = server;
	job->code_size = size;
	job->timeout_ms = timeout_ms;
	job->refs = 1; /* until it has ended */
	job->line = cell__code_line(code, size); /* without one the lists lack it */
	job->begun_us = cell__now_us();
	job->trace = cell__trace_begin(&server->tracing, cell__request_header(request, "traceparent"), code, size);
	if (!cell__trace_parent(job->trace, cell__request_header(request, "traceparent"), job->traceparent))
		job->traceparent[0] = '\0';
	if (!admit(request, job, &waits)) {
		cell__job_unref(job);
		return false;
	}
	job->number = served->next_job++;
	served->jobs++;
	if (answer) {
		job->waiter = request;
		job->answer = answer;
		request->cancel_arg = job;
		request->cancel = cancel_waited;
	} else {
		job->streams = true;
		job->kept_next = served->kept;
		served->kept = job;
		job->refs++;
		*ret_job = job;
	}
	if (waits)
		start_waiting(server);
	else
		job_start(job);
	return true;
}

void cell__jobs_cancel(struct cell_server *server, struct cell__served *served)
{
	struct cell__job *job = cell__take_ptr(server->queue), *next;
	struct cell_error err;

	server->queue_last = NULL;
	server->use->queued = 0;
	cell_fail(&err, CELL_E_CLOSED, 0, served ? "the session was closed" : "the server is stopping");
	/* Queue the others again first: an end may start one of them. */
	struct cell__job *ends = NULL, **last = &ends;
	for (; job; job = next) {
		next = job->queue_next;
		if (served && job->served != served) {
			enqueue(server, job);
		} else {
			job->queue_next = NULL;
			*last = job;
			last = &job->queue_next;
		}
	}
	for (; ends; ends = next) {
		next = ends->queue_next;
		job_ended(ends, NULL, &err);
	}
}

void cell__job_cancel(struct cell__job *job)
{
	struct cell_server *server = job->server;
	struct cell__job **at = &server->queue, *before = NULL;
	struct cell_error err;

	if (job->state == CELL_JOB_RUNNING && job->served->session)
		cell__session_cancel_on_loop(job->served->session, job->run_id);
	if (job->state != CELL_JOB_WAITING)
		return;
	while (*at && *at != job) {
		before = *at;
		at = &(*at)->queue_next;
	}
	if (!*at)
		return;
	*at = job->queue_next;
	if (server->queue_last == job)
		server->queue_last = before;
	server->use->queued--;
	cell_fail(&err, CELL_E_CANCELLED, 0, "the run was cancelled before it began");
	job_ended(job, NULL, &err);
}

/* ---- readers ---- */

void cell__job_stream(struct cell__request *request, struct cell__job *job, uint64_t after)
{
	struct MHD_Response *response = cell__events_read(request, &job->events, after, true);
	char number[24];

	if (!response)
		return;
	job->refs++;
	snprintf(number, sizeof(number), "%llu", (unsigned long long)job->number);
	MHD_add_response_header(response, "X-Run-ID", number);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

void cell__jobs_sweep(struct cell_server *server, int64_t now_us)
{
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		for (struct cell__job *job = served->kept; job; job = job->kept_next)
			cell__events_sweep(&job->events, now_us);
		if (served->log)
			cell__events_sweep(cell__session_log_events(served->log), now_us);
		if (served->history)
			cell__events_sweep(cell__history_events(served->history), now_us);
	}
}

void cell__jobs_release(struct cell_server *server)
{
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		/* A cell that is running ends with its session, which is about to be closed: its readers get that as its result. */
		for (struct cell__job *job = served->kept; job; job = job->kept_next) {
			if (job->state == CELL_JOB_ENDED)
				cell__events_release(&job->events);
		}
		if (served->log)
			cell__events_release(cell__session_log_events(served->log));
		if (served->history)
			cell__events_release(cell__history_events(served->history));
	}
}

char *cell__job_describe(const struct cell__job *job)
{
	static const char *const states[] = { "waiting", "running", "ended" };
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_printf(&out, "{\"run_id\":%llu,\"session_id\":\"%s\",\"state\":\"%s\",\"last_event\":%llu,\"result\":",
				  (unsigned long long)job->number, job->served ? job->served->id : "", states[job->state],
				  (unsigned long long)job->events.next_number - 1);

	rc |= job->result ? cell__buf_add(&out, job->result, job->result_size) : cell__buf_add_str(&out, "null");
	rc |= cell__buf_add_str(&out, "}");
	return rc ? NULL : cell__buf_take(&out);
}

char *cell__execute_answer(const struct cell_result *result, const char *session_id)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	const struct cell_outcome *error = cell_result_error(result);
	const char *value = cell_result_value_json(result), *repr = cell_result_repr(result);
	struct cell_text text;
	int rc = cell__buf_add_str(&out, "{\"value\":");

	if (value || !repr || error)
		rc |= cell__buf_add_str(&out, value && !error ? value : "null");
	else
		rc |= cell__buf_add_json_string(&out, repr, strlen(repr));
	cell_result_stdout(result, &text);
	rc |= cell__buf_add_str(&out, ",\"stdout\":");
	rc |= cell__buf_add_json_string(&out, text.data, text.size);
	cell_result_stderr(result, &text);
	rc |= cell__buf_add_str(&out, ",\"stderr\":");
	rc |= cell__buf_add_json_string(&out, text.data, text.size);
	rc |= cell__buf_add_str(&out, ",\"error\":");
	if (error && *error->traceback)
		rc |= cell__buf_add_json_string(&out, error->traceback, strlen(error->traceback));
	else if (error)
		rc |= cell__buf_add_json_string(&out, error->message, strlen(error->message));
	else
		rc |= cell__buf_add_str(&out, "null");
	if (cell_result_durable(result) >= 0)
		rc |= cell__buf_printf(&out, ",\"durable\":%s", cell_result_durable(result) ? "true" : "false");
	rc |= cell__buf_printf(&out, ",\"error_code\":%s%s%s,\"state\":\"%s\",\"execution_time_ms\":%.3f,\"session_id\":\"%s\"}",
			       error ? "\"" : "", error ? cell_code_word(error->code) : "null", error ? "\"" : "",
			       cell_result_state(result), cell_result_duration_ms(result), session_id);
	return rc ? NULL : cell__buf_take(&out);
}
