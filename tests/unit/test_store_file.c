/* storage/file.c: names, paths that stay inside, locks, temporary files, opening a store. */
#define _GNU_SOURCE
#include <sys/file.h>
#include <sys/wait.h>
#include <time.h>

#include "storage/file.h"
#include "store_support.h"

static void test_names(void **state)
{
	(void)state;
	static const struct {
		const char *name;
		int code;
		const char *message;
	} rows[] = {
		{ "a", 0, "" },
		{ "a/b/c.txt", 0, "" },
		{ "..a", 0, "" },
		{ "a..", 0, "" },
		{ ".hidden", 0, "" },
		{ "sp ace", 0, "" },
		{ "\xc3\xa9", 0, "" },
		{ "a\\b", 0, "" },
		{ "", CELL_E_INVALID, "empty" },
		{ "..", CELL_E_INVALID, "Path traversal attempt detected: '..'" },
		{ "../x", CELL_E_INVALID, "Path traversal attempt detected: '../x'" },
		{ "a/../b", CELL_E_INVALID, "Path traversal attempt detected: 'a/../b'" },
		{ "a//..", CELL_E_INVALID, "Path traversal attempt detected" },
		{ "/etc/passwd", CELL_E_INVALID, "Path traversal attempt detected: '/etc/passwd'" },
		{ ".", CELL_E_INVALID, "part '.'" },
		{ "a/./b", CELL_E_INVALID, "part '.'" },
		{ "a//b", CELL_E_INVALID, "empty part" },
		{ "a/", CELL_E_INVALID, "empty part" },
		{ ".artifacts.json", CELL_E_INVALID, "reserved" },
		{ ".artifacts.json.broken-1", CELL_E_INVALID, "reserved" },
		{ "a/.artifacts.json", CELL_E_INVALID, "reserved" },
		{ ".cell-lock", CELL_E_INVALID, "reserved" },
		{ "a/.cell-tmp-0123456789abcdef", CELL_E_INVALID, "reserved" },
		{ "a\nb", CELL_E_INVALID, "control" },
		{ "a\x7f", CELL_E_INVALID, "control" },
		{ "\xff", CELL_E_INVALID, "UTF-8" },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		if (rows[i].code == 0)
			OK(cell__path_check(rows[i].name, "artifact", &err));
		else
			FAILS(rows[i].code, rows[i].message, cell__path_check(rows[i].name, "artifact", &err));
	}
}

static void test_name_limits(void **state)
{
	(void)state;
	char name[CELL__STORE_NAME_BYTES + 2];
	/* one component */
	memset(name, 'a', 256);
	name[255] = '\0';
	OK(cell__path_check(name, "artifact", &err));
	name[255] = 'a';
	name[256] = '\0';
	FAILS(CELL_E_INVALID, "255", cell__path_check(name, "artifact", &err));
	/* all of it */
	for (size_t i = 0; i < sizeof name; i++)
		name[i] = i % 200 == 199 ? '/' : 'a';
	name[CELL__STORE_NAME_BYTES] = '\0';
	OK(cell__path_check(name, "artifact", &err));
	name[CELL__STORE_NAME_BYTES] = 'a';
	name[CELL__STORE_NAME_BYTES + 1] = '\0';
	FAILS(CELL_E_LIMIT, "longer", cell__path_check(name, "artifact", &err));
	/* depth */
	for (size_t i = 0; i < CELL__STORE_NAME_DEPTH * 2 + 3; i++)
		name[i] = i % 2 ? '/' : 'a';
	name[CELL__STORE_NAME_DEPTH * 2 + 1] = '\0';
	OK(cell__path_check(name, "artifact", &err));
	name[CELL__STORE_NAME_DEPTH * 2 + 1] = '/';
	name[CELL__STORE_NAME_DEPTH * 2 + 3] = '\0';
	FAILS(CELL_E_LIMIT, "deep", cell__path_check(name, "artifact", &err));
}

