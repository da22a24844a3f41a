/*
 * The `subprocess` executor: kernels forked from a warm zygote.
 *
 * An environment (interpreter + preloads) has at most one zygote:
 *
 *     none ──first use──▶ starting ──READY──▶ ready ──exit──▶ none (kernels live on; the next use starts another)
 *                             └──exit, timeout──▶ none, and everybody who waited gets the reason
 *
 * A kernel:
 *
 *     waiting (for the zygote) ──▶ forking ──▶ up (HELLO) ──▶ pooled ──open──▶ configured (INIT) ──READY──▶ live
 *                                                     └─────────────────────────────▲
 *     any ──close, death──▶ dying ──KERNEL_EXITED──▶ exited() and gone
 *
 * A pooled kernel of a sandbox is confined but for what the session knows.  Where the same kind of session comes again and
 * again (the same workspace, the same packages), most of the pool is told that in advance and confined to the last step; such
 * a kernel serves that kind only, and goes when another kind comes.
 *
 * Invariants: a kernel with an owner is never in the pool; a pooled kernel has seen nothing of any session; only
 * cell__sub_kernel_gone() frees one, and it runs from the spawner's messages or from a deferred task, never from inside a
 * call of the session's.
 */
#define _GNU_SOURCE
#include "executor/subprocess.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "executor/answer.h"
#include "executor/link.h"
#include "executor/turns.h"
#include "sandbox/cgroup.h"
#include "sandbox/plan.h"
#include "spawn/hub.h"
#include "spawn/proc.h"

#define FORKS_IN_FLIGHT 64  /* per zygote; far below what its socket takes */
#define REFILL_DELAY_MS 5   /* the session that emptied the pool goes first */
#define SILENT_END_MS 300   /* a kernel that closed its socket but does not exit is killed */
#define POOL_DEATHS_MAX 3   /* pooled kernels that die in a row: stop making more */
#define FORK_TRIES 3
#define POOLS_MAX 8         /* kinds of kernels made ahead, per environment */
#define LONG_CELL_MS 500    /* a sandbox's cell that runs longer yields to others from then on (turns.h) */
#define INTERRUPT_AGAIN_MS 100 /* an interrupt that the code has not heard of by then is sent again ... */
#define INTERRUPT_TRIES 3      /* ... so often */
#define SAME_IN_A_ROW 2     /* sessions of one kind: the next is expected to be the same */

enum cell__sub_env_state { CELL_ENV_NONE, CELL_ENV_STARTING, CELL_ENV_READY };

/* Kernels made ahead, all with the same plan. */
struct cell__sub_pool {
	struct cell__sandbox_plan *plan; /* NULL: not sandboxed */
	int deaths;
	/* What the last session was, and how many in a row were the same. */
	struct cell__buf session, files;
	unsigned in_a_row;
	uint64_t kind; /* grows with every change */
	struct cell__sub_pool *next;
};

struct cell__sub_prewarm {
	struct cell__sandbox_request *request; /* or NULL */
	void (*done)(void *arg, const struct cell_env_info *info, const struct cell_error *err);
	void *arg;
	struct cell__sub_prewarm *next;
};

struct cell__sub_env {
	struct cell__subprocess *sub;
	char *python, *preload;
	enum cell__sub_env_state state;
	uint64_t zygote_id;
	bool warm;
	int in_flight;
	struct cell__sub_pool *pools; /* those that somebody has used */
	struct cell__plan_env files; /* the interpreter's; known when the zygote is ready */
	char **index_hosts;          /* "host:port" of the package index that its installer uses; NULL-terminated */
	int64_t started_us;
	struct cell_env_info info;
	struct cell__sub_prewarm *prewarms;
	uv_timer_t timer;  /* start timeout while starting, pool refill while ready */
	struct cell__sub_env *next;
};

enum cell__sub_kernel_state {
	CELL_KERNEL_WAITING,
	CELL_KERNEL_FORKING,
	CELL_KERNEL_POOLED,
	CELL_KERNEL_OPENING,
	CELL_KERNEL_LIVE,
	CELL_KERNEL_DYING,
};

struct cell__sub_kernel {
	struct cell__kernel base;
	struct cell__subprocess *sub;
	struct cell__sub_env *env;
	uint64_t id;
	enum cell__sub_kernel_state state;
	struct cell__link *link;
	pid_t pid;
	bool forking; /* counted in env->in_flight */
	bool up;      /* HELLO seen */
	bool ready;   /* READY seen */
	bool pooled;  /* made for the pool and not taken yet */
	bool asked;   /* we closed it */
	bool timing;  /* the timer waits for a cell to become a long one, or for it to hear of its interrupt */
	int unheard;  /* signals that were sent again */
	struct cell__turn turn;
	int tries;
	struct cell_error error;
	struct cell__sandbox_request *request; /* NULL: not sandboxed, or in the pool */
	struct cell__sandbox_plan *plan;       /* NULL: not sandboxed, or not prepared yet */
	uint64_t kind;                         /* of its pool, that it is confined for already; 0: none */
	struct cell_plan_report report;        /* of its shell */
	int listen_fd;                         /* of its way out; -1: none */
	unsigned skipped[16];                  /* steps that it passed over itself */
	size_t n_skipped;
	const struct cell__kernel_events *events; /* NULL: nobody owns it */
	void *owner;
	char *init; /* the INIT frame's JSON; kept until READY, in case the fork has to be repeated */
	uv_timer_t timer;
	struct cell__task gone;
	struct cell__sub_kernel *next;
};

struct cell__subprocess {
	struct cell__executor_host *host;
	struct cell__spawn_hub *hub;
	char *kernel_dir;
	int pool_size;
	int64_t start_timeout_ms;
	struct cell__sub_env *envs;
	struct cell__sub_kernel *kernels;
	bool destroying;
	struct cell__turns turns;
	int open_handles;
	void (*destroyed)(void *arg);
	void *destroyed_arg;
};

static void cell__sub_pool_fill(struct cell__sub_env *env);
static void cell__sub_fork_waiting(struct cell__sub_env *env);
static void cell__sub_check_prewarms(struct cell__sub_env *env);
static const struct cell__link_events link_events;

#define CELL_SUB_LOG(sub, level, ...) (sub)->host->log((sub)->host->log_arg, level, __VA_ARGS__)

/* ---- kernels ---- */

static void unlist_kernel(struct cell__sub_kernel *kernel)
{
	for (struct cell__sub_kernel **at = &kernel->sub->kernels; *at; at = &(*at)->next)
		if (*at == kernel) {
			*at = kernel->next;
			return;
		}
}

static void cell__sub_maybe_destroyed(struct cell__subprocess *sub)
{
	if (!sub->destroying || sub->open_handles > 0)
		return;
	void (*done)(void *) = sub->destroyed;
	void *arg = sub->destroyed_arg;
	free(sub->kernel_dir);
	free(sub);
	done(arg);
}

