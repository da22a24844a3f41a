/*
 * Text search over small documents: BM25 by SQLite's FTS5, with stemming, identifiers also split at '_' and camelCase.
 * Serves workflows (in a cache file) and tools (in memory).
 *
 * A search object owns one database connection.  Any thread may call; calls on one object take turns.
 */
#ifndef CELL_STORE_SEARCH_H
#define CELL_STORE_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/core.h"

#define CELL__SEARCH_QUERY_BYTES 4096u
#define CELL__SEARCH_QUERY_TERMS 32u
#define CELL__SEARCH_TERM_BYTES 100u    /* longer words are no words */
#define CELL__SEARCH_COMMON_TERMS 2u    /* of the words that stand nearly everywhere */
#define CELL__SEARCH_RANKED 1500        /* documents that one word may have ranked */
#define CELL__SEARCH_LIMIT 1000u
#define CELL__SEARCH_BUSY_MS 5000

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
	const char *payload;    /* given back as it is */
	int64_t stamp[3];       /* given back as they are */
};

struct cell__search_hit {
	char *id;
	double score;           /* more is better */
};

/* path NULL: in memory.  A file that is not our index, or an older one, is made anew. */
int cell__search_open(const char *path, struct cell__search **ret_search, struct cell_error *err);
void cell__search_close(struct cell__search *search); /* NULL is fine */
/* All or nothing: documents take the place of those with their id, removed ids go. */
int cell__search_update(struct cell__search *search, const struct cell__search_doc *docs, size_t n_docs,
			const char *const *removed, size_t n_removed, struct cell_error *err);
/* True when another connection has changed the index since this was last asked, and the first time. */
bool cell__search_changed(struct cell__search *search);
/* Sorted by id; cell__search_stamps_free() them. */
int cell__search_stamps(struct cell__search *search, struct cell__search_stamp **ret_stamps, size_t *ret_n,
			struct cell_error *err);
void cell__search_stamps_free(struct cell__search_stamp *stamps, size_t n);
/* Calls fn for every document, sorted by id, until it returns non-zero; that is returned.  fn must not call back. */
int cell__search_each(struct cell__search *search, int (*fn)(void *arg, const char *id, const char *payload),
		      void *arg, struct cell_error *err);
/* *ret_payload NULL when there is no such document; free() it. */
int cell__search_payload(struct cell__search *search, const char *id, char **ret_payload, struct cell_error *err);
/*
 * The best at most limit documents for some words, best first; a document whose name is the query stands first.  The
 * query has no syntax.  cell__search_hits_free() them.
 */
int cell__search_query(struct cell__search *search, const char *query, size_t limit,
		       struct cell__search_hit **ret_hits, size_t *ret_n, struct cell_error *err);
void cell__search_hits_free(struct cell__search_hit *hits, size_t n);

/* Two rankings, best first, become one by reciprocal rank fusion; scores of the inputs do not matter. */
int cell__search_fuse(const struct cell__search_hit *first, size_t n_first, const struct cell__search_hit *second,
		      size_t n_second, size_t limit, struct cell__search_hit **ret_hits, size_t *ret_n);

/* text, and after it the parts of its compound identifiers.  For tests. */
int cell__search_expand(struct cell__buf *out, const char *text);

#endif
