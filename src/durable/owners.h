/*
 * Which server has what: the ids of sessions, tasks and batches, and for each the URL of the server that has it, in the storage of saved
 * sessions.
 *
 *     DIR/owners/ID         a symbolic link to the URL: made and read by one call each, so nobody sees half of it
 *     {prefix}:owner:{id}   in Redis: the URL; expires unless it is kept.  Of a session that is leased the URL of its lease counts
 *     DIR/owners/.key, {prefix}:owner:__server__:key   by which servers know each other (server/greeting.c)
 *
 * These are hints.  Whether a session may run somewhere is decided by its lock or lease (lease.h): a hint that a killed server has left
 * behind costs one connection that is refused.
 *
 * Any thread but the loop's; an object has one user at a time.
 */
#ifndef CELL_DURABLE_OWNERS_H
#define CELL_DURABLE_OWNERS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define CELL_OWNER_URL_BYTES 200u
#define CELL_OWNER_EXPIRES_S 3600 /* in Redis */
#define CELL_OWNER_STEPS 128u     /* of one call */

enum cell__owner_verb {
	CELL_OWNER_FIND,   /* url: whose it is; "": nobody's */
	CELL_OWNER_ADD,    /* it is ours, whoever had it before */
	CELL_OWNER_KEEP,   /* the same, unless another one has it by now */
	CELL_OWNER_REMOVE, /* it is not ours any more */
	CELL_OWNER_CHECK,  /* id: a name of this program.  url: "": the storage has lost what was written since the last check */
	CELL_OWNER_KEY,    /* url: a key that is kept if there is none; then the one that all have */
};

struct cell__owner_step {
	enum cell__owner_verb verb;
	char id[33];
	char url[CELL_OWNER_URL_BYTES + 1];
};

struct cell__owners;

/* place: a folder, which is made, or the URL of Redis, to which no connection is made yet.  url: our own. */
int cell__owners_open(const char *place, const char *url, struct cell__owners **ret_owners, struct cell_error *err);
void cell__owners_close(struct cell__owners *owners); /* NULL is allowed */
/* Carries out at most CELL_OWNER_STEPS, in their order.  An error: some were not carried out; all may be repeated. */
int cell__owners_run(struct cell__owners *owners, struct cell__owner_step *const *steps, size_t n, struct cell_error *err);

/* ---- the part for Redis (redis_owners.c) ---- */

struct cell__redis;
int cell__redis_owners_open(const char *url, struct cell__redis **ret_redis, struct cell_error *err);
void cell__redis_owners_close(struct cell__redis *redis); /* NULL is allowed */
int cell__redis_owners_run(struct cell__redis *redis, const char *own, struct cell__owner_step *const *steps, size_t n,
			   struct cell_error *err);

#endif