/* openat2() and the walk must agree, also on what is refused. */
static void test_open_beneath(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "in");
	make_folder(folder, "in/sub");
	make_folder(folder, "out");
	write_text(folder, "in/file", "1");
	write_text(folder, "in/sub/file", "2");
	write_text(folder, "out/secret", "3");
	assert_int_equal(symlink("../out", in(folder, "in/link")), 0);
	assert_int_equal(symlink("sub", in(folder, "in/inner")), 0);
	assert_int_equal(symlink("../out/secret", in(folder, "in/filelink")), 0);
	assert_int_equal(symlink("/etc/passwd", in(folder, "in/abs")), 0);
	static const struct {
		const char *path;
		int sys;
	} rows[] = {
		{ "file", 0 },
		{ "sub/file", 0 },
		{ "missing", ENOENT },
		{ "sub/missing", ENOENT },
		{ "missing/file", ENOENT },
		{ "file/x", ENOTDIR },
		{ "link/secret", ELOOP },
		{ "inner/file", ELOOP },
		{ "filelink", ELOOP },
		{ "abs", ELOOP },
		{ "../out/secret", EXDEV },
		{ "/etc/passwd", EXDEV },
	};
	CELL_AUTO_FD int dir_fd = open(in(folder, "in"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (size_t i = 0; i < COUNT(rows); i++) {
		for (int walk = 0; walk < 2; walk++) {
			CELL_AUTO_FD int fd = (walk ? cell__path_open_walk : cell__path_open)(dir_fd, rows[i].path, O_RDONLY, 0);
			if (rows[i].sys == 0 ? fd < 0 : fd >= 0 || errno != rows[i].sys)
				fail_msg("%s (walk %d): fd %d, %s", rows[i].path, walk, fd, strerror(errno));
		}
	}
}

static void test_read_kinds(void **state)
{
	struct folder *folder = *state;
	CELL_AUTO_FD int dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CELL_AUTO_BUF struct cell__buf buf = CELL_BUF_INIT;
	assert_int_equal(mkfifo(in(folder, "fifo"), 0666), 0);
	make_folder(folder, "sub");
	write_text(folder, "four", "1234");
	assert_int_equal(cell__path_read(dir_fd, "fifo", 10, &buf, NULL), -1);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(cell__path_read(dir_fd, "sub", 10, &buf, NULL), -1);
	assert_int_equal(errno, EISDIR);
	assert_int_equal(cell__path_read(dir_fd, "four", 3, &buf, NULL), -1);
	assert_int_equal(errno, EFBIG);
	buf.size = 0;
	assert_int_equal(cell__path_read(dir_fd, "four", 4, &buf, NULL), 0);
	assert_string_equal(buf.data, "1234");
}

static void age(const struct folder *folder, const char *name, long seconds)
{
	struct timespec times[2];
	clock_gettime(CLOCK_REALTIME, &times[0]);
	times[0].tv_sec -= seconds;
	times[1] = times[0];
	assert_int_equal(utimensat(AT_FDCWD, in(folder, name), times, 0), 0);
}

static void test_sweep(void **state)
{
	struct folder *folder = *state;
	CELL_AUTO_FD int dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct cell__temp alive = CELL__TEMP_INIT;
	assert_int_equal(cell__temp_create(&alive, dir_fd), 0);
	age(folder, alive.name, 100000);
	write_text(folder, ".cell-tmp-0123456789abcdef", "");
	age(folder, ".cell-tmp-0123456789abcdef", CELL__STORE_TEMP_AGE_S + 10);
	write_text(folder, ".cell-tmp-00000000000000ff", "");
	write_text(folder, ".cell-tmp-notours", "");
	age(folder, ".cell-tmp-notours", 100000);
	cell__temp_sweep(dir_fd);
	assert_true(there(folder, alive.name));                     /* its writer lives */
	assert_false(there(folder, ".cell-tmp-0123456789abcdef"));
	assert_true(there(folder, ".cell-tmp-00000000000000ff"));   /* not old enough */
	assert_true(there(folder, ".cell-tmp-notours"));
	cell__temp_discard(&alive);
	assert_false(there(folder, alive.name));
}

static void test_lock(void **state)
{
	struct folder *folder = *state;
	CELL_AUTO_FD int dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int a = -1, b = -1;
	/* Nobody has written: nothing is made for a reader. */
	OK(cell__dir_lock(dir_fd, false, &a, &err));
	assert_int_equal(a, -1);
	assert_false(there(folder, CELL__LOCK_FILE));
	OK(cell__dir_lock(dir_fd, true, &a, &err));
	CELL_AUTO_FD int probe = open(in(folder, CELL__LOCK_FILE), O_RDONLY | O_CLOEXEC);
	assert_int_equal(flock(probe, LOCK_SH | LOCK_NB), -1);
	/* The file is removed under its holder: the next one must not wait for ever, nor take the old one. */
	assert_int_equal(unlink(in(folder, CELL__LOCK_FILE)), 0);
	OK(cell__dir_lock(dir_fd, true, &b, &err));
	close(a);
	close(b);
	OK(cell__dir_lock(dir_fd, false, &a, &err));
	OK(cell__dir_lock(dir_fd, false, &b, &err));
	close(a);
	close(b);
}

static void test_lock_is_bounded(void **state)
{
	struct folder *folder = *state;
	CELL_AUTO_FD int dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int held = -1, other = -1;
	OK(cell__dir_lock(dir_fd, true, &held, &err));
	struct cell_error err = { 0 };
	assert_int_equal(cell__dir_lock(dir_fd, true, &other, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	assert_int_equal(err.sys, ETIMEDOUT);
	close(held);
}

static void test_store_open(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = NULL;
	char id[131];
	memset(id, 'a', sizeof id);
	id[128] = '\0';
	OK(cell__store_open(in(folder, "x/y/z"), id, &store, &err));
	assert_true(there(folder, "x/y/z/workspaces"));
	cell__store_close(store);
	id[128] = 'a';
	id[129] = '\0';
	const char *const bad[] = { "", "a/b", "..", "a b", "\xc3\xa9", id };
	for (size_t i = 0; i < COUNT(bad); i++)
		FAILS(CELL_E_INVALID,
		      "workspace_id must be 1-128 characters using only ASCII letters, digits, underscores, "
		      "or hyphens",
		      cell__store_open(folder->path, bad[i], &store, &err));
	FAILS(CELL_E_INVALID, "empty", cell__store_open("", NULL, &store, &err));
	write_text(folder, "plain", "");
	FAILS(CELL_E_IO, "", cell__store_open(in(folder, "plain"), NULL, &store, &err));
	FAILS(CELL_E_IO, "", cell__store_open(in(folder, "plain/sub"), NULL, &store, &err));
	/* Opening alone leaves nothing behind. */
	make_folder(folder, "fresh");
	OK(cell__store_open(in(folder, "fresh"), NULL, &store, &err));
	cell__store_close(store);
	assert_int_equal(rmdir(in(folder, "fresh")), 0);
}

static void test_out_of_memory(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = NULL;
	struct cell_error err = { 0 };
	for (long n = 1;; n++) {
		assert_true(n < 100);
		cell__alloc_fail_after(n);
		int rc = cell__store_open(folder->path, "w", &store, &err);
		cell__alloc_fail_after(0);
		if (rc == 0)
			break;
	}
	cell__store_close(store);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_names),
		TEST(test_name_limits),
		STORE_TEST(test_open_beneath),
		STORE_TEST(test_read_kinds),
		STORE_TEST(test_sweep),
		STORE_TEST(test_lock),
		STORE_TEST(test_lock_is_bounded),
		STORE_TEST(test_store_open),
		STORE_TEST(test_out_of_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
