/*
 * Counts the memory that the host uses on behalf of its kernels.  Belongs to the loop's thread.
 *
 * A kernel has a budget for the bytes that are kept on its behalf: pending calls (arguments as a tree, raw bytes),
 * answers that wait for a middleware or the audit log, and answers that it has not read.  So has the engine for all of
 * its kernels together; there a kernel that costs next to nothing is still served, so that one flood does not stop the others.
 * Nothing is read ahead of need: output, displays and results are bounded by pausing the kernel (run.c).
 *
 * When a budget is used up, calls fail with CELL_E_LIMIT.  A kernel that does not read those refusals either is ended:
 * stopping to read from it instead could deadlock with one that writes a large call while it has answers to read.
 */
#ifndef CELL_SESSION_BUDGET_H
#define CELL_SESSION_BUDGET_H

#include <stdbool.h>
#include <stddef.h>

#include "base/base.h"

struct cell__budget {
	size_t used;
	size_t (*unread)(const void *owner); /* bytes that its kernel has not read */
	const void *owner;
	struct cell__budget **all, *next; /* those of the engine */
};

void cell__budget_join(struct cell__budget *budget, struct cell__budget **all);
void cell__budget_leave(struct cell__budget *budget);
/* Whether the budget has room for this many more bytes. */
bool cell__budget_fits(const struct cell__budget *budget, size_t bytes);
/* More is unread than a kernel that reads its answers ever leaves behind. */
bool cell__budget_is_ignored(const struct cell__budget *budget);

#endif
