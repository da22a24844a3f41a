/* The cells that a notebook's kernel has run, for a client's history requests.  Pure. */
#define _GNU_SOURCE 1
#include "jupyter.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

static const struct cell_cli_past *item_at(const struct cell_cli_history *history, size_t i)
{
	return &history->items[(history->first + i) % CELL_CLI_MAX_HISTORY];
}

static size_t size_of(const struct cell_cli_past *past)
{
	return strlen(past->code) + (past->output ? strlen(past->output) : 0);
}

static void drop_oldest(struct cell_cli_history *history)
{
	struct cell_cli_past *oldest = &history->items[history->first];

	history->bytes -= size_of(oldest);
	free(oldest->code);
	free(oldest->output);
	*oldest = (struct cell_cli_past){ 0 };
	history->first = (history->first + 1) % CELL_CLI_MAX_HISTORY;
	history->n--;
}

void cell__cli_history_add(struct cell_cli_history *history, unsigned line, const char *code, const char *output)
{
	struct cell_cli_past past = { .line = line, .code = strdup(code), .output = output ? strdup(output) : NULL };

	if (!past.code || (output && !past.output) || size_of(&past) > CELL_CLI_MAX_HISTORY_BYTES) {
		free(past.code);
		free(past.output);
		return;
	}
	while (history->n == CELL_CLI_MAX_HISTORY || history->bytes + size_of(&past) > CELL_CLI_MAX_HISTORY_BYTES)
		drop_oldest(history);
	history->items[(history->first + history->n++) % CELL_CLI_MAX_HISTORY] = past;
	history->bytes += size_of(&past);
}

void cell__cli_history_finish(struct cell_cli_history *history)
{
	while (history->n)
		drop_oldest(history);
}

static bool is_repeated(const struct cell_cli_history *history, size_t at, const char *pattern)
{
	for (size_t i = at + 1; i < history->n; i++) {
		if (!strcmp(item_at(history, i)->code, item_at(history, at)->code) && !fnmatch(pattern, item_at(history, i)->code, 0))
			return true;
	}
	return false;
}

/* A member that is a whole number, not below 0. */
static size_t number(const json_t *content, const char *name, size_t otherwise)
{
	const json_t *value = json_object_get(content, name);

	return json_is_integer(value) && json_integer_value(value) >= 0 ? (size_t)json_integer_value(value) : otherwise;
}

static json_t *describe(const struct cell_cli_past *past, bool with_output)
{
	return with_output ? json_pack("[i, i, [s, s?]]", 0, past->line, past->code, past->output)
			   : json_pack("[i, i, s]", 0, past->line, past->code);
}

json_t *cell__cli_history_find(const struct cell_cli_history *history, const json_t *content)
{
	const char *how = json_string_value(json_object_get(content, "hist_access_type"));
	const char *pattern = json_string_value(json_object_get(content, "pattern"));
	const json_t *session = json_object_get(content, "session");
	bool range = how && !strcmp(how, "range"), search = how && !strcmp(how, "search");
	bool unique = json_is_true(json_object_get(content, "unique")), output = json_is_true(json_object_get(content, "output"));
	size_t start = number(content, "start", 0), stop = number(content, "stop", SIZE_MAX), n = number(content, "n", SIZE_MAX);
	json_t *list = json_array();

	if (!pattern)
		pattern = "*";
	if (range && json_integer_value(session)) /* an earlier session: not kept */
		return list;
	for (size_t i = 0; list && i < history->n; i++) {
		const struct cell_cli_past *past = item_at(history, i);

		if (range && (past->line < start || past->line >= stop))
			continue;
		if (search && (fnmatch(pattern, past->code, 0) || (unique && is_repeated(history, i, pattern))))
			continue;
		if (json_array_append_new(list, describe(past, output)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	while (list && !range && json_array_size(list) > n)
		json_array_remove(list, 0);
	return list;
}
