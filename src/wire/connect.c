#include "wire/connect.h"

#include <stdint.h>

int cell__connect_add(struct cell__buf *buf, unsigned flags, const char *bytes, size_t size)
{
	unsigned char head[CELL_CONNECT_HEAD] = { (unsigned char)flags, (unsigned char)(size >> 24), (unsigned char)(size >> 16),
						  (unsigned char)(size >> 8), (unsigned char)size };
	size_t start = buf->size;

	if (size > INT32_MAX)
		return -1;
	if (cell__buf_add(buf, head, sizeof(head)) < 0 || cell__buf_add(buf, bytes, size) < 0) {
		buf->size = start;
		return -1;
	}
	return 0;
}

long cell__connect_next(const char *bytes, size_t size, size_t max_bytes, unsigned *ret_flags, const char **ret_message, size_t *ret_size)
{
	const unsigned char *head = (const unsigned char *)bytes;
	size_t n;

	if (size < CELL_CONNECT_HEAD)
		return 0;
	n = (size_t)head[1] << 24 | (size_t)head[2] << 16 | (size_t)head[3] << 8 | head[4];
	if (n > max_bytes || n > INT32_MAX)
		return -1;
	if (size - CELL_CONNECT_HEAD < n)
		return 0;
	*ret_flags = head[0];
	*ret_message = bytes + CELL_CONNECT_HEAD;
	*ret_size = n;
	return (long)(CELL_CONNECT_HEAD + n);
}
