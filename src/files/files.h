/*
 * The files of a workspace, for a client of its session: descriptions, transfers, folders as tar archives.
 *
 * The code works in the same folders meanwhile and is hostile: every name is looked up in the open descriptor of the workspace with
 * openat2 (beneath, no links, no mounts), and its kind is checked before it is opened, so that pipes and devices are never opened.
 * What is written appears at once, by a rename.  New files belong to the owner of the workspace.
 *
 * Everything here reads and writes files and may take long: never on the loop's thread.  A transfer belongs to one thread at a time.
 */
#ifndef CELL_FILES_FILES_H
#define CELL_FILES_FILES_H

#include <jansson.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/stat.h>

#include "base/base.h"

#define CELL_FILES_TEMPORARY ".workcell-upload-" /* names of files that are being written begin with this */
#define CELL_FILES_MAX_LISTED 10000u   /* entries of one listing */
#define CELL_FILES_MAX_DEPTH 64u       /* folders in folders of an archive; each is an open descriptor while it is made */
#define CELL_FILES_MAX_UNPACKED 100000u /* entries of one archive */

/*
 * A path below the workspace, without ".", empty parts and a slash at its end; "": the workspace itself.  CELL_E_INVALID: it is absolute,
 * has a part "..", or is too long.  Pure.
 */
int cell__files_path(const char *given, char ret_path[static PATH_MAX], struct cell_error *err);

/* Refuses a path with a protected name (base/protected.h), for a workspace of the host where code may not write one either.  Pure. */
int cell__files_guard(const char *path, struct cell_error *err);
/*
 * {"path", "type", "size", "mode", "mtime"}; a link also has "target"; a folder has "entries", a sorted list of the same with "name"
 * instead of "path", and "truncated".  NULL: err has the reason.
 */
json_t *cell__files_describe(int root_fd, const char *path, struct cell_error *err);
/* With the folders that lead to it; one that exists is fine. */
int cell__files_make_folder(int root_fd, const char *path, struct cell_error *err);
/* Replaces a file of that name; makes the folders that lead to it. */
int cell__files_move(int root_fd, const char *from, const char *to, struct cell_error *err);
/* A folder that is not empty: CELL_E_EXISTS, unless recursive. */
int cell__files_remove(int root_fd, const char *path, bool recursive, struct cell_error *err);

struct cell__elsewhere;

/* For the records of changes in the audit log. */
struct cell__file_witness {
	struct cell_audit *audit; /* NULL: no records */
	const char *executor;     /* lives for ever */
	char session_id[33];
};

/* The workspace that a client's paths are relative to. */
struct cell__root {
	int fd;      /* -1: it is not on this machine */
	struct cell__elsewhere *place; /* NULL: it is on this machine; else the session of another server that has it (files/relay.h) */
	uint64_t max_bytes;        /* that may be written; UINT64_MAX: no limit */
	bool guarded;              /* protected names are not written */
	const atomic_bool *cancelled; /* the caller's, or NULL: once it is true, functions that wait for another server fail soon */
	struct cell__file_witness witness;
};
#define CELL_ROOT_INIT { .fd = -1 }
void cell__root_finish(struct cell__root *root);
/* As the functions above, wherever the workspace is.  Those that change it refuse protected names where it is guarded. */
json_t *cell__root_describe(const struct cell__root *root, const char *path, struct cell_error *err);
int cell__root_make_folder(const struct cell__root *root, const char *path, struct cell_error *err);
int cell__root_remove(const struct cell__root *root, const char *path, bool recursive, struct cell_error *err);

struct cell__file_transfer;

enum cell__file_transfer_kind {
	CELL_TRANSFER_GET,    /* a file */
	CELL_TRANSFER_PACK,   /* a folder as an archive */
	CELL_TRANSFER_PUT,    /* a file, with the folders that lead to it */
	CELL_TRANSFER_UNPACK, /* an archive into a folder, made if missing */
};

