/*
 * Writing to stdout and stderr, and the printing of events and results that `run`, `shell` and `workflows run` share.
 *
 * Events of a running cell are printed at once, on the main thread. Events between cells are kept, on the engine's thread, until the main
 * thread prints them.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "picture.h"
#include "python_text.h"

/* ---- writing -------------------------------------------------------------- */

void cell__cli_write(int fd, const void *data, size_t size)
{
	const char *at = data;

	if (fd == STDERR_FILENO && cell__log_add(data, size))
		return;
	while (size && !cell__cli_stop_status()) {
		ssize_t n = write(fd, at, size);

		if (n >= 0) {
			at += n;
			size -= (size_t)n;
		} else if (errno == EAGAIN) {
			/* Another process that shares our stdout made it non-blocking. */
			struct pollfd wait = { .fd = fd, .events = POLLOUT };

			poll(&wait, 1, -1);
		} else if (errno == EPIPE && fd == STDOUT_FILENO) {
			cell__cli_stop(128 + SIGPIPE);
		} else if (errno != EINTR) {
			if (fd == STDOUT_FILENO) {
				dprintf(STDERR_FILENO, "workcell: io: cannot write to stdout: %s\n", strerror(errno));
				cell__cli_stop(cell_code_exit_status(CELL_E_IO));
			}
			return;
		}
	}
}

/* ---- text that JSON can carry ---------------------------------------------- */

json_t *cell__cli_base64(const unsigned char *data, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	return cell__buf_add_base64(&text, data, size) < 0 ? NULL : json_stringn_nocheck(text.data, text.size);
}

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && !strcmp(text + n - m, end);
}

static bool is_json_type(const char *type)
{
	return !strcmp(type, "application/json") || ends_with(type, "+json");
}

/* By type, not by content: a consumer must be able to know the encoding in advance. */
static bool is_binary_type(const char *type)
{
	static const char *const starts[] = { "image/", "audio/", "video/", "application/pdf", "application/octet-stream" };

	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		if (!strncmp(type, starts[i], strlen(starts[i])))
			return !ends_with(type, "+xml");
	}
	return false;
}

