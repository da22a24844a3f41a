/*
 * The server as a whole.
 *
 *     created ──run──▶ serving ──drain──▶ leaving ──drain_delay──▶ draining ──cells have ended, or their time is over──▶ stopping
 *                                            └── a second drain ──────▲└── a second drain ──────────────────────────────▲  │ sessions close,
 *                                                                                                                          ▼ spaces close
 *                                                                                                  cell_server_run() returns ◀── handles close
 *
 * While it is leaving, the server serves as before, but GET /ready says "draining", and every answer ends its connection.  Idle sessions that
 * are saved (--saved) go to sleep: while it is leaving those that nobody has used for a second, while it is draining each as soon as it is idle,
 * so that the next request wakes them elsewhere without waiting for the cells of others.  Of several workers none is stopping before all may be
 * (cell__pool_may_stop()).
 *
 * cell_server_run() runs the engine's loop on the caller's thread in the meantime.  Signal handlers and other threads notify it
 * by a byte in a pipe.
 */
#define _GNU_SOURCE
#include "workcell.h"

#include "base/base.h"

#ifndef CELL_HAVE_LISTEN

int cell_server_check(const struct cell_server_options *opts, struct cell_error *err)
{
	(void)opts;
	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "this workcell was built without libmicrohttpd and cannot serve");
}

int cell_server_create(struct cell_engine *engine, const struct cell_server_options *opts, struct cell_server **ret_server,
		       struct cell_error *err)
{
	(void)engine;
	(void)ret_server;
	return cell_server_check(opts, err);
}

int cell_server_run(struct cell_server *server, struct cell_error *err)
{
	(void)server;
	return cell_server_check(NULL, err);
}

void cell_server_drain(struct cell_server *server)
{
	(void)server;
}

void cell_server_reload(struct cell_server *server)
{
	(void)server;
}

void cell_server_destroy(struct cell_server *server)
{
	(void)server;
}

int cell_server_pool_create(const struct cell_server_options *opts, int workers, struct cell_server_pool **ret_pool, struct cell_error *err)
{
	(void)workers;
	(void)ret_pool;
	return cell_server_check(opts, err);
}

const char *cell_server_pool_url(const struct cell_server_pool *pool)
{
	(void)pool;
	return NULL;
}

int cell_server_pool_fd(const struct cell_server_pool *pool)
{
	(void)pool;
	return -1;
}

int cell_server_pool_accept(struct cell_server_pool *pool)
{
	(void)pool;
	return 0;
}

void cell_server_pool_hold(struct cell_server_pool *pool)
{
	(void)pool;
}

int cell_server_pool_leave(struct cell_server_pool *pool)
{
	(void)pool;
	return 0;
}

void cell_server_pool_clear(struct cell_server_pool *pool, int worker)
{
	(void)pool;
	(void)worker;
}

void cell_server_pool_close(struct cell_server_pool *pool)
{
	(void)pool;
}

void cell_server_pool_destroy(struct cell_server_pool *pool)
{
	(void)pool;
}

int cell_mcp_server_listen(struct cell_mcp_server *mcp, const struct cell_server_options *opts, struct cell_error *err)
{
	(void)mcp;
	return cell_server_check(opts, err);
}

#else

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/sized.h"
#include "gate/redact.h"
#include "sandbox/policy.h"
#include "server/oauth.h"
#include "server/otlp.h"
#include "server/peers.h"
#include "server/pool.h"
#include "server/starting.h"

#define TICK_MS 1000
#define BACKLOG 1024
#define EMPTYING_MS 50 /* between two looks whether all sessions sleep */
#define LEAVING_IDLE_US 1000000 /* after which a session sleeps while the server is leaving */
#define LAST_WORDS_US 1000000 /* for answers that clients are slow to take, when the server stops */
#define MAX_LOG_BYTES (1u << 20) /* that wait to be handed out */

/* ---- the log ---- */

