/*
 * A command of a session of a server: it runs there, its output comes as server-sent events, and what is sent to it are requests.
 *
 *     POST .../commands ──"started"──▶ running ──"ended"──▶ exited
 *           │                           │  ▲
 *           │              the stream breaks  │ GET .../commands/C/output with Last-Event-ID, again and again for RESUME_MS
 *           ▼                           ▼  │
 *        exited, with the error       broken ──▶ exited: the session is lost
 *
 * libcurl's callbacks only collect bytes; a task of the loop processes them, where the owner may call any function.  One request at a time is
 * under way beside the stream, so input stays in order: signals first, then the size of the terminal, then input, then its end.
 */
#define _GNU_SOURCE
#include "executors/remote/kernel.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>

#include "base/base64.h"

#define RESUME_MS 30000
#define FIRST_PAUSE_MS 50
#define LONGEST_PAUSE_MS 2000
#define MAX_EVENT_BYTES (1u << 20)
#define MAX_ANSWER_BYTES (64u << 10)
#define INPUT_BYTES (64u << 10) /* in one request */
#define MAX_GAP_BYTES (1ll << 50) /* that a position can count without overflow, however often */
#define MAX_SIGNALS 16u         /* that wait */
#define SILENT_S 45             /* the server sends something every 15 s */
#define CONNECT_TIMEOUT_MS 10000
#define REQUEST_TIMEOUT_MS 30000

enum control { CONTROL_NONE, CONTROL_SIGNAL, CONTROL_SIZE, CONTROL_INPUT, CONTROL_CLOSE };

struct cell__remote_command {
	struct cell__far_command base;      /* first */
	struct cell__remote_kernel *kernel; /* NULL: it has left */
	struct cell__process_spec spec;     /* its functions and its owner */
	char id[33];   /* of the server; "": it does not run yet */
	/* the stream */
	struct cell__http_transfer stream;
	char *body;
	struct cell__buf in, answer;
	struct cell__sse sse;
	CURLcode code;
	long status;
	bool streaming, paused, curl_paused;
	int64_t broken_us, pause_ms;
	/* requests beside it */
	struct cell__http_transfer control;
	enum control doing; /* NONE: there is no request */
	char *control_body;
	struct cell__buf control_answer, input;
	size_t sending; /* of input */
	int signals[MAX_SIGNALS];
	size_t n_signals;
	unsigned short rows, cols; /* 0: none waits */
	bool close_wanted;
	CURLcode control_code;
	bool control_done;
	/* the rest */
	uv_timer_t *timer;
	struct cell__task task;
	bool posted, in_task, ended, abandoned;
	struct cell__process_exit how;
	struct cell__remote_command *next;
};

static void process(struct cell__task *task);

static void schedule(struct cell__remote_command *command)
{
	if (command->posted)
		return;
	command->posted = true;
	command->task.fn = process;
	cell__loop_post(command->base.loop, &command->task);
}

/* ---- its end ---- */

static void free_timer(uv_handle_t *handle)
{
	free(handle);
}

/* It has no kernel any more, and no requests. */
static void leave(struct cell__remote_command *command)
{
	struct cell__remote_kernel *kernel = cell__take_ptr(command->kernel);

	if (!kernel)
		return;
	struct cell__remote_command **at = &kernel->commands;
	while (*at != command)
		at = &(*at)->next;
	*at = command->next;
	if (command->streaming)
		cell__http_cancel(kernel->remote->http, &command->stream);
	if (command->doing && !command->control_done)
		cell__http_cancel(kernel->remote->http, &command->control);
	command->streaming = false;
	command->doing = CONTROL_NONE;
	uv_close((uv_handle_t *)cell__take_ptr(command->timer), free_timer);
}

static void command_free(struct cell__remote_command *command)
{
	cell__http_finish(&command->stream);
	cell__http_finish(&command->control);
	cell__sse_finish(&command->sse);
	cell__buf_finish(&command->in);
	cell__buf_finish(&command->answer);
	cell__buf_finish(&command->control_answer);
	cell__buf_finish(&command->input);
	free(command->body);
	free(command->control_body);
	free(command);
}

