/*
 * A server on its standard streams, one message a line, started through the spawner in a process group of its own.
 * The last part of its stderr is kept for diagnosis.
 *
 *     running ──its exit──▶ lost() ──▶ gone()
 *        └─close(): its stdin ends──▶ closing ──exit, or killed after a grace──▶ gone()
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "mcp/client/transport.h"
#include "spawn/confinement.h"
#include "wire/jsonrpc.h"

struct stdio {
	struct cell__mcp_transport base;
	struct cell__process *process; /* NULL: it has ended */
	struct cell__lines lines;
	uv_timer_t grace;
	bool closed;  /* the owner gets no callback but gone() */
	bool confined;
	char command[160], path[160];
};

static void handle_freed(uv_handle_t *handle)
{
	struct stdio *stdio = handle->data;
	const struct cell__mcp_transport_events *events = stdio->base.events;
	void *owner = stdio->base.owner;
	cell__lines_finish(&stdio->lines);
	free(stdio);
	events->gone(owner);
}

static void handle_grace(uv_timer_t *timer)
{
	struct stdio *stdio = timer->data;
	if (stdio->process)
		cell__process_kill(stdio->process);
}

static void end(struct stdio *stdio, int64_t grace_ms)
{
	stdio->closed = true;
	stdio->base.tail = NULL;
	/* The lines stay until the end: a caller may be reading one. */
	if (!stdio->process)
		return;
	cell__process_close_stdin(stdio->process);
	if (grace_ms == 0)
		cell__process_kill(stdio->process);
	else
		uv_timer_start(&stdio->grace, handle_grace, (uint64_t)grace_ms, 0);
}

static void lose(struct stdio *stdio, const struct cell_error *err)
{
	end(stdio, 0);
	stdio->base.events->lost(stdio->base.owner, err);
}

/* ---- output ---- */

static void keep_tail(struct cell__buf *tail, const char *bytes, size_t size)
{
	if (size > CELL_MCP_LIMIT_TAIL) {
		bytes += size - CELL_MCP_LIMIT_TAIL;
		size = CELL_MCP_LIMIT_TAIL;
	}
	if (cell__buf_add(tail, bytes, size) == 0 && tail->size > CELL_MCP_LIMIT_TAIL)
		cell__buf_shift(tail, tail->size - CELL_MCP_LIMIT_TAIL);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct stdio *stdio = owner;
	struct cell_error err;
	if (stdio->closed)
		return;
	if (stream == CELL_STDERR) {
		keep_tail(stdio->base.tail, bytes, size);
		stdio->base.events->noted(stdio->base.owner);
		return;
	}
	if (cell__lines_add(&stdio->lines, bytes, size) < 0) {
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a server's message");
		lose(stdio, &err);
		return;
	}
	const char *line;
	size_t line_size;
	enum cell__line_status status;
	while (!stdio->closed && (status = cell__lines_next(&stdio->lines, &line, &line_size)) != CELL__LINE_MORE) {
		if (status == CELL__LINE_OK) {
			stdio->base.events->message(stdio->base.owner, line, line_size);
			continue;
		}
		cell_fail(&err, CELL_E_LIMIT, 0, "the server sent a message of more than %u bytes; it was stopped", CELL_RPC_MAX_BYTES);
		lose(stdio, &err);
	}
}

static void handle_exited(void *owner, const struct cell__process_exit *how)
{
	struct stdio *stdio = owner;
	struct cell_error err;
	stdio->process = NULL;
	uv_close((uv_handle_t *)&stdio->grace, handle_freed);
	if (stdio->closed)
		return;
	if (how->failure.code)
		err = how->failure;
	else if (how->error && stdio->confined)
		cell_fail(&err, CELL_E_TOOL, how->error,
			  "command '%.60s' cannot be started in the calling code's sandbox; list it under read: in the sandbox "
			  "policy, or set host: true in the server's definition",
			  stdio->command);
	else if (how->bad_cwd)
		cell_fail(&err, CELL_E_TOOL, how->error, "the working directory of command '%s'", stdio->command);
	else if (how->error == ENOENT && !strchr(stdio->command, '/'))
		cell_fail(&err, CELL_E_TOOL, 0, "command '%.60s' not found in PATH (%.140s)", stdio->command, stdio->path);
	else if (how->error)
		cell_fail(&err, CELL_E_TOOL, how->error, "command '%s' cannot be started", stdio->command);
	else if (how->signalled)
		cell_fail(&err, CELL_E_TOOL, 0, "the server was killed by signal %d (%s)", how->status,
			  sigdescr_np(how->status) ? sigdescr_np(how->status) : "unknown");
	else
		cell_fail(&err, CELL_E_TOOL, 0, "the server ended with exit status %d", how->status);
	stdio->closed = true;
	stdio->base.exited = !how->failure.code && !how->error;
	stdio->base.events->lost(stdio->base.owner, &err);
	stdio->base.tail = NULL;
}

