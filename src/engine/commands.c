/* The public functions for commands of a session (session/commands.h): any thread but the loop's. */
#include <string.h>

#include "base/sized.h"
#include "session/session.h"

/* ---- starting ---- */

struct starting {
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_session *session;
	struct cell__command_spec spec;
	char id[CELL_COMMAND_ID_SIZE]; /* "": err has the reason */
	struct cell_error err;
};

static void handle_started(void *arg, struct cell__command *command, const struct cell_error *err)
{
	struct starting *starting = arg;
	if (command)
		memcpy(starting->id, cell__command_id(command), sizeof starting->id);
	else
		starting->err = *err;
	cell__waiter_signal(&starting->waiter);
}

static void do_start(struct cell__task *task)
{
	struct starting *starting = (struct starting *)task;
	if (cell__command_start(starting->session, &starting->spec, handle_started, starting, &starting->err) < 0)
		cell__waiter_signal(&starting->waiter);
}

static bool is_size(int n)
{
	return n >= 0 && n <= 65535;
}

int cell_session_command_start(struct cell_session *session, const struct cell_command_options *opts, char ret_id[CELL_COMMAND_ID_SIZE],
			       struct cell_error *err)
{
	struct cell_command_options all = CELL_COMMAND_OPTIONS_INIT;
	if (cell__require(err, session, opts, ret_id) < 0 || cell__engine_may_wait(session->engine, __func__, err) < 0 ||
	    cell__sized_read(&all, sizeof all, opts, "cell_command_options", err) < 0)
		return -1;
	const char *const shell[] = { "/bin/sh", "-c", all.line, NULL };
	if (!all.argv == !all.line)
		return cell_fail(err, CELL_E_INVALID, 0, "give argv, the program and its arguments, or line, a line for the shell");
	if (!is_size(all.rows) || !is_size(all.cols))
		return cell_fail(err, CELL_E_INVALID, 0, "rows and cols of a terminal must be between 1 and 65535");
	struct starting starting = { .task.fn = do_start,
				     .session = session,
				     .spec = { .argv = all.line ? shell : all.argv,
					       .env = all.env,
					       .cwd = all.cwd,
					       .tag = all.tag,
					       .timeout_ms = all.timeout_ms,
					       .want_stdin = all.want_stdin != 0,
					       .blocks = all.drops == 0,
					       .tty = all.tty != 0,
					       .rows = (unsigned short)all.rows,
					       .cols = (unsigned short)all.cols,
					       .principal = &cell__principal_host } };
	cell__waiter_init(&starting.waiter);
	cell__loop_do(session->engine->loop, &starting.task, &starting.waiter);
	cell__waiter_finish(&starting.waiter);
	if (!starting.id[0]) {
		if (err)
			*err = starting.err;
		return -1;
	}
	memcpy(ret_id, starting.id, sizeof starting.id);
	return 0;
}

/* ---- reading ---- */

struct reading {
	struct cell__command_reader reader; /* first */
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_session *session;
	const char *id;
	uint64_t position;
	int64_t wait_ms;
	char *buffer;
	size_t room;
	struct cell_command_output output;
	uv_timer_t *timer; /* or NULL */
	struct cell_error err;
	int rc;
};

/* Copies what is there; false: nothing is, and it has not ended. */
static bool take(struct reading *reading, struct cell__command *command)
{
	struct cell_command_output *out = &reading->output;
	struct cell__command_piece piece;
	cell__command_peek(command, reading->position, &piece);
	size_t n = piece.size < reading->room ? piece.size : reading->room;
	if (n > 0)
		memcpy(reading->buffer, piece.data, n);
	out->stream = piece.size > 0 ? piece.stream : CELL_STDOUT;
	out->bytes = (int64_t)n;
	out->position = (int64_t)(piece.position + n);
	out->dropped = (int64_t)piece.dropped;
	out->ended = piece.size == 0 && cell__command_has_ended(command);
	out->exit_code = out->ended ? cell__command_status(command, NULL) : 0;
	return piece.size > 0 || out->ended;
}

static void free_timer(uv_handle_t *handle)
{
	free(handle);
}

static void end_reading(struct reading *reading)
{
	if (reading->timer)
		uv_close((uv_handle_t *)cell__take_ptr(reading->timer), free_timer);
	cell__command_detach(&reading->reader);
	cell__waiter_signal(&reading->waiter);
}

static void handle_more(struct cell__command_reader *reader)
{
	struct reading *reading = (struct reading *)reader;
	if (take(reading, reader->command))
		end_reading(reading);
}

static void handle_timeout(uv_timer_t *timer)
{
	end_reading(timer->data);
}

static void do_read(struct cell__task *task)
{
	struct reading *reading = (struct reading *)((char *)task - offsetof(struct reading, task));
	uv_loop_t *uv = cell__loop_uv(reading->session->engine->loop);
	struct cell__command *command = cell__command_find(reading->session, reading->id);
	if (!command) {
		reading->rc = cell_fail(&reading->err, CELL_E_NOT_FOUND, 0, CELL_COMMAND_UNKNOWN);
	} else if (!take(reading, command) && reading->wait_ms != 0) {
		reading->timer = reading->wait_ms > 0 ? cell__alloc(1, sizeof *reading->timer) : NULL;
		if (reading->timer || reading->wait_ms < 0) {
			cell__command_attach(command, &reading->reader, reading->position, handle_more);
			if (reading->timer) {
				uv_timer_init(uv, reading->timer);
				reading->timer->data = reading;
				uv_update_time(uv);
				uv_timer_start(reading->timer, handle_timeout, (uint64_t)reading->wait_ms, 0);
			}
			return;
		}
		reading->rc = cell_fail(&reading->err, CELL_E_NOMEM, 0, "out of memory");
	}
	cell__waiter_signal(&reading->waiter);
}

