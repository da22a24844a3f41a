/* core: any bytes become valid UTF-8, valid UTF-8 stays as it is, and as a JSON string it comes back the same. */
#include <jansson.h>

#include "base/base.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT, json = CELL_BUF_INIT, base64 = CELL_BUF_INIT;
	uint8_t *bytes = fuzz_copy(data, size);
	bool good = cell__utf8_ok((const char *)bytes, size);
	MUST(cell__buf_add_utf8(&clean, (const char *)bytes, size) == 0);
	MUST(cell__utf8_ok(clean.data, clean.size));
	MUST(good == (clean.size == size && (size == 0 || memcmp(clean.data, bytes, size) == 0)));
	MUST(cell__buf_add_json_string(&json, clean.data, clean.size) == 0);
	json_t *string = json_loadb(json.data, json.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	MUST(string && json_string_length(string) == clean.size);
	MUST(memcmp(json_string_value(string), clean.data, clean.size) == 0);
	json_decref(string);
	MUST(cell__buf_add_base64(&base64, bytes, size) == 0);
	MUST(base64.size == (size + 2) / 3 * 4 && base64.data[base64.size] == '\0');
	free(bytes);
	return 0;
}
