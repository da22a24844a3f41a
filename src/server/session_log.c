/*
 * What the cells of a session print, for people who look on: `workcell logs`, `workcell attach`.
 *
 * The last LOG_BYTES are kept, of all cells whoever started them.  Readers never hold the code: a slow one loses the oldest events and
 * is told so (events.c).  The log ends with its session; readers keep it until they have left.
 *
 *     cell {run_id, code}     chunk {run_id, stream, text | base64}     ended {run_id, error, message?, repr?, duration_ms}
 *     branch {kind, ...}: as CELL_EVENT_BRANCH
 */
#include "server/api.h"

#include <string.h>

#include "gate/redact.h"

#define LOG_BYTES (64u * 1024u)
#define VALUE_BYTES 4096u         /* of a value, or of an error's message */
#define CHUNK_BYTES (16u * 1024u) /* of one chunk; its end is kept */

struct cell__session_log {
	struct cell__events events; /* first */
	unsigned refs;
};

static void log_unref(struct cell__events *events)
{
	struct cell__session_log *log = (struct cell__session_log *)events;

	if (--log->refs)
		return;
	cell__events_finish(events);
	free(log);
}

struct cell__session_log *cell__session_log_create(struct cell_server *server)
{
	struct cell__session_log *log = cell__alloc(1, sizeof(*log));

	if (!log)
		return NULL;
	cell__events_init(&log->events, server);
	log->events.max_bytes = LOG_BYTES;
	log->events.unref = log_unref;
	log->refs = 1;
	return log;
}

void cell__session_log_end(struct cell__session_log *log)
{
	if (!log)
		return;
	cell__events_end(&log->events);
	log_unref(&log->events);
}

struct cell__events *cell__session_log_events(struct cell__session_log *log)
{
	return log ? &log->events : NULL;
}

/* ---- what is written ---- */

/* Cuts at the beginning of a character. */
static size_t cut_text(const char *text, size_t size, size_t max)
{
	if (size <= max)
		return size;
	while (max && ((unsigned char)text[max] & 0xc0) == 0x80)
		max--;
	return max;
}

char *cell__code_line(const char *code, size_t size)
{
	const char *end;

	while (size && strchr(" \t\r\n", *code)) {
		code++;
		size--;
	}
	end = memchr(code, '\n', size);
	if (end)
		size = (size_t)(end - code);
	return cell__strndup(code, cut_text(code, size, CELL__REDACT_LIMIT_STRING));
}

int cell__add_code_line(const struct cell_server *server, const char *line, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT, shown = CELL_BUF_INIT;
	const char *text;
	size_t size;
	bool is_cut;

	/* Redact before truncating: half a secret would no longer match. */
	if (cell__buf_add_utf8(&clean, line, strlen(line)) < 0 ||
	    cell__redact_text(server->redactor, clean.data ? clean.data : "", clean.size, NULL, &shown) < 0)
		return -1;
	text = shown.data ? shown.data : "";
	size = cut_text(text, shown.size, CELL_SERVER_CODE_LINE);
	is_cut = size < shown.size;
	clean.size = 0;
	if (cell__buf_add(&clean, text, size) < 0 || (is_cut && cell__buf_add_str(&clean, "\xe2\x80\xa6") < 0))
		return -1;
	return cell__buf_add_json_string(out, clean.data ? clean.data : "", clean.size);
}

void cell__session_log_branch(struct cell__session_log *log, json_t *news)
{
	CELL_AUTO_FREE char *text = news && log ? json_dumps(news, JSON_COMPACT) : NULL;

	if (text)
		(void)cell__events_add(&log->events, "branch", text, strlen(text));
	json_decref(news);
}

void cell__session_log_begin(struct cell__session_log *log, uint64_t run_id, const char *line)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc = log ? cell__buf_printf(&json, "{\"run_id\":%llu,\"code\":", (unsigned long long)run_id) : -1;

	if (rc < 0 || cell__add_code_line(log->events.server, line ? line : "", &json) < 0 || cell__buf_add_str(&json, "}") < 0)
		return; /* the log lacks a line */
	(void)cell__events_add(&log->events, "cell", json.data, json.size);
}

void cell__session_log_chunk(struct cell__session_log *log, uint64_t run_id, const struct cell_event *event)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	size_t skipped = event->size > CHUNK_BYTES ? event->size - CHUNK_BYTES : 0;
	int rc;

	if (!log)
		return;
	while (skipped && skipped < event->size && ((unsigned char)event->data[skipped] & 0xc0) == 0x80)
		skipped++;
	rc = cell__buf_printf(&json, "{\"run_id\":%llu,\"stream\":\"%s\",", (unsigned long long)run_id,
			      event->stream == CELL_STDERR ? "stderr" : "stdout");
	rc |= cell__add_bytes(&json, event->data + skipped, event->size - skipped);
	rc |= cell__buf_add_str(&json, "}");
	if (!rc)
		(void)cell__events_add(&log->events, "chunk", json.data, json.size);
}

static int add_text(struct cell__buf *json, const char *name, const char *text)
{
	if (!text)
		return 0;
	if (cell__buf_printf(json, ",\"%s\":", name) < 0)
		return -1;
	return cell__buf_add_json_string(json, text, cut_text(text, strlen(text), VALUE_BYTES));
}

void cell__session_log_ended(struct cell__session_log *log, uint64_t run_id, const struct cell_result *result)
{
	const struct cell_outcome *error = result ? cell_result_error(result) : NULL;
	const char *word = !result ? "closed" : error ? cell_code_word(error->code) : NULL;
	const char *repr = result ? cell_result_repr(result) : NULL, *message = error ? error->message : NULL;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc;

	if (!log)
		return;
	rc = cell__buf_printf(&json, "{\"run_id\":%llu,\"error\":%s%s%s,\"duration_ms\":%.3f", (unsigned long long)run_id, word ? "\"" : "",
			      word ? word : "null", word ? "\"" : "", result ? cell_result_duration_ms(result) : 0.0);
	rc |= add_text(&json, "message", message);
	rc |= add_text(&json, "repr", repr);
	rc |= cell__buf_add_str(&json, "}");
	if (!rc)
		(void)cell__events_add(&log->events, "ended", json.data, json.size);
}

/* ---- readers ---- */

void cell__handle_v1_log(struct cell__request *request)
{
	struct MHD_Response *response;
	struct cell__session_log *log;
	uint64_t after;

	if (!cell__served_find(request, request->params[0], false))
		return;
	log = request->served->log;
	if (!log) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for this session's log");
		return;
	}
	response = cell__last_event(request, &log->events, &after) ? cell__events_read(request, &log->events, after, true) : NULL;
	if (!response)
		return;
	log->refs++;
	if (json_is_false(json_object_get(request->query, "follow")))
		cell__events_release_newest(&log->events);
	cell__served_release(request); /* looking on does not keep a session */
	cell__answer_response(request, MHD_HTTP_OK, response);
}
