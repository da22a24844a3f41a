/*
 * Rows of branches: forks of a live session with 30 MB of data, points, undo, layers.  What stands in the floor's column is a bare os.fork() of the
 * same process, which ends at once and is waited for, in turns.
 */
#define _GNU_SOURCE 1
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rows_internal.h"

#define DATA "import os, time\ndata = [bytes(1000) for _ in range(30000)]"
#define LIBRARIES "try: import numpy, pandas\nexcept ImportError: pass"
#define BARE_FORK                                                                                                  \
	"began = time.perf_counter_ns()\npid = os.fork()\nif pid == 0: os._exit(0)\nstatus = os.waitpid(pid, 0)\n" \
	"time.perf_counter_ns() - began"
#define MANY 100
#define REFILL_US 20000 /* between forks of a sandbox: the pool is full again */

/* engine: as it comes, with its pool: in a sandbox, with a layer over its workspace; NULL: the benchmark's, in a subprocess. */
static int open_full(struct cell__bench *b, int undo, struct cell_engine *engine, struct cell_session **ret)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	char path[320];

	opts.python = b->python;
	opts.undo = undo;
	if (engine) {
		snprintf(path, sizeof(path), "%s/project", b->folder.path);
		mkdir(path, 0755); /* the session's open() complains if it is not there */
		opts.executor = "sandbox";
		opts.cwd = path;
		opts.workspace_mode = "cow";
		if (cell_session_prewarm(engine, &opts, &err))
			return complain_err("prewarm", &err);
	}
	if (cell_session_open(engine ? engine : b->engine, &opts, ret, &err))
		return complain_err("open a session", &err);
	return run_cell(*ret, DATA, NULL, NULL, NULL);
}

static int sample_bare(struct cell_session *session, int count, struct cell__bench_row *row)
{
	for (int i = 0; i < count; i++) {
		struct cell_result *result = NULL;
		struct cell_error err = { 0 };
		int r;

		if (cell_session_run(session, BARE_FORK, strlen(BARE_FORK), NULL, &result, &err))
			return complain_err("a bare fork", &err);
		r = cell_result_value_json(result) ? add_sample(&row->floor, strtod(cell_result_value_json(result), NULL)) : -1;
		cell_result_destroy(result);
		if (r)
			return complain("a bare fork failed");
	}
	return 0;
}

static int measure_fork(struct cell__bench *b, struct cell_engine *engine, struct cell__bench_row *row)
{
	struct cell_session *session = NULL, *plain = NULL, *fork = NULL;
	struct cell_error err = { 0 };
	int r = open_full(b, 0, engine, &session);

	/* A bare fork is cheaper where the memory is in a file already, as it is in a sandbox that was forked before. */
	if (!r && engine)
		r = open_full(b, 0, NULL, &plain);

	for (int round = -1; !r && round < rounds(b, 40); round++) {
		for (int i = 0; !r && i < 5; i++) {
			if (engine)
				usleep(REFILL_US);
			double began = now_ns(), ns;

			if (cell_session_fork(session, NULL, 1, &fork, &err)) {
				r = complain_err("fork", &err);
				break;
			}
			r = run_cell(fork, "1+1", "2", NULL, NULL);
			ns = now_ns() - began;
			cell_session_close(fork);
			if (!r && round >= 0)
				r = add_sample(&row->cell, ns);
		}
		if (!r && round >= 0)
			r = sample_bare(plain ? plain : session, 5, row);
	}
	cell_session_close(session);
	cell_session_close(plain);
	return r;
}

int cell__bench_measure_fork(struct cell__bench *b, struct cell__bench_row *row)
{
	return measure_fork(b, NULL, row);
}

int cell__bench_measure_fork_layer(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_engine_options opts = CELL_ENGINE_OPTIONS_INIT;
	struct cell_engine *engine = NULL;
	struct cell_error err = { 0 };
	int r;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	r = cell_engine_create(&opts, &engine, &err) ? complain_err("start an engine", &err) : measure_fork(b, engine, row);
	cell_engine_destroy(engine);
	return r;
}

/* Of a hundred at once, each. */
int cell__bench_measure_fork_many(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL, *forks[MANY];
	struct cell_error err = { 0 };
	int r = open_full(b, 0, NULL, &session);

	for (int round = -1; !r && round < rounds(b, 8); round++) {
		double began = now_ns(), ns;

		if (cell_session_fork(session, NULL, MANY, forks, &err)) {
			r = complain_err("fork", &err);
			break;
		}
		ns = (now_ns() - began) / MANY;
		for (int i = 0; i < MANY; i++)
			cell_session_close(forks[i]);
		if (round >= 0)
			r = add_sample(&row->cell, ns) || sample_bare(session, 20, row) ? -1 : 0;
	}
	cell_session_close(session);
	return r;
}

