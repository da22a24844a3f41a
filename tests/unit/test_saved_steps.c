/*
 * A program that is killed at each step of a save: before each call that changes the disk, and in the middle of each write.  Whoever opens the
 * session next finds the old one or the new one, whole, and the next save leaves nothing else behind.
 *
 * The calls are counted by functions that take the place of libc's.
 */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/tree.h"
#include "durable/durable.h"

#define ID "0123456789abcdef0123456789abcdef"
#define KEY "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define BYTES ((size_t)(2 << 20) + 8192) /* three pieces: one thread writes them */
#define STEPS_MAX 60

static int steps_left; /* then the process is killed; 0: never */
static bool in_the_middle;

/* True: this is the step, and half of it is to be done first. */
static bool step(bool is_write)
{
	if (steps_left == 0 || --steps_left > 0)
		return false;
	if (is_write && in_the_middle)
		return true;
	raise(SIGKILL);
	return false;
}

/* Their prototypes have other names with 64-bit offsets. */
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at);
int openat64(int dir_fd, const char *path, int flags, ...);
int ftruncate64(int fd, off64_t size);

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at)
{
	if (step(true)) {
		(void)syscall(SYS_pwrite64, fd, data, size / 2, at);
		raise(SIGKILL);
	}
	return syscall(SYS_pwrite64, fd, data, size, at);
}

ssize_t write(int fd, const void *data, size_t size)
{
	if (step(true)) {
		(void)syscall(SYS_write, fd, data, size / 2);
		raise(SIGKILL);
	}
	return syscall(SYS_write, fd, data, size);
}

int openat64(int dir_fd, const char *path, int flags, ...)
{
	if (flags & O_CREAT)
		(void)step(false);
	return (int)syscall(SYS_openat, dir_fd, path, flags, 0600);
}

int ftruncate64(int fd, off64_t size)
{
	(void)step(false);
	return (int)syscall(SYS_ftruncate, fd, size);
}

