/*
 * A plan: the steps that confine one session, as data.
 *
 * policy.c reads the policy, build.c turns it into steps on the host, apply.c applies the steps.  Between the two a plan
 * is one block of bytes in a sealed memfd: no pointers, so that the spawner and the kernel read what the host wrote.
 *
 *     host: policy ──▶ plan ──memfd──▶ spawner ── JAIL steps ──▶ jail: namespaces, mounts, pid 1
 *                       └──────memfd──▶ zygote ── fork into the jail ──▶ kernel ── EARLY, KERNEL ──▶ agent's code
 *
 * The JAIL and EARLY steps do not depend on a session, so jails and pooled kernels are prepared in advance.  The session's own part
 * (its workspace, its packages) is a second, small plan that comes with INIT; its steps run at OP_SESSION of the first plan.
 *
 * A step that fails aborts the opening.  Only a step marked CELL_STEP_OPTIONAL is skipped, and the receipt names it.
 */
#ifndef CELL_SANDBOX_PLAN_H
#define CELL_SANDBOX_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CELL_PLAN_MAGIC 0x4e504357u /* "WCPN" */
#define CELL_PLAN_VERSION 5u
#define CELL_PLAN_MAX_BYTES (256u * 1024u)
#define CELL_PLAN_MAX_STEPS 512u
#define CELL_PLAN_WEIGHT 100u /* when cores are scarce, a whole sandbox has the weight of one ordinary process */
#define CELL_PLAN_TMPFS "workcell" /* the name of a sandbox's own file systems: kernel/workcell_kernel/carry.py knows them by it */
#define CELL_PLAN_OLD_ROOT "/.host" /* where the host's files are until OP_DETACH */
#define CELL_PLAN_MAPPED_ROOT "/.mapped" /* where those of the caller are, as the sandbox's own, until then (mapped.h) */
#define CELL_PLAN_MAX_TREES 16u
#define CELL_EGRESS_PORT 3128 /* of the proxy (egress/), on the loopback interface inside */

enum cell_plan_level {
	CELL_LEVEL_UNAVAILABLE,
	CELL_LEVEL_NO_USERNS, /* Landlock, seccomp, limits */
	CELL_LEVEL_FULL,      /* the same and namespaces with a root of its own */
};

enum cell_plan_stage {
	CELL_STAGE_JAIL = 1,     /* in pid 1 of the new namespaces, made ahead */
	CELL_STAGE_EARLY,         /* in the process that will run the agent's code, as soon as it exists */
	CELL_STAGE_KERNEL,        /* in the same process, when it has its session; right before the agent's code */
	CELL_STAGE_SESSION_FILES, /* of the session's plan */
	CELL_STAGE_SESSION_RULES, /* of the session's plan */
};

enum cell_plan_op {
	CELL_OP_NAMESPACES = 1, /* arg: CLONE_NEW* */
	CELL_OP_IDS,            /* only this user and group; if the plan is mapped, they are unused ids outside */
	CELL_OP_ROOT,           /* an empty tmpfs becomes the root, the host's one goes to CELL_PLAN_OLD_ROOT; arg: bytes */
	CELL_OP_TREE,           /* a: a mount of the host, or a folder; its copy, in CELL_PLAN_MAPPED_ROOT (mapped.h) */
	CELL_OP_DIR,            /* a: path, arg: mode */
	CELL_OP_LINK,           /* a: what it points to, b: path */
	CELL_OP_FILE,           /* a: path, b: content */
	CELL_OP_BIND,           /* a: path on the host, b: path inside, CELL_BIND_* */
	CELL_OP_OVERLAY,        /* a: the workspace on the host and inside, b: the layer's folder there, CELL_BIND_* */
	CELL_OP_TMPFS,          /* a: path, arg: bytes, arg2: mode */
	CELL_OP_PROC,           /* a: path, arg: CELL_PROC_*; no effect if one is already mounted */
	CELL_OP_PTS,            /* a: path */
	CELL_OP_MASK,           /* a: path that must show nothing; arg: 1: nothing is there where /proc has processes alone */
	CELL_OP_LOOPBACK,       /* brings lo up */
	CELL_OP_HOSTNAME,       /* a: name */
	CELL_OP_LISTEN,         /* a socket at 127.0.0.1, handed to the host's proxy; arg: port */
	CELL_OP_SESSION,        /* arg: the stage of the session's plan to run here */
	CELL_OP_DETACH,         /* detaches the host's files */
	CELL_OP_SEAL,           /* a: a tmpfs of ours that becomes read-only; "": the root */
	CELL_OP_RLIMIT,         /* arg: RLIMIT_*, arg2: value, soft and hard */
	CELL_OP_CLOSE_FDS,      /* everything except 0, 1, 2 and the descriptors that the kernel keeps */
	CELL_OP_SESSION_KEYS,   /* a private empty session keyring */
	CELL_OP_NO_NEW_PRIVS,
	CELL_OP_NOT_DUMPABLE,
	CELL_OP_BOUNDS,         /* no capabilities can be gained any more */
	CELL_OP_CAPS,           /* none left */
	CELL_OP_LANDLOCK,       /* a rule set; arg: handled file rights, arg2: handled network rights | scopes << 32 */
	CELL_OP_ALLOW,          /* a: path, arg: rights below it; a missing path is skipped */
	CELL_OP_RESTRICT,       /* the rule set takes effect */
	CELL_OP_SECCOMP,        /* a: the filter's instructions */
	CELL_OP_GUARD_SOCKET,   /* where pid 1 meets the process that it guards (guard.h) */
	CELL_OP_GUARD,          /* a: the filter's instructions, b: names that the policy allows, separated by slashes */
	CELL_OP_PLACE,          /* a: path that may be written to, arg: 1: with protected names.  Not a step: CELL_OP_GUARD reads it */
};

