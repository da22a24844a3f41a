/*
 * One process measures.  It talks to what the library starts and reaps (spawner, zygotes, kernels) and to the
 * two floor processes (floor.c), which are started first, while there is one thread.  Workcell and floor take
 * turns within a row, so that a busy second of the machine hits both.
 *
 * Every answer is checked; a wrong one ends the benchmark.
 */
#define _GNU_SOURCE
#include "cli/progress.h"

#include "rows_internal.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POOL_SIZE 8
#define MEMORY_SESSIONS 10
#define STDOUT_LINES 1000000
#define STDOUT_LINE_BYTES 100 /* with the newline */
#define LEFTOVER_DEADLINE_NS 5e9

const struct cell__bench_row_spec cell__bench_row_specs[CELL_ROW_COUNT] = {
#define ROW_SPEC(id, name, unit, peer) { name, unit, peer },
	CELL_BENCH_ROW_TABLE(ROW_SPEC)
#undef ROW_SPEC
};

int cell__bench_complain(const char *format, ...)
{
	va_list args;

	cell__progress_hide();
	fputs("workcell bench: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return -1;
}

int cell__bench_complain_err(const char *what, const struct cell_error *err)
{
	return cell__bench_complain("%s: %s (%s)", what, err->msg, cell_code_word(err->code));
}

double cell__bench_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

int cell__bench_add_sample(struct cell__bench_samples *samples, double value)
{
	if (samples->n == samples->capacity) {
		size_t capacity = samples->capacity ? samples->capacity * 2 : 256;
		double *values = reallocarray(samples->values, capacity, sizeof(*values));

		if (!values)
			return complain("out of memory");
		samples->values = values;
		samples->capacity = capacity;
	}
	samples->values[samples->n++] = value;
	return 0;
}

/* ---- /proc ------------------------------------------------------------------ */

/* Sum, in bytes, of the lines of a /proc file that start with `a` or `b` and count kB.  -1: unreadable. */
static int64_t proc_sum(int64_t pid, const char *file, const char *a, const char *b)
{
	char path[64], line[256];
	int64_t total = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%lld/%s", (long long)pid, file);
	f = fopen(path, "re");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		if (!strncmp(line, a, strlen(a)) || !strncmp(line, b, strlen(b)))
			total += strtoll(strchr(line, ':') + 1, NULL, 10) * 1024;
	fclose(f);
	return total;
}

int64_t cell__bench_private_bytes(int64_t pid)
{
	return proc_sum(pid, "smaps_rollup", "Private_Clean:", "Private_Dirty:");
}

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	if (!dir)
		return 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* When a process started, in ticks since boot: tells it from a later one with its pid.  0: no process. */
static unsigned long long start_ticks(int64_t pid)
{
	char path[64], line[1024] = "";
	unsigned long long ticks = 0;
	const char *p;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
	f = fopen(path, "re");
	if (!f)
		return 0;
	if (fgets(line, sizeof(line), f) && (p = strrchr(line, ')')))
		sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks);
	fclose(f);
	return ticks;
}

/* ---- what every row does ------------------------------------------------------ */

int cell__bench_run_cell(struct cell_session *session, const char *code, const char *want, const struct cell_run_options *opts,
			 double *ret_ns)
{
	struct cell_result *result = NULL;
	const struct cell_outcome *outcome;
	struct cell_error err = { 0 };
	const char *got;
	double began = now_ns();
	int r = cell_session_run(session, code, strlen(code), opts, &result, &err);
	double took = now_ns() - began;

	if (r)
		return complain_err(code, &err);
	outcome = cell_result_error(result);
	got = cell_result_value_json(result);
	if (outcome)
		r = complain("`%s` ended with %s: %s", code, outcome->type[0] ? outcome->type : cell_code_word(outcome->code),
			     outcome->message);
	else if (want ? !got || strcmp(got, want) : cell_result_repr(result) != NULL)
		r = complain("`%s` gave %s, not %s", code, got ? got : "no JSON value", want ? want : "nothing");
	else if (!cell_result_state_kept(result))
		r = complain("`%s` lost the session's state", code);
	cell_result_destroy(result);
	if (!r && ret_ns)
		*ret_ns = took;
	return r;
}

