/*
 * The server itself, and one client on two descriptors.
 *
 * The thread that called cell_mcp_server_run() reads and feeds the peer; another one writes, so that a client that does not read blocks
 * only itself. The queue for writing is bounded by dropping progress and log; the number of answers is bounded by the client's requests.
 */
#define _GNU_SOURCE 1 /* pthread_timedjoin_np */
#include "mcp/server/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>

#include "base/file.h"
#include "base/sized.h"
#include "durable/owners.h"

#define READ_BYTES (64u * 1024u)

/* ---- files with long output ---------------------------------------------------------------- */

void cell__mcp_keep_file(struct cell_mcp_server *server, const char *path)
{
	char *copy = cell__strdup(path), *old;

	if (!copy)
		return; /* no memory: a file stays in the temporary folder */
	pthread_mutex_lock(&server->lock);
	old = server->files[server->n_files % CELL_MCP_MAX_FILES];
	server->files[server->n_files++ % CELL_MCP_MAX_FILES] = copy;
	pthread_mutex_unlock(&server->lock);
	if (old)
		unlink(old);
	free(old);
}

char *cell__mcp_keep_text(struct cell_mcp_server *server, const char *text, size_t size)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	CELL_AUTO_FD int fd = -1;

	if (cell__buf_printf(&path, "%s/workcell-output-XXXXXX", server->temp_dir) < 0)
		return NULL;
	fd = mkostemp(path.data, O_CLOEXEC);
	if (fd < 0)
		return NULL;
	if (cell__fd_write_all(fd, text, size) < 0) {
		unlink(path.data);
		return NULL;
	}
	cell__mcp_keep_file(server, path.data);
	return cell__buf_take(&path);
}

/* ---- life ------------------------------------------------------------------------------------ */

static void do_watch(void *arg)
{
	struct cell_mcp_server *server = arg;

	cell__space_watch(server->opts.space, &server->watcher);
}

static void do_unwatch(void *arg)
{
	struct cell_mcp_server *server = arg;

	cell__space_unwatch(server->opts.space, &server->watcher);
}

int cell_mcp_server_create(struct cell_engine *engine, const struct cell_mcp_server_options *opts, struct cell_mcp_server **ret_server,
			   struct cell_error *err)
{
	struct cell_mcp_server_options all = CELL_MCP_SERVER_OPTIONS_INIT;
	struct cell_session_options session = CELL_SESSION_OPTIONS_INIT;
	struct cell_mcp_server *server;

	if (cell__require(err, engine, opts, ret_server) < 0)
		return -1;
	if (cell__sized_read(&all, sizeof(all), opts, "cell_mcp_server_options", err) < 0 ||
	    (all.session && cell__sized_read(&session, sizeof(session), all.session, "cell_session_options", err) < 0))
		return -1;
	if (!all.space)
		return cell_fail(err, CELL_E_INVALID, 0, "an MCP server needs a space");
	server = cell__alloc(1, sizeof(*server));
	if (!server)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an MCP server");
	*server = (struct cell_mcp_server){ .engine = engine, .opts = all, .session = session };
	pthread_mutex_init(&server->lock, NULL);
	pthread_mutex_init(&server->owners_lock, NULL);
	cell__mcp_cond_init(&server->changed);
	cell__mcp_cond_init(&server->watch_changed);
	server->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	server->tools = cell__mcp_tools_list(&all);
	server->temp_dir = cell__strdup(all.temp_dir ? all.temp_dir : "/tmp");
	if (server->stop_fd < 0 || !server->tools || !server->temp_dir ||
	    getrandom(server->state_key, sizeof(server->state_key), 0) != sizeof(server->state_key)) {
		cell_mcp_server_destroy(server);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an MCP server");
	}
	server->watcher = (struct cell__space_watcher){ .changed = cell__mcp_storage_changed, .arg = server };
	cell__loop_call(engine->loop, do_watch, server);
	*ret_server = server;
	return 0;
}

static void tell(struct cell_mcp_server *server, uint64_t what)
{
	if (write(server->stop_fd, &what, sizeof(what)) < 0) {
		/* The counter is full: it has been notified. */
	}
}

void cell_mcp_server_stop(struct cell_mcp_server *server)
{
	if (!server)
		return;
	tell(server, CELL_MCP_TELL_STOP);
}

void cell_mcp_server_reload(struct cell_mcp_server *server)
{
	if (!server)
		return;
	if (atomic_load(&server->listening))
		tell(server, CELL_MCP_TELL_RELOAD);
}

void cell_mcp_server_destroy(struct cell_mcp_server *server)
{
	if (!server)
		return;
	if (server->watcher.changed)
		cell__loop_call(server->engine->loop, do_unwatch, server);
	cell__mcp_handles_end(server);
	cell__mcp_watch_end(server);
	cell__owners_close(server->owners);
	cell__mcp_parked_end(server);
	cell__mcp_offers_end(server);
	if (server->tracer.finish)
		server->tracer.finish(server->tracer.arg);
	for (size_t i = 0; i < CELL_MCP_MAX_FILES; i++) {
		if (server->files[i])
			unlink(server->files[i]);
		free(server->files[i]);
	}
	json_decref(server->tools);
	cell__close_fd(&server->stop_fd);
	pthread_cond_destroy(&server->changed);
	pthread_cond_destroy(&server->watch_changed);
	pthread_mutex_destroy(&server->lock);
	pthread_mutex_destroy(&server->owners_lock);
	free(server->temp_dir);
	explicit_bzero(server->state_key, sizeof(server->state_key));
	free(server);
}

/* ---- one client on two descriptors --------------------------------------------------------------- */

