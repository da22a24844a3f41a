/*
 * Approvals and questions by revision 2026-07-28, where a server cannot ask.  The call that needs an answer is itself answered, with
 * `input_required` and the questions; its cell stays where it is, at the gate.  The client repeats the call with the answers, and with the
 * `requestState` that says which job waits for them: the call takes that job up again, and nothing is run twice.
 *
 *     running ── approval ──▶ parked ── repeated, all answered ──▶ running ──▶ answered
 *                              │  └── repeated, some not answered: asked again, with a new state
 *                              └── the approval timed out, the job ended ──▶ its result is kept until the call is repeated
 *
 * A job can also be kept because its client does not want to wait longer (`wait_ms` of run_code): then it has an id for get_job and cancel_job,
 * which are valid until the record goes.
 *
 * For a client that knows tasks (an extension of that revision) the same record is a task: tasks/get shows its state, its questions and its
 * result, tasks/update brings the answers.
 *
 * A state is sealed with a key of the server (wire/call_seal.h): it is good for one principal, for exactly the same tool and arguments, and for
 * a time.  It names the session whose cell waits, and a round of questions, which counts once: that is kept here, because only this process has
 * the cell.  The record goes when the call is repeated after the job has ended, or KEEP_US after that.
 */
#include "mcp/server/server.h"

#include <string.h>
#include <time.h>

#define KEEP_US INT64_C(600000000)
#define PATIENT_S INT64_C(86400) /* a state is good for that long where approvals have no timeout */
#define MAX_PARKED 256u /* of one principal */
#define TASK_MS INT64_C(3600000) /* a task is kept for that long at least, counted from its beginning */
#define POLL_MS 1000

#define MAX_KEY 64u

struct approval {
	uint64_t id;
	bool is_question;
	json_t *form;
	struct approval *next;
	char key[MAX_KEY + 1]; /* in inputRequests */
};

struct cell__mcp_parked {
	char round[CELL_CALL_SEAL_ID_DIGITS + 1]; /* of questions, in its state; "": a call has taken it up */
	char id[CELL_MCP_JOB_CHARS + 1];       /* for get_job, begins with the session's; "": it has none */
	bool asks;        /* by input_required */
	bool cancelled;
	bool is_task;
	bool left;        /* its connection ends, and its job was told */
	int64_t created_us, changed_us; /* of cell__now_us() */
	char owner[CELL_MCP_MAX_OWNER];
	struct cell_mcp_server *server;
	struct cell__mcp_peer *peer;   /* that brought the call; NULL: gone */
	const struct cell__mcp_tool *tool;
	struct cell__mcp_offer *offer; /* whose tool it is, with a reference */
	struct cell__mcp_job *job;     /* NULL: it has ended, with ... */
	json_t *result, *error;
	int64_t ended_us;
	struct approval *approvals;    /* without an answer, newest first */
	json_t *named;    /* the keys that the program has given questions so far; or NULL */
	struct cell__mcp_parked *next;
};

static void drop_approval(struct approval **at)
{
	struct approval *approval = *at;

	*at = approval->next;
	json_decref(approval->form);
	free(approval);
}

/* With the lock held. */
static void parked_free(struct cell__mcp_parked *parked)
{
	struct cell__mcp_parked **at = &parked->server->parked;

	while (*at != parked)
		at = &(*at)->next;
	*at = parked->next;
	if (parked->job)
		parked->job->parked = NULL;
	while (parked->approvals)
		drop_approval(&parked->approvals);
	json_decref(parked->named);
	json_decref(parked->result);
	json_decref(parked->error);
	cell__mcp_offer_unref(parked->offer);
	free(parked);
}

void cell__mcp_parked_end(struct cell_mcp_server *server)
{
	while (server->parked)
		parked_free(server->parked);
}

/* Results that nobody came for. */
static void forget_old(struct cell_mcp_server *server)
{
	int64_t now = cell__now_us();
	struct cell__mcp_parked *next;

	for (struct cell__mcp_parked *parked = server->parked; parked; parked = next) {
		next = parked->next;
		if (!parked->job && now - parked->ended_us > KEEP_US && now > parked->created_us + (parked->is_task ? TASK_MS * 1000 : 0))
			parked_free(parked);
	}
}

