/* session/output: what a result keeps of its output, and the file that has all of it. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "session/output.h"

/* ---- capped ---- */

/* Writes n bytes that tell their position, in pieces of this size. */
static void feed(struct cell__capped *capped, struct cell__buf *all, size_t n, size_t piece)
{
	for (size_t done = 0; done < n;) {
		size_t part = n - done < piece ? n - done : piece;
		size_t start = all->size;
		for (size_t i = 0; i < part; i++) {
			char byte = (char)('!' + (all->size * 7 + all->size / 90) % 90);
			assert_int_equal(cell__buf_add(all, &byte, 1), 0);
		}
		assert_int_equal(cell__capped_add(capped, all->data + start, part), 0);
		done += part;
	}
}

/* What the result must say, from all that was written (ASCII, so that no character is cut). */
static void expect(const struct cell__buf *all, size_t cap, const char *spill, struct cell__buf *out)
{
	size_t half = cap / 2;
	if (all->size <= cap) {
		cell__buf_add(out, all->data ? all->data : "", all->size);
		return;
	}
	cell__buf_add(out, all->data, half);
	cell__buf_printf(out, "\n[... %zu bytes left out%s%s ...]\n", all->size - 2 * half, spill ? "; the whole output is in " : "",
			 spill ? spill : "");
	cell__buf_add(out, all->data + all->size - half, half);
}

static void check_capped(size_t cap, size_t total, size_t piece)
{
	struct cell__capped capped;
	CELL_AUTO_BUF struct cell__buf all = CELL_BUF_INIT, got = CELL_BUF_INIT, wanted = CELL_BUF_INIT;
	cell__capped_init(&capped, cap);
	feed(&capped, &all, total, piece);
	assert_true(capped.total == total);
	/* The point of it all: memory within the cap, whatever comes. */
	assert_true(capped.head.size + capped.tail.size <= cap);
	const char *spill = total % 2 ? "/tmp/file" : NULL;
	assert_int_equal(cell__capped_join(&capped, spill, 0, &got), 0);
	expect(&all, cap, spill, &wanted);
	if (got.size != wanted.size || memcmp(got.data, wanted.data, got.size) != 0)
		fail_msg("cap %zu, %zu bytes in pieces of %zu: not head and tail", cap, total, piece);
	cell__capped_finish(&capped);
}

static const size_t pieces[] = { 1, 7, 100, 511, 512, 513, 1024, 1025, 5000, 1000000 };

static void test_below_at_and_past(void **state)
{
	(void)state;
	const size_t cap = 1024;
	const size_t totals[] = { 0, 1, cap - 1, cap, cap + 1, cap + 2, cap + 511, cap + 512, cap + 513, 2 * cap, 10 * cap + 3 };
	for (size_t i = 0; i < COUNT(totals); i++)
		for (size_t k = 0; k < COUNT(pieces); k++)
			check_capped(cap, totals[i], pieces[k]);
}

/* max_output_bytes may be any number from 1024 on. */
static void test_odd_cap(void **state)
{
	(void)state;
	const size_t cap = 1025;
	const size_t totals[] = { cap - 1, cap, cap + 1, cap + 2, cap + 511, cap + 512, cap + 513, 2 * cap, 10 * cap + 3 };
	for (size_t i = 0; i < COUNT(totals); i++)
		for (size_t k = 0; k < COUNT(pieces); k++)
			check_capped(cap, totals[i], pieces[k]);
}

static void test_far_past(void **state)
{
	(void)state;
	struct cell__capped capped;
	cell__capped_init(&capped, 4096);
	char *block = malloc(1 << 20);
	memset(block, 'm', 1 << 20);
	memset(block, 'h', 2048);
	for (int i = 0; i < 1024; i++) { /* a gigabyte */
		assert_int_equal(cell__capped_add(&capped, block, 1 << 20), 0);
		assert_true(capped.head.capacity + capped.tail.capacity <= 4 * 4096);
		memset(block, 'm', 2048);
	}
	assert_true(capped.total == 1ull << 30);
	memset(block, 't', 2048);
	assert_int_equal(cell__capped_add(&capped, block, 2048), 0);
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	assert_int_equal(cell__capped_join(&capped, NULL, 0, &out), 0);
	assert_int_equal(out.data[0], 'h');
	assert_int_equal(out.data[2047], 'h');
	assert_int_equal(out.data[out.size - 2048], 't');
	assert_non_null(strstr(out.data, "[... 1073739776 bytes left out ...]"));
	free(block);
	cell__capped_finish(&capped);
}

