/* Layers over a workspace: what is changed, committed, discarded, kept and restored, and what hostile code leaves there. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/protected.h"
#include "layer/internal.h"

static char top[64];
static struct cell__layer *layer;
static pid_t mounter; /* 0: none */
static int view_fd = -1;

static const char *at(const char *name)
{
	static char paths[8][512];
	static unsigned next;
	char *path = paths[next++ % 8];
	snprintf(path, 512, "%s/%s", top, name);
	return path;
}

static void sh(const char *fmt, ...)
{
	char command[4096];
	va_list args;
	va_start(args, fmt);
	int n = snprintf(command, sizeof command, "cd %s && ", top);
	vsnprintf(command + n, sizeof command - (size_t)n, fmt, args);
	va_end(args);
	if (system(command) != 0)
		fail_msg("%s", command);
}

/* In the folder that the code sees. */
static void code(const char *fmt, ...)
{
	char command[4096];
	va_list args;
	va_start(args, fmt);
	int n = snprintf(command, sizeof command, "cd /proc/%d/fd/%d && ", (int)getpid(), view_fd);
	vsnprintf(command + n, sizeof command - (size_t)n, fmt, args);
	va_end(args);
	if (system(command) != 0)
		fail_msg("%s", command);
}

static void write_line(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		_exit(10);
	close(fd);
}

/* A process in namespaces of its own, in which the layer is mounted. */
static void mount_overlay(void)
{
	int ready[2];
	char byte, options[1024], line[64];
	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	unsigned uid = geteuid(), gid = getegid();
	snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s,userxattr", at("base"), cell__layer_upper(layer),
		 cell__layer_work(layer));
	mounter = fork();
	if (mounter == 0) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
			_exit(11);
		write_line("/proc/self/setgroups", "deny");
		snprintf(line, sizeof line, "%u %u 1", uid, uid);
		write_line("/proc/self/uid_map", line);
		snprintf(line, sizeof line, "%u %u 1", gid, gid);
		write_line("/proc/self/gid_map", line);
		if (mount("overlay", at("merged"), "overlay", 0, options) < 0)
			_exit(12);
		(void)!write(ready[1], "r", 1);
		pause();
		_exit(0);
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	snprintf(options, sizeof options, "/proc/%d/root%s", (int)mounter, at("merged"));
	view_fd = open(options, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(view_fd >= 0);
	cell__layer_attach(layer, fcntl(view_fd, F_DUPFD_CLOEXEC, 3));
}

static void unmount_overlay(void)
{
	if (view_fd >= 0)
		close(view_fd);
	view_fd = -1;
	if (mounter <= 0)
		return;
	cell__layer_attach(layer, -1);
	kill(mounter, SIGKILL);
	waitpid(mounter, NULL, 0);
	mounter = 0;
}