static void add_time(struct cell__buf *out)
{
	struct timespec now;
	struct tm tm;
	char text[32];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &tm);
	(void)cell__buf_printf(out, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

static const char *level_word(enum cell_log_level level)
{
	static const char *const words[] = { "debug", "info", "warning", "error" };

	return words[level];
}

void cell__server_flush_log(struct cell_server *server)
{
	if (!server->log.size)
		return;
	server->opts.log(server->opts.log_arg, server->log.data, server->log.size);
	server->log.size = 0;
}

static bool is_logged(const struct cell_server *server, enum cell_log_level level)
{
	return server->opts.log && level >= server->opts.log_level && server->log.size < MAX_LOG_BYTES;
}

/* Untrusted words: after JSON's escapes no terminal control character is left. */
static void add_words(struct cell__buf *out, const char *words)
{
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;

	if (!cell__buf_add_utf8(&clean, words, strlen(words)))
		(void)cell__buf_add_json_string(out, clean.data ? clean.data : "", clean.size);
}

void cell__server_log(struct cell_server *server, enum cell_log_level level, const char *fmt, ...)
{
	CELL_AUTO_FREE char *words = NULL;
	struct cell__buf *out = &server->log;
	va_list ap;

	if (!is_logged(server, level))
		return;
	va_start(ap, fmt);
	if (vasprintf(&words, fmt, ap) < 0)
		words = NULL;
	va_end(ap);
	if (!words)
		return;
	(void)cell__buf_add_str(out, server->opts.log_json ? "{\"time\":\"" : "");
	add_time(out);
	if (server->opts.log_json) {
		(void)cell__buf_printf(out, "\",\"level\":\"%s\",\"message\":", level_word(level));
		add_words(out, words);
		(void)cell__buf_add_str(out, "}\n");
	} else {
		(void)cell__buf_printf(out, " %s %s\n", level_word(level), words);
	}
	if (!server->running)
		cell__server_flush_log(server);
}

void cell__server_log_request(struct cell__request *request)
{
	struct cell_server *server = request->server;
	enum cell_log_level level = request->status >= 500 ? CELL_LOG_WARN : CELL_LOG_INFO;
	int64_t now = cell__now_us();
	double ms = (double)(now - request->begun_us) / 1000.0;
	const char *session = request->served ? request->served->id : "";
	struct cell__buf *out = &server->log;
	char client[CELL_SERVER_CLIENT];

	cell__metrics_count(request, now);
	if (!is_logged(server, level) || (request->route && request->route->unlogged))
		return;
	cell__request_client(request, client);
	(void)cell__buf_add_str(out, server->opts.log_json ? "{\"time\":\"" : "");
	add_time(out);
	if (server->opts.log_json) {
		(void)cell__buf_printf(out, "\",\"level\":\"%s\",\"request_id\":\"%s\",\"method\":", level_word(level), request->id);
		add_words(out, request->method);
		(void)cell__buf_add_str(out, ",\"path\":");
		add_words(out, request->path);
		(void)cell__buf_printf(out, ",\"status\":%u,\"duration_ms\":%.3f,\"client\":\"%s\",\"session_id\":\"%s\",\"token\":",
				       request->status, ms, client, session);
		add_words(out, request->who.name);
		(void)cell__buf_add_str(out, "}\n");
	} else {
		(void)cell__buf_printf(out, " %s %s ", level_word(level), request->id);
		add_words(out, request->method);
		(void)cell__buf_add_str(out, " ");
		add_words(out, request->path);
		(void)cell__buf_printf(out, " %u %.3fms client=%s", request->status, ms, client);
		(void)cell__buf_printf(out, "%s%s", *session ? " session=" : "", session);
		if (*request->who.name) {
			(void)cell__buf_add_str(out, " token=");
			add_words(out, request->who.name);
		}
		(void)cell__buf_add_str(out, "\n");
	}
}

/* ---- reading again ---- */

struct reloading {
	uv_work_t work;
	struct cell_server *server;
	struct cell__tokens tokens;
	struct cell__oauth_config *oauth; /* NULL: the same */
	struct cell__tls *tls; /* NULL: the old one stays */
	struct cell_server_limits limits;
	struct timespec changed, oauth_changed;
	struct cell_error err;
	int status;
	bool all; /* limits too */
	bool same;
};

static struct timespec time_of_change(const char *path)
{
	struct stat st;

	return path && !stat(path, &st) ? st.st_mtim : (struct timespec){ 0 };
}

static int check_limits(const struct cell_server_limits *limits, struct cell_error *err)
{
	const struct {
		const char *name;
		int64_t value, min;
	} all[] = {
		{ "max_sessions", limits->max_sessions, 1 },
		{ "max_runs", limits->max_runs, 1 },
		{ "max_queue", limits->max_queue, 0 },
		{ "max_body_bytes", limits->max_body_bytes, 1024 },
		{ "max_artifact_bytes", limits->max_artifact_bytes, 1024 },
		{ "max_file_bytes", limits->max_file_bytes, 1024 },
		{ "stream_bytes", limits->stream_bytes, 4096 },
		{ "kept_bytes", limits->kept_bytes, 0 },
		{ "resume_ms", limits->resume_ms, 0 },
		{ "head_ms", limits->head_ms, 100 },
		{ "silent_ms", limits->silent_ms, 1000 },
		{ "drain_ms", limits->drain_ms, 0 },
		{ "drain_delay_ms", limits->drain_delay_ms, 0 },
		{ "max_connections", limits->max_connections, 1 },
		{ "max_header_bytes", limits->max_header_bytes, 4096 },
		{ "idle_ms", limits->idle_ms < 0 ? 1 : limits->idle_ms, 1 },
		{ "execute_idle_ms", limits->execute_idle_ms < 0 ? 1 : limits->execute_idle_ms, 1 },
		{ "max_timeout_ms", limits->max_timeout_ms < 0 ? 1 : limits->max_timeout_ms, 1 },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i].value < all[i].min)
			return cell_fail(err, CELL_E_INVALID, 0, "%s is %lld, expected %lld or more", all[i].name, (long long)all[i].value,
					 (long long)all[i].min);
	}
	if (limits->max_connections > 1 << 20 || limits->max_header_bytes > 1 << 20)
		return cell_fail(err, CELL_E_INVALID, 0, "max_connections and max_header_bytes must be at most %d", 1 << 20);
	return 0;
}

