#define _GNU_SOURCE
#include "loop/loop.h"

#include <signal.h>

static void run_tasks(uv_async_t *wake)
{
	struct cell__loop *loop = wake->data;
	pthread_mutex_lock(&loop->lock);
	struct cell__task *task = loop->first;
	loop->first = loop->last = NULL;
	bool stopping = loop->stopping;
	pthread_mutex_unlock(&loop->lock);
	while (task) {
		struct cell__task *next = task->next; /* fn may free the task */
		task->fn(task);
		task = next;
	}
	if (stopping && !uv_is_closing((uv_handle_t *)wake))
		uv_close((uv_handle_t *)wake, NULL);
}

static void *thread_main(void *arg)
{
	struct cell__loop *loop = arg;
	pthread_setname_np(pthread_self(), "workcell");
	uv_run(&loop->uv, UV_RUN_DEFAULT);
	return NULL;
}

int cell__loop_start(struct cell__loop *loop, struct cell_error *err)
{
	*loop = (struct cell__loop){ 0 };
	int rc = uv_loop_init(&loop->uv);
	if (rc < 0)
		return cell_fail(err, CELL_E_IO, -rc, "start the engine's loop");
	loop->wake.data = loop;
	rc = uv_async_init(&loop->uv, &loop->wake, run_tasks);
	if (rc < 0) {
		uv_loop_close(&loop->uv);
		return cell_fail(err, CELL_E_IO, -rc, "start the engine's loop");
	}
	pthread_mutex_init(&loop->lock, NULL);
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&loop->thread, NULL, thread_main, loop);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc != 0) {
		uv_close((uv_handle_t *)&loop->wake, NULL);
		uv_run(&loop->uv, UV_RUN_DEFAULT);
		uv_loop_close(&loop->uv);
		pthread_mutex_destroy(&loop->lock);
		return cell_fail(err, CELL_E_IO, rc, "start the engine's thread");
	}
	return 0;
}

void cell__loop_stop(struct cell__loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->stopping = true;
	pthread_mutex_unlock(&loop->lock);
	uv_async_send(&loop->wake);
	pthread_join(loop->thread, NULL);
	uv_loop_close(&loop->uv);
	pthread_mutex_destroy(&loop->lock);
}

void cell__loop_post(struct cell__loop *loop, struct cell__task *task)
{
	task->next = NULL;
	pthread_mutex_lock(&loop->lock);
	bool first = loop->first == NULL;
	if (first)
		loop->first = task;
	else
		loop->last->next = task;
	loop->last = task;
	pthread_mutex_unlock(&loop->lock);
	if (first)
		uv_async_send(&loop->wake);
}

bool cell__loop_is_current(const struct cell__loop *loop)
{
	return pthread_equal(pthread_self(), loop->thread);
}

void cell__waiter_init(struct cell__waiter *waiter)
{
	pthread_mutex_init(&waiter->lock, NULL);
	pthread_cond_init(&waiter->cond, NULL);
	waiter->done = false;
}

void cell__waiter_finish(struct cell__waiter *waiter)
{
	pthread_cond_destroy(&waiter->cond);
	pthread_mutex_destroy(&waiter->lock);
}

void cell__waiter_wait(struct cell__waiter *waiter)
{
	pthread_mutex_lock(&waiter->lock);
	while (!waiter->done)
		pthread_cond_wait(&waiter->cond, &waiter->lock);
	pthread_mutex_unlock(&waiter->lock);
}

void cell__waiter_signal(struct cell__waiter *waiter)
{
	/* Signalled under the lock: the waiter's memory may be gone as soon as it has seen `done`. */
	pthread_mutex_lock(&waiter->lock);
	waiter->done = true;
	pthread_cond_signal(&waiter->cond);
	pthread_mutex_unlock(&waiter->lock);
}

struct call {
	struct cell__task task;
	void (*fn)(void *arg);
	void *arg;
	struct cell__waiter waiter;
};

static void run_call(struct cell__task *task)
{
	struct call *call = (struct call *)task;
	call->fn(call->arg);
	cell__waiter_signal(&call->waiter);
}

void cell__loop_call(struct cell__loop *loop, void (*fn)(void *arg), void *arg)
{
	struct call call = { .task.fn = run_call, .fn = fn, .arg = arg };
	cell__waiter_init(&call.waiter);
	cell__loop_post(loop, &call.task);
	cell__waiter_wait(&call.waiter);
	cell__waiter_finish(&call.waiter);
}
