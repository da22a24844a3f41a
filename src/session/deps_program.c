/* The programs of deps: interpreters that are asked, venv makers, installers; their environment and their words. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "session/deps_op.h"

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

/* Would it have installers work on something else than our venv, or do nothing? */
static bool leads_astray(const struct cell__deps_options *opts, const char *entry)
{
	static const char *const names[] = {
		"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_DRY_RUN", "PIP_REQUIREMENT",
		"PIP_EDITABLE", "UV_PYTHON", "UV_SYSTEM_PYTHON", "UV_MANAGED_PYTHON", "UV_PYTHON_PREFERENCE", "UV_PROJECT",
		"UV_PROJECT_ENVIRONMENT", "UV_WORKING_DIR",
		/* the last two: where nothing but the files of one folder is asked for */
		"PIP_FIND_LINKS", "UV_FIND_LINKS",
	};
	size_t n = sizeof names / sizeof *names, size = strcspn(entry, "=");
	if (!opts->wheel_dir || opts->index_url)
		n -= 2;
	for (size_t i = 0; i < n; i++)
		if (strlen(names[i]) == size && memcmp(names[i], entry, size) == 0)
			return true;
	return entry[size] != '=';
}

/* The first entry of a name is the one that counts. */
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
 * Nothing comes from the host's own environment.  The user's pip.conf and uv.toml are found through HOME.  An index's
 * address may carry a password: it goes here, because command lines are public.
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
		rc |= leads_astray(opts, opts->extra_env[i]) ? 0 : add_env(env, &n, opts->extra_env[i], NULL);
	rc |= add_env(env, &n, "PATH", opts->path);
	rc |= add_env(env, &n, "HOME", cell__home_dir());
	rc |= add_env(env, &n, "LANG", "C.UTF-8");
	rc |= add_env(env, &n, "NO_COLOR", "1");
	rc |= add_env(env, &n, "UV_PYTHON_DOWNLOADS", "never");
	/* A hard link into uv's cache would let a session that writes to its own venv change everybody's. */
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

/* What stands before the '@' of an address: how many bytes of it may be seen, and how many there are. */
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
		if (cell__buf_add(out, at, (size_t)(hit - at) + (found ? shown : 0)) < 0 ||
		    (found && cell__buf_add(out, "****", 4) < 0))
			return -1;
		at = hit + (found ? secret : 0);
	}
	return cell__buf_add(out, at, (size_t)(end - at));
}

static void hand_on(struct cell__dep_op *op, const char *line, size_t size)
{
	static const char enough[] = "[there is more; it is left out]";
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
		return; /* memory is gone: one line of a log less */
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
	if (size == 0 || cell__buf_add_utf8(&clean, words->data + from, size - from) < 0 ||
	    cell__buf_add(buf, clean.data, clean.size) < 0)
		return "it said nothing";
	return buf->data;
}

void cell__dep_fail_program(struct cell__dep_op *op, int code, const char *doing, const char *advice)
{
	CELL_AUTO_BUF struct cell__buf words = CELL_BUF_INIT, text = CELL_BUF_INIT;
	const struct cell__process_exit *how = &op->how;
	char end[160];
	if (how->error == ECONNRESET)
		code = CELL_E_SPAWNER;
	if (how->error)
		snprintf(end, sizeof end, "%s could not be started: %s", op->program, strerrordesc_np(how->error));
	else if (how->timed_out)
		snprintf(end, sizeof end, "%s took longer than %.3g s and was stopped", op->program,
			 (double)op->limit_ms / 1000.0);
	else if (how->signalled)
		snprintf(end, sizeof end, "%s was killed by signal %d", op->program, how->status);
	else
		snprintf(end, sizeof end, "%s ended with status %d", op->program, how->status);
	int rc = cell__buf_printf(&text, "cannot %s: %s", doing, end);
	if (!how->error)
		rc |= cell__buf_printf(&text, ":\n%s", cell__dep_words(op, &words));
	if (advice)
		rc |= cell__buf_printf(&text, "\n%s", advice);
	cell__dep_fail(op, code, rc == 0 ? text.data : end);
}

/* ---- running them ---- */

/* An installer that is killed leaves its downloads where it had them: in a folder of ours they go.  Wheels have one already. */
static const char **env_with_temp(const struct cell__dep_op *op, struct cell__buf *temp)
{
	const char *folder = op->temp ? op->temp : op->pyodide ? op->made : NULL;
	size_t n = 0, at = 0;
	while (op->deps->env[n])
		n++;
	const char **env = cell__alloc(n + 2, sizeof *env);
	if (!env || (folder && cell__buf_printf(temp, "TMPDIR=%s", folder) < 0)) {
		free(env);
		return NULL;
	}
	if (folder)
		env[at++] = temp->data;
	for (size_t i = 0; i < n; i++)
		if (!folder || strncmp(op->deps->env[i], "TMPDIR=", 7) != 0)
			env[at++] = op->deps->env[i];
	return env;
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
		op->exited(op);
}

void cell__dep_run(struct cell__dep_op *op, const char *const *argv, int64_t limit_ms, bool quiet,
		   cell__dep_step exited)
{
	struct cell__deps *deps = op->deps;
	CELL_AUTO_BUF struct cell__buf temp = CELL_BUF_INIT;
	CELL_AUTO_FREE const char **env = env_with_temp(op, &temp);
	if (!env) {
		cell__dep_fail(op, CELL_E_NOMEM, "out of memory");
		return;
	}
	int64_t left_ms = (op->until_us - cell__now_us()) / 1000;
	if (left_ms < 1)
		left_ms = 1;
	op->limit_ms = limit_ms < left_ms ? limit_ms : left_ms;
	op->exited = exited;
	op->quiet = quiet;
	cell__buf_finish(&op->captured);
	for (int i = 0; i < 2; i++) {
		cell__buf_finish(&op->line[i]);
		cell__buf_finish(&op->words[i]);
	}
	struct cell__process_spec spec = {
		.argv = argv,
		.env = env,
		.path = deps->path,
		.cwd = "/", /* a project's own files have no say in how its packages are installed */
		.timeout_ms = op->limit_ms,
		.output = handle_output,
		.exited = handle_exited,
		.owner = op,
	};
	if (cell__process_start(deps->hub, &spec, &deps->process, &op->err) < 0)
		cell__dep_fail_err(op);
}