/* A MIME part as in results: JSON unchanged, text as a string, everything else in base64. */
static json_t *json_part(const struct cell_mime_part *part)
{
	json_t *value = NULL;

	if (is_json_type(part->type))
		value = json_loadb(part->data, part->size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (!value && !is_binary_type(part->type))
		value = json_stringn(part->data, part->size);
	return value ? value : cell__cli_base64(part->data, part->size);
}

/* ---- the printer ------------------------------------------------------------ */

/* Bytes kept for later, one after another: a header, then its bytes. */
struct kept {
	int fd;
	size_t size;
};

/* The start of a character whose rest has not come yet; one a stream. */
struct carry {
	char bytes[4];
	size_t size;
};

/* Where output goes: at once, or into `kept` for the main thread. */
struct outlet {
	struct cell_cli_printer *printer;
	bool keep;
	struct carry carry[2];
};

struct cell_cli_printer {
	enum cell_cli_format format;
	pthread_mutex_t out; /* recursive: keeps connected output together */
	struct outlet now;   /* main thread */
	struct outlet later; /* engine's thread */
	bool mid_line;       /* stdout is not at the start of a line */
	bool guarded[2]; /* stdout, stderr: a terminal that the code must not act on, because it asks questions there or is confined */
	struct cell_shown_carry shown[2];
	bool pictures; /* shown or saved */
	struct cell_cli_asker *asker; /* NULL: no questions here */
	struct cell_session *session;
	void (*wake)(void *arg);
	void *wake_arg;
	pthread_mutex_t mutex; /* guards what follows */
	char *kept;
	size_t kept_size, kept_room;
	uint64_t dropped;
};

struct cell_cli_printer *cell__cli_printer_create(enum cell_cli_format format, void (*wake)(void *arg), void *arg)
{
	struct cell_cli_printer *printer = calloc(1, sizeof(*printer));
	pthread_mutexattr_t recursive;

	if (!printer)
		return NULL;
	printer->format = format;
	printer->wake = wake;
	printer->wake_arg = arg;
	printer->now.printer = printer;
	printer->later = (struct outlet){ .printer = printer, .keep = true };
	pthread_mutex_init(&printer->mutex, NULL);
	pthread_mutexattr_init(&recursive);
	pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
	pthread_mutex_init(&printer->out, &recursive);
	pthread_mutexattr_destroy(&recursive);
	return printer;
}

void cell__cli_printer_destroy(struct cell_cli_printer *printer)
{
	if (!printer)
		return;
	pthread_mutex_destroy(&printer->mutex);
	pthread_mutex_destroy(&printer->out);
	cell__cli_asker_destroy(printer->asker);
	free(printer->kept);
	free(printer);
}

static void write_now(struct cell_cli_printer *printer, int fd, const char *data, size_t size)
{
	if (fd == STDOUT_FILENO && size)
		printer->mid_line = data[size - 1] != '\n';
	cell__cli_write(fd, data, size);
}

/* data NULL: the end of an incomplete character or sequence will not come any more. */
static void print_now(struct cell_cli_printer *printer, int fd, const void *data, size_t size)
{
	bool is_err = fd == STDERR_FILENO;
	char *shown;

	if (!printer->guarded[is_err]) {
		if (data)
			write_now(printer, fd, data, size);
		return;
	}
	shown = cell_shown_output(&printer->shown[is_err], data, size, &size);
	if (shown)
		write_now(printer, fd, shown, size);
	else
		dprintf(STDERR_FILENO, "workcell: no_memory: some output was not shown\n");
	free(shown);
}

void cell__cli_print_fresh_line(struct cell_cli_printer *printer)
{
	print_now(printer, STDOUT_FILENO, NULL, 0);
	print_now(printer, STDERR_FILENO, NULL, 0);
	if (printer->mid_line)
		print_now(printer, STDOUT_FILENO, "\n", 1);
}

static void keep(struct cell_cli_printer *printer, int fd, const void *data, size_t size)
{
	struct kept header = { fd, size };
	size_t need;

	pthread_mutex_lock(&printer->mutex);
	need = printer->kept_size + sizeof(header) + size;
	if (need > printer->kept_room && need <= CELL_CLI_MAX_LATE_BYTES) {
		size_t room = need * 2 > CELL_CLI_MAX_LATE_BYTES ? CELL_CLI_MAX_LATE_BYTES : need * 2;
		char *bytes = realloc(printer->kept, room);

		if (bytes) {
			printer->kept = bytes;
			printer->kept_room = room;
		}
	}
	if (need <= printer->kept_room) {
		memcpy(printer->kept + printer->kept_size, &header, sizeof(header));
		memcpy(printer->kept + printer->kept_size + sizeof(header), data, size);
		printer->kept_size = need;
	} else {
		printer->dropped += size;
	}
	pthread_mutex_unlock(&printer->mutex);
	if (printer->wake)
		printer->wake(printer->wake_arg);
}

bool cell__cli_has_kept(struct cell_cli_printer *printer)
{
	bool has;

	pthread_mutex_lock(&printer->mutex);
	has = printer->kept_size || printer->dropped;
	pthread_mutex_unlock(&printer->mutex);
	return has;
}

void cell__cli_print_kept(struct cell_cli_printer *printer)
{
	struct kept header;
	uint64_t dropped;
	size_t size;
	char *bytes;

	pthread_mutex_lock(&printer->mutex);
	bytes = printer->kept;
	size = printer->kept_size;
	dropped = printer->dropped;
	printer->kept = NULL;
	printer->kept_size = printer->kept_room = 0;
	printer->dropped = 0;
	pthread_mutex_unlock(&printer->mutex);
	pthread_mutex_lock(&printer->out);
	for (size_t at = 0; at < size; at += sizeof(header) + header.size) {
		memcpy(&header, bytes + at, sizeof(header));
		print_now(printer, header.fd, bytes + at + sizeof(header), header.size);
	}
	pthread_mutex_unlock(&printer->out);
	if (dropped)
		dprintf(STDERR_FILENO, "workcell: %llu bytes of output between cells were dropped\n", (unsigned long long)dropped);
	free(bytes);
}

static void emit(struct outlet *outlet, int fd, const void *data, size_t size)
{
	if (outlet->keep)
		keep(outlet->printer, fd, data, size);
	else
		print_now(outlet->printer, fd, data, size);
}

void cell__cli_print_line(struct cell_cli_printer *printer, const char *text)
{
	pthread_mutex_lock(&printer->out);
	print_now(printer, STDOUT_FILENO, text, strlen(text));
	print_now(printer, STDOUT_FILENO, "\n", 1);
	pthread_mutex_unlock(&printer->out);
}

/* Takes the object. */
static void emit_json(struct outlet *outlet, json_t *object)
{
	char *line = NULL;
	size_t size;

	if (object && outlet->keep)
		json_object_set_new(object, "between_runs", json_true());
	if (object)
		line = json_dumps(object, JSON_COMPACT);
	json_decref(object);
	if (!line) {
		dprintf(STDERR_FILENO, "workcell: no_memory: an event was not shown\n");
		return;
	}
	size = strlen(line);
	line[size] = '\n'; /* the terminating zero is not needed any more */
	emit(outlet, STDOUT_FILENO, line, size + 1);
	free(line);
}

/* ---- events ------------------------------------------------------------------ */

static void emit_chunk_json(struct outlet *outlet, int stream, const char *data, size_t size, bool last)
{
	struct carry *carry = &outlet->carry[stream == CELL_STDERR];
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, text = CELL_BUF_INIT;
	size_t used;

	if (!carry->size && !size)
		return;
	if (cell__buf_add(&bytes, carry->bytes, carry->size) < 0 || cell__buf_add(&bytes, data, size) < 0) {
		emit_json(outlet, NULL);
		return;
	}
	used = bytes.size - (last ? 0 : cell__utf8_cut(bytes.data, bytes.size));
	carry->size = bytes.size - used; /* at most 3: a character's start */
	memcpy(carry->bytes, bytes.data + used, carry->size);
	if (cell__buf_add_utf8(&text, bytes.data, used) < 0)
		emit_json(outlet, NULL);
	else if (text.size)
		emit_json(outlet, json_pack("{s:s, s:s, s:s%}", "event", "chunk", "stream", stream == CELL_STDERR ? "stderr" : "stdout",
					    "data", text.data, text.size));
}

static void flush_carry(struct outlet *outlet)
{
	emit_chunk_json(outlet, CELL_STDOUT, NULL, 0, true);
	emit_chunk_json(outlet, CELL_STDERR, NULL, 0, true);
}

void cell__cli_printer_show_pictures(struct cell_cli_printer *printer)
{
	printer->pictures = true;
}

static void emit_saved_picture(struct outlet *outlet, const struct cell_mime_part *part)
{
	CELL_AUTO_FREE char *path = NULL, *line = NULL;
	struct cell_error err;
	int size;

	if (cell__picture_save(part->data, part->size, &path, &err) == 0)
		size = asprintf(&line, "image: %s\n", path);
	else
		size = asprintf(&line, "<%.80s, %zu bytes, not saved: %s>\n", part->type, part->size, err.msg);
	if (size >= 0)
		emit(outlet, STDOUT_FILENO, line, (size_t)size);
	else
		line = NULL;
}

/* False: there is no picture among the parts, or pictures are not for this printer. */
static bool emit_picture(struct outlet *outlet, const struct cell_mime_part *parts, size_t n)
{
	CELL_AUTO_BUF struct cell__buf drawn = CELL_BUF_INIT;
	const struct cell_mime_part *part = NULL;

	for (size_t i = 0; i < n && outlet->printer->pictures && !part; i++) {
		if ((!strcmp(parts[i].type, "image/png") || !strcmp(parts[i].type, "image/jpeg")) &&
		    cell__picture_type(parts[i].data, parts[i].size))
			part = &parts[i];
	}
	if (!part)
		return false;
	if (!outlet->keep)
		cell__cli_print_fresh_line(outlet->printer);
	/* A terminal that is guarded from the code does not decode its pictures either. */
	if (!outlet->printer->guarded[0] && cell__picture_draw(cell__pictures_of_terminal(), part->data, part->size, &drawn) == 0)
		emit(outlet, STDOUT_FILENO, drawn.data, drawn.size);
	else
		emit_saved_picture(outlet, part);
	return true;
}

static void emit_display(struct outlet *outlet, const struct cell_mime_part *parts, size_t n)
{
	if (outlet->printer->format == CELL_CLI_EVENTS) {
		json_t *mime = json_object();

		for (size_t i = 0; i < n; i++)
			json_object_set_new(mime, parts[i].type, json_part(&parts[i]));
		flush_carry(outlet);
		emit_json(outlet, json_pack("{s:s, s:o}", "event", "display", "mime", mime));
		return;
	}
	if (outlet->printer->format != CELL_CLI_TEXT || !n || emit_picture(outlet, parts, n))
		return;
	for (size_t i = 0; i < n; i++) {
		if (!strcmp(parts[i].type, "text/plain")) {
			emit(outlet, STDOUT_FILENO, parts[i].data, parts[i].size);
			emit(outlet, STDOUT_FILENO, "\n", 1);
			return;
		}
	}
	/* A terminal cannot show it: mention at least that there was output. */
	{
		char line[160];
		int size = snprintf(line, sizeof(line), "<%.80s, %zu bytes>\n", parts[0].type, parts[0].size);

		emit(outlet, STDOUT_FILENO, line, (size_t)size);
	}
}

/* The result's notices, which text mode prints, also report an image that was not written. */
static void emit_image(struct outlet *outlet, const struct cell_event *event)
{
	if (outlet->printer->format == CELL_CLI_EVENTS) {
		flush_carry(outlet);
		emit_json(outlet, event->path ? json_pack("{s:s, s:s, s:I}", "event", "image", "path", event->path, "index",
							  (json_int_t)event->index)
					      : json_pack("{s:s, s:n, s:s}", "event", "image", "path", "message", event->message));
	} else if (outlet->printer->format == CELL_CLI_TEXT && event->path) {
		cell__cli_print_fresh_line(outlet->printer);
		emit(outlet, STDOUT_FILENO, "image: ", 7);
		emit(outlet, STDOUT_FILENO, event->path, strlen(event->path));
		emit(outlet, STDOUT_FILENO, "\n", 1);
	}
}

/* what: "kernel_died" or "point_lost" */
static void emit_loss(struct outlet *outlet, const char *what, const char *message)
{
	char line[512], *shown;
	int size;

	if (outlet->printer->format == CELL_CLI_EVENTS) {
		emit_json(outlet, json_pack("{s:s, s:s}", "event", what, "message", message));
		return;
	}
	message = shown = cell_shown_text(message, strlen(message), CELL_SHOWN_LINE);
	size = snprintf(line, sizeof(line), "workcell: %s: %.400s\n", what, message ? message : "");
	emit(outlet, STDERR_FILENO, line, (size_t)size);
	free(shown);
}

static void emit_call_json(struct outlet *outlet, const struct cell_event *event)
{
	static const char *const names[] = {
		[CELL_EVENT_CALL_STARTED] = "call_started",
		[CELL_EVENT_CALL_ENDED] = "call_ended",
		[CELL_EVENT_APPROVAL] = "approval",
		[CELL_EVENT_APPROVAL_ENDED] = "approval_ended",
	};
	const struct cell_call_info *call = event->call;
	json_t *args = json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL);
	json_t *object = json_pack("{s:s, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:o?}", "event", names[event->type], "id",
				   (json_int_t)call->id, "request_id", call->request_id, "kind", call->kind, "tool", call->tool, "callable",
				   call->callable, "adapter", call->adapter, "session_id", call->session_id, "args", args);

	if (object && event->decision)
		json_object_set_new(object, "decision", json_string(event->decision));
	if (object && event->message)
		json_object_set_new(object, "message", json_string(event->message));
	if (object && event->type == CELL_EVENT_CALL_ENDED)
		json_object_set_new(object, "duration_ms", json_real(event->duration_ms));
	flush_carry(outlet);
	emit_json(outlet, object);
}

