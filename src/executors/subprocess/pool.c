/*
 * Kernels that the `subprocess` executor makes ahead: a pool for each plan that is in use, the kind of session that a pool
 * expects, and prewarms, which wait until their pool is full.
 */
#define _GNU_SOURCE
#include "executors/subprocess/kernel.h"

#include <string.h>

#define POOLS_MAX 8     /* kinds of kernels made ahead, per environment */
#define PROGRAM_POOL 2
#define SAME_IN_A_ROW 2 /* sessions of one kind: the next is expected to be the same */

/* ---- plans, and requests for them ---- */

void cell__sub_request_destroy(struct cell__sandbox_request *request)
{
	if (!request)
		return;
	cell__sandbox_plan_unref(request->plan);
	cell__sub_files_unref(request->from);
	cell__buf_finish(&request->session);
	cell__buf_finish(&request->files);
	request->destroy(request);
}

/* ---- pools ---- */

/*
 * An owner's zygote makes no kernels ahead: there may be many owners, and the next one is not known.  One kernel runs many programs, so few
 * are needed for those.
 */
static int pool_size(const struct cell__sub_env *env)
{
	int size = env->sub->pool_size;
	if (strcmp(env->owner, CELL__ZYGOTE_PROGRAMS) == 0)
		return size < PROGRAM_POOL ? size : PROGRAM_POOL;
	return *env->owner ? 0 : size;
}

struct cell__sub_pool *cell__sub_pool_find(const struct cell__sub_env *env, const struct cell__sandbox_plan *plan)
{
	struct cell__sub_pool *pool = env->pools;
	while (pool && pool->plan != plan)
		pool = pool->next;
	return pool;
}

/* A session uses kernels of this kind: some are made ahead from now on. */
struct cell__sub_pool *cell__sub_pool_use(struct cell__sub_env *env, struct cell__sandbox_plan *plan)
{
	struct cell__sub_pool *pool = cell__sub_pool_find(env, plan);
	size_t count = 0;
	if (pool)
		return pool;
	for (struct cell__sub_pool *p = env->pools; p; p = p->next)
		count++;
	pool = count < POOLS_MAX ? cell__alloc(1, sizeof *pool) : NULL;
	if (!pool)
		return NULL; /* goes without */
	*pool = (struct cell__sub_pool){ .plan = cell__sandbox_plan_ref(plan), .next = env->pools };
	env->pools = pool;
	return pool;
}

