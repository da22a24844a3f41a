/* A tool's definition from its YAML tree. A file with any problem yields no tool; all its problems are reported, not only the first. */
#define _GNU_SOURCE
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "tools/mcp.h"

/* ---- shared by the loaders of all kinds ---- */

void cell__load_bool(struct cell__loader *loader, const struct cell__yaml *value, const char *what, bool *ret)
{
	if (!cell__yaml_is_given(value))
		return;
	static const char *const words[] = { "false", "true", "no", "yes", "off", "on" };
	if (value->kind == CELL_YAML_SCALAR && value->plain)
		for (size_t i = 0; i < sizeof words / sizeof *words; i++)
			if (strcasecmp(value->text, words[i]) == 0) {
				*ret = i % 2;
				return;
			}
	cell__load_problem(loader, value, "%s must be true or false", what);
}

void cell__load_json(struct cell__loader *loader, const struct cell__yaml *value, json_t **ret)
{
	if (!cell__yaml_is_given(value))
		return;
	json_t *json = cell__yaml_to_json(value);
	if (!json) {
		cell__load_problem(loader, value, "out of memory");
		return;
	}
	json_decref(*ret);
	*ret = json;
}

void cell__load_timeout(struct cell__loader *loader, const struct cell__yaml *value, int64_t *ret_ms)
{
	json_t *json = NULL;
	cell__load_json(loader, value, &json);
	if (!json)
		return;
	double seconds = json_number_value(json); /* 0 if it is not a number */
	if (!(seconds >= 0.001 && seconds <= CELL_TOOL_LIMIT_TIMEOUT_S))
		cell__load_problem(loader, value, "timeout must be a number of seconds, more than 0 and at most %d",
				   CELL_TOOL_LIMIT_TIMEOUT_S);
	else
		*ret_ms = (int64_t)ceil(seconds * 1000);
	json_decref(json);
}

void *cell__load_more(struct cell__loader *loader, const struct cell__yaml *at, void *list, size_t *count, size_t size)
{
	char *grown = cell__realloc(list, (*count + 1) * size);
	if (!grown) {
		cell__load_problem(loader, at, "out of memory");
		return NULL;
	}
	memset(grown + *count * size, 0, size);
	++*count;
	return grown;
}

void cell__load_pairs(struct cell__loader *loader, const struct cell__yaml *value, const char *what, struct cell__pairs *ret)
{
	if (!cell__yaml_is_given(value))
		return;
	if (value->kind != CELL_YAML_MAPPING) {
		cell__load_problem(loader, value, "%s must be a mapping of names to strings", what);
		return;
	}
	for (size_t i = 0; i < value->count; i += 2) {
		const struct cell__yaml *key = value->items[i], *text = value->items[i + 1];
		if (text->kind != CELL_YAML_SCALAR) {
			cell__load_problem(loader, text, "'%.100s' in %s must be a string", key->text, what);
			continue;
		}
		if (!cell__vars_ok(text->text))
			cell__load_problem(loader, text, "'%.100s' in %s: write a variable as ${NAME}", key->text, what);
		struct cell__pair *list = cell__load_more(loader, key, ret->list, &ret->count, sizeof *list);
		if (!list)
			return;
		ret->list = list;
		list[ret->count - 1].key = cell__strdup(key->text);
		list[ret->count - 1].value = cell__strdup(cell__yaml_is_null(text) ? "" : text->text);
		if (!list[ret->count - 1].key || !list[ret->count - 1].value)
			cell__load_problem(loader, key, "out of memory");
	}
}

/* ---- parameters ---- */

