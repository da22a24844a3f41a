/*
 * The searches of a space: ranks tools for a query and, if an embeddings endpoint is configured, runs workflows.search and
 * tools.search by words and by meaning.  Belongs to the loop's thread.
 *
 *     call ──▶ the query's vector ──▶ workflows: search on the pool ──new documents──▶ their vectors ──▶ search again
 *               (without one: by words)  └─▶ tools: new ones get vectors ──▶ ranked here
 *
 * Neither search ever fails, or waits for long, because of the endpoint.
 */
#ifndef CELL_SEARCH_SEARCHES_H
#define CELL_SEARCH_SEARCHES_H

#include "calls/table.h"
#include "calls/call.h"
#include "search/embedder.h"
#include "storage/store.h"
#include "tools/tools.h"

struct cell__searches;

struct cell__searches_options {
	struct cell__embedder_options embeddings; /* without url: no embeddings */
	struct cell__store *store;                /* NULL: none */
	const char *tool_vectors;                 /* cache file for the vectors of tools; copied; NULL: in memory only */
};

#define CELL__TOOL_VECTORS_FILE "tool-vectors.sqlite"

int cell__searches_create(const struct cell__searches_options *opts, struct cell__searches **ret_searches, struct cell_error *err);
/* Calls under way fail.  done(arg) from a later iteration of the loop; the store and the tools may go then. */
void cell__searches_close(struct cell__searches *searches, void (*done)(void *arg), void *arg);
/* For cell__tools_options; arg is the searches. */
int cell__searches_rank_tools(void *searches, const char *query, const struct cell__rank_doc *docs, size_t n_docs, uint64_t generation,
			      size_t limit, size_t *ret_order);
/* Whether this is one of our calls; others need no endpoint. */
bool cell__searches_takes(const struct cell__searches *searches, enum cell__op op);
/* Answers a search call. The data that view points to must live as long as the call. */
void cell__searches_handle(struct cell__searches *searches, struct cell__tools *tools, const struct cell__tools_view *view,
			   struct cell__call *call);

#endif
