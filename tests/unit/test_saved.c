/* The description of a saved session, its seal, and its pieces. */
#define _GNU_SOURCE
#include "support.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/base.h"
#include "durable/durable.h"

#define ID "0123456789abcdef0123456789abcdef"
#define PIECE "[%s, \"00000000000000000000000000000000000000000000000000000000000000ff\"]"

static char *text_of(const char *pieces, const char *name, int version)
{
	static char text[4096];
	snprintf(
		text, sizeof text,
		"{\"version\": %d, \"id\": \"" ID
		"\", \"owner\": \"\", \"workspace\": \"/w\", \"executor\": \"sandbox\", \"python\": \"/p\", "
		"\"preload\": \"\", \"build\": \"1\", \"machine\": \"m\", \"cells\": 3, \"generation\": 1, \"saved_ms\": 5, \"notes\": {}, "
		"\"left\": [], \"files\": [{\"name\": \"%s\", \"inode\": \"7\", \"pieces\": [%s]}]}",
		version, name, pieces);
	return text;
}

static int code_of(const char *text)
{
	struct cell__saved saved;
	struct cell_error err = { 0 };
	int rc = cell__saved_read(text, strlen(text), &saved, &err);
	cell__saved_finish(&saved);
	return rc < 0 ? err.code : 0;
}

static int code_of_piece(const char *numbers)
{
	char piece[300];
	snprintf(piece, sizeof piece, PIECE, numbers);
	return code_of(text_of(piece, "p-0123456789abcdef", CELL_SAVED_VERSION));
}

