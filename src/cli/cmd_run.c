/*
 * `workcell run`, and the reading and running of one cell that `workcell workflows` shares.
 *
 * With --cells the input is a conversation: a reader thread takes lines from stdin into a bounded queue and
 * the main thread works through it, so that {"op": "interrupt"} is seen while a cell runs.
 *
 *     stdin ── reader thread ──┬── queue ──> main thread ── cell_session_run() ──> stdout
 *                              └── interrupt
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

/* ---- run ------------------------------------------------------------------------ */

struct run_flags {
	struct cell_cli_session_flags session;
	struct cell_cli_list cells;
	const char **argv; /* FILE and its arguments, NULL-terminated */
	bool json, events, conversation, keep_going, connection_file, commit;
};

static const struct cell_cli_flag run_flag_table[] = {
	{ 'e', NULL, "CODE", "run this as a cell; may be repeated", CELL_FLAG_LIST, offsetof(struct run_flags, cells) },
	{ 0, "json", NULL, "print one JSON object per cell, on one line, instead of text", CELL_FLAG_SWITCH,
	  offsetof(struct run_flags, json) },
	{ 0, "events", NULL, "print JSON lines for output as it comes, displays and results", CELL_FLAG_SWITCH,
	  offsetof(struct run_flags, events) },
	{ 0, "cells", NULL, "read cells from stdin as JSON lines, answer each with a JSON line", CELL_FLAG_SWITCH,
	  offsetof(struct run_flags, conversation) },
	{ 0, "keep-going", NULL, "run the remaining cells after one has failed", CELL_FLAG_SWITCH, offsetof(struct run_flags, keep_going) },
	{ 0, "commit", NULL, "with a layer (--workspace-mode cow): write its changes to the workspace when all cells succeeded",
	  CELL_FLAG_SWITCH, offsetof(struct run_flags, commit) },
	{ 0, "print-connection-file", NULL, "jupyter: print the connection file for other clients on stderr", CELL_FLAG_SWITCH,
	  offsetof(struct run_flags, connection_file) },
	CELL_CLI_SAVE_FLAGS(offsetof(struct run_flags, session)),
	CELL_CLI_SESSION_FLAGS(offsetof(struct run_flags, session)),
	CELL_CLI_REMOTE_TOKEN_FLAG(offsetof(struct run_flags, session)),
	{ 0 },
};

const struct cell_cli_command cell__cli_run_command = {
	.name = "run",
	.summary = "run cells in one session and print their output",
	.synopsis = "[flags] [-e CODE]... [FILE|- [ARGUMENT...]]",
	.about = "Runs cells in one session, in the order given: each -e is a cell, FILE is one, - is stdin\n"
		 "as one.  Prints output as it comes and then the cell's value; stops at the first cell that\n"
		 "fails, or that calls sys.exit(); sys.exit(0) is not a failure.  The arguments behind FILE are\n"
		 "in sys.argv; those that begin with - go behind --.  FILE.ipynb is a notebook: its code cells are run one by one.\n\n"
		 "exit status: 0 done, 1 the code raised, 124 timed out, 137 the kernel died, 2 usage,\n"
		 "125 Workcell itself failed.  Ctrl-C interrupts the cell; twice within 2 s ends the program.",
	.examples = "  workcell run -e 'x = 6' -e 'x * 7'\n"
		    "  workcell run --preload pandas --timeout 30 analysis.py\n"
		    "  workcell run report.py -- --year 2026 data.csv\n"
		    "  echo 'print(1)' | workcell run --json -\n"
		    "  echo '{\"code\": \"1 + 1\", \"timeout\": 5}' | workcell run --cells",
	.behind = "arguments of FILE that begin with - go behind --",
	.flags = run_flag_table,
	.run = cell__cmd_run,
};

struct code {
	char *text;
	size_t size;
	json_t *cells; /* of a notebook; else NULL */
};

