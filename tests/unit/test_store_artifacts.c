/* storage/artifacts.c and index.c: saving, loading, the index, and what happens when things go wrong on the way. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>

#include "storage/file.h"
#include "store_support.h"

static int save_bytes(struct cell__store *store, const char *name, const void *bytes, size_t size, const char *type,
		      const char *description, json_t *metadata, struct cell_error *err)
{
	struct cell__artifact_writer *writer;
	if (cell__artifact_begin(store, name, &writer, err) < 0)
		return -1;
	if (cell__artifact_write(writer, bytes, size, err) < 0) {
		cell__artifact_abort(writer);
		return -1;
	}
	return cell__artifact_commit(writer, type, description, metadata, NULL, err);
}

static int save(struct cell__store *store, const char *name, const char *text, struct cell_error *err)
{
	return save_bytes(store, name, text, strlen(text), "text", "", NULL, err);
}

/* The content, NUL-terminated; info may be NULL. */
static char *load(struct cell__store *store, const char *name, json_t **info, struct cell_error *err)
{
	struct cell__artifact_reader *reader;
	if (cell__artifact_open(store, name, &reader, err) < 0)
		return NULL;
	size_t size = (size_t)cell__artifact_reader_size(reader);
	char *text = calloc(1, size + 1);
	assert_int_equal(cell__artifact_pread(reader, text, size + 1, 0, err), size);
	if (info)
		*info = json_incref(cell__artifact_reader_info(reader));
	cell__artifact_reader_close(reader);
	return text;
}

static void expect(struct cell__store *store, const char *name, const char *text)
{
	struct cell_error err = { 0 };
	CELL_AUTO_FREE char *got = load(store, name, NULL, &err);
	if (!got)
		fail_msg("load %s: %s", name, err.msg);
	assert_string_equal(got, text);
}

static size_t count(struct cell__store *store)
{
	json_t *list = NULL;
	OK(cell__artifact_list(store, &list, &err));
	size_t n = json_array_size(list);
	json_decref(list);
	return n;
}

/* No file of ours that is not the lock may be left. */
static void expect_clean(const struct folder *folder, const char *name)
{
	CELL_AUTO_FREE char *command = NULL;
	if (!on_files(folder)) {
		assert_int_equal(redis_count("*__tmp__*"), 0);
		return;
	}
	assert_true(asprintf(&command, "find '%s/%s' -name '.cell-*' ! -name .cell-lock | grep .", folder->path, name) > 0);
	assert_int_equal(WEXITSTATUS(system(command)), 1);
}

static void test_save_and_load(void **state)
{
	struct folder *folder = *state;
	json_t *metadata = json_pack("{s:i, s:s}", "rows", 3, "_data_type", "lies");
	OK(save_bytes(folder->store, "a/b/report.txt", "hello", 5, "text", "a report", metadata, &err));
	json_decref(metadata);
	json_t *info = NULL;
	CELL_AUTO_FREE char *text = load(folder->store, "a/b/report.txt", &info, NULL);
	assert_string_equal(text, "hello");
	assert_string_equal(text_of(info, "name"), "a/b/report.txt");
	assert_string_equal(text_of(info, "description"), "a report");
	assert_string_equal(text_of(json_object_get(info, "metadata"), "_data_type"), "text");
	assert_int_equal(json_integer_value(json_object_get(json_object_get(info, "metadata"), "rows")), 3);
	assert_int_equal(json_integer_value(json_object_get(info, "size")), 5);
	assert_true(json_is_false(json_object_get(info, "derived")));
	assert_string_equal(text_of(info, "path"),
			    on_files(folder) ? in(folder, "artifacts/a/b/report.txt") : redis_key(folder, "artifacts:a/b/report.txt"));
	const char *when = text_of(info, "created_at");
	assert_int_equal(strlen(when), strlen("2026-11-15T05:06:40.123456+00:00"));
	assert_string_equal(when + 26, "+00:00");
	json_decref(info);
	expect_clean(folder, "artifacts");
	/* The payload is as it was, and the index has the reference's shape. */
	if (!on_files(folder)) {
		redis_expect("hello", "GET %s", redis_key(folder, "artifacts:a/b/report.txt"));
		return;
	}
	CELL_AUTO_FREE char *raw = read_text(folder, "artifacts/a/b/report.txt");
	assert_string_equal(raw, "hello");
	CELL_AUTO_FREE char *index_text = read_text(folder, "artifacts/.artifacts.json");
	static const char begins[] = "{\n  \"a/b/report.txt\": {\n    \"description\": \"a report\",\n    \"created_at\": \"";
	assert_memory_equal(index_text, begins, strlen(begins));
	json_t *index = json_loads(index_text, 0, NULL);
	json_t *entry = json_object_get(index, "a/b/report.txt");
	assert_int_equal(json_object_size(entry), 3);
	json_decref(index);
	expect_clean(folder, "artifacts");
}

