/*
 * The rows of what a session's code can use: tools, artifacts, workflows.
 *
 * The calls are timed by the code that makes them, in the kernel (perf_counter_ns() is CLOCK_MONOTONIC, as on
 * the floor's side); the cell hands the times back as its value.  Only the search is called from here, by the
 * public API.
 *
 * The folder's keeper is a process that sleeps in read() on a pipe whose other end only the benchmark has.  At
 * end of file, which comes also when the benchmark was killed, it removes the folder and exits; the benchmark
 * reaps it.
 */
#define _GNU_SOURCE
#include "rows_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define GATHERED 1000
#define ARTIFACT_BYTES 100000000
#define COPY_BYTES (1 << 20) /* at a time; as much as travels to the host at a time */
#define SEARCH_HITS 10

/* ---- the folder ----------------------------------------------------------------- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st, (void)kind, (void)where;
	return remove(path);
}

static void keeper_main(int fd, const char *path)
{
	char byte;

	/* A Ctrl-C at the terminal reaches this process too, and is when it is needed. */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	while (read(fd, &byte, 1) < 0 && errno == EINTR)
		;
	_exit(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) ? errno : 0);
}

int cell__bench_make_folder(struct cell__bench_folder *folder)
{
	const char *parent = getenv("TMPDIR");
	int fds[2];

	/* Of the two usual places /var/tmp is the one that lies on a disk. */
	if (!parent || !*parent)
		parent = access("/var/tmp", W_OK) ? "/tmp" : "/var/tmp";
	if (asprintf(&folder->path, "%s/workcell-bench-XXXXXX", parent) < 0) {
		folder->path = NULL;
		return complain("out of memory");
	}
	if (pipe2(fds, O_CLOEXEC)) {
		complain("pipe: %s", strerror(errno));
		goto no_pipe;
	}
	if (!mkdtemp(folder->path)) {
		complain("make a folder in %s: %s", parent, strerror(errno));
		goto no_folder;
	}
	folder->keeper_pid = fork();
	if (folder->keeper_pid == 0) {
		close(fds[1]);
		keeper_main(fds[0], folder->path);
	}
	if (folder->keeper_pid < 0) {
		complain("fork: %s", strerror(errno));
		rmdir(folder->path);
		goto no_folder;
	}
	close(fds[0]);
	folder->keeper_fd = fds[1];
	return 0;
no_folder:
	close(fds[0]);
	close(fds[1]);
no_pipe:
	free(folder->path);
	folder->path = NULL;
	return -1;
}

int cell__bench_remove_folder(struct cell__bench_folder *folder)
{
	int status = 0, r = 0;

	if (folder->keeper_fd >= 0)
		close(folder->keeper_fd);
	folder->keeper_fd = -1;
	if (folder->keeper_pid > 0)
		while (waitpid(folder->keeper_pid, &status, 0) < 0 && errno == EINTR)
			;
	folder->keeper_pid = -1;
	if (status)
		r = complain("%s could not be removed: %s", folder->path,
			     WIFEXITED(status) ? strerror(WEXITSTATUS(status)) : "its keeper was killed");
	free(folder->path);
	folder->path = NULL;
	return r;
}

/* Writes a text file; its folder must be there. */
static int write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");
	int failed = !f;

	if (f) {
		failed = fputs(text, f) < 0;
		failed |= fclose(f) != 0;
	}
	return failed ? complain("write %s: %s", path, strerror(errno)) : 0;
}

static int make_folder_at(const char *path)
{
	if (mkdir(path, 0777) && errno != EEXIST)
		return complain("make %s: %s", path, strerror(errno));
	return 0;
}

static const char *true_program(void)
{
	return access("/bin/true", X_OK) ? "/usr/bin/true" : "/bin/true";
}

/* ---- a session with a space --------------------------------------------------------- */

struct place {
	struct cell_space *space;
	struct cell_session *session;
};

/* The argument is the first number there is. */
static void handle_add(void *arg, struct cell_tool_call *call)
{
	const char *args = cell_tool_call_args(call);
	char answer[32];
	int n;

	(void)arg;
	n = snprintf(answer, sizeof(answer), "%ld", strtol(args + strcspn(args, "-0123456789"), NULL, 10) + 1);
	cell_tool_call_answer_json(call, answer, (size_t)n);
}

