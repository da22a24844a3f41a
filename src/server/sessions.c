/*
 * Sessions of clients.
 *
 *     opening ──▶ listed ──DELETE, /reset, idle too long, the server stops──▶ closing ──▶ gone
 *
 * A session belongs to the token that made it, by its name: no other client finds it, but one with the scope "admin", and for its
 * approvals one with the scope "approve".
 * `requests` and `jobs` keep it from expiring; closing does not wait for them: their cells end with `closed`.
 */
#define _GNU_SOURCE
#include "server/pool.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "deps/venv.h"
#include "server/peers.h"

#define SLEEP_AT_ONCE 4 /* sessions that are saved while a server leaves: the others can be used meanwhile */

static size_t bucket_of(const char *id)
{
	char head[9];

	memcpy(head, id, 8);
	head[8] = '\0';
	return strtoul(head, NULL, 16) % CELL_SERVER_BUCKETS;
}

/* ---- folders ---- */

struct removal {
	uv_work_t work;
	char *path;
};

static void do_remove(uv_work_t *work)
{
	struct removal *removal = work->data;

	(void)cell__venv_remove_tree(removal->path); /* the rest is removed with their common parent folder */
}

static void handle_removed(uv_work_t *work, int status)
{
	struct removal *removal = work->data;

	(void)status;
	free(removal->path);
	free(removal);
}

static void remove_folder(struct cell_server *server, char *path)
{
	struct removal *removal = path ? cell__alloc(1, sizeof(*removal)) : NULL;

	if (!removal) {
		free(path);
		return;
	}
	*removal = (struct removal){ .work.data = removal, .path = path };
	uv_queue_work(cell__loop_uv(server->engine->loop), &removal->work, do_remove, handle_removed);
}

static void leave_folder(struct cell_server *server, struct cell__session_folder *folder)
{
	if (!folder || --folder->users > 0)
		return;
	remove_folder(server, folder->path);
	free(folder);
}

static struct cell__session_folder *make_folder(struct cell_server *server, struct cell_error *err)
{
	struct cell__session_folder *folder = cell__alloc(1, sizeof(*folder));
	char name[17];

	cell__random_hex(name, 16);
	/* Made on this thread, because it is fast: we made its parent folder ourselves. */
	if (folder && asprintf(&folder->path, "%s/%s", server->opts.work_dir, name) >= 0 && mkdir(folder->path, 0700) == 0) {
		folder->users = 1;
		return folder;
	}
	cell_fail(err, CELL_E_IO, errno, "make a folder for a session in %.120s", server->opts.work_dir);
	if (folder)
		free(folder->path);
	free(folder);
	return NULL;
}

/* ---- opening ---- */

struct forking;

struct opening {
	struct cell__request *request;
	struct forking *forking; /* it is one of its forks; else NULL */
	struct cell__served *served;
	void (*opened)(struct cell__request *request);
	struct cell_session_options options;
	struct cell__waking *waking; /* a saved session is woken for a request that names it; or NULL */
	char zygote[CELL_SERVER_MAX_WORKSPACE + 64]; /* options.zygote_owner */
	char owner[CELL_SERVER_MAX_NAME + CELL_SERVER_MAX_WORKSPACE + 2]; /* options.saved_owner */
};

static void served_free(struct cell__served *served)
{
	struct cell_server *server = served->server;

	if (served->workspace)
		cell__workspace_put(served->workspace);
	leave_folder(server, cell__take_ptr(served->folder));
	cell__jobs_forget(served);
	cell__session_log_end(served->log);
	cell__history_end(served->history);
	free(served->receipt);
	cell__account_give_session(server, served->account);
	free(served);
	cell__server_advance(server);
}

static void list_session(struct cell__served *served)
{
	struct cell_server *server = served->server;
	struct cell__served **bucket = &server->buckets[bucket_of(served->id)];

	served->bucket_next = *bucket;
	*bucket = served;
	served->next = server->sessions;
	served->at = &server->sessions;
	if (served->next)
		served->next->at = &served->next;
	server->sessions = served;
	served->listed = true;
}

