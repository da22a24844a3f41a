/*
 * The spaces of workspace ids, and operations on them.
 *
 *     workspace:  opening ──▶ open ──unused, and there are too many──▶ closed
 *                    └── failed: waiters get the error, and it is forgotten
 *
 * The host's own function opens a space on a thread of the pool, one at a time: it may wait for files or for Redis.
 */
#include "server/server.h"

#include <string.h>

struct cell__waiting_space {
	cell__workspace_fn ready;
	void *arg;
	struct cell__waiting_space *next;
};

struct opening {
	uv_work_t work;
	struct cell__workspace *workspace;
	struct cell_space *space;
	struct cell_error err;
	int status;
};

static void open_next(struct cell_server *server);

static void forget(struct cell__workspace *workspace)
{
	struct cell_server *server = workspace->server;
	struct cell__workspace **at = &server->workspaces;

	while (*at != workspace)
		at = &(*at)->next;
	*at = workspace->next;
	server->n_workspaces--;
	free(workspace);
}

static void tell_waiting(struct cell__workspace *workspace, const struct cell_error *err)
{
	struct cell__waiting_space *waiting;

	while ((waiting = workspace->waiting)) {
		workspace->waiting = waiting->next;
		if (!err)
			workspace->users++;
		waiting->ready(waiting->arg, err ? NULL : workspace, err);
		free(waiting);
	}
}

static void do_open(uv_work_t *work)
{
	struct opening *opening = work->data;
	const struct cell_server_options *opts = &opening->workspace->server->opts;

	opening->status = opts->open_space(opts->space_arg, opening->workspace->id, &opening->space, &opening->err);
}

/* Requests without a session follow the server's rules, too. */
static void guard(struct cell__workspace *workspace)
{
	const struct cell_session_options *session = workspace->server->opts.session;

	cell__logins_offer(workspace->server, workspace->space, workspace->id);
	if (session)
		cell__space_guard_on_loop(workspace->space, session,
					  "approvals need a session: send X-Session-ID, and answer at /v1/approvals");
}

static void handle_opened(uv_work_t *work, int status)
{
	struct opening *opening = work->data;
	struct cell__workspace *workspace = opening->workspace;
	struct cell_server *server = workspace->server;

	(void)status;
	server->opening_space = false;
	if (!opening->status) {
		workspace->space = opening->space;
		guard(workspace);
		workspace->used_us = cell__now_us();
		tell_waiting(workspace, NULL);
	} else {
		tell_waiting(workspace, &opening->err);
		forget(workspace);
	}
	free(opening);
	open_next(server);
}

/* The longest waiter is the last of the list. */
static void open_next(struct cell_server *server)
{
	struct cell__workspace *next = NULL;
	struct opening *opening;

	for (struct cell__workspace *at = server->workspaces; at; at = at->next) {
		if (!at->space && at->waiting)
			next = at;
	}
	if (!next || server->opening_space)
		return;
	opening = cell__alloc(1, sizeof(*opening));
	if (!opening) {
		struct cell_error err;

		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a workspace");
		tell_waiting(next, &err);
		forget(next);
		return;
	}
	*opening = (struct opening){ .workspace = next, .work.data = opening };
	server->opening_space = true;
	uv_queue_work(cell__loop_uv(server->engine->loop), &opening->work, do_open, handle_opened);
}

static void space_gone(void *arg)
{
	(void)arg;
}

/* Makes room for another: closes the one that is unused for longest. */
static bool make_room(struct cell_server *server)
{
	struct cell__workspace *oldest = NULL;

	if (server->n_workspaces < CELL_SERVER_MAX_WORKSPACES)
		return true;
	for (struct cell__workspace *at = server->workspaces; at; at = at->next) {
		if (at->space && *at->id && !at->users && (!oldest || at->used_us < oldest->used_us))
			oldest = at;
	}
	if (!oldest)
		return false;
	cell__space_close_on_loop(oldest->space, space_gone, NULL);
	forget(oldest);
	return true;
}

static struct cell__workspace *add_workspace(struct cell_server *server, const char *id)
{
	struct cell__workspace *workspace = cell__alloc(1, sizeof(*workspace));

	if (!workspace)
		return NULL;
	*workspace = (struct cell__workspace){ .server = server, .next = server->workspaces };
	strcpy(workspace->id, id);
	if (!*id)
		workspace->space = server->opts.space;
	if (workspace->space)
		guard(workspace);
	server->workspaces = workspace;
	server->n_workspaces++;
	return workspace;
}

