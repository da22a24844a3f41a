/*
 * The thread of a handle.  It opens the session, runs the queued cells in order, and closes the session when the handle is closing and has no
 * users any more.
 *
 *     queued ──▶ given to the session (handle->running) ──▶ result ──▶ answered
 *        └── cancelled: never runs      └── cancelled: interrupted, its result is dropped
 *
 * Events come on the engine's thread, which must not wait: they become messages in the sink at once, and the handle's thread only gets the
 * result.  An approval becomes an elicitation; the client's answer comes back through cell__mcp_cells_approval() on the transport's thread.
 */
#include "mcp/server/server.h"

#include <assert.h>
#include <string.h>

#define LOG_INFO 1 /* index in the protocol's list of levels */
#define MAX_FORM_BYTES 16000u /* of a question that is passed on for an MCP server */

/* ---- output as it comes ------------------------------------------------------------- */

/* With the lock held. The part of the chunk that is complete text; false: nothing yet. */
static bool chunk_text(struct cell__mcp_job *job, enum cell_stream stream, const void *data, size_t size, struct cell__buf *text)
{
	struct cell__buf *tail = &job->tails[stream == CELL_STDERR];
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	size_t cut;

	if (cell__buf_add(&bytes, tail->data, tail->size) < 0 || cell__buf_add(&bytes, data, size) < 0)
		return false;
	cut = cell__utf8_cut(bytes.data, bytes.size);
	cell__buf_shift(tail, tail->size);
	cell__buf_add(tail, bytes.data + bytes.size - cut, cut);
	return bytes.size > cut && !cell__buf_add_utf8(text, bytes.data, bytes.size - cut);
}

/* The receiver of news about a job; peer NULL: nobody. */
struct target {
	struct cell__mcp_peer *peer;
	void *stream;
	const json_t *token; /* of progress; NULL: progress is not wanted */
	int log_level;
	bool elicits;
	bool modern;         /* not by a request of ours, but by input_required */
};

/* With the lock held.  job NULL: code that runs on after its cell, whose news only a connection with a session of its own can get. */
static struct target target_of(const struct cell__mcp_handle *handle, const struct cell__mcp_job *job)
{
	const struct cell__mcp_pending *request = job ? job->request : NULL;
	struct cell__mcp_peer *peer = request ? request->peer : job ? NULL : handle->home;
	struct target target = { .peer = peer, .log_level = -1 };

	if (request && request->unit->modern)
		target = (struct target){ peer, request->unit->stream, request->token, request->log_level, request->elicits, true };
	else if (peer)
		target = (struct target){
			peer, request ? request->unit->stream : NULL, request ? request->token : NULL, peer->log_level, peer->elicits, false
		};
	return target;
}

/* A client that does not keep up loses only the live view. */
static bool can_tell(const struct target *target)
{
	return target->peer && !target->peer->sink.full(target->peer->sink.arg, target->stream);
}

/* With the lock held.  job NULL: as for target_of(). */
static void tell_chunk(struct cell__mcp_handle *handle, struct cell__mcp_job *job, enum cell_stream stream, const void *data, size_t size)
{
	struct target target = target_of(handle, job);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	bool told = true;

	if (job) {
		job->progress += (double)size;
		job->told_us = cell__now_us();
		told = chunk_text(job, stream, data, size, &text);
	} else {
		cell__buf_add_utf8(&text, data, size);
	}
	if (!told || !text.size || !can_tell(&target))
		return;
	if (job && target.token)
		cell__mcp_peer_notify(target.peer, target.stream, "notifications/progress",
				      json_pack("{s:O, s:f, s:s#}", "progressToken", target.token, "progress", job->progress, "message",
						text.data, (int)text.size));
	if (target.log_level >= 0 && target.log_level <= LOG_INFO)
		cell__mcp_peer_notify(target.peer, target.stream, "notifications/message",
				      json_pack("{s:s, s:s, s:s#}", "level", "info", "logger", stream == CELL_STDERR ? "stderr" : "stdout",
						"data", text.data, (int)text.size));
}

void cell__mcp_tell_output(struct cell__mcp_handle *handle, struct cell__mcp_job *job, enum cell_stream stream, const void *bytes,
			   size_t size)
{
	pthread_mutex_lock(&handle->server->lock);
	tell_chunk(handle, job, stream, bytes, size);
	pthread_mutex_unlock(&handle->server->lock);
}

