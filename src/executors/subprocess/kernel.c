/* One kernel of the `subprocess` executor: its fork, its cells, its messages, its end. */
#define _GNU_SOURCE
#include "executors/subprocess/kernel.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <string.h>

#include "executors/answer.h"
#include "executors/registry.h"

#define SILENT_END_MS 300      /* a kernel that closed its socket but does not exit is killed */
#define LONG_CELL_MS 500       /* a sandbox's cell that runs longer yields to others from then on (cpu_share.h) */
#define INTERRUPT_AGAIN_MS 100 /* an interrupt that the code has not heard of by then is sent again ... */
#define INTERRUPT_TRIES 3      /* ... so often */

static const struct cell__link_events link_events;

/* ---- from its fork to its end ---- */

struct cell__sub_kernel *cell__sub_kernel_by_id(const struct cell__subprocess *sub, uint64_t id)
{
	struct cell__sub_kernel *kernel = sub->by_id[id % CELL_SUB_BUCKETS];
	while (kernel && kernel->id != id)
		kernel = kernel->id_next;
	return kernel;
}

void cell__sub_kernel_leave_fresh(struct cell__sub_kernel *kernel)
{
	struct cell__sub_env *env = kernel->env;
	struct cell__sub_kernel **at = &env->fresh;
	if (!kernel->is_fresh)
		return;
	while (*at != kernel)
		at = &(*at)->fresh_next;
	*at = kernel->fresh_next;
	if (!*at)
		env->fresh_end = at;
	kernel->is_fresh = false;
}

static void list_kernel(struct cell__sub_kernel *kernel)
{
	struct cell__sub_kernel **bucket = &kernel->sub->by_id[kernel->id % CELL_SUB_BUCKETS];
	struct cell__sub_env *env = kernel->env;
	CELL__LIST_PUSH(kernel->sub->kernels, kernel);
	kernel->id_next = *bucket;
	*bucket = kernel;
	if (!env->fresh)
		env->fresh_end = &env->fresh;
	*env->fresh_end = kernel;
	env->fresh_end = &kernel->fresh_next;
	kernel->is_fresh = true;
	env->n_kernels++;
}

static void unlist_kernel(struct cell__sub_kernel *kernel)
{
	struct cell__sub_kernel **at = &kernel->sub->by_id[kernel->id % CELL_SUB_BUCKETS];
	while (*at != kernel)
		at = &(*at)->id_next;
	*at = kernel->id_next;
	CELL__LIST_REMOVE(kernel->sub->kernels, kernel);
	cell__sub_kernel_leave_fresh(kernel);
	kernel->env->n_kernels--;
	kernel->env->n_pooled -= kernel->pooled;
}

void cell__sub_kernel_wait_again(struct cell__sub_kernel *kernel)
{
	struct cell__sub_env *env = kernel->env;
	kernel->state = CELL_KERNEL_WAITING;
	if (kernel->is_fresh)
		return;
	if (!env->fresh)
		env->fresh_end = &kernel->fresh_next;
	kernel->fresh_next = env->fresh;
	env->fresh = kernel;
	kernel->is_fresh = true;
}

void cell__sub_kernel_set_pooled(struct cell__sub_kernel *kernel, bool pooled)
{
	kernel->env->n_pooled += pooled;
	kernel->env->n_pooled -= kernel->pooled;
	kernel->pooled = pooled;
	if (!pooled)
		cell__sub_kernel_leave_fresh(kernel);
}

static void handle_kernel_closed(uv_handle_t *handle)
{
	struct cell__sub_kernel *kernel = handle->data;
	struct cell__subprocess *sub = kernel->sub;
	kernel->closed = true;
	if (kernel->preparing)
		return;
	free(kernel->init);
	cell__sub_request_destroy(kernel->request);
	cell__close_fd(&kernel->listen_fd);
	cell__sandbox_plan_unref(kernel->plan);
	cell__sub_image_leave(kernel);
	free(kernel);
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}

void cell__sub_kernel_not_forking(struct cell__sub_kernel *kernel)
{
	kernel->env->in_flight -= kernel->forking;
	kernel->forking = false;
}

