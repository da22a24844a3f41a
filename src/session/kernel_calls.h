/*
 * The pending namespace calls of one kernel.  Belongs to the loop's thread.
 *
 * Everything in them comes from the kernel and is hostile: a call that no honest kernel sends is answered with
 * an error, and the kernel is killed.
 */
#ifndef CELL_SESSION_KERNEL_CALLS_H
#define CELL_SESSION_KERNEL_CALLS_H

#include "executors/executor.h"
#include "calls/call.h"
#include "session/budget.h"

struct cell__gate;
struct cell__kernel_call;
struct cell__recorder;

struct cell__calls {
	struct cell__kernel *kernel;
	const char *session_id;
	struct cell__gate *gate;
	const struct cell__principal *principal; /* the session's code */
	/* Receives the progress lines of a call, as if the code had written them. */
	void (*output)(void *owner, enum cell_stream stream, const char *bytes, size_t size);
	/* An image in the answer of a tool. */
	void (*image)(void *owner, const void *bytes, size_t size);
	/* The kernel does not read its answers and must be killed. */
	void (*ignored)(void *owner);
	/*
	 * NULL, or all three: speculation.c.  A call is answered: true, the answer is not sent, and become() follows when the call is gone; ended():
	 * a call is gone, however it ended.
	 */
	bool (*answered)(void *owner, const struct cell__call *call, const json_t *result, const void *raw, size_t raw_size);
	void (*become)(void *owner);
	void (*ended)(void *owner, uint32_t id);
	void *owner;
	struct cell__call_trace trace; /* of the last cell that began */
	struct cell__recorder *recorder; /* recording.h; NULL: the session is neither recorded nor replayed */
	struct cell__budget budget;
	bool is_ignored;
	struct cell__kernel_call *first;
	size_t count;
	uint32_t highest_id; /* seen */
};

/* NULL, or the kernel's violation of the protocol. */
const char *cell__calls_handle(struct cell__calls *calls, const struct cell__asked *asked);
/* The id of a call that was handed on from here. */
uint32_t cell__calls_id_of(const struct cell__call *call);
/* The kernel has ended: the answers are dropped. */
void cell__calls_cancel(struct cell__calls *calls);

#endif
