/*
 * Tasks: requests that go on without their client.
 *
 *     "Prefer: respond-async" ──▶ 202 with an id; the request is detached ──▶ running ──▶ ended: its answer is kept for a while
 *                                                                               └── DELETE: cancelled as soon as its work allows
 *
 * The client's own request is answered at once.  A second one takes its place: it has the fields that the first was checked with, no
 * connection, and its answer is the last event of the task.  Handlers do not notice: they answer as always, once, from inside or later.
 * A detached request is freed after the callback that answered it, because its handler may still touch it (cell__tasks_reap()).
 */
#include "server/api.h"
#include "server/peers.h"
#include "server/pool.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define KEPT_US 300000000        /* an ended task that nobody reads */
#define PROGRESS_BYTES (64u << 10) /* of lines that its work wrote; readers that come late miss the oldest */

struct cell__served_task {
	struct cell__events events; /* first */
	struct cell_server *server;
	struct cell__request *request; /* detached; NULL: it has been freed */
	bool ended;
	char id[33], owner[CELL_SERVER_MAX_NAME + 1], what[160];
	int64_t begun_s, idle_since_us;
	unsigned status;
	const char *answer; /* JSON in the last event, when it ended */
	size_t answer_size;
	char *held; /* an answer that waits until others can find what it tells of (directory.c); or NULL */
	unsigned refs;
	struct cell__served_task *next;
};

static void task_unref(struct cell__served_task *task)
{
	if (--task->refs)
		return;
	cell__events_finish(&task->events);
	free(task->held);
	free(task);
}

/* It has ended. */
static void forget(struct cell__served_task *task)
{
	struct cell__served_task **at = &task->server->tasks;

	while (*at != task)
		at = &(*at)->next;
	*at = task->next;
	cell__directory_remove(task->server, task->id);
	task->server->n_tasks--;
	task->server->task_bytes -= task->answer_size;
	task_unref(task);
}

/* The one that ended first, of this client, or of all (NULL). */
static struct cell__served_task *oldest_ended(struct cell_server *server, const char *owner)
{
	struct cell__served_task *found = NULL;

	for (struct cell__served_task *task = server->tasks; task; task = task->next) {
		if (task->ended && !task->request && (!owner || !strcmp(task->owner, owner)) &&
		    (!found || task->idle_since_us < found->idle_since_us))
			found = task;
	}
	return found;
}

/* Makes room for another one of this client; false: all of its tasks, or of the server's, still run. */
static bool make_room(struct cell_server *server, const char *owner)
{
	size_t own = 0;
	struct cell__served_task *oldest;

	for (const struct cell__served_task *task = server->tasks; task; task = task->next)
		own += !strcmp(task->owner, owner);
	if (own < CELL_SERVER_TOKEN_TASKS && server->n_tasks < CELL_SERVER_MAX_TASKS)
		return true;
	oldest = oldest_ended(server, own < CELL_SERVER_TOKEN_TASKS ? NULL : owner);
	if (oldest)
		forget(oldest);
	return oldest != NULL;
}

