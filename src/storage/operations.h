/*
 * Workflows and artifacts as namespace calls: each call is one piece of work on libuv's pool. Belongs to the loop's thread; only the work
 * itself runs elsewhere.
 *
 * Programs and clients save and load a whole artifact by one call. Between kernel and host artifacts travel in chunks, so that neither side
 * holds a whole one: save_begin, save_chunk..., save_commit and load_open, load_chunk..., load_close. An open artifact belongs to the
 * session that opened it. The bytes of a chunk are in the call's raw part, or in the memory that kernel and host share: then "at" and
 * "size" give the location. Several calls on one artifact may be in progress; they are carried out in the order of their arrival.
 */
#ifndef CELL_STORAGE_OPERATIONS_H
#define CELL_STORAGE_OPERATIONS_H

#include "calls/call.h"
#include "calls/table.h"
#include "loop/loop.h"
#include "storage/store.h"

struct cell__storage;

/* Reports a repair made during a call that succeeded, for a log. Loop's thread. */
typedef void (*cell__storage_notice_fn)(void *arg, const struct cell_error *notice);

/* An artifact or a workflow was saved or deleted by a call: CELL__OP_ARTIFACTS_SAVE, _DELETE, CELL__OP_WORKFLOWS_CREATE, _DELETE.  Loop's thread. */
typedef void (*cell__storage_changed_fn)(void *arg, enum cell__op op, const char *name);

int cell__storage_create(struct cell__loop *loop, struct cell__store *store, cell__storage_notice_fn notice, void *notice_arg,
			 struct cell__storage **ret_storage, struct cell_error *err);
void cell__storage_on_change(struct cell__storage *storage, cell__storage_changed_fn changed, void *arg);
void cell__storage_handle(struct cell__storage *storage, struct cell__call *call);
void cell__storage_session_ended(struct cell__storage *storage, const char *session_id, const void *origin);
/* done(arg) from a later iteration of the loop, when no work is under way; the store may be closed then. */
void cell__storage_close(struct cell__storage *storage, void (*done)(void *arg), void *arg);

#endif
