/*
 * The space that the common flags describe, and what the commands on its namespaces share: one operation, K=V
 * arguments, tables.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COLUMN_GAP 2
#define ENV_PLACE "env:"
#define NAME_LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789"

/* ---- opening -------------------------------------------------------------- */

bool cell__cli_has_storage(const struct cell_cli_space_flags *flags)
{
	return flags->base || flags->storage || flags->redis;
}

bool cell__cli_has_space(const struct cell_cli_space_flags *flags)
{
	return cell__cli_has_storage(flags) || flags->tools || flags->tools_from_storage || flags->workspace || flags->embeddings_url ||
	       flags->embeddings_model || flags->embeddings_key_env;
}

/* By cell_log_level; `critical` is said by nothing of ours, and so means silence. */
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
	dprintf(STDERR_FILENO, "workcell: %s: %s\n", log_words[level], shown ? shown : "");
	free(shown);
}

int cell__cli_space_log(const struct cell_cli_space_flags *flags, const char *level, struct cell_engine_options *options,
			struct cell_error *err)
{
	if (level || flags->embeddings_url)
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

/* The host's own environment and --env-file: what ${VAR} in a tool's definition means on the command line. */
static const char *host_getenv(void *arg, const char *name)
{
	(void)arg;
	return cell__cli_getenv(name);
}

/* On the thread that waits for the installer, which is the main one. */
static void print_progress(void *arg, const char *line)
{
	(void)arg;
	cell__cli_note(line);
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

/* NULL where the environment does not say; the library then has its own idea. */
static char *cache_dir(void)
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

/* What pip and uv are to know of the person's environment. */
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
	char *storage, *tools, *wheels, *cache, *venv;
	char *key; /* "${VAR}" */
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
		/* What should have been a URL may hold a password and is not repeated. */
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

static int find_places(const struct cell_cli_space_flags *flags, struct places *places, struct cell_error *err)
{
	const char *storage = flags->redis ? flags->redis : flags->storage ? flags->storage : flags->base;
	char *base;

	if (storage && !(places->storage = cell__cli_storage(storage, flags->prefix, flags->redis != NULL, err)))
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
	places->cache = cache_dir();
	if (flags->embeddings_key_env && asprintf(&places->key, "${%s}", flags->embeddings_key_env) < 0) {
		places->key = NULL;
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a name");
	}
	return 0;
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
		options.embeddings_url = flags->embeddings_url;
		options.embeddings_model = flags->embeddings_model;
		options.embeddings_key = places.key;
		status = cell_space_open(engine, &options, ret_space, err);
	}
	free(places.storage);
	free(places.tools);
	free(places.wheels);
	free(places.cache);
	free(places.venv);
	free(env);
	free(places.key);
	return status;
}

struct open_space {
	struct cell_engine *engine;
	struct cell_space *space;
};

static int open_space(const struct cell_cli_job *job, struct open_space *ret_space, struct cell_error *err)
{
	const struct cell_cli_space_flags *flags = job->space;
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct open_space space = { 0 };
	char *folder = NULL, *interpreter = NULL;
	int status = -1;

	if (cell__cli_load_env_file(flags->env_file, err) < 0)
		return -1;
	if (job->needs_storage && !cell__cli_has_storage(flags))
		return cell_fail(err, CELL_E_INVALID, 0, "give --base DIR or --storage DIR");
	if (!job->needs_storage && !flags->tools && !flags->base && !flags->tools_from_storage)
		return cell_fail(err, CELL_E_INVALID, 0, "give --base DIR or --tools DIR");
	if (job->cwd && (!(folder = cell__cli_absolute(job->cwd, err)) || cell__cli_check_dir("--cwd", folder, err) < 0))
		goto out;
	if (job->installs && cell__cli_choose_python(job->python, flags->python_version, &interpreter, err) < 0)
		goto out;
	options.pool_size = 0;
	if (cell__cli_space_log(flags, NULL, &options, err) < 0)
		goto out;
	if (cell_engine_create(&options, &space.engine, err) < 0)
		goto out;
	if (cell__cli_space_create(flags, space.engine, interpreter, folder, &space.space, err) < 0) {
		cell_engine_destroy(space.engine);
		goto out;
	}
	*ret_space = space;
	status = 0;
out:
	free(folder);
	free(interpreter);
	return status;
}

/* ---- operations ------------------------------------------------------------ */

/* Of the last operation that failed; stays to the end. */
static char *last_message;

void cell__cli_keep_message(struct cell_answer *answer)
{
	free(last_message);
	last_message = answer->message;
	answer->message = NULL;
}

int cell__cli_call_raw(struct cell_space *space, const char *method, json_t *args, const void *raw, size_t raw_size, char **ret_text,
		       void **ret_raw, size_t *ret_raw_size, struct cell_error *err)
{
	char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
	struct cell_answer answer = CELL_ANSWER_INIT;
	int status;

	json_decref(args);
	if (!text)
		return cell_fail(err, CELL_E_INVALID, 0, "the arguments of %s are not UTF-8", method);
	status = cell_space_call_ex(space, method, text, raw, raw_size, &answer, err);
	free(text);
	if (status < 0) {
		cell__cli_keep_message(&answer);
	} else if (ret_text) {
		*ret_text = answer.json;
		answer.json = NULL;
	}
	if (!status && ret_raw) {
		*ret_raw = answer.raw;
		*ret_raw_size = answer.raw_size;
		answer.raw = NULL;
	}
	cell_answer_finish(&answer);
	return status;
}

const char *cell__cli_whole_message(const struct cell_error *err)
{
	size_t size = strlen(err->msg);

	return size && last_message && !strncmp(last_message, err->msg, size) ? last_message : NULL;
}

int cell__cli_call(struct cell_space *space, const char *method, json_t *args, char **ret_text, json_t **ret_answer, struct cell_error *err)
{
	json_t *answer = NULL;
	json_error_t bad;
	char *text;

	if (cell__cli_call_raw(space, method, args, NULL, 0, &text, NULL, NULL, err) < 0)
		return -1;
	if (ret_answer) {
		answer = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, &bad);
		if (!answer) {
			free(text);
			return cell_fail(err, CELL_E_PROTOCOL, 0, "the answer of %s is not JSON: %s", method, bad.text);
		}
		*ret_answer = answer;
	}
	if (ret_text)
		*ret_text = text;
	else
		free(text);
	return 0;
}

