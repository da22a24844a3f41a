#define _GNU_SOURCE
#include "sandbox/plans.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

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
		cell_fail(err, plan ? CELL_E_IO : CELL_E_NOMEM, plan ? errno : 0, "make a sandbox's plan");
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

static int make_key(const struct cell__policy *p, const struct cell__plan_env *env, struct cell__buf *out)
{
	const struct cell__policy_list *lists[] = { &p->read, &p->write, &p->hide, &p->hosts };
	int rc = cell__buf_printf(out, "%s|%d|%d|%d|%llu|%llu|%llu|%llu|%llu|%llu|%llu", p->name, (int)p->level, (int)p->network,
				  (int)p->shows_machine,
				  (unsigned long long)p->memory_bytes, (unsigned long long)p->pids, (unsigned long long)p->files,
				  (unsigned long long)p->file_size_bytes, (unsigned long long)p->tmp_bytes,
				  (unsigned long long)p->cpu_percent, (unsigned long long)p->cpu_time_ms);
	for (size_t l = 0; l < 4; l++) {
		rc |= cell__buf_add_str(out, "\n");
		for (size_t i = 0; i < lists[l]->count; i++)
			rc |= cell__buf_printf(out, "%s\t", lists[l]->items[i]);
	}
	for (char **path = env->folders; path && *path; path++)
		rc |= cell__buf_printf(out, "\n%s", *path);
	for (char **path = env->links; path && *path; path++)
		rc |= cell__buf_printf(out, "\n%s", *path);
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

int cell__plans_find(struct cell__plans *plans, const struct cell__policy *policy, const struct cell__plan_env *env,
		     struct cell__sandbox_plan **ret_plan, struct cell_error *err)
{
	/* The spawner knows plans by their number, and may serve several caches one after the other. */
	static _Atomic uint64_t last_id;
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT, bytes = CELL_BUF_INIT;
	if (make_key(policy, env, &key) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	for (struct cell__cached_plan *c = plans->list; c; c = c->next)
		if (strcmp(c->key, key.data) == 0) {
			*ret_plan = c->plan;
			return 0;
		}
	if (cell__plan_build(policy, cell__machine_here(), env, ++last_id, &bytes, err) < 0)
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
}
