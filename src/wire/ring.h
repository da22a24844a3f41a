/*
 * The host's end of the output ring (ring_abi.h).  Pure: memory in, records out.  The other side is hostile, so
 * every number is copied once and checked before it is used.
 */
#ifndef CELL_WIRE_RING_H
#define CELL_WIRE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/ring_abi.h"

struct cell__ring {
	struct cell_ring_ctl *ctl;
	const uint8_t *data;
	uint64_t tail; /* ours; the copy in ctl is for the kernel to read */
};

/* map: CELL_RING_MAP_BYTES of zeroed shared memory. */
void cell__ring_init(struct cell__ring *ring, void *map);
/* The kernel's write position; checked by cell__ring_next(). */
uint64_t cell__ring_head(const struct cell__ring *ring);

enum cell__ring_status {
	CELL__RING_RECORD,
	CELL__RING_EMPTY,
	CELL__RING_BAD, /* no honest kernel writes this */
};

/*
 * Takes the next record that starts before `upto`.  out has room for CELL_RING_MAX_RECORD bytes.  The space is
 * given back to the kernel by cell__ring_release().
 */
enum cell__ring_status cell__ring_next(struct cell__ring *ring, uint64_t upto, uint32_t *ret_type, uint8_t *out, uint32_t *ret_size);
/* True when the kernel sleeps for space and must be woken (futex on ctl->space_futex). */
bool cell__ring_release(struct cell__ring *ring);
/* Announces that the host will sleep; false when output came in between: check again. */
bool cell__ring_arm(struct cell__ring *ring);
/* Call before and after reading a pipe, so that the kernel can count the bytes written to it. */
void cell__ring_pipe_begin(struct cell__ring *ring);
void cell__ring_pipe_end(struct cell__ring *ring, int which, uint64_t total);

#endif