static int open_session(struct cell__bench *b, struct cell_engine *engine, const char *preload, struct cell_session **ret_session)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };

	opts.python = b->python;
	opts.preload = preload;
	if (cell_session_open(engine, &opts, ret_session, &err))
		return complain_err("open a session", &err);
	return 0;
}

/* From the wish for a session to the answer of its first cell. */
static int open_to_result(struct cell__bench *b, struct cell_engine *engine, struct cell_session **ret_session, double *ret_ns)
{
	struct cell_session *session = NULL;
	double began = now_ns();

	if (open_session(b, engine, NULL, &session) || run_cell(session, "1+1", "2", NULL, NULL)) {
		cell_session_close(session);
		return -1;
	}
	*ret_ns = now_ns() - began;
	*ret_session = session;
	return 0;
}

int cell__bench_sample_floor(struct cell__bench *b, struct cell__bench_row *row, int count,
			     int (*measure)(struct cell__floor *, double *, struct cell_error *))
{
	struct cell_error err = { 0 };
	double ns;

	for (int i = 0; i < count; i++) {
		if (measure(&b->floor, &ns, &err))
			return complain_err("measure the floor", &err);
		if (add_sample(&row->floor, ns))
			return -1;
	}
	return 0;
}

void cell__bench_pause(void)
{
	struct timespec pause = { .tv_nsec = PAUSE_MS * 1000000L };

	nanosleep(&pause, NULL);
}

static int sample_paused_floor(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_error err = { 0 };
	double ns;

	cell__bench_pause();
	if (cell__floor_ping(&b->floor, &ns, &err))
		return complain_err("measure the floor", &err);
	return row ? add_sample(&row->floor, ns) : 0;
}

int cell__bench_sample_paused(struct cell__bench *b, struct cell__bench_row *row,
			      int (*sample)(struct cell__bench *b, void *arg, struct cell__bench_row *row), void *arg)
{
	int r = 0;

	for (int done = 0; !r && done < rounds(b, 40); done += PAUSED_BLOCK) {
		/* What slept through the other's block is colder than between two cells: it warms up, and does not count. */
		for (int i = done ? -1 : -3; !r && i < PAUSED_BLOCK; i++)
			r = sample(b, arg, i < 0 ? NULL : row);
		for (int i = -1; !r && i < PAUSED_BLOCK; i++)
			r = sample_paused_floor(b, i < 0 ? NULL : row);
	}
	return r;
}

static int create_engine(int pool_size, struct cell_engine **ret_engine)
{
	struct cell_engine_options opts = CELL_ENGINE_OPTIONS_INIT;
	struct cell_error err = { 0 };

	opts.pool_size = pool_size;
	if (cell_engine_create(&opts, ret_engine, &err))
		return complain_err("create an engine", &err);
	return 0;
}

static int prewarm(struct cell__bench *b, struct cell_engine *engine, const char *preload, struct cell_env_info *ret_info)
{
	struct cell_error err = { 0 };

	if (ret_info)
		ret_info->size = sizeof(*ret_info);
	if (cell_engine_prewarm(engine, b->python, preload, ret_info, &err))
		return complain_err("start the zygote", &err);
	return 0;
}

/* ---- rows ---------------------------------------------------------------------- */

static int measure_open(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session;
	double ns;

	for (int round = -1; round < rounds(b, 40); round++) { /* the first warms up and does not count */
		for (int i = 0; i < 5; i++) {
			if (open_to_result(b, b->engine, &session, &ns))
				return -1;
			cell_session_close(session);
			if (round >= 0 && add_sample(&row->cell, ns))
				return -1;
		}
		if (round >= 0 && sample_floor(b, row, 5, cell__floor_fork))
			return -1;
	}
	return 0;
}

/* One open per full pool: what a host sees whose sessions do not all come at the same instant. */
static int measure_open_pool(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_engine *engine = NULL;
	struct cell_session *session;
	double ns;
	int r = -1;

	if (create_engine(POOL_SIZE, &engine))
		return -1;
	for (int round = -5; round < rounds(b, 200); round++) {
		if (prewarm(b, engine, NULL, NULL) || open_to_result(b, engine, &session, &ns))
			goto out;
		cell_session_close(session);
		if (round >= 0 && (add_sample(&row->cell, ns) || sample_floor(b, row, 20, cell__floor_ping)))
			goto out;
	}
	r = 0;
out:
	cell_engine_destroy(engine);
	return r;
}