/* The end of a kernel: tells the owner, frees the memory. */
void cell__sub_kernel_gone(struct cell__sub_kernel *kernel, const struct cell__exit *how)
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
	cell__sub_branch_source_gone(kernel);
	cell__cpu_shares_leave(&kernel->sub->shares, &kernel->entry, true);
	if (kernel->request)
		cell__sandbox_silence(kernel->request);
	if (kernel->events)
		kernel->events->exited(kernel->owner, how);
	uv_close((uv_handle_t *)&kernel->timer, handle_kernel_closed);
	if (kernel->sub->destroying)
		return;
	struct cell__sub_pool *pool = cell__sub_pool_find(env, kernel->plan);
	if (pooled && pool && !how->asked && kernel->kind)
		pool->in_a_row = 0; /* its confinement may be impossible; the next session to open gets the error */
	else if (pooled && pool && !how->asked && ++pool->deaths >= CELL_SUB_POOL_DEATHS_MAX)
		CELL_SUB_LOG(kernel->sub, CELL_LOG_WARN, "idle kernels of %s keep dying; the pool is not refilled", env->python);
	cell__sub_fork_waiting(env);
	cell__sub_zygote_rotate(env);
	cell__sub_pool_fill(env);
	cell__sub_check_prewarms(env);
	cell__sub_env_rest(env);
}

static void run_gone(struct cell__task *task)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)((char *)task - offsetof(struct cell__sub_kernel, gone));
	struct cell__exit how = { .asked = kernel->asked, .error = kernel->error };
	cell__sub_kernel_gone(kernel, &how);
}

/* For ends that no process reports: exited() must not be called from inside the call that caused it. */
void cell__sub_kernel_gone_later(struct cell__sub_kernel *kernel)
{
	cell__sub_kernel_not_forking(kernel);
	kernel->state = CELL_KERNEL_DYING;
	kernel->gone.fn = run_gone;
	cell__loop_post(kernel->sub->host->loop, &kernel->gone);
}

static void handle_prepared(void *arg, const struct cell_error *err)
{
	struct cell__sub_kernel *kernel = arg;
	struct cell__sub_env *env = kernel->env;
	kernel->preparing = false;
	if (kernel->closed) {
		handle_kernel_closed((uv_handle_t *)&kernel->timer);
		return;
	}
	if (kernel->state != CELL_KERNEL_WAITING)
		return; /* on its way out */
	if (err->code) {
		kernel->error = *err;
		cell__sub_kernel_gone_later(kernel);
		return;
	}
	struct cell__sub_pool *pool = cell__sub_pool_use(env, kernel->request->plan);
	if (pool)
		cell__sub_pool_learn(env, pool, kernel->request, 1);
	cell__sub_fork_waiting(env);
}

int cell__sub_kernel_link(struct cell__sub_kernel *kernel, struct cell__link_fds *ret_fds, struct cell_error *err)
{
	return cell__link_create(kernel->sub->host->loop, &link_events, kernel, &kernel->link, ret_fds, err);
}

int cell__sub_kernel_fork(struct cell__sub_kernel *kernel, struct cell_error *err)
{
	struct cell__subprocess *sub = kernel->sub;
	struct cell__link_fds fds;
	/* Prepared for a zygote that was replaced meanwhile: the next one may have other files. */
	if (kernel->request && kernel->request->plan && kernel->request->from != kernel->env->files) {
		cell__sandbox_plan_unref(cell__take_ptr(kernel->request->plan));
		cell__sandbox_plan_unref(cell__take_ptr(kernel->plan));
	}
	/* Its plan is found first, now that its environment is known; then it is forked. */
	if (kernel->request && !kernel->request->plan) {
		kernel->preparing = cell__sub_prepare(kernel->env, kernel->request, handle_prepared, kernel, err) == 0;
		return kernel->preparing ? 0 : -1;
	}
	if (kernel->request && !kernel->plan)
		kernel->plan = cell__sandbox_plan_ref(kernel->request->plan);
	if (cell__sub_kernel_link(kernel, &fds, err) < 0)
		return -1;
	int all[CELL_SPAWN_KERNEL_FDS] = { fds.fd[0], fds.fd[1], fds.fd[2], fds.fd[3], kernel->plan ? kernel->plan->fd : -1 };
	int rc = cell__spawn_client_send(&sub->supervisor->client, CELL_SPAWN_KERNEL_FORK, kernel->id, (int64_t)kernel->env->zygote_id,
					 kernel->pooled, NULL, 0, all, kernel->plan ? 5 : 4, err);
	cell__link_fds_close(&fds);
	if (rc < 0) {
		cell__link_close(kernel->link);
		kernel->link = NULL;
		return -1;
	}
	kernel->state = CELL_KERNEL_FORKING;
	if (!kernel->pooled)
		cell__sub_kernel_leave_fresh(kernel);
	kernel->tries++;
	kernel->forking = true;
	kernel->env->in_flight++;
	kernel->env->forks++;
	return 0;
}