static const struct cell__keeper keeper;

/* request: its answer tells the id; NULL: those of the session that has forked it (children). */
static void admit(struct cell__served *served, struct cell_session *session, struct cell__request *request)
{
	served->session = session;
	served->used_us = served->created_us = cell__now_us();
	served->created_s = time(NULL);
	memcpy(served->id, cell_session_id(session), sizeof(served->id));
	cell__session_keep_on_loop(session, &keeper, served);
	list_session(served);
	cell__directory_add(served->server, served->id, request ? &request->announced : &served->announced);
	served->server->counts.sessions_opened++;
}

static void handle_opened(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct opening *opening = arg;
	struct cell__request *request = opening->request;
	struct cell__served *served = opening->served;
	struct cell_server *server = served->server;

	if (session || !opening->options.resume) /* one that cannot be woken says nothing about others */
		cell__ready_opened(server, session ? NULL : err);
	cell__trace_opened(request, served, session ? NULL : err);
	if (!session && opening->waking && cell__peers_moving(request, err->code)) {
		served_free(served);
		cell__waking_ended(opening->waking);
		free(opening);
		return;
	}
	if (!session) {
		cell__server_log(server, CELL_LOG_WARN, "a session could not be opened: %s", err->msg);
		if (opening->waking && err->code == CELL_E_NOT_FOUND)
			request->route->handle(request); /* removed since its owner was read: says whether it has ended */
		else
			cell__answer_error(request, err);
		served_free(served);
		if (opening->waking)
			cell__waking_ended(opening->waking);
		free(opening);
		return;
	}
	admit(served, session, request);
	request->served = served;
	served->requests++;
	if (opening->waking)
		server->counts.sessions_woken++;
	if (server->stopping) {
		cell__answer_busy(request, 1, "the server is stopping");
		cell__served_end(served);
	} else {
		opening->opened(request);
	}
	if (opening->waking)
		cell__waking_ended(opening->waking);
	free(opening);
}

/* Sessions that may share a zygote get the same string here. */
static void choose_zygote(struct opening *opening, const struct cell__workspace *workspace)
{
	const struct cell__served *served = opening->served;
	enum cell_zygote_per per = served->server->opts.zygote_per;
	char id[33];

	cell__random_hex(id, 32);
	if (per == CELL_ZYGOTE_PER_SESSION)
		snprintf(opening->zygote, sizeof(opening->zygote), "session %s", id);
	else if (per == CELL_ZYGOTE_PER_WORKSPACE && *workspace->id)
		snprintf(opening->zygote, sizeof(opening->zygote), "workspace %s", workspace->id);
	else if (per == CELL_ZYGOTE_PER_WORKSPACE)
		snprintf(opening->zygote, sizeof(opening->zygote), "token %s", served->owner);
	opening->options.zygote_owner = opening->zygote;
}

/* A client may allow its code less than the server does; without a word of it, it allows the same. */
static json_int_t children_asked(const struct cell__request *request)
{
	const json_t *asked = json_object_get(request->json, "allow_fork");

	return json_is_integer(asked) ? json_integer_value(asked) : request->server->session.allow_fork;
}

static bool speculation_asked(const struct cell__request *request)
{
	const json_t *asked = json_object_get(request->json, "speculate");

	return json_is_boolean(asked) ? json_is_true(asked) : request->server->session.speculate != 0;
}

