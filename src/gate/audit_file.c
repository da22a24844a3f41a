/*
 * The file of the audit log, as several processes share it. Everything here may block and belongs on libuv's pool.
 *
 * The lock is on the file itself. After taking it, a process checks that the path still names that file; if not, the file was rotated (or
 * removed) in the meantime, and the process opens and locks the new one instead. The last step of a rotation gives the file its new name,
 * so the path names one file at a time, and only the holder of its lock rotates.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>

#include "gate/audit.h"

#define LOCK_TRIES 100 /* files that were rotated away under us, one after another */

void cell__audit_file_init(struct cell__audit_file *file, const char *path)
{
	*file = (struct cell__audit_file){ .path = cell__strdup(path), .fd = -1 };
}

void cell__audit_file_finish(struct cell__audit_file *file)
{
	cell__close_fd(&file->fd);
	free(file->path);
	file->path = NULL;
}

/* So that the name of a new file survives, and not only its content. */
static int sync_dir(const struct cell__audit_file *file)
{
	CELL_AUTO_FREE char *copy = cell__strdup(file->path);
	if (!copy)
		return ENOMEM;
	CELL_AUTO_FD int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 || fsync(fd) < 0 ? errno : 0;
}

int cell__audit_file_open(struct cell__audit_file *file)
{
	struct stat st;
	/* A link would be renamed in place of its file; a pipe or a device must not block us. */
	CELL_AUTO_FD int fd = open(file->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
	if (fd < 0 || fstat(fd, &st) < 0)
		return errno;
	if (!S_ISREG(st.st_mode))
		return EINVAL;
	file->is_new = st.st_size == 0;
	file->dev = st.st_dev;
	file->ino = st.st_ino;
	file->end = 0;
	file->fd = cell__take_fd(&fd);
	return 0;
}

static int lock(int fd)
{
	int64_t until_us = cell__now_us() + CELL__AUDIT_LOCK_MS * 1000;
	struct timespec pause = { .tv_nsec = 1000000 };
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			return errno;
		if (cell__now_us() > until_us)
			return ETIMEDOUT;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 20000000)
			pause.tv_nsec += pause.tv_nsec / 2;
	}
	return 0;
}

/* Opens where needed and locks the file that the path names. */
static int lock_live(struct cell__audit_file *file)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		struct stat st;
		int rc = file->fd < 0 ? cell__audit_file_open(file) : 0;
		if (rc == 0)
			rc = lock(file->fd);
		if (rc)
			return rc;
		if (lstat(file->path, &st) == 0 && st.st_dev == file->dev && st.st_ino == file->ino)
			return 0;
		if (file->sync && fdatasync(file->fd) < 0) /* we must still sync our own writes */
			return errno;
		cell__close_fd(&file->fd); /* and the lock with it */
	}
	return EBUSY;
}

static void unlock(struct cell__audit_file *file)
{
	if (file->fd >= 0)
		flock(file->fd, LOCK_UN);
}

static int rename_numbered(const char *path, int from, int to)
{
	CELL_AUTO_BUF struct cell__buf old = CELL_BUF_INIT, new = CELL_BUF_INIT;
	if ((from > 0 ? cell__buf_printf(&old, "%s.%d", path, from) : cell__buf_add_str(&old, path)) < 0 ||
	    cell__buf_printf(&new, "%s.%d", path, to) < 0)
		return ENOMEM;
	return rename(old.data, new.data) < 0 && !(errno == ENOENT && from > 0) ? errno : 0;
}

/* With the lock; after success the file is closed and the path names no file. */
static int rotate(struct cell__audit_file *file)
{
	int rc = file->sync && fdatasync(file->fd) < 0 ? errno : 0;
	for (int i = file->keep - 1; i >= 0 && rc == 0; i--)
		rc = rename_numbered(file->path, i, i + 1);
	if (rc == 0)
		cell__close_fd(&file->fd);
	return rc;
}

/* With the lock. An incomplete write is truncated again. */
static int write_lines(struct cell__audit_file *file, off_t start, const struct cell__buf *text, bool durable)
{
	size_t done = 0;
	int rc = 0;
	while (done < text->size && rc == 0) {
		ssize_t n = write(file->fd, text->data + done, text->size - done);
		if (n > 0)
			done += (size_t)n;
		else if (n == 0 || errno != EINTR)
			rc = n == 0 ? EIO : errno;
	}
	if (rc == 0 && durable && fdatasync(file->fd) < 0)
		rc = errno;
	if (rc == 0) {
		file->end = start + (off_t)text->size;
	} else {
		file->end = -1;
		if (ftruncate(file->fd, start) < 0) {
			/* The next writer finds a line without an end, and ends it. */
		}
	}
	return rc;
}

/* A writer that died in the middle left a line without its end: our lines must not be appended to it. */
static int end_torn_line(struct cell__audit_file *file, off_t size, struct cell__buf *text)
{
	char last = '\n';
	if (size == file->end || size == 0)
		return 0;
	if (pread(file->fd, &last, 1, size - 1) != 1)
		return errno ? errno : EIO;
	return last != '\n' && cell__buf_add(text, "\n", 1) < 0 ? ENOMEM : 0;
}

/* With the lock: one write of as many lines as fit before the next rotation. */
static int append_some(struct cell__audit_file *file, const struct cell__buf *lines, size_t count, bool durable, size_t *ret_done)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct stat st;
	if (fstat(file->fd, &st) < 0)
		return errno;
	if (file->max_bytes > 0 && st.st_size > 0 && st.st_size + (off_t)lines[0].size > file->max_bytes) {
		file->rotate_error = rotate(file);
		if (file->rotate_error == 0)
			return 0;
	}
	int rc = end_torn_line(file, st.st_size, &text);
	size_t n = 0;
	bool grows = file->max_bytes == 0 || file->rotate_error;
	while (rc == 0 && n < count && (n == 0 || grows || st.st_size + (off_t)(text.size + lines[n].size) <= file->max_bytes)) {
		if (cell__buf_add(&text, lines[n].data, lines[n].size) < 0)
			rc = ENOMEM;
		n++;
	}
	if (rc == 0)
		rc = write_lines(file, st.st_size, &text, durable);
	if (rc == 0)
		*ret_done += n;
	return rc;
}

int cell__audit_file_append(struct cell__audit_file *file, const struct cell__buf *lines, size_t count, bool durable, size_t *ret_done)
{
	size_t done = 0;
	int rc = 0;
	while (done < count && rc == 0) {
		rc = lock_live(file);
		if (rc == 0 && file->sync && file->is_new)
			rc = sync_dir(file);
		file->is_new &= rc != 0;
		if (rc == 0)
			rc = append_some(file, lines + done, count - done, durable, &done);
		unlock(file);
	}
	*ret_done = done;
	return rc;
}

int cell__audit_file_sync(struct cell__audit_file *file)
{
	return file->fd >= 0 && fdatasync(file->fd) < 0 ? errno : 0;
}