/* No cell runs, so the request is not asked: the person may still like to know why the code is blocked. */
static void emit_background_request(struct outlet *outlet, const struct cell_call_info *call)
{
	char *tool = cell_shown_text(call->tool, strlen(call->tool), CELL_SHOWN_ASCII);
	char *callable = cell_shown_text(call->callable, strlen(call->callable), CELL_SHOWN_ASCII), line[320];
	int size = snprintf(line, sizeof(line), "workcell: a background call of %.100s%s%.100s waits for an approval\n", tool ? tool : "",
			    *call->callable ? "." : "", callable ? callable : "");

	emit(outlet, STDERR_FILENO, line, (size_t)size < sizeof(line) ? (size_t)size : sizeof(line) - 1);
	free(tool);
	free(callable);
}

/* "2/5 words" of a progress, "warning: words" of a log line; free() it. */
static char *news_text(const struct cell_event *event, const json_t *said)
{
	const json_t *words = json_object_get(said, event->type == CELL_EVENT_TOOL_LOG ? "data" : "message");
	const char *level = json_string_value(json_object_get(said, "level"));
	double done = json_number_value(json_object_get(said, "progress")), all = json_number_value(json_object_get(said, "total"));
	char *dump = json_is_string(words) || !words ? NULL : json_dumps(words, JSON_COMPACT | JSON_ENCODE_ANY), *text;
	const char *shown = dump ? dump : words ? json_string_value(words) : "";
	int size;

	if (event->type == CELL_EVENT_TOOL_LOG)
		size = asprintf(&text, "%s: %s", level ? level : "log", shown);
	else if (all > 0)
		size = asprintf(&text, "%g/%g %s", done, all, shown);
	else
		size = asprintf(&text, "%g %s", done, shown);
	free(dump);
	return size < 0 ? NULL : text;
}

