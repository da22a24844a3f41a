#define _GNU_SOURCE
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

/* ---- errors ---- */

static const struct {
	const char *word;
	int http;
	int exit_status;
} codes[CELL_CODE_COUNT] = {
#define CELL_CODE_ROW(name, word, http, rpc, exit_status, py) [CELL_##name] = { word, http, exit_status },
	CELL_CODE_TABLE(CELL_CODE_ROW)
#undef CELL_CODE_ROW
};

const char *cell_code_word(int code)
{
	return code >= 0 && code < CELL_CODE_COUNT ? codes[code].word : "unknown";
}

int cell_code_exit_status(int code)
{
	return code >= 0 && code < CELL_CODE_COUNT ? codes[code].exit_status : 125;
}

int cell_code_http_status(int code)
{
	return code >= 0 && code < CELL_CODE_COUNT ? codes[code].http : 500;
}

const char *cell_version(void)
{
	return CELL_VERSION;
}

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

/* A message that was cut ends with a whole character: it will stand in JSON. */
static void trim(struct cell_error *err)
{
	size_t n = strlen(err->msg);
	err->msg[n - cell__utf8_cut(err->msg, n)] = '\0';
}

int cell_fail(struct cell_error *err, int code, int sys, const char *fmt, ...)
{
	if (!err)
		return -1;
	err->code = code;
	err->sys = sys;
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	if (sys != 0 && n >= 0 && (size_t)n < sizeof err->msg - 1)
		snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", strerrordesc_np(sys));
	trim(err);
	return -1;
}

int cell_fail_wrap(struct cell_error *err, const char *fmt, ...)
{
	if (!err)
		return -1;
	char old[sizeof err->msg - 2]; /* there is a ": " to add */
	memcpy(old, err->msg, sizeof old);
	old[sizeof old - 1] = '\0';
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(err->msg, sizeof err->msg, fmt, ap);
	va_end(ap);
	if (n >= 0 && (size_t)n < sizeof err->msg - 1)
		snprintf(err->msg + n, sizeof err->msg - (size_t)n, ": %s", old);
	trim(err);
	return -1;
}

/* ---- memory ---- */

static long fail_countdown;

void cell__alloc_fail_after(long n)
{
	fail_countdown = n;
}

static bool must_fail(void)
{
	return fail_countdown > 0 && --fail_countdown == 0;
}

void *cell__alloc(size_t count, size_t size)
{
	if (must_fail())
		return NULL;
	return calloc(count ? count : 1, size ? size : 1);
}

void *cell__realloc(void *old, size_t size)
{
	if (must_fail())
		return NULL;
	return realloc(old, size ? size : 1);
}

char *cell__strndup(const char *bytes, size_t size)
{
	char *copy = cell__alloc(1, size + 1);
	if (copy && size)
		memcpy(copy, bytes, size);
	return copy;
}

char *cell__strdup(const char *text)
{
	return cell__strndup(text, strlen(text));
}

/* ---- byte buffers ---- */

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
	/* One digit alone is no byte; the bits that are left over must be none. */
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

/*
 * Length of the well-formed UTF-8 character at bytes (RFC 3629: no overlong forms, no surrogates, at most
 * U+10FFFF), or 0 with *ret_bad = how many bytes form the ill-formed maximal subpart (what Python replaces by
 * one U+FFFD).
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
		uint64_t eight; /* of ASCII at once: most texts are long stretches of it */
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

/* ---- small things ---- */

int64_t cell__now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

void cell__random_hex(char *out, size_t n_chars)
{
	unsigned char bytes[64];
	size_t need = (n_chars + 1) / 2;
	if (need > sizeof bytes)
		abort(); /* misuse */
	/* Up to 256 bytes never fail or fall short once the pool is initialised; before that it waits. */
	while (getrandom(bytes, need, 0) != (ssize_t)need) {
	}
	for (size_t i = 0; i < n_chars; i++)
		out[i] = "0123456789abcdef"[i % 2 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4];
	out[n_chars] = '\0';
}

static char home[4096];

static void find_home(void)
{
	struct passwd entry, *found = NULL;
	char memory[8192];
	if (getpwuid_r(getuid(), &entry, memory, sizeof memory, &found) == 0 && found && found->pw_dir[0] == '/')
		snprintf(home, sizeof home, "%s", found->pw_dir);
	else
		snprintf(home, sizeof home, "/");
}

const char *cell__home_dir(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_home);
	return home;
}
