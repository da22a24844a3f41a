/* Artifacts: payload files, streamed in and out, and their index. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>

#include "storage/file.h"
#include "storage/store.h"

#define FOLDER "artifacts"
#define INDEX ".artifacts.json"
#define SYNC_LATE_BYTES (1 << 20) /* up to this size an artifact is synced after the index, while the folder is locked */
#define BEGIN_BYTES (8 * 1024 * 1024)

static int fail_write(struct cell_error *err, const char *name, int sys)
{
	return cell_fail(err, CELL_E_IO, sys, "Cannot write artifact '%.120s'", name);
}

static int fail_open(struct cell_error *err, const char *name, int sys)
{
	if (sys == ENOENT || sys == ENOTDIR)
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "Artifact '%.180s' not found", name);
	if (sys == ELOOP || sys == EXDEV)
		return cell_fail(err, CELL_E_INVALID, 0, "Path traversal attempt detected: '%.180s'", name);
	return cell_fail(err, CELL_E_IO, sys, "Cannot read artifact '%.120s'", name);
}

/* ---- descriptions ---- */

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);
	return n >= m && strcmp(text + n - m, end) == 0;
}

const char *cell__artifact_guess(const char *name, const char *head, size_t size)
{
	if (ends_with(name, ".json"))
		return "json";
	if (memchr(head, '\0', size))
		return "bytes";
	/* The last character may be cut in two. */
	for (size_t cut = 0; cut < 4 && cut <= size; cut++) {
		if (cell__utf8_ok(head, size - cut))
			return "text";
		if (size < CELL__STORE_SNIFF_BYTES)
			break;
	}
	return "bytes";
}

static const char *guess_type(int fd, const char *name)
{
	char head[CELL__STORE_SNIFF_BYTES];
	ssize_t n = pread(fd, head, sizeof head, 0);
	return n < 0 ? "bytes" : cell__artifact_guess(name, head, (size_t)n);
}

json_t *cell__artifact_info(const char *name, const char *path, json_t *entry, const char *when, const char *type, int64_t size)
{
	json_t *description = json_object_get(entry, "description");
	json_t *created = json_object_get(entry, "created_at");
	json_t *old = json_object_get(entry, "metadata");
	json_t *metadata = json_is_object(old) ? json_copy(old) : json_object();
	if (metadata && type)
		json_object_set_new(metadata, "_data_type", json_string(type));
	/* A path that is not UTF-8 cannot be written in JSON. */
	return json_pack("{s:s, s:s*, s:o, s:o, s:o, s:I, s:b}", "name", name, "path", cell__utf8_ok(path, strlen(path)) ? path : NULL,
			 "description", json_is_string(description) ? json_incref(description) : json_string(""), "created_at",
			 json_is_string(created) ? json_incref(created) : json_string(when), "metadata", metadata, "size", (json_int_t)size,
			 "derived", !json_is_object(entry));
}

bool cell__artifact_typed(json_t *entry)
{
	return json_is_string(json_object_get(json_object_get(entry, "metadata"), "_data_type"));
}

static json_t *make_info(struct cell__store *store, const char *name, json_t *entry, int fd, const struct stat *st)
{
	char when[CELL__TIME_SIZE];
	cell__time_format(&st->st_mtim, when);
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/" FOLDER "/%s", store->root, name) < 0)
		return NULL;
	const char *type = cell__artifact_typed(entry) ? NULL : guess_type(fd, name);
	return cell__artifact_info(name, path.data, entry, when, type, st->st_size);
}

