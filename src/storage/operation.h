/*
 * One call of storage/operations.h in progress, for its two files: operations.c, which has the queues and belongs to the loop's thread, and
 * operation_work.c, the work on libuv's pool.
 */
#ifndef CELL_STORAGE_OPERATION_H
#define CELL_STORAGE_OPERATION_H

#include "calls/principal.h"
#include "calls/table.h"
#include "storage/operations.h"
#include "storage/usage.h"

struct cell__storage_op;

/* An artifact being read or written. */
struct cell__storage_handle {
	int64_t id;
	json_int_t key; /* the code's own name for it, to close it with if our answer was lost; 0: none */
	char session_id[33];
	const void *origin; /* its owner in that session */
	bool writes; /* known before there is a writer or reader, which the pool makes */
	struct cell__artifact_writer *writer;
	struct cell__artifact_reader *reader;
	char type[CELL__STORE_DATA_TYPE_BYTES + 1];
	char *name; /* of one that is written */
	char *description;
	json_t *metadata;
	struct cell__taken taken; /* while it is being written */
	bool busy; /* on the pool */
	bool dropped; /* its session is gone, or has given it up */
	struct cell__storage_op *first, *last; /* ops that wait */
	unsigned n_waiting;
	struct cell__storage_handle *next;
};

typedef void (*cell__storage_op_fn)(struct cell__storage_op *op);

struct cell__storage_op {
	uv_work_t work;
	struct cell__lent_work lent; /* the same, on the asker's thread */
	struct cell__storage *storage;
	struct cell__call *call; /* NULL: no caller waits any more */
	enum cell__op id;
	cell__storage_op_fn fn;
	json_t *args;
	void *raw;
	struct cell__bulk *bulk; /* location of `bytes` when they are not raw */
	char *bytes; /* of a chunk: to be written, or read into */
	size_t size;
	bool by_code; /* the caller is a session's code */
	struct cell__storage_op *then; /* the next on the same handle, done in the same piece of work */
	struct cell__storage_handle *handle; /* the open artifact it works on, or made */
	bool closes; /* the handle is over afterwards */
	bool trusted; /* the caller is, ... */
	struct cell__host_limits max; /* ... and how much it may store if not */
	char session_id[33]; /* "": the host */
	bool waits; /* for a place on the pool */
	struct cell__storage_op *next; /* on the pool, or waiting for it */
	/* the outcome */
	json_t *result;
	bool wants_text; /* the result is wanted as text, and made here: the loop has no time for a long one */
	char *text;
	void *out;
	size_t out_size;
	struct cell_error err;
	const char *error_type; /* NULL: it went well */
};

struct cell__storage {
	struct cell__loop *loop;
	struct cell__store *store;
	cell__storage_notice_fn notice;
	void *notice_arg;
	cell__storage_changed_fn changed; /* or NULL */
	void *changed_arg;
	struct cell__storage_handle *handles;
	size_t n_handles;
	int64_t next_handle;
	int under_way; /* on the pool, or waiting for it */
	struct cell__storage_op *at_work;
	struct cell__storage_op *wait_first, *wait_last;
	struct cell__usage usage;
	uv_idle_t idle; /* so that closing always ends in a later iteration of the loop */
	void (*closed)(void *arg);
	void *closed_arg;
};

enum cell__handle_use { CELL__HANDLE_NONE, CELL__HANDLE_OPENS, CELL__HANDLE_WRITES, CELL__HANDLE_READS };
/* WHOLE: carries bytes without a handle; CHUNK: carries or requests bytes; LAST: the handle ends afterwards */
enum cell__handle_what { CELL__CARRIES_PLAIN, CELL__CARRIES_WHOLE, CELL__CARRIES_CHUNK, CELL__CARRIES_LAST };

/* The implementation of each operation. */
struct cell__storage_method {
	cell__storage_op_fn fn;
	enum cell__handle_use use;
	enum cell__handle_what what;
};

/* ---- operation_work.c ---- */

extern const struct cell__storage_method cell__storage_methods[CELL__OPS];
/* The name of the exception that the code gets. */
const char *cell__storage_error_type(const struct cell__operation *operation, const struct cell_error *err);
/* A data type as callers may give it. */
int cell__storage_check_type(const char *type, struct cell_error *err);

#endif
