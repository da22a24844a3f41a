#define _GNU_SOURCE
#include "storage/pysource.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct scanner {
	const char *source;
	struct cell__py_lexer lexer;
	struct cell__py_token token; /* the current one */
	struct cell_error *err;
};

static int advance(struct scanner *s)
{
	return cell__py_next(&s->lexer, &s->token, s->err);
}

static bool is(const struct scanner *s, const char *text)
{
	return (s->token.kind == CELL__PY_NAME || s->token.kind == CELL__PY_OP) && cell__py_token_is(s->source, &s->token, text);
}

static int fail_syntax(struct scanner *s)
{
	return cell__py_fail(s->err, s->token.line, "invalid syntax");
}

static int fail_memory(struct scanner *s)
{
	return cell_fail(s->err, CELL_E_NOMEM, 0, "read workflow");
}

bool cell__py_is_keyword(const char *word)
{
	static const char *const keywords[] = {
		"False",  "None",     "True", "and",    "as",      "assert", "async",  "await",  "break", "class",  "continue", "def",
		"del",    "elif",     "else", "except", "finally", "for",    "from",   "global", "if",    "import", "in",       "is",
		"lambda", "nonlocal", "not",  "or",     "pass",    "raise",  "return", "try",    "while", "with",   "yield",
	};
	size_t size = strnlen(word, sizeof "continue"); /* no keyword is longer than "continue" and "nonlocal" */
	if (size < 2 || size >= sizeof "continue")
		return false;
	for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
		if (keywords[i][0] == word[0] && strcmp(keywords[i], word) == 0)
			return true;
	return false;
}

/* ---- docstrings ---- */

static size_t leading_blanks(const char *line, size_t size)
{
	size_t n = 0;
	while (n < size && (line[n] == ' ' || line[n] == '\t'))
		n++;
	return n;
}

/* As inspect.cleandoc(): the common indentation of all lines but the first goes, and blank lines at both ends. */
static char *clean_docstring(const char *text)
{
	size_t margin = SIZE_MAX;
	for (const char *line = strchr(text, '\n'); line; line = strchr(line, '\n')) {
		line++;
		size_t size = strcspn(line, "\n"), blanks = leading_blanks(line, size);
		if (blanks < size && blanks < margin)
			margin = blanks;
	}
	struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__buf_add(&out, "", 0);
	bool first = true;
	for (const char *line = text;; first = false) {
		size_t size = strcspn(line, "\n"), blanks = leading_blanks(line, size);
		size_t cut = first || blanks < margin ? blanks : margin;
		size_t end = size;
		while (end > cut && isspace((unsigned char)line[end - 1]))
			end--;
		if (out.size > 0)
			rc |= cell__buf_add(&out, "\n", 1);
		rc |= cell__buf_add(&out, line + cut, end - cut);
		if (line[size] == '\0')
			break;
		line += size + 1;
	}
	while (out.size > 0 && out.data[out.size - 1] == '\n')
		out.data[--out.size] = '\0';
	if (rc == 0)
		return cell__buf_take(&out);
	cell__buf_finish(&out);
	return NULL;
}

/*
 * At the first token of a statement: takes a docstring if there is one, and leaves the scanner behind it. Several concatenated literals are
 * one string, as in Python.
 */
static int take_docstring(struct scanner *s, char **ret_text)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	bool plain = s->token.kind == CELL__PY_STRING;
	while (s->token.kind == CELL__PY_STRING) {
		int rc = cell__py_string_value(s->source + s->token.start, s->token.end - s->token.start, &text);
		if (rc < 0)
			return fail_memory(s);
		plain &= rc > 0;
		if (advance(s) < 0)
			return -1;
	}
	if (!plain || (s->token.kind != CELL__PY_NEWLINE && !is(s, ";")))
		return 0;
	*ret_text = clean_docstring(text.data);
	return *ret_text ? 0 : fail_memory(s);
}

/* ---- literals ---- */

/* The tokens of a default; a small recursive reader of the literals that ast.literal_eval() accepts and JSON can express. */
struct literal {
	const char *source;
	const struct cell__py_token *tokens;
	size_t n, at;
};

static bool literal_is(const struct literal *l, const char *text)
{
	return l->at < l->n && l->tokens[l->at].kind == CELL__PY_OP && cell__py_token_is(l->source, &l->tokens[l->at], text);
}

