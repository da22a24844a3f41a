/*
 * A peer: one connection to the MCP server, on any transport.
 *
 *     new ── initialize ──▶ ready ── destroy ──▶ stopping ── its requests are answered ──▶ gone
 *      └── requests of 2026-07-28 (modern.c) ──┘
 *
 * Requests that need no tool are answered by the reading thread.  tools/call makes a request and a job: a cell goes to the queue of a
 * handle, any other call gets its own thread.  The thread that runs a job answers it exactly once; a cancelled request gets no answer, as the
 * protocol requires.
 */
#include "mcp/server/server.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "wire/saved.h"

const char *const cell__mcp_versions[] = { "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", NULL };
#define BATCH_VERSION "2025-03-26"
static const char *const log_levels[] = { "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", NULL };

/* ---- sending --------------------------------------------------------------------- */

static void send_buf(struct cell__mcp_peer *peer, void *stream, const struct cell__buf *buf, bool last)
{
	peer->sink.send(peer->sink.arg, stream, buf->data, buf->size, last);
}

void cell__mcp_peer_notify(struct cell__mcp_peer *peer, void *stream, const char *method, json_t *params)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;

	/* Without memory the client hears a little less. */
	if (params && !cell__rpc_add_notification(&buf, method, params))
		send_buf(peer, stream, &buf, false);
	json_decref(params);
}

void cell__mcp_unit_answered(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__buf *buf)
{
	bool last = true;

	if (unit->batch) {
		pthread_mutex_lock(&peer->server->lock);
		if (buf && buf->size) {
			cell__buf_add_str(&unit->answers, unit->answers.size ? "," : "[");
			cell__buf_add(&unit->answers, buf->data, buf->size);
		}
		last = --unit->left == 0;
		pthread_mutex_unlock(&peer->server->lock);
		buf = &unit->answers;
		if (last && buf->size)
			cell__buf_add_str(&unit->answers, "]");
	}
	if (!last)
		return;
	if (buf && buf->size)
		send_buf(peer, unit->stream, buf, true);
	else
		peer->sink.send(peer->sink.arg, unit->stream, NULL, 0, true);
	cell__buf_finish(&unit->answers);
	free(unit);
}

void cell__mcp_answer_result(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, json_t *result)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;

	if (result && unit->modern)
		cell__mcp_modern_result(result);
	if (!result || cell__rpc_add_result(&buf, id, result) < 0)
		cell__rpc_add_error(&buf, id, CELL_RPC_INTERNAL_ERROR, "the answer is too large, or out of memory", NULL);
	json_decref(result);
	cell__mcp_unit_answered(peer, unit, &buf);
}

void cell__mcp_answer_error_data(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, int64_t code,
				 const char *words, const json_t *data)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;

	if (unit->modern && peer->sink.set_status && (code == CELL_RPC_HEADER_MISMATCH || code == CELL_RPC_NEEDS_CAPABILITY))
		peer->sink.set_status(peer->sink.arg, unit->stream, 400);
	cell__rpc_add_error(&buf, id, code, words, data);
	cell__mcp_unit_answered(peer, unit, &buf);
}

void cell__mcp_answer_error(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, int64_t code, const char *words)
{
	cell__mcp_answer_error_data(peer, unit, id, code, words, NULL);
}

/* ---- questions to the client ------------------------------------------------------- */

bool cell__mcp_peer_ask(struct cell__mcp_peer *peer, void *stream, json_t *params, uint64_t serial, uint64_t approval, bool is_question)
{
	struct cell__mcp_question *asked = cell__alloc(1, sizeof(*asked));
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	bool sent = false;

	if (asked && params && peer->n_questions < CELL_MCP_MAX_QUESTIONS &&
	    !cell__rpc_add_request(&buf, peer->next_id, "elicitation/create", params)) {
		*asked = (struct cell__mcp_question){ peer->next_id++, serial, approval, is_question, peer->questions };
		peer->questions = asked;
		peer->n_questions++;
		send_buf(peer, stream, &buf, false);
		sent = true;
	}
	json_decref(params);
	if (!sent)
		free(asked);
	return sent;
}

/* The question with this id, or, for id -1, one about this approval; 0: any of the session's. The caller frees it; NULL: not found. */
static struct cell__mcp_question *take_question(struct cell__mcp_peer *peer, int64_t id, uint64_t serial, uint64_t approval)
{
	for (struct cell__mcp_question **at = &peer->questions; *at; at = &(*at)->next) {
		struct cell__mcp_question *asked = *at;

		if (id >= 0 ? asked->id == id : asked->serial == serial && (!approval || asked->approval == approval)) {
			*at = asked->next;
			peer->n_questions--;
			return asked;
		}
	}
	return NULL;
}

