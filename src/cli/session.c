/* The session that the common flags describe. */
#define _GNU_SOURCE 1
#include "cli.h"
#include "progress.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files that the host trusts ------------------------------------------------- */

static int add_path(char ***list, size_t *count, const char *path, struct cell_error *err)
{
	char **more = reallocarray(*list, *count + 2, sizeof(*more));

	if (!more)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	*list = more;
	more[*count] = strdup(path);
	if (!more[*count])
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	more[++*count] = NULL;
	return 0;
}

int cell__cli_trusted(const char *const *files, char ***ret_list, struct cell_error *err)
{
	const char *home = getenv("HOME"), *path = getenv("PATH");
	char *copy = strdup(path ? path : ""), *rest = copy, *folder;
	size_t count = 0;
	int status = copy ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");

	/* An empty entry of PATH is the current directory. */
	while (!status && path && (folder = strsep(&rest, ":")))
		status = add_path(ret_list, &count, *folder ? folder : ".", err);
	if (!status && home && *home == '/')
		status = add_path(ret_list, &count, home, err);
	for (; !status && *files; files++)
		status = **files ? add_path(ret_list, &count, *files, err) : 0;
	free(copy);
	return status;
}

void cell__cli_trusted_free(char **list)
{
	for (char **at = list; at && *at; at++)
		free(*at);
	free(list);
}

/* ---- its options ----------------------------------------------------------- */

const struct cell_session_options cell__cli_session_defaults = CELL_SESSION_OPTIONS_INIT;

static int env_strings(const struct cell_cli_list *list, const char ***ret_env, struct cell_error *err)
{
	const char **env = cell__cli_list_values(list);

	if (!env)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the environment");
	for (size_t i = 0; i < list->count; i++) {
		if (env[i][0] == '=' || !strchr(env[i], '=')) {
			cell_fail(err, CELL_E_INVALID, 0, "--env must be K=V, not '%s'", env[i]);
			free(env);
			return -1;
		}
	}
	*ret_env = env;
	return 0;
}

void cell__cli_options_finish(struct cell_cli_session_options *options)
{
	free(options->env);
	free(options->python);
	free(options->cwd);
	free(options->token);
	free(options->context);
	free(options->tools);
	free(options->storage);
	free(options->wheels);
	for (size_t i = 0; i < sizeof(options->kube_files) / sizeof(*options->kube_files); i++)
		free(options->kube_files[i]);
	cell__cli_trusted_free(options->trusted);
	*options = (struct cell_cli_session_options){ 0 };
}

static bool is_executor(const struct cell_cli_session_flags *flags, const char *name)
{
	return flags->executor && !strcmp(flags->executor, name);
}

/* Whether storage and tools are those of a server. */
static bool has_server(const struct cell_cli_session_flags *flags)
{
	return is_executor(flags, "remote") || is_executor(flags, "container") || is_executor(flags, "kubernetes");
}

static int fill_folders(const struct cell_cli_space_flags *space, struct cell_cli_session_options *all, struct cell_error *err)
{
	const char *storage = space->redis ? space->redis : space->storage ? space->storage : space->base;
	char *base = NULL, *inner = NULL;

	if (storage) {
		all->storage = cell__cli_storage(storage, space->prefix, space->redis != NULL, err);
		if (!all->storage)
			return -1;
	}
	if (space->tools || space->base) {
		base = cell__cli_absolute(space->tools ? space->tools : space->base, err);
		if (!base)
			return -1;
	}
	if (space->tools) {
		all->tools = base;
	} else if (base) {
		if (asprintf(&inner, "%s/tools", base) > 0 && access(inner, F_OK) == 0)
			all->tools = inner;
		else
			free(inner);
		free(base);
	}
	if (space->wheel_dir && !(all->wheels = cell__cli_absolute(space->wheel_dir, err)))
		return -1;
	all->container.wheel_dir = all->wheels;
	all->container.index_url = space->index_url ? space->index_url : getenv("PIP_INDEX_URL");
	all->container.sync_deps = space->sync_deps;
	if (space->install_timeout_ms > 0)
		all->container.install_timeout_ms = space->install_timeout_ms;
	all->container.storage = all->storage;
	all->container.tools = all->tools;
	return 0;
}

