/*
 * Arguments of tools: their descriptions, their values, and how both are shown.
 *
 * Not the checker of calls/schema.h, which is exact and for schemas that we wrote ourselves: descriptions of tools come from YAML files,
 * HTTP tools, host functions and MCP servers, become parameters (struct cell__param) that know their place in an argv or a request, are
 * filled from presets and defaults, and leave keywords that we do not understand to the tool.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "tools/mcp.h"
#include "wire/json_check.h"

/* ---- types ---- */

static const struct {
	const char *word;   /* in YAML, in JSON Schema, in listings */
	const char *python; /* in signatures */
	const char *noun;   /* in errors */
} types[] = {
	[CELL_ARG_UNTYPED] = { "string", "str", "a string" },    [CELL_ARG_STRING] = { "string", "str", "a string" },
	[CELL_ARG_BOOLEAN] = { "boolean", "bool", "a boolean" }, [CELL_ARG_INTEGER] = { "integer", "int", "an integer" },
	[CELL_ARG_NUMBER] = { "number", "float", "a number" },   [CELL_ARG_ARRAY] = { "array", "list", "an array" },
	[CELL_ARG_OBJECT] = { "object", "dict", "an object" },   [CELL_ARG_ANY] = { "any", "Any", "a value" },
};

enum cell__arg_type cell__arg_type_parse(const char *word, bool *ret_ok)
{
	*ret_ok = true;
	for (int type = CELL_ARG_STRING; type <= CELL_ARG_ANY; type++)
		if (strcmp(word, types[type].word) == 0 || strcmp(word, types[type].python) == 0)
			return (enum cell__arg_type)type;
	*ret_ok = false;
	return CELL_ARG_UNTYPED;
}

const char *cell__arg_type_word(enum cell__arg_type type)
{
	return types[type].word;
}

void cell__param_finish(struct cell__param *param)
{
	free(param->name);
	free(param->description);
	free(param->short_flag);
	free(param->long_flag);
	free(param->alias);
	free(param->under);
	json_decref(param->fallback);
	json_decref(param->choices);
}

void cell__params_finish(struct cell__params *params)
{
	for (size_t i = 0; i < params->count; i++)
		cell__param_finish(&params->list[i]);
	free(params->list);
	*params = (struct cell__params){ 0 };
}

/* Python's keywords cannot have a dash: max_time is max-time unless a parameter is called max_time. */
static bool same_but_dashes(const char *asked, const char *name)
{
	for (; *asked && *name; asked++, name++)
		if (*asked != *name && !(*asked == '_' && *name == '-'))
			return false;
	return *asked == *name;
}

const struct cell__param *cell__params_find(const struct cell__params *params, const char *name)
{
	for (size_t i = 0; i < params->count; i++)
		if (strcmp(params->list[i].name, name) == 0)
			return &params->list[i];
	for (size_t i = 0; i < params->count; i++)
		if (params->list[i].alias && strcmp(params->list[i].alias, name) == 0)
			return &params->list[i];
	for (size_t i = 0; i < params->count; i++)
		if (same_but_dashes(name, params->list[i].name))
			return &params->list[i];
	return NULL;
}

/* ---- checking ---- */

static const char *noun_of(const json_t *value)
{
	switch (json_typeof(value)) {
	case JSON_STRING:
		return "a string";
	case JSON_INTEGER:
		return "an integer";
	case JSON_REAL:
		return "a number";
	case JSON_TRUE:
	case JSON_FALSE:
		return "a boolean";
	case JSON_ARRAY:
		return "an array";
	case JSON_OBJECT:
		return "an object";
	default:
		return "null";
	}
}

static bool type_fits(enum cell__arg_type type, const json_t *value)
{
	switch (type) {
	case CELL_ARG_UNTYPED:
		return json_is_string(value) || json_is_number(value);
	case CELL_ARG_STRING:
		return json_is_string(value);
	case CELL_ARG_BOOLEAN:
		return json_is_boolean(value);
	case CELL_ARG_INTEGER:
		return json_is_integer(value);
	case CELL_ARG_NUMBER:
		return json_is_number(value);
	case CELL_ARG_ARRAY:
		return json_is_array(value);
	case CELL_ARG_OBJECT:
		return json_is_object(value);
	case CELL_ARG_ANY:
		return true;
	}
	return false;
}

