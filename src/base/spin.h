/*
 * Spinning before sleeping.
 *
 * When two processes exchange messages from two CPUs, most of the cost is waking the sleeper: a few microseconds on bare metal,
 * about thirty in a virtual machine.  So a waiter first spins for about as long as such an exchange takes.  A message that arrives
 * in that window costs no wake-up, and less CPU time than sleeping would have.
 *
 * With `gives_way` the waiter yields the CPU while it spins, because another process may have to run first (a server that a tool
 * call goes on to).  Without it the waiter keeps the CPU: on a busy machine it could wait long to get it back.
 *
 * Spinning is bounded and adaptive: it backs off exponentially after CELL_SPIN_MISSES misses, down to one wait in
 * CELL_SPIN_REST_MAX.  A sleep that turned out shorter than the spin window resets the back-off.
 */
#ifndef CELL_BASE_SPIN_H
#define CELL_BASE_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define CELL_SPIN_MISSES 2    /* misses before the back-off begins */
#define CELL_SPIN_DOUBLINGS 8 /* of the number of skipped spins, after that */
#define CELL_SPIN_REST_MAX (1u << CELL_SPIN_DOUBLINGS)

/* The state of one waiter; zero it first.  These are hints: several threads may change them at once. */
struct cell_spin {
	uint32_t misses; /* in a row */
	uint32_t rest;   /* waits that will sleep without spinning first */
	int64_t since;   /* when the current wait without spinning began; 0: no such wait */
};

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

static inline void cell_spin_missed(struct cell_spin *spin)
{
	uint32_t misses = __atomic_load_n(&spin->misses, __ATOMIC_RELAXED);
	if (misses < CELL_SPIN_MISSES + CELL_SPIN_DOUBLINGS)
		__atomic_store_n(&spin->misses, ++misses, __ATOMIC_RELAXED);
	if (misses > CELL_SPIN_MISSES)
		__atomic_store_n(&spin->rest, (1u << (misses - CELL_SPIN_MISSES)) - 1, __ATOMIC_RELAXED);
}

/* Calls has_come() for up to ns.  gives_way: yields the CPU meanwhile.  False: it spun for the whole window and missed. */
static inline bool cell_spin(struct cell_spin *spin, int64_t ns, bool gives_way, bool (*has_come)(const void *arg), const void *arg)
{
	uint32_t rest = __atomic_load_n(&spin->rest, __ATOMIC_RELAXED);
	if (rest > 0) {
		__atomic_store_n(&spin->rest, rest - 1, __ATOMIC_RELAXED);
		__atomic_store_n(&spin->since, cell_spin_now(), __ATOMIC_RELAXED);
		return true;
	}
	int64_t end = cell_spin_now() + ns;
	do {
		for (int i = 0; i < 16; i++) {
			if (has_come(arg)) {
				__atomic_store_n(&spin->misses, 0, __ATOMIC_RELAXED);
				return true;
			}
			cell_spin_pause();
		}
		if (gives_way)
			sched_yield();
	} while (cell_spin_now() < end);
	cell_spin_missed(spin);
	return false;
}

/*
 * Call when the awaited event has arrived.  ns: the spin window passed to cell_spin().  elsewhere: it came from another CPU, so
 * spinning would not have delayed it.
 */
static inline void cell_spin_has_slept(struct cell_spin *spin, int64_t ns, bool elsewhere)
{
	int64_t since = __atomic_load_n(&spin->since, __ATOMIC_RELAXED);
	if (since == 0)
		return;
	__atomic_store_n(&spin->since, 0, __ATOMIC_RELAXED);
	if (elsewhere && cell_spin_now() - since <= ns) {
		__atomic_store_n(&spin->misses, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&spin->rest, 0, __ATOMIC_RELAXED);
	}
}

#endif
