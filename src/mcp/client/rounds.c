/*
 * Answers of revision 2026-07-28 that are not the end of a request.
 *
 *     sent ──"input_required"──▶ parked: its questions are put to a person ──all answered──▶ sent again, with a new id
 *       └────"task"────────────▶ parked: tasks/get every pollIntervalMs ──▶ completed, failed, cancelled: the request's answer
 *                                   └─ status "input_required": the questions ──all answered──▶ tasks/update ──▶ polled again
 *
 * A parked request stays in `sent`, keeps its deadline, and no message of the server can answer it by its old id. It ends as every request
 * does; a task that nobody waits for any more is cancelled at the server.  A server may show a question of a task again until it has read our
 * update: a person is asked once for each key.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>

#include "mcp/client/internal.h"

struct cell__mcp_round {
	struct cell__mcp_request *request;
	unsigned rounds;
	unsigned open;      /* questions without an answer */
	json_t *responses;  /* key: answer */
	json_t *asked;      /* of a task: the keys of all questions so far */
	char *task;         /* the id of the task that the server works on; NULL: none */
	int64_t poll_ms;
	int64_t poll_at_us; /* 0: not now */
	struct cell__mcp_request helper; /* tasks/get, tasks/update */
};

void cell__mcp_round_free(struct cell__mcp_round *round)
{
	if (!round)
		return;
	cell__mcp_take(&round->helper);
	json_decref(round->responses);
	json_decref(round->asked);
	free(round->task);
	free(round);
}

static struct cell__mcp_round *need_round(struct cell__mcp_request *request)
{
	if (!request->round && (request->round = cell__alloc(1, sizeof *request->round)))
		request->round->request = request;
	return request->round;
}

/* Also ends its task, if there is one. */
static void fail(struct cell__mcp_request *request, int code, const char *what)
{
	struct cell__mcp_failure failure = { .tail = NULL };
	cell_fail(&failure.err, code, 0, "%s", what);
	request->parked = true; /* the server has answered */
	cell__mcp_abandon(request, what);
	cell__mcp_request_fail(request, &failure);
}

/* ---- questions ---- */

static void all_answered(struct cell__mcp_client *client, struct cell__mcp_request *request);

/* The client may have been closed, and the request be over, when it returns. */
static int ask(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *questions)
{
	struct cell__mcp_round *round = request->round;
	const char *key;
	json_t *question;
	json_object_foreach((json_t *)questions, key, question) {
		const char *method = json_string_value(json_object_get(question, "method"));
		if (!method || strcmp(method, "elicitation/create") != 0 || !cell__mcp_elicits(client) ||
		    !json_is_object(json_object_get(question, "params")))
			return -1;
	}
	json_decref(round->responses);
	round->responses = json_object();
	round->open = (unsigned)json_object_size(questions);
	/* While they are asked an answer may come at once, and may end the request: what is left is asked only if it still waits. */
	CELL_AUTO_FREE struct cell__mcp_elicitation **made = cell__alloc(round->open, sizeof *made);
	unsigned n = 0;
	json_object_foreach((json_t *)questions, key, question)
		if (made && (made[n] = cell__mcp_elicitation_create(client, request, NULL, key, json_object_get(question, "params"))))
			n++;
	if (!made || !round->responses || n < round->open) {
		while (n > 0)
			cell__mcp_elicitation_discard(made[--n]);
		return -1;
	}
	n = 0;
	request->parked = true;
	json_t *asked = json_incref((json_t *)questions);
	uint64_t connection = client->connection;
	json_object_foreach(asked, key, question) {
		if (client->connection != connection || client->closing)
			cell__mcp_elicitation_discard(made[n++]);
		else
			client->opts.elicit(client->opts.arg, made[n++], request, json_object_get(question, "params"));
	}
	json_decref(asked);
	return 0;
}

void cell__mcp_round_answer(struct cell__mcp_client *client, struct cell__mcp_request *request, const char *key, const char *action,
			    json_t *content)
{
	struct cell__mcp_round *round = request->round;
	json_t *response = json_pack("{s:s, s:O*}", "action", action, "content", content);
	if (!round || round->open == 0) {
		json_decref(response);
		return;
	}
	if (response)
		json_object_set_new(round->responses, key, response);
	if (--round->open == 0)
		all_answered(client, request);
}

/* ---- another round of the same request ---- */

