/*
 * Limits that the kernel holds for a group of processes.  No state, no allocation: used by the host to find out what there
 * is, and by the spawner to make and remove groups.
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
	/* Folders below which groups can be made; "" where there is none.  Version 2: one folder, but for cpu "" where it is not delegated. */
	char parent[CELL_CG_COUNT][CELL_CGROUP_PATH];
};

/* One group in up to three hierarchies; each path is a folder, "" where there is none. */
struct cell_cgroup {
	int version;
	char path[CELL_CG_COUNT][CELL_CGROUP_PATH + 64];
};

struct cell_cgroup_usage {
	uint64_t memory_peak, memory_max;
	uint64_t oom_kills;
	uint64_t pids_peak, pids_refused;
};

/* Looks where this process is and tries to make a group there. */
void cell__cgroups_find(struct cell_cgroups *ret_groups);
/* Makes a group with limits.  0, or a negative errno and nothing is left. */
int cell__cgroup_make(const struct cell_cgroups *groups, const char *name, const struct cell_plan_limits *limits,
		      struct cell_cgroup *ret_group);
/* Puts the calling process (which must have one thread) into it. */
int cell__cgroup_join(const struct cell_cgroup *group);
/*
 * Whether it runs only where groups beside it that do not yield leave a CPU free, and lets go of the CPU when one of them wants
 * it.  False: it cannot be had.
 */
bool cell__cgroup_yield(const struct cell_cgroup *group, bool yields);
void cell__cgroup_usage(const struct cell_cgroup *group, struct cell_cgroup_usage *ret_usage);
/* 0, or a negative errno: -EBUSY while processes are in it. */
int cell__cgroup_remove(const struct cell_cgroup *group);

#endif
