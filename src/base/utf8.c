#include "base/utf8.h"

#include <stdint.h>
#include <string.h>

size_t cell__utf8_cut(const char *text, size_t size)
{
	for (size_t back = 1; back <= 3 && back <= size; back++) {
		unsigned char c = (unsigned char)text[size - back];
		if (c >= 0xc0)
			return (c >= 0xf0 ? 4u : c >= 0xe0 ? 3u : 2u) > back ? back : 0;
		if (c < 0x80)
			return 0;
	}
	return 0;
}

/*
 * Length of the well-formed UTF-8 character at bytes (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF), or 0 with *ret_bad =
 * the size of the ill-formed maximal subpart (which Python replaces by one U+FFFD).
 */
static size_t utf8_char(const unsigned char *b, size_t size, size_t *ret_bad)
{
	unsigned char c = b[0];
	*ret_bad = 1;
	if (c < 0x80)
		return 1;
	size_t n = c >= 0xc2 && c <= 0xdf ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
	if (n == 0)
		return 0;
	unsigned char low = 0x80, high = 0xbf;
	if (c == 0xe0)
		low = 0xa0;
	else if (c == 0xed)
		high = 0x9f;
	else if (c == 0xf0)
		low = 0x90;
	else if (c == 0xf4)
		high = 0x8f;
	for (size_t i = 1; i < n; i++) {
		if (i >= size || b[i] < low || b[i] > high) {
			*ret_bad = i;
			return 0;
		}
		low = 0x80;
		high = 0xbf;
	}
	return n;
}

bool cell__utf8_ok(const char *bytes, size_t size)
{
	size_t bad;
	for (size_t i = 0; i < size;) {
		uint64_t eight; /* of ASCII at once: most texts are long runs of it */
		while (size - i >= sizeof eight && (memcpy(&eight, bytes + i, sizeof eight), (eight & UINT64_C(0x8080808080808080)) == 0))
			i += sizeof eight;
		if (i == size)
			break;
		size_t n = utf8_char((const unsigned char *)bytes + i, size - i, &bad);
		if (n == 0)
			return false;
		i += n;
	}
	return true;
}

int cell__buf_add_utf8(struct cell__buf *buf, const char *bytes, size_t size)
{
	size_t start = 0;
	for (size_t i = 0; i < size;) {
		size_t bad;
		size_t n = utf8_char((const unsigned char *)bytes + i, size - i, &bad);
		if (n > 0) {
			i += n;
			continue;
		}
		if (cell__buf_add(buf, bytes + start, i - start) < 0 || cell__buf_add(buf, "\xef\xbf\xbd", 3) < 0)
			return -1;
		i += bad;
		start = i;
	}
	return cell__buf_add(buf, bytes + start, size - start);
}

void cell__utf8_make_plain(char *text)
{
	for (unsigned char *at = (unsigned char *)text; *at; at++) {
		bool is_pair = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0; /* U+0080 to U+009F */
		if (*at < 0x20 || *at == 0x7f || is_pair)
			*at = '?';
		if (is_pair)
			*++at = '?';
	}
}
