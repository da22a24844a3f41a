/*
 * The `jupyter` executor: kernels of any installed kernelspec, over ZeroMQ.
 *
 * A kernel:
 *
 *     preparing (files, in libuv's pool) ──▶ starting ──kernel_info_reply and a message on iopub──▶ ipykernel: joining ──HELLO──▶ up
 *                                                                                                └─ others ────────────────▶ up
 *     up ──▶ spare ──open──▶ configuring (INIT) ──READY──▶ live          (others than ipykernel are live at once)
 *     any ──close, death──▶ dying ──the process is gone──▶ exited() ──the folder is removed──▶ memory gone
 *
 * ipykernel gets a second connection to us, the link of link.h, inherited as descriptors 3 to 6: a silent execute_request
 * ("joining") loads our kernel package into it, and from then on cells of the session run there as in every other executor, in
 * the namespace that all attached clients see.  Requests still go over ZeroMQ; output, results and namespace calls use
 * the link, which keeps their order, holds up a flood, and loses nothing.
 *
 * Other kernels have only ZeroMQ.  A run is over when its execute_reply has come and iopub reports "idle" for it, because
 * both use different sockets and output may follow the reply.  A slow reader stops such a kernel as a whole (SIGSTOP):
 * its iopub socket would drop messages that are not taken.
 *
 * Invariants: a kernel with an owner is not a spare; only kernel_freed() frees one; exited() is called from the end of the process
 * or from a deferred task, never from inside a call of the session's.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "executors/jupyter/kernel.h"
#include "executors/registry.h"
#include "executors/subprocess/subprocess.h"

#define SPARES_MAX 2       /* each is a whole process: some 60 MB */
#define REFILL_DELAY_MS 20 /* the session that took the spare goes first */

static void kernel_failed(struct cell__jupyter_kernel *kernel);

/* ---- memory ---- */

static void maybe_destroyed(struct cell__jupyter *jupyter)
{
	if (!jupyter->destroying || jupyter->alive > 0)
		return;
	void (*done)(void *) = jupyter->destroyed;
	void *arg = jupyter->destroyed_arg;
	if (jupyter->zmq)
		zmq_ctx_term(jupyter->zmq); /* all sockets are closed and none lingers: there is nothing to wait for */
	free(jupyter->refill_like);
	free(jupyter);
	done(arg);
}

static void kernel_freed(uv_handle_t *handle)
{
	struct cell__jupyter_kernel *kernel = handle->data;
	struct cell__jupyter *jupyter = kernel->jupyter;
	free(kernel->key);
	free(kernel->name);
	free(kernel->python);
	free(kernel->path);
	free(kernel->preload);
	free(kernel->cwd);
	cell__strings_free(kernel->env);
	free(kernel->init);
	cell__buf_finish(&kernel->tail);
	json_decref(kernel->run.value);
	json_decref(kernel->run.error);
	free(kernel);
	jupyter->alive--;
	maybe_destroyed(jupyter);
}

static void remove_files(uv_work_t *work)
{
	struct cell__jupyter_kernel *kernel = work->data;
	cell__jupyter_spec_finish(&kernel->spec);
}

static void handle_removed(uv_work_t *work, int status)
{
	(void)status;
	struct cell__jupyter_kernel *kernel = work->data;
	struct cell__kernel_events const *events = kernel->events;
	/* Called last: "closed" means that nothing of it is left, not even a file. */
	if (events)
		events->exited(kernel->owner, &kernel->how);
	uv_close((uv_handle_t *)&kernel->timer, kernel_freed);
}

void cell__jupyter_gone(struct cell__jupyter_kernel *kernel)
{
	assert(!kernel->told);
	kernel->told = true;
	kernel->state = CELL_JUPYTER_DYING;
	uv_timer_stop(&kernel->timer);
	if (kernel->channels) {
		cell__jupyter_channels_pause(kernel->channels, false);
		cell__jupyter_channels_drain(kernel->channels);
	}
	if (kernel->link) {
		cell__link_drain(kernel->link);
		cell__link_close(cell__take_ptr(kernel->link));
	}
	cell__jupyter_channels_close(cell__take_ptr(kernel->channels));
	for (struct cell__jupyter_kernel **at = &kernel->jupyter->kernels; *at; at = &(*at)->next)
		if (*at == kernel) {
			*at = kernel->next;
			break;
		}
	kernel->work.data = kernel;
	uv_queue_work(cell__loop_uv(kernel->jupyter->host->loop), &kernel->work, remove_files, handle_removed);
}

