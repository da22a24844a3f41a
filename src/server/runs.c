/*
 * Cells on their way through the server.
 *
 *     turn:  waiting (for room among the running ones, and for those of its session before it) ──▶ running ──▶ ended
 *
 * A turn answers the request that waits for it, or keeps its events for readers (events.c).  Where the slowest of them is more than
 * HOLD_BYTES behind, the kernel is held.  Who comes too late is told of the gap.  The result is the last event.
 */
#include "server/server.h"

#include <stdio.h>
#include <string.h>

#define HOLD_BYTES (1u << 20)

static void start_waiting(struct cell_server *server);

/* ---- turns ---- */

static void turn_unref(struct cell__turn *turn)
{
	if (--turn->refs)
		return;
	cell__events_finish(&turn->events);
	free(turn->code);
	free(turn);
}

/* The session's reference is given up; the caller has another. */
static void unkeep(struct cell__served *served, struct cell__turn *turn)
{
	struct cell__turn **at = &served->kept;

	while (*at && *at != turn)
		at = &(*at)->kept_next;
	if (!*at)
		return;
	*at = turn->kept_next;
	turn->refs--;
}

/* The oldest ended turns go when a session or the server has too many. */
static void forget_ended(struct cell_server *server, struct cell__turn *turn)
{
	struct cell__turn **at = &server->ended_first, *before = NULL;

	while (*at && *at != turn) {
		before = *at;
		at = &(*at)->ended_next;
	}
	if (!*at)
		return;
	*at = turn->ended_next;
	if (server->ended_last == turn)
		server->ended_last = before;
	cell__events_forget(&turn->events);
	if (turn->served)
		unkeep(turn->served, turn);
	turn_unref(turn);
}

static void keep_ended(struct cell_server *server, struct cell__turn *turn)
{
	struct cell__turn *oldest = NULL;
	unsigned ended = 0;

	turn->ended_next = NULL;
	if (server->ended_last)
		server->ended_last->ended_next = turn;
	else
		server->ended_first = turn;
	server->ended_last = turn;
	cell__events_keep(&turn->events);
	turn->refs++;
	for (struct cell__turn *at = turn->served->kept; at; at = at->kept_next) {
		if (at->state == CELL_TURN_ENDED) {
			ended++;
			oldest = at;
		}
	}
	if (ended > CELL_SERVER_MAX_RUNS_KEPT)
		forget_ended(server, oldest);
	while ((int64_t)server->ended_bytes > server->limits.kept_bytes && server->ended_first != server->ended_last)
		forget_ended(server, server->ended_first);
}

void cell__turns_forget(struct cell__served *served)
{
	struct cell__turn *turn;

	while ((turn = served->kept)) {
		turn->refs++;
		forget_ended(served->server, turn);
		unkeep(served, turn);
		turn->served = NULL;
		turn_unref(turn);
	}
}

struct cell__turn *cell__turn_find(struct cell__served *served, const char *number)
{
	char *end;
	unsigned long long wanted = strtoull(number, &end, 10);
	struct cell__turn *turn = served->kept;

	if (*end || *number < '0' || *number > '9')
		return NULL;
	while (turn && turn->number != wanted)
		turn = turn->kept_next;
	return turn;
}

/* ---- events ---- */

static void handle_moved(struct cell__events *events)
{
	struct cell__turn *turn = (struct cell__turn *)events;
	bool held = events->behind_bytes > HOLD_BYTES && turn->state == CELL_TURN_RUNNING;

	if (held != turn->held && turn->served && turn->served->session) {
		turn->held = held;
		cell__session_hold(turn->served->session, turn->run_id, held);
	}
}

static void handle_reader_gone(struct cell__events *events)
{
	turn_unref((struct cell__turn *)events);
}

/* Memory that is gone costs an event, and the reader sees that a number is missing. */
static struct cell__events_item *add_event(struct cell__turn *turn, const char *type, const char *json, size_t size)
{
	return cell__events_add(&turn->events, type, json, size);
}