/* The source tree that this program stands in the build folder of; NULL: it is installed. */
static char *find_source_tree(void)
{
	CELL_AUTO_FREE char *program = realpath("/proc/self/exe", NULL), *file = NULL;

	for (int i = 0; program && i < 2; i++)
		if (strrchr(program, '/'))
			*strrchr(program, '/') = '\0';
	if (!program || asprintf(&file, "%s/packaging/Dockerfile", program) < 0 || access(file, R_OK))
		return NULL;
	return cell__take_ptr(program);
}

int cell__cli_fill_container(const struct cell_cli_container_flags *flags, struct cell_container_options *options, char **ret_context,
			     struct cell_error *err)
{
	*options = (struct cell_container_options)CELL_CONTAINER_OPTIONS_INIT;
	if (!flags->context)
		*ret_context = find_source_tree();
	else if (!(*ret_context = cell__cli_absolute(flags->context, err)))
		return -1;
	options->engine = flags->host ? flags->host : getenv("DOCKER_HOST");
	options->image = flags->image;
	options->context = *ret_context;
	options->base_image = flags->base;
	options->user = flags->user;
	options->session_isolation = flags->isolation && !strcmp(flags->isolation, "session");
	options->auth_disabled = flags->auth_disabled;
	if (flags->startup_ms != CELL_CLI_NOT_GIVEN)
		options->startup_timeout_ms = flags->startup_ms;
	return 0;
}

static int fill_container(const struct cell_cli_session_flags *flags, struct cell_cli_session_options *all, struct cell_error *err)
{
	if (cell__cli_fill_container(&flags->container, &all->container, &all->context, err) < 0 ||
	    fill_folders(&flags->space, all, err) < 0)
		return -1;
	all->container.auth_token = all->token;
	all->container.no_runtime_deps = flags->space.no_runtime_deps;
	return 0;
}

/* A path as the library wants it; NULL stays NULL. */
static int fill_path(const char *given, char **ret_path, const char **ret_option, struct cell_error *err)
{
	if (given && !(*ret_path = cell__cli_absolute(given, err)))
		return -1;
	*ret_option = *ret_path;
	return 0;
}

/* In a pod the cluster's API server is where these variables say; elsewhere a kubeconfig names it. */
static int find_cluster(const struct cell_cli_kubernetes_flags *flags, struct cell_cli_session_options *all, struct cell_error *err)
{
	struct cell_kubernetes_options *options = &all->kubernetes;
	const char *host = getenv("KUBERNETES_SERVICE_HOST"), *port = getenv("KUBERNETES_SERVICE_PORT"), *home = getenv("HOME");
	const char *given = flags->kubeconfig;
	CELL_AUTO_FREE char *usual = NULL;

	if (flags->api) {
		options->api = flags->api;
		return 0;
	}
	if (!given && host && *host && port && *port) {
		if (asprintf(&all->kube_files[4], strchr(host, ':') ? "https://[%s]:%s" : "https://%s:%s", host, port) < 0) {
			all->kube_files[4] = NULL;
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		}
		options->api = all->kube_files[4];
		return 0;
	}
	if (!given)
		given = getenv("KUBECONFIG");
	if (!given && home && asprintf(&usual, "%s/.kube/config", home) < 0)
		usual = NULL;
	if (!given && usual && access(usual, R_OK) == 0)
		given = usual;
	if (!given)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "--executor kubernetes: this is not a pod, so give --kubeconfig or --kubernetes-api");
	if (strchr(given, ':'))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "the kubeconfig is '%.100s': several files are not supported, give one with --kubeconfig", given);
	return fill_path(given, &all->kube_files[0], &options->kubeconfig, err);
}

