/*
 * The session of a peer.  One thread opens it and runs the queued cells in order; it is closed with the peer, when no
 * operation uses it any more.
 *
 *     queued ──▶ given to the session (peer->running) ──▶ result ──▶ answered
 *        └── cancelled: never runs      └── cancelled: interrupted, its result is dropped
 *
 * Events come on the engine's thread, which must not wait: they become messages in the sink at once, and the cell thread
 * only gets the result.  An approval becomes an elicitation; the client's answer comes back through
 * cell__mcp_cells_approval() on the transport's thread.
 */
#include "mcp/server/server.h"

#include <assert.h>
#include <string.h>

#define LOG_INFO 1 /* index in the protocol's list of levels */
#define MAX_FORM_BYTES 16000u /* of a question that is passed on for an MCP server */

/* ---- output as it comes ------------------------------------------------------------- */

/* With out_lock held. The part of the chunk that is complete text; false: nothing yet. */
static bool chunk_text(struct cell__mcp_job *job, const struct cell_event *event, struct cell__buf *text)
{
	struct cell__buf *tail = &job->tails[event->stream == CELL_STDERR];
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	size_t cut;

	if (cell__buf_add(&bytes, tail->data, tail->size) < 0 || cell__buf_add(&bytes, event->data, event->size) < 0)
		return false;
	cut = cell__utf8_cut(bytes.data, bytes.size);
	cell__buf_shift(tail, tail->size);
	cell__buf_add(tail, bytes.data + bytes.size - cut, cut);
	return bytes.size > cut && !cell__buf_add_utf8(text, bytes.data, bytes.size - cut);
}

static void tell_chunk(struct cell__mcp_peer *peer, struct cell__mcp_job *job, const struct cell_event *event)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	void *stream = job ? job->unit->stream : NULL;
	bool logs, told = true;

	pthread_mutex_lock(&peer->out_lock);
	logs = peer->log_level >= 0 && peer->log_level <= LOG_INFO;
	if (job) {
		job->progress += (double)event->size;
		told = chunk_text(job, event, &text);
	} else {
		cell__buf_add_utf8(&text, event->data, event->size);
	}
	pthread_mutex_unlock(&peer->out_lock);
	/* The result has all of it; a client that does not keep up loses only the live view. */
	if (!told || !text.size || peer->sink.full(peer->sink.arg, stream))
		return;
	if (job && job->token)
		cell__mcp_peer_notify(peer, stream, "notifications/progress",
				      json_pack("{s:O, s:f, s:s#}", "progressToken", job->token, "progress", job->progress, "message",
						text.data, (int)text.size));
	if (logs)
		cell__mcp_peer_notify(peer, stream, "notifications/message",
				      json_pack("{s:s, s:s, s:s#}", "level", "info", "logger",
						event->stream == CELL_STDERR ? "stderr" : "stdout", "data", text.data, (int)text.size));
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

/* The question of an MCP server, in its words, after the name of its tool; NULL: it cannot be shown. */
static json_t *question_form(const struct cell_call_info *call)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *tool = page_text(call->tool), *callable = page_text(call->callable), *words = NULL;
	json_t *form = call->args_size <= MAX_FORM_BYTES ? json_loadb(call->args, call->args_size, JSON_ALLOW_NUL, NULL) : NULL;
	json_t *message = json_object_get(form, "message"), *schema = json_object_get(form, "requestedSchema");

	if (json_is_string(message))
		words = cell_shown_text(json_string_value(message), json_string_length(message), CELL_SHOWN_MARKDOWN);
	if (!tool || !callable || !words || !clean_form(schema, false) ||
	    cell__buf_printf(&text, "%s%s%s asks: %s", tool, *callable ? "." : "", callable, words) < 0 ||
	    json_object_set_new(form, "message", json_stringn(text.data, text.size)) < 0) {
		json_decref(form);
		return NULL;
	}
	return form;
}

