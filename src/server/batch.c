/*
 * Batches: many cells, each in a fork of one session, a few at a time.
 *
 *     POST /v1/sessions/S/batch, /v1/batch ──▶ running ──▶ ended: its events are kept for a while
 *
 * Results are events, in the order in which runs end.  No further run starts while the reader is HOLD_BYTES behind, so a slow client costs
 * no memory.  A batch that was streamed is cancelled when its client is gone for resume_ms; one that was not waits for a reader
 * as long as an idle session does.  A run is a session of the client: it counts, it is listed, and its calls can be approved.
 */
#include "server/api.h"
#include "server/peers.h"
#include "server/pool.h"

#include <stdio.h>
#include <string.h>

#define HOLD_BYTES (1u << 20)
#define CONCURRENCY 8
#define KEPT_US 300000000 /* an ended batch that nobody reads */

struct cell__served_batch {
	struct cell__events events; /* first */
	struct cell__fanout batch;
	struct cell_server *server;
	struct cell__served *source; /* the state that runs begin from, made for the batch; NULL: it has ended */
	bool drop, background;
	json_t *runs; /* codes, or objects */
	int64_t timeout_ms, memory_bytes, max_output_bytes, idle_since_us;
	size_t failed;
	char id[33], owner[CELL_SERVER_MAX_NAME + 1];
	struct cell__served **forks;
	unsigned refs;
	struct cell__served_batch *list_next;
};

static struct cell__served_batch *of(struct cell__fanout *batch)
{
	return (struct cell__served_batch *)((char *)batch - offsetof(struct cell__served_batch, batch));
}

static void batch_unref(struct cell__served_batch *job)
{
	if (--job->refs)
		return;
	cell__events_finish(&job->events);
	json_decref(job->runs);
	free(job->forks);
	free(job);
}

static bool has_ended(const struct cell__served_batch *job)
{
	return job->source == NULL;
}

static void forget(struct cell__served_batch *job)
{
	struct cell__served_batch **at = &job->server->batches;

	while (*at != job)
		at = &(*at)->list_next;
	*at = job->list_next;
	cell__directory_remove(job->server, job->id);
	job->server->n_batches--;
	batch_unref(job);
}

/* ---- runs ---- */

static const json_t *run_of(const struct cell__served_batch *job, size_t i)
{
	return json_array_get(job->runs, i);
}

/* True: a slot is taken, and open_run() comes next. */
static bool may_start(struct cell__fanout *batch)
{
	struct cell_server *server = of(batch)->server;
	const struct cell__account *account = of(batch)->source->account;

	if (account->quotas.runs >= 0 && CELL_ALL_OF(server, account, runs) >= account->quotas.runs)
		return false;
	/* Sessions of earlier runs may still be closing; if there are none to wait for, opening fails. */
	if (batch->running > 0 && (CELL_ALL(server, sessions) >= server->limits.max_sessions ||
				   (account->quotas.sessions >= 0 && CELL_ALL_OF(server, account, sessions) >= account->quotas.sessions)))
		return false;
	return cell__pool_take_slot(server, cell__now_us());
}

struct opened {
	struct cell__served_batch *job;
	size_t i;
};

static void handle_branched(void *arg, struct cell__served *served, const struct cell_error *err)
{
	struct opened opened = *(struct opened *)arg;
	struct cell__served_batch *job = opened.job;

	free(arg);
	if (served) {
		served->requests++;
		served->batch = &job->batch;
		served->batch_run = opened.i;
		job->forks[opened.i] = served;
	}
	cell__fanout_opened(&job->batch, opened.i, served ? served->session : NULL, err);
}

static void open_run(struct cell__fanout *batch, size_t i)
{
	struct cell__served_batch *job = of(batch);
	struct opened *opened = cell__alloc(1, sizeof(*opened));
	struct cell_error err;

	job->source->account->use->runs++;
	if (opened) {
		*opened = (struct opened){ .job = job, .i = i };
		if (cell__served_branch(job->source, job->drop, handle_branched, opened, &err) == 0)
			return;
		free(opened);
	} else {
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a run");
	}
	cell__fanout_opened(batch, i, NULL, &err);
}

static void add_result(struct cell__served_batch *job, size_t i, const char *json)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (cell__buf_printf(&text, "{\"index\":%zu,\"result\":", i) == 0 && cell__buf_add_str(&text, json) == 0 &&
	    cell__buf_add_str(&text, "}") == 0)
		(void)cell__events_add(&job->events, "result", text.data, text.size);
}

