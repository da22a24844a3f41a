/*
 * Text search over small documents: BM25 by SQLite's FTS5, with stemming, identifiers also split at '_' and camelCase; and, if the
 * documents have vectors, by their distance to the query's vector. Serves workflows (in a cache file) and tools (in memory).
 *
 * A search object owns one database connection. Any thread may call; calls on one object take turns.
 */
#ifndef CELL_STORAGE_SEARCH_H
#define CELL_STORAGE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define CELL__SEARCH_QUERY_BYTES 4096u
#define CELL__SEARCH_QUERY_TERMS 32u
#define CELL__SEARCH_TERM_BYTES 100u    /* longer words are ignored */
#define CELL__SEARCH_COMMON_TERMS 2u    /* of the words that nearly every document has */
#define CELL__SEARCH_RANKED 1500        /* documents that one word may have ranked */
#define CELL__SEARCH_BUSY_MS 5000
#define CELL__SEARCH_TEXT_BYTES 2000u   /* of a document, as the source of its vector */
#define CELL__SEARCH_HASH_BYTES 16u
#define CELL__SEARCH_FUSED_MIN 50u      /* so many of each ranking are fused, however few are wanted */
#define CELL__SEARCH_VECTOR_BYTES ((size_t)512 << 20) /* of all vectors in memory; further documents get no vector */

struct cell__search;

struct cell__search_stamp {
	char *id;
	int64_t stamp[3];
};

/* Only id and name must be there, the rest may be NULL. */
struct cell__search_doc {
	const char *id;
	const char *name;
	const char *description;
	const char *tags;       /* words */
	const char *params;     /* words */
	const char *extra;      /* a docstring */
	const char *body;       /* a source */
	const char *payload;    /* returned unchanged */
	int64_t stamp[3];       /* returned unchanged */
};

struct cell__search_hit {
	char *id;
	double score;           /* more is better */
};

/* path NULL: in memory. A file that is not our index, or an older one, is replaced. */
int cell__search_open(const char *path, struct cell__search **ret_search, struct cell_error *err);
void cell__search_close(struct cell__search *search); /* NULL is allowed */
/* All or nothing: documents replace those with the same id, removed ids are deleted. */
int cell__search_update(struct cell__search *search, const struct cell__search_doc *docs, size_t n_docs, const char *const *removed,
			size_t n_removed, struct cell_error *err);
/* True when another connection has changed the index since the previous call, and at the first call. */
bool cell__search_changed(struct cell__search *search);
/* Sorted by id; cell__search_stamps_free() them. */
int cell__search_stamps(struct cell__search *search, struct cell__search_stamp **ret_stamps, size_t *ret_n, struct cell_error *err);
void cell__search_stamps_free(struct cell__search_stamp *stamps, size_t n);
/* Calls fn for every document, sorted by id, until it returns non-zero; that is returned.  fn must not call back. */
int cell__search_each(struct cell__search *search, int (*fn)(void *arg, const char *id, const char *payload), void *arg,
		      struct cell_error *err);
/* *ret_payload NULL: no such document; free() it. */
int cell__search_payload(struct cell__search *search, const char *id, char **ret_payload, struct cell_error *err);
/*
 * At most limit best documents for some words, best first; a document whose name equals the query comes first. The query has no syntax.
 * cell__search_hits_free() them.
 */
int cell__search_query(struct cell__search *search, const char *query, size_t limit, struct cell__search_hit **ret_hits, size_t *ret_n,
		       struct cell_error *err);
void cell__search_hits_free(struct cell__search_hit *hits, size_t n);

/*
 * Two rankings, best first, become one: the score of `near`, and for a document that the words find up to `weight` more. Documents that only
 * the words find come after those.
 */
int cell__search_fuse(const struct cell__search_hit *words, size_t n_words, const struct cell__search_hit *near, size_t n_near,
		      double weight, size_t limit, struct cell__search_hit **ret_hits, size_t *ret_n);

/* ---- by meaning (vectors.c) ---- */

/*
 * A vector stands for a document's meaning; it is made elsewhere, by an embeddings endpoint, and has length one.  All
 * vectors of a search have one number of dimensions.  They are kept in memory once they have been used, and in a cache
 * file by the model and the hash of what they were made of, so that a document is sent to the endpoint once.
 *
 *     document: unknown ──in the cache file──▶ has a vector ◀──put──┐
 *                  └──not there──▶ missing ──collect──▶ given out ──┤
 *                                     ▲                 └─ refused: until the document changes
 *                                     └── the number of dimensions changes: all of them
 */
struct cell__vector_doc {
	char *id;
	unsigned char hash[CELL__SEARCH_HASH_BYTES];
	char *text;
};

struct cell__vector_batch {
	struct cell__vector_doc *list;
	size_t n;
};
void cell__vector_batch_finish(struct cell__vector_batch *batch);

struct cell__vector_counts {
	size_t documents;  /* that can have a vector */
	size_t vectors;    /* that have one */
	size_t refused;    /* that will get no vector */
	size_t dimensions; /* 0: not known yet */
};

/*
 * Once, before the functions below. path NULL: no cache file; an unusable one is replaced, or the search works without. The first function
 * below that reads files opens it.
 */
int cell__search_add_vectors(struct cell__search *search, const char *path, const char *model, struct cell_error *err);
bool cell__search_has_vectors(const struct cell__search *search);
/*
 * Finds the documents without a vector, after reading the cache file; *ret_missing is their number. Returns the texts of at most max of
 * them, cut to text_bytes. May take long: reads files.
 */
int cell__search_collect(struct cell__search *search, size_t max, size_t text_bytes, struct cell__vector_batch *ret_batch,
			 size_t *ret_missing, struct cell_error *err);
/*
 * The vectors of a batch, one after another. Writes a file. CELL_E_PROTOCOL: their dimensions differ from the existing vectors'. CELL_E_IO:
 * they are in memory, but not in the cache file.
 */
int cell__search_put_vectors(struct cell__search *search, const struct cell__vector_batch *batch, const float *vectors, size_t dimensions,
			     struct cell_error *err);
/* These documents will not get a vector.  NULL: all that were refused are missing again. */
void cell__search_refuse_vectors(struct cell__search *search, const struct cell__vector_batch *batch);
/* Sets the number of dimensions; a change drops all vectors. */
void cell__search_set_dimensions(struct cell__search *search, size_t dimensions);
/* Removes the oldest vectors from the cache file that belong to no document, when there are too many of them.  Reads and writes files. */
int cell__search_tidy_vectors(struct cell__search *search, struct cell_error *err);
void cell__search_vector_counts(struct cell__search *search, struct cell__vector_counts *ret_counts);
/*
 * As cell__search_query(), fused with the ranking by the vectors in memory. *ret_fused is false when that was impossible: no vectors, or
 * with other dimensions. A document whose name equals the query comes first here too.
 */
int cell__search_query_by(struct cell__search *search, const char *query, const float *vector, size_t dimensions, size_t limit,
			  struct cell__search_hit **ret_hits, size_t *ret_n, bool *ret_fused, struct cell_error *err);

/* text, and after it the parts of its compound identifiers.  For tests. */
int cell__search_expand(struct cell__buf *out, const char *text);

#endif
