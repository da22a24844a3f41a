/*
 * The debug mode of E2B's clients (E2B_DEBUG): they make no sandbox and send no token, but talk to fixed ports of the loopback as if one
 * sandbox were there, under a fixed name.  The server listens there too, and makes that sandbox for the first request that wants it:
 *
 *     head of a request ──▶ no sandbox: a session is opened, the head waits (CELL_REQUEST_ASKING) ──▶ the head is checked again
 *
 * Two first requests open two sessions; the one that comes later finds a sandbox, and its session is ended.
 */
#define _GNU_SOURCE
#include "server/e2b/e2b.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "wire/access.h"

#define BACKLOG 64
#define DEBUG_ID "debug_sandbox_id"
#define LONG_S (10ll * 365 * 86400) /* it stays until it is killed: the clients never say for how long they want it */

/* The control plane, files and commands, code. */
static const int ports[CELL_E2B_DEBUG_PORTS] = { 3000, 49983, 49999 };

/* ---- addresses ---- */

void cell__e2b_debug_init(struct cell_server *server)
{
	for (size_t i = 0; i < CELL_E2B_DEBUG_PORTS; i++)
		server->e2b_debug.fds[i] = -1;
}

int cell__e2b_debug_listen(struct cell_server *server, struct cell_error *err)
{
	if (!server->opts.e2b_debug)
		return 0;
	if (!server->opts.e2b || !server->opts.auth_disabled)
		return cell_fail(
			err, CELL_E_INVALID, 0,
			"the debug mode of E2B's clients sends no tokens: it needs e2b and disabled authentication (--auth-disabled)");
	if (server->opts.pool || server->opts.tls_cert)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the debug mode of E2B's clients has one sandbox and no TLS: leave out --workers and --tls-cert");
	for (size_t i = 0; i < CELL_E2B_DEBUG_PORTS; i++) {
		struct sockaddr_in at = { .sin_family = AF_INET,
					  .sin_port = htons((uint16_t)ports[i]),
					  .sin_addr = { htonl(INADDR_LOOPBACK) } };
		CELL_AUTO_FD int fd = -1;
		int on = 1;

		if (server->address.port == ports[i])
			continue; /* its own */
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
		if (fd >= 0)
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
		if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, BACKLOG) < 0)
			return cell_fail(err, CELL_E_IO, errno,
					 "cannot listen on 127.0.0.1 port %d, which E2B's clients use with E2B_DEBUG", ports[i]);
		server->e2b_debug.fds[i] = cell__take_fd(&fd);
	}
	return 0;
}

static void handle_clients(uv_poll_t *poll, int status, int events)
{
	struct cell_server *server = poll->data;
	int listener = server->e2b_debug.fds[poll - server->e2b_debug.polls];

	(void)status;
	(void)events;
	while (listener >= 0) {
		struct sockaddr_storage from = { 0 };
		socklen_t size = sizeof(from);
		int fd = accept4(listener, (struct sockaddr *)&from, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0)
			return; /* none is left, or there is no descriptor: they wait */
		cell__http_add(server, fd, (const struct sockaddr *)&from, size, false);
	}
}

void cell__e2b_debug_start(struct cell_server *server)
{
	for (size_t i = 0; i < CELL_E2B_DEBUG_PORTS; i++) {
		uv_poll_t *poll = &server->e2b_debug.polls[i];

		if (server->e2b_debug.fds[i] < 0)
			continue;
		uv_poll_init(cell__loop_uv(server->engine->loop), poll, server->e2b_debug.fds[i]);
		poll->data = server;
		uv_poll_start(poll, UV_READABLE, handle_clients);
		server->e2b_debug.started[i] = true;
	}
}

void cell__e2b_debug_stop(struct cell_server *server)
{
	for (size_t i = 0; i < CELL_E2B_DEBUG_PORTS; i++) {
		if (server->e2b_debug.started[i])
			uv_poll_stop(&server->e2b_debug.polls[i]);
		cell__close_fd(&server->e2b_debug.fds[i]);
	}
}

void cell__e2b_debug_close(struct cell_server *server, void (*close_handle)(struct cell_server *server, uv_handle_t *handle))
{
	for (size_t i = 0; i < CELL_E2B_DEBUG_PORTS; i++) {
		if (server->e2b_debug.started[i])
			close_handle(server, (uv_handle_t *)&server->e2b_debug.polls[i]);
		server->e2b_debug.started[i] = false;
	}
}

bool cell__e2b_debug_host(const struct cell_server *server, const char *host)
{
	for (size_t i = 0; server->opts.e2b_debug && i < CELL_E2B_DEBUG_PORTS; i++) {
		if (cell__access_host(host, "127.0.0.1", ports[i], NULL))
			return true;
	}
	return false;
}

/* ---- the sandbox ---- */

const char *cell__e2b_debug_id(const struct cell_server *server, const char *id)
{
	return server->opts.e2b_debug && !strcmp(id, DEBUG_ID) ? server->e2b_debug.id : id;
}

static void handle_opened(struct cell__request *request)
{
	struct cell_server *server = request->server;
	struct cell__served *served = request->served;
	json_t *none = json_object();
	struct cell__e2b_sandbox *sandbox = NULL;
	bool is_late = cell__e2b_by_id(server, server->e2b_debug.id);

	if (!is_late && none)
		sandbox = cell__e2b_sandbox_create(served, none, none, NULL, LONG_S, false);
	json_decref(none);
	free(cell__take_ptr(request->env));
	request->workspace_path = NULL;
	request->tables = false;
	if (sandbox)
		snprintf(server->e2b_debug.id, sizeof(server->e2b_debug.id), "%s", cell__e2b_id(sandbox));
	cell__served_release(request);
	if (!sandbox)
		cell__served_end(served);
	if (sandbox || is_late)
		cell__request_resume(request); /* its head is checked again */
	else
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a sandbox");
}

bool cell__e2b_debug_waits(struct cell__request *request)
{
	struct cell_server *server = request->server;

	if (!server->opts.e2b_debug || (*request->sandbox && strcmp(request->sandbox, DEBUG_ID)))
		return false;
	snprintf(request->sandbox, sizeof(request->sandbox), "%s", server->e2b_debug.id);
	if (cell__e2b_by_id(server, request->sandbox))
		return false;
	(void)cell__token_by_name(server, "", &request->who);
	if (cell__e2b_prepare(request, NULL, NULL) < 0) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a sandbox");
		return true;
	}
	request->state = CELL_REQUEST_ASKING;
	cell__served_open(request, NULL, handle_opened);
	return true;
}
