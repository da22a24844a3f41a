/*
 * The `sandbox` executor: the same kernels, forked from zygotes of the same kind (subprocess.c), both confined by plans.
 *
 * A plan depends on the policy and on the paths of the interpreter's files, so the sessions of one kind share it, and with it the pool and
 * the spawner's spare jails. The parts that differ from session to session (workspace, packages) are the session's own small plan, which is
 * sent with INIT.
 */
#define _GNU_SOURCE
#include "executors/registry.h"
#include "executors/subprocess/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "sandbox/build.h"
#include "egress/egress.h"
#include "layer/layer.h"
#include "sandbox/machine.h"
#include "sandbox/places.h"
#include "spawn/confinement.h"
#include "spawn/supervisor.h"

struct request {
	struct cell__sandbox_request base;
	struct cell__sandbox_policy policy;
	char *workspace, *cwd;
	char *shown; /* the name of the workspace inside, or NULL: cwd */
	char **read;
	struct cell__writable_list writable; /* the engine's, as long as the code could run */
	char *receipt;
	const struct cell__layer *layer; /* the session's, which outlives its kernels; or NULL */
	struct cell__buf shared; /* as base.session, for programs */
	struct cell__executor_host *host;
	char session_id[33];
	struct cell__egress *egress;
	const struct cell__kernel_events *events; /* NULL: not for a session */
	void *owner;
};

/* ---- one kernel ---- */

static const char *cwd_inside(const struct request *request)
{
	return request->shown ? request->shown : request->cwd;
}

static void request_destroy(struct cell__sandbox_request *base)
{
	struct request *request = (struct request *)base;
	cell__sandbox_policy_finish(&request->policy);
	cell__strings_free(request->read);
	cell__places_unwrite(request->host->places, &request->writable);
	cell__writable_finish(&request->writable);
	free(request->workspace);
	free(request->cwd);
	free(request->shown);
	free(request->receipt);
	cell__buf_finish(&request->shared);
	cell__egress_close(request->egress);
	free(request);
}

/* A kernel that is confined ahead has bound the folders that the paths named then; a folder that was made again is another one. */
static int name_files(const struct cell_plan *session, struct cell__buf *out)
{
	const struct cell_plan_step *step = cell__plan_first(session);
	out->size = 0;
	for (uint32_t i = 0; i < session->n_steps; i++, step = cell__plan_next(step)) {
		struct statx st = { 0 };
		if (step->op != CELL_OP_BIND && step->op != CELL_OP_OVERLAY && step->op != CELL_OP_ALLOW)
			continue;
		(void)statx(AT_FDCWD, cell__step_a(step), 0, STATX_INO | STATX_BTIME, &st); /* nothing there: all zero */
		uint64_t name[5] = { st.stx_dev_major, st.stx_dev_minor, st.stx_ino, (uint64_t)st.stx_btime.tv_sec, st.stx_btime.tv_nsec };
		if (cell__buf_add(out, name, sizeof name) < 0)
			return -1;
	}
	return 0;
}

static int request_prepare(struct cell__sandbox_request *base, const struct cell__plan_env *env, struct cell_error *err)
{
	struct request *request = (struct request *)base;
	struct cell__sandbox_plan *plan = NULL;
	int rc = -1;
	struct cell__plan_session session = {
		.workspace = request->workspace,
		.cwd = request->cwd,
		.shown = request->shown,
		.mode = request->policy.workspace,
		.read = (const char *const *)request->read,
		.env = env,
		.policy = &request->policy,
	};
	if (request->layer) {
		session.layer_is_copy = cell__layer_form(request->layer) == CELL_LAYER_COPY;
		session.layer = session.layer_is_copy ? cell__layer_upper(request->layer) : cell__layer_folder(request->layer);
	}
	if (cell__plans_find(&request->host->supervisor->plans, &session, &plan, err) < 0)
		return -1;
	base->session.size = 0;
	if (cell__plan_build_session(cell__machine_here(), &session, &base->session, err) == 0)
		rc = name_files((const struct cell_plan *)base->session.data, &base->files) == 0
			     ? 0
			     : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	/* A program has a mount of its own: two that write to one layer would not see each other's changes. */
	request->shared.size = 0;
	session.layer_read_only = !session.layer_is_copy;
	if (rc == 0 && session.layer)
		rc = cell__plan_build_session(cell__machine_here(), &session, &request->shared, err);
	if (rc == 0)
		base->plan = plan;
	else
		cell__sandbox_plan_unref(plan);
	return rc;
}

