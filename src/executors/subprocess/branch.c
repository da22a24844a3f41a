/*
 * The fork of a live kernel.
 *
 *     host ── KERNEL_BRANCH ──▶ spawner      an unknown child may be it
 *     host ── FORK + fds ──▶ kernel ── fork ──▶ branch ── HELLO, READY ──▶ host
 *                              └── FORKED(pid) ──▶ host ── KERNEL_ADOPT(pid) ──▶ spawner ── KERNEL_FORKED ──▶ host
 *
 * The branch is live when both its own word and the spawner's have come, as any kernel is.  It never ran through INIT: it is configured as
 * its source was.  A source that ends, refuses or lies leaves a branch that is not adopted, and the spawner kills what it does not know.
 */
#include "executors/subprocess/kernel.h"

#include <string.h>

#include "layer/layer.h"

void cell__sub_branch_give_up(struct cell__sub_kernel *branch)
{
	branch->source = 0;
	cell__spawn_client_tell(&branch->sub->supervisor->client, CELL_SPAWN_KERNEL_ADOPT, branch->id, 0);
}

/* "thread worker-1, socket descriptor 7": as much of it as fits. */
static void list_held(const json_t *held, struct cell__buf *out)
{
	size_t i;
	json_t *thing;
	json_array_foreach(held, i, thing) {
		const char *kind = json_string_value(json_array_get(thing, 0)), *name = json_string_value(json_array_get(thing, 1));
		if (kind && name && out->size < 160)
			(void)cell__buf_printf(out, "%s%s %s", i ? ", " : "", kind, name);
	}
}

void cell__sub_branch_refused(const json_t *answer, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf held = CELL_BUF_INIT;
	const char *error = json_string_value(json_object_get(answer, "error")), *full = json_string_value(json_object_get(answer, "full"));
	list_held(json_object_get(answer, "held"), &held);
	if (held.size > 0)
		cell_fail(err, CELL_E_FORK, 0, "a fork would not have: %.170s; end them, or fork with drop", held.data);
	else if (full)
		cell_fail(err, CELL_E_FORK, 0, "%.200s", full);
	else
		cell_fail(err, CELL_E_KERNEL, 0, "the kernel cannot fork: %.150s", error ? error : "for an unknown reason");
}

const char *cell__sub_branch_answered(struct cell__sub_kernel *source, const struct cell_frame *frame)
{
	json_error_t problem;
	struct cell__sub_kernel *branch = source->sub->kernels;
	if (source->forks_asked == 0)
		return "FORKED without FORK";
	while (branch && (branch->source != source->id || (uint32_t)branch->id != frame->id))
		branch = branch->next;
	json_t *answer = frame->json_size <= CELL_LIMIT_LARGE_BYTES ? json_loadb((const char *)frame->json, frame->json_size, 0, &problem)
								    : NULL;
	if (!json_is_object(answer)) {
		json_decref(answer);
		return "FORKED that is not a JSON object"; /* it is killed, and then what it was asked for ends */
	}
	source->forks_asked--;
	if (cell__sub_image_answered(source, frame->id, answer)) {
		json_decref(answer);
		return NULL;
	}
	if (branch) { /* else it was closed meanwhile */
		json_int_t pid = json_integer_value(json_object_get(answer, "pid"));
		branch->source = 0;
		if (pid <= 0)
			cell__sub_branch_refused(answer, &branch->error);
		cell__spawn_client_tell(&branch->sub->supervisor->client, CELL_SPAWN_KERNEL_ADOPT, branch->id, pid > 0 ? pid : 0);
	}
	json_decref(answer);
	return NULL;
}

void cell__sub_branch_source_gone(struct cell__sub_kernel *source)
{
	if (source->forks_asked == 0)
		return; /* as most do: every kernel comes here at its end */
	cell__sub_image_source_gone(source);
	for (struct cell__sub_kernel *branch = source->sub->kernels; branch; branch = branch->next) {
		if (branch->source != source->id)
			continue;
		if (branch->error.code == 0)
			cell_fail(&branch->error, CELL_E_KERNEL, 0, "the kernel ended before it forked");
		cell__sub_branch_give_up(branch);
	}
}

int cell__subprocess_fork(struct cell__kernel *base, const char *session_id, const struct cell__layer *layer, unsigned flags,
			  const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__sub_kernel *source = (struct cell__sub_kernel *)base;
	struct cell__spawn_client *client = &source->sub->supervisor->client;
	struct cell__link_fds fds;
	if (flags & CELL__FORK_SAVE || source->is_image)
		return cell__sub_image_fork(base, NULL, session_id, flags, events, owner, ret_kernel, err);
	if (!source->link || source->state != CELL_KERNEL_LIVE)
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	struct cell__sub_kernel *branch = cell__sub_kernel_create(source->env, err);
	if (!branch)
		return -1;
	cell__sub_kernel_leave_fresh(branch);
	branch->base.executor = base->executor;
	branch->state = CELL_KERNEL_DYING; /* unless all goes well */
	json_t *request = json_pack("{s:s, s:b, s:b, s:b}", "session", session_id, "drop", flags & CELL__FORK_DROP, "heir",
				    flags & CELL__FORK_HEIR, "speculate", flags & CELL__FORK_SPECULATE);
	/* Without namespaces its workspace has a path of its own. */
	if (request && layer && json_object_set_new(request, "workspace", json_string(cell__layer_upper(layer))) < 0)
		json_decref(cell__take_ptr(request));
	CELL_AUTO_FREE char *text = request ? json_dumps(request, JSON_COMPACT) : NULL;
	json_decref(request);
	int rc = text ? cell__sub_kernel_link(branch, &fds, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc == 0) {
		rc = cell__spawn_client_send(client, CELL_SPAWN_KERNEL_BRANCH, branch->id, (int64_t)source->id, 0, NULL, 0, NULL, 0, err);
		if (rc == 0 && (rc = cell__link_send_fds(source->link, CELL_FRAME_FORK, (uint32_t)branch->id, text, strlen(text), NULL, 0,
							 fds.fd, 4, err)) < 0)
			cell__sub_branch_give_up(branch);
		cell__link_fds_close(&fds);
	}
	if (rc < 0) {
		cell__sub_kernel_gone_later(branch); /* without an owner: nobody is told */
		return -1;
	}
	branch->state = CELL_KERNEL_OPENING;
	branch->source = source->id;
	source->forks_asked++;
	branch->events = events;
	branch->owner = owner;
	cell__sub_kernel_expect_answer(branch);
	*ret_kernel = &branch->base;
	return 0;
}