static bool buf_equal(const struct cell__buf *a, const struct cell__buf *b)
{
	return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

static bool expects(const struct cell__sub_pool *pool, const struct cell__sandbox_request *request)
{
	return pool->kind > 0 && buf_equal(&pool->session, &request->session) && buf_equal(&pool->files, &request->files);
}

/* Confines pooled kernels for the kind of session that is expected; they have time for it. */
void cell__sub_pool_confine(struct cell__sub_env *env, struct cell__sub_pool *pool)
{
	int open = 0, kept = pool_size(env) > 1; /* one stays good for any session of its plan */
	if (pool->in_a_row < SAME_IN_A_ROW)
		return;
	for (struct cell__sub_kernel *k = env->fresh; k; k = k->fresh_next) {
		if (!k->pooled || k->plan != pool->plan || k->kind || k->state != CELL_KERNEL_POOLED || !k->up)
			continue;
		if (++open > kept &&
		    cell__link_send(k->link, CELL_FRAME_INIT, 0, NULL, 0, pool->session.data, pool->session.size, NULL) == 0)
			k->kind = pool->kind;
	}
}

/* A session is opened.  Kernels that were confined for another kind are of no use any more. */
void cell__sub_pool_learn(struct cell__sub_env *env, struct cell__sub_pool *pool, const struct cell__sandbox_request *request,
			  unsigned times)
{
	if (request->alone)
		return;
	if (expects(pool, request)) {
		pool->in_a_row = pool->in_a_row + times < SAME_IN_A_ROW ? pool->in_a_row + times : SAME_IN_A_ROW;
		return;
	}
	pool->session.size = pool->files.size = 0;
	if (cell__buf_add(&pool->session, request->session.data, request->session.size) < 0 ||
	    cell__buf_add(&pool->files, request->files.data, request->files.size) < 0)
		return; /* out of memory: nothing is learned, and no request will match */
	pool->in_a_row = times;
	pool->kind++;
	for (struct cell__sub_kernel *k = env->fresh; k; k = k->fresh_next)
		if (k->pooled && k->plan == pool->plan && k->kind && !k->asked) {
			k->asked = true;
			cell__sub_kernel_kill(k);
		}
}

/* Prefers a kernel that is confined for this session already, then one that is up, then any. */
struct cell__sub_kernel *cell__sub_pool_take(struct cell__sub_env *env, const struct cell__sandbox_request *request)
{
	struct cell__sandbox_plan *plan = request ? request->plan : NULL;
	struct cell__sub_pool *pool = cell__sub_pool_find(env, plan);
	uint64_t kind = request && pool && expects(pool, request) ? pool->kind : 0;
	struct cell__sub_kernel *best = NULL;
	int best_worth = -1;
	for (struct cell__sub_kernel *k = env->fresh; k; k = k->fresh_next) {
		int worth = 2 * (k->kind != 0) + k->up;
		if (k->pooled && k->plan == plan && k->state == CELL_KERNEL_POOLED && k->error.code == 0 && !k->asked &&
		    (k->kind == 0 || k->kind == kind) && worth > best_worth) {
			best = k;
			best_worth = worth;
		}
	}
	if (best)
		cell__sub_kernel_set_pooled(best, false);
	return best;
}

static void count_pool(const struct cell__sub_env *env, const struct cell__sandbox_plan *plan, int *ret_made, int *ret_up)
{
	*ret_made = *ret_up = 0;
	for (struct cell__sub_kernel *k = env->fresh; k; k = k->fresh_next)
		if (k->pooled && k->plan == plan && k->state != CELL_KERNEL_DYING) {
			++*ret_made;
			*ret_up += k->up;
		}
}

void cell__sub_pool_fill(struct cell__sub_env *env)
{
	int made, up;
	if (env->state != CELL_ENV_READY || !env->warm)
		return;
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next) {
		if (pool->deaths >= CELL_SUB_POOL_DEATHS_MAX)
			continue;
		count_pool(env, pool->plan, &made, &up);
		for (; made < pool_size(env); made++) {
			struct cell__sub_kernel *kernel = cell__sub_kernel_create(env, NULL);
			if (!kernel)
				return;
			cell__sub_kernel_set_pooled(kernel, true);
			kernel->plan = cell__sandbox_plan_ref(pool->plan);
		}
	}
	cell__sub_fork_waiting(env);
}

void cell__sub_handle_refill(uv_timer_t *timer)
{
	struct cell__sub_env *env = timer->data;
	cell__sub_pool_fill(env);
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next)
		cell__sub_pool_confine(env, pool); /* kernels made before a request was expected */
	cell__sub_env_rest(env);
}

/* ---- prewarms ---- */

/* Answers one that is out of the list; its memory goes as soon as the pool is done with its request. */
static void end_prewarm(struct cell__sub_prewarm *prewarm, const struct cell_error *err)
{
	prewarm->over = true;
	prewarm->done(prewarm->arg, err ? NULL : &prewarm->env->info, err);
	if (prewarm->preparing)
		return;
	cell__sub_request_destroy(prewarm->request);
	free(prewarm);
}

void cell__sub_end_prewarms(struct cell__sub_env *env, const struct cell_error *err)
{
	struct cell__sub_prewarm *prewarm = cell__take_ptr(env->prewarms);
	while (prewarm) {
		struct cell__sub_prewarm *next = prewarm->next;
		end_prewarm(prewarm, err);
		prewarm = next;
	}
}

