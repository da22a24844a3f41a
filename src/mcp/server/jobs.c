/*
 * Requests that are answered later, and the jobs that answer them: a cell goes to the queue of a handle, any other call gets its own thread.
 * The thread that runs a job answers it exactly once.
 */
#include "mcp/server/server.h"

/* ---- requests that are answered later ---------------------------------------------------- */

bool cell__mcp_is_pending(const struct cell__mcp_peer *peer, const json_t *id)
{
	for (const struct cell__mcp_pending *request = peer->requests; request; request = request->next) {
		if (json_equal(request->id, id))
			return true;
	}
	return false;
}

struct cell__mcp_pending *cell__mcp_pending_create(struct cell__mcp_peer *peer, struct cell__mcp_unit *unit, json_t *id,
						   const char **refused)
{
	struct cell__mcp_pending *request = NULL;

	if (peer->stopping)
		*refused = "the connection is being closed";
	else if (peer->n_requests >= CELL_MCP_MAX_REQUESTS)
		*refused = "too many calls are pending; wait for some of them";
	else if (!(request = cell__alloc(1, sizeof(*request))))
		*refused = "out of memory";
	if (!request)
		return NULL;
	*request = (struct cell__mcp_pending){ .peer = peer, .unit = unit, .id = json_incref(id), .log_level = -1, .next = peer->requests };
	peer->requests = request;
	peer->n_requests++;
	return request;
}

void cell__mcp_pending_unlink(struct cell__mcp_pending *request)
{
	struct cell__mcp_pending **at = &request->peer->requests;

	while (*at != request)
		at = &(*at)->next;
	*at = request->next;
}

void cell__mcp_pending_free(struct cell__mcp_pending *request)
{
	request->peer->n_requests--;
	pthread_cond_broadcast(&request->peer->changed);
	json_decref(request->id);
	json_decref(request->token);
	json_decref(request->listens);
	free(request);
}

void cell__mcp_pending_answer(struct cell__mcp_pending *request, json_t *result)
{
	struct cell_mcp_server *server = request->peer->server;

	if (result)
		cell__mcp_answer_result(request->peer, request->unit, request->id, result);
	else
		cell__mcp_unit_answered(request->peer, request->unit, NULL);
	pthread_mutex_lock(&server->lock);
	cell__mcp_pending_free(request);
	pthread_mutex_unlock(&server->lock);
}

/* ---- jobs ---------------------------------------------------------------------------- */

struct cell__mcp_pending *cell__mcp_take_request(struct cell__mcp_job *job)
{
	struct cell__mcp_pending *request = job->request;

	job->request = NULL;
	if (request) {
		request->job = NULL;
		cell__mcp_pending_unlink(request);
	}
	return request;
}

void cell__mcp_job_unref(struct cell__mcp_job *job)
{
	if (--job->refs)
		return;
	if (job->handle)
		cell__mcp_handle_unuse(job->handle);
	json_decref(job->args);
	json_decref(job->can);
	json_decref(job->lacking);
	cell__mcp_offer_unref(job->offer);
	cell__buf_finish(&job->tails[0]);
	cell__buf_finish(&job->tails[1]);
	cell_canceller_destroy(job->canceller);
	free(job);
}

/* The id of a session that the client has to name in later calls. */
static void add_session(const struct cell__mcp_job *job, struct cell__mcp_answer_out *out)
{
	if (out->structured && (job->new_session || job->named))
		json_object_set_new(out->structured, "session", json_string(job->handle->id));
	if (job->new_session)
		json_array_append_new(
			out->content,
			json_pack("{s:s, s:o}", "type", "text", "text",
				  json_sprintf("[session %s: pass it as `session` to go on with these variables]", job->handle->id)));
}

void cell__mcp_job_answer(struct cell__mcp_job *job, struct cell__mcp_answer_out *out)
{
	struct cell_mcp_server *server = job->handle->server;
	struct cell__mcp_pending *request;
	json_t *result = NULL;

	if (out && out->whole) {
		result = out->whole;
	} else if (out) {
		add_session(job, out);
		result = json_pack("{s:o, s:b, s:o*}", "content", out->content, "isError", out->failed, "structuredContent",
				   out->structured);
	}
	if (result && job->modern && job->tool->flags & CELL_MCP_TIMELESS)
		json_object_update_new(result, json_pack("{s:i, s:s}", "ttlMs", 0, "cacheScope", "private"));
	pthread_mutex_lock(&server->lock);
	if (job->handle->taken == job)
		job->handle->taken = NULL;
	request = cell__mcp_take_request(job);
	if (request)
		cell__mcp_parked_taken(job);
	else if (job->parked)
		cell__mcp_parked_result(job, cell__take_ptr(result));
	pthread_mutex_unlock(&server->lock);
	if (!request || request->cancelled)
		json_decref(cell__take_ptr(result));
	if (request)
		cell__mcp_pending_answer(request, result);
	pthread_mutex_lock(&server->lock);
	cell__mcp_job_unref(job);
	pthread_mutex_unlock(&server->lock);
}