/* The request for a session, with the files that it will see.  NULL: err has the reason. */
static struct cell__sandbox_request *request_create(struct cell__executor_host *host, const struct cell__kernel_spec *spec,
						    struct cell_error *err)
{
	struct request *request = cell__alloc(1, sizeof *request);
	if (request) {
		request->base.prepare = request_prepare;
		request->base.destroy = request_destroy;
		request->host = host;
		snprintf(request->session_id, sizeof request->session_id, "%s", spec->session_id);
		request->workspace = cell__strdup(spec->cwd);
		request->layer = spec->layer;
		request->base.alone = spec->layer != NULL;
		request->shown = spec->workspace_path ? cell__strdup(spec->workspace_path) : NULL;
	}
	if (!request || !request->workspace || (spec->workspace_path && !request->shown) ||
	    !(request->read = cell__strings_copy(spec->read))) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
		goto fail;
	}
	if (cell__sandbox_policy_copy(&request->policy, spec->policy, err) < 0)
		goto fail;
	cell__sandbox_policy_obey(&request->policy);
	if (cell__machine_here()->level == CELL_LEVEL_FULL)
		request->base.zygote = request->policy.network == CELL_NET_FULL ? CELL_ZYGOTE_ONLINE : CELL_ZYGOTE_CONFINED;
	/* The session's folder does not depend on the interpreter; its problems are reported now. */
	if (cell__plan_workspace(spec->cwd, request->policy.workspace, &request->cwd, err) < 0 ||
	    cell__writable_init(&request->writable, &request->policy, request->cwd, err) < 0 ||
	    cell__places_name(host->places, &request->writable, err) < 0)
		goto fail;
	if (cell__subprocess_prepare(cell__subprocess_of(host), spec->python, spec->preload, spec->zygote_owner, &request->base, err) < 0)
		goto fail;
	return &request->base;
fail:
	cell__sub_request_destroy(request ? &request->base : NULL);
	return NULL;
}

static int sandbox_resolve(struct cell__executor_host *host, const struct cell__kernel_spec *spec, void **ret_found, struct cell_error *err)
{
	*ret_found = request_create(host, spec, err);
	return *ret_found ? 0 : -1;
}

static void sandbox_discard(void *found)
{
	cell__sub_request_destroy(found);
}

void cell__sandbox_failure(const struct cell__sandbox_request *base, int step, int sys, struct cell_error *err)
{
	struct cell_plan_report report = { .step = step, .sys = sys };
	const struct cell_plan *session = base->session.size > 0 ? (const struct cell_plan *)base->session.data : NULL;
	if (!base->plan) {
		cell_fail(err, CELL_E_SANDBOX, sys, "the sandbox could not be made");
		return;
	}
	if (step < 0)
		cell_fail(err, CELL_E_SANDBOX, sys, "fork into the sandbox (cgroup, namespaces)");
	else
		cell__plan_failure((const struct cell_plan *)base->plan->bytes, session, &report, err);
}

static int tell(void *arg, const struct cell__egress_event *event, struct cell_error *err)
{
	struct request *request = arg;
	request->host->log(request->host->log_arg, CELL_LOG_INFO, "session %s: egress to %s:%u: %s", request->session_id,
			   event->host ? event->host : "?", event->port,
			   event->refusal ? event->refusal
			   : event->ended ? "ended"
					  : "let through");
	return request->events && request->events->connection ? request->events->connection(request->owner, event, err) : 0;
}

void cell__sandbox_silence(struct cell__sandbox_request *base)
{
	struct request *request = (struct request *)base;
	cell__egress_close(cell__take_ptr(request->egress));
}

