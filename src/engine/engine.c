#define _GNU_SOURCE
#include "engine/engine.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sized.h"
#include "session/on_loop.h"
#include "space/space.h"

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
 * Beside the library (a build folder, a Python wheel), or at the installed path relative to it: no path is compiled in, so that an install
 * may be moved.
 */
int cell__engine_find_parts(const char *given, char *ret_dir, size_t size, struct cell_error *err)
{
	if (given) {
		snprintf(ret_dir, size, "%s", given);
		if (parts_in(ret_dir))
			return 0;
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "%s does not contain workcell-spawner and kernel/", given);
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
	return cell_fail(
		err, CELL_E_NOT_FOUND, 0,
		"workcell-spawner and kernel/ are neither beside the library nor in workcell/ there; install Workcell or set lib_dir");
}

/* ---- create and destroy ---- */

/* Our own files: a process that can change them would control us. */
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

static int make_executors(struct cell_engine *engine, const struct cell_engine_options *opts, struct cell_error *err)
{
	const struct cell__executor *executor;
	size_t count = 0;
	while (cell__executor_at(count))
		count++;
	engine->host.states = cell__alloc(count, sizeof *engine->host.states);
	if (!engine->host.states)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (size_t i = 0; (executor = cell__executor_at(i)); i++)
		if (executor->create && executor->create(&engine->host, opts, &engine->host.states[i], err) < 0)
			return -1;
	return 0;
}

static int find_parts(struct cell_engine *engine, const struct cell_engine_options *opts, struct cell_error *err)
{
	char dir[PATH_MAX], spawner[PATH_MAX + 32], kernel_dir[PATH_MAX + 32];
	if (cell__engine_find_parts(opts->lib_dir, dir, sizeof dir, err) < 0)
		return -1;
	snprintf(spawner, sizeof spawner, "%s/workcell-spawner", dir);
	snprintf(kernel_dir, sizeof kernel_dir, "%s/kernel", dir);
	engine->lib_dir = cell__strdup(dir);
	engine->kernel_dir = cell__strdup(kernel_dir);
	if (!engine->lib_dir || !engine->kernel_dir)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	engine->host.supervisor = &engine->supervisor;
	engine->host.lib_dir = engine->lib_dir;
	engine->host.kernel_dir = engine->kernel_dir;
	engine->host.spill_dir = engine->spill_dir;
	if (trust_parts(engine, dir, err) < 0)
		return -1;
	return cell__supervisor_init(&engine->supervisor, engine->loop, spawner, err);
}

/* Executors and loop are gone, or were never made. */
static void free_engine(struct cell_engine *engine)
{
	cell__place_list_finish(&engine->parts);
	cell__places_destroy(engine->host.places);
	free(engine->host.states);
	free(engine->kernel_dir);
	free(engine->lib_dir);
	free(engine->spill_dir);
	free(engine);
}