/* Converts a value to the type of its parameter: 5 is text for a string, yes is true for a boolean. */
static json_t *guided_json(const struct cell__yaml *node, enum cell__arg_type type)
{
	if (node->kind == CELL_YAML_SCALAR && !cell__yaml_is_null(node)) {
		if (type == CELL_ARG_STRING)
			return json_string(node->text);
		if (type == CELL_ARG_BOOLEAN && node->plain) {
			if (strcasecmp(node->text, "yes") == 0 || strcasecmp(node->text, "on") == 0)
				return json_true();
			if (strcasecmp(node->text, "no") == 0 || strcasecmp(node->text, "off") == 0)
				return json_false();
		}
	}
	return cell__yaml_to_json(node);
}

static json_t *load_value(struct cell__loader *loader, const struct cell__yaml *node, const struct cell__param *param, const char *what)
{
	json_t *value = guided_json(node, param->type);
	if (!value) {
		cell__load_problem(loader, node, "out of memory");
		return NULL;
	}
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	if (cell__arg_check(param, value, &why) < 0) {
		cell__load_problem(loader, node, "%s: %s", what, why.data ? why.data : "out of memory");
		json_decref(value);
		return NULL;
	}
	return value;
}

static void load_choices(struct cell__loader *loader, const struct cell__yaml *node, struct cell__param *param)
{
	if (node->kind != CELL_YAML_SEQUENCE || node->count == 0) {
		cell__load_problem(loader, node, "enum must be a list of values");
		return;
	}
	json_t *choices = json_array();
	enum cell__arg_type type = param->type == CELL_ARG_ARRAY ? CELL_ARG_STRING : param->type;
	for (size_t i = 0; i < node->count; i++)
		if (json_array_append_new(choices, guided_json(node->items[i], type)) < 0)
			cell__load_problem(loader, node, "out of memory");
	json_decref(param->choices);
	param->choices = choices;
}

void cell__load_param(struct cell__loader *loader, const struct cell__yaml *spec, struct cell__param *param)
{
	const struct cell__yaml *type = cell__yaml_get(spec, "type");
	if (type && cell__yaml_is_given(type)) {
		bool ok = false;
		enum cell__arg_type parsed = CELL_ARG_UNTYPED;
		if (type->kind == CELL_YAML_SCALAR)
			parsed = cell__arg_type_parse(type->text, &ok);
		if (!ok && param->under) {
			parsed = CELL_ARG_STRING; /* "path": only the host knows it as another type */
			ok = true;
		}
		if (!ok)
			cell__load_problem(
				loader, type,
				"unknown type '%.40s'; known types: boolean, string, array, integer, number, object, and path for commands",
				type->kind == CELL_YAML_SCALAR ? type->text : "?");
		param->type = parsed;
	}
	cell__load_text(loader, cell__yaml_get(spec, "description"), "description", &param->description);
	cell__load_bool(loader, cell__yaml_get(spec, "required"), "required", &param->required);
	const struct cell__yaml *choices = cell__yaml_get(spec, "enum");
	if (choices && cell__yaml_is_given(choices))
		load_choices(loader, choices, param);
	const struct cell__yaml *fallback = cell__yaml_get(spec, "default");
	if (fallback && cell__yaml_is_given(fallback)) {
		json_decref(param->fallback);
		param->fallback = load_value(loader, fallback, param, "default");
	}
}

struct cell__param *cell__load_add_param(struct cell__loader *loader, const struct cell__yaml *at, struct cell__params *params,
					 const char *name)
{
	if (params->count >= CELL_TOOL_LIMIT_PARAMS) {
		cell__load_problem(loader, at, "more than %u parameters", CELL_TOOL_LIMIT_PARAMS);
		return NULL;
	}
	struct cell__param *list = cell__load_more(loader, at, params->list, &params->count, sizeof *list);
	if (!list)
		return NULL;
	params->list = list;
	list[params->count - 1].name = cell__strdup(name);
	if (list[params->count - 1].name)
		return &list[params->count - 1];
	params->count--;
	cell__load_problem(loader, at, "out of memory");
	return NULL;
}

/* ---- command-line tools ---- */