void cell__mcp_peer_forget(struct cell__mcp_peer *peer, void *stream, uint64_t serial, uint64_t approval, const char *why)
{
	struct cell__mcp_question *asked;

	while ((asked = take_question(peer, -1, serial, approval))) {
		cell__mcp_peer_notify(peer, stream, "notifications/cancelled",
				      json_pack("{s:I, s:s}", "requestId", (json_int_t)asked->id, "reason", why));
		free(asked);
	}
}

static void handle_response(struct cell__mcp_peer *peer, const struct cell__rpc_message *message)
{
	struct cell__mcp_handle *handle = NULL;
	struct cell__mcp_question *asked = NULL;
	const json_t *result = message->kind == CELL__RPC_RESULT ? message->result : NULL;

	pthread_mutex_lock(&peer->server->lock);
	if (json_is_integer(message->id) && json_integer_value(message->id) >= 0)
		asked = take_question(peer, json_integer_value(message->id), 0, 0);
	/* Else a late answer, or one without a question of ours. */
	handle = asked ? cell__mcp_handle_by_serial(peer->server, asked->serial) : NULL;
	if (handle)
		handle->users++;
	pthread_mutex_unlock(&peer->server->lock);
	if (handle && asked->is_question)
		cell__mcp_cells_question(handle, asked->approval, result);
	else if (handle)
		cell__mcp_cells_approval(handle, atomic_load(&peer->cannot_approve), asked->approval, result);
	pthread_mutex_lock(&peer->server->lock);
	if (handle)
		cell__mcp_handle_unuse(handle);
	pthread_mutex_unlock(&peer->server->lock);
	free(asked);
}

/* ---- requests ------------------------------------------------------------------------ */

bool cell__mcp_speaks(const char *version)
{
	for (size_t i = 0; cell__mcp_versions[i]; i++) {
		if (!strcmp(cell__mcp_versions[i], version))
			return true;
	}
	return false;
}

static void handle_initialize(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params)
{
	const char *asked = json_string_value(json_object_get(params, "protocolVersion"));
	const char *client = json_string_value(json_object_get(json_object_get(params, "clientInfo"), "name"));
	const json_t *elicitation = json_object_get(json_object_get(params, "capabilities"), "elicitation");
	struct cell__mcp_handle *home;

	if (!asked) {
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, "initialize needs protocolVersion");
		return;
	}
	if (peer->initialized) {
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_REQUEST, "the connection is already initialized");
		return;
	}
	peer->version = cell__mcp_versions[0];
	for (size_t i = 0; cell__mcp_versions[i]; i++) {
		if (!strcmp(cell__mcp_versions[i], asked))
			peer->version = cell__mcp_versions[i];
	}
	peer->initialized = true;
	snprintf(peer->client, sizeof(peer->client), "%s", client ? client : "");
	peer->batches = !strcmp(peer->version, BATCH_VERSION);
	pthread_mutex_lock(&peer->server->lock);
	/* Since 2025-11-25 a client may be able to show pages only; {} means forms. */
	peer->hears = true;
	peer->capabilities = json_deep_copy(json_object_get(params, "capabilities"));
	peer->elicits = json_is_object(elicitation) && (!json_object_size(elicitation) || json_object_get(elicitation, "form"));
	/* The session is opened in the meantime; the first call reports an error, if there is one. */
	home = peer->stopping ? NULL : cell__mcp_handle_home(peer, NULL);
	if (home) {
		home->wanted = true;
		pthread_cond_broadcast(&home->changed);
	}
	pthread_mutex_unlock(&peer->server->lock);
	cell__mcp_answer_result(peer, unit, id,
				json_pack("{s:s, s:o, s:{s:s, s:s, s:s}, s:s}", "protocolVersion", peer->version, "capabilities",
					  cell__mcp_capabilities(peer->server, false), "serverInfo", "name", "workcell", "title",
					  "Workcell", "version", cell_version(), "instructions", cell__mcp_instructions));
}

int cell__mcp_log_level(const char *name)
{
	int i = 0;

	while (log_levels[i] && (!name || strcmp(log_levels[i], name)))
		i++;
	return log_levels[i] ? i : -1;
}