static struct cell__mcp_parked *parked_create(struct cell__mcp_job *job)
{
	struct cell_mcp_server *server = job->handle->server;
	struct cell__mcp_parked *parked, *oldest = NULL;
	size_t n = 0;

	forget_old(server);
	for (parked = server->parked; parked; parked = parked->next) {
		n += !strcmp(parked->owner, job->handle->owner);
		if (!parked->job && !strcmp(parked->owner, job->handle->owner))
			oldest = parked; /* newest first */
	}
	if (n >= MAX_PARKED && oldest)
		parked_free(oldest);
	else if (n >= MAX_PARKED)
		return NULL;
	parked = cell__alloc(1, sizeof(*parked));
	if (!parked)
		return NULL;
	*parked = (struct cell__mcp_parked){
		.server = server, .peer = job->request->peer, .tool = job->tool, .job = job, .next = server->parked
	};
	parked->created_us = parked->changed_us = cell__now_us();
	parked->offer = job->offer;
	if (parked->offer)
		parked->offer->refs++;
	strcpy(parked->owner, job->handle->owner);
	server->parked = parked;
	return job->parked = parked;
}

static json_t *questions(const struct cell__mcp_parked *parked)
{
	json_t *requests = json_object();

	for (const struct approval *approval = parked->approvals; approval; approval = approval->next) {
		json_object_set_new(requests, approval->key,
				    json_pack("{s:s, s:O}", "method", "elicitation/create", "params", approval->form));
	}
	return requests;
}

static int64_t clock_s(void)
{
	return (int64_t)time(NULL);
}

/* The answer that asks, under a new state; the job has not ended.  NULL: out of memory. */
static json_t *ask(struct cell__mcp_parked *parked)
{
	const struct cell_mcp_server *server = parked->server;
	const struct cell__sealed_call call = { parked->owner, parked->tool->name, parked->job->args };
	int64_t timeout_ms = server->session.approval_timeout_ms;
	struct cell__call_seal seal = { .until_s = clock_s() + (timeout_ms < 0 ? PATIENT_S : timeout_ms / 1000) + KEEP_US / 1000000 };
	char state[CELL_CALL_SEAL_MAX + 1];

	cell__random_hex(parked->round, CELL_CALL_SEAL_ID_DIGITS);
	strcpy(seal.round, parked->round);
	strcpy(seal.session, parked->job->handle->id);
	if (!cell__call_seal_write(server->state_key, &seal, &call, state))
		return NULL;
	return json_pack("{s:s, s:o, s:s}", "resultType", "input_required", "inputRequests", questions(parked), "requestState", state);
}

/* The program's name for its question, if no question of this job had it: a key means one question for the whole life of a task. */
static void name_question(struct cell__mcp_parked *parked, struct approval *approval)
{
	bool own = approval->id & CELL_MCP_OWN_QUESTION; /* those of MCP servers have no say in it */
	const char *name = own ? json_string_value(json_object_get(approval->form, "name")) : NULL;

	if (name && (!*name || strlen(name) > MAX_KEY || (name[0] == 'a' && name[1] >= '0' && name[1] <= '9')))
		name = NULL; /* the last are those of approvals */
	if (name && !parked->named)
		parked->named = json_object();
	if (name && !json_object_get(parked->named, name) && !json_object_set_new(parked->named, name, json_true()))
		strcpy(approval->key, name);
	else
		snprintf(approval->key, sizeof(approval->key), "a%llu", (unsigned long long)approval->id);
	if (approval->is_question)
		json_object_del(approval->form, "name");
}

static void tell_state(const struct cell__mcp_parked *parked)
{
	if (parked->is_task)
		cell__mcp_tell_task(parked->server, parked->owner, parked->id);
}

