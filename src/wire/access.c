#include "wire/access.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

void cell__access_hash(const char *token, size_t size, unsigned char ret_hash[CELL_ACCESS_HASH_BYTES])
{
	SHA256((const unsigned char *)token, size, ret_hash);
}

bool cell__access_same(const unsigned char *hash, const unsigned char *other)
{
	return !CRYPTO_memcmp(hash, other, CELL_ACCESS_HASH_BYTES);
}

const char *cell__access_bearer(const char *header)
{
	if (!header || strncasecmp(header, "Bearer ", 7))
		return NULL;
	header += 7;
	while (*header == ' ')
		header++;
	return *header ? header : NULL;
}

static bool is_listed(const char *const *list, const char *value)
{
	for (; list && *list; list++) {
		if (!strcasecmp(*list, value))
			return true;
	}
	return false;
}

/* Whether it is `name`, with our port or without one. */
static bool is_host(const char *host, const char *name, int port)
{
	size_t size = strlen(name);
	char text[16];

	if (strncasecmp(host, name, size))
		return false;
	snprintf(text, sizeof(text), ":%d", port);
	return !host[size] || !strcmp(host + size, text) || (!port && host[size] == ':');
}

bool cell__access_host(const char *host, const char *bound, int port, const char *const *more)
{
	char bracketed[128];

	if (!host)
		return false;
	snprintf(bracketed, sizeof(bracketed), strchr(bound, ':') ? "[%s]" : "%s", bound);
	return is_host(host, "localhost", port) || is_host(host, "127.0.0.1", port) || is_host(host, "[::1]", port) ||
	       is_host(host, bracketed, port) || is_listed(more, host);
}

bool cell__access_origin(const char *origin, const char *host, const char *const *more)
{
	if (!origin || is_listed(more, origin))
		return true;
	if (!strncasecmp(origin, "http://", 7))
		return !strcasecmp(origin + 7, host);
	return !strncasecmp(origin, "https://", 8) && !strcasecmp(origin + 8, host);
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int cell__url_decode(const char *text, size_t size, bool plus, struct cell__buf *out)
{
	size_t before = out->size;

	if (cell__buf_reserve(out, size) < 0 || cell__buf_add(out, "", 0) < 0)
		return -1;
	for (size_t i = 0; i < size; i++) {
		int high, low;
		char c = text[i];

		if (c == '%') {
			high = i + 2 < size ? hex_digit(text[i + 1]) : -1;
			low = i + 2 < size ? hex_digit(text[i + 2]) : -1;
			if (high < 0 || low < 0)
				goto bad;
			c = (char)(high << 4 | low);
			i += 2;
		} else if (c == '+' && plus) {
			c = ' ';
		}
		if (!c || cell__buf_add(out, &c, 1) < 0)
			goto bad;
	}
	if (!size || cell__utf8_ok(out->data + before, out->size - before))
		return 0;
bad:
	out->size = before;
	if (out->data)
		out->data[before] = '\0';
	return -1;
}
