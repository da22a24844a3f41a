/* session/audit: real files, several processes, full disks; and the reader of what they wrote. */
#define _GNU_SOURCE
#include "support.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "session/audit.h"

/* ---- the disk, as far as it cannot be had otherwise ---- */

static atomic_int syncs, dir_syncs, sync_error;

int fdatasync(int fd)
{
	syncs++;
	if (sync_error) {
		errno = sync_error;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	dir_syncs++;
	return (int)syscall(SYS_fsync, fd);
}

/* ---- a folder for each test ---- */

static char dir[64], live[128];

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st;
	(void)kind;
	(void)where;
	return remove(path);
}

static int begin(void **state)
{
	strcpy(dir, "/tmp/cell-audit-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(live, sizeof live, "%s/audit.jsonl", dir);
	syncs = dir_syncs = sync_error = 0;
	return support_begin(state);
}

static int end(void **state)
{
	(void)umount2(dir, MNT_DETACH); /* of a test that failed */
	nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return support_end(state);
}
#define AUDIT_TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

static const char *numbered(int n)
{
	static char path[160];
	snprintf(path, sizeof path, n ? "%s.%d" : "%s", live, n);
	return path;
}

static off_t size_of(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0 ? st.st_size : -1;
}

static void put(const char *path, const char *mode, const char *text)
{
	FILE *file = fopen(path, mode);
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* ---- a log on a loop ---- */

struct rig {
	struct cell__loop loop;
	struct cell__audit_options opts;
	struct cell__audit *audit;
	struct cell_error err;
	int rc;
	const struct cell__audit_record *record;
	atomic_int ok, failed, last_error;
	size_t asked;
	char logged[4096];
};

static void take_log(void *arg, enum cell_log_level level, const char *fmt, ...)
{
	struct rig *rig = arg;
	(void)level;
	va_list ap;
	va_start(ap, fmt);
	size_t used = strlen(rig->logged);
	vsnprintf(rig->logged + used, sizeof rig->logged - used, fmt, ap);
	va_end(ap);
	strncat(rig->logged, "\n", sizeof rig->logged - strlen(rig->logged) - 1);
}

static void do_open(void *arg)
{
	struct rig *rig = arg;
	rig->rc = cell__audit_open(&rig->opts, &rig->audit, &rig->err);
}

static void rig_init(struct rig *rig)
{
	*rig = (struct rig){ .opts = CELL__AUDIT_OPTIONS_INIT };
	CHECK(cell__loop_start(&rig->loop, NULL) == 0);
	rig->opts.loop = &rig->loop;
	rig->opts.path = live;
	rig->opts.log = take_log;
	rig->opts.log_arg = rig;
}

static int rig_open(struct rig *rig)
{
	cell__loop_call(&rig->loop, do_open, rig);
	return rig->rc;
}

static void handle_written(void *arg, int rc)
{
	struct rig *rig = arg;
	if (rc < 0)
		rig->last_error = -rc;
	if (rc < 0)
		rig->failed++;
	else
		rig->ok++;
}

static void do_write(void *arg)
{
	struct rig *rig = arg;
	rig->rc = cell__audit_write(rig->audit, rig->record, handle_written, rig, &rig->err);
	rig->asked += rig->rc == 0;
}

static int rig_write(struct rig *rig, const struct cell__audit_record *record)
{
	rig->record = record;
	cell__loop_call(&rig->loop, do_write, rig);
	return rig->rc;
}

static bool all_told(void *arg)
{
	struct rig *rig = arg;
	return (size_t)(rig->ok + rig->failed) == rig->asked;
}

static void rig_wait(struct rig *rig)
{
	assert_true(support_wait(all_told, rig));
}

static void do_admit(void *arg)
{
	struct rig *rig = arg;
	rig->rc = cell__audit_admit(rig->audit, &rig->err);
}

static int rig_admit(struct rig *rig)
{
	cell__loop_call(&rig->loop, do_admit, rig);
	return rig->rc;
}

struct stats_call {
	struct rig *rig;
	struct cell__audit_stats stats;
};

static void do_stats(void *arg)
{
	struct stats_call *call = arg;
	cell__audit_stats(call->rig->audit, &call->stats);
}

static struct cell__audit_stats rig_stats(struct rig *rig)
{
	struct stats_call call = { .rig = rig };
	cell__loop_call(&rig->loop, do_stats, &call);
	return call.stats;
}

struct close_call {
	struct cell__task task;
	struct cell__waiter waiter;
	struct rig *rig;
};

static void handle_closed(void *arg)
{
	cell__waiter_signal(&((struct close_call *)arg)->waiter);
}

static void do_close(struct cell__task *task)
{
	struct close_call *call = (struct close_call *)task;
	cell__audit_close(call->rig->audit, handle_closed, call);
}

static void rig_finish(struct rig *rig)
{
	struct close_call call = { .task.fn = do_close, .rig = rig };
	if (rig->audit) {
		cell__waiter_init(&call.waiter);
		cell__loop_do(&rig->loop, &call.task, &call.waiter);
		cell__waiter_finish(&call.waiter);
	}
	cell__loop_stop(&rig->loop);
}

static struct cell__audit_record simple(const char *request)
{
	return (struct cell__audit_record){ .session_id = "s", .request_id = request, .kind = "tool", .tool = "t" };
}

/* ---- reading it back ---- */

static json_t *read_with(const struct cell_audit_filter *filter, json_t **ret_problems)
{
	struct cell_audit_reader *reader = NULL;
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	struct cell_error err = { 0 };
	if (cell_audit_reader_open(live, filter, &reader, &err) < 0)
		fail_msg("%s", err.msg);
	json_t *records = json_array(), *problems = json_array();
	int rc;
	while ((rc = cell_audit_reader_next(reader, &entry, &err)) == 1) {
		if (entry.json)
			json_array_append_new(records, json_loads(entry.json, JSON_ALLOW_NUL, NULL));
		else
			json_array_append_new(problems, json_pack("{s:s, s:I, s:s}", "file", entry.file, "line",
								  (json_int_t)entry.line, "problem", entry.problem));
	}
	assert_int_equal(rc, 0);
	cell_audit_reader_close(reader);
	if (ret_problems) {
		*ret_problems = problems;
	} else {
		if (json_array_size(problems) > 0)
			fail_msg("%s", json_dumps(problems, 0));
		json_decref(problems);
	}
	return records;
}

static const char *text_of(const json_t *records, size_t i, const char *key)
{
	const char *text = json_string_value(json_object_get(json_array_get(records, i), key));
	return text ? text : "(none)";
}

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
		"session-1", hash, "17", "tool", "grep", "find", "cli", "subprocess", args, before, CELL__AUDIT_EDITED,
		CELL__AUDIT_BY_PERSON, 3, "a rule", 12345, CELL__AUDIT_ERROR, CELL_E_TOOL, "exit status 1 with hunter2 \xff",
	};
	assert_int_equal(rig_write(&rig, &full), 0);
	json_decref(args); /* the log has its own */
	json_decref(before);
	assert_int_equal(rig_write(&rig, &(struct cell__audit_record){ 0 }), 0);
	rig_wait(&rig);
	assert_int_equal(rig.ok, 2);
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL), *first = json_array_get(records, 0);
	assert_int_equal(json_array_size(records), 2);
	const char *time = text_of(records, 0, "time");
	assert_int_equal(strlen(time), 24);
	assert_true(time[10] == 'T' && time[19] == '.' && time[23] == 'Z');
	json_object_del(first, "time");
	json_t *wanted = json_pack(
		"{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:{s:s, s:s}, s:{s:s}, s:s, s:s, s:i, s:s, s:f, s:s, s:s, s:s}", "session",
		"session-1", "cell", hash, "request", "17", "kind", "tool", "tool", "grep", "callable", "find", "adapter", "cli",
		"executor", "subprocess", "args", "file", "a.txt", "password", "[redacted]", "args_before", "file", "b.txt",
		"decision", "edited", "by", "person", "rule", 3, "rule_name", "a rule", "duration_ms", 12.345, "outcome", "error",
		"code", "tool_failed", "error", "exit status 1 with [redacted] \xef\xbf\xbd");
	if (!json_equal(first, wanted))
		fail_msg("%s", json_dumps(first, 0));
	json_decref(wanted);
	json_t *second = json_array_get(records, 1);
	assert_int_equal(json_object_size(second), 18);
	assert_true(json_is_null(json_object_get(second, "tool")) && json_is_null(json_object_get(second, "args")) &&
		    json_is_null(json_object_get(second, "rule")) && json_is_null(json_object_get(second, "error")));
	json_decref(records);
	struct stat st;
	assert_int_equal(stat(live, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
}

static void test_words(void **state)
{
	(void)state;
	static const char *const decisions[] = { "allow", "deny", "accepted", "edited", "rejected", "timeout" };
	static const char *const deciders[] = { "policy", "person", "cli", "timeout", "middleware" };
	static const char *const outcomes[] = { "ok", "error", "cancelled" };
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	for (int i = 0; i < 6; i++)
		assert_int_equal(rig_write(&rig, &(struct cell__audit_record){ .decision = i, .by = i % 5, .outcome = i % 3 }), 0);
	rig_finish(&rig); /* waits for what is under way */
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 6);
	for (size_t i = 0; i < 6; i++) {
		assert_string_equal(text_of(records, i, "decision"), decisions[i]);
		assert_string_equal(text_of(records, i, "by"), deciders[i % 5]);
		assert_string_equal(text_of(records, i, "outcome"), outcomes[i % 3]);
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
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 2);
	assert_int_equal(strlen(text_of(records, 0, "tool")), CELL__AUDIT_LIMIT_WORD);
	assert_int_equal(strlen(text_of(records, 1, "tool")), CELL__AUDIT_LIMIT_WORD + 5);
	assert_int_equal(strlen(text_of(records, 0, "error")), CELL__AUDIT_LIMIT_ERROR);
	assert_string_equal(text_of(records, 1, "error") + CELL__AUDIT_LIMIT_ERROR, "[cut]");
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
	snprintf(link, sizeof link, "%s/link", dir);
	snprintf(fifo, sizeof fifo, "%s/fifo", dir);
	snprintf(missing, sizeof missing, "%s/none/a", dir);
	assert_int_equal(symlink(live, link), 0);
	assert_int_equal(mkfifo(fifo, 0600), 0);
	const struct {
		const char *path;
		int code;
	} rows[] = { { link, CELL_E_IO }, { fifo, CELL_E_IO }, { missing, CELL_E_IO }, { dir, CELL_E_IO }, { "", CELL_E_INVALID } };
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
	put(live, "w", "{\"old\":1}\n");
	assert_int_equal(chmod(live, 0640), 0);
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 2);
	json_decref(records);
	struct stat st;
	assert_int_equal(stat(live, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0640); /* the person's choice */
}

