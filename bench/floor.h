/*
 * The machine's floor: what the cheapest possible program would pay for what Workcell does.
 *
 *     ping   one message each way over a Unix socket between two C processes, sizes as in a `1+1` cell
 *     fork   fork + exit + wait of a C process that is as large as the zygote
 *
 * Two child processes do the other side.  They are started before the engine, so that they are copies of a
 * process with one thread, and end when their socket closes.  Owned by the thread that started them.
 */
#ifndef CELL_BENCH_FLOOR_H
#define CELL_BENCH_FLOOR_H

#include <stddef.h>
#include <sys/types.h>

#include "workcell.h"

struct cell__floor {
	int echo_fd;
	int fork_fd;
	pid_t echo_pid;
	pid_t fork_pid;
};
#define CELL_FLOOR_INIT { .echo_fd = -1, .fork_fd = -1, .echo_pid = -1, .fork_pid = -1 }

/* The process must have one thread.  After a failure cell__floor_stop() is still to be called. */
int cell__floor_start(struct cell__floor *floor, struct cell_error *err);
/* Makes the forking process as large as another one: that much memory of its own, that much file-backed. */
int cell__floor_inflate(struct cell__floor *floor, size_t anon_bytes, size_t file_bytes, struct cell_error *err);
int cell__floor_ping(struct cell__floor *floor, double *ret_ns, struct cell_error *err);
int cell__floor_fork(struct cell__floor *floor, double *ret_ns, struct cell_error *err);
/* Ends and reaps both processes.  Fine in any state. */
void cell__floor_stop(struct cell__floor *floor);

#endif
