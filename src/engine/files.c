/* The public functions for the files of a workspace: on the caller's thread. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sized.h"
#include "files/files.h"
#include "session/session.h"

#define BLOCK_BYTES (256u * 1024u)

/* The workspace, and the path below it. */
static int open_path(struct cell_session *session, const char *path, const char *caller, bool writes, struct cell__root *ret_root,
		     char ret_path[static PATH_MAX], struct cell_error *err)
{
	if (cell__engine_may_wait(session->engine, caller, err) < 0 || cell__files_path(path, ret_path, err) < 0)
		return -1;
	return cell__files_root(session, writes, ret_root, err);
}

char *cell_session_file_describe(struct cell_session *session, const char *path, struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell__root root = { .fd = -1 };
	if (cell__require(err, session, path) < 0 || open_path(session, path, __func__, false, &root, inner, err) < 0)
		return NULL;
	json_t *found = cell__files_describe(root.fd, inner, err);
	close(root.fd);
	char *text = found ? json_dumps(found, JSON_COMPACT) : NULL;
	if (found && !text)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a description");
	json_decref(found);
	return text;
}

static int take_options(const struct cell_file_options *opts, struct cell_file_options *ret_all, struct cell_error *err)
{
	struct cell_file_options all = CELL_FILE_OPTIONS_INIT;
	if (opts && cell__sized_read(&all, sizeof all, opts, "cell_file_options", err) < 0)
		return -1;
	if (all.offset < 0 || all.mode < 0 || all.mode > 0777)
		return cell_fail(err, CELL_E_INVALID, 0, "offset must not be negative, and mode must be between 0 and 0777");
	*ret_all = all;
	return 0;
}

static int copy_out(struct cell__file_transfer *transfer, int fd, int64_t *ret_bytes, struct cell_error *err)
{
	CELL_AUTO_FREE char *block = cell__alloc(1, BLOCK_BYTES);
	int64_t bytes = 0;
	ssize_t n;
	if (!block)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a transfer");
	while ((n = cell__file_transfer_read(transfer, block, BLOCK_BYTES, err)) > 0) {
		if (cell__fd_write_all(fd, block, (size_t)n) < 0)
			return cell_fail(err, CELL_E_IO, errno, "write to the descriptor");
		bytes += n;
	}
	if (n == 0 && ret_bytes)
		*ret_bytes = bytes;
	return n < 0 ? -1 : 0;
}

int cell_session_file_get(struct cell_session *session, const char *path, const struct cell_file_options *opts, int fd, int64_t *ret_bytes,
			  struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell_file_options all;
	struct cell__root root = { .fd = -1 };
	struct cell__file_transfer *transfer = NULL;
	if (cell__require(err, session, path) < 0 || take_options(opts, &all, err) < 0 ||
	    open_path(session, path, __func__, false, &root, inner, err) < 0)
		return -1;
	int rc = cell__file_transfer_open(all.tar ? CELL_TRANSFER_PACK : CELL_TRANSFER_GET, root.fd, inner, 0, 0, false, &transfer, err);
	if (rc == 0 && !all.tar) {
		uint64_t size = (uint64_t)cell__file_transfer_stat(transfer)->st_size, offset = (uint64_t)all.offset;
		uint64_t left = offset < size ? size - offset : 0, max = all.max_bytes < 0 ? UINT64_MAX : (uint64_t)all.max_bytes;
		cell__file_transfer_seek(transfer, offset < size ? offset : size, left < max ? left : max);
	}
	if (rc == 0)
		rc = copy_out(transfer, fd, ret_bytes, err);
	cell__file_transfer_destroy(transfer);
	return rc;
}

static int copy_in(struct cell__file_transfer *transfer, int fd, int64_t *ret_bytes, struct cell_error *err)
{
	CELL_AUTO_FREE char *block = cell__alloc(1, BLOCK_BYTES);
	int64_t bytes = 0;
	if (!block)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a transfer");
	for (;;) {
		ssize_t n = read(fd, block, BLOCK_BYTES);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return cell_fail(err, CELL_E_IO, errno, "read from the descriptor");
		if (n == 0)
			break;
		if (cell__file_transfer_write(transfer, block, (size_t)n, err) < 0)
			return -1;
		bytes += n;
	}
	if (cell__file_transfer_end(transfer, err) < 0)
		return -1;
	if (ret_bytes)
		*ret_bytes = bytes;
	return 0;
}

int cell_session_file_put(struct cell_session *session, const char *path, const struct cell_file_options *opts, int fd, int64_t *ret_bytes,
			  struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell_file_options all;
	struct cell__root root = { .fd = -1 };
	struct cell__file_transfer *transfer = NULL;
	if (cell__require(err, session, path) < 0 || take_options(opts, &all, err) < 0 ||
	    open_path(session, path, __func__, true, &root, inner, err) < 0)
		return -1;
	uint64_t max = all.max_bytes < 0 || (uint64_t)all.max_bytes > root.max_bytes ? root.max_bytes : (uint64_t)all.max_bytes;
	int rc = cell__file_transfer_open(all.tar ? CELL_TRANSFER_UNPACK : CELL_TRANSFER_PUT, root.fd, inner, max, (unsigned)all.mode,
					  root.guarded, &transfer, err);
	if (rc == 0)
		rc = copy_in(transfer, fd, ret_bytes, err);
	cell__file_transfer_destroy(transfer);
	cell__files_written(session);
	return rc;
}

int cell_session_file_make_folder(struct cell_session *session, const char *path, struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell__root root = { .fd = -1 };
	if (cell__require(err, session, path) < 0 || open_path(session, path, __func__, true, &root, inner, err) < 0)
		return -1;
	int rc = root.guarded ? cell__files_guard(inner, err) : 0;
	if (rc == 0)
		rc = cell__files_make_folder(root.fd, inner, err);
	close(root.fd);
	return rc;
}

int cell_session_file_remove(struct cell_session *session, const char *path, int recursive, struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell__root root = { .fd = -1 };
	if (cell__require(err, session, path) < 0 || open_path(session, path, __func__, true, &root, inner, err) < 0)
		return -1;
	int rc = root.guarded ? cell__files_guard(inner, err) : 0;
	if (rc == 0)
		rc = cell__files_remove(root.fd, inner, recursive != 0, err);
	close(root.fd);
	cell__files_written(session);
	return rc;
}
