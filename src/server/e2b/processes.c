/*
 * The service process.Process of E2B's daemon: commands of the sandbox's first session (session/commands.h).
 *
 *     Start, Connect: a stream of Connect messages     {"event":{"start":{"pid"}}}  {"event":{"data":{"stdout"|"stderr"|"pty"}}}
 *                                                      {"event":{"end":{"exitCode","exited","status"}}}  the end of the stream
 *     the others: one call, one answer
 *
 * A stream waits for its reader: a command whose reader is far behind waits with it.
 */
#include "server/e2b/e2b.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/base64.h"
#include "session/commands.h"
#include "wire/connect.h"

#define BLOCK_BYTES (32u * 1024u)
#define PIECE_BYTES (24u * 1024u) /* of output in one message */
#define ALIVE_US 15000000
#define MAX_MESSAGE (4u * 1024u * 1024u)

struct cell__e2b_stream {
	struct cell__command_reader reader; /* first */
	struct cell_server *server;
	struct MHD_Connection *connection;
	struct cell__buf text; /* to be sent first */
	size_t sent;           /* of it */
	bool told_start, told_end, suspended;
	int64_t moved_us;
	struct cell__e2b_stream *next, **at; /* of the sandbox; at NULL: it has ended */
};

/* ---- streams ---- */

static void wake(struct cell__command_reader *reader)
{
	struct cell__e2b_stream *stream = (struct cell__e2b_stream *)reader;

	if (!stream->suspended)
		return;
	stream->suspended = false;
	MHD_resume_connection(stream->connection);
	cell__http_kick(stream->server);
}

static int add_message(struct cell__e2b_stream *stream, const struct cell__buf *json)
{
	return cell__connect_add(&stream->text, 0, json->data, json->size);
}

static int add_piece(struct cell__e2b_stream *stream, const struct cell__command_piece *piece)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	size_t size = piece->size < PIECE_BYTES ? piece->size : PIECE_BYTES;
	int rc = cell__buf_printf(&json, "{\"event\":{\"data\":{\"%s\":\"",
				  cell__command_has_tty(stream->reader.command) ? "pty"
				  : piece->stream == CELL_STDERR                ? "stderr"
										: "stdout");

	rc |= cell__buf_add_base64(&json, piece->data, size);
	rc |= cell__buf_add_str(&json, "\"}}}");
	if (rc || add_message(stream, &json) < 0)
		return -1;
	cell__command_took(&stream->reader, piece->position + size);
	return 0;
}

static int add_end(struct cell__e2b_stream *stream)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int number = 0, status = cell__command_status(stream->reader.command, &number);
	const char *reason = cell__command_reason(stream->reader.command);
	int rc;

	/* A command that a signal has ended has no status of its own. */
	if (number)
		rc = cell__buf_printf(
			&json,
			"{\"event\":{\"end\":{\"exitCode\":-1,\"exited\":false,\"status\":\"signal: %d%s%s\",\"error\":\"signal: %d\"}}}",
			number, reason ? ", " : "", reason ? reason : "", number);
	else
		rc = status ? cell__buf_printf(
				      &json,
				      "{\"event\":{\"end\":{\"exitCode\":%d,\"exited\":true,\"status\":\"exit status %d\",\"error\":\"exit status %d\"}}}",
				      status, status, status)
			    : cell__buf_add_str(&json,
						"{\"event\":{\"end\":{\"exitCode\":0,\"exited\":true,\"status\":\"exit status 0\"}}}");
	stream->told_end = true;
	if (rc || add_message(stream, &json) < 0)
		return -1;
	if (reason && !strcmp(reason, "timeout")) {
		static const char late[] =
			"{\"error\":{\"code\":\"deadline_exceeded\",\"message\":\"the command took longer than its timeout\"}}";

		return cell__connect_add(&stream->text, CELL_CONNECT_END, late, sizeof(late) - 1);
	}
	return cell__connect_add(&stream->text, CELL_CONNECT_END, "{}", 2);
}

/* The next messages, or nothing: then it waits.  -1: out of memory. */
static int fill(struct cell__e2b_stream *stream)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	struct cell__command_piece piece;

	stream->text.size = stream->sent = 0;
	if (!stream->told_start) {
		stream->told_start = true;
		if (cell__buf_printf(&json, "{\"event\":{\"start\":{\"pid\":%lld}}}",
				     (long long)cell__command_pid(stream->reader.command)) < 0)
			return -1;
		return add_message(stream, &json);
	}
	cell__command_look(stream->reader.command, stream->reader.position, &piece);
	if (piece.size)
		return add_piece(stream, &piece);
	return cell__command_has_ended(stream->reader.command) && !stream->told_end ? add_end(stream) : 0;
}

