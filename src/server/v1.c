/* Handlers of /v1: sessions, runs with their events, approvals.  Thin. */
#include "server/api.h"

#include <string.h>

static void answer_session(struct cell__request *request)
{
	cell__answer_json(request, request->route->status, cell__served_describe(request->served));
}

/* Of one session there is room for the receipt. */
static void answer_whole_session(struct cell__request *request)
{
	json_t *answer = cell__served_describe(request->served);
	const char *receipt = request->served->receipt;

	if (answer)
		json_object_set_new(answer, "receipt", receipt ? json_loads(receipt, 0, NULL) : json_null());
	cell__answer_json(request, request->route->status, answer);
}

static void describe(struct cell__request *request)
{
	cell__sample(request->server, request, answer_whole_session);
}

void cell__handle_v1_open(struct cell__request *request)
{
	cell__served_open(request, json_string_value(json_object_get(request->json, "workspace_id")), answer_session);
}

/* A client's own sessions; all sessions for a client that may see them and requests it. */
static bool is_listed(struct cell__request *request, const struct cell__served *served)
{
	unsigned scopes = CELL_SCOPE_ADMIN | (strstr(request->route->path, "/approvals") ? CELL_SCOPE_APPROVE : 0u);
	bool all = json_is_true(json_object_get(request->query, "all")) && request->who.scopes & scopes;

	if (!cell__token_may_enter(&request->server->tokens, &request->who, served->workspace->id))
		return false;
	return all || !strcmp(served->owner, request->who.name);
}

static void answer_list(struct cell__request *request)
{
	json_t *list = json_array();

	for (struct cell__served *served = request->server->sessions; served; served = served->next) {
		if (is_listed(request, served))
			json_array_append_new(list, cell__served_describe(served));
	}
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "sessions", list));
}

void cell__handle_v1_list(struct cell__request *request)
{
	cell__sample(request->server, request, answer_list);
}

void cell__handle_v1_get(struct cell__request *request)
{
	if (cell__served_find(request, request->params[0], false))
		describe(request);
}

void cell__handle_v1_delete(struct cell__request *request)
{
	if (!cell__served_find(request, request->params[0], false))
		return;
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	cell__session_forget_on_loop(request->served->session); /* else its id would wake it */
	cell__served_end(request->served);
}

void cell__handle_v1_interrupt(struct cell__request *request)
{
	if (!cell__served_find(request, request->params[0], false))
		return;
	cell_session_interrupt(request->served->session, NULL);
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}

static void handle_reset(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (session) {
		cell__history_note(request->served->history, "reset", json_object());
		answer_session(request);
	} else {
		cell__answer_error(request, err);
	}
}

void cell__handle_v1_reset(struct cell__request *request)
{
	struct cell_error err;

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (cell__session_reset_on_loop(request->served->session, handle_reset, request, &err) < 0)
		cell__answer_error(request, &err);
}

/* ---- branches ---- */

/* Takes over news; served NULL: nothing has happened. */
static void note_branch(struct cell__served *served, json_t *news)
{
	if (served)
		cell__history_note(served->history, "branch", json_incref(news));
	cell__session_log_branch(served ? served->log : NULL, news);
}

static void answer_forks(struct cell__request *request, struct cell__served **forks, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++) {
		forks[i]->link = request->served->last;
		json_array_append_new(list, cell__served_describe(forks[i]));
		note_branch(request->served, json_pack("{s:s,s:s}", "kind", "fork", "session_id", forks[i]->id));
	}
	if (json_object_get(request->json, "n")) {
		cell__answer_json(request, request->route->status, json_pack("{s:o}", "sessions", list));
	} else {
		cell__answer_json(request, request->route->status, json_incref(json_array_get(list, 0)));
		json_decref(list);
	}
}

