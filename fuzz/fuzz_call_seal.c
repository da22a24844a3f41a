/* wire/call_seal.  Input: a requestState.  One that can be read has parts of their form, and none is good by accident. */
#include <string.h>

#include "base/base.h"
#include "fuzz.h"
#include "wire/call_seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const unsigned char key[CELL_CALL_SEAL_KEY_BYTES] = "a key of thirty-two bytes 123456";
	CELL_AUTO_FREE char *text = cell__strndup((const char *)data, size);
	json_t *args = json_object();
	const struct cell__sealed_call call = { "one", "run_code", args };
	char again[CELL_CALL_SEAL_MAX + 1];
	struct cell__call_seal seal;

	MUST(text && args);
	if (cell__call_seal_read(text, &seal)) {
		MUST(strlen(seal.session) == CELL_CALL_SEAL_ID_DIGITS && strlen(seal.round) == CELL_CALL_SEAL_ID_DIGITS);
		MUST(seal.until_s >= 0 && cell__call_seal_write(key, &seal, &call, again));
		MUST(cell__call_seal_check(key, again, &call, seal.until_s - 1) && !cell__call_seal_check(key, again, &call, seal.until_s));
		/* Fuzzers do not find the code. */
		MUST(strcmp(strrchr(text, '.'), strrchr(again, '.')) != 0 && !cell__call_seal_check(key, text, &call, 0));
	} else {
		MUST(!cell__call_seal_check(key, text, &call, 0));
	}
	json_decref(args);
	return 0;
}
