/* Base64 into and out of a buffer. */
#ifndef CELL_BASE_BASE64_H
#define CELL_BASE_BASE64_H

#include "base/buffer.h"

int cell__buf_add_base64(struct cell__buf *buf, const void *bytes, size_t size);
/* Decodes base64 text and appends it (spaces and line breaks are skipped); -1 also if it is invalid, and then nothing is added. */
int cell__buf_add_unbase64(struct cell__buf *buf, const char *text, size_t size);

#endif
