/*
 * Rows of the `jupyter` executor with ipykernel.  What stands in the floor's column here is the same thing in `subprocess`,
 * measured in turns.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rows_internal.h"

#define CALLS 1000            /* in one cell */
#define MEMORY_KERNELS 3
#define SPARE_READY_US 2500000 /* between resets: the next kernel is up again */

static const char *const sides[2] = { "jupyter", "subprocess" };

static int open_one(struct cell__bench *b, struct cell_engine *engine, const char *executor, struct cell_space *space,
		    struct cell_session **ret)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };

	opts.executor = executor;
	opts.python = b->python;
	opts.cwd = b->folder.path;
	opts.space = space;
	return cell_session_open(engine, &opts, ret, &err) ? complain_err("open a session", &err) : 0;
}

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
			int r = open_one(b, b->engine, sides[side], NULL, &session);

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
	struct cell_session *both[2] = { NULL, NULL };
	double ns;
	int r = -1;

	if (!usable(b, row))
		return 0;
	if (open_one(b, b->engine, sides[0], NULL, &both[0]) || open_one(b, b->engine, sides[1], NULL, &both[1]))
		goto out;
	for (int round = -1; round < rounds(b, 10); round++)
		for (int side = 0; side < 2; side++)
			for (int i = 0; i < 50; i++)
				if (run_cell(both[side], "1+1", "2", NULL, &ns) ||
				    (round >= 0 && add_sample(side ? &row->floor : &row->cell, ns)))
					goto out;
	r = 0;
out:
	close_both(both);
	return r;
}

static void handle_add(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	cell_tool_call_answer_json(call, "2", 1);
}

int cell__bench_measure_jupyter_call(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_space_options space_opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_session *both[2] = { NULL, NULL };
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_space *space = NULL;
	struct cell_error err = { 0 };
	double ns;
	int r = -1;

	if (!usable(b, row))
		return 0;
	tool.name = "add";
	tool.description = "Adds one.";
	tool.parameters = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}";
	tool.fn = handle_add;
	space_opts.python = b->python;
	if (cell_space_open(b->engine, &space_opts, &space, &err) || cell_space_add_tool(space, &tool, &err)) {
		complain_err("open a space", &err);
		goto out;
	}
	if (open_one(b, b->engine, sides[0], space, &both[0]) || open_one(b, b->engine, sides[1], space, &both[1]))
		goto out;
	for (int round = -1; round < rounds(b, 20); round++)
		for (int side = 0; side < 2; side++)
			if (run_cell(both[side], "[tools.add(a=1) for _ in range(1000)][-1]", "2", NULL, &ns) ||
			    (round >= 0 && add_sample(side ? &row->floor : &row->cell, ns / CALLS)))
				goto out;
	r = 0;
out:
	close_both(both);
	cell_space_close(space);
	return r;
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
	if (open_one(b, engine, sides[0], NULL, &both[0]) || open_one(b, engine, sides[1], NULL, &both[1]))
		goto out;
	for (int i = -1; i < rounds(b, 8); i++) {
		usleep(SPARE_READY_US);
		for (int side = 0; side < 2; side++) {
			double began = now_ns();

			if (cell_session_reset(both[side], &err)) {
				complain_err("reset", &err);
				goto out;
			}
			if (run_cell(both[side], "1+1", "2", NULL, NULL) ||
			    (i >= 0 && add_sample(side ? &row->floor : &row->cell, now_ns() - began)))
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
	struct cell_session *sessions[2 * MEMORY_KERNELS] = { NULL };
	int r = -1;

	if (!usable(b, row))
		return 0;
	for (int i = 0; i < 2 * MEMORY_KERNELS; i++)
		if (open_one(b, b->engine, sides[i % 2], NULL, &sessions[i]) || run_cell(sessions[i], "x = 1", NULL, NULL, NULL))
			goto out;
	for (int i = 0; i < 2 * MEMORY_KERNELS; i++) {
		int64_t bytes = cell__bench_private_bytes(cell_session_kernel_pid(sessions[i]));

		if (bytes <= 0 || add_sample(i % 2 ? &row->floor : &row->cell, (double)bytes)) {
			complain("cannot read smaps_rollup of a kernel");
			goto out;
		}
	}
	r = 0;
out:
	for (int i = 0; i < 2 * MEMORY_KERNELS; i++)
		cell_session_close(sessions[i]);
	return r;
}
