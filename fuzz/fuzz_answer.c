/*
 * executor/answer, and the result that is made of it.  Input: a byte that says which frame, two for the size of the
 * json part, the json part, the raw part.
 */
#include "base/base.h"
#include "executors/answer.h"
#include "fuzz.h"
#include "session/result.h"
#include "wire/json_check.h"

/* Parts lie in the raw part, one behind the other, from here on. */
static const char *check_parts(const struct cell__bundle *bundle, const char *at)
{
	MUST(bundle->n_parts <= CELL_LIMIT_MIME_PARTS);
	for (size_t i = 0; i < bundle->n_parts; i++) {
		const struct cell_mime_part *part = &bundle->parts[i];
		MUST(part->data == at);
		MUST(cell__utf8_ok(part->type, strlen(part->type)));
		if (strncmp(part->type, "text/", 5) == 0)
			MUST(cell__utf8_ok(part->data, part->size));
		at += part->size;
	}
	return at;
}

static void check_json(const struct cell_result *result)
{
	char *line = cell_result_json(result);
	MUST(line);
	MUST(!strchr(line, '\n') && cell__json_check(line, strlen(line)));
	free(line);
}

static void check_result(const struct cell__kernel_answer *answer, const struct cell_frame *frame)
{
	const char *at = (const char *)frame->raw;
	if (answer->value_json) {
		MUST(answer->value_json == at && cell__json_check(at, answer->value_size));
		at += answer->value_size;
	}
	if (answer->repr) {
		MUST(answer->repr == at && cell__utf8_ok(at, answer->repr_size));
		at += answer->repr_size;
	}
	MUST(check_parts(&answer->mime, at) == (const char *)frame->raw + frame->raw_size);
	struct cell_result *result = cell__alloc(1, sizeof *result);
	MUST(result);
	result->isolation = "{}";
	if (answer->failed) {
		MUST(answer->error_type && answer->error_message && answer->error_traceback);
		MUST(cell__result_set_error(result, CELL_OUT_EXCEPTION, answer->error_type, answer->error_message,
					    answer->error_traceback) == 0);
	} else {
		MUST(cell__result_take_answer(result, answer) == 0);
	}
	check_json(result);
	cell_result_destroy(result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 3)
		return 0;
	size_t json_size = data[1] | (size_t)data[2] << 8;
	if (json_size > size - 3)
		json_size = size - 3;
	size_t raw_size = size - 3 - json_size;
	uint8_t *json = fuzz_copy(data + 3, json_size);
	uint8_t *raw = fuzz_copy(data + 3 + json_size, raw_size);
	const struct cell_frame frame = {
		.type = data[0] % 2 ? CELL_FRAME_DISPLAY : CELL_FRAME_RESULT,
		.json = json,
		.json_size = (uint32_t)json_size,
		.raw = raw,
		.raw_size = (uint32_t)raw_size,
	};
	json_t *memory = NULL;
	if (frame.type == CELL_FRAME_RESULT) {
		struct cell__kernel_answer answer;
		if (!cell__answer_result(&frame, &answer, &memory))
			check_result(&answer, &frame);
	} else {
		struct cell__bundle bundle;
		if (!cell__answer_display(&frame, &bundle, &memory))
			MUST(check_parts(&bundle, (const char *)raw) == (const char *)raw + raw_size);
	}
	json_decref(memory);
	free(json);
	free(raw);
	return 0;
}
