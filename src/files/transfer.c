/*
 * Files and folders on their way into a workspace and out of it.
 *
 * A file that is put is written under a temporary name in its folder, and renamed when it is complete; code that tampers with the temporary
 * file changes what it could have changed afterwards.  An archive is unpacked entry by entry, each in the same way.
 */
#define _GNU_SOURCE
#include "files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "layer/layer.h"
#include "wire/tar.h"

#define TEMPORARY CELL_FILES_TEMPORARY

/* A file that is being written. */
struct placing {
	int dir_fd, fd; /* -1: none */
	char name[NAME_MAX + 1], temporary[sizeof TEMPORARY + 16];
	mode_t mode;
};

struct cell__file_transfer {
	enum cell__file_transfer_kind kind;
	struct cell__there *there; /* NULL: on this machine; else nothing below is used but st */
	int root_fd;
	char path[PATH_MAX]; /* of the transfer; pack: of the entry that is being packed */
	uint64_t max_bytes, done; /* bytes of contents */
	/* get; pack: the file that is being packed */
	int fd;
	struct stat st;
	uint64_t left;
	/* put and unpack */
	struct placing placing;
	unsigned mode;
	bool guarded;
	/* pack: the open folders, the innermost last; `from` is where names below the packed folder begin in `path` */
	DIR *folders[CELL_FILES_MAX_DEPTH];
	size_t sizes[CELL_FILES_MAX_DEPTH]; /* of their paths */
	size_t depth, from;
	struct cell__buf out;
	size_t padding;
	bool ended;
	/* unpack */
	struct cell__tar tar;
	size_t entries, left_out;
	bool leaves_out_links;
};

/* ---- a file that is being written ---- */

static void placing_drop(struct placing *placing)
{
	if (placing->fd >= 0 && placing->dir_fd >= 0)
		(void)unlinkat(placing->dir_fd, placing->temporary, 0);
	cell__close_fd(&placing->fd);
	cell__close_fd(&placing->dir_fd);
}

static int placing_begin(struct placing *placing, int root_fd, const char *path, unsigned mode, struct cell_error *err)
{
	const char *name = NULL;
	struct stat st;
	placing->dir_fd = cell__files_parent(root_fd, path, true, &name);
	if (placing->dir_fd < 0)
		return cell__files_fail(err, errno, "write", path);
	snprintf(placing->name, sizeof placing->name, "%s", name);
	bool exists = fstatat(placing->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0;
	if (exists && S_ISDIR(st.st_mode))
		return cell__files_fail(err, EISDIR, "write", path);
	placing->mode = mode ? mode & 0777 : exists && S_ISREG(st.st_mode) ? st.st_mode & 0777 : 0644;
	strcpy(placing->temporary, TEMPORARY);
	cell__random_hex(placing->temporary + strlen(TEMPORARY), 16);
	placing->fd = openat(placing->dir_fd, placing->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return placing->fd < 0 ? cell__files_fail(err, errno, "write", path) : 0;
}

static int placing_end(struct placing *placing, const char *path, struct cell_error *err)
{
	if (fchmod(placing->fd, placing->mode) < 0 || renameat(placing->dir_fd, placing->temporary, placing->dir_fd, placing->name) < 0)
		return cell__files_fail(err, errno, "write", path);
	cell__close_fd(&placing->fd);
	cell__close_fd(&placing->dir_fd);
	return 0;
}

static int write_content(struct cell__file_transfer *transfer, const char *bytes, size_t size, struct cell_error *err)
{
	if (size > transfer->max_bytes - transfer->done)
		return cell_fail(err, CELL_E_LIMIT, EFBIG, "more than %llu bytes are not accepted",
				 (unsigned long long)transfer->max_bytes);
	if (cell__fd_write_all(transfer->placing.fd, bytes, size) < 0)
		return cell__files_fail(err, errno, "write", transfer->path);
	transfer->done += size;
	return 0;
}

/* ---- an archive, unpacked ---- */

/* The path of an entry, below that of the transfer. */
static int place_of(const struct cell__file_transfer *transfer, const char *given, char *ret_path, struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell_error why;
	size_t size = strlen(transfer->path);
	if (cell__files_path(given, inner, &why) < 0)
		return cell_fail(err, why.code, 0, "an entry of the archive has a path that is not allowed: %.140s", why.msg);
	if (size + strlen(inner) + 2 > PATH_MAX)
		return cell_fail(err, CELL_E_INVALID, 0, "an entry of the archive has too long a path");
	snprintf(ret_path, PATH_MAX, "%s%s%s", transfer->path, size > 0 && *inner ? "/" : "", inner);
	return 0;
}

static int make_link(int root_fd, const char *path, const char *target, struct cell_error *err)
{
	const char *name = NULL;
	struct stat st;
	if (!*target || strlen(target) >= PATH_MAX)
		return cell_fail(err, CELL_E_INVALID, 0, "a link of the archive has no target, or too long a one");
	CELL_AUTO_FD int dir_fd = cell__files_parent(root_fd, path, true, &name);
	if (dir_fd < 0)
		return cell__files_fail(err, errno, "write", path);
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode))
		(void)unlinkat(dir_fd, name, 0);
	return symlinkat(target, dir_fd, name) < 0 ? cell__files_fail(err, errno, "write", path) : 0;
}

