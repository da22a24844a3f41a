/*
 * The guard of protected names: where code may write to files of the host, pid 1 of its jail does its file operations for it, and
 * refuses names that make a later program of the host run code (base/protected.h).
 *
 * Neither a mount nor Landlock can refuse a name that does not exist yet.  So a seccomp filter hands every call that makes, removes, renames
 * or opens a file for writing to a listener.  Its answer is never "go on": the code could change the path in its memory meanwhile.  The
 * listener reads the path once, resolves it to an open folder and a name, judges both, and performs the call on that folder (spawn/guard.c).
 * Calls that only read are not handed over, and cost nothing.
 *
 *     confined process ── connects to CELL_GUARD_SOCKET, before any of the code runs ──▶ pid 1
 *         struct cell_guard_hello, places and names  ──▶
 *                                                    ◀── 0, or an errno: EOPNOTSUPP, it cannot work here
 *         loads the filter; its listener             ──▶
 *                                                    ◀── 0
 *
 * With the listener gone the calls answer ENOSYS: nothing is written any more.
 */
#ifndef CELL_SANDBOX_GUARD_H
#define CELL_SANDBOX_GUARD_H

#include "sandbox/plan.h"

#define CELL_GUARD_SOCKET "/run/guard"
#define CELL_GUARD_VERSION 1u
#define CELL_GUARD_MAX_BYTES (128u * 1024u) /* of a hello with its strings */

/* Followed by strings, each with its NUL: a kind and a text. */
struct cell_guard_hello {
	uint32_t version;
	uint32_t pad;
	uint64_t probe_at; /* of a CELL_GUARD_PROBE in the sender's memory: can it be read? */
};
#define CELL_GUARD_PROBE 0x6472617567796d21ull

#define CELL_GUARD_PROTECTED 'P' /* a path of the host that the code may write to */
#define CELL_GUARD_FREE 'F'      /* a path where no name is protected */
#define CELL_GUARD_UNPROTECT 'A' /* a name that the policy allows */

/* Whether this kernel has what it takes. */
bool cell__guard_is_possible(void);
/*
 * Confines this process and what it starts from now on.  session: has the places (CELL_OP_PLACE).  0, also if no place is protected; -1 with
 * errno, EOPNOTSUPP: not here, and nothing has changed.  Allocates nothing.  fd: a socket at whose other end pid 1 waits; -1: it is at
 * CELL_GUARD_SOCKET.
 */
int cell__guard_join(const struct cell_plan *session, const struct cell_plan_step *step, int fd);

#endif