struct cell__sub_kernel *cell__sub_kernel_create(struct cell__sub_env *env, struct cell_error *err)
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
	kernel->id = sub->supervisor->next_id++;
	kernel->state = CELL_KERNEL_WAITING;
	kernel->listen_fd = -1;
	uv_timer_init(cell__loop_uv(sub->host->loop), &kernel->timer);
	kernel->timer.data = kernel;
	sub->open_handles++;
	list_kernel(kernel);
	return kernel;
}

void cell__sub_kernel_kill(struct cell__sub_kernel *kernel)
{
	cell__spawn_client_tell(&kernel->sub->supervisor->client, CELL_SPAWN_KERNEL_KILL, kernel->id, 0);
}

/* Hands the session's settings over. */
void cell__sub_kernel_configure(struct cell__sub_kernel *kernel)
{
	struct cell_error err = { 0 };
	kernel->state = CELL_KERNEL_OPENING;
	const struct cell__buf *session = kernel->request && !kernel->kind ? &kernel->request->session : NULL;
	bool sent = kernel->image ? cell__sub_image_load(kernel, session, &err)
				  : cell__link_send(kernel->link, CELL_FRAME_INIT, 0, kernel->init, strlen(kernel->init),
						    session ? session->data : NULL, session ? session->size : 0, &err) == 0;
	/* EPIPE: it has ended; the news of that are on their way, and may lead to another try. */
	if (!sent && err.sys != EPIPE) {
		kernel->error = err;
		cell__sub_kernel_kill(kernel);
	}
}

void cell__sub_kernel_begin(struct cell__sub_kernel *kernel, bool pooled)
{
	if (!pooled) {
		cell__sub_fork_waiting(kernel->env);
		return;
	}
	cell__sub_kernel_configure(kernel);
	uv_timer_start(&kernel->env->timer, cell__sub_handle_refill, kernel->woken ? CELL_SUB_REFILL_LOAD_MS : CELL_SUB_REFILL_DELAY_MS, 0);
}

/* ---- forks ---- */

/* Its memory is the code's, and so is its source: either may never answer. */
static void handle_no_answer(uv_timer_t *timer)
{
	struct cell__sub_kernel *kernel = timer->data;
	if (kernel->gone.fn)
		return;
	if (kernel->error.code == 0)
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel did not fork within %lld s",
			  (long long)(kernel->sub->start_timeout_ms + 999) / 1000);
	if (kernel->is_image || kernel->state == CELL_KERNEL_WAITING)
		cell__sub_kernel_gone_later(kernel);
	else if (kernel->source)
		cell__sub_branch_give_up(kernel);
	else
		cell__sub_kernel_kill(kernel);
}

void cell__sub_kernel_expect_answer(struct cell__sub_kernel *kernel)
{
	uv_timer_start(&kernel->timer, handle_no_answer, (uint64_t)kernel->sub->start_timeout_ms, 0);
}

/* ---- long cells ---- */

static void handle_long_cell(uv_timer_t *timer)
{
	struct cell__sub_kernel *kernel = timer->data;
	kernel->timing = false;
	cell__cpu_shares_long(&kernel->sub->shares, &kernel->entry);
}

void cell__sub_tell_share(struct cell__cpu_share *entry, enum cell_cgroup_share share)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)((char *)entry - offsetof(struct cell__sub_kernel, entry));
	cell__spawn_client_tell(&kernel->sub->supervisor->client, CELL_SPAWN_KERNEL_SHARE, kernel->id, share);
	if (kernel->link)
		cell__link_yield(kernel->link, share == CELL_SHARE_REST);
}

/* Restarts the clock, as if the cell had just begun. */
static void time_cell(struct cell__sub_kernel *kernel)
{
	if (kernel->request && !kernel->asked)
		kernel->timing = uv_timer_start(&kernel->timer, handle_long_cell, LONG_CELL_MS, 0) == 0;
}

