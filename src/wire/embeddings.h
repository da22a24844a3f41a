/*
 * What is said to an OpenAI-compatible embeddings endpoint, and what it answers:
 *
 *     {"model": "m", "input": ["text", ...]}  ──▶  {"data": [{"index": 0, "embedding": [0.1, ...]}, ...], ...}
 *
 * Pure.  The answer is anybody's: its memory is bounded by what was asked for, not by what came.
 */
#ifndef CELL_WIRE_EMBEDDINGS_H
#define CELL_WIRE_EMBEDDINGS_H

#include <stddef.h>

#include "base/base.h"

#define CELL__EMBED_BATCH 64u            /* texts in one request */
#define CELL__EMBED_DIMENSIONS 8192u     /* numbers of one vector */
#define CELL__EMBED_ANSWER_BYTES (24u * 1024u * 1024u) /* a full batch of the longest vectors, spelled out */

/* Appends the request's body.  Ill-formed UTF-8 in texts is replaced.  -1: out of memory. */
int cell__embed_request(struct cell__buf *out, const char *model, const char *const *texts, size_t n);
/*
 * The vectors of n texts, in the texts' order, one after another, each made to have length one (one of zeros stays as it
 * is).  Line breaks in `text` become blanks.  CELL_E_PROTOCOL for everything that is not n vectors of one number of
 * finite numbers; free() *ret_vectors.
 */
int cell__embed_parse(char *text, size_t size, size_t n, float **ret_vectors, size_t *ret_dimensions, struct cell_error *err);

#endif
