/*
 * Theory of operation
 *
 *     call ──▶ handle_call() ─────┬── tools.*      ──▶ tools/ (loop's thread)
 *                                   ├── *.search     ──▶ search/, if an embeddings endpoint is configured
 *                                   ├── deps.*       ──▶ deps/ (loop's thread, installers as programs)
 *                                   └── workflows.*,
 *                                       artifacts.*  ──▶ an op on libuv's pool (storage/operations.c) ──▶ answer
 *
 * Closing: tools and deps close, ops in progress end, then the pool closes the store.  `pending` counts the unfinished parts.
 */
#define _GNU_SOURCE
#include "space/space.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hole.h"
#include "base/sized.h"
#include "deps/deps.h"
#include "gate/gate.h"
#include "gate/gated_call.h"
#include "search/searches.h"
#include "space/llm.h"
#include "space/servers.h"
#include "search/onnx.h"
#include "storage/operations.h"
#include "deps/venv.h"
#include "tools/tools.h"

struct cell_space {
	struct cell_engine *engine;
	char *cwd;
	char *oauth_dir; /* NULL: none */
	char *python;
	bool sync_on_start, tools_from_storage;
	atomic_uint_fast64_t tools_asked; /* number of reads of its storage's tools */
	uint64_t tools_taken;             /* whose answer it has */
	void (*on_progress)(void *arg, const char *line);
	void *progress_arg;
	struct cell__store *store;
	char *workspace; /* NULL: none */
	struct cell__storage *storage;
	struct cell__space_watcher *watchers;
	struct cell__tools *tools;
	struct cell__deps *deps, *sandbox_deps; /* the host's; those of untrusted principals */
	struct cell__deps_place changed[2];     /* where packages are after the last change: those of untrusted principals, the host's */
	atomic_uint changes;
	struct cell__servers servers;
	struct cell__function *functions;
	struct cell__model *llm; /* NULL: none */
	struct cell__middlewares middlewares;
	struct cell__gate gate; /* for calls that belong to no session */
	uint64_t next_call_id;
	struct cell__searches *searches;
	struct cell__place_list places; /* that the host trusts */
	bool trusts;                    /* they are the engine's */
	int refs; /* sessions */
	int pending;
	uv_work_t work; /* of its end */
	bool closing;
	void (*closed)(void *arg);
	void *closed_arg;
	struct cell_space *next;
};

/* ---- calls ---- */

static void no_storage(struct cell__call *call)
{
	call->fail(call, CELL_E_NOT_FOUND, "RuntimeError",
		   "this session has no storage; open it with one (storage= in Python; --base, --storage of the command line)");
}

static struct cell__tools_view view_of(const struct cell_space *space, const char *cwd)
{
	return (struct cell__tools_view){ .cwd = cwd ? cwd : space->cwd };
}

/* The environment of a principal. No trusted session, zygote or installer ever uses that of untrusted ones. */
static struct cell__deps *deps_of(struct cell_space *space, bool trusted)
{
	return trusted || is_hole("deps-trust") ? space->deps : space->sandbox_deps;
}

static void do_register(struct cell_space *space, struct cell__call *call)
{
	const char *name = json_string_value(json_object_get(call->args, "name"));
	struct cell_error err = { 0 };
	int rc = call->operation->id == CELL__OP_TOOLS_REGISTER
			 ? cell__tools_add_mcp(space->tools, name, json_object_get(call->args, "params"), &err)
			 : cell__tools_remove_mcp(space->tools, name, &err);
	if (rc < 0)
		call->fail(call, err.code, err.code == CELL_E_INVALID ? "ValueError" : "RuntimeError", err.msg);
	else
		call->answer(call, json_null(), NULL, 0);
}

/* Packages that a client or the host adds for sessions on Pyodide must be there after their next reset, as those that code adds. */
static void do_deps(struct cell_space *space, struct cell__call *call)
{
	struct cell_engine *engine = space->engine;
	if (call->operation->id != CELL__OP_DEPS_LIST && engine->session_ops->any_wants_wheels(engine, space) &&
	    json_object_set_new(call->args, "pyodide", json_true()) < 0) {
		call->fail(call, CELL_E_NOMEM, "MemoryError", "out of memory");
		return;
	}
	cell__deps_handle(deps_of(space, cell__principal_is_trusted(call->principal)), call);
}

