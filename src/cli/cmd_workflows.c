/*
 * `workcell workflows`: Python functions kept in the storage, for the code of sessions and for the command line.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct workflows_flags {
	struct cell_cli_session_flags session;
	const char *args;
	const char *description, *recordings;
	int64_t limit;
	bool overwrite, json;
};

static const struct cell_cli_flag workflows_flag_table[] = {
	{ 0, "json", NULL, "print the answer as JSON on one line", CELL_FLAG_SWITCH, offsetof(struct workflows_flags, json) },
	{ 0, "args", "JSON", "run: the arguments as a JSON object; K=V override it", CELL_FLAG_STRING,
	  offsetof(struct workflows_flags, args) },
	{ 0, "description", "TEXT", "add: description (default: the docstring's first line)", CELL_FLAG_STRING,
	  offsetof(struct workflows_flags, description) },
	{ 0, "overwrite", NULL, "add: replace a workflow of this name", CELL_FLAG_SWITCH, offsetof(struct workflows_flags, overwrite) },
	{ 0, "limit", "N", "search: maximum number of results", CELL_FLAG_COUNT, offsetof(struct workflows_flags, limit) },
	{ 0, "recordings", "DIR", "test: folder with NAME.test.jsonl (default: that of the workflows)", CELL_FLAG_STRING,
	  offsetof(struct workflows_flags, recordings) },
	CELL_CLI_RECORD_FLAG(offsetof(struct workflows_flags, session), "FILE", "run: write a recording to this new file, for test"),
	CELL_CLI_SESSION_FLAGS(offsetof(struct workflows_flags, session)),
	{ 0 },
};

const struct cell_cli_command cell__cli_workflows_command = {
	.name = "workflows",
	.summary = "list, search, show, add, trust, run, test and remove workflows",
	.synopsis = "list | search QUERY | show|trust|rm|test NAME | add NAME FILE|- | run NAME [K=V]...",
	.about = "A workflow is a Python file with a function `run`, kept in the workflows/ of --storage DIR.\n\n"
		 "  list                 Lists the stored workflows\n"
		 "  search QUERY         Searches workflows by a description of the task, best match first\n"
		 "  show NAME            Returns a workflow with its source\n"
		 "  add NAME FILE|-      Stores a workflow, which code calls as workflows.NAME(...); nothing of it\n"
		 "                       is executed\n"
		 "  trust NAME...        Lets unconfined code use a workflow that confined code made; read it first\n"
		 "  run NAME [K=V]...    Calls a workflow in a session of its own; output and exit status as\n"
		 "                       `workcell run`.  V is read by the parameter's type: text as it is,\n"
		 "                       numbers and booleans as JSON, a list by repeating K\n"
		 "  test [NAME]...       Runs the recordings of workflows again with their present source, tools offline, and\n"
		 "                       compares: NAME.test.jsonl beside the workflow, made by run --record; 1: a difference\n"
		 "  rm NAME...           Deletes a workflow",
	.examples = "  workcell workflows list --base examples/base\n"
		    "  workcell workflows run word_count path=README.md --base examples/base\n"
		    "  workcell workflows add greet greet.py --description 'Says hello' --storage ./data\n"
		    "  workcell workflows search 'count words' --base examples/base --json",
	.flags = workflows_flag_table,
	.verbs = "list search show trust rm add run test",
	.run = cell__cmd_workflows,
};

/* ---- list, search, show --------------------------------------------------------- */

/* "path, n=10"; free() it. */
static char *parameters_text(const json_t *workflow)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const json_t *parameter;
	size_t i;

	json_array_foreach(json_object_get(workflow, "parameters"), i, parameter) {
		const json_t *value = json_object_get(parameter, "default");
		CELL_AUTO_FREE char *shown = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
		bool required = json_is_true(json_object_get(parameter, "required"));

		if (cell__buf_printf(&text, "%s%s%s%s", i ? ", " : "", cell__cli_text(parameter, "name"), required ? "" : "=",
				     !required && shown ? shown : "") < 0)
			return NULL;
	}
	return cell__buf_take(&text);
}

