/*
 * A state of a layer as one file, for a saved session, and its way back.
 *
 *     head, entries of upper, an end; where there is a folder for temporary files: its entries, an end
 *     an entry: struct record, its name, and the content of a file or the target of a link; of a folder: its entries, and an end
 *
 * The file may come from a disk that others could write to: names are single parts of a path, folders are opened as everywhere in a layer, and
 * nothing outside of the state is written.  It is of this machine type alone, as the memory beside it is.
 */
#define _GNU_SOURCE
#include "layer/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"

#define MAGIC 0x31726579616c6377ull
#define BUFFER_BYTES ((size_t)256 << 10)

enum { RECORD_END, RECORD_FILE, RECORD_FOLDER, RECORD_LINK, RECORD_PIPE, RECORD_DELETED };

struct head {
	uint64_t magic;
	uint32_t form, has_tmp;
	int64_t made_s, made_ns;
};

struct record {
	uint32_t kind, mode, name_bytes, opaque;
	uint64_t size; /* of the content, or of the target */
	int64_t mtime_s, mtime_ns;
};

struct pack {
	int fd;
	char *buffer;
	size_t used, at; /* reading: at of used */
	uint64_t files, max_files, bytes, max_bytes;
	unsigned depth;
	bool overlay;
};

static int fail(struct cell_error *err)
{
	return cell_fail(err, errno == ENOSPC || errno == EDQUOT ? CELL_E_LIMIT : CELL_E_IO, errno, "save the files of a layer");
}

static int damaged(struct cell_error *err)
{
	return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session is damaged: the files of its layer");
}

/* ---- writing ---- */

static int flush(struct pack *pack)
{
	int rc = cell__fd_write_all(pack->fd, pack->buffer, pack->used);
	pack->used = 0;
	return rc;
}

static int put(struct pack *pack, const void *data, size_t size)
{
	while (size > 0) {
		size_t n = size < BUFFER_BYTES - pack->used ? size : BUFFER_BYTES - pack->used;
		memcpy(pack->buffer + pack->used, data, n);
		pack->used += n;
		data = (const char *)data + n;
		size -= n;
		if (pack->used == BUFFER_BYTES && flush(pack) < 0)
			return -1;
	}
	return 0;
}

/* As many bytes as the record says, whatever becomes of the file: a state is nobody's but ours. */
static int put_content(struct pack *pack, int from_fd, uint64_t size)
{
	while (size > 0) {
		if (pack->used == BUFFER_BYTES && flush(pack) < 0)
			return -1;
		size_t room = BUFFER_BYTES - pack->used;
		ssize_t n = read(from_fd, pack->buffer + pack->used, size < room ? (size_t)size : room);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			errno = n < 0 ? errno : EIO;
			return -1;
		}
		pack->used += (size_t)n;
		size -= (uint64_t)n;
	}
	return 0;
}

static int put_record(struct pack *pack, const struct record *record, const char *name)
{
	return put(pack, record, sizeof *record) < 0 || put(pack, name, record->name_bytes) < 0 ? -1 : 0;
}

static int put_folder(struct pack *pack, int dir_fd, struct cell_error *err);

static int put_entry(struct pack *pack, int dir_fd, const char *name, struct cell_error *err)
{
	struct stat st;
	char target[PATH_MAX];
	struct record record = { .name_bytes = (uint32_t)strlen(name) };
	if (cell__stat_at(dir_fd, name, &st) <= 0)
		return fail(err);
	record.mode = st.st_mode & 0777;
	record.mtime_s = st.st_mtim.tv_sec;
	record.mtime_ns = st.st_mtim.tv_nsec;
	if (S_ISREG(st.st_mode)) {
		CELL_AUTO_FD int fd = cell__open_regular(dir_fd, name);
		record.kind = RECORD_FILE;
		record.size = (uint64_t)st.st_size;
		return fd < 0 || put_record(pack, &record, name) < 0 || put_content(pack, fd, record.size) < 0 ? fail(err) : 0;
	}
	if (S_ISLNK(st.st_mode)) {
		ssize_t n = readlinkat(dir_fd, name, target, sizeof target);
		record.kind = RECORD_LINK;
		record.size = (uint64_t)n;
		return n <= 0 || n == (ssize_t)sizeof target || put_record(pack, &record, name) < 0 || put(pack, target, (size_t)n) < 0
			       ? fail(err)
			       : 0;
	}
	if (!S_ISDIR(st.st_mode)) {
		record.kind = S_ISFIFO(st.st_mode) ? RECORD_PIPE : RECORD_DELETED; /* no other kinds are in a state */
		return put_record(pack, &record, name) < 0 ? fail(err) : 0;
	}
	CELL_AUTO_FD int fd = cell__open_folder(dir_fd, name);
	record.kind = RECORD_FOLDER;
	record.opaque = fd >= 0 && pack->overlay && cell__is_opaque(fd);
	return fd < 0 || put_record(pack, &record, name) < 0 ? fail(err) : put_folder(pack, fd, err);
}