static void make_layer(enum cell__layer_form form)
{
	struct cell_error err;
	usleep(12000); /* later than the clock of file systems counts: files from before are older than the layer */
	if (cell__layer_create(at("base"), at("home"), form, 0, 0, &layer, &err) < 0)
		fail_msg("%s", err.msg);
	if (form == CELL_LAYER_OVERLAY) {
		mount_overlay();
	} else {
		view_fd = open(cell__layer_upper(layer), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		usleep(12000);
	}
}

static void end_layer(void)
{
	unmount_overlay();
	cell__layer_destroy(layer);
	layer = NULL;
	sh("test -z \"$(ls -A home)\"");
}

static int begin(void **state)
{
	support_begin(state);
	strcpy(top, "/tmp/test-layer-XXXXXX");
	assert_non_null(mkdtemp(top));
	sh("mkdir base home merged out && cd base && printf 'one\\ntwo\\nthree\\n' > text && echo gone > gone && mkdir -p dir/sub && "
	   "echo a > dir/a && echo b > dir/sub/b && ln -s text link && printf '\\0x' > bin && chmod 644 text gone bin");
	return 0;
}

static int end(void **state)
{
	if (layer)
		end_layer();
	char command[256];
	snprintf(command, sizeof command, "chmod -R u+rwX %s; rm -r %s", top, top);
	assert_int_equal(system(command), 0);
	return support_end(state);
}

#define LAYER_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
static const enum cell__layer_form forms[] = { CELL_LAYER_OVERLAY, CELL_LAYER_COPY };
#define EACH_FORM(function)                                  \
	for (size_t form = 0; form < COUNT(forms); form++) { \
		make_layer(forms[form]);                     \
		function();                                  \
		end_layer();                                 \
	}

/* "+path ~path -path", sorted by path; kinds: + added, ~ changed, - deleted, t type, m mode; ! conflict, p protected */
static const char *changes(void)
{
	static char text[8192];
	struct cell_error err = { 0 };
	json_t *diff = cell__layer_diff(layer, false, &err), *file;
	size_t i, n = 0;
	if (!diff)
		fail_msg("%s", err.msg);
	text[0] = '\0';
	json_array_foreach(json_object_get(diff, "files"), i, file) {
		const char *change = json_string_value(json_object_get(file, "change"));
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%c%s%s%s", n ? " " : "",
				      !strcmp(change, "added")     ? '+'
				      : !strcmp(change, "changed") ? '~'
				      : !strcmp(change, "deleted") ? '-'
				      : !strcmp(change, "type")    ? 't'
								   : 'm',
				      json_string_value(json_object_get(file, "path")), json_object_get(file, "conflict") ? "!" : "",
				      json_object_get(file, "protected") ? "p" : "");
	}
	json_decref(diff);
	return text;
}

static json_t *file_of(json_t *diff, const char *path)
{
	json_t *file;
	size_t i;
	json_array_foreach(json_object_get(diff, "files"), i, file)
		if (!strcmp(json_string_value(json_object_get(file, "path")), path))
			return file;
	fail_msg("no %s", path);
	return NULL;
}

static json_t *commit(const char *const *paths, bool force)
{
	struct cell_error err = { 0 };
	json_t *outcome = cell__layer_commit(layer, paths, force, &err);
	if (!outcome)
		fail_msg("%s", err.msg);
	return outcome;
}

static int refused(const char *const *paths)
{
	struct cell_error err = { 0 };
	assert_null(cell__layer_commit(layer, paths, false, &err));
	return err.code;
}

static void commit_all(void)
{
	json_decref(commit(NULL, false));
}

/* ---- changes ---- */

