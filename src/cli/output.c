/* Lines and tables on stdout and stderr, without terminal control characters. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <assert.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#define COLUMN_GAP 2
#define MIN_COLUMN 12 /* columns of the screen that one text may take in any case */

void cell__cli_show(const char *text, size_t size)
{
	char *shown = isatty(STDOUT_FILENO) ? cell_shown_text(text, size, CELL_SHOWN_LINES) : NULL;

	/* Without memory a terminal gets nothing rather than unfiltered text. */
	if (shown)
		cell__cli_write(STDOUT_FILENO, shown, strlen(shown));
	else if (!isatty(STDOUT_FILENO))
		cell__cli_write(STDOUT_FILENO, text, size);
	free(shown);
}

void cell__cli_line(const char *text)
{
	cell__cli_show(text, strlen(text));
	cell__cli_write(STDOUT_FILENO, "\n", 1);
}

int cell__cli_print_json(const json_t *value, struct cell_error *err)
{
	char *line = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

	if (!line)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory to print an answer");
	cell__cli_line(line);
	free(line);
	return 0;
}

const char *cell__cli_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

char *cell__cli_plain(const char *text)
{
	return cell_shown_text(text, strcspn(text, "\r\n"), CELL_SHOWN_LINE);
}

void cell__cli_note(const char *text)
{
	char *line = cell__cli_plain(text);

	if (!line)
		return; /* no memory: a line of progress less */
	cell__cli_write(STDERR_FILENO, line, strlen(line));
	cell__cli_write(STDERR_FILENO, "\n", 1);
	free(line);
}

/* The columns that a character takes on a screen, and its bytes. Marks that combine count as well: a line is never longer than it counts. */
static size_t char_width(const char *at, size_t *ret_size)
{
	mbstate_t state = { 0 };
	wchar_t wide;
	size_t size = mbrtowc(&wide, at, MB_CUR_MAX, &state);
	int columns;

	if (!size || size > MB_CUR_MAX) { /* the locale has no UTF-8 */
		for (size = 1; ((unsigned char)at[size] & 0xc0) == 0x80;)
			size++;
		*ret_size = size;
		return 1;
	}
	columns = wcwidth(wide);
	*ret_size = size;
	return columns > 1 ? (size_t)columns : 1;
}

/* The bytes of a text that fit into so many columns, and the columns they take. If that is not all, there is a column for a mark. */
static size_t fit(const char *text, size_t columns, size_t *ret_width)
{
	size_t used = 0, kept = 0, kept_width = 0, at = 0, size;

	while (text[at]) {
		size_t wide = char_width(text + at, &size);

		if (used + wide > columns) {
			*ret_width = kept_width;
			return kept;
		}
		used += wide;
		at += size;
		if (used < columns) {
			kept = at;
			kept_width = used;
		}
	}
	*ret_width = used;
	return at;
}

void cell__cli_table_add(struct cell_cli_table *table, const char *const *texts)
{
	for (size_t i = 0; i < table->columns && !table->failed; i++) {
		if (table->count == table->room) {
			size_t room = table->room ? table->room * 2 : 64;
			char **cells = reallocarray(table->cells, room, sizeof(*cells));

			if (!cells) {
				table->failed = true;
				return;
			}
			table->cells = cells;
			table->room = room;
		}
		table->cells[table->count] = cell__cli_plain(texts[i]);
		table->failed = !table->cells[table->count];
		table->count += !table->failed;
	}
}

/* left: columns of the screen for this row. */
static void print_row(FILE *out, size_t columns, char *const *row, const size_t *widths, size_t left)
{
	/* No invisible characters at the end of a line. */
	while (columns && !*row[columns - 1])
		columns--;
	for (size_t i = 0; i < columns && left; i++) {
		size_t room = i + 1 < columns && widths[i] < left ? widths[i] : left, wide, bytes = fit(row[i], room, &wide);

		fwrite(row[i], 1, bytes, out);
		if (row[i][bytes]) {
			fputs("\xe2\x80\xa6", out);
			wide++;
		}
		left -= wide;
		for (size_t gap = i + 1 < columns ? widths[i] - wide + COLUMN_GAP : 0; gap && left; gap--, left--)
			putc(' ', out);
	}
	putc('\n', out);
}

static void print_rows(FILE *out, const struct cell_cli_table *table)
{
	size_t widths[CELL_CLI_MAX_COLUMNS] = { 0 }, most = SIZE_MAX, wide;

	/* No text of others takes the columns after it from the screen. */
	if (table->width)
		most = table->width / 6 > MIN_COLUMN ? table->width / 6 : MIN_COLUMN;
	for (size_t i = 0; i < table->count; i++) {
		fit(table->cells[i], SIZE_MAX, &wide);
		wide = wide < most ? wide : most;
		if (wide > widths[i % table->columns])
			widths[i % table->columns] = wide;
	}
	for (size_t i = 0; i + table->columns <= table->count; i += table->columns)
		print_row(out, table->columns, table->cells + i, widths, table->width ? table->width : SIZE_MAX);
}

int cell__cli_table_print(struct cell_cli_table *table, struct cell_error *err)
{
	locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", (locale_t)0), before = utf8 ? uselocale(utf8) : (locale_t)0;
	char *text = NULL;
	size_t size;
	FILE *out = table->failed ? NULL : open_memstream(&text, &size);

	assert(table->columns && table->columns <= CELL_CLI_MAX_COLUMNS);

	if (out)
		print_rows(out, table);
	if (utf8) {
		uselocale(before);
		freelocale(utf8);
	}
	for (size_t i = 0; i < table->count; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct cell_cli_table){ .columns = table->columns, .width = table->width };
	if (!out || fclose(out)) {
		free(text);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a table");
	}
	cell__cli_write(STDOUT_FILENO, text, size);
	free(text);
	return 0;
}

static void print_problems(const json_t *problems)
{
	const json_t *problem;
	size_t i;

	json_array_foreach(problems, i, problem) {
		struct cell_cli_table line = { .columns = 1 };
		char *words;

		if (asprintf(&words, "%s:%" JSON_INTEGER_FORMAT ": %s", cell__cli_text(problem, "file"),
			     json_integer_value(json_object_get(problem, "line")), cell__cli_text(problem, "message")) < 0)
			break;
		cell__cli_table_add(&line, (const char *[]){ words });
		cell__cli_table_print(&line, NULL);
		free(words);
	}
}

int cell__cli_report_problems(char *text, json_t *problems, bool json)
{
	size_t n = json_array_size(problems);

	if (json)
		cell__cli_line(text);
	else
		print_problems(problems);
	json_decref(problems);
	free(text);
	return n ? 1 : 0;
}