static void cell__sub_request_destroy(struct cell__sandbox_request *request)
{
	if (!request)
		return;
	cell__sandbox_plan_unref(request->plan);
	cell__buf_finish(&request->session);
	cell__buf_finish(&request->files);
	request->destroy(request);
}

static struct cell__sandbox_plan *cell__sandbox_plan_ref(struct cell__sandbox_plan *plan)
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

static struct cell__sub_pool *cell__sub_pool_find(const struct cell__sub_env *env, const struct cell__sandbox_plan *plan)
{
	struct cell__sub_pool *pool = env->pools;
	while (pool && pool->plan != plan)
		pool = pool->next;
	return pool;
}

/* Somebody uses kernels of this kind: some are made ahead from now on. */
static struct cell__sub_pool *cell__sub_pool_use(struct cell__sub_env *env, struct cell__sandbox_plan *plan)
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
static void cell__sub_pool_confine(struct cell__sub_env *env, struct cell__sub_pool *pool)
{
	int open = 0, kept = env->sub->pool_size > 1; /* one stays good for any session of its plan */
	if (pool->in_a_row < SAME_IN_A_ROW)
		return;
	for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next) {
		if (k->env != env || !k->pooled || k->plan != pool->plan || k->kind || k->state != CELL_KERNEL_POOLED || !k->up)
			continue;
		if (++open > kept &&
		    cell__link_send(k->link, CELL_FRAME_INIT, 0, NULL, 0, pool->session.data, pool->session.size, NULL) == 0)
			k->kind = pool->kind;
	}
}

static void cell__sub_kernel_kill(struct cell__sub_kernel *kernel);

/* A session is opened.  Kernels that were confined for another kind are of no use any more. */
static void cell__sub_pool_learn(struct cell__sub_env *env, struct cell__sub_pool *pool, const struct cell__sandbox_request *request,
				 unsigned times)
{
	if (expects(pool, request)) {
		pool->in_a_row = pool->in_a_row + times < SAME_IN_A_ROW ? pool->in_a_row + times : SAME_IN_A_ROW;
		return;
	}
	pool->session.size = pool->files.size = 0;
	if (cell__buf_add(&pool->session, request->session.data, request->session.size) < 0 ||
	    cell__buf_add(&pool->files, request->files.data, request->files.size) < 0)
		return; /* without memory nothing is learned: what is there equals nothing */
	pool->in_a_row = times;
	pool->kind++;
	for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next)
		if (k->env == env && k->pooled && k->plan == pool->plan && k->kind && !k->asked) {
			k->asked = true;
			cell__sub_kernel_kill(k);
		}
}

static void handle_kernel_closed(uv_handle_t *handle)
{
	struct cell__sub_kernel *kernel = handle->data;
	struct cell__subprocess *sub = kernel->sub;
	free(kernel->init);
	cell__sub_request_destroy(kernel->request);
	cell__close_fd(&kernel->listen_fd);
	cell__sandbox_plan_unref(kernel->plan);
	free(kernel);
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}

static void cell__sub_kernel_not_forking(struct cell__sub_kernel *kernel)
{
	kernel->env->in_flight -= kernel->forking;
	kernel->forking = false;
}

/* The end of a kernel: tells the owner, lets the memory go. */
static void cell__sub_kernel_gone(struct cell__sub_kernel *kernel, const struct cell__exit *how)
{
	struct cell__sub_env *env = kernel->env;
	bool pooled = kernel->pooled;
	cell__sub_kernel_not_forking(kernel);
	if (kernel->link) {
		cell__link_drain(kernel->link);
		cell__link_close(kernel->link);
		kernel->link = NULL;
	}
	unlist_kernel(kernel);
	cell__turns_leave(&kernel->sub->turns, &kernel->turn, true);
	if (kernel->request)
		cell__sandbox_silence(kernel->request);
	if (kernel->events)
		kernel->events->exited(kernel->owner, how);
	uv_close((uv_handle_t *)&kernel->timer, handle_kernel_closed);
	if (kernel->sub->destroying)
		return;
	struct cell__sub_pool *pool = cell__sub_pool_find(env, kernel->plan);
	if (pooled && pool && !how->asked && kernel->kind)
		pool->in_a_row = 0; /* what it was confined for may not be possible; whoever opens a session is told */
	else if (pooled && pool && !how->asked && ++pool->deaths >= POOL_DEATHS_MAX)
		CELL_SUB_LOG(kernel->sub, CELL_LOG_WARN, "kernels of %s die in the pool; it is not refilled", env->python);
	cell__sub_fork_waiting(env);
	cell__sub_pool_fill(env);
	cell__sub_check_prewarms(env);
}

static void run_gone(struct cell__task *task)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)((char *)task - offsetof(struct cell__sub_kernel, gone));
	struct cell__exit how = { .asked = kernel->asked, .error = kernel->error };
	cell__sub_kernel_gone(kernel, &how);
}

/* For ends that no process reports: exited() must not come from inside the call that caused it. */
static void cell__sub_kernel_gone_later(struct cell__sub_kernel *kernel)
{
	cell__sub_kernel_not_forking(kernel);
	kernel->state = CELL_KERNEL_DYING;
	kernel->gone.fn = run_gone;
	cell__loop_post(kernel->sub->host->loop, &kernel->gone);
}

/* Finds the plan of a sandboxed kernel, now that its environment is known. */
static int prepare(struct cell__sub_kernel *kernel, struct cell_error *err)
{
	struct cell__sandbox_request *request = kernel->request;
	if (!request->plan) {
		if (request->prepare(request, &kernel->env->files, err) < 0)
			return -1;
		struct cell__sub_pool *pool = cell__sub_pool_use(kernel->env, request->plan);
		if (pool)
			cell__sub_pool_learn(kernel->env, pool, request, 1);
	}
	if (!kernel->plan)
		kernel->plan = cell__sandbox_plan_ref(request->plan);
	return 0;
}

static int cell__sub_kernel_fork(struct cell__sub_kernel *kernel, struct cell_error *err)
{
	struct cell__subprocess *sub = kernel->sub;
	struct cell__link_fds fds;
	if (kernel->request && prepare(kernel, err) < 0)
		return -1;
	if (cell__link_create(sub->host->loop, &link_events, kernel, &kernel->link, &fds, err) < 0)
		return -1;
	int all[CELL_SPAWN_KERNEL_FDS] = { fds.fd[0], fds.fd[1], fds.fd[2], fds.fd[3], kernel->plan ? kernel->plan->fd : -1 };
	int rc = cell__spawn_client_send(&sub->hub->client, CELL_SPAWN_KERNEL_FORK, kernel->id,
					 (int64_t)kernel->env->zygote_id, kernel->pooled, NULL, 0, all, kernel->plan ? 5 : 4,
					 err);
	cell__link_fds_close(&fds);
	if (rc < 0) {
		cell__link_close(kernel->link);
		kernel->link = NULL;
		return -1;
	}
	kernel->state = CELL_KERNEL_FORKING;
	kernel->tries++;
	kernel->forking = true;
	kernel->env->in_flight++;
	return 0;
}

