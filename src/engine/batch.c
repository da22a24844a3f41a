/*
 * Batches for callers that wait: cell_session_map(), cell_engine_batch().
 *
 *     source ──fork──▶ anchor ──fork──▶ run, run, ...
 *
 * The anchor is the state that every run begins from: it runs nothing, so cells of the source do not change it.  Results wait in a list
 * until cell_batch_next() takes them; no run starts while it has `concurrency` of them.  All of it is on the loop's thread.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "session/session.h"

struct ended {
	size_t i;
	struct cell_result *result; /* NULL: err has the reason */
	struct cell_error err;
	struct ended *next;
};

/* The arg of callbacks about one run. */
struct run_of {
	struct cell_batch *batch;
	size_t i;
};

struct next_call {
	struct cell__task task; /* first */
	struct cell__waiter waiter;
	struct cell_batch *batch;
	struct ended *ended; /* NULL: there is no other */
};

struct cell_batch {
	struct cell__fanout batch; /* first */
	struct cell_engine *engine;
	struct cell_session *anchor;
	char **codes;
	struct run_of *runs;
	int64_t *timeouts_ms;
	int64_t *limits; /* memory and output of each run */
	bool drop, over;
	struct ended *first, *last;
	size_t waiting;          /* results in the list */
	struct next_call *call;  /* waits for one; or NULL */
	struct cell__task task;
	struct cell__waiter waiter; /* of its end */
	bool ending;
};

/* ---- results ---- */

static void hand_over(struct cell_batch *batch)
{
	struct next_call *call = batch->call;
	if (!call || (!batch->first && !batch->over))
		return;
	batch->call = NULL;
	call->ended = batch->first;
	if (call->ended) {
		batch->first = call->ended->next;
		if (!batch->first)
			batch->last = NULL;
		batch->waiting--;
	}
	cell__waiter_signal(&call->waiter);
}

static void add_ended(struct cell_batch *batch, size_t i, struct cell_result *result, const struct cell_error *err)
{
	struct ended *ended = cell__alloc(1, sizeof *ended);
	if (!ended) { /* the caller counts fewer than it asked for */
		cell_result_destroy(result);
		return;
	}
	*ended = (struct ended){ .i = i, .result = result };
	if (err)
		ended->err = *err;
	if (batch->last)
		batch->last->next = ended;
	else
		batch->first = ended;
	batch->last = ended;
	batch->waiting++;
	hand_over(batch);
	cell__fanout_hold(&batch->batch, batch->waiting >= batch->batch.concurrency);
}

/* ---- runs ---- */

static void handle_forked(void *arg, struct cell_session *session, const struct cell_error *err)
{
	const struct run_of *run = arg;
	cell__fanout_opened(&run->batch->batch, run->i, session, err);
}

static void open_run(struct cell__fanout *base, size_t i)
{
	struct cell_batch *batch = (struct cell_batch *)base;
	struct cell_error err;
	if (cell__session_fork_on_loop(batch->anchor, NULL, batch->drop, handle_forked, &batch->runs[i], &err) < 0)
		cell__fanout_opened(base, i, NULL, &err);
}

static int64_t one_of(const int64_t *each, int64_t all, size_t i)
{
	return each && each[i] ? each[i] : all;
}

static void limits_of(struct cell__fanout *base, size_t i, int64_t *ret_memory_bytes, int64_t *ret_max_output_bytes)
{
	const struct cell_batch *batch = (const struct cell_batch *)base;
	*ret_memory_bytes = batch->limits[2 * i];
	*ret_max_output_bytes = batch->limits[2 * i + 1];
}

static const char *next_cell(struct cell__fanout *base, size_t i, struct cell_result *result, int64_t *ret_timeout_ms)
{
	struct cell_batch *batch = (struct cell_batch *)base;
	*ret_timeout_ms = batch->timeouts_ms[i];
	if (!result)
		return batch->codes[i];
	add_ended(batch, i, result, NULL);
	return NULL;
}

static void handle_failed(struct cell__fanout *base, size_t i, const struct cell_error *err)
{
	add_ended((struct cell_batch *)base, i, NULL, err);
}