static void change_all_kinds(void)
{
	code("printf 'one\\n2\\nthree\\n' > text && rm gone && echo new > new && mkdir more && echo x > more/x && rm -r dir && chmod 600 bin && "
	     "rm link && mkdir link");
	assert_string_equal(changes(), "mbin -dir/a -dir/sub/b -dir/sub -dir -gone tlink +more +more/x +new ~text");
	struct cell_error err;
	json_t *diff = cell__layer_diff(layer, true, &err);
	assert_non_null(diff);
	assert_string_equal(json_string_value(json_object_get(file_of(diff, "text"), "diff")),
			    "--- a/text\n+++ b/text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
	assert_string_equal(json_string_value(json_object_get(file_of(diff, "bin"), "old_mode")), "0644");
	assert_int_equal(json_integer_value(json_object_get(file_of(diff, "text"), "old_size")), 14);
	assert_int_equal(json_integer_value(json_object_get(diff, "deleted")), 5);
	json_decref(diff);
}

static void test_kinds_of_changes(void **state)
{
	(void)state;
	EACH_FORM(change_all_kinds);
	sh("test \"$(cat base/text)\" = \"$(printf 'one\\ntwo\\nthree')\" && test -f base/dir/sub/b -a -f base/gone");
}

static void nothing_changed(void)
{
	code("cat text > out && mv out text; touch dir/a; chmod 644 text");
	assert_string_equal(changes(), "");
}

static void test_same_content_is_no_change(void **state)
{
	(void)state;
	EACH_FORM(nothing_changed);
}

static void rename_and_remake(void)
{
	/* opaque folders, renames over layers, hard links */
	code("rm -r dir && mkdir dir && echo c > dir/c && mv text gone && ln gone hard && mkdir swap && mv dir/c swap/a && mv swap dir/sub");
	assert_string_equal(changes(), "-dir/a +dir/sub/a -dir/sub/b ~gone +hard -text");
	commit_all();
	assert_string_equal(changes(), "");
	sh("diff -r --no-dereference base /proc/%d/fd/%d/.", (int)getpid(), view_fd);
	sh("test $(stat -c %%h base/gone) = 1");
}

static void test_renames(void **state)
{
	(void)state;
	make_layer(CELL_LAYER_OVERLAY);
	rename_and_remake();
}

static void test_renames_in_a_copy(void **state)
{
	(void)state;
	make_layer(CELL_LAYER_COPY);
	rename_and_remake();
}

/* ---- commit ---- */

static void commit_some(void)
{
	static const char *const some[] = { "new/deep/file", "./text", NULL }, *const none[] = { "bin", NULL };
	sh("cp -a base kept");
	code("mkdir -p new/deep new/other && echo 1 > new/deep/file && echo 2 > new/other/file && echo t >> text && rm gone");
	assert_int_equal(refused(none), CELL_E_NOT_FOUND);
	json_t *outcome = commit(some, false);
	assert_int_equal(json_array_size(json_object_get(outcome, "committed")), 4); /* with its two folders */
	json_decref(outcome);
	sh("test -f base/gone -a -f base/new/deep/file -a ! -e base/new/other && tail -1 base/text | grep -q t");
	assert_string_equal(changes(), "-gone +new/other +new/other/file");
	/* The same file again: what the commit wrote is not a change underneath. */
	code("echo again > text");
	assert_string_equal(changes(), "-gone +new/other +new/other/file ~text");
	commit_all();
	sh("test ! -e base/gone -a \"$(cat base/text)\" = again && ! ls -A base | grep workcell");
	assert_string_equal(changes(), "");
	sh("rm -r base && mv kept base");
}

static void test_commit(void **state)
{
	(void)state;
	EACH_FORM(commit_some);
}

static void conflict(void)
{
	sh("cp -a base kept");
	code("echo mine > text && rm gone && echo mine > both && echo fine > fine");
	usleep(12000);
	sh("echo theirs > base/text && echo theirs > base/gone && echo theirs > base/both");
	assert_int_equal(refused(NULL), CELL_E_CONFLICT);
	sh("test ! -e base/fine -a \"$(cat base/text)\" = theirs");
	json_decref(commit(NULL, true));
	sh("test \"$(cat base/text base/both base/fine)\" = \"$(printf 'mine\\nmine\\nfine')\"");
	sh("rm -r base && mv kept base");
}

/* What a commit recorded is judged exactly, not by the layer's age; a discard makes the records meaningless. */
static void conflict_after_commit(void)
{
	struct cell_error err;
	sh("cp -a base kept");
	code("echo mine > text");
	json_decref(commit(NULL, false));
	code("echo again > text");
	sh("echo theirs > base/other && mv base/other base/text");
	assert_int_equal(refused(NULL), CELL_E_CONFLICT);
	json_decref(commit(NULL, true));
	usleep(12000);
	sh("echo theirs > base/text"); /* in place */
	assert_int_equal(cell__layer_restore(layer, 0, NULL, &err), 0);
	code("test \"$(cat text)\" = theirs && echo last > text");
	json_decref(commit(NULL, false));
	sh("test \"$(cat base/text)\" = last");
	sh("rm -r base && mv kept base");
}

static void test_conflicts(void **state)
{
	(void)state;
	EACH_FORM(conflict);
	EACH_FORM(conflict_after_commit);
}

static void test_deleted_underneath(void **state)
{
	(void)state;
	make_layer(CELL_LAYER_OVERLAY);
	code("echo mine >> text");
	usleep(12000);
	sh("rm base/text");
	assert_string_equal(changes(), "+text!");
	assert_int_equal(refused(NULL), CELL_E_CONFLICT);
}

static void protect(void)
{
	static const char *const hook[] = { ".git/hooks/pre-commit", NULL }, *const all[] = { ".", NULL };
	sh("cp -a base kept");
	code("mkdir -p .git/hooks dir/.VSCode && echo x > .git/hooks/pre-commit && echo x > dir/.VSCode/tasks.json && echo x > dir/conftest.py && "
	     "echo x > a.pth && echo x > .env.local && echo x > plain.py");
	json_t *outcome = commit(all, false);
	assert_int_equal(json_array_size(json_object_get(outcome, "committed")), 1);
	assert_int_equal(json_array_size(json_object_get(outcome, "protected")), 8);
	json_decref(outcome);
	sh("test -f base/plain.py -a ! -e base/.git -a ! -e base/dir/conftest.py");
	json_decref(commit(hook, false));
	sh("test -f base/.git/hooks/pre-commit");
	sh("rm -r base && mv kept base");
}

static void test_protected_names(void **state)
{
	(void)state;
	static const char *const guarded[] = { ".git", ".git/config", "a/b/.venv/bin/x", "Makefile", "x/CLAUDE.md", "lib/x.pth", ".ENV" };
	static const char *const free_names[] = { "git", "main.py", "src/environment.py", "docs/readme.md", ".gitignore", "data/x.csv" };
	for (size_t i = 0; i < COUNT(guarded); i++)
		assert_true(cell__protected_path(guarded[i]));
	for (size_t i = 0; i < COUNT(free_names); i++)
		assert_false(cell__protected_path(free_names[i]));
	EACH_FORM(protect);
}

static void leave_traps(void)
{
	static const char *const out[] = { "out", NULL };
	sh("cp -a base kept");
	code("ln -s ../out out && ln -s /etc abs && ln -s dir/../text in && mkfifo pipe && chmod u+s text && mkdir s && ln -s ../../out s/out");
	json_t *outcome = commit(NULL, false);
	assert_int_equal(json_array_size(json_object_get(outcome, "skipped")), 4);
	json_decref(outcome);
	sh("test -L base/in -a ! -L base/out -a ! -L base/abs -a ! -e base/pipe -a ! -u base/text");
	json_decref(commit(out, false));
	sh("test -L base/out");
	sh("rm -r base && mv kept base");
}

static void test_links_out_and_nodes(void **state)
{
	(void)state;
	EACH_FORM(leave_traps);
}

/* The real workspace gets a link where the layer has a folder. */
static void test_link_in_the_base(void **state)
{
	(void)state;
	make_layer(CELL_LAYER_OVERLAY);
	code("echo x > dir/x && echo y > dir/sub/y");
	sh("mv base/dir out/dir && ln -s ../out/dir base/dir");
	json_t *outcome = commit(NULL, true);
	json_decref(outcome);
	sh("test ! -e out/dir/x -a ! -e out/dir/sub/y");
}

static void test_names_of_any_bytes(void **state)
{
	(void)state;
	make_layer(CELL_LAYER_OVERLAY);
	code("echo x > \"$(printf 'new\\nline')\" && echo x > \"$(printf 'bad\\377')\" && echo x > 'back\\slash' && echo x > 'ü'");
	assert_string_equal(changes(), "+back\\x5cslash +bad\\xff +new\\x0aline +ü");
	static const char *const bad[] = { "bad\\xff", "new\\x0aline", NULL };
	json_decref(commit(bad, false));
	assert_string_equal(changes(), "+back\\x5cslash +ü");
	sh("test -e base/\"$(printf 'bad\\377')\"");
}

static void test_depth_and_rights(void **state)
{
	(void)state;
	struct cell_error err;
	struct cell__frozen *frozen;
	make_layer(CELL_LAYER_OVERLAY);
	code("echo secret > locked && chmod 0 locked && python3 -c \"\n"
	     "import os\nfor i in range(1000): os.mkdir('d'); os.chdir('d')\n\"");
	json_t *diff = cell__layer_diff(layer, true, &err), *outcome;
	assert_non_null(diff);
	assert_true(json_array_size(json_object_get(diff, "files")) <= CELL_LAYER_MAX_DEPTH + 2);
	json_decref(diff);
	assert_int_equal(cell__layer_freeze(layer, &frozen, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	outcome = commit((const char *const[]){ "locked", NULL }, false);
	assert_int_equal(json_array_size(json_object_get(outcome, geteuid() ? "skipped" : "committed")), 1);
	json_decref(outcome);
	assert_int_equal(cell__layer_restore(layer, 0, NULL, &err), 0);
	assert_string_equal(changes(), "");
}

static void test_large_files(void **state)
{
	(void)state;
	struct cell_error err;
	sh("truncate -s 200M base/large && yes | head -c 300000 > base/long");
	make_layer(CELL_LAYER_OVERLAY);
	code("printf x | dd of=large bs=1 seek=100 conv=notrunc status=none && echo y >> long && yes n | head -n 5000 > many");
	json_t *diff = cell__layer_diff(layer, true, &err);
	assert_non_null(diff);
	assert_true(json_is_true(json_object_get(file_of(diff, "large"), "binary")));
	assert_true(json_is_true(json_object_get(file_of(diff, "long"), "binary"))); /* too long to show */
	assert_non_null(json_object_get(file_of(diff, "many"), "diff"));
	json_decref(diff);
}

static void test_files_that_change_meanwhile(void **state)
{
	(void)state;
	make_layer(CELL_LAYER_OVERLAY);
	code("head -c 3000000 /dev/zero > busy");
	pid_t pid = fork();
	if (pid == 0) {
		int fd = openat(view_fd, "busy", O_WRONLY);
		for (;;)
			if (pwrite(fd, "x", 1, 5) < 0)
				_exit(1);
	}
	for (int i = 0; i < 20; i++) {
		json_t *outcome = commit(NULL, true);
		size_t skipped = json_array_size(json_object_get(outcome, "skipped")),
		       written = json_array_size(json_object_get(outcome, "committed"));
		assert_true(skipped + written <= 1);
		json_decref(outcome);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	sh("! ls -A base | grep workcell");
}

/* A process that was killed leaves its folder; that of a living one stays, and so does everything that is not a folder of ours. */
static void test_folders_of_the_dead(void **state)
{
	(void)state;
	struct cell__layer *other = NULL;
	make_layer(CELL_LAYER_COPY);
	pid_t pid = fork();
	if (pid == 0)
		_exit(cell__layer_create(at("base"), at("home"), CELL_LAYER_COPY, 0, 0, &other, NULL) == 0 ? 9 : 1);
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 9);
	sh("ln -s ../base home/workcell-layer-abcdef && mkdir home/workcell-layer-longer-name && echo x > home/workcell-layer-ghijkl");
	sh("test $(ls -d home/*/upper | wc -l) = 2");
	cell__layer_reclaim(at("home"));
	sh("test $(ls -d home/*/upper | wc -l) = 1 && test -e home/workcell-layer-longer-name && "
	   "test -e home/workcell-layer-ghijkl && test -e base/text");
	assert_int_equal(access(cell__layer_upper(layer), F_OK), 0);
	sh("rm -r home/workcell-layer-abcdef home/workcell-layer-longer-name home/workcell-layer-ghijkl");
}

/* In a process of its own, which has a small file system; its status is the line of the first failure, modulo 256. */
#define MUST(condition)                        \
	do {                                   \
		if (!(condition))              \
			_exit(__LINE__ % 256); \
	} while (0)

static void fill_disk(void)
{
	struct cell_error err = { 0 };
	struct cell__layer *other = NULL;
	struct cell__frozen *frozen = NULL;
	MUST(system("head -c 100000 /dev/urandom > base/large") == 0);
	if (cell__layer_create(at("base"), at("home"), CELL_LAYER_COPY, 0, 0, &layer, &err) < 0)
		fprintf(stderr, "%s\n", err.msg);
	MUST(layer);
	MUST(chdir(cell__layer_upper(layer)) == 0 && system("echo new > made") == 0 && chdir(top) == 0);
	MUST(system("head -c 2000000 /dev/zero > home/full 2>/dev/null") != 0); /* it has no room for all of it */
	MUST(cell__layer_freeze(layer, &frozen, &err) < 0 && err.code == CELL_E_LIMIT && !frozen);
	MUST(cell__layer_fork(layer, NULL, &other, &err) < 0 && err.code == CELL_E_LIMIT && !other);
	MUST(cell__layer_create(at("base"), at("home"), CELL_LAYER_COPY, 0, 0, &other, &err) < 0 && err.code == CELL_E_LIMIT);
	MUST(system("test $(ls home | wc -l) = 2 && test -z \"$(ls home/*/points)\"") == 0); /* nothing is left of them */
	MUST(unlink(at("home/full")) == 0 && cell__layer_freeze(layer, &frozen, &err) == 0);
	cell__frozen_destroy(frozen);
	cell__layer_destroy(layer);
	_exit(0);
}

static void test_full_disk(void **state)
{
	(void)state;
	int status;
	pid_t pid = fork();
	if (pid == 0) {
		unsigned uid = geteuid(), gid = getegid();
		char line[64];
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
			_exit(1);
		write_line("/proc/self/setgroups", "deny");
		snprintf(line, sizeof line, "%u %u 1", uid, uid);
		write_line("/proc/self/uid_map", line);
		snprintf(line, sizeof line, "%u %u 1", gid, gid);
		write_line("/proc/self/gid_map", line);
		MUST(chdir(top) == 0 && mount("tmpfs", at("home"), "tmpfs", 0, "size=512k") == 0);
		fill_disk();
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void test_limit(void **state)
{
	(void)state;
	struct cell_error err;
	sh("head -c 2000000 /dev/urandom > base/large");
	assert_int_equal(cell__layer_create(at("base"), at("home"), CELL_LAYER_COPY, 1000000, 0, &layer, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	layer = NULL;
	assert_int_equal(cell__layer_create(at("base"), at("home"), CELL_LAYER_COPY, 0, 3, &layer, &err), -1);
	assert_int_equal(err.code, CELL_E_LIMIT);
	layer = NULL;
	sh("test -z \"$(ls -A home)\"");
}

/* ---- states ---- */

static void go_back(void)
{
	struct cell__frozen *first, *second;
	struct cell_error err;
	code("echo 1 > text && rm -r dir && mkdir -p new/sub && echo n > new/sub/n && ln -s x sym");
	sh("cp -a /proc/%d/fd/%d/. first", (int)getpid(), view_fd);
	assert_int_equal(cell__layer_freeze(layer, &first, &err), 0);
	code("echo 2 > text && mkdir dir && echo d > dir/d && rm -r new && echo f > new && rm sym && mkdir sym && echo b > bin && chmod 700 gone");
	sh("cp -a /proc/%d/fd/%d/. second", (int)getpid(), view_fd);
	assert_int_equal(cell__layer_freeze(layer, &second, &err), 0);
	for (int i = 0; i < 2; i++) {
		if (cell__layer_restore(layer, 0, first, &err) < 0)
			fail_msg("%s", err.msg);
		sh("diff -r --no-dereference first /proc/%d/fd/%d/.", (int)getpid(), view_fd);
		code("rm -r text new && echo z > z");
		if (cell__layer_restore(layer, 0, second, &err) < 0)
			fail_msg("%s", err.msg);
		sh("diff -r --no-dereference second /proc/%d/fd/%d/.", (int)getpid(), view_fd);
		sh("test $(stat -c %%a /proc/%d/fd/%d/gone) = 700", (int)getpid(), view_fd);
	}
	/* Discarded: what base has. */
	assert_int_equal(cell__layer_restore(layer, 0, NULL, &err), 0);
	sh("diff -r --no-dereference base /proc/%d/fd/%d/.", (int)getpid(), view_fd);
	assert_string_equal(changes(), "");
	cell__frozen_destroy(second);
	/* Another layer, and the first one is not touched by it. */
	struct cell__layer *fork;
	assert_int_equal(cell__layer_fork(layer, first, &fork, &err), 0);
	struct cell__layer *source = layer;
	layer = fork;
	assert_string_equal(changes(), "-dir/a -dir/sub/b -dir/sub -dir +new +new/sub +new/sub/n +sym ~text");
	layer = source;
	assert_string_equal(changes(), "");
	cell__layer_destroy(fork);
	cell__frozen_destroy(first);
	sh("rm -r first second");
}

static void test_states(void **state)
{
	(void)state;
	EACH_FORM(go_back);
}

/* Without a mount the parts are exchanged, and the next mount shows them. */
static void test_states_without_a_kernel(void **state)
{
	(void)state;
	struct cell__frozen *frozen;
	struct cell_error err;
	make_layer(CELL_LAYER_OVERLAY);
	code("rm -r dir && mkdir dir && echo x > dir/x && rm gone");
	assert_int_equal(cell__layer_freeze(layer, &frozen, &err), 0);
	code("rm dir/x && echo y > y");
	unmount_overlay();
	assert_int_equal(cell__layer_restore(layer, 0, frozen, &err), 0);
	mount_overlay();
	code("test -f dir/x -a ! -e dir/a -a ! -e gone -a ! -e y");
	unmount_overlay();
	assert_int_equal(cell__layer_restore(layer, 0, NULL, &err), 0);
	mount_overlay();
	code("test -f dir/a -a -f gone");
	cell__frozen_destroy(frozen);
}

/* A file that cannot be trusted: names that lead out, and any other byte changed or missing. */
static void damage(int from_fd)
{
	struct cell_error err;
	char bytes[8192];
	ssize_t n = pread(from_fd, bytes, sizeof bytes, 0);
	assert_true(n > 100 && n < (ssize_t)sizeof bytes);
	int fd = memfd_create("damaged", MFD_CLOEXEC);
	char *name = memmem(bytes, (size_t)n, "lead-out", 8);
	assert_non_null(name);
	memcpy(name, "../out/x", 8);
	assert_int_equal(pwrite(fd, bytes, (size_t)n, 0), n);
	assert_int_equal(cell__layer_unpack(layer, fd, &err), -1);
	assert_int_equal(err.code, CELL_E_DAMAGED);
	memcpy(name, "lead-out", 8);
	for (ssize_t i = 0; i < n; i += 3) {
		char old = bytes[i];
		bytes[i] = (char)(old ^ (i % 2 ? 0x7f : 1));
		assert_int_equal(pwrite(fd, bytes, (size_t)n, 0), n);
		(void)cell__layer_unpack(layer, fd, NULL);
		bytes[i] = old;
		assert_int_equal(ftruncate(fd, i), 0);
		assert_int_equal(cell__layer_unpack(layer, fd, &err), -1);
		assert_int_equal(err.code, CELL_E_DAMAGED);
	}
	close(fd);
	sh("test -z \"$(ls -A out)\" && test \"$(cat base/text)\" = \"$(printf 'one\ntwo\nthree')\"");
	sh("test -z \"$(ls -A home/*/points)\"");
}

static void test_packed_states(void **state)
{
	(void)state;
	for (int i = 0; i < 2; i++) {
		struct cell__frozen *frozen;
		struct cell_error err;
		int fd = -1;
		make_layer(forms[i]);
		code("rm -r dir && mkdir dir && echo x > dir/x && rm gone && echo y > lead-out && chmod 640 lead-out && touch -d @5 lead-out && "
		     "ln -s ../out away && : > empty");
		assert_int_equal(cell__layer_freeze(layer, &frozen, &err), 0);
		assert_int_equal(cell__frozen_pack(frozen, &fd, &err), 0);
		cell__frozen_destroy(frozen);
		end_layer();
		make_layer(forms[!i]);
		unmount_overlay();
		assert_int_equal(cell__layer_unpack(layer, fd, &err), -1);
		assert_int_equal(err.code, CELL_E_DIFFERS);
		end_layer();
		make_layer(forms[i]);
		if (forms[i] == CELL_LAYER_OVERLAY)
			unmount_overlay();
		damage(fd);
		assert_int_equal(cell__layer_unpack(layer, fd, &err), 0);
		if (forms[i] == CELL_LAYER_OVERLAY)
			mount_overlay();
		code("test -f dir/x -a ! -e dir/a -a ! -e gone -a -e empty -a \"$(stat -c %%a:%%Y lead-out)\" = 640:5 -a "
		     "\"$(readlink away)\" = ../out -a -f text");
		close(fd);
		if (i == 0)
			end_layer();
	}
}

/* ---- texts ---- */

static void unified(const char *a, const char *b, const char *expected)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	assert_int_equal(cell__unified("f", a, strlen(a), b, strlen(b), &out), 0);
	assert_string_equal(out.data, expected);
}

static void test_unified(void **state)
{
	(void)state;
	unified("", "a\n", "--- a/f\n+++ b/f\n@@ -0,0 +1,1 @@\n+a\n");
	unified("a\n", "", "--- a/f\n+++ b/f\n@@ -1,1 +0,0 @@\n-a\n");
	unified("a", "a\n", "--- a/f\n+++ b/f\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n");
	unified("1\n2\n3\n4\n5\n6\n7\n8\n9\n", "1\n2\n3\n4\nfive\n6\n7\n8\n9\n",
		"--- a/f\n+++ b/f\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
	/* Random texts: what it says, applied by patch(1)'s rules, gives the other text. */
	srand(1);
	for (int round = 0; round < 200; round++) {
		char a[2000] = "", b[2000] = "";
		for (int i = 0; i < 60; i++) {
			char line[4] = { (char)('a' + rand() % 5), '\n', 0, 0 };
			if (rand() % 4)
				strcat(a, line);
			if (rand() % 4)
				strcat(b, line);
		}
		CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
		assert_int_equal(cell__unified("f", a, strlen(a), b, strlen(b), &out), 0);
		char result[4000] = "";
		const char *from = a;
		size_t line_of_a = 1;
		for (char *save = NULL, *line = strtok_r(out.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
			size_t first, count;
			if (sscanf(line, "@@ -%zu,%zu", &first, &count) == 2) {
				for (; line_of_a < first + (count == 0); line_of_a++) {
					const char *stop = strchr(from, '\n') + 1;
					strncat(result, from, (size_t)(stop - from));
					from = stop;
				}
			} else if (strncmp(line, "---", 3) != 0 && strncmp(line, "+++", 3) != 0) {
				if (line[0] != '+') {
					assert_memory_equal(from, line + 1, 1);
					from += 2;
					line_of_a++;
				}
				if (line[0] != '-') {
					strncat(result, line + 1, 1);
					strcat(result, "\n");
				}
			}
		}
		strcat(result, from);
		assert_string_equal(result, b);
	}
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		LAYER_TEST(test_kinds_of_changes),
		LAYER_TEST(test_same_content_is_no_change),
		LAYER_TEST(test_renames),
		LAYER_TEST(test_renames_in_a_copy),
		LAYER_TEST(test_commit),
		LAYER_TEST(test_conflicts),
		LAYER_TEST(test_deleted_underneath),
		LAYER_TEST(test_protected_names),
		LAYER_TEST(test_links_out_and_nodes),
		LAYER_TEST(test_link_in_the_base),
		LAYER_TEST(test_names_of_any_bytes),
		LAYER_TEST(test_depth_and_rights),
		LAYER_TEST(test_large_files),
		LAYER_TEST(test_files_that_change_meanwhile),
		LAYER_TEST(test_folders_of_the_dead),
		LAYER_TEST(test_full_disk),
		LAYER_TEST(test_limit),
		LAYER_TEST(test_states),
		LAYER_TEST(test_states_without_a_kernel),
		LAYER_TEST(test_packed_states),
		TEST(test_unified),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
