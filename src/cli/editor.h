/*
 * The line editor of `workcell shell`: libedit's keys, history and buffer, and a display of our own, because libedit's has no colours and
 * knows one line only. A whole cell is edited at once, with its line feeds.
 */
#ifndef CELL_CLI_EDITOR_H
#define CELL_CLI_EDITOR_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "base/error.h"

struct cell_cli_editor;

struct cell_cli_editor_options {
	bool colour;
	int wake_fd;
	/* wake_fd became readable while a person types. False: the input is over. */
	bool (*woken)(void *arg);
	/* The answer of cell_session_complete(), or NULL. */
	json_t *(*complete)(void *arg, const char *before, size_t size);
	void *arg;
};

int cell__editor_create(const struct cell_cli_editor_options *opts, struct cell_cli_editor **ret_editor, struct cell_error *err);
/* Saves the history. NULL is allowed. */
void cell__editor_destroy(struct cell_cli_editor *editor);
/*
 * Reads a cell, or one line of it on a terminal that cannot move its cursor; the text is the editor's. NULL: the end of the input, or
 * woken() ended it.
 */
const char *cell__editor_read(struct cell_cli_editor *editor, unsigned count, bool continued, size_t *ret_size);
/* Whether cell__editor_read() gives whole cells. */
bool cell__editor_is_whole(const struct cell_cli_editor *editor);
/* Takes the input off the screen, for output; it is drawn again before the next key is read. */
void cell__editor_hide(struct cell_cli_editor *editor);
/* The terminal has another size, or other modes. */
void cell__editor_resized(struct cell_cli_editor *editor);
/* Ends the line of input that was given up: what is printed next is on a line of its own. */
void cell__editor_leave(struct cell_cli_editor *editor);
void cell__editor_remember(struct cell_cli_editor *editor, const char *text);

#endif
