/* See shared.h. */
#define _GNU_SOURCE
#include "storage/shared.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/hole.h"
#include "base/tree.h"
#include "storage/workflows.h"

#define NEW_FOLDER ".host-new"
#define BOOK "workflows.json"
#define PACKAGES "requirements.txt"
#define CACHE ".cache"
#define SHARED_CACHE "cache"
#define BOOK_BYTES (32u * 1024u * 1024u)
#define HASH_SIZE 65u
#define KEY_SIZE (512u)

/* ---- the folder ---- */

int cell__shared_open(struct cell__store *store, int *ret_fd, struct cell_error *err)
{
	*ret_fd = -1;
	if (store->backend != &cell__file_backend || store->confined || is_hole("shared"))
		return 0;
	*ret_fd = cell__path_open(store->base_fd, CELL__SHARED_FOLDER, O_RDONLY | O_DIRECTORY, 0);
	if (*ret_fd >= 0 || errno == ENOENT)
		return 0;
	if (errno == ENOTDIR)
		return cell_fail(err, CELL_E_INVALID, 0,
				 CELL__SHARED_FOLDER " in the storage is not a folder; see docs/storage.md for the layout");
	return cell__dir_fail(err, CELL__SHARED_FOLDER, errno);
}

int cell__shared_open_cache(struct cell__store *store, bool *ret_shared)
{
	CELL_AUTO_FD int host = -1;
	char name[KEY_SIZE] = CACHE;
	const char *workspace = store->root ? strrchr(store->root, '/') : NULL;
	bool has_one = store->base && workspace && strcmp(store->root, store->base) != 0;
	if (cell__shared_open(store, &host, NULL) < 0)
		return -1;
	*ret_shared = host >= 0;
	if (host >= 0)
		snprintf(name, sizeof name, SHARED_CACHE "%s%s", has_one ? "-" : "", has_one ? workspace + 1 : "");
	int at = host >= 0 ? host : store->root_fd;
	int fd = cell__path_open(at, name, O_RDONLY | O_DIRECTORY, 0);
	if (fd >= 0 || errno != ENOENT)
		return fd;
	fd = cell__dir_open(at, name, true);
	if (fd >= 0) /* so that it is not committed by accident */
		cell__file_replace(fd, ".gitignore", "*\n", 2);
	return fd;
}

/* ---- the book ---- */

static int hash_of(const char *source, size_t size, char out[static HASH_SIZE])
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	if (EVP_Digest(source, size, digest, &n, EVP_sha256(), NULL) != 1 || 2 * n != HASH_SIZE - 1)
		return -1;
	for (unsigned i = 0; i < n; i++)
		snprintf(out + 2 * i, 3, "%02x", digest[i]);
	return 0;
}

/* A name has no slash. */
static void key_of(const struct cell__store *store, const char *name, char out[static KEY_SIZE])
{
	size_t size = strlen(store->base);
	const char *below = strncmp(store->root, store->base, size) == 0 && store->root[size] == '/' ? store->root + size + 1 : "";
	snprintf(out, KEY_SIZE, "%s%s%s", below, *below ? "/" : "", name);
}

static int read_book(int host, json_t **ret_book, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__path_read(host, BOOK, BOOK_BYTES, &text, NULL) < 0 && errno != ENOENT)
		return cell_fail(err, CELL_E_IO, errno, "read " CELL__SHARED_FOLDER "/" BOOK " of the storage");
	*ret_book = text.size ? json_loadb(text.data, text.size, 0, NULL) : json_object();
	if (json_is_object(*ret_book))
		return 0;
	json_decref(*ret_book);
	return cell_fail(err, CELL_E_IO, 0,
			 CELL__SHARED_FOLDER "/" BOOK
					     " of the storage is not a JSON object: repair it, or remove it and trust the workflows again");
}

