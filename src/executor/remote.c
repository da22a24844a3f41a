/*
 * A kernel here is a session of a server (docs/server.md): tools, storage and packages are that server's.
 *
 *     opening ──POST /v1/sessions──▶ idle ──POST .../runs──▶ running ──event "result"──▶ idle ... ──close──▶ DELETE ──▶ exited
 *                                                    │  ▲
 *                                    the stream breaks  │ GET .../events with Last-Event-ID, again and again for RESUME_MS
 *                                                    ▼  │
 *                                                  broken ──▶ exited, with an error
 *
 * libcurl's callbacks only collect bytes: what they mean is done from a task of the loop, where a receiver may do as it likes
 * (run, interrupt, close).  Bytes that wait for it are bounded; past that libcurl pauses, TCP fills up, and the server holds
 * its kernel.  Everything from the server is checked like everything from a kernel.
 */
#define _GNU_SOURCE
#include "executor/remote.h"

#include <errno.h>
#include <string.h>
#include <strings.h>

#include "loop/http.h"
#include "wire/json_check.h"
#include "wire/json_find.h"
#include "wire/sse.h"

#define MAX_CONNECTIONS 1024
#define MAX_ANSWER_BYTES (1u << 20)            /* of a request that is no stream */
#define CELL_REMOTE_MAX_EVENT_BYTES (512u * 1024u * 1024u) /* the result has all displays in it */
#define CELL_REMOTE_MAX_WAITING_BYTES (1u << 20)
#define CONNECT_TIMEOUT_MS 10000L
#define REQUEST_TIMEOUT_MS 30000L
#define OPEN_TIMEOUT_MS 120000L               /* its first kernel may have to be started */
#define SILENT_S 45L                           /* the server says something every 15 s */
#define RESUME_MS 30000
#define FIRST_PAUSE_MS 50
#define LONGEST_PAUSE_MS 2000
#define CLOSE_MS 5000
#define NO_TIMEOUT "1e9"                       /* the host's session keeps the time */

struct cell__remote {
	struct cell__executor_host *host;
	struct cell__http *http;
};

struct cell__remote_kernel;

struct cell__remote_exchange {
	struct cell__transfer transfer; /* first */
	struct cell__remote_kernel *kernel;
	struct curl_slist *headers;
	char *body;
	bool streams;
	struct cell__buf answer;
	void (*done)(struct cell__remote_exchange *exchange, CURLcode code, long status);
	struct cell__remote_exchange *next;
};

enum cell__remote_state { CELL_REMOTE_OPENING, CELL_REMOTE_IDLE, CELL_REMOTE_RUNNING, CELL_REMOTE_BROKEN, CELL_REMOTE_CLOSING };

struct cell__remote_kernel {
	struct cell__kernel base; /* first */
	struct cell__remote *remote;
	const struct cell__kernel_events *events;
	void *owner;
	char *url, *socket, *authorization, *workspace, *ca;
	char *receipt;             /* members of the receipt that are not the server's; NULL: the executor's name */
	void (*gone)(void *arg, const struct cell__exit *how); /* of whom it was made for, before exited(); may be NULL */
	void *gone_arg;
	bool reopen, reopening;
	char session[65];
	enum cell__remote_state state;
	/* the run */
	uint32_t run_id;
	char *code;
	size_t code_size;
	char run[24];              /* the server's number for it; "" until it is known */
	bool interrupt_wanted, paused, curl_paused;
	struct cell__remote_exchange *stream;   /* NULL: there is none now */
	struct cell__buf in;       /* of the stream, not looked at yet */
	struct cell__sse sse;
	char *result;
	size_t result_size;
	int64_t broken_us;         /* since when; 0: it is not */
	int64_t pause_ms;
	/* the rest */
	struct cell__remote_exchange *exchanges;
	struct cell__task task;
	bool posted, over;
	uv_timer_t timer;
	struct cell__exit how;
};

static void process(struct cell__task *task);
static void cell__remote_start_run(struct cell__remote_kernel *kernel);
static void cell__remote_open_session(struct cell__remote_kernel *kernel);

static void cell__remote_schedule(struct cell__remote_kernel *kernel)
{
	if (kernel->posted)
		return;
	kernel->posted = true;
	kernel->task.fn = process;
	cell__loop_post(kernel->remote->host->loop, &kernel->task);
}

/* ---- the end ---- */

static void exchange_unlink(struct cell__remote_exchange *exchange)
{
	struct cell__remote_exchange **at = &exchange->kernel->exchanges;

	while (*at != exchange)
		at = &(*at)->next;
	*at = exchange->next;
	if (exchange->kernel->stream == exchange)
		exchange->kernel->stream = NULL;
}

