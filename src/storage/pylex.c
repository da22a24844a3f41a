#define _GNU_SOURCE
#include <ctype.h>
#include <string.h>

#include "storage/pysource.h"

int cell__py_fail(struct cell_error *err, unsigned line, const char *what)
{
	return cell_fail(err, CELL_E_INVALID, 0, "Syntax error in workflow code: %s (line %u)", what, line);
}

bool cell__py_token_is(const char *source, const struct cell__py_token *token, const char *text)
{
	size_t size = strlen(text);
	return token->end - token->start == size && memcmp(source + token->start, text, size) == 0;
}

void cell__py_lexer_init(struct cell__py_lexer *lexer, const char *source, size_t size)
{
	*lexer = (struct cell__py_lexer){ .source = source, .size = size, .line = 1, .line_start = true, .n_indents = 1 };
	if (size >= 3 && memcmp(source, "\xef\xbb\xbf", 3) == 0)
		lexer->pos = 3;
}

/* The byte at pos + ahead; NUL past the end, which no source has. */
static char peek(const struct cell__py_lexer *lexer, size_t ahead)
{
	return ahead < lexer->size - lexer->pos ? lexer->source[lexer->pos + ahead] : '\0';
}

static bool at_end(const struct cell__py_lexer *lexer)
{
	return lexer->pos >= lexer->size;
}

static bool is_name_start(unsigned char c)
{
	return isalpha(c) || c == '_' || c >= 0x80;
}

static bool is_name(unsigned char c)
{
	return is_name_start(c) || isdigit(c);
}

/* At "\n", "\r\n" or "\r": steps over it. */
static bool skip_line_end(struct cell__py_lexer *lexer)
{
	char c = peek(lexer, 0);
	if (at_end(lexer) || (c != '\n' && c != '\r'))
		return false;
	lexer->pos += c == '\r' && peek(lexer, 1) == '\n' ? 2 : 1;
	lexer->line++;
	return true;
}

static void skip_comment(struct cell__py_lexer *lexer)
{
	while (!at_end(lexer) && peek(lexer, 0) != '\n' && peek(lexer, 0) != '\r')
		lexer->pos++;
}

/* ---- strings ---- */

struct quote {
	char mark;
	bool triple;
	bool format; /* f"" or t"" */
	bool raw;
};

static int skip_string(struct cell__py_lexer *lexer, const struct quote *q, unsigned nesting, struct cell_error *err);

/* The size of a string prefix at text, if a quote follows: r, b, f, Rb, ...; -1: not a prefix. */
static int prefix_size(const char *text, size_t size, struct quote *q)
{
	static const char *const prefixes[] = { "", "r", "u", "b", "f", "t", "br", "rb", "fr", "rf", "tr", "rt" };
	size_t n = 0;
	while (n < size && n < 3 && isalpha((unsigned char)text[n]))
		n++;
	if (n >= size || (text[n] != '"' && text[n] != '\''))
		return -1;
	for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
		if (strlen(prefixes[i]) != n || strncasecmp(prefixes[i], text, n) != 0)
			continue;
		char mark = text[n];
		*q = (struct quote){ .mark = mark,
				     .triple = size - n >= 3 && text[n + 1] == mark && text[n + 2] == mark,
				     .format = strpbrk(prefixes[i], "ft") != NULL,
				     .raw = strchr(prefixes[i], 'r') != NULL };
		return (int)n;
	}
	return -1;
}

static bool at_string(const struct cell__py_lexer *lexer, struct quote *q, int *ret_prefix)
{
	*ret_prefix = prefix_size(lexer->source + lexer->pos, lexer->size - lexer->pos, q);
	return *ret_prefix >= 0;
}

static void skip_escape(struct cell__py_lexer *lexer, const struct quote *q)
{
	char next = peek(lexer, 1);
	lexer->pos++;
	if (at_end(lexer) || skip_line_end(lexer))
		return;
	if (q->format && (next == '{' || next == '}'))
		return; /* the brace counts */
	lexer->pos++;
	if (q->format && !q->raw && next == 'N' && peek(lexer, 0) == '{') {
		/* The name of a character, no replacement. */
		while (!at_end(lexer) && peek(lexer, 0) != '}' && peek(lexer, 0) != '\n' && peek(lexer, 0) != q->mark)
			lexer->pos++;
		if (peek(lexer, 0) == '}')
			lexer->pos++;
	}
}

static int skip_format_text(struct cell__py_lexer *lexer, const struct quote *q, unsigned nesting, struct cell_error *err);