static void close_place(struct place *place)
{
	cell_session_close(place->session);
	cell_space_close(place->space);
	*place = (struct place){ 0 };
}

/*
 * `name` is that of the storage in the benchmark's folder.  policy may be NULL.  ret_ns: from here to the first cell's
 * answer.
 */
static int open_place(struct cell__bench *b, const char *name, const struct cell_policy *policy, struct place *place, double *ret_ns)
{
	struct cell_space_options space_opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_session_options session_opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_tool tool = CELL_TOOL_INIT;
	struct cell_error err = { 0 };
	char *storage = NULL, *tools = NULL, *cache = NULL;
	double began;
	int r = -1;

	*place = (struct place){ 0 };
	if (asprintf(&storage, "%s/%s", b->folder.path, name) < 0 || asprintf(&tools, "%s/tools", b->folder.path) < 0 ||
	    asprintf(&cache, "%s/cache", b->folder.path) < 0) {
		complain("out of memory");
		goto out;
	}
	space_opts.storage = storage;
	space_opts.tools_dir = tools;
	space_opts.cache_dir = cache;
	space_opts.python = b->python;
	tool.name = "add";
	tool.description = "Adds one.";
	tool.parameters = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, "
			  "\"required\": [\"a\"]}";
	tool.fn = handle_add;
	session_opts.python = b->python;
	began = now_ns();
	if (cell_space_open(b->engine, &space_opts, &place->space, &err) || cell_space_add_tool(place->space, &tool, &err)) {
		complain_err("open a space", &err);
		goto out;
	}
	session_opts.space = place->space;
	session_opts.policy = policy;
	if (cell_session_open(b->engine, &session_opts, &place->session, &err)) {
		complain_err("open a session with a space", &err);
		goto out;
	}
	r = run_cell(place->session, "1+1", "2", NULL, NULL);
	if (!r && ret_ns)
		*ret_ns = now_ns() - began;
out:
	if (r)
		close_place(place);
	free(storage);
	free(tools);
	free(cache);
	return r;
}

/* With a command-line tool, and a storage that holds nothing yet. */
static int open_common_place(struct cell__bench *b, const struct cell_policy *policy, struct place *place)
{
	char *tools, *file = NULL, *text = NULL;
	int r = -1;

	if (asprintf(&tools, "%s/tools", b->folder.path) < 0)
		return complain("out of memory");
	if (asprintf(&file, "%s/nothing.yaml", tools) < 0)
		file = NULL;
	if (asprintf(&text, "name: nothing\ndescription: Does nothing.\ncommand: %s\nrecipes:\n  do: {}\n", true_program()) < 0)
		text = NULL;
	if (!file || !text)
		complain("out of memory");
	else if (!make_folder_at(tools) && !write_file(file, text))
		r = open_place(b, "storage", policy, place, NULL);
	free(tools);
	free(file);
	free(text);
	return r;
}

/* Runs a cell whose value is a list of `count` numbers and adds them; samples NULL: they do not count. */
static int run_numbers(struct cell_session *session, const char *code, const struct cell_run_options *opts, size_t count,
		       struct cell__bench_samples *samples)
{
	struct cell_result *result = NULL;
	const struct cell_outcome *outcome;
	struct cell_error err = { 0 };
	const char *value;
	json_t *list = NULL;
	int r = 0;

	if (cell_session_run(session, code, strlen(code), opts, &result, &err))
		return complain_err(code, &err);
	outcome = cell_result_error(result);
	value = cell_result_value_json(result);
	if (outcome)
		r = complain("`%s` ended with %s: %s", code, outcome->type[0] ? outcome->type : cell_code_word(outcome->code),
			     outcome->message);
	else if (!value || !(list = json_loads(value, 0, NULL)) || json_array_size(list) != count)
		r = complain("`%s` gave %.100s, not %zu numbers", code, value ? value : "no JSON value", count);
	for (size_t i = 0; !r && samples && i < count; i++)
		r = add_sample(samples, json_number_value(json_array_get(list, i)));
	json_decref(list);
	cell_result_destroy(result);
	return r;
}

/* ---- tools ------------------------------------------------------------------------- */

