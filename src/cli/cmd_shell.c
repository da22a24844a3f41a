/*
 * `workcell shell`: cells from a terminal, or from a pipe without prompts.
 *
 * The editor (editor.h) waits for the terminal and for an eventfd together, so Ctrl-C, a changed window, a stop and output of background
 * threads are handled while the prompt waits, without a signal handler that jumps out of it.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include <jansson.h>

#include "base/words.h"
#include "editor.h"
#include "python_text.h"

enum input {
	INPUT_LINE,
	INPUT_CLEARED, /* Ctrl-C */
	INPUT_END,     /* end of input, or the program is being stopped */
};

#define SHELL_UNDO 20

struct shell {
	struct cell_cli_host host;
	struct cell_cli_printer *printer;
	bool terminal, colour;
	unsigned count; /* of cells on this kernel, as in "In [3]" */
	bool continued; /* which prompt */
	int wake_fd;
	struct cell_cli_editor *editor; /* terminal */
	enum input event; /* why it gave up */
	char *line; /* of a pipe; kept when it belongs to the next cell */
	size_t line_room;
	bool line_waits;
	char *cell;
	size_t cell_size, cell_room;
};

/* ---- the terminal ----------------------------------------------------------- */

/* On the signal thread and the engine's thread. */
static void wake(void *arg)
{
	struct shell *shell = arg;

	eventfd_write(shell->wake_fd, 1);
}

static void show_kept(struct shell *shell)
{
	if (!cell__cli_has_kept(shell->printer))
		return;
	cell__editor_hide(shell->editor);
	cell__cli_print_kept(shell->printer);
	cell__cli_print_fresh_line(shell->printer);
}

/* While a person types. False: the input is over. */
static bool handle_wake(void *arg)
{
	struct shell *shell = arg;
	eventfd_t value;

	eventfd_read(shell->wake_fd, &value);
	if (cell__cli_stop_status()) {
		shell->event = INPUT_END;
		return false;
	}
	if (cell__cli_take_sigint()) {
		shell->event = INPUT_CLEARED;
		return false;
	}
	if (cell__cli_take_resize())
		cell__editor_resized(shell->editor);
	show_kept(shell);
	return true;
}

static json_t *complete(void *arg, const char *before, size_t size)
{
	struct shell *shell = arg;
	json_t *answer = NULL;
	char *text;

	/* Without completions, for whatever reason, the key does nothing. */
	if (cell_session_complete(shell->host.session, before, size, &text, NULL) == 0) {
		answer = json_loads(text, 0, NULL);
		free(text);
	}
	return answer;
}

/* ---- opening and closing -------------------------------------------------------- */

