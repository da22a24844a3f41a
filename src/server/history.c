/*
 * The events of a session for the console: its cells as they ran, whole, from all clients.  Kept only with --console.
 *
 * As the log (session_log.c) it never holds the code: a slow reader loses the oldest events and is told so.  All sessions together keep
 * HISTORY_BYTES, each at most SESSION_BYTES and its share of the whole.
 *
 *     cell {run_id, at, code}     ended {run_id, repr, parts, error, duration_ms, state, notices}     branch {kind, ...}     reset {}
 *     and those of a run (event_json.c), with its run_id
 */
#include "server/api.h"

#include <string.h>
#include <time.h>

#define HISTORY_BYTES (256u << 20)
#define SESSION_BYTES (32u << 20)
#define LEAST_BYTES (256u << 10)
#define CODE_BYTES (256u << 10)  /* of a cell; more is cut */
#define EVENT_BYTES (4u << 20)   /* of one event; a larger one is replaced by a note of its size */
#define STREAM_DIGITS 16
#define VALUE_BYTES (256u << 10) /* of a value's repr, and of a traceback */

struct cell__history {
	struct cell__events events; /* first */
	unsigned refs;
	char stream[STREAM_DIGITS + 1]; /* differs after a restart of the server: numbers of events are those of one stream */
};

static void history_unref(struct cell__events *events)
{
	struct cell__history *history = (struct cell__history *)events;

	if (--history->refs)
		return;
	cell__events_finish(events);
	free(history);
}

struct cell__history *cell__history_create(struct cell_server *server)
{
	struct cell__history *history = server->opts.console ? cell__alloc(1, sizeof(*history)) : NULL;

	if (!history)
		return NULL;
	cell__events_init(&history->events, server);
	history->events.max_bytes = SESSION_BYTES;
	history->events.unref = history_unref;
	history->refs = 1;
	cell__random_hex(history->stream, STREAM_DIGITS);
	return history;
}

void cell__history_end(struct cell__history *history)
{
	if (!history)
		return;
	cell__events_end(&history->events);
	history_unref(&history->events);
}

struct cell__events *cell__history_events(struct cell__history *history)
{
	return history ? &history->events : NULL;
}

/* Fewer sessions keep more each. */
static void share_out(struct cell__history *history)
{
	const struct cell_server *server = history->events.server;
	size_t share = HISTORY_BYTES / (size_t)(server->use->sessions > 0 ? server->use->sessions : 1);

	history->events.max_bytes = share < LEAST_BYTES ? LEAST_BYTES : share > SESSION_BYTES ? SESSION_BYTES : share;
}

static size_t cut(const char *text, size_t size, size_t max)
{
	return size <= max ? size : max - cell__utf8_cut(text, max);
}

void cell__history_note(struct cell__history *history, const char *type, json_t *news)
{
	CELL_AUTO_FREE char *text = news && history ? json_dumps(news, JSON_COMPACT) : NULL;

	if (text)
		(void)cell__events_add(&history->events, type, text, strlen(text));
	json_decref(news);
}

void cell__history_begin(struct cell__history *history, uint64_t run_id, const char *code, size_t size)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	struct timespec now;
	int rc;

	if (!history)
		return;
	share_out(history);
	clock_gettime(CLOCK_REALTIME, &now);
	rc = cell__buf_printf(&json, "{\"run_id\":%llu,\"at\":%lld.%03ld,", (unsigned long long)run_id, (long long)now.tv_sec,
			      now.tv_nsec / 1000000);
	rc |= cell__buf_add_str(&json, size > CODE_BYTES ? "\"cut\":true," : "");
	rc |= cell__buf_add_str(&json, "\"code\":");
	rc |= cell__buf_add_json_string(&json, code, cut(code, size, CODE_BYTES));
	rc |= cell__buf_add_str(&json, "}");
	if (!rc)
		(void)cell__events_add(&history->events, "cell", json.data, json.size);
}