static json_t *read_number(struct literal *l, bool negative)
{
	char text[64];
	size_t size = 0;
	const struct cell__py_token *t = &l->tokens[l->at];
	for (size_t i = t->start; i < t->end; i++) {
		if (l->source[i] == '_')
			continue;
		if (size + 1 >= sizeof text)
			return NULL;
		text[size++] = l->source[i];
	}
	text[size] = '\0';
	l->at++;
	char *end;
	int base = 10;
	char second = size > 1 ? (char)tolower((unsigned char)text[1]) : '\0';
	if (second && text[0] == '0' && strchr("xob", second))
		base = second == 'x' ? 16 : second == 'o' ? 8 : 2;
	bool real = base == 10 && strpbrk(text, ".eE");
	if (real) {
		/* The host's locale may write fractions with a comma. */
		locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
		if (!c)
			return NULL;
		double value = strtod_l(text, &end, c);
		freelocale(c);
		return *end == '\0' && isfinite(value) ? json_real(negative ? -value : value) : NULL;
	}
	errno = 0;
	long long value = strtoll(base == 10 ? text : text + 2, &end, base);
	if (errno || *end != '\0' || (base != 10 && size < 3))
		return NULL;
	return json_integer(negative ? -value : value);
}

static json_t *read_strings(struct literal *l)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	for (; l->at < l->n && l->tokens[l->at].kind == CELL__PY_STRING; l->at++) {
		const struct cell__py_token *t = &l->tokens[l->at];
		if (cell__py_string_value(l->source + t->start, t->end - t->start, &text) <= 0)
			return NULL;
	}
	return json_stringn(text.data, text.size);
}

static json_t *read_literal(struct literal *l, unsigned depth);

/* A list or tuple, after its opening bracket. */
static json_t *read_items(struct literal *l, const char *close, unsigned depth)
{
	json_t *array = json_array();
	bool comma = true, tuple = close[0] == ')';
	while (array && !literal_is(l, close)) {
		json_t *item = comma ? read_literal(l, depth + 1) : NULL;
		if (!item || json_array_append_new(array, item) < 0)
			return json_decref(array), NULL;
		comma = literal_is(l, ",");
		l->at += comma;
	}
	l->at++;
	/* (1) is 1, (1,) is a tuple. */
	if (array && tuple && json_array_size(array) == 1 && !comma) {
		json_t *only = json_incref(json_array_get(array, 0));
		json_decref(array);
		return only;
	}
	return array;
}

static json_t *read_dict(struct literal *l, unsigned depth)
{
	json_t *object = json_object();
	bool comma = true;
	while (object && !literal_is(l, "}")) {
		json_t *key = comma && l->at < l->n && l->tokens[l->at].kind == CELL__PY_STRING ? read_strings(l) : NULL;
		bool colon = key && literal_is(l, ":");
		l->at += colon;
		json_t *value = colon ? read_literal(l, depth + 1) : NULL;
		bool bad = !value || json_object_set_new(object, json_string_value(key), value) < 0;
		json_decref(key);
		if (bad)
			return json_decref(object), NULL;
		comma = literal_is(l, ",");
		l->at += comma;
	}
	l->at++;
	return object;
}

/* NULL: not a literal. */
static json_t *read_literal(struct literal *l, unsigned depth)
{
	if (l->at >= l->n || depth > CELL__PY_LITERAL_NESTING)
		return NULL;
	const struct cell__py_token *t = &l->tokens[l->at];
	if (t->kind == CELL__PY_STRING)
		return read_strings(l);
	if (t->kind == CELL__PY_NUMBER)
		return read_number(l, false);
	if (t->kind == CELL__PY_NAME) {
		l->at++;
		if (cell__py_token_is(l->source, t, "None"))
			return json_null();
		bool yes = cell__py_token_is(l->source, t, "True");
		return yes || cell__py_token_is(l->source, t, "False") ? json_boolean(yes) : NULL;
	}
	l->at++;
	if ((cell__py_token_is(l->source, t, "-") || cell__py_token_is(l->source, t, "+")) && l->at < l->n &&
	    l->tokens[l->at].kind == CELL__PY_NUMBER)
		return read_number(l, l->source[t->start] == '-');
	if (cell__py_token_is(l->source, t, "["))
		return read_items(l, "]", depth);
	if (cell__py_token_is(l->source, t, "("))
		return read_items(l, ")", depth);
	return cell__py_token_is(l->source, t, "{") ? read_dict(l, depth) : NULL;
}

