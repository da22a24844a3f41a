/*
 * wire/shape: one JSON value per line, as results of one tool; the first line may also be an entry of a storage.  Whatever comes in, shapes
 * are within the limits, contain each observed result, and a sequence of equal results becomes stable.
 */
#include "fuzz.h"
#include "wire/shape.h"

static void check_text(const json_t *shape)
{
	for (size_t max = 8; max <= 512; max *= 4) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		MUST(cell__shape_text(shape, max, &text) == 0 && text.size > 0 && text.size <= max);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *entry = NULL;
	for (size_t at = 0; at < size;) {
		const uint8_t *end = memchr(data + at, '\n', size - at);
		size_t n = end ? (size_t)(end - data) - at : size - at;
		json_t *value = json_loadb((const char *)data + at, n, JSON_DECODE_ANY, NULL);
		at += n + 1;
		if (!value)
			continue;
		if (!entry && cell__shape_entry_ok(value)) {
			entry = value;
			check_text(json_object_get(entry, "shape"));
			continue;
		}
		bool drift;
		json_t *shape = cell__shape_of(value);
		MUST(cell__shape_ok(shape));
		check_text(shape);
		json_t *next = cell__shape_learn(entry, shape, &drift);
		MUST(cell__shape_entry_ok(next) && (!drift || cell__shape_stable(entry)));
		json_decref(entry);
		entry = next;
		json_t *again = cell__shape_merge(json_object_get(entry, "shape"), shape);
		MUST(json_equal(again, json_object_get(entry, "shape")));
		json_decref(again);
		json_decref(shape);
		json_decref(value);
	}
	json_decref(entry);
	return 0;
}
