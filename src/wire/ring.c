#include "wire/ring.h"

#include <stdatomic.h>
#include <string.h>

#define MASK (CELL_RING_DATA_BYTES - 1)

void cell__ring_init(struct cell__ring *ring, void *map)
{
	ring->ctl = map;
	ring->data = (const uint8_t *)map + CELL_RING_DATA_OFFSET;
	ring->tail = 0;
	ring->ctl->version = CELL_RING_VERSION;
	ring->ctl->armed = 1;
}

uint64_t cell__ring_head(const struct cell__ring *ring)
{
	return atomic_load_explicit((_Atomic uint64_t *)&ring->ctl->head, memory_order_acquire);
}

static void copy_out(const struct cell__ring *ring, uint64_t at, void *out, size_t size)
{
	size_t offset = (size_t)(at & MASK);
	size_t first = CELL_RING_DATA_BYTES - offset;
	if (first > size)
		first = size;
	memcpy(out, ring->data + offset, first);
	memcpy((uint8_t *)out + first, ring->data, size - first);
}

enum cell__ring_status cell__ring_next(struct cell__ring *ring, uint64_t upto, uint32_t *ret_type, uint8_t *out, uint32_t *ret_size)
{
	uint64_t head = cell__ring_head(ring);
	uint64_t used = head - ring->tail;
	if (used > CELL_RING_DATA_BYTES || head % 8 != 0)
		return CELL__RING_BAD;
	/* A position ahead of the head is invalid: take what is available. */
	if (used == 0 || (int64_t)(upto - ring->tail) <= 0)
		return CELL__RING_EMPTY;
	struct cell_ring_record record;
	copy_out(ring, ring->tail, &record, sizeof record);
	uint64_t need = sizeof record + ((uint64_t)record.size + 7) / 8 * 8;
	if (record.size > CELL_RING_MAX_RECORD || need > used)
		return CELL__RING_BAD;
	if (record.type < CELL_RING_STDOUT || record.type > CELL_RING_SYNC)
		return CELL__RING_BAD;
	if (record.type == CELL_RING_SYNC && record.size != 2 * sizeof(uint64_t))
		return CELL__RING_BAD;
	copy_out(ring, ring->tail + sizeof record, out, record.size);
	ring->tail += need;
	*ret_type = record.type;
	*ret_size = record.size;
	return CELL__RING_RECORD;
}

bool cell__ring_release(struct cell__ring *ring)
{
	atomic_store((_Atomic uint64_t *)&ring->ctl->tail, ring->tail);
	if (!atomic_load((_Atomic uint32_t *)&ring->ctl->kernel_waits))
		return false;
	atomic_fetch_add((_Atomic uint32_t *)&ring->ctl->space_futex, 1);
	return true;
}

bool cell__ring_arm(struct cell__ring *ring)
{
	atomic_store((_Atomic uint32_t *)&ring->ctl->armed, 1);
	return atomic_load((_Atomic uint64_t *)&ring->ctl->head) == ring->tail;
}

void cell__ring_pipe_begin(struct cell__ring *ring)
{
	atomic_fetch_add((_Atomic uint32_t *)&ring->ctl->pipe_seq, 1);
}

void cell__ring_pipe_end(struct cell__ring *ring, int which, uint64_t total)
{
	atomic_store((_Atomic uint64_t *)&ring->ctl->pipe_read[which], total);
	atomic_fetch_add((_Atomic uint32_t *)&ring->ctl->pipe_seq, 1);
}
