/* session/audit: records, paths, rotation, several processes; the tests of the disk and of reading stand beside this. */
#define _GNU_SOURCE
#include "audit_support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- records ---- */

static void test_record(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	char hash[CELL__SHA256_SIZE];
	assert_int_equal(cell__sha256_hex("1 + 1", 5, hash), 0);
	json_t *args = json_pack("{s:s, s:s}", "file", "a.txt", "password", "hunter2");
	json_t *before = json_pack("{s:s}", "file", "b.txt");
	struct cell__audit_record full = {
		"session-1",
		hash,
		"17",
		"tool",
		"grep",
		"find",
		"cli",
		"subprocess",
		"code",
		"agent",
		args,
		before,
		CELL__AUDIT_EDITED,
		CELL__AUDIT_BY_PERSON,
		3,
		"a rule",
		12345,
		CELL__AUDIT_ERROR,
		CELL_E_TOOL,
		"exit status 1 with hunter2 \xff",
	};
	assert_int_equal(rig_write(&rig, &full), 0);
	json_decref(args); /* the log has its own */
	json_decref(before);
	assert_int_equal(rig_write(&rig, &(struct cell__audit_record){ 0 }), 0);
	rig_wait(&rig);
	assert_int_equal(rig.ok, 2);
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL), *first = json_array_get(records, 0);
	assert_int_equal(json_array_size(records), 2);
	const char *time = audit_text(records, 0, "time");
	assert_int_equal(strlen(time), 24);
	assert_true(time[10] == 'T' && time[19] == '.' && time[23] == 'Z');
	json_object_del(first, "time");
	json_t *wanted = json_pack(
		"{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s}, s:{s:s}, s:s, s:s, s:i, s:s, s:f, s:s, s:s, s:s}",
		"session", "session-1", "cell", hash, "request", "17", "kind", "tool", "tool", "grep", "callable", "find", "adapter", "cli",
		"executor", "subprocess", "principal", "code", "client", "agent", "args", "file", "a.txt", "password", "[redacted]",
		"args_before", "file", "b.txt", "decision", "edited", "by", "person", "rule", 3, "rule_name", "a rule", "duration_ms",
		12.345, "outcome", "error", "code", "tool_failed", "error", "exit status 1 with [redacted] \xef\xbf\xbd");
	if (!json_equal(first, wanted))
		fail_msg("%s", json_dumps(first, 0));
	json_decref(wanted);
	json_t *second = json_array_get(records, 1);
	assert_int_equal(json_object_size(second), 20);
	assert_true(json_is_null(json_object_get(second, "tool")) && json_is_null(json_object_get(second, "args")) &&
		    json_is_null(json_object_get(second, "rule")) && json_is_null(json_object_get(second, "error")));
	json_decref(records);
	struct stat st;
	assert_int_equal(stat(audit_live, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_words(void **state)
{
	(void)state;
	static const char *const decisions[] = { "allow", "deny", "accepted", "edited", "rejected", "timeout", "withdrawn" };
	static const char *const deciders[] = { "policy", "person", "cli", "timeout", "middleware", "session" };
	static const char *const outcomes[] = { "ok", "error", "cancelled" };
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	for (int i = 0; i < 7; i++)
		assert_int_equal(rig_write(&rig, &(struct cell__audit_record){ .decision = i, .by = i % 6, .outcome = i % 3 }), 0);
	rig_finish(&rig); /* waits for what is under way */
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 7);
	for (size_t i = 0; i < 7; i++) {
		assert_string_equal(audit_text(records, i, "decision"), decisions[i]);
		assert_string_equal(audit_text(records, i, "by"), deciders[i % 6]);
		assert_string_equal(audit_text(records, i, "outcome"), outcomes[i % 3]);
	}
	json_decref(records);
}

static void test_cuts(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	/* A name, an error, arguments: at their limit, and one past it. */
	static char name[CELL__AUDIT_LIMIT_WORD + 2], error[CELL__AUDIT_LIMIT_ERROR + 2];
	memset(name, 'n', CELL__AUDIT_LIMIT_WORD);
	memset(error, 'e', CELL__AUDIT_LIMIT_ERROR);
	for (int more = 0; more < 2; more++) {
		name[CELL__AUDIT_LIMIT_WORD] = more ? 'n' : '\0';
		error[CELL__AUDIT_LIMIT_ERROR] = more ? 'e' : '\0';
		/* {"a":["xx...","..."]}: many texts of which none is too long */
		json_t *args = json_object(), *list = json_array();
		json_object_set_new(args, "a", list);
		size_t room = CELL__AUDIT_LIMIT_ARGS - strlen("{\"a\":[]}") + (size_t)more;
		while (room > 0) {
			size_t part = room > 1100 ? 1000 : room;
			char text[1200];
			memset(text, 'x', sizeof text);
			size_t inner = part - 2 - (json_array_size(list) > 0);
			json_array_append_new(list, json_stringn(text, inner));
			room -= part;
		}
		struct cell__audit_record record = { .tool = name, .args = args, .outcome = CELL__AUDIT_ERROR, .error = error };
		assert_int_equal(rig_write(&rig, &record), 0);
		json_decref(args);
	}
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 2);
	assert_int_equal(strlen(audit_text(records, 0, "tool")), CELL__AUDIT_LIMIT_WORD);
	assert_int_equal(strlen(audit_text(records, 1, "tool")), CELL__AUDIT_LIMIT_WORD + 5);
	assert_int_equal(strlen(audit_text(records, 0, "error")), CELL__AUDIT_LIMIT_ERROR);
	assert_string_equal(audit_text(records, 1, "error") + CELL__AUDIT_LIMIT_ERROR, "[cut]");
	json_t *whole = json_object_get(json_array_get(records, 0), "args"), *cut = json_object_get(json_array_get(records, 1), "args");
	assert_true(json_is_array(json_object_get(whole, "a")));
	assert_int_equal(json_integer_value(json_object_get(cut, "bytes")), CELL__AUDIT_LIMIT_ARGS + 1);
	assert_int_equal(json_string_length(json_object_get(cut, "[cut]")), 1024);
	assert_int_equal(json_string_length(json_object_get(cut, "sha256")), 64);
	json_decref(records);
}