/* A short JSON text, for error messages. */
static int add_json(struct cell__buf *out, const json_t *value)
{
	CELL_AUTO_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
	return text ? cell__buf_printf(out, "%.80s", text) : -1;
}

static bool among(const json_t *choices, const json_t *value)
{
	for (size_t i = 0; i < json_array_size(choices); i++)
		if (json_equal(json_array_get(choices, i), value))
			return true;
	return false;
}

static int check_choice(const struct cell__param *param, const json_t *value, struct cell__buf *why)
{
	if (among(param->choices, value))
		return 0;
	cell__buf_printf(why, "Argument '%s' must be one of ", param->name);
	for (size_t i = 0; i < json_array_size(param->choices); i++) {
		cell__buf_add_str(why, i ? ", " : "");
		add_json(why, json_array_get(param->choices, i));
	}
	cell__buf_add_str(why, ", not ");
	CELL_AUTO_BUF struct cell__buf shown = CELL_BUF_INIT;
	if (add_json(&shown, value) == 0)
		cell__buf_add_utf8(why, shown.data, shown.size);
	return -1;
}

int cell__arg_check(const struct cell__param *param, const json_t *value, struct cell__buf *why)
{
	if (param->nullable && json_is_null(value))
		return 0;
	if (!type_fits(param->type, value)) {
		cell__buf_printf(why, "Argument '%s' must be %s, not %s", param->name, types[param->type].noun, noun_of(value));
		return -1;
	}
	bool scalars = param->place != CELL_IN_BODY;
	size_t n = json_is_array(value) ? json_array_size(value) : 0;
	for (size_t i = 0; i < n; i++) {
		const json_t *item = json_array_get(value, i);
		if (scalars && !json_is_string(item) && !json_is_number(item) && !json_is_boolean(item)) {
			cell__buf_printf(why, "Argument '%s' must be an array of strings or numbers, item %zu is %s", param->name, i,
					 noun_of(item));
			return -1;
		}
		if (param->choices && check_choice(param, item, why) < 0)
			return -1;
	}
	if (param->choices && !json_is_array(value))
		return check_choice(param, value, why);
	return 0;
}

/* ---- merging ---- */

static const struct cell__param *find_param(const struct cell__tool_entry *tool, const struct cell__callable *callable, const char *name)
{
	const struct cell__param *param = callable ? cell__params_find(&callable->params, name) : NULL;
	return param ? param : cell__params_find(&tool->schema, name);
}

static void add_signature(const struct cell__tool_entry *tool, const struct cell__callable *callable, struct cell__buf *why)
{
	if (callable) {
		cell__buf_printf(why, "\nSignature: %s.", tool->name);
		cell__callable_signature(callable, why);
	} else {
		struct cell__callable raw = { .name = tool->name, .params = tool->schema };
		cell__buf_add_str(why, "\nSignature: ");
		cell__callable_signature(&raw, why);
	}
}

static void add_known(struct cell__buf *why, const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	const char *comma = "";
	for (size_t i = 0; callable && i < callable->params.count; i++, comma = ", ")
		cell__buf_printf(why, "%s%s", comma, callable->params.list[i].name);
	for (size_t i = 0; i < tool->schema.count; i++) {
		const char *name = tool->schema.list[i].name;
		if (callable && cell__params_find(&callable->params, name))
			continue;
		cell__buf_printf(why, "%s%s", comma, name);
		comma = ", ";
	}
	if (!*comma)
		cell__buf_add_str(why, "none");
}