static struct cell__sub_kernel *cell__sub_kernel_create(struct cell__sub_env *env, struct cell_error *err)
{
	struct cell__sub_kernel *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	struct cell__subprocess *sub = env->sub;
	kernel->base.executor = &cell__subprocess_executor;
	kernel->sub = sub;
	kernel->env = env;
	kernel->id = sub->hub->next_id++;
	kernel->state = CELL_KERNEL_WAITING;
	kernel->listen_fd = -1;
	uv_timer_init(&sub->host->loop->uv, &kernel->timer);
	kernel->timer.data = kernel;
	sub->open_handles++;
	kernel->next = sub->kernels;
	sub->kernels = kernel;
	return kernel;
}

static void cell__sub_kernel_kill(struct cell__sub_kernel *kernel)
{
	cell__spawn_client_tell(&kernel->sub->hub->client, CELL_SPAWN_KERNEL_KILL, kernel->id, 0);
}

/* Hands the session's settings over. */
static void cell__sub_kernel_configure(struct cell__sub_kernel *kernel)
{
	struct cell_error err = { 0 };
	kernel->state = CELL_KERNEL_OPENING;
	const struct cell__buf *session = kernel->request && !kernel->kind ? &kernel->request->session : NULL;
	if (cell__link_send(kernel->link, CELL_FRAME_INIT, 0, kernel->init, strlen(kernel->init),
			    session ? session->data : NULL, session ? session->size : 0, &err) < 0) {
		kernel->error = err;
		cell__sub_kernel_kill(kernel);
	}
}

static void handle_long_cell(uv_timer_t *timer)
{
	struct cell__sub_kernel *kernel = timer->data;
	kernel->timing = false;
	cell__turns_long(&kernel->sub->turns, &kernel->turn);
}

static void cell__sub_tell_share(struct cell__turn *turn, enum cell_cgroup_share share)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)((char *)turn - offsetof(struct cell__sub_kernel, turn));
	cell__spawn_client_tell(&kernel->sub->hub->client, CELL_SPAWN_KERNEL_SHARE, kernel->id, share);
	if (kernel->link)
		cell__link_yield(kernel->link, share == CELL_SHARE_REST);
}

/* Counts from now on, as if the cell had just begun. */
static void time_cell(struct cell__sub_kernel *kernel)
{
	if (kernel->request && !kernel->asked)
		kernel->timing = uv_timer_start(&kernel->timer, handle_long_cell, LONG_CELL_MS, 0) == 0;
}

static void cell_begins(struct cell__sub_kernel *kernel)
{
	cell__turns_leave(&kernel->sub->turns, &kernel->turn, kernel->asked);
	cell__turns_quick(&kernel->sub->turns);
	time_cell(kernel);
}

static void cell_ended(struct cell__sub_kernel *kernel)
{
	if (kernel->timing && !kernel->asked)
		uv_timer_stop(&kernel->timer);
	kernel->timing = false;
}

/* ---- what a kernel says ---- */

static void handle_silent_end(uv_timer_t *timer)
{
	cell__sub_kernel_kill(timer->data);
}

static void handle_link_broken(void *owner, const char *reason)
{
	struct cell__sub_kernel *kernel = owner;
	if (!reason) {
		/* Most likely it is dying; the spawner will say how.  Give it a moment to be told apart from a trick. */
		uv_timer_start(&kernel->timer, handle_silent_end, SILENT_END_MS, 0);
		return;
	}
	if (kernel->error.code == 0)
		cell_fail(&kernel->error, CELL_E_PROTOCOL, 0, "the kernel broke the protocol: %s", reason);
	cell__sub_kernel_kill(kernel);
}

/*
 * Live needs both the kernel's word and the spawner's: the two come by different ways in any order, and a kernel
 * that the spawner does not know yet cannot be interrupted.
 */
static void cell__sub_kernel_maybe_live(struct cell__sub_kernel *kernel)
{
	if (kernel->state != CELL_KERNEL_OPENING || !kernel->ready || kernel->pid == 0)
		return;
	if (kernel->request && kernel->listen_fd >= 0 &&
	    cell__sandbox_listen(kernel->request, cell__take_fd(&kernel->listen_fd), (const char *const *)kernel->env->index_hosts,
				 &kernel->error) < 0) {
		kernel->state = CELL_KERNEL_DYING;
		cell__sub_kernel_kill(kernel);
		return;
	}
	kernel->state = CELL_KERNEL_LIVE;
	free(cell__take_ptr(kernel->init));
	if (kernel->request)
		cell__sandbox_ready(kernel->request, &kernel->report, sizeof kernel->report, kernel->skipped, kernel->n_skipped);
	kernel->events->ready(kernel->owner);
}

static void handle_ready_frame(struct cell__sub_kernel *kernel, const struct cell_frame *frame)
{
	if (kernel->state != CELL_KERNEL_OPENING || kernel->ready) {
		handle_link_broken(kernel, "READY without INIT");
		return;
	}
	json_error_t problem;
	json_t *ready = json_loadb((const char *)frame->json, frame->json_size, 0, &problem);
	const char *message = NULL;
	if (!ready) {
		handle_link_broken(kernel, "READY that is not JSON");
		return;
	}
	const char *code = "";
	int step = -1, sys = 0;
	json_unpack(ready, "{s?{s?s, s?s, s?i, s?i}}", "error", "message", &message, "code", &code, "step", &step, "sys", &sys);
	json_t *skipped = json_object_get(ready, "skipped");
	for (size_t i = 0; i < json_array_size(skipped) && i < sizeof kernel->skipped / sizeof *kernel->skipped; i++)
		kernel->skipped[kernel->n_skipped++] = (unsigned)json_integer_value(json_array_get(skipped, i));
	if (json_object_get(ready, "error")) {
		if (kernel->request && strcmp(code, "sandbox") == 0)
			cell__sandbox_failure(kernel->request, step, sys, &kernel->error);
		else
			cell_fail(&kernel->error, CELL_E_INVALID, 0, "%s", message ? message : "the kernel refused the session");
		kernel->state = CELL_KERNEL_DYING;
		cell__sub_kernel_kill(kernel);
	} else {
		kernel->ready = true;
		cell__sub_kernel_maybe_live(kernel);
	}
	json_decref(ready);
}