bool cell__mcp_job_park(struct cell__mcp_job *job, json_t *form, uint64_t id, bool is_question, json_t **ret_result)
{
	struct cell__mcp_parked *parked = job->parked;
	struct approval *approval = cell__alloc(1, sizeof(*approval));

	*ret_result = NULL;
	if (approval && !parked && job->request)
		parked = parked_create(job);
	if (parked)
		parked->asks = true;
	if (!approval || !parked) {
		free(approval);
		return false;
	}
	*approval = (struct approval){ id, is_question, json_deep_copy(form), parked->approvals, "" };
	name_question(parked, approval);
	json_object_set_new(approval->form, "mode", json_string("form"));
	parked->approvals = approval;
	parked->changed_us = cell__now_us();
	if (!job->request || (*ret_result = ask(parked))) {
		tell_state(parked);
		return true;
	}
	drop_approval(&parked->approvals);
	return false;
}

bool cell__mcp_job_asks(const struct cell__mcp_job *job)
{
	return job && job->parked && job->parked->asks;
}

const char *cell__mcp_job_keep(struct cell__mcp_job *job)
{
	struct cell__mcp_parked *parked = job->parked ? job->parked : job->request ? parked_create(job) : NULL;

	if (!parked)
		return NULL;
	if (!parked->id[0]) {
		strcpy(parked->id, job->handle->id);
		strcat(parked->id, ".");
		cell__random_hex(parked->id + CELL_MCP_HANDLE_CHARS + 1, CELL_MCP_JOB_CHARS - CELL_MCP_HANDLE_CHARS - 1);
	}
	return parked->id;
}

bool cell__mcp_parked_of(const struct cell_mcp_server *server, const char *session)
{
	const struct cell__mcp_parked *parked = server->parked;

	while (parked && strncmp(parked->id, session, CELL_MCP_HANDLE_CHARS))
		parked = parked->next;
	return parked;
}

static struct cell__mcp_parked *kept_find(const struct cell_mcp_server *server, const char *owner, const char *id)
{
	struct cell__mcp_parked *parked = server->parked;

	while (parked && (!parked->id[0] || strcmp(parked->owner, owner) || strcmp(parked->id, id)))
		parked = parked->next;
	return parked;
}

int cell__mcp_kept_find(struct cell_mcp_server *server, const char *owner, const char *id, struct cell__mcp_job **ret_job,
			json_t **ret_result)
{
	const struct cell__mcp_parked *parked = kept_find(server, owner, id);

	if (!parked)
		return -1;
	*ret_job = parked->job;
	*ret_result = parked->result;
	return 0;
}

int cell__mcp_kept_cancel(struct cell_mcp_server *server, const char *owner, const char *id)
{
	struct cell__mcp_parked *parked = kept_find(server, owner, id);
	struct cell__mcp_job *job = parked ? parked->job : NULL;
	uint64_t run_id;
	bool runs;

	if (!job)
		return parked ? 0 : -1;
	parked->cancelled = true;
	parked->changed_us = cell__now_us();
	job->stopped = true;
	tell_state(parked);
	pthread_cond_broadcast(&server->changed); /* a function may wait for an answer */
	runs = job->handle->running == job;
	if (runs || job->canceller) {
		run_id = job->handle->run_id;
		job->refs++;
		pthread_mutex_unlock(&server->lock);
		if (job->canceller)
			cell_canceller_cancel(job->canceller);
		else
			cell_session_cancel(job->handle->session, run_id, NULL);
		pthread_mutex_lock(&server->lock);
		cell__mcp_job_unref(job);
	}
	return 1;
}

/* ---- tasks ---- */

static void add_time(json_t *task, const char *name, int64_t then_us)
{
	struct timespec now;
	struct tm parts;
	char text[32], whole[48];
	int64_t ms;
	time_t seconds;

	clock_gettime(CLOCK_REALTIME, &now);
	ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 - (cell__now_us() - then_us) / 1000;
	seconds = (time_t)(ms / 1000);
	if (!gmtime_r(&seconds, &parts) || !strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts))
		return;
	snprintf(whole, sizeof(whole), "%s.%03dZ", text, (int)(ms % 1000));
	json_object_set_new(task, name, json_string(whole));
}

