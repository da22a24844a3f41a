/*
 * Flags and their help, errors in words, and the session that the common flags describe.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#define MAX_SECONDS 1e9
#define MAX_POOL 1000
#define HELP_COLUMN 28

/* ---- errors ------------------------------------------------------------- */

/* A copy in which the bytes that `hides` picks are shown as \xNN; free() it. */
static char *show_bytes(const char *text, bool (*hides)(unsigned char byte))
{
	char *copy = malloc(strlen(text) * 4 + 1), *out = copy;

	for (const unsigned char *p = (const unsigned char *)text; copy && *p; p++)
		out += sprintf(out, hides(*p) ? "\\x%02x" : "%c", *p);
	if (copy)
		*out = '\0';
	return copy;
}

static bool is_not_ascii(unsigned char byte)
{
	return byte >= 0x80;
}

static char *error_json(int code, const char *message)
{
	json_t *root = json_pack("{s:{s:s, s:s}}", "error", "code", cell_code_word(code), "message", message);
	char *shown, *line;

	/* A message may quote bytes that are not UTF-8: they are shown as they would be on stderr. */
	if (!root) {
		shown = show_bytes(message, is_not_ascii);
		root = json_pack("{s:{s:s, s:s}}", "error", "code", cell_code_word(code), "message", shown ? shown : "");
		free(shown);
	}
	line = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	return line;
}

char *cell__cli_error_json(const struct cell_error *err)
{
	return error_json(err->code, err->msg);
}

int cell__cli_report(const struct cell_error *err, bool json)
{
	const char *whole = cell__cli_whole_message(err), *message = whole ? whole : err->msg;
	char *shown, *text = NULL;

	if (json) {
		char *line = error_json(err->code, message);

		if (line) {
			cell__cli_write(STDOUT_FILENO, line, strlen(line));
			cell__cli_write(STDOUT_FILENO, "\n", 1);
			free(line);
		}
	}
	/* Control characters in a path or an argument must not reach the terminal as such.  What a tool said has lines. */
	shown = cell_shown_text(message, strlen(message), whole ? CELL_SHOWN_LINES : CELL_SHOWN_LINE);
	if (asprintf(&text, "workcell: %s: %s\n", cell_code_word(err->code), shown ? shown : "") < 0)
		text = NULL;
	if (text)
		cell__cli_write(STDERR_FILENO, text, strlen(text));
	free(text);
	free(shown);
	return cell_code_exit_status(err->code);
}

/* ---- help --------------------------------------------------------------- */

static void print_default(const struct cell_cli_flag *flag, const void *value)
{
	int64_t number;

	if (flag->kind != CELL_FLAG_COUNT && flag->kind != CELL_FLAG_BYTES && flag->kind != CELL_FLAG_SECONDS)
		return;
	memcpy(&number, value, sizeof(number));
	if (number == CELL_CLI_NOT_GIVEN)
		return;
	if (flag->kind == CELL_FLAG_SECONDS && number < 0)
		printf(" (default none)");
	else if (flag->kind == CELL_FLAG_SECONDS)
		printf(" (default %g)", (double)number / 1000);
	else if (flag->kind == CELL_FLAG_BYTES && number && number % (1 << 20) == 0)
		printf(" (default %" PRId64 "M)", number >> 20);
	else
		printf(" (default %" PRId64 ")", number);
}

static void print_help(const struct cell_cli_command *command, const void *values)
{
	printf("usage: workcell %s %s\n\n%s\n\nflags:\n", command->name, command->synopsis, command->about);
	for (const struct cell_cli_flag *flag = command->flags; flag->kind; flag++) {
		char left[64];

		snprintf(left, sizeof(left), "  %c%c%s%s%s %s", flag->letter ? '-' : ' ', flag->letter ? flag->letter : ' ',
			 flag->letter && flag->name ? "," : " ", flag->name ? " --" : "", flag->name ? flag->name : "",
			 flag->arg ? flag->arg : "");
		if (!flag->name && flag->arg)
			snprintf(left, sizeof(left), "  -%c %s", flag->letter, flag->arg);
		printf("%-*s %s", HELP_COLUMN, left, flag->help);
		print_default(flag, (const char *)values + flag->offset);
		putchar('\n');
	}
	printf("%-*s %s\n\nexamples:\n%s\n", HELP_COLUMN, "  -h, --help", "this text", command->examples);
	fflush(stdout);
}

