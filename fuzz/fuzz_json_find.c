/*
 * wire/json_find.  Whatever the text, it does not look past it; in JSON it finds the member that Jansson finds, and what it
 * finds is that member's text.
 */
#define _GNU_SOURCE
#include <jansson.h>

#include "fuzz.h"
#include "wire/json_find.h"

/* The first name in the object that needs no escapes. */
static const char *some_name(json_t *object)
{
	const char *name;
	json_t *value;
	json_object_foreach(object, name, value)
		if (!strpbrk(name, "\"\\"))
			return name;
	return NULL;
}

static void check(const char *text, size_t size, json_t *json, const char *first, const char *second)
{
	const char *path[] = { first, second, NULL }, *found;
	size_t n;
	json_t *wanted = json_object_get(json, first);
	if (second)
		wanted = json_object_get(wanted, second);
	bool is_there = cell__json_find(text, size, path, &found, &n);
	if (!is_there)
		return; /* its name may be spelt with escapes in the text */
	MUST(found >= text && found + n <= text + size);
	if (!json)
		return;
	json_t *value = json_loadb(found, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	MUST(value);
	/* Another member of the same name, spelt with escapes, may come after it. */
	if (!memchr(text, '\\', size))
		MUST(wanted && json_equal(value, wanted));
	json_decref(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = (char *)fuzz_copy(data, size);
	json_t *json = size && memchr(text, '\0', size) ? NULL : json_loadb(text, size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	const char *first = some_name(json), *second = first ? some_name(json_object_get(json, first)) : NULL;
	check(text, size, json, "a", "b");
	check(text, size, json, "", NULL);
	if (first)
		check(text, size, json, first, second);
	json_decref(json);
	free(text);
	return 0;
}