static int write_book(int host, json_t *book, struct cell_error *err)
{
	CELL_AUTO_FREE char *text = json_dumps(book, JSON_INDENT(1) | JSON_SORT_KEYS);
	if (!text)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (strlen(text) > BOOK_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, CELL__SHARED_FOLDER "/" BOOK " of the storage would exceed %u bytes", BOOK_BYTES);
	if (cell__file_replace(host, BOOK, text, strlen(text)) < 0)
		return cell_fail(err, CELL_E_IO, errno, "write " CELL__SHARED_FOLDER "/" BOOK " of the storage");
	return 0;
}

int cell__shared_mark(struct cell__store *store, const char *name, struct cell__buf *source, struct cell_error *err)
{
	CELL_AUTO_FD int host = -1;
	char key[KEY_SIZE], hash[HASH_SIZE] = "";
	json_t *book = NULL;
	if (cell__shared_open(store, &host, err) < 0)
		return -1;
	if (host < 0 || cell__workflow_is_marked(source->data, source->size))
		return 0;
	if (read_book(host, &book, err) < 0)
		return -1;
	key_of(store, name, key);
	const char *vouched = json_string_value(json_object_get(book, key));
	bool good = vouched && hash_of(source->data, source->size, hash) == 0 && strcmp(vouched, hash) == 0;
	json_decref(book);
	if (good)
		return 0;
	struct cell__buf marked = CELL_BUF_INIT;
	if (cell__buf_add_str(&marked, CELL__WORKFLOW_MARK) < 0 || cell__buf_add(&marked, source->data, source->size) < 0) {
		cell__buf_finish(&marked);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a workflow");
	}
	cell__buf_finish(source);
	*source = marked;
	return 0;
}

int cell__shared_vouch(struct cell__store *store, const char *name, const char *source, size_t size, struct cell_error *err)
{
	CELL_AUTO_FD int host = -1, lock = -1;
	char key[KEY_SIZE], hash[HASH_SIZE];
	json_t *book = NULL;
	if (cell__shared_open(store, &host, err) < 0)
		return -1;
	if (host < 0 || (source && cell__workflow_is_marked(source, size)))
		return 0;
	if (cell__dir_lock(host, true, &lock, err) < 0)
		return cell_fail_wrap(err, "mark workflow '%s' as trusted", name);
	if (read_book(host, &book, err) < 0)
		return -1;
	key_of(store, name, key);
	int rc = source ? hash_of(source, size, hash) : 0;
	if (rc == 0 && source)
		rc = json_object_set_new(book, key, json_string(hash));
	else if (rc == 0 && json_object_del(book, key) < 0)
		return json_decref(book), 0; /* nobody did */
	rc = rc < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : write_book(host, book, err);
	json_decref(book);
	return rc;
}

/* ---- existing content, when it is shared for the first time ---- */

/* Vouches for the workflows of a folder that carry no mark; prefix: of their keys. */
static int vouch_folder(int root_fd, const char *folder, const char *prefix, json_t *book, struct cell_error *err)
{
	int fd = cell__dir_open(root_fd, folder, false), rc = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		int saved = errno;
		cell__close_fd(&fd);
		return saved == ENOENT ? 0 : cell__dir_fail(err, folder, saved);
	}
	for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
		CELL_AUTO_BUF struct cell__buf source = CELL_BUF_INIT;
		size_t size = strlen(entry->d_name);
		char key[KEY_SIZE], hash[HASH_SIZE];
		if (size < 4 || size > CELL__STORE_WORKFLOW_NAME_BYTES + 3 || strcmp(entry->d_name + size - 3, ".py") != 0 ||
		    cell__path_read(fd, entry->d_name, CELL__STORE_SOURCE_BYTES, &source, NULL) < 0 ||
		    cell__workflow_is_marked(source.data, source.size))
			continue;
		snprintf(key, sizeof key, "%s%.*s", prefix, (int)size - 3, entry->d_name);
		if (!cell__utf8_ok(key, strlen(key)))
			continue; /* no workflow's name */
		if (hash_of(source.data ? source.data : "", source.size, hash) < 0 || json_object_set_new(book, key, json_string(hash)) < 0)
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	closedir(dir);
	return rc;
}