static void handle_workspace(void *arg, struct cell__workspace *workspace, const struct cell_error *err)
{
	struct opening *opening = arg;
	struct cell__served *served = opening->served;
	struct cell_server *server = served->server;
	struct cell_error why = { 0 };

	served->workspace = workspace;
	if (!workspace)
		why = *err;
	if (workspace && opening->request->beside) {
		served->folder = opening->request->beside->folder;
		if (served->folder)
			served->folder->users++;
	} else if (workspace && server->opts.work_dir) {
		served->folder = make_folder(server, &why);
	}
	if (workspace && !why.code) {
		opening->options = server->session;
		opening->options.space = workspace->space;
		choose_zygote(opening, workspace);
		opening->options.on_event = NULL;
		opening->options.allow_fork = (int)children_asked(opening->request);
		opening->options.speculate = speculation_asked(opening->request);
		opening->options.call_results = server->opts.console;
		opening->options.no_spill = 1; /* a client cannot read a file here, and its result is freed once it is answered */
		snprintf(opening->owner, sizeof(opening->owner), "%s/%s", served->owner, workspace->id);
		opening->options.saved_owner = opening->owner;
		opening->options.resume = opening->waking ? cell__waking_id(opening->waking)
							  : json_string_value(json_object_get(opening->request->json, "resume"));
		if (served->folder)
			opening->options.cwd = served->folder->path;
		if (opening->request->env)
			opening->options.env = (const char *const *)opening->request->env;
		if (opening->request->network)
			opening->options.network = opening->request->network;
		opening->options.workspace_path = opening->request->workspace_path;
		opening->options.tables = opening->request->tables;
		opening->options.saved_images = opening->request->tables;
		if (!cell__session_open_on_loop(server->engine, &opening->options, handle_opened, opening, &why))
			return;
	}
	if (!opening->waking || !cell__peers_moving(opening->request, why.code))
		cell__answer_error(opening->request, &why);
	served_free(served);
	if (opening->waking)
		cell__waking_ended(opening->waking);
	free(opening);
}

/* The account may be NULL, for a caller that then fails. */
static struct cell__served *served_create(struct cell_server *server, struct cell__account *account)
{
	struct cell__served *served = account ? cell__alloc(1, sizeof(*served)) : NULL;

	if (served)
		*served = (struct cell__served){ .server = server,
						 .next_job = 1,
						 .account = account,
						 .log = cell__session_log_create(server),
						 .history = cell__history_create(server),
						 .consumed.disk_bytes = -1 };
	return served;
}

/* Counts a session that is to be opened; NULL: a limit is reached, and it was answered. */
static struct opening *begin_opening(struct cell__request *request, void (*opened)(struct cell__request *request))
{
	struct cell_server *server = request->server;
	struct cell__account *account = cell__account_get(server, &request->who);
	struct cell__served *served;
	struct opening *opening;
	struct cell_error err;

	if (account && cell__account_take_session(server, account, &err) < 0) {
		cell__answer_busy(request, 5, err.msg);
		return NULL;
	}
	opening = cell__alloc(1, sizeof(*opening));
	served = opening ? served_create(server, account) : NULL;
	if (!served) {
		free(opening);
		if (account)
			cell__account_give_session(server, account);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a session");
		return NULL;
	}
	strcpy(served->owner, request->who.name);
	cell__request_client(request, served->client);
	*opening = (struct opening){ .request = request, .served = served, .opened = opened, .options = CELL_SESSION_OPTIONS_INIT };
	return opening;
}

void cell__served_open(struct cell__request *request, const char *workspace_id, void (*opened)(struct cell__request *request))
{
	struct cell_server *server = request->server;
	struct opening *opening;

	bool given = workspace_id != NULL;

	if (!given)
		workspace_id = request->who.workspace;
	if (given && !cell__workspace_id_ok(workspace_id)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID,
				  "workspace_id must be 1-128 characters using only ASCII letters, digits, underscores, or hyphens");
		return;
	}
	if (!cell__token_may_enter(&server->tokens, &request->who, workspace_id)) {
		cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN,
				  *request->who.workspace
					  ? "the token \"%s\" is for another workspace"
					  : "the token \"%s\" is not for this workspace, which is reserved for other tokens",
				  request->who.name);
		return;
	}
	if (children_asked(request) > server->session.allow_fork) {
		cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN,
				  "allow_fork is more than this server allows (%d): start it with a larger --allow-fork",
				  server->session.allow_fork);
		return;
	}
	if (speculation_asked(request) && !server->session.speculate) {
		cell__answer_fail(request, MHD_HTTP_FORBIDDEN, CELL_E_FORBIDDEN,
				  "this server does not speculate: start it with --speculate");
		return;
	}
	opening = begin_opening(request, opened);
	if (opening)
		cell__workspace_get(server, workspace_id, handle_workspace, opening);
}

