/*
 * The embeddings endpoint of a space: vectors for queries, and for the documents that are searched.  Belongs to the
 * loop's thread; parsing, and all access to a search index, runs on libuv's pool.
 *
 * A search must never depend on the endpoint: within a bounded time the caller gets a vector, or no vector and then searches
 * by words.  After a failure the endpoint is not used for a while, longer each time, and then tried again.
 *
 *              ┌────────────── a request succeeds ──────────────┐
 *              ▼                                                │
 *             ok ──a query's answer is overdue──▶ slow ─────────┤   slow: new queries do not wait
 *              │                                   │            │
 *              └──a request fails──▶ resting ◀─────┘            │   resting: no request is made
 *                                     ▲  └──its time is over────┤
 *                                     └──fails: twice as long───┘
 *
 * The log reports every failure, and cell__embedder_status() reports the last one until a request has succeeded.  The key
 * is sent to the endpoint only.
 */
#ifndef CELL_SEARCH_EMBEDDER_H
#define CELL_SEARCH_EMBEDDER_H

#include <jansson.h>

#include "loop/loop.h"
#include "storage/search.h"

#define CELL__EMBED_WAIT_MS 3000        /* how long a search waits for a vector, or for those of new documents */
#define CELL__EMBED_REQUEST_MS 30000    /* how long a request may take */
#define CELL__EMBED_REST_MS 1000        /* after the first failure; doubles */
#define CELL__EMBED_REST_MAX_MS 60000
#define CELL__EMBED_RETRY_MAX_MS 300000 /* as the endpoint may request (Retry-After) */
#define CELL__EMBED_QUERIES 64u         /* at the same time; further ones are searched by words */
#define CELL__EMBED_CACHED 64u          /* vectors of queries that are kept */
#define CELL__EMBED_CONNECTIONS 4
#define CELL__EMBED_TEXT_MIN 250u       /* bytes: a document that is refused even so is left out */
#define CELL__EMBED_REFUSALS 8u         /* in a row: then the documents are not the cause */
#define CELL__EMBED_ODD_TIMES 3u        /* another number of dimensions: then the model has changed */
#define CELL__EMBED_ERROR_BYTES 160u    /* of the endpoint's error message */

struct cell__embedder;

struct cell__embedder_options {
	struct cell__loop *loop;
	const char *url;
	const char *model;
	const char *key; /* NULL: no key; "${NAME}": the value from getenv_fn, at each request */
	const char *(*getenv_fn)(void *arg, const char *name);
	void *getenv_arg;
	void (*log)(void *arg, enum cell_log_level level, const char *fmt, ...);
	void *log_arg;
	int64_t wait_ms, request_ms, rest_ms, rest_max_ms; /* 0: as above */
};

int cell__embedder_create(const struct cell__embedder_options *opts, struct cell__embedder **ret_embedder, struct cell_error *err);
/* No request may be pending.  closed() is called in a later iteration of the loop, when no corpus is in use. */
void cell__embedder_close(struct cell__embedder *embedder, void (*closed)(void *arg), void *arg);

/* A waiting caller; stays valid until done() or cancel. */
struct cell__embed_wait {
	void (*done)(struct cell__embed_wait *wait);
	const float *vector; /* of the query, until done() returns; NULL: not available now */
	size_t dimensions;
	/* the embedder's */
	int64_t deadline_us;
	struct cell__embed_wait **list, *next;
};

/* True: done() comes later.  False: it does not, the answer is in *wait already, valid until the next call. */
bool cell__embedder_query(struct cell__embedder *embedder, const char *text, struct cell__embed_wait *wait);

/* Documents that are to have vectors. */
struct cell__corpus {
	const char *name;
	/* Calls fn with the documents' search index.  On the pool. */
	int (*with)(void *arg, int (*fn)(void *fn_arg, struct cell__search *search, struct cell_error *err), void *fn_arg,
		    struct cell_error *err);
	void *arg;
	/* the embedder's */
	struct cell__filling *filling;    /* NULL: idle */
	struct cell__embed_wait *waiting;
	struct cell__vector_counts counts; /* as last seen */
	size_t batch, text_bytes;         /* how much at once; 0: as much as may be */
	unsigned refusals;                /* in a row */
	bool forgive;                     /* it was not the documents */
	size_t odd, relearn;              /* another number of dimensions; to be taken as the right one */
	unsigned odd_times;
};

/*
 * Requests vectors for the documents without one, unless such a request is in progress. True: done() is called when it ends, fails, or
 * takes too long (it then continues). Many new documents are not waited for.
 */
bool cell__embedder_fill(struct cell__embedder *embedder, struct cell__corpus *corpus, struct cell__embed_wait *wait);
void cell__embedder_cancel(struct cell__embed_wait *wait);
/* A query's vector had another number of dimensions than the documents': the endpoint failed, or has a new model. */
void cell__embedder_odd(struct cell__embedder *embedder, struct cell__corpus *corpus, size_t dimensions);
/* {"model", "state", "error", "retry_ms"}; NULL: out of memory. */
json_t *cell__embedder_status(const struct cell__embedder *embedder);

#endif