/* A person has moved or removed the file: the next record makes a new one. */
static void test_file_removed(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	assert_int_equal(unlink(live), 0);
	record = simple("2");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	assert_int_equal(rig.ok, 2);
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 1);
	assert_string_equal(text_of(records, 0, "request"), "2");
	json_decref(records);
}

/* A writer was killed in the middle of a line. */
static void test_torn_line(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	put(live, "a", "{\"time\":\"2026-");
	record = simple("2");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_finish(&rig);
	json_t *problems, *records = read_with(NULL, &problems);
	assert_int_equal(json_array_size(records), 2);
	assert_string_equal(text_of(records, 1, "request"), "2");
	assert_int_equal(json_array_size(problems), 1);
	assert_int_equal(json_integer_value(json_object_get(json_array_get(problems, 0), "line")), 2);
	json_decref(problems);
	json_decref(records);
}

/* ---- rotation ---- */

static void write_many(struct rig *rig, int count)
{
	for (int i = 0; i < count; i++) {
		char request[16];
		snprintf(request, sizeof request, "%06d", i);
		struct cell__audit_record record = simple(request);
		CHECK(rig_write(rig, &record) == 0);
	}
}

static void test_rotation(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.max_bytes = CELL__AUDIT_LIMIT_MIN_FILE;
	rig.opts.keep = 3;
	assert_int_equal(rig_open(&rig), 0);
	write_many(&rig, 200);
	rig_finish(&rig);
	assert_int_equal(rig.ok, 200);
	for (int i = 0; i <= 3; i++) {
		struct stat st;
		assert_int_equal(stat(numbered(i), &st), 0);
		assert_true(st.st_size > 0 && st.st_size <= CELL__AUDIT_LIMIT_MIN_FILE);
		assert_int_equal(st.st_mode & 0777, 0600);
	}
	assert_int_equal(size_of(numbered(4)), -1);
	/* The newest are there, in order and without a gap. */
	json_t *records = read_with(NULL, NULL);
	size_t n = json_array_size(records);
	assert_true(n > 20 && n < 200);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(atoi(text_of(records, i, "request")), 200 - (int)n + (int)i);
	json_decref(records);
}

