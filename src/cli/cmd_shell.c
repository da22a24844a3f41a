/*
 * `workcell shell`: cells from a terminal, or from a pipe without prompts.
 *
 * Line editing is libedit's, with our own function to read a character: it waits for the terminal and for an eventfd together, so Ctrl-C, a
 * changed window, a stop and output of background threads are handled while the prompt waits, without a signal handler that jumps out of
 * the editor.
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

#include <histedit.h>

#define HISTORY_LINES 2000
#define INDENT "    "

enum input {
	INPUT_LINE,
	INPUT_CLEARED, /* Ctrl-C */
	INPUT_END,     /* end of input, or the program is being stopped */
};

struct shell {
	struct cell_cli_host host;
	struct cell_cli_printer *printer;
	bool terminal, colour;
	unsigned count; /* of cells on this kernel, as in "In [3]" */
	bool continued; /* which prompt */
	int wake_fd;
	EditLine *editor;
	History *history;
	char *history_path;
	mbstate_t decoding;
	enum input event; /* why read_char() gave up */
	char prompt[64];
	char *line; /* of a pipe; kept when it belongs to the next cell */
	size_t line_room;
	bool line_waits;
	char *cell;
	size_t cell_size, cell_room;
};

/* ---- when is a cell complete ----------------------------------------------- */

enum completeness {
	CODE_COMPLETE,
	CODE_OPEN,  /* a bracket, a triple-quoted string or a backslash needs another line */
	CODE_BLOCK, /* an indented block: continues until an empty line */
};

/* Steps over the string that starts at `at`. Returns its end; *ret_open: a triple quote is missing. */
static size_t skip_string(const char *code, size_t size, size_t at, bool *ret_open)
{
	char quote = code[at];
	bool triple = at + 2 < size && code[at + 1] == quote && code[at + 2] == quote;

	for (at += triple ? 3 : 1; at < size; at++) {
		if (code[at] == '\\')
			at++;
		else if (!triple && (code[at] == quote || code[at] == '\n'))
			return code[at] == quote ? at + 1 : at;
		else if (triple && at + 2 < size && code[at] == quote && code[at + 1] == quote && code[at + 2] == quote)
			return at + 3;
	}
	*ret_open = triple;
	return size;
}

/*
 * A guess from the outside, without Python: it need not know what is valid, only whether the person seems to be done. A wrong "complete"
 * shows a syntax error, a wrong "open" shows another prompt.
 */
static enum completeness code_completeness(const char *code, size_t size)
{
	bool open = false, block = false, line_start = true;
	char last = 0; /* the last character that counts in this line */
	int depth = 0;

	if (size >= 2 && code[0] == '%' && code[1] == '%')
		return CODE_BLOCK;
	for (size_t at = 0; at < size; at++) {
		char c = code[at];

		if (line_start && depth == 0 && (c == '!' || c == '%' || c == '?')) {
			/* The shell's or a magic's line: its quotes and brackets are not Python's. */
			while (at < size && code[at] != '\n')
				at++;
			if (at && code[at - 1] == '\\')
				open = at + 1 >= size;
			continue;
		}
		if (c == '#') {
			while (at + 1 < size && code[at + 1] != '\n')
				at++;
			continue;
		}
		if (c == '\'' || c == '"') {
			at = skip_string(code, size, at, &open) - 1;
			last = c;
		} else if (c == '\\' && at + 1 < size && code[at + 1] == '\n') {
			open = at + 2 >= size;
			at++;
		} else if (c == '\n') {
			if (depth <= 0 && last == ':')
				block = true;
			last = 0;
			line_start = true;
			continue;
		} else if (c != ' ' && c != '\t' && c != '\r') {
			depth += strchr("([{", c) ? 1 : strchr(")]}", c) ? -1 : 0;
			if (line_start && c == '@' && depth == 0)
				block = true;
			last = c;
		}
		if (c != ' ' && c != '\t')
			line_start = false;
	}
	if (open || depth > 0)
		return CODE_OPEN;
	return block ? CODE_BLOCK : CODE_COMPLETE;
}

/* ---- the terminal ----------------------------------------------------------- */

/* On the signal thread and the engine's thread. */
static void wake(void *arg)
{
	struct shell *shell = arg;

	eventfd_write(shell->wake_fd, 1);
}

static char *prompt(EditLine *editor)
{
	struct shell *shell;

	el_get(editor, EL_CLIENTDATA, &shell);
	/* \1 encloses characters without width; libedit loses it at the very end, hence the space. */
	if (shell->continued)
		snprintf(shell->prompt, sizeof(shell->prompt), "   ...: ");
	else if (shell->colour)
		snprintf(shell->prompt, sizeof(shell->prompt), "\1\033[32m\1In [%u]:\1\033[0m\1 ", shell->count);
	else
		snprintf(shell->prompt, sizeof(shell->prompt), "In [%u]: ", shell->count);
	return shell->prompt;
}

