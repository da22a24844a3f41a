/*
 * What the tests of src/tools share: a loop with a registry on it, questions and their answers, files in a directory of
 * the test's own, and an implementation of spawn/process.h on posix_spawn, without the spawner.
 */
#ifndef CELL_TEST_TOOLS_SUPPORT_H
#define CELL_TEST_TOOLS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/internal.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct bench {
	struct cell__loop *loop;
	struct cell__tools *tools;
	struct cell__tools_view view;
	char dir[64];
	const char *const *env; /* "K=V" of the pretended host */
	const struct cell__principal *asker; /* NULL: the host */
	size_t fds_before;
};

void bench_start(struct bench *bench);
/* Ends registry and loop. */
void bench_close(struct bench *bench);
/* The same where it has not been done, and checks that nothing is left: no descriptor, no child. */
void bench_stop(struct bench *bench);
/* Runs fn on the loop's thread. */
void bench_call(struct bench *bench, void (*fn)(void *arg), void *arg);
void bench_write(struct bench *bench, const char *name, const char *text);
void bench_remove(struct bench *bench, const char *name);

/* All threads of libuv's pool wait: work for it stays where it is until they are released. */
void bench_hold_pool(struct bench *bench);
void bench_release_pool(struct bench *bench);

/* One question; answer_* is filled when it was answered, else code, type, message. */
struct ask {
	struct cell__call call;
	struct cell__task task;
	struct cell__waiter waiter;
	struct bench *bench;
	bool answered;
	json_t *result;
	struct cell__buf raw;
	int code;
	char type[64];
	struct cell__buf message;
};

/* Takes over args.  Returns at once; nothing was waited for.  The session is "s1". */
void ask_start(struct ask *ask, struct bench *bench, const char *method, json_t *args);
void ask_start_for(struct ask *ask, struct bench *bench, const char *session_id, const char *method, json_t *args);
void ask_wait(struct ask *ask);
/* The asker goes. */
void ask_cancel(struct ask *ask);
void ask_finish(struct ask *ask);
/* ask_start and ask_wait for tools.call; args is JSON text with ' for ". */
void ask_tool(struct ask *ask, struct bench *bench, const char *name, const char *args);
/* The call must be answered with this text. */
void expect_text(struct bench *bench, const char *name, const char *args, const char *text);
/* The call must fail so; `part` must be in the message. */
void expect_fail(struct bench *bench, const char *name, const char *args, int code, const char *type, const char *part);
/* The answer of a method as compact JSON text, sorted keys; free() it. */
char *ask_json(struct bench *bench, const char *method, json_t *args);

/* JSON from text with ' for ". */
json_t *quick_json(const char *text);
/* A tool from YAML text that must be right. */
struct cell__tool_entry *load_ok(const char *yaml);

/* How many processes the fake layer has started, and the most at once. */
extern size_t fake_started, fake_most, fake_alive;

#endif
