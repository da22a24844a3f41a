#define _GNU_SOURCE
#include "session/seek.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define TOOL_VECTORS_FILE "tool-vectors.sqlite"
#define DEFAULT_LIMIT 5

/* A search under way. */
struct finding {
	struct cell__embed_wait wait; /* first: what is done is a finding */
	uv_work_t work;
	struct cell__seeker *seeker;
	struct cell__call *call;      /* NULL: nobody waits any more */
	bool waiting, on_pool;
	bool filled;                  /* new documents were waited for */
	float *vector;                /* of the query; NULL: none */
	size_t dimensions;
	/* tools */
	struct cell__tools *tools;    /* NULL: workflows */
	struct cell__tools_view view;
	/* workflows */
	char *query;
	size_t limit;
	struct cell__meaning meaning;
	json_t *result;
	struct cell_error err;
	struct finding *prev, *next;
};

struct cell__seeker {
	struct cell__loop *loop;
	struct cell__store *store;
	struct cell__embedder *embedder; /* NULL: no endpoint */
	char *model;
	struct finding *findings;
	struct cell__corpus workflows, tools;
	struct cell__search *tool_search;
	uint64_t tool_generation;
	bool tools_new;                  /* some may have no vector */
	const float *vector;             /* while tools are ranked: of the query */
	size_t dimensions;
	uv_idle_t idle; /* so that closing always ends in a later turn */
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

static int open_tool_search(struct cell__seeker *seeker)
{
	char path[PATH_MAX];
	if (cell__search_open(NULL, &seeker->tool_search, NULL) < 0)
		return -1;
	if (!seeker->embedder)
		return 0;
	bool cached = seeker->store && cell__store_cache_path(seeker->store, TOOL_VECTORS_FILE, path) == 0;
	if (cell__search_add_vectors(seeker->tool_search, cached ? path : NULL, seeker->model, NULL) == 0)
		return 0;
	cell__search_close(cell__take_ptr(seeker->tool_search));
	return -1;
}

static int index_tools(struct cell__seeker *seeker, const struct cell__rank_doc *docs, size_t n_docs,
		       uint64_t generation)
{
	if (seeker->tool_search && seeker->tool_generation == generation)
		return 0;
	if (!seeker->tool_search && open_tool_search(seeker) < 0)
		return -1;
	CELL_AUTO_FREE struct cell__search_doc *all = cell__alloc(n_docs, sizeof *all);
	for (size_t i = 0; all && i < n_docs; i++)
		all[i] = (struct cell__search_doc){ .id = docs[i].name, .name = docs[i].name,
						    .description = docs[i].description, .extra = docs[i].text };
	if (!all || replace_tools(seeker->tool_search, all, n_docs) < 0)
		return -1;
	seeker->tool_generation = generation;
	seeker->tools_new = true;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct cell__rank_doc *const *)a)->name, (*(const struct cell__rank_doc *const *)b)->name);
}

/* Hits are names; the order is in places of docs. */
static int order_of(const struct cell__search_hit *hits, size_t n, const struct cell__rank_doc *docs, size_t n_docs,
		    size_t limit, size_t *ret_order)
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

int cell__seeker_rank_tools(void *arg, const char *query, const struct cell__rank_doc *docs, size_t n_docs,
			    uint64_t generation, size_t limit, size_t *ret_order)
{
	struct cell__seeker *seeker = arg;
	struct cell__search_hit *hits = NULL;
	struct cell__vector_counts counts;
	size_t n = 0;
	bool fused = false;
	if (index_tools(seeker, docs, n_docs, generation) < 0)
		return -1;
	if (limit == 0)
		return 0;
	if (cell__search_query_by(seeker->tool_search, query, seeker->vector, seeker->dimensions, limit, &hits, &n, &fused,
				  NULL) < 0)
		return -1;
	int count = order_of(hits, n, docs, n_docs, limit, ret_order);
	cell__search_hits_free(hits, n);
	if (seeker->vector && !fused) {
		cell__search_vector_counts(seeker->tool_search, &counts);
		if (counts.dimensions && counts.dimensions != seeker->dimensions)
			cell__embedder_odd(seeker->embedder, &seeker->tools, seeker->dimensions);
	}
	return count;
}

static int with_tool_search(void *arg, int (*fn)(void *fn_arg, struct cell__search *search, struct cell_error *err),
			    void *fn_arg, struct cell_error *err)
{
	/* Opened before anybody fills it, and there as long as the embedder is. */
	return fn(fn_arg, ((struct cell__seeker *)arg)->tool_search, err);
}

