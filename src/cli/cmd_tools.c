/* `workcell tools`: lists and calls the tools of sessions from the command line. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tools_flags {
	struct cell_cli_space_flags space;
	const char *cwd;
	const char *args;
	struct cell_cli_list tags;
	int64_t limit;
	const char *scope;
	const char *browser;
	bool json;
};

static const struct cell_cli_flag tools_flag_table[] = {
	{ 0, "json", NULL, "print the answer as JSON on one line", CELL_FLAG_SWITCH, offsetof(struct tools_flags, json) },
	{ 0, "args", "JSON", "call: the arguments as a JSON object; K=V override it", CELL_FLAG_STRING,
	  offsetof(struct tools_flags, args) },
	{ 0, "tag", "TAG", "list: only tools with this tag; may be repeated", CELL_FLAG_LIST, offsetof(struct tools_flags, tags) },
	{ 0, "limit", "N", "search: maximum number of results", CELL_FLAG_COUNT, offsetof(struct tools_flags, limit) },
	{ 0, "scope", "SCOPES", "login: further scopes, separated by spaces", CELL_FLAG_STRING, offsetof(struct tools_flags, scope) },
	{ 0, "browser", "PROGRAM", "login: run it with the link (default: the link is printed)", CELL_FLAG_STRING,
	  offsetof(struct tools_flags, browser) },
	{ 0, "cwd", "DIR", "working directory of command-line tools (default: this one)", CELL_FLAG_STRING,
	  offsetof(struct tools_flags, cwd) },
	CELL_CLI_SPACE_FLAGS(offsetof(struct tools_flags, space)),
	CELL_CLI_EMBEDDINGS_FLAGS(offsetof(struct tools_flags, space)),
	{ 0 },
};

const struct cell_cli_command cell__cli_tools_command = {
	.name = "tools",
	.summary = "list, search, show, call and check tools",
	.synopsis = "list | search QUERY | show NAME | call NAME [K=V]... | check [DIR] | login|logout NAME",
	.about = "Tools are described by YAML files in --tools DIR, or in the tools/ of --base DIR.\n\n"
		 "  list                     Lists the available tools\n"
		 "  search QUERY             Searches tools by a description of the task, best match first\n"
		 "  show NAME                Describes a tool or one of its callables, with signatures\n"
		 "  call NAME[.RECIPE] K=V   Calls a tool or one of its callables and prints its output.  V is read\n"
		 "                           by the parameter's type: text as it is, numbers and booleans as JSON,\n"
		 "                           a list by repeating K\n"
		 "  check [DIR]              Lists the problems found in tool definitions as FILE:LINE: message;\n"
		 "                           exit status 1 when there is one\n"
		 "  login NAME               Logs in at a remote MCP server whose definition has `auth: oauth`: prints a link to\n"
		 "                           open in a browser on this computer, and waits for it.  Tokens are kept in\n"
		 "                           $XDG_STATE_HOME/workcell/oauth (default ~/.local/state)\n"
		 "  logout NAME              Removes these tokens",
	.examples = "  workcell tools list --base examples/base\n"
		    "  workcell tools call wc.words file=README.md --base examples/base\n"
		    "  workcell tools call wc.words --args '{\"file\": \"README.md\"}' --base examples/base --json\n"
		    "  workcell tools check examples/base/tools",
	.flags = tools_flag_table,
	.verbs = "list search show call check login logout",
	.run = cell__cmd_tools,
};

/* ---- list, search, show ------------------------------------------------------ */

static int print_tools(const json_t *tools, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 2 };
	const json_t *tool, *callable;
	size_t i, j;

	json_array_foreach(tools, i, tool) {
		cell__cli_table_add(&table, (const char *[]){ cell__cli_text(tool, "name"), cell__cli_text(tool, "description") });
		/* A server that could not list its tools, or not all of them. */
		if (json_object_get(tool, "problem"))
			cell__cli_table_add(&table, (const char *[]){ "  problem", cell__cli_text(tool, "problem") });
		json_array_foreach(json_object_get(tool, "callables"), j, callable) {
			char *name;

			if (asprintf(&name, "  .%s", cell__cli_text(callable, "name")) < 0) {
				table.failed = true;
				break;
			}
			cell__cli_table_add(&table, (const char *[]){ name, cell__cli_text(callable, "description") });
			free(name);
			if (json_object_get(callable, "drift"))
				cell__cli_table_add(&table, (const char *[]){ "    drift", cell__cli_text(callable, "drift") });
		}
	}
	return cell__cli_table_print(&table, err);
}

