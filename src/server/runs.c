/*
 * Cells on their way through the server.
 *
 *     turn:  waiting (for room among the running ones, and for those of its session before it) ──▶ running ──▶ ended
 *
 * A turn answers the request that waits for it, or keeps its events for readers.  An event is kept as the text that is sent.
 *
 *     first ... │ given to all readers, kept to be taken up again │ wanted ... │ last
 *               └── dropped when these are more than stream_bytes └── more than HOLD_BYTES of these: the kernel is held
 *
 * A reader whose connection broke is waited for: what it has not had is kept for resume_ms.  After that, and for a run that
 * nobody reads, the oldest events go, and who comes later is told of the gap.  The result is the last event and never goes
 * before its turn does.
 */
#include "server/server.h"

#include <stdio.h>
#include <string.h>

#include "wire/sse.h"

#define BLOCK_BYTES (32u * 1024u)
#define ALIVE_US 15000000
#define HOLD_BYTES (1u << 20)

struct cell__reader {
	struct cell__turn *turn;
	struct MHD_Connection *connection;
	struct cell__turn_event *at; /* the next event; NULL: there is none yet */
	uint64_t next;               /* its number */
	size_t sent;                 /* of it */
	uint64_t at_bytes;           /* where it begins, in bytes of all events there ever were */
	struct cell__buf before;     /* a gap, a comment: sent first */
	bool suspended, released;
	int64_t moved_us;
	struct cell__reader *sibling, **at_list;
};

static void start_waiting(struct cell_server *server);

/* ---- turns ---- */

