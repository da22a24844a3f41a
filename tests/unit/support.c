#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <uv.h>

#include "spawn/proc.h"

#define MAX_FDS 4096
#define HANG_S 60
#define SETTLE_MS 5000

static char *fds_before[MAX_FDS]; /* what each descriptor led to */

/* ---- descriptors ---- */

static void list_fds(char *out[MAX_FDS])
{
	memset(out, 0, MAX_FDS * sizeof *out);
	DIR *dir = opendir("/proc/self/fd");
	if (!dir)
		abort();
	struct dirent *entry;
	while ((entry = readdir(dir))) {
		char target[PATH_MAX];
		int fd = atoi(entry->d_name);
		if (entry->d_name[0] == '.' || fd == dirfd(dir) || fd >= MAX_FDS)
			continue;
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof target - 1);
		target[n > 0 ? n : 0] = '\0';
		out[fd] = strdup(target);
	}
	closedir(dir);
}

static void free_fds(char *fds[MAX_FDS])
{
	for (int i = 0; i < MAX_FDS; i++) {
		free(fds[i]);
		fds[i] = NULL;
	}
}

size_t support_count_fds(void)
{
	static char *fds[MAX_FDS];
	size_t count = 0;
	list_fds(fds);
	for (int i = 0; i < MAX_FDS; i++)
		count += fds[i] != NULL;
	free_fds(fds);
	return count;
}

/* Descriptors that were not open before, or lead somewhere else now. */
static int new_fds(bool tell)
{
	static char *now[MAX_FDS];
	int count = 0;
	list_fds(now);
	for (int i = 0; i < MAX_FDS; i++) {
		if (!now[i] || (fds_before[i] && strcmp(now[i], fds_before[i]) == 0))
			continue;
		count++;
		if (tell)
			fprintf(stderr, "left open: fd %d -> %s\n", i, now[i]);
	}
	free_fds(now);
	return count;
}

static bool no_new_fds(void *unused)
{
	(void)unused;
	return new_fds(false) == 0;
}

/* ---- processes ---- */

static pid_t kept_pid;

void support_keep_pid(pid_t pid)
{
	kept_pid = pid;
}

static bool reap_all(void *unused)
{
	(void)unused;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
	return kept_pid ? support_count_children() == 1 : waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD;
}

static void tell_and_kill(pid_t pid, void *unused)
{
	(void)unused;
	if (pid == kept_pid)
		return;
	char path[64];
	CELL_AUTO_BUF struct cell__buf line = CELL_BUF_INIT;
	snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
	support_read_file(path, &line);
	for (size_t i = 0; i < line.size; i++)
		if (line.data[i] == '\0')
			line.data[i] = ' ';
	fprintf(stderr, "left running: pid %d: %s\n", pid, line.data ? line.data : "?");
	cell__proc_kill_tree(pid);
}

static void count_one(pid_t pid, void *arg)
{
	(void)pid;
	++*(size_t *)arg;
}

size_t support_count_children(void)
{
	size_t count = 0;
	cell__proc_children(getpid(), count_one, &count);
	return count;
}

bool support_pid_gone(void *arg)
{
	pid_t pid = *(pid_t *)arg;
	waitpid(pid, NULL, WNOHANG);
	return kill(pid, 0) < 0 && errno == ESRCH;
}

/* ---- before and after a test ---- */

void support_init(int argc, char **argv)
{
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	/* libuv keeps a pair of descriptors for the life of the process, from the first loop on. */
	uv_loop_t loop;
	if (uv_loop_init(&loop) < 0)
		abort();
	uv_loop_close(&loop);
}

int support_begin(void **state)
{
	(void)state;
	list_fds(fds_before);
	alarm(HANG_S); /* a test that hangs dies of a signal, and the last line of the log is its name */
	return 0;
}

/*
 * To compare a report with tests/tsan.supp, TSan starts its symbolizer: a child of this process with two pipes, which stays. What the
 * library leaves behind is looked for in the other builds.
 */
#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN true
#elif defined(__has_feature)
#define UNDER_TSAN __has_feature(thread_sanitizer)
#else
#define UNDER_TSAN false
#endif

