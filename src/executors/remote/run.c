/*
 * A run of the `remote` executor: starts it, reads its events as they come, and resumes a broken stream.
 *
 *     POST .../runs ──▶ events ──▶ result
 *        │ 503 `busy`: nothing was done ──▶ again                          the run is unknown there ┐
 *        └ broken, or 502: nobody knows ──▶ GET .../sessions/S ◀────────────────────────────────────┘
 *                                              ├── 200: the session goes on, perhaps because another server has woken it.  Its state is
 *                                              │         ├── the one before the cell ──▶ again, once, with the option `repeat`; else the error says so
 *                                              │         ├── the one after it ──▶ only the answer is lost: the error says so
 *                                              │         └── another one ──▶ an error that says that it is not known
 *                                              │        or our run is still there ──▶ its events; or others run ──▶ asked again
 *                                              └── else the kernel has ended
 *
 * A state has a name (`state_id`, wire/saved.h).  Each result has the one after its cell, which is the one before the next, and the request for a run has
 * the one that this run gives to the state after it.  Others may use the session, too: then the names match neither.  A run is not repeated by itself
 * without the option: what its code did outside of the session, in files or over the network, would happen twice, and only its author knows whether that
 * is harmless.
 */
#define _GNU_SOURCE
#include "executors/remote/kernel.h"

#include <stdio.h>
#include <string.h>

#define NO_TIMEOUT "1e9" /* the host's session keeps the time */

static void process(struct cell__task *task);

void cell__remote_schedule(struct cell__remote_kernel *kernel)
{
	if (kernel->posted)
		return;
	kernel->posted = true;
	kernel->task.fn = process;
	cell__loop_post(kernel->remote->host->loop, &kernel->task);
}

static void handle_retry(uv_timer_t *timer);

/* It has been tried for long enough. */
static bool is_over(const struct cell__remote_kernel *kernel)
{
	return kernel->broken_us && cell__now_us() - kernel->broken_us > (int64_t)CELL_REMOTE_REPEAT_MS * 1000;
}

static void try_again(struct cell__remote_kernel *kernel, enum cell__remote_retry retry, const struct cell_error *err)
{
	if (!kernel->broken_us) {
		kernel->broken_us = cell__now_us();
		kernel->pause_ms = CELL_REMOTE_FIRST_PAUSE_MS;
	}
	if (is_over(kernel)) {
		cell__remote_fail(kernel, err);
		return;
	}
	kernel->state = CELL_REMOTE_BROKEN;
	kernel->retry = retry;
	uv_update_time(cell__loop_uv(kernel->remote->host->loop));
	uv_timer_start(&kernel->timer, handle_retry, (uint64_t)kernel->pause_ms, 0);
	kernel->pause_ms = cell__remote_next_pause(kernel->pause_ms);
}

/* NULL: it is not JSON.  Whole numbers of any size would be errors. */
static json_t *session_of(const struct cell__remote_exchange *exchange)
{
	return exchange->answer.size ? json_loadb(exchange->answer.data, exchange->answer.size, JSON_DECODE_INT_AS_REAL, NULL) : NULL;
}

static void handle_counted(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell__remote_kernel *kernel = exchange->kernel;
	json_t *session = code == CURLE_OK && status == 200 ? session_of(exchange) : NULL;

	kernel->counting = false;
	kernel->counted = true;
	cell__remote_read_known(session, &kernel->known);
	json_decref(session);
	if (kernel->state == CELL_REMOTE_RUNNING) /* else it is being closed */
		cell__remote_start_run(kernel); /* which says what is wrong, if something is */
}

static void count_first(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	struct cell__remote_exchange *exchange = NULL;

	kernel->counting = true;
	if (!cell__buf_printf(&path, "/v1/sessions/%s", kernel->session))
		exchange = cell__remote_begin(kernel, "GET", path.data, NULL, NULL, false, handle_counted);
	if (exchange)
		exchange->repeats = exchange->repeats_lost = true;
	else
		cell__remote_out_of_memory(kernel);
}

/* ---- a run whose answer is lost ---- */

/*
 * LOST_BEFORE: the session's state is the one before the cell.  LOST_NEVER: so it is, at a server that has had the session since then, and knows
 * nothing of the run: the request did not arrive, because a proxy or a server closed a connection that was idle.  LOST_AFTER: it is the one after it.  LOST_OLDER: other cells before it are lost,
 * too.  LOST_UNKNOWN: cells of others took place meanwhile, or it went back.  LOST_RUNS: our run is still there.  LOST_WAITS: something runs or
 * waits there, which may be ours.
 */
