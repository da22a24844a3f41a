/* Byte buffers that grow.  0 means success; -1 means out of memory, and the buffer is unchanged. */
#ifndef CELL_BASE_BUFFER_H
#define CELL_BASE_BUFFER_H

#include <stddef.h>

struct cell__buf {
	char *data; /* NULL while empty; data[size] is NUL once there is data */
	size_t size;
	size_t capacity;
};
#define CELL_BUF_INIT { NULL, 0, 0 }

void cell__buf_finish(struct cell__buf *buf);
#define CELL_AUTO_BUF __attribute__((cleanup(cell__buf_finish)))
/* 0, or -1 if out of memory (the buffer is unchanged). */
int cell__buf_reserve(struct cell__buf *buf, size_t more);
int cell__buf_add(struct cell__buf *buf, const void *bytes, size_t size);
int cell__buf_add_str(struct cell__buf *buf, const char *text);
int cell__buf_printf(struct cell__buf *buf, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A path as a part of a URL's query: all but letters, digits and -._~/ as %NN. */
int cell__buf_add_percent(struct cell__buf *buf, const char *path);
/* Drops the first n bytes. */
void cell__buf_shift(struct cell__buf *buf, size_t n);
/* Hands over the memory, NUL-terminated; NULL only if out of memory. */
char *cell__buf_take(struct cell__buf *buf);
/* Appends bytes as a JSON string body without quotes; bytes must be valid UTF-8. */
int cell__buf_add_json_escaped(struct cell__buf *buf, const char *bytes, size_t size);
int cell__buf_add_json_string(struct cell__buf *buf, const char *bytes, size_t size);

#endif
