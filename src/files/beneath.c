/* Names below an open folder that hostile code changes: looked up, described, made and removed. */
#define _GNU_SOURCE
#include "files/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/hole.h"
#include "base/protected.h"
#include "base/tree.h"
#include "layer/layer.h"
#include "wire/shown.h"

#define BENEATH (RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV)
#define TRIES 64 /* of a lookup that a rename disturbed */

/* ---- paths ---- */

int cell__files_path(const char *given, char ret_path[static PATH_MAX], struct cell_error *err)
{
	size_t size = 0;
	if (given[0] == '/')
		return cell_fail(err, CELL_E_INVALID, 0, "a path is relative to the workspace; it must not begin with \"/\"");
	for (const char *part = given; *part;) {
		size_t n = strcspn(part, "/");
		if (n == 2 && part[0] == '.' && part[1] == '.')
			return cell_fail(err, CELL_E_INVALID, 0, "a path must not have a part \"..\"");
		if (n > NAME_MAX || size + n + 2 > PATH_MAX)
			return cell_fail(err, CELL_E_INVALID, 0, "a path may have %d bytes, and each of its parts %d", PATH_MAX - 1,
					 NAME_MAX);
		if (n > 0 && !(n == 1 && part[0] == '.')) {
			if (size > 0)
				ret_path[size++] = '/';
			memcpy(ret_path + size, part, n);
			size += n;
		}
		part += n + (part[n] == '/');
	}
	ret_path[size] = '\0';
	return 0;
}

int cell__files_fail(struct cell_error *err, int sys, const char *verb, const char *path)
{
	char *shown = cell_shown_text(*path ? path : ".", *path ? strlen(path) : 1, CELL_SHOWN_LINE);
	int code = CELL_E_IO;
	const char *why = NULL;
	switch (sys) {
	case ENOENT:
		code = CELL_E_NOT_FOUND;
		why = "the file or folder does not exist";
		break;
	case ENOTDIR:
		code = CELL_E_NOT_FOUND;
		why = "a part of the path is not a folder";
		break;
	case ELOOP:
	case EXDEV:
		code = CELL_E_FORBIDDEN;
		why = "it leads through a link or to another file system";
		break;
	case EACCES:
	case EPERM:
	case EROFS:
		code = CELL_E_FORBIDDEN;
		why = sys == EROFS ? "the file system is read-only" : "permission denied";
		break;
	case EISDIR:
		code = CELL_E_EXISTS;
		why = "it is a folder";
		break;
	case EEXIST:
		code = CELL_E_EXISTS;
		why = "there is a file of that name";
		break;
	case ENOTEMPTY:
		code = CELL_E_EXISTS;
		why = "the folder is not empty";
		break;
	case EINVAL:
		code = CELL_E_INVALID;
		why = "it is not a regular file";
		break;
	case EAGAIN:
		code = CELL_E_BUSY;
		why = "the code is changing it";
		break;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		code = CELL_E_LIMIT;
		why = "the file system is full, or a limit on its use is reached";
		break;
	case ENOSYS:
		code = CELL_E_UNSUPPORTED;
		why = "it needs openat2(), Linux 5.6";
		break;
	}
	cell_fail(err, code, sys, "cannot %s \"%.120s\"%s%s", verb, shown ? shown : "?", why ? ": " : "", why ? why : "");
	free(shown);
	return -1;
}

int cell__files_guard(const char *path, struct cell_error *err)
{
	if (!cell__protected_path(path))
		return 0;
	return cell_fail(err, CELL_E_FORBIDDEN, EACCES,
			 "a name in the path is protected: a program of the host would run or obey the file");
}

/* ---- lookups ---- */

int cell__files_open(int root_fd, const char *path, int flags)
{
	/* With O_PATH a link as the last part is opened itself; in place of a folder it is refused (ELOOP). */
	int link = flags & O_DIRECTORY ? 0 : O_NOFOLLOW;
	struct open_how how = { .flags = (uint64_t)(unsigned)(flags | link | O_CLOEXEC), .resolve = is_hole("file-links") ? 0 : BENEATH };
	for (int i = 0; i < TRIES; i++) {
		int fd = (int)syscall(SYS_openat2, root_fd, *path ? path : ".", &how, sizeof how);
		if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
			return fd;
	}
	return -1;
}