enum lost { LOST_BEFORE, LOST_NEVER, LOST_AFTER, LOST_OLDER, LOST_UNKNOWN, LOST_RUNS, LOST_WAITS };

static struct cell__state_id name_in(const json_t *object)
{
	struct cell__remote_known known;

	cell__remote_read_known(object, &known);
	return known.state;
}

static enum lost judge(const struct cell__remote_kernel *kernel, const json_t *session, const struct cell__remote_known *now)
{
	const struct cell__remote_known *before = &kernel->known;
	const json_t *running = json_object_get(session, "running");
	const char *state = json_string_value(json_object_get(session, "state"));

	if (cell__state_id_is(name_in(running), kernel->after))
		return kernel->joined ? LOST_WAITS : LOST_RUNS;
	if (cell__state_id_is(now->state, kernel->after))
		return LOST_AFTER;
	if (state && !strcmp(state, "busy"))
		return LOST_WAITS;
	if (cell__state_id_known(now->state) && cell__state_id_known(before->state)
		    ? cell__state_id_is(now->state, before->state)
		    : before->cells >= 0 && now->cells == before->cells) /* a server that has no names: others may have rewound it */
		return !*kernel->run && cell__state_id_known(now->awake) && cell__state_id_is(now->awake, before->awake) ? LOST_NEVER
															 : LOST_BEFORE;
	return now->cells >= 0 && now->cells < before->cells ? LOST_OLDER : LOST_UNKNOWN;
}

static const char *words_of(enum lost lost)
{
	switch (lost) {
	case LOST_BEFORE:
		return "the server that ran this cell stopped before the cell ended, and the session goes on as it was before the cell: "
		       "run it again, if what it did outside of the session may happen twice";
	case LOST_AFTER:
		return "the cell took place, and only its answer is lost, with the server that ran it or the connection: the session has the "
		       "state after the cell, do not run it again";
	case LOST_OLDER:
		return "the server that ran this cell stopped, and its result is lost; the session goes on as it was last saved, without this "
		       "cell and without cells before it, which were not saved";
	default:
		return "the server that ran this cell stopped, and its result is lost; it is not known whether the cell took place, because "
		       "the session has been used or set back since: look at its variables before you run it again";
	}
}

/* In the place of the result that did not come. */
static void end_lost(struct cell__remote_kernel *kernel, enum lost lost, const json_t *session)
{
	json_t *error = json_pack("{s:s, s:s, s:s}", "type", "KernelDied", "code", "kernel_died", "message", words_of(lost));
	json_t *result = json_pack("{s:o*, s:s, s:O*, s:O*, s:O*}", "error", error, "state", lost == LOST_BEFORE ? "restored" : "kept",
				   "cells", json_object_get(session, "cells"), "state_id", json_object_get(session, "state_id"), "awake_id",
				   json_object_get(session, "awake_id"));

	if (lost == LOST_BEFORE || lost == LOST_AFTER)
		json_object_set_new(error, "retry", json_boolean(lost == LOST_BEFORE));
	free(kernel->result);
	kernel->result = result ? json_dumps(result, JSON_COMPACT) : NULL;
	kernel->result_size = kernel->result ? strlen(kernel->result) : 0;
	kernel->state = CELL_REMOTE_RUNNING;
	json_decref(result);
	if (kernel->result)
		cell__remote_deliver(kernel);
	else
		cell__remote_out_of_memory(kernel);
}

static void repeat(struct cell__remote_kernel *kernel)
{
	kernel->repeated = true;
	cell__buf_finish(&kernel->in); /* of the stream that broke */
	free(cell__take_ptr(kernel->result));
	kernel->state = CELL_REMOTE_RUNNING;
	cell__remote_start_run(kernel);
}

/* Nobody told us its number, or it is another server's now. */
static bool join(struct cell__remote_kernel *kernel, const json_t *session)
{
	const json_t *number = json_object_get(json_object_get(session, "running"), "run_id");
	double value = json_is_number(number) ? json_number_value(number) : -1;
	struct cell_error why = kernel->lost;

	if (value < 1 || value > 1e15)
		return false;
	snprintf(kernel->run, sizeof(kernel->run), "%.0f", value);
	cell__buf_finish(&kernel->in);
	free(cell__take_ptr(kernel->result));
	cell__sse_finish(&kernel->sse); /* its events are read from the first on */
	cell__sse_init(&kernel->sse, CELL_REMOTE_MAX_EVENT_BYTES);
	kernel->joined = true;
	try_again(kernel, CELL_REMOTE_RESUME, &why);
	return true;
}