static int add_bytes(struct cell__buf *out, const char *bytes, size_t size)
{
	int rc;

	if (cell__utf8_ok(bytes, size)) {
		rc = cell__buf_add_str(out, "\"text\":");
		return rc | cell__buf_add_json_string(out, bytes, size);
	}
	rc = cell__buf_add_str(out, "\"base64\":\"");
	rc |= cell__buf_add_base64(out, bytes, size);
	return rc | cell__buf_add_str(out, "\"");
}

static void add_chunk(struct cell__turn *turn, const struct cell_event *event)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc = cell__buf_printf(&json, "{\"stream\":\"%s\",", event->stream == CELL_STDERR ? "stderr" : "stdout");

	rc |= add_bytes(&json, event->data, event->size);
	rc |= cell__buf_add_str(&json, "}");
	if (!rc)
		(void)add_event(turn, "chunk", json.data, json.size);
}

static void add_display(struct cell__turn *turn, const struct cell_event *event)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc = cell__buf_add_str(&json, "{\"parts\":[");
	bool image = false;

	for (size_t i = 0; i < event->n_parts; i++) {
		const struct cell_mime_part *part = &event->parts[i];

		image |= !strncmp(part->type, "image/", 6);
		rc |= cell__buf_add_str(&json, i ? ",{\"type\":" : "{\"type\":");
		rc |= cell__buf_add_json_string(&json, part->type, strlen(part->type));
		rc |= cell__buf_add_str(&json, ",");
		rc |= add_bytes(&json, part->data, part->size);
		rc |= cell__buf_add_str(&json, "}");
	}
	rc |= cell__buf_add_str(&json, "]}");
	if (!rc)
		(void)add_event(turn, image ? "image" : "display", json.data, json.size);
}

static void add_member(json_t *object, const char *name, const char *text)
{
	if (text)
		json_object_set_new(object, name, json_string(text));
}

static void add_call(struct cell__turn *turn, const struct cell_event *event, const char *type)
{
	const struct cell_call_info *call = event->call;
	json_t *object = json_pack("{s:I,s:s,s:s,s:s,s:s,s:s}", "id", (json_int_t)call->id, "request_id", call->request_id, "kind",
				   call->kind, "tool", call->tool, "callable", call->callable, "adapter", call->adapter);
	char *text;

	if (event->type == CELL_EVENT_APPROVAL || event->type == CELL_EVENT_CALL_STARTED)
		json_object_set_new(object, "args", json_loadb(call->args, call->args_size, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL));
	add_member(object, "decision", event->decision);
	add_member(object, event->type == CELL_EVENT_CALL_ENDED ? "error" : "reason", event->message);
	if (event->type == CELL_EVENT_CALL_ENDED)
		json_object_set_new(object, "duration_ms", json_real(event->duration_ms));
	text = object ? json_dumps(object, JSON_COMPACT) : NULL;
	if (text)
		(void)add_event(turn, type, text, strlen(text));
	free(text);
	json_decref(object);
}

/* What a result is when there is none: the cell did not run, or memory is gone. */
static char *failure_json(const struct cell_error *err)
{
	json_t *failure = json_pack("{s:n,s:n,s:{},s:s,s:s,s:s,s:{s:s,s:s,s:s,s:s},s:[],s:[],s:f,s:s}", "value", "repr", "mime", "stdout", "",
				    "stderr", "", "text", "", "error", "code", cell_code_word(err->code), "type", "", "message", err->msg,
				    "traceback", "", "images", "displays", "duration_ms", 0.0, "state", "lost");
	char *text = failure ? json_dumps(failure, JSON_COMPACT) : NULL;

	json_decref(failure);
	return text;
}

static void add_result(struct cell__turn *turn, const struct cell_result *result, const struct cell_error *err)
{
	static const char none[] = "{\"error\":{\"code\":\"no_memory\",\"message\":\"out of memory for the result\"}}";
	CELL_AUTO_FREE char *json = result ? cell_result_json(result) : failure_json(err);
	size_t size = json ? strlen(json) : sizeof(none) - 1;
	struct cell__events_item *event = add_event(turn, "result", json ? json : none, size);

	/* "...data: JSON\n\n" */
	if (event) {
		turn->result = event->text + event->size - 2 - size;
		turn->result_size = size;
	}
}

