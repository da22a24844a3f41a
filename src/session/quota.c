#define _GNU_SOURCE
#include "session/quota.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "core/hole.h"

#define DUE_MS 500u        /* after a cell has begun, and while one runs */
#define IDLE_MS 60000u     /* between cells: what they left running may write on */
#define SHARE 20u          /* a measurement takes at most one part in so many of the time, ... */
#define IDLE_SHARE 100u    /* ... or so many between cells */

struct cell__quota {
	struct cell__quota_config config;
	int fd;
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

static DIR *open_folder(int fd, const char *name)
{
	struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
				.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };
	CELL_AUTO_FD int found = (int)syscall(SYS_openat2, fd, name, &how, sizeof how);
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

/* One entry is counted; the folder that it is, to go on in, or NULL. */
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
		tally->reason = "its folders are nested too deeply";
		return NULL;
	}
	DIR *inner = open_folder(dirfd(dir), entry->d_name);
	if (!inner && errno != ENOENT && errno != ENOTDIR && errno != EXDEV && errno != ELOOP)
		tally->reason = "a folder in it cannot be read";
	return inner;
}

static void walk(int folder_fd, struct tally *tally)
{
	DIR *levels[CELL_LIMIT_WORKSPACE_DEPTH];
	size_t depth = 0;
	levels[0] = open_folder(folder_fd, ".");
	if (!levels[0]) {
		tally->reason = "it cannot be read";
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

bool cell__quota_measure(int folder_fd, uint64_t max_bytes, uint64_t max_files, struct cell__excess *ret_excess)
{
	struct tally tally = { .max_bytes = max_bytes, .max_files = max_files };
	walk(folder_fd, &tally);
	bool many = max_files && tally.files > max_files;
	*ret_excess = (struct cell__excess){
		.limit = many ? "workspace_files" : "workspace", .max = many ? max_files : max_bytes,
		.used = many ? tally.files : tally.bytes, .reason = tally.reason,
	};
	return is_over(&tally);
}

static void do_measure(uv_work_t *work)
{
	struct cell__quota *quota = work->data;
	int64_t began_us = cell__now_us();
	quota->found_over = cell__quota_measure(quota->fd, quota->config.max_bytes, quota->config.max_files, &quota->found) &&
			    !is_hole("workspace");
	quota->took_ms = (uint64_t)(cell__now_us() - began_us) / 1000;
}

/* ---- when ---- */

static void handle_due(uv_timer_t *timer);

static void free_quota(struct cell__quota *quota)
{
	if (!quota->closed || quota->measuring)
		return;
	cell__close_fd(&quota->fd);
	free((char *)quota->config.folder);
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
	quota->measuring = uv_queue_work(&quota->config.loop->uv, &quota->work, do_measure, handle_measured) == 0;
	if (!quota->measuring)
		set_due(quota);
}

static void handle_due(uv_timer_t *timer)
{
	measure(timer->data);
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

int cell__quota_create(const struct cell__quota_config *config, struct cell__quota **ret_quota, struct cell_error *err)
{
	struct cell__quota *quota = cell__alloc(1, sizeof *quota);
	char *folder = cell__strdup(config->folder);
	if (!quota || !folder) {
		free(quota);
		free(folder);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	quota->config = *config;
	quota->config.folder = folder;
	quota->fd = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (quota->fd < 0) {
		int error = errno;
		free(folder);
		free(quota);
		return cell_fail(err, CELL_E_IO, error, "open the workspace %.180s, to watch its limit", config->folder);
	}
	uv_timer_init(&config->loop->uv, &quota->timer);
	quota->timer.data = quota;
	*ret_quota = quota;
	return 0;
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
	uv_close((uv_handle_t *)&quota->timer, handle_closed);
}
