/*
 * jansson refuses a whole text for one number that is too large or one half of a surrogate pair. A list of tools should survive that: this
 * file rewrites the text so that only the faulty value changes. Other invalid JSON is left unchanged, for the parser to refuse.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mcp/codegen/internal.h"

struct softener {
	const char *text;
	size_t size, pos;
	struct cell__buf *out;
	unsigned depth;
	int rc;
};

static void copy(struct softener *s, size_t n)
{
	/* Values that are too deep are not copied; one null replaces them. */
	if (s->depth <= CELL_GEN_LIMIT_JSON_DEPTH && s->rc == 0)
		s->rc = cell__buf_add(s->out, s->text + s->pos, n);
	s->pos += n;
}

static void put(struct softener *s, const char *instead, size_t skip)
{
	if (s->depth <= CELL_GEN_LIMIT_JSON_DEPTH && s->rc == 0)
		s->rc = cell__buf_add_str(s->out, instead);
	s->pos += skip;
}

/* The code unit of a \uXXXX at this position; -1: not one. */
static int unit_at(const struct softener *s, size_t at)
{
	int value = 0;
	if (at >= s->size || s->size - at < 6 || s->text[at] != '\\' || s->text[at + 1] != 'u')
		return -1;
	for (size_t i = 2; i < 6; i++) {
		char c = s->text[at + i];
		if (!isxdigit((unsigned char)c))
			return -1;
		value = value * 16 + (isdigit((unsigned char)c) ? c - '0' : (c | 0x20) - 'a' + 10);
	}
	return value;
}

static void soften_escape(struct softener *s)
{
	int unit = unit_at(s, s->pos);
	if (unit < 0) {
		copy(s, s->size - s->pos < 2 ? 1 : 2);
	} else if (unit >= 0xd800 && unit < 0xdc00) {
		int low = unit_at(s, s->pos + 6);
		if (low >= 0xdc00 && low < 0xe000)
			copy(s, 12);
		else
			put(s, "\\ufffd", 6);
	} else if ((unit >= 0xdc00 && unit < 0xe000) || unit == 0) {
		put(s, "\\ufffd", 6); /* a NUL is refused in names */
	} else {
		copy(s, 6);
	}
}

static void soften_string(struct softener *s)
{
	copy(s, 1);
	while (s->pos < s->size && s->text[s->pos] != '"') {
		if (s->text[s->pos] == '\\')
			soften_escape(s);
		else
			copy(s, 1);
	}
	if (s->pos < s->size)
		copy(s, 1);
}

static void soften_number(struct softener *s)
{
	size_t n = 0;
	bool whole = true;
	char digits[512];
	while (n < s->size - s->pos && strchr("+-0123456789.eE", s->text[s->pos + n]) && s->text[s->pos + n]) {
		whole = whole && !strchr(".eE", s->text[s->pos + n]);
		n++;
	}
	if (n >= sizeof digits) {
		put(s, "null", n);
		return;
	}
	memcpy(digits, s->text + s->pos, n);
	digits[n] = '\0';
	errno = 0;
	if (whole) {
		(void)strtoll(digits, NULL, 10);
		bool large = errno == ERANGE;
		/* At most 308 digits are a number still. */
		if (large && n > 300)
			put(s, "null", n);
		else
			copy(s, n);
		if (large && n <= 300)
			put(s, ".0", 0);
		return;
	}
	/* Only the magnitude counts, so a locale's decimal point does no harm: digits after it are small. */
	char *exponent = strpbrk(digits, "eE");
	bool overflow = exponent && isinf(strtod(digits, NULL));
	char *point = strchr(digits, '.');
	if (!overflow && exponent && point && point < exponent) {
		memmove(point, exponent, strlen(exponent) + 1);
		overflow = isinf(strtod(digits, NULL));
	}
	if (overflow || strspn(digits + (digits[0] == '-'), "0123456789") > 300)
		put(s, "null", n);
	else
		copy(s, n);
}

static bool at_word(const struct softener *s, const char *word)
{
	size_t n = strlen(word);
	return s->size - s->pos >= n && memcmp(s->text + s->pos, word, n) == 0;
}

int cell__gen_soften(const char *text, size_t size, struct cell__buf *out)
{
	static const char *const words[] = { "-Infinity", "Infinity", "NaN" };
	struct softener s = { .text = text, .size = size, .out = out };
	while (s.pos < size && s.rc == 0) {
		char c = text[s.pos];
		size_t word = 0;
		while (word < 3 && !at_word(&s, words[word]))
			word++;
		if (word < 3) {
			put(&s, "null", strlen(words[word]));
		} else if (c == '"') {
			soften_string(&s);
		} else if (c == '-' || isdigit((unsigned char)c)) {
			soften_number(&s);
		} else if (c == '[' || c == '{') {
			if (++s.depth == CELL_GEN_LIMIT_JSON_DEPTH + 1)
				s.rc = cell__buf_add_str(out, "null");
			copy(&s, 1);
		} else if (c == ']' || c == '}') {
			copy(&s, 1);
			if (s.depth > 0)
				s.depth--;
		} else {
			copy(&s, 1);
		}
	}
	return s.rc;
}

json_t *cell__gen_parse(const char *text, size_t size, struct cell_error *err)
{
	json_error_t problem;
	if (size > CELL_GEN_LIMIT_INPUT_BYTES) {
		cell_fail(err, CELL_E_LIMIT, 0, "a list of tools may have at most %u bytes, this one has %zu", CELL_GEN_LIMIT_INPUT_BYTES,
			  size);
		return NULL;
	}
	json_t *whole = json_loadb(text, size, JSON_ALLOW_NUL, &problem);
	if (!whole) {
		CELL_AUTO_BUF struct cell__buf soft = CELL_BUF_INIT;
		if (cell__gen_soften(text, size, &soft) < 0) {
			cell_fail(err, CELL_E_NOMEM, 0, "read a list of tools");
			return NULL;
		}
		whole = json_loadb(soft.data ? soft.data : "", soft.size, JSON_ALLOW_NUL, NULL);
	}
	if (!whole) {
		CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
		(void)cell__buf_add_utf8(&why, problem.text, strlen(problem.text)); /* it quotes the text */
		cell_fail(err, CELL_E_INVALID, 0, "the list of tools is not JSON: line %d: %s", problem.line, why.data ? why.data : "");
		return NULL;
	}
	json_t *list = whole, *result = json_object_get(whole, "result");
	if (json_is_object(result))
		list = result;
	if (json_is_object(list))
		list = json_object_get(list, "tools");
	if (!json_is_array(list)) {
		json_decref(whole);
		cell_fail(err, CELL_E_INVALID, 0, "the list of tools must have the form {\"tools\": [...]}");
		return NULL;
	}
	json_incref(list);
	json_decref(whole);
	return list;
}
