/*
 * Turns arguments into the words of a command.  Pure.
 *
 * Options in the order of the schema, positionals last.  The one danger here is a value that the command takes for an
 * option of its own, so a value that begins with a dash
 *
 *     is joined to a long option                   --name=-value
 *     follows `--` if the command knows it         cmd ... -- -value
 *     is passed unchanged if the schema allows it  (allow_dash), or if the definition has it as the parameter's default or preset
 *     is refused in every other case.
 *
 * The host opens a path, and its word is replaced when the program starts (paths.c): it has no dash then.
 */
#define _GNU_SOURCE
#include <string.h>

#include "tools/internal.h"

void cell__argv_finish(struct cell__argv *argv)
{
	for (size_t i = 0; i < argv->count; i++)
		free(argv->list[i]);
	free(argv->list);
	*argv = (struct cell__argv){ 0 };
}

static int out_of_memory(struct cell__buf *why)
{
	cell__buf_add_str(why, "out of memory");
	return -1;
}

/* Takes over the word. */
static int add_word(struct cell__argv *argv, struct cell__buf *word, struct cell__buf *why)
{
	argv->bytes += word->size + 1;
	if (argv->count >= CELL_TOOL_LIMIT_ARGV || argv->bytes > CELL_TOOL_LIMIT_ARGV_BYTES) {
		cell__buf_printf(why, "The command line is longer than %u words or %u bytes", CELL_TOOL_LIMIT_ARGV,
				 CELL_TOOL_LIMIT_ARGV_BYTES);
		return -1;
	}
	if ((argv->count & (argv->count + 1)) == 0) { /* full at 0, 1, 3, 7, ... words, with the NULL */
		char **list = cell__realloc(argv->list, (argv->count + 1) * 2 * sizeof *list);
		if (!list)
			return out_of_memory(why);
		argv->list = list;
	}
	char *text = cell__buf_take(word);
	if (!text)
		return out_of_memory(why);
	argv->list[argv->count++] = text;
	argv->list[argv->count] = NULL;
	return 0;
}

static int add_text(struct cell__argv *argv, const char *text, struct cell__buf *why)
{
	CELL_AUTO_BUF struct cell__buf word = CELL_BUF_INIT;
	if (cell__buf_add_str(&word, text) < 0)
		return out_of_memory(why);
	return add_word(argv, &word, why);
}

/* The text of one value; -1 also for strings that no command can receive. */
static int value_text(const struct cell__param *param, const json_t *value, struct cell__buf *out, struct cell__buf *why)
{
	if (cell__arg_text(value, out) < 0)
		return out_of_memory(why);
	if (out->size && memchr(out->data, '\0', out->size)) {
		cell__buf_printf(why, "Argument '%s' contains a NUL character", param->name);
		return -1;
	}
	return 0;
}

/* What the words are made from. */
struct call {
	const struct cell__tool_entry *tool;
	const struct cell__callable *recipe; /* NULL: by the schema alone */
	const json_t *args;
	struct cell__argv *argv;
	struct cell__buf *why;
};

static bool is_or_has(const json_t *written, const json_t *value)
{
	if (!json_is_array(written))
		return written && json_equal(written, value);
	for (size_t i = 0; i < json_array_size(written); i++)
		if (json_equal(json_array_get(written, i), value))
			return true;
	return false;
}

/* Whether the definition itself gives the value when the call does not: then its author, not the code, chose it. */
static bool is_authors(const struct call *call, const struct cell__param *param, const json_t *value)
{
	const struct cell__param *own = call->recipe ? cell__params_find(&call->recipe->params, param->name) : NULL;
	const json_t *preset = call->recipe ? json_object_get(call->recipe->preset, param->name) : NULL;
	return is_or_has(preset ? preset : own ? own->fallback : param->fallback, value);
}

enum dash { DASH_NONE, DASH_JOIN, DASH_REFUSE };