static void handle_frame(void *owner, const struct cell_frame *frame)
{
	struct cell__sub_kernel *kernel = owner;
	struct cell__answer answer;
	struct cell__bundle bundle;
	json_t *memory = NULL;
	const char *problem = NULL;
	switch (frame->type) {
	case CELL_FRAME_HELLO:
		if (kernel->up) {
			problem = "HELLO twice";
			break;
		}
		kernel->up = true;
		if (kernel->pooled) {
			struct cell__sub_pool *pool = cell__sub_pool_find(kernel->env, kernel->plan);
			if (pool) {
				pool->deaths = 0;
				cell__sub_pool_confine(kernel->env, pool);
			}
			cell__sub_check_prewarms(kernel->env);
		}
		break;
	case CELL_FRAME_READY:
		handle_ready_frame(kernel, frame);
		break;
	case CELL_FRAME_DISPLAY:
		if (kernel->state != CELL_KERNEL_LIVE)
			problem = "DISPLAY before READY";
		else if (!(problem = cell__answer_display(frame, &bundle, &memory)))
			kernel->events->display(kernel->owner, &bundle);
		break;
	case CELL_FRAME_RESULT:
		if (kernel->state != CELL_KERNEL_LIVE)
			problem = "RESULT before READY";
		else if (!(problem = cell__answer_result(frame, &answer, &memory))) {
			cell_ended(kernel);
			kernel->events->result(kernel->owner, frame->id, &answer);
		}
		break;
	case CELL_FRAME_CALL:
		if (kernel->state != CELL_KERNEL_LIVE)
			problem = "CALL before READY";
		else
			problem = kernel->events->call(kernel->owner, frame->id, (const char *)frame->json, frame->json_size,
						       frame->raw, frame->raw_size);
		break;
	default:
		problem = "a frame that only the host sends";
	}
	if (problem)
		handle_link_broken(kernel, problem);
	json_decref(memory);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__sub_kernel *kernel = owner;
	if (kernel->events)
		kernel->events->output(kernel->owner, stream, bytes, size);
	else
		CELL_SUB_LOG(kernel->sub, CELL_LOG_WARN, "an idle kernel wrote %zu bytes", size);
}

static const struct cell__link_events link_events = {
	.frame = handle_frame, .output = handle_output, .broken = handle_link_broken
};

/* ---- environments ---- */

static void cell__sub_end_prewarms(struct cell__sub_env *env, const struct cell_error *err)
{
	struct cell__sub_prewarm *prewarm = cell__take_ptr(env->prewarms);
	while (prewarm) {
		struct cell__sub_prewarm *next = prewarm->next;
		prewarm->done(prewarm->arg, err ? NULL : &env->info, err);
		cell__sub_request_destroy(prewarm->request);
		free(prewarm);
		prewarm = next;
	}
}

/* Everybody who waits for this environment's zygote gets the reason. */
static void fail_waiting(struct cell__sub_env *env, const struct cell_error *err)
{
	for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next)
		if (k->env == env && k->state == CELL_KERNEL_WAITING) {
			k->error = *err;
			cell__sub_kernel_gone_later(k);
		}
	cell__sub_end_prewarms(env, err);
}

static void handle_start_timeout(uv_timer_t *timer)
{
	struct cell__sub_env *env = timer->data;
	struct cell_error err;
	cell_fail(&err, CELL_E_TIMEOUT, 0, "%s was not ready after %lld s; is it Python, and do its preloads end?",
		  env->python, (long long)(env->sub->start_timeout_ms / 1000));
	env->state = CELL_ENV_NONE;
	cell__spawn_client_tell(&env->sub->hub->client, CELL_SPAWN_ZYGOTE_STOP, env->zygote_id, 0);
	env->zygote_id = 0;
	fail_waiting(env, &err);
}

static int check_python(const char *python, struct cell_error *err)
{
	struct stat st;
	if (stat(python, &st) < 0) {
		struct stat link;
		if (errno == ENOENT && lstat(python, &link) == 0)
			return cell_fail(err, CELL_E_PYTHON, 0,
					 "%s is a link to nothing: the Python its venv was made from is gone; make the venv anew",
					 python);
		return cell_fail(err, CELL_E_PYTHON, errno, "interpreter %s", python);
	}
	if (!S_ISREG(st.st_mode) || access(python, X_OK) < 0)
		return cell_fail(err, CELL_E_PYTHON, 0, "interpreter %s is not a program; give the path of a python3", python);
	return 0;
}

/* argv and environment of a zygote: NUL-terminated strings, one after another. */
static int zygote_payload(struct cell__sub_env *env, struct cell__buf *payload)
{
	struct cell__subprocess *sub = env->sub;
	CELL_AUTO_BUF struct cell__buf script = CELL_BUF_INIT;
	if (cell__buf_printf(&script, "%s/workcell_kernel/zygote.py", sub->kernel_dir) < 0)
		return -1;
	/* The zygote's own settings; sessions get theirs in INIT.  HOME lets site find the user's own packages. */
	CELL_AUTO_BUF struct cell__buf home = CELL_BUF_INIT;
	if (cell__buf_printf(&home, "HOME=%s", cell__home_dir()) < 0)
		return -1;
	const char *const strings[] = { env->python,  "-E", script.data, "3", "4", env->preload,
					"LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", home.data };
	for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
		if (cell__buf_add(payload, strings[i], strlen(strings[i]) + 1) < 0)
			return -1;
	return 0;
}

static int cell__sub_zygote_start(struct cell__sub_env *env, struct cell_error *err)
{
	struct cell__subprocess *sub = env->sub;
	CELL_AUTO_BUF struct cell__buf payload = CELL_BUF_INIT;
	if (env->state != CELL_ENV_NONE)
		return 0;
	if (check_python(env->python, err) < 0 || cell__spawn_hub_start(sub->hub, err) < 0)
		return -1;
	if (zygote_payload(env, &payload) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	env->zygote_id = sub->hub->next_id++;
	if (cell__spawn_client_send(&sub->hub->client, CELL_SPAWN_ZYGOTE_START, env->zygote_id, 6, 0, payload.data,
				    payload.size, NULL, 0, err) < 0)
		return -1;
	env->state = CELL_ENV_STARTING;
	env->warm = false;
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next)
		pool->deaths = 0;
	env->started_us = cell__now_us();
	if (sub->start_timeout_ms > 0)
		uv_timer_start(&env->timer, handle_start_timeout, (uint64_t)sub->start_timeout_ms, 0);
	return 0;
}

