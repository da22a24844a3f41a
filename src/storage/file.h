/*
 * Files of a storage folder: names that cannot leave it, writes that happen completely or not at all, locks between processes.
 * Internal to src/storage.  Every function may be called from any thread; nothing here keeps state.
 *
 * In each folder that we write to, names that begin with ".cell-" are ours:
 *     .cell-lock      flock()ed by the process that changes or reads an index
 *     .cell-journal   the change in progress; exists while a lock holder works, or after it died
 *     .cell-tmp-<hex> a file being written; flock()ed by its writer, so that a sweeper knows it is alive
 */
#ifndef CELL_STORAGE_FILE_H
#define CELL_STORAGE_FILE_H

#include <jansson.h>
#include <sys/stat.h>

#include "base/base.h"
#include "storage/backend.h"

#define CELL__OWN_PREFIX ".cell-"
#define CELL__LOCK_FILE ".cell-lock"
#define CELL__JOURNAL_FILE ".cell-journal"
#define CELL__TEMP_PREFIX ".cell-tmp-"
#define CELL__TEMP_NAME_SIZE 32

/* A file's time older than this cannot belong to a later change: ten times the coarsest clock tick that file times come from. */
#define CELL__RECENT_NS 100000000

/* ---- paths ---- */

/*
 * Checks for a relative path of ordinary components within the limits, without our reserved names; what is "artifact". Refuses "..",
 * absolute paths, ".", empty components, control characters and ill-formed UTF-8.
 */
int cell__path_check(const char *path, const char *what, struct cell_error *err);
/*
 * Opens path beneath dir_fd; no component, including the last, may be a symbolic link or be in another mount. CLOEXEC is added. Returns the
 * descriptor, or -1 with errno (ELOOP: a symbolic link, EXDEV: it would leave the folder, or its mount).
 */
int cell__path_open(int dir_fd, const char *path, int flags, mode_t mode);
/* The same without openat2(), for kernels before 5.6 and some seccomp filters. */
int cell__path_open_walk(int dir_fd, const char *path, int flags, mode_t mode);
/* The folder that contains path, made with all its parents when make is true. *ret_last points into path. -1 with errno. */
int cell__path_open_parent(int dir_fd, const char *path, bool make, const char **ret_last);
/* A fixed folder of the layout.  -1 with errno, as cell__path_open(). */
int cell__dir_open(int root_fd, const char *name, bool make);
/* Why a folder of the layout was not opened: sys is the errno. */
int cell__dir_fail(struct cell_error *err, const char *name, int sys);
/* Makes path with all above it, as the host names it.  0, or -1 with errno. */
int cell__mkdir_all(const char *path);

/* ---- whole files ---- */

/* A regular file of at most max bytes.  -1 with errno; EFBIG: it is larger; ret_stat may be NULL. */
int cell__path_read(int dir_fd, const char *path, size_t max, struct cell__buf *out, struct stat *ret_stat);

struct cell__temp {
	int dir_fd; /* borrowed */
	int fd;
	char name[CELL__TEMP_NAME_SIZE];
};
#define CELL__TEMP_INIT { .dir_fd = -1, .fd = -1 }
/* 0, or -1 with errno, like all below. */
int cell__temp_create(struct cell__temp *temp, int dir_fd);
int cell__temp_write(struct cell__temp *temp, const void *bytes, size_t size);
int cell__temp_sync(struct cell__temp *temp);
/*
 * A hint, before another file is synced and then this one: the file system can write both in one go, and cell__temp_sync() finds
 * little left to do.
 */
void cell__temp_start_sync(struct cell__temp *temp);
/* Renames it to its final name; the directory is not synced yet.  The temporary file is closed. */
int cell__temp_rename(struct cell__temp *temp, const char *name);
/* Closes and removes a file that still exists; allowed after cell__temp_rename() and on CELL__TEMP_INIT. */
void cell__temp_discard(struct cell__temp *temp);
bool cell__temp_is_name(const char *name);
/* Removes temporary files in this folder whose writers have ended. */
void cell__temp_sweep(int dir_fd);
/* Removes this temporary file if its writer has ended; whether it did. */
void cell__temp_sweep_one(int dir_fd, const char *name);
int cell__dir_sync(int dir_fd);
/* temp file, fsync, rename, fsync of the folder. */
int cell__file_replace(int dir_fd, const char *name, const void *bytes, size_t size);

/* ---- locks ---- */

/*
 * Takes the folder's lock; bounded by CELL__STORE_LOCK_MS. Close *ret_fd to release it. A shared lock on a folder without a lock file
 * (never written to) gives -1 in *ret_fd and succeeds.
 */
int cell__dir_lock(int dir_fd, bool exclusive, int *ret_fd, struct cell_error *err);

/* ---- time ---- */

#define CELL__TIME_SIZE 40
/* "2026-11-15T05:06:40.123456+00:00" */
void cell__time_format(const struct timespec *when, char out[static CELL__TIME_SIZE]);
void cell__time_now(char out[static CELL__TIME_SIZE]);
int64_t cell__time_ns(const struct timespec *when);

/* ---- an index beside the files it describes (index.c) ---- */

/*
 * Takes the lock (as cell__dir_lock()) and completes the change of a writer that died, so that file and entry agree while the lock is
 * held.
 */
int cell__index_lock(int dir_fd, bool exclusive, int *ret_fd, struct cell_error *err);
/*
 * *ret_index is an object, not to be changed, empty when there is no index. -1 with code and text when it cannot be read or parsed. cache
 * may be NULL, here and below.
 */
int cell__index_read(int dir_fd, const char *file, struct cell__index_cache *cache, json_t **ret_index, struct cell_error *err);
/* Pure: the text of an index.  NULL with a reason. */
json_t *cell__index_parse(const char *text, size_t size, struct cell_error *err);
/*
 * For a caller that found the index unreadable, without the lock: checks again under the lock, and renames it to
 * "<file>.broken-<time>".  err, filled already, is extended by the new name.
 */
void cell__index_set_aside(int dir_fd, const char *file, struct cell_error *err);

/* One file and its entry change together: after a kill -9 at any point both are old, or both new. */
struct cell__index_change {
	const char *path; /* of the file, checked; relative to the folder */
	const char *key; /* of the entry */
	json_t *entry; /* borrowed; NULL removes the entry */
	struct cell__temp *temp; /* becomes the file; NULL removes the file */
	bool unsynced; /* temp is still to be synced */
	bool exclusive; /* fail with EEXIST when the file exists */
};
struct cell__index_outcome {
	bool existed; /* there was such a file before */
	bool broken; /* the index was unreadable and was set aside; notice says more */
	struct cell_error notice;
};
int cell__index_apply(int dir_fd, const char *file, struct cell__index_cache *cache, const struct cell__index_change *change,
		      struct cell__index_outcome *ret_outcome, struct cell_error *err);

#endif
