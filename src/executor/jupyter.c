/*
 * The `jupyter` executor: kernels of any installed kernelspec, spoken to over ZeroMQ.
 *
 * A kernel:
 *
 *     preparing (files, in libuv's pool) ──▶ starting ──kernel_info_reply and something on iopub──▶ ipykernel: joining ──HELLO──▶ up
 *                                                                                                └─ others ────────────────▶ up
 *     up ──▶ spare ──open──▶ configuring (INIT) ──READY──▶ live          (others than ipykernel are live at once)
 *     any ──close, death──▶ dying ──the process is gone──▶ exited() ──the folder is removed──▶ memory gone
 *
 * ipykernel gets a second way to us, the link of link.h, inherited as descriptors 3 to 6: our kernel package is put into it by a
 * silent execute_request ("joining") and from then on cells of the session run there as they do everywhere else, in the
 * namespace that everybody who attaches sees.  Requests still go over ZeroMQ; output, results and namespace calls come by
 * the link, which keeps their order, holds a flood up, and loses nothing.
 *
 * Other kernels have ZeroMQ alone.  A run is over when its execute_reply has come and iopub says "idle" for it, because
 * both come by different ways and output may follow the reply.  A slow reader stops such a kernel as a whole (SIGSTOP):
 * its iopub socket would drop what nobody takes.
 *
 * Invariants: a kernel with an owner is no spare; only kernel_freed() frees one; exited() comes from the end of the process or
 * from a deferred task, never from inside a call of the session's.
 */
#define _GNU_SOURCE
#include "executor/jupyter.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "executor/answer.h"
#include "executor/jupyter_answer.h"
#include "executor/jupyter_channels.h"
#include "executor/jupyter_spec.h"
#include "executor/link.h"
#include "executor/subprocess.h"
#include "spawn/process.h"

#define NUDGE_MS 50         /* asked again whether it is there: the first to subscribe may have missed the answer */
#define SPARES_MAX 2        /* each is a whole process: some 60 MB */
#define REFILL_DELAY_MS 20  /* the session that took the spare goes first */
#define LATE_RESULT_MS 500  /* after the reply, for what has to come by another way */
#define TAIL_BYTES 2000     /* of what it wrote before it was ready */
#define SOCKETS_MAX 8192    /* four a kernel */
#define LINK_FD 3           /* and the three after it */

enum kernel_state { KERNEL_PREPARING, KERNEL_STARTING, KERNEL_JOINING, KERNEL_SPARE, KERNEL_CONFIGURING, KERNEL_LIVE, KERNEL_DYING };

struct run {
	uint32_t id; /* 0: none */
	char message_id[CELL_JUPYTER_ID_BYTES];
	bool replied, idle, interrupted;
	uint64_t heard; /* messages when it was last looked whether the rest will come */
	json_t *value; /* the data of an execute_result */
	json_t *error; /* the content of an error */
};

struct kernel {
	struct cell__kernel base;
	struct cell__jupyter *jupyter;
	enum kernel_state state;
	char *key; /* kernels with the same one are alike until they have a session */
	char *name, *python, *path, *preload, *cwd;
	char **env;
	struct cell__jupyter_spec spec;
	uv_work_t work;
	bool working;
	struct cell_error error;
	struct cell__process *process;
	int64_t pid;
	struct cell__link *link; /* NULL: not ipykernel */
	struct cell__jupyter_channels *channels;
	bool answered, heard, asked, exiting, told, paused;
	uint64_t n_heard; /* messages and frames so far */
	bool guarded; /* its session wants what only our package can do: ask before commands, go back to a folder */
	char join_id[CELL_JUPYTER_ID_BYTES];
	int64_t deadline_us;
	struct cell__buf tail;
	struct run run;
	char *init;
	const struct cell__kernel_events *events; /* NULL: nobody owns it */
	void *owner;
	uv_timer_t timer;
	struct cell__task gone;
	struct cell__exit how;
	struct kernel *next;
};

struct cell__jupyter {
	struct cell__executor_host *host;
	struct cell__spawn_hub *hub;
	char *kernel_dir, *folder;
	int pool_size;
	int64_t start_timeout_ms;
	void *zmq; /* NULL until first used */
	struct kernel *kernels;
	int alive; /* kernels whose memory is not gone, and the refill timer */
	uv_timer_t refill;
	bool has_timer;
	char *refill_like; /* the key of what is to be made ahead */
	bool destroying;
	void (*destroyed)(void *arg);
	void *destroyed_arg;
};

#define LOG(jupyter, level, ...) (jupyter)->host->log((jupyter)->host->log_arg, level, __VA_ARGS__)

static void kernel_failed(struct kernel *kernel);

/* ---- memory ---- */

