/* Single names in open folders: listing, comparing and copying what code made. */
#define _GNU_SOURCE
#include "layer/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "base/file.h"

#define OPAQUE "user.overlay.opaque"
#define ORIGIN "user.overlay.origin"
#define BLOCK_BYTES (256u * 1024u)

/* ---- names ---- */

void cell__names_finish(struct cell__names *names)
{
	for (size_t i = 0; i < names->count; i++)
		free(names->items[i]);
	free(names->items);
	*names = (struct cell__names){ 0 };
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_name(struct cell__names *names, const char *name)
{
	if (names->count == CELL_LAYER_MAX_NAMES) {
		errno = E2BIG;
		return -1;
	}
	if (names->count == names->room) {
		size_t room = names->room ? 2 * names->room : 64;
		char **more = cell__realloc(names->items, room * sizeof *more);
		if (!more) {
			errno = ENOMEM;
			return -1;
		}
		names->items = more;
		names->room = room;
	}
	if (!(names->items[names->count] = cell__strdup(name))) {
		errno = ENOMEM;
		return -1;
	}
	names->count++;
	return 0;
}

static void sort_once(struct cell__names *names)
{
	size_t n = 0;
	if (names->count == 0)
		return;
	qsort(names->items, names->count, sizeof *names->items, compare_names);
	for (size_t i = 1; i < names->count; i++)
		if (strcmp(names->items[n], names->items[i]) == 0)
			free(names->items[i]);
		else
			names->items[++n] = names->items[i];
	names->count = n + 1;
}

int cell__names_add(struct cell__names *names, int dir_fd)
{
	CELL_AUTO_FD int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* with a position of its own */
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	int rc = 0;
	if (!dir)
		return -1;
	(void)cell__take_fd(&fd);
	for (;;) {
		errno = 0;
		const struct dirent *entry = readdir(dir);
		if (!entry) {
			rc = errno ? -1 : 0;
			break;
		}
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (add_name(names, entry->d_name) < 0) {
			rc = -1;
			break;
		}
	}
	int error = errno;
	closedir(dir);
	sort_once(names);
	errno = error;
	return rc;
}

/* ---- opening ---- */

static int open_beneath(int dir_fd, const char *name, uint64_t flags)
{
	struct open_how how = { .flags = flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS };
	return (int)syscall(SYS_openat2, dir_fd, name, &how, sizeof how);
}

int cell__open_folder(int dir_fd, const char *name)
{
	return open_beneath(dir_fd, name, O_RDONLY | O_DIRECTORY);
}

int cell__open_regular(int dir_fd, const char *name)
{
	struct stat st;
	/* A device could act when it is opened: look before, and again in case it was exchanged. */
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -1;
	if (!S_ISREG(st.st_mode)) {
		errno = EINVAL;
		return -1;
	}
	CELL_AUTO_FD int fd = open_beneath(dir_fd, name, O_RDONLY | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -1;
	if (!S_ISREG(st.st_mode)) {
		errno = EINVAL;
		return -1;
	}
	return cell__take_fd(&fd);
}

int cell__stat_at(int dir_fd, const char *name, struct stat *ret_stat)
{
	if (dir_fd < 0)
		return 0;
	if (fstatat(dir_fd, name, ret_stat, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0)
		return 1;
	return errno == ENOENT ? 0 : -1;
}

bool cell__is_opaque(int dir_fd)
{
	char value[4];
	return fgetxattr(dir_fd, OPAQUE, value, sizeof value) == 1 && value[0] == 'y';
}

int cell__set_opaque(int dir_fd, const char *name)
{
	CELL_AUTO_FD int fd = cell__open_folder(dir_fd, name);
	return fd < 0 ? -1 : fsetxattr(fd, OPAQUE, "y", 1, 0);
}

bool cell__has_origin(int dir_fd, const char *name)
{
	CELL_AUTO_FD int fd = cell__open_regular(dir_fd, name);
	return fd >= 0 && fgetxattr(fd, ORIGIN, NULL, 0) >= 0; /* it may be empty */
}

/* ---- contents ---- */

static ssize_t read_block(int fd, char *block)
{
	size_t size = 0;
	while (size < BLOCK_BYTES) {
		ssize_t n = read(fd, block + size, BLOCK_BYTES - size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (n == 0)
			break;
		size += (size_t)n;
	}
	return (ssize_t)size;
}

static int same_links(int a_dir, int b_dir, const char *name)
{
	char a[PATH_MAX], b[PATH_MAX];
	ssize_t n = readlinkat(a_dir, name, a, sizeof a), m = readlinkat(b_dir, name, b, sizeof b);
	return n < 0 || m < 0 ? -1 : n == m && memcmp(a, b, (size_t)n) == 0;
}

int cell__same_content(int a_dir, int b_dir, const char *name, const struct stat *a, const struct stat *b)
{
	if ((a->st_mode & S_IFMT) != (b->st_mode & S_IFMT))
		return 0;
	if (S_ISLNK(a->st_mode))
		return same_links(a_dir, b_dir, name);
	if (!S_ISREG(a->st_mode))
		return a->st_rdev == b->st_rdev;
	if (a->st_size != b->st_size || a->st_size > (off_t)CELL_LAYER_COMPARE_BYTES)
		return 0;
	CELL_AUTO_FD int a_fd = cell__open_regular(a_dir, name);
	CELL_AUTO_FD int b_fd = cell__open_regular(b_dir, name);
	CELL_AUTO_FREE char *blocks = cell__alloc(2, BLOCK_BYTES);
	if (a_fd < 0 || b_fd < 0 || !blocks)
		return -1;
	/* A file that grows meanwhile is read no further than it was long. */
	for (off_t at = 0; at <= a->st_size; at += BLOCK_BYTES) {
		ssize_t n = read_block(a_fd, blocks), m = read_block(b_fd, blocks + BLOCK_BYTES);
		if (n < 0 || m < 0)
			return -1;
		if (n != m || memcmp(blocks, blocks + BLOCK_BYTES, (size_t)n) != 0)
			return 0;
		if (n < (ssize_t)BLOCK_BYTES)
			return 1;
	}
	return 0;
}

int cell__copy_content(int from_fd, int to_fd)
{
	struct stat st;
	if (fstat(from_fd, &st) < 0)
		return -1;
	if (st.st_size > 0 && ioctl(to_fd, FICLONE, from_fd) == 0)
		return 0;
	/* No further than it was long: a file that grows as fast as it is read has no end. */
	off_t left = st.st_size;
	while (left > 0) {
		ssize_t n = copy_file_range(from_fd, NULL, to_fd, NULL, (size_t)left, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP))
			break;
		if (n < 0)
			return -1;
		if (n == 0)
			return 0;
		left -= n;
	}
	CELL_AUTO_FREE char *block = left > 0 ? cell__alloc(1, BLOCK_BYTES) : NULL;
	if (left > 0 && !block) {
		errno = ENOMEM;
		return -1;
	}
	while (left > 0) {
		ssize_t n = read(from_fd, block, left < (off_t)BLOCK_BYTES ? (size_t)left : BLOCK_BYTES);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -1 : 0;
		if (cell__fd_write_all(to_fd, block, (size_t)n) < 0)
			return -1;
		left -= n;
	}
	return 0;
}

/* ---- copying ---- */

static int copy_link(int from_dir, const char *name, int to_dir, const char *to_name)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(from_dir, name, target, sizeof target - 1);
	if (n < 0)
		return -1;
	target[n] = '\0';
	return symlinkat(target, to_dir, to_name);
}

static int copy_file(int from_dir, const char *name, const struct stat *st, int to_dir, const char *to_name)
{
	CELL_AUTO_FD int from = cell__open_regular(from_dir, name);
	CELL_AUTO_FD int to = from < 0 ? -1 : openat(to_dir, to_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	const struct timespec times[2] = { st->st_atim, st->st_mtim };
	if (to < 0 || cell__copy_content(from, to) < 0 || fchmod(to, st->st_mode & 0777) < 0)
		return -1;
	return futimens(to, times);
}

int cell__copy_name(int from_dir, const char *name, const struct stat *st, int to_dir, const char *to_name, bool overlay)
{
	if (S_ISREG(st->st_mode))
		return copy_file(from_dir, name, st, to_dir, to_name);
	if (S_ISLNK(st->st_mode))
		return copy_link(from_dir, name, to_dir, to_name);
	if (S_ISFIFO(st->st_mode))
		return mkfifoat(to_dir, to_name, st->st_mode & 0777);
	if (overlay && cell__is_whiteout(st))
		return mknodat(to_dir, to_name, S_IFCHR, 0);
	return 0; /* a socket is of no use without its process, and a device none of ours to make */
}

static int fail_copy(struct cell_error *err, const char *name)
{
	CELL_AUTO_BUF struct cell__buf shown = CELL_BUF_INIT;
	int sys = errno;
	(void)cell__path_shown(name, &shown);
	return cell_fail(err,
			 sys == ENOSPC || sys == EDQUOT ? CELL_E_LIMIT
			 : sys == ENOMEM                ? CELL_E_NOMEM
							: CELL_E_IO,
			 sys, "copy \"%.120s\" of the workspace", shown.data ? shown.data : "?");
}

static int copy_entry(struct cell__copying *copying, int from_fd, int to_fd, const char *name, struct cell_error *err)
{
	struct stat st;
	int found = cell__stat_at(from_fd, name, &st);
	if (found <= 0)
		return found < 0 ? fail_copy(err, name) : 0;
	copying->files++;
	copying->bytes += (uint64_t)st.st_blocks * 512;
	if ((copying->max_bytes && copying->bytes > copying->max_bytes) || (copying->max_files && copying->files > copying->max_files))
		return cell_fail(err, CELL_E_LIMIT, 0, "copying the workspace takes more than the limit on disk space allows");
	if (!S_ISDIR(st.st_mode))
		/* Gone meanwhile, or another kind of file now. */
		return cell__copy_name(from_fd, name, &st, to_fd, name, copying->overlay) < 0 && errno != ENOENT ? fail_copy(err, name) : 0;
	if (copying->depth >= CELL_LAYER_MAX_DEPTH)
		return cell_fail(err, CELL_E_LIMIT, 0, "the workspace has more than %u folders in folders", CELL_LAYER_MAX_DEPTH);
	CELL_AUTO_FD int from = cell__open_folder(from_fd, name);
	if (from < 0)
		return errno == ENOENT || errno == EXDEV ? 0 : fail_copy(err, name); /* mounts are left out */
	if (mkdirat(to_fd, name, 0700) < 0)
		return fail_copy(err, name);
	CELL_AUTO_FD int to = cell__open_folder(to_fd, name);
	if (to < 0 || (copying->overlay && cell__is_opaque(from) && fsetxattr(to, OPAQUE, "y", 1, 0) < 0))
		return fail_copy(err, name);
	copying->depth++;
	int rc = cell__copy_folder(copying, from, to, err);
	copying->depth--;
	if (rc == 0 && fchmod(to, st.st_mode & 0777) < 0)
		return fail_copy(err, name);
	return rc;
}

int cell__copy_folder(struct cell__copying *copying, int from_fd, int to_fd, struct cell_error *err)
{
	struct cell__names names = { 0 };
	int rc = cell__names_add(&names, from_fd) < 0 ? fail_copy(err, ".") : 0;
	for (size_t i = 0; rc == 0 && i < names.count; i++)
		rc = copy_entry(copying, from_fd, to_fd, names.items[i], err);
	cell__names_finish(&names);
	return rc;
}