static void test_never_rotated(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.max_bytes = 0;
	assert_int_equal(rig_open(&rig), 0);
	write_many(&rig, 500);
	rig_finish(&rig);
	assert_int_equal(size_of(numbered(1)), -1);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 500);
	json_decref(records);
}

/* path.1 cannot be made: the file grows, and nothing is lost. */
static void test_rotation_fails(void **state)
{
	(void)state;
	assert_int_equal(mkdir(numbered(1), 0700), 0);
	char inside[200];
	snprintf(inside, sizeof inside, "%s/x", numbered(1));
	put(inside, "w", "x");
	struct rig rig;
	rig_init(&rig);
	rig.opts.max_bytes = CELL__AUDIT_LIMIT_MIN_FILE;
	rig.opts.keep = 1;
	assert_int_equal(rig_open(&rig), 0);
	write_many(&rig, 200);
	rig_wait(&rig);
	assert_int_equal(rig.ok, 200);
	assert_int_equal(rig_admit(&rig), 0);
	rig_finish(&rig);
	assert_non_null(strstr(rig.logged, "cannot be rotated and grows: Is a directory"));
	assert_null(strstr(strstr(rig.logged, "cannot be rotated") + 1, "cannot be rotated")); /* said once */
	assert_true(size_of(live) > 2 * CELL__AUDIT_LIMIT_MIN_FILE);
	assert_int_equal(unlink(inside), 0);
	assert_int_equal(rmdir(numbered(1)), 0);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 200);
	json_decref(records);
}

/* ---- several processes ---- */

#define PROCESSES 6
#define EACH 400

static void be_a_writer(int number)
{
	struct rig rig;
	char session[16];
	rig_init(&rig);
	rig.opts.max_bytes = 8192;
	rig.opts.keep = CELL__AUDIT_LIMIT_KEEP;
	rig.opts.sync = CELL__AUDIT_SYNC_NEVER;
	CHECK(rig_open(&rig) == 0);
	snprintf(session, sizeof session, "p%d", number);
	for (int i = 0; i < EACH; i++) {
		char request[16];
		snprintf(request, sizeof request, "%d", i);
		struct cell__audit_record record = simple(request);
		record.session_id = session;
		CHECK(rig_write(&rig, &record) == 0);
		if (i % 7 == 0)
			CHECK(support_wait(all_told, &rig)); /* small batches and large ones */
	}
	rig_finish(&rig);
	CHECK(rig.ok == EACH);
}

