/*
 * Parses a kernel's frames without blocking the loop: small frames at once, large ones on the pool, because a few
 * megabytes of JSON take the loop hundreds of milliseconds.  Belongs to the loop's thread.
 *
 *     idle ──start──▶ at work ──ready(), once──▶ over(), once ──▶ idle
 *                        └── cell__reader_await(): the caller takes it; over() is still called
 *
 * While a reader is at work, nothing else of that kernel is read, so frames and output keep their order and a kernel has at most
 * one frame on the pool.  The frame's bytes stay where they are until over().
 */
#ifndef CELL_EXECUTORS_READER_H
#define CELL_EXECUTORS_READER_H

#include "executors/answer.h"

struct cell__reader {
	uv_work_t work;
	uv_sem_t done;
	bool at_work; /* until over() */
	bool taken;
	struct cell_frame frame;
	struct cell__read read;
	void (*ready)(struct cell__reader *reader);
	void (*over)(struct cell__reader *reader);
};

/* Whether the frame should be parsed on the pool. */
bool cell__reader_wants(const struct cell_frame *frame);
/* -1: out of memory or no pool, and no callback is called. */
int cell__reader_start(struct cell__reader *reader, struct cell__loop *loop, const struct cell_frame *frame);
/* At work and ready() not called yet: blocks until the frame is parsed; ready() is then not called.  For a dead kernel. */
bool cell__reader_await(struct cell__reader *reader);

#endif