static void exchange_free(struct cell__remote_exchange *exchange)
{
	curl_easy_cleanup(exchange->transfer.easy);
	curl_slist_free_all(exchange->headers);
	cell__buf_finish(&exchange->answer);
	free(exchange->body);
	free(exchange);
}

static void exchange_destroy(struct cell__remote_exchange *exchange)
{
	exchange_unlink(exchange);
	exchange_free(exchange);
}

static void cell__remote_drop_exchanges(struct cell__remote_kernel *kernel)
{
	while (kernel->exchanges) {
		cell__http_cancel(kernel->remote->http, &kernel->exchanges->transfer);
		exchange_destroy(kernel->exchanges);
	}
}

static void kernel_free(struct cell__remote_kernel *kernel)
{
	cell__sse_finish(&kernel->sse);
	cell__buf_finish(&kernel->in);
	free(kernel->result);
	free(kernel->code);
	free(kernel->url);
	free(kernel->socket);
	free(kernel->authorization);
	free(kernel->workspace);
	free(kernel->ca);
	free(kernel->receipt);
	free(kernel);
}

static void cell__remote_handle_timer_closed(uv_handle_t *handle)
{
	struct cell__remote_kernel *kernel = handle->data;
	void *owner = kernel->owner;
	void (*exited)(void *, const struct cell__exit *) = kernel->events->exited;
	struct cell__exit how = kernel->how;

	if (kernel->posted) { /* the task runs first, and comes back here */
		kernel->over = true;
		return;
	}
	if (kernel->gone)
		kernel->gone(kernel->gone_arg, &how);
	kernel_free(kernel);
	exited(owner, &how);
}

/* Nothing more comes but exited(). */
static void leave(struct cell__remote_kernel *kernel)
{
	cell__remote_drop_exchanges(kernel);
	if (!uv_is_closing((uv_handle_t *)&kernel->timer))
		uv_close((uv_handle_t *)&kernel->timer, cell__remote_handle_timer_closed);
}

static void end_session(struct cell__remote_kernel *kernel);

/* Of a server that cannot be reached the session stays to its own expiry. */
static void cell__remote_fail(struct cell__remote_kernel *kernel, const struct cell_error *err)
{
	if (kernel->state == CELL_REMOTE_CLOSING)
		return;
	kernel->state = CELL_REMOTE_CLOSING;
	kernel->how.error = *err;
	if (err->code == CELL_E_IO || err->code == CELL_E_EXPIRED)
		leave(kernel);
	else
		end_session(kernel);
}

/* ---- requests ---- */

static size_t take_bytes(char *bytes, size_t one, size_t count, void *arg)
{
	struct cell__remote_exchange *exchange = arg;
	struct cell__remote_kernel *kernel = exchange->kernel;
	struct cell__buf *to = exchange->streams ? &kernel->in : &exchange->answer;
	long status = 0;

	(void)one;
	curl_easy_getinfo(exchange->transfer.easy, CURLINFO_RESPONSE_CODE, &status);
	if (exchange->streams && status == 200) {
		if (to->size > CELL_REMOTE_MAX_WAITING_BYTES) {
			kernel->curl_paused = true;
			return CURL_WRITEFUNC_PAUSE;
		}
		cell__remote_schedule(kernel);
	} else {
		to = &exchange->answer;
		if (to->size + count > MAX_ANSWER_BYTES)
			return 0;
	}
	return cell__buf_add(to, bytes, count) < 0 ? 0 : count;
}

static size_t take_header(char *line, size_t one, size_t count, void *arg)
{
	struct cell__remote_exchange *exchange = arg;
	struct cell__remote_kernel *kernel = exchange->kernel;
	const char *at = line + 9, *end = line + count;
	size_t size = 0;

	(void)one;
	if (exchange->streams && count > 9 && !strncasecmp(line, "X-Run-ID:", 9)) {
		while (at < end && *at == ' ')
			at++;
		while (at + size < end && at[size] >= '0' && at[size] <= '9' && size < sizeof(kernel->run) - 1)
			size++;
		memcpy(kernel->run, at, size);
		kernel->run[size] = '\0';
		cell__remote_schedule(kernel);
	}
	return count;
}

static void handle_done(struct cell__transfer *transfer, CURLcode code)
{
	struct cell__remote_exchange *exchange = (struct cell__remote_exchange *)transfer;
	long status = 0;

	curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
	exchange_unlink(exchange); /* done() may drop all that there are */
	exchange->done(exchange, code, status);
	exchange_free(exchange);
}

