/* The front of both backends: opening, names that are checked once, and dispatch. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <string.h>

#include "storage/file.h"
#include "wire/redis_url.h"

#define CACHE_NAME_BYTES 16

static bool workspace_ok(const char *id)
{
	size_t size = strlen(id);
	return size >= 1 && size <= 128 && strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-") == size;
}

static int pick(const char *base, const struct cell__backend **ret_backend, struct cell_error *err)
{
	if (!cell__redis_url_is(base)) {
		*ret_backend = &cell__file_backend;
		return 0;
	}
#ifdef CELL_HAVE_REDIS
	(void)err;
	*ret_backend = &cell__redis_backend;
	return 0;
#else
	return cell_fail(err, CELL_E_UNAVAILABLE, 0,
			 "storage in Redis is not built into this version; build it with hiredis (-Dredis=enabled)");
#endif
}

int cell__store_open(const char *base, const char *workspace_id, struct cell__store **ret_store, struct cell_error *err)
{
	const struct cell__backend *backend;
	if (!base[0])
		return cell_fail(err, CELL_E_INVALID, 0, "the name of the storage folder is empty");
	if (workspace_id && !workspace_ok(workspace_id))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "workspace_id must be 1-128 characters using only ASCII letters, "
				 "digits, underscores, or hyphens");
	if (pick(base, &backend, err) < 0)
		return -1;
	struct cell__store *store = cell__alloc(1, sizeof *store);
	if (!store)
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	store->backend = backend;
	store->base_fd = store->root_fd = store->watch.fd = -1;
	pthread_mutex_init(&store->search_lock, NULL);
	pthread_mutex_init(&store->notice_lock, NULL);
	pthread_mutex_init(&store->artifacts.lock, NULL);
	pthread_mutex_init(&store->workflows.lock, NULL);
	if (backend->open(store, base, workspace_id, err) < 0) {
		cell__store_close(store);
		return -1;
	}
	*ret_store = store;
	return 0;
}

void cell__store_set_confined(struct cell__store *store)
{
	store->confined = true;
}

bool cell__store_is_confined(const struct cell__store *store)
{
	return store->confined;
}

void cell__store_close(struct cell__store *store)
{
	if (!store)
		return;
	cell__store_close_search(store);
	store->backend->close(store);
	cell__close_fd(&store->root_fd);
	pthread_mutex_destroy(&store->search_lock);
	pthread_mutex_destroy(&store->notice_lock);
	pthread_mutex_destroy(&store->artifacts.lock);
	pthread_mutex_destroy(&store->workflows.lock);
	free(store->model);
	free(store->root);
	free(store->artifacts_path);
	free(store);
}

int cell__store_check(struct cell__store *store, struct cell_error *err)
{
	return store->backend->check(store, err);
}

const char *cell__store_root(const struct cell__store *store)
{
	return store->root;
}

const char *cell__store_folder(const struct cell__store *store)
{
	return store->backend == &cell__file_backend ? store->root : NULL;
}

const char *cell__store_base(const struct cell__store *store)
{
	return store->backend == &cell__file_backend ? store->base : NULL;
}

const char *cell__store_artifacts_path(const struct cell__store *store)
{
	return store->artifacts_path;
}

/* A folder that no other storage uses, named by the hash of this storage's identity. */
int cell__store_use_cache(struct cell__store *store, const char *cache_dir, struct cell_error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (store->backend == &cell__file_backend || store->root_fd >= 0)
		return 0;
	int rc = EVP_Digest(store->root, strlen(store->root), digest, NULL, EVP_sha256(), NULL) == 1 ? 0 : -1;
	rc |= cell__buf_printf(&path, "%s/stores/", cache_dir);
	for (size_t i = 0; i < CACHE_NAME_BYTES; i++)
		rc |= cell__buf_printf(&path, "%02x", digest[i]);
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	/* Without it the search index is in memory. */
	if (cell__mkdir_all(path.data) == 0)
		store->root_fd = open(path.data, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return 0;
}

void cell__store_put_notice(struct cell__store *store, const struct cell_error *notice)
{
	pthread_mutex_lock(&store->notice_lock);
	store->notice = *notice;
	store->has_notice = true;
	pthread_mutex_unlock(&store->notice_lock);
}

bool cell__store_take_notice(struct cell__store *store, struct cell_error *ret_notice)
{
	pthread_mutex_lock(&store->notice_lock);
	bool has = store->has_notice;
	if (has)
		*ret_notice = store->notice;
	store->has_notice = false;
	pthread_mutex_unlock(&store->notice_lock);
	return has;
}

char *cell_storage_shown(const char *storage)
{
	if (!storage)
		return NULL;
	struct cell__redis_url url;
	struct cell__buf shown = CELL_BUF_INIT;
	if (!cell__redis_url_is(storage))
		return cell__strdup(storage);
	if (cell__redis_url_parse(storage, &url, NULL) < 0)
		return cell__strdup("redis://...");
	if (cell__buf_printf(&shown, "redis%s://%s", url.host ? url.tls ? "s" : "" : "+unix", url.shown) == 0 && url.db)
		(void)cell__buf_printf(&shown, url.host ? "/%d" : "?db=%d", url.db);
	cell__redis_url_finish(&url);
	return cell__buf_take(&shown);
}

/* ---- artifacts ---- */

int cell__artifact_begin(struct cell__store *store, const char *name, struct cell__artifact_writer **ret_writer, struct cell_error *err)
{
	if (cell__path_check(name, "artifact", err) < 0)
		return -1;
	return store->backend->artifacts->begin(store, name, ret_writer, err);
}

int cell__artifact_write(struct cell__artifact_writer *writer, const void *bytes, size_t size, struct cell_error *err)
{
	return writer->store->backend->artifacts->write(writer, bytes, size, err);
}

int cell__artifact_commit(struct cell__artifact_writer *writer, const char *data_type, const char *description, json_t *metadata,
			  json_t **ret_info, struct cell_error *err)
{
	json_t *entry = NULL;
	int rc = cell__artifact_entry(data_type, description, metadata, &entry, err);
	if (rc == 0)
		rc = writer->store->backend->artifacts->commit(writer, entry, ret_info, err);
	json_decref(entry);
	cell__artifact_abort(writer);
	return rc;
}

void cell__artifact_abort(struct cell__artifact_writer *writer)
{
	if (writer)
		writer->store->backend->artifacts->abort(writer);
}

int cell__artifact_open(struct cell__store *store, const char *name, struct cell__artifact_reader **ret_reader, struct cell_error *err)
{
	if (cell__path_check(name, "artifact", err) < 0)
		return -1;
	return store->backend->artifacts->open(store, name, ret_reader, err);
}

json_t *cell__artifact_reader_info(struct cell__artifact_reader *reader)
{
	return reader->info;
}

int64_t cell__artifact_reader_size(const struct cell__artifact_reader *reader)
{
	return reader->size;
}

ssize_t cell__artifact_pread(struct cell__artifact_reader *reader, void *buf, size_t size, int64_t offset, struct cell_error *err)
{
	return reader->backend->artifacts->pread(reader, buf, size, offset, err);
}

ssize_t cell__artifact_pread_cached(struct cell__artifact_reader *reader, void *buf, size_t size, int64_t offset)
{
	if (offset < 0 || offset > reader->size)
		return -1;
	if ((int64_t)size > reader->size - offset)
		size = (size_t)(reader->size - offset);
	return reader->backend->artifacts->pread_cached(reader, buf, size, offset);
}

void cell__artifact_reader_close(struct cell__artifact_reader *reader)
{
	if (!reader)
		return;
	json_decref(reader->info);
	reader->backend->artifacts->close(reader);
}

int cell__artifact_save_whole(struct cell__store *store, const char *name, const void *bytes, size_t size, const char *data_type,
			      const char *description, json_t *metadata, json_t **ret_info, struct cell_error *err)
{
	struct cell__artifact_writer *writer;
	int rc = cell__artifact_begin(store, name, &writer, err);
	if (rc < 0)
		return rc;
	for (size_t at = 0, n; rc == 0 && at < size; at += n) {
		n = size - at < CELL_LIMIT_ARTIFACT_CHUNK ? size - at : CELL_LIMIT_ARTIFACT_CHUNK;
		rc = cell__artifact_write(writer, (const char *)bytes + at, n, err);
	}
	if (rc == 0)
		return cell__artifact_commit(writer, data_type, description, metadata, ret_info, err);
	cell__artifact_abort(writer);
	return rc;
}

static int read_all(struct cell__artifact_reader *reader, const char *name, char *bytes, size_t size, struct cell_error *err)
{
	for (size_t at = 0; at < size;) {
		size_t want = size - at < CELL_LIMIT_ARTIFACT_CHUNK ? size - at : CELL_LIMIT_ARTIFACT_CHUNK;
		ssize_t n = cell__artifact_pread(reader, bytes + at, want, (int64_t)at, err);
		if (n < 0)
			return -1;
		if (n == 0)
			return cell_fail(err, CELL_E_IO, 0, "artifact '%.120s' is shorter than its recorded size", name);
		at += (size_t)n;
	}
	return 0;
}

int cell__artifact_load_whole(struct cell__store *store, const char *name, int64_t max_bytes, json_t **ret_info, void **ret_bytes,
			      size_t *ret_size, struct cell_error *err)
{
	struct cell__artifact_reader *reader;
	if (cell__artifact_open(store, name, &reader, err) < 0)
		return -1;
	int64_t size = cell__artifact_reader_size(reader);
	CELL_AUTO_FREE char *bytes = NULL;
	json_t *info = NULL;
	int rc = 0;
	if (size > max_bytes)
		rc = cell_fail(err, CELL_E_LIMIT, 0, "artifact '%.120s' has %lld bytes, but an answer may have at most %lld", name,
			       (long long)size, (long long)max_bytes);
	else if ((size > 0 && !(bytes = cell__alloc(1, (size_t)size))) || !(info = json_deep_copy(cell__artifact_reader_info(reader))))
		rc = cell_fail(err, CELL_E_NOMEM, 0, "load artifact '%.120s'", name);
	else
		rc = read_all(reader, name, bytes, (size_t)size, err);
	cell__artifact_reader_close(reader);
	if (rc < 0) {
		json_decref(info);
		return rc;
	}
	*ret_info = info;
	*ret_bytes = cell__take_ptr(bytes);
	*ret_size = (size_t)size;
	return 0;
}

int cell__artifact_get(struct cell__store *store, const char *name, json_t **ret_info, struct cell_error *err)
{
	if (cell__path_check(name, "artifact", err) < 0)
		return -1;
	return store->backend->artifacts->get(store, name, ret_info, err);
}

int cell__artifact_list(struct cell__store *store, json_t **ret_list, struct cell_error *err)
{
	return store->backend->artifacts->list(store, ret_list, err);
}

int cell__artifact_exists(struct cell__store *store, const char *name, bool *ret_exists, struct cell_error *err)
{
	if (cell__path_check(name, "artifact", err) < 0)
		return -1;
	return store->backend->artifacts->exists(store, name, ret_exists, err);
}

int cell__artifact_delete(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err)
{
	bool deleted = false;
	if (cell__path_check(name, "artifact", err) < 0 || store->backend->artifacts->delete(store, name, &deleted, err) < 0)
		return -1;
	if (ret_deleted)
		*ret_deleted = deleted;
	return 0;
}

/* ---- tools ---- */

int cell__store_tools(struct cell__store *store, json_t **ret_tools, struct cell_error *err)
{
	if (!store->backend->tools)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "only storage in Redis contains tools; read tools of a folder with --tools or --base");
	return store->backend->tools(store, ret_tools, err);
}