/* Its request is prepared. */
static void learn_prewarm(struct cell__sub_prewarm *prewarm)
{
	struct cell__sub_env *env = prewarm->env;
	struct cell__sub_pool *pool = cell__sub_pool_use(env, prewarm->request->plan);
	if (pool) {
		cell__sub_pool_learn(env, pool, prewarm->request, SAME_IN_A_ROW); /* a request by name is expected at once */
		cell__sub_pool_confine(env, pool);
	}
}

static void handle_prewarm_prepared(void *arg, const struct cell_error *err)
{
	struct cell__sub_prewarm *prewarm = arg;
	struct cell__sub_env *env = prewarm->env;
	prewarm->preparing = false;
	if (prewarm->over) {
		cell__sub_request_destroy(prewarm->request);
		free(prewarm);
		return;
	}
	prewarm->err = *err;
	if (!err->code)
		learn_prewarm(prewarm);
	cell__sub_check_prewarms(env);
	cell__sub_pool_fill(env);
	cell__sub_check_prewarms(env);
}

/* Is the pool that a prewarm waits for there?  A failure to find out is its answer. */
static bool prewarm_done(struct cell__sub_env *env, struct cell__sub_prewarm *prewarm)
{
	int made, up;
	struct cell__sandbox_request *request = prewarm->request;
	if (prewarm->err.code)
		return true;
	if (!prewarm->preparing && request && !request->plan)
		prewarm->preparing = cell__sub_prepare(env, request, handle_prewarm_prepared, prewarm, &prewarm->err) == 0;
	if (prewarm->preparing)
		return false;
	if (prewarm->err.code)
		return true;
	struct cell__sub_pool *pool = cell__sub_pool_use(env, request ? request->plan : NULL);
	count_pool(env, request ? request->plan : NULL, &made, &up);
	return !pool || up >= pool_size(env) || pool->deaths >= CELL_SUB_POOL_DEATHS_MAX;
}

void cell__sub_check_prewarms(struct cell__sub_env *env)
{
	if (env->state != CELL_ENV_READY || !env->warm)
		return;
	for (struct cell__sub_prewarm **at = &env->prewarms; *at;) {
		struct cell__sub_prewarm *prewarm = *at;
		if (!prewarm_done(env, prewarm)) {
			at = &prewarm->next;
			continue;
		}
		*at = prewarm->next;
		struct cell_error err = prewarm->err;
		end_prewarm(prewarm, err.code ? &err : NULL);
	}
}

int cell__subprocess_prewarm(struct cell__subprocess *sub, const char *python, const char *preload, const char *zygote_owner,
			     struct cell__sandbox_request *request, cell__prewarmed_fn done, void *arg, struct cell_error *err)
{
	struct cell__sub_env *env;
	struct cell__sub_prewarm *prewarm = cell__alloc(1, sizeof *prewarm);
	if (!prewarm)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	enum cell__zygote_kind kind = request ? request->zygote : CELL_ZYGOTE_ISOLATED;
	if (!prewarm || cell__sub_env_find(sub, python, preload, zygote_owner, kind, &env, err) < 0 ||
	    cell__sub_zygote_start(env, err) < 0) {
		cell__sub_request_destroy(request);
		free(prewarm);
		return -1;
	}
	if (request && request->plan && request->from != env->files)
		cell__sandbox_plan_unref(cell__take_ptr(request->plan)); /* of a zygote that was replaced meanwhile */
	*prewarm = (struct cell__sub_prewarm){ .env = env, .request = request, .done = done, .arg = arg, .next = env->prewarms };
	env->prewarms = prewarm;
	if (request && request->plan)
		learn_prewarm(prewarm);
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next)
		pool->deaths = 0;
	if (env->state == CELL_ENV_READY && !env->warm)
		cell__spawn_client_tell(&sub->supervisor->client, CELL_SPAWN_ZYGOTE_WARM, env->zygote_id, 0);
	cell__sub_check_prewarms(env); /* determines which pool it is */
	cell__sub_pool_fill(env);
	cell__sub_check_prewarms(env);
	return 0;
}
