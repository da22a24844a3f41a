#define _GNU_SOURCE
#include "base/list.h"
#include "search/searches.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define DEFAULT_LIMIT 5

/* A search under way. */
struct finding {
	struct cell__embed_wait wait; /* first: converted to a finding in done() */
	uv_work_t work;
	struct cell__searches *searches;
	struct cell__call *call;      /* NULL: no caller waits any more */
	bool waiting, on_pool;
	bool filled;                  /* new documents were waited for */
	float *vector;                /* of the query; NULL: none */
	size_t dimensions;
	/* tools */
	struct cell__tools *tools;    /* NULL: workflows */
	struct cell__tools_view view;
	struct cell__tools_wait read; /* for changed definitions */
	bool reading;
	/* workflows */
	char *query;
	size_t limit;
	struct cell__meaning meaning;
	json_t *result;
	struct cell_error err;
	struct finding *prev, *next;
};

struct cell__searches {
	struct cell__loop *loop;
	struct cell__store *store;
	struct cell__embedder *embedder; /* NULL: no endpoint */
	char *model, *tool_vectors;
	struct finding *findings;
	struct cell__corpus workflows, tools;
	struct cell__search *tool_search;
	uint64_t tool_generation;
	bool tools_new;                  /* some may have no vector */
	const float *vector;             /* while tools are ranked: of the query */
	size_t dimensions;
	uv_idle_t idle; /* so that closing always ends in a later iteration of the loop */
	bool closing, embedder_open;
	void (*closed)(void *arg);
	void *closed_arg;
};

/* ---- tools ---- */

/* Everything in the index is replaced: tools are few. */
static int replace_tools(struct cell__search *search, const struct cell__search_doc *docs, size_t n)
{
	struct cell__search_stamp *old = NULL;
	size_t n_old = 0;
	if (cell__search_stamps(search, &old, &n_old, NULL) < 0)
		return -1;
	CELL_AUTO_FREE const char **removed = cell__alloc(n_old, sizeof *removed);
	for (size_t i = 0; removed && i < n_old; i++)
		removed[i] = old[i].id;
	int rc = removed ? cell__search_update(search, docs, n, removed, n_old, NULL) : -1;
	cell__search_stamps_free(old, n_old);
	return rc;
}

/* In memory: only the embedder, on the pool, opens the cache file. */
static int open_tool_search(struct cell__searches *searches)
{
	if (cell__search_open(NULL, &searches->tool_search, NULL) < 0)
		return -1;
	if (!searches->embedder)
		return 0;
	if (cell__search_add_vectors(searches->tool_search, searches->tool_vectors, searches->model, NULL) == 0)
		return 0;
	cell__search_close(cell__take_ptr(searches->tool_search));
	return -1;
}

static int index_tools(struct cell__searches *searches, const struct cell__rank_doc *docs, size_t n_docs, uint64_t generation)
{
	if (searches->tool_search && searches->tool_generation == generation)
		return 0;
	if (!searches->tool_search && open_tool_search(searches) < 0)
		return -1;
	CELL_AUTO_FREE struct cell__search_doc *all = cell__alloc(n_docs, sizeof *all);
	for (size_t i = 0; all && i < n_docs; i++)
		all[i] = (struct cell__search_doc){
			.id = docs[i].name, .name = docs[i].name, .description = docs[i].description, .extra = docs[i].text
		};
	if (!all || replace_tools(searches->tool_search, all, n_docs) < 0)
		return -1;
	searches->tool_generation = generation;
	searches->tools_new = true;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct cell__rank_doc *const *)a)->name, (*(const struct cell__rank_doc *const *)b)->name);
}

/* Hits are names; the order is in places of docs. */
static int order_of(const struct cell__search_hit *hits, size_t n, const struct cell__rank_doc *docs, size_t n_docs, size_t limit,
		    size_t *ret_order)
{
	CELL_AUTO_FREE const struct cell__rank_doc **sorted = cell__alloc(n_docs, sizeof *sorted);
	size_t count = 0;
	if (!sorted)
		return -1;
	for (size_t i = 0; i < n_docs; i++)
		sorted[i] = &docs[i];
	if (n_docs)
		qsort(sorted, n_docs, sizeof *sorted, by_name);
	for (size_t i = 0; i < n && n_docs && count < limit; i++) {
		const struct cell__rank_doc wanted = { .name = hits[i].id }, *key = &wanted;
		const struct cell__rank_doc **found = bsearch(&key, sorted, n_docs, sizeof *sorted, by_name);
		if (found)
			ret_order[count++] = (size_t)(*found - docs);
	}
	return (int)count;
}

