/*
 * The registry: the list of tools, and the path of a call to its adapter.
 *
 *     call:      asked ──▶ run (in `runs`) ──▶ answered | failed | timed out: run gone
 *                            └─ cancelled by the caller: run gone, no answer
 *     registry:  open ──close()──▶ closing: runs failed ──next iteration──▶ MCP servers ended ──▶ HTTP closed ──▶ pool left ──▶ gone
 *
 * Invariant: call->cancel is set exactly while its run is in `runs`.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "calls/table.h"
#include "base/list.h"
#include "spawn/confinement.h"
#include "tools/mcp.h"
#include "wire/call_text.h"

/* ---- the set of tools ---- */

static void add_to_index(struct cell__tools *tools, struct cell__tool_entry *tool)
{
	json_t *taken = json_object_get(tools->names, tool->name);
	if (taken && tool->file) {
		const struct cell__tool_entry *first = tools->index[json_integer_value(taken)];
		cell__problem_add(&tools->clashes, tool->file, tool->line, "Tool '%s' already registered (%s). Use unique names.",
				  tool->name, first->file ? first->file : "by the host program");
	}
	if (taken || tools->n_index >= CELL_TOOL_LIMIT_TOOLS)
		return;
	struct cell__tool_entry **index = cell__realloc(tools->index, (tools->n_index + 1) * sizeof *index);
	if (!index)
		return;
	tools->index = index;
	if (json_object_set_new(tools->names, tool->name, json_integer((json_int_t)tools->n_index)) == 0)
		index[tools->n_index++] = tool;
}

void cell__tools_reindex(struct cell__tools *tools)
{
	cell__tools_free_docs(tools);
	cell__problems_finish(&tools->clashes);
	json_object_clear(tools->names);
	tools->n_index = 0;
	tools->generation++;
	for (size_t i = 0; i < tools->n_host_tools; i++)
		add_to_index(tools, tools->host_tools[i]);
	for (size_t i = 0; i < tools->n_dirs; i++)
		for (size_t k = 0; k < tools->dirs[i].n_files; k++)
			if (tools->dirs[i].files[k].tool)
				add_to_index(tools, tools->dirs[i].files[k].tool);
	for (size_t i = 0; i < tools->stored.n_files; i++)
		if (tools->stored.files[i].tool)
			add_to_index(tools, tools->stored.files[i].tool);
	cell__mcp_attach(tools);
}

static struct cell__tool_entry *find_tool(const struct cell__tools *tools, const char *name)
{
	const json_t *at = json_object_get(tools->names, name);
	return at ? tools->index[json_integer_value(at)] : NULL;
}

struct cell__tools_dir {
	struct cell__tool_dir dir;
	struct cell__watch watch; /* from before it was read */
};

int cell__tools_read_dir(const char *path, struct cell__tools_dir **ret_dir, struct cell_error *err)
{
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	struct cell__tools_dir *read = cell__alloc(1, sizeof *read);
	char *copy = read ? cell__strndup(path, n) : NULL;
	if (!copy) {
		free(read);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool directory");
	}
	*read = (struct cell__tools_dir){ .dir = { .path = copy }, .watch = CELL__WATCH_INIT };
	bool watching = cell__watch_begin(&read->watch) == 0 && cell__watch_path(&read->watch, copy) == 0;
	(void)cell__tool_dir_refresh(&read->dir, true, NULL);
	if (!watching || !cell__tool_dir_watchable(&read->dir))
		cell__watch_end(&read->watch);
	*ret_dir = read;
	return 0;
}

void cell__tools_dir_destroy(struct cell__tools_dir *read)
{
	if (!read)
		return;
	cell__watch_end(&read->watch);
	cell__tool_dir_finish(&read->dir);
	free(read);
}

int cell__tools_add_dir(struct cell__tools *tools, struct cell__tools_dir *read, struct cell_error *err)
{
	struct cell__tool_dir *dirs = NULL;
	if (tools->n_dirs >= CELL_TOOL_LIMIT_DIRS)
		cell_fail(err, CELL_E_LIMIT, 0, "more than %u tool directories", CELL_TOOL_LIMIT_DIRS);
	else if (!(dirs = cell__realloc(tools->dirs, (tools->n_dirs + 1) * sizeof *dirs)))
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a tool directory");
	if (!dirs) {
		cell__tools_dir_destroy(read);
		return -1;
	}
	tools->dirs = dirs;
	/* One watch is for all directories: that of the only one stays. */
	cell__watch_end(&tools->watch);
	if (tools->n_dirs == 0)
		tools->watch = read->watch;
	else
		cell__watch_end(&read->watch);
	dirs[tools->n_dirs++] = read->dir;
	free(read);
	cell__tools_reindex(tools);
	return 0;
}

