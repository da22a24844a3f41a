/* Running a recording again, and comparing. */
#define _GNU_SOURCE
#include <string.h>

#include "base/file.h"
#include "base/sized.h"
#include "session/session.h"

#define SHOWN 200 /* bytes of a text, around its first difference */

/* ---- comparing ---- */

/* "<object at 0x7f...>": addresses differ from process to process. */
static char *without_addresses(const char *text, size_t size)
{
	static const char head[] = " at 0x";
	char *copy = cell__strndup(text, size), *to = copy;
	for (size_t i = 0; copy && i < size;) {
		if (size - i > sizeof head && memcmp(text + i, head, sizeof head - 1) == 0) {
			memcpy(to, head, sizeof head - 1);
			to += sizeof head - 1;
			i += sizeof head - 1;
			while (i < size && strchr("0123456789abcdef", text[i]) && text[i])
				i++;
		} else {
			*to++ = text[i++];
		}
	}
	if (copy)
		*to = '\0';
	return copy;
}

static bool is_same(const json_t *one, const json_t *other);

static bool is_same_object(const json_t *one, const json_t *other)
{
	const char *name;
	json_t *value;
	if (json_object_size(one) != json_object_size(other))
		return false;
	json_object_foreach((json_t *)one, name, value)
		if (!is_same(value, json_object_get(other, name)))
			return false;
	return true;
}

static bool is_same(const json_t *one, const json_t *other)
{
	if (!one || !other || json_typeof(one) != json_typeof(other))
		return false;
	if (json_is_object(one))
		return is_same_object(one, other);
	if (json_is_array(one)) {
		bool same = json_array_size(one) == json_array_size(other);
		for (size_t i = 0; same && i < json_array_size(one); i++)
			same = is_same(json_array_get(one, i), json_array_get(other, i));
		return same;
	}
	if (!json_is_string(one) || json_equal(one, other))
		return json_equal(one, other);
	CELL_AUTO_FREE char *left = without_addresses(json_string_value(one), json_string_length(one));
	CELL_AUTO_FREE char *right = without_addresses(json_string_value(other), json_string_length(other));
	return left && right && strcmp(left, right) == 0;
}

/* A part of a text from shortly before `at`, whole characters only. */
static json_t *excerpt(const char *text, size_t size, size_t at)
{
	size_t from = at > SHOWN / 2 ? at - SHOWN / 2 : 0;
	while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80)
		from--;
	size_t n = size - from > SHOWN ? SHOWN : size - from;
	n -= cell__utf8_cut(text + from, n);
	return json_stringn(text + from, n);
}

