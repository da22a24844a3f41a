/*
 * A server's tools as callables. Everything from the server is data: names are bounded and never become code, descriptions are cut, and if
 * we do not understand a schema the server checks the arguments itself.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "tools/mcp.h"

#define DESCRIPTION_BYTES 300u /* of a server as a whole, made from its tools' descriptions */

/* The bytes of one server's texts that may still be kept. */
struct budget {
	size_t left;
};

/* ---- names ---- */

static bool is_keyword(const char *name)
{
	static const char *const words[] = {
		"False",  "None",     "True", "and",    "as",      "assert", "async",  "await",  "break", "class",  "continue", "def",
		"del",    "elif",     "else", "except", "finally", "for",    "from",   "global", "if",    "import", "in",       "is",
		"lambda", "nonlocal", "not",  "or",     "pass",    "raise",  "return", "try",    "while", "with",   "yield",
	};
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strcmp(name, words[i]) == 0)
			return true;
	return false;
}

/* Attributes that a tool has in the code anyway. */
static bool is_taken(const char *name)
{
	static const char *const words[] = { "call_async", "call_sync", "describe", "list", "signature" };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (strcmp(name, words[i]) == 0)
			return true;
	return false;
}

static bool printable(const char *name)
{
	for (; *name; name++)
		if ((unsigned char)*name < 0x20 || *name == 0x7f)
			return false;
	return true;
}

/* A string without NUL that a person can read; else NULL. */
static const char *plain_name(const json_t *value, size_t max)
{
	const char *name = json_string_value(value);
	size_t size = json_string_length(value);
	return name && size > 0 && size <= max && strlen(name) == size && printable(name) ? name : NULL;
}

/* The name's form in Python; characters beyond ASCII stay. */
static int add_identifier(struct cell__buf *out, const char *name, bool attribute)
{
	/* Attributes that begin with an underscore are Python's own. */
	while (attribute && name[0] == '_' && name[1])
		name++;
	int rc = 0;
	if (isdigit((unsigned char)*name) || (attribute && !isalpha((unsigned char)*name) && !(*name & 0x80)))
		rc = cell__buf_add_str(out, attribute ? "tool_" : "_");
	size_t start = out->size;
	rc |= cell__buf_add_str(out, name);
	for (size_t i = start; rc == 0 && i < out->size; i++)
		if (!isalnum((unsigned char)out->data[i]) && !(out->data[i] & 0x80))
			out->data[i] = '_';
	if (rc == 0 && (is_keyword(out->data) || (attribute && is_taken(out->data))))
		rc = cell__buf_add_str(out, "_");
	return rc;
}

/* Another name for it in Python if it needs one; else *ret_alias stays NULL. */
static int make_alias(const char *name, bool attribute, bool (*is_used)(const void *owner, const char *alias), const void *owner,
		      char **ret_alias)
{
	struct cell__buf alias = CELL_BUF_INIT;
	if (add_identifier(&alias, name, attribute) < 0) {
		cell__buf_finish(&alias);
		return -1;
	}
	if (strcmp(alias.data, name) == 0) {
		cell__buf_finish(&alias);
		return 0;
	}
	size_t size = alias.size;
	for (unsigned i = 2; is_used(owner, alias.data) && i < 1000; i++) {
		alias.size = size;
		if (cell__buf_printf(&alias, "_%u", i) < 0) {
			cell__buf_finish(&alias);
			return -1;
		}
	}
	*ret_alias = alias.data;
	return 0;
}

/* ---- texts ---- */

/* A copy of at most max bytes, cut at the end of a character; NULL also if it is missing or there is no room for it. */
static char *cut_text(const json_t *value, size_t max, struct budget *budget)
{
	const char *text = json_string_value(value);
	if (!text || !*text)
		return NULL;
	size_t size = strnlen(text, max);
	if (text[size])
		size -= cell__utf8_cut(text, size);
	if (size > budget->left)
		return NULL;
	budget->left -= size;
	return cell__strndup(text, size);
}

/* ---- parameters ---- */

static bool is_null_type(const json_t *schema)
{
	const char *type = json_string_value(json_object_get(schema, "type"));
	return type && strcmp(type, "null") == 0;
}

static void set_type(struct cell__param *param, const char *word)
{
	bool ok;
	param->type = cell__arg_type_parse(word, &ok);
	if (!ok)
		param->type = CELL_ARG_ANY;
}

/* ["string", "null"]: one type and null.  Several others are for the server to tell apart. */
static void type_from_list(struct cell__param *param, const json_t *list)
{
	size_t i, others = 0;
	json_t *value;
	const char *word = NULL;
	json_array_foreach((json_t *)list, i, value) {
		const char *text = json_string_value(value);
		if (text && strcmp(text, "null") == 0)
			param->nullable = true;
		else if (++others == 1)
			word = text;
	}
	if (others == 1 && word)
		set_type(param, word);
}

