/*
 * wire/connect.  Input: a bound, then messages.  What is read lies in the bytes and within the bound; written again it is the same bytes.
 */
#include "base/base.h"
#include "fuzz.h"
#include "wire/connect.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < 2)
		return 0;
	size_t max = (size_t)data[0] << 8 | data[1], left = size - 2;
	uint8_t *copy = fuzz_copy(data + 2, left);
	const char *at = (const char *)copy, *message;
	size_t n;
	unsigned flags;
	long taken;

	while ((taken = cell__connect_next(at, left, max, &flags, &message, &n)) > 0) {
		CELL_AUTO_BUF struct cell__buf again = CELL_BUF_INIT;

		MUST(n <= max && message == at + CELL_CONNECT_HEAD && (size_t)taken == n + CELL_CONNECT_HEAD && (size_t)taken <= left);
		MUST(cell__connect_add(&again, flags, message, n) == 0);
		MUST(again.size == (size_t)taken && memcmp(again.data, at, again.size) == 0);
		at += taken;
		left -= (size_t)taken;
	}
	free(copy);
	return 0;
}