static int sample_tool_calls(struct cell__bench *b, struct cell_session *session, int n_rounds, struct cell__bench_row *row)
{
	for (int round = -1; round < n_rounds; round++) {
		if (run_numbers(session, "timed_calls(100)", NULL, 100, round >= 0 ? &row->cell : NULL) ||
		    (round >= 0 && sample_floor(b, row, 100, cell__floor_ping)))
			return -1;
	}
	return 0;
}

static const char timed_calls[] = "from time import perf_counter_ns as clock, sleep\n"
				  "def timed_calls(n, pause=0):\n"
				  "    took = []\n"
				  "    for i in range(n):\n"
				  "        if pause: sleep(pause)\n"
				  "        began = clock()\n"
				  "        answer = tools.add(a=i)\n"
				  "        took.append(clock() - began)\n"
				  "        assert answer == i + 1, answer\n"
				  "    return took\n";

static void accept_at_once(void *arg, const struct cell_event *event)
{
	struct cell_approval_answer yes = { .size = sizeof(yes), .accept = 1 };

	if (event->type == CELL_EVENT_APPROVAL)
		cell_session_answer(arg, event->call->id, &yes, NULL); /* a refusal would fail the cell */
}

static int sample_approvals(struct cell__bench *b, struct cell_session *session, int n_rounds, struct cell__bench_row *row)
{
	struct cell_run_options opts = { .size = sizeof(opts), .on_event = accept_at_once, .event_arg = session };

	for (int round = -1; round < n_rounds; round++) {
		if (run_numbers(session, "timed_calls(100)", &opts, 100, round >= 0 ? &row->cell : NULL) ||
		    (round >= 0 && sample_floor(b, row, 100, cell__floor_ping)))
			return -1;
	}
	return 0;
}

int cell__bench_measure_approval(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_policy *policy = cell_policy_of(CELL_ASK);
	struct place place;
	int r = -1;

	if (!policy)
		return complain("out of memory");
	if (!open_common_place(b, policy, &place)) {
		r = run_cell(place.session, timed_calls, NULL, NULL, NULL) || sample_approvals(b, place.session, rounds(b, 40), row) ||
				    cell__bench_sample_placed(b, place.session, sample_approvals, &b->rows[CELL_ROW_APPROVAL_ONE_CPU],
							      &b->rows[CELL_ROW_APPROVAL_TWO_CPUS])
			    ? -1
			    : 0;
		close_place(&place);
	}
	cell_policy_destroy(policy);
	return r;
}

struct paused_calls {
	struct cell_session *session;
	const struct cell_run_options *opts;
};

/* The pause is in the cell: host and kernel both sleep before a call. */
static int sample_paused_call(struct cell__bench *b, void *arg, struct cell__bench_row *row)
{
	const struct paused_calls *calls = arg;

	(void)b;
	return run_numbers(calls->session, "timed_calls(1, 0.1)", calls->opts, 1, row ? &row->cell : NULL);
}

static int measure_paused(struct cell__bench *b, const struct cell_policy *policy, struct cell__bench_row *row)
{
	struct place place;
	int r;

	if (open_common_place(b, policy, &place))
		return -1;
	struct cell_run_options opts = { .size = sizeof(opts), .on_event = accept_at_once, .event_arg = place.session };
	struct paused_calls calls = { place.session, policy ? &opts : NULL };

	r = run_cell(place.session, timed_calls, NULL, NULL, NULL);
	if (!r)
		r = cell__bench_sample_paused(b, row, sample_paused_call, &calls);
	close_place(&place);
	return r;
}

int cell__bench_measure_paused_call(struct cell__bench *b, struct cell__bench_row *row)
{
	return measure_paused(b, NULL, row);
}

int cell__bench_measure_paused_approval(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_policy *policy = cell_policy_of(CELL_ASK);
	int r = policy ? measure_paused(b, policy, row) : complain("out of memory");

	cell_policy_destroy(policy);
	return r;
}

int cell__bench_measure_tool_call(struct cell__bench *b, struct cell__bench_row *row)
{
	struct place place;
	int r;

	if (open_common_place(b, NULL, &place))
		return -1;
	r = run_cell(place.session, timed_calls, NULL, NULL, NULL) || sample_tool_calls(b, place.session, rounds(b, 40), row) ||
			    cell__bench_sample_placed(b, place.session, sample_tool_calls, &b->rows[CELL_ROW_TOOL_CALL_ONE_CPU],
						      &b->rows[CELL_ROW_TOOL_CALL_TWO_CPUS])
		    ? -1
		    : 0;
	close_place(&place);
	return r;
}

