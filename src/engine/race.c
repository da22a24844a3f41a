/*
 * A race: cells that run side by side in forks of one state.
 *
 *     racer:  waiting ──▶ its cell runs ──▶ its judgement runs ──▶ ended
 *                              └── failed, or nothing to judge ──────┘
 *
 * A batch (session/fanout.h) whose sessions are there already.  All of it is on the loop's thread; the caller makes the forks, makes the
 * winner's state the session's, and closes the forks.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "session/session.h"

/* A number or a truth value; NAN: something else. */
static double number_of(const struct cell_result *result)
{
	const char *text = cell_result_error(result) ? NULL : cell_result_value_json(result);
	char *end;
	if (!text)
		return NAN;
	if (!strcmp(text, "true") || !strcmp(text, "false"))
		return text[0] == 't';
	double number = strtod(text, &end);
	return end == text || *end ? NAN : number;
}

static void open_racer(struct cell__fanout *batch, size_t i)
{
	const struct cell__racing *racing = (struct cell__racing *)batch;
	struct cell_error err = { 0 };
	if (!racing->forks[i])
		cell_fail(&err, CELL_E_CLOSED, 0, "a fork of the race was closed");
	cell__fanout_opened(batch, i, racing->forks[i], &err);
}

static const char *next_cell(struct cell__fanout *batch, size_t i, struct cell_result *result, int64_t *ret_timeout_ms)
{
	const struct cell__racing *racing = (struct cell__racing *)batch;
	struct cell_race *race = racing->race;
	*ret_timeout_ms = racing->timeout_ms;
	if (!result)
		return racing->codes[i];
	if (race->results[i]) { /* it was the judgement */
		race->scores[i] = number_of(result);
		cell_result_destroy(result);
		return NULL;
	}
	race->results[i] = result;
	if (cell_result_error(result))
		return NULL;
	if (!racing->judge)
		race->scores[i] = 0;
	return racing->judge;
}

static void handle_failed(struct cell__fanout *batch, size_t i, const struct cell_error *err)
{
	struct cell__racing *racing = (struct cell__racing *)batch;
	(void)i;
	if (racing->err.code == 0)
		racing->err = *err;
}

static void handle_event(struct cell__fanout *batch, size_t i, const struct cell_event *event)
{
	const struct cell__racing *racing = (struct cell__racing *)batch;
	(void)i;
	if (racing->on_event)
		racing->on_event(racing->event_arg, event);
}

/* The forks are the caller's. */
static void close_racer(struct cell__fanout *batch, size_t i, struct cell_session *session)
{
	(void)session;
	cell__fanout_closed(batch, i);
}

static void handle_all_done(struct cell__fanout *batch)
{
	struct cell__racing *racing = (struct cell__racing *)batch;
	racing->done(racing);
}

static const struct cell__fanout_ops race_ops = {
	.open = open_racer,
	.next = next_cell,
	.failed = handle_failed,
	.event = handle_event,
	.close = close_racer,
	.done = handle_all_done,
};

static struct cell_race *make_race(size_t n)
{
	struct cell_race *race = cell__alloc(1, sizeof *race);
	if (!race || !(race->results = cell__alloc(n, sizeof *race->results)) || !(race->scores = cell__alloc(n, sizeof *race->scores))) {
		cell_race_destroy(race);
		return NULL;
	}
	race->n = n;
	race->winner = -1;
	for (size_t i = 0; i < n; i++)
		race->scores[i] = NAN;
	return race;
}

void cell_race_destroy(struct cell_race *race)
{
	if (!race)
		return;
	for (size_t i = 0; i < race->n; i++)
		cell_result_destroy(race->results[i]);
	free(race->results);
	free(race->scores);
	free(race);
}

int64_t cell__race_winner(const struct cell_race *race)
{
	int64_t best = -1;
	for (size_t i = 0; i < race->n; i++)
		if (!isnan(race->scores[i]) && (best < 0 || race->scores[i] > race->scores[best]))
			best = (int64_t)i;
	return best;
}

int cell__racing_start(struct cell__racing *racing, struct cell_error *err)
{
	racing->race = make_race(racing->batch.n);
	if (!racing->race)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a race");
	racing->batch.ops = &race_ops;
	return cell__fanout_start(&racing->batch, err);
}

void cell__race_tell(struct cell_session *session, const struct cell_race *race)
{
	cell__branch_tell(session, json_pack("{s:s, s:I, s:o}", "kind", "race", "n", (json_int_t)race->n, "winner",
					     race->winner < 0 ? json_null() : json_integer(race->winner)));
}

/* ---- the public function ---- */

struct race_end {
	struct cell_session *session;
	const struct cell_race *race;
};