static void test_replace_get_delete(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	bool exists = true, deleted = true;
	json_t *info = NULL;
	FAILS(CELL_E_NOT_FOUND, "Artifact 'x' not found", cell__artifact_get(store, "x", &info, &err));
	OK(cell__artifact_exists(store, "x", &exists, &err));
	assert_false(exists);
	OK(cell__artifact_delete(store, "x", &deleted, &err));
	assert_false(deleted);
	assert_false(there(folder, "artifacts")); /* looking makes nothing */
	OK(save(store, "x", "one", &err));
	OK(save(store, "y", "other", &err));
	struct cell__artifact_reader *reader;
	OK(cell__artifact_open(store, "x", &reader, &err));
	OK(save_bytes(store, "x", "[2]", 3, "json", "second", NULL, &err));
	/* Who opened the old version keeps it. */
	char old[8] = "";
	assert_int_equal(cell__artifact_pread(reader, old, 8, 0, NULL), 3);
	assert_string_equal(old, "one");
	assert_int_equal(cell__artifact_pread(reader, old, 8, 3, NULL), 0);
	cell__artifact_reader_close(reader);
	expect(store, "x", "[2]");
	OK(cell__artifact_get(store, "x", &info, &err));
	assert_string_equal(text_of(info, "description"), "second");
	json_decref(info);
	assert_int_equal(count(store), 2);
	OK(cell__artifact_delete(store, "x", &deleted, &err));
	assert_true(deleted);
	FAILS(CELL_E_NOT_FOUND, "'x'", cell__artifact_get(store, "x", &info, &err));
	assert_int_equal(count(store), 1);
	FAILS(CELL_E_INVALID, "Path traversal attempt detected: '../x'", cell__artifact_get(store, "../x", &info, &err));
	FAILS(CELL_E_INVALID, "Path traversal", cell__artifact_delete(store, "../x", NULL, &err));
	FAILS(CELL_E_INVALID, "reserved", save(store, ".artifacts.json", "{}", &err));
	expect_clean(folder, "artifacts");
}

static void test_refused(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	json_t *array = json_array();
	json_t *large = json_object();
	char *text = malloc(CELL__STORE_METADATA_BYTES + 1);
	memset(text, 'a', CELL__STORE_METADATA_BYTES);
	text[CELL__STORE_METADATA_BYTES] = '\0';
	json_object_set_new(large, "x", json_string(text));
	OK(save(store, "x", "old", &err));
	FAILS(CELL_E_INVALID, "object", save_bytes(store, "x", "n", 1, "text", "", array, &err));
	FAILS(CELL_E_LIMIT, "metadata", save_bytes(store, "x", "n", 1, "text", "", large, &err));
	FAILS(CELL_E_LIMIT, "description", save_bytes(store, "x", "n", 1, "text", text, NULL, &err));
	FAILS(CELL_E_INVALID, "UTF-8", save_bytes(store, "x", "n", 1, "text", "\xff", NULL, &err));
	FAILS(CELL_E_INVALID, "data type", save_bytes(store, "x", "n", 1, "Text!", "", NULL, &err));
	FAILS(CELL_E_INVALID, "data type", save_bytes(store, "x", "n", 1, "", "", NULL, &err));
	if (on_files(folder)) {
		make_folder(folder, "artifacts/dir");
		FAILS(CELL_E_EXISTS, "Cannot write artifact 'dir'", save(store, "dir", "n", &err));
		FAILS(CELL_E_EXISTS, "Cannot write artifact 'x/y'", save(store, "x/y", "n", &err));
	} else {
		FAILS(CELL_E_INVALID, "reserved", save(store, "__index__", "n", &err));
		FAILS(CELL_E_INVALID, "reserved", save(store, "__tmp__:x", "n", &err));
	}
	json_t *info = NULL;
	FAILS(CELL_E_NOT_FOUND, "", cell__artifact_get(store, "dir", &info, &err));
	FAILS(CELL_E_NOT_FOUND, "", cell__artifact_get(store, "x/y", &info, &err));
	expect(store, "x", "old");
	assert_int_equal(count(store), 1);
	free(text);
	json_decref(array);
	json_decref(large);
	expect_clean(folder, "artifacts");
}

