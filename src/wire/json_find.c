#include "wire/json_find.h"

#include <string.h>

struct cursor {
	const char *at, *end;
};

static void skip_space(struct cursor *c)
{
	while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
		c->at++;
}

static bool take(struct cursor *c, char wanted)
{
	skip_space(c);
	if (c->at >= c->end || *c->at != wanted)
		return false;
	c->at++;
	return true;
}

/* At a quote: over the string. */
static bool skip_string(struct cursor *c)
{
	for (c->at++; c->at < c->end; c->at++) {
		if (*c->at == '"') {
			c->at++;
			return true;
		}
		if (*c->at == '\\')
			c->at++;
	}
	c->at = c->end; /* a backslash may have led past it */
	return false;
}

/* Over one value, of any depth, without recursion. */
static bool skip_value(struct cursor *c)
{
	size_t depth = 0;
	skip_space(c);
	if (c->at >= c->end)
		return false;
	while (c->at < c->end) {
		switch (*c->at) {
		case '"':
			if (!skip_string(c))
				return false;
			break;
		case '{':
		case '[':
			depth++;
			c->at++;
			break;
		case '}':
		case ']':
			if (depth == 0)
				return true; /* the end of the enclosing container */
			depth--;
			c->at++;
			break;
		case ',':
			if (depth == 0)
				return true;
			c->at++;
			continue;
		default:
			c->at++;
			continue;
		}
		if (depth == 0)
			return true;
	}
	return depth == 0;
}

/* One member by name in the object that the text is. */
static bool find_member(const char **text, size_t *size, const char *name)
{
	struct cursor c = { *text, *text + *size };
	size_t n = strlen(name);
	bool found = false;
	if (!take(&c, '{'))
		return false;
	for (;;) {
		skip_space(&c);
		if (c.at >= c.end || *c.at != '"')
			return found;
		const char *key = c.at + 1;
		if (!skip_string(&c))
			return false;
		size_t key_size = (size_t)(c.at - 1 - key);
		if (!take(&c, ':'))
			return false;
		skip_space(&c);
		const char *value = c.at;
		if (!skip_value(&c))
			return false;
		if (key_size == n && memcmp(key, name, n) == 0) {
			*text = value;
			*size = (size_t)(c.at - value);
			found = true;
		}
		if (!take(&c, ','))
			return found;
	}
}

bool cell__json_find(const char *text, size_t size, const char *const *path, const char **ret_value, size_t *ret_size)
{
	for (; *path; path++)
		if (!find_member(&text, &size, *path))
			return false;
	while (size > 0 && strchr(" \t\n\r", text[size - 1]))
		size--;
	*ret_value = text;
	*ret_size = size;
	return true;
}
