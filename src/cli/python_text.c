#define _GNU_SOURCE 1
#include "python_text.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"

/* ---- when is a cell complete ----------------------------------------------- */

/* Steps over the string that starts at `at`. Returns its end; *ret_open: a triple quote is missing. */
static size_t skip_string(const char *code, size_t size, size_t at, bool *ret_open)
{
	char quote = code[at];
	bool triple = at + 2 < size && code[at + 1] == quote && code[at + 2] == quote;

	for (at += triple ? 3 : 1; at < size; at++) {
		if (code[at] == '\\')
			at++;
		else if (!triple && (code[at] == quote || code[at] == '\n'))
			return code[at] == quote ? at + 1 : at;
		else if (triple && at + 2 < size && code[at] == quote && code[at + 1] == quote && code[at + 2] == quote)
			return at + 3;
	}
	*ret_open = triple;
	return size;
}

/* The end of the comment at `at`: its line break, or the end. */
static size_t skip_comment(const char *code, size_t size, size_t at)
{
	const char *end = memchr(code + at, '\n', size - at);
	return end ? (size_t)(end - code) : size;
}

/*
 * A guess from the outside, without Python: it need not know what is valid, only whether the person seems to be done. A wrong "complete"
 * shows a syntax error, a wrong "open" shows another prompt.
 */
enum cell_cli_completeness cell__code_completeness(const char *code, size_t size)
{
	bool open = false, block = false, line_start = true;
	char last = 0; /* the last character that counts in this line */
	int depth = 0;

	if (size >= 2 && code[0] == '%' && code[1] == '%')
		return CELL_CODE_BLOCK;
	for (size_t at = 0; at < size; at++) {
		char c = code[at];

		if (line_start && depth == 0 && (c == '!' || c == '%' || c == '?')) {
			/* The shell's or a magic's line: its quotes and brackets are not Python's. */
			while (at < size && code[at] != '\n')
				at++;
			if (at && code[at - 1] == '\\')
				open = at + 1 >= size;
			continue;
		}
		if (c == '#') {
			at = skip_comment(code, size, at) - 1;
			continue;
		}
		if (c == '\'' || c == '"') {
			at = skip_string(code, size, at, &open) - 1;
			last = c;
		} else if (c == '\\' && at + 1 < size && code[at + 1] == '\n') {
			open = at + 2 >= size;
			at++;
		} else if (c == '\n') {
			if (depth <= 0 && last == ':')
				block = true;
			last = 0;
			line_start = true;
			continue;
		} else if (c != ' ' && c != '\t' && c != '\r') {
			depth += strchr("([{", c) ? 1 : strchr(")]}", c) ? -1 : 0;
			if (line_start && c == '@' && depth == 0)
				block = true;
			last = c;
		}
		if (c != ' ' && c != '\t')
			line_start = false;
	}
	if (open || depth > 0)
		return CELL_CODE_OPEN;
	return block ? CELL_CODE_BLOCK : CELL_CODE_COMPLETE;
}

/* ---- indentation ------------------------------------------------------------- */

/* The last line of the code, without its comment and the spaces at its end. */
struct last_line {
	const char *text;
	size_t indent, size;
	char last; /* its last character; 0: it is blank */
	int depth; /* brackets that are open at its end, of the whole code */
};

static struct last_line find_last_line(const char *code, size_t size)
{
	struct last_line line = { .text = code };
	bool open = false;

	for (size_t at = 0; at < size; at++) {
		char c = code[at];

		if (c == '#') {
			at = skip_comment(code, size, at) - 1;
			continue;
		}
		if (c == '\'' || c == '"') {
			at = skip_string(code, size, at, &open) - 1;
			c = '"';
		} else if (strchr("([{", c) && c) {
			line.depth++;
		} else if (strchr(")]}", c) && c) {
			line.depth -= line.depth > 0;
		}
		if (c == '\n')
			line = (struct last_line){ .text = code + at + 1, .depth = line.depth };
		else if (c != ' ' && c != '\t' && c != '\r')
			line.last = c;
	}
	line.size = (size_t)(code + size - line.text);
	while (line.indent < line.size && line.text[line.indent] == ' ')
		line.indent++;
	return line;
}

