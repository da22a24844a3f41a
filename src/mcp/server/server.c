/*
 * A peer: one client of the MCP server, on any transport.
 *
 *     new ── initialize ──▶ ready ── destroy ──▶ stopping ── cells ended, calls ended ──▶ gone
 *
 * Requests that need no tool are answered by the reading thread.  tools/call makes a job: a cell goes to the queue of the
 * cell thread, any other call gets its own thread.  The thread that runs a job answers it exactly once; a cancelled job gets
 * no answer, as the protocol requires.  Lock order: peer->lock, then peer->out_lock, then the sink's.
 */
#include "mcp/server/server.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static const char *const versions[] = { "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", NULL };
#define BATCH_VERSION "2025-03-26"
static const char *const log_levels[] = { "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency", NULL };

static const char instructions[] = "Runs Python in a session that keeps its variables from call to call. run_code returns the value of "
				   "the last expression and the printed output; execute_ipython_cell returns the output as IPython "
				   "shows it. The code can use `tools`, `workflows`, `artifacts` and `deps`: search_tools lists the "
				   "tools.<name>(...) that can be called, and calling several of them in one cell is cheaper than one "
				   "call each. Plots made with matplotlib are returned as images. reset starts a fresh kernel.";

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

/* A request of the unit has its answer; buf NULL: no answer is sent. With peer->lock held. */
static void unit_answered(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__buf *buf)
{
	bool last = --unit->left == 0;

	if (unit->batch) {
		if (buf && buf->size) {
			cell__buf_add_str(&unit->answers, unit->answers.size ? "," : "[");
			cell__buf_add(&unit->answers, buf->data, buf->size);
		}
		if (last && unit->answers.size && !cell__buf_add_str(&unit->answers, "]"))
			send_buf(peer, unit->stream, &unit->answers, true);
		else if (last)
			peer->sink.send(peer->sink.arg, unit->stream, NULL, 0, true);
	} else if (buf && buf->size) {
		send_buf(peer, unit->stream, buf, last);
	} else if (last) {
		peer->sink.send(peer->sink.arg, unit->stream, NULL, 0, true);
	}
	if (last) {
		cell__buf_finish(&unit->answers);
		free(unit);
	}
}

static void answer_result(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, json_t *result)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;

	if (!result || cell__rpc_add_result(&buf, id, result) < 0)
		cell__rpc_add_error(&buf, id, CELL_RPC_INTERNAL_ERROR, "the answer is too large, or out of memory", NULL);
	json_decref(result);
	unit_answered(peer, unit, &buf);
}

static void answer_error(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, int64_t code, const char *words)
{
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;

	cell__rpc_add_error(&buf, id, code, words, NULL);
	unit_answered(peer, unit, &buf);
}

/* ---- questions to the client ------------------------------------------------------- */

bool cell__mcp_peer_ask(struct cell__mcp_peer *peer, void *stream, json_t *params, uint64_t approval, bool is_question)
{
	struct cell__mcp_question *asked = cell__alloc(1, sizeof(*asked));
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	bool sent = false;

	pthread_mutex_lock(&peer->out_lock);
	if (asked && params && peer->elicits && peer->n_questions < CELL_MCP_MAX_QUESTIONS &&
	    !cell__rpc_add_request(&buf, peer->next_id, "elicitation/create", params)) {
		*asked = (struct cell__mcp_question){ peer->next_id++, approval, is_question, peer->questions };
		peer->questions = asked;
		peer->n_questions++;
		sent = true;
	}
	pthread_mutex_unlock(&peer->out_lock);
	json_decref(params);
	if (sent)
		send_buf(peer, stream, &buf, false);
	else
		free(asked);
	return sent;
}

/* The question with this id, or, for id -1, the one about this approval. The caller frees it; NULL: not found. */
static struct cell__mcp_question *take_question(struct cell__mcp_peer *peer, int64_t id, uint64_t approval)
{
	struct cell__mcp_question *found = NULL;

