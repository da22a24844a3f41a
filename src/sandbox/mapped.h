/*
 * An unused uid: the code runs as a user of the host that owns nothing there.
 *
 *     starter (root) ──clone──▶ jail, waits at OP_IDS
 *        │ writes its maps: the caller's ids inside are H outside, a number of its own for each sandbox
 *        │ copies the mounts that the plan names (OP_TREE), idmapped: there the caller's files are H's
 *        └──the copies──▶ jail becomes H, attaches them below CELL_PLAN_MAPPED_ROOT; binds are taken from there
 *
 * So the code has the access to the caller's files that the mounts allow, and files that it creates there belong to the caller; elsewhere
 * H has only everybody's rights.  Needs root's privileges and a file system that supports it (ext4, xfs, btrfs, tmpfs; not overlayfs).
 *
 * An ordinary user with subordinate ids (subids.h) has numbers to give, but no such mounts.  There H is one of those numbers, and the
 * caller's files stay the caller's: such a sandbox is shown none of them but the interpreter's, which everybody may read.  The folders
 * that these lie in may be the caller's alone, so the jail copies them (OP_TREE) before it becomes H, when its file system uid is
 * still the caller's.
 */
#ifndef CELL_SANDBOX_MAPPED_H
#define CELL_SANDBOX_MAPPED_H

#include "base/base.h"
#include "sandbox/plan.h"
#include "sandbox/subids.h"

/* Whether this process has the privileges.  Starts a short-lived process, without a SIGCHLD. */
bool cell__mapped_possible(void);
/* Whether this process is the host's root, to which RLIMIT_NPROC does not apply. */
bool cell__mapped_is_root(void);
/*
 * The starter's part, for a jail that was just cloned and waits at the other end of fd.  An error is sent to the jail, which then ends.
 * has_ids: its maps are written already.
 */
void cell__mapped_start(const struct cell_plan *plan, pid_t pid, int fd, bool has_ids);
/* Writes the maps of a jail; the caller is in the parent of its user namespace.  Also of a plan that is not mapped: the caller's ids. */
int cell__mapped_ids(const struct cell_plan *plan, pid_t pid);
struct cell__nobody {
	unsigned uid, gid; /* 0: there is none */
};
/*
 * Writes the maps of a zone (spawn/zone.h): the caller, and for root, or with subordinate ids, also a number of its own and those of all
 * sandboxes.  *ret_nobody: that number.  ids: NULL: without them.
 */
int cell__mapped_zone(pid_t pid, const struct cell__subids *ids, struct cell__nobody *ret_nobody);
/* Do newuidmap and newgidmap serve here?  Tries it; as cell__mapped_possible() does.  -1: ret_why and ret_advice say why not. */
int cell__mapped_subids(struct cell__subids *ret_ids, char ret_why[static 160], char ret_advice[static 240]);
/* The copies of mounts that a plan names (OP_TREE), in which the caller's files have the unused uid; their number, or -1 with errno. */
int cell__mapped_trees(const struct cell_plan *plan, unsigned nobody, int trees[static CELL_PLAN_MAX_TREES]);

/* ---- which mounts ---- */

/* The current mounts of this process.  One thread. */
struct cell__mounts;

struct cell__mounts *cell__mounts_create(void);
void cell__mounts_destroy(struct cell__mounts *mounts);
/*
 * The mounts of these real paths and those below them, parents first; NULL-terminated, valid until the next call.  NULL: one of
 * them cannot be idmapped, and ret_why has its path; or out of memory.
 */
const char *const *cell__mounts_of(struct cell__mounts *mounts, const char *const *paths, char ret_why[static 160]);
/*
 * These real paths without those that lie in another, as above; for a uid that has everybody's rights alone.  NULL: one of them is not
 * to be read by everybody, and ret_why says so, or there are too many.  Of a folder a few levels are looked at, once.
 */
const char *const *cell__mounts_open_to_all(struct cell__mounts *mounts, const char *const *paths, char ret_why[static 160]);
/*
 * Calls `each` with every other name of the files at and below a real path: a bind mount shows the same files elsewhere, whole or in part.
 * 0, what `each` returned if that was negative, or -1 with errno.
 */
int cell__mounts_names(struct cell__mounts *mounts, const char *path, int (*each)(void *arg, const char *name), void *arg);

#endif
