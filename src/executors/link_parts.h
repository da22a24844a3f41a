/* The parts of a link: its descriptors and the memory shared with the kernel.  For link.c only. */
#ifndef CELL_EXECUTORS_LINK_PARTS_H
#define CELL_EXECUTORS_LINK_PARTS_H

#include "executors/link.h"

/* The mapping outlives the link while bulk data is still in use. */
struct cell__link_shared {
	struct cell__bulk bulk;
	void *map;
};

/* On failure, the parts created so far are left in place. */
int cell__link_make_fds(int pair[2], int out[2], int err_pipe[2], int *ring_fd, struct cell_error *err);
int cell__link_map(int ring_fd, struct cell__link_shared **ret_shared, struct cell_error *err);

#endif