static int print_workflows(const json_t *workflows, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 2 };
	const json_t *workflow;
	size_t i;

	json_array_foreach(workflows, i, workflow) {
		char *parameters = parameters_text(workflow), *call;

		if (!parameters || asprintf(&call, "%s(%s)", cell__cli_text(workflow, "name"), parameters) < 0) {
			free(parameters);
			table.failed = true;
			break;
		}
		cell__cli_table_add(&table, (const char *[]){ call, cell__cli_text(workflow, "description") });
		free(call);
		free(parameters);
	}
	return cell__cli_table_print(&table, err);
}

static int run_list(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct workflows_flags *flags = values;

	(void)operands;
	return cell__cli_answer(space, "workflows.list", json_object(), flags->json, print_workflows, err);
}

static int run_search(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct workflows_flags *flags = values;

	return cell__cli_answer(space, "workflows.search",
				json_pack("{s:s, s:I}", "query", operands->items[1].value, "limit", (json_int_t)flags->limit), flags->json,
				print_workflows, err);
}

/* ret_text may be NULL. */
static int get_workflow(struct cell_space *space, const char *name, char **ret_text, json_t **ret_workflow, struct cell_error *err)
{
	json_t *workflow;
	char *text;

	if (cell__cli_call(space, "workflows.get", json_pack("{s:s}", "name", name), &text, &workflow, err) < 0)
		return -1;
	if (!json_is_object(workflow)) {
		json_decref(workflow);
		free(text);
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no workflow '%s'", name);
	}
	*ret_workflow = workflow;
	if (ret_text)
		*ret_text = text;
	else
		free(text);
	return 0;
}

static int run_show(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct workflows_flags *flags = values;
	const json_t *source;
	json_t *workflow;
	char *text;

	if (get_workflow(space, operands->items[1].value, &text, &workflow, err) < 0)
		return -1;
	source = json_object_get(workflow, "source");
	if (flags->json)
		cell__cli_line(text);
	else
		cell__cli_show(json_string_value(source), json_string_length(source));
	json_decref(workflow);
	free(text);
	return 0;
}

/* ---- add, rm ---------------------------------------------------------------------- */

static int run_add(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct workflows_flags *flags = values;
	const char *name = operands->items[1].value;
	json_t *args, *source;
	char *text;
	size_t size;

	if (cell__cli_read_file(operands->items[2].value, &text, &size, err) < 0)
		return -1;
	source = json_stringn(text, size);
	free(text);
	if (!source)
		return cell_fail(err, CELL_E_INVALID, 0, "%s is not UTF-8", operands->items[2].value);
	args = json_pack("{s:s, s:o, s:b}", "name", name, "source", source, "overwrite", flags->overwrite);
	if (args && flags->description)
		json_object_set_new(args, "description", json_string(flags->description));
	if (cell__cli_call(space, "workflows.create", args, &text, NULL, err) < 0)
		return -1;
	if (flags->json)
		cell__cli_line(text);
	free(text);
	return 0;
}

/* Keeps it again, as this person's: that removes the mark of confined code. */
static int run_trust(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	(void)values;
	for (size_t i = 1; i < operands->count; i++) {
		json_t *workflow, *args;

		if (get_workflow(space, operands->items[i].value, NULL, &workflow, err) < 0)
			return -1;
		args = json_pack("{s:O, s:O, s:O?, s:b}", "name", json_object_get(workflow, "name"), "source",
				 json_object_get(workflow, "source"), "description", json_object_get(workflow, "description"), "overwrite",
				 1);
		json_decref(workflow);
		if (cell__cli_call(space, "workflows.create", args, NULL, NULL, err) < 0)
			return -1;
	}
	return 0;
}

static int remove_workflow(struct cell_space *space, const char *name, struct cell_error *err)
{
	json_t *removed;
	int status = 0;

	if (cell__cli_call(space, "workflows.delete", json_pack("{s:s}", "name", name), NULL, &removed, err) < 0)
		return -1;
	if (json_is_false(removed))
		status = cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no workflow '%s'", name);
	json_decref(removed);
	return status;
}

static int run_rm(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct workflows_flags *flags = values;

	return cell__cli_remove(space, operands, flags->json, remove_workflow, err);
}

