/*
 * Whole files: everything that reads a settings file, a definition or a cache reads it through here, with a limit.  Any thread;
 * a disk may block the caller, so the loop's thread must not call these functions.
 */
#ifndef CELL_BASE_FILE_H
#define CELL_BASE_FILE_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/buffer.h"
#include "base/error.h"

enum {
	CELL_FILE_NO_LINK = 1, /* refuse a symbolic link as the last part of the path (ELOOP) */
	CELL_FILE_ANY = 2,     /* accept pipes and devices too, which may block; else they are refused (EINVAL) */
};

/*
 * The rest of an open file, pipe or device, appended to *out with a NUL behind it.  -1 with errno; EFBIG: there are more than max
 * bytes, of which *out has max + 1.
 */
int cell__fd_read_all(int fd, size_t max, struct cell__buf *out);
/* The same, where fd must be a regular file (EISDIR, EINVAL).  *ret_stat, which may be NULL: as it was before the first read. */
int cell__file_read_fd(int fd, size_t max, struct cell__buf *out, struct stat *ret_stat);
/* Opens path, relative to dir_fd (AT_FDCWD), and reads it.  -1 with errno, as above. */
int cell__file_read(int dir_fd, const char *path, unsigned flags, size_t max, struct cell__buf *out, struct stat *ret_stat);
/*
 * The same with an error that begins "WHAT PATH", or "PATH" where what is NULL: CELL_E_NOT_FOUND, CELL_E_LIMIT, CELL_E_NOMEM or
 * CELL_E_IO.
 */
int cell__file_load(const char *what, const char *path, unsigned flags, size_t max, struct cell__buf *out, struct cell_error *err);
/* Fills *err with why reading `what` `path` failed; sys: the errno of the functions above. */
int cell__file_fail(struct cell_error *err, const char *what, const char *path, size_t max, int sys);

/* Is it the same file with the same contents, as far as stat() tells? */
bool cell__file_same(const struct stat *one, const struct stat *other);

/* Writes all of it.  -1 with errno. */
int cell__fd_write_all(int fd, const void *bytes, size_t size);

#endif
