/* The saved sessions of a storage, and who has one. */
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
#include "durable/redis_place.h"
#include "wire/redis_url.h"

#define LISTED 100000 /* sessions of one folder */

struct search {
	const char *owner; /* NULL: of all owners */
	unsigned char key_bytes[32];
	const unsigned char *key; /* NULL: none */
	json_t *list;
	char *found_owner;
	json_t *holder;
	struct cell_error *err;
};

/* By whom, as its lock says.  False: it is not locked. */
static bool is_locked(int dir_fd, char ret_name[CELL_LEASE_NAME_BYTES + 1], char ret_url[CELL_LEASE_NAME_BYTES + 1])
{
	CELL_AUTO_FD int fd = openat(dir_fd, "lock", O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	*ret_name = *ret_url = '\0';
	if (fd < 0 || flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return false;
	(void)cell__lease_read(fd, ret_name, ret_url);
	return true;
}

static json_t *describe_holder(const char *name, const char *url)
{
	return name ? json_pack("{s:b, s:s%, s:s%}", "awake", 1, "name", name, strlen(name), "url", url, strlen(url))
		    : json_pack("{s:b}", "awake", 0);
}

static json_t *describe(const struct cell__saved *saved, const char *name, const char *url)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < saved->n_files; i++)
		for (size_t k = 0; k < saved->files[i].n_pieces; k++)
			bytes += saved->files[i].pieces[k].stored;
	json_t *item = json_pack("{s:s, s:I, s:I, s:s, s:s, s:I, s:b, s:O}", "session_id", saved->id, "saved_ms",
				 (json_int_t)saved->saved_ms, "cells", (json_int_t)saved->cells, "executor", saved->executor, "workspace",
				 saved->workspace, "bytes", (json_int_t)bytes, "awake", name != NULL, "notes", saved->notes);
	if (item && name)
		json_object_set_new(item, "holder", describe_holder(name, url));
	return item;
}

/* What a description says of one of this owner's, if it can be read with this key. */
static bool add_found(void *arg, const char *id, const char *state, size_t size, const char *name, const char *url)
{
	struct search *search = arg;
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;
	struct cell__saved saved = { 0 };
	bool ok = cell__unseal(search->key, id, state, size, &body, search->err) == 0 &&
		  cell__saved_read(body.data, body.size, &saved, search->err) == 0 && strcmp(saved.id, id) == 0;
	if (ok && search->list && (!search->owner || strcmp(saved.owner, search->owner) == 0))
		json_array_append_new(search->list, describe(&saved, name, url));
	if (ok && !search->list) {
		search->found_owner = cell__take_ptr(saved.owner);
		search->holder = describe_holder(name, url);
	}
	cell__saved_finish(&saved);
	return true;
}

/* As cell__redis_place_find(). */
static int search_in(int home_fd, const char *id, struct search *search, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	char name[CELL_LEASE_NAME_BYTES + 1], url[CELL_LEASE_NAME_BYTES + 1];
	CELL_AUTO_FD int fd = openat(home_fd, id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || cell__file_read(fd, "state", CELL_FILE_NO_LINK, CELL_SAVED_STATE_BYTES, &bytes, NULL) < 0)
		return cell__lease_fail_missing(err, id);
	bool awake = is_locked(fd, name, url);
	(void)add_found(search, id, bytes.data, bytes.size, awake ? name : NULL, awake ? url : NULL);
	return 0;
}

static int search_at(const char *dir, const char *id, const char *key, struct search *search, struct cell_error *err)
{
	bool has_key;
	if (cell__durable_key(key, search->key_bytes, &has_key, err) < 0)
		return -1;
	search->key = has_key ? search->key_bytes : NULL;
	search->err = err;
	if (!cell__saved_is_id(id))
		return cell__lease_fail_missing(err, id);
	if (cell__redis_url_is(dir))
		return cell__redis_place_find(dir, id, add_found, search, err);
	CELL_AUTO_FD int home = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return search_in(home, id, search, err); /* -1 is not a folder either */
}

char *cell__durable_owner(const char *dir, const char *id, const char *key, struct cell_error *err)
{
	struct search search = { 0 };
	(void)search_at(dir, id, key, &search, err);
	json_decref(search.holder);
	return search.found_owner;
}

json_t *cell__durable_holder(const char *dir, const char *id, const char *key, struct cell_error *err)
{
	struct search search = { 0 };
	(void)search_at(dir, id, key, &search, err);
	free(search.found_owner);
	return search.holder;
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

static int list_folder(const char *dir, struct search *search, struct cell_error *err)
{
	DIR *home = opendir(dir);
	if (!home)
		return errno == ENOENT ? 0 : cell_fail(err, CELL_E_IO, errno, "the folder of saved sessions %.150s", dir);
	for (struct dirent *entry; json_array_size(search->list) < LISTED && (entry = readdir(home));)
		if (cell__saved_is_id(entry->d_name))
			(void)search_in(dirfd(home), entry->d_name, search, NULL); /* gone meanwhile */
	closedir(home);
	return 0;
}

json_t *cell__durable_list(const char *dir, const char *owner, const char *key, struct cell_error *err)
{
	unsigned char bytes[32];
	bool has_key;
	if (cell__durable_key(key, bytes, &has_key, err) < 0)
		return NULL;
	struct search search = { .owner = owner, .key = has_key ? bytes : NULL, .list = json_array() };
	if (!search.list) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for saved sessions");
		return NULL;
	}
	int rc = cell__redis_url_is(dir) ? cell__redis_place_each(dir, LISTED, add_found, &search, err) : list_folder(dir, &search, err);
	if (rc < 0) {
		json_decref(search.list);
		return NULL;
	}
	json_t *list = sorted(search.list);
	if (!list)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for saved sessions");
	return list;
}
