/* Translates a server's messages about a run for the session: the events in between, and the result. */
#define _GNU_SOURCE
#include "executors/remote/kernel.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "wire/json_check.h"
#include "wire/json_find.h"

/* ---- events ---- */

/* "text" or "base64" of an object; bytes of base64 are in *memory. */
static bool bytes_of(const json_t *object, struct cell__buf *memory, const char **ret_bytes, size_t *ret_size)
{
	const json_t *text = json_object_get(object, "text"), *coded = json_object_get(object, "base64");

	if (json_is_string(text)) {
		*ret_bytes = json_string_value(text);
		*ret_size = json_string_length(text);
		return true;
	}
	if (!json_is_string(coded) || cell__buf_add_unbase64(memory, json_string_value(coded), json_string_length(coded)) < 0)
		return false;
	*ret_bytes = memory->data ? memory->data : "";
	*ret_size = memory->size;
	return true;
}

static const char *handle_chunk(struct cell__remote_kernel *kernel, const json_t *data)
{
	CELL_AUTO_BUF struct cell__buf memory = CELL_BUF_INIT;
	const char *stream = json_string_value(json_object_get(data, "stream")), *bytes;
	size_t size;

	if (!stream || !bytes_of(data, &memory, &bytes, &size))
		return "a chunk without stream and text";
	kernel->events->output(kernel->owner, strcmp(stream, "stderr") ? CELL_STDOUT : CELL_STDERR, bytes, size);
	return NULL;
}

static const char *handle_display(struct cell__remote_kernel *kernel, const json_t *data)
{
	struct cell__buf memory[CELL_LIMIT_MIME_PARTS] = { CELL_BUF_INIT };
	const json_t *parts = json_object_get(data, "parts"), *part;
	struct cell__bundle bundle = { .n_parts = 0 };
	const char *problem = NULL, *type, *bytes;
	size_t i, size;

	if (!json_is_array(parts) || json_array_size(parts) > CELL_LIMIT_MIME_PARTS)
		return "a display without parts, or with too many";
	json_array_foreach(parts, i, part) {
		type = json_string_value(json_object_get(part, "type"));
		if (!type || !bytes_of(part, &memory[i], &bytes, &size)) {
			problem = "a part without type and data";
			break;
		}
		bundle.parts[bundle.n_parts++] = (struct cell_mime_part){ type, bytes, size };
	}
	if (!problem)
		kernel->events->display(kernel->owner, &bundle);
	for (i = 0; i < CELL_LIMIT_MIME_PARTS; i++)
		cell__buf_finish(&memory[i]);
	return problem;
}

const char *cell__remote_handle_event(struct cell__remote_kernel *kernel, const struct cell__sse_event *event)
{
	const char *problem = NULL;
	json_t *data;

	if (!strcmp(event->type, "result")) {
		free(kernel->result);
		kernel->result = cell__strndup(event->data, event->size);
		kernel->result_size = event->size;
		return kernel->result ? NULL : "a result that is too large for memory";
	}
	if (!strcmp(event->type, "gap"))
		return "a gap in the events";
	if (strcmp(event->type, "chunk") && strcmp(event->type, "image") && strcmp(event->type, "display"))
		return NULL;
	if (cell__json_weigh(event->data, event->size) > CELL_LIMIT_TREE_BYTES)
		return "an event that would take too much memory";
	data = json_loadb(event->data, event->size, JSON_ALLOW_NUL, NULL);
	if (!json_is_object(data))
		problem = "an event that is not an object";
	else if (!strcmp(event->type, "chunk"))
		problem = handle_chunk(kernel, data);
	else
		problem = handle_display(kernel, data);
	json_decref(data);
	return problem;
}

/* ---- results ---- */

#define MAX_CELLS (1ll << 53) /* JSON numbers are exact up to that */

void cell__remote_read_known(const json_t *object, struct cell__remote_known *ret_known)
{
	const json_t *cells = json_object_get(object, "cells"), *state = json_object_get(object, "state_id"),
		     *awake = json_object_get(object, "awake_id");
	double number = json_is_number(cells) ? json_number_value(cells) : -1;

	*ret_known = (struct cell__remote_known){ .cells = -1 };
	if (number >= 0 && number < (double)MAX_CELLS && (double)(int64_t)number == number)
		ret_known->cells = (int64_t)number;
	if (json_is_string(state))
		(void)cell__state_id_read(json_string_value(state), &ret_known->state);
	if (json_is_string(awake))
		(void)cell__state_id_read(json_string_value(awake), &ret_known->awake);
}