int cell__bench_measure_tool_gather(struct cell__bench *b, struct cell__bench_row *row)
{
	static const char code[] = "import asyncio\n"
				   "from time import perf_counter_ns as clock\n"
				   "async def timed_gather(n):\n"
				   "    began = clock()\n"
				   "    answers = await asyncio.gather(*[tools.add.call_async(a=i) for i in range(n)])\n"
				   "    took = clock() - began\n"
				   "    assert answers == list(range(1, n + 1)), answers\n"
				   "    return [took]\n";
	struct cell__bench_row *each = &b->rows[CELL_ROW_TOOL_GATHER_EACH];
	struct place place;
	char call[64];
	int r;

	if (open_common_place(b, NULL, &place))
		return -1;
	snprintf(call, sizeof(call), "await timed_gather(%d)", GATHERED);
	r = run_cell(place.session, code, NULL, NULL, NULL);
	for (int round = -1; !r && round < rounds(b, 40); round++) {
		r = run_numbers(place.session, call, NULL, 1, round >= 0 ? &row->cell : NULL);
		if (!r && round >= 0)
			r = add_sample(&each->cell, row->cell.values[row->cell.n - 1] / GATHERED);
	}
	close_place(&place);
	return r;
}

/* 0, or an errno.  Reads both pipes to their end and reaps the program. */
static int finish_program(pid_t pid, int out_fd, int err_fd)
{
	int fds[] = { out_fd, err_fd }, status, sys = 0;
	char buf[4096];
	ssize_t n;

	for (int i = 0; i < 2; i++) {
		do {
			n = read(fds[i], buf, sizeof(buf));
		} while (n > 0 || (n < 0 && errno == EINTR));
		if (n < 0)
			sys = errno;
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return errno;
	return sys ? sys : status ? ECHILD : 0;
}

static int start_program(int out_fd, int err_fd, pid_t *ret_pid)
{
	char *argv[] = { (char *)true_program(), NULL };
	char *env[] = { (char *)"PATH=/usr/local/bin:/usr/bin:/bin", NULL };
	posix_spawn_file_actions_t actions;
	int sys = posix_spawn_file_actions_init(&actions);

	if (sys)
		return sys;
	sys = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	if (!sys)
		sys = posix_spawn_file_actions_adddup2(&actions, out_fd, 1);
	if (!sys)
		sys = posix_spawn_file_actions_adddup2(&actions, err_fd, 2);
	if (!sys)
		sys = posix_spawn(ret_pid, argv[0], &actions, NULL, argv, env);
	posix_spawn_file_actions_destroy(&actions);
	return sys;
}

/* What a command-line tool cannot do without: two pipes, a program, their end and its. */
static int spawn_program(struct cell__floor *floor, double *ret_ns, struct cell_error *err)
{
	int out[2] = { -1, -1 }, errs[2] = { -1, -1 }, sys;
	double began = now_ns();
	pid_t pid;

	(void)floor;
	sys = pipe2(out, O_CLOEXEC) || pipe2(errs, O_CLOEXEC) ? errno : start_program(out[1], errs[1], &pid);
	if (out[1] >= 0)
		close(out[1]);
	if (errs[1] >= 0)
		close(errs[1]);
	if (!sys)
		sys = finish_program(pid, out[0], errs[0]);
	if (out[0] >= 0)
		close(out[0]);
	if (errs[0] >= 0)
		close(errs[0]);
	if (sys) {
		err->code = CELL_E_IO;
		err->sys = sys;
		snprintf(err->msg, sizeof(err->msg), "run %s: %s", true_program(), strerror(sys));
		return -1;
	}
	*ret_ns = now_ns() - began;
	return 0;
}

int cell__bench_measure_tool_cli(struct cell__bench *b, struct cell__bench_row *row)
{
	static const char code[] = "from time import perf_counter_ns as clock\n"
				   "def timed_programs(n):\n"
				   "    took = []\n"
				   "    for i in range(n):\n"
				   "        began = clock()\n"
				   "        answer = tools.nothing.do()\n"
				   "        took.append(clock() - began)\n"
				   "        assert answer == '', answer\n"
				   "    return took\n";
	struct place place;
	int r;

	if (open_common_place(b, NULL, &place))
		return -1;
	r = run_cell(place.session, code, NULL, NULL, NULL);
	for (int round = -1; !r && round < rounds(b, 40); round++) {
		r = run_numbers(place.session, "timed_programs(5)", NULL, 5, round >= 0 ? &row->cell : NULL);
		if (!r && round >= 0)
			r = sample_floor(b, row, 5, spawn_program);
	}
	close_place(&place);
	return r;
}

/* A session in a sandbox, with a folder of its own, and the same tool twice: confined as its code is, and on the host. */
static int open_confined_place(struct cell__bench *b, struct place *place)
{
	struct cell_space_options space_opts = CELL_SPACE_OPTIONS_INIT;
	struct cell_session_options session_opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };
	char *paths[4] = { NULL }, *text = NULL;
	static const char *const names[] = { "confined", "confined/nothing.yaml", "confined/host.yaml", "confined-work" };
	int r = 0;

	*place = (struct place){ 0 };
	for (int i = 0; !r && i < 4; i++)
		if (asprintf(&paths[i], "%s/%s", b->folder.path, names[i]) < 0) {
			paths[i] = NULL;
			r = complain("out of memory");
		}
	r = r || make_folder_at(paths[0]) || make_folder_at(paths[3]);
	for (int i = 1; !r && i < 3; i++) {
		if (asprintf(&text, "name: %s\ndescription: Does nothing.\ncommand: %s\n%srecipes:\n  do: {}\n",
			     i == 1 ? "nothing" : "host", true_program(), i == 1 ? "" : "host: true\n") < 0) {
			text = NULL;
			r = complain("out of memory");
		}
		r = r || write_file(paths[i], text);
		free(text);
	}
	space_opts.tools_dir = paths[0];
	session_opts.executor = "sandbox";
	session_opts.python = b->python;
	session_opts.cwd = paths[3];
	if (!r && cell_space_open(b->engine, &space_opts, &place->space, &err))
		r = complain_err("open a space", &err);
	session_opts.space = place->space;
	if (!r && cell_session_open(b->engine, &session_opts, &place->session, &err))
		r = complain_err("open a session with a space", &err);
	if (r)
		close_place(place);
	for (int i = 0; i < 4; i++)
		free(paths[i]);
	return r ? -1 : 0;
}

