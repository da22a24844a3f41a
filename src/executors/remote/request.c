/*
 * Requests of the `remote` executor to the server: libcurl's callbacks collect the answers.
 *
 *     running ──503: it was not carried out, because the server stops or the session moves to another──▶ waiting ──▶ running again
 *        └──any other answer, or CELL_REMOTE_REPEAT_MS are over──▶ done()
 *
 * Requests repeat that change nothing if they come again, or what nobody knows of: a session that was opened, and whose id was lost with its server,
 * expires there.  Runs have their own way (run.c).
 */
#define _GNU_SOURCE
#include "executors/remote/kernel.h"

#include <jansson.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#define MAX_ANSWER_BYTES (1u << 20) /* of a request that is not a stream */
#define MAX_FILES_BYTES (64u << 20) /* about files: a diff names each, and has texts */
#define CONNECT_TIMEOUT_MS 10000
#define REQUEST_TIMEOUT_MS 30000
#define OPEN_TIMEOUT_MS 120000      /* its first kernel may have to be started */
#define SILENT_S 45                 /* the server sends something every 15 s */

static void exchange_unlink(struct cell__remote_kernel *kernel, struct cell__remote_exchange *exchange)
{
	struct cell__remote_exchange **at = &kernel->exchanges;

	while (*at != exchange)
		at = &(*at)->next;
	*at = exchange->next;
	if (kernel->stream == exchange)
		kernel->stream = NULL;
}

static void handle_exchange_closed(uv_handle_t *timer)
{
	free(timer->data);
}

static void exchange_free(struct cell__remote_exchange *exchange)
{
	cell__http_finish(&exchange->transfer);
	cell__buf_finish(&exchange->answer);
	free(exchange->body);
	free(exchange->url);
	if (exchange->timer.data)
		uv_close((uv_handle_t *)&exchange->timer, handle_exchange_closed);
	else
		free(exchange);
}

static void exchange_destroy(struct cell__remote_kernel *kernel, struct cell__remote_exchange *exchange)
{
	exchange_unlink(kernel, exchange);
	exchange_free(exchange);
}

static void tell_dropped(struct cell__task *task)
{
	struct cell__remote_exchange *exchange = (struct cell__remote_exchange *)((char *)task -
										  offsetof(struct cell__remote_exchange, task));
	struct cell_error err;

	cell_fail(&err, CELL_E_CLOSED, 0, "the session of the server has ended");
	exchange->filed(exchange->filed_arg, NULL, &err);
	exchange_free(exchange);
}

void cell__remote_drop_exchanges(struct cell__remote_kernel *kernel)
{
	cell__remote_commands_end(kernel);
	while (kernel->exchanges) {
		struct cell__remote_exchange *exchange = kernel->exchanges;

		if (exchange->waits)
			uv_timer_stop(&exchange->timer);
		else
			cell__http_cancel(kernel->remote->http, &exchange->transfer);
		exchange_unlink(kernel, exchange);
		if (!exchange->filed) {
			exchange_free(exchange);
			continue;
		}
		/* Its caller is told from the loop, not from inside of whatever drops it. */
		exchange->task.fn = tell_dropped;
		cell__loop_post(kernel->remote->host->loop, &exchange->task);
	}
}

static size_t take_bytes(struct cell__http_transfer *transfer, const char *bytes, size_t count)
{
	struct cell__remote_exchange *exchange = (struct cell__remote_exchange *)transfer;
	struct cell__remote_kernel *kernel = exchange->kernel;
	struct cell__buf *to = exchange->streams ? &kernel->in : &exchange->answer;

	if (exchange->streams && cell__http_status(transfer) == 200) {
		if (to->size > CELL_REMOTE_MAX_WAITING_BYTES) {
			kernel->curl_paused = true;
			return CURL_WRITEFUNC_PAUSE;
		}
		cell__remote_schedule(kernel);
	} else {
		to = &exchange->answer;
		if (to->size + count > (exchange->filed ? MAX_FILES_BYTES : MAX_ANSWER_BYTES))
			return 0;
	}
	return cell__buf_add(to, bytes, count) < 0 ? 0 : count;
}

static void take_header(struct cell__http_transfer *transfer, const char *line, size_t count)
{
	struct cell__remote_exchange *exchange = (struct cell__remote_exchange *)transfer;
	struct cell__remote_kernel *kernel = exchange->kernel;
	const char *at = line + 9, *end = line + count;
	size_t size = 0;

	if (exchange->streams && count > 9 && !strncasecmp(line, "X-Run-ID:", 9)) {
		while (at < end && *at == ' ')
			at++;
		while (at + size < end && at[size] >= '0' && at[size] <= '9' && size < sizeof(kernel->run) - 1)
			size++;
		memcpy(kernel->run, at, size);
		kernel->run[size] = '\0';
		cell__remote_schedule(kernel);
	}
}

/* ---- once more ---- */

int64_t cell__remote_next_pause(int64_t pause_ms)
{
	return pause_ms * 2 < CELL_REMOTE_LONGEST_PAUSE_MS ? pause_ms * 2 : CELL_REMOTE_LONGEST_PAUSE_MS;
}

static int start(struct cell__remote_exchange *exchange)
{
	const struct cell__remote_kernel *kernel = exchange->kernel;
	const struct cell__http_request request = {
		.method = exchange->method,
		.url = exchange->url,
		.body = exchange->body,
		.body_size = exchange->body ? strlen(exchange->body) : 0,
		.socket = kernel->socket,
		.ca = kernel->ca,
		.connect_ms = CONNECT_TIMEOUT_MS,
		.timeout_ms = exchange->timeout_ms,
		.silence_s = exchange->streams ? SILENT_S : 0,
	};
	return cell__http_start(kernel->remote->http, &exchange->transfer, &request);
}

