/*
 * Calls of the `deps` namespace and their queue.
 *
 *     waiting ──its turn──▶ current ──steps (steps.c)──▶ answered ──▶ gone
 *        │                     │
 *        └──cancel──▶ gone     └──cancel──▶ stopped ──pool or program done──▶ gone
 *
 * Stopping an operation kills its program and waits for it, so that the next one never meets it in the venv.
 */
#define _GNU_SOURCE
#include "deps/deps.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "calls/table.h"
#include "base/hole.h"
#include "deps/operation.h"
#include "spawn/confinement.h"

static void start_next(struct cell__deps *deps);
static void refresh(struct cell__deps *deps);
static void close_further(struct cell__deps *deps);

/* ---- answers ---- */

static const char *error_type(int code)
{
	static const char *const types[CELL_CODE_COUNT] = {
#define TYPE_ROW(number, name, word, http, rpc, exit_status, py) [CELL_##name] = py,
		CELL_CODE_TABLE(TYPE_ROW)
#undef TYPE_ROW
	};
	return code > 0 && code < CELL_CODE_COUNT ? types[code] : "DepsError";
}

static void fail_call(struct cell__call *call, int code, const char *message)
{
	call->cancel = NULL;
	call->fail(call, code, error_type(code), message);
}

static void free_op(struct cell__dep_op *op)
{
	json_t *values[] = { op->configured, op->problems, op->others, op->wanted,     op->done,   op->failed, op->errors,
			     op->stale,      op->leaving,  op->book,   op->unresolved, op->locked, op->specs };
	for (size_t i = 0; i < sizeof values / sizeof *values; i++)
		json_decref(values[i]);
	struct cell__buf *bufs[] = { &op->before,  &op->after,    &op->captured, &op->line[0],
				     &op->line[1], &op->words[0], &op->words[1], &op->first };
	for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
		cell__buf_finish(bufs[i]);
	free(op->uv);
	free(op->python);
	free(op->site);
	free(op->made);
	free(op->temp);
	cell__strings_free(op->argv);
	cell__confinement_unref(op->confinement);
	cell__close_fd(&op->lock_fd);
	free(op);
}

static void discard_work(struct cell__dep_op *op)
{
	/* The next maker removes the rest. */
	if (op->made)
		(void)cell__venv_remove_tree(op->made);
	if (op->temp)
		(void)cell__venv_remove_tree(op->temp);
	op->rc = 0;
}

static void end_op(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->stopped = true;
	if (op->made || op->temp) {
		cell__dep_pool(op, discard_work, NULL);
		return;
	}
	/* A private venv stays locked, which shows others that its owner lives. */
	if (!deps->private_name)
		cell__close_fd(&deps->lock_fd);
	deps->current = NULL;
	free_op(op);
	if (deps->closing)
		close_further(deps);
	else
		start_next(deps);
}

void cell__dep_answer(struct cell__dep_op *op, json_t *result)
{
	struct cell__deps *deps = op->deps;
	struct cell__call *call = cell__take_ptr(op->call);
	bool nothing_new = op->kind == CELL__DEP_LIST || (op->kind == CELL__DEP_SYNC && op->synced);
	if (deps->changed && !nothing_new && !deps->closing)
		deps->changed(deps->changed_arg,
			      &(struct cell__deps_place){ .confined = deps->confined, .site = deps->site, .bin = deps->bin });
	if (call && result) {
		call->cancel = NULL;
		call->answer(call, result, NULL, 0);
	} else if (call) {
		fail_call(call, CELL_E_NOMEM, "out of memory");
	} else {
		json_decref(result);
	}
	end_op(op);
}

void cell__dep_fail(struct cell__dep_op *op, int code, const char *message)
{
	struct cell__call *call = cell__take_ptr(op->call);
	if (call)
		fail_call(call, code, message);
	end_op(op);
}

void cell__dep_fail_err(struct cell__dep_op *op)
{
	struct cell_error err = op->err; /* the operation goes while this is read */
	cell__dep_fail(op, err.code, err.msg);
}

