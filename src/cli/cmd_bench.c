/* `workcell bench`: runs workcell-bench, a program of its own (bench/main.c), which has the flags and the help. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "workcell-bench"

/* Returns only if it does not exist (0) or did not start (an errno). */
static int run_in(const char *folder, const char *below, char **argv)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s%s/" PROGRAM, folder, below) >= (int)sizeof(path))
		return ENAMETOOLONG;
	execv(path, argv);
	return errno == ENOENT ? 0 : errno;
}

/* In the build folder it is beside us; installed, beside the spawner. */
static int run_bench(int argc, char **argv)
{
	char beside[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", beside, sizeof(beside) - 1);
	struct cell_error err;
	int sys;

	(void)argc;
	beside[n > 0 ? n : 0] = '\0';
	if (strrchr(beside, '/'))
		*strrchr(beside, '/') = '\0';
	sys = run_in(beside, "", argv);
	if (!sys)
		sys = run_in(beside, "/../lib/workcell", argv);
	if (sys)
		cell_fail(&err, CELL_E_IO, sys, "start " PROGRAM);
	else
		cell_fail(&err, CELL_E_NOT_FOUND, 0,
			  "the benchmark is not installed: " PROGRAM " is neither in %.80s nor in ../lib/workcell"
			  "; `make install` installs it, `make bench` runs it from the sources",
			  beside);
	return cell__cli_report(&err, false);
}

const struct cell_cli_command cell__cli_bench_command = {
	.name = "bench",
	.summary = "measure Workcell against ipykernel and the machine's floor",
	.run = run_bench,
};
