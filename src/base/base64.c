#include "base/base64.h"

int cell__buf_add_base64(struct cell__buf *buf, const void *bytes, size_t size)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *in = bytes;
	if (cell__buf_reserve(buf, (size + 2) / 3 * 4) < 0)
		return -1;
	char *out = buf->data + buf->size;
	size_t i = 0;
	for (; i + 2 < size; i += 3) {
		unsigned v = (unsigned)in[i] << 16 | (unsigned)in[i + 1] << 8 | in[i + 2];
		*out++ = digits[v >> 18];
		*out++ = digits[v >> 12 & 63];
		*out++ = digits[v >> 6 & 63];
		*out++ = digits[v & 63];
	}
	if (i < size) {
		unsigned v = (unsigned)in[i] << 16 | (i + 1 < size ? (unsigned)in[i + 1] << 8 : 0);
		*out++ = digits[v >> 18];
		*out++ = digits[v >> 12 & 63];
		*out++ = i + 1 < size ? digits[v >> 6 & 63] : '=';
		*out++ = '=';
	}
	*out = '\0';
	buf->size = (size_t)(out - buf->data);
	return 0;
}

static int base64_digit(char c)
{
	return c >= 'A' && c <= 'Z'   ? c - 'A'
	       : c >= 'a' && c <= 'z' ? c - 'a' + 26
	       : c >= '0' && c <= '9' ? c - '0' + 52
	       : c == '+' || c == '-' ? 62
	       : c == '/' || c == '_' ? 63
				      : -1;
}

int cell__buf_add_unbase64(struct cell__buf *buf, const char *text, size_t size)
{
	if (cell__buf_reserve(buf, size / 4 * 3 + 3) < 0)
		return -1;
	unsigned char *out = (unsigned char *)buf->data + buf->size;
	unsigned bits = 0, digits = 0, padding = 0;
	for (size_t i = 0; i < size; i++) {
		int digit = base64_digit(text[i]);
		if (text[i] == ' ' || text[i] == '\n' || text[i] == '\r' || text[i] == '\t')
			continue;
		if (text[i] == '=' && ++padding <= 2)
			continue;
		if (digit < 0 || padding > 0)
			return -1;
		bits = bits << 6 | (unsigned)digit;
		if (++digits % 4 == 0) {
			*out++ = (unsigned char)(bits >> 16);
			*out++ = (unsigned char)(bits >> 8);
			*out++ = (unsigned char)bits;
		}
	}
	/* A single digit does not make a byte; bits that are left over count for nothing. */
	unsigned rest = digits % 4;
	if (rest == 1 || (padding > 0 && (rest + padding) % 4 != 0))
		return -1;
	if (rest >= 2)
		*out++ = (unsigned char)(rest == 2 ? bits >> 4 : bits >> 10);
	if (rest == 3)
		*out++ = (unsigned char)(bits >> 2);
	buf->size = (size_t)((char *)out - buf->data);
	buf->data[buf->size] = '\0';
	return 0;
}