static bool set_headers(struct cell__remote_exchange *exchange, const char *more)
{
	const char *const lines[] = { exchange->kernel->authorization, exchange->body ? "Content-Type: application/json" : NULL, "Expect:", more };

	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		struct curl_slist *list = lines[i] ? curl_slist_append(exchange->headers, lines[i]) : exchange->headers;

		if (lines[i] && !list)
			return false;
		exchange->headers = list;
	}
	return true;
}

/* Takes body over.  NULL: memory is gone, and so is body. */
static struct cell__remote_exchange *cell__remote_begin(struct cell__remote_kernel *kernel, const char *method, const char *path, char *body,
							const char *header, bool streams,
							void (*done)(struct cell__remote_exchange *exchange, CURLcode code, long status))
{
	struct cell__remote_exchange *exchange = cell__alloc(1, sizeof(*exchange));
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;
	CURL *easy = exchange ? curl_easy_init() : NULL;

	if (!easy) {
		free(exchange);
		free(body);
		return NULL;
	}
	*exchange = (struct cell__remote_exchange){ .transfer = { easy, handle_done }, .kernel = kernel, .body = body, .streams = streams,
						    .done = done, .next = kernel->exchanges };
	kernel->exchanges = exchange;
	cell__http_set_common(easy);
	if (cell__buf_printf(&url, "%s%s", kernel->url, path) < 0 || !set_headers(exchange, header)) {
		exchange_destroy(exchange);
		return NULL;
	}
	curl_easy_setopt(easy, CURLOPT_URL, url.data);
	if (kernel->socket)
		curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, kernel->socket);
	if (kernel->ca)
		curl_easy_setopt(easy, CURLOPT_CAINFO, kernel->ca);
	curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
	if (body) {
		curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
		curl_easy_setopt(easy, CURLOPT_POSTFIELDS, body);
	}
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, exchange->headers);
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, exchange);
	curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(easy, CURLOPT_HEADERDATA, exchange);
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
	curl_easy_setopt(easy, CURLOPT_TCP_NODELAY, 1L);
	if (streams) {
		curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
		curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENT_S);
	} else {
		curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, kernel->state == CELL_REMOTE_OPENING ? OPEN_TIMEOUT_MS : REQUEST_TIMEOUT_MS);
	}
	if (cell__http_start(kernel->remote->http, &exchange->transfer) < 0) {
		exchange_destroy(exchange);
		return NULL;
	}
	return exchange;
}

/* What the server said went wrong, or that it said nothing. */
static void cell__remote_describe(struct cell__remote_kernel *kernel, const struct cell__remote_exchange *exchange, CURLcode code,
				  long status, struct cell_error *err)
{
	json_t *answer = exchange->answer.size ? json_loadb(exchange->answer.data, exchange->answer.size, 0, NULL) : NULL;
	const char *words = json_string_value(json_object_get(answer, "detail"));
	const char *word = json_string_value(json_object_get(answer, "code"));
	int found = status == 401 ? CELL_E_AUTH : status == 403 ? CELL_E_FORBIDDEN : status == 429 || status == 503 ? CELL_E_BUSY : CELL_E_PROTOCOL;

	for (int i = CELL_E_INVALID; word && i < CELL_OUT_EXCEPTION; i++) {
		if (!strcmp(cell_code_word(i), word))
			found = i;
	}
	if (status == 404 || status == 410)
		found = CELL_E_EXPIRED;
	if (code != CURLE_OK)
		cell_fail(err, CELL_E_IO, 0, "the server at %.100s: %s", kernel->url, curl_easy_strerror(code));
	else
		cell_fail(err, found, 0, "the server at %.80s answered %ld: %.100s", kernel->url, status, words ? words : "it does not say why");
	json_decref(answer);
}

static void cell__remote_out_of_memory(struct cell__remote_kernel *kernel)
{
	struct cell_error err;

	cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a request to the server");
	cell__remote_fail(kernel, &err);
}

/* ---- sessions ---- */

static void session_opened(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell__remote_kernel *kernel = exchange->kernel;
	json_t *answer = code == CURLE_OK && status == 201 ? json_loadb(exchange->answer.data ? exchange->answer.data : "", exchange->answer.size,
									0, NULL) : NULL;
	const char *id = json_string_value(json_object_get(answer, "session_id"));
	struct cell_error err;

	if (id && *id && strlen(id) < sizeof(kernel->session) && !id[strspn(id, "0123456789abcdefABCDEF-")]) {
		strcpy(kernel->session, id);
		kernel->state = CELL_REMOTE_IDLE;
	}
	json_decref(answer);
	if (kernel->state == CELL_REMOTE_IDLE && kernel->reopening) {
		kernel->reopening = false;
		kernel->state = CELL_REMOTE_RUNNING;
		cell__remote_start_run(kernel);
	} else if (kernel->state == CELL_REMOTE_IDLE) {
		kernel->events->ready(kernel->owner);
	} else {
		cell__remote_describe(kernel, exchange, code, status, &err);
		cell__remote_fail(kernel, &err);
	}
}

