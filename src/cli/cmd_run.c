/*
 * `workcell run`, and the printing that `workcell shell` shares with it.
 *
 * With --cells the input is a conversation: a reader thread takes lines from stdin into a bounded queue and
 * the main thread works through it, so that {"op": "interrupt"} is seen while a cell runs.
 *
 *     stdin ── reader thread ──┬── queue ──> main thread ── cell_session_run() ──> stdout
 *                              └── interrupt
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#define REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* ---- writing -------------------------------------------------------------- */

void cell__cli_write(int fd, const void *data, size_t size)
{
	const char *at = data;

	while (size && !cell__cli_stop_status()) {
		ssize_t n = write(fd, at, size);

		if (n >= 0) {
			at += n;
			size -= (size_t)n;
		} else if (errno == EAGAIN) {
			/* Someone who shares our stdout made it non-blocking. */
			struct pollfd wait = { .fd = fd, .events = POLLOUT };

			poll(&wait, 1, -1);
		} else if (errno == EPIPE && fd == STDOUT_FILENO) {
			cell__cli_stop(128 + SIGPIPE);
		} else if (errno != EINTR) {
			if (fd == STDOUT_FILENO) {
				dprintf(STDERR_FILENO, "workcell: io: cannot write to stdout: %s\n",
					strerror(errno));
				cell__cli_stop(cell_code_exit_status(CELL_E_IO));
			}
			return;
		}
	}
}

/* ---- text that JSON can carry ---------------------------------------------- */

/*
 * The character at the start of bytes[0..size): its length when it is valid UTF-8, 0 when it may become valid
 * with more bytes, and -n when the first n bytes can never be (n as in Unicode's "maximal subpart").
 */
static int utf8_step(const unsigned char *bytes, size_t size)
{
	unsigned char low = 0x80, high = 0xbf, first = bytes[0];
	int length;

	if (first < 0x80)
		return 1;
	if (first < 0xc2 || first > 0xf4)
		return -1;
	length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
	/* The second byte is narrower after these: overlong forms, surrogates, past U+10FFFF. */
	if (first == 0xe0)
		low = 0xa0;
	else if (first == 0xed)
		high = 0x9f;
	else if (first == 0xf0)
		low = 0x90;
	else if (first == 0xf4)
		high = 0x8f;
	for (int i = 1; i < length; i++) {
		if ((size_t)i == size)
			return 0;
		if (bytes[i] < low || bytes[i] > high)
			return -i;
		low = 0x80;
		high = 0xbf;
	}
	return length;
}

/*
 * Valid UTF-8 out of bytes that may be anything, into out, which has room for 3 * size.  With `last`, an
 * unfinished character at the end is replaced, otherwise it is left.  *ret_used: how many bytes were taken.
 */
static size_t utf8_clean(const char *bytes, size_t size, bool last, char *out, size_t *ret_used)
{
	const unsigned char *in = (const unsigned char *)bytes;
	size_t used = 0, filled = 0;

	while (used < size) {
		int step = utf8_step(in + used, size - used);

		if (!step && !last)
			break;
		if (!step)
			step = -(int)(size - used);
		if (step > 0) {
			memcpy(out + filled, in + used, (size_t)step);
			filled += (size_t)step;
			used += (size_t)step;
		} else {
			memcpy(out + filled, REPLACEMENT, 3);
			filled += 3;
			used += (size_t)-step;
		}
	}
	*ret_used = used;
	return filled;
}

static json_t *json_base64(const unsigned char *data, size_t size)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	char *text = malloc((size / 3 + 1) * 4), *out = text;
	json_t *value;

	if (!text)
		return NULL;
	for (size_t i = 0; i < size; i += 3) {
		uint32_t bits = (uint32_t)data[i] << 16;

		if (i + 1 < size)
			bits |= (uint32_t)data[i + 1] << 8;
		if (i + 2 < size)
			bits |= data[i + 2];
		*out++ = digits[bits >> 18];
		*out++ = digits[bits >> 12 & 63];
		*out++ = i + 1 < size ? digits[bits >> 6 & 63] : '=';
		*out++ = i + 2 < size ? digits[bits & 63] : '=';
	}
	value = json_stringn_nocheck(text, (size_t)(out - text));
	free(text);
	return value;
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