static int put_folder(struct pack *pack, int dir_fd, struct cell_error *err)
{
	const struct record end = { .kind = RECORD_END };
	struct cell__names names = { 0 };
	int rc = cell__names_add(&names, dir_fd) < 0 ? fail(err) : 0;
	for (size_t i = 0; rc == 0 && i < names.count; i++)
		rc = put_entry(pack, dir_fd, names.items[i], err);
	cell__names_finish(&names);
	return rc == 0 && put(pack, &end, sizeof end) < 0 ? fail(err) : rc;
}

/* A file without a name, beside the layer: it may be larger than what fits into memory. */
static int make_file(const struct cell__layer *layer)
{
	int fd = open(layer->home, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	return fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR) ? fd : memfd_create("workcell-layer", MFD_CLOEXEC);
}

int cell__frozen_pack(const struct cell__frozen *frozen, int *ret_fd, struct cell_error *err)
{
	const struct cell__layer *layer = frozen->layer;
	const struct head head = { .magic = MAGIC,
				   .form = layer->form,
				   .has_tmp = layer->tmp != NULL,
				   .made_s = frozen->made.tv_sec,
				   .made_ns = frozen->made.tv_nsec };
	CELL_AUTO_FREE char *buffer = cell__alloc(1, BUFFER_BYTES);
	CELL_AUTO_FD int fd = make_file(layer);
	struct pack pack = { .fd = fd, .buffer = buffer, .overlay = layer->form == CELL_LAYER_OVERLAY };
	if (!buffer)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
	CELL_AUTO_FD int upper = cell__open_frozen(frozen, "upper");
	if (fd < 0 || upper < 0 || put(&pack, &head, sizeof head) < 0)
		return fail(err);
	if (put_folder(&pack, upper, err) < 0)
		return -1;
	pack.overlay = false;
	CELL_AUTO_FD int tmp = layer->tmp ? cell__open_frozen(frozen, "tmp") : -1;
	if (layer->tmp && tmp < 0)
		return fail(err);
	if (tmp >= 0 && put_folder(&pack, tmp, err) < 0)
		return -1;
	if (flush(&pack) < 0)
		return fail(err);
	*ret_fd = cell__take_fd(&fd);
	return 0;
}

/* ---- reading ---- */

/* -1 with errno 0: it ends before. */
static int get(struct pack *pack, void *data, size_t size)
{
	while (size > 0) {
		if (pack->at == pack->used) {
			ssize_t n = read(pack->fd, pack->buffer, BUFFER_BYTES);
			if (n <= 0) {
				errno = n < 0 ? errno : 0;
				return -1;
			}
			pack->used = (size_t)n;
			pack->at = 0;
		}
		size_t n = size < pack->used - pack->at ? size : pack->used - pack->at;
		memcpy(data, pack->buffer + pack->at, n);
		pack->at += n;
		data = (char *)data + n;
		size -= n;
	}
	return 0;
}

static int get_failed(struct cell_error *err)
{
	return errno ? fail(err) : damaged(err);
}

static bool is_part(const char *name, size_t size)
{
	return size > 0 && !memchr(name, '/', size) && !memchr(name, '\0', size) && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static int get_file(struct pack *pack, int dir_fd, const char *name, const struct record *record, struct cell_error *err)
{
	const struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { record->mtime_s, record->mtime_ns } };
	CELL_AUTO_FD int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	char block[16384];
	if (fd < 0)
		return fail(err);
	for (uint64_t left = record->size; left > 0;) {
		size_t n = left < sizeof block ? (size_t)left : sizeof block;
		if (get(pack, block, n) < 0)
			return get_failed(err);
		if (cell__fd_write_all(fd, block, n) < 0)
			return fail(err);
		left -= n;
	}
	return fchmod(fd, record->mode & 0777) < 0 || futimens(fd, times) < 0 ? fail(err) : 0;
}

static int get_link(struct pack *pack, int dir_fd, const char *name, const struct record *record, struct cell_error *err)
{
	char target[PATH_MAX];
	if (record->size == 0 || record->size >= sizeof target)
		return damaged(err);
	if (get(pack, target, (size_t)record->size) < 0)
		return get_failed(err);
	target[record->size] = '\0';
	return memchr(target, '\0', (size_t)record->size) ? damaged(err) : symlinkat(target, dir_fd, name) < 0 ? fail(err) : 0;
}