static json_t *describe(const struct cell__served_task *task, bool whole)
{
	char begun[32];
	time_t at = (time_t)task->begun_s;
	struct tm tm;
	json_t *found, *answer = NULL;

	gmtime_r(&at, &tm);
	strftime(begun, sizeof(begun), "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (whole && task->answer)
		answer = json_loadb(task->answer, task->answer_size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	found = json_pack("{s:s,s:s,s:s,s:s,s:o,s:I}", "task_id", task->id, "request", task->what, "state",
			  task->ended ? "ended" : "running", "created_at", begun, "status",
			  task->ended ? json_integer(task->status) : json_null(), "last_event", (json_int_t)(task->events.next_number - 1));
	if (whole && found)
		json_object_set_new(found, "answer", answer ? answer : json_null());
	else
		json_decref(answer);
	return found;
}

/* ---- beginnings and ends ---- */

bool cell__task_is_asked(const struct cell__request *request)
{
	const char *at = request->route->lasting ? cell__request_header(request, "Prefer") : NULL;
	static const char word[] = "respond-async";

	while (at && *at) {
		size_t size;

		at += strspn(at, " \t,");
		size = strcspn(at, " \t,;");
		if (size == sizeof(word) - 1 && !strncasecmp(at, word, size))
			return true;
		at += strcspn(at, ",");
	}
	return false;
}

static void handle_reader_gone(struct cell__events *events)
{
	task_unref((struct cell__served_task *)events);
}

static struct cell__served_task *task_create(struct cell__request *request)
{
	struct cell_server *server = request->server;
	struct cell__served_task *task = cell__alloc(1, sizeof(*task));

	if (!task)
		return NULL;
	*task = (struct cell__served_task){ .server = server, .refs = 1, .next = server->tasks, .begun_s = time(NULL) };
	cell__random_hex(task->id, 32);
	memcpy(task->id, server->engine->id_tag, strlen(server->engine->id_tag)); /* which worker has it */
	strcpy(task->owner, request->who.name);
	snprintf(task->what, sizeof(task->what), "%s %.140s", request->method, request->path);
	cell__events_init(&task->events, server);
	task->events.unref = handle_reader_gone;
	task->events.max_bytes = PROGRESS_BYTES;
	task->idle_since_us = cell__now_us();
	return task;
}

void cell__task_begin(struct cell__request *request)
{
	struct cell_server *server = request->server;
	struct cell__served_task *task;
	struct cell__request *detached;
	struct MHD_Response *response;
	char *text;
	json_t *first;

	if (!make_room(server, request->who.name)) {
		cell__answer_busy(request, 5, "too many tasks are running");
		return;
	}
	task = task_create(request);
	detached = task ? cell__request_detach(request) : NULL;
	first = detached ? describe(task, true) : NULL;
	text = first ? json_dumps(first, JSON_COMPACT) : NULL;
	json_decref(first);
	response = text ? cell__http_response(text, strlen(text), "application/json") : NULL; /* which takes it over */
	if (!response) {
		free(task);
		if (detached)
			cell__request_free(detached);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a task");
		return;
	}
	server->tasks = task;
	server->n_tasks++;
	server->tasks_running++;
	cell__directory_add(server, task->id, &request->announced);
	task->request = detached;
	detached->task = task;
	MHD_add_response_header(response, "Preference-Applied", "respond-async");
	MHD_add_response_header(response, "X-Task-ID", task->id);
	cell__answer_response(request, MHD_HTTP_ACCEPTED, response);
	cell__request_handle(detached);
}

void cell__task_release(struct cell__request *request)
{
	CELL_AUTO_FREE char *text = cell__take_ptr(request->task->held);

	cell__task_answer(request, request->task->status, text);
}

void cell__task_answer(struct cell__request *request, unsigned status, const char *text)
{
	static const char none[] = "{\"detail\":\"out of memory for the answer\",\"code\":\"no_memory\"}";
	struct cell__served_task *task = request->task;
	struct cell_server *server = task->server;
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	struct cell__events_item *event = NULL;
	struct cell__served_task *oldest;

	if (request->state == CELL_REQUEST_ANSWERED || request->held)
		return;
	if (text && cell__directory_hold(request)) {
		request->cancel = NULL; /* its work is done */
		task->status = status;
		task->held = cell__strdup(text);
		return;
	}
	request->state = CELL_REQUEST_ANSWERED;
	if (!text) {
		status = MHD_HTTP_INTERNAL_SERVER_ERROR;
		text = none;
	}
	task->status = status;
	if (cell__buf_printf(&json, "{\"status\":%u,\"answer\":", status) == 0 && cell__buf_add_str(&json, text) == 0 &&
	    cell__buf_add_str(&json, "}") == 0)
		event = cell__events_add(&task->events, "result", json.data, json.size);
	/* "...data: {..., "answer": TEXT}\n\n" */
	if (event) {
		task->answer_size = strlen(text);
		task->answer = event->text + event->size - 3 - task->answer_size;
	}
	task->ended = true;
	task->idle_since_us = cell__now_us();
	cell__events_end(&task->events);
	server->task_bytes += task->answer_size;
	server->tasks_due = true;
	cell__http_soon(server);
	while ((int64_t)server->task_bytes > server->limits.kept_bytes / cell__pool_size(server) && (oldest = oldest_ended(server, NULL)))
		forget(oldest);
}

void cell__task_progress(struct cell__request *request, const char *line, size_t size)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;

	if (request->task && !request->task->ended && cell__buf_add_str(&json, "{\"line\":") == 0 &&
	    cell__buf_add_json_string(&json, line, size) == 0 && cell__buf_add_str(&json, "}") == 0)
		(void)cell__events_add(&request->task->events, "progress", json.data, json.size);
}

void cell__tasks_reap(struct cell_server *server)
{
	if (!server->tasks_due)
		return;
	server->tasks_due = false;
	for (struct cell__served_task *task = server->tasks; task; task = task->next) {
		if (!task->ended || !task->request)
			continue;
		server->tasks_running--;
		cell__request_free(cell__take_ptr(task->request));
	}
	cell__server_advance(server);
}

static void cancel(struct cell__served_task *task)
{
	struct cell__request *request = task->request;

	if (task->ended || request->cancelled)
		return;
	request->cancelled = true;
	if (request->cancel)
		request->cancel(request);
}

/* ---- all of them ---- */

void cell__tasks_keep(struct cell_server *server)
{
	for (const struct cell__served_task *task = server->tasks; task; task = task->next)
		cell__directory_keep(server, task->id);
}

void cell__tasks_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__served_task *next;

	for (struct cell__served_task *task = server->tasks; task; task = next) {
		next = task->next;
		cell__events_sweep(&task->events, now_us);
		if (!task->ended || task->events.n_readers > 0)
			task->idle_since_us = now_us;
		else if (!task->request && now_us - task->idle_since_us > KEPT_US)
			forget(task);
	}
}