static const char *next_cell(struct cell__fanout *batch, size_t i, struct cell_result *result, int64_t *ret_timeout_ms)
{
	struct cell__served_batch *job = of(batch);
	const json_t *run = run_of(job, i), *own = json_object_get(run, "timeout");
	CELL_AUTO_FREE char *text = NULL;

	if (!result) {
		int64_t max = job->server->limits.max_timeout_ms, ms = (int64_t)(json_number_value(own) * 1000);

		*ret_timeout_ms = json_is_number(own) && ms > 0 ? (max >= 0 && ms > max ? max : ms) : job->timeout_ms;
		return json_string_value(json_is_string(run) ? run : json_object_get(run, "code"));
	}
	job->failed += cell_result_error(result) != NULL;
	job->server->counts.runs++;
	job->server->counts.runs_failed += cell_result_error(result) != NULL;
	cell__metrics_observe(&job->server->counts.run_s, cell_result_duration_ms(result) / 1e3);
	text = cell_result_json(result);
	add_result(job, i, text ? text : "{\"error\":{\"code\":\"no_memory\",\"message\":\"out of memory for the result\"}}");
	cell_result_destroy(result);
	return NULL;
}

/* Of one run, or of all. */
static int64_t limit_of(const struct cell__served_batch *job, size_t i, const char *name, int64_t all)
{
	const json_t *own = json_object_get(run_of(job, i), name);

	return json_is_integer(own) ? json_integer_value(own) : all;
}

static void limits_of(struct cell__fanout *batch, size_t i, int64_t *ret_memory_bytes, int64_t *ret_max_output_bytes)
{
	const struct cell__served_batch *job = of(batch);

	*ret_memory_bytes = limit_of(job, i, "memory", job->memory_bytes);
	*ret_max_output_bytes = limit_of(job, i, "max_output", job->max_output_bytes);
}

static void handle_failed(struct cell__fanout *batch, size_t i, const struct cell_error *err)
{
	struct cell__served_batch *job = of(batch);
	json_t *failure = json_pack("{s:{s:s,s:s}}", "error", "code", cell_code_word(err->code), "message", err->msg);
	CELL_AUTO_FREE char *text = failure ? json_dumps(failure, JSON_COMPACT) : NULL;

	json_decref(failure);
	job->failed++;
	job->server->counts.runs++;
	job->server->counts.runs_failed++;
	add_result(job, i, text ? text : "{\"error\":{\"code\":\"no_memory\",\"message\":\"out of memory\"}}");
}

/* Its processes are killed meanwhile; a run that does not end at once holds up no other. */
static void close_run(struct cell__fanout *batch, size_t i, struct cell_session *session)
{
	struct cell__served_batch *job = of(batch);

	(void)session;
	job->forks[i]->batch = NULL;
	cell__served_end(job->forks[i]);
	cell__fanout_closed(batch, i);
}

static void handle_done(struct cell__fanout *batch)
{
	struct cell__served_batch *job = of(batch);
	struct cell_server *server = job->server;
	struct cell__served *source = cell__take_ptr(job->source);
	char text[80];
	int size = snprintf(text, sizeof(text), "{\"runs\":%zu,\"failed\":%zu}", batch->n, job->failed);

	(void)cell__events_add(&job->events, "done", text, (size_t)size);
	cell__events_end(&job->events);
	job->idle_since_us = cell__now_us();
	cell__served_end(source);
	cell__served_let_go(source);
	batch_unref(job);
	cell__server_advance(server);
}

static void leave_slot(struct cell__fanout *batch, size_t i)
{
	struct cell__served_batch *job = of(batch);
	struct cell__served *fork = cell__take_ptr(job->forks[i]);

	job->source->account->use->runs--;
	cell__pool_free_slot(job->server);
	if (fork) {
		fork->batch = NULL;
		cell__served_let_go(fork);
	}
	cell__jobs_advance(job->server);
	cell__fusion_advance(job->server);
	cell__batches_advance(job->server);
}

static const struct cell__fanout_ops ops = {
	.open = open_run,
	.next = next_cell,
	.limits = limits_of,
	.failed = handle_failed,
	.close = close_run,
	.ended = leave_slot,
	.may_start = may_start,
	.done = handle_done,
};

/* ---- all of them ---- */

