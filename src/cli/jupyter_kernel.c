/*
 * A Jupyter kernel whose cells run in a session.
 *
 * Theory of operation.
 *
 *     main thread      shell, stdin   opens the session, runs one request after the other; events of a run come on it
 *     control thread   control, hb    interrupts, ends the kernel, answers heartbeats; watches the program that started us, starts the spare
 *     signal thread    (signals.c)    SIGINT interrupts as an interrupt_request does; SIGTERM ends
 *     engine's thread                 output between cells
 *
 * The sockets are bound before anything else, so that clients connect while the engine starts. A request is answered in this order: status
 * busy, its output, its reply, status idle.
 *
 * input() in a cell is a question of the session (CELL_GATE_QUESTIONS). The event comes on the main thread, which asks the client on stdin
 * and waits there for its answer, an interrupt or the end; the cell waits too, so nothing else could be done meanwhile. A call that needs
 * an approval is asked for in the same way.
 */
#define _GNU_SOURCE 1
#include "jupyter.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base64.h"

/* A request that was sent before the client could know of an error is aborted, if it arrives this soon after the error. */
#define ABORT_US 1000000
#define DATE_US 1000 /* the precision of a client's dates */
#define MAX_SHOWN_PROMPT 4000u
#define SPARE_DELAY_MS 50

struct front {
	struct cell_cli_host host;
	struct cell_cli_ends *ends;
	struct cell_cli_history history;
	char python[32];
	unsigned count; /* of the next cell */
	int wake_fd; /* an eventfd that wakes the main thread */
	int control_fd; /* an epoll of the following ones */
	int end_fd; /* an eventfd */
	int parent_fd, spare_fd; /* pidfds of the program that started us and of our spare; -1: none */
	int owner_fd; /* the kernel that we serve for; -1: none (jupyter_spare.c) */
	pid_t spare;
	atomic_int spare_timer_fd; /* -1: none */
	const struct cell_cli_notebook *notebook;
	atomic_bool shutdown, interrupted;
	int64_t failed_us; /* real time of the last cell that failed; 0: none */
	/* the request under way */
	const struct cell_cli_request *request;
	struct cell_cli_show show;
	bool allow_stdin;
	/* output between cells */
	pthread_mutex_t lock;
	pthread_cond_t opened; /* python is set */
	char *late_parent;
	struct cell_cli_show late;
};

/* ---- small things -------------------------------------------------------------------- */

