/*
 * Text as the numbers that a BERT model reads: WordPiece, as in the original's BasicTokenizer for uncased models.  Pure: bytes in, numbers out;
 * accepts any input.
 *
 * Letters are lower case and without accents where they are Latin, Greek or Cyrillic; others are taken as they are.
 */
#ifndef CELL_SEARCH_WORDPIECE_H
#define CELL_SEARCH_WORDPIECE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define CELL__WORD_BYTES 400u /* a longer word is unknown; 100 characters, as in the original */

struct cell__wordpiece {
	json_t *vocabulary; /* token -> number */
	int64_t cls, sep, unknown;
};

/* From the text of a tokenizer.json, or of a vocab.txt with a token on each line. */
int cell__wordpiece_init(struct cell__wordpiece *pieces, const char *text, size_t size, struct cell_error *err);
void cell__wordpiece_finish(struct cell__wordpiece *pieces);
/* [CLS], the text's numbers as far as they fit, [SEP]; returns their number.  max: at least 2. */
size_t cell__wordpiece_encode(const struct cell__wordpiece *pieces, const char *text, size_t size, int64_t *ids, size_t max);

#endif