static void cell_begins(struct cell__sub_kernel *kernel)
{
	cell__cpu_shares_leave(&kernel->sub->shares, &kernel->entry, kernel->asked);
	cell__cpu_shares_quick(&kernel->sub->shares);
	time_cell(kernel);
}

static void cell_ended(struct cell__sub_kernel *kernel)
{
	if (kernel->timing && !kernel->asked)
		uv_timer_stop(&kernel->timer);
	kernel->timing = false;
}

/* ---- messages of a kernel ---- */

static void handle_silent_end(uv_timer_t *timer)
{
	cell__sub_kernel_kill(timer->data);
}

static void handle_link_broken(void *owner, const char *reason)
{
	struct cell__sub_kernel *kernel = owner;
	if (!reason) {
		/* Most likely it is dying, and the spawner will report how. Give it a moment to distinguish that from a closed socket. */
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
void cell__sub_kernel_maybe_live(struct cell__sub_kernel *kernel)
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
	uv_timer_stop(&kernel->timer);
	free(cell__take_ptr(kernel->init));
	if (kernel->request) {
		struct cell__zygote_state zygote = { .plan = kernel->env->plan ? (const struct cell_plan *)kernel->env->plan->bytes : NULL,
						     .missed = kernel->env->missed };
		cell__sandbox_ready(kernel->request, &kernel->report, sizeof kernel->report, kernel->skipped, kernel->n_skipped, &zygote);
	}
	kernel->events->ready(kernel->owner);
}

static void handle_ready_frame(struct cell__sub_kernel *kernel, const struct cell_frame *frame)
{
	if (kernel->state != CELL_KERNEL_OPENING || kernel->ready) {
		handle_link_broken(kernel, "READY without INIT");
		return;
	}
	json_error_t problem;
	bool fits = frame->json_size <= CELL_LIMIT_LARGE_BYTES;
	json_t *ready = fits ? json_loadb((const char *)frame->json, frame->json_size, 0, &problem) : NULL;
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
			cell_fail(&kernel->error,
				  kernel->woken   ? CELL_E_DIFFERS
				  : kernel->image ? CELL_E_KERNEL
						  : CELL_E_INVALID,
				  0, "%s", message ? message : "the kernel refused the session");
		kernel->state = CELL_KERNEL_DYING;
		cell__sub_kernel_kill(kernel);
	} else {
		kernel->ready = true;
		cell__sub_kernel_maybe_live(kernel);
	}
	json_decref(ready);
}

static const char *handle_hello(struct cell__sub_kernel *kernel)
{
	if (kernel->up)
		return "HELLO twice";
	kernel->up = true;
	if (!kernel->pooled)
		return NULL;
	struct cell__sub_pool *pool = cell__sub_pool_find(kernel->env, kernel->plan);
	if (pool) {
		pool->deaths = 0;
		cell__sub_pool_confine(kernel->env, pool);
	}
	cell__sub_check_prewarms(kernel->env);
	return NULL;
}

static void handle_frame(void *owner, const struct cell_frame *frame, const struct cell__read *read)
{
	struct cell__sub_kernel *kernel = owner;
	const char *problem = NULL;
	switch (frame->type) {
	case CELL_FRAME_HELLO:
		problem = handle_hello(kernel);
		break;
	case CELL_FRAME_READY:
		handle_ready_frame(kernel, frame);
		break;
	case CELL_FRAME_FORKED:
		problem = cell__sub_branch_answered(kernel, frame);
		break;
	case CELL_FRAME_DISPLAY:
	case CELL_FRAME_RESULT:
	case CELL_FRAME_CALL:
		if (kernel->state != CELL_KERNEL_LIVE) {
			problem = "a frame before READY";
			break;
		}
		if (frame->type == CELL_FRAME_RESULT && !read->problem)
			cell_ended(kernel);
		problem = cell__answer_hand_on(frame, read, kernel->events, kernel->owner);
		break;
	default:
		problem = "a frame that only the host sends";
	}
	if (problem)
		handle_link_broken(kernel, problem);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__sub_kernel *kernel = owner;
	if (kernel->events)
		kernel->events->output(kernel->owner, stream, bytes, size);
	else
		CELL_SUB_LOG(kernel->sub, CELL_LOG_WARN, "an idle kernel wrote %zu bytes", size);
}

