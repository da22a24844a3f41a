/* See words.h. */
#include "base/words.h"

#include <stddef.h>
#include <stdio.h>

const char *cell__size_words(uint64_t bytes, char words[static 32])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	double shown = (double)bytes;
	size_t unit = 0;

	while (shown >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		shown /= 1024;
		unit++;
	}
	snprintf(words, 32, shown < 10 && shown != (double)(int)shown ? "%.1f %s" : "%.0f %s", shown, units[unit]);
	return words;
}
