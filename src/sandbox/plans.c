#define _GNU_SOURCE
#include "sandbox/plans.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/hole.h"

/* A plan, and one set of inputs that it was made from: with them known, it need not be built to be found. */
struct cell__cached_plan {
	struct cell__buf inputs;
	struct cell__sandbox_plan *plan; /* several may share one */
	struct cell__cached_plan *next;
};

struct cell__sandbox_plan *cell__sandbox_plan_create(struct cell__buf *bytes, struct cell_error *err)
{
	struct cell__sandbox_plan *plan = cell__alloc(1, sizeof *plan);
	CELL_AUTO_FD int fd = memfd_create("workcell-plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (!plan || fd < 0 || write(fd, bytes->data, bytes->size) != (ssize_t)bytes->size ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0) {
		cell_fail(err, plan ? CELL_E_IO : CELL_E_NOMEM, plan ? errno : 0, "build the plan of a sandbox");
		free(plan);
		return NULL;
	}
	plan->refs = 1;
	plan->fd = cell__take_fd(&fd);
	plan->size = bytes->size;
	plan->bytes = cell__buf_take(bytes);
	return plan;
}

struct cell__sandbox_plan *cell__sandbox_plan_ref(struct cell__sandbox_plan *plan)
{
	if (plan)
		__atomic_fetch_add(&plan->refs, 1, __ATOMIC_RELAXED);
	return plan;
}

