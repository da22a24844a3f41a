/*
 * One request to the embeddings endpoint, from the body to the vectors: sent on the loop, parsed on the pool.  Internal
 * to embedder.c.  Belongs to the loop's thread.
 */
#ifndef CELL_SEARCH_EMBED_REQUEST_H
#define CELL_SEARCH_EMBED_REQUEST_H

#include <stdatomic.h>

#include "loop/http.h"
#include "search/embedder.h"
#include "search/onnx.h"

struct cell__embed_endpoint {
	struct cell__loop *loop;
	struct cell__http *http;
	struct cell__onnx *local; /* computes them in this process; NULL: the endpoint does */
	char *url, *model, *key;
	const char *(*getenv_fn)(void *arg, const char *name);
	void *getenv_arg;
	int64_t request_ms;
	int parsing;                    /* requests on the pool */
	void (*parsed)(void *owner);    /* a run without an owner has left the queue */
	void *owner;
};

struct cell__embed_request {
	struct cell__http_transfer transfer;
	uv_work_t work;
	struct cell__embed_endpoint *endpoint;
	char *secret; /* the key as sent */
	struct cell__buf body, answer; /* local: body has the texts, each with its NUL */
	bool is_query; /* local: the text is looked for */
	size_t answer_limit;
	bool too_big, sending, parsing;
	atomic_bool dropped;
	/* the outcome */
	size_t n;             /* texts */
	float *vectors;       /* NULL: failed */
	size_t dimensions;
	struct cell_error err;
	bool refused;         /* the endpoint said that it does not accept the texts */
	int64_t retry_ms;     /* as the endpoint requested; 0: it did not */
	/* Once, never from inside start; the request is the owner's to destroy. */
	void (*done)(struct cell__embed_request *request);
	void *owner;
};

/* NULL: out of memory.  Strings are copied. */
struct cell__embed_request *cell__embed_request_create(struct cell__embed_endpoint *endpoint, const char *const *texts, size_t n);
/* -1: the request cannot be sent, err has the reason; done() is never called. */
int cell__embed_request_start(struct cell__embed_request *request, struct cell_error *err);
/* At any time; NULL is allowed.  If it is on the pool, its memory is freed when that work ends. */
void cell__embed_request_destroy(struct cell__embed_request *request);

#endif
