/* Python as a person types it: whether it seems complete, its next indentation, its colours. Guesses, without Python. */
#ifndef CELL_CLI_PYTHON_TEXT_H
#define CELL_CLI_PYTHON_TEXT_H

#include <stddef.h>

#define CELL_CLI_INDENT 4

enum cell_cli_completeness {
	CELL_CODE_COMPLETE,
	CELL_CODE_OPEN,  /* a bracket, a triple-quoted string or a backslash needs another line */
	CELL_CODE_BLOCK, /* an indented block: continues until an empty line */
};
/* Of lines that end with a line feed each. */
enum cell_cli_completeness cell__code_completeness(const char *code, size_t size);

/* The number of spaces that the line after this code should begin with. */
size_t cell__code_indent(const char *code, size_t size);

enum cell_cli_colour {
	CELL_COLOUR_NONE,
	CELL_COLOUR_KEYWORD,
	CELL_COLOUR_BUILTIN,
	CELL_COLOUR_STRING,
	CELL_COLOUR_NUMBER,
	CELL_COLOUR_COMMENT,
	CELL_COLOUR_MAGIC, /* also decorators */
};
/* One colour for each byte. */
void cell__code_colours(const char *code, size_t size, unsigned char *colours);
/* The escape sequence that begins it, after a reset. */
const char *cell__colour_sequence(enum cell_cli_colour colour);

/* A traceback with colours, free() it; NULL: out of memory. Only adds escape sequences. */
char *cell__traceback_coloured(const char *text, size_t size, size_t *ret_size);

#endif
