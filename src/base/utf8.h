/* UTF-8 (RFC 3629): checking it, cutting it, and making it out of any bytes. */
#ifndef CELL_BASE_UTF8_H
#define CELL_BASE_UTF8_H

#include <stdbool.h>

#include "base/buffer.h"

/* True when bytes[0..size) is well-formed UTF-8. */
bool cell__utf8_ok(const char *bytes, size_t size);
/* The number of bytes at the end of text that begin an incomplete UTF-8 character. */
size_t cell__utf8_cut(const char *text, size_t size);
/* Makes text one line without what a terminal would obey: control characters become '?', in place. */
void cell__utf8_make_plain(char *text);
/* Appends bytes with every ill-formed UTF-8 sequence replaced by U+FFFD. */
int cell__buf_add_utf8(struct cell__buf *buf, const char *bytes, size_t size);

#endif