static void cell__remote_open_session(struct cell__remote_kernel *kernel)
{
	json_t *body = kernel->workspace ? json_pack("{s:s}", "workspace_id", kernel->workspace) : json_object();
	char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;

	json_decref(body);
	if (!text || !cell__remote_begin(kernel, "POST", "/v1/sessions", text, NULL, false, session_opened))
		cell__remote_out_of_memory(kernel);
}

/* ---- runs ---- */

static void handle_retry(uv_timer_t *timer);

static void try_again(struct cell__remote_kernel *kernel, const struct cell_error *err)
{
	int64_t now = cell__now_us();

	if (!kernel->broken_us) {
		kernel->broken_us = now;
		kernel->pause_ms = FIRST_PAUSE_MS;
	}
	if (!*kernel->run || now - kernel->broken_us > (int64_t)RESUME_MS * 1000) {
		cell__remote_fail(kernel, err);
		return;
	}
	kernel->state = CELL_REMOTE_BROKEN;
	uv_update_time(&kernel->remote->host->loop->uv);
	uv_timer_start(&kernel->timer, handle_retry, (uint64_t)kernel->pause_ms, 0);
	kernel->pause_ms = kernel->pause_ms * 2 < LONGEST_PAUSE_MS ? kernel->pause_ms * 2 : LONGEST_PAUSE_MS;
}

/* The stream is over: with a result, or it broke. */
static void stream_done(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	struct cell__remote_kernel *kernel = exchange->kernel;
	struct cell_error err;

	kernel->curl_paused = false;
	if (status == 200) {
		/* Whether there is a result is known when all of it was looked at. */
		cell__remote_schedule(kernel);
		return;
	}
	cell__remote_describe(kernel, exchange, code, status, &err);
	if (err.code == CELL_E_EXPIRED && !*kernel->run && kernel->reopen) {
		kernel->reopening = true;
		kernel->state = CELL_REMOTE_OPENING;
		cell__remote_open_session(kernel);
	} else if (code != CURLE_OK || status >= 500) {
		try_again(kernel, &err);
	} else {
		cell__remote_fail(kernel, &err);
	}
}

static void cell__remote_start_run(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, path = CELL_BUF_INIT;
	int rc = cell__buf_add_str(&body, "{\"timeout\":" NO_TIMEOUT ",\"code\":");

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

	kernel->state = CELL_REMOTE_RUNNING;
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
	(void)status; /* an interrupt that did not arrive: the session's timer goes on to kill */
}

static void send_interrupt(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

	kernel->interrupt_wanted = false;
	if (!cell__buf_printf(&path, "/v1/sessions/%s/interrupt", kernel->session))
		(void)cell__remote_begin(kernel, "POST", path.data, cell__strdup("{}"), NULL, false, request_done);
}

/* ---- events ---- */

/* "text" or "base64" of an object; bytes of base64 are in *memory. */
static bool bytes_of(const json_t *object, struct cell__buf *memory, const char **ret_bytes, size_t *ret_size)
{
	const json_t *text = json_object_get(object, "text"), *coded = json_object_get(object, "base64");

	if (json_is_string(text)) {
		*ret_bytes = json_string_value(text);
		*ret_size = json_string_length(text);
		return true;
	}
	if (!json_is_string(coded) || cell__buf_add_unbase64(memory, json_string_value(coded), json_string_length(coded)) < 0)
		return false;
	*ret_bytes = memory->data ? memory->data : "";
	*ret_size = memory->size;
	return true;
}

static const char *handle_chunk(struct cell__remote_kernel *kernel, const json_t *data)
{
	CELL_AUTO_BUF struct cell__buf memory = CELL_BUF_INIT;
	const char *stream = json_string_value(json_object_get(data, "stream")), *bytes;
	size_t size;

	if (!stream || !bytes_of(data, &memory, &bytes, &size))
		return "a chunk without stream and text";
	kernel->events->output(kernel->owner, strcmp(stream, "stderr") ? CELL_STDOUT : CELL_STDERR, bytes, size);
	return NULL;
}

