/*
 * The spawner, for its files:
 *
 *     spawner.c           kernels, orphans, the host's requests, the end; theory of operation
 *     spawner_zygotes.c   zygotes and their messages
 *     spawner_programs.c  programs of process.h
 *
 * It is a program of its own, with one thread.
 */
#ifndef CELL_SPAWN_SPAWNER_H
#define CELL_SPAWN_SPAWNER_H

#include "base/base.h"
#include "base/list.h"
#include "spawn/jails.h"
#include "wire/spawn_msg.h"

#define CELL_SPAWNER_HOST_FD 3
#define CELL_SPAWNER_LIFELINE_FD 4
#define CELL_SPAWNER_LIFELINE_WRITE_FD 5
/*
 * Descriptors that stay open as long as a session does have numbers from here on: a process that needs none of them gets rid of all with
 * one call, however many sessions there are.
 */
#define CELL_SPAWNER_KEPT_FD 256
#define CELL_SPAWNER_BUCKETS 1024 /* ids are consecutive numbers: chains are even */

struct zygote {
	uint64_t id;
	pid_t pid;
	int fd;
	int stderr_fd; /* a memfd with its output before it died */
	enum jail_place place; /* of jails for its kernels; JAIL_OF_SPAWNER: it is not confined */
	int missed;             /* 1 + a step of its plan, see ZYGOTE_READY */
	struct zygote *next;
};

struct kernel {
	uint64_t id;
	uint64_t zygote;
	pid_t pid; /* 0 while forking */
	pid_t zone_pid; /* as its zone numbers it; 0: its zygote is in none */
	int pidfd;
	bool kill_wanted;
	bool branching; /* a live kernel forks it, and we have not been told its pid yet */
	bool dead;
	bool enclosed; /* dead, in a pid namespace of its own: it leaves no orphans to us */
	int64_t status;
	int64_t flags;
	int64_t dead_us;
	struct jail *jail; /* NULL: not sandboxed */
	int64_t share;       /* enum cell_cgroup_share */
	struct cell_spawn_msg request; /* while it waits for its jail */
	int fds[CELL_SPAWN_KERNEL_FDS];
	bool waits;
	struct cell_cgroup_usage usage;
	struct kernel *next, *prev;
	struct kernel *id_next; /* in its bucket */
};

/* A program of process.h: a session of its own, and a subreaper like kernels are unless it has a jail with processes. */
struct program {
	uint64_t id;
	pid_t pid;  /* 0 while it waits for its jail */
	bool dead;  /* its orphans are being killed; the pid no longer belongs to it */
	bool is_child; /* ours; else it is its jail's, which is over with it */
	int64_t argc, flags; /* of its message */
	struct jail *jail; /* NULL: not confined */
	char *payload;       /* of its message, and the fds that came with it: while it waits */
	size_t payload_size;
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds;
	int status;
	int64_t dead_us;
	/* of a command */
	uint64_t kernel_id;  /* 0: it is none */
	struct jail *home;   /* of its kernel; NULL: none with processes, or it has ended */
	int report_fd;       /* until it runs its program; -1 */
	int pidfd;           /* of one in a jail; -1 */
	int64_t shown_pid;   /* as its session numbers it; 0: not forked yet */
	bool told;           /* that it runs */
	bool kill_wanted;
	struct program *next;
};

struct cell__spawner {
	struct zygote *zygotes;
	struct program *programs;
	struct kernel *kernels, *by_id[CELL_SPAWNER_BUCKETS];
	size_t n_dead; /* kernels that have ended and are not reported yet, ... */
	size_t n_enclosed; /* ... and those of them that leave no orphans */
	size_t n_branching;
	int epoll_fd;
	char message[CELL_LIMIT_SPAWN_MESSAGE]; /* the one that is being handled */
};

extern struct cell__spawner cell__spawner;

/* ---- spawner.c ---- */

void cell__spawner_tell(uint32_t type, uint64_t id, int64_t a, int64_t b, const void *payload, size_t size);
/* Bytes of the next datagram in `message`, 0 at the end, -1 when there is none now. */
ssize_t cell__spawner_receive(int fd, int fds[CELL_SPAWN_MAX_FDS], size_t *ret_n_fds);
/* Returns the descriptor under a number from CELL_SPAWNER_KEPT_FD on, or as it is if there is no such number. */
int cell__spawner_keep_fd(int fd);
/* Kills processes that belong to no living kernel or program; returns their number. */
size_t cell__spawner_sweep(void);
struct kernel *cell__spawner_find_kernel(uint64_t id);
void cell__spawner_kernel_died(struct kernel *kernel, int64_t status);
void cell__spawner_tell_forked(struct kernel *kernel);
void cell__spawner_fork_failed(struct kernel *kernel, int error);
void cell__spawner_watch_jail(struct jail *jail);
/* Reports of a command that starts, and news of pid 1 about commands. */
int cell__spawner_watch_report(int fd, uint64_t program_id);
int cell__spawner_watch_commands(struct jail *jail);
/* Makes the zone unless it is there; -1 with errno. */
int cell__spawner_need_zone(void);

/* ---- spawner_zygotes.c ---- */

struct zygote *cell__zygote_find(uint64_t id);
/* plan_fd: -1: it is not confined. */
void cell__zygote_start(uint64_t id, int64_t argc, char *payload, size_t size, int plan_fd);
void cell__zygote_read(struct zygote *zygote);
void cell__zygote_died(struct zygote *zygote, int status);

/* ---- spawner_programs.c ---- */

/* In a child that cannot become its program: tells the parent why, and ends. */
void cell__spawner_child_failed(int fd, int stage) __attribute__((noreturn));
/* The same of a step of its plan. */
void cell__spawner_failed_at(int fd, int stage, int sys, int step) __attribute__((noreturn));
/* The strings of a payload, each with its NUL; out has room for max and a NULL. */
void cell__spawner_split(char *payload, size_t size, char **out, size_t max, size_t *ret_n);
/* In a jail: becomes the program that a message on this socket names. */
void cell__program_wait(const struct cell_plan *plan, int fd) __attribute__((noreturn));
/* fds that it keeps are -1 afterwards. */
void cell__program_start(const struct cell_spawn_msg *head, char *payload, size_t size, int *fds, size_t n_fds);
/* The jail that the program waits for is ready or has failed. */
void cell__program_jail_spoke(struct program *program);
void cell__program_signal(uint64_t id, int signal_number, bool group);
/* In a process of the jail of a kernel, forked by pid 1: becomes a command of its session.  fds: its streams, the session's plan, the report. */
void cell__command_join(const struct cell_plan *plan, const struct cell_spawn_msg *head, char *payload, size_t size, const int *fds,
			size_t n_fds, int guard_fd) __attribute__((noreturn));
/* The report of a command that starts has something to read. */
void cell__command_reported(uint64_t id);
/* pid 1 of a jail has news of commands. */
void cell__jail_commands(struct jail *jail);
/* The jail has ended, with all commands in it. */
void cell__commands_ended(const struct jail *jail);
/* This kernel has ended: its commands must. */
void cell__commands_kill(uint64_t kernel_id);
bool cell__commands_left(uint64_t kernel_id);
void cell__program_exited(struct program *program, int status);
/* All its processes have ended: tells the host and forgets the program. */
void cell__program_report(struct program *program);

#endif