int cell__sandbox_listen(struct cell__sandbox_request *base, int fd, const char *const *index_hosts, struct cell_error *err)
{
	struct request *request = (struct request *)base;
	struct cell__egress_options options = {
		.loop = request->host->loop,
		.listen_fd = fd,
		.hosts = &request->policy.hosts,
		.more_hosts = request->policy.network == CELL_NET_DEPS ? index_hosts : NULL,
		.tell = tell,
		.arg = request,
	};
	return cell__egress_create(&options, &request->egress, err);
}

void cell__sandbox_ready(struct cell__sandbox_request *base, const void *jail_report, size_t size, const unsigned *skipped,
			 size_t n_skipped, const struct cell__zygote_state *zygote)
{
	struct request *request = (struct request *)base;
	struct cell_plan_report report;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	memcpy(&report, jail_report, size < sizeof report ? size : sizeof report);
	for (size_t i = 0; i < n_skipped; i++)
		if (skipped[i] < CELL_PLAN_MAX_STEPS)
			report.skipped[skipped[i] / 8] |= (uint8_t)(1u << (skipped[i] % 8));
	if (cell__plan_receipt(&request->policy, cell__machine_here(), (const struct cell_plan *)base->plan->bytes, &report,
			       request->policy.workspace, request->layer ? cell__layer_word(request->layer) : NULL, zygote, &text) == 0)
		request->receipt = cell__buf_take(&text);
}

/* ---- the executor ---- */

static void sandbox_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	cell__subprocess_probe(host, info);
	if (!info->available)
		return;
	const struct cell__machine *found = cell__machine_here();
	if (found->level != CELL_LEVEL_UNAVAILABLE)
		snprintf(info->level, sizeof info->level, "%s", found->level == CELL_LEVEL_FULL ? "full" : "no-userns");
	if (found->level == CELL_LEVEL_FULL) {
		if (found->no_subids[0]) {
			snprintf(info->reason, sizeof info->reason, "sandboxes have the caller's uid: %.160s", found->no_subids);
			snprintf(info->advice, sizeof info->advice, "%s", found->subids_advice);
		}
		return;
	}
	info->available = found->level != CELL_LEVEL_UNAVAILABLE;
	snprintf(info->reason, sizeof info->reason, "%s%.200s", info->available ? "only level no-userns: " : "", found->reason);
	snprintf(info->advice, sizeof info->advice, "%s", found->advice);
}

static const char *const proxy_env[] = { CELL_EGRESS_ENV };
#define PROXY_VARIABLES (sizeof proxy_env / sizeof *proxy_env)

/* The variables of a kernel; borrows them.  NULL: out of memory. */
static const char **make_env(const struct request *request, const char *const *given)
{
	size_t n = 0, at = 0;
	while (given[n])
		n++;
	const char **env = cell__alloc(n + request->policy.env.count + PROXY_VARIABLES + 1, sizeof *env);
	if (!env)
		return NULL;
	/* The caller's home is not in the sandbox. Variables that the caller set come later in the list, and override this. */
	bool home = false;
	for (size_t i = 0; i < n; i++) {
		bool first_home = !home && strncmp(given[i], "HOME=", 5) == 0;
		env[at++] = first_home ? "HOME=" CELL_PLAN_HOME : given[i];
		home |= first_home;
	}
	bool filtered = request->policy.network == CELL_NET_ALLOW || request->policy.network == CELL_NET_DEPS;
	for (size_t i = 0; filtered && i < PROXY_VARIABLES; i++)
		env[at++] = proxy_env[i];
	for (size_t i = 0; i < request->policy.env.count; i++)
		env[at++] = request->policy.env.items[i];
	return env;
}

static int sandbox_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
			void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	CELL_AUTO_FREE const char **env = NULL;
	struct cell__sandbox_request *request = spec->found;
	struct request *mine = (struct request *)request;
	mine->events = events;
	mine->owner = owner;
	if (cell__places_write(host->places, &mine->writable, err) < 0) {
		cell__sub_request_destroy(request);
		return -1;
	}
	env = make_env(mine, spec->env);
	if (!env) {
		cell__sub_request_destroy(request);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	}
	char limits[400];
	snprintf(limits, sizeof limits, "{\"memory\":%llu,\"pids\":%llu,\"files\":%llu,\"file_size\":%llu,\"tmp\":%llu}",
		 (unsigned long long)mine->policy.memory_bytes, (unsigned long long)mine->policy.pids,
		 (unsigned long long)mine->policy.files, (unsigned long long)mine->policy.file_size_bytes,
		 (unsigned long long)(cell__machine_here()->level == CELL_LEVEL_FULL ? mine->policy.tmp_bytes : 0));
	struct cell__kernel_spec inside = *spec;
	inside.limits_json = limits;
	inside.cwd = cwd_inside(mine);
	inside.env = env;
	return cell__subprocess_open(host, &cell__sandbox_executor, &inside, request, events, owner, ret_kernel, err);
}