/* How to treat a value's leading dash. */
static enum dash dash_of(const struct call *call, const struct cell__param *param, const json_t *value, const struct cell__buf *text)
{
	if (text->size == 0 || text->data[0] != '-' || param->allow_dash || param->under)
		return DASH_NONE;
	enum dash otherwise = is_authors(call, param, value) ? DASH_NONE : DASH_REFUSE;
	if (param->place == CELL_IN_POSITIONAL)
		return call->tool->end_of_options ? DASH_NONE : otherwise;
	return param->long_flag && strncmp(param->long_flag, "--", 2) == 0 ? DASH_JOIN : otherwise;
}

static int refuse_dash(const struct cell__param *param, struct cell__buf *why)
{
	cell__buf_printf(why,
			 "Argument '%s' must not begin with '-': the command could treat it as an option (allow_dash in the "
			 "tool's schema permits it)",
			 param->name);
	return -1;
}

static int add_value(const struct call *call, const struct cell__param *param, const json_t *value)
{
	struct cell__argv *argv = call->argv;
	struct cell__buf *why = call->why;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (value_text(param, value, &text, why) < 0)
		return -1;
	enum dash dash = dash_of(call, param, value, &text);
	if (dash == DASH_REFUSE)
		return refuse_dash(param, why);
	if (dash == DASH_JOIN) {
		CELL_AUTO_BUF struct cell__buf joined = CELL_BUF_INIT;
		if (cell__buf_printf(&joined, "%s=%s", param->long_flag, text.data) < 0)
			return out_of_memory(why);
		return add_word(argv, &joined, why);
	}
	if (param->place == CELL_IN_OPTION && add_text(argv, param->short_flag ? param->short_flag : param->long_flag, why) < 0)
		return -1;
	if (param->under) {
		if (argv->n_paths == CELL_PROCESS_FDS) {
			cell__buf_printf(why, "A command takes at most %d paths", CELL_PROCESS_FDS);
			return -1;
		}
		argv->paths[argv->n_paths].at = argv->count;
		argv->paths[argv->n_paths++].param = param;
	}
	return add_word(argv, &text, why);
}

static int add_param(const struct call *call, const struct cell__param *param, const json_t *value)
{
	if (param->place == CELL_IN_OPTION && json_is_boolean(value)) {
		if (json_is_false(value))
			return 0;
		return add_text(call->argv, param->short_flag ? param->short_flag : param->long_flag, call->why);
	}
	if (!json_is_array(value))
		return add_value(call, param, value);
	for (size_t i = 0; i < json_array_size(value); i++)
		if (add_value(call, param, json_array_get(value, i)) < 0)
			return -1;
	return 0;
}

static int add_params(const struct call *call, enum cell__arg_place place)
{
	const struct cell__params *schema = &call->tool->schema;
	for (size_t i = 0; i < schema->count; i++) {
		const struct cell__param *param = &schema->list[i];
		const json_t *value = param->place == place ? json_object_get(call->args, param->name) : NULL;
		if (value && add_param(call, param, value) < 0)
			return -1;
	}
	return 0;
}

static bool has_positional(const struct cell__tool_entry *tool, const json_t *args)
{
	for (size_t i = 0; i < tool->schema.count; i++)
		if (tool->schema.list[i].place == CELL_IN_POSITIONAL && json_object_get(args, tool->schema.list[i].name))
			return true;
	return false;
}

int cell__argv_build(const struct cell__tool_entry *tool, const struct cell__callable *recipe, const json_t *args,
		     struct cell__argv *ret_argv, struct cell__buf *why)
{
	struct cell__argv argv = { 0 };
	struct call call = { .tool = tool, .recipe = recipe, .args = args, .argv = &argv, .why = why };
	int rc = add_text(&argv, tool->command, why);
	if (rc == 0)
		rc = add_params(&call, CELL_IN_OPTION);
	if (rc == 0 && tool->end_of_options && has_positional(tool, args))
		rc = add_text(&argv, "--", why);
	if (rc == 0)
		rc = add_params(&call, CELL_IN_POSITIONAL);
	if (rc < 0) {
		cell__argv_finish(&argv);
		return -1;
	}
	*ret_argv = argv;
	return 0;
}
