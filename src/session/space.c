/*
 * Theory of operation
 *
 *     call ──▶ cell__space_handle ──┬── tools.*      ──▶ tools/ (loop's thread)
 *                                   ├── deps.*       ──▶ deps.c (loop's thread, installers as programs)
 *                                   └── workflows.*,
 *                                       artifacts.*  ──▶ an op on libuv's pool (storage.c) ──▶ answer
 *
 * Closing: tools and deps close, ops under way end, then the store goes.  `pending` counts what is not over.
 */
#define _GNU_SOURCE
#include "session/space.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "session/deps.h"
#include "session/storage.h"
#include "store/store.h"
#include "tools/tools.h"

/* A function of the host, with the public type of its call. */
struct host_function {
	cell_tool_fn fn;
	void *arg;
	struct host_function *next;
};

struct cell_space {
	struct cell_engine *engine;
	char *cwd;
	struct cell__store *store;
	struct cell__storage *storage;
	struct cell__tools *tools;
	struct cell__deps *deps;
	struct host_function *functions;
	char *protect[8]; /* NULL-terminated; the tools' folder first, where there is one */
	bool has_tools_dir;
	struct cell__search *tool_search;
	uint64_t tool_generation;
	int refs; /* sessions */
	int pending;
	bool closing;
	void (*closed)(void *arg);
	void *closed_arg;
	struct cell_space *next;
};

/* ---- ranking tools with the store's search ---- */

static int index_tools(struct cell_space *space, const struct cell__rank_doc *docs, size_t n_docs)
{
	if (cell__search_open(NULL, &space->tool_search, NULL) < 0)
		return -1;
	struct cell__search_doc *all = cell__alloc(n_docs, sizeof *all);
	char(*ids)[24] = cell__alloc(n_docs, sizeof *ids);
	int rc = all && ids ? 0 : -1;
	for (size_t i = 0; i < n_docs && rc == 0; i++) {
		snprintf(ids[i], sizeof ids[i], "%zu", i);
		all[i] = (struct cell__search_doc){
			.id = ids[i], .name = docs[i].name, .description = docs[i].description, .extra = docs[i].text
		};
	}
	if (rc == 0)
		rc = cell__search_update(space->tool_search, all, n_docs, NULL, 0, NULL);
	free(all);
	free(ids);
	return rc;
}

static int rank_tools(void *arg, const char *query, const struct cell__rank_doc *docs, size_t n_docs,
		      uint64_t generation, size_t limit, size_t *ret_order)
{
	struct cell_space *space = arg;
	if (!space->tool_search || space->tool_generation != generation) {
		cell__search_close(cell__take_ptr(space->tool_search));
		if (index_tools(space, docs, n_docs) < 0) {
			cell__search_close(cell__take_ptr(space->tool_search));
			return -1;
		}
		space->tool_generation = generation;
	}
	struct cell__search_hit *hits;
	size_t n;
	if (cell__search_query(space->tool_search, query, limit, &hits, &n, NULL) < 0)
		return -1;
	size_t count = 0;
	for (size_t i = 0; i < n && count < limit; i++) {
		size_t which = strtoul(hits[i].id, NULL, 10);
		if (which < n_docs)
			ret_order[count++] = which;
	}
	cell__search_hits_free(hits, n);
	return (int)count;
}

/* ---- calls ---- */

static bool has_prefix(const char *method, const char *prefix)
{
	return strncmp(method, prefix, strlen(prefix)) == 0;
}

static void no_storage(struct cell__call *call)
{
	call->fail(call, CELL_E_NOT_FOUND, "RuntimeError", "this space has no storage; open it with a folder (--base, --storage)");
}

void cell__space_handle(struct cell_space *space, const char *cwd, struct cell__call *call)
{
	struct cell__tools_view view = { .cwd = cwd ? cwd : space->cwd };
	if (space->closing) {
		call->fail(call, CELL_E_CLOSED, "RuntimeError", "the space is closed");
	} else if (strcmp(call->method, "tools.problems") == 0) {
		json_t *problems = cell__tools_problems(space->tools);
		call->answer(call, problems, NULL, 0);
	} else if (has_prefix(call->method, "tools.")) {
		cell__tools_handle(space->tools, &view, call);
	} else if (has_prefix(call->method, "deps.")) {
		if (space->deps)
			cell__deps_handle(space->deps, call);
		else
			no_storage(call);
	} else if (has_prefix(call->method, "workflows.") || has_prefix(call->method, "artifacts.")) {
		if (space->storage)
			cell__storage_handle(space->storage, call);
		else
			no_storage(call);
	} else {
		CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
		(void)cell__buf_printf(&message, "there is no method \"%.100s\"", call->method);
		call->fail(call, CELL_E_INVALID, "ValueError", message.data ? message.data : "no such method");
	}
}