static struct cell__jupyter_kernel *of_gone(struct cell__task *task)
{
	return (struct cell__jupyter_kernel *)((char *)task - offsetof(struct cell__jupyter_kernel, gone));
}

static void run_gone(struct cell__task *task)
{
	struct cell__jupyter_kernel *kernel = of_gone(task);
	cell__jupyter_gone(kernel);
}

void cell__jupyter_end(struct cell__jupyter_kernel *kernel)
{
	kernel->state = CELL_JUPYTER_DYING;
	if (kernel->process) {
		cell__process_kill(kernel->process);
	} else if (!kernel->working && !kernel->gone.fn) {
		kernel->how = (struct cell__exit){ .asked = kernel->asked, .error = kernel->error };
		kernel->gone.fn = run_gone;
		cell__loop_post(kernel->jupyter->host->loop, &kernel->gone);
	}
}

void cell__jupyter_break(struct cell__jupyter_kernel *kernel, const char *reason)
{
	if (kernel->error.code == 0)
		cell_fail(&kernel->error, CELL_E_PROTOCOL, 0, "the kernel broke the protocol: %s", reason);
	cell__jupyter_end(kernel);
}

/* ---- sessions and spares ---- */

/* Everything that is settled when the process starts. */
static char *make_key(const struct cell__kernel_spec *spec)
{
	const struct cell__jupyter_options *own = spec->own;
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	int rc = cell__buf_printf(&key, "%s\n%s\n%s\n%s\n%s", own->kernel ? own->kernel : "", spec->python, own->path ? own->path : "",
				  spec->preload, spec->cwd);
	for (size_t i = 0; spec->env[i]; i++)
		rc |= cell__buf_printf(&key, "\n%s", spec->env[i]);
	return rc ? NULL : cell__buf_take(&key);
}

