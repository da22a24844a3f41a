/* The space that the common flags describe. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "progress.h"

#define ENV_PLACE "env:"
#define NAME_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789"

bool cell__cli_has_storage(const struct cell_cli_space_flags *flags)
{
	return flags->base || flags->storage || flags->redis;
}

bool cell__cli_has_space(const struct cell_cli_space_flags *flags)
{
	return cell__cli_has_storage(flags) || flags->tools || flags->tools_from_storage || flags->workspace || flags->embeddings ||
	       flags->embeddings_url || flags->embeddings_model || flags->embeddings_key_env;
}

/* By cell_log_level; nothing logs at `critical`, so it means silence. */
static const char *const log_words[] = { "debug", "info", "warning", "error", "critical" };
static int log_from = CELL_LOG_WARN;

/* On the engine's thread, while the main one waits. */
static void print_log(void *arg, enum cell_log_level level, const char *line)
{
	char *shown;

	(void)arg;
	if ((int)level < log_from)
		return;
	shown = cell_shown_text(line, strlen(line), CELL_SHOWN_LINE);
	cell__log_say("workcell: %s: %s\n", log_words[level], shown ? shown : "");
	free(shown);
}

int cell__cli_space_log(const struct cell_cli_space_flags *flags, const char *level, struct cell_engine_options *options,
			struct cell_error *err)
{
	if (level || flags->embeddings || flags->embeddings_url)
		options->log = print_log;
	for (int i = 0; level; i++) {
		if (i == sizeof(log_words) / sizeof(*log_words))
			return cell_fail(err, CELL_E_INVALID, 0, "--log-level must be debug, info, warning, error or critical, not '%s'",
					 level);
		log_from = i;
		if (!strcasecmp(level, log_words[i]))
			break;
	}
	return 0;
}

/* The host's own environment and --env-file: the values of ${VAR} in a tool's definition on the command line. */
static const char *host_getenv(void *arg, const char *name)
{
	(void)arg;
	return cell__cli_getenv(name);
}

/* On the thread that waits for the installer, which is the main one. */
static void print_progress(void *arg, const char *line)
{
	(void)arg;
	cell__progress_note(line);
}

bool cell__cli_is_redis(const char *place)
{
	static const char *const schemes[] = { "redis://", "rediss://", "redis+unix://", "unix://" };

	for (size_t i = 0; place && i < sizeof(schemes) / sizeof(schemes[0]); i++) {
		if (!strncasecmp(place, schemes[i], strlen(schemes[i])))
			return true;
	}
	return false;
}

static int check_embeddings(const struct cell_cli_space_flags *flags, struct cell_error *err)
{
	const char *name = flags->embeddings_key_env;

	if (flags->embeddings && flags->embeddings_url)
		return cell_fail(err, CELL_E_INVALID, 0, "--embeddings and --embeddings-url both say who computes vectors; give only one");
	if (flags->embeddings && (strchr(flags->embeddings, '/') || flags->embeddings[0] == '.' || !flags->embeddings[0]))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "--embeddings must be builtin, or the name of a model (see `workcell models list`)");
	if (flags->embeddings && !cell__cli_has_storage(flags) && !flags->tools)
		return cell_fail(err, CELL_E_INVALID, 0, "--embeddings needs --base DIR, --storage DIR or --tools DIR to search in");
	if (flags->embeddings && (flags->embeddings_model || name))
		return cell_fail(err, CELL_E_INVALID, 0, "--embeddings-%s needs --embeddings-url URL", name ? "key-env" : "model");
	if (!flags->embeddings_url && (flags->embeddings_model || name))
		return cell_fail(err, CELL_E_INVALID, 0, "--embeddings-%s needs --embeddings-url URL", name ? "key-env" : "model");
	if (flags->embeddings_url && !flags->embeddings_model)
		return cell_fail(err, CELL_E_INVALID, 0, "--embeddings-url needs --embeddings-model NAME");
	if (flags->embeddings_url && !cell__cli_has_storage(flags) && !flags->tools)
		return cell_fail(err, CELL_E_INVALID, 0, "--embeddings-url needs --base DIR, --storage DIR or --tools DIR to search in");
	/* A key that was given by mistake is not repeated. */
	if (name && (!*name || strspn(name, NAME_LETTERS) != strlen(name)))
		return cell_fail(err, CELL_E_INVALID, 0, "--embeddings-key-env must be the name of a variable");
	return 0;
}

static int check_flags(const struct cell_cli_space_flags *flags, struct cell_error *err)
{
	/* The URL may hold a password and is not repeated. */
	if (cell__cli_is_redis(flags->base))
		return cell_fail(err, CELL_E_INVALID, 0, "--base must be a folder; for Redis give --storage URL and --tools DIR");
	if (flags->workspace && !cell__cli_has_storage(flags))
		return cell_fail(err, CELL_E_INVALID, 0, "--workspace needs --storage DIR or --base DIR");
	if (flags->venv_dir && flags->no_cache_venv)
		return cell_fail(err, CELL_E_INVALID, 0, "--venv-dir and --no-cache-venv both set where packages go; give only one");
	return check_embeddings(flags, err);
}

