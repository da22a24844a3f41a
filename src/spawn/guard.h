/*
 * What pid 1 of a jail does while the code runs: it waits for signals, and is the guard of protected names (sandbox/guard.h).  One of them in
 * a process, which has one thread and blocks all signals.
 */
#ifndef CELL_SPAWN_GUARD_H
#define CELL_SPAWN_GUARD_H

#include <signal.h>

/* Waits at this socket, which is taken over, for the one process that is to be guarded. */
void cell__guard_begin(int listen_fd);
/*
 * Gives up all rights that the code lacks, but for reading its memory if this process is a guard (CAP_SYS_PTRACE in its own user
 * namespace); nobody can trace it any more.  Ends the process if that fails.
 */
void cell__guard_lock_up(void);
/* The next of these signals, always the same set; calls of the code are served meanwhile, locked up. */
int cell__guard_wait(const sigset_t *wanted);

#endif
