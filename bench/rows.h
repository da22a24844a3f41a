/*
 * The rows of the benchmark that are measured in C: Workcell through its public API, and the machine's floor
 * beside it, in turns.  workcell-bench fills in what to measure, calls cell__bench_measure() once and hands
 * the values to report.py.
 *
 * Belongs to the thread that calls it, which must be the only one of the process until then.  Complaints go
 * to stderr: this is a part of a program, not of the library.
 */
#ifndef CELL_BENCH_ROWS_H
#define CELL_BENCH_ROWS_H

#include <stdbool.h>
#include <stdio.h>

#include "workcell.h"

#include "floor.h"

/* Name, unit, and the row that answers it at the peer. */
#define CELL_BENCH_ROW_TABLE(X)                                       \
	X(PAUSED_CELL, "paused-cell", "ns", "paused-cell")            \
	X(PAUSED_CHUNK, "paused-chunk", "ns", "paused-chunk")         \
	X(PAUSED_CALL, "paused-call", "ns", NULL)                     \
	X(PAUSED_APPROVAL, "paused-approval", "ns", NULL)             \
	X(OPEN, "open", "ns", "open")                                 \
	X(OPEN_POOL, "open-pool", "ns", "open")                       \
	X(CELL, "cell", "ns", "cell")                                 \
	X(RESET, "reset", "ns", "reset")                              \
	X(FORK, "fork", "ns", NULL)                                   \
	X(FORK_LAYER, "fork-layer", "ns", NULL)                       \
	X(FORK_MANY, "fork-many", "ns", NULL)                         \
	X(REWIND, "rewind", "ns", NULL)                               \
	X(UNDO, "undo", "ns", NULL)                                   \
	X(MEMORY, "memory", "bytes", "memory")                        \
	X(STDOUT, "stdout", "bytes_per_s", "stdout")                  \
	X(FIRST_CHUNK, "first-chunk", "ns", "first-chunk")            \
	X(SESSIONS, "sessions", "ns", NULL)                           \
	X(TOOL_CALL, "tool-call", "ns", NULL)                         \
	X(APPROVAL, "approval", "ns", NULL)                           \
	X(TOOL_GATHER, "tool-gather", "ns", NULL)                     \
	X(TOOL_CLI, "tool-cli", "ns", NULL)                           \
	X(ARTIFACT, "artifact", "bytes_per_s", NULL)                  \
	X(SEARCH, "search", "ns", NULL)                               \
	X(MCP, "mcp", "ns", "mcp")                                    \
	X(GEN, "gen", "ns", NULL)                                     \
	X(SANDBOX_OPEN, "sandbox-open", "ns", NULL)                   \
	X(SANDBOX_POOL, "sandbox-pool", "ns", NULL)                   \
	X(SANDBOX_CELL, "sandbox-cell", "ns", NULL)                   \
	X(SANDBOX_CALL, "sandbox-call", "ns", NULL)                   \
	X(SANDBOX_TOOL, "sandbox-tool", "ns", NULL)                   \
	X(SANDBOX_RESET, "sandbox-reset", "ns", NULL)                 \
	X(SANDBOX_BWRAP, "sandbox-bwrap", "ns", NULL)                 \
	X(SANDBOX_BWRAP_BARE, "sandbox-bwrap-bare", "ns", NULL)       \
	X(SANDBOX_SCRIPT, "sandbox-script", "ns", NULL)               \
	X(SANDBOX_DOCKER, "sandbox-docker", "ns", NULL)               \
	X(SANDBOX_DOCKER_BARE, "sandbox-docker-bare", "ns", NULL)     \
	X(CONTAINER_OPEN, "container-open", "ns", NULL)               \
	X(SANDBOX_MEMORY, "sandbox-memory", "bytes", NULL)            \
	X(SANDBOX_MANY, "sandbox-many", "ns", NULL)                   \
	X(LAYER_OPEN, "layer-open", "ns", NULL)                       \
	X(SANDBOX_STARVED, "sandbox-starved", "ns", NULL)             \
	X(JUPYTER_OPEN, "jupyter-open", "ns", NULL)                   \
	X(JUPYTER_CELL, "jupyter-cell", "ns", NULL)                   \
	X(JUPYTER_CALL, "jupyter-call", "ns", NULL)                   \
	X(JUPYTER_RESET, "jupyter-reset", "ns", NULL)                 \
	X(JUPYTER_MEMORY, "jupyter-memory", "bytes", NULL)            \
	X(INPROCESS_OPEN, "inprocess-open", "ns", NULL)               \
	X(INPROCESS_CELL, "inprocess-cell", "ns", NULL)               \
	X(INPROCESS_TOOL, "inprocess-call", "ns", NULL)               \
	X(INPROCESS_RESET, "inprocess-reset", "ns", NULL)             \
	X(INPROCESS_MEMORY, "inprocess-memory", "bytes", NULL)        \
	X(DENO_OPEN, "deno-open", "ns", NULL)                         \
	X(DENO_CELL, "deno-cell", "ns", NULL)                         \
	X(DENO_TOOL_CALL, "deno-call", "ns", NULL)                    \
	X(DENO_RESET, "deno-reset", "ns", NULL)                       \
	X(DENO_MEMORY, "deno-memory", "bytes", NULL)                  \
	/* Not asked for by name: they come along with the others. */ \
	X(CELL_ONE_CPU, "cell-one-cpu", "ns", NULL)                   \
	X(UNDO_SAME, "undo-same", "ns", NULL)                         \
	X(LAYER_DIFF, "layer-diff", "ns", NULL)                       \
	X(CELL_TWO_CPUS, "cell-two-cpus", "ns", NULL)                 \
	X(TOOL_CALL_ONE_CPU, "tool-call-one-cpu", "ns", NULL)         \
	X(TOOL_CALL_TWO_CPUS, "tool-call-two-cpus", "ns", NULL)       \
	X(APPROVAL_ONE_CPU, "approval-one-cpu", "ns", NULL)           \
	X(APPROVAL_TWO_CPUS, "approval-two-cpus", "ns", NULL)         \
	X(INPROCESS_LINES, "inprocess-lines", "ns", NULL)             \
	X(TOOL_GATHER_EACH, "tool-gather-each", "ns", NULL)           \
	X(SANDBOX_TOOL_BURST, "sandbox-tool-burst", "ns", NULL)       \
	X(SEARCH_OPEN, "search-open", "ns", NULL)                     \
	X(SEARCH_FIRST, "search-first", "ns", NULL)                   \
	X(MCP_ONE_CPU, "mcp-one-cpu", "ns", "mcp-one-cpu")

