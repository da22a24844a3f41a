/*
 * The row of MCP servers: a tool of a server on standard streams, called by cell_space_call().  The floor is what nobody can do
 * without: a bare C program writes the same request to another process of the same server, and reads its answer.  What is
 * above it is the client's own.
 *
 * Where the scheduler puts client and server decides more about such a time than either of them does, and it may put the
 * two sides differently: so the row that is judged holds everything on one CPU.
 */
#define _GNU_SOURCE
#include "rows_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TURN 10 /* calls in a row of one side */

/* ---- the floor ---------------------------------------------------------------------- */

struct bare {
	pid_t pid;
	int in_fd, out_fd; /* of the server */
};

static int start_bare(const struct cell__bench *b, struct bare *bare)
{
	char *argv[] = { (char *)b->python, (char *)"-IS", (char *)b->mcp_server, NULL };
	char *env[] = { (char *)"PATH=/usr/local/bin:/usr/bin:/bin", (char *)"LANG=C.UTF-8", NULL };
	posix_spawn_file_actions_t actions;
	int in[2] = { -1, -1 }, out[2] = { -1, -1 }, sys = 0;

	if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
		return complain("pipe: %s", strerror(errno));
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in[0], 0);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	sys = posix_spawn(&bare->pid, argv[0], &actions, NULL, argv, env);
	posix_spawn_file_actions_destroy(&actions);
	close(in[0]);
	close(out[1]);
	bare->in_fd = in[1];
	bare->out_fd = out[0];
	return sys ? complain("start %s: %s", argv[0], strerror(sys)) : 0;
}

static void stop_bare(struct bare *bare)
{
	if (bare->in_fd >= 0)
		close(bare->in_fd);
	if (bare->out_fd >= 0)
		close(bare->out_fd);
	if (bare->pid > 0)
		while (waitpid(bare->pid, NULL, 0) < 0 && errno == EINTR)
			;
}

static int call_bare(struct bare *bare, int i, double *ret_ns)
{
	char line[256], want[64];
	size_t size = (size_t)snprintf(line, sizeof(line),
				       "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"tools/call\",\"params\":{\"name\":\"add\","
				       "\"arguments\":{\"a\":%d,\"b\":1}}}\n",
				       i + 1, i);
	double began = now_ns();
	ssize_t n = write(bare->in_fd, line, size);

	if (n != (ssize_t)size)
		return complain("write to the server: %s", strerror(errno));
	for (size = 0; size < sizeof(line) - 1; size += (size_t)n) {
		n = read(bare->out_fd, line + size, sizeof(line) - 1 - size);
		if (n <= 0)
			return complain("the server has ended");
		if (line[size + (size_t)n - 1] == '\n')
			break;
	}
	*ret_ns = now_ns() - began;
	line[size + (size_t)n] = '\0';
	snprintf(want, sizeof(want), "\"text\": \"%d\"", i + 1);
	return strstr(line, want) ? 0 : complain("the server answered %s", line);
}

/* ---- Workcell ----------------------------------------------------------------------- */

static int call_tool(struct cell_space *space, int i, double *ret_ns)
{
	struct cell_error err = { 0 };
	char args[128], want[32], *answer = NULL;
	void *raw = NULL;
	size_t size = 0;
	double began;
	int r;

	snprintf(args, sizeof(args), "{\"name\": \"bench.add\", \"args\": {\"a\": %d, \"b\": 1}}", i);
	began = now_ns();
	if (cell_space_call(space, "tools.call", args, NULL, 0, &answer, &raw, &size, &err))
		return complain_err("call an MCP tool", &err);
	*ret_ns = now_ns() - began;
	r = snprintf(want, sizeof(want), "%d", i + 1);
	r = (size_t)r == size && !memcmp(raw, want, size) ? 0 : complain("an MCP tool answered %s", answer);
	free(answer);
	free(raw);
	return r;
}

static int server_pid(struct cell_space *space, pid_t *ret_pid)
{
	struct cell_error err = { 0 };
	char *answer = NULL, text[32] = "";
	void *raw = NULL;
	size_t size = 0;

	if (cell_space_call(space, "tools.call", "{\"name\": \"bench.pid\"}", NULL, 0, &answer, &raw, &size, &err))
		return complain_err("ask an MCP server for its pid", &err);
	memcpy(text, raw, size < sizeof(text) - 1 ? size : sizeof(text) - 1);
	*ret_pid = (pid_t)strtol(text, NULL, 10);
	free(answer);
	free(raw);
	return *ret_pid > 1 ? 0 : complain("an MCP server has no pid");
}

/* Puts all our threads and both servers on these CPUs; -1 where that is not permitted. */
static int hold(pid_t server, pid_t bare, const cpu_set_t *cpus)
{
	DIR *tasks = opendir("/proc/self/task");
	struct dirent *entry;
	int failed = !tasks;

	while (tasks && (entry = readdir(tasks)))
		if (entry->d_name[0] != '.')
			failed |= sched_setaffinity(atoi(entry->d_name), sizeof(*cpus), cpus) != 0;
	if (tasks)
		closedir(tasks);
	failed |= sched_setaffinity(server, sizeof(*cpus), cpus) != 0;
	failed |= sched_setaffinity(bare, sizeof(*cpus), cpus) != 0;
	return failed ? -1 : 0;
}

static int take_turns(struct cell__bench *b, struct cell_space *space, struct bare *bare, struct cell__bench_row *row)
{
	double ns = 0;

	for (int turn = -5; turn < rounds(b, 40); turn++) {
		for (int i = 0; i < TURN; i++)
			if (call_tool(space, i, &ns) || (turn >= 0 && add_sample(&row->cell, ns)))
				return -1;
		for (int i = 0; i < TURN; i++)
			if (call_bare(bare, i, &ns) || (turn >= 0 && add_sample(&row->floor, ns)))
				return -1;
	}
	return 0;
}

static int take_turns_held(struct cell__bench *b, struct cell_space *space, struct bare *bare)
{
	cpu_set_t all, one;
	pid_t server = 0;
	int cpu = 0, r = 0;

	if (sched_getaffinity(0, sizeof(all), &all))
		return 0;
	if (server_pid(space, &server))
		return -1;
	while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, &all))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	if (!hold(server, bare->pid, &one))
		r = take_turns(b, space, bare, &b->rows[CELL_ROW_MCP_ONE_CPU]);
	hold(server, bare->pid, &all);
	return r;
}

int cell__bench_measure_mcp(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_space_options opts = CELL_SPACE_OPTIONS_INIT;
	struct bare bare = { .pid = -1, .in_fd = -1, .out_fd = -1 };
	struct cell_space *space = NULL;
	struct cell_error err = { 0 };
	char *params = NULL;
	int r = -1;

	if (!b->mcp_server) {
		row->skipped = "mcp_server.py was not found";
		return 0;
	}
	if (asprintf(&params, "{\"command\": \"%s\", \"args\": [\"-IS\", \"%s\"]}", b->python, b->mcp_server) < 0)
		return complain("out of memory");
	if (cell_space_open(b->engine, &opts, &space, &err) || cell_space_add_mcp(space, "bench", params, &err))
		complain_err("a space with an MCP server", &err);
	else if (!start_bare(b, &bare))
		r = take_turns(b, space, &bare, row) || take_turns_held(b, space, &bare) ? -1 : 0;
	stop_bare(&bare);
	cell_space_close(space);
	free(params);
	return r;
}
