/*
 * Requests of revision 2026-07-28.  There is no initialize: each request says in params._meta which revision it is of and what its client
 * can do, and by HTTP its headers repeat some of it, for proxies.  Nothing of an earlier request is known here, so state is named by a
 * `session` (handles.c).  Requests of both eras may come on one connection.
 */
#include "mcp/server/server.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "mcp/client/param_headers.h"

#define TTL_MS 3600000 /* of lists, which never change while the server runs */

const char cell__mcp_instructions[] =
	"Runs Python in sessions that keep their variables. run_code returns the value of the last expression, the printed output and, for a "
	"new session, its id: pass it as `session` to go on with the same variables. The code can use `tools`, `workflows`, `artifacts` and "
	"`deps`: search_tools lists the tools.<name>(...) that can be called, and calling several of them in one cell is cheaper than one "
	"call each. Plots made with matplotlib are returned as images. reset starts a fresh kernel.";

static const char *const methods[] = { "server/discover", "tools/list",   "tools/call",   "subscriptions/listen",
				       "tasks/get",       "tasks/update", "tasks/cancel", NULL };

static const json_t *meta_of(const struct cell__rpc_message *message)
{
	const json_t *meta = json_is_object(message->params) ? json_object_get(message->params, "_meta") : NULL;

	return json_is_object(meta) ? meta : NULL;
}

bool cell__mcp_is_modern(const struct cell__rpc_message *message)
{
	const json_t *meta = meta_of(message);

	return !strcmp(message->method, methods[0]) || (meta && json_object_get(meta, CELL_MCP_META "protocolVersion"));
}

/* ---- headers ---- */

#define SENTINEL "=?base64?"

bool cell__mcp_header_is(const char *header, const char *text, size_t size)
{
	size_t length = strlen(header), prefix = strlen(SENTINEL);
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, again = CELL_BUF_INIT;

	if (length < prefix + 2 || memcmp(header, SENTINEL, prefix) || memcmp(header + length - 2, "?=", 2)) {
		/* Proxies differ about bytes that are not ASCII: they have to be encoded. */
		for (size_t i = 0; i < length; i++) {
			if (header[i] < 0x20 || header[i] > 0x7e)
				return false;
		}
		return length == size && !memcmp(header, text, size);
	}
	header += prefix;
	length -= prefix + 2;
	/* Only as it is written by whoever encodes: two readers must not differ about it. */
	return !cell__buf_add_unbase64(&bytes, header, length) && !cell__buf_add_base64(&again, bytes.data, bytes.size) &&
	       again.size == length && (!length || !memcmp(again.data, header, length)) && bytes.size == size &&
	       (!size || !memcmp(bytes.data, text, size));
}

/* ---- parameters that are headers too (x-mcp-header) ---- */

#define LARGEST 9007199254740991ll /* 2^53 - 1 */

static bool says(const json_t *header, const json_t *value)
{
	char number[32];

	if (!value || json_is_null(value))
		return !header;
	if (json_is_string(value))
		return json_is_string(header) &&
		       cell__mcp_header_is(json_string_value(header), json_string_value(value), json_string_length(value));
	if (json_is_boolean(value))
		strcpy(number, json_is_true(value) ? "true" : "false");
	else if (json_is_integer(value))
		snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
	else if (json_is_real(value) && json_real_value(value) >= -LARGEST && json_real_value(value) <= LARGEST &&
		 json_real_value(value) == (double)(long long)json_real_value(value))
		snprintf(number, sizeof(number), "%lld", (long long)json_real_value(value)); /* 5.0 is an integer as well */
	else
		return true; /* it does not fit the schema, and its check says so */
	return json_is_string(header) && cell__mcp_header_is(json_string_value(header), number, strlen(number));
}

static const char *find_mismatch(const json_t *schema, const json_t *args, const json_t *headers, unsigned depth)
{
	const char *key, *wrong = NULL;
	json_t *each;

	json_object_foreach(json_object_get(schema, "properties"), key, each) {
		const json_t *value = json_object_get(args, key);
		const char *name = json_string_value(json_object_get(each, "x-mcp-header"));
		char lower[CELL_MCP_LIMIT_PARAM_NAME + 1];

		if (name) {
			size_t size = strlen(name); /* it was checked when the tool was offered */

			for (size_t i = 0; i <= size; i++)
				lower[i] = (char)tolower((unsigned char)name[i]);
			if (!says(json_object_get(headers, lower), value))
				return name;
		}
		if (depth < CELL_MCP_LIMIT_PARAM_DEPTH && (wrong = find_mismatch(each, value, headers, depth + 1)))
			return wrong;
	}
	return NULL;
}

const char *cell__mcp_param_mismatch(const json_t *schema, const json_t *args, const json_t *headers)
{
	return find_mismatch(schema, args, headers, 0);
}

