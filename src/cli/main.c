/* Entry, the table of commands, and the set-up for every command: descriptors 0 to 2, and the highest permitted number of others. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct cell_cli_flag no_flags[] = { { 0 } };

#ifndef CELL_HAVE_SHELL
static int run_missing_shell(int argc, char **argv)
{
	struct cell_error err;

	(void)argc;
	(void)argv;
	cell_fail(&err, CELL_E_UNAVAILABLE, 0, "this workcell was built without libedit and has no shell");
	return cell__cli_report(&err, false);
}

const struct cell_cli_command cell__cli_shell_command = {
	.name = "shell",
	.summary = "(not in this build, which has no libedit)",
	.flags = no_flags,
	.run = run_missing_shell,
};
#endif

static int run_completion(int argc, char **argv);

static const struct cell_cli_command completion_command = {
	.name = "completion",
	.summary = "print completions for bash, zsh or fish",
	.synopsis = "bash|zsh|fish",
	.about = "Prints a script that teaches the shell commands, subcommands and flags. `make install` installs it.",
	.examples = "  eval \"$(workcell completion bash)\"\n"
		    "  workcell completion fish | source",
	.flags = no_flags,
	.verbs = "bash zsh fish",
	.run = run_completion,
};

static const struct cell_cli_command *const commands[] = {
	&cell__cli_run_command,       &cell__cli_shell_command,     &cell__cli_replay_command,
	&cell__cli_notebook_command,  &cell__cli_exec_command,      &cell__cli_batch_command,
	&cell__cli_tools_command,     &cell__cli_workflows_command, &cell__cli_artifacts_command,
	&cell__cli_deps_command,      &cell__cli_cache_command,     &cell__cli_models_command,
	&cell__cli_policy_command,    &cell__cli_audit_command,     &cell__cli_sandbox_command,
	&cell__cli_gen_command,       &cell__cli_mcp_command,       &cell__cli_store_command,
	&cell__cli_serve_command,     &cell__cli_console_command,   &cell__cli_ps_command,
	&cell__cli_top_command,       &cell__cli_kill_command,      &cell__cli_logs_command,
	&cell__cli_attach_command,    &cell__cli_files_command,     &cell__cli_jupyter_command,
	&cell__cli_container_command, &cell__cli_saved_command,     &cell__cli_doctor_command,
	&cell__cli_bench_command,     &completion_command,          NULL,
};

static int run_completion(int argc, char **argv)
{
	struct cell_cli_list operands = { 0 };
	struct cell_error err;
	int status;

	if (cell__cli_parse(&completion_command, argc, argv, NULL, &operands, &status)) {
		if (argc != 2)
			status = cell_fail(&err, CELL_E_INVALID, 0, "usage: workcell completion bash|zsh|fish");
		else
			status = cell__cli_print_completion(argv[1], commands, &err);
		if (status < 0)
			status = cell__cli_report(&err, false);
	}
	return status;
}

static void print_overview(FILE *out)
{
	fprintf(out, "usage: workcell COMMAND [flags]\n\n"
		     "Runs the Python code that AI agents write, in sessions that keep their state.\n\n"
		     "commands:\n");
	for (size_t i = 0; commands[i]; i++)
		fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(out, "\n"
		     "  workcell COMMAND -h       the most used flags of a command; --help: all of them\n"
		     "  workcell help COMMAND     the same as COMMAND --help\n"
		     "  workcell version          the version\n");
}

/* A session costs descriptors, and the soft limit of 1024 is for programs that use select(). */
static void raise_nofile(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur == limit.rlim_max)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* A descriptor of ours must not become 0, 1 or 2 because the caller closed those. */
static void fill_stdio(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	} while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

static const struct cell_cli_command *find_command(const char *name)
{
	for (size_t i = 0; commands[i]; i++) {
		if (!strcmp(name, commands[i]->name))
			return commands[i];
	}
	return NULL;
}

static int report_unknown(const char *word)
{
	const char *near = cell__cli_nearest_command(commands, word);
	struct cell_error err;
	int status;

	cell_fail(&err, CELL_E_INVALID, 0, "unknown %s %s%s%s%s", *word == '-' ? "flag" : "command", word, near ? "; did you mean " : "",
		  near ? near : "", near ? "?" : "");
	status = cell__cli_report(&err, false);
	fprintf(stderr, "workcell: `workcell --help` lists the commands\n");
	return status;
}

static bool is_one_of(const char *word, const char *a, const char *b, const char *c)
{
	return !strcmp(word, a) || !strcmp(word, b) || !strcmp(word, c);
}

/* `workcell help COMMAND` */
static int help_on(const char *name)
{
	const struct cell_cli_command *command = find_command(name);
	char *words[] = { (char *)name, (char *)"--help", NULL };

	if (is_one_of(name, "help", "version", "--help")) { /* not commands of the table; the overview has them */
		print_overview(stdout);
		return 0;
	}
	return command ? command->run(2, words) : report_unknown(name);
}

int main(int argc, char **argv)
{
	const struct cell_cli_command *command;

	fill_stdio();
	raise_nofile();
	if (argc < 2) {
		print_overview(stderr);
		return cell_code_exit_status(CELL_E_INVALID);
	}
	if (is_one_of(argv[1], "help", "--help", "-h")) {
		if (argc > 2 && !strcmp(argv[1], "help"))
			return help_on(argv[2]);
		print_overview(stdout);
		return 0;
	}
	if (is_one_of(argv[1], "version", "--version", "-V")) {
		printf("workcell %s\n", cell_version());
		return 0;
	}
	if (!strcmp(argv[1], "--help=man")) { /* the build makes the page so */
		cell__cli_print_man_overview(commands);
		return 0;
	}
	command = find_command(argv[1]);
	return command ? command->run(argc - 1, argv + 1) : report_unknown(argv[1]);
}
