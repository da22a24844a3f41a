/* What a link is made of: its descriptors and the memory that it shares with the kernel.  For link.c alone. */
#ifndef CELL_EXECUTORS_LINK_PARTS_H
#define CELL_EXECUTORS_LINK_PARTS_H

#include "executors/link.h"

/* The mapping outlives the link where somebody still works on bulk data. */
struct cell__link_shared {
	struct cell__bulk bulk;
	void *map;
};

/* Leaves in place what was made before it failed. */
int cell__link_make_fds(int pair[2], int out[2], int err_pipe[2], int *ring_fd, struct cell_error *err);
int cell__link_map(int ring_fd, struct cell__link_shared **ret_shared, struct cell_error *err);

#endif