/* ---- the pool ---- */

struct pool_job {
	uv_work_t work;
	struct cell__dep_op *op;
	void (*fn)(struct cell__dep_op *op);
	cell__dep_step step;
};

static void handle_work(uv_work_t *work)
{
	struct pool_job *job = work->data;
	job->fn(job->op);
	refresh(job->op->deps);
}

static void handle_worked(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct pool_job *job = work->data;
	struct cell__dep_op *op = job->op;
	cell__dep_step step = job->step;
	free(job);
	if (!step) {
		free(cell__take_ptr(op->made));
		free(cell__take_ptr(op->temp));
		end_op(op);
	} else if (op->stopped) {
		end_op(op);
	} else if (op->rc < 0) {
		cell__dep_fail_err(op);
	} else {
		step(op);
	}
}

void cell__dep_pool(struct cell__dep_op *op, void (*work)(struct cell__dep_op *op), cell__dep_step step)
{
	struct pool_job *job = cell__alloc(1, sizeof *job);
	if (!job) {
		free(cell__take_ptr(op->made)); /* the next maker sweeps the folders */
		free(cell__take_ptr(op->temp));
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	*job = (struct pool_job){ .op = op, .fn = work, .step = step };
	job->work.data = job;
	op->rc = 0;
	uv_queue_work(cell__loop_uv(op->deps->loop), &job->work, handle_work, handle_worked);
}

/* ---- its packages ---- */

bool cell__dep_concerns(const struct cell__dep_op *op, const char *spec)
{
	for (size_t i = 0; i < json_array_size(op->specs); i++)
		if (cell__dep_same_package(cell__dep_text(op->specs, i), spec))
			return true;
	return false;
}

#define TOLD_PACKAGES 3

void cell__dep_tell_install(const struct cell__dep_op *op, struct cell__buf *out)
{
	size_t n = json_array_size(op->specs), told = n > TOLD_PACKAGES + 1 ? TOLD_PACKAGES : n;
	for (size_t i = 0; i < told; i++)
		(void)cell__buf_printf(out, "%s%s", i == 0 ? "install " : i + 1 < n ? ", " : " and ", cell__dep_text(op->specs, i));
	if (told < n)
		(void)cell__buf_printf(out, " and %zu more", n - told);
}

/* Adds one requirement of the call to op->specs. */
static int take_spec(struct cell__dep_op *op, const char *text, struct cell_error *err)
{
	char spec[CELL__STORE_DEP_BYTES + 1];
	if (cell__dep_normalise(text, spec, err) < 0)
		return -1;
	for (size_t i = 0; i < json_array_size(op->specs); i++) {
		const char *other = cell__dep_text(op->specs, i);
		if (strcmp(other, spec) == 0)
			return 0;
		if (cell__dep_same_package(other, spec))
			return cell_fail(err, CELL_E_INVALID, 0,
					 "Invalid packages: %.90s and %.90s are requirements of one package; give one", other, spec);
	}
	return json_array_append_new(op->specs, json_string(spec)) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : 0;
}

static int take_specs(struct cell__dep_op *op, const json_t *package, struct cell_error *err)
{
	size_t n = json_is_array(package) ? json_array_size(package) : 1;
	op->specs = json_array();
	if (!op->specs)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (n == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid package: the list is empty");
	if (n > CELL__STORE_DEPS)
		return cell_fail(err, CELL_E_LIMIT, 0, "%zu packages are more than the %u of a storage", n, CELL__STORE_DEPS);
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < n; i++) {
		const json_t *one = json_is_array(package) ? json_array_get(package, i) : package;
		const char *text = json_string_value(one);
		/* The check of arguments finds a NUL in a string alone. */
		if (strlen(text) != json_string_length(one))
			rc = cell_fail(err, CELL_E_INVALID, 0, "Invalid package: contains control characters");
		else
			rc = take_spec(op, text, err);
	}
	return rc;
}

/* ---- calls ---- */

static void start_next(struct cell__deps *deps)
{
	struct cell__dep_op *op = deps->first;
	if (deps->current || !op)
		return;
	deps->first = op->next;
	if (!deps->first)
		deps->last = NULL;
	deps->queued--;
	deps->current = op;
	op->until_us = cell__now_us() + deps->timeout_ms * 1000;
	if (op->pyodide && op->kind != CELL__DEP_LIST)
		cell__dep_begin_wheels(op);
	else
		cell__dep_begin(op);
}

/* The call has been answered or is not ours any more. */
static void stop_op(struct cell__dep_op *op)
{
	struct cell__deps *deps = op->deps;
	op->stopped = true;
	if (deps->process) {
		cell__process_kill(deps->process);
	} else if (deps->waiting) {
		deps->waiting = false;
		uv_timer_stop(&deps->timer);
		end_op(op);
	}
}

static void handle_cancel(struct cell__call *call)
{
	struct cell__dep_op *op = call->handler;
	struct cell__deps *deps = op->deps;
	call->cancel = NULL;
	op->call = NULL;
	if (op == deps->current) {
		stop_op(op);
		return;
	}
	struct cell__dep_op *before = NULL;
	for (struct cell__dep_op *at = deps->first; at != op; at = at->next)
		before = at;
	*(before ? &before->next : &deps->first) = op->next;
	if (deps->last == op)
		deps->last = before;
	deps->queued--;
	free_op(op);
}

static const enum cell__dep_kind kinds[CELL__OPS] = {
	[CELL__OP_DEPS_LIST] = CELL__DEP_LIST,
	[CELL__OP_DEPS_ADD] = CELL__DEP_ADD,
	[CELL__OP_DEPS_REMOVE] = CELL__DEP_REMOVE,
	[CELL__OP_DEPS_SYNC] = CELL__DEP_SYNC,
};

/* Reads the arguments of the call. 1: a remove with nothing to remove. */
static int read_call(struct cell__deps *deps, struct cell__call *call, struct cell__dep_op *op, struct cell_error *err)
{
	if (deps->closing)
		return cell_fail(err, CELL_E_CLOSED, 0, "the session is closed");
	if (deps->queued >= CELL__DEPS_QUEUE)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u deps calls wait already", CELL__DEPS_QUEUE);
	if (!deps->confined && !cell__principal_is_trusted(call->principal) && !is_hole("deps-trust"))
		return cell_fail(err, CELL_E_DISABLED, 0, "%s: an untrusted principal must not change the host's packages", call->method);
	op->kind = kinds[call->operation->id];
	op->quick = json_is_true(json_object_get(call->args, "quick"));
	op->pyodide = json_is_true(json_object_get(call->args, "pyodide"));
	op->wheels_only = deps->confined || op->pyodide;
	if (op->kind == CELL__DEP_LIST || op->kind == CELL__DEP_SYNC)
		return 0;
	if (!deps->allow_runtime)
		return cell_fail(err, CELL_E_DISABLED, 0,
				 "Runtime dependency %s is disabled. "
				 "Dependencies must be pre-configured before session start.",
				 op->kind == CELL__DEP_ADD ? "installation" : "modification");
	json_t *package = json_object_get(call->args, "package");
	if (op->kind == CELL__DEP_REMOVE && strspn(json_string_value(package), " \t\r\n") == json_string_length(package))
		return 1;
	return take_specs(op, package, err);
}

void cell__deps_handle(struct cell__deps *deps, struct cell__call *call)
{
	struct cell_error err = { 0 };
	struct cell__dep_op *op = cell__alloc(1, sizeof *op);
	if (!op) {
		fail_call(call, CELL_E_NOMEM, "out of memory");
		return;
	}
	op->deps = deps;
	op->lock_fd = -1;
	int rc = read_call(deps, call, op, &err);
	if (rc != 0) {
		free_op(op);
		if (rc < 0)
			fail_call(call, err.code, err.msg);
		else
			call->answer(call, json_false(), NULL, 0);
		return;
	}
	op->call = call;
	call->handler = op;
	call->cancel = handle_cancel;
	*(deps->last ? &deps->last->next : &deps->first) = op;
	deps->last = op;
	deps->queued++;
	start_next(deps);
}

/* ---- where the venv is ---- */

static char *join(const char *dir, const char *name)
{
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/%s", strcmp(dir, "/") == 0 ? "" : dir, name) < 0)
		return NULL;
	return cell__buf_take(&path);
}

static char *make_dir(const struct cell__deps *deps, const char *version)
{
	CELL_AUTO_FREE char *parent = NULL;
	char key[CELL__VENV_KEY_SIZE];
	const char *name;
	if (deps->venv_dir) {
		const char *slash = strrchr(deps->venv_dir, '/');
		CELL_AUTO_FREE char *above = cell__strndup(deps->venv_dir, slash > deps->venv_dir ? (size_t)(slash - deps->venv_dir) : 1);
		parent = above ? realpath(above, NULL) : NULL;
		name = slash + 1;
	} else if (deps->confined) {
		CELL_AUTO_FREE char *env = deps->project ? join(deps->project, "env") : NULL;
		parent = env ? realpath(env, NULL) : NULL;
		name = version[0] ? version : NULL;
	} else {
		parent = realpath(deps->venvs, NULL);
		name = deps->private_name;
	}
	if (!parent || (!name && (!version[0] || deps->confined)))
		return NULL;
	if (!name) {
		cell__venv_key(deps->python_real, version, cell__store_root(deps->store), key);
		name = key;
	}
	return join(parent, name);
}

void cell__deps_forget_place(struct cell__deps *deps)
{
	free(cell__take_ptr(deps->dir));
	free(cell__take_ptr(deps->notes));
	free(cell__take_ptr(deps->lock_file));
}

/* Sets dir, notes and lock_file, as far as they can be known now. */
static void locate(struct cell__deps *deps)
{
	if (deps->dir)
		return;
	deps->dir = make_dir(deps, deps->version);
	if (!deps->dir)
		return;
	deps->notes = deps->confined ? join(deps->project, "notes") : cell__strdup(deps->dir);
	deps->lock_file = deps->confined ? join(deps->project, CELL__VENV_LOCK) : cell__venv_sibling(deps->dir, "lock", false);
	if (!deps->notes || !deps->lock_file)
		cell__deps_forget_place(deps);
}

int cell__deps_make_project(const struct cell__deps *deps)
{
	static const char *const parts[] = { "notes", "cache", "env" };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		CELL_AUTO_FREE char *folder = join(deps->project, parts[i]);
		if (!folder || cell__venv_mkdir_all(folder) < 0)
			return -1;
		/* Kernels of another user must see it; the folder above is closed to all other users. */
		if (strcmp(parts[i], "env") == 0 && chmod(folder, 0755) < 0)
			return -1;
	}
	return 0;
}

