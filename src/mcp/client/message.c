/* The messages of a server: answers, questions, notifications; and unusable ones. */
#define _GNU_SOURCE
#include <string.h>

#include "calls/schema.h"
#include "mcp/client/internal.h"
#include "wire/json_find.h"

/* ---- floods ---- */

/* Counts a message that answered no request. False: there were too many, and the connection is dropped. */
static bool count_idle(struct cell__mcp_client *client, size_t size)
{
	int64_t seconds = (cell__now_us() - client->window_us) / 1000000;
	if (seconds > 0) {
		uint64_t bytes = (uint64_t)seconds * CELL_MCP_FORGIVEN_BYTES;
		uint64_t messages = (uint64_t)seconds * CELL_MCP_FORGIVEN_MESSAGES;
		client->window_us += seconds * 1000000;
		client->idle_bytes -= bytes < client->idle_bytes ? bytes : client->idle_bytes;
		client->idle_messages -= messages < client->idle_messages ? messages : client->idle_messages;
	}
	client->idle_bytes += size;
	client->idle_messages++;
	if (client->idle_bytes <= CELL_MCP_LIMIT_IDLE_BYTES && client->idle_messages <= CELL_MCP_LIMIT_IDLE_MESSAGES)
		return true;
	struct cell_error err;
	cell_fail(&err, CELL_E_LIMIT, 0, "the server sent too many messages that answer no request; it was stopped");
	cell__mcp_drop(client, &err);
	return false;
}

/* ---- answers ---- */

/* The headers of a call were not those that the server's schema asks for: it may have changed, so the call is made once more after a list. */
static bool must_list_first(const struct cell__mcp_client *client, const struct cell__mcp_request *request,
			    const struct cell__rpc_message *message)
{
	return client->modern && client->kind == CELL_MCP_HTTP && message->kind == CELL__RPC_ERROR &&
	       message->code == CELL_RPC_HEADER_MISMATCH && !request->again && !request->own && request != &client->listing.request;
}

static bool handle_answer(struct cell__mcp_client *client, const struct cell__rpc_message *message, const char *text, size_t size)
{
	struct cell__mcp_request *request = json_is_integer(message->id) ? cell__mcp_find(client, json_integer_value(message->id)) : NULL;
	if (!request || request->id == 0 || request->parked)
		return false; /* a second answer, a late one, or one without a request */
	if (!request->own && request != &client->listing.request)
		client->failures = 0;
	cell__mcp_transport_forget(client->transport, request->id);
	if (client->modern && message->kind == CELL__RPC_RESULT && cell__mcp_round(client, request, message->result))
		return true;
	if (must_list_first(client, request, message)) {
		cell__mcp_hold(request);
		cell__mcp_list_start(client);
		return true;
	}
	struct cell__mcp_answer answer = { .message = message, .text = text, .size = size };
	cell__mcp_finish_request(request, &answer);
	return true;
}

/*
 * Some JSON cannot be parsed (a NUL in a name, a number past all bounds, too deep). If it shows which request it answers, that request
 * fails now instead of at its deadline.
 */
static bool refuse_unreadable(struct cell__mcp_client *client, const char *text, size_t size, const struct cell_error *err)
{
	static const char *const path[] = { "id", NULL };
	struct cell__mcp_failure failure = { .err = *err };
	const char *found;
	size_t digits;
	int64_t id = 0;
	if (!cell__json_find(text, size, path, &found, &digits) || digits == 0 || digits > 18)
		return false;
	for (size_t i = 0; i < digits; i++) {
		if (found[i] < '0' || found[i] > '9')
			return false;
		id = id * 10 + (found[i] - '0');
	}
	struct cell__mcp_request *request = cell__mcp_find(client, id);
	if (!request || request->id == 0 || request->parked)
		return false;
	cell_fail_wrap(&failure.err, "the server's answer cannot be read");
	if (request == &client->init || request == &client->probe) {
		cell__mcp_drop(client, &failure.err);
		return true;
	}
	cell__mcp_transport_forget(client->transport, id);
	cell__mcp_request_fail(request, &failure);
	return true;
}

/* ---- questions ---- */

static void reply_error(struct cell__mcp_client *client, const json_t *id, int64_t code, const char *message)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__rpc_add_error(&text, id, code, message, NULL) == 0)
		cell__mcp_send(client, &text, 0);
}

static void reply(struct cell__mcp_client *client, const json_t *id, json_t *result)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (result && cell__rpc_add_result(&text, id, result) == 0)
		cell__mcp_send(client, &text, 0);
	json_decref(result);
}