void cell__workspace_get(struct cell_server *server, const char *id, cell__workspace_fn ready, void *arg)
{
	struct cell__workspace *workspace = server->workspaces;
	struct cell__waiting_space *waiting;
	struct cell_error err;

	while (workspace && strcmp(workspace->id, id))
		workspace = workspace->next;
	if (workspace && workspace->space) {
		workspace->users++;
		ready(arg, workspace, NULL);
		return;
	}
	cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a workspace");
	if (!workspace && *id && !server->opts.open_space)
		cell_fail(&err, CELL_E_SPAWNER, 0, "Workspace-scoped storage is not configured");
	else if (!workspace && !server->opts.open_space && !server->opts.space)
		cell_fail(&err, CELL_E_SPAWNER, 0, "the server has no space for sessions: its options need space or open_space");
	else if (!workspace && !make_room(server))
		cell_fail(&err, CELL_E_BUSY, 0, "the maximum number of workspaces is in use");
	else if (!workspace)
		workspace = add_workspace(server, id);
	if (workspace && workspace->space) {
		workspace->users++;
		ready(arg, workspace, NULL);
		return;
	}
	waiting = workspace ? cell__alloc(1, sizeof(*waiting)) : NULL;
	if (!waiting) {
		ready(arg, NULL, &err);
		return;
	}
	*waiting = (struct cell__waiting_space){ ready, arg, workspace->waiting };
	workspace->waiting = waiting;
	open_next(server);
}

void cell__workspace_put(struct cell__workspace *workspace)
{
	workspace->users--;
	workspace->used_us = cell__now_us();
}

struct closing_all {
	unsigned left;
	void (*done)(void *arg);
	void *arg;
};

static void one_closed(void *arg)
{
	struct closing_all *all = arg;

	if (--all->left)
		return;
	all->done(all->arg);
	free(all);
}

void cell__workspaces_close(struct cell_server *server, void (*done)(void *arg), void *arg)
{
	struct closing_all *all = cell__alloc(1, sizeof(*all));
	struct cell__workspace *workspace;

	if (!all) {
		done(arg); /* the engine closes the rest */
		return;
	}
	*all = (struct closing_all){ 1, done, arg };
	while ((workspace = server->workspaces)) {
		struct cell_space *space = *workspace->id ? workspace->space : NULL;

		forget(workspace);
		if (space) {
			all->left++;
			cell__space_close_on_loop(space, one_closed, all);
		}
	}
	one_closed(all);
}

/* ---- operations ---- */

struct asked {
	struct cell__call call; /* first */
	struct cell__request *request; /* NULL: no request waits for the answer */
	struct cell__workspace *workspace;
	cell__ask_fn then;
	json_t *args;
	struct cell__principal principal;
};

/* A client's requests have the trust of the code it may run: they do not run programs of its choice on this machine either. */
struct cell__principal cell__request_principal(const struct cell__request *request)
{
	const struct cell_session_options *session = request->server->opts.session;
	const struct cell__executor *executor = session && session->executor ? cell__executor_find(session->executor) : NULL;
	struct cell__principal principal;

	cell__principal_init(&principal, CELL__PRINCIPAL_HTTP, !executor || cell__executor_is_trusted(executor),
			     &request->server->host_limits, request->who.name);
	principal.scopes = request->who.scopes;
	return principal;
}

static void asked_done(struct asked *asked)
{
	if (asked->request && asked->request->cancel_arg == asked)
		asked->request->cancel = NULL;
	if (asked->request && asked->request->ends_session)
		cell__served_end(asked->request->served);
	cell__workspace_put(asked->workspace);
	json_decref(asked->args);
	free(asked);
}

static void handle_answer(struct cell__call *call, json_t *result, const void *raw, size_t raw_size)
{
	struct asked *asked = (struct asked *)call;
	struct cell__request *request = asked->request;

	if (!request)
		; /* no request waits for the answer */
	else if (!result)
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the answer");
	else if (asked->then)
		asked->then(request, result, raw, raw_size);
	else
		cell__answer_json(request, request->route->status, json_incref(result));
	json_decref(result);
	asked_done(asked);
}

static void handle_answer_text(struct cell__call *call, const char *text, const void *raw, size_t raw_size)
{
	handle_answer(call, json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL), raw, raw_size);
}

