/*
 * Who yields to whom among an engine's sandboxes when CPUs are short.
 *
 * A sandbox that computes without end has as much of a core as one that answers in a millisecond now and then, and the second
 * one waits whole slices for its turn.  So a sandbox whose cell runs long yields to the others, while there are others: quick
 * cells that came within the last moment.  What yields may get nothing at all on a machine that is full, so every few seconds
 * one of them, in turn, has a second like everybody else.
 *
 *     quick ──its cell runs long──▶ long ──quick cells come──▶ yields ──its turn, for a second──▶ long ──▶ yields
 *       ▲                             ▲                           └──no quick cell comes any more──▶ long
 *       └──its next cell──────────────┴──────── (from any)
 *
 * It stays long between cells: what its code left running in the background does not come back with the result.
 *
 * Owned by the executor; the loop's thread.
 */
#ifndef CELL_EXECUTOR_TURNS_H
#define CELL_EXECUTOR_TURNS_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/* Of one sandbox; zeroed at first: quick. */
struct cell__turn {
	bool is_long, yields;
	uint64_t since_ms; /* when it began to yield */
	struct cell__turn *next;
};

struct cell__turns {
	uv_loop_t *loop;
	uv_timer_t timer;
	void (*tell)(struct cell__turn *turn, bool yields);
	struct cell__turn *all;  /* that are long */
	bool busy;               /* quick cells come; the timer runs */
	uint64_t quick_ms;       /* when the last one began; 0: none has */
	uint64_t relief_ms;      /* when one of those that yield last had its second */
};

void cell__turns_init(struct cell__turns *turns, uv_loop_t *loop, void (*tell)(struct cell__turn *turn, bool yields));
/* A cell or a session begins, anywhere. */
void cell__turns_quick(struct cell__turns *turns);
/* This one's cell runs long. */
void cell__turns_long(struct cell__turns *turns, struct cell__turn *turn);
/* It is quick again; or it is gone, and is not told anything any more. */
void cell__turns_leave(struct cell__turns *turns, struct cell__turn *turn, bool gone);

#endif