/* A regular file for reading; -1 with errno. */
static int open_regular(int dir_fd, const char *name, struct stat *ret_stat)
{
	int fd = cell__path_open(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
	if (fd < 0)
		return -1;
	if (fstat(fd, ret_stat) == 0 && S_ISREG(ret_stat->st_mode))
		return fd;
	/* A folder, a device or a FIFO is not an artifact. */
	close(fd);
	errno = ENOENT;
	return -1;
}

/* File and entry as they belong together.  An index that cannot be parsed counts as empty. */
static int open_pair(struct cell__store *store, const char *name, int *ret_fd, struct stat *ret_stat, json_t **ret_entry, bool *ret_broken,
		     struct cell_error *err)
{
	CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, FOLDER, false);
	CELL_AUTO_FD int lock = -1;
	if (dir_fd < 0) {
		(void)(errno == ENOENT ? fail_open(err, name, errno) : cell__dir_fail(err, FOLDER, errno));
		return -1;
	}
	if (cell__index_lock(dir_fd, false, &lock, err) < 0)
		return cell_fail_wrap(err, "Cannot read artifact '%.80s'", name);
	CELL_AUTO_FD int fd = open_regular(dir_fd, name, ret_stat);
	if (fd < 0)
		return fail_open(err, name, errno);
	json_t *index = NULL;
	struct cell_error why = { 0 };
	*ret_broken = false;
	if (cell__index_read(dir_fd, INDEX, &store->artifacts, &index, &why) < 0) {
		*ret_broken = true;
		if (why.sys == EUCLEAN) {
			cell__close_fd(&lock);
			cell__index_set_aside(dir_fd, INDEX, &why);
		}
		if (err)
			*err = why;
	}
	*ret_entry = json_incref(json_object_get(index, name));
	json_decref(index);
	*ret_fd = cell__take_fd(&fd);
	return 0;
}

/* ---- saving ---- */

struct file_writer {
	struct cell__artifact_writer base;
	int dir_fd;    /* artifacts/ */
	int parent_fd; /* where the file lies */
	struct cell__temp temp;
	int64_t size, begun; /* written, and of these handed to the disk */
	int failed;          /* errno of the first write that failed */
	char name[];
};

static void abort_write(struct cell__artifact_writer *base)
{
	struct file_writer *writer = (struct file_writer *)base;
	cell__temp_discard(&writer->temp);
	cell__close_fd(&writer->parent_fd);
	cell__close_fd(&writer->dir_fd);
	free(writer);
}

