/*
 * The `inprocess` executor: the kernel's package in the host's own process, called directly.
 *
 * Actors.  Each kernel has a thread of its own that runs cells; it holds Python's GIL while it does and never while it
 * waits for us.  The loop belongs to the thread that runs it, and no thread that runs it ever takes the GIL: work that needs
 * the GIL (an interrupt is an asynchronous exception) is done by the keeper of libpython.h.
 *
 * To the kernel go messages in a list.  From the kernel come function calls (wire/inproc_abi.h): its thread takes
 * the loop for the duration of the call, does what the loop would have done with a frame, and leaves it.  So a call of a host
 * function runs on the thread that made it, and a result needs no other thread.  A call that is not answered at once is
 * waited for by running the loop.  A thread that waits for a run must therefore not keep the loop: `takes_loop`.
 *
 *     asking (an interpreter for the path of its library) ──▶ starting (the thread) ──READY──▶ live
 *     any ──close──▶ leaving ──the thread ends──▶ finishing ──no Python thread inside──▶ exited() and gone
 *                       └── it does not: abandoned ──▶ finishing
 *
 * An abandoned thread keeps its reference: its further calls get CLOSED, its output is dropped.  When the code ends after
 * all, the thread ends too.
 *
 * Locks: a kernel's lock guards the data that both sides touch.  The GIL and the loop are never waited for with it held; the
 * loop's own lock may be taken inside it.
 */
#define _GNU_SOURCE
#include "executors/inprocess/inprocess.h"
#include "executors/registry.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "spawn/process.h"

#define ABANDON_MS 500 /* for code that is interrupted because its session ends */
#define TRIED_MS 100   /* ... unless it was interrupted so long ago */

static atomic_bool forked;
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool cell__inprocess_is_forked(void)
{
	return atomic_load_explicit(&forked, memory_order_relaxed);
}

void cell__inprocess_unref(struct cell__inprocess *kernel)
{
	if (atomic_fetch_sub(&kernel->refs, 1) != 1)
		return;
	while (kernel->first) {
		struct cell_inproc_message *next = kernel->first->next;
		free(kernel->first);
		kernel->first = next;
	}
	cell__close_fd(&kernel->event_fd);
	for (int i = 0; i < 4; i++)
		cell__close_fd(&kernel->pipes[i / 2][i % 2]);
	cell__buf_finish(&kernel->out);
	cell__buf_finish(&kernel->said);
	free(kernel->python);
	free(kernel->kernel_dir);
	pthread_cond_destroy(&kernel->cond);
	pthread_mutex_destroy(&kernel->lock);
	free(kernel);
}

bool cell__inprocess_post(struct cell__inprocess *kernel, struct cell__task *task)
{
	if (!kernel->closed)
		cell__loop_post(kernel->loop, task);
	return !kernel->closed;
}

/* ---- the end ---- */

static void handle_closed(uv_handle_t *handle)
{
	struct cell__inprocess *kernel = handle->data;
	if (--kernel->open_handles > 0)
		return;
	struct cell__exit how = { .asked = kernel->asked, .abandoned = kernel->abandoned };
	pthread_mutex_lock(&kernel->lock);
	kernel->loop = NULL;
	how.error = kernel->error;
	/* A thread that lives on may start children: theirs must not become the host's streams. */
	for (int i = 0; !kernel->abandoned && i < 4; i++)
		cell__close_fd(&kernel->pipes[i / 2][i % 2]);
	if (!kernel->abandoned)
		cell__close_fd(&kernel->event_fd);
	kernel->watched = kernel->watched && kernel->abandoned;
	pthread_mutex_unlock(&kernel->lock);
	kernel->events->exited(kernel->owner, &how);
	cell__inprocess_unref(kernel);
}

/* No thread of Python's side is inside any more, and none will be. */
static void do_finish(struct cell__task *task)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)((char *)task - offsetof(struct cell__inprocess, finish));
	cell__inprocess_deliver_output(kernel);
	for (int i = 0; kernel->polling && i < 2; i++)
		uv_close((uv_handle_t *)&kernel->polls[i], handle_closed);
	uv_close((uv_handle_t *)&kernel->pace, handle_closed);
	uv_close((uv_handle_t *)&kernel->timer, handle_closed);
}

void cell__inprocess_finish(struct cell__inprocess *kernel)
{
	if (kernel->state == CELL_INPROCESS_FINISHING)
		return;
	kernel->state = CELL_INPROCESS_FINISHING;
	kernel->paused = false;
	pthread_mutex_lock(&kernel->lock);
	kernel->closed = true;
	pthread_cond_broadcast(&kernel->cond);
	if (kernel->watched)
		cell__inprocess_ring(kernel);
	pthread_mutex_unlock(&kernel->lock);
	cell__inprocess_end_asks(kernel);
	cell__inprocess_take_held(kernel);
	pthread_mutex_lock(&kernel->lock);
	kernel->finish_wanted = true;
	if (kernel->inside == 0)
		cell__loop_post(kernel->loop, &kernel->finish);
	pthread_mutex_unlock(&kernel->lock);
}