static int cell__sub_env_find(struct cell__subprocess *sub, const char *python, const char *preload,
			      struct cell__sub_env **ret_env, struct cell_error *err)
{
	for (struct cell__sub_env *env = sub->envs; env; env = env->next)
		if (strcmp(env->python, python) == 0 && strcmp(env->preload, preload) == 0) {
			*ret_env = env;
			return 0;
		}
	struct cell__sub_env *env = cell__alloc(1, sizeof *env);
	if (env) {
		env->python = cell__strdup(python);
		env->preload = cell__strdup(preload);
	}
	if (!env || !env->python || !env->preload) {
		if (env) {
			free(env->python);
			free(env->preload);
		}
		free(env);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	env->sub = sub;
	uv_timer_init(&sub->host->loop->uv, &env->timer);
	env->timer.data = env;
	sub->open_handles++;
	if (!sub->turns.loop) {
		cell__turns_init(&sub->turns, &sub->host->loop->uv, cell__sub_tell_share);
		sub->open_handles++;
	}
	env->next = sub->envs;
	sub->envs = env;
	*ret_env = env;
	return 0;
}

static void cell__sub_fork_waiting(struct cell__sub_env *env)
{
	if (env->state != CELL_ENV_READY)
		return;
	/* The list is newest first; who waited longest goes first. */
	while (env->in_flight < FORKS_IN_FLIGHT) {
		struct cell__sub_kernel *oldest = NULL;
		for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next)
			if (k->env == env && k->state == CELL_KERNEL_WAITING)
				oldest = k;
		if (!oldest)
			return;
		if (cell__sub_kernel_fork(oldest, &oldest->error) < 0)
			cell__sub_kernel_gone_later(oldest);
		else if (oldest->init)
			cell__sub_kernel_configure(oldest); /* the socket holds it until the kernel is up */
	}
}

static void count_pool(const struct cell__sub_env *env, const struct cell__sandbox_plan *plan, int *ret_made, int *ret_up)
{
	*ret_made = *ret_up = 0;
	for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next)
		if (k->env == env && k->pooled && k->plan == plan && k->state != CELL_KERNEL_DYING) {
			++*ret_made;
			*ret_up += k->up;
		}
}

static void cell__sub_pool_fill(struct cell__sub_env *env)
{
	int made, up;
	if (env->state != CELL_ENV_READY || !env->warm)
		return;
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next) {
		if (pool->deaths >= POOL_DEATHS_MAX)
			continue;
		count_pool(env, pool->plan, &made, &up);
		for (; made < env->sub->pool_size; made++) {
			struct cell__sub_kernel *kernel = cell__sub_kernel_create(env, NULL);
			if (!kernel)
				return;
			kernel->pooled = true;
			kernel->plan = cell__sandbox_plan_ref(pool->plan);
		}
	}
	cell__sub_fork_waiting(env);
}

static void cell__sub_handle_refill(uv_timer_t *timer)
{
	struct cell__sub_env *env = timer->data;
	cell__sub_pool_fill(env);
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next)
		cell__sub_pool_confine(env, pool); /* those that were there before anything was expected */
}

/* Is the pool that a prewarm waits for there?  A failure to find out is its answer. */
static bool prewarm_done(struct cell__sub_env *env, struct cell__sub_prewarm *prewarm, struct cell_error *err)
{
	int made, up;
	struct cell__sandbox_request *request = prewarm->request;
	bool first = request && !request->plan;
	if (first && request->prepare(request, &env->files, err) < 0)
		return true;
	struct cell__sub_pool *pool = cell__sub_pool_use(env, request ? request->plan : NULL);
	if (first && pool) {
		cell__sub_pool_learn(env, pool, request, SAME_IN_A_ROW); /* what is asked for by name is expected at once */
		cell__sub_pool_confine(env, pool);
	}
	count_pool(env, request ? request->plan : NULL, &made, &up);
	return !pool || up >= env->sub->pool_size || pool->deaths >= POOL_DEATHS_MAX;
}

static void cell__sub_check_prewarms(struct cell__sub_env *env)
{
	if (env->state != CELL_ENV_READY || !env->warm)
		return;
	for (struct cell__sub_prewarm **at = &env->prewarms; *at;) {
		struct cell__sub_prewarm *prewarm = *at;
		struct cell_error err = { 0 };
		if (!prewarm_done(env, prewarm, &err)) {
			at = &prewarm->next;
			continue;
		}
		*at = prewarm->next;
		prewarm->done(prewarm->arg, err.code ? NULL : &env->info, err.code ? &err : NULL);
		cell__sub_request_destroy(prewarm->request);
		free(prewarm);
	}
}

/* ---- what the spawner says ---- */

static struct cell__sub_env *env_of_zygote(struct cell__subprocess *sub, uint64_t id)
{
	struct cell__sub_env *env = sub->envs;
	while (env && env->zygote_id != id)
		env = env->next;
	return env;
}

static struct cell__sub_kernel *kernel_by_id(struct cell__subprocess *sub, uint64_t id)
{
	struct cell__sub_kernel *kernel = sub->kernels;
	while (kernel && kernel->id != id)
		kernel = kernel->next;
	return kernel;
}

static void take_paths(struct cell__sub_env *env, json_t *list)
{
	size_t n = json_array_size(list), kept = 0;
	const char **paths = cell__alloc(n + 1, sizeof *paths);
	for (size_t i = 0; paths && i < n; i++) {
		const char *path = json_string_value(json_array_get(list, i));
		if (path && path[0] == '/')
			paths[kept++] = path;
	}
	cell__plan_env_finish(&env->files);
	/* Without memory a sandboxed kernel does not find its files, and says so. */
	if (paths)
		(void)cell__plan_env_init(&env->files, paths);
	free(paths);
}

static void free_hosts(struct cell__sub_env *env)
{
	for (char **host = env->index_hosts; host && *host; host++)
		free(*host);
	free(cell__take_ptr(env->index_hosts));
}

static void take_hosts(struct cell__sub_env *env, json_t *list)
{
	size_t n = json_array_size(list), kept = 0;
	free_hosts(env);
	env->index_hosts = cell__alloc(n + 1, sizeof *env->index_hosts);
	for (size_t i = 0; env->index_hosts && i < n; i++) {
		const char *host = json_string_value(json_array_get(list, i));
		if (host && (env->index_hosts[kept] = cell__strdup(host)))
			kept++;
	}
}

static void cell__sub_zygote_ready(struct cell__sub_env *env, int64_t pid, const char *payload, size_t size)
{
	const char *version = "", *ipython = "", *preload_error = NULL;
	json_t *ready = json_loadb(payload, size, 0, NULL);
	take_paths(env, json_object_get(ready, "paths"));
	take_hosts(env, json_object_get(ready, "index"));
	if (ready)
		json_unpack(ready, "{s?s, s?s, s?s}", "version", &version, "ipython", &ipython, "preload_error",
			    &preload_error);
	uv_timer_stop(&env->timer);
	if (preload_error) {
		struct cell_error err;
		cell_fail(&err, CELL_E_PRELOAD, 0, "%s cannot preload %.160s", env->python, preload_error);
		env->state = CELL_ENV_NONE;
		cell__spawn_client_tell(&env->sub->hub->client, CELL_SPAWN_ZYGOTE_STOP, env->zygote_id, 0);
		env->zygote_id = 0;
		fail_waiting(env, &err);
	} else {
		env->state = CELL_ENV_READY;
		env->info = (struct cell_env_info){
			.size = sizeof env->info,
			.zygote_pid = pid,
			.start_ms = (double)(cell__now_us() - env->started_us) / 1000.0,
		};
		snprintf(env->info.python, sizeof env->info.python, "%s", env->python);
		snprintf(env->info.version, sizeof env->info.version, "%s", version);
		snprintf(env->info.ipython, sizeof env->info.ipython, "%s", ipython);
		CELL_SUB_LOG(env->sub, CELL_LOG_INFO, "%s (Python %s) is ready", env->python, env->info.version);
		uv_timer_start(&env->timer, cell__sub_handle_refill, REFILL_DELAY_MS, 0);
		if (env->prewarms)
			cell__spawn_client_tell(&env->sub->hub->client, CELL_SPAWN_ZYGOTE_WARM, env->zygote_id, 0);
		cell__sub_fork_waiting(env);
	}
	json_decref(ready);
}