int fdatasync(int fd)
{
	(void)step(false);
	return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	(void)step(false);
	return (int)syscall(SYS_fsync, fd);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	(void)step(false);
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int unlinkat(int dir_fd, const char *path, int flags)
{
	(void)step(false);
	return (int)syscall(SYS_unlinkat, dir_fd, path, flags);
}

int mkdirat(int dir_fd, const char *path, mode_t mode)
{
	(void)step(false);
	return (int)syscall(SYS_mkdirat, dir_fd, path, mode);
}

/* Whoever follows a memory waits for more of it: then it is complete. */
static atomic_int *stage;

int nanosleep(const struct timespec *time, struct timespec *left)
{
	if (stage)
		atomic_store(stage, CELL_PIECES_COMPLETE);
	return stage ? 0 : (int)syscall(SYS_nanosleep, time, left);
}

static int make_memory(char letter)
{
	char *bytes = malloc(BYTES);
	int fd = memfd_create("memory", MFD_CLOEXEC);
	memset(bytes, letter, BYTES);
	assert_int_equal(pwrite(fd, bytes, BYTES, 0), BYTES);
	free(bytes);
	return fd;
}

/* Opens the place, and saves a session whose memory is one letter.  In a child that is killed, cmocka's assertions would go on in it. */
static bool save(const char *dir, const char *key, char letter, bool early)
{
	struct cell__durable *durable;
	struct cell__saved saved = { .cells = (uint64_t)letter, .saved_ms = 1 };
	struct cell__memories memories = CELL_MEMORIES_INIT;
	struct cell__pieces_sum sum;
	struct stat st;
	const struct cell__saved *old;
	memories.own.fds[memories.own.n++] = make_memory(letter);
	if (fstat(memories.own.fds[0], &st) < 0 || cell__durable_open(dir, ID, key, true, &durable, NULL) < 0)
		return false;
	memories.own.inodes[0] = memories.own.live[0] = st.st_ino;
	(void)cell__durable_state(durable, &old, NULL); /* there may be none */
	saved.owner = strdup("");
	saved.workspace = strdup("/w");
	saved.executor = strdup("sandbox");
	saved.python = strdup("/p");
	saved.preload = strdup("");
	saved.build = strdup("1");
	saved.machine = strdup("m");
	saved.notes = json_object();
	saved.left = json_array();
	if (early) {
		memories.early = cell__early_create(fcntl(memories.own.fds[0], F_DUPFD_CLOEXEC, 0));
		stage = &memories.early->stage;
		cell__durable_follow(durable, memories.early);
	}
	bool ok = cell__durable_save(durable, &saved, &memories, &sum, NULL) == 0;
	if (ok)
		cell__durable_rest(durable);
	cell__durable_close(durable);
	cell__memories_close(&memories);
	return ok;
}

/* The letter of the session that is there; '\0': none is. */
static char find(const char *dir, const char *key)
{
	struct cell__durable *durable;
	struct cell__memories memories;
	const struct cell__saved *saved;
	struct cell_error err = { 0 };
	char *bytes = malloc(BYTES), letter = '\0';
	if (cell__durable_open(dir, ID, key, false, &durable, &err) < 0) {
		assert_int_equal(err.code, CELL_E_NOT_FOUND);
		free(bytes);
		return '\0';
	}
	if (cell__durable_state(durable, &saved, &err) < 0) {
		assert_int_equal(err.code, CELL_E_NOT_FOUND); /* not damaged */
	} else {
		letter = (char)saved->cells;
		assert_int_equal(cell__durable_load(durable, &memories, &err), 0);
		assert_int_equal(memories.own.n, 1);
		assert_int_equal(pread(memories.own.fds[0], bytes, BYTES, 0), BYTES);
		for (size_t i = 0; i < BYTES; i++)
			if (bytes[i] != letter)
				fail_msg("byte %zu is %c, not %c", i, bytes[i], letter);
		cell__memories_close(&memories);
		cell__durable_rest(durable);
	}
	cell__durable_close(durable);
	free(bytes);
	return letter;
}

static int count_files(const char *dir)
{
	char path[300];
	int n = 0;
	snprintf(path, sizeof path, "%s/" ID, dir);
	DIR *list = opendir(path);
	assert_non_null(list);
	for (struct dirent *entry; (entry = readdir(list));)
		n += entry->d_name[0] != '.';
	closedir(list);
	return n;
}

static bool is_killed_at(const char *dir, const char *key, bool early, int n)
{
	int status;
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		steps_left = n;
		_exit(save(dir, key, 'B', early) ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		return true;
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return false;
}

/* Returns the number of steps. */
static int kill_at_each_step(const char *key, bool early, bool is_first)
{
	int n = 1, old = 0, new = 0;
	for (bool killed = true; killed; n++) {
		char dir[] = "/dev/shm/workcell-steps-XXXXXX";
		assert_non_null(mkdtemp(dir));
		if (!is_first)
			assert_true(save(dir, key, 'A', false));
		killed = is_killed_at(dir, key, early, n);
		char found = find(dir, key);
		assert_true(found == 'B' || (killed && found == (is_first ? '\0' : 'A')));
		old += killed && found != 'B';
		new += killed &&found == 'B';
		assert_true(save(dir, key, 'C', false));
		assert_int_equal(find(dir, key), 'C');
		assert_int_equal(count_files(dir), 3); /* lock, state, memory */
		assert_int_equal(cell__tree_remove(AT_FDCWD, dir), 0);
		assert_true(n < STEPS_MAX);
	}
	/* Both sides of the step that counts were seen. */
	assert_true(old > 5 && new > 0);
	return n - 1;
}

static void test_each_step(void **state)
{
	(void)state;
	for (int way = 0; way < 8; way++) {
		in_the_middle = way & 1;
		kill_at_each_step(way & 2 ? KEY : NULL, false, way & 4);
	}
}

static void test_each_step_of_an_early_copy(void **state)
{
	(void)state;
	for (int way = 0; way < 2; way++) {
		in_the_middle = way & 1;
		kill_at_each_step(NULL, true, false);
	}
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = { TEST(test_each_step), TEST(test_each_step_of_an_early_copy) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
