/*
 * Waiting for the other side by looking, before sleeping.
 *
 * Where host and kernel run on two CPUs, being woken is what an exchange costs: some microseconds on bare metal, some
 * thirty in a virtual machine, twice.  So whoever waits for a frame first looks for one in shared memory, about as long
 * as waking it would take.  What comes in that time costs nobody a wake-up, and less CPU time than sleeping would have.
 *
 * It is bounded and it learns.  On the CPU where the other side ran last nobody looks: it would only keep the other from
 * running, so on one CPU all is as if this did not exist.  Looks in vain become rarer, down to one wait in
 * CELL_SPIN_REST_MAX.
 *
 * Each side has a beat in the shared page: it counts the frames that it has sent, and says where it ran.  Hints, no
 * more: whatever a hostile side writes there, the other looks for CELL_SPIN_NS in vain.
 */
#ifndef CELL_WIRE_SPIN_H
#define CELL_WIRE_SPIN_H

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "wire/ring_abi.h"

#define CELL_SPIN_NS 50000
#define CELL_SPIN_VAIN 2        /* looks in vain that change nothing yet */
#define CELL_SPIN_REST_MAX 256u /* a power of two */

/* What one side remembers; zeroed at first. */
struct cell_spin {
	uint32_t received; /* frames of the other side */
	uint32_t vain;     /* looks in a row */
	uint32_t rest;     /* waits without a look that are still to come */
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

static inline void cell_spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline int64_t cell_spin_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void cell_spin_was_vain(struct cell_spin *spin)
{
	if (++spin->vain <= CELL_SPIN_VAIN)
		return;
	uint32_t doublings = spin->vain - CELL_SPIN_VAIN;
	spin->rest = doublings < 8 ? (1u << doublings) - 1 : CELL_SPIN_REST_MAX - 1;
}

/* Looks for a frame.  False: looked in vain, all the time there is for it. */
static inline bool cell_spin_look(const struct cell_ring_beat *other, struct cell_spin *spin)
{
	if (cell_spin_has_come(other, spin))
		return true;
	if (atomic_load_explicit((_Atomic uint32_t *)&other->cpu, memory_order_relaxed) == (uint32_t)sched_getcpu())
		return true;
	if (spin->rest > 0) {
		spin->rest--;
		return true;
	}
	int64_t end = cell_spin_now() + CELL_SPIN_NS;
	do {
		for (int i = 0; i < 32; i++) {
			if (cell_spin_has_come(other, spin)) {
				spin->vain = 0;
				return true;
			}
			cell_spin_pause();
		}
	} while (cell_spin_now() < end);
	cell_spin_was_vain(spin);
	return false;
}

#endif
