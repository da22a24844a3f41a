/* A session's options: checking, copying and freeing them. */
#define _GNU_SOURCE
#include "base/sized.h"
#include "session/options.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hole.h"
#include "durable/lease.h"
#include "gate/audit.h"
#include "gate/policy.h"
#include "space/space.h"
#include "storage/store.h"
#include "wire/redis_url.h"

static int copy_env(struct cell__options *options, const char *const *extra, struct cell_error *err)
{
	size_t n_extra = 0;
	while (extra && extra[n_extra]) {
		const char *equals = strchr(extra[n_extra], '=');
		if (!equals || equals == extra[n_extra])
			return cell_fail(err, CELL_E_INVALID, 0, "environment entry \"%.80s\" is not K=V", extra[n_extra]);
		if (!cell__utf8_ok(extra[n_extra], strlen(extra[n_extra])))
			return cell_fail(err, CELL_E_INVALID, 0, "environment entry %.*s is not UTF-8", (int)(equals - extra[n_extra]),
					 extra[n_extra]);
		n_extra++;
	}
	options->env = cell__alloc(n_extra + 4, sizeof *options->env);
	if (!options->env)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	/* The interpreter's own folder first, so that a venv's programs are found. */
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, home = CELL_BUF_INIT;
	const char *slash = strrchr(options->python, '/');
	int dir = slash ? (int)(slash - options->python) : 0;
	bool usual = dir == 0 || (dir == 8 && strncmp(options->python, "/usr/bin", 8) == 0);
	int rc = cell__buf_printf(&path, "PATH=%.*s%s/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", usual ? 0 : dir,
				  options->python, usual ? "" : ":");
	rc |= cell__buf_printf(&home, "HOME=%s", cell__home_dir());
	if (rc == 0) {
		options->env[0] = cell__buf_take(&path);
		options->env[1] = cell__buf_take(&home);
		options->env[2] = cell__strdup("LANG=C.UTF-8");
	}
	for (size_t i = 0; i < n_extra && options->env[i + 2]; i++)
		options->env[i + 3] = cell__strdup(extra[i]);
	return options->env[n_extra + 2] ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

static int copy_cwd(struct cell__options *options, const char *given, struct cell_error *err)
{
	char here[PATH_MAX];
	struct stat st;
	if ((!given || given[0] != '/') && !getcwd(here, sizeof here))
		return cell_fail(err, CELL_E_INVALID, errno, "the current working directory");
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s%s%s", given && given[0] == '/' ? "" : here, given && given[0] != '/' ? "/" : "",
			     given ? given : "") < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	options->cwd = cell__buf_take(&path);
	if (stat(options->cwd, &st) < 0)
		return cell_fail(err, CELL_E_INVALID, errno, "working directory %.160s", options->cwd);
	if (!S_ISDIR(st.st_mode))
		return cell_fail(err, CELL_E_INVALID, 0, "the working directory %.160s is not a directory", options->cwd);
	return 0;
}

static int copy_gate(struct cell__options *options, const struct cell_session_options *opts, struct cell_error *err)
{
	const unsigned calls = opts->gate & CELL__GATE_ALL;
	if (opts->gate & ~(CELL__GATE_ALL | CELL_GATE_QUESTIONS))
		return cell_fail(err, CELL_E_INVALID, 0, "gate is 0x%x, expected CELL_GATE_* only", opts->gate);
	if (opts->approval_timeout_ms < -1 || opts->approval_timeout_ms == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "approval_timeout_ms is %lld, expected more than 0, or -1 for no limit",
				 (long long)opts->approval_timeout_ms);
	options->policy = opts->policy;
	options->audit = opts->audit;
	if (opts->policy)
		options->gate_kinds = calls ? calls : cell__policy_kinds(opts->policy);
	options->takes_questions = opts->gate & CELL_GATE_QUESTIONS || (opts->policy && cell__policy_can_ask(opts->policy));
	if (opts->require_shell_escape && !(options->gate_kinds & CELL_GATE_SHELL))
		return cell_fail(err, CELL_E_INVALID, 0, "require_shell_escape needs a policy and a gate that includes shell commands");
	options->approval_timeout_ms = opts->approval_timeout_ms;
	options->approval_stops_clock = opts->approval_stops_clock != 0;
	options->wants = (struct cell__kernel_wants){
		.gate_shell = (options->gate_kinds & CELL_GATE_SHELL) != 0,
		.shell_escape = opts->require_shell_escape != 0,
		.restore_cwd = opts->restore_cwd != 0,
		.portable = opts->portable_values != 0,
		.undo = opts->undo > 0,
		.sessions = opts->allow_fork > 0,
		.tables = opts->tables != 0,
		.notebook = opts->notebook != 0,
		.changes = opts->changes != 0,
		.saved_images = opts->saved_images != 0,
	};
	return 0;
}