static ssize_t read_stream(void *arg, uint64_t position, char *out, size_t max)
{
	struct cell__e2b_stream *stream = arg;
	size_t n;

	(void)position;
	if (stream->sent == stream->text.size && fill(stream) < 0)
		return MHD_CONTENT_READER_END_WITH_ERROR;
	n = stream->text.size - stream->sent;
	n = n < max ? n : max;
	if (n) {
		memcpy(out, stream->text.data + stream->sent, n);
		stream->sent += n;
		stream->moved_us = cell__now_us();
		return (ssize_t)n;
	}
	if (stream->told_end)
		return MHD_CONTENT_READER_END_OF_STREAM;
	stream->suspended = true;
	MHD_suspend_connection(stream->connection);
	return 0;
}

static void unlist(struct cell__e2b_stream *stream)
{
	if (!stream->at)
		return;
	*stream->at = stream->next;
	if (stream->next)
		stream->next->at = stream->at;
	stream->at = NULL;
}

static void free_stream(void *arg)
{
	struct cell__e2b_stream *stream = arg;

	unlist(stream);
	cell__command_detach(&stream->reader);
	cell__buf_finish(&stream->text);
	free(stream);
}

void cell__e2b_streams_sweep(struct cell__e2b_sandbox *sandbox, int64_t now_us)
{
	static const char alive[] = "{\"event\":{\"keepalive\":{}}}";

	for (struct cell__e2b_stream *stream = sandbox->streams; stream; stream = stream->next) {
		if (!stream->suspended || now_us - stream->moved_us < ALIVE_US)
			continue;
		stream->text.size = stream->sent = 0;
		(void)cell__connect_add(&stream->text, 0, alive, sizeof(alive) - 1);
		wake(&stream->reader);
	}
}

void cell__e2b_streams_forget(struct cell__e2b_sandbox *sandbox)
{
	while (sandbox->streams)
		unlist(sandbox->streams);
}

static void answer_stream(struct cell__request *request, struct cell__command *command, bool from_now)
{
	struct cell__e2b_sandbox *sandbox = request->served->context ? request->served->context->sandbox : NULL;
	struct cell__e2b_stream *stream = sandbox ? cell__alloc(1, sizeof(*stream)) : NULL;
	struct MHD_Response *response = stream ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, stream,
										   free_stream)
					       : NULL;
	struct cell__command_piece piece = { 0 };
	uint64_t position = 0;

	if (!response) {
		free(stream);
		cell__answer_fail(request, MHD_HTTP_BAD_GATEWAY, CELL_E_EXPIRED, "The sandbox was not found");
		return;
	}
	*stream = (struct cell__e2b_stream){ .server = request->server,
					     .connection = request->connection,
					     .text = CELL_BUF_INIT,
					     .moved_us = cell__now_us(),
					     .next = sandbox->streams,
					     .at = &sandbox->streams };
	if (stream->next)
		stream->next->at = &stream->next;
	sandbox->streams = stream;
	/* A client that connects gets the output from then on. */
	do {
		position = piece.position + piece.size;
		if (from_now)
			cell__command_look(command, position, &piece);
	} while (from_now && piece.size);
	cell__command_attach(command, &stream->reader, position, wake);
	MHD_add_response_header(response, "Content-Type", "application/connect+json");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	cell__answer_response(request, MHD_HTTP_OK, response);
}

/* ---- starting ---- */

