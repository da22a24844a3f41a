/*
 * POST /v1/sessions/S/race.  The forks are sessions of the client like others while it lasts: they count, they are listed, and their
 * approvals are asked for.
 */
#include "server/api.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct served_race {
	struct cell__racing racing;
	struct cell__request *request;
	struct cell__served **forks;
};

static const char *text_of(const struct cell__request *request, const char *name, const char *otherwise)
{
	const char *text = json_string_value(json_object_get(request->json, name));

	return text ? text : otherwise;
}

static void free_race(struct served_race *race)
{
	free(race->racing.forks);
	free((void *)race->racing.codes);
	free(race->forks);
	cell_race_destroy(race->racing.race);
	free(race);
}

static int print_race(const struct cell_race *race, const char *session_id, struct cell__buf *out)
{
	int rc = race->winner < 0 ? cell__buf_printf(out, "{\"winner\":null,\"scores\":[")
				  : cell__buf_printf(out, "{\"winner\":%lld,\"scores\":[", (long long)race->winner);
	for (size_t i = 0; rc == 0 && i < race->n; i++) {
		const char *comma = i ? "," : "";

		rc = isfinite(race->scores[i]) ? cell__buf_printf(out, "%s%.17g", comma, race->scores[i])
					       : cell__buf_printf(out, "%snull", comma);
	}
	for (size_t i = 0; rc == 0 && i < race->n; i++) {
		CELL_AUTO_FREE char *text = cell__execute_answer(race->results[i], session_id);

		rc = text ? cell__buf_printf(out, "%s%s", i ? "," : "],\"results\":[", text) : -1;
	}
	return rc == 0 ? cell__buf_printf(out, "]}") : -1;
}

static void answer_race(struct served_race *race, const struct cell_error *err)
{
	struct cell__request *request = race->request;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (err && err->code)
		cell__answer_error(request, err);
	else if (print_race(race->racing.race, request->served->id, &text) == 0)
		cell__answer_text(request, MHD_HTTP_OK, cell__take_ptr(text.data));
	else
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the answer");
}

/* The forks leave nothing. */
static void end_race(struct served_race *race, const struct cell_error *err)
{
	for (size_t i = 0; i < race->racing.batch.n; i++) {
		race->forks[i]->racing = NULL;
		race->forks[i]->batch = NULL;
		cell__served_end(race->forks[i]);
		cell__served_let_go(race->forks[i]);
	}
	const struct cell__served *source = race->request->served;
	if (!(err && err->code) && source->session && !source->closing) {
		cell__race_tell(source->session, race->racing.race);
		cell__session_log_branch(source->log, json_pack("{s:s,s:I,s:I}", "kind", "race", "n", (json_int_t)race->racing.batch.n,
								"winner", (json_int_t)race->racing.race->winner));
	}
	answer_race(race, err);
	free_race(race);
}

static void handle_won(void *arg, struct cell_session *session, const struct cell_error *err)
{
	end_race(arg, session ? NULL : err);
}

static void cancel_race(struct cell__request *request)
{
	struct served_race *race = request->cancel_arg;

	cell__fanout_cancel(&race->racing.batch);
}

static void handle_race(struct cell__racing *racing)
{
	struct served_race *race = racing->arg;
	const struct cell__served *source = race->request->served;
	struct cell_error err = racing->err;
	bool keeps = strcmp(text_of(race->request, "keep", "winner"), "none") != 0;

	race->request->cancel = NULL;
	if (race->request->cancelled)
		cell_fail(&err, CELL_E_CANCELLED, 0, "the race was cancelled");
	if (!err.code)
		racing->race->winner = cell__race_winner(racing->race);
	if (!err.code && source->closing)
		cell_fail(&err, CELL_E_CLOSED, 0, "the session is closed");
	if (err.code || racing->race->winner < 0 || !keeps) {
		end_race(race, &err);
		return;
	}
	struct cell_session *winner = racing->forks[racing->race->winner];
	if (!winner)
		cell_fail(&err, CELL_E_CLOSED, 0, "the fork that won was closed");
	if (!winner || cell__session_become_on_loop(source->session, winner, handle_won, race, &err) < 0)
		end_race(race, &err);
}

static void start_race(struct cell__request *request, struct cell__served **forks, size_t n)
{
	const json_t *codes = json_object_get(request->json, "codes");
	struct served_race *race = cell__alloc(1, sizeof(*race));
	struct cell_session **sessions = cell__alloc(n, sizeof(*sessions));
	const char **texts = cell__alloc(n, sizeof(*texts));
	struct cell__served **list = cell__alloc(n, sizeof(*list));
	struct cell_error err = { 0 };

	if (!race || !sessions || !texts || !list) {
		free(race);
		free(sessions);
		free(texts);
		free(list);
		for (size_t i = 0; i < n; i++)
			cell__served_end(forks[i]);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a race");
		return;
	}
	for (size_t i = 0; i < n; i++) {
		list[i] = forks[i];
		sessions[i] = forks[i]->session;
		texts[i] = codes ? json_string_value(json_array_get(codes, i)) : text_of(request, "code", "");
		forks[i]->requests++;
		forks[i]->racing = &sessions[i];
		forks[i]->batch = &race->racing.batch;
		forks[i]->batch_run = i;
	}
	*race = (struct served_race){
		.request = request,
		.forks = list,
		.racing = { .batch = { .n = n, .concurrency = (size_t)json_integer_value(json_object_get(request->json, "concurrency")) },
			    .forks = sessions,
			    .codes = texts,
			    .judge = text_of(request, "judge", NULL),
			    .timeout_ms = cell__timeout_of(request),
			    .done = handle_race,
			    .arg = race }
	};
	request->cancel_arg = race;
	request->cancel = cancel_race; /* before the start, which may end it */
	if (cell__racing_start(&race->racing, &err) < 0) {
		request->cancel = NULL;
		end_race(race, &err);
	}
}

void cell__handle_v1_race(struct cell__request *request)
{
	const json_t *codes = json_object_get(request->json, "codes"), *n = json_object_get(request->json, "n");
	size_t forks = codes ? json_array_size(codes) : (size_t)json_integer_value(n);

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (codes ? n || json_object_get(request->json, "code") : !n || !json_object_get(request->json, "code"))
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "give codes, a cell for each fork, or code and n");
	else if (forks == 0 || forks > CELL_LIMIT_FORKS)
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "a race has 1 to %d cells", CELL_LIMIT_FORKS);
	else if (cell__account_may_run(request, request->served->account))
		cell__served_fork(request, forks, NULL, json_is_true(json_object_get(request->json, "drop")), start_race);
}
