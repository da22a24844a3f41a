/*
 * The watch over requests that take long.  A client that gives up after a time needs signs of life (progress, if it wants any), and one that
 * does not want to wait gets an answer: a task, or the id of a job.  The work goes on.
 *
 *     asleep ── a request came whose time is nearer, a session was opened ──▶ looks at all requests ──▶ asleep until the next is due
 *
 * One thread, from the first request that has something to watch to the server's end.  A task's and a job's id begin with that of the session,
 * which gets its own when it is opened where sessions are saved: until then nobody is answered.
 */
#include "mcp/server/server.h"

#include <math.h>
#include <string.h>

#define ALIVE_US INT64_C(5000000)

/* With the lock held.  When something is to be done for the request; INT64_MAX: never. */
static int64_t due_of(const struct cell__mcp_pending *request)
{
	const struct cell__mcp_job *job = request->job;
	int64_t due = INT64_MAX;

	if (!job || request->cancelled)
		return due;
	if (request->token)
		due = job->told_us + ALIVE_US;
	if (job->deadline_us && job->deadline_us < due && (job->handle->opened || !job->handle->server->session.saved_dir))
		due = job->deadline_us;
	return due;
}

/* With the lock held. */
static void tell_alive(struct cell__mcp_pending *request, int64_t now)
{
	struct cell__mcp_job *job = request->job;
	struct cell__mcp_peer *peer = request->peer;
	void *stream = request->unit->stream;

	job->told_us = now;
	if (peer->sink.full(peer->sink.arg, stream))
		return;
	/* It has to grow, but not past what a function tells next. */
	job->progress = job->reports ? nextafter(job->progress, INFINITY) : job->progress + 1;
	cell__mcp_peer_notify(peer, stream, "notifications/progress",
			      json_pack("{s:O, s:f, s:s}", "progressToken", request->token, "progress", job->progress, "message", ""));
}

/* With the lock held, which is released in between.  Takes the result over. */
static void answer(struct cell__mcp_job *job, json_t *result)
{
	struct cell_mcp_server *server = job->handle->server;
	struct cell__mcp_pending *request = cell__mcp_take_request(job);

	pthread_mutex_unlock(&server->lock);
	cell__mcp_pending_answer(request, result);
	pthread_mutex_lock(&server->lock);
}

bool cell__mcp_job_become_task(struct cell__mcp_job *job)
{
	bool waits = job->request && !job->request->cancelled;
	json_t *task = waits && job->request->tasks ? cell__mcp_job_to_task(job) : NULL;

	if (!task)
		return cell__mcp_job_is_task(job);
	job->deadline_us = 0;
	answer(job, task);
	return true;
}

/* With the lock held, which is released in between.  Answers the client of a job that does not end in its time; the job goes on. */
static void let_go(struct cell__mcp_job *job)
{
	json_t *structured, *content;
	const char *id;

	job->deadline_us = 0;
	if (cell__mcp_job_become_task(job) || (job->tool->run && !(job->tool->flags & CELL_MCP_LONG)))
		return;
	id = cell__mcp_job_keep(job);
	if (!id)
		return; /* it is waited for, as without a deadline */
	content = json_pack("[{s:s, s:o}]", "type", "text", "text",
			    json_sprintf("Still running as job %s: get_job returns its result, cancel_job ends it.", id));
	structured = json_pack("{s:s, s:s}", "result", "running", "job", id);
	if (structured && (job->new_session || job->named))
		json_object_set_new(structured, "session", json_string(job->handle->id));
	if (job->new_session)
		json_array_append_new(content,
				      json_pack("{s:s, s:o}", "type", "text", "text", json_sprintf("[session %s]", job->handle->id)));
	answer(job, json_pack("{s:o, s:b, s:o*}", "content", content, "isError", 0, "structuredContent", structured));
}

/* With the lock held.  When to look again; 0: at once, because the lock was released. */
static int64_t look(struct cell_mcp_server *server)
{
	int64_t now = cell__now_us(), next = INT64_MAX;

	for (struct cell__mcp_peer *peer = server->peers; peer; peer = peer->next) {
		for (struct cell__mcp_pending *request = peer->requests; request; request = request->next) {
			int64_t due = due_of(request);

			if (due <= now && due == request->job->deadline_us) {
				let_go(request->job);
				return 0;
			}
			if (due <= now) {
				tell_alive(request, now);
				due = due_of(request);
			}
			if (due < next)
				next = due;
		}
	}
	return next;
}

static void *watch_main(void *arg)
{
	struct cell_mcp_server *server = arg;

	pthread_mutex_lock(&server->lock);
	while (!server->watch_ends) {
		server->watch_at_us = look(server);
		if (server->watch_at_us == INT64_MAX)
			pthread_cond_wait(&server->watch_changed, &server->lock);
		else if (server->watch_at_us)
			cell__mcp_cond_wait(&server->watch_changed, &server->lock, server->watch_at_us);
	}
	pthread_mutex_unlock(&server->lock);
	return NULL;
}

void cell__mcp_watch_again(struct cell_mcp_server *server)
{
	pthread_cond_signal(&server->watch_changed);
}

/* With the lock held.  Until when the client waits: as long as it says, or until the call becomes a task. */
static void set_deadline(struct cell__mcp_job *job)
{
	bool is_long = job->tool->flags & CELL_MCP_LONG;
	const json_t *wait = job->tool->run && !is_long ? NULL : json_object_get(job->args, "wait_ms");
	/* Others answer soon, or have been told how long they may wait. */
	bool may = !job->tool->run || job->offer || job->tool->operation || is_long;

	job->told_us = cell__now_us();
	if (wait)
		/* A thread of its own answers in time, once there is something to wait for. */
		job->deadline_us = job->told_us + json_integer_value(wait) * 1000 + (is_long ? CELL_MCP_TASK_AFTER_US : 0);
	else if (job->request->tasks && may)
		job->deadline_us = job->told_us + CELL_MCP_TASK_AFTER_US;
}

void cell__mcp_watch(struct cell__mcp_job *job)
{
	struct cell_mcp_server *server = job->handle->server;
	int64_t due;

	set_deadline(job);
	due = due_of(job->request);
	/* A deadline may be due only after the session was opened, which the thread has to be told of. */
	if (due == INT64_MAX && !job->deadline_us)
		return;
	if (!server->watches && !server->watch_ends)
		server->watches = pthread_create(&server->watch_thread, NULL, watch_main, server) == 0; /* without it clients just wait */
	else if (due < server->watch_at_us)
		cell__mcp_watch_again(server);
}

void cell__mcp_watch_end(struct cell_mcp_server *server)
{
	bool watches;

	pthread_mutex_lock(&server->lock);
	watches = server->watches;
	server->watch_ends = true;
	server->watches = false;
	cell__mcp_watch_again(server);
	pthread_mutex_unlock(&server->lock);
	if (watches)
		pthread_join(server->watch_thread, NULL);
}