/* Code that could change these files would decide about itself, or write arbitrary records into the audit log. */
static int list_places(struct cell__options *options, const struct cell_session_options *opts, struct cell_error *err)
{
	struct cell__place_list *places = &options->places;
	if (options->audit && cell__place_add(places, "the audit log", false, cell__audit_path(cell__audit_of(options->audit)), err) < 0)
		return -1;
	if (options->confined && opts->sandbox_policy && cell__sandbox_policy_is_file(opts->sandbox_policy) &&
	    cell__place_add(places, "the policy file", false, opts->sandbox_policy, err) < 0)
		return -1;
	if (cell__place_add_unlinked(places, "the images folder", opts->images_dir, err) < 0)
		return -1;
	if (cell__place_add(places, "the recording", false, opts->record, err) < 0 ||
	    cell__place_add(places, "the recording", false, opts->replay, err) < 0)
		return -1;
	if (opts->saved_dir && !cell__redis_url_is(opts->saved_dir) &&
	    cell__place_add(places, "the folder of saved sessions", true, opts->saved_dir, err) < 0)
		return -1;
	for (size_t i = 0; opts->trusted && opts->trusted[i]; i++)
		if (cell__place_add(places, "the trusted path", false, opts->trusted[i], err) < 0)
			return -1;
	return 0;
}

/* 0: the policy's value; below 0: no limit. */
static int replace_limit(const char *name, int64_t value, int64_t least, int64_t unit, uint64_t *limit, struct cell_error *err)
{
	if (value > 0 && value < least)
		return cell_fail(err, CELL_E_INVALID, 0, "%s is %lld, expected at least %lld, or -1 for no limit", name, (long long)value,
				 (long long)least);
	if (value)
		*limit = value < 0 ? 0 : (uint64_t)(value / unit);
	return 0;
}

static int replace_limits(struct cell__sandbox_policy *policy, const struct cell_session_options *opts, struct cell_error *err)
{
	if (is_hole("limits"))
		return 0;
	if (replace_limit("memory_limit", opts->memory_limit, CELL_LIMIT_MIN_MEMORY, 1, &policy->memory_bytes, err) < 0 ||
	    replace_limit("cpu_quota", opts->cpu_quota, 1000, 1000, &policy->cpu_percent, err) < 0 ||
	    replace_limit("pids_limit", opts->pids_limit, 1, 1, &policy->pids, err) < 0)
		return -1;
	policy->pids_asked |= opts->pids_limit > 0;
	uint64_t *const disk[] = { &policy->workspace_bytes, &policy->tmp_bytes, &policy->file_size_bytes };
	for (size_t i = 0; i < sizeof disk / sizeof *disk; i++)
		if (replace_limit("disk_limit", opts->disk_limit, CELL_LIMIT_MIN_DISK, 1, disk[i], err) < 0)
			return -1;
	return opts->network ? cell__sandbox_policy_set_network(policy, opts->network, err) : 0;
}