static void handle_closed(void *arg)
{
	const struct run_of *run = arg;
	cell__fanout_closed(&run->batch->batch, run->i);
}

static void close_run(struct cell__fanout *base, size_t i, struct cell_session *session)
{
	cell__session_close_on_loop(session, handle_closed, &((struct cell_batch *)base)->runs[i]);
}

static void handle_done(struct cell__fanout *base)
{
	struct cell_batch *batch = (struct cell_batch *)base;
	batch->over = true;
	hand_over(batch);
	if (batch->ending)
		cell__waiter_signal(&batch->waiter);
}

static const struct cell__fanout_ops ops = {
	.open = open_run,
	.next = next_cell,
	.limits = limits_of,
	.failed = handle_failed,
	.close = close_run,
	.done = handle_done,
};

/* ---- the public functions ---- */

static void free_batch(struct cell_batch *batch)
{
	while (batch->first) {
		struct ended *ended = batch->first;
		batch->first = ended->next;
		cell_result_destroy(ended->result);
		free(ended);
	}
	for (size_t i = 0; batch->codes && i < batch->batch.n; i++)
		free(batch->codes[i]);
	free(batch->codes);
	free(batch->timeouts_ms);
	free(batch->limits);
	free(batch->runs);
	free(batch);
}

static int check_batch(const struct cell_batch_options *opts, struct cell_error *err)
{
	if (opts->n == 0 || opts->n > CELL_LIMIT_BATCH)
		return cell_fail(err, CELL_E_INVALID, 0, "n is %zu, expected 1 to %d", opts->n, CELL_LIMIT_BATCH);
	if (opts->concurrency == 0 || opts->concurrency > CELL_LIMIT_FORKS)
		return cell_fail(err, CELL_E_INVALID, 0, "concurrency is %zu, expected 1 to %d", opts->concurrency, CELL_LIMIT_FORKS);
	if (!opts->codes)
		return cell_fail(err, CELL_E_INVALID, 0, "codes is NULL");
	for (size_t i = 0; i < opts->n; i++)
		if (!opts->codes[i])
			return cell_fail(err, CELL_E_INVALID, 0, "the code of run %zu is NULL", i);
	return 0;
}

static struct cell_batch *make_batch(struct cell_engine *engine, const struct cell_batch_options *opts, struct cell_error *err)
{
	struct cell_batch *batch = cell__alloc(1, sizeof *batch);
	if (batch) {
		batch->batch = (struct cell__fanout){ .ops = &ops, .n = opts->n, .concurrency = opts->concurrency };
		batch->engine = engine;
		batch->drop = opts->drop != 0;
		batch->codes = cell__alloc(opts->n, sizeof *batch->codes);
		batch->timeouts_ms = cell__alloc(opts->n, sizeof *batch->timeouts_ms);
		batch->limits = cell__alloc(opts->n, 2 * sizeof *batch->limits);
	}
	if (batch)
		batch->runs = cell__alloc(opts->n, sizeof *batch->runs);
	bool made = batch && batch->codes && batch->timeouts_ms && batch->limits && batch->runs;
	for (size_t i = 0; made && i < opts->n; i++) {
		batch->runs[i] = (struct run_of){ batch, i };
		batch->timeouts_ms[i] = opts->timeouts_ms ? opts->timeouts_ms[i] : opts->timeout_ms;
		batch->limits[2 * i] = one_of(opts->memories_bytes, opts->memory_bytes, i);
		batch->limits[2 * i + 1] = one_of(opts->max_outputs_bytes, opts->max_output_bytes, i);
		made = (batch->codes[i] = cell__strdup(opts->codes[i])) != NULL;
	}
	if (made)
		return batch;
	if (batch)
		free_batch(batch);
	cell_fail(err, CELL_E_NOMEM, 0, "out of memory for %zu runs", opts->n);
	return NULL;
}

struct start_call {
	struct cell_batch *batch;
	struct cell_error err;
	int rc;
};

static void do_start(void *arg)
{
	struct start_call *call = arg;
	call->rc = cell__fanout_start(&call->batch->batch, &call->err);
}