static struct cell__jupyter_kernel *kernel_create(struct cell__jupyter *jupyter, const struct cell__kernel_spec *spec,
						  struct cell_error *err)
{
	const struct cell__jupyter_options *own = spec->own;
	struct cell__jupyter_kernel *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	kernel->base.executor = &cell__jupyter_executor;
	kernel->jupyter = jupyter;
	uv_timer_init(cell__loop_uv(jupyter->host->loop), &kernel->timer);
	kernel->timer.data = kernel;
	jupyter->alive++;
	kernel->key = make_key(spec);
	kernel->name = own->kernel ? cell__strdup(own->kernel) : NULL;
	kernel->path = own->path ? cell__strdup(own->path) : NULL;
	kernel->python = cell__strdup(spec->python);
	kernel->preload = cell__strdup(spec->preload);
	kernel->cwd = cell__strdup(spec->cwd);
	kernel->env = cell__strings_copy(spec->env);
	if (!kernel->key || (own->kernel && !kernel->name) || (own->path && !kernel->path) || !kernel->python || !kernel->preload ||
	    !kernel->cwd || !kernel->env) {
		uv_close((uv_handle_t *)&kernel->timer, kernel_freed);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	kernel->next = jupyter->kernels;
	jupyter->kernels = kernel;
	cell__jupyter_prepare(kernel);
	return kernel;
}

static void handle_refill(uv_timer_t *timer)
{
	struct cell__jupyter *jupyter = timer->data;
	struct cell__jupyter_kernel *like = NULL;
	int spares = 0, most = jupyter->pool_size < SPARES_MAX ? jupyter->pool_size : SPARES_MAX;
	for (struct cell__jupyter_kernel *k = jupyter->kernels; k; k = k->next) {
		if (strcmp(k->key, jupyter->refill_like) != 0 || k->state == CELL_JUPYTER_DYING)
			continue;
		spares += k->events == NULL;
		like = k;
	}
	if (!like || spares >= most || jupyter->destroying)
		return;
	const struct cell__jupyter_options own = { .kernel = like->name, .path = like->path };
	const struct cell__kernel_spec spec = {
		.own = &own,
		.python = like->python,
		.preload = like->preload,
		.cwd = like->cwd,
		.env = (const char *const *)like->env,
	};
	(void)kernel_create(jupyter, &spec, NULL); /* without one the next session waits */
}

/* From now on kernels like this one are made ahead. */
static void refill(struct cell__jupyter_kernel *kernel)
{
	struct cell__jupyter *jupyter = kernel->jupyter;
	char *like = jupyter->pool_size > 0 && !jupyter->destroying ? cell__strdup(kernel->key) : NULL;
	if (!like)
		return;
	free(jupyter->refill_like);
	jupyter->refill_like = like;
	if (!jupyter->has_timer) {
		uv_timer_init(cell__loop_uv(jupyter->host->loop), &jupyter->refill);
		jupyter->refill.data = jupyter;
		jupyter->has_timer = true;
		jupyter->alive++;
	}
	uv_timer_start(&jupyter->refill, handle_refill, REFILL_DELAY_MS, 0);
}

/* The kernelspec may have variables of its own, which were not known yet when INIT was made. */
static char *init_with_env(struct cell__jupyter_kernel *kernel)
{
	json_t *init = json_loads(kernel->init, 0, NULL), *env = json_object();
	for (char **entry = kernel->spec.env; env && *entry; entry++) {
		const char *equals = strchr(*entry, '=');
		CELL_AUTO_FREE char *name = equals ? cell__strndup(*entry, (size_t)(equals - *entry)) : NULL;
		if (name)
			json_object_set_new(env, name, json_string(equals + 1));
	}
	json_object_set_new(init, "env", env);
	char *text = json_dumps(init, JSON_COMPACT);
	json_decref(init);
	return text;
}

static void configure(struct cell__jupyter_kernel *kernel)
{
	char *init = init_with_env(kernel);
	kernel->state = CELL_JUPYTER_CONFIGURING;
	if (!init) {
		cell_fail(&kernel->error, CELL_E_NOMEM, 0, "out of memory");
		cell__jupyter_end(kernel);
		return;
	}
	free(kernel->init);
	kernel->init = init;
	if (cell__link_send(kernel->link, CELL_FRAME_INIT, 0, kernel->init, strlen(kernel->init), NULL, 0, &kernel->error) < 0)
		cell__jupyter_end(kernel);
}

void cell__jupyter_come_up(struct cell__jupyter_kernel *kernel)
{
	uv_timer_stop(&kernel->timer);
	cell__buf_finish(&kernel->tail);
	if (!kernel->events) {
		kernel->state = CELL_JUPYTER_SPARE;
		refill(kernel);
	} else if (kernel->link) {
		configure(kernel);
		refill(kernel);
	} else if (kernel->guarded) {
		/* Never continue with less than was requested. */
		cell_fail(&kernel->error, CELL_E_UNAVAILABLE, 0,
			  "only ipykernel can ask before shell commands or restore the working directory; this kernel cannot");
		cell__jupyter_end(kernel);
	} else {
		kernel->state = CELL_JUPYTER_LIVE;
		refill(kernel);
		kernel->events->ready(kernel->owner);
	}
}

static void run_taken(struct cell__task *task)
{
	struct cell__jupyter_kernel *kernel = of_gone(task);
	kernel->gone.fn = NULL;
	if (kernel->state != CELL_JUPYTER_SPARE || kernel->asked || !kernel->process) {
		kernel_failed(kernel);
		return;
	}
	cell__jupyter_come_up(kernel);
}

/* It was closed, or died, between being taken and being used. */
static void kernel_failed(struct cell__jupyter_kernel *kernel)
{
	if (!kernel->process && !kernel->told) {
		kernel->how.asked = kernel->asked;
		cell__jupyter_gone(kernel);
	}
}

static struct cell__jupyter_kernel *take_spare(struct cell__jupyter *jupyter, const char *key)
{
	struct cell__jupyter_kernel *best = NULL;
	for (struct cell__jupyter_kernel *k = jupyter->kernels; k; k = k->next)
		if (!k->events && k->state != CELL_JUPYTER_DYING && strcmp(k->key, key) == 0 && (!best || k->state > best->state))
			best = k;
	return best;
}

static int jupyter_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
			void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__jupyter *jupyter = *cell__executor_state(host, &cell__jupyter_executor);
	CELL_AUTO_FREE char *init = cell__kernel_spec_json(spec), *key = make_key(spec);
	if (!init || !key)
		return cell_fail(err, CELL_E_INVALID, 0, "working directory or environment is not valid UTF-8");
	struct cell__jupyter_kernel *kernel = take_spare(jupyter, key);
	if (!kernel && !(kernel = kernel_create(jupyter, spec, err)))
		return -1;
	kernel->init = cell__take_ptr(init);
	kernel->guarded = spec->wants.gate_shell || spec->wants.shell_escape || spec->wants.restore_cwd;
	kernel->events = events;
	kernel->owner = owner;
	if (kernel->state == CELL_JUPYTER_SPARE) {
		kernel->gone.fn = run_taken;
		cell__loop_post(host->loop, &kernel->gone);
	}
	*ret_kernel = &kernel->base;
	return 0;
}