static const char *handle_display(struct cell__remote_kernel *kernel, const json_t *data)
{
	struct cell__buf memory[CELL_LIMIT_MIME_PARTS] = { CELL_BUF_INIT };
	const json_t *parts = json_object_get(data, "parts"), *part;
	struct cell__bundle bundle = { .n_parts = 0 };
	const char *problem = NULL, *type, *bytes;
	size_t i, size;

	if (!json_is_array(parts) || json_array_size(parts) > CELL_LIMIT_MIME_PARTS)
		return "a display without parts, or with too many";
	json_array_foreach(parts, i, part) {
		type = json_string_value(json_object_get(part, "type"));
		if (!type || !bytes_of(part, &memory[i], &bytes, &size)) {
			problem = "a part without type and data";
			break;
		}
		bundle.parts[bundle.n_parts++] = (struct cell_mime_part){ type, bytes, size };
	}
	if (!problem)
		kernel->events->display(kernel->owner, &bundle);
	for (i = 0; i < CELL_LIMIT_MIME_PARTS; i++)
		cell__buf_finish(&memory[i]);
	return problem;
}

static const char *cell__remote_handle_event(struct cell__remote_kernel *kernel, const struct cell__sse_event *event)
{
	const char *problem = NULL;
	json_t *data;

	if (!strcmp(event->type, "result")) {
		free(kernel->result);
		kernel->result = cell__strndup(event->data, event->size);
		kernel->result_size = event->size;
		return kernel->result ? NULL : "a result that there is no memory for";
	}
	if (!strcmp(event->type, "gap"))
		return "that events are missing";
	if (strcmp(event->type, "chunk") && strcmp(event->type, "image") && strcmp(event->type, "display"))
		return NULL;
	data = json_loadb(event->data, event->size, JSON_ALLOW_NUL, NULL);
	if (!json_is_object(data))
		problem = "an event that is no object";
	else if (!strcmp(event->type, "chunk"))
		problem = handle_chunk(kernel, data);
	else
		problem = handle_display(kernel, data);
	json_decref(data);
	return problem;
}

/* ---- results ---- */

struct result {
	json_t *root;
	struct cell__answer answer;
	struct cell__buf memory[CELL_LIMIT_MIME_PARTS];
	char *texts[CELL_LIMIT_MIME_PARTS];
	char *isolation;
};