static json_t *task_json(const struct cell__mcp_parked *parked)
{
	int64_t age_ms = (cell__now_us() - parked->created_us) / 1000, ttl_ms = age_ms + KEEP_US / 1000;
	const char *status = parked->cancelled                 ? "cancelled"
			     : parked->error                   ? "failed"
			     : !parked->job && !parked->result ? "cancelled"
			     : !parked->job                    ? "completed"
			     : parked->approvals               ? "input_required"
							       : "working";
	json_t *task = json_pack("{s:s, s:s, s:I, s:i}", "taskId", parked->id, "status", status, "ttlMs",
				 (json_int_t)(ttl_ms > TASK_MS ? ttl_ms : TASK_MS), "pollIntervalMs", POLL_MS);

	add_time(task, "createdAt", parked->created_us);
	add_time(task, "lastUpdatedAt", parked->changed_us);
	if (!strcmp(status, "completed"))
		json_object_set(task, "result", parked->result);
	else if (!strcmp(status, "failed"))
		json_object_set(task, "error", parked->error);
	else if (!strcmp(status, "input_required"))
		json_object_set_new(task, "inputRequests", questions(parked));
	return task;
}

json_t *cell__mcp_job_to_task(struct cell__mcp_job *job)
{
	struct cell__mcp_parked *parked;
	json_t *task;

	if (!cell__mcp_job_keep(job))
		return NULL;
	parked = job->parked;
	parked->is_task = true;
	parked->asks = parked->asks || job->request->elicits;
	task = task_json(parked);
	json_object_set_new(task, "resultType", json_string("task"));
	return task;
}

bool cell__mcp_job_is_task(const struct cell__mcp_job *job)
{
	return job->parked && job->parked->is_task;
}

json_t *cell__mcp_task_get(struct cell__mcp_peer *peer, const char *id)
{
	const struct cell__mcp_parked *parked = kept_find(peer->server, peer->owner, id);

	return parked && parked->is_task ? task_json(parked) : NULL;
}

void cell__mcp_parked_leave(const struct cell__mcp_peer *peer)
{
	for (struct cell__mcp_parked *parked = peer->server->parked; parked; parked = parked->next) {
		if (parked->peer == peer)
			parked->peer = NULL;
	}
}

void cell__mcp_job_unpark(struct cell__mcp_job *job, uint64_t id)
{
	for (struct approval **at = job && job->parked ? &job->parked->approvals : NULL; at && *at; at = &(*at)->next) {
		if ((*at)->id == id) {
			drop_approval(at);
			if (!job->parked->approvals)
				tell_state(job->parked);
			return;
		}
	}
}

void cell__mcp_parked_result(struct cell__mcp_job *job, json_t *result)
{
	struct cell__mcp_parked *parked = job->parked;

	parked->job = NULL;
	job->parked = NULL;
	parked->result = result;
	parked->ended_us = parked->changed_us = cell__now_us();
	tell_state(parked);
	pthread_cond_broadcast(&parked->server->changed);
}

void cell__mcp_parked_error(struct cell__mcp_job *job, json_t *error)
{
	job->parked->error = error;
	cell__mcp_parked_result(job, NULL);
}

void cell__mcp_parked_taken(struct cell__mcp_job *job)
{
	if (job->parked)
		parked_free(job->parked);
}

bool cell__mcp_peer_is_awaited(struct cell__mcp_peer *peer)
{
	struct cell_mcp_server *server = peer->server;
	const struct cell__mcp_parked *parked;
	bool is_awaited;

	pthread_mutex_lock(&server->lock);
	for (parked = server->parked; parked && !(parked->peer == peer && parked->job); parked = parked->next)
		;
	is_awaited = parked || peer->n_requests || peer->n_workers;
	pthread_mutex_unlock(&server->lock);
	return is_awaited;
}

struct cell__mcp_job *cell__mcp_parked_leaving(const struct cell__mcp_peer *peer)
{
	for (struct cell__mcp_parked *parked = peer->server->parked; parked; parked = parked->next) {
		/* One with an id outlives its connection, in a session that does. */
		if (!parked->left && parked->job && parked->peer == peer && !parked->job->request &&
		    (!parked->id[0] || parked->job->canceller)) {
			parked->left = true;
			return parked->job;
		}
	}
	return NULL;
}

