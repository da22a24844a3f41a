#include "executors/answer.h"

#include <string.h>

#include "wire/json_check.h"

/* The raw part is handed out from front to back. */
struct slice {
	const char *at;
	size_t left;
};

static bool take(struct slice *raw, json_int_t size, const char **ret_bytes)
{
	if (size < 0 || (uint64_t)size > raw->left)
		return false;
	*ret_bytes = raw->at;
	raw->at += size;
	raw->left -= (size_t)size;
	return true;
}

static bool is_text(const char *type)
{
	return strncmp(type, "text/", 5) == 0;
}

static const char *take_mime(json_t *list, struct slice *raw, struct cell__bundle *bundle)
{
	bundle->n_parts = 0;
	if (!list)
		return NULL;
	if (!json_is_array(list) || json_array_size(list) > CELL_LIMIT_MIME_PARTS)
		return "a MIME list that is not a list or too long";
	for (size_t i = 0; i < json_array_size(list); i++) {
		const char *type, *data;
		json_int_t size;
		if (json_unpack(json_array_get(list, i), "[sI]", &type, &size) < 0 || !take(raw, size, &data))
			return "a missing MIME part";
		if (is_text(type) && !cell__utf8_ok(data, (size_t)size))
			return "a text part that is not UTF-8";
		for (size_t k = 0; k < bundle->n_parts; k++)
			if (strcmp(bundle->parts[k].type, type) == 0)
				return "a duplicate MIME type";
		bundle->parts[bundle->n_parts++] = (struct cell_mime_part){ type, data, (size_t)size };
	}
	return NULL;
}