/*
 * With pauses, as between calls of an agent; then runs of 20 one after the other, which are more than the sandboxes made ahead. Before each
 * run the spawner has time to make them, so that it does not do so at the cost of the other side.
 */
int cell__bench_measure_sandbox_tool(struct cell__bench *b, struct cell__bench_row *row)
{
	static const char code[] = "from time import perf_counter_ns as clock, sleep\n"
				   "def timed(tool, n, pause):\n"
				   "    took = []\n"
				   "    for i in range(n):\n"
				   "        sleep(pause)\n"
				   "        began = clock()\n"
				   "        answer = tool.do()\n"
				   "        took.append(clock() - began)\n"
				   "        assert answer == '', answer\n"
				   "    return took\n";
	static const char *const calls[2][2] = {
		{ "sleep(0.1) or timed(tools.nothing, 5, 0.005)", "sleep(0.1) or timed(tools.host, 5, 0.005)" },
		{ "sleep(0.2) or timed(tools.nothing, 20, 0)", "sleep(0.2) or timed(tools.host, 20, 0)" },
	};
	static const size_t counts[2] = { 5, 20 };
	struct cell__bench_row *rows[2] = { row, &b->rows[CELL_ROW_SANDBOX_TOOL_BURST] };
	struct place place;
	int r;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	if (open_confined_place(b, &place))
		return -1;
	r = run_cell(place.session, code, NULL, NULL, NULL);
	for (int kind = 0; kind < 2; kind++)
		for (int round = -1; !r && round < rounds(b, kind ? 20 : 80); round++)
			for (int side = 0; !r && side < 2; side++)
				r = run_numbers(place.session, calls[kind][side], NULL, counts[kind],
						round < 0 ? NULL
						: side    ? &rows[kind]->floor
							  : &rows[kind]->cell);
	close_place(&place);
	return r;
}

/* ---- artifacts --------------------------------------------------------------------- */