void cell__handle_v1_fork(struct cell__request *request)
{
	const json_t *n = json_object_get(request->json, "n");

	if (cell__served_find(request, request->params[0], false))
		cell__served_fork(request, n ? (size_t)json_integer_value(n) : 1,
				  json_string_value(json_object_get(request->json, "point")),
				  json_is_true(json_object_get(request->json, "drop")), answer_forks);
}

static void answer_points(struct cell__request *request)
{
	json_t *points = cell__session_points_on_loop(request->served->session), *point;
	size_t i;

	json_array_foreach(points, i, point)
		json_object_del(point, "pid");
	cell__answer_json(request, request->route->status, json_pack("{s:o}", "points", points ? points : json_array()));
}

void cell__handle_v1_points(struct cell__request *request)
{
	if (cell__served_find(request, request->params[0], false))
		answer_points(request);
}

static void handle_checkpoint(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct cell__request *request = arg;

	note_branch(session ? request->served : NULL,
		    json_pack("{s:s,s:O}", "kind", "point", "name", json_object_get(request->json, "name")));
	if (session)
		answer_points(request);
	else
		cell__answer_error(request, err);
}

void cell__handle_v1_checkpoint(struct cell__request *request)
{
	struct cell_error err;

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (cell__session_checkpoint_on_loop(request->served->session, json_string_value(json_object_get(request->json, "name")),
					     json_is_true(json_object_get(request->json, "drop")), handle_checkpoint, request, &err) < 0)
		cell__answer_error(request, &err);
}

static void handle_variables(void *arg, const struct cell_event *event)
{
	cell__answer_value(arg, event, "a list of variables");
}

void cell__handle_v1_variables(struct cell__request *request)
{
	struct cell_error err;

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (cell__session_variables_on_loop(request->served->session, handle_variables, request, &err) < 0)
		cell__answer_error(request, &err);
}

static void handle_hibernated(void *arg, const char *answer, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (answer) {
		cell__served_sleeps(request->served);
		if (request->served->asleep && request->served->closing && request->served->session) {
			request->kept = json_loads(answer, 0, NULL);
			request->served->hibernates = request;
		} else { /* it is in use, and stays */
			cell__answer_json(request, MHD_HTTP_OK, json_loads(answer, 0, NULL));
		}
	} else {
		cell__answer_error(request, err);
	}
}

void cell__handle_v1_hibernate(struct cell__request *request)
{
	struct cell_error err;

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (cell__served_check_save(request->served, &err) < 0 ||
	    cell__session_hibernate_on_loop(request->served->session, json_is_true(json_object_get(request->json, "points")),
					    handle_hibernated, request, &err) < 0)
		cell__answer_error(request, &err);
}

void cell__handle_v1_drop_point(struct cell__request *request)
{
	if (!cell__served_find(request, request->params[0], false))
		return;
	if (cell__session_drop_point_on_loop(request->served->session, request->params[1]) < 0)
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such point");
	else
		cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}

static void handle_rewound(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct cell__request *request = arg;
	json_t *name = json_object_get(request->json, "name"), *cells = json_object_get(request->json, "cells");

	note_branch(session ? request->served : NULL, json_pack("{s:s,s:O?,s:O?}", "kind", "rewind", "name", name, "cells", cells));
	if (!session) {
		cell__answer_error(request, err);
		return;
	}
	json_t *answer = cell__served_describe(request->served);
	if (answer)
		json_object_set_new(answer, "file_state", json_string(cell__session_file_state(session)));
	cell__answer_json(request, request->route->status, answer);
}

void cell__handle_v1_rewind(struct cell__request *request)
{
	const json_t *name = json_object_get(request->json, "name"), *cells = json_object_get(request->json, "cells");
	struct cell_error err;

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (json_is_string(name) == json_is_integer(cells)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID,
				  "give the name of a point, or cells, the number of cells to go back");
		return;
	}
	if (cell__session_rewind_on_loop(request->served->session, json_string_value(name), (uint64_t)json_integer_value(cells),
					 handle_rewound, request, &err) < 0)
		cell__answer_error(request, &err);
}

