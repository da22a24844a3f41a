/*
 * `workcell gen mcp`: typed Python modules for the tools of an MCP server.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gen_flags {
	struct cell_cli_space_flags space;
	const char *name;
	const char *schema;
	const char *command;
	const char *url;
	const char *out;
	bool is_async;
	bool json;
};

static const struct cell_cli_flag gen_flag_table[] = {
	{ 0, "name", "NAME", "the server's name among the tools of a session", CELL_FLAG_STRING, offsetof(struct gen_flags, name) },
	{ 0, "command", "'CMD ARGS...'",
	  "start this server on its standard streams and ask it for its tools; words may be quoted as in a shell", CELL_FLAG_STRING,
	  offsetof(struct gen_flags, command) },
	{ 0, "url", "URL", "ask the server at this URL for its tools", CELL_FLAG_STRING, offsetof(struct gen_flags, url) },
	{ 0, "schema", "FILE", "read the tools from this file, a saved answer to tools/list; - is stdin", CELL_FLAG_STRING,
	  offsetof(struct gen_flags, schema) },
	{ 0, "out", "DIR", "create the package as a folder in DIR (default mcptools)", CELL_FLAG_STRING, offsetof(struct gen_flags, out) },
	{ 0, "async", NULL, "make run() a coroutine function, and add run_sync()", CELL_FLAG_SWITCH, offsetof(struct gen_flags, is_async) },
	{ 0, "json", NULL, "print the created modules as JSON", CELL_FLAG_SWITCH, offsetof(struct gen_flags, json) },
	CELL_CLI_SPACE_FLAGS(offsetof(struct gen_flags, space)),
	{ 0 },
};

const struct cell_cli_command cell__cli_gen_command = {
	.name = "gen",
	.summary = "typed Python modules for the tools of an MCP server",
	.synopsis = "mcp --name NAME (--command 'CMD ARGS...' | --url URL | --schema FILE | --base DIR) [--out DIR]",
	.about = "Writes the package DIR/NAME with a module for each tool: Params, Result, run() and run_async(). Code in a\n"
		 "session whose tools have a server of this name calls it so:\n\n"
		 "  from mcptools.NAME.some_tool import Params, run\n"
		 "  run(Params(...))\n\n"
		 "A server of --tools DIR or --base DIR needs its name alone. With --storage or --base, tools that declare no\n"
		 "output schema get a Result from the shapes of their results that were seen in this storage.\n\n"
		 "Prints the modules, one per line. Tools that cannot be described are reported on stderr and skipped, and\n"
		 "the exit status is 1. An existing package is replaced; files that this command did not create stay.",
	.examples = "  workcell gen mcp --name files --command 'npx -y @modelcontextprotocol/server-filesystem .'\n"
		    "  workcell gen mcp --name github --base .workcell\n"
		    "  workcell gen mcp --name github --schema tools.json\n"
		    "  workcell gen mcp --name github --schema tools.json --out lib/mcptools --async",
	.flags = gen_flag_table,
	.verbs = "mcp",
	.run = cell__cmd_gen,
};

/* The words of a command: blanks separate, quotes and backslashes are as in a shell. NULL: a quote is open. */
static json_t *split_words(const char *text)
{
	json_t *words = json_array();
	char *word = malloc(strlen(text) + 1);
	size_t size = 0;
	bool in_word = false;
	char quote = 0;

	for (; words && word && *text; text++) {
		if (quote ? *text == quote : *text == '\'' || *text == '"') {
			quote = quote ? 0 : *text;
			in_word = true;
		} else if (!quote && strchr(" \t\n", *text)) {
			if (in_word)
				json_array_append_new(words, json_stringn(word, size));
			in_word = false;
			size = 0;
		} else {
			if (*text == '\\' && quote != '\'' && text[1])
				text++;
			word[size++] = *text;
			in_word = true;
		}
	}
	if (words && in_word)
		json_array_append_new(words, json_stringn(word, size));
	if (!word || quote) {
		json_decref(words);
		words = NULL;
	}
	free(word);
	return words;
}

static int server_params(const struct gen_flags *flags, char **ret_json, struct cell_error *err)
{
	json_t *params, *words;

	if (flags->url) {
		params = json_pack("{s:s}", "url", flags->url);
	} else {
		words = split_words(flags->command);
		if (json_array_size(words) == 0) {
			json_decref(words);
			return cell_fail(err, CELL_E_INVALID, 0, "--command: no program, or an unclosed quote");
		}
		params = json_pack("{s:O}", "command", json_array_get(words, 0));
		json_array_remove(words, 0);
		json_object_set_new(params, "args", words);
	}
	*ret_json = params ? json_dumps(params, JSON_COMPACT) : NULL;
	json_decref(params);
	return *ret_json ? 0 : cell_fail(err, CELL_E_INVALID, 0, "the command or address is not UTF-8");
}

