/* What the tests of file storage share: a folder for each test, and short ways to look at JSON. */
#ifndef CELL_TEST_STORE_SUPPORT_H
#define CELL_TEST_STORE_SUPPORT_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <jansson.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "redis_support.h"
#include "storage/store.h"
#include "support.h"

struct folder {
	char path[128];
	const char *base; /* what a storage here is opened by: path, or the URL of Redis */
	char url[256];
	struct cell__store *store;
};

static inline int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
	(void)st;
	(void)kind;
	(void)where;
	return remove(path);
}

static inline void remove_tree(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline bool on_files(const struct folder *folder)
{
	return folder->base == folder->path;
}

/* Setup and teardown: a fresh folder with a store on it, or a fresh prefix in Redis with its caches in the folder. */
static inline int folder_begin(void **state)
{
	struct folder *folder = calloc(1, sizeof *folder);
	strcpy(folder->path, "/tmp/cell-test-XXXXXX");
	folder->base = folder->path;
	if (!mkdtemp(folder->path))
		return -1;
	if (redis_socket()[0]) {
		snprintf(folder->url, sizeof folder->url, "redis+unix://%s?prefix=%s", redis_socket(), folder->path + 5);
		folder->base = folder->url;
	}
	if (cell__store_open(folder->base, NULL, &folder->store, NULL) < 0 || cell__store_use_cache(folder->store, folder->path, NULL) < 0)
		return -1;
	*state = folder;
	return 0;
}

static inline int folder_end(void **state)
{
	struct folder *folder = *state;
	cell__store_close(folder->store);
	remove_tree(folder->path);
	free(folder);
	return 0;
}

static inline int store_test_begin(void **state)
{
	return support_begin(state) || folder_begin(state);
}

static inline int store_test_end(void **state)
{
	return folder_end(state) | support_end(state);
}
/* Of file storage. */
#define STORE_TEST(name) cmocka_unit_test_setup_teardown(name, store_test_begin, store_test_end)
/* Of both backends: with WORKCELL_TEST_STORE=redis only these run, against a server that is started for them. */
static inline int both_test_begin(void **state)
{
	return store_test_begin(state);
}
#define BOTH_TEST(name) cmocka_unit_test_setup_teardown(name, both_test_begin, store_test_end)

static inline int run_store_tests(const struct CMUnitTest *all, size_t n)
{
	struct CMUnitTest tests[100];
	size_t kept = 0;
	const char *store = getenv("WORKCELL_TEST_STORE");
	bool redis = store && strcmp(store, "redis") == 0;
	for (size_t i = 0; i < n; i++)
		if (!redis || all[i].setup_func == both_test_begin)
			tests[kept++] = all[i];
	if (kept == 0 || (redis && redis_start() < 0))
		return 1;
	int rc = _cmocka_run_group_tests("store", tests, kept, NULL, NULL);
	redis_stop();
	return rc;
}
#define RUN_STORE_TESTS(tests) run_store_tests(tests, COUNT(tests))

/* The key of this test's prefix. */
static inline const char *redis_key(const struct folder *folder, const char *rest)
{
	static char key[2][512];
	static int which;
	which = !which;
	snprintf(key[which], sizeof key[which], "%s:%s", folder->path + 5, rest);
	return key[which];
}

static inline const char *in(const struct folder *folder, const char *name)
{
	static char path[2048];
	snprintf(path, sizeof path, "%s/%s", folder->path, name);
	return path;
}

static inline void write_text(const struct folder *folder, const char *name, const char *text)
{
	FILE *file = fopen(in(folder, name), "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static inline char *read_text(const struct folder *folder, const char *name)
{
	struct cell__buf buf = CELL_BUF_INIT;
	if (!support_read_file(in(folder, name), &buf)) {
		cell__buf_finish(&buf);
		return NULL;
	}
	return cell__buf_take(&buf);
}

static inline void make_folder(const struct folder *folder, const char *name)
{
	assert_int_equal(mkdir(in(folder, name), 0777), 0);
}

static inline bool there(const struct folder *folder, const char *name)
{
	struct stat st;
	return lstat(in(folder, name), &st) == 0;
}

static inline const char *text_of(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : "(none)";
}

/* Must succeed; else the error is told. */
#define OK(call)                                                                                          \
	do {                                                                                              \
		struct cell_error err = { 0 };                                                            \
		if ((call) < 0)                                                                           \
			fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, cell_code_word(err.code), err.msg); \
	} while (0)

/* Must fail with this code, and say this (a part of it; "" for anything). */
#define FAILS(expected, part, call)                                                                       \
	do {                                                                                              \
		struct cell_error err = { 0 };                                                            \
		assert_int_equal((call), -1);                                                             \
		if (err.code != (expected) || !strstr(err.msg, (part)))                                   \
			fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, cell_code_word(err.code), err.msg); \
	} while (0)

#endif
