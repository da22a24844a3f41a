#define _GNU_SOURCE
#include "session/quota.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "base/hole.h"

#define DUE_MS 500u        /* after a cell has begun, and while one runs */
#define IDLE_MS 60000u     /* between cells: processes that they left running may write */
#define SHARE 20u          /* a measurement takes at most one part in so many of the time, ... */
#define IDLE_SHARE 100u    /* ... or so many between cells */

struct folder {
	char *path;
	int fd; /* -1: it does not exist yet, or is not a folder */
};

struct cell__quota {
	struct cell__quota_config config;
	struct folder *folders; /* the pool's, while it measures */
	size_t n_folders;
	uv_timer_t timer;
	uv_work_t work;
	bool measuring, closing, closed;
	bool running; /* a cell */
	bool asked;   /* admit() waits */
	bool fresh;   /* the last measurement was made for admit() */
	bool is_over;
	struct cell__excess excess;
	/* the pool's, while it measures */
	bool found_over;
	struct cell__excess found;
	uint64_t took_ms;
};

/* ---- measuring; on the pool ---- */

/* Mounts below are writable for the code too, unless they are mounted read-only: then ENOENT. */
static DIR *open_folder(int fd, const char *name)
{
	struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };
	CELL_AUTO_FD int found = (int)syscall(SYS_openat2, fd, name, &how, sizeof how);
	if (found < 0 && errno == EXDEV) {
		struct statvfs fs;
		how.resolve &= ~(uint64_t)RESOLVE_NO_XDEV;
		found = (int)syscall(SYS_openat2, fd, name, &how, sizeof how);
		if (found >= 0 && fstatvfs(found, &fs) == 0 && (fs.f_flag & ST_RDONLY)) {
			errno = ENOENT;
			return NULL;
		}
	}
	DIR *dir = found >= 0 ? fdopendir(found) : NULL;
	if (dir)
		(void)cell__take_fd(&found);
	return dir;
}

struct tally {
	uint64_t bytes, files, max_bytes, max_files;
	const char *reason;
};

static bool is_over(const struct tally *tally)
{
	return tally->reason || (tally->max_bytes && tally->bytes > tally->max_bytes) ||
	       (tally->max_files && tally->files > tally->max_files);
}

/* Counts one entry; returns it as a folder to descend into, or NULL. */
static DIR *count_entry(struct tally *tally, DIR *dir, const struct dirent *entry, bool is_deep)
{
	struct stat st;
	if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) < 0)
		return NULL; /* gone meanwhile */
	tally->files++;
	tally->bytes += (uint64_t)st.st_blocks * 512;
	if (!S_ISDIR(st.st_mode))
		return NULL;
	if (is_deep) {
		tally->reason = "folders are nested too deeply";
		return NULL;
	}
	DIR *inner = open_folder(dirfd(dir), entry->d_name);
	if (!inner && errno != ENOENT && errno != ENOTDIR && errno != ELOOP)
		tally->reason = "a folder cannot be read";
	return inner;
}

static void walk(int folder_fd, struct tally *tally)
{
	DIR *levels[CELL_LIMIT_WORKSPACE_DEPTH];
	size_t depth = 0;
	levels[0] = open_folder(folder_fd, ".");
	if (!levels[0]) {
		tally->reason = "a folder cannot be read";
		return;
	}
	depth = 1;
	while (depth > 0) {
		DIR *dir = levels[depth - 1];
		const struct dirent *entry = is_over(tally) ? NULL : readdir(dir);
		if (!entry) {
			closedir(dir);
			depth--;
			continue;
		}
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		DIR *inner = count_entry(tally, dir, entry, depth == CELL_LIMIT_WORKSPACE_DEPTH);
		if (inner)
			levels[depth++] = inner;
	}
}

/* Not a folder: no descriptor is held, or files that the host deletes would stay on the disk. */
static void count_file(const struct folder *file, struct tally *tally)
{
	struct stat st;
	if (stat(file->path, &st) == 0) {
		tally->files++;
		tally->bytes += (uint64_t)st.st_blocks * 512;
	} else if (errno != ENOENT && errno != ENOTDIR) { /* the sandbox does not show a missing one either */
		tally->reason = "a file cannot be read";
	}
}