static int copy_confinement(struct cell__options *options, const struct cell_session_options *opts, struct cell_error *err)
{
	if (!(options->executor->takes & CELL_TAKES_POLICY)) {
		if (opts->workspace_path)
			return cell_fail(err, CELL_E_INVALID, 0, "workspace_path needs the executor \"sandbox\", not \"%s\"",
					 options->executor->name);
		/* No other mode was let through.  A server has the layer itself. */
		options->layered = opts->workspace_mode && !options->executor->calls_there;
		return cell__policy_load_host_limits(NULL, &options->limits, err);
	}
	if (cell__sandbox_policy_load(&options->confine, opts->sandbox_policy ? opts->sandbox_policy : CELL_POLICY_DEFAULT, err) < 0)
		return -1;
	options->confined = true;
	options->limits = cell__policy_host_limits(&options->confine);
	if (replace_limits(&options->confine, opts, err) < 0)
		return -1;
	if (opts->workspace_mode && cell__workspace_from_word(opts->workspace_mode, &options->confine.workspace, err) < 0)
		return -1;
	options->layered = options->confine.workspace == CELL_WORKSPACE_COW;
	return 0;
}

/* The space's interpreter is the default. */
static int copy_texts(struct cell__options *options, const struct cell_session_options *opts, struct cell_error *err)
{
	const char *python = opts->python ? opts->python : CELL_DEFAULT_PYTHON;
	if (!opts->python && opts->space)
		python = cell__space_python(opts->space);
	if (python[0] != '/')
		return cell_fail(err, CELL_E_INVALID, 0, "python is \"%.100s\", expected an absolute path", python);
	/* Text hashes are the same in each replay: see env.c of the executor. */
	CELL_AUTO_BUF struct cell__buf owner = CELL_BUF_INIT;
	if (cell__buf_printf(&owner, "%s%s", opts->zygote_owner ? opts->zygote_owner : "",
			     opts->record || opts->replay ? CELL__ZYGOTE_RECORDED : "") < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	const struct {
		const char *text;
		char **copy;
	} texts[] = {
		{ python, &options->python },
		{ opts->preload ? opts->preload : "", &options->preload },
		{ owner.data, &options->zygote_owner },
		{ opts->record, &options->record },
		{ opts->replay, &options->replay },
		{ opts->saved_dir, &options->saved_dir },
		{ opts->saved_owner, &options->saved_owner },
		{ opts->saved_key, &options->saved_key },
		{ opts->saved_notes, &options->saved_notes },
		{ opts->saved_host, &options->saved_host },
		{ opts->saved_url, &options->saved_url },
		{ opts->workspace_path ? opts->workspace_path : "", &options->workspace_path },
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		if (texts[i].text && !(*texts[i].copy = cell__strdup(texts[i].text)))
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return 0;
}

static int check_recording(const struct cell__executor *executor, const struct cell_session_options *opts, struct cell_error *err)
{
	const char *name = opts->record ? "record" : "replay";
	if (!opts->record && !opts->replay)
		return 0;
	if (!executor->image)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "%s needs the executor \"subprocess\" or \"sandbox\", not \"%s\"", name,
				 executor->name);
	if (opts->record && opts->replay)
		return cell_fail(err, CELL_E_INVALID, 0, "a session that is replayed is not recorded: give record or replay");
	if (opts->replay && (opts->space || opts->policy))
		return cell_fail(err, CELL_E_INVALID, 0, "a session that is replayed has no tools, storage or policy of its own");
	if (opts->undo || opts->allow_fork || opts->speculate || opts->notebook || opts->resume)
		return cell_fail(err, CELL_E_INVALID, 0, "%s excludes undo, allow_fork, speculate, notebook and resume", name);
	return 0;
}

static int check_lease(const struct cell_session_options *opts, struct cell_error *err)
{
	const struct cell__lease_host host = { .name = opts->saved_host, .url = opts->saved_url, .lease_ms = opts->saved_lease_ms };
	return cell__lease_check(&host, err);
}

static int read_durable(const struct cell_session_options *opts, enum cell__durable_mode *ret_mode, struct cell_error *err)
{
	static const char *const words[] = { "", "cells", "results" };
	size_t i = 0;
	while (i < 3 && strcmp(opts->durable ? opts->durable : "", words[i]) != 0)
		i++;
	if (i == 3)
		return cell_fail(err, CELL_E_INVALID, 0, "durable is \"%.40s\", expected \"cells\" or \"results\"", opts->durable);
	if (i > 0 && !opts->saved_dir)
		return cell_fail(err, CELL_E_INVALID, 0, "durable needs the folder of saved sessions (saved_dir)");
	*ret_mode = (enum cell__durable_mode)i;
	return 0;
}

static int copy_saved_form(struct cell__options *options, const char *form, struct cell_error *err)
{
	options->saved_portable = form && strcmp(form, "portable") == 0;
	options->saved_auto = form && strcmp(form, "auto") == 0;
	if (form && strcmp(form, "image") != 0 && !options->saved_portable && !options->saved_auto)
		return cell_fail(err, CELL_E_INVALID, 0, "saved_form is \"%.40s\", expected image, portable or auto", form);
	return 0;
}

static int check_calls(const struct cell__executor *executor, const struct cell_session_options *opts, struct cell_error *err)
{
	if (executor->calls_there && (opts->policy || opts->audit || opts->require_shell_escape))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "with the executor \"%s\" tools are called where the code runs, so a policy, approvals or an audit "
				 "log given here would not see the calls",
				 executor->name);
	return 0;
}