static void handle_set_level(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params)
{
	int i = cell__mcp_log_level(json_string_value(json_object_get(params, "level")));

	if (i < 0) {
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS,
				       "level must be debug, info, notice, warning, error, critical, alert or emergency");
		return;
	}
	pthread_mutex_lock(&peer->server->lock);
	peer->log_level = i;
	pthread_mutex_unlock(&peer->server->lock);
	cell__mcp_answer_result(peer, unit, id, json_object());
}

void cell__mcp_handle_list(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params)
{
	const json_t *cursor = json_object_get(params, "cursor");

	if (cursor && !json_is_null(cursor))
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, "unknown cursor: the list of tools has one page");
	else
		cell__mcp_answer_result(peer, unit, id, json_pack("{s:o}", "tools", cell__mcp_peer_tools(peer)));
}

json_t *cell__mcp_peer_tools(struct cell__mcp_peer *peer)
{
	struct cell_mcp_server *server = peer->server;
	json_t *list = json_copy(server->tools);

	pthread_mutex_lock(&server->lock);
	if (list && cell__mcp_offers_add(server, CELL__MCP_OFFERS_TOOL, false, peer->owner, atomic_load(&peer->scopes), list) < 0)
		json_decref(cell__take_ptr(list));
	pthread_mutex_unlock(&server->lock);
	return list;
}

static void handle_subscribe(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params, bool on)
{
	const char *wrong;

	pthread_mutex_lock(&peer->server->lock);
	wrong = cell__mcp_subscribe(peer, params, on);
	pthread_mutex_unlock(&peer->server->lock);
	if (wrong)
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, wrong);
	else
		cell__mcp_answer_result(peer, unit, id, json_object());
}

/* Names that workflows had when they were called skills: they are answered, not listed. */
static const char *present_name(const char *name)
{
	static const char *const names[][2] = {
		{ "list_skills", "list_workflows" },
		{ "search_skills", "search_workflows" },
		{ "create_skill", "create_workflow" },
		{ "delete_skill", "delete_workflow" },
	};

	for (size_t i = 0; name && i < sizeof(names) / sizeof(*names); i++) {
		if (!strcmp(name, names[i][0]))
			return names[i][1];
	}
	return name;
}

/*
 * With the lock held.  The session that a call works on, and whether it was made for it; NULL: *message has the reason.  An operation on the
 * space needs one too: its approvals and events are a session's.
 */
static struct cell__mcp_handle *choose_handle(struct cell__mcp_peer *peer, const struct cell__mcp_tool *tool, const json_t *args,
					      bool modern, bool *ret_new, struct cell__buf *message)
{
	const json_t *named = tool->flags & CELL_MCP_SESSION ? json_object_get(args, "session") : NULL;
	const char *op = json_string_value(json_object_get(args, "op"));
	bool begins = tool->flags & CELL_MCP_BEGINS && (!op || !strcmp(op, "run")); /* others are about what a session has */
	struct cell__mcp_handle *handle = NULL;
	struct cell_error err = { 0 };

	*ret_new = false;
	if (named && (strcmp(json_string_value(named), "new") || !begins)) {
		handle = cell__mcp_handle_find(peer->server, peer->owner, json_string_value(named), json_string_length(named));
		if (!handle && peer->server->session.saved_dir && json_string_length(named) == CELL_MCP_HANDLE_CHARS &&
		    cell__saved_is_id(json_string_value(named)))
			handle = cell__mcp_handle_create(peer->server, peer->owner, NULL, json_string_value(named), &err);
		else if (!handle)
			cell__mcp_no_session(json_string_value(named), &err);
		if (!handle)
			cell__buf_printf(message, "%s: %s", cell_code_word(err.code), err.msg);
		return handle;
	}
	if (!(tool->flags & CELL_MCP_SESSION) || (!modern && !named)) {
		handle = cell__mcp_handle_home(peer, &err);
	} else if (begins) {
		handle = cell__mcp_handle_create(peer->server, peer->owner, NULL, NULL, &err);
		*ret_new = handle != NULL;
	} else {
		cell__buf_add_str(message, "invalid: argument 'session' is missing: give the id that run_code returned");
	}
	if (err.code)
		cell__buf_printf(message, "%s: %s", cell_code_word(err.code), err.msg);
	return handle;
}

/* With the lock held. */
static void fill_request(struct cell__mcp_pending *request, const json_t *params, const struct cell__mcp_said *said)
{
	json_t *token = json_object_get(json_object_get(params, "_meta"), "progressToken");

	request->token = json_is_string(token) || json_is_integer(token) ? json_incref(token) : NULL;
	request->elicits = said && said->elicits;
	request->tasks = said && said->tasks;
	request->log_level = said ? said->log_level : -1;
}

