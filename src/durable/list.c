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
	const struct cell__saved_search *wanted; /* NULL: one session is looked at */
	unsigned char key_bytes[32];
	const unsigned char *key; /* NULL: none */
	json_t *list;
	uint64_t at; /* when the description was written, as the folder says; 0: as the description says */
	uint64_t after_at;
	char after_id[33]; /* "": the first page */
	uint64_t last_at; /* the last that was looked at */
	char last_id[33];
	size_t looked;
	bool more;
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
	json_t *item = json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:s, s:I, s:b, s:O}", "session_id", saved->id, "owner", saved->owner,
				 "saved_ms", (json_int_t)saved->saved_ms, "cells", (json_int_t)saved->cells, "executor", saved->executor,
				 "form", cell__saved_is_portable(saved) ? "portable" : "image", "workspace", saved->workspace, "bytes",
				 (json_int_t)bytes, "awake", name != NULL, "notes", saved->notes);
	if (item && name)
		json_object_set_new(item, "holder", describe_holder(name, url));
	return item;
}

/* ---- pages ---- */

/* The latest first, and the ids of one moment from the last to the first, as Redis sorts them. */
static bool comes_later(uint64_t at, const char *id, uint64_t after_at, const char *after_id)
{
	return at < after_at || (at == after_at && strcmp(id, after_id) < 0);
}

/* What is read for one page is bounded, whoever owns it. */
static bool is_full(const struct search *search)
{
	return search->wanted->limit &&
	       (json_array_size(search->list) == search->wanted->limit || search->looked == CELL_LIMIT_SAVED_LOOKS);
}

static void note_look(struct search *search, uint64_t at, const char *id)
{
	search->looked++;
	search->last_at = at;
	snprintf(search->last_id, sizeof search->last_id, "%s", id);
}

/* A client's sessions have the owner "CLIENT/WORKSPACE", and no workspace's name has a slash. */
static bool is_owned(const struct cell__saved *saved, const struct cell__saved_search *wanted)
{
	const char *slash = wanted->is_client ? strrchr(saved->owner, '/') : NULL;
	size_t size = slash ? (size_t)(slash - saved->owner) : strlen(saved->owner);
	if (!wanted->owner)
		return true;
	return (slash || !wanted->is_client) && strlen(wanted->owner) == size && strncmp(saved->owner, wanted->owner, size) == 0;
}

static bool add_to_page(struct search *search, const struct cell__saved *saved, const char *name, const char *url)
{
	uint64_t at = search->at ? search->at : saved->saved_ms;
	if (*search->after_id && !comes_later(at, saved->id, search->after_at, search->after_id))
		return true;
	if (is_full(search)) {
		search->more = true;
		return false;
	}
	note_look(search, at, saved->id);
	if (is_owned(saved, search->wanted))
		json_array_append_new(search->list, describe(saved, name, url));
	return true;
}