static int64_t real_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Of "2026-11-18T07:32:42.123456Z"; 0: it is written differently. */
static int64_t date_us(const char *date)
{
	struct tm tm = { 0 };
	const char *rest = date ? strptime(date, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
	double fraction = 0;
	char *end = NULL;

	if (!rest)
		return 0;
	if (*rest == '.')
		fraction = strtod(rest, &end);
	rest = end ? end : rest;
	if (strcmp(rest, "Z") && strcmp(rest, "+00:00"))
		return 0;
	return (int64_t)timegm(&tm) * 1000000 + (int64_t)(fraction * 1e6);
}

static void wake(void *arg)
{
	struct front *front = arg;

	atomic_store(&front->interrupted, true);
	eventfd_write(front->wake_fd, 1);
}

static void set_status(struct front *front, const struct cell_cli_request *request, const char *state)
{
	cell__cli_ends_send_json(front->ends, CELL_JUPYTER_PORT_IOPUB, NULL, request ? request->header : NULL, "status",
				 json_pack("{s:s}", "execution_state", state));
}

static void publish(struct front *front, const char *type, json_t *content)
{
	cell__cli_ends_send_json(front->ends, CELL_JUPYTER_PORT_IOPUB, NULL, front->request->header, type, content);
}

static void reply(struct front *front, const char *type, json_t *content)
{
	cell__cli_ends_send_json(front->ends, CELL_JUPYTER_PORT_SHELL, front->request, front->request->header, type, content);
}

static const char *text_of(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? text : "";
}

static bool flag_of(const json_t *object, const char *name, bool otherwise)
{
	const json_t *value = json_object_get(object, name);

	return json_is_boolean(value) ? json_is_true(value) : otherwise;
}

/* ---- questions of the cell ------------------------------------------------------------- */

/*
 * An answer to this question, and not to an earlier one. Clients say what they answer by its id, by that of the request that runs, or not
 * at all (jupyter_client).
 */
static bool is_answer(const struct front *front, uint64_t question, const struct cell_cli_request *answer)
{
	const char *parent = answer->message.parent_id;

	if (strcmp(answer->message.type, "input_reply"))
		return false;
	return !*parent || cell__cli_ends_is_number(front->ends, question, parent) || !strcmp(parent, front->request->message.id);
}

/* NULL: the client did not answer before an interrupt or the end.  free() it. */
static char *ask_client(struct front *front, const char *prompt, bool password)
{
	struct cell_cli_request answer = { 0 };
	uint64_t question;
	char *text = NULL;
	eventfd_t value;

	while (cell__cli_ends_receive(front->ends, CELL_JUPYTER_PORT_STDIN, &answer)) /* late answers to earlier questions */
		cell__cli_request_finish(&answer);
	question = cell__cli_ends_send_json(front->ends, CELL_JUPYTER_PORT_STDIN, front->request, front->request->header, "input_request",
					    json_pack("{s:s, s:b}", "prompt", prompt, "password", password));
	while (!text && !atomic_load(&front->interrupted) && !cell__cli_stop_status()) {
		unsigned ready = cell__cli_ends_wait(front->ends, CELL_JUPYTER_PORT_STDIN, CELL_JUPYTER_PORT_STDIN, front->wake_fd);

		if (ready & 4)
			eventfd_read(front->wake_fd, &value);
		if ((ready & 3) && cell__cli_ends_receive(front->ends, CELL_JUPYTER_PORT_STDIN, &answer)) {
			if (is_answer(front, question, &answer))
				text = strdup(text_of(answer.message.content, "value"));
			cell__cli_request_finish(&answer);
		}
	}
	return text;
}

static void answer_input(struct front *front, const struct cell_call_info *call, struct cell_approval_answer *answer)
{
	json_t *args = json_loadb(call->args, call->args_size, 0, NULL);
	char *typed = ask_client(front, text_of(args, "message"), flag_of(args, "password", false));
	json_t *content = typed ? json_pack("{s:s}", "value", typed) : NULL;
	char *text = content ? json_dumps(content, JSON_COMPACT) : NULL;

	answer->accept = text != NULL;
	answer->args = text;
	if (text)
		cell_session_answer(front->host.session, call->id, answer, NULL);
	json_decref(content);
	json_decref(args);
	free(text);
	free(typed);
}

/* A call that needs an approval.  Its words are the code's, so they are shown without anything that could hide or imitate. */
static void answer_approval(struct front *front, const struct cell_event *event, struct cell_approval_answer *answer)
{
	const struct cell_call_info *call = event->call;
	CELL_AUTO_BUF struct cell__buf prompt = CELL_BUF_INIT;
	struct cell_error err;
	char *args = NULL, *tool = cell_shown_text(call->tool, strlen(call->tool), CELL_SHOWN_ASCII), *typed = NULL;
	char *callable = cell_shown_text(call->callable, strlen(call->callable), CELL_SHOWN_ASCII);

	if (tool && callable && cell_shown_args(call->args, call->args_size, CELL_SHOWN_ASCII, &args, &err) == 0 &&
	    cell__buf_printf(&prompt, "Allow %s%s%s?%s\nType yes to allow it: ", tool, *callable ? "." : "", callable, args) == 0)
		typed = ask_client(front, prompt.data, false);
	answer->accept = typed && !strcmp(typed, "yes");
	if (!typed && !args)
		answer->reason = "its arguments are too long to be shown";
	if (typed || !args)
		cell_session_answer(front->host.session, call->id, answer, NULL);
	free(args);
	free(tool);
	free(callable);
	free(typed);
}

static void handle_question(struct front *front, const struct cell_event *event)
{
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	bool is_question = !strcmp(event->call->kind, "question"), is_input = is_question && !strcmp(event->call->tool, "input()");

	if (!front->allow_stdin || (is_question && !is_input)) {
		answer.reason = "the notebook cannot be asked";
		cell_session_answer(front->host.session, event->call->id, &answer, NULL);
	} else if (is_input) {
		answer_input(front, event->call, &answer);
	} else {
		answer_approval(front, event, &answer);
	}
}

/* ---- events ------------------------------------------------------------------------------ */

static void handle_event(void *arg, const struct cell_event *event)
{
	struct front *front = arg;

	if (event->type == CELL_EVENT_CHUNK)
		cell__cli_show_chunk(&front->show, event->stream, event->data, event->size, false);
	else if (event->type == CELL_EVENT_DISPLAY)
		cell__cli_show_display(&front->show, event->parts, event->n_parts);
	else if (event->type == CELL_EVENT_APPROVAL)
		handle_question(front, event);
}

/* Between cells; engine's thread. */
static void handle_late(void *arg, const struct cell_event *event)
{
	struct front *front = arg;
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	char line[300];

	pthread_mutex_lock(&front->lock);
	front->late.parent = front->late_parent;
	if (!front->late.ends) {
		/* nobody listens any more */
	} else if (event->type == CELL_EVENT_CHUNK) {
		cell__cli_show_chunk(&front->late, event->stream, event->data, event->size, false);
	} else if (event->type == CELL_EVENT_DISPLAY) {
		cell__cli_show_display(&front->late, event->parts, event->n_parts);
	} else if (event->type == CELL_EVENT_KERNEL_DIED) {
		int size = snprintf(line, sizeof(line), "The kernel has died: %.200s. The next cell starts with fresh variables.\n",
				    event->message ? event->message : "");

		cell__cli_show_chunk(&front->late, CELL_STDERR, line, (size_t)size, true);
		front->count = 1;
	} else if (event->type == CELL_EVENT_APPROVAL) {
		answer.reason = "no cell runs, so the notebook cannot be asked";
		cell_session_answer(front->host.session, event->call->id, &answer, NULL);
	}
	pthread_mutex_unlock(&front->lock);
}

/* ---- running -------------------------------------------------------------------------------- */

static int run(struct front *front, const char *code, size_t size, struct cell_result **ret_result, struct cell_error *err)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	int status;

	options.on_event = handle_event;
	options.event_arg = front;
	atomic_store(&front->interrupted, false);
	if (!cell__cli_run_begin())
		return cell_fail(err, CELL_E_CANCELLED, 0, "the kernel is ending");
	status = cell_session_run(front->host.session, code, size, &options, ret_result, err);
	cell__cli_run_end();
	cell__cli_show_end(&front->show);
	return status;
}

