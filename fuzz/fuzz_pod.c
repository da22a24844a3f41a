/*
 * executors/kubernetes/pod: options of a pool, and a pod as an API server that may lie describes it, in a line each.  Nothing crashes whatever the
 * shape; a name or a uid that is accepted fits into a path; a pod that is accepted has what a pod of a pool must have, and its address is none of ours.
 */
#include <jansson.h>

#include "executors/kubernetes/pod.h"
#include "fuzz.h"

static void check_words(const struct cell_error *err)
{
	for (const char *at = err->msg; *at; at++)
		MUST((unsigned char)*at >= 0x20 && *at != 0x7f);
}

static void check_accepted(const json_t *pod)
{
	const json_t *spec = json_object_get(pod, "spec"), *containers = json_object_get(spec, "containers"), *container;
	size_t i;

	MUST(json_array_size(containers) > 0 && !json_is_true(json_object_get(spec, "hostNetwork")));
	MUST(json_is_false(json_object_get(spec, "automountServiceAccountToken")));
	json_array_foreach(containers, i, container) {
		const json_t *context = json_object_get(container, "securityContext");

		MUST(!json_is_true(json_object_get(context, "privileged")));
		MUST(json_is_false(json_object_get(context, "allowPrivilegeEscalation")));
		MUST(json_is_true(json_object_get(context, "readOnlyRootFilesystem")));
		MUST(json_array_size(json_object_get(json_object_get(context, "capabilities"), "add")) == 0);
	}
}

static void check_texts(const json_t *config, const json_t *pod)
{
	char *receipt = cell__kube_receipt(config, pod), *patch = cell__kube_claim_patch(pod, "lease", "uid"), *url = NULL, *whole;
	struct cell_error err = { 0 };
	json_t *read;

	MUST(receipt);
	whole = malloc(strlen(receipt) + 3);
	if (!whole)
		abort();
	sprintf(whole, "{%s}", receipt);
	read = json_loads(whole, 0, NULL);
	MUST(json_is_object(read) && json_is_string(json_object_get(read, "executor")));
	json_decref(read);
	if (patch) {
		read = json_loads(patch, 0, NULL);
		MUST(json_equal(json_object_get(json_object_get(read, "metadata"), "resourceVersion"),
				json_object_get(json_object_get(pod, "metadata"), "resourceVersion")));
		json_decref(read);
	}
	if (cell__kube_pod_url(config, pod, false, &url, &err) == 0)
		MUST(!strncmp(url, "http://", 7) && strncmp(url + 7, "127.", 4) && strncmp(url + 7, "169.254.", 8) &&
		     !strchr(url + 7, '/') && strncmp(url + 7, "[::1]", 5));
	else
		MUST(err.code == CELL_E_PROTOCOL);
	free(whole);
	free(receipt);
	free(patch);
	free(url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data, *line = memchr(text, '\n', size);
	size_t first = line ? (size_t)(line - text) : 0;
	json_t *config = json_loadb(text, first, 0, NULL), *pod = json_loadb(text + first, size - first, JSON_DECODE_ANY, NULL);
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE];
	struct cell_error err = { 0 };

	if (cell__kube_identity(pod, name, uid))
		MUST(cell__kube_is_name(name) && *uid && !strpbrk(name, "/?#%\r\n ") && !strpbrk(uid, "/?#%\r\n "));
	if (cell__kube_pod_is_idle(pod))
		MUST(cell__kube_pod_is_ready(pod) && !cell__kube_pod_has_ended(pod, &err));
	if (cell__kube_pod_has_ended(pod, &err)) {
		MUST(err.code == CELL_E_KERNEL);
		check_words(&err);
	}
	if (cell__kube_pod_check(config, pod, &err) == 0)
		check_accepted(pod);
	else
		check_words(&err);
	if (json_is_object(pod))
		check_texts(config, pod);
	char *quantity = malloc(size + 1);
	if (!quantity)
		abort();
	if (size)
		memcpy(quantity, data, size);
	quantity[size] = '\0';
	MUST(cell__kube_quantity(quantity) >= -1);
	MUST(!cell__kube_is_label(quantity) || strlen(quantity) <= 63);
	free(quantity);
	json_decref(config);
	json_decref(pod);
	return 0;
}