static int sandbox_prewarm(struct cell__executor_host *host, const struct cell__kernel_spec *spec, cell__prewarmed_fn done, void *arg,
			   struct cell_error *err)
{
	struct cell__sandbox_request *request = spec->found;
	if (cell__places_write(host->places, &((struct request *)request)->writable, err) < 0) {
		cell__sub_request_destroy(request);
		return -1;
	}
	return cell__subprocess_prewarm(cell__subprocess_of(host), spec->python, spec->preload, spec->zygote_owner, request, done, arg,
					err);
}

/*
 * The plan of a session with a layer, for another layer.  Their folders are in one place and have names of the same length, so the plan is
 * as long, and no path has to be looked up.
 */
static int name_layer(struct cell__buf *plan, const struct cell__layer *from, const struct cell__layer *to, struct cell_error *err)
{
	if (from == to || plan->size == 0)
		return 0;
	const char *old = cell__layer_folder(from), *new = to ? cell__layer_folder(to) : "";
	size_t size = strlen(old), changed = 0;
	struct cell_plan *head = (struct cell_plan *)plan->data;
	struct cell_plan_step *step = (struct cell_plan_step *)(head + 1);
	for (uint32_t i = 0; strlen(new) == size && i < head->n_steps; i++, step = (struct cell_plan_step *)((char *)step + step->bytes)) {
		char *path = step->op == CELL_OP_OVERLAY ? step->text + step->a_size + 1 : step->op == CELL_OP_BIND ? step->text : NULL;
		if (path && strncmp(path, old, size) == 0) {
			memcpy(path, new, size);
			changed++;
		}
	}
	return changed == 1 ? 0 : cell_fail(err, CELL_E_SANDBOX, 0, "the layer of a fork cannot be shown in place of its source's");
}

/* The same sandbox once more, for another session. */
static struct cell__sandbox_request *request_copy(const struct request *from, const char *session_id, const struct cell__layer *layer,
						  const struct cell__kernel_events *events, void *owner, struct cell_error *err)
{
	struct request *request = cell__alloc(1, sizeof *request);
	if (!request) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
		return NULL;
	}
	request->base = (struct cell__sandbox_request){
		.prepare = request_prepare, .destroy = request_destroy, .zygote = from->base.zygote, .alone = from->base.alone
	};
	request->host = from->host;
	request->layer = layer;
	request->events = events;
	request->owner = owner;
	snprintf(request->session_id, sizeof request->session_id, "%s", session_id);
	request->workspace = cell__strdup(from->workspace);
	request->cwd = cell__strdup(from->cwd);
	request->shown = from->shown ? cell__strdup(from->shown) : NULL;
	request->read = cell__strings_copy((const char *const *)from->read);
	request->base.plan = cell__sandbox_plan_ref(from->base.plan);
	request->base.from = cell__sub_files_ref(from->base.from);
	if (!request->workspace || !request->cwd || (from->shown && !request->shown) || !request->read ||
	    cell__buf_add(&request->base.session, from->base.session.data, from->base.session.size) < 0 ||
	    cell__buf_add(&request->shared, from->shared.data, from->shared.size) < 0 ||
	    cell__buf_add(&request->base.files, from->base.files.data, from->base.files.size) < 0)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	else if (name_layer(&request->base.session, from->layer, layer, err) == 0 &&
		 name_layer(&request->shared, from->layer, layer, err) == 0 &&
		 cell__sandbox_policy_copy(&request->policy, &from->policy, err) == 0 &&
		 cell__writable_copy(&from->writable, &request->writable, err) == 0 &&
		 cell__places_write(request->host->places, &request->writable, err) == 0)
		return &request->base;
	cell__sub_request_destroy(&request->base);
	return NULL;
}

