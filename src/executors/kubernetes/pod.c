/* See pod.h. */
#define _GNU_SOURCE
#include "executors/kubernetes/pod.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "executors/remote/remote.h"

#define TOKEN_PURPOSE "workcell-pod:"

static const char *text_of(const json_t *object, const char *key)
{
	return json_string_value(json_object_get(object, key));
}

static bool is_set(const json_t *object, const char *key)
{
	return json_is_true(json_object_get(object, key));
}

static bool is_text(const json_t *object, const char *key, const char *text)
{
	const char *found = text_of(object, key);

	return found && !strcmp(found, text);
}

/* ---- names ---- */

bool cell__kube_is_name(const char *text)
{
	size_t size = text ? strlen(text) : 0;

	if (!size || size >= CELL_KUBE_NAME_SIZE || strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-.") != size)
		return false;
	return isalnum((unsigned char)text[0]) && isalnum((unsigned char)text[size - 1]) && !strstr(text, "..");
}

bool cell__kube_is_label(const char *text)
{
	size_t size = text ? strlen(text) : 0;

	for (size_t i = 0; i < size; i++)
		if ((unsigned char)text[i] > 127 || (!isalnum((unsigned char)text[i]) && !strchr("-_.", text[i])))
			return false;
	return size && size <= 63 && isalnum((unsigned char)text[0]) && isalnum((unsigned char)text[size - 1]);
}

bool cell__kube_identity(const json_t *object, char ret_name[CELL_KUBE_NAME_SIZE], char ret_uid[CELL_KUBE_UID_SIZE])
{
	const json_t *meta = json_object_get(object, "metadata");
	const char *name = text_of(meta, "name"), *uid = text_of(meta, "uid");
	size_t size = uid ? strlen(uid) : 0;

	if (!cell__kube_is_name(name) || !size || size >= CELL_KUBE_UID_SIZE || strspn(uid, "0123456789abcdefABCDEF-") != size)
		return false;
	strcpy(ret_name, name);
	strcpy(ret_uid, uid);
	return true;
}

/* ---- its state ---- */

bool cell__kube_pod_is_ready(const json_t *pod)
{
	const json_t *status = json_object_get(pod, "status"), *condition;
	size_t i;

	if (json_object_get(json_object_get(pod, "metadata"), "deletionTimestamp") || !is_text(status, "phase", "Running"))
		return false;
	json_array_foreach(json_object_get(status, "conditions"), i, condition) {
		if (is_text(condition, "type", "Ready"))
			return is_text(condition, "status", "True");
	}
	return false;
}

bool cell__kube_pod_is_idle(const json_t *pod)
{
	struct cell_error why;

	return cell__kube_pod_is_ready(pod) && !cell__kube_pod_has_ended(pod, &why) &&
	       is_text(json_object_get(json_object_get(pod, "metadata"), "labels"), CELL_KUBE_STATE, "idle");
}

/* A word of the API server for a message. */
static const char *word_of(const json_t *object, const char *key, const char *otherwise)
{
	const char *word = text_of(object, key);

	for (const char *at = word; at && *at; at++)
		if (!isalnum((unsigned char)*at) && *at != '-')
			return otherwise;
	return word && *word ? word : otherwise;
}

bool cell__kube_pod_has_ended(const json_t *pod, struct cell_error *ret_why)
{
	const json_t *status = json_object_get(pod, "status"), *container;
	size_t i;

	json_array_foreach(json_object_get(status, "containerStatuses"), i, container) {
		const json_t *ended = json_object_get(json_object_get(container, "state"), "terminated");

		/* The kubelet starts it again, with nothing of what it had. */
		if (!ended && json_integer_value(json_object_get(container, "restartCount")) > 0)
			ended = json_object_get(json_object_get(container, "lastState"), "terminated");
		if (!ended)
			continue;
		cell_fail(ret_why, CELL_E_KERNEL, 0, "the server in the pod ended with status %d (%.40s)",
			  (int)json_integer_value(json_object_get(ended, "exitCode")), word_of(ended, "reason", "no reason given"));
		return true;
	}
	if (!is_text(status, "phase", "Failed") && !is_text(status, "phase", "Succeeded"))
		return false;
	cell_fail(ret_why, CELL_E_KERNEL, 0, "the pod ended (%.40s)", word_of(status, "reason", "no reason given"));
	return true;
}

/* ---- what it has to be like ---- */

int64_t cell__kube_quantity(const char *text)
{
	static const struct {
		const char *suffix;
		double times;
	} units[] = {
		{ "", 1 },     { "m", 0.001 }, { "k", 1e3 },      { "M", 1e6 },         { "G", 1e9 },
		{ "T", 1e12 }, { "Ki", 1024 }, { "Mi", 1048576 }, { "Gi", 1073741824 }, { "Ti", 1099511627776.0 },
	};
	size_t digits = text ? strspn(text, "0123456789.") : 0;
	CELL_AUTO_FREE char *number = digits && digits <= 20 ? cell__strndup(text, digits) : NULL;
	char *end;
	double value;

	if (!number || strchr(number, '.') != strrchr(number, '.'))
		return -1;
	value = strtod(number, &end);
	for (size_t i = 0; i < sizeof(units) / sizeof(*units); i++)
		if (end != number && !*end && !strcmp(text + digits, units[i].suffix) && value * units[i].times * 1000 < 9e18)
			return (int64_t)(value * units[i].times * 1000);
	return -1;
}

static int lacks(struct cell_error *err, const json_t *pod, const char *what)
{
	const char *name = text_of(json_object_get(pod, "metadata"), "name");

	return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the pod %.80s %s: the pool's template has to say otherwise (docs/kubernetes.md)",
			 cell__kube_is_name(name) ? name : "", what);
}

