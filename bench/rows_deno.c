/*
 * Rows of the `deno` executor.  What stands in the floor's column is what it is compared with: a start without snapshot for
 * the open, and the same thing in `subprocess` for the others.
 */
#define _GNU_SOURCE 1
#include <glob.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rows_internal.h"

#define CALLS 200

static bool usable(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_executor_info info = { .size = sizeof(info) };

	for (size_t i = 0; !cell_executor_probe(b->engine, i, &info); i++)
		if (!strcmp(info.name, "deno") && info.available)
			return true;
	row->skipped = "no Deno here: workcell doctor --fix deno";
	return false;
}

static int open_one(struct cell__bench *b, const char *executor, const char *preload, struct cell_space *space,
		    struct cell_session **ret)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };

	opts.executor = executor;
	opts.python = b->python;
	opts.cwd = b->folder.path;
	opts.preload = preload;
	opts.space = space;
	return cell_session_open(b->engine, &opts, ret, &err) ? complain_err("open a session", &err) : 0;
}

static int time_open(struct cell__bench *b, const char *preload, double *ret_ns)
{
	struct cell_session *session = NULL;
	double began = now_ns();
	int r = open_one(b, "deno", preload, NULL, &session);

	if (!r)
		r = run_cell(session, "1+1", "2", NULL, NULL);
	*ret_ns = now_ns() - began;
	cell_session_close(session);
	return r;
}

static void list_snapshots(glob_t *found)
{
	const struct passwd *user = getpwuid(getuid());
	char *pattern = NULL;

	memset(found, 0, sizeof(*found));
	if (asprintf(&pattern, "%s/.cache/workcell/deno-*/*.snapshot", user ? user->pw_dir : "") >= 0)
		(void)glob(pattern, 0, NULL, found);
	free(pattern);
}

/* Those that a plain start has made. */
static void remove_new_snapshots(const glob_t *before)
{
	glob_t now;

	list_snapshots(&now);
	for (size_t i = 0; i < now.gl_pathc; i++) {
		bool old = false;

		for (size_t k = 0; k < before->gl_pathc; k++)
			old = old || !strcmp(before->gl_pathv[k], now.gl_pathv[i]);
		if (!old)
			unlink(now.gl_pathv[i]);
	}
	globfree(&now);
}

int cell__bench_measure_deno_open(struct cell__bench *b, struct cell__bench_row *row)
{
	/* Nobody has a snapshot with these. */
	static const char *const strange[] = { "json,json,json,json", "json,json,json,json,json", "json,json,json,json,json,json" };
	glob_t before;
	double ns;
	int r = 0;

	if (!usable(b, row))
		return 0;
	for (int i = -1; i < rounds(b, 16) && !r; i++)
		r = time_open(b, NULL, &ns) || (i >= 0 && add_sample(&row->cell, ns)) ? -1 : 0;
	list_snapshots(&before);
	for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]) && !r; i++)
		r = time_open(b, strange[i], &ns) || add_sample(&row->floor, ns) ? -1 : 0;
	remove_new_snapshots(&before);
	globfree(&before);
	return r;
}

/* One session of each, and fn for each in turns. */
static int in_turns(struct cell__bench *b, struct cell__bench_row *row, struct cell_space *space, int n,
		    int (*fn)(struct cell_session *session, double *ret))
{
	struct cell_session *both[2] = { NULL, NULL };
	double value;
	int r = open_one(b, "deno", NULL, space, &both[0]) || open_one(b, "subprocess", NULL, space, &both[1]) ? -1 : 0;

	for (int i = -1; i < n && !r; i++)
		for (int side = 0; side < 2 && !r; side++)
			r = fn(both[side], &value) || (i >= 0 && add_sample(side ? &row->floor : &row->cell, value)) ? -1 : 0;
	cell_session_close(both[0]);
	cell_session_close(both[1]);
	return r;
}

static int time_cell(struct cell_session *session, double *ret)
{
	return run_cell(session, "1+1", "2", NULL, ret);
}

static int time_reset(struct cell_session *session, double *ret)
{
	struct cell_error err = { 0 };
	double began = now_ns();

	if (cell_session_reset(session, &err))
		return complain_err("reset a session", &err);
	int r = run_cell(session, "1+1", "2", NULL, NULL);

	*ret = now_ns() - began;
	return r;
}

static int read_memory(struct cell_session *session, double *ret)
{
	*ret = (double)cell__bench_private_bytes(cell_session_kernel_pid(session));
	return *ret > 0 ? 0 : complain("cannot read smaps_rollup of a kernel");
}

static int time_calls(struct cell_session *session, double *ret)
{
	char code[120];
	int r;

	snprintf(code, sizeof(code), "for i in range(%d):\n    answer = tools.nothing()\nanswer", CALLS);
	r = run_cell(session, code, "7", NULL, ret);
	*ret /= CALLS;
	return r;
}

static void handle_nothing(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	cell_tool_call_answer_json(call, "7", 1);
}

int cell__bench_measure_deno_cell(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? in_turns(b, row, NULL, rounds(b, 400), time_cell) : 0;
}

int cell__bench_measure_deno_reset(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? in_turns(b, row, NULL, rounds(b, 12), time_reset) : 0;
}

int cell__bench_measure_deno_memory(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? in_turns(b, row, NULL, 1, read_memory) : 0;
}

int cell__bench_measure_deno_tool_call(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_space_options opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_space *space = NULL;
	struct cell_error err = { 0 };
	int r;

	if (!usable(b, row))
		return 0;
	tool.name = "nothing";
	tool.fn = handle_nothing;
	if (cell_space_open(b->engine, &opts, &space, &err) || cell_space_add_tool(space, &tool, &err))
		r = complain_err("open a space", &err);
	else
		r = in_turns(b, row, space, rounds(b, 12), time_calls);
	cell_space_close(space);
	return r;
}
