/* The messages of a Jupyter kernel: by ZeroMQ, and, if it is ipykernel, frames by the link; and how they end a run. */
#include "executors/jupyter/kernel.h"

#include <string.h>

#include "executors/answer.h"

#define LATE_RESULT_MS 500 /* after the reply, for messages of the other connection */

/* ---- ends of runs ---- */

static void forget_run(struct cell__jupyter_kernel *kernel)
{
	json_decref(cell__take_ptr(kernel->run.value));
	json_decref(cell__take_ptr(kernel->run.error));
	kernel->run.id = 0;
	uv_timer_stop(&kernel->timer);
}

static void finish_run(struct cell__jupyter_kernel *kernel)
{
	struct cell__jupyter_run *run = &kernel->run;
	struct cell__kernel_answer answer = { 0 };
	struct cell__jupyter_bundle bundle = { 0 };
	CELL_AUTO_FREE char *traceback = NULL, *value = NULL;
	uint32_t id = run->id;
	json_t *data = run->value, *plain = json_object_get(data, "text/plain"), *json = json_object_get(data, "application/json");
	if (run->error) {
		answer.failed = true;
		answer.error_type = cell__jupyter_text(run->error, "ename");
		answer.error_message = cell__jupyter_text(run->error, "evalue");
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

static void maybe_finish(struct cell__jupyter_kernel *kernel);

static void handle_late(uv_timer_t *timer)
{
	struct cell__jupyter_kernel *kernel = timer->data;
	if (kernel->run.id == 0 || kernel->state != CELL_JUPYTER_LIVE)
		return;
	if (kernel->run.idle && !kernel->link) {
		maybe_finish(kernel); /* paused when it was tried first */
		return;
	}
	if (kernel->paused || kernel->run.heard != kernel->n_heard) {
		/* Its publications may still be in transit, or wait for a slow reader: continue until no more arrive. */
		kernel->run.heard = kernel->n_heard;
		uv_timer_start(timer, handle_late, LATE_RESULT_MS, 0);
		return;
	}
	struct cell__executor_host *host = kernel->jupyter->host;
	host->log(host->log_arg, CELL_LOG_WARN, "a kernel answered a cell without reporting that it was finished");
	if (kernel->link && !kernel->run.error)
		kernel->run.error = json_pack("{s:s, s:s}", "ename", "KernelError", "evalue", "the cell ended without a result");
	finish_run(kernel);
}

static void maybe_finish(struct cell__jupyter_kernel *kernel)
{
	struct cell__jupyter_run *run = &kernel->run;
	if (!run->replied)
		return;
	if (run->idle && !kernel->link) {
		/* Bytes that it wrote past the protocol are in its pipes by now, but possibly not read. */
		if (!kernel->process || cell__process_drain(kernel->process)) {
			finish_run(kernel);
			return;
		}
	}
	uv_timer_start(&kernel->timer, handle_late, LATE_RESULT_MS, 0);
}

/* ---- by ZeroMQ ---- */

static void show(struct cell__jupyter_kernel *kernel, json_t *data)
{
	struct cell__jupyter_bundle bundle;
	cell__jupyter_bundle_init(&bundle, data, NULL);
	if (bundle.bundle.n_parts > 0)
		kernel->events->display(kernel->owner, &bundle.bundle);
	cell__jupyter_bundle_finish(&bundle);
}

static void handle_iopub(struct cell__jupyter_kernel *kernel, const struct cell__jupyter_message *message)
{
	bool mine = kernel->run.id != 0 && strcmp(message->parent_id, kernel->run.message_id) == 0;
	json_t *content = message->content, *text = json_object_get(content, "text");
	/* Other clients may be attached; their runs do not concern us. */
	if (message->parent_session[0] && strcmp(message->parent_session, cell__jupyter_channels_session(kernel->channels)) != 0)
		return;
	if (strcmp(message->type, "stream") == 0) {
		if (json_is_string(text) && json_string_length(text) > 0)
			kernel->events->output(kernel->owner,
					       strcmp(cell__jupyter_text(content, "name"), "stderr") == 0 ? CELL_STDERR : CELL_STDOUT,
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
	} else if (strcmp(message->type, "status") == 0 && strcmp(cell__jupyter_text(content, "execution_state"), "idle") == 0) {
		kernel->run.idle = true;
		maybe_finish(kernel);
	}
}

static void handle_reply(struct cell__jupyter_kernel *kernel, const struct cell__jupyter_message *message)
{
	if (kernel->run.id == 0 || strcmp(message->parent_id, kernel->run.message_id) != 0)
		return;
	kernel->run.replied = true;
	if (strcmp(cell__jupyter_text(message->content, "status"), "ok") != 0 && !kernel->run.error)
		kernel->run.error = json_incref(message->content);
	maybe_finish(kernel);
}

static void handle_message(void *owner, int channel, const struct cell__jupyter_message *message)
{
	struct cell__jupyter_kernel *kernel = owner;
	kernel->n_heard++;
	if (channel == CELL_JUPYTER_STDIN) {
		/*
		 * It was told that input is not available, and requests it nevertheless: send an empty line, so that it does not wait for
		 * ever.
		 */
		if (strcmp(message->type, "input_request") == 0)
			(void)cell__jupyter_channels_send(kernel->channels, CELL_JUPYTER_STDIN, "input_reply", "{\"value\":\"\"}", 12, "{}",
							  NULL, NULL);
	} else if (kernel->state == CELL_JUPYTER_STARTING) {
		cell__jupyter_handle_starting(kernel, channel, message);
	} else if (kernel->state == CELL_JUPYTER_JOINING) {
		if (channel == CELL_JUPYTER_SHELL && strcmp(message->parent_id, kernel->join_id) == 0 &&
		    strcmp(message->type, "execute_reply") == 0 && strcmp(cell__jupyter_text(message->content, "status"), "ok") != 0) {
			cell_fail(&kernel->error, CELL_E_KERNEL, 0, "put the kernel's package into ipykernel: %.60s: %.120s",
				  cell__jupyter_text(message->content, "ename"), cell__jupyter_text(message->content, "evalue"));
			cell__jupyter_end(kernel);
		}
	} else if (kernel->events && (kernel->state == CELL_JUPYTER_LIVE || (kernel->state == CELL_JUPYTER_DYING && !kernel->how.known))) {
		if (channel == CELL_JUPYTER_IOPUB)
			handle_iopub(kernel, message);
		else if (channel == CELL_JUPYTER_SHELL && strcmp(message->type, "execute_reply") == 0 && kernel->state == CELL_JUPYTER_LIVE)
			handle_reply(kernel, message);
	}
}

static void handle_broken(void *owner, const char *reason)
{
	cell__jupyter_break(owner, reason);
}

const struct cell__jupyter_events cell__jupyter_channel_events = { .message = handle_message, .broken = handle_broken };

/* ---- by the link ---- */

static const char *handle_ready_frame(struct cell__jupyter_kernel *kernel, const struct cell_frame *frame)
{
	struct cell_error refusal;
	if (kernel->state != CELL_JUPYTER_CONFIGURING)
		return "READY without INIT";
	const char *problem = cell__answer_ready(frame, &refusal);
	if (problem)
		return problem;
	if (refusal.code) {
		kernel->error = refusal;
		cell__jupyter_end(kernel);
		return NULL;
	}
	kernel->state = CELL_JUPYTER_LIVE;
	uv_timer_stop(&kernel->timer);
	kernel->events->ready(kernel->owner);
	return NULL;
}

static void handle_frame(void *owner, const struct cell_frame *frame, const struct cell__read *read)
{
	struct cell__jupyter_kernel *kernel = owner;
	const char *problem = NULL;
	bool live = kernel->state == CELL_JUPYTER_LIVE || (kernel->state == CELL_JUPYTER_DYING && kernel->events);
	kernel->n_heard++;
	if (frame->type == CELL_FRAME_HELLO) {
		if (kernel->state == CELL_JUPYTER_JOINING)
			cell__jupyter_come_up(kernel);
		else
			problem = "HELLO twice";
	} else if (frame->type == CELL_FRAME_READY) {
		problem = handle_ready_frame(kernel, frame);
	} else if (!live) {
		problem = "a frame before READY";
	} else {
		if (frame->type == CELL_FRAME_RESULT && frame->id == kernel->run.id)
			forget_run(kernel);
		problem = cell__answer_hand_on(frame, read, kernel->events, kernel->owner);
	}
	if (problem)
		cell__jupyter_break(kernel, problem);
}

static void handle_link_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__jupyter_kernel *kernel = owner;
	if (kernel->events)
		kernel->events->output(kernel->owner, stream, bytes, size);
}

static void handle_link_broken(void *owner, const char *reason)
{
	if (reason)
		cell__jupyter_break(owner, reason);
	/* Else it is dying, and the spawner will report how; a kernel that only closed it can do no more than run cells without results. */
}

const struct cell__link_events cell__jupyter_link_events = { .frame = handle_frame,
							     .output = handle_link_output,
							     .broken = handle_link_broken };