/* The kernel goes: its owner learns it from a task. */
void cell__remote_commands_end(struct cell__remote_kernel *kernel)
{
	while (kernel->commands) {
		struct cell__remote_command *command = kernel->commands;

		leave(command);
		if (!command->ended) {
			command->ended = true;
			command->how = (struct cell__process_exit){ .error = ESRCH };
		}
		schedule(command);
	}
}

/* ---- the stream ---- */

static size_t take_stream(struct cell__http_transfer *transfer, const char *bytes, size_t count)
{
	struct cell__remote_command *command = (struct cell__remote_command *)((char *)transfer -
									       offsetof(struct cell__remote_command, stream));
	bool good = cell__http_status(transfer) == 200;
	struct cell__buf *to = good ? &command->in : &command->answer;

	if (good && to->size > CELL_REMOTE_MAX_WAITING_BYTES) {
		command->curl_paused = true;
		return CURL_WRITEFUNC_PAUSE;
	}
	if (!good && to->size + count > MAX_ANSWER_BYTES)
		return 0;
	schedule(command);
	return cell__buf_add(to, bytes, count) < 0 ? 0 : count;
}

static void stream_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__remote_command *command = (struct cell__remote_command *)((char *)transfer -
									       offsetof(struct cell__remote_command, stream));

	command->streaming = command->curl_paused = false;
	command->code = code;
	command->status = cell__http_status(transfer);
	schedule(command);
}

static int start_transfer(struct cell__remote_command *command, struct cell__http_transfer *transfer, const char *method, const char *path,
			  const char *body, const char *header)
{
	const struct cell__remote_kernel *kernel = command->kernel;
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;
	const char *const lines[] = { kernel->authorization, body ? "Content-Type: application/json" : NULL, header };
	bool streams = transfer == &command->stream;
	const struct cell__http_request request = { .method = method,
						    .body = body,
						    .body_size = body ? strlen(body) : 0,
						    .socket = kernel->socket,
						    .ca = kernel->ca,
						    .connect_ms = CONNECT_TIMEOUT_MS,
						    .timeout_ms = streams ? 0 : REQUEST_TIMEOUT_MS,
						    .silence_s = streams ? SILENT_S : 0 };

	cell__http_clear_headers(transfer);
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		if (lines[i] && cell__http_add_header(transfer, lines[i]) < 0)
			return -1;
	if (cell__buf_printf(&url, "%s/v1/sessions/%s/commands%s", kernel->url, kernel->session, path) < 0)
		return -1;
	struct cell__http_request all = request;
	all.url = url.data;
	return cell__http_start(kernel->remote->http, transfer, &all);
}

static void handle_timer(uv_timer_t *timer)
{
	schedule(timer->data);
}

static void wait_a_moment(struct cell__remote_command *command)
{
	uv_update_time(cell__loop_uv(command->base.loop));
	uv_timer_start(command->timer, handle_timer, (uint64_t)command->pause_ms, 0);
	command->pause_ms = command->pause_ms * 2 < LONGEST_PAUSE_MS ? command->pause_ms * 2 : LONGEST_PAUSE_MS;
}

static void end_with(struct cell__remote_command *command, const struct cell__process_exit *how)
{
	command->ended = true;
	command->how = *how;
}

static void lose(struct cell__remote_command *command)
{
	end_with(command, &(struct cell__process_exit){ .error = ESRCH });
}

/* The server's error, in the words of the one who gave the command. */
static void refuse(struct cell__remote_command *command)
{
	struct cell__process_exit how = { .error = EIO };
	struct cell__remote_exchange exchange = { .answer = command->answer, .about = true };

	cell__remote_describe(command->kernel, &exchange, command->code, command->status, &how.failure);
	end_with(command, &how);
}