static void test_several_processes(void **state)
{
	(void)state;
	pid_t pids[PROCESSES];
	for (int i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			be_a_writer(i);
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
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), PROCESSES * EACH);
	int next[PROCESSES] = { 0 };
	for (size_t i = 0; i < json_array_size(records); i++) {
		int process = atoi(text_of(records, i, "session") + 1);
		assert_int_equal(atoi(text_of(records, i, "request")), next[process]++);
	}
	json_decref(records);
	assert_true(size_of(numbered(20)) > 0);
	for (int i = 0; size_of(numbered(i)) >= 0; i++)
		assert_true(size_of(numbered(i)) <= 8192);
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
				struct cell__audit_record record = simple("x");
				CHECK(rig_write(&rig, &record) == 0 && support_wait(all_told, &rig));
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
		struct cell__audit_record record = simple("mine");
		assert_int_equal(rig_write(&rig, &record), 0);
		rig_wait(&rig);
		assert_int_equal(rig.ok, 1);
		rig_finish(&rig);
		json_t *records = read_with(NULL, NULL);
		assert_string_equal(text_of(records, json_array_size(records) - 1, "request"), "mine");
		json_decref(records);
	}
}

/* ---- a lock that somebody holds ---- */

static bool is_over(void *arg)
{
	return rig_stats(arg).backlog_bytes > ((struct rig *)arg)->opts.queue_bytes;
}

static void test_backpressure(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.queue_bytes = 64 * 1024;
	rig.opts.max_bytes = 0;
	assert_int_equal(rig_open(&rig), 0);
	CELL_AUTO_FD int fd = open(live, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	size_t taken = 0;
	struct cell__audit_record record = simple("x");
	for (; !is_over(&rig); taken++) {
		assert_int_equal(rig_admit(&rig), 0);
		assert_int_equal(rig_write(&rig, &record), 0);
	}
	assert_int_equal(rig_admit(&rig), -1);
	assert_int_equal(rig.err.code, CELL_E_LIMIT);
	/* Calls under way when it became full still have room; then no more, and the caller is told. */
	while (rig_write(&rig, &record) == 0)
		taken++;
	assert_int_equal(rig.err.code, CELL_E_LIMIT);
	assert_int_equal(rig_write(&rig, &record), -1);
	assert_int_equal(rig_stats(&rig).lost, 2);
	assert_true(rig_stats(&rig).backlog_bytes <= 2 * rig.opts.queue_bytes + 4096);
	assert_int_equal(rig.ok, 0);
	flock(fd, LOCK_UN);
	rig_wait(&rig);
	assert_int_equal(rig.ok, taken);
	assert_int_equal(rig_admit(&rig), 0);
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), taken + 1);
	json_t *note = json_array_get(records, taken);
	assert_int_equal(json_integer_value(json_object_get(note, "lost")), 2);
	assert_string_equal(text_of(records, taken, "kind"), "audit");
	json_decref(records);
	assert_non_null(strstr(rig.logged, "a record of the audit log"));
}

static bool is_failing(void *arg)
{
	return rig_stats(arg).failing;
}

static bool is_well(void *arg)
{
	struct cell__audit_stats stats = rig_stats(arg);
	return !stats.failing && stats.backlog_bytes == 0;
}

/* Another process has the lock and has stalled: that is a failure, not a hang. */
static void test_stalled_lock(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	CELL_AUTO_FD int fd = open(live, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	struct cell__audit_record record = simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	assert_true(support_wait(is_failing, &rig));
	assert_int_equal(rig.last_error, ETIMEDOUT);
	assert_int_equal(rig_admit(&rig), -1);
	flock(fd, LOCK_UN);
	assert_true(support_wait(is_well, &rig));
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 1);
	json_decref(records);
}

/* ---- full disks ---- */

static void mount_small(void)
{
	if (mount("tmpfs", dir, "tmpfs", 0, "size=64k") < 0) {
		if (geteuid() == 0)
			fail_msg("mount: %s", strerror(errno));
		skip();
	}
}

static void fill(const char *path)
{
	static char block[4096];
	CELL_AUTO_FD int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	while (write(fd, block, sizeof block) > 0) {
	}
	while (write(fd, block, 1) > 0) {
	}
}

static void check_whole_lines(void)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	assert_true(support_read_file(live, &text));
	if (text.size > 0 && text.data[text.size - 1] != '\n')
		fail_msg("the file does not end in a whole line");
}

