/* The header `traceparent` of W3C's Trace Context: 00-TRACE-SPAN-FLAGS in hexadecimal.  Pure. */
#ifndef CELL_WIRE_TRACEPARENT_H
#define CELL_WIRE_TRACEPARENT_H

#include <stdbool.h>

#define CELL_TRACE_DIGITS 32
#define CELL_SPAN_DIGITS 16
#define CELL_TRACEPARENT_SIZE (2 + 1 + CELL_TRACE_DIGITS + 1 + CELL_SPAN_DIGITS + 1 + 2 + 1) /* as it is written, with its NUL */

struct cell__traceparent {
	char trace[CELL_TRACE_DIGITS + 1], span[CELL_SPAN_DIGITS + 1];
	bool sampled; /* the caller records this trace */
};

/* False: not of this form, and *ret_parent is untouched.  A later version may have more after the flags. */
bool cell__traceparent_read(const char *text, struct cell__traceparent *ret_parent);
void cell__traceparent_write(const struct cell__traceparent *parent, char ret_text[static CELL_TRACEPARENT_SIZE]);

#endif