int cell__searches_rank_tools(void *arg, const char *query, const struct cell__rank_doc *docs, size_t n_docs, uint64_t generation,
			      size_t limit, size_t *ret_order)
{
	struct cell__searches *searches = arg;
	struct cell__search_hit *hits = NULL;
	struct cell__vector_counts counts;
	size_t n = 0;
	bool fused = false;
	if (index_tools(searches, docs, n_docs, generation) < 0)
		return -1;
	if (limit == 0)
		return 0;
	if (cell__search_query_by(searches->tool_search, query, searches->vector, searches->dimensions, limit, &hits, &n, &fused, NULL) < 0)
		return -1;
	int count = order_of(hits, n, docs, n_docs, limit, ret_order);
	cell__search_hits_free(hits, n);
	if (searches->vector && !fused) {
		cell__search_vector_counts(searches->tool_search, &counts);
		if (counts.dimensions && counts.dimensions != searches->dimensions)
			cell__embedder_odd(searches->embedder, &searches->tools, searches->dimensions);
	}
	return count;
}

static int with_tool_search(void *arg, int (*fn)(void *fn_arg, struct cell__search *search, struct cell_error *err), void *fn_arg,
			    struct cell_error *err)
{
	/* Opened before it is first filled, and open as long as the embedder exists. */
	return fn(fn_arg, ((struct cell__searches *)arg)->tool_search, err);
}

static int with_workflow_search(void *arg, int (*fn)(void *fn_arg, struct cell__search *search, struct cell_error *err), void *fn_arg,
				struct cell_error *err)
{
	return cell__workflow_with_search(((struct cell__searches *)arg)->store, fn, fn_arg, err);
}

/* ---- findings ---- */

static void maybe_closed(struct cell__searches *searches);

static void destroy_finding(struct finding *finding)
{
	struct cell__searches *searches = finding->searches;
	CELL__LIST_REMOVE(searches->findings, finding);
	json_decref(finding->result);
	free(finding->vector);
	free(finding->query);
	free(finding);
	maybe_closed(searches);
}

/* The call is about to be answered: we know it no more. */
static struct cell__call *take_call(struct finding *finding)
{
	struct cell__call *call = cell__take_ptr(finding->call);
	if (call) {
		call->cancel = NULL;
		call->handler = NULL;
	}
	return call;
}

static void drop_finding(struct finding *finding)
{
	if (finding->waiting)
		cell__embedder_cancel(&finding->wait);
	if (finding->reading)
		cell__tools_wait_cancel(finding->tools, &finding->read);
	if (!finding->on_pool)
		destroy_finding(finding);
}

static void handle_cancel(struct cell__call *call)
{
	struct finding *finding = call->handler;
	finding->call = NULL;
	drop_finding(finding);
}

static void fail(struct finding *finding, int code, const char *type, const char *message)
{
	struct cell__call *call = take_call(finding);
	if (call)
		call->fail(call, code, type, message);
	destroy_finding(finding);
}

/* ---- the way of workflows.search ---- */

static void answer_workflows(struct finding *finding)
{
	struct cell__call *call = take_call(finding);
	json_t *result = cell__take_ptr(finding->result), *hit;
	size_t i;
	json_array_foreach(result, i, hit)
		json_object_set_new(hit, "ranking", json_string(finding->meaning.fused ? "fused" : "words"));
	destroy_finding(finding);
	if (call)
		call->answer(call, result, NULL, 0);
	else
		json_decref(result);
}

static void search_work(uv_work_t *work)
{
	struct finding *finding = work->data;
	finding->meaning = (struct cell__meaning){ .vector = finding->vector, .dimensions = finding->dimensions };
	if (cell__workflow_search_by(finding->searches->store, finding->query, finding->limit, &finding->meaning, &finding->result,
				     &finding->err) == 0)
		finding->err.code = 0;
}

static void search_workflows(struct finding *finding);

static void handle_filled(struct cell__embed_wait *wait)
{
	struct finding *finding = (struct finding *)wait;
	finding->waiting = false;
	json_decref(cell__take_ptr(finding->result));
	search_workflows(finding);
}

