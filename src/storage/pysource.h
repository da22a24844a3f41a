/*
 * Extracts the metadata of a workflow from its Python source, without Python and without running it: the module's docstring,
 * the one top-level `def run` or `async def run`, its parameters and its docstring.
 *
 * A tokenizer, not a parser: strings (also nested f-strings), comments, brackets, line continuation and indentation are
 * understood and checked, the inside of statements is not.  The kernel's compiler decides on syntax in the end.
 * Pure: bytes in, a struct out; accepts any input.
 */
#ifndef CELL_STORAGE_PYSOURCE_H
#define CELL_STORAGE_PYSOURCE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/base.h"

#define CELL__PY_NESTING 200u      /* brackets, as CPython */
#define CELL__PY_INDENTS 100u      /* as CPython */
#define CELL__PY_STRING_NESTING 32u /* f-strings in f-strings */
#define CELL__PY_LITERAL_NESTING 32u
#define CELL__PY_PARAMS 255u

struct cell__py_param {
	char *name;
	const char *type;       /* "string", "integer", "number", "boolean", "array", "object" */
	char *annotation;       /* its source, NULL: none */
	bool required;
	json_t *default_value;  /* a literal's value, else its source as a string; NULL where required */
};

struct cell__py_source {
	char *docstring;        /* of the module, dedented as inspect.cleandoc() does; NULL: none */
	char *run_docstring;
	bool is_async;
	struct cell__py_param *params; /* without *args and **kwargs */
	size_t n_params;
};

/* -1 with CELL_E_INVALID and the reference's wording if it is not a workflow.  ret is untouched then. */
int cell__py_scan(const char *source, size_t size, struct cell__py_source *ret, struct cell_error *err);
void cell__py_source_finish(struct cell__py_source *source);
bool cell__py_is_keyword(const char *word);

/* ---- the tokenizer (pylex.c) ---- */

enum cell__py_kind { CELL__PY_END, CELL__PY_NEWLINE, CELL__PY_NAME, CELL__PY_NUMBER, CELL__PY_STRING, CELL__PY_OP };

struct cell__py_token {
	enum cell__py_kind kind;
	size_t start, end;      /* bytes of the source */
	unsigned line;          /* from 1 */
	bool first;             /* of a logical line */
	unsigned level;         /* the number of blocks around the logical line */
};

struct cell__py_lexer {
	const char *source;
	size_t size, pos;
	unsigned line;
	bool line_start;        /* the next token begins a logical line */
	bool opens_block;       /* the last logical line ended with ':' */
	unsigned n_indents;
	unsigned indents[CELL__PY_INDENTS], alt_indents[CELL__PY_INDENTS];
	unsigned n_brackets;
	char brackets[CELL__PY_NESTING];
};

void cell__py_lexer_init(struct cell__py_lexer *lexer, const char *source, size_t size);
/* After CELL__PY_END it returns END again. A NEWLINE precedes END and follows every logical line. */
int cell__py_next(struct cell__py_lexer *lexer, struct cell__py_token *ret_token, struct cell_error *err);
int cell__py_fail(struct cell_error *err, unsigned line, const char *what);
bool cell__py_token_is(const char *source, const struct cell__py_token *token, const char *text);
/* Appends the value of a str literal. 1: it is one; 0: bytes, an f-string or a template; -1: out of memory. */
int cell__py_string_value(const char *text, size_t size, struct cell__buf *out);

#endif
