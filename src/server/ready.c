/*
 * Whether the server could serve: GET /ready.
 *
 *     before it serves    a session is opened and runs a cell; without one the server does not start
 *     once a second       cell__ready_sweep(): the storage is asked every STORAGE_US, and a session is opened if none was for OPENED_US
 *
 * A request only reads the last answers, so that clients without a token cannot make the server work.  Changes are logged.
 */
#define _GNU_SOURCE
#include "server/api.h"
#include "server/pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "executors/executor.h"

#define STORAGE_US 5000000
#define OPENED_US 60000000
#define RETRY_US 10000000        /* after a session that could not be opened */
#define PROBE_TIMEOUT_MS 60000
#define SESSION_FDS 3            /* a kernel's socket and its two pipes ... */
#define CONFINED_SESSION_FDS 4   /* ... and the workspace, which is measured through its descriptor */
#define OWN_FDS 128              /* everything that is neither a session nor a connection */

static const char *executor_name(const struct cell_server *server)
{
	return server->session.executor ? server->session.executor : "subprocess";
}

static bool has_storage(const struct cell_server *server)
{
	return server->opts.space && cell__space_has_storage(server->opts.space);
}

/* The options of a session that nobody uses. */
static void fill_probe(struct cell_server *server, struct cell_session_options *options)
{
	*options = server->session;
	options->space = server->opts.space;
	options->on_event = NULL;
	options->no_spill = 1;
	options->zygote_owner = server->opts.zygote_per == CELL_ZYGOTE_PER_ENGINE ? "" : "probe";
	if (server->ready.folder)
		options->cwd = server->ready.folder;
}

/* ---- before it listens ---- */

static void take_level(struct cell_server *server, const struct cell_result *result)
{
	json_t *receipt = json_loads(cell_result_isolation_json(result), 0, NULL);
	const char *level = json_string_value(json_object_get(receipt, "level"));

	snprintf(server->ready.level, sizeof(server->ready.level), "%s", level ? level : "");
	json_decref(receipt);
}

int cell__ready_probe(struct cell_server *server, struct cell_error *err)
{
	struct cell__ready *ready = &server->ready;
	struct cell_session_options options;
	struct cell_run_options run = CELL_RUN_OPTIONS_INIT;
	struct cell_session *session;
	struct cell_result *result;
	struct cell_error why = { 0 };

	if (server->opts.work_dir &&
	    (asprintf(&ready->folder, "%s/probe", server->opts.work_dir) < 0 || (mkdir(ready->folder, 0700) < 0 && errno != EEXIST)))
		return cell_fail(err, CELL_E_IO, errno, "make a folder in %.120s", server->opts.work_dir);
	fill_probe(server, &options);
	if (cell_session_open(server->engine, &options, &session, err) < 0)
		return cell_fail_wrap(err, "no session can be opened with the executor %.20s", executor_name(server));
	run.timeout_ms = PROBE_TIMEOUT_MS;
	if (cell_session_run(session, "1", 1, &run, &result, err) < 0) {
		cell_session_close(session);
		return cell_fail_wrap(err, "no session can be used with the executor %.20s", executor_name(server));
	}
	take_level(server, result);
	cell_result_destroy(result);
	cell_session_close(session);
	ready->opens = true;
	ready->stores = !has_storage(server) || cell__space_check(server->opts.space, &why) == 0;
	ready->opened_us = ready->stored_us = cell__now_us();
	if (!ready->stores) {
		ready->lost_us = ready->stored_us;
		server->use->lost_storage = 1;
		cell__server_log(server, CELL_LOG_ERROR, "the storage does not answer: %s", why.msg);
	}
	return 0;
}

/* The number of sessions that the descriptors suffice for, beside all connections. */
static int64_t sessions_held(const struct cell_server *server, int64_t *ret_descriptors)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur > INT64_MAX)
		limit.rlim_cur = INT64_MAX;
	*ret_descriptors = (int64_t)limit.rlim_cur;
	return (*ret_descriptors - OWN_FDS - server->limits.max_connections) /
	       (strcmp(executor_name(server), "subprocess") ? CONFINED_SESSION_FDS : SESSION_FDS);
}