	pthread_mutex_lock(&peer->out_lock);
	for (struct cell__mcp_question **at = &peer->questions; *at; at = &(*at)->next) {
		if (id >= 0 ? (*at)->id == id : (*at)->approval == approval) {
			found = *at;
			*at = found->next;
			peer->n_questions--;
			break;
		}
	}
	pthread_mutex_unlock(&peer->out_lock);
	return found;
}

void cell__mcp_peer_forget(struct cell__mcp_peer *peer, void *stream, uint64_t approval, const char *why)
{
	struct cell__mcp_question *asked = take_question(peer, -1, approval);

	if (asked)
		cell__mcp_peer_notify(peer, stream, "notifications/cancelled",
				      json_pack("{s:I, s:s}", "requestId", (json_int_t)asked->id, "reason", why));
	free(asked);
}

static void handle_response(struct cell__mcp_peer *peer, const struct cell__rpc_message *message)
{
	struct cell__mcp_question *asked = NULL;
	const json_t *result = message->kind == CELL__RPC_RESULT ? message->result : NULL;

	if (json_is_integer(message->id) && json_integer_value(message->id) >= 0)
		asked = take_question(peer, json_integer_value(message->id), 0);
	if (!asked)
		return; /* a late answer, or one without a question of ours */
	if (asked->is_question)
		cell__mcp_cells_question(peer, asked->approval, result);
	else
		cell__mcp_cells_approval(peer, asked->approval, result);
	free(asked);
}

/* ---- jobs ---------------------------------------------------------------------------- */

static void job_destroy(struct cell__mcp_job *job)
{
	json_decref(job->id);
	json_decref(job->args);
	json_decref(job->token);
	cell__buf_finish(&job->tails[0]);
	cell__buf_finish(&job->tails[1]);
	cell_canceller_destroy(job->canceller);
	free(job);
}

void cell__mcp_job_answer(struct cell__mcp_job *job, struct cell__mcp_answer_out *out)
{
	struct cell__mcp_peer *peer = job->peer;

	pthread_mutex_lock(&peer->lock);
	for (struct cell__mcp_job **at = &peer->jobs; *at; at = &(*at)->next) {
		if (*at == job) {
			*at = job->next;
			break;
		}
	}
	if (job->cancelled || !out) {
		json_decref(out ? out->content : NULL);
		json_decref(out ? out->structured : NULL);
		unit_answered(peer, job->unit, NULL);
	} else {
		json_t *result = json_pack("{s:o, s:b}", "content", out->content, "isError", out->failed);

		if (out->structured)
			json_object_set_new(result, "structuredContent", out->structured);
		answer_result(peer, job->unit, job->id, result);
	}
	pthread_mutex_unlock(&peer->lock);
	job_destroy(job);
}

void cell__mcp_job_fail(struct cell__mcp_job *job, const char *words, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__mcp_answer_out out = { .failed = true };

	cell__buf_add_utf8(&text, words, size);
	out.content = json_pack("[{s:s, s:s#}]", "type", "text", "text", text.size ? text.data : "", (int)text.size);
	cell__mcp_job_answer(job, &out);
}

/* The thread of one operation on the space. */
static void *worker_main(void *arg)
{
	struct cell__mcp_job *job = arg;
	struct cell__mcp_peer *peer = job->peer;
	struct cell__mcp_answer_out out = { 0 };
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;

	if (job->tool->run(job, job->args, &out, &message) < 0) {
		json_decref(out.content);
		json_decref(out.structured);
		cell__mcp_job_fail(job, message.size ? message.data : "out of memory", message.size ? message.size : 14);
	} else {
		cell__mcp_job_answer(job, &out);
	}
	pthread_mutex_lock(&peer->lock);
	peer->n_workers--;
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
	return NULL;
}

static int start_worker(struct cell__mcp_job *job)
{
	pthread_attr_t attr;
	pthread_t thread;
	int status;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	status = pthread_create(&thread, &attr, worker_main, job);
	pthread_attr_destroy(&attr);
	return status ? -1 : 0;
}