/* ---- paths ---- */

static void test_bad_paths(void **state)
{
	(void)state;
	char link[160], fifo[160], missing[160];
	snprintf(link, sizeof link, "%s/link", audit_dir);
	snprintf(fifo, sizeof fifo, "%s/fifo", audit_dir);
	snprintf(missing, sizeof missing, "%s/none/a", audit_dir);
	assert_int_equal(symlink(audit_live, link), 0);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	const struct {
		const char *path;
		int code;
	} rows[] = { { link, CELL_E_IO }, { fifo, CELL_E_IO }, { missing, CELL_E_IO }, { audit_dir, CELL_E_IO }, { "", CELL_E_INVALID } };
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig;
		rig_init(&rig);
		rig.opts.path = rows[i].path;
		assert_int_equal(rig_open(&rig), -1);
		assert_int_equal(rig.err.code, rows[i].code);
		rig_finish(&rig);
	}
}

static void test_bad_options(void **state)
{
	(void)state;
	for (int i = 0; i < 6; i++) {
		struct rig rig;
		rig_init(&rig);
		const char *const bad[] = { "[", NULL };
		if (i == 0)
			rig.opts.max_bytes = CELL__AUDIT_LIMIT_MIN_FILE - 1;
		else if (i == 1)
			rig.opts.keep = 0;
		else if (i == 2)
			rig.opts.keep = CELL__AUDIT_LIMIT_KEEP + 1;
		else if (i == 3)
			rig.opts.sync_ms = 0;
		else if (i == 4)
			rig.opts.queue_bytes = 1;
		else
			rig.opts.redact = bad;
		assert_int_equal(rig_open(&rig), -1);
		assert_int_equal(rig.err.code, CELL_E_INVALID);
		rig_finish(&rig);
	}
}

static void test_existing_file(void **state)
{
	(void)state;
	audit_put(audit_live, "w", "{\"old\":1}\n");
	assert_int_equal(chmod(audit_live, 0640), 0);
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = audit_simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 2);
	json_decref(records);
	struct stat st;
	assert_int_equal(stat(audit_live, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0640); /* the person's choice */
}

/* A person has moved or removed the file: the next record makes a new one. */
static void test_file_removed(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = audit_simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	assert_int_equal(unlink(audit_live), 0);
	record = audit_simple("2");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	assert_int_equal(rig.ok, 2);
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 1);
	assert_string_equal(audit_text(records, 0, "request"), "2");
	json_decref(records);
}

/* A writer was killed in the middle of a line. */
static void test_torn_line(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = audit_simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	audit_put(audit_live, "a", "{\"time\":\"2026-");
	record = audit_simple("2");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_finish(&rig);
	json_t *problems, *records = audit_read(NULL, &problems);
	assert_int_equal(json_array_size(records), 2);
	assert_string_equal(audit_text(records, 1, "request"), "2");
	assert_int_equal(json_array_size(problems), 1);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(problems, 0), "line")), 2);
	json_decref(problems);
	json_decref(records);
}

/* ---- rotation ---- */

static void test_rotation(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.max_bytes = CELL__AUDIT_LIMIT_MIN_FILE;
	rig.opts.keep = 3;
	assert_int_equal(rig_open(&rig), 0);
	rig_write_many(&rig, 200);
	rig_finish(&rig);
	assert_int_equal(rig.ok, 200);
	for (int i = 0; i <= 3; i++) {
		struct stat st;
		assert_int_equal(stat(audit_numbered(i), &st), 0);
		assert_true(st.st_size > 0 && st.st_size <= CELL__AUDIT_LIMIT_MIN_FILE);
		assert_int_equal(st.st_mode & 0777, 0600);
	}
	assert_int_equal(audit_size(audit_numbered(4)), -1);
	/* The newest are there, in order and without a gap. */
	json_t *records = audit_read(NULL, NULL);
	size_t n = json_array_size(records);
	assert_true(n > 20 && n < 200);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(atoi(audit_text(records, i, "request")), 200 - (int)n + (int)i);
	json_decref(records);
}