void cell__deps_set_version(struct cell__deps *deps, const char *version)
{
	pthread_mutex_lock(&deps->lock);
	snprintf(deps->version, sizeof deps->version, "%s", version);
	pthread_mutex_unlock(&deps->lock);
}

/* The venv's site-packages and programs; both stay NULL if it does not exist. */
static void find_parts(const struct cell__deps *deps, const char *dir, const char *version, char **ret_site, char **ret_bin)
{
	if (cell__venv_inspect(dir, deps->confined) != CELL__VENV_PRESENT)
		return;
	*ret_site = cell__venv_site(dir, version, deps->confined);
	if (*ret_site)
		*ret_bin = join(dir, "bin");
}

/* On the pool, for the current operation; or before there is one and after the last. */
static void refresh(struct cell__deps *deps)
{
	char version[CELL__VENV_VERSION_SIZE];
	if (deps->no_python.code)
		return;
	if (!deps->version[0] && cell__venv_version_load(deps->venvs, deps->stamp, version))
		cell__deps_set_version(deps, version);
	if (deps->version[0])
		locate(deps);
	free(cell__take_ptr(deps->site));
	free(cell__take_ptr(deps->bin));
	if (deps->dir)
		find_parts(deps, deps->dir, deps->version, &deps->site, &deps->bin);
}