/* By type, not by looking: a consumer must be able to know which it is. */
static bool is_binary_type(const char *type)
{
	static const char *const starts[] = { "image/", "audio/", "video/", "application/pdf",
					      "application/octet-stream" };

	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		if (!strncmp(type, starts[i], strlen(starts[i])))
			return !ends_with(type, "+xml");
	}
	return false;
}

/* A MIME part as results have it: JSON as it is, text as a string, everything else in base64. */
static json_t *json_part(const struct cell_mime_part *part)
{
	json_t *value = NULL;

	if (is_json_type(part->type))
		value = json_loadb(part->data, part->size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (!value && !is_binary_type(part->type))
		value = json_stringn(part->data, part->size);
	return value ? value : json_base64(part->data, part->size);
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
	struct outlet now;   /* main thread */
	struct outlet later; /* engine's thread */
	bool mid_line;       /* stdout does not stand at the start of a line */
	void (*wake)(void *arg);
	void *wake_arg;
	pthread_mutex_t mutex; /* guards what follows */
	char *kept;
	size_t kept_size, kept_room;
	uint64_t dropped;
};

struct cell_cli_printer *cell__cli_printer_create(enum cell_cli_format format, void (*wake)(void *arg),
						  void *arg)
{
	struct cell_cli_printer *printer = calloc(1, sizeof(*printer));

	if (!printer)
		return NULL;
	printer->format = format;
	printer->wake = wake;
	printer->wake_arg = arg;
	printer->now.printer = printer;
	printer->later = (struct outlet){ .printer = printer, .keep = true };
	pthread_mutex_init(&printer->mutex, NULL);
	return printer;
}

void cell__cli_printer_destroy(struct cell_cli_printer *printer)
{
	if (!printer)
		return;
	pthread_mutex_destroy(&printer->mutex);
	free(printer->kept);
	free(printer);
}

static void print_now(struct cell_cli_printer *printer, int fd, const void *data, size_t size)
{
	if (fd == STDOUT_FILENO && size)
		printer->mid_line = ((const char *)data)[size - 1] != '\n';
	cell__cli_write(fd, data, size);
}

void cell__cli_print_fresh_line(struct cell_cli_printer *printer)
{
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
	for (size_t at = 0; at < size; at += sizeof(header) + header.size) {
		memcpy(&header, bytes + at, sizeof(header));
		print_now(printer, header.fd, bytes + at + sizeof(header), header.size);
	}
	if (dropped)
		dprintf(STDERR_FILENO, "workcell: %llu bytes of output between cells were dropped\n",
			(unsigned long long)dropped);
	free(bytes);
}

static void emit(struct outlet *outlet, int fd, const void *data, size_t size)
{
	if (outlet->keep)
		keep(outlet->printer, fd, data, size);
	else
		print_now(outlet->printer, fd, data, size);
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
		dprintf(STDERR_FILENO, "workcell: no_memory: an event is not shown\n");
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
	char *joined, *text;
	size_t used, filled;

	size += carry->size;
	if (!size)
		return;
	joined = malloc(size * 4);
	if (!joined) {
		emit_json(outlet, NULL);
		return;
	}
	text = joined + size;
	memcpy(joined, carry->bytes, carry->size);
	if (data)
		memcpy(joined + carry->size, data, size - carry->size);
	filled = utf8_clean(joined, size, last, text, &used);
	carry->size = size - used; /* at most 3: a character's start */
	memcpy(carry->bytes, joined + used, carry->size);
	if (filled)
		emit_json(outlet,
			  json_pack("{s:s, s:s, s:s%}", "event", "chunk", "stream",
				    stream == CELL_STDERR ? "stderr" : "stdout", "data", text, filled));
	free(joined);
}

static void flush_carry(struct outlet *outlet)
{
	emit_chunk_json(outlet, CELL_STDOUT, NULL, 0, true);
	emit_chunk_json(outlet, CELL_STDERR, NULL, 0, true);
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
	if (outlet->printer->format != CELL_CLI_TEXT || !n)
		return;
	for (size_t i = 0; i < n; i++) {
		if (!strcmp(parts[i].type, "text/plain")) {
			emit(outlet, STDOUT_FILENO, parts[i].data, parts[i].size);
			emit(outlet, STDOUT_FILENO, "\n", 1);
			return;
		}
	}
	/* Nothing a terminal can show: say at least that there was something. */
	{
		char line[160];
		int size = snprintf(line, sizeof(line), "<%.80s, %zu bytes>\n", parts[0].type, parts[0].size);

		emit(outlet, STDOUT_FILENO, line, (size_t)size);
	}
}

static void emit_kernel_died(struct outlet *outlet, const char *message)
{
	char line[512];
	int size;

	if (outlet->printer->format == CELL_CLI_EVENTS) {
		emit_json(outlet, json_pack("{s:s, s:s}", "event", "kernel_died", "message", message));
		return;
	}
	size = snprintf(line, sizeof(line), "workcell: kernel_died: %.400s\n", message);
	emit(outlet, STDERR_FILENO, line, (size_t)size);
}

static void emit_event(struct outlet *outlet, const struct cell_event *event)
{
	enum cell_cli_format format = outlet->printer->format;

	switch (event->type) {
	case CELL_EVENT_CHUNK:
		if (format == CELL_CLI_EVENTS)
			emit_chunk_json(outlet, event->stream, event->data, event->size, false);
		else if (format == CELL_CLI_TEXT)
			emit(outlet, event->stream == CELL_STDERR ? STDERR_FILENO : STDOUT_FILENO,
			     event->data, event->size);
		break;
	case CELL_EVENT_DISPLAY:
		emit_display(outlet, event->parts, event->n_parts);
		break;
	case CELL_EVENT_KERNEL_DIED:
		emit_kernel_died(outlet, event->message ? event->message : "");
		break;
	case CELL_EVENT_RESULT:
		break; /* printed from the return of cell_session_run() */
	}
}

void cell__cli_print_event(void *arg, const struct cell_event *event)
{
	struct cell_cli_printer *printer = arg;

	emit_event(&printer->now, event);
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
		dprintf(STDERR_FILENO, "workcell: no_memory: a result is not shown\n");
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

static void print_value(struct cell_cli_printer *printer, const struct cell_result *result,
			const char *prefix)
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
}

static void print_outcome(const struct cell_outcome *outcome)
{
	size_t size = outcome->traceback ? strlen(outcome->traceback) : 0;

	if (size) {
		cell__cli_write(STDERR_FILENO, outcome->traceback, size);
		if (outcome->traceback[size - 1] != '\n')
			cell__cli_write(STDERR_FILENO, "\n", 1);
	}
	/* An exception's traceback says it all; a timeout's does not say that it was one. */
	if (!size || (outcome->code != CELL_OUT_EXCEPTION && outcome->code != CELL_OUT_INTERRUPTED)) {
		struct cell_error err = { .code = outcome->code };

		snprintf(err.msg, sizeof(err.msg), "%s", outcome->message ? outcome->message : "");
		cell__cli_report(&err, false);
	}
}

int cell__cli_print_result(struct cell_cli_printer *printer, struct cell_result *result, const char *prefix,
			   bool goes_on)
{
	const struct cell_outcome *outcome = cell_result_error(result);
	const char *spill = cell_result_spill_path(result);

	cell_result_keep_spill(result);
	if (printer->format == CELL_CLI_TEXT) {
		print_value(printer, result, prefix);
		if (outcome)
			print_outcome(outcome);
		if (goes_on && !cell_result_state_kept(result))
			dprintf(STDERR_FILENO,
				"workcell: the variables are lost; the next cell starts on a fresh kernel\n");
		if (spill)
			dprintf(STDERR_FILENO,
				"workcell: there was more output than a result keeps; all of it is in %s\n",
				spill);
	} else {
		print_result_json(printer, result);
	}
	return outcome ? cell_code_exit_status(outcome->code) : 0;
}

/* ---- run ------------------------------------------------------------------------ */

struct run_flags {
	struct cell_cli_session_flags session;
	struct cell_cli_list cells;
	bool json, events, conversation, keep_going;
};

static const struct cell_cli_flag run_flag_table[] = {
	{ 'e', NULL, "CODE", "run this as a cell; may be repeated", CELL_FLAG_LIST,
	  offsetof(struct run_flags, cells) },
	{ 0, "json", NULL, "one JSON object a cell, on one line, instead of text", CELL_FLAG_SWITCH,
	  offsetof(struct run_flags, json) },
	{ 0, "events", NULL, "JSON lines for output as it comes, displays and results", CELL_FLAG_SWITCH,
	  offsetof(struct run_flags, events) },
	{ 0, "cells", NULL, "read cells from stdin as JSON lines, answer each with a JSON line",
	  CELL_FLAG_SWITCH, offsetof(struct run_flags, conversation) },
	{ 0, "keep-going", NULL, "run the remaining cells after one has failed", CELL_FLAG_SWITCH,
	  offsetof(struct run_flags, keep_going) },
	CELL_CLI_SESSION_FLAGS(offsetof(struct run_flags, session)),
	{ 0 },
};

const struct cell_cli_command cell__cli_run_command = {
	.name = "run",
	.summary = "run cells in one session, print what they did",
	.synopsis = "[flags] [-e CODE]... [FILE|-]",
	.about =
		"Runs cells in one session, in the order given: each -e is a cell, FILE is one, - is stdin\n"
		"as one.  Prints output as it comes and then the cell's value; stops at the first cell that\n"
		"fails.\n\n"
		"exit status: 0 done, 1 the code raised, 124 timed out, 137 the kernel died, 2 usage,\n"
		"125 Workcell itself failed.  Ctrl-C interrupts the cell; twice within 2 s ends the program.",
	.examples = "  workcell run -e 'x = 6' -e 'x * 7'\n"
		    "  workcell run --preload pandas --timeout 30 analysis.py\n"
		    "  echo 'print(1)' | workcell run --json -\n"
		    "  echo '{\"code\": \"1 + 1\", \"timeout\": 5}' | workcell run --cells",
	.flags = run_flag_table,
	.run = cell__cmd_run,
};

struct code {
	char *text;
	size_t size;
};

static int read_all(int fd, const char *name, struct code *ret_code, struct cell_error *err)
{
	size_t room = 64 * 1024, size = 0;
	char *text = malloc(room);

	while (text) {
		ssize_t n;

		if (size == room) {
			char *more = room < CELL_CLI_MAX_CODE_BYTES ? realloc(text, room *= 2) : NULL;

			if (!more)
				break;
			text = more;
		}
		n = read(fd, text + size, room - size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			free(text);
			return cell__cli_fail(err, CELL_E_IO, errno, "cannot read %s", name);
		}
		if (!n) {
			*ret_code = (struct code){ text, size };
			return 0;
		}
		size += (size_t)n;
	}
	free(text);
	if (size == CELL_CLI_MAX_CODE_BYTES)
		return cell__cli_fail(err, CELL_E_LIMIT, 0, "%s is longer than a cell can be, %u bytes", name,
				      CELL_CLI_MAX_CODE_BYTES);
	return cell__cli_fail(err, CELL_E_NOMEM, 0, "no memory for %s", name);
}

static int read_cell(const struct cell_cli_item *item, struct code *ret_code, struct cell_error *err)
{
	int fd, status;

	if (item->letter == 'e') {
		ret_code->text = strdup(item->value);
		ret_code->size = strlen(item->value);
		return ret_code->text ? 0 : cell__cli_fail(err, CELL_E_NOMEM, 0, "no memory for a cell");
	}
	if (!strcmp(item->value, "-"))
		return read_all(STDIN_FILENO, "stdin", ret_code, err);
	fd = open(item->value, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return cell__cli_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno,
				      "cannot open %s", item->value);
	status = read_all(fd, item->value, ret_code, err);
	close(fd);
	return status;
}

/* Runs a cell for which cell__cli_run_begin() was called, and prints its result. */
static int run_begun(struct cell_cli_host *host, struct cell_cli_printer *printer, const struct code *code,
		     int64_t timeout_ms, bool goes_on, int *ret_status, struct cell_error *err)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result;
	int status;

	options.timeout_ms = timeout_ms;
	options.on_event = cell__cli_print_event;
	options.event_arg = printer;
	cell__cli_print_kept(printer);
	status = cell_session_run(host->session, code->text, code->size, &options, &result, err);
	cell__cli_run_end();
	if (status < 0)
		return -1;
	/* What came before the cell began may have been noticed only then. */
	cell__cli_print_kept(printer);
	/* When we are being stopped, what the stop did to the cell is nobody's news. */
	*ret_status = cell__cli_stop_status();
	if (!*ret_status)
		*ret_status = cell__cli_print_result(printer, result, "", goes_on);
	cell_result_destroy(result);
	return 0;
}