static bool name_taken(struct cell__loader *loader, const struct cell__yaml *at, const struct cell__params *params, const char *name)
{
	if (*name == '\0' || *name == '-')
		cell__load_problem(loader, at, "invalid parameter name '%.60s'", name);
	else if (cell__params_find(params, name))
		cell__load_problem(loader, at, "duplicate parameter '%.60s'", name);
	else
		return false;
	return true;
}

static struct cell__param *add_param(struct cell__loader *loader, const struct cell__yaml *at, struct cell__params *params,
				     const char *name)
{
	return name_taken(loader, at, params, name) ? NULL : cell__load_add_param(loader, at, params, name);
}

/* `short: s` is "-s"; `long: max-time` is "--max-time", and a value that begins with a dash is used unchanged. */
static void load_flag(struct cell__loader *loader, const struct cell__yaml *value, const char *dashes, char **ret)
{
	if (!cell__yaml_is_given(value))
		return;
	const char *text = value->kind == CELL_YAML_SCALAR ? value->text : "";
	bool is_long = dashes[1] != '\0';
	bool dashed = *text == '-';
	if (text[strspn(text, "-")] == '\0' || strpbrk(text, " \t\r\n=") || (dashed && !is_long)) {
		cell__load_problem(loader, value, "'%.60s' is not a valid %s flag", text, is_long ? "long" : "short");
		return;
	}
	struct cell__buf flag = CELL_BUF_INIT;
	if (cell__buf_printf(&flag, "%s%s", dashed ? "" : dashes, text) < 0)
		cell__load_problem(loader, value, "out of memory");
	*ret = flag.data;
}

/* `type: path`, and its keys. */
static void load_path(struct cell__loader *loader, const struct cell__yaml *spec, struct cell__param *param)
{
	const struct cell__yaml *type = cell__yaml_get(spec, "type"), *under = cell__yaml_get(spec, "under"),
				*mode = cell__yaml_get(spec, "mode"), *directory = cell__yaml_get(spec, "directory");
	CELL_AUTO_FREE char *word = NULL;
	if (!type || type->kind != CELL_YAML_SCALAR || strcmp(type->text, "path") != 0) {
		if (under || mode || directory)
			cell__load_problem(loader, under ? under : mode ? mode : directory, "under, mode and directory require type: path");
		return;
	}
	cell__load_text(loader, under, "under", &param->under);
	if (!param->under && !(param->under = cell__strdup("workspace")))
		cell__load_problem(loader, spec, "out of memory");
	else if (param->under[0] != '/' && strcmp(param->under, "workspace") != 0)
		cell__load_problem(loader, under, "under must be the word workspace or an absolute path, not '%.60s'", param->under);
	cell__load_text(loader, mode, "mode", &word);
	if (word && strcmp(word, "r") != 0 && strcmp(word, "w") != 0)
		cell__load_problem(loader, mode, "mode must be r or w");
	param->writes = word && strcmp(word, "w") == 0;
	cell__load_bool(loader, directory, "directory", &param->directory);
}

static void load_option(struct cell__loader *loader, const struct cell__yaml *key, const struct cell__yaml *spec,
			struct cell__params *schema)
{
	static const char *const known[] = { "type", "short",      "long",  "description", "required",  "default",
					     "enum", "allow_dash", "under", "mode",        "directory", NULL };
	struct cell__param *param = add_param(loader, key, schema, key->text);
	if (!param)
		return;
	param->place = CELL_IN_OPTION;
	if (cell__yaml_is_given(spec) && cell__load_keys(loader, spec, "an option", known)) {
		load_path(loader, spec, param);
		cell__load_param(loader, spec, param);
		load_flag(loader, cell__yaml_get(spec, "short"), "-", &param->short_flag);
		load_flag(loader, cell__yaml_get(spec, "long"), "--", &param->long_flag);
		cell__load_bool(loader, cell__yaml_get(spec, "allow_dash"), "allow_dash", &param->allow_dash);
	}
	if (param->type == CELL_ARG_OBJECT)
		cell__load_problem(loader, key, "option '%.60s': a command cannot take an object", key->text);
	if (!param->short_flag && !param->long_flag)
		load_flag(loader, key, "--", &param->long_flag);
}