static void forget_elicitation(struct cell__mcp_elicitation *elicitation)
{
	struct cell__mcp_client *client = elicitation->client;
	if (!client)
		return;
	for (struct cell__mcp_elicitation **at = &client->elicitations; *at; at = &(*at)->next)
		if (*at == elicitation) {
			*at = elicitation->next;
			client->n_elicitations--;
			break;
		}
	elicitation->client = NULL;
	if (client->n_elicitations > 0)
		return;
	/* The person's time is added to the server's deadlines. */
	int64_t asked_us = cell__now_us() - client->elicit_us;
	for (struct cell__mcp_request *request = client->sent.first; request; request = request->next)
		if (request->deadline_us && !request->own)
			request->deadline_us += asked_us;
	cell__mcp_arm(client, cell__now_us());
}

static void free_elicitation(struct cell__mcp_elicitation *elicitation)
{
	json_decref(elicitation->id);
	json_decref(elicitation->form);
	free(elicitation->key);
	free(elicitation);
}

void cell__mcp_elicitation_answer(struct cell__mcp_elicitation *elicitation, const char *action, json_t *content)
{
	struct cell__mcp_client *client = elicitation->client;
	if (elicitation->form && strcmp(action, "accept") == 0) {
		content = content ? content : json_object();
		(void)cell__schema_add_defaults(elicitation->form, content);
	}
	struct cell__mcp_request *request = elicitation->request;
	bool valid = client && client->connection == elicitation->connection;
	if (valid && elicitation->id) {
		json_t *result = json_pack("{s:s}", "action", action);
		if (result && content)
			json_object_set(result, "content", content);
		reply(client, elicitation->id, result);
	}
	forget_elicitation(elicitation);
	/* The last answer sends the request again. */
	if (valid && elicitation->key && request)
		cell__mcp_round_answer(client, request, elicitation->key, action, content);
	json_decref(content);
	free_elicitation(elicitation);
}

void cell__mcp_elicitation_watch(struct cell__mcp_elicitation *elicitation, void (*gone)(void *arg), void *arg)
{
	elicitation->gone = gone;
	elicitation->gone_arg = arg;
}

/* Its answer will be dropped. */
static void drop_elicitation(struct cell__mcp_elicitation *elicitation)
{
	forget_elicitation(elicitation);
	if (elicitation->gone)
		elicitation->gone(elicitation->gone_arg);
}

/* Their connection is gone. */
void cell__mcp_drop_elicitations(struct cell__mcp_client *client)
{
	while (client->elicitations)
		drop_elicitation(client->elicitations);
}

void cell__mcp_end_elicitations(struct cell__mcp_client *client, const struct cell__mcp_request *request)
{
	for (struct cell__mcp_elicitation *each = client->elicitations; each;) {
		bool its_own = each->request == request;
		if (its_own)
			each->request = NULL;
		if (!its_own || !each->gone) {
			each = each->next;
			continue;
		}
		each->gone(each->gone_arg); /* answers it, so that the server need not wait */
		each = client->elicitations;
	}
}

/* The call that a question belongs to, if there is only one. */
static struct cell__mcp_request *only_call(const struct cell__mcp_client *client)
{
	struct cell__mcp_request *found = NULL;
	for (struct cell__mcp_request *request = client->sent.first; request; request = request->next) {
		if (request->own || request == &client->listing.request)
			continue;
		if (found)
			return NULL;
		found = request;
	}
	return found;
}

struct cell__mcp_elicitation *cell__mcp_elicitation_create(struct cell__mcp_client *client, struct cell__mcp_request *request, json_t *id,
							   const char *key, const json_t *params)
{
	json_t *form = json_object_get(params, "requestedSchema");
	struct cell__mcp_elicitation *elicitation = cell__alloc(1, sizeof *elicitation);
	char *copy = key ? cell__strdup(key) : NULL;
	if (!elicitation || (key && !copy)) {
		free(elicitation);
		free(copy);
		return NULL;
	}
	*elicitation = (struct cell__mcp_elicitation){
		.client = client,
		.connection = client->connection,
		.id = json_incref(id),
		.key = copy,
		.form = json_is_object(form) ? json_incref(form) : NULL,
		.request = request,
		.next = client->elicitations,
	};
	client->elicitations = elicitation;
	if (client->n_elicitations++ == 0)
		client->elicit_us = cell__now_us();
	return elicitation;
}

