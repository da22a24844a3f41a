/* The start of a Jupyter kernel: its files, its process, its first answer, and loading our package if it is ipykernel. */
#include "executors/jupyter/kernel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <zmq.h>

#include "base/libraries.h"

#define NUDGE_MS 50      /* between kernel_info requests: a new subscriber may have missed the answer */
#define TAIL_BYTES 2000  /* of its output before it was ready */
#define SOCKETS_MAX 8192 /* four a kernel */
#define LINK_FD 3        /* and the three after it */

/* ---- its first messages ---- */

/* Puts our kernel package into ipykernel.  The names of it do not show in the user's namespace. */
static int join(struct cell__jupyter_kernel *kernel, struct cell_error *err)
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
	kernel->state = CELL_JUPYTER_JOINING;
	return cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_SHELL, "execute_request", content.data, content.size, "{}",
					   kernel->join_id, err);
}

void cell__jupyter_handle_starting(struct cell__jupyter_kernel *kernel, int channel, const struct cell__jupyter_message *message)
{
	if (channel == CELL_JUPYTER_IOPUB)
		kernel->heard = true;
	if (channel == CELL_JUPYTER_SHELL && strcmp(message->type, "kernel_info_reply") == 0) {
		if (strncmp(cell__jupyter_text(message->content, "protocol_version"), "5.", 2) != 0) {
			cell__jupyter_break(kernel, "it does not speak version 5 of Jupyter's protocol");
			return;
		}
		kernel->answered = true;
		/* Another Python kernel than ipykernel has no place for our package. */
		if (kernel->link && strcmp(cell__jupyter_text(message->content, "implementation"), "ipython") != 0)
			cell__link_close(cell__take_ptr(kernel->link));
	}
	if (!kernel->answered || !kernel->heard)
		return;
	if (!kernel->link)
		cell__jupyter_come_up(kernel);
	else if (join(kernel, &kernel->error) < 0)
		cell__jupyter_end(kernel);
}

/* ---- its process ---- */

static void handle_process_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__jupyter_kernel *kernel = owner;
	if (kernel->state == CELL_JUPYTER_LIVE && kernel->run.id != 0) {
		kernel->events->output(kernel->owner, stream, bytes, size);
		return;
	}
	if (kernel->state >= CELL_JUPYTER_LIVE)
		return; /* chatter of the kernel's own, between cells */
	if (cell__buf_add(&kernel->tail, bytes, size) == 0 && kernel->tail.size > TAIL_BYTES)
		cell__buf_shift(&kernel->tail, kernel->tail.size - TAIL_BYTES);
}

static void handle_process_started(void *owner, int64_t pid)
{
	((struct cell__jupyter_kernel *)owner)->pid = pid;
}

/* Why a kernel never came up, in a helpful message. */
static void explain_start(struct cell__jupyter_kernel *kernel, const struct cell__process_exit *exit)
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
		cell_fail(&kernel->error, exit->error == ECONNRESET ? CELL_E_SPAWNER : CELL_E_KERNEL, exit->error,
			  "start the kernel %.100s", kernel->spec.argv[0]);
	else if (last[0])
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel ended before it was ready: %.180s",
			  strlen(last) > 180 ? last + strlen(last) - 180 : last);
}

static void handle_process_exited(void *owner, const struct cell__process_exit *exit)
{
	struct cell__jupyter_kernel *kernel = owner;
	kernel->process = NULL;
	if (kernel->state < CELL_JUPYTER_LIVE || (kernel->state == CELL_JUPYTER_DYING && kernel->tail.size > 0))
		explain_start(kernel, exit);
	if (exit->error == ECONNRESET)
		cell_fail(&kernel->error, CELL_E_SPAWNER, 0, "the spawner died and ended all its sessions; open a new session");
	kernel->how = (struct cell__exit){
		.status = exit->signalled ? exit->status : exit->status << 8,
		.asked = kernel->asked,
		.error = kernel->error,
	};
	bool known = exit->error == 0;
	if (kernel->channels && kernel->state == CELL_JUPYTER_LIVE)
		cell__jupyter_channels_drain(kernel->channels);
	kernel->how.known = known;
	if (kernel->told || kernel->gone.fn)
		return;
	cell__jupyter_gone(kernel);
}

static void handle_start_timer(uv_timer_t *timer)
{
	struct cell__jupyter_kernel *kernel = timer->data;
	if (kernel->state > CELL_JUPYTER_JOINING)
		return;
	if (cell__now_us() > kernel->deadline_us) {
		cell_fail(&kernel->error, CELL_E_KERNEL, 0, "the kernel was not ready within %lld s",
			  (long long)(kernel->jupyter->start_timeout_ms / 1000));
		cell__jupyter_end(kernel);
	} else if (kernel->answered && !kernel->heard && kernel->state == CELL_JUPYTER_STARTING) {
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

static int start_process(struct cell__jupyter_kernel *kernel, struct cell_error *err)
{
	struct cell__jupyter *jupyter = kernel->jupyter;
	struct cell__link_fds fds = { { -1, -1, -1, -1 } };
	if (!jupyter->zmq) {
		if (cell__library_load(CELL__LIBRARY_ZMQ, err) < 0)
			return -1;
		if (!(jupyter->zmq = zmq_ctx_new()))
			return cell_fail(err, CELL_E_IO, errno, "start ZeroMQ");
		zmq_ctx_set(jupyter->zmq, ZMQ_MAX_SOCKETS, SOCKETS_MAX);
	}
	if (kernel->spec.is_python &&
	    cell__link_create(jupyter->host->loop, &cell__jupyter_link_events, kernel, &kernel->link, &fds, err) < 0)
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
	int rc = cell__process_start(jupyter->supervisor, &process, &kernel->process, err);
	cell__link_fds_close(&fds);
	if (rc < 0 || cell__jupyter_channels_create(jupyter->host->loop, jupyter->zmq, &kernel->spec, &cell__jupyter_channel_events, kernel,
						    &kernel->channels, err) < 0)
		return -1;
	kernel->state = CELL_JUPYTER_STARTING;
	kernel->deadline_us = cell__now_us() + jupyter->start_timeout_ms * 1000;
	uv_timer_start(&kernel->timer, handle_start_timer, NUDGE_MS, NUDGE_MS);
	return cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_SHELL, "kernel_info_request", "{}", 2, "{}", NULL, err);
}

/* ---- its files ---- */

static void prepare(uv_work_t *work)
{
	struct cell__jupyter_kernel *kernel = work->data;
	struct cell__jupyter_question question = {
		.name = kernel->name,
		.python = kernel->python,
		.jupyter_path = kernel->path,
		.env = (const char *const *)kernel->env,
		.folder = kernel->jupyter->folder,
	};
	(void)cell__jupyter_spec_init(&kernel->spec, &question, &kernel->error);
}

static void handle_prepared(uv_work_t *work, int status)
{
	(void)status;
	struct cell__jupyter_kernel *kernel = work->data;
	kernel->working = false;
	if (kernel->state == CELL_JUPYTER_DYING || kernel->error.code)
		cell__jupyter_end(kernel);
	else if (start_process(kernel, &kernel->error) < 0)
		cell__jupyter_end(kernel);
}

void cell__jupyter_prepare(struct cell__jupyter_kernel *kernel)
{
	kernel->working = true;
	kernel->work.data = kernel;
	uv_queue_work(cell__loop_uv(kernel->jupyter->host->loop), &kernel->work, prepare, handle_prepared);
}