/* Call arguments under the names that the definition uses. */
static int take_given(const struct cell__tool_entry *tool, const struct cell__callable *callable, const json_t *given, json_t *out,
		      struct cell__buf *why)
{
	const char *name;
	json_t *value;
	json_object_foreach((json_t *)given, name, value) {
		const struct cell__param *param = find_param(tool, callable, name);
		if (!param && !(callable && callable->open)) {
			cell__buf_printf(why, "Unknown argument '%.100s'. Known: ", name);
			add_known(why, tool, callable);
			return -1;
		}
		/* A null is an ordinary argument if the schema allows it, or does not describe the argument at all. */
		if (json_is_null(value) && param && !param->nullable && !(param->type == CELL_ARG_ANY && param->required))
			continue;
		if (param && json_object_get(out, param->name)) {
			cell__buf_printf(why, "Argument '%s' is given twice", param->name);
			return -1;
		}
		if (param && cell__arg_check(param, value, why) < 0)
			return -1;
		if (json_object_set(out, param ? param->name : name, value) < 0)
			return -1;
	}
	return 0;
}

static int fill_params(const struct cell__params *params, const struct cell__callable *callable, json_t *out, struct cell__buf *why)
{
	for (size_t i = 0; i < params->count; i++) {
		const struct cell__param *param = &params->list[i];
		if (json_object_get(out, param->name))
			continue;
		if (param->theirs)
			continue;
		if (param->fallback) {
			if (json_object_set(out, param->name, param->fallback) < 0)
				return -1;
		} else if (param->required) {
			/* A recipe may declare the schema's required parameter optional. */
			const struct cell__param *own = callable ? cell__params_find(&callable->params, param->name) : NULL;
			if (own && !own->required)
				continue;
			cell__buf_printf(why, "Required parameter '%s' is missing", param->name);
			return -1;
		}
	}
	return 0;
}

static int merge(const struct cell__tool_entry *tool, const struct cell__callable *callable, const json_t *given, json_t *out,
		 struct cell__buf *why)
{
	if (take_given(tool, callable, given, out, why) < 0)
		return -1;
	if (callable && callable->preset && json_object_update_missing(out, callable->preset) < 0)
		return -1;
	if (callable && fill_params(&callable->params, NULL, out, why) < 0)
		return -1;
	return fill_params(&tool->schema, callable, out, why);
}

int cell__args_merge(const struct cell__tool_entry *tool, const struct cell__callable *callable, const json_t *given, json_t **ret_args,
		     struct cell__buf *why)
{
	json_t *out = json_object();
	if (!out) {
		cell__buf_add_str(why, "out of memory");
		return -1;
	}
	if (merge(tool, callable, given, out, why) < 0) {
		if (why->size == 0)
			cell__buf_add_str(why, "out of memory");
		else
			add_signature(tool, callable, why);
		json_decref(out);
		return -1;
	}
	*ret_args = out;
	return 0;
}

#define FIT_PARAMS 64u
#define FIT_DIGITS 18u /* an integer of so many fits any type, as a real of so many characters does */

static bool text_fits(enum cell__arg_type type, const struct cell__json_member *member)
{
	bool real;
	switch (*member->value) {
	case '"':
		return type == CELL_ARG_STRING || type == CELL_ARG_ANY;
	case 't':
	case 'f':
		return type == CELL_ARG_BOOLEAN || type == CELL_ARG_ANY;
	case 'n':
		return false; /* means that the argument is not given */
	default:
		if (member->value_size > FIT_DIGITS || memchr(member->value, 'e', member->value_size) ||
		    memchr(member->value, 'E', member->value_size))
			return false;
		real = memchr(member->value, '.', member->value_size) != NULL;
		return type == CELL_ARG_NUMBER || type == CELL_ARG_ANY || (type == CELL_ARG_INTEGER && !real);
	}
}

static const struct cell__param *param_named(const struct cell__params *params, const char *name, size_t size)
{
	for (size_t i = 0; i < params->count; i++)
		if (strncmp(params->list[i].name, name, size) == 0 && params->list[i].name[size] == '\0')
			return &params->list[i];
	return NULL;
}

