/* Makes untrusted text safe to show to a person: implements cell_shown_text() and similar functions of workcell.h. */
#ifndef CELL_WIRE_SHOWN_H
#define CELL_WIRE_SHOWN_H

#include "base/base.h"

#define CELL__SHOWN_GROWTH 4u                   /* bytes that one byte becomes, at most */
#define CELL__SHOWN_STYLE_MAX 40u                /* bytes of an escape sequence that may pass */
#define CELL__SHOWN_MAX_ARGS (16u << 20)        /* bytes of arguments that are shown on a terminal */
#define CELL__SHOWN_MAX_PAGE (1u << 20)         /* and for a page, on the loop's thread */

/* out has room for CELL__SHOWN_GROWTH * size; returns how much was filled. */
size_t cell__shown_bytes(const char *bytes, size_t size, enum cell_shown how, char *out);
/*
 * Output of code for a terminal: as CELL_SHOWN_LINES, with colours left in.  Stops before a sequence or character that is not
 * all there, unless `last`.  redraws: a carriage return and a backspace stay.
 */
size_t cell__shown_stream(const char *bytes, size_t size, bool last, bool redraws, char *out, size_t *ret_used);

#endif
