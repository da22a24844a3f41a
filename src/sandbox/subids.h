/*
 * Subordinate ids: uids and gids of the host that /etc/subuid and /etc/subgid give to an ordinary user.  Nobody logs in with them and they
 * own no files but those of the user's containers.  A user namespace gets them by newuidmap(1) and newgidmap(1), which the system
 * trusts with that (Debian: package uidmap).
 */
#ifndef CELL_SANDBOX_SUBIDS_H
#define CELL_SANDBOX_SUBIDS_H

#include <sys/types.h>

#include "base/base.h"

#define CELL_SUBIDS_LEAST 8u /* of a range in the files */

/* A part of the user's ranges that containers rarely use.  count: as many of either kind, two at least; 0: there are none. */
struct cell__subids {
	unsigned uid, gid, count;
};

/*
 * Those of the caller, by reading files alone.  -1: ret_ids->count is 0, and ret_why and ret_advice say what is missing.
 */
int cell__subids_find(struct cell__subids *ret_ids, char ret_why[static 160], char ret_advice[static 240]);
/* The first range of a user in the text of such a file: owner:first:count a line.  False: there is none of CELL_SUBIDS_LEAST. */
bool cell__subids_parse(const char *text, const char *name, unsigned uid, unsigned *ret_first, unsigned *ret_count);
/*
 * Writes the maps of a process that was just cloned into a user namespace: the caller's ids and these, each the same inside and outside.
 * Runs the two programs, by absolute paths and without an environment, and waits; no SIGCHLD comes of it.  -1 with errno.
 */
int cell__subids_map(pid_t pid, const struct cell__subids *ids);

#endif
