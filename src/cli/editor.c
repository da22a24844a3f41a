#define _GNU_SOURCE 1
#include "editor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <histedit.h>

#include "base/libraries.h"
#include "cli.h"
#include "python_text.h"

#define HISTORY_ENTRIES 2000
#define LISTED_ROWS 16 /* of completions */

struct cell_cli_editor {
	struct cell_cli_editor_options opts;
	bool whole; /* we draw, and a cell is edited at once; else libedit draws one line */
	FILE *nowhere; /* where libedit draws then */
	EditLine *libedit;
	History *history;
	char *history_path;
	mbstate_t decoding;
	unsigned count;
	bool continued;
	char prompt[64];
	struct cell__buf text;
	/* what is on the screen */
	bool shown;
	size_t row, rows; /* where the cursor is in it, and how many there are */
};

static struct cell_cli_editor *editor_of(EditLine *libedit)
{
	struct cell_cli_editor *editor;

	el_get(libedit, EL_CLIENTDATA, &editor);
	return editor;
}

static void put(const struct cell__buf *out)
{
	if (out->size)
		cell__cli_write(STDOUT_FILENO, out->data, out->size);
}

/* ---- drawing ------------------------------------------------------------------ */

/* The input as rows of the screen. */
struct frame {
	struct cell__buf bytes;
	size_t *starts, n, room; /* where each row begins in it */
	size_t columns, column;
	size_t cursor_row, cursor_column;
	enum cell_cli_colour colour; /* of the last character */
	bool failed; /* out of memory */
};

static void frame_finish(struct frame *frame)
{
	cell__buf_finish(&frame->bytes);
	free(frame->starts);
}

static void frame_add(struct frame *frame, const char *bytes, size_t size)
{
	frame->failed |= cell__buf_add(&frame->bytes, bytes, size) < 0;
}

static void frame_colour(struct frame *frame, enum cell_cli_colour colour)
{
	const char *sequence = cell__colour_sequence(colour);

	if (colour == frame->colour)
		return;
	if (frame->colour != CELL_COLOUR_NONE)
		frame_add(frame, "\033[0m", 4);
	frame_add(frame, sequence, strlen(sequence));
	frame->colour = colour;
}

static void frame_row(struct frame *frame)
{
	frame_colour(frame, CELL_COLOUR_NONE);
	frame->column = 0;
	if (frame->n == frame->room) {
		size_t room = frame->room ? frame->room * 2 : 32, *starts = realloc(frame->starts, room * sizeof(*starts));

		if (!starts) {
			frame->failed = true;
			return;
		}
		frame->starts = starts;
		frame->room = room;
	}
	frame->starts[frame->n++] = frame->bytes.size;
}

static void frame_prompt(struct frame *frame, const struct cell_cli_editor *editor, bool first)
{
	char words[64];
	int size = first ? snprintf(words, sizeof(words), "In [%u]: ", editor->count) : snprintf(words, sizeof(words), "   ...: ");

	frame_row(frame);
	if (first && editor->opts.colour)
		frame_add(frame, "\033[32m", 5);
	frame_add(frame, words, (size_t)size);
	if (first && editor->opts.colour)
		frame_add(frame, "\033[0m", 4);
	frame->column = (size_t)size;
}

/* One character of the input, and its width on the screen. A person can paste any bytes: no control character gets through. */
static size_t show_char(const char *text, size_t size, char out[static MB_LEN_MAX + 1], size_t *ret_shown, size_t *ret_width)
{
	mbstate_t state = { 0 };
	wchar_t wide;
	size_t n = mbrtowc(&wide, text, size, &state);
	int width = n == (size_t)-1 || n == (size_t)-2 || n == 0 ? -1 : wcwidth(wide);

	*ret_width = width < 0 ? 1 : (size_t)width;
	*ret_shown = 1;
	if (width >= 0) {
		memcpy(out, text, n);
		*ret_shown = n;
		return n;
	}
	if (*text == '\t') {
		memcpy(out, "    ", 4);
		*ret_shown = *ret_width = 4;
	} else if ((unsigned char)*text < 0x20) {
		out[0] = '^';
		out[1] = (char)(*text | 0x40);
		*ret_shown = *ret_width = 2;
	} else {
		out[0] = '?';
	}
	return n == 0 || n == (size_t)-1 || n == (size_t)-2 ? 1 : n;
}