struct first_chunk {
	double at_ns;
};

static void handle_first_chunk(void *arg, const struct cell_event *event)
{
	struct first_chunk *first = arg;

	if (event->type == CELL_EVENT_CHUNK && !first->at_ns)
		first->at_ns = now_ns();
}

/* Of a cell that goes on after it has printed: what rides on the result would not be streaming.  row NULL: it does not count. */
static int sample_first_chunk(struct cell_session *session, struct cell__bench_row *row)
{
	struct first_chunk first = { 0 };
	struct cell_run_options opts = CELL_RUN_OPTIONS_INIT;
	double began, took;

	opts.on_event = handle_first_chunk;
	opts.event_arg = &first;
	began = now_ns();
	if (run_cell(session, "print('x', flush=True)\ntime.sleep(0.005)", NULL, &opts, &took))
		return -1;
	if (!first.at_ns)
		return complain("a cell that prints sent no output");
	return row ? add_sample(&row->cell, first.at_ns - began) : 0;
}

static int measure_first_chunk(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	int r = open_session(b, b->engine, NULL, &session);

	if (!r)
		r = run_cell(session, "import time", NULL, NULL, NULL);
	for (int i = -5; !r && i < rounds(b, 200); i++) {
		r = sample_first_chunk(session, i >= 0 ? row : NULL);
		if (!r && i >= 0)
			r = sample_floor(b, row, 1, cell__floor_ping);
	}
	cell_session_close(session);
	return r;
}

static int sample_paused_cell(struct cell__bench *b, void *session, struct cell__bench_row *row)
{
	double ns;

	(void)b;
	cell__bench_pause();
	return run_cell(session, "1+1", "2", NULL, &ns) || (row && add_sample(&row->cell, ns)) ? -1 : 0;
}

static int measure_paused_cell(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	int r = open_session(b, b->engine, NULL, &session);

	if (!r)
		r = cell__bench_sample_paused(b, row, sample_paused_cell, session);
	cell_session_close(session);
	return r;
}

static int sample_paused_chunk(struct cell__bench *b, void *session, struct cell__bench_row *row)
{
	(void)b;
	cell__bench_pause();
	return sample_first_chunk(session, row);
}

static int measure_paused_chunk(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	int r = open_session(b, b->engine, NULL, &session);

	if (!r)
		r = run_cell(session, "import time", NULL, NULL, NULL);
	if (!r)
		r = cell__bench_sample_paused(b, row, sample_paused_chunk, session);
	cell_session_close(session);
	return r;
}

static int sample_cells(struct cell__bench *b, struct cell_session *session, int n_rounds, struct cell__bench_row *row)
{
	double ns;

	for (int round = -1; round < n_rounds; round++) {
		for (int i = 0; i < 100; i++)
			if (run_cell(session, "1+1", "2", NULL, &ns) || (round >= 0 && add_sample(&row->cell, ns)))
				return -1;
		if (round >= 0 && sample_floor(b, row, 100, cell__floor_ping))
			return -1;
	}
	return 0;
}

/* All threads of this process to one set of CPUs, the processes that answer it to another. */
static int place(struct cell__bench *b, struct cell_session *session, const cpu_set_t *here, const cpu_set_t *there)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int failed = !dir;

	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			failed |= sched_setaffinity(atoi(entry->d_name), sizeof(*here), here) != 0;
	if (dir)
		closedir(dir);
	failed |= sched_setaffinity((pid_t)cell_session_kernel_pid(session), sizeof(*there), there) != 0;
	failed |= sched_setaffinity(b->floor.echo_pid, sizeof(*there), there) != 0;
	return failed ? -1 : 0;
}

int cell__bench_sample_placed(struct cell__bench *b, struct cell_session *session, cell__bench_sample_fn sample,
			      struct cell__bench_row *one_cpu, struct cell__bench_row *two_cpus)
{
	cpu_set_t all, cpus[2];
	int r = 0, found = 0;

