/*
 * What test_deps.c stands on: a project with its loop, spawner, store and deps; calls that are waited for; wheels that
 * are written here.
 */
#ifndef CELL_TEST_DEPS_SUPPORT_H
#define CELL_TEST_DEPS_SUPPORT_H

#include "support.h"

#include "deps/deps.h"

extern char tmp[64];          /* of this run */
extern char wheels[96];       /* in it */
extern char search_path[4200];
extern bool with_uv;

#define TEST_OTHER_PYTHON "/root/.pyenv/versions/3.12.1/bin/python3" /* tests that need another one skip without it */

struct project {
	struct cell__loop *loop;
	struct cell__supervisor supervisor;
	struct cell__store *store;
	struct cell__deps *deps;
	struct cell__deps_options options;
	char base[160], cache[160];
	struct cell__waiter closed;
	struct cell__buf progress;
	size_t lines;
};

struct ask {
	struct cell__call call;
	struct cell__task task;
	struct cell__waiter waiter;
	struct project *project;
	bool done;
	json_t *result;
	int code;
	char type[64], message[8192];
};

struct where {
	struct project *project;
	char *site, *bin;
};

/* A project of this name with its own cache; `configure` may be NULL. */
void project_open(struct project *project, const char *name, void (*configure)(struct project *project));
void project_close(struct project *project);

void ask_init(struct ask *ask, struct project *project, const char *method, const char *package);
void ask_wait(struct ask *ask);
void ask_finish(struct ask *ask);

/* On the loop: fills a struct where with copies. */
void handle_where(void *arg);

json_t *do_ok(struct project *project, const char *method, const char *package);
void do_fail(struct project *project, const char *method, const char *package, int code, const char *type, const char *words);
void expect_array(json_t *array, const char *expected);
void expect_sync(json_t *result, const char *installed, const char *present, const char *failed);
void do_sync(struct project *project, const char *method, const char *package, const char *installed, const char *present,
	     const char *failed);
void expect_list(struct project *project, const char *expected);
void remove_is(struct project *project, const char *package, bool expected);
int shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Does the venv's own interpreter run this without an error? */
bool venv_says(struct project *project, const char *code);
void write_requirements(const char *base, const char *text);
/* Are there folders that are being made or removed? */
int leftovers(const char *dir);
/* The same for support_wait(): what an operation made goes after its answer. */
bool nothing_is_left(void *dir);
/* No process has this folder in its command line. */
bool nobody_runs_in(void *folder);
/* cell-alpha 1.0 and 2.0 with the extra "more", cell-beta 1.5, cell-gamma 0.1 that needs cell-alpha>=2. */
void make_wheels(void);

#endif