static void frame_fill(struct frame *frame, const struct cell_cli_editor *editor, const char *text, size_t size, size_t cursor)
{
	unsigned char *colours = editor->opts.colour && size ? malloc(size) : NULL;
	char shown[MB_LEN_MAX + 1];
	size_t n, bytes = 0, width = 0;

	if (colours)
		cell__code_colours(text, size, colours);
	frame_prompt(frame, editor, true);
	for (size_t at = 0; at <= size; at += n) {
		n = 1;
		if (at < size && text[at] != '\n') {
			n = show_char(text + at, size - at, shown, &bytes, &width);
			if (frame->column + width > frame->columns)
				frame_row(frame);
		} else if (frame->column >= frame->columns) {
			frame_row(frame); /* for the cursor */
		}
		if (at <= cursor) {
			frame->cursor_row = frame->n - 1;
			frame->cursor_column = frame->column;
		}
		if (at == size)
			break;
		if (text[at] == '\n') {
			frame_prompt(frame, editor, false);
			continue;
		}
		frame_colour(frame, colours ? colours[at] : CELL_COLOUR_NONE);
		frame_add(frame, shown, bytes);
		frame->column += width;
	}
	frame_colour(frame, CELL_COLOUR_NONE);
	free(colours);
}

static void screen_size(size_t *ret_rows, size_t *ret_columns)
{
	struct winsize size = { 0 };

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
	*ret_rows = size.ws_row > 1 ? size.ws_row : 24;
	*ret_columns = size.ws_col > 20 ? size.ws_col : 80;
}

static void add_erase(struct cell_cli_editor *editor, struct cell__buf *out)
{
	if (!editor->shown)
		return;
	if (editor->row)
		(void)cell__buf_printf(out, "\033[%zuA", editor->row);
	(void)cell__buf_add_str(out, "\r\033[J");
	editor->shown = false;
}

static void draw_at(struct cell_cli_editor *editor, const char *text, size_t size, size_t cursor)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	struct frame frame = { 0 };
	size_t height, first, last;

	screen_size(&height, &frame.columns);
	frame_fill(&frame, editor, text, size, cursor);
	if (frame.failed)
		goto out; /* the input is there, if not on the screen */
	/* Of an input that is higher than the screen, the rows around the cursor. */
	first = frame.n > height && frame.cursor_row > height / 2 ? frame.cursor_row - height / 2 : 0;
	if (frame.n > height && first > frame.n - height)
		first = frame.n - height;
	last = frame.n - first > height ? first + height - 1 : frame.n - 1;
	add_erase(editor, &out);
	for (size_t row = first; row <= last; row++) {
		size_t end = row + 1 < frame.n ? frame.starts[row + 1] : frame.bytes.size;

		(void)cell__buf_add(&out, frame.bytes.data + frame.starts[row], end - frame.starts[row]);
		if (row < last)
			(void)cell__buf_add_str(&out, "\r\n");
	}
	if (frame.cursor_row < last)
		(void)cell__buf_printf(&out, "\033[%zuA", last - frame.cursor_row);
	if (frame.cursor_row < last || last + 1 < frame.n || frame.cursor_column != frame.column)
		(void)cell__buf_printf(&out, frame.cursor_column ? "\r\033[%zuC" : "\r", frame.cursor_column);
	editor->shown = true;
	editor->row = frame.cursor_row - first;
	editor->rows = last - first + 1;
	put(&out);
out:
	frame_finish(&frame);
}

static void draw(struct cell_cli_editor *editor)
{
	const LineInfo *line = el_line(editor->libedit);

	draw_at(editor, line->buffer, (size_t)(line->lastchar - line->buffer), (size_t)(line->cursor - line->buffer));
}

void cell__editor_hide(struct cell_cli_editor *editor)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;

	if (editor->whole)
		add_erase(editor, &out);
	else
		(void)cell__buf_add_str(&out, "\r\033[K");
	put(&out);
}