static const char *text_in(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

/* As cell_result_json() writes them: JSON for JSON types, base64 for binary ones, text for the rest. */
static const char *take_mime(struct result *result, json_t *mime)
{
	static const char *const binaries[] = { "image/", "audio/", "video/", "application/pdf", "application/octet-stream" };
	struct cell__bundle *bundle = &result->answer.mime;
	const char *type;
	json_t *value;

	json_object_foreach(mime, type, value) {
		size_t n = bundle->n_parts, size = json_string_length(value);
		const char *data = json_string_value(value);
		bool binary = false;

		if (n == CELL_LIMIT_MIME_PARTS)
			return "a value with too many parts";
		for (size_t i = 0; i < sizeof(binaries) / sizeof(binaries[0]); i++)
			binary |= !strncmp(type, binaries[i], strlen(binaries[i]));
		if (!data) {
			data = result->texts[n] = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
			size = data ? strlen(data) : 0;
		} else if (binary && !strstr(type, "+xml")) {
			if (cell__buf_add_unbase64(&result->memory[n], data, size) < 0)
				return "a part that is not base64";
			data = result->memory[n].data ? result->memory[n].data : "";
			size = result->memory[n].size;
		}
		if (!data)
			return "a part that there is no memory for";
		bundle->parts[bundle->n_parts++] = (struct cell_mime_part){ type, data, size };
	}
	return NULL;
}

static const char *take_error(struct cell__answer *answer, const json_t *error, int *ret_code)
{
	const char *word = text_in(error, "code");
	const json_t *limit = json_object_get(error, "limit");

	*ret_code = 0;
	for (int i = CELL_E_INVALID; i < CELL_CODE_COUNT; i++) {
		if (!strcmp(cell_code_word(i), word))
			*ret_code = i;
	}
	if (!*ret_code)
		return "an error with a code that is not known";
	answer->failed = true;
	answer->interrupted = *ret_code == CELL_OUT_INTERRUPTED;
	answer->code = *ret_code == CELL_OUT_EXCEPTION || answer->interrupted ? 0 : *ret_code;
	answer->error_type = text_in(error, "type");
	answer->error_message = text_in(error, "message");
	answer->error_traceback = text_in(error, "traceback");
	if (json_is_object(limit)) {
		answer->limit = text_in(limit, "name");
		answer->limit_max = (uint64_t)json_integer_value(json_object_get(limit, "max"));
		answer->limit_used = (uint64_t)json_integer_value(json_object_get(limit, "used"));
	}
	return NULL;
}

/* Its parts but these: they are passed on as text, or came as events; whole numbers of any size would be errors here. */
static json_t *load_result(const struct cell__remote_kernel *kernel, const char *const *left_out)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	json_t *root;

	if (cell__buf_add(&text, kernel->result, kernel->result_size) < 0)
		return NULL;
	for (; *left_out; left_out++) {
		const char *path[] = { *left_out, NULL }, *place;
		size_t size;

		/* White space of the same length keeps the rest in its place. */
		if (cell__json_find(text.data, text.size, path, &place, &size) && size >= 4) {
			char *at = text.data + (place - text.data);

			memcpy(at, "null", 4);
			memset(at + 4, ' ', size - 4);
		}
	}
	root = json_loadb(text.data, text.size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
	return root;
}

static const char *read_result(struct cell__remote_kernel *kernel, struct result *result, int *ret_code)
{
	static const char *const passed_on[] = { "value", "displays", NULL }, *const fewer[] = { "value", "displays", "mime", NULL };
	static const char *const value_path[] = { "value", NULL };
	static const char *const isolation_path[] = { "isolation", NULL };
	struct cell__answer *answer = &result->answer;
	const char *problem = NULL, *place;
	json_t *repr;
	size_t size;

	result->root = load_result(kernel, passed_on);
	if (!result->root)
		result->root = load_result(kernel, fewer);
	if (!json_is_object(result->root))
		return "a result that is no object";
	if (cell__json_find(kernel->result, kernel->result_size, isolation_path, &place, &size) &&
	    asprintf(&result->isolation, "{%s,\"server\":%.*s}", kernel->receipt ? kernel->receipt : "\"executor\":\"remote\"", (int)size,
		     place) < 0)
		result->isolation = NULL;
	answer->isolation = result->isolation;
	answer->lost = strcmp(text_in(result->root, "state"), "lost") == 0;
	if (json_is_object(json_object_get(result->root, "error")))
		problem = take_error(answer, json_object_get(result->root, "error"), ret_code);
	repr = json_object_get(result->root, "repr");
	if (json_is_string(repr)) {
		answer->repr = json_string_value(repr);
		answer->repr_size = json_string_length(repr);
		if (cell__json_find(kernel->result, kernel->result_size, value_path, &place, &size) && cell__json_check(place, size) &&
		    (size != 4 || memcmp(place, "null", 4) || !strcmp(answer->repr, "None"))) {
			answer->value_json = place;
			answer->value_size = size;
		}
	}
	return problem ? problem : take_mime(result, json_object_get(result->root, "mime"));
}

static void cell__remote_protocol_error(struct cell__remote_kernel *kernel, const char *problem)
{
	struct cell_error err;

	cell_fail(&err, CELL_E_PROTOCOL, 0, "the server at %.100s sent %s", kernel->url, problem);
	cell__remote_fail(kernel, &err);
}

static void cell__remote_deliver(struct cell__remote_kernel *kernel)
{
	struct result result = { 0 };
	uint32_t run_id = kernel->run_id;
	int code = 0;
	const char *problem = read_result(kernel, &result, &code);
	struct cell_error err;

	if (problem) {
		cell__remote_protocol_error(kernel, problem);
	} else if (code && code < CELL_OUT_EXCEPTION) {
		cell_fail(&err, code == CELL_E_CLOSED ? CELL_E_EXPIRED : code, 0, "the server: %s", result.answer.error_message);
		cell__remote_fail(kernel, &err);
	} else {
		kernel->state = CELL_REMOTE_IDLE;
		kernel->events->result(kernel->owner, run_id, &result.answer);
	}
	json_decref(result.root);
	for (size_t i = 0; i < CELL_LIMIT_MIME_PARTS; i++) {
		cell__buf_finish(&result.memory[i]);
		free(result.texts[i]);
	}
	free(result.isolation);
}

/* ---- what came, one after the other ---- */

static void read_stream(struct cell__remote_kernel *kernel)
{
	struct cell__buf in = kernel->in;
	const char *at = in.data;
	size_t left = in.size;
	struct cell__sse_event event;
	struct cell_error err;
	const char *problem = NULL;
	int found = 0;

	/* A receiver may close the kernel: the bytes are ours meanwhile. */
	kernel->in = (struct cell__buf)CELL_BUF_INIT;
	while (!problem && left && kernel->state == CELL_REMOTE_RUNNING && !kernel->paused &&
	       (found = cell__sse_next(&kernel->sse, &at, &left, &event, &err)) > 0) {
		kernel->broken_us = 0;
		problem = cell__remote_handle_event(kernel, &event);
	}
	if (found < 0)
		problem = "a stream that is past its bounds";
	if (left && !problem && (kernel->state == CELL_REMOTE_RUNNING) && cell__buf_add(&kernel->in, at, left) < 0)
		problem = "more than there is memory for";
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
	if (kernel->state != CELL_REMOTE_RUNNING || kernel->paused)
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
	cell_fail(&err, CELL_E_IO, 0, "the server at %.100s ended a run's events before its result", kernel->url);
	try_again(kernel, &err);
}

/* ---- the vtable ---- */

static void remote_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	info->available = 1;
}

