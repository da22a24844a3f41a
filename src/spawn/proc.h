/* Questions to /proc and the cgroup file system.  No state; any thread. */
#ifndef CELL_SPAWN_PROC_H
#define CELL_SPAWN_PROC_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Calls fn for every child of pid (all its threads).  Processes that start or end meanwhile may be missed. */
void cell__proc_children(pid_t pid, void (*fn)(pid_t child, void *arg), void *arg);
/* The parent of a process; 0: it has ended. */
pid_t cell__proc_parent(pid_t pid);
/* Memory that no other process shares with it; -1: it has ended, or is not ours to look at.  Takes a moment for a large process. */
int64_t cell__proc_private_bytes(pid_t pid);
/* The same with its share of pages that other processes have too. */
int64_t cell__proc_shared_bytes(pid_t pid);
/* Is this process in a pid namespace below the one that /proc shows?  False when it cannot be told. */
bool cell__proc_has_own_pids(pid_t pid);
/* Kills pid and everything below it, children first, so that nothing is reparented out of sight. */
void cell__proc_kill_tree(pid_t pid);
/*
 * Sets the scheduler slice of pid and everything below it; 0: the default.  Since Linux 6.12 a thread that
 * asks for a shorter slice runs first when it wakes up.  Needs no privileges; failures are ignored.
 */
void cell__proc_slice_tree(pid_t pid, uint64_t slice_ns);
/*
 * Processes that the OOM killer has ended so far: in our cgroup (v2, then v1) where it counts them, else on
 * the whole machine.
 */
uint64_t cell__proc_oom_kills(void);

/* The number of a process in the pid namespace of /proc, which another may number otherwise; 0: it has ended.  Allocates nothing. */
pid_t cell__proc_pid_of(int pidfd);

#endif
