/*
 * Requests for sessions that are saved and not open here.
 *
 *     request ──no such session──▶ pool: whose is it? ──▶ opened, from what was saved ──▶ the request is handled as any other
 *                                        └── not there ──▶ handled too: it finds none
 *
 * Further requests for the same session wait for the first.  If another server has it awake, the answer is `conflict`.  Everything but
 * do_find() runs on the loop's thread.
 */
#include "server/server.h"

#include <stdlib.h>
#include <string.h>

#include "durable/durable.h"
#include "server/peers.h"

struct cell__waking {
	uv_work_t work;
	struct cell_server *server;
	struct cell__request *request;
	struct cell__request *waiting; /* by wake_next */
	char id[33];
	char *dir, *key; /* the server's settings may be loaded anew meanwhile */
	char *owner;
	struct cell_error err; /* why there is none */
	struct cell__waking *next;
};

static const char *named_session(const struct cell__request *request)
{
	if (!strncmp(request->route->path, "/v1/sessions/{session}", 22))
		return request->params[0];
	return request->route->session_header ? cell__request_header(request, "X-Session-ID") : NULL;
}

const char *cell__waking_id(const struct cell__waking *waking)
{
	return waking->id;
}

void cell__waking_ended(struct cell__waking *waking)
{
	struct cell__request *request = waking->waiting, *next;
	struct cell__waking **at = &waking->server->wakings;

	while (*at != waking)
		at = &(*at)->next;
	*at = waking->next;
	for (; request; request = next) {
		next = cell__take_ptr(request->wake_next);
		cell__request_handle(request);
	}
	free(waking->dir);
	free(waking->key);
	free(waking->owner);
	free(waking);
}

static void handle_opened(struct cell__request *request)
{
	cell__served_release(request);
	request->route->handle(request);
}

static void do_find(uv_work_t *work)
{
	struct cell__waking *waking = work->data;

	waking->owner = cell__durable_owner(waking->dir, waking->id, waking->key, &waking->err);
}

/* The owner is "TOKEN/WORKSPACE"; the name of a workspace has no slash. */
static void handle_found(uv_work_t *work, int status)
{
	struct cell__waking *waking = work->data;
	struct cell__request *request = waking->request;
	char *workspace = waking->owner ? strrchr(waking->owner, '/') : NULL;

	(void)status; /* never cancelled */
	if (workspace)
		*workspace++ = '\0';
	request->woken = true;
	if (!workspace && waking->err.code == CELL_E_STORAGE) {
		cell__peers_unknown(request);
		cell__waking_ended(waking);
	} else if (request->server->stopping) { /* it may be one of ours, which is being saved */
		cell__answer_moving(request, "the server is stopping: try again");
		cell__waking_ended(waking);
	} else if (!workspace || strcmp(waking->owner, request->who.name) != 0) {
		request->route->handle(request); /* which finds none */
		cell__waking_ended(waking);
	} else if (!cell__served_open_saved(request, workspace, waking, handle_opened)) {
		cell__waking_ended(waking);
	}
}

static bool begins_cell(const struct cell__request *request)
{
	return !strcmp(request->method, "POST") &&
	       (!strcmp(request->route->path, "/execute") || !strcmp(request->route->path, "/v1/sessions/{session}/runs"));
}

/* True: the request is handled later. */
static bool wake_first(struct cell__request *request)
{
	struct cell_server *server = request->server;
	const char *id = named_session(request);
	struct cell__waking *waking;

	if (!id || !server->session.saved_dir || server->opts.work_dir || request->woken || request->is_e2b || !cell__saved_is_id(id))
		return false;
	const struct cell__served *served = cell__served_by_id(server, id);

	/* It has just been put to sleep here, for others; or it will be, after the cells that it has. */
	if ((served ? served->resting && begins_cell(request) : server->leaving) && cell__request_header(request, CELL_FORWARD_HOP)) {
		cell__answer_moving(request, "the server is stopping: try again");
		return true;
	}
	if (served)
		return false;
	for (waking = server->wakings; waking; waking = waking->next)
		if (!strcmp(waking->id, id)) {
			request->wake_next = waking->waiting;
			waking->waiting = request;
			return true;
		}
	waking = cell__alloc(1, sizeof(*waking));
	if (!waking)
		return false;
	*waking = (struct cell__waking){ .server = server, .request = request, .next = server->wakings };
	strcpy(waking->id, id);
	waking->dir = cell__strdup(server->session.saved_dir);
	waking->key = server->session.saved_key ? cell__strdup(server->session.saved_key) : NULL;
	waking->work.data = waking;
	if (!waking->dir || !waking->key != !server->session.saved_key) {
		free(waking->dir);
		free(waking->key);
		free(waking);
		return false;
	}
	server->wakings = waking;
	uv_queue_work(cell__loop_uv(server->engine->loop), &waking->work, do_find, handle_found);
	return true;
}

void cell__request_handle(struct cell__request *request)
{
	if (!wake_first(request))
		request->route->handle(request);
}
