/*
 * Calls that wait until servers have listed their tools.
 *
 *     asked ──a server is not known──▶ parked ──all known or failed, or too late──▶ handled again, with the known tools
 *                                        └─ cancelled: gone
 *
 * A call about one server waits for that one, as long as its start and its list may take.  A listing of all waits a short
 * time for starting servers, and shows the others without callables: no server prevents another tool from being listed.
 */
#define _GNU_SOURCE
#include <string.h>

#include "tools/mcp.h"

struct parked;

struct park_timer {
	uv_timer_t timer;
	struct parked *parked; /* NULL: over */
};

struct parked {
	struct cell__parked base;
	char *only;         /* the one tool it is about; NULL: see await */
	struct park_timer *timer;
	struct parked *next;
};

static void handle_timer_closed(uv_handle_t *handle)
{
	free(handle->data);
}

static void free_parked(struct parked *parked)
{
	if (parked->timer) {
		parked->timer->parked = NULL;
		uv_close((uv_handle_t *)&parked->timer->timer, handle_timer_closed);
	}
	cell__parked_finish(&parked->base);
	free(parked->only);
	free(parked);
}

static struct cell__call *unpark(struct parked *parked)
{
	for (struct parked **at = (struct parked **)&parked->base.tools->parked; *at; at = &(*at)->next)
		if (*at == parked) {
			*at = parked->next;
			break;
		}
	return cell__parked_take(&parked->base);
}

/* The call is handled again, and does not wait this time. */
static void go_on(struct parked *parked)
{
	struct cell__tools *tools = parked->base.tools;
	struct cell__call *before = tools->settled;
	tools->settled = unpark(parked);
	cell__parked_handle(&parked->base);
	tools->settled = before;
	free_parked(parked);
}

static void handle_late(uv_timer_t *timer)
{
	struct park_timer *late = timer->data;
	if (late->parked)
		go_on(late->parked);
}

static void handle_cancel(struct cell__call *call)
{
	struct parked *parked = call->handler;
	unpark(parked);
	free_parked(parked);
}

/* ---- which servers ---- */

static bool awaited(const struct cell__call *call, const char *only, const struct cell__tool_entry *tool)
{
	if (only)
		return strcmp(only, tool->name) == 0;
	json_t *names = json_object_get(call->args, "await"), *name;
	size_t i;
	if (!json_is_array(names))
		return true;
	json_array_foreach(names, i, name)
		if (json_is_string(name) && strcmp(json_string_value(name), tool->name) == 0)
			return true;
	return false;
}

/* Requests the lists of unknown servers; true when one of them has not answered yet. *ret_longest_ms: the longest time they may take. */
static bool must_wait(struct cell__tools *tools, const struct cell__call *call, const char *only, bool ask, int64_t *ret_longest_ms)
{
	bool waits = false;
	for (size_t i = 0; i < tools->n_index; i++) {
		const struct cell__tool_entry *tool = tools->index[i];
		if (!tool->server || !awaited(call, only, tool))
			continue;
		if (ask)
			cell__mcp_ask(tool->server, call);
		waits |= tool->server->settling || tools->learned_state == CELL__LEARNED_READING;
		if (ret_longest_ms && tool->server->settling && tool->mcp->start_timeout_ms > *ret_longest_ms)
			*ret_longest_ms = tool->mcp->start_timeout_ms;
	}
	return waits;
}

const struct cell__call *cell__mcp_next_parked(const struct cell__tool_server *server, const struct cell__call *after)
{
	const struct parked *parked = server->tools->parked;
	while (after && parked && parked->base.call != after)
		parked = parked->next;
	for (parked = after && parked ? parked->next : parked; parked; parked = parked->next)
		for (size_t i = 0; i < server->tools->n_index; i++)
			if (server->tools->index[i]->server == server && awaited(parked->base.call, parked->only, server->tools->index[i]))
				return parked->base.call;
	return NULL;
}

void cell__mcp_wake(struct cell__tools *tools)
{
	for (struct parked *parked = tools->parked; parked;) {
		if (must_wait(tools, parked->base.call, parked->only, false, NULL)) {
			parked = parked->next;
			continue;
		}
		go_on(parked);
		parked = tools->parked; /* the list may be another now */
	}
}

void cell__mcp_fail_parked(struct cell__tools *tools)
{
	while (tools->parked) {
		struct parked *parked = tools->parked;
		tools->parked = parked->next;
		struct cell__call *call = cell__parked_take(&parked->base);
		free_parked(parked);
		call->fail(call, CELL_E_CLOSED, "ToolCallError", "the session's tools are closed");
	}
}

/* ---- parking ---- */

static struct parked *make_parked(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
				  const struct cell__tool_entry *tool)
{
	struct parked *parked = cell__alloc(1, sizeof *parked);
	if (!parked)
		return NULL;
	parked->only = tool ? cell__strdup(tool->name) : NULL;
	parked->timer = cell__alloc(1, sizeof *parked->timer);
	if (parked->timer) {
		parked->timer->parked = parked;
		parked->timer->timer.data = parked->timer;
		uv_timer_init(cell__loop_uv(tools->opts.loop), &parked->timer->timer);
	}
	if (parked->timer && (!tool || parked->only) && cell__parked_init(&parked->base, tools, view, call, handle_cancel, parked) == 0)
		return parked;
	free_parked(parked);
	return NULL;
}

bool cell__mcp_park(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call, struct cell__tool_entry *tool)
{
	if (tools->settled == call || !tools->servers || (tool && !tool->server))
		return false;
	int64_t wait_ms = 0;
	if (!must_wait(tools, call, tool ? tool->name : NULL, true, &wait_ms))
		return false;
	struct parked *parked = make_parked(tools, view, call, tool);
	if (!parked)
		return false; /* without memory it is handled with the known tools */
	/* A caller that names servers waits until they have started or failed, which the client guarantees. */
	bool named = tool || json_is_array(json_object_get(call->args, "await"));
	wait_ms = named ? wait_ms + CELL_MCP_LIST_TIMEOUT_MS + CELL_MCP_LIST_WAIT_MS : CELL_MCP_LIST_WAIT_MS;
	uv_update_time(cell__loop_uv(tools->opts.loop));
	uv_timer_start(&parked->timer->timer, handle_late, (uint64_t)wait_ms, 0);
	parked->next = tools->parked;
	tools->parked = parked;
	return true;
}

bool cell__mcp_explain(const struct cell__tool_entry *tool, struct cell__call *call)
{
	const struct cell__tool_server *server = tool->server;
	if (!server || cell__mcp_known(server))
		return false;
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	const char *problem = server->problem ? server->problem : "the server has not listed its tools yet";
	int code = server->problem ? server->problem_code : CELL_TOOL_E_TIMEOUT;
	(void)cell__buf_printf(&message, "Tool '%s' failed: %s", tool->name, problem);
	call->fail(call, code, code == CELL_TOOL_E_TIMEOUT ? "ToolTimeoutError" : "ToolCallError",
		   message.data ? message.data : "out of memory");
	return true;
}