static int run_cells(struct cell_cli_host *host, struct cell_cli_printer *printer,
		     const struct run_flags *flags, const struct code *cells, struct cell_error *err)
{
	int first_failure = 0;

	for (size_t i = 0; i < flags->cells.count; i++) {
		bool goes_on = flags->keep_going && i + 1 < flags->cells.count;
		int status;

		if (!cell__cli_run_begin())
			break;
		if (run_begun(host, printer, &cells[i], 0, goes_on, &status, err) < 0)
			return -1;
		if (status && !first_failure)
			first_failure = status;
		if (status && !flags->keep_going)
			break;
	}
	cell__cli_print_kept(printer);
	return first_failure;
}

/* ---- run --cells ------------------------------------------------------------------ */

struct line {
	enum { LINE_CELL, LINE_RESET, LINE_BAD } type;
	struct code code;      /* CELL */
	int64_t timeout_ms;    /* CELL */
	struct cell_error err; /* BAD */
	struct line *next;
};

/* Everything is under `mutex`.  `bytes` bounds what waits: past the limit the reader stops reading. */
static struct queue {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	struct line *head, **tail;
	size_t bytes;
	bool running, ended;
} queue = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .tail = &queue.head };

static void line_destroy(struct line *line)
{
	if (!line)
		return;
	free(line->code.text);
	free(line);
}