/* Strings with a NUL would be cut. */
static const char *text_of(const json_t *value)
{
	const char *text = json_string_value(value);

	return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static void handle_started(void *arg, struct cell__command *command, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (!command)
		cell__answer_error(request, err);
	else
		answer_stream(request, command, false);
}

/* "/home/user/x" is the folder's x; another absolute path is as the code sees it. */
static int take_cwd(const struct cell__e2b_sandbox *sandbox, const char *given, char ret_path[static PATH_MAX], struct cell_error *err)
{
	if (*given == '/' && strncmp(given, CELL_E2B_HOME, strlen(CELL_E2B_HOME)) && strlen(given) < PATH_MAX) {
		strcpy(ret_path, given);
		return 0;
	}
	return cell__e2b_path(sandbox, given, ret_path, err);
}

static int read_spec(const json_t *body, const char **argv, struct cell__command_spec *spec, struct cell_error *err)
{
	const json_t *process = json_object_get(body, "process"), *args = json_object_get(process, "args"),
		     *size = json_object_get(json_object_get(body, "pty"), "size"), *arg, *stdin_given = json_object_get(body, "stdin");
	size_t i;

	argv[0] = text_of(json_object_get(process, "cmd"));
	json_array_foreach((json_t *)args, i, arg)
		argv[i + 1] = text_of(arg);
	for (i = 0; i <= json_array_size(args); i++) {
		if (!argv[i])
			return cell_fail(err, CELL_E_INVALID, 0, "process.cmd and process.args must be strings without NUL");
	}
	*spec = (struct cell__command_spec){ .argv = argv,
					     .tag = text_of(json_object_get(body, "tag")),
					     /* E2B's clients send input unless they say that they do not. */
					     .want_stdin = json_is_object(json_object_get(body, "pty")) || !json_is_false(stdin_given),
					     .tty = json_is_object(json_object_get(body, "pty")),
					     .rows = (unsigned short)json_integer_value(json_object_get(size, "rows")),
					     .cols = (unsigned short)json_integer_value(json_object_get(size, "cols")) };
	return 0;
}

/* "K=V" strings in one block; NULL: one cannot be a variable, or out of memory. */
static char **env_of(const json_t *envs, bool is_tty)
{
	size_t bytes = sizeof("TERM=xterm-256color"), n = 0;
	const char *name;
	json_t *value;
	char **list, *at;

	json_object_foreach((json_t *)envs, name, value) {
		if (!*name || strchr(name, '=') || !text_of(value))
			return NULL;
		bytes += strlen(name) + json_string_length(value) + 2;
	}
	list = cell__alloc(1, (json_object_size(envs) + 2) * sizeof(*list) + bytes);
	if (!list)
		return NULL;
	at = (char *)(list + json_object_size(envs) + 2);
	if (is_tty) {
		list[n++] = at;
		strcpy(at, "TERM=xterm-256color");
		at += strlen(at) + 1;
	}
	json_object_foreach((json_t *)envs, name, value) {
		list[n++] = at;
		at += sprintf(at, "%s=%s", name, json_string_value(value)) + 1;
	}
	list[n] = NULL;
	return list;
}

static void handle_start(struct cell__request *request, const struct cell__e2b_sandbox *sandbox)
{
	const json_t *process = json_object_get(request->json, "process");
	const char *cwd = json_string_value(json_object_get(process, "cwd")), *limit = cell__request_header(request, "Connect-Timeout-Ms");
	CELL_AUTO_FREE const char **argv = cell__alloc(json_array_size(json_object_get(process, "args")) + 2, sizeof(*argv));
	CELL_AUTO_FREE char **env = env_of(json_object_get(process, "envs"), json_is_object(json_object_get(request->json, "pty")));
	struct cell__principal principal = cell__request_principal(request);
	struct cell__command_spec spec;
	struct cell_error err;
	char path[PATH_MAX];

	if (!argv || !env)
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "process.envs must be an object of strings");
	else if (read_spec(request->json, argv, &spec, &err) < 0 || (cwd && take_cwd(sandbox, cwd, path, &err) < 0))
		cell__answer_error(request, &err);
	else {
		spec.env = (const char *const *)env;
		spec.cwd = cwd && *path ? path : NULL;
		spec.timeout_ms = limit ? strtoll(limit, NULL, 10) : 0;
		spec.principal = &principal;
		if (cell__command_start(request->served->session, &spec, handle_started, request, &err) < 0)
			cell__answer_error(request, &err);
	}
}

/* ---- the others ---- */

/* By pid or tag; NULL: it was answered. */
static struct cell__command *select_command(struct cell__request *request)
{
	const json_t *selector = json_object_get(request->json, "process"), *pid = json_object_get(selector, "pid");
	struct cell__command *command = NULL;

	if (json_is_integer(pid))
		command = cell__command_find_pid(request->served->session, json_integer_value(pid));
	if (!command)
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such process: it has ended, or never ran");
	return command;
}

static void handle_connect(struct cell__request *request, const struct cell__e2b_sandbox *sandbox)
{
	struct cell__command *command = select_command(request);

	(void)sandbox;
	if (command)
		answer_stream(request, command, true);
}

static void handle_list(struct cell__request *request, const struct cell__e2b_sandbox *sandbox)
{
	json_t *all = cell__commands_describe(request->served->session), *list = json_array(), *command;
	size_t i;

	(void)sandbox;
	json_array_foreach(all, i, command) {
		const char *state = json_string_value(json_object_get(command, "state"));
		json_t *args, *info;

		if (!state || strcmp(state, "running"))
			continue;
		args = json_copy(json_object_get(command, "argv"));
		info = json_pack("{s:{s:O,s:o,s:{}},s:O}", "config", "cmd", json_array_get(args, 0), "args", args, "envs", "pid",
				 json_object_get(command, "pid"));
		json_array_remove(args, 0);
		if (json_is_string(json_object_get(command, "cwd")))
			json_object_set(json_object_get(info, "config"), "cwd", json_object_get(command, "cwd"));
		if (json_is_string(json_object_get(command, "tag")))
			json_object_set(info, "tag", json_object_get(command, "tag"));
		json_array_append_new(list, info);
	}
	json_decref(all);
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "processes", list));
}