static char *text_of(const char *format, const char *text)
{
	char *made = NULL;

	return asprintf(&made, format, text) < 0 ? NULL : made;
}

static int set_place(struct cell__remote_kernel *kernel, const char *url, const char *token, struct cell_error *err)
{
	size_t size;

	if (!url || (strncmp(url, "http://", 7) && strncmp(url, "https://", 8) && strncmp(url, "unix:", 5)))
		return cell_fail(err, CELL_E_INVALID, 0, "the executor \"remote\" needs the URL of a server: http://, https:// or unix:PATH");
	if (!strncmp(url, "unix:", 5)) {
		kernel->socket = cell__strdup(url + 5);
		kernel->url = cell__strdup("http://localhost");
	} else {
		kernel->url = cell__strdup(url);
	}
	size = kernel->url ? strlen(kernel->url) : 0;
	while (size && kernel->url[size - 1] == '/')
		kernel->url[--size] = '\0';
	if (token) {
		if (strpbrk(token, "\r\n"))
			return cell_fail(err, CELL_E_INVALID, 0, "the token has a line break in it");
		kernel->authorization = text_of("Authorization: Bearer %s", token);
	}
	if (!kernel->url || (token && !kernel->authorization) || (!strncmp(url, "unix:", 5) && !kernel->socket))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	return 0;
}

static int get_remote(struct cell__executor_host *host, struct cell_error *err)
{
	struct cell__remote *remote;

	if (host->remote)
		return 0;
	remote = cell__alloc(1, sizeof(*remote));
	if (!remote)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	remote->host = host;
	if (cell__http_create(host->loop, MAX_CONNECTIONS, &remote->http, err) < 0) {
		free(remote);
		return -1;
	}
	host->remote = remote;
	return 0;
}

/* A kernel without a place. */
static struct cell__remote_kernel *make_kernel(struct cell__executor_host *host, const struct cell__kernel_spec *spec,
					       const struct cell__kernel_events *events, void *owner, struct cell_error *err)
{
	struct cell__remote_kernel *kernel;

	if (get_remote(host, err) < 0)
		return NULL;
	kernel = cell__alloc(1, sizeof(*kernel));
	if (kernel) {
		*kernel = (struct cell__remote_kernel){ .base.executor = &cell__remote_executor, .remote = host->remote, .events = events,
							.owner = owner, .reopen = spec->remote_reopen };
		kernel->workspace = spec->remote_workspace ? cell__strdup(spec->remote_workspace) : NULL;
		kernel->ca = spec->remote_ca ? cell__strdup(spec->remote_ca) : NULL;
	}
	if (!kernel || (spec->remote_workspace && !kernel->workspace) || (spec->remote_ca && !kernel->ca)) {
		if (kernel)
			free(kernel->workspace);
		free(kernel);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	cell__sse_init(&kernel->sse, CELL_REMOTE_MAX_EVENT_BYTES);
	return kernel;
}

static void start_kernel(struct cell__remote_kernel *kernel)
{
	uv_timer_init(&kernel->remote->host->loop->uv, &kernel->timer);
	kernel->timer.data = kernel;
}

static int remote_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
		       void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__remote_kernel *kernel;

	if (spec->namespaces)
		return cell_fail(err, CELL_E_INVALID, 0, "with the executor \"remote\" tools and storage are the server's: none can be given here");
	kernel = make_kernel(host, spec, events, owner, err);
	if (!kernel)
		return -1;
	if (set_place(kernel, spec->remote_url, spec->remote_token, err) < 0) {
		kernel_free(kernel);
		return -1;
	}
	start_kernel(kernel);
	cell__remote_open_session(kernel);
	*ret_kernel = &kernel->base;
	return 0;
}

int cell__remote_wait(struct cell__executor_host *host, const struct cell__executor *executor, const struct cell__kernel_spec *spec,
		      const struct cell__kernel_events *events, void *owner, void (*gone)(void *arg, const struct cell__exit *how), void *arg,
		      struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__remote_kernel *kernel = make_kernel(host, spec, events, owner, err);

	if (!kernel)
		return -1;
	kernel->base.executor = executor;
	kernel->gone = gone;
	kernel->gone_arg = arg;
	start_kernel(kernel);
	*ret_kernel = &kernel->base;
	return 0;
}