void cell__mcp_job_fail(struct cell__mcp_job *job, const char *words, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__mcp_answer_out out = { .failed = true };

	cell__buf_add_utf8(&text, words, size);
	out.content = json_pack("[{s:s, s:s#}]", "type", "text", "text", text.size ? text.data : "", (int)text.size);
	cell__mcp_job_answer(job, &out);
}

/* What a client can go by, besides the code; or NULL. */
static json_t *error_data(const struct cell__mcp_job *job, int code)
{
	const json_t *uri = json_object_get(job->args, "uri");

	if (code == CELL_RPC_NEEDS_CAPABILITY)
		return json_pack("{s:O}", "requiredCapabilities", job->lacking);
	return job->tool->run == cell__mcp_resources_read && json_is_string(uri) ? json_pack("{s:O}", "uri", uri) : NULL;
}

/* A method of the protocol has failed, or its client lacks something: an error, not a result. */
static void job_error(struct cell__mcp_job *job, int code, const char *words)
{
	struct cell_mcp_server *server = job->handle->server;
	json_t *data = error_data(job, code);
	struct cell__mcp_pending *request;

	pthread_mutex_lock(&server->lock);
	request = cell__mcp_take_request(job);
	if (request)
		cell__mcp_parked_taken(job);
	else if (job->parked)
		cell__mcp_parked_error(job, json_pack("{s:i, s:s, s:O*}", "code", code, "message", words, "data", data));
	pthread_mutex_unlock(&server->lock);
	if (request && request->cancelled)
		cell__mcp_unit_answered(request->peer, request->unit, NULL);
	else if (request)
		cell__mcp_answer_error_data(request->peer, request->unit, request->id, code, words, data);
	json_decref(data);
	pthread_mutex_lock(&server->lock);
	if (request)
		cell__mcp_pending_free(request);
	cell__mcp_job_unref(job);
	pthread_mutex_unlock(&server->lock);
}

struct worker {
	struct cell__mcp_job *job;
	struct cell__mcp_peer *peer; /* which waits for it */
};

/* The thread of one operation on the space. */
static void *worker_main(void *arg)
{
	struct worker worker = *(struct worker *)arg;
	struct cell__mcp_job *job = worker.job;
	struct cell_mcp_server *server = worker.peer->server;
	struct cell__mcp_answer_out out = { 0 };
	CELL_AUTO_BUF struct cell__buf message = CELL_BUF_INIT;

	free(arg);
	if (job->tool->run(job, job->args, &out, &message) < 0) {
		json_decref(out.content);
		json_decref(out.structured);
		json_decref(out.whole);
		if (job->lacking)
			job_error(job, CELL_RPC_NEEDS_CAPABILITY, message.size ? message.data : "out of memory");
		else if (job->tool->flags & CELL_MCP_METHOD || out.code)
			job_error(job, out.code ? out.code : CELL_RPC_INTERNAL_ERROR, message.size ? message.data : "out of memory");
		else
			cell__mcp_job_fail(job, message.size ? message.data : "out of memory", message.size ? message.size : 14);
	} else {
		cell__mcp_job_answer(job, &out);
	}
	pthread_mutex_lock(&server->lock);
	worker.peer->n_workers--;
	pthread_cond_broadcast(&worker.peer->changed);
	pthread_mutex_unlock(&server->lock);
	return NULL;
}

static int start_worker(struct cell__mcp_peer *peer, struct cell__mcp_job *job)
{
	struct worker *worker = cell__alloc(1, sizeof(*worker));
	pthread_attr_t attr;
	pthread_t thread;
	int status;

	if (!worker)
		return -1;
	*worker = (struct worker){ job, peer };
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	status = pthread_create(&thread, &attr, worker_main, worker);
	pthread_attr_destroy(&attr);
	if (status)
		free(worker);
	return status ? -1 : 0;
}

/* With the lock held.  The cells that a reset overtakes do not run any more, also those that wait; later ones wait for it. */
static void begin_reset(struct cell__mcp_job *job)
{
	struct cell__mcp_handle *handle = job->handle;

	job->dropped = handle->cells;
	handle->cells = handle->last_cell = NULL;
	handle->n_cells = 0;
	handle->n_resets++;
	if (handle->taken)
		handle->taken->overtaken = true;
}

const char *cell__mcp_job_queue(struct cell__mcp_peer *peer, struct cell__mcp_job *job)
{
	struct cell__mcp_handle *handle = job->handle;

	if (job->tool->run) {
		if (peer->n_workers >= CELL_MCP_MAX_CALLS)
			return "too many calls are pending; wait for some of them";
		job->canceller = cell_canceller_create();
		if (!job->canceller)
			return "out of memory";
		peer->n_workers++;
		if (start_worker(peer, job) < 0) {
			peer->n_workers--;
			return "no thread could be started for the call";
		}
		/* Its thread needs the lock. */
		if (job->tool->run == cell__mcp_reset)
			begin_reset(job);
	} else {
		if (handle->n_cells >= CELL_MCP_MAX_CELLS)
			return "too many cells are waiting; wait for some of them";
		if (handle->last_cell)
			handle->last_cell->after = job;
		else
			handle->cells = job;
		handle->last_cell = job;
		handle->n_cells++;
		pthread_cond_broadcast(&handle->changed);
	}
	return NULL;
}