bool cell__served_open_saved(struct cell__request *request, const char *workspace_id, struct cell__waking *waking,
			     void (*opened)(struct cell__request *request))
{
	struct opening *opening;

	if (!cell__token_may_enter(&request->server->tokens, &request->who, workspace_id)) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such session");
		return false;
	}
	opening = begin_opening(request, opened);
	if (!opening)
		return false;
	opening->waking = waking;
	cell__workspace_get(request->server, workspace_id, handle_workspace, opening);
	return true;
}

/* ---- children, which code forks from its own session ---- */

/* It counts as any session of the same client. */
static void *begin_child(void *arg, struct cell_error *err)
{
	const struct cell__served *parent = arg;
	struct cell_server *server = parent->server;
	struct cell__account *account = parent->account;
	struct cell__served *served;

	if (cell__account_take_session(server, account, err) < 0)
		return NULL;
	served = served_create(server, account);
	if (!served) {
		cell__account_give_session(server, account);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
		return NULL;
	}
	strcpy(served->owner, parent->owner);
	strcpy(served->client, parent->client);
	served->workspace = parent->workspace;
	served->workspace->users++;
	served->folder = parent->folder;
	if (served->folder)
		served->folder->users++;
	return served;
}

static void log_child(const struct cell__served *served, const char *kind)
{
	const struct cell__served *parent = cell__served_by_id(served->server, cell__session_parent_on_loop(served->session));

	if (parent)
		cell__session_log_branch(parent->log,
					 json_pack("{s:s,s:s,s:s}", "kind", kind, "session_id", served->id, "parent", parent->id));
}

static void child_opened(void *kept, struct cell_session *child)
{
	struct cell__served *served = kept, *parent;

	admit(served, child, NULL);
	log_child(served, "child");
	parent = cell__served_by_id(served->server, cell__session_parent_on_loop(child));
	if (parent && served->announced > parent->announced)
		parent->announced = served->announced;
}

static void drop_child(void *kept)
{
	served_free(kept);
}

static void end_child(void *kept)
{
	cell__served_end(kept);
}

static int begin_child_run(void *kept, struct cell_error *err)
{
	const struct cell__served *served = kept;

	return cell__account_run_child(served->server, served->account, err);
}

static void end_child_run(void *kept)
{
	const struct cell__served *served = kept;

	served->account->use->child_runs--;
}

/* Whoever names it next is told who has it, or wakes it (wake.c). */
static void handle_lost(void *arg)
{
	struct cell__served *served = arg;

	cell__server_log(served->server, CELL_LOG_WARN,
			 "session %s of \"%s\" was lost: its lease could not be renewed, or another server has it", served->id,
			 served->owner);
	served->asleep = true;
	cell__served_end(served);
}

static const struct cell__keeper keeper = {
	.lost = handle_lost,
	.begin = begin_child,
	.opened = child_opened,
	.dropped = drop_child,
	.end = end_child,
	.run_begins = begin_child_run,
	.run_ended = end_child_run,
};

/* ---- forks ---- */

/* The forks of one request: all of them or none. */
struct forking {
	struct cell__request *request;
	cell__forked_fn forked;
	struct cell_error err; /* of the first that failed */
	size_t left;
	size_t n, listed;
	struct cell__served *forks[]; /* so many are listed */
};

