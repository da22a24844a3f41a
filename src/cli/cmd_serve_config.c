/*
 * The arguments of `workcell serve` that do not stand on the command line: the environment, whose names are those of the session
 * server that existing deployments run (docs/server.md has the table), and the file of --config.
 */
#define _GNU_SOURCE 1
#include "serve.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include <yaml.h>

#define SERVER_DEPTH 3 /* of what describes an MCP server */

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
		return cell_fail(err, CELL_E_LIMIT, 0, "there are more than %d settings", CELL_SERVE_MAX_ARGUMENTS);
	va_start(ap, format);
	n = vasprintf(&arguments->list[arguments->count], format, ap);
	va_end(ap);
	if (n < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "no memory for the configuration");
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

/* Where the environment names each part of a storage, and the storage is what these have in common. */
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

/* The length of what comes before the part's own end; 0: it is no such part. */
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

/* *ret_whole is the storage, or stays as it is where nothing names one; `known` (may be NULL) is what it must be. */
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
			return cell_fail(err, CELL_E_INVALID, 0, "%s and %s are not of one storage: %.60s, %.60s", name, parts->variable,
					 whole, value);
		}
	}
	if (whole && !(*ret_whole = strndup(whole, size)))
		return cell_fail(err, CELL_E_NOMEM, 0, "no memory for the configuration");
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

	warn_of_parts(arguments, folder_parts, "does nothing: the storage is in Redis");
	if (!status) {
		prefixed = prefix ? cell__cli_with_option(url, "prefix", prefix) : strdup(url);
		whole = prefixed && tools ? cell__cli_with_option(prefixed, "tools_prefix", tools) : prefixed ? strdup(prefixed) : NULL;
		status = whole ? add_argument(arguments, err, "--storage=%s", whole)
			       : cell_fail(err, CELL_E_NOMEM, 0, "no memory for the configuration");
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

	warn_of_parts(arguments, redis_parts, "does nothing: the storage is not in Redis (REDIS_URL)");
	if (cell__serve_variable("REDIS_TOOLS_PREFIX"))
		warn(arguments, "REDIS_TOOLS_PREFIX", "does nothing: the storage is not in Redis (REDIS_URL)");
	if (cell__serve_variable("STORAGE_PREFIX"))
		warn(arguments, "STORAGE_PREFIX", "does nothing: the storage is not in Redis (REDIS_URL)");
	if (!status && folder)
		status = add_argument(arguments, err, "--storage=%s", folder);
	free(folder);
	return status;
}

