/*
 * Types of results that are learned (wire/shape.h), for tools of MCP servers that declare no output schema.
 *
 *     first use of a server ──▶ the entries of the storage are read (pool) ──▶ calls that wait for servers go on
 *     a result ──▶ its shape ──▶ entry in memory ──unless it was stable and fits──▶ entry in the storage (pool)
 *                                      └─ a stable one changed: a log message of the tool
 *
 * The storage merges observations of several processes; its answer replaces the entry in memory.  Without a storage, entries live as long
 * as the registry.  Loop's thread, except the work on the pool.
 */
#define _GNU_SOURCE
#include <string.h>

#include "tools/mcp.h"
#include "wire/shape.h"

struct learning {
	uv_work_t work;
	struct cell__tools *tools;
	char *name;     /* NULL: all entries are read */
	json_t *shape;  /* its own copy: reference counts are not atomic */
	json_t *answer;
	int rc;
	struct cell_error err;
	struct learning
		*next; /* one at a time, in the order of the results: a change after three equal ones is another thing than before */
};

static void destroy_learning(struct learning *learning)
{
	json_decref(learning->shape);
	json_decref(learning->answer);
	free(learning->name);
	free(learning);
}

/* The host program's log gets the first failure: a storage that is gone would repeat it with each result. */
static void report(struct cell__tools *tools, const struct cell_error *err)
{
	if (!tools->learn_failed && tools->opts.learn->failed)
		tools->opts.learn->failed(tools->opts.learn_arg, err);
	tools->learn_failed = true;
}

static void do_learn(uv_work_t *work)
{
	struct learning *learning = work->data;
	const struct cell__tools_options *opts = &learning->tools->opts;
	learning->rc = learning->name
			       ? opts->learn->note(opts->learn_arg, learning->name, learning->shape, &learning->answer, &learning->err)
			       : opts->learn->load(opts->learn_arg, &learning->answer, &learning->err);
}

/* Lists that were made before show old types: the next one is a new generation. */
static void renew_lists(struct cell__tools *tools)
{
	cell__tools_free_docs(tools);
	tools->generation++;
}

static void handle_loaded(struct cell__tools *tools, const struct learning *learning)
{
	tools->learned_state = CELL__LEARNED_READ;
	if (learning->rc < 0)
		report(tools, &learning->err);
	else if (json_object_update_missing(tools->learned, learning->answer) == 0)
		renew_lists(tools);
	cell__mcp_wake(tools);
}

static void handle_noted(struct cell__tools *tools, const struct learning *learning)
{
	tools->notes--;
	const json_t *before = json_object_get(tools->learned, learning->name);
	if (learning->rc < 0) {
		report(tools, &learning->err);
	} else if (tools->notes == 0) { /* else it lacks observations that are on their way */
		bool same = json_equal(cell__shape_stable(before), cell__shape_stable(learning->answer));
		json_object_set(tools->learned, learning->name, learning->answer);
		if (!same)
			renew_lists(tools);
	}
}

static void handle_learned(uv_work_t *work, int status);

static void start(struct cell__tools *tools)
{
	uv_queue_work(cell__loop_uv(tools->opts.loop), &tools->learning->work, do_learn, handle_learned);
}

static void handle_learned(uv_work_t *work, int status)
{
	struct learning *learning = work->data;
	struct cell__tools *tools = learning->tools;
	(void)status; /* never cancelled */
	tools->learning = learning->next;
	if (tools->learning)
		start(tools);
	if (!tools->closing && learning->name)
		handle_noted(tools, learning);
	else if (!tools->closing)
		handle_loaded(tools, learning);
	destroy_learning(learning);
	cell__tools_left_pool(tools);
}

/* name NULL: reads all.  -1: out of memory. */
static int queue(struct cell__tools *tools, const char *name, const json_t *shape)
{
	struct learning *learning = cell__alloc(1, sizeof *learning);
	if (!learning)
		return -1;
	learning->work.data = learning;
	learning->tools = tools;
	learning->name = name ? cell__strdup(name) : NULL;
	learning->shape = shape ? json_deep_copy(shape) : NULL;
	if (name && (!learning->name || !learning->shape)) {
		destroy_learning(learning);
		return -1;
	}
	tools->on_pool++;
	struct learning **last = &tools->learning;
	while (*last)
		last = &(*last)->next;
	*last = learning;
	if (tools->learning == learning)
		start(tools);
	return 0;
}

void cell__learn_begin(struct cell__tools *tools)
{
	if (tools->learned_state != CELL__LEARNED_UNKNOWN || tools->closing)
		return;
	tools->learned_state = tools->opts.learn ? CELL__LEARNED_READING : CELL__LEARNED_READ;
	if (tools->opts.learn && queue(tools, NULL, NULL) < 0)
		tools->learned_state = CELL__LEARNED_READ; /* without memory: what is learned from now on */
}

/* ---- observations ---- */