static void test_never_rotated(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.max_bytes = 0;
	assert_int_equal(rig_open(&rig), 0);
	rig_write_many(&rig, 500);
	rig_finish(&rig);
	assert_int_equal(audit_size(audit_numbered(1)), -1);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 500);
	json_decref(records);
}

/* path.1 cannot be made: the file grows, and nothing is lost. */
static void test_rotation_fails(void **state)
{
	(void)state;
	assert_int_equal(mkdir(audit_numbered(1), 0700), 0);
	char inside[200];
	snprintf(inside, sizeof inside, "%s/x", audit_numbered(1));
	audit_put(inside, "w", "x");
	struct rig rig;
	rig_init(&rig);
	rig.opts.max_bytes = CELL__AUDIT_LIMIT_MIN_FILE;
	rig.opts.keep = 1;
	assert_int_equal(rig_open(&rig), 0);
	rig_write_many(&rig, 200);
	rig_wait(&rig);
	assert_int_equal(rig.ok, 200);
	assert_int_equal(rig_admit(&rig), 0);
	rig_finish(&rig);
	assert_non_null(strstr(rig.logged, "cannot be rotated and keeps growing: Is a directory"));
	assert_null(strstr(strstr(rig.logged, "cannot be rotated") + 1, "cannot be rotated")); /* said once */
	assert_true(audit_size(audit_live) > 2 * CELL__AUDIT_LIMIT_MIN_FILE);
	assert_int_equal(unlink(inside), 0);
	assert_int_equal(rmdir(audit_numbered(1)), 0);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 200);
	json_decref(records);
}

/* ---- several processes ---- */

#define PROCESSES 6

static void test_several_processes(void **state)
{
	(void)state;
	pid_t pids[PROCESSES];
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			audit_be_a_writer(i);
			_exit(0);
		}
		assert_true(pids[i] > 0);
	}
	for (int i = 0; i < PROCESSES; i++) {
		int status;
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	/* Not one is missing, doubled, torn or out of its process's order; and it was rotated many times. */
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), PROCESSES * AUDIT_EACH);
	int next[PROCESSES] = { 0 };
	for (size_t i = 0; i < json_array_size(records); i++) {
		int process = atoi(audit_text(records, i, "session") + 1);
		assert_int_equal(atoi(audit_text(records, i, "request")), next[process]++);
	}
	json_decref(records);
	assert_true(audit_size(audit_numbered(20)) > 0);
	for (int i = 0; audit_size(audit_numbered(i)) >= 0; i++)
		assert_true(audit_size(audit_numbered(i)) <= 8192);
}

/* A writer that is killed leaves whole lines, and the others go on. */
static void test_killed_writer(void **state)
{
	(void)state;
	for (int round = 0; round < 5; round++) {
		int pipes[2];
		assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
		pid_t pid = fork();
		if (pid == 0) {
			struct rig rig;
			rig_init(&rig);
			rig.opts.max_bytes = 8192;
			rig.opts.keep = CELL__AUDIT_LIMIT_KEEP;
			CHECK(rig_open(&rig) == 0);
			for (int i = 0;; i++) {
				struct cell__audit_record record = audit_simple("x");
				CHECK(rig_write(&rig, &record) == 0 && support_wait(rig_all_told, &rig));
				if (i == 20 + 13 * round)
					CHECK(write(pipes[1], "x", 1) == 1);
			}
		}
		char byte;
		assert_int_equal(read(pipes[0], &byte, 1), 1);
		assert_int_equal(kill(pid, SIGKILL), 0);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		close(pipes[0]);
		close(pipes[1]);
		struct rig rig;
		rig_init(&rig);
		rig.opts.max_bytes = 8192;
		rig.opts.keep = CELL__AUDIT_LIMIT_KEEP;
		assert_int_equal(rig_open(&rig), 0);
		struct cell__audit_record record = audit_simple("mine");
		assert_int_equal(rig_write(&rig, &record), 0);
		rig_wait(&rig);
		assert_int_equal(rig.ok, 1);
		rig_finish(&rig);
		json_t *records = audit_read(NULL, NULL);
		assert_string_equal(audit_text(records, json_array_size(records) - 1, "request"), "mine");
		json_decref(records);
	}
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		AUDIT_TEST(test_record),        AUDIT_TEST(test_words),          AUDIT_TEST(test_cuts),
		AUDIT_TEST(test_bad_paths),     AUDIT_TEST(test_bad_options),    AUDIT_TEST(test_existing_file),
		AUDIT_TEST(test_file_removed),  AUDIT_TEST(test_torn_line),      AUDIT_TEST(test_rotation),
		AUDIT_TEST(test_never_rotated), AUDIT_TEST(test_rotation_fails), AUDIT_TEST(test_several_processes),
		AUDIT_TEST(test_killed_writer),
	};
	return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
