/*
 * The spawner's messages to the `subprocess` executor: about zygotes, about kernels that were forked and that ended, and about its own
 * end.
 */
#define _GNU_SOURCE
#include "executors/subprocess/kernel.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "sandbox/cgroup.h"
#include "spawn/proc.h"

#define FORK_TRIES 6 /* a jail, the zone and its zygote may be found dead one after the other */

static struct cell__sub_env *env_of_zygote(struct cell__subprocess *sub, uint64_t id)
{
	struct cell__sub_env *env = sub->envs;
	while (env && env->zygote_id != id)
		env = env->next;
	return env;
}

/*
 * A kernel whose fork never happened because its zygote or its jail died, or that died with its zygote before it had begun the session: another
 * one serves.
 */
static bool try_again(struct cell__sub_kernel *kernel, const struct cell__exit *how)
{
	bool killed = how && how->known && WIFSIGNALED(how->status) && WTERMSIG(how->status) == SIGKILL && !how->oom && !kernel->ready &&
		      kernel->state == CELL_KERNEL_OPENING;
	if ((kernel->pid != 0 && !killed) || kernel->asked || kernel->error.code != 0 || !kernel->init || kernel->tries >= FORK_TRIES)
		return false;
	kernel->pid = 0;
	kernel->n_skipped = 0;
	kernel->report = (struct cell_plan_report){ 0 };
	cell__close_fd(&kernel->listen_fd);
	cell__sub_kernel_not_forking(kernel);
	cell__link_close(cell__take_ptr(kernel->link));
	cell__sub_kernel_wait_again(kernel);
	kernel->up = kernel->ready = false;
	kernel->kind = 0; /* the other one was told of its session, not this one */
	if (cell__sub_zygote_start(kernel->env, &kernel->error) < 0)
		cell__sub_kernel_gone_later(kernel);
	else
		cell__sub_fork_waiting(kernel->env);
	return true;
}

static void kernel_exited(struct cell__sub_kernel *kernel, int64_t status, int64_t flags, const char *payload, size_t size)
{
	struct cell__exit how = {
		.known = status >= 0,
		.status = status >= 0 ? (int)status : 0,
		.oom = (flags & CELL_SPAWN_EXIT_OOM) != 0,
		.asked = kernel->asked,
		.error = kernel->error,
	};
	struct cell_cgroup_usage usage;
	if (payload && size == sizeof usage) {
		memcpy(&usage, payload, sizeof usage);
		how.memory_max = usage.memory_max;
		how.memory_used = usage.memory_peak;
	}
	if (try_again(kernel, &how))
		return;
	if (kernel->pid == 0 && how.error.code == 0)
		cell_fail(&how.error, CELL_E_KERNEL, 0, "the zygote died while it forked the kernel; try again");
	cell__sub_kernel_gone(kernel, &how);
}

static void kernel_forked(struct cell__sub_kernel *kernel, int64_t pid, int64_t failure, const char *payload, size_t size)
{
	struct cell__sub_env *env = kernel->env;
	cell__sub_kernel_not_forking(kernel);
	if (payload && size == sizeof kernel->report)
		memcpy(&kernel->report, payload, size);
	if (pid <= 0 && (failure == ESRCH || failure == EPIPE || failure == ECONNRESET)) {
		/* The zygote has ended; that message may not have reached us yet. */
		if (env->state == CELL_ENV_READY) {
			env->state = CELL_ENV_NONE;
			cell__spawn_client_tell(&kernel->sub->supervisor->client, CELL_SPAWN_ZYGOTE_STOP, env->zygote_id, 0);
			env->zygote_id = 0;
		}
		if (try_again(kernel, NULL))
			return;
	}
	/* Linux says ENOMEM of a pid namespace whose pid 1 is gone: the jail died after the spawner chose it, and another one serves. */
	if (pid <= 0 && failure == ENOMEM && kernel->plan && try_again(kernel, NULL))
		return;
	if (pid <= 0) {
		if (kernel->plan && kernel->request)
			cell__sandbox_failure(kernel->request, size == sizeof kernel->report ? kernel->report.step : -1, (int)failure,
					      &kernel->error);
		else if (kernel->error.code == 0)
			cell_fail(&kernel->error, CELL_E_KERNEL, (int)failure,
				  "fork a kernel (is a limit on processes or memory reached?)");
		cell__sub_kernel_gone_later(kernel);
		return;
	}
	kernel->pid = (pid_t)pid;
	kernel->source = 0;
	if (kernel->plan)
		kernel->listen_fd = cell__take_fd(&kernel->sub->supervisor->client.received_fd);
	if (kernel->state == CELL_KERNEL_FORKING && kernel->pooled) {
		struct cell__sub_pool *pool = cell__sub_pool_find(kernel->env, kernel->plan);
		kernel->state = CELL_KERNEL_POOLED;
		if (pool)
			cell__sub_pool_confine(kernel->env, pool);
	}
	cell__sub_kernel_maybe_live(kernel);
	cell__sub_fork_waiting(env);
	cell__sub_zygote_rotate(env);
}

void cell__sub_handle_message(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size)
{
	struct cell__subprocess *sub = arg;
	struct cell__sub_env *env = env_of_zygote(sub, head->id);
	struct cell__sub_kernel *kernel = cell__sub_kernel_by_id(sub, head->id);
	switch (head->type) {
	case CELL_SPAWN_ZYGOTE_READY:
		if (env && env->state == CELL_ENV_STARTING)
			cell__sub_zygote_ready(env, head->a, head->b, payload, size);
		break;
	case CELL_SPAWN_ZYGOTE_WARMED:
		if (env)
			cell__sub_zygote_warmed(env);
		break;
	case CELL_SPAWN_ZYGOTE_EXITED:
		if (env)
			cell__sub_zygote_exited(env, head->a, head->b, payload, size);
		break;
	case CELL_SPAWN_KERNEL_FORKED:
		if (kernel)
			kernel_forked(kernel, head->a, head->b, payload, size);
		break;
	case CELL_SPAWN_KERNEL_EXITED:
		if (kernel)
			kernel_exited(kernel, head->a, head->b, payload, size);
		break;
	}
}

void cell__sub_handle_spawner_end(void *arg)
{
	struct cell__subprocess *sub = arg;
	struct cell_error err;
	cell_fail(&err, CELL_E_SPAWNER, 0, "the spawner died and ended all its sessions; open a new session");
	CELL_SUB_LOG(sub, CELL_LOG_ERROR, "%s", err.msg);
	/* While the kernels live, all processes of their code are below them (kernels are subreapers). */
	for (struct cell__sub_kernel *k = sub->kernels; k; k = k->next)
		if (k->pid > 0)
			cell__proc_kill_tree(k->pid);
	for (struct cell__sub_env *env = sub->envs; env; env = env->next) {
		env->state = CELL_ENV_NONE;
		env->zygote_id = 0;
		uv_timer_stop(&env->timer);
		cell__sub_end_prewarms(env, &err);
	}
	for (struct cell__sub_kernel *k = sub->kernels; k; k = k->next)
		if (!k->gone.fn) {
			k->error = err;
			cell__sub_kernel_gone_later(k);
		}
}
