/*
 * Messages of Connect streams (connectrpc.com): one byte of flags, four bytes of size (big-endian), the message.  Pure; input is hostile
 * and bounded.
 */
#ifndef CELL_WIRE_CONNECT_H
#define CELL_WIRE_CONNECT_H

#include <stddef.h>

#include "base/base.h"

#define CELL_CONNECT_HEAD 5u
#define CELL_CONNECT_COMPRESSED 1u
#define CELL_CONNECT_END 2u /* the last message of an answer: {} or {"error": ...} */

/* Appends a message; -1: out of memory, or it is larger than a size can tell. */
int cell__connect_add(struct cell__buf *buf, unsigned flags, const char *bytes, size_t size);
/*
 * The first message in these bytes: returns the bytes that it takes, 0 if it is not complete, -1 if it is larger than max_bytes.
 * *ret_message points into the bytes.
 */
long cell__connect_next(const char *bytes, size_t size, size_t max_bytes, unsigned *ret_flags, const char **ret_message, size_t *ret_size);

#endif
