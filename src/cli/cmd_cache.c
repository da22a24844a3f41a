/* `workcell cache`: the environments that were made for packages, and their removal. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/words.h"

struct cache_flags {
	bool json, all, dry_run;
	int64_t older_ms;
	const char *project;
	struct cell_cli_list operands;
};

#define AT(member) offsetof(struct cache_flags, member)
#define DAY_SECONDS 86400

static const struct cell_cli_flag flags[] = {
	{ 0, "json", NULL, "print JSON", CELL_FLAG_SWITCH, AT(json) },
	{ 0, "older-than", "DAYS", "prune: also what was not changed for this many days", CELL_FLAG_SECONDS, AT(older_ms) },
	{ 0, "project", "DIR", "prune: also the environments of this storage", CELL_FLAG_STRING, AT(project) },
	{ 0, "all", NULL, "prune: everything", CELL_FLAG_SWITCH, AT(all) },
	{ 0, "dry-run", NULL, "prune: list what would be removed", CELL_FLAG_SWITCH, AT(dry_run) },
	{ 0 },
};

const struct cell_cli_command cell__cli_cache_command = {
	.name = "cache",
	.summary = "list and remove the environments that packages were installed into",
	.synopsis = "list | prune [--older-than DAYS] [--project DIR] [--all] [--dry-run]",
	.about = "Packages of a storage are installed into an environment under the user's cache ($XDG_CACHE_HOME/workcell).\n\n"
		 "  list    the environments, the storage that each belongs to, their size and last change\n"
		 "  prune   removes those whose storage no longer exists, and those that the flags select\n\n"
		 "An environment that is needed again is made again, by `workcell deps sync` or the next session with\n"
		 "--sync-deps. A session that runs meanwhile cannot import packages of a removed environment any more; one\n"
		 "where an installer is working is left alone.",
	.examples = "  workcell cache list\n"
		    "  workcell cache prune --dry-run\n"
		    "  workcell cache prune --older-than 30",
	.flags = flags,
	.verbs = "list prune",
	.run = cell__cmd_cache,
};

static json_int_t number_of(const json_t *entry, const char *key)
{
	return json_integer_value(json_object_get(entry, key));
}

static void add_row(struct cell_cli_table *table, const json_t *entry)
{
	const char *project = json_string_value(json_object_get(entry, "project"));
	bool orphan = json_is_true(json_object_get(entry, "orphan"));
	char size[32], age[32], *name = NULL;

	cell__size_words((uint64_t)number_of(entry, "bytes"), size);
	cell__age_words((int64_t)time(NULL) - number_of(entry, "changed"), age);
	if (asprintf(&name, "%s%s", project ? project : "(not noted)", orphan ? " (gone)" : "") < 0) {
		table->failed = true;
		return;
	}
	cell__cli_table_add(table, (const char *[]){ cell__cli_text(entry, "id"), size, age, name });
	free(name);
}

static int list_all(const struct cache_flags *values, const json_t *all, const char *text, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 4 };
	uint64_t bytes = 0;
	json_t *entry;
	char size[32];
	size_t i;

	if (values->json) {
		cell__cli_line(text);
		return 0;
	}
	json_array_foreach(all, i, entry) {
		bytes += (uint64_t)number_of(entry, "bytes");
		add_row(&table, entry);
	}
	cell__size_words(bytes, size);
	if (cell__cli_table_print(&table, err) < 0)
		return -1;
	printf("%zu environment%s, %s\n", json_array_size(all), json_array_size(all) == 1 ? "" : "s", size);
	return 0;
}

/* A storage is noted by its real path; one that is gone by the path it had. */
static char *real_path(const char *path, struct cell_error *err)
{
	char *real = realpath(path, NULL);

	return real ? real : cell__cli_absolute(path, err);
}

static bool is_chosen(const struct cache_flags *values, const char *project, const json_t *entry)
{
	const char *owner = json_string_value(json_object_get(entry, "project"));

	if (values->all || json_is_true(json_object_get(entry, "orphan")) || (project && owner && !strcmp(project, owner)))
		return true;
	/* The flag's number is days, which the parser took for seconds. */
	return values->older_ms > 0 && time(NULL) - number_of(entry, "changed") > values->older_ms / 1000 * DAY_SECONDS;
}

static int prune(const struct cache_flags *values, const char *cache, const json_t *all, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 4 };
	char *project = values->project ? real_path(values->project, err) : NULL, size[32];
	json_t *entry, *removed = json_array();
	uint64_t bytes = 0;
	int status = values->project && !project ? -1 : 0;
	size_t i;

	json_array_foreach(all, i, entry) {
		if (status || !is_chosen(values, project, entry))
			continue;
		if (!values->dry_run && cell_cache_remove(cache, cell__cli_text(entry, "id"), err) < 0) {
			if (err->code == CELL_E_BUSY || err->code == CELL_E_NOT_FOUND)
				cell__cli_note(err->msg);
			else
				status = -1;
			continue;
		}
		bytes += (uint64_t)number_of(entry, "bytes");
		json_array_append(removed, entry);
		if (!values->json)
			add_row(&table, entry);
	}
	free(project);
	cell__size_words(bytes, size);
	if (!status && values->json)
		status = cell__cli_print_json(removed, err);
	else if (cell__cli_table_print(&table, err) < 0)
		status = -1;
	if (!status && !values->json)
		printf("%s %zu environment%s, %s\n", values->dry_run ? "would remove" : "removed", json_array_size(removed),
		       json_array_size(removed) == 1 ? "" : "s", size);
	json_decref(removed);
	return status;
}

int cell__cmd_cache(int argc, char **argv)
{
	struct cache_flags values = { .older_ms = CELL_CLI_NOT_GIVEN };
	struct cell_error err;
	const char *verb;
	char *cache = NULL, *text = NULL;
	json_t *all = NULL;
	int status;

	if (!cell__cli_parse(&cell__cli_cache_command, argc, argv, &values, &values.operands, &status))
		goto out;
	status = -1;
	verb = values.operands.count ? values.operands.items[0].value : "";
	cache = cell__cli_cache_dir();
	if (values.operands.count != 1 || (strcmp(verb, "list") && strcmp(verb, "prune")))
		cell_fail(&err, CELL_E_INVALID, 0, "usage: workcell cache list|prune");
	else if (!cache)
		cell_fail(&err, CELL_E_INVALID, 0, "the cache has no folder: neither XDG_CACHE_HOME nor HOME is an absolute path");
	else if (!cell_cache_list(cache, &text, &err)) {
		all = json_loads(text, 0, NULL);
		status = !strcmp(verb, "list") ? list_all(&values, all, text, &err) : prune(&values, cache, all, &err);
	}
	if (status < 0)
		status = cell__cli_report(&err, values.json);
out:
	json_decref(all);
	free(text);
	free(cache);
	cell__cli_list_finish(&values.operands);
	return status;
}