static void resume(struct cell__remote_command *command)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, header = CELL_BUF_INIT;
	int64_t now = cell__now_us();

	if (!command->broken_us) {
		command->broken_us = now;
		command->pause_ms = FIRST_PAUSE_MS;
		wait_a_moment(command);
		return;
	}
	if (uv_is_active((uv_handle_t *)command->timer))
		return;
	if (now - command->broken_us > (int64_t)RESUME_MS * 1000) {
		lose(command);
		return;
	}
	cell__sse_restart(&command->sse);
	command->in.size = command->answer.size = 0;
	command->streaming = !cell__buf_printf(&path, "/%s/output", command->id) &&
			     !cell__buf_printf(&header, "Last-Event-ID: %s", *command->sse.id ? command->sse.id : "0") &&
			     !start_transfer(command, &command->stream, "GET", path.data, NULL, header.data);
	if (!command->streaming)
		lose(command);
	else
		wait_a_moment(command); /* the next attempt is not before that */
}

static void stream_over(struct cell__remote_command *command)
{
	bool again = command->code != CURLE_OK || command->status >= 500 || command->status == 200 || command->status == 429;

	if (!*command->id)
		refuse(command);
	else if (again)
		resume(command);
	else
		lose(command);
}

/* ---- events; NULL, or the problem ---- */

static bool is_id(const char *text)
{
	return text && *text && strlen(text) < sizeof(((struct cell__remote_command *)0)->id) && !text[strspn(text, "0123456789abcdef")];
}

static bool take_started(struct cell__remote_command *command, const json_t *event)
{
	const char *id = json_string_value(json_object_get(event, "command_id"));
	int64_t pid = json_integer_value(json_object_get(event, "pid"));

	if (*command->id || !is_id(id))
		return false;
	strcpy(command->id, id);
	command->spec.started(command->spec.owner, pid);
	return true;
}

static bool take_chunk(struct cell__remote_command *command, const json_t *event)
{
	const char *name = json_string_value(json_object_get(event, "stream"));
	const json_t *text = json_object_get(event, "text"), *base64 = json_object_get(event, "base64");
	enum cell_stream stream = name && !strcmp(name, "stderr") ? CELL_STDERR : CELL_STDOUT;
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;

	if (!*command->id || !name || json_is_string(text) == json_is_string(base64))
		return false;
	if (base64 && cell__buf_add_unbase64(&bytes, json_string_value(base64), json_string_length(base64)) < 0)
		return false;
	const char *data = text ? json_string_value(text) : bytes.data;
	size_t size = text ? json_string_length(text) : bytes.size;
	if (size)
		command->spec.output(command->spec.owner, stream, data, size);
	return true;
}

static bool take_gap(struct cell__remote_command *command, const json_t *event)
{
	const json_t *dropped = json_object_get(event, "dropped");

	if (!*command->id || !json_is_integer(dropped) || json_integer_value(dropped) < 0 || json_integer_value(dropped) > MAX_GAP_BYTES)
		return false;
	command->spec.lost(command->spec.owner, (uint64_t)json_integer_value(dropped));
	return true;
}

static bool take_ended(struct cell__remote_command *command, const json_t *event)
{
	const json_t *status = json_object_get(event, "exit_code"), *number = json_object_get(event, "signal");
	const char *reason = json_string_value(json_object_get(event, "reason"));
	struct cell__process_exit how = { .signalled = json_is_integer(number) };

	if (!*command->id || !json_is_integer(status))
		return false;
	how.status = (int)(how.signalled ? json_integer_value(number) & 0x7f : json_integer_value(status) & 0xff);
	how.timed_out = reason && !strcmp(reason, "timeout");
	if (reason && !strcmp(reason, "session"))
		how = (struct cell__process_exit){ .error = ESRCH };
	end_with(command, &how);
	return true;
}