static bool wants_input(const json_t *result, const json_t **ret_questions)
{
	const json_t *questions = json_object_get(result, "inputRequests");
	*ret_questions = json_object_size(questions) > 0 ? questions : NULL;
	return (!questions || json_is_object(questions)) && json_object_size(questions) <= CELL_MCP_LIMIT_ELICITATIONS;
}

static void send_again(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	json_t *responses = request->round->responses;
	if (responses && json_object_size(responses) > 0)
		json_object_set(request->params, "inputResponses", responses);
	request->parked = false;
	cell__mcp_send_request(client, request);
}

static void handle_input_required(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *result)
{
	const json_t *questions, *state = json_object_get(result, "requestState");
	struct cell__mcp_round *round = need_round(request);
	if (!round) {
		fail(request, CELL_E_NOMEM, "out of memory");
		return;
	}
	request->parked = true;
	if (!wants_input(result, &questions) || (state && !json_is_string(state))) {
		fail(request, CELL_E_PROTOCOL, "the server asks for input in a form that is not understood");
		return;
	}
	if (++round->rounds > CELL_MCP_LIMIT_ROUNDS) {
		fail(request, CELL_E_LIMIT, "the server asked for input too often during one call");
		return;
	}
	json_decref(cell__take_ptr(round->responses)); /* of the round before */
	json_object_del(request->params, "inputResponses");
	json_object_del(request->params, "requestState");
	if (state)
		json_object_set(request->params, "requestState", (json_t *)state);
	if (!questions)
		send_again(client, request);
	else if (ask(client, request, questions) < 0)
		fail(request, CELL_E_TOOL, "the server asks for input that nobody here can give");
}

/* ---- tasks ---- */

static void poll_later(struct cell__mcp_client *client, struct cell__mcp_round *round, const json_t *task)
{
	const json_t *interval = json_object_get(task, "pollIntervalMs");
	if (json_is_number(interval)) {
		double ms = json_number_value(interval);
		round->poll_ms = ms >= CELL_MCP_POLL_MIN_MS && ms <= CELL_MCP_POLL_MAX_MS ? (int64_t)ms
				 : ms > CELL_MCP_POLL_MAX_MS                              ? CELL_MCP_POLL_MAX_MS
											  : CELL_MCP_POLL_MIN_MS;
	}
	if (round->poll_ms == 0)
		round->poll_ms = CELL_MCP_POLL_MS;
	round->poll_at_us = cell__now_us() + round->poll_ms * 1000;
	cell__mcp_arm(client, round->poll_at_us);
}

static void handle_task(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *task);

/* Ends the request with what the task came to. */
static void finish_task(struct cell__mcp_request *request, json_t *result, const json_t *error)
{
	struct cell__rpc_message message = { .kind = result ? CELL__RPC_RESULT : CELL__RPC_ERROR, .result = result };
	const json_t *code = json_object_get(error, "code");
	const char *words = json_string_value(json_object_get(error, "message"));
	message.code = json_integer_value(code);
	message.error_text = words ? words : "the task failed without a message";
	struct cell__mcp_answer answer = { .message = &message, .text = "", .size = 0 };
	cell__mcp_finish_request(request, &answer);
}

static void handle_task_answer(struct cell__mcp_request *helper, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_round *round = (struct cell__mcp_round *)((char *)helper - offsetof(struct cell__mcp_round, helper));
	struct cell__mcp_request *request = round->request;
	struct cell__mcp_client *client = helper->client;
	if (answer->failure)
		cell__mcp_abandon(request, "its task does not answer");
	if (answer->failure || answer->message->kind == CELL__RPC_ERROR)
		cell__mcp_finish_request(request, answer);
	else if (strcmp(helper->method, "tasks/update") == 0)
		poll_later(client, round, NULL);
	else
		handle_task(client, request, answer->message->result);
}

static void send_helper(struct cell__mcp_client *client, struct cell__mcp_round *round, const char *method, json_t *params)
{
	cell__mcp_take(&round->helper);
	round->helper = (struct cell__mcp_request){
		.method = method,
		.params = params,
		.timeout_ms = CELL_MCP_LIST_TIMEOUT_MS,
		.done = handle_task_answer,
		.client = client,
		.own = true,
	};
	cell__mcp_send_request(client, &round->helper);
}