static const char *load(const struct cell_frame *frame, json_t **ret_head)
{
	if (frame->json_size == 0) {
		*ret_head = NULL;
		return NULL;
	}
	/* A head has few values, however long they are. */
	if (cell__json_weigh((const char *)frame->json, frame->json_size) > CELL_LIMIT_HEAD_BYTES)
		return "a JSON part with too many values";
	*ret_head = json_loadb((const char *)frame->json, frame->json_size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
	return json_is_object(*ret_head) ? NULL : "a JSON part that is not an object";
}

const char *cell__answer_display(const struct cell_frame *frame, struct cell__bundle *ret_bundle, json_t **ret_memory)
{
	struct slice raw = { (const char *)frame->raw, frame->raw_size };
	const char *problem = load(frame, ret_memory);
	if (!problem)
		problem = take_mime(json_object_get(*ret_memory, "mime"), &raw, ret_bundle);
	if (!problem && raw.left != 0)
		problem = "surplus bytes";
	return problem;
}

static const char *take_error(json_t *error, struct cell__kernel_answer *answer)
{
	const char *code = "";
	if (!error)
		return NULL;
	answer->failed = true;
	if (json_unpack(error, "{s:s, s:s, s:s, s:s}", "type", &answer->error_type, "message", &answer->error_message, "traceback",
			&answer->error_traceback, "code", &code) < 0)
		return "an error without type, message, traceback and code";
	answer->interrupted = strcmp(code, "interrupted") == 0;
	json_t *limit = json_object_get(error, "limit");
	json_int_t max = 0, used = 0;
	if (limit && json_unpack(limit, "{s:s, s:I, s:I}", "name", &answer->limit, "max", &max, "used", &used) < 0)
		return "a limit without name, max and used";
	answer->limit_max = max > 0 ? (uint64_t)max : 0;
	answer->limit_used = used > 0 ? (uint64_t)used : 0;
	return NULL;
}

#define NO_SIZE (-1)
#define BAD_SIZE (-2)
#define PLAIN_DIGITS 9

static json_int_t size_of(json_t *head, const char *key)
{
	json_t *size = json_object_get(head, key);
	if (!size)
		return NO_SIZE;
	return json_is_integer(size) && json_integer_value(size) >= 0 ? json_integer_value(size) : BAD_SIZE;
}

/* The sizes alone, as most results have them: {"v": n, "r": n}.  False: there is more to it. */
static bool load_plain(const struct cell_frame *frame, json_int_t *ret_value, json_int_t *ret_repr)
{
	if (frame->json_size == 0)
		return false;
	struct cell__json_walk walk = CELL_JSON_WALK((const char *)frame->json, frame->json_size);
	struct cell__json_member member;
	json_int_t sizes[2] = { NO_SIZE, NO_SIZE };
	int rc;
	while ((rc = cell__json_walk_next(&walk, &member)) > 0) {
		if (member.name_size != 1 || (*member.name != 'v' && *member.name != 'r') || member.value_size > PLAIN_DIGITS)
			return false;
		json_int_t *size = &sizes[*member.name == 'r'];
		if (*size != NO_SIZE)
			return false;
		*size = 0;
		for (size_t i = 0; i < member.value_size; i++) {
			if (member.value[i] < '0' || member.value[i] > '9')
				return false;
			*size = *size * 10 + (member.value[i] - '0');
		}
	}
	*ret_value = sizes[0];
	*ret_repr = sizes[1];
	return rc == 0;
}

const char *cell__answer_result(const struct cell_frame *frame, struct cell__kernel_answer *ret_answer, json_t **ret_memory)
{
	*ret_answer = (struct cell__kernel_answer){ 0 };
	struct slice raw = { (const char *)frame->raw, frame->raw_size };
	json_t *head = NULL;
	json_int_t value_size = NO_SIZE, repr_size = NO_SIZE;
	*ret_memory = NULL;
	if (!load_plain(frame, &value_size, &repr_size)) {
		const char *problem = load(frame, ret_memory);
		if (problem)
			return problem;
		head = *ret_memory;
		value_size = size_of(head, "v");
		repr_size = size_of(head, "r");
	}
	if (value_size != NO_SIZE) {
		if (!take(&raw, value_size, &ret_answer->value_json))
			return "a missing value";
		ret_answer->value_size = (size_t)value_size;
		if (!cell__json_check(ret_answer->value_json, ret_answer->value_size))
			return "a value that is not JSON";
	}
	if (repr_size != NO_SIZE) {
		if (!take(&raw, repr_size, &ret_answer->repr))
			return "a missing repr";
		ret_answer->repr_size = (size_t)repr_size;
		if (!cell__utf8_ok(ret_answer->repr, ret_answer->repr_size))
			return "a repr that is not UTF-8";
	}
	ret_answer->changes = json_object_get(head, "changes");
	const char *problem = take_mime(json_object_get(head, "mime"), &raw, &ret_answer->mime);
	if (!problem)
		problem = take_error(json_object_get(head, "error"), ret_answer);
	if (!problem && raw.left != 0)
		problem = "surplus bytes";
	return problem;
}

static void read_call(const struct cell_frame *frame, struct cell__read *read)
{
	struct cell__asked *asked = &read->asked;
	*asked = (struct cell__asked){ .id = frame->id,
				       .json = (const char *)frame->json,
				       .json_size = frame->json_size,
				       .raw = frame->raw,
				       .raw_size = frame->raw_size };
	if (frame->json_size <= CELL_LIMIT_LARGE_BYTES)
		return;
	asked->is_read = true;
	asked->weight = cell__json_weigh(asked->json, asked->json_size);
	if (asked->weight <= CELL_LIMIT_TREE_BYTES)
		asked->document = read->memory = json_loadb(asked->json, asked->json_size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
}

void cell__read_frame(const struct cell_frame *frame, struct cell__read *ret_read)
{
	ret_read->memory = NULL;
	ret_read->problem = NULL;
	switch (frame->type) {
	case CELL_FRAME_DISPLAY:
		ret_read->problem = cell__answer_display(frame, &ret_read->bundle, &ret_read->memory);
		break;
	case CELL_FRAME_RESULT:
		ret_read->problem = cell__answer_result(frame, &ret_read->answer, &ret_read->memory);
		ret_read->answer.same = (frame->flags & CELL_FRAME_SAME) != 0;
		break;
	case CELL_FRAME_CALL:
		read_call(frame, ret_read);
		break;
	default:
		ret_read->problem = "an unexpected frame";
	}
}

void cell__read_finish(struct cell__read *read)
{
	json_decref(read->memory);
	read->memory = NULL;
}

const char *cell__answer_hand_on(const struct cell_frame *frame, const struct cell__read *read, const struct cell__kernel_events *events,
				 void *owner)
{
	if (read->problem)
		return read->problem;
	switch (frame->type) {
	case CELL_FRAME_DISPLAY:
		events->display(owner, &read->bundle);
		return NULL;
	case CELL_FRAME_RESULT:
		events->result(owner, frame->id, &read->answer);
		return NULL;
	default:
		return events->call(owner, &read->asked);
	}
}

const char *cell__answer_ready(const struct cell_frame *frame, struct cell_error *ret_refusal)
{
	bool fits = frame->json_size <= CELL_LIMIT_LARGE_BYTES;
	json_t *ready = fits ? json_loadb((const char *)frame->json, frame->json_size, 0, NULL) : NULL;
	json_t *error = json_object_get(ready, "error");
	const char *problem = json_is_object(ready) ? NULL : "READY that is not JSON", *code = "", *message = NULL;
	(void)json_unpack(error, "{s?s, s?s}", "code", &code, "message", &message);
	*ret_refusal = (struct cell_error){ 0 };
	if (error)
		cell_fail(ret_refusal, strcmp(code, "preload_failed") == 0 ? CELL_E_PRELOAD : CELL_E_INVALID, 0, "%s",
			  message ? message : "the kernel refused the session");
	json_decref(ready);
	return problem;
}
