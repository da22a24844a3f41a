/*
 * The `subprocess` executor: kernels forked from a warm zygote.
 *
 * An environment (interpreter + preloads + owner) has at most one zygote at a time:
 *
 *     none ──first use──▶ starting ──READY──▶ ready ──exit──▶ none (kernels live on; the next use starts another)
 *                             └──exit, timeout──▶ none, and every waiter gets the reason
 *
 * All kernels of a zygote share properties of its process: address layout, stack canary, hash seed.  So sessions of different owners
 * have different zygotes, and with zygote_forks a zygote is replaced after so many kernels; those live on.  An owner's
 * environment ends when it has had no session for a while.
 *
 * A kernel:
 *
 *     waiting (for the zygote) ──▶ forking ──▶ up (HELLO) ──▶ pooled ──open──▶ configured (INIT) ──READY──▶ live
 *                                                     └─────────────────────────────▲
 *     any ──close, death──▶ dying ──KERNEL_EXITED──▶ exited() and gone
 *
 * A pooled kernel of a sandbox is confined except for the steps that depend on the session.  If the same kind of session opens
 * again and again (the same workspace, the same packages), most of the pool gets that configuration in advance and is confined to
 * the last step; such a kernel serves that kind only, and ends when another kind opens.
 *
 * Invariants: a kernel with an owner is never in the pool; a pooled kernel has seen nothing of any session; only
 * cell__sub_kernel_gone() frees one, and it runs from the spawner's messages or from a deferred task, never from inside a
 * call of the session's.
 */
#define _GNU_SOURCE
#include "executors/registry.h"
#include "executors/subprocess/kernel.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct cell__subprocess *cell__subprocess_of(const struct cell__executor_host *host)
{
	return *cell__executor_state(host, &cell__subprocess_executor);
}

void cell__subprocess_count(struct cell__executor_host *host, struct cell__executor_counts *ret_counts)
{
	const struct cell__subprocess *sub = *cell__executor_state(host, &cell__subprocess_executor);
	*ret_counts = (struct cell__executor_counts){ 0 };
	for (const struct cell__sub_kernel *k = sub ? sub->kernels : NULL; k; k = k->next)
		ret_counts->ready += k->pooled && k->up && k->state == CELL_KERNEL_POOLED;
	for (const struct cell__sub_env *env = sub ? sub->envs : NULL; env; env = env->next)
		ret_counts->zygotes++;
}

void cell__subprocess_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	struct cell__subprocess *sub = cell__subprocess_of(host);
	info->available = 1;
	if (access(sub->supervisor->program, X_OK) < 0) {
		info->available = 0;
		snprintf(info->reason, sizeof info->reason, "%.200s is missing", sub->supervisor->program);
		snprintf(info->advice, sizeof info->advice, "install Workcell completely (make install)");
	}
}

int cell__subprocess_open(struct cell__executor_host *host, const struct cell__executor *executor, const struct cell__kernel_spec *spec,
			  struct cell__sandbox_request *request, const struct cell__kernel_events *events, void *owner,
			  struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__subprocess *sub = cell__subprocess_of(host);
	struct cell__sub_env *env;
	struct cell__sub_kernel *kernel = NULL;
	CELL_AUTO_FREE char *init = spec->woken ? cell__sub_image_wake_json(spec) : cell__kernel_spec_json(spec);
	if (!init) {
		cell_fail(err, CELL_E_INVALID, 0, "working directory or environment is not valid UTF-8");
		goto fail;
	}
	if (cell__sub_env_find(sub, spec->python, spec->preload, spec->zygote_owner, request ? request->zygote : CELL_ZYGOTE_ISOLATED, &env,
			       err) < 0)
		goto fail;
	/* Prepared for a zygote that was replaced meanwhile. */
	if (request && request->plan && request->from != env->files)
		cell__sandbox_plan_unref(cell__take_ptr(request->plan));
	/* With the plan the pool is known. */
	if (!request || request->plan) {
		struct cell__sub_pool *pool = cell__sub_pool_use(env, request ? request->plan : NULL);
		kernel = cell__sub_pool_take(env, request);
		if (request && pool)
			cell__sub_pool_learn(env, pool, request, 1);
	}
	cell__cpu_shares_quick(&sub->shares);
	bool pooled = kernel != NULL;
	if (!kernel && (cell__sub_zygote_start(env, err) < 0 || !(kernel = cell__sub_kernel_create(env, err))))
		goto fail;
	kernel->base.executor = executor;
	kernel->request = request;
	kernel->init = cell__take_ptr(init);
	kernel->events = events;
	kernel->owner = owner;
	if (spec->woken) {
		if (cell__sub_image_woken(kernel, spec->woken, err) < 0) {
			kernel->events = NULL; /* nobody is told */
			pooled ? cell__sub_kernel_kill(kernel) : cell__sub_kernel_gone_later(kernel);
			return -1;
		}
		cell__sub_kernel_expect_answer(kernel);
	}
	cell__sub_kernel_begin(kernel, pooled);
	*ret_kernel = &kernel->base;
	return 0;
fail:
	cell__sub_request_destroy(request);
	return -1;
}

