/* session/audit: the reader of what was written. */
#define _GNU_SOURCE
#include "audit_support.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/wait.h>

/* ---- reading ---- */

#define LINE(time, session, tool, callable, decision)                                                                                     \
	"{\"time\":\"" time "\",\"session\":\"" session "\",\"tool\":\"" tool "\",\"callable\":\"" callable "\",\"decision\":\"" decision \
	"\"}\n"

static void test_filters(void **state)
{
	(void)state;
	audit_put(audit_numbered(2), "w", LINE("2026-01-01T00:00:00.000Z", "aaaa1", "grep", "find", "allow"));
	audit_put(audit_numbered(1), "w", LINE("2026-01-02T00:00:00.000Z", "aaaa2", "grep", "first", "deny"));
	audit_put(audit_live, "w", LINE("2026-01-03T00:00:00.500Z", "bbbb1", "git", "log", "allow") "{\"time\":5,\"tool\":null}\n");
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
		json_t *records = audit_read(&filter, NULL);
		if (json_array_size(records) != rows[i].count)
			fail_msg("filter %zu: %zu records", i, json_array_size(records));
		json_decref(records);
	}
	static const struct cell_audit_filter bads[] = {
		{ .since = "yesterday" },
		{ .since = "2026-1-1" },
		{ .since = "2026-01-01T00:00" },
		{ .since = "5" },
		{ .since = "2026-01-01T00:00:00+1" },
		{ .since = "2026-01-01T00:00:00." },
		{ .since = "-5m" },
		{ .since = "5mm" },
		{ .since = "" },
		{ .tool = "a[" },
		{ .tool = "a.[" },
		{ .last = -2 },
	};
	for (size_t i = 0; i < COUNT(bads); i++) {
		struct cell_audit_filter filter = bads[i];
		struct cell_audit_reader *reader = NULL;
		struct cell_error err = { 0 };
		filter.size = sizeof filter;
		if (cell_audit_reader_open(audit_live, &filter, &reader, &err) == 0 || err.code != CELL_E_INVALID)
			fail_msg("filter %zu was taken", i);
	}
	/* A record that lies in the future of an hour ago. */
	struct cell_audit_filter recent = { .size = sizeof recent, .since = "1h" };
	struct timespec now;
	char time[CELL__AUDIT_TIME_SIZE], line[200];
	clock_gettime(CLOCK_REALTIME, &now);
	cell__audit_time(&now, time);
	snprintf(line, sizeof line, "{\"time\":\"%s\"}\n", time);
	audit_put(audit_live, "a", line);
	json_t *records = audit_read(&recent, NULL);
	assert_int_equal(json_array_size(records), 1);
	json_decref(records);
}