/* ---- beginnings and ends ---- */

/* result NULL: it never ran, err says why. */
static void turn_ended(struct cell__turn *turn, struct cell_result *result, const struct cell_error *err)
{
	struct cell_server *server = turn->server;
	struct cell__served *served = turn->served;
	struct cell__request *waiter = cell__take_ptr(turn->waiter);

	server->counts.runs++;
	server->counts.runs_failed += !result || cell_result_error(result);
	if (turn->state == CELL_TURN_RUNNING) {
		server->n_running--;
		served->running = NULL;
	}
	turn->state = CELL_TURN_ENDED;
	turn->held = false;
	served->turns--;
	served->cells++;
	served->used_us = cell__now_us();
	if (waiter && result) {
		turn->answer(waiter, result);
	} else if (waiter) {
		cell__answer_error(waiter, err);
	} else {
		add_result(turn, result, err);
		keep_ended(server, turn);
		cell__events_end(&turn->events);
	}
	cell_result_destroy(result);
	turn_unref(turn);
	if (server->queue)
		start_waiting(server);
}

static void handle_event(void *arg, const struct cell_event *event)
{
	struct cell__turn *turn = arg;

	if (event->type == CELL_EVENT_RESULT) {
		turn_ended(turn, event->result, NULL);
		return;
	}
	if (!turn->streams)
		return;
	switch (event->type) {
	case CELL_EVENT_CHUNK:
		add_chunk(turn, event);
		break;
	case CELL_EVENT_DISPLAY:
		add_display(turn, event);
		break;
	case CELL_EVENT_CALL_STARTED:
		add_call(turn, event, "call_started");
		break;
	case CELL_EVENT_CALL_ENDED:
		add_call(turn, event, "call_ended");
		break;
	case CELL_EVENT_APPROVAL:
		add_call(turn, event, "approval");
		break;
	case CELL_EVENT_APPROVAL_ENDED:
		add_call(turn, event, "approval_ended");
		break;
	default:
		break;
	}
}

static void turn_start(struct cell__turn *turn)
{
	struct cell__served *served = turn->served;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	CELL_AUTO_FREE char *code = cell__take_ptr(turn->code);
	struct cell_error err;

	turn->state = CELL_TURN_RUNNING;
	turn->server->n_running++;
	served->running = turn;
	options.timeout_ms = turn->timeout_ms;
	options.on_event = handle_event;
	options.event_arg = turn;
	if (cell__session_start(served->session, code, turn->code_size, &options, &turn->run_id, &err) < 0)
		turn_ended(turn, NULL, &err);
}

/* The first whose session is free. */
static void start_waiting(struct cell_server *server)
{
	struct cell__turn **at = &server->queue, *before = NULL;

	while (*at && (int64_t)server->n_running < server->limits.max_runs) {
		struct cell__turn *turn = *at;

		if (turn->served->running) {
			before = turn;
			at = &turn->queue_next;
			continue;
		}
		*at = turn->queue_next;
		if (server->queue_last == turn)
			server->queue_last = before;
		server->n_queued--;
		turn_start(turn);
		/* Starting may have ended others: from the beginning. */
		at = &server->queue;
		before = NULL;
	}
}

static void enqueue(struct cell_server *server, struct cell__turn *turn)
{
	turn->queue_next = NULL;
	if (server->queue_last)
		server->queue_last->queue_next = turn;
	else
		server->queue = turn;
	server->queue_last = turn;
	server->n_queued++;
}