/* ---- the executor ---- */

static void jupyter_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	cell__subprocess_probe(host, info);
}

static void jupyter_drain(struct cell__kernel *base)
{
	struct cell__jupyter_kernel *kernel = (struct cell__jupyter_kernel *)base;
	if (kernel->link)
		cell__link_poll(kernel->link);
	else if (kernel->channels)
		cell__jupyter_channels_drain(kernel->channels);
}

static int jupyter_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct cell__jupyter_kernel *kernel = (struct cell__jupyter_kernel *)base;
	CELL_AUTO_BUF struct cell__buf content = CELL_BUF_INIT;
	char metadata[64];
	if (kernel->state != CELL_JUPYTER_LIVE || !kernel->channels)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	if (!cell__utf8_ok(code, size))
		return cell_fail(err, CELL_E_INVALID, 0, "the code is not valid UTF-8, which Jupyter's messages require");
	int rc = cell__buf_add_str(&content, "{\"silent\":false,\"store_history\":true,\"user_expressions\":{},\"allow_stdin\":false,"
					     "\"stop_on_error\":false,\"code\":");
	rc |= cell__buf_add_json_string(&content, code, size);
	rc |= cell__buf_add_str(&content, "}");
	if (rc)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	snprintf(metadata, sizeof metadata, "{\"workcell_run\":%lu}", (unsigned long)run_id);
	if (cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_SHELL, "execute_request", content.data, content.size,
					kernel->link ? metadata : "{}", kernel->run.message_id, err) < 0)
		return -1;
	kernel->run.id = run_id;
	kernel->run.replied = kernel->run.idle = kernel->run.interrupted = false;
	kernel->run.heard = UINT64_MAX;
	return 0;
}

static int jupyter_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw, size_t raw_size,
			 struct cell_error *err)
{
	struct cell__jupyter_kernel *kernel = (struct cell__jupyter_kernel *)base;
	if (!kernel->link)
		return id == 0 ? 0 : cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	return cell__link_send(kernel->link, CELL_FRAME_REPLY, id, json, json_size, raw, raw_size, err);
}

static size_t jupyter_unread(const struct cell__kernel *base)
{
	const struct cell__jupyter_kernel *kernel = (const struct cell__jupyter_kernel *)base;
	return kernel->link ? cell__link_unread(kernel->link) : 0;
}

static struct cell__bulk *jupyter_bulk(struct cell__kernel *base)
{
	struct cell__jupyter_kernel *kernel = (struct cell__jupyter_kernel *)base;
	return kernel->link ? cell__link_bulk(kernel->link) : NULL;
}

static void jupyter_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	struct cell__jupyter_kernel *kernel = (struct cell__jupyter_kernel *)base;
	if (!kernel->process || kernel->state != CELL_JUPYTER_LIVE || kernel->run.id != run_id)
		return;
	kernel->run.interrupted = true;
	if (kernel->link) {
		cell__link_set_interrupt(kernel->link, run_id);
		cell__process_signal(kernel->process, SIGINT, false);
	} else if (kernel->spec.interrupt_by_message) {
		(void)cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_CONTROL, "interrupt_request", "{}", 2, "{}", NULL, NULL);
	} else {
		cell__process_signal(kernel->process, SIGINT, true);
	}
}

static void jupyter_pause(struct cell__kernel *base, bool paused)
{
	struct cell__jupyter_kernel *kernel = (struct cell__jupyter_kernel *)base;
	kernel->paused = paused;
	if (kernel->link)
		cell__link_pause(kernel->link, paused);
	if (kernel->channels)
		cell__jupyter_channels_pause(kernel->channels, paused);
	if (kernel->process && !kernel->link) {
		cell__process_pause(kernel->process, paused);
		cell__process_signal(kernel->process, paused ? SIGSTOP : SIGCONT, true);
	}
}