/* ---- a call that is repeated ---- */

/* With the lock held.  NULL: there is no such state, or it is not this call's. */
static struct cell__mcp_parked *find(struct cell__mcp_peer *peer, const struct cell__mcp_tool *tool, const json_t *args,
				     const json_t *state)
{
	const char *text = json_string_length(state) <= CELL_CALL_SEAL_MAX ? json_string_value(state) : NULL;
	const struct cell__sealed_call call = { peer->owner, tool->name, args };
	struct cell__mcp_parked *parked;
	struct cell__call_seal seal;

	if (!text || !cell__call_seal_read(text, &seal) || !cell__call_seal_check(peer->server->state_key, text, &call, clock_s()))
		return NULL;
	for (parked = peer->server->parked; parked && strcmp(parked->round, seal.round); parked = parked->next)
		;
	/* A tool of the program may have been replaced by another one of its name. */
	return parked && parked->tool == tool ? parked : NULL;
}

/* With the lock held, which is released in between; the handle has a user.  Gives the answers that came to the gate. */
static void give_answers(struct cell__mcp_peer *peer, struct cell__mcp_job *job, const json_t *responses)
{
	struct cell__mcp_handle *handle = job->handle;
	const json_t *response;
	struct approval *approval;
	bool is_question;
	uint64_t id;

	for (;;) {
		response = NULL;
		for (approval = job->parked ? job->parked->approvals : NULL; approval; approval = approval->next) {
			response = json_object_get(responses, approval->key);
			if (json_is_object(response))
				break;
		}
		if (!approval)
			return;
		id = approval->id;
		is_question = approval->is_question;
		cell__mcp_job_unpark(job, id);
		pthread_mutex_unlock(&peer->server->lock);
		if (is_question)
			cell__mcp_cells_question(handle, id, response);
		else
			cell__mcp_cells_approval(handle, atomic_load(&peer->cannot_approve), id, response);
		pthread_mutex_lock(&peer->server->lock);
	}
}

bool cell__mcp_task_update(struct cell__mcp_peer *peer, const char *id, const json_t *responses)
{
	struct cell__mcp_parked *parked = kept_find(peer->server, peer->owner, id);
	struct cell__mcp_job *job = parked && parked->is_task ? parked->job : NULL;

	if (!job)
		return parked && parked->is_task; /* one that has ended asks nothing */
	parked->changed_us = cell__now_us();
	job->refs++;
	give_answers(peer, job, responses);
	cell__mcp_job_unref(job);
	return true;
}

int cell__mcp_call_resume(struct cell__mcp_peer *peer, struct cell__mcp_pending *request, const struct cell__mcp_tool *tool,
			  const json_t *args, const json_t *params, json_t **ret_result, json_t **ret_error)
{
	struct cell__mcp_parked *parked = find(peer, tool, args, json_object_get(params, "requestState"));
	struct cell__mcp_job *job = parked ? parked->job : NULL;

	*ret_result = *ret_error = NULL;
	if (!parked)
		return -1;
	if (!job) {
		*ret_result = json_incref(parked->result);
		*ret_error = json_incref(parked->error);
		parked_free(parked);
		return *ret_result || *ret_error ? 0 : -1; /* it was cancelled */
	}
	parked->round[0] = '\0';
	/* It is the request's from now on: whatever the answers lead to finds it there. */
	job->refs++;
	job->request = request;
	request->job = job;
	give_answers(peer, job, json_object_get(params, "inputResponses"));
	/* An answer may be missing; or the job has ended in the meantime, and has answered. */
	if (job->request == request && job->parked && job->parked->approvals && !job->parked->round[0]) {
		job->request = NULL;
		request->job = NULL;
		*ret_result = ask(job->parked);
	} else if (job->request == request) {
		cell__mcp_watch(job);
	}
	cell__mcp_job_unref(job);
	return 0;
}
