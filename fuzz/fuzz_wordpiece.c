/* search/wordpiece.  Input: text for a fixed vocabulary, and as a vocabulary itself.  Numbers are the vocabulary's, and stay within their bound. */
#include "base/base.h"
#include "fuzz.h"
#include "search/wordpiece.h"

#define MAX 48

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char vocabulary[] = "[UNK]\n[CLS]\n[SEP]\na\nb\n##a\n##b\nthe\n##re\n.\n\xc3\xa6\n##\xc3\xa6\n";
	const char *text = (const char *)data;
	struct cell__wordpiece pieces;
	int64_t ids[MAX];
	size_t n;

	MUST(cell__wordpiece_init(&pieces, vocabulary, sizeof(vocabulary) - 1, NULL) == 0);
	n = cell__wordpiece_encode(&pieces, text, size, ids, MAX);
	MUST(n >= 2 && n <= MAX && ids[0] == 1 && ids[n - 1] == 2);
	for (size_t i = 0; i < n; i++)
		MUST(ids[i] >= 0 && ids[i] < 12);
	cell__wordpiece_finish(&pieces);
	if (size && cell__wordpiece_init(&pieces, text, size, NULL) == 0) {
		n = cell__wordpiece_encode(&pieces, text, size, ids, 2 + size % (MAX - 2));
		MUST(n >= 2 && n <= MAX);
		cell__wordpiece_finish(&pieces);
	}
	return 0;
}