static void maybe_destroyed(struct cell__jupyter *jupyter)
{
	if (!jupyter->destroying || jupyter->alive > 0)
		return;
	void (*done)(void *) = jupyter->destroyed;
	void *arg = jupyter->destroyed_arg;
	if (jupyter->zmq)
		zmq_ctx_term(jupyter->zmq); /* all sockets are closed and none lingers: there is nothing to wait for */
	free(jupyter->kernel_dir);
	free(jupyter->folder);
	free(jupyter->refill_like);
	free(jupyter);
	done(arg);
}

static void free_strings(char **strings)
{
	for (char **at = strings; at && *at; at++)
		free(*at);
	free(strings);
}

static void kernel_freed(uv_handle_t *handle)
{
	struct kernel *kernel = handle->data;
	struct cell__jupyter *jupyter = kernel->jupyter;
	free(kernel->key);
	free(kernel->name);
	free(kernel->python);
	free(kernel->path);
	free(kernel->preload);
	free(kernel->cwd);
	free_strings(kernel->env);
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
	struct kernel *kernel = work->data;
	cell__jupyter_spec_finish(&kernel->spec);
}

static void handle_removed(uv_work_t *work, int status)
{
	(void)status;
	struct kernel *kernel = work->data;
	struct cell__kernel_events const *events = kernel->events;
	/* Told last: "closed" means that nothing of it is left, also no file. */
	if (events)
		events->exited(kernel->owner, &kernel->how);
	uv_close((uv_handle_t *)&kernel->timer, kernel_freed);
}

/* The end of a kernel whose process is gone or never was. */
static void kernel_gone(struct kernel *kernel)
{
	assert(!kernel->told);
	kernel->told = true;
	kernel->state = KERNEL_DYING;
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
	for (struct kernel **at = &kernel->jupyter->kernels; *at; at = &(*at)->next)
		if (*at == kernel) {
			*at = kernel->next;
			break;
		}
	kernel->work.data = kernel;
	uv_queue_work(&kernel->jupyter->host->loop->uv, &kernel->work, remove_files, handle_removed);
}

static void run_gone(struct cell__task *task)
{
	struct kernel *kernel = (struct kernel *)((char *)task - offsetof(struct kernel, gone));
	kernel_gone(kernel);
}

/* Ends a kernel in any state; `how` is filled in when it is gone. */
static void end_kernel(struct kernel *kernel)
{
	kernel->state = KERNEL_DYING;
	if (kernel->process) {
		cell__process_kill(kernel->process);
	} else if (!kernel->working && !kernel->gone.fn) {
		kernel->how = (struct cell__exit){ .asked = kernel->asked, .error = kernel->error };
		kernel->gone.fn = run_gone;
		cell__loop_post(kernel->jupyter->host->loop, &kernel->gone);
	}
}

static void break_kernel(struct kernel *kernel, const char *reason)
{
	if (kernel->error.code == 0)
		cell_fail(&kernel->error, CELL_E_PROTOCOL, 0, "the kernel broke the protocol: %s", reason);
	end_kernel(kernel);
}

/* ---- ends of runs ---- */

static const char *text_of(json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));
	return text ? text : "";
}

static void forget_run(struct kernel *kernel)
{
	json_decref(cell__take_ptr(kernel->run.value));
	json_decref(cell__take_ptr(kernel->run.error));
	kernel->run.id = 0;
	uv_timer_stop(&kernel->timer);
}

static void finish_run(struct kernel *kernel)
{
	struct run *run = &kernel->run;
	struct cell__answer answer = { 0 };
	struct cell__jupyter_bundle bundle = { 0 };
	CELL_AUTO_FREE char *traceback = NULL, *value = NULL;
	uint32_t id = run->id;
	json_t *data = run->value, *plain = json_object_get(data, "text/plain"), *json = json_object_get(data, "application/json");
	if (run->error) {
		answer.failed = true;
		answer.error_type = text_of(run->error, "ename");
		answer.error_message = text_of(run->error, "evalue");
		traceback = cell__jupyter_traceback(json_object_get(run->error, "traceback"));
		answer.error_traceback = traceback ? traceback : "";
		answer.interrupted = run->interrupted;
	} else if (data) {
		cell__jupyter_bundle_init(&bundle, data, "text/plain");
		answer.mime = bundle.bundle;
		answer.repr = json_is_string(plain) ? json_string_value(plain) : "";
		answer.repr_size = json_is_string(plain) ? json_string_length(plain) : 0;
		value = json ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
		answer.value_json = value;
		answer.value_size = value ? strlen(value) : 0;
	}
	run->value = NULL; /* the answer points into it, and the session may begin another run */
	json_t *error = cell__take_ptr(run->error);
	forget_run(kernel);
	kernel->events->result(kernel->owner, id, &answer);
	cell__jupyter_bundle_finish(&bundle);
	json_decref(data);
	json_decref(error);
}