enum cell__bench_row_id {
#define CELL_BENCH_ROW_ENUM(id, name, unit, peer) CELL_ROW_##id,
	CELL_BENCH_ROW_TABLE(CELL_BENCH_ROW_ENUM)
#undef CELL_BENCH_ROW_ENUM
		CELL_ROW_COUNT,
	CELL_ROW_CHOICES = CELL_ROW_CELL_ONE_CPU, /* rows before this one can be chosen */
};

struct cell__bench_row_spec {
	const char *name, *unit, *peer; /* peer NULL: none */
};
extern const struct cell__bench_row_spec cell__bench_row_specs[CELL_ROW_COUNT];

struct cell__bench_samples {
	double *values;
	size_t n, capacity;
};

struct cell__bench_row {
	struct cell__bench_samples cell, floor;
	const char *skipped; /* why there is nothing, or NULL */
};

/* What became of the many sessions, all rounds together. */
struct cell__bench_many {
	int rounds;
	int answered;
	int left_processes, left_fds;
	double close_all_ns;
};

/* Storage and tools that the rows use.  A process of its own removes it when this one ends, however it ends. */
struct cell__bench_folder {
	char *path;
	int keeper_fd; /* closed: the keeper removes the folder and exits */
	pid_t keeper_pid;
};

struct cell__bench {
	/* set by the caller */
	const char *python; /* absolute */
	const char *mcp_server; /* path of mcp_server.py; NULL: not there */
	int only;           /* enum cell__bench_row_id, -1: all */
	int sessions;
	bool quick;
	size_t steps; /* that follow after cell__bench_measure(), each with cell__bench_step() */
	/* measured */
	size_t step;
	struct cell__floor floor;
	struct cell__bench_folder folder;
	struct cell_engine *engine; /* without a pool */
	struct cell_env_info env;
	size_t zygote_anon_bytes, zygote_file_bytes;
	double host_bytes_per_session;
	double load; /* of the machine, before we came */
	struct cell__bench_many many;
	struct cell__bench_row rows[CELL_ROW_COUNT];
};
#define CELL_BENCH_INIT { .only = -1, .sessions = 500, .floor = CELL_FLOOR_INIT, .folder = { .keeper_fd = -1, .keeper_pid = -1 } }

/* 0, or -1 after a complaint.  Either way no process and no file of it is left. */
int cell__bench_measure(struct cell__bench *bench);
/* Shows that this is being measured now, and how much is left. */
void cell__bench_step(struct cell__bench *bench, const char *what);
/* Every value, as one JSON object. */
void cell__bench_write(const struct cell__bench *bench, FILE *f);
void cell__bench_finish(struct cell__bench *bench);
/* Says it on stderr and returns -1. */
__attribute__((format(printf, 1, 2))) int cell__bench_complain(const char *format, ...);

#endif