static void do_tell(void *arg)
{
	struct race_end *end = arg;
	cell__race_tell(end->session, end->race);
}

struct waiting_race {
	struct cell__task task; /* first */
	struct cell__waiter waiter;
	struct cell__racing racing;
};

static void handle_done(struct cell__racing *racing)
{
	struct waiting_race *waiting = racing->arg;
	cell__waiter_signal(&waiting->waiter);
}

static void do_race(struct cell__task *task)
{
	struct waiting_race *waiting = (struct waiting_race *)task;
	if (cell__racing_start(&waiting->racing, &waiting->racing.err) < 0)
		cell__waiter_signal(&waiting->waiter);
}

static int run_race(struct cell_session *session, struct waiting_race *waiting, struct cell_error *err)
{
	cell__waiter_init(&waiting->waiter);
	cell__loop_do(session->engine->loop, &waiting->task, &waiting->waiter);
	cell__waiter_finish(&waiting->waiter);
	if (waiting->racing.err.code && err)
		*err = waiting->racing.err;
	return waiting->racing.err.code ? -1 : 0;
}

static void score_all(const struct cell_race_options *opts, struct cell_race *race)
{
	for (size_t i = 0; i < race->n; i++) {
		double score;
		if (!cell_result_error(race->results[i]))
			race->scores[i] = opts->score(opts->score_arg, i, race->results[i], &score) < 0 ? NAN : score;
	}
}

static int check_race(const struct cell_race_options *opts, struct cell_error *err)
{
	if (!opts->codes == !opts->code)
		return cell_fail(err, CELL_E_INVALID, 0, "a race needs either codes or code");
	if (opts->judge && opts->score)
		return cell_fail(err, CELL_E_INVALID, 0, "a race has either judge or score");
	if (opts->n == 0 || opts->n > CELL_LIMIT_FORKS)
		return cell_fail(err, CELL_E_INVALID, 0, "n is %zu, expected 1 to %d", opts->n, CELL_LIMIT_FORKS);
	for (size_t i = 0; opts->codes && i < opts->n; i++)
		if (!opts->codes[i])
			return cell_fail(err, CELL_E_INVALID, 0, "the code of fork %zu is NULL", i);
	return 0;
}

static int race_forks(struct cell_session *session, const struct cell_race_options *opts, struct cell_session **forks,
		      struct cell_race **ret_race, struct cell_error *err)
{
	CELL_AUTO_FREE const char **codes = cell__alloc(opts->n, sizeof *codes);
	if (!codes)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a race");
	for (size_t i = 0; i < opts->n; i++)
		codes[i] = opts->codes ? opts->codes[i] : opts->code;
	struct waiting_race waiting = { .task.fn = do_race,
					.racing = { .batch = { .n = opts->n, .concurrency = opts->concurrency },
						    .forks = forks,
						    .codes = codes,
						    .judge = opts->judge,
						    .timeout_ms = opts->timeout_ms,
						    .on_event = opts->on_event,
						    .event_arg = opts->event_arg,
						    .done = handle_done,
						    .arg = &waiting } };
	int rc = run_race(session, &waiting, err);
	struct cell_race *race = waiting.racing.race;
	if (rc == 0 && opts->score)
		score_all(opts, race);
	if (rc == 0)
		race->winner = cell__race_winner(race);
	if (rc == 0 && !opts->keep_none && race->winner >= 0)
		rc = cell_session_become(session, forks[race->winner], err);
	if (rc < 0) {
		cell_race_destroy(race);
		return rc;
	}
	cell__loop_call(session->engine->loop, do_tell, &(struct race_end){ session, race });
	*ret_race = race;
	return 0;
}

int cell_session_race(struct cell_session *session, const struct cell_race_options *opts, struct cell_race **ret_race,
		      struct cell_error *err)
{
	struct cell_race_options all = CELL_RACE_OPTIONS_INIT;
	struct cell_fork_options fork = CELL_FORK_OPTIONS_INIT;
	if (cell__require(err, session, opts, ret_race) < 0 || cell__sized_read(&all, sizeof all, opts, "cell_race_options", err) < 0 ||
	    check_race(&all, err) < 0)
		return -1;
	CELL_AUTO_FREE struct cell_session **forks = cell__alloc(all.n, sizeof *forks);
	if (!forks)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for %zu sessions", all.n);
	fork.drop = all.drop;
	fork.on_event = all.on_event;
	fork.event_arg = all.event_arg;
	if (cell_session_fork(session, &fork, all.n, forks, err) < 0)
		return -1;
	int rc = race_forks(session, &all, forks, ret_race, err);
	for (size_t i = 0; i < all.n; i++)
		cell_session_close(forks[i]);
	return rc;
}