static void handle_grace_over(uv_timer_t *timer)
{
	cell__jupyter_end(timer->data);
}

static void jupyter_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct cell__jupyter_kernel *kernel = (struct cell__jupyter_kernel *)base;
	bool live = kernel->state == CELL_JUPYTER_LIVE;
	kernel->asked = true;
	if (kernel->told || (kernel->gone.fn && kernel->gone.fn != run_taken) || (kernel->exiting && grace_ms > 0))
		return; /* on its way already */
	if (live)
		jupyter_pause(base, false);
	if (live && grace_ms > 0 && kernel->process &&
	    cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_CONTROL, "shutdown_request", "{\"restart\":false}", 17, "{}", NULL,
					NULL) == 0) {
		kernel->exiting = true;
		uv_timer_start(&kernel->timer, handle_grace_over, (uint64_t)grace_ms, 0);
		return;
	}
	cell__jupyter_end(kernel);
}

static int64_t jupyter_pid(const struct cell__kernel *base)
{
	return ((const struct cell__jupyter_kernel *)base)->pid;
}

static const char *jupyter_connection_file(const struct cell__kernel *base)
{
	return ((const struct cell__jupyter_kernel *)base)->spec.connection_file;
}

/* ---- life of the whole ---- */

static int jupyter_create(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state,
			  struct cell_error *err)
{
	struct cell__jupyter *jupyter = cell__alloc(1, sizeof *jupyter);
	if (!jupyter)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	jupyter->kernel_dir = host->kernel_dir;
	jupyter->folder = host->spill_dir;
	jupyter->host = host;
	jupyter->supervisor = host->supervisor;
	jupyter->pool_size = opts->pool_size;
	jupyter->start_timeout_ms = opts->start_timeout_ms;
	*ret_state = jupyter;
	return 0;
}

static void handle_timer_closed(uv_handle_t *handle)
{
	struct cell__jupyter *jupyter = handle->data;
	jupyter->alive--;
	maybe_destroyed(jupyter);
}

static void jupyter_destroy(void *state, void (*done)(void *arg), void *arg)
{
	struct cell__jupyter *jupyter = state;
	jupyter->destroying = true;
	jupyter->destroyed = done;
	jupyter->destroyed_arg = arg;
	jupyter->alive++; /* ours, until the list is walked */
	for (struct cell__jupyter_kernel *k = jupyter->kernels; k; k = k->next) {
		k->asked = true;
		cell__jupyter_end(k);
	}
	if (jupyter->has_timer)
		uv_close((uv_handle_t *)&jupyter->refill, handle_timer_closed);
	jupyter->alive--;
	maybe_destroyed(jupyter);
}

/* ---- its own options ---- */

static void jupyter_free_options(void *state)
{
	struct cell__jupyter_options *own = state;
	free(own->kernel);
	free(own->path);
	free(own);
}

static int jupyter_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err)
{
	struct cell__jupyter_options *own = cell__alloc(1, sizeof *own);
	if (own) {
		own->kernel = opts->kernel ? cell__strdup(opts->kernel) : NULL;
		own->path = opts->jupyter_path ? cell__strdup(opts->jupyter_path) : NULL;
	}
	if (!own || (opts->kernel && !own->kernel) || (opts->jupyter_path && !own->path)) {
		if (own)
			jupyter_free_options(own);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	*ret_own = own;
	return 0;
}

const struct cell__executor cell__jupyter_executor = {
	.name = "jupyter",
	.isolation = "process",
	.works_here = true,
	.takes = CELL_TAKES_KERNEL,
	.create = jupyter_create,
	.destroy = jupyter_destroy,
	.read_options = jupyter_read_options,
	.free_options = jupyter_free_options,
	.probe = jupyter_probe,
	.open = jupyter_open,
	.drain = jupyter_drain,
	.run = jupyter_run,
	.reply = jupyter_reply,
	.unread = jupyter_unread,
	.bulk = jupyter_bulk,
	.interrupt = jupyter_interrupt,
	.pause = jupyter_pause,
	.close = jupyter_close,
	.pid = jupyter_pid,
	.connection_file = jupyter_connection_file,
	.receipt = CELL__RECEIPT_UNCONFINED("jupyter", "process"),
};