/* The cut goes between characters: what was valid UTF-8 stays valid. */
static void test_cut_between_characters(void **state)
{
	(void)state;
	static const char *const characters[] = { "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80" };
	for (size_t c = 0; c < COUNT(characters); c++)
		for (size_t shift = 0; shift < 4; shift++) {
			struct cell__capped capped;
			CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
			cell__capped_init(&capped, 1024);
			uint64_t total = 0;
			for (size_t i = 0; i < shift; i++, total++)
				assert_int_equal(cell__capped_add(&capped, "a", 1), 0);
			for (int i = 0; i < 3000; i++, total += strlen(characters[c]))
				assert_int_equal(cell__capped_add(&capped, characters[c], strlen(characters[c])), 0);
			assert_int_equal(cell__capped_join(&capped, NULL, 0, &out), 0);
			assert_true(cell__utf8_ok(out.data, out.size));
			/* The count is of what is missing now, the cut characters included. */
			unsigned long long missing = 0;
			char *marker = strstr(out.data, "\n[... ");
			assert_non_null(marker);
			assert_int_equal(sscanf(marker, "\n[... %llu bytes left out ...]\n", &missing), 1);
			size_t marker_size = (size_t)(strstr(marker, "...]\n") + 5 - marker);
			assert_true(out.size - marker_size + missing == total);
			cell__capped_finish(&capped);
		}
}

static void test_bytes_that_are_no_text(void **state)
{
	(void)state;
	for (int byte = 0x80; byte < 0x100; byte += 0x7f) {
		struct cell__capped capped;
		CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
		cell__capped_init(&capped, 1024);
		char bytes[5000];
		memset(bytes, byte, sizeof bytes);
		assert_int_equal(cell__capped_add(&capped, bytes, sizeof bytes), 0);
		assert_int_equal(cell__capped_join(&capped, NULL, 0, &out), 0);
		assert_true(out.size >= 1024 - 6 && out.size < 1024 + 100);
		cell__capped_finish(&capped);
	}
}

/* -1: what was there is kept, and counted as it was. */
static void test_capped_without_memory(void **state)
{
	(void)state;
	char bytes[700];
	memset(bytes, 'x', sizeof bytes);
	for (long n = 1; n < 12; n++) {
		struct cell__capped capped;
		cell__capped_init(&capped, 1024);
		cell__alloc_fail_after(n);
		for (int i = 0; i < 6; i++) {
			uint64_t before = capped.total;
			size_t kept = capped.head.size + capped.tail.size;
			if (cell__capped_add(&capped, bytes, sizeof bytes) < 0) {
				assert_true(capped.total == before);
				assert_int_equal(capped.head.size + capped.tail.size, kept);
			} else {
				assert_true(capped.total == before + sizeof bytes);
			}
			assert_true(capped.head.size + capped.tail.size <= capped.cap);
		}
		cell__alloc_fail_after(0);
		cell__capped_finish(&capped);
	}
	struct cell__capped capped;
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	cell__capped_init(&capped, 1024);
	for (int i = 0; i < 6; i++)
		assert_int_equal(cell__capped_add(&capped, bytes, sizeof bytes), 0);
	cell__alloc_fail_after(1);
	assert_int_equal(cell__capped_join(&capped, NULL, 0, &out), -1);
	cell__alloc_fail_after(0);
	cell__capped_finish(&capped);
}

/* ---- spill ---- */

struct rig {
	struct cell__task task;
	struct cell__loop *loop;
	struct cell__spill spill;
	struct cell__waiter waiter;
	const char *dir;
	size_t blocks;
	uint64_t already;   /* in the file, as far as the limit goes */
	bool full;          /* the disk is */
	bool slowly;        /* as much as makes a write, and more only when that is written */
	bool finished_inside;
	int finished, progressed;
	size_t worst_backlog;
};

#define BLOCK 10000

static void make_block(char *block, size_t number)
{
	memset(block, (int)('a' + number % 26), BLOCK);
	snprintf(block, 32, "block %zu\n", number);
}

