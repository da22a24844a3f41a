#define _GNU_SOURCE
#include "executor/container.h"
#include "executor/remote.h"
#include "session/engine.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "executor/deno.h"
#include "executor/jupyter.h"
#include "session/space.h"

static void log_line(void *arg, enum cell_log_level level, const char *fmt, ...)
{
	struct cell_engine *engine = arg;
	if (!engine->log)
		return;
	char line[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	engine->log(engine->log_arg, level, line);
}

/* ---- where our other parts are ---- */

static bool parts_in(const char *dir)
{
	char path[PATH_MAX];
	struct stat st;
	int n = snprintf(path, sizeof path, "%s/workcell-spawner", dir);
	if (n < 0 || (size_t)n >= sizeof path || access(path, X_OK) < 0)
		return false;
	n = snprintf(path, sizeof path, "%s/kernel/workcell_kernel", dir);
	return n > 0 && (size_t)n < sizeof path && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/*
 * Beside the library (a build folder, a Python wheel), at the installed place relative to it (so that an install may
 * be moved), else where it was configured to be.
 */
int cell__engine_find_parts(const char *given, char *ret_dir, size_t size, struct cell_error *err)
{
	if (given) {
		snprintf(ret_dir, size, "%s", given);
		if (parts_in(ret_dir))
			return 0;
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "%s does not hold workcell-spawner and kernel/", given);
	}
	Dl_info info;
	char self[PATH_MAX];
	if (dladdr((void *)cell__engine_find_parts, &info) && info.dli_fname && realpath(info.dli_fname, self)) {
		char *slash = strrchr(self, '/');
		if (slash) {
			*slash = '\0';
			static const char *const places[] = { "", "/../lib/workcell", "/workcell", "/../../lib/workcell" };
			for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
				int n = snprintf(ret_dir, size, "%s%s", self, places[i]);
				if (n > 0 && (size_t)n < size && parts_in(ret_dir))
					return 0;
			}
		}
	}
	snprintf(ret_dir, size, "%s", CELL_PARTS_DIR);
	if (parts_in(ret_dir))
		return 0;
	return cell_fail(err, CELL_E_NOT_FOUND, 0,
			 "workcell-spawner and kernel/ are neither beside the library nor in %s; install Workcell or set lib_dir",
			 CELL_PARTS_DIR);
}

/* ---- create and destroy ---- */

int cell__engine_may_wait(struct cell_engine *engine, const char *name, struct cell_error *err)
{
	if (cell__loop_is_current(&engine->loop))
		return cell_fail(err, CELL_E_INVALID, 0, "%s() waits and must not be called from a callback of the engine", name);
	return 0;
}

void cell__engine_must_wait(struct cell_engine *engine, const char *name)
{
	struct cell_error err;
	if (cell__engine_may_wait(engine, name, &err) == 0)
		return;
	log_line(engine, CELL_LOG_ERROR, "%s", err.msg);
	abort();
}

struct wait {
	struct cell__task task;
	struct cell__waiter waiter;
	cell__engine_start start;
	void *object;
};

static void handle_wait_over(void *arg)
{
	cell__waiter_signal(&((struct wait *)arg)->waiter);
}

static void start_wait(struct cell__task *task)
{
	struct wait *wait = (struct wait *)task;
	wait->start(wait->object, handle_wait_over, wait);
}

void cell__engine_wait(struct cell_engine *engine, cell__engine_start start, void *object)
{
	struct wait wait = { .task.fn = start_wait, .start = start, .object = object };
	cell__waiter_init(&wait.waiter);
	cell__loop_do(&engine->loop, &wait.task, &wait.waiter);
	cell__waiter_finish(&wait.waiter);
}

/* Our own files: whoever can change them runs in our place. */
static int trust_parts(struct cell_engine *engine, const char *dir, struct cell_error *err)
{
	Dl_info info;
	CELL_AUTO_FREE char *program = realpath("/proc/self/exe", NULL);
	const char *library = dladdr((void *)cell__engine_find_parts, &info) ? info.dli_fname : NULL;
	struct cell__place_list *parts = &engine->parts;
	engine->host.places = cell__places_create();
	if (!engine->host.places)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (cell__place_add(parts, "Workcell's own folder", false, dir, err) < 0 ||
	    cell__place_add(parts, "the library", false, library, err) < 0 ||
	    cell__place_add(parts, "the host's program", false, program, err) < 0 ||
	    cell__place_add(parts, "the folder for long output", false, engine->spill_dir, err) < 0)
		return -1;
	return cell__places_trust(engine->host.places, parts, err);
}