static bool is_notebook(const char *name)
{
	size_t size = strlen(name);

	return size > 6 && !strcmp(name + size - 6, ".ipynb");
}

static int read_notebook(struct code *code, struct cell_error *err)
{
	char *text = cell_notebook_cells(code->text, code->size, err);

	if (!text)
		return -1;
	code->cells = json_loads(text, JSON_ALLOW_NUL, NULL);
	free(text);
	return code->cells ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a notebook");
}

static int read_cell(const struct cell_cli_item *item, struct code *ret_code, struct cell_error *err)
{
	if (item->letter == 'e') {
		ret_code->text = strdup(item->value);
		ret_code->size = strlen(item->value);
		return ret_code->text ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a cell");
	}
	if (cell__cli_read_file(item->value, &ret_code->text, &ret_code->size, err) < 0)
		return -1;
	return is_notebook(item->value) ? read_notebook(ret_code, err) : 0;
}

int cell__cli_run_cell(struct cell_cli_host *host, struct cell_cli_printer *printer, const char *code, size_t size, int64_t timeout_ms,
		       bool goes_on, void (*ended)(void), int *ret_status, struct cell_error *err)
{
	bool exited;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result;
	int status;

	options.timeout_ms = timeout_ms;
	options.on_event = cell__cli_print_event;
	options.event_arg = printer;
	cell__cli_print_kept(printer);
	status = cell_session_run(host->session, code, size, &options, &result, err);
	cell__cli_run_end();
	if (ended)
		ended();
	if (status < 0)
		return -1;
	/* Output from before the cell may have been noticed only when it began. */
	cell__cli_print_kept(printer);
	/* When we are being stopped, the effect of the stop on the cell is not reported. */
	*ret_status = cell__cli_stop_status();
	exited = cell__cli_has_exited(result);
	if (!*ret_status)
		*ret_status = cell__cli_print_result(printer, result, "", goes_on, exited);
	if (*ret_status && exited)
		*ret_status = CELL_CLI_EXITED;
	cell_result_destroy(result);
	return 0;
}

/* sys.argv of FILE is set by a cell, which works on every executor. Answers that cell's status, 0 when it is set. */
static int set_argv(struct cell_cli_host *host, struct cell_cli_printer *printer, const struct run_flags *flags, struct cell_error *err)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result;
	json_t *words = json_array();
	char *text = NULL, *code = NULL;
	int status = 0;

	for (size_t i = 0; flags->argv[i]; i++)
		status |= json_array_append_new(words, json_string(flags->argv[i]));
	text = status ? NULL : json_dumps(words, JSON_COMPACT);
	json_decref(words);
	if (status)
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments of %.100s must be UTF-8", flags->argv[0]);
	/* A JSON array of strings is a Python list. */
	if (!text || asprintf(&code, "__import__('sys').argv[:] = %s", text) < 0)
		code = NULL;
	free(text);
	if (!code)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the arguments");
	status = cell_session_run(host->session, code, strlen(code), &options, &result, err);
	free(code);
	if (status < 0)
		return -1;
	if (cell_result_error(result))
		status = cell__cli_print_result(printer, result, "", false, false);
	cell_result_destroy(result);
	return status;
}

/* One cell, or those of a notebook, of which one that fails ends the rest; *ret_status: of the first failure. */
static int run_code(struct cell_cli_host *host, struct cell_cli_printer *printer, const struct code *code, bool goes_on, int *ret_status,
		    struct cell_error *err)
{
	size_t n = json_array_size(code->cells);

	*ret_status = 0;
	if (!code->cells)
		return cell__cli_run_cell(host, printer, code->text, code->size, 0, goes_on, NULL, ret_status, err);
	for (size_t i = 0; i < n && !*ret_status; i++) {
		const json_t *cell = json_array_get(code->cells, i);

		if (i > 0 && !cell__cli_run_begin())
			break;
		if (cell__cli_run_cell(host, printer, json_string_value(cell), json_string_length(cell), 0, goes_on || i + 1 < n, NULL,
				       ret_status, err) < 0)
			return -1;
	}
	return 0;
}