	if (sched_getaffinity(0, sizeof(all), &all))
		return 0;
	for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++) {
		if (!CPU_ISSET(cpu, &all))
			continue;
		CPU_ZERO(&cpus[found]);
		CPU_SET(cpu, &cpus[found++]);
	}
	if (!place(b, session, &cpus[0], &cpus[0]))
		r = sample(b, session, rounds(b, 20), one_cpu);
	if (!r && found == 2 && !place(b, session, &cpus[0], &cpus[1]))
		r = sample(b, session, rounds(b, 20), two_cpus);
	place(b, session, &all, &all);
	return r;
}

static int measure_cell(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	int r = open_session(b, b->engine, NULL, &session);

	if (!r)
		r = run_cell(session, "kept = 41", NULL, NULL, NULL) || sample_cells(b, session, rounds(b, 40), row) ||
				    cell__bench_sample_placed(b, session, sample_cells, &b->rows[CELL_ROW_CELL_ONE_CPU],
							      &b->rows[CELL_ROW_CELL_TWO_CPUS]) ||
				    run_cell(session, "kept + 1", "42", NULL, NULL)
			    ? -1
			    : 0;
	cell_session_close(session);
	return r;
}

static int measure_reset(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	int r = -1;

	if (open_session(b, b->engine, NULL, &session))
		return -1;
	for (int round = -1; round < rounds(b, 40); round++) {
		for (int i = 0; i < 5; i++) {
			double began, ns;

			if (run_cell(session, "kept = 1", NULL, NULL, NULL))
				goto out;
			began = now_ns();
			if (cell_session_reset(session, &err)) {
				complain_err("reset", &err);
				goto out;
			}
			if (run_cell(session, "1+1", "2", NULL, NULL))
				goto out;
			ns = now_ns() - began;
			if (run_cell(session, "'kept' in globals()", "false", NULL, NULL) || (round >= 0 && add_sample(&row->cell, ns)))
				goto out;
		}
		if (round >= 0 && sample_floor(b, row, 5, cell__floor_fork))
			goto out;
	}
	r = 0;
out:
	cell_session_close(session);
	return r;
}

static int has_numpy_and_pandas(struct cell__bench *b, bool *ret_has)
{
	static const char code[] = "import importlib.util\n"
				   "all(importlib.util.find_spec(m) for m in ('numpy', 'pandas'))";
	struct cell_session *session = NULL;
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };
	const char *value;
	int r = open_session(b, b->engine, NULL, &session);

	if (!r && cell_session_run(session, code, strlen(code), NULL, &result, &err))
		r = complain_err("look for numpy and pandas", &err);
	value = r ? NULL : cell_result_value_json(result);
	if (!r && !value)
		r = complain("looking for numpy and pandas gave no answer");
	if (!r)
		*ret_has = !strcmp(value, "true");
	if (result)
		cell_result_destroy(result);
	cell_session_close(session);
	return r;
}

static int measure_memory(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *sessions[MEMORY_SESSIONS + 1] = { NULL };
	int64_t before = 0, after;
	bool has;
	int r = -1;

	if (has_numpy_and_pandas(b, &has))
		return -1;
	if (!has) {
		row->skipped = "this interpreter lacks numpy or pandas";
		return 0;
	}
	if (prewarm(b, b->engine, "numpy,pandas", NULL))
		return -1;
	/* Session 0 is there first and not counted: the question is what one *more* costs. */
	for (int i = 0; i <= MEMORY_SESSIONS; i++) {
		if (open_session(b, b->engine, "numpy,pandas", &sessions[i]) || run_cell(sessions[i], "x = 1", NULL, NULL, NULL))
			goto out;
		if (i == 0)
			before = cell__bench_private_bytes(getpid());
	}
	after = cell__bench_private_bytes(getpid());
	b->host_bytes_per_session = (double)(after - before) / MEMORY_SESSIONS;
	for (int i = 1; i <= MEMORY_SESSIONS; i++) {
		int64_t bytes = cell__bench_private_bytes(cell_session_kernel_pid(sessions[i]));

		if (bytes <= 0) {
			complain("cannot read smaps_rollup of a kernel: %s", strerror(errno));
			goto out;
		}
		if (add_sample(&row->cell, (double)bytes))
			goto out;
	}
	r = 0;
out:
	for (int i = 0; i <= MEMORY_SESSIONS; i++)
		cell_session_close(sessions[i]);
	return r;
}

static void handle_stdout(void *arg, const struct cell_event *event)
{
	uint64_t *bytes = arg;

	if (event->type == CELL_EVENT_CHUNK && event->stream == CELL_STDOUT)
		*bytes += event->size;
}

