/* The saved sessions of a folder. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/file.h"
#include "durable/durable.h"

#define LISTED 100000 /* sessions of one folder */

static bool is_locked(int dir_fd)
{
	CELL_AUTO_FD int fd = openat(dir_fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
}

static json_t *describe(const struct cell__saved *saved, bool awake)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < saved->n_files; i++)
		for (size_t k = 0; k < saved->files[i].n_pieces; k++)
			bytes += saved->files[i].pieces[k].stored;
	return json_pack("{s:s, s:I, s:I, s:s, s:s, s:I, s:b, s:O}", "session_id", saved->id, "saved_ms", (json_int_t)saved->saved_ms,
			 "cells", (json_int_t)saved->cells, "executor", saved->executor, "workspace", saved->workspace, "bytes",
			 (json_int_t)bytes, "awake", awake, "notes", saved->notes);
}

/* NULL: it is not one of this owner's, or cannot be read with this key. */
static json_t *look_at(int home_fd, const char *id, const char *owner, const unsigned char *key)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, body = CELL_BUF_INIT;
	struct cell__saved saved = { 0 };
	json_t *found = NULL;
	CELL_AUTO_FD int fd = openat(home_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && cell__file_read(fd, "state", CELL_FILE_NO_LINK, CELL_SAVED_STATE_BYTES, &bytes, NULL) == 0 &&
	    cell__unseal(key, id, bytes.data, bytes.size, &body, NULL) == 0 && cell__saved_read(body.data, body.size, &saved, NULL) == 0 &&
	    strcmp(saved.id, id) == 0 && (!owner || strcmp(saved.owner, owner) == 0))
		found = describe(&saved, is_locked(fd));
	cell__saved_finish(&saved);
	return found;
}

char *cell__durable_owner(const char *dir, const char *id, const char *key, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, body = CELL_BUF_INIT;
	struct cell__saved saved = { 0 };
	unsigned char given[32];
	bool has_key;
	char *owner = NULL;
	if (cell__durable_key(key, given, &has_key, err) < 0)
		return NULL;
	CELL_AUTO_FD int home = cell__saved_is_id(id) ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	CELL_AUTO_FD int fd = home >= 0 ? openat(home, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
	if (fd < 0 || cell__file_read(fd, "state", CELL_FILE_NO_LINK, CELL_SAVED_STATE_BYTES, &bytes, NULL) < 0)
		cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no saved session %.40s", id);
	else if (cell__unseal(has_key ? given : NULL, id, bytes.data, bytes.size, &body, err) == 0 &&
		 cell__saved_read(body.data, body.size, &saved, err) == 0) {
		owner = cell__take_ptr(saved.owner);
	}
	cell__saved_finish(&saved);
	return owner;
}

static int compare_times(const void *a, const void *b)
{
	json_int_t first = json_integer_value(json_object_get(*(json_t *const *)a, "saved_ms")),
		   second = json_integer_value(json_object_get(*(json_t *const *)b, "saved_ms"));
	return first < second ? 1 : first > second ? -1 : 0;
}

/* The latest first. */
static json_t *sorted(json_t *list)
{
	size_t n = json_array_size(list);
	CELL_AUTO_FREE json_t **items = cell__alloc(n + 1, sizeof *items);
	json_t *out = items ? json_array() : NULL;
	for (size_t i = 0; out && i < n; i++)
		items[i] = json_array_get(list, i);
	if (out)
		qsort(items, n, sizeof *items, compare_times);
	for (size_t i = 0; out && i < n; i++)
		json_array_append(out, items[i]);
	json_decref(list);
	return out;
}

json_t *cell__durable_list(const char *dir, const char *owner, const char *key, struct cell_error *err)
{
	unsigned char bytes[32];
	bool has_key;
	if (cell__durable_key(key, bytes, &has_key, err) < 0)
		return NULL;
	DIR *home = opendir(dir);
	json_t *list = json_array();
	if (!home && errno != ENOENT) {
		cell_fail(err, CELL_E_IO, errno, "the folder of saved sessions %.150s", dir);
		json_decref(list);
		return NULL;
	}
	for (struct dirent *entry; home && list && json_array_size(list) < LISTED && (entry = readdir(home));) {
		json_t *found = cell__saved_is_id(entry->d_name) ? look_at(dirfd(home), entry->d_name, owner, has_key ? bytes : NULL)
								 : NULL;
		if (found)
			json_array_append_new(list, found);
	}
	if (home)
		closedir(home);
	list = list ? sorted(list) : NULL;
	if (!list)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for saved sessions");
	return list;
}
