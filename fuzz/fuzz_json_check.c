/*
 * wire/json_check.  What it accepts Jansson accepts too, but for numbers that Jansson cannot hold; what Jansson accepts
 * it accepts, when it stands on one line and is not too deep.
 */
#include <jansson.h>

#include "base/base.h"
#include "fuzz.h"
#include "wire/json_check.h"

/* Whatever the walk takes for a flat object is JSON, and its members are what Jansson finds. */
static void check_walk(const char *text, size_t size)
{
	struct cell__json_walk walk = CELL_JSON_WALK(text, size);
	struct cell__json_member member;
	size_t count = 0;
	int rc;
	while ((rc = cell__json_walk_next(&walk, &member)) > 0) {
		MUST(member.name >= text && member.value + member.value_size <= text + size && member.value_size > 0);
		MUST(cell__json_check(member.value, member.value_size));
		count++;
	}
	MUST(rc < 0 || cell__json_check(text, size));
	json_t *json = rc == 0 ? json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL) : NULL;
	MUST(!json || json_object_size(json) == count);
	json_decref(json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *text = fuzz_copy(data, size);
	bool accepted = cell__json_check((const char *)text, size);
	MUST(cell__json_weigh((const char *)text, size) <= (size + 1) * 512);
	check_walk((const char *)text, size);
	json_error_t problem;
	json_t *json = json_loadb((const char *)text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, &problem);
	bool one_line = size == 0 || (!memchr(text, '\n', size) && !memchr(text, '\r', size));
	if (accepted) {
		MUST(one_line);
		MUST(cell__utf8_ok((const char *)text, size));
		MUST(json || json_error_code(&problem) == json_error_numeric_overflow ||
		     json_error_code(&problem) == json_error_null_byte_in_key);
	} else if (json && one_line && !memchr(text, '\0', size)) { /* a NUL at the end is the end to Jansson */
		size_t containers = 0;
		for (size_t i = 0; i < size; i++)
			containers += text[i] == '[' || text[i] == '{';
		MUST(containers > CELL_LIMIT_JSON_DEPTH);
	}
	json_decref(json);
	free(text);
	return 0;
}