struct result {
	json_t *root;
	struct cell__kernel_answer answer;
	struct cell__buf memory[CELL_LIMIT_MIME_PARTS];
	char *texts[CELL_LIMIT_MIME_PARTS];
	char *notices[CELL_LIMIT_NOTICES];
	char *isolation;
};

static const char *text_in(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

/* As cell_result_json() writes them: JSON for JSON types, base64 for binary ones, text for the rest. */
static const char *take_mime(struct result *result, json_t *mime)
{
	static const char *const binaries[] = { "image/", "audio/", "video/", "application/pdf", "application/octet-stream" };
	struct cell__bundle *bundle = &result->answer.mime;
	const char *type;
	json_t *value;

	json_object_foreach(mime, type, value) {
		size_t n = bundle->n_parts, size = json_string_length(value);
		const char *data = json_string_value(value);
		bool binary = false;

		if (n == CELL_LIMIT_MIME_PARTS)
			return "a value with too many parts";
		for (size_t i = 0; i < sizeof(binaries) / sizeof(binaries[0]); i++)
			binary |= !strncmp(type, binaries[i], strlen(binaries[i]));
		if (!data) {
			data = result->texts[n] = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
			size = data ? strlen(data) : 0;
		} else if (binary && !strstr(type, "+xml")) {
			if (cell__buf_add_unbase64(&result->memory[n], data, size) < 0)
				return "a part that is not base64";
			data = result->memory[n].data ? result->memory[n].data : "";
			size = result->memory[n].size;
		}
		if (!data)
			return "a part that is too large for memory";
		bundle->parts[bundle->n_parts++] = (struct cell_mime_part){ type, data, size };
	}
	return NULL;
}

int cell__remote_code(const char *word)
{
	int code = CELL_E_INVALID;

	while (code < CELL_CODE_COUNT && strcmp(cell_code_word(code), word))
		code++;
	return code < CELL_CODE_COUNT ? code : 0;
}

/* A code about the server's own engine has no meaning for ours. */
int cell__remote_own_code(struct cell__remote_kernel *kernel, int code)
{
	if (code == CELL_E_CLOSED)
		return CELL_E_EXPIRED;
	if (code != CELL_E_SPAWNER)
		return code;
	kernel->how.suspect = true;
	return CELL_E_KERNEL;
}

static const char *take_error(struct cell__kernel_answer *answer, const json_t *error, int *ret_code)
{
	const json_t *limit = json_object_get(error, "limit"), *retry = json_object_get(error, "retry");

	*ret_code = cell__remote_code(text_in(error, "code"));
	if (!*ret_code)
		return "an error with an unknown code";
	answer->failed = true;
	answer->interrupted = *ret_code == CELL_OUT_INTERRUPTED;
	answer->code = *ret_code == CELL_OUT_EXCEPTION || answer->interrupted ? 0 : *ret_code;
	answer->error_type = text_in(error, "type");
	answer->error_message = text_in(error, "message");
	answer->error_traceback = text_in(error, "traceback");
	if (json_is_boolean(retry))
		answer->retry = json_is_true(retry) ? CELL_RETRY_YES : CELL_RETRY_NO;
	if (json_is_object(limit)) {
		answer->limit = text_in(limit, "name");
		answer->limit_max = (uint64_t)json_integer_value(json_object_get(limit, "max"));
		answer->limit_used = (uint64_t)json_integer_value(json_object_get(limit, "used"));
	}
	return NULL;
}

/* A server may send anything: so many, so long, and nothing that a terminal would obey. */
static void take_notices(struct result *result, const json_t *notices)
{
	struct cell__kernel_answer *answer = &result->answer;
	const json_t *notice;
	size_t i;

	json_array_foreach(notices, i, notice) {
		size_t size = json_string_length(notice);

		if (answer->n_notices == CELL_LIMIT_NOTICES)
			break;
		if (!json_is_string(notice) || !size)
			continue;
		if (size > CELL_LIMIT_NOTICE_BYTES) {
			size = CELL_LIMIT_NOTICE_BYTES;
			size -= cell__utf8_cut(json_string_value(notice), size);
		}
		char *text = cell__strndup(json_string_value(notice), size);
		if (!text)
			break; /* a notice less */
		cell__utf8_make_plain(text);
		answer->notices[answer->n_notices] = result->notices[answer->n_notices] = text;
		answer->n_notices++;
	}
}

/* All parts except these, which are passed on as text, or came as events; whole numbers of any size would be errors here. */
static json_t *load_result(const struct cell__remote_kernel *kernel, const char *const *left_out)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	json_t *root;

	if (cell__buf_add(&text, kernel->result, kernel->result_size) < 0)
		return NULL;
	for (; *left_out; left_out++) {
		const char *path[] = { *left_out, NULL }, *place;
		size_t size;

		/* White space of the same length keeps the rest in its place. */
		if (cell__json_find(text.data, text.size, path, &place, &size) && size >= 4) {
			char *at = text.data + (place - text.data);

			memcpy(at, "null", 4);
			memset(at + 4, ' ', size - 4);
		}
	}
	if (cell__json_weigh(text.data, text.size) > CELL_LIMIT_TREE_BYTES)
		return NULL;
	root = json_loadb(text.data, text.size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
	return root;
}

static const char *read_result(struct cell__remote_kernel *kernel, struct result *result, int *ret_code)
{
	static const char *const passed_on[] = { "value", "displays", NULL }, *const fewer[] = { "value", "displays", "mime", NULL };
	static const char *const value_path[] = { "value", NULL };
	static const char *const isolation_path[] = { "isolation", NULL };
	struct cell__kernel_answer *answer = &result->answer;
	const char *problem = NULL, *place;
	json_t *repr;
	size_t size;

	result->root = load_result(kernel, passed_on);
	if (!result->root)
		result->root = load_result(kernel, fewer);
	if (!json_is_object(result->root))
		return "a result that is not an object, or would take too much memory";
	if (cell__json_find(kernel->result, kernel->result_size, isolation_path, &place, &size) &&
	    asprintf(&result->isolation, "{%s,\"server\":%.*s}", kernel->receipt ? kernel->receipt : "\"executor\":\"remote\"", (int)size,
		     place) < 0)
		result->isolation = NULL;
	answer->isolation = result->isolation;
	answer->lost = strcmp(text_in(result->root, "state"), "lost") == 0;
	answer->restored = strcmp(text_in(result->root, "state"), "restored") == 0;
	take_notices(result, json_object_get(result->root, "notices"));
	if (json_is_boolean(json_object_get(result->root, "durable")))
		answer->durable = json_is_true(json_object_get(result->root, "durable")) ? 2 : 1;
	if (json_is_object(json_object_get(result->root, "error")))
		problem = take_error(answer, json_object_get(result->root, "error"), ret_code);
	repr = json_object_get(result->root, "repr");
	if (json_is_string(repr)) {
		answer->repr = json_string_value(repr);
		answer->repr_size = json_string_length(repr);
		if (cell__json_find(kernel->result, kernel->result_size, value_path, &place, &size) && cell__json_check(place, size) &&
		    (size != 4 || memcmp(place, "null", 4) || !strcmp(answer->repr, "None"))) {
			answer->value_json = place;
			answer->value_size = size;
		}
	}
	return problem ? problem : take_mime(result, json_object_get(result->root, "mime"));
}

void cell__remote_deliver(struct cell__remote_kernel *kernel)
{
	struct result result = { 0 };
	uint32_t run_id = kernel->run_id;
	int code = 0;
	const char *problem = read_result(kernel, &result, &code);
	struct cell_error err;

	if (problem) {
		cell__remote_protocol_error(kernel, problem);
	} else if (code == CELL_E_CONFLICT || code == CELL_E_CLOSED) { /* another server may have the session */
		cell_fail(&err, cell__remote_own_code(kernel, code), 0, "the server: %s", result.answer.error_message);
		cell__remote_run_lost(kernel, &err);
	} else if (code == CELL_E_BUSY) { /* it did not run */
		cell_fail(&err, code, 0, "the server: %s", result.answer.error_message);
		cell__remote_run_refused(kernel, &err);
	} else if (code && !cell__code_is_outcome(code)) {
		cell_fail(&err, cell__remote_own_code(kernel, code), 0, "the server: %s", result.answer.error_message);
		cell__remote_fail(kernel, &err);
	} else {
		kernel->state = CELL_REMOTE_IDLE;
		cell__remote_read_known(result.root, &kernel->known); /* for the next run */
		kernel->events->result(kernel->owner, run_id, &result.answer);
	}
	json_decref(result.root);
	for (size_t i = 0; i < CELL_LIMIT_MIME_PARTS; i++) {
		cell__buf_finish(&result.memory[i]);
		free(result.texts[i]);
	}
	for (size_t i = 0; i < result.answer.n_notices; i++)
		free(result.notices[i]);
	free(result.isolation);
}