static void tell_drift(const struct cell__tool_run *run, const char *name, const json_t *entry)
{
	struct cell__tools *tools = run->tools;
	if (!tools->mcp_event)
		return;
	json_t *text = json_sprintf("the results of tools.%s have changed: %s", name, json_string_value(json_object_get(entry, "drift")));
	json_t *params = json_pack("{s:s, s:s, s:o}", "level", "warning", "logger", "workcell.results", "data", text);
	struct cell__mcp_event event = {
		.type = CELL_MCP_LOG,
		.tool = run->tool->name,
		.callable = run->callable->name,
		.session_id = run->call->session_id,
		.call = run->call,
		.params = params,
	};
	if (params)
		tools->mcp_event(tools->mcp_event_arg, &event);
	json_decref(params);
}

static int add_name(struct cell__buf *out, const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	return cell__buf_printf(out, "%s.%s", tool->name, callable->name);
}

static void learn(const struct cell__tool_run *run, const json_t *shape)
{
	struct cell__tools *tools = run->tools;
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	bool drift;
	if (add_name(&name, run->tool, run->callable) < 0)
		return;
	json_t *before = json_incref(json_object_get(tools->learned, name.data));
	json_t *entry = before || json_object_size(tools->learned) < CELL_TOOL_LIMIT_LEARNED ? cell__shape_learn(before, shape, &drift)
											     : NULL;
	bool changed = entry && (!before || !json_equal(before, entry));
	if (changed && json_object_set(tools->learned, name.data, entry) == 0) {
		if (!json_equal(cell__shape_stable(before), cell__shape_stable(entry)))
			renew_lists(tools);
		if (drift)
			tell_drift(run, name.data, entry);
		/* An observation that is left out here is made again with the next call. */
		if (tools->opts.learn && tools->notes < CELL_TOOL_LIMIT_NOTES && queue(tools, name.data, shape) == 0)
			tools->notes++;
	}
	json_decref(before);
	json_decref(entry);
}

/* A text that is an object or an array of JSON is taken as that, as the generated modules do; another one is text. */
static json_t *value_of(const char *text, size_t size)
{
	size_t start = 0;
	while (start < size && strchr(" \t\r\n", text[start]))
		start++;
	if (start == size || (text[start] != '{' && text[start] != '['))
		return json_string("");
	json_t *value = size <= CELL_TOOL_LIMIT_LEARN_BYTES ? json_loadb(text, size, JSON_ALLOW_NUL, NULL) : NULL;
	return value ? value : size <= CELL_TOOL_LIMIT_LEARN_BYTES ? json_string("") : NULL;
}

static bool learns(const struct cell__tool_run *run)
{
	return run->callable && !run->callable->typed && run->tools->learned_state == CELL__LEARNED_READ && !run->tools->closing;
}

void cell__learn_value(const struct cell__tool_run *run, const json_t *value)
{
	json_t *shape = learns(run) ? cell__shape_of(value) : NULL;
	if (shape)
		learn(run, shape);
	json_decref(shape);
}

void cell__learn_text(const struct cell__tool_run *run, const char *text, size_t size)
{
	json_t *value = learns(run) ? value_of(text, size) : NULL;
	if (value)
		cell__learn_value(run, value);
	json_decref(value);
}

/* ---- what is known ---- */

static const json_t *entry_of(const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	if (!tool->server || callable->typed || add_name(&name, tool, callable) < 0)
		return NULL;
	return json_object_get(tool->server->tools->learned, name.data);
}

const json_t *cell__learned_shape(const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	const json_t *shape = cell__shape_stable(entry_of(tool, callable));
	const char *type = json_string_value(json_object_get(shape, "type"));
	/* Plain text needs no type, and a mixture with text cannot be told from JSON in text. */
	return type && (strcmp(type, "object") == 0 || strcmp(type, "array") == 0) ? shape : NULL;
}

const char *cell__learned_drift(const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	return json_string_value(json_object_get(entry_of(tool, callable), "drift"));
}

int cell__learned_add_text(const struct cell__tool_entry *tool, const struct cell__callable *callable, size_t max, struct cell__buf *out)
{
	const json_t *shape = cell__learned_shape(tool, callable);
	return shape ? cell__buf_add_str(out, " -> ") | cell__shape_text(shape, max, out) : 0;
}

int cell__learned_describe(const struct cell__tool_entry *tool, const struct cell__callable *callable, json_t *out)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const json_t *shape = cell__learned_shape(tool, callable);
	const char *drift = cell__learned_drift(tool, callable);
	int rc = shape ? cell__shape_text(shape, CELL_TOOL_LIMIT_RESULT_TEXT, &text) : 0;
	if (shape && rc == 0)
		rc = json_object_set_new(out, "result", json_string(text.data));
	if (drift && rc == 0)
		rc = json_object_set_new(out, "drift", json_string(drift));
	return rc;
}