static int open_shell(struct shell *shell, const struct cell_cli_session_flags *flags, struct cell_error *err)
{
	shell->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (shell->wake_fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot make an eventfd");
	if (cell__cli_signals_start(shell->terminal, wake, shell, err) < 0)
		return -1;
	shell->printer = cell__cli_printer_create(CELL_CLI_TEXT, wake, shell);
	if (!shell->printer)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for printing");
	if (cell__cli_open(flags, true, cell__cli_keep_event, shell->printer, &shell->host, err) < 0)
		return -1;
	if (cell__cli_printer_ask(shell->printer, &shell->host, !shell->terminal, err) < 0)
		return -1;
	if (!shell->terminal)
		return 0;
	if (!flags->images_dir)
		cell__cli_printer_show_pictures(shell->printer);
	return cell__editor_create(
		&(struct cell_cli_editor_options){
			.colour = shell->colour, .wake_fd = shell->wake_fd, .woken = handle_wake, .complete = complete, .arg = shell },
		&shell->editor, err);
}

static void close_shell(struct shell *shell)
{
	/* The engine's thread wakes us until the session is closed, so that comes first. */
	if (shell->host.engine)
		cell__cli_close(&shell->host);
	cell__editor_destroy(shell->editor);
	cell__cli_printer_destroy(shell->printer);
	free(shell->line);
	free(shell->cell);
}

/* ---- reading ------------------------------------------------------------------- */

static enum input read_terminal(struct shell *shell, const char **ret_line)
{
	size_t size;

	shell->event = INPUT_END;
	cell__cli_print_fresh_line(shell->printer);
	*ret_line = cell__editor_read(shell->editor, shell->count, shell->continued, &size);
	if (*ret_line)
		return INPUT_LINE;
	cell__editor_leave(shell->editor);
	if (shell->event == INPUT_CLEARED)
		cell__cli_write(STDOUT_FILENO, "KeyboardInterrupt\n", 18);
	return shell->event;
}

static enum input read_pipe(struct shell *shell, const char **ret_line)
{
	ssize_t size;

	if (!shell->line_waits) {
		size = getline(&shell->line, &shell->line_room, stdin);
		if (size < 0 || cell__cli_stop_status())
			return INPUT_END;
	}
	shell->line_waits = false;
	*ret_line = shell->line;
	return INPUT_LINE;
}

static int append_line(struct shell *shell, const char *line)
{
	size_t size = strlen(line), need = shell->cell_size + size + 2;

	if (need > CELL_CLI_MAX_CODE_BYTES)
		return -1;
	if (need > shell->cell_room) {
		char *cell = realloc(shell->cell, need * 2);

		if (!cell)
			return -1;
		shell->cell = cell;
		shell->cell_room = need * 2;
	}
	memcpy(shell->cell + shell->cell_size, line, size);
	shell->cell_size += size;
	if (!size || line[size - 1] != '\n')
		shell->cell[shell->cell_size++] = '\n';
	shell->cell[shell->cell_size] = '\0';
	return 0;
}

/*
 * Collects the lines of one cell. A block ends with an empty line; from a pipe it continues if the line after that is indented, because
 * functions in a file contain empty lines and a person types none.
 */
static enum input read_cell(struct shell *shell, struct cell_error *err)
{
	bool blank = false;

	shell->cell_size = 0;
	shell->continued = false;
	for (;;) {
		enum cell_cli_completeness state = CELL_CODE_COMPLETE;
		const char *line = NULL;
		enum input input;
		bool was_blank = blank;

		if (shell->cell_size)
			state = cell__code_completeness(shell->cell, shell->cell_size);
		input = shell->terminal ? read_terminal(shell, &line) : read_pipe(shell, &line);
		if (input == INPUT_END && shell->cell_size && !shell->terminal && !cell__cli_stop_status())
			return INPUT_LINE;
		if (input != INPUT_LINE)
			return input;
		blank = !line[strspn(line, " \t\r\n")];
		if (!shell->cell_size && blank)
			continue;
		if (state == CELL_CODE_BLOCK && shell->terminal && blank)
			return INPUT_LINE;
		if (state == CELL_CODE_BLOCK && was_blank && !blank && *line != ' ' && *line != '\t') {
			shell->line_waits = true;
			return INPUT_LINE;
		}
		if (append_line(shell, line) < 0) {
			cell_fail(err, CELL_E_LIMIT, 0, "the input is too long for a cell");
			return INPUT_END;
		}
		if (shell->terminal && cell__editor_is_whole(shell->editor))
			return INPUT_LINE;
		if (cell__code_completeness(shell->cell, shell->cell_size) == CELL_CODE_COMPLETE)
			return INPUT_LINE;
		shell->continued = true;
	}
}

/* ---- the loop -------------------------------------------------------------------- */

static bool cell_is(const struct shell *shell, const char *const *words)
{
	const char *start = shell->cell + strspn(shell->cell, " \t");
	size_t size = strlen(start);

	while (size && strchr(" \t\r\n", start[size - 1]))
		size--;
	for (; *words; words++) {
		if (strlen(*words) == size && !memcmp(start, *words, size))
			return true;
	}
	return false;
}

static int reset(struct shell *shell, struct cell_error *err)
{
	if (cell_session_reset(shell->host.session, err) < 0)
		return -1;
	shell->count = 1;
	if (shell->terminal)
		cell__cli_write(STDOUT_FILENO, "a fresh kernel\n\n", 16);
	return 0;
}

/* Negative: the session is of no more use. */
static int run_cell(struct shell *shell, struct cell_error *err)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result;
	char prefix[64];
	int status;

	options.on_event = cell__cli_print_event;
	options.event_arg = shell->printer;
	if (!cell__cli_run_begin())
		return 0;
	cell__cli_print_kept(shell->printer);
	status = cell_session_run(shell->host.session, shell->cell, shell->cell_size, &options, &result, err);
	cell__cli_run_end();
	if (status < 0 && err->code != CELL_E_INVALID && err->code != CELL_E_LIMIT && err->code != CELL_E_NOMEM)
		return -1;
	if (status < 0) {
		cell__cli_report(err, false);
		return 0;
	}
	cell__cli_print_kept(shell->printer);
	if (!cell__cli_stop_status()) {
		snprintf(prefix, sizeof(prefix), shell->colour ? "\033[31mOut[%u]: \033[0m" : "Out[%u]: ", shell->count);
		cell__cli_print_result(shell->printer, result, prefix, true, false);
		shell->count = cell_result_state_kept(result) ? shell->count + 1 : 1;
	}
	cell_result_destroy(result);
	if (shell->terminal) {
		cell__cli_print_fresh_line(shell->printer);
		cell__cli_write(STDOUT_FILENO, "\n", 1);
	}
	return 0;
}

