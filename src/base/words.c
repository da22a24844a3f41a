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

const char *cell__age_words(int64_t seconds, char words[static 32])
{
	static const struct {
		int64_t seconds;
		const char *word;
	} units[] = { { 24 * 3600, "days" }, { 3600, "hours" }, { 60, "minutes" } };

	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
		if (seconds >= 2 * units[i].seconds) {
			snprintf(words, 32, "%lld %s ago", (long long)(seconds / units[i].seconds), units[i].word);
			return words;
		}
	}
	snprintf(words, 32, "just now");
	return words;
}

const char *cell__duration_words(double ms, char words[static 32])
{
	if (ms < 999.5)
		snprintf(words, 32, ms < 9.95 ? "%.1f ms" : "%.0f ms", ms);
	else if (ms < 59950)
		snprintf(words, 32, "%.1f s", ms / 1000);
	else if (ms < 3600e3)
		snprintf(words, 32, "%d min %d s", (int)(ms / 60e3), (int)(ms / 1000) % 60);
	else
		snprintf(words, 32, "%lld h %d min", (long long)(ms / 3600e3), (int)((long long)(ms / 60e3) % 60));
	return words;
}