bool cell__args_fit(const struct cell__callable *callable, const char *args, size_t args_size)
{
	const struct cell__params *params = &callable->params;
	struct cell__json_walk walk = CELL_JSON_WALK(args, args_size);
	struct cell__json_member member;
	uint64_t given = 0;
	int rc;
	if (callable->preset || params->count > FIT_PARAMS)
		return false;
	while ((rc = cell__json_walk_next(&walk, &member)) > 0) {
		const struct cell__param *param = param_named(params, member.name, member.name_size);
		uint64_t bit = param ? UINT64_C(1) << (param - params->list) : 0;
		if (!param || (given & bit) || param->choices || !text_fits(param->type, &member))
			return false;
		given |= bit;
	}
	for (size_t i = 0; i < params->count; i++)
		if (!(given >> i & 1) && (params->list[i].required || params->list[i].fallback))
			return false;
	return rc == 0;
}

int cell__arg_text(const json_t *value, struct cell__buf *out)
{
	if (json_is_string(value))
		return cell__buf_add(out, json_string_value(value), json_string_length(value));
	if (json_is_integer(value))
		return cell__buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
	if (json_is_boolean(value))
		return cell__buf_add_str(out, json_is_true(value) ? "true" : "false");
	/* The shortest decimal text that is still this number. */
	char text[40];
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(text, sizeof text, "%.*g", digits, json_real_value(value));
		if (strtod(text, NULL) == json_real_value(value))
			break;
	}
	return cell__buf_add_str(out, text);
}

int cell__buf_add_quote(struct cell__buf *out, const char *bytes, size_t size)
{
	int rc = 0;
	while (size > 0 && rc == 0) {
		size_t n = strnlen(bytes, size);
		rc = cell__buf_add_utf8(out, bytes, n);
		if (rc == 0 && n < size)
			rc = cell__buf_add_str(out, "\xef\xbf\xbd");
		n += n < size;
		bytes += n;
		size -= n;
	}
	return rc;
}

/* ---- JSON that passes through as text ---- */

bool cell__json_one_line(struct cell__buf *text)
{
	/* The strings of a JSON text contain no raw line breaks. */
	for (size_t i = 0; i < text->size; i++)
		if (text->data[i] == '\n' || text->data[i] == '\r')
			text->data[i] = ' ';
	return text->size > 0 && cell__json_check(text->data, text->size);
}

/* ---- JSON Schema ---- */

static int param_from_schema(const char *name, const json_t *property, struct cell__param *param, struct cell_error *err)
{
	const char *description = json_string_value(json_object_get(property, "description"));
	const char *type = json_string_value(json_object_get(property, "type"));
	bool ok = false;
	param->place = CELL_IN_BODY;
	param->type = type ? cell__arg_type_parse(type, &ok) : CELL_ARG_ANY;
	/* The function checks arguments with several types, or with a type that we do not know. */
	if (!ok)
		param->type = CELL_ARG_ANY;
	json_t *fallback = json_object_get(property, "default");
	if (fallback && !json_is_null(fallback))
		param->fallback = json_incref(fallback);
	json_t *choices = json_object_get(property, "enum");
	if (json_is_array(choices) && json_array_size(choices) > 0 && param->type != CELL_ARG_ARRAY)
		param->choices = json_incref(choices);
	param->name = cell__strdup(name);
	param->description = description ? cell__strdup(description) : NULL;
	if (!param->name || (description && !param->description))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a parameter");
	return 0;
}

static int mark_required(const json_t *required, struct cell__params *params, struct cell_error *err)
{
	size_t i;
	json_t *name;
	json_array_foreach((json_t *)required, i, name) {
		const char *text = json_string_value(name);
		struct cell__param *param = text ? (struct cell__param *)cell__params_find(params, text) : NULL;
		if (!param)
			return cell_fail(err, CELL_E_INVALID, 0, "parameters: required '%.60s' is not among the properties",
					 text ? text : "?");
		param->required = !param->fallback;
	}
	return 0;
}