/* Of the container, or else of the pod. */
static const json_t *context_of(const json_t *spec, const json_t *container, const char *key)
{
	const json_t *own = json_object_get(json_object_get(container, "securityContext"), key);

	return own && !json_is_null(own) ? own : json_object_get(json_object_get(spec, "securityContext"), key);
}

static bool drops_all(const json_t *context)
{
	const json_t *capabilities = json_object_get(context, "capabilities"), *word;
	size_t i;

	if (json_array_size(json_object_get(capabilities, "add")))
		return false;
	json_array_foreach(json_object_get(capabilities, "drop"), i, word) {
		if (json_string_value(word) && !strcmp(json_string_value(word), "ALL"))
			return true;
	}
	return false;
}

/* The volume holds something that the code of a session must not read. */
static bool is_secret(const json_t *spec, const char *name)
{
	const json_t *volume, *source;
	size_t i, k;

	json_array_foreach(json_object_get(spec, "volumes"), i, volume) {
		if (!is_text(volume, "name", name))
			continue;
		json_array_foreach(json_object_get(json_object_get(volume, "projected"), "sources"), k, source) {
			if (json_object_get(source, "serviceAccountToken") || json_object_get(source, "secret"))
				return true;
		}
		return json_object_get(volume, "secret") || json_object_get(volume, "hostPath");
	}
	return true; /* a name that no volume has */
}

static int check_container(const json_t *pod, const json_t *spec, const json_t *container, struct cell_error *err)
{
	const json_t *context = json_object_get(container, "securityContext"), *mount;
	const char *profile = text_of(context_of(spec, container, "seccompProfile"), "type");
	size_t i;

	if (is_set(context, "privileged") || !json_is_false(json_object_get(context, "allowPrivilegeEscalation")))
		return lacks(err, pod, "allows its code more privileges");
	if (!drops_all(context))
		return lacks(err, pod, "does not drop all capabilities");
	if (!json_is_true(context_of(spec, container, "runAsNonRoot")))
		return lacks(err, pod, "may run as root (runAsNonRoot)");
	if (!is_set(context, "readOnlyRootFilesystem"))
		return lacks(err, pod, "has a root file system that can be written to");
	if (!profile || (strcmp(profile, "RuntimeDefault") && strcmp(profile, "Localhost")))
		return lacks(err, pod, "has no seccomp profile");
	json_array_foreach(json_object_get(container, "volumeMounts"), i, mount) {
		if (is_secret(spec, text_of(mount, "name") ? text_of(mount, "name") : ""))
			return lacks(err, pod, "shows its code a Secret, a token of the API server or a folder of the node");
	}
	if (json_array_size(json_object_get(container, "volumeDevices")))
		return lacks(err, pod, "shows its code a device");
	return 0;
}