static json_t *read_default(const char *source, const struct cell__py_token *tokens, size_t n)
{
	struct literal l = { source, tokens, n, 0 };
	json_t *value = read_literal(&l, 0);
	if (value && l.at == n)
		return value;
	json_decref(value);
	return json_stringn(source + tokens[0].start, tokens[n - 1].end - tokens[0].start);
}

/* ---- types ---- */

static bool word_is(const char *text, size_t size, const char *word)
{
	return strlen(word) == size && memcmp(text, word, size) == 0;
}

static void trim(const char **text, size_t *size)
{
	while (*size > 0 && isspace((unsigned char)**text)) {
		(*text)++;
		(*size)--;
	}
	while (*size > 0 && isspace((unsigned char)(*text)[*size - 1]))
		(*size)--;
}

static const char *plain_type(const char *name, size_t size)
{
	static const struct {
		const char *name, *type;
	} types[] = {
		{ "str", "string" },      { "int", "integer" }, { "float", "number" },   { "bool", "boolean" },
		{ "list", "array" },      { "List", "array" },  { "Sequence", "array" }, { "Iterable", "array" },
		{ "tuple", "array" },     { "Tuple", "array" }, { "set", "array" },      { "Set", "array" },
		{ "frozenset", "array" }, { "dict", "object" }, { "Dict", "object" },    { "Mapping", "object" },
	};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (word_is(name, size, types[i].name))
			return types[i].type;
	return "string";
}

/* The end of the part before the next c outside brackets; size if there is no c. */
static size_t part_end(const char *text, size_t size, char c)
{
	unsigned depth = 0;
	for (size_t i = 0; i < size; i++) {
		if (text[i] == c && depth == 0)
			return i;
		depth += text[i] == '[' || text[i] == '(';
		depth -= (text[i] == ']' || text[i] == ')') && depth > 0;
	}
	return size;
}

static const char *annotation_type(const char *text, size_t size, unsigned depth)
{
	trim(&text, &size);
	if (depth > 8)
		return "string";
	if (size >= 2 && (text[0] == '"' || text[0] == '\'') && text[size - 1] == text[0])
		return annotation_type(text + 1, size - 2, depth + 1);
	size_t bar = part_end(text, size, '|');
	if (bar < size) {
		/* A union with None is described by its other members. */
		const char *left = text;
		size_t left_size = bar;
		trim(&left, &left_size);
		if (word_is(left, left_size, "None"))
			return annotation_type(text + bar + 1, size - bar - 1, depth + 1);
		const char *right = text + bar + 1;
		size_t right_size = size - bar - 1;
		trim(&right, &right_size);
		return word_is(right, right_size, "None") ? annotation_type(left, left_size, depth + 1) : "string";
	}
	const char *open = memchr(text, '[', size);
	size_t name_size = open ? (size_t)(open - text) : size;
	const char *dot = memrchr(text, '.', name_size);
	const char *name = dot ? dot + 1 : text;
	name_size -= (size_t)(name - text);
	trim(&name, &name_size);
	if (open && text[size - 1] == ']' && (word_is(name, name_size, "Optional") || word_is(name, name_size, "Annotated"))) {
		size_t inner = size - (size_t)(open + 1 - text) - 1;
		return annotation_type(open + 1, part_end(open + 1, inner, ','), depth + 1);
	}
	return plain_type(name, name_size);
}

/* ---- the signature ---- */

struct tokens {
	struct cell__py_token *list;
	size_t n, capacity;
};

static int keep_token(struct scanner *s, struct tokens *tokens)
{
	if (tokens->n == tokens->capacity) {
		size_t capacity = tokens->capacity ? tokens->capacity * 2 : 32;
		struct cell__py_token *more = cell__realloc(tokens->list, capacity * sizeof *more);
		if (!more)
			return fail_memory(s);
		tokens->list = more;
		tokens->capacity = capacity;
	}
	tokens->list[tokens->n++] = s->token;
	return 0;
}