static int measure_stdout_once(struct cell_session *session, struct cell__bench_row *row)
{
	const uint64_t want = (uint64_t)STDOUT_LINES * STDOUT_LINE_BYTES;
	struct cell_run_options opts = CELL_RUN_OPTIONS_INIT;
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };
	struct cell_text text;
	uint64_t bytes = 0;
	char code[128];
	double began, took;

	snprintf(code, sizeof(code), "line = 'x' * %d\nfor i in range(%d): print(line)", STDOUT_LINE_BYTES - 1, STDOUT_LINES);
	opts.on_event = handle_stdout;
	opts.event_arg = &bytes;
	began = now_ns();
	if (cell_session_run(session, code, strlen(code), &opts, &result, &err))
		return complain_err("print 100 MB", &err);
	took = now_ns() - began;
	cell_result_stdout(result, &text);
	if (cell_result_error(result)) {
		cell_result_destroy(result);
		return complain("the cell that prints 100 MB failed");
	}
	cell_result_destroy(result);
	if (bytes != want || text.total != want)
		return complain("%llu bytes were printed; %llu came as chunks, the result counts %llu", (unsigned long long)want,
				(unsigned long long)bytes, (unsigned long long)text.total);
	return add_sample(&row->cell, (double)bytes / (took / 1e9));
}

static int measure_stdout(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *session = NULL;
	int r = open_session(b, b->engine, NULL, &session);

	for (int i = 0; !r && i < (b->quick ? 2 : 7); i++)
		r = measure_stdout_once(session, row);
	cell_session_close(session);
	return r;
}

struct kernel_mark {
	int64_t pid;
	unsigned long long ticks;
};

static int count_alive(const struct kernel_mark *marks, int n)
{
	int alive = 0;

	for (int i = 0; i < n; i++)
		alive += start_ticks(marks[i].pid) == marks[i].ticks;
	return alive;
}

static int use_many(struct cell__bench *b, struct cell_session **sessions, struct kernel_mark *marks, struct cell__bench_row *row)
{
	char code[64], want[32];
	double ns;

	for (int i = 0; i < b->sessions; i++) {
		if (open_to_result(b, b->engine, &sessions[i], &ns) || add_sample(&row->cell, ns)) {
			complain("session %d of %d did not come up", i + 1, b->sessions);
			return -1;
		}
		marks[i].pid = cell_session_kernel_pid(sessions[i]);
		marks[i].ticks = start_ticks(marks[i].pid);
		if (marks[i].pid <= 0 || !marks[i].ticks)
			return complain("session %d has no kernel", i + 1);
		snprintf(code, sizeof(code), "mine = %d", i);
		/* A floor that grew as well tells a machine that got busy from sessions that got slow. */
		if (run_cell(sessions[i], code, NULL, NULL, NULL) || sample_floor(b, row, 1, cell__floor_fork))
			return -1;
	}
	/* All are open now: each must still be itself. */
	for (int i = 0; i < b->sessions; i++) {
		snprintf(want, sizeof(want), "%d", i + 1);
		if (run_cell(sessions[i], "mine + 1", want, NULL, NULL))
			return -1;
		b->many.answered++;
	}
	return 0;
}

static int many_round(struct cell__bench *b, struct cell_session **sessions, struct kernel_mark *marks, struct cell__bench_row *row)
{
	int fds = count_fds(), left_processes, left_fds, r;
	double began, deadline;

	memset(sessions, 0, (size_t)b->sessions * sizeof(struct cell_session *));
	r = use_many(b, sessions, marks, row);
	began = now_ns();
	for (int i = 0; i < b->sessions; i++)
		cell_session_close(sessions[i]);
	b->many.close_all_ns += now_ns() - began;
	if (r)
		return r;

	/* Closing a descriptor may take the engine's thread one more turn. */
	deadline = now_ns() + LEFTOVER_DEADLINE_NS;
	do {
		left_processes = count_alive(marks, b->sessions);
		left_fds = count_fds() - fds;
		if (left_processes <= 0 && left_fds <= 0)
			break;
		sched_yield();
	} while (now_ns() < deadline);
	b->many.left_processes += left_processes;
	b->many.left_fds += left_fds > 0 ? left_fds : 0;
	b->many.rounds++;
	return 0;
}