/* ---- parsing ------------------------------------------------------------ */

static int list_append(struct cell_cli_list *list, char letter, const char *value, struct cell_error *err)
{
	if (list->count == list->room) {
		size_t room = list->room ? list->room * 2 : 8;
		struct cell_cli_item *items = reallocarray(list->items, room, sizeof(*items));

		if (!items)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the arguments");
		list->items = items;
		list->room = room;
	}
	list->items[list->count++] = (struct cell_cli_item){ letter, value };
	return 0;
}

const char **cell__cli_list_values(const struct cell_cli_list *list)
{
	const char **values = calloc(list->count + 1, sizeof(*values));

	for (size_t i = 0; values && i < list->count; i++)
		values[i] = list->items[i].value;
	return values;
}

void cell__cli_list_finish(struct cell_cli_list *list)
{
	free(list->items);
	*list = (struct cell_cli_list){ 0 };
}

/* A flag as the person wrote it: "--timeout" or "-e". */
static const char *flag_text(const struct cell_cli_flag *flag, char text[64])
{
	if (flag->name)
		snprintf(text, 64, "--%s", flag->name);
	else
		snprintf(text, 64, "-%c", flag->letter);
	return text;
}

static int parse_whole(const struct cell_cli_flag *flag, const char *value, int64_t *ret, struct cell_error *err)
{
	static const char units[] = "kMG", small[] = "kmg"; /* as Docker writes them */
	char text[64], *end;
	long long number;
	int shift = 0;

	errno = 0;
	number = strtoll(value, &end, 10);
	if (flag->kind == CELL_FLAG_BYTES && *end && strchr(units, *end)) {
		shift = 10 * (int)(strchr(units, *end) - units + 1);
		end++;
	} else if (flag->kind == CELL_FLAG_BYTES && *end && strchr(small, *end)) {
		shift = 10 * (int)(strchr(small, *end) - small + 1);
		end++;
	}
	if (*value < '0' || *value > '9' || *end || errno || number > INT64_MAX >> shift)
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be a whole number%s, not '%s'", flag_text(flag, text),
				 flag->kind == CELL_FLAG_BYTES ? " of bytes, like 65536 or 16M" : "", value);
	if (flag->kind == CELL_FLAG_COUNT && number > MAX_POOL)
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be at most %d", flag_text(flag, text), MAX_POOL);
	*ret = (int64_t)number << shift;
	return 0;
}

static int parse_seconds(const struct cell_cli_flag *flag, const char *value, int64_t *ret_ms, struct cell_error *err)
{
	char text[64], *end;
	double seconds = strtod(value, &end);

	if (end == value || *end || !isfinite(seconds) || seconds < 0 || seconds > MAX_SECONDS)
		return cell_fail(err, CELL_E_INVALID, 0, "%s must be seconds, like 2.5, or 0 for no limit, not '%s'", flag_text(flag, text),
				 value);
	*ret_ms = seconds == 0 ? -1 : (int64_t)ceil(seconds * 1000);
	return 0;
}

static int set_flag(const struct cell_cli_flag *flag, const char *value, void *values, struct cell_error *err)
{
	void *at = (char *)values + flag->offset;

	switch (flag->kind) {
	case CELL_FLAG_SWITCH:
		*(bool *)at = true;
		return 0;
	case CELL_FLAG_STRING:
		*(const char **)at = value;
		return 0;
	case CELL_FLAG_COUNT:
	case CELL_FLAG_BYTES:
		return parse_whole(flag, value, at, err);
	case CELL_FLAG_SECONDS:
		return parse_seconds(flag, value, at, err);
	case CELL_FLAG_LIST:
		return list_append(at, flag->letter, value, err);
	}
	return 0;
}

static const struct cell_cli_flag *find_flag(const struct cell_cli_flag *flags, char letter, const char *name, size_t size)
{
	for (; flags->kind; flags++) {
		if (letter ? flags->letter == letter : flags->name && strlen(flags->name) == size && !memcmp(flags->name, name, size))
			return flags;
	}
	return NULL;
}

/*
 * Reads argv[*at], a flag, and its argument; moves *at to the last argument used.  1: help was asked for.
 * values NULL: sets nothing.
 */