static void handle_late(uv_timer_t *timer)
{
	struct kernel *kernel = timer->data;
	if (kernel->run.id == 0 || kernel->state != KERNEL_LIVE)
		return;
	if (kernel->paused || kernel->run.heard != kernel->n_heard) {
		/* What it has published may still be on its way, or wait for a slow reader: not before nothing comes any more. */
		kernel->run.heard = kernel->n_heard;
		uv_timer_start(timer, handle_late, LATE_RESULT_MS, 0);
		return;
	}
	LOG(kernel->jupyter, CELL_LOG_WARN, "a kernel answered a cell but did not say that it is done with it");
	if (kernel->link && !kernel->run.error)
		kernel->run.error = json_pack("{s:s, s:s}", "ename", "KernelError", "evalue", "the cell ended without a result");
	finish_run(kernel);
}

static void maybe_finish(struct kernel *kernel)
{
	struct run *run = &kernel->run;
	if (!run->replied)
		return;
	if (run->idle && !kernel->link)
		finish_run(kernel);
	else
		uv_timer_start(&kernel->timer, handle_late, LATE_RESULT_MS, 0);
}

/* ---- what a kernel says by ZeroMQ ---- */

static void show(struct kernel *kernel, json_t *data)
{
	struct cell__jupyter_bundle bundle;
	cell__jupyter_bundle_init(&bundle, data, NULL);
	if (bundle.bundle.n_parts > 0)
		kernel->events->display(kernel->owner, &bundle.bundle);
	cell__jupyter_bundle_finish(&bundle);
}

static void handle_iopub(struct kernel *kernel, const struct cell__jupyter_message *message)
{
	bool mine = kernel->run.id != 0 && strcmp(message->parent_id, kernel->run.message_id) == 0;
	json_t *content = message->content, *text = json_object_get(content, "text");
	/* Others may be attached; what they run is theirs. */
	if (message->parent_session[0] && strcmp(message->parent_session, cell__jupyter_channels_session(kernel->channels)) != 0)
		return;
	if (strcmp(message->type, "stream") == 0) {
		if (json_is_string(text) && json_string_length(text) > 0)
			kernel->events->output(kernel->owner, strcmp(text_of(content, "name"), "stderr") == 0 ? CELL_STDERR : CELL_STDOUT,
					       json_string_value(text), json_string_length(text));
	} else if (strcmp(message->type, "display_data") == 0 || strcmp(message->type, "update_display_data") == 0) {
		show(kernel, json_object_get(content, "data"));
	} else if (!mine) {
		return;
	} else if (strcmp(message->type, "execute_result") == 0) {
		json_decref(kernel->run.value);
		kernel->run.value = json_incref(json_object_get(content, "data"));
	} else if (strcmp(message->type, "error") == 0) {
		json_decref(kernel->run.error);
		kernel->run.error = json_incref(content);
	} else if (strcmp(message->type, "status") == 0 && strcmp(text_of(content, "execution_state"), "idle") == 0) {
		kernel->run.idle = true;
		maybe_finish(kernel);
	}
}

static void handle_reply(struct kernel *kernel, const struct cell__jupyter_message *message)
{
	if (kernel->run.id == 0 || strcmp(message->parent_id, kernel->run.message_id) != 0)
		return;
	kernel->run.replied = true;
	if (strcmp(text_of(message->content, "status"), "ok") != 0 && !kernel->run.error)
		kernel->run.error = json_incref(message->content);
	maybe_finish(kernel);
}

static void become_up(struct kernel *kernel);

/* Puts our kernel package into ipykernel.  The names of it do not show in the user's namespace. */
static int join(struct kernel *kernel, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf program = CELL_BUF_INIT, content = CELL_BUF_INIT;
	int rc = cell__buf_add_str(&program, "import sys\nfolder = ");
	rc |= cell__buf_add_json_string(&program, kernel->jupyter->kernel_dir, strlen(kernel->jupyter->kernel_dir));
	rc |= cell__buf_add_str(&program, "\nsys.path.insert(0, folder)\ntry:\n    from workcell_kernel import jupyter\n"
					  "finally:\n    sys.path.remove(folder)\njupyter.join(");
	rc |= cell__buf_printf(&program, "(%d, %d, %d, %d), \"%s\", ", LINK_FD, LINK_FD + 1, LINK_FD + 2, LINK_FD + 3,
			       cell__jupyter_channels_session(kernel->channels));
	rc |= cell__buf_add_json_string(&program, kernel->preload, strlen(kernel->preload));
	rc |= cell__buf_add_str(&program, ")\n");
	/* JSON twice: a string of Python in a string of JSON. */
	CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;
	rc |= cell__buf_add_str(&code, "exec(compile(");
	rc |= rc ? -1 : cell__buf_add_json_string(&code, program.data, program.size);
	rc |= cell__buf_add_str(&code, ", '<workcell>', 'exec'), {})");
	rc |= cell__buf_add_str(&content, "{\"silent\":true,\"store_history\":false,\"user_expressions\":{},\"allow_stdin\":false,"
					  "\"stop_on_error\":false,\"code\":");
	rc |= rc ? -1 : cell__buf_add_json_string(&content, code.data, code.size);
	rc |= cell__buf_add_str(&content, "}");
	if (rc)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	kernel->state = KERNEL_JOINING;
	return cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_SHELL, "execute_request", content.data, content.size,
					   "{}", kernel->join_id, err);
}

