/* Pages of a kernel that lie together in its memory and in the file of its image (kernel/ext/image.h); a table of them is sorted by their offsets. */
#ifndef CELL_WIRE_IMAGE_PART_H
#define CELL_WIRE_IMAGE_PART_H

#include <stdint.h>

#define CELL_IMAGE_PAGE ((uint64_t)4096)
#define CELL_IMAGE_PARTS (1u << 20) /* at most */

struct cell_image_part {
	uint64_t at, bytes, offset, unused;
};

#endif