static int sandbox_fork(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer, unsigned flags,
			const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	const struct request *from = (const struct request *)cell__subprocess_request(kernel);
	struct cell__sandbox_request *request = request_copy(from, session_id, layer, events, owner, err);
	return request ? cell__sub_image_fork(kernel, request, session_id, flags, events, owner, ret_kernel, err) : -1;
}

static int sandbox_keep(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer,
			const struct cell__image_files *files, const struct cell__kernel_events *events, void *owner,
			struct cell__kernel **ret_kernel, struct cell_error *err)
{
	const struct request *from = (const struct request *)cell__subprocess_request(kernel);
	struct cell__sandbox_request *request = request_copy(from, session_id, layer, events, owner, err);
	return request ? cell__sub_image_keep(kernel, request, files, events, owner, ret_kernel, err) : -1;
}

static void sandbox_hand_over(struct cell__kernel *kernel, const struct cell__kernel_events *events, void *owner)
{
	struct request *request = (struct request *)cell__subprocess_request(kernel);
	if (request) {
		request->events = events;
		request->owner = owner;
	}
	cell__subprocess_hand_over(kernel, events, owner);
}

/* The same plan, and the same session's: programs see what the code sees. */
static int sandbox_confine(struct cell__kernel *kernel, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	const struct request *request = (const struct request *)cell__subprocess_request(kernel);
	if (!request || !request->base.plan || request->base.session.size == 0) {
		*ret_confinement = NULL;
		return 0;
	}
	return cell__confinement_create_like(&request->policy, request->base.plan,
					     request->layer ? &request->shared : &request->base.session, cwd_inside(request),
					     &request->writable, cell__subprocess_index_hosts(kernel), ret_confinement, err);
}

/* Unlike a program's, the layer is written to: it is the kernel's own mount. */
static int sandbox_place(struct cell__kernel *kernel, const char *const *env, struct cell__kernel_place *ret_place, struct cell_error *err)
{
	const struct request *request = (const struct request *)cell__subprocess_request(kernel);
	struct cell__kernel_place place = { 0 };
	if (!request || !request->base.plan || request->base.session.size == 0)
		return cell_fail(err, CELL_E_BUSY, 0, "the session's kernel is not ready; try again");
	if (cell__subprocess_place(kernel, env, &place, err) < 0 ||
	    cell__confinement_create_like(&request->policy, request->base.plan, &request->base.session, cwd_inside(request),
					  &request->writable, NULL, &place.confine, err) < 0)
		return -1;
	place.cwd = cwd_inside(request);
	place.env = make_env(request, env);
	if (!place.env) {
		cell__confinement_unref(place.confine);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	}
	*ret_place = place;
	return 0;
}

static const char *sandbox_receipt_of(const struct cell__kernel *kernel)
{
	const struct request *request = (const struct request *)cell__subprocess_request(kernel);
	return request && request->receipt ? request->receipt : cell__sandbox_executor.receipt;
}

const struct cell__executor cell__sandbox_executor = {
	.name = "sandbox",
	.isolation = "sandbox",
	.works_here = true,
	.takes = CELL_TAKES_POLICY | CELL_TAKES_LIMITS | CELL_TAKES_DISK | CELL_TAKES_NETWORK | CELL_TAKES_HOSTS,
	.untrusted = true,
	.probe = sandbox_probe,
	.resolve = sandbox_resolve,
	.discard = sandbox_discard,
	.count = cell__subprocess_count,
	.prewarm = sandbox_prewarm,
	.open = sandbox_open,
	.fork = sandbox_fork,
	.keep = sandbox_keep,
	.hand_over = sandbox_hand_over,
	CELL__SUBPROCESS_KERNEL,
	.confine = sandbox_confine,
	.place = sandbox_place,
	.receipt = "{\"executor\":\"sandbox\",\"level\":\"none\",\"namespaces\":[],\"seccomp\":false,\"landlock\":0,"
		   "\"limits\":{},\"network\":\"none\",\"filesystem\":\"none\",\"skipped\":[\"no kernel was opened\"]}",
	.receipt_of = sandbox_receipt_of,
};
