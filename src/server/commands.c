/*
 * The commands of a session, for its client: programs that run where its code does (session/commands.h).
 *
 *     started {command}     chunk {stream, text | base64}     gap {dropped}     ended {command}
 *
 * The id of an event is the position in the output after it: with Last-Event-ID a stream goes on from there.  While a stream is read, the
 * command waits for its reader; without one the oldest output is dropped.
 */
#include "server/api.h"
#include "server/command_stream.h"

#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "base/utf8.h"
#include "wire/sse.h"

/* ---- streams ---- */

static int add_event(struct cell__command_stream *stream, const char *type, uint64_t position, const char *json, size_t size)
{
	char id[24];

	snprintf(id, sizeof(id), "%llu", (unsigned long long)position);
	return cell__sse_add_event(&stream->out.text, type, id, json, size);
}

static int add_command(struct cell__command_stream *stream, const char *type)
{
	json_t *command = cell__command_describe(stream->reader.command);
	CELL_AUTO_FREE char *text = command ? json_dumps(command, JSON_COMPACT) : NULL;

	json_decref(command);
	return text ? add_event(stream, type, stream->reader.position, text, strlen(text)) : -1;
}

static int add_start(struct cell__command_stream *stream)
{
	return add_command(stream, "started");
}

static int add_end(struct cell__command_stream *stream)
{
	return add_command(stream, "ended");
}

static int add_piece(struct cell__command_stream *stream, const struct cell__command_piece *piece, size_t *ret_taken)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	size_t size = piece->size, cut = cell__utf8_cut(piece->data, size);
	int rc = 0;

	if (cut < size)
		size -= cut;
	if (piece->dropped) {
		char gap[48];

		snprintf(gap, sizeof(gap), "{\"dropped\":%llu}", (unsigned long long)piece->dropped);
		rc = add_event(stream, "gap", piece->position, gap, strlen(gap));
	}
	rc |= cell__buf_printf(&json, "{\"stream\":\"%s\",", cell__command_stream_name(stream, piece));
	rc |= cell__add_bytes(&json, piece->data, size);
	rc |= cell__buf_add_str(&json, "}");
	if (rc || add_event(stream, "chunk", piece->position + size, json.data, json.size) < 0)
		return -1;
	*ret_taken = size;
	return 0;
}

/* A comment now and then. */
static int add_alive(struct cell__command_stream *stream)
{
	return cell__buf_add_str(&stream->out.text, ":\n\n");
}

static const struct cell__command_form as_events = {
	.type = "text/event-stream",
	.start = add_start,
	.piece = add_piece,
	.end = add_end,
	.alive = add_alive,
};

static void answer_stream(struct cell__request *request, struct cell__command *command, uint64_t from, bool tells_start)
{
	struct MHD_Response *response = cell__command_read(request, command, &as_events, from, tells_start);

	if (!response)
		return;
	MHD_add_response_header(response, "X-Accel-Buffering", "no");
	MHD_add_response_header(response, "X-Command-ID", cell__command_id(command));
	cell__answer_response(request, MHD_HTTP_OK, response);
}

/* ---- starting ---- */

static void handle_started(void *arg, struct cell__command *command, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (!command)
		cell__answer_error(request, err);
	else if (cell__wants_events(request))
		answer_stream(request, command, 0, true);
	else
		cell__answer_json(request, request->route->status, cell__command_describe(command));
}

/* Strings with a NUL would be cut. */
static const char *text_of(const json_t *value)
{
	const char *text = json_string_value(value);

	return text && strlen(text) == json_string_length(value) ? text : NULL;
}

/* "K=V" strings; the caller frees them.  NULL: one cannot be a variable, or out of memory. */
static char **env_of(const json_t *given)
{
	char **env = cell__alloc(json_object_size(given) + 1, sizeof(*env));
	const char *name;
	json_t *value;
	size_t n = 0;

	json_object_foreach((json_t *)given, name, value) {
		struct cell__buf entry = CELL_BUF_INIT;

		if (!env || !*name || strchr(name, '=') || !text_of(value) || cell__buf_printf(&entry, "%s=%s", name, text_of(value)) < 0) {
			cell__strings_free(env);
			return NULL;
		}
		env[n++] = cell__buf_take(&entry);
		env[n] = NULL;
	}
	return env;
}

/* Of a terminal; absent: the default.  Members of members are not checked by the route. */
static bool is_size(const json_t *value)
{
	return !value || (json_is_integer(value) && json_integer_value(value) >= 1 && json_integer_value(value) <= UINT16_MAX);
}

