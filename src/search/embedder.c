/*
 * Theory of operation
 *
 *     query ──▶ kept? ──▶ ask: a request, shared by all waiters with the same query ──▶ kept, waits done
 *                           └─ overdue: waits done without a vector; the request continues, as the probe that ends `slow`
 *
 *     fill ──▶ filling: pool: keep received vectors, find missing ones ──batch──▶ request ──vectors──▶ pool ...
 *                         └─ none missing, failure: over, waits done
 *
 * One timer serves all deadlines.  Closing drops requests and waits for the pool.
 */
#define _GNU_SOURCE
#include "search/embedder.h"

#include <string.h>

#include "search/embed_request.h"
#include "wire/embeddings.h"

/* A query's vector under way. */
struct ask {
	struct cell__embed_request *request;
	char *text;
	struct cell__embed_wait *waiting;
	int64_t overdue_us;
	bool overdue;
	struct ask *next;
};

struct kept {
	char *text;
	float *vector;
	size_t dimensions;
	uint64_t used;
};

/* A corpus being filled: in turn on the pool and at the endpoint. */
struct cell__filling {
	uv_work_t work;
	struct cell__embedder *embedder;
	struct cell__corpus *corpus;
	struct cell__embed_request *request;
	bool on_pool, stop;
	bool many;         /* so many were missing that searches do not wait for them */
	bool again;        /* a caller came that may know of new documents */
	/* for the pool */
	size_t max, text_bytes, relearn;
	float *vectors;                  /* of the batch; NULL: none received */
	size_t dimensions;
	bool refuse;       /* the batch */
	bool forgive;                    /* all that were refused */
	/* from the pool */
	struct cell__vector_batch batch; /* the next one */
	size_t missing;
	bool any;   /* something was put */
	bool odd;
	struct cell__vector_counts counts;
	struct cell_error err, warning;
	struct cell__filling *next;
};

struct cell__embedder {
	struct cell__embedder_options opts;
	struct cell__embed_endpoint endpoint;
	uv_timer_t timer;
	struct ask *asks;
	unsigned n_asks;
	struct cell__filling *fillings;
	struct kept kept[CELL__EMBED_CACHED];
	uint64_t uses;
	bool works;           /* the last request that ended succeeded */
	int64_t rest_ms;      /* 0: not resting */
	int64_t rest_until_us;
	char error[sizeof((struct cell_error *)0)->msg]; /* "": none since the last success */
	bool closing;
	int handles;
	void (*closed)(void *arg);
	void *closed_arg;
};

#define LOG(embedder, level, ...)                                                           \
	do {                                                                                \
		if ((embedder)->opts.log)                                                   \
			(embedder)->opts.log((embedder)->opts.log_arg, level, __VA_ARGS__); \
	} while (0)

/* ---- how the endpoint does ---- */

static bool is_resting(const struct cell__embedder *embedder)
{
	return embedder->rest_ms > 0 && cell__now_us() < embedder->rest_until_us;
}

static bool is_slow(const struct cell__embedder *embedder)
{
	for (const struct ask *ask = embedder->asks; ask; ask = ask->next)
		if (ask->overdue)
			return true;
	return false;
}

static void note_success(struct cell__embedder *embedder)
{
	if (embedder->error[0])
		LOG(embedder, CELL_LOG_INFO, "embeddings: the endpoint answers again");
	embedder->works = true;
	embedder->rest_ms = 0;
	embedder->error[0] = '\0';
}

static void note_failure(struct cell__embedder *embedder, const char *why, int64_t retry_ms)
{
	/* Several requests may fail at once; that is one failure. */
	if (!is_resting(embedder)) {
		embedder->rest_ms = embedder->rest_ms ? embedder->rest_ms * 2 : embedder->opts.rest_ms;
		if (embedder->rest_ms > embedder->opts.rest_max_ms)
			embedder->rest_ms = embedder->opts.rest_max_ms;
	}
	int64_t rest_ms = retry_ms > embedder->rest_ms ? retry_ms : embedder->rest_ms;
	embedder->rest_until_us = cell__now_us() + rest_ms * 1000;
	embedder->works = false;
	strncpy(embedder->error, why, sizeof embedder->error - 1);
	LOG(embedder, CELL_LOG_WARN, "embeddings: %s; searching by words only for %g s", why, (double)rest_ms / 1000);
}

