#define _GNU_SOURCE
#include "wire/oauth.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- challenges ---- */

static bool is_token_char(char c)
{
	return isalnum((unsigned char)c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static const char *skip_space(const char *at)
{
	while (*at == ' ' || *at == '\t' || *at == ',')
		at++;
	return at;
}

/* A quoted string or a token; *at is behind it then.  -1: invalid. */
static int read_value(const char **at, struct cell__buf *out)
{
	const char *c = *at;
	int rc = cell__buf_reserve(out, 1);
	if (*c == '"') {
		for (c++; *c && *c != '"' && rc == 0; c++) {
			if (*c == '\\' && c[1])
				c++;
			rc = (unsigned char)*c < 0x20 || *c == 0x7f || out->size >= CELL_OAUTH_LIMIT_VALUE ? -1 : cell__buf_add(out, c, 1);
		}
		if (*c != '"')
			return -1;
		c++;
	} else {
		for (; is_token_char(*c) && rc == 0; c++)
			rc = out->size >= CELL_OAUTH_LIMIT_VALUE ? -1 : cell__buf_add(out, c, 1);
	}
	*at = c;
	return rc;
}

char *cell__oauth_challenge(const char *header, const char *name)
{
	bool bearer = false;
	for (const char *at = skip_space(header); *at; at = skip_space(at)) {
		const char *word = at;
		while (is_token_char(*at))
			at++;
		size_t size = (size_t)(at - word);
		if (size == 0)
			return NULL;
		const char *equals = at;
		while (*equals == ' ' || *equals == '\t')
			equals++;
		if (*equals != '=') {
			bearer = size == 6 && strncasecmp(word, "Bearer", 6) == 0; /* the next scheme */
			continue;
		}
		for (at = equals + 1; *at == ' ' || *at == '\t';)
			at++;
		CELL_AUTO_BUF struct cell__buf value = CELL_BUF_INIT;
		if (read_value(&at, &value) < 0)
			return NULL;
		if (bearer && size == strlen(name) && strncasecmp(word, name, size) == 0)
			return cell__strndup(value.data ? value.data : "", value.size);
		while (*at == '=')
			at++; /* the padding of a token68 */
	}
	return NULL;
}

/* ---- URLs ---- */

bool cell__oauth_is_loopback(const char *host)
{
	unsigned a, b, c, d;
	char rest;
	if (strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0)
		return true;
	return sscanf(host, "%3u.%3u.%3u.%3u%c", &a, &b, &c, &d, &rest) == 4 && a == 127 && b < 256 && c < 256 && d < 256;
}

int cell__oauth_url_read(const char *url, struct cell__oauth_url *ret_url)
{
	struct cell__oauth_url out = { .secure = strncasecmp(url, "https://", 8) == 0 };
	if (!out.secure && strncasecmp(url, "http://", 7) != 0)
		return -1;
	for (const char *at = url; *at; at++)
		if ((unsigned char)*at <= 0x20 || (unsigned char)*at >= 0x7f || *at == '\\' || *at == '#')
			return -1;
	const char *host = url + (out.secure ? 8 : 7);
	size_t size = strcspn(host, "/?");
	size_t name = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/?");
	if (size == 0 || name == 0 || name > size || name >= sizeof out.host || memchr(host, '@', size))
		return -1;
	const char *port = host + name;
	if (port < host + size &&
	    (*port != ':' || host + size - port > 6 || strspn(port + 1, "0123456789") != (size_t)(host + size - port - 1)))
		return -1;
	for (size_t i = 0; i < name; i++)
		out.host[i] = (char)tolower((unsigned char)host[i]);
	bool standard = strncmp(port, out.secure ? ":443" : ":80", out.secure ? 4 : 3) == 0 && port + (out.secure ? 4 : 3) == host + size;
	snprintf(out.origin, sizeof out.origin, "%s://%s%.*s", out.secure ? "https" : "http", out.host,
		 standard ? 0 : (int)(host + size - port), port);
	out.path = host + size;
	out.path_size = strcspn(out.path, "?");
	*ret_url = out;
	return 0;
}

/* ---- base64url, queries ---- */

int cell__buf_add_base64url(struct cell__buf *buf, const void *bytes, size_t size)
{
	size_t start = buf->size;
	if (cell__buf_add_base64(buf, bytes, size) < 0)
		return -1;
	while (buf->size > start && buf->data[buf->size - 1] == '=')
		buf->size--;
	for (size_t i = start; i < buf->size; i++)
		buf->data[i] = buf->data[i] == '+' ? '-' : buf->data[i] == '/' ? '_' : buf->data[i];
	if (buf->data)
		buf->data[buf->size] = '\0';
	return 0;
}

/* Bits of the last character that are in no byte: were they anything, a signature would have several texts. */
static bool has_loose_bits(const char *text, size_t size)
{
	static const char *const clean[] = { NULL, NULL, "AQgw", "AEIMQUYcgkosw048" };

	return size % 4 >= 2 && !strchr(clean[size % 4], text[size - 1]);
}

int cell__buf_add_unbase64url(struct cell__buf *buf, const char *text, size_t size)
{
	CELL_AUTO_BUF struct cell__buf plain = CELL_BUF_INIT;
	if (size % 4 == 1 || has_loose_bits(text, size) || cell__buf_reserve(&plain, size + 3) < 0)
		return -1;
	for (size_t i = 0; i < size; i++) {
		char c = text[i] == '-' ? '+' : text[i] == '_' ? '/' : text[i];
		if (!isalnum((unsigned char)text[i]) && text[i] != '-' && text[i] != '_')
			return -1;
		(void)cell__buf_add(&plain, &c, 1);
	}
	while (plain.size % 4)
		(void)cell__buf_add(&plain, "=", 1);
	return plain.size == 0 ? cell__buf_reserve(buf, 1) : cell__buf_add_unbase64(buf, plain.data, plain.size);
}

static int add_escaped(struct cell__buf *buf, const char *text)
{
	int rc = 0;
	for (; *text && rc == 0; text++) {
		if (isalnum((unsigned char)*text) || strchr("-._~", *text))
			rc = cell__buf_add(buf, text, 1);
		else
			rc = cell__buf_printf(buf, "%%%02X", (unsigned char)*text) < 0 ? -1 : 0;
	}
	return rc;
}

int cell__buf_add_query(struct cell__buf *buf, bool *first, const char *name, const char *value)
{
	int rc = *first ? 0 : cell__buf_add(buf, "&", 1);
	*first = false;
	return rc < 0 || add_escaped(buf, name) < 0 || cell__buf_add(buf, "=", 1) < 0 || add_escaped(buf, value) < 0 ? -1 : 0;
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static char *decode(const char *text, size_t size)
{
	char *out = size <= CELL_OAUTH_LIMIT_VALUE ? cell__alloc(size + 1, 1) : NULL;
	size_t n = 0;
	for (size_t i = 0; out && i < size; i++) {
		int value = (unsigned char)text[i];
		if (text[i] == '+') {
			value = ' ';
		} else if (text[i] == '%') {
			int high = i + 2 < size ? digit(text[i + 1]) : -1, low = i + 2 < size ? digit(text[i + 2]) : -1;
			value = high < 0 || low < 0 ? -1 : high * 16 + low;
			i += 2;
		}
		if (value <= 0) {
			free(out);
			return NULL;
		}
		out[n++] = (char)value;
	}
	return out;
}

char *cell__query_value(const char *query, size_t size, const char *name)
{
	const char *end = query + size, *found = NULL;
	size_t found_size = 0, wanted = strlen(name);
	for (const char *at = query; at < end;) {
		const char *next = memchr(at, '&', (size_t)(end - at));
		next = next ? next : end;
		const char *equals = memchr(at, '=', (size_t)(next - at));
		if (equals && (size_t)(equals - at) == wanted && memcmp(at, name, wanted) == 0) {
			if (found)
				return NULL; /* which one is meant? */
			found = equals + 1;
			found_size = (size_t)(next - found);
		}
		at = next + 1;
	}
	return found ? decode(found, found_size) : NULL;
}
