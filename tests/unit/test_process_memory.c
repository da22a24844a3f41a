/* The memory of a process that waits while it is read, and what a hostile one says of it. */
#define _GNU_SOURCE
#include "support.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "spawn/process_memory.h"
#include "wire/image_part.h"

#define PART ((size_t)(3 * CELL_IMAGE_PAGE))
#define FIRST (2 * CELL_IMAGE_PAGE)
#define TABLE 64

/* Every second of its parts is in the table; the token stands behind them. */
struct told {
	char *area;
	int fd; /* the file with the table */
	pid_t pid;
	struct cell__process_memory *memory;
	struct cell__process_said said;
	struct cell_image_part parts[3];
};

static char byte_at(size_t i)
{
	return (char)((i * 2654435761u) >> 13);
}

static void be_read(struct told *told, int tokens, int done)
{
	char byte;
	for (size_t i = 0; i < 8 * PART; i++)
		told->area[i] = byte_at(i);
	if (read(tokens, told->area + 7 * PART, CELL_PROCESS_TOKEN) != CELL_PROCESS_TOKEN || write(done, "x", 1) != 1)
		_exit(1);
	(void)!read(tokens, &byte, 1); /* until the test ends */
	_exit(0);
}

static int set_up(void **state)
{
	static struct told told;
	int tokens[2], done[2], wait_fd;
	char byte;
	told = (struct told){ .fd = memfd_create("table", MFD_CLOEXEC) };
	told.area = mmap(NULL, 8 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(told.area != MAP_FAILED && told.fd >= 0 && pipe(tokens) == 0 && pipe(done) == 0 && ftruncate(told.fd, 1 << 20) == 0);
	told.pid = fork();
	if (told.pid == 0)
		be_read(&told, tokens[0], done[1]);
	told.memory = cell__process_memory_create(told.pid, &wait_fd);
	assert_non_null(told.memory);
	close(wait_fd);
	assert_int_equal(write(tokens[1], cell__process_memory_token(told.memory), CELL_PROCESS_TOKEN), CELL_PROCESS_TOKEN);
	assert_int_equal(read(done[0], &byte, 1), 1);
	told.said = (struct cell__process_said){
		.token_at = (uintptr_t)(told.area + 7 * PART), .table_at = TABLE, .n_parts = 3, .first_at = FIRST
	};
	for (size_t i = 0; i < 3; i++)
		told.parts[i] = (struct cell_image_part){ .at = (uintptr_t)(told.area + 2 * i * PART),
							  .bytes = PART,
							  .offset = FIRST + i * PART };
	close(tokens[0]);
	close(done[0]);
	close(done[1]);
	*state = &told;
	return 0;
}

static int tear_down(void **state)
{
	struct told *told = *state;
	kill(told->pid, SIGKILL);
	waitpid(told->pid, NULL, 0);
	cell__process_memory_unref(told->memory);
	munmap(told->area, 8 * PART);
	close(told->fd);
	return 0;
}

/* 0, or the code of the refusal. */
static int open_told(struct told *told)
{
	struct cell_error err = { 0 };
	uint64_t bytes = 0;
	assert_int_equal(pwrite(told->fd, told->parts, sizeof told->parts, TABLE), sizeof told->parts);
	cell__process_memory_said(told->memory, &told->said);
	if (cell__process_memory_open(told->memory, told->fd, &bytes, &err) < 0)
		return err.code;
	assert_int_equal(bytes, told->parts[2].offset + told->parts[2].bytes);
	return 0;
}

static void test_reading(void **state)
{
	struct told *told = *state;
	static char bytes[FIRST + 3 * PART];
	assert_int_equal(open_told(told), 0);
	for (size_t size = 1; size < sizeof bytes; size = size * 3 + 1)
		for (size_t from = 0; from + size <= sizeof bytes; from += size) {
			assert_true(cell__process_memory_read(told->memory, told->fd, bytes, size, from));
			for (size_t i = 0; i < size; i++)
				if (from + i >= FIRST) {
					size_t at = from + i - FIRST;
					assert_int_equal(bytes[i], byte_at(at / PART * 2 * PART + at % PART));
				}
		}
	assert_true(cell__process_memory_read(told->memory, told->fd, bytes, sizeof told->parts, TABLE));
	assert_memory_equal(bytes, told->parts, sizeof told->parts);
	assert_false(cell__process_memory_read(told->memory, told->fd, bytes, 2, FIRST + 3 * PART - 1)); /* behind its end */
	assert_true(cell__process_memory_is_same(told->memory));
}

static void test_another_process(void **state)
{
	struct told *told = *state;
	char byte;
	assert_int_equal(open_told(told), 0);
	kill(told->pid, SIGKILL);
	assert_int_equal(waitid(P_PID, (id_t)told->pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
	assert_false(cell__process_memory_is_same(told->memory));
	assert_false(cell__process_memory_read(told->memory, told->fd, &byte, 1, FIRST));
}

static void test_without_the_token(void **state)
{
	struct told *told = *state;
	const uint64_t places[] = { 0, (uintptr_t)told->area, told->said.token_at + 1, UINT64_MAX };
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		told->said.token_at = places[i];
		assert_int_equal(open_told(told), CELL_E_KERNEL);
	}
}

static void test_tables_that_are_none(void **state)
{
	struct told *told = *state;
	const struct cell__process_said good = told->said;
	const struct cell__process_said bad[] = { { good.token_at, TABLE, 0, FIRST },
						  { good.token_at, TABLE, CELL_IMAGE_PARTS + 1, FIRST },
						  { good.token_at, TABLE, 3, 0 },
						  { good.token_at, TABLE, 3, FIRST + 1 },
						  { good.token_at, TABLE, 3, UINT64_MAX & ~(CELL_IMAGE_PAGE - 1) },
						  { good.token_at, FIRST - 64, 3, FIRST },
						  { good.token_at, UINT64_MAX, 3, FIRST },
						  { good.token_at, TABLE, UINT64_MAX / 16, FIRST } };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		told->said = bad[i];
		assert_int_equal(open_told(told), CELL_E_PROTOCOL);
	}
	told->said = good;
	const struct cell_image_part part = told->parts[1];
	const struct cell_image_part parts[] = { { part.at, 0, part.offset, 0 },
						 { part.at, PART + 1, part.offset, 0 },
						 { part.at, PART, part.offset - CELL_IMAGE_PAGE, 0 },
						 { part.at, PART, part.offset + CELL_IMAGE_PAGE, 0 },
						 { part.at, UINT64_MAX & ~(CELL_IMAGE_PAGE - 1), part.offset, 0 },
						 { part.at, (uint64_t)1 << 42, part.offset, 0 } };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		told->parts[1] = parts[i];
		assert_int_equal(open_told(told), CELL_E_PROTOCOL);
	}
}