/* NULL if the environment does not name it; the library then uses its default. */
char *cell__cli_cache_dir(void)
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	char *path = NULL;
	int n = 0;

	if (cache && cache[0] == '/')
		n = asprintf(&path, "%s/workcell", cache);
	else if (home && home[0] == '/')
		n = asprintf(&path, "%s/.cache/workcell", home);
	return n < 0 ? NULL : path;
}

const struct cell_space_options cell__cli_space_defaults = CELL_SPACE_OPTIONS_INIT;

/* The variables of the person's environment that pip and uv get. */
static bool is_for_installers(const char *entry)
{
	static const char *const starts[] = {
		"PIP_",       "UV_",       "SSL_CERT_FILE=",   "SSL_CERT_DIR=",    "REQUESTS_CA_BUNDLE=", "CURL_CA_BUNDLE=", "NETRC=",
		"HOME=",      "TMPDIR=",   "XDG_CONFIG_HOME=", "XDG_CONFIG_DIRS=", "XDG_CACHE_HOME=",     "http_proxy=",     "https_proxy=",
		"all_proxy=", "no_proxy=", "HTTP_PROXY=",      "HTTPS_PROXY=",     "ALL_PROXY=",          "NO_PROXY=",
	};

	for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
		if (!strncmp(entry, starts[i], strlen(starts[i])))
			return true;
	}
	return false;
}

/* The strings are the environment's; free() the array. */
static const char **installer_env(void)
{
	const char **env;
	size_t n = 0;

	while (environ[n])
		n++;
	env = calloc(n + 1, sizeof(*env));
	n = 0;
	for (char **entry = environ; env && *entry; entry++) {
		if (is_for_installers(*entry))
			env[n++] = *entry;
	}
	return env;
}

/* Each is NULL or ours to free. */
struct places {
	char *storage, *tools, *wheels, *cache, *oauth, *venv;
	char *key; /* "${VAR}" */
	char *model; /* "builtin:FOLDER", or NULL */
};

char *cell__cli_with_option(const char *url, const char *key, const char *value)
{
	char *out = malloc(strlen(url) + strlen(key) + 3 * strlen(value) + sizeof("?=")), *at = out;

	if (!out)
		return NULL;
	at += sprintf(at, "%s%c%s=", url, strchr(url, '?') ? '&' : '?', key);
	for (; *value; value++)
		at += strchr("%&#", *value) ? sprintf(at, "%%%02X", *value) : sprintf(at, "%c", *value);
	return out;
}

char *cell__cli_storage(const char *storage, const char *prefix, bool redis, struct cell_error *err)
{
	const char *place = storage;
	char *copy;

	if (!strncmp(storage, ENV_PLACE, strlen(ENV_PLACE))) {
		place = getenv(storage + strlen(ENV_PLACE));
		if (!place || !*place) {
			cell_fail(err, CELL_E_INVALID, 0, "the environment variable %.100s is not set", storage + strlen(ENV_PLACE));
			return NULL;
		}
	}
	if (!cell__cli_is_redis(place)) {
		/* A malformed URL may contain a password and is not repeated. */
		if (redis || prefix) {
			cell_fail(err, CELL_E_INVALID, 0,
				  redis ? "--redis must be a URL: redis://[user:password@]host[:port][/db]"
					: "--prefix requires storage in Redis");
			return NULL;
		}
		return cell__cli_absolute(place, err);
	}
	copy = prefix ? cell__cli_with_option(place, "prefix", prefix) : strdup(place);
	if (!copy)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a URL");
	return copy;
}

/* A storage that is missing may be a typing error: it is created only in a folder that exists, by a command that writes. */
static int check_folder(const struct cell_cli_space_flags *flags, const char *storage, struct cell_error *err)
{
	const char *flag = flags->storage ? "--storage" : "--base";
	char *parent, *slash;
	int status;

	if (access(storage, F_OK) == 0)
		return 0;
	if (flags->reads)
		return cell_fail(err, CELL_E_NOT_FOUND, errno, "%s %.200s", flag, storage);
	parent = strdup(storage);
	if (!parent)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	for (slash = parent + strlen(parent); slash > parent + 1 && slash[-1] == '/';)
		*--slash = '\0';
	slash = strrchr(parent, '/');
	if (slash)
		slash[slash == parent] = '\0';
	status = access(parent, F_OK) == 0
			 ? 0
			 : cell_fail(err, CELL_E_NOT_FOUND, errno, "%s %.200s is created, but not the folder that it is in", flag, storage);
	free(parent);
	return status;
}