/* The limits of a session replace those of its container. */
static void limit_container(struct cell_container_options *container, const struct cell_session_options *opts)
{
	if (opts->memory_limit)
		container->memory_limit = opts->memory_limit;
	if (opts->cpu_quota)
		container->cpu_quota = opts->cpu_quota < 0 ? 0 : opts->cpu_quota;
	if (opts->pids_limit)
		container->pids_limit = opts->pids_limit;
	if (opts->network)
		container->network_disabled = strcmp(opts->network, "none") == 0;
}

/* Copies the executor's own options. The space's workspace is the default. */
static int copy_own(struct cell__options *options, const struct cell_session_options *opts, struct cell_error *err)
{
	const struct cell__executor *executor = options->executor;
	struct cell_session_options all = *opts;
	struct cell_container_options container = CELL_CONTAINER_OPTIONS_INIT;
	if (!executor->read_options)
		return 0;
	if (executor->takes & (CELL_TAKES_CONTAINER | CELL_TAKES_KUBERNETES) && opts->space && !all.remote_workspace)
		all.remote_workspace = cell__space_workspace(opts->space);
	if (executor->takes & CELL_TAKES_KUBERNETES && opts->space && cell__space_has_storage(opts->space))
		return cell_fail(
			err, CELL_E_INVALID, 0,
			"the storage of code in a pod is that of the server in the pod: leave it out here, and give it in the pool's template");
	if (!(executor->takes & CELL_TAKES_CONTAINER))
		return executor->read_options(&all, &options->own, err);
	if (opts->space && cell__space_has_storage(opts->space) && !(opts->container && opts->container->storage))
		return cell_fail(err, CELL_E_INVALID, 0, "give the storage for code in a container in the container options");
	if (opts->container && cell__sized_read(&container, sizeof container, opts->container, "cell_container_options", err) < 0)
		return -1;
	limit_container(&container, opts);
	all.container = &container;
	CELL_AUTO_FREE char *storage = NULL;
	if (cell__options_make_storage(all.container, &storage, err) < 0 || executor->read_options(&all, &options->own, err) < 0)
		return -1;
	/* From now on only content that the host recorded as trusted is trusted in the folder. */
	return storage ? cell__store_share(storage, err) : 0;
}