/* A notification of an MCP server. */
static void emit_news(struct outlet *outlet, const struct cell_event *event)
{
	const struct cell_call_info *call = event->call;
	json_t *said = json_loadb(event->data, event->size, JSON_ALLOW_NUL, NULL);
	char *text, *line = NULL, *plain = NULL;

	if (outlet->printer->format == CELL_CLI_EVENTS) {
		flush_carry(outlet);
		emit_json(outlet,
			  json_pack("{s:s, s:I, s:s, s:s, s:s, s:o?}", "event",
				    event->type == CELL_EVENT_TOOL_LOG ? "tool_log" : "tool_progress", "id", (json_int_t)call->id, "tool",
				    call->tool, "callable", call->callable, "session_id", call->session_id, "params", said));
		return;
	}
	text = outlet->printer->format == CELL_CLI_TEXT ? news_text(event, said) : NULL;
	if (text && asprintf(&line, "workcell: %s%s%s: %s", call->tool, *call->callable ? "." : "", call->callable, text) < 0)
		line = NULL;
	if (line && (plain = cell__cli_plain(line))) {
		emit(outlet, STDERR_FILENO, plain, strlen(plain));
		emit(outlet, STDERR_FILENO, "\n", 1);
	}
	free(text);
	free(line);
	free(plain);
	json_decref(said);
}