/*
 * The root is taken over, also by a failure.  Beyond its max_bytes of contents CELL_E_LIMIT; mode: of a file that is put, 0: that of the file
 * it replaces, else 0644.
 */
int cell__file_transfer_open(enum cell__file_transfer_kind kind, struct cell__root *root, const char *path, unsigned mode,
			     struct cell__file_transfer **ret_transfer, struct cell_error *err);
/* Unpack: links that lead out of the folder are left out, for an archive that is not trusted. */
void cell__file_transfer_leave_out_links(struct cell__file_transfer *transfer);
/* Unpack: how many links were left out. */
size_t cell__file_transfer_left_out(const struct cell__file_transfer *transfer);
/* Drops what was not complete.  NULL is allowed. */
void cell__file_transfer_destroy(struct cell__file_transfer *transfer);
/* Of the file of a get, as it was opened. */
const struct stat *cell__file_transfer_stat(const struct cell__file_transfer *transfer);
/* Restricts a get to these bytes, before the first read. */
void cell__file_transfer_seek(struct cell__file_transfer *transfer, uint64_t offset, uint64_t size);
/* Get and pack: the next bytes; 0: the end; -1: err has the reason, also where a file has become shorter since. */
ssize_t cell__file_transfer_read(struct cell__file_transfer *transfer, char *out, size_t max, struct cell_error *err);
/* Put and unpack. */
int cell__file_transfer_write(struct cell__file_transfer *transfer, const char *bytes, size_t size, struct cell_error *err);
/* Put: metadata of the file, an object of strings: extended attributes, "user.…". */
int cell__file_transfer_mark(struct cell__file_transfer *transfer, const json_t *marks, struct cell_error *err);
/* All was written: now it counts. */
int cell__file_transfer_end(struct cell__file_transfer *transfer, struct cell_error *err);

/*
 * Metadata of a file: {KEY: VALUE} of its extended attributes "PREFIX" "KEY"; NULL: none.  *room: bytes that may still be read, counted
 * down; a value that is longer, and what is not UTF-8, is left out.
 */
json_t *cell__files_marks(int root_fd, const char *path, const char *prefix, size_t *room);

/* ---- for the files of this folder ---- */

int cell__files_mark(int fd, const char *name, const char *value, struct cell_error *err);

/* A transfer with another server (there.c). */
struct cell__there;
/* root->place is taken over, also by a failure; get: *ret_stat has the size, the time and the permissions of the file. */
int cell__there_open(enum cell__file_transfer_kind kind, struct cell__root *root, const char *path, unsigned mode,
		     struct cell__there **ret_there, struct stat *ret_stat, struct cell_error *err);
void cell__there_destroy(struct cell__there *there);
void cell__there_seek(struct cell__there *there, uint64_t offset, uint64_t size);
ssize_t cell__there_read(struct cell__there *there, char *out, size_t max, struct cell_error *err);
int cell__there_write(struct cell__there *there, const char *bytes, size_t size, struct cell_error *err);
int cell__there_end(struct cell__there *there, struct cell_error *err);

/* Opens without links, mounts and "..".  -1 with errno. */
int cell__files_open(int root_fd, const char *path, int flags);
/* The folder that the path's last part is in, made if missing and `makes`; *ret_name is that part.  Only for a path that is not "". */
int cell__files_parent(int root_fd, const char *path, bool makes, const char **ret_name);
/* A folder with those that lead to it, as the caller: a descriptor of it, or -1 with errno. */
int cell__files_make_path(int root_fd, const char *path);
/* A regular file for reading; checked before it is opened.  -1 with errno; EINVAL: another kind. */
int cell__files_open_regular(int root_fd, const char *path, struct stat *ret_stat);
/* "cannot VERB PATH" with its reason. */
int cell__files_fail(struct cell_error *err, int sys, const char *verb, const char *path);

#endif
