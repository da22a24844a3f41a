/*
 * A JSON index beside the files it describes, and changes of one file and its entry that cannot be torn apart.
 *
 * A writer, all of it under the folder's exclusive lock:
 *
 *     1  reads the index again, so that no other writer's entry is lost
 *     2  writes the new index to a temporary file and syncs it,    a full disk fails here or before
 *        and the new file, if that is small
 *     3  puts .cell-journal in place: both temporary names, both final names
 *     4  renames (or removes) the file                             from here on the change will be completed
 *     5  renames the index
 *     6  syncs the folders, removes the journal
 *
 * flock() is released when its holder dies.  The next process that takes the lock and finds a journal carries out the rest of
 * 4 and 5; inode numbers show which steps were done.  The journal is not synced: it survives the process, not the
 * machine.  After a power cut each file is complete, but an entry may be one version older than its file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "storage/file.h"
#include "storage/store.h"

#define JOURNAL_BYTES 16384u

#ifndef JANSSON_THREAD_SAFE_REFCOUNT
#error "this jansson does not count references atomically, which an index shared between threads needs"
#endif

/* ---- kept between two operations ---- */

/* The cached index of this file in its present state, or NULL. take: removes it from the cache. */
static json_t *find_kept(struct cell__index_cache *cache, int dir_fd, const char *file, bool take)
{
	struct stat st;
	json_t *index = NULL;
	if (!cache || fstatat(dir_fd, file, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return NULL;
	pthread_mutex_lock(&cache->lock);
	if (cache->index && cell__file_same(&st, &cache->seen))
		index = take ? cell__take_ptr(cache->index) : json_incref(cache->index);
	pthread_mutex_unlock(&cache->lock);
	return index;
}

static void keep(struct cell__index_cache *cache, json_t *index, const struct stat *seen)
{
	if (!cache || seen->st_size > CELL__STORE_INDEX_KEPT)
		return;
	pthread_mutex_lock(&cache->lock);
	json_decref(cache->index);
	cache->index = json_incref(index);
	cache->seen = *seen;
	pthread_mutex_unlock(&cache->lock);
}

/* For an index that was read: another process may write it again within the same clock tick, and it would look the same. */
static void keep_read(struct cell__index_cache *cache, json_t *index, const struct stat *seen)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (cell__time_ns(&now) - cell__time_ns(&seen->st_mtim) >= CELL__RECENT_NS)
		keep(cache, index, seen);
}

/* For an index that we wrote: its time is our own (see stamp()), and differs from every other writer's. */
static void keep_written(struct cell__index_cache *cache, json_t *index, int dir_fd, const char *file, const struct timespec *stamp)
{
	struct stat st;
	if (fstatat(dir_fd, file, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mtim.tv_sec == stamp->tv_sec &&
	    st.st_mtim.tv_nsec == stamp->tv_nsec)
		keep(cache, index, &st);
}

/*
 * Gives a file the precise time: the kernel would use the time of its last tick, and two writers within one tick would be
 * indistinguishable.
 */
static void stamp(int fd, struct timespec *ret_stamp)
{
	clock_gettime(CLOCK_REALTIME, ret_stamp);
	if (futimens(fd, (struct timespec[2]){ { .tv_nsec = UTIME_OMIT }, *ret_stamp }) < 0)
		ret_stamp->tv_nsec = -1; /* matches no file: it is then not cached */
}

/* ---- reading ---- */

json_t *cell__index_parse(const char *text, size_t size, struct cell_error *err)
{
	json_error_t why;
	json_t *index = json_loadb(text, size, JSON_ALLOW_NUL, &why);
	if (!index && json_error_code(&why) == json_error_numeric_overflow)
		index = json_loadb(text, size, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &why);
	if (!index) {
		cell_fail(err, CELL_E_IO, 0, "line %d: %s", why.line, why.text);
	} else if (!json_is_object(index)) {
		json_decref(index);
		index = NULL;
		cell_fail(err, CELL_E_IO, 0, "not a JSON object");
	}
	if (!index && err)
		err->sys = EUCLEAN;
	return index;
}

int cell__index_read(int dir_fd, const char *file, struct cell__index_cache *cache, json_t **ret_index, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct stat st;
	json_t *index = find_kept(cache, dir_fd, file, false);
	if (index) {
		/* nothing to do */
	} else if (cell__path_read(dir_fd, file, CELL__STORE_INDEX_BYTES, &text, &st) < 0) {
		if (errno != ENOENT)
			return cell_fail(err, errno == EFBIG ? CELL_E_LIMIT : CELL_E_IO, errno, "read index %s", file);
		index = json_object();
		if (!index)
			return cell_fail(err, CELL_E_NOMEM, 0, "read index %s", file);
	} else {
		struct cell_error why = { 0 };
		index = cell__index_parse(text.data, text.size, &why);
		if (!index) {
			cell_fail(err, CELL_E_IO, 0, "index %s cannot be parsed (%.100s)", file, why.msg);
			if (err)
				err->sys = EUCLEAN;
			return -1;
		}
		keep_read(cache, index, &st);
	}
	*ret_index = index;
	return 0;
}

/* Under the exclusive lock. */
static int set_aside(int dir_fd, const char *file, struct cell_error *err)
{
	char aside[160];
	struct timespec now;
	struct tm tm;
	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &tm);
	char when[32];
	strftime(when, sizeof when, "%Y%m%dT%H%M%S", &tm);
	snprintf(aside, sizeof aside, "%.80s.broken-%s.%06ldZ", file, when, now.tv_nsec / 1000 % 1000000);
	if (renameat(dir_fd, file, dir_fd, aside) < 0)
		return -1;
	size_t n = strlen(err->msg);
	snprintf(err->msg + n, sizeof err->msg - n, "; kept as %s; no artifact is lost", aside);
	return 0;
}

void cell__index_set_aside(int dir_fd, const char *file, struct cell_error *err)
{
	CELL_AUTO_FD int lock = -1;
	json_t *index = NULL;
	struct cell_error why;
	if (cell__index_lock(dir_fd, true, &lock, NULL) < 0)
		return;
	if (cell__index_read(dir_fd, file, NULL, &index, &why) == 0)
		json_decref(index); /* another thread was faster */
	else if (why.sys == EUCLEAN)
		set_aside(dir_fd, file, err);
}

/* ---- the journal ---- */

struct journal {
	const char *file;       /* the index */
	const char *index_temp;
	const char *path;
	const char *temp;       /* NULL: path is removed */
	int64_t ino;            /* of temp, or of the file to remove */
};

static bool same_inode(int dir_fd, const char *name, int64_t ino)
{
	struct stat st;
	return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && (int64_t)st.st_ino == ino;
}

static void replay(int dir_fd, const struct journal *journal)
{
	const char *last;
	CELL_AUTO_FD int parent = cell__path_open_parent(dir_fd, journal->path, false, &last);
	if (parent >= 0) {
		if (journal->temp && same_inode(parent, journal->temp, journal->ino)) {
			if (renameat(parent, journal->temp, parent, last) < 0) {
				unlinkat(parent, journal->temp, 0);
				unlinkat(dir_fd, journal->index_temp, 0);
				return;
			}
		} else if (!journal->temp && same_inode(parent, last, journal->ino)) {
			unlinkat(parent, last, 0);
		}
		cell__dir_sync(parent);
	}
	renameat(dir_fd, journal->index_temp, dir_fd, journal->file);
	cell__dir_sync(dir_fd);
}

/* Under the exclusive lock. A file that is not a valid journal is only removed. */
static void recover(int dir_fd)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (cell__path_read(dir_fd, CELL__JOURNAL_FILE, JOURNAL_BYTES, &text, NULL) == 0) {
		json_t *root = json_loadb(text.data, text.size, 0, NULL);
		struct journal journal = { 0 };
		json_int_t ino = 0;
		if (root &&
		    json_unpack(root, "{s:s, s:s, s:s, s?s, s:I}", "index", &journal.file, "index_temp", &journal.index_temp, "path",
				&journal.path, "temp", &journal.temp, "ino", &ino) == 0 &&
		    (strcmp(journal.file, ".artifacts.json") == 0 || strcmp(journal.file, ".workflows.json") == 0) &&
		    cell__temp_is_name(journal.index_temp) && (!journal.temp || cell__temp_is_name(journal.temp)) &&
		    cell__path_check(journal.path, "journal", NULL) == 0) {
			journal.ino = ino;
			replay(dir_fd, &journal);
		}
		json_decref(root);
	}
	unlinkat(dir_fd, CELL__JOURNAL_FILE, 0);
}

