/* See nearest.h. */
#include "base/nearest.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define MAX_SIZE 40u /* of words that are compared */

static size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* How many insertions, deletions, exchanges and swaps of neighbours turn a into b. */
static size_t distance(const char *a, size_t n, const char *b, size_t m)
{
	size_t rows[3][MAX_SIZE + 1], *before = rows[0], *last = rows[1], *row = rows[2];

	for (size_t k = 0; k <= m; k++)
		last[k] = k;
	memcpy(before, last, (m + 1) * sizeof(*last));
	for (size_t i = 1; i <= n; i++) {
		size_t *free_row = before;

		row[0] = i;
		for (size_t k = 1; k <= m; k++) {
			row[k] = least(least(last[k], row[k - 1]) + 1, last[k - 1] + (a[i - 1] != b[k - 1]));
			if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
				row[k] = least(row[k], before[k - 2] + 1);
		}
		before = last;
		last = row;
		row = free_row;
	}
	return last[m];
}

const char *cell__nearest(const char *given, const char *const *words)
{
	size_t size = strlen(given), best = size / 3 + 1, begun = 0;
	const char *found = NULL, *longer = NULL;

	if (!size || size > MAX_SIZE)
		return NULL;
	for (; *words; words++) {
		size_t other = strlen(*words), far;

		if (other > MAX_SIZE)
			continue;
		if (!strncmp(*words, given, size) && !begun++)
			longer = *words;
		far = distance(given, size, *words, other);
		/* A word of two letters that shares none with the given one is as far as a wrong guess. */
		if (far <= best && far < least(size, other) && (!found || far < best)) {
			best = far;
			found = *words;
		}
	}
	return begun == 1 && size > 1 ? longer : found;
}