static void show_kept(struct shell *shell)
{
	if (!cell__cli_has_kept(shell->printer))
		return;
	cell__cli_write(STDOUT_FILENO, "\r\033[K", 4);
	cell__cli_print_kept(shell->printer);
	cell__cli_print_fresh_line(shell->printer);
	el_set(shell->editor, EL_REFRESH);
}

/* False: the line being edited is over. */
static bool handle_wake(struct shell *shell)
{
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
	if (cell__cli_take_resize()) {
		/* After a stop the terminal may have been given other modes. */
		el_set(shell->editor, EL_PREP_TERM, 1);
		el_resize(shell->editor);
		el_set(shell->editor, EL_REFRESH);
	}
	show_kept(shell);
	return true;
}

/* libedit's source of characters: 1 with a character, 0 at the end, -1 on an error. */
static int read_char(EditLine *editor, wchar_t *ret_char)
{
	struct shell *shell;

	el_get(editor, EL_CLIENTDATA, &shell);
	for (;;) {
		struct pollfd fds[] = {
			{ .fd = shell->wake_fd, .events = POLLIN },
			{ .fd = STDIN_FILENO, .events = POLLIN },
		};
		ssize_t n;
		char byte;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return -1;
		if (fds[0].revents && !handle_wake(shell))
			return 0;
		if (!fds[1].revents)
			continue;
		n = read(STDIN_FILENO, &byte, 1);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return (int)n;
		switch (mbrtowc(ret_char, &byte, 1, &shell->decoding)) {
		case (size_t)-2:
			continue;
		case (size_t)-1:
			memset(&shell->decoding, 0, sizeof(shell->decoding));
			*ret_char = L'?';
			return 1;
		default:
			return 1;
		}
	}
}

static unsigned char insert_indent(EditLine *editor, int key)
{
	(void)key;
	return el_insertstr(editor, INDENT) < 0 ? CC_ERROR : CC_REFRESH;
}

static void bind_keys(EditLine *editor)
{
	static const char *const keys[][2] = {
		{ "^I", "cell-indent" },        { "^R", "em-inc-search-prev" }, { "\\e[3~", "ed-delete-next-char" },
		{ "\\e[H", "ed-move-to-beg" },  { "\\e[1~", "ed-move-to-beg" }, { "\\e[F", "ed-move-to-end" },
		{ "\\e[4~", "ed-move-to-end" }, { "\\e[1;5D", "ed-prev-word" }, { "\\e[1;5C", "em-next-word" },
	};

	/* The wide call, because the other one never frees the copies it makes of the names. */
	el_wset(editor, EL_ADDFN, L"cell-indent", L"insert an indentation", insert_indent);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		el_set(editor, EL_BIND, keys[i][0], keys[i][1], NULL);
}

/* ---- history ------------------------------------------------------------------ */

/* The file's path, with its directories made; NULL if there is no place for one. */
static char *history_path(void)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *path = NULL;
	int n = -1;

	if (state && *state == '/')
		n = asprintf(&path, "%s/workcell/history", state);
	else if (home && *home == '/')
		n = asprintf(&path, "%s/.local/state/workcell/history", home);
	if (n < 0)
		return NULL;
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		n = mkdir(path, 0700);
		*slash = '/';
		if (n < 0 && errno != EEXIST) {
			free(path);
			return NULL;
		}
	}
	return path;
}

/* Written beside and renamed, so that a crash or a second shell leaves one whole history or the other. */
static void save_history(struct shell *shell)
{
	char *temporary;
	HistEvent event;
	int fd;

	if (!shell->history_path || asprintf(&temporary, "%s.XXXXXX", shell->history_path) < 0)
		return;
	fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */
	if (fd >= 0) {
		close(fd);
		if (history(shell->history, &event, H_SAVE, temporary) < 0 || rename(temporary, shell->history_path) < 0)
			unlink(temporary);
	}
	free(temporary);
}

/* ---- opening and closing -------------------------------------------------------- */

static int open_terminal(struct shell *shell, struct cell_error *err)
{
	HistEvent event;

	shell->editor = el_init("workcell", stdin, stdout, stderr);
	shell->history = history_init();
	if (!shell->editor || !shell->history)
		return cell_fail(err, CELL_E_IO, 0, "cannot set up line editing; is TERM right?");
	history(shell->history, &event, H_SETSIZE, HISTORY_LINES);
	history(shell->history, &event, H_SETUNIQUE, 1);
	shell->history_path = history_path();
	if (shell->history_path)
		history(shell->history, &event, H_LOAD, shell->history_path);
	el_set(shell->editor, EL_CLIENTDATA, shell);
	el_set(shell->editor, EL_SIGNAL, 0);
	el_set(shell->editor, EL_EDITOR, "emacs");
	el_set(shell->editor, EL_HIST, history, shell->history);
	el_set(shell->editor, EL_PROMPT_ESC, prompt, '\1');
	el_set(shell->editor, EL_GETCFN, read_char);
	bind_keys(shell->editor);
	el_source(shell->editor, NULL);
	return 0;
}

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
	return shell->terminal ? open_terminal(shell, err) : 0;
}