/* The same page again and again, or pages that were never touched, take no memory of the kernel, but would take a disk. */
static void test_more_than_it_may_have(void **state)
{
	struct told *told = *state;
	cell__process_memory_limit(told->memory, 3 * PART);
	assert_int_equal(open_told(told), 0);
	told->parts[2] = (struct cell_image_part){ .at = told->parts[0].at, .bytes = PART + CELL_IMAGE_PAGE, .offset = FIRST + 2 * PART };
	assert_int_equal(open_told(told), CELL_E_LIMIT);
}

/* It may name whatever it likes: what is not its memory is not read. */
static void test_places_that_are_none(void **state)
{
	struct told *told = *state;
	char bytes[4096];
	const uint64_t places[] = { 0, UINT64_MAX & ~(CELL_IMAGE_PAGE - 1), (uint64_t)1 << 63 };
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		told->parts[1].at = places[i];
		assert_int_equal(open_told(told), 0);
		assert_false(cell__process_memory_read(told->memory, told->fd, bytes, sizeof bytes, FIRST + PART));
		assert_true(cell__process_memory_read(told->memory, told->fd, bytes, sizeof bytes, FIRST));
	}
}

static void test_processes_that_may_not_be_read(void **state)
{
	int fd;
	(void)state;
	assert_null(cell__process_memory_create(0, &fd));
	assert_null(cell__process_memory_create(1 << 30, &fd));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_reading, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_another_process, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_without_the_token, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tables_that_are_none, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_more_than_it_may_have, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_places_that_are_none, set_up, tear_down),
		cmocka_unit_test(test_processes_that_may_not_be_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