static int subprocess_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
			   void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	return cell__subprocess_open(host, &cell__subprocess_executor, spec, NULL, events, owner, ret_kernel, err);
}

static int subprocess_keep(struct cell__kernel *base, const char *session_id, const struct cell__layer *layer,
			   const struct cell__image_files *files, const struct cell__kernel_events *events, void *owner,
			   struct cell__kernel **ret_kernel, struct cell_error *err)
{
	(void)session_id, (void)layer; /* as of the kernel */
	return cell__sub_image_keep(base, NULL, files, events, owner, ret_kernel, err);
}

static int subprocess_prewarm(struct cell__executor_host *host, const struct cell__kernel_spec *spec, cell__prewarmed_fn done, void *arg,
			      struct cell_error *err)
{
	return cell__subprocess_prewarm(cell__subprocess_of(host), spec->python, spec->preload, spec->zygote_owner, NULL, done, arg, err);
}

/* ---- life of the whole ---- */

static int subprocess_create(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state,
			     struct cell_error *err)
{
	struct cell__subprocess *sub = cell__alloc(1, sizeof *sub);
	if (!sub)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	pthread_mutex_init(&sub->lock, NULL);
	sub->host = host;
	sub->kernel_dir = host->kernel_dir;
	sub->pool_size = opts->pool_size;
	sub->start_timeout_ms = opts->start_timeout_ms;
	sub->zygote_forks = opts->zygote_forks;
	sub->supervisor = host->supervisor;
	sub->supervisor->listener = (struct cell__spawn_listener){ .message = cell__sub_handle_message,
								   .ended = cell__sub_handle_spawner_end,
								   .arg = sub };
	*ret_state = sub;
	return 0;
}

void cell__sub_maybe_destroyed(struct cell__subprocess *sub)
{
	if (!sub->destroying || sub->open_handles > 0)
		return;
	void (*done)(void *) = sub->destroyed;
	void *arg = sub->destroyed_arg;
	pthread_mutex_destroy(&sub->lock);
	free(sub);
	done(arg);
}

static void handle_turns_closed(uv_handle_t *handle)
{
	struct cell__cpu_shares *shares = handle->data;
	struct cell__subprocess *sub = (struct cell__subprocess *)((char *)shares - offsetof(struct cell__subprocess, shares));
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}

static void subprocess_destroy(void *state, void (*done)(void *arg), void *arg)
{
	struct cell__subprocess *sub = state;
	struct cell_error err;
	cell_fail(&err, CELL_E_CLOSED, 0, "the engine is closed");
	sub->destroying = true;
	sub->supervisor->listener = (struct cell__spawn_listener){ 0 };
	sub->destroyed = done;
	sub->destroyed_arg = arg;
	sub->open_handles++; /* ours, until the lists are walked */
	if (sub->shares.loop)
		uv_close((uv_handle_t *)&sub->shares.timer, handle_turns_closed);
	/* The spawner, which ends next, ends the rest: pooled kernels and zygotes. */
	for (struct cell__sub_kernel *k = sub->kernels, *next; k; k = next) {
		struct cell__exit how = { .asked = true };
		next = k->next;
		if (!k->gone.fn)
			cell__sub_kernel_gone(k, &how);
	}
	pthread_mutex_lock(&sub->lock);
	struct cell__sub_env *env = cell__take_ptr(sub->envs);
	pthread_mutex_unlock(&sub->lock);
	while (env) {
		struct cell__sub_env *next = env->next;
		cell__sub_end_prewarms(env, &err);
		uv_close((uv_handle_t *)&env->timer, cell__sub_handle_env_closed);
		env = next;
	}
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}

const struct cell__executor cell__subprocess_executor = {
	.name = "subprocess",
	.isolation = "process",
	.works_here = true,
	.takes = CELL_TAKES_LAYER,
	.create = subprocess_create,
	.destroy = subprocess_destroy,
	.probe = cell__subprocess_probe,
	.count = cell__subprocess_count,
	.prewarm = subprocess_prewarm,
	.open = subprocess_open,
	.fork = cell__subprocess_fork,
	.keep = subprocess_keep,
	.hand_over = cell__subprocess_hand_over,
	CELL__SUBPROCESS_KERNEL,
	.place = cell__subprocess_place,
	.receipt = CELL__RECEIPT_UNCONFINED("subprocess", "process"),
};