static void emit_event(struct outlet *outlet, const struct cell_event *event)
{
	enum cell_cli_format format = outlet->printer->format;

	switch (event->type) {
	case CELL_EVENT_CHUNK:
		if (format == CELL_CLI_EVENTS)
			emit_chunk_json(outlet, event->stream, event->data, event->size, false);
		else if (format == CELL_CLI_TEXT)
			emit(outlet, event->stream == CELL_STDERR ? STDERR_FILENO : STDOUT_FILENO, event->data, event->size);
		break;
	case CELL_EVENT_DISPLAY:
		emit_display(outlet, event->parts, event->n_parts);
		break;
	case CELL_EVENT_IMAGE:
		emit_image(outlet, event);
		break;
	case CELL_EVENT_KERNEL_DIED:
		emit_loss(outlet, "kernel_died", event->message ? event->message : "");
		break;
	case CELL_EVENT_BRANCH: /* the caller's own doing; a dropped point is logged */
		break;
	case CELL_EVENT_POINT_LOST:
		emit_loss(outlet, "point_lost", event->message ? event->message : "");
		break;
	case CELL_EVENT_CALL_STARTED:
	case CELL_EVENT_CALL_ENDED:
	case CELL_EVENT_APPROVAL:
	case CELL_EVENT_APPROVAL_ENDED:
		if (format == CELL_CLI_EVENTS)
			emit_call_json(outlet, event);
		else if (outlet->keep && event->type == CELL_EVENT_APPROVAL)
			emit_background_request(outlet, event->call);
		break;
	case CELL_EVENT_TOOL_PROGRESS:
	case CELL_EVENT_TOOL_LOG:
		emit_news(outlet, event);
		break;
	case CELL_EVENT_RESULT:
		break; /* printed from the return of cell_session_run() */
	}
}