static void load_positional(struct cell__loader *loader, const struct cell__yaml *spec, struct cell__params *schema)
{
	static const char *const known[] = { "name",       "type",  "description", "required",  "default", "enum",
					     "allow_dash", "under", "mode",        "directory", NULL };
	if (!cell__load_keys(loader, spec, "a positional", known))
		return;
	const struct cell__yaml *name = cell__yaml_get(spec, "name");
	if (!name || name->kind != CELL_YAML_SCALAR) {
		cell__load_problem(loader, spec, "a positional needs a name");
		return;
	}
	struct cell__param *param = add_param(loader, name, schema, name->text);
	if (!param)
		return;
	param->place = CELL_IN_POSITIONAL;
	load_path(loader, spec, param);
	cell__load_param(loader, spec, param);
	cell__load_bool(loader, cell__yaml_get(spec, "allow_dash"), "allow_dash", &param->allow_dash);
	if (param->type == CELL_ARG_OBJECT || param->type == CELL_ARG_BOOLEAN)
		cell__load_problem(loader, spec, "positional '%.60s' cannot be %s", name->text, cell__arg_type_word(param->type));
}

static void load_schema(struct cell__loader *loader, const struct cell__yaml *schema, struct cell__tool_entry *tool)
{
	static const char *const known[] = { "options", "positional", NULL };
	if (!cell__yaml_is_given(schema) || !cell__load_keys(loader, schema, "schema", known))
		return;
	const struct cell__yaml *options = cell__yaml_get(schema, "options");
	if (options && cell__yaml_is_given(options)) {
		if (options->kind != CELL_YAML_MAPPING)
			cell__load_problem(loader, options, "options must be a mapping");
		else
			for (size_t i = 0; i < options->count; i += 2)
				load_option(loader, options->items[i], options->items[i + 1], &tool->schema);
	}
	const struct cell__yaml *positional = cell__yaml_get(schema, "positional");
	if (positional && cell__yaml_is_given(positional)) {
		if (positional->kind != CELL_YAML_SEQUENCE)
			cell__load_problem(loader, positional, "positional must be a list");
		else
			for (size_t i = 0; i < positional->count; i++)
				load_positional(loader, positional->items[i], &tool->schema);
	}
}

/* A parameter as the schema has it, for a recipe to change. */
static void inherit(struct cell__loader *loader, const struct cell__yaml *at, const struct cell__param *from, struct cell__param *to)
{
	to->type = from->type;
	to->required = from->required;
	to->place = from->place;
	to->fallback = json_incref(from->fallback);
	to->choices = json_incref(from->choices);
	if (from->description && !(to->description = cell__strdup(from->description)))
		cell__load_problem(loader, at, "out of memory");
}

static void load_recipe_param(struct cell__loader *loader, const struct cell__yaml *key, const struct cell__yaml *spec,
			      const struct cell__tool_entry *tool, struct cell__callable *recipe)
{
	static const char *const known[] = { "type", "description", "required", "default", "enum", NULL };
	const struct cell__param *base = cell__params_find(&tool->schema, key->text);
	if (!base) {
		cell__load_problem(loader, key, "recipe '%.60s': parameter '%.60s' is not in the schema", recipe->name, key->text);
		return;
	}
	struct cell__param *param = add_param(loader, key, &recipe->params, base->name);
	if (!param)
		return;
	inherit(loader, key, base, param);
	if (cell__yaml_is_given(spec) && cell__load_keys(loader, spec, "a recipe's parameter", known))
		cell__load_param(loader, spec, param);
	if (base->type != CELL_ARG_UNTYPED && param->type != base->type)
		cell__load_problem(loader, key, "recipe '%.60s': parameter '%.60s' is %s in the schema", recipe->name, key->text,
				   cell__arg_type_word(base->type));
}

