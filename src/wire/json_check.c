#include "wire/json_check.h"

#include <string.h>

#include "base/base.h"

struct cursor {
	const char *at;
	const char *end;
};

static void skip_space(struct cursor *c)
{
	/* No line breaks: results are written as lines of JSON. */
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\t'))
		c->at++;
}

static bool take(struct cursor *c, char wanted)
{
	if (c->at >= c->end || *c->at != wanted)
		return false;
	c->at++;
	return true;
}

static bool take_word(struct cursor *c, const char *word)
{
	size_t n = strlen(word);
	if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0)
		return false;
	c->at += n;
	return true;
}

static bool take_digits(struct cursor *c)
{
	const char *start = c->at;
	while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
		c->at++;
	return c->at > start;
}

static bool take_number(struct cursor *c)
{
	take(c, '-');
	if (!take(c, '0') && !take_digits(c))
		return false;
	if (take(c, '.') && !take_digits(c))
		return false;
	if (take(c, 'e') || take(c, 'E')) {
		if (!take(c, '+'))
			take(c, '-');
		return take_digits(c);
	}
	return true;
}

/* The value of four hexadecimal digits, or -1. */
static int hex4(const char *at)
{
	int v = 0;
	for (int i = 0; i < 4; i++) {
		char d = at[i];
		int digit = d >= '0' && d <= '9' ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10 : d >= 'A' && d <= 'F' ? d - 'A' + 10 : -1;
		if (digit < 0)
			return -1;
		v = v * 16 + digit;
	}
	return v;
}

/* After "\u".  Surrogates must come in pairs: a lone one has no place in UTF-8. */
static bool take_unicode(struct cursor *c)
{
	if (c->end - c->at < 4)
		return false;
	int v = hex4(c->at);
	if (v < 0 || (v >= 0xdc00 && v <= 0xdfff))
		return false;
	c->at += 4;
	if (v < 0xd800 || v > 0xdbff)
		return true;
	if (c->end - c->at < 6 || c->at[0] != '\\' || c->at[1] != 'u')
		return false;
	int low = hex4(c->at + 2);
	c->at += 6;
	return low >= 0xdc00 && low <= 0xdfff;
}

static bool take_string(struct cursor *c)
{
	if (!take(c, '"'))
		return false;
	const char *start = c->at;
	while (c->at < c->end) {
		unsigned char b = (unsigned char)*c->at++;
		if (b == '"')
			return cell__utf8_ok(start, (size_t)(c->at - 1 - start));
		if (b < 0x20)
			return false;
		if (b != '\\')
			continue;
		if (c->at >= c->end)
			return false;
		char e = *c->at++;
		if (e == 'u') {
			if (!take_unicode(c))
				return false;
		} else if (!e || !strchr("\"\\/bfnrt", e)) {
			return false;
		}
	}
	return false;
}

static bool take_scalar(struct cursor *c)
{
	if (c->at >= c->end)
		return false;
	switch (*c->at) {
	case '"':
		return take_string(c);
	case 't':
		return take_word(c, "true");
	case 'f':
		return take_word(c, "false");
	case 'n':
		return take_word(c, "null");
	default:
		return take_number(c);
	}
}

/* A member's name and its colon. */
static bool take_key(struct cursor *c)
{
	skip_space(c);
	if (!take_string(c))
		return false;
	skip_space(c);
	return take(c, ':');
}

/* Iterative: the attacker chooses the depth and the stack is ours. `closers` holds the closing character of each open container. */
bool cell__json_check(const char *text, size_t size)
{
	struct cursor c = { text, text + size };
	char closers[CELL_LIMIT_JSON_DEPTH];
	size_t depth = 0;
	for (;;) {
		skip_space(&c);
		if (c.at >= c.end)
			return false;
		if (*c.at == '{' || *c.at == '[') {
			char closer = *c.at++ == '{' ? '}' : ']';
			if (depth == CELL_LIMIT_JSON_DEPTH)
				return false;
			skip_space(&c);
			if (!take(&c, closer)) {
				closers[depth++] = closer;
				if (closer == '}' && !take_key(&c))
					return false;
				continue;
			}
		} else if (!take_scalar(&c)) {
			return false;
		}
		/* A value ended: close containers, or go on to the next member. */
		for (;;) {
			skip_space(&c);
			if (depth == 0)
				return c.at == c.end;
			if (take(&c, closers[depth - 1])) {
				depth--;
				continue;
			}
			if (!take(&c, ','))
				return false;
			if (closers[depth - 1] == '}' && !take_key(&c))
				return false;
			break;
		}
	}
}

/* ---- weight ---- */

/* As jansson allocates them on a 64-bit machine, with malloc()'s overhead. */
enum {
	WEIGHT_OBJECT = 224, /* a table of eight buckets */
	WEIGHT_ARRAY = 128,  /* of eight elements */
	WEIGHT_VALUE = 96,   /* a string with its place in a container */
	WEIGHT_NAME = 112,
};

size_t cell__json_weigh(const char *text, size_t size)
{
	const char *at = text, *end = text + size;
	size_t weight = WEIGHT_VALUE;
	while (at < end) {
		switch (*at++) {
		case '{':
			weight += WEIGHT_OBJECT;
			break;
		case '[':
			weight += WEIGHT_ARRAY;
			break;
		case ',':
			weight += WEIGHT_VALUE;
			break;
		case ':':
			weight += WEIGHT_NAME;
			break;
		case '"': /* to its end */
			for (;;) {
				at = memchr(at, '"', (size_t)(end - at));
				if (!at)
					return weight;
				size_t escapes = 0;
				while (at[-1 - (ptrdiff_t)escapes] == '\\')
					escapes++;
				at++;
				if (escapes % 2 == 0)
					break;
			}
			break;
		default:
			break;
		}
	}
	return weight;
}

/* ---- flat objects ---- */

static bool take_member(struct cursor *c, struct cell__json_member *member)
{
	const char *start = c->at;
	if (!take_string(c))
		return false;
	member->name = start + 1;
	member->name_size = (size_t)(c->at - start) - 2;
	if (memchr(member->name, '\\', member->name_size))
		return false;
	skip_space(c);
	if (!take(c, ':'))
		return false;
	skip_space(c);
	member->value = c->at;
	if (!take_scalar(c))
		return false;
	member->value_size = (size_t)(c->at - member->value);
	skip_space(c);
	return true;
}

int cell__json_walk_next(struct cell__json_walk *walk, struct cell__json_member *ret_member)
{
	struct cursor c = { walk->at, walk->end };
	bool first = !walk->begun;
	walk->begun = true;
	if (first) {
		skip_space(&c);
		if (!take(&c, '{'))
			return -1;
		skip_space(&c);
	}
	if (take(&c, '}')) {
		skip_space(&c);
		walk->at = c.at;
		return c.at == c.end ? 0 : -1;
	}
	if (!first) {
		if (!take(&c, ','))
			return -1;
		skip_space(&c);
	}
	if (!take_member(&c, ret_member))
		return -1;
	walk->at = c.at;
	return 1;
}