struct pipes {
	struct cell_mcp_server *server;
	int out_fd;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct cell__buf waiting;
	bool closing, broken;
};

static void send_line(void *arg, void *stream, const char *text, size_t size, bool last)
{
	struct pipes *pipes = arg;

	(void)stream;
	(void)last;
	if (!text)
		return;
	pthread_mutex_lock(&pipes->lock);
	if (!pipes->broken && !cell__buf_reserve(&pipes->waiting, size + 1)) {
		cell__buf_add(&pipes->waiting, text, size);
		cell__buf_add(&pipes->waiting, "\n", 1);
	}
	pthread_cond_signal(&pipes->changed);
	pthread_mutex_unlock(&pipes->lock);
}

static bool is_full(void *arg, void *stream)
{
	struct pipes *pipes = arg;
	bool full;

	(void)stream;
	pthread_mutex_lock(&pipes->lock);
	full = pipes->waiting.size > CELL_MCP_MAX_OUTBOX_BYTES;
	pthread_mutex_unlock(&pipes->lock);
	return full;
}

static void *writer_main(void *arg)
{
	struct pipes *pipes = arg;

	pthread_mutex_lock(&pipes->lock);
	while (!pipes->broken) {
		struct cell__buf now = pipes->waiting;
		int status;

		if (!now.size) {
			if (pipes->closing)
				break;
			pthread_cond_wait(&pipes->changed, &pipes->lock);
			continue;
		}
		pipes->waiting = (struct cell__buf)CELL_BUF_INIT;
		pthread_mutex_unlock(&pipes->lock);
		status = cell__fd_write_all(pipes->out_fd, now.data, now.size);
		cell__buf_finish(&now);
		pthread_mutex_lock(&pipes->lock);
		pipes->broken = status < 0;
	}
	pthread_mutex_unlock(&pipes->lock);
	if (pipes->broken)
		cell_mcp_server_stop(pipes->server); /* the client reads no more of our messages */
	return NULL;
}

static void feed_lines(struct cell__mcp_peer *peer, struct cell__lines *lines)
{
	static const char too_long[] = "{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32600,\"message\":\"the message is too long\"}}";
	enum cell__line_status status;
	const char *line;
	size_t size;

	while ((status = cell__lines_next(lines, &line, &size)) != CELL__LINE_MORE) {
		if (status == CELL__LINE_OK)
			cell__mcp_peer_feed(peer, line, size, NULL, NULL, NULL);
		else
			peer->sink.send(peer->sink.arg, NULL, too_long, sizeof(too_long) - 1, true);
	}
}

/* Until the input ends or the server is to stop. */
static int read_input(struct cell_mcp_server *server, struct cell__mcp_peer *peer, int in_fd, struct cell_error *err)
{
	struct pollfd fds[] = { { .fd = in_fd, .events = POLLIN }, { .fd = server->stop_fd, .events = POLLIN } };
	CELL_AUTO_FREE char *bytes = cell__alloc(READ_BYTES, 1);
	struct cell__lines lines;
	int status = bytes ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for input");

	cell__lines_init(&lines, CELL_RPC_MAX_BYTES);
	while (!status) {
		ssize_t n;

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			status = cell_fail(err, CELL_E_IO, errno, "cannot wait for input");
		if (fds[1].revents)
			break;
		if (!fds[0].revents)
			continue;
		n = read(in_fd, bytes, READ_BYTES);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (n <= 0)
			break;
		if (cell__lines_add(&lines, bytes, (size_t)n) < 0)
			status = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for input");
		else
			feed_lines(peer, &lines);
	}
	cell__lines_finish(&lines);
	return status;
}

static int join_writer(struct cell_mcp_server *server, pthread_t writer)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += server->opts.grace_ms / 1000 + 1;
	return pthread_timedjoin_np(writer, NULL, &until) ? -1 : 0;
}

int cell_mcp_server_run(struct cell_mcp_server *server, int in_fd, int out_fd, struct cell_error *err)
{
	if (cell__require(err, server) < 0)
		return -1;
	struct pipes *pipes = cell__alloc(1, sizeof(*pipes));
	struct cell__mcp_sink sink = { send_line, is_full, NULL, pipes };
	struct cell__mcp_peer *peer;
	struct cell_error late;
	pthread_t writer;
	int status;

	if (!pipes)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a client");
	*pipes = (struct pipes){ .server = server, .out_fd = out_fd };
	pthread_mutex_init(&pipes->lock, NULL);
	pthread_cond_init(&pipes->changed, NULL);
	status = pthread_create(&writer, NULL, writer_main, pipes);
	if (status) {
		free(pipes);
		return cell_fail(err, CELL_E_IO, status, "cannot start a thread");
	}
	peer = cell__mcp_peer_create(server, &sink, "stdio", false, err); /* with all scopes */
	status = peer ? read_input(server, peer, in_fd, err) : -1;
	if (peer && cell__mcp_peer_destroy(peer, true, &late) < 0)
		return cell_fail(err, late.code, 0, "%s", late.msg); /* workers may still write to it: it stays */
	pthread_mutex_lock(&pipes->lock);
	pipes->closing = true;
	pthread_cond_signal(&pipes->changed);
	pthread_mutex_unlock(&pipes->lock);
	/* A client that has closed its end and does not read its answers. */
	if (join_writer(server, writer) < 0)
		return cell_fail(err, CELL_E_TIMEOUT, 0, "the client does not read the remaining output");
	cell__buf_finish(&pipes->waiting);
	pthread_mutex_destroy(&pipes->lock);
	pthread_cond_destroy(&pipes->changed);
	free(pipes);
	return status;
}