void cell__space_session_ended(struct cell_space *space, const char *session_id)
{
	if (space->storage)
		cell__storage_session_ended(space->storage, session_id);
}

void cell__space_ref(struct cell_space *space)
{
	space->refs++;
}

void cell__space_unref(struct cell_space *space)
{
	space->refs--;
}

const char *cell__space_site(struct cell_space *space)
{
	return space->deps ? cell__deps_site(space->deps) : NULL;
}

const char *cell__space_bin(struct cell_space *space)
{
	return space->deps ? cell__deps_bin(space->deps) : NULL;
}

const char *cell__space_packages(struct cell_space *space)
{
	return space->deps ? cell__deps_folder(space->deps) : NULL;
}

/*
 * What does not exist yet could be made by the code, and then be trusted by the host: it is made here, empty, where it lies
 * in the folder that the code may write to.
 */
static int make_missing(const char *path, const char *root, const char *workspace)
{
	size_t n = strlen(workspace);
	const char *name = strrchr(path, '/');
	if (strncmp(root, workspace, n) != 0 || (root[n] != '/' && root[n] != '\0') || access(path, F_OK) == 0)
		return 0;
	if (name && strcmp(name, "/requirements.txt") != 0)
		return mkdir(path, 0755);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return -1;
	close(fd);
	return 0;
}

int cell__space_protect(struct cell_space *space, const char *workspace, const char *const **ret_paths, struct cell_error *err)
{
	CELL_AUTO_FREE char *real = realpath(workspace, NULL);
	CELL_AUTO_FREE char *root = space->store ? realpath(cell__store_root(space->store), NULL) : NULL;
	for (char **path = space->protect + (space->has_tools_dir ? 1 : 0); real && root && *path; path++)
		if (make_missing(*path, root, real) < 0 && errno != EEXIST)
			return cell_fail(err, CELL_E_IO, errno, "make %.120s, so that the code cannot", *path);
	*ret_paths = (const char *const *)space->protect;
	return 0;
}

