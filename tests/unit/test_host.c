/*
 * The library inside a host that has its own signal handlers, children and descriptors: it works there, and the host
 * does not notice it.
 */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "spawn/proc.h"

/* Opens an engine, uses everything that starts and ends processes, closes it. */
static void use_engine(void)
{
	struct cell_engine *engine = support_engine(1);
	struct cell_session *session = support_session(engine);
	support_expect(session, "import subprocess; subprocess.run('exit 3', shell=True).returncode", "3");
	assert_int_equal(cell_session_reset(session, NULL), 0);
	struct cell_result *result = support_run(session, "import os; os._exit(9)");
	assert_int_equal(support_outcome(result), CELL_OUT_KERNEL_DIED);
	assert_non_null(strstr(cell_result_error(result)->message, "status 9")); /* our own children are still told apart */
	cell_result_destroy(result);
	support_expect(session, "1", "1");
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* ---- children ---- */

static pid_t start_child(int status)
{
	pid_t pid = fork();
	if (pid == 0)
		_exit(status);
	return pid;
}

/* A host that waits for its children by their numbers gets every one of them. */
static void test_own_children(void **state)
{
	(void)state;
	pid_t pids[20];
	for (int i = 0; i < 10; i++)
		pids[i] = start_child(i);
	use_engine();
	for (int i = 10; i < 20; i++)
		pids[i] = start_child(i);
	use_engine();
	for (int i = 0; i < 20; i++) {
		int status;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), i);
	}
}

/* A host that takes whatever child ends, from a SIGCHLD handler and in a thread. */
static atomic_int sigchld_count, reaped_sum, reaped_ours, stop_reaping;
static _Atomic pid_t expected[30];

static void reap_one(pid_t pid, int status)
{
	for (size_t i = 0; i < COUNT(expected); i++)
		if (atomic_load(&expected[i]) == pid) {
			atomic_fetch_add(&reaped_sum, WEXITSTATUS(status));
			atomic_fetch_add(&reaped_ours, 1);
		}
}

static void handle_sigchld(int signal)
{
	(void)signal;
	atomic_fetch_add(&sigchld_count, 1);
}

static void *reap_forever(void *unused)
{
	(void)unused;
	while (!atomic_load(&stop_reaping)) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid > 0)
			reap_one(pid, status);
		else
			usleep(200);
	}
	return NULL;
}

static bool all_reaped(void *unused)
{
	(void)unused;
	return atomic_load(&reaped_ours) == (int)COUNT(expected);
}