static void close_shell(struct shell *shell)
{
	/* The engine's thread wakes us until the session is closed, so that comes first. */
	if (shell->host.engine)
		cell__cli_close(&shell->host);
	if (shell->editor && shell->history)
		save_history(shell);
	if (shell->editor)
		el_end(shell->editor);
	if (shell->history)
		history_end(shell->history);
	cell__cli_printer_destroy(shell->printer);
	free(shell->history_path);
	free(shell->line);
	free(shell->cell);
}

/* ---- reading ------------------------------------------------------------------- */

static enum input read_terminal(struct shell *shell, const char **ret_line)
{
	const char *line;
	HistEvent event;
	int size = 0;

	shell->event = INPUT_END;
	cell__cli_print_fresh_line(shell->printer);
	/* Before the prompt is shown, not after: early input must not get the terminal's own editing. */
	el_set(shell->editor, EL_PREP_TERM, 1);
	line = el_gets(shell->editor, &size);
	if (!line || size <= 0) {
		const char *answer = shell->event == INPUT_CLEARED ? "\nKeyboardInterrupt\n" : "\n";

		cell__cli_write(STDOUT_FILENO, answer, strlen(answer));
		return shell->event;
	}
	if (line[strspn(line, " \t\n")])
		history(shell->history, &event, H_ENTER, line);
	*ret_line = line;
	return INPUT_LINE;
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
		enum completeness state = CODE_COMPLETE;
		const char *line = NULL;
		enum input input;
		bool was_blank = blank;

		if (shell->cell_size)
			state = code_completeness(shell->cell, shell->cell_size);
		input = shell->terminal ? read_terminal(shell, &line) : read_pipe(shell, &line);
		if (input == INPUT_END && shell->cell_size && !shell->terminal && !cell__cli_stop_status())
			return INPUT_LINE;
		if (input != INPUT_LINE)
			return input;
		blank = !line[strspn(line, " \t\r\n")];
		if (!shell->cell_size && blank)
			continue;
		if (state == CODE_BLOCK && shell->terminal && blank)
			return INPUT_LINE;
		if (state == CODE_BLOCK && was_blank && !blank && *line != ' ' && *line != '\t') {
			shell->line_waits = true;
			return INPUT_LINE;
		}
		if (append_line(shell, line) < 0) {
			cell_fail(err, CELL_E_LIMIT, 0, "the input is too long for a cell");
			return INPUT_END;
		}
		if (code_completeness(shell->cell, shell->cell_size) == CODE_COMPLETE)
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
		cell__cli_print_result(shell->printer, result, prefix, true);
		shell->count = cell_result_state_kept(result) ? shell->count + 1 : 1;
	}
	cell_result_destroy(result);
	if (shell->terminal) {
		cell__cli_print_fresh_line(shell->printer);
		cell__cli_write(STDOUT_FILENO, "\n", 1);
	}
	return 0;
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
		if (cell_is(shell, leave))
			return 0;
		status = cell_is(shell, fresh) ? reset(shell, err) : run_cell(shell, err);
		err->code = status ? err->code : CELL_OK;
	}
	return status;
}

/* ---- the command ------------------------------------------------------------------ */

static const struct cell_cli_flag shell_flag_table[] = {
	CELL_CLI_SESSION_FLAGS(0),
	CELL_CLI_REMOTE_TOKEN_FLAG(0),
	{ 0 },
};

const struct cell_cli_command cell__cli_shell_command = {
	.name = "shell",
	.summary = "run cells interactively",
	.synopsis = "[flags]",
	.about = "Runs a session at a prompt.  A block ends with an empty line.  Ctrl-C interrupts the cell or\n"
		 "clears the input, %reset starts a fresh kernel, Ctrl-D or exit leaves.  Without a terminal it\n"
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
	if (!cell__cli_parse(&cell__cli_shell_command, argc, argv, &flags, NULL, &status))
		goto out;
	shell.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
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
	close_shell(&shell);
	if (cell__cli_stop_status())
		status = cell__cli_stop_status();
	else if (status < 0)
		status = cell__cli_report(&err, false);
out:
	cell__cli_list_finish(&flags.env);
	return status;
}