static void ask_approval(struct cell__mcp_peer *peer, void *stream, const struct cell_event *event)
{
	const struct cell_call_info *call = event->call;
	struct cell_error err;
	json_t *form;

	if (!strcmp(call->kind, "question")) {
		if (!cell__mcp_peer_ask(peer, stream, question_form(call), call->id, true))
			reject(peer->session, call->id, NULL);
		return;
	}
	if (atomic_load(&peer->cannot_approve)) {
		reject(peer->session, call->id, no_scope);
		return;
	}
	form = approval_form(event, &err);
	if (!form) {
		CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;

		cell__buf_printf(&why, "this needs an approval, but its arguments cannot be shown to the user: %s", err.msg);
		reject(peer->session, call->id, why.data);
	} else if (!cell__mcp_peer_ask(peer, stream, form, call->id, false)) {
		reject(peer->session, call->id,
		       "this needs an approval, but the MCP client cannot ask its user (it does not support elicitation); "
		       "start the server with --approve auto, or with a policy that allows it");
	}
}

void cell__mcp_cells_approval(struct cell__mcp_peer *peer, uint64_t approval, const json_t *result)
{
	const char *action = json_string_value(json_object_get(result, "action"));
	const json_t *content = json_object_get(result, "content");
	const char *decision = json_string_value(json_object_get(content, "decision"));
	const char *reason = json_string_value(json_object_get(content, "reason"));
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;

	if (!peer->session)
		return;
	if (atomic_load(&peer->cannot_approve)) {
		reject(peer->session, approval, no_scope);
	} else if (!result) {
		reject(peer->session, approval, "the MCP client failed to ask its user");
	} else if (action && decision && !strcmp(action, "accept") && (!strcmp(decision, "accept") || !strcmp(decision, "always"))) {
		answer.accept = 1;
		answer.always = !strcmp(decision, "always");
		cell_session_answer(peer->session, approval, &answer, NULL);
	} else if (action && !strcmp(action, "accept")) {
		reject(peer->session, approval, reason && *reason ? reason : "the user rejected it");
	} else {
		reject(peer->session, approval, action && !strcmp(action, "decline") ? "the user declined" : "the user gave no answer");
	}
}

