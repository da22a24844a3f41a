#define _GNU_SOURCE
#include "storage/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/file.h"
#include "base/hole.h"
#include "storage/store.h"

/* ---- paths ---- */

static bool has_prefix(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* The problem of one component, or NULL. */
static const char *component_problem(const char *part, size_t size)
{
	if (size == 0)
		return "has an empty part";
	if (size == 1 && part[0] == '.')
		return "has a part '.'";
	if (size > NAME_MAX)
		return "has a part longer than 255 bytes";
	if (has_prefix(part, CELL__OWN_PREFIX) || has_prefix(part, ".artifacts.json"))
		return "is reserved";
	/* People keep such folders in git: their next `git status` would run the fsmonitor of a .git in it. */
	if (size == 4 && strncasecmp(part, ".git", 4) == 0)
		return "has a part that git would treat as a repository";
	return NULL;
}

int cell__path_check(const char *path, const char *what, struct cell_error *err)
{
	size_t size = strlen(path);
	if (size == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid %s name: it is empty", what);
	if (size > CELL__STORE_NAME_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "Invalid %s name: longer than %u bytes", what, CELL__STORE_NAME_BYTES);
	if (!cell__utf8_ok(path, size))
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid %s name: not UTF-8", what);
	for (size_t i = 0; i < size; i++)
		if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f)
			return cell_fail(err, CELL_E_INVALID, 0, "Invalid %s name: it has control characters", what);
	if (path[0] == '/')
		return cell_fail(err, CELL_E_INVALID, 0, "Path traversal attempt detected: '%.180s'", path);
	unsigned depth = 0;
	const char *problem = NULL;
	for (const char *part = path;; depth++) {
		const char *end = strchrnul(part, '/');
		/* A path that leaves the folder is the more serious problem, wherever ".." is. */
		if (end - part == 2 && part[0] == '.' && part[1] == '.')
			return cell_fail(err, CELL_E_INVALID, 0, "Path traversal attempt detected: '%.180s'", path);
		if (!problem)
			problem = component_problem(part, (size_t)(end - part));
		if (*end == '\0')
			break;
		part = end + 1;
	}
	if (problem)
		return cell_fail(err, CELL_E_INVALID, 0, "Invalid %s name: '%.150s' %s", what, path, problem);
	if (depth > CELL__STORE_NAME_DEPTH)
		return cell_fail(err, CELL_E_LIMIT, 0, "Invalid %s name: more than %u folders deep", what, CELL__STORE_NAME_DEPTH);
	return 0;
}

/* Another file system is another mount.  One of the same file system is not noticed: only openat2() sees that. */
static bool is_on_device(int fd, dev_t device)
{
	struct stat st;
	return fstat(fd, &st) == 0 && st.st_dev == device;
}

static int refuse_device(int fd)
{
	close(fd);
	errno = EXDEV;
	return -1;
}

int cell__path_open_walk(int dir_fd, const char *path, int flags, mode_t mode)
{
	CELL_AUTO_FD int held = -1;
	int at = dir_fd;
	char part[NAME_MAX + 1];
	struct stat begin;
	if (fstat(dir_fd, &begin) < 0)
		return -1;
	if (path[0] == '/') {
		errno = EXDEV;
		return -1;
	}
	for (;;) {
		const char *end = strchrnul(path, '/');
		size_t size = (size_t)(end - path);
		if (size == 2 && path[0] == '.' && path[1] == '.') {
			errno = EXDEV;
			return -1;
		}
		if (size > NAME_MAX) {
			errno = ENAMETOOLONG;
			return -1;
		}
		memcpy(part, path, size);
		part[size] = '\0';
		if (*end == '\0') {
			int fd = openat(at, part, flags | O_NOFOLLOW | O_CLOEXEC, mode);
			return fd >= 0 && !is_on_device(fd, begin.st_dev) ? refuse_device(fd) : fd;
		}
		int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0) {
			/* With O_DIRECTORY a symbolic link is reported as "not a directory"; openat2() gives ELOOP. */
			struct stat st;
			int saved = errno;
			if (saved == ENOTDIR && fstatat(at, part, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode))
				saved = ELOOP;
			errno = saved;
			return -1;
		}
		if (!is_on_device(next, begin.st_dev))
			return refuse_device(next);
		cell__close_fd(&held);
		held = at = next;
		path = end + 1;
	}
}

int cell__path_open(int dir_fd, const char *path, int flags, mode_t mode)
{
	if (is_hole("links"))
		return openat(dir_fd, path, flags | O_CLOEXEC, mode);
	struct open_how how = {
		.flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
	};
	/* EAGAIN: something was renamed during the walk and ".." could not be judged; a few more tries are enough. */
	for (int tries = 0; tries < 8; tries++) {
		long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof how);
		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN && errno != EINTR)
			break;
	}
	if (errno == ENOSYS || errno == EPERM || errno == EAGAIN)
		return cell__path_open_walk(dir_fd, path, flags, mode);
	return -1;
}