static void test_bad_lines(void **state)
{
	(void)state;
	audit_put(audit_numbered(1), "w", "garbage\n{\"a\":1}\n[1]\n{\"a\":1,\"a\":2}\n\n{\"torn");
	FILE *file = fopen(audit_live, "w");
	fputs("{\"b\":\"", file);
	for (size_t i = 0; i < 3 * CELL__AUDIT_LIMIT_LINE; i++)
		fputc('x', file);
	fputs("\"}\n{\"b\":2}\n\xff\xfe\n{\"b\":3}\n{\"b\":4", file);
	fclose(file);
	json_t *problems, *records = audit_read(NULL, &problems);
	assert_int_equal(json_array_size(records), 3);
	static const struct {
		int file, line;
		const char *problem;
	} wanted[] = {
		{ 1, 1, "not a JSON object" },
		{ 1, 3, "not a JSON object" },
		{ 1, 4, "not a JSON object" },
		{ 1, 6, "truncated: the line has no end" },
		{ 0, 1, "longer than a record can be" },
		{ 0, 3, "not a JSON object" },
		{ 0, 5, "truncated: the line has no end" },
	};
	assert_int_equal(json_array_size(problems), COUNT(wanted));
	for (size_t i = 0; i < COUNT(wanted); i++) {
		const json_t *problem = json_array_get(problems, i);
		assert_string_equal(json_string_value(json_object_get(problem, "file")), audit_numbered(wanted[i].file));
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
		FILE *file = fopen(audit_live, "w");
		size_t size = CELL__AUDIT_LIMIT_LINE + more;
		fputs("{\"b\":\"", file);
		for (size_t i = 0; i < size - 8; i++)
			fputc('x', file);
		fputs("\"}\n{}\n", file);
		fclose(file);
		json_t *problems, *records = audit_read(NULL, &problems);
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
	audit_put(audit_live, "w", "{\"r\":\"1\"}\n");
	struct cell_audit_reader *reader = NULL;
	struct cell_error err = { 0 };
	assert_int_equal(cell_audit_reader_open(audit_live, NULL, &reader, &err), 0);
	expect_next(reader, "1");
	expect_next(reader, NULL);
	audit_put(audit_live, "a", "{\"r\":\"2\"}\n{\"r\":\"3\"}\n");
	expect_next(reader, "2");
	expect_next(reader, "3");
	expect_next(reader, NULL);
	/* Half a line of somebody who has the lock is not there yet; it may be cut off again. */
	CELL_AUTO_FD int fd = open(audit_live, O_RDWR | O_APPEND | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	off_t before = audit_size(audit_live);
	audit_put(audit_live, "a", "{\"r\":\"half");
	expect_next(reader, NULL);
	assert_int_equal(ftruncate(fd, before), 0);
	audit_put(audit_live, "a", "{\"r\":\"4\"}\n");
	expect_next(reader, "4");
	flock(fd, LOCK_UN);
	/* A last line, then two rotations between two looks. */
	audit_put(audit_live, "a", "{\"r\":\"5\"}\n");
	assert_int_equal(rename(audit_live, audit_numbered(2)), 0);
	audit_put(audit_numbered(1), "w", "{\"r\":\"6\"}\n");
	audit_put(audit_live, "w", "{\"r\":\"7\"}\n");
	expect_next(reader, "5");
	expect_next(reader, "6");
	expect_next(reader, "7");
	expect_next(reader, NULL);
	/* The moment in which there is no audit_live file. */
	char second[160], third[160];
	strcpy(second, audit_numbered(2));
	strcpy(third, audit_numbered(3));
	assert_int_equal(rename(second, third), 0);
	assert_int_equal(rename(audit_numbered(1), second), 0);
	assert_int_equal(rename(audit_live, audit_numbered(1)), 0);
	expect_next(reader, NULL);
	audit_put(audit_live, "w", "{\"r\":\"8\"}\n");
	expect_next(reader, "8");
	/* So many rotations that what we were reading is gone. */
	unlink(third);
	unlink(second);
	audit_put(audit_numbered(1), "w", "{\"r\":\"10\"}\n");
	unlink(audit_live);
	audit_put(audit_live, "w", "{\"r\":\"11\"}\n");
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
	audit_put(audit_live, "w", "");
	struct cell_audit_reader *reader = NULL;
	struct cell_audit_entry entry = CELL_AUDIT_ENTRY_INIT;
	struct cell_error err = { 0 };
	assert_int_equal(cell_audit_reader_open(audit_live, NULL, &reader, &err), 0);
	pid_t pids[2];
	for (int i = 0; i < 2; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			audit_be_a_writer(i);
			_exit(0);
		}
	}
	int next[2] = { 0 };
	while (next[0] + next[1] < 2 * AUDIT_EACH) {
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
	assert_int_equal(cell_audit_reader_open(audit_live, NULL, &reader, &err), -1);
	assert_int_equal(err.code, CELL_E_NOT_FOUND);
	assert_int_equal(cell_audit_reader_open(audit_dir, NULL, &reader, &err), -1);
	assert_int_equal(err.code, CELL_E_IO);
	audit_put(audit_numbered(1), "w", "{\"r\":\"1\"}\n"); /* only a rotated one */
	assert_int_equal(cell_audit_reader_open(audit_live, NULL, &reader, &err), 0);
	expect_next(reader, "1");
	struct cell_audit_entry entry = { .size = 1 };
	assert_int_equal(cell_audit_reader_next(reader, &entry, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_audit_reader_close(reader);
	struct cell_audit_filter filter = { .size = SIZE_MAX };
	assert_int_equal(cell_audit_reader_open(audit_live, &filter, &reader, &err), -1);
	assert_int_equal(err.code, CELL_E_INVALID);
	cell_audit_reader_close(NULL);
	bool opened = false;
	for (long n = 1; !opened; n++) {
		struct cell_audit_filter all = { .size = sizeof all, .session = "a", .tool = "a.b", .decision = "c", .last = 1 };
		cell__alloc_fail_after(n);
		opened = cell_audit_reader_open(audit_live, &all, &reader, &err) == 0;
		cell__alloc_fail_after(0);
		assert_true(n < 100);
	}
	cell_audit_reader_close(reader);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		AUDIT_TEST(test_filters), AUDIT_TEST(test_bad_lines),          AUDIT_TEST(test_long_line),
		AUDIT_TEST(test_follow),  AUDIT_TEST(test_read_while_written), AUDIT_TEST(test_reader_edge),
	};
	return cmocka_run_group_tests_name("audit_read", tests, NULL, NULL);
}
