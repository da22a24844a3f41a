#include "base/memory.h"

#include <stdbool.h>
#include <string.h>

static long fail_countdown;

void cell__alloc_fail_after(long n)
{
	fail_countdown = n;
}

static bool must_fail(void)
{
	return fail_countdown > 0 && --fail_countdown == 0;
}

void *cell__alloc(size_t count, size_t size)
{
	if (must_fail())
		return NULL;
	return calloc(count ? count : 1, size ? size : 1);
}

void *cell__realloc(void *old, size_t size)
{
	if (must_fail())
		return NULL;
	return realloc(old, size ? size : 1);
}

char *cell__strndup(const char *bytes, size_t size)
{
	char *copy = cell__alloc(1, size + 1);
	if (copy && size)
		memcpy(copy, bytes, size);
	return copy;
}

char *cell__strdup(const char *text)
{
	return cell__strndup(text, strlen(text));
}

void cell__strings_free(char **strings)
{
	for (char **at = strings; at && *at; at++)
		free(*at);
	free(strings);
}

char **cell__strings_copy(const char *const *strings)
{
	size_t n = 0;
	while (strings && strings[n])
		n++;
	char **copy = cell__alloc(n + 1, sizeof *copy);
	for (size_t i = 0; copy && i < n; i++)
		if (!(copy[i] = cell__strdup(strings[i]))) {
			cell__strings_free(copy);
			return NULL;
		}
	return copy;
}
