#define _GNU_SOURCE
#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

#ifdef __clang_analyzer__
#undef cell_fail
#undef cell_fail_wrap
#endif

/* A truncated message must end with a whole character: it is used in JSON. */
static void trim(struct cell_error *err)
{
	size_t n = strlen(err->msg);
	err->msg[n - cell__utf8_cut(err->msg, n)] = '\0';
}

int cell_fail(struct cell_error *err, int code, int sys, const char *fmt, ...)
{
	if (!err)
		return -1;
	err->code = code;
	err->sys = sys;
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	if (sys != 0 && n >= 0 && (size_t)n < sizeof err->msg - 1)
		snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", strerrordesc_np(sys));
	trim(err);
	return -1;
}

int cell_fail_wrap(struct cell_error *err, const char *fmt, ...)
{
	if (!err)
		return -1;
	char old[sizeof err->msg - 2]; /* there is a ": " to add */
	memcpy(old, err->msg, sizeof old);
	old[sizeof old - 1] = '\0';
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof err->msg - 1)
		snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", old);
	trim(err);
	return -1;
}

int cell__require_all(struct cell_error *err, const char *function, const void *const *pointers, size_t count, const char *names)
{
	for (size_t i = 0; i < count; i++, names += strcspn(names, ",") + 2)
		if (!pointers[i])
			return cell_fail(err, CELL_E_INVALID, 0, "%s(): %.*s is NULL", function, (int)strcspn(names, ","), names);
	return 0;
}

bool cell__code_is_outcome(int code)
{
	switch (code) {
#define OUTCOME_ROW(number, name, word, http, rpc, exit_status, py) \
	case number:                                                \
		return rpc <= -32100 && rpc > -32200;
		CELL_CODE_TABLE(OUTCOME_ROW)
#undef OUTCOME_ROW
	default:
		return false;
	}
}
