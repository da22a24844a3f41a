/* The confinement features of this machine.  Found out once, by trying them. */
#ifndef CELL_SANDBOX_MACHINE_H
#define CELL_SANDBOX_MACHINE_H

#include "base/base.h"
#include "sandbox/cgroup.h"
#include "sandbox/plan.h"
#include "sandbox/subids.h"

struct cell__machine {
	enum cell_plan_level level; /* the best level available */
	int landlock_abi;           /* 0: none */
	bool seccomp;
	bool guards;                /* protected names can be refused (guard.h) */
	bool is_root;     /* of the host: limits on a user's processes do not apply to it */
	bool own_uid;     /* sandboxes may have an unused uid (mapped.h) ... */
	struct cell__subids subids; /* ... or one of these; count 0: no, because ... */
	char no_subids[160], subids_advice[240];
	/* For one plan (cell__plans_map()): the mounts or folders that are copied for it; NULL: the caller's uid, because of ... */
	const char *const *trees;
	char no_trees[160];
	struct cell_cgroups cgroups;
	char reason[240]; /* why the level is not full */
	char advice[240];
};

/* The advice comes first: an error message is short. */
#define CELL_ADVICE_APPARMOR                                                                                    \
	"as root, `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (AppArmor, Ubuntu 23.10 and later), " \
	"or give workcell-spawner an AppArmor profile with `userns,`"

/* Starts a short-lived process, which takes about a millisecond and causes no SIGCHLD. */
void cell__machine_probe(struct cell__machine *ret_machine);
/* May any sandbox have a uid that is not the caller's?  cell__plans_map() needs the mounts then. */
static inline bool cell__machine_maps(const struct cell__machine *machine)
{
	return machine->own_uid || machine->subids.count > 0;
}
/* CELL_MAPPED_* of the plan that trees are for. */
unsigned cell__machine_mapped(const struct cell__machine *machine);
/* The same, found out on the first call.  Any thread. */
const struct cell__machine *cell__machine_here(void);

#endif