/* ---- approvals ------------------------------------------------------------------------ */

static void reject(struct cell_session *session, uint64_t id, const char *reason)
{
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;

	answer.reason = reason;
	cell_session_answer(session, id, &answer, NULL); /* fails if it no longer waits */
}

static const char no_scope[] = "this needs an approval, but the token of the MCP client lacks the scope approve";

/* A line of text for a page of the client, which may render Markdown or HTML; NULL: no memory. */
static char *page_text(const char *text)
{
	return cell_shown_text(text, strlen(text), CELL_SHOWN_MARKDOWN);
}

/* NULL: it cannot be shown exactly, and err has the reason. */
static json_t *approval_form(const struct cell_event *event, struct cell_error *err)
{
	const struct cell_call_info *call = event->call;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *tool = page_text(call->tool), *callable = page_text(call->callable), *adapter = page_text(call->adapter);
	CELL_AUTO_FREE char *words = page_text(event->message ? event->message : ""), *args = NULL;

	if (cell_shown_args(call->args, call->args_size, CELL_SHOWN_MARKDOWN, &args, err) < 0)
		return NULL;
	if (!tool || !callable || !adapter || !words ||
	    cell__buf_printf(&text, "%s wants to use %s %s%s%s (%s) with these arguments:\n%s", call->client ? "The agent" : "The code",
			     call->kind, tool, *callable ? "." : "", callable, adapter, args) < 0 ||
	    (*words && cell__buf_printf(&text, "\n\nThe policy says: %s", words) < 0)) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	return json_pack("{s:s#, s:{s:s, s:{s:{s:s, s:s, s:s, s:[s,s,s], s:[s,s,s]}, s:{s:s, s:s, s:s}}, s:[s]}}", "message",
			 text.size ? text.data : "", (int)text.size, "requestedSchema", "type", "object", "properties", "decision", "type",
			 "string", "title", "Decision", "description",
			 "accept: run this call; always: also run every later call of the same tool; reject: refuse this call", "enum",
			 "accept", "always", "reject", "enumNames", "Accept", "Accept always", "Reject", "reason", "type", "string",
			 "title", "Reason", "description", "when rejecting: the reason to report to the code", "required", "decision");
}

static bool is_plain(const char *text)
{
	CELL_AUTO_FREE char *shown = cell_shown_text(text, strlen(text), CELL_SHOWN_LINE);

	return shown && !strcmp(shown, text);
}

/* Words for people are made plain; false: a name or value that cannot be changed is not. */
static bool clean_form(json_t *value, bool for_people)
{
	const char *key;
	json_t *item;
	size_t i;
	bool clean = true;

	if (json_is_string(value) && for_people) {
		CELL_AUTO_FREE char *shown = page_text(json_string_value(value));
		return shown && !json_string_set(value, shown);
	}
	if (json_is_string(value))
		return strlen(json_string_value(value)) == json_string_length(value) && is_plain(json_string_value(value));
	json_array_foreach(value, i, item)
		clean = clean && clean_form(item, for_people);
	json_object_foreach(value, key, item)
		clean = clean && is_plain(key) &&
			clean_form(item, json_is_string(item) ? !strcmp(key, "title") || !strcmp(key, "description")
							      : json_is_array(item) && !strcmp(key, "enumNames"));
	return clean;
}

/*
 * The form of an MCP server, in its words, after the name of its tool, and nothing else that it sent.  NULL: it cannot be shown, or is not a
 * form: our own client is asked for forms alone.
 */
static json_t *question_form(const struct cell_call_info *call)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *tool = page_text(call->tool), *callable = page_text(call->callable), *words = NULL;
	json_t *asked = call->args_size <= MAX_FORM_BYTES ? json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL) : NULL,
	       *form = NULL;
	json_t *message = json_object_get(asked, "message"), *schema = json_object_get(asked, "requestedSchema");
	const json_t *mode = json_object_get(asked, "mode");
	bool is_form = json_is_object(schema) && (!mode || (json_is_string(mode) && !strcmp(json_string_value(mode), "form")));

	if (json_is_string(message))
		words = cell_shown_text(json_string_value(message), json_string_length(message), CELL_SHOWN_MARKDOWN);
	if (is_form && tool && callable && words && clean_form(schema, false) &&
	    cell__buf_printf(&text, "%s%s%s asks: %s", tool, *callable ? "." : "", callable, words) >= 0)
		form = json_pack("{s:o, s:O}", "message", json_stringn(text.data, text.size), "requestedSchema", schema);
	json_decref(asked);
	return form;
}

