/*
 * The programs of deps: interpreters, venv makers, installers; their environment, their output, and the confinement of those that touch a
 * venv of untrusted principals.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/hole.h"
#include "deps/operation.h"
#include "spawn/confinement.h"

#define CAPTURE_BYTES 65536u

/* ---- their environment ---- */

static bool has_key(char *const *env, size_t n, const char *entry)
{
	size_t size = strcspn(entry, "=");
	for (size_t i = 0; i < n; i++)
		if (strncmp(env[i], entry, size) == 0 && env[i][size] == '=')
			return true;
	return false;
}

/* Whether it would make installers work on another folder than our venv, or do nothing. */
static bool leads_astray(const struct cell__deps_options *opts, const char *entry)
{
	static const char *const names[] = {
		"PIP_TARGET",
		"PIP_PREFIX",
		"PIP_ROOT",
		"PIP_USER",
		"PIP_PYTHON",
		"PIP_DRY_RUN",
		"PIP_REQUIREMENT",
		"PIP_EDITABLE",
		"UV_PYTHON",
		"UV_SYSTEM_PYTHON",
		"UV_MANAGED_PYTHON",
		"UV_PYTHON_PREFERENCE",
		"UV_PROJECT",
		"UV_PROJECT_ENVIRONMENT",
		"UV_WORKING_DIR",
		/* the last two: only if the files of one folder are the only source */
		"PIP_FIND_LINKS",
		"UV_FIND_LINKS",
	};
	size_t n = sizeof names / sizeof *names, size = strcspn(entry, "=");
	if (!opts->wheel_dir || opts->index_url)
		n -= 2;
	for (size_t i = 0; i < n; i++)
		if (strlen(names[i]) == size && memcmp(names[i], entry, size) == 0)
			return true;
	return entry[size] != '=';
}

/*
 * The variables of the person's environment that confined installers may get: the index, how to reach it, and its certificates. Others name
 * files and folders of the host, or request features that untrusted principals must not have.
 */
static bool is_about_index(const char *entry)
{
	static const char *const names[] = {
		"PIP_INDEX_URL",
		"PIP_EXTRA_INDEX_URL",
		"PIP_TRUSTED_HOST",
		"PIP_CERT",
		"PIP_CLIENT_CERT",
		"PIP_TIMEOUT",
		"PIP_DEFAULT_TIMEOUT",
		"PIP_RETRIES",
		"PIP_PRE",
		"PIP_CONFIG_FILE",
		"UV_DEFAULT_INDEX",
		"UV_INDEX",
		"UV_INDEX_URL",
		"UV_EXTRA_INDEX_URL",
		"UV_INDEX_STRATEGY",
		"UV_HTTP_TIMEOUT",
		"UV_NATIVE_TLS",
		"UV_SYSTEM_CERTS",
		"UV_INSECURE_HOST",
		"UV_PRERELEASE",
		"UV_CONFIG_FILE",
		"UV_EXCLUDE_NEWER",
		"SSL_CERT_FILE",
		"SSL_CERT_DIR",
		"REQUESTS_CA_BUNDLE",
		"CURL_CA_BUNDLE",
		"HOME",
		"XDG_CONFIG_HOME",
	};
	size_t size = strcspn(entry, "=");
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strlen(names[i]) == size && memcmp(names[i], entry, size) == 0)
			return true;
	/* UV_INDEX_<NAME>_USERNAME, _PASSWORD */
	return strncmp(entry, "UV_INDEX_", 9) == 0;
}

/* The first entry of a name counts. */
static int add_env(char **env, size_t *n, const char *name, const char *value)
{
	struct cell__buf entry = CELL_BUF_INIT;
	if (cell__buf_printf(&entry, "%s%s%s", name, value ? "=" : "", value ? value : "") < 0)
		return -1;
	if (has_key(env, *n, entry.data))
		cell__buf_finish(&entry);
	else
		env[(*n)++] = cell__buf_take(&entry);
	return 0;
}

/*
 * Nothing comes from the host's own environment. The user's pip.conf and uv.toml are found through HOME. An index's address may contain a
 * password: it goes here, because command lines are public.
 */
