/* `workcell saved`: the saved sessions of a folder or of Redis.  What they say of themselves is shown escaped (cell__cli_table_add()). */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/words.h"

struct saved_flags {
	bool json;
	const char *saved, *key_file, *owner, *after;
	int64_t limit;
	struct cell_cli_list operands;
};

#define AT(member) offsetof(struct saved_flags, member)

static const struct cell_cli_flag flags[] = {
	{ 0, "saved", "PLACE", "the folder of saved sessions, redis://... or env:NAME", CELL_FLAG_STRING, AT(saved) },
	{ 0, "saved-key-file", "FILE", "the file with the 64 hexadecimal digits that they are encrypted with", CELL_FLAG_STRING,
	  AT(key_file) },
	{ 0, "owner", "OWNER", "those of this owner: of a server's client TOKEN/WORKSPACE; without it, those of run and shell",
	  CELL_FLAG_STRING, AT(owner) },
	{ 0, "limit", "N", "list: a page of so many, at most 1000; without it, all", CELL_FLAG_COUNT, AT(limit) },
	{ 0, "after", "TEXT", "list: the page after the one that ended with this", CELL_FLAG_STRING, AT(after) },
	{ 0, "json", NULL, "print JSON, an object for each page", CELL_FLAG_SWITCH, AT(json) },
	{ 0 },
};

const struct cell_cli_command cell__cli_saved_command = {
	.name = "saved",
	.summary = "list and remove saved sessions",
	.synopsis = "list --saved PLACE [--limit N] [--after TEXT] | remove --saved PLACE ID...",
	.about = "Sessions that `workcell run|shell --save`, a server or a program has saved (docs/durable.md).\n\n"
		 "  list    id, form, size, cells, age, and whether it is awake; the latest first\n"
		 "  remove  removes sessions; one that is awake stays",
	.examples = "  workcell saved list --saved ./sessions\n"
		    "  workcell saved list --saved ./sessions --limit 50 --json\n"
		    "  workcell saved remove --saved ./sessions 5fcc9e50093f8d0cafda616f02de3d70",
	.flags = flags,
	.verbs = "list remove",
	.run = cell__cmd_saved,
};

static void add_row(struct cell_cli_table *table, const json_t *item)
{
	json_int_t ms = json_integer_value(json_object_get(item, "saved_ms"));
	char size[32], age[32], cells[24];

	cell__size_words((uint64_t)json_integer_value(json_object_get(item, "bytes")), size);
	cell__age_words((int64_t)time(NULL) - ms / 1000, age);
	snprintf(cells, sizeof(cells), "%lld", (long long)json_integer_value(json_object_get(item, "cells")));
	cell__cli_table_add(table, (const char *[]){ cell__cli_text(item, "session_id"), cell__cli_text(item, "form"), size, cells, age,
						     json_is_true(json_object_get(item, "awake")) ? "awake" : "asleep",
						     cell__cli_text(item, "executor"), cell__cli_text(item, "workspace") });
}

static int show_page(const struct saved_flags *values, const json_t *page, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 8 };
	const json_t *item;
	size_t i;

	if (values->json)
		return cell__cli_print_json(page, err);
	json_array_foreach(json_object_get(page, "sessions"), i, item)
		add_row(&table, item);
	return cell__cli_table_print(&table, err);
}

/* One page, or all of them as they come. */
static int list_pages(const struct saved_flags *values, const char *key, struct cell_error *err)
{
	char *after = NULL;
	int status = 0;

	do {
		CELL_AUTO_FREE char *text = cell_saved_page(values->saved, values->owner, key, after ? after : values->after,
							    values->limit ? (size_t)values->limit : 1000, err);
		json_t *page = text ? json_loads(text, 0, NULL) : NULL;
		const char *next = json_string_value(json_object_get(page, "next"));

		free(after);
		after = NULL;
		status = page ? show_page(values, page, err) : -1;
		if (!status && next && values->limit && !values->json)
			printf("more: --after %s\n", next);
		else if (!status && next && !values->limit && !(after = cell__strdup(next)))
			status = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a list");
		json_decref(page);
	} while (!status && after);
	free(after);
	return status;
}

static int remove_some(const struct saved_flags *values, const char *key, struct cell_error *err)
{
	for (size_t i = 1; i < values->operands.count; i++)
		if (cell_saved_remove(values->saved, values->owner, key, values->operands.items[i].value, err) < 0)
			return -1;
	return 0;
}

int cell__cmd_saved(int argc, char **argv)
{
	struct saved_flags values = { 0 };
	struct cell_error err;
	char *key = NULL;
	int status;

	if (cell__cli_parse(&cell__cli_saved_command, argc, argv, &values, &values.operands, &status)) {
		const char *verb = values.operands.count ? values.operands.items[0].value : "";
		bool lists = !strcmp(verb, "list") && values.operands.count == 1;

		status = -1;
		if (!lists && (strcmp(verb, "remove") || values.operands.count < 2))
			cell_fail(&err, CELL_E_INVALID, 0, "usage: workcell saved list, or workcell saved remove ID...");
		else if (!values.saved)
			cell_fail(&err, CELL_E_INVALID, 0, "saved %s needs --saved PLACE, the folder of saved sessions", verb);
		else if (!cell__cli_saved_place(values.saved, &values.saved, &err) &&
			 (!values.key_file || !cell__cli_saved_key(values.key_file, &key, &err)))
			status = lists ? list_pages(&values, key, &err) : remove_some(&values, key, &err);
		if (status < 0)
			status = cell__cli_report(&err, values.json);
	}
	free(key);
	cell__cli_list_finish(&values.operands);
	return status;
}
