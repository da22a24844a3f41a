/*
 * Requests of revision 2026-07-28: each describes itself in `_meta` and, over HTTP, in headers; and the stream of changes that the server
 * reports (subscriptions/listen).
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "mcp/client/internal.h"
#include "mcp/client/param_headers.h"

#define LISTEN_MS 1000     /* before a stream that ended is opened again, doubled for each that brought nothing */
#define LISTEN_TRIES 6u    /* in a row; then changes are seen when the list expires */

bool cell__mcp_elicits(const struct cell__mcp_client *client)
{
	return client->opts.elicit && (!client->opts.elicits || client->opts.elicits(client->opts.arg));
}

void cell__mcp_keep_capabilities(struct cell__mcp_client *client, const json_t *capabilities)
{
	client->lists_change = json_is_true(json_object_get(json_object_get(capabilities, "tools"), "listChanged"));
	client->logs = json_is_object(json_object_get(capabilities, "logging"));
	client->listen_tries = 0;
}

/* ---- _meta ---- */

static json_t *make_capabilities(const struct cell__mcp_client *client)
{
	json_t *capabilities = json_pack("{s:{s:{}}}", "extensions", CELL_MCP_META "tasks");
	if (capabilities && cell__mcp_elicits(client))
		json_object_set_new(capabilities, "elicitation", json_pack("{s:{}, s:{}}", "form", "url"));
	return capabilities;
}

int cell__mcp_describe(struct cell__mcp_client *client, struct cell__mcp_request *request)
{
	if (!request->params && !(request->params = json_object()))
		return -1;
	json_t *meta = json_pack("{s:s, s:{s:s, s:s}, s:o}", CELL_MCP_META "protocolVersion", CELL_MCP_MODERN, CELL_MCP_META "clientInfo",
				 "name", "workcell", "version", cell_version(), CELL_MCP_META "clientCapabilities",
				 make_capabilities(client));
	if (!meta)
		return -1;
	int rc = 0;
	if (request->progress)
		rc |= json_object_set_new(meta, "progressToken", json_integer((json_int_t)request->id));
	if (client->logs && client->opts.log && !request->own)
		rc |= json_object_set_new(meta, CELL_MCP_META "logLevel", json_string("info"));
	/* In this era the server decides what becomes a task. */
	json_object_del(request->params, "task");
	rc |= json_object_set_new(request->params, "_meta", meta);
	return rc;
}

/* ---- headers ---- */

/* The value that names what a request is about; NULL: none. */
static const char *name_of(const struct cell__mcp_request *request)
{
	const char *method = request->method;
	const char *key = strcmp(method, "tools/call") == 0 || strcmp(method, "prompts/get") == 0 ? "name"
			  : strcmp(method, "resources/read") == 0                                 ? "uri"
			  : strncmp(method, "tasks/", 6) == 0                                     ? "taskId"
												  : NULL;
	return key ? json_string_value(json_object_get(request->params, key)) : NULL;
}

const json_t *cell__mcp_find_tool(const struct cell__mcp_client *client, const char *name)
{
	size_t i;
	json_t *tool;
	json_array_foreach(client->tools, i, tool) {
		const char *each = json_string_value(json_object_get(tool, "name"));
		if (each && strcmp(each, name) == 0)
			return tool;
	}
	return NULL;
}

int cell__mcp_make_headers(struct cell__mcp_client *client, const struct cell__mcp_request *request, char ***ret_headers,
			   struct cell_error *err)
{
	struct cell__header_list list = { 0 };
	const char *name = name_of(request);
	int rc = cell__header_list_add(&list, "MCP-Protocol-Version", CELL_MCP_MODERN);
	rc = rc < 0 ? rc : cell__header_list_add(&list, "Mcp-Method", request->method);
	if (rc == 0 && name)
		rc = cell__header_list_add(&list, "Mcp-Name", name);
	if (rc < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (rc == 0 && client->param_headers && name && strcmp(request->method, "tools/call") == 0) {
		const json_t *tool = cell__mcp_find_tool(client, name);
		rc = cell__param_headers_add(&list, json_object_get(tool, "inputSchema"), json_object_get(request->params, "arguments"),
					     err);
	}
	if (rc < 0) {
		cell__header_list_finish(&list);
		return -1;
	}
	*ret_headers = list.lines;
	return 0;
}

/* ---- the stream of changes ---- */

static void handle_listening_ended(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_client *client = request->client;
	bool refused = answer->message && answer->message->kind == CELL__RPC_ERROR;
	if (client->state != CELL_MCP_READY || client->closing || refused || client->listen_tries >= LISTEN_TRIES)
		return;
	client->listen_at_us = cell__now_us() + ((int64_t)LISTEN_MS << client->listen_tries++) * 1000;
	cell__mcp_arm(client, client->listen_at_us);
}

void cell__mcp_listen(struct cell__mcp_client *client)
{
	bool again = client->listen_at_us != 0;
	client->listen_at_us = 0;
	if (!client->modern || !client->lists_change || client->listening.list || client->state != CELL_MCP_READY)
		return;
	client->listening = (struct cell__mcp_request){
		.method = "subscriptions/listen",
		.params = json_pack("{s:{s:b}}", "notifications", "toolsListChanged", 1),
		.timeout_ms = -1,
		.done = handle_listening_ended,
		.client = client,
		.own = true,
	};
	if (!client->listening.params)
		return;
	cell__mcp_send_request(client, &client->listening);
	/* What changed in between was not reported. */
	if (again && client->state == CELL_MCP_READY)
		cell__mcp_list_start(client);
}