/* ---- the owner's side ---- */

static int send_line(struct cell__mcp_transport *transport, const struct cell__mcp_outgoing *out, struct cell_error *err)
{
	struct stdio *stdio = (struct stdio *)transport;
	if (!stdio->process)
		return cell_fail(err, CELL_E_CLOSED, 0, "the server has ended");
	if (cell__process_unread(stdio->process) + out->size > CELL_MCP_LIMIT_UNREAD)
		return cell_fail(err, CELL_E_LIMIT, 0, "the server does not read its input; it was stopped");
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	if (cell__buf_reserve(&line, out->size + 1) < 0 || cell__buf_add(&line, out->text, out->size) < 0 ||
	    cell__buf_add(&line, "\n", 1) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	int rc = cell__process_write(stdio->process, line.data, line.size, err);
	cell__loop_expect(stdio->base.loop);
	return rc;
}

static void close_stdio(struct cell__mcp_transport *transport)
{
	end((struct stdio *)transport, CELL_MCP_CLOSE_GRACE_MS);
}

static const struct cell__mcp_transport_ops ops = {
	.name = "stdio",
	.send = send_line,
	.close = close_stdio,
};

int cell__mcp_stdio_open(const struct cell__mcp_transport_spec *spec, struct cell__mcp_transport **ret_transport, struct cell_error *err)
{
	const struct cell__mcp_launch *launch = spec->launch;
	struct stdio *stdio = cell__mcp_transport_create(sizeof *stdio, &ops, spec, err);
	if (!stdio)
		return -1;
	cell__lines_init(&stdio->lines, CELL_RPC_MAX_BYTES);
	snprintf(stdio->command, sizeof stdio->command, "%s", launch->argv[0]);
	snprintf(stdio->path, sizeof stdio->path, "%s", launch->path);
	stdio->confined = launch->confine != NULL;
	struct cell__process_spec process = {
		.argv = (const char *const *)launch->argv,
		.env = (const char *const *)launch->env,
		.path = launch->path,
		.cwd = launch->cwd,
		.confine = launch->confine,
		.timeout_ms = -1,
		.want_stdin = true,
		.output = handle_output,
		.exited = handle_exited,
		.owner = stdio,
	};
	if (cell__process_start(spec->supervisor, &process, &stdio->process, err) < 0) {
		free(stdio);
		return -1;
	}
	stdio->grace.data = stdio;
	uv_timer_init(cell__loop_uv(spec->loop), &stdio->grace);
	*ret_transport = &stdio->base;
	return 0;
}

/* ---- the common start of all transports ---- */

void *cell__mcp_transport_create(size_t size, const struct cell__mcp_transport_ops *vtable, const struct cell__mcp_transport_spec *spec,
				 struct cell_error *err)
{
	struct cell__mcp_transport *transport = cell__alloc(1, size);
	if (!transport) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an MCP server");
		return NULL;
	}
	*transport = (struct cell__mcp_transport){
		.ops = vtable,
		.events = spec->events,
		.owner = spec->owner,
		.tail = spec->tail,
		.loop = spec->loop,
	};
	return transport;
}

void cell__mcp_transport_forget(struct cell__mcp_transport *transport, int64_t id)
{
	if (transport && transport->ops->forget)
		transport->ops->forget(transport, id);
}

static void free_secret(char *text)
{
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
}

static void free_secrets(char **list)
{
	for (size_t i = 0; list && list[i]; i++)
		free_secret(list[i]);
	free(list);
}

void cell__mcp_launch_finish(struct cell__mcp_launch *launch)
{
	free_secrets(launch->argv);
	free_secrets(launch->env);
	free_secrets(launch->headers);
	free_secret(launch->path);
	free_secret(launch->cwd);
	free_secret(launch->url);
	cell__confinement_unref(launch->confine);
	if (launch->check_free)
		launch->check_free(launch->check_arg);
	*launch = (struct cell__mcp_launch){ 0 };
}
