/* wire/seal.  Input: a cookie.  One that can be read has a name within its bound, and a cookie is never good by accident. */
#include "base/base.h"
#include "fuzz.h"
#include "wire/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const unsigned char key[CELL_SEAL_KEY_BYTES] = "a key of thirty-two bytes 123456";
	char name[CELL_SEAL_MAX_NAME + 1], proof[CELL_SEAL_MAC_DIGITS + 1];
	CELL_AUTO_FREE char *text = cell__strndup((const char *)data, size);
	int64_t until;
	MUST(text);
	if (cell__seal_read(text, name, &until))
		MUST(*name && strlen(name) <= CELL_SEAL_MAX_NAME && until >= 0);
	MUST(!cell__seal_check(key, text));
	MUST(cell__seal_proof(key, text, proof) == (strlen(text) <= CELL_SEAL_MAX));
	return 0;
}