/* Writes, syncs and reads a file through one buffer: 0, or an errno. */
static int copy_through(int fd, char *buf)
{
	size_t left;
	ssize_t n;

	for (left = ARTIFACT_BYTES; left; left -= (size_t)n) {
		n = write(fd, buf, left < COPY_BYTES ? left : COPY_BYTES);
		if (n < 0)
			return errno;
	}
	if (fsync(fd) || lseek(fd, 0, SEEK_SET))
		return errno;
	for (left = ARTIFACT_BYTES; left; left -= (size_t)n) {
		n = read(fd, buf, COPY_BYTES);
		if (n <= 0)
			return n ? errno : EIO;
	}
	return 0;
}

static int sample_disk(const struct cell__bench *b, struct cell__bench_samples *samples)
{
	char *path = NULL, *buf = malloc(COPY_BYTES);
	double began, took;
	int fd, sys;

	if (!buf || asprintf(&path, "%s/storage/artifacts/.floor", b->folder.path) < 0) {
		free(buf);
		return complain("out of memory");
	}
	memset(buf, 'x', COPY_BYTES);
	began = now_ns();
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	sys = fd < 0 ? errno : copy_through(fd, buf);
	took = now_ns() - began;
	if (fd >= 0) {
		close(fd);
		unlink(path);
	}
	free(buf);
	free(path);
	if (sys)
		return complain("write and read 100 MB in %s: %s", b->folder.path, strerror(sys));
	return samples ? add_sample(samples, ARTIFACT_BYTES / (took / 1e9)) : 0;
}

int cell__bench_measure_artifact(struct cell__bench *b, struct cell__bench_row *row)
{
	static const char code[] = "import os\n"
				   "from time import perf_counter_ns as clock\n"
				   "data = os.urandom(1000000) * 100\n"
				   "def rate_of_artifact():\n"
				   "    began = clock()\n"
				   "    artifacts.save('data.bin', data)\n"
				   "    loaded = artifacts.load('data.bin')\n"
				   "    took = clock() - began\n"
				   "    assert loaded == data\n"
				   "    artifacts.delete('data.bin')\n"
				   "    return [len(data) * 10**9 / took]\n";
	struct place place;
	int r;

	if (open_common_place(b, NULL, &place))
		return -1;
	r = run_cell(place.session, code, NULL, NULL, NULL);
	for (int round = -1; !r && round < rounds(b, 8); round++)
		r = run_numbers(place.session, "rate_of_artifact()", NULL, 1, round >= 0 ? &row->cell : NULL) ||
				    sample_disk(b, round >= 0 ? &row->floor : NULL)
			    ? -1
			    : 0;
	close_place(&place);
	return r;
}

/* ---- workflows --------------------------------------------------------------------- */

static const char *const verbs[] = { "fetch",    "parse",     "merge",    "filter",   "convert", "upload",  "rank",
				     "compress", "translate", "schedule", "validate", "plot",    "archive", "cluster",
				     "encrypt",  "forecast",  "render",   "sample",   "split",   "verify" };
static const char *const things[] = { "invoice",  "weather",  "ticket",     "customer", "photo",   "recipe", "ledger",
				      "contract", "sensor",   "flight",     "budget",   "payroll", "survey", "patient",
				      "podcast",  "shipment", "warehouse",  "tweet",    "commit",  "genome", "poem",
				      "mortgage", "auction",  "tournament", "vaccine" };
static const char *const places[] = { "london", "tokyo", "kafka",  "postgres", "s3",     "github", "slack", "excel", "jira",   "mars",
				      "oslo",   "redis", "stripe", "gmail",    "hadoop", "lisbon", "quito", "spark", "notion", "cairo" };
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define WORKFLOWS (COUNT(verbs) * COUNT(things) * COUNT(places))
_Static_assert(WORKFLOWS == 10000, "the row is about ten thousand workflows");

/* The words of workflow i; no two have the same three. */
static const char *verb_of(size_t i)
{
	return verbs[i % COUNT(verbs)];
}

static const char *thing_of(size_t i)
{
	return things[i / COUNT(verbs) % COUNT(things)];
}

static const char *place_of(size_t i)
{
	return places[i / COUNT(verbs) / COUNT(things)];
}

