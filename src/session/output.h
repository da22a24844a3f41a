/*
 * Output of one run: head and tail within a cap, and a file with all of it once the cap is passed.
 * Belongs to the loop's thread; the file is written on libuv's pool, never by the loop.
 */
#ifndef CELL_SESSION_OUTPUT_H
#define CELL_SESSION_OUTPUT_H

#include "base/base.h"
#include "loop/loop.h"

/* Keeps the first and the last half of `cap` bytes when there are more than `cap`. */
struct cell__capped {
	size_t cap;
	uint64_t total;
	struct cell__buf head; /* everything, while total <= cap */
	struct cell__buf tail; /* a circle of the other half */
	size_t tail_at;        /* where the next byte goes */
};

void cell__capped_init(struct cell__capped *capped, size_t cap);
void cell__capped_finish(struct cell__capped *capped);
/* -1: out of memory; the previous contents are kept. */
int cell__capped_add(struct cell__capped *capped, const char *bytes, size_t size);
/* The head, a line about the omitted bytes, the tail.  spill may be NULL; spilled: number of bytes in it, 0: all. */
int cell__capped_join(const struct cell__capped *capped, const char *spill, uint64_t spilled, struct cell__buf *out);

/* Minimum size of a write before the end: each write wakes a thread of the pool, which may take the kernel's CPU. */
#define CELL__SPILL_WRITE_BYTES (512u << 10)

/*
 * A file that output is written to in the background.
 *
 *     closed ──open──▶ idle ⇄ writing ──finish──▶ (last write done) finished()
 */
struct cell__spill {
	struct cell__loop *loop;
	char *path; /* NULL while closed, or after it failed */
	int fd;
	int error; /* errno of the first failure */
	int write_error; /* the pool's; looked at when it is done */
	uint64_t size; /* of the added bytes; at most CELL_LIMIT_SPILL_BYTES */
	bool cut;      /* there was more */
	bool busy;
	bool finishing;
	uv_work_t work;
	struct cell__buf writing, waiting;
	void (*progress)(void *arg); /* a write is done */
	void (*finished)(void *arg);
	void *arg;
};

void cell__spill_init(struct cell__spill *spill, struct cell__loop *loop, void (*progress)(void *arg), void (*finished)(void *arg),
		      void *arg);
/* Creates the file, 0600, in dir. */
void cell__spill_open(struct cell__spill *spill, const char *dir, const char *name);
/* Bytes beyond the limit are not written. */
void cell__spill_add(struct cell__spill *spill, const char *bytes, size_t size);
/* Bytes not written yet: above a limit the writer must be slowed down. */
size_t cell__spill_backlog(const struct cell__spill *spill);
/* finished() is called when everything is written: inside this call if no write is running. */
void cell__spill_close(struct cell__spill *spill);

#endif