/* With the lock held.  NULL, or why it cannot be taken. */
static const char *queue_job(struct cell__mcp_peer *peer, struct cell__mcp_job *job)
{
	if (job->tool->run) {
		if (peer->n_workers >= CELL_MCP_MAX_CALLS)
			return "too many calls are pending; wait for some of them";
		job->canceller = cell_canceller_create();
		if (!job->canceller)
			return "out of memory";
		peer->n_workers++;
		if (start_worker(job) < 0) {
			peer->n_workers--;
			return "no thread could be started for the call";
		}
	} else {
		if (peer->n_cells >= CELL_MCP_MAX_CELLS)
			return "too many cells are waiting; wait for some of them";
		if (peer->last_cell)
			peer->last_cell->after = job;
		else
			peer->cells = job;
		peer->last_cell = job;
		peer->n_cells++;
		pthread_cond_broadcast(&peer->changed);
	}
	job->next = peer->jobs;
	peer->jobs = job;
	return NULL;
}

/* ---- requests ------------------------------------------------------------------------ */

bool cell__mcp_speaks(const char *version)
{
	for (size_t i = 0; versions[i]; i++) {
		if (!strcmp(versions[i], version))
			return true;
	}
	return false;
}

static void handle_initialize(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params)
{
	const char *asked = json_string_value(json_object_get(params, "protocolVersion"));
	const char *client = json_string_value(json_object_get(json_object_get(params, "clientInfo"), "name"));
	const json_t *elicitation = json_object_get(json_object_get(params, "capabilities"), "elicitation");

	if (!asked) {
		answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, "initialize needs protocolVersion");
		return;
	}
	if (peer->initialized) {
		answer_error(peer, unit, id, CELL_RPC_INVALID_REQUEST, "the connection is already initialized");
		return;
	}
	peer->version = versions[0];
	for (size_t i = 0; versions[i]; i++) {
		if (!strcmp(versions[i], asked))
			peer->version = versions[i];
	}
	peer->initialized = true;
	snprintf(peer->client, sizeof(peer->client), "%s", client ? client : "");
	peer->batches = !strcmp(peer->version, BATCH_VERSION);
	pthread_mutex_lock(&peer->out_lock);
	/* Since 2025-11-25 a client may be able to show pages only; {} means forms. */
	peer->elicits = json_is_object(elicitation) && (!json_object_size(elicitation) || json_object_get(elicitation, "form"));
	pthread_mutex_unlock(&peer->out_lock);
	pthread_cond_broadcast(&peer->changed); /* the session may be opened in the meantime */
	answer_result(peer, unit, id,
		      json_pack("{s:s, s:{s:{}, s:{}}, s:{s:s, s:s, s:s}, s:s}", "protocolVersion", peer->version, "capabilities", "tools",
				"logging", "serverInfo", "name", "workcell", "title", "Workcell", "version", cell_version(), "instructions",
				instructions));
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
		answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS,
			     "level must be debug, info, notice, warning, error, critical, alert or emergency");
		return;
	}
	pthread_mutex_lock(&peer->out_lock);
	peer->log_level = i;
	pthread_mutex_unlock(&peer->out_lock);
	answer_result(peer, unit, id, json_object());
}

static void handle_list(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const json_t *id, const json_t *params)
{
	const json_t *cursor = json_object_get(params, "cursor");

	if (cursor && !json_is_null(cursor))
		answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, "unknown cursor: the list of tools has one page");
	else
		answer_result(peer, unit, id, json_pack("{s:O}", "tools", peer->server->tools));
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

