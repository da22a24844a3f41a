/*
 * Looking for a frame in shared memory, by host and kernel, before sleeping (core/look.h).
 *
 * On the CPU where the other side ran last nobody looks: being woken there is cheap, and on one CPU all is as if this did
 * not exist.
 *
 * Each side has a beat in the shared page: it counts the frames that it has sent, and says where it ran.  Hints, no
 * more: whatever a hostile side writes there, the other looks a moment in vain.
 */
#ifndef CELL_WIRE_SPIN_H
#define CELL_WIRE_SPIN_H

#include <stdatomic.h>

#include "core/look.h"
#include "wire/ring_abi.h"

#define CELL_SPIN_NS 100000
/* For the answer to a call: it may go on to another process, and somebody's program may have to approve it. */
#define CELL_SPIN_CALL_NS 250000

/* What one side remembers; zeroed at first.  Answers to calls come soon where cells do not, so they are learnt apart. */
struct cell_spin {
	struct cell_look look, call;
	uint32_t received; /* frames of the other side */
};

/* A frame has been sent. */
static inline void cell_spin_beat(struct cell_ring_beat *own)
{
	atomic_store_explicit((_Atomic uint32_t *)&own->cpu, (uint32_t)sched_getcpu(), memory_order_relaxed);
	atomic_fetch_add_explicit((_Atomic uint32_t *)&own->sent, 1, memory_order_release);
}

static inline bool cell_spin_has_come(const struct cell_ring_beat *other, const struct cell_spin *spin)
{
	uint32_t sent = atomic_load_explicit((_Atomic uint32_t *)&other->sent, memory_order_acquire);
	return (int32_t)(sent - spin->received) > 0;
}

struct cell_spin_view {
	const struct cell_ring_beat *other;
	const struct cell_spin *spin;
};

static inline bool cell_spin_view_has_come(const void *arg)
{
	const struct cell_spin_view *view = arg;
	return cell_spin_has_come(view->other, view->spin);
}

/* False: looked for a frame in vain, all the time there is for it. */
static inline bool cell_spin_look_for(const struct cell_ring_beat *other, struct cell_spin *spin, struct cell_look *look,
				      int64_t ns, bool gives_way)
{
	if (cell_spin_has_come(other, spin))
		return true;
	if (atomic_load_explicit((_Atomic uint32_t *)&other->cpu, memory_order_relaxed) == (uint32_t)sched_getcpu())
		return true;
	struct cell_spin_view view = { other, spin };
	return cell_look(look, ns, gives_way, cell_spin_view_has_come, &view);
}

static inline bool cell_spin_look(const struct cell_ring_beat *other, struct cell_spin *spin)
{
	return cell_spin_look_for(other, spin, &spin->look, CELL_SPIN_NS, false);
}

static inline bool cell_spin_look_for_answer(const struct cell_ring_beat *other, struct cell_spin *spin)
{
	return cell_spin_look_for(other, spin, &spin->call, CELL_SPIN_CALL_NS, true);
}

/* A frame has come: what the last wait teaches, if it was one without a look. */
static inline void cell_spin_has_slept(const struct cell_ring_beat *other, struct cell_spin *spin)
{
	if (spin->look.since == 0 && spin->call.since == 0)
		return;
	bool elsewhere = atomic_load_explicit((_Atomic uint32_t *)&other->cpu, memory_order_relaxed) != (uint32_t)sched_getcpu();
	cell_look_has_slept(&spin->look, CELL_SPIN_NS, elsewhere);
	cell_look_has_slept(&spin->call, CELL_SPIN_CALL_NS, elsewhere);
}

#endif