static void full_disk(bool fail_closed)
{
	mount_small();
	char filler[160];
	snprintf(filler, sizeof filler, "%s/filler", dir);
	struct rig rig;
	rig_init(&rig);
	rig.opts.fail_closed = fail_closed;
	rig.opts.queue_bytes = 16 * 1024;
	rig.opts.max_bytes = 0;
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = simple("0");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	fill(filler);
	/* What is left of the page that the file has takes some more; then it is over. */
	int taken = 1;
	for (; !is_failing(&rig); taken++) {
		char request[16];
		snprintf(request, sizeof request, "%d", taken);
		record = simple(request);
		assert_int_equal(rig_write(&rig, &record), 0);
		rig_wait(&rig);
	}
	assert_int_equal(rig.failed, 1);
	assert_int_equal(rig.last_error, ENOSPC);
	check_whole_lines();
	assert_non_null(strstr(rig.logged, "cannot be written: No space left on device"));
	assert_int_equal(rig_admit(&rig), fail_closed ? -1 : 0);
	if (fail_closed)
		assert_int_equal(rig.err.code, CELL_E_IO);
	/* Whoever writes all the same is told each time, until there is no room; that is counted. */
	int lost = 0;
	while (!lost) {
		char request[16];
		snprintf(request, sizeof request, "%d", taken);
		record = simple(request);
		if (rig_write(&rig, &record) < 0)
			lost++;
		else
			taken++;
		rig_wait(&rig);
	}
	assert_int_equal(rig.err.code, CELL_E_LIMIT);
	assert_int_equal(rig.ok + rig.failed, taken);
	assert_int_equal(rig_stats(&rig).lost, lost);
	assert_true(rig_stats(&rig).failures >= 1);
	check_whole_lines();
	/* There is room again: everything comes, and what is missing is said. */
	assert_int_equal(unlink(filler), 0);
	assert_true(support_wait(is_well, &rig));
	assert_int_equal(rig_admit(&rig), 0);
	assert_non_null(strstr(rig.logged, "is written again"));
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), taken + 1);
	for (int i = 0; i < taken; i++)
		assert_int_equal(atoi(text_of(records, (size_t)i, "request")), i);
	json_t *note = json_array_get(records, (size_t)taken);
	assert_int_equal(json_integer_value(json_object_get(note, "lost")), lost);
	assert_non_null(strstr(text_of(records, (size_t)taken, "error"), "No space left on device"));
	json_decref(records);
	assert_int_equal(umount2(dir, MNT_DETACH), 0);
}

static void test_full_disk_fail_closed(void **state)
{
	(void)state;
	full_disk(true);
}

static void test_full_disk_fail_open(void **state)
{
	(void)state;
	full_disk(false);
}

/* It never works again: closing comes to an end, and says what is lost. */
static void test_close_on_full_disk(void **state)
{
	(void)state;
	mount_small();
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	char filler[160];
	snprintf(filler, sizeof filler, "%s/filler", dir);
	fill(filler);
	write_many(&rig, 3);
	rig_wait(&rig);
	assert_int_equal(rig.failed, 3);
	rig_finish(&rig);
	assert_non_null(strstr(rig.logged, "3 records of the audit log"));
	assert_int_equal(umount2(dir, MNT_DETACH), 0);
}

/* ---- fsync ---- */

static void test_sync_never(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.sync = CELL__AUDIT_SYNC_NEVER;
	rig.opts.max_bytes = CELL__AUDIT_LIMIT_MIN_FILE;
	assert_int_equal(rig_open(&rig), 0);
	write_many(&rig, 100);
	rig_finish(&rig);
	assert_int_equal(rig.ok, 100);
	assert_int_equal(syncs + dir_syncs, 0);
}

static void test_sync_always(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.sync = CELL__AUDIT_SYNC_ALWAYS;
	assert_int_equal(rig_open(&rig), 0);
	assert_int_equal(dir_syncs, 0); /* the loop does not wait for the disk */
	for (int i = 1; i <= 5; i++) {
		struct cell__audit_record record = simple("x");
		assert_int_equal(rig_write(&rig, &record), 0);
		rig_wait(&rig);
		assert_int_equal(syncs, i); /* before we were told */
		assert_int_equal(dir_syncs, 1); /* the name of the new file */
	}
	/* A disk that fails to sync: the record is not there, and comes again when the disk does. */
	off_t before = size_of(live);
	sync_error = EIO;
	struct cell__audit_record record = simple("late");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	assert_int_equal(rig.failed, 1);
	assert_int_equal(rig.last_error, EIO);
	assert_int_equal(size_of(live), before);
	assert_int_equal(rig_admit(&rig), -1);
	sync_error = 0;
	assert_true(support_wait(is_well, &rig));
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 6);
	json_decref(records);
}

static bool was_synced(void *arg)
{
	(void)arg;
	return syncs > 0;
}

static void test_sync_interval(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.sync_ms = 600000;
	assert_int_equal(rig_open(&rig), 0);
	write_many(&rig, 50);
	rig_wait(&rig);
	assert_int_equal(syncs, 0); /* not yet */
	rig_finish(&rig);
	assert_int_equal(syncs, 1); /* the end does not wait for the interval */
	rig_init(&rig);
	rig.opts.sync_ms = 20;
	syncs = 0;
	assert_int_equal(rig_open(&rig), 0);
	write_many(&rig, 50);
	rig_wait(&rig);
	assert_true(support_wait(was_synced, NULL));
	sync_error = EIO;
	write_many(&rig, 1);
	assert_true(support_wait(is_failing, &rig));
	assert_int_equal(rig.failed, 0); /* it is in the file */
	sync_error = 0;
	assert_true(support_wait(is_well, &rig));
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 101);
	json_decref(records);
}

/* ---- callbacks that do things ---- */

struct again {
	struct cell__task task;
	struct rig *rig;
	int left;
	struct close_call *close;
};