/* The last line of what a zygote wrote before it died that speaks of an error, or else the last one. */
static void last_words(const char *text, size_t size, char *out, size_t out_size)
{
	const char *best = NULL;
	size_t best_size = 0;
	bool best_is_error = false;
	for (const char *at = text; at < text + size;) {
		const char *end = memchr(at, '\n', (size_t)(text + size - at));
		size_t n = (size_t)((end ? end : text + size) - at);
		bool is_error = memmem(at, n, "rror", 4) || memmem(at, n, "too old", 7);
		if (n > 0 && (is_error || !best_is_error)) {
			best = at;
			best_size = n;
			best_is_error = is_error;
		}
		at += n + 1;
	}
	size_t n = 0;
	for (size_t i = 0; i < best_size && n + 1 < out_size; i++)
		out[n++] = (unsigned char)best[i] >= 0x20 && (unsigned char)best[i] < 0x7f ? best[i] : '?';
	out[n] = '\0';
}

static void cell__sub_zygote_exited(struct cell__sub_env *env, int64_t status, int64_t failure, const char *payload,
				    size_t size)
{
	bool starting = env->state == CELL_ENV_STARTING;
	struct cell_error err = { 0 };
	char words[120], how[48];
	last_words(payload, size, words, sizeof words);
	if (status >= 0 && WIFSIGNALED((int)status))
		snprintf(how, sizeof how, "died of signal %d", WTERMSIG((int)status));
	else
		snprintf(how, sizeof how, "ended with status %d", status >= 0 ? WEXITSTATUS((int)status) : -1);
	if (failure)
		cell_fail(&err, CELL_E_PYTHON, (int)failure, "start interpreter %s", env->python);
	else if (words[0])
		cell_fail(&err, CELL_E_PYTHON, 0, "%s %s before it was ready: %s", env->python, how, words);
	else
		cell_fail(&err, CELL_E_PYTHON, 0, "%s %s before it was ready; is it a CPython 3.9 or later?", env->python,
			  how);
	env->state = CELL_ENV_NONE;
	env->zygote_id = 0;
	uv_timer_stop(&env->timer);
	if (starting) {
		fail_waiting(env, &err);
		return;
	}
	CELL_SUB_LOG(env->sub, CELL_LOG_WARN, "the zygote of %s %s; the next use starts another", env->python, how);
	/* Whoever still waits is served by a new one. */
	bool wanted = env->prewarms != NULL;
	for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next)
		wanted |= k->env == env && k->state == CELL_KERNEL_WAITING;
	if (wanted && cell__sub_zygote_start(env, &err) < 0)
		fail_waiting(env, &err);
}

/* A kernel whose fork never happened because its zygote died: another zygote does it. */
static bool try_again(struct cell__sub_kernel *kernel)
{
	if (kernel->pid != 0 || kernel->asked || kernel->error.code != 0 || !kernel->init || kernel->tries >= FORK_TRIES)
		return false;
	cell__sub_kernel_not_forking(kernel);
	cell__link_close(cell__take_ptr(kernel->link));
	kernel->state = CELL_KERNEL_WAITING;
	kernel->up = kernel->ready = false;
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
	if (try_again(kernel))
		return;
	if (kernel->pid == 0 && how.error.code == 0)
		cell_fail(&how.error, CELL_E_KERNEL, 0, "the zygote died while it forked the kernel; try again");
	cell__sub_kernel_gone(kernel, &how);
}

static void kernel_forked(struct cell__sub_kernel *kernel, int64_t pid, int64_t failure, const char *payload, size_t size)
{
	cell__sub_kernel_not_forking(kernel);
	if (payload && size == sizeof kernel->report)
		memcpy(&kernel->report, payload, size);
	if (pid <= 0 && (failure == ESRCH || failure == EPIPE || failure == ECONNRESET)) {
		/* The zygote is gone; that it is may not have reached us yet. */
		struct cell__sub_env *env = kernel->env;
		if (env->state == CELL_ENV_READY) {
			env->state = CELL_ENV_NONE;
			cell__spawn_client_tell(&kernel->sub->hub->client, CELL_SPAWN_ZYGOTE_STOP, env->zygote_id, 0);
			env->zygote_id = 0;
		}
		if (try_again(kernel))
			return;
	}
	if (pid <= 0) {
		if (kernel->plan && kernel->request)
			cell__sandbox_failure(kernel->request, size == sizeof kernel->report ? kernel->report.step : -1, (int)failure,
					      &kernel->error);
		else
			cell_fail(&kernel->error, CELL_E_KERNEL, (int)failure, "fork a kernel (limits on processes or memory?)");
		cell__sub_kernel_gone_later(kernel);
		return;
	}
	kernel->pid = (pid_t)pid;
	if (kernel->plan)
		kernel->listen_fd = cell__take_fd(&kernel->sub->hub->client.received_fd);
	if (kernel->state == CELL_KERNEL_FORKING && kernel->pooled) {
		struct cell__sub_pool *pool = cell__sub_pool_find(kernel->env, kernel->plan);
		kernel->state = CELL_KERNEL_POOLED;
		if (pool)
			cell__sub_pool_confine(kernel->env, pool);
	}
	cell__sub_kernel_maybe_live(kernel);
	cell__sub_fork_waiting(kernel->env);
}