/* The client's span, as W3C's Trace Context writes it; one that is too long is not one. */
static void fill_trace(struct cell__mcp_job *job, const json_t *params)
{
	const char *given = json_string_value(json_object_get(json_object_get(params, "_meta"), "traceparent"));

	if (given && strlen(given) < sizeof(job->traceparent))
		strcpy(job->traceparent, given);
}

/* With the lock held.  Links request, job and handle, and starts it.  NULL: it is under way. */
static const char *begin_job(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const json_t *params,
			     const struct cell__mcp_said *said, struct cell__mcp_job *job, struct cell__buf *message)
{
	const json_t *named = job->tool->flags & CELL_MCP_SESSION ? json_object_get(job->args, "session") : NULL;
	struct cell__mcp_pending *request;
	const char *refused = NULL;

	request = cell__mcp_pending_create(peer, unit, id, &refused);
	if (!request)
		return refused;
	job->handle = choose_handle(peer, job->tool, job->args, said != NULL, &job->new_session, message);
	if (!job->handle) {
		refused = message->data ? message->data : "out of memory";
	} else {
		job->handle->users++;
		job->named = named && !job->new_session;
		if (job->new_session || (job->handle->resumes && !job->handle->opened))
			job->handle->asks = said && said->elicits;
		request->job = job;
		fill_request(request, params, said);
		fill_trace(job, params);
		job->request = request;
		refused = cell__mcp_job_queue(peer, job);
	}
	if (!refused) {
		cell__mcp_watch(job);
		return NULL;
	}
	if (job->new_session)
		cell__mcp_handle_close(job->handle);
	cell__mcp_pending_unlink(request);
	cell__mcp_pending_free(request);
	return refused;
}

/* A call that is repeated with the answers to our questions.  The job is only what it says now, and is freed. */
static void resume_call(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const json_t *params,
			const struct cell__mcp_said *said, struct cell__mcp_job *job)
{
	struct cell__mcp_pending *request;
	const char *refused = NULL;
	json_t *result = NULL, *error = NULL;
	bool valid = true;

	pthread_mutex_lock(&peer->server->lock);
	request = cell__mcp_pending_create(peer, unit, id, &refused);
	if (request) {
		fill_request(request, params, said);
		fill_trace(job, params);
		valid = !cell__mcp_call_resume(peer, request, job->tool, job->args, params, &result, &error);
		if (!valid || result || error)
			cell__mcp_pending_unlink(request);
	}
	if (request && (!valid || error))
		cell__mcp_pending_free(request);
	cell__mcp_job_unref(job);
	pthread_mutex_unlock(&peer->server->lock);
	if (refused || !valid)
		cell__mcp_answer_error(peer, unit, id, refused ? CELL_RPC_INTERNAL_ERROR : CELL_RPC_INVALID_PARAMS,
				       refused ? refused
					       : "requestState is not valid: it was used, has expired, or belongs to another call");
	else if (error)
		cell__mcp_answer_error_data(peer, unit, id, json_integer_value(json_object_get(error, "code")),
					    json_string_value(json_object_get(error, "message")), json_object_get(error, "data"));
	else if (result)
		cell__mcp_pending_answer(request, result);
	json_decref(error);
}

/* The offer, of which it takes a reference over, or NULL.  NULL: out of memory. */
static struct cell__mcp_job *make_job(struct cell__mcp_peer *peer, const struct cell__mcp_tool *tool, struct cell__mcp_offer *offer,
				      const struct cell__mcp_said *said)
{
	const char *client = said ? said->client : peer->client;
	struct cell__mcp_job *job = cell__alloc(1, sizeof(*job));

	if (!job)
		return NULL;
	*job = (struct cell__mcp_job){
		.tool = tool, .offer = offer, .scopes = atomic_load(&peer->scopes), .refs = 1, .modern = said != NULL
	};
	snprintf(job->client, sizeof(job->client), "%s", client ? client : "");
	return job;
}

/* With the arguments of the job set, or NULL: *message has the reason.  False: it was refused, and the job is gone. */
static bool start_job(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const json_t *params,
		      const struct cell__mcp_said *said, struct cell__mcp_job *job, struct cell__buf *message)
{
	const char *refused = job->args ? NULL : message->size ? message->data : "out of memory";

	if (job->args && said && json_object_get(params, "requestState")) {
		resume_call(peer, unit, id, params, said, job);
		return true;
	}
	pthread_mutex_lock(&peer->server->lock);
	if (!refused)
		refused = begin_job(peer, unit, id, params, said, job, message);
	if (refused)
		cell__mcp_job_unref(job);
	pthread_mutex_unlock(&peer->server->lock);
	if (refused && !message->size)
		cell__buf_add_str(message, refused);
	return !refused;
}