/* Code that can write there has the host do what it wants: run a command, install a package, keep a workflow. */
static int list_protected(struct cell_space *space, const struct cell_space_options *opts, struct cell_error *err)
{
	static const char *const parts[] = { "workflows", "skills", "requirements.txt", "workspaces", ".cache" };
	size_t n = 0;
	space->has_tools_dir = opts->tools_dir != NULL;
	if (opts->tools_dir && !(space->protect[n++] = cell__strdup(opts->tools_dir)))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (size_t i = 0; opts->storage && i < sizeof parts / sizeof *parts; i++) {
		struct cell__buf path = CELL_BUF_INIT;
		if (cell__buf_printf(&path, "%s/%s", cell__store_root(space->store), parts[i]) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		space->protect[n++] = cell__buf_take(&path);
	}
	return 0;
}

/* ---- open and close ---- */

static void free_space(struct cell_space *space)
{
	while (space->functions) {
		struct host_function *next = space->functions->next;
		free(space->functions);
		space->functions = next;
	}
	cell__search_close(space->tool_search);
	cell__store_close(space->store);
	for (char **path = space->protect; *path; path++)
		free(*path);
	free(space->cwd);
	free(space);
}

static void part_closed(void *arg)
{
	struct cell_space *space = arg;
	if (--space->pending > 0)
		return;
	void (*closed)(void *) = space->closed;
	void *closed_arg = space->closed_arg;
	free_space(space);
	closed(closed_arg);
}

void cell__space_close(struct cell_space *space, void (*done)(void *arg), void *arg)
{
	space->closing = true;
	space->closed = done;
	space->closed_arg = arg;
	for (struct cell_space **at = &space->engine->spaces; *at; at = &(*at)->next)
		if (*at == space) {
			*at = space->next;
			break;
		}
	space->pending = 1 + (space->deps != NULL) + (space->storage != NULL);
	if (space->deps)
		cell__deps_close(cell__take_ptr(space->deps), part_closed, space);
	if (space->storage)
		cell__storage_close(cell__take_ptr(space->storage), part_closed, space);
	cell__tools_close(cell__take_ptr(space->tools), part_closed, space);
}

struct opening {
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_space *space;
	const struct cell_space_options *opts;
	struct cell_error err;
	int rc;
};

static int make_deps(struct cell_space *space, const struct cell_space_options *opts, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf cache = CELL_BUF_INIT;
	if (cell__buf_printf(&cache, "%s%s", opts->cache_dir ? opts->cache_dir : cell__home_dir(),
			     opts->cache_dir ? "" : "/.cache/workcell") < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	struct cell__deps_options deps = {
		.loop = &space->engine->loop,
		.hub = &space->engine->hub,
		.store = space->store,
		.python = opts->python ? opts->python : CELL_DEFAULT_PYTHON,
		.venv_dir = opts->venv_dir,
		.cache_dir = cache.data,
		.index_url = opts->index_url,
		.wheel_dir = opts->wheel_dir,
		.path = CELL_TOOL_DEFAULT_PATH,
		.allow_runtime = opts->allow_runtime_deps != 0,
	};
	return cell__deps_create(&deps, &space->deps, err);
}

static int make_parts(struct cell_space *space, const struct cell_space_options *opts, struct cell_error *err)
{
	struct cell__tools_options tools = {
		.loop = &space->engine->loop,
		.hub = &space->engine->hub,
		.getenv_fn = opts->getenv_fn,
		.getenv_arg = opts->getenv_arg,
		.rank = rank_tools,
		.rank_arg = space,
	};
	if (cell__tools_create(&tools, &space->tools, err) < 0)
		return -1;
	if (opts->tools_dir && cell__tools_add_dir(space->tools, opts->tools_dir, err) < 0)
		return -1;
	if (!opts->storage)
		return list_protected(space, opts, err);
	if (cell__store_open(opts->storage, opts->workspace_id, &space->store, err) < 0 ||
	    cell__storage_create(&space->engine->loop, space->store, &space->storage, err) < 0)
		return -1;
	if (list_protected(space, opts, err) < 0)
		return -1;
	return make_deps(space, opts, err);
}

static void open_failed(void *arg)
{
	struct opening *opening = arg;
	cell__waiter_signal(&opening->waiter);
}

static void do_open(struct cell__task *task)
{
	struct opening *opening = (struct opening *)task;
	struct cell_space *space = opening->space;
	opening->rc = make_parts(space, opening->opts, &opening->err);
	if (opening->rc == 0) {
		space->next = space->engine->spaces;
		space->engine->spaces = space;
		cell__waiter_signal(&opening->waiter);
	} else if (space->tools) {
		cell__space_close(space, open_failed, opening);
	} else {
		free_space(space);
		cell__waiter_signal(&opening->waiter);
	}
}

int cell_space_open(struct cell_engine *engine, const struct cell_space_options *opts, struct cell_space **ret_space,
		    struct cell_error *err)
{
	struct cell_space_options all = CELL_SPACE_OPTIONS_INIT;
	if (opts) {
		if (opts->size < sizeof(size_t) || opts->size > sizeof all)
			return cell_fail(err, CELL_E_INVALID, 0, "cell_space_options.size is %zu, expected up to %zu", opts->size,
					 sizeof all);
		memcpy(&all, opts, opts->size);
	}
	if (cell__loop_is_current(&engine->loop))
		return cell_fail(err, CELL_E_INVALID, 0, "cell_space_open() waits and must not be called from a callback");
	struct cell_space *space = cell__alloc(1, sizeof *space);
	char here[PATH_MAX];
	if (!all.cwd && !getcwd(here, sizeof here)) {
		free(space);
		return cell_fail(err, CELL_E_INVALID, errno, "the current working directory");
	}
	if (space)
		space->cwd = cell__strdup(all.cwd ? all.cwd : here);
	if (!space || !space->cwd) {
		free(space);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	space->engine = engine;
	struct opening opening = { .task.fn = do_open, .space = space, .opts = &all };
	cell__waiter_init(&opening.waiter);
	cell__loop_do(&engine->loop, &opening.task, &opening.waiter);
	cell__waiter_finish(&opening.waiter);
	if (opening.rc < 0) {
		if (err)
			*err = opening.err;
		return -1;
	}
	*ret_space = space;
	return 0;
}

struct closing {
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_space *space;
};

static void handle_space_closed(void *arg)
{
	struct closing *closing = arg;
	cell__waiter_signal(&closing->waiter);
}

static void do_close(struct cell__task *task)
{
	struct closing *closing = (struct closing *)task;
	if (closing->space->refs > 0)
		abort(); /* misuse: its sessions would go on with freed memory */
	cell__space_close(closing->space, handle_space_closed, closing);
}

void cell_space_close(struct cell_space *space)
{
	if (!space)
		return;
	struct cell__loop *loop = &space->engine->loop;
	struct closing closing = { .task.fn = do_close, .space = space };
	cell__waiter_init(&closing.waiter);
	cell__loop_do(loop, &closing.task, &closing.waiter);
	cell__waiter_finish(&closing.waiter);
}

/* ---- the host's own calls ---- */

struct host_call {
	struct cell__call base;
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_space *space;
	char *json;
	void *raw;
	size_t raw_size;
	struct cell_error err;
	bool failed;
};

static void host_answer(struct cell__call *base, json_t *result, const void *raw, size_t raw_size)
{
	struct host_call *call = (struct host_call *)base;
	call->json = result ? json_dumps(result, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	if (raw_size > 0)
		call->raw = cell__strndup(raw, raw_size);
	call->raw_size = raw_size;
	if (!call->json || (raw_size > 0 && !call->raw)) {
		call->failed = true;
		cell_fail(&call->err, CELL_E_NOMEM, 0, "out of memory for the answer");
	}
	json_decref(result);
	cell__waiter_signal(&call->waiter);
}

static void host_fail(struct cell__call *base, int code, const char *type, const char *message)
{
	(void)type;
	struct host_call *call = (struct host_call *)base;
	call->failed = true;
	cell_fail(&call->err, code, 0, "%s", message);
	cell__waiter_signal(&call->waiter);
}

static void do_call(struct cell__task *task)
{
	struct host_call *call = (struct host_call *)((char *)task - offsetof(struct host_call, task));
	cell__space_handle(call->space, NULL, &call->base);
}

int cell_space_call(struct cell_space *space, const char *method, const char *args_json, const void *raw,
		    size_t raw_size, char **ret_json, void **ret_raw, size_t *ret_raw_size, struct cell_error *err)
{
	if (cell__loop_is_current(&space->engine->loop))
		return cell_fail(err, CELL_E_INVALID, 0, "cell_space_call() waits and must not be called from a callback");
	json_error_t problem;
	json_t *args = json_loads(args_json ? args_json : "{}", JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
	if (!json_is_object(args)) {
		json_decref(args);
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments of %.60s are not a JSON object", method);
	}
	struct host_call call = {
		.base = { .method = method, .args = args, .raw = raw, .raw_size = raw_size, .session_id = "",
			  .answer = host_answer, .fail = host_fail },
		.task.fn = do_call,
		.space = space,
	};
	cell__waiter_init(&call.waiter);
	cell__loop_do(&space->engine->loop, &call.task, &call.waiter);
	cell__waiter_finish(&call.waiter);
	json_decref(args);
	if (call.failed) {
		free(call.json);
		free(call.raw);
		if (err)
			*err = call.err;
		return -1;
	}
	*ret_json = call.json;
	if (ret_raw) {
		*ret_raw = call.raw;
		*ret_raw_size = call.raw_size;
	} else {
		free(call.raw);
	}
	return 0;
}

/* ---- functions of the host ---- */

struct adding {
	struct cell_space *space;
	const struct cell_tool *tool;
	struct cell_error err;
	int rc;
};

/* struct cell_tool_call is the registry's own call under its public name. */
static void call_function(void *arg, struct cell__host_call *call)
{
	struct host_function *function = arg;
	function->fn(function->arg, (struct cell_tool_call *)call);
}

static void do_add_tool(void *arg)
{
	struct adding *adding = arg;
	const struct cell_tool *tool = adding->tool;
	struct host_function *function = cell__alloc(1, sizeof *function);
	if (!function) {
		adding->rc = cell_fail(&adding->err, CELL_E_NOMEM, 0, "out of memory");
		return;
	}
	*function = (struct host_function){ .fn = tool->fn, .arg = tool->arg, .next = adding->space->functions };
	adding->space->functions = function; /* also when the tool is refused: then nobody calls it */
	struct cell__host_tool host = {
		.name = tool->name,
		.description = tool->description,
		.parameters = tool->parameters,
		.timeout_ms = tool->timeout_ms,
		.fn = call_function,
		.arg = function,
	};
	adding->rc = cell__tools_add_host(adding->space->tools, &host, &adding->err);
}

int cell_space_add_tool(struct cell_space *space, const struct cell_tool *tool, struct cell_error *err)
{
	struct cell_tool all = CELL_TOOL_INIT;
	if (tool->size < sizeof(size_t) || tool->size > sizeof all)
		return cell_fail(err, CELL_E_INVALID, 0, "cell_tool.size is %zu, expected up to %zu", tool->size, sizeof all);
	memcpy(&all, tool, tool->size);
	if (!all.name || !all.fn)
		return cell_fail(err, CELL_E_INVALID, 0, "a tool needs a name and a function");
	struct adding adding = { .space = space, .tool = &all };
	if (cell__loop_is_current(&space->engine->loop))
		do_add_tool(&adding);
	else
		cell__loop_call(&space->engine->loop, do_add_tool, &adding);
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
	return cell__host_call_args(inner(call));
}

const char *cell_tool_call_session_id(const struct cell_tool_call *call)
{
	return cell__host_call_session_id(inner(call));
}

void cell_tool_call_answer_json(struct cell_tool_call *call, const char *json, size_t size)
{
	cell__host_call_answer_json(inner(call), json, size);
}

void cell_tool_call_answer_text(struct cell_tool_call *call, const char *text, size_t size)
{
	cell__host_call_answer_text(inner(call), text, size);
}

void cell_tool_call_fail(struct cell_tool_call *call, const char *message)
{
	cell__host_call_fail(inner(call), message);
}