/* The anchor is taken over, also by a failure. */
static int start_batch(struct cell_session *anchor, const struct cell_batch_options *opts, struct cell_batch **ret_batch,
		       struct cell_error *err)
{
	struct start_call call = { .batch = make_batch(anchor->engine, opts, err), .rc = -1 };
	if (call.batch) {
		call.batch->anchor = anchor;
		cell__loop_call(anchor->engine->loop, do_start, &call);
		if (call.rc < 0 && err)
			*err = call.err;
	}
	if (call.rc == 0) {
		*ret_batch = call.batch;
		return 0;
	}
	if (call.batch)
		free_batch(call.batch);
	cell_session_close(anchor);
	return -1;
}

int cell_session_map(struct cell_session *session, const struct cell_batch_options *opts, struct cell_batch **ret_batch,
		     struct cell_error *err)
{
	struct cell_batch_options all = CELL_BATCH_OPTIONS_INIT;
	struct cell_fork_options fork = CELL_FORK_OPTIONS_INIT;
	struct cell_session *anchor;
	if (cell__require(err, session, opts, ret_batch) < 0 || cell__sized_read(&all, sizeof all, opts, "cell_batch_options", err) < 0 ||
	    check_batch(&all, err) < 0)
		return -1;
	fork.drop = all.drop;
	if (cell_session_fork(session, &fork, 1, &anchor, err) < 0)
		return -1;
	return start_batch(anchor, &all, ret_batch, err);
}

int cell_engine_batch(struct cell_engine *engine, const struct cell_session_options *session, const struct cell_batch_options *opts,
		      struct cell_batch **ret_batch, struct cell_error *err)
{
	struct cell_batch_options all = CELL_BATCH_OPTIONS_INIT;
	struct cell_session_options checked;
	struct cell_session *anchor;
	if (cell__require(err, engine, opts, ret_batch) < 0 || cell__sized_read(&all, sizeof all, opts, "cell_batch_options", err) < 0 ||
	    (session && cell__sized_read(&checked, sizeof checked, session, "cell_session_options", err) < 0) ||
	    check_batch(&all, err) < 0 || cell_session_open(engine, session, &anchor, err) < 0)
		return -1;
	return start_batch(anchor, &all, ret_batch, err);
}

static void do_next(struct cell__task *task)
{
	struct next_call *call = (struct next_call *)task;
	struct cell_batch *batch = call->batch;
	batch->call = call;
	hand_over(batch);
	if (!batch->over)
		cell__fanout_hold(&batch->batch, batch->waiting >= batch->batch.concurrency);
}

int cell_batch_next(struct cell_batch *batch, size_t *ret_i, struct cell_result **ret_result, struct cell_error *err)
{
	if (cell__require(err, batch, ret_i, ret_result) < 0 || cell__engine_may_wait(batch->engine, "cell_batch_next", err) < 0)
		return -1;
	struct next_call call = { .task.fn = do_next, .batch = batch };
	cell__waiter_init(&call.waiter);
	cell__loop_do(batch->engine->loop, &call.task, &call.waiter);
	cell__waiter_finish(&call.waiter);
	if (!call.ended)
		return 0;
	struct ended ended = *call.ended;
	free(call.ended);
	*ret_i = ended.i;
	if (!ended.result) {
		if (err)
			*err = ended.err;
		return -1;
	}
	*ret_result = ended.result;
	return 1;
}

static void do_end(struct cell__task *task)
{
	struct cell_batch *batch = (struct cell_batch *)((char *)task - offsetof(struct cell_batch, task));
	batch->ending = true;
	if (batch->over)
		cell__waiter_signal(&batch->waiter);
	else
		cell__fanout_cancel(&batch->batch);
}

void cell_batch_destroy(struct cell_batch *batch)
{
	if (!batch)
		return;
	batch->task.fn = do_end;
	cell__waiter_init(&batch->waiter);
	cell__loop_do(batch->engine->loop, &batch->task, &batch->waiter);
	cell__waiter_finish(&batch->waiter);
	cell_session_close(batch->anchor);
	free_batch(batch);
}