void cell__editor_leave(struct cell_cli_editor *editor)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;

	if (editor->shown && editor->row + 1 < editor->rows)
		(void)cell__buf_printf(&out, "\033[%zuB", editor->rows - 1 - editor->row);
	(void)cell__buf_add_str(&out, editor->whole ? "\r\n" : "\n");
	editor->shown = false;
	put(&out);
}

void cell__editor_resized(struct cell_cli_editor *editor)
{
	/* After a stop the terminal may have been given other modes. */
	el_set(editor->libedit, EL_PREP_TERM, 1);
	el_resize(editor->libedit);
	if (editor->whole)
		cell__editor_hide(editor);
	else
		el_set(editor->libedit, EL_REFRESH);
}

/* libedit's prompt, where it draws. */
static char *prompt(EditLine *libedit)
{
	struct cell_cli_editor *editor = editor_of(libedit);

	/* \1 encloses characters without width; libedit loses it at the very end, hence the space. */
	if (editor->continued)
		snprintf(editor->prompt, sizeof(editor->prompt), "   ...: ");
	else if (editor->opts.colour)
		snprintf(editor->prompt, sizeof(editor->prompt), "\1\033[32m\1In [%u]:\1\033[0m\1 ", editor->count);
	else
		snprintf(editor->prompt, sizeof(editor->prompt), "In [%u]: ", editor->count);
	return editor->prompt;
}

/* ---- reading -------------------------------------------------------------------- */

/* More keys are there already: pasted text, or somebody who types ahead. */
static bool has_input(void)
{
	struct pollfd fd = { .fd = STDIN_FILENO, .events = POLLIN };

	return poll(&fd, 1, 0) > 0;
}

/* libedit's source of characters: 1 with a character, 0 at the end, -1 on an error. */
static int read_char(EditLine *libedit, wchar_t *ret_char)
{
	struct cell_cli_editor *editor = editor_of(libedit);

	for (;;) {
		struct pollfd fds[] = {
			{ .fd = editor->opts.wake_fd, .events = POLLIN },
			{ .fd = STDIN_FILENO, .events = POLLIN },
		};
		ssize_t n;
		char byte;

		if (editor->whole && !has_input())
			draw(editor);
		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return -1;
		if (fds[0].revents) {
			if (!editor->opts.woken(editor->opts.arg))
				return 0;
			if (!editor->whole)
				el_set(editor->libedit, EL_REFRESH);
		}
		if (!fds[1].revents)
			continue;
		n = read(STDIN_FILENO, &byte, 1);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			return (int)n;
		switch (mbrtowc(ret_char, &byte, 1, &editor->decoding)) {
		case (size_t)-2:
			continue;
		case (size_t)-1:
			memset(&editor->decoding, 0, sizeof(editor->decoding));
			*ret_char = L'?';
			return 1;
		default:
			return 1;
		}
	}
}

/* ---- keys ------------------------------------------------------------------------- */

/* Where the cursor's line begins, in characters. */
static size_t line_start(const LineInfoW *line)
{
	const wchar_t *at = line->cursor;

	while (at > line->buffer && at[-1] != L'\n')
		at--;
	return (size_t)(at - line->buffer);
}

static const wchar_t *line_end(const LineInfoW *line, const wchar_t *at)
{
	while (at < line->lastchar && *at != L'\n')
		at++;
	return at;
}

static bool is_blank(const wchar_t *from, const wchar_t *to)
{
	for (; from < to; from++) {
		if (*from != L' ' && *from != L'\t' && *from != L'\n')
			return false;
	}
	return true;
}

static unsigned char move_to(EditLine *libedit, const LineInfoW *line, const wchar_t *to)
{
	el_cursor(libedit, (int)(to - line->cursor));
	return CC_CURSOR;
}

static unsigned char insert_spaces(EditLine *libedit, size_t n)
{
	char spaces[64];

	n = n < sizeof(spaces) ? n : sizeof(spaces) - 1;
	memset(spaces, ' ', n);
	spaces[n] = '\0';
	return n == 0 || el_insertstr(libedit, spaces) == 0 ? CC_REFRESH : CC_ERROR;
}

