/*
 * Host functions: called on the loop's thread, answered from any.
 *
 *     asked ──fn()──▶ the host's ──answer or fail, any thread──▶ posted ──loop's thread──▶ delivered and gone
 *                        └─ cancelled or timed out: the answer still comes, and is dropped
 *
 * The host owns a call from fn() to its answer, however long that takes, also past the end of the registry.  Its
 * reply takes the registry's loop_ref, which knows the loop until the registry closes; later answers are dropped there.
 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <string.h>

#include "tools/internal.h"

struct host_timer {
	uv_timer_t timer;
	struct cell__host_call *call; /* NULL: over */
};

struct cell__host_call {
	struct cell__reply reply;   /* first */
	cell__host_reply_fn handle; /* with the owner, which gets the reply */
	void *owner;                /* loop's thread; NULL: no caller waits.  Of tools: struct cell__tool_run */
	struct host_timer *timer;   /* loop's thread; NULL while fn runs */
	bool *gone;                 /* loop's thread: set when the call is answered while fn runs */
	int64_t timeout_ms;
	atomic_bool cancelled;
	const char *args, *session_id; /* point into `text` */
	size_t size; /* of text */
	char text[];
};

static void destroy_call(struct cell__host_call *call)
{
	if (call->gone)
		*call->gone = true;
	cell__loop_ref_unref(call->reply.ref, call->size);
	cell__buf_finish(&call->reply.bytes);
	free(call);
}

/* ---- answers ---- */

static void handle_timer_closed(uv_handle_t *handle)
{
	free(handle->data);
}

void *cell__host_call_let_go(struct cell__host_call *call)
{
	struct host_timer *timer = cell__take_ptr(call->timer);
	cell__host_call_cancel(call);
	if (timer) {
		timer->call = NULL;
		uv_close((uv_handle_t *)&timer->timer, handle_timer_closed);
	}
	return cell__take_ptr(call->owner);
}

void cell__host_call_cancel(struct cell__host_call *call)
{
	atomic_store(&call->cancelled, true);
}

/* The same of a tool, which forgets the call. */
static struct cell__tool_run *let_go(struct cell__host_call *call)
{
	struct cell__tool_run *run = cell__host_call_let_go(call);
	if (run)
		run->state = NULL;
	return run;
}

static void deliver(void *owner, struct cell__reply *reply)
{
	struct cell__tool_run *run = owner;
	struct cell__buf *answer = &reply->bytes;
	run->state = NULL;
	if (reply->kind == CELL__REPLY_NO_MEMORY)
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
	else if (reply->kind == CELL__REPLY_FAIL)
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "%s", answer->data);
	else if (reply->kind == CELL__REPLY_JSON && !cell__json_one_line(answer))
		cell__tool_run_fail(run, CELL_TOOL_E_FAILED, "the host function's answer is not JSON");
	else
		cell__tool_run_answer_raw(run, reply->kind == CELL__REPLY_JSON ? "json" : "text", answer->data, answer->size);
}

static void handle_reply(struct cell__reply *reply)
{
	struct cell__host_call *call = (struct cell__host_call *)reply;
	void *owner = cell__host_call_let_go(call);
	if (owner)
		call->handle(owner, reply);
	destroy_call(call);
}

static void drop_reply(struct cell__reply *reply)
{
	destroy_call((struct cell__host_call *)reply);
}

void cell__host_call_reply(struct cell__host_call *call, enum cell__reply_kind kind, const char *bytes, size_t size)
{
	cell__reply_send(&call->reply, kind, bytes, size);
}

const char *cell__host_call_args(const struct cell__host_call *call)
{
	return call->args;
}

const char *cell__host_call_session_id(const struct cell__host_call *call)
{
	return call->session_id;
}

bool cell__host_call_cancelled(const struct cell__host_call *call)
{
	return atomic_load(&((struct cell__host_call *)call)->cancelled);
}

/* ---- the adapter ---- */

static void handle_timeout(uv_timer_t *timer)
{
	struct cell__host_call *call = ((struct host_timer *)timer->data)->call;
	struct cell__tool_run *run = let_go(call);
	cell__tool_run_timed_out(run, call->timeout_ms);
}