/* The questions of a task that were not there before: a new object; NULL: out of memory. */
static json_t *take_new(struct cell__mcp_round *round, const json_t *questions)
{
	json_t *fresh = json_object(), *question;
	const char *key;
	int rc = fresh && (round->asked || (round->asked = json_object())) ? 0 : -1;
	json_object_foreach((json_t *)questions, key, question)
		if (!json_object_get(round->asked, key))
			rc |= json_object_set(fresh, key, question) | json_object_set_new(round->asked, key, json_true());
	if (rc != 0)
		json_decref(cell__take_ptr(fresh));
	return fresh;
}

static void handle_task_questions(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *task)
{
	struct cell__mcp_round *round = request->round;
	const json_t *questions;
	if (!wants_input(task, &questions)) {
		fail(request, CELL_E_PROTOCOL, "the server asks for input in a form that is not understood");
		return;
	}
	json_t *fresh = take_new(round, questions);
	if (!fresh)
		fail(request, CELL_E_NOMEM, "out of memory");
	else if (json_object_size(fresh) == 0)
		poll_later(client, round, task);
	else if (++round->rounds > CELL_MCP_LIMIT_ROUNDS)
		fail(request, CELL_E_LIMIT, "the server asked for input too often during one call");
	else if (ask(client, request, fresh) < 0)
		fail(request, CELL_E_TOOL, "the server asks for input that nobody here can give");
	json_decref(fresh);
}

static void handle_task(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *task)
{
	struct cell__mcp_round *round = request->round;
	const char *status = json_string_value(json_object_get(task, "status"));
	json_t *result = json_object_get(task, "result");
	if (!status)
		fail(request, CELL_E_PROTOCOL, "the server's task has no status");
	else if (strcmp(status, "working") == 0)
		poll_later(client, round, task);
	else if (strcmp(status, "completed") == 0 && json_is_object(result))
		finish_task(request, result, NULL);
	else if (strcmp(status, "failed") == 0)
		finish_task(request, NULL, json_object_get(task, "error"));
	else if (strcmp(status, "cancelled") == 0)
		fail(request, CELL_E_TOOL, "the server cancelled the task");
	else if (strcmp(status, "input_required") != 0)
		fail(request, CELL_E_PROTOCOL, "the status of the server's task is not understood");
	else
		handle_task_questions(client, request, task);
}

static void handle_new_task(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *result)
{
	const char *id = json_string_value(json_object_get(result, "taskId"));
	struct cell__mcp_round *round = need_round(request);
	request->parked = true;
	if (!id || !*id || strlen(id) > CELL_MCP_LIMIT_TASK_ID || strlen(id) != json_string_length(json_object_get(result, "taskId"))) {
		fail(request, CELL_E_PROTOCOL, "the server made a task without a usable id");
		return;
	}
	if (!round || !(round->task = cell__strdup(id))) {
		fail(request, CELL_E_NOMEM, "out of memory");
		return;
	}
	handle_task(client, request, result);
}

static void all_answered(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	struct cell__mcp_round *round = request->round;
	if (round->task)
		send_helper(client, round, "tasks/update",
			    json_pack("{s:s, s:O}", "taskId", round->task, "inputResponses", round->responses));
	else
		send_again(client, request);
}

int64_t cell__mcp_round_due(const struct cell__mcp_request *request)
{
	return request->round ? request->round->poll_at_us : 0;
}

void cell__mcp_round_poll(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	request->round->poll_at_us = 0;
	send_helper(client, request->round, "tasks/get", json_pack("{s:s}", "taskId", request->round->task));
}

const char *cell__mcp_round_task(const struct cell__mcp_request *request)
{
	return request->round ? request->round->task : NULL;
}

/* ---- all of it ---- */

bool cell__mcp_round(struct cell__mcp_client *client, struct cell__mcp_request *request, const json_t *result)
{
	const json_t *type = json_object_get(result, "resultType");
	const char *word = json_string_value(type);
	if (!type || (word && strcmp(word, "complete") == 0))
		return false;
	bool call = !request->own && request != &client->listing.request && json_is_object(request->params);
	if (call && word && strcmp(word, "input_required") == 0)
		handle_input_required(client, request, result);
	else if (call && word && strcmp(word, "task") == 0 && !cell__mcp_round_task(request))
		handle_new_task(client, request, result);
	else
		fail(request, CELL_E_PROTOCOL, "the server's answer has a resultType that is not understood");
	return true;
}