/* A tool of the program.  False: the call was refused, for what the request lacks. */
static bool check_offered(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const struct cell__mcp_offer *offer,
			  const json_t *args, const struct cell__mcp_said *said)
{
	const char *header = said && unit->param_headers ? cell__mcp_param_mismatch(offer->schema, args, unit->param_headers) : NULL;
	json_t *lacking = header ? NULL : cell__mcp_lacking(offer->needs, said ? said->can : peer->capabilities), *data;
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;

	if (header) {
		cell__buf_printf(&message, "the header Mcp-Param-%.128s is missing or differs from the request's arguments", header);
		cell__mcp_answer_error_data(peer, unit, id, CELL_RPC_HEADER_MISMATCH, message.data, NULL);
	} else if (lacking) {
		cell__buf_printf(&message, "%.200s needs capabilities that the client does not have", offer->name);
		data = json_pack("{s:O}", "requiredCapabilities", lacking);
		/* Earlier revisions have no error for that. */
		cell__mcp_answer_error_data(peer, unit, id, said ? CELL_RPC_NEEDS_CAPABILITY : CELL_RPC_INVALID_PARAMS, message.data, data);
		json_decref(data);
	}
	json_decref(lacking);
	return !header && !lacking;
}

void cell__mcp_handle_call(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const json_t *params,
			   const struct cell__mcp_said *said)
{
	const char *name = present_name(json_string_value(json_object_get(params, "name")));
	const struct cell__mcp_tool *tool = name ? cell__mcp_tools_find(&peer->server->opts, name) : NULL;
	const json_t *args = json_object_get(params, "arguments");
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	struct cell__mcp_offer *offer = NULL;
	struct cell__mcp_job *job;

	if (!tool && name) {
		pthread_mutex_lock(&peer->server->lock);
		offer = cell__mcp_offer_find(peer->server, CELL__MCP_OFFERS_TOOL, name, peer->owner, atomic_load(&peer->scopes));
		if (offer)
			offer->refs++;
		pthread_mutex_unlock(&peer->server->lock);
		tool = offer ? &offer->tool : NULL;
	}
	if (!tool) {
		cell__buf_printf(&message, name ? "Unknown tool: %.200s" : "tools/call needs the name of a tool", name);
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, message.data);
		return;
	}
	if (offer && !check_offered(peer, unit, id, offer, args, said)) {
		pthread_mutex_lock(&peer->server->lock);
		cell__mcp_offer_unref(offer);
		pthread_mutex_unlock(&peer->server->lock);
		return;
	}
	job = make_job(peer, tool, offer, said);
	if (!job || (args && !json_is_object(args) && !json_is_null(args))) {
		pthread_mutex_lock(&peer->server->lock);
		if (job)
			cell__mcp_job_unref(job);
		else
			cell__mcp_offer_unref(offer);
		pthread_mutex_unlock(&peer->server->lock);
		cell__mcp_answer_error(peer, unit, id, job ? CELL_RPC_INVALID_PARAMS : CELL_RPC_INTERNAL_ERROR,
				       job ? "arguments must be an object" : "out of memory");
		return;
	}
	job->args = offer ? cell__mcp_offer_check(offer, args, &message) : cell__mcp_tools_check(tool, args, &message);
	if (!start_job(peer, unit, id, params, said, job, &message))
		cell__mcp_answer_result(peer, unit, id,
					json_pack("{s:[{s:s, s:s}], s:b}", "content", "type", "text", "text",
						  message.data ? message.data : "", "isError", 1));
}

bool cell__mcp_handle_method(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const char *method, const json_t *params,
			     const struct cell__mcp_said *said)
{
	static const char *const envelope[] = { "_meta", "requestState", "inputResponses" };
	const struct cell__mcp_tool *found = cell__mcp_method_find(method);
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	struct cell__mcp_job *job = found ? make_job(peer, found, NULL, said) : NULL;

	if (!found)
		return false;
	if (!job) {
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INTERNAL_ERROR, "out of memory");
		return true;
	}
	job->args = params ? json_copy((json_t *)params) : json_object();
	job->can = json_deep_copy(said ? said->can : peer->capabilities);
	for (size_t i = 0; i < sizeof(envelope) / sizeof(*envelope); i++)
		json_object_del(job->args, envelope[i]);
	if (!start_job(peer, unit, id, params, said, job, &message))
		cell__mcp_answer_error(peer, unit, id, CELL_RPC_INTERNAL_ERROR, message.data ? message.data : "out of memory");
	return true;
}

