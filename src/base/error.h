/* Filling struct cell_error.  No allocation: it works after fork() and without memory. */
#ifndef CELL_BASE_ERROR_H
#define CELL_BASE_ERROR_H

#include <stdbool.h>
#include <stddef.h>

#include "workcell.h"

/*
 * Fills *err (may be NULL) and returns -1, so that `return cell_fail(err, CELL_E_IO, errno, "open %s", path)`
 * is the whole error path.  Where sys is not 0 its text is appended.
 */
int cell_fail(struct cell_error *err, int code, int sys, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Puts "prefix: " before the message of the error. */
int cell_fail_wrap(struct cell_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * At the public edge: the parameters that must not be NULL.  Returns 0, or -1 with CELL_E_INVALID and a message that names the function
 * and the parameter.
 */
#define cell__require(err, ...)                                                \
	cell__require_all(err, __func__, (const void *const[]){ __VA_ARGS__ }, \
			  sizeof((const void *[]){ __VA_ARGS__ }) / sizeof(const void *), #__VA_ARGS__)
int cell__require_all(struct cell_error *err, const char *function, const void *const *pointers, size_t count, const char *names);

/* Whether the code is an outcome of the agent's code (CELL_OUT_...), not a failure of ours. */
bool cell__code_is_outcome(int code);

#ifdef __clang_analyzer__
/* scripts/analyze.py reads one file at a time: without this it follows paths on which a failure returns 0. */
#define cell_fail(...) ((void)cell_fail(__VA_ARGS__), -1)
#define cell_fail_wrap(...) ((void)cell_fail_wrap(__VA_ARGS__), -1)
#endif

#endif