/* Ends the input. */
static unsigned char handle_submit(EditLine *libedit, int key)
{
	struct cell_cli_editor *editor = editor_of(libedit);
	const LineInfoW *line = el_wline(libedit);

	(void)key;
	el_cursor(libedit, (int)(line->lastchar - line->cursor));
	draw(editor);
	cell__editor_leave(editor);
	return el_insertstr(libedit, "\n") < 0 ? CC_ERROR : CC_NEWLINE;
}

static unsigned char handle_newline(EditLine *libedit)
{
	const LineInfo *line = el_line(libedit);
	/* Text that comes at once has its own indentation. */
	size_t indent = has_input() ? 0 : cell__code_indent(line->buffer, (size_t)(line->cursor - line->buffer));

	if (el_insertstr(libedit, "\n") < 0)
		return CC_ERROR;
	return insert_spaces(libedit, indent);
}

static unsigned char handle_enter(EditLine *libedit, int key)
{
	const LineInfoW *wide = el_wline(libedit);
	bool at_end = is_blank(wide->cursor, wide->lastchar),
	     several = wmemchr(wide->buffer, L'\n', (size_t)(wide->lastchar - wide->buffer));
	bool blank = is_blank(wide->buffer + line_start(wide), wide->cursor);
	CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;
	const LineInfo *line = el_line(libedit);
	enum cell_cli_completeness state;

	if (cell__buf_add(&code, line->buffer, (size_t)(line->lastchar - line->buffer)) < 0 || cell__buf_add(&code, "\n", 1) < 0)
		return CC_ERROR;
	state = cell__code_completeness(code.data, code.size);
	if (!several && blank && at_end)
		return handle_submit(libedit, key); /* nothing was typed */
	if (several && !at_end)
		return handle_newline(libedit);
	if (state == CELL_CODE_COMPLETE || (state == CELL_CODE_BLOCK && blank))
		return handle_submit(libedit, key);
	return handle_newline(libedit);
}

/* Within the cell first, then to the entry of the history before it. */
static unsigned char handle_up(EditLine *libedit, int key)
{
	const LineInfoW *line = el_wline(libedit);
	size_t start = line_start(line), column = (size_t)(line->cursor - line->buffer) - start;
	const wchar_t *above;

	(void)key;
	if (!start) {
		el_push(libedit, "\020"); /* ed-prev-history */
		return CC_NORM;
	}
	for (above = line->buffer + start - 1; above > line->buffer && above[-1] != L'\n';)
		above--;
	return move_to(libedit, line, above + column < line->buffer + start - 1 ? above + column : line->buffer + start - 1);
}

static unsigned char handle_down(EditLine *libedit, int key)
{
	const LineInfoW *line = el_wline(libedit);
	const wchar_t *end = line_end(line, line->cursor), *below;
	size_t column = (size_t)(line->cursor - line->buffer) - line_start(line);

	(void)key;
	if (end == line->lastchar) {
		el_push(libedit, "\016"); /* ed-next-history */
		return CC_NORM;
	}
	below = line_end(line, end + 1);
	return move_to(libedit, line, end + 1 + column < below ? end + 1 + column : below);
}

static unsigned char handle_home(EditLine *libedit, int key)
{
	const LineInfoW *line = el_wline(libedit);

	(void)key;
	return move_to(libedit, line, line->buffer + line_start(line));
}

static unsigned char handle_end(EditLine *libedit, int key)
{
	const LineInfoW *line = el_wline(libedit);

	(void)key;
	return move_to(libedit, line, line_end(line, line->cursor));
}

/* A level of indentation, or a character. */
static unsigned char handle_backspace(EditLine *libedit, int key)
{
	const LineInfoW *line = el_wline(libedit);
	const wchar_t *start = line->buffer + line_start(line);
	size_t column = (size_t)(line->cursor - start), n = 1;

	(void)key;
	if (line->cursor == line->buffer)
		return CC_ERROR;
	if (column && wcsspn(start, L" ") >= column)
		n = (column - 1) % CELL_CLI_INDENT + 1;
	el_deletestr(libedit, (int)n);
	return CC_REFRESH;
}