/* Several rounds, because whether opening gets slower is read off a few seconds that others may disturb. */
static int measure_sessions(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session **sessions = calloc((size_t)b->sessions, sizeof(struct cell_session *));
	struct kernel_mark *marks = calloc((size_t)b->sessions, sizeof(*marks));
	struct cell_session *session = NULL;
	double ns;
	int r;

	if (!sessions || !marks)
		r = complain("out of memory");
	else /* What the engine opens once and keeps is there after one session has come and gone. */
		r = open_to_result(b, b->engine, &session, &ns);
	cell_session_close(session);
	for (int i = 0; !r && i < (b->quick ? 1 : 3); i++)
		r = many_round(b, sessions, marks, row);
	free(sessions);
	free(marks);
	return r;
}

/* ---- the run as a whole ----------------------------------------------------------- */

static int start_engine(struct cell__bench *b)
{
	struct cell_error err = { 0 };
	int64_t anon, file;

	if (create_engine(0, &b->engine) || prewarm(b, b->engine, NULL, &b->env))
		return -1;
	anon = proc_sum(b->env.zygote_pid, "status", "RssAnon:", "RssAnon:");
	file = proc_sum(b->env.zygote_pid, "status", "RssFile:", "RssShmem:");
	if (anon <= 0 || file < 0)
		return complain("cannot read how large the zygote (pid %lld) is", (long long)b->env.zygote_pid);
	b->zygote_anon_bytes = (size_t)anon;
	b->zygote_file_bytes = (size_t)file;
	if (cell__floor_inflate(&b->floor, b->zygote_anon_bytes, b->zygote_file_bytes, &err))
		return complain_err("measure the floor", &err);
	return 0;
}

