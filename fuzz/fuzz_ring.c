/*
 * wire/ring.  Input: eight bytes for where the host is, eight for the head (0: right behind what follows), eight for the
 * position that a frame claims, then what the kernel has written from there on.
 */
#include "fuzz.h"
#include "wire/ring.h"

#define MASK (CELL_RING_DATA_BYTES - 1)

static uint64_t take64(const uint8_t *bytes)
{
	uint64_t v;
	memcpy(&v, bytes, sizeof v);
	return v;
}

static void check_record(const struct cell__ring *ring, const uint8_t *data, uint64_t before, uint64_t head, uint32_t type,
			 const uint8_t *out, uint32_t size)
{
	MUST(size <= CELL_RING_MAX_RECORD);
	MUST(type == CELL_RING_STDOUT || type == CELL_RING_STDERR || (type == CELL_RING_SYNC && size == 16));
	MUST(ring->tail - before == sizeof(struct cell_ring_record) + (size + 7) / 8 * 8);
	MUST(ring->tail - before <= head - before);
	for (uint32_t i = 0; i < size; i++)
		MUST(out[i] == data[(before + sizeof(struct cell_ring_record) + i) & MASK]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static _Alignas(4096) uint8_t map[CELL_RING_MAP_BYTES];
	static size_t dirty_at, dirty;
	if (size < 24)
		return 0;
	uint8_t *ring_data = map + CELL_RING_DATA_OFFSET;
	for (size_t i = 0; i < dirty; i++)
		ring_data[(dirty_at + i) & MASK] = 0;
	memset(map, 0, CELL_RING_DATA_OFFSET);
	struct cell__ring ring;
	cell__ring_init(&ring, map);
	ring.tail = take64(data) & ~(uint64_t)7;
	uint64_t head = take64(data + 8), upto = take64(data + 16);
	data += 24;
	size -= 24;
	if (size > CELL_RING_DATA_BYTES)
		size = CELL_RING_DATA_BYTES;
	for (size_t i = 0; i < size; i++)
		ring_data[(ring.tail + i) & MASK] = data[i];
	dirty_at = (size_t)(ring.tail & MASK);
	dirty = size;
	if (head == 0) {
		head = ring.tail + size / 8 * 8;
		upto = head;
	}
	ring.ctl->head = head;
	uint8_t *out = malloc(CELL_RING_MAX_RECORD);
	MUST(out);
	size_t records = 0;
	for (;;) {
		uint64_t before = ring.tail;
		uint32_t type = 77, record_size = 77;
		enum cell__ring_status status = cell__ring_next(&ring, upto, &type, out, &record_size);
		if (status != CELL__RING_RECORD) {
			MUST(ring.tail == before && type == 77 && record_size == 77);
			break;
		}
		check_record(&ring, ring_data, before, head, type, out, record_size);
		MUST(++records <= CELL_RING_DATA_BYTES / 8);
	}
	cell__ring_release(&ring);
	MUST(ring.ctl->tail == ring.tail);
	MUST(cell__ring_arm(&ring) == (head == ring.tail));
	free(out);
	return 0;
}