static void handle_call(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id, const json_t *params)
{
	const char *name = present_name(json_string_value(json_object_get(params, "name"))), *refused;
	const struct cell__mcp_tool *tool = name ? cell__mcp_tools_find(&peer->server->opts, name) : NULL;
	const json_t *args = json_object_get(params, "arguments");
	json_t *token = json_object_get(json_object_get(params, "_meta"), "progressToken");
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;
	struct cell__mcp_job *job;

	if (!tool) {
		cell__buf_printf(&message, name ? "Unknown tool: %.200s" : "tools/call needs the name of a tool", name);
		answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, message.data);
		return;
	}
	if (args && !json_is_object(args) && !json_is_null(args)) {
		answer_error(peer, unit, id, CELL_RPC_INVALID_PARAMS, "arguments must be an object");
		return;
	}
	job = cell__alloc(1, sizeof(*job));
	if (!job) {
		answer_error(peer, unit, id, CELL_RPC_INTERNAL_ERROR, "out of memory");
		return;
	}
	*job = (struct cell__mcp_job){ .peer = peer, .unit = unit, .tool = tool, .id = json_incref(id) };
	if (json_is_string(token) || json_is_integer(token))
		job->token = json_incref(token);
	job->args = cell__mcp_tools_check(tool, args, &message);
	refused = job->args ? queue_job(peer, job) : message.data;
	if (!refused && job->args)
		return;
	answer_result(
		peer, unit, id,
		json_pack("{s:[{s:s, s:s}], s:b}", "content", "type", "text", "text", refused ? refused : "out of memory", "isError", 1));
	job_destroy(job);
}

static bool is_pending(const struct cell__mcp_peer *peer, const json_t *id)
{
	for (const struct cell__mcp_job *job = peer->jobs; job; job = job->next) {
		if (json_equal(job->id, id))
			return true;
	}
	return false;
}

static void handle_request(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, const struct cell__rpc_message *message)
{
	const char *method = message->method;
	char words[CELL_RPC_MAX_METHOD + 64];

	if (message->params && !json_is_object(message->params))
		answer_error(peer, unit, message->id, CELL_RPC_INVALID_PARAMS, "params must be an object");
	else if (!strcmp(method, "ping"))
		answer_result(peer, unit, message->id, json_object());
	else if (!strcmp(method, "initialize"))
		handle_initialize(peer, unit, message->id, message->params);
	else if (!peer->initialized)
		answer_error(peer, unit, message->id, CELL_RPC_INVALID_REQUEST, "the first request must be initialize");
	else if (is_pending(peer, message->id))
		answer_error(peer, unit, message->id, CELL_RPC_INVALID_REQUEST, "a request with this id is already pending");
	else if (!strcmp(method, "tools/list"))
		handle_list(peer, unit, message->id, message->params);
	else if (!strcmp(method, "tools/call"))
		handle_call(peer, unit, message->id, message->params);
	else if (!strcmp(method, "logging/setLevel"))
		handle_set_level(peer, unit, message->id, message->params);
	else {
		snprintf(words, sizeof(words), "Method not found: %.*s", (int)CELL_RPC_MAX_METHOD, method);
		answer_error(peer, unit, message->id, CELL_RPC_METHOD_NOT_FOUND, words);
	}
}