int cell_session_command_read(struct cell_session *session, const char *id, int64_t position, int64_t wait_ms, void *buffer, size_t room,
			      struct cell_command_output *ret_output, struct cell_error *err)
{
	if (cell__require(err, session, id, buffer, ret_output) < 0 || cell__engine_may_wait(session->engine, __func__, err) < 0 ||
	    cell__sized_check(ret_output, "cell_command_output", err) < 0)
		return -1;
	if (position < 0 || room == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "position must not be negative, and there must be room for a byte");
	struct reading reading = { .task.fn = do_read,
				   .session = session,
				   .id = id,
				   .position = (uint64_t)position,
				   .wait_ms = wait_ms,
				   .buffer = buffer,
				   .room = room,
				   .output = CELL_COMMAND_OUTPUT_INIT };
	cell__waiter_init(&reading.waiter);
	cell__loop_do(session->engine->loop, &reading.task, &reading.waiter);
	cell__waiter_finish(&reading.waiter);
	if (reading.rc < 0) {
		if (err)
			*err = reading.err;
		return -1;
	}
	cell__sized_write(ret_output, &reading.output, sizeof reading.output);
	return 0;
}

/* ---- the others ---- */

enum verb { VERB_WRITE, VERB_CLOSE, VERB_SIGNAL, VERB_RESIZE, VERB_DROP, VERB_DESCRIBE };

struct request {
	struct cell_session *session;
	const char *id;
	enum verb verb;
	const void *bytes;
	size_t size;
	int a, b;
	json_t *answer;
	struct cell_error err;
	int rc;
};

static void do_request(void *arg)
{
	struct request *request = arg;
	struct cell__command *command = request->id ? cell__command_find(request->session, request->id) : NULL;
	if (!request->id) {
		request->answer = cell__commands_describe(request->session);
		return;
	}
	if (!command) {
		request->rc = cell_fail(&request->err, CELL_E_NOT_FOUND, 0, CELL_COMMAND_UNKNOWN);
		return;
	}
	switch (request->verb) {
	case VERB_WRITE:
		request->rc = cell__command_write(command, request->bytes, request->size, &request->err);
		break;
	case VERB_CLOSE:
		request->rc = cell__command_close_stdin(command, &request->err);
		break;
	case VERB_SIGNAL:
		request->rc = cell__command_signal(command, request->a, &request->err);
		break;
	case VERB_RESIZE:
		request->rc = cell__command_resize(command, (unsigned short)request->a, (unsigned short)request->b, &request->err);
		break;
	case VERB_DROP:
		cell__command_drop(command);
		break;
	case VERB_DESCRIBE:
		request->answer = cell__command_describe(command);
		break;
	}
}

static int ask(struct request *request, const char *caller, struct cell_error *err)
{
	if (cell__engine_may_wait(request->session->engine, caller, err) < 0)
		return -1;
	cell__loop_call(request->session->engine->loop, do_request, request);
	if (request->rc < 0 && err)
		*err = request->err;
	return request->rc;
}

int cell_session_command_write(struct cell_session *session, const char *id, const void *bytes, size_t size, struct cell_error *err)
{
	struct request request = { .session = session, .id = id, .verb = VERB_WRITE, .bytes = bytes, .size = size };
	return cell__require(err, session, id, bytes) < 0 ? -1 : ask(&request, __func__, err);
}

int cell_session_command_close_stdin(struct cell_session *session, const char *id, struct cell_error *err)
{
	struct request request = { .session = session, .id = id, .verb = VERB_CLOSE };
	return cell__require(err, session, id) < 0 ? -1 : ask(&request, __func__, err);
}

int cell_session_command_signal(struct cell_session *session, const char *id, int signal_number, struct cell_error *err)
{
	struct request request = { .session = session, .id = id, .verb = VERB_SIGNAL, .a = signal_number };
	if (cell__require(err, session, id) < 0)
		return -1;
	if (signal_number < 1 || signal_number > 64)
		return cell_fail(err, CELL_E_INVALID, 0, "%d is not a signal", signal_number);
	return ask(&request, __func__, err);
}

int cell_session_command_resize(struct cell_session *session, const char *id, int rows, int cols, struct cell_error *err)
{
	struct request request = { .session = session, .id = id, .verb = VERB_RESIZE, .a = rows, .b = cols };
	if (cell__require(err, session, id) < 0)
		return -1;
	if (rows < 1 || cols < 1 || !is_size(rows) || !is_size(cols))
		return cell_fail(err, CELL_E_INVALID, 0, "rows and cols of a terminal must be between 1 and 65535");
	return ask(&request, __func__, err);
}

char *cell_session_command_describe(struct cell_session *session, const char *id, struct cell_error *err)
{
	struct request request = { .session = session, .id = id, .verb = VERB_DESCRIBE };
	if (cell__require(err, session) < 0 || ask(&request, __func__, err) < 0)
		return NULL;
	char *text = request.answer ? json_dumps(request.answer, JSON_COMPACT) : NULL;
	json_decref(request.answer);
	if (!text)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return text;
}

int cell_session_command_drop(struct cell_session *session, const char *id, struct cell_error *err)
{
	struct request request = { .session = session, .id = id, .verb = VERB_DROP };
	return cell__require(err, session, id) < 0 ? -1 : ask(&request, __func__, err);
}