void cell__batches_advance(struct cell_server *server)
{
	struct cell__served_batch *next;

	for (struct cell__served_batch *job = server->batches; job; job = next) {
		next = job->list_next;
		if (!has_ended(job))
			cell__fanout_advance(&job->batch);
	}
}

void cell__batches_keep(struct cell_server *server)
{
	for (const struct cell__served_batch *job = server->batches; job; job = job->list_next)
		cell__directory_keep(server, job->id);
}

void cell__batches_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__served_batch *next;

	for (struct cell__served_batch *job = server->batches; job; job = next) {
		int64_t patience_us = job->background ? server->limits.idle_ms * 1000 : server->limits.resume_ms * 1000;

		next = job->list_next;
		cell__events_sweep(&job->events, now_us);
		if (job->events.n_readers > 0)
			job->idle_since_us = now_us;
		if (has_ended(job) && now_us - job->idle_since_us > KEPT_US)
			forget(job);
		else if (!has_ended(job) && patience_us >= 0 && now_us - job->idle_since_us > patience_us)
			cell__fanout_cancel(&job->batch);
	}
	cell__batches_advance(server);
}

void cell__batches_stop(struct cell_server *server)
{
	struct cell__served_batch *next;

	for (struct cell__served_batch *job = server->batches; job; job = next) {
		next = job->list_next;
		job->refs++;
		if (!has_ended(job))
			cell__fanout_cancel(&job->batch);
		cell__events_release(&job->events);
		forget(job);
		batch_unref(job);
	}
}

size_t cell__batches_waiting(const struct cell_server *server)
{
	size_t waiting = 0;

	for (const struct cell__served_batch *job = server->batches; job; job = job->list_next)
		waiting += has_ended(job) ? 0 : job->batch.n - job->batch.next;
	return waiting;
}

void cell__batches_end(const struct cell__served *served)
{
	struct cell__served_batch *next;

	for (struct cell__served_batch *job = served->server->batches; job; job = next) {
		next = job->list_next;
		if (job->source == served)
			cell__fanout_cancel(&job->batch);
	}
}

/* ---- requests ---- */

static void handle_moved(struct cell__events *events)
{
	struct cell__served_batch *job = (struct cell__served_batch *)events;
	bool held = events->behind_bytes > HOLD_BYTES;

	if (!has_ended(job) && held != job->batch.held)
		cell__fanout_hold(&job->batch, held);
}

static void handle_reader_gone(struct cell__events *events)
{
	batch_unref((struct cell__served_batch *)events);
}

static void answer_stream(struct cell__request *request, struct cell__served_batch *job, uint64_t after)
{
	struct MHD_Response *response = cell__events_read(request, &job->events, after, true);

	if (!response)
		return;
	job->refs++;
	MHD_add_response_header(response, "X-Batch-ID", job->id);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

static json_t *describe(const struct cell__served_batch *job)
{
	return json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I}", "batch_id", job->id, "state", has_ended(job) ? "ended" : "running", "runs",
			 (json_int_t)job->batch.n, "running", (json_int_t)job->batch.running, "ended", (json_int_t)job->batch.ended,
			 "failed", (json_int_t)job->failed, "last_event", (json_int_t)(job->events.next_number - 1));
}

static bool runs_ok(struct cell__request *request, const json_t *runs)
{
	size_t i, n = json_array_size(runs);
	json_t *run;

	if (n == 0 || n > CELL_LIMIT_BATCH) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "runs: %zu, expected 1 to %d", n, CELL_LIMIT_BATCH);
		return false;
	}
	json_array_foreach(runs, i, run) {
		const json_t *timeout = json_object_get(run, "timeout"), *memory = json_object_get(run, "memory"),
			     *max_output = json_object_get(run, "max_output");

		if (!json_is_string(run) && (!json_is_string(json_object_get(run, "code")) || (timeout && !json_is_number(timeout)) ||
					     (memory && !json_is_integer(memory)) || (max_output && !json_is_integer(max_output)))) {
			cell__answer_fail(
				request, MHD_HTTP_UNPROCESSABLE_CONTENT, CELL_E_INVALID,
				"runs[%zu]: expected code as a string, or an object with code and perhaps timeout, memory and max_output",
				i);
			return false;
		}
	}
	return true;
}