static void finish(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	exchange_unlink(exchange->kernel, exchange); /* done() may drop all that there are */
	exchange->done(exchange, code, status);
	exchange_free(exchange);
}

static void handle_pause_over(uv_timer_t *timer)
{
	struct cell__remote_exchange *exchange = timer->data;

	exchange->waits = false;
	exchange->answer.size = 0;
	if (start(exchange) < 0)
		finish(exchange, CURLE_OUT_OF_MEMORY, 0);
}

/* A server that could not be connected to is not there: that is told at once. */
static bool may_repeat(const struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	bool is_lost = code == CURLE_OK ? status == 502 || status == 504
					: code == CURLE_GOT_NOTHING || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
						  code == CURLE_PARTIAL_FILE;

	if ((!exchange->repeats || code != CURLE_OK || status != 503) && (!exchange->repeats_lost || !is_lost))
		return false;
	return cell__now_us() - exchange->begun_us < (int64_t)CELL_REMOTE_REPEAT_MS * 1000;
}

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__remote_exchange *exchange = (struct cell__remote_exchange *)transfer;
	long status = cell__http_status(transfer);
	uv_loop_t *loop = cell__loop_uv(exchange->kernel->remote->host->loop);

	if (!may_repeat(exchange, code, status)) {
		finish(exchange, code, status);
		return;
	}
	if (!exchange->timer.data) {
		uv_timer_init(loop, &exchange->timer);
		exchange->timer.data = exchange;
	}
	exchange->waits = true;
	uv_update_time(loop);
	uv_timer_start(&exchange->timer, handle_pause_over, (uint64_t)exchange->pause_ms, 0);
	exchange->pause_ms = cell__remote_next_pause(exchange->pause_ms);
}

static bool set_headers(struct cell__remote_exchange *exchange, const char *more)
{
	char trace[sizeof("traceparent: ") + CELL_TRACEPARENT_SIZE];
	const bool traced = exchange->streams && exchange->body && *exchange->kernel->traceparent; /* a run */
	const char *const lines[] = { exchange->kernel->authorization, exchange->body ? "Content-Type: application/json" : NULL, more,
				      traced ? trace : NULL };

	snprintf(trace, sizeof(trace), "traceparent: %s", exchange->kernel->traceparent);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (lines[i] && cell__http_add_header(&exchange->transfer, lines[i]) < 0)
			return false;
	return true;
}

/* Takes body over. NULL: out of memory, and body is freed. */
struct cell__remote_exchange *cell__remote_begin(struct cell__remote_kernel *kernel, const char *method, const char *path, char *body,
						 const char *header, bool streams,
						 void (*done)(struct cell__remote_exchange *exchange, CURLcode code, long status))
{
	struct cell__remote_exchange *exchange = cell__alloc(1, sizeof(*exchange));
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;

	if (!exchange) {
		free(body);
		return NULL;
	}
	*exchange = (struct cell__remote_exchange){ .transfer = { .done = handle_done, .body = take_bytes, .header = take_header },
						    .kernel = kernel,
						    .method = method,
						    .body = body,
						    .timeout_ms = streams                                ? 0
								  : kernel->state == CELL_REMOTE_OPENING ? OPEN_TIMEOUT_MS
													 : REQUEST_TIMEOUT_MS,
						    .streams = streams,
						    .begun_us = cell__now_us(),
						    .pause_ms = CELL_REMOTE_FIRST_PAUSE_MS,
						    .done = done,
						    .next = kernel->exchanges };
	kernel->exchanges = exchange;
	if (cell__buf_printf(&url, "%s%s", kernel->url, path) == 0)
		exchange->url = cell__buf_take(&url);
	if (!exchange->url || !set_headers(exchange, header) || start(exchange) < 0) {
		exchange_destroy(kernel, exchange);
		return NULL;
	}
	return exchange;
}

/* Describes the server's error, or that it did not answer. */
void cell__remote_describe(struct cell__remote_kernel *kernel, const struct cell__remote_exchange *exchange, CURLcode code, long status,
			   struct cell_error *err)
{
	json_t *answer = exchange->answer.size ? json_loadb(exchange->answer.data, exchange->answer.size, 0, NULL) : NULL;
	const char *words = json_string_value(json_object_get(answer, "detail"));
	const char *word = json_string_value(json_object_get(answer, "code"));
	int said = word ? cell__remote_code(word) : 0;
	int found = status == 401                    ? CELL_E_AUTH
		    : status == 403                  ? CELL_E_FORBIDDEN
		    : status == 429 || status == 503 ? CELL_E_BUSY
						     : CELL_E_PROTOCOL;

	if (said && !cell__code_is_outcome(said))
		found = said == CELL_E_CLOSED ? said : cell__remote_own_code(kernel, said);
	/* Of a question about files, a path may be missing. */
	if (status == 410 || (status == 404 && !((exchange->filed || exchange->about) && said)))
		found = CELL_E_EXPIRED;
	if (code != CURLE_OK)
		cell_fail(err, CELL_E_IO, 0, "the server at %.100s: %s", kernel->url, curl_easy_strerror(code));
	else
		cell_fail(err, found, 0, "the server at %.80s answered %ld: %.100s", kernel->url, status,
			  words ? words : "it gave no reason");
	json_decref(answer);
}