static size_t line_cost(const struct line *line)
{
	return sizeof(*line) + line->code.size;
}

static void queue_put(struct line *line)
{
	pthread_mutex_lock(&queue.mutex);
	while (queue.head && queue.bytes + line_cost(line) > CELL_CLI_MAX_CODE_BYTES)
		pthread_cond_wait(&queue.changed, &queue.mutex);
	queue.bytes += line_cost(line);
	*queue.tail = line;
	queue.tail = &line->next;
	pthread_cond_broadcast(&queue.changed);
	pthread_mutex_unlock(&queue.mutex);
}

static void queue_end(void)
{
	pthread_mutex_lock(&queue.mutex);
	queue.ended = true;
	pthread_cond_broadcast(&queue.changed);
	pthread_mutex_unlock(&queue.mutex);
}

/* On the signal thread, which may bring a stop, and on the engine's thread, when output was kept. */
static void queue_wake(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&queue.mutex);
	queue.ended |= cell__cli_stop_status() != 0;
	pthread_cond_broadcast(&queue.changed);
	pthread_mutex_unlock(&queue.mutex);
}

/* NULL: the input has ended and all of it was answered, or we are stopping.  Prints what comes meanwhile. */
static struct line *queue_take(struct cell_cli_printer *printer)
{
	struct line *line = NULL;