/* The header's words if it does not say what the body does, else NULL. */
static const char *check_head(const struct cell__rpc_message *message, const struct cell__mcp_head *head, const json_t *version)
{
	const json_t *name = NULL;

	if (!head->version || !json_is_string(version) ||
	    !cell__mcp_header_is(head->version, json_string_value(version), json_string_length(version)))
		return "the header MCP-Protocol-Version is missing or differs from the request's _meta";
	if (!head->method || strcmp(head->method, message->method))
		return "the header Mcp-Method is missing or differs from the request's method";
	if (!strcmp(message->method, "tools/call") || !strcmp(message->method, "prompts/get"))
		name = json_object_get(message->params, "name");
	else if (!strcmp(message->method, "resources/read"))
		name = json_object_get(message->params, "uri");
	else if (!strncmp(message->method, "tasks/", 6))
		name = json_object_get(message->params, "taskId");
	if (json_is_string(name) && (!head->name || !cell__mcp_header_is(head->name, json_string_value(name), json_string_length(name))))
		return "the header Mcp-Name is missing or differs from the request's params";
	return NULL;
}

/* ---- the envelope ---- */

static bool is_known(const char *method)
{
	size_t i = 0;

	while (methods[i] && strcmp(methods[i], method))
		i++;
	return methods[i] || cell__mcp_method_find(method);
}

static json_t *versions_data(const json_t *asked)
{
	return json_pack("{s:[s], s:O}", "supported", CELL_MCP_MODERN, "requested", asked);
}

json_t *cell__mcp_lacking(const json_t *needs, const json_t *can)
{
	json_t *lacking = NULL, *need, *inner, *forms = json_pack("{s:{}}", "form");
	const char *key;

	json_object_foreach((json_t *)needs, key, need) {
		const json_t *has = json_object_get(can, key);

		/* `elicitation: {}` means forms. */
		if (!strcmp(key, "elicitation") && json_is_object(has) && !json_object_size(has))
			has = forms;
		inner = json_is_object(need) && json_is_object(has) ? cell__mcp_lacking(need, has)
			: json_equal(need, has)                     ? NULL
								    : json_incref(need);
		if (!inner)
			continue;
		lacking = lacking ? lacking : json_object();
		json_object_set_new(lacking, key, inner);
	}
	json_decref(forms);
	return lacking;
}

static const char no_tasks[] = "the client's capabilities must have the extension " CELL_MCP_TASKS;

static json_t *tasks_data(void)
{
	return json_pack("{s:{s:{s:{}}}}", "requiredCapabilities", "extensions", CELL_MCP_TASKS);
}

static bool knows_tasks(const json_t *capabilities)
{
	return json_is_object(json_object_get(json_object_get(capabilities, "extensions"), CELL_MCP_TASKS));
}

int cell__mcp_modern_check(const struct cell__rpc_message *message, const struct cell__mcp_head *head, struct cell__buf *words,
			   json_t **data)
{
	const json_t *meta = meta_of(message), *version = json_object_get(meta, CELL_MCP_META "protocolVersion");
	const json_t *can = json_object_get(meta, CELL_MCP_META "clientCapabilities");
	const json_t *level = json_object_get(meta, CELL_MCP_META "logLevel");
	const char *wrong = NULL;
	int code = CELL_RPC_INVALID_PARAMS;

	*data = NULL;
	if (head && !version && (!head->version || cell__mcp_speaks(head->version))) {
		code = CELL_RPC_INVALID_REQUEST;
		wrong = "Mcp-Session-Id is required, except for an initialize request";
	} else if (!version || !can) {
		wrong = "params._meta must have " CELL_MCP_META "protocolVersion and " CELL_MCP_META "clientCapabilities";
	} else if (head && (wrong = check_head(message, head, version))) {
		code = CELL_RPC_HEADER_MISMATCH;
	} else if (!json_is_string(version)) {
		wrong = CELL_MCP_META "protocolVersion must be a string";
	} else if (strcmp(json_string_value(version), CELL_MCP_MODERN)) {
		code = CELL_RPC_UNSUPPORTED_VERSION;
		wrong = "unsupported protocol version";
		*data = versions_data(version);
	} else if (!json_is_object(can)) {
		wrong = CELL_MCP_META "clientCapabilities must be an object";
	} else if (level && cell__mcp_log_level(json_string_value(level)) < 0) {
		wrong = CELL_MCP_META "logLevel must be debug, info, notice, warning, error, critical, alert or emergency";
	} else if (!strncmp(message->method, "tasks/", 6) && !knows_tasks(can)) {
		code = CELL_RPC_NEEDS_CAPABILITY;
		wrong = no_tasks;
		*data = tasks_data();
	} else if (!is_known(message->method)) {
		cell__buf_printf(words, "Method not found: %.*s", (int)CELL_RPC_MAX_METHOD, message->method);
		return CELL_RPC_METHOD_NOT_FOUND;
	} else {
		return 0;
	}
	cell__buf_add_str(words, wrong);
	return code;
}

/* ---- results ---- */

void cell__mcp_modern_result(json_t *result)
{
	json_t *meta = json_object_get(result, "_meta");

	if (!json_object_get(result, "resultType"))
		json_object_set_new(result, "resultType", json_string("complete"));
	if (!meta)
		json_object_set_new(result, "_meta", meta = json_object());
	json_object_set_new(meta, CELL_MCP_META "serverInfo",
			    json_pack("{s:s, s:s, s:s}", "name", "workcell", "title", "Workcell", "version", cell_version()));
}