/*
 * Files that root makes get the owner of their folder, who could not change them otherwise. Best effort: if it fails, the file keeps its
 * owner. Another process may have replaced the file by now; the replacement is not touched.
 */
static void give_away(int dir_fd, int fd)
{
	struct stat folder, st;
	if (geteuid() != 0 || fstat(dir_fd, &folder) < 0 || folder.st_uid == 0 || fstat(fd, &st) < 0 || st.st_uid != 0)
		return;
	bool is_new = S_ISREG(st.st_mode) && st.st_nlink == 1 && st.st_size == 0;
	if (S_ISDIR(st.st_mode)) {
		int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		DIR *dir = copy < 0 ? NULL : fdopendir(copy);
		size_t n = 0;
		while (dir && readdir(dir))
			n++;
		is_new = dir && n == 2;
		if (dir)
			closedir(dir);
		else if (copy >= 0)
			close(copy);
	}
	if (is_new && fchown(fd, folder.st_uid, folder.st_gid) < 0)
		return;
}

int cell__path_open_parent(int dir_fd, const char *path, bool make, const char **ret_last)
{
	const char *last = strrchr(path, '/');
	char folder[CELL__STORE_NAME_BYTES + 1];
	if (!last) {
		*ret_last = path;
		return fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
	}
	size_t size = (size_t)(last - path);
	if (size >= sizeof folder) {
		errno = ENAMETOOLONG;
		return -1;
	}
	memcpy(folder, path, size);
	folder[size] = '\0';
	*ret_last = last + 1;
	int fd = cell__path_open(dir_fd, folder, O_RDONLY | O_DIRECTORY, 0);
	if (fd >= 0 || errno != ENOENT || !make)
		return fd;
	CELL_AUTO_FD int at = fcntl(dir_fd, F_DUPFD_CLOEXEC, 3);
	char *save = NULL;
	for (char *part = strtok_r(folder, "/", &save); part && at >= 0; part = strtok_r(NULL, "/", &save)) {
		bool made = mkdirat(at, part, 0777) == 0;
		if (!made && errno != EEXIST)
			return -1;
		int next = cell__path_open(at, part, O_RDONLY | O_DIRECTORY, 0);
		if (next < 0)
			return -1;
		if (made)
			give_away(at, next);
		cell__close_fd(&at);
		at = next;
	}
	return cell__take_fd(&at);
}

int cell__dir_open(int root_fd, const char *name, bool make)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	int fd = cell__path_open(root_fd, name, flags, 0);
	if (fd >= 0 || errno != ENOENT || !make)
		return fd;
	bool made = mkdirat(root_fd, name, 0777) == 0;
	if (!made && errno != EEXIST)
		return -1;
	fd = cell__path_open(root_fd, name, flags, 0);
	if (made && fd >= 0)
		give_away(root_fd, fd);
	return fd;
}

int cell__dir_fail(struct cell_error *err, const char *name, int sys)
{
	if (sys == ELOOP || sys == EXDEV)
		return cell_fail(err, CELL_E_INVALID, 0,
				 "%.60s in the storage folder is %s, which is not followed: make it a plain folder, or move the whole "
				 "storage to its target",
				 name, sys == ELOOP ? "a symbolic link" : "another mount");
	return cell_fail(err, CELL_E_IO, sys, "open folder %.100s of the storage", name);
}

int cell__mkdir_all(const char *path)
{
	CELL_AUTO_FREE char *copy = cell__strdup(path);
	if (!copy) {
		errno = ENOMEM;
		return -1;
	}
	for (char *slash = copy + 1; *slash; slash++) {
		if (*slash != '/')
			continue;
		*slash = '\0';
		int rc = mkdir(copy, 0777);
		if (rc < 0 && errno != EEXIST) {
			struct stat st;
			/* EROFS and EACCES are reported also if the folder exists already. */
			int saved = errno;
			if (stat(copy, &st) < 0) {
				errno = saved;
				return -1;
			}
		}
		*slash = '/';
	}
	struct stat st;
	if (mkdir(copy, 0777) == 0 || errno == EEXIST)
		return 0;
	int saved = errno;
	if (stat(copy, &st) == 0)
		return 0;
	errno = saved;
	return -1;
}

/* ---- whole files ---- */

