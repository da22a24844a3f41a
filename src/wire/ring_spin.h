/*
 * Host and kernel spin on a counter in shared memory before they sleep until the next frame (base/spin.h).
 *
 * A waiter does not spin on the CPU where the other side ran last: being woken there is cheap, and on a machine with one CPU spinning would
 * only delay the other side.  A side that was asleep may be woken on the waiter's CPU all the same: Linux takes a virtual CPU that has halted
 * for one that its host keeps from running, and does not wake anything there.  So the waiter yields once before it spins.
 *
 * Each side has a beat in the shared page: the number of frames it has sent, and the CPU it ran on. They are hints: a hostile side that
 * writes nonsense there makes the other one spin for one window without success.
 */
#ifndef CELL_WIRE_RING_SPIN_H
#define CELL_WIRE_RING_SPIN_H

#include <stdatomic.h>

#include "base/spin.h"
#include "wire/ring_abi.h"

#define CELL_RING_SPIN_NS 100000
/*
 * The host, for the end of a cell: as long as a short cell takes a kernel that has slept for a while, whose caches are cold.  A
 * kernel that waits for the next cell does not spin as long, because that comes when the agent has thought.
 */
#define CELL_RING_SPIN_HOST_NS 400000
/* For the answer to a call, which may go on to another process or wait for a program that approves it. */
#define CELL_RING_SPIN_CALL_NS 250000

/* The state of one side; zero it first.  Answers to calls often come soon when cells do not, so each has its own statistics. */
struct cell_ring_spin {
	struct cell_spin cell, call;
	int64_t cell_ns; /* the window of `cell`; 0: CELL_RING_SPIN_NS */
	bool was_asleep; /* the other side slept when it was sent something */
	uint32_t received; /* frames of the other side */
};

/* A frame has been sent. */
static inline void cell_ring_spin_beat(struct cell_ring_beat *own)
{
	atomic_store_explicit((_Atomic uint32_t *)&own->cpu, (uint32_t)sched_getcpu(), memory_order_relaxed);
	atomic_fetch_add_explicit((_Atomic uint32_t *)&own->sent, 1, memory_order_release);
}

static inline bool cell_ring_spin_has_come(const struct cell_ring_beat *other, const struct cell_ring_spin *spin)
{
	uint32_t sent = atomic_load_explicit((_Atomic uint32_t *)&other->sent, memory_order_acquire);
	return (int32_t)(sent - spin->received) > 0;
}

struct cell_ring_spin_view {
	const struct cell_ring_beat *other;
	const struct cell_ring_spin *spin;
};

static inline bool cell_ring_spin_view_has_come(const void *arg)
{
	const struct cell_ring_spin_view *view = arg;
	return cell_ring_spin_has_come(view->other, view->spin);
}

/* False: it spun for the whole window and no frame came. */
static inline bool cell_ring_spin_wait_for(const struct cell_ring_beat *other, struct cell_ring_spin *spin, struct cell_spin *state,
					   int64_t ns, bool gives_way)
{
	if (cell_ring_spin_has_come(other, spin))
		return true;
	if (atomic_load_explicit((_Atomic uint32_t *)&other->cpu, memory_order_relaxed) == (uint32_t)sched_getcpu())
		return true;
	if (spin->was_asleep)
		sched_yield();
	struct cell_ring_spin_view view = { other, spin };
	return cell_spin(state, ns, gives_way, cell_ring_spin_view_has_come, &view);
}

static inline int64_t cell_ring_spin_cell_ns(const struct cell_ring_spin *spin)
{
	return spin->cell_ns ? spin->cell_ns : CELL_RING_SPIN_NS;
}

static inline bool cell_ring_spin_wait(const struct cell_ring_beat *other, struct cell_ring_spin *spin)
{
	return cell_ring_spin_wait_for(other, spin, &spin->cell, cell_ring_spin_cell_ns(spin), false);
}

static inline bool cell_ring_spin_wait_answer(const struct cell_ring_beat *other, struct cell_ring_spin *spin)
{
	return cell_ring_spin_wait_for(other, spin, &spin->call, CELL_RING_SPIN_CALL_NS, true);
}

/* Call when a frame has come: updates the statistics if the last wait slept without spinning. */
static inline void cell_ring_spin_has_slept(const struct cell_ring_beat *other, struct cell_ring_spin *spin)
{
	if (spin->cell.since == 0 && spin->call.since == 0)
		return;
	bool elsewhere = atomic_load_explicit((_Atomic uint32_t *)&other->cpu, memory_order_relaxed) != (uint32_t)sched_getcpu();
	cell_spin_has_slept(&spin->cell, cell_ring_spin_cell_ns(spin), elsewhere);
	cell_spin_has_slept(&spin->call, CELL_RING_SPIN_CALL_NS, elsewhere);
}

#endif