static int begin_file(struct file_writer *writer, struct cell_error *err)
{
	const char *last;
	struct stat st;
	writer->dir_fd = cell__dir_open(writer->base.store->root_fd, FOLDER, true);
	if (writer->dir_fd < 0)
		return errno == ELOOP || errno == EXDEV ? cell__dir_fail(err, FOLDER, errno) : fail_write(err, writer->name, errno);
	writer->parent_fd = cell__path_open_parent(writer->dir_fd, writer->name, true, &last);
	if (writer->parent_fd < 0) {
		if (errno == ELOOP || errno == EXDEV)
			return fail_open(err, writer->name, errno);
		if (errno == ENOTDIR)
			return cell_fail(err, CELL_E_EXISTS, 0, "Cannot write artifact '%.120s': an artifact has the name of its folder",
					 writer->name);
		return fail_write(err, writer->name, errno);
	}
	if (fstatat(writer->parent_fd, last, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		return cell_fail(err, CELL_E_EXISTS, 0, "Cannot write artifact '%.120s': a folder of artifacts has this name",
				 writer->name);
	if (!atomic_exchange(&writer->base.store->swept, true)) {
		/* Taking the lock completes a dead writer's journal, which needs its temporary files. */
		CELL_AUTO_FD int lock = -1;
		if (cell__index_lock(writer->dir_fd, true, &lock, NULL) == 0) {
			cell__temp_sweep(writer->dir_fd);
			cell__temp_sweep(writer->parent_fd);
		}
	}
	if (cell__temp_create(&writer->temp, writer->parent_fd) < 0)
		return fail_write(err, writer->name, errno);
	return 0;
}

static int begin(struct cell__store *store, const char *name, struct cell__artifact_writer **ret_writer, struct cell_error *err)
{
	size_t size = strlen(name) + 1;
	struct file_writer *writer = cell__alloc(1, sizeof *writer + size);
	if (!writer)
		return cell_fail(err, CELL_E_NOMEM, 0, "save artifact '%.120s'", name);
	*writer = (struct file_writer){ .base.store = store, .dir_fd = -1, .parent_fd = -1, .temp = CELL__TEMP_INIT };
	memcpy(writer->name, name, size);
	if (begin_file(writer, err) < 0) {
		abort_write(&writer->base);
		return -1;
	}
	*ret_writer = &writer->base;
	return 0;
}

static int write_chunk(struct cell__artifact_writer *base, const void *bytes, size_t size, struct cell_error *err)
{
	struct file_writer *writer = (struct file_writer *)base;
	/* The lost bytes would be missing in the middle: nothing may be written after them. */
	if (writer->failed)
		return fail_write(err, writer->name, writer->failed);
	if (cell__temp_write(&writer->temp, bytes, size) < 0) {
		writer->failed = errno;
		return fail_write(err, writer->name, errno);
	}
	writer->size += (int64_t)size;
	/* The disk begins while we go on writing; best effort, the commit waits for all of it. */
	if (writer->size - writer->begun >= BEGIN_BYTES) {
		sync_file_range(writer->temp.fd, writer->begun, writer->size - writer->begun, SYNC_FILE_RANGE_WRITE);
		writer->begun = writer->size;
	}
	return 0;
}

static int check_data_type(const char *type, struct cell_error *err)
{
	size_t size = strlen(type);
	if (size < 1 || size > CELL__STORE_DATA_TYPE_BYTES || strspn(type, "abcdefghijklmnopqrstuvwxyz0123456789_.-") != size)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid artifact data type: '%.80s'", type);
	return 0;
}

int cell__artifact_entry(const char *data_type, const char *description, json_t *metadata, json_t **ret_entry, struct cell_error *err)
{
	if (check_data_type(data_type, err) < 0)
		return -1;
	if (description && strlen(description) > CELL__STORE_DESCRIPTION_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the artifact's description is longer than %u bytes", CELL__STORE_DESCRIPTION_BYTES);
	if (metadata && !json_is_object(metadata))
		return cell_fail(err, CELL_E_INVALID, 0, "an artifact's metadata must be an object");
	if (metadata && json_dumpb(metadata, NULL, 0, JSON_COMPACT) > CELL__STORE_METADATA_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the artifact's metadata is larger than %u bytes", CELL__STORE_METADATA_BYTES);
	json_t *copy = metadata ? json_copy(metadata) : json_object();
	char now[CELL__TIME_SIZE];
	cell__time_now(now);
	if (copy)
		json_object_set_new(copy, "_data_type", json_string(data_type));
	json_t *entry = json_pack("{s:s, s:s, s:o}", "description", description ? description : "", "created_at", now, "metadata", copy);
	if (!entry)
		return cell_fail(err, CELL_E_INVALID, 0, "the artifact's description is not UTF-8");
	*ret_entry = entry;
	return 0;
}

static int commit(struct cell__artifact_writer *base, json_t *entry, json_t **ret_info, struct cell_error *err)
{
	struct file_writer *writer = (struct file_writer *)base;
	if (writer->failed)
		return fail_write(err, writer->name, writer->failed);
	struct stat st;
	struct cell__index_outcome outcome;
	/* Kept open past the rename, for the info. */
	CELL_AUTO_FD int fd = fcntl(writer->temp.fd, F_DUPFD_CLOEXEC, 3);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fail_write(err, writer->name, errno);
	/* The folder's lock is not held while much is written. */
	bool small = st.st_size <= SYNC_LATE_BYTES;
	if (small)
		cell__temp_start_sync(&writer->temp);
	else if (cell__temp_sync(&writer->temp) < 0)
		return fail_write(err, writer->name, errno);
	struct cell__index_change change = {
		.path = writer->name, .key = writer->name, .entry = entry, .temp = &writer->temp, .unsynced = small
	};
	if (cell__index_apply(writer->dir_fd, INDEX, &writer->base.store->artifacts, &change, &outcome, err) < 0)
		return cell_fail_wrap(err, "Cannot write artifact '%.80s'", writer->name);
	if (outcome.broken)
		cell__store_put_notice(writer->base.store, &outcome.notice);
	if (!ret_info)
		return 0;
	json_t *info = make_info(writer->base.store, writer->name, entry, fd, &st);
	if (!info)
		return cell_fail(err, CELL_E_NOMEM, 0, "save artifact '%.120s'", writer->name);
	*ret_info = info;
	return 0;
}

/* ---- loading ---- */

struct file_reader {
	struct cell__artifact_reader base;
	int fd;
};

static int open_artifact(struct cell__store *store, const char *name, struct cell__artifact_reader **ret_reader, struct cell_error *err)
{
	CELL_AUTO_FD int fd = -1;
	struct stat st;
	json_t *entry = NULL;
	bool broken;
	struct cell_error why = { 0 };
	if (open_pair(store, name, &fd, &st, &entry, &broken, &why) < 0) {
		if (err)
			*err = why;
		return -1;
	}
	if (broken)
		cell__store_put_notice(store, &why);
	struct file_reader *reader = cell__alloc(1, sizeof *reader);
	json_t *info = make_info(store, name, entry, fd, &st);
	json_decref(entry);
	if (!reader || !info) {
		free(reader);
		json_decref(info);
		return cell_fail(err, CELL_E_NOMEM, 0, "load artifact '%.120s'", name);
	}
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	*reader = (struct file_reader){ .base = { store->backend, st.st_size, info }, .fd = cell__take_fd(&fd) };
	*ret_reader = &reader->base;
	return 0;
}

static ssize_t read_chunk(struct cell__artifact_reader *base, void *buf, size_t size, int64_t offset, struct cell_error *err)
{
	struct file_reader *reader = (struct file_reader *)base;
	size_t done = 0;
	while (done < size) {
		ssize_t n = pread(reader->fd, (char *)buf + done, size - done, offset + (int64_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return cell_fail(err, CELL_E_IO, errno, "read artifact");
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static ssize_t read_cached(struct cell__artifact_reader *base, void *buf, size_t size, int64_t offset)
{
	struct file_reader *reader = (struct file_reader *)base;
	struct iovec iov = { buf, size };
	ssize_t n = preadv2(reader->fd, &iov, 1, offset, RWF_NOWAIT);
	return n == (ssize_t)iov.iov_len ? n : -1;
}

static void close_artifact(struct cell__artifact_reader *base)
{
	struct file_reader *reader = (struct file_reader *)base;
	close(reader->fd);
	free(reader);
}

/* ---- looking ---- */

static int get(struct cell__store *store, const char *name, json_t **ret_info, struct cell_error *err)
{
	CELL_AUTO_FD int fd = -1;
	struct stat st;
	json_t *entry = NULL;
	bool broken;
	if (open_pair(store, name, &fd, &st, &entry, &broken, err) < 0)
		return -1;
	if (broken)
		return -1; /* err has the reason; the index was set aside, so that the next call succeeds */
	json_t *info = make_info(store, name, entry, fd, &st);
	json_decref(entry);
	if (!info)
		return cell_fail(err, CELL_E_NOMEM, 0, "get artifact '%.120s'", name);
	*ret_info = info;
	return 0;
}

static int exists(struct cell__store *store, const char *name, bool *ret_exists, struct cell_error *err)
{
	CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, FOLDER, false);
	struct stat st;
	if (dir_fd < 0 && errno != ENOENT)
		return cell__dir_fail(err, FOLDER, errno);
	CELL_AUTO_FD int fd = dir_fd >= 0 ? open_regular(dir_fd, name, &st) : -1;
	if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
		return fail_open(err, name, errno);
	*ret_exists = fd >= 0;
	return 0;
}

static int delete(struct cell__store *store, const char *name, bool *ret_deleted, struct cell_error *err)
{
	struct cell__index_outcome outcome = { 0 };
	CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, FOLDER, false);
	if (dir_fd < 0 && errno != ENOENT)
		return cell__dir_fail(err, FOLDER, errno);
	bool known = false;
	if (dir_fd >= 0 && exists(store, name, &known, err) < 0)
		return -1;
	if (dir_fd >= 0) {
		struct cell__index_change change = { .path = name, .key = name };
		int rc = cell__index_apply(dir_fd, INDEX, &store->artifacts, &change, &outcome, err);
		/* On a read-only disk, a missing file need not be removed. */
		if (rc < 0 && known)
			return cell_fail_wrap(err, "Cannot delete artifact '%.80s'", name);
		if (rc == 0 && outcome.broken)
			cell__store_put_notice(store, &outcome.notice);
	}
	*ret_deleted = outcome.existed;
	return 0;
}

/* ---- listing ---- */

struct listing {
	struct cell__store *store;
	json_t *index;
	json_t *found; /* name -> info */
	int dir_fd;    /* artifacts/ */
	char path[CELL__STORE_NAME_BYTES + 1];
};

static int add_file(struct listing *list, const char *name, struct cell_error *err)
{
	struct stat st;
	if (json_object_size(list->found) >= CELL__STORE_LIST)
		return cell_fail(err, CELL_E_LIMIT, 0, "more than %u artifacts", CELL__STORE_LIST);
	if (cell__path_check(name, "artifact", NULL) < 0)
		return 0;
	CELL_AUTO_FD int fd = open_regular(list->dir_fd, name, &st);
	if (fd < 0)
		return 0; /* deleted in the meantime, or not loadable */
	json_t *info = make_info(list->store, name, json_object_get(list->index, name), fd, &st);
	if (!info || json_object_set_new(list->found, name, info) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "list artifacts");
	return 0;
}

static int walk(struct listing *list, size_t length, unsigned depth, struct cell_error *err);

static int walk_entry(struct listing *list, DIR *dir, const struct dirent *entry, size_t length, unsigned depth, struct cell_error *err)
{
	const char *name = entry->d_name;
	if (name[0] == '.') {
		cell__temp_sweep_one(dirfd(dir), name);
		return 0;
	}
	size_t size = strlen(name);
	if (length + size + 1 > CELL__STORE_NAME_BYTES)
		return 0;
	memcpy(list->path + length, name, size + 1);
	struct stat st;
	if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	if (S_ISREG(st.st_mode))
		return add_file(list, list->path, err);
	if (!S_ISDIR(st.st_mode) || depth >= CELL__STORE_NAME_DEPTH)
		return 0;
	return walk(list, length + size, depth + 1, err);
}

/* list->path[0..length) is the folder, "" the topmost. */
static int walk(struct listing *list, size_t length, unsigned depth, struct cell_error *err)
{
	list->path[length] = '\0';
	int fd = cell__path_open(list->dir_fd, length ? list->path : ".", O_RDONLY | O_DIRECTORY, 0);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	if (!dir) {
		cell__close_fd(&fd);
		return 0;
	}
	if (length > 0)
		list->path[length++] = '/';
	int rc = 0;
	for (struct dirent *entry; rc == 0 && (entry = readdir(dir));)
		rc = walk_entry(list, dir, entry, length, depth, err);
	closedir(dir);
	return rc;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

json_t *cell__sorted_values(json_t *object)
{
	size_t n = json_object_size(object), i = 0;
	CELL_AUTO_FREE const char **names = cell__alloc(n, sizeof *names);
	json_t *values = json_array();
	if (!names || !values)
		return json_decref(values), NULL;
	const char *key;
	json_t *value;
	json_object_foreach(object, key, value)
		names[i++] = key;
	qsort(names, n, sizeof *names, compare_names);
	for (i = 0; i < n; i++)
		json_array_append(values, json_object_get(object, names[i]));
	return values;
}

static int list_all(struct listing *list, json_t **ret_list, struct cell_error *err)
{
	if (walk(list, 0, 0, err) < 0)
		return -1;
	/* Names that begin with a dot are listed only if they were saved as artifacts. */
	const char *name;
	json_t *entry;
	json_object_foreach(list->index, name, entry)
		if (!json_object_get(list->found, name) && add_file(list, name, err) < 0)
			return -1;
	json_t *values = cell__sorted_values(list->found);
	if (!values)
		return cell_fail(err, CELL_E_NOMEM, 0, "list artifacts");
	*ret_list = values;
	return 0;
}

static int list_artifacts(struct cell__store *store, json_t **ret_list, struct cell_error *err)
{
	CELL_AUTO_FD int dir_fd = cell__dir_open(store->root_fd, FOLDER, false);
	CELL_AUTO_FD int lock = -1;
	struct cell_error why = { 0 };
	if (dir_fd < 0 && errno != ENOENT)
		return cell__dir_fail(err, FOLDER, errno);
	struct listing list = { .store = store, .dir_fd = dir_fd, .found = json_object() };
	int rc = 0;
	if (dir_fd < 0) {
		list.index = json_object();
	} else if (cell__index_lock(dir_fd, false, &lock, err) < 0) {
		rc = -1;
	} else if (cell__index_read(dir_fd, INDEX, &store->artifacts, &list.index, &why) < 0) {
		rc = -1;
		cell__close_fd(&lock);
		if (why.sys == EUCLEAN)
			cell__index_set_aside(dir_fd, INDEX, &why);
		if (err)
			*err = why;
	}
	cell__close_fd(&lock);
	if (rc == 0)
		rc = list_all(&list, ret_list, err);
	json_decref(list.index);
	json_decref(list.found);
	return rc;
}

const struct cell__artifact_ops cell__file_artifacts = {
	.begin = begin,
	.write = write_chunk,
	.commit = commit,
	.abort = abort_write,
	.open = open_artifact,
	.pread = read_chunk,
	.pread_cached = read_cached,
	.close = close_artifact,
	.get = get,
	.list = list_artifacts,
	.exists = exists,
	.delete = delete,
};
