/* Lines and tables on stdout and stderr, without terminal control characters. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COLUMN_GAP 2

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

/* The approximate width of a text: its code points. */
static size_t width(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
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

static void print_row(FILE *out, size_t columns, char *const *row, const size_t *widths)
{
	/* No invisible characters at the end of a line. */
	while (columns && !*row[columns - 1])
		columns--;
	for (size_t i = 0; i < columns; i++)
		fprintf(out, "%s%*s", row[i], i + 1 < columns ? (int)(widths[i] - width(row[i])) + COLUMN_GAP : 0, "");
	putc('\n', out);
}

int cell__cli_table_print(struct cell_cli_table *table, struct cell_error *err)
{
	size_t widths[CELL_CLI_MAX_COLUMNS] = { 0 }, size;
	char *text = NULL;
	FILE *out = table->failed ? NULL : open_memstream(&text, &size);

	assert(table->columns && table->columns <= CELL_CLI_MAX_COLUMNS);

	for (size_t i = 0; i < table->count; i++) {
		size_t n = width(table->cells[i]);

		if (n > widths[i % table->columns])
			widths[i % table->columns] = n;
	}
	for (size_t i = 0; out && i + table->columns <= table->count; i += table->columns)
		print_row(out, table->columns, table->cells + i, widths);
	for (size_t i = 0; i < table->count; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct cell_cli_table){ .columns = table->columns };
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
