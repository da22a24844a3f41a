/* Entry, the table of commands, and the set-up for every command: descriptors 0 to 2, and the highest permitted number of others. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

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
	.run = run_missing_shell,
};
#endif

static const struct cell_cli_command *const commands[] = {
	&cell__cli_run_command,       &cell__cli_shell_command,     &cell__cli_tools_command,  &cell__cli_workflows_command,
	&cell__cli_artifacts_command, &cell__cli_deps_command,      &cell__cli_policy_command, &cell__cli_audit_command,
	&cell__cli_sandbox_command,   &cell__cli_gen_command,       &cell__cli_mcp_command,    &cell__cli_store_command,
	&cell__cli_serve_command,     &cell__cli_container_command, &cell__cli_doctor_command, &cell__cli_bench_command,
};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void print_overview(FILE *out)
{
	fprintf(out, "usage: workcell COMMAND [flags]\n\n"
		     "Runs the Python code that AI agents write, in sessions that keep their state.\n\n"
		     "commands:\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
	fprintf(out, "\n"
		     "  workcell COMMAND --help   flags and examples of a command\n"
		     "  workcell --version        the version\n");
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

int main(int argc, char **argv)
{
	struct cell_error err;
	int status;

	fill_stdio();
	raise_nofile();
	if (argc < 2) {
		print_overview(stderr);
		return cell_code_exit_status(CELL_E_INVALID);
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		print_overview(stdout);
		return 0;
	}
	if (!strcmp(argv[1], "--version")) {
		printf("workcell %s\n", cell_version());
		return 0;
	}
	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (!strcmp(argv[1], commands[i]->name))
			return commands[i]->run(argc - 1, argv + 1);
	}
	cell_fail(&err, CELL_E_INVALID, 0, "unknown %s %s", argv[1][0] == '-' ? "flag" : "command", argv[1]);
	status = cell__cli_report(&err, false);
	fprintf(stderr, "workcell: `workcell --help` lists the commands\n");
	return status;
}