static bool take_event(struct cell__remote_command *command, const struct cell__sse_event *event)
{
	json_t *data = json_loadb(event->data, event->size, JSON_ALLOW_NUL, NULL);
	bool good = json_is_object(data);

	if (good && !strcmp(event->type, "started"))
		good = take_started(command, data);
	else if (good && !strcmp(event->type, "chunk"))
		good = take_chunk(command, data);
	else if (good && !strcmp(event->type, "gap"))
		good = take_gap(command, data);
	else if (good && !strcmp(event->type, "ended"))
		good = take_ended(command, data);
	json_decref(data);
	return good;
}

static void read_stream(struct cell__remote_command *command)
{
	struct cell__buf in = command->in;
	const char *at = in.data;
	size_t left = in.size;
	struct cell__sse_event event;
	struct cell_error err;
	bool good = true;
	int found = 0;

	command->in = (struct cell__buf)CELL_BUF_INIT;
	while (good && left && command->kernel && !command->ended && !command->paused && !command->abandoned &&
	       (found = cell__sse_next(&command->sse, &at, &left, &event, &err)) > 0) {
		command->broken_us = 0;
		good = take_event(command, &event);
	}
	if (good && found >= 0 && left && command->kernel && !command->ended)
		good = cell__buf_add(&command->in, at, left) == 0;
	cell__buf_finish(&in);
	if ((!good || found < 0) && !command->ended) {
		struct cell__process_exit how = { .error = EPROTO };

		if (command->kernel)
			cell_fail(&how.failure, CELL_E_PROTOCOL, 0, "the server at %.100s sent an event of a command that is not valid",
				  command->kernel->url);
		end_with(command, &how);
	}
}

/* ---- requests beside the stream ---- */

static size_t take_control(struct cell__http_transfer *transfer, const char *bytes, size_t count)
{
	struct cell__remote_command *command = (struct cell__remote_command *)((char *)transfer -
									       offsetof(struct cell__remote_command, control));

	if (command->control_answer.size + count > MAX_ANSWER_BYTES)
		return 0;
	return cell__buf_add(&command->control_answer, bytes, count) < 0 ? 0 : count;
}

static void control_done(struct cell__http_transfer *transfer, CURLcode code)
{
	struct cell__remote_command *command = (struct cell__remote_command *)((char *)transfer -
									       offsetof(struct cell__remote_command, control));

	command->control_done = true;
	command->control_code = code;
	schedule(command);
}

static void end_control(struct cell__remote_command *command)
{
	enum control was = command->doing;
	long status = cell__http_status(&command->control);
	json_t *answer = command->control_answer.size ? json_loadb(command->control_answer.data, command->control_answer.size, 0, NULL)
						      : NULL;
	const char *word = json_string_value(json_object_get(answer, "code"));
	/* It does not read, or the server could not be reached: the bytes are still ours. */
	bool kept = command->control_code == CURLE_COULDNT_CONNECT || (word && !strcmp(word, "limit")) || status == 429 || status == 503;

	json_decref(answer);
	free(cell__take_ptr(command->control_body));
	command->control_answer.size = 0;
	command->control_done = false;
	command->doing = CONTROL_NONE;
	if (was == CONTROL_INPUT && !kept) {
		cell__buf_shift(&command->input, command->sending);
		/* Whether these bytes arrived is not known, so what follows them must not. */
		if (command->control_code != CURLE_OK)
			lose(command);
	} else if (was == CONTROL_INPUT) {
		command->pause_ms = command->pause_ms ? command->pause_ms : FIRST_PAUSE_MS;
		wait_a_moment(command);
	}
	command->sending = 0;
}

/* The next one, and its body; NONE: nothing waits. */
static enum control next_control(struct cell__remote_command *command, const char **ret_verb, struct cell__buf *body)
{
	bool waits = uv_is_active((uv_handle_t *)command->timer);
	int rc;