int cell__cli_printer_ask(struct cell_cli_printer *printer, const struct cell_cli_host *host, bool stdin_is_taken, struct cell_error *err)
{
	printer->asker = cell__cli_asker_create(stdin_is_taken, printer->format == CELL_CLI_EVENTS);
	printer->session = host->session;
	/* Trusted code without approvals may use all control characters; confined code may only redraw its line. */
	for (int i = 0; i < 2; i++) {
		printer->guarded[i] = (host->policy || host->confined) && printer->format == CELL_CLI_TEXT &&
				      isatty(i ? STDERR_FILENO : STDOUT_FILENO);
		printer->shown[i].redraws = !host->policy;
	}
	return printer->asker ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a question");
}

/* On lines of its own, whatever the code left unfinished on either stream. */
static void start_question(struct cell_cli_printer *printer)
{
	cell__cli_print_fresh_line(printer);
	if (printer->guarded[1])
		cell__cli_write(STDERR_FILENO, "\n", 1);
}

void cell__cli_print_event(void *arg, const struct cell_event *event)
{
	struct cell_cli_printer *printer = arg;

	pthread_mutex_lock(&printer->out);
	emit_event(&printer->now, event);
	pthread_mutex_unlock(&printer->out);
	if (event->type == CELL_EVENT_APPROVAL && printer->asker) {
		if (printer->format == CELL_CLI_TEXT)
			start_question(printer);
		cell__cli_ask(printer->asker, printer->session, event);
	}
}

void cell__cli_keep_event(void *arg, const struct cell_event *event)
{
	struct cell_cli_printer *printer = arg;

	emit_event(&printer->later, event);
}

/* ---- results ------------------------------------------------------------------ */

static void print_result_json(struct cell_cli_printer *printer, const struct cell_result *result)
{
	static const char event[] = "{\"event\":\"result\",";
	char *line = cell_result_json(result);
	size_t size;

	if (!line) {
		dprintf(STDERR_FILENO, "workcell: no_memory: a result was not shown\n");
		cell__cli_stop(cell_code_exit_status(CELL_E_NOMEM));
		return;
	}
	size = strlen(line);
	if (printer->format == CELL_CLI_EVENTS) {
		/* Spliced as text: a parser would have to keep ints of any size exact. */
		flush_carry(&printer->now);
		print_now(printer, STDOUT_FILENO, event, sizeof(event) - 1);
		print_now(printer, STDOUT_FILENO, line + 1, size - 1);
	} else {
		print_now(printer, STDOUT_FILENO, line, size);
	}
	print_now(printer, STDOUT_FILENO, "\n", 1);
	free(line);
}

