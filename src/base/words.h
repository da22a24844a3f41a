/* Numbers as people read them. */
#ifndef CELL_BASE_WORDS_H
#define CELL_BASE_WORDS_H

#include <stdint.h>

/* "512 MiB", "1.5 GiB"; answers `words`. */
const char *cell__size_words(uint64_t bytes, char words[static 32]);

#endif