static int run_cells(struct cell_cli_host *host, struct cell_cli_printer *printer, const struct run_flags *flags, const struct code *cells,
		     struct cell_error *err)
{
	int first_failure = 0;

	for (size_t i = 0; i < flags->cells.count; i++) {
		bool goes_on = flags->keep_going && i + 1 < flags->cells.count;
		int status;

		if (!cell__cli_run_begin())
			break;
		if (!flags->cells.items[i].letter && flags->argv[1]) {
			status = set_argv(host, printer, flags, err);
			if (status)
				return status;
		}
		if (run_code(host, printer, &cells[i], goes_on, &status, err) < 0)
			return -1;
		if (status == CELL_CLI_EXITED)
			break;
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

/* Everything is under `mutex`. `bytes` bounds the waiting lines: past the limit the reader stops reading. */
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

/* NULL: the input has ended and all of it was answered, or we are stopping. Prints events in the meantime. */
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

/* Interrupts the running cell, or else the next one. */
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
		return cell_fail(err, CELL_E_INVALID, 0, "a line needs \"code\", a string, or \"op\"");
	if (json_object_size(root) != (timeout ? 2 : 1))
		return cell_fail(err, CELL_E_INVALID, 0, "a cell may only have \"code\" and \"timeout\"");
	if (timeout && !json_is_null(timeout)) {
		seconds = json_number_value(timeout);
		if (!json_is_number(timeout) || seconds < 0 || seconds > 1e9)
			return cell_fail(err, CELL_E_INVALID, 0, "\"timeout\" must be seconds, 0 for no limit");
		line->timeout_ms = seconds == 0 ? -1 : (int64_t)ceil(seconds * 1000);
	}
	line->code.size = json_string_length(code);
	line->code.text = malloc(line->code.size + 1);
	if (!line->code.text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a cell");
	memcpy(line->code.text, json_string_value(code), line->code.size + 1);
	return 0;
}

static void print_error_line(struct cell_cli_printer *printer, const struct cell_error *err)
{
	char *text = cell__cli_error_json(err);

	cell__cli_print_line(printer, text ? text : "{\"error\":{\"code\":\"no_memory\",\"message\":\"\"}}");
	free(text);
}

/* The session whose requests are answered, and the printer for errors; set before the reader starts. */
static struct {
	struct cell_session *session;
	struct cell_cli_printer *printer;
} answering;

/* {"op": "answer", "id": 3, "accept": true}: handled at once, because the cell waits for it. 2: nothing to queue. */
static int answer_request(const json_t *root)
{
	struct cell_error err;

	if (cell__cli_answer_json(answering.session, root, 0, &err) < 0)
		print_error_line(answering.printer, &err);
	else
		cell__cli_print_line(answering.printer, "{\"op\":\"answer\",\"ok\":true}");
	return 2;
}

/* Fills *line from text; 1: it was an interrupt, 2: an answer; then there is nothing to queue. */
static int parse_line(const char *text, size_t size, struct line *line, struct cell_error *err)
{
	json_error_t bad;
	json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &bad);
	json_t *op = json_object_get(root, "op");
	int status = 0;

	if (!json_is_object(root))
		status = cell_fail(err, CELL_E_INVALID, 0, "a line must be a JSON object%s%s", root ? "" : ": ", root ? "" : bad.text);
	else if (!op)
		status = parse_cell(root, line, err);
	else if (json_is_string(op) && !strcmp(json_string_value(op), "answer"))
		status = answer_request(root);
	else if (!json_is_string(op) || json_object_size(root) != 1 ||
		 (strcmp(json_string_value(op), "reset") && strcmp(json_string_value(op), "interrupt")))
		status = cell_fail(err, CELL_E_INVALID, 0, "\"op\" must be \"reset\", \"interrupt\" or \"answer\"");
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
		dprintf(STDERR_FILENO, "workcell: no_memory: a line of the input was not run\n");
		return;
	}
	if (size > CELL_CLI_MAX_CODE_BYTES)
		status = cell_fail(&line->err, CELL_E_LIMIT, 0, "a line may have at most %u bytes", CELL_CLI_MAX_CODE_BYTES);
	else
		status = parse_line(text, size, line, &line->err);
	if (status < 0)
		line->type = LINE_BAD;
	if (status <= 0) {
		queue_put(line);
		return;
	}
	line_destroy(line);
	if (status == 1)
		interrupt_front();
}

