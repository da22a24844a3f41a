/*
 * Waiting by looking, before sleeping.
 *
 * Where two sides run on two CPUs, being woken is what an exchange costs: some microseconds on bare metal, some thirty in a
 * virtual machine.  So whoever waits first looks for a moment, about as long as an exchange of that kind takes.  What
 * comes in that time costs nobody a wake-up, and less CPU time than sleeping would have.
 *
 * Where others may have to run before it can come (a server that a tool call goes on to), the CPU is offered to them all the
 * while.  Else it is not: on a busy machine who gives it away may wait long to get it back.
 *
 * It is bounded and it learns: looks in vain become rarer, down to one wait in CELL_LOOK_REST_MAX.  A wait without a look
 * that was as short as a look would have been ends that.
 */
#ifndef CELL_CORE_LOOK_H
#define CELL_CORE_LOOK_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define CELL_LOOK_VAIN 2        /* looks in vain that change nothing yet */
#define CELL_LOOK_DOUBLINGS 8   /* of the rest, after that */
#define CELL_LOOK_REST_MAX (1u << CELL_LOOK_DOUBLINGS)

/* What one side remembers, zeroed at first.  Hints: several threads may change them at once. */
struct cell_look {
	uint32_t vain; /* looks in a row */
	uint32_t rest; /* waits without a look that are still to come */
	int64_t since; /* a wait without a look has begun then; 0: there is none */
};

static inline void cell_look_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static inline int64_t cell_look_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void cell_look_was_vain(struct cell_look *look)
{
	uint32_t vain = __atomic_load_n(&look->vain, __ATOMIC_RELAXED);
	if (vain < CELL_LOOK_VAIN + CELL_LOOK_DOUBLINGS)
		__atomic_store_n(&look->vain, ++vain, __ATOMIC_RELAXED);
	if (vain > CELL_LOOK_VAIN)
		__atomic_store_n(&look->rest, (1u << (vain - CELL_LOOK_VAIN)) - 1, __ATOMIC_RELAXED);
}

/* Calls has_come() for up to ns; gives_way: the CPU is offered to others.  False: looked, and in vain. */
static inline bool cell_look(struct cell_look *look, int64_t ns, bool gives_way, bool (*has_come)(const void *arg),
			     const void *arg)
{
	uint32_t rest = __atomic_load_n(&look->rest, __ATOMIC_RELAXED);
	if (rest > 0) {
		__atomic_store_n(&look->rest, rest - 1, __ATOMIC_RELAXED);
		__atomic_store_n(&look->since, cell_look_now(), __ATOMIC_RELAXED);
		return true;
	}
	int64_t end = cell_look_now() + ns;
	do {
		for (int i = 0; i < 16; i++) {
			if (has_come(arg)) {
				__atomic_store_n(&look->vain, 0, __ATOMIC_RELAXED);
				return true;
			}
			cell_look_pause();
		}
		if (gives_way)
			sched_yield();
	} while (cell_look_now() < end);
	cell_look_was_vain(look);
	return false;
}

/* What was waited for is there; ns as above.  elsewhere: it came from another CPU, so looking would not have hindered it. */
static inline void cell_look_has_slept(struct cell_look *look, int64_t ns, bool elsewhere)
{
	int64_t since = __atomic_load_n(&look->since, __ATOMIC_RELAXED);
	if (since == 0)
		return;
	__atomic_store_n(&look->since, 0, __ATOMIC_RELAXED);
	if (elsewhere && cell_look_now() - since <= ns) {
		__atomic_store_n(&look->vain, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&look->rest, 0, __ATOMIC_RELAXED);
	}
}

#endif