static void handle_found(struct cell__remote_kernel *kernel, const json_t *session)
{
	struct cell__remote_known now;
	struct cell_error why = kernel->lost;
	enum lost lost;

	cell__remote_read_known(session, &now);
	lost = judge(kernel, session, &now);
	if (lost == LOST_RUNS && join(kernel, session))
		return;
	if ((lost == LOST_RUNS || lost == LOST_WAITS) && !is_over(kernel))
		try_again(kernel, CELL_REMOTE_ASK, &why);
	else if (lost == LOST_NEVER)
		cell__remote_run_refused(kernel, &why);
	else if (lost == LOST_BEFORE && kernel->repeat && !kernel->repeated && !kernel->interrupt_wanted)
		repeat(kernel);
	else
		end_lost(kernel, lost, session);
}

static void handle_asked(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell__remote_kernel *kernel = exchange->kernel;
	json_t *session = code == CURLE_OK && status == 200 ? session_of(exchange) : NULL;
	struct cell_error why = kernel->lost;

	if (kernel->state != CELL_REMOTE_BROKEN)
		; /* it is being closed */
	else if (code == CURLE_OK && status == 200)
		handle_found(kernel, session);
	else if (code == CURLE_OK ? status >= 500 || status == 429 : code != CURLE_COULDNT_CONNECT)
		try_again(kernel, CELL_REMOTE_ASK, &why);
	else
		cell__remote_fail(kernel, &why);
	json_decref(session);
}

static void ask_for_session(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

	kernel->state = CELL_REMOTE_BROKEN;
	if (cell__buf_printf(&path, "/v1/sessions/%s", kernel->session) < 0 ||
	    !cell__remote_begin(kernel, "GET", path.data, NULL, NULL, false, handle_asked))
		cell__remote_out_of_memory(kernel);
}

void cell__remote_run_lost(struct cell__remote_kernel *kernel, const struct cell_error *err)
{
	kernel->lost = *err;
	kernel->broken_us = 0;
	ask_for_session(kernel);
}

void cell__remote_run_refused(struct cell__remote_kernel *kernel, const struct cell_error *err)
{
	free(cell__take_ptr(kernel->result));
	cell__buf_finish(&kernel->in);
	if (!kernel->refused_us) {
		kernel->refused_us = cell__now_us();
		kernel->pause_ms = CELL_REMOTE_FIRST_PAUSE_MS;
	}
	kernel->broken_us = kernel->refused_us; /* also if the stream went well meanwhile */
	try_again(kernel, CELL_REMOTE_START, err);
}

/* The stream is over: with a result, or it broke. */
static void stream_done(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell__remote_kernel *kernel = exchange->kernel;
	struct cell_error err;

	kernel->curl_paused = false;
	if (status == 200) {
		/* Only after all of it was processed it is known whether there is a result. */
		cell__remote_schedule(kernel);
		return;
	}
	cell__remote_describe(kernel, exchange, code, status, &err);
	if (err.code == CELL_E_EXPIRED && !*kernel->run && kernel->reopen) {
		kernel->reopening = true;
		kernel->state = CELL_REMOTE_OPENING;
		cell__remote_open_session(kernel);
	} else if (*kernel->run && (code != CURLE_OK || status >= 500)) {
		try_again(kernel, CELL_REMOTE_RESUME, &err);
	} else if (!*kernel->run && status == 503 && err.code == CELL_E_BUSY) {
		try_again(kernel, CELL_REMOTE_START, &err);
	} else if (*kernel->run       ? err.code == CELL_E_EXPIRED
		   : code == CURLE_OK ? status >= 500 || err.code == CELL_E_CONFLICT /* it arrived, and was sent twice */
				      : code != CURLE_COULDNT_CONNECT) {
		cell__remote_run_lost(kernel, &err);
	} else {
		cell__remote_fail(kernel, &err);
	}
}

void cell__remote_start_run(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, path = CELL_BUF_INIT;
	char after[33];
	int rc = 0;

	if (kernel->repeat && kernel->known.cells < 0 && !cell__state_id_known(kernel->known.state) && !kernel->counted) {
		count_first(kernel);
		return;
	}
	cell__state_id_write(kernel->after, after);
	rc |= cell__buf_printf(&body, "{\"timeout\":" NO_TIMEOUT ",\"state_id\":\"%s\",\"code\":", after);
	rc |= cell__buf_add_json_string(&body, kernel->code, kernel->code_size);
	rc |= cell__buf_add_str(&body, "}");
	rc |= cell__buf_printf(&path, "/v1/sessions/%s/runs", kernel->session);
	kernel->run[0] = '\0';
	kernel->broken_us = 0;
	cell__sse_finish(&kernel->sse);
	cell__sse_init(&kernel->sse, CELL_REMOTE_MAX_EVENT_BYTES);
	if (!rc)
		kernel->stream = cell__remote_begin(kernel, "POST", path.data, cell__buf_take(&body), "Accept: text/event-stream", true,
						    stream_done);
	if (!kernel->stream)
		cell__remote_out_of_memory(kernel);
}

