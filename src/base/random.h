/* Unguessable names. */
#ifndef CELL_BASE_RANDOM_H
#define CELL_BASE_RANDOM_H

#include <stddef.h>

/* n_chars + NUL; from getrandom().  At most 128. */
void cell__random_hex(char *out, size_t n_chars);

#endif