static void answer_done(struct cell__request *request, int rc, const struct cell_error *err)
{
	if (rc < 0)
		cell__answer_error(request, err);
	else
		cell__answer_json(request, MHD_HTTP_OK, json_object());
}

static void handle_input(struct cell__request *request, const struct cell__e2b_sandbox *sandbox)
{
	const json_t *input = json_object_get(request->json, "input"), *text = json_object_get(input, "stdin");
	struct cell__command *command = select_command(request);
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	struct cell_error err;
	int rc = 0;

	(void)sandbox;
	if (!command)
		return;
	if (!text)
		text = json_object_get(input, "pty");
	if (!json_is_string(text) || cell__buf_add_unbase64(&bytes, json_string_value(text), json_string_length(text)) < 0)
		rc = cell_fail(&err, CELL_E_INVALID, 0, "input must be base64");
	else if (bytes.size)
		rc = cell__command_write(command, bytes.data, bytes.size, &err);
	answer_done(request, rc, &err);
}

static void handle_close(struct cell__request *request, const struct cell__e2b_sandbox *sandbox)
{
	struct cell__command *command = select_command(request);
	struct cell_error err;

	(void)sandbox;
	if (command)
		answer_done(request, cell__command_close_stdin(command, &err), &err);
}

static void handle_signal(struct cell__request *request, const struct cell__e2b_sandbox *sandbox)
{
	const char *name = json_string_value(json_object_get(request->json, "signal"));
	struct cell__command *command = select_command(request);
	struct cell_error err;
	int number = name && !strcmp(name, "SIGNAL_SIGKILL") ? SIGKILL : name && !strcmp(name, "SIGNAL_SIGTERM") ? SIGTERM : 0;

	(void)sandbox;
	if (command)
		answer_done(request,
			    number ? cell__command_signal(command, number, &err)
				   : cell_fail(&err, CELL_E_INVALID, 0, "signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL"),
			    &err);
}

static void handle_resize(struct cell__request *request, const struct cell__e2b_sandbox *sandbox)
{
	const json_t *size = json_object_get(json_object_get(request->json, "pty"), "size");
	struct cell__command *command = select_command(request);
	struct cell_error err;

	(void)sandbox;
	if (command)
		answer_done(request,
			    cell__command_resize(command, (unsigned short)json_integer_value(json_object_get(size, "rows")),
						 (unsigned short)json_integer_value(json_object_get(size, "cols")), &err),
			    &err);
}

static const struct {
	const char *name;
	void (*handle)(struct cell__request *request, const struct cell__e2b_sandbox *sandbox);
	bool streams;
} methods[] = {
	{ "Start", handle_start, true },      { "Connect", handle_connect, true },   { "List", handle_list, false },
	{ "SendInput", handle_input, false }, { "CloseStdin", handle_close, false }, { "SendSignal", handle_signal, false },
	{ "Update", handle_resize, false },
};

/* The body of a stream's request is one message. */
static bool unwrap(struct cell__request *request)
{
	unsigned flags = 0;
	const char *message = NULL;
	size_t size = 0;
	long taken = cell__connect_next(request->body.data, request->body.size, MAX_MESSAGE, &flags, &message, &size);

	if (taken <= 0 || flags || (size_t)taken != request->body.size) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID,
				  "the body is not one message of a Connect stream, not compressed");
		return false;
	}
	cell__buf_shift(&request->body, CELL_CONNECT_HEAD);
	return true;
}

void cell__e2b_handle_process(struct cell__request *request)
{
	size_t n = sizeof(methods) / sizeof(methods[0]), i = 0;
	const struct cell__e2b_sandbox *sandbox;

	while (i < n && strcmp(methods[i].name, request->params[0]))
		i++;
	if (i == n) {
		cell__answer_fail(request, MHD_HTTP_NOT_IMPLEMENTED, CELL_E_UNSUPPORTED, "%.60s is not supported", request->params[0]);
		return;
	}
	if ((methods[i].streams && !unwrap(request)) || !cell__e2b_body(request) || !(sandbox = cell__e2b_enter(request)))
		return;
	if (!request->served->session)
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "The sandbox was not found");
	else
		methods[i].handle(request, sandbox);
}