bool cell__turn_begin(struct cell__request *request, const char *code, size_t size, int64_t timeout_ms,
		      void (*answer)(struct cell__request *request, struct cell_result *result), struct cell__turn **ret_turn)
{
	struct cell_server *server = request->server;
	struct cell__served *served = request->served;
	bool waits = served->turns || (int64_t)server->n_running >= server->limits.max_runs;
	struct cell__turn *turn;

	if (served->closing) {
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "this session has ended");
		return false;
	}
	if (waits && (int64_t)server->n_queued >= server->limits.max_queue) {
		cell__answer_busy(request, 1, "too many cells wait for their turn");
		return false;
	}
	turn = cell__alloc(1, sizeof(*turn));
	if (!turn || !(turn->code = cell__strndup(code, size))) {
		free(turn);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "no memory for the cell");
		return false;
	}
	cell__events_init(&turn->events, server);
	turn->events.moved = handle_moved;
	turn->events.unref = handle_reader_gone;
	turn->served = served;
	turn->server = server;
	turn->number = served->next_turn++;
	turn->code_size = size;
	turn->timeout_ms = timeout_ms;
	turn->refs = 1; /* until it has ended */
	served->turns++;
	if (answer) {
		turn->waiter = request;
		turn->answer = answer;
	} else {
		turn->streams = true;
		turn->kept_next = served->kept;
		served->kept = turn;
		turn->refs++;
		*ret_turn = turn;
	}
	if (waits)
		enqueue(server, turn);
	else
		turn_start(turn);
	return true;
}

void cell__turns_cancel(struct cell_server *server, struct cell__served *served)
{
	struct cell__turn *turn = cell__take_ptr(server->queue), *next;
	struct cell_error err;

	server->queue_last = NULL;
	server->n_queued = 0;
	cell_fail(&err, CELL_E_CLOSED, 0, served ? "the session was closed" : "the server is stopping");
	/* The others stand in line again first: an end may start one of them. */
	struct cell__turn *ends = NULL, **last = &ends;
	for (; turn; turn = next) {
		next = turn->queue_next;
		if (served && turn->served != served) {
			enqueue(server, turn);
		} else {
			turn->queue_next = NULL;
			*last = turn;
			last = &turn->queue_next;
		}
	}
	for (; ends; ends = next) {
		next = ends->queue_next;
		turn_ended(ends, NULL, &err);
	}
}

/* ---- readers ---- */

void cell__turn_stream(struct cell__request *request, struct cell__turn *turn, uint64_t after)
{
	struct MHD_Response *response = cell__events_read(request, &turn->events, after, true);
	char number[24];

	if (!response)
		return;
	turn->refs++;
	snprintf(number, sizeof(number), "%llu", (unsigned long long)turn->number);
	MHD_add_response_header(response, "X-Run-ID", number);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

void cell__turns_sweep(struct cell_server *server, int64_t now_us)
{
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		for (struct cell__turn *turn = served->kept; turn; turn = turn->kept_next)
			cell__events_sweep(&turn->events, now_us);
	}
}

void cell__turns_release(struct cell_server *server)
{
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		for (struct cell__turn *turn = served->kept; turn; turn = turn->kept_next)
			cell__events_release(&turn->events);
	}
}

char *cell__turn_describe(const struct cell__turn *turn)
{
	static const char *const states[] = { "waiting", "running", "ended" };
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_printf(&out, "{\"run_id\":%llu,\"session_id\":\"%s\",\"state\":\"%s\",\"last_event\":%llu,\"result\":",
				  (unsigned long long)turn->number, turn->served ? turn->served->id : "", states[turn->state],
				  (unsigned long long)turn->events.next_number - 1);

	rc |= turn->result ? cell__buf_add(&out, turn->result, turn->result_size) : cell__buf_add_str(&out, "null");
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
	rc |= cell__buf_printf(&out, ",\"error_code\":%s%s%s,\"state\":\"%s\",\"execution_time_ms\":%.3f,\"session_id\":\"%s\"}",
			       error ? "\"" : "", error ? cell_code_word(error->code) : "null", error ? "\"" : "",
			       cell_result_state_kept(result) ? "kept" : "lost", cell_result_duration_ms(result), session_id);
	return rc ? NULL : cell__buf_take(&out);
}