int cell__cli_answer(struct cell_space *space, const char *method, json_t *args, bool json,
		     int (*print)(const json_t *answer, struct cell_error *err), struct cell_error *err)
{
	json_t *answer;
	char *text;
	int status = 0;

	if (cell__cli_call(space, method, args, &text, &answer, err) < 0)
		return -1;
	if (json)
		cell__cli_line(text);
	else
		status = print(answer, err);
	json_decref(answer);
	free(text);
	return status;
}

int cell__cli_remove(struct cell_space *space, const struct cell_cli_list *operands, bool json,
		     int (*remove)(struct cell_space *space, const char *name, struct cell_error *err), struct cell_error *err)
{
	json_t *removed = json_array();
	int status = 0;

	for (size_t i = 1; i < operands->count && !status; i++) {
		status = remove(space, operands->items[i].value, err);
		if (!status)
			json_array_append_new(removed, json_string(operands->items[i].value));
	}
	if (!status && json)
		status = cell__cli_print_json(removed, err);
	json_decref(removed);
	return status;
}

/* NULL: it is not there or its operands are too few or too many, which is said in *err. */
static const struct cell_cli_verb *find_verb(const struct cell_cli_verb *verbs, const char *command, const struct cell_cli_list *operands,
					     struct cell_error *err)
{
	char known[200] = "";
	const struct cell_cli_verb *verb = verbs;
	size_t n = operands->count;

	while (n && verb->name && strcmp(verb->name, operands->items[0].value))
		verb++;
	if (!n || !verb->name) {
		for (verb = verbs; verb->name; verb++)
			snprintf(known + strlen(known), sizeof(known) - strlen(known), "%s%s", *known ? ", " : "", verb->name);
		cell_fail(err, CELL_E_INVALID, 0,
			  n ? "workcell %s has the subcommands %s, not '%s'" : "workcell %s needs a subcommand: %s%s", command, known,
			  n ? operands->items[0].value : "");
		return NULL;
	}
	if (n - 1 < verb->min || n - 1 > verb->max) {
		cell_fail(err, CELL_E_INVALID, 0, "usage: workcell %s %s %s", command, verb->name, verb->operands);
		return NULL;
	}
	return verb;
}

