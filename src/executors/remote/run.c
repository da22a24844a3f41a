/*
 * A run of the `remote` executor: starts it, reads its events as they come, and resumes a broken stream.
 *
 *     POST .../runs ──▶ events ──▶ result
 *        │ 503 `busy`: nothing was done ──▶ again                          the run is unknown there ┐
 *        └ broken, or 502: nobody knows ──▶ GET .../sessions/S ◀────────────────────────────────────┘
 *                                              ├── 200: the cell is lost, and the session goes on: one of several servers has woken it.  With the
 *                                              │        option `repeat`: the session has as many cells as before the run ──▶ again, once
 *                                              └── else the kernel has ended
 */
#define _GNU_SOURCE
#include "executors/remote/kernel.h"

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

static void try_again(struct cell__remote_kernel *kernel, enum cell__remote_retry retry, const struct cell_error *err)
{
	int64_t now = cell__now_us();

	if (!kernel->broken_us) {
		kernel->broken_us = now;
		kernel->pause_ms = CELL_REMOTE_FIRST_PAUSE_MS;
	}
	if (now - kernel->broken_us > (int64_t)CELL_REMOTE_REPEAT_MS * 1000) {
		cell__remote_fail(kernel, err);
		return;
	}
	kernel->state = CELL_REMOTE_BROKEN;
	kernel->retry = retry;
	uv_update_time(cell__loop_uv(kernel->remote->host->loop));
	uv_timer_start(&kernel->timer, handle_retry, (uint64_t)kernel->pause_ms, 0);
	kernel->pause_ms = cell__remote_next_pause(kernel->pause_ms);
}

/* Of the session there, as it has woken; -1: the server does not say. */
static int64_t count_of(const struct cell__remote_exchange *exchange)
{
	json_t *session = exchange->answer.size ? json_loadb(exchange->answer.data, exchange->answer.size, 0, NULL) : NULL;
	const json_t *cells = json_object_get(session, "cells");
	int64_t count = json_is_integer(cells) ? json_integer_value(cells) : -1;

	json_decref(session);
	return count;
}

static void handle_counted(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell__remote_kernel *kernel = exchange->kernel;

	kernel->counting = false;
	kernel->counted = true;
	if (kernel->state != CELL_REMOTE_RUNNING)
		return; /* it is being closed */
	kernel->cells = code == CURLE_OK && status == 200 ? count_of(exchange) : -1;
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

/* The session does not have the cell, and has all that were before it. */
static bool may_repeat(const struct cell__remote_kernel *kernel, const struct cell__remote_exchange *exchange)
{
	return kernel->repeat && !kernel->repeated && !kernel->interrupt_wanted && kernel->cells >= 0 &&
	       count_of(exchange) == kernel->cells;
}

static void handle_asked(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	static const char lost[] =
		"{\"error\":{\"type\":\"KernelDied\",\"code\":\"kernel_died\",\"message\":\"the server that ran this cell "
		"stopped, and its result is lost; the session goes on as it was last saved\"}}";
	struct cell__remote_kernel *kernel = exchange->kernel;
	struct cell_error why = kernel->lost;

	if (kernel->state != CELL_REMOTE_BROKEN)
		return; /* it is being closed */
	if (code == CURLE_OK && status == 200 && may_repeat(kernel, exchange)) {
		kernel->repeated = true;
		cell__buf_finish(&kernel->in); /* of the stream that broke */
		free(cell__take_ptr(kernel->result));
		kernel->state = CELL_REMOTE_RUNNING;
		cell__remote_start_run(kernel);
	} else if (code == CURLE_OK && status == 200) {
		free(kernel->result);
		kernel->result = cell__strdup(lost);
		kernel->result_size = sizeof(lost) - 1;
		kernel->state = CELL_REMOTE_RUNNING;
		if (kernel->result)
			cell__remote_deliver(kernel);
		else
			cell__remote_out_of_memory(kernel);
	} else if (code == CURLE_OK ? status >= 500 || status == 429 : code != CURLE_COULDNT_CONNECT) {
		try_again(kernel, CELL_REMOTE_ASK, &why);
	} else {
		cell__remote_fail(kernel, &why);
	}
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
	} else if (*kernel->run ? err.code == CELL_E_EXPIRED : code == CURLE_OK ? status >= 500 : code != CURLE_COULDNT_CONNECT) {
		cell__remote_run_lost(kernel, &err);
	} else {
		cell__remote_fail(kernel, &err);
	}
}

void cell__remote_start_run(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, path = CELL_BUF_INIT;
	int rc = cell__buf_add_str(&body, "{\"timeout\":" NO_TIMEOUT ",\"code\":");

	if (kernel->repeat && kernel->cells < 0 && !kernel->repeated && !kernel->counted) {
		count_first(kernel);
		return;
	}
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