/* ---- branches ---- */

static void print_points(struct shell *shell)
{
	char *text = cell_session_points(shell->host.session);
	json_t *points = text ? json_loads(text, 0, NULL) : NULL, *point;
	size_t i;

	json_array_foreach(points, i, point) {
		const char *name = json_string_value(json_object_get(point, "name"));
		int64_t bytes = json_integer_value(json_object_get(point, "bytes"));
		char size[32], line[320];

		cell__size_words(bytes > 0 ? (uint64_t)bytes : 0, size);
		snprintf(line, sizeof(line), "%-20.200s after %lld cells  %s\n", name ? name : "",
			 (long long)json_integer_value(json_object_get(point, "cell")), size);
		cell__cli_write(STDOUT_FILENO, line, strlen(line));
	}
	json_decref(points);
	free(text);
}

/* The words behind the magic, in place; NULL: it is another one. */
static char *argument_of(char *cell, const char *magic)
{
	size_t size = strlen(magic);

	if (strncmp(cell, magic, size) || (cell[size] && cell[size] != ' ' && cell[size] != '\n'))
		return NULL;
	cell += size;
	cell += strspn(cell, " ");
	cell[strcspn(cell, "\r\n")] = '\0';
	return cell;
}

/* %undo [N], %points, %checkpoint NAME, %rewind NAME.  False: the cell is none of them. */
static bool run_branch_magic(struct shell *shell)
{
	char *cell = shell->cell + strspn(shell->cell, " \t"), *word, *end;
	struct cell_error err = { 0 };
	int status;

	if ((word = argument_of(cell, "%undo"))) {
		unsigned long cells = *word ? strtoul(word, &end, 10) : 1;

		status = *word && *end ? cell_fail(&err, CELL_E_INVALID, 0, "%%undo takes a number of cells, not '%.40s'", word)
				       : cell_session_rewind(shell->host.session, NULL, cells, &err);
		if (!status)
			shell->count = shell->count > cells ? shell->count - (unsigned)cells : 1;
	} else if ((word = argument_of(cell, "%checkpoint"))) {
		status = cell_session_checkpoint(shell->host.session, word, NULL, &err);
	} else if ((word = argument_of(cell, "%rewind"))) {
		status = cell_session_rewind(shell->host.session, word, 0, &err);
	} else if ((word = argument_of(cell, "%points"))) {
		print_points(shell);
		status = 0;
	} else {
		return false;
	}
	if (status < 0)
		cell__cli_report(&err, false);
	return true;
}

/* ---- files ---- */