static void turn_unref(struct cell__turn *turn)
{
	struct cell__turn_event *event;

	if (--turn->refs)
		return;
	while ((event = turn->first)) {
		turn->first = event->next;
		free(event);
	}
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
	server->ended_bytes -= turn->bytes;
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
	server->ended_bytes += turn->bytes;
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

static void wake(struct cell__reader *reader)
{
	if (!reader->suspended)
		return;
	reader->suspended = false;
	MHD_resume_connection(reader->connection);
	cell__http_kick(reader->turn->server);
}

/* Drops what nobody wants, and holds the kernel when that is not enough. */
static void trim(struct cell__turn *turn)
{
	uint64_t end = turn->dropped_bytes + turn->bytes, wanted = turn->awaited ? turn->wanted_bytes : end;
	bool held;

	for (struct cell__reader *reader = turn->readers; reader; reader = reader->sibling) {
		if (reader->at_bytes < wanted)
			wanted = reader->at_bytes;
	}
	/* What was given to a connection that broke may not have arrived: that is kept for longer than it is wanted. */
	while (wanted > turn->dropped_bytes + (uint64_t)turn->server->limits.stream_bytes && turn->first != turn->last) {
		struct cell__turn_event *event = turn->first;

		turn->first = event->next;
		turn->dropped_bytes += event->size;
		turn->first_number++;
		turn->bytes -= event->size;
		if (turn->state == CELL_TURN_ENDED)
			turn->server->ended_bytes -= event->size;
		free(event);
	}
	held = end - wanted > HOLD_BYTES && turn->state == CELL_TURN_RUNNING;
	if (held != turn->held && turn->served && turn->served->session) {
		turn->held = held;
		cell__session_hold(turn->served->session, turn->run_id, held);
	}
}

/* Memory that is gone costs an event, and the reader sees that a number is missing. */
static struct cell__turn_event *add_event(struct cell__turn *turn, const char *type, const char *json, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__turn_event *event;
	char id[24];

	snprintf(id, sizeof(id), "%llu", (unsigned long long)turn->next_number);
	if (cell__sse_add_event(&text, type, id, json, size) < 0 || !(event = cell__alloc(1, sizeof(*event) + text.size)))
		return NULL;
	event->size = text.size;
	event->next = NULL;
	memcpy(event->text, text.data, text.size);
	turn->next_number++;
	if (turn->last)
		turn->last->next = event;
	else
		turn->first = event;
	turn->last = event;
	turn->bytes += event->size;
	for (struct cell__reader *reader = turn->readers; reader; reader = reader->sibling) {
		if (!reader->at)
			reader->at = event;
		wake(reader);
	}
	trim(turn);
	return event;
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
	struct cell__turn_event *event = add_event(turn, "result", json ? json : none, size);

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
		for (struct cell__reader *reader = turn->readers; reader; reader = reader->sibling)
			wake(reader);
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
	turn->served = served;
	turn->server = server;
	turn->number = served->next_turn++;
	turn->code_size = size;
	turn->timeout_ms = timeout_ms;
	turn->first_number = turn->next_number = 1;
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

static void fill_before(struct cell__reader *reader, int64_t now_us)
{
	if (now_us - reader->moved_us > ALIVE_US) {
		(void)cell__sse_add_comment(&reader->before, "still here");
		reader->moved_us = now_us;
	}
}

static ssize_t read_events(void *arg, uint64_t position, char *out, size_t max)
{
	struct cell__reader *reader = arg;
	struct cell__turn *turn = reader->turn;
	size_t used = 0, n;

	(void)position;
	if (reader->before.size) {
		used = reader->before.size < max ? reader->before.size : max;
		memcpy(out, reader->before.data, used);
		cell__buf_shift(&reader->before, used);
	}
	while (reader->at && used < max && !reader->before.size) {
		n = reader->at->size - reader->sent;
		n = n < max - used ? n : max - used;
		memcpy(out + used, reader->at->text + reader->sent, n);
		used += n;
		reader->sent += n;
		if (reader->sent == reader->at->size) {
			reader->at_bytes += reader->at->size;
			reader->at = reader->at->next;
			reader->next++;
			reader->sent = 0;
		}
	}
	if (used) {
		reader->moved_us = cell__now_us();
		trim(turn);
		return (ssize_t)used;
	}
	if (turn->state == CELL_TURN_ENDED || reader->released)
		return MHD_CONTENT_READER_END_OF_STREAM;
	reader->suspended = true;
	MHD_suspend_connection(reader->connection);
	return 0;
}

static void reader_free(void *arg)
{
	struct cell__reader *reader = arg;
	struct cell__turn *turn = reader->turn;

	*reader->at_list = reader->sibling;
	if (reader->sibling)
		reader->sibling->at_list = reader->at_list;
	if (!--turn->n_readers && turn->state != CELL_TURN_ENDED) {
		/* An event that was sent in part has not been had. */
		turn->awaited = true;
		turn->wanted_bytes = reader->at_bytes;
		turn->left_us = cell__now_us();
	}
	trim(turn);
	turn_unref(turn);
	cell__buf_finish(&reader->before);
	free(reader);
}

/* Where a reader goes on, and what it is told when that is not there any more. */
static void find_place(struct cell__reader *reader, uint64_t after)
{
	struct cell__turn *turn = reader->turn;
	uint64_t number = turn->first_number;
	char text[64];

	if (after + 1 < number) {
		int n = snprintf(text, sizeof(text), "{\"missed\":%llu}", (unsigned long long)(number - after - 1));
		(void)cell__sse_add_event(&reader->before, "gap", NULL, text, (size_t)n);
	}
	reader->at = turn->first;
	reader->at_bytes = turn->dropped_bytes;
	for (; reader->at && number <= after; number++) {
		reader->at_bytes += reader->at->size;
		reader->at = reader->at->next;
	}
	reader->next = number;
}

void cell__turn_stream(struct cell__request *request, struct cell__turn *turn, uint64_t after)
{
	struct cell__reader *reader;
	struct MHD_Response *response;
	char number[24];

	if (turn->n_readers == CELL_SERVER_MAX_READERS) {
		cell__answer_busy(request, 5, "too many clients read this run");
		return;
	}
	reader = cell__alloc(1, sizeof(*reader));
	response = reader ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_events, reader, reader_free) : NULL;
	if (!response) {
		free(reader);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "no memory for a reader");
		return;
	}
	*reader = (struct cell__reader){ .turn = turn, .connection = request->connection, .moved_us = cell__now_us(),
					 .sibling = turn->readers, .at_list = &turn->readers };
	if (reader->sibling)
		reader->sibling->at_list = &reader->sibling;
	turn->readers = reader;
	turn->n_readers++;
	turn->refs++;
	turn->awaited = false;
	turn->left_us = 0;
	find_place(reader, after);
	MHD_add_response_header(response, "Content-Type", "text/event-stream");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	MHD_add_response_header(response, "X-Accel-Buffering", "no");
	snprintf(number, sizeof(number), "%llu", (unsigned long long)turn->number);
	MHD_add_response_header(response, "X-Run-ID", number);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

static void sweep_turn(struct cell__turn *turn, int64_t now_us)
{
	for (struct cell__reader *reader = turn->readers; reader; reader = reader->sibling) {
		fill_before(reader, now_us);
		if (reader->before.size)
			wake(reader);
	}
	if (turn->awaited && (turn->server->draining || now_us - turn->left_us > turn->server->limits.resume_ms * 1000)) {
		turn->awaited = false;
		trim(turn);
	}
}

void cell__turns_sweep(struct cell_server *server, int64_t now_us)
{
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		for (struct cell__turn *turn = served->kept; turn; turn = turn->kept_next)
			sweep_turn(turn, now_us);
	}
}

void cell__turns_release(struct cell_server *server)
{
	for (struct cell__served *served = server->sessions; served; served = served->next) {
		for (struct cell__turn *turn = served->kept; turn; turn = turn->kept_next) {
			for (struct cell__reader *reader = turn->readers; reader; reader = reader->sibling) {
				reader->released = true;
				wake(reader);
			}
		}
	}
}

char *cell__turn_describe(const struct cell__turn *turn)
{
	static const char *const states[] = { "waiting", "running", "ended" };
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_printf(&out, "{\"run_id\":%llu,\"session_id\":\"%s\",\"state\":\"%s\",\"last_event\":%llu,\"result\":",
				  (unsigned long long)turn->number, turn->served ? turn->served->id : "", states[turn->state],
				  (unsigned long long)turn->next_number - 1);

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