static void discover(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id)
{
	json_t *versions = json_pack("[s]", CELL_MCP_MODERN);

	for (size_t i = 0; versions && cell__mcp_versions[i]; i++)
		json_array_append_new(versions, json_string(cell__mcp_versions[i]));
	cell__mcp_answer_result(peer, unit, id,
				json_pack("{s:o, s:o, s:s, s:i, s:s}", "supportedVersions", versions, "capabilities",
					  cell__mcp_capabilities(peer->server, true), "instructions", cell__mcp_instructions, "ttlMs",
					  TTL_MS, "cacheScope", "private"));
}

static void list_tools(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params)
{
	if (json_object_get(params, "cursor"))
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, "unknown cursor: the list of tools has one page");
	else
		cell__mcp_answer_result(
			peer, unit, id,
			json_pack("{s:o, s:i, s:s}", "tools", cell__mcp_peer_tools(peer), "ttlMs", TTL_MS, "cacheScope", "private"));
}

/* ---- subscriptions ---- */

json_t *cell__mcp_listen_result(const json_t *id)
{
	return json_pack("{s:{s:O}}", "_meta", CELL_MCP_META "subscriptionId", id);
}

/* Acknowledged with what it gets of what it wants; the stream stays open. */
static void begin_listening(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const json_t *params, bool tasks)
{
	const json_t *wanted = json_object_get(params, "notifications");
	const struct cell__mcp_pending *other;
	struct cell__mcp_pending *request = NULL;
	const char *refused = "too many subscriptions";
	size_t n = 0;

	if (!json_is_object(wanted)) {
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, "params.notifications must be an object");
		return;
	}
	if (json_object_get(wanted, "taskIds") && !tasks) {
		json_t *data = tasks_data();

		cell__mcp_answer_error_data(peer, unit, id, CELL_RPC_NEEDS_CAPABILITY, no_tasks, data);
		json_decref(data);
		return;
	}
	pthread_mutex_lock(&peer->server->lock);
	for (other = peer->requests; other; other = other->next)
		n += !other->job;
	if (n < CELL_MCP_MAX_LISTENING)
		request = cell__mcp_pending_create(peer, unit, id, &refused);
	if (request) {
		request->listens = cell__mcp_honour(peer, wanted);
		cell__mcp_peer_notify(
			peer, unit->stream, "notifications/subscriptions/acknowledged",
			json_pack("{s:O, s:{s:O}}", "notifications", request->listens, "_meta", CELL_MCP_META "subscriptionId", id));
		cell__mcp_tell_tasks(request);
	}
	pthread_mutex_unlock(&peer->server->lock);
	if (!request)
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INTERNAL_ERROR, refused);
}

/* ---- tasks ---- */

static void handle_task(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const char *method,
			const json_t *params)
{
	const char *task = json_string_value(json_object_get(params, "taskId"));
	json_t *result = NULL;
	bool found = task != NULL;

	pthread_mutex_lock(&peer->server->lock);
	if (found && !strcmp(method, "tasks/get"))
		found = (result = cell__mcp_task_get(peer, task)) != NULL;
	else if (found && !strcmp(method, "tasks/update"))
		found = cell__mcp_task_update(peer, task, json_object_get(params, "inputResponses"));
	else if (found)
		found = cell__mcp_kept_cancel(peer->server, peer->owner, task) >= 0;
	pthread_mutex_unlock(&peer->server->lock);
	if (found)
		cell__mcp_answer_result(peer, unit, id, result ? result : json_object());
	else
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS,
				       task ? "unknown task: it never was, has expired, or belongs to another client"
					    : "params.taskId must be a string");
}

/* ---- requests ---- */

void cell__mcp_modern_request(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__rpc_message *message)
{
	const json_t *meta = meta_of(message), *can = json_object_get(meta, CELL_MCP_META "clientCapabilities");
	const json_t *elicitation = json_object_get(can, "elicitation");
	struct cell__mcp_said said = {
		.client = json_string_value(json_object_get(json_object_get(meta, CELL_MCP_META "clientInfo"), "name")),
		.can = can,
		.elicits = json_is_object(elicitation) && (!json_object_size(elicitation) || json_object_get(elicitation, "form")),
		.tasks = knows_tasks(can),
		.log_level = cell__mcp_log_level(json_string_value(json_object_get(meta, CELL_MCP_META "logLevel"))),
	};

	if (!strcmp(message->method, "server/discover"))
		discover(peer, unit, message->id);
	else if (!strcmp(message->method, "tools/list"))
		list_tools(peer, unit, message->id, message->params);
	else if (!strcmp(message->method, "tools/call"))
		cell__mcp_handle_call(peer, unit, message->id, message->params, &said);
	else if (!strncmp(message->method, "tasks/", 6))
		handle_task(peer, unit, message->id, message->method, message->params);
	else if (!cell__mcp_handle_method(peer, unit, message->id, message->method, message->params, &said))
		begin_listening(peer, unit, message->id, message->params, said.tasks);
}