static int parse_flag(const struct cell_cli_command *command, int argc, char **argv, int *at, void *values, struct cell_error *err)
{
	const char *word = argv[*at], *value = NULL;
	const struct cell_cli_flag *flag;
	bool is_long = word[1] == '-';
	size_t size = is_long ? strcspn(word + 2, "=") : 1;

	if (!strcmp(word, "--help") || !strcmp(word, "-h"))
		return 1;
	if (is_long)
		flag = find_flag(command->flags, 0, word + 2, size);
	else
		flag = find_flag(command->flags, word[1], NULL, 0);
	if (!flag)
		return cell_fail(err, CELL_E_INVALID, 0, "unknown flag %.*s", is_long ? (int)size + 2 : 2, word);
	if (is_long && word[2 + size] == '=')
		value = word + 2 + size + 1;
	else if (!is_long && word[2])
		value = word + 2;
	if (!flag->arg && value)
		return cell_fail(err, CELL_E_INVALID, 0, "%.*s takes no argument", is_long ? (int)size + 2 : 2, word);
	if (flag->arg && !value) {
		if (*at + 1 >= argc)
			return cell_fail(err, CELL_E_INVALID, 0, "%s needs an argument: %s", word, flag->arg);
		value = argv[++*at];
	}
	return values ? set_flag(flag, value, values, err) : 0;
}

static int parse_all(const struct cell_cli_command *command, int argc, char **argv, void *values, struct cell_cli_list *operands,
		     struct cell_error *err)
{
	bool only_operands = false;

	for (int i = 1; i < argc; i++) {
		int status;

		if (!only_operands && !strcmp(argv[i], "--")) {
			only_operands = true;
			continue;
		}
		if (!only_operands && argv[i][0] == '-' && argv[i][1]) {
			status = parse_flag(command, argc, argv, &i, values, err);
			if (status)
				return status;
			continue;
		}
		if (!operands)
			return cell_fail(err, CELL_E_INVALID, 0, "unexpected argument '%s'", argv[i]);
		if (values && list_append(operands, 0, argv[i], err) < 0)
			return -1;
	}
	return 0;
}

bool cell__cli_parse(const struct cell_cli_command *command, int argc, char **argv, void *values, struct cell_cli_list *operands,
		     int *ret_status)
{
	struct cell_error err;
	bool json = false;
	int status;

	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		if (!strcmp(argv[i], "--json") && find_flag(command->flags, 0, "json", 4))
			json = true;
	}
	/* Twice, because help prints the defaults and must come before the first flag changes one. */
	status = parse_all(command, argc, argv, NULL, operands, &err);
	if (!status)
		status = parse_all(command, argc, argv, values, operands, &err);
	if (!status)
		return true;
	if (status > 0) {
		print_help(command, values);
		*ret_status = 0;
		return false;
	}
	*ret_status = cell__cli_report(&err, json);
	fprintf(stderr, "workcell: `workcell %s --help` lists the flags\n", command->name);
	return false;
}

/* ---- the session of the common flags ------------------------------------- */

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
	cell__cli_trusted_free(options->trusted);
	*options = (struct cell_cli_session_options){ 0 };
}

static bool is_executor(const struct cell_cli_session_flags *flags, const char *name)
{
	return flags->executor && !strcmp(flags->executor, name);
}