static void write_again(void *arg, int rc)
{
	struct again *again = arg;
	struct cell__audit_record record = simple("x");
	CHECK(rc == 0);
	if (again->left-- > 0)
		CHECK(cell__audit_write(again->rig->audit, &record, write_again, again, NULL) == 0);
	else
		cell__audit_close(again->rig->audit, handle_closed, again->close);
}

static void do_write_again(struct cell__task *task)
{
	struct again *again = (struct again *)task;
	struct cell__audit_record record = simple("x");
	CHECK(cell__audit_write(again->rig->audit, &record, write_again, again, NULL) == 0);
	CHECK(again->left == 20); /* never from inside the call */
}

static void test_writing_and_closing_from_callbacks(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct close_call close = { .rig = &rig };
	struct again again = { { .fn = do_write_again }, &rig, 20, &close };
	cell__waiter_init(&close.waiter);
	cell__loop_do(&rig.loop, &again.task, &close.waiter);
	cell__waiter_finish(&close.waiter);
	rig.audit = NULL;
	rig_finish(&rig);
	json_t *records = read_with(NULL, NULL);
	assert_int_equal(json_array_size(records), 21);
	json_decref(records);
}

static void test_without_memory(void **state)
{
	(void)state;
	bool opened = false;
	for (long n = 1; !opened; n++) {
		struct rig rig;
		rig_init(&rig);
		cell__alloc_fail_after(n);
		opened = rig_open(&rig) == 0;
		cell__alloc_fail_after(0);
		if (!opened)
			assert_true(rig.err.code == CELL_E_NOMEM || rig.err.code == CELL_E_IO);
		rig_finish(&rig);
		assert_true(n < 100);
	}
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	bool written = false;
	int lost = 0;
	json_t *args = json_pack("{s:s}", "password", "x");
	for (long n = 1; !written; n++) {
		struct cell__audit_record record = simple("x");
		record.args = args;
		cell__alloc_fail_after(n);
		int rc = rig_write(&rig, &record);
		rig_wait(&rig);
		cell__alloc_fail_after(0);
		lost += rc < 0;
		written = rc == 0 && rig.failed == 0;
		rig.failed = 0;
		rig.asked = 0;
		rig.ok = 0;
		assert_true(support_wait(is_well, &rig));
		assert_true(n < 1000);
	}
	json_decref(args);
	assert_int_equal(rig_stats(&rig).lost, lost);
	rig_finish(&rig);
}

/* ---- reading ---- */

#define LINE(time, session, tool, callable, decision)                                                             \
	"{\"time\":\"" time "\",\"session\":\"" session "\",\"tool\":\"" tool "\",\"callable\":\"" callable "\",\"decision\":\"" decision "\"}\n"

static void test_filters(void **state)
{
	(void)state;
	put(numbered(2), "w", LINE("2026-01-01T00:00:00.000Z", "aaaa1", "grep", "find", "allow"));
	put(numbered(1), "w", LINE("2026-01-02T00:00:00.000Z", "aaaa2", "grep", "first", "deny"));
	put(live, "w", LINE("2026-01-03T00:00:00.500Z", "bbbb1", "git", "log", "allow") "{\"time\":5,\"tool\":null}\n");
	const struct {
		struct cell_audit_filter filter;
		size_t count;
	} rows[] = {
		{ { .session = "aaaa" }, 2 },
		{ { .session = "aaaa2" }, 1 },
		{ { .session = "aa1" }, 0 },
		{ { .tool = "grep" }, 2 },
		{ { .tool = "g*" }, 3 },
		{ { .tool = "grep.f?nd" }, 1 },
		{ { .tool = "*.log" }, 1 },
		{ { .decision = "allow" }, 2 },
		{ { .decision = "all" }, 0 },
		{ { .since = "2026-01-02" }, 2 },
		{ { .since = "2026-01-02T00:00:00.001Z" }, 1 },
		{ { .since = "2026-01-02 01:00:00+01:00" }, 2 },
		{ { .since = "2026-01-01T23:59:59.5-00:30" }, 1 },
		{ { .since = "1s" }, 0 },
		{ { .tool = "grep", .decision = "deny", .since = "2026-01-01" }, 1 },
		{ { .last = 2 }, 2 },
		{ { .last = 3 }, 3 },
		{ { .last = 100 }, 4 },
		{ { .last = -1 }, 0 },
		{ { .last = 0 }, 4 },
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct cell_audit_filter filter = rows[i].filter;
		filter.size = sizeof filter;
		json_t *records = read_with(&filter, NULL);
		if (json_array_size(records) != rows[i].count)
			fail_msg("filter %zu: %zu records", i, json_array_size(records));
		json_decref(records);
	}
	static const struct cell_audit_filter bads[] = {
		{ .since = "yesterday" }, { .since = "2026-1-1" }, { .since = "2026-01-01T00:00" }, { .since = "5" },
		{ .since = "2026-01-01T00:00:00+1" }, { .since = "2026-01-01T00:00:00." }, { .since = "-5m" }, { .since = "5mm" },
		{ .since = "" }, { .tool = "a[" }, { .tool = "a.[" }, { .last = -2 },
	};
	for (size_t i = 0; i < COUNT(bads); i++) {
		struct cell_audit_filter filter = bads[i];
		struct cell_audit_reader *reader = NULL;
		struct cell_error err = { 0 };
		filter.size = sizeof filter;
		if (cell_audit_reader_open(live, &filter, &reader, &err) == 0 || err.code != CELL_E_INVALID)
			fail_msg("filter %zu was taken", i);
	}
	/* A record that lies in the future of an hour ago. */
	struct cell_audit_filter recent = { .size = sizeof recent, .since = "1h" };
	struct timespec now;
	char time[CELL__AUDIT_TIME_SIZE], line[200];
	clock_gettime(CLOCK_REALTIME, &now);
	cell__audit_time(&now, time);
	snprintf(line, sizeof line, "{\"time\":\"%s\"}\n", time);
	put(live, "a", line);
	json_t *records = read_with(&recent, NULL);
	assert_int_equal(json_array_size(records), 1);
	json_decref(records);
}