static void add_block(struct rig *rig)
{
	char block[BLOCK];
	make_block(block, --rig->blocks);
	cell__spill_add(&rig->spill, block, sizeof block);
	if (cell__spill_backlog(&rig->spill) > rig->worst_backlog)
		rig->worst_backlog = cell__spill_backlog(&rig->spill);
	if (rig->blocks == 0)
		cell__spill_close(&rig->spill);
}

static void handle_progress(void *arg)
{
	struct rig *rig = arg;
	rig->progressed++;
	CHECK(!rig->finished);
	/* After a failure nothing is written any more, so nothing more is reported. */
	while (rig->slowly && rig->blocks > 0 && (rig->spill.error || !rig->spill.busy))
		add_block(rig);
}

static void handle_finished(void *arg)
{
	struct rig *rig = arg;
	rig->finished++;
	cell__waiter_signal(&rig->waiter);
}

static void do_spill(struct cell__task *task)
{
	struct rig *rig = (struct rig *)task;
	cell__spill_init(&rig->spill, rig->loop, handle_progress, handle_finished, rig);
	if (rig->dir)
		cell__spill_open(&rig->spill, rig->dir, "unit");
	rig->spill.size = rig->already;
	if (rig->full) {
		int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
		CHECK(full >= 0 && dup3(full, rig->spill.fd, O_CLOEXEC) >= 0);
		close(full);
	}
	if (rig->blocks == 0)
		cell__spill_close(&rig->spill);
	while (rig->blocks > 0 && !(rig->slowly && rig->spill.busy))
		add_block(rig);
	rig->finished_inside = rig->finished > 0;
}

static void rig_run(struct rig *rig)
{
	rig->task.fn = do_spill;
	cell__waiter_init(&rig->waiter);
	assert_int_equal(cell__loop_create(&rig->loop, NULL), 0);
	cell__loop_do(rig->loop, &rig->task, &rig->waiter);
	cell__loop_destroy(rig->loop);
	cell__waiter_finish(&rig->waiter);
	assert_int_equal(rig->finished, 1);
	assert_int_equal(rig->spill.fd, -1);
}

static char *make_dir(void)
{
	char *dir = cell__strdup("/tmp/workcell-test-XXXXXX");
	assert_non_null(mkdtemp(dir));
	return dir;
}

static void check_file(const struct rig *rig, size_t blocks)
{
	CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
	assert_non_null(rig->spill.path);
	assert_int_equal(rig->spill.error, 0);
	assert_true(support_read_file(rig->spill.path, &got));
	assert_int_equal(got.size, blocks * BLOCK);
	for (size_t i = 0; i < blocks; i++) {
		char block[BLOCK];
		make_block(block, blocks - 1 - i);
		assert_memory_equal(got.data + i * BLOCK, block, BLOCK);
	}
}

static void test_spill(void **state)
{
	(void)state;
	CELL_AUTO_FREE char *dir = make_dir();
	for (int slowly = 0; slowly < 2; slowly++) {
		struct rig rig = { .dir = dir, .blocks = 500, .slowly = slowly };
		rig_run(&rig);
		check_file(&rig, 500);
		assert_false(rig.finished_inside);
		assert_true(rig.progressed > 0);
		if (slowly)
			assert_true(rig.worst_backlog < CELL__SPILL_WRITE_BYTES);
		else
			assert_true(rig.worst_backlog > 100 * BLOCK); /* the loop never waits for the disk */
		struct stat st;
		assert_int_equal(stat(rig.spill.path, &st), 0);
		assert_int_equal(st.st_mode & 0777, 0600);
		assert_memory_equal(rig.spill.path, dir, strlen(dir));
		assert_memory_equal(rig.spill.path + strlen(dir), "/workcell-unit-", 15);
		assert_int_equal(unlink(rig.spill.path), 0);
		free(rig.spill.path);
	}
	assert_int_equal(rmdir(dir), 0);
}

