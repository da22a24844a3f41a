/*
 * `workcell deps`: the packages that the code of a storage's sessions can import.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"

struct deps_flags {
	struct cell_cli_space_flags space;
	const char *python;
	bool json;
};

static const struct cell_cli_flag deps_flag_table[] = {
	{ 0, "json", NULL, "print the answer as JSON, one line per package", CELL_FLAG_SWITCH, offsetof(struct deps_flags, json) },
	{ 0, "quiet", NULL, "do not show the output of pip or uv", CELL_FLAG_SWITCH, offsetof(struct deps_flags, space.quiet) },
	{ 0, "python", "PATH", "install for this interpreter (default python3)", CELL_FLAG_STRING, offsetof(struct deps_flags, python) },
	CELL_CLI_SPACE_FLAGS(offsetof(struct deps_flags, space)),
	CELL_CLI_DEPS_FLAGS(offsetof(struct deps_flags, space)),
	{ 0 },
};

const struct cell_cli_command cell__cli_deps_command = {
	.name = "deps",
	.summary = "list, add, remove and install packages",
	.synopsis = "list | add SPEC... | rm NAME... | sync",
	.about = "Packages are listed in the requirements.txt of --storage DIR and installed into an environment\n"
		 "of their own under the user's cache, from where sessions with this storage import them.\n\n"
		 "  list          Lists the configured packages\n"
		 "  add SPEC...   Installs packages and adds them to the configuration: requests, 'pandas>=2,<3',\n"
		 "                'uvicorn[standard]'. All of them are resolved together, and added or refused together\n"
		 "  rm NAME...    Removes a package from the configuration and the environment\n"
		 "  sync          Installs the configured packages that are missing",
	.examples = "  workcell deps add 'pandas>=2' --base ./data\n"
		    "  workcell deps add mypackage --wheel-dir ./wheels --base ./data\n"
		    "  workcell deps list --base ./data\n"
		    "  workcell deps sync --base ./data --python ./venv/bin/python",
	.flags = deps_flag_table,
	.verbs = "list add rm sync",
	.run = cell__cmd_deps,
};

static int print_specs(const json_t *specs, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 1 };
	const json_t *spec;
	size_t i;

	json_array_foreach(specs, i, spec) {
		if (json_is_string(spec))
			cell__cli_table_add(&table, (const char *[]){ json_string_value(spec) });
	}
	return cell__cli_table_print(&table, err);
}

static int run_list(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct deps_flags *flags = values;

	(void)operands;
	return cell__cli_answer(space, "deps.list", json_object(), flags->json, print_specs, err);
}

/* Remarks beside the table: why a package could not be installed, and ignored lines of requirements.txt. */
static void print_remarks(const json_t *answer)
{
	const json_t *problem, *words;
	const char *spec;
	char *line;
	size_t i;

	json_object_foreach(json_object_get(answer, "errors"), spec, words) {
		for (const char *at = json_string_value(words); at && *at; at += strcspn(at, "\n"), at += *at == '\n')
			cell__cli_note(at);
	}
	json_array_foreach(json_object_get(answer, "problems"), i, problem) {
		if (asprintf(&line, "%s:%" JSON_INTEGER_FORMAT ": %s", cell__cli_text(problem, "file"),
			     json_integer_value(json_object_get(problem, "line")), cell__cli_text(problem, "message")) < 0)
			return;
		cell__cli_note(line);
		free(line);
	}
}

/* {"installed": [...], "already_present": [...], "failed": [...]}: a line for each that is not empty. */
static int print_synced(const json_t *answer, struct cell_error *err)
{
	static const char *const keys[] = { "installed", "already_present", "failed" };
	static const char *const words[] = { "installed", "already there", "failed" };
	struct cell_cli_table table = { .columns = 2 };
	const json_t *spec;
	size_t i;

	for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
		json_array_foreach(json_object_get(answer, keys[k]), i, spec)
			cell__cli_table_add(&table, (const char *[]){ words[k], json_is_string(spec) ? json_string_value(spec) : "" });
	}
	return cell__cli_table_print(&table, err);
}

static int sync_answer(const struct deps_flags *flags, struct cell_space *space, const char *method, json_t *args, struct cell_error *err)
{
	json_t *answer;
	char *text;
	int status = 0;

	if (!flags->json && !flags->space.quiet)
		cell__progress_begin("installing packages");
	status = cell__cli_call(space, method, args, &text, &answer, err);
	cell__progress_end();
	if (status < 0)
		return -1;
	if (flags->json)
		cell__cli_line(text);
	else
		status = print_synced(answer, err);
	if (!flags->json)
		print_remarks(answer);
	if (!status && json_array_size(json_object_get(answer, "failed")))
		status = cell_fail(err, CELL_E_INSTALL, 0, "not everything could be installed");
	json_decref(answer);
	free(text);
	return status;
}

static int run_add(const void *flags, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	json_t *packages = json_array();

	for (size_t i = 1; i < operands->count; i++)
		json_array_append_new(packages, json_string(operands->items[i].value));
	return sync_answer(flags, space, "deps.add", json_pack("{s:o}", "package", packages), err);
}

static int run_rm(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct deps_flags *flags = values;
	json_t *answer;
	char *text;
	int status = 0;

	for (size_t i = 1; i < operands->count && !status; i++) {
		const char *name = operands->items[i].value;

		status = cell__cli_call(space, "deps.remove", json_pack("{s:s}", "package", name), &text, &answer, err);
		if (status < 0)
			break;
		if (json_is_false(answer))
			status = cell_fail(err, CELL_E_NOT_FOUND, 0, "'%s' is not configured", name);
		else if (flags->json)
			cell__cli_line(text);
		json_decref(answer);
		free(text);
	}
	return status;
}

static int run_sync(const void *flags, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	(void)operands;
	return sync_answer(flags, space, "deps.sync", json_object(), err);
}

static const struct cell_cli_verb verbs[] = {
	{ "list", "", 0, 0, false, run_list },
	{ "add", "SPEC...", 1, SIZE_MAX, true, run_add },
	{ "rm", "NAME...", 1, SIZE_MAX, true, run_rm },
	{ "sync", "", 0, 0, true, run_sync },
	{ 0 },
};

int cell__cmd_deps(int argc, char **argv)
{
	struct deps_flags flags = { .space = CELL_CLI_SPACE_FLAGS_INIT };
	struct cell_cli_list operands = { 0 };
	int status;

	if (cell__cli_parse(&cell__cli_deps_command, argc, argv, &flags, &operands, &status))
		status = cell__cli_do(&(struct cell_cli_job){ .command = "deps",
							      .verbs = verbs,
							      .flags = &flags,
							      .space = &flags.space,
							      .installs = true,
							      .python = flags.python,
							      .needs_storage = true,
							      .json = flags.json },
				      &operands);
	cell__cli_list_finish(&operands);
	return status;
}