/* Whether a link at this path of the archive may be followed without leaving the folder that is unpacked. */
static bool stays_inside(const char *path, const char *target)
{
	int depth = 0;
	if (*target == '/')
		return false;
	for (const char *at = strchr(path, '/'); at; at = strchr(at + 1, '/'))
		depth++;
	for (const char *part = target; *part;) {
		size_t n = strcspn(part, "/");
		bool is_up = n == 2 && part[0] == '.' && part[1] == '.';
		if (is_up && --depth < 0)
			return false;
		if (n > 0 && !is_up && !(n == 1 && part[0] == '.'))
			depth++;
		part += n + (part[n] == '/');
	}
	return true;
}

static int make_folder(int root_fd, const char *path, struct cell_error *err)
{
	CELL_AUTO_FD int fd = cell__files_make_path(root_fd, path);
	return fd < 0 ? cell__files_fail(err, errno == ENOTDIR ? EEXIST : errno, "make the folder", path) : 0;
}

static int begin_entry(struct cell__file_transfer *transfer, struct cell_error *err)
{
	const struct cell__tar_entry *entry = &transfer->tar.entry;
	char path[PATH_MAX];
	if (++transfer->entries > CELL_FILES_MAX_UNPACKED)
		return cell_fail(err, CELL_E_LIMIT, 0, "the archive has more than %u entries", CELL_FILES_MAX_UNPACKED);
	if (place_of(transfer, entry->path, path, err) < 0 || (transfer->guarded && cell__files_guard(path, err) < 0))
		return -1;
	if (entry->type == CELL_TAR_FOLDER)
		return make_folder(transfer->root_fd, path, err);
	if (!*path)
		return cell_fail(err, CELL_E_INVALID, 0, "an entry of the archive has the path of the folder itself");
	if (entry->type == CELL_TAR_LINK && transfer->leaves_out_links && !stays_inside(path, entry->target)) {
		transfer->left_out++;
		return 0;
	}
	if (entry->type == CELL_TAR_LINK)
		return make_link(transfer->root_fd, path, entry->target, err);
	if (entry->size > transfer->max_bytes - transfer->done)
		return cell_fail(err, CELL_E_LIMIT, EFBIG, "more than %llu bytes are not accepted",
				 (unsigned long long)transfer->max_bytes);
	return placing_begin(&transfer->placing, transfer->root_fd, path, entry->mode ? entry->mode : 0644, err);
}

static int unpack(struct cell__file_transfer *transfer, const char *bytes, size_t size, struct cell_error *err)
{
	const char *data = NULL;
	size_t data_size = 0;
	int event;
	while ((event = cell__tar_next(&transfer->tar, &bytes, &size, &data, &data_size, err)) > CELL_TAR_MORE) {
		int rc = event == CELL_TAR_ENTRY  ? begin_entry(transfer, err)
			 : event == CELL_TAR_DATA ? write_content(transfer, data, data_size, err)
						  : placing_end(&transfer->placing, transfer->tar.entry.path, err);
		if (rc < 0)
			return -1;
	}
	return event < 0 ? -1 : 0;
}

