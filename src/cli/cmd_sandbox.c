/* `workcell sandbox`: shows the plan of a policy, and runs a command under it. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct sandbox_flags {
	const char *policy;
	const char *workspace_mode;
	const char *cwd;
	const char *python;
	const char *audit;
	struct cell_cli_list env;
	struct cell_cli_list operands;
	bool verbose;
};

#define AT(member) offsetof(struct sandbox_flags, member)

static const struct cell_cli_flag flags[] = {
	{ 0, "policy", "NAME", "untrusted, data-science, developer, or a YAML file (default untrusted)", CELL_FLAG_STRING, AT(policy) },
	{ 0, "workspace-mode", "MODE", "access to the working directory: rw, cow, ro or none (default: the policy's)", CELL_FLAG_STRING,
	  AT(workspace_mode) },
	{ 0, "cwd", "DIR", "the working directory (default: this one)", CELL_FLAG_STRING, AT(cwd) },
	{ 0, "python", "PATH", "the interpreter whose files are visible, and whose package index deps-only allows", CELL_FLAG_STRING,
	  AT(python) },
	{ 0, "audit", "FILE", "run: append a JSON line about each connection of a filtered network to this file", CELL_FLAG_STRING,
	  AT(audit) },
	{ 'v', "verbose", NULL, "explain: list every step", CELL_FLAG_SWITCH, AT(verbose) },
	{ 0, "env", "K=V", "set a variable; nothing is inherited; may be repeated", CELL_FLAG_LIST, AT(env) },
	{ 0 },
};

const struct cell_cli_command cell__cli_sandbox_command = {
	.name = "sandbox",
	.summary = "explain a sandbox policy, or run a command in a sandbox",
	.synopsis = "explain [POLICY] | run [flags] -- COMMAND [ARGUMENT...]",
	.about = "`explain` says in ten lines what a policy permits on this machine, with -v step by step how it is applied.\n"
		 "`run` runs any command in a sandbox. Sessions are sandboxed with `workcell run --executor sandbox`.",
	.examples = "  workcell sandbox explain untrusted\n"
		    "  workcell sandbox explain ./policy.yaml --workspace-mode ro -v\n"
		    "  workcell sandbox run --policy untrusted -- python3 script.py\n"
		    "  workcell sandbox run --policy ./allow.yaml --audit ../audit.jsonl -- python3 fetch.py",
	.flags = flags,
	.verbs = "explain run",
	.run = cell__cmd_sandbox,
};

static int explain(const struct cell_sandbox_options *options, struct cell_error *err)
{
	char *text;

	if (cell_sandbox_explain(options, &text, err) < 0)
		return -1;
	cell__cli_write(STDOUT_FILENO, text, strlen(text));
	free(text);
	return 0;
}

static int run(const struct cell_sandbox_options *options, const struct cell_cli_list *operands, struct cell_error *err)
{
	char **argv = calloc(operands->count, sizeof(*argv));
	int status, rc;

	if (!argv)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the command");
	for (size_t i = 1; i < operands->count; i++)
		argv[i - 1] = (char *)operands->items[i].value;
	rc = cell_sandbox_run(options, argv, &status, err);
	free(argv);
	if (rc < 0)
		return -1;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int cell__cmd_sandbox(int argc, char **argv)
{
	struct sandbox_flags values = { 0 };
	struct cell_sandbox_options options = CELL_SANDBOX_OPTIONS_INIT;
	struct cell_cli_list *operands = &values.operands;
	struct cell_error err;
	const char **env = NULL;
	char *cwd = NULL, *python = NULL, **trusted = NULL;
	int status = -1;

	if (!cell__cli_parse(&cell__cli_sandbox_command, argc, argv, &values, operands, &status))
		goto out;
	const char *verb = operands->count ? operands->items[0].value : "";
	bool explains = !strcmp(verb, "explain");
	status = -1;
	env = calloc(values.env.count + 1, sizeof(*env));
	for (size_t i = 0; env && i < values.env.count; i++)
		env[i] = values.env.items[i].value;
	if (!env) {
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for the environment");
	} else if (!explains && strcmp(verb, "run")) {
		cell_fail(&err, CELL_E_INVALID, 0, "unknown subcommand '%s'; workcell sandbox has explain and run", verb);
	} else if (explains ? operands->count > 2 : operands->count < 2) {
		cell_fail(&err, CELL_E_INVALID, 0, explains ? "explain takes one policy" : "run needs a command after --");
	} else if (!cell__cli_trusted((const char *[]){ NULL }, &trusted, &err) &&
		   (!values.cwd || (cwd = cell__cli_absolute(values.cwd, &err))) &&
		   ((!explains && !values.python) || cell__cli_find_python(values.python, &python, &err) == 0)) {
		options.policy = explains && operands->count == 2 ? operands->items[1].value : values.policy;
		options.workspace_mode = values.workspace_mode;
		options.cwd = cwd;
		options.env = env;
		options.summary = !values.verbose;
		options.python = python;
		options.audit = values.audit;
		options.trusted = (const char *const *)trusted;
		status = explains ? explain(&options, &err) : run(&options, operands, &err);
	}
	if (status < 0)
		status = cell__cli_report(&err, false);
out:
	free(env);
	free(cwd);
	free(python);
	cell__cli_trusted_free(trusted);
	cell__cli_list_finish(&values.env);
	cell__cli_list_finish(&values.operands);
	return status;
}
