/*
 * workcell-bench, which `workcell bench` runs: Workcell, ipykernel and the machine's floor, side by side.
 *
 * Three parts share the work.  bench/rows.c and bench/rows_space.c measure Workcell and the floor;
 * bench/peer_ipykernel.py, run by the same interpreter once nothing of ours runs any more, measures ipykernel;
 * bench/report.py makes percentiles, ratios, the table, the JSON file and the plot of both.  The values travel
 * in memfds and a process of its own removes the folder of the storage, so an interrupted benchmark leaves no
 * files.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/progress.h"

#include "rows_internal.h"

#define EXIT_USAGE 2
#define EXIT_OURS 125
#define MAX_SESSIONS 10000

struct command {
	struct cell__bench bench;
	char *python;
	const char *json_path, *svg_path;
	bool with_peer;
};

/* A memfd that survives exec: children read it as /dev/fd/N. */
static int create_memfd(const char *name)
{
	int fd = memfd_create(name, 0);

	if (fd < 0)
		complain("memfd_create: %s", strerror(errno));
	return fd;
}

/* Runs a Python script and waits.  stdout_fd -1: ours.  Returns its exit status, -1 when it did not run. */
static int run_script(const char *const *argv, int stdout_fd)
{
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		if (stdout_fd >= 0 && dup2(stdout_fd, 1) < 0)
			_exit(127);
		execv(argv[0], (char *const *)argv);
		_exit(127);
	}
	if (pid < 0)
		return complain("fork: %s", strerror(errno));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return complain("wait for %s: %s", argv[1], strerror(errno));
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* bench/ of the source tree that this program was built in, else beside it (a wheel) or where `make install` put it. */
static char *find_script(const char *name)
{
	char exe[PATH_MAX], *path = NULL;
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	if (n > 0) {
		static const char *const places[] = { "../bench", "bench", "../../share/workcell/bench" };

		exe[n] = '\0';
		*strrchr(exe, '/') = '\0';
		for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
			if (asprintf(&path, "%s/%s/%s", exe, places[i], name) < 0)
				return NULL;
			if (!access(path, R_OK))
				return path;
			free(path);
		}
	}
	complain("%s not found: install Workcell with `make install`, or run it in its build tree", name);
	return NULL;
}

/* Measures what Workcell is compared with: bench/SCRIPT [--quick] MORE..., where more is NULL-terminated. */
static int run_peer(struct command *c, const char *name, const char *what, const char *const *more, int out_fd)
{
	char *script = find_script(name);
	const char *argv[6];
	int n = 0, status;

	if (!script)
		return -1;
	argv[n++] = c->python;
	argv[n++] = script;
	if (c->bench.quick)
		argv[n++] = "--quick";
	while (*more)
		argv[n++] = *more++;
	argv[n] = NULL;
	cell__bench_step(&c->bench, what);
	status = run_script(argv, out_fd);
	free(script);
	if (status)
		return complain("measuring %s failed (status %d); --no-peer leaves it out", what, status);
	return 0;
}

static int run_kernel_peer(struct command *c, int out_fd)
{
	const char *peer = c->bench.only >= 0 ? cell__bench_row_specs[c->bench.only].peer : NULL;

	return run_peer(c, "peer_ipykernel.py", "ipykernel", (const char *[]){ peer ? "--only" : NULL, peer, NULL }, out_fd);
}

static int run_mcp_peer(struct command *c, int out_fd)
{
	return run_peer(c, "peer_mcp.py", "the MCP SDK", (const char *[]){ c->bench.mcp_server, NULL }, out_fd);
}

static int run_report(struct command *c, int measured_fd, int peer_fd, int mcp_fd)
{
	char *script = find_script("report.py"), measured[32], peer[32], mcp[32];
	const char *argv[14];
	int n = 0, status;

	if (!script)
		return -1;
	snprintf(measured, sizeof(measured), "/dev/fd/%d", measured_fd);
	snprintf(peer, sizeof(peer), "/dev/fd/%d", peer_fd);
	snprintf(mcp, sizeof(mcp), "/dev/fd/%d", mcp_fd);
	argv[n++] = c->python;
	argv[n++] = script;
	argv[n++] = "--workcell";
	argv[n++] = measured;
	if (peer_fd >= 0) {
		argv[n++] = "--peer";
		argv[n++] = peer;
	}
	if (mcp_fd >= 0) {
		argv[n++] = "--mcp-peer";
		argv[n++] = mcp;
	}
	if (c->json_path) {
		argv[n++] = "--json";
		argv[n++] = c->json_path;
	}
	if (c->svg_path) {
		argv[n++] = "--svg";
		argv[n++] = c->svg_path;
	}
	argv[n] = NULL;
	status = run_script(argv, -1);
	free(script);
	return status ? complain("the report failed (exit status %d)", status) : 0;
}

static bool wants_kernel_peer(const struct command *c)
{
	int only = c->bench.only;

	return c->with_peer && only != CELL_ROW_MCP && (only < 0 || cell__bench_row_specs[only].peer);
}

static bool wants_mcp_peer(const struct command *c)
{
	return c->with_peer && c->bench.mcp_server && (c->bench.only < 0 || c->bench.only == CELL_ROW_MCP);
}

