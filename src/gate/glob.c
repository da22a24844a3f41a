#include "gate/glob.h"

#include <string.h>

enum token_kind {
	TOKEN_BYTE,
	TOKEN_SET,   /* one of some ASCII characters */
	TOKEN_ANY,   /* the first byte of a character that is not in the set */
	TOKEN_REST,  /* the other bytes of that character: any number of 0x80 to 0xbf */
	TOKEN_STAR,
	TOKEN_STARS, /* ** */
};

struct token {
	unsigned char kind;
	unsigned char byte;
	unsigned char set[16]; /* a bit for each ASCII character */
};

struct cell__glob {
	char *text;
	size_t count;
	struct token tokens[];
};

/* ---- compiling ---- */

static void set_add(struct token *token, unsigned char c)
{
	token->set[c / 8] = (unsigned char)(token->set[c / 8] | 1u << c % 8);
}

static bool set_has(const struct token *token, unsigned char c)
{
	return c < 128 && (token->set[c / 8] >> c % 8 & 1);
}

/* One character of a set at *at; -1: missing. */
static int set_char(const char **at, const char **ret_problem)
{
	unsigned char c = (unsigned char)**at;
	if (c == '\\') {
		++*at;
		c = (unsigned char)**at;
	}
	if (c == '\0')
		*ret_problem = "a [ has no ]";
	else if (c >= 128)
		*ret_problem = "a set [...] may contain ASCII characters only";
	if (c == '\0' || c >= 128)
		return -1;
	++*at;
	return c;
}

/* at points behind the "["; moves it behind the "]". */
static bool compile_set(struct cell__glob *glob, const char **at, const char **ret_problem)
{
	struct token *token = &glob->tokens[glob->count++];
	bool negated = **at == '!' || **at == '^';
	*at += negated;
	token->kind = negated ? TOKEN_ANY : TOKEN_SET;
	for (bool first = true; first || **at != ']'; first = false) {
		int low = set_char(at, ret_problem), high = low;
		if (low >= 0 && (*at)[0] == '-' && (*at)[1] != ']') {
			++*at;
			high = set_char(at, ret_problem);
		}
		if (low < 0 || high < 0)
			return false;
		if (high < low) {
			*ret_problem = "a range in a set [...] is reversed";
			return false;
		}
		for (int c = low; c <= high; c++)
			set_add(token, (unsigned char)c);
	}
	++*at;
	if (negated)
		glob->tokens[glob->count++].kind = TOKEN_REST;
	return true;
}

static bool compile_one(struct cell__glob *glob, const char **at, const char **ret_problem)
{
	char c = *(*at)++;
	if (c == '[')
		return compile_set(glob, at, ret_problem);
	struct token *token = &glob->tokens[glob->count++];
	if (c == '*') {
		token->kind = **at == '*' ? TOKEN_STARS : TOKEN_STAR;
		*at += strspn(*at, "*");
	} else if (c == '?') {
		token->kind = TOKEN_ANY;
		glob->tokens[glob->count++].kind = TOKEN_REST;
	} else if (c == '{' || c == '}') {
		*ret_problem = "write { and } as \\{ and \\}; for alternatives give a list of patterns";
		return false;
	} else {
		if (c == '\\')
			c = *(*at)++;
		token->byte = (unsigned char)c;
		if (c == '\0')
			*ret_problem = "it ends in an unpaired \\";
		return c != '\0';
	}
	return true;
}

struct cell__glob *cell__glob_create(const char *pattern, const char **ret_problem)
{
	size_t size = strlen(pattern);
	if (size > CELL__GLOB_LIMIT) {
		*ret_problem = "it is longer than 512 bytes";
		return NULL;
	}
	/* No character of a pattern makes more than two tokens. */
	struct cell__glob *glob = cell__alloc(1, sizeof *glob + 2 * size * sizeof(struct token));
	if (glob)
		glob->text = cell__strdup(pattern);
	if (!glob || !glob->text) {
		free(glob);
		*ret_problem = "out of memory";
		return NULL;
	}
	while (*pattern)
		if (!compile_one(glob, &pattern, ret_problem)) {
			cell__glob_destroy(glob);
			return NULL;
		}
	return glob;
}

void cell__glob_destroy(struct cell__glob *glob)
{
	if (!glob)
		return;
	free(glob->text);
	free(glob);
}

const char *cell__glob_text(const struct cell__glob *glob)
{
	return glob->text;
}

/* ---- matching ---- */

bool cell__glob_is_shell(unsigned char c)
{
	return (c < ' ' && c != '\t') || c == 127 || strchr(";&|`$<>()#", c);
}

/* Whether a wildcard of this kind matches the byte. */
static bool wild(enum cell__glob_mode mode, enum token_kind kind, unsigned char c)
{
	if (mode == CELL__GLOB_PATH)
		return c != '/' || kind == TOKEN_STARS;
	return mode != CELL__GLOB_SHELL || !cell__glob_is_shell(c);
}

/* The places in the pattern that the text so far may have come to. */
struct places {
	unsigned short list[2 * CELL__GLOB_LIMIT + 1];
	size_t count;
};

/* Adds a place, and those after it that need no character. seen[place] == now: it is in the list already. */
static void add_place(const struct cell__glob *glob, struct places *places, size_t place, size_t *seen, size_t now)
{
	while (seen[place] != now) {
		seen[place] = now;
		places->list[places->count++] = (unsigned short)place;
		if (place == glob->count || glob->tokens[place].kind < TOKEN_REST)
			return;
		place++;
	}
}

static void step(const struct cell__glob *glob, enum cell__glob_mode mode, unsigned char c, const struct places *from, struct places *to,
		 size_t *seen, size_t now)
{
	for (size_t i = 0; i < from->count; i++) {
		size_t place = from->list[i];
		if (place == glob->count)
			continue;
		const struct token *token = &glob->tokens[place];
		bool rest = c >= 0x80 && c <= 0xbf;
		switch (token->kind) {
		case TOKEN_BYTE:
			if (c == token->byte)
				add_place(glob, to, place + 1, seen, now);
			break;
		case TOKEN_SET:
			if (set_has(token, c))
				add_place(glob, to, place + 1, seen, now);
			break;
		case TOKEN_ANY:
			if (!rest && !set_has(token, c) && wild(mode, token->kind, c))
				add_place(glob, to, place + 1, seen, now);
			break;
		case TOKEN_REST:
			if (rest)
				add_place(glob, to, place, seen, now);
			break;
		default:
			if (wild(mode, token->kind, c))
				add_place(glob, to, place, seen, now);
		}
	}
}

bool cell__glob_match(const struct cell__glob *glob, enum cell__glob_mode mode, const char *text, size_t size, uint64_t *steps)
{
	struct places a, b, *from = &a, *to = &b;
	size_t seen[2 * CELL__GLOB_LIMIT + 1];
	memset(seen, 0, (glob->count + 1) * sizeof *seen);
	a.count = 0;
	add_place(glob, from, 0, seen, 1);
	for (size_t i = 0; i < size && from->count > 0; i++) {
		if (steps)
			*steps += from->count;
		to->count = 0;
		step(glob, mode, (unsigned char)text[i], from, to, seen, i + 2);
		struct places *swap = from;
		from = to;
		to = swap;
	}
	for (size_t i = 0; i < from->count; i++)
		if (from->list[i] == glob->count)
			return true;
	return false;
}