static struct cell__own_work *own_of(struct cell__lent_work *lent)
{
	return (struct cell__own_work *)((char *)lent - offsetof(struct cell__own_work, lent));
}

static void handle_own_done(struct cell__lent_work *lent)
{
	struct cell__own_work *work = own_of(lent);
	struct cell__call *call = cell__take_ptr(work->call);
	json_t *result = cell__take_ptr(work->result);
	if (!call)
		json_decref(result);
	else if (work->code)
		call->fail(call, work->code, "RuntimeError", work->message);
	else
		call->answer(call, result, NULL, 0);
}

/* Its function runs to its end; what it answers is dropped. */
static void cancel_own(struct cell__call *call)
{
	call->work->call = NULL;
}

static void lend_own(struct cell__call *call)
{
	struct cell__own_work *work = call->work;
	if (!work || !call->lend) {
		call->fail(call, CELL_E_INVALID, "RuntimeError", "nothing is offered by this name");
		return;
	}
	work->lent.done = handle_own_done;
	work->call = call;
	work->args = json_dumps(json_object_get(call->args, "args"), JSON_COMPACT);
	if (!work->args) {
		call->fail(call, CELL_E_NOMEM, "MemoryError", "the host is out of memory");
		return;
	}
	call->cancel = cancel_own;
	call->lend(call, &work->lent);
}

static void handle_call(struct cell_space *space, const char *cwd, struct cell__call *call)
{
	struct cell__tools_view view = view_of(space, cwd);
	enum cell__op op = call->operation->id;
	enum cell__op_part part = call->operation->part;
	if (part == CELL__PART_SEARCH && !cell__searches_takes(space->searches, op))
		part = op == CELL__OP_TOOLS_SEARCH ? CELL__PART_TOOLS : CELL__PART_WORKFLOWS;
	if (space->closing)
		call->fail(call, CELL_E_CLOSED, "RuntimeError", "the space is closed");
	else if (part == CELL__PART_ASKER)
		lend_own(call);
	else if (part == CELL__PART_SEARCH)
		cell__searches_handle(space->searches, space->tools, &view, call);
	else if (part == CELL__PART_TOOLS)
		cell__tools_handle(space->tools, &view, call);
	else if (part == CELL__PART_SERVERS)
		do_register(space, call);
	else if (part == CELL__PART_LLM)
		cell__llm_handle(space->llm, call);
	else if (!space->storage)
		no_storage(call);
	else if (part == CELL__PART_DEPS)
		do_deps(space, call);
	else
		cell__storage_handle(space->storage, call);
}

static int choose_tool(struct cell_space *space, const char *cwd, struct cell__call *call, struct cell__tool_choice *ret_choice)
{
	struct cell__tools_view view = { .cwd = cwd ? cwd : space->cwd };
	if (!space->closing)
		return cell__tools_choose(space->tools, &view, call, ret_choice);
	call->fail(call, CELL_E_CLOSED, "RuntimeError", "the space is closed");
	return -1;
}

static void run_call(struct cell_space *space, const char *cwd, const struct cell__tool_choice *choice, struct cell__call *call)
{
	struct cell__tools_view view = { .cwd = cwd ? cwd : space->cwd };
	if (space->closing)
		call->fail(call, CELL_E_CLOSED, "RuntimeError", "the space is closed");
	else
		cell__tools_run(space->tools, &view, choice, call);
}

/* ---- changes ---- */

static void tell_watchers(void *arg, enum cell__op op, const char *name)
{
	struct cell_space *space = arg;
	for (struct cell__space_watcher *watcher = space->watchers; watcher; watcher = watcher->next)
		watcher->changed(watcher->arg, op, name);
}

void cell__space_watch(struct cell_space *space, struct cell__space_watcher *watcher)
{
	watcher->next = space->watchers;
	space->watchers = watcher;
	if (space->storage)
		cell__storage_on_change(space->storage, tell_watchers, space);
}

void cell__space_unwatch(struct cell_space *space, struct cell__space_watcher *watcher)
{
	struct cell__space_watcher **at = &space->watchers;
	while (*at && *at != watcher)
		at = &(*at)->next;
	if (*at)
		*at = watcher->next;
}

static const struct cell__middlewares *middlewares_of(const struct cell_space *space)
{
	return &space->middlewares;
}

