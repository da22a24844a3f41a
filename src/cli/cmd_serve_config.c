/*
 * The arguments of `workcell serve` from other sources than the command line: the environment, whose names are those of the session server
 * that existing deployments run (docs/server.md has the table), and the file of --config.
 */
#define _GNU_SOURCE 1
#include "serve.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "wire/yaml.h"

#define SERVER_DEPTH 3 /* of an MCP server's description */

void cell__serve_arguments_finish(struct cell_serve_arguments *arguments)
{
	for (int i = 0; i < arguments->count; i++)
		free(arguments->list[i]);
	arguments->count = 0;
	json_decref(arguments->servers);
	arguments->servers = NULL;
}

static int add_argument(struct cell_serve_arguments *arguments, struct cell_error *err, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
static int add_argument(struct cell_serve_arguments *arguments, struct cell_error *err, const char *format, ...)
{
	va_list ap;
	int n;

	if (arguments->count == CELL_SERVE_MAX_ARGUMENTS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %d settings", CELL_SERVE_MAX_ARGUMENTS);
	va_start(ap, format);
	n = vasprintf(&arguments->list[arguments->count], format, ap);
	va_end(ap);
	if (n < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the configuration");
	arguments->list[++arguments->count] = NULL;
	return 0;
}

/* ---- the environment ---------------------------------------------------------------- */

const char *cell__serve_variable(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

static bool is_true(const char *value)
{
	return value && (!strcasecmp(value, "true") || !strcmp(value, "1") || !strcasecmp(value, "yes"));
}

static void warn(const struct cell_serve_arguments *arguments, const char *name, const char *words)
{
	if (!arguments->quiet)
		dprintf(STDERR_FILENO, "workcell: warning: %s %s\n", name, words);
}

/* The environment names each part of a storage; the storage is their common beginning. */
struct part {
	const char *variable;
	const char *ends[2]; /* either; "" for the whole itself */
};
static const struct part folder_parts[] = {
	{ "WORKFLOWS_PATH", { "/workflows", NULL } },
	{ "SKILLS_PATH", { "/skills", "/workflows" } },
	{ "ARTIFACTS_PATH", { "/artifacts", NULL } },
	{ "DEPS_PATH", { "/deps", "" } },
	{ NULL, { NULL, NULL } },
};
static const struct part redis_parts[] = {
	{ "REDIS_WORKFLOWS_PREFIX", { ":workflows", NULL } },
	{ "REDIS_SKILLS_PREFIX", { ":skills", NULL } },
	{ "REDIS_ARTIFACTS_PREFIX", { ":artifacts", NULL } },
	{ "REDIS_DEPS_PREFIX", { ":deps", "" } },
	{ NULL, { NULL, NULL } },
};

static size_t trimmed(const char *text)
{
	size_t size = strlen(text);

	while (size > 1 && text[size - 1] == '/')
		size--;
	return size;
}

/* The length of the text before the part's own end; 0: not such a part. */
static size_t head_of(const struct part *part, const char *value)
{
	size_t size = trimmed(value);

	for (size_t i = 0; i < 2 && part->ends[i]; i++) {
		size_t end = strlen(part->ends[i]);

		if (size > end && !memcmp(value + size - end, part->ends[i], end))
			return size - end;
	}
	return 0;
}

/* *ret_whole is the storage, unchanged if nothing names one; `known` (may be NULL) is the required value. */
static int whole_of(const struct part *parts, const char *known, const char *known_name, char **ret_whole, struct cell_error *err)
{
	const char *whole = known, *name = known_name;
	size_t size = known ? trimmed(known) : 0;

	for (; parts->variable; parts++) {
		const char *value = cell__serve_variable(parts->variable);
		size_t head = value ? head_of(parts, value) : 0;

		if (!value)
			continue;
		if (!head)
			return cell_fail(err, CELL_E_INVALID, 0, "%s is '%.60s', expected STORAGE%s; or set %s=STORAGE", parts->variable,
					 value, parts->ends[0], known_name);
		if (!whole) {
			whole = value;
			size = head;
			name = parts->variable;
		} else if (head != size || memcmp(value, whole, size)) {
			return cell_fail(err, CELL_E_INVALID, 0, "%s and %s belong to different storages: %.60s, %.60s", name,
					 parts->variable, whole, value);
		}
	}
	if (whole && !(*ret_whole = strndup(whole, size)))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the configuration");
	return 0;
}

static void warn_of_parts(const struct cell_serve_arguments *arguments, const struct part *parts, const char *words)
{
	for (; parts->variable; parts++) {
		if (cell__serve_variable(parts->variable))
			warn(arguments, parts->variable, words);
	}
}

static int add_redis(struct cell_serve_arguments *arguments, const char *url, struct cell_error *err)
{
	const char *tools = cell__serve_variable("REDIS_TOOLS_PREFIX");
	char *prefix = NULL, *prefixed = NULL, *whole = NULL;
	int status = whole_of(redis_parts, cell__serve_variable("STORAGE_PREFIX"), "STORAGE_PREFIX", &prefix, err);

	warn_of_parts(arguments, folder_parts, "has no effect: the storage is in Redis");
	if (!status) {
		prefixed = prefix ? cell__cli_with_option(url, "prefix", prefix) : strdup(url);
		whole = prefixed && tools ? cell__cli_with_option(prefixed, "tools_prefix", tools) : prefixed ? strdup(prefixed) : NULL;
		status = whole ? add_argument(arguments, err, "--storage=%s", whole)
			       : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the configuration");
	}
	if (!status && tools)
		status = add_argument(arguments, err, "--tools-from-storage");
	free(prefix);
	free(prefixed);
	free(whole);
	return status;
}

static int add_folder(struct cell_serve_arguments *arguments, struct cell_error *err)
{
	char *folder = NULL;
	int status = whole_of(folder_parts, cell__serve_variable("STORAGE_BASE_PATH"), "STORAGE_BASE_PATH", &folder, err);

	warn_of_parts(arguments, redis_parts, "has no effect: the storage is not in Redis (REDIS_URL)");
	if (cell__serve_variable("REDIS_TOOLS_PREFIX"))
		warn(arguments, "REDIS_TOOLS_PREFIX", "has no effect: the storage is not in Redis (REDIS_URL)");
	if (cell__serve_variable("STORAGE_PREFIX"))
		warn(arguments, "STORAGE_PREFIX", "has no effect: the storage is not in Redis (REDIS_URL)");
	if (!status && folder)
		status = add_argument(arguments, err, "--storage=%s", folder);
	free(folder);
	return status;
}

static int add_storage(struct cell_serve_arguments *arguments, struct cell_error *err)
{
	const char *backend = cell__serve_variable("ARTIFACT_BACKEND"), *url = cell__serve_variable("REDIS_URL");

	if (backend && strcmp(backend, "file") && strcmp(backend, "redis"))
		return cell_fail(err, CELL_E_INVALID, 0, "ARTIFACT_BACKEND must be file or redis, not '%s'", backend);
	if (url && (!backend || !strcmp(backend, "redis")))
		return add_redis(arguments, url, err);
	if (backend && !strcmp(backend, "redis"))
		return cell_fail(err, CELL_E_INVALID, 0, "ARTIFACT_BACKEND=redis needs REDIS_URL");
	return add_folder(arguments, err);
}

/* "a>=1,<2,b[x,y]": a comma ends a specifier where neither brackets are open nor another version follows. */
static int add_packages(struct cell_serve_arguments *arguments, const char *list, struct cell_error *err)
{
	int status = 0;

	while (!status && *list) {
		const char *end = list;
		bool open = false;

		for (; *end; end++) {
			char next = *end == ',' ? end[1 + strspn(end + 1, " ")] : 0;

			open = *end == '[' || (open && *end != ']');
			if (*end == ',' && !open && (!next || !strchr("<>=!~", next)))
				break;
		}
		if (end > list + strspn(list, " "))
			status = add_argument(arguments, err, "--dep=%.*s", (int)(end - list), list);
		list = end + (*end == ',');
	}
	return status;
}

/* ---- TOOLS_CONFIG ----------------------------------------------------------- */

/* The tree of a file; NULL with *ret_status 0: it has only comments. */
static struct cell__yaml *read_yaml(const char *path, int *ret_status, struct cell_error *err)
{
	struct cell__problems problems = { 0 };
	struct cell__yaml *root = NULL;
	const char *at;
	char *text;
	size_t size;

	*ret_status = cell__cli_read_file(path, &text, &size, err);
	if (*ret_status < 0)
		return NULL;
	for (at = text + strspn(text, " \t\r\n"); *at == '#'; at += strspn(at, " \t\r\n"))
		at += strcspn(at, "\n");
	if (*at || strlen(text) != size) {
		root = cell__yaml_parse(path, text, size, &problems);
		if (!root)
			*ret_status = cell_fail(err, CELL_E_INVALID, 0, "%s:%d: %s", path, problems.count ? problems.list[0].line : 1,
						problems.count && problems.list[0].message ? problems.list[0].message : "cannot be read");
	}
	cell__problems_finish(&problems);
	free(text);
	return root;
}

static int add_python_deps(struct cell_serve_arguments *arguments, const struct cell__yaml *list, const char *path, struct cell_error *err)
{
	int status = 0;

	if (list->kind != CELL_YAML_SEQUENCE)
		return cell_fail(err, CELL_E_INVALID, 0, "%s:%d: python_deps must be a list", path, list->line);
	for (size_t i = 0; !status && i < list->count; i++) {
		if (list->items[i]->kind != CELL_YAML_SCALAR)
			return cell_fail(err, CELL_E_INVALID, 0, "%s:%d: a package must be a string", path, list->items[i]->line);
		status = add_argument(arguments, err, "--dep=%s", list->items[i]->text);
	}
	return status;
}

/* Strings, except for keys with a number; NULL: out of memory, not UTF-8, or nested deeper than any key of a server. */
static json_t *json_of(const struct cell__yaml *node, const char *key, int depth)
{
	bool is_map = node->kind == CELL_YAML_MAPPING;
	json_t *all;

	if (node->kind == CELL_YAML_SCALAR) {
		char *end;
		double number = strtod(node->text, &end);
		bool is_number = (!strcmp(key, "timeout") || !strcmp(key, "start_timeout")) && *node->text && !*end;

		return is_number ? json_real(number) : json_string(node->text);
	}
	if (depth == SERVER_DEPTH)
		return NULL;
	all = is_map ? json_object() : json_array();
	for (size_t i = 0; i < node->count; i += 1 + is_map) {
		const char *name = is_map ? node->items[i]->text : "";
		json_t *item = json_of(node->items[i + is_map], name, depth + 1);

		if ((is_map ? json_object_set_new(all, name, item) : json_array_append_new(all, item)) < 0) {
			json_decref(all);
			return NULL;
		}
	}
	return all;
}

/* A list of {name, ...}, or a mapping of names: with the keys of a definition of type mcp (docs/mcp.md). */
static int add_server(struct cell_serve_arguments *arguments, const char *name, const struct cell__yaml *node, const char *path,
		      struct cell_error *err)
{
	json_t *params = node->kind == CELL_YAML_MAPPING ? json_of(node, "", 0) : NULL;
	json_t *own = json_incref(json_object_get(params, "name"));
	int status = -1;

	json_object_del(params, "name");
	if (!name)
		name = json_string_value(own);
	if (!params || !name || !*name)
		cell_fail(err, CELL_E_INVALID, 0, "%s:%d: an MCP server must be a mapping with name, and command or url", path, node->line);
	else if (json_object_get(arguments->servers, name))
		cell_fail(err, CELL_E_INVALID, 0, "%s:%d: duplicate MCP server '%.60s'", path, node->line, name);
	else if (json_object_set(arguments->servers, name, params) < 0)
		cell_fail(err, CELL_E_INVALID, 0, "%s:%d: the name is not valid UTF-8", path, node->line);
	else
		status = 0;
	json_decref(own);
	json_decref(params);
	return status;
}

static int add_servers(struct cell_serve_arguments *arguments, const struct cell__yaml *node, const char *path, struct cell_error *err)
{
	bool is_map = node->kind == CELL_YAML_MAPPING;
	int status = 0;

	if (!arguments->servers && !(arguments->servers = json_object()))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the configuration");
	if (node->kind == CELL_YAML_SCALAR)
		return *node->text ? cell_fail(err, CELL_E_INVALID, 0, "%s:%d: mcp_servers must be a list", path, node->line) : 0;
	for (size_t i = 0; !status && i < node->count; i += 1 + is_map)
		status = add_server(arguments, is_map ? node->items[i]->text : NULL, node->items[i + is_map], path, err);
	return status;
}

static int read_tools_config(struct cell_serve_arguments *arguments, const char *path, struct cell_error *err)
{
	int status;
	struct cell__yaml *root = read_yaml(path, &status, err);

	if (root && root->kind != CELL_YAML_MAPPING && !cell__yaml_is_null(root))
		status = cell_fail(err, CELL_E_INVALID, 0, "%s: TOOLS_CONFIG must be a mapping: mcp_servers: [...], python_deps: [...]",
				   path);
	for (size_t i = 0; root && !status && i < root->count; i += 2) {
		const char *name = root->items[i]->text;

		if (!strcmp(name, "python_deps"))
			status = add_python_deps(arguments, root->items[i + 1], path, err);
		else if (!strcmp(name, "mcp_servers"))
			status = add_servers(arguments, root->items[i + 1], path, err);
		else
			warn(arguments, "TOOLS_CONFIG",
			     "has keys other than mcp_servers and python_deps, which are ignored: tools are files in TOOLS_PATH");
	}
	cell__yaml_destroy(root);
	return status;
}

static int add_variables(struct cell_serve_arguments *arguments, struct cell_error *err)
{
	static const char *const plain[][2] = {
		{ "DEFAULT_TIMEOUT", "timeout" },
		{ "MAX_EXECUTION_TIME", "max-timeout" },
		{ "TOOLS_PATH", "tools" },
	};
	const char *host = cell__serve_variable("HOST"), *port = cell__serve_variable("PORT"),
		   *allow = cell__serve_variable("ALLOW_RUNTIME_DEPS");
	const char *packages = cell__serve_variable("CONTAINER_DEPS"), *tools = cell__serve_variable("TOOLS_CONFIG");
	int status = 0;

	for (size_t i = 0; !status && i < sizeof(plain) / sizeof(plain[0]); i++) {
		if (cell__serve_variable(plain[i][0]))
			status = add_argument(arguments, err, "--%s=%s", plain[i][1], cell__serve_variable(plain[i][0]));
	}
	if (!status && (host || port) && (!host || !strchr(host, ':')))
		status = add_argument(arguments, err, "--listen=%s:%s", host ? host : "127.0.0.1", port ? port : "8080");
	else if (!status && host)
		status = add_argument(arguments, err, "--listen=[%s]:%s", host, port ? port : "8080");
	if (!status && allow && !is_true(allow))
		status = add_argument(arguments, err, "--no-runtime-deps");
	if (!status && packages)
		status = add_packages(arguments, packages, err);
	if (!status && tools)
		status = read_tools_config(arguments, tools, err);
	return status ? status : add_storage(arguments, err);
}

/* ---- the file ------------------------------------------------------------------------ */

static int add_setting(struct cell_serve_arguments *arguments, const char *key, const struct cell__yaml *value, const char *path,
		       struct cell_error *err)
{
	struct cell_error problem;
	const char *text = value->text;

	if (value->kind != CELL_YAML_SCALAR)
		return cell_fail(err, CELL_E_INVALID, 0, "%s:%d: a value must be a string or a list of strings", path, value->line);
	if (!strcmp(key, "config") || !strcmp(key, "check-config"))
		return cell_fail(err, CELL_E_INVALID, 0, "%s:%d: this can only be given on the command line", path, value->line);
	if (value->plain && (!strcmp(text, "true") || !strcmp(text, "false")))
		text = NULL;
	if (cell__cli_check_setting(&cell__cli_serve_command, key, text, &problem) < 0)
		return cell_fail(err, problem.code, 0, "%s:%d: %s", path, value->line, problem.msg);
	if (!text && !strcmp(value->text, "false"))
		return 0;
	return text ? add_argument(arguments, err, "--%s=%s", key, text) : add_argument(arguments, err, "--%s", key);
}

/* A mapping of strings, or of lists of strings, which become flags. */
static int add_file(struct cell_serve_arguments *arguments, const char *path, struct cell_error *err)
{
	int status;
	struct cell__yaml *root = read_yaml(path, &status, err);

	if (root && root->kind != CELL_YAML_MAPPING)
		status = cell_fail(err, CELL_E_INVALID, 0, "%s:%d: a configuration must be a mapping: key: value", path, root->line);
	for (size_t i = 0; root && !status && i < root->count; i += 2) {
		char *key = root->items[i]->text;
		const struct cell__yaml *value = root->items[i + 1];

		if (!*key || *key == '-' || strchr(key, '='))
			status = cell_fail(err, CELL_E_INVALID, 0, "%s:%d: this is not the name of a flag", path, root->items[i]->line);
		for (char *at = key; *at; at++)
			*at = *at == '_' ? '-' : *at;
		if (!status && value->kind != CELL_YAML_SEQUENCE)
			status = add_setting(arguments, key, value, path, err);
		for (size_t k = 0; !status && value->kind == CELL_YAML_SEQUENCE && k < value->count; k++)
			status = add_setting(arguments, key, value->items[k], path, err);
	}
	cell__yaml_destroy(root);
	return status;
}

/* --config is needed before the others are read. */
static const char *config_of(int argc, char **argv)
{
	const char *found = NULL;

	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++) {
		if (!strcmp(argv[i], "--config") && i + 1 < argc)
			found = argv[i + 1];
		else if (!strncmp(argv[i], "--config=", 9))
			found = argv[i] + 9;
	}
	return found;
}

int cell__serve_gather(int argc, char **argv, struct cell_serve_arguments *arguments, struct cell_error *err)
{
	const char *config = config_of(argc, argv);
	int status = add_argument(arguments, err, "%s", argv[0]);

	if (!status)
		status = add_variables(arguments, err);
	if (!status && config)
		status = add_file(arguments, config, err);
	for (int i = 1; !status && i < argc; i++)
		status = add_argument(arguments, err, "%s", argv[i]);
	return status;
}
