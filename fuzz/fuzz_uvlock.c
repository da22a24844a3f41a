/* session/uvlock: whatever confined programs left in its place, what is found are names, versions, hashes and paths as texts. */
#include "fuzz.h"
#include "deps/uvlock.h"

static void check_texts(json_t *list)
{
	MUST(json_is_array(list));
	for (size_t i = 0; i < json_array_size(list); i++)
		MUST(json_is_string(json_array_get(list, i)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = fuzz_copy(data, size);
	json_t *found = cell__uvlock_parse((const char *)bytes, size);
	for (size_t i = 0; i < json_array_size(found); i++) {
		json_t *package = json_array_get(found, i);
		MUST(json_is_string(json_object_get(package, "name")) && json_is_string(json_object_get(package, "version")));
		MUST(json_integer_value(json_object_get(package, "bare")) >= 0);
		check_texts(json_object_get(package, "hashes"));
		check_texts(json_object_get(package, "files"));
	}
	json_decref(found);
	free(bytes);
	return 0;
}
