/* Shared by search.c, vectors.c and near.c. */
#ifndef CELL_STORAGE_SEARCH_INTERNAL_H
#define CELL_STORAGE_SEARCH_INTERNAL_H

#include <pthread.h>
#include <sqlite3.h>
#include <stdatomic.h>

#include "storage/search.h"

#define CELL__SEARCH_NAME_SCORE 1000.0 /* of a document whose name is the query; above every BM25 score */

struct cell__vectors;

struct cell__search {
	pthread_mutex_t lock;
	sqlite3 *db;
	int data_version;              /* -1: not read yet */
	struct cell__vectors *vectors; /* NULL: none; does not change once it is set */
};

static inline void cell__statement_cleanup(sqlite3_stmt **statement)
{
	sqlite3_finalize(*statement);
}
#define CELL_AUTO_STATEMENT __attribute__((cleanup(cell__statement_cleanup)))

/* With the lock that guards the database held. */
int cell__search_fail(sqlite3 *db, struct cell_error *err, const char *what);
int cell__search_read_int(sqlite3 *db, const char *sql, int *ret_value);

/* The kind of a database.  A database of another version is created again. */
struct cell__search_schema {
	int version;
	int page_bytes;     /* of a file */
	const char *tables;
	const char *drops;  /* removes the tables of an older version */
};
/* A database that is a cache, in a file or (NULL) in memory. */
int cell__search_open_db(const char *path, const struct cell__search_schema *schema, sqlite3 **ret_db, struct cell_error *err);

/* ---- vectors.c and near.c ---- */

#define CELL__VECTOR_LANES 32u /* rows are padded to a multiple of it */
#define CELL__VECTOR_ONE 32000 /* the value of 1 in a row; leaves room for rounding errors of the length */
#define CELL__VECTOR_NO_ROW SIZE_MAX

enum cell__vector_known { CELL__VECTOR_UNKNOWN, CELL__VECTOR_MISSING, CELL__VECTOR_REFUSED };

struct cell__vectors_doc {
	char *id;
	unsigned char hash[CELL__SEARCH_HASH_BYTES];
	enum cell__vector_known known; /* if it has no row */
	size_t row;       /* CELL__VECTOR_NO_ROW: none */
};

struct cell__vectors {
	pthread_mutex_t db_lock; /* guards the four below */
	sqlite3 *db;
	char *path;              /* NULL: none */
	char *model;
	int data_version;
	atomic_bool stale;    /* the documents may have changed */
	pthread_mutex_t lock; /* guards all below; only the holder of db_lock changes them */
	struct cell__vectors_doc *docs;     /* sorted by id */
	size_t n_docs;
	size_t dimensions, stride;
	int16_t *rows;        /* see near.c */
	size_t *row_docs;     /* a row's place in docs */
	size_t n_rows, capacity;
};

void cell__vectors_destroy(struct cell__vectors *vectors); /* NULL is allowed */
/* The documents are not the ones they were. */
void cell__vectors_stale(struct cell__vectors *vectors);
/* Writes a vector of length one as a row; out is padded with zeros. */
void cell__vectors_pack(const float *vector, size_t dimensions, int16_t *out);
/* The key of a vector's source text; false: no text, so no vector. */
bool cell__vectors_hash(const struct cell__search_doc *doc, unsigned char out[static CELL__SEARCH_HASH_BYTES]);

#endif
