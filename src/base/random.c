#include "base/random.h"

#include <stdlib.h>
#include <sys/random.h>

void cell__random_hex(char *out, size_t n_chars)
{
	unsigned char bytes[64];
	size_t need = (n_chars + 1) / 2;
	if (need > sizeof bytes)
		abort(); /* misuse */
	/* Up to 256 bytes never fail or fall short once the pool is initialised; before that it waits. */
	while (getrandom(bytes, need, 0) != (ssize_t)need) {
	}
	for (size_t i = 0; i < n_chars; i++)
		out[i] = "0123456789abcdef"[i % 2 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4];
	out[n_chars] = '\0';
}