	pthread_mutex_lock(&queue.mutex);
	while (!queue.head && !queue.ended) {
		if (cell__cli_has_kept(printer)) {
			pthread_mutex_unlock(&queue.mutex);
			cell__cli_print_kept(printer);
			pthread_mutex_lock(&queue.mutex);
			continue;
		}
		pthread_cond_wait(&queue.changed, &queue.mutex);
	}
	if (queue.head && !cell__cli_stop_status()) {
		line = queue.head;
		queue.head = line->next;
		if (!queue.head)
			queue.tail = &queue.head;
		queue.bytes -= line_cost(line);
		queue.running = line->type == LINE_CELL && cell__cli_run_begin();
		pthread_cond_broadcast(&queue.changed);
	}
	pthread_mutex_unlock(&queue.mutex);
	return line;
}

static void queue_done(void)
{
	pthread_mutex_lock(&queue.mutex);
	queue.running = false;
	pthread_cond_broadcast(&queue.changed);
	pthread_mutex_unlock(&queue.mutex);
}

/* Interrupts the cell that runs, or else the one whose turn it is. */
static void interrupt_front(void)
{
	pthread_mutex_lock(&queue.mutex);
	while (queue.head && !queue.running)
		pthread_cond_wait(&queue.changed, &queue.mutex);
	pthread_mutex_unlock(&queue.mutex);
	cell__cli_interrupt();
}

static int parse_cell(json_t *root, struct line *line, struct cell_error *err)
{
	json_t *code = json_object_get(root, "code"), *timeout = json_object_get(root, "timeout");
	double seconds;

	if (!json_is_string(code))
		return cell__cli_fail(err, CELL_E_INVALID, 0, "a line needs \"code\", a string, or \"op\"");
	if (json_object_size(root) != (timeout ? 2 : 1))
		return cell__cli_fail(err, CELL_E_INVALID, 0,
				      "a cell has \"code\" and \"timeout\", nothing else");
	if (timeout && !json_is_null(timeout)) {
		seconds = json_number_value(timeout);
		if (!json_is_number(timeout) || seconds < 0 || seconds > 1e9)
			return cell__cli_fail(err, CELL_E_INVALID, 0,
					      "\"timeout\" is seconds, 0 for no limit");
		line->timeout_ms = seconds == 0 ? -1 : (int64_t)ceil(seconds * 1000);
	}
	line->code.size = json_string_length(code);
	line->code.text = malloc(line->code.size + 1);
	if (!line->code.text)
		return cell__cli_fail(err, CELL_E_NOMEM, 0, "no memory for a cell");
	memcpy(line->code.text, json_string_value(code), line->code.size + 1);
	return 0;
}