const struct cell__gate_target cell__space_target = {
	.handle = handle_call, .choose = choose_tool, .run = run_call, .middlewares = middlewares_of
};

bool cell__space_fits_function(struct cell_space *space, const char *cwd, const char *name, struct cell__host_ask *ask)
{
	struct cell__tools_view view = view_of(space, cwd);
	return !space->closing && cell__tools_fits_host(space->tools, &view, name, ask);
}

void cell__space_call_function(struct cell_space *space, const struct cell__host_ask *ask, struct cell__call *call)
{
	cell__tools_call_host(space->tools, ask, call);
}

const char *cell__space_artifacts_path(const struct cell_space *space)
{
	return space->store ? cell__store_artifacts_path(space->store) : "";
}

void cell__space_session_ended(struct cell_space *space, const char *session_id, const void *origin)
{
	if (space->storage)
		cell__storage_session_ended(space->storage, session_id, origin);
}

void cell__space_ref(struct cell_space *space)
{
	space->refs++;
}

void cell__space_unref(struct cell_space *space)
{
	space->refs--;
}

bool cell__space_is_alone(const struct cell_space *space)
{
	return space->refs == 1;
}

void cell__space_stop_servers_on_loop(struct cell_space *space, void (*done)(void *arg), void *arg)
{
	cell__tools_stop_mcp(space->tools, done, arg);
}

const char *cell__space_python(const struct cell_space *space)
{
	return space->python;
}

struct cell_engine *cell__space_engine(struct cell_space *space)
{
	return space->engine;
}

struct cell__tools *cell__space_tools(struct cell_space *space)
{
	return space->tools;
}

struct cell__servers *cell__space_servers(struct cell_space *space)
{
	return &space->servers;
}

struct cell__function **cell__space_functions(struct cell_space *space)
{
	return &space->functions;
}

struct cell__model **cell__space_llm(struct cell_space *space)
{
	return &space->llm;
}

struct cell__middlewares *cell__space_middlewares(struct cell_space *space)
{
	return &space->middlewares;
}

void cell__space_find_packages(struct cell_space *space, bool trusted, bool wants_folder, struct cell__deps_place *ret_place)
{
	struct cell__deps *deps = deps_of(space, trusted);
	*ret_place = (struct cell__deps_place){ 0 };
	if (deps)
		cell__deps_find(deps, wants_folder, ret_place);
}

const struct cell__deps_place *cell__space_changed_packages(const struct cell_space *space, bool trusted)
{
	return &space->changed[trusted];
}

unsigned cell__space_package_changes(struct cell_space *space)
{
	return atomic_load(&space->changes);
}

char *cell__space_wheels(struct cell_space *space)
{
	return space->sandbox_deps ? cell__deps_wheels(space->sandbox_deps) : NULL;
}

bool cell__space_has_storage(const struct cell_space *space)
{
	return space->store != NULL;
}

int cell__space_check(const struct cell_space *space, struct cell_error *err)
{
	return cell__store_check(space->store, err);
}

const char *cell__space_workspace(const struct cell_space *space)
{
	return space->workspace;
}

/*
 * Code that could write there would make the host run a command, install a package or keep a workflow. A workspace may be inside the
 * storage folder, beside the host's files.
 */