static void test_symlinks(void **state)
{
	struct folder *folder = *state;
	json_t *info;
	make_folder(folder, "artifacts");
	make_folder(folder, "outside");
	write_text(folder, "outside/secret", "secret");
	assert_int_equal(symlink("../outside", in(folder, "artifacts/link")), 0);
	assert_int_equal(symlink("../outside/secret", in(folder, "artifacts/file")), 0);
	FAILS(CELL_E_INVALID, "Path traversal", cell__artifact_get(folder->store, "link/secret", &info, &err));
	FAILS(CELL_E_INVALID, "Path traversal", cell__artifact_get(folder->store, "file", &info, &err));
	FAILS(CELL_E_INVALID, "Path traversal", save(folder->store, "link/new", "x", &err));
	assert_false(there(folder, "outside/new"));
	assert_int_equal(count(folder->store), 0);
	/* Saving takes the link's place, what it pointed to is untouched. */
	OK(save(folder->store, "file", "mine", &err));
	CELL_AUTO_FREE char *secret = read_text(folder, "outside/secret");
	assert_string_equal(secret, "secret");
}

/* What a person, or another program, put there. */
static void test_unindexed(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "artifacts");
	make_folder(folder, "artifacts/sub");
	make_folder(folder, "artifacts/.git");
	write_text(folder, "artifacts/plain.txt", "caf\xc3\xa9");
	write_text(folder, "artifacts/sub/data.json", "{}");
	write_text(folder, "artifacts/sub/image", "\x89PNG\xff");
	write_text(folder, "artifacts/.gitignore", "x");
	write_text(folder, "artifacts/.git/config", "x");
	json_t *list = NULL;
	OK(cell__artifact_list(folder->store, &list, &err));
	assert_int_equal(json_array_size(list), 3);
	const char *const names[] = { "plain.txt", "sub/data.json", "sub/image" };
	const char *const types[] = { "text", "json", "bytes" };
	for (size_t i = 0; i < 3; i++) {
		json_t *one = json_array_get(list, i);
		assert_string_equal(text_of(one, "name"), names[i]);
		assert_string_equal(text_of(json_object_get(one, "metadata"), "_data_type"), types[i]);
		assert_true(json_is_true(json_object_get(one, "derived")));
		assert_string_equal(text_of(one, "description"), "");
	}
	json_decref(list);
	expect(folder->store, "plain.txt", "caf\xc3\xa9");
	expect(folder->store, ".gitignore", "x");
	/* One saved on purpose is listed although it is hidden. */
	OK(save(folder->store, ".gitignore", "y", &err));
	assert_int_equal(count(folder->store), 4);
	assert_int_equal(unlink(in(folder, "artifacts/.gitignore")), 0);
	assert_int_equal(count(folder->store), 3);
}

static void test_existing_index(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "artifacts");
	write_text(folder, "artifacts/old.txt", "text");
	write_text(folder, "artifacts/odd", "text");
	write_text(folder, "artifacts/.artifacts.json",
		   "{\n  \"old.txt\": {\"description\": \"d\\u00e9j\\u00e0\", \"created_at\": \"2024-01-02T03:04:05.678901+00:00\","
		   " \"metadata\": {\"_data_type\": \"text\", \"big\": 123456789012345678901234567890, \"z\": \"a\\u0000b\"}},"
		   " \"gone\": {\"description\": \"\", \"created_at\": \"\", \"metadata\": {}},"
		   " \"../../etc/passwd\": {\"description\": \"\"}, \"odd\": 5}");
	json_t *list = NULL;
	OK(cell__artifact_list(folder->store, &list, &err));
	assert_int_equal(json_array_size(list), 2);
	json_t *old = json_array_get(list, 1);
	assert_string_equal(text_of(old, "name"), "old.txt");
	assert_string_equal(text_of(old, "description"), "d\xc3\xa9j\xc3\xa0");
	assert_string_equal(text_of(old, "created_at"), "2024-01-02T03:04:05.678901+00:00");
	json_decref(list);
	/* A change keeps the rest. */
	OK(save(folder->store, "new", "x", &err));
	json_t *info = NULL;
	OK(cell__artifact_get(folder->store, "old.txt", &info, &err));
	assert_string_equal(text_of(info, "description"), "d\xc3\xa9j\xc3\xa0");
	json_decref(info);
}

static bool has_broken(const struct folder *folder)
{
	CELL_AUTO_FREE char *command = NULL;
	assert_true(asprintf(&command, "ls -a '%s/artifacts' | grep -q '^\\.artifacts\\.json\\.broken-'", folder->path) > 0);
	return WEXITSTATUS(system(command)) == 0;
}

