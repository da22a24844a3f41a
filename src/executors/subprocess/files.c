/*
 * The files of an environment: its interpreter before the zygote is started, and the zygote's module search path when it is ready.
 *
 * Looking up paths may block, so the pool does it; the loop's thread compares what was found with the places that open sessions can write
 * to, and trusts it from then on. Code could have changed a link between the two and have ended before the comparison, so everything is
 * looked up a second time: from the comparison on no open session can change it.
 *
 *     zygote_start ──▶ check (pool) ──▶ trust (loop) ──▶ check again, plan (pool) ──▶ same? ──▶ started ──▶ ready ──▶ the same once more
 *
 * The results for a zygote that was given up meanwhile are dropped.
 */
#define _GNU_SOURCE
#include "executors/subprocess/kernel.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "sandbox/build.h"

/* ---- files that a zygote reported ---- */

struct cell__sub_files *cell__sub_files_ref(struct cell__sub_files *files)
{
	if (files)
		__atomic_fetch_add(&files->refs, 1, __ATOMIC_RELAXED);
	return files;
}

void cell__sub_files_unref(struct cell__sub_files *files)
{
	if (!files || __atomic_sub_fetch(&files->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	cell__plan_env_finish(&files->env);
	free(files);
}

/* NULL: out of memory. */
static struct cell__sub_files *make_files(json_t *list)
{
	size_t n = json_array_size(list), kept = 0;
	struct cell__sub_files *files = cell__alloc(1, sizeof *files);
	const char **paths = cell__alloc(n + 1, sizeof *paths);
	for (size_t i = 0; paths && i < n; i++) {
		const char *path = json_string_value(json_array_get(list, i));
		if (path && path[0] == '/')
			paths[kept++] = path;
	}
	if (files)
		files->refs = 1;
	if (!files || !paths || cell__plan_env_init(&files->env, paths) < 0) {
		cell__sub_files_unref(files);
		files = NULL;
	}
	free(paths);
	return files;
}

/* ---- one check ---- */

struct check {
	uv_work_t work;
	struct cell__sub_env *env; /* its interpreter and kind never change; the rest is the loop's */
	unsigned start;            /* the zygote that this is for */
	json_t *ready;             /* its report; NULL: it is not started yet */
	int64_t pid;
	bool trusted;              /* this is the second check */
	struct cell__sub_files *files; /* reported by this zygote, or by an earlier one, or NULL */
	struct cell__place_list places;
	struct cell__sandbox_plan *plan;
	struct cell_error err;
};

static int check_python(const char *python, struct cell_error *err)
{
	struct stat st;
	if (stat(python, &st) < 0) {
		struct stat link;
		if (errno == ENOENT && lstat(python, &link) == 0)
			return cell_fail(
				err, CELL_E_PYTHON, 0,
				"%s is a broken link: the Python that its venv was created from was removed; create the venv again",
				python);
		return cell_fail(err, CELL_E_PYTHON, errno, "interpreter %s", python);
	}
	if (!S_ISREG(st.st_mode) || access(python, X_OK) < 0)
		return cell_fail(err, CELL_E_PYTHON, 0, "interpreter %s is not an executable program; give the path of a python3", python);
	return 0;
}

/* The interpreter's files that are known before it is started; and its module search path, with the names by which it knows those folders. */
static int list_places(const char *python, const struct cell__sub_files *files, struct cell__place_list *list, struct cell_error *err)
{
	int rc = cell__place_add_python(list, python, err);
	for (char **folder = files ? files->env.folders : NULL; rc == 0 && folder && *folder; folder++)
		rc = cell__place_add(list, "the interpreter's", true, *folder, err);
	for (char **link = files ? files->env.links : NULL; rc == 0 && link && *link; link += 2)
		rc = cell__place_add(list, "the interpreter's", false, *link, err);
	return rc;
}

/* The plan of a zygote is made for each zygote again: mounts and installs may have changed. */
static int plan_zygote(struct check *check)
{
	const struct cell__sub_env *env = check->env;
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	if (cell__plans_zygote(&env->sub->supervisor->plans, env->python, env->sub->kernel_dir, env->kind == CELL_ZYGOTE_ONLINE, &bytes,
			       &check->err) == 0)
		check->plan = cell__sandbox_plan_create(&bytes, &check->err);
	return check->plan ? 0 : -1;
}

static void handle_check(uv_work_t *work)
{
	struct check *check = work->data;
	const struct cell__sub_env *env = check->env;
	if (!check->ready && check_python(env->python, &check->err) < 0)
		return;
	if (check->ready && !check->trusted && !(check->files = make_files(json_object_get(check->ready, "paths")))) {
		cell_fail(&check->err, CELL_E_NOMEM, 0, "out of memory");
		return;
	}
	if (list_places(env->python, check->files, &check->places, &check->err) == 0 && check->trusted && !check->ready &&
	    env->kind != CELL_ZYGOTE_ISOLATED)
		(void)plan_zygote(check);
}

static void handle_checked(uv_work_t *work, int status);

static void start_check(struct check *check)
{
	check->work.data = check;
	check->env->checking++;
	uv_queue_work(cell__loop_uv(check->env->sub->host->loop), &check->work, handle_check, handle_checked);
}

/* Trusts what was found from now on, instead of what was trusted before; on failure nothing has changed. */
static int trust(struct check *check)
{
	struct cell__sub_env *env = check->env;
	struct cell__places *places = env->sub->host->places;
	if (cell__places_trust(places, &check->places, &check->err) < 0)
		return -1;
	cell__places_untrust(places, &env->places);
	cell__place_list_finish(&env->places);
	env->places = check->places;
	check->places = (struct cell__place_list)CELL_PLACE_LIST_INIT;
	check->trusted = true;
	return 0;
}

/* False: there is another check. */
static bool is_over(struct check *check)
{
	struct cell__sub_env *env = check->env;
	if (env->sub->destroying || env->closed || env->state != CELL_ENV_STARTING || env->starts != check->start)
		return true;
	if (!check->err.code && !check->trusted && trust(check) == 0) {
		start_check(check);
		return false;
	}
	if (!check->err.code && !cell__place_list_equal(&check->places, &env->places))
		cell_fail(&check->err, CELL_E_PYTHON, 0, "the files of %.150s changed while it was started; try again", env->python);
	if (check->err.code)
		cell__sub_zygote_failed(env, &check->err);
	else if (check->ready)
		cell__sub_zygote_known(env, check->pid, check->ready, cell__take_ptr(check->files));
	else
		cell__sub_zygote_planned(env, cell__take_ptr(check->plan));
	return true;
}

static void handle_checked(uv_work_t *work, int status)
{
	struct check *check = work->data;
	struct cell__sub_env *env = check->env;
	(void)status; /* never cancelled */
	env->checking--;
	if (!is_over(check))
		return;
	json_decref(check->ready);
	cell__sub_files_unref(check->files);
	cell__place_list_finish(&check->places);
	cell__sandbox_plan_unref(check->plan);
	free(check);
	if (env->closed && env->checking == 0)
		cell__sub_handle_env_closed((uv_handle_t *)&env->timer);
}

int cell__sub_check_files(struct cell__sub_env *env, json_t *ready, int64_t pid, struct cell_error *err)
{
	struct check *check = cell__alloc(1, sizeof *check);
	if (!check) {
		json_decref(ready);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	*check = (struct check){ .env = env, .start = env->starts, .ready = ready, .pid = pid, .places = CELL_PLACE_LIST_INIT };
	if (!ready)
		check->files = cell__sub_files_ref(env->files); /* stay trusted until this zygote reports its own */
	start_check(check);
	return 0;
}

/* ---- requests ---- */

/* Those of an environment that new sessions would get; a new reference, or NULL. */
static struct cell__sub_files *find_files(struct cell__subprocess *sub, const char *python, const char *preload, const char *owner,
					  enum cell__zygote_kind kind)
{
	struct cell__sub_files *files = NULL;
	pthread_mutex_lock(&sub->lock);
	for (struct cell__sub_env *env = sub->envs; env && !files; env = env->next)
		if (cell__sub_env_serves(env, python, preload, owner, kind))
			files = cell__sub_files_ref(env->files);
	pthread_mutex_unlock(&sub->lock);
	return files;
}

static int prepare_from(struct cell__sandbox_request *request, struct cell__sub_files *files, struct cell_error *err)
{
	cell__sub_files_unref(request->from);
	request->from = cell__sub_files_ref(files);
	return request->prepare(request, &files->env, err);
}

int cell__subprocess_prepare(struct cell__subprocess *sub, const char *python, const char *preload, const char *owner,
			     struct cell__sandbox_request *request, struct cell_error *err)
{
	struct cell__sub_files *files = find_files(sub, python, preload, owner, request->zygote);
	int rc = files ? prepare_from(request, files, err) : 0;
	cell__sub_files_unref(files);
	return rc;
}

struct preparing {
	uv_work_t work;
	struct cell__subprocess *sub;
	struct cell__sandbox_request *request;
	struct cell__sub_files *files;
	void (*done)(void *arg, const struct cell_error *err);
	void *arg;
	struct cell_error err;
};

static void handle_prepare(uv_work_t *work)
{
	struct preparing *preparing = work->data;
	if (preparing->files)
		(void)prepare_from(preparing->request, preparing->files, &preparing->err);
	else
		cell_fail(&preparing->err, CELL_E_SANDBOX, 0, "the files of the interpreter are not known");
}

static void handle_prepared(uv_work_t *work, int status)
{
	struct preparing *preparing = work->data;
	struct cell__subprocess *sub = preparing->sub;
	(void)status; /* never cancelled */
	preparing->done(preparing->arg, &preparing->err);
	cell__sub_files_unref(preparing->files);
	free(preparing);
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}

int cell__sub_prepare(struct cell__sub_env *env, struct cell__sandbox_request *request,
		      void (*done)(void *arg, const struct cell_error *err), void *arg, struct cell_error *err)
{
	struct preparing *preparing = cell__alloc(1, sizeof *preparing);
	if (!preparing)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	*preparing = (struct preparing){
		.sub = env->sub, .request = request, .files = cell__sub_files_ref(env->files), .done = done, .arg = arg
	};
	preparing->work.data = preparing;
	env->sub->open_handles++;
	uv_queue_work(cell__loop_uv(env->sub->host->loop), &preparing->work, handle_prepare, handle_prepared);
	return 0;
}
