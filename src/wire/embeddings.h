/*
 * Requests to an OpenAI-compatible embeddings endpoint, and their answers:
 *
 *     {"model": "m", "input": ["text", ...]}  ──▶  {"data": [{"index": 0, "embedding": [0.1, ...]}, ...], ...}
 *
 * Pure.  The answer is untrusted: its memory is bounded by the request, not by the answer's size.
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
 * The vectors of n texts, in the texts' order, one after another, each normalised to length one (a zero vector stays zero). Line breaks in
 * `text` become blanks. CELL_E_PROTOCOL unless the answer has n vectors of finite numbers with equal dimensions; free() *ret_vectors.
 */
int cell__embed_parse(char *text, size_t size, size_t n, float **ret_vectors, size_t *ret_dimensions, struct cell_error *err);

#endif