void cell__mcp_handle_unknown(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const char *method)
{
	char words[CELL_RPC_MAX_METHOD + 64];

	snprintf(words, sizeof(words), "Method not found: %.*s", (int)CELL_RPC_MAX_METHOD, method);
	cell__mcp_answer_error(peer, unit, id, CELL_RPC_METHOD_NOT_FOUND, words);
}

static bool is_pending(struct cell__mcp_peer *peer, const json_t *id)
{
	bool pending;

	pthread_mutex_lock(&peer->server->lock);
	pending = !peer->stateless && cell__mcp_is_pending(peer, id);
	pthread_mutex_unlock(&peer->server->lock);
	return pending;
}

static void handle_request(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__rpc_message *message)
{
	const char *method = message->method;

	if (message->params && !json_is_object(message->params))
		cell__mcp_answer_error(peer, unit, message->id, CELL_RPC_INVALID_PARAMS, "params must be an object");
	else if (is_pending(peer, message->id))
		cell__mcp_answer_error(peer, unit, message->id, CELL_RPC_INVALID_REQUEST, "a request with this id is already pending");
	else if (unit->modern)
		cell__mcp_modern_request(peer, unit, message);
	else if (!strcmp(method, "ping"))
		cell__mcp_answer_result(peer, unit, message->id, json_object());
	else if (!strcmp(method, "initialize"))
		handle_initialize(peer, unit, message->id, message->params);
	else if (!peer->initialized)
		cell__mcp_answer_error(peer, unit, message->id, CELL_RPC_INVALID_REQUEST, "the first request must be initialize");
	else if (!strcmp(method, "tools/list"))
		cell__mcp_handle_list(peer, unit, message->id, message->params);
	else if (!strcmp(method, "tools/call"))
		cell__mcp_handle_call(peer, unit, message->id, message->params, NULL);
	else if (!strcmp(method, "logging/setLevel"))
		handle_set_level(peer, unit, message->id, message->params);
	else if (!strcmp(method, "resources/subscribe") || !strcmp(method, "resources/unsubscribe"))
		handle_subscribe(peer, unit, message->id, message->params, !strcmp(method, "resources/subscribe"));
	else if (!cell__mcp_handle_method(peer, unit, message->id, method, message->params, NULL))
		cell__mcp_handle_unknown(peer, unit, message->id, method);
}

/* ---- cancelling ---------------------------------------------------------------------------- */

/*
 * With the lock held, which is released in between.  The thread that runs the job answers it; this only notes that the answer is not needed,
 * and interrupts it.
 */
static void cancel_request(struct cell__mcp_pending *request, bool kill)
{
	struct cell_mcp_server *server = request->peer->server;
	struct cell__mcp_job *job = request->job;
	struct cell__mcp_handle *handle = job ? job->handle : NULL;
	bool runs = job && handle->running == job;
	uint64_t run_id = runs ? handle->run_id : 0;

	request->cancelled = true;
	request->killed = kill;
	pthread_cond_broadcast(&server->changed); /* a function may wait for an answer */
	if (!job) {
		cell__mcp_pending_unlink(request);
		pthread_mutex_unlock(&server->lock);
		cell__mcp_pending_answer(request, NULL);
		pthread_mutex_lock(&server->lock);
		return;
	}
	if (!runs && !job->canceller)
		return; /* it waits, and will not run */
	job->refs++;
	pthread_mutex_unlock(&server->lock);
	if (job->canceller)
		cell_canceller_cancel(job->canceller);
	if (runs && kill)
		cell__mcp_handle_stop(handle, true);
	else if (runs)
		cell_session_cancel(handle->session, run_id, NULL);
	pthread_mutex_lock(&server->lock);
	cell__mcp_job_unref(job);
}

static void handle_cancelled(struct cell__mcp_peer *peer, const json_t *params)
{
	const json_t *id = json_is_object(params) ? json_object_get(params, "requestId") : NULL;
	struct cell__mcp_pending *request;

	if (!id || peer->stateless)
		return;
	pthread_mutex_lock(&peer->server->lock);
	for (request = peer->requests; request && !json_equal(request->id, id); request = request->next)
		;
	if (request && !request->cancelled)
		cancel_request(request, false);
	pthread_mutex_unlock(&peer->server->lock);
}