/* Fills *line from text; 1: it was an interrupt, there is nothing to queue. */
static int parse_line(const char *text, size_t size, struct line *line, struct cell_error *err)
{
	json_error_t bad;
	json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &bad);
	json_t *op = json_object_get(root, "op");
	int status = 0;

	if (!json_is_object(root))
		status = cell__cli_fail(err, CELL_E_INVALID, 0, "a line must be a JSON object%s%s",
					root ? "" : ": ", root ? "" : bad.text);
	else if (!op)
		status = parse_cell(root, line, err);
	else if (!json_is_string(op) || json_object_size(root) != 1 ||
		 (strcmp(json_string_value(op), "reset") && strcmp(json_string_value(op), "interrupt")))
		status = cell__cli_fail(err, CELL_E_INVALID, 0,
					"an op is {\"op\": \"reset\"} or {\"op\": \"interrupt\"}");
	else if (!strcmp(json_string_value(op), "reset"))
		line->type = LINE_RESET;
	else
		status = 1;
	json_decref(root);
	return status;
}

static void handle_line(const char *text, size_t size)
{
	struct line *line;
	size_t blank = 0;
	int status;

	while (blank < size && strchr(" \t\r", text[blank]))
		blank++;
	if (blank == size)
		return;
	line = calloc(1, sizeof(*line));
	if (!line) {
		dprintf(STDERR_FILENO, "workcell: no_memory: a line of the input is not run\n");
		return;
	}
	if (size > CELL_CLI_MAX_CODE_BYTES)
		status = cell__cli_fail(&line->err, CELL_E_LIMIT, 0, "a line is at most %u bytes",
					CELL_CLI_MAX_CODE_BYTES);
	else
		status = parse_line(text, size, line, &line->err);
	if (status < 0)
		line->type = LINE_BAD;
	if (status <= 0) {
		queue_put(line);
		return;
	}
	line_destroy(line);
	interrupt_front();
}

/* One line without its end into *text, the rest of one that is too long is skipped.  False: end of input. */
static bool read_line(char **text, size_t *room, size_t *ret_size)
{
	size_t size = 0;
	int c;

	while ((c = getc_unlocked(stdin)) != EOF && c != '\n') {
		if (size == *room && size <= CELL_CLI_MAX_CODE_BYTES) {
			size_t more = *room ? *room * 2 : 4096;
			char *bytes = realloc(*text, more);

			if (!bytes)
				return false;
			*text = bytes;
			*room = more;
		}
		if (size < *room)
			(*text)[size++] = (char)c;
	}
	*ret_size = size;
	return size || c != EOF;
}

/* The thread that reads stdin. */
static void *reader_main(void *arg)
{
	char *text = NULL;
	size_t room = 0, size;

	(void)arg;
	while (read_line(&text, &room, &size))
		handle_line(text, size);
	free(text);
	queue_end();
	return NULL;
}

static void print_line(struct cell_cli_printer *printer, const char *text)
{
	print_now(printer, STDOUT_FILENO, text, strlen(text));
	print_now(printer, STDOUT_FILENO, "\n", 1);
}

static void print_error_line(struct cell_cli_printer *printer, const struct cell_error *err)
{
	char *text = cell__cli_error_json(err);

	print_line(printer, text ? text : "{\"error\":{\"code\":\"no_memory\",\"message\":\"\"}}");
	free(text);
}

/* Answers one line.  Negative: the session is of no more use. */
static int answer_line(struct cell_cli_host *host, struct cell_cli_printer *printer, const struct line *line,
		       struct cell_error *err)
{
	int status = 0, cell_status;