static int check_numbers(const struct cell__executor *executor, const struct cell_session_options *opts, struct cell_error *err)
{
	if (opts->timeout_ms < -1 || opts->timeout_ms == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "timeout_ms is %lld, expected more than 0, or -1 for no limit",
				 (long long)opts->timeout_ms);
	if (opts->grace_ms < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "grace_ms is %lld, expected 0 or more", (long long)opts->grace_ms);
	if (opts->undo < 0 || opts->undo > CELL_LIMIT_UNDO)
		return cell_fail(err, CELL_E_INVALID, 0, "undo is %d, expected 0 to %d", opts->undo, CELL_LIMIT_UNDO);
	if (opts->points_bytes < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "points_bytes is %lld, expected 0 or more", (long long)opts->points_bytes);
	if (opts->allow_fork < 0 || opts->allow_fork > CELL_LIMIT_CHILDREN)
		return cell_fail(err, CELL_E_INVALID, 0, "allow_fork is %d, expected 0 to %d", opts->allow_fork, CELL_LIMIT_CHILDREN);
	if (opts->fork_memory < 0 || opts->fork_time_ms < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "%s is %lld, expected more than 0, or 0 for no limit",
				 opts->fork_memory < 0 ? "fork_memory" : "fork_time_ms",
				 (long long)(opts->fork_memory < 0 ? opts->fork_memory : opts->fork_time_ms));
	if (opts->allow_fork && !executor->fork)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "code cannot fork its session with the executor \"%s\", so allow_fork has no effect; \"subprocess\" and "
				 "\"sandbox\" can",
				 executor->name);
	if (opts->speculate && !executor->hand_over)
		return cell_fail(
			err, CELL_E_UNSUPPORTED, 0,
			"the executor \"%s\" cannot go on in a copy while a call waits, so speculate has no effect; \"subprocess\" and "
			"\"sandbox\" can",
			executor->name);
	if (opts->notebook && !executor->fork)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "the executor \"%s\" has no kernels for notebooks; \"subprocess\" and \"sandbox\" have", executor->name);
	if (opts->undo && !executor->fork)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "the executor \"%s\" cannot keep points, so undo has no effect; \"subprocess\" can", opts->executor);
	if (opts->max_output_bytes < CELL_LIMIT_MIN_OUTPUT)
		return cell_fail(err, CELL_E_INVALID, 0, "max_output_bytes is %lld, expected %d or more", (long long)opts->max_output_bytes,
				 CELL_LIMIT_MIN_OUTPUT);
	return 0;
}

int cell__options_init(struct cell__options *options, const struct cell_session_options *given, struct cell_error *err)
{
	struct cell_session_options settled = *given;
	const struct cell_session_options *opts = &settled;
	const char *name = opts->executor ? opts->executor : "subprocess";
	const struct cell__executor *executor = cell__executor_find(name);
	*options = (struct cell__options){
		.executor = executor,
		.timeout_ms = opts->timeout_ms,
		.grace_ms = opts->grace_ms,
		.max_output = (size_t)opts->max_output_bytes,
		.undo = (size_t)opts->undo,
		.points_bytes = opts->points_bytes,
		.allow_fork = (size_t)opts->allow_fork,
		.speculate = opts->speculate != 0,
		.call_results = opts->call_results != 0,
		.fork_memory = opts->fork_memory,
		.fork_time_ms = opts->fork_time_ms,
		.on_event = opts->on_event,
		.event_arg = opts->event_arg,
		.space = opts->space,
		.no_spill = opts->no_spill != 0 || opts->record || opts->replay, /* the name of the file would be in the output */
		.saved_compress = opts->saved_compress != 0,
		.saved_unsynced = opts->saved_unsynced != 0,
		.saved_points = opts->saved_points != 0,
		.saved_lease_ms = opts->saved_lease_ms,
	};
	if (!executor)
		return cell__executor_unknown(name, err);
	if (cell__executor_settle_limits(executor, &settled, err) < 0 || cell__executor_check(executor, opts, err) < 0 ||
	    check_calls(executor, opts, err) < 0 || check_recording(executor, opts, err) < 0 ||
	    copy_saved_form(options, opts->saved_form, err) < 0 || read_durable(opts, &options->durable, err) < 0 ||
	    check_lease(opts, err) < 0 || check_numbers(executor, opts, err) < 0 || copy_gate(options, opts, err) < 0 ||
	    copy_texts(options, opts, err) < 0 || copy_confinement(options, opts, err) < 0 || copy_own(options, opts, err) < 0 ||
	    copy_cwd(options, opts->cwd, err) < 0 || list_places(options, opts, err) < 0)
		return -1;
	return copy_env(options, opts->env, err);
}