/* At most what was asked for; 0: nothing was. */
static int check_limit(const json_t *pod, const char *resource, int64_t asked, struct cell_error *err)
{
	const json_t *container;
	int64_t sum = 0;
	size_t i;

	if (asked <= 0)
		return 0;
	json_array_foreach(json_object_get(json_object_get(pod, "spec"), "containers"), i, container) {
		int64_t one = cell__kube_quantity(text_of(json_object_get(json_object_get(container, "resources"), "limits"), resource));

		if (one <= 0 || one > asked - sum)
			return cell_fail(err, CELL_E_UNAVAILABLE, 0,
					 "the pods of the pool are not limited to the %s that was asked for (resources.limits)", resource);
		sum += one;
	}
	return 0;
}

int cell__kube_pod_check(const json_t *config, const json_t *pod, struct cell_error *err)
{
	static const char *const shared[] = { "hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace" };
	const json_t *spec = json_object_get(pod, "spec"), *containers = json_object_get(spec, "containers"), *container;
	const char *runtime = text_of(config, "runtime_class");
	int64_t memory = json_integer_value(json_object_get(config, "memory")), cpu = json_integer_value(json_object_get(config, "cpu"));
	size_t i;

	for (i = 0; i < sizeof(shared) / sizeof(*shared); i++)
		if (is_set(spec, shared[i]))
			return lacks(err, pod, "shares namespaces with the node or between its containers");
	if (!json_is_false(json_object_get(spec, "automountServiceAccountToken")))
		return lacks(err, pod, "may have a token of the API server (automountServiceAccountToken)");
	if (!json_array_size(containers))
		return lacks(err, pod, "has no container");
	json_array_foreach(containers, i, container) {
		if (check_container(pod, spec, container, err) < 0)
			return -1;
	}
	if (json_array_size(json_object_get(spec, "ephemeralContainers")))
		return lacks(err, pod, "has a container for debugging");
	if (runtime && !is_text(spec, "runtimeClassName", runtime))
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "the pods of the pool do not have the runtime class %.60s", runtime);
	/* Memory in bytes, CPU in microseconds per 100 ms; quantities in thousandths. */
	return check_limit(pod, "memory", memory > INT64_MAX / 1000 ? 0 : memory * 1000, err) < 0 ? -1
												  : check_limit(pod, "cpu", cpu / 100, err);
}

/* ---- its address ---- */

/*
 * False for addresses of this machine, link-local ones (services with credentials listen on 169.254.169.254) and multicast: an API server that
 * lies could have the token and the code sent there.
 */
static bool is_pod_address(const char *text, bool is_local, bool *ret_six)
{
	struct in_addr four;
	struct in6_addr six;

	*ret_six = false;
	if (inet_pton(AF_INET, text, &four) == 1) {
		uint32_t host = ntohl(four.s_addr), first = host >> 24;

		return first && first < 224 && (first != 127 || is_local) && host >> 16 != 0xa9fe;
	}
	*ret_six = true;
	if (inet_pton(AF_INET6, text, &six) != 1 || IN6_IS_ADDR_UNSPECIFIED(&six) || IN6_IS_ADDR_MULTICAST(&six) ||
	    IN6_IS_ADDR_LINKLOCAL(&six) || IN6_IS_ADDR_V4MAPPED(&six) || IN6_IS_ADDR_V4COMPAT(&six) ||
	    (IN6_IS_ADDR_LOOPBACK(&six) && !is_local))
		return false;
	return true;
}