static void handle_failure(struct cell__call *call, int code, const char *type, const char *message)
{
	struct asked *asked = (struct asked *)call;

	(void)type;
	if (asked->request && asked->request->invalid && code == CELL_E_INVALID)
		asked->request->invalid(asked->request);
	else if (asked->request)
		cell__answer_fail(asked->request,
				  cell_code_http_status(code) >= 400 ? (unsigned)cell_code_http_status(code) : MHD_HTTP_FORBIDDEN, code,
				  "%s", message); /* the only outcome of code that is one of calls too: rejected */
	asked_done(asked);
}

static void handle_progress(struct cell__call *call, const char *line, size_t size)
{
	struct asked *asked = (struct asked *)call;

	if (asked->request)
		cell__task_progress(asked->request, line, size);
}

/* What cannot be stopped now goes on to its end, and that is the answer. */
static void cancel_asked(struct cell__request *request)
{
	struct asked *asked = request->cancel_arg;

	if (!asked->call.cancel)
		return;
	asked->call.cancel(&asked->call);
	handle_failure(&asked->call, CELL_E_CANCELLED, "", "the request was cancelled");
}

/* The request waits for this call.  False: it was cancelled before, and is answered. */
static bool wait_for(struct cell__request *request, struct asked *asked, cell__ask_fn then)
{
	asked->request = request;
	asked->then = then;
	if (request->cancelled) {
		handle_failure(&asked->call, CELL_E_CANCELLED, "", "the request was cancelled");
		return false;
	}
	if (request->task) {
		asked->call.progress = handle_progress;
		request->cancel_arg = asked;
		request->cancel = cancel_asked;
	}
	return true;
}

static struct asked *ask(struct cell__workspace *workspace, const struct cell__principal *principal, enum cell__op op, json_t *args)
{
	struct asked *asked = args ? cell__alloc(1, sizeof(*asked)) : NULL;

	if (!asked) {
		json_decref(args);
		return NULL;
	}
	*asked = (struct asked){
		.call = { .method = cell__operations[op].method,
			  .args = args,
			  .session_id = "",
			  .answer = handle_answer,
			  .answer_text = handle_answer_text,
			  .fail = handle_failure },
		.principal = *principal,
		.workspace = workspace,
		.args = args,
	};
	workspace->users++;
	return asked;
}

void cell__ask(struct cell__request *request, enum cell__op op, json_t *args, const void *raw, size_t raw_size, cell__ask_fn then)
{
	struct cell__principal principal = cell__request_principal(request);
	struct asked *asked = ask(request->workspace, &principal, op, args);

	if (!asked) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the request");
		return;
	}
	if (!wait_for(request, asked, then))
		return;
	asked->call.raw = raw;
	asked->call.raw_size = raw_size;
	/* On behalf of a session if there is one: its policy applies, and it has an answerer. */
	if (request->served && request->served->session)
		cell__session_call_on_loop(request->served->session, &asked->principal, &asked->call);
	else
		cell__space_submit(asked->workspace->space, &asked->principal, &asked->call);
}

void cell__ask_session(struct cell__request *request, json_t *args, cell__ask_fn then)
{
	struct cell__principal principal = cell__request_principal(request);
	struct asked *asked = ask(request->served->workspace, &principal, CELL__OP_TOOLS_CALL, args);

	if (!asked) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the request");
		if (request->ends_session)
			cell__served_end(request->served);
		return;
	}
	if (wait_for(request, asked, then))
		cell__session_call_on_loop(request->served->session, &asked->principal, &asked->call);
}

struct wanting {
	struct cell__request *request;
	void (*fn)(struct cell__request *request);
};

static void handle_space(void *arg, struct cell__workspace *workspace, const struct cell_error *err)
{
	struct wanting *wanting = arg;
	struct cell__request *request = wanting->request;

	request->workspace = workspace;
	if (workspace)
		wanting->fn(request);
	else
		cell__answer_error(request, err);
	free(wanting);
}

void cell__with_space(struct cell__request *request, void (*fn)(struct cell__request *request))
{
	const char *session = cell__request_header(request, "X-Session-ID");
	struct wanting *wanting;

	if (session && !cell__served_find(request, session, true))
		return;
	wanting = cell__alloc(1, sizeof(*wanting));
	if (!wanting) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the request");
		return;
	}
	*wanting = (struct wanting){ request, fn };
	cell__workspace_get(request->server, session ? request->served->workspace->id : request->who.workspace, handle_space, wanting);
}