static void load_preset(struct cell__loader *loader, const struct cell__yaml *preset, const struct cell__tool_entry *tool,
			struct cell__callable *recipe)
{
	if (!cell__yaml_is_given(preset))
		return;
	recipe->preset = json_object();
	if (preset->kind != CELL_YAML_MAPPING) {
		cell__load_problem(loader, preset, "preset must be a mapping");
		return;
	}
	for (size_t i = 0; i < preset->count; i += 2) {
		const struct cell__yaml *key = preset->items[i];
		const struct cell__param *param = cell__params_find(&tool->schema, key->text);
		if (!param) {
			cell__load_problem(loader, key, "recipe '%.60s': preset '%.60s' is not in the schema", recipe->name, key->text);
			continue;
		}
		if (cell__yaml_is_null(preset->items[i + 1]))
			continue;
		json_t *value = load_value(loader, preset->items[i + 1], param, "preset");
		if (value && json_object_set_new(recipe->preset, param->name, value) < 0)
			cell__load_problem(loader, key, "out of memory");
	}
}

/* An optional parameter is not advertised as required; a preset is shown as its default. */
static void settle_required(struct cell__callable *recipe)
{
	for (size_t i = 0; i < recipe->params.count; i++) {
		struct cell__param *param = &recipe->params.list[i];
		json_t *preset = recipe->preset ? json_object_get(recipe->preset, param->name) : NULL;
		if (preset && !json_is_null(preset)) {
			json_decref(param->fallback);
			param->fallback = json_incref(preset);
		}
		if (param->fallback)
			param->required = false;
	}
}

/* Without `params` a recipe has the schema's parameters: positionals first. */
static void advertise_schema(struct cell__loader *loader, const struct cell__yaml *at, const struct cell__tool_entry *tool,
			     struct cell__callable *recipe)
{
	for (int pass = 0; pass < 2; pass++)
		for (size_t i = 0; i < tool->schema.count; i++) {
			const struct cell__param *base = &tool->schema.list[i];
			if ((base->place == CELL_IN_POSITIONAL) != (pass == 0))
				continue;
			struct cell__param *param = add_param(loader, at, &recipe->params, base->name);
			if (param)
				inherit(loader, at, base, param);
		}
}

void cell__load_callables(struct cell__loader *loader, const struct cell__yaml *mapping, const char *what, cell__load_callable_fn load,
			  struct cell__tool_entry *tool)
{
	if (mapping->count / 2 > CELL_TOOL_LIMIT_CALLABLES) {
		cell__load_problem(loader, mapping, "more than %u %s", CELL_TOOL_LIMIT_CALLABLES, what);
		return;
	}
	for (size_t i = 0; i < mapping->count; i += 2)
		load(loader, mapping->items[i], mapping->items[i + 1], tool);
}

struct cell__callable *cell__load_callable(struct cell__loader *loader, const struct cell__yaml *key, const char *what,
					   struct cell__tool_entry *tool)
{
	if (!cell__tool_name_ok(key->text)) {
		cell__load_problem(loader, key, "invalid %s name '%.60s'", what, key->text);
		return NULL;
	}
	struct cell__callable *list = cell__load_more(loader, key, tool->callables, &tool->n_callables, sizeof *list);
	if (!list)
		return NULL;
	tool->callables = list;
	struct cell__callable *callable = &list[tool->n_callables - 1];
	callable->name = cell__strdup(key->text);
	if (callable->name)
		return callable;
	tool->n_callables--;
	cell__load_problem(loader, key, "out of memory");
	return NULL;
}