/* ---- a folder, packed ---- */

static int pack_item(struct cell__file_transfer *transfer, const struct stat *st, struct cell_error *err)
{
	CELL_AUTO_FREE struct cell__tar_entry *entry = cell__alloc(1, sizeof *entry);
	if (!entry)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an archive");
	entry->type = S_ISDIR(st->st_mode) ? CELL_TAR_FOLDER : S_ISLNK(st->st_mode) ? CELL_TAR_LINK : CELL_TAR_FILE;
	snprintf(entry->path, sizeof entry->path, "%s%s", transfer->path + transfer->from, S_ISDIR(st->st_mode) ? "/" : "");
	entry->size = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0;
	entry->mode = (unsigned)st->st_mode & 0777;
	entry->mtime = st->st_mtim.tv_sec;
	if (S_ISLNK(st->st_mode)) {
		const char *name = strrchr(transfer->path, '/');
		ssize_t n = readlinkat(dirfd(transfer->folders[transfer->depth - 1]), name ? name + 1 : transfer->path, entry->target,
				       sizeof entry->target - 1);
		if (n < 0)
			return 0; /* it is gone */
		entry->target[n] = '\0';
	}
	return cell__tar_add_head(&transfer->out, entry) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an archive") : 0;
}

static int enter_folder(struct cell__file_transfer *transfer, int dir_fd, const char *name, struct cell_error *err)
{
	if (transfer->depth == CELL_FILES_MAX_DEPTH)
		return cell_fail(err, CELL_E_LIMIT, 0, "the folder has more than %u folders in folders", CELL_FILES_MAX_DEPTH);
	int fd = cell__files_open(dir_fd, name, O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		int error = errno;
		cell__close_fd(&fd);
		return cell__files_fail(err, error, "read", transfer->path);
	}
	transfer->folders[transfer->depth] = dir;
	transfer->sizes[transfer->depth++] = strlen(transfer->path);
	return 0;
}

/* One more name of the innermost folder.  Sockets, pipes and devices are left out. */
static int pack_name(struct cell__file_transfer *transfer, const char *name, struct cell_error *err)
{
	int dir_fd = dirfd(transfer->folders[transfer->depth - 1]);
	size_t size = strlen(transfer->path);
	struct stat st;
	if (size + strlen(name) + 3 > PATH_MAX)
		return cell_fail(err, CELL_E_LIMIT, 0, "a path of the folder is longer than %d bytes", PATH_MAX - 1);
	snprintf(transfer->path + size, PATH_MAX - size, "%s%s", size > 0 ? "/" : "", name);
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
		return errno == ENOENT ? 0 : cell__files_fail(err, errno, "read", transfer->path);
	if (S_ISDIR(st.st_mode))
		return pack_item(transfer, &st, err) < 0 ? -1 : enter_folder(transfer, dir_fd, name, err);
	if (S_ISLNK(st.st_mode))
		return pack_item(transfer, &st, err);
	if (!S_ISREG(st.st_mode))
		return 0;
	transfer->fd = cell__files_open_regular(dir_fd, name, &st);
	if (transfer->fd < 0) /* gone, or exchanged */
		return errno == ENOENT || errno == EINVAL || errno == ELOOP || errno == EISDIR
			       ? 0
			       : cell__files_fail(err, errno, "read", transfer->path);
	transfer->left = (uint64_t)st.st_size;
	transfer->padding = (size_t)(-transfer->left % CELL_TAR_BLOCK);
	return pack_item(transfer, &st, err);
}

/* Adds the head of the next entry to `out`, or the end. */
static int pack_next(struct cell__file_transfer *transfer, struct cell_error *err)
{
	if (transfer->depth == 0) {
		transfer->ended = true;
		return cell__tar_add_end(&transfer->out) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an archive") : 0;
	}
	DIR *dir = transfer->folders[transfer->depth - 1];
	transfer->path[transfer->sizes[transfer->depth - 1]] = '\0';
	errno = 0;
	const struct dirent *entry = readdir(dir);
	if (!entry && errno)
		return cell__files_fail(err, errno, "read", transfer->path);
	if (!entry) {
		closedir(dir);
		transfer->depth--;
		return 0;
	}
	if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
		return 0;
	return pack_name(transfer, entry->d_name, err);
}

