/*
 * The events of a session for the console: its cells as they ran, whole, from all clients.  Kept only with --console.
 *
 * As the log (session_log.c) it never holds the code: a slow reader loses the oldest events and is told so.  All sessions together keep
 * HISTORY_BYTES, each at most SESSION_BYTES and its share of the whole.
 *
 * Most of the time nobody looks on.  Then a cell costs a few copies: what happens is kept as records, and they become events when a reader
 * comes.
 *
 *     begin, chunk, add, ended ──▶ record ──nobody reads──▶ pending ──a reader comes──▶ events (events.c)
 *                                     └────────────────somebody reads────────────────────▲
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

enum form { AS_EVENT, AS_CELL, AS_CHUNK, AS_ENDED };

struct record {
	struct record *next;
	enum form form;
	const char *type; /* static: an event's */
	uint64_t run_id;
	struct timespec at;   /* AS_CELL */
	double duration_ms;   /* AS_ENDED */
	const char *state;    /* AS_ENDED; static */
	bool is_stderr, has_repr, is_cut;
	bool is_part; /* AS_ENDED: the repr is the value's only form as well */
	size_t size;
	char bytes[]; /* JSON of an event, code, output, or a repr */
};

struct cell__history {
	struct cell__events events; /* first */
	unsigned refs;
	char stream[STREAM_DIGITS + 1]; /* differs after a restart of the server: numbers of events are those of one stream */
	struct record *first, **last; /* pending: newer than all events */
	size_t pending_bytes;
};

static void drop_record(struct cell__history *history)
{
	struct record *record = history->first;

	history->first = record->next;
	if (!history->first)
		history->last = &history->first;
	history->pending_bytes -= sizeof(*record) + record->size;
	free(record);
}

static void history_unref(struct cell__events *events)
{
	struct cell__history *history = (struct cell__history *)events;

	if (--history->refs)
		return;
	while (history->first)
		drop_record(history);
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
	history->last = &history->first;
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

/* ---- records become events ---- */

static int write_cell(struct cell__buf *json, const struct record *record)
{
	int rc = cell__buf_printf(json, ",\"at\":%lld.%03ld,", (long long)record->at.tv_sec, record->at.tv_nsec / 1000000);

	rc |= cell__buf_add_str(json, record->is_cut ? "\"cut\":true," : "");
	rc |= cell__buf_add_str(json, "\"code\":");
	return rc | cell__buf_add_json_string(json, record->bytes, record->size);
}

static int write_chunk(struct cell__buf *json, const struct record *record)
{
	int rc = cell__buf_printf(json, ",\"stream\":\"%s\",", record->is_stderr ? "stderr" : "stdout");

	return rc | cell__add_bytes(json, record->bytes, record->size);
}

/* Of a cell with a short value and nothing else: the usual one. */
static int write_ended(struct cell__buf *json, const struct record *record)
{
	const struct cell_mime_part part = { .type = "text/plain", .data = record->bytes, .size = record->size };
	int rc = cell__buf_add_str(json, ",\"repr\":");

	rc |= record->has_repr ? cell__buf_add_json_string(json, record->bytes, record->size) : cell__buf_add_str(json, "null");
	rc |= cell__buf_add_str(json, ",\"parts\":");
	rc |= cell__add_parts(json, &part, record->is_part);
	return rc | cell__buf_printf(json, ",\"notices\":[],\"duration_ms\":%.3f,\"state\":\"%s\",\"error\":null", record->duration_ms,
				     record->state);
}

static void write_record(struct cell__history *history, const struct record *record)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc;

	if (record->form == AS_EVENT) {
		(void)cell__events_add(&history->events, record->type, record->bytes, record->size);
		return;
	}
	rc = cell__buf_printf(&json, "{\"run_id\":%llu", (unsigned long long)record->run_id);
	rc |= record->form == AS_CELL    ? write_cell(&json, record)
	      : record->form == AS_CHUNK ? write_chunk(&json, record)
					 : write_ended(&json, record);
	rc |= cell__buf_add_str(&json, "}");
	if (!rc && record->form == AS_CHUNK && json.size > EVENT_BYTES) {
		json.size = 0;
		rc = cell__buf_printf(&json, "{\"run_id\":%llu,\"omitted_bytes\":%zu}", (unsigned long long)record->run_id, record->size);
	}
	if (!rc)
		(void)cell__events_add(&history->events, record->type, json.data, json.size);
}

