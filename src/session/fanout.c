#include "session/fanout.h"

#include <stdlib.h>
#include <string.h>

#include "base/base.h"

struct cell__fanout_run {
	struct cell__fanout *batch;
	size_t i;
	struct cell_session *session;
	uint64_t run_id; /* 0: no cell */
	bool opened;
};

static void end_run(struct cell__fanout *batch, size_t i)
{
	struct cell_session *session = cell__take_ptr(batch->runs[i].session);

	batch->runs[i].run_id = 0;
	if (session)
		batch->ops->close(batch, i, session);
	else
		cell__fanout_closed(batch, i);
}

static void fail_run(struct cell__fanout *batch, size_t i, const struct cell_error *err)
{
	batch->ops->failed(batch, i, err);
	end_run(batch, i);
}

static void handle_event(void *arg, const struct cell_event *event);

/* Starts the next cell of a run, or ends the run. */
static void go_on(struct cell__fanout_run *run, struct cell_result *result)
{
	struct cell__fanout *batch = run->batch;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	struct cell_error err = { 0 };
	const char *code = batch->ops->next(batch, run->i, result, &options.timeout_ms);

	run->run_id = 0;
	if (!code) {
		end_run(batch, run->i);
		return;
	}
	options.on_event = handle_event;
	options.event_arg = run;
	if (!run->session || batch->cancelled)
		cell_fail(&err, CELL_E_CLOSED, 0, run->session ? "the batch was cancelled" : "its session was closed");
	if (err.code || cell__session_start_on_loop(run->session, code, strlen(code), &options, &run->run_id, &err) < 0)
		fail_run(batch, run->i, &err);
}

static void handle_event(void *arg, const struct cell_event *event)
{
	struct cell__fanout_run *run = arg;

	if (event->type == CELL_EVENT_RESULT)
		go_on(run, event->result);
	else if (run->batch->ops->event)
		run->batch->ops->event(run->batch, run->i, event);
}

void cell__fanout_opened(struct cell__fanout *batch, size_t i, struct cell_session *session, const struct cell_error *err)
{
	int64_t memory_bytes = 0, max_output_bytes = 0;
	struct cell_error why;

	batch->runs[i].session = session;
	if (session && batch->ops->limits)
		batch->ops->limits(batch, i, &memory_bytes, &max_output_bytes);
	if (!session)
		fail_run(batch, i, err);
	else if (cell__session_limit_on_loop(session, memory_bytes, max_output_bytes, &why) < 0)
		fail_run(batch, i, &why);
	else
		go_on(&batch->runs[i], NULL);
}

void cell__fanout_closed(struct cell__fanout *batch, size_t i)
{
	if (batch->runs[i].opened && batch->ops->ended)
		batch->ops->ended(batch, i);
	batch->running--;
	batch->ended++;
	cell__fanout_advance(batch);
}

void cell__fanout_lost(struct cell__fanout *batch, size_t i)
{
	batch->runs[i].session = NULL;
}

/* A run may end inside its start. */
void cell__fanout_advance(struct cell__fanout *batch)
{
	if (batch->starting)
		return;
	batch->starting = true;
	while (batch->next < batch->n && batch->running < batch->concurrency && (batch->cancelled || !batch->held)) {
		struct cell_error err;

		if (!batch->cancelled && batch->ops->may_start && !batch->ops->may_start(batch))
			break;
		batch->running++;
		if (!batch->cancelled) {
			batch->runs[batch->next].opened = true;
			batch->ops->open(batch, batch->next++);
			continue;
		}
		cell_fail(&err, CELL_E_CLOSED, 0, "the batch was cancelled");
		fail_run(batch, batch->next++, &err);
	}
	batch->starting = false;
	if (batch->ended < batch->n)
		return;
	free(cell__take_ptr(batch->runs));
	batch->ops->done(batch);
}

void cell__fanout_hold(struct cell__fanout *batch, bool held)
{
	batch->held = held;
	if (!held && batch->runs)
		cell__fanout_advance(batch);
}

void cell__fanout_cancel(struct cell__fanout *batch)
{
	if (batch->cancelled || !batch->runs)
		return;
	batch->cancelled = true;
	batch->starting = true; /* not done() before the last of them was asked to stop */
	for (size_t i = 0; i < batch->next; i++) {
		struct cell__fanout_run *run = &batch->runs[i];

		if (run->session && run->run_id)
			cell__session_cancel_on_loop(run->session, run->run_id);
	}
	batch->starting = false;
	cell__fanout_advance(batch);
}

int cell__fanout_start(struct cell__fanout *batch, struct cell_error *err)
{
	batch->runs = cell__alloc(batch->n, sizeof(*batch->runs));
	if (!batch->runs)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for %zu runs", batch->n);
	for (size_t i = 0; i < batch->n; i++)
		batch->runs[i] = (struct cell__fanout_run){ .batch = batch, .i = i };
	if (batch->concurrency == 0)
		batch->concurrency = batch->n;
	cell__fanout_advance(batch);
	return 0;
}