static void cell__sub_handle_message(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size)
{
	struct cell__subprocess *sub = arg;
	struct cell__sub_env *env = env_of_zygote(sub, head->id);
	struct cell__sub_kernel *kernel = kernel_by_id(sub, head->id);
	switch (head->type) {
	case CELL_SPAWN_ZYGOTE_READY:
		if (env && env->state == CELL_ENV_STARTING)
			cell__sub_zygote_ready(env, head->a, payload, size);
		break;
	case CELL_SPAWN_ZYGOTE_WARMED:
		if (env && env->state == CELL_ENV_READY) {
			env->warm = true;
			cell__sub_check_prewarms(env);
			cell__sub_pool_fill(env);
			cell__sub_check_prewarms(env);
		}
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

static void cell__sub_handle_spawner_end(void *arg)
{
	struct cell__subprocess *sub = arg;
	struct cell_error err;
	cell_fail(&err, CELL_E_SPAWNER, 0, "the spawner died, and all its sessions with it; open a new session");
	CELL_SUB_LOG(sub, CELL_LOG_ERROR, "%s", err.msg);
	/* While the kernels live, everything their code started is below them (they are subreapers). */
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

/* ---- the executor ---- */

void cell__subprocess_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	struct cell__subprocess *sub = host->subprocess;
	info->available = 1;
	if (access(sub->hub->program, X_OK) < 0) {
		info->available = 0;
		snprintf(info->reason, sizeof info->reason, "%.200s is missing", sub->hub->program);
		snprintf(info->advice, sizeof info->advice, "install Workcell completely (make install)");
	}
}

char *cell__subprocess_init_json(const struct cell__kernel_spec *spec)
{
	json_t *env = json_object();
	for (size_t i = 0; spec->env[i]; i++) {
		const char *equals = strchr(spec->env[i], '=');
		if (!equals)
			continue;
		CELL_AUTO_FREE char *key = cell__strndup(spec->env[i], (size_t)(equals - spec->env[i]));
		if (key)
			json_object_set_new(env, key, json_string(equals + 1));
	}
	json_t *limits = spec->limits_json ? json_loads(spec->limits_json, 0, NULL) : NULL;
	json_t *init = json_pack("{s:s, s:s, s:o, s:b, s:b, s:b, s:b, s:b, s:s?, s:o*}", "session", spec->session_id, "cwd",
				 spec->cwd, "env", env, "namespaces", spec->namespaces, "gate_shell", spec->gate_shell,
				 "shell_escape", spec->shell_escape, "restore_cwd", spec->restore_cwd, "portable",
				 spec->portable, "site", spec->site, "limits", limits);
	char *text = init ? json_dumps(init, JSON_COMPACT) : NULL;
	json_decref(init);
	return text;
}

/* One that is confined for this session already, else one that is up, else any. */
static struct cell__sub_kernel *cell__sub_pool_take(struct cell__sub_env *env, const struct cell__sandbox_request *request)
{
	struct cell__sandbox_plan *plan = request ? request->plan : NULL;
	struct cell__sub_pool *pool = cell__sub_pool_find(env, plan);
	uint64_t kind = request && pool && expects(pool, request) ? pool->kind : 0;
	struct cell__sub_kernel *best = NULL;
	int best_worth = -1;
	for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next) {
		int worth = 2 * (k->kind != 0) + k->up;
		if (k->env == env && k->pooled && k->plan == plan && k->state == CELL_KERNEL_POOLED && k->error.code == 0 && !k->asked &&
		    (k->kind == 0 || k->kind == kind) && worth > best_worth) {
			best = k;
			best_worth = worth;
		}
	}
	if (best)
		best->pooled = false;
	return best;
}

int cell__subprocess_open(struct cell__executor_host *host, const struct cell__executor *executor,
			  const struct cell__kernel_spec *spec, struct cell__sandbox_request *request,
			  const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel,
			  struct cell_error *err)
{
	struct cell__subprocess *sub = host->subprocess;
	struct cell__sub_env *env;
	struct cell__sub_kernel *kernel = NULL;
	CELL_AUTO_FREE char *init = cell__subprocess_init_json(spec);
	if (!init) {
		cell_fail(err, CELL_E_INVALID, 0, "working directory or environment is not valid UTF-8");
		goto fail;
	}
	if (cell__sub_env_find(sub, spec->python, spec->preload, &env, err) < 0)
		goto fail;
	/* With the zygote there the plan is known, and with it the pool. */
	if (request && env->state == CELL_ENV_READY && request->prepare(request, &env->files, err) < 0)
		goto fail;
	if (!request || request->plan) {
		struct cell__sub_pool *pool = cell__sub_pool_use(env, request ? request->plan : NULL);
		kernel = cell__sub_pool_take(env, request);
		if (request && pool)
			cell__sub_pool_learn(env, pool, request, 1);
	}
	cell__turns_quick(&sub->turns);
	bool pooled = kernel != NULL;
	if (!kernel && (cell__sub_zygote_start(env, err) < 0 || !(kernel = cell__sub_kernel_create(env, err))))
		goto fail;
	kernel->base.executor = executor;
	kernel->request = request;
	kernel->init = cell__take_ptr(init);
	kernel->events = events;
	kernel->owner = owner;
	if (pooled) {
		cell__sub_kernel_configure(kernel);
		uv_timer_start(&env->timer, cell__sub_handle_refill, REFILL_DELAY_MS, 0);
	} else {
		cell__sub_fork_waiting(env);
	}
	*ret_kernel = &kernel->base;
	return 0;
fail:
	cell__sub_request_destroy(request);
	return -1;
}

static int subprocess_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec,
			   const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel,
			   struct cell_error *err)
{
	return cell__subprocess_open(host, &cell__subprocess_executor, spec, NULL, events, owner, ret_kernel, err);
}

static int subprocess_prewarm(struct cell__executor_host *host, const struct cell__kernel_spec *spec, cell__prewarmed_fn done,
			      void *arg, struct cell_error *err)
{
	return cell__subprocess_prewarm(host->subprocess, spec->python, spec->preload, NULL, done, arg, err);
}

const struct cell__sandbox_request *cell__subprocess_request(const struct cell__kernel *base)
{
	return ((const struct cell__sub_kernel *)base)->request;
}

void cell__subprocess_look(struct cell__kernel *base)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (kernel->link)
		cell__link_look(kernel->link);
}

int cell__subprocess_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size,
			  struct cell_error *err)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (!kernel->link)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel is gone");
	cell_begins(kernel);
	return cell__link_send(kernel->link, CELL_FRAME_RUN, run_id, NULL, 0, code, size, err);
}

int cell__subprocess_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw,
			    size_t raw_size, struct cell_error *err)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (!kernel->link)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel is gone");
	return cell__link_send(kernel->link, CELL_FRAME_REPLY, id, json, json_size, raw, raw_size, err);
}

struct cell__bulk *cell__subprocess_bulk(struct cell__kernel *base)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	return kernel->link ? cell__link_bulk(kernel->link) : NULL;
}

/*
 * A signal that comes between the interpreter's last look and a system call that waits is not seen until that call ends.
 * The next one interrupts the call.  Not for ever: code may have a handler of its own.
 */
static void handle_unheard(uv_timer_t *timer)
{
	struct cell__sub_kernel *kernel = timer->data;
	if (kernel->link && kernel->unheard < INTERRUPT_TRIES && !cell__link_interrupt_taken(kernel->link)) {
		kernel->unheard++;
		cell__spawn_client_tell(&kernel->sub->hub->client, CELL_SPAWN_KERNEL_SIGNAL, kernel->id, SIGINT);
		return;
	}
	uv_timer_stop(timer);
	kernel->timing = false;
	time_cell(kernel);
}