static void print_change(const json_t *file)
{
	const char *change = cell__cli_text(file, "change"), *text = json_string_value(json_object_get(file, "diff"));
	const json_t *size = json_object_get(file, "size");
	char line[512], words[32] = "";

	if (json_is_integer(size))
		cell__size_words((uint64_t)json_integer_value(size), words);
	snprintf(line, sizeof(line), "%-8s %.300s%s  %s%s%s", change, cell__cli_text(file, "path"),
		 strcmp(cell__cli_text(file, "type"), "folder") ? "" : "/", words, json_object_get(file, "protected") ? "  protected" : "",
		 json_object_get(file, "conflict") ? "  changed in the real workspace too" : "");
	cell__cli_line(line);
	if (text)
		cell__cli_show(text, strlen(text));
}

static int print_diff(struct shell *shell, struct cell_error *err)
{
	char *text = cell_session_diff(shell->host.session, 1, err);
	json_t *diff = text ? json_loads(text, 0, NULL) : NULL, *file;
	size_t i;

	json_array_foreach(json_object_get(diff, "files"), i, file)
		print_change(file);
	if (diff && !json_array_size(json_object_get(diff, "files")))
		cell__cli_line("no changes");
	if (json_is_true(json_object_get(diff, "truncated")))
		cell__cli_line("... and more");
	json_decref(diff);
	free(text);
	return text ? 0 : -1;
}

/* Words as a shell would split them, with quotes around names that have blanks; in place. */
static size_t split_words(char *text, const char **words, size_t room)
{
	size_t n = 0;

	while (n + 1 < room) {
		char quote;

		text += strspn(text, " \t");
		if (!*text)
			break;
		quote = *text == '"' || *text == '\'' ? *text++ : 0;
		words[n++] = text;
		text += strcspn(text, quote ? (char[]){ quote, 0 } : " \t");
		if (*text)
			*text++ = '\0';
	}
	words[n] = NULL;
	return n;
}

static int commit(struct shell *shell, char *argument, struct cell_error *err)
{
	const char *words[64], *const *paths = words;
	size_t i, n = split_words(argument, words, sizeof(words) / sizeof(words[0]));
	bool force = n && !strcmp(words[0], "--force");
	char *text, line[400];
	json_t *outcome, *item;

	text = cell_session_commit(shell->host.session, n > force ? paths + force : NULL, force, err);
	outcome = text ? json_loads(text, 0, NULL) : NULL;
	json_array_foreach(json_object_get(outcome, "committed"), i, item) {
		snprintf(line, sizeof(line), "committed %.300s", json_string_value(item));
		cell__cli_line(line);
	}
	json_array_foreach(json_object_get(outcome, "protected"), i, item) {
		snprintf(line, sizeof(line), "protected %.300s: other programs would run it; name it to commit it",
			 json_string_value(item));
		cell__cli_line(line);
	}
	json_array_foreach(json_object_get(outcome, "skipped"), i, item) {
		snprintf(line, sizeof(line), "skipped   %.200s: %.150s", cell__cli_text(item, "path"), cell__cli_text(item, "reason"));
		cell__cli_line(line);
	}
	json_decref(outcome);
	free(text);
	return text ? 0 : -1;
}

/* %diff, %commit [--force] [PATH...], %discard.  False: the cell is none of them. */
static bool run_files_magic(struct shell *shell)
{
	char *cell = shell->cell + strspn(shell->cell, " \t"), *word;
	struct cell_error err = { 0 };
	int status;

	if (argument_of(cell, "%diff"))
		status = print_diff(shell, &err);
	else if ((word = argument_of(cell, "%commit")))
		status = commit(shell, word, &err);
	else if (argument_of(cell, "%discard"))
		status = cell_session_discard(shell->host.session, &err);
	else
		return false;
	if (status < 0)
		cell__cli_report(&err, false);
	return true;
}

/* One entry of the history, without the blank line that ends a block. */
static void remember(struct shell *shell)
{
	while (shell->cell_size && strchr(" \t\r\n", shell->cell[shell->cell_size - 1]))
		shell->cell_size--;
	shell->cell[shell->cell_size] = '\0';
	cell__editor_remember(shell->editor, shell->cell);
}