static void print_value(struct cell_cli_printer *printer, const struct cell_result *result, const char *prefix)
{
	const struct cell_mime_part *parts;
	size_t n = cell_result_mime(result, &parts), size = 0;
	const char *text = NULL;

	for (size_t i = 0; i < n && !text; i++) {
		if (!strcmp(parts[i].type, "text/plain")) {
			text = parts[i].data;
			size = parts[i].size;
		}
	}
	if (!text && (text = cell_result_repr(result)))
		size = strlen(text);
	if (!text)
		return;
	cell__cli_print_fresh_line(printer);
	print_now(printer, STDOUT_FILENO, prefix, strlen(prefix));
	/* As IPython does, so that the lines of a table stay aligned. */
	if (*prefix && memchr(text, '\n', size))
		print_now(printer, STDOUT_FILENO, "\n", 1);
	print_now(printer, STDOUT_FILENO, text, size);
	print_now(printer, STDOUT_FILENO, "\n", 1);
	emit_picture(&printer->now, parts, n);
}

static void print_traceback(struct cell_cli_printer *printer, const char *text, size_t size)
{
	size_t coloured_size = 0;
	char *coloured = cell__cli_colours(STDERR_FILENO) ? cell__traceback_coloured(text, size, &coloured_size) : NULL;

	print_now(printer, STDERR_FILENO, coloured ? coloured : text, coloured ? coloured_size : size);
	if (text[size - 1] != '\n')
		print_now(printer, STDERR_FILENO, "\n", 1);
	free(coloured);
}

static void print_outcome(struct cell_cli_printer *printer, const struct cell_outcome *outcome)
{
	size_t size = outcome->traceback ? strlen(outcome->traceback) : 0;

	if (size)
		print_traceback(printer, outcome->traceback, size);
	print_now(printer, STDERR_FILENO, NULL, 0);
	/* An exception's traceback is complete; a timeout's does not mention the timeout. */
	if (!size || (outcome->code != CELL_OUT_EXCEPTION && outcome->code != CELL_OUT_INTERRUPTED)) {
		struct cell_error err = { .code = outcome->code };

		snprintf(err.msg, sizeof(err.msg), "%s", outcome->message ? outcome->message : "");
		cell__cli_report(&err, false);
	}
}

static void print_notice(const char *text)
{
	char *shown = cell_shown_text(text, strlen(text), CELL_SHOWN_LINES);

	dprintf(STDERR_FILENO, "workcell: %s\n", shown ? shown : "no_memory: a notice was not shown");
	free(shown);
}

bool cell__cli_has_exited(const struct cell_result *result)
{
	const struct cell_outcome *outcome = cell_result_error(result);

	return outcome && outcome->code == CELL_OUT_EXCEPTION && !strcmp(outcome->type, "SystemExit") &&
	       (!*outcome->message || !strcmp(outcome->message, "0") || !strcmp(outcome->message, "None"));
}

int cell__cli_print_result(struct cell_cli_printer *printer, struct cell_result *result, const char *prefix, bool goes_on, bool quiet)
{
	const struct cell_outcome *outcome = cell_result_error(result);

	cell_result_keep_spill(result); /* JSON names it */
	pthread_mutex_lock(&printer->out);
	if (printer->format == CELL_CLI_TEXT) {
		print_value(printer, result, prefix);
		if (outcome && !quiet)
			print_outcome(printer, outcome);
		for (size_t i = 0; i < cell_result_notice_count(result); i++)
			print_notice(cell_result_notice(result, i));
		if (goes_on && !cell_result_state_kept(result))
			dprintf(STDERR_FILENO, "workcell: the variables are lost; the next cell starts on a fresh kernel\n");
	} else {
		print_result_json(printer, result);
	}
	pthread_mutex_unlock(&printer->out);
	return outcome ? cell_code_exit_status(outcome->code) : 0;
}