static void test_host_reaps_everything(void **state)
{
	(void)state;
	struct sigaction action = { .sa_handler = handle_sigchld }, before;
	prctl(PR_SET_CHILD_SUBREAPER, 0); /* as an ordinary host: the spawner is nobody's child here */
	assert_int_equal(sigaction(SIGCHLD, &action, &before), 0);
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, reap_forever, NULL), 0);
	int sum = 0;
	for (size_t i = 0; i < COUNT(expected); i++) {
		/* Held back until its number is on the list. */
		int go[2];
		char byte;
		assert_int_equal(pipe2(go, O_CLOEXEC), 0);
		pid_t pid = fork();
		if (pid == 0) {
			close(go[1]);
			_exit(read(go[0], &byte, 1) == 0 ? (int)i : 99);
		}
		atomic_store(&expected[i], pid);
		close(go[0]);
		close(go[1]);
		sum += (int)i;
		if (i % 10 == 5)
			use_engine();
	}
	assert_true(support_wait(all_reaped, NULL));
	assert_int_equal(atomic_load(&reaped_sum), sum);
	assert_true(atomic_load(&sigchld_count) > 0);
	struct sigaction now;
	assert_int_equal(sigaction(SIGCHLD, NULL, &now), 0);
	assert_ptr_equal(now.sa_handler, handle_sigchld);
	atomic_store(&stop_reaping, 1);
	pthread_join(thread, NULL);
	sigaction(SIGCHLD, &before, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* SIGCHLD ignored: children vanish without being waited for. */
static void test_sigchld_ignored(void **state)
{
	(void)state;
	void (*before)(int) = signal(SIGCHLD, SIG_IGN);
	use_engine();
	signal(SIGCHLD, before);
}

/* While the engine lives the host gets at most the one SIGCHLD of starting the spawner. */
static void test_no_sigchld_of_kernels(void **state)
{
	(void)state;
	struct sigaction action = { .sa_handler = handle_sigchld }, before;
	prctl(PR_SET_CHILD_SUBREAPER, 0);
	sigaction(SIGCHLD, &action, &before);
	atomic_store(&sigchld_count, 0);
	use_engine();
	assert_true(atomic_load(&sigchld_count) <= 1);
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
	sigaction(SIGCHLD, &before, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
}

/* ---- signals ---- */

static atomic_int sigint_count;
static _Atomic pthread_t sigint_thread;

static void handle_sigint(int signal)
{
	(void)signal;
	atomic_fetch_add(&sigint_count, 1);
	atomic_store(&sigint_thread, pthread_self());
}

static void *send_signals(void *arg)
{
	pthread_t target = *(pthread_t *)arg;
	for (int i = 0; i < 50; i++) {
		pthread_kill(target, SIGUSR1);
		kill(getpid(), SIGINT);
		usleep(2000);
	}
	return NULL;
}

/* The host's Ctrl-C is the host's: its handler runs, on one of its own threads, and no kernel is hit. */
static void test_host_signals(void **state)
{
	(void)state;
	struct sigaction action = { .sa_handler = handle_sigint }, before_int, before_usr1;
	sigaction(SIGINT, &action, &before_int);
	sigaction(SIGUSR1, &action, &before_usr1); /* without SA_RESTART: what waits is woken */
	struct cell_engine *engine = support_engine(1);
	struct cell_session *session = support_session(engine);
	pthread_t self = pthread_self(), thread;
	assert_int_equal(pthread_create(&thread, NULL, send_signals, &self), 0);
	support_expect(session, "import time; time.sleep(0.3); 'slept'", "'slept'");
	for (int i = 0; i < 50; i++)
		support_expect(session, "1 + 1", "2");
	assert_int_equal(cell_session_reset(session, NULL), 0);
	pthread_join(thread, NULL);
	assert_true(atomic_load(&sigint_count) > 10);
	assert_true(pthread_equal(atomic_load(&sigint_thread), self) || pthread_equal(atomic_load(&sigint_thread), thread));
	support_expect(session, "'well'", "'well'");
	cell_session_close(session);
	cell_engine_destroy(engine);
	sigaction(SIGINT, &before_int, NULL);
	sigaction(SIGUSR1, &before_usr1, NULL);
}

/* Handlers, masks, directory and environment are as they were. */
extern char **environ;

static void test_nothing_is_touched(void **state)
{
	(void)state;
	struct sigaction before[32], after;
	sigset_t mask_before, mask_after;
	char cwd_before[PATH_MAX], cwd_after[PATH_MAX];
	for (int i = 1; i < 32; i++)
		sigaction(i, NULL, &before[i]);
	pthread_sigmask(SIG_SETMASK, NULL, &mask_before);
	assert_non_null(getcwd(cwd_before, sizeof cwd_before));
	mode_t umask_before = umask(077);
	umask(umask_before);
	char **environ_before = environ, *first = environ[0];
	use_engine();
	for (int i = 1; i < 32; i++) {
		sigaction(i, NULL, &after);
		if (after.sa_handler != before[i].sa_handler)
			fail_msg("the handler of signal %d changed", i);
		assert_int_equal(after.sa_flags, before[i].sa_flags);
	}
	pthread_sigmask(SIG_SETMASK, NULL, &mask_after);
	for (int i = 1; i < 32; i++)
		assert_int_equal(sigismember(&mask_before, i), sigismember(&mask_after, i));
	assert_non_null(getcwd(cwd_after, sizeof cwd_after));
	assert_string_equal(cwd_before, cwd_after);
	mode_t umask_after = umask(umask_before);
	assert_int_equal(umask_before, umask_after);
	assert_ptr_equal(environ, environ_before);
	assert_ptr_equal(environ[0], first);
}

/* The library never prints. */
static void test_silence(void **state)
{
	(void)state;
	fflush(stdout);
	fflush(stderr);
	int out[2], saved[2] = { dup(1), dup(2) };
	assert_int_equal(pipe2(out, O_CLOEXEC | O_NONBLOCK), 0);
	dup2(out[1], 1);
	dup2(out[1], 2);
	struct cell_engine *engine = support_engine(1);
	struct cell_session *session = support_session(engine);
	struct cell_result *result = support_run(session, "import sys; print('x'); print('y', file=sys.stderr); 1/0");
	cell_result_destroy(result);
	struct cell_error err;
	struct cell_session_options options = CELL_SESSION_OPTIONS_INIT;
	options.python = "/bin/false";
	struct cell_session *none;
	int rc = cell_session_open(engine, &options, &none, &err);
	cell_session_close(session);
	cell_engine_destroy(engine);
	char heard[100];
	ssize_t n = read(out[0], heard, sizeof heard);
	dup2(saved[0], 1);
	dup2(saved[1], 2);
	close(saved[0]);
	close(saved[1]);
	close(out[0]);
	close(out[1]);
	assert_int_equal(rc, -1);
	assert_int_equal(n, -1);
}

/* ---- descriptors ---- */

static const char *secret_path;

/* Fails when this process, or one below it, has the secret file open. */
static void check_process(pid_t pid, void *arg)
{
	int *count = arg;
	char dir[64];
	snprintf(dir, sizeof dir, "/proc/%d/fd", pid);
	DIR *fds = opendir(dir);
	struct dirent *entry;
	while (fds && (entry = readdir(fds))) {
		char target[PATH_MAX];
		ssize_t n = readlinkat(dirfd(fds), entry->d_name, target, sizeof target - 1);
		target[n > 0 ? n : 0] = '\0';
		if (strcmp(target, secret_path) == 0) {
			fprintf(stderr, "process %d holds the host's file as %s\n", pid, entry->d_name);
			*count += 1000;
		}
	}
	if (fds)
		closedir(fds);
	++*count;
	cell__proc_children(pid, check_process, arg);
}

/* Descriptors of the host that are not close-on-exec reach neither spawner, zygote nor kernel. */
static void test_descriptors_do_not_leak(void **state)
{
	(void)state;
	char path[] = "/tmp/workcell-test-XXXXXX";
	int fds[40];
	fds[0] = mkstemp(path); /* without O_CLOEXEC, on purpose */
	assert_true(fds[0] >= 0);
	for (size_t i = 1; i < COUNT(fds); i++)
		fds[i] = i == 39 ? fcntl(fds[0], F_DUPFD, 700) : dup(fds[0]);
	secret_path = path;
	struct cell_engine *engine = support_engine(2);
	struct cell_session *session = support_session(engine);
	assert_int_equal(cell_engine_prewarm(engine, TEST_PYTHON, NULL, NULL, NULL), 0);
	int count = 0;
	cell__proc_children(getpid(), check_process, &count);
	assert_in_range(count, 5, 999); /* spawner, zygote, kernel, two in the pool */
	/* And of ours it has what it needs: nothing below the high numbers but the three standard ones. */
	support_expect(session, "import os\nsorted(int(f) for f in os.listdir('/proc/self/fd') if int(f) < 64)[:3]", "[0, 1, 2]");
	support_expect(session, "os.readlink('/proc/self/fd/0')", "'/dev/null'");
	cell_session_close(session);
	cell_engine_destroy(engine);
	for (size_t i = 0; i < COUNT(fds); i++)
		close(fds[i]);
	unlink(path);
}

/* Our own descriptors are close-on-exec from birth: a program the host starts meanwhile gets none of them. */
static void test_ours_do_not_leak_either(void **state)
{
	(void)state;
	bool before[1024];
	for (int fd = 0; fd < 1024; fd++)
		before[fd] = fcntl(fd, F_GETFD) >= 0;
	struct cell_engine *engine = support_engine(1);
	struct cell_session *session = support_session(engine);
	support_expect(session, "1", "1");
	for (int fd = 0; fd < 1024; fd++) {
		int flags = fcntl(fd, F_GETFD);
		if (!before[fd] && flags >= 0 && !(flags & FD_CLOEXEC))
			fail_msg("fd %d is not close-on-exec", fd);
	}
	cell_session_close(session);
	cell_engine_destroy(engine);
}

/* A host without stdin, stdout and stderr: our descriptors then get these numbers, and all goes on. */
static void test_closed_standard_streams(void **state)
{
	(void)state;
	fflush(stdout);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int report = fcntl(2, F_DUPFD_CLOEXEC, 200);
		for (int fd = 0; fd < 3; fd++)
			close(fd);
		struct cell_engine_options options = CELL_ENGINE_OPTIONS_INIT;
		struct cell_engine *engine;
		struct cell_session *session;
		struct cell_session_options session_options = CELL_SESSION_OPTIONS_INIT;
		struct cell_result *result;
		struct cell_error err = { 0 };
		options.lib_dir = TEST_LIB_DIR;
		session_options.python = TEST_PYTHON;
		int status = 1;
		static const char code[] = "import subprocess\nprint('out')\n"
					   "subprocess.run('echo child; exit 4', shell=True).returncode";
		if (cell_engine_create(&options, &engine, &err) == 0 && cell_session_open(engine, &session_options, &session, &err) == 0 &&
		    cell_session_run(session, code, sizeof code - 1, NULL, &result, &err) == 0) {
			struct cell_text text;
			cell_result_stdout(result, &text);
			status = cell_result_repr(result) && strcmp(cell_result_repr(result), "4") == 0 &&
						 strcmp(text.data, "out\nchild\n") == 0
					 ? 0
					 : 2;
			cell_result_destroy(result);
			cell_session_close(session);
			cell_engine_destroy(engine);
		}
		if (status)
			dprintf(report, "status %d: %s: %s\n", status, cell_code_word(err.code), err.msg);
		_exit(status);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_own_children),
		TEST(test_host_reaps_everything),
		TEST(test_sigchld_ignored),
		TEST(test_no_sigchld_of_kernels),
		TEST(test_host_signals),
		TEST(test_nothing_is_touched),
		TEST(test_silence),
		TEST(test_descriptors_do_not_leak),
		TEST(test_ours_do_not_leak_either),
		TEST(test_closed_standard_streams),
	};
	return cmocka_run_group_tests_name("host", tests, NULL, NULL);
}