void cell__sandbox_plan_unref(struct cell__sandbox_plan *plan)
{
	if (!plan || __atomic_sub_fetch(&plan->refs, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	cell__close_fd(&plan->fd);
	free(plan->bytes);
	free(plan);
}

/* Neighbours of a hidden file are shown name by name: another list of names is another plan. */
static int add_hidden(const struct cell__sandbox_policy *p, struct cell__buf *out)
{
	int rc = 0;
	for (size_t i = 0; i < p->hide.count; i++) {
		CELL_AUTO_FREE char *path = cell__strdup(p->hide.items[i]);
		rc |= path ? 0 : -1;
		for (char *slash = path ? strrchr(path, '/') : NULL; slash && slash != path; slash = strrchr(path, '/')) {
			struct stat st = { 0 };
			*slash = '\0';
			(void)stat(path, &st); /* nothing there: all zero */
			rc |= cell__buf_add(out, &st.st_ino, sizeof st.st_ino) | cell__buf_add(out, &st.st_mtim, sizeof st.st_mtim);
		}
	}
	return rc;
}

static int add_list(const char *const *list, struct cell__buf *out)
{
	size_t count = 0;
	int rc = 0;
	while (list && list[count])
		count++;
	rc |= cell__buf_add(out, &count, sizeof count);
	for (size_t i = 0; i < count; i++)
		rc |= cell__buf_add(out, list[i], strlen(list[i]) + 1);
	return rc;
}

/* All inputs of a plan. Every string ends with its NUL and every list begins with its length, so different inputs have different bytes. */
static int add_inputs(const struct cell__sandbox_policy *p, const struct cell__plan_env *env, const struct cell__machine *machine,
		      struct cell__buf *out)
{
	const char mapped = machine->trees != NULL;
	int rc = cell__sandbox_policy_add_bytes(p, out) | add_hidden(p, out);
	rc |= add_list((const char *const *)env->folders, out) | add_list((const char *const *)env->links, out);
	rc |= cell__buf_add(out, &mapped, 1) | cell__buf_add(out, machine->no_trees, strlen(machine->no_trees) + 1);
	return rc | add_list(machine->trees, out);
}

/* Are these the same steps?  Only their numbers may differ. */
static bool is_same_plan(const struct cell__sandbox_plan *plan, const struct cell__buf *bytes)
{
	const size_t id = offsetof(struct cell_plan, id), after = id + sizeof(((struct cell_plan *)NULL)->id);
	return plan->size == bytes->size && memcmp(plan->bytes, bytes->data, id) == 0 &&
	       memcmp(plan->bytes + after, bytes->data + after, bytes->size - after) == 0;
}

/* A path that is shown, as the host resolves it. */
static int add_path(char **paths, size_t *n, const char *path)
{
	char *real = realpath(path, NULL);
	if (real)
		paths[(*n)++] = real;
	return real || errno != ENOMEM ? 0 : -1;
}

/* A subordinate id could not write to them, and could read only files that every user may read. */
static bool shows_callers_files(const struct cell__plan_session *session)
{
	return session->mode != CELL_WORKSPACE_NONE || session->policy->read.count > 0 || session->policy->write.count > 0 ||
	       (session->write && session->write[0]);
}

/* The trees of these real paths: of the mounts as they are now, which one thread at a time may ask about. */
static int find_trees(struct cell__plans *plans, const char *const *paths, struct cell__machine *machine)
{
	const char *const *trees = NULL;
	char why[160];
	int rc = -1;
	pthread_mutex_lock(&plans->lock);
	if (!plans->mounts)
		plans->mounts = cell__mounts_create();
	if (plans->mounts && machine->own_uid) {
		trees = cell__mounts_of(plans->mounts, paths, why);
		if (!trees)
			snprintf(machine->no_trees, sizeof machine->no_trees, "%.110s cannot be mounted with other owners", why);
	} else if (plans->mounts) {
		trees = cell__mounts_open_to_all(plans->mounts, paths, machine->no_trees);
	}
	if (plans->mounts) {
		machine->trees = trees ? (const char *const *)cell__strings_copy(trees) : NULL;
		rc = trees && !machine->trees ? -1 : 0;
	}
	pthread_mutex_unlock(&plans->lock);
	return rc;
}

int cell__plans_map(struct cell__plans *plans, const struct cell__plan_session *session, struct cell__machine *machine)
{
	const struct cell__sandbox_policy *policy = session->policy;
	const char *const *lists[] = { (const char *const *)session->env->folders, session->read, session->write };
	size_t count = policy->read.count + policy->write.count + 3, n = 0;
	for (size_t l = 0; l < 3; l++)
		for (const char *const *path = lists[l]; path && *path; path++)
			count++;
	if (!cell__machine_maps(machine) || machine->level != CELL_LEVEL_FULL || is_hole(machine->own_uid ? "uid" : "subuid"))
		return 0;
	if (!machine->own_uid && shows_callers_files(session)) {
		snprintf(machine->no_trees, sizeof machine->no_trees, "the code sees files of the caller (workspace, read, write)");
		return 0;
	}
	char **paths = cell__alloc(count, sizeof *paths);
	int rc = paths ? 0 : -1;
	if (rc == 0 && session->mode != CELL_WORKSPACE_NONE)
		rc = add_path(paths, &n, session->cwd);
	if (rc == 0 && session->layer)
		rc = add_path(paths, &n, session->layer);
	for (size_t l = 0; l < 3; l++)
		for (const char *const *path = lists[l]; rc == 0 && path && *path; path++)
			rc = add_path(paths, &n, *path);
	for (size_t i = 0; rc == 0 && i < policy->read.count; i++)
		rc = add_path(paths, &n, policy->read.items[i]);
	for (size_t i = 0; rc == 0 && i < policy->write.count; i++)
		rc = add_path(paths, &n, policy->write.items[i]);
	if (rc == 0)
		rc = find_trees(plans, (const char *const *)paths, machine);
	for (size_t i = 0; i < n; i++)
		free(paths[i]);
	free(paths);
	return rc;
}

int cell__plans_zygote(struct cell__plans *plans, const char *python, const char *kernel_dir, bool online, struct cell__buf *out,
		       struct cell_error *err)
{
	struct cell__machine machine = *cell__machine_here();
	struct cell__sandbox_policy policy = { 0 };
	struct cell__plan_env files;
	struct cell__plan_session session = { .mode = CELL_WORKSPACE_NONE, .env = &files, .policy = &policy };
	if (cell__plan_env_of(&files, python, kernel_dir, cell__home_dir(), err) < 0)
		return -1;
	int rc = cell__plans_map(plans, &session, &machine);
	if (rc < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a zygote");
	else
		rc = cell__plan_build_zygote(&machine, &files, online, out, err);
	cell__strings_free((char **)machine.trees);
	cell__plan_env_finish(&files);
	return rc;
}

static int cached_refs(const struct cell__plans *plans, const struct cell__sandbox_plan *plan)
{
	int refs = 0;
	for (const struct cell__cached_plan *c = plans->list; c; c = c->next)
		refs += c->plan == plan;
	return refs;
}

static void free_cached(struct cell__cached_plan *cached)
{
	cell__sandbox_plan_unref(cached->plan);
	cell__buf_finish(&cached->inputs);
	free(cached);
}

/* Frees the oldest unused plans. */
static void trim(struct cell__plans *plans)
{
	size_t count = 0;
	for (struct cell__cached_plan **at = &plans->list; *at;) {
		struct cell__cached_plan *cached = *at;
		/* A plan that only the cache refers to gets no other reference without the lock. */
		if (++count > CELL_PLANS_MAX &&
		    __atomic_load_n(&cached->plan->refs, __ATOMIC_RELAXED) == cached_refs(plans, cached->plan)) {
			*at = cached->next;
			free_cached(cached);
		} else {
			at = &cached->next;
		}
	}
}

/* A plan with these bytes: the existing one, or a new one. A new reference; NULL: err has the reason. */
static struct cell__sandbox_plan *share_plan(const struct cell__plans *plans, struct cell__buf *bytes, struct cell_error *err)
{
	for (const struct cell__cached_plan *c = plans->list; c; c = c->next)
		if (is_same_plan(c->plan, bytes))
			return cell__sandbox_plan_ref(c->plan);
	return cell__sandbox_plan_create(bytes, err);
}

/* The plan made from these inputs, if it is known; a new reference, or NULL. */
static struct cell__sandbox_plan *find_known(struct cell__plans *plans, const struct cell__buf *inputs)
{
	struct cell__sandbox_plan *plan = NULL;
	pthread_mutex_lock(&plans->lock);
	for (struct cell__cached_plan *c = plans->list; c && !plan; c = c->next)
		if (c->inputs.size == inputs->size && memcmp(c->inputs.data, inputs->data, inputs->size) == 0)
			plan = cell__sandbox_plan_ref(c->plan);
	pthread_mutex_unlock(&plans->lock);
	return plan;
}

/* Keeps a plan for its inputs, which are taken over. A new reference; NULL: err has the reason. */
static struct cell__sandbox_plan *keep(struct cell__plans *plans, struct cell__buf *inputs, struct cell__buf *bytes, struct cell_error *err)
{
	struct cell__cached_plan *cached = cell__alloc(1, sizeof *cached);
	if (!cached) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
		return NULL;
	}
	pthread_mutex_lock(&plans->lock);
	struct cell__sandbox_plan *plan = share_plan(plans, bytes, err);
	if (plan) {
		*cached = (struct cell__cached_plan){ .inputs = *inputs, .plan = plan, .next = plans->list };
		*inputs = (struct cell__buf)CELL_BUF_INIT;
		plans->list = cached;
		cell__sandbox_plan_ref(plan);
		trim(plans);
	}
	pthread_mutex_unlock(&plans->lock);
	if (!plan)
		free(cached);
	return plan;
}

int cell__plans_find(struct cell__plans *plans, struct cell__plan_session *session, struct cell__sandbox_plan **ret_plan,
		     struct cell_error *err)
{
	/* The spawner knows plans by their number, and may serve several caches one after the other. */
	static _Atomic uint64_t last_id;
	CELL_AUTO_BUF struct cell__buf inputs = CELL_BUF_INIT, bytes = CELL_BUF_INIT;
	struct cell__machine machine = *cell__machine_here();
	struct cell__sandbox_plan *plan = NULL;
	if (cell__plans_map(plans, session, &machine) < 0 || add_inputs(session->policy, session->env, &machine, &inputs) < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	else if (!(plan = find_known(plans, &inputs)) &&
		 cell__plan_build(session->policy, &machine, session->env, ++last_id, &bytes, err) == 0)
		plan = keep(plans, &inputs, &bytes, err);
	session->mapped = machine.trees != NULL;
	cell__strings_free((char **)machine.trees);
	if (!plan)
		return -1;
	*ret_plan = plan;
	return 0;
}

void cell__plans_finish(struct cell__plans *plans)
{
	while (plans->list) {
		struct cell__cached_plan *next = plans->list->next;
		free_cached(plans->list);
		plans->list = next;
	}
	cell__mounts_destroy(cell__take_ptr(plans->mounts));
}