/* arg of OP_PROC */
#define CELL_PROC_WHOLE 0u
#define CELL_PROC_PROCESSES 1u /* and nothing else */
#define CELL_PROC_READ_ONLY 2u /* if that is not available, the host's, read-only */

/* flags of a step */
#define CELL_STEP_OPTIONAL 1u
#define CELL_BIND_READ_ONLY 2u
#define CELL_BIND_DEVICES 4u /* devices in it work */
#define CELL_BIND_NO_EXEC 8u
#define CELL_BIND_MAPPED 16u /* from CELL_PLAN_MAPPED_ROOT */
#define CELL_BIND_INSIDE 32u /* a is a path inside, of a folder that is shown already */

struct cell_plan_step {
	uint32_t bytes; /* of the whole step, a multiple of 8 */
	uint16_t op;
	uint8_t stage;
	uint8_t flags;
	uint64_t arg, arg2;
	uint32_t a_size, b_size; /* without the NUL after each */
	char text[];             /* a, NUL, b, NUL */
};

/* 0: no limit.  The limits of cgroups; the others are OP_RLIMIT and the host's own. */
struct cell_plan_limits {
	uint64_t memory_bytes;
	uint64_t cpu_percent; /* of one core */
	uint64_t cpu_weight;  /* 1 to 10000, 100 is usual */
	uint64_t pids;
};

/* Whose the uid and gid of a sandbox are outside. */
#define CELL_MAPPED_NOT 0u
#define CELL_MAPPED_MOUNTS 1u /* nobody's, on copies of mounts where the caller's files are the sandbox's own */
#define CELL_MAPPED_SUBIDS 2u /* those of a subordinate id (subids.h), to whom the caller's files are another's */

struct cell_plan {
	uint32_t magic, version;
	uint32_t bytes; /* of all of it */
	uint32_t n_steps;
	uint64_t id; /* differs between plans of one engine */
	uint32_t level;
	uint32_t clone_flags; /* the namespaces of OP_NAMESPACES, for processes that join */
	uint32_t uid, gid;    /* inside */
	uint32_t mapped;      /* CELL_MAPPED_*; unless NOT, who starts a jail calls cell__mapped_start() */
	uint32_t unused;
	char not_mapped[160]; /* why not, where it could be */
	struct cell_plan_limits limits;
	/* steps follow */
};

/* How far it got. */
struct cell_plan_report {
	int32_t step;  /* index of the step that failed; -1: none did */
	int32_t sys;   /* errno */
	uint8_t skipped[CELL_PLAN_MAX_STEPS / 8];
};

/* ---- reading ---- */

static inline const struct cell_plan_step *cell__plan_first(const struct cell_plan *plan)
{
	return (const struct cell_plan_step *)(plan + 1);
}
static inline const struct cell_plan_step *cell__plan_next(const struct cell_plan_step *step)
{
	return (const struct cell_plan_step *)((const char *)step + step->bytes);
}
static inline const char *cell__step_a(const struct cell_plan_step *step)
{
	return step->text;
}
static inline const char *cell__step_b(const struct cell_plan_step *step)
{
	return step->text + step->a_size + 1;
}
/* True if bytes[0..size) is a plan that contains all its steps. */
bool cell__plan_check(const void *bytes, size_t size);

#endif