static void test_corrupt_index(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	static const char *const broken[] = { "", "{", "[]", "{\"x\": }", "null", "{\"x\": {}} x", "\xff\xfe" };
	for (size_t i = 0; i < COUNT(broken); i++) {
		for (int how = 0; how < 4; how++) {
			struct cell_error why = { 0 }, notice = { 0 };
			json_t *found = NULL;
			OK(save(store, "x", "kept", &err));
			write_text(folder, "artifacts/.artifacts.json", broken[i]);
			int rc = how == 0   ? cell__artifact_list(store, &found, &why)
				 : how == 1 ? cell__artifact_get(store, "x", &found, &why)
				 : how == 2 ? save(store, "y", "new", &why)
					    : (expect(store, "x", "kept"), 0);
			/* Looking reports it once; saving and loading go on and leave a notice. */
			assert_int_equal(rc, how < 2 ? -1 : 0);
			if (how >= 2) {
				assert_true(cell__store_take_notice(store, &notice));
				assert_false(cell__store_take_notice(store, &why));
				why = notice;
			}
			assert_int_equal(why.code, CELL_E_IO);
			assert_int_equal(why.sys, EUCLEAN);
			assert_non_null(strstr(why.msg, "kept as .artifacts.json.broken-"));
			assert_true(has_broken(folder));
			expect(store, "x", "kept");
			assert_int_equal(count(store), how == 2 ? 2 : 1);
			remove_tree(in(folder, "artifacts"));
		}
	}
}

static void test_workspaces(void **state)
{
	struct folder *folder = *state;
	struct cell__store *a = NULL, *b = NULL;
	OK(cell__store_open(folder->base, "a", &a, &err));
	OK(cell__store_open(folder->base, "b", &b, &err));
	OK(save(folder->store, "x", "base", &err));
	OK(save(a, "x", "in a", &err));
	expect(folder->store, "x", "base");
	expect(a, "x", "in a");
	assert_int_equal(count(b), 0);
	if (on_files(folder))
		assert_true(there(folder, "workspaces/a/artifacts/x"));
	else
		redis_expect("in a", "GET %s", redis_key(folder, "ws:a:artifacts:x"));
	cell__store_close(a);
	cell__store_close(b);
}

/* ---- several processes ---- */

#define HAMMERS 8
#define ROUNDS 40

static void hammer(const char *path, int me)
{
	struct cell__store *store = NULL;
	CHECK(cell__store_open(path, NULL, &store, NULL) == 0);
	struct cell_error err = { 0 };
	for (int i = 0; i < ROUNDS; i++) {
		char name[64], text[64];
		snprintf(name, sizeof name, "own/%d-%d", me, i);
		snprintf(text, sizeof text, "%d %d", me, i);
		if (save(store, name, text, &err) < 0) {
			fprintf(stderr, "%s\n", err.msg);
			abort();
		}
		CHECK(save_bytes(store, "shared", text, strlen(text), me % 2 ? "text" : "bytes", text, NULL, NULL) == 0);
		/* Data and entry belong together, whoever wrote them. */
		json_t *info = NULL;
		char *got = load(store, "shared", &info, &err);
		CHECK(got && strcmp(got, text_of(info, "description")) == 0);
		free(got);
		json_decref(info);
		if (i % 4 == 3) {
			snprintf(name, sizeof name, "own/%d-%d", me, i - 1);
			CHECK(cell__artifact_delete(store, name, NULL, NULL) == 0);
		}
	}
	cell__store_close(store);
}