static void end_forking(struct forking *forking)
{
	struct cell__request *request = forking->request;

	if (!forking->err.code && request->server->stopping)
		cell_fail(&forking->err, CELL_E_BUSY, 0, "the server is stopping");
	if (!forking->err.code && request->cancelled)
		cell_fail(&forking->err, CELL_E_CANCELLED, 0, "the request was cancelled");
	if (!forking->err.code) {
		forking->forked(request, forking->forks, forking->n);
	} else {
		for (size_t i = 0; i < forking->listed; i++)
			cell__served_end(forking->forks[i]);
		cell__answer_error(request, &forking->err);
	}
	free(forking);
}

static void handle_forked(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct opening *opening = arg;
	struct forking *forking = opening->forking;
	struct cell__served *served = opening->served;

	free(opening);
	if (session) {
		admit(served, session, forking->request);
		forking->forks[forking->listed++] = served;
	} else {
		if (!forking->err.code)
			forking->err = *err;
		served_free(served);
	}
	if (--forking->left == 0)
		end_forking(forking);
}

void cell__served_fork(struct cell__request *request, size_t n, const char *point, bool drop, cell__forked_fn forked)
{
	struct cell__served *source = request->served;
	struct forking *forking = cell__alloc(1, sizeof(*forking) + n * sizeof(*forking->forks));
	CELL_AUTO_FREE struct opening **openings = cell__alloc(n, sizeof(*openings));
	size_t made = 0;

	if (!forking || !openings) {
		free(forking);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for %zu sessions", n);
		return;
	}
	*forking = (struct forking){ .request = request, .forked = forked, .left = n, .n = n };
	while (made < n && (openings[made] = begin_opening(request, NULL))) {
		struct cell__served *served = openings[made]->served;

		openings[made++]->forking = forking;
		served->workspace = source->workspace;
		source->workspace->users++;
		served->folder = source->folder;
		if (source->folder)
			source->folder->users++;
	}
	if (made < n) { /* and it was answered */
		assert(!source->folder || source->folder->users > made); /* its own use stays */
		while (made > 0) {
			served_free(openings[--made]->served);
			free(openings[made]);
		}
		free(forking);
		return;
	}
	for (size_t i = 0; i < n; i++) { /* the last one may end it all */
		struct cell_error err;

		if (cell__session_fork_on_loop(source->session, point, drop, handle_forked, openings[i], &err) < 0)
			handle_forked(openings[i], NULL, &err);
	}
}

struct branching {
	struct cell__served *served;
	cell__branched_fn branched;
	void *arg;
};

static void handle_branched(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct branching branching = *(struct branching *)arg;

	free(arg);
	if (session)
		admit(branching.served, session, NULL);
	else
		served_free(branching.served);
	branching.branched(branching.arg, session ? branching.served : NULL, err);
}

int cell__served_branch(struct cell__served *source, bool drop, cell__branched_fn branched, void *arg, struct cell_error *err)
{
	struct branching *branching = cell__alloc(1, sizeof(*branching));
	struct cell__served *served = branching ? begin_child(source, err) : NULL;

	if (!branching)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
	if (served) {
		*branching = (struct branching){ .served = served, .branched = branched, .arg = arg };
		if (source->session && cell__session_fork_on_loop(source->session, NULL, drop, handle_branched, branching, err) == 0)
			return 0;
		if (!source->session)
			cell_fail(err, CELL_E_CLOSED, 0, "the session is closed");
		served_free(served);
	}
	free(branching);
	return -1;
}

/* ---- finding ---- */

static bool has_ended(const struct cell_server *server, const char *id)
{
	for (size_t i = 0; i < CELL_SERVER_ENDED; i++) {
		if (!strcmp(server->ended[i].id, id))
			return true;
	}
	return cell__pool_has_ended(server, id);
}

/* A client that may approve for others finds their sessions, only to see and answer approvals. */
static bool may_approve(const struct cell__request *request)
{
	return request->who.scopes & CELL_SCOPE_APPROVE && request->route && strstr(request->route->path, "/approvals");
}

struct cell__served *cell__served_by_id(const struct cell_server *server, const char *id)
{
	struct cell__served *served = NULL;