static int with_workflow_search(void *arg, int (*fn)(void *fn_arg, struct cell__search *search, struct cell_error *err),
				void *fn_arg, struct cell_error *err)
{
	return cell__workflow_with_search(((struct cell__seeker *)arg)->store, fn, fn_arg, err);
}

/* ---- findings ---- */

static void maybe_closed(struct cell__seeker *seeker);

static void destroy_finding(struct finding *finding)
{
	struct cell__seeker *seeker = finding->seeker;
	if (finding->prev)
		finding->prev->next = finding->next;
	else
		seeker->findings = finding->next;
	if (finding->next)
		finding->next->prev = finding->prev;
	json_decref(finding->result);
	free(finding->vector);
	free(finding->query);
	free(finding);
	maybe_closed(seeker);
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
	if (cell__workflow_search_by(finding->seeker->store, finding->query, finding->limit, &finding->meaning,
				     &finding->result, &finding->err) == 0)
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
	struct cell__seeker *seeker = finding->seeker;
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
	seeker->workflows.counts = meaning->counts;
	if (finding->vector && meaning->counts.dimensions && meaning->counts.dimensions != finding->dimensions)
		cell__embedder_odd(seeker->embedder, &seeker->workflows, finding->dimensions);
	bool fill = meaning->missing > 0 && finding->vector && !finding->filled && !seeker->closing;
	finding->filled = true;
	finding->wait.done = handle_filled;
	if (fill && cell__embedder_fill(seeker->embedder, &seeker->workflows, &finding->wait))
		finding->waiting = true;
	else
		answer_workflows(finding);
}

static void search_workflows(struct finding *finding)
{
	finding->on_pool = true;
	finding->work.data = finding;
	uv_queue_work(&finding->seeker->loop->uv, &finding->work, search_work, handle_searched);
}

/* ---- the way of tools.search ---- */

static void rank_tools(struct finding *finding)
{
	struct cell__seeker *seeker = finding->seeker;
	struct cell__call *call = take_call(finding);
	seeker->vector = finding->vector;
	seeker->dimensions = finding->dimensions;
	cell__tools_handle(finding->tools, &finding->view, call);
	seeker->vector = NULL;
	seeker->dimensions = 0;
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
	struct cell__seeker *seeker = finding->seeker;
	const struct cell__vector_counts *counts = &seeker->tools.counts;
	cell__tools_prepare_search(finding->tools);
	bool fill = finding->vector && seeker->tool_search &&
		    (seeker->tools_new || counts->vectors + counts->refused < counts->documents);
	finding->wait.done = handle_tools_filled;
	if (fill && cell__embedder_fill(seeker->embedder, &seeker->tools, &finding->wait)) {
		seeker->tools_new = false;
		finding->waiting = true;
	} else {
		rank_tools(finding);
	}
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
		fill_tools(finding);
	else
		search_workflows(finding);
}

static void handle_vector(struct cell__embed_wait *wait)
{
	struct finding *finding = (struct finding *)wait;
	finding->waiting = false;
	take_vector(finding);
}