json_t *cell__embedder_status(const struct cell__embedder *embedder)
{
	int64_t left_us = embedder->rest_until_us - cell__now_us();
	bool resting = is_resting(embedder), slow = is_slow(embedder);
	const char *error = embedder->error[0] ? embedder->error : slow ? "no answer yet" : NULL;
	return json_pack("{s:s, s:s, s:s?, s:I}", "model", embedder->endpoint.model, "state",
			 resting              ? "resting"
			 : slow               ? "slow"
			 : embedder->error[0] ? "failed"
					      : "ok",
			 "error", error, "retry_ms", (json_int_t)(resting ? (left_us + 999) / 1000 : 0));
}

/* ---- waiting ---- */

static void add_wait(struct cell__embedder *embedder, struct cell__embed_wait **list, struct cell__embed_wait *wait)
{
	wait->deadline_us = cell__now_us() + embedder->opts.wait_ms * 1000;
	wait->list = list;
	wait->next = *list;
	*list = wait;
}

void cell__embedder_cancel(struct cell__embed_wait *wait)
{
	for (struct cell__embed_wait **at = wait->list; at && *at; at = &(*at)->next)
		if (*at == wait) {
			*at = wait->next;
			break;
		}
	wait->list = NULL;
}

/* done() may do anything, also add to the list again. */
static void finish_waits(struct cell__embed_wait **list, const float *vector, size_t dimensions)
{
	struct cell__embed_wait *waits = NULL;
	while (*list) { /* in the order of asking */
		struct cell__embed_wait *wait = *list;
		*list = wait->next;
		wait->next = waits;
		waits = wait;
		wait->list = NULL;
	}
	while (waits) {
		struct cell__embed_wait *wait = waits;
		waits = wait->next;
		wait->vector = vector;
		wait->dimensions = dimensions;
		wait->done(wait);
	}
}

static void set_timer(struct cell__embedder *embedder);

/* Each of these ends one overdue wait, if there is one: its callback may change the lists. */
static bool end_overdue_ask(struct cell__embedder *embedder, int64_t now_us)
{
	for (struct ask *ask = embedder->asks; ask; ask = ask->next) {
		if (ask->overdue || ask->overdue_us > now_us)
			continue;
		ask->overdue = true;
		LOG(embedder, CELL_LOG_WARN, "embeddings: no answer within %g s; searching by words only in the meantime",
		    (double)embedder->opts.wait_ms / 1000);
		finish_waits(&ask->waiting, NULL, 0);
		return true;
	}
	return false;
}

static bool end_overdue_filling(struct cell__embedder *embedder, int64_t now_us)
{
	for (struct cell__filling *filling = embedder->fillings; filling; filling = filling->next)
		for (struct cell__embed_wait *wait = filling->corpus->waiting; wait; wait = wait->next)
			if (wait->deadline_us <= now_us) {
				cell__embedder_cancel(wait);
				wait->done(wait);
				return true;
			}
	return false;
}

static void handle_timer(uv_timer_t *timer)
{
	struct cell__embedder *embedder = timer->data;
	int64_t now_us = cell__now_us();
	while (end_overdue_ask(embedder, now_us) || end_overdue_filling(embedder, now_us))
		;
	set_timer(embedder);
}

static void set_timer(struct cell__embedder *embedder)
{
	int64_t next_us = INT64_MAX;
	if (embedder->closing)
		return;
	for (const struct ask *ask = embedder->asks; ask; ask = ask->next)
		if (!ask->overdue && ask->overdue_us < next_us)
			next_us = ask->overdue_us;
	for (const struct cell__filling *filling = embedder->fillings; filling; filling = filling->next)
		for (const struct cell__embed_wait *wait = filling->corpus->waiting; wait; wait = wait->next)
			if (wait->deadline_us < next_us)
				next_us = wait->deadline_us;
	if (next_us == INT64_MAX) {
		uv_timer_stop(&embedder->timer);
		return;
	}
	int64_t left_us = next_us - cell__now_us();
	uv_update_time(embedder->timer.loop);
	uv_timer_start(&embedder->timer, handle_timer, left_us > 0 ? (uint64_t)(left_us + 999) / 1000 : 0, 0);
}

/* ---- queries ---- */

static struct kept *find_kept(struct cell__embedder *embedder, const char *text)
{
	for (size_t i = 0; i < CELL__EMBED_CACHED; i++)
		if (embedder->kept[i].text && strcmp(embedder->kept[i].text, text) == 0)
			return &embedder->kept[i];
	return NULL;
}

static void forget(struct kept *kept)
{
	free(kept->text);
	free(kept->vector);
	*kept = (struct kept){ 0 };
}

