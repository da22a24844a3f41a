/* Commands with several operations on a space: finding the operation, opening the space, calling, printing the answer. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/nearest.h"

/* ---- operations ------------------------------------------------------------ */

/* Of the last operation that failed; stays to the end. */
static char *last_message;

void cell__cli_keep_message(struct cell_answer *answer)
{
	free(last_message);
	last_message = answer->message;
	answer->message = NULL;
}

int cell__cli_call_raw(struct cell_space *space, const char *method, json_t *args, const void *raw, size_t raw_size, char **ret_text,
		       void **ret_raw, size_t *ret_raw_size, struct cell_error *err)
{
	char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
	struct cell_answer answer = CELL_ANSWER_INIT;
	int status;

	json_decref(args);
	if (!text)
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments of %s are not UTF-8", method);
	status = cell_space_call_ex(space, method, text, raw, raw_size, &answer, err);
	free(text);
	if (status < 0) {
		cell__cli_keep_message(&answer);
	} else if (ret_text) {
		*ret_text = answer.json;
		answer.json = NULL;
	}
	if (!status && ret_raw) {
		*ret_raw = answer.raw;
		*ret_raw_size = answer.raw_size;
		answer.raw = NULL;
	}
	cell_answer_finish(&answer);
	return status;
}

const char *cell__cli_whole_message(const struct cell_error *err)
{
	size_t size = strlen(err->msg);

	return size && last_message && !strncmp(last_message, err->msg, size) ? last_message : NULL;
}

int cell__cli_call(struct cell_space *space, const char *method, json_t *args, char **ret_text, json_t **ret_answer, struct cell_error *err)
{
	json_t *answer = NULL;
	json_error_t bad;
	char *text = NULL;

	if (cell__cli_call_raw(space, method, args, NULL, 0, &text, NULL, NULL, err) < 0)
		return -1;
	if (ret_answer) {
		answer = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &bad);
		if (!answer) {
			free(text);
			return cell_fail(err, CELL_E_PROTOCOL, 0, "the answer of %s is not JSON: %s", method, bad.text);
		}
		*ret_answer = answer;
	}
	if (ret_text)
		*ret_text = text;
	else
		free(text);
	return 0;
}

int cell__cli_answer(struct cell_space *space, const char *method, json_t *args, bool json,
		     int (*print)(const json_t *answer, struct cell_error *err), struct cell_error *err)
{
	json_t *answer;
	char *text;
	int status = 0;

	if (cell__cli_call(space, method, args, &text, &answer, err) < 0)
		return -1;
	if (json)
		cell__cli_line(text);
	else
		status = print(answer, err);
	json_decref(answer);
	free(text);
	return status;
}

int cell__cli_remove(struct cell_space *space, const struct cell_cli_list *operands, bool json,
		     int (*remove)(struct cell_space *space, const char *name, struct cell_error *err), struct cell_error *err)
{
	json_t *removed = json_array();
	int status = 0;

	for (size_t i = 1; i < operands->count && !status; i++) {
		status = remove(space, operands->items[i].value, err);
		if (!status)
			json_array_append_new(removed, json_string(operands->items[i].value));
	}
	if (!status && json)
		status = cell__cli_print_json(removed, err);
	json_decref(removed);
	return status;
}

/* ---- which operation ---------------------------------------------------------- */

struct open_space {
	struct cell_engine *engine;
	struct cell_space *space;
};

static int open_space(const struct cell_cli_job *job, bool writes, struct open_space *ret_space, struct cell_error *err)
{
	struct cell_cli_space_flags own = *job->space;
	const struct cell_cli_space_flags *flags = &own;
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct open_space space = { 0 };
	char *folder = NULL, *interpreter = NULL;
	int status = -1;

	own.reads = !writes;
	if (cell__cli_load_env_file(flags->env_file, err) < 0)
		return -1;
	if (job->needs_storage && !cell__cli_has_storage(flags))
		return cell_fail(err, CELL_E_INVALID, 0, "give --base DIR or --storage DIR");
	if (!job->needs_storage && !flags->tools && !flags->base && !flags->tools_from_storage)
		return cell_fail(err, CELL_E_INVALID, 0, "give --base DIR or --tools DIR");
	if (job->cwd && (!(folder = cell__cli_absolute(job->cwd, err)) || cell__cli_check_dir("--cwd", folder, err) < 0))
		goto out;
	if (job->installs && cell__cli_choose_python(job->python, flags->python_version, &interpreter, err) < 0)
		goto out;
	options.pool_size = 0;
	if (cell__cli_space_log(flags, NULL, &options, err) < 0)
		goto out;
	if (cell_engine_create(&options, &space.engine, err) < 0)
		goto out;
	if (cell__cli_space_create(flags, space.engine, interpreter, folder, &space.space, err) < 0) {
		cell_engine_destroy(space.engine);
		goto out;
	}
	*ret_space = space;
	status = 0;
out:
	free(folder);
	free(interpreter);
	return status;
}

#define MAX_VERBS 16

/* NULL: not found, or the number of operands is wrong; *err has the reason. */
static const struct cell_cli_verb *find_verb(const struct cell_cli_verb *verbs, const char *command, const struct cell_cli_list *operands,
					     struct cell_error *err)
{
	char known[200] = "";
	const char *words[MAX_VERBS + 1] = { NULL }, *near;
	const struct cell_cli_verb *verb = verbs;
	size_t n = operands->count, count = 0;

	while (n && verb->name && strcmp(verb->name, operands->items[0].value))
		verb++;
	if (!n || !verb->name) {
		for (verb = verbs; verb->name; verb++) {
			snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", *known ? ", " : "", verb->name);
			if (count < MAX_VERBS)
				words[count++] = verb->name;
		}
		near = n ? cell__nearest(operands->items[0].value, words) : NULL;
		cell_fail(err, CELL_E_INVALID, 0,
			  n ? "workcell %s has the subcommands %s, not '%s'%s%s%s" : "workcell %s needs a subcommand: %s%s%s%s%s", command,
			  known, n ? operands->items[0].value : "", near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
		return NULL;
	}
	if (n - 1 < verb->min || n - 1 > verb->max) {
		cell_fail(err, CELL_E_INVALID, 0, "usage: workcell %s %s %s", command, verb->name, verb->operands);
		return NULL;
	}
	return verb;
}

int cell__cli_do(const struct cell_cli_job *job, const struct cell_cli_list *operands)
{
	const struct cell_cli_verb *verb;
	struct open_space space = { 0 };
	struct cell_error err;
	int status = -1;

	verb = find_verb(job->verbs, job->command, operands, &err);
	if (verb && (!job->space || (job->alone && !strcmp(verb->name, job->alone)))) {
		status = verb->run(job->flags, NULL, operands, &err);
	} else if (verb && !open_space(job, verb->writes, &space, &err)) {
		status = verb->run(job->flags, space.space, operands, &err);
		cell_space_close(space.space);
		cell_engine_destroy(space.engine);
	}
	if (cell__cli_stop_status())
		return cell__cli_stop_status();
	return status < 0 ? cell__cli_report(&err, job->json) : status;
}