static void start_finding(struct cell__seeker *seeker, struct cell__tools *tools, const struct cell__tools_view *view,
			  struct cell__call *call, const char *query)
{
	json_int_t limit = json_integer_value(json_object_get(call->args, "limit"));
	struct finding *finding = cell__alloc(1, sizeof *finding);
	if (!finding || !(finding->query = cell__strdup(query))) {
		free(finding);
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	finding->seeker = seeker;
	finding->call = call;
	finding->tools = tools;
	finding->view = *view;
	finding->limit = limit <= 0 ? DEFAULT_LIMIT : limit < (json_int_t)CELL__SEARCH_LIMIT ? (size_t)limit : CELL__SEARCH_LIMIT;
	finding->next = seeker->findings;
	if (finding->next)
		finding->next->prev = finding;
	seeker->findings = finding;
	call->handler = finding;
	call->cancel = handle_cancel;
	finding->wait.done = handle_vector;
	finding->waiting = cell__embedder_query(seeker->embedder, query, &finding->wait);
	if (!finding->waiting)
		take_vector(finding);
}

/* ---- how it goes ---- */

static json_t *corpus_status(const struct cell__corpus *corpus)
{
	const struct cell__vector_counts *counts = &corpus->counts;
	return json_pack("{s:I, s:I, s:I, s:I}", "documents", (json_int_t)counts->documents, "embedded",
			 (json_int_t)counts->vectors, "refused", (json_int_t)counts->refused, "dimensions",
			 (json_int_t)counts->dimensions);
}

static void answer_status(struct cell__seeker *seeker, struct cell__call *call)
{
	json_t *endpoint = seeker->embedder ? cell__embedder_status(seeker->embedder) : json_null();
	if (seeker->embedder && endpoint) {
		json_object_set_new(endpoint, "workflows", corpus_status(&seeker->workflows));
		json_object_set_new(endpoint, "tools", corpus_status(&seeker->tools));
	}
	json_t *status = endpoint ? json_pack("{s:o}", "embeddings", endpoint) : NULL;
	if (status)
		call->answer(call, status, NULL, 0);
	else
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
}

bool cell__seeker_takes(const struct cell__seeker *seeker, enum cell__op op)
{
	return op == CELL__OP_SEARCH_STATUS ||
	       (seeker->embedder && (op == CELL__OP_TOOLS_SEARCH || (seeker->store && op == CELL__OP_WORKFLOWS_SEARCH)));
}

void cell__seeker_handle(struct cell__seeker *seeker, struct cell__tools *tools, const struct cell__tools_view *view,
			 struct cell__call *call)
{
	const char *text = json_string_value(json_object_get(call->args, "query"));
	bool for_tools = call->operation->id == CELL__OP_TOOLS_SEARCH;
	if (call->operation->id == CELL__OP_SEARCH_STATUS)
		answer_status(seeker, call);
	else
		start_finding(seeker, for_tools ? tools : NULL, view, call, text ? text : "");
}

/* ---- create and close ---- */

static void free_seeker(struct cell__seeker *seeker)
{
	cell__search_close(seeker->tool_search);
	free(seeker->model);
	free(seeker);
}

static int add_embedder(struct cell__seeker *seeker, const struct cell__embedder_options *opts, struct cell_error *err)
{
	if (!opts->url)
		return 0;
	seeker->model = cell__strdup(opts->model ? opts->model : "");
	if (!seeker->model)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (seeker->store && cell__store_use_vectors(seeker->store, seeker->model, err) < 0)
		return -1;
	return cell__embedder_create(opts, &seeker->embedder, err);
}

int cell__seeker_create(const struct cell__seeker_options *opts, struct cell__seeker **ret_seeker,
			struct cell_error *err)
{
	struct cell__seeker *seeker = cell__alloc(1, sizeof *seeker);
	if (!seeker)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	seeker->loop = opts->embeddings.loop;
	seeker->store = opts->store;
	seeker->workflows = (struct cell__corpus){ .name = "workflows", .with = with_workflow_search, .arg = seeker };
	seeker->tools = (struct cell__corpus){ .name = "tools", .with = with_tool_search, .arg = seeker };
	if (add_embedder(seeker, &opts->embeddings, err) < 0) {
		free_seeker(seeker);
		return -1;
	}
	seeker->embedder_open = seeker->embedder != NULL;
	uv_idle_init(&seeker->loop->uv, &seeker->idle);
	seeker->idle.data = seeker;
	*ret_seeker = seeker;
	return 0;
}

static void handle_idle_closed(uv_handle_t *idle)
{
	struct cell__seeker *seeker = idle->data;
	void (*closed)(void *) = seeker->closed;
	void *arg = seeker->closed_arg;
	free_seeker(seeker);
	closed(arg);
}

static void maybe_closed(struct cell__seeker *seeker)
{
	if (seeker->closing && !seeker->embedder_open && !seeker->findings && !uv_is_closing((uv_handle_t *)&seeker->idle))
		uv_close((uv_handle_t *)&seeker->idle, handle_idle_closed);
}

static void handle_embedder_closed(void *arg)
{
	struct cell__seeker *seeker = arg;
	seeker->embedder_open = false;
	maybe_closed(seeker);
}

void cell__seeker_close(struct cell__seeker *seeker, void (*done)(void *arg), void *arg)
{
	seeker->closing = true;
	seeker->closed = done;
	seeker->closed_arg = arg;
	for (struct finding *finding = seeker->findings, *next; finding; finding = next) {
		next = finding->next;
		struct cell__call *call = take_call(finding);
		if (call)
			call->fail(call, CELL_E_CLOSED, "RuntimeError", "the space is closed");
		drop_finding(finding);
	}
	if (seeker->embedder)
		cell__embedder_close(cell__take_ptr(seeker->embedder), handle_embedder_closed, seeker);
	maybe_closed(seeker);
}