	if (strlen(id) == 32 && strspn(id, "0123456789abcdef") == 32) {
		served = server->buckets[bucket_of(id)];
		while (served && strcmp(served->id, id))
			served = served->bucket_next;
	}
	return served;
}

bool cell__served_find(struct cell__request *request, const char *id, bool plain)
{
	struct cell_server *server = request->server;
	struct cell__served *served = cell__served_by_id(server, id);

	if (served && strcmp(served->owner, request->who.name) && !(request->who.scopes & CELL_SCOPE_ADMIN) && !may_approve(request))
		served = NULL;
	/* The token may have been bound to another workspace since, or others to this one: then it may no longer use the session. */
	if (served && !cell__token_may_enter(&server->tokens, &request->who, served->workspace->id))
		served = NULL;
	if (served) {
		served->requests++;
		served->asleep = false;
		served->used_us = cell__now_us();
		served->is_short = false; /* its client keeps it */
		request->served = served;
		return true;
	}
	if (plain)
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, *id && has_ended(server, id) ? CELL_E_EXPIRED : CELL_E_NOT_FOUND,
				  "Invalid session ID");
	else if (*id && has_ended(server, id))
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "this session has ended");
	else
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "no such session");
	return false;
}

void cell__served_let_go(struct cell__served *served)
{
	served->requests--;
	served->used_us = cell__now_us();
	if (served->closing && !served->session && !served->requests)
		served_free(served);
}

void cell__served_release(struct cell__request *request)
{
	if (request->served)
		cell__served_let_go(cell__take_ptr(request->served));
}