/* [{"type": "number"}, {"type": "null"}] */
static void type_from_union(struct cell__param *param, const json_t *list)
{
	size_t i, others = 0;
	json_t *value;
	const json_t *type = NULL;
	json_array_foreach((json_t *)list, i, value) {
		if (is_null_type(value))
			param->nullable = true;
		else if (++others == 1)
			type = json_object_get(value, "type");
	}
	if (others == 1 && json_is_string(type))
		set_type(param, json_string_value(type));
	else if (others > 0)
		param->nullable = true; /* it may be null deeper down */
}

static void read_type(struct cell__param *param, const json_t *schema)
{
	const json_t *type = json_object_get(schema, "type");
	const json_t *any = json_object_get(schema, "anyOf"), *one = json_object_get(schema, "oneOf");
	param->type = CELL_ARG_ANY;
	param->nullable = json_is_true(json_object_get(schema, "nullable"));
	if (json_is_array(any) || json_is_array(one))
		type_from_union(param, json_is_array(any) ? any : one);
	else if (json_is_array(type))
		type_from_list(param, type);
	else if (is_null_type(schema) || !json_is_string(type))
		param->nullable = true;
	else
		set_type(param, json_string_value(type));
}

static bool is_required(const json_t *schema, const char *name)
{
	json_t *list = json_object_get(schema, "required"), *value;
	size_t i;
	json_array_foreach(list, i, value) {
		const char *text = json_string_value(value);
		if (text && strcmp(text, name) == 0)
			return true;
	}
	return false;
}

static void read_default(struct cell__param *param, const json_t *schema, struct budget *budget)
{
	json_t *value = json_object_get(schema, "default");
	if (!value || json_is_null(value))
		return;
	size_t size = json_dumpb(value, NULL, 0, JSON_ENCODE_ANY | JSON_COMPACT);
	if (size == 0 || size > CELL_MCP_LIMIT_PARAM_TEXT || size > budget->left)
		return;
	budget->left -= size;
	param->fallback = json_incref(value);
}

static bool param_used(const void *owner, const char *alias)
{
	const struct cell__params *params = owner;
	for (size_t i = 0; i < params->count; i++)
		if (strcmp(params->list[i].name, alias) == 0 || (params->list[i].alias && strcmp(params->list[i].alias, alias) == 0))
			return true;
	return false;
}

/* When all names are known: no alias takes one of them. */
int cell__params_add_aliases(struct cell__params *params)
{
	for (size_t i = 0; i < params->count; i++)
		if (make_alias(params->list[i].name, false, param_used, params, &params->list[i].alias) < 0)
			return -1;
	return 0;
}

static int read_param(struct cell__param *param, const char *name, const json_t *property, const json_t *schema, struct budget *budget)
{
	param->place = CELL_IN_BODY;
	read_type(param, property);
	read_default(param, property, budget);
	bool required = is_required(schema, name);
	param->required = required && !param->fallback;
	/* The server fills in optional arguments by itself. */
	param->theirs = !required;
	json_t *choices = json_object_get(property, "enum");
	if (json_is_array(choices) && json_array_size(choices) > 0 && param->type != CELL_ARG_ARRAY)
		param->choices = json_incref(choices);
	param->description = cut_text(json_object_get(property, "description"), CELL_MCP_LIMIT_PARAM_TEXT, budget);
	param->name = cell__strdup(name);
	return param->name ? 0 : -1;
}

/* Whether arguments without a description are allowed. */
static bool is_open(const json_t *schema, const json_t *properties)
{
	static const char *const more[] = { "anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if", "dependentSchemas" };
	const json_t *additional = json_object_get(schema, "additionalProperties");
	if (json_is_true(additional) || json_is_object(additional))
		return true;
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		if (json_object_get(schema, more[i]))
			return true;
	return !json_is_object(properties) && !json_is_false(additional); /* {}: it has no parameters */
}