static void handle_starting(struct kernel *kernel, int channel, const struct cell__jupyter_message *message)
{
	if (channel == CELL_JUPYTER_IOPUB)
		kernel->heard = true;
	if (channel == CELL_JUPYTER_SHELL && strcmp(message->type, "kernel_info_reply") == 0) {
		if (strncmp(text_of(message->content, "protocol_version"), "5.", 2) != 0) {
			break_kernel(kernel, "it does not speak version 5 of Jupyter's protocol");
			return;
		}
		kernel->answered = true;
		/* Another Python kernel than ipykernel has no place for our package. */
		if (kernel->link && strcmp(text_of(message->content, "implementation"), "ipython") != 0)
			cell__link_close(cell__take_ptr(kernel->link));
	}
	if (!kernel->answered || !kernel->heard)
		return;
	if (!kernel->link)
		become_up(kernel);
	else if (join(kernel, &kernel->error) < 0)
		end_kernel(kernel);
}

static void handle_message(void *owner, int channel, const struct cell__jupyter_message *message)
{
	struct kernel *kernel = owner;
	kernel->n_heard++;
	if (channel == CELL_JUPYTER_STDIN) {
		/* It was told that nobody can answer, and asks all the same: an empty line, so that it does not wait for ever. */
		if (strcmp(message->type, "input_request") == 0)
			(void)cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_STDIN, "input_reply", "{\"value\":\"\"}", 12, "{}",
							  NULL, NULL);
	} else if (kernel->state == KERNEL_STARTING) {
		handle_starting(kernel, channel, message);
	} else if (kernel->state == KERNEL_JOINING) {
		if (channel == CELL_JUPYTER_SHELL && strcmp(message->parent_id, kernel->join_id) == 0 &&
		    strcmp(message->type, "execute_reply") == 0 && strcmp(text_of(message->content, "status"), "ok") != 0) {
			cell_fail(&kernel->error, CELL_E_KERNEL, 0, "put the kernel's package into ipykernel: %.60s: %.120s",
				  text_of(message->content, "ename"), text_of(message->content, "evalue"));
			end_kernel(kernel);
		}
	} else if (kernel->events && (kernel->state == KERNEL_LIVE || (kernel->state == KERNEL_DYING && !kernel->how.known))) {
		if (channel == CELL_JUPYTER_IOPUB)
			handle_iopub(kernel, message);
		else if (channel == CELL_JUPYTER_SHELL && strcmp(message->type, "execute_reply") == 0 && kernel->state == KERNEL_LIVE)
			handle_reply(kernel, message);
	}
}

static void handle_broken(void *owner, const char *reason)
{
	break_kernel(owner, reason);
}

static const struct cell__jupyter_events channel_events = { .message = handle_message, .broken = handle_broken };

/* ---- what ipykernel says by the link ---- */

static void handle_ready_frame(struct kernel *kernel, const struct cell_frame *frame)
{
	json_t *ready = kernel->state == KERNEL_CONFIGURING ? json_loadb((const char *)frame->json, frame->json_size, 0, NULL) : NULL;
	const char *message = NULL;
	if (!ready) {
		break_kernel(kernel, "READY without INIT, or that is not JSON");
		return;
	}
	json_unpack(ready, "{s?{s?s}}", "error", "message", &message);
	if (json_object_get(ready, "error")) {
		cell_fail(&kernel->error, CELL_E_INVALID, 0, "%s", message ? message : "the kernel refused the session");
		end_kernel(kernel);
	} else {
		kernel->state = KERNEL_LIVE;
		uv_timer_stop(&kernel->timer);
		kernel->events->ready(kernel->owner);
	}
	json_decref(ready);
}

static void handle_frame(void *owner, const struct cell_frame *frame)
{
	struct kernel *kernel = owner;
	struct cell__answer answer;
	struct cell__bundle bundle;
	json_t *memory = NULL;
	const char *problem = NULL;
	bool live = kernel->state == KERNEL_LIVE || (kernel->state == KERNEL_DYING && kernel->events);
	kernel->n_heard++;
	if (frame->type == CELL_FRAME_HELLO) {
		if (kernel->state == KERNEL_JOINING)
			become_up(kernel);
		else
			problem = "HELLO twice";
	} else if (frame->type == CELL_FRAME_READY) {
		handle_ready_frame(kernel, frame);
	} else if (!live) {
		problem = "a frame before READY";
	} else if (frame->type == CELL_FRAME_DISPLAY) {
		if (!(problem = cell__answer_display(frame, &bundle, &memory)))
			kernel->events->display(kernel->owner, &bundle);
	} else if (frame->type == CELL_FRAME_RESULT) {
		if (!(problem = cell__answer_result(frame, &answer, &memory))) {
			if (frame->id == kernel->run.id)
				forget_run(kernel);
			kernel->events->result(kernel->owner, frame->id, &answer);
		}
	} else if (frame->type == CELL_FRAME_CALL) {
		problem = kernel->events->call(kernel->owner, frame->id, (const char *)frame->json, frame->json_size, frame->raw,
					       frame->raw_size);
	} else {
		problem = "a frame that only the host sends";
	}
	if (problem)
		break_kernel(kernel, problem);
	json_decref(memory);
}