/* Storage and tools are those of a server. */
static bool has_server(const struct cell_cli_session_flags *flags)
{
	return is_executor(flags, "remote") || is_executor(flags, "container");
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

int cell__cli_fill_container(const struct cell_cli_container_flags *flags, struct cell_container_options *options, char **ret_context,
			     struct cell_error *err)
{
	const char *context = flags->context;

	*options = (struct cell_container_options)CELL_CONTAINER_OPTIONS_INIT;
	if (!context && access(CELL_SOURCE_DIR "/packaging/Dockerfile", R_OK) == 0)
		context = CELL_SOURCE_DIR;
	if (context && !(*ret_context = cell__cli_absolute(context, err)))
		return -1;
	if (flags->isolation && strcmp(flags->isolation, "executor") && strcmp(flags->isolation, "session"))
		return cell_fail(err, CELL_E_INVALID, 0, "--isolation must be executor or session, not '%s'", flags->isolation);
	options->engine = flags->host ? flags->host : getenv("DOCKER_HOST");
	options->image = flags->image;
	options->context = *ret_context;
	options->base_image = flags->base;
	options->user = flags->user;
	options->session_isolation = flags->isolation && !strcmp(flags->isolation, "session");
	options->network_disabled = flags->network_disabled;
	options->auth_disabled = flags->auth_disabled;
	if (flags->memory != CELL_CLI_NOT_GIVEN)
		options->memory_limit = flags->memory ? flags->memory : -1;
	if (flags->cpu_quota != CELL_CLI_NOT_GIVEN)
		options->cpu_quota = flags->cpu_quota;
	if (flags->pids != CELL_CLI_NOT_GIVEN)
		options->pids_limit = flags->pids ? flags->pids : -1;
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
	if (has_server(flags))
		all->options.remote_workspace = flags->space.workspace;
	return is_executor(flags, "container") ? fill_container(flags, all, err) : 0;
}

static bool wants_space(const struct cell_cli_session_flags *flags)
{
	struct cell_cli_space_flags space = flags->space;

	if (is_executor(flags, "container"))
		return false;
	if (is_executor(flags, "remote"))
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

/* Engine, space and gate; what was opened before a failure is the caller's to close. */
static int open_parts(const struct cell_cli_session_flags *flags, bool with_space, struct cell_cli_host *host,
		      struct cell_cli_session_options *all, struct cell_error *err)
{
	struct cell_engine_options engine_options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_session_options *options = &all->options;

	const char *const files[] = { flags->space.env_file ? flags->space.env_file : "",
				      flags->gate.policy ? flags->gate.policy : "",
				      flags->remote_token_file ? flags->remote_token_file : "",
				      flags->secrets[0] ? flags->secrets[0] : "",
				      flags->secrets[1] ? flags->secrets[1] : "",
				      flags->secrets[2] ? flags->secrets[2] : "",
				      flags->secrets[3] ? flags->secrets[3] : "",
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
	engine_options.pool_size = (int)flags->pool;
	engine_options.zygote_forks = flags->zygote_forks;
	/* A container may have to be built and started: that is told. */
	if (cell__cli_space_log(&flags->space, flags->log_level || !is_executor(flags, "container") ? flags->log_level : "info",
				&engine_options, err) < 0)
		return -1;
	if (cell_engine_create(&engine_options, &host->engine, err) < 0)
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
	options->network_profile = flags->network_profile;
	cell__cli_fill_limits(&flags->container, flags->executor, options);
	return cell__cli_gate_open(&flags->gate, host, options, err);
}

int cell__cli_open_host(const struct cell_cli_session_flags *flags, bool with_space, struct cell_cli_host *ret_host,
			struct cell_cli_session_options *ret_options, struct cell_error *err)
{
	struct cell_cli_session_options all = { .options = CELL_SESSION_OPTIONS_INIT };
	struct cell_cli_host host = { 0 };

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
	return 0;
}

/* Code of these runs with this user's rights, so that nothing is gained by keeping it from the terminal. */
static bool is_trusted(const char *executor)
{
	static const char *const trusted[] = { "subprocess", "inprocess", "jupyter" };

	for (size_t i = 0; executor && i < sizeof(trusted) / sizeof(*trusted); i++) {
		if (!strcmp(executor, trusted[i]))
			return true;
	}
	return !executor;
}

int cell__cli_open(const struct cell_cli_session_flags *flags, bool shows, cell_event_fn on_event, void *event_arg,
		   struct cell_cli_host *ret_host, struct cell_error *err)
{
	struct cell_cli_session_options all;
	struct cell_cli_host host;
	int status;

	if (cell__cli_check_executor(flags, flags->executor, err) < 0 || cell__cli_open_host(flags, false, &host, &all, err) < 0)
		return -1;
	all.options.on_event = on_event;
	all.options.event_arg = event_arg;
	all.options.no_spill = shows;
	host.confined = !is_trusted(flags->executor);
	status = cell_session_open(host.engine, &all.options, &host.session, err);
	cell__cli_options_finish(&all);
	if (status < 0) {
		cell_space_close(host.space);
		cell__cli_gate_close(&host);
		cell_engine_destroy(host.engine);
		return -1;
	}
	cell__cli_signals_attach(host.session);
	*ret_host = host;
	return 0;
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
