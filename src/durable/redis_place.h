/*
 * Saved sessions in Redis or Valkey.
 *
 *     {prefix}:saved:{id}          hash: state (the sealed description), fence, holder, name, url, save (the number of the last save under that fence)
 *     {prefix}:saved:{id}:lease    string: the holder; expires unless it is renewed
 *     {prefix}:saved:{id}:p-...    hash: number -> piece; expires unless a description names it
 *     {prefix}:saved:__index__     sorted set of ids by the time of their last save
 *
 * Every change of more than one key is one script, which compares holder and fence first.  Pieces are written under names that nobody else has,
 * before the description that names them.  All places of one URL in a process share its connections and two threads: one renews leases, the other
 * tells their users when that did not happen in time.
 *
 * Any thread but the loop's, and an object has one user at a time; pieces may be put and got by several threads at once.
 */
#ifndef CELL_DURABLE_REDIS_PLACE_H
#define CELL_DURABLE_REDIS_PLACE_H

#include "durable/lease.h"
#include "durable/pieces.h"

struct cell__redis_place;

/* No connection is made yet. */
int cell__redis_place_open(const char *url, const char *id, const struct cell__lease_host *host, struct cell__redis_place **ret_remote,
			   struct cell_error *err);
/* Gives the lease back; NULL is allowed. */
void cell__redis_place_close(struct cell__redis_place *remote);
/* CELL_E_CONFLICT: another one has it.  CELL_E_NOT_FOUND, unless `creates`. */
int cell__redis_place_take(struct cell__redis_place *remote, bool creates, struct cell_error *err);
bool cell__redis_place_holds(const struct cell__redis_place *remote);
/* The fencing number; 0: it never had the lease. */
uint64_t cell__redis_place_number(const struct cell__redis_place *remote);
void cell__redis_place_release(struct cell__redis_place *remote);
/* The sealed description.  CELL_E_NOT_FOUND. */
int cell__redis_place_read(struct cell__redis_place *remote, struct cell__buf *out, struct cell_error *err);
/*
 * Replaces the description and removes files that it does not name.  before: the last one, or NULL.  CELL_E_CONFLICT: the number is not the newest;
 * nothing was written.  After any other failure it may have been replaced, now or a little later, but not once a later commit has succeeded.
 */
int cell__redis_place_commit(struct cell__redis_place *remote, const struct cell__buf *state, const struct cell__saved *saved,
			     const struct cell__saved *before, struct cell_error *err);
/* Removes the session.  saved: its description, or NULL.  CELL_E_CONFLICT as above. */
int cell__redis_place_remove(struct cell__redis_place *remote, const struct cell__saved *saved, struct cell_error *err);
/* For cell__pieces_send() and cell__pieces_receive(). */
struct cell__pieces_io cell__redis_place_io(struct cell__redis_place *remote);

/* Calls fn for each session that was saved until then, the latest first, until it returns false.  until_ms UINT64_MAX: for all.  name and url: of the holder that has it awake; NULL: it sleeps. */
typedef bool (*cell__redis_place_fn)(void *arg, const char *id, const char *state, size_t size, const char *name, const char *url);
int cell__redis_place_each(const char *url, uint64_t until_ms, size_t max, cell__redis_place_fn fn, void *arg, struct cell_error *err);
/* One of them; CELL_E_NOT_FOUND. */
int cell__redis_place_find(const char *url, const char *id, cell__redis_place_fn fn, void *arg, struct cell_error *err);

#endif
