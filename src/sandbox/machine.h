/* What this machine lets us confine with.  Found out once, by trying. */
#ifndef CELL_SANDBOX_MACHINE_H
#define CELL_SANDBOX_MACHINE_H

#include "base/base.h"
#include "sandbox/cgroup.h"
#include "sandbox/plan.h"

struct cell__machine {
	enum cell_plan_level level; /* the best there is */
	int landlock_abi;           /* 0: none */
	bool seccomp;
	bool is_root;     /* of the host: limits on a user's processes do not count for it */
	bool own_uid;     /* sandboxes may have a uid that is nobody's (mapped.h) ... */
	/* ... and for one plan (cell__plans_map()): the mounts that are copied for it; NULL: it is not for this one, because of ... */
	const char *const *trees;
	char no_trees[160];
	struct cell_cgroups cgroups;
	char reason[240]; /* why not full */
	char advice[240];
};

/* What is to be done comes first: an error has little room. */
#define CELL_ADVICE_APPARMOR                                                                                    \
	"as root, `sysctl kernel.apparmor_restrict_unprivileged_userns=0` (AppArmor, Ubuntu 23.10 and later), " \
	"or give workcell-spawner an AppArmor profile with `userns,`"

/* Starts a process for a moment, which takes about a millisecond; no SIGCHLD comes of it. */
void cell__machine_probe(struct cell__machine *ret_machine);
/* The same, found out on the first call.  Any thread. */
const struct cell__machine *cell__machine_here(void);

#endif