/* The open file's next bytes, or zeros where it has become shorter: its head has been sent. */
static ssize_t pack_content(struct cell__file_transfer *transfer, char *out, size_t max, struct cell_error *err)
{
	size_t size = transfer->left < max ? (size_t)transfer->left : max;
	ssize_t n = read(transfer->fd, out, size);
	if (n < 0 && errno == EINTR)
		return 0;
	if (n < 0)
		return cell__files_fail(err, errno, "read", transfer->path);
	if (n == 0) {
		memset(out, 0, size);
		n = (ssize_t)size;
	}
	transfer->left -= (uint64_t)n;
	return n;
}

static ssize_t pack(struct cell__file_transfer *transfer, char *out, size_t max, struct cell_error *err)
{
	size_t used = 0;
	while (used < max) {
		if (transfer->out.size > 0) {
			size_t n = transfer->out.size < max - used ? transfer->out.size : max - used;
			memcpy(out + used, transfer->out.data, n);
			cell__buf_shift(&transfer->out, n);
			used += n;
		} else if (transfer->left > 0) {
			ssize_t n = pack_content(transfer, out + used, max - used, err);
			if (n < 0)
				return -1;
			used += (size_t)n;
		} else if (transfer->padding > 0) {
			size_t n = transfer->padding < max - used ? transfer->padding : max - used;
			memset(out + used, 0, n);
			transfer->padding -= n;
			used += n;
		} else if (transfer->ended) {
			break;
		} else {
			cell__close_fd(&transfer->fd);
			if (pack_next(transfer, err) < 0)
				return -1;
		}
	}
	return (ssize_t)used;
}

/* ---- transfers ---- */

static int open_kind(struct cell__file_transfer *transfer, struct cell_error *err)
{
	int root_fd = transfer->root_fd;
	const char *path = transfer->path;
	switch (transfer->kind) {
	case CELL_TRANSFER_GET:
		transfer->fd = cell__files_open_regular(root_fd, path, &transfer->st);
		transfer->left = (uint64_t)transfer->st.st_size;
		return transfer->fd < 0 ? cell__files_fail(err, errno, "read", path) : 0;
	case CELL_TRANSFER_PACK:
		transfer->from = *path ? strlen(path) + 1 : 0;
		return enter_folder(transfer, root_fd, path, err);
	case CELL_TRANSFER_PUT:
		if (!*path)
			return cell__files_fail(err, EISDIR, "write", path);
		return placing_begin(&transfer->placing, root_fd, path, transfer->mode, err);
	case CELL_TRANSFER_UNPACK:
		break;
	}
	return make_folder(root_fd, path, err);
}

int cell__file_transfer_open(enum cell__file_transfer_kind kind, struct cell__root *root, const char *path, unsigned mode,
			     struct cell__file_transfer **ret_transfer, struct cell_error *err)
{
	struct cell__file_transfer *transfer = cell__alloc(1, sizeof *transfer);
	if (!transfer) {
		cell__root_finish(root);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a transfer");
	}
	*transfer = (struct cell__file_transfer){ .kind = kind,
						  .root_fd = cell__take_fd(&root->fd),
						  .fd = -1,
						  .placing = { .dir_fd = -1, .fd = -1 },
						  .max_bytes = root->max_bytes,
						  .mode = mode,
						  .guarded = root->guarded,
						  .out = CELL_BUF_INIT };
	cell__tar_init(&transfer->tar);
	int rc = cell__files_path(path, transfer->path, err);
	bool writes = kind == CELL_TRANSFER_PUT || kind == CELL_TRANSFER_UNPACK;
	if (rc == 0 && writes && root->guarded)
		rc = cell__files_guard(transfer->path, err);
	if (rc == 0 && root->place) {
		rc = cell__there_open(kind, root, transfer->path, mode, &transfer->there, &transfer->st, err);
	} else if (rc == 0) {
		struct cell__acting acting = cell__act_as_owner(writes ? transfer->root_fd : -1);
		rc = open_kind(transfer, err);
		cell__act_as_caller(&acting);
	}
	cell__root_finish(root);
	if (rc < 0) {
		cell__file_transfer_destroy(transfer);
		return -1;
	}
	*ret_transfer = transfer;
	return 0;
}