static void handle_searched(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct finding *finding = work->data;
	struct cell__searches *searches = finding->searches;
	const struct cell__meaning *meaning = &finding->meaning;
	finding->on_pool = false;
	if (!finding->call) {
		destroy_finding(finding);
		return;
	}
	if (finding->err.code) {
		bool wrong = finding->err.code == CELL_E_INVALID;
		fail(finding, finding->err.code, wrong ? "ValueError" : "WorkflowError", finding->err.msg);
		return;
	}
	searches->workflows.counts = meaning->counts;
	if (finding->vector && meaning->counts.dimensions && meaning->counts.dimensions != finding->dimensions)
		cell__embedder_odd(searches->embedder, &searches->workflows, finding->dimensions);
	bool fill = meaning->missing > 0 && finding->vector && !finding->filled && !searches->closing;
	finding->filled = true;
	finding->wait.done = handle_filled;
	if (fill && cell__embedder_fill(searches->embedder, &searches->workflows, &finding->wait))
		finding->waiting = true;
	else
		answer_workflows(finding);
}

static void search_workflows(struct finding *finding)
{
	finding->on_pool = true;
	finding->work.data = finding;
	uv_queue_work(cell__loop_uv(finding->searches->loop), &finding->work, search_work, handle_searched);
}

/* ---- the way of tools.search ---- */

static void rank_tools(struct finding *finding)
{
	struct cell__searches *searches = finding->searches;
	struct cell__call *call = take_call(finding);
	searches->vector = finding->vector;
	searches->dimensions = finding->dimensions;
	cell__tools_handle_read(finding->tools, &finding->view, call);
	searches->vector = NULL;
	searches->dimensions = 0;
	destroy_finding(finding);
}

static void handle_tools_filled(struct cell__embed_wait *wait)
{
	struct finding *finding = (struct finding *)wait;
	finding->waiting = false;
	rank_tools(finding);
}

static void fill_tools(struct finding *finding)
{
	struct cell__searches *searches = finding->searches;
	const struct cell__vector_counts *counts = &searches->tools.counts;
	cell__tools_prepare_search(finding->tools);
	bool fill = finding->vector && searches->tool_search &&
		    (searches->tools_new || counts->vectors + counts->refused < counts->documents);
	finding->wait.done = handle_tools_filled;
	if (fill && cell__embedder_fill(searches->embedder, &searches->tools, &finding->wait)) {
		searches->tools_new = false;
		finding->waiting = true;
	} else {
		rank_tools(finding);
	}
}

static void handle_tools_read(struct cell__tools_wait *wait)
{
	struct finding *finding = (struct finding *)((char *)wait - offsetof(struct finding, read));
	finding->reading = false;
	fill_tools(finding);
}

static void read_tools(struct finding *finding)
{
	finding->read.ready = handle_tools_read;
	finding->reading = cell__tools_wait(finding->tools, &finding->read);
	if (!finding->reading)
		fill_tools(finding);
}

/* ---- both ---- */

static void take_vector(struct finding *finding)
{
	const struct cell__embed_wait *wait = &finding->wait;
	/* Without memory for it: by words. */
	if (wait->vector && (finding->vector = cell__alloc(wait->dimensions, sizeof *wait->vector))) {
		memcpy(finding->vector, wait->vector, wait->dimensions * sizeof *wait->vector);
		finding->dimensions = wait->dimensions;
	}
	if (finding->tools)
		read_tools(finding);
	else
		search_workflows(finding);
}

static void handle_vector(struct cell__embed_wait *wait)
{
	struct finding *finding = (struct finding *)wait;
	finding->waiting = false;
	take_vector(finding);
}