/* Text between ESC [ 200 ~ and ESC [ 201 ~: as it is, whatever keys its characters are. */
static unsigned char handle_paste(EditLine *libedit, int key)
{
	static const wchar_t end[] = L"\033[201~";
	wchar_t *text = NULL;
	size_t n = 0, room = 0, tail = wcslen(end);
	unsigned char answer = CC_REFRESH;

	(void)key;
	for (;;) {
		wchar_t c;

		if (n + 2 > room) {
			wchar_t *more = n < CELL_CLI_MAX_CODE_BYTES ? realloc(text, (room = room * 2 + 256) * sizeof(*text)) : NULL;

			if (!more) {
				answer = CC_ERROR;
				break;
			}
			text = more;
		}
		if (el_wgetc(libedit, &c) != 1)
			break;
		text[n++] = c == L'\r' ? L'\n' : c;
		if (n >= tail && !wmemcmp(text + n - tail, end, tail)) {
			n -= tail;
			break;
		}
	}
	if (text && answer == CC_REFRESH && n) {
		text[n] = L'\0';
		if (el_winsertstr(libedit, text) < 0)
			answer = CC_ERROR;
	}
	free(text);
	return answer;
}

/* ---- completion ------------------------------------------------------------------- */

/* The kernel chose them: only plain names that continue the typed text are taken. */
static json_t *check_matches(json_t *answer, const char *before, size_t size, size_t *ret_prefix)
{
	const json_t *prefix = json_object_get(answer, "prefix"), *match;
	size_t typed = json_string_length(prefix), i;
	json_t *matches = json_array();

	if (!json_is_string(prefix) || typed > size || memcmp(before + size - typed, json_string_value(prefix), typed) != 0)
		return matches;
	json_array_foreach(json_object_get(answer, "matches"), i, match) {
		const char *text = json_string_value(match);
		size_t length = json_string_length(match);
		char *shown = text ? cell_shown_text(text, length, CELL_SHOWN_LINE) : NULL;

		if (shown && strlen(shown) == length && !memcmp(shown, text, length) && length >= typed &&
		    !memcmp(text, json_string_value(prefix), typed))
			json_array_append(matches, (json_t *)match);
		free(shown);
	}
	*ret_prefix = typed;
	return matches;
}

/* How many bytes all of them begin with; whole characters. */
static size_t common_size(const json_t *matches)
{
	const char *first = json_string_value(json_array_get(matches, 0));
	size_t size = first ? strlen(first) : 0, i;
	const json_t *match;

	json_array_foreach(matches, i, match) {
		const char *other = json_string_value(match);
		size_t same = 0;

		while (same < size && other[same] == first[same])
			same++;
		size = same;
	}
	while (size && first[size] && ((unsigned char)first[size] & 0xc0) == 0x80)
		size--;
	return size;
}

static void list_matches(struct cell_cli_editor *editor, const json_t *matches, size_t left_out)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	size_t n = json_array_size(matches), widest = 0, rows, columns, per_row, shown;

	for (size_t i = 0; i < n; i++) {
		size_t size = json_string_length(json_array_get(matches, i));

		widest = size > widest ? size : widest;
	}
	screen_size(&rows, &columns);
	per_row = columns / (widest + 2) ? columns / (widest + 2) : 1;
	shown = n < per_row * LISTED_ROWS ? n : per_row * LISTED_ROWS;
	for (size_t i = 0; i < shown; i++) {
		bool ends = (i + 1) % per_row == 0 || i + 1 == shown;

		(void)cell__buf_printf(&out, "%-*s%s", ends ? 0 : (int)widest + 2, json_string_value(json_array_get(matches, i)),
				       ends ? "\r\n" : "");
	}
	if (shown < n + left_out)
		(void)cell__buf_printf(&out, "... and %zu more\r\n", n + left_out - shown);
	draw(editor);
	cell__editor_leave(editor);
	put(&out);
}