/* What a description says, if it can be read with this key. */
static bool add_found(void *arg, const char *id, const char *state, size_t size, const char *name, const char *url)
{
	struct search *search = arg;
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;
	struct cell__saved saved = { 0 };
	bool goes_on = true, ok = cell__unseal(search->key, id, state, size, &body, search->err) == 0 &&
				  cell__saved_read(body.data, body.size, &saved, search->err) == 0 && strcmp(saved.id, id) == 0;
	if (ok && search->wanted)
		goes_on = add_to_page(search, &saved, name, url);
	if (ok && !search->wanted) {
		search->found_owner = cell__take_ptr(saved.owner);
		search->holder = describe_holder(name, url);
	}
	cell__saved_finish(&saved);
	return goes_on;
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

/* One of a folder, and when it was saved. */
struct place {
	uint64_t at;
	char id[33];
};

static int compare_places(const void *a, const void *b)
{
	const struct place *first = a, *second = b;
	return comes_later(first->at, first->id, second->at, second->id) ? 1 : strcmp(first->id, second->id) == 0 ? 0 : -1;
}

/* Of one that has a description; the latest saves are those whose description was replaced last. */
static bool find_place(int home_fd, const char *name, struct place *ret_place)
{
	char path[64];
	struct stat st;
	if (!cell__saved_is_id(name))
		return false;
	snprintf(path, sizeof path, "%.32s/state", name);
	if (fstatat(home_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	ret_place->at = (uint64_t)st.st_mtim.tv_sec * 1000000000 + (uint64_t)st.st_mtim.tv_nsec;
	strcpy(ret_place->id, name);
	return true;
}

static int find_places(DIR *home, const struct search *search, struct place **places, size_t *n, struct cell_error *err)
{
	size_t room = 0;
	struct place place;
	for (struct dirent *entry; *n < LISTED && (entry = readdir(home));) {
		if (!find_place(dirfd(home), entry->d_name, &place) ||
		    (*search->after_id && !comes_later(place.at, place.id, search->after_at, search->after_id)))
			continue;
		if (*n == room) {
			room = room ? 2 * room : 64;
			struct place *more = cell__realloc(*places, room * sizeof *more);
			if (!more)
				return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for saved sessions");
			*places = more;
		}
		(*places)[(*n)++] = place;
	}
	if (*n > 0)
		qsort(*places, *n, sizeof **places, compare_places);
	return 0;
}

static int list_folder(const char *dir, struct search *search, struct cell_error *err)
{
	DIR *home = opendir(dir);
	CELL_AUTO_FREE struct place *places = NULL;
	size_t n = 0;
	if (!home)
		return errno == ENOENT ? 0 : cell_fail(err, CELL_E_IO, errno, "the folder of saved sessions %.150s", dir);
	int rc = find_places(home, search, &places, &n, err);
	for (size_t i = 0; rc == 0 && i < n && !search->more; i++) {
		size_t looked = search->looked;
		search->more = is_full(search);
		search->at = places[i].at;
		if (!search->more && search_in(dirfd(home), places[i].id, search, NULL) == 0 && search->looked == looked)
			note_look(search, places[i].at, places[i].id); /* it cannot be read: the next page begins after it, too */
	}
	closedir(home);
	return rc;
}

/* TIME-ID, as the page before has written it. */
static int read_after(const char *text, struct search *search, struct cell_error *err)
{
	char *end;
	if (!text)
		return 0;
	errno = 0;
	search->after_at = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end != '-' || errno || !cell__saved_is_id(end + 1))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "\"%.60s\" is not where a page of saved sessions ended: give \"next\" of the page before", text);
	strcpy(search->after_id, end + 1);
	return 0;
}

json_t *cell__durable_page(const char *dir, const struct cell__saved_search *wanted, const char *key, struct cell_error *err)
{
	struct search search = { .wanted = wanted };
	bool has_key, in_redis = cell__redis_url_is(dir);
	char next[64];
	if (wanted->limit > CELL_LIMIT_SAVED_PAGE) {
		cell_fail(err, CELL_E_INVALID, 0, "a page has at most %d saved sessions, not %zu", CELL_LIMIT_SAVED_PAGE, wanted->limit);
		return NULL;
	}
	if (cell__durable_key(key, search.key_bytes, &has_key, err) < 0 || read_after(wanted->after, &search, err) < 0)
		return NULL;
	search.key = has_key ? search.key_bytes : NULL;
	search.list = json_array();
	if (!search.list) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for saved sessions");
		return NULL;
	}
	if ((in_redis ? cell__redis_place_each(dir, *search.after_id ? search.after_at : UINT64_MAX, LISTED, add_found, &search, err)
		      : list_folder(dir, &search, err)) < 0) {
		json_decref(search.list);
		return NULL;
	}
	snprintf(next, sizeof next, "%llu-%s", (unsigned long long)search.last_at, search.last_id);
	json_t *page = json_pack("{s:o, s:s?}", "sessions", search.list, "next", search.more ? next : NULL);
	if (!page)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for saved sessions");
	return page;
}