static void start_finding(struct cell__searches *searches, struct cell__tools *tools, const struct cell__tools_view *view,
			  struct cell__call *call, const char *query)
{
	json_int_t limit = json_integer_value(json_object_get(call->args, "limit"));
	struct finding *finding = cell__alloc(1, sizeof *finding);
	if (!finding || !(finding->query = cell__strdup(query))) {
		free(finding);
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	finding->searches = searches;
	finding->call = call;
	finding->tools = tools;
	finding->view = *view;
	finding->limit = limit <= 0 ? DEFAULT_LIMIT : limit < (json_int_t)CELL_LIMIT_SEARCH ? (size_t)limit : CELL_LIMIT_SEARCH;
	CELL__LIST_PUSH(searches->findings, finding);
	call->handler = finding;
	call->cancel = handle_cancel;
	finding->wait.done = handle_vector;
	finding->waiting = cell__embedder_query(searches->embedder, query, &finding->wait);
	if (!finding->waiting)
		take_vector(finding);
}

/* ---- how it goes ---- */

static json_t *corpus_status(const struct cell__corpus *corpus)
{
	const struct cell__vector_counts *counts = &corpus->counts;
	return json_pack("{s:I, s:I, s:I, s:I}", "documents", (json_int_t)counts->documents, "embedded", (json_int_t)counts->vectors,
			 "refused", (json_int_t)counts->refused, "dimensions", (json_int_t)counts->dimensions);
}

static void answer_status(struct cell__searches *searches, struct cell__call *call)
{
	json_t *endpoint = searches->embedder ? cell__embedder_status(searches->embedder) : json_null();
	if (searches->embedder && endpoint) {
		json_object_set_new(endpoint, "workflows", corpus_status(&searches->workflows));
		json_object_set_new(endpoint, "tools", corpus_status(&searches->tools));
	}
	json_t *status = endpoint ? json_pack("{s:o}", "embeddings", endpoint) : NULL;
	if (status)
		call->answer(call, status, NULL, 0);
	else
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
}

bool cell__searches_takes(const struct cell__searches *searches, enum cell__op op)
{
	return op == CELL__OP_SEARCH_STATUS ||
	       (searches->embedder && (op == CELL__OP_TOOLS_SEARCH || (searches->store && op == CELL__OP_WORKFLOWS_SEARCH)));
}

void cell__searches_handle(struct cell__searches *searches, struct cell__tools *tools, const struct cell__tools_view *view,
			   struct cell__call *call)
{
	const char *text = json_string_value(json_object_get(call->args, "query"));
	bool for_tools = call->operation->id == CELL__OP_TOOLS_SEARCH;
	if (call->operation->id == CELL__OP_SEARCH_STATUS)
		answer_status(searches, call);
	else
		start_finding(searches, for_tools ? tools : NULL, view, call, text ? text : "");
}

/* ---- create and close ---- */

static void free_searches(struct cell__searches *searches)
{
	cell__search_close(searches->tool_search);
	free(searches->model);
	free(searches->tool_vectors);
	free(searches);
}

static int add_embedder(struct cell__searches *searches, const struct cell__embedder_options *opts, const char *tool_vectors,
			struct cell_error *err)
{
	if (!opts->url)
		return 0;
	searches->model = cell__strdup(opts->model ? opts->model : "");
	searches->tool_vectors = tool_vectors ? cell__strdup(tool_vectors) : NULL;
	if (!searches->model || (tool_vectors && !searches->tool_vectors))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (searches->store && cell__store_use_vectors(searches->store, searches->model, err) < 0)
		return -1;
	return cell__embedder_create(opts, &searches->embedder, err);
}

int cell__searches_create(const struct cell__searches_options *opts, struct cell__searches **ret_searches, struct cell_error *err)
{
	struct cell__searches *searches = cell__alloc(1, sizeof *searches);
	if (!searches)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	searches->loop = opts->embeddings.loop;
	searches->store = opts->store;
	searches->workflows = (struct cell__corpus){ .name = "workflows", .with = with_workflow_search, .arg = searches };
	searches->tools = (struct cell__corpus){ .name = "tools", .with = with_tool_search, .arg = searches };
	if (add_embedder(searches, &opts->embeddings, opts->tool_vectors, err) < 0) {
		free_searches(searches);
		return -1;
	}
	searches->embedder_open = searches->embedder != NULL;
	uv_idle_init(cell__loop_uv(searches->loop), &searches->idle);
	searches->idle.data = searches;
	*ret_searches = searches;
	return 0;
}

static void handle_idle_closed(uv_handle_t *idle)
{
	struct cell__searches *searches = idle->data;
	void (*closed)(void *) = searches->closed;
	void *arg = searches->closed_arg;
	free_searches(searches);
	closed(arg);
}

static void maybe_closed(struct cell__searches *searches)
{
	if (searches->closing && !searches->embedder_open && !searches->findings && !uv_is_closing((uv_handle_t *)&searches->idle))
		uv_close((uv_handle_t *)&searches->idle, handle_idle_closed);
}

static void handle_embedder_closed(void *arg)
{
	struct cell__searches *searches = arg;
	searches->embedder_open = false;
	maybe_closed(searches);
}

void cell__searches_close(struct cell__searches *searches, void (*done)(void *arg), void *arg)
{
	searches->closing = true;
	searches->closed = done;
	searches->closed_arg = arg;
	for (struct finding *finding = searches->findings, *next; finding; finding = next) {
		next = finding->next;
		struct cell__call *call = take_call(finding);
		if (call)
			call->fail(call, CELL_E_CLOSED, "RuntimeError", "the space is closed");
		drop_finding(finding);
	}
	if (searches->embedder)
		cell__embedder_close(cell__take_ptr(searches->embedder), handle_embedder_closed, searches);
	maybe_closed(searches);
}
