/*
 * A reference to the loop that outlives it: for replies that the host's own threads give at any time, also after the engine was
 * destroyed.  Counted; any thread.
 */
#ifndef CELL_LOOP_LOOP_REF_H
#define CELL_LOOP_LOOP_REF_H

#include "loop/loop.h"

struct cell__loop_ref;

/* NULL: out of memory.  The loop's owner holds one reference, which cell__loop_ref_close() releases. */
struct cell__loop_ref *cell__loop_ref_create(struct cell__loop *loop);
void cell__loop_ref_close(struct cell__loop_ref *ref);
struct cell__loop_ref *cell__loop_ref_ref(struct cell__loop_ref *ref);
/*
 * A reference for something that takes this many bytes.  False: there would be more than max_refs references beside the
 * owner's, or they would take more than max_bytes together.
 */
bool cell__loop_ref_try_ref(struct cell__loop_ref *ref, size_t bytes, size_t max_refs, size_t max_bytes);
/* bytes: as given to cell__loop_ref_try_ref(), else 0. */
void cell__loop_ref_unref(struct cell__loop_ref *ref, size_t bytes);

enum cell__reply_kind { CELL__REPLY_NEXT, CELL__REPLY_JSON, CELL__REPLY_TEXT, CELL__REPLY_FAIL, CELL__REPLY_NO_MEMORY };

/* The final reply of a host function to a call, on its way to the loop.  Embedded in the call. */
struct cell__reply {
	struct cell__task task;
	struct cell__loop_ref *ref; /* the embedder's reference */
	void (*handle)(struct cell__reply *reply); /* on the loop */
	void (*drop)(struct cell__reply *reply);   /* any thread: the loop was destroyed */
	enum cell__reply_kind kind;
	struct cell__buf bytes; /* allocated for every kind except NEXT, even for "" */
};

/*
 * Any thread.  Copies the bytes (as UTF-8 but for JSON) and calls handle() on the loop, or drop(): from inside when this
 * thread runs the loop, or the loop was destroyed.  Both may free the reply.
 */
void cell__reply_send(struct cell__reply *reply, enum cell__reply_kind kind, const char *bytes, size_t size);

#endif