static unsigned char complete(EditLine *libedit)
{
	struct cell_cli_editor *editor = editor_of(libedit);
	const LineInfo *line = el_line(libedit);
	size_t size = (size_t)(line->cursor - line->buffer), prefix = 0, common;
	json_t *answer = editor->opts.complete(editor->opts.arg, line->buffer, size), *matches;
	json_int_t more = json_integer_value(json_object_get(answer, "more"));
	unsigned char done = CC_REFRESH;

	matches = check_matches(answer, line->buffer, size, &prefix);
	common = common_size(matches);
	if (common > prefix) {
		char *rest = strndup(json_string_value(json_array_get(matches, 0)) + prefix, common - prefix);

		if (!rest || el_insertstr(libedit, rest) < 0)
			done = CC_ERROR;
		free(rest);
	} else if (json_array_size(matches) > 1 && editor->whole) {
		list_matches(editor, matches, more > 0 ? (size_t)more : 0);
	} else {
		done = CC_ERROR;
	}
	json_decref(matches);
	json_decref(answer);
	if (done == CC_ERROR)
		cell__cli_write(STDOUT_FILENO, "\a", 1);
	return done;
}

static unsigned char handle_tab(EditLine *libedit, int key)
{
	const LineInfoW *line = el_wline(libedit);
	const wchar_t *start = line->buffer + line_start(line);
	size_t column = (size_t)(line->cursor - start);

	(void)key;
	if (is_blank(start, line->cursor))
		return insert_spaces(libedit, CELL_CLI_INDENT - column % CELL_CLI_INDENT);
	return complete(libedit);
}

static void bind_keys(struct cell_cli_editor *editor)
{
	static const char *const keys[][2] = {
		{ "^I", "cell-tab" },           { "^R", "em-inc-search-prev" }, { "\\e[3~", "ed-delete-next-char" },
		{ "\\e[H", "ed-move-to-beg" },  { "\\e[1~", "ed-move-to-beg" }, { "\\e[F", "ed-move-to-end" },
		{ "\\e[4~", "ed-move-to-end" }, { "\\e[1;5D", "ed-prev-word" }, { "\\e[1;5C", "em-next-word" },
	};
	static const char *const whole[][2] = {
		{ "^M", "cell-enter" },       { "^J", "cell-enter" },     { "\\e^M", "cell-submit" },  { "\\e^J", "cell-submit" },
		{ "\\e[A", "cell-up" },       { "\\e[B", "cell-down" },   { "\\eOA", "cell-up" },      { "\\eOB", "cell-down" },
		{ "^?", "cell-backspace" },   { "^H", "cell-backspace" }, { "^A", "cell-home" },       { "^E", "cell-end" },
		{ "\\e[H", "cell-home" },     { "\\e[1~", "cell-home" },  { "\\eOH", "cell-home" },    { "\\e[F", "cell-end" },
		{ "\\e[4~", "cell-end" },     { "\\eOF", "cell-end" },    { "^P", "ed-prev-history" }, { "^N", "ed-next-history" },
		{ "\\e[200~", "cell-paste" },
	};
	static const struct {
		const wchar_t *name, *about;
		unsigned char (*handle)(EditLine *libedit, int key);
	} functions[] = {
		{ L"cell-tab", L"indent or complete", handle_tab },
		{ L"cell-enter", L"end the cell or begin another line", handle_enter },
		{ L"cell-submit", L"end the cell", handle_submit },
		{ L"cell-up", L"line above, or history", handle_up },
		{ L"cell-down", L"line below, or history", handle_down },
		{ L"cell-home", L"beginning of the line", handle_home },
		{ L"cell-end", L"end of the line", handle_end },
		{ L"cell-backspace", L"delete a character or an indentation", handle_backspace },
		{ L"cell-paste", L"insert pasted text", handle_paste },
	};

	/* The wide call, because the other one never frees the copies it makes of the names. */
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
		el_wset(editor->libedit, EL_ADDFN, functions[i].name, functions[i].about, functions[i].handle);
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		el_set(editor->libedit, EL_BIND, keys[i][0], keys[i][1], NULL);
	for (size_t i = 0; editor->whole && i < sizeof(whole) / sizeof(whole[0]); i++)
		el_set(editor->libedit, EL_BIND, whole[i][0], whole[i][1], NULL);
}

/* ---- history ------------------------------------------------------------------ */