int cell__kube_pod_url(const json_t *config, const json_t *pod, bool is_local, char **ret_url, struct cell_error *err)
{
	const char *ip = text_of(json_object_get(pod, "status"), "podIP");
	int port = (int)json_integer_value(json_object_get(config, "port"));
	bool six = false;
	char *url = NULL;

	if (!ip || !is_pod_address(ip, is_local, &six))
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the API server names a pod without an address that a pod can have");
	if (asprintf(&url, six ? "http://[%s]:%d" : "http://%s:%d", ip, port) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	*ret_url = url;
	return 0;
}

int cell__kube_pod_token(const char *pool_key, const char *uid, char ret_token[CELL_KUBE_TOKEN_SIZE], struct cell_error *err)
{
	unsigned char text[sizeof(TOKEN_PURPOSE) + CELL_KUBE_UID_SIZE], mac[EVP_MAX_MD_SIZE];
	unsigned size = 0;
	int count = snprintf((char *)text, sizeof(text), TOKEN_PURPOSE "%s", uid);

	if (count < 0 || (size_t)count >= sizeof(text) ||
	    !HMAC(EVP_sha256(), pool_key, (int)strlen(pool_key), text, (size_t)count, mac, &size) || 2 * size + 1 != CELL_KUBE_TOKEN_SIZE)
		return cell_fail(err, CELL_E_NOMEM, 0, "cannot compute the token of a pod");
	for (unsigned i = 0; i < size; i++)
		snprintf(ret_token + (size_t)2 * i, 3, "%02x", mac[i]);
	return 0;
}

/* ---- claims ---- */

/*
 * The resource version makes the API server refuse it (409) if anybody has changed the pod since: of two programs one gets it.  It replaces the
 * owner as well: the ReplicaSet makes a new idle pod, and the garbage collector deletes this one when the lease is gone.
 */
char *cell__kube_claim_patch(const json_t *pod, const char *lease, const char *lease_uid)
{
	const json_t *meta = json_object_get(pod, "metadata");
	const char *version = text_of(meta, "resourceVersion"), *uid = text_of(meta, "uid");
	json_t *root;
	char *text;

	if (!version || !*version || !uid)
		return NULL;
	root = json_pack("{s:{s:s,s:s,s:{s:s,s:s},s:[{s:s,s:s,s:s,s:s,s:b,s:b}]}}", "metadata", "resourceVersion", version, "uid", uid,
			 "labels", CELL_KUBE_STATE, "claimed", CELL_KUBE_OWNER, lease, "ownerReferences", "apiVersion",
			 "coordination.k8s.io/v1", "kind", "Lease", "name", lease, "uid", lease_uid, "controller", 1, "blockOwnerDeletion",
			 0);
	text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return text;
}

char *cell__kube_receipt(const json_t *config, const json_t *pod)
{
	const json_t *meta = json_object_get(pod, "metadata"), *spec = json_object_get(pod, "spec");
	const json_t *first = json_array_get(json_object_get(spec, "containers"), 0);
	const json_t *limits = json_object_get(json_object_get(first, "resources"), "limits");
	const char *runtime = text_of(spec, "runtimeClassName"), *armor = text_of(context_of(spec, first, "appArmorProfile"), "type");
	json_t *root = json_pack("{s:s,s:s,s:s?,s:s?,s:s?,s:s?,s:s?,s:s?,s:s?,s:s?,s:b,s:b,s:s?,s:s?,s:s}", "executor", "kubernetes",
				 "level", "pod", "pod", text_of(meta, "name"), "namespace", text_of(meta, "namespace"), "uid",
				 text_of(meta, "uid"), "node", text_of(spec, "nodeName"), "image", text_of(first, "image"), "runtime_class",
				 runtime, "seccomp_profile", text_of(context_of(spec, first, "seccompProfile"), "type"), "apparmor_profile",
				 armor, "user_namespace", json_is_false(json_object_get(spec, "hostUsers")), "own",
				 !is_set(config, "shared"), "memory_limit", text_of(limits, "memory"), "cpu_limit", text_of(limits, "cpu"),
				 "network", "the cluster's: a NetworkPolicy is enforced by its network, not seen here");

	return cell__remote_receipt(root);
}