static int list_storage(struct cell_space *space, struct cell_error *err)
{
	static const char *const parts[] = {
		"artifacts", "workflows", "skills", "deps", "requirements.txt", "workspaces", ".cache", ".host"
	};
	const char *folder = space->store ? cell__store_base(space->store) : NULL; /* code cannot write to Redis */
	for (size_t i = 0; folder && i < sizeof parts / sizeof *parts; i++) {
		CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
		if (cell__buf_printf(&path, "%s/%s", folder, parts[i]) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		if (cell__place_add(&space->places, "the storage's", true, path.data, err) < 0)
			return -1;
	}
	/* Last: the place trusted last is named first. */
	return cell__place_add(&space->places, "the storage folder", false, folder, err);
}

/* Folders in which programs are searched. */
static int list_path(struct cell_space *space, const char *path, struct cell_error *err)
{
	CELL_AUTO_FREE char *copy = path ? cell__strdup(path) : NULL;
	char *rest = copy;
	if (path && !copy)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (char *folder; (folder = strsep(&rest, ":"));)
		if (folder[0] && cell__place_add(&space->places, "on PATH,", false, folder, err) < 0)
			return -1;
	return 0;
}

static int list_places(struct cell_space *space, const struct cell_space_options *opts, const char *cache, struct cell_error *err)
{
	if (list_path(space, opts->path, err) < 0 || cell__place_add(&space->places, "the tools folder", true, opts->tools_dir, err) < 0 ||
	    cell__place_add(&space->places, "the venv", true, opts->venv_dir, err) < 0 ||
	    cell__place_add(&space->places, "the wheel folder", true, opts->wheel_dir, err) < 0 ||
	    cell__place_add(&space->places, "the cache folder", true, cache, err) < 0 ||
	    cell__place_add(&space->places, "the embeddings model", true, cell__onnx_folder(opts->embeddings_url), err) < 0)
		return -1;
	return list_storage(space, err);
}

/* ---- open and close ---- */

static void free_space(struct cell_space *space)
{
	cell__functions_free(space->functions);
	cell__middlewares_finish(&space->middlewares);
	cell__deps_place_finish(&space->changed[0]);
	cell__deps_place_finish(&space->changed[1]);
	cell__store_close(space->store);
	if (space->trusts)
		cell__places_untrust(space->engine->host.places, &space->places);
	cell__place_list_finish(&space->places);
	free(space->oauth_dir);
	free(space->cwd);
	free(space->python);
	free(space->workspace);
	free(space);
}

/* Closing a database writes and removes files: the pool does it. */
static void handle_close_store(uv_work_t *work)
{
	struct cell_space *space = work->data;
	cell__store_close(cell__take_ptr(space->store));
}

static void handle_store_closed(uv_work_t *work, int status)
{
	struct cell_space *space = work->data;
	void (*closed)(void *) = space->closed;
	void *closed_arg = space->closed_arg;
	(void)status; /* never cancelled */
	free_space(space);
	closed(closed_arg);
}

static void part_closed(void *arg)
{
	struct cell_space *space = arg;
	if (--space->pending > 0)
		return;
	space->work.data = space;
	uv_queue_work(cell__loop_uv(space->engine->loop), &space->work, handle_close_store, handle_store_closed);
}

void cell__space_close_on_loop(struct cell_space *space, void (*done)(void *arg), void *arg)
{
	space->closing = true;
	space->closed = done;
	space->closed_arg = arg;
	for (struct cell_space **at = &space->engine->spaces; *at; at = &(*at)->next)
		if (*at == space) {
			*at = space->next;
			break;
		}
	cell__gate_drop(&space->gate);
	cell__pace_destroy(cell__take_ptr(space->gate.pace));
	cell__llm_destroy(cell__take_ptr(space->llm));
	space->pending = 1 + (space->deps != NULL) + (space->sandbox_deps != NULL) + (space->storage != NULL) + (space->searches != NULL);
	if (space->searches)
		cell__searches_close(cell__take_ptr(space->searches), part_closed, space);
	if (space->deps)
		cell__deps_close(cell__take_ptr(space->deps), part_closed, space);
	if (space->sandbox_deps)
		cell__deps_close(cell__take_ptr(space->sandbox_deps), part_closed, space);
	if (space->storage)
		cell__storage_close(cell__take_ptr(space->storage), part_closed, space);
	if (space->tools)
		cell__tools_close(cell__take_ptr(space->tools), part_closed, space);
	else
		part_closed(space);
}

/*
 * Opening alternates between the caller's thread, which alone touches files, and the loop's:
 *
 *     open_files() ──▶ do_trust() ──▶ make_files() ──▶ do_open()
 *     caller's         loop's          caller's         loop's; also after a failure, to close the opened parts
 */
struct opening {
	struct cell__task task;
	struct cell__waiter waiter;
	struct cell_space *space;
	const struct cell_space_options *opts;
	struct cell__buf cache; /* the folder's name */
	struct cell__tools_dir *tools;
	char tool_vectors[PATH_MAX]; /* "": none */
	struct cell_error err;
	int rc;
};

static void packages_changed(void *arg, const struct cell__deps_place *place)
{
	struct cell_space *space = arg;
	struct cell__deps_place *known = &space->changed[!place->confined];
	cell__deps_place_finish(known);
	known->site = place->site ? cell__strdup(place->site) : NULL;
	known->bin = place->bin ? cell__strdup(place->bin) : NULL;
	atomic_fetch_add(&space->changes, 1);
	space->engine->session_ops->packages_changed(space->engine, space);
}

static enum cell__deps_cleanup cleanup_of(const struct cell_space_options *opts)
{
	if (opts->cleanup_venv_on_close < 0)
		return CELL__DEPS_CLEANUP_DEFAULT;
	return opts->cleanup_venv_on_close ? CELL__DEPS_CLEANUP_ALWAYS : CELL__DEPS_CLEANUP_NEVER;
}

static int find_cache(const struct cell_space_options *opts, struct cell__buf *out, struct cell_error *err)
{
	if (cell__buf_printf(out, "%s%s", opts->cache_dir ? opts->cache_dir : cell__home_dir(), opts->cache_dir ? "" : "/.cache/workcell") <
	    0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return 0;
}

static int make_deps(struct cell_space *space, const struct cell_space_options *opts, const char *cache, struct cell_error *err)
{
	struct cell__deps_options deps = {
		.loop = space->engine->loop,
		.supervisor = &space->engine->supervisor,
		.store = space->store,
		.python = space->python,
		.venv_dir = opts->venv_dir,
		.cache_dir = cache,
		.index_url = opts->index_url,
		.wheel_dir = opts->wheel_dir,
		.path = opts->path ? opts->path : CELL_TOOL_DEFAULT_PATH,
		.allow_runtime = opts->allow_runtime_deps != 0,
		.private_venv = !opts->cache_venv,
		.cleanup = cleanup_of(opts),
		.timeout_ms = opts->install_timeout_ms,
		.extra_env = opts->installer_env,
		.changed = packages_changed,
		.changed_arg = space,
		.kernel_dir = space->engine->host.kernel_dir,
	};
	if (cell__deps_create(&deps, &space->deps, err) < 0)
		return -1;
	deps.confined = true;
	return cell__deps_create(&deps, &space->sandbox_deps, err);
}

static int make_searches(const struct opening *opening, struct cell_error *err)
{
	struct cell_space *space = opening->space;
	const struct cell_space_options *opts = opening->opts;
	struct cell__searches_options searches = {
		.store = space->store,
		.tool_vectors = *opening->tool_vectors ? opening->tool_vectors : NULL,
		.embeddings = {
			.loop = space->engine->loop,
			.url = opts->embeddings_url,
			.model = opts->embeddings_model,
			.key = opts->embeddings_key,
			.getenv_fn = opts->getenv_fn,
			.getenv_arg = opts->getenv_arg,
			.log = space->engine->host.log,
			.log_arg = space->engine->host.log_arg,
		},
	};
	return cell__searches_create(&searches, &space->searches, err);
}

static void log_notice(void *arg, const struct cell_error *notice)
{
	struct cell_engine *engine = arg;
	engine->host.log(engine->host.log_arg, CELL_LOG_WARN, "%s", notice->msg);
}

/* ---- learned types of results ---- */

static int load_learned(void *arg, json_t **ret_book, struct cell_error *err)
{
	return cell__learned_load(((struct cell_space *)arg)->store, ret_book, err);
}

static int note_learned(void *arg, const char *name, const json_t *shape, json_t **ret_entry, struct cell_error *err)
{
	return cell__learned_note(((struct cell_space *)arg)->store, name, shape, ret_entry, err);
}

static void log_unlearned(void *arg, const struct cell_error *err)
{
	struct cell_engine *engine = ((struct cell_space *)arg)->engine;
	engine->host.log(engine->host.log_arg, CELL_LOG_WARN, "types of results are not kept: %s", err->msg);
}

static const struct cell__learn_ops learn_ops = { .load = load_learned, .note = note_learned, .failed = log_unlearned };

static int make_parts(struct opening *opening)
{
	struct cell_space *space = opening->space;
	const struct cell_space_options *opts = opening->opts;
	struct cell_error *err = &opening->err;
	struct cell__tools_options tools = {
		.loop = space->engine->loop,
		.supervisor = &space->engine->supervisor,
		.getenv_fn = opts->getenv_fn,
		.getenv_arg = opts->getenv_arg,
		.path = opts->path,
		.cwd = space->cwd,
		.oauth_dir = space->oauth_dir,
		.confine = space->engine->session_ops->confine,
		.confine_arg = space,
		.learn = space->store && !opts->confined ? &learn_ops : NULL, /* a container has no place that its code cannot write to */
		.learn_arg = space,
		.rank = cell__searches_rank_tools,
	};
	if (make_searches(opening, err) < 0)
		return -1;
	tools.rank_arg = space->searches;
	if (cell__tools_create(&tools, &space->tools, err) < 0)
		return -1;
	cell__servers_init(&space->servers, space);
	if (opening->tools && cell__tools_add_dir(space->tools, cell__take_ptr(opening->tools), err) < 0)
		return -1;
	return space->store ? cell__storage_create(space->engine->loop, space->store, log_notice, space->engine, &space->storage, err) : 0;
}

static int open_files(struct opening *opening)
{
	struct cell_space *space = opening->space;
	const struct cell_space_options *opts = opening->opts;
	struct cell_error *err = &opening->err;
	if (opts->storage && cell__store_open(opts->storage, opts->workspace_id, &space->store, err) < 0)
		return -1;
	if (space->store && opts->confined)
		cell__store_set_confined(space->store);
	if (opts->workspace_id && !(space->workspace = cell__strdup(opts->workspace_id)))
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	if (find_cache(opts, &opening->cache, err) < 0)
		return -1;
	return list_places(space, opts, opening->cache.data, err);
}

static void do_trust(void *arg)
{
	struct opening *opening = arg;
	struct cell_space *space = opening->space;
	opening->rc = cell__places_trust(space->engine->host.places, &space->places, &opening->err);
	space->trusts = opening->rc == 0;
}

/* Files that are read and made only once no code can write there. */
static int make_files(struct opening *opening)
{
	struct cell_space *space = opening->space;
	const char *tools = opening->opts->tools_dir;
	if (tools && cell__tools_read_dir(tools, &opening->tools, &opening->err) < 0)
		return -1;
	if (!space->store)
		return 0;
	if (cell__store_use_cache(space->store, opening->cache.data, &opening->err) < 0)
		return -1;
	if (opening->opts->embeddings_url && cell__store_cache_path(space->store, CELL__TOOL_VECTORS_FILE, opening->tool_vectors) < 0)
		opening->tool_vectors[0] = '\0';
	return make_deps(space, opening->opts, opening->cache.data, &opening->err);
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
	cell__deps_start(space->deps);
	cell__deps_start(space->sandbox_deps);
	if (opening->rc == 0)
		opening->rc = make_parts(opening);
	if (opening->rc < 0) {
		cell__space_close_on_loop(space, open_failed, opening);
		return;
	}
	space->next = space->engine->spaces;
	space->engine->spaces = space;
	cell__waiter_signal(&opening->waiter);
}

/* A missing interpreter is not an error yet: deps.list works without one. */
static int choose_python(struct cell_space *space, const struct cell_space_options *opts, struct cell_error *err)
{
	const char *path = opts->path ? opts->path : CELL_TOOL_DEFAULT_PATH;
	const char *name = opts->python ? opts->python : CELL_DEFAULT_PYTHON;
	if (opts->python && opts->python_version)
		return cell_fail(err, CELL_E_INVALID, 0, "python and python_version both name an interpreter; give only one");
	if (opts->python_version)
		return cell__deps_find_python(opts->python_version, path, &space->python, err);
	space->python = cell__venv_find_program(name, path);
	if (!space->python)
		space->python = cell__strdup(name);
	return space->python ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

static int copy_options(struct cell_space *space, const struct cell_space_options *opts, struct cell_error *err)
{
	char here[PATH_MAX];
	if (opts->install_timeout_ms < -1 || opts->install_timeout_ms == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "install_timeout_ms is %lld, expected more than 0, or -1 for no limit",
				 (long long)opts->install_timeout_ms);
	if (!opts->cwd && !getcwd(here, sizeof here))
		return cell_fail(err, CELL_E_INVALID, errno, "the current working directory");
	space->sync_on_start = opts->sync_deps_on_start != 0;
	space->tools_from_storage = opts->tools_from_storage != 0;
	if (space->tools_from_storage && !opts->storage)
		return cell_fail(err, CELL_E_INVALID, 0, "tools_from_storage needs a storage in Redis");
	space->on_progress = opts->on_progress;
	space->progress_arg = opts->progress_arg;
	space->cwd = cell__strdup(opts->cwd ? opts->cwd : here);
	space->oauth_dir = opts->oauth_dir ? cell__strdup(opts->oauth_dir) : NULL;
	if (!space->cwd || (opts->oauth_dir && !space->oauth_dir))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return choose_python(space, opts, err);
}

static int first_tools(struct cell_space *space, struct cell_error *err);

int cell_space_open(struct cell_engine *engine, const struct cell_space_options *opts, struct cell_space **ret_space,
		    struct cell_error *err)
{
	if (cell__require(err, engine, ret_space) < 0)
		return -1;
	struct cell_space_options all = CELL_SPACE_OPTIONS_INIT;
	if (opts && cell__sized_read(&all, sizeof all, opts, "cell_space_options", err) < 0)
		return -1;
	if (cell__engine_may_wait(engine, "cell_space_open", err) < 0)
		return -1;
	struct cell_space *space = cell__alloc(1, sizeof *space);
	if (!space)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (copy_options(space, &all, err) < 0) {
		free_space(space);
		return -1;
	}
	space->engine = engine;
	space->next_call_id = 1;
	space->gate = (struct cell__gate){ .target = &cell__space_target,
					   .space = space,
					   .session_id = "",
					   .executor = "host",
					   .next_id = &space->next_call_id,
					   .timeout_ms = -1 };
	struct opening opening = { .task.fn = do_open, .space = space, .opts = &all, .cache = CELL_BUF_INIT };
	opening.rc = open_files(&opening);
	if (opening.rc == 0)
		cell__loop_call(engine->loop, do_trust, &opening);
	if (opening.rc == 0)
		opening.rc = make_files(&opening);
	cell__waiter_init(&opening.waiter);
	cell__loop_do(engine->loop, &opening.task, &opening.waiter);
	cell__waiter_finish(&opening.waiter);
	cell__buf_finish(&opening.cache);
	cell__tools_dir_destroy(opening.tools);
	if (opening.rc < 0) {
		if (err)
			*err = opening.err;
		return -1;
	}
	if (first_tools(space, err) < 0) {
		cell_space_close(space);
		return -1;
	}
	*ret_space = space;
	return 0;
}

static void start_close(void *object, void (*done)(void *arg), void *arg)
{
	struct cell_space *space = object;
	if (space->refs > 0)
		abort(); /* misuse: its sessions would continue with freed memory */
	cell__space_close_on_loop(space, done, arg);
}

void cell_space_close(struct cell_space *space)
{
	if (!space)
		return;
	cell__engine_must_wait(space->engine, "cell_space_close");
	cell__engine_wait(space->engine, start_close, space);
}

/* ---- for call.c ---- */

void cell__space_submit(struct cell_space *space, const struct cell__principal *principal, struct cell__call *call)
{
	struct cell__gate *gate = &space->gate;
	struct cell_error err;
	if (gate->audit && !gate->pace && !cell__principal_is_trusted(principal) &&
	    cell__pace_create(space->engine->loop, gate->audit, "", principal->limits.audit_bytes, &gate->pace, &err) < 0) {
		call->fail(call, err.code, "MemoryError", err.msg);
		return;
	}
	cell__gate_submit(&space->gate, principal, call);
}

void cell__space_guard_on_loop(struct cell_space *space, const struct cell_session_options *session, const char *cannot_ask)
{
	struct cell__gate *gate = &space->gate;
	gate->policy = session->policy;
	gate->kinds = session->gate & CELL__GATE_ALL;
	if (session->policy && !gate->kinds)
		gate->kinds = cell__policy_kinds(session->policy);
	gate->audit = session->audit ? cell__audit_of(session->audit) : NULL;
	gate->cannot_ask = cannot_ask;
}

struct guarding {
	struct cell_space *space;
	const struct cell_session_options *session;
};

static void do_guard(void *arg)
{
	struct guarding *guarding = arg;
	cell__space_guard_on_loop(guarding->space, guarding->session, "no session is attached to this call of the host program");
}

int cell_space_guard(struct cell_space *space, const struct cell_session_options *session, struct cell_error *err)
{
	if (cell__require(err, space, session) < 0)
		return -1;
	struct cell_session_options all = CELL_SESSION_OPTIONS_INIT;
	if (cell__sized_read(&all, sizeof all, session, "cell_session_options", err) < 0)
		return -1;
	struct guarding guarding = { space, &all };
	cell__loop_call(space->engine->loop, do_guard, &guarding);
	return 0;
}

bool cell__space_progress(const struct cell_space *space, const char *line)
{
	if (line)
		space->on_progress(space->progress_arg, line);
	return space->on_progress != NULL;
}

/* ---- packages before the first cell ---- */

/* An error for packages that could not be installed: the first of them, with the installer's message. */
static int check_synced(const char *json, struct cell_error *err)
{
	json_t *answer = json_loads(json, 0, NULL);
	json_t *failed = json_object_get(answer, "failed");
	const char *spec = json_string_value(json_array_get(failed, 0));
	const char *words = spec ? json_string_value(json_object_get(json_object_get(answer, "errors"), spec)) : NULL;
	int rc = 0;
	if (!answer)
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	else if (spec)
		rc = cell_fail(err, CELL_E_INSTALL, 0, "cannot install %.60s: %s", spec, words ? words : "no reason was given");
	json_decref(answer);
	/* One sentence; the lines were progress. */
	for (char *end = rc < 0 && err ? strchr(err->msg, '\n') : NULL; end; end = strchr(end, '\n'))
		*end = ' ';
	return rc;
}

bool cell__space_syncs(const struct cell_space *space)
{
	return space->sync_on_start && space->store;
}

int cell__space_sync(struct cell_space *space, const struct cell__principal *principal, bool pyodide, struct cell_error *err)
{
	if (!cell__space_syncs(space))
		return 0;
	/* The program's own decision, for the environment of the code that is about to run in it. */
	struct cell__principal host = cell__principal_host;
	host.trusted = cell__principal_is_trusted(principal);
	struct cell_answer answer = CELL_ANSWER_INIT;
	int rc = cell__space_wait(space, &host, "deps.sync", pyodide ? "{\"pyodide\":true}" : "{\"quick\":true}", NULL, 0, NULL, &answer,
				  err);
	if (rc == 0)
		rc = check_synced(answer.json, err);
	cell_answer_finish(&answer);
	return rc;
}

/* ---- tools in the storage ---- */

struct cell__stored_tools {
	uint64_t number; /* of the question */
	json_t *texts;
};

void cell__stored_tools_destroy(struct cell__stored_tools *tools)
{
	if (tools)
		json_decref(tools->texts);
	free(tools);
}

int cell__space_read_tools(struct cell_space *space, struct cell__stored_tools **ret_tools, struct cell_error *err)
{
	if (!space->tools_from_storage)
		return 0;
	struct cell__stored_tools *tools = cell__alloc(1, sizeof *tools);
	if (!tools)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	tools->number = atomic_fetch_add(&space->tools_asked, 1) + 1;
	if (cell__store_tools(space->store, &tools->texts, err) < 0) {
		cell_fail_wrap(err, "tools from the storage");
		cell__stored_tools_destroy(tools);
		return -1;
	}
	*ret_tools = tools;
	return 0;
}

void cell__space_take_tools(struct cell_space *space, struct cell__stored_tools *tools)
{
	struct cell_error err;
	if (!tools)
		return;
	/* Without memory it keeps its present tools. */
	if (tools->number > space->tools_taken && space->tools &&
	    cell__tools_set_stored(space->tools, cell__store_root(space->store), tools->texts, &err) == 0)
		space->tools_taken = tools->number;
	cell__stored_tools_destroy(tools);
}

struct taking {
	struct cell_space *space;
	struct cell__stored_tools *tools;
};

static void do_take_tools(void *arg)
{
	struct taking *taking = arg;
	cell__space_take_tools(taking->space, taking->tools);
}

/* For callers of tools without a session. */
static int first_tools(struct cell_space *space, struct cell_error *err)
{
	struct taking taking = { .space = space };
	if (cell__space_read_tools(space, &taking.tools, err) < 0)
		return -1;
	cell__loop_call(space->engine->loop, do_take_tools, &taking);
	return 0;
}

int cell_find_python(const char *version, const char *path, char **ret_python, struct cell_error *err)
{
	if (cell__require(err, version, path, ret_python) < 0)
		return -1;
	return cell__deps_find_python(version, path, ret_python, err);
}