static int write_workflow(const char *dir, size_t i)
{
	static const char *const remarks[] = { "Gives a list of rows.",
					       "Retries when the network is down.",
					       "Takes about a minute for a large input.",
					       "Numbers are rounded to cents.",
					       "Runs every night.",
					       "The result is sorted by date, newest first.",
					       "Asks before it overwrites anything." };
	char path[512], text[1024];

	snprintf(path, sizeof(path), "%s/%s_%s_%s.py", dir, verb_of(i), thing_of(i), place_of(i));
	snprintf(text, sizeof(text),
		 "def run(%s_id: str, limit: int = %zu):\n"
		 "    \"\"\"%s one %s in %s. %s\n\n    %s\n    \"\"\"\n"
		 "    rows = [{'%s': %s_id, 'step': step} for step in range(limit)]\n"
		 "    return sorted(rows, key=lambda row: row['step'])\n",
		 thing_of(i), i % 97, verb_of(i), thing_of(i), place_of(i), remarks[i % COUNT(remarks)], remarks[i / 7 % COUNT(remarks)],
		 place_of(i), thing_of(i));
	return write_file(path, text);
}

static int write_workflows(const char *root)
{
	char *storage = NULL, *dir = NULL;
	int r = -1;

	if (asprintf(&storage, "%s/many", root) < 0 || asprintf(&dir, "%s/workflows", storage) < 0)
		complain("out of memory");
	else
		r = make_folder_at(storage) || make_folder_at(dir) ? -1 : 0;
	for (size_t i = 0; !r && i < WORKFLOWS; i++)
		r = write_workflow(dir, i);
	free(storage);
	free(dir);
	return r;
}

/* Searches for workflow i by its words, which must come first. */
static int search_once(struct cell_space *space, size_t i, double *ret_ns)
{
	struct cell_error err = { 0 };
	char args[256], want[128], *answer = NULL;
	const char *got;
	json_t *hits;
	double began;
	int r = 0;

	snprintf(args, sizeof(args), "{\"query\": \"%s %s %s\", \"limit\": %d}", place_of(i), verb_of(i), thing_of(i), SEARCH_HITS);
	snprintf(want, sizeof(want), "%s_%s_%s", verb_of(i), thing_of(i), place_of(i));
	began = now_ns();
	if (cell_space_call(space, "workflows.search", args, NULL, 0, &answer, NULL, NULL, &err))
		return complain_err("search", &err);
	*ret_ns = now_ns() - began;
	hits = json_loads(answer, 0, NULL);
	got = json_string_value(json_object_get(json_array_get(hits, 0), "name"));
	if (!got || strcmp(got, want) || json_array_size(hits) != SEARCH_HITS)
		r = complain("a search with %s found %s first, of %zu", args, got ? got : "nothing", json_array_size(hits));
	json_decref(hits);
	free(answer);
	return r;
}

/* The opens come first, while there is no index that could spare them the reading. */
static int sample_search(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell__bench_row *open_row = &b->rows[CELL_ROW_SEARCH_OPEN];
	struct place place;
	double ns;
	int r = 0;

	for (int i = 0; i < rounds(b, 40); i++) {
		if (open_place(b, "many", NULL, &place, &ns))
			return -1;
		close_place(&place);
		if (add_sample(&open_row->cell, ns) || sample_floor(b, open_row, 1, cell__floor_fork))
			return -1;
	}
	if (open_place(b, "many", NULL, &place, NULL))
		return -1;
	r = search_once(place.space, 0, &ns) || add_sample(&b->rows[CELL_ROW_SEARCH_FIRST].cell, ns) ? -1 : 0;
	/* A step that has no divisor in common with their number visits workflows of all words. */
	for (int i = -5; !r && i < rounds(b, 200); i++) {
		r = search_once(place.space, (size_t)(i + 5) * 7919 % WORKFLOWS, &ns);
		if (!r && i >= 0)
			r = add_sample(&row->cell, ns);
	}
	close_place(&place);
	return r;
}

int cell__bench_measure_search(struct cell__bench *b, struct cell__bench_row *row)
{
	struct place place;

	/* What the engine does once for all spaces is done with another storage. */
	if (open_common_place(b, NULL, &place))
		return -1;
	close_place(&place);
	return write_workflows(b->folder.path) || sample_search(b, row) ? -1 : 0;
}
