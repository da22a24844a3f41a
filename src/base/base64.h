/* Base64 into and out of a buffer. */
#ifndef CELL_BASE_BASE64_H
#define CELL_BASE_BASE64_H

#include "base/buffer.h"

int cell__buf_add_base64(struct cell__buf *buf, const void *bytes, size_t size);
/* Appends what base64 text stands for (spaces and line breaks are skipped); -1 also when it is none, and nothing is added. */
int cell__buf_add_unbase64(struct cell__buf *buf, const char *text, size_t size);

#endif