void cell__deps_find(struct cell__deps *deps, bool wants_folder, struct cell__deps_place *ret_place)
{
	char version[CELL__VENV_VERSION_SIZE];
	*ret_place = (struct cell__deps_place){ .confined = deps->confined };
	if (deps->no_python.code)
		return;
	/* The venv will be moved into place: only the folder above it shows it when it comes. */
	if (deps->confined && wants_folder && deps->project && cell__deps_make_project(deps) == 0)
		ret_place->folder = join(deps->project, "env");
	pthread_mutex_lock(&deps->lock);
	memcpy(version, deps->version, sizeof version);
	pthread_mutex_unlock(&deps->lock);
	if (!version[0] && !cell__venv_version_load(deps->venvs, deps->stamp, version))
		return;
	CELL_AUTO_FREE char *dir = make_dir(deps, version);
	if (dir)
		find_parts(deps, dir, version, &ret_place->site, &ret_place->bin);
	if (!deps->confined && ret_place->site)
		ret_place->folder = cell__take_ptr(dir);
}

void cell__deps_place_finish(struct cell__deps_place *place)
{
	free(place->site);
	free(place->bin);
	free(place->folder);
	*place = (struct cell__deps_place){ 0 };
}

int cell__deps_place_copy(const struct cell__deps_place *place, struct cell__deps_place *ret_copy)
{
	struct cell__deps_place copy = { .confined = place->confined };
	const char *const texts[] = { place->site, place->bin, place->folder };
	char **const copies[] = { &copy.site, &copy.bin, &copy.folder };
	for (size_t i = 0; i < 3; i++)
		if (texts[i] && !(*copies[i] = cell__strdup(texts[i]))) {
			cell__deps_place_finish(&copy);
			return -1;
		}
	*ret_copy = copy;
	return 0;
}