static int read_certificate(const struct cell_server_options *opts, struct cell__tls **ret_tls, struct cell_error *err)
{
	CELL_AUTO_FREE char *cert = NULL, *key = NULL;
	int status;

	if (!opts->tls_cert || !opts->reload_tls)
		return 0;
	if (opts->reload_tls(opts->reload_arg, &cert, &key, err) < 0)
		return -1;
	status = cell__tls_load(cert, key, ret_tls, err);
	explicit_bzero(key, strlen(key));
	return status;
}

/* The program fills in the struct that it knows, which may be longer than ours. */
#define LIMITS_ROOM_BYTES 1024
_Static_assert(sizeof(struct cell_server_limits) < LIMITS_ROOM_BYTES, "there is room to grow");

static int ask_for_limits(const struct cell_server_options *opts, struct cell_server_limits *limits, struct cell_error *err)
{
	union {
		struct cell_server_limits limits;
		char room[LIMITS_ROOM_BYTES];
	} given = { .room = { 0 } };
	struct cell_server_limits all = *limits;

	given.limits = *limits;
	if (opts->reload(opts->reload_arg, &given.limits, err) < 0 ||
	    cell__sized_read(&all, sizeof(all), &given, "cell_server_limits", err) < 0 || check_limits(&all, err) < 0)
		return -1;
	*limits = all;
	return 0;
}