static const struct cell__link_events link_events = { .frame = handle_frame, .output = handle_output, .broken = handle_link_broken };

/* ---- requests of its session ---- */

const char *const *cell__subprocess_index_hosts(const struct cell__kernel *base)
{
	const struct cell__sub_env *env = ((const struct cell__sub_kernel *)base)->env;
	return env ? (const char *const *)env->index_hosts : NULL;
}

const struct cell__sandbox_request *cell__subprocess_request(const struct cell__kernel *base)
{
	return ((const struct cell__sub_kernel *)base)->request;
}

void cell__subprocess_drain(struct cell__kernel *base)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (kernel->link)
		cell__link_poll(kernel->link);
}

int cell__subprocess_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (!kernel->link)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	cell_begins(kernel);
	kernel->asked_image = NULL;
	return cell__link_send(kernel->link, CELL_FRAME_RUN, run_id, NULL, 0, code, size, err);
}

int cell__subprocess_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
			   struct cell_error *err)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (!kernel->link)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	kernel->asked_image = NULL;
	return cell__link_send(kernel->link, CELL_FRAME_REPLY, id, json, json_size, raw, raw_size, err);
}

size_t cell__subprocess_unread(const struct cell__kernel *base)
{
	const struct cell__sub_kernel *kernel = (const struct cell__sub_kernel *)base;
	return kernel->link ? cell__link_unread(kernel->link) : 0;
}

struct cell__bulk *cell__subprocess_bulk(struct cell__kernel *base)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	return kernel->link ? cell__link_bulk(kernel->link) : NULL;
}

/*
 * A signal that arrives between the interpreter's last check and a system call that waits is not seen until that call ends. The next signal
 * interrupts the call. Signals are not repeated for ever: code may have its own handler.
 */
static void handle_unheard(uv_timer_t *timer)
{
	struct cell__sub_kernel *kernel = timer->data;
	if (kernel->link && kernel->unheard < INTERRUPT_TRIES && !cell__link_interrupt_taken(kernel->link)) {
		kernel->unheard++;
		cell__spawn_client_tell(&kernel->sub->supervisor->client, CELL_SPAWN_KERNEL_SIGNAL, kernel->id, SIGINT);
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
	cell__spawn_client_tell(&kernel->sub->supervisor->client, CELL_SPAWN_KERNEL_SIGNAL, kernel->id, SIGINT);
	if (kernel->asked)
		return; /* the timer is the grace time's */
	cell__cpu_shares_leave(&kernel->sub->shares, &kernel->entry, false); /* hearing of it takes time on a core */
	kernel->unheard = 0;
	kernel->timing = uv_timer_start(&kernel->timer, handle_unheard, INTERRUPT_AGAIN_MS, INTERRUPT_AGAIN_MS) == 0;
}

void cell__subprocess_pause(struct cell__kernel *base, bool paused)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	if (kernel->link)
		cell__link_pause(kernel->link, paused);
}

void cell__subprocess_hand_over(struct cell__kernel *base, const struct cell__kernel_events *events, void *owner)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	kernel->events = events;
	kernel->owner = owner;
}

static void handle_grace_over(uv_timer_t *timer)
{
	cell__sub_kernel_kill(timer->data);
}

void cell__subprocess_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct cell__sub_kernel *kernel = (struct cell__sub_kernel *)base;
	kernel->asked = true;
	cell__cpu_shares_leave(&kernel->sub->shares, &kernel->entry, false); /* so does ending */
	if (kernel->state == CELL_KERNEL_DYING && kernel->gone.fn)
		return; /* on its way already */
	if (kernel->state == CELL_KERNEL_WAITING || kernel->is_image) {
		cell__sub_kernel_gone_later(kernel);
		return;
	}
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

int cell__subprocess_place(struct cell__kernel *base, const char *const *env, struct cell__kernel_place *ret_place, struct cell_error *err)
{
	const struct cell__sub_kernel *kernel = (const struct cell__sub_kernel *)base;
	(void)env;
	if (kernel->state != CELL_KERNEL_LIVE || kernel->pid <= 0)
		return cell_fail(err, CELL_E_BUSY, 0, "the session's kernel is not ready; try again");
	ret_place->kernel = kernel->id;
	return 0;
}