/* Inside "{...}" of an f-string, after the brace; steps over the closing one. */
static int skip_replacement(struct cell__py_lexer *lexer, const struct quote *q, unsigned nesting, struct cell_error *err)
{
	unsigned depth = 0, line = lexer->line;
	if (nesting >= CELL__PY_STRING_NESTING)
		return cell__py_fail(err, line, "f-string: expressions nested too deeply");
	while (!at_end(lexer)) {
		struct quote inner;
		int prefix;
		char c = peek(lexer, 0);
		if (at_string(lexer, &inner, &prefix)) {
			lexer->pos += (size_t)prefix;
			if (skip_string(lexer, &inner, nesting + 1, err) < 0)
				return -1;
		} else if (is_name((unsigned char)c)) {
			while (!at_end(lexer) && is_name((unsigned char)peek(lexer, 0)))
				lexer->pos++;
		} else if (c == '#') {
			skip_comment(lexer);
		} else if (c == '}' && depth == 0) {
			lexer->pos++;
			return 0;
		} else if (c == ':' && depth == 0) {
			lexer->pos++;
			return skip_format_text(lexer, q, nesting + 1, err);
		} else if (!skip_line_end(lexer)) {
			depth += c == '(' || c == '[' || c == '{';
			if ((c == ')' || c == ']' || c == '}') && depth-- == 0)
				return cell__py_fail(err, lexer->line, "f-string: unmatched bracket");
			lexer->pos++;
		}
	}
	return cell__py_fail(err, line, "unterminated f-string");
}

/* The part after ':' up to and with '}'. */
static int skip_format_text(struct cell__py_lexer *lexer, const struct quote *q, unsigned nesting, struct cell_error *err)
{
	unsigned line = lexer->line;
	if (nesting >= CELL__PY_STRING_NESTING)
		return cell__py_fail(err, line, "f-string: expressions nested too deeply");
	while (!at_end(lexer)) {
		char c = peek(lexer, 0);
		if (c == '}') {
			lexer->pos++;
			return 0;
		}
		if (c == q->mark && (!q->triple || (peek(lexer, 1) == c && peek(lexer, 2) == c)))
			break;
		if (c == '{') {
			lexer->pos++;
			if (skip_replacement(lexer, q, nesting + 1, err) < 0)
				return -1;
		} else if (c == '\\') {
			skip_escape(lexer, q);
		} else if (!skip_line_end(lexer)) {
			lexer->pos++;
		}
	}
	return cell__py_fail(err, line, "f-string: expecting '}'");
}

/* At the opening quote; steps over the closing one. */
static int skip_string(struct cell__py_lexer *lexer, const struct quote *q, unsigned nesting, struct cell_error *err)
{
	unsigned line = lexer->line;
	lexer->pos += q->triple ? 3 : 1;
	while (!at_end(lexer)) {
		char c = peek(lexer, 0);
		if (c == q->mark && (!q->triple || (peek(lexer, 1) == c && peek(lexer, 2) == c))) {
			lexer->pos += q->triple ? 3 : 1;
			return 0;
		}
		if (c == '\\') {
			skip_escape(lexer, q);
		} else if (q->format && (c == '{' || c == '}')) {
			bool doubled = peek(lexer, 1) == c;
			if (!doubled && c == '}')
				return cell__py_fail(err, lexer->line, "f-string: single '}' is not allowed");
			lexer->pos += doubled ? 2 : 1;
			if (!doubled && skip_replacement(lexer, q, nesting, err) < 0)
				return -1;
		} else if ((c == '\n' || c == '\r') && !q->triple) {
			break;
		} else if (!skip_line_end(lexer)) {
			lexer->pos++;
		}
	}
	return cell__py_fail(err, line, q->triple ? "unterminated triple-quoted string literal" : "unterminated string literal");
}

/* ---- values of strings ---- */

static int add_code_point(struct cell__buf *out, unsigned long c)
{
	char b[4];
	if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) || c == 0)
		c = 0xfffd; /* JSON and C strings cannot hold it */
	if (c < 0x80) {
		b[0] = (char)c;
		return cell__buf_add(out, b, 1);
	}
	int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
	for (int i = n - 1; i > 0; i--, c >>= 6)
		b[i] = (char)(0x80 | (c & 0x3f));
	b[0] = (char)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
	return cell__buf_add(out, b, (size_t)n);
}