static int fill_kubernetes(const struct cell_cli_session_flags *flags, struct cell_cli_session_options *all, struct cell_error *err)
{
	const struct cell_cli_kubernetes_flags *given = &flags->kubernetes;
	struct cell_kubernetes_options *options = &all->kubernetes;

	*options = (struct cell_kubernetes_options)CELL_KUBERNETES_OPTIONS_INIT;
	if (find_cluster(given, all, err) < 0 || fill_path(given->token_file, &all->kube_files[1], &options->token_file, err) < 0 ||
	    fill_path(given->ca_file, &all->kube_files[2], &options->ca_file, err) < 0 ||
	    fill_path(given->pool_key_file, &all->kube_files[3], &options->pool_key_file, err) < 0)
		return -1;
	options->context = given->context;
	options->in_namespace = given->in_namespace;
	options->pool = given->pool;
	options->warm_pool = given->warm_pool;
	options->runtime_class = given->runtime_class;
	options->port = given->port > 65535 ? 65536 : (int)given->port;
	options->session_isolation = flags->container.isolation && !strcmp(flags->container.isolation, "session");
	if (flags->container.startup_ms != CELL_CLI_NOT_GIVEN)
		options->startup_timeout_ms = flags->container.startup_ms;
	return 0;
}

/* The server of the executor "remote"; its workspace is that of the flag, which then means no storage of ours. */
static int fill_remote(const struct cell_cli_session_flags *flags, struct cell_cli_session_options *all, struct cell_error *err)
{
	size_t size;

	if (flags->remote_token_file) {
		if (cell__cli_read_file(flags->remote_token_file, &all->token, &size, err) < 0)
			return -1;
		all->token[strcspn(all->token, "\r\n")] = '\0';
	}
	all->options.remote_url = flags->remote_url;
	all->options.remote_token = is_executor(flags, "container") ? NULL : all->token;
	all->options.remote_ca = flags->remote_ca;
	all->options.remote_reopen = flags->remote_reopen;
	all->options.remote_repeat = flags->remote_repeat;
	if (has_server(flags))
		all->options.remote_workspace = flags->space.workspace;
	if (is_executor(flags, "kubernetes"))
		return fill_kubernetes(flags, all, err);
	return is_executor(flags, "container") ? fill_container(flags, all, err) : 0;
}

static bool wants_space(const struct cell_cli_session_flags *flags)
{
	struct cell_cli_space_flags space = flags->space;

	if (is_executor(flags, "container"))
		return false;
	if (is_executor(flags, "remote") || is_executor(flags, "kubernetes"))
		space.workspace = NULL;
	return cell__cli_has_space(&space);
}

int cell__cli_check_secrets(const struct cell_cli_session_flags *flags, const char *executor, const char *workspace, struct cell_error *err)
{
	char folder[PATH_MAX], file[PATH_MAX];

	if (!executor || strcmp(executor, "sandbox") || (flags->workspace_mode && !strcmp(flags->workspace_mode, "none")) ||
	    !realpath(workspace, folder))
		return 0;
	for (size_t i = 0; i < sizeof(flags->secrets) / sizeof(flags->secrets[0]); i++) {
		const char *name = flags->secrets[i];
		size_t size = strlen(folder);

		if (!name || !*name || !realpath(name, file))
			continue;
		if (!strncmp(file, folder, size) && (file[size] == '/' || size == 1))
			return cell_fail(err, CELL_E_INVALID, 0,
					 "%.100s is inside %.100s, where the code of sessions can read it: move it, or use another --cwd",
					 name, folder);
	}
	return 0;
}

static int open_engine(const struct cell_cli_session_flags *flags, struct cell_engine **ret_engine, struct cell_error *err)
{
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;

	if (flags->pool > CELL_LIMIT_POOL)
		return cell_fail(err, CELL_E_INVALID, 0, "--pool must be at most %d", CELL_LIMIT_POOL);
	options.pool_size = (int)flags->pool;
	options.zygote_forks = flags->zygote_forks;
	options.points_bytes = flags->points_bytes;
	/* A container may have to be built and started: that is reported. */
	if (cell__cli_space_log(&flags->space, flags->log_level || !is_executor(flags, "container") ? flags->log_level : "info", &options,
				err) < 0)
		return -1;
	return cell_engine_create(&options, ret_engine, err);
}