static int start_timer(struct cell__host_call *call, struct cell__loop *loop)
{
	struct host_timer *timer = cell__alloc(1, sizeof *timer);
	if (!timer)
		return -1;
	timer->call = call;
	timer->timer.data = timer;
	uv_timer_init(cell__loop_uv(loop), &timer->timer);
	uv_update_time(cell__loop_uv(loop));
	uv_timer_start(&timer->timer, handle_timeout, (uint64_t)call->timeout_ms, 0);
	call->timer = timer;
	return 0;
}

/* Copies bytes and their terminator, and returns their beginning. */
static const char *put(char **at, const char *bytes, size_t size)
{
	char *start = *at;
	memcpy(start, bytes, size);
	start[size] = '\0';
	*at += size + 1;
	return start;
}

struct cell__host_call *cell__host_call_make(struct cell__loop_ref *ref, size_t max_calls, const struct cell__host_asked *asked,
					     bool *ret_full)
{
	const char *session_id = asked->session_id ? asked->session_id : "";
	const size_t size = asked->args_size + strlen(session_id) + 2;
	*ret_full = !cell__loop_ref_try_ref(ref, size, max_calls, CELL_LIMIT_ENGINE_BYTES);
	if (*ret_full)
		return NULL;
	struct cell__host_call *call = cell__alloc(1, sizeof *call + size);
	if (!call) {
		cell__loop_ref_unref(ref, size);
		return NULL;
	}
	call->reply = (struct cell__reply){ .ref = ref, .handle = handle_reply, .drop = drop_reply };
	call->size = size;
	char *at = call->text;
	call->args = put(&at, asked->args, asked->args_size);
	call->session_id = put(&at, session_id, strlen(session_id));
	call->handle = asked->handle;
	call->owner = asked->owner;
	return call;
}

void cell__host_start(struct cell__tool_run *run, const char *args, size_t args_size)
{
	bool full;
	struct cell__host_asked asked = {
		.args = args, .args_size = args_size, .session_id = run->call->session_id, .handle = deliver, .owner = run
	};
	struct cell__host_call *call = cell__host_call_make(run->tools->loop_ref, CELL_TOOL_LIMIT_RUNS, &asked, &full);
	if (full) {
		cell__tool_run_fail(run, CELL_E_LIMIT,
				    "the host's functions are still working on %u calls or %u MiB of arguments: wait for some of them",
				    CELL_TOOL_LIMIT_RUNS, CELL_LIMIT_ENGINE_BYTES >> 20);
		return;
	}
	if (!call) {
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
		return;
	}
	struct cell__loop *loop = run->tools->opts.loop;
	bool gone = false;
	call->gone = &gone;
	call->timeout_ms = run->callable->timeout_ms;
	run->state = call;
	run->callable->fn(run->callable->arg, call);
	if (gone)
		return;
	call->gone = NULL;
	/* Most functions answer at once, and need no timer. */
	if (call->owner && call->timeout_ms > 0 && start_timer(call, loop) < 0)
		cell__tool_run_fail(let_go(call), CELL_E_NOMEM, "out of memory");
}

static void start(struct cell__tool_run *run, json_t *args)
{
	CELL_AUTO_FREE char *text = json_dumps(args, JSON_COMPACT);
	if (text)
		cell__host_start(run, text, strlen(text));
	else
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
}

static void cancel(struct cell__tool_run *run)
{
	let_go(run->state);
}

const struct cell__tool_adapter cell__tool_host = { .name = "host", .start = start, .cancel = cancel };

/* ---- registration ---- */

static int fill_callable(struct cell__callable *callable, const char *name, const struct cell__host_tool *spec, struct cell_error *err)
{
	callable->fn = spec->fn;
	callable->arg = spec->arg;
	callable->timeout_ms = spec->timeout_ms > 0 ? spec->timeout_ms : 0;
	callable->name = cell__strdup(name);
	if (!callable->name || (spec->description && !(callable->description = cell__strdup(spec->description))))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool");
	json_error_t where;
	if (spec->supposed && !(callable->supposed = json_loads(spec->supposed, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where)))
		return cell_fail(err, CELL_E_INVALID, 0, "the supposed result of tool %s is not JSON: %.100s", spec->name, where.text);
	if (!spec->parameters)
		return 0;
	json_t *schema = json_loads(spec->parameters, 0, &where);
	if (!schema)
		return cell_fail(err, CELL_E_INVALID, 0, "parameters of tool %s: %.100s", spec->name, where.text);
	int rc = cell__params_from_schema(schema, &callable->params, &callable->open, err);
	json_decref(schema);
	return rc;
}

