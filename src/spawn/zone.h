/*
 * The zone: the user and pid namespaces that confined zygotes live in, kept by a pid 1 of ours.  Part of the spawner, which has one
 * thread; made with the first confined zygote, one for all of them.
 *
 *     spawner ──clone──▶ pid 1 of the zone: reaps, and tells the spawner of each process that ended
 *        ├──usher: enters the zone──clone──▶ zygote (a child of the spawner's; mounts and network of its own, no capabilities)
 *        └──usher: enters the zone──clone──▶ pid 1 of a jail (a child of the spawner's once the usher is gone; namespaces below the zone's)
 *
 * A zygote's child may enter a jail since a process has all capabilities in a user namespace whose parent is its own and whose owner it
 * is.  So jails for kernels are made inside of the zone, by the same user as the zygote's; and as pid namespaces can only be entered
 * downwards, their pids are below the zone's too.
 *
 * Started by root, the zone has a uid that is unused on the host; started by a user with subordinate ids, one of those (subids.h).  Its
 * zygotes have it if their files can be mapped to it, or read by everybody (mapped.h).
 * Kernels outlive their zygote, so the zone outlives all of them.  It ends with the spawner, and everything in it with it.
 */
#ifndef CELL_SPAWN_ZONE_H
#define CELL_SPAWN_ZONE_H

#include <stdbool.h>
#include <sys/types.h>

#include "sandbox/mapped.h"

struct cell_zone_end {
	int32_t pid; /* as the zone numbers it */
	int32_t status;
};

/* Makes it unless it is there; -1 with errno. */
int cell__zone_make(void);
/* The zone's own uid and gid; 0: none. */
struct cell__nobody cell__zone_nobody(void);
/*
 * In an usher, a child of vfork() that shares the spawner's memory: it and its children are in the zone from now on, with all
 * capabilities there.  as_nobody: with the zone's own uid.
 */
int cell__zone_enter(bool as_nobody);
/* pid 1; 0: there is no zone. */
pid_t cell__zone_pid(void);
/* The socket on which its pid 1 reports: one struct cell_zone_end per message. */
int cell__zone_fd(void);
/* The next process that ended; false: none is known of now. */
bool cell__zone_read(struct cell_zone_end *ret_end);
/* Its pid 1 was reaped, and all processes of the zone have ended with it. */
void cell__zone_reaped(void);

#endif
