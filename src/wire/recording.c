/* Recordings of sessions, see recording.h. */
#include "wire/recording.h"

#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/memory.h"
#include "wire/json_check.h"

static int damaged(struct cell_error *err, size_t line, const char *what)
{
	return cell_fail(err, CELL_E_DAMAGED, 0, "the recording is damaged: line %zu %s", line, what);
}

static int no_memory(struct cell_error *err)
{
	return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a recording");
}

void cell__recording_finish(struct cell__recording *recording)
{
	for (size_t i = 0; i < recording->n_cells; i++) {
		free(recording->cells[i].code);
		json_decref(recording->cells[i].clock);
		json_decref(recording->cells[i].result);
	}
	for (size_t i = 0; i < recording->n_calls; i++) {
		struct cell__recorded_call *call = &recording->calls[i];
		json_decref(call->asked);
		free(call->answer);
		free(call->progress);
		cell__buf_finish(&call->raw);
		cell__buf_finish(&call->answer_raw);
	}
	free(recording->cells);
	free(recording->calls);
	json_decref(recording->head);
	*recording = (struct cell__recording){ 0 };
}

/* FNV-1a. */
static uint64_t hash_text(uint64_t hash, const char *text)
{
	for (; text && *text; text++)
		hash = (hash ^ (unsigned char)*text) * 1099511628211u;
	return hash;
}