/* ---- files ---- */

static void handle_filed(void *arg, json_t *answer, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (!answer)
		cell__answer_error(request, err);
	else if (request->route->status == MHD_HTTP_NO_CONTENT)
		cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	else
		cell__answer_json(request, request->route->status, json_incref(answer));
}

static void start_filing(struct cell__request *request, enum cell__files_verb verb, const char *const *paths, bool flag)
{
	struct cell_error err;

	if (cell__session_files_on_loop(request->served->session, verb, paths, flag, handle_filed, request, &err) < 0)
		cell__answer_error(request, &err);
}

void cell__handle_v1_files_diff(struct cell__request *request)
{
	if (cell__served_find(request, request->params[0], false))
		start_filing(request, CELL__FILES_DIFF, NULL, true);
}

void cell__handle_v1_files_commit(struct cell__request *request)
{
	const json_t *given = json_object_get(request->json, "paths"), *path;
	const char **paths;
	size_t i;

	if (!cell__served_find(request, request->params[0], false))
		return;
	paths = cell__alloc(json_array_size(given) + 1, sizeof *paths);
	if (!paths) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory");
		return;
	}
	json_array_foreach(given, i, path)
		paths[i] = json_string_value(path);
	start_filing(request, CELL__FILES_COMMIT, paths, json_is_true(json_object_get(request->json, "force")));
	free(paths);
}

void cell__handle_v1_files_discard(struct cell__request *request)
{
	if (cell__served_find(request, request->params[0], false))
		start_filing(request, CELL__FILES_DISCARD, NULL, false);
}

/* ---- runs ---- */

bool cell__wants_events(const struct cell__request *request)
{
	const char *accept = cell__request_header(request, "Accept");

	return accept && strstr(accept, "text/event-stream");
}

static void answer_job(struct cell__request *request, struct cell__job *job)
{
	if (cell__wants_events(request))
		cell__job_stream(request, job, 0);
	else
		cell__answer_text(request, MHD_HTTP_ACCEPTED, cell__job_describe(job));
}

/* The same request once more, because its client, or a proxy, did not get the answer: its cell takes place once.  True: it is answered. */
static bool answer_known(struct cell__request *request, struct cell__state_id id)
{
	struct cell__job *job = request->served->kept;
	struct cell__state_id now = { 0 };

	while (job && !cell__state_id_is(job->state_id, id))
		job = job->kept_next;
	if (job) {
		answer_job(request, job);
		return true;
	}
	if (request->served->session)
		cell__session_state_id_on_loop(request->served->session, &now);
	if (!cell__state_id_is(now, id))
		return false;
	cell__answer_fail(request, MHD_HTTP_CONFLICT, CELL_E_CONFLICT,
			  "the session has this state_id: the cell took place, and its answer is not kept; give each cell another one");
	return true;
}

void cell__handle_v1_run(struct cell__request *request)
{
	const json_t *code = json_object_get(request->json, "code");
	const char *named = json_string_value(json_object_get(request->json, "state_id"));
	struct cell__state_id state_id = { 0 };
	struct cell__job *job;

	if (named && !cell__state_id_read(named, &state_id)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID,
				  "state_id must be 32 hexadecimal digits in lower case, and not all zeros");
		return;
	}

	if (!cell__served_find(request, request->params[0], false) || (named && answer_known(request, state_id)) ||
	    !cell__job_begin(request, json_string_value(code), json_string_length(code), cell__timeout_of(request), NULL, &job))
		return;
	if (named)
		cell__job_name_state(job, state_id);
	answer_job(request, job);
}

static struct cell__job *find_job(struct cell__request *request)
{
	struct cell__job *job;

	if (!cell__served_find(request, request->params[0], false))
		return NULL;
	job = cell__job_find(request->served, request->params[1]);
	if (!job)
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such run, or it is no longer kept");
	return job;
}