static int read_params(struct cell__callable *callable, const json_t *schema, struct budget *budget)
{
	json_t *properties = json_object_get(schema, "properties"), *property;
	const char *name;
	struct cell__params *params = &callable->params;
	size_t n = json_object_size(properties);
	callable->open = is_open(schema, properties) || n > CELL_TOOL_LIMIT_PARAMS;
	n = n < CELL_TOOL_LIMIT_PARAMS ? n : CELL_TOOL_LIMIT_PARAMS;
	params->list = cell__alloc(n, sizeof *params->list);
	if (!params->list)
		return -1;
	json_object_foreach(properties, name, property) {
		size_t size = strlen(name);
		if (params->count == n)
			break;
		if (size > budget->left || size > CELL_MCP_LIMIT_PARAM_TEXT || !printable(name)) {
			callable->open = true;
			continue;
		}
		budget->left -= size;
		/* Counted first: its parts are freed with the callable. */
		if (read_param(&params->list[params->count++], name, property, schema, budget) < 0)
			return -1;
	}
	return cell__params_add_aliases(params);
}

/* ---- callables ---- */

static bool callable_used(const void *owner, const char *alias)
{
	const struct cell__tool_entry *tool = owner;
	for (size_t i = 0; i < tool->n_callables; i++)
		if (strcmp(tool->callables[i].name, alias) == 0 ||
		    (tool->callables[i].alias && strcmp(tool->callables[i].alias, alias) == 0))
			return true;
	return false;
}

void cell__tool_add_aliases(struct cell__tool_entry *tool)
{
	for (size_t i = 0; i < tool->n_callables; i++) {
		struct cell__callable *each = &tool->callables[i];
		/* One that is named like its tool is called as the tool itself. */
		if (!each->alias && (is_keyword(each->name) || is_taken(each->name)) && strcmp(each->name, tool->name) != 0)
			(void)make_alias(each->name, true, callable_used, tool, &each->alias);
	}
}

static int read_callable(struct cell__callable *callable, const char *name, const json_t *spec, struct budget *budget)
{
	const json_t *schema = json_object_get(spec, "inputSchema");
	callable->name = cell__strdup(name);
	callable->description = cut_text(json_object_get(spec, "description"), CELL_MCP_LIMIT_DESCRIPTION, budget);
	if (!callable->description)
		callable->description = cut_text(json_object_get(spec, "title"), CELL_MCP_LIMIT_DESCRIPTION, budget);
	const char *task = json_string_value(json_object_get(json_object_get(spec, "execution"), "taskSupport"));
	callable->task = task && strcmp(task, "required") == 0;
	callable->typed = json_is_object(json_object_get(spec, "outputSchema"));
	if (!callable->name)
		return -1;
	if (!json_is_object(schema)) {
		callable->open = true;
		return 0;
	}
	return read_params(callable, schema, budget);
}

/* "a: what a does; b: what b does", as long as it is short. */
static void describe(struct cell__tool_entry *tool)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	for (size_t i = 0; i < tool->n_callables && text.size < DESCRIPTION_BYTES; i++) {
		const struct cell__callable *callable = &tool->callables[i];
		const char *words = callable->description ? callable->description : "";
		(void)cell__buf_printf(&text, "%s%s: %.*s", i ? "; " : "", callable->name, (int)strcspn(words, "\n"), words);
	}
	if (text.size == 0)
		(void)cell__buf_printf(&text, "MCP tools under %s", tool->name);
	if (text.size > DESCRIPTION_BYTES) {
		text.size = DESCRIPTION_BYTES;
		text.size -= cell__utf8_cut(text.data, text.size);
		text.data[text.size] = '\0';
	}
	free(tool->description);
	tool->description = cell__buf_take(&text);
	tool->described = true;
}

void cell__mcp_fill_callables(struct cell__tool_entry *tool, const json_t *list, char problem[160])
{
	struct budget budget = { CELL_MCP_LIMIT_TEXTS };
	size_t i, left_out = 0;
	json_t *spec;
	assert(tool->n_callables == 0);
	tool->callables = cell__alloc(json_array_size(list), sizeof *tool->callables);
	json_array_foreach((json_t *)list, i, spec) {
		const char *name = plain_name(json_object_get(spec, "name"), CELL_MCP_LIMIT_NAME);
		if (!tool->callables || !name || budget.left < CELL_MCP_LIMIT_NAME || callable_used(tool, name)) {
			left_out++;
			continue;
		}
		budget.left -= strlen(name);
		struct cell__callable *callable = &tool->callables[tool->n_callables];
		if (read_callable(callable, name, spec, &budget) < 0) {
			cell__callable_finish(callable);
			*callable = (struct cell__callable){ 0 };
			left_out++;
		} else {
			tool->n_callables++;
		}
	}
	for (i = 0; i < tool->n_callables; i++)
		(void)make_alias(tool->callables[i].name, true, callable_used, tool, &tool->callables[i].alias);
	if (left_out > 0)
		snprintf(problem, 160,
			 "%zu of the server's tools were skipped: their names cannot be used, or their descriptions are too large",
			 left_out);
	if (!tool->description || tool->described)
		describe(tool);
}
