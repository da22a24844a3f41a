/*
 * What the files that measure rows share.  Everything returns 0, or -1 after a complaint.
 */
#ifndef CELL_BENCH_ROWS_INTERNAL_H
#define CELL_BENCH_ROWS_INTERNAL_H

#include "rows.h"

/* The rows are lists of such calls; the prefix is for the linker. */
#define complain cell__bench_complain
#define complain_err cell__bench_complain_err
#define now_ns cell__bench_now_ns
#define add_sample cell__bench_add_sample
#define run_cell cell__bench_run_cell
#define sample_floor cell__bench_sample_floor

int cell__bench_complain_err(const char *what, const struct cell_error *err);
double cell__bench_now_ns(void);
int cell__bench_add_sample(struct cell__bench_samples *samples, double value);
/* Runs a cell and checks its value; want NULL: it must have none.  ret_ns may be NULL. */
int cell__bench_run_cell(struct cell_session *session, const char *code, const char *want, const struct cell_run_options *opts,
			 double *ret_ns);
int cell__bench_sample_floor(struct cell__bench *b, struct cell__bench_row *row, int count,
			     int (*measure)(struct cell__floor *, double *, struct cell_error *));
/*
 * Rows with a pause before each sample, in which everything that waits falls asleep and caches go cold: as between two cells of an agent.
 * Samples and the floor take turns in blocks, so that drift of the machine hits both, and neither runs between two samples of the other.  sample()
 * pauses first; its row is NULL where it does not count.
 */
#define PAUSE_MS 100
#define PAUSED_BLOCK 5
void cell__bench_pause(void);
int cell__bench_sample_paused(struct cell__bench *b, struct cell__bench_row *row,
			      int (*sample)(struct cell__bench *b, void *arg, struct cell__bench_row *row), void *arg);
/* How many rounds there are where a full run has that many. */
static inline int rounds(const struct cell__bench *b, int full)
{
	return b->quick ? (full + 3) / 4 : full;
}

/* Fills a row, Workcell and floor in turns.  One round more than counts: the first warms up. */
typedef int (*cell__bench_sample_fn)(struct cell__bench *b, struct cell_session *session, int n_rounds, struct cell__bench_row *row);
/*
 * Waking a process on another CPU can cost ten times one on the same, and the scheduler is free to do either:
 * these rows compare Workcell and floor where both have the same.  Left out where placing is not permitted.
 */
int cell__bench_sample_placed(struct cell__bench *b, struct cell_session *session, cell__bench_sample_fn sample,
			      struct cell__bench_row *one_cpu, struct cell__bench_row *two_cpus);

/* The process must have one thread; the keeper is forked from it. */
int cell__bench_make_folder(struct cell__bench_folder *folder);
/* Waits until the folder is gone.  Fine when there is none. */
int cell__bench_remove_folder(struct cell__bench_folder *folder);

int cell__bench_measure_fork(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_fork_layer(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_fork_many(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_rewind(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_undo(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_layer_open(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_approval(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_paused_call(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_paused_approval(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_tool_call(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_tool_gather(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_tool_cli(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_artifact(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_search(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_mcp(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_gen(struct cell__bench *b, struct cell__bench_row *row);
/* Memory that is a process's alone; -1: unreadable. */
int64_t cell__bench_private_bytes(int64_t pid);

/* What is measured alike in each executor: rows_executor.c. */
int cell__bench_open(struct cell__bench *b, struct cell_engine *engine, const char *executor, const char *preload, struct cell_space *space,
		     struct cell_session **ret_session);
/* To the result of 1+1. */
int cell__bench_time_reset(struct cell_session *session, double *ret_ns);
int cell__bench_executor_cell(struct cell__bench *b, struct cell__bench_row *row, const char *executor);
int cell__bench_executor_call(struct cell__bench *b, struct cell__bench_row *row, const char *executor);
int cell__bench_executor_reset(struct cell__bench *b, struct cell__bench_row *row, const char *executor);
int cell__bench_executor_memory(struct cell__bench *b, struct cell__bench_row *row, const char *executor);

int cell__bench_measure_sandbox_open(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_pool(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_cell(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_bwrap(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_bwrap_bare(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_script(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_docker(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_docker_bare(struct cell__bench *b, struct cell__bench_row *row);
/* Is there a sandbox at all?  If not, the row is left out and says why. */
bool cell__bench_has_sandbox(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_tool(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_call(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_reset(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_container_open(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_memory(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_many(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_sandbox_starved(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_jupyter_open(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_jupyter_cell(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_jupyter_call(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_jupyter_reset(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_jupyter_memory(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_inprocess_open(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_inprocess_cell(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_inprocess_tool(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_inprocess_reset(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_inprocess_memory(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_deno_open(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_deno_cell(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_deno_tool_call(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_deno_reset(struct cell__bench *b, struct cell__bench_row *row);
int cell__bench_measure_deno_memory(struct cell__bench *b, struct cell__bench_row *row);

#endif
