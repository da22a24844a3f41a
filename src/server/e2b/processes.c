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
#include "server/command_stream.h"
#include "wire/connect.h"

#define MAX_MESSAGE (4u * 1024u * 1024u)

/* ---- streams ---- */

static int add_message(struct cell__command_stream *stream, const struct cell__buf *json)
{
	return cell__connect_add(&stream->out.text, 0, json->data, json->size);
}

static int add_piece(struct cell__command_stream *stream, const struct cell__command_piece *piece, size_t *ret_taken)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc = cell__buf_printf(&json, "{\"event\":{\"data\":{\"%s\":\"", cell__command_stream_name(stream, piece));

	rc |= cell__buf_add_base64(&json, piece->data, piece->size);
	rc |= cell__buf_add_str(&json, "\"}}}");
	if (rc || add_message(stream, &json) < 0)
		return -1;
	*ret_taken = piece->size;
	return 0;
}

static int add_end(struct cell__command_stream *stream)
{
	static const char gone[] =
		"{\"error\":{\"code\":\"unavailable\",\"message\":\"the sandbox ended before the stream was complete\"}}";
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int number = 0, status = cell__command_status(stream->reader.command, &number);
	const char *reason = cell__command_reason(stream->reader.command);
	int rc;

	/* Its clients look whether the sandbox is still there, and say what happened. */
	if (reason && !strcmp(reason, "session") && !cell__e2b_by_id(stream->server, stream->sandbox))
		return cell__connect_add(&stream->out.text, CELL_CONNECT_END, gone, sizeof(gone) - 1);
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
	if (rc || add_message(stream, &json) < 0)
		return -1;
	if (reason && !strcmp(reason, "timeout")) {
		static const char late[] =
			"{\"error\":{\"code\":\"deadline_exceeded\",\"message\":\"the command took longer than its timeout\"}}";

		return cell__connect_add(&stream->out.text, CELL_CONNECT_END, late, sizeof(late) - 1);
	}
	return cell__connect_add(&stream->out.text, CELL_CONNECT_END, "{}", 2);
}

static int add_start(struct cell__command_stream *stream)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;

	if (cell__buf_printf(&json, "{\"event\":{\"start\":{\"pid\":%lld}}}", (long long)cell__command_pid(stream->reader.command)) < 0)
		return -1;
	return add_message(stream, &json);
}

static int add_alive(struct cell__command_stream *stream)
{
	static const char alive[] = "{\"event\":{\"keepalive\":{}}}";

	return cell__connect_add(&stream->out.text, 0, alive, sizeof(alive) - 1);
}

static const struct cell__command_form as_messages = {
	.type = "application/connect+json",
	.start = add_start,
	.piece = add_piece,
	.end = add_end,
	.alive = add_alive,
};

/* A client that connects gets the output from then on. */
static void answer_stream(struct cell__request *request, struct cell__command *command, bool from_now)
{
	struct MHD_Response *response = cell__command_read(request, command, &as_messages, from_now ? CELL_COMMAND_NOW : 0, true);

	if (response)
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
	else if (read_spec(request->json, argv, &spec, &err) < 0 || (cwd && cell__e2b_cwd(sandbox, cwd, path, &err) < 0))
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

bool cell__e2b_unwrap(struct cell__request *request)
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
	if ((methods[i].streams && !cell__e2b_unwrap(request)) || !cell__e2b_body(request) || !(sandbox = cell__e2b_enter(request)))
		return;
	if (!request->served->session)
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "The sandbox was not found");
	else
		methods[i].handle(request, sandbox);
}