/* ---- run --------------------------------------------------------------------------- */

/* workflows.NAME(**json.loads("...")): JSON within a JSON string is a Python string too; free() it. */
static char *call_code(const char *name, const json_t *args)
{
	char *inner = json_dumps(args, JSON_COMPACT | JSON_ENSURE_ASCII), *outer = NULL, *code = NULL;
	json_t *text = inner ? json_string(inner) : NULL;

	if (text)
		outer = json_dumps(text, JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
	if (outer && asprintf(&code, "workflows.%s(**__import__('json').loads(%s))", name, outer) < 0)
		code = NULL;
	json_decref(text);
	free(inner);
	free(outer);
	return code;
}

static bool is_name(const char *text)
{
	if (!isalpha((unsigned char)*text) && *text != '_')
		return false;
	while (isalnum((unsigned char)*text) || *text == '_')
		text++;
	return !*text;
}

static int run_in(const struct workflows_flags *flags, const struct cell_cli_list *operands, struct cell_cli_host *host,
		  struct cell_cli_printer *printer, struct cell_error *err)
{
	const char *name = operands->items[1].value;
	json_t *workflow, *args;
	int status;
	char *code;

	if (get_workflow(host->space, name, NULL, &workflow, err) < 0)
		return -1;
	status = cell__cli_arguments(flags->args, operands, 2, json_object_get(workflow, "parameters"), &args, err);
	json_decref(workflow);
	if (status < 0)
		return -1;
	code = call_code(name, args);
	json_decref(args);
	if (!code)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the call");
	if (cell__cli_run_begin() && cell__cli_run_cell(host, printer, code, strlen(code), 0, false, NULL, &status, err) < 0)
		status = -1;
	cell__cli_print_kept(printer);
	free(code);
	return status == CELL_CLI_EXITED ? 0 : status;
}

static int run_run(const void *values, struct cell_space *none, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct workflows_flags *flags = values;
	struct cell_cli_printer *printer;
	struct cell_cli_host host;
	int status = -1;

	(void)none;
	if (!is_name(operands->items[1].value))
		return cell_fail(err, CELL_E_INVALID, 0, "'%s' is not a valid workflow name", operands->items[1].value);
	if (!cell__cli_has_storage(&flags->session.space))
		return cell_fail(err, CELL_E_INVALID, 0, "give --base DIR or --storage DIR");
	if (cell__cli_signals_start(false, NULL, NULL, err) < 0)
		return -1;
	printer = cell__cli_printer_create(flags->json ? CELL_CLI_JSON : CELL_CLI_TEXT, NULL, NULL);
	if (!printer)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for printing");
	if (!cell__cli_open(&flags->session, !flags->json, cell__cli_keep_event, printer, &host, err)) {
		if (!cell__cli_printer_ask(printer, &host, false, err))
			status = run_in(flags, operands, &host, printer, err);
		cell__cli_close(&host);
	}
	cell__cli_printer_destroy(printer);
	return status;
}

/* ---- test ------------------------------------------------------------------------------ */

/* DIR/NAME.test.jsonl; free() it. */
static char *recording_of(const char *dir, const char *name)
{
	char *path = NULL;

	return asprintf(&path, "%s/%s.test.jsonl", dir, name) < 0 ? NULL : path;
}

/* 0: the same, or it has no recording and is not asked for by name (*ret_tested is false); 1: a difference; -1: a failure. */
static int test_one(const struct workflows_flags *flags, struct cell_cli_host *host, struct cell_session_options *options, const char *dir,
		    const char *name, bool by_name, bool *ret_tested, struct cell_error *err)
{
	char *file = recording_of(dir, name);
	json_t *workflow = NULL;
	int status = 0;

	*ret_tested = file && (by_name || access(file, F_OK) == 0);
	if (*ret_tested && access(file, F_OK))
		status = cell_fail(err, CELL_E_NOT_FOUND, 0,
				   "the workflow '%.60s' has no test: make it with `workcell workflows run %.60s --record %.120s`", name,
				   name, file);
	if (!status && *ret_tested)
		status = get_workflow(host->space, name, NULL, &workflow, err);
	if (!status && *ret_tested)
		status = cell__cli_replay_workflow(host->engine, options, file, name, cell__cli_text(workflow, "source"), flags->json, err);
	json_decref(workflow);
	free(file);
	return status;
}

static int test_in(const struct workflows_flags *flags, const struct cell_cli_list *operands, struct cell_cli_host *host,
		   struct cell_session_options *options, struct cell_error *err)
{
	const struct cell_cli_space_flags *space = &flags->session.space;
	const char *dir = flags->recordings, *storage = space->storage ? space->storage : space->base;
	json_t *all = NULL, *each;
	char *made = NULL;
	int status = 0, failed = 0;
	bool tested;
	size_t i, n = 0;

	if (!dir && (space->redis || !storage || strstr(storage, "://")))
		return cell_fail(err, CELL_E_INVALID, 0, "give --recordings DIR, the folder with NAME.test.jsonl of the workflows");
	if (!dir && space->workspace)
		status = asprintf(&made, "%s/workspaces/%s/workflows", storage, space->workspace) < 0;
	else if (!dir)
		status = asprintf(&made, "%s/workflows", storage) < 0;
	if (status)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	dir = dir ? dir : made;
	for (i = 1; i < operands->count && status >= 0; i++) {
		status = test_one(flags, host, options, dir, operands->items[i].value, true, &tested, err);
		failed |= status > 0;
	}
	if (operands->count == 1)
		status = cell__cli_call(host->space, "workflows.list", json_object(), NULL, &all, err);
	json_array_foreach(all, i, each) {
		if (status >= 0)
			status = test_one(flags, host, options, dir, cell__cli_text(each, "name"), false, &tested, err);
		failed |= status > 0;
		n += tested;
	}
	if (operands->count == 1 && status >= 0 && n == 0)
		status = cell_fail(err, CELL_E_NOT_FOUND, 0, "no workflow has a test: %.150s/NAME.test.jsonl", dir);
	json_decref(all);
	free(made);
	return status < 0 ? -1 : failed;
}

static int run_test(const void *values, struct cell_space *none, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct workflows_flags *flags = values;
	struct cell_cli_session_options all;
	struct cell_cli_host host;
	int status;

	(void)none;
	if (cell__cli_check_executor(&flags->session, flags->session.executor, err) < 0 ||
	    cell__cli_open_host(&flags->session, true, &host, &all, err) < 0)
		return -1;
	all.options.space = NULL;
	all.options.policy = NULL;
	status = test_in(flags, operands, &host, &all.options, err);
	cell__cli_options_finish(&all);
	cell__cli_close(&host);
	return status;
}

/* ---- the command -------------------------------------------------------------------- */

static const struct cell_cli_verb verbs[] = {
	{ "list", "", 0, 0, false, run_list },
	{ "search", "QUERY [--limit N]", 1, 1, false, run_search },
	{ "show", "NAME", 1, 1, false, run_show },
	{ "add", "NAME FILE|- [--description TEXT] [--overwrite]", 2, 2, true, run_add },
	{ "trust", "NAME...", 1, SIZE_MAX, false, run_trust },
	{ "run", "NAME [K=V]... [--args JSON]", 1, SIZE_MAX, false, run_run },
	{ "test", "[NAME]... [--recordings DIR]", 0, SIZE_MAX, false, run_test },
	{ "rm", "NAME...", 1, SIZE_MAX, false, run_rm },
	{ 0 },
};

int cell__cmd_workflows(int argc, char **argv)
{
	struct workflows_flags flags = { .session = CELL_CLI_SESSION_FLAGS_INIT(0), .limit = 5 };
	struct cell_cli_list operands = { 0 };
	int status;

	if (cell__cli_parse(&cell__cli_workflows_command, argc, argv, &flags, &operands, &status))
		status = cell__cli_do(
			&(struct cell_cli_job){ .command = "workflows",
						.verbs = verbs,
						.flags = &flags,
						.space = &flags.session.space,
						.alone = operands.count && !strcmp(operands.items[0].value, "test") ? "test" : "run",
						.needs_storage = true,
						.json = flags.json },
			&operands);
	cell__cli_list_finish(&operands);
	cell__cli_list_finish(&flags.session.env);
	return status;
}