/* NULL: it cannot be shown, and *why has the reason for the code. */
static json_t *form_of(const struct cell_event *event, struct cell__buf *why)
{
	struct cell_error err;
	json_t *form;

	if (!strcmp(event->call->kind, "question"))
		return question_form(event->call);
	form = approval_form(event, &err);
	if (!form)
		cell__buf_printf(why, "this needs an approval, but its arguments cannot be shown to the user: %s", err.msg);
	return form;
}

/* Not with the lock held: a rejection is an event. */
static void ask_approval(struct cell__mcp_handle *handle, struct cell__mcp_job *job, const struct cell_event *event)
{
	static const char nobody[] = "this needs an approval, but the MCP client cannot ask its user (it does not support elicitation); "
				     "start the server with --approve auto, or with a policy that allows it";
	bool is_question = !strcmp(event->call->kind, "question"), asked = false, parks, may;
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	json_t *form = form_of(event, &why), *result = NULL;
	struct cell__mcp_pending *request = NULL;
	struct target target;

	pthread_mutex_lock(&handle->server->lock);
	target = target_of(handle, job);
	/* A job that has asked this way asks on, also while nobody waits for it. */
	parks = job && (cell__mcp_job_asks(job) || (target.modern && target.elicits));
	may = is_question || !target.peer || !atomic_load(&target.peer->cannot_approve);
	if (form && may && parks)
		asked = cell__mcp_job_park(job, form, event->call->id, is_question, &result);
	else if (form && may && target.peer && target.elicits)
		asked = cell__mcp_peer_ask(target.peer, target.stream, json_incref(form), handle->serial, event->call->id, is_question);
	if (result)
		request = cell__mcp_take_request(job);
	pthread_mutex_unlock(&handle->server->lock);
	if (request)
		cell__mcp_pending_answer(request, result);
	if (!asked)
		reject(handle->session, event->call->id, is_question ? NULL : !may ? no_scope : why.size ? why.data : nobody);
	json_decref(form);
}

void cell__mcp_cells_approval(struct cell__mcp_handle *handle, bool cannot_approve, uint64_t approval, const json_t *result)
{
	const char *action = json_string_value(json_object_get(result, "action"));
	const json_t *content = json_object_get(result, "content");
	const char *decision = json_string_value(json_object_get(content, "decision"));
	const char *reason = json_string_value(json_object_get(content, "reason"));
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;

	if (cannot_approve) {
		reject(handle->session, approval, no_scope);
	} else if (!result) {
		reject(handle->session, approval, "the MCP client failed to ask its user");
	} else if (action && decision && !strcmp(action, "accept") && (!strcmp(decision, "accept") || !strcmp(decision, "always"))) {
		answer.accept = 1;
		answer.always = !strcmp(decision, "always");
		cell_session_answer(handle->session, approval, &answer, NULL);
	} else if (action && !strcmp(action, "accept")) {
		reject(handle->session, approval, reason && *reason ? reason : "the user rejected it");
	} else {
		reject(handle->session, approval, action && !strcmp(action, "decline") ? "the user declined" : "the user gave no answer");
	}
}