/* Asks the kernel (kernel/workcell_kernel/notebook.py); takes the question over. */
static int ask(struct front *front, json_t *question, struct cell_result **ret_result, struct cell_error *err)
{
	char *text = question ? json_dumps(question, JSON_COMPACT) : NULL;
	CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;
	int status;

	json_decref(question);
	if (!text || cell__buf_add_str(&code, CELL_JUPYTER_ASK) < 0 || cell__buf_add_str(&code, text) < 0)
		status = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	else
		status = run(front, code.data, code.size, ret_result, err);
	free(text);
	return status;
}

/* The answer, an object; NULL: there is none, which is the kernel's failure. */
static json_t *ask_json(struct front *front, json_t *question)
{
	struct cell_result *result;
	const char *value;
	json_t *answer;

	if (ask(front, question, &result, NULL) < 0)
		return NULL;
	value = cell_result_value_json(result);
	answer = value ? json_loads(value, JSON_ALLOW_NUL, NULL) : NULL;
	cell_result_destroy(result);
	if (json_is_object(answer))
		return answer;
	json_decref(answer);
	return NULL;
}

/* ---- execute_request ----------------------------------------------------------------------------- */

static bool is_aborted(struct front *front)
{
	int64_t sent = date_us(json_string_value(json_object_get(front->request->message.header, "date")));

	if (!front->failed_us || real_us() - front->failed_us > ABORT_US)
		return false;
	return sent && sent + DATE_US < front->failed_us;
}