char **cell__deps_make_env(const struct cell__deps_options *opts)
{
	size_t extra = 0, n = 0;
	while (opts->extra_env && opts->extra_env[extra])
		extra++;
	char **env = cell__alloc(extra + 16, sizeof *env);
	if (!env)
		return NULL;
	int rc = 0;
	if (opts->index_url) {
		rc |= add_env(env, &n, "PIP_INDEX_URL", opts->index_url);
		rc |= add_env(env, &n, "UV_DEFAULT_INDEX", opts->index_url);
		rc |= add_env(env, &n, "UV_INDEX_URL", opts->index_url); /* for uv before 0.4.23 */
	}
	for (size_t i = 0; i < extra; i++)
		if (!leads_astray(opts, opts->extra_env[i]) && (!opts->confined || is_about_index(opts->extra_env[i])))
			rc |= add_env(env, &n, opts->extra_env[i], NULL);
	rc |= add_env(env, &n, "PATH", opts->path);
	rc |= add_env(env, &n, "HOME", cell__home_dir());
	rc |= add_env(env, &n, "LANG", "C.UTF-8");
	rc |= add_env(env, &n, "NO_COLOR", "1");
	rc |= add_env(env, &n, "UV_PYTHON_DOWNLOADS", "never");
	/* With a hard link into uv's cache, a session that writes to its own venv would change every other venv. */
	rc |= add_env(env, &n, "UV_LINK_MODE", "copy");
	if (rc == 0)
		return env;
	for (size_t i = 0; i < n; i++)
		free(env[i]);
	free(env);
	return NULL;
}

/* ---- their words ---- */

/* How many of the first size bytes can go without cutting a character in two. */
static size_t whole_chars(const char *bytes, size_t size)
{
	size_t cut = size;
	while (cut > 0 && size - cut < 3 && ((unsigned char)bytes[cut] & 0xc0) == 0x80)
		cut--;
	return cut > 0 ? cut : size;
}

/* The part before the '@' of an address: the number of bytes that may be shown, and its size. */
static bool find_secret(const char *address, const char *end, size_t *ret_shown, size_t *ret_size)
{
	const char *at = NULL, *colon = NULL;
	for (const char *c = address; c < end && !strchr("/?# \t\"'<>", *c); c++) {
		if (*c == '@')
			at = c;
		else if (*c == ':' && !colon)
			colon = c;
	}
	if (!at)
		return false;
	*ret_shown = colon && colon < at ? (size_t)(colon - address) + 1 : 0;
	*ret_size = (size_t)(at - address);
	return true;
}

/* Well-formed, and without the passwords of addresses: installers hide most of theirs, their plugins do not. */
static int clean_line(const char *bytes, size_t size, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__buf_add_utf8(&text, bytes, size) < 0 || cell__buf_add(&text, "", 0) < 0)
		return -1;
	const char *at = text.data, *end = text.data + text.size, *hit;
	while ((hit = memmem(at, (size_t)(end - at), "://", 3))) {
		size_t shown, secret;
		hit += 3;
		bool found = find_secret(hit, end, &shown, &secret);
		if (cell__buf_add(out, at, (size_t)(hit - at) + (found ? shown : 0)) < 0 || (found && cell__buf_add(out, "****", 4) < 0))
			return -1;
		at = hit + (found ? secret : 0);
	}
	return cell__buf_add(out, at, (size_t)(end - at));
}

static void hand_on(struct cell__dep_op *op, const char *line, size_t size)
{
	static const char enough[] = "[output truncated]";
	struct cell__call *call = op->call;
	if (!call || !call->progress || op->stopped || op->told > CELL__DEPS_PROGRESS_BYTES)
		return;
	op->told += size + 1;
	bool fits = op->told <= CELL__DEPS_PROGRESS_BYTES;
	call->progress(call, fits ? line : enough, fits ? size : sizeof enough - 1);
}

void cell__dep_say(struct cell__dep_op *op, const char *line)
{
	hand_on(op, line, strlen(line));
}