static bool leaves_block(const struct last_line *line)
{
	static const char *const words[] = { "return", "pass", "break", "continue", "raise" };
	const char *start = line->text + line->indent;
	size_t size = strspn(start, "abcdefghijklmnopqrstuvwxyz");

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strlen(words[i]) == size && size <= line->size - line->indent && !memcmp(start, words[i], size))
			return true;
	}
	return false;
}

size_t cell__code_indent(const char *code, size_t size)
{
	struct last_line line = find_last_line(code, size);
	bool magic = size && code[0] == '%';

	if (magic)
		return line.indent;
	if ((line.last && strchr("([{", line.last)) || (line.last == ':' && line.depth == 0))
		return line.indent + CELL_CLI_INDENT;
	if (line.depth == 0 && leaves_block(&line))
		return line.indent > CELL_CLI_INDENT ? line.indent - CELL_CLI_INDENT : 0;
	return line.indent;
}

/* ---- colours ------------------------------------------------------------------- */

static bool is_word(const char *text, size_t size, const char *const *words)
{
	for (; *words; words++) {
		if (strlen(*words) == size && !memcmp(text, *words, size))
			return true;
	}
	return false;
}

/* Bytes of characters beyond ASCII belong to names. */
static bool is_name(char c)
{
	return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static enum cell_cli_colour word_colour(const char *code, size_t size, size_t at, size_t end)
{
	static const char *const keywords[] = { "False", "None",     "True",  "and",    "as",   "assert", "async",  "await",    "break",
						"class", "continue", "def",   "del",    "elif", "else",   "except", "finally",  "for",
						"from",  "global",   "if",    "import", "in",   "is",     "lambda", "nonlocal", "not",
						"or",    "pass",     "raise", "return", "try",  "while",  "with",   "yield",    NULL };
	static const char *const builtins[] = { "abs",        "all",        "any",       "bool",      "bytes",  "callable", "dict",
						"dir",        "display",    "enumerate", "eval",      "filter", "float",    "format",
						"getattr",    "hasattr",    "hash",      "help",      "id",     "input",    "int",
						"isinstance", "issubclass", "iter",      "len",       "list",   "map",      "max",
						"min",        "next",       "object",    "open",      "ord",    "print",    "property",
						"range",      "repr",       "reversed",  "round",     "set",    "setattr",  "slice",
						"sorted",     "str",        "sum",       "super",     "tuple",  "type",     "vars",
						"zip",        "tools",      "workflows", "artifacts", "deps",   NULL };

	if (is_digit(code[at]))
		return CELL_COLOUR_NUMBER;
	if (at && code[at - 1] == '.')
		return CELL_COLOUR_NONE;
	if (is_word(code + at, end - at, keywords))
		return CELL_COLOUR_KEYWORD;
	/* A prefix of a string: f"..." */
	if (end < size && end - at <= 2 && (code[end] == '"' || code[end] == '\'') && strspn(code + at, "rRbBfFuUtT") >= end - at)
		return CELL_COLOUR_STRING;
	return is_word(code + at, end - at, builtins) ? CELL_COLOUR_BUILTIN : CELL_COLOUR_NONE;
}

static size_t line_end(const char *code, size_t size, size_t at)
{
	const char *end = memchr(code + at, '\n', size - at);

	return end ? (size_t)(end - code) : size;
}

void cell__code_colours(const char *code, size_t size, unsigned char *colours)
{
	bool line_start = true, open = false;
	size_t end;

	for (size_t at = 0; at < size; at = end) {
		enum cell_cli_colour colour = CELL_COLOUR_NONE;
		char c = code[at];

		end = at + 1;
		if (line_start && (c == '!' || c == '%' || c == '@')) {
			colour = CELL_COLOUR_MAGIC;
			end = c == '%' && at == 0 && size > 1 && code[1] == '%' ? size : line_end(code, size, at);
		} else if (c == '#') {
			colour = CELL_COLOUR_COMMENT;
			end = line_end(code, size, at);
		} else if (c == '\'' || c == '"') {
			colour = CELL_COLOUR_STRING;
			end = skip_string(code, size, at, &open);
		} else if (is_name(c)) {
			while (end < size && (is_name(code[end]) || (code[end] == '.' && is_digit(c))))
				end++;
			colour = word_colour(code, size, at, end);
		}
		if (c == '\n')
			line_start = true;
		else if (c != ' ' && c != '\t')
			line_start = false;
		memset(colours + at, colour, end - at);
	}
}

const char *cell__colour_sequence(enum cell_cli_colour colour)
{
	static const char *const sequences[] = {
		[CELL_COLOUR_NONE] = "",           [CELL_COLOUR_KEYWORD] = "\033[1;34m", [CELL_COLOUR_BUILTIN] = "\033[36m",
		[CELL_COLOUR_STRING] = "\033[32m", [CELL_COLOUR_NUMBER] = "\033[35m",    [CELL_COLOUR_COMMENT] = "\033[90m",
		[CELL_COLOUR_MAGIC] = "\033[33m",
	};

	return sequences[colour];
}

/* ---- tracebacks ------------------------------------------------------------------ */

#define RED "\033[31m"
#define BOLD_RED "\033[1;31m"
#define GREEN "\033[32m"
#define CYAN "\033[36m"
#define RESET "\033[0m"

/* `  File "NAME", line N, in FUNCTION`: the name and the number. */
static int add_place(struct cell__buf *out, const char *line, size_t size)
{
	const char *quote = memchr(line, '"', size), *comma = quote ? memmem(quote, (size_t)(line + size - quote), "\", line ", 8) : NULL;
	const char *number = comma ? comma + 8 : NULL, *end = line + size;
	size_t digits = number ? strspn(number, "0123456789") : 0;

	if (!digits || number + digits > end)
		return cell__buf_add(out, line, size);
	int rc = cell__buf_add(out, line, (size_t)(quote - line));
	rc |= cell__buf_add_str(out, CYAN);
	rc |= cell__buf_add(out, quote, (size_t)(comma + 1 - quote));
	rc |= cell__buf_add_str(out, RESET ", line " GREEN);
	rc |= cell__buf_add(out, number, digits);
	rc |= cell__buf_add_str(out, RESET);
	return rc | cell__buf_add(out, number + digits, (size_t)(end - number) - digits);
}

static int add_whole(struct cell__buf *out, const char *sequence, const char *line, size_t size)
{
	return cell__buf_add_str(out, sequence) | cell__buf_add(out, line, size) | cell__buf_add_str(out, RESET);
}

static bool is_carets(const char *line, size_t size)
{
	bool any = false;

	for (size_t i = 0; i < size; i++) {
		if (!strchr(" ^~", line[i]) || !line[i])
			return false;
		any |= line[i] != ' ';
	}
	return any;
}

/* `ValueError: words`, or a name alone: begins with a name that may have dots. */
static size_t type_size(const char *line, size_t size)
{
	size_t at = 0;

	while (at < size && (is_name(line[at]) || line[at] == '.'))
		at++;
	return at == size || line[at] == ':' ? at : 0;
}

char *cell__traceback_coloured(const char *text, size_t size, size_t *ret_size)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_add(&out, "", 0);

	for (size_t at = 0, end; at < size; at = end + 1) {
		const char *line = text + at;
		size_t length, type;

		end = line_end(text, size, at);
		length = end - at;
		type = type_size(line, length);
		if (length > 8 && !memcmp(line, "  File \"", 8))
			rc |= add_place(&out, line, length);
		else if (is_carets(line, length))
			rc |= add_whole(&out, RED, line, length);
		else if (type)
			rc |= add_whole(&out, BOLD_RED, line, type) | cell__buf_add(&out, line + type, length - type);
		else
			rc |= cell__buf_add(&out, line, length);
		if (end < size)
			rc |= cell__buf_add(&out, "\n", 1);
	}
	if (rc != 0)
		return NULL;
	*ret_size = out.size;
	return cell__buf_take(&out);
}