static int read_spec(const json_t *body, const char **argv, char **env, struct cell__command_spec *spec, struct cell_error *err)
{
	const json_t *words = json_object_get(body, "argv"), *line = json_object_get(body, "line"), *tty = json_object_get(body, "tty"),
		     *word;
	size_t i;

	if (json_is_array(words) == json_is_string(line))
		return cell_fail(err, CELL_E_INVALID, 0, "give argv, the program and its arguments, or line, a line for the shell");
	if (line) {
		argv[0] = "/bin/sh";
		argv[1] = "-c";
		argv[2] = text_of(line);
	}
	json_array_foreach((json_t *)words, i, word)
		argv[i] = text_of(word);
	for (i = 0; i < (line ? 3 : json_array_size(words)); i++) {
		if (!argv[i])
			return cell_fail(err, CELL_E_INVALID, 0, "arguments must be strings without NUL");
	}
	if (json_is_object(tty) && (!is_size(json_object_get(tty, "rows")) || !is_size(json_object_get(tty, "cols"))))
		return cell_fail(err, CELL_E_INVALID, 0, "rows and cols of a terminal must be from 1 to 65535");
	if (!env)
		return cell_fail(err, CELL_E_INVALID, 0, "variables need a name without = and a string without NUL as their value");
	*spec = (struct cell__command_spec){ .argv = argv,
					     .env = (const char *const *)env,
					     .cwd = json_string_value(json_object_get(body, "cwd")),
					     .tag = json_string_value(json_object_get(body, "tag")),
					     .timeout_ms = (int64_t)(json_number_value(json_object_get(body, "timeout")) * 1000),
					     .want_stdin = json_is_true(json_object_get(body, "stdin")),
					     .blocks = json_is_true(json_object_get(body, "blocks")),
					     .tty = json_is_object(tty),
					     .rows = (unsigned short)json_integer_value(json_object_get(tty, "rows")),
					     .cols = (unsigned short)json_integer_value(json_object_get(tty, "cols")) };
	return 0;
}

void cell__handle_v1_command_start(struct cell__request *request)
{
	const json_t *body = request->json;
	CELL_AUTO_FREE const char **argv = cell__alloc(json_array_size(json_object_get(body, "argv")) + 4, sizeof(*argv));
	char **env = env_of(json_object_get(body, "env"));
	struct cell__command_spec spec;
	struct cell__principal principal;
	struct cell_error err;

	if (!argv) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a command");
	} else if (read_spec(body, argv, env, &spec, &err) < 0) {
		cell__answer_error(request, &err);
	} else if (cell__served_find(request, request->params[0], false)) {
		principal = cell__request_principal(request);
		spec.principal = &principal;
		if (!request->served->session)
			cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "this session has ended");
		else if (cell__command_start(request->served->session, &spec, handle_started, request, &err) < 0)
			cell__answer_error(request, &err);
	}
	cell__strings_free(env);
}

/* ---- the others ---- */

static struct cell__command *find(struct cell__request *request)
{
	struct cell__command *command = NULL;

	if (!cell__served_find(request, request->params[0], false))
		return NULL;
	if (request->served->session)
		command = cell__command_find(request->served->session, request->params[1]);
	if (!command)
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, CELL_COMMAND_UNKNOWN);
	return command;
}

void cell__handle_v1_commands(struct cell__request *request)
{
	if (cell__served_find(request, request->params[0], false))
		cell__answer_json(request, MHD_HTTP_OK,
				  json_pack("{s:o}", "commands",
					    request->served->session ? cell__commands_describe(request->served->session) : json_array()));
}

void cell__handle_v1_command_get(struct cell__request *request)
{
	struct cell__command *command = find(request);

	if (command)
		cell__answer_json(request, MHD_HTTP_OK, cell__command_describe(command));
}

void cell__handle_v1_command_output(struct cell__request *request)
{
	const char *last = cell__request_header(request, "Last-Event-ID");
	size_t digits = last ? strspn(last, "0123456789") : 0;
	struct cell__command *command;

	if (last && (!digits || digits > 18 || last[digits])) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "Last-Event-ID is not the id of an event of this stream");
		return;
	}
	command = find(request);
	if (command)
		answer_stream(request, command, last ? strtoull(last, NULL, 10) : 0, !last);
}

static void answer_done(struct cell__request *request, int rc, const struct cell_error *err)
{
	if (rc < 0)
		cell__answer_error(request, err);
	else
		cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}

void cell__handle_v1_command_stdin(struct cell__request *request)
{
	const json_t *text = json_object_get(request->json, "text"), *base64 = json_object_get(request->json, "base64");
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	struct cell__command *command;
	struct cell_error err;
	int rc = 0;

	if (text && base64) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "give text or base64");
		return;
	}
	if (text)
		rc = cell__buf_add(&bytes, json_string_value(text), json_string_length(text));
	if (base64 && cell__buf_add_unbase64(&bytes, json_string_value(base64), json_string_length(base64)) < 0) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "base64 is not valid");
		return;
	}
	command = find(request);
	if (!command)
		return;
	if (rc < 0)
		rc = cell_fail(&err, CELL_E_NOMEM, 0, "out of memory");
	else if (bytes.size)
		rc = cell__command_write(command, bytes.data, bytes.size, &err);
	if (rc == 0 && json_is_true(json_object_get(request->json, "close")))
		rc = cell__command_close_stdin(command, &err);
	answer_done(request, rc, &err);
}

void cell__handle_v1_command_signal(struct cell__request *request)
{
	int number = cell__command_signal_number(json_string_value(json_object_get(request->json, "signal")));
	struct cell__command *command = find(request);
	struct cell_error err;

	if (!command)
		return;
	answer_done(request,
		    number ? cell__command_signal(command, number, &err)
			   : cell_fail(&err, CELL_E_INVALID, 0, "signal must be one of " CELL_COMMAND_SIGNALS),
		    &err);
}

void cell__handle_v1_command_resize(struct cell__request *request)
{
	struct cell__command *command = find(request);
	struct cell_error err;

	if (command)
		answer_done(request,
			    cell__command_resize(command, (unsigned short)json_integer_value(json_object_get(request->json, "rows")),
						 (unsigned short)json_integer_value(json_object_get(request->json, "cols")), &err),
			    &err);
}

void cell__handle_v1_command_delete(struct cell__request *request)
{
	struct cell__command *command = find(request);

	if (!command)
		return;
	cell__command_drop(command);
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}