static int make_subprocess(struct cell_engine *engine, const struct cell_engine_options *opts, struct cell_error *err)
{
	char dir[PATH_MAX], spawner[PATH_MAX + 32], kernel_dir[PATH_MAX + 32];
	if (cell__engine_find_parts(opts->lib_dir, dir, sizeof dir, err) < 0)
		return -1;
	snprintf(spawner, sizeof spawner, "%s/workcell-spawner", dir);
	snprintf(kernel_dir, sizeof kernel_dir, "%s/kernel", dir);
	if (trust_parts(engine, dir, err) < 0 || cell__spawn_hub_init(&engine->hub, &engine->loop, spawner, err) < 0)
		return -1;
	struct cell__subprocess_config config = {
		.hub = &engine->hub,
		.kernel_dir = kernel_dir,
		.pool_size = opts->pool_size,
		.start_timeout_ms = opts->start_timeout_ms,
		.zygote_forks = opts->zygote_forks,
	};
	struct cell__deno_config deno = {
		.hub = &engine->hub, .lib_dir = dir, .cache_dir = opts->cache_dir, .start_timeout_ms = opts->start_timeout_ms,
	};
	engine->kernel_dir = cell__strdup(kernel_dir);
	if (!engine->kernel_dir)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (!engine->kernel_dir || cell__deno_create(&deno, &engine->host.deno, err) < 0 ||
	    cell__subprocess_create(&engine->host, &config, &engine->host.subprocess, err) < 0) {
		cell__deno_destroy(engine->host.deno);
		free(engine->kernel_dir);
		free(engine->hub.program);
		return -1;
	}
	engine->host.hub = &engine->hub;
	engine->host.kernel_dir = engine->kernel_dir;
	struct cell__jupyter_config jupyter = {
		.hub = &engine->hub, .kernel_dir = engine->kernel_dir, .folder = engine->spill_dir, .pool_size = opts->pool_size,
		.start_timeout_ms = opts->start_timeout_ms,
	};
	return cell__jupyter_create(&engine->host, &jupyter, &engine->host.jupyter, err);
}

static void forget_parts(struct cell_engine *engine)
{
	cell__place_list_finish(&engine->parts);
	cell__places_destroy(engine->host.places);
}

int cell_engine_create(const struct cell_engine_options *opts, struct cell_engine **ret_engine, struct cell_error *err)
{
	struct cell_engine_options all = CELL_ENGINE_OPTIONS_INIT;
	if (opts) {
		if (opts->size < sizeof(size_t) || opts->size > sizeof all)
			return cell_fail(err, CELL_E_INVALID, 0, "cell_engine_options.size is %zu, expected up to %zu",
					 opts->size, sizeof all);
		memcpy(&all, opts, opts->size);
	}
	if (all.pool_size < 0 || all.pool_size > CELL_LIMIT_POOL)
		return cell_fail(err, CELL_E_INVALID, 0, "pool_size is %d, expected 0 to %d", all.pool_size,
				 CELL_LIMIT_POOL);
	if (all.zygote_forks < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "zygote_forks is %lld, expected 0 or more", (long long)all.zygote_forks);
	struct cell_engine *engine = cell__alloc(1, sizeof *engine);
	if (!engine)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	engine->spill_dir = cell__strdup(all.spill_dir ? all.spill_dir : "/tmp");
	engine->log = all.log;
	engine->log_arg = all.log_arg;
	engine->host = (struct cell__executor_host){ .loop = &engine->loop, .log = log_line, .log_arg = engine };
	if (!engine->spill_dir || cell__loop_start(&engine->loop, err) < 0) {
		if (!engine->spill_dir)
			cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		free(engine->spill_dir);
		free(engine);
		return -1;
	}
	if (make_subprocess(engine, &all, err) < 0) {
		cell__loop_stop(&engine->loop);
		forget_parts(engine);
		free(engine->spill_dir);
		free(engine);
		return -1;
	}
	*ret_engine = engine;
	return 0;
}

struct destroy {
	struct cell_engine *engine;
	void (*done)(void *arg);
	void *arg;
};

static void handle_executors_gone(void *arg)
{
	struct destroy *destroy = arg;
	cell__spawn_hub_finish(&destroy->engine->hub, destroy->done, destroy->arg);
}