int cell__bench_measure_rewind(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	int r = open_full(b, 0, NULL, &session);

	if (!r && cell_session_checkpoint(session, "point", NULL, &err))
		r = complain_err("keep a point", &err);
	for (int round = -1; !r && round < rounds(b, 40); round++) {
		for (int i = 0; !r && i < 5; i++) {
			double began;

			if (run_cell(session, "changed = 1", NULL, NULL, NULL)) {
				r = -1;
				break;
			}
			began = now_ns();
			if (cell_session_rewind(session, "point", 0, &err)) {
				r = complain_err("rewind", &err);
				break;
			}
			r = run_cell(session, "1+1", "2", NULL, NULL);
			if (!r && round >= 0)
				r = add_sample(&row->cell, now_ns() - began);
			if (!r)
				r = run_cell(session, "'changed' in globals()", "false", NULL, NULL);
		}
		if (!r && round >= 0)
			r = sample_bare(session, 5, row);
	}
	cell_session_close(session);
	return r;
}

static int run_same(struct cell_session *session, double *ret_ns)
{
	return run_cell(session, "1+1", "2", NULL, ret_ns);
}

/* What a cell that changes little takes more with undo; the row of cells that change nothing comes along. */
int cell__bench_measure_undo(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell__bench_row *same = &b->rows[CELL_ROW_UNDO_SAME];
	struct cell_session *with = NULL, *without = NULL;
	int r = open_full(b, 20, NULL, &with) || open_full(b, 0, NULL, &without) || run_cell(with, LIBRARIES "\nx = 0", NULL, NULL, NULL) ||
				run_cell(without, LIBRARIES "\nx = 0", NULL, NULL, NULL)
			? -1
			: 0;

	for (int round = -1; !r && round < rounds(b, 40); round++) {
		for (int i = 0; !r && i < 5; i++) {
			double ours, bare, unchanged, plain;

			/*
			 * The second one: before the first the state may be that of a point already.  A cell that changes nothing after one
			 * that did finds the new point still busy, which is the price of the other.
			 */
			r = run_cell(with, "x += 1", NULL, NULL, NULL) || run_cell(with, "x += 1", NULL, NULL, &ours) ||
					    run_cell(without, "x += 1", NULL, NULL, NULL) ||
					    run_cell(without, "x += 1", NULL, NULL, &bare) || run_same(with, NULL) ||
					    run_same(with, NULL) || run_same(with, NULL) || run_same(with, &unchanged) ||
					    run_same(without, NULL) || run_same(without, NULL) || run_same(without, NULL) ||
					    run_same(without, &plain)
				    ? -1
				    : 0;
			if (!r && round >= 0)
				r = add_sample(&row->cell, ours > bare ? ours - bare : 0) || add_sample(&same->cell, unchanged) ||
						    add_sample(&same->floor, plain)
					    ? -1
					    : 0;
		}
		if (!r && round >= 0)
			r = sample_bare(without, 5, row);
	}
	cell_session_close(with);
	cell_session_close(without);
	return r;
}

/* ---- layers ---- */

#define LAYER_FILES 10000
#define CHANGE_FILES "for i in range(100): n = open('%d/%d' % (i, i), 'w').write('changed')"

static int fill_workspace(const char *path)
{
	char name[400];

	if (mkdir(path, 0755))
		return complain("make a folder");
	for (int i = 0; i < LAYER_FILES; i++) {
		FILE *file;

		snprintf(name, sizeof(name), "%s/%d", path, i % 100);
		if (i < 100 && mkdir(name, 0755))
			return complain("make a folder");
		snprintf(name, sizeof(name), "%s/%d/%d", path, i % 100, i / 100 == i % 100 ? i % 100 : 1000 + i);
		file = fopen(name, "w");
		if (!file || fprintf(file, "the text of file %d\n", i) < 0 || fclose(file))
			return complain("make a file");
	}
	return 0;
}

static int time_layer(struct cell__bench *b, const char *path, const char *mode, double *ret_open, double *ret_diff)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	double began = now_ns();
	char *diff = NULL;
	int r;

	opts.executor = "sandbox";
	opts.python = b->python;
	opts.cwd = path;
	opts.workspace_mode = mode;
	if (cell_session_open(b->engine, &opts, &session, &err))
		return complain_err("open a session", &err);
	r = run_cell(session, "1+1", "2", NULL, NULL);
	*ret_open = now_ns() - began;
	if (!r && ret_diff) {
		r = run_cell(session, CHANGE_FILES, NULL, NULL, NULL);
		began = now_ns();
		diff = r ? NULL : cell_session_diff(session, 1, &err);
		*ret_diff = now_ns() - began;
		if (!r && (!diff || !strstr(diff, "\"changed\":100")))
			r = diff ? complain("the diff has not the changes") : complain_err("diff", &err);
		free(diff);
	}
	cell_session_close(session);
	return r;
}

/* A sandbox with a layer and, beside it, without one; the diff of 100 changed files comes along. */
int cell__bench_measure_layer_open(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell__bench_row *diffs = &b->rows[CELL_ROW_LAYER_DIFF];
	char path[320];
	double with, without, diff;
	int r;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	snprintf(path, sizeof(path), "%s/files", b->folder.path);
	r = fill_workspace(path);
	for (int i = -3; !r && i < rounds(b, 60); i++) {
		usleep(5000); /* the spawner makes its jails ahead */
		r = time_layer(b, path, "cow", &with, &diff);
		usleep(5000);
		if (!r)
			r = time_layer(b, path, "rw", &without, NULL);
		if (!r && i >= 0)
			r = add_sample(&row->cell, with) || add_sample(&row->floor, without) || add_sample(&diffs->cell, diff) ? -1 : 0;
	}
	return r;
}