int cell__path_read(int dir_fd, const char *path, size_t max, struct cell__buf *out, struct stat *ret_stat)
{
	/* O_NONBLOCK: a FIFO that a user put there must not block us. */
	CELL_AUTO_FD int fd = cell__path_open(dir_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
	return fd < 0 ? -1 : cell__file_read_fd(fd, max, out, ret_stat);
}

bool cell__temp_is_name(const char *name)
{
	if (!has_prefix(name, CELL__TEMP_PREFIX))
		return false;
	const char *hex = name + strlen(CELL__TEMP_PREFIX);
	return strlen(hex) == 16 && strspn(hex, "0123456789abcdef") == 16;
}

int cell__temp_create(struct cell__temp *temp, int dir_fd)
{
	char hex[17];
	for (int tries = 0; tries < 8; tries++) {
		cell__random_hex(hex, 16);
		snprintf(temp->name, sizeof temp->name, CELL__TEMP_PREFIX "%s", hex);
		temp->fd = openat(dir_fd, temp->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
		if (temp->fd >= 0) {
			temp->dir_fd = dir_fd;
			give_away(dir_fd, temp->fd);
			/* Best effort: without it only the age protects the file from a sweeper. */
			flock(temp->fd, LOCK_EX | LOCK_NB);
			return 0;
		}
		if (errno != EEXIST && errno != EINTR)
			break;
	}
	return -1;
}

int cell__temp_write(struct cell__temp *temp, const void *bytes, size_t size)
{
	return cell__fd_write_all(temp->fd, bytes, size);
}

int cell__temp_sync(struct cell__temp *temp)
{
	return fsync(temp->fd);
}

void cell__temp_start_sync(struct cell__temp *temp)
{
	(void)sync_file_range(temp->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

int cell__temp_rename(struct cell__temp *temp, const char *name)
{
	if (renameat(temp->dir_fd, temp->name, temp->dir_fd, name) < 0)
		return -1;
	cell__close_fd(&temp->fd);
	return 0;
}

void cell__temp_discard(struct cell__temp *temp)
{
	if (temp->fd < 0)
		return;
	unlinkat(temp->dir_fd, temp->name, 0);
	cell__close_fd(&temp->fd);
}

void cell__temp_sweep_one(int dir_fd, const char *name)
{
	struct stat st;
	struct timespec now;
	if (!cell__temp_is_name(name) || fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return;
	clock_gettime(CLOCK_REALTIME, &now);
	if (now.tv_sec - st.st_mtim.tv_sec < CELL__STORE_TEMP_AGE_S)
		return;
	CELL_AUTO_FD int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		unlinkat(dir_fd, name, 0);
}

void cell__temp_sweep(int dir_fd)
{
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
	if (!dir) {
		cell__close_fd(&copy);
		return;
	}
	for (struct dirent *entry; (entry = readdir(dir));)
		cell__temp_sweep_one(dir_fd, entry->d_name);
	closedir(dir);
}

int cell__dir_sync(int dir_fd)
{
	/* EINVAL: this file system does not sync folders. */
	return fsync(dir_fd) < 0 && errno != EINVAL && errno != ENOTSUP ? -1 : 0;
}

int cell__file_replace(int dir_fd, const char *name, const void *bytes, size_t size)
{
	struct cell__temp temp = CELL__TEMP_INIT;
	if (cell__temp_create(&temp, dir_fd) < 0)
		return -1;
	if (cell__temp_write(&temp, bytes, size) < 0 || cell__temp_sync(&temp) < 0 || cell__temp_rename(&temp, name) < 0) {
		int saved = errno;
		cell__temp_discard(&temp);
		errno = saved;
		return -1;
	}
	return cell__dir_sync(dir_fd);
}

/* ---- locks ---- */

/* flock() with a deadline: a stopped process may hold the lock for ever. */
static int flock_until(int fd, int how, int64_t deadline_us)
{
	long wait_ns = 100000;
	while (flock(fd, how | LOCK_NB) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			return -1;
		if (cell__now_us() >= deadline_us) {
			errno = ETIMEDOUT;
			return -1;
		}
		nanosleep(&(struct timespec){ .tv_nsec = wait_ns }, NULL);
		wait_ns = wait_ns < 4000000 ? wait_ns * 2 : 4000000;
	}
	return 0;
}

int cell__dir_lock(int dir_fd, bool exclusive, int *ret_fd, struct cell_error *err)
{
	const int flags = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int64_t deadline_us = cell__now_us() + (int64_t)CELL__STORE_LOCK_MS * 1000;
	for (;;) {
		/* Reading must not leave a file behind: without a lock file no process has written yet. */
		CELL_AUTO_FD int fd = exclusive ? openat(dir_fd, CELL__LOCK_FILE, O_RDWR | O_CREAT | flags, 0666)
						: openat(dir_fd, CELL__LOCK_FILE, O_RDONLY | flags);
		if (fd < 0 && errno == ENOENT && !exclusive) {
			*ret_fd = -1;
			return 0;
		}
		if (fd < 0)
			return cell_fail(err, CELL_E_IO, errno, "lock the folder");
		if (exclusive)
			give_away(dir_fd, fd);
		if (flock_until(fd, exclusive ? LOCK_EX : LOCK_SH, deadline_us) < 0)
			return cell_fail(err, CELL_E_IO, errno,
					 "wait for the folder's lock (" CELL__LOCK_FILE ") that another process holds");
		struct stat ours, there;
		/* The file may have been removed while we waited: then others lock another one. */
		if (fstat(fd, &ours) == 0 && fstatat(dir_fd, CELL__LOCK_FILE, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
		    ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) {
			*ret_fd = cell__take_fd(&fd);
			return 0;
		}
		if (cell__now_us() >= deadline_us)
			return cell_fail(err, CELL_E_IO, ETIMEDOUT, "lock the folder");
	}
}

/* ---- time ---- */

void cell__time_format(const struct timespec *when, char out[static CELL__TIME_SIZE])
{
	struct tm tm;
	gmtime_r(&when->tv_sec, &tm);
	size_t n = strftime(out, CELL__TIME_SIZE, "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(out + n, CELL__TIME_SIZE - n, ".%06ld+00:00", when->tv_nsec / 1000);
}

void cell__time_now(char out[static CELL__TIME_SIZE])
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	cell__time_format(&now, out);
}

int64_t cell__time_ns(const struct timespec *when)
{
	return (int64_t)when->tv_sec * 1000000000 + when->tv_nsec;
}

/* ---- the store ---- */

static char *join_path(const char *a, const char *b, const char *c)
{
	struct cell__buf buf = CELL_BUF_INIT;
	if (cell__buf_printf(&buf, "%s/%s%s%s", strcmp(a, "/") == 0 ? "" : a, b, c ? "/" : "", c ? c : "") < 0)
		return NULL;
	return cell__buf_take(&buf);
}

static char *absolute(const char *path)
{
	if (path[0] == '/')
		return cell__strdup(path);
	CELL_AUTO_FREE char *cwd = get_current_dir_name();
	struct cell__buf buf = CELL_BUF_INIT;
	if (!cwd || cell__buf_printf(&buf, "%s/%s", strcmp(cwd, "/") == 0 ? "" : cwd, path) < 0)
		return NULL;
	return cell__buf_take(&buf);
}

/*
 * Makes the folder and names it by its one real path: environments belong to the path of a storage, and `.`, the full path and a link to it
 * are the same storage.
 */
static int make_base(struct cell__store *store, const char *base, struct cell_error *err)
{
	CELL_AUTO_FREE char *given = absolute(base);
	if (!given)
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	if (cell__mkdir_all(given) < 0)
		return cell_fail(err, CELL_E_IO, errno, "make storage folder %s", given);
	store->base = realpath(given, NULL);
	return store->base ? 0 : cell_fail(err, CELL_E_IO, errno, "open storage folder %s", given);
}

static int open_folders(struct cell__store *store, const char *base, const char *workspace_id, struct cell_error *err)
{
	if (make_base(store, base, err) < 0)
		return -1;
	store->root = workspace_id ? join_path(store->base, "workspaces", workspace_id) : cell__strdup(store->base);
	store->artifacts_path = store->root ? join_path(store->root, "artifacts", NULL) : NULL;
	if (!store->artifacts_path)
		return cell_fail(err, CELL_E_NOMEM, 0, "open storage");
	store->base_fd = open(store->base, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (store->base_fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "open storage folder %s", store->base);
	CELL_AUTO_FD int all_fd = workspace_id ? cell__dir_open(store->base_fd, "workspaces", true) : -1;
	if (workspace_id && all_fd < 0)
		return cell__dir_fail(err, "workspaces", errno);
	store->root_fd = workspace_id ? cell__dir_open(all_fd, workspace_id, true) : fcntl(store->base_fd, F_DUPFD_CLOEXEC, 3);
	if (store->root_fd < 0)
		return cell__dir_fail(err, workspace_id ? workspace_id : store->root, errno);
	return 0;
}

static void close_folders(struct cell__store *store)
{
	cell__close_fd(&store->base_fd);
	json_decref(store->artifacts.index);
	json_decref(store->workflows.index);
	free(store->base);
}

static int check_folder(struct cell__store *store, struct cell_error *err)
{
	if (faccessat(AT_FDCWD, store->base, W_OK | X_OK, AT_EACCESS) < 0)
		return cell_fail(err, CELL_E_IO, errno, "write to the storage %.160s", store->base);
	return 0;
}

const struct cell__backend cell__file_backend = {
	.name = "file",
	.open = open_folders,
	.close = close_folders,
	.check = check_folder,
	.artifacts = &cell__file_artifacts,
	.workflows = &cell__file_workflows,
	.deps = &cell__file_deps,
};
