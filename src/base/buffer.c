#include "base/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void cell__buf_finish(struct cell__buf *buf)
{
	free(buf->data);
	*buf = (struct cell__buf)CELL_BUF_INIT;
}

int cell__buf_reserve(struct cell__buf *buf, size_t more)
{
	if (more > SIZE_MAX / 2 - buf->size - 1)
		return -1;
	size_t need = buf->size + more + 1;
	if (need <= buf->capacity)
		return 0;
	size_t capacity = buf->capacity ? buf->capacity : 64;
	while (capacity < need)
		capacity *= 2;
	char *data = cell__realloc(buf->data, capacity);
	if (!data)
		return -1;
	buf->data = data;
	buf->capacity = capacity;
	return 0;
}

int cell__buf_add(struct cell__buf *buf, const void *bytes, size_t size)
{
	if (cell__buf_reserve(buf, size) < 0)
		return -1;
	if (size)
		memcpy(buf->data + buf->size, bytes, size);
	buf->size += size;
	buf->data[buf->size] = '\0';
	return 0;
}

int cell__buf_add_str(struct cell__buf *buf, const char *text)
{
	return cell__buf_add(buf, text, strlen(text));
}

int cell__buf_printf(struct cell__buf *buf, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	va_list again;
	va_copy(again, ap);
	int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0 || cell__buf_reserve(buf, (size_t)n) < 0) {
		va_end(again);
		return -1;
	}
	vsnprintf(buf->data + buf->size, (size_t)n + 1, fmt, again);
	va_end(again);
	buf->size += (size_t)n;
	return 0;
}

int cell__buf_add_percent(struct cell__buf *buf, const char *path)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/";
	int rc = 0;
	for (const char *at = path; *at; at++)
		rc |= strchr(plain, *at) ? cell__buf_add(buf, at, 1) : cell__buf_printf(buf, "%%%02X", (unsigned char)*at);
	return rc;
}

void cell__buf_shift(struct cell__buf *buf, size_t n)
{
	if (n == 0)
		return;
	buf->size -= n;
	memmove(buf->data, buf->data + n, buf->size);
	buf->data[buf->size] = '\0';
}

char *cell__buf_take(struct cell__buf *buf)
{
	if (!buf->data && cell__buf_add(buf, "", 0) < 0)
		return NULL;
	char *data = buf->data;
	*buf = (struct cell__buf)CELL_BUF_INIT;
	return data;
}

int cell__buf_add_json_escaped(struct cell__buf *buf, const char *bytes, size_t size)
{
	size_t start = 0;
	for (size_t i = 0; i < size; i++) {
		unsigned char c = (unsigned char)bytes[i];
		if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f)
			continue;
		if (cell__buf_add(buf, bytes + start, i - start) < 0)
			return -1;
		start = i + 1;
		int rc;
		switch (c) {
		case '"':
			rc = cell__buf_add(buf, "\\\"", 2);
			break;
		case '\\':
			rc = cell__buf_add(buf, "\\\\", 2);
			break;
		case '\n':
			rc = cell__buf_add(buf, "\\n", 2);
			break;
		case '\r':
			rc = cell__buf_add(buf, "\\r", 2);
			break;
		case '\t':
			rc = cell__buf_add(buf, "\\t", 2);
			break;
		default:
			rc = cell__buf_printf(buf, "\\u%04x", c);
		}
		if (rc < 0)
			return -1;
	}
	return cell__buf_add(buf, bytes + start, size - start);
}

int cell__buf_add_json_string(struct cell__buf *buf, const char *bytes, size_t size)
{
	if (cell__buf_add(buf, "\"", 1) < 0 || cell__buf_add_json_escaped(buf, bytes, size) < 0)
		return -1;
	return cell__buf_add(buf, "\"", 1);
}
