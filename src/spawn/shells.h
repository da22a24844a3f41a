/*
 * Shells: the namespaces that sandboxed kernels are forked into, each kept by a pid 1 of ours.  Part of the spawner, which
 * has one thread.
 *
 *     made ──steps done──▶ ready (spare, or for a kernel that waits) ──▶ taken ──kernel gone──▶ killed ──▶ removed
 *               └──a step failed──▶ failed, and the kernel that waits is told
 *
 * A shell of a plan without namespaces has no process: it is a cgroup only, and ready at once.
 */
#ifndef CELL_SPAWN_SHELLS_H
#define CELL_SPAWN_SHELLS_H

#include <stdbool.h>
#include <sys/types.h>

#include "sandbox/apply.h"
#include "sandbox/cgroup.h"

struct shell {
	uint64_t serial;
	uint64_t plan_id;
	pid_t pid;     /* of pid 1; 0: there is none (any more) */
	int pidfd;
	int ready_fd;  /* -1 once it has spoken */
	int listen_fd; /* of the way out, for the host; -1: none */
	int mounts_fd; /* its mount namespace, see cell__shell_keep_mounts(); -1: not kept */
	bool ready, failed, taken, has_group;
	struct cell_cgroup group;
	struct cell_plan_report report;
	struct shell *next;
};

#define CELL_SHELL_SPARES_KERNEL 1
#define CELL_SHELL_SPARES_PROGRAM 2 /* programs come one after the other, and each is over sooner than a shell is made */

/* A spare one of this plan, or a new one; NULL with errno set.  It is taken from now on; so many are to be there for the next. */
struct shell *cell__shell_take(int plan_fd, size_t spares);
/* The plan in this memfd, mapped until other plans have taken its place; NULL with errno set. */
const struct cell_plan *cell__shell_plan(int plan_fd);
/* Whoever took it does not use it: it goes, as it may be broken. */
void cell__shell_give_up(struct shell *shell);
/* Makes a spare for a plan that has too few; called when nothing else is to be done.  How many that plan wants; 0: no plan does. */
size_t cell__shell_spares_wanted(void);
void cell__shell_make_spare(void);
struct shell *cell__shell_by_serial(uint64_t serial);
struct shell *cell__shell_by_pid(pid_t pid);
/* Reads what it has to say.  After that it is ready or failed. */
void cell__shell_read(struct shell *shell);
/* The kernel is in: the shell locks itself up. */
void cell__shell_joined(struct shell *shell);
/*
 * Its mounts are not taken down with its pid 1, which would keep the report of a short program's end waiting, but afterwards: by the
 * next shell that is made, or by cell__shells_drop_mounts() when nothing else is to be done.  Before it is joined.
 */
void cell__shell_keep_mounts(struct shell *shell);
bool cell__shells_have_mounts(void);
void cell__shells_drop_mounts(void);
void cell__shell_kill(struct shell *shell);
/* It was reaped. */
void cell__shell_reaped(struct shell *shell);
/* Removes the cgroup and forgets it; only when its process is gone.  False: not yet, something is in the cgroup. */
bool cell__shell_remove(struct shell *shell);
/* For the end of everything. */
void cell__shells_remove_all(void);

#endif