static void handle_link_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct kernel *kernel = owner;
	if (kernel->events)
		kernel->events->output(kernel->owner, stream, bytes, size);
}

static void handle_link_broken(void *owner, const char *reason)
{
	if (reason)
		break_kernel(owner, reason);
	/* Else it is dying, and the spawner will say how; one that only closed it can do no more than run cells without results. */
}

static const struct cell__link_events link_events = {
	.frame = handle_frame, .output = handle_link_output, .broken = handle_link_broken
};

/* ---- its process ---- */

static void handle_process_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct kernel *kernel = owner;
	if (kernel->state == KERNEL_LIVE && kernel->run.id != 0) {
		kernel->events->output(kernel->owner, stream, bytes, size);
		return;
	}
	if (kernel->state >= KERNEL_LIVE)
		return; /* chatter of the kernel's own, between cells */
	if (cell__buf_add(&kernel->tail, bytes, size) == 0 && kernel->tail.size > TAIL_BYTES)
		cell__buf_shift(&kernel->tail, kernel->tail.size - TAIL_BYTES);
}

static void handle_process_started(void *owner, int64_t pid)
{
	((struct kernel *)owner)->pid = pid;
}

/* Why a kernel never came up, in words that help. */
static void explain_start(struct kernel *kernel, const struct cell__process_exit *exit)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT;
	if (kernel->error.code || kernel->asked)
		return;
	(void)cell__buf_add_utf8(&words, kernel->tail.data ? kernel->tail.data : "", kernel->tail.size);
	const char *last = words.data ? words.data : "";
	for (char *end = words.data ? words.data + words.size : NULL; end && end > words.data && (end[-1] == '\n' || end[-1] == ' ');)
		*--end = '\0';
	if (strstr(last, "No module named ipykernel") || strstr(last, "No module named 'ipykernel"))
		cell_fail(&kernel->error, CELL_E_UNAVAILABLE, 0, "%.120s has no ipykernel; install it there: pip install ipykernel",
			  kernel->spec.argv[0]);
	else if (exit->error)
		cell_fail(&kernel->error, exit->error == ECONNRESET ? CELL_E_SPAWNER : CELL_E_KERNEL, exit->error, "start the kernel %.100s",
			  kernel->spec.argv[0]);
	else if (last[0])
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel ended before it was ready: %.180s",
			  strlen(last) > 180 ? last + strlen(last) - 180 : last);
}

static void handle_process_exited(void *owner, const struct cell__process_exit *exit)
{
	struct kernel *kernel = owner;
	kernel->process = NULL;
	if (kernel->state < KERNEL_LIVE || (kernel->state == KERNEL_DYING && kernel->tail.size > 0))
		explain_start(kernel, exit);
	if (exit->error == ECONNRESET)
		cell_fail(&kernel->error, CELL_E_SPAWNER, 0, "the spawner died, and all its sessions with it; open a new session");
	kernel->how = (struct cell__exit){
		.status = exit->signalled ? exit->status : exit->status << 8, .asked = kernel->asked, .error = kernel->error,
	};
	bool known = exit->error == 0;
	if (kernel->channels && kernel->state == KERNEL_LIVE)
		cell__jupyter_channels_drain(kernel->channels);
	kernel->how.known = known;
	if (kernel->told || kernel->gone.fn)
		return;
	kernel_gone(kernel);
}

static void handle_start_timer(uv_timer_t *timer)
{
	struct kernel *kernel = timer->data;
	if (kernel->state > KERNEL_JOINING)
		return;
	if (cell__now_us() > kernel->deadline_us) {
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel was not ready within %lld s",
			  (long long)(kernel->jupyter->start_timeout_ms / 1000));
		end_kernel(kernel);
	} else if (kernel->answered && !kernel->heard && kernel->state == KERNEL_STARTING) {
		(void)cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_SHELL, "kernel_info_request", "{}", 2, "{}", NULL, NULL);
	}
}

static const char *find_path(char *const *env)
{
	const char *path = "/usr/local/bin:/usr/bin:/bin";
	for (; *env; env++)
		if (strncmp(*env, "PATH=", 5) == 0)
			path = *env + 5;
	return path;
}