static int make_folders(int root_fd, const char *path, size_t size)
{
	CELL_AUTO_FD int at = fcntl(root_fd, F_DUPFD_CLOEXEC, 3);
	char name[NAME_MAX + 1];
	for (size_t i = 0; i < size && at >= 0;) {
		size_t n = strcspn(path + i, "/");
		n = n < size - i ? n : size - i;
		memcpy(name, path + i, n);
		name[n] = '\0';
		int next = cell__files_open(at, name, O_PATH | O_DIRECTORY);
		if (next < 0 && errno == ENOENT && (mkdirat(at, name, 0755) == 0 || errno == EEXIST))
			next = cell__files_open(at, name, O_PATH | O_DIRECTORY);
		int error = errno;
		cell__close_fd(&at);
		errno = error;
		at = next;
		i += n + 1;
	}
	return cell__take_fd(&at);
}

int cell__files_make_path(int root_fd, const char *path)
{
	return make_folders(root_fd, path, strlen(path));
}

int cell__files_parent(int root_fd, const char *path, bool makes, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char parent[PATH_MAX];
	size_t size = slash ? (size_t)(slash - path) : 0;
	memcpy(parent, path, size);
	parent[size] = '\0';
	*ret_name = slash ? slash + 1 : path;
	int fd = cell__files_open(root_fd, parent, O_PATH | O_DIRECTORY);
	return fd < 0 && errno == ENOENT && makes ? make_folders(root_fd, path, size) : fd;
}

int cell__files_open_regular(int root_fd, const char *path, struct stat *ret_stat)
{
	char self[40];
	CELL_AUTO_FD int found = cell__files_open(root_fd, path, O_PATH);
	if (found < 0 || fstat(found, ret_stat) < 0)
		return -1;
	if (!S_ISREG(ret_stat->st_mode)) {
		errno = S_ISDIR(ret_stat->st_mode) ? EISDIR : S_ISLNK(ret_stat->st_mode) ? ELOOP : EINVAL;
		return -1;
	}
	/* The file that was checked, whatever its name is now.  O_NONBLOCK: a lease of the code must not delay us. */
	snprintf(self, sizeof self, "/proc/self/fd/%d", found);
	return open(self, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

/* ---- descriptions ---- */

static const char *word_of(mode_t mode)
{
	return S_ISREG(mode)    ? "file"
	       : S_ISDIR(mode)  ? "folder"
	       : S_ISLNK(mode)  ? "link"
	       : S_ISFIFO(mode) ? "fifo"
	       : S_ISSOCK(mode) ? "socket"
				: "device";
}

/* Bytes that JSON cannot hold are shown as \xNN: such a file is listed, and has no path that a client could give. */
static json_t *text_of(const char *bytes)
{
	size_t size = strlen(bytes);
	if (cell__utf8_ok(bytes, size))
		return json_stringn(bytes, size);
	char *shown = cell_shown_text(bytes, size, CELL_SHOWN_ASCII);
	json_t *text = shown ? json_string(shown) : NULL;
	free(shown);
	return text;
}

static json_t *item_of(const char *key, const char *name, const struct stat *st)
{
	char mode[8];
	snprintf(mode, sizeof mode, "%03o", (unsigned)st->st_mode & 0777);
	return json_pack("{s:o, s:s, s:I, s:s, s:f}", key, text_of(name), "type", word_of(st->st_mode), "size",
			 S_ISREG(st->st_mode) ? (json_int_t)st->st_size : (json_int_t)0, "mode", mode, "mtime",
			 (double)st->st_mtim.tv_sec + (double)st->st_mtim.tv_nsec / 1e9);
}

static int add_target(json_t *item, int dir_fd, const char *name)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(dir_fd, name, target, sizeof target - 1);
	if (n < 0)
		return -1;
	target[n] = '\0';
	return json_object_set_new(item, "target", text_of(target));
}

static int compare_items(const void *a, const void *b)
{
	return strcmp(json_string_value(json_object_get(*(json_t *const *)a, "name")),
		      json_string_value(json_object_get(*(json_t *const *)b, "name")));
}

/* Sorted; NULL with errno. */
static json_t *list_folder(int dir_fd, bool *ret_truncated)
{
	CELL_AUTO_FREE json_t **items = cell__alloc(CELL_FILES_MAX_LISTED, sizeof *items);
	int fd = cell__files_open(dir_fd, "", O_RDONLY | O_DIRECTORY);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	struct stat st;
	size_t n = 0;
	json_t *list = NULL;
	if (!dir || !items) {
		cell__close_fd(&fd);
		return NULL;
	}
	while ((entry = readdir(dir))) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (n == CELL_FILES_MAX_LISTED) {
			*ret_truncated = true;
			break;
		}
		/* One that is gone meanwhile is left out. */
		if (fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
			continue;
		if (!(items[n] = item_of("name", entry->d_name, &st)))
			break;
		if (S_ISLNK(st.st_mode))
			(void)add_target(items[n], dir_fd, entry->d_name);
		n++;
	}
	closedir(dir);
	qsort(items, n, sizeof *items, compare_items);
	list = json_array();
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, items[i]);
	return list;
}