void cell__history_add(struct cell__history *history, uint64_t run_id, const char *type, const struct cell__buf *event)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc;

	if (!history)
		return;
	rc = cell__buf_printf(&json, "{\"run_id\":%llu,", (unsigned long long)run_id);
	if (event->size > EVENT_BYTES)
		rc |= cell__buf_printf(&json, "\"omitted_bytes\":%zu}", event->size);
	else
		rc |= cell__buf_add(&json, event->data + 1, event->size - 1); /* without its brace */
	if (!rc)
		(void)cell__events_add(&history->events, type, json.data, json.size);
}

static int add_string(struct cell__buf *json, const char *name, const char *text)
{
	int rc = cell__buf_printf(json, ",\"%s\":", name);

	if (!text)
		return rc | cell__buf_add_str(json, "null");
	return rc | cell__buf_add_json_string(json, text, cut(text, strlen(text), VALUE_BYTES));
}

static int add_outcome(struct cell__buf *json, const struct cell_result *result)
{
	const struct cell_mime_part *parts;
	size_t n = cell_result_mime(result, &parts), bytes = 0;
	int rc;

	for (size_t i = 0; i < n; i++)
		bytes += parts[i].size;
	rc = add_string(json, "repr", cell_result_repr(result));
	rc |= cell__buf_add_str(json, ",\"parts\":");
	rc |= bytes > EVENT_BYTES ? cell__buf_add_str(json, "[]") : cell__add_parts(json, parts, n);
	rc |= cell__buf_add_str(json, ",\"notices\":[");
	for (size_t i = 0; i < cell_result_notice_count(result); i++) {
		const char *notice = cell_result_notice(result, i);

		rc |= cell__buf_add_str(json, i ? "," : "");
		rc |= cell__buf_add_json_string(json, notice, strlen(notice));
	}
	return rc | cell__buf_printf(json, "],\"duration_ms\":%.3f,\"state\":\"%s\"", cell_result_duration_ms(result),
				     cell_result_state(result));
}

void cell__history_ended(struct cell__history *history, uint64_t run_id, const struct cell_result *result, const struct cell_error *err)
{
	const struct cell_outcome *error = result ? cell_result_error(result) : NULL;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc;

	if (!history)
		return;
	rc = cell__buf_printf(&json, "{\"run_id\":%llu", (unsigned long long)run_id);
	if (result)
		rc |= add_outcome(&json, result);
	if (error || !result) {
		rc |= cell__buf_printf(&json, ",\"error\":{\"code\":\"%s\"",
				       cell_code_word(error ? error->code
						      : err ? err->code
							    : CELL_E_CLOSED));
		rc |= add_string(&json, "type", error ? error->type : "");
		rc |= add_string(&json, "message", error ? error->message : err ? err->msg : "it did not run");
		rc |= add_string(&json, "traceback", error ? error->traceback : "");
		rc |= cell__buf_add_str(&json, "}}");
	} else {
		rc |= cell__buf_add_str(&json, ",\"error\":null}");
	}
	if (!rc)
		(void)cell__events_add(&history->events, "ended", json.data, json.size);
}

void cell__handle_v1_session_events(struct cell__request *request)
{
	struct MHD_Response *response;
	struct cell__history *history;
	uint64_t after;

	if (!cell__served_find(request, request->params[0], false))
		return;
	history = request->served->history;
	if (!history) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND,
				  "the events of sessions are kept only for the console: start the server with --console");
		return;
	}
	response = cell__last_event(request, &history->events, &after) ? cell__events_read(request, &history->events, after, true) : NULL;
	if (!response)
		return;
	MHD_add_response_header(response, "X-Stream-ID", history->stream);
	history->refs++;
	if (json_is_false(json_object_get(request->query, "follow")))
		cell__events_release_newest(&history->events);
	cell__served_release(request); /* looking on does not keep a session */
	cell__answer_response(request, MHD_HTTP_OK, response);
}