void cell__mcp_peer_cancel(struct cell__mcp_peer *peer, const void *stream)
{
	struct cell__mcp_pending *request;

	pthread_mutex_lock(&peer->server->lock);
	do {
		for (request = peer->requests; request && (request->unit->stream != stream || request->cancelled); request = request->next)
			;
		if (request)
			cancel_request(request, false);
	} while (request);
	pthread_mutex_unlock(&peer->server->lock);
}

/* ---- incoming messages -------------------------------------------------------------------- */

static size_t count_requests(const struct cell__rpc_doc *doc)
{
	struct cell__rpc_message message;
	size_t n = 0;

	for (size_t i = 0; i < doc->count; i++)
		n += cell__rpc_get(doc, i, &message, NULL) != 0 || message.kind == CELL__RPC_REQUEST;
	return n;
}

/* A message that an HTTP request refuses as a whole; false: it does not. */
static bool is_refused(const struct cell__rpc_message *message, const struct cell__mcp_head *head, struct cell__mcp_refusal *refusal,
		       int code, const char *words, const json_t *data)
{
	if (!head || !code)
		return false;
	refusal->status = code == CELL_RPC_METHOD_NOT_FOUND ? 404 : 400;
	cell__rpc_add_error(&refusal->body, message->id, code, words, data);
	return true;
}

/* A request of 2026-07-28. True: it is under way or answered; false: it was refused. */
static bool feed_modern(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__rpc_message *message,
			const struct cell__mcp_head *head, struct cell__mcp_refusal *refusal)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT;
	json_t *data = NULL;
	int code = cell__mcp_modern_check(message, head, &words, &data);
	bool refused = is_refused(message, head, refusal, code, words.data, data);

	unit->modern = true;
	unit->param_headers = head ? head->params : NULL;
	if (code && !refused)
		cell__mcp_answer_error_data(peer, unit, message->id, code, words.data, data);
	else if (!refused)
		handle_request(peer, unit, message);
	json_decref(data);
	return !refused;
}

size_t cell__mcp_peer_feed(struct cell__mcp_peer *peer, const char *text, size_t size, void *stream, const struct cell__mcp_head *head,
			   struct cell__mcp_refusal *refusal)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__mcp_unit *unit = cell__alloc(1, sizeof(*unit));
	struct cell__rpc_message message;
	struct cell_error err;
	size_t n;
	int code;

	if (!unit)
		return 0; /* out of memory: the message is ignored */
	*unit = (struct cell__mcp_unit){ .stream = stream, .left = 1 };
	code = cell__rpc_read(text, size, peer->batches, &doc, &err);
	if (!code && !doc.batch)
		code = cell__rpc_get(&doc, 0, &message, &err);
	else
		message = (struct cell__rpc_message){ 0 };
	if (code && peer->stateless && is_refused(&message, head, refusal, code, err.msg, NULL)) {
		free(unit);
		return 0;
	}
	if (code) {
		cell__mcp_answer_error(peer, unit, message.id, code, err.msg);
		return 1;
	}
	if (!doc.batch && message.kind == CELL__RPC_REQUEST && (peer->stateless || cell__mcp_is_modern(&message))) {
		if (feed_modern(peer, unit, &message, head, refusal))
			return 1;
		free(unit);
		return 0;
	}
	n = count_requests(&doc);
	unit->left = n;
	unit->batch = doc.batch;
	/* The unit is freed when the last request is answered, which can be the current one. */
	for (size_t i = 0; i < doc.count; i++) {
		code = cell__rpc_get(&doc, i, &message, &err);
		if (n && code)
			cell__mcp_answer_error(peer, unit, message.id, code, err.msg);
		else if (n && message.kind == CELL__RPC_REQUEST)
			handle_request(peer, unit, &message);
		else if (message.kind == CELL__RPC_RESULT || message.kind == CELL__RPC_ERROR)
			handle_response(peer, &message);
		else if (message.kind == CELL__RPC_NOTIFICATION && !strcmp(message.method, "notifications/cancelled"))
			handle_cancelled(peer, message.params);
	}
	if (!n)
		free(unit);
	return n;
}

/* ---- life ------------------------------------------------------------------------------ */