int cell__params_from_schema(const json_t *schema, struct cell__params *ret_params, bool *ret_open, struct cell_error *err)
{
	json_t *properties = json_object_get(schema, "properties");
	if (!json_is_object(schema) || (properties && !json_is_object(properties)))
		return cell_fail(err, CELL_E_INVALID, 0, "parameters must be a JSON Schema of an object");
	struct cell__params params = { 0 };
	size_t n = json_object_size(properties);
	if (n > CELL_TOOL_LIMIT_PARAMS)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u parameters", CELL_TOOL_LIMIT_PARAMS);
	params.list = cell__alloc(n, sizeof *params.list);
	if (!params.list)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for parameters");
	const char *name;
	json_t *property;
	json_object_foreach(properties, name, property) {
		if (param_from_schema(name, property, &params.list[params.count++], err) < 0) {
			cell__params_finish(&params);
			return -1;
		}
	}
	if (mark_required(json_object_get(schema, "required"), &params, err) < 0) {
		cell__params_finish(&params);
		return -1;
	}
	*ret_open = json_is_true(json_object_get(schema, "additionalProperties"));
	*ret_params = params;
	return 0;
}

int cell__schema_check(const json_t *schema, const json_t *object, struct cell__buf *why)
{
	struct cell__params params;
	struct cell_error err;
	bool open;
	/* A schema that we do not understand is left to the caller. */
	if (cell__params_from_schema(schema, &params, &open, &err) < 0)
		return 0;
	const char *name;
	json_t *value;
	int rc = 0;
	json_object_foreach((json_t *)object, name, value) {
		const struct cell__param *param = cell__params_find(&params, name);
		if (param && strcmp(param->name, name) == 0 && rc == 0)
			rc = cell__arg_check(param, value, why);
	}
	for (size_t i = 0; i < params.count && rc == 0; i++)
		if (params.list[i].required && !json_object_get(object, params.list[i].name)) {
			cell__buf_printf(why, "'%s' is missing", params.list[i].name);
			rc = -1;
		}
	cell__params_finish(&params);
	return rc;
}

/* ---- showing ---- */

/* A value as a Python literal. */
static int add_literal(struct cell__buf *out, const json_t *value)
{
	if (json_is_null(value))
		return cell__buf_add_str(out, "None");
	if (json_is_boolean(value))
		return cell__buf_add_str(out, json_is_true(value) ? "True" : "False");
	if (json_is_string(value))
		return cell__buf_add_json_string(out, json_string_value(value), json_string_length(value));
	if (json_is_number(value))
		return cell__arg_text(value, out);
	int rc = cell__buf_add_str(out, json_is_array(value) ? "[" : "{");
	const char *key;
	json_t *item;
	size_t i;
	const char *comma = "";
	json_array_foreach((json_t *)value, i, item) {
		rc |= cell__buf_add_str(out, comma) | add_literal(out, item);
		comma = ", ";
	}
	json_object_foreach((json_t *)value, key, item) {
		rc |= cell__buf_add_str(out, comma) | cell__buf_add_json_string(out, key, strlen(key));
		rc |= cell__buf_add_str(out, ": ") | add_literal(out, item);
		comma = ", ";
	}
	return rc | cell__buf_add_str(out, json_is_array(value) ? "]" : "}");
}

#define BRIEF_LITERAL 40 /* bytes of a default */

/* brief: without "| None", "Any" and long defaults, which cost a reader of many signatures more than they tell. */
static int add_fragment(struct cell__buf *out, const struct cell__param *param, bool brief)
{
	size_t start = out->size;
	const char *type = types[param->type].python;
	int rc = cell__buf_add_str(out, param->alias ? param->alias : param->name);
	for (size_t i = start; rc == 0 && i < out->size; i++)
		if (out->data[i] == '-')
			out->data[i] = '_';
	if (!brief || strcmp(type, "Any") != 0)
		rc |= cell__buf_printf(out, ": %s", type);
	if (param->required)
		return rc;
	if (!param->fallback)
		return rc | cell__buf_add_str(out, brief ? " = None" : " | None = None");
	rc |= cell__buf_add_str(out, " = ");
	start = out->size;
	rc |= add_literal(out, param->fallback);
	if (rc == 0 && brief && out->size - start > BRIEF_LITERAL) {
		out->size = start;
		rc = cell__buf_add_str(out, "...");
	}
	return rc;
}