static json_t *outcome_of(struct cell_result *result, const struct cell_error *err)
{
	const struct cell_outcome failure = {
		.code = err->code, .type = "", .message = err->msg, .traceback = ""
	}; /* ours, not the code's */

	return cell__cli_show_outcome(result ? cell_result_error(result) : &failure);
}

/* The code has failed, or we have (result NULL). */
static void reply_error(struct front *front, struct cell_result *result, const struct cell_error *err, bool silent, bool stop)
{
	json_t *outcome = outcome_of(result, err), *content = json_pack("{s:s, s:i, s:[], s:{}}", "status", "error", "execution_count",
									front->count, "payload", "user_expressions");

	if (!silent)
		publish(front, "error", json_incref(outcome));
	if (outcome && content)
		json_object_update(content, outcome);
	json_decref(outcome);
	if (stop)
		front->failed_us = real_us();
	reply(front, "execute_reply", content);
}

static void reply_value(struct front *front, struct cell_result *result, bool silent, json_t *expressions)
{
	json_t *value = silent ? NULL : cell__cli_show_value(result), *found = NULL;

	if (value) {
		json_object_set_new(value, "execution_count", json_integer(front->count));
		publish(front, "execute_result", value);
	}
	if (json_object_size(expressions))
		found = ask_json(front, json_pack("{s:s, s:O}", "ask", "evaluate", "expressions", expressions));
	reply(front, "execute_reply",
	      json_pack("{s:s, s:i, s:O, s:o}", "status", "ok", "execution_count", front->count, "payload", front->show.payload,
			"user_expressions", found ? found : json_object()));
}

static void execute(struct front *front)
{
	const json_t *content = front->request->message.content;
	const char *code = text_of(content, "code");
	size_t size = json_string_length(json_object_get(content, "code"));
	bool silent = flag_of(content, "silent", false), keeps = !silent && flag_of(content, "store_history", true);
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };
	const struct cell_outcome *outcome;
	bool lost;

	if (is_aborted(front)) {
		reply(front, "execute_reply", json_pack("{s:s, s:i}", "status", "aborted", "execution_count", front->count));
		return;
	}
	front->failed_us = 0;
	front->allow_stdin = flag_of(content, "allow_stdin", false);
	cell__cli_ends_begin(front->ends);
	if (!silent)
		publish(front, "execute_input", json_pack("{s:s%, s:i}", "code", code, size, "execution_count", front->count));
	if (keeps)
		(void)run(front, code, size, &result, &err);
	else
		(void)ask(front, json_pack("{s:s, s:s%, s:b}", "ask", "run", "code", code, size, "silent", silent), &result, &err);
	outcome = result ? cell_result_error(result) : NULL;
	lost = result && !cell_result_state_kept(result);
	if (!result || outcome)
		reply_error(front, result, &err, silent, flag_of(content, "stop_on_error", true));
	else
		reply_value(front, result, silent, json_object_get(content, "user_expressions"));
	if (keeps)
		cell__cli_history_add(&front->history, front->count, code, result && !outcome ? cell_result_repr(result) : NULL);
	if (keeps)
		front->count++;
	if (lost)
		front->count = 1; /* a fresh kernel begins to count again */
	cell_result_destroy(result);
}

/* ---- the other requests -------------------------------------------------------------------------- */