static bool is_same(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static void do_reload(uv_work_t *work)
{
	struct reloading *reloading = work->data;
	const struct cell_server_options *opts = &reloading->server->opts;
	struct timespec old = reloading->changed, old_oauth = reloading->oauth_changed;

	reloading->changed = time_of_change(opts->token_file);
	reloading->oauth_changed = time_of_change(opts->oauth_file);
	reloading->same = !reloading->all && is_same(&old, &reloading->changed) && is_same(&old_oauth, &reloading->oauth_changed);
	if (reloading->same)
		return;
	reloading->status = cell__tokens_load(opts->token, opts->token_file, &reloading->tokens, &reloading->err);
	if (!reloading->status && opts->oauth_file && !is_same(&old_oauth, &reloading->oauth_changed))
		reloading->status = cell__oauth_config_load(opts->oauth_file, &reloading->oauth, &reloading->err);
	if (!reloading->status && reloading->server->mcp && reloading->oauth)
		reloading->status = cell__oauth_refuse_quotas(reloading->oauth, &reloading->err);
	if (!reloading->status && reloading->server->mcp)
		reloading->status = cell__tokens_refuse_quotas(&reloading->tokens, &reloading->err);
	if (!reloading->status && reloading->all && opts->reload)
		reloading->status = ask_for_limits(opts, &reloading->limits, &reloading->err);
	if (!reloading->status && reloading->all)
		reloading->status = read_certificate(opts, &reloading->tls, &reloading->err);
	if (reloading->status < 0) {
		cell__tokens_finish(&reloading->tokens);
		cell__oauth_config_destroy(cell__take_ptr(reloading->oauth));
	}
}

static void handle_reloaded(uv_work_t *work, int status)
{
	struct reloading *reloading = work->data;
	struct cell_server *server = reloading->server;
	bool again = server->reload_again;

	(void)status;
	server->reloading = server->reload_again = false;
	if (!reloading->same && reloading->status < 0) {
		server->tokens_changed = reloading->changed; /* it is said once */
		server->oauth_changed = reloading->oauth_changed;
		cell__server_log(server, CELL_LOG_ERROR, "not reloaded, the old settings stay in use: %s", reloading->err.msg);
	} else if (!reloading->same) {
		/* Bound with the address. */
		reloading->limits.silent_ms = server->limits.silent_ms;
		reloading->limits.max_connections = server->limits.max_connections;
		reloading->limits.max_header_bytes = server->limits.max_header_bytes;
		server->limits = reloading->limits;
		server->tokens_changed = reloading->changed;
		cell__tokens_finish(&server->tokens);
		server->tokens = reloading->tokens;
		server->oauth_changed = reloading->oauth_changed;
		if (reloading->oauth)
			cell__oauth_replace(server, cell__take_ptr(reloading->oauth));
		if (reloading->tls)
			cell__tls_replace(server, reloading->tls);
		cell__server_log(server, CELL_LOG_INFO, "reloaded: %zu token%s", server->tokens.count,
				 server->tokens.count == 1 ? "" : "s");
		cell__tokens_warn(server);
	}
	free(reloading);
	if (again)
		cell_server_reload(server);
	cell__server_advance(server);
}

static void begin_reload(struct cell_server *server, bool all)
{
	struct reloading *reloading;

	if (server->reloading || server->stopping) {
		server->reload_again |= all;
		return;
	}
	reloading = cell__alloc(1, sizeof(*reloading));
	if (!reloading)
		return; /* the next tick checks again */
	*reloading = (struct reloading){ .work.data = reloading,
					 .server = server,
					 .all = all,
					 .limits = server->limits,
					 .changed = server->tokens_changed,
					 .oauth_changed = server->oauth_changed };
	server->reloading = true;
	uv_queue_work(cell__loop_uv(server->engine->loop), &reloading->work, do_reload, handle_reloaded);
}

/* ---- the end ---- */

static void handle_handle_closed(uv_handle_t *handle)
{
	struct cell_server *server = handle->data;

	if (!--server->handles)
		cell__waiter_signal(&server->over);
}

static void close_handle(struct cell_server *server, uv_handle_t *handle)
{
	server->handles++;
	handle->data = server;
	uv_close(handle, handle_handle_closed);
}

static void handle_oauth_closed(void *arg)
{
	struct cell_server *server = arg;

	if (!--server->handles)
		cell__waiter_signal(&server->over);
}

static void handle_spaces_closed(void *arg)
{
	struct cell_server *server = arg;

	cell__http_shut(server);
	if (server->oauth) {
		server->handles++;
		cell__oauth_close(server, handle_oauth_closed, server);
	}
	cell__e2b_debug_close(server, close_handle);
	close_handle(server, (uv_handle_t *)&server->poll);
	close_handle(server, (uv_handle_t *)&server->check);
	close_handle(server, (uv_handle_t *)&server->again);
	close_handle(server, (uv_handle_t *)&server->tell);
	close_handle(server, (uv_handle_t *)&server->tick);
	close_handle(server, (uv_handle_t *)&server->leave);
	if (server->told)
		close_handle(server, server->told);
	if (server->pool) {
		close_handle(server, (uv_handle_t *)&server->inbox);
		close_handle(server, (uv_handle_t *)&server->inner_poll);
	}
}

static void stop(struct cell_server *server)
{
	struct cell__served *next;

	server->stopping = true;
	server->stopping_us = cell__now_us();
	cell__jobs_cancel(server, NULL);
	cell__jobs_release(server);
	cell__fusion_stop(server);
	cell__files_cancel(server);
	cell__batches_stop(server);
	cell__tasks_stop(server);
	cell__oauth_stop(server);
	for (struct cell__served *served = server->sessions; served; served = next) {
		next = served->next;
		cell__served_end(served);
	}
	if (server->mcp)
		cell__mcp_end(server);
}

/*
 * Requests that still wait are those whose sessions open or close, and operations on spaces.  One whose body is on its way has been invited to send it,
 * and its sender would not know whether it was carried out.
 */
static bool is_working(const struct cell_server *server)
{
	for (const struct cell__connection *at = server->connections; at; at = at->next) {
		if (at->request && (at->request->suspended || at->request->state != CELL_REQUEST_ANSWERED))
			return true;
	}
	return false;
}

void cell__server_advance(struct cell_server *server)
{
	if (!server->draining || server->closing)
		return;
	server->advancing = true;
	cell__http_soon(server);
}

bool cell__server_refuses(const struct cell_server *server)
{
	return cell__served_can_move(server) ? server->stopping || cell__pool_stops(server) : server->draining;
}

void cell__server_rest(struct cell_server *server)
{
	if (server->leaving && !server->draining)
		(void)cell__served_rest(server, server->emptying ? 0 : LEAVING_IDLE_US);
	cell__server_advance(server);
}

void cell__server_step(struct cell_server *server)
{
	bool rests = !server->stopping && cell__served_rest(server, 0);

	server->advancing = false;
	/* Answers of other workers' cells go through this one. */
	if (!server->stopping && cell__pool_may_stop(server, rests, cell__now_us() >= server->drain_until_us)) {
		cell__pool_receive(server); /* the last clients */
		stop(server);
	}
	if (server->stopping)
		cell__links_close(server);
	if (!server->stopping || (server->mcp && !cell__mcp_ended(server)) || server->use->sessions || server->wakings ||
	    server->opening_space || server->reloading || server->ready.opening || server->ready.checking || server->sampling.job ||
	    server->readings || server->n_links || server->transfers || server->tasks_running || is_working(server) ||
	    !cell__directory_is_idle(server))
		return;
	/* Answers that are ready may leave first: the next iteration of the loop is soon enough. */
	if (server->due) {
		cell__server_advance(server);
		return;
	}
	server->closing = true;
	cell__workspaces_close(server, handle_spaces_closed, server);
}

static void drain(struct cell_server *server)
{
	server->draining = true;
	cell__pool_set_up(server, false);
	if (!server->emptying)
		server->drain_until_us = cell__now_us() + server->limits.drain_ms * 1000;
	cell__http_quiesce(server);
	cell__jobs_sweep(server, cell__now_us()); /* clients can no longer return */
	cell__server_log(server, CELL_LOG_INFO, "stopping: %lld cells are running, %lld waiting", (long long)server->use->running,
			 (long long)server->use->queued);
	cell__server_advance(server);
}

/*
 * Once the socket is closed, other servers without a connection to this one cannot bring it requests for sessions that do not sleep yet.  So they are
 * put to sleep before, in half of the time that cells have to end.
 */
static bool is_emptying(struct cell_server *server)
{
	if (!server->opts.advertise || !cell__served_can_move(server))
		return false;
	if (!server->emptying)
		server->drain_until_us = cell__now_us() + server->limits.drain_ms * 1000;
	server->emptying = true;
	return cell__served_rest(server, 0) && cell__now_us() < server->drain_until_us - server->limits.drain_ms * 500;
}

static void handle_left(uv_timer_t *timer)
{
	struct cell_server *server = timer->data;

	if (is_emptying(server))
		uv_timer_start(timer, handle_left, EMPTYING_MS, 0);
	else
		drain(server);
}

static void begin_drain(struct cell_server *server)
{
	bool is_second = server->leaving;

	server->leaving = true;
	if (server->draining) {
		server->drain_until_us = 0;
		cell__server_advance(server);
	} else if (is_second || !server->limits.drain_delay_ms) {
		uv_timer_stop(&server->leave);
		drain(server);
	} else {
		cell__server_log(server, CELL_LOG_INFO, "leaving: not ready for new clients, and stopping in %.1f s",
				 (double)server->limits.drain_delay_ms / 1000);
		uv_timer_start(&server->leave, handle_left, (uint64_t)server->limits.drain_delay_ms, 0);
	}
}

/* ---- the loop ---- */

static void handle_told(uv_poll_t *poll, int status, int events)
{
	struct cell_server *server = poll->data;
	char bytes[64];
	ssize_t n = read(server->tell_fd[0], bytes, sizeof(bytes));

	(void)status;
	(void)events;
	for (ssize_t i = 0; i < n; i++) {
		if (bytes[i] == 'd')
			begin_drain(server);
		else
			begin_reload(server, true);
	}
}

static void handle_tick(uv_timer_t *timer)
{
	struct cell_server *server = timer->data;
	int64_t now_us = cell__now_us();

	server->due = true; /* timeouts of libmicrohttpd */
	cell__http_sweep(server, now_us);
	if (server->stopping && now_us - server->stopping_us > LAST_WORDS_US)
		cell__http_hang_up(server);
	cell__served_sweep(server, now_us);
	cell__server_rest(server);
	cell__e2b_sweep(server, now_us);
	cell__files_sweep(server);
	cell__jobs_sweep(server, now_us);
	cell__fusion_sweep(server, now_us);
	cell__command_streams_sweep(server, now_us);
	cell__batches_sweep(server, now_us);
	cell__tasks_sweep(server, now_us);
	cell__directory_sweep(server, now_us);
	cell__sample_sweep(server, now_us);
	if (server->mcp)
		cell__mcp_sweep(server, now_us);
	else
		cell__ready_sweep(server, now_us);
	cell__trace_sweep(server, now_us);
	cell__tls_sweep(server, now_us);
	cell__oauth_sweep(server, now_us);
	if (server->opts.token_file || server->opts.oauth_file)
		begin_reload(server, false);
	cell__server_advance(server);
}

struct starting {
	struct cell__task task; /* first */
	struct cell_server *server;
	struct cell_error err;
	int status;
};

static void do_start(struct cell__task *task)
{
	struct starting *starting = (struct starting *)task;
	struct cell_server *server = starting->server;
	uv_loop_t *loop = cell__loop_uv(server->engine->loop);

	starting->status = server->oauth ? cell__oauth_start(server, &starting->err) : 0;
	if (!starting->status)
		starting->status = cell__http_open(server, &starting->err);
	if (starting->status < 0) {
		cell__waiter_signal(&server->over);
		return;
	}
	uv_poll_init(loop, &server->tell, server->tell_fd[0]);
	uv_timer_init(loop, &server->tick);
	uv_timer_init(loop, &server->leave);
	server->tell.data = server->tick.data = server->leave.data = server;
	uv_poll_start(&server->tell, UV_READABLE, handle_told);
	uv_timer_start(&server->tick, handle_tick, TICK_MS, TICK_MS);
	if (server->mcp)
		server->told = cell__mcp_start(server);
	cell__tokens_warn(server);
	if (!server->mcp && !server->worker)
		cell__ready_summary(server);
	server->running = true;
	server->started_us = cell__now_us();
	server->started_s = time(NULL);
	cell__pool_start(server);
	cell__pool_set_up(server, true);
	if (server->opts.listening)
		server->opts.listening(server->opts.listening_arg, server->url);
}

int cell_server_run(struct cell_server *server, struct cell_error *err)
{
	if (cell__require(err, server) < 0)
		return -1;
	struct starting starting = { .task.fn = do_start, .server = server };

	if (cell__loop_is_current(server->engine->loop))
		return cell_fail(err, CELL_E_INVALID, 0, "cell_server_run() blocks and must not be called from a callback of the engine");
	cell__waiter_init(&server->over);
	cell__loop_do(server->engine->loop, &starting.task, &server->over);
	cell__waiter_finish(&server->over);
	server->running = false;
	if (starting.status < 0) {
		if (err)
			*err = starting.err;
		return -1;
	}
	if (server->opts.log)
		cell__server_flush_log(server);
	return 0;
}

static void tell(struct cell_server *server, char what)
{
	int saved = errno;

	if (write(server->tell_fd[1], &what, 1) < 0) {
		/* Full: it has been notified already. */
	}
	errno = saved;
}

void cell_server_drain(struct cell_server *server)
{
	if (!server)
		return;
	tell(server, 'd');
}

void cell_server_reload(struct cell_server *server)
{
	if (!server)
		return;
	tell(server, 'r');
}

/* ---- creation ---- */

static int read_options(const struct cell_server_options *opts, struct cell_server_options *ret_opts, struct cell_server_limits *ret_limits,
			struct cell__address *ret_address, struct cell__tokens *ret_tokens, struct cell__oauth_config **ret_oauth,
			struct cell_error *err)
{
	struct cell_server_options all = CELL_SERVER_OPTIONS_INIT;
	struct cell_server_limits limits = CELL_SERVER_LIMITS_INIT;

	if (cell__sized_read(&all, sizeof(all), opts, "cell_server_options", err) < 0 ||
	    (all.limits && cell__sized_read(&limits, sizeof(limits), all.limits, "cell_server_limits", err) < 0))
		return -1;
	if (!all.listen)
		return cell_fail(err, CELL_E_INVALID, 0, "an address to listen on is required");
	if (cell__routes_prepare(err) < 0 || check_limits(&limits, err) < 0 || cell__address_parse(all.listen, ret_address, err) < 0)
		return -1;
	if (!all.tls_cert != !all.tls_key)
		return cell_fail(err, CELL_E_INVALID, 0, "TLS needs both a certificate and its key");
	if (all.auth_disabled && (all.token || all.token_file || all.oauth_file))
		return cell_fail(err, CELL_E_INVALID, 0, "a token or OAuth and disabled authentication cannot be used together");
	if (all.auth_disabled && !ret_address->loopback)
		return cell_fail(err, CELL_E_INVALID, 0, "%s can be reached from other machines: a token is required", ret_address->host);
	if (!all.auth_disabled && !all.token && !all.token_file && !all.oauth_file)
		return cell_fail(err, CELL_E_INVALID, 0, "a token is required: everybody who can connect can run code");
	*ret_opts = all;
	*ret_limits = limits;
	if (all.oauth_file && cell__oauth_config_load(all.oauth_file, ret_oauth, err) < 0)
		return -1;
	if (all.auth_disabled || cell__tokens_load(all.token, all.token_file, ret_tokens, err) == 0)
		return 0;
	cell__oauth_config_destroy(cell__take_ptr(*ret_oauth));
	return -1;
}

/* Checks the options as clients will use them: errors are reported before the first client is served. */
static int check_session(const struct cell_server *server, struct cell_error *err)
{
	const struct cell_server_options *opts = &server->opts;
	const struct cell__address *address = &server->address;
	struct cell_session_options session = server->session;

	session.space = opts->space;
	if (opts->work_dir)
		session.cwd = opts->work_dir;
	else if (opts->auth_disabled && !*address->host && session.cwd && cell__path_lies_in(address->at.local.sun_path, session.cwd))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "code could connect to %.100s without a token, because it is inside the folder of the sessions; "
				 "listen elsewhere",
				 address->at.local.sun_path);
	return cell_session_check(&session, opts->auth_disabled, err);
}