/* Engine (unless the host has one), space and gate; after a failure the caller closes the opened ones. */
static int open_parts(const struct cell_cli_session_flags *flags, bool with_space, struct cell_cli_host *host,
		      struct cell_cli_session_options *all, struct cell_error *err)
{
	struct cell_session_options *options = &all->options;

	const char *const files[] = { flags->space.env_file ? flags->space.env_file : "",
				      flags->gate.policy ? flags->gate.policy : "",
				      flags->remote_token_file ? flags->remote_token_file : "",
				      flags->secrets[0] ? flags->secrets[0] : "",
				      flags->secrets[1] ? flags->secrets[1] : "",
				      flags->secrets[2] ? flags->secrets[2] : "",
				      flags->secrets[3] ? flags->secrets[3] : "",
				      flags->secrets[4] ? flags->secrets[4] : "",
				      NULL };

	if (cell__cli_load_env_file(flags->space.env_file, err) < 0 || cell__cli_trusted(files, &all->trusted, err) < 0 ||
	    env_strings(&flags->env, &all->env, err) < 0 ||
	    cell__cli_choose_python(flags->python, flags->space.python_version, &all->python, err) < 0)
		return -1;
	if (flags->cwd) {
		all->cwd = cell__cli_absolute(flags->cwd, err);
		if (!all->cwd || cell__cli_check_dir("--cwd", all->cwd, err) < 0)
			return -1;
	}
	if (!host->engine && open_engine(flags, &host->engine, err) < 0)
		return -1;
	if (fill_remote(flags, all, err) < 0)
		return -1;
	if ((with_space || wants_space(flags)) &&
	    cell__cli_space_create(&flags->space, host->engine, all->python, all->cwd, &host->space, err) < 0)
		return -1;
	options->executor = flags->executor;
	options->python = all->python;
	options->preload = flags->preload;
	options->cwd = all->cwd;
	options->images_dir = flags->images_dir;
	options->env = all->env;
	options->timeout_ms = flags->timeout_ms;
	options->grace_ms = flags->grace_ms > 0 ? flags->grace_ms : 0; /* "none" is 0 here */
	options->max_output_bytes = flags->max_output_bytes;
	options->space = host->space;
	options->sandbox_policy = flags->sandbox_policy;
	options->trusted = (const char *const *)all->trusted;
	options->workspace_mode = flags->workspace_mode;
	options->kernel = flags->kernel;
	options->jupyter_path = getenv("JUPYTER_PATH");
	cell__cli_fill_limits(&flags->limits, options);
	return cell__cli_gate_open(&flags->gate, host, options, err);
}

/* Takes the engine over, also on failure; NULL: a new one. */
static int open_host(const struct cell_cli_session_flags *flags, bool with_space, struct cell_engine *engine,
		     struct cell_cli_host *ret_host, struct cell_cli_session_options *ret_options, struct cell_error *err)
{
	struct cell_cli_session_options all = { .options = CELL_SESSION_OPTIONS_INIT };
	struct cell_cli_host host = { .engine = engine };

	if (open_parts(flags, with_space, &host, &all, err) < 0) {
		cell_space_close(host.space);
		cell__cli_gate_close(&host);
		cell_engine_destroy(host.engine);
		cell__cli_options_finish(&all);
		return -1;
	}
	*ret_host = host;
	*ret_options = all;
	if (is_executor(flags, "container")) /* where it lives now */
		ret_options->options.container = &ret_options->container;
	if (is_executor(flags, "kubernetes"))
		ret_options->options.kubernetes = &ret_options->kubernetes;
	return 0;
}

int cell__cli_open_host(const struct cell_cli_session_flags *flags, bool with_space, struct cell_cli_host *ret_host,
			struct cell_cli_session_options *ret_options, struct cell_error *err)
{
	return open_host(flags, with_space, NULL, ret_host, ret_options, err);
}