static json_t *kernel_info(struct front *front)
{
	json_t *info;

	pthread_mutex_lock(&front->lock);
	while (!*front->python && !cell__cli_stop_status())
		pthread_cond_wait(&front->opened, &front->lock);
	info = json_pack("{s:s, s:s, s:s, s:s, s:s, s:b, s:[], s:{s:s, s:s, s:s, s:s, s:s, s:s, s:{s:s, s:i}}}", "status", "ok",
			 "protocol_version", CELL_JUPYTER_VERSION, "implementation", "workcell", "implementation_version", cell_version(),
			 "banner", "Workcell: Python in a session of its own", "debugger", 0, "help_links", "language_info", "name",
			 "python", "version", front->python, "mimetype", "text/x-python", "file_extension", ".py", "pygments_lexer",
			 "ipython3", "nbconvert_exporter", "python", "codemirror_mode", "name", "ipython", "version", 3);
	pthread_mutex_unlock(&front->lock);
	return info;
}

static void answer_info(struct front *front)
{
	reply(front, "kernel_info_reply", kernel_info(front));
}

/* The answer of the kernel with "status", or an error. */
static void reply_answer(struct front *front, const char *type, json_t *answer)
{
	if (answer && !json_object_get(answer, "status"))
		json_object_set_new(answer, "status", json_string("ok"));
	if (!answer)
		answer = json_pack("{s:s, s:s, s:s, s:[]}", "status", "error", "ename", "RuntimeError", "evalue",
				   "the kernel did not answer", "traceback");
	reply(front, type, answer);
}

static void complete(struct front *front)
{
	const json_t *content = front->request->message.content;
	json_t *answer = ask_json(front, json_pack("{s:s, s:s, s:i}", "ask", "complete", "code", text_of(content, "code"), "cursor_pos",
						   (int)json_integer_value(json_object_get(content, "cursor_pos"))));

	if (answer)
		json_object_set_new(answer, "metadata", json_object());
	reply_answer(front, "complete_reply", answer);
}

static void inspect(struct front *front)
{
	const json_t *content = front->request->message.content;

	reply_answer(front, "inspect_reply",
		     ask_json(front, json_pack("{s:s, s:s, s:i, s:i}", "ask", "inspect", "code", text_of(content, "code"), "cursor_pos",
					       (int)json_integer_value(json_object_get(content, "cursor_pos")), "detail_level",
					       (int)json_integer_value(json_object_get(content, "detail_level")))));
}

static void check_complete(struct front *front)
{
	json_t *answer = ask_json(front,
				  json_pack("{s:s, s:s}", "ask", "is_complete", "code", text_of(front->request->message.content, "code")));

	reply(front, "is_complete_reply", answer ? answer : json_pack("{s:s}", "status", "unknown"));
}

static void tell_history(struct front *front)
{
	reply(front, "history_reply",
	      json_pack("{s:s, s:o}", "status", "ok", "history", cell__cli_history_find(&front->history, front->request->message.content)));
}

static void tell_comms(struct front *front)
{
	json_t *target = json_object_get(front->request->message.content, "target_name");
	json_t *comms = ask_json(front, json_pack("{s:s, s:O?}", "ask", "comm_info", "target", json_is_string(target) ? target : NULL));

	reply(front, "comm_info_reply", json_pack("{s:s, s:o}", "status", "ok", "comms", comms ? comms : json_object()));
}

static json_t *buffers_of(const struct cell_cli_request *request)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < request->n_buffers; i++) {
		CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

		if (cell__buf_add_base64(&text, request->buffers[i].data, request->buffers[i].size) == 0)
			json_array_append_new(list, json_stringn(text.data ? text.data : "", text.size));
	}
	return list;
}

/* comm_open, comm_msg, comm_close: their handlers in the session may run any code; there is no reply. */
static void pass_comm(struct front *front)
{
	const struct cell__jupyter_message *message = &front->request->message;
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };

	front->allow_stdin = false;
	(void)ask(front,
		  json_pack("{s:s, s:s, s:O, s:O, s:o}", "ask", "comm", "kind", message->type, "content", message->content, "metadata",
			    message->metadata, "buffers", buffers_of(front->request)),
		  &result, &err);
	if (!result || cell_result_error(result))
		publish(front, "error", outcome_of(result, &err));
	cell_result_destroy(result);
}

