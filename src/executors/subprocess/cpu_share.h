/*
 * CPU shares among an engine's sandboxes when CPUs are scarce.
 *
 * A sandbox that computes all the time gets as much of a core as one that runs a millisecond now and then, and the second
 * one waits whole slices.  So a sandbox whose cell runs long gets half the weight, and yields completely while there are
 * cells that have just started.  A yielding sandbox may get no CPU at all on a fully loaded machine,
 * so every few seconds one of them, in turn, gets half the weight for a moment.
 *
 *     usual ──its cell runs long──▶ half ──cells begin elsewhere──▶ yields ──its turn, for a moment──▶ half ──▶ yields
 *       ▲                            ▲                                └──none begins any more──▶ half
 *       └──its next cell─────────────┴──────── (from any)
 *
 * The weight stays between cells: background work that the code left running does not regain it with the result.
 *
 * Owned by the executor; the loop's thread.
 */
#ifndef CELL_EXECUTORS_SUBPROCESS_CPU_SHARE_H
#define CELL_EXECUTORS_SUBPROCESS_CPU_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "sandbox/cgroup.h"

/* Of one sandbox; zeroed at first. */
struct cell__cpu_share {
	enum cell_cgroup_share share; /* but for the usual one, it is in the list */
	uint64_t since_ms;
	struct cell__cpu_share *next;
};

struct cell__cpu_shares {
	uv_loop_t *loop;
	uv_timer_t timer;
	void (*tell)(struct cell__cpu_share *entry, enum cell_cgroup_share share);
	struct cell__cpu_share *all; /* that run long */
	bool busy;              /* cells begin; the timer runs */
	uint64_t quick_ms;      /* when the last one did; 0: none has */
	uint64_t relief_ms;     /* when one of those that yield last had its turn */
};

void cell__cpu_shares_init(struct cell__cpu_shares *shares, uv_loop_t *loop,
			   void (*tell)(struct cell__cpu_share *entry, enum cell_cgroup_share share));
/* A cell or a session starts, in any sandbox. */
void cell__cpu_shares_quick(struct cell__cpu_shares *shares);
/* This one's cell runs long. */
void cell__cpu_shares_long(struct cell__cpu_shares *shares, struct cell__cpu_share *entry);
/* Restores the usual weight; or the sandbox is gone, and gets no more calls. */
void cell__cpu_shares_leave(struct cell__cpu_shares *shares, struct cell__cpu_share *entry, bool gone);

#endif