/* Takes both over, and replaces the least recently used entry. */
static void keep(struct cell__embedder *embedder, char *text, float *vector, size_t dimensions)
{
	struct kept *place = &embedder->kept[0];
	for (size_t i = 1; i < CELL__EMBED_CACHED; i++)
		if (embedder->kept[i].used < place->used)
			place = &embedder->kept[i];
	forget(place);
	*place = (struct kept){ text, vector, dimensions, ++embedder->uses };
}

static void maybe_closed(struct cell__embedder *embedder);

static void destroy_ask(struct cell__embedder *embedder, struct ask *ask)
{
	for (struct ask **at = &embedder->asks; *at; at = &(*at)->next)
		if (*at == ask) {
			*at = ask->next;
			embedder->n_asks--;
			break;
		}
	cell__embed_request_destroy(ask->request);
	free(ask->text);
	free(ask);
}

static void handle_query_done(struct cell__embed_request *request)
{
	struct ask *ask = request->owner;
	struct cell__embedder *embedder = (struct cell__embedder *)request->endpoint->owner;
	struct cell__embed_wait *waiting = ask->waiting;
	for (struct cell__embed_wait *wait = waiting; wait; wait = wait->next)
		wait->list = &waiting;
	float *vector = cell__take_ptr(request->vectors);
	size_t dimensions = request->dimensions;
	ask->waiting = NULL;
	if (vector) {
		note_success(embedder);
		keep(embedder, cell__take_ptr(ask->text), vector, dimensions);
	} else {
		note_failure(embedder, request->err.msg, request->retry_ms);
	}
	destroy_ask(embedder, ask);
	finish_waits(&waiting, vector, dimensions);
	set_timer(embedder);
}

/* Sends it; NULL: it cannot be, which was noted. */
static struct ask *start_ask(struct cell__embedder *embedder, const char *text)
{
	struct cell_error err = { 0 };
	struct ask *ask = cell__alloc(1, sizeof *ask);
	if (ask) {
		ask->text = cell__strdup(text);
		ask->request = ask->text ? cell__embed_request_create(&embedder->endpoint, &text, 1) : NULL;
	}
	int rc = -1;
	if (!ask || !ask->request) {
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory");
	} else {
		ask->request->done = handle_query_done;
		ask->request->owner = ask;
		ask->request->is_query = true;
		rc = cell__embed_request_start(ask->request, &err);
	}
	if (rc < 0) {
		note_failure(embedder, err.msg, 0);
		if (ask)
			destroy_ask(embedder, ask);
		return NULL;
	}
	ask->overdue_us = cell__now_us() + embedder->opts.wait_ms * 1000;
	ask->next = embedder->asks;
	embedder->asks = ask;
	embedder->n_asks++;
	return ask;
}

bool cell__embedder_query(struct cell__embedder *embedder, const char *text, struct cell__embed_wait *wait)
{
	struct kept *kept = find_kept(embedder, text);
	struct ask *ask = embedder->asks;
	wait->vector = NULL;
	wait->dimensions = 0;
	wait->list = NULL;
	if (kept) {
		kept->used = ++embedder->uses;
		wait->vector = kept->vector;
		wait->dimensions = kept->dimensions;
		return false;
	}
	/* A query that the search itself will refuse, or that cannot match, is not worth a request. */
	if (!text[0] || strlen(text) > CELL__SEARCH_QUERY_BYTES || embedder->closing || is_resting(embedder) || is_slow(embedder))
		return false;
	while (ask && strcmp(ask->text, text) != 0)
		ask = ask->next;
	if (!ask && (embedder->n_asks >= CELL__EMBED_QUERIES || !(ask = start_ask(embedder, text))))
		return false;
	add_wait(embedder, &ask->waiting, wait);
	set_timer(embedder);
	return true;
}

/* ---- documents ---- */

static void end_filling(struct cell__filling *filling)
{
	struct cell__embedder *embedder = filling->embedder;
	struct cell__corpus *corpus = filling->corpus;
	for (struct cell__filling **at = &embedder->fillings; *at; at = &(*at)->next)
		if (*at == filling) {
			*at = filling->next;
			break;
		}
	corpus->filling = NULL;
	cell__embed_request_destroy(filling->request);
	cell__vector_batch_finish(&filling->batch);
	free(filling->vectors);
	free(filling);
	if (embedder->closing)
		maybe_closed(embedder);
	else
		finish_waits(&corpus->waiting, NULL, 0);
}