/* The running cell, or null. */
static json_t *describe_running(const struct cell__served *served)
{
	const struct cell__job *job = served->running;
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	json_t *code = NULL;
	char state_id[33] = "";

	if (!job)
		return json_null();
	if (job->line && cell__add_code_line(served->server, job->line, &line) == 0)
		code = json_loadb(line.data, line.size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (cell__state_id_known(job->state_id))
		cell__state_id_write(job->state_id, state_id);
	return json_pack("{s:I,s:o,s:f,s:s*}", "run_id", (json_int_t)job->number, "code", code ? code : json_null(), "seconds",
			 (double)(cell__now_us() - job->started_us) / 1e6, "state_id", *state_id ? state_id : NULL);
}

/* It is the same after most cells. */
void cell__served_set_receipt(struct cell__served *served, const char *receipt)
{
	const char *level;
	json_t *parsed;

	if (!receipt || (served->receipt && !strcmp(served->receipt, receipt)))
		return;
	free(served->receipt);
	served->receipt = cell__strdup(receipt);
	parsed = json_loads(receipt, 0, NULL);
	level = json_string_value(json_object_get(parsed, "level"));
	snprintf(served->level, sizeof(served->level), "%s", level ? level : "");
	json_decref(parsed);
}

json_t *cell__served_describe(const struct cell__served *served)
{
	const struct cell__consumed *consumed = &served->consumed;
	int64_t pid = served->session ? cell__session_pid_on_loop(served->session) : 0, point_bytes = 0;
	size_t points = served->session ? cell__session_kept_on_loop(served->session, &point_bytes) : 0;
	const char *parent = served->session ? cell__session_parent_on_loop(served->session) : "";
	const char *executor = served->server->session.executor;
	bool is_busy = served->jobs || (served->session && cell__session_has_cells(served->session)); /* code runs cells of children */
	char created[32], state_id[33] = "", awake_id[33] = "";
	struct cell__state_id state, awake = { 0 };
	time_t at = (time_t)served->created_s;
	struct tm tm;

	gmtime_r(&at, &tm);
	strftime(created, sizeof(created), "%Y-%m-%dT%H:%M:%SZ", &tm);
	if (served->session) {
		cell__session_state_id_on_loop(served->session, &state);
		cell__state_id_write(state, state_id);
		cell__session_awake_id_on_loop(served->session, &awake);
		if (cell__state_id_known(awake))
			cell__state_id_write(awake, awake_id);
	}
	return json_pack(
		"{s:s,s:o,s:s,s:s,s:s,s:f,s:s,s:I,s:I,s:s?,s:s?,s:I,s:s,s:o,s:o,s:o,s:o,s:s?,s:I,s:I,s:s?}", "session_id", served->id,
		"workspace_id", *served->workspace->id ? json_string(served->workspace->id) : json_null(), "owner", served->owner, "client",
		served->client, "created_at", created, "idle_seconds", is_busy ? 0.0 : (double)(cell__now_us() - served->used_us) / 1e6,
		"state", is_busy ? "busy" : "idle", "runs", (json_int_t)served->cells, "cells",
		(json_int_t)(served->session ? cell__session_cells_on_loop(served->session) : 0), "state_id", *state_id ? state_id : NULL,
		"awake_id", *awake_id ? awake_id : NULL, "pending", (json_int_t)served->jobs, "executor",
		executor ? executor : "subprocess", "running", describe_running(served), "pid", pid > 0 ? json_integer(pid) : json_null(),
		"memory_bytes", consumed->known ? json_integer(consumed->memory_bytes) : json_null(), "cpu_seconds",
		consumed->known ? json_real(consumed->cpu_s) : json_null(), "parent", *parent ? parent : NULL, "points", (json_int_t)points,
		"point_bytes", (json_int_t)point_bytes, "isolation", *served->level ? served->level : NULL);
}

/* ---- the end ---- */

static void handle_closed(void *arg)
{
	struct cell__served *served = arg;

	struct cell__request *request = cell__take_ptr(served->hibernates);

	served->session = NULL;
	if (request) { /* its client may look at once whether it is saved, and wake it elsewhere */
		cell__answer_json(request, MHD_HTTP_OK, cell__take_ptr(request->kept));
		cell__served_release(request);
	} else if (!served->requests) {
		served_free(served);
	}
}

/* The server stops: whoever asks the next one for it finds it as it was. */
static void handle_saved_at_stop(void *arg, const char *answer, const struct cell_error *err)
{
	struct cell__served *served = arg;

	if (!answer)
		cell__server_log(served->server, CELL_LOG_WARN, "session %s of \"%s\" could not be saved: %s", served->id, served->owner,
				 err->msg);
	cell__session_close_on_loop(served->session, handle_closed, served);
}

void cell__served_end(struct cell__served *served)
{
	struct cell_server *server = served->server;
	struct cell__served **at = &server->buckets[bucket_of(served->id)];

	if (served->closing)
		return;
	served->closing = true;
	if (cell__session_is_child_on_loop(served->session))
		log_child(served, "child_ended");
	if (served->context)
		cell__e2b_served_ends(served);
	cell__batches_end(served);
	if (served->racing)
		*served->racing = NULL;
	if (served->batch)
		cell__fanout_lost(cell__take_ptr(served->batch), served->batch_run);
	cell__jobs_cancel(server, served);
	cell__session_log_end(cell__take_ptr(served->log));
	cell__history_end(cell__take_ptr(served->history));
	while (*at != served)
		at = &(*at)->bucket_next;
	*at = served->bucket_next;
	*served->at = served->next;
	if (served->next)
		served->next->at = served->at;
	cell__directory_remove(server, served->id);
	if (!served->asleep)
		memcpy(server->ended[server->next_ended++ % CELL_SERVER_ENDED].id, served->id, sizeof(served->id));
	if (served->sleeping)
		return; /* handle_idle_saved() goes on */
	if (server->stopping && !served->asleep && !cell__session_is_child_on_loop(served->session) && !served->context &&
	    !cell__served_check_save(served, NULL) &&
	    !cell__session_hibernate_on_loop(served->session, false, handle_saved_at_stop, served, NULL)) {
		/* A save waits for the cell that runs, and so would the server: up to the cell's own timeout. */
		cell__session_cancel_all_on_loop(served->session);
		return;
	}
	cell__session_close_on_loop(served->session, handle_closed, served);
}

int cell__served_check_save(const struct cell__served *served, struct cell_error *err)
{
	if (!served->server->session.saved_dir)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "this server saves no sessions: start it with --saved DIR");
	if (served->folder)
		return cell_fail(
			err, CELL_E_UNSUPPORTED, 0,
			"sessions of this server have folders of their own, which end with them, and are not saved: start it with --cwd DIR");
	return 0;
}

