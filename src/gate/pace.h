/*
 * Limits how fast untrusted code may fill the audit log: a number of bytes per second on average, with a burst of a minute's worth.  Calls
 * beyond that wait in order of arrival before they are decided on: a rotated log would
 * otherwise lose important records to a loop of calls.  So every call that is decided on still has its record.
 *
 *     call ──▶ is there credit? ──yes──▶ middlewares, policy, ... its record
 *                    └──no──▶ waits ──credit comes──▶ (the same)
 *                               └──withdrawn──▶ counted; a record a second says how many
 *
 * What a call will take is charged when it is let in, by the size of its arguments, and the rest with its record.  Belongs to the
 * loop's thread.
 */
#ifndef CELL_GATE_PACE_H
#define CELL_GATE_PACE_H

#include <jansson.h>

#include "loop/loop.h"

#define CELL__PACE_BURST_S 60       /* so many seconds' bytes may come at once */
#define CELL__PACE_RECORD_BYTES 1024 /* of a record, besides arguments and error */

struct cell__audit_log;
struct cell__pace;

/* A call on its way in. */
struct cell__pace_wait {
	struct cell__pace_wait *next, *prev;
	size_t bytes;
	bool waits;
	void (*go)(struct cell__pace_wait *wait);
};

/* session_id lives as long; bytes_per_s may be UINT64_MAX. */
int cell__pace_create(struct cell__loop *loop, struct cell__audit_log *audit, const char *session_id, uint64_t bytes_per_s,
		      struct cell__pace **ret_pace, struct cell_error *err);
/* Nothing waits any more; NULL is allowed. */
void cell__pace_destroy(struct cell__pace *pace);
/* True: continue.  False: wait->go() is called in a later iteration of the loop, unless cell__pace_withdraw() is called first. */
bool cell__pace_enter(struct cell__pace *pace, struct cell__pace_wait *wait, size_t bytes);
/* True: the call waited and was withdrawn. */
bool cell__pace_withdraw(struct cell__pace *pace, struct cell__pace_wait *wait);
/* A record takes more than was known.  NULL is fine. */
void cell__pace_charge(struct cell__pace *pace, size_t bytes);

#endif