void cell__mcp_cells_question(struct cell__mcp_peer *peer, uint64_t approval, const json_t *result)
{
	const char *action = json_string_value(json_object_get(result, "action"));
	const json_t *content = json_object_get(result, "content");
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	CELL_AUTO_FREE char *text = content ? json_dumps(content, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

	if (!peer->session)
		return;
	answer.accept = action && !strcmp(action, "accept");
	answer.args = answer.accept ? text : NULL;
	answer.dismiss = !action || (!answer.accept && strcmp(action, "decline"));
	if (!cell_session_answer(peer->session, approval, &answer, NULL) || !answer.accept)
		return;
	/* An answer that does not fit the question counts as no answer. */
	answer = (struct cell_approval_answer){ .size = sizeof(answer), .dismiss = 1 };
	cell_session_answer(peer->session, approval, &answer, NULL); /* fails if it no longer waits */
}

/* ---- notifications of MCP servers ------------------------------------------------------- */

static void tell_progress(struct cell__mcp_peer *peer, struct cell__mcp_job *job, const struct cell_event *event, const json_t *said)
{
	const char *words = json_string_value(json_object_get(said, "message"));
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (!job || !job->token || peer->sink.full(peer->sink.arg, job->unit->stream))
		return;
	cell__buf_printf(&text, "%s.%s: %g", event->call->tool, event->call->callable,
			 json_number_value(json_object_get(said, "progress")));
	if (json_is_number(json_object_get(said, "total")))
		cell__buf_printf(&text, "/%g", json_number_value(json_object_get(said, "total")));
	if (words)
		cell__buf_printf(&text, " %s", words);
	pthread_mutex_lock(&peer->out_lock);
	job->progress += 1;
	pthread_mutex_unlock(&peer->out_lock);
	cell__mcp_peer_notify(peer, job->unit->stream, "notifications/progress",
			      json_pack("{s:O, s:f, s:s#}", "progressToken", job->token, "progress", job->progress, "message",
					text.size ? text.data : "", (int)text.size));
}

/* The server's message, with the tool's name as the logger's; if the client enabled that level. */
static void tell_log(struct cell__mcp_peer *peer, void *stream, const struct cell_event *event, const json_t *said)
{
	const char *level = json_string_value(json_object_get(said, "level"));
	const json_t *data = json_object_get(said, "data");
	int number = cell__mcp_log_level(level), wanted;

	pthread_mutex_lock(&peer->out_lock);
	wanted = peer->log_level;
	pthread_mutex_unlock(&peer->out_lock);
	if (number < 0 || wanted < 0 || number < wanted || !data || peer->sink.full(peer->sink.arg, stream))
		return;
	cell__mcp_peer_notify(peer, stream, "notifications/message",
			      json_pack("{s:s, s:s, s:O}", "level", level, "logger", event->call->tool, "data", data));
}

static void tell_news(struct cell__mcp_peer *peer, struct cell__mcp_job *job, const struct cell_event *event)
{
	json_t *said = json_loadb(event->data, event->size, JSON_ALLOW_NUL, NULL);

	if (event->type == CELL_EVENT_TOOL_PROGRESS)
		tell_progress(peer, job, event, said);
	else
		tell_log(peer, job ? job->unit->stream : NULL, event, said);
	json_decref(said);
}

/* ---- events ----------------------------------------------------------------------------- */

/* Engine's thread. */
static void handle_event(void *arg, const struct cell_event *event)
{
	struct cell__mcp_peer *peer = arg;
	struct cell__mcp_job *job;
	void *stream;

	pthread_mutex_lock(&peer->out_lock);
	job = peer->current;
	pthread_mutex_unlock(&peer->out_lock);
	/* A call of the client itself, which waits for it, and so its job exists. */
	if (event->call && event->call->client)
		job = event->call->client;
	/* The job stays until we have given it its result, and that is the last event. */
	stream = job ? job->unit->stream : NULL;
	switch (event->type) {
	case CELL_EVENT_CHUNK:
		tell_chunk(peer, event->run_id ? job : NULL, event);
		break;
	case CELL_EVENT_TOOL_PROGRESS:
	case CELL_EVENT_TOOL_LOG:
		assert(event->call);
		tell_news(peer, event->run_id ? job : NULL, event);
		break;
	case CELL_EVENT_APPROVAL:
		assert(event->call);
		ask_approval(peer, stream, event);
		break;
	case CELL_EVENT_APPROVAL_ENDED:
		assert(event->call);
		cell__mcp_peer_forget(peer, stream, event->call->id, event->decision ? event->decision : "ended");
		break;
	case CELL_EVENT_RESULT:
		assert(job); /* run_cell() waits with it for the result */
		pthread_mutex_lock(&peer->out_lock);
		peer->current = NULL;
		job->result = event->result;
		job->done = true;
		pthread_cond_broadcast(&peer->done);
		pthread_mutex_unlock(&peer->out_lock);
		break;
	default:
		break;
	}
}

/* ---- the thread --------------------------------------------------------------------------- */

struct cell_session *cell__mcp_session(struct cell__mcp_peer *peer, struct cell_error *err)
{
	struct cell_session *session;

	pthread_mutex_lock(&peer->lock);
	while (!peer->session && !peer->opened && !peer->stopping)
		pthread_cond_wait(&peer->changed, &peer->lock);
	session = peer->stopping ? NULL : peer->session;
	*err = peer->open_error;
	if (!session && !err->code)
		cell_fail(err, CELL_E_CLOSED, 0, "the client has disconnected");
	pthread_mutex_unlock(&peer->lock);
	return session;
}

/* Notifies the waiters for the session. */
static void tell_opened(struct cell__mcp_peer *peer, const struct cell_error *err)
{
	pthread_mutex_lock(&peer->lock);
	peer->opened = true;
	peer->open_error = err ? *err : (struct cell_error){ 0 };
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
}

static int open_session(struct cell__mcp_peer *peer, struct cell_error *err)
{
	struct cell_session_options options = peer->server->session;
	char owner[33];
	struct cell_session *session;

	if (peer->session)
		return 0;
	options.on_event = handle_event;
	options.event_arg = peer;
	options.space = peer->server->opts.space;
	cell__random_hex(owner, sizeof(owner) - 1);
	if (peer->server->opts.zygote_per_session)
		options.zygote_owner = owner;
	pthread_mutex_lock(&peer->out_lock);
	if (peer->elicits)
		options.gate |= CELL_GATE_QUESTIONS;
	pthread_mutex_unlock(&peer->out_lock);
	if (cell_session_open(peer->server->engine, &options, &session, err) < 0) {
		tell_opened(peer, err);
		return -1;
	}
	pthread_mutex_lock(&peer->lock);
	peer->session = session;
	pthread_mutex_unlock(&peer->lock);
	tell_opened(peer, NULL);
	return 0;
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

static void run_cell(struct cell__mcp_peer *peer, struct cell__mcp_job *job)
{
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	const json_t *code = json_object_get(job->args, "code");
	struct cell_error err;
	int status = 0;

	options.timeout_ms = timeout_of(job);
	options.on_event = handle_event;
	options.event_arg = peer;
	pthread_mutex_lock(&peer->lock);
	if (job->cancelled || peer->stopping) {
		pthread_mutex_unlock(&peer->lock);
		cell__mcp_job_answer(job, NULL);
		return;
	}
	pthread_mutex_lock(&peer->out_lock);
	peer->current = job;
	pthread_mutex_unlock(&peer->out_lock);
	/* Before the lock is released, so that an interrupt finds the cell in the session. */
	status = cell_session_start(peer->session, json_string_value(code), json_string_length(code), &options, NULL, &err);
	peer->running = status ? NULL : job;
	pthread_mutex_unlock(&peer->lock);

	pthread_mutex_lock(&peer->out_lock);
	if (status)
		peer->current = NULL;
	while (!status && !job->done)
		pthread_cond_wait(&peer->done, &peer->out_lock);
	pthread_mutex_unlock(&peer->out_lock);
	pthread_mutex_lock(&peer->lock);
	peer->running = NULL;
	pthread_mutex_unlock(&peer->lock);
	if (status)
		fail_with(job, &err);
	else
		cell__mcp_cell_answer(job, job->result);
}

static void reset_session(struct cell__mcp_peer *peer, struct cell__mcp_job *job)
{
	struct cell__mcp_answer_out out = { 0 };
	struct cell_error err;

	if (cell_session_reset(peer->session, &err) < 0) {
		fail_with(job, &err);
		return;
	}
	out.structured = json_pack("{s:s}", "result", "reset");
	out.content = json_pack("[{s:s, s:s}]", "type", "text", "text", "The kernel was reset; all variables are lost.");
	cell__mcp_job_answer(job, &out);
}

/* checkpoint, rewind */
static void keep_or_return(struct cell__mcp_peer *peer, struct cell__mcp_job *job, bool keep)
{
	const char *name = json_string_value(json_object_get(job->args, "name"));
	struct cell__mcp_answer_out out = { 0 };
	struct cell_error err;

	if ((keep ? cell_session_checkpoint(peer->session, name, NULL, &err) : cell_session_rewind(peer->session, name, 0, &err)) < 0) {
		fail_with(job, &err);
		return;
	}
	out.structured = json_pack("{s:s}", "result", keep ? "kept" : "rewound");
	out.content = json_pack("[{s:s, s:s}]", "type", "text", "text",
				keep ? "The state is kept; rewind returns to it." : "The session is back in the kept state.");
	cell__mcp_job_answer(job, &out);
}

static void work(struct cell__mcp_peer *peer, struct cell__mcp_job *job)
{
	struct cell_error err;

	if (open_session(peer, &err) < 0)
		fail_with(job, &err);
	else if (!strcmp(job->tool->name, "reset"))
		reset_session(peer, job);
	else if (job->tool->flags & CELL_MCP_FORKS)
		keep_or_return(peer, job, !strcmp(job->tool->name, "checkpoint"));
	else
		run_cell(peer, job);
}

void *cell__mcp_cells_main(void *arg)
{
	struct cell__mcp_peer *peer = arg;
	struct cell__mcp_job *job;
	bool warmed = false;

	pthread_mutex_lock(&peer->lock);
	while (!peer->stopping) {
		job = peer->cells;
		if (job) {
			peer->cells = job->after;
			if (!peer->cells)
				peer->last_cell = NULL;
			peer->n_cells--;
		} else if (!peer->initialized || warmed) {
			pthread_cond_wait(&peer->changed, &peer->lock);
			continue;
		}
		pthread_mutex_unlock(&peer->lock);
		if (job)
			work(peer, job);
		else
			open_session(peer, &(struct cell_error){ 0 }); /* the first cell reports the error, if there is one */
		warmed = true;
		pthread_mutex_lock(&peer->lock);
	}
	while ((job = peer->cells)) {
		peer->cells = job->after;
		pthread_mutex_unlock(&peer->lock);
		cell__mcp_job_answer(job, NULL);
		pthread_mutex_lock(&peer->lock);
	}
	pthread_mutex_unlock(&peer->lock);
	return NULL;
}