static bool has_journal(int dir_fd)
{
	struct stat st;
	return fstatat(dir_fd, CELL__JOURNAL_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

int cell__index_lock(int dir_fd, bool exclusive, int *ret_fd, struct cell_error *err)
{
	CELL_AUTO_FD int lock = -1;
	if (cell__dir_lock(dir_fd, exclusive, &lock, err) < 0)
		return -1;
	if (has_journal(dir_fd)) {
		/* A writer removes its journal before it lets go: this one's writer is dead. */
		cell__close_fd(&lock);
		if (cell__dir_lock(dir_fd, true, &lock, exclusive ? err : NULL) == 0)
			recover(dir_fd);
		else if (exclusive)
			return -1;
	}
	*ret_fd = cell__take_fd(&lock);
	return 0;
}

static int write_journal(int dir_fd, const struct journal *journal)
{
	json_t *root = json_pack("{s:s, s:s, s:s, s:s*, s:I}", "index", journal->file, "index_temp", journal->index_temp, "path",
				 journal->path, "temp", journal->temp, "ino", (json_int_t)journal->ino);
	CELL_AUTO_FREE char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
	json_decref(root);
	struct cell__temp temp = CELL__TEMP_INIT;
	if (!text) {
		errno = ENOMEM;
		return -1;
	}
	if (cell__temp_create(&temp, dir_fd) < 0)
		return -1;
	if (cell__temp_write(&temp, text, strlen(text)) < 0 || cell__temp_rename(&temp, CELL__JOURNAL_FILE) < 0) {
		int saved = errno;
		cell__temp_discard(&temp);
		errno = saved;
		return -1;
	}
	return 0;
}

/* ---- changing ---- */

static int write_callback(const char *bytes, size_t size, void *arg)
{
	return cell__buf_add(arg, bytes, size);
}

static int write_index_temp(int dir_fd, json_t *index, struct cell__temp *temp, struct timespec *ret_stamp)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	if (json_dump_callback(index, write_callback, &text, JSON_INDENT(2) | JSON_ENSURE_ASCII) < 0 || cell__buf_add(&text, "\n", 1) < 0) {
		errno = ENOMEM;
		return -1;
	}
	if (text.size > CELL__STORE_INDEX_BYTES) {
		errno = EFBIG;
		return -1;
	}
	if (cell__temp_create(temp, dir_fd) < 0)
		return -1;
	if (cell__temp_write(temp, text.data, text.size) < 0)
		return -1;
	stamp(temp->fd, ret_stamp);
	return cell__temp_sync(temp);
}

/* Steps 3 to 6. -1 with errno; until the file has changed, nothing has. */
static int carry_out(int dir_fd, const char *file, const struct cell__index_change *change, int parent, const char *last,
		     struct cell__temp *index_temp, int64_t ino)
{
	struct journal journal = { .file = file,
				   .index_temp = index_temp->name,
				   .path = change->path,
				   .temp = change->temp ? change->temp->name : NULL,
				   .ino = ino };
	if (write_journal(dir_fd, &journal) < 0)
		return -1;
	int rc = 0;
	if (change->temp)
		rc = cell__temp_rename(change->temp, last);
	else if (ino != 0)
		rc = unlinkat(parent, last, 0);
	if (rc < 0) {
		int saved = errno;
		unlinkat(dir_fd, CELL__JOURNAL_FILE, 0);
		errno = saved;
		return -1;
	}
	/* Where this fails the journal stays, and the next to take the lock tries again. */
	if (cell__temp_rename(index_temp, file) < 0)
		return -1;
	unlinkat(dir_fd, CELL__JOURNAL_FILE, 0);
	/* A path without a slash is in the index's own folder, which is synced once. */
	return last != change->path && cell__dir_sync(parent) < 0 ? -1 : cell__dir_sync(dir_fd);
}

/* The inode of the file with the final name, or 0. */
static int target_inode(const struct cell__index_change *change, int parent, const char *last, int64_t *ret_ino)
{
	struct stat st;
	if (fstatat(parent, last, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		*ret_ino = 0;
		return errno == ENOENT ? 0 : -1;
	}
	*ret_ino = (int64_t)st.st_ino;
	if (S_ISDIR(st.st_mode))
		errno = EISDIR;
	else if (change->exclusive)
		errno = EEXIST;
	else
		return 0;
	return -1;
}

/* The index, ours to change. */
static int read_or_set_aside(int dir_fd, const char *file, struct cell__index_cache *cache, json_t **ret_index,
			     struct cell__index_outcome *outcome, struct cell_error *err)
{
	struct cell_error why = { 0 };
	json_t *kept = find_kept(cache, dir_fd, file, true);
	if (kept) {
		/* Readers get it from the cache, which no longer has it: we are the only holder. */
		bool shared = __atomic_load_n(&kept->refcount, __ATOMIC_ACQUIRE) > 1;
		*ret_index = shared ? json_copy(kept) : json_incref(kept);
		json_decref(kept);
		return *ret_index ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "read index %s", file);
	}
	if (cell__index_read(dir_fd, file, NULL, ret_index, &why) == 0)
		return 0;
	if (why.sys != EUCLEAN) {
		if (err)
			*err = why;
		return -1;
	}
	if (set_aside(dir_fd, file, &why) < 0)
		return cell_fail(err, CELL_E_IO, errno, "move the unreadable index %s aside", file);
	outcome->broken = true;
	outcome->notice = why;
	return cell__index_read(dir_fd, file, NULL, ret_index, err);
}

static int change_index(json_t *index, const struct cell__index_change *change)
{
	if (change->entry)
		return json_object_set(index, change->key, change->entry);
	json_object_del(index, change->key);
	return 0;
}

int cell__index_apply(int dir_fd, const char *file, struct cell__index_cache *cache, const struct cell__index_change *change,
		      struct cell__index_outcome *ret_outcome, struct cell_error *err)
{
	CELL_AUTO_FD int lock = -1;
	struct cell__index_outcome outcome = { 0 };
	if (cell__index_lock(dir_fd, true, &lock, err) < 0)
		return -1;
	const char *last;
	CELL_AUTO_FD int parent = cell__path_open_parent(dir_fd, change->path, false, &last);
	int64_t old_ino = 0;
	if (parent < 0 ? errno != ENOENT || change->temp : target_inode(change, parent, last, &old_ino) < 0)
		return cell_fail(err, CELL_E_IO, errno, "'%.150s'", change->path);
	json_t *index = NULL;
	if (read_or_set_aside(dir_fd, file, cache, &index, &outcome, err) < 0)
		return -1;
	outcome.existed = old_ino != 0;
	struct cell__temp index_temp = CELL__TEMP_INIT;
	struct timespec written;
	struct stat st = { 0 };
	int rc = 0;
	if (!change->temp && old_ino == 0 && !json_object_get(index, change->key))
		goto done; /* nothing to remove */
	if (change_index(index, change) < 0) {
		rc = cell_fail(err, CELL_E_NOMEM, 0, "change index %s", file);
	} else if (write_index_temp(dir_fd, index, &index_temp, &written) < 0 || (change->unsynced && cell__temp_sync(change->temp) < 0) ||
		   (change->temp && fstat(change->temp->fd, &st) < 0) ||
		   carry_out(dir_fd, file, change, parent >= 0 ? parent : dir_fd, last, &index_temp,
			     change->temp ? (int64_t)st.st_ino : old_ino) < 0) {
		rc = cell_fail(err, errno == EFBIG ? CELL_E_LIMIT : CELL_E_IO, errno, "write index %s", file);
		if (!has_journal(dir_fd))
			cell__temp_discard(&index_temp);
		else
			cell__close_fd(&index_temp.fd);
	} else {
		keep_written(cache, index, dir_fd, file, &written);
	}
done:
	json_decref(index);
	if (rc == 0)
		*ret_outcome = outcome;
	return rc;
}