static int run_list(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct tools_flags *flags = values;
	json_t *args = json_object(), *tags = json_array();

	(void)operands;
	for (size_t i = 0; i < flags->tags.count; i++)
		json_array_append_new(tags, json_string(flags->tags.items[i].value));
	if (flags->tags.count)
		json_object_set(args, "tags", tags);
	json_decref(tags);
	cell__cli_warn_tools(space);
	return cell__cli_answer(space, "tools.list", args, flags->json, print_tools, err);
}

static int run_search(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct tools_flags *flags = values;

	return cell__cli_answer(space, "tools.search",
				json_pack("{s:s, s:I}", "query", operands->items[1].value, "limit", (json_int_t)flags->limit), flags->json,
				print_tools, err);
}

/* The tool of this name, or of the part of it before a dot, in an answer of tools.list; NULL: not found. */
static json_t *find_tool(const json_t *tools, const char *name)
{
	size_t size = strcspn(name, "."), i;
	json_t *tool;

	json_array_foreach(tools, i, tool) {
		const char *other = cell__cli_text(tool, "name");

		if (strlen(other) == size && !strncmp(other, name, size))
			return tool;
	}
	return NULL;
}

static int get_tool(struct cell_space *space, const char *name, json_t **ret_tool, struct cell_error *err)
{
	json_t *tools, *tool, *args;

	/* Only this server needs to list its tools. */
	args = json_pack("{s:[s%]}", "await", name, strcspn(name, "."));
	if (cell__cli_call(space, "tools.list", args, NULL, &tools, err) < 0)
		return -1;
	tool = find_tool(tools, name);
	json_incref(tool);
	json_decref(tools);
	if (!tool)
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no tool '%s'", name);
	*ret_tool = tool;
	return 0;
}

static const json_t *find_callable(const json_t *tool, const char *name)
{
	const json_t *callable;
	size_t i;

	json_array_foreach(json_object_get(tool, "callables"), i, callable) {
		if (!strcmp(cell__cli_text(callable, "name"), name) || !strcmp(cell__cli_text(callable, "alias"), name))
			return callable;
	}
	return NULL;
}

static char *default_text(const json_t *parameter)
{
	const json_t *value = json_object_get(parameter, "default");

	if (json_is_true(json_object_get(parameter, "required")))
		return strdup("required");
	return value && !json_is_null(value) ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : strdup("");
}

static int print_parameters(const json_t *callable, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 5 };
	const json_t *parameter;
	size_t i;

	json_array_foreach(json_object_get(callable, "parameters"), i, parameter) {
		char *value = default_text(parameter);

		cell__cli_table_add(&table, (const char *[]){ "   ", cell__cli_text(parameter, "name"), cell__cli_text(parameter, "type"),
							      value ? value : "", cell__cli_text(parameter, "description") });
		free(value);
	}
	return cell__cli_table_print(&table, err);
}

/* "text, search"; free() it. */
static char *tags_text(const json_t *tool)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const json_t *tag;
	size_t i;

	json_array_foreach(json_object_get(tool, "tags"), i, tag) {
		if (cell__buf_printf(&text, "%s%s", i ? ", " : "", json_is_string(tag) ? json_string_value(tag) : "") < 0)
			return NULL;
	}
	return cell__buf_take(&text);
}

static int print_head(const json_t *tool, struct cell_error *err)
{
	struct cell_cli_table table = { .columns = 2 };
	char *tags = tags_text(tool);

	cell__cli_table_add(&table, (const char *[]){ cell__cli_text(tool, "name"), cell__cli_text(tool, "description") });
	if (tags && *tags)
		cell__cli_table_add(&table, (const char *[]){ "  tags", tags });
	free(tags);
	return cell__cli_table_print(&table, err);
}