static void test_bad_lines(void **state)
{
	(void)state;
	put(numbered(1), "w", "garbage\n{\"a\":1}\n[1]\n{\"a\":1,\"a\":2}\n\n{\"torn");
	FILE *file = fopen(live, "w");
	fputs("{\"b\":\"", file);
	for (size_t i = 0; i < 3 * CELL__AUDIT_LIMIT_LINE; i++)
		fputc('x', file);
	fputs("\"}\n{\"b\":2}\n\xff\xfe\n{\"b\":3}\n{\"b\":4", file);
	fclose(file);
	json_t *problems, *records = read_with(NULL, &problems);
	assert_int_equal(json_array_size(records), 3);
	static const struct {
		int file, line;
		const char *problem;
	} wanted[] = {
		{ 1, 1, "not a JSON object" }, { 1, 3, "not a JSON object" }, { 1, 4, "not a JSON object" },
		{ 1, 6, "torn: the line has no end" }, { 0, 1, "longer than a record can be" }, { 0, 3, "not a JSON object" },
		{ 0, 5, "torn: the line has no end" },
	};
	assert_int_equal(json_array_size(problems), COUNT(wanted));
	for (size_t i = 0; i < COUNT(wanted); i++) {
		const json_t *problem = json_array_get(problems, i);
		assert_string_equal(json_string_value(json_object_get(problem, "file")), numbered(wanted[i].file));
		assert_int_equal(json_integer_value(json_object_get(problem, "line")), wanted[i].line);
		assert_string_equal(json_string_value(json_object_get(problem, "problem")), wanted[i].problem);
	}
	json_decref(problems);
	json_decref(records);
}

/* A line at the limit is read, and one past it is not. */
static void test_long_line(void **state)
{
	(void)state;
	for (size_t more = 0; more < 2; more++) {
		FILE *file = fopen(live, "w");
		size_t size = CELL__AUDIT_LIMIT_LINE + more;
		fputs("{\"b\":\"", file);
		for (size_t i = 0; i < size - 8; i++)
			fputc('x', file);
		fputs("\"}\n{}\n", file);
		fclose(file);
		json_t *problems, *records = read_with(NULL, &problems);
		assert_int_equal(json_array_size(records), 2 - more);
		assert_int_equal(json_array_size(problems), more);
		json_decref(problems);
		json_decref(records);
	}
}

static void expect_next(struct cell_audit_reader *reader, const char *request)
{
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	struct cell_error err = { 0 };
	int rc = cell_audit_reader_next(reader, &entry, &err);
	if (!request) {
		assert_int_equal(rc, 0);
		return;
	}
	assert_int_equal(rc, 1);
	if (!entry.json)
		fail_msg("%s:%d: %s", entry.file, (int)entry.line, entry.problem);
	json_t *record = json_loads(entry.json, 0, NULL);
	assert_string_equal(json_string_value(json_object_get(record, "r")), request);
	json_decref(record);
}