/* text[0] follows the backslash. Returns its size, 0: not an escape, -1: out of memory. */
static int add_escape(struct cell__buf *out, const char *text, size_t size)
{
	static const char from[] = "abfnrtv\\'\"";
	static const char to[] = "\a\b\f\n\r\t\v\\'\"";
	const char *known = strchr(from, text[0]);
	if (text[0] != '\0' && known)
		return cell__buf_add(out, &to[known - from], 1) < 0 ? -1 : 1;
	if (text[0] == '\n')
		return 1;
	if (text[0] == '\r')
		return size > 1 && text[1] == '\n' ? 2 : 1;
	size_t digits = text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : text[0] == 'U' ? 8 : 0;
	unsigned long value = 0;
	if (digits > 0) {
		if (size < digits + 1)
			return 0;
		for (size_t i = 1; i <= digits; i++) {
			unsigned char c = (unsigned char)text[i];
			if (!isxdigit(c))
				return 0;
			value = value * 16 + (unsigned long)(isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
		}
		return add_code_point(out, value) < 0 ? -1 : (int)digits + 1;
	}
	int n = 0;
	while (n < 3 && (size_t)n < size && text[n] >= '0' && text[n] <= '7')
		value = value * 8 + (unsigned long)(text[n++] - '0');
	return n > 0 && add_code_point(out, value) < 0 ? -1 : n;
}

int cell__py_string_value(const char *text, size_t size, struct cell__buf *out)
{
	struct quote q = { 0 };
	int prefix = prefix_size(text, size, &q);
	size_t marks = q.triple ? 3 : 1;
	if (prefix < 0 || q.format || size < (size_t)prefix + 2 * marks)
		return 0;
	for (int i = 0; i < prefix; i++)
		if (tolower((unsigned char)text[i]) == 'b')
			return 0;
	size_t end = size - marks;
	for (size_t i = (size_t)prefix + marks; i < end; i++) {
		int used = 0;
		if (text[i] == '\\' && !q.raw && i + 1 < end)
			used = add_escape(out, text + i + 1, end - i - 1);
		if (used < 0)
			return -1;
		i += (size_t)used;
		if (used > 0)
			continue;
		if (text[i] == '\r') {
			i += i + 1 < end && text[i + 1] == '\n';
			if (cell__buf_add(out, "\n", 1) < 0)
				return -1;
		} else if (cell__buf_add(out, &text[i], 1) < 0) {
			return -1;
		}
	}
	return cell__buf_add(out, "", 0) < 0 ? -1 : 1;
}

/* ---- tokens ---- */

/* At the beginning of a line: measures its indentation.  Lines without a token are stepped over. */
static void skip_indentation(struct cell__py_lexer *lexer, unsigned *ret_column, unsigned *ret_alt)
{
	for (;;) {
		unsigned column = 0, alt = 0;
		for (;; lexer->pos++) {
			char c = peek(lexer, 0);
			if (c == ' ') {
				column++;
				alt++;
			} else if (c == '\t') {
				column = (column / 8 + 1) * 8;
				alt++;
			} else if (c == '\f') {
				column = alt = 0;
			} else {
				break;
			}
		}
		if (peek(lexer, 0) == '#')
			skip_comment(lexer);
		*ret_column = column;
		*ret_alt = alt;
		if (!skip_line_end(lexer))
			return;
	}
}

/* The block structure, by CPython's rules: tabs count to 8 and to 1, and both ways must agree. */
static int indent(struct cell__py_lexer *lexer, unsigned column, unsigned alt, struct cell_error *err)
{
	unsigned top = lexer->n_indents - 1;
	bool expected = lexer->opens_block;
	lexer->opens_block = false;
	if (column == lexer->indents[top] ? alt != lexer->alt_indents[top] : column > lexer->indents[top] && alt <= lexer->alt_indents[top])
		return cell__py_fail(err, lexer->line, "inconsistent use of tabs and spaces in indentation");
	if (column > lexer->indents[top]) {
		if (!expected)
			return cell__py_fail(err, lexer->line, "unexpected indent");
		if (lexer->n_indents == CELL__PY_INDENTS)
			return cell__py_fail(err, lexer->line, "too many levels of indentation");
		lexer->indents[lexer->n_indents] = column;
		lexer->alt_indents[lexer->n_indents++] = alt;
		return 0;
	}
	if (expected)
		return cell__py_fail(err, lexer->line, "expected an indented block");
	while (column < lexer->indents[lexer->n_indents - 1])
		lexer->n_indents--;
	if (column != lexer->indents[lexer->n_indents - 1])
		return cell__py_fail(err, lexer->line, "unindent does not match any outer indentation level");
	return 0;
}

static void skip_number(struct cell__py_lexer *lexer)
{
	bool hex = peek(lexer, 0) == '0' && (peek(lexer, 1) == 'x' || peek(lexer, 1) == 'X');
	for (;;) {
		char c = peek(lexer, 0);
		if (isalnum((unsigned char)c) || c == '_' || c == '.')
			lexer->pos++;
		else
			return;
		if (!hex && (c == 'e' || c == 'E') && (peek(lexer, 0) == '+' || peek(lexer, 0) == '-'))
			lexer->pos++;
	}
}

static int take_bracket(struct cell__py_lexer *lexer, char c, struct cell_error *err)
{
	if (c == '(' || c == '[' || c == '{') {
		if (lexer->n_brackets == CELL__PY_NESTING)
			return cell__py_fail(err, lexer->line, "too many nested parentheses");
		lexer->brackets[lexer->n_brackets++] = c;
		return 0;
	}
	char open = c == ')' ? '(' : c == ']' ? '[' : '{';
	if (lexer->n_brackets == 0)
		return cell__py_fail(err, lexer->line, "unmatched closing bracket");
	if (lexer->brackets[--lexer->n_brackets] != open)
		return cell__py_fail(err, lexer->line, "closing bracket does not match the opening one");
	return 0;
}

static int skip_operator(struct cell__py_lexer *lexer, struct cell_error *err)
{
	static const char *const operators[] = { "**=", "//=", ">>=", "<<=", "...", "==", "!=", "<=", ">=", "->", ":=", "+=",
						 "-=",  "*=",  "/=",  "%=",  "&=",  "|=", "^=", "@=", "**", "//", "<<", ">>" };
	size_t left = lexer->size - lexer->pos;
	for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
		size_t n = strlen(operators[i]);
		if (n <= left && memcmp(lexer->source + lexer->pos, operators[i], n) == 0) {
			lexer->pos += n;
			return 0;
		}
	}
	char c = peek(lexer, 0);
	if (c == '\0' || !strchr("+-*/%@&|^~<>()[]{},:.;=", c))
		return cell__py_fail(err, lexer->line, "invalid character");
	if (strchr("()[]{}", c) && take_bracket(lexer, c, err) < 0)
		return -1;
	lexer->pos++;
	return 0;
}

