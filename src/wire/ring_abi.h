/*
 * The shared memory between the host and one kernel: a control page, an output ring, and room for bulk data.
 *
 * Why a ring: Python-level output must reach the host while the code runs, in order, coalesced, without a thread in the kernel (it must
 * stay forkable) and without a system call per print(). The kernel appends records; the host pulls them. A DOORBELL frame wakes the host
 * only when it has announced that it sleeps.
 *
 * Everything the kernel writes here is hostile: the host copies `head` once, clamps it, and copies each record header before it uses it.
 * The host never waits for the kernel.
 *
 * Output of child processes and C code comes through two pipes instead (fds 1 and 2). To merge the two in order the kernel puts SYNC
 * records into the ring: "up to here, this many pipe bytes had been written". Written = read by the host (`pipe_read`, behind the seqlock
 * `pipe_seq`: odd while the host reads) + FIONREAD.
 *
 * The kernel divides the bulk area: a call names the part that holds its data or will receive the answer, and the host touches that part
 * only from the call to its answer. The host treats its content as data, never as structure.
 *
 * Included by the host (C) and by the kernel's extension; both sides run on one machine, so native order.
 */
#ifndef CELL_WIRE_RING_ABI_H
#define CELL_WIRE_RING_ABI_H

#include <stdint.h>

#define CELL_RING_VERSION 3u
#define CELL_RING_DATA_OFFSET 4096u
#define CELL_RING_DATA_BYTES (256u * 1024u) /* power of two */
#define CELL_BULK_OFFSET (CELL_RING_DATA_OFFSET + CELL_RING_DATA_BYTES)
#define CELL_BULK_BYTES (2u * 1024u * 1024u)
#define CELL_RING_MAP_BYTES (CELL_BULK_OFFSET + CELL_BULK_BYTES)
/* Long writes are split, so that no record has a length that the host would have to allocate for. */
#define CELL_RING_MAX_RECORD (32u * 1024u)

enum cell_ring_record_type {
	CELL_RING_STDOUT = 1,
	CELL_RING_STDERR = 2,
	CELL_RING_SYNC = 3, /* payload: two uint64_t, bytes written to the stdout and the stderr pipe so far */
};

/* Records start at multiples of 8; payload follows, padded to 8.  Positions count bytes since birth. */
struct cell_ring_record {
	uint32_t size; /* of the payload */
	uint32_t type;
};

/* Of one side, for the other: see spin.h. */
struct cell_ring_beat {
	_Alignas(64) uint32_t sent; /* frames */
	uint32_t cpu;               /* the CPU it ran on when it sent the last frame */
};

struct cell_ring_ctl {
	uint32_t version;
	uint32_t pad0[15];
	/* written by the host */
	_Alignas(64) uint64_t tail;  /* consumed up to here */
	uint32_t space_futex;        /* bumped when tail moved and kernel_waits was set */
	uint32_t pipe_seq;           /* seqlock around pipe_read */
	uint64_t pipe_read[2];
	uint32_t interrupt_id;       /* the run that SIGINT is meant for */
	uint32_t interrupt_no;       /* counts requests to interrupt: a signal that is sent again is the same request */
	/* written by the kernel */
	_Alignas(64) uint64_t head;  /* produced up to here */
	uint32_t kernel_waits;       /* sleeps on space_futex */
	uint32_t interrupt_taken;    /* the last interrupt_no that became a KeyboardInterrupt */
	/*
	 * written by both: the host stores 1 before it sleeps, and checks the ring again a little later; the kernel swaps in 0 and rings
	 * when it was 1
	 */
	_Alignas(64) uint32_t armed;
	struct cell_ring_beat host_beat, kernel_beat;
};

#endif
