/*
 * Vectors without a server: a small BERT model (bge-small-en-v1.5) that ONNX Runtime computes in this process.
 *
 * The folder of a model has model.onnx, tokenizer.json (or vocab.txt) and libonnxruntime.so, which is loaded with the first text; without it the
 * system's is looked for.  Whoever can write to the folder decides what this process runs: it belongs to the user, outside every workspace.
 */
#ifndef CELL_SEARCH_ONNX_H
#define CELL_SEARCH_ONNX_H

#include "base/base.h"

#define CELL__ONNX_TOKENS 256u                       /* of a text; the rest is left out */
#define CELL__ONNX_DIMENSIONS 4096u                  /* most of a vector */
#define CELL__ONNX_MODEL_BYTES (1024u * 1024u * 1024u)
#define CELL__ONNX_DOWNLOAD_BYTES (256u * 1024u * 1024u) /* of a part from a URL */
#define CELL__ONNX_REDIRECTS 5                       /* that are followed for it */
#define CELL__ONNX_DOWNLOAD_MS (15 * 60 * 1000)
#define CELL__ONNX_SILENCE_S 60
#define CELL__ONNX_TOKENIZER_BYTES (16u * 1024u * 1024u)
#define CELL__ONNX_SCHEME "builtin:"                 /* of an embeddings URL: then the folder of a model */

struct cell__onnx;

/* The folder in an embeddings URL; NULL: it is not of this kind, or NULL. */
const char *cell__onnx_folder(const char *url);
/* Reads nothing yet.  NULL: out of memory. */
struct cell__onnx *cell__onnx_create(const char *folder);
/* No other call may be under way.  NULL is allowed. */
void cell__onnx_destroy(struct cell__onnx *model);
/*
 * The vector of a text, of length 1: new, free() it.  is_query: a text that is looked for, not one that is found.  Threads that may block; the
 * first call loads the model.
 */
int cell__onnx_embed(struct cell__onnx *model, const char *text, bool is_query, float **ret_vector, size_t *ret_dimensions,
		     struct cell_error *err);

#endif