int cell__deps_find_python(const char *version, const char *path, char **ret_python, struct cell_error *err)
{
	version += strspn(version, " \t");
	size_t size = strlen(version);
	while (size > 0 && strchr(" \t\n", version[size - 1]))
		size--;
	if (size == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "python_version cannot be empty or whitespace-only");
	size_t major = strspn(version, "0123456789"), minor = 0;
	if (major > 0 && version[major] == '.')
		minor = strspn(version + major + 1, "0123456789");
	if (minor == 0 || major + 1 + minor != size || size > 16)
		return cell_fail(err, CELL_E_INVALID, 0, "python_version must be in major.minor format (e.g., '3.11'), got: %.60s",
				 version);
	CELL_AUTO_FREE char *script = NULL;
	for (const char *at = path; *at; at += strcspn(at, ":"), at += *at == ':') {
		CELL_AUTO_BUF struct cell__buf file = CELL_BUF_INIT;
		if (*at != '/')
			continue; /* relative entries would have another meaning for the spawner */
		if (cell__buf_printf(&file, "%.*s/python%.*s", (int)strcspn(at, ":"), at, (int)size, version) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		char *python = cell__venv_find_program(file.data, path);
		if (python && !cell__venv_is_script(python)) {
			*ret_python = python;
			return 0;
		}
		if (script)
			free(python);
		else
			script = python;
	}
	if (!script)
		return cell_fail(err, CELL_E_PYTHON, 0, "python%.*s not found in %.120s: install it, or give the path of an interpreter",
				 (int)size, version, path);
	*ret_python = cell__take_ptr(script);
	return 0;
}

/* ---- create and close ---- */

static void free_deps(struct cell__deps *deps)
{
	char *texts[] = { deps->python,  deps->python_real, deps->venvs,      deps->venv_dir,   deps->private_name, deps->wheel_dir,
			  deps->path,    deps->dir,         deps->site,       deps->bin,        deps->notes,        deps->lock_file,
			  deps->project, deps->sandboxes,   deps->kernel_dir, deps->executable, deps->base };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		free(texts[i]);
	cell__strings_free(deps->env);
	json_decref(deps->paths);
	json_decref(deps->hosts);
	cell__close_fd(&deps->lock_fd);
	pthread_mutex_destroy(&deps->lock);
	free(deps);
}

/* An absolute copy without slashes at its end. */
static char *absolute(const char *path)
{
	char cwd[PATH_MAX];
	struct cell__buf buf = CELL_BUF_INIT;
	if (path[0] != '/' && !getcwd(cwd, sizeof cwd))
		return NULL;
	if (cell__buf_printf(&buf, "%s%s%s", path[0] == '/' ? "" : cwd, path[0] == '/' ? "" : "/", path) < 0)
		return NULL;
	while (buf.size > 1 && buf.data[buf.size - 1] == '/')
		buf.data[--buf.size] = '\0';
	return cell__buf_take(&buf);
}

static int copy_options(struct cell__deps *deps, const struct cell__deps_options *opts, struct cell_error *err)
{
	CELL_AUTO_FREE char *cache = absolute(opts->cache_dir);
	struct cell__buf name = CELL_BUF_INIT;
	char hex[CELL__VENV_KEY_SIZE];
	deps->venvs = cache ? join(cache, "venvs") : NULL;
	deps->sandboxes = cache ? join(cache, "sandbox") : NULL;
	if (!deps->venvs || !deps->sandboxes)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	deps->has_index = opts->index_url != NULL;
	deps->cleanup = opts->cleanup == CELL__DEPS_CLEANUP_ALWAYS ||
			(opts->cleanup == CELL__DEPS_CLEANUP_DEFAULT && opts->private_venv && (!opts->venv_dir || opts->confined));
	const char *venv_dir = deps->confined ? NULL : opts->venv_dir;
	if (venv_dir)
		deps->venv_dir = absolute(venv_dir);
	if (opts->private_venv && !venv_dir) {
		cell__random_hex(hex, sizeof hex - 1);
		/* Only a venv that may be removed when its owner has ended has a name that the sweeper searches for. */
		if (cell__buf_printf(&name, "%s%s", deps->cleanup ? CELL__VENV_PRIVATE : "kept-", hex) == 0)
			deps->private_name = cell__buf_take(&name);
	}
	if (opts->wheel_dir)
		deps->wheel_dir = absolute(opts->wheel_dir);
	deps->path = cell__strdup(opts->path);
	deps->env = cell__deps_make_env(opts);
	if (opts->kernel_dir)
		deps->kernel_dir = cell__strdup(opts->kernel_dir);
	if (!deps->path || !deps->env || (venv_dir && !deps->venv_dir) || (opts->wheel_dir && !deps->wheel_dir) ||
	    (opts->private_venv && !venv_dir && !deps->private_name) || (opts->kernel_dir && !deps->kernel_dir))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (deps->venv_dir && strcmp(deps->venv_dir, "/") == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "venv_dir cannot be /");
	return 0;
}

/* Not by its version, which may not be known when a session is opened that is to see the folder. */
static int place_project(struct cell__deps *deps, struct cell_error *err)
{
	char key[CELL__VENV_KEY_SIZE];
	struct cell__buf project = CELL_BUF_INIT;
	cell__venv_key(deps->python_real, deps->allow_runtime ? "sandbox" : "sandbox, fixed", cell__store_root(deps->store), key);
	if (cell__buf_printf(&project, "%s/%s", deps->sandboxes, deps->private_name ? deps->private_name : key) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	deps->project = cell__buf_take(&project);
	return 0;
}

static int find_interpreter(struct cell__deps *deps, const char *python, struct cell_error *err)
{
	deps->python = cell__venv_find_program(python, deps->path);
	if (!deps->python || cell__venv_identify(deps->python, &deps->python_real, deps->stamp) < 0)
		return cell_fail(err, CELL_E_PYTHON, errno, "find the interpreter %.120s", python);
	deps->script = cell__venv_is_script(deps->python_real);
	return deps->confined ? place_project(deps, err) : 0;
}

int cell__deps_create(const struct cell__deps_options *opts, struct cell__deps **ret_deps, struct cell_error *err)
{
	struct cell__deps *deps = cell__alloc(1, sizeof *deps);
	if (!deps)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	deps->loop = opts->loop;
	deps->supervisor = opts->supervisor;
	deps->store = opts->store;
	deps->allow_runtime = opts->allow_runtime;
	deps->confined = opts->confined;
	deps->book = opts->allow_runtime ? CELL__BOOK_SANDBOX : CELL__BOOK_FIXED;
	deps->timeout_ms = opts->timeout_ms ? opts->timeout_ms : CELL__DEPS_TIMEOUT_MS;
	if (deps->timeout_ms < 0 || deps->timeout_ms > CELL__DEPS_FOREVER_MS)
		deps->timeout_ms = CELL__DEPS_FOREVER_MS;
	deps->changed = opts->changed;
	deps->changed_arg = opts->changed_arg;
	deps->lock_fd = -1;
	pthread_mutex_init(&deps->lock, NULL);
	if (copy_options(deps, opts, err) < 0) {
		free_deps(deps);
		return -1;
	}
	/* Without one there is still a list to show. */
	(void)find_interpreter(deps, opts->python, &deps->no_python);
	*ret_deps = deps;
	return 0;
}

void cell__deps_start(struct cell__deps *deps)
{
	if (!deps)
		return;
	uv_timer_init(cell__loop_uv(deps->loop), &deps->timer);
	deps->timer.data = deps;
}

static void handle_timer_closed(uv_handle_t *handle)
{
	struct cell__deps *deps = handle->data;
	void (*closed)(void *arg) = deps->closed;
	void *arg = deps->closed_arg;
	free_deps(deps);
	if (closed)
		closed(arg);
}

static void cleanup_work(uv_work_t *work)
{
	struct cell__deps *deps = work->data;
	refresh(deps);
	if (!deps->dir || (deps->private_name && deps->lock_fd < 0))
		return;
	/* A process that works on it now may continue; the lock's file stays, except for names that are never used again. */
	if (deps->lock_fd < 0 && cell__venv_lock(deps->lock_file, &deps->lock_fd, NULL) != 0)
		return;
	if (deps->confined && deps->private_name)
		(void)cell__venv_remove_tree(deps->project);
	else if (cell__venv_is_ours(deps->notes))
		(void)cell__venv_remove(deps->dir);
	if (deps->private_name)
		unlink(deps->lock_file);
	cell__close_fd(&deps->lock_fd);
}

static void handle_cleaned(uv_work_t *work, int status)
{
	(void)status;
	struct cell__deps *deps = work->data;
	uv_close((uv_handle_t *)&deps->timer, handle_timer_closed);
}

static void close_further(struct cell__deps *deps)
{
	if (deps->cleanup) {
		deps->work.data = deps;
		uv_queue_work(cell__loop_uv(deps->loop), &deps->work, cleanup_work, handle_cleaned);
		return;
	}
	uv_close((uv_handle_t *)&deps->timer, handle_timer_closed);
}

void cell__deps_close(struct cell__deps *deps, void (*closed)(void *arg), void *arg)
{
	deps->closing = true;
	deps->closed = closed;
	deps->closed_arg = arg;
	while (deps->first) {
		struct cell__dep_op *op = deps->first;
		struct cell__call *call = op->call;
		deps->first = op->next;
		if (!deps->first)
			deps->last = NULL;
		deps->queued--;
		free_op(op);
		fail_call(call, CELL_E_CLOSED, "the session was closed");
	}
	struct cell__dep_op *current = deps->current;
	if (!current) {
		close_further(deps);
		return;
	}
	struct cell__call *call = cell__take_ptr(current->call);
	if (call)
		fail_call(call, CELL_E_CLOSED, "the session was closed");
	stop_op(current);
}