static int start_process(struct kernel *kernel, struct cell_error *err)
{
	struct cell__jupyter *jupyter = kernel->jupyter;
	struct cell__link_fds fds = { { -1, -1, -1, -1 } };
	if (!jupyter->zmq) {
		if (!(jupyter->zmq = zmq_ctx_new()))
			return cell_fail(err, CELL_E_IO, errno, "start ZeroMQ");
		zmq_ctx_set(jupyter->zmq, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
	}
	if (kernel->spec.is_python &&
	    cell__link_create(jupyter->host->loop, &link_events, kernel, &kernel->link, &fds, err) < 0)
		return -1;
	struct cell__process_spec process = {
		.argv = (const char *const *)kernel->spec.argv,
		.env = (const char *const *)kernel->spec.env,
		.path = find_path(kernel->spec.env),
		.cwd = kernel->cwd,
		.timeout_ms = -1,
		.fds = fds.fd,
		.n_fds = kernel->link ? 4 : 0,
		.started = handle_process_started,
		.output = handle_process_output,
		.exited = handle_process_exited,
		.owner = kernel,
	};
	int rc = cell__process_start(jupyter->hub, &process, &kernel->process, err);
	cell__link_fds_close(&fds);
	if (rc < 0 || cell__jupyter_channels_create(jupyter->host->loop, jupyter->zmq, &kernel->spec, &channel_events, kernel,
						    &kernel->channels, err) < 0)
		return -1;
	kernel->state = KERNEL_STARTING;
	kernel->deadline_us = cell__now_us() + jupyter->start_timeout_ms * 1000;
	uv_timer_start(&kernel->timer, handle_start_timer, NUDGE_MS, NUDGE_MS);
	return cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_SHELL, "kernel_info_request", "{}", 2, "{}", NULL, err);
}

static void prepare(uv_work_t *work)
{
	struct kernel *kernel = work->data;
	struct cell__jupyter_question question = {
		.name = kernel->name, .python = kernel->python, .jupyter_path = kernel->path,
		.env = (const char *const *)kernel->env, .folder = kernel->jupyter->folder,
	};
	(void)cell__jupyter_spec_init(&kernel->spec, &question, &kernel->error);
}

static void handle_prepared(uv_work_t *work, int status)
{
	(void)status;
	struct kernel *kernel = work->data;
	kernel->working = false;
	if (kernel->state == KERNEL_DYING || kernel->error.code)
		end_kernel(kernel);
	else if (start_process(kernel, &kernel->error) < 0)
		end_kernel(kernel);
}

/* ---- sessions and spares ---- */

static char **copy_strings(const char *const *strings)
{
	size_t n = 0;
	while (strings[n])
		n++;
	char **copy = cell__alloc(n + 1, sizeof *copy);
	for (size_t i = 0; copy && i < n; i++)
		if (!(copy[i] = cell__strdup(strings[i]))) {
			free_strings(copy);
			return NULL;
		}
	return copy;
}

/* Everything that is settled when the process starts. */
static char *make_key(const struct cell__kernel_spec *spec)
{
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	int rc = cell__buf_printf(&key, "%s\n%s\n%s\n%s\n%s", spec->kernel ? spec->kernel : "", spec->python,
				  spec->jupyter_path ? spec->jupyter_path : "", spec->preload, spec->cwd);
	for (size_t i = 0; spec->env[i]; i++)
		rc |= cell__buf_printf(&key, "\n%s", spec->env[i]);
	return rc ? NULL : cell__buf_take(&key);
}