static int get_folder(struct pack *pack, int dir_fd, struct cell_error *err);

static int get_entry(struct pack *pack, int dir_fd, const char *name, const struct record *record, struct cell_error *err)
{
	switch (record->kind) {
	case RECORD_FILE:
		return get_file(pack, dir_fd, name, record, err);
	case RECORD_LINK:
		return get_link(pack, dir_fd, name, record, err);
	case RECORD_PIPE:
		return mkfifoat(dir_fd, name, record->mode & 0777) < 0 ? fail(err) : 0;
	case RECORD_DELETED:
		return !pack->overlay ? damaged(err) : mknodat(dir_fd, name, S_IFCHR, 0) < 0 ? fail(err) : 0;
	case RECORD_FOLDER:
		break;
	default:
		return damaged(err);
	}
	if (pack->depth >= CELL_LAYER_MAX_DEPTH)
		return damaged(err);
	if (mkdirat(dir_fd, name, 0700) < 0 || (record->opaque && pack->overlay && cell__set_opaque(dir_fd, name) < 0))
		return fail(err);
	CELL_AUTO_FD int fd = cell__open_folder(dir_fd, name);
	if (fd < 0)
		return fail(err);
	pack->depth++;
	int rc = get_folder(pack, fd, err);
	pack->depth--;
	return rc == 0 && fchmod(fd, record->mode & 0777) < 0 ? fail(err) : rc;
}

/* Up to its end. */
static int get_folder(struct pack *pack, int dir_fd, struct cell_error *err)
{
	struct record record;
	char name[NAME_MAX + 1];
	for (;;) {
		if (get(pack, &record, sizeof record) < 0)
			return get_failed(err);
		if (record.kind == RECORD_END)
			return 0;
		if (record.name_bytes > NAME_MAX || record.mtime_ns < 0 || record.mtime_ns > 999999999)
			return damaged(err);
		if (get(pack, name, record.name_bytes) < 0)
			return get_failed(err);
		name[record.name_bytes] = '\0';
		if (!is_part(name, record.name_bytes))
			return damaged(err);
		pack->files++;
		pack->bytes += record.kind == RECORD_FILE ? record.size : 0;
		if ((pack->max_files && pack->files > pack->max_files) || (pack->max_bytes && pack->bytes > pack->max_bytes))
			return cell_fail(err, CELL_E_LIMIT, 0, "the saved layer takes more than the limit on disk space allows");
		if (get_entry(pack, dir_fd, name, &record, err) < 0)
			return -1;
	}
}

int cell__frozen_unpack(struct cell__layer *layer, int fd, struct cell__frozen **ret_frozen, struct cell_error *err)
{
	struct head head;
	CELL_AUTO_FREE char *buffer = cell__alloc(1, BUFFER_BYTES);
	struct pack pack = { .fd = fd,
			     .buffer = buffer,
			     .overlay = layer->form == CELL_LAYER_OVERLAY,
			     .max_files = layer->max_files,
			     .max_bytes = layer->max_bytes };
	if (!buffer)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
	if (lseek(fd, 0, SEEK_SET) < 0 || get(&pack, &head, sizeof head) < 0)
		return get_failed(err);
	if (head.magic != MAGIC || head.made_ns < 0 || head.made_ns > 999999999)
		return damaged(err);
	if (head.form != (uint32_t)layer->form || (head.has_tmp != 0) != (layer->tmp != NULL))
		return cell_fail(
			err, CELL_E_DIFFERS, 0,
			"the session was saved with another form of layer; here it is \"%s\" (does the file system have overlays?)",
			cell__layer_word(layer));
	struct cell__frozen *frozen = cell__frozen_begin(layer, err);
	if (!frozen)
		return -1;
	frozen->made = (struct timespec){ head.made_s, head.made_ns };
	CELL_AUTO_FD int upper = cell__open_frozen(frozen, "upper");
	int rc = upper < 0 ? fail(err) : get_folder(&pack, upper, err);
	CELL_AUTO_FD int tmp = rc == 0 && layer->tmp ? cell__open_frozen(frozen, "tmp") : -1;
	pack.overlay = false;
	if (rc == 0 && layer->tmp)
		rc = tmp < 0 ? fail(err) : get_folder(&pack, tmp, err);
	if (rc == 0)
		*ret_frozen = frozen;
	else
		cell__frozen_destroy(frozen);
	return rc;
}

int cell__layer_unpack(struct cell__layer *layer, int fd, struct cell_error *err)
{
	struct cell__frozen *frozen;
	if (cell__frozen_unpack(layer, fd, &frozen, err) < 0)
		return -1;
	int rc = cell__layer_restore(layer, 0, frozen, err);
	cell__frozen_destroy(frozen);
	return rc;
}
