/*
 * Depth costs nothing: a folder inside a folder is first moved up to the top, under a name of ours, and is emptied when its
 * turn comes.  So there are never more than two descriptors open, and no path becomes longer than a name.
 *
 *     top/a/b/c   ──empty a: b moves up──▶   top/0, top/0/c   ──empty 0: c moves up──▶   top/1   ──▶   top
 *
 * Names are only looked up in open descriptors.  A folder that is replaced by a link in the meantime is refused by O_NOFOLLOW
 * and unlinked as a link in the next round.
 */
#define _GNU_SOURCE
#include "base/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/base.h"
#include "base/hole.h"

#define MAX_US (300ll * 1000000) /* against a process that makes entries as fast as we remove them */

struct removal {
	int top_fd;
	unsigned number; /* of the next name */
	int64_t until_us;
	int error;       /* of the last entry that could not be removed; 0: none */
};

/* A folder that is neither a link nor a mount; flags: O_PATH needs no rights. */
static int open_folder(int dir_fd, const char *name, int flags)
{
	const struct open_how how = { .flags = (unsigned)(flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
				      .resolve = RESOLVE_NO_XDEV | RESOLVE_NO_SYMLINKS };
	int fd = dir_fd == AT_FDCWD ? -1 : (int)syscall(SYS_openat2, dir_fd, name, &how, sizeof(how));

	if (dir_fd == AT_FDCWD)
		return openat(dir_fd, name, flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	/* Kernels before 5.6, and filters that cannot read the struct. */
	if (fd < 0 && (errno == ENOSYS || errno == EPERM)) {
		struct stat st, parent;

		fd = openat(dir_fd, name, flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd >= 0 && (fstat(fd, &st) < 0 || fstat(dir_fd, &parent) < 0 || st.st_dev != parent.st_dev)) {
			cell__close_fd(&fd);
			errno = EXDEV;
		}
	}
	return fd;
}

/* Our own folder without rights gets them, by a descriptor: a name could be another's by now. */
static void give_rights(int dir_fd, const char *name)
{
	CELL_AUTO_FD int fd = open_folder(dir_fd, name, O_PATH);
	char path[32];
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 0700) == 0700)
		return;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	(void)chmod(path, 0700);
}

static DIR *open_to_empty(int dir_fd, const char *name)
{
	int fd = is_hole("tree") ? -1 : open_folder(dir_fd, name, O_RDONLY);
	struct stat st;
	DIR *dir;

	if (fd < 0 && errno == EACCES) {
		give_rights(dir_fd, name);
		fd = open_folder(dir_fd, name, O_RDONLY);
	}
	if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & 0700) != 0700)
		(void)fchmod(fd, 0700); /* it may be read-only */
	dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		int saved = errno;

		cell__close_fd(&fd);
		errno = saved;
	}
	return dir;
}

/* Moves a folder to the top under a new name, if possible. */
static int move_up(struct removal *removal, int dir_fd, const char *name)
{
	char up[32];

	for (int tries = 0; tries < 3;) {
		snprintf(up, sizeof(up), ".workcell-removed-%u", removal->number++);
		if (renameat2(dir_fd, name, removal->top_fd, up, RENAME_NOREPLACE) == 0)
			return 0;
		if (errno == EEXIST)
			continue; /* the code knows our names */
		if (errno == EINVAL) /* this file system has no such flag; a file of this name exists only by chance */
			return renameat(dir_fd, name, removal->top_fd, up);
		if (errno != EACCES)
			return -1;
		give_rights(dir_fd, name); /* ".." in it changes */
		tries++;
	}
	return -1;
}

/* 1: an entry was removed, 0: none could be. */
static int remove_entry(struct removal *removal, int dir_fd, const char *name)
{
	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 1;
	if (errno != EISDIR && errno != EPERM) {
		removal->error = errno;
		return 0;
	}
	if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0)
		return 1;
	if (errno == ENOTEMPTY && dir_fd != removal->top_fd && move_up(removal, dir_fd, name) == 0)
		return 1;
	removal->error = errno;
	return 0;
}

static bool is_dots(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/* Removes all that can be removed; true: there was some. Entries that move during the listing may be missed, so it is listed again. */
static bool empty(struct removal *removal, DIR *dir)
{
	struct dirent *entry;
	bool went, changed = false;

	do {
		went = false;
		rewinddir(dir);
		while ((entry = readdir(dir)))
			went |= !is_dots(entry->d_name) && remove_entry(removal, dirfd(dir), entry->d_name);
		changed |= went;
	} while (went && cell__now_us() < removal->until_us);
	return changed;
}

/* A folder of the top that has something in it.  True: something changed. */
static bool empty_one(struct removal *removal, const char *name)
{
	DIR *dir = open_to_empty(removal->top_fd, name);
	bool changed;

	if (!dir) {
		if (errno == ENOENT || ((errno == ENOTDIR || errno == ELOOP) && unlinkat(removal->top_fd, name, 0) == 0))
			return true;
		removal->error = errno;
		return false;
	}
	changed = empty(removal, dir);
	closedir(dir);
	return unlinkat(removal->top_fd, name, AT_REMOVEDIR) == 0 || changed;
}

static void empty_top(struct removal *removal, DIR *top)
{
	struct dirent *entry;
	bool changed;

	do {
		changed = false;
		removal->error = 0;
		rewinddir(top);
		while ((entry = readdir(top)) && cell__now_us() < removal->until_us) {
			if (!is_dots(entry->d_name))
				changed |= remove_entry(removal, removal->top_fd, entry->d_name) || empty_one(removal, entry->d_name);
		}
	} while (changed && cell__now_us() < removal->until_us);
}

int cell__tree_remove(int dir_fd, const char *name)
{
	struct removal removal = { .top_fd = -1, .until_us = cell__now_us() + MAX_US };
	DIR *top;

	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -1;
	top = open_to_empty(dir_fd, name);
	if (!top)
		return -1;
	removal.top_fd = dirfd(top);
	empty_top(&removal, top);
	closedir(top);
	if (unlinkat(dir_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
		return 0;
	if (removal.error)
		errno = removal.error;
	return -1;
}

int cell_remove_tree(const char *path, struct cell_error *err)
{
	if (cell__require(err, path) < 0)
		return -1;
	return cell__tree_remove(AT_FDCWD, path) < 0 ? cell_fail(err, CELL_E_IO, errno, "remove %.160s", path) : 0;
}