void cell__tasks_stop(struct cell_server *server)
{
	for (struct cell__served_task *task = server->tasks; task; task = task->next) {
		cancel(task);
		cell__events_release(&task->events);
	}
}

void cell__tasks_finish(struct cell_server *server)
{
	while (server->tasks)
		forget(server->tasks);
}

/* ---- requests ---- */

static struct cell__served_task *find(struct cell__request *request)
{
	struct cell__served_task *task = request->server->tasks;

	while (task && strcmp(task->id, request->params[0]))
		task = task->next;
	if (task && strcmp(task->owner, request->who.name) && !(request->who.scopes & CELL_SCOPE_ADMIN))
		task = NULL;
	if (!task)
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such task, or it is no longer kept");
	return task;
}

void cell__handle_v1_tasks(struct cell__request *request)
{
	json_t *list = json_array();

	for (const struct cell__served_task *task = request->server->tasks; task; task = task->next) {
		if (!strcmp(task->owner, request->who.name))
			json_array_append_new(list, describe(task, false));
	}
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "tasks", list));
}

void cell__handle_v1_task_get(struct cell__request *request)
{
	const struct cell__served_task *task = find(request);

	if (task)
		cell__answer_json(request, MHD_HTTP_OK, describe(task, true));
}

void cell__handle_v1_task_events(struct cell__request *request)
{
	struct cell__served_task *task = find(request);
	struct MHD_Response *response;
	uint64_t after;

	if (!task || !cell__last_event(request, &task->events, &after))
		return;
	response = cell__events_read(request, &task->events, after, true);
	if (!response)
		return;
	task->refs++;
	MHD_add_response_header(response, "X-Task-ID", task->id);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

void cell__handle_v1_task_delete(struct cell__request *request)
{
	struct cell__served_task *task = find(request);

	if (!task)
		return;
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	if (!task->ended)
		cancel(task);
	else if (!task->request)
		forget(task);
}