void cell__ready_summary(struct cell_server *server)
{
	const struct cell_server_limits *limits = &server->limits;
	const char *storage = has_storage(server) ? cell__space_artifacts_path(server->opts.space) : NULL;
	int64_t descriptors, held = sessions_held(server, &descriptors);
	char idle[48] = "never expire";

	if (limits->idle_ms >= 0)
		snprintf(idle, sizeof(idle), "expire after %lld s", (long long)limits->idle_ms / 1000);
	cell__server_log(server, CELL_LOG_INFO, "executor %s%s%s; %s%s", executor_name(server), *server->ready.level ? ", level " : "",
			 server->ready.level, storage && *storage ? "artifacts in " : "no storage", storage ? storage : "");
	cell__server_log(server, CELL_LOG_INFO,
			 "limits: %lld sessions that %s, %lld cells at once, %lld waiting, %lld connections, %lld descriptors",
			 (long long)limits->max_sessions, idle, (long long)limits->max_runs, (long long)limits->max_queue,
			 (long long)limits->max_connections, (long long)descriptors);
	if (held < limits->max_sessions)
		cell__server_log(server, CELL_LOG_WARN,
				 "%lld descriptors suffice for about %lld sessions beside %lld connections, not for %lld: raise the limit "
				 "(ulimit -n, LimitNOFILE= of a service) or lower --max-sessions or --max-connections",
				 (long long)descriptors, (long long)(held > 0 ? held : 0), (long long)limits->max_connections,
				 (long long)limits->max_sessions);
}

/* ---- while it serves ---- */

void cell__ready_opened(struct cell_server *server, const struct cell_error *err)
{
	struct cell__ready *ready = &server->ready;

	if (!err && !ready->opens)
		cell__server_log(server, CELL_LOG_INFO, "sessions can be opened again");
	if (err && ready->opens)
		cell__server_log(server, CELL_LOG_ERROR, "no session can be opened: %s", err->msg);
	ready->opens = !err;
	ready->opened_us = cell__now_us();
	server->use->cannot_open = err != NULL;
}

static void handle_probe_closed(void *arg)
{
	struct cell_server *server = arg;

	server->ready.opening = false;
	cell__server_advance(server);
}

static void handle_probe_opened(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct cell_server *server = arg;

	cell__ready_opened(server, session ? NULL : err);
	if (session)
		cell__session_close_on_loop(session, handle_probe_closed, server);
	else
		handle_probe_closed(server);
}

static void begin_opening(struct cell_server *server)
{
	struct cell__ready *ready = &server->ready;
	struct cell_error err;

	fill_probe(server, &ready->options);
	ready->opening = true;
	if (cell__session_open_on_loop(server->engine, &ready->options, handle_probe_opened, server, &err) < 0) {
		cell__ready_opened(server, &err);
		ready->opening = false;
	}
}

static void do_check(uv_work_t *work)
{
	struct cell_server *server = work->data;
	struct cell__ready *ready = &server->ready;

	ready->status = cell__space_check(server->opts.space, &ready->err);
}

static void handle_checked(uv_work_t *work, int status)
{
	struct cell_server *server = work->data;
	struct cell__ready *ready = &server->ready;
	int64_t now_us = cell__now_us();

	(void)status;
	ready->checking = false;
	if (ready->status < 0 && ready->stores) {
		ready->lost_us = now_us;
		cell__server_log(server, CELL_LOG_ERROR, "the storage does not answer: %s", ready->err.msg);
	} else if (ready->status == 0 && !ready->stores) {
		cell__server_log(server, CELL_LOG_INFO, "the storage answers again, after %.1f s", (double)(now_us - ready->lost_us) / 1e6);
	}
	ready->stores = ready->status == 0;
	ready->stored_us = now_us;
	server->use->lost_storage = !ready->stores;
	cell__server_advance(server);
}

/* Another server runs them elsewhere: a session that nobody uses would cost a container. */
static bool opens_cheaply(const struct cell_server *server)
{
	const struct cell__executor *executor = cell__executor_find(executor_name(server));

	return executor && !executor->calls_there;
}

void cell__ready_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__ready *ready = &server->ready;

	if (server->leaving)
		return;
	if (!ready->checking && has_storage(server) && now_us - ready->stored_us >= STORAGE_US) {
		ready->checking = true;
		ready->work.data = server;
		uv_queue_work(cell__loop_uv(server->engine->loop), &ready->work, do_check, handle_checked);
	}
	if (ready->opening || (ready->opens && !opens_cheaply(server)))
		return;
	if (now_us - ready->opened_us >= (ready->opens || !opens_cheaply(server) ? OPENED_US : RETRY_US))
		begin_opening(server);
}

void cell__handle_ready(struct cell__request *request)
{
	/* Workers look at different times: what one of them has seen counts for all. */
	struct cell_server *server = request->server;
	bool opens = CELL_ALL(server, cannot_open) == 0, stores = CELL_ALL(server, lost_storage) == 0;
	bool leaving = server->leaving || cell__pool_leaves(server); /* as soon as one of them does */
	bool ready = opens && stores && !leaving;

	cell__answer_json(request, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
			  json_pack("{s:s,s:b,s:b}", "status",
				    ready     ? "ready"
				    : leaving ? "draining"
					      : "not ready",
				    "executor", opens, "storage", stores));
}

/* Before that starting.c answers. */
void cell__handle_started(struct cell__request *request)
{
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:s}", "status", "started"));
}

void cell__ready_finish(struct cell_server *server)
{
	if (server->ready.folder)
		(void)rmdir(server->ready.folder); /* what is left is removed with its parent */
	free(server->ready.folder);
}