static void load_recipe(struct cell__loader *loader, const struct cell__yaml *key, const struct cell__yaml *spec,
			struct cell__tool_entry *tool)
{
	static const char *const known[] = { "description", "preset", "params", "supposed", NULL };
	struct cell__callable *recipe = cell__load_callable(loader, key, "recipe", tool);
	if (!recipe)
		return;
	const struct cell__yaml *params = NULL;
	if (cell__yaml_is_given(spec) && cell__load_keys(loader, spec, "a recipe", known)) {
		cell__load_text(loader, cell__yaml_get(spec, "description"), "description", &recipe->description);
		load_preset(loader, cell__yaml_get(spec, "preset"), tool, recipe);
		cell__load_json(loader, cell__yaml_get(spec, "supposed"), &recipe->supposed);
		params = cell__yaml_get(spec, "params");
	}
	if (params && cell__yaml_is_given(params) && params->kind != CELL_YAML_MAPPING)
		cell__load_problem(loader, params, "params must be a mapping");
	else if (params && cell__yaml_is_given(params) && params->count > 0)
		for (size_t i = 0; i < params->count; i += 2)
			load_recipe_param(loader, params->items[i], params->items[i + 1], tool, recipe);
	else
		advertise_schema(loader, key, tool, recipe);
	settle_required(recipe);
}

static void load_recipes(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	const struct cell__yaml *recipes = cell__yaml_get(doc, "recipes");
	if (!cell__yaml_is_given(recipes) || (recipes->kind == CELL_YAML_MAPPING && recipes->count == 0)) {
		cell__load_problem(loader, recipes ? recipes : doc,
				   "Tool '%s' has no recipes defined. Old-format YAML with 'args' template is no longer "
				   "supported. Use schema + recipes format.",
				   tool->name);
		return;
	}
	if (recipes->kind == CELL_YAML_MAPPING)
		cell__load_callables(loader, recipes, "recipes", load_recipe, tool);
	else
		cell__load_problem(loader, recipes, "recipes must be a mapping");
}

void cell__load_cli(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	static const char *const known[] = { "name",    "type", "command", "description",    "timeout",    "tags", "schema",
					     "recipes", "env",  "cwd",     "end_of_options", "max_output", "host", NULL };
	static const char *const old[] = { "name", "type", "command", "description",    "timeout",    "tags", "schema",
					   "args", "env",  "cwd",     "end_of_options", "max_output", "host", NULL };
	tool->adapter = &cell__tool_cli;
	/* The old format has `args` instead of recipes: reported as one problem. */
	cell__load_keys(loader, doc, "a tool of type cli", cell__yaml_get(doc, "recipes") ? known : old);
	const struct cell__yaml *command = cell__yaml_get(doc, "command");
	cell__load_text(loader, command, "command", &tool->command);
	bool is_text = !command || command->kind == CELL_YAML_SCALAR;
	if (is_text && (!tool->command || tool->command[0] == '\0' || tool->command[0] == '-'))
		cell__load_problem(loader, command ? command : doc, "Tool '%s' has no command", tool->name);
	cell__load_text(loader, cell__yaml_get(doc, "cwd"), "cwd", &tool->cwd);
	cell__load_pairs(loader, cell__yaml_get(doc, "env"), "env", &tool->env);
	for (size_t i = 0; i < tool->env.count; i++)
		if (!tool->env.list[i].key || strchr(tool->env.list[i].key, '=') || !*tool->env.list[i].key)
			cell__load_problem(loader, cell__yaml_get(doc, "env"), "invalid variable name '%.60s'",
					   tool->env.list[i].key ? tool->env.list[i].key : "");
	cell__load_bool(loader, cell__yaml_get(doc, "end_of_options"), "end_of_options", &tool->end_of_options);
	cell__load_bool(loader, cell__yaml_get(doc, "host"), "host", &tool->host);
	load_schema(loader, cell__yaml_get(doc, "schema"), tool);
	load_recipes(loader, doc, tool);
}

