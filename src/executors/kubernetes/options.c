/* A session's options for its pod: the cluster's part, the pod's, and the part of the server inside. */
#include <stdio.h>
#include <string.h>

#include "base/sized.h"
#include "executors/kubernetes/kubernetes.h"
#include "executors/remote/remote.h"

#define DEFAULT_POOL "workcell"
#define DEFAULT_PORT 8080
#define MAX_WORKSPACE 128u

void cell__kubernetes_free_options(void *state)
{
	struct cell__kubernetes_own *own = state;

	if (own->remote)
		cell__remote_free_options(own->remote);
	free(own->config);
	free(own->cluster);
	free(own->workspace);
	free(own);
}

int cell__kubernetes_check(const struct cell_session_options *opts, struct cell_error *err)
{
	if (opts->pids_limit)
		return cell_fail(
			err, CELL_E_UNSUPPORTED, 0,
			"a pod's number of processes is limited by its node (podPidsLimit of the kubelet): leave out the limit of processes");
	if (opts->fork_memory || opts->fork_time_ms)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "the limits of children are those of the server in the pod: leave out %s",
				 opts->fork_memory ? "fork_memory" : "fork_time");
	return 0;
}

static int check_path(const char *what, const char *path, struct cell_error *err)
{
	if (path && *path != '/')
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be an absolute path, not '%.100s'", what, path);
	return 0;
}

static int check_names(const struct cell_kubernetes_options *opts, struct cell_error *err)
{
	const struct {
		const char *what, *value;
	} names[] = {
		{ "namespace", opts->in_namespace },
		{ "warm pool", opts->warm_pool },
		{ "runtime class", opts->runtime_class },
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (names[i].value && !cell__kube_is_name(names[i].value))
			return cell_fail(err, CELL_E_INVALID, 0, "the %s is '%.80s', expected lower-case letters, digits, '-' and '.'",
					 names[i].what, names[i].value);
	if (opts->pool && !cell__kube_is_label(opts->pool))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the pool is '%.80s', expected the value of a label: at most 63 letters, digits, '-', '_', '.'",
				 opts->pool);
	return 0;
}

static int check_options(const struct cell_kubernetes_options *opts, struct cell_error *err)
{
	if (check_names(opts, err) < 0 || check_path("the kubeconfig", opts->kubeconfig, err) < 0 ||
	    check_path("the file of the API server's token", opts->token_file, err) < 0 ||
	    check_path("the file of the API server's certificates", opts->ca_file, err) < 0 ||
	    check_path("the file of the pool's key", opts->pool_key_file, err) < 0)
		return -1;
	if (!opts->pool_key_file)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the executor \"kubernetes\" needs the file of the pool's key (docs/kubernetes.md)");
	if (opts->pool && opts->warm_pool)
		return cell_fail(err, CELL_E_INVALID, 0, "give a pool or a warm pool of agent-sandbox, not both");
	if (opts->kubeconfig && (opts->api || opts->token_file || opts->ca_file))
		return cell_fail(err, CELL_E_INVALID, 0, "give a kubeconfig, or the API server with its token and certificates, not both");
	if (opts->context && !opts->kubeconfig)
		return cell_fail(err, CELL_E_INVALID, 0, "a context is part of a kubeconfig, which is missing");
	if (opts->port < 0 || opts->port > 65535)
		return cell_fail(err, CELL_E_INVALID, 0, "port %d is out of range (0-65535)", opts->port);
	if (opts->startup_timeout_ms <= 0)
		return cell_fail(err, CELL_E_INVALID, 0, "startup_timeout_ms is %lld, expected more than 0",
				 (long long)opts->startup_timeout_ms);
	return 0;
}

static char *text_of_json(json_t *root)
{
	char *text = root ? json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS) : NULL;

	json_decref(root);
	return text;
}

static int describe(const struct cell_kubernetes_options *kube, const struct cell_session_options *opts, struct cell__kubernetes_own *own,
		    struct cell_error *err)
{
	bool shared = opts->remote_workspace && !kube->session_isolation;

	own->cluster = text_of_json(json_pack("{s:s*,s:s*,s:s*,s:s*,s:s*,s:s*,s:s}", "api", kube->api, "token_file", kube->token_file,
					      "ca_file", kube->ca_file, "kubeconfig", kube->kubeconfig, "context", kube->context,
					      "namespace", kube->in_namespace, "pool_key_file", kube->pool_key_file));
	own->config = text_of_json(json_pack("{s:s,s:s,s:s*,s:s*,s:i,s:I,s:I,s:I,s:b}", "cluster", own->cluster ? own->cluster : "", "pool",
					     kube->pool ? kube->pool : DEFAULT_POOL, "warm_pool", kube->warm_pool, "runtime_class",
					     kube->runtime_class, "port", kube->port ? kube->port : DEFAULT_PORT, "startup_ms",
					     (json_int_t)kube->startup_timeout_ms, "memory",
					     (json_int_t)(opts->memory_limit > 0 ? opts->memory_limit : 0), "cpu",
					     (json_int_t)(opts->cpu_quota > 0 ? opts->cpu_quota : 0), "shared", shared));
	if (!own->cluster || !own->config)
		return cell_fail(err, CELL_E_INVALID, 0, "the options of the cluster are not UTF-8, or out of memory");
	if (shared && strlen(opts->remote_workspace) > MAX_WORKSPACE)
		return cell_fail(err, CELL_E_INVALID, 0, "a workspace has at most %u characters", MAX_WORKSPACE);
	if (shared && !(own->workspace = cell__strdup(opts->remote_workspace)))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return 0;
}

int cell__kubernetes_read_options(const struct cell_session_options *opts, void **ret_own, struct cell_error *err)
{
	struct cell_kubernetes_options kube = CELL_KUBERNETES_OPTIONS_INIT;
	struct cell__kubernetes_own *own;
	void *remote = NULL;

	if (opts->kubernetes && cell__sized_read(&kube, sizeof(kube), opts->kubernetes, "cell_kubernetes_options", err) < 0)
		return -1;
	if (check_options(&kube, err) < 0)
		return -1;
	own = cell__alloc(1, sizeof(*own));
	if (!own)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (describe(&kube, opts, own, err) < 0 || cell__remote_read_options(opts, &remote, err) < 0) {
		cell__kubernetes_free_options(own);
		return -1;
	}
	own->remote = remote;
	*ret_own = own;
	return 0;
}
