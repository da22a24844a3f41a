/* Options in JSON: what every struct's table makes of any object. */
#include "fuzz.h"

#include <jansson.h>

#include "engine/json_options.h"

static void check(const json_t *object, const struct cell__json_field *fields)
{
	_Alignas(max_align_t) char options[1024] = { 0 };
	struct cell__json_memory memory = { 0 };
	struct cell_error err = { 0 };
	int rc = cell__json_read(object, "the options", fields, options, &memory, &err);
	MUST(rc == 0 || err.code == CELL_E_INVALID);
	/* Whatever was read is whole: its strings and lists end. */
	for (; rc == 0 && fields->name; fields++) {
		const void *member = options + fields->offset;
		if (fields->kind == CELL__JSON_TEXT && *(const char *const *)member)
			MUST(cell__utf8_ok(*(const char *const *)member, strlen(*(const char *const *)member)));
		if (fields->kind == CELL__JSON_TEXTS || fields->kind == CELL__JSON_PAIRS) {
			const char *const *list = *(const char *const *const *)member;
			for (; list && *list; list++)
				MUST(fields->kind == CELL__JSON_TEXTS || strchr(*list, '='));
		}
	}
	cell__json_memory_finish(&memory);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *object = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
	if (object) {
		check(object, cell__json_engine_fields);
		check(object, cell__json_session_fields);
		check(object, cell__json_space_fields);
		check(object, cell__json_container_fields);
		check(object, cell__json_audit_fields);
		check(object, cell__json_answer_fields);
	}
	json_decref(object);
	return 0;
}