static int loop(struct shell *shell, struct cell_error *err)
{
	static const char *const leave[] = { "exit", "quit", "exit()", "quit()", NULL };
	static const char *const fresh[] = { "%reset", "%reset -f", NULL };
	int status = 0;

	err->code = CELL_OK;
	while (!status && !cell__cli_stop_status()) {
		enum input input = read_cell(shell, err);

		if (input == INPUT_CLEARED)
			continue;
		if (input == INPUT_END)
			return err->code == CELL_OK ? 0 : -1;
		if (shell->terminal)
			remember(shell);
		if (cell_is(shell, leave))
			return 0;
		if (run_branch_magic(shell) || run_files_magic(shell))
			continue;
		status = cell_is(shell, fresh) ? reset(shell, err) : run_cell(shell, err);
		err->code = status ? err->code : CELL_OK;
	}
	return status;
}

/* ---- the command ------------------------------------------------------------------ */

static const struct cell_cli_flag shell_flag_table[] = {
	CELL_CLI_SAVE_FLAGS(0),
	CELL_CLI_SESSION_FLAGS(0),
	CELL_CLI_REMOTE_TOKEN_FLAG(0),
	{ 0 },
};

const struct cell_cli_command cell__cli_shell_command = {
	.name = "shell",
	.summary = "run cells interactively",
	.synopsis = "[flags]",
	.about = "Runs a session at a prompt.  A block ends with an empty line, Tab completes, Up recalls earlier\n"
		 "cells.  Ctrl-C interrupts the cell or clears the input, %reset starts a fresh kernel, Ctrl-D or\n"
		 "exit leaves.  %undo [N] goes back N cells, %checkpoint NAME keeps the state, %rewind NAME returns to\n"
		 "it, %points lists what is kept.  With --workspace-mode cow, %diff shows changes of files, %commit\n"
		 "[--force] [PATH...] writes them to the real folder, %discard drops them.  Without a terminal it\n"
		 "reads stdin and prints no prompts.",
	.examples = "  workcell shell\n"
		    "  workcell shell --python ./venv/bin/python --preload numpy\n"
		    "  workcell shell < session.txt",
	.flags = shell_flag_table,
	.run = cell__cmd_shell,
};

int cell__cmd_shell(int argc, char **argv)
{
	struct cell_cli_session_flags flags = CELL_CLI_SESSION_FLAGS_INIT(1);
	/* The signal thread outlives this function, and wake() uses its argument. */
	static struct shell shell = { .wake_fd = -1, .count = 1 };
	const char *no_colour = getenv("NO_COLOR");
	struct cell_error err;
	int status;

	/* A person is here, who has Ctrl-C and may intend the long computation. */
	flags.timeout_ms = -1;
	flags.gate.undo = -1;
	if (!cell__cli_parse(&cell__cli_shell_command, argc, argv, &flags, NULL, &status))
		goto out;
	shell.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
	if (flags.gate.undo < 0) /* a person makes mistakes; only this executor can take them back */
		flags.gate.undo = shell.terminal && (!flags.executor || !strcmp(flags.executor, "subprocess")) ? SHELL_UNDO : 0;
	shell.colour = shell.terminal && !(no_colour && *no_colour);
	/* The line editor reads characters, not bytes. */
	if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
		setlocale(LC_CTYPE, "C.UTF-8");
	status = open_shell(&shell, &flags, &err);
	if (!status && shell.terminal)
		printf("Workcell %s. Ctrl-C interrupts, %%reset starts a fresh kernel, Ctrl-D leaves.\n\n", cell_version());
	fflush(stdout);
	if (!status)
		status = loop(&shell, &err);
	if (!status)
		status = cell__cli_save(&flags.gate, shell.host.session, &err);
	close_shell(&shell);
	if (cell__cli_stop_status())
		status = cell__cli_stop_status();
	else if (status < 0)
		status = cell__cli_report(&err, false);
out:
	cell__cli_list_finish(&flags.env);
	return status;
}