	if (command->n_signals) {
		*ret_verb = "signal";
		rc = cell__buf_printf(body, "{\"signal\":\"%d\"}", command->signals[0]);
		memmove(command->signals, command->signals + 1, --command->n_signals * sizeof(command->signals[0]));
		return rc < 0 ? CONTROL_NONE : CONTROL_SIGNAL;
	}
	if (command->rows) {
		*ret_verb = "resize";
		rc = cell__buf_printf(body, "{\"rows\":%u,\"cols\":%u}", command->rows, command->cols);
		command->rows = command->cols = 0;
		return rc < 0 ? CONTROL_NONE : CONTROL_SIZE;
	}
	*ret_verb = "stdin";
	if (command->input.size && !waits) {
		size_t size = command->input.size < INPUT_BYTES ? command->input.size : INPUT_BYTES;

		rc = cell__buf_add_str(body, "{\"base64\":\"");
		rc |= cell__buf_add_base64(body, command->input.data, size);
		rc |= cell__buf_add_str(body, "\"}");
		command->sending = size;
		return rc < 0 ? CONTROL_NONE : CONTROL_INPUT;
	}
	if (command->close_wanted && !command->input.size) {
		command->close_wanted = false;
		return cell__buf_add_str(body, "{\"close\":true}") < 0 ? CONTROL_NONE : CONTROL_CLOSE;
	}
	return CONTROL_NONE;
}

static void advance_controls(struct cell__remote_command *command)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, path = CELL_BUF_INIT;
	const char *verb = NULL;
	enum control next;

	if (command->doing && command->control_done)
		end_control(command);
	if (command->doing || !*command->id || command->ended)
		return;
	next = next_control(command, &verb, &body);
	if (next == CONTROL_NONE)
		return;
	command->control_body = cell__buf_take(&body);
	if (!command->control_body || cell__buf_printf(&path, "/%s/%s", command->id, verb) < 0 ||
	    start_transfer(command, &command->control, "POST", path.data, command->control_body, NULL) < 0)
		lose(command);
	else
		command->doing = next;
}

/* ---- */

static void process(struct cell__task *task)
{
	struct cell__remote_command *command = (struct cell__remote_command *)((char *)task - offsetof(struct cell__remote_command, task));

	command->posted = false;
	command->in_task = true;
	if (command->kernel && !command->ended)
		read_stream(command);
	if (command->kernel && !command->ended && !command->abandoned && command->curl_paused && !command->paused &&
	    command->in.size <= CELL_REMOTE_MAX_WAITING_BYTES) {
		command->curl_paused = false;
		curl_easy_pause(command->stream.easy, CURLPAUSE_CONT);
	}
	if (command->kernel && !command->ended && !command->abandoned)
		advance_controls(command);
	if (command->kernel && !command->ended && !command->abandoned && !command->streaming && !command->paused && !command->in.size)
		stream_over(command);
	command->in_task = false;
	if (command->posted)
		return; /* it comes once more */
	if (command->ended && !command->abandoned) {
		command->abandoned = true;
		leave(command);
		command->spec.exited(command->spec.owner, &command->how);
	}
	if (command->abandoned && !command->posted)
		command_free(command);
}

/* ---- the vtable ---- */

static struct cell__remote_command *of(struct cell__far_command *base)
{
	return (struct cell__remote_command *)base;
}

