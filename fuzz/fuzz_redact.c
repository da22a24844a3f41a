/*
 * What must not stand in a log.  A text comes out as UTF-8 where it went in as such; a key of a known shape that stands
 * in the middle of it, and a value with a secret name, never come out; arguments come out as one line of JSON.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include "gate/redact.h"
#include "wire/json_check.h"

#define KEY "AKIAABCDEFGHIJKLMNO7"
#define VALUE "qZx7-very-secret-value"

static void check_text(const struct cell__redactor *redactor, const char *text, size_t size)
{
	CELL_AUTO_BUF struct cell__buf in = CELL_BUF_INIT, out = CELL_BUF_INIT, with = CELL_BUF_INIT;
	char *copy = (char *)fuzz_copy((const uint8_t *)text, size);
	MUST(cell__redact_text(redactor, copy, size, NULL, &out) == 0);
	free(copy);
	MUST(!cell__utf8_ok(text, size) || cell__utf8_ok(out.data ? out.data : "", out.size));
	cell__buf_add(&in, text, size / 2);
	cell__buf_add_str(&in, " " KEY " ");
	cell__buf_add(&in, text + size / 2, size - size / 2);
	MUST(cell__redact_text(redactor, in.data, in.size, NULL, &with) == 0);
	MUST(!memmem(with.data, with.size, KEY, sizeof KEY - 1) || memmem(text, size, KEY, sizeof KEY - 1));
}

static void check_json(const struct cell__redactor *redactor, json_t *value)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	struct cell__redact_found found = { .count = 0 };
	char *before = json_dumps(value, JSON_ENCODE_ANY);
	bool had = before && strstr(before, VALUE);
	free(before);
	if (json_is_object(value))
		json_object_set_new(value, "db_password", json_string(VALUE));
	MUST(cell__redact_json(redactor, value, &found, &out) == 0);
	MUST(cell__json_check(out.data, out.size));
	MUST(had || !memmem(out.data, out.size, VALUE, sizeof VALUE - 1));
	for (size_t i = 0; i < found.count; i++)
		MUST(json_is_string(found.list[i]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct cell__redactor *redactor;
	static const char *const more[] = { "iban", "a.b*", NULL };
	if (!redactor)
		MUST(cell__redactor_create(more, &redactor, NULL) == 0);
	check_text(redactor, (const char *)data, size);
	json_t *value = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (value)
		check_json(redactor, value);
	json_decref(value);
	return 0;
}