static int find_places(const struct cell_cli_space_flags *flags, struct places *places, struct cell_error *err)
{
	const char *storage = flags->redis ? flags->redis : flags->storage ? flags->storage : flags->base;
	CELL_AUTO_FREE char *oauth = NULL;
	char *base;

	if (storage && !(places->storage = cell__cli_storage(storage, flags->prefix, flags->redis != NULL, err)))
		return -1;
	if (storage && !cell__cli_is_redis(places->storage) && check_folder(flags, places->storage, err) < 0)
		return -1;
	if (flags->tools) {
		places->tools = cell__cli_absolute(flags->tools, err);
		if (!places->tools || cell__cli_check_dir("--tools", places->tools, err) < 0)
			return -1;
	} else if (flags->base) {
		base = cell__cli_absolute(flags->base, err);
		if (!base)
			return -1;
		if (asprintf(&places->tools, "%s/tools", base) < 0)
			places->tools = NULL;
		free(base);
		if (!places->tools)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	}
	if (flags->wheel_dir) {
		places->wheels = cell__cli_absolute(flags->wheel_dir, err);
		if (!places->wheels || cell__cli_check_dir("--wheel-dir", places->wheels, err) < 0)
			return -1;
	}
	if (flags->venv_dir && !(places->venv = cell__cli_absolute(flags->venv_dir, err)))
		return -1;
	places->cache = cell__cli_cache_dir();
	if (flags->embeddings) {
		const char *model = !strcmp(flags->embeddings, "builtin") ? CELL_CLI_MODEL : flags->embeddings;
		CELL_AUTO_FREE char *folder = cell__cli_models_dir(model);

		if (!folder || asprintf(&places->model, "builtin:%s", folder) < 0) {
			places->model = NULL;
			return cell_fail(err, CELL_E_INVALID, 0,
					 "models have no folder: neither XDG_DATA_HOME nor HOME is an absolute path");
		}
	}
	/* What somebody logged in for in one workspace is not for the code of another. */
	if (asprintf(&oauth, "oauth%s%s", flags->workspace ? "/" : "", flags->workspace ? flags->workspace : "") < 0) {
		oauth = NULL;
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a name");
	}
	places->oauth = cell__cli_state_path(oauth);
	if (flags->embeddings_key_env && asprintf(&places->key, "${%s}", flags->embeddings_key_env) < 0) {
		places->key = NULL;
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a name");
	}
	return 0;
}

void cell__cli_warn_tools(struct cell_space *space)
{
	struct cell_error err;
	json_t *problems, *problem;
	size_t i;

	/* Where they cannot be listed, the tools cannot either, which the first call reports. */
	if (cell__cli_call(space, "tools.problems", json_object(), NULL, &problems, &err) < 0)
		return;
	json_array_foreach(problems, i, problem) {
		char *line;

		if (asprintf(&line, "workcell: warning: %s:%lld: %s", cell__cli_text(problem, "file"),
			     (long long)json_integer_value(json_object_get(problem, "line")), cell__cli_text(problem, "message")) < 0)
			break;
		cell__cli_note(line);
		free(line);
	}
	json_decref(problems);
}

int cell__cli_space_create(const struct cell_cli_space_flags *flags, struct cell_engine *engine, const char *python, const char *cwd,
			   struct cell_space **ret_space, struct cell_error *err)
{
	struct cell_space_options options = CELL_SPACE_OPTIONS_INIT;
	const char **env = installer_env();
	struct places places = { 0 };
	int status = -1;

	if (!check_flags(flags, err) && !find_places(flags, &places, err)) {
		options.storage = places.storage;
		options.workspace_id = flags->workspace;
		options.tools_dir = places.tools;
		options.tools_from_storage = flags->tools_from_storage;
		options.confined = flags->confined;
		options.cwd = cwd;
		options.getenv_fn = host_getenv;
		options.allow_runtime_deps = !flags->no_runtime_deps;
		options.python = python;
		options.cache_dir = places.cache;
		options.oauth_dir = places.oauth;
		options.index_url = flags->index_url;
		options.wheel_dir = places.wheels;
		options.venv_dir = places.venv;
		options.cache_venv = !flags->no_cache_venv;
		if (flags->cleanup_venv)
			options.cleanup_venv_on_close = 1;
		options.sync_deps_on_start = flags->sync_deps;
		options.installer_env = env;
		options.path = getenv("PATH");
		if (flags->install_timeout_ms)
			options.install_timeout_ms = flags->install_timeout_ms;
		if (!flags->quiet)
			options.on_progress = print_progress;
		options.embeddings_url = places.model ? places.model : flags->embeddings_url;
		options.embeddings_model = places.model ? strrchr(places.model, '/') + 1 : flags->embeddings_model;
		options.embeddings_key = places.key;
		status = cell_space_open(engine, &options, ret_space, err);
	}
	free(places.storage);
	free(places.tools);
	free(places.wheels);
	free(places.cache);
	free(places.oauth);
	free(places.venv);
	free(env);
	free(places.key);
	free(places.model);
	return status;
}