static void handle_remote_gone(void *arg)
{
	struct destroy *destroy = arg;
	cell__subprocess_destroy(destroy->engine->host.subprocess, handle_executors_gone, destroy);
}

static void handle_containers_gone(void *arg)
{
	struct destroy *destroy = arg;
	cell__remote_destroy(cell__take_ptr(destroy->engine->host.remote), handle_remote_gone, destroy);
}

static void handle_jupyter_gone(void *arg)
{
	struct destroy *destroy = arg;
	cell__containers_destroy(cell__take_ptr(destroy->engine->host.containers), handle_containers_gone, destroy);
}

/* Closes one session after another, then the spaces, then the executors. */
static void destroy_next(void *arg)
{
	struct destroy *destroy = arg;
	struct cell_engine *engine = destroy->engine;
	if (engine->sessions)
		cell__session_close(engine->sessions, destroy_next, destroy);
	else if (engine->spaces)
		cell__space_close(engine->spaces, destroy_next, destroy);
	else
		cell__jupyter_destroy(engine->host.jupyter, handle_jupyter_gone, destroy);
}

static void start_destroy(void *object, void (*done)(void *arg), void *arg)
{
	struct destroy *destroy = object;
	destroy->done = done;
	destroy->arg = arg;
	destroy_next(destroy);
}

void cell_engine_destroy(struct cell_engine *engine)
{
	if (!engine)
		return;
	cell__engine_must_wait(engine, "cell_engine_destroy");
	struct destroy destroy = { .engine = engine };
	cell__engine_wait(engine, start_destroy, &destroy);
	cell__loop_stop(&engine->loop);
	forget_parts(engine);
	free(engine->kernel_dir);
	cell__deno_destroy(engine->host.deno);
	free(engine->spill_dir);
	free(engine);
}

/* ---- environments and executors ---- */

struct prewarm {
	struct cell__task task;
	struct cell_engine *engine;
	const char *python, *preload;
	struct cell_env_info info;
	struct cell_error err;
	bool failed;
	struct cell__waiter waiter;
};

static void handle_prewarmed(void *arg, const struct cell_env_info *info, const struct cell_error *err)
{
	struct prewarm *prewarm = arg;
	if (info)
		prewarm->info = *info;
	prewarm->failed = err != NULL;
	if (err)
		prewarm->err = *err;
	cell__waiter_signal(&prewarm->waiter);
}

static void start_prewarm(struct cell__task *task)
{
	struct prewarm *prewarm = (struct prewarm *)task;
	struct cell_error err;
	if (cell__subprocess_prewarm(prewarm->engine->host.subprocess, prewarm->python, prewarm->preload, "", NULL,
				     handle_prewarmed, prewarm, &err) < 0)
		handle_prewarmed(prewarm, NULL, &err);
}

int cell_engine_prewarm(struct cell_engine *engine, const char *python, const char *preload,
			struct cell_env_info *ret_info, struct cell_error *err)
{
	if (cell__engine_may_wait(engine, "cell_engine_prewarm", err) < 0)
		return -1;
	struct prewarm prewarm = {
		.task.fn = start_prewarm,
		.engine = engine,
		.python = python ? python : CELL_DEFAULT_PYTHON,
		.preload = preload ? preload : "",
	};
	cell__waiter_init(&prewarm.waiter);
	cell__loop_do(&engine->loop, &prewarm.task, &prewarm.waiter);
	cell__waiter_finish(&prewarm.waiter);
	if (prewarm.failed) {
		if (err)
			*err = prewarm.err;
		return -1;
	}
	if (ret_info) {
		size_t size = ret_info->size < sizeof prewarm.info ? ret_info->size : sizeof prewarm.info;
		prewarm.info.size = size;
		memcpy(ret_info, &prewarm.info, size);
	}
	return 0;
}

int cell_executor_probe(struct cell_engine *engine, size_t i, struct cell_executor_info *ret_info)
{
	const struct cell__executor *executor = cell__executor_at(i);
	if (!executor)
		return -1;
	struct cell_executor_info info = { .name = executor->name, .isolation = executor->isolation };
	executor->probe(&engine->host, &info); /* reads only what never changes after creation */
	info.size = ret_info->size < sizeof info ? ret_info->size : sizeof info;
	memcpy(ret_info, &info, info.size);
	return 0;
}
