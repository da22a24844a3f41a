/*
 * Limits that the kernel enforces for a group of processes.  No state, no allocation: used by the host to find out what
 * is available, and by the spawner to create and remove groups.
 */
#ifndef CELL_SANDBOX_CGROUP_H
#define CELL_SANDBOX_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sandbox/plan.h"

#define CELL_CGROUP_PATH 1024

enum cell_cgroup_controller { CELL_CG_MEMORY, CELL_CG_PIDS, CELL_CG_CPU, CELL_CG_COUNT };

struct cell_cgroups {
	int version; /* 0: none can be used */
	/* Folders below which groups can be created, or "".  Version 2: one folder, except that cpu is "" if it is not delegated. */
	char parent[CELL_CG_COUNT][CELL_CGROUP_PATH];
};

/* One group in up to three hierarchies; each path is a folder, or "". */
struct cell_cgroup {
	int version;
	char path[CELL_CG_COUNT][CELL_CGROUP_PATH + 64];
};

/* The share of the CPUs when they are scarce. */
enum cell_cgroup_share {
	CELL_SHARE_USUAL, /* as much as an ordinary process */
	CELL_SHARE_HALF,
	CELL_SHARE_REST, /* only idle CPU time; yields as soon as another process is runnable */
};

struct cell_cgroup_usage {
	uint64_t memory_peak, memory_max;
	uint64_t oom_kills;
	uint64_t pids_peak, pids_refused;
};

/*
 * Finds the group of this process and tries to create a group there.  In a group of version 2 that only we use, this process and
 * those that it started may be moved into one below it.
 */
void cell__cgroups_find(struct cell_cgroups *ret_groups);
/*
 * The folder of our group in the hierarchy with this controller (NULL: version 2), from the texts of /proc/self/mountinfo and
 * /proc/self/cgroup, which are cut up.  False: it is not to be seen.
 */
bool cell__cgroup_locate(char *mountinfo, char *groups, const char *controller, char *out, size_t size);
/* Makes a group with limits.  0, or a negative errno and nothing is left. */
int cell__cgroup_make(const struct cell_cgroups *groups, const char *name, const struct cell_plan_limits *limits,
		      struct cell_cgroup *ret_group);
/* Puts the calling process (which must have one thread) into it. */
int cell__cgroup_join(const struct cell_cgroup *group);
/* Prevents new processes in the group and kills the existing ones, as far as this machine's groups support it (pids; Linux 5.14). */
void cell__cgroup_close(const struct cell_cgroup *group);
/*
 * The same for a process that must not see the group: opens the files to write "0" to; every holder may use them. Returns their number, or
 * -1 with errno and none open.
 */
int cell__cgroup_open_join(const struct cell_cgroup *group, int fds[static CELL_CG_COUNT]);
int cell__cgroup_join_by(const int *fds, size_t n);
/* False: not available. */
bool cell__cgroup_set_share(const struct cell_cgroup *group, enum cell_cgroup_share share);
void cell__cgroup_usage(const struct cell_cgroup *group, struct cell_cgroup_usage *ret_usage);
/* Whether no process is in it, with certainty: without the controller of processes nothing is certain. */
bool cell__cgroup_is_empty(const struct cell_cgroup *group);
/* 0, or a negative errno: -EBUSY while processes are in it. */
int cell__cgroup_remove(const struct cell_cgroup *group);

#endif