	switch (line->type) {
	case LINE_CELL:
		if (!cell__cli_stop_status() &&
		    run_begun(host, printer, &line->code, line->timeout_ms, true, &cell_status, err) < 0)
			status = -1;
		queue_done();
		break;
	case LINE_RESET:
		status = cell_session_reset(host->session, err);
		if (!status)
			print_line(printer, "{\"op\":\"reset\",\"ok\":true}");
		break;
	case LINE_BAD:
		print_error_line(printer, &line->err);
		break;
	}
	/* The session can refuse one cell, for its size, and take the next. */
	if (status < 0 &&
	    (err->code == CELL_E_INVALID || err->code == CELL_E_LIMIT || err->code == CELL_E_NOMEM)) {
		print_error_line(printer, err);
		status = 0;
	}
	return status;
}

static int converse(struct cell_cli_host *host, struct cell_cli_printer *printer, struct cell_error *err)
{
	struct line *line;
	pthread_t reader;
	int status;

	status = pthread_create(&reader, NULL, reader_main, NULL);
	if (status)
		return cell__cli_fail(err, CELL_E_IO, status, "cannot start a thread to read stdin");
	while (status >= 0 && (line = queue_take(printer))) {
		status = answer_line(host, printer, line, err);
		line_destroy(line);
	}
	cell__cli_print_kept(printer);
	/* Where the input has not ended the reader waits for it, and goes with the process. */
	if (status < 0 || cell__cli_stop_status())
		pthread_detach(reader);
	else
		pthread_join(reader, NULL);
	return status;
}

/* ---- the command ------------------------------------------------------------------- */

static int check_flags(const struct run_flags *flags, struct cell_error *err)
{
	size_t operands = 0;

	for (size_t i = 0; i < flags->cells.count; i++)
		operands += !flags->cells.items[i].letter;
	if (flags->conversation && flags->cells.count)
		return cell__cli_fail(err, CELL_E_INVALID, 0,
				      "--cells reads the cells from stdin; leave out -e and FILE");
	if (!flags->conversation && !flags->cells.count)
		return cell__cli_fail(err, CELL_E_INVALID, 0,
				      "nothing to run; give -e CODE, a FILE, - for stdin, or --cells");
	if (operands > 1)
		return cell__cli_fail(err, CELL_E_INVALID, 0, "only one FILE can be given");
	return 0;
}

static int run_session(const struct run_flags *flags, const struct code *cells, struct cell_error *err)
{
	enum cell_cli_format format = flags->json || flags->conversation ? CELL_CLI_JSON : CELL_CLI_TEXT;
	void (*wake)(void *) = flags->conversation ? queue_wake : NULL;
	struct cell_cli_printer *printer;
	struct cell_cli_host host;
	int status = -1;

	if (flags->events)
		format = CELL_CLI_EVENTS;
	if (cell__cli_signals_start(false, wake, NULL, err) < 0)
		return -1;
	printer = cell__cli_printer_create(format, wake, NULL);
	if (!printer)
		return cell__cli_fail(err, CELL_E_NOMEM, 0, "no memory to print with");
	if (!cell__cli_open(&flags->session, cell__cli_keep_event, printer, &host, err)) {
		if (flags->conversation)
			status = converse(&host, printer, err);
		else
			status = run_cells(&host, printer, flags, cells, err);
		cell__cli_close(&host);
	}
	cell__cli_printer_destroy(printer);
	return status;
}

int cell__cmd_run(int argc, char **argv)
{
	struct run_flags flags = { .session = CELL_CLI_SESSION_FLAGS_INIT(0) };
	struct code *cells = NULL;
	struct cell_error err;
	int status;

	if (!cell__cli_parse(&cell__cli_run_command, argc, argv, &flags, &flags.cells, &status))
		goto out;
	/* All the input is read before anything starts: a wrong file name should not cost half a run. */
	status = check_flags(&flags, &err);
	cells = calloc(flags.cells.count + 1, sizeof(*cells));
	if (!status && !cells)
		status = cell__cli_fail(&err, CELL_E_NOMEM, 0, "no memory for the cells");
	for (size_t i = 0; i < flags.cells.count && !status; i++)
		status = read_cell(&flags.cells.items[i], &cells[i], &err);
	if (!status)
		status = run_session(&flags, cells, &err);
	if (cell__cli_stop_status())
		status = cell__cli_stop_status();
	else if (status < 0)
		status = cell__cli_report(&err, flags.json || flags.events || flags.conversation);
	for (size_t i = 0; cells && i < flags.cells.count; i++)
		free(cells[i].text);
	free(cells);
out:
	cell__cli_list_finish(&flags.cells);
	cell__cli_list_finish(&flags.session.env);
	return status;
}