/* Blanks, comments and joined lines before a token.  1: the logical line ends here. */
static int skip_blanks(struct cell__py_lexer *lexer, struct cell_error *err)
{
	for (;;) {
		char c = peek(lexer, 0);
		if (at_end(lexer))
			return 1;
		if (c == ' ' || c == '\t' || c == '\f') {
			lexer->pos++;
		} else if (c == '#') {
			skip_comment(lexer);
		} else if (c == '\\') {
			lexer->pos++;
			if (!skip_line_end(lexer))
				return cell__py_fail(err, lexer->line, "unexpected character after line continuation character");
		} else if (c == '\n' || c == '\r') {
			if (lexer->n_brackets == 0)
				return 1;
			skip_line_end(lexer);
		} else {
			return 0;
		}
	}
}

static int read_token(struct cell__py_lexer *lexer, struct cell__py_token *token, struct cell_error *err)
{
	struct quote q;
	int prefix;
	char c = peek(lexer, 0);
	if (at_string(lexer, &q, &prefix)) {
		token->kind = CELL__PY_STRING;
		lexer->pos += (size_t)prefix;
		if (skip_string(lexer, &q, 0, err) < 0)
			return -1;
	} else if (is_name_start((unsigned char)c)) {
		token->kind = CELL__PY_NAME;
		while (!at_end(lexer) && is_name((unsigned char)peek(lexer, 0)))
			lexer->pos++;
	} else if (isdigit((unsigned char)c) || (c == '.' && isdigit((unsigned char)peek(lexer, 1)))) {
		token->kind = CELL__PY_NUMBER;
		skip_number(lexer);
	} else {
		token->kind = CELL__PY_OP;
		if (skip_operator(lexer, err) < 0)
			return -1;
	}
	lexer->opens_block = token->kind == CELL__PY_OP && c == ':' && lexer->pos - token->start == 1 && lexer->n_brackets == 0;
	return 0;
}

int cell__py_next(struct cell__py_lexer *lexer, struct cell__py_token *ret_token, struct cell_error *err)
{
	bool first = lexer->line_start;
	if (first) {
		unsigned column = 0, alt = 0;
		skip_indentation(lexer, &column, &alt);
		if (at_end(lexer)) {
			if (lexer->opens_block)
				return cell__py_fail(err, lexer->line, "expected an indented block");
			*ret_token = (struct cell__py_token){ CELL__PY_END, lexer->size, lexer->size, lexer->line, true, 0 };
			return 0;
		}
		if (indent(lexer, column, alt, err) < 0)
			return -1;
		lexer->line_start = false;
	}
	int ends = skip_blanks(lexer, err);
	if (ends < 0)
		return -1;
	struct cell__py_token token = { .start = lexer->pos, .line = lexer->line, .first = first, .level = lexer->n_indents - 1 };
	if (ends) {
		if (lexer->n_brackets > 0)
			return cell__py_fail(err, lexer->line, "a bracket was never closed");
		token.kind = CELL__PY_NEWLINE;
		skip_line_end(lexer);
		lexer->line_start = true;
	} else if (read_token(lexer, &token, err) < 0) {
		return -1;
	}
	token.end = lexer->pos;
	*ret_token = token;
	return 0;
}