/* On the pool: keeps the received vectors, and finds the next batch. */
static int do_fill(void *arg, struct cell__search *search, struct cell_error *err)
{
	struct cell__filling *filling = arg;
	if (filling->relearn)
		cell__search_set_dimensions(search, filling->relearn);
	if (filling->refuse)
		cell__search_refuse_vectors(search, &filling->batch);
	if (filling->forgive)
		cell__search_refuse_vectors(search, NULL);
	if (filling->vectors) {
		struct cell_error why = { 0 };
		if (cell__search_put_vectors(search, &filling->batch, filling->vectors, filling->dimensions, &why) == 0) {
			filling->any = true;
		} else if (why.code == CELL_E_IO) {
			filling->warning = why; /* they are in memory */
		} else {
			filling->odd = why.code == CELL_E_PROTOCOL;
			*err = why;
			return -1;
		}
	}
	cell__vector_batch_finish(&filling->batch);
	if (cell__search_collect(search, filling->max, filling->text_bytes, &filling->batch, &filling->missing, err) < 0)
		return -1;
	cell__search_vector_counts(search, &filling->counts);
	if (filling->batch.n == 0 && filling->any)
		(void)cell__search_tidy_vectors(search, &filling->warning);
	return 0;
}

static void fill_work(uv_work_t *work)
{
	struct cell__filling *filling = work->data;
	filling->err = filling->warning = (struct cell_error){ 0 };
	filling->odd = false;
	if (filling->corpus->with(filling->corpus->arg, do_fill, filling, &filling->err) == 0)
		filling->err.code = 0;
}

static void handle_filled(uv_work_t *work, int status);

static void queue_filling(struct cell__filling *filling)
{
	struct cell__corpus *corpus = filling->corpus;
	filling->max = corpus->batch;
	filling->text_bytes = corpus->text_bytes;
	filling->relearn = corpus->relearn;
	corpus->relearn = 0;
	filling->forgive = corpus->forgive;
	corpus->forgive = false;
	filling->on_pool = true;
	filling->work.data = filling;
	uv_queue_work(cell__loop_uv(filling->embedder->opts.loop), &filling->work, fill_work, handle_filled);
}

/* The documents' vectors have other dimensions. Once counts as a failure; repeatedly, as another model. */
static void note_odd(struct cell__embedder *embedder, struct cell__corpus *corpus, size_t dimensions, const char *why)
{
	for (size_t i = 0; i < CELL__EMBED_CACHED; i++)
		forget(&embedder->kept[i]);
	corpus->odd_times = corpus->odd == dimensions ? corpus->odd_times + 1 : 1;
	corpus->odd = dimensions;
	if (corpus->odd_times >= CELL__EMBED_ODD_TIMES) {
		LOG(embedder, CELL_LOG_WARN, "embeddings: the model's vectors now have %zu dimensions; embedding all %s again", dimensions,
		    corpus->name);
		corpus->odd_times = 0;
		corpus->relearn = dimensions;
	} else {
		note_failure(embedder, why, 0);
	}
}

/*
 * The endpoint works, but refuses these texts. Fewer at once may succeed, or shorter ones. A text that is refused alone is left out. False:
 * that happened too often, so the texts are not the cause.
 */
static bool shrink(struct cell__filling *filling)
{
	struct cell__corpus *corpus = filling->corpus;
	if (!filling->embedder->works)
		return false;
	if (filling->batch.n > 1) {
		corpus->batch = filling->batch.n / 2;
	} else if (corpus->text_bytes > CELL__EMBED_TEXT_MIN) {
		corpus->text_bytes /= 2;
	} else if (++corpus->refusals < CELL__EMBED_REFUSALS) {
		LOG(filling->embedder, CELL_LOG_WARN, "embeddings: %s '%.100s' is skipped: %s", corpus->name, filling->batch.list[0].id,
		    filling->request->err.msg);
		/* It was not the size. */
		corpus->batch = CELL__EMBED_BATCH;
		corpus->text_bytes = CELL__SEARCH_TEXT_BYTES;
		filling->refuse = true;
	} else {
		corpus->forgive = true;
		return false;
	}
	return true;
}