static void say_line(struct cell__dep_op *op, int stream, const char *bytes, size_t size)
{
	if (size > 0 && bytes[size - 1] == '\r')
		size--;
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	if (clean_line(bytes, size, &clean) < 0)
		return; /* out of memory: the log loses one line */
	struct cell__buf *words = &op->words[stream];
	(void)cell__buf_add(words, clean.data, clean.size);
	(void)cell__buf_add(words, "\n", 1);
	if (words->size > 4 * CELL__DEPS_MESSAGE_BYTES)
		cell__buf_shift(words, words->size - 2 * CELL__DEPS_MESSAGE_BYTES);
	if (!op->quiet)
		hand_on(op, clean.data, clean.size);
}

static void say(struct cell__dep_op *op, int stream, const char *bytes, size_t size)
{
	struct cell__buf *line = &op->line[stream];
	if (cell__buf_add(line, bytes, size) < 0)
		return;
	size_t at = 0;
	while (at < line->size) {
		const char *end = memchr(line->data + at, '\n', line->size - at);
		size_t n = end ? (size_t)(end - line->data) - at : line->size - at;
		bool cut = n > CELL__DEPS_LINE_BYTES;
		if (!end && !cut)
			break;
		if (cut)
			n = whole_chars(line->data + at, CELL__DEPS_LINE_BYTES);
		say_line(op, stream, line->data + at, n);
		at += n + (cut ? 0 : 1);
	}
	cell__buf_shift(line, at);
}

static void handle_output(void *owner, enum cell_stream stream, const char *bytes, size_t size)
{
	struct cell__dep_op *op = owner;
	int i = stream == CELL_STDOUT ? 0 : 1;
	if (op->quiet && i == 0) {
		size_t room = CAPTURE_BYTES - op->captured.size;
		(void)cell__buf_add(&op->captured, bytes, size < room ? size : room);
		return;
	}
	say(op, i, bytes, size);
}

const char *cell__dep_words(struct cell__dep_op *op, struct cell__buf *buf)
{
	const struct cell__buf *words = op->words[1].size > 0 ? &op->words[1] : &op->words[0];
	size_t size = words->size, from = 0;
	while (size > 0 && strchr(" \n\t", words->data[size - 1]))
		size--;
	if (size > CELL__DEPS_MESSAGE_BYTES) {
		from = size - CELL__DEPS_MESSAGE_BYTES;
		const char *line = memchr(words->data + from, '\n', size - from);
		from = line ? (size_t)(line - words->data) + 1 : from + 3;
	}
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	if (size == 0 || cell__buf_add_utf8(&clean, words->data + from, size - from) < 0 || cell__buf_add(buf, clean.data, clean.size) < 0)
		return "it printed nothing";
	return buf->data;
}

void cell__dep_fail_program(struct cell__dep_op *op, int code, const char *doing, const char *advice)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT, text = CELL_BUF_INIT;
	const struct cell__process_exit *how = &op->how;
	char end[160];
	if (how->error == ECONNRESET)
		code = CELL_E_SPAWNER;
	if (how->failure.code) {
		code = how->failure.code;
		snprintf(end, sizeof end, "%s could not be confined", op->program);
	} else if (how->error)
		snprintf(end, sizeof end, "%s could not be started: %s", op->program, strerrordesc_np(how->error));
	else if (how->timed_out)
		snprintf(end, sizeof end, "%s took longer than %.3g s and was stopped", op->program, (double)op->limit_ms / 1000.0);
	else if (how->signalled)
		snprintf(end, sizeof end, "%s was killed by signal %d", op->program, how->status);
	else
		snprintf(end, sizeof end, "%s ended with status %d", op->program, how->status);
	int rc = cell__buf_printf(&text, "cannot %s: %s", doing, end);
	if (how->failure.code)
		rc |= cell__buf_printf(&text, ": %s", how->failure.msg);
	else if (!how->error)
		rc |= cell__buf_printf(&text, ":\n%s", cell__dep_words(op, &words));
	if (advice)
		rc |= cell__buf_printf(&text, "\n%s", advice);
	cell__dep_fail(op, code, rc == 0 ? text.data : end);
}

/* ---- their confinement ---- */

#define PATHS_MAX 64

struct folders {
	const char *list[PATHS_MAX + 1]; /* NULL-terminated */
	char *made[PATHS_MAX];
	size_t n, n_made;
};

