/* The host program's additions to a space: functions that are tools, and middlewares. */
#include <string.h>

#include "base/sized.h"
#include "gate/gated_call.h"
#include "space/engine.h"
#include "space/servers.h"
#include "space/space.h"
#include "tools/tools.h"

/* A function of the host, with the public type of its call. */
struct cell__function {
	cell_tool_fn fn;
	void *arg;
	struct cell__function *next;
};

void cell__functions_free(struct cell__function *functions)
{
	while (functions) {
		struct cell__function *next = functions->next;
		free(functions);
		functions = next;
	}
}

struct adding {
	struct cell_space *space;
	const struct cell_tool *tool;
	struct cell_error err;
	int rc;
};

/* struct cell_tool_call is the registry's own call under its public name. */
static void call_function(void *arg, struct cell__host_call *call)
{
	struct cell__function *function = arg;
	function->fn(function->arg, (struct cell_tool_call *)call);
}

static void do_add_tool(void *arg)
{
	struct adding *adding = arg;
	const struct cell_tool *tool = adding->tool;
	struct cell__function *function = cell__alloc(1, sizeof *function), **functions = cell__space_functions(adding->space);
	if (!function) {
		adding->rc = cell_fail(&adding->err, CELL_E_NOMEM, 0, "out of memory");
		return;
	}
	*function = (struct cell__function){ .fn = tool->fn, .arg = tool->arg, .next = *functions };
	*functions = function; /* also when the tool is refused: then it is never called */
	struct cell__host_tool host = {
		.name = tool->name,
		.description = tool->description,
		.parameters = tool->parameters,
		.timeout_ms = tool->timeout_ms,
		.fn = call_function,
		.arg = function,
		.supposed = tool->supposed,
	};
	adding->rc = cell__tools_add_host(cell__space_tools(adding->space), &host, &adding->err);
}

int cell_space_add_tool(struct cell_space *space, const struct cell_tool *tool, struct cell_error *err)
{
	if (cell__require(err, space, tool) < 0)
		return -1;
	struct cell_tool all = CELL_TOOL_INIT;
	if (cell__sized_read(&all, sizeof all, tool, "cell_tool", err) < 0)
		return -1;
	if (!all.name || !all.fn)
		return cell_fail(err, CELL_E_INVALID, 0, "a tool needs a name and a function");
	struct adding adding = { .space = space, .tool = &all };
	cell__loop_call(cell__space_engine(space)->loop, do_add_tool, &adding);
	if (adding.rc < 0 && err)
		*err = adding.err;
	return adding.rc;
}

struct adding_middleware {
	struct cell_space *space;
	const struct cell_middleware *middleware;
	struct cell_error err;
	int rc;
};

static void do_add_middleware(void *arg)
{
	struct adding_middleware *adding = arg;
	struct cell_space *space = adding->space;
	adding->rc = cell__middlewares_add(cell__space_middlewares(space), adding->middleware, cell__space_engine(space)->loop,
					   &adding->err);
}

int cell_space_add_middleware(struct cell_space *space, const struct cell_middleware *middleware, struct cell_error *err)
{
	if (cell__require(err, space, middleware) < 0)
		return -1;
	struct cell_middleware all = CELL_MIDDLEWARE_INIT;
	if (cell__sized_read(&all, sizeof all, middleware, "cell_middleware", err) < 0)
		return -1;
	struct adding_middleware adding = { .space = space, .middleware = &all };
	cell__loop_call(cell__space_engine(space)->loop, do_add_middleware, &adding);
	if (adding.rc < 0 && err)
		*err = adding.err;
	return adding.rc;
}

static struct cell__host_call *inner(const struct cell_tool_call *call)
{
	return (struct cell__host_call *)call;
}

const char *cell_tool_call_args(const struct cell_tool_call *call)
{
	if (!call)
		return "";
	return cell__host_call_args(inner(call));
}

const char *cell_tool_call_session_id(const struct cell_tool_call *call)
{
	if (!call)
		return "";
	return cell__host_call_session_id(inner(call));
}

int cell_tool_call_cancelled(const struct cell_tool_call *call)
{
	if (!call)
		return 0;
	return cell__host_call_cancelled(inner(call));
}

void cell_tool_call_answer_json(struct cell_tool_call *call, const char *json, size_t size)
{
	if (!call)
		return;
	if (!json && size > 0)
		cell_tool_call_fail(call, "the host's answer is NULL");
	else
		cell__host_call_reply(inner(call), CELL__REPLY_JSON, json, size);
}

void cell_tool_call_answer_text(struct cell_tool_call *call, const char *text, size_t size)
{
	if (!call)
		return;
	if (!text && size > 0)
		cell_tool_call_fail(call, "the host's answer is NULL");
	else
		cell__host_call_reply(inner(call), CELL__REPLY_TEXT, text, size);
}

void cell_tool_call_fail(struct cell_tool_call *call, const char *message)
{
	if (!call)
		return;
	if (!message)
		message = "the host gave no reason";
	cell__host_call_reply(inner(call), CELL__REPLY_FAIL, message, strlen(message));
}
