/*
 * The fork of a session of a server: another session of that server, so points, rewinding and races need nothing else from it.
 *
 *     fork ── POST /v1/sessions/S/fork ──▶ the new kernel is ready, or gone with the server's error
 *
 * A cell may be started right after the fork, and must not reach the server first: the source keeps it back until the server has answered.
 */
#include "executors/remote/kernel.h"

#include <stdio.h>
#include <string.h>

void cell__remote_part(struct cell__remote_kernel *kernel)
{
	struct cell__remote_kernel *source = cell__take_ptr(kernel->source);

	for (struct cell__remote_kernel *branch = cell__take_ptr(kernel->branches), *next; branch; branch = next) {
		next = branch->next_branch;
		branch->source = NULL;
	}
	if (!source)
		return;
	struct cell__remote_kernel **at = &source->branches;
	while (*at != kernel)
		at = &(*at)->next_branch;
	*at = kernel->next_branch;
	if (!source->branches && source->run_waits) {
		source->run_waits = false;
		source->state = CELL_REMOTE_RUNNING;
		cell__remote_start_run(source);
	}
}

static char *copy_of(const char *text, bool *failed)
{
	char *copy = text ? cell__strdup(text) : NULL;

	*failed |= text && !copy;
	return copy;
}

int cell__remote_branch(struct cell__kernel *base, unsigned flags, const struct cell__kernel_events *events, void *owner,
			void (*gone)(void *arg, const struct cell__exit *how), void *arg, struct cell__kernel **ret_kernel,
			struct cell_error *err)
{
	struct cell__remote_kernel *source = (struct cell__remote_kernel *)base, *branch;
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	bool failed = false;

	if (!*source->session || source->state != CELL_REMOTE_IDLE)
		return cell_fail(err, CELL_E_KERNEL, 0, "the session of the server has ended");
	branch = cell__alloc(1, sizeof(*branch));
	if (!branch)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	*branch = (struct cell__remote_kernel){
		.base.executor = base->executor,
		.remote = source->remote,
		.events = events,
		.owner = owner,
		.gone = gone,
		.gone_arg = arg,
		.allow_fork = source->allow_fork,
		.known.cells = -1,
		.repeat = source->repeat,
		.url = copy_of(source->url, &failed),
		.socket = copy_of(source->socket, &failed),
		.authorization = copy_of(source->authorization, &failed),
		.workspace = copy_of(source->workspace, &failed),
		.ca = copy_of(source->ca, &failed),
		.receipt = copy_of(source->receipt, &failed),
	};
	cell__sse_init(&branch->sse, CELL_REMOTE_MAX_EVENT_BYTES);
	if (failed || cell__buf_printf(&path, "/v1/sessions/%s/fork", source->session) < 0) {
		cell__remote_kernel_free(branch);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	}
	branch->source = source;
	branch->next_branch = source->branches;
	source->branches = branch;
	cell__remote_start_kernel(branch);
	struct cell__remote_exchange *exchange = cell__remote_begin(branch, "POST", path.data,
								    cell__strdup(flags & CELL__FORK_DROP ? "{\"drop\":true}" : "{}"), NULL,
								    false, cell__remote_session_opened);
	if (exchange)
		exchange->repeats = true;
	else
		cell__remote_out_of_memory(branch);
	*ret_kernel = &branch->base;
	return 0;
}

int cell__remote_fork(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer, unsigned flags,
		      const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	(void)session_id; /* the server has its own */
	(void)layer;
	return cell__remote_branch(kernel, flags, events, owner, NULL, NULL, ret_kernel, err);
}

void *cell__remote_gone_arg(const struct cell__kernel *kernel)
{
	return ((const struct cell__remote_kernel *)kernel)->gone_arg;
}