static void do_ended(struct cell__task *task)
{
	cell__inprocess_finish((struct cell__inprocess *)((char *)task - offsetof(struct cell__inprocess, ended)));
}

/* ---- interrupts ---- */

/* With the GIL: a function of inproc.py for this kernel. */
static void tell_python(struct cell__inprocess *kernel, const char *function)
{
	const struct cell__libpython *python = cell__libpython_find();
	void *module = python->import("workcell_kernel.inproc");
	void *done = module ? python->call_method(module, function, "K", (unsigned long long)(uintptr_t)&kernel->abi) : NULL;
	if (done)
		python->decref(done);
	else
		python->err_clear(); /* the code has broken a module: the error has no receiver */
	if (module)
		python->decref(module);
}

/* With the GIL, on the keeper's thread. */
static void do_interrupt(struct cell__libpython_job *job)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)((char *)job - offsetof(struct cell__inprocess, interrupt_job));
	const struct cell__libpython *python = cell__libpython_find();
	uint32_t run = atomic_load(&kernel->abi.run);
	bool wanted = run != 0 && run == atomic_load(&kernel->interrupt_run);
	if (wanted) {
		python->set_async_exc(kernel->abi.main_thread, *python->keyboard_interrupt);
		tell_python(kernel, "interrupted");
	}
	pthread_mutex_lock(&kernel->lock);
	kernel->job_posted = false;
	if (wanted && atomic_load(&kernel->abi.main_asks) && !kernel->stop_posted)
		kernel->stop_posted = cell__inprocess_post(kernel, &kernel->stop);
	pthread_mutex_unlock(&kernel->lock);
	cell__inprocess_unref(kernel);
}

static void inprocess_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)base;
	atomic_store(&kernel->interrupt_run, run_id);
	kernel->interrupt_us = cell__now_us();
	pthread_mutex_lock(&kernel->lock);
	bool ask = !kernel->job_posted && !kernel->closed;
	kernel->job_posted |= ask;
	pthread_mutex_unlock(&kernel->lock);
	if (!ask)
		return;
	atomic_fetch_add(&kernel->refs, 1);
	/* Without a thread to do it the run's grace ends it. */
	if (cell__libpython_post(&kernel->interrupt_job, NULL) < 0) {
		pthread_mutex_lock(&kernel->lock);
		kernel->job_posted = false;
		pthread_mutex_unlock(&kernel->lock);
		cell__inprocess_unref(kernel);
	}
}

/* With the GIL, on the keeper's thread: Python's side forgets the kernel. */
static void do_forget(struct cell__libpython_job *job)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)((char *)job - offsetof(struct cell__inprocess, abandon_job));
	tell_python(kernel, "abandoned");
	cell__inprocess_unref(kernel);
}

static void abandon(struct cell__inprocess *kernel)
{
	kernel->abandoned = true;
	atomic_fetch_add(&kernel->refs, 1);
	if (cell__libpython_post(&kernel->abandon_job, NULL) < 0)
		cell__inprocess_unref(kernel);
	cell__inprocess_finish(kernel);
}

static void handle_grace_over(uv_timer_t *timer)
{
	struct cell__inprocess *kernel = timer->data;
	if (kernel->state == CELL_INPROCESS_LEAVING)
		abandon(kernel);
}

static void inprocess_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)base;
	uint32_t run = atomic_load(&kernel->abi.run);
	kernel->asked = true;
	if (kernel->state == CELL_INPROCESS_FINISHING || kernel->state == CELL_INPROCESS_LEAVING)
		return;
	if (!kernel->threaded) {
		if (kernel->process)
			cell__process_abandon(cell__take_ptr(kernel->process));
		cell__inprocess_finish(kernel);
		return;
	}
	/* It had its grace period: after another request it may end one day, but the host does not wait for that. */
	bool tried = run != 0 && atomic_load(&kernel->interrupt_run) == run && cell__now_us() - kernel->interrupt_us > TRIED_MS * 1000;
	kernel->state = CELL_INPROCESS_LEAVING;
	kernel->paused = false;
	cell__inprocess_take_held(kernel);
	(void)cell__inprocess_push(kernel, CELL_FRAME_SHUTDOWN, 0, NULL, 0, NULL, 0, NULL);
	cell__inprocess_end_asks(kernel);
	if (run != 0)
		inprocess_interrupt(base, run);
	if (tried) {
		abandon(kernel);
		return;
	}
	uv_update_time(cell__loop_uv(kernel->loop));
	uv_timer_start(&kernel->timer, handle_grace_over, (uint64_t)(grace_ms > 0 ? grace_ms : ABANDON_MS), 0);
}

/* ---- small things that Python asks ---- */

static void abi_retain(struct cell_inproc *abi)
{
	atomic_fetch_add(&cell__inprocess_of_abi(abi)->refs, 1);
}

static void abi_release(struct cell_inproc *abi)
{
	cell__inprocess_unref(cell__inprocess_of_abi(abi));
}

static uint32_t abi_interrupted_run(struct cell_inproc *abi)
{
	return atomic_load(&cell__inprocess_of_abi(abi)->interrupt_run);
}

static bool abi_is_forked(struct cell_inproc *abi)
{
	(void)abi;
	return cell__inprocess_is_forked();
}

