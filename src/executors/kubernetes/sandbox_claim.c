/*
 * A pod by the custom resources of kubernetes-sigs/agent-sandbox: a SandboxClaim of a SandboxWarmPool gets a Sandbox, whose pod has its name, or the one
 * in an annotation.
 *
 *     create the claim ──▶ read it until it is Ready ──▶ read the Sandbox ──▶ read its pod until it has our label and is ready ──▶ cell__kube_pod_take()
 *
 * The claim belongs to our lease, as claimed pods do: if this program dies, the garbage collector deletes claim, sandbox and pod.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "executors/kubernetes/kubernetes.h"

#define CLAIMS "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/%s/sandboxclaims"
#define SANDBOXES "/apis/agents.x-k8s.io/v1beta1/namespaces/%s/sandboxes"
#define POD_ANNOTATION "agents.x-k8s.io/pod-name"

static void read_claim(struct cell__kube_pod *pod);
static void read_pod(struct cell__kube_pod *pod);

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static bool is_failed(struct cell__kube_pod *pod, long status, const struct cell_error *err)
{
	pod->request = NULL;
	if (status && status < 400)
		return false;
	cell__kube_pod_fail(pod, err);
	return true;
}

static void handle_pod(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_pod *pod = arg;
	const char *owner = text_of(json_object_get(json_object_get(answer, "metadata"), "labels"), CELL_KUBE_OWNER);
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE];
	struct cell_error odd;

	if (is_failed(pod, status, err))
		return;
	if (!cell__kube_identity(answer, name, uid) || strcmp(name, pod->name)) {
		cell_fail(&odd, CELL_E_PROTOCOL, 0, "the API server answered with another pod than the one that was asked for");
		cell__kube_pod_fail(pod, &odd);
	} else if (!owner || strcmp(owner, pod->owner->lease) || !cell__kube_pod_is_ready(answer)) {
		cell__kube_pod_again(pod, read_pod, "the pod of the SandboxClaim did not become ready with our label");
	} else {
		strcpy(pod->uid, uid);
		cell__kube_pod_take(pod, answer);
	}
}

static void read_pod(struct cell__kube_pod *pod)
{
	cell__kube_pod_ask(pod, "GET", NULL, NULL, handle_pod, "/api/v1/namespaces/%s/pods/%s", pod->owner->access.space, pod->name);
}

static void handle_sandbox(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_pod *pod = arg;
	const char *name = text_of(json_object_get(json_object_get(answer, "metadata"), "annotations"), POD_ANNOTATION);
	struct cell_error odd;

	if (is_failed(pod, status, err))
		return;
	if (name && !cell__kube_is_name(name)) {
		cell_fail(&odd, CELL_E_PROTOCOL, 0, "the Sandbox names a pod that has no valid name");
		cell__kube_pod_fail(pod, &odd);
		return;
	}
	if (name)
		strcpy(pod->name, name);
	read_pod(pod);
}

static bool is_ready(const json_t *status)
{
	const json_t *condition;
	size_t i;

	json_array_foreach(json_object_get(status, "conditions"), i, condition) {
		const char *type = text_of(condition, "type"), *value = text_of(condition, "status");

		if (type && value && !strcmp(type, "Ready"))
			return !strcmp(value, "True");
	}
	return false;
}

static void handle_claim(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_pod *pod = arg;
	const json_t *found = json_object_get(answer, "status");
	const char *sandbox = text_of(json_object_get(found, "sandbox"), "name");

	if (is_failed(pod, status, err))
		return;
	if (!is_ready(found) || !cell__kube_is_name(sandbox)) {
		cell__kube_pod_again(pod, read_claim, "the SandboxClaim got no ready sandbox");
		return;
	}
	strcpy(pod->name, sandbox);
	cell__kube_pod_ask(pod, "GET", NULL, NULL, handle_sandbox, SANDBOXES "/%s", pod->owner->access.space, sandbox);
}

static void read_claim(struct cell__kube_pod *pod)
{
	cell__kube_pod_ask(pod, "GET", NULL, NULL, handle_claim, CLAIMS "/%s", pod->owner->access.space, pod->claim);
}

static void handle_made(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_pod *pod = arg;

	(void)answer;
	if (!is_failed(pod, status, err))
		read_claim(pod);
}

void cell__kube_sandbox_claim(struct cell__kube_pod *pod)
{
	struct cell__kube_owner *owner = pod->owner;
	char random[17];
	json_t *root;
	char *body;

	cell__random_hex(random, sizeof(random) - 1);
	snprintf(pod->claim, sizeof(pod->claim), "workcell-%s", random);
	root = json_pack("{s:s,s:s,s:{s:s,s:{s:s},s:[{s:s,s:s,s:s,s:s,s:b,s:b}]},s:{s:{s:s},s:{s:{s:s,s:s}}}}", "apiVersion",
			 "extensions.agents.x-k8s.io/v1beta1", "kind", "SandboxClaim", "metadata", "name", pod->claim, "labels",
			 CELL_KUBE_OWNER, owner->lease, "ownerReferences", "apiVersion", "coordination.k8s.io/v1", "kind", "Lease", "name",
			 owner->lease, "uid", owner->lease_uid, "controller", 1, "blockOwnerDeletion", 0, "spec", "warmPoolRef", "name",
			 text_of(pod->config, "warm_pool"), "additionalPodMetadata", "labels", CELL_KUBE_OWNER, owner->lease,
			 CELL_KUBE_STATE, "claimed");
	body = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	if (!body)
		cell__kube_pod_out_of_memory(pod);
	else
		cell__kube_pod_ask(pod, "POST", NULL, body, handle_made, CLAIMS, owner->access.space);
}