/* Code of these runs with this user's rights, so keeping it from the terminal would gain nothing. */
static bool is_trusted(const char *executor)
{
	static const char *const trusted[] = { "subprocess", "inprocess", "jupyter" };

	for (size_t i = 0; executor && i < sizeof(trusted) / sizeof(*trusted); i++) {
		if (!strcmp(executor, trusted[i]))
			return true;
	}
	return !executor;
}

static void set_notebook(struct cell_session_options *options)
{
	options->no_spill = 1;
	options->notebook = 1;
	options->gate |= CELL_GATE_QUESTIONS;
	options->approval_stops_clock = 1;
}

static int open_session(const struct cell_cli_session_flags *flags, struct cell_engine *engine, bool shows, bool notebook,
			cell_event_fn on_event, void *event_arg, struct cell_cli_host *ret_host, struct cell_error *err)
{
	struct cell_cli_session_options all;
	struct cell_cli_host host;
	int status;

	if (cell__cli_check_executor(flags, flags->executor, err) < 0) {
		cell_engine_destroy(engine);
		return -1;
	}
	if (open_host(flags, false, engine, &host, &all, err) < 0)
		return -1;
	all.options.on_event = on_event;
	all.options.event_arg = event_arg;
	all.options.no_spill = shows;
	if (notebook)
		set_notebook(&all.options);
	host.confined = !is_trusted(flags->executor);
	if (shows) /* a first start of Deno, of a container or of a Jupyter kernel takes seconds */
		cell__progress_begin("opening a session");
	status = cell_session_open(host.engine, &all.options, &host.session, err);
	cell__progress_end();
	cell__cli_options_finish(&all);
	if (status < 0) {
		cell_space_close(host.space);
		cell__cli_gate_close(&host);
		cell_engine_destroy(host.engine);
		return -1;
	}
	if (host.space && (flags->space.tools || flags->space.base))
		cell__cli_warn_tools(host.space);
	cell__cli_signals_attach(host.session);
	*ret_host = host;
	return 0;
}

int cell__cli_open(const struct cell_cli_session_flags *flags, bool shows, cell_event_fn on_event, void *event_arg,
		   struct cell_cli_host *ret_host, struct cell_error *err)
{
	return open_session(flags, NULL, shows, false, on_event, event_arg, ret_host, err);
}

int cell__cli_open_notebook(const struct cell_cli_session_flags *flags, struct cell_engine *engine, cell_event_fn on_event, void *event_arg,
			    struct cell_cli_host *ret_host, struct cell_error *err)
{
	return open_session(flags, engine, false, true, on_event, event_arg, ret_host, err);
}

/* The kernel that waits is that of a session without tools and in the working directory of now; others open a little slower. */
int cell__cli_warm(const struct cell_cli_session_flags *flags, struct cell_engine **ret_engine, struct cell_error *err)
{
	struct cell_cli_session_flags plain = *flags;
	struct cell_cli_session_options all;
	struct cell_cli_host host;
	int status;

	plain.space = (struct cell_cli_space_flags)CELL_CLI_SPACE_FLAGS_INIT;
	plain.space.python_version = flags->space.python_version;
	plain.gate = (struct cell_cli_gate_flags){ .approval_timeout_ms = flags->gate.approval_timeout_ms };
	plain.pool = flags->pool ? flags->pool : 1;
	if (cell__cli_open_host(&plain, false, &host, &all, err) < 0)
		return -1;
	set_notebook(&all.options);
	status = cell_session_prewarm(host.engine, &all.options, err);
	cell__cli_options_finish(&all);
	cell__cli_gate_close(&host);
	if (status < 0)
		cell_engine_destroy(host.engine);
	else
		*ret_engine = host.engine;
	return status;
}

void cell__cli_close(struct cell_cli_host *host)
{
	cell__cli_signals_attach(NULL);
	cell_session_close(host->session);
	cell_space_close(host->space);
	cell__cli_gate_close(host);
	cell_engine_destroy(host->engine);
	*host = (struct cell_cli_host){ 0 };
}