int cell__tools_set_stored(struct cell__tools *tools, const char *where, json_t *texts, struct cell_error *err)
{
	if (tools->closing || (tools->stored_texts && json_equal(texts, tools->stored_texts)))
		return 0;
	if (cell__tool_dir_set(&tools->stored, where, texts, tools->stored_texts) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for tools");
	json_decref(tools->stored_texts);
	tools->stored_texts = json_incref(texts);
	cell__tools_reindex(tools);
	return 0;
}

/* ---- create and close ---- */

static void free_tools(struct cell__tools *tools)
{
	cell__watch_end(&tools->watch);
	cell__tools_free_docs(tools);
	cell__problems_finish(&tools->clashes);
	for (size_t i = 0; i < tools->n_dirs; i++)
		cell__tool_dir_finish(&tools->dirs[i]);
	cell__tool_dir_finish(&tools->stored);
	json_decref(tools->stored_texts);
	for (size_t i = 0; i < tools->n_host_tools; i++)
		cell__tool_unref(tools->host_tools[i]);
	free(tools->dirs);
	free(tools->host_tools);
	free(tools->index);
	json_decref(tools->names);
	json_decref(tools->learned);
	free(tools->path);
	free(tools->login_page);
	free(tools);
}

int cell__tools_create(const struct cell__tools_options *opts, struct cell__tools **ret_tools, struct cell_error *err)
{
	struct cell__tools *tools = cell__alloc(1, sizeof *tools);
	if (!tools)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for tools");
	tools->opts = *opts;
	tools->watch.fd = -1;
	tools->path = cell__strdup(opts->path && *opts->path ? opts->path : CELL_TOOL_DEFAULT_PATH);
	if (tools->path)
		cell__program_clean_path(NULL, tools->path);
	tools->names = json_object();
	tools->learned = json_object();
	tools->loop_ref = cell__loop_ref_create(opts->loop);
	if (!tools->path || !tools->names || !tools->learned || !tools->loop_ref) {
		cell__loop_ref_close(tools->loop_ref);
		free_tools(tools);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for tools");
	}
	*ret_tools = tools;
	return 0;
}

static void maybe_closed(struct cell__tools *tools)
{
	void (*closed)(void *) = tools->closed;
	void *closed_arg = tools->closed_arg;
	if (!tools->ended || tools->on_pool > 0)
		return;
	free_tools(tools);
	if (closed)
		closed(closed_arg);
}

void cell__tools_left_pool(struct cell__tools *tools)
{
	tools->on_pool--;
	maybe_closed(tools);
}

static void handle_closed(void *arg)
{
	struct cell__tools *tools = arg;
	tools->ended = true;
	maybe_closed(tools);
}

static void servers_closed(struct cell__tools *tools)
{
	if (tools->http)
		cell__http_close(tools->http, handle_closed, tools);
	else
		handle_closed(tools);
}

static void close_later(struct cell__task *task)
{
	struct cell__tools *tools = (struct cell__tools *)((char *)task - offsetof(struct cell__tools, close_task));
	cell__mcp_close_all(tools, servers_closed);
}

static void cancel_run(struct cell__tool_run *run)
{
	if (run->args)
		cell__tools_confine_cancel(run->tools, &run->confine);
	else
		run->tool->adapter->cancel(run);
}

void cell__tools_close(struct cell__tools *tools, void (*closed)(void *arg), void *arg)
{
	tools->closing = true;
	tools->closed = closed;
	tools->closed_arg = arg;
	while (tools->runs) {
		struct cell__tool_run *run = tools->runs;
		cancel_run(run);
		cell__tool_run_fail(run, CELL_E_CLOSED, "the session's tools are closed");
	}
	cell__mcp_fail_parked(tools);
	cell__tools_fail_waiting(tools);
	cell__loop_ref_close(cell__take_ptr(tools->loop_ref));
	tools->close_task.fn = close_later;
	cell__loop_post(tools->opts.loop, &tools->close_task);
}

/* ---- runs ---- */

static void destroy_run(struct cell__tool_run *run)
{
	struct cell__tools *tools = run->tools;
	CELL__LIST_REMOVE(tools->runs, run);
	tools->n_runs--;
	cell__secrets_finish(&run->secrets);
	cell__tool_unref(run->tool);
	cell__confinement_unref(run->code);
	json_decref(run->args);
	free(run->cwd);
	free(run);
}

/* The call is about to be answered: we know it no more. */
static struct cell__call *take_call(struct cell__tool_run *run)
{
	struct cell__call *call = run->call;
	call->cancel = NULL;
	call->handler = NULL;
	return call;
}

void cell__tool_run_answer(struct cell__tool_run *run, json_t *result, const void *raw, size_t raw_size)
{
	if (!result) {
		cell__tool_run_fail(run, CELL_E_NOMEM, "out of memory");
		return;
	}
	struct cell__call *call = take_call(run);
	destroy_run(run);
	call->answer(call, result, raw, raw_size);
}

void cell__tool_run_answer_raw(struct cell__tool_run *run, const char *kind, const void *raw, size_t raw_size)
{
	struct cell__call *call = run->call;
	if (!call->answer_text) {
		cell__tool_run_answer(run, json_pack("{s:s}", "raw", kind), raw, raw_size);
		return;
	}
	take_call(run);
	destroy_run(run);
	call->answer_text(call, strcmp(kind, "json") == 0 ? CELL_RESULT_TEXT_JSON : CELL_RESULT_TEXT_TEXT, raw, raw_size);
}

static void end_failed(struct cell__tool_run *run, int code, const char *type, struct cell__buf *message)
{
	if (cell__secrets_redact(&run->secrets, message) < 0)
		cell__buf_finish(message);
	struct cell__call *call = take_call(run);
	destroy_run(run);
	call->fail(call, code, type, message->data ? message->data : "out of memory");
}

/* NULL: no memory. */
static char *format(const char *fmt, va_list ap)
{
	char *text = NULL;
	return vasprintf(&text, fmt, ap) < 0 ? NULL : text;
}

void cell__tool_run_fail(struct cell__tool_run *run, int code, const char *fmt, ...)
{
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	va_list ap;
	va_start(ap, fmt);
	CELL_AUTO_FREE char *cause = format(fmt, ap);
	va_end(ap);
	if (cell__buf_printf(&message, "Tool '%s' failed: %s", run->tool->name, cause ? cause : "out of memory") < 0)
		cell__buf_finish(&message);
	end_failed(run, code, "ToolCallError", &message);
}

void cell__tool_run_timed_out(struct cell__tool_run *run, int64_t timeout_ms)
{
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	cell__buf_printf(&message, "Tool '%s' timed out after %gs", run->tool->name, (double)timeout_ms / 1000);
	end_failed(run, CELL_TOOL_E_TIMEOUT, "ToolTimeoutError", &message);
}

int64_t cell__tool_run_timeout_ms(const struct cell__tool_run *run)
{
	return run->callable && run->callable->timeout_ms > 0 ? run->callable->timeout_ms : run->tool->timeout_ms;
}

static void handle_cancel(struct cell__call *call)
{
	struct cell__tool_run *run = call->handler;
	cancel_run(run);
	destroy_run(run);
}

static struct cell__tool_run *make_run(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__tool_entry *tool,
				       const struct cell__callable *callable, struct cell__call *call)
{
	struct cell__tool_run *run = cell__alloc(1, sizeof *run);
	bool has_cwd = tool->adapter != &cell__tool_host;
	char *cwd = has_cwd ? cell__strdup(view && view->cwd ? view->cwd : "/") : NULL;
	if (!run || (has_cwd && !cwd)) {
		free(run);
		free(cwd);
		return NULL;
	}
	run->tools = tools;
	run->tool = cell__tool_ref(tool);
	run->callable = callable;
	run->call = call;
	run->cwd = cwd;
	CELL__LIST_PUSH(tools->runs, run);
	tools->n_runs++;
	call->handler = run;
	call->cancel = handle_cancel;
	return run;
}

/* ---- methods ---- */

static void fail_call(struct cell__call *call, int code, const char *type, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

static void fail_call(struct cell__call *call, int code, const char *type, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	CELL_AUTO_FREE char *message = format(fmt, ap);
	va_end(ap);
	call->fail(call, code, type, message ? message : "out of memory");
}

static void answer_or_fail(struct cell__call *call, json_t *result)
{
	if (result)
		call->answer(call, result, NULL, 0);
	else
		call->fail(call, CELL_E_NOMEM, "MemoryError", "out of memory");
}

static const char *const *scope_of(const struct cell__tools_view *view)
{
	return view ? view->scope : NULL;
}

static void fail_not_found(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call, const char *name)
{
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	CELL_AUTO_FREE const char **names = cell__alloc(tools->n_index, sizeof *names);
	size_t n = 0;
	cell__buf_printf(&message, "Tool '%.100s' not found", name);
	for (size_t i = 0; names && i < tools->n_index; i++)
		if (cell__tool_in_scope(tools->index[i], scope_of(view)))
			names[n++] = tools->index[i]->name;
	for (size_t i = 0; i < n && i < 5; i++)
		cell__buf_printf(&message, "%s%s", i ? ", " : ". Available: ", names[i]);
	if (n > 5)
		cell__buf_printf(&message, " (and %zu more)", n - 5);
	call->fail(call, CELL_TOOL_E_UNKNOWN, "ToolNotFoundError", message.data ? message.data : "out of memory");
}

/* The tool that args.name refers to; *ret_callable is the part after the first dot, or "". */
static struct cell__tool_entry *tool_asked_for(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
					       const char **ret_callable)
{
	const char *name = json_string_value(json_object_get(call->args, "name"));
	size_t n = strcspn(name, ".");
	CELL_AUTO_FREE char *tool_name = cell__strndup(name, n);
	if (!tool_name) {
		fail_call(call, CELL_E_NOMEM, "MemoryError", "out of memory");
		return NULL;
	}
	struct cell__tool_entry *tool = find_tool(tools, tool_name);
	if (cell__tools_must_read(tools, view, call, tool))
		return NULL;
	if (!tool || !cell__tool_in_scope(tool, scope_of(view))) {
		fail_not_found(tools, view, call, tool_name);
		return NULL;
	}
	if (cell__mcp_park(tools, view, call, tool) || cell__mcp_explain(tool, call))
		return NULL;
	*ret_callable = name[n] == '.' ? name + n + 1 : "";
	return tool;
}

/* {name, problem, callables: [signature]} */
static json_t *brief_tool(const struct cell__tool_entry *tool)
{
	json_t *signatures = json_array(), *out = json_pack("{s:s, s:o}", "name", tool->name, "callables", signatures);
	for (size_t i = 0; out && i < tool->n_callables; i++) {
		json_t *brief = cell__callable_brief(tool, &tool->callables[i]);
		if (!brief || json_array_append(signatures, json_object_get(brief, "signature")) < 0) {
			json_decref(out);
			out = NULL;
		}
		json_decref(brief);
	}
	if (out && tool->server)
		cell__mcp_add_problem(out, tool->server);
	return out;
}

static json_t *list_json(struct cell__tools *tools, const char *const *scope, const json_t *tags, bool brief)
{
	json_t *list = json_array();
	for (size_t i = 0; list && i < tools->n_index; i++) {
		const struct cell__tool_entry *tool = tools->index[i];
		if (!cell__tool_in_scope(tool, scope) || !cell__tool_has_tag(tool, tags))
			continue;
		if (json_array_append_new(list, brief ? brief_tool(tool) : cell__tool_to_json(tool)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

/* Signatures are wanted instead of whole descriptions. */
static bool wants_callables(const struct cell__call *call)
{
	return json_is_true(json_object_get(call->args, "callables"));
}

/* args.tags; NULL when not given. */
static const json_t *tags_of(const struct cell__call *call)
{
	const json_t *tags = json_object_get(call->args, "tags");
	return json_is_array(tags) ? tags : NULL;
}

static void handle_list(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	const json_t *tags = tags_of(call);
	if (cell__tools_must_read(tools, view, call, NULL) || cell__mcp_park(tools, view, call, NULL))
		return;
	answer_or_fail(call, list_json(tools, scope_of(view), tags, wants_callables(call)));
}

static void handle_search(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	const char *query = json_string_value(json_object_get(call->args, "query"));
	const json_t *limit = json_object_get(call->args, "limit");
	const json_t *tags = tags_of(call);
	json_int_t n = !limit || json_is_null(limit) ? CELL_TOOL_DEFAULT_SEARCH : json_integer_value(limit);
	if (cell__tools_must_read(tools, view, call, NULL) || cell__mcp_park(tools, view, call, NULL))
		return;
	answer_or_fail(call, cell__tools_search(tools, query, wants_callables(call), (size_t)n, scope_of(view), tags));
}

void cell__tools_prepare_search(struct cell__tools *tools)
{
	cell__tools_prepare_rank(tools);
}

static void add_available(struct cell__buf *out, const struct cell__tool_entry *tool)
{
	cell__buf_add_str(out, ". Available: ");
	for (size_t i = 0; i < tool->n_callables; i++)
		cell__buf_printf(out, "%s%s", i ? ", " : "", tool->callables[i].name);
}

static json_t *described(const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	CELL_AUTO_BUF struct cell__buf signature = CELL_BUF_INIT;
	json_t *out = cell__callable_to_json(tool, callable);
	if (!out || cell__callable_signature(callable, &signature) < 0 ||
	    cell__learned_add_text(tool, callable, CELL_TOOL_LIMIT_RESULT_TEXT, &signature) < 0 ||
	    json_object_set_new(out, "signature", json_string(signature.data)) < 0) {
		json_decref(out);
		return NULL;
	}
	return out;
}

static json_t *described_all(const struct cell__tool_entry *tool)
{
	json_t *list = json_array();
	for (size_t i = 0; list && i < tool->n_callables; i++)
		if (json_array_append_new(list, described(tool, &tool->callables[i])) < 0) {
			json_decref(list);
			return NULL;
		}
	return list;
}

static void handle_describe(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	const char *name;
	const struct cell__tool_entry *tool = tool_asked_for(tools, view, call, &name);
	if (!tool)
		return;
	const struct cell__callable *callable = cell__tool_callable(tool, name);
	if (*name && !callable) {
		CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
		cell__buf_printf(&message, "Callable '%.100s' not found in tool '%s'", name, tool->name);
		add_available(&message, tool);
		call->fail(call, CELL_TOOL_E_UNKNOWN, "ValueError", message.data ? message.data : "out of memory");
		return;
	}
	if (callable) {
		answer_or_fail(call, described(tool, callable));
		return;
	}
	json_t *out = cell__tool_to_json(tool);
	if (out && json_object_set_new(out, "callables", described_all(tool)) < 0) {
		json_decref(out);
		out = NULL;
	}
	answer_or_fail(call, out);
}

/* An MCP server's description of itself and its tools, and what was learned of their results. */
static void handle_schema(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	const char *name;
	const struct cell__tool_entry *tool = tool_asked_for(tools, view, call, &name);
	if (!tool)
		return;
	if (!tool->server)
		fail_call(call, CELL_TOOL_E_ARGS, "ValueError", "Tool '%s' is not an MCP server", tool->name);
	else
		answer_or_fail(call, cell__tools_mcp_schema(tools, tool->name));
}

static void handle_list_recipes(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	const char *name;
	const struct cell__tool_entry *tool = tool_asked_for(tools, view, call, &name);
	if (!tool)
		return;
	json_t *list = json_array();
	for (size_t i = 0; i < tool->n_callables; i++) {
		const char *description = tool->callables[i].description;
		json_t *one = json_pack("{s:s, s:s}", "name", tool->callables[i].name, "description", description ? description : "");
		if (json_array_append_new(list, one) < 0) {
			json_decref(list);
			list = NULL;
			break;
		}
	}
	answer_or_fail(call, list);
}

/*
 * The callable that a call means. Without a name it is the one named like the tool, or the only one; a command may also be called by its
 * schema alone, then *ret_raw is set.
 */
static const struct cell__callable *callable_asked_for(const struct cell__tool_entry *tool, const char *name, struct cell__call *call,
						       bool *ret_raw)
{
	const struct cell__callable *callable = cell__tool_callable(tool, *name ? name : tool->name);
	*ret_raw = !callable && !*name && tool->adapter == &cell__tool_cli;
	if (!callable && !*name && !*ret_raw && tool->n_callables == 1)
		callable = &tool->callables[0];
	if (callable || *ret_raw)
		return callable;
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	if (*name)
		cell__buf_printf(&message, "Tool '%s' failed: %s '%.100s' not found", tool->name,
				 tool->adapter == &cell__tool_cli ? "Recipe" : "Callable", name);
	else
		cell__buf_printf(&message, "Tool '%s' failed: name one of its callables", tool->name);
	add_available(&message, tool);
	call->fail(call, CELL_TOOL_E_UNKNOWN, "ToolCallError", message.data ? message.data : "out of memory");
	return NULL;
}

int cell__tools_choose(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
		       struct cell__tool_choice *ret_choice)
{
	const char *name;
	bool raw;
	if (tools->closing) {
		call->fail(call, CELL_E_CLOSED, "ToolCallError", "the session's tools are closed");
		return -1;
	}
	struct cell__tool_entry *tool = tool_asked_for(tools, view, call, &name);
	if (!tool)
		return -1;
	const struct cell__callable *callable = callable_asked_for(tool, name, call, &raw);
	if (!callable && !raw)
		return -1;
	json_t *given = json_object_get(call->args, "args");
	json_t *none = NULL;
	if (!given || json_is_null(given))
		given = none = json_object();
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	json_t *args = NULL;
	if (!json_is_object(given))
		fail_call(call, CELL_TOOL_E_ARGS, "ValueError", "'args' must be an object");
	else if (cell__args_merge(tool, callable, given, &args, &why) < 0)
		fail_call(call, CELL_TOOL_E_ARGS, "ToolCallError", "Tool '%s' failed: %s", tool->name,
			  why.size ? why.data : "out of memory");
	json_decref(none);
	if (!args)
		return -1;
	*ret_choice = (struct cell__tool_choice){ .tool = cell__tool_ref(tool), .callable = callable, .args = args };
	return 0;
}

int cell__tool_choice_edit(struct cell__tool_choice *choice, const json_t *args, struct cell__buf *why)
{
	const struct cell__callable *callable = choice->callable;
	json_t *preset = callable ? callable->preset : NULL;
	json_t *given = json_copy((json_t *)args);
	json_t *complete = NULL;
	const char *key;
	json_t *value;
	json_object_foreach(preset, key, value)
		if (json_equal(json_object_get(given, key), value))
			json_object_del(given, key);
	int rc = given ? cell__args_merge(choice->tool, callable, given, &complete, why) : -1;
	json_decref(given);
	if (rc < 0)
		return -1;
	json_decref(choice->args);
	choice->args = complete;
	return 0;
}

const char *cell__tool_choice_tool(const struct cell__tool_choice *choice)
{
	return choice->tool->name;
}

const char *cell__tool_choice_callable(const struct cell__tool_choice *choice)
{
	return choice->callable && strcmp(choice->callable->name, choice->tool->name) != 0 ? choice->callable->name : "";
}

const char *cell__tool_choice_adapter(const struct cell__tool_choice *choice)
{
	return choice->tool->adapter->name;
}

const json_t *cell__tool_choice_supposed(const struct cell__tool_choice *choice)
{
	return choice->callable ? choice->callable->supposed : NULL;
}

static void handle_confined(struct cell__confine_wait *wait, struct cell__confinement *confinement, const struct cell_error *err)
{
	struct cell__tool_run *run = (struct cell__tool_run *)((char *)wait - offsetof(struct cell__tool_run, confine));
	json_t *args = cell__take_ptr(run->args);
	run->code = confinement;
	if (confinement)
		run->tool->adapter->start(run, args);
	else
		cell__tool_run_fail(run, err->code, "%s", err->msg);
	json_decref(args);
}

static void start_run(struct cell__tool_run *run, json_t *args)
{
	const struct cell__tool_adapter *adapter = run->tool->adapter;
	struct cell_error err;
	run->confine.ready = handle_confined;
	int rc = adapter->confines && adapter->confines(run->tool)
			 ? cell__tools_confine(run->tools, run->call, &run->confine, &run->code, &err)
			 : 0;
	if (rc > 0)
		run->args = json_incref(args);
	else if (rc == 0)
		adapter->start(run, args);
	else
		cell__tool_run_fail(run, err.code, "%s", err.msg);
}

void cell__tools_run(struct cell__tools *tools, const struct cell__tools_view *view, const struct cell__tool_choice *choice,
		     struct cell__call *call)
{
	struct cell__tool_entry *tool = choice->tool;
	if (tools->closing) {
		call->fail(call, CELL_E_CLOSED, "ToolCallError", "the session's tools are closed");
		return;
	}
	if (tools->n_runs >= CELL_TOOL_LIMIT_RUNS) {
		fail_call(call, CELL_E_LIMIT, "ToolCallError", "Tool '%s' failed: more than %u calls are under way", tool->name,
			  CELL_TOOL_LIMIT_RUNS);
		return;
	}
	struct cell__tool_run *run = make_run(tools, view, tool, choice->callable, call);
	if (run)
		start_run(run, choice->args);
	else
		fail_call(call, CELL_E_NOMEM, "MemoryError", "out of memory");
}

void cell__tool_choice_finish(struct cell__tool_choice *choice)
{
	if (choice->tool)
		cell__tool_unref(choice->tool);
	json_decref(choice->args);
	*choice = (struct cell__tool_choice){ 0 };
}

static void handle_call(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	struct cell__tool_choice choice = { 0 };
	if (cell__tools_choose(tools, view, call, &choice) < 0)
		return;
	cell__tools_run(tools, view, &choice, call);
	cell__tool_choice_finish(&choice);
}

bool cell__tools_fits_host(struct cell__tools *tools, const struct cell__tools_view *view, const char *name, struct cell__host_ask *ask)
{
	char tool_name[CELL_TOOL_LIMIT_NAME + 1];
	size_t n = strcspn(name, ".");
	if (tools->closing || tools->waits || tools->n_runs >= CELL_TOOL_LIMIT_RUNS || n >= sizeof tool_name)
		return false;
	memcpy(tool_name, name, n);
	tool_name[n] = '\0';
	ask->tool = find_tool(tools, tool_name);
	if (!ask->tool || ask->tool->adapter != &cell__tool_host || !cell__tool_in_scope(ask->tool, scope_of(view)))
		return false;
	ask->callable = cell__tool_callable(ask->tool, name[n] ? name + n + 1 : tool_name);
	return ask->callable && cell__args_fit(ask->callable, ask->args, ask->args_size);
}

void cell__tools_call_host(struct cell__tools *tools, const struct cell__host_ask *ask, struct cell__call *call)
{
	struct cell__tool_run *run = make_run(tools, NULL, ask->tool, ask->callable, call);
	if (run)
		cell__host_start(run, ask->args, ask->args_size);
	else
		fail_call(call, CELL_E_NOMEM, "MemoryError", "out of memory");
}

/* ---- problems ---- */

static int add_problems(json_t *list, const struct cell__problems *problems)
{
	int rc = 0;
	for (size_t i = 0; i < problems->count; i++) {
		const struct cell__problem *p = &problems->list[i];
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
		const char *message = p->message ? p->message : "out of memory";
		rc |= cell__buf_add_utf8(&text, message, strlen(message));
		rc |= json_array_append_new(list, json_pack("{s:s, s:i, s:s}", "file", p->file ? p->file : "?", "line", p->line, "message",
							    text.data ? text.data : ""));
	}
	return rc;
}

static void handle_problems(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	if (cell__tools_must_read(tools, view, call, NULL))
		return;
	json_t *list = json_array();
	int rc = 0;
	for (size_t i = 0; i < tools->n_dirs; i++) {
		rc |= add_problems(list, &tools->dirs[i].problems);
		for (size_t k = 0; k < tools->dirs[i].n_files; k++)
			rc |= add_problems(list, &tools->dirs[i].files[k].problems);
	}
	rc |= add_problems(list, &tools->stored.problems);
	for (size_t i = 0; i < tools->stored.n_files; i++)
		rc |= add_problems(list, &tools->stored.files[i].problems);
	rc |= add_problems(list, &tools->clashes);
	cell__mcp_add_problems(tools, list);
	if (rc < 0)
		json_decref(cell__take_ptr(list));
	answer_or_fail(call, list);
}

void cell__tools_handle(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	static void (*const handlers[CELL__OPS])(struct cell__tools *, const struct cell__tools_view *, struct cell__call *) = {
		[CELL__OP_TOOLS_CALL] = handle_call,
		[CELL__OP_TOOLS_LIST] = handle_list,
		[CELL__OP_TOOLS_SEARCH] = handle_search,
		[CELL__OP_TOOLS_DESCRIBE] = handle_describe,
		[CELL__OP_TOOLS_LIST_RECIPES] = handle_list_recipes,
		[CELL__OP_TOOLS_SCHEMA] = handle_schema,
		[CELL__OP_TOOLS_PROBLEMS] = handle_problems,
	};
	if (tools->closing)
		call->fail(call, CELL_E_CLOSED, "ToolCallError", "the session's tools are closed");
	else
		handlers[call->operation->id](tools, view, call);
}
