/*
 * Rows of the `jupyter` executor with ipykernel.  What stands in the floor's column here is the same thing in `subprocess`,
 * measured in turns.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rows_internal.h"

#define SPARE_READY_US 2500000 /* between resets: the next kernel is up again */

static const char *const sides[2] = { "jupyter", "subprocess" };

/* Is there ipykernel?  If not, the row is left out and says why. */
static bool usable(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session = NULL;

	opts.executor = "jupyter";
	opts.python = b->python;
	opts.cwd = b->folder.path;
	if (cell_session_open(b->engine, &opts, &session, NULL)) {
		row->skipped = "the executor jupyter does not work here; does the interpreter have ipykernel?";
		return false;
	}
	cell_session_close(session);
	return true;
}

static void close_both(struct cell_session *both[2])
{
	cell_session_close(both[0]);
	cell_session_close(both[1]);
}

int cell__bench_measure_jupyter_open(struct cell__bench *b, struct cell__bench_row *row)
{
	if (!usable(b, row))
		return 0;
	for (int i = -1; i < rounds(b, 12); i++)
		for (int side = 0; side < 2; side++) {
			struct cell_session *session = NULL;
			double began = now_ns(), ns;
			int r = cell__bench_open(b, b->engine, sides[side], NULL, NULL, &session);

			if (!r)
				r = run_cell(session, "1+1", "2", NULL, NULL);
			ns = now_ns() - began;
			cell_session_close(session);
			if (r || (i >= 0 && add_sample(side ? &row->floor : &row->cell, ns)))
				return -1;
		}
	return 0;
}

int cell__bench_measure_jupyter_cell(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? cell__bench_executor_cell(b, row, "jupyter") : 0;
}

int cell__bench_measure_jupyter_call(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? cell__bench_executor_call(b, row, "jupyter") : 0;
}

/* With a pool of one: a reset takes the kernel that is up already. */
int cell__bench_measure_jupyter_reset(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_engine_options opts = CELL_ENGINE_OPTIONS_INIT;
	struct cell_session *both[2] = { NULL, NULL };
	struct cell_engine *engine = NULL;
	struct cell_error err = { 0 };
	int r = -1;

	if (!usable(b, row))
		return 0;
	opts.pool_size = 1;
	if (cell_engine_create(&opts, &engine, &err))
		return complain_err("start an engine", &err);
	if (cell__bench_open(b, engine, sides[0], NULL, NULL, &both[0]) || cell__bench_open(b, engine, sides[1], NULL, NULL, &both[1]))
		goto out;
	for (int i = -1; i < rounds(b, 8); i++) {
		usleep(SPARE_READY_US);
		for (int side = 0; side < 2; side++) {
			double ns;

			if (cell__bench_time_reset(both[side], &ns) || (i >= 0 && add_sample(side ? &row->floor : &row->cell, ns)))
				goto out;
		}
	}
	r = 0;
out:
	close_both(both);
	cell_engine_destroy(engine);
	return r;
}

int cell__bench_measure_jupyter_memory(struct cell__bench *b, struct cell__bench_row *row)
{
	return usable(b, row) ? cell__bench_executor_memory(b, row, "jupyter") : 0;
}