void cell__mcp_elicitation_discard(struct cell__mcp_elicitation *elicitation)
{
	forget_elicitation(elicitation);
	free_elicitation(elicitation);
}

static void handle_elicitation(struct cell__mcp_client *client, const struct cell__rpc_message *message)
{
	if (!client->opts.elicit || client->n_elicitations >= CELL_MCP_LIMIT_ELICITATIONS || !json_is_object(message->params)) {
		reply(client, message->id, json_pack("{s:s}", "action", "decline"));
		return;
	}
	struct cell__mcp_elicitation *elicitation = cell__mcp_elicitation_create(client, only_call(client), message->id, NULL,
										 message->params);
	if (!elicitation) {
		reply_error(client, message->id, CELL_RPC_INTERNAL_ERROR, "out of memory");
		return;
	}
	client->opts.elicit(client->opts.arg, elicitation, elicitation->request, message->params);
}

static void handle_question(struct cell__mcp_client *client, const struct cell__rpc_message *message)
{
	if (client->modern)
		reply_error(client, message->id, CELL_RPC_METHOD_NOT_FOUND, "Method not found"); /* its servers send no requests */
	else if (strcmp(message->method, "ping") == 0)
		reply(client, message->id, json_object());
	else if (strcmp(message->method, "elicitation/create") == 0)
		handle_elicitation(client, message);
	else
		reply_error(client, message->id, CELL_RPC_METHOD_NOT_FOUND, "Method not found");
}

/* ---- notifications ---- */

static void handle_progress(struct cell__mcp_client *client, const json_t *params)
{
	const json_t *token = json_object_get(params, "progressToken");
	struct cell__mcp_request *request = json_is_integer(token) ? cell__mcp_find(client, json_integer_value(token)) : NULL;
	if (request && request->progress)
		request->progress(request, params);
}

/* The server takes a question back. */
static void handle_cancelled(struct cell__mcp_client *client, const json_t *params)
{
	const json_t *id = json_object_get(params, "requestId");
	for (struct cell__mcp_elicitation *each = client->elicitations; id && each; each = each->next)
		if (json_equal(each->id, (json_t *)id)) {
			drop_elicitation(each);
			return;
		}
}

static void handle_notification(struct cell__mcp_client *client, const struct cell__rpc_message *message)
{
	if (strcmp(message->method, "notifications/progress") == 0)
		handle_progress(client, message->params);
	else if (strcmp(message->method, "notifications/message") == 0 && client->opts.log)
		client->opts.log(client->opts.arg, message->params);
	else if (strcmp(message->method, "notifications/cancelled") == 0)
		handle_cancelled(client, message->params);
	else if (strcmp(message->method, "notifications/subscriptions/acknowledged") == 0)
		client->listen_tries = 0;
	else if (strcmp(message->method, "notifications/tools/list_changed") == 0 && client->state == CELL_MCP_READY) {
		if (client->listing.request.list)
			client->listing.again = true;
		else
			cell__mcp_list_start(client);
	}
}

/* ---- all of it ---- */

/* False: it was of no use. */
static bool handle_message(struct cell__mcp_client *client, const struct cell__rpc_message *message, const char *text, size_t size)
{
	switch (message->kind) {
	case CELL__RPC_RESULT:
	case CELL__RPC_ERROR:
		return handle_answer(client, message, text, size);
	case CELL__RPC_REQUEST:
		handle_question(client, message);
		return false;
	case CELL__RPC_NOTIFICATION:
		handle_notification(client, message);
		return false;
	}
	return false;
}

void cell__mcp_handle_text(struct cell__mcp_client *client, const char *text, size_t size)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell_error err;
	uint64_t connection = client->connection;
	/* Any message proves that the server is alive. */
	if (client->ping.list)
		cell__mcp_take(&client->ping);
	if (cell__rpc_read(text, size, client->batches, &doc, &err) < 0) {
		/* Many servers print a greeting on their stdout: that is not a message, and not a reason to end the connection. */
		if (!refuse_unreadable(client, text, size, &err))
			count_idle(client, size);
		return;
	}
	for (size_t i = 0; i < doc.count && client->connection == connection && !client->closing; i++) {
		struct cell__rpc_message message;
		bool of_use = cell__rpc_get(&doc, i, &message, NULL) == 0 && handle_message(client, &message, text, size);
		bool alive = client->connection == connection && !client->closing;
		if (of_use) {
			client->idle_bytes = client->idle_messages = 0;
			if (alive)
				cell__mcp_flush(client);
		} else if (alive && !count_idle(client, size / doc.count)) {
			return;
		}
	}
}