static int print_tool(const json_t *tool, struct cell_error *err)
{
	int status = print_head(tool, err);
	const json_t *callable;
	size_t i;

	json_array_foreach(json_object_get(tool, "callables"), i, callable) {
		struct cell_cli_table head = { .columns = 2 };
		char *name;

		if (status < 0 || asprintf(&name, "  .%s", cell__cli_text(callable, "name")) < 0)
			break;
		cell__cli_table_add(&head, (const char *[]){ name, cell__cli_text(callable, "description") });
		free(name);
		if (json_object_get(callable, "result"))
			cell__cli_table_add(&head, (const char *[]){ "    returns", cell__cli_text(callable, "result") });
		if (json_object_get(callable, "drift"))
			cell__cli_table_add(&head, (const char *[]){ "    drift", cell__cli_text(callable, "drift") });
		status = cell__cli_table_print(&head, err);
		if (!status)
			status = print_parameters(callable, err);
	}
	return status;
}

static int run_show(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct tools_flags *flags = values;
	const char *name = operands->items[1].value;
	json_t *tool;
	int status;

	if (strchr(name, '.'))
		return cell_fail(err, CELL_E_INVALID, 0, "show takes a tool, not one of its callables");
	if (get_tool(space, name, &tool, err) < 0)
		return -1;
	status = flags->json ? cell__cli_print_json(tool, err) : print_tool(tool, err);
	json_decref(tool);
	return status;
}

/* ---- call --------------------------------------------------------------------- */

/* {"value": ...} without a parser in between, which could change numbers. */
static int print_value_json(const char *kind, const char *bytes, size_t size, struct cell_error *err)
{
	json_t *text;
	int status;

	if (!strcmp(kind, "json")) {
		cell__cli_write(STDOUT_FILENO, "{\"value\":", 9);
		cell__cli_show(bytes, size);
		cell__cli_write(STDOUT_FILENO, "}\n", 2);
		return 0;
	}
	text = json_pack("{s:s%}", "value", bytes ? bytes : "", size);
	if (!text)
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the tool's answer is not UTF-8");
	status = cell__cli_print_json(text, err);
	json_decref(text);
	return status;
}

static int print_value_text(const json_t *answer, const char *bytes, size_t size, struct cell_error *err)
{
	const json_t *value = json_object_get(answer, "value");

	if (value && !json_is_string(value))
		return cell__cli_print_json(value, err);
	if (value) {
		bytes = json_string_value(value);
		size = json_string_length(value);
	}
	cell__cli_show(bytes, size);
	if (size && bytes[size - 1] != '\n')
		cell__cli_write(STDOUT_FILENO, "\n", 1);
	return 0;
}

/* Several parts: text unchanged, and a description of the others. */
static int print_parts(bool json, const json_t *answer, const char *bytes, size_t size, struct cell_error *err)
{
	const json_t *part;
	json_t *list = json_array(), *whole;
	size_t i, at = 0;
	int status = 0;

	json_array_foreach(json_object_get(answer, "parts"), i, part) {
		size_t n = (size_t)json_integer_value(json_object_get(part, "size"));
		const char *type = cell__cli_text(part, "type");
		bool text = !strcmp(type, "text") || !strcmp(type, "json") || !strcmp(type, "structured") ||
			    json_is_true(json_object_get(part, "text"));

		if (n > size - at)
			break;
		if (json) {
			json_t *shown = json_copy((json_t *)part);

			if (text)
				json_object_set_new(shown, "text", json_stringn(bytes + at, n));
			else
				json_object_set_new(shown, "data", cell__cli_base64((const unsigned char *)bytes + at, n));
			json_array_append_new(list, shown);
		} else if (text) {
			cell__cli_show(bytes + at, n);
			cell__cli_write(STDOUT_FILENO, "\n", 1);
		} else {
			struct cell_cli_table line = { .columns = 1 };
			char words[200];

			snprintf(words, sizeof words, "[%.20s %.100s, %zu bytes]", type, cell__cli_text(part, "mime"), n);
			cell__cli_table_add(&line, (const char *[]){ words });
			cell__cli_table_print(&line, NULL);
		}
		at += n;
	}
	if (json) {
		whole = json_pack("{s:O}", "parts", list);
		status = cell__cli_print_json(whole, err);
		json_decref(whole);
	}
	json_decref(list);
	return status;
}