static void handle_idle_saved(void *arg, const char *answer, const struct cell_error *err)
{
	struct cell__served *served = arg;
	struct cell_server *server = served->server;

	cell__server_log(server, answer ? CELL_LOG_INFO : CELL_LOG_WARN, "session %s of \"%s\" %s%s", served->id, served->owner,
			 answer ? "hibernated" : "could not be saved, and expired: ", answer ? "" : err->msg);
	served->sleeping = false;
	if (served->closing)
		cell__session_close_on_loop(served->session, handle_closed, served);
	else if (answer)
		cell__served_sleeps(served);
	else
		cell__served_end(served);
	cell__served_let_go(served);
	cell__server_rest(server); /* the next one may be saved */
}

/* Nothing of it stays here: whoever names it next wakes it (wake.c), here or at another server. */
void cell__served_sleeps(struct cell__served *served)
{
	served->server->counts.sessions_hibernated++;
	if (served->closing || served->requests > 1 || served->jobs || served->context || cell__session_is_child_on_loop(served->session))
		return;
	served->asleep = true;
	cell__served_end(served);
}

/* Nobody uses it: it is saved instead of ended.  False: it cannot be. */
static bool put_to_sleep(struct cell__served *served)
{
	if (cell__served_check_save(served, NULL) < 0 || served->is_short)
		return false;
	if (served->sleeping)
		return true;
	served->asleep = served->sleeping = true;
	served->requests++; /* until it is saved */
	if (!cell__session_hibernate_on_loop(served->session, false, handle_idle_saved, served, NULL))
		return true;
	served->requests--;
	served->asleep = served->sleeping = false;
	return false;
}

bool cell__served_can_move(const struct cell_server *server)
{
	return server->session.saved_dir && !server->opts.work_dir;
}

static bool may_rest(const struct cell__served *served)
{
	return !served->asleep && !served->context && !served->is_short && !cell__session_is_child_on_loop(served->session) &&
	       !cell__served_check_save(served, NULL);
}

bool cell__served_rest(struct cell_server *server, int64_t idle_us)
{
	int64_t now_us = cell__now_us();
	struct cell__served *next;
	size_t sleeping = 0;

	for (struct cell__served *served = server->sessions; served; served = served->next)
		sleeping += served->sleeping;
	for (struct cell__served *served = server->sessions; served; served = next) {
		next = served->next;
		if (!may_rest(served) || served->jobs || served->requests || now_us - served->used_us < idle_us ||
		    cell__session_runs_on_loop(served->session))
			continue;
		if (sleeping >= SLEEP_AT_ONCE)
			return true;
		sleeping += put_to_sleep(served); /* else it ends with the server */
	}
	/* Those that are left are busy: each ends with the cells that it has. */
	for (struct cell__served *served = server->sessions; served; served = served->next)
		served->resting = server->draining && may_rest(served);
	return sleeping > 0;
}

void cell__served_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__served *next;

	for (struct cell__served *served = server->sessions; served; served = next) {
		int64_t idle_ms = served->is_short ? server->limits.execute_idle_ms : server->limits.idle_ms;

		next = served->next;
		if (cell__session_is_child_on_loop(served->session) || served->context)
			continue; /* it ends with its parent, or with its sandbox */
		if (served->jobs || served->requests || idle_ms < 0 || now_us - served->used_us < idle_ms * 1000)
			continue;
		if (served->asleep || put_to_sleep(served))
			continue;
		server->counts.sessions_expired++;
		cell__server_log(server, CELL_LOG_INFO, "session %s of \"%s\" expired", served->id, served->owner);
		cell__served_end(served);
	}
}
