#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/memory.h"

#define READ_BYTES 16384 /* if the size is unknown, or was wrong */

int cell__fd_read_all(int fd, size_t max, struct cell__buf *out)
{
	struct stat st;
	size_t left = max + 1, want = READ_BYTES;
	/* A file with a known size is read into memory of that size; one more byte detects its end. */
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
		want = (size_t)st.st_size + 1;
	while (left > 0) {
		if (want > left)
			want = left;
		if (cell__buf_reserve(out, want) < 0) {
			errno = ENOMEM;
			return -1;
		}
		ssize_t n = read(fd, out->data + out->size, want);
		if (n < 0 && errno == EINTR)
			continue;
		if (n >= 0) {
			out->size += (size_t)n;
			out->data[out->size] = '\0';
		}
		if (n <= 0)
			return n < 0 ? -1 : 0;
		left -= (size_t)n;
		want = want > (size_t)n ? want - (size_t)n : READ_BYTES;
	}
	errno = EFBIG;
	return -1;
}

int cell__file_read_fd(int fd, size_t max, struct cell__buf *out, struct stat *ret_stat)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return -1;
	if (!S_ISREG(st.st_mode)) {
		errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
		return -1;
	}
	if (cell__fd_read_all(fd, max, out) < 0)
		return -1;
	if (ret_stat)
		*ret_stat = st;
	return 0;
}

int cell__file_read(int dir_fd, const char *path, unsigned flags, size_t max, struct cell__buf *out, struct stat *ret_stat)
{
	/* O_NONBLOCK: opening a FIFO must not wait for its writer. */
	int how = O_RDONLY | O_CLOEXEC | O_NOCTTY | (flags & CELL_FILE_NO_LINK ? O_NOFOLLOW : 0) | (flags & CELL_FILE_ANY ? 0 : O_NONBLOCK);
	CELL_AUTO_FD int fd = openat(dir_fd, path, how);
	if (fd < 0)
		return -1;
	if (!(flags & CELL_FILE_ANY))
		return cell__file_read_fd(fd, max, out, ret_stat);
	if (ret_stat && fstat(fd, ret_stat) < 0)
		return -1;
	return cell__fd_read_all(fd, max, out);
}

int cell__file_fail(struct cell_error *err, const char *what, const char *path, size_t max, int sys)
{
	const char *space = what ? " " : "";
	what = what ? what : "";
	switch (sys) {
	case EFBIG:
		return cell_fail(err, CELL_E_LIMIT, 0, "%s%s%.120s is larger than %zu bytes", what, space, path, max);
	case EISDIR:
		return cell_fail(err, CELL_E_IO, 0, "%s%s%.120s is a directory", what, space, path);
	case EINVAL:
		return cell_fail(err, CELL_E_IO, 0, "%s%s%.120s is not a regular file", what, space, path);
	case ENOMEM:
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for %s%s%.120s", what, space, path);
	default:
		return cell_fail(err, sys == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, sys, "%s%s%.120s", what, space, path);
	}
}

int cell__file_load(const char *what, const char *path, unsigned flags, size_t max, struct cell__buf *out, struct cell_error *err)
{
	if (cell__file_read(AT_FDCWD, path, flags, max, out, NULL) < 0)
		return cell__file_fail(err, what, path, max, errno);
	return 0;
}

static bool same_time(const struct timespec *one, const struct timespec *other)
{
	return one->tv_sec == other->tv_sec && one->tv_nsec == other->tv_nsec;
}

bool cell__file_same(const struct stat *one, const struct stat *other)
{
	return one->st_ino == other->st_ino && one->st_dev == other->st_dev && one->st_size == other->st_size &&
	       same_time(&one->st_mtim, &other->st_mtim) && same_time(&one->st_ctim, &other->st_ctim);
}

int cell__fd_write_all(int fd, const void *bytes, size_t size)
{
	const char *at = bytes;
	while (size > 0) {
		ssize_t n = write(fd, at, size);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		at += n;
		size -= (size_t)n;
	}
	return 0;
}