/* ---- the executor ---- */

static void handle_fork(void)
{
	atomic_store(&forked, true);
}

static void register_fork(void)
{
	pthread_atfork(NULL, NULL, handle_fork);
}

static void probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	cell__libpython_probe(info);
}

/* Options that one process cannot give each of its sessions are refused, not ignored. */
static int check(const struct cell_session_options *opts, struct cell_error *err)
{
	char here[PATH_MAX], there[PATH_MAX];
	const struct cell__libpython *python = cell__libpython_find();
	/* The interpreter here is a copy with hooks, and perhaps locks, of sessions whose threads are not in this process. */
	if (cell__inprocess_is_forked())
		return cell_fail(err, CELL_E_UNAVAILABLE, 0,
				 "inprocess: this process was forked from a process with in-process sessions; use another executor, "
				 "or start a new process (in Python's multiprocessing: \"spawn\")");
	if (opts->env && opts->env[0])
		return cell_fail(err, CELL_E_INVALID, 0,
				 "inprocess: the code shares the host's environment; set %.80s there instead of in the session",
				 opts->env[0]);
	if (opts->cwd && (!realpath(".", here) || !realpath(opts->cwd, there) || strcmp(here, there) != 0))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "inprocess: the code shares the host's working directory; start the host in %.100s instead", opts->cwd);
	if (opts->require_shell_escape)
		return cell_fail(err, CELL_E_INVALID, 0, "inprocess: require_shell_escape would also restrict the host's own code");
	if (python && python->hosted && opts->python)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "inprocess: in a Python program the code runs in that program's interpreter; do not give another");
	return 0;
}

static void init_kernel(struct cell__inprocess *kernel, struct cell__executor_host *host)
{
	kernel->abi = (struct cell_inproc){
		.version = CELL_INPROC_VERSION,
		.retain = abi_retain,
		.release = abi_release,
		.interrupted_run = abi_interrupted_run,
		.is_forked = abi_is_forked,
	};
	kernel->base.executor = &cell__inprocess_executor;
	atomic_store(&kernel->refs, 1);
	kernel->loop = host->loop;
	cell__inprocess_init_calls(kernel);
	cell__inprocess_init_output(kernel);
	kernel->ended.fn = do_ended;
	kernel->finish.fn = do_finish;
	kernel->interrupt_job.fn = do_interrupt;
	kernel->abandon_job.fn = do_forget;
	pthread_mutex_init(&kernel->lock, NULL);
	pthread_cond_init(&kernel->cond, NULL);
}

static int inprocess_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
			  void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	pthread_once(&once, register_fork);
	CELL_AUTO_FREE char *init = cell__kernel_spec_json(spec);
	struct cell__inprocess *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel || !init) {
		free(kernel);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	}
	init_kernel(kernel, host);
	kernel->events = events;
	kernel->owner = owner;
	kernel->python = cell__strdup(spec->python);
	kernel->kernel_dir = cell__strdup(host->kernel_dir);
	int rc = kernel->python && kernel->kernel_dir ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc == 0)
		rc = cell__inprocess_push(kernel, CELL_FRAME_INIT, 0, init, strlen(init), NULL, 0, err);
	if (rc == 0)
		rc = cell__inprocess_start(kernel, host, err);
	if (rc < 0) {
		cell__inprocess_unref(kernel);
		return -1;
	}
	uv_timer_init(cell__loop_uv(host->loop), &kernel->timer);
	uv_timer_init(cell__loop_uv(host->loop), &kernel->pace);
	kernel->timer.data = kernel->pace.data = kernel;
	kernel->open_handles = 2;
	*ret_kernel = &kernel->base;
	return 0;
}

static void inprocess_drain(struct cell__kernel *base)
{
	cell__inprocess_deliver_output((struct cell__inprocess *)base);
}

static int inprocess_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)base;
	if (kernel->state != CELL_INPROCESS_LIVE)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	return cell__inprocess_push(kernel, CELL_FRAME_RUN, run_id, NULL, 0, code, size, err);
}

static void inprocess_pause(struct cell__kernel *base, bool paused)
{
	struct cell__inprocess *kernel = (struct cell__inprocess *)base;
	if (kernel->paused == paused || kernel->state != CELL_INPROCESS_LIVE)
		return;
	kernel->paused = paused;
	if (paused)
		return;
	cell__inprocess_resume_output(kernel);
	cell__inprocess_take_held(kernel);
}

static int64_t inprocess_pid(const struct cell__kernel *base)
{
	(void)base;
	return getpid();
}

const struct cell__executor cell__inprocess_executor = {
	.name = "inprocess",
	.isolation = "none",
	.works_here = true,
	.takes_loop = true,
	.probe = probe,
	.check = check,
	.open = inprocess_open,
	.drain = inprocess_drain,
	.run = inprocess_run,
	.reply = cell__inprocess_reply,
	.interrupt = inprocess_interrupt,
	.pause = inprocess_pause,
	.close = inprocess_close,
	.pid = inprocess_pid,
	.receipt = CELL__RECEIPT_UNCONFINED("inprocess", "none"),
};