/* What is written while somebody reads, also across rotations. */
static void test_follow(void **state)
{
	(void)state;
	put(live, "w", "{\"r\":\"1\"}\n");
	struct cell_audit_reader *reader = NULL;
	struct cell_error err = { 0 };
	assert_int_equal(cell_audit_reader_open(live, NULL, &reader, &err), 0);
	expect_next(reader, "1");
	expect_next(reader, NULL);
	put(live, "a", "{\"r\":\"2\"}\n{\"r\":\"3\"}\n");
	expect_next(reader, "2");
	expect_next(reader, "3");
	expect_next(reader, NULL);
	/* Half a line of somebody who has the lock is not there yet; it may be cut off again. */
	CELL_AUTO_FD int fd = open(live, O_RDWR | O_APPEND | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	off_t before = size_of(live);
	put(live, "a", "{\"r\":\"half");
	expect_next(reader, NULL);
	assert_int_equal(ftruncate(fd, before), 0);
	put(live, "a", "{\"r\":\"4\"}\n");
	expect_next(reader, "4");
	flock(fd, LOCK_UN);
	/* A last line, then two rotations between two looks. */
	put(live, "a", "{\"r\":\"5\"}\n");
	assert_int_equal(rename(live, numbered(2)), 0);
	put(numbered(1), "w", "{\"r\":\"6\"}\n");
	put(live, "w", "{\"r\":\"7\"}\n");
	expect_next(reader, "5");
	expect_next(reader, "6");
	expect_next(reader, "7");
	expect_next(reader, NULL);
	/* The moment in which there is no live file. */
	char second[160], third[160];
	strcpy(second, numbered(2));
	strcpy(third, numbered(3));
	assert_int_equal(rename(second, third), 0);
	assert_int_equal(rename(numbered(1), second), 0);
	assert_int_equal(rename(live, numbered(1)), 0);
	expect_next(reader, NULL);
	put(live, "w", "{\"r\":\"8\"}\n");
	expect_next(reader, "8");
	/* So many rotations that what we were reading is gone. */
	unlink(third);
	unlink(second);
	put(numbered(1), "w", "{\"r\":\"10\"}\n");
	unlink(live);
	put(live, "w", "{\"r\":\"11\"}\n");
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	assert_int_equal(cell_audit_reader_next(reader, &entry, &err), 1);
	assert_null(entry.json);
	assert_string_equal(entry.problem, "files were rotated away before they were read");
	expect_next(reader, "10");
	expect_next(reader, "11");
	cell_audit_reader_close(reader);
}

/* Somebody reads all the time while others write and rotate: every record once. */
static void test_read_while_written(void **state)
{
	(void)state;
	put(live, "w", "");
	struct cell_audit_reader *reader = NULL;
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	struct cell_error err = { 0 };
	assert_int_equal(cell_audit_reader_open(live, NULL, &reader, &err), 0);
	pid_t pids[2];
	for (int i = 0; i < 2; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			be_a_writer(i);
			_exit(0);
		}
	}
	int next[2] = { 0 };
	while (next[0] + next[1] < 2 * EACH) {
		int rc = cell_audit_reader_next(reader, &entry, &err);
		assert_true(rc >= 0);
		if (rc == 0)
			continue;
		if (!entry.json)
			fail_msg("%s:%d: %s", entry.file, (int)entry.line, entry.problem);
		json_t *record = json_loads(entry.json, 0, NULL);
		int process = atoi(json_string_value(json_object_get(record, "session")) + 1);
		assert_int_equal(atoi(json_string_value(json_object_get(record, "request"))), next[process]++);
		json_decref(record);
	}
	for (int i = 0; i < 2; i++)
		assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
	assert_int_equal(cell_audit_reader_next(reader, &entry, &err), 0);
	cell_audit_reader_close(reader);
}

static void test_reader_edge(void **state)
{
	(void)state;
	struct cell_audit_reader *reader = NULL;
	struct cell_error err = { 0 };
	assert_int_equal(cell_audit_reader_open(live, NULL, &reader, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(cell_audit_reader_open(dir, NULL, &reader, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	put(numbered(1), "w", "{\"r\":\"1\"}\n"); /* only a rotated one */
	assert_int_equal(cell_audit_reader_open(live, NULL, &reader, &err), 0);
	expect_next(reader, "1");
	struct cell_audit_entry entry = { .size = 1 };
	assert_int_equal(cell_audit_reader_next(reader, &entry, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_audit_reader_close(reader);
	struct cell_audit_filter filter = { .size = sizeof filter + 1 };
	assert_int_equal(cell_audit_reader_open(live, &filter, &reader, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_audit_reader_close(NULL);
	bool opened = false;
	for (long n = 1; !opened; n++) {
		struct cell_audit_filter all = { .size = sizeof all, .session = "a", .tool = "a.b", .decision = "c", .last = 1 };
		cell__alloc_fail_after(n);
		opened = cell_audit_reader_open(live, &all, &reader, &err) == 0;
		cell__alloc_fail_after(0);
		assert_true(n < 100);
	}
	cell_audit_reader_close(reader);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		AUDIT_TEST(test_record),
		AUDIT_TEST(test_words),
		AUDIT_TEST(test_cuts),
		AUDIT_TEST(test_bad_paths),
		AUDIT_TEST(test_bad_options),
		AUDIT_TEST(test_existing_file),
		AUDIT_TEST(test_file_removed),
		AUDIT_TEST(test_torn_line),
		AUDIT_TEST(test_rotation),
		AUDIT_TEST(test_never_rotated),
		AUDIT_TEST(test_rotation_fails),
		AUDIT_TEST(test_several_processes),
		AUDIT_TEST(test_killed_writer),
		AUDIT_TEST(test_backpressure),
		AUDIT_TEST(test_stalled_lock),
		AUDIT_TEST(test_full_disk_fail_closed),
		AUDIT_TEST(test_full_disk_fail_open),
		AUDIT_TEST(test_close_on_full_disk),
		AUDIT_TEST(test_sync_never),
		AUDIT_TEST(test_sync_always),
		AUDIT_TEST(test_sync_interval),
		AUDIT_TEST(test_writing_and_closing_from_callbacks),
		AUDIT_TEST(test_without_memory),
		AUDIT_TEST(test_filters),
		AUDIT_TEST(test_bad_lines),
		AUDIT_TEST(test_long_line),
		AUDIT_TEST(test_follow),
		AUDIT_TEST(test_read_while_written),
		AUDIT_TEST(test_reader_edge),
	};
	return cmocka_run_group_tests_name("audit", tests, NULL, NULL);
}