static void end_kernel(struct front *front, const struct cell_cli_request *request, enum cell__jupyter_port port)
{
	bool restart = flag_of(request->message.content, "restart", false);

	atomic_store(&front->shutdown, true);
	cell__cli_ends_send_json(front->ends, CELL_JUPYTER_PORT_IOPUB, NULL, request->header, "shutdown_reply",
				 json_pack("{s:s, s:b}", "status", "ok", "restart", restart));
	cell__cli_ends_send_json(front->ends, port, request, request->header, "shutdown_reply",
				 json_pack("{s:s, s:b}", "status", "ok", "restart", restart));
	cell__cli_stop(128 + SIGTERM);
}

static void end_from_shell(struct front *front)
{
	end_kernel(front, front->request, CELL_JUPYTER_PORT_SHELL);
}

static const struct handler {
	const char *type;
	void (*handle)(struct front *front);
} handlers[] = {
	{ "execute_request", execute },
	{ "kernel_info_request", answer_info },
	{ "complete_request", complete },
	{ "inspect_request", inspect },
	{ "is_complete_request", check_complete },
	{ "history_request", tell_history },
	{ "comm_info_request", tell_comms },
	{ "comm_open", pass_comm },
	{ "comm_msg", pass_comm },
	{ "comm_close", pass_comm },
	{ "shutdown_request", end_from_shell },
	{ 0 },
};

static void report_unknown(const char *type)
{
	char *shown = cell_shown_text(type, strlen(type), CELL_SHOWN_ASCII);

	fprintf(stderr, "workcell: unknown request %.60s\n", shown ? shown : "");
	free(shown);
}

static void handle_request(struct front *front, const struct cell_cli_request *request)
{
	const struct handler *handler = handlers;

	while (handler->type && strcmp(handler->type, request->message.type))
		handler++;
	if (!handler->type) {
		report_unknown(request->message.type);
		return;
	}
	front->request = request;
	front->show = (struct cell_cli_show){ .ends = front->ends, .parent = request->header, .payload = json_array() };
	set_status(front, request, "busy");
	handler->handle(front);
	set_status(front, request, "idle");
	json_decref(front->show.payload);
	front->show.payload = NULL;
	if (handler->handle == execute) {
		pthread_mutex_lock(&front->lock);
		free(front->late_parent);
		front->late_parent = strdup(request->header);
		pthread_mutex_unlock(&front->lock);
	}
}

/* ---- the control thread ------------------------------------------------------------------------ */

static void interrupt(struct front *front, const struct cell_cli_request *request)
{
	wake(front);
	cell__cli_interrupt();
	cell__cli_ends_send_json(front->ends, CELL_JUPYTER_PORT_CONTROL, request, request->header, "interrupt_reply",
				 json_pack("{s:s}", "status", "ok"));
}

static void handle_control(struct front *front, const struct cell_cli_request *request)
{
	const char *type = request->message.type;

	set_status(front, request, "busy");
	if (!strcmp(type, "interrupt_request"))
		interrupt(front, request);
	else if (!strcmp(type, "shutdown_request"))
		end_kernel(front, request, CELL_JUPYTER_PORT_CONTROL);
	else if (!strcmp(type, "kernel_info_request"))
		cell__cli_ends_send_json(front->ends, CELL_JUPYTER_PORT_CONTROL, request, request->header, "kernel_info_reply",
					 kernel_info(front));
	set_status(front, request, "idle");
}

static int watch(struct front *front, int fd)
{
	struct epoll_event readable = { .events = EPOLLIN, .data.fd = fd };

	return fd < 0 ? 0 : epoll_ctl(front->control_fd, EPOLL_CTL_ADD, fd, &readable);
}