struct cell__mcp_peer *cell__mcp_peer_create(struct cell_mcp_server *server, const struct cell__mcp_sink *sink, const char *owner,
					     bool stateless, struct cell_error *err)
{
	struct cell__mcp_peer *peer = cell__alloc(1, sizeof(*peer));

	if (!peer) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
		return NULL;
	}
	*peer = (struct cell__mcp_peer){ .server = server, .sink = *sink, .stateless = stateless, .log_level = -1, .next_id = 1 };
	atomic_store(&peer->scopes, CELL_MCP_ALL_SCOPES);
	snprintf(peer->owner, sizeof(peer->owner), "%s", owner);
	cell__mcp_cond_init(&peer->changed);
	pthread_mutex_lock(&server->lock);
	peer->next = server->peers;
	server->peers = peer;
	pthread_mutex_unlock(&server->lock);
	return peer;
}

/* With the lock held, which is released in between.  Subscriptions end with a result, calls without one. */
static void end_requests(struct cell__mcp_peer *peer, bool kill)
{
	struct cell__mcp_pending *request;

	for (;;) {
		for (request = peer->requests; request && request->cancelled && (request->killed || !kill); request = request->next)
			;
		if (!request)
			return;
		if (request->job) {
			cancel_request(request, kill);
			continue;
		}
		cell__mcp_pending_unlink(request);
		pthread_mutex_unlock(&peer->server->lock);
		if (!peer->stateless) /* on a line for all, the end of one has to be told besides */
			cell__mcp_peer_notify(peer, request->unit->stream, "notifications/cancelled",
					      json_pack("{s:O, s:s}", "requestId", request->id, "reason", "the server ends"));
		cell__mcp_pending_answer(request, cell__mcp_listen_result(request->id));
		pthread_mutex_lock(&peer->server->lock);
	}
}

/* With the lock held, which is released in between.  Calls that wait for an answer of the client get none. */
static void end_parked(struct cell__mcp_peer *peer)
{
	struct cell__mcp_job *job;

	/* From the beginning each time: without the lock, any of them may end. */
	while ((job = cell__mcp_parked_leaving(peer))) {
		job->refs++;
		job->stopped = job->stopped || job->canceller;
		pthread_cond_broadcast(&peer->server->changed);
		pthread_mutex_unlock(&peer->server->lock);
		if (job->canceller)
			cell_canceller_cancel(job->canceller);
		else
			cell__mcp_handle_stop(job->handle, true);
		pthread_mutex_lock(&peer->server->lock);
		cell__mcp_job_unref(job);
	}
}

static int wait_for_requests(struct cell__mcp_peer *peer, struct cell_error *err)
{
	int64_t until_us = cell__now_us() + peer->server->opts.grace_ms * 1000;

	while ((peer->n_workers || peer->n_requests) && cell__now_us() < until_us)
		cell__mcp_cond_wait(&peer->changed, &peer->server->lock, until_us);
	if (!peer->n_workers && !peer->n_requests)
		return 0;
	return cell_fail(err, CELL_E_TIMEOUT, 0, "%zu operations are still under way", peer->n_workers + peer->n_requests);
}

int cell__mcp_peer_destroy(struct cell__mcp_peer *peer, bool kill, struct cell_error *err)
{
	struct cell_mcp_server *server = peer->server;
	struct cell__mcp_handle *home;
	struct cell__mcp_question *asked;
	struct cell__mcp_peer **at;
	int status;

	pthread_mutex_lock(&server->lock);
	peer->stopping = true;
	home = peer->home;
	if (home) {
		home->users++;
		cell__mcp_handle_close(home);
		pthread_mutex_unlock(&server->lock);
		cell__mcp_handle_stop(home, true);
		pthread_mutex_lock(&server->lock);
		cell__mcp_handle_unuse(home);
	}
	/* From now on the client is asked nothing. */
	peer->elicits = false;
	end_requests(peer, kill);
	end_parked(peer);
	status = wait_for_requests(peer, err);
	while (!status && peer->n_homes)
		pthread_cond_wait(&peer->changed, &server->lock);
	if (status < 0) {
		pthread_mutex_unlock(&server->lock);
		return -1;
	}
	while ((asked = peer->questions)) {
		peer->questions = asked->next;
		free(asked);
	}
	cell__mcp_parked_leave(peer);
	json_decref(peer->subscribed);
	json_decref(peer->capabilities);
	for (at = &server->peers; *at && *at != peer; at = &(*at)->next)
		;
	if (*at)
		*at = peer->next;
	pthread_mutex_unlock(&server->lock);
	pthread_cond_destroy(&peer->changed);
	free(peer);
	return 0;
}