int cell_engine_create(const struct cell_engine_options *opts, struct cell_engine **ret_engine, struct cell_error *err)
{
	if (cell__require(err, ret_engine) < 0)
		return -1;
	struct cell_engine_options all = CELL_ENGINE_OPTIONS_INIT;
	if (opts && cell__sized_read(&all, sizeof all, opts, "cell_engine_options", err) < 0)
		return -1;
	if (all.pool_size < 0 || all.pool_size > CELL_LIMIT_POOL)
		return cell_fail(err, CELL_E_INVALID, 0, "pool_size is %d, expected 0 to %d", all.pool_size, CELL_LIMIT_POOL);
	if (all.zygote_forks < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "zygote_forks is %lld, expected 0 or more", (long long)all.zygote_forks);
	if (all.points_bytes < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "points_bytes is %lld, expected 0 or more", (long long)all.points_bytes);
	struct cell_engine *engine = cell__alloc(1, sizeof *engine);
	if (!engine)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	engine->points_bytes = all.points_bytes;
	engine->spill_dir = cell__strdup(all.spill_dir ? all.spill_dir : "/tmp");
	engine->log = all.log;
	engine->log_arg = all.log_arg;
	engine->host = (struct cell__executor_host){ .log = log_line, .log_arg = engine };
	engine->session_ops = &cell__session_ops;
	if (!engine->spill_dir) {
		free_engine(engine);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	if (cell__loop_create(&engine->loop, err) < 0) {
		free_engine(engine);
		return -1;
	}
	engine->host.loop = engine->loop;
	if (find_parts(engine, &all, err) < 0) {
		cell__loop_destroy(engine->loop);
		free_engine(engine);
		return -1;
	}
	if (make_executors(engine, &all, err) < 0) {
		cell_engine_destroy(engine);
		return -1;
	}
	*ret_engine = engine;
	return 0;
}

struct destroy {
	struct cell_engine *engine;
	size_t executors; /* that are left */
	void (*done)(void *arg);
	void *arg;
};

/* One after the other, the last one first: it may depend on earlier ones. */
static void destroy_executors(void *arg)
{
	struct destroy *destroy = arg;
	struct cell_engine *engine = destroy->engine;
	while (destroy->executors > 0) {
		size_t i = --destroy->executors;
		void *state = engine->host.states ? cell__take_ptr(engine->host.states[i]) : NULL;
		if (state) {
			cell__executor_at(i)->destroy(state, destroy_executors, destroy);
			return;
		}
	}
	cell__supervisor_finish(&engine->supervisor, destroy->done, destroy->arg);
}

/* Closes one session after another, then the spaces, then the executors. */
static void destroy_next(void *arg)
{
	struct destroy *destroy = arg;
	struct cell_engine *engine = destroy->engine;
	if (engine->sessions)
		cell__session_close_on_loop(engine->sessions, destroy_next, destroy);
	else if (engine->spaces)
		cell__space_close_on_loop(engine->spaces, destroy_next, destroy);
	else
		destroy_executors(destroy);
}

static void start_destroy(void *object, void (*done)(void *arg), void *arg)
{
	struct destroy *destroy = object;
	destroy->done = done;
	destroy->arg = arg;
	while (cell__executor_at(destroy->executors))
		destroy->executors++;
	destroy_next(destroy);
}

void cell_engine_destroy(struct cell_engine *engine)
{
	if (!engine)
		return;
	cell__engine_must_wait(engine, "cell_engine_destroy");
	struct destroy destroy = { .engine = engine };
	cell__engine_wait(engine, start_destroy, &destroy);
	cell__loop_destroy(engine->loop);
	free_engine(engine);
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
	if (cell__subprocess_prewarm(cell__subprocess_of(&prewarm->engine->host), prewarm->python, prewarm->preload, "", NULL,
				     handle_prewarmed, prewarm, &err) < 0)
		handle_prewarmed(prewarm, NULL, &err);
}

int cell_engine_prewarm(struct cell_engine *engine, const char *python, const char *preload, struct cell_env_info *ret_info,
			struct cell_error *err)
{
	if (cell__require(err, engine) < 0)
		return -1;
	if (cell__engine_may_wait(engine, "cell_engine_prewarm", err) < 0 ||
	    (ret_info && cell__sized_check(ret_info, "cell_env_info", err) < 0))
		return -1;
	struct prewarm prewarm = {
		.task.fn = start_prewarm,
		.engine = engine,
		.python = python ? python : CELL_DEFAULT_PYTHON,
		.preload = preload ? preload : "",
	};
	cell__waiter_init(&prewarm.waiter);
	cell__loop_do(engine->loop, &prewarm.task, &prewarm.waiter);
	cell__waiter_finish(&prewarm.waiter);
	if (prewarm.failed) {
		if (err)
			*err = prewarm.err;
		return -1;
	}
	if (ret_info)
		cell__sized_write(ret_info, &prewarm.info, sizeof prewarm.info);
	return 0;
}

int cell_executor_probe(struct cell_engine *engine, size_t i, struct cell_executor_info *ret_info)
{
	const struct cell__executor *executor = cell__executor_at(i);
	if (!engine || !executor || cell__sized_check(ret_info, "cell_executor_info", NULL) < 0)
		return -1;
	struct cell_executor_info info = { .name = executor->name, .isolation = executor->isolation };
	executor->probe(&engine->host, &info); /* reads only members that never change after creation */
	cell__sized_write(ret_info, &info, sizeof info);
	return 0;
}