static void handle_retry(uv_timer_t *timer)
{
	struct cell__remote_kernel *kernel = timer->data;
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, header = CELL_BUF_INIT;
	int64_t broken_us = kernel->broken_us;

	if (kernel->retry == CELL_REMOTE_ASK) {
		ask_for_session(kernel);
		return;
	}
	kernel->state = CELL_REMOTE_RUNNING;
	if (kernel->retry == CELL_REMOTE_START) {
		cell__remote_start_run(kernel);
		kernel->broken_us = broken_us;
		return;
	}
	cell__sse_restart(&kernel->sse);
	if (!cell__buf_printf(&path, "/v1/sessions/%s/runs/%s/events", kernel->session, kernel->run) &&
	    !cell__buf_printf(&header, "Last-Event-ID: %s", *kernel->sse.id ? kernel->sse.id : "0"))
		kernel->stream = cell__remote_begin(kernel, "GET", path.data, NULL, header.data, true, stream_done);
	if (!kernel->stream)
		cell__remote_out_of_memory(kernel);
}

static void request_done(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	(void)exchange;
	(void)code;
	(void)status; /* the interrupt did not arrive: the session's timer continues to the kill */
}

static void send_interrupt(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

	kernel->interrupt_wanted = false;
	if (!cell__buf_printf(&path, "/v1/sessions/%s/interrupt", kernel->session))
		(void)cell__remote_begin(kernel, "POST", path.data, cell__strdup("{}"), NULL, false, request_done);
}

/* ---- processing received events in order ---- */

static void read_stream(struct cell__remote_kernel *kernel)
{
	struct cell__buf in = kernel->in;
	const char *at = in.data;
	size_t left = in.size;
	struct cell__sse_event event;
	struct cell_error err;
	const char *problem = NULL;
	int found = 0;

	/* A receiver may close the kernel: we own the bytes in the meantime. */
	kernel->in = (struct cell__buf)CELL_BUF_INIT;
	while (!problem && left && kernel->state == CELL_REMOTE_RUNNING && !kernel->paused &&
	       (found = cell__sse_next(&kernel->sse, &at, &left, &event, &err)) > 0) {
		kernel->broken_us = 0;
		problem = cell__remote_handle_event(kernel, &event);
	}
	if (found < 0)
		problem = "a stream with a line or event over the limit";
	if (left && !problem && (kernel->state == CELL_REMOTE_RUNNING) && cell__buf_add(&kernel->in, at, left) < 0)
		problem = "more data than fits into memory";
	cell__buf_finish(&in);
	if (problem && kernel->state == CELL_REMOTE_RUNNING)
		cell__remote_protocol_error(kernel, problem);
}

static void process(struct cell__task *task)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)((char *)task - offsetof(struct cell__remote_kernel, task));
	struct cell_error err;

	kernel->posted = false;
	if (kernel->over) {
		cell__remote_handle_timer_closed((uv_handle_t *)&kernel->timer);
		return;
	}
	if (kernel->interrupt_wanted && *kernel->run && kernel->state == CELL_REMOTE_RUNNING)
		send_interrupt(kernel);
	if (kernel->state == CELL_REMOTE_RUNNING)
		read_stream(kernel);
	if (kernel->state != CELL_REMOTE_RUNNING || kernel->paused || kernel->counting)
		return;
	if (kernel->stream && kernel->curl_paused && kernel->in.size <= CELL_REMOTE_MAX_WAITING_BYTES) {
		kernel->curl_paused = false;
		curl_easy_pause(kernel->stream->transfer.easy, CURLPAUSE_CONT);
		return;
	}
	if (kernel->stream)
		return;
	if (kernel->result) {
		cell__remote_deliver(kernel);
		return;
	}
	cell_fail(&err, CELL_E_IO, 0, "the server at %.100s ended the event stream of a run before its result", kernel->url);
	if (*kernel->run)
		try_again(kernel, CELL_REMOTE_RESUME, &err);
	else
		cell__remote_fail(kernel, &err);
}
