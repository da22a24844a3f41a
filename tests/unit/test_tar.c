/* wire/tar: what is written is read again, piece by piece; damaged archives are refused. */
#include "support.h"

#include "wire/tar.h"

struct seen {
	char text[4096];
	int rc;
	struct cell_error err;
	bool whole;
};

/* The events of an archive that comes in pieces of this size. */
static struct seen read_pieces(const char *bytes, size_t size, size_t piece)
{
	struct seen seen = { 0 };
	struct cell__tar tar;
	size_t used = 0;
	cell__tar_init(&tar);
	for (size_t at = 0; at < size && seen.rc >= 0;) {
		const char *from = bytes + at, *data = NULL;
		size_t left = size - at < piece ? size - at : piece, n = 0;
		at += left;
		while ((seen.rc = cell__tar_next(&tar, &from, &left, &data, &n, &seen.err)) > CELL_TAR_MORE) {
			if (seen.rc == CELL_TAR_ENTRY)
				used += (size_t)snprintf(seen.text + used, sizeof seen.text - used, "[%d %.40s %.20s %o]",
							 (int)tar.entry.type, tar.entry.path,
							 tar.entry.type == CELL_TAR_LINK ? tar.entry.target : "", tar.entry.mode);
			else if (seen.rc == CELL_TAR_DATA)
				used += (size_t)snprintf(seen.text + used, sizeof seen.text - used, "%.*s", (int)n, data);
			else
				used += (size_t)snprintf(seen.text + used, sizeof seen.text - used, ";");
		}
	}
	seen.whole = cell__tar_is_whole(&tar);
	cell__tar_finish(&tar);
	return seen;
}

static void add(struct cell__buf *out, enum cell__tar_type type, const char *path, const char *target, const char *data)
{
	static const char zeros[CELL_TAR_BLOCK];
	struct cell__tar_entry entry = { .type = type, .mode = 0640, .size = strlen(data) };
	snprintf(entry.path, sizeof entry.path, "%s", path);
	snprintf(entry.target, sizeof entry.target, "%s", target);
	assert_int_equal(cell__tar_add_head(out, &entry), 0);
	assert_int_equal(cell__buf_add(out, data, strlen(data)), 0);
	assert_int_equal(cell__buf_add(out, zeros, -strlen(data) % CELL_TAR_BLOCK), 0);
}

static void test_there_and_back(void **state)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	char name[300];
	(void)state;
	memset(name, 'n', sizeof name - 1);
	name[sizeof name - 1] = '\0';
	add(&out, CELL_TAR_FOLDER, "d/", "", "");
	add(&out, CELL_TAR_FILE, "d/f", "", "some text");
	add(&out, CELL_TAR_FILE, "empty", "", "");
	add(&out, CELL_TAR_LINK, "l", "d/f", "");
	add(&out, CELL_TAR_FILE, name, "", "long");
	assert_int_equal(cell__tar_add_end(&out), 0);
	for (size_t piece = 1; piece < 1100; piece += piece < 3 ? 1 : 253) {
		struct seen seen = read_pieces(out.data, out.size, piece);
		assert_int_equal(seen.rc, CELL_TAR_MORE);
		assert_true(seen.whole);
		if (piece > 600)
			assert_string_equal(seen.text, "[1 d/  640][0 d/f  640]some text;[0 empty  640];[2 l d/f 640]"
						       "[0 nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn  640]long;");
	}
}

static void test_cut_off(void **state)
{
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	(void)state;
	add(&out, CELL_TAR_FILE, "f", "", "some text");
	assert_int_equal(cell__tar_add_end(&out), 0);
	for (size_t size = 0; size < 3 * CELL_TAR_BLOCK; size += 100)
		assert_false(read_pieces(out.data, size, 64).whole);
	out.data[3]++; /* the sum no longer fits */
	struct seen seen = read_pieces(out.data, out.size, 64);
	assert_int_equal(seen.rc, -1);
	assert_int_equal(seen.err.code, CELL_E_INVALID);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_cut_off) };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