/* A flood does not fill the disk. */
static void test_spill_limit(void **state)
{
	(void)state;
	static const struct {
		size_t room, blocks, in_file;
		bool cut;
	} rows[] = {
		{ 3 * BLOCK, 3, 3 * BLOCK, false },
		{ 3 * BLOCK, 4, 3 * BLOCK, true },
		{ 3 * BLOCK - 1, 50, 3 * BLOCK - 1, true },
		{ 0, 2, 0, true },
	};
	CELL_AUTO_FREE char *dir = make_dir();
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig = { .dir = dir, .blocks = rows[i].blocks, .already = CELL_LIMIT_SPILL_BYTES - rows[i].room };
		rig_run(&rig);
		CELL_AUTO_BUF struct cell__buf got = CELL_BUF_INIT;
		assert_true(support_read_file(rig.spill.path, &got));
		assert_int_equal(got.size, rows[i].in_file);
		assert_int_equal(rig.spill.cut, rows[i].cut);
		assert_true(rig.spill.size <= CELL_LIMIT_SPILL_BYTES);
		unlink(rig.spill.path);
		free(rig.spill.path);
	}
	assert_int_equal(rmdir(dir), 0);
}

static void test_spill_never_opened(void **state)
{
	(void)state;
	struct rig rig = { .dir = NULL };
	rig_run(&rig);
	assert_true(rig.finished_inside);
	assert_null(rig.spill.path);
	struct rig written = { .dir = NULL, .blocks = 3 }; /* goes nowhere */
	rig_run(&written);
	assert_null(written.spill.path);
}

static void test_spill_empty(void **state)
{
	(void)state;
	CELL_AUTO_FREE char *dir = make_dir();
	struct rig rig = { .dir = dir };
	rig_run(&rig);
	assert_true(rig.finished_inside);
	check_file(&rig, 0);
	unlink(rig.spill.path);
	free(rig.spill.path);
	assert_int_equal(rmdir(dir), 0);
}

static void test_spill_bad_directory(void **state)
{
	(void)state;
	static const struct {
		const char *dir;
		int error;
	} rows[] = { { "/nonexistent/dir", ENOENT }, { "/dev/null", ENOTDIR }, { "/proc/self/fd", EACCES } };
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct rig rig = { .dir = rows[i].dir, .blocks = 10 };
		rig_run(&rig);
		assert_null(rig.spill.path);
		if (i < 2)
			assert_int_equal(rig.spill.error, rows[i].error);
		else
			assert_int_not_equal(rig.spill.error, 0);
	}
}

/* Half a file is no file: the result must not name one that lacks something. */
static void test_spill_full_disk(void **state)
{
	(void)state;
	for (int slowly = 0; slowly < 2; slowly++) {
		CELL_AUTO_FREE char *dir = make_dir();
		struct rig rig = { .dir = dir, .blocks = 150, .full = true, .slowly = slowly };
		rig_run(&rig);
		assert_int_equal(rig.spill.error, ENOSPC);
		assert_null(rig.spill.path);
		assert_int_equal(rmdir(dir), 0); /* nothing is left in it */
	}
}

static void test_spill_without_memory(void **state)
{
	(void)state;
	CELL_AUTO_FREE char *dir = make_dir();
	for (long n = 1; n < 6; n++) {
		struct rig rig = { .dir = dir, .blocks = 3 };
		rig.task.fn = do_spill;
		cell__waiter_init(&rig.waiter);
		assert_int_equal(cell__loop_create(&rig.loop, NULL), 0);
		cell__alloc_fail_after(n);
		cell__loop_do(rig.loop, &rig.task, &rig.waiter);
		cell__alloc_fail_after(0);
		cell__loop_destroy(rig.loop);
		cell__waiter_finish(&rig.waiter);
		assert_int_equal(rig.finished, 1);
		if (rig.spill.error) {
			assert_int_equal(rig.spill.error, ENOMEM);
			assert_null(rig.spill.path);
		} else {
			check_file(&rig, 3);
			unlink(rig.spill.path);
			free(rig.spill.path);
		}
	}
	assert_int_equal(rmdir(dir), 0);
}

int main(int argc, char **argv)
{
	support_init(argc, argv);
	const struct CMUnitTest tests[] = {
		TEST(test_below_at_and_past),
		TEST(test_odd_cap),
		TEST(test_far_past),
		TEST(test_cut_between_characters),
		TEST(test_bytes_that_are_no_text),
		TEST(test_capped_without_memory),
		TEST(test_spill),
		TEST(test_spill_limit),
		TEST(test_spill_never_opened),
		TEST(test_spill_empty),
		TEST(test_spill_bad_directory),
		TEST(test_spill_full_disk),
		TEST(test_spill_without_memory),
	};
	return cmocka_run_group_tests_name("output", tests, NULL, NULL);
}