/* For the next notebook. */
static void start_spare(struct front *front)
{
	close(atomic_exchange(&front->spare_timer_fd, -1)); /* leaves the epoll */
	front->spare = cell__cli_spare_start(front->notebook);
	if (front->spare > 0) {
		front->spare_fd = (int)syscall(SYS_pidfd_open, front->spare, 0);
		(void)watch(front, front->spare_fd);
	}
}

/* Something has come on control_fd.  True: nobody is left who could end us, or the end has begun. */
static bool is_alone(struct front *front)
{
	struct epoll_event event;
	bool alone = false;

	while (epoll_wait(front->control_fd, &event, 1, 0) == 1 && !alone) {
		if (event.data.fd == atomic_load(&front->spare_timer_fd)) {
			start_spare(front);
		} else if (event.data.fd == front->spare_fd) {
			waitpid(front->spare, NULL, 0);
			close(front->spare_fd); /* leaves the epoll */
			front->spare_fd = -1;
		} else {
			alone = event.data.fd != front->owner_fd || !cell__cli_spare_hear(front->owner_fd);
		}
	}
	return alone;
}

static void *control_main(void *arg)
{
	struct front *front = arg;
	struct cell_cli_request request = { 0 };

	while (!atomic_load(&front->shutdown)) {
		unsigned ready = cell__cli_ends_wait(front->ends, CELL_JUPYTER_PORT_CONTROL, CELL_JUPYTER_PORT_HB, front->control_fd);

		if (ready & 2)
			cell__cli_ends_beat(front->ends);
		if ((ready & 1) && cell__cli_ends_receive(front->ends, CELL_JUPYTER_PORT_CONTROL, &request)) {
			handle_control(front, &request);
			cell__cli_request_finish(&request);
		}
		if ((ready & 4) && is_alone(front) && !atomic_exchange(&front->shutdown, true))
			cell__cli_stop(128 + SIGTERM);
	}
	return NULL;
}

/* ---- life ------------------------------------------------------------------------------------------ */

/* Descriptors that wake the threads. The program that started us has told us its pid, for this purpose. */
static int open_wakes(struct front *front, struct cell_error *err)
{
	const char *word = getenv("JPY_PARENT_PID");
	long pid = word ? strtol(word, NULL, 10) : 0;

	front->parent_fd = pid > 1 ? (int)syscall(SYS_pidfd_open, (pid_t)pid, 0) : -1;
	front->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	front->end_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	front->control_fd = epoll_create1(EPOLL_CLOEXEC);
	if (front->wake_fd < 0 || front->end_fd < 0 || front->control_fd < 0 || watch(front, front->end_fd) < 0 ||
	    watch(front, front->parent_fd) < 0 || watch(front, front->owner_fd) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot make descriptors for waking");
	return 0;
}

/* Not before the first answers: a spare keeps a processor busy while it starts.  Without a timer the next kernel starts as this one did. */
static void start_spare_later(struct front *front, const struct cell_cli_notebook *notebook)
{
	struct itimerspec when = { .it_value = { .tv_nsec = SPARE_DELAY_MS * 1000000L } };
	int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);

	front->notebook = notebook;
	atomic_store(&front->spare_timer_fd, fd);
	if (fd >= 0 && (timerfd_settime(fd, 0, &when, NULL) < 0 || watch(front, fd) < 0))
		close(atomic_exchange(&front->spare_timer_fd, -1));
}

static int open_session(struct front *front, const struct cell_cli_session_flags *flags, struct cell_engine *engine, struct cell_error *err)
{
	static struct cell_cli_request none;
	json_t *answer;

	if (cell__cli_open_notebook(flags, engine, handle_late, front, &front->host, err) < 0)
		return -1;
	front->request = &none;
	front->show = (struct cell_cli_show){ .ends = front->ends };
	answer = ask_json(front, json_pack("{s:s}", "ask", "describe"));
	if (!answer)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel did not answer");
	pthread_mutex_lock(&front->lock);
	snprintf(front->python, sizeof(front->python), "%s", text_of(answer, "version"));
	pthread_cond_broadcast(&front->opened);
	pthread_mutex_unlock(&front->lock);
	json_decref(answer);
	return 0;
}