static void folders_finish(struct folders *folders)
{
	for (size_t i = 0; i < folders->n_made; i++)
		free(folders->made[i]);
}
#define AUTO_FOLDERS __attribute__((cleanup(folders_finish)))

static void show(struct folders *folders, const char *path)
{
	if (path && folders->n < PATHS_MAX && access(path, F_OK) == 0) {
		folders->list[folders->n++] = path;
		folders->list[folders->n] = NULL;
	}
}

static void show_in(struct folders *folders, const char *dir, const char *name)
{
	struct cell__buf path = CELL_BUF_INIT;
	if (!dir || folders->n_made == PATHS_MAX || cell__buf_printf(&path, "%s/%s", dir, name) < 0)
		return;
	folders->made[folders->n_made] = cell__buf_take(&path);
	show(folders, folders->made[folders->n_made++]);
}

static const char *env_value(const struct cell__deps *deps, const char *name)
{
	size_t size = strlen(name);
	for (char **entry = deps->env; *entry; entry++)
		if (strncmp(*entry, name, size) == 0 && (*entry)[size] == '=')
			return *entry + size + 1;
	return NULL;
}

/* The files with the person's index and certificates. */
static void show_settings(const struct cell__deps *deps, struct folders *read)
{
	static const char *const named[] = { "PIP_CERT",      "PIP_CLIENT_CERT", "PIP_CONFIG_FILE",    "UV_CONFIG_FILE",
					     "SSL_CERT_FILE", "SSL_CERT_DIR",    "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE" };
	static const char *const system[] = { "/etc/pip.conf", "/etc/xdg/pip", "/etc/uv" };
	const char *home = env_value(deps, "HOME"), *config = env_value(deps, "XDG_CONFIG_HOME");
	for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
		const char *path = env_value(deps, named[i]);
		show(read, path && path[0] == '/' ? path : NULL);
	}
	for (size_t i = 0; i < sizeof system / sizeof *system; i++)
		show(read, system[i]);
	show_in(read, home, ".pip/pip.conf");
	show_in(read, config ? config : home, config ? "pip" : ".config/pip");
	show_in(read, config ? config : home, config ? "uv" : ".config/uv");
}

static const char **texts_of(json_t *array)
{
	size_t n = json_array_size(array), kept = 0;
	const char **texts = cell__alloc(n + 1, sizeof *texts);
	for (size_t i = 0; texts && i < n; i++)
		if (cell__dep_text(array, i))
			texts[kept++] = cell__dep_text(array, i);
	return texts;
}

/* A resolver or installer of many packages needs more than code of unknown intent. */
static int installer_policy(struct cell__sandbox_policy *policy, struct cell_error *err)
{
	if (cell__sandbox_policy_load(policy, CELL_POLICY_DEFAULT, err) < 0)
		return -1;
	snprintf(policy->name, sizeof policy->name, "installer");
	policy->memory_bytes *= 2;
	policy->files = 4096;
	policy->file_size_bytes *= 4;
	policy->tmp_bytes *= 4;
	return 0;
}

/*
 * Every program that touches a venv of untrusted principals, or a wheel for them, runs in this confinement: it writes to that venv and the
 * installers' own cache, sees the interpreter, the wheels and the settings of the index, and reaches only the index, or no host.
 */