static void test_description(void **state)
{
	(void)state;
	assert_int_equal(code_of_piece("4096, 4096, 0, 100, 1"), 0);
	assert_int_equal(code_of_piece("0, 1048576, 0, 1114112, 1"), 0);
	const char *const bad[] = { "-1, 10, 0, 10, 0",     "0, 0, 0, 1, 1",       "0, 10, 0, 0, 0",    "0, 1048577, 0, 10, 1",
				    "0, 10, 0, 1114113, 1", "0, 10, 0, 10, 2",     "0, 10, 0, 11, 0",   "0, 10, 0, 10",
				    "0, 10, 0, 10, 0, 0",   "\"0\", 10, 0, 10, 0", "0.5, 10, 0, 10, 0", "4398046511104, 1, 0, 1, 0" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(code_of_piece(bad[i]), CELL_E_DAMAGED);
	char two[700], first[300], second[300];
	snprintf(first, sizeof first, PIECE, "0, 4096, 0, 4096, 0");
	snprintf(second, sizeof second, PIECE, "4095, 4096, 0, 4096, 0");
	snprintf(two, sizeof two, "%s, %s", first, second);
	assert_int_equal(code_of(text_of(two, "p-0123456789abcdef", CELL_SAVED_VERSION)), CELL_E_DAMAGED);
	const char *const names[] = { "../../etc/passwd", "p-0123456789abcde/", "p-0123456789abcdeg", "state", "" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		assert_int_equal(code_of(text_of(first, names[i], CELL_SAVED_VERSION)), CELL_E_DAMAGED);
	assert_int_equal(code_of(text_of(first, "p-0123456789abcdef", CELL_SAVED_VERSION_POINTS + 1)), CELL_E_DIFFERS);
	assert_int_equal(code_of(text_of("", "p-0123456789abcdef", CELL_SAVED_VERSION)), CELL_E_DAMAGED);
	assert_int_equal(code_of("[]"), CELL_E_DAMAGED);
	assert_int_equal(code_of("{"), CELL_E_DAMAGED);
}

#define FILE_OF(layer) "{\"name\": \"p-0123456789abcdef\", \"inode\": \"7\", \"layer\": " layer ", \"pieces\": [" PIECE "]}"

/* n memories, a layer if there is one, then a memory and a layer for points; what follows the list of files. */
static char *text_with(size_t n, bool layer, int version, const char *more)
{
	static char text[8192];
	char file[300], last[300];
	size_t at = (size_t)snprintf(
		text, sizeof text,
		"{\"version\": %d, \"id\": \"" ID
		"\", \"owner\": \"\", \"workspace\": \"/w\", \"executor\": \"sandbox\", \"python\": \"/p\", \"preload\": \"\", "
		"\"build\": \"1\", \"machine\": \"m\", \"cells\": 3, \"generation\": 1, \"saved_ms\": 5, \"notes\": {}, \"left\": [], \"files\": [",
		version);
	snprintf(file, sizeof file, FILE_OF("false"), "0, 4096, 0, 4096, 0");
	snprintf(last, sizeof last, FILE_OF("true"), "0, 4096, 0, 4096, 0");
	for (size_t i = 0; i < n; i++)
		at += (size_t)snprintf(text + at, sizeof text - at, "%s%s", i ? "," : "", file);
	if (layer)
		at += (size_t)snprintf(text + at, sizeof text - at, ",%s", last);
	if (version == CELL_SAVED_VERSION_POINTS)
		at += (size_t)snprintf(text + at, sizeof text - at, ",%s,%s", file, last);
	snprintf(text + at, sizeof text - at, "]%s}", more);
	return text;
}

/* A memory refers to no more files than a kernel is given at once. */
static void test_files_of_a_memory(void **state)
{
	(void)state;
	for (int layer = 0; layer < 2; layer++) {
		assert_int_equal(code_of(text_with(CELL_SAVED_MEMORIES, layer, CELL_SAVED_VERSION, "")), 0);
		assert_int_equal(code_of(text_with(CELL_SAVED_MEMORIES + 1, layer, CELL_SAVED_VERSION, "")), CELL_E_DAMAGED);
	}
	assert_int_equal(code_of(text_with(1, true, CELL_SAVED_VERSION, ", \"own\": 1")), 0);
	assert_int_equal(code_of(text_with(1, true, CELL_SAVED_VERSION, ", \"own\": 0")), CELL_E_DAMAGED);
	assert_int_equal(code_of(text_with(1, true, CELL_SAVED_VERSION, ", \"own\": 3")), CELL_E_DAMAGED);
	assert_int_equal(code_of(text_with(1, true, CELL_SAVED_VERSION, ", \"own\": \"1\"")), CELL_E_DAMAGED);
}

#define POINT(name, upto, files, inodes)                                                                               \
	", \"own\": 2, \"points\": [{\"name\": \"" name "\", \"cells\": 2, \"upto\": " upto ", \"automatic\": false, " \
	"\"taken_ms\": 4, \"files\": [" files "], \"inodes\": [" inodes "]}]"

static int code_of_point(const char *more)
{
	return code_of(text_with(1, true, CELL_SAVED_VERSION_POINTS, more));
}

static void test_state_id(void **state)
{
	(void)state;
	struct cell__saved saved, again;
	struct cell__buf out = CELL_BUF_INIT;
	struct cell_error err;
	struct cell__state_id id = { 0 };
	char name[33];
	assert_true(cell__state_id_read("0123456789abcdeffedcba9876543210", &id));
	assert_true(id.high == 0x0123456789abcdefull && id.low == 0xfedcba9876543210ull);
	const char *const none[] = { "", "00000000000000000000000000000000", "0123456789ABCDEFfedcba9876543210", "0123456789abcdef",
				     "0123456789abcdeffedcba98765432100" };
	for (size_t i = 0; i < sizeof none / sizeof *none; i++)
		assert_false(cell__state_id_read(none[i], &id));
	const char *text = text_with(1, true, CELL_SAVED_VERSION, ", \"state_id\": \"0123456789abcdeffedcba9876543210\"");
	assert_int_equal(cell__saved_read(text, strlen(text), &saved, &err), 0);
	assert_int_equal(cell__saved_write(&saved, &out, &err), 0);
	assert_int_equal(cell__saved_read(out.data, out.size, &again, &err), 0);
	assert_true(cell__state_id_is(again.state_id, id));
	cell__state_id_write(again.state_id, name);
	assert_string_equal(name, "0123456789abcdeffedcba9876543210");
	cell__saved_finish(&saved);
	cell__saved_finish(&again);
	cell__buf_finish(&out);
	/* An older version's has none; another program's may have anything. */
	text = text_with(1, true, CELL_SAVED_VERSION, "");
	assert_int_equal(cell__saved_read(text, strlen(text), &saved, &err), 0);
	assert_false(cell__state_id_known(saved.state_id));
	cell__saved_finish(&saved);
	assert_int_equal(code_of(text_with(1, true, CELL_SAVED_VERSION, ", \"state_id\": 5")), CELL_E_DAMAGED);
	assert_int_equal(code_of(text_with(1, true, CELL_SAVED_VERSION, ", \"state_id\": \"x\"")), CELL_E_DAMAGED);
}

static void test_points(void **state)
{
	(void)state;
	struct cell__saved saved, again;
	struct cell__buf out = CELL_BUF_INIT;
	struct cell_error err;
	const char *text = text_with(1, true, CELL_SAVED_VERSION_POINTS, POINT("p", "3", "2, 0, 3", "\"11\", \"12\""));
	assert_int_equal(cell__saved_read(text, strlen(text), &saved, &err), 0);
	assert_int_equal(cell__saved_write(&saved, &out, &err), 0);
	assert_int_equal(cell__saved_read(out.data, out.size, &again, &err), 0);
	assert_int_equal(again.n_files, 4);
	assert_int_equal(again.n_own, 2);
	assert_int_equal(cell__saved_memories(&again), 1);
	assert_int_equal(again.n_points, 1);
	assert_string_equal(again.points[0].name, "p");
	assert_int_equal(again.points[0].n_files, 2);
	assert_int_equal(again.points[0].files[1], 0);
	assert_int_equal(again.points[0].inodes[1], 12);
	assert_int_equal(again.points[0].upto, 3);
	assert_int_equal(again.points[0].layer, 3);
	cell__saved_finish(&saved);
	cell__saved_finish(&again);
	cell__buf_finish(&out);
	assert_int_equal(code_of_point(POINT("p", "2", "2", "\"1\"")), 0);
	const char *const bad[] = {
		"",
		", \"own\": 2",
		POINT("", "2", "2", "\"1\""),
		POINT("p", "1", "2", "\"1\""),
		POINT("p", "2", "", ""),
		POINT("p", "2", "4", "\"1\""),
		POINT("p", "2", "-1", "\"1\""),
		POINT("p", "2", "2", ""),
		POINT("p", "2", "2", "1"),
		POINT("p", "2", "2", "\"x\""),
		POINT("p", "2", "2", "\"1\", \"2\""),
		POINT("p", "2", "3", ""),
		POINT("p", "2", "3, 2", "\"1\", \"2\""),
		POINT("p", "2", "2, 2, 2, 2, 2, 2, 2, 2", "\"1\", \"1\", \"1\", \"1\", \"1\", \"1\", \"1\", \"1\""),
		", \"own\": 2, \"points\": [1]",
		", \"own\": 2, \"points\": {}",
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(code_of_point(bad[i]), CELL_E_DAMAGED);
	assert_int_equal(code_of(text_with(1, true, CELL_SAVED_VERSION, ", \"points\": []")), CELL_E_DAMAGED);
}

static void test_seal(void **state)
{
	static const unsigned char key[32] = { 1, 2, 3 }, other[32] = { 4 };
	struct cell__buf body = CELL_BUF_INIT, sealed = CELL_BUF_INIT, again = CELL_BUF_INIT;
	struct cell_error err;
	(void)state;
	assert_int_equal(cell__buf_add_str(&body, "the description"), 0);
	for (int keyed = 0; keyed < 2; keyed++) {
		sealed.size = again.size = 0;
		assert_int_equal(cell__seal(keyed ? key : NULL, ID, &body, &sealed, &err), 0);
		assert_int_equal(cell__unseal(keyed ? key : NULL, ID, sealed.data, sealed.size, &again, &err), 0);
		assert_int_equal(again.size, body.size);
		assert_memory_equal(again.data, body.data, body.size);
		for (size_t i = CELL_PIECES_SEAL; i < sealed.size; i++) {
			sealed.data[i] ^= 1;
			again.size = 0;
			assert_int_equal(cell__unseal(keyed ? key : NULL, ID, sealed.data, sealed.size, &again, &err), -1);
			assert_int_equal(err.code, CELL_E_DAMAGED);
			sealed.data[i] ^= 1;
		}
		again.size = 0;
		assert_int_equal(cell__unseal(keyed ? NULL : key, ID, sealed.data, sealed.size, &again, &err), -1);
		assert_int_equal(err.code, CELL_E_DIFFERS);
	}
	again.size = 0;
	assert_int_equal(cell__unseal(other, ID, sealed.data, sealed.size, &again, &err), -1);
	assert_int_equal(err.code, CELL_E_DAMAGED);
	again.size = 0;
	assert_int_equal(cell__unseal(key, "another session", sealed.data, sealed.size, &again, &err), -1); /* a file of another session */
	assert_int_equal(err.code, CELL_E_DAMAGED);
	cell__buf_finish(&body);
	cell__buf_finish(&sealed);
	cell__buf_finish(&again);
}

/* Parts of a sparse file that lie at the borders of pieces. */
static void test_pieces(void **state)
{
	static const off_t at[] = { 0, 1 << 20, (3 << 20) - 4096, (off_t)1 << 40 };
	struct cell_error err;
	(void)state;
	for (int way = 0; way < 4; way++) {
		const bool sealed = way & 1, packs = way & 2;
		struct cell__saved_file file = { 0 };
		struct cell__pieces_sum sum = { 0 };
		char page[8192], back[8192];
		int from = memfd_create("from", MFD_CLOEXEC), disk = memfd_create("disk", MFD_CLOEXEC),
		    to = memfd_create("to", MFD_CLOEXEC);
		assert_int_equal(ftruncate(from, (off_t)1 << 42), 0);
		assert_int_equal(ftruncate(to, (off_t)1 << 42), 0);
		for (size_t i = 0; i < 4; i++) {
			for (size_t k = 0; k < sizeof page; k++)
				page[k] = (char)(i % 2 ? 'a' : (k * 2654435761u) >> 13);
			assert_int_equal(pwrite(from, page, sizeof page, at[i]), sizeof page);
		}
		assert_int_equal(cell__pieces_write(&(struct cell__pieces_from){ .fd = from }, disk, sealed, packs, &file, &sum, &err), 0);
		assert_int_equal(cell__pieces_flat(&file), way == 0);
		assert_int_equal(way == 0 ? cell__pieces_check(disk, &file, &err) : 0, 0);
		assert_int_equal(sum.bytes, 4 * sizeof page);
		assert_int_equal(cell__pieces_read(disk, &file, sealed, to, &err), 0);
		for (size_t i = 0; i < 4; i++) {
			assert_int_equal(pread(from, page, sizeof page, at[i]), sizeof page);
			assert_int_equal(pread(to, back, sizeof back, at[i]), sizeof back);
			assert_memory_equal(page, back, sizeof page);
		}
		assert_int_equal(pwrite(disk, "x", 1, (off_t)file.pieces[1].at), 1);
		assert_int_equal(cell__pieces_read(disk, &file, sealed, to, &err), -1);
		assert_int_equal(err.code, CELL_E_DAMAGED);
		err.code = 0;
		assert_int_equal(way == 0 ? cell__pieces_check(disk, &file, &err) : -1, -1);
		assert_int_equal(err.code, way == 0 ? CELL_E_DAMAGED : 0);
		free(file.pieces);
		close(from);
		close(disk);
		close(to);
	}
}

#define GROWN ((size_t)(5 << 20) + 12345)
#define CHUNK ((size_t)300000)

struct growing {
	int fd;
	char *bytes;
	atomic_int stage, go;
};

/* As a kernel does it: from the beginning to the end; its first page once more. */
static void *grow(void *arg)
{
	struct growing *growing = arg;
	for (size_t at = 0, n; at < GROWN; at += n) {
		n = GROWN - at < CHUNK ? GROWN - at : CHUNK;
		while (at > 3 * CHUNK && !atomic_load(&growing->go))
			sched_yield();
		if (pwrite(growing->fd, growing->bytes + at, n, (off_t)at) != (ssize_t)n)
			abort();
	}
	growing->bytes[100] ^= 1;
	if (pwrite(growing->fd, growing->bytes, 4096, 0) != 4096)
		abort();
	atomic_store(&growing->stage, CELL_PIECES_COMPLETE);
	return NULL;
}

/* Pieces of a memory that is not complete; none, some, or all but the first and the last of them. */
static void test_follow(void **state)
{
	(void)state;
	for (int way = 0; way < 3; way++) {
		struct growing growing = { .fd = memfd_create("from", MFD_CLOEXEC), .bytes = malloc(GROWN) };
		struct cell__saved_file early = { 0 }, file = { 0 };
		struct cell__pieces_sum sum = { 0 };
		struct cell_error err;
		pthread_t thread;
		char *back = malloc(GROWN);
		int disk = memfd_create("disk", MFD_CLOEXEC);
		for (size_t i = 0; i < GROWN; i++)
			growing.bytes[i] = (char)((i * 2654435761u) >> 13);
		atomic_store(&growing.go, way != 1);
		assert_int_equal(pthread_create(&thread, NULL, grow, &growing), 0);
		if (way == 0)
			pthread_join(thread, NULL);
		else if (way == 1) /* the kernel is slow: it is not waited for */
			assert_int_equal(cell__pieces_follow(growing.fd, disk, &growing.stage, &early, &err), 0);
		else
			while (early.n_pieces < 5 && !atomic_load(&growing.stage)) {
				free(early.pieces);
				assert_int_equal(cell__pieces_follow(growing.fd, disk, &growing.stage, &early, &err), 0);
			}
		assert_true(way != 1 || (!growing.stage && early.n_pieces <= 1));
		atomic_store(&growing.go, 1);
		if (way != 0)
			pthread_join(thread, NULL);
		const struct cell__pieces_from whole = { .fd = growing.fd, .early = way ? &early : NULL };
		assert_int_equal(cell__pieces_write(&whole, disk, false, false, &file, &sum, &err), 0);
		assert_int_equal(sum.bytes, GROWN);
		assert_int_equal(sum.stored, sum.bytes);
		assert_int_equal(cell__pieces_check(disk, &file, &err), 0);
		assert_int_equal(pread(disk, back, GROWN, 0), GROWN);
		assert_memory_equal(back, growing.bytes, GROWN);
		/* Early pieces have their checksums, too. */
		assert_int_equal(pwrite(disk, "x", 1, (2 << 20) + 1), 1);
		assert_int_equal(cell__pieces_check(disk, &file, &err), -1);
		assert_int_equal(err.code, CELL_E_DAMAGED);
		free(early.pieces);
		free(file.pieces);
		free(growing.bytes);
		free(back);
		close(growing.fd);
		close(disk);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_follow),   cmocka_unit_test(test_description), cmocka_unit_test(test_files_of_a_memory),
		cmocka_unit_test(test_state_id), cmocka_unit_test(test_points),      cmocka_unit_test(test_seal),
		cmocka_unit_test(test_pieces),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
