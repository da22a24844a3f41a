/*
 * Any bytes as .artifacts.json, as .cell-journal, as an artifact's name: the artifact beside them is loaded all the
 * same, the listing works or says that the index cannot be parsed, and nothing outside the folder is touched.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "storage/file.h"
#include "storage/store.h"

static char base[] = "/dev/shm/cell-fuzz-XXXXXX";
static struct cell__store *store;
static int dir_fd;

static void put(const char *name, const void *bytes, size_t size)
{
	CELL_AUTO_FD int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	MUST(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
}

static void set_up(void)
{
	if (store)
		return;
	MUST(mkdtemp(base) && cell__store_open(base, NULL, &store, NULL) == 0);
	int root = open(base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	MUST(mkdirat(root, "artifacts", 0777) == 0);
	dir_fd = openat(root, "artifacts", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	close(root);
	put(".cell-lock", "", 0);
}

static void check_listing(void)
{
	json_t *list = NULL;
	struct cell_error err = { 0 };
	if (cell__artifact_list(store, &list, &err) < 0) {
		MUST(err.code == CELL_E_IO && err.sys == EUCLEAN && strstr(err.msg, "kept as .artifacts.json.broken-"));
		const char *aside = strstr(err.msg, ".artifacts.json.broken-");
		char name[128];
		snprintf(name, sizeof name, "%.*s", (int)strcspn(aside, ",; "), aside);
		MUST(unlinkat(dir_fd, name, 0) == 0);
		MUST(cell__artifact_list(store, &list, &err) == 0);
	}
	size_t i;
	json_t *one;
	json_array_foreach(list, i, one) {
		MUST(cell__path_check(json_string_value(json_object_get(one, "name")), "artifact", NULL) == 0);
		MUST(json_is_string(json_object_get(one, "description")));
		MUST(json_is_string(json_object_get(one, "created_at")));
		MUST(json_is_string(json_object_get(json_object_get(one, "metadata"), "_data_type")));
	}
	json_decref(list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct cell__artifact_reader *reader = NULL;
	bool exists;
	if (size < 1)
		return 0;
	set_up();
	put("x", "payload", 7);
	if (data[0] % 4 == 0) {
		char name[256];
		snprintf(name, sizeof name, "%.*s", (int)(size - 1), (const char *)data + 1);
		cell__artifact_exists(store, name, &exists, NULL);
		return 0;
	}
	if (data[0] % 4 == 1)
		put(CELL__JOURNAL_FILE, data + 1, size - 1);
	else
		put(".artifacts.json", data + 1, size - 1);
	check_listing();
	MUST(cell__artifact_open(store, "x", &reader, NULL) == 0);
	MUST(cell__artifact_reader_size(reader) == 7);
	cell__artifact_reader_close(reader);
	struct cell_error notice;
	cell__store_take_notice(store, &notice);
	unlinkat(dir_fd, ".artifacts.json", 0);
	return 0;
}
