/* Which flags are whose, and limits that an executor keeps or the command refuses. */
#include "cli.h"

#include <string.h>

#include "base/limits.h"

/* Containers are shared by all sessions of an executor, pods by those of a workspace. */
static int check_isolation(const char *isolation, const char *executor, struct cell_error *err)
{
	const char *other = strcmp(executor, "kubernetes") ? "workspace" : "executor";

	if (isolation && !strcmp(isolation, other))
		return cell_fail(err, CELL_E_INVALID, 0, "--isolation %s is not possible with --executor %s: give %s or session", isolation,
				 executor, strcmp(executor, "kubernetes") ? "executor" : "workspace");
	return 0;
}

/* A flag that an executor would ignore is refused: it may be a limit. */
int cell__cli_check_executor(const struct cell_cli_session_flags *flags, const char *executor, struct cell_error *err)
{
	const struct cell_cli_container_flags *container = &flags->container;
	const struct cell_cli_limit_flags *limits = &flags->limits;
	const struct cell_cli_kubernetes_flags *kubernetes = &flags->kubernetes;
	bool is_layer = flags->workspace_mode && !strcmp(flags->workspace_mode, "cow");
	const struct {
		const char *flag;
		bool given;
		const char *takers[4];
	} rows[] = {
		{ "--kernel", flags->kernel, { "jupyter" } },
		{ "--network", limits->network || limits->network_disabled, { "sandbox", "container", "deno" } },
		{ "--memory", limits->memory != CELL_CLI_NOT_GIVEN, { "sandbox", "container", "kubernetes" } },
		{ "--cpus", limits->cpus != CELL_CLI_NOT_GIVEN, { "sandbox", "container", "kubernetes" } },
		{ "--pids", limits->pids != CELL_CLI_NOT_GIVEN, { "sandbox", "container" } },
		{ "--disk", limits->disk != CELL_CLI_NOT_GIVEN, { "sandbox" } },
		{ "--sandbox-policy", flags->sandbox_policy, { "sandbox" } },
		{ "--workspace-mode", flags->workspace_mode, { "sandbox", is_layer ? "subprocess" : NULL, is_layer ? "container" : NULL } },
		{ "--isolation", container->isolation, { "container", "kubernetes" } },
		{ "--container-user", container->user, { "container" } },
		{ "--container-host", container->host, { "container" } },
		{ "--container-context", container->context, { "container" } },
		{ "--container-base", container->base, { "container" } },
		{ "--image", container->image, { "container" } },
		{ "--startup-timeout", container->startup_ms != CELL_CLI_NOT_GIVEN, { "container", "kubernetes" } },
		{ "--auth-disabled", container->auth_disabled, { "container" } },
		{ "--zygote-per", flags->zygote_per, { "subprocess", "sandbox" } },
		{ "--zygote-forks", flags->zygote_forks, { "subprocess", "sandbox" } },
		{ "--auth-token-file", flags->remote_token_file, { "remote", "container" } },
		{ "--remote-url", flags->remote_url, { "remote" } },
		{ "--remote-ca", flags->remote_ca, { "remote" } },
		{ "--remote-reopen", flags->remote_reopen, { "remote" } },
		{ "--remote-repeat", flags->remote_repeat, { "remote" } },
		{ "--pool-key-file", kubernetes->pool_key_file, { "kubernetes" } },
		{ "--pod-pool", kubernetes->pool, { "kubernetes" } },
		{ "--sandbox-warm-pool", kubernetes->warm_pool, { "kubernetes" } },
		{ "--pod-namespace", kubernetes->in_namespace, { "kubernetes" } },
		{ "--pod-port", kubernetes->port, { "kubernetes" } },
		{ "--runtime-class", kubernetes->runtime_class, { "kubernetes" } },
		{ "--kubeconfig", kubernetes->kubeconfig, { "kubernetes" } },
		{ "--kube-context", kubernetes->context, { "kubernetes" } },
		{ "--kubernetes-api", kubernetes->api, { "kubernetes" } },
		{ "--kubernetes-token-file", kubernetes->token_file, { "kubernetes" } },
		{ "--kubernetes-ca", kubernetes->ca_file, { "kubernetes" } },
	};

	int memory;

	if (!executor)
		executor = "subprocess";
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const char *const *takers = rows[i].takers;
		size_t k = 0;

		while (takers[k] && strcmp(takers[k], executor))
			k++;
		if (rows[i].given && !takers[k])
			return cell_fail(err, CELL_E_INVALID, 0, "%s requires --executor %s%s%s%s%s; %s would ignore it", rows[i].flag,
					 takers[0], takers[1] ? " or " : "", takers[1] ? takers[1] : "",
					 takers[1] && takers[2] ? " or " : "", takers[1] && takers[2] ? takers[2] : "", executor);
	}
	if (check_isolation(container->isolation, executor, err) < 0)
		return -1;
	memory = strcmp(executor, "container") ? CELL_LIMIT_MIN_MEMORY : CELL_LIMIT_MIN_CONTAINER_MEMORY;
	if (limits->memory > 0 && limits->memory < memory)
		return cell_fail(err, CELL_E_INVALID, 0, "--memory must be at least %dM, or 0 for no limit", memory >> 20);
	if (limits->disk > 0 && limits->disk < CELL_LIMIT_MIN_DISK)
		return cell_fail(err, CELL_E_INVALID, 0, "--disk must be at least %dM, or 0 for no limit", CELL_LIMIT_MIN_DISK >> 20);
	if (!strcmp(executor, "remote") && !flags->remote_url)
		return cell_fail(err, CELL_E_INVALID, 0, "--executor remote needs --remote-url: http://, https:// or unix:PATH");
	if (!strcmp(executor, "kubernetes") && !kubernetes->pool_key_file)
		return cell_fail(err, CELL_E_INVALID, 0, "--executor kubernetes needs --pool-key-file (docs/kubernetes.md)");
	if (!strcmp(executor, "kubernetes") && (cell__cli_has_storage(&flags->space) || flags->space.tools || flags->space.no_runtime_deps))
		return cell_fail(
			err, CELL_E_INVALID, 0,
			"with --executor kubernetes, storage, tools and packages are those of the servers in the pods: give them in the pool's template");
	if (flags->space.no_runtime_deps && !strcmp(executor, "remote"))
		return cell_fail(err, CELL_E_INVALID, 0, "with --executor remote, give --no-runtime-deps to `workcell serve` instead");
	return 0;
}

/* The flag's number as the library's option, where 0 means unset. */
static int64_t limit_of(int64_t given)
{
	return given == CELL_CLI_NOT_GIVEN ? 0 : given ? given : -1;
}

void cell__cli_fill_limits(const struct cell_cli_limit_flags *flags, struct cell_session_options *options)
{
	options->memory_limit = limit_of(flags->memory);
	options->cpu_quota = limit_of(flags->cpus);
	options->pids_limit = limit_of(flags->pids);
	options->disk_limit = limit_of(flags->disk);
	options->network = flags->network;
	options->network_disabled = flags->network_disabled;
}

/* ---- zygotes ---- */

enum cell_zygote_per cell__cli_zygote_per(const struct cell_cli_session_flags *flags)
{
	const char *word = flags->zygote_per ? flags->zygote_per : "engine";

	return !strcmp(word, "session")     ? CELL_ZYGOTE_PER_SESSION
	       : !strcmp(word, "workspace") ? CELL_ZYGOTE_PER_WORKSPACE
					    : CELL_ZYGOTE_PER_ENGINE;
}