int cell__cli_do(const struct cell_cli_job *job, const struct cell_cli_list *operands)
{
	const struct cell_cli_verb *verb;
	struct open_space space = { 0 };
	struct cell_error err;
	int status = -1;

	verb = find_verb(job->verbs, job->command, operands, &err);
	if (verb && (!job->space || (job->alone && !strcmp(verb->name, job->alone)))) {
		status = verb->run(job->flags, NULL, operands, &err);
	} else if (verb && !open_space(job, &space, &err)) {
		status = verb->run(job->flags, space.space, operands, &err);
		cell_space_close(space.space);
		cell_engine_destroy(space.engine);
	}
	if (cell__cli_stop_status())
		return cell__cli_stop_status();
	return status < 0 ? cell__cli_report(&err, job->json) : status;
}

/* ---- K=V -------------------------------------------------------------------- */

enum value_kind { VALUE_TEXT, VALUE_JSON, VALUE_LIST, VALUE_ANY };

static bool starts_with_one_of(const char *text, const char *const *starts)
{
	for (; *starts; starts++) {
		if (!strncmp(text, *starts, strlen(*starts)))
			return true;
	}
	return false;
}

static enum value_kind kind_of(const json_t *parameters, const char *name)
{
	static const char *const texts[] = { "str", NULL };
	static const char *const lists[] = { "array", "list", NULL };
	static const char *const values[] = { "int", "float", "num", "bool", "obj", "dict", NULL };
	const json_t *parameter;
	const char *type;
	size_t i;

	json_array_foreach(parameters, i, parameter) {
		if (strcmp(cell__cli_text(parameter, "name"), name))
			continue;
		type = cell__cli_text(parameter, "type");
		if (starts_with_one_of(type, texts))
			return VALUE_TEXT;
		if (starts_with_one_of(type, lists))
			return VALUE_LIST;
		if (starts_with_one_of(type, values))
			return VALUE_JSON;
		return VALUE_ANY;
	}
	return VALUE_ANY;
}

/* What is no JSON stays text: whoever takes it then says what it wants instead. */
static json_t *read_value(enum value_kind kind, const char *text)
{
	json_t *value = NULL;

	if (kind == VALUE_JSON || kind == VALUE_ANY || (kind == VALUE_LIST && *text == '['))
		value = json_loads(text, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	return value ? value : json_string(text);
}

/* given: what earlier K=V have set; another one of the same name adds to a list. */
static int set_argument(json_t *object, json_t *given, const json_t *parameters, const char *word, struct cell_error *err)
{
	const char *equals = strchr(word, '=');
	char *name = equals && equals > word ? strndup(word, (size_t)(equals - word)) : NULL;
	enum value_kind kind;
	json_t *value, *before, *list;
	int status = -1;

	if (!name)
		return cell_fail(err, CELL_E_INVALID, 0, "an argument must be K=V, not '%s'", word);
	kind = kind_of(parameters, name);
	value = read_value(kind, equals + 1);
	before = json_object_get(given, name);
	if (value && kind == VALUE_LIST && !json_is_array(value)) {
		list = before ? json_incref(before) : json_array();
		json_array_append_new(list, value);
		value = list;
	} else if (before) {
		cell_fail(err, CELL_E_INVALID, 0, "'%s' is given twice", name);
		goto out;
	}
	if (!value || json_object_set(given, name, value) < 0 || json_object_set(object, name, value) < 0)
		cell_fail(err, CELL_E_INVALID, 0, "'%s' is not UTF-8", name);
	else
		status = 0;
out:
	json_decref(value);
	free(name);
	return status;
}

int cell__cli_arguments(const char *args, const struct cell_cli_list *operands, size_t first, const json_t *parameters, json_t **ret_args,
			struct cell_error *err)
{
	json_t *object, *given;
	json_error_t bad;
	int status = 0;

	object = args ? json_loads(args, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &bad) : json_object();
	if (!json_is_object(object)) {
		json_decref(object);
		return cell_fail(err, CELL_E_INVALID, 0, "--args must be a JSON object%s%s", object ? "" : ": ", object ? "" : bad.text);
	}
	given = json_object();
	for (size_t i = first; i < operands->count && !status; i++)
		status = set_argument(object, given, parameters, operands->items[i].value, err);
	json_decref(given);
	if (status < 0) {
		json_decref(object);
		return -1;
	}
	*ret_args = object;
	return 0;
}

/* ---- output ------------------------------------------------------------------ */

void cell__cli_show(const char *text, size_t size)
{
	char *shown = isatty(STDOUT_FILENO) ? cell_shown_text(text, size, CELL_SHOWN_LINES) : NULL;

	/* Without memory a terminal gets nothing rather than what the code made of it. */
	if (shown)
		cell__cli_write(STDOUT_FILENO, shown, strlen(shown));
	else if (!isatty(STDOUT_FILENO))
		cell__cli_write(STDOUT_FILENO, text, size);
	free(shown);
}

void cell__cli_line(const char *text)
{
	cell__cli_show(text, strlen(text));
	cell__cli_write(STDOUT_FILENO, "\n", 1);
}

int cell__cli_print_json(const json_t *value, struct cell_error *err)
{
	char *line = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);

	if (!line)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory to print an answer");
	cell__cli_line(line);
	free(line);
	return 0;
}

