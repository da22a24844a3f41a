/*
 * `workcell batch`: many cells, each in a fork of one session's state, a few at a time (cell_session_map()).
 *
 * The input is read before anything starts: a wrong line should not cost half a batch.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct batch_flags {
	struct cell_cli_session_flags session;
	struct cell_cli_list cells; /* -e, and the input */
	int64_t concurrency, memory_bytes, output_bytes;
	bool drop;
};

static const struct cell_cli_flag batch_flag_table[] = {
	{ 'e', NULL, "CODE", "run this in the session first: all runs begin from its state; may be repeated", CELL_FLAG_LIST,
	  offsetof(struct batch_flags, cells) },
	{ 'c', "concurrency", "N", "runs at once", CELL_FLAG_COUNT, offsetof(struct batch_flags, concurrency) },
	{ 0, "run-memory", "BYTES", "what each process of a run may allocate, as 512M; 0: the session's limit", CELL_FLAG_BYTES,
	  offsetof(struct batch_flags, memory_bytes) },
	{ 0, "run-output", "BYTES", "output that a result has; 0: the session's limit", CELL_FLAG_BYTES,
	  offsetof(struct batch_flags, output_bytes) },
	{ 0, "drop", NULL, "forks go without threads, child processes and connections of the state", CELL_FLAG_SWITCH,
	  offsetof(struct batch_flags, drop) },
	CELL_CLI_SESSION_FLAGS(offsetof(struct batch_flags, session)),
	{ 0 },
};

const struct cell_cli_command cell__cli_batch_command = {
	.name = "batch",
	.summary = "run many cells, each in a fork of one session",
	.synopsis = "[flags] [-e CODE]... FILE|-",
	.about =
		"FILE has a line of JSON for each run: its code as a string, or an object {\"code\", \"timeout\", \"memory\", \"max_output\"}.\n"
		"Prints a line {\"index\", \"result\"} for each as it ends, or {\"index\", \"error\"} if it could not be run; results\n"
		"are those of `workcell run --json`.  --timeout is the limit of each run that has none of its own.  A run that hangs\n"
		"or crashes occupies one of the --concurrency places and delays no other.\n\n"
		"exit status: 0 all succeeded, 1 some failed, 2 usage, 125 Workcell itself failed.",
	.examples = "  printf '\"x + 1\"\\n{\"code\": \"x + 2\", \"timeout\": 5}\\n' | workcell batch -e 'x = 40' -\n"
		    "  workcell batch --executor sandbox -c 4 --run-memory 256M -e 'import numpy' tests.jsonl",
	.flags = batch_flag_table,
	.run = cell__cmd_batch,
};

struct batch {
	json_t *runs; /* objects */
	const char **codes;
	int64_t *timeouts_ms, *memories, *outputs;
};

static void batch_finish(struct batch *batch)
{
	json_decref(batch->runs);
	free(batch->codes);
	free(batch->timeouts_ms);
	free(batch->memories);
	free(batch->outputs);
}

static int check_run(const json_t *run, size_t line, struct cell_error *err)
{
	const json_t *code = json_object_get(run, "code"), *timeout = json_object_get(run, "timeout"), *value;
	const char *name;

	if (!json_is_string(code) || strlen(json_string_value(code)) != json_string_length(code))
		return cell_fail(err, CELL_E_INVALID, 0, "line %zu: expected code as a string, or an object with code", line);
	if (timeout && (!json_is_number(timeout) || !(json_number_value(timeout) > 0) || json_number_value(timeout) > 1e9))
		return cell_fail(err, CELL_E_INVALID, 0, "line %zu: timeout must be a number of seconds greater than 0", line);
	json_object_foreach((json_t *)run, name, value) {
		bool is_limit = !strcmp(name, "memory") || !strcmp(name, "max_output");

		if (is_limit && (!json_is_integer(value) || json_integer_value(value) < 0))
			return cell_fail(err, CELL_E_INVALID, 0, "line %zu: %s must be a number of bytes", line, name);
		if (!is_limit && strcmp(name, "code") && strcmp(name, "timeout"))
			return cell_fail(err, CELL_E_INVALID, 0, "line %zu: unknown member %.40s", line, name);
	}
	return 0;
}