bool cell__options_reach_host(const struct cell__options *options)
{
	if (is_hole("self-approval") || options->executor->calls_there)
		return false; /* it sends no calls that could be approved here */
	/* A list of hosts may name this machine. */
	if (options->confined)
		return options->confine.network == CELL_NET_FULL || options->confine.network == CELL_NET_ALLOW;
	return !options->executor->reaches_host || options->executor->reaches_host(options->own);
}

int cell__options_copy(const struct cell__options *options, struct cell__options *ret_copy, struct cell_error *err)
{
	*ret_copy = *options;
	ret_copy->places = (struct cell__place_list)CELL_PLACE_LIST_INIT;
	ret_copy->own = NULL;
	ret_copy->record = ret_copy->replay = NULL; /* a fork is not recorded */
	ret_copy->confined = false; /* until its policy is copied */
	ret_copy->python = cell__strdup(options->python);
	ret_copy->preload = cell__strdup(options->preload);
	ret_copy->cwd = cell__strdup(options->cwd);
	ret_copy->zygote_owner = cell__strdup(options->zygote_owner);
	ret_copy->workspace_path = cell__strdup(options->workspace_path);
	ret_copy->env = cell__strings_copy((const char *const *)options->env);
	ret_copy->saved_dir = options->saved_dir ? cell__strdup(options->saved_dir) : NULL;
	ret_copy->saved_owner = options->saved_owner ? cell__strdup(options->saved_owner) : NULL;
	ret_copy->saved_key = options->saved_key ? cell__strdup(options->saved_key) : NULL;
	ret_copy->saved_notes = options->saved_notes ? cell__strdup(options->saved_notes) : NULL;
	ret_copy->saved_host = options->saved_host ? cell__strdup(options->saved_host) : NULL;
	ret_copy->saved_url = options->saved_url ? cell__strdup(options->saved_url) : NULL;
	if (!ret_copy->saved_dir != !options->saved_dir || !ret_copy->saved_owner != !options->saved_owner ||
	    !ret_copy->saved_key != !options->saved_key || !ret_copy->saved_notes != !options->saved_notes ||
	    !ret_copy->saved_host != !options->saved_host || !ret_copy->saved_url != !options->saved_url)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
	if (!ret_copy->python || !ret_copy->preload || !ret_copy->cwd || !ret_copy->zygote_owner || !ret_copy->workspace_path ||
	    !ret_copy->env)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
	if (options->confined && cell__sandbox_policy_copy(&ret_copy->confine, &options->confine, err) < 0)
		return -1;
	ret_copy->confined = options->confined;
	return cell__place_list_copy(&options->places, &ret_copy->places, err);
}

void cell__options_finish(struct cell__options *options)
{
	char *const texts[] = { options->python,         options->preload,     options->cwd,       options->zygote_owner,
				options->saved_dir,      options->saved_owner, options->saved_key, options->saved_notes,
				options->workspace_path, options->record,      options->replay,    options->saved_host,
				options->saved_url };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		free(texts[i]);
	if (options->own)
		options->executor->free_options(options->own);
	if (options->confined)
		cell__sandbox_policy_finish(&options->confine);
	cell__place_list_finish(&options->places);
	cell__strings_free(options->env);
}
