/*
 * Jails: the namespaces that sandboxed kernels are forked into, each kept by a pid 1 of ours.  Part of the spawner, which
 * has one thread.
 *
 *     made ──steps done──▶ ready (spare, or for a kernel that waits) ──▶ taken ──kernel gone──▶ killed ──▶ removed
 *               └──a step failed──▶ failed, and the kernel that waits is told
 *
 * A jail for a program has one more process, which has applied the part of the plan that does not need the session (EARLY) and waits to be
 * told which program to execute (spawner_programs.c).  pid 1 is its parent: it reports its exit status and ends with it.
 *
 * pid 1 of a kernel's jail also starts the commands of the session, which are its children: they are in the namespaces and the cgroup of the
 * code, and end with it.  It has given up its capabilities by then.
 *
 * A jail of a plan without namespaces has no process: it is a cgroup only, and ready at once.
 */
#ifndef CELL_SPAWN_JAILS_H
#define CELL_SPAWN_JAILS_H

#include <stdbool.h>
#include <sys/types.h>

#include "sandbox/apply.h"
#include "sandbox/cgroup.h"
#include "wire/spawn_msg.h"

enum cell_jail_use { CELL_JAIL_FOR_KERNEL, CELL_JAIL_FOR_PROGRAM, CELL_JAIL_USES };

/* The process whose child may enter the jail. */
enum jail_place {
	JAIL_OF_SPAWNER,
	JAIL_IN_ZONE, /* of zygotes of the zone (zone.h) with the caller's uid ... */
	JAIL_OF_NOBODY, /* ... with the zone's own */
};

#define CELL_JAIL_NAMESPACES 7

struct jail {
	uint64_t serial;
	uint64_t plan_id;
	enum cell_jail_use use;
	unsigned flags; /* its namespaces */
	enum jail_place place;
	pid_t pid;     /* of pid 1; 0: there is none (any more) */
	int pidfd;
	int ready_fd;  /* -1 once it has spoken */
	int listen_fd; /* of the way out, for the host; -1: none */
	int mounts_fd; /* its mount namespace, see cell__jails_drop_mounts(); -1: not kept */
	int command_fd;    /* to pid 1 of one for a kernel, which starts commands; -1: there is none */
	int program_fd;    /* to the process that waits in it; -1: there is none */
	int program_pidfd;
	pid_t program_pid;
	int namespaces[CELL_JAIL_NAMESPACES]; /* handles, for a zygote, that of users first; in the zone only, once it is ready */
	size_t n_namespaces;
	bool ready, failed, taken, has_group;
	struct cell_cgroup group;
	struct cell_plan_report report;
	struct jail *next, *prev;
};

/*
 * A spare one of this plan, or a new one; NULL with errno set.  It is taken from now on, and others are made for the next.  zygote_place: of
 * one for a kernel, whose child will enter it.
 */
struct jail *cell__jail_take(int plan_fd, enum cell_jail_use use, enum jail_place zygote_place);
/* The handles were handed on. */
void cell__jail_close_namespaces(struct jail *jail);
/* A process that joins the jail must switch to the plan's user. */
bool cell__jail_becomes(const struct jail *jail, const struct cell_plan *plan);
/* The plan in this memfd, mapped until other plans have taken its place; NULL with errno set. */
const struct cell_plan *cell__jail_plan(int plan_fd);
/* The jail was taken but is not used: it is removed, because it may be broken. */
void cell__jail_give_up(struct jail *jail);
/* Its program has ended: the rest of it is removed in time. */
void cell__jail_release(struct jail *jail);
/* Makes a spare jail for the plan that has too few; called when the spawner has been idle for the delay (ms; -1: none is wanted). */
int cell__jail_spare_delay(enum cell_jail_use use);
void cell__jail_make_spare(enum cell_jail_use use);
/* Ends spares that a run of programs needed, some time after the last one; ms until there is something to end, or -1. */
int cell__jails_shrink(void);
struct jail *cell__jail_by_serial(uint64_t serial);
struct jail *cell__jail_by_pid(pid_t pid);
/* Reads the jail's report.  After that the jail is ready or failed. */
void cell__jail_read(struct jail *jail);
/* The kernel has entered: the jail closes itself to others. */
void cell__jail_joined(struct jail *jail);
/* Asks pid 1 to start a command (spawner_programs.c); -1 with errno. */
int cell__jail_start_command(struct jail *jail, const struct cell_spawn_msg *head, const char *payload, size_t size, const int *fds,
			     size_t n_fds);
/* The next message of pid 1 about a command: 1, 0: none now, -1: the end.  fd: -1 if none came with it. */
int cell__jail_hear_command(struct jail *jail, struct cell_spawn_msg *ret_head, int *ret_fd);
/*
 * The wait status of its program, once its pid 1 is gone.  SIGKILL where that ended first, with all that is in it.
 */
int cell__jail_program_status(struct jail *jail);
/*
 * A program's mounts are not taken down with its pid 1, which would keep the report of its end waiting, but afterwards: by the
 * next jail that is made, or by cell__jails_drop_mounts() when nothing else is to be done.
 */
bool cell__jails_have_mounts(void);
void cell__jails_drop_mounts(void);
void cell__jail_kill(struct jail *jail);
/* The process was reaped. */
void cell__jail_reaped(struct jail *jail);
/* Removes the cgroup and forgets it; only when its process is gone.  False: not yet, something is in the cgroup. */
bool cell__jail_remove(struct jail *jail);
/* Removes unused jails whose process has ended.  True: some of them remain. */
bool cell__jails_tidy(void);
/* Called when the spawner ends. */
void cell__jails_remove_all(void);

#endif