/* workflows/ hides entries of skills/. */
static int vouch_root(int root_fd, const char *prefix, json_t *book, struct cell_error *err)
{
	return vouch_folder(root_fd, CELL__SKILLS_FOLDER, prefix, book, err) < 0
		       ? -1
		       : vouch_folder(root_fd, CELL__WORKFLOWS_FOLDER, prefix, book, err);
}

static int vouch_workspaces(int base_fd, json_t *book, struct cell_error *err)
{
	int fd = cell__dir_open(base_fd, "workspaces", false), rc = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		int saved = errno;
		cell__close_fd(&fd);
		return saved == ENOENT ? 0 : cell__dir_fail(err, "workspaces", saved);
	}
	for (struct dirent *entry; rc == 0 && (entry = readdir(dir));) {
		char prefix[KEY_SIZE];
		CELL_AUTO_FD int root = entry->d_name[0] == '.' ? -1 : cell__dir_open(fd, entry->d_name, false);
		snprintf(prefix, sizeof prefix, "workspaces/%s/", entry->d_name);
		if (root >= 0)
			rc = vouch_root(root, prefix, book, err);
	}
	closedir(dir);
	return rc;
}

static int write_packages(struct cell__store *store, int host, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	json_t *list = NULL, *one;
	size_t i;
	if (cell__deps_list(store, &list, NULL, err) < 0)
		return -1;
	int rc = cell__buf_add(&text, "", 0);
	json_array_foreach(list, i, one)
		rc |= cell__buf_printf(&text, "%s\n", json_string_value(one));
	json_decref(list);
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	return cell__file_replace(host, PACKAGES, text.data, text.size) < 0
		       ? cell_fail(err, CELL_E_IO, errno, "write " CELL__SHARED_FOLDER "/" PACKAGES " of the storage")
		       : 0;
}

static int make_shared(struct cell__store *store, struct cell_error *err)
{
	json_t *book = json_object();
	if (cell__tree_remove(store->base_fd, NEW_FOLDER) < 0) { /* left by a process that was killed */
		json_decref(book);
		return cell_fail(err, CELL_E_IO, errno, "remove " NEW_FOLDER " of the storage");
	}
	CELL_AUTO_FD int host = cell__dir_open(store->base_fd, NEW_FOLDER, true);
	int rc = host < 0 ? cell_fail(err, CELL_E_IO, errno, "make " NEW_FOLDER " in the storage") : 0;
	if (rc == 0)
		rc = !book ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory") : vouch_root(store->base_fd, "", book, err);
	if (rc == 0)
		rc = vouch_workspaces(store->base_fd, book, err);
	if (rc == 0)
		rc = write_book(host, book, err);
	if (rc == 0)
		rc = write_packages(store, host, err);
	json_decref(book);
	if (rc == 0 && renameat(store->base_fd, NEW_FOLDER, store->base_fd, CELL__SHARED_FOLDER) < 0)
		rc = cell_fail(err, CELL_E_IO, errno, "make " CELL__SHARED_FOLDER " in the storage");
	return rc;
}

static int share(struct cell__store *store, struct cell_error *err)
{
	CELL_AUTO_FD int tools = -1, host = -1, lock = -1;
	tools = cell__dir_open(store->base_fd, "tools", true);
	if (tools < 0)
		return cell__dir_fail(err, "tools", errno);
	if (cell__shared_open(store, &host, err) < 0 || host >= 0)
		return host >= 0 ? 0 : -1;
	if (cell__dir_lock(store->base_fd, true, &lock, err) < 0)
		return -1;
	if (cell__shared_open(store, &host, err) < 0 || host >= 0)
		return host >= 0 ? 0 : -1; /* another process was faster */
	return make_shared(store, err);
}

int cell__store_share(const char *base, struct cell_error *err)
{
	struct cell__store *store = NULL;
	int rc = cell__store_open(base, NULL, &store, err);
	if (rc == 0)
		rc = share(store, err);
	cell__store_close(store);
	return rc < 0 ? cell_fail_wrap(err, "the storage cannot be shared with a container") : 0;
}
