/*
 * What the unit tests share: checks that hold after every test, waiting with a deadline, and short ways to run cells.
 *
 * After each test there must be no descriptor and no process that was not there before.  The test program makes
 * itself a subreaper, so whatever loses its parent (the spawner on purpose, kernels and their children by mistake)
 * becomes its child and is seen.
 */
#ifndef CELL_TEST_SUPPORT_H
#define CELL_TEST_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"

/* For threads other than the test's own: cmocka's assertions jump, which only that one may do. */
#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                \
		}                                                                               \
	} while (0)

/* A sanitizer keeps what is freed: memory cannot be measured under one. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* The size of an input that is only there to be large: a sanitizer needs ten times as long for it, and finds no more. */
#ifdef SANITIZED
#define LARGE_INPUT(size) ((size) / 4)
#else
#define LARGE_INPUT(size) (size)
#endif

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Far beyond what a healthy program needs, also under a sanitizer on a busy machine. */
#define DEADLINE_MS 30000

/* Once, at the beginning of main().  An argument is the name of the one test to run, with * and ?. */
void support_init(int argc, char **argv);
/* Setup and teardown of every test. */
int support_begin(void **state);
int support_end(void **state);
#define TEST(name) cmocka_unit_test_setup_teardown(name, support_begin, support_end)

/* Polls until condition(arg) holds; false when it does not within the deadline. */
bool support_wait(bool (*condition)(void *arg), void *arg);
bool support_wait_ms(bool (*condition)(void *arg), void *arg, int ms);
bool support_pid_gone(void *pid); /* pid_t *; reaps it where it is ours */
/* A child that stays from test to test; 0: none. */
void support_keep_pid(pid_t pid);
size_t support_count_fds(void);
size_t support_count_children(void);
/* Kilobytes of memory that are this process's alone. */
long support_private_kb(void);
/* Reads a whole file into buf; false when it cannot be read. */
bool support_read_file(const char *path, struct cell__buf *buf);

/* ---- the library ---- */

#define TEST_PYTHON "/usr/bin/python3"

struct cell_engine *support_engine(int pool_size);
struct cell_session *support_session(struct cell_engine *engine);
struct cell_session *support_session_with(struct cell_engine *engine, const struct cell_session_options *opts);
/* Runs a cell that must come to a result. */
struct cell_result *support_run(struct cell_session *session, const char *code);
/* Runs a cell that must end well and compares its repr (NULL: no value). */
void support_expect(struct cell_session *session, const char *code, const char *repr);
/* 0, or the code of the result's error. */
int support_outcome(const struct cell_result *result);

#endif