void cell__handle_v1_run_get(struct cell__request *request)
{
	struct cell__job *job = find_job(request);

	if (job)
		cell__answer_text(request, MHD_HTTP_OK, cell__job_describe(job));
}

void cell__handle_v1_run_cancel(struct cell__request *request)
{
	struct cell__job *job = find_job(request);

	if (!job)
		return;
	job->refs++; /* an end makes room for other runs */
	cell__job_cancel(job);
	cell__answer_text(request, MHD_HTTP_ACCEPTED, cell__job_describe(job));
	cell__job_unref(job);
}

void cell__handle_v1_runs(struct cell__request *request)
{
	static const char *const states[] = { "waiting", "running", "ended" };
	json_t *list = json_array();

	if (cell__served_find(request, request->params[0], false)) {
		for (const struct cell__job *job = request->served->kept; job; job = job->kept_next)
			json_array_append_new(list, json_pack("{s:I,s:s,s:I}", "run_id", (json_int_t)job->number, "state",
							      states[job->state], "last_event", (json_int_t)job->events.next_number - 1));
		cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:O}", "runs", list));
	}
	json_decref(list);
}

bool cell__last_event(struct cell__request *request, const struct cell__events *events, uint64_t *ret_after)
{
	const char *last = cell__request_header(request, "Last-Event-ID");
	size_t digits = last ? strspn(last, "0123456789") : 0;
	uint64_t after = last ? strtoull(last, NULL, 10) : 0;

	if (last && (!digits || digits > 18 || last[digits] || after >= events->next_number)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "Last-Event-ID is not the id of an event of this stream");
		return false;
	}
	*ret_after = after;
	return true;
}

void cell__handle_v1_events(struct cell__request *request)
{
	struct cell__job *job = find_job(request);
	uint64_t after;

	if (job && cell__last_event(request, &job->events, &after))
		cell__job_stream(request, job, after);
}

/* ---- approvals ---- */

/* Adds a session's pending approvals to a list, with the session's id. */
static int add_approvals(json_t *list, struct cell__served *served)
{
	char *text = NULL;
	json_t *found, *item;
	size_t i;

	if (!served->session || cell_session_approvals(served->session, &text, NULL) < 0)
		return -1;
	found = json_loads(text, JSON_ALLOW_NUL, NULL);
	free(text);
	json_array_foreach(found, i, item) {
		json_object_set_new(item, "session_id", json_string(served->id));
		json_array_append(list, item);
	}
	json_decref(found);
	return 0;
}

void cell__handle_v1_approvals(struct cell__request *request)
{
	json_t *list;

	if (!cell__served_find(request, request->params[0], false))
		return;
	list = json_array();
	(void)add_approvals(list, request->served);
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "approvals", list));
}

void cell__handle_v1_all_approvals(struct cell__request *request)
{
	json_t *list = json_array();

	for (struct cell__served *served = request->server->sessions; served; served = served->next) {
		if (is_listed(request, served)) /* calls wait between cells too: from outside, and of threads */
			(void)add_approvals(list, served);
	}
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "approvals", list));
}

void cell__handle_v1_answer(struct cell__request *request)
{
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	const json_t *args = json_object_get(request->json, "args");
	char *end, *text = NULL;
	uint64_t id = strtoull(request->params[1], &end, 10);
	struct cell_error err;
	int status;

	if (!cell__served_find(request, request->params[0], false))
		return;
	if (*end || *request->params[1] < '0' || *request->params[1] > '9' || !id) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such request");
		return;
	}
	answer.accept = json_is_true(json_object_get(request->json, "accept"));
	answer.always = json_is_true(json_object_get(request->json, "always"));
	answer.reason = json_string_value(json_object_get(request->json, "reason"));
	if (json_is_object(args))
		answer.args = text = json_dumps(args, JSON_COMPACT);
	status = cell_session_answer(request->served->session, id, &answer, &err);
	free(text);
	if (status < 0)
		cell__answer_error(request, &err);
	else
		cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}