void cell__file_transfer_leave_out_links(struct cell__file_transfer *transfer)
{
	transfer->leaves_out_links = true;
}

size_t cell__file_transfer_left_out(const struct cell__file_transfer *transfer)
{
	return transfer->left_out;
}

void cell__file_transfer_destroy(struct cell__file_transfer *transfer)
{
	if (!transfer)
		return;
	cell__there_destroy(transfer->there);
	struct cell__acting acting = cell__act_as_owner(transfer->placing.fd >= 0 ? transfer->root_fd : -1);
	placing_drop(&transfer->placing);
	cell__act_as_caller(&acting);
	while (transfer->depth > 0)
		closedir(transfer->folders[--transfer->depth]);
	cell__close_fd(&transfer->fd);
	cell__close_fd(&transfer->root_fd);
	cell__tar_finish(&transfer->tar);
	cell__buf_finish(&transfer->out);
	free(transfer);
}

const struct stat *cell__file_transfer_stat(const struct cell__file_transfer *transfer)
{
	return &transfer->st;
}

void cell__file_transfer_seek(struct cell__file_transfer *transfer, uint64_t offset, uint64_t size)
{
	if (transfer->there) {
		cell__there_seek(transfer->there, offset, size);
		return;
	}
	(void)lseek(transfer->fd, (off_t)offset, SEEK_SET); /* a regular file */
	transfer->left = size;
}

ssize_t cell__file_transfer_read(struct cell__file_transfer *transfer, char *out, size_t max, struct cell_error *err)
{
	if (transfer->there)
		return cell__there_read(transfer->there, out, max, err);
	if (transfer->kind == CELL_TRANSFER_PACK)
		return pack(transfer, out, max, err);
	size_t size = transfer->left < max ? (size_t)transfer->left : max;
	ssize_t n;
	do
		n = size > 0 ? read(transfer->fd, out, size) : 0;
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return cell__files_fail(err, errno, "read", transfer->path);
	if (n == 0 && size > 0)
		return cell_fail(err, CELL_E_CONFLICT, 0, "the file has become shorter while it was read");
	transfer->left -= (uint64_t)n;
	return n;
}

int cell__file_transfer_write(struct cell__file_transfer *transfer, const char *bytes, size_t size, struct cell_error *err)
{
	if (transfer->there)
		return cell__there_write(transfer->there, bytes, size, err);
	struct cell__acting acting = cell__act_as_owner(transfer->root_fd);
	int rc = transfer->kind == CELL_TRANSFER_UNPACK ? unpack(transfer, bytes, size, err) : write_content(transfer, bytes, size, err);
	cell__act_as_caller(&acting);
	return rc;
}

int cell__file_transfer_mark(struct cell__file_transfer *transfer, const json_t *marks, struct cell_error *err)
{
	const char *name;
	json_t *value;
	int rc = 0;
	if (transfer->there)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "the workspace is on another server, which keeps no metadata of files");
	struct cell__acting acting = cell__act_as_owner(transfer->root_fd);
	json_object_foreach((json_t *)marks, name, value)
		rc = rc < 0 ? rc : cell__files_mark(transfer->placing.fd, name, json_string_value(value), err);
	cell__act_as_caller(&acting);
	return rc;
}

int cell__file_transfer_end(struct cell__file_transfer *transfer, struct cell_error *err)
{
	if (transfer->there)
		return cell__there_end(transfer->there, err);
	if (transfer->kind == CELL_TRANSFER_UNPACK)
		return cell__tar_is_whole(&transfer->tar) ? 0 : cell_fail(err, CELL_E_INVALID, 0, "the archive has no end: it was cut off");
	struct cell__acting acting = cell__act_as_owner(transfer->root_fd);
	int rc = placing_end(&transfer->placing, transfer->path, err);
	cell__act_as_caller(&acting);
	return rc;
}