static int confine(struct cell__dep_op *op, bool network, struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct cell__deps *deps = op->deps;
	struct cell__sandbox_policy policy = { 0 };
	struct cell__plan_env files = { 0 };
	AUTO_FOLDERS struct folders read = { .n = 0 }, write = { .n = 0 };
	CELL_AUTO_FREE const char **paths = texts_of(deps->paths);
	CELL_AUTO_FREE const char **hosts = texts_of(deps->hosts);
	if (!paths || !hosts || cell__plan_env_init(&files, paths) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	show_in(&write, deps->project, "env");
	show_in(&write, deps->project, "cache");
	if (op->pyodide)
		show(&write, op->made);
	show_in(&read, deps->project, "notes");
	show(&read, deps->wheel_dir);
	show(&read, op->uv);
	if (network)
		show_settings(deps, &read);
	int rc = installer_policy(&policy, err);
	if (rc == 0) {
		const struct cell__confinement_options options = {
			.policy = &policy,
			.mode = CELL_WORKSPACE_NONE,
			.read = read.list,
			.write = write.list,
			.env = &files,
			.network = network ? CELL_CONFINED_INDEX : CELL_CONFINED_OFFLINE,
			.index_hosts = hosts,
		};
		rc = cell__confinement_create(deps->supervisor, &options, ret_confinement, err);
		cell__sandbox_policy_finish(&policy);
	}
	cell__plan_env_finish(&files);
	return rc;
}

/* ---- running them ---- */

static int put_entry(const char **env, size_t *at, struct cell__buf *buf, const char *name, const char *folder, const char *below)
{
	if (cell__buf_printf(buf, "%s=%s%s", name, folder, below) < 0)
		return -1;
	env[(*at)++] = buf->data;
	return 0;
}

struct program_env {
	const char **list;
	struct cell__buf temp, uv_cache, pip_cache, venv;
};

static void program_env_finish(struct program_env *env)
{
	free(env->list);
	cell__buf_finish(&env->temp);
	cell__buf_finish(&env->uv_cache);
	cell__buf_finish(&env->pip_cache);
	cell__buf_finish(&env->venv);
}

/* A killed installer leaves its downloads behind: in a folder of ours they are removed. Wheels have such a folder already. */
static int make_program_env(const struct cell__dep_op *op, const struct cell__confinement *confinement, struct program_env *env)
{
	const struct cell__deps *deps = op->deps;
	const char *folder = op->temp ? op->temp : op->pyodide ? op->made : NULL;
	const char *const *more = confinement ? cell__confinement_env(confinement) : NULL;
	size_t n = 0, at = 0;
	while (deps->env[n])
		n++;
	for (size_t i = 0; more && more[i]; i++)
		n++;
	env->list = cell__alloc(n + 5, sizeof *env->list);
	if (!env->list)
		return -1;
	if (folder && put_entry(env->list, &at, &env->temp, "TMPDIR", folder, "") < 0)
		return -1;
	if (confinement && (put_entry(env->list, &at, &env->uv_cache, "UV_CACHE_DIR", deps->project, "/cache/uv") < 0 ||
			    put_entry(env->list, &at, &env->pip_cache, "PIP_CACHE_DIR", deps->project, "/cache/pip") < 0))
		return -1;
	if (confinement && deps->dir && put_entry(env->list, &at, &env->venv, "UV_PROJECT_ENVIRONMENT", deps->dir, "") < 0)
		return -1;
	for (size_t i = 0; more && more[i]; i++)
		/* HOME is the person's, where settings are shown; an index at 127.0.0.1 is the host's, and behind the proxy. */
		if (strncmp(more[i], "HOME=", 5) != 0 && strncasecmp(more[i], "no_proxy=", 9) != 0)
			env->list[at++] = more[i];
	for (char **entry = deps->env; *entry; entry++)
		if (!folder || strncmp(*entry, "TMPDIR=", 7) != 0)
			env->list[at++] = *entry;
	return 0;
}

static void no_work(struct cell__dep_op *op)
{
	(void)op;
}

static void handle_exited(void *owner, const struct cell__process_exit *how)
{
	struct cell__dep_op *op = owner;
	op->deps->process = NULL;
	op->how = *how;
	for (int i = 0; i < 2; i++)
		if (op->line[i].size > 0) {
			say_line(op, i, op->line[i].data, op->line[i].size);
			cell__buf_finish(&op->line[i]);
		}
	if (op->stopped)
		cell__dep_fail(op, CELL_E_CANCELLED, "stopped");
	else
		cell__dep_pool(op, no_work, op->exited); /* where the venv is now */
}

static void start(struct cell__dep_op *op, const char *const *argv, struct cell__confinement *confinement)
{
	struct cell__deps *deps = op->deps;
	struct program_env env = { 0 };
	int64_t left_ms = (op->until_us - cell__now_us()) / 1000;
	if (left_ms < 1)
		left_ms = 1;
	if (op->limit_ms > left_ms)
		op->limit_ms = left_ms;
	cell__buf_finish(&op->captured);
	for (int i = 0; i < 2; i++) {
		cell__buf_finish(&op->line[i]);
		cell__buf_finish(&op->words[i]);
	}
	struct cell__process_spec spec = {
		.argv = argv,
		.path = deps->path,
		.cwd = "/", /* a project's own files must not influence how its packages are installed */
		.timeout_ms = op->limit_ms,
		.confine = confinement,
		.output = handle_output,
		.exited = handle_exited,
		.owner = op,
	};
	int rc = make_program_env(op, confinement, &env);
	if (rc < 0)
		cell_fail(&op->err, CELL_E_NOMEM, 0, "out of memory");
	spec.env = env.list;
	if (rc == 0)
		rc = cell__process_start(deps->supervisor, &spec, &deps->process, &op->err);
	program_env_finish(&env);
	if (rc < 0)
		cell__dep_fail_err(op);
}

void cell__dep_run_trusted(struct cell__dep_op *op, const char *const *argv, int64_t limit_ms, cell__dep_step exited)
{
	op->limit_ms = limit_ms;
	op->quiet = true;
	op->exited = exited;
	start(op, argv, NULL);
}

static void confine_work(struct cell__dep_op *op)
{
	bool network = op->online && cell__deps_has_network(op->deps);
	op->online = false;
	op->rc = confine(op, network, &op->confinement, &op->err);
	if (op->rc < 0 && op->err.code == CELL_E_UNAVAILABLE)
		cell_fail_wrap(&op->err, "packages cannot be installed for sandboxed code");
}

static void start_confined(struct cell__dep_op *op)
{
	char **argv = cell__take_ptr(op->argv);
	struct cell__confinement *confinement = cell__take_ptr(op->confinement);
	start(op, (const char *const *)argv, confinement);
	cell__confinement_unref(confinement);
	cell__strings_free(argv);
}

void cell__dep_run(struct cell__dep_op *op, const char *const *argv, int64_t limit_ms, bool quiet, cell__dep_step exited)
{
	op->limit_ms = limit_ms;
	op->quiet = quiet;
	op->exited = exited;
	if (!op->deps->confined || is_hole("deps-confine")) {
		op->online = false;
		start(op, argv, NULL);
		return;
	}
	op->argv = cell__strings_copy(argv);
	if (op->argv)
		cell__dep_pool(op, confine_work, start_confined);
	else
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
}

/* ---- the index ---- */

bool cell__deps_has_network(const struct cell__deps *deps)
{
	return deps->has_index || !deps->wheel_dir;
}

/* "https://user:secret@host:8080/simple" as "host:8080". */
static void add_host(json_t *hosts, const char *url)
{
	bool plain = strncmp(url, "http://", 7) == 0;
	url += plain ? 7 : 8;
	size_t size = strcspn(url, "/?# \t");
	const char *at = memrchr(url, '@', size);
	const char *host = at ? at + 1 : url;
	size -= (size_t)(host - url);
	const char *bracket = memchr(host, ']', size);
	bool has_port = memchr(bracket ? bracket : host, ':', size - (bracket ? (size_t)(bracket - host) : 0)) != NULL;
	char text[300];
	if (size > 0 && size < 256) {
		snprintf(text, sizeof text, "%.*s%s", (int)size, host, has_port ? "" : plain ? ":80" : ":443");
		json_array_append_new(hosts, json_string(text));
	}
}

json_t *cell__deps_env_hosts(const struct cell__deps *deps)
{
	static const char *const names[] = { "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX",
					     "UV_INDEX",      "UV_INDEX_URL",        "UV_EXTRA_INDEX_URL" };
	json_t *hosts = json_array();
	for (size_t i = 0; hosts && i < sizeof names / sizeof *names; i++) {
		const char *value = env_value(deps, names[i]);
		for (const char *at = value; at && (at = strstr(at, "://")); at += 3) {
			if (at - value >= 5 && strncmp(at - 5, "https", 5) == 0)
				add_host(hosts, at - 5);
			else if (at - value >= 4 && strncmp(at - 4, "http", 4) == 0)
				add_host(hosts, at - 4);
		}
	}
	return hosts;
}
