/* session/audit: what disks, locks, fsync and a lack of memory do to it. */
#define _GNU_SOURCE
#include "audit_support.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>

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
	CELL_AUTO_FD int fd = open(audit_live, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	size_t taken = 0;
	struct cell__audit_record record = audit_simple("x");
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
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), taken + 1);
	json_t *note = json_array_get(records, taken);
	assert_int_equal(json_integer_value(json_object_get(note, "lost")), 2);
	assert_string_equal(audit_text(records, taken, "kind"), "audit");
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
	CELL_AUTO_FD int fd = open(audit_live, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	struct cell__audit_record record = audit_simple("1");
	assert_int_equal(rig_write(&rig, &record), 0);
	assert_true(support_wait(is_failing, &rig));
	assert_int_equal(rig.last_error, ETIMEDOUT);
	assert_int_equal(rig_admit(&rig), -1);
	flock(fd, LOCK_UN);
	assert_true(support_wait(is_well, &rig));
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 1);
	json_decref(records);
}

/* ---- full disks ---- */

static void mount_small(void)
{
	if (mount("tmpfs", audit_dir, "tmpfs", 0, "size=64k") < 0) {
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
	assert_true(support_read_file(audit_live, &text));
	if (text.size > 0 && text.data[text.size - 1] != '\n')
		fail_msg("the file does not end in a whole line");
}

static void full_disk(bool fail_closed)
{
	mount_small();
	char filler[160];
	snprintf(filler, sizeof filler, "%s/filler", audit_dir);
	struct rig rig;
	rig_init(&rig);
	rig.opts.fail_closed = fail_closed;
	rig.opts.queue_bytes = 16 * 1024;
	rig.opts.max_bytes = 0;
	assert_int_equal(rig_open(&rig), 0);
	struct cell__audit_record record = audit_simple("0");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	fill(filler);
	/* What is left of the page that the file has takes some more; then it is over. */
	int taken = 1;
	for (; !is_failing(&rig); taken++) {
		char request[16];
		snprintf(request, sizeof request, "%d", taken);
		record = audit_simple(request);
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
		record = audit_simple(request);
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
	assert_non_null(strstr(rig.logged, "can be written again"));
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), taken + 1);
	for (int i = 0; i < taken; i++)
		assert_int_equal(atoi(audit_text(records, (size_t)i, "request")), i);
	json_t *note = json_array_get(records, (size_t)taken);
	assert_int_equal(json_integer_value(json_object_get(note, "lost")), lost);
	assert_non_null(strstr(audit_text(records, (size_t)taken, "error"), "No space left on device"));
	json_decref(records);
	assert_int_equal(umount2(audit_dir, MNT_DETACH), 0);
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
	snprintf(filler, sizeof filler, "%s/filler", audit_dir);
	fill(filler);
	rig_write_many(&rig, 3);
	rig_wait(&rig);
	assert_int_equal(rig.failed, 3);
	rig_finish(&rig);
	assert_non_null(strstr(rig.logged, "3 records of the audit log"));
	assert_int_equal(umount2(audit_dir, MNT_DETACH), 0);
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
	rig_write_many(&rig, 100);
	rig_finish(&rig);
	assert_int_equal(rig.ok, 100);
	assert_int_equal(audit_syncs + audit_dir_syncs, 0);
}

static void test_sync_always(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.sync = CELL__AUDIT_SYNC_ALWAYS;
	assert_int_equal(rig_open(&rig), 0);
	assert_int_equal(audit_dir_syncs, 0); /* the loop does not wait for the disk */
	for (int i = 1; i <= 5; i++) {
		struct cell__audit_record record = audit_simple("x");
		assert_int_equal(rig_write(&rig, &record), 0);
		rig_wait(&rig);
		assert_int_equal(audit_syncs, i); /* before we were told */
		assert_int_equal(audit_dir_syncs, 1); /* the name of the new file */
	}
	/* A disk that fails to sync: the record is not there, and comes again when the disk does. */
	off_t before = audit_size(audit_live);
	audit_sync_error = EIO;
	struct cell__audit_record record = audit_simple("late");
	assert_int_equal(rig_write(&rig, &record), 0);
	rig_wait(&rig);
	assert_int_equal(rig.failed, 1);
	assert_int_equal(rig.last_error, EIO);
	assert_int_equal(audit_size(audit_live), before);
	assert_int_equal(rig_admit(&rig), -1);
	audit_sync_error = 0;
	assert_true(support_wait(is_well, &rig));
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 6);
	json_decref(records);
}

static bool was_synced(void *arg)
{
	(void)arg;
	return audit_syncs > 0;
}

static void test_sync_interval(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	rig.opts.sync_ms = 600000;
	assert_int_equal(rig_open(&rig), 0);
	rig_write_many(&rig, 50);
	rig_wait(&rig);
	assert_int_equal(audit_syncs, 0); /* not yet */
	rig_finish(&rig);
	assert_int_equal(audit_syncs, 1); /* the end does not wait for the interval */
	rig_init(&rig);
	rig.opts.sync_ms = 20;
	audit_syncs = 0;
	assert_int_equal(rig_open(&rig), 0);
	rig_write_many(&rig, 50);
	rig_wait(&rig);
	assert_true(support_wait(was_synced, NULL));
	audit_sync_error = EIO;
	rig_write_many(&rig, 1);
	assert_true(support_wait(is_failing, &rig));
	assert_int_equal(rig.failed, 0); /* it is in the file */
	audit_sync_error = 0;
	assert_true(support_wait(is_well, &rig));
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
	assert_int_equal(json_array_size(records), 101);
	json_decref(records);
}

/* ---- callbacks that do things ---- */

struct again {
	struct cell__task task;
	struct rig *rig;
	int left;
	struct cell__waiter closed;
};

static void handle_again_closed(void *arg)
{
	cell__waiter_signal(&((struct again *)arg)->closed);
}

static void write_again(void *arg, int rc)
{
	struct again *again = arg;
	struct cell__audit_record record = audit_simple("x");
	CHECK(rc == 0);
	if (again->left-- > 0)
		CHECK(cell__audit_write(again->rig->audit, &record, write_again, again, NULL) == 0);
	else
		cell__audit_log_close(again->rig->audit, handle_again_closed, again);
}

static void do_write_again(struct cell__task *task)
{
	struct again *again = (struct again *)task;
	struct cell__audit_record record = audit_simple("x");
	CHECK(cell__audit_write(again->rig->audit, &record, write_again, again, NULL) == 0);
	CHECK(again->left == 20); /* never from inside the call */
}

static void test_writing_and_closing_from_callbacks(void **state)
{
	(void)state;
	struct rig rig;
	rig_init(&rig);
	assert_int_equal(rig_open(&rig), 0);
	struct again again = { .task.fn = do_write_again, .rig = &rig, .left = 20 };
	cell__waiter_init(&again.closed);
	cell__loop_do(rig.loop, &again.task, &again.closed);
	cell__waiter_finish(&again.closed);
	rig.audit = NULL;
	rig_finish(&rig);
	json_t *records = audit_read(NULL, NULL);
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
		struct cell__audit_record record = audit_simple("x");
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

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
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
	};
	return cmocka_run_group_tests_name("audit_disk", tests, NULL, NULL);
}