int cell_server_check(const struct cell_server_options *opts, struct cell_error *err)
{
	if (cell__require(err, opts) < 0)
		return -1;
	struct cell_server_options all;
	struct cell_server_limits limits;
	struct cell__address address;
	struct cell__tokens tokens = { 0 };
	struct cell__oauth_config *oauth = NULL;
	struct cell__tls *tls = NULL;

	if (read_options(opts, &all, &limits, &address, &tokens, &oauth, err) < 0)
		return -1;
	cell__tokens_finish(&tokens);
	cell__oauth_config_destroy(oauth);
	if (all.tls_cert && cell__tls_load(all.tls_cert, all.tls_key, &tls, err) < 0)
		return -1;
	cell__tls_destroy(tls);
	return 0;
}

int cell_server_create(struct cell_engine *engine, const struct cell_server_options *opts, struct cell_server **ret_server,
		       struct cell_error *err)
{
	if (cell__require(err, engine, opts, ret_server) < 0)
		return -1;
	struct cell_server *server = cell__alloc(1, sizeof(*server));
	struct cell__oauth_config *oauth = NULL;
	struct cell__starting_thread *starting = NULL;

	if (!server)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the server");
	server->engine = engine;
	server->routes = cell__routes;
	server->listen_fd = server->tell_fd[0] = server->tell_fd[1] = -1;
	cell__e2b_debug_init(server);
	server->use = &server->own_use;
	server->addresses = server->own_addresses;
	cell__random_hex(server->request_prefix, 8);
	cell__random_hex(server->own_secret, CELL_SERVER_SECRET);
	if (read_options(opts, &server->opts, &server->limits, &server->address, &server->tokens, &oauth, err) < 0 ||
	    (oauth && cell__oauth_create(server, oauth, err) < 0))
		goto failed;
	if (server->opts.e2b_domain && !cell__e2b_domain_ok(server->opts.e2b_domain)) {
		cell_fail(err, CELL_E_INVALID, 0, "\"%.100s\" is not a domain that sandboxes can have: expected NAME or NAME:PORT",
			  server->opts.e2b_domain);
		goto failed;
	}
	server->tracing.code = server->opts.otlp_code;
	server->tracing.executor = server->session.executor ? server->session.executor : "subprocess";
	if (server->opts.otlp && cell__otlp_create(server->opts.otlp, server->opts.otlp_headers, &server->tracing.otlp, err) < 0)
		goto failed;
	if (server->opts.console && !cell__console_is_built()) {
		cell_fail(err, CELL_E_UNAVAILABLE, 0,
			  "this build has no console: build it on a machine with node 18 or newer and npm, or use a package");
		goto failed;
	}
	if (server->opts.pool && server->opts.console_code) {
		cell_fail(err, CELL_E_UNSUPPORTED, 0, "console_code: several workers have no one-time link; log in with a token");
		goto failed;
	}
	server->pool = server->opts.pool;
	server->worker = server->opts.worker;
	if (server->pool)
		cell__pool_join(server);
	if (cell__redactor_create(NULL, &server->redactor, err) < 0)
		goto failed;
	server->session = (struct cell_session_options)CELL_SESSION_OPTIONS_INIT;
	if (server->opts.session &&
	    cell__sized_read(&server->session, sizeof(server->session), server->opts.session, "cell_session_options", err) < 0)
		goto failed;
	server->opts.limits = &server->limits;
	if (server->opts.session)
		server->opts.session = &server->session;
	if (check_session(server, err) < 0 || cell__peers_open(server, err) < 0 ||
	    cell__policy_load_host_limits(server->session.sandbox_policy, &server->host_limits, err) < 0)
		goto failed;
	server->tokens_changed = time_of_change(server->opts.token_file);
	server->oauth_changed = time_of_change(server->opts.oauth_file);
	if (server->opts.tls_cert && cell__tls_load(server->opts.tls_cert, server->opts.tls_key, &server->tls, err) < 0)
		goto failed;
	if (!server->pool && cell__listen(&server->address, BACKLOG, &server->listen_fd, err) < 0)
		goto failed;
	starting = server->pool || server->tls || server->address.given_fd ? NULL : cell__starting_begin(server->listen_fd);
	if (cell__ready_probe(server, err) < 0 || cell__fusion_create(server, err) < 0)
		goto failed;
	cell__fusion_prewarm(server);
	if (cell__e2b_debug_listen(server, err) < 0)
		goto failed;
	if (pipe2(server->tell_fd, O_CLOEXEC | O_NONBLOCK) < 0) {
		cell_fail(err, CELL_E_IO, errno, "make a pipe");
		goto failed;
	}
	server->url = cell__server_url(&server->address, server->opts.tls_cert);
	if (!server->url) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the server");
		goto failed;
	}
	if (cell__logins_init(server, err) < 0)
		goto failed;
	cell__starting_end(starting); /* from now on clients wait, for a moment */
	*ret_server = server;
	return 0;
failed:
	cell__starting_end(starting);
	cell_server_destroy(server);
	return -1;
}

void cell_server_destroy(struct cell_server *server)
{
	if (!server)
		return;
	if (server->listen_fd >= 0) /* it never ran, or could not start */
		cell__listen_end(&server->address);
	for (size_t i = 0; i < CELL_E2B_DEBUG_PORTS; i++)
		cell__close_fd(&server->e2b_debug.fds[i]);
	cell__close_fd(&server->listen_fd);
	cell__close_fd(&server->tell_fd[0]);
	cell__close_fd(&server->tell_fd[1]);
	cell__tokens_finish(&server->tokens);
	cell__oauth_destroy(server);
	cell__tls_destroy(server->tls);
	cell__buf_finish(&server->log);
	cell__ready_finish(server);
	cell__directory_stop(server);
	free(server->hints);
	free(server->peer_url);
	cell__otlp_destroy(server->tracing.otlp);
	cell__tasks_finish(server);
	cell__accounts_finish(server);
	free(server->fusion);
	cell__redactor_destroy(server->redactor);
	cell__logins_finish(server);
	free(server->login_base);
	free(server->url);
	free(server);
}

#endif