static int far_write(struct cell__far_command *base, const void *bytes, size_t size, struct cell_error *err)
{
	struct cell__remote_command *command = of(base);

	if (cell__buf_add(&command->input, bytes, size) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for input");
	schedule(command);
	return 0;
}

static size_t far_unread(const struct cell__far_command *base)
{
	return ((const struct cell__remote_command *)base)->input.size;
}

static void far_close_stdin(struct cell__far_command *base)
{
	of(base)->close_wanted = true;
	schedule(of(base));
}

static void far_signal(struct cell__far_command *base, int number)
{
	struct cell__remote_command *command = of(base);

	/* Of too many the last one is replaced; one that kills must not be lost. */
	if (command->n_signals == MAX_SIGNALS)
		command->n_signals--;
	command->signals[command->n_signals++] = number;
	if (number == SIGKILL)
		command->paused = false;
	schedule(command);
}

static void far_resize(struct cell__far_command *base, unsigned short rows, unsigned short cols)
{
	of(base)->rows = rows;
	of(base)->cols = cols;
	schedule(of(base));
}

static void far_pause(struct cell__far_command *base, bool paused)
{
	of(base)->paused = paused;
	if (!paused)
		schedule(of(base));
}

static void deleted(struct cell__remote_exchange *exchange, CURLcode code, long status)
{
	(void)exchange;
	(void)code;
	(void)status; /* it ends with its session at the latest */
}

static void far_abandon(struct cell__far_command *base)
{
	struct cell__remote_command *command = of(base);
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

	if (command->kernel && *command->id && !command->ended &&
	    !cell__buf_printf(&path, "/v1/sessions/%s/commands/%s", command->kernel->session, command->id))
		(void)cell__remote_begin(command->kernel, "DELETE", path.data, NULL, NULL, false, deleted);
	leave(command);
	command->abandoned = true;
	if (!command->posted && !command->in_task)
		command_free(command);
}

static const struct cell__far_ops ops = {
	.write = far_write,
	.unread = far_unread,
	.close_stdin = far_close_stdin,
	.signal = far_signal,
	.resize = far_resize,
	.pause = far_pause,
	.abandon = far_abandon,
};

static char *start_body(const struct cell__process_spec *spec)
{
	json_t *argv = json_array(), *env = json_object(), *body = NULL;
	char *text;

	for (const char *const *at = spec->argv; *at; at++)
		json_array_append_new(argv, json_string(*at));
	for (const char *const *at = spec->env; at && *at; at++) {
		CELL_AUTO_FREE char *name = cell__strndup(*at, strcspn(*at, "="));

		if (name)
			json_object_set_new(env, name, json_string(strchr(*at, '=') + 1));
	}
	/* While the connection is broken the command waits, so that nothing is lost. */
	body = json_pack("{s:o,s:o,s:s*,s:b,s:b}", "argv", argv, "env", env, "cwd", spec->cwd, "stdin", spec->want_stdin, "blocks", 1);
	if (body && spec->timeout_ms > 0)
		json_object_set_new(body, "timeout", json_real((double)spec->timeout_ms / 1000));
	if (body && spec->want_tty)
		json_object_set_new(body, "tty", json_pack("{s:i,s:i}", "rows", spec->rows, "cols", spec->cols));
	text = body ? json_dumps(body, JSON_COMPACT) : NULL;
	json_decref(body);
	return text;
}

int cell__remote_command(struct cell__kernel *base, const struct cell__process_spec *spec, struct cell__far_command **ret_command,
			 struct cell_error *err)
{
	struct cell__remote_kernel *kernel = (struct cell__remote_kernel *)base;
	struct cell__remote_command *command;

	if (!*kernel->session || kernel->state == CELL_REMOTE_CLOSING)
		return cell_fail(err, CELL_E_KERNEL, 0, "the session of the server has ended");
	command = cell__alloc(1, sizeof(*command));
	if (!command)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a command");
	*command = (struct cell__remote_command){ .base = { .ops = &ops, .loop = kernel->remote->host->loop },
						  .spec = *spec,
						  .stream = { .done = stream_done, .body = take_stream },
						  .control = { .done = control_done, .body = take_control },
						  .body = start_body(spec),
						  .timer = cell__alloc(1, sizeof(*command->timer)) };
	cell__sse_init(&command->sse, MAX_EVENT_BYTES);
	if (!command->body || !command->timer) {
		free(command->timer);
		command_free(command);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a command");
	}
	uv_timer_init(cell__loop_uv(command->base.loop), command->timer);
	command->timer->data = command;
	command->kernel = kernel;
	command->next = kernel->commands;
	kernel->commands = command;
	command->streaming = !start_transfer(command, &command->stream, "POST", "", command->body, "Accept: text/event-stream");
	if (!command->streaming) {
		leave(command);
		command_free(command);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request to the server");
	}
	*ret_command = &command->base;
	return 0;
}