static void measure_folder(struct folder *folder, struct tally *tally)
{
	struct stat st;
	if (folder->fd >= 0 && fstat(folder->fd, &st) == 0 && st.st_nlink == 0)
		cell__close_fd(&folder->fd); /* the host has deleted it, and perhaps made another */
	if (folder->fd < 0)
		folder->fd = open(folder->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (folder->fd >= 0)
		walk(folder->fd, tally);
	else
		count_file(folder, tally);
}

static void do_measure(uv_work_t *work)
{
	struct cell__quota *quota = work->data;
	int64_t began_us = cell__now_us();
	struct tally tally = { .max_bytes = quota->config.max_bytes, .max_files = quota->config.max_files };
	for (size_t i = 0; i < (is_hole("workspace-write") ? 1 : quota->n_folders) && !is_over(&tally); i++)
		measure_folder(&quota->folders[i], &tally);
	bool many = tally.max_files && tally.files > tally.max_files;
	quota->found = (struct cell__excess){
		.limit = many ? "workspace_files" : "workspace",
		.max = many ? tally.max_files : tally.max_bytes,
		.used = many ? tally.files : tally.bytes,
		.reason = tally.reason,
	};
	quota->found_over = is_over(&tally) && !is_hole("workspace");
	quota->took_ms = (uint64_t)(cell__now_us() - began_us) / 1000;
}

/* ---- when ---- */

static void handle_due(uv_timer_t *timer);

static void free_quota(struct cell__quota *quota)
{
	if (!quota->closed || quota->measuring)
		return;
	for (size_t i = 0; i < quota->n_folders; i++) {
		cell__close_fd(&quota->folders[i].fd);
		free(quota->folders[i].path);
	}
	free(quota->folders);
	free(quota);
}

static void set_due(struct cell__quota *quota)
{
	uint64_t least = quota->running ? DUE_MS : IDLE_MS, share = quota->took_ms * (quota->running ? SHARE : IDLE_SHARE);
	uv_timer_start(&quota->timer, handle_due, least > share ? least : share, 0);
}

static void handle_measured(uv_work_t *work, int status)
{
	(void)status;
	struct cell__quota *quota = work->data;
	quota->measuring = false;
	if (quota->closing) {
		free_quota(quota);
		return;
	}
	quota->is_over = quota->found_over;
	quota->excess = quota->found;
	set_due(quota);
	bool asked = quota->asked;
	quota->fresh = asked;
	quota->asked = false;
	/* The owner may be gone after either. */
	if (asked)
		quota->config.measured(quota->config.owner);
	else if (quota->is_over)
		quota->config.over(quota->config.owner);
}

static void measure(struct cell__quota *quota)
{
	if (quota->measuring)
		return;
	quota->work.data = quota;
	uv_timer_stop(&quota->timer);
	quota->measuring = uv_queue_work(cell__loop_uv(quota->config.loop), &quota->work, do_measure, handle_measured) == 0;
	if (!quota->measuring)
		set_due(quota);
}

static void handle_due(uv_timer_t *timer)
{
	measure(timer->data);
}

void cell__quota_hand_over(struct cell__quota *quota, void *owner)
{
	if (quota)
		quota->config.owner = owner;
}

void cell__quota_touch(struct cell__quota *quota, bool running)
{
	if (!quota)
		return;
	quota->running = running;
	/* The end of a cell is measured as its beginning was going to be: soon after. */
	if (!quota->measuring && (!uv_is_active((uv_handle_t *)&quota->timer) || uv_timer_get_due_in(&quota->timer) > DUE_MS)) {
		uint64_t share = quota->took_ms * SHARE;
		uv_timer_start(&quota->timer, handle_due, share > DUE_MS ? share : DUE_MS, 0);
	}
}

void cell__quota_changed(struct cell__quota *quota)
{
	if (quota)
		cell__quota_touch(quota, quota->running);
}

uint64_t cell__quota_left(const struct cell__quota *quota)
{
	if (!quota || (!quota->config.max_bytes && !quota->is_over))
		return UINT64_MAX;
	uint64_t used = quota->excess.used, max = quota->config.max_bytes; /* below the limit those are bytes */
	return quota->is_over || used > max ? 0 : max - used;
}

int cell__quota_admit(struct cell__quota *quota, struct cell__excess *ret_excess)
{
	if (!quota || !quota->is_over)
		return 0;
	if (quota->fresh) {
		quota->fresh = false;
		*ret_excess = quota->excess;
		return -1;
	}
	quota->asked = true;
	measure(quota);
	return 1;
}

const struct cell__excess *cell__quota_excess(const struct cell__quota *quota)
{
	return &quota->excess;
}

/* ---- life ---- */

static int add_folder(struct cell__quota *quota, const char *path, struct cell_error *err)
{
	struct folder folder = { .path = cell__strdup(path), .fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) };
	if (folder.fd < 0 && errno != ENOENT && errno != ENOTDIR) {
		int error = errno;
		free(folder.path);
		return cell_fail(err, CELL_E_IO, error, "open %.180s to measure it against its limit", path);
	}
	if (!folder.path) {
		cell__close_fd(&folder.fd);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	quota->folders[quota->n_folders++] = folder;
	return 0;
}

int cell__quota_create(const struct cell__quota_config *config, struct cell__quota **ret_quota, struct cell_error *err)
{
	struct cell__quota *quota = cell__alloc(1, sizeof *quota);
	if (quota)
		quota->folders = cell__alloc(config->n_folders, sizeof *quota->folders);
	if (!quota || !quota->folders) {
		free(quota);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	quota->closed = true; /* no timer yet */
	quota->config = *config;
	quota->config.folders = NULL;
	for (size_t i = 0; i < config->n_folders; i++)
		if (add_folder(quota, config->folders[i], err) < 0) {
			free_quota(quota);
			return -1;
		}
	*ret_quota = quota;
	return 0;
}

void cell__quota_start(struct cell__quota *quota)
{
	if (!quota)
		return;
	uv_timer_init(cell__loop_uv(quota->config.loop), &quota->timer);
	quota->timer.data = quota;
	quota->closed = false;
}

static void handle_closed(uv_handle_t *handle)
{
	struct cell__quota *quota = handle->data;
	quota->closed = true;
	free_quota(quota);
}

void cell__quota_destroy(struct cell__quota *quota)
{
	if (!quota)
		return;
	quota->closing = true;
	if (quota->closed)
		free_quota(quota);
	else
		uv_close((uv_handle_t *)&quota->timer, handle_closed);
}