static int add_signature_text(const struct cell__callable *callable, bool brief, struct cell__buf *out)
{
	int rc = cell__buf_printf(out, "%s(", callable->alias ? callable->alias : callable->name);
	const char *comma = "";
	for (int optional = 0; optional < 2; optional++)
		for (size_t i = 0; i < callable->params.count; i++) {
			const struct cell__param *param = &callable->params.list[i];
			if (param->required == (optional == 1))
				continue;
			rc |= cell__buf_add_str(out, comma) | add_fragment(out, param, brief);
			comma = ", ";
		}
	if (callable->open)
		rc |= cell__buf_printf(out, "%s**kwargs", comma);
	return rc | cell__buf_add_str(out, ")");
}

int cell__callable_signature(const struct cell__callable *callable, struct cell__buf *out)
{
	return add_signature_text(callable, false, out);
}

#define BRIEF_WORDS 120 /* bytes of a description's first sentence */

/* The first sentence; one that is too long ends at a word. */
static int add_first_sentence(struct cell__buf *out, const char *text)
{
	size_t size = strcspn(text, "\r\n");
	const char *stop = memmem(text, size, ". ", 2);
	if (stop)
		size = (size_t)(stop - text);
	else if (size && text[size - 1] == '.')
		size--;
	if (size <= BRIEF_WORDS)
		return cell__buf_add(out, text, size);
	for (size = BRIEF_WORDS; size && text[size] != ' '; size--)
		;
	if (!size)
		size = BRIEF_WORDS - cell__utf8_cut(text, BRIEF_WORDS);
	return cell__buf_add(out, text, size) | cell__buf_add_str(out, " ...");
}

json_t *cell__callable_brief(const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	CELL_AUTO_BUF struct cell__buf signature = CELL_BUF_INIT, words = CELL_BUF_INIT;
	if (add_signature_text(callable, true, &signature) < 0 ||
	    cell__learned_add_text(tool, callable, CELL_TOOL_LIMIT_RESULT_BRIEF, &signature) < 0 ||
	    add_first_sentence(&words, callable->description ? callable->description : "") < 0)
		return NULL;
	return json_pack("{s:s, s:s, s:s, s:s}", "tool", tool->name, "name", callable->alias ? callable->alias : callable->name,
			 "signature", signature.data, "description", words.size ? words.data : "");
}

static json_t *param_to_json(const struct cell__param *param)
{
	json_t *out = json_pack("{s:s, s:s, s:b, s:O?, s:s}", "name", param->name, "type", types[param->type].word, "required",
				param->required, "default", param->fallback ? param->fallback : json_null(), "description",
				param->description ? param->description : "");
	if (out && param->alias)
		json_object_set_new(out, "alias", json_string(param->alias));
	return out;
}

json_t *cell__callable_to_json(const struct cell__tool_entry *tool, const struct cell__callable *callable)
{
	json_t *params = json_array();
	for (size_t i = 0; i < callable->params.count; i++)
		if (json_array_append_new(params, param_to_json(&callable->params.list[i])) < 0) {
			json_decref(params);
			return NULL;
		}
	json_t *out = json_pack("{s:s, s:s, s:o}", "name", callable->name, "description",
				callable->description ? callable->description : "", "parameters", params);
	if (out && callable->alias)
		json_object_set_new(out, "alias", json_string(callable->alias));
	if (out && cell__learned_describe(tool, callable, out) < 0) {
		json_decref(out);
		return NULL;
	}
	return out;
}

json_t *cell__tool_to_json(const struct cell__tool_entry *tool)
{
	json_t *tags = json_array(), *callables = json_array();
	int rc = 0;
	for (size_t i = 0; i < tool->n_tags; i++)
		rc |= json_array_append_new(tags, json_string(tool->tags[i]));
	for (size_t i = 0; i < tool->n_callables; i++)
		rc |= json_array_append_new(callables, cell__callable_to_json(tool, &tool->callables[i]));
	json_t *out = json_pack("{s:s, s:s, s:o, s:o}", "name", tool->name, "description", tool->description ? tool->description : "",
				"tags", tags, "callables", callables);
	if (out && tool->server)
		cell__mcp_add_problem(out, tool->server);
	if (rc < 0 && out) {
		json_decref(out);
		return NULL;
	}
	return out;
}