static void test_eight_processes(void **state)
{
	struct folder *folder = *state;
	pid_t pids[HAMMERS];
	for (int i = 0; i < HAMMERS; i++) {
		pids[i] = fork();
		assert_true(pids[i] >= 0);
		if (pids[i] == 0) {
			hammer(folder->base, i);
			_exit(0);
		}
	}
	for (int i = 0; i < HAMMERS; i++) {
		int status;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	/* Nothing was lost: every own artifact is in the index, as its writer left it. */
	json_t *list = NULL;
	OK(cell__artifact_list(folder->store, &list, &err));
	assert_int_equal(json_array_size(list), HAMMERS * ROUNDS * 3 / 4 + 1);
	size_t i;
	json_t *one;
	json_array_foreach(list, i, one)
		assert_true(json_is_false(json_object_get(one, "derived")));
	json_decref(list);
	expect_clean(folder, "artifacts");
}

/* ---- killed at any moment ---- */

static void save_for_ever(const char *path)
{
	struct cell__store *store = NULL;
	CHECK(cell__store_open(path, NULL, &store, NULL) == 0);
	static char block[200000];
	for (unsigned i = 0;; i++) {
		/* Everything about one version follows from its first byte. */
		char c = (char)('a' + i % 26), description[2] = { c, '\0' };
		memset(block, c, sizeof block);
		CHECK(save_bytes(store, "sub/x", block, 1000 + 7 * (size_t)c * (size_t)c, i % 2 ? "text" : "bytes", description, NULL,
				 NULL) == 0);
		if (i % 5 == 4)
			CHECK(cell__artifact_delete(store, "sub/x", NULL, NULL) == 0);
	}
}

static void expect_whole(struct cell__store *store, int *seen)
{
	struct cell_error err = { 0 };
	json_t *info = NULL;
	CELL_AUTO_FREE char *text = load(store, "sub/x", &info, &err);
	if (!text) {
		assert_int_equal(err.code, CELL_E_NOT_FOUND);
		return;
	}
	++*seen;
	size_t size = strlen(text);
	assert_int_equal(size, 1000 + 7 * (size_t)text[0] * (size_t)text[0]);
	assert_int_equal(strspn(text, (char[]){ text[0], '\0' }), size);
	assert_true(json_is_false(json_object_get(info, "derived")));
	assert_int_equal(text_of(info, "description")[0], text[0]);
	json_decref(info);
}

static void test_kill_9(void **state)
{
	struct folder *folder = *state;
	int seen = 0;
	int rounds = on_files(folder) ? 150 : 30;
	for (int round = 0; round < rounds; round++) {
		pid_t pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			save_for_ever(folder->base);
		/* Not a wait for anything: where it hits is the point. */
		nanosleep(&(struct timespec){ .tv_nsec = 3000000 + (long)(random() % 12000000) }, NULL);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		expect_whole(folder->store, &seen);
		CELL_AUTO_FREE char *index = read_text(folder, "artifacts/.artifacts.json");
		json_t *parsed = index ? json_loads(index, 0, NULL) : json_object();
		assert_non_null(parsed);
		json_decref(parsed);
		assert_false(there(folder, "artifacts/" CELL__JOURNAL_FILE)); /* reading completed it */
	}
	assert_true(seen > rounds / 3);
}

/* Runs fn in a process that is killed when it enters or leaves its n-th system call.  False: it ended before that. */
static bool kill_at(int n, void (*fn)(const char *path), const char *path)
{
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
		raise(SIGSTOP);
		fn(path);
		_exit(0);
	}
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	for (int i = 0; i < n && WIFSTOPPED(status); i++) {
		assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
		assert_int_equal(waitpid(pid, &status, 0), pid);
	}
	if (!WIFSTOPPED(status)) {
		assert_int_equal(status, 0);
		return false;
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return true;
}

static void save_new(const char *path)
{
	struct cell__store *store = NULL;
	CHECK(cell__store_open(path, NULL, &store, NULL) == 0);
	CHECK(save_bytes(store, "sub/x", "new", 3, "bytes", "new", NULL, NULL) == 0);
}

static void delete_it(const char *path)
{
	struct cell__store *store = NULL;
	CHECK(cell__store_open(path, NULL, &store, NULL) == 0);
	CHECK(cell__artifact_delete(store, "sub/x", NULL, NULL) == 0);
}

/* What the killed ones left is swept when it is old; here it would only make every round longer than the last. */
static void remove_temps(int dir_fd)
{
	DIR *dir = fdopendir(fcntl(dir_fd, F_DUPFD_CLOEXEC, 3));
	assert_non_null(dir);
	rewinddir(dir);
	for (struct dirent *entry; (entry = readdir(dir));)
		if (cell__temp_is_name(entry->d_name))
			assert_int_equal(unlinkat(dir_fd, entry->d_name, 0), 0);
	closedir(dir);
}

static void test_killed_at_every_call(void **state)
{
	(void)state;
	int old = 0, new = 0, gone = 0;
	/* In memory: each of these many saves waits for the disk otherwise. */
	struct folder memory = { .path = "/dev/shm/cell-test-XXXXXX", .base = memory.path }, *folder = &memory;
	assert_non_null(mkdtemp(folder->path));
	OK(cell__store_open(folder->base, NULL, &folder->store, &err));
	OK(save_bytes(folder->store, "other", "kept", 4, "text", "kept", NULL, &err));
	CELL_AUTO_FD int dir_fd = open(in(folder, "artifacts"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int deleting = 0; deleting < 2; deleting++) {
		/* Every second stop: leaving one call and entering the next are the same moment. */
		for (int n = 1;; n += 2) {
			OK(save_bytes(folder->store, "sub/x", "old", 3, "text", "old", NULL, &err));
			bool killed = kill_at(n, deleting ? delete_it : save_new, folder->path);
			json_t *info = NULL;
			struct cell_error why = { 0 };
			/* A reader that comes first finds one version, of file and entry; so does the index itself. */
			CELL_AUTO_FREE char *text = load(folder->store, "sub/x", &info, &why);
			json_t *index = NULL;
			OK(cell__index_read(dir_fd, ".artifacts.json", NULL, &index, &err));
			const char *entry = text_of(json_object_get(index, "sub/x"), "description");
			if (text) {
				assert_string_equal(text, text_of(info, "description"));
				assert_string_equal(text, entry);
			} else {
				assert_int_equal(why.code, CELL_E_NOT_FOUND);
				assert_true(deleting);
				assert_string_equal(entry, "(none)");
			}
			old += text && strcmp(text, "old") == 0;
			new += text &&strcmp(text, "new") == 0;
			gone += !text;
			json_decref(info);
			json_decref(index);
			expect(folder->store, "other", "kept");
			CELL_AUTO_FD int sub_fd = openat(dir_fd, "sub", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			remove_temps(dir_fd);
			remove_temps(sub_fd);
			if (!killed)
				break;
		}
	}
	/* It was killed before, between and after. */
	assert_true(old > 20 && new > 5 && gone > 5);
	cell__store_close(folder->store);
	remove_tree(folder->path);
}

/* The same, at each step on purpose: a journal and what it needs are put there by hand. */
static void test_journal(void **state)
{
	struct folder *folder = *state;
	struct cell__store *store = folder->store;
	for (int step = 0; step < 4; step++) {
		for (int remove_it = 0; remove_it < 2; remove_it++) {
			OK(save(store, "x", "old", &err));
			struct stat st;
			const char *data = ".cell-tmp-00000000000000aa", *index = ".cell-tmp-00000000000000bb";
			char journal[512], path[64];
			if (!remove_it) {
				snprintf(path, sizeof path, "artifacts/%s", data);
				write_text(folder, path, "new");
			} else {
				strcpy(path, "artifacts/x");
			}
			assert_int_equal(stat(in(folder, path), &st), 0);
			snprintf(path, sizeof path, "artifacts/%s", index);
			write_text(folder, path,
				   remove_it ? "{}"
					     : "{\"x\": {\"description\": \"new\", \"created_at\": \"\","
					       " \"metadata\": {\"_data_type\": \"bytes\"}}}");
			snprintf(journal, sizeof journal,
				 "{\"index\":\".artifacts.json\",\"index_temp\":\"%s\",\"path\":\"x\","
				 "%s%s%s\"ino\":%llu}",
				 index, remove_it ? "" : "\"temp\":\"", remove_it ? "" : data, remove_it ? "" : "\",",
				 (unsigned long long)st.st_ino);
			char from[256];
			if (step > 0 && !remove_it) {
				strcpy(from, in(folder, "artifacts/.cell-tmp-00000000000000aa"));
				assert_int_equal(rename(from, in(folder, "artifacts/x")), 0);
			} else if (step > 0) {
				assert_int_equal(unlink(in(folder, "artifacts/x")), 0);
			}
			if (step > 1) {
				strcpy(from, in(folder, path));
				assert_int_equal(rename(from, in(folder, "artifacts/.artifacts.json")), 0);
			}
			if (step < 3)
				write_text(folder, "artifacts/" CELL__JOURNAL_FILE, journal);
			json_t *info = NULL;
			if (remove_it) {
				FAILS(CELL_E_NOT_FOUND, "", cell__artifact_get(store, "x", &info, &err));
			} else {
				expect(store, "x", "new");
				OK(cell__artifact_get(store, "x", &info, &err));
				assert_string_equal(text_of(info, "description"), "new");
				json_decref(info);
			}
			expect_clean(folder, "artifacts");
		}
	}
}

static void test_hostile_journal(void **state)
{
	struct folder *folder = *state;
	write_text(folder, "victim", "safe");
	OK(save(folder->store, "x", "old", &err));
	struct stat st;
	assert_int_equal(stat(in(folder, "victim"), &st), 0);
	static const char *const paths[] = { "../victim", "/etc/hostname", ".artifacts.json", "" };
	for (size_t i = 0; i < COUNT(paths); i++) {
		char journal[512];
		snprintf(journal, sizeof journal,
			 "{\"index\":\".artifacts.json\",\"index_temp\":\".cell-tmp-00000000000000bb\","
			 "\"path\":\"%s\",\"ino\":%llu}",
			 paths[i], (unsigned long long)st.st_ino);
		write_text(folder, "artifacts/" CELL__JOURNAL_FILE, journal);
		expect(folder->store, "x", "old");
	}
	static const char *const others[] = { "", "{}", "[1]", "\xff",
					      "{\"index\":\"../victim\",\"index_temp\":\"x\",\"path\":\"x\",\"ino\":1}" };
	for (size_t i = 0; i < COUNT(others); i++) {
		write_text(folder, "artifacts/" CELL__JOURNAL_FILE, others[i]);
		expect(folder->store, "x", "old");
		assert_false(there(folder, "artifacts/" CELL__JOURNAL_FILE));
	}
	CELL_AUTO_FREE char *victim = read_text(folder, "victim");
	assert_string_equal(victim, "safe");
}

/* ---- bad disks ---- */

static void test_full_disk(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "small");
	if (mount("tmpfs", in(folder, "small"), "tmpfs", 0, "size=256k") < 0) {
		if (geteuid() == 0)
			fail_msg("mount: %s", strerror(errno));
		skip();
	}
	struct cell__store *store = NULL;
	OK(cell__store_open(in(folder, "small"), NULL, &store, &err));
	OK(save_bytes(store, "x", "old", 3, "text", "first", NULL, &err));
	static char block[64 * 1024];
	struct cell__artifact_writer *writer = NULL;
	struct cell_error why = { 0 };
	OK(cell__artifact_begin(store, "x", &writer, &err));
	int rc = 0;
	for (int i = 0; i < 8 && rc == 0; i++)
		rc = cell__artifact_write(writer, block, sizeof block, &why);
	assert_int_equal(rc, -1);
	assert_int_equal(why.code, CELL_E_IO);
	assert_int_equal(why.sys, ENOSPC);
	assert_string_equal(why.msg, "Cannot write artifact 'x': No space left on device");
	cell__artifact_abort(writer);
	expect(store, "x", "old");
	/* The payload fits, and the index does not any more. */
	int filler = open(in(folder, "small/filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	OK(cell__artifact_begin(store, "x", &writer, &err));
	OK(cell__artifact_write(writer, "new", 3, &err));
	while (write(filler, block, 4096) > 0) {
	}
	close(filler);
	FAILS(CELL_E_IO, "No space left on device", cell__artifact_commit(writer, "bytes", "second", NULL, NULL, &err));
	expect(store, "x", "old");
	json_t *info = NULL;
	OK(cell__artifact_get(store, "x", &info, &err));
	assert_string_equal(text_of(info, "description"), "first");
	json_decref(info);
	assert_int_equal(unlink(in(folder, "small/filler")), 0);
	expect_clean(folder, "small/artifacts");
	/* What failed stays failed, also when there is room again: the rest would stand in the wrong place. */
	filler = open(in(folder, "small/filler"), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	while (write(filler, block, 4096) > 0) {
	}
	close(filler);
	OK(cell__artifact_begin(store, "x", &writer, &err));
	FAILS(CELL_E_IO, "No space left on device", cell__artifact_write(writer, block, sizeof block, &err));
	assert_int_equal(unlink(in(folder, "small/filler")), 0);
	FAILS(CELL_E_IO, "No space left on device", cell__artifact_write(writer, "rest", 4, &err));
	FAILS(CELL_E_IO, "No space left on device", cell__artifact_commit(writer, "bytes", "third", NULL, NULL, &err));
	expect(store, "x", "old");
	expect_clean(folder, "small/artifacts");
	OK(save(store, "x", "new", &err));
	cell__store_close(store);
	assert_int_equal(umount2(in(folder, "small"), MNT_DETACH), 0);
}

static void test_read_only(void **state)
{
	struct folder *folder = *state;
	make_folder(folder, "ro");
	struct cell__store *store = NULL;
	OK(cell__store_open(in(folder, "ro"), NULL, &store, &err));
	OK(save(store, "x", "old", &err));
	cell__store_close(store);
	const char *ro = in(folder, "ro");
	if (mount(ro, ro, NULL, MS_BIND, NULL) < 0) {
		if (geteuid() == 0)
			fail_msg("mount: %s", strerror(errno));
		skip();
	}
	assert_int_equal(mount(NULL, ro, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL), 0);
	OK(cell__store_open(ro, NULL, &store, &err));
	expect(store, "x", "old");
	assert_int_equal(count(store), 1);
	FAILS(CELL_E_IO, "Cannot write artifact 'x': Read-only file system", save(store, "x", "new", &err));
	FAILS(CELL_E_IO, "Cannot write artifact 'a/b': Read-only file system", save(store, "a/b", "new", &err));
	FAILS(CELL_E_IO, "Read-only file system", cell__artifact_delete(store, "x", NULL, &err));
	OK(cell__artifact_delete(store, "missing", NULL, &err));
	expect(store, "x", "old");
	cell__store_close(store);
	assert_int_equal(umount2(in(folder, "ro"), MNT_DETACH), 0);
	/* The folder's place is taken by a file. */
	make_folder(folder, "odd");
	write_text(folder, "odd/artifacts", "");
	OK(cell__store_open(in(folder, "odd"), NULL, &store, &err));
	FAILS(CELL_E_IO, "Cannot write artifact 'x': Not a directory", save(store, "x", "new", &err));
	cell__store_close(store);
}

/* ---- size ---- */

static void test_large_needs_no_memory(void **state)
{
	struct folder *folder = *state;
	enum { CHUNK = 256 * 1024, CHUNKS = 512 }; /* 128 MB */
	CELL_AUTO_FREE char *block = calloc(1, CHUNK);
	struct cell__artifact_writer *writer = NULL;
	struct cell__artifact_reader *reader = NULL;
	OK(save(folder->store, "warm", "up", &err));
	expect(folder->store, "warm", "up");
	memset(block, 1, CHUNK);
	long before = support_private_kb();
	OK(cell__artifact_begin(folder->store, "large", &writer, &err));
	for (int i = 0; i < CHUNKS; i++) {
		memcpy(block, &i, sizeof i);
		OK(cell__artifact_write(writer, block, CHUNK, &err));
	}
	OK(cell__artifact_commit(writer, "bytes", "", NULL, NULL, &err));
	OK(cell__artifact_open(folder->store, "large", &reader, &err));
	assert_int_equal(cell__artifact_reader_size(reader), (int64_t)CHUNK * CHUNKS);
	for (int i = 0; i < CHUNKS; i++) {
		assert_int_equal(cell__artifact_pread(reader, block, CHUNK, (int64_t)i * CHUNK, NULL), CHUNK);
		assert_memory_equal(block, &i, sizeof i);
	}
	cell__artifact_reader_close(reader);
	long grown = support_private_kb() - before;
	/* A backend may have one artifact of the size that is kept whole in memory. */
#ifdef SANITIZED
	if (!on_files(folder))
		grown = 0;
#endif
	if (grown > (on_files(folder) ? 4096 : 40 * 1024))
		fail_msg("grew by %ld kB", grown);
}

static void expect_said(struct cell__store *store, const char *description)
{
	json_t *info = NULL;
	OK(cell__artifact_get(store, "x", &info, &err));
	assert_string_equal(text_of(info, "description"), description);
	json_decref(info);
}

/* The parsed index is kept, and never when the file is another: by our own writers within one tick, or by hand. */
static void test_index_is_kept(void **state)
{
	(void)state;
	/* In memory: as quick, and with as few inodes to choose from, as it gets. */
	struct folder memory = { .path = "/dev/shm/cell-test-XXXXXX", .base = memory.path }, *folder = &memory;
	assert_non_null(mkdtemp(folder->path));
	OK(cell__store_open(folder->base, NULL, &folder->store, &err));
	struct cell__store *other = NULL;
	OK(cell__store_open(folder->base, NULL, &other, &err));
	struct cell__store *const stores[2] = { folder->store, other };
	for (int i = 0; i < 1000; i++) {
		char said[8];
		snprintf(said, sizeof said, "%04d", i);
		struct cell__store *writer = stores[i / 3 % 2];
		OK(save_bytes(writer, "x", "text", 4, "text", said, NULL, &err));
		assert_non_null(writer->artifacts.index);
		expect_said(stores[0], said);
		expect_said(stores[1], said);
	}
	/* What is kept is what a save goes on from, and what a listing still holds does not change under it. */
	json_t *held = json_incref(folder->store->artifacts.index), *before = json_deep_copy(held);
	OK(save_bytes(folder->store, "y", "text", 4, "text", "new", NULL, &err));
	assert_true(json_equal(held, before));
	json_decref(held);
	json_decref(before);
	expect_said(folder->store, "0999");
	assert_int_equal(json_object_size(folder->store->artifacts.index), 2);
	/* The same size, the same inode, at once. */
	for (int i = 0; i < 100; i++) {
		char said[8];
		snprintf(said, sizeof said, "by%02d", i);
		CELL_AUTO_FREE char *text = read_text(folder, "artifacts/.artifacts.json");
		memcpy(strstr(text, "\"description\": \"") + 16, said, 4);
		write_text(folder, "artifacts/.artifacts.json", text);
		expect_said(folder->store, said);
	}
	cell__store_close(other);
	cell__store_close(folder->store);
	remove_tree(folder->path);
}

static void test_out_of_memory(void **state)
{
	struct folder *folder = *state;
	OK(save(folder->store, "x", "old", &err));
	for (long n = 1;; n++) {
		assert_true(n < 1000);
		cell__alloc_fail_after(n);
		int rc = save(folder->store, "x", "new", NULL);
		cell__alloc_fail_after(0);
		if (rc == 0)
			break;
		expect(folder->store, "x", "old");
	}
	for (long n = 1;; n++) {
		json_t *list = NULL;
		assert_true(n < 1000);
		cell__alloc_fail_after(n);
		int rc = cell__artifact_list(folder->store, &list, NULL);
		cell__alloc_fail_after(0);
		json_decref(list);
		if (rc == 0)
			break;
	}
	expect_clean(folder, "artifacts");
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		BOTH_TEST(test_save_and_load),    BOTH_TEST(test_replace_get_delete),
		BOTH_TEST(test_refused),          STORE_TEST(test_symlinks),
		STORE_TEST(test_unindexed),       STORE_TEST(test_existing_index),
		STORE_TEST(test_corrupt_index),   BOTH_TEST(test_workspaces),
		BOTH_TEST(test_eight_processes),  BOTH_TEST(test_kill_9),
		TEST(test_killed_at_every_call),  STORE_TEST(test_journal),
		STORE_TEST(test_hostile_journal), STORE_TEST(test_full_disk),
		STORE_TEST(test_read_only),       BOTH_TEST(test_large_needs_no_memory),
		TEST(test_index_is_kept),         STORE_TEST(test_out_of_memory),
	};
	return RUN_STORE_TESTS(tests);
}