static void handle_batch_done(struct cell__embed_request *request)
{
	struct cell__filling *filling = request->owner;
	struct cell__embedder *embedder = filling->embedder;
	bool go_on = true;
	filling->refuse = false;
	filling->vectors = cell__take_ptr(request->vectors);
	filling->dimensions = request->dimensions;
	if (filling->vectors) {
		note_success(embedder);
		filling->corpus->refusals = 0;
	} else if (!request->refused || !shrink(filling)) {
		note_failure(embedder, request->err.msg, request->retry_ms);
		filling->corpus->refusals = 0;
		go_on = false;
	}
	cell__embed_request_destroy(cell__take_ptr(filling->request));
	if (go_on && !filling->stop)
		queue_filling(filling);
	else
		end_filling(filling);
	set_timer(embedder);
}

static int send_batch(struct cell__filling *filling, struct cell_error *err)
{
	const char *texts[CELL__EMBED_BATCH];
	for (size_t i = 0; i < filling->batch.n; i++)
		texts[i] = filling->batch.list[i].text;
	filling->request = cell__embed_request_create(&filling->embedder->endpoint, texts, filling->batch.n);
	if (!filling->request)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	filling->request->done = handle_batch_done;
	filling->request->owner = filling;
	return cell__embed_request_start(filling->request, err);
}

static void handle_filled(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct cell__filling *filling = work->data;
	struct cell__embedder *embedder = filling->embedder;
	struct cell__corpus *corpus = filling->corpus;
	struct cell_error err = filling->err;
	filling->on_pool = false;
	filling->many = filling->missing > CELL__EMBED_BATCH;
	free(cell__take_ptr(filling->vectors));
	if (filling->warning.code)
		LOG(embedder, CELL_LOG_WARN, "embeddings: cannot store the vectors of %s: %s", corpus->name, filling->warning.msg);
	if (filling->stop) {
		end_filling(filling);
		return;
	}
	if (!err.code) {
		corpus->counts = filling->counts;
		if (filling->any)
			corpus->odd_times = 0;
	}
	if (filling->odd)
		note_odd(embedder, corpus, filling->dimensions, err.msg);
	else if (err.code)
		LOG(embedder, CELL_LOG_WARN, "embeddings: %s cannot be read: %s", corpus->name, err.msg);
	bool again = filling->again && !err.code && filling->batch.n == 0;
	if (again || (filling->odd && corpus->relearn)) {
		filling->again = false;
		cell__vector_batch_finish(&filling->batch);
		queue_filling(filling);
		return;
	}
	bool over = err.code || filling->batch.n == 0 || is_resting(embedder);
	if (!over && send_batch(filling, &err) < 0) {
		note_failure(embedder, err.msg, 0);
		over = true;
	}
	if (over)
		end_filling(filling);
	else if (filling->many)
		finish_waits(&corpus->waiting, NULL, 0); /* that takes its time */
	set_timer(embedder);
}

static bool start_filling(struct cell__embedder *embedder, struct cell__corpus *corpus)
{
	struct cell__filling *filling = cell__alloc(1, sizeof *filling);
	if (!filling)
		return false;
	if (corpus->batch == 0) {
		corpus->batch = CELL__EMBED_BATCH;
		corpus->text_bytes = CELL__SEARCH_TEXT_BYTES;
	}
	filling->embedder = embedder;
	filling->corpus = corpus;
	filling->next = embedder->fillings;
	embedder->fillings = filling;
	corpus->filling = filling;
	queue_filling(filling);
	return true;
}

bool cell__embedder_fill(struct cell__embedder *embedder, struct cell__corpus *corpus, struct cell__embed_wait *wait)
{
	wait->vector = NULL;
	wait->list = NULL;
	if (embedder->closing || is_resting(embedder))
		return false;
	/* Many were missing at the last check: searches do not wait for them. */
	if (corpus->filling && corpus->filling->many)
		return false;
	if (corpus->filling)
		corpus->filling->again = true;
	else if (!start_filling(embedder, corpus))
		return false;
	add_wait(embedder, &corpus->waiting, wait);
	set_timer(embedder);
	return true;
}

void cell__embedder_odd(struct cell__embedder *embedder, struct cell__corpus *corpus, size_t dimensions)
{
	struct cell_error err;
	cell_fail(&err, CELL_E_PROTOCOL, 0, "the query's vector has %zu dimensions, those of %s have a different number", dimensions,
		  corpus->name);
	note_odd(embedder, corpus, dimensions, err.msg);
	if (corpus->relearn && !corpus->filling && !embedder->closing)
		start_filling(embedder, corpus);
}

/* ---- create and close ---- */