const char *cell__cli_text(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

char *cell__cli_plain(const char *text)
{
	return cell_shown_text(text, strcspn(text, "\r\n"), CELL_SHOWN_LINE);
}

void cell__cli_note(const char *text)
{
	char *line = cell__cli_plain(text);

	if (!line)
		return; /* no memory: a line of progress less */
	cell__cli_write(STDERR_FILENO, line, strlen(line));
	cell__cli_write(STDERR_FILENO, "\n", 1);
	free(line);
}

/* How much of a line a text takes, roughly: its code points. */
static size_t width(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}

void cell__cli_table_add(struct cell_cli_table *table, const char *const *texts)
{
	for (size_t i = 0; i < table->columns && !table->failed; i++) {
		if (table->count == table->room) {
			size_t room = table->room ? table->room * 2 : 64;
			char **cells = reallocarray(table->cells, room, sizeof(*cells));

			if (!cells) {
				table->failed = true;
				return;
			}
			table->cells = cells;
			table->room = room;
		}
		table->cells[table->count] = cell__cli_plain(texts[i]);
		table->failed = !table->cells[table->count];
		table->count += !table->failed;
	}
}

static void print_row(FILE *out, size_t columns, char *const *row, const size_t *widths)
{
	/* Nothing stands at the end of a line that cannot be seen. */
	while (columns && !*row[columns - 1])
		columns--;
	for (size_t i = 0; i < columns; i++)
		fprintf(out, "%s%*s", row[i], i + 1 < columns ? (int)(widths[i] - width(row[i])) + COLUMN_GAP : 0, "");
	putc('\n', out);
}

int cell__cli_table_print(struct cell_cli_table *table, struct cell_error *err)
{
	size_t widths[CELL_CLI_MAX_COLUMNS] = { 0 }, size;
	char *text = NULL;
	FILE *out = table->failed ? NULL : open_memstream(&text, &size);

	for (size_t i = 0; i < table->count; i++) {
		size_t n = width(table->cells[i]);

		if (n > widths[i % table->columns])
			widths[i % table->columns] = n;
	}
	for (size_t i = 0; out && i + table->columns <= table->count; i += table->columns)
		print_row(out, table->columns, table->cells + i, widths);
	for (size_t i = 0; i < table->count; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct cell_cli_table){ .columns = table->columns };
	if (!out || fclose(out)) {
		free(text);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a table");
	}
	cell__cli_write(STDOUT_FILENO, text, size);
	free(text);
	return 0;
}

static void print_problems(const json_t *problems)
{
	const json_t *problem;
	size_t i;

	json_array_foreach(problems, i, problem) {
		struct cell_cli_table line = { .columns = 1 };
		char *words;

		if (asprintf(&words, "%s:%" JSON_INTEGER_FORMAT ": %s", cell__cli_text(problem, "file"),
			     json_integer_value(json_object_get(problem, "line")), cell__cli_text(problem, "message")) < 0)
			break;
		cell__cli_table_add(&line, (const char *[]){ words });
		cell__cli_table_print(&line, NULL);
		free(words);
	}
}

int cell__cli_report_problems(char *text, json_t *problems, bool json)
{
	size_t n = json_array_size(problems);

	if (json)
		cell__cli_line(text);
	else
		print_problems(problems);
	json_decref(problems);
	free(text);
	return n ? 1 : 0;
}
