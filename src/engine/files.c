/* The public functions for the files of a workspace: on the caller's thread. */
#define _GNU_SOURCE
#include "engine/files.h"

#include <errno.h>
#include <fcntl.h>
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
	struct cell__root root = CELL_ROOT_INIT;
	if (cell__require(err, session, path) < 0 || open_path(session, path, __func__, false, &root, inner, err) < 0)
		return NULL;
	json_t *found = cell__root_describe(&root, inner, err);
	cell__root_finish(&root);
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
	struct cell__root root = CELL_ROOT_INIT;
	struct cell__file_transfer *transfer = NULL;
	if (cell__require(err, session, path) < 0 || take_options(opts, &all, err) < 0 ||
	    open_path(session, path, __func__, false, &root, inner, err) < 0)
		return -1;
	int rc = cell__file_transfer_open(all.tar ? CELL_TRANSFER_PACK : CELL_TRANSFER_GET, &root, inner, 0, &transfer, err);
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

int cell__file_put_as(struct cell_session *session, const struct cell__principal *principal, const char *path,
		      const struct cell_file_options *opts, int fd, int64_t *ret_bytes, struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell_file_options all;
	struct cell__root root = CELL_ROOT_INIT;
	struct cell__file_transfer *transfer = NULL;
	struct cell_error why = { 0 };
	int64_t bytes = -1;
	if (take_options(opts, &all, err) < 0 || open_path(session, path, "cell_session_file_put", true, &root, inner, err) < 0)
		return -1;
	struct cell__file_witness witness = root.witness;
	if (all.max_bytes >= 0 && (uint64_t)all.max_bytes < root.max_bytes)
		root.max_bytes = (uint64_t)all.max_bytes;
	int rc = cell__file_transfer_open(all.tar ? CELL_TRANSFER_UNPACK : CELL_TRANSFER_PUT, &root, inner, (unsigned)all.mode, &transfer,
					  &why);
	if (rc == 0)
		rc = copy_in(transfer, fd, &bytes, &why);
	cell__file_transfer_destroy(transfer);
	cell__files_written(session, &(struct cell__file_change){ .witness = &witness,
								  .principal = principal,
								  .verb = all.tar ? "unpack" : "put",
								  .path = inner,
								  .bytes = bytes,
								  .err = rc < 0 ? &why : NULL });
	if (rc < 0 && err)
		*err = why;
	if (rc == 0 && ret_bytes)
		*ret_bytes = bytes;
	return rc;
}

int cell_session_file_put(struct cell_session *session, const char *path, const struct cell_file_options *opts, int fd, int64_t *ret_bytes,
			  struct cell_error *err)
{
	return cell__require(err, session, path) < 0 ? -1
						     : cell__file_put_as(session, &cell__principal_host, path, opts, fd, ret_bytes, err);
}

enum change { CHANGE_MAKE_FOLDER, CHANGE_REMOVE, CHANGE_REMOVE_ALL };

static int change(struct cell_session *session, const struct cell__principal *principal, enum change verb, const char *caller,
		  const char *path, struct cell_error *err)
{
	char inner[PATH_MAX];
	struct cell__root root = CELL_ROOT_INIT;
	struct cell_error why = { 0 };
	if (open_path(session, path, caller, true, &root, inner, err) < 0)
		return -1;
	int rc = verb == CHANGE_MAKE_FOLDER ? cell__root_make_folder(&root, inner, &why)
					    : cell__root_remove(&root, inner, verb == CHANGE_REMOVE_ALL, &why);
	cell__root_finish(&root);
	cell__files_written(session, &(struct cell__file_change){ .witness = &root.witness,
								  .principal = principal,
								  .verb = verb == CHANGE_MAKE_FOLDER ? "make_folder" : "remove",
								  .path = inner,
								  .bytes = -1,
								  .err = rc < 0 ? &why : NULL });
	if (rc < 0 && err)
		*err = why;
	return rc;
}

int cell__file_make_folder_as(struct cell_session *session, const struct cell__principal *principal, const char *path,
			      struct cell_error *err)
{
	return change(session, principal, CHANGE_MAKE_FOLDER, "cell_session_file_make_folder", path, err);
}

int cell_session_file_make_folder(struct cell_session *session, const char *path, struct cell_error *err)
{
	return cell__require(err, session, path) < 0 ? -1 : cell__file_make_folder_as(session, &cell__principal_host, path, err);
}

int cell__file_remove_as(struct cell_session *session, const struct cell__principal *principal, const char *path, int recursive,
			 struct cell_error *err)
{
	return change(session, principal, recursive ? CHANGE_REMOVE_ALL : CHANGE_REMOVE, "cell_session_file_remove", path, err);
}

int cell_session_file_remove(struct cell_session *session, const char *path, int recursive, struct cell_error *err)
{
	return cell__require(err, session, path) < 0 ? -1 : cell__file_remove_as(session, &cell__principal_host, path, recursive, err);
}

/* ---- folders of the caller ---- */

static int open_folder(const char *folder, struct cell__root *root, struct cell_error *err)
{
	*root = (struct cell__root){ .fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC), .max_bytes = UINT64_MAX };
	return root->fd < 0 ? cell_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno, "open the folder %.160s", folder) : 0;
}

int cell_folder_pack(const char *folder, int fd, int64_t *ret_bytes, struct cell_error *err)
{
	struct cell__root root;
	struct cell__file_transfer *transfer = NULL;
	if (cell__require(err, folder) < 0 || open_folder(folder, &root, err) < 0)
		return -1;
	int rc = cell__file_transfer_open(CELL_TRANSFER_PACK, &root, "", 0, &transfer, err);
	if (rc == 0)
		rc = copy_out(transfer, fd, ret_bytes, err);
	cell__file_transfer_destroy(transfer);
	return rc;
}

int cell_folder_unpack(const char *folder, int fd, size_t *ret_left_out, struct cell_error *err)
{
	struct cell__root root;
	struct cell__file_transfer *transfer = NULL;
	if (cell__require(err, folder) < 0 || open_folder(folder, &root, err) < 0)
		return -1;
	int rc = cell__file_transfer_open(CELL_TRANSFER_UNPACK, &root, "", 0, &transfer, err);
	if (rc == 0) {
		cell__file_transfer_leave_out_links(transfer);
		rc = copy_in(transfer, fd, NULL, err);
	}
	if (rc == 0 && ret_left_out)
		*ret_left_out = cell__file_transfer_left_out(transfer);
	cell__file_transfer_destroy(transfer);
	return rc;
}