void cell__mcp_cells_question(struct cell__mcp_handle *handle, uint64_t approval, const json_t *result)
{
	if (approval & CELL_MCP_OWN_QUESTION) {
		cell__mcp_offer_answered(handle->server, approval, result);
		return;
	}

	const char *action = json_string_value(json_object_get(result, "action"));
	const json_t *content = json_object_get(result, "content");
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	CELL_AUTO_FREE char *text = content ? json_dumps(content, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	answer.accept = action && !strcmp(action, "accept");
	answer.args = answer.accept ? text : NULL;
	answer.dismiss = !action || (!answer.accept && strcmp(action, "decline"));
	if (!cell_session_answer(handle->session, approval, &answer, NULL) || !answer.accept)
		return;
	/* An answer that does not fit the question counts as no answer. */
	answer = (struct cell_approval_answer){ .size = sizeof(answer), .dismiss = 1 };
	cell_session_answer(handle->session, approval, &answer, NULL); /* fails if it no longer waits */
}

/* ---- notifications of MCP servers ------------------------------------------------------- */

static void tell_progress(const struct target *target, struct cell__mcp_job *job, const struct cell_event *event, const json_t *said)
{
	const char *words = json_string_value(json_object_get(said, "message"));
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (!job || !target->token)
		return;
	cell__buf_printf(&text, "%s.%s: %g", event->call->tool, event->call->callable,
			 json_number_value(json_object_get(said, "progress")));
	if (json_is_number(json_object_get(said, "total")))
		cell__buf_printf(&text, "/%g", json_number_value(json_object_get(said, "total")));
	if (words)
		cell__buf_printf(&text, " %s", words);
	job->progress += 1;
	cell__mcp_peer_notify(target->peer, target->stream, "notifications/progress",
			      json_pack("{s:O, s:f, s:s#}", "progressToken", target->token, "progress", job->progress, "message",
					text.size ? text.data : "", (int)text.size));
}

/* The server's message, with the tool's name as the logger's; if the client enabled that level. */
static void tell_log(const struct target *target, const struct cell_event *event, const json_t *said)
{
	const char *level = json_string_value(json_object_get(said, "level"));
	const json_t *data = json_object_get(said, "data");
	int number = cell__mcp_log_level(level);

	if (number < 0 || target->log_level < 0 || number < target->log_level || !data)
		return;
	cell__mcp_peer_notify(target->peer, target->stream, "notifications/message",
			      json_pack("{s:s, s:s, s:O}", "level", level, "logger", event->call->tool, "data", data));
}

/* With the lock held. */
static void tell_news(struct cell__mcp_handle *handle, struct cell__mcp_job *job, const struct cell_event *event)
{
	struct target target = target_of(handle, job);
	json_t *said;

	if (!can_tell(&target))
		return;
	said = json_loadb(event->data, event->size, JSON_ALLOW_NUL, NULL);
	if (event->type == CELL_EVENT_TOOL_PROGRESS)
		tell_progress(&target, job, event, said);
	else
		tell_log(&target, event, said);
	json_decref(said);
}

/* ---- events ----------------------------------------------------------------------------- */

/* With the lock held. */
static void tell_ended(struct cell__mcp_handle *handle, struct cell__mcp_job *job, const struct cell_event *event)
{
	const char *why = event->decision ? event->decision : "ended";

	cell__mcp_job_unpark(job, event->call->id);

	/* Its cell may have ended before it, and the connection was asked that it belonged to. */
	for (struct cell__mcp_peer *peer = handle->server->peers; peer; peer = peer->next) {
		struct target target = target_of(handle, job);

		cell__mcp_peer_forget(peer, target.peer == peer ? target.stream : NULL, handle->serial, event->call->id, why);
	}
}

/* With the lock held. */
static void end_trace(struct cell__mcp_handle *handle, struct cell__mcp_job *job, const struct cell_result *result)
{
	const struct cell__mcp_tracer *tracer = &handle->server->tracer;
	void *trace = cell__take_ptr(job->trace);

	struct cell__mcp_traced traced = { handle->session ? cell_session_id(handle->session) : "", handle->owner, &handle->link,
					   &handle->last };

	if (trace)
		tracer->end(tracer->arg, trace, &traced, result);
}

/* Engine's thread. */
static void handle_event(void *arg, const struct cell_event *event)
{
	struct cell__mcp_handle *handle = arg;
	struct cell_mcp_server *server = handle->server;
	struct cell__mcp_job *job;

	pthread_mutex_lock(&server->lock);
	/* The job stays until we have given it its result, and that is the last event. */
	job = handle->current;
	if (job && job->trace && event->call && !event->call->client && server->tracer.arg)
		server->tracer.event(server->tracer.arg, job->trace, event);
	/* A call of the client itself, which waits for it, and so its job exists. */
	if (event->call && event->call->client)
		job = event->call->client;
	switch (event->type) {
	case CELL_EVENT_CHUNK:
		tell_chunk(handle, event->run_id ? job : NULL, event->stream, event->data, event->size);
		break;
	case CELL_EVENT_TOOL_PROGRESS:
	case CELL_EVENT_TOOL_LOG:
		assert(event->call);
		tell_news(handle, event->run_id || event->call->client ? job : NULL, event);
		break;
	case CELL_EVENT_APPROVAL:
		assert(event->call);
		pthread_mutex_unlock(&server->lock);
		ask_approval(handle, job, event);
		return;
	case CELL_EVENT_APPROVAL_ENDED:
		assert(event->call);
		tell_ended(handle, job, event);
		break;
	case CELL_EVENT_RESULT:
		assert(job); /* run_cell() waits with it for the result */
		handle->current = NULL;
		end_trace(handle, job, event->result);
		job->result = event->result;
		job->done = true;
		pthread_cond_broadcast(&handle->changed);
		break;
	default:
		break;
	}
	pthread_mutex_unlock(&server->lock);
}

/* ---- the thread --------------------------------------------------------------------------- */

static int open_session(struct cell__mcp_handle *handle, struct cell_error *err)
{
	struct cell_mcp_server *server = handle->server;
	struct cell_session_options options = server->session;
	struct cell_session *session = NULL;
	char owner[33];

	if (handle->session)
		return 0;
	options.on_event = handle_event;
	options.event_arg = handle;
	options.space = server->opts.space;
	cell__random_hex(owner, sizeof(owner) - 1);
	if (server->opts.zygote_per_session)
		options.zygote_owner = owner;
	if (handle->asks)
		options.gate |= CELL_GATE_QUESTIONS;
	cell__mcp_saved_open(handle, &options, &session, err);
	pthread_mutex_lock(&server->lock);
	handle->session = session;
	handle->opened = true;
	handle->open_error = *err;
	if (!session && handle->resumes)
		cell__mcp_handle_close(handle);
	pthread_cond_broadcast(&handle->changed);
	cell__mcp_watch_again(server);
	pthread_mutex_unlock(&server->lock);
	return session ? 0 : -1;
}

static int64_t timeout_of(const struct cell__mcp_job *job)
{
	const json_t *timeout = json_object_get(job->args, "timeout");
	double seconds = json_number_value(timeout);

	if (!timeout)
		return 0;
	return seconds > 0 ? (int64_t)(seconds * 1000) + 1 : -1;
}

static void fail_with(struct cell__mcp_job *job, const struct cell_error *err)
{
	char words[sizeof(err->msg) + 64];

	snprintf(words, sizeof(words), "%s: %s", cell_code_word(err->code), err->msg);
	cell__mcp_job_fail(job, words, strlen(words));
}

/* With the lock held. */
static bool is_cancelled(const struct cell__mcp_job *job)
{
	return job->stopped || (job->request ? job->request->cancelled : !job->parked);
}

static void run_cell(struct cell__mcp_handle *handle, struct cell__mcp_job *job)
{
	struct cell_mcp_server *server = handle->server;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	const json_t *code = json_object_get(job->args, "code");
	char parent[CELL_TRACEPARENT_SIZE];
	struct cell_error err;
	bool cancelled;
	uint64_t run_id;
	int status;

	options.timeout_ms = timeout_of(job);
	options.on_event = handle_event;
	options.event_arg = handle;
	pthread_mutex_lock(&server->lock);
	handle->current = job;
	if (server->tracer.arg)
		job->trace = server->tracer.begin(server->tracer.arg, *job->traceparent ? job->traceparent : NULL, json_string_value(code),
						  json_string_length(code), parent);
	pthread_mutex_unlock(&server->lock);
	if (job->trace) {
		options.traceparent = parent;
		options.call_spans = 1;
	} else if (cell__traceparent_read(job->traceparent, &(struct cell__traceparent){ 0 })) {
		options.traceparent = job->traceparent; /* nothing is recorded here, and the servers behind belong to the client's span */
	}
	status = cell_session_start(handle->session, json_string_value(code), json_string_length(code), &options, &run_id, &err);
	pthread_mutex_lock(&server->lock);
	if (status) {
		handle->current = NULL;
		end_trace(handle, job, NULL);
		/* The session is another server's by now: what is here is worth nothing. */
		if (err.code == CELL_E_CONFLICT && server->session.saved_dir)
			cell__mcp_handle_close(handle);
		pthread_mutex_unlock(&server->lock);
		fail_with(job, &err);
		return;
	}
	handle->running = job;
	handle->run_id = run_id;
	cancelled = is_cancelled(job) || job->overtaken || handle->closing; /* before it could be found */
	pthread_mutex_unlock(&server->lock);
	if (cancelled)
		cell_session_cancel(handle->session, run_id, NULL);
	pthread_mutex_lock(&server->lock);
	while (!job->done)
		pthread_cond_wait(&handle->changed, &server->lock);
	handle->running = NULL;
	pthread_mutex_unlock(&server->lock);
	cell__mcp_cell_answer(job, job->result);
}

/* checkpoint, rewind */
static void keep_or_return(struct cell__mcp_handle *handle, struct cell__mcp_job *job, bool keep)
{
	const char *name = json_string_value(json_object_get(job->args, "name"));
	struct cell__mcp_answer_out out = { 0 };
	struct cell_error err;

	if ((keep ? cell_session_checkpoint(handle->session, name, NULL, &err) : cell_session_rewind(handle->session, name, 0, &err)) < 0) {
		fail_with(job, &err);
		return;
	}
	out.structured = json_pack("{s:s}", "result", keep ? "kept" : "rewound");
	out.content = json_pack("[{s:s, s:s}]", "type", "text", "text",
				keep ? "The state is kept; rewind returns to it." : "The session is back in the kept state.");
	cell__mcp_job_answer(job, &out);
}

/* Handles for the forks, each with a user; -1: none was made. */
static int make_forks(struct cell__mcp_handle *source, struct cell__mcp_handle **forks, size_t n, struct cell_error *err)
{
	struct cell_mcp_server *server = source->server;
	size_t made = 0;

	pthread_mutex_lock(&server->lock);
	while (made < n && (forks[made] = cell__mcp_handle_create(server, source->owner, NULL, NULL, err))) {
		forks[made]->users = 1;
		forks[made]->link = source->last;
		forks[made++]->asks = source->asks;
	}
	for (size_t i = 0; made < n && i < made; i++) {
		cell__mcp_handle_close(forks[i]);
		cell__mcp_handle_unuse(forks[i]);
	}
	pthread_mutex_unlock(&server->lock);
	return made < n ? -1 : 0;
}

static void fork_session(struct cell__mcp_handle *handle, struct cell__mcp_job *job)
{
	struct cell_fork_options options = CELL_FORK_OPTIONS_INIT;
	struct cell__mcp_handle *forks[CELL_MCP_MAX_FORKS];
	struct cell_session *sessions[CELL_MCP_MAX_FORKS];
	size_t n = (size_t)json_integer_value(json_object_get(job->args, "n"));
	struct cell__mcp_answer_out out = { 0 };
	json_t *ids = json_array();
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell_error err;
	int status;

	assert(n >= 1 && n <= CELL_MCP_MAX_FORKS); /* by the schema */
	if (make_forks(handle, forks, n, &err) < 0) {
		json_decref(ids);
		fail_with(job, &err);
		return;
	}
	options.on_event = handle_event;
	options.event_args = (void *const *)forks;
	status = cell_session_fork(handle->session, &options, n, sessions, &err);
	for (size_t i = 0; i < n && status == 0; i++)
		cell__mcp_saved_take_id(forks[i], sessions[i]);
	pthread_mutex_lock(&handle->server->lock);
	for (size_t i = 0; i < n; i++) {
		if (status < 0) {
			cell__mcp_handle_close(forks[i]);
		} else {
			forks[i]->session = sessions[i];
			forks[i]->opened = true;
			json_array_append_new(ids, json_string(forks[i]->id));
			cell__buf_printf(&text, "%s%s", i ? "\n" : "", forks[i]->id);
		}
		cell__mcp_handle_unuse(forks[i]);
	}
	pthread_mutex_unlock(&handle->server->lock);
	if (status < 0) {
		json_decref(ids);
		fail_with(job, &err);
		return;
	}
	out.structured = json_pack("{s:o}", "sessions", ids);
	out.content = json_pack("[{s:s, s:s}]", "type", "text", "text", text.size ? text.data : "");
	cell__mcp_job_answer(job, &out);
}

static void list_variables(struct cell__mcp_handle *handle, struct cell__mcp_job *job)
{
	struct cell__mcp_answer_out out = { 0 };
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *json = NULL;
	struct cell_error err;
	json_t *variable;
	size_t i;

	if (cell_session_variables(handle->session, &json, &err) < 0) {
		fail_with(job, &err);
		return;
	}
	out.structured = json_loads(json, 0, NULL);
	json_array_foreach(json_object_get(out.structured, "variables"), i, variable) {
		const char *name = json_string_value(json_object_get(variable, "name"));
		const char *type = json_string_value(json_object_get(variable, "type"));
		const char *preview = json_string_value(json_object_get(variable, "preview"));

		(void)cell__buf_printf(&text, "%s%s: %s%s%s", i ? "\n" : "", name ? name : "", type ? type : "",
				       preview && *preview ? " = " : "", preview ? preview : "");
	}
	out.content = json_pack("[{s:s, s:s}]", "type", "text", "text", text.size ? text.data : "There are no variables.");
	cell__mcp_job_answer(job, &out);
}

static void work(struct cell__mcp_handle *handle, struct cell__mcp_job *job)
{
	static const char closed[] = "closed: the session was closed before this call ran";
	static const char was_reset[] = "interrupted: the session was reset before this cell ran";
	struct cell_error err;
	bool cancelled, closing, overtaken, missing;

	pthread_mutex_lock(&handle->server->lock);
	missing = handle->resumes && handle->opened && !handle->session;
	err = handle->open_error;
	cancelled = is_cancelled(job);
	closing = handle->closing;
	overtaken = job->overtaken;
	pthread_mutex_unlock(&handle->server->lock);
	if (cancelled)
		cell__mcp_job_answer(job, NULL);
	else if (missing)
		fail_with(job, &err);
	else if (closing)
		cell__mcp_job_fail(job, closed, sizeof(closed) - 1);
	else if (overtaken)
		cell__mcp_job_fail(job, was_reset, sizeof(was_reset) - 1);
	else if (open_session(handle, &err) < 0)
		fail_with(job, &err);
	else if (!strcmp(job->tool->name, "fork_session"))
		fork_session(handle, job);
	else if (!strcmp(job->tool->name, "list_variables"))
		list_variables(handle, job);
	else if (job->tool->flags & CELL_MCP_FORKS)
		keep_or_return(handle, job, !strcmp(job->tool->name, "checkpoint"));
	else
		run_cell(handle, job);
}

/* With the lock held, which is released in between.  Waits for work, or until the session was idle for long. */
static void wait_idle(struct cell__mcp_handle *handle)
{
	struct cell_mcp_server *server = handle->server;
	int64_t until = handle->seen_us + server->opts.saved_idle_ms * 1000, now = cell__now_us();

	if (!handle->saves || !handle->session || handle->users || handle->closing || server->opts.saved_idle_ms < 0)
		pthread_cond_wait(&handle->changed, &server->lock);
	else if (now < until)
		cell__mcp_cond_wait(&handle->changed, &server->lock, until);
	else if (cell__mcp_parked_of(server, handle->id))
		handle->seen_us = now; /* the result is fetched where it is kept */
	else
		cell__mcp_handle_close(handle);
}

void *cell__mcp_cells_main(void *arg)
{
	struct cell__mcp_handle *handle = arg, **at;
	struct cell_mcp_server *server = handle->server;
	struct cell__mcp_job *job;

	pthread_mutex_lock(&server->lock);
	while (handle->cells || handle->users || !handle->closing) {
		job = handle->n_resets ? NULL : handle->cells;
		if (job) {
			handle->taken = job;
			handle->cells = job->after;
			if (!handle->cells)
				handle->last_cell = NULL;
			handle->n_cells--;
		} else if (!handle->wanted || handle->opened || handle->closing) {
			wait_idle(handle);
			continue;
		}
		pthread_mutex_unlock(&server->lock);
		if (job)
			work(handle, job);
		else
			open_session(handle, &(struct cell_error){ 0 }); /* the first cell reports the error, if there is one */
		pthread_mutex_lock(&server->lock);
	}
	pthread_mutex_unlock(&server->lock);
	cell__mcp_saved_end(handle);
	pthread_mutex_lock(&server->lock);
	/* The end of a session is not an event. */
	for (struct cell__mcp_peer *peer = server->peers; peer; peer = peer->next)
		cell__mcp_peer_forget(peer, NULL, handle->serial, 0, "the session was closed");
	for (at = &server->leaving; *at != handle; at = &(*at)->next)
		;
	*at = handle->next;
	if (handle->host) {
		handle->host->n_homes--;
		pthread_cond_broadcast(&handle->host->changed);
	}
	pthread_cond_destroy(&handle->changed);
	free(handle);
	server->n_threads--;
	pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
	return NULL;
}