static char *as_text(const json_t *value, size_t *ret_size)
{
	char *text = json_is_string(value) ? cell__strndup(json_string_value(value), json_string_length(value))
					   : json_dumps(value ? value : json_null(), JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
	*ret_size = json_is_string(value) ? json_string_length(value) : text ? strlen(text) : 0;
	return text;
}

static json_t *describe_difference(size_t cell, const char *what, const json_t *expected, const json_t *actual)
{
	size_t left_size, right_size, at = 0, line = 1;
	CELL_AUTO_FREE char *left = as_text(expected, &left_size), *right = as_text(actual, &right_size);
	if (!left || !right)
		return NULL;
	while (at < left_size && at < right_size && left[at] == right[at])
		line += left[at++] == '\n';
	return json_pack("{s:I, s:s, s:I, s:o, s:o}", "cell", (json_int_t)cell, "what", what, "line", (json_int_t)line, "expected",
			 excerpt(left, left_size, at), "actual", excerpt(right, right_size, at));
}

/* NULL: the results are the same. */
static json_t *compare_results(size_t cell, const json_t *expected, const json_t *actual)
{
	static const char *const parts[] = { "stdout", "stderr", "value_json", "repr", "mime", "displays", "state" };
	static const char *const of_error[] = { "code", "type", "message" };
	const json_t *wanted = json_object_get(expected, "error"), *got = json_object_get(actual, "error");
	if (json_is_object(wanted) != json_is_object(got))
		return describe_difference(cell, "error", wanted, got);
	for (size_t i = 0; json_is_object(wanted) && i < sizeof of_error / sizeof *of_error; i++)
		if (!is_same(json_object_get(wanted, of_error[i]), json_object_get(got, of_error[i])))
			return describe_difference(cell, "error", json_object_get(wanted, of_error[i]), json_object_get(got, of_error[i]));
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		if (!is_same(json_object_get(expected, parts[i]), json_object_get(actual, parts[i])))
			return describe_difference(cell, parts[i], json_object_get(expected, parts[i]), json_object_get(actual, parts[i]));
	return NULL;
}

/* A call of a cell that the replay has not made. */
static json_t *find_missing(const struct cell__recorder *recorder, size_t cell)
{
	const struct cell__recording *recording = &recorder->replayed;
	for (size_t i = recorder->first_unused; i < recording->n_calls; i++)
		if (recording->calls[i].cell == cell && !recording->calls[i].used)
			return recording->calls[i].asked;
	return NULL;
}

/* ---- running ---- */

struct comparison {
	struct cell_session *session;
	const struct cell_result *result;
	size_t i;
	json_t *difference;
	bool failed; /* out of memory */
};

/* On the loop's thread: threads of the code may still make calls. */
static void do_compare(void *arg)
{
	struct comparison *comparison = arg;
	struct cell__recorder *recorder = comparison->session->recorder;
	const size_t i = comparison->i;
	const struct cell__recorded_cell *cell = &recorder->replayed.cells[i];
	json_t *actual = cell__recorder_describe(comparison->result), *missing = NULL;
	comparison->failed = !actual;
	if (!actual)
		return;
	if (recorder->strange) {
		json_t *call = json_loads(recorder->strange, JSON_ALLOW_NUL, NULL);
		comparison->difference = describe_difference(i + 1, "call", NULL, call);
		json_decref(call);
		comparison->failed = !comparison->difference;
	} else {
		comparison->difference = compare_results(i + 1, cell->result, actual);
	}
	if (!comparison->difference && (missing = find_missing(recorder, i)))
		comparison->difference = describe_difference(i + 1, "call", missing, NULL);
	json_decref(actual);
}

/* -1: our failure. */
static int replay_cell(struct cell_session *session, size_t i, json_t **ret_difference, struct cell_error *err)
{
	const struct cell__recorded_cell *cell = &session->recorder->replayed.cells[i];
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result;
	options.timeout_ms = cell->timeout_ms;
	if (cell->reset_before && cell_session_reset(session, err) < 0)
		return -1;
	if (cell_session_run(session, cell->code, cell->size, &options, &result, err) < 0)
		return -1;
	struct comparison comparison = { .session = session, .result = result, .i = i };
	cell__loop_call(session->engine->loop, do_compare, &comparison);
	cell_result_destroy(result);
	*ret_difference = comparison.difference;
	return comparison.failed ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a replay") : 0;
}

/* The executor of the recording, where the caller has not chosen one: code that was confined stays confined. */
static int choose_executor(struct cell_session_options *all, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__recording recording = { 0 };
	if (all->executor)
		return 0;
	int rc = cell__file_load("the recording", all->replay, 0, CELL_RECORDING_BYTES, &text, err);
	if (rc == 0)
		rc = cell__recording_read(text.data ? text.data : "", text.size, &recording, err);
	const char *name = json_string_value(json_object_get(recording.head, "executor"));
	if (rc == 0 && name && strcmp(name, "sandbox") == 0)
		all->executor = "sandbox";
	cell__recording_finish(&recording);
	return rc;
}

static json_t *replay_cells(struct cell_session *session, struct cell_error *err)
{
	const struct cell__recording *recording = &session->recorder->replayed;
	json_t *difference = NULL;
	size_t i = 0, n = 0;
	while (n < recording->n_cells && recording->cells[n].result)
		n++;
	for (; i < n && !difference; i++)
		if (replay_cell(session, i, &difference, err) < 0)
			return NULL;
	json_t *report = json_pack("{s:b, s:I, s:I, s:b, s:o?}", "same", !difference, "cells", (json_int_t)n, "same_cells",
				   (json_int_t)(difference ? i - 1 : i), "whole", n == recording->n_cells, "difference", difference);
	if (!report)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a replay");
	return report;
}

struct workflow {
	struct cell_session *session;
	const char *name, *source;
	bool failed; /* out of memory */
};

/* From now on the recording answers with this source when the code asks for the workflow. */
static void do_set_source(void *arg)
{
	struct workflow *workflow = arg;
	struct cell__recording *recording = &workflow->session->recorder->replayed;
	for (size_t i = 0; i < recording->n_calls; i++) {
		struct cell__recorded_call *call = &recording->calls[i];
		const char *method = json_string_value(json_object_get(call->asked, "method"));
		const char *name = json_string_value(json_object_get(json_object_get(call->asked, "args"), "name"));
		if (!method || strcmp(method, "workflows.get") != 0 || !name || strcmp(name, workflow->name) != 0)
			continue;
		json_t *answer = json_loads(call->answer, JSON_ALLOW_NUL, NULL), *result = json_object_get(answer, "result");
		if (json_is_object(result)) {
			json_object_set_new(result, "source", json_string(workflow->source));
			json_object_set_new(result, "parameters", json_null()); /* the kernel finds them in the source */
			char *text = json_dumps(answer, JSON_COMPACT);
			cell__buf_finish(&call->answer_raw);
			workflow->failed |= !text;
			if (text) {
				free(call->answer);
				call->answer = text;
			}
		}
		json_decref(answer);
	}
}

static char *replay(struct cell_engine *engine, const struct cell_session_options *opts, struct workflow *workflow, struct cell_error *err)
{
	struct cell_session_options all = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session = NULL;
	json_t *report = NULL;
	if (cell__sized_read(&all, sizeof all, opts, "cell_session_options", err) < 0)
		return NULL;
	if (!all.replay) {
		cell_fail(err, CELL_E_INVALID, 0, "a replay needs a recording (replay)");
		return NULL;
	}
	if (choose_executor(&all, err) < 0 || cell_session_open(engine, &all, &session, err) < 0)
		return NULL;
	if (workflow) {
		workflow->session = session;
		cell__loop_call(session->engine->loop, do_set_source, workflow);
	}
	if (workflow && workflow->failed)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a replay");
	else
		report = replay_cells(session, err);
	cell_session_close(session);
	char *text = report ? json_dumps(report, JSON_COMPACT) : NULL;
	if (report && !text)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a replay");
	json_decref(report);
	return text;
}

char *cell_replay(struct cell_engine *engine, const struct cell_session_options *opts, struct cell_error *err)
{
	return cell__require(err, engine, opts) < 0 ? NULL : replay(engine, opts, NULL, err);
}

char *cell_replay_workflow(struct cell_engine *engine, const struct cell_session_options *opts, const char *name, const char *source,
			   struct cell_error *err)
{
	struct workflow workflow = { .name = name, .source = source };
	return cell__require(err, engine, opts, name, source) < 0 ? NULL : replay(engine, opts, &workflow, err);
}