/* The source is taken over. */
static void start(struct cell__request *request, struct cell__served *source)
{
	struct cell_server *server = request->server;
	json_t *runs = json_object_get(request->json, "runs"), *wanted = json_object_get(request->json, "concurrency");
	size_t n = json_array_size(runs);
	struct cell__served_batch *job = cell__alloc(1, sizeof(*job));
	struct cell__served **forks = cell__alloc(n, sizeof(*forks));
	struct cell_error err;

	if (!job || !forks) {
		free(job);
		free(forks);
		cell__served_end(source);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a batch");
		return;
	}
	*job = (struct cell__served_batch){
		.server = server,
		.source = source,
		.drop = json_is_true(json_object_get(request->json, "drop")),
		.background = !cell__wants_events(request),
		.runs = json_incref(runs),
		.timeout_ms = cell__timeout_of(request),
		.memory_bytes = json_integer_value(json_object_get(request->json, "memory")),
		.max_output_bytes = json_integer_value(json_object_get(request->json, "max_output")),
		.idle_since_us = cell__now_us(),
		.forks = forks,
		.refs = 2, /* the list's, and until it has ended */
		.list_next = server->batches,
		.batch = { .ops = &ops, .n = n, .concurrency = wanted ? (size_t)json_integer_value(wanted) : CONCURRENCY }
	};
	cell__random_hex(job->id, 32);
	memcpy(job->id, server->engine->id_tag, strlen(server->engine->id_tag)); /* which worker has it */
	strcpy(job->owner, request->who.name);
	cell__events_init(&job->events, server);
	job->events.moved = handle_moved;
	job->events.unref = handle_reader_gone;
	job->events.awaited = job->events.patient = true; /* nothing is lost before a reader comes */
	server->batches = job;
	server->n_batches++;
	cell__directory_add(server, job->id, &request->announced);
	source->requests++;
	if (cell__fanout_start(&job->batch, &err) < 0) {
		job->source = NULL;
		cell__served_end(source);
		cell__served_let_go(source);
		forget(job);
		batch_unref(job);
		cell__answer_error(request, &err);
		return;
	}
	if (job->background)
		cell__answer_json(request, MHD_HTTP_ACCEPTED, describe(job));
	else
		answer_stream(request, job, 0);
}

static bool may_begin(struct cell__request *request)
{
	if (!runs_ok(request, json_object_get(request->json, "runs")))
		return false;
	if (request->server->n_batches >= CELL_SERVER_MAX_BATCHES) {
		cell__answer_busy(request, 5, "too many batches are running or kept");
		return false;
	}
	return true;
}

/* Cells that the session runs later change nothing for the batch. */
static void handle_anchor(void *arg, struct cell__served *served, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (served)
		start(request, served);
	else
		cell__answer_error(request, err);
}

void cell__handle_v1_session_batch(struct cell__request *request)
{
	bool drop = json_is_true(json_object_get(request->json, "drop"));
	struct cell_error err;

	if (may_begin(request) && cell__served_find(request, request->params[0], false) &&
	    cell__account_may_run(request, request->served->account) &&
	    cell__served_branch(request->served, drop, handle_anchor, request, &err) < 0)
		cell__answer_error(request, &err);
}

static void start_in_new(struct cell__request *request)
{
	start(request, request->served);
}

void cell__handle_v1_batch(struct cell__request *request)
{
	if (may_begin(request))
		cell__served_open(request, json_string_value(json_object_get(request->json, "workspace_id")), start_in_new);
}

static struct cell__served_batch *find(struct cell__request *request)
{
	struct cell__served_batch *job = request->server->batches;

	while (job && strcmp(job->id, request->params[0]))
		job = job->list_next;
	if (job && strcmp(job->owner, request->who.name) && !(request->who.scopes & CELL_SCOPE_ADMIN))
		job = NULL;
	if (!job)
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such batch");
	return job;
}

void cell__handle_v1_batch_get(struct cell__request *request)
{
	const struct cell__served_batch *job = find(request);

	if (job)
		cell__answer_json(request, MHD_HTTP_OK, describe(job));
}

void cell__handle_v1_batch_events(struct cell__request *request)
{
	struct cell__served_batch *job = find(request);

	uint64_t after;

	if (job && cell__last_event(request, &job->events, &after))
		answer_stream(request, job, after);
}

void cell__handle_v1_batch_delete(struct cell__request *request)
{
	struct cell__served_batch *job = find(request);

	if (!job)
		return;
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	if (!has_ended(job))
		cell__fanout_cancel(&job->batch);
	else
		forget(job);
}
