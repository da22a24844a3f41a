/*
 * What pid 1 of a jail does while the code runs: it waits for signals, and is the guard of protected names (sandbox/guard.h).  One of them in
 * a process, which has one thread and blocks all signals.
 */
#ifndef CELL_SPAWN_GUARD_H
#define CELL_SPAWN_GUARD_H

#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/types.h>

#define CELL_GUARD_MAX_LISTENERS 257 /* the code's, and one a command */
#define CELL_GUARD_MAX_FDS 257       /* of cell__guard_wait() */

/* Waits at this socket, which is taken over, for the process of the code, which is to be guarded. */
void cell__guard_begin(int listen_fd);
/*
 * Meets a child of ours, at our end of a socket pair, which is closed: it is guarded from now on, with the places of the code.  Called once
 * its first message is there.
 */
void cell__guard_meet(int fd, pid_t pid);
/*
 * Gives up all rights that the code lacks, but for reading its memory if this process is a guard (CAP_SYS_PTRACE in its own user
 * namespace); nobody can trace it any more.  Ends the process if that fails.
 */
void cell__guard_lock_up(void);
/*
 * The next of these signals, always the same set, or 0: one of these descriptors (-1: none) can be read or has ended, and its revents are set.
 * Calls of the code are served meanwhile, locked up.
 */
int cell__guard_wait(const sigset_t *wanted, struct pollfd *fds, size_t n_fds);

#endif