static int check_param_name(struct scanner *s, const char *name, const struct cell__py_source *out)
{
	static const char *const reserved[] = { "tools", "workflows", "skills", "artifacts", "deps" };
	for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
		if (strcmp(name, reserved[i]) == 0)
			return cell_fail(s->err, CELL_E_INVALID, 0, "Workflow parameter '%s' is reserved: it is the name of a namespace",
					 name);
	if (cell__py_is_keyword(name))
		return fail_syntax(s);
	for (size_t i = 0; i < out->n_params; i++)
		if (strcmp(out->params[i].name, name) == 0)
			return cell_fail(s->err, CELL_E_INVALID, 0, "Syntax error in workflow code: duplicate argument '%.100s'", name);
	if (out->n_params >= CELL__PY_PARAMS)
		return cell_fail(s->err, CELL_E_LIMIT, 0, "more than %u parameters", CELL__PY_PARAMS);
	return 0;
}

/* name [: annotation] [= default], as tokens[0..n); colon and equals are n where missing. */
static int add_param(struct scanner *s, const struct cell__py_token *tokens, size_t n, size_t colon, size_t equals,
		     struct cell__py_source *out)
{
	size_t name_end = colon < equals ? colon : equals;
	if (tokens[0].kind != CELL__PY_NAME || name_end != 1 || (colon < n && colon + 1 == equals) || equals + 1 == n ||
	    (colon < n && colon + 1 == n))
		return fail_syntax(s);
	CELL_AUTO_FREE char *name = cell__strndup(s->source + tokens[0].start, tokens[0].end - tokens[0].start);
	if (!name)
		return fail_memory(s);
	if (check_param_name(s, name, out) < 0)
		return -1;
	struct cell__py_param *more = cell__realloc(out->params, (out->n_params + 1) * sizeof *more);
	if (!more)
		return fail_memory(s);
	out->params = more;
	struct cell__py_param param = { .type = "string", .required = equals == n };
	if (colon < n) {
		const char *text = s->source + tokens[colon + 1].start;
		size_t size = tokens[equals - 1].end - tokens[colon + 1].start;
		param.annotation = cell__strndup(text, size);
		param.type = annotation_type(text, size, 0);
	}
	if (equals < n)
		param.default_value = read_default(s->source, tokens + equals + 1, n - equals - 1);
	param.name = cell__take_ptr(name);
	out->params[out->n_params++] = param;
	if ((colon < n && !param.annotation) || (equals < n && !param.default_value))
		return fail_memory(s);
	return 0;
}

/* The index of the first such token outside brackets and lambdas; n: not found. */
static size_t find_operator(const struct scanner *s, const struct cell__py_token *tokens, size_t n, const char *text)
{
	unsigned depth = 0, lambdas = 0;
	for (size_t i = 0; i < n; i++) {
		const struct cell__py_token *t = &tokens[i];
		if (t->kind == CELL__PY_NAME && depth == 0 && cell__py_token_is(s->source, t, "lambda"))
			lambdas++;
		if (t->kind != CELL__PY_OP)
			continue;
		char c = t->end - t->start == 1 ? s->source[t->start] : '\0';
		if (depth == 0 && lambdas == 0 && cell__py_token_is(s->source, t, text))
			return i;
		if (depth == 0 && lambdas > 0 && c == ':')
			lambdas--;
		depth += c == '(' || c == '[' || c == '{';
		depth -= c == ')' || c == ']' || c == '}';
	}
	return n;
}

static int add_params(struct scanner *s, const struct tokens *all, struct cell__py_source *out)
{
	for (size_t at = 0; at < all->n;) {
		const struct cell__py_token *tokens = all->list + at;
		size_t n = find_operator(s, tokens, all->n - at, ",");
		at += n + 1;
		if (n == 0)
			return fail_syntax(s);
		bool star = cell__py_token_is(s->source, &tokens[0], "*") || cell__py_token_is(s->source, &tokens[0], "**");
		if (star || (n == 1 && cell__py_token_is(s->source, &tokens[0], "/")))
			continue;
		size_t equals = find_operator(s, tokens, n, "=");
		size_t colon = find_operator(s, tokens, equals, ":");
		if (add_param(s, tokens, n, colon < equals ? colon : n, equals, out) < 0)
			return -1;
	}
	return 0;
}