/* One line without its end into *text; skips the rest of a line that is too long. False: end of input. */
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

static bool printing_connection_file;

/* For `jupyter console --existing`. */
static int print_connection_file(struct cell_session *session, struct cell_error *err)
{
	char *path = cell_session_connection_file(session);

	if (!path)
		return cell_fail(err, CELL_E_INVALID, 0, "only the executor \"jupyter\" has a connection file to print");
	dprintf(STDERR_FILENO, "workcell: connection file: %s\n", path);
	free(path);
	return 0;
}

/* Answers one line.  Negative: the session is of no more use. */
static int answer_line(struct cell_cli_host *host, struct cell_cli_printer *printer, const struct line *line, struct cell_error *err)
{
	int status = 0, cell_status;

	switch (line->type) {
	case LINE_CELL:
		if (!cell__cli_stop_status() && cell__cli_run_cell(host, printer, line->code.text, line->code.size, line->timeout_ms, true,
								   queue_done, &cell_status, err) < 0)
			status = -1;
		break;
	case LINE_RESET:
		status = cell_session_reset(host->session, err);
		if (!status && printing_connection_file)
			status = print_connection_file(host->session, err); /* of the fresh kernel */
		if (!status)
			cell__cli_print_line(printer, "{\"op\":\"reset\",\"ok\":true}");
		break;
	case LINE_BAD:
		print_error_line(printer, &line->err);
		break;
	}
	/* The session can refuse one cell, for its size, and take the next. */
	if (status < 0 && (err->code == CELL_E_INVALID || err->code == CELL_E_LIMIT || err->code == CELL_E_NOMEM)) {
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

	answering.session = host->session;
	answering.printer = printer;
	status = pthread_create(&reader, NULL, reader_main, NULL);
	if (status)
		return cell_fail(err, CELL_E_IO, status, "cannot start a thread to read stdin");
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

/* The first operand is FILE, the others are its arguments and leave the list of cells. */
static int split_arguments(struct run_flags *flags, struct cell_error *err)
{
	struct cell_cli_list *cells = &flags->cells;
	size_t operands = 0, kept = 0;

	flags->argv = calloc(cells->count + 1, sizeof(*flags->argv));
	if (!flags->argv)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the arguments");
	for (size_t i = 0; i < cells->count; i++) {
		if (!cells->items[i].letter)
			flags->argv[operands++] = cells->items[i].value;
		if (cells->items[i].letter || operands == 1)
			cells->items[kept++] = cells->items[i];
	}
	cells->count = kept;
	return 0;
}

/* It may have one; a policy's file can say so too. */
static bool has_layer(const struct cell_cli_session_flags *flags)
{
	return flags->sandbox_policy || (flags->workspace_mode && !strcmp(flags->workspace_mode, "cow"));
}

static int check_flags(const struct run_flags *flags, struct cell_error *err)
{
	if (flags->conversation && flags->cells.count)
		return cell_fail(err, CELL_E_INVALID, 0, "--cells reads the cells from stdin; leave out -e and FILE");
	if (!flags->conversation && !flags->cells.count)
		return cell_fail(err, CELL_E_INVALID, 0, "nothing to run; give -e CODE, a FILE, - for stdin, or --cells");
	if (flags->commit && !has_layer(&flags->session))
		return cell_fail(err, CELL_E_INVALID, 0, "--commit is for sessions with a layer; add --workspace-mode cow");
	return 0;
}

static bool reads_stdin(const struct run_flags *flags)
{
	for (size_t i = 0; i < flags->cells.count; i++)
		if (!flags->cells.items[i].letter && !strcmp(flags->cells.items[i].value, "-"))
			return true;
	return false;
}

/* Protected and skipped names of a commit. */
static void note_left_out(const char *text)
{
	json_t *outcome = json_loads(text, 0, NULL), *item;
	char line[500];
	size_t i;

	json_array_foreach(json_object_get(outcome, "protected"), i, item) {
		snprintf(line, sizeof(line),
			 "workcell: %.300s was not committed: other programs would run it; commit it by its name in workcell shell",
			 json_string_value(item));
		cell__cli_note(line);
	}
	json_array_foreach(json_object_get(outcome, "skipped"), i, item) {
		snprintf(line, sizeof(line), "workcell: %.200s was not committed: %.150s", cell__cli_text(item, "path"),
			 cell__cli_text(item, "reason"));
		cell__cli_note(line);
	}
	json_decref(outcome);
}

/* The session ends with its layer: the changes are committed, or the person is told that they are dropped. */
static int end_layer(struct cell_session *session, bool commit, struct cell_error *err)
{
	struct cell_error why;
	char *text = commit ? cell_session_commit(session, NULL, 0, err) : cell_session_diff(session, 0, &why);
	json_t *diff;
	size_t n;
	char line[160];

	if (commit && text)
		note_left_out(text);
	if (commit || !text) {
		free(text);
		return commit && !text ? -1 : 0; /* without a layer there is no diff */
	}
	diff = json_loads(text, 0, NULL);
	n = json_array_size(json_object_get(diff, "files"));
	if (n) {
		snprintf(line, sizeof(line), "workcell: the layer ends with the session, and with it %zu change%s; --commit keeps them", n,
			 n == 1 ? "" : "s");
		cell__cli_note(line);
	}
	json_decref(diff);
	free(text);
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
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for printing");
	if (!cell__cli_open(&flags->session, format == CELL_CLI_TEXT, cell__cli_keep_event, printer, &host, err)) {
		printing_connection_file = flags->connection_file;
		if (flags->connection_file && print_connection_file(host.session, err) < 0)
			status = -1;
		else if (flags->conversation)
			status = converse(&host, printer, err);
		else if (!cell__cli_printer_ask(printer, &host, reads_stdin(flags), err))
			status = run_cells(&host, printer, flags, cells, err);
		if (status >= 0 && (flags->commit || has_layer(&flags->session)) &&
		    end_layer(host.session, flags->commit && !status, err) < 0)
			status = -1;
		if (status >= 0 && cell__cli_save(&flags->session.gate, host.session, err) < 0)
			status = -1;
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
	status = split_arguments(&flags, &err);
	if (!status)
		status = check_flags(&flags, &err);
	cells = calloc(flags.cells.count + 1, sizeof(*cells));
	if (!status && !cells)
		status = cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for the cells");
	for (size_t i = 0; i < flags.cells.count && !status; i++)
		status = read_cell(&flags.cells.items[i], &cells[i], &err);
	if (!status)
		status = run_session(&flags, cells, &err);
	if (cell__cli_stop_status())
		status = cell__cli_stop_status();
	else if (status < 0)
		status = cell__cli_report(&err, flags.json || flags.events || flags.conversation);
	for (size_t i = 0; cells && i < flags.cells.count; i++) {
		free(cells[i].text);
		json_decref(cells[i].cells);
	}
	free(cells);
	free(flags.argv);
out:
	cell__cli_list_finish(&flags.cells);
	cell__cli_list_finish(&flags.session.env);
	return status;
}