static void serve(struct front *front)
{
	struct cell_cli_request request = { 0 };
	eventfd_t value;

	while (!cell__cli_stop_status()) {
		unsigned ready = cell__cli_ends_wait(front->ends, CELL_JUPYTER_PORT_SHELL, CELL_JUPYTER_PORT_SHELL, front->wake_fd);

		if (ready & 4)
			eventfd_read(front->wake_fd, &value);
		(void)cell__cli_take_sigint(); /* no cell runs: there is nothing to interrupt */
		while (!cell__cli_stop_status() && cell__cli_ends_receive(front->ends, CELL_JUPYTER_PORT_SHELL, &request)) {
			handle_request(front, &request);
			cell__cli_request_finish(&request);
		}
	}
}

static int read_connection(const char *path, struct cell__jupyter_connection *ret_connection, struct cell_error *err)
{
	char *text = NULL;
	size_t size;
	int status = cell__cli_read_file(path, &text, &size, err);

	if (!status)
		status = cell__jupyter_connection_parse(text, size, ret_connection, err);
	free(text);
	return status;
}

/*
 * The sockets first, so that the last messages are sent whatever happens then: the signal thread ends the process when it finds a stop and
 * no session.
 */
static void finish(struct front *front, pthread_t control)
{
	atomic_store(&front->shutdown, true);
	eventfd_write(front->end_fd, 1);
	pthread_join(control, NULL);
	pthread_mutex_lock(&front->lock);
	front->late.ends = NULL;
	pthread_mutex_unlock(&front->lock);
	cell__cli_ends_destroy(front->ends);
	cell__cli_close(&front->host);
	cell__cli_history_finish(&front->history);
	free(front->late_parent);
}

int cell__cli_jupyter_serve(const struct cell_cli_notebook *notebook, struct cell_engine *engine, int owner_fd)
{
	/* The signal thread outlives this function, and wake() uses its argument. */
	static struct front front = { .count = 1,
				      .wake_fd = -1,
				      .end_fd = -1,
				      .parent_fd = -1,
				      .spare_fd = -1,
				      .spare_timer_fd = -1,
				      .lock = PTHREAD_MUTEX_INITIALIZER,
				      .opened = PTHREAD_COND_INITIALIZER };
	struct cell__jupyter_connection connection;
	struct cell_error err;
	struct pollfd server = { .events = POLLIN };
	pthread_t control;
	int status = read_connection(notebook->connection_file, &connection, &err);

	front.owner_fd = owner_fd;
	if (!status)
		status = cell__cli_ends_create(&connection, &front.ends, &err);
	if (status < 0)
		return cell__cli_report(&err, false);
	front.late.ends = front.ends;
	if (open_wakes(&front, &err) < 0 || cell__cli_signals_start(true, wake, &front, &err) < 0)
		status = -1;
	else if ((status = pthread_create(&control, NULL, control_main, &front)))
		status = cell_fail(&err, CELL_E_IO, status, "cannot start a thread");
	if (status < 0)
		return cell__cli_report(&err, false);
	set_status(&front, NULL, "starting");
	if (open_session(&front, notebook->flags, engine, &err) < 0)
		return cell__cli_report(&err, false); /* the control thread may be using its sockets */
	start_spare_later(&front, notebook);
	serve(&front);
	server.fd = front.parent_fd;
	status = atomic_load(&front.shutdown) ? 0 : cell__cli_stop_status();
	finish(&front, control);
	if (atomic_load(&front.spare_timer_fd) >= 0 && poll(&server, 1, 0) == 0) /* a short notebook leaves a spare too */
		start_spare(&front);
	cell__cli_spare_tell_end(owner_fd, status);
	return status;
}
