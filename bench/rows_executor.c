/*
 * What is measured alike in every executor whose kernels are processes.  What stands in the floor's column is the same thing
 * in `subprocess`, measured in turns.
 */
#include <stdio.h>

#include "rows_internal.h"

#define CALLS 1000 /* in one cell */
#define MEMORY_SESSIONS 3

int cell__bench_open(struct cell__bench *b, struct cell_engine *engine, const char *executor, const char *preload, struct cell_space *space,
		     struct cell_session **ret_session)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };

	opts.executor = executor;
	opts.python = b->python;
	opts.cwd = b->folder.path;
	opts.preload = preload;
	opts.space = space;
	return cell_session_open(engine, &opts, ret_session, &err) ? complain_err("open a session", &err) : 0;
}

int cell__bench_time_reset(struct cell_session *session, double *ret_ns)
{
	struct cell_error err = { 0 };
	double began = now_ns();
	int r;

	if (cell_session_reset(session, &err))
		return complain_err("reset a session", &err);
	r = run_cell(session, "1+1", "2", NULL, NULL);
	*ret_ns = now_ns() - began;
	return r;
}

/* One session of each, and fn for each in turns.  The first round does not count. */
static int in_turns(struct cell__bench *b, struct cell__bench_row *row, const char *executor, struct cell_space *space, int n,
		    int (*fn)(struct cell_session *session, double *ret))
{
	struct cell_session *both[2] = { NULL, NULL };
	double value;
	int r = cell__bench_open(b, b->engine, executor, NULL, space, &both[0]) ||
				cell__bench_open(b, b->engine, "subprocess", NULL, space, &both[1])
			? -1
			: 0;

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

int cell__bench_executor_cell(struct cell__bench *b, struct cell__bench_row *row, const char *executor)
{
	return in_turns(b, row, executor, NULL, rounds(b, 400), time_cell);
}

int cell__bench_executor_reset(struct cell__bench *b, struct cell__bench_row *row, const char *executor)
{
	return in_turns(b, row, executor, NULL, rounds(b, 12), cell__bench_time_reset);
}

static int time_calls(struct cell_session *session, double *ret)
{
	char code[80];
	int r;

	snprintf(code, sizeof(code), "[tools.add(a=1) for _ in range(%d)][-1]", CALLS);
	r = run_cell(session, code, "2", NULL, ret);
	*ret /= CALLS;
	return r;
}

static void handle_add(void *arg, struct cell_tool_call *call)
{
	(void)arg;
	cell_tool_call_answer_json(call, "2", 1);
}

int cell__bench_executor_call(struct cell__bench *b, struct cell__bench_row *row, const char *executor)
{
	struct cell_space_options opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_space *space = NULL;
	struct cell_error err = { 0 };
	int r;

	tool.name = "add";
	tool.description = "Adds one.";
	tool.parameters = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}";
	tool.fn = handle_add;
	opts.python = b->python;
	if (cell_space_open(b->engine, &opts, &space, &err) || cell_space_add_tool(space, &tool, &err))
		r = complain_err("open a space", &err);
	else
		r = in_turns(b, row, executor, space, rounds(b, 20), time_calls);
	cell_space_close(space);
	return r;
}

int cell__bench_executor_memory(struct cell__bench *b, struct cell__bench_row *row, const char *executor)
{
	struct cell_session *sessions[2 * MEMORY_SESSIONS] = { NULL };
	int r = 0;

	for (int i = 0; i < 2 * MEMORY_SESSIONS && !r; i++)
		r = cell__bench_open(b, b->engine, i % 2 ? "subprocess" : executor, NULL, NULL, &sessions[i]) ||
		    run_cell(sessions[i], "x = 1", NULL, NULL, NULL);
	for (int i = 0; i < 2 * MEMORY_SESSIONS && !r; i++) {
		int64_t bytes = cell__bench_private_bytes(cell_session_kernel_pid(sessions[i]));

		r = bytes <= 0 ? complain("cannot read smaps_rollup of a kernel")
			       : add_sample(i % 2 ? &row->floor : &row->cell, (double)bytes);
	}
	for (int i = 0; i < 2 * MEMORY_SESSIONS; i++)
		cell_session_close(sessions[i]);
	return r ? -1 : 0;
}
