#define _GNU_SOURCE
#include "sandbox/plans.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/hole.h"

struct cell__cached_plan {
	char *key;
	struct cell__sandbox_plan *plan;
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
		plan->refs++;
	return plan;
}

void cell__sandbox_plan_unref(struct cell__sandbox_plan *plan)
{
	if (!plan || --plan->refs > 0)
		return;
	cell__close_fd(&plan->fd);
	free(plan->bytes);
	free(plan);
}

/* What lies beside something hidden is shown name by name: another list of names is another plan. */
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
			rc |= cell__buf_printf(out, "%llu.%lld.%ld\t", (unsigned long long)st.st_ino, (long long)st.st_mtim.tv_sec,
					       st.st_mtim.tv_nsec);
		}
	}
	return rc;
}

static int make_key(const struct cell__sandbox_policy *p, const struct cell__plan_env *env, const struct cell__machine *machine,
		    struct cell__buf *out)
{
	const struct cell__sandbox_policy_list *lists[] = { &p->read, &p->write, &p->hide, &p->hosts };
	int rc = cell__buf_printf(out, "%s|%d|%d|%d|%d|%llu|%llu|%llu|%llu|%llu|%llu|%llu", p->name, (int)p->level, (int)p->network,
				  (int)p->shows_machine, (int)p->pids_asked, (unsigned long long)p->memory_bytes,
				  (unsigned long long)p->pids, (unsigned long long)p->files, (unsigned long long)p->file_size_bytes,
				  (unsigned long long)p->tmp_bytes, (unsigned long long)p->cpu_percent, (unsigned long long)p->cpu_time_ms);
	rc |= add_hidden(p, out);
	for (size_t l = 0; l < 4; l++) {
		rc |= cell__buf_add_str(out, "\n");
		for (size_t i = 0; i < lists[l]->count; i++)
			rc |= cell__buf_printf(out, "%s\t", lists[l]->items[i]);
	}
	for (char **path = env->folders; path && *path; path++)
		rc |= cell__buf_printf(out, "\n%s", *path);
	for (char **path = env->links; path && *path; path++)
		rc |= cell__buf_printf(out, "\n%s", *path);
	rc |= cell__buf_printf(out, "\n|%d%s", machine->trees != NULL, machine->no_trees);
	for (const char *const *tree = machine->trees; tree && *tree; tree++)
		rc |= cell__buf_printf(out, "\n%s", *tree);
	return rc;
}

/* A path that is shown, as the host resolves it. */
static int add_path(char **paths, size_t *n, const char *path)
{
	char *real = realpath(path, NULL);
	if (real)
		paths[(*n)++] = real;
	return real || errno != ENOMEM ? 0 : -1;
}

int cell__plans_map(struct cell__mounts *mounts, const struct cell__plan_session *session, struct cell__machine *machine)
{
	const struct cell__sandbox_policy *policy = session->policy;
	const char *const *lists[] = { (const char *const *)session->env->folders, session->read, session->write };
	size_t count = policy->read.count + policy->write.count + 2, n = 0;
	for (size_t l = 0; l < 3; l++)
		for (const char *const *path = lists[l]; path && *path; path++)
			count++;
	if (!machine->own_uid || machine->level != CELL_LEVEL_FULL || is_hole("uid"))
		return 0;
	char **paths = cell__alloc(count, sizeof *paths);
	int rc = paths && mounts ? 0 : -1;
	if (rc == 0 && session->mode != CELL_WORKSPACE_NONE)
		rc = add_path(paths, &n, session->cwd);
	for (size_t l = 0; l < 3; l++)
		for (const char *const *path = lists[l]; rc == 0 && path && *path; path++)
			rc = add_path(paths, &n, *path);
	for (size_t i = 0; rc == 0 && i < policy->read.count; i++)
		rc = add_path(paths, &n, policy->read.items[i]);
	for (size_t i = 0; rc == 0 && i < policy->write.count; i++)
		rc = add_path(paths, &n, policy->write.items[i]);
	if (rc == 0) {
		machine->trees = cell__mounts_of(mounts, (const char *const *)paths, machine->no_trees);
		if (machine->trees)
			machine->no_trees[0] = '\0';
	}
	for (size_t i = 0; i < n; i++)
		free(paths[i]);
	free(paths);
	return rc;
}

int cell__plans_zygote(struct cell__mounts *mounts, const char *python, const char *kernel_dir, bool online, struct cell__buf *out,
		       struct cell_error *err)
{
	struct cell__machine machine = *cell__machine_here();
	struct cell__sandbox_policy policy = { 0 };
	struct cell__plan_env files;
	struct cell__plan_session session = { .mode = CELL_WORKSPACE_NONE, .env = &files, .policy = &policy };
	if (cell__plan_env_of(&files, python, kernel_dir, cell__home_dir(), err) < 0)
		return -1;
	int rc = cell__plans_map(mounts, &session, &machine);
	if (rc < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a zygote");
	else
		rc = cell__plan_build_zygote(&machine, &files, online, out, err);
	cell__plan_env_finish(&files);
	return rc;
}

/* The oldest plans that nobody uses go. */
static void trim(struct cell__plans *plans)
{
	size_t count = 0;
	for (struct cell__cached_plan **at = &plans->list; *at;) {
		struct cell__cached_plan *cached = *at;
		if (++count > CELL_PLANS_MAX && cached->plan->refs == 1) {
			*at = cached->next;
			cell__sandbox_plan_unref(cached->plan);
			free(cached->key);
			free(cached);
		} else {
			at = &cached->next;
		}
	}
}

int cell__plans_find(struct cell__plans *plans, struct cell__plan_session *session, struct cell__sandbox_plan **ret_plan,
		     struct cell_error *err)
{
	/* The spawner knows plans by their number, and may serve several caches one after the other. */
	static _Atomic uint64_t last_id;
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT, bytes = CELL_BUF_INIT;
	struct cell__machine machine = *cell__machine_here();
	if (!plans->mounts && machine.own_uid)
		plans->mounts = cell__mounts_create();
	if (cell__plans_map(plans->mounts, session, &machine) < 0 || make_key(session->policy, session->env, &machine, &key) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	session->mapped = machine.trees != NULL;
	for (struct cell__cached_plan *c = plans->list; c; c = c->next)
		if (strcmp(c->key, key.data) == 0) {
			*ret_plan = c->plan;
			return 0;
		}
	if (cell__plan_build(session->policy, &machine, session->env, ++last_id, &bytes, err) < 0)
		return -1;
	struct cell__cached_plan *cached = cell__alloc(1, sizeof *cached);
	struct cell__sandbox_plan *plan = cached ? cell__sandbox_plan_create(&bytes, err) : NULL;
	if (!plan) {
		free(cached);
		return cached ? -1 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	}
	*cached = (struct cell__cached_plan){ .key = cell__buf_take(&key), .plan = plan, .next = plans->list };
	plans->list = cached;
	trim(plans);
	*ret_plan = plan;
	return 0;
}

void cell__plans_finish(struct cell__plans *plans)
{
	while (plans->list) {
		struct cell__cached_plan *next = plans->list->next;
		cell__sandbox_plan_unref(plans->list->plan);
		free(plans->list->key);
		free(plans->list);
		plans->list = next;
	}
	cell__mounts_destroy(cell__take_ptr(plans->mounts));
}