void cell__remote_connect(struct cell__kernel *base, const char *url, const char *token, const char *receipt)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;
	struct cell_error err;

	if (kernel->state != CELL_REMOTE_OPENING)
		return;
	kernel->receipt = cell__strdup(receipt);
	if (!kernel->receipt)
		cell__remote_out_of_memory(kernel);
	else if (set_place(kernel, url, token, &err) < 0)
		cell__remote_fail(kernel, &err);
	else
		cell__remote_open_session(kernel);
}

void cell__remote_refuse(struct cell__kernel *base, const struct cell_error *err)
{
	cell__remote_fail((struct cell__remote_kernel *)base, err);
}

void cell__remote_look(struct cell__kernel *base)
{
	(void)base; /* output between runs stays with the server */
}

int cell__remote_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	if (!cell__utf8_ok(code, size))
		return cell_fail(err, CELL_E_INVALID, 0, "code for a server must be UTF-8");
	free(kernel->code);
	free(cell__take_ptr(kernel->result));
	kernel->code = cell__strndup(code, size);
	if (!kernel->code)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the cell");
	kernel->code_size = size;
	kernel->run_id = run_id;
	kernel->interrupt_wanted = false;
	kernel->state = CELL_REMOTE_RUNNING;
	cell__remote_start_run(kernel);
	return 0;
}

int cell__remote_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
			struct cell_error *err)
{
	(void)base;
	(void)id;
	(void)json;
	(void)json_size;
	(void)raw;
	(void)raw_size;
	(void)err;
	return 0; /* its code asks the server, never us */
}

void cell__remote_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	if (kernel->run_id != run_id || kernel->state == CELL_REMOTE_IDLE || kernel->state == CELL_REMOTE_CLOSING)
		return;
	/* Before the server has begun it there is nothing that it would interrupt. */
	kernel->interrupt_wanted = true;
	cell__remote_schedule(kernel);
}

void cell__remote_pause(struct cell__kernel *base, bool paused)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	kernel->paused = paused;
	if (!paused)
		cell__remote_schedule(kernel);
}

static void session_closed(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	(void)code;
	(void)status; /* gone either way: what cannot be deleted expires */
	leave(exchange->kernel);
}

static void handle_close_timeout(uv_timer_t *timer)
{
	leave(timer->data);
}

static void end_session(struct cell__remote_kernel *kernel)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

	cell__remote_drop_exchanges(kernel);
	if (*kernel->session && !cell__buf_printf(&path, "/v1/sessions/%s", kernel->session) &&
	    cell__remote_begin(kernel, "DELETE", path.data, NULL, NULL, false, session_closed)) {
		uv_timer_start(&kernel->timer, handle_close_timeout, CLOSE_MS, 0);
		return;
	}
	leave(kernel);
}

void cell__remote_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;

	(void)grace_ms;
	if (kernel->state == CELL_REMOTE_CLOSING)
		return;
	kernel->state = CELL_REMOTE_CLOSING;
	kernel->how.asked = true;
	end_session(kernel);
}

int64_t cell__remote_pid(const struct cell__kernel *base)
{
	(void)base;
	return 0;
}

const struct cell__executor cell__remote_executor = {
	.name = "remote",
	.isolation = "server",
	.takes = CELL_TAKES_SERVER | CELL_TAKES_WORKSPACE,
	.calls_there = true,
	.probe = remote_probe,
	.open = remote_open,
	.look = cell__remote_look,
	.run = cell__remote_run,
	.reply = cell__remote_reply,
	.interrupt = cell__remote_interrupt,
	.pause = cell__remote_pause,
	.close = cell__remote_close,
	.pid = cell__remote_pid,
	.receipt = "{\"executor\":\"remote\"}",
};

struct destroying {
	struct cell__remote *remote;
	void (*done)(void *arg);
	void *arg;
};

static void handle_http_closed(void *arg)
{
	struct destroying *destroying = arg;

	free(destroying->remote);
	destroying->done(destroying->arg);
	free(destroying);
}

void cell__remote_destroy(struct cell__remote *remote, void (*done)(void *arg), void *arg)
{
	struct destroying *destroying = remote ? cell__alloc(1, sizeof(*destroying)) : NULL;

	if (!destroying) {
		done(arg); /* without memory its connections go with the process */
		return;
	}
	*destroying = (struct destroying){ remote, done, arg };
	cell__http_close(remote->http, handle_http_closed, destroying);
}
