/* Pictures that cells show, for a person at a terminal: drawn by terminals that can, else saved to a file that is named. */
#ifndef CELL_CLI_PICTURE_H
#define CELL_CLI_PICTURE_H

#include <stddef.h>

#include "base/buffer.h"
#include "base/error.h"

enum cell_cli_pictures {
	CELL_PICTURES_SAVED,
	CELL_PICTURES_KITTY, /* https://sw.kovidgoyal.net/kitty/graphics-protocol */
	CELL_PICTURES_ITERM, /* https://iterm2.com/documentation-images.html */
};
/* What the terminal of this environment can do. */
enum cell_cli_pictures cell__pictures_of_terminal(void);

/* "png" or "jpg" by the first bytes; NULL: neither. */
const char *cell__picture_type(const void *bytes, size_t size);
/*
 * The escape sequences that draw it, ended by a line feed: the picture is base64 in them, so its bytes cannot end them. 1: the terminal
 * cannot draw this one; -1: out of memory.
 */
int cell__picture_draw(enum cell_cli_pictures how, const void *bytes, size_t size, struct cell__buf *out);
/* Saves it under a new name in the user's state folder. *ret_path: free() it. */
int cell__picture_save(const void *bytes, size_t size, char **ret_path, struct cell_error *err);

#endif