static int peer_and_report(struct command *c)
{
	int measured_fd = create_memfd("workcell-bench"), peer_fd = -1, mcp_fd = -1, r = -1;
	FILE *f = NULL;

	if (measured_fd < 0)
		return -1;
	f = fdopen(measured_fd, "w");
	if (!f) {
		complain("fdopen: %s", strerror(errno));
		close(measured_fd);
		return -1;
	}
	cell__bench_write(&c->bench, f);
	if (fflush(f) || ferror(f)) {
		complain("write the figures: %s", strerror(errno));
		goto out;
	}
	if (wants_kernel_peer(c) && ((peer_fd = create_memfd("workcell-bench-peer")) < 0 || run_kernel_peer(c, peer_fd)))
		goto out;
	if (wants_mcp_peer(c) && ((mcp_fd = create_memfd("workcell-bench-mcp")) < 0 || run_mcp_peer(c, mcp_fd)))
		goto out;
	cell__progress_end();
	r = run_report(c, measured_fd, peer_fd, mcp_fd);
out:
	fclose(f);
	if (peer_fd >= 0)
		close(peer_fd);
	if (mcp_fd >= 0)
		close(mcp_fd);
	return r;
}

/* ---- command line ------------------------------------------------------------------- */

static void print_help(void)
{
	puts("usage: workcell bench [options]\n"
	     "\n"
	     "Measures Workcell, ipykernel (through jupyter_client, same interpreter) and the floor of\n"
	     "this machine, and prints a table with p50, p99 and the ratios.  Takes about a minute.\n"
	     "Temporary files are in a folder of $TMPDIR, or else /var/tmp, until it ends.\n"
	     "\n"
	     "  --python PATH   the interpreter for both (default: python3 on PATH)\n"
	     "  --json FILE     write all figures and the facts of the machine\n"
	     "  --svg FILE      draw the plot\n"
	     "  --quick         fewer rounds: less stable figures, in a third of the time\n"
	     "  --sessions N    how many sessions to hold open at once (default 500)\n"
	     "  --no-peer       leave ipykernel out\n"
	     "  --only ROW      one row; --only help lists them\n"
	     "  --help          this text\n"
	     "\n"
	     "examples:\n"
	     "  workcell bench --json bench.json --svg bench.svg\n"
	     "  workcell bench --quick --only cell\n"
	     "  workcell bench --python ~/venv/bin/python    a venv that has ipykernel, numpy and pandas\n"
	     "\n"
	     "exit status: 0 measured (also where a figure falls short), 2 usage, 125 a measurement failed");
}

static int parse_row(const char *name)
{
	for (int i = 0; i < CELL_ROW_CHOICES; i++)
		if (!strcmp(name, cell__bench_row_specs[i].name))
			return i;
	char rows[2048] = "";
	for (int i = 0; i < CELL_ROW_CHOICES; i++)
		snprintf(rows + strlen(rows), sizeof rows - strlen(rows), "%s%s", i > 0 ? ", " : "", cell__bench_row_specs[i].name);
	return complain("--only %s: unknown row; choose one of %s", name, rows);
}

/* -1: go on; else the exit status. */
static int parse_args(struct command *c, int argc, char **argv)
{
	static const struct option options[] = {
		{ "python", required_argument, NULL, 'p' },
		{ "json", required_argument, NULL, 'j' },
		{ "svg", required_argument, NULL, 's' },
		{ "quick", no_argument, NULL, 'q' },
		{ "sessions", required_argument, NULL, 'n' },
		{ "no-peer", no_argument, NULL, 'P' },
		{ "only", required_argument, NULL, 'o' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct cell_error err = { 0 };
	const char *python = NULL;
	char *end;
	long n;
	int flag;

	while ((flag = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		switch (flag) {
		case 'p':
			python = optarg;
			break;
		case 'j':
			c->json_path = optarg;
			break;
		case 's':
			c->svg_path = optarg;
			break;
		case 'q':
			c->bench.quick = true;
			break;
		case 'n':
			n = strtol(optarg, &end, 10);
			if (!isdigit((unsigned char)optarg[0]) || *end || n < 1 || n > MAX_SESSIONS) {
				complain("--sessions %s: give a number from 1 to %d", optarg, MAX_SESSIONS);
				return EXIT_USAGE;
			}
			c->bench.sessions = (int)n;
			break;
		case 'P':
			c->with_peer = false;
			break;
		case 'o':
			c->bench.only = parse_row(optarg);
			if (c->bench.only < 0)
				return EXIT_USAGE;
			break;
		case 'h':
			print_help();
			return 0;
		default:
			fputs("try: workcell bench --help\n", stderr);
			return EXIT_USAGE;
		}
	}
	if (optind < argc) {
		complain("unexpected argument %s; try: workcell bench --help", argv[optind]);
		return EXIT_USAGE;
	}
	if (cell__cli_find_python(python, &c->python, &err)) {
		complain_err("--python", &err);
		return cell_code_exit_status(err.code);
	}
	c->bench.python = c->python;
	return -1;
}

/* A session costs descriptors, and hundreds are held open. */
static void raise_nofile(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv)
{
	struct command c = { .bench = CELL_BENCH_INIT, .with_peer = true };
	int r = parse_args(&c, argc, argv);
	char *server = r < 0 ? find_script("mcp_server.py") : NULL;

	raise_nofile();
	c.bench.mcp_server = server;
	c.bench.steps = (size_t)wants_kernel_peer(&c) + (size_t)wants_mcp_peer(&c);
	if (r < 0)
		r = cell__bench_measure(&c.bench) || peer_and_report(&c) ? EXIT_OURS : 0;
	cell__bench_finish(&c.bench);
	free(server);
	free(c.python);
	return r;
}
