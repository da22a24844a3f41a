/* The monotonic clock. */
#ifndef CELL_BASE_CLOCK_H
#define CELL_BASE_CLOCK_H

#include <stdint.h>

int64_t cell__now_us(void);

#endif