static int add_storage(struct cell_serve_arguments *arguments, struct cell_error *err)
{
	const char *backend = cell__serve_variable("ARTIFACT_BACKEND"), *url = cell__serve_variable("REDIS_URL");

	if (backend && strcmp(backend, "file") && strcmp(backend, "redis"))
		return cell_fail(err, CELL_E_INVALID, 0, "ARTIFACT_BACKEND is file or redis, not '%s'", backend);
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

static const char *scalar_of(const yaml_node_t *node)
{
	return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static int add_python_deps(struct cell_serve_arguments *arguments, yaml_document_t *document, const yaml_node_t *list, const char *path,
			   struct cell_error *err)
{
	int status = 0;

	if (list->type != YAML_SEQUENCE_NODE)
		return cell_fail(err, CELL_E_INVALID, 0, "%s:%zu: python_deps is a list", path, list->start_mark.line + 1);
	for (yaml_node_item_t *item = list->data.sequence.items.start; !status && item < list->data.sequence.items.top; item++) {
		yaml_node_t *spec = yaml_document_get_node(document, *item);

		if (spec->type != YAML_SCALAR_NODE)
			return cell_fail(err, CELL_E_INVALID, 0, "%s:%zu: a package is a text", path, spec->start_mark.line + 1);
		status = add_argument(arguments, err, "--dep=%s", (const char *)spec->data.scalar.value);
	}
	return status;
}

/* Texts but for what is a number by its key; NULL: no memory, not UTF-8, a key twice, or deeper than any key of a server is. */
static json_t *json_of(yaml_document_t *document, const yaml_node_t *node, const char *key, int depth)
{
	json_t *value = NULL;
	char *end;

	if (node->type == YAML_SCALAR_NODE) {
		const char *text = (const char *)node->data.scalar.value;
		double number = strtod(text, &end);
		bool is_number = (!strcmp(key, "timeout") || !strcmp(key, "start_timeout")) && *text && !*end;

		return is_number ? json_real(number) : json_stringn(text, node->data.scalar.length);
	}
	if (depth == SERVER_DEPTH)
		return NULL;
	if (node->type == YAML_SEQUENCE_NODE) {
		value = json_array();
		for (yaml_node_item_t *item = node->data.sequence.items.start; item < node->data.sequence.items.top; item++) {
			if (json_array_append_new(value, json_of(document, yaml_document_get_node(document, *item), "", depth + 1)) < 0)
				goto bad;
		}
		return value;
	}
	value = json_object();
	for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; pair < node->data.mapping.pairs.top; pair++) {
		const char *name = scalar_of(yaml_document_get_node(document, pair->key));

		if (json_object_get(value, name) ||
		    json_object_set_new(value, name, json_of(document, yaml_document_get_node(document, pair->value), name, depth + 1)) < 0)
			goto bad;
	}
	return value;
bad:
	json_decref(value);
	return NULL;
}

/* A list of {name, ...}, or a mapping of names: what a definition of the type mcp has (docs/mcp.md). */
static int add_server(struct cell_serve_arguments *arguments, yaml_document_t *document, const char *name, const yaml_node_t *node,
		      const char *path, struct cell_error *err)
{
	json_t *params = node->type == YAML_MAPPING_NODE ? json_of(document, node, "", 0) : NULL;
	json_t *own = json_incref(json_object_get(params, "name"));
	size_t line = node->start_mark.line + 1;
	int status = -1;

	json_object_del(params, "name");
	if (!name)
		name = json_string_value(own);
	if (!params || !name || !*name)
		cell_fail(err, CELL_E_INVALID, 0, "%s:%zu: an MCP server is a mapping: name, and command or url", path, line);
	else if (json_object_get(arguments->servers, name))
		cell_fail(err, CELL_E_INVALID, 0, "%s:%zu: there are two MCP servers '%.60s'", path, line, name);
	else if (json_object_set(arguments->servers, name, params) < 0)
		cell_fail(err, CELL_E_INVALID, 0, "%s:%zu: the name is no UTF-8", path, line);
	else
		status = 0;
	json_decref(own);
	json_decref(params);
	return status;
}

static int add_servers(struct cell_serve_arguments *arguments, yaml_document_t *document, const yaml_node_t *node, const char *path,
		       struct cell_error *err)
{
	int status = 0;

	if (!arguments->servers && !(arguments->servers = json_object()))
		return cell_fail(err, CELL_E_NOMEM, 0, "no memory for the configuration");
	if (node->type == YAML_SEQUENCE_NODE) {
		for (yaml_node_item_t *item = node->data.sequence.items.start; !status && item < node->data.sequence.items.top; item++)
			status = add_server(arguments, document, NULL, yaml_document_get_node(document, *item), path, err);
	} else if (node->type == YAML_MAPPING_NODE) {
		for (yaml_node_pair_t *pair = node->data.mapping.pairs.start; !status && pair < node->data.mapping.pairs.top; pair++)
			status = add_server(arguments, document, scalar_of(yaml_document_get_node(document, pair->key)),
					    yaml_document_get_node(document, pair->value), path, err);
	} else if (*scalar_of(node)) {
		status = cell_fail(err, CELL_E_INVALID, 0, "%s:%zu: mcp_servers is a list", path, node->start_mark.line + 1);
	}
	return status;
}

static int add_tools_config(struct cell_serve_arguments *arguments, yaml_document_t *document, const char *path, struct cell_error *err)
{
	yaml_node_t *root = yaml_document_get_root_node(document);
	int status = 0;

	if (root && root->type != YAML_MAPPING_NODE)
		return cell_fail(err, CELL_E_INVALID, 0, "%s: TOOLS_CONFIG is a mapping: mcp_servers: [...], python_deps: [...]", path);
	for (yaml_node_pair_t *pair = root ? root->data.mapping.pairs.start : NULL; !status && pair && pair < root->data.mapping.pairs.top;
	     pair++) {
		yaml_node_t *value = yaml_document_get_node(document, pair->value);
		const char *name = scalar_of(yaml_document_get_node(document, pair->key));

		if (!strcmp(name, "python_deps"))
			status = add_python_deps(arguments, document, value, path, err);
		else if (!strcmp(name, "mcp_servers"))
			status = add_servers(arguments, document, value, path, err);
		else
			warn(arguments, "TOOLS_CONFIG",
			     "has more than mcp_servers and python_deps, which is not read: tools are files in TOOLS_PATH");
	}
	return status;
}

/* A parser of *ret_text, the whole file; on failure there is neither. */
static int open_yaml(const char *path, yaml_parser_t *parser, char **ret_text, struct cell_error *err)
{
	size_t size;

	if (cell__cli_read_file(path, ret_text, &size, err) < 0)
		return -1;
	if (!yaml_parser_initialize(parser)) {
		free(*ret_text);
		return cell_fail(err, CELL_E_NOMEM, 0, "no memory for the configuration");
	}
	yaml_parser_set_input_string(parser, (const unsigned char *)*ret_text, size);
	return 0;
}

static int no_yaml(const char *path, const yaml_parser_t *parser, struct cell_error *err)
{
	return cell_fail(err, CELL_E_INVALID, 0, "%s:%zu: %s", path, parser->problem_mark.line + 1,
			 parser->problem ? parser->problem : "this is no YAML");
}

static int read_tools_config(struct cell_serve_arguments *arguments, const char *path, struct cell_error *err)
{
	yaml_parser_t parser;
	yaml_document_t document;
	char *text;
	int status;

	if (open_yaml(path, &parser, &text, err) < 0)
		return -1;
	if (yaml_parser_load(&parser, &document)) {
		status = add_tools_config(arguments, &document, path, err);
		yaml_document_delete(&document);
	} else {
		status = no_yaml(path, &parser, err);
	}
	yaml_parser_delete(&parser);
	free(text);
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

/* A mapping of texts, or of lists of texts: what flags are. */
struct reader {
	const char *path;
	struct cell_serve_arguments *arguments;
	struct cell_error *err;
	char key[64];
	int depth;       /* 1: in the mapping; 2: in a list */
	bool has_key, is_bad;
};

static int complain(struct reader *reader, const yaml_event_t *event, const char *words)
{
	reader->is_bad = true;
	return cell_fail(reader->err, CELL_E_INVALID, 0, "%s:%zu: %s", reader->path, event->start_mark.line + 1, words);
}

static int take_scalar(struct reader *reader, const yaml_event_t *event)
{
	const char *text = (const char *)event->data.scalar.value;
	bool plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;

	if (!reader->depth)
		return complain(reader, event, "a configuration is a mapping: key: value");
	if (!reader->has_key) {
		if (!*text || strlen(text) >= sizeof(reader->key) || *text == '-' || strchr(text, '='))
			return complain(reader, event, "this is no name of a flag");
		strcpy(reader->key, text);
		for (char *at = reader->key; *at; at++)
			*at = *at == '_' ? '-' : *at;
		reader->has_key = true;
		return 0;
	}
	if (reader->depth == 1)
		reader->has_key = false;
	if (plain && !strcmp(text, "false"))
		return 0;
	if (plain && !strcmp(text, "true"))
		return add_argument(reader->arguments, reader->err, "--%s", reader->key);
	if (!strcmp(reader->key, "config") || !strcmp(reader->key, "check-config"))
		return complain(reader, event, "this belongs on the command line");
	return add_argument(reader->arguments, reader->err, "--%s=%s", reader->key, text);
}

static int take_event(struct reader *reader, const yaml_event_t *event)
{
	switch (event->type) {
	case YAML_SCALAR_EVENT:
		return take_scalar(reader, event);
	case YAML_MAPPING_START_EVENT:
		if (reader->depth)
			return complain(reader, event, "a value is a text or a list of texts");
		reader->depth = 1;
		return 0;
	case YAML_SEQUENCE_START_EVENT:
		if (reader->depth != 1 || !reader->has_key)
			return complain(reader, event, "a configuration is a mapping: key: value");
		reader->depth = 2;
		return 0;
	case YAML_SEQUENCE_END_EVENT:
		reader->depth = 1;
		reader->has_key = false;
		return 0;
	case YAML_ALIAS_EVENT:
		return complain(reader, event, "aliases are not used here");
	default:
		return 0;
	}
}

static int add_file(struct cell_serve_arguments *arguments, const char *path, struct cell_error *err)
{
	struct reader reader = { .path = path, .arguments = arguments, .err = err };
	yaml_parser_t parser;
	yaml_event_t event;
	char *text;
	int status = 0;
	bool over = false;

	if (open_yaml(path, &parser, &text, err) < 0)
		return -1;
	while (!status && !over) {
		if (!yaml_parser_parse(&parser, &event)) {
			status = no_yaml(path, &parser, err);
			break;
		}
		status = take_event(&reader, &event);
		over = event.type == YAML_STREAM_END_EVENT;
		yaml_event_delete(&event);
	}
	yaml_parser_delete(&parser);
	free(text);
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