/* Steps over a bracketed group, whose opening bracket is the current token; keeps its content in tokens. */
static int take_group(struct scanner *s, struct tokens *tokens)
{
	unsigned outside = s->lexer.n_brackets - 1;
	for (;;) {
		if (advance(s) < 0)
			return -1;
		if (s->token.kind == CELL__PY_END)
			return fail_syntax(s);
		if (s->lexer.n_brackets == outside)
			return advance(s);
		if (tokens && keep_token(s, tokens) < 0)
			return -1;
	}
}

/* After the closing bracket of the parameters: an optional result type, ':', and the docstring. */
static int take_body(struct scanner *s, struct cell__py_source *out)
{
	unsigned line = s->token.line;
	bool opens = false;
	while (s->token.kind != CELL__PY_NEWLINE && s->token.kind != CELL__PY_END) {
		opens = is(s, ":") && s->lexer.n_brackets == 0;
		if (advance(s) < 0)
			return -1;
		if (opens)
			break;
	}
	if (!opens)
		return cell__py_fail(s->err, line, "expected ':'");
	if (s->token.kind == CELL__PY_NEWLINE && advance(s) < 0)
		return -1;
	return take_docstring(s, &out->run_docstring);
}

/* The current token is the `run` of `def run`. */
static int take_run(struct scanner *s, struct cell__py_source *out)
{
	struct tokens tokens = { NULL, 0, 0 };
	int rc = advance(s);
	if (rc == 0 && is(s, "[")) /* type parameters */
		rc = take_group(s, NULL);
	if (rc == 0)
		rc = is(s, "(") ? take_group(s, &tokens) : fail_syntax(s);
	if (rc == 0)
		rc = add_params(s, &tokens, out);
	if (rc == 0)
		rc = take_body(s, out);
	free(tokens.list);
	return rc;
}

/* ---- the module ---- */

/* At the first token of a top-level statement. Leaves the scanner behind some part of it. */
static int take_statement(struct scanner *s, struct cell__py_source *out, unsigned *runs)
{
	bool is_async = is(s, "async");
	if (is_async && advance(s) < 0)
		return -1;
	if (!is(s, "def"))
		return 0;
	if (advance(s) < 0)
		return -1;
	if (!is(s, "run"))
		return 0;
	if (++*runs > 1)
		return cell_fail(s->err, CELL_E_INVALID, 0,
				 "Workflow must define exactly one top-level 'run' function (line %u has another)", s->token.line);
	out->is_async = is_async;
	return take_run(s, out);
}

static int scan(struct scanner *s, struct cell__py_source *out)
{
	unsigned runs = 0;
	bool first = true;
	if (advance(s) < 0)
		return -1;
	while (s->token.kind != CELL__PY_END) {
		bool begins = s->token.first && s->token.level == 0;
		size_t before = s->token.start;
		if (begins && first && take_docstring(s, &out->docstring) < 0)
			return -1;
		first = false;
		if (begins && s->token.start == before && take_statement(s, out, &runs) < 0)
			return -1;
		/* The token read ahead may itself begin a statement. */
		bool next_begins = s->token.first && s->token.start != before;
		if (s->token.kind != CELL__PY_END && !next_begins && advance(s) < 0)
			return -1;
	}
	if (runs == 0)
		return cell_fail(s->err, CELL_E_INVALID, 0,
				 "Workflow must define a 'def run()' or 'async def run()' function at top level");
	return 0;
}

int cell__py_scan(const char *source, size_t size, struct cell__py_source *ret, struct cell_error *err)
{
	if (memchr(source, '\0', size))
		return cell_fail(err, CELL_E_INVALID, 0, "Syntax error in workflow code: source contains null bytes");
	if (!cell__utf8_ok(source, size))
		return cell_fail(err, CELL_E_INVALID, 0, "Syntax error in workflow code: source is not UTF-8");
	struct scanner s = { .source = source, .err = err };
	struct cell__py_source out = { 0 };
	cell__py_lexer_init(&s.lexer, source, size);
	if (scan(&s, &out) < 0) {
		cell__py_source_finish(&out);
		return -1;
	}
	*ret = out;
	return 0;
}

void cell__py_source_finish(struct cell__py_source *source)
{
	for (size_t i = 0; i < source->n_params; i++) {
		free(source->params[i].name);
		free(source->params[i].annotation);
		json_decref(source->params[i].default_value);
	}
	free(source->params);
	free(source->docstring);
	free(source->run_docstring);
	*source = (struct cell__py_source){ 0 };
}