/* ---- the tool as a whole ---- */

bool cell__tool_name_ok(const char *name)
{
	if (!isalpha((unsigned char)*name) || strlen(name) > CELL_TOOL_LIMIT_NAME)
		return false;
	for (const char *at = name; *at; at++)
		if (!isalnum((unsigned char)*at) && *at != '_' && *at != '-')
			return false;
	return true;
}

static void load_name(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	const struct cell__yaml *name = cell__yaml_get(doc, "name");
	if (!cell__yaml_is_given(name)) {
		cell__load_problem(loader, doc, "a tool needs a name");
		return;
	}
	tool->line = name->line;
	cell__load_text(loader, name, "name", &tool->name);
	if (!tool->name)
		return;
	if (!cell__tool_name_ok(tool->name))
		cell__load_problem(loader, name,
				   "invalid tool name '%.100s': expected letters, digits, _ and -, at most %u, beginning with a letter",
				   tool->name, CELL_TOOL_LIMIT_NAME);
	else if (strcmp(tool->name, "list") == 0 || strcmp(tool->name, "search") == 0)
		cell__load_problem(loader, name, "invalid tool name '%s': tools.%s() is reserved", tool->name, tool->name);
}

static void load_tags(struct cell__loader *loader, const struct cell__yaml *tags, struct cell__tool_entry *tool)
{
	if (!cell__yaml_is_given(tags))
		return;
	if (tags->kind != CELL_YAML_SEQUENCE) {
		cell__load_problem(loader, tags, "tags must be a list");
		return;
	}
	for (size_t i = 0; i < tags->count; i++) {
		if (tags->items[i]->kind != CELL_YAML_SCALAR) {
			cell__load_problem(loader, tags->items[i], "a tag must be a string");
			continue;
		}
		char **list = cell__load_more(loader, tags, tool->tags, &tool->n_tags, sizeof *list);
		if (!list)
			return;
		tool->tags = list;
		list[tool->n_tags - 1] = cell__strdup(tags->items[i]->text);
		if (!list[tool->n_tags - 1]) {
			tool->n_tags--;
			cell__load_problem(loader, tags, "out of memory");
		}
	}
}

static void load_max_output(struct cell__loader *loader, const struct cell__yaml *value, struct cell__tool_entry *tool)
{
	json_t *json = NULL;
	cell__load_json(loader, value, &json);
	if (!json)
		return;
	json_int_t bytes = json_integer_value(json);
	if (bytes < 1 || bytes > CELL_TOOL_LIMIT_OUTPUT)
		cell__load_problem(loader, value, "max_output must be a number of bytes from 1 to %u", CELL_TOOL_LIMIT_OUTPUT);
	else
		tool->max_output = (size_t)bytes;
	json_decref(json);
}

static void load_kind(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	const struct cell__yaml *type = cell__yaml_get(doc, "type");
	const char *word = !cell__yaml_is_given(type) ? "cli" : type->kind == CELL_YAML_SCALAR ? type->text : "";
	if (strcmp(word, "cli") == 0)
		cell__load_cli(loader, doc, tool);
	else if (strcmp(word, "http") == 0)
		cell__load_http(loader, doc, tool);
	else if (strcmp(word, "mcp") == 0)
		cell__load_mcp(loader, doc, tool);
	else if (strcmp(word, "openapi") == 0)
		cell__load_openapi(loader, doc, tool);
	else
		cell__load_problem(loader, type, "unknown type '%.60s': expected cli, http, openapi or mcp", word);
}