json_t *cell__files_describe(int root_fd, const char *path, struct cell_error *err)
{
	struct stat st;
	bool truncated = false;
	CELL_AUTO_FD int fd = cell__files_open(root_fd, path, O_PATH);
	if (fd < 0 || fstat(fd, &st) < 0) {
		cell__files_fail(err, errno, "look at", path);
		return NULL;
	}
	json_t *item = item_of("path", path, &st);
	if (!item) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a description");
		return NULL;
	}
	if (S_ISLNK(st.st_mode))
		(void)add_target(item, fd, ""); /* of the link that is open */
	if (!S_ISDIR(st.st_mode))
		return item;
	json_t *entries = list_folder(fd, &truncated);
	if (!entries) {
		cell__files_fail(err, errno, "list", path);
		json_decref(item);
		return NULL;
	}
	json_object_set_new(item, "entries", entries);
	json_object_set_new(item, "truncated", json_boolean(truncated));
	return item;
}

/* ---- changes ---- */

int cell__files_make_folder(int root_fd, const char *path, struct cell_error *err)
{
	struct cell__acting acting = cell__act_as_owner(root_fd);
	CELL_AUTO_FD int fd = cell__files_make_path(root_fd, path);
	int error = errno;
	cell__act_as_caller(&acting);
	return fd < 0 ? cell__files_fail(err, error == ENOTDIR ? EEXIST : error, "make the folder", path) : 0;
}

int cell__files_move(int root_fd, const char *from, const char *to, struct cell_error *err)
{
	const char *old_name = NULL, *new_name = NULL;
	int error = 0;
	if (!*from || !*to)
		return cell_fail(err, CELL_E_INVALID, 0, "the workspace itself cannot be moved");
	struct cell__acting acting = cell__act_as_owner(root_fd);
	CELL_AUTO_FD int old_fd = cell__files_parent(root_fd, from, false, &old_name);
	CELL_AUTO_FD int new_fd = old_fd < 0 ? -1 : cell__files_parent(root_fd, to, true, &new_name);
	if (old_fd < 0 || new_fd < 0 || renameat(old_fd, old_name, new_fd, new_name) < 0)
		error = errno;
	cell__act_as_caller(&acting);
	return error ? cell__files_fail(err, error, "move", from) : 0;
}

int cell__files_remove(int root_fd, const char *path, bool recursive, struct cell_error *err)
{
	const char *name = NULL;
	struct stat st;
	int error = 0;
	if (!*path)
		return cell_fail(err, CELL_E_INVALID, 0, "the workspace itself cannot be removed");
	CELL_AUTO_FD int dir_fd = cell__files_parent(root_fd, path, false, &name);
	struct cell__acting acting = cell__act_as_owner(root_fd);
	/* The removal of a tree is content with one that is not there. */
	if (dir_fd < 0 || fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		error = errno;
	else if (recursive ? cell__tree_remove(dir_fd, name) < 0 : unlinkat(dir_fd, name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0)
		error = errno;
	cell__act_as_caller(&acting);
	return error ? cell__files_fail(err, error, "remove", path) : 0;
}