static int measure_all(struct cell__bench *b)
{
	static const struct {
		enum cell__bench_row_id id;
		int (*measure)(struct cell__bench *b, struct cell__bench_row *row);
		const char *says;
	} steps[] = {
		{ CELL_ROW_PAUSED_CELL, measure_paused_cell, "cells with pauses" },
		{ CELL_ROW_PAUSED_CHUNK, measure_paused_chunk, "first chunks with pauses" },
		{ CELL_ROW_PAUSED_CALL, cell__bench_measure_paused_call, "calls of a host function with pauses" },
		{ CELL_ROW_PAUSED_APPROVAL, cell__bench_measure_paused_approval, "approved calls with pauses" },
		{ CELL_ROW_CELL, measure_cell, "cells" },
		{ CELL_ROW_OPEN, measure_open, "opening sessions" },
		{ CELL_ROW_OPEN_POOL, measure_open_pool, "opening sessions from the pool" },
		{ CELL_ROW_RESET, measure_reset, "resets" },
		{ CELL_ROW_STDOUT, measure_stdout, "stdout" },
		{ CELL_ROW_FIRST_CHUNK, measure_first_chunk, "first chunks" },
		{ CELL_ROW_FORK, cell__bench_measure_fork, "forks of a live session" },
		{ CELL_ROW_FORK_LAYER, cell__bench_measure_fork_layer, "forks of a sandbox with a layer" },
		{ CELL_ROW_FORK_MANY, cell__bench_measure_fork_many, "a hundred forks at once" },
		{ CELL_ROW_REWIND, cell__bench_measure_rewind, "rewinding to a point" },
		{ CELL_ROW_UNDO, cell__bench_measure_undo, "cells with undo" },
		{ CELL_ROW_MEMORY, measure_memory, "memory of one more session" },
		{ CELL_ROW_SESSIONS, measure_sessions, "many sessions at once" },
		{ CELL_ROW_TOOL_CALL, cell__bench_measure_tool_call, "calls of a host function" },
		{ CELL_ROW_APPROVAL, cell__bench_measure_approval, "calls that are approved" },
		{ CELL_ROW_TOOL_GATHER, cell__bench_measure_tool_gather, "1,000 calls at once" },
		{ CELL_ROW_TOOL_CLI, cell__bench_measure_tool_cli, "calls of a command-line tool" },
		{ CELL_ROW_ARTIFACT, cell__bench_measure_artifact, "artifacts" },
		{ CELL_ROW_SEARCH, cell__bench_measure_search, "search among 10,000 workflows" },
		{ CELL_ROW_MCP, cell__bench_measure_mcp, "calls of an MCP server's tool" },
		{ CELL_ROW_GEN, cell__bench_measure_gen, "modules for 100 MCP tools" },
		{ CELL_ROW_SANDBOX_OPEN, cell__bench_measure_sandbox_open, "opening sandboxes" },
		{ CELL_ROW_SANDBOX_POOL, cell__bench_measure_sandbox_pool, "opening sandboxes from the pool" },
		{ CELL_ROW_SANDBOX_CELL, cell__bench_measure_sandbox_cell, "cells in a sandbox" },
		{ CELL_ROW_SANDBOX_CALL, cell__bench_measure_sandbox_call, "calls of a host function from a sandbox" },
		{ CELL_ROW_SANDBOX_TOOL, cell__bench_measure_sandbox_tool, "calls of a command-line tool from a sandbox" },
		{ CELL_ROW_SANDBOX_RESET, cell__bench_measure_sandbox_reset, "resets of a sandbox" },
		{ CELL_ROW_SANDBOX_BWRAP, cell__bench_measure_sandbox_bwrap, "sandboxes and bubblewrap" },
		{ CELL_ROW_SANDBOX_BWRAP_BARE, cell__bench_measure_sandbox_bwrap_bare, "sandboxes without a pool and bubblewrap" },
		{ CELL_ROW_SANDBOX_SCRIPT, cell__bench_measure_sandbox_script, "programs in fresh processes and bubblewrap" },
		{ CELL_ROW_SANDBOX_DOCKER, cell__bench_measure_sandbox_docker, "sandboxes and docker run" },
		{ CELL_ROW_SANDBOX_DOCKER_BARE, cell__bench_measure_sandbox_docker_bare, "sandboxes without a pool and docker run" },
		{ CELL_ROW_CONTAINER_OPEN, cell__bench_measure_container_open, "sessions in a container and docker run" },
		{ CELL_ROW_SANDBOX_MEMORY, cell__bench_measure_sandbox_memory, "memory of a sandbox" },
		{ CELL_ROW_SANDBOX_MANY, cell__bench_measure_sandbox_many, "many sandboxes at once" },
		{ CELL_ROW_SANDBOX_STARVED, cell__bench_measure_sandbox_starved, "cells beside sandboxes that do their worst" },
		{ CELL_ROW_LAYER_OPEN, cell__bench_measure_layer_open, "layers over 10,000 files" },
		{ CELL_ROW_DENO_OPEN, cell__bench_measure_deno_open, "opening sessions in Deno" },
		{ CELL_ROW_DENO_CELL, cell__bench_measure_deno_cell, "cells in Deno" },
		{ CELL_ROW_DENO_TOOL_CALL, cell__bench_measure_deno_tool_call, "calls of a host function from Deno" },
		{ CELL_ROW_DENO_RESET, cell__bench_measure_deno_reset, "resets in Deno" },
		{ CELL_ROW_DENO_MEMORY, cell__bench_measure_deno_memory, "memory of a session in Deno" },
		{ CELL_ROW_JUPYTER_OPEN, cell__bench_measure_jupyter_open, "opening ipykernel" },
		{ CELL_ROW_JUPYTER_CELL, cell__bench_measure_jupyter_cell, "cells in ipykernel" },
		{ CELL_ROW_JUPYTER_CALL, cell__bench_measure_jupyter_call, "calls from ipykernel" },
		{ CELL_ROW_JUPYTER_RESET, cell__bench_measure_jupyter_reset, "resets of ipykernel" },
		{ CELL_ROW_JUPYTER_MEMORY, cell__bench_measure_jupyter_memory, "memory of ipykernel" },
		/* Last: they bring Python into this process. */
		{ CELL_ROW_INPROCESS_OPEN, cell__bench_measure_inprocess_open, "opening sessions in this process" },
		{ CELL_ROW_INPROCESS_CELL, cell__bench_measure_inprocess_cell, "cells in this process" },
		{ CELL_ROW_INPROCESS_TOOL, cell__bench_measure_inprocess_tool, "calls of a host function in this process" },
		{ CELL_ROW_INPROCESS_RESET, cell__bench_measure_inprocess_reset, "resets in this process" },
		{ CELL_ROW_INPROCESS_MEMORY, cell__bench_measure_inprocess_memory, "memory of a session in this process" },
	};
	struct cell_error err = { 0 };

	getloadavg(&b->load, 1);
	if (cell__floor_start(&b->floor, &err))
		return complain_err("start the floor processes", &err);
	/* After the floor, whose processes would hold the keeper's pipe open; before the engine's thread. */
	if (cell__bench_make_folder(&b->folder) || start_engine(b))
		return -1;
	b->steps += b->only < 0 ? sizeof(steps) / sizeof(steps[0]) : 1;
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (b->only >= 0 && b->only != (int)steps[i].id)
			continue;
		cell__bench_step(b, steps[i].says);
		if (steps[i].measure(b, &b->rows[steps[i].id]))
			return complain("row %s failed: no report", cell__bench_row_specs[steps[i].id].name);
	}
	return 0;
}

