/* loop/watch.c: everything that happened before the question is in the answer. */
#define _GNU_SOURCE
#include "loop/watch.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "support.h"

static char root[64], command[1024];

static int begin(void **state)
{
	strcpy(root, "/tmp/cell-watch-XXXXXX");
	return support_begin(state) || !mkdtemp(root);
}

static int end(void **state)
{
	snprintf(command, sizeof command, "rm -rf %s %s.moved", root, root);
	return system(command) || support_end(state);
}

/* "cd root; ..." must succeed. */
static void shell(const char *text)
{
	snprintf(command, sizeof command, "set -e; cd %s; %s", root, text);
	assert_int_equal(system(command), 0);
}

static bool is_yaml(const char *name)
{
	size_t n = strlen(name);
	return n > 5 && strcmp(name + n - 5, ".yaml") == 0;
}

static const char *in(const char *name)
{
	static char path[128];
	snprintf(path, sizeof path, "%s/%s", root, name);
	return path;
}

static void test_contents(void **state)
{
	(void)state;
	static const char *const changes[] = {
		"echo 1 >d/a.yaml",
		"echo 2 >>d/a.yaml",
		"touch -d 1999-01-01 d/a.yaml",
		"chmod 600 d/a.yaml",
		"mv d/a.yaml d/b.yaml",
		"mv d/b.yaml d/b.txt",
		"mv d/b.txt d/b.yaml",
		"ln d/b.yaml d/c.yaml",
		"rm d/c.yaml",
		"echo 3 >x; mv x d/b.yaml",
		"ln -s nowhere d/l.yaml",
		"mkdir d/f.yaml",
		"chmod 711 d",
		"mv d e; mkdir d; mv e/* d",
		"rm -r d",
	};
	static const char *const others[] = { "echo 1 >d/log", "echo 2 >>d/log", "mv d/log d/more", "echo >x", "mkdir y" };
	struct cell__watch watch = CELL__WATCH_INIT;
	shell("mkdir d");
	assert_false(cell__watch_quiet(&watch, is_yaml));
	for (size_t i = 0; i < COUNT(changes); i++) {
		assert_int_equal(cell__watch_begin(&watch), 0);
		assert_int_equal(cell__watch_path(&watch, in("d")), 0);
		assert_true(cell__watch_quiet(&watch, is_yaml));
		assert_true(cell__watch_quiet(&watch, is_yaml));
		for (size_t k = 0; i == 3 && k < COUNT(others); k++) {
			shell(others[k]);
			assert_true(cell__watch_quiet(&watch, is_yaml));
		}
		shell(changes[i]);
		if (cell__watch_quiet(&watch, is_yaml))
			fail_msg("not told: %s", changes[i]);
	}
	cell__watch_end(&watch);
	cell__watch_end(&watch);
	assert_false(cell__watch_quiet(&watch, is_yaml));
}

/* The path leads somewhere else: nothing has changed in the folder itself. */
static void test_path(void **state)
{
	(void)state;
	struct cell__watch watch = CELL__WATCH_INIT;
	shell("mkdir -p a/b/c; ln -s a l");
	assert_int_equal(cell__watch_begin(&watch), 0);
	assert_int_equal(cell__watch_path(&watch, in("a/b/c")), 0);
	assert_true(cell__watch_quiet(&watch, is_yaml));
	shell("mv a old; mkdir -p a/b/c");
	assert_false(cell__watch_quiet(&watch, is_yaml));
	assert_int_equal(cell__watch_begin(&watch), 0);
	assert_int_equal(cell__watch_path(&watch, in("a/b/c")), 0);
	assert_int_equal(cell__watch_path(&watch, in("a")), 0); /* one above another: both count */
	shell("mv a/b a/bb; mkdir -p a/b/c");
	assert_false(cell__watch_quiet(&watch, is_yaml));
	assert_int_equal(cell__watch_begin(&watch), 0);
	assert_int_equal(cell__watch_path(&watch, in("a")), 0);
	assert_int_equal(cell__watch_path(&watch, in("a/b")), 0);
	shell("echo >a/x.yaml");
	assert_false(cell__watch_quiet(&watch, is_yaml));
	/* Links can be turned elsewhere, what is not absolute depends on somebody's folder. */
	static const char *const refused[] = { "l", "l/b", "missing", "a/x.yaml" };
	for (size_t i = 0; i < COUNT(refused); i++) {
		assert_int_equal(cell__watch_begin(&watch), 0);
		assert_int_equal(cell__watch_path(&watch, in(refused[i])), -1);
		assert_int_equal(watch.fd, -1);
	}
	assert_int_equal(cell__watch_begin(&watch), 0);
	assert_int_equal(cell__watch_path(&watch, "tmp"), -1);
	assert_int_equal(cell__watch_path(&watch, root), -1); /* it had failed: begin anew first */
}

static void test_folder(void **state)
{
	(void)state;
	struct cell__watch watch = CELL__WATCH_INIT;
	shell("mkdir d");
	int fd = open(in("d"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(cell__watch_begin(&watch), 0);
	assert_int_equal(cell__watch_folder(&watch, fd), 0);
	close(fd);
	assert_true(cell__watch_quiet(&watch, is_yaml));
	shell("rmdir d");
	assert_false(cell__watch_quiet(&watch, is_yaml));
	/* More events than are kept, none of which matters: it is not known what else there was. */
	shell("mkdir d");
	assert_int_equal(cell__watch_begin(&watch), 0);
	assert_int_equal(cell__watch_path(&watch, in("d")), 0);
	shell("for i in 0 1 2 3 4 5 6 7 8 9; do seq 1 3000 | sed 's,^,d/,' | xargs touch; done");
	assert_false(cell__watch_quiet(&watch, is_yaml));
	cell__watch_end(&watch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_contents, begin, end),
		cmocka_unit_test_setup_teardown(test_path, begin, end),
		cmocka_unit_test_setup_teardown(test_folder, begin, end),
	};
	return cmocka_run_group_tests_name("watch", tests, NULL, NULL);
}