int support_end(void **state)
{
	(void)state;
	int failures = 0;
	alarm(0);
	cell__alloc_fail_after(0);
	if (UNDER_TSAN) {
		(void)reap_all(NULL);
		free_fds(fds_before);
		return 0;
	}
	if (!support_wait_ms(reap_all, NULL, SETTLE_MS)) {
		cell__proc_children(getpid(), tell_and_kill, NULL);
		support_wait_ms(reap_all, NULL, SETTLE_MS);
		failures++;
	}
	if (!support_wait_ms(no_new_fds, NULL, SETTLE_MS)) {
		new_fds(true);
		failures++;
	}
	free_fds(fds_before);
	return failures ? -1 : 0;
}

bool support_wait(bool (*condition)(void *arg), void *arg)
{
	return support_wait_ms(condition, arg, DEADLINE_MS);
}

bool support_wait_ms(bool (*condition)(void *arg), void *arg, int ms)
{
	int64_t until = cell__now_us() + ms * INT64_C(1000);
	struct timespec pause = { .tv_nsec = 1000000 };
	while (!condition(arg)) {
		if (cell__now_us() > until)
			return false;
		nanosleep(&pause, NULL);
	}
	return true;
}

bool support_read_file(const char *path, struct cell__buf *buf)
{
	CELL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	for (;;) {
		if (cell__buf_reserve(buf, 65536) < 0)
			return false;
		ssize_t n = read(fd, buf->data + buf->size, 65536);
		if (n <= 0) {
			buf->data[buf->size] = '\0';
			return n == 0;
		}
		buf->size += (size_t)n;
	}
}

long support_private_kb(void)
{
	malloc_trim(0); /* what has been freed is not counted, in whichever arena it lies */
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (!support_read_file("/proc/self/smaps_rollup", &text))
		abort();
	long total = 0, kb;
	for (char *line = text.data; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL)
		if (sscanf(line, "Private_Clean: %ld", &kb) == 1 || sscanf(line, "Private_Dirty: %ld", &kb) == 1)
			total += kb;
	return total;
}

/* ---- the library ---- */

struct cell_engine *support_engine(int pool_size)
{
	struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
	struct cell_engine *engine = NULL;
	struct cell_error err = { 0 };
	options.lib_dir = TEST_LIB_DIR;
	options.pool_size = pool_size;
	if (cell_engine_create(&options, &engine, &err) < 0)
		fail_msg("cell_engine_create: %s: %s", cell_code_word(err.code), err.msg);
	return engine;
}

struct cell_session *support_session_with(struct cell_engine *engine, const struct cell_session_options *opts)
{
	struct cell_session_options options = *opts;
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	if (!options.python)
		options.python = TEST_PYTHON;
	if (cell_session_open(engine, &options, &session, &err) < 0)
		fail_msg("cell_session_open: %s: %s", cell_code_word(err.code), err.msg);
	return session;
}

struct cell_session *support_session(struct cell_engine *engine)
{
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	return support_session_with(engine, &options);
}

struct cell_result *support_run(struct cell_session *session, const char *code)
{
	struct cell_result *result = NULL;
	struct cell_error err = { 0 };
	if (cell_session_run(session, code, strlen(code), NULL, &result, &err) < 0)
		fail_msg("cell_session_run(%.60s): %s: %s", code, cell_code_word(err.code), err.msg);
	return result;
}

int support_outcome(const struct cell_result *result)
{
	const struct cell_outcome *outcome = cell_result_error(result);
	return outcome ? outcome->code : 0;
}

void support_expect(struct cell_session *session, const char *code, const char *repr)
{
	struct cell_result *result = support_run(session, code);
	const struct cell_outcome *outcome = cell_result_error(result);
	if (outcome)
		fail_msg("%.60s: %s: %s", code, cell_code_word(outcome->code), outcome->message);
	if (repr)
		assert_string_equal(cell_result_repr(result) ? cell_result_repr(result) : "(no value)", repr);
	else
		assert_null(cell_result_repr(result));
	assert_int_equal(cell_result_state_kept(result), 1);
	cell_result_destroy(result);
}
