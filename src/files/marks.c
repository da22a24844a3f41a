/*
 * Metadata of files: extended attributes "user.NAMESPACE.KEY" that a client gives and reads.  The code can write them too, so what is read is
 * bounded, and what is not text is left out.
 */
#define _GNU_SOURCE
#include "files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/utf8.h"

#define MAX_LIST_BYTES 16384u  /* names of all attributes of a file: with more it has no metadata */
#define MAX_VALUE_BYTES 4096u

int cell__files_mark(int fd, const char *name, const char *value, struct cell_error *err)
{
	if (strlen(name) > XATTR_NAME_MAX || strlen(value) > MAX_VALUE_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "metadata: a key or a value is too long, they may have some %d and %u bytes",
				 XATTR_NAME_MAX, MAX_VALUE_BYTES);
	if (fsetxattr(fd, name, value, strlen(value), 0) == 0)
		return 0;
	if (errno == ENOTSUP)
		return cell_fail(err, CELL_E_UNSUPPORTED, errno, "the file system of the workspace keeps no metadata: leave it out");
	if (errno == ENOSPC || errno == EDQUOT || errno == E2BIG)
		return cell_fail(err, CELL_E_LIMIT, errno, "the file system of the workspace does not keep so much metadata");
	return cell_fail(err, CELL_E_IO, errno, "write the metadata of a file");
}

static void add_mark(json_t **marks, const char *at, const char *name, size_t skipped, size_t *room)
{
	char value[MAX_VALUE_BYTES];
	ssize_t n = getxattr(at, name, value, sizeof value); /* one that is longer is left out */
	size_t bytes = strlen(name) + (n > 0 ? (size_t)n : 0);
	if (n < 0 || bytes > *room || !cell__utf8_ok(name, strlen(name)) || !cell__utf8_ok(value, (size_t)n))
		return;
	*room -= bytes;
	if (!*marks)
		*marks = json_object();
	json_object_set_new(*marks, name + skipped, json_stringn(value, (size_t)n));
}

json_t *cell__files_marks(int root_fd, const char *path, const char *prefix, size_t *room)
{
	char at[40], names[MAX_LIST_BYTES];
	size_t skipped = strlen(prefix);
	json_t *marks = NULL;
	ssize_t n;
	CELL_AUTO_FD int fd = *room ? cell__files_open(root_fd, path, O_PATH) : -1;
	if (fd < 0)
		return NULL;
	snprintf(at, sizeof at, "/proc/self/fd/%d", fd); /* the file that is open, whatever has its name by now */
	n = listxattr(at, names, sizeof names);
	for (ssize_t i = 0; i < n; i += (ssize_t)strlen(names + i) + 1) {
		if (!strncmp(names + i, prefix, skipped) && names[i + (ssize_t)skipped])
			add_mark(&marks, at, names + i, skipped, room);
	}
	return marks;
}