static int call_tool(const struct tools_flags *flags, struct cell_space *space, const char *name, json_t *args, struct cell_error *err)
{
	json_t *answer;
	const char *kind;
	char *text;
	void *bytes;
	size_t size;
	int status;

	if (cell__cli_call_raw(space, "tools.call", json_pack("{s:s, s:o}", "name", name, "args", args), NULL, 0, &text, &bytes, &size,
			       err) < 0)
		return -1;
	answer = json_loads(text, JSON_ALLOW_NUL, NULL);
	kind = cell__cli_text(answer, "raw");
	if (!strcmp(kind, "parts")) {
		status = print_parts(flags->json, answer, bytes, size, err);
	} else if (flags->json && !*kind) {
		cell__cli_line(text);
		status = 0;
	} else if (flags->json) {
		status = print_value_json(kind, bytes, size, err);
	} else {
		status = print_value_text(answer, bytes, size, err);
	}
	json_decref(answer);
	free(text);
	free(bytes);
	return status;
}

static int run_call(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct tools_flags *flags = values;
	const char *name = operands->items[1].value, *dot = strchr(name, '.');
	const json_t *parameters = NULL;
	json_t *tool, *args;
	int status;

	if (get_tool(space, name, &tool, err) < 0)
		return -1;
	parameters = json_object_get(find_callable(tool, dot ? dot + 1 : name), "parameters");
	status = cell__cli_arguments(flags->args, operands, 2, parameters, &args, err);
	if (!status)
		status = call_tool(flags, space, name, args, err);
	json_decref(tool);
	return status;
}

/* ---- check -------------------------------------------------------------------- */

static int run_check(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct tools_flags *flags = values;
	json_t *problems;
	char *text;

	(void)operands;
	if (cell__cli_call(space, "tools.problems", json_object(), &text, &problems, err) < 0)
		return -1;
	return cell__cli_report_problems(text, problems, flags->json);
}

/* ---- login, logout ------------------------------------------------------------ */

/* The library checked that the link has printable ASCII alone: no escapes for the terminal, no options for the program. */
static int show_link(void *arg, const char *link)
{
	const struct tools_flags *flags = arg;
	pid_t child = 0;

	fprintf(stderr, "workcell: open this link in a browser on this computer:\n%s\n", link);
	if (!flags->browser)
		return 0;
	if (posix_spawnp(&child, flags->browser, NULL, NULL, (char *[]){ (char *)flags->browser, (char *)link, NULL }, environ)) {
		fprintf(stderr, "workcell: %s cannot be started\n", flags->browser);
		return 0;
	}
	return 0;
}

static int run_login(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	const struct tools_flags *flags = values;
	const char *name = operands->items[1].value;

	if (cell_space_login(space, name, flags->scope, show_link, (void *)flags, 0, err) < 0)
		return -1;
	fprintf(stderr, "workcell: logged in at %s\n", name);
	return 0;
}

static int run_logout(const void *values, struct cell_space *space, const struct cell_cli_list *operands, struct cell_error *err)
{
	(void)values;
	return cell_space_logout(space, operands->items[1].value, err);
}

/* ---- the command --------------------------------------------------------------- */

static const struct cell_cli_verb verbs[] = {
	{ "list", "[--tag TAG]...", 0, 0, false, run_list },
	{ "search", "QUERY [--limit N]", 1, 1, false, run_search },
	{ "show", "NAME", 1, 1, false, run_show },
	{ "call", "NAME[.RECIPE] [K=V]... [--args JSON]", 1, SIZE_MAX, false, run_call },
	{ "check", "[DIR]", 0, 1, false, run_check },
	{ "login", "NAME [--scope SCOPES] [--browser PROGRAM]", 1, 1, false, run_login },
	{ "logout", "NAME", 1, 1, false, run_logout },
	{ 0 },
};

int cell__cmd_tools(int argc, char **argv)
{
	struct tools_flags flags = { .limit = 5 };
	struct cell_cli_list operands = { 0 };
	int status;

	if (cell__cli_parse(&cell__cli_tools_command, argc, argv, &flags, &operands, &status)) {
		if (operands.count == 2 && !strcmp(operands.items[0].value, "check"))
			flags.space = (struct cell_cli_space_flags){ .tools = operands.items[1].value };
		status = cell__cli_do(&(struct cell_cli_job){ .command = "tools",
							      .verbs = verbs,
							      .flags = &flags,
							      .space = &flags.space,
							      .cwd = flags.cwd,
							      .json = flags.json },
				      &operands);
	}
	cell__cli_list_finish(&operands);
	cell__cli_list_finish(&flags.tags);
	return status;
}
