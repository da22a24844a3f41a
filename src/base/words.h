/* Numbers as people read them. */
#ifndef CELL_BASE_WORDS_H
#define CELL_BASE_WORDS_H

#include <stdint.h>

/* "512 MiB", "1.5 GiB"; answers `words`. */
const char *cell__size_words(uint64_t bytes, char words[static 32]);
/* "just now", "3 hours ago": of a time that many seconds ago; answers `words`. */
const char *cell__age_words(int64_t seconds, char words[static 32]);
/* "0.4 ms", "12 ms", "3.5 s", "2 min 5 s"; answers `words`. */
const char *cell__duration_words(double ms, char words[static 32]);

#endif
