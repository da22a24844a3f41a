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

static bool usable(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_executor_info info = { .size = sizeof(info) };

	for (size_t i = 0; !cell_executor_probe(b->engine, i, &info); i++)
		if (!strcmp(info.name, "deno") && info.available)
			return true;
	row->skipped = "no Deno here: workcell doctor --fix deno";
	return false;
}

static int time_open(struct cell__bench *b, const char *preload, double *ret_ns)
{
	struct cell_session *session = NULL;
	double began = now_ns();
	int r = cell__bench_open(b, b->engine, "deno", preload, NULL, &session);

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

int cell__bench_measure_deno_cell(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? cell__bench_executor_cell(b, row, "deno") : 0;
}

int cell__bench_measure_deno_tool_call(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? cell__bench_executor_call(b, row, "deno") : 0;
}

int cell__bench_measure_deno_reset(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? cell__bench_executor_reset(b, row, "deno") : 0;
}

int cell__bench_measure_deno_memory(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? cell__bench_executor_memory(b, row, "deno") : 0;
}