static struct kernel *kernel_create(struct cell__jupyter *jupyter, const struct cell__kernel_spec *spec, struct cell_error *err)
{
	struct kernel *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	kernel->base.executor = &cell__jupyter_executor;
	kernel->jupyter = jupyter;
	uv_timer_init(&jupyter->host->loop->uv, &kernel->timer);
	kernel->timer.data = kernel;
	jupyter->alive++;
	kernel->key = make_key(spec);
	kernel->name = spec->kernel ? cell__strdup(spec->kernel) : NULL;
	kernel->path = spec->jupyter_path ? cell__strdup(spec->jupyter_path) : NULL;
	kernel->python = cell__strdup(spec->python);
	kernel->preload = cell__strdup(spec->preload);
	kernel->cwd = cell__strdup(spec->cwd);
	kernel->env = copy_strings(spec->env);
	if (!kernel->key || (spec->kernel && !kernel->name) || (spec->jupyter_path && !kernel->path) || !kernel->python ||
	    !kernel->preload || !kernel->cwd || !kernel->env) {
		uv_close((uv_handle_t *)&kernel->timer, kernel_freed);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	kernel->next = jupyter->kernels;
	jupyter->kernels = kernel;
	kernel->working = true;
	kernel->work.data = kernel;
	uv_queue_work(&jupyter->host->loop->uv, &kernel->work, prepare, handle_prepared);
	return kernel;
}

static void handle_refill(uv_timer_t *timer)
{
	struct cell__jupyter *jupyter = timer->data;
	struct kernel *like = NULL;
	int spares = 0, most = jupyter->pool_size < SPARES_MAX ? jupyter->pool_size : SPARES_MAX;
	for (struct kernel *k = jupyter->kernels; k; k = k->next) {
		if (strcmp(k->key, jupyter->refill_like) != 0 || k->state == KERNEL_DYING)
			continue;
		spares += k->events == NULL;
		like = k;
	}
	if (!like || spares >= most || jupyter->destroying)
		return;
	struct cell__kernel_spec spec = {
		.kernel = like->name, .python = like->python, .jupyter_path = like->path, .preload = like->preload, .cwd = like->cwd,
		.env = (const char *const *)like->env,
	};
	(void)kernel_create(jupyter, &spec, NULL); /* without one the next session waits */
}

/* From now on kernels like this one are made ahead. */
static void refill(struct kernel *kernel)
{
	struct cell__jupyter *jupyter = kernel->jupyter;
	char *like = jupyter->pool_size > 0 && !jupyter->destroying ? cell__strdup(kernel->key) : NULL;
	if (!like)
		return;
	free(jupyter->refill_like);
	jupyter->refill_like = like;
	if (!jupyter->has_timer) {
		uv_timer_init(&jupyter->host->loop->uv, &jupyter->refill);
		jupyter->refill.data = jupyter;
		jupyter->has_timer = true;
		jupyter->alive++;
	}
	uv_timer_start(&jupyter->refill, handle_refill, REFILL_DELAY_MS, 0);
}

/* The kernelspec may have variables of its own, which were not known yet when INIT was made. */
static char *init_with_env(struct kernel *kernel)
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

static void configure(struct kernel *kernel)
{
	char *init = init_with_env(kernel);
	kernel->state = KERNEL_CONFIGURING;
	if (!init) {
		cell_fail(&kernel->error, CELL_E_NOMEM, 0, "out of memory");
		end_kernel(kernel);
		return;
	}
	free(kernel->init);
	kernel->init = init;
	if (cell__link_send(kernel->link, CELL_FRAME_INIT, 0, kernel->init, strlen(kernel->init), NULL, 0, &kernel->error) < 0)
		end_kernel(kernel);
}

static void become_up(struct kernel *kernel)
{
	uv_timer_stop(&kernel->timer);
	cell__buf_finish(&kernel->tail);
	if (!kernel->events) {
		kernel->state = KERNEL_SPARE;
		refill(kernel);
	} else if (kernel->link) {
		configure(kernel);
		refill(kernel);
	} else if (kernel->guarded) {
		/* Never with less than was asked for. */
		cell_fail(&kernel->error, CELL_E_UNAVAILABLE, 0,
			  "only ipykernel can ask before shell commands or restore the working directory; this kernel cannot");
		end_kernel(kernel);
	} else {
		kernel->state = KERNEL_LIVE;
		refill(kernel);
		kernel->events->ready(kernel->owner);
	}
}

static void run_taken(struct cell__task *task)
{
	struct kernel *kernel = (struct kernel *)((char *)task - offsetof(struct kernel, gone));
	kernel->gone.fn = NULL;
	if (kernel->state != KERNEL_SPARE || kernel->asked || !kernel->process) {
		kernel_failed(kernel);
		return;
	}
	become_up(kernel);
}

/* It was closed, or died, between being taken and being used. */
static void kernel_failed(struct kernel *kernel)
{
	if (!kernel->process && !kernel->told) {
		kernel->how.asked = kernel->asked;
		kernel_gone(kernel);
	}
}

static struct kernel *take_spare(struct cell__jupyter *jupyter, const char *key)
{
	struct kernel *best = NULL;
	for (struct kernel *k = jupyter->kernels; k; k = k->next)
		if (!k->events && k->state != KERNEL_DYING && strcmp(k->key, key) == 0 && (!best || k->state > best->state))
			best = k;
	return best;
}

static int jupyter_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec,
			const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel,
			struct cell_error *err)
{
	struct cell__jupyter *jupyter = host->jupyter;
	CELL_AUTO_FREE char *init = cell__subprocess_init_json(spec), *key = make_key(spec);
	if (!init || !key)
		return cell_fail(err, CELL_E_INVALID, 0, "working directory or environment is not valid UTF-8");
	struct kernel *kernel = take_spare(jupyter, key);
	if (!kernel && !(kernel = kernel_create(jupyter, spec, err)))
		return -1;
	kernel->init = cell__take_ptr(init);
	kernel->guarded = spec->gate_shell || spec->shell_escape || spec->restore_cwd;
	kernel->events = events;
	kernel->owner = owner;
	if (kernel->state == KERNEL_SPARE) {
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

static void jupyter_look(struct cell__kernel *base)
{
	struct kernel *kernel = (struct kernel *)base;
	if (kernel->link)
		cell__link_look(kernel->link);
	else if (kernel->channels)
		cell__jupyter_channels_drain(kernel->channels);
}

static int jupyter_run(struct cell__kernel *base, uint32_t run_id, const char *code, size_t size, struct cell_error *err)
{
	struct kernel *kernel = (struct kernel *)base;
	CELL_AUTO_BUF struct cell__buf content = CELL_BUF_INIT;
	char metadata[64];
	if (kernel->state != KERNEL_LIVE || !kernel->channels)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel is gone");
	if (!cell__utf8_ok(code, size))
		return cell_fail(err, CELL_E_INVALID, 0, "the code is not valid UTF-8, and Jupyter's messages are");
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

static int jupyter_reply(struct cell__kernel *base, uint32_t id, const char *json, size_t json_size, const void *raw,
			 size_t raw_size, struct cell_error *err)
{
	struct kernel *kernel = (struct kernel *)base;
	if (!kernel->link)
		return id == 0 ? 0 : cell_fail(err, CELL_E_KERNEL, 0, "the kernel is gone");
	return cell__link_send(kernel->link, CELL_FRAME_REPLY, id, json, json_size, raw, raw_size, err);
}

static struct cell__bulk *jupyter_bulk(struct cell__kernel *base)
{
	struct kernel *kernel = (struct kernel *)base;
	return kernel->link ? cell__link_bulk(kernel->link) : NULL;
}

static void jupyter_interrupt(struct cell__kernel *base, uint32_t run_id)
{
	struct kernel *kernel = (struct kernel *)base;
	if (!kernel->process || kernel->state != KERNEL_LIVE || kernel->run.id != run_id)
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
	struct kernel *kernel = (struct kernel *)base;
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
	end_kernel(timer->data);
}

static void jupyter_close(struct cell__kernel *base, int64_t grace_ms)
{
	struct kernel *kernel = (struct kernel *)base;
	bool live = kernel->state == KERNEL_LIVE;
	kernel->asked = true;
	if (kernel->told || (kernel->gone.fn && kernel->gone.fn != run_taken) || (kernel->exiting && grace_ms > 0))
		return; /* on its way already */
	if (live)
		jupyter_pause(base, false);
	if (live && grace_ms > 0 && kernel->process &&
	    cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_CONTROL, "shutdown_request", "{\"restart\":false}", 17, "{}",
					NULL, NULL) == 0) {
		kernel->exiting = true;
		uv_timer_start(&kernel->timer, handle_grace_over, (uint64_t)grace_ms, 0);
		return;
	}
	end_kernel(kernel);
}

static int64_t jupyter_pid(const struct cell__kernel *base)
{
	return ((const struct kernel *)base)->pid;
}

static const char *jupyter_connection_file(const struct cell__kernel *base)
{
	return ((const struct kernel *)base)->spec.connection_file;
}

const struct cell__executor cell__jupyter_executor = {
	.name = "jupyter",
	.isolation = "process",
	.takes = CELL_TAKES_KERNEL,
	.probe = jupyter_probe,
	.open = jupyter_open,
	.look = jupyter_look,
	.run = jupyter_run,
	.reply = jupyter_reply,
	.bulk = jupyter_bulk,
	.interrupt = jupyter_interrupt,
	.pause = jupyter_pause,
	.close = jupyter_close,
	.pid = jupyter_pid,
	.connection_file = jupyter_connection_file,
	.receipt = "{\"executor\":\"jupyter\",\"level\":\"process\",\"namespaces\":[],\"seccomp\":false,"
		   "\"landlock\":0,\"limits\":{},\"network\":\"host\",\"filesystem\":\"host\",\"skipped\":[]}",
};

/* ---- life of the whole ---- */

int cell__jupyter_create(struct cell__executor_host *host, const struct cell__jupyter_config *config,
			 struct cell__jupyter **ret_jupyter, struct cell_error *err)
{
	struct cell__jupyter *jupyter = cell__alloc(1, sizeof *jupyter);
	if (jupyter) {
		jupyter->kernel_dir = cell__strdup(config->kernel_dir);
		jupyter->folder = cell__strdup(config->folder);
	}
	if (!jupyter || !jupyter->kernel_dir || !jupyter->folder) {
		if (jupyter) {
			free(jupyter->kernel_dir);
			free(jupyter->folder);
		}
		free(jupyter);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	jupyter->host = host;
	jupyter->hub = config->hub;
	jupyter->pool_size = config->pool_size;
	jupyter->start_timeout_ms = config->start_timeout_ms;
	*ret_jupyter = jupyter;
	return 0;
}

static void handle_timer_closed(uv_handle_t *handle)
{
	struct cell__jupyter *jupyter = handle->data;
	jupyter->alive--;
	maybe_destroyed(jupyter);
}

void cell__jupyter_destroy(struct cell__jupyter *jupyter, void (*done)(void *arg), void *arg)
{
	if (!jupyter) {
		done(arg);
		return;
	}
	jupyter->destroying = true;
	jupyter->destroyed = done;
	jupyter->destroyed_arg = arg;
	jupyter->alive++; /* ours, until the list is walked */
	for (struct kernel *k = jupyter->kernels; k; k = k->next) {
		k->asked = true;
		end_kernel(k);
	}
	if (jupyter->has_timer)
		uv_close((uv_handle_t *)&jupyter->refill, handle_timer_closed);
	jupyter->alive--;
	maybe_destroyed(jupyter);
}
