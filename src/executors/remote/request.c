/* Requests of the `remote` executor to the server: libcurl's callbacks collect the answers. */
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

static void exchange_free(struct cell__remote_exchange *exchange)
{
	cell__http_finish(&exchange->transfer);
	cell__buf_finish(&exchange->answer);
	free(exchange->body);
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

static void handle_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__remote_exchange *exchange = (struct cell__remote_exchange *)transfer;
	long status = cell__http_status(transfer);

	exchange_unlink(exchange->kernel, exchange); /* done() may drop all that there are */
	exchange->done(exchange, code, status);
	exchange_free(exchange);
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
						    .body = body,
						    .streams = streams,
						    .done = done,
						    .next = kernel->exchanges };
	kernel->exchanges = exchange;
	if (cell__buf_printf(&url, "%s%s", kernel->url, path) < 0 || !set_headers(exchange, header)) {
		exchange_destroy(kernel, exchange);
		return NULL;
	}
	const struct cell__http_request request = {
		.method = method,
		.url = url.data,
		.body = body,
		.body_size = body ? strlen(body) : 0,
		.socket = kernel->socket,
		.ca = kernel->ca,
		.connect_ms = CONNECT_TIMEOUT_MS,
		.timeout_ms = streams                                ? 0
			      : kernel->state == CELL_REMOTE_OPENING ? OPEN_TIMEOUT_MS
								     : REQUEST_TIMEOUT_MS,
		.silence_s = streams ? SILENT_S : 0,
	};
	if (cell__http_start(kernel->remote->http, &exchange->transfer, &request) < 0) {
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