static struct cell__tool_entry *find_host_tool(struct cell__tools *tools, const char *name)
{
	for (size_t i = 0; i < tools->n_host_tools; i++)
		if (strcmp(tools->host_tools[i]->name, name) == 0)
			return tools->host_tools[i];
	return NULL;
}

static struct cell__tool_entry *make_host_tool(struct cell__tools *tools, const char *name, bool grouped,
					       const struct cell__host_tool *spec)
{
	struct cell__tool_entry **list = cell__realloc(tools->host_tools, (tools->n_host_tools + 1) * sizeof *list);
	if (!list)
		return NULL;
	tools->host_tools = list;
	struct cell__tool_entry *tool = cell__alloc(1, sizeof *tool);
	if (!tool)
		return NULL;
	tool->adapter = &cell__tool_host;
	tool->refs = 1;
	tool->timeout_ms = -1;
	tool->max_output = CELL_TOOL_LIMIT_OUTPUT;
	tool->name = cell__strdup(name);
	bool ok = tool->name != NULL;
	if (!grouped && spec->description)
		ok &= (tool->description = cell__strdup(spec->description)) != NULL;
	if (!ok) {
		cell__tool_unref(tool);
		return NULL;
	}
	list[tools->n_host_tools++] = tool;
	return tool;
}

static int add_tags(struct cell__tool_entry *tool, const char *const *tags)
{
	for (; tags && *tags; tags++) {
		const char *const one[] = { *tags, NULL };
		if (cell__tool_in_scope(tool, one))
			continue;
		char **list = cell__realloc(tool->tags, (tool->n_tags + 1) * sizeof *list);
		if (!list)
			return -1;
		tool->tags = list;
		list[tool->n_tags] = cell__strdup(*tags);
		if (!list[tool->n_tags])
			return -1;
		tool->n_tags++;
	}
	return 0;
}

static int add_callable(struct cell__tool_entry *tool, const char *name, const struct cell__host_tool *spec, struct cell_error *err)
{
	if (cell__tool_callable(tool, name))
		return cell_fail(err, CELL_E_INVALID, 0, "Tool '%s' already registered", spec->name);
	if (tool->n_callables >= CELL_TOOL_LIMIT_CALLABLES)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u functions in tool %s", CELL_TOOL_LIMIT_CALLABLES, tool->name);
	struct cell__callable *list = cell__realloc(tool->callables, (tool->n_callables + 1) * sizeof *list);
	if (!list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool");
	tool->callables = list;
	list[tool->n_callables] = (struct cell__callable){ 0 };
	/* Counted before it is complete: its parts are freed with the tool. */
	if (fill_callable(&list[tool->n_callables++], name, spec, err) < 0)
		return -1;
	cell__tool_add_aliases(tool);
	return 0;
}

int cell__tools_add_host(struct cell__tools *tools, const struct cell__host_tool *spec, struct cell_error *err)
{
	const char *dot = strchr(spec->name, '.');
	CELL_AUTO_FREE char *group = cell__strndup(spec->name, dot ? (size_t)(dot - spec->name) : strlen(spec->name));
	if (!group)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool");
	const char *name = dot ? dot + 1 : group;
	if (!cell__tool_name_ok(group) || !cell__tool_name_ok(name) || !spec->fn)
		return cell_fail(err, CELL_E_INVALID, 0, "invalid tool name '%.80s', or the tool has no function", spec->name);
	if (tools->n_host_tools >= CELL_TOOL_LIMIT_TOOLS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u tools", CELL_TOOL_LIMIT_TOOLS);
	struct cell__tool_entry *tool = find_host_tool(tools, group);
	if (tool && tool->adapter != &cell__tool_host)
		return cell_fail(err, CELL_E_EXISTS, 0, "Tool '%.80s' already registered as an MCP server", group);
	bool made = !tool;
	if (made && !(tool = make_host_tool(tools, group, dot != NULL, spec)))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool");
	size_t before = tool->n_callables;
	int rc = add_callable(tool, name, spec, err);
	if (rc == 0 && add_tags(tool, spec->tags) < 0)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool");
	if (rc < 0 && made) {
		cell__tool_unref(tools->host_tools[--tools->n_host_tools]);
	} else if (rc < 0 && tool->n_callables > before) {
		cell__callable_finish(&tool->callables[--tool->n_callables]);
	}
	cell__tools_reindex(tools);
	return rc;
}
