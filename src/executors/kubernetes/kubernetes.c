/*
 * A kernel here is a session of a server in a pod: remote.c talks to it over the network of the cluster.  The pods are made ahead by a Deployment, the
 * pool, whose template runs `workcell serve`; a session claims one (claim.c), which makes the Deployment start another.
 *
 *     owner.c   the access to the API server, read anew with each claim; a Lease that says that this program lives
 *     claim.c   one pod: find, claim, check, delete         sandbox_claim.c   the same where agent-sandbox makes the pods
 *     watch.c   pods that end by themselves                 pod.c             what a pod must be like
 *
 * Who ends what: we delete a pod when its last kernel has gone, and our lease when the engine ends.  If we are killed, every other program of the same
 * namespace sees that our lease is not renewed and deletes it; the cluster's garbage collector then deletes our pods, which belong to the lease.
 *
 * The server in the pod asks for a token that is the HMAC of the pod's uid under the pool's key.  An init container computes it and the pod's own
 * container never sees the key, so code in one pod cannot enter another; a pod that later gets the same address has another token.
 */
#define _GNU_SOURCE
#include "executors/kubernetes/kubernetes.h"
#include "executors/registry.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "executors/remote/remote.h"

#define LINGER_MS 1000

/* ---- kernels of a pod ---- */

void cell__kubernetes_connect(struct cell__kube_pod *pod)
{
	struct cell__kube_slot *next;

	for (struct cell__kube_slot *slot = pod->slots; slot; slot = next) {
		next = slot->next;
		cell__remote_connect(slot->kernel, pod->url, pod->claimed_token, pod->receipt);
	}
}

void cell__kubernetes_refuse(struct cell__kube_pod *pod)
{
	struct cell__kube_slot *next;

	for (struct cell__kube_slot *slot = pod->slots; slot; slot = next) {
		next = slot->next;
		cell__remote_refuse(slot->kernel, &pod->err);
	}
}

static void handle_linger_over(uv_timer_t *timer)
{
	struct cell__kube_pod *pod = timer->data;

	if (!pod->slots)
		cell__kube_pod_remove(pod);
}

/* A server that misbehaves, for whatever reason, gets no further sessions. */
static void handle_gone(void *arg, const struct cell__exit *how)
{
	struct cell__kube_slot *slot = arg, **at = &slot->pod->slots;
	struct cell__kube_pod *pod = slot->pod;

	while (*at != slot)
		at = &(*at)->next;
	*at = slot->next;
	free(slot);
	if (pod->state == CELL_KUBE_READY && (how->suspect || (how->error.code && how->error.code != CELL_E_EXPIRED)))
		pod->state = CELL_KUBE_FAILED;
	if (pod->slots || pod->state == CELL_KUBE_REMOVING)
		return;
	if (pod->state != CELL_KUBE_READY) {
		cell__kube_pod_remove(pod);
		return;
	}
	uv_update_time(cell__loop_uv(pod->owner->all->host->loop));
	uv_timer_start(&pod->timer, handle_linger_over, LINGER_MS, 0);
}

static struct cell__kube_pod *find_pod(struct cell__kube_owner *owner, const char *key)
{
	struct cell__kube_pod *pod = owner->pods;

	while (pod && (pod->state > CELL_KUBE_READY || strcmp(pod->key, key)))
		pod = pod->next;
	return pod;
}

static int add_slot(struct cell__kube_pod *pod, struct cell__kube_slot *slot, struct cell__kernel **ret_kernel)
{
	slot->pod = pod;
	slot->next = pod->slots;
	pod->slots = slot;
	*ret_kernel = slot->kernel;
	return 0;
}

static int kubernetes_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
			   void *owner_arg, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	const struct cell__kubernetes_own *own = spec->own;
	struct cell__kube_all *all = *cell__executor_state(host, &cell__kubernetes_executor);
	CELL_AUTO_BUF struct cell__buf key = CELL_BUF_INIT;
	struct cell__kube_owner *owner;
	struct cell__kube_pod *pod;
	struct cell__kube_slot *slot;

	if (cell__buf_printf(&key, "%s %s %s", own->workspace ? "workspace" : "session", own->workspace ? own->workspace : spec->session_id,
			     own->config) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	owner = cell__kube_owner_of(all, own->cluster, err);
	if (!owner)
		return -1;
	slot = cell__alloc(1, sizeof(*slot));
	if (!slot)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	pod = find_pod(owner, key.data);
	if (!pod)
		pod = cell__kube_pod_create(owner, key.data, own->config, err);
	if (!pod || cell__remote_wait(host, &cell__kubernetes_executor, own->remote, events, owner_arg, handle_gone, slot, &slot->kernel,
				      err) < 0) {
		free(slot);
		if (pod && !pod->slots && pod->state != CELL_KUBE_READY)
			cell__kube_pod_remove(pod);
		return -1;
	}
	add_slot(pod, slot, ret_kernel);
	if (pod->state == CELL_KUBE_READY)
		cell__remote_connect(slot->kernel, pod->url, pod->claimed_token, pod->receipt);
	else
		cell__kube_owner_turn(owner);
	return 0;
}

static int kubernetes_fork(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer, unsigned flags,
			   const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__kube_slot *slot = cell__alloc(1, sizeof(*slot));
	struct cell__kube_pod *pod;

	(void)session_id; /* the server has its own */
	(void)layer;
	if (!slot)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	pod = ((struct cell__kube_slot *)cell__remote_gone_arg(kernel))->pod;
	if (cell__remote_branch(kernel, flags, events, owner, handle_gone, slot, &slot->kernel, err) < 0) {
		free(slot);
		return -1;
	}
	return add_slot(pod, slot, ret_kernel);
}

/* ---- the vtable ---- */

static int kubernetes_create(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state,
			     struct cell_error *err)
{
	(void)opts;
	return cell__executor_create_state(host, sizeof(struct cell__kube_all), ret_state, err);
}

static void kubernetes_destroy(void *state, void (*done)(void *arg), void *arg)
{
	struct cell__kube_all *all = state;
	struct cell__kube_owner *next;

	all->done = done;
	all->done_arg = arg;
	if (!all->first) {
		free(all);
		done(arg);
		return;
	}
	for (struct cell__kube_owner *owner = all->first; owner; owner = next) {
		next = owner->next;
		cell__kube_owner_close(owner);
	}
}

/* As a pod of a cluster: only the options of a session name another one. */
static void kubernetes_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	(void)host;
	info->available = access("/var/run/secrets/kubernetes.io/serviceaccount/token", R_OK) == 0;
	if (info->available)
		return;
	snprintf(info->reason, sizeof(info->reason), "this is not a pod of a cluster with a service account");
	snprintf(info->advice, sizeof(info->advice), "give --kubeconfig, or --kubernetes-api with its token and certificates");
}

const struct cell__executor cell__kubernetes_executor = {
	.name = "kubernetes",
	.isolation = "pod",
	.takes = CELL_TAKES_KUBERNETES | CELL_TAKES_WORKSPACE | CELL_TAKES_LIMITS,
	.calls_there = true,
	.create = kubernetes_create,
	.destroy = kubernetes_destroy,
	.read_options = cell__kubernetes_read_options,
	.free_options = cell__kubernetes_free_options,
	.probe = kubernetes_probe,
	.check = cell__kubernetes_check,
	.open = kubernetes_open,
	.fork = kubernetes_fork,
	CELL__REMOTE_KERNEL,
	.receipt = "{\"executor\":\"kubernetes\"}",
};