/* A reader comes. */
static void write_pending(struct cell__history *history)
{
	while (history->first) {
		write_record(history, history->first);
		drop_record(history);
	}
}

/* NULL: out of memory, and the history lacks an event. */
static struct record *make_record(enum form form, const char *type, uint64_t run_id, const char *bytes, size_t size)
{
	struct record *record = cell__alloc(1, sizeof(*record) + size);

	if (!record)
		return NULL;
	*record = (struct record){ .form = form, .type = type, .run_id = run_id, .size = size };
	memcpy(record->bytes, bytes, size);
	return record;
}

/* Takes it. The oldest go first. */
static void add_record(struct cell__history *history, struct record *record)
{
	struct cell__events *events = &history->events;

	if (!record)
		return;
	if (events->n_readers) {
		write_record(history, record);
		free(record);
		return;
	}
	*history->last = record;
	history->last = &record->next;
	history->pending_bytes += sizeof(*record) + record->size;
	while (events->bytes + history->pending_bytes > events->max_bytes && (events->first || history->first->next)) {
		if (!cell__events_drop(events))
			drop_record(history);
	}
}

void cell__history_note(struct cell__history *history, const char *type, json_t *news)
{
	CELL_AUTO_FREE char *text = news && history ? json_dumps(news, JSON_COMPACT) : NULL;

	if (text)
		add_record(history, make_record(AS_EVENT, type, 0, text, strlen(text)));
	json_decref(news);
}

void cell__history_begin(struct cell__history *history, uint64_t run_id, const char *code, size_t size)
{
	struct record *record;

	if (!history)
		return;
	share_out(history);
	record = make_record(AS_CELL, "cell", run_id, code, cut(code, size, CODE_BYTES));
	if (!record)
		return;
	record->is_cut = size > CODE_BYTES;
	clock_gettime(CLOCK_REALTIME, &record->at);
	add_record(history, record);
}

void cell__history_chunk(struct cell__history *history, uint64_t run_id, const struct cell_event *event)
{
	struct record *record = history ? make_record(AS_CHUNK, "chunk", run_id, event->data, event->size) : NULL;

	if (!record)
		return;
	record->is_stderr = event->stream == CELL_STDERR;
	add_record(history, record);
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
		add_record(history, make_record(AS_EVENT, type, run_id, json.data, json.size));
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

/* Only a short repr, which may be the value's only form as well. */
static bool is_usual(const struct cell_result *result, bool *ret_is_part)
{
	const char *repr = result ? cell_result_repr(result) : NULL;
	size_t size = repr ? strlen(repr) : 0, n;
	const struct cell_mime_part *parts;

	if (!result || cell_result_error(result) || cell_result_notice_count(result) || size > VALUE_BYTES)
		return false;
	n = cell_result_mime(result, &parts);
	*ret_is_part = n == 1 && repr && !strcmp(parts->type, "text/plain") && parts->size == size && !memcmp(parts->data, repr, size);
	return !n || *ret_is_part;
}

static void add_usual(struct cell__history *history, uint64_t run_id, const struct cell_result *result, bool is_part)
{
	const char *repr = cell_result_repr(result);
	struct record *record = make_record(AS_ENDED, "ended", run_id, repr ? repr : "", repr ? strlen(repr) : 0);

	if (!record)
		return;
	record->has_repr = repr;
	record->is_part = is_part;
	record->duration_ms = cell_result_duration_ms(result);
	record->state = cell_result_state(result);
	add_record(history, record);
}

void cell__history_ended(struct cell__history *history, uint64_t run_id, const struct cell_result *result, const struct cell_error *err)
{
	const struct cell_outcome *error = result ? cell_result_error(result) : NULL;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	bool is_part;
	int rc;

	if (!history)
		return;
	if (is_usual(result, &is_part)) {
		add_usual(history, run_id, result, is_part);
		return;
	}
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
		add_record(history, make_record(AS_EVENT, "ended", run_id, json.data, json.size));
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
	write_pending(history);
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