static void free_embedder(struct cell__embedder *embedder)
{
	for (size_t i = 0; i < CELL__EMBED_CACHED; i++)
		forget(&embedder->kept[i]);
	cell__onnx_destroy(embedder->endpoint.local);
	free(embedder->endpoint.url);
	free(embedder->endpoint.model);
	if (embedder->endpoint.key)
		explicit_bzero(embedder->endpoint.key, strlen(embedder->endpoint.key));
	free(embedder->endpoint.key);
	free(embedder);
}

static void handle_closed(struct cell__embedder *embedder)
{
	if (--embedder->handles > 0)
		return;
	void (*closed)(void *) = embedder->closed;
	void *arg = embedder->closed_arg;
	free_embedder(embedder);
	closed(arg);
}

static void handle_http_closed(void *arg)
{
	handle_closed(arg);
}

static void handle_timer_closed(uv_handle_t *timer)
{
	handle_closed(timer->data);
}

/* Everything that runs elsewhere is over. */
static void maybe_closed(struct cell__embedder *embedder)
{
	if (!embedder->closing || embedder->fillings || embedder->endpoint.parsing > 0 || embedder->handles > 0)
		return;
	embedder->handles = 2;
	uv_close((uv_handle_t *)&embedder->timer, handle_timer_closed);
	cell__http_close(embedder->endpoint.http, handle_http_closed, embedder);
}

static void handle_parsed(void *owner)
{
	maybe_closed(owner);
}

void cell__embedder_close(struct cell__embedder *embedder, void (*closed)(void *arg), void *arg)
{
	embedder->closing = true;
	embedder->closed = closed;
	embedder->closed_arg = arg;
	uv_timer_stop(&embedder->timer);
	while (embedder->asks)
		destroy_ask(embedder, embedder->asks);
	for (struct cell__filling *filling = embedder->fillings, *next; filling; filling = next) {
		next = filling->next;
		filling->stop = true;
		if (!filling->on_pool)
			end_filling(filling);
	}
	maybe_closed(embedder);
}

static bool url_ok(const char *url)
{
	return strncmp(url, "http://", 7) == 0 || strncmp(url, "https://", 8) == 0 || cell__onnx_folder(url);
}

int cell__embedder_create(const struct cell__embedder_options *opts, struct cell__embedder **ret_embedder, struct cell_error *err)
{
	/* The URL is not repeated: a person may have put a password into it. */
	if (!url_ok(opts->url))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the embeddings endpoint must be an http:// or https:// URL, or builtin: and a folder");
	if (!opts->model || !opts->model[0] || !cell__utf8_ok(opts->model, strlen(opts->model)))
		return cell_fail(err, CELL_E_INVALID, 0, "an embeddings endpoint needs the name of a model");
	struct cell__embedder *embedder = cell__alloc(1, sizeof *embedder);
	if (!embedder)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	embedder->opts = *opts;
	struct cell__embedder_options *own = &embedder->opts;
	own->wait_ms = opts->wait_ms ? opts->wait_ms : CELL__EMBED_WAIT_MS;
	own->rest_ms = opts->rest_ms ? opts->rest_ms : CELL__EMBED_REST_MS;
	own->rest_max_ms = opts->rest_max_ms ? opts->rest_max_ms : CELL__EMBED_REST_MAX_MS;
	embedder->endpoint = (struct cell__embed_endpoint){
		.loop = opts->loop,
		.url = cell__strdup(opts->url),
		.model = cell__strdup(opts->model),
		.key = opts->key && opts->key[0] ? cell__strdup(opts->key) : NULL,
		.getenv_fn = opts->getenv_fn,
		.getenv_arg = opts->getenv_arg,
		.request_ms = opts->request_ms ? opts->request_ms : CELL__EMBED_REQUEST_MS,
		.parsed = handle_parsed,
		.owner = embedder,
	};
	own->url = own->model = own->key = NULL; /* the endpoint has them */
	const char *local = cell__onnx_folder(opts->url);
	if (local)
		embedder->endpoint.local = cell__onnx_create(local);
	if ((local && !embedder->endpoint.local) || !embedder->endpoint.url || !embedder->endpoint.model ||
	    (opts->key && opts->key[0] && !embedder->endpoint.key)) {
		free_embedder(embedder);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	if (cell__http_create(opts->loop, CELL__EMBED_CONNECTIONS, &embedder->endpoint.http, err) < 0) {
		free_embedder(embedder);
		return -1;
	}
	uv_timer_init(cell__loop_uv(opts->loop), &embedder->timer);
	embedder->timer.data = embedder;
	*ret_embedder = embedder;
	return 0;
}