/* Written beside and renamed, so that a crash or a second shell leaves one whole history or the other. */
static void save_history(struct cell_cli_editor *editor)
{
	char *temporary;
	HistEvent event;
	int fd;

	if (!editor->history_path || asprintf(&temporary, "%s.XXXXXX", editor->history_path) < 0)
		return;
	fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */
	if (fd >= 0) {
		close(fd);
		if (history(editor->history, &event, H_SAVE, temporary) < 0 || rename(temporary, editor->history_path) < 0)
			unlink(temporary);
	}
	free(temporary);
}

void cell__editor_remember(struct cell_cli_editor *editor, const char *text)
{
	HistEvent event;

	history(editor->history, &event, H_ENTER, text);
}

/* ---- create, read, destroy -------------------------------------------------------- */

static bool can_draw(void)
{
	const char *term = getenv("TERM");

	return term && *term && strcmp(term, "dumb") != 0;
}

int cell__editor_create(const struct cell_cli_editor_options *opts, struct cell_cli_editor **ret_editor, struct cell_error *err)
{
	struct cell_cli_editor *editor;
	HistEvent event;

	if (cell__library_load(CELL__LIBRARY_EDIT, err) < 0)
		return -1;
	editor = calloc(1, sizeof(*editor));
	if (!editor)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	editor->opts = *opts;
	editor->whole = can_draw();
	editor->nowhere = fopen("/dev/null", "we");
	if (editor->nowhere)
		editor->libedit = el_init_fd("workcell", stdin, editor->whole ? editor->nowhere : stdout, stderr, STDIN_FILENO,
					     STDOUT_FILENO, STDERR_FILENO);
	editor->history = history_init();
	if (!editor->libedit || !editor->history) {
		cell__editor_destroy(editor);
		return cell_fail(err, CELL_E_IO, 0, "cannot set up line editing; is TERM right?");
	}
	history(editor->history, &event, H_SETSIZE, HISTORY_ENTRIES);
	history(editor->history, &event, H_SETUNIQUE, 1);
	editor->history_path = cell__cli_state_path("history");
	if (editor->history_path)
		history(editor->history, &event, H_LOAD, editor->history_path);
	el_set(editor->libedit, EL_CLIENTDATA, editor);
	el_set(editor->libedit, EL_SIGNAL, 0);
	el_set(editor->libedit, EL_EDITOR, "emacs");
	el_set(editor->libedit, EL_HIST, history, editor->history);
	el_set(editor->libedit, EL_PROMPT_ESC, prompt, '\1');
	el_set(editor->libedit, EL_GETCFN, read_char);
	bind_keys(editor);
	el_source(editor->libedit, NULL);
	*ret_editor = editor;
	return 0;
}

void cell__editor_destroy(struct cell_cli_editor *editor)
{
	if (!editor)
		return;
	if (editor->libedit && editor->history)
		save_history(editor);
	if (editor->libedit)
		el_end(editor->libedit);
	if (editor->history)
		history_end(editor->history);
	if (editor->nowhere)
		fclose(editor->nowhere);
	cell__buf_finish(&editor->text);
	free(editor->history_path);
	free(editor);
}

bool cell__editor_is_whole(const struct cell_cli_editor *editor)
{
	return editor->whole;
}

const char *cell__editor_read(struct cell_cli_editor *editor, unsigned count, bool continued, size_t *ret_size)
{
	const char *line;
	int size = 0;

	editor->count = count;
	editor->continued = continued;
	editor->shown = false;
	/* Before the prompt is shown, not after: early input must not get the terminal's own editing. */
	el_set(editor->libedit, EL_PREP_TERM, 1);
	if (editor->whole)
		cell__cli_write(STDOUT_FILENO, "\033[?2004h", 8); /* marks pasted text */
	line = el_gets(editor->libedit, &size);
	if (editor->whole)
		cell__cli_write(STDOUT_FILENO, "\033[?2004l", 8);
	if (!line || size <= 0)
		return NULL;
	cell__buf_finish(&editor->text);
	/* The editor's buffer goes on with what was there before. */
	if (cell__buf_add(&editor->text, line, (size_t)size) < 0)
		return NULL;
	*ret_size = editor->text.size;
	return editor->text.data;
}
