/*
 * Shells: the namespaces that sandboxed kernels are forked into, each kept by a pid 1 of ours.  Part of the spawner, which
 * has one thread.
 *
 *     made ──steps done──▶ ready (spare, or for a kernel that waits) ──▶ taken ──kernel gone──▶ killed ──▶ removed
 *               └──a step failed──▶ failed, and the kernel that waits is told
 *
 * A shell for a program has one more process, which has done all of the plan that does not need the session (EARLY) and waits to be
 * told what to become (spawner_programs.c).  pid 1 is its parent: it tells how it ended and is over with it.
 *
 * A shell of a plan without namespaces has no process: it is a cgroup only, and ready at once.
 */
#ifndef CELL_SPAWN_SHELLS_H
#define CELL_SPAWN_SHELLS_H

#include <stdbool.h>
#include <sys/types.h>

#include "sandbox/apply.h"
#include "sandbox/cgroup.h"

enum cell_shell_use {
	CELL_SHELL_FOR_KERNEL,
	CELL_SHELL_FOR_PROGRAM,
	CELL_SHELL_USES
};

/* Whose child may enter it. */
enum shell_place {
	SHELL_OF_SPAWNER,
	SHELL_IN_ZONE, /* of zygotes of the zone (zone.h) with the caller's uid ... */
	SHELL_OF_NOBODY, /* ... with the zone's own */
};

#define CELL_SHELL_NAMESPACES 7

struct shell {
	uint64_t serial;
	uint64_t plan_id;
	enum cell_shell_use use;
	unsigned flags; /* its namespaces */
	enum shell_place place;
	pid_t pid;     /* of pid 1; 0: there is none (any more) */
	int pidfd;
	int ready_fd;  /* -1 once it has spoken */
	int listen_fd; /* of the way out, for the host; -1: none */
	int mounts_fd; /* its mount namespace, see cell__shells_drop_mounts(); -1: not kept */
	int program_fd;    /* to the process that waits in it; -1: there is none */
	int program_pidfd;
	pid_t program_pid;
	int namespaces[CELL_SHELL_NAMESPACES]; /* handles, for a zygote, that of users first; in the zone only, once it is ready */
	size_t n_namespaces;
	bool ready, failed, taken, has_group;
	struct cell_cgroup group;
	struct cell_plan_report report;
	struct shell *next;
};

/*
 * A spare one of this plan, or a new one; NULL with errno set.  It is taken from now on, and others are made for the next.  place: who will
 * enter it.
 */
struct shell *cell__shell_take(int plan_fd, enum cell_shell_use use, enum shell_place place);
/* The handles were handed on. */
void cell__shell_close_namespaces(struct shell *shell);
/* Who joins it has to become who the plan says. */
bool cell__shell_becomes(const struct shell *shell, const struct cell_plan *plan);
/* The plan in this memfd, mapped until other plans have taken its place; NULL with errno set. */
const struct cell_plan *cell__shell_plan(int plan_fd);
/* Whoever took it does not use it: it goes, as it may be broken. */
void cell__shell_give_up(struct shell *shell);
/* Makes a spare for a plan that has too few; called when nothing else is to be done. */
bool cell__shell_spare_wanted(enum cell_shell_use use);
void cell__shell_make_spare(enum cell_shell_use use);
struct shell *cell__shell_by_serial(uint64_t serial);
struct shell *cell__shell_by_pid(pid_t pid);
/* Reads what it has to say.  After that it is ready or failed. */
void cell__shell_read(struct shell *shell);
/* The kernel is in: the shell locks itself up. */
void cell__shell_joined(struct shell *shell);
/*
 * The wait status of its program, once its pid 1 is gone.  SIGKILL where that ended first, with all that is in it.
 */
int cell__shell_program_status(struct shell *shell);
/*
 * A program's mounts are not taken down with its pid 1, which would keep the report of its end waiting, but afterwards: by the
 * next shell that is made, or by cell__shells_drop_mounts() when nothing else is to be done.
 */
bool cell__shells_have_mounts(void);
void cell__shells_drop_mounts(void);
void cell__shell_kill(struct shell *shell);
/* It was reaped. */
void cell__shell_reaped(struct shell *shell);
/* Removes the cgroup and forgets it; only when its process is gone.  False: not yet, something is in the cgroup. */
bool cell__shell_remove(struct shell *shell);
/* Removes those that nobody has and whose process is gone.  True: not all of them yet. */
bool cell__shells_tidy(void);
/* For the end of everything. */
void cell__shells_remove_all(void);

#endif