void cell__subprocess_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (!kernel->link)
		return;
	cell__link_set_interrupt(kernel->link, run_id);
	cell__spawn_client_tell(&kernel->sub->hub->client, CELL_SPAWN_KERNEL_SIGNAL, kernel->id, SIGINT);
	if (kernel->asked)
		return; /* the timer is the grace time's */
	cell__turns_leave(&kernel->sub->turns, &kernel->turn, false); /* hearing of it takes time on a core */
	kernel->unheard = 0;
	kernel->timing = uv_timer_start(&kernel->timer, handle_unheard, INTERRUPT_AGAIN_MS, INTERRUPT_AGAIN_MS) == 0;
}

void cell__subprocess_pause(struct cell__kernel *base, bool paused)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (kernel->link)
		cell__link_pause(kernel->link, paused);
}

static void handle_grace_over(uv_timer_t *timer)
{
	cell__sub_kernel_kill(timer->data);
}

void cell__subprocess_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	kernel->asked = true;
	cell__turns_leave(&kernel->sub->turns, &kernel->turn, false); /* so does ending */
	if (kernel->state == CELL_KERNEL_WAITING) {
		cell__sub_kernel_gone_later(kernel);
		return;
	}
	if (kernel->state == CELL_KERNEL_DYING && kernel->gone.fn)
		return; /* on its way already */
	if (kernel->link)
		cell__link_pause(kernel->link, false);
	if (kernel->state == CELL_KERNEL_LIVE && grace_ms > 0 &&
	    cell__link_send(kernel->link, CELL_FRAME_SHUTDOWN, 0, NULL, 0, NULL, 0, NULL) == 0) {
		uv_timer_start(&kernel->timer, handle_grace_over, (uint64_t)grace_ms, 0);
		return;
	}
	cell__sub_kernel_kill(kernel);
}

int64_t cell__subprocess_pid(const struct cell__kernel *base)
{
	return ((const struct cell__sub_kernel *)base)->pid;
}

const struct cell__executor cell__subprocess_executor = {
	.name = "subprocess",
	.isolation = "process",
	.probe = cell__subprocess_probe,
	.prewarm = subprocess_prewarm,
	.open = subprocess_open,
	.look = cell__subprocess_look,
	.run = cell__subprocess_run,
	.reply = cell__subprocess_reply,
	.bulk = cell__subprocess_bulk,
	.interrupt = cell__subprocess_interrupt,
	.pause = cell__subprocess_pause,
	.close = cell__subprocess_close,
	.pid = cell__subprocess_pid,
	.receipt = "{\"executor\":\"subprocess\",\"level\":\"process\",\"namespaces\":[],\"seccomp\":false,"
		   "\"landlock\":0,\"limits\":{},\"network\":\"host\",\"filesystem\":\"host\",\"skipped\":[]}",
};

/* ---- life of the whole ---- */

int cell__subprocess_create(struct cell__executor_host *host, const struct cell__subprocess_config *config,
			    struct cell__subprocess **ret_sub, struct cell_error *err)
{
	struct cell__subprocess *sub = cell__alloc(1, sizeof *sub);
	if (sub) {
		sub->kernel_dir = cell__strdup(config->kernel_dir);
	}
	if (!sub || !sub->kernel_dir) {
		free(sub);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	sub->host = host;
	sub->pool_size = config->pool_size;
	sub->start_timeout_ms = config->start_timeout_ms;
	sub->hub = config->hub;
	sub->hub->listener = (struct cell__spawn_listener){
		.message = cell__sub_handle_message, .ended = cell__sub_handle_spawner_end, .arg = sub
	};
	*ret_sub = sub;
	return 0;
}

int cell__subprocess_prewarm(struct cell__subprocess *sub, const char *python, const char *preload,
			     struct cell__sandbox_request *request, cell__prewarmed_fn done, void *arg,
			     struct cell_error *err)
{
	struct cell__sub_env *env;
	struct cell__sub_prewarm *prewarm = cell__alloc(1, sizeof *prewarm);
	if (!prewarm)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (!prewarm || cell__sub_env_find(sub, python, preload, &env, err) < 0 || cell__sub_zygote_start(env, err) < 0) {
		cell__sub_request_destroy(request);
		free(prewarm);
		return -1;
	}
	*prewarm = (struct cell__sub_prewarm){ .request = request, .done = done, .arg = arg, .next = env->prewarms };
	env->prewarms = prewarm;
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next)
		pool->deaths = 0;
	if (env->state == CELL_ENV_READY && !env->warm)
		cell__spawn_client_tell(&sub->hub->client, CELL_SPAWN_ZYGOTE_WARM, env->zygote_id, 0);
	cell__sub_check_prewarms(env); /* says which pool it is */
	cell__sub_pool_fill(env);
	cell__sub_check_prewarms(env);
	return 0;
}

static void cell__sub_handle_env_closed(uv_handle_t *handle)
{
	struct cell__sub_env *env = handle->data;
	struct cell__subprocess *sub = env->sub;
	free(env->python);
	free(env->preload);
	cell__plan_env_finish(&env->files);
	free_hosts(env);
	while (env->pools) {
		struct cell__sub_pool *next = env->pools->next;
		cell__sandbox_plan_unref(env->pools->plan);
		cell__buf_finish(&env->pools->session);
		cell__buf_finish(&env->pools->files);
		free(env->pools);
		env->pools = next;
	}
	free(env);
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}

static void handle_turns_closed(uv_handle_t *handle)
{
	struct cell__turns *turns = handle->data;
	struct cell__subprocess *sub = (struct cell__subprocess *)((char *)turns - offsetof(struct cell__subprocess, turns));
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}

void cell__subprocess_destroy(struct cell__subprocess *sub, void (*done)(void *arg), void *arg)
{
	struct cell_error err;
	cell_fail(&err, CELL_E_CLOSED, 0, "the engine is closed");
	sub->destroying = true;
	sub->hub->listener = (struct cell__spawn_listener){ 0 };
	sub->destroyed = done;
	sub->destroyed_arg = arg;
	sub->open_handles++; /* ours, until the lists are walked */
	if (sub->turns.loop)
		uv_close((uv_handle_t *)&sub->turns.timer, handle_turns_closed);
	/* The spawner, which ends next, ends what is left: pooled kernels and zygotes. */
	for (struct cell__sub_kernel *k = sub->kernels, *next; k; k = next) {
		struct cell__exit how = { .asked = true };
		next = k->next;
		if (!k->gone.fn)
			cell__sub_kernel_gone(k, &how);
	}
	struct cell__sub_env *env = cell__take_ptr(sub->envs);
	while (env) {
		struct cell__sub_env *next = env->next;
		cell__sub_end_prewarms(env, &err);
		uv_close((uv_handle_t *)&env->timer, cell__sub_handle_env_closed);
		env = next;
	}
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}