static void load_document(struct cell__loader *loader, const struct cell__yaml *doc, struct cell__tool_entry *tool)
{
	if (doc->kind != CELL_YAML_MAPPING) {
		cell__load_problem(loader, doc, "a tool must be a mapping");
		return;
	}
	load_name(loader, doc, tool);
	if (!tool->name && !(tool->name = cell__strdup("?"))) {
		cell__load_problem(loader, doc, "out of memory");
		return;
	}
	cell__load_text(loader, cell__yaml_get(doc, "description"), "description", &tool->description);
	cell__load_timeout(loader, cell__yaml_get(doc, "timeout"), &tool->timeout_ms);
	load_tags(loader, cell__yaml_get(doc, "tags"), tool);
	load_max_output(loader, cell__yaml_get(doc, "max_output"), tool);
	load_kind(loader, doc, tool);
	cell__tool_add_aliases(tool);
}

struct cell__tool_entry *cell__tool_load(const char *file, const char *bytes, size_t size, struct cell__problems *problems)
{
	struct cell__loader loader = { .file = file, .problems = problems };
	struct cell__yaml *doc = cell__yaml_parse(file, bytes, size, problems);
	if (!doc)
		return NULL;
	struct cell__tool_entry *tool = cell__alloc(1, sizeof *tool);
	if (!tool) {
		cell__load_problem(&loader, NULL, "out of memory");
	} else {
		tool->refs = 1;
		tool->timeout_ms = CELL_TOOL_DEFAULT_TIMEOUT_MS;
		tool->max_output = CELL_TOOL_DEFAULT_OUTPUT;
		tool->file = cell__strdup(file);
		if (!tool->file)
			cell__load_problem(&loader, doc, "out of memory");
		load_document(&loader, doc, tool);
	}
	cell__yaml_destroy(doc);
	if (tool && loader.bad) {
		cell__tool_unref(tool);
		return NULL;
	}
	return tool;
}

struct cell__tool_entry *cell__tool_ref(struct cell__tool_entry *tool)
{
	tool->refs++;
	return tool;
}

void cell__callable_finish(struct cell__callable *callable)
{
	free(callable->name);
	free(callable->description);
	free(callable->alias);
	free(callable->method);
	free(callable->path);
	cell__params_finish(&callable->params);
	json_decref(callable->preset);
	json_decref(callable->supposed);
	json_decref(callable->query);
	json_decref(callable->body);
}

void cell__pairs_finish(struct cell__pairs *pairs)
{
	for (size_t i = 0; i < pairs->count; i++) {
		free(pairs->list[i].key);
		free(pairs->list[i].value);
	}
	free(pairs->list);
}

void cell__tool_unref(struct cell__tool_entry *tool)
{
	if (!tool || --tool->refs > 0)
		return;
	for (size_t i = 0; i < tool->n_callables; i++)
		cell__callable_finish(&tool->callables[i]);
	free(tool->callables);
	for (size_t i = 0; i < tool->n_tags; i++)
		free(tool->tags[i]);
	free(tool->tags);
	cell__params_finish(&tool->schema);
	cell__pairs_finish(&tool->env);
	cell__pairs_finish(&tool->headers);
	cell__pairs_finish(&tool->query);
	free(tool->name);
	free(tool->description);
	free(tool->file);
	free(tool->command);
	free(tool->cwd);
	free(tool->base_url);
	cell__mcp_params_unref(tool->mcp);
	cell__tool_server_unref(tool->server);
	free(tool);
}

const struct cell__callable *cell__tool_callable(const struct cell__tool_entry *tool, const char *name)
{
	for (size_t i = 0; i < tool->n_callables; i++)
		if (strcmp(tool->callables[i].name, name) == 0)
			return &tool->callables[i];
	for (size_t i = 0; i < tool->n_callables; i++)
		if (tool->callables[i].alias && strcmp(tool->callables[i].alias, name) == 0)
			return &tool->callables[i];
	return NULL;
}

bool cell__tool_in_scope(const struct cell__tool_entry *tool, const char *const *scope)
{
	if (!scope)
		return true;
	for (; *scope; scope++)
		for (size_t i = 0; i < tool->n_tags; i++)
			if (strcmp(tool->tags[i], *scope) == 0)
				return true;
	return false;
}