/* The thread that runs the job answers it; this only notes that the answer is not needed. */
static void handle_cancelled(struct cell__mcp_peer *peer, const json_t *params)
{
	const json_t *id = json_is_object(params) ? json_object_get(params, "requestId") : NULL;

	for (struct cell__mcp_job *job = id ? peer->jobs : NULL; job; job = job->next) {
		if (json_equal(job->id, id)) {
			job->cancelled = true;
			if (job == peer->running)
				cell_session_interrupt(peer->session, NULL);
			if (job->canceller)
				cell_canceller_cancel(job->canceller);
			return;
		}
	}
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

size_t cell__mcp_peer_feed(struct cell__mcp_peer *peer, const char *text, size_t size, void *stream)
{
	CELL_AUTO_RPC_DOC struct cell__rpc_doc doc = CELL__RPC_DOC_INIT;
	struct cell__mcp_unit *unit = cell__alloc(1, sizeof(*unit));
	struct cell__rpc_message message;
	struct cell_error err;
	size_t n;
	int code;

	if (!unit)
		return 0; /* out of memory: the message is ignored */
	pthread_mutex_lock(&peer->lock);
	*unit = (struct cell__mcp_unit){ .stream = stream, .left = 1 };
	code = cell__rpc_read(text, size, peer->batches, &doc, &err);
	if (code) {
		answer_error(peer, unit, NULL, code, err.msg);
		pthread_mutex_unlock(&peer->lock);
		return 1;
	}
	n = count_requests(&doc);
	unit->left = n;
	unit->batch = doc.batch;
	/* The unit is freed when the last request is answered, which can be the current one. */
	for (size_t i = 0; i < doc.count; i++) {
		code = cell__rpc_get(&doc, i, &message, &err);
		if (code)
			answer_error(peer, unit, message.id, code, err.msg);
		else if (message.kind == CELL__RPC_REQUEST)
			handle_request(peer, unit, &message);
		else if (message.kind != CELL__RPC_NOTIFICATION)
			handle_response(peer, &message);
		else if (!strcmp(message.method, "notifications/cancelled"))
			handle_cancelled(peer, message.params);
	}
	pthread_mutex_unlock(&peer->lock);
	if (!n)
		free(unit);
	return n;
}

/* ---- life ------------------------------------------------------------------------------ */

struct cell__mcp_peer *cell__mcp_peer_create(struct cell_mcp_server *server, const struct cell__mcp_sink *sink, struct cell_error *err)
{
	struct cell__mcp_peer *peer = cell__alloc(1, sizeof(*peer));
	pthread_condattr_t attr;
	int status;

	if (!peer) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
		return NULL;
	}
	*peer = (struct cell__mcp_peer){ .server = server, .sink = *sink, .log_level = -1, .next_id = 1 };
	pthread_mutex_init(&peer->lock, NULL);
	pthread_mutex_init(&peer->out_lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&peer->changed, &attr);
	pthread_cond_init(&peer->done, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_lock(&server->lock);
	peer->next = server->peers;
	server->peers = peer;
	pthread_mutex_unlock(&server->lock);
	status = pthread_create(&peer->thread, NULL, cell__mcp_cells_main, peer);
	peer->has_thread = !status;
	if (status) {
		cell_fail(err, CELL_E_IO, status, "cannot start a thread for the cells");
		cell__mcp_peer_destroy(peer, NULL);
		return NULL;
	}
	return peer;
}

static int wait_for_workers(struct cell__mcp_peer *peer, struct cell_error *err)
{
	int64_t until_us = cell__now_us() + peer->server->opts.grace_ms * 1000;
	struct timespec until = { .tv_sec = until_us / 1000000, .tv_nsec = until_us % 1000000 * 1000 };

	while (peer->n_workers && cell__now_us() < until_us)
		pthread_cond_timedwait(&peer->changed, &peer->lock, &until);
	if (!peer->n_workers)
		return 0;
	return cell_fail(err, CELL_E_TIMEOUT, 0, "%zu operations are still under way", peer->n_workers);
}

int cell__mcp_peer_destroy(struct cell__mcp_peer *peer, struct cell_error *err)
{
	struct cell__mcp_question *asked;
	struct cell__mcp_peer **at;
	int status;

	pthread_mutex_lock(&peer->lock);
	peer->stopping = true;
	if (peer->running)
		cell_session_reset(peer->session, NULL);
	for (struct cell__mcp_job *job = peer->jobs; job; job = job->next) {
		if (job->canceller)
			cell_canceller_cancel(job->canceller);
	}
	pthread_cond_broadcast(&peer->changed);
	pthread_mutex_unlock(&peer->lock);
	if (peer->has_thread)
		pthread_join(peer->thread, NULL);
	peer->has_thread = false;
	pthread_mutex_lock(&peer->out_lock);
	peer->elicits = false; /* from now on the client is asked nothing */
	pthread_mutex_unlock(&peer->out_lock);
	while ((asked = peer->questions)) {
		peer->questions = asked->next;
		free(asked);
	}
	pthread_mutex_lock(&peer->lock);
	status = wait_for_workers(peer, err);
	pthread_mutex_unlock(&peer->lock);
	if (status < 0)
		return -1;
	cell_session_close(peer->session);
	pthread_mutex_lock(&peer->server->lock);
	for (at = &peer->server->peers; *at && *at != peer; at = &(*at)->next)
		;
	if (*at)
		*at = peer->next;
	pthread_mutex_unlock(&peer->server->lock);
	pthread_mutex_destroy(&peer->lock);
	pthread_mutex_destroy(&peer->out_lock);
	pthread_cond_destroy(&peer->changed);
	pthread_cond_destroy(&peer->done);
	free(peer);
	return 0;
}
