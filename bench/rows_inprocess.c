/*
 * Rows of the `inprocess` executor.  What stands in the floor's column is measured in turns: the same code by a bare
 * compile() and eval() of the same interpreter, and the host function itself.
 */
#define _GNU_SOURCE 1
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rows_internal.h"

#define CALLS 1000
#define MEMORY_SESSIONS 20

static int open_one(struct cell__bench *b, struct cell_space *space, struct cell_session **ret)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };

	opts.executor = "inprocess";
	opts.python = b->python;
	opts.space = space;
	return cell_session_open(b->engine, &opts, ret, &err) ? complain_err("open a session", &err) : 0;
}

/* Is there a libpython?  If not, the row is left out and says so.  Else it is loaded afterwards. */
static bool usable(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session = NULL;

	opts.executor = "inprocess";
	opts.python = b->python;
	if (!cell_session_open(b->engine, &opts, &session, NULL)) {
		cell_session_close(session);
		return true;
	}
	row->skipped = "this interpreter has no shared library";
	return false;
}

/* The value of a cell, a number. */
static int run_number(struct cell_session *session, const char *code, double *ret_number)
{
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };
	const char *text;

	if (cell_session_run(session, code, strlen(code), NULL, &result, &err))
		return complain_err(code, &err);
	text = cell_result_value_json(result);
	if (text)
		*ret_number = strtod(text, NULL);
	else
		complain("`%s` gave no number", code);
	cell_result_destroy(result);
	return text ? 0 : -1;
}

int cell__bench_measure_inprocess_open(struct cell__bench *b, struct cell__bench_row *row)
{
	if (!usable(b, row))
		return 0;
	for (int i = -3; i < rounds(b, 100); i++) {
		struct cell_session *session = NULL;
		double began = now_ns(), ns;
		int r = open_one(b, NULL, &session) || run_cell(session, "1+1", "2", NULL, NULL) ? -1 : 0;

		ns = now_ns() - began;
		cell_session_close(session);
		if (r || (i >= 0 && add_sample(&row->cell, ns)))
			return -1;
	}
	return 0;
}

/* Cells of two kinds, in turns with the same code compiled and evaluated by hand. */
static int sample_cells(struct cell__bench *b, struct cell_session *session, const char *code, const char *want, const char *bare,
			struct cell__bench_row *row)
{
	double ns;

	for (int round = -1; round < rounds(b, 20); round++) {
		for (int i = 0; i < 100; i++)
			if (run_cell(session, code, want, NULL, &ns) || (round >= 0 && add_sample(&row->cell, ns)))
				return -1;
		for (int i = 0; i < 10; i++)
			if (run_number(session, bare, &ns) || (round >= 0 && add_sample(&row->floor, ns)))
				return -1;
	}
	return 0;
}

static const char bare_functions[] =
	"from time import perf_counter_ns as clock\n"
	"def bare(source, mode, n=20):\n"
	"    names = {}\n"
	"    began = clock()\n"
	"    for i in range(n):\n"
	"        eval(compile(source, '<bare>', mode), names)\n"
	"    return (clock() - began) // n\n"
	"ten_lines = 'total = 0\\nfor i in range(10):\\n    total += i\\n"
	"words = [w.upper() for w in \"a b c d\".split()]\\n"
	"def f(x, y=2):\\n    return x * y\\nz = f(total)\\nd = {\"a\": 1, \"b\": [1, 2]}\\nd[\"c\"] = z\\n'\n";

int cell__bench_measure_inprocess_cell(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	int r = 0;

	if (!usable(b, row))
		return 0;
	if (open_one(b, NULL, &session) || run_cell(session, bare_functions, NULL, NULL, NULL) ||
	    sample_cells(b, session, "1+1", "2", "bare('1+1', 'eval')", row) ||
	    sample_cells(b, session,
			 "total = 0\nfor i in range(10):\n    total += i\nwords = [w.upper() for w in \"a b c d\".split()]\n"
			 "def f(x, y=2):\n    return x * y\nz = f(total)\nd = {\"a\": 1, \"b\": [1, 2]}\nd[\"c\"] = z\n",
			 NULL, "bare(ten_lines, 'exec')", &b->rows[CELL_ROW_INPROCESS_LINES]))
		r = -1;
	cell_session_close(session);
	return r;
}

static double spent_ns; /* in the function itself, since it was last looked at */

static void handle_add(void *arg, struct cell_tool_call *call)
{
	double began = now_ns();
	const char *args = cell_tool_call_args(call);
	char answer[32];
	int n = snprintf(answer, sizeof(answer), "%ld", strtol(args + strcspn(args, "-0123456789"), NULL, 10) + 1);

	(void)arg;
	spent_ns += now_ns() - began;
	cell_tool_call_answer_json(call, answer, (size_t)n);
}

int cell__bench_measure_inprocess_tool(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_space_options opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_space *space = NULL;
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	double ns;
	int r = -1;

	if (!usable(b, row))
		return 0;
	opts.python = b->python;
	tool.name = "add";
	tool.parameters = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": [\"a\"]}";
	tool.fn = handle_add;
	if (cell_space_open(b->engine, &opts, &space, &err) || cell_space_add_tool(space, &tool, &err)) {
		complain_err("open a space", &err);
		goto out;
	}
	if (open_one(b, space, &session) || run_cell(session,
						     "from time import perf_counter_ns as clock\n"
						     "def calls(n):\n"
						     "    add, began = tools.add, clock()\n"
						     "    for i in range(n):\n"
						     "        answer = add(a=i)\n"
						     "    took = clock() - began\n"
						     "    assert answer == n, answer\n"
						     "    return took / n\n",
						     NULL, NULL, NULL))
		goto out;
	for (int round = -3; round < rounds(b, 100); round++) {
		spent_ns = 0;
		if (run_number(session, "calls(1000)", &ns) ||
		    (round >= 0 && (add_sample(&row->cell, ns) || add_sample(&row->floor, spent_ns / CALLS))))
			goto out;
	}
	r = 0;
out:
	cell_session_close(session);
	cell_space_close(space);
	return r;
}

int cell__bench_measure_inprocess_reset(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	int r = -1;

	if (!usable(b, row))
		return 0;
	if (open_one(b, NULL, &session))
		return -1;
	for (int i = -3; i < rounds(b, 100); i++) {
		double began = now_ns();

		if (cell_session_reset(session, &err)) {
			complain_err("reset", &err);
			goto out;
		}
		if (run_cell(session, "1+1", "2", NULL, NULL) || (i >= 0 && add_sample(&row->cell, now_ns() - began)))
			goto out;
	}
	r = 0;
out:
	cell_session_close(session);
	return r;
}

int cell__bench_measure_inprocess_memory(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *sessions[MEMORY_SESSIONS] = { NULL };
	int64_t before = 0;
	int r = -1;

	if (!usable(b, row))
		return 0;
	for (int i = 0; i < MEMORY_SESSIONS; i++) {
		if (open_one(b, NULL, &sessions[i]) || run_cell(sessions[i], "x = 1", NULL, NULL, NULL))
			goto out;
		/* The first ones take what the others find. */
		if (i == MEMORY_SESSIONS / 2 - 1)
			before = cell__bench_private_bytes(getpid());
	}
	if (before <= 0) {
		complain("cannot read smaps_rollup");
		goto out;
	}
	r = add_sample(&row->cell, (double)(cell__bench_private_bytes(getpid()) - before) / (MEMORY_SESSIONS - MEMORY_SESSIONS / 2));
out:
	for (int i = 0; i < MEMORY_SESSIONS; i++)
		cell_session_close(sessions[i]);
	return r;
}