/* Some servers list tools that ask a person only for clients that support it; nothing is called here, so no question comes. */
static void decline(void *arg, const struct cell_tool_event *event)
{
	(void)arg;
	if (event->question)
		cell_question_answer(event->question, "decline", NULL, NULL);
}

/* params NULL: the server is among the tools of the space. */
static int ask_server(const struct gen_flags *flags, const char *params, char **ret_text, struct cell_error *err)
{
	struct cell_engine_options engine_options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_engine *engine;
	struct cell_space *space;
	json_t *answer = NULL;
	int status = -1;

	engine_options.pool_size = 0;
	if (cell_engine_create(&engine_options, &engine, err) < 0)
		return -1;
	if (!cell__cli_space_create(&flags->space, engine, NULL, NULL, &space, err)) {
		if (!cell_space_on_tool_event(space, decline, NULL, err) &&
		    (!params || !cell_space_add_mcp(space, flags->name, params, err)) &&
		    !cell__cli_call(space, "tools.schema", json_pack("{s:s}", "name", flags->name), NULL, &answer, err)) {
			json_t *list = json_pack("{s:O}", "tools", json_object_get(answer, "tools"));

			*ret_text = list ? json_dumps(list, JSON_COMPACT) : NULL;
			status = *ret_text ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the tools");
			json_decref(list);
		}
		json_decref(answer);
		cell_space_close(space);
	}
	cell_engine_destroy(engine);
	return status;
}

static int read_schema(const char *path, char **ret_text, struct cell_error *err)
{
	char *text;
	size_t size;

	if (cell__cli_read_file(path, &text, &size, err) < 0)
		return -1;
	if (strlen(text) == size) {
		*ret_text = text;
		return 0;
	}
	free(text);
	return cell_fail(err, CELL_E_INVALID, 0, "%s is not valid JSON: it holds a NUL byte", path);
}

/* The server's answer to tools/list, as text to free(). */
static int list_tools(const struct gen_flags *flags, char **ret_text, struct cell_error *err)
{
	bool defined = flags->space.base || flags->space.tools;
	int ways = !!flags->schema + !!flags->command + !!flags->url;
	char *params = NULL;
	int status;

	if (ways > 1 || (ways == 0 && !defined))
		return cell_fail(err, CELL_E_INVALID, 0, "give one of --command, --url, --schema, --tools and --base to list the tools");
	if (flags->schema)
		return read_schema(flags->schema, ret_text, err);
	if (ways == 1 && server_params(flags, &params, err) < 0)
		return -1;
	status = ask_server(flags, params, ret_text, err);
	free(params);
	return status;
}

/* The modules on stdout, problems on stderr; answers the exit status. */
static int print_report(const char *text)
{
	json_t *report = json_loads(text, 0, NULL);
	const json_t *entry;
	size_t i;
	int status = 0;

	json_array_foreach(json_object_get(report, "tools"), i, entry)
		cell__cli_line(cell__cli_text(entry, "module"));
	json_array_foreach(json_object_get(report, "problems"), i, entry) {
		struct cell_error err;

		cell_fail(&err, CELL_E_INVALID, 0, "skipped a tool that %s: %s", cell__cli_text(entry, "message"),
			  cell__cli_text(entry, "tool"));
		cell__cli_report(&err, false);
		status = 1;
	}
	json_decref(report);
	return status;
}

static int generate(const struct gen_flags *flags, int *ret_status, struct cell_error *err)
{
	struct cell_gen_options options = CELL_GEN_OPTIONS_INIT;
	char *tools = NULL, *report;

	if (!flags->name)
		return cell_fail(err, CELL_E_INVALID, 0, "give the name of the server with --name NAME");
	if (list_tools(flags, &tools, err) < 0)
		return -1;
	options.server = flags->name;
	options.tools_json = tools;
	options.out_dir = flags->out;
	options.async_api = flags->is_async;
	if (cell_gen_mcp(&options, &report, err) < 0) {
		free(tools);
		return -1;
	}
	free(tools);
	if (flags->json) {
		json_t *parsed = json_loads(report, 0, NULL);

		cell__cli_line(report);
		*ret_status = json_array_size(json_object_get(parsed, "problems")) > 0;
		json_decref(parsed);
	} else {
		*ret_status = print_report(report);
	}
	free(report);
	return 0;
}

int cell__cmd_gen(int argc, char **argv)
{
	struct gen_flags flags = { .space = CELL_CLI_SPACE_FLAGS_INIT };
	struct cell_cli_list operands = { 0 };
	struct cell_error err;
	int status;

	if (!cell__cli_parse(&cell__cli_gen_command, argc, argv, &flags, &operands, &status))
		goto out;
	if (operands.count != 1 || strcmp(operands.items[0].value, "mcp"))
		cell_fail(&err, CELL_E_INVALID, 0, "usage: workcell gen mcp --name NAME");
	else if (generate(&flags, &status, &err) == 0)
		goto out;
	status = cell__cli_report(&err, flags.json);
out:
	cell__cli_list_finish(&operands);
	return status;
}