uint64_t cell__recording_key(const json_t *method, const json_t *args, size_t raw_size)
{
	CELL_AUTO_FREE char *text = json_dumps(args, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
	return hash_text(hash_text(14695981039346656037u ^ raw_size, json_string_value(method)), text);
}

/* ---- reading ---- */

/* Room for one more, in steps that double. */
static bool has_room(void **list, size_t n, size_t size)
{
	if (n & (n - 1))
		return true;
	void *more = cell__realloc(*list, (n ? 2 * n : 1) * size);
	if (more)
		*list = more;
	return more != NULL;
}

static int read_head(struct cell__recording *recording, json_t *line, struct cell_error *err)
{
	unsigned char digits = 0;
	const char *seed = json_string_value(json_object_get(line, "seed"));
	json_t *version = json_object_get(line, "workcell_recording");
	if (!json_is_integer(version))
		return cell_fail(err, CELL_E_DAMAGED, 0, "this is not a recording of Workcell");
	if (json_integer_value(version) != CELL_RECORDING_VERSION)
		return cell_fail(err, CELL_E_DIFFERS, 0, "the recording has format %lld, and this version reads %d",
				 (long long)json_integer_value(version), CELL_RECORDING_VERSION);
	if (!seed || strlen(seed) != CELL_RECORDING_SEED)
		return damaged(err, 1, "has no seed");
	for (const char *at = seed; *at; at++)
		digits += (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f');
	if (digits != CELL_RECORDING_SEED)
		return damaged(err, 1, "has no seed");
	memcpy(recording->seed, seed, CELL_RECORDING_SEED + 1);
	recording->namespaces = json_is_true(json_object_get(line, "namespaces"));
	recording->head = json_incref(line);
	return 0;
}

static int read_cell(struct cell__recording *recording, const json_t *line, bool reset_before, size_t number, struct cell_error *err)
{
	const json_t *code = json_object_get(line, "code"), *timeout = json_object_get(line, "timeout_ms");
	json_int_t ms = json_integer_value(timeout);
	if (!json_is_string(code) || (timeout && (!json_is_integer(timeout) || ms < -1 || ms == 0)))
		return damaged(err, number, "is not a cell");
	if (recording->n_cells == CELL_RECORDING_CELLS)
		return cell_fail(err, CELL_E_LIMIT, 0, "a recording has at most %d cells", CELL_RECORDING_CELLS);
	if (!has_room((void **)&recording->cells, recording->n_cells, sizeof *recording->cells))
		return no_memory(err);
	struct cell__recorded_cell *cell = &recording->cells[recording->n_cells];
	*cell = (struct cell__recorded_cell){ .size = json_string_length(code),
					      .timeout_ms = timeout ? ms : -1,
					      .reset_before = reset_before };
	cell->code = cell__strndup(json_string_value(code), cell->size);
	if (!cell->code)
		return no_memory(err);
	recording->n_cells++;
	return 0;
}

/* Base64 of a line; missing: empty. */
static int read_raw(const json_t *line, const char *name, struct cell__buf *out, size_t number, struct cell_error *err)
{
	const json_t *text = json_object_get(line, name);
	if (!text)
		return 0;
	if (!json_is_string(text) || cell__buf_add_unbase64(out, json_string_value(text), json_string_length(text)) < 0)
		return damaged(err, number, "has a raw part that is not base64");
	return 0;
}

static int read_call(struct cell__recording *recording, const json_t *line, size_t number, struct cell_error *err)
{
	json_t *asked = json_object_get(line, "call"), *answer = json_object_get(line, "answer");
	json_t *method = json_object_get(asked, "method"), *args = json_object_get(asked, "args"),
	       *progress = json_object_get(line, "progress");
	if (!json_is_string(method) || !json_is_object(args) || !json_is_object(answer) ||
	    !json_object_get(answer, "result") == !json_object_get(answer, "error") || (progress && !json_is_string(progress)))
		return damaged(err, number, "is not a call with its answer");
	if (recording->n_calls == CELL_RECORDING_CALLS)
		return cell_fail(err, CELL_E_LIMIT, 0, "a recording has at most %d calls", CELL_RECORDING_CALLS);
	if (!has_room((void **)&recording->calls, recording->n_calls, sizeof *recording->calls))
		return no_memory(err);
	struct cell__recorded_call *call = &recording->calls[recording->n_calls++];
	*call = (struct cell__recorded_call){ .cell = recording->n_cells ? recording->n_cells - 1 : 0, .asked = json_incref(asked) };
	if (read_raw(line, "raw", &call->raw, number, err) < 0 || read_raw(line, "answer_raw", &call->answer_raw, number, err) < 0)
		return -1;
	call->key = cell__recording_key(method, args, call->raw.size);
	call->answer = json_dumps(answer, JSON_COMPACT);
	call->progress = progress ? cell__strdup(json_string_value(progress)) : NULL;
	return call->answer && (call->progress || !progress) ? 0 : no_memory(err);
}

/* {"time": [numbers]} */
static bool is_clock(json_t *clock)
{
	const char *name;
	json_t *values, *value;
	size_t i;
	if (!json_is_object(clock))
		return false;
	json_object_foreach(clock, name, values) {
		if (!json_is_array(values))
			return false;
		json_array_foreach(values, i, value)
			if (!json_is_number(value))
				return false;
	}
	return true;
}

static int read_line(struct cell__recording *recording, json_t *line, bool *reset, size_t number, struct cell_error *err)
{
	struct cell__recorded_cell *last = recording->n_cells ? &recording->cells[recording->n_cells - 1] : NULL;
	json_t *clock = json_object_get(line, "clock"), *result = json_object_get(line, "result");
	if (json_object_get(line, "cell")) {
		int rc = read_cell(recording, line, *reset, number, err);
		*reset = false;
		return rc;
	}
	if (json_object_get(line, "call"))
		return read_call(recording, line, number, err);
	if (json_is_true(json_object_get(line, "reset"))) {
		*reset = true;
		return 0;
	}
	if (clock && last && !last->clock && is_clock(clock)) {
		last->clock = json_incref(clock);
		return 0;
	}
	if (json_is_object(result) && last && !last->result) {
		last->result = json_incref(result);
		return 0;
	}
	return damaged(err, number, "is not of a known kind, or not in its place");
}

int cell__recording_read(const char *bytes, size_t size, struct cell__recording *ret_recording, struct cell_error *err)
{
	size_t number = 0, weight = 0;
	bool reset = false;
	*ret_recording = (struct cell__recording){ 0 };
	if (size > CELL_RECORDING_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "a recording has at most %u MiB", CELL_RECORDING_BYTES >> 20);
	while (size > 0) {
		const char *end = memchr(bytes, '\n', size);
		size_t length = end ? (size_t)(end - bytes) : size;
		json_error_t why;
		if (!end && number > 0)
			break; /* its writer was killed */
		number++;
		if (length > CELL_RECORDING_LINE_BYTES)
			return cell_fail(err, CELL_E_LIMIT, 0, "line %zu of the recording has more than %u MiB", number,
					 CELL_RECORDING_LINE_BYTES >> 20);
		weight += cell__json_weigh(bytes, length);
		if (weight > CELL_RECORDING_TREE_BYTES)
			return cell_fail(err, CELL_E_LIMIT, 0,
					 "the recording has too many values: they would take more than %u MiB of memory",
					 CELL_RECORDING_TREE_BYTES >> 20);
		json_t *line = json_loadb(bytes, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
		if (!json_is_object(line)) {
			json_decref(line);
			return damaged(err, number, "is not a JSON object");
		}
		int rc = number == 1 ? read_head(ret_recording, line, err) : read_line(ret_recording, line, &reset, number, err);
		json_decref(line);
		if (rc < 0)
			return -1;
		bytes += length + (end != NULL);
		size -= length + (end != NULL);
	}
	return number ? 0 : cell_fail(err, CELL_E_DAMAGED, 0, "the recording is empty");
}

/* ---- writing ---- */

int cell__recording_add(struct cell__buf *out, json_t *line)
{
	CELL_AUTO_FREE char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
	json_decref(line);
	if (!text)
		return -1;
	return cell__buf_add_str(out, text) < 0 || cell__buf_add(out, "\n", 1) < 0 ? -1 : 0;
}
