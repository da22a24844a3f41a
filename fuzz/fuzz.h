/* What the fuzz targets share.  A postcondition that does not hold is a crash, as libFuzzer wants it. */
#ifndef CELL_FUZZ_H
#define CELL_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                         \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                \
		}                                                                               \
	} while (0)

/* A copy in memory of exactly its size, so that the sanitizer sees every look past the end. */
static inline uint8_t *fuzz_copy(const uint8_t *bytes, size_t size)
{
	uint8_t *copy = malloc(size ? size : 1);
	if (!copy)
		abort();
	if (size)
		memcpy(copy, bytes, size);
	return copy;
}

#endif
