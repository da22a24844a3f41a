/* The list of tools: requested after every start, on demand and when the server says that it changed. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "mcp/client/internal.h"
#include "mcp/client/param_headers.h"

static void ask_page(struct cell__mcp_client *client);

void cell__mcp_list_reset(struct cell__mcp_client *client)
{
	struct cell__mcp_listing *listing = &client->listing;
	json_decref(cell__take_ptr(listing->tools));
	free(cell__take_ptr(listing->cursor));
	listing->pages = 0;
	listing->again = listing->param_headers = false;
	listing->ttl_ms = -1;
	listing->problem[0] = '\0';
}

static void tell(struct cell__mcp_client *client, const struct cell__mcp_failure *failure)
{
	client->listing.wanted = false;
	if (!client->closing)
		client->opts.listed(client->opts.arg, failure);
}

static void finish(struct cell__mcp_client *client)
{
	struct cell__mcp_listing *listing = &client->listing;
	bool again = listing->again;
	json_decref(client->tools);
	client->tools = cell__take_ptr(listing->tools);
	memcpy(client->list_problem, listing->problem, sizeof client->list_problem);
	client->param_headers = listing->param_headers;
	/* Older revisions do not say how long a list is good for. */
	client->fresh_until_us = client->modern ? cell__now_us() + (listing->ttl_ms > 0 ? listing->ttl_ms : 0) * 1000 : 0;
	cell__mcp_list_reset(client);
	cell__mcp_release_held(client);
	tell(client, NULL);
	if (again && client->state == CELL_MCP_READY)
		cell__mcp_list_start(client);
}

static void fail(struct cell__mcp_client *client, const struct cell__mcp_failure *failure)
{
	cell__mcp_list_reset(client);
	if (client->state == CELL_MCP_READY)
		cell__mcp_release_held(client);
	tell(client, failure);
}

static void fail_with(struct cell__mcp_client *client, int code, const char *what)
{
	struct cell__mcp_failure failure = { .tail = NULL };
	cell_fail(&failure.err, code, 0, "%s", what);
	fail(client, &failure);
}

/* Parameters that must be sent as headers: a tool that asks for it in a wrong way is left out. */
static bool check_headers(struct cell__mcp_listing *listing, const json_t *tool)
{
	const char *why = "", *name = json_string_value(json_object_get(tool, "name"));
	int count = cell__param_headers_check(json_object_get(tool, "inputSchema"), &why);
	if (count < 0)
		snprintf(listing->problem, sizeof listing->problem, "the tool '%.60s' was skipped: %s", name ? name : "", why);
	listing->param_headers |= count > 0;
	return count >= 0;
}

static void note_ttl(struct cell__mcp_listing *listing, const json_t *ttl)
{
	double ms = json_number_value(ttl); /* 0 if it is not a number */
	int64_t whole = ms <= 0 ? 0 : ms < CELL_MCP_TTL_MAX_MS ? (int64_t)ms : CELL_MCP_TTL_MAX_MS;
	if (listing->ttl_ms < 0 || whole < listing->ttl_ms)
		listing->ttl_ms = whole;
}

/* Adds a page. False: it was the last one. */
static bool add_page(const struct cell__mcp_client *client, struct cell__mcp_listing *listing, const json_t *tools)
{
	size_t i;
	json_t *tool;
	json_array_foreach((json_t *)tools, i, tool) {
		if (json_array_size(listing->tools) >= CELL_MCP_LIMIT_TOOLS) {
			snprintf(listing->problem, sizeof listing->problem, "the server has more than %u tools; the rest was skipped",
				 CELL_MCP_LIMIT_TOOLS);
			return false;
		}
		if (client->modern && client->kind == CELL_MCP_HTTP && !check_headers(listing, tool))
			continue;
		if (json_array_append(listing->tools, tool) < 0)
			return false;
	}
	return true;
}

static void handle_page(struct cell__mcp_request *request, const struct cell__mcp_answer *answer)
{
	struct cell__mcp_client *client = request->client;
	struct cell__mcp_listing *listing = &client->listing;
	const struct cell__rpc_message *message = answer->message;
	if (answer->failure) {
		fail(client, answer->failure);
		return;
	}
	if (message->kind == CELL__RPC_ERROR) {
		char what[200];
		snprintf(what, sizeof what, "the server refused to list its tools: %.140s", message->error_text);
		/* A server without tools need not know the question. */
		if (message->code == CELL_RPC_METHOD_NOT_FOUND)
			finish(client);
		else
			fail_with(client, CELL_E_TOOL, what);
		return;
	}
	const json_t *tools = json_object_get(message->result, "tools");
	const json_t *next = json_object_get(message->result, "nextCursor");
	const char *cursor = json_string_value(next);
	if (!json_is_array(tools)) {
		fail_with(client, CELL_E_PROTOCOL, "the server's list of tools is not a list");
		return;
	}
	note_ttl(listing, json_object_get(message->result, "ttlMs"));
	if (!add_page(client, listing, tools) || !cursor) {
		finish(client);
		return;
	}
	if (++listing->pages >= CELL_MCP_LIMIT_PAGES || (listing->cursor && strcmp(listing->cursor, cursor) == 0)) {
		snprintf(listing->problem, sizeof listing->problem, "the server's list of tools does not end; the rest was skipped");
		finish(client);
		return;
	}
	free(listing->cursor);
	listing->cursor = cell__strdup(cursor);
	ask_page(client);
}

static void ask_page(struct cell__mcp_client *client)
{
	struct cell__mcp_listing *listing = &client->listing;
	listing->request = (struct cell__mcp_request){
		.method = "tools/list",
		.params = listing->cursor ? json_pack("{s:s}", "cursor", listing->cursor) : NULL,
		.timeout_ms = CELL_MCP_LIST_TIMEOUT_MS,
		.done = handle_page,
	};
	struct cell_error err;
	if (cell__mcp_request_start(client, &listing->request, &err) < 0) {
		json_decref(cell__take_ptr(listing->request.params));
		fail_with(client, err.code, err.msg);
	}
}

void cell__mcp_list_start(struct cell__mcp_client *client)
{
	struct cell__mcp_listing *listing = &client->listing;
	if (listing->request.list)
		return;
	cell__mcp_list_reset(client);
	listing->tools = json_array();
	if (listing->tools)
		ask_page(client);
	else
		fail_with(client, CELL_E_NOMEM, "out of memory");
}