static int read_runs(const char *text, size_t size, json_t *runs, struct cell_error *err)
{
	const char *at = text, *end = text + size;

	for (size_t line = 1; at < end; line++) {
		const char *stop = memchr(at, '\n', (size_t)(end - at));
		size_t n = (size_t)((stop ? stop : end) - at);
		json_error_t why;
		json_t *run = NULL;

		if (strspn(at, " \t\r") < n) {
			run = json_loadb(at, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
			if (!run)
				return cell_fail(err, CELL_E_INVALID, 0, "line %zu is not JSON: %.80s", line, why.text);
			if (json_is_string(run))
				run = json_pack("{s:o}", "code", run);
			json_array_append_new(runs, run);
			if (check_run(run, line, err) < 0)
				return -1;
			if (json_array_size(runs) > CELL_LIMIT_BATCH)
				return cell_fail(err, CELL_E_LIMIT, 0, "a batch has at most %d runs", CELL_LIMIT_BATCH);
		}
		at += n + 1;
	}
	return json_array_size(runs) ? 0 : cell_fail(err, CELL_E_INVALID, 0, "the input has no runs");
}

static int fill_batch(struct batch *batch, int64_t timeout_ms, struct cell_error *err)
{
	size_t n = json_array_size(batch->runs);

	batch->codes = calloc(n, sizeof(*batch->codes));
	batch->timeouts_ms = calloc(n, sizeof(*batch->timeouts_ms));
	batch->memories = calloc(n, sizeof(*batch->memories));
	batch->outputs = calloc(n, sizeof(*batch->outputs));
	if (!batch->codes || !batch->timeouts_ms || !batch->memories || !batch->outputs)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the batch");
	for (size_t i = 0; i < n; i++) {
		const json_t *run = json_array_get(batch->runs, i), *timeout = json_object_get(run, "timeout");

		batch->codes[i] = json_string_value(json_object_get(run, "code"));
		batch->timeouts_ms[i] = timeout ? (int64_t)ceil(json_number_value(timeout) * 1000) : timeout_ms;
		batch->memories[i] = json_integer_value(json_object_get(run, "memory"));
		batch->outputs[i] = json_integer_value(json_object_get(run, "max_output"));
	}
	return 0;
}

static int print_result(size_t i, struct cell_result *result, const struct cell_error *failure, struct cell_error *err)
{
	CELL_AUTO_FREE char *text = result ? cell_result_json(result) : NULL, *line = NULL;
	json_t *object = text      ? NULL
			 : failure ? json_pack("{s:{s:s,s:s}}", "error", "code", cell_code_word(failure->code), "message", failure->msg)
				   : NULL;
	CELL_AUTO_FREE char *words = object ? json_dumps(object, JSON_COMPACT) : NULL;

	json_decref(object);
	if (text && asprintf(&line, "{\"index\":%zu,\"result\":%s}\n", i, text) < 0)
		line = NULL;
	else if (words && asprintf(&line, "{\"index\":%zu,%s\n", i, words + 1) < 0)
		line = NULL;
	if (!line)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a result");
	cell__cli_write(STDOUT_FILENO, line, strlen(line));
	return 0;
}

/* 0: all succeeded; 1: some failed. */
static int take_results(struct cell_batch *running, size_t n, struct cell_error *err)
{
	int status = 0;

	for (size_t left = n; left && !cell__cli_stop_status(); left--) {
		struct cell_result *result = NULL;
		struct cell_error failure = { 0 };
		size_t i = SIZE_MAX;
		int rc = cell_batch_next(running, &i, &result, &failure);

		if (rc == 0)
			break;
		if (rc < 0 && i == SIZE_MAX) {
			*err = failure;
			return -1;
		}
		if (rc < 0 || cell_result_error(result))
			status = 1;
		rc = print_result(i, result, &failure, err);
		cell_result_destroy(result);
		if (rc < 0)
			return -1;
	}
	return status;
}

static int prepare(struct cell_session *session, const struct cell_cli_list *cells, struct cell_error *err)
{
	for (size_t i = 0; i < cells->count; i++) {
		struct cell_result *result;
		const struct cell_outcome *failure;
		int status = 0;

		if (cells->items[i].letter != 'e')
			continue;
		if (cell_session_run(session, cells->items[i].value, strlen(cells->items[i].value), NULL, &result, err) < 0)
			return -1;
		failure = cell_result_error(result);
		if (failure)
			status = cell_fail(err, CELL_E_INVALID, 0, "the cell of -e failed: %.60s: %.120s", failure->type, failure->message);
		cell_result_destroy(result);
		if (status < 0)
			return -1;
	}
	return 0;
}

static int run(const struct batch_flags *flags, const struct batch *batch, struct cell_error *err)
{
	struct cell_batch_options options = CELL_BATCH_OPTIONS_INIT;
	struct cell_batch *running = NULL;
	struct cell_cli_host host;
	int status;

	if (cell__cli_signals_start(false, NULL, NULL, err) < 0 || cell__cli_open(&flags->session, false, NULL, NULL, &host, err) < 0)
		return -1;
	options.codes = batch->codes;
	options.n = json_array_size(batch->runs);
	options.concurrency = (size_t)flags->concurrency;
	options.timeouts_ms = batch->timeouts_ms;
	options.drop = flags->drop;
	options.memory_bytes = flags->memory_bytes;
	options.max_output_bytes = flags->output_bytes;
	options.memories_bytes = batch->memories;
	options.max_outputs_bytes = batch->outputs;
	status = prepare(host.session, &flags->cells, err);
	if (!status)
		status = cell_session_map(host.session, &options, &running, err);
	if (!status)
		status = take_results(running, options.n, err);
	cell_batch_destroy(running);
	cell__cli_close(&host);
	return status;
}

int cell__cmd_batch(int argc, char **argv)
{
	struct batch_flags flags = { .session = CELL_CLI_SESSION_FLAGS_INIT(0), .concurrency = 8 };
	struct batch batch = { 0 };
	const char *input = NULL;
	CELL_AUTO_FREE char *text = NULL;
	struct cell_error err;
	size_t size = 0, inputs = 0;
	int status;

	if (!cell__cli_parse(&cell__cli_batch_command, argc, argv, &flags, &flags.cells, &status))
		goto out;
	for (size_t i = 0; i < flags.cells.count; i++)
		if (!flags.cells.items[i].letter) {
			input = flags.cells.items[i].value;
			inputs++;
		}
	batch.runs = json_array();
	if (inputs != 1)
		status = cell_fail(&err, CELL_E_INVALID, 0, "give one FILE with the runs, or - for stdin");
	else
		status = cell__cli_read_file(input, &text, &size, &err);
	if (!status)
		status = read_runs(text, size, batch.runs, &err);
	if (!status)
		status = fill_batch(&batch, flags.session.timeout_ms, &err);
	if (!status)
		status = run(&flags, &batch, &err);
	if (cell__cli_stop_status())
		status = cell__cli_stop_status();
	else if (status < 0)
		status = cell__cli_report(&err, true);
	batch_finish(&batch);
out:
	cell__cli_list_finish(&flags.cells);
	cell__cli_list_finish(&flags.session.env);
	return status;
}
