#define _GNU_SOURCE
#include "loop/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/vfs.h>

#include "base/base.h"

#define MOVED (IN_DELETE_SELF | IN_MOVE_SELF | IN_ONLYDIR | IN_MASK_ADD)
#define CONTENTS (IN_CREATE | IN_DELETE | IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO)
#define READS_AT_ONCE 64 /* of events that do not matter; where more have come, looking again is as cheap */

int cell__watch_begin(struct cell__watch *watch)
{
	cell__close_fd(&watch->fd);
	watch->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	return watch->fd < 0 ? -1 : 0;
}

void cell__watch_end(struct cell__watch *watch)
{
	cell__close_fd(&watch->fd);
}

/* These file systems do not report changes made on another machine. */
static bool is_remote(int fd)
{
	static const unsigned long kinds[] = { NFS_SUPER_MAGIC, SMB_SUPER_MAGIC,  CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC, FUSE_SUPER_MAGIC,
					       V9FS_MAGIC,      CEPH_SUPER_MAGIC, AFS_SUPER_MAGIC,  CODA_SUPER_MAGIC };
	struct statfs fs;
	if (fstatfs(fd, &fs) < 0)
		return true;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		if (((unsigned long)fs.f_type & 0xffffffffu) == kinds[i])
			return true;
	return false;
}

int cell__watch_folder(struct cell__watch *watch, int dir_fd)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", dir_fd);
	if (watch->fd >= 0 && !is_remote(dir_fd) && inotify_add_watch(watch->fd, path, CONTENTS | MOVED) >= 0)
		return 0;
	cell__watch_end(watch);
	return -1;
}

/* Each parent folder reports when it is moved; a symbolic link among them is refused, because it could change its target. */
static int watch_above(const struct cell__watch *watch, const char *path)
{
	char above[PATH_MAX];
	if (path[0] != '/' || strlen(path) >= sizeof above)
		return -1;
	for (const char *slash = path + 1; (slash = strchr(slash, '/')); slash++) {
		memcpy(above, path, (size_t)(slash - path));
		above[slash - path] = '\0';
		if (inotify_add_watch(watch->fd, above, MOVED | IN_DONT_FOLLOW) < 0)
			return -1;
	}
	return 0;
}

int cell__watch_path(struct cell__watch *watch, const char *path)
{
	CELL_AUTO_FD int fd = -1;
	if (watch->fd >= 0 && watch_above(watch, path) == 0)
		fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		return cell__watch_folder(watch, fd);
	cell__watch_end(watch);
	return -1;
}

static bool one_matters(const struct inotify_event *event, bool (*matters)(const char *name))
{
	/* An event without a name concerns the folder itself, or events were lost. */
	return event->len == 0 || (event->mask & (IN_Q_OVERFLOW | IN_UNMOUNT | IN_IGNORED)) || matters(event->name);
}

bool cell__watch_quiet(const struct cell__watch *watch, bool (*matters)(const char *name))
{
	char events[4096] __attribute__((aligned(__alignof__(struct inotify_event))));
	if (watch->fd < 0)
		return false;
	for (int i = 0; i < READS_AT_ONCE; i++) {
		ssize_t n = read(watch->fd, events, sizeof events);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 && errno == EAGAIN;
		for (ssize_t at = 0; at < n;) {
			const struct inotify_event *event = (const struct inotify_event *)(events + at);
			if (one_matters(event, matters))
				return false;
			at += (ssize_t)(sizeof *event + event->len);
		}
	}
	return false;
}