void cell__bench_step(struct cell__bench *bench, const char *what)
{
	cell__progress_step(what, bench->step++, bench->steps, "rows");
}

int cell__bench_measure(struct cell__bench *bench)
{
	int r = measure_all(bench);

	cell_engine_destroy(bench->engine);
	bench->engine = NULL;
	/* Before the floor: its keeper has copies of the floor's sockets. */
	if (cell__bench_remove_folder(&bench->folder))
		r = -1;
	cell__floor_stop(&bench->floor);
	if (!r && start_ticks(bench->env.zygote_pid))
		r = complain("the zygote (pid %lld) outlived its engine", (long long)bench->env.zygote_pid);
	return r;
}

void cell__bench_finish(struct cell__bench *bench)
{
	for (int i = 0; i < CELL_ROW_COUNT; i++) {
		free(bench->rows[i].cell.values);
		free(bench->rows[i].floor.values);
	}
}

/* ---- handing over ---------------------------------------------------------------- */

static void write_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fprintf(f, "\\%c", *s);
		else if ((unsigned char)*s < 0x20)
			fprintf(f, "\\u%04x", (unsigned char)*s);
		else
			fputc(*s, f);
	}
	fputc('"', f);
}

/* Whole numbers only: they look the same in every locale. */
static void write_samples(FILE *f, const char *key, const struct cell__bench_samples *samples)
{
	fprintf(f, ", \"%s\": [", key);
	for (size_t i = 0; i < samples->n; i++)
		fprintf(f, "%s%.0f", i ? ", " : "", samples->values[i]);
	fputc(']', f);
}

void cell__bench_write(const struct cell__bench *b, FILE *f)
{
	fputs("{\"version\": ", f);
	write_string(f, cell_version());
	fputs(", \"python\": ", f);
	write_string(f, b->python);
	fputs(", \"python_version\": ", f);
	write_string(f, b->env.version);
	fputs(", \"ipython\": ", f);
	write_string(f, b->env.ipython);
	fprintf(f,
		", \"zygote_start_ms\": %.0f, \"zygote_anon_bytes\": %zu, \"zygote_file_bytes\": %zu"
		", \"host_bytes_per_session\": %.0f, \"quick\": %s",
		b->env.start_ms, b->zygote_anon_bytes, b->zygote_file_bytes, b->host_bytes_per_session, b->quick ? "true" : "false");
	fprintf(f,
		", \"load_percent\": %.0f, \"sessions\": {\"asked\": %d, \"rounds\": %d, \"answered\": %d"
		", \"left_processes\": %d, \"left_fds\": %d, \"close_all_ns\": %.0f}, \"rows\": {",
		b->load * 100, b->sessions, b->many.rounds, b->many.answered, b->many.left_processes, b->many.left_fds,
		b->many.close_all_ns);
	for (int i = 0; i < CELL_ROW_COUNT; i++) {
		const struct cell__bench_row_spec *spec = &cell__bench_row_specs[i];
		const struct cell__bench_row *row = &b->rows[i];

		fprintf(f, "%s\"%s\": {\"unit\": \"%s\"", i ? ", " : "", spec->name, spec->unit);
		write_samples(f, "values", &row->cell);
		write_samples(f, "floor", &row->floor);
		if (row->skipped) {
			fputs(", \"skipped\": ", f);
			write_string(f, row->skipped);
		}
		fputc('}', f);
	}
	fputs("}}\n", f);
}
