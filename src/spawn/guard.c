/*
 * Theory of operation
 *
 * pid 1 of a jail serves the listener of the code's filter.  It is the right process: it lies in the jail's namespaces and has the code's
 * user, groups and cgroup, so each operation that it performs costs and may do what the code's own would; the code can neither signal nor
 * trace it; and all ends with it.  It is not under Landlock, because a process of a Landlock domain reads no memory of another domain; in
 * its place is the list of places that may be written to, the same as Landlock's.
 *
 * For each call:
 *
 *     1. copy the path out of the caller's memory, once;
 *     2. resolve it to an open folder (O_PATH) and a last name that is no link, from the caller's working folder or descriptor, which
 *        /proc has;
 *     3. judge the folder's path, as the system tells it, and the name: is this place writable, is a name on the way protected?
 *     4. perform the call on that folder and name, following no link.
 *
 * Why this cannot be raced.  The folder is held; only a rename could bring it below a protected name between 3 and 4.  All renames of all
 * guarded processes come here or to the pid 1 of another sandbox, and none of them makes a protected name.  A link that appears in the place
 * of the last name is not followed in 4: the call begins again.
 *
 * "/proc/self" is another process for us than for the caller: a path that touches /proc is resolved step by step, with the caller's
 * number, and never enters our own folder there.
 *
 * Calls are served one after the other, and must not wait for the code: a fifo is opened without waiting for a reader.
 */
#define _GNU_SOURCE
#include "spawn/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/base.h"
#include "base/protected.h"
#include "sandbox/apply.h"
#include "sandbox/guard.h"

#ifndef SECCOMP_ADDFD_FLAG_SEND
#define SECCOMP_ADDFD_FLAG_SEND (1UL << 1)
#endif
#define SET_FLAGS SECCOMP_IOW(4, uint64_t) /* Linux 6.6: SECCOMP_IOCTL_NOTIF_SET_FLAGS */
#define SYNC_WAKE_UP 1ul

#define LINKS_MAX 40
#define TRIES_MAX 100 /* while somebody exchanges the last name and a link */
#define ANSWERED LONG_MIN

/* Bits that open() knows; it ignores others, openat2() refuses them. */
#define OPEN_BITS                                                                                                                         \
	(O_ACCMODE | O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_SYNC | O_DSYNC | FASYNC | O_DIRECT | O_LARGEFILE | \
	 O_DIRECTORY | O_NOFOLLOW | O_NOATIME | O_CLOEXEC | O_TMPFILE)
#define UNNAMED (O_TMPFILE & ~O_DIRECTORY)

static struct {
	int listen_fd;
	int notify_fd; /* of the call that is being served */
	int listeners[CELL_GUARD_MAX_LISTENERS];
	size_t n_listeners;
	char text[CELL_GUARD_MAX_BYTES]; /* places and names, as in the hello */
	size_t size;
	dev_t proc_dev;
	ino_t proc_ino;
	mode_t umask;
} guard = { .listen_fd = -1, .notify_fd = -1 };

/* Written to in every sandbox (sandbox/build.c), and its own. */
static const char *const own_places[] = {
	"/tmp", "/dev/shm", "/dev/pts", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", NULL,
};

/* ---- judging ---- */

enum verdict {
	OUTSIDE,   /* in no place that may be written to */
	FREE,      /* names do not matter here */
	USUAL,     /* no protected name */
	EXEMPT,    /* below a protected name that the policy allows */
	PROTECTED,
};

static bool is_under(const char *path, const char *place, size_t n)
{
	return strncmp(path, place, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/* Is the name one that the policy allows? */
static bool is_allowed(const char *name, size_t size)
{
	for (const char *at = guard.text; at < guard.text + guard.size; at += strlen(at) + 1)
		if (at[0] == CELL_GUARD_UNPROTECT && cell__protected_fits(at + 1, name, size))
			return true;
	return false;
}

static enum verdict judge_names(const char *rest)
{
	while (*rest) {
		rest += strspn(rest, "/");
		size_t n = strcspn(rest, "/");
		if (n > 0 && cell__protected_name(rest, n))
			return is_allowed(rest, n) ? EXEMPT : PROTECTED;
		rest += n;
	}
	return USUAL;
}

/* The longest place that the path lies in decides. */
static enum verdict judge_path(const char *path)
{
	size_t best = 0;
	bool is_free = false;
	for (const char *const *place = own_places; *place; place++)
		if (strlen(*place) > best && is_under(path, *place, strlen(*place))) {
			best = strlen(*place);
			is_free = true;
		}
	for (const char *at = guard.text; at < guard.text + guard.size; at += strlen(at) + 1) {
		size_t n = strlen(at + 1);
		if ((at[0] == CELL_GUARD_PROTECTED || at[0] == CELL_GUARD_FREE) && n >= best && n > 0 && is_under(path, at + 1, n)) {
			best = n;
			is_free = at[0] == CELL_GUARD_FREE;
		}
	}
	return best == 0 ? OUTSIDE : is_free ? FREE : judge_names(path + best);
}

/* ---- the caller ---- */

struct call {
	uint64_t id;
	pid_t tid;
	const uint64_t *args;
};

/* A string of the caller's; 0 or -errno. */
static int read_string(const struct call *call, uint64_t at, char *out, size_t size)
{
	size_t n = 0;
	while (n < size) {
		/* Not past the page: the next one may not be there. */
		size_t room = 4096 - (at + n) % 4096;
		struct iovec here = { out + n, room < size - n ? room : size - n }, there = { (void *)(uintptr_t)(at + n), here.iov_len };
		ssize_t got = process_vm_readv(call->tid, &here, 1, &there, 1, 0);
		if (got <= 0)
			return got < 0 && errno != EFAULT ? -EPERM : -EFAULT;
		if (memchr(out + n, '\0', (size_t)got))
			return 0;
		n += (size_t)got;
	}
	return -ENAMETOOLONG;
}

static int open_of(const struct call *call, const char *what)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)call->tid, what);
	int fd = open(path, O_PATH | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* The object of a descriptor of the caller's; or its working folder. */
static int open_base(const struct call *call, int dirfd)
{
	char what[32] = "cwd";
	if (dirfd != AT_FDCWD)
		snprintf(what, sizeof what, "fd/%d", dirfd);
	int fd = dirfd < 0 && dirfd != AT_FDCWD ? -EBADF : open_of(call, what);
	return fd == -ENOENT && dirfd != AT_FDCWD ? -EBADF : fd;
}

/* Takes on the caller's umask. */
static int take_umask(const struct call *call)
{
	char path[64], text[1024];
	snprintf(path, sizeof path, "/proc/%d/status", (int)call->tid);
	CELL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (n < 0)
		return -EPERM;
	text[n] = '\0';
	/* The second line: a name in the first one has no line break, that is written as "\n". */
	const char *at = strstr(text, "\nUmask:\t");
	unsigned mask;
	if (!at || sscanf(at, "\nUmask:\t%o", &mask) != 1)
		return -EPERM;
	if (mask != guard.umask) {
		guard.umask = (mode_t)mask;
		umask(guard.umask);
	}
	return 0;
}

/* ---- resolving ---- */

/* Links at the end of a path. */
enum follow {
	NEVER,
	ALWAYS,
	TO_MAKE, /* not with a slash behind it: what a call makes is no folder */
};

/* Where a path leads to. */
struct spot {
	int fd;    /* the folder; with `object` the thing itself.  -1 */
	char name[PATH_MAX + 1]; /* in it, with a slash at the end if the path has one; the call says if it is too long */
	bool object;
};

static void spot_finish(struct spot *spot)
{
	if (spot->fd >= 0)
		close(spot->fd);
	spot->fd = -1;
}

#define AUTO_SPOT __attribute__((cleanup(spot_finish))) struct spot

static bool is_dots(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "/") == 0;
}

static void move_to(int *at, int fd)
{
	close(*at);
	*at = fd;
}

static int openat2_of(int at, const char *name, uint64_t flags, uint64_t mode, uint64_t resolve)
{
	struct open_how how = { .flags = flags, .mode = mode, .resolve = resolve };
	int fd = (int)syscall(SYS_openat2, at, name, &how, sizeof how);
	return fd < 0 ? -errno : fd;
}

static bool is_in_proc(int fd, bool *ret_root)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return false;
	*ret_root = st.st_dev == guard.proc_dev && st.st_ino == guard.proc_ino;
	return st.st_dev == guard.proc_dev;
}

/* The target of a link, and the rest of the path behind it, in the place of `rest`.  1; 0: there is no link; or -errno. */
static int put_link(int at, const char *name, char rest[static PATH_MAX], const char *after, int *links)
{
	char target[PATH_MAX + 1];
	ssize_t n = readlinkat(at, name, target, PATH_MAX);
	if (n <= 0)
		return 0;
	if (++*links > LINKS_MAX)
		return -ELOOP;
	if ((size_t)n + strlen(after) + 2 > PATH_MAX)
		return -ENAMETOOLONG;
	char tail[PATH_MAX];
	strcpy(tail, after);
	memcpy(rest, target, (size_t)n);
	rest[n] = '\0';
	if (*tail) {
		strcat(rest, "/");
		strcat(rest, tail);
	}
	return 1;
}

/*
 * Step by step, for paths that touch /proc.  Links in a process's folder there lead to objects, without a path, and are followed by the
 * system; ours are never entered.  `rest` is changed.
 */
static int walk(const struct call *call, int from, char rest[static PATH_MAX], enum follow follow, struct spot *spot)
{
	int links = 0, rc;
	int at = fcntl(from, F_DUPFD_CLOEXEC, 3);
	if (at < 0)
		return -errno;
	for (;;) {
		bool in_root = false;
		if (*rest == '/') {
			int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
			if (root < 0) {
				rc = -errno;
				break;
			}
			move_to(&at, root);
		}
		char *name = rest + strspn(rest, "/"), *end = name + strcspn(name, "/"), after[PATH_MAX];
		size_t n = (size_t)(end - name);
		bool slash = *end == '/', last = end[strspn(end, "/")] == '\0';
		strcpy(after, end + strspn(end, "/"));
		memcpy(spot->name, n ? name : "/", n ? n : 1);
		spot->name[n ? n : 1] = '\0';
		if (last && is_dots(spot->name)) {
			spot->fd = at;
			return 0;
		}
		bool in_proc = is_in_proc(at, &in_root);
		rc = -EACCES;
		if (in_root && strcmp(spot->name, "1") == 0)
			break;
		int fd = openat(at, spot->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		int error = errno;
		struct stat st;
		bool is_link = fd >= 0 && fstat(fd, &st) == 0 && S_ISLNK(st.st_mode);
		if (fd < 0 && !(last && error == ENOENT)) {
			rc = -error;
			break;
		}
		if (last && (!is_link || follow == NEVER || (follow == TO_MAKE && slash))) {
			if (fd >= 0)
				close(fd);
			if (slash)
				strcat(spot->name, "/");
			spot->fd = at;
			return 0;
		}
		if (!is_link && !S_ISDIR(st.st_mode)) {
			close(fd);
			rc = -ENOTDIR;
			break;
		}
		if (!is_link) {
			move_to(&at, fd);
			memmove(rest, after, strlen(after) + 1);
			continue;
		}
		close(fd);
		if (in_root && strcmp(spot->name, "self") == 0) {
			/* A thread's number serves as well: its folder is the process's but for the threads' own. */
			snprintf(rest, PATH_MAX, "%d%s%.*s", (int)call->tid, last ? "" : "/", PATH_MAX - 32, after);
			continue;
		}
		if (in_root && strcmp(spot->name, "thread-self") == 0) {
			snprintf(rest, PATH_MAX, "%d/task/%d%s%.*s", (int)call->tid, (int)call->tid, last ? "" : "/", PATH_MAX - 64, after);
			continue;
		}
		if (in_proc && !in_root) {
			fd = openat(at, spot->name, O_PATH | O_CLOEXEC);
			rc = -errno;
			if (fd < 0)
				break;
			move_to(&at, fd);
			rc = -ELOOP;
			if (++links > LINKS_MAX)
				break;
			if (last) {
				spot->fd = at;
				spot->object = true;
				return 0;
			}
			memmove(rest, after, strlen(after) + 1);
			continue;
		}
		if (last && slash)
			strcpy(after, "."); /* the rest of "link/" */
		rc = put_link(at, spot->name, rest, after, &links);
		if (rc == 0)
			rc = -ENOENT; /* it was one just now */
		if (rc < 0)
			break;
	}
	close(at);
	return rc;
}

/*
 * Resolves a path of the caller's.  follow: also a link at its end.  The name found is no link then, unless somebody else makes it one.  0 or
 * -errno.
 */
static int find(const struct call *call, int dirfd, const char *path, enum follow follow, struct spot *spot)
{
	char rest[PATH_MAX], parent[PATH_MAX], whole[PATH_MAX];
	int links = 0;
	*spot = (struct spot){ .fd = -1 };
	if (!*path)
		return -ENOENT;
	int base = path[0] == '/' ? open("/", O_PATH | O_DIRECTORY | O_CLOEXEC) : open_base(call, dirfd);
	if (base < 0)
		return path[0] == '/' ? -errno : base;
	CELL_AUTO_FD int from = base;
	strcpy(rest, path);
	strcpy(whole, path);
	for (;;) {
		size_t size = strlen(rest), end = size, start;
		while (end > 0 && rest[end - 1] == '/')
			end--;
		for (start = end; start > 0 && rest[start - 1] != '/';)
			start--;
		bool slash = end < size;
		memcpy(parent, rest, start);
		parent[start] = '\0';
		int fd = openat2_of(from, start ? parent : ".", O_PATH | O_DIRECTORY | O_CLOEXEC, 0, RESOLVE_NO_MAGICLINKS);
		bool root;
		/* In /proc, "self" and its links are ours: also if something is missing, the caller may have it. */
		if (fd < 0 || is_in_proc(fd, &root)) {
			if (fd >= 0)
				close(fd);
			return walk(call, from, whole, follow, spot);
		}
		spot->fd = fd;
		memcpy(spot->name, end > start ? rest + start : "/", end > start ? end - start : 1);
		spot->name[end > start ? end - start : 1] = '\0';
		if (is_dots(spot->name))
			return 0;
		char after[2] = { slash ? '.' : '\0', '\0' };
		int rc = follow == ALWAYS || (follow == TO_MAKE && !slash) ? put_link(fd, spot->name, rest, after, &links) : 0;
		if (rc < 0)
			return rc;
		if (rc == 0) {
			if (slash)
				strcat(spot->name, "/");
			return 0;
		}
		/* A link: go on from its folder. */
		move_to(&from, fd);
		spot->fd = -1;
		strcpy(whole, rest);
	}
}

/* The system's path of a descriptor; 0 or -errno. */
static int path_of(int fd, char out[static PATH_MAX])
{
	char link[32];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, out, PATH_MAX - 1);
	if (n < 0)
		return -errno;
	out[n] = '\0';
	return n == PATH_MAX - 1 ? -ENAMETOOLONG : 0;
}

static int judge(const struct spot *spot, enum verdict *ret_verdict)
{
	char path[2 * PATH_MAX + 4];
	struct stat st;
	int rc = path_of(spot->fd, path);
	if (rc < 0)
		return rc;
	if (spot->object && fstat(spot->fd, &st) == 0 && (st.st_nlink == 0 || path[0] != '/') && st.st_dev != guard.proc_dev) {
		*ret_verdict = FREE; /* it has no name: a pipe, a memfd, a removed file */
		return 0;
	}
	if (!spot->object && !is_dots(spot->name)) {
		if (strcmp(path, "/") != 0)
			strcat(path, "/");
		strcat(path, spot->name);
		path[strlen(path) - (path[strlen(path) - 1] == '/')] = '\0';
	}
	*ret_verdict = judge_path(path);
	return 0;
}

/* What a call needs at the end of its path: the errno that it has without it comes first. */
enum need { ANYTHING = 0, SOMETHING = 1, NOTHING = 2, NO_LINK = 4 };

static int refuse(const struct spot *spot, unsigned need)
{
	struct stat st;
	bool is_there = spot->object || fstatat(spot->fd, spot->name, &st, AT_SYMLINK_NOFOLLOW) == 0;
	if ((need & SOMETHING) && !is_there)
		return -ENOENT;
	if ((need & NOTHING) && is_there)
		return -EEXIST;
	return (need & NO_LINK) && is_there && !spot->object && S_ISLNK(st.st_mode) ? -ELOOP : -EACCES;
}

/* May the caller write here?  0 or -errno.  On a read-only mount the call itself fails, and says it as it always does. */
static int permit(const struct spot *spot, unsigned need, enum verdict *ret_verdict)
{
	struct statvfs fs;
	int rc = judge(spot, ret_verdict);
	if (rc < 0)
		return rc;
	if (*ret_verdict == OUTSIDE)
		return fstatvfs(spot->fd, &fs) == 0 && (fs.f_flag & ST_RDONLY) ? 0 : refuse(spot, need);
	return *ret_verdict == PROTECTED ? refuse(spot, need) : 0;
}

/* ---- the calls ---- */

static int read_path(const struct call *call, int arg, char path[static PATH_MAX])
{
	return read_string(call, call->args[arg], path, PATH_MAX);
}

/* Hands the caller a descriptor in answer to its call. */
static long give(const struct call *call, int fd, int flags)
{
	struct seccomp_notif_addfd add = {
		.id = call->id, .flags = SECCOMP_ADDFD_FLAG_SEND, .srcfd = (uint32_t)fd, .newfd_flags = (uint32_t)(flags & O_CLOEXEC)
	};
	int rc = ioctl(guard.notify_fd, SECCOMP_IOCTL_NOTIF_ADDFD, &add), error = errno;
	close(fd);
	return rc >= 0 ? ANSWERED : -error;
}

/* Opens without waiting for anybody, and without becoming anybody's terminal. */
static int open_at(int at, const char *name, int flags, mode_t mode)
{
	int made = flags & (O_CREAT | UNNAMED);
	int fd = openat2_of(at, name, (uint64_t)(unsigned)(flags | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), made ? mode & 07777 : 0,
			    RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
	if (fd >= 0 && !(flags & O_NONBLOCK) && fcntl(fd, F_SETFL, flags & (O_APPEND | O_DIRECT | O_NOATIME)) < 0) {
		int error = errno;
		close(fd);
		return -error;
	}
	return fd;
}

/*
 * Outside of the writable places a call is made for its error.  Of a file that is there O_CREAT and O_TRUNC may ask for nothing but reading,
 * and what may be read is Landlock's to say.
 */
static int only_failing(enum verdict verdict, int fd)
{
	if (verdict != OUTSIDE || fd < 0)
		return fd;
	close(fd);
	return -EROFS;
}

/* A thing that a link in /proc leads to. */
static int open_object(const struct spot *spot, int flags)
{
	enum verdict verdict;
	char path[32];
	struct stat st;
	int rc = permit(spot, SOMETHING, &verdict);
	if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL))
		return -EEXIST;
	if ((flags & O_CREAT) && fstat(spot->fd, &st) == 0 && S_ISDIR(st.st_mode))
		return -EISDIR;
	if (rc < 0)
		return rc;
	snprintf(path, sizeof path, "/proc/self/fd/%d", spot->fd);
	int fd = open(path, (flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW)) | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (!(flags & O_NONBLOCK))
		(void)fcntl(fd, F_SETFL, flags & (O_APPEND | O_DIRECT | O_NOATIME));
	return only_failing(verdict, fd);
}

/* A file without a name, in a folder. */
static int open_unnamed(const struct call *call, const struct spot *spot, int flags, mode_t mode)
{
	AUTO_SPOT folder = { .fd = -1, .object = true };
	enum verdict verdict;
	if (spot->object)
		folder.fd = fcntl(spot->fd, F_DUPFD_CLOEXEC, 3);
	else
		folder.fd = openat2_of(spot->fd, spot->name, O_PATH | O_DIRECTORY | O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS);
	if (folder.fd < 0)
		return folder.fd;
	int rc = permit(&folder, SOMETHING, &verdict);
	if (rc == 0)
		rc = take_umask(call);
	return rc < 0 ? rc : open_at(folder.fd, ".", flags, mode);
}

static long do_open(const struct call *call, int dirfd, int arg, int flags, mode_t mode)
{
	char path[PATH_MAX];
	int rc = read_path(call, arg, path), tries = 0;
	flags &= OPEN_BITS;
	if (rc < 0)
		return rc;
	enum follow follow = flags & O_CREAT ? TO_MAKE : ALWAYS;
	/* A slash at the end asks for a folder, which a link may lead to. */
	if ((flags & (O_CREAT | O_EXCL)) == (O_CREAT | O_EXCL) || ((flags & O_NOFOLLOW) && !(*path && path[strlen(path) - 1] == '/')))
		follow = NEVER;
	unsigned need = (!(flags & O_CREAT) ? SOMETHING : flags & O_EXCL ? NOTHING : ANYTHING) | (follow == NEVER ? NO_LINK : 0);
	do {
		AUTO_SPOT spot = { .fd = -1 };
		enum verdict verdict;
		rc = find(call, dirfd, path, follow, &spot);
		if (rc < 0)
			return rc;
		if (flags & UNNAMED)
			rc = open_unnamed(call, &spot, flags, mode);
		else if (spot.object)
			rc = open_object(&spot, flags);
		else if ((rc = permit(&spot, need, &verdict)) == 0 && (!(flags & O_CREAT) || (rc = take_umask(call)) == 0))
			rc = only_failing(verdict, open_at(spot.fd, spot.name, flags, mode));
	} while (rc == -ELOOP && follow != NEVER && ++tries < TRIES_MAX); /* a link has come */
	if (rc == -ELOOP && follow == NEVER && (flags & O_DIRECTORY))
		rc = -ENOTDIR;
	return rc < 0 ? rc : give(call, rc, flags);
}

/* The place of a name that the call makes or removes itself, following no link; 0 or -errno. */
static int reach(const struct call *call, int dirfd, int arg, unsigned need, struct spot *spot)
{
	char path[PATH_MAX];
	enum verdict verdict;
	int rc = read_path(call, arg, path);
	if (rc == 0)
		rc = find(call, dirfd, path, NEVER, spot);
	return rc < 0 ? rc : permit(spot, need, &verdict);
}

static long do_mkdir(const struct call *call, int dirfd, int arg, mode_t mode)
{
	AUTO_SPOT spot = { .fd = -1 };
	int rc = reach(call, dirfd, arg, NOTHING, &spot);
	if (rc == 0)
		rc = take_umask(call);
	return rc < 0 ? rc : mkdirat(spot.fd, spot.name, mode) < 0 ? -errno : 0;
}

static long do_unlink(const struct call *call, int dirfd, int arg, int flags)
{
	AUTO_SPOT spot = { .fd = -1 };
	int rc = reach(call, dirfd, arg, SOMETHING, &spot);
	return rc < 0 ? rc : unlinkat(spot.fd, spot.name, flags) < 0 ? -errno : 0;
}

static long do_symlink(const struct call *call, int target_arg, int dirfd, int arg)
{
	char target[PATH_MAX];
	AUTO_SPOT spot = { .fd = -1 };
	int rc = read_path(call, target_arg, target);
	if (rc == 0 && !*target)
		rc = -ENOENT;
	if (rc == 0)
		rc = reach(call, dirfd, arg, NOTHING, &spot);
	return rc < 0 ? rc : symlinkat(target, spot.fd, spot.name) < 0 ? -errno : 0;
}

/* A folder from below an allowed name may have protected names in it, which were never judged: it is moved file by file. */
static bool takes_unjudged(const struct spot *spot, enum verdict from, enum verdict to)
{
	struct stat st;
	return from == EXEMPT && to == USUAL && fstatat(spot->fd, spot->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static long do_rename(const struct call *call, int old_dirfd, int old_arg, int new_dirfd, int new_arg, unsigned flags)
{
	char old_path[PATH_MAX], new_path[PATH_MAX];
	AUTO_SPOT old = { .fd = -1 }, new = { .fd = -1 };
	struct stat old_st, new_st;
	enum verdict from, to;
	int rc = read_path(call, old_arg, old_path);
	if (rc == 0)
		rc = find(call, old_dirfd, old_path, NEVER, &old);
	if (rc == 0)
		rc = read_path(call, new_arg, new_path);
	if (rc == 0)
		rc = find(call, new_dirfd, new_path, NEVER, &new);
	if (rc == 0 && fstat(old.fd, &old_st) == 0 && fstat(new.fd, &new_st) == 0 && old_st.st_dev != new_st.st_dev)
		rc = -EXDEV;
	if (rc == 0)
		rc = permit(&old, SOMETHING, &from);
	if (rc == 0)
		rc = permit(&new, flags & RENAME_NOREPLACE ? NOTHING : ANYTHING, &to);
	if (rc == 0 && (takes_unjudged(&old, from, to) || (flags && takes_unjudged(&new, to, from))))
		rc = -EXDEV;
	return rc < 0 ? rc : syscall(SYS_renameat2, old.fd, old.name, new.fd, new.name, flags) < 0 ? -errno : 0;
}

static long do_link(const struct call *call, int old_dirfd, int old_arg, int new_dirfd, int new_arg, int flags)
{
	char old_path[PATH_MAX], new_path[PATH_MAX], proc[32];
	struct stat st;
	AUTO_SPOT old = { .fd = -1 }, new = { .fd = -1 };
	enum verdict from, to;
	int rc = read_path(call, old_arg, old_path);
	if (rc == 0 && (flags & ~(AT_SYMLINK_FOLLOW | AT_EMPTY_PATH)))
		rc = -EINVAL;
	if (rc == 0 && !*old_path && (flags & AT_EMPTY_PATH)) {
		old.object = true;
		old.fd = open_base(call, old_dirfd);
		rc = old.fd < 0 ? old.fd : 0;
	} else if (rc == 0) {
		rc = find(call, old_dirfd, old_path, flags & AT_SYMLINK_FOLLOW ? ALWAYS : NEVER, &old);
		if (rc == 0 && !old.object && fstatat(old.fd, old.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			rc = -errno;
	}
	if (rc == 0)
		rc = read_path(call, new_arg, new_path);
	if (rc == 0)
		rc = find(call, new_dirfd, new_path, NEVER, &new);
	/* What has another name already can be written to by that one. */
	if (rc == 0)
		rc = judge(&old, &from);
	if (rc == 0 && from == PROTECTED)
		rc = refuse(&old, SOMETHING);
	if (rc == 0)
		rc = permit(&new, NOTHING, &to);
	if (rc < 0)
		return rc;
	if (!old.object)
		return linkat(old.fd, old.name, new.fd, new.name, 0) < 0 ? -errno : 0;
	snprintf(proc, sizeof proc, "/proc/self/fd/%d", old.fd);
	return linkat(AT_FDCWD, proc, new.fd, new.name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static long do_truncate(const struct call *call, int arg, int64_t length)
{
	char path[PATH_MAX], proc[32];
	AUTO_SPOT spot = { .fd = -1 };
	struct rlimit limit, own;
	enum verdict verdict;
	int rc = length < 0 ? -EINVAL : read_path(call, arg, path), tries = 0;
	if (rc < 0)
		return rc;
	do {
		spot_finish(&spot);
		rc = find(call, AT_FDCWD, path, ALWAYS, &spot);
		if (rc == 0)
			rc = permit(&spot, SOMETHING, &verdict);
		if (rc < 0)
			return rc;
		if (!spot.object) {
			rc = openat2_of(spot.fd, spot.name, O_PATH | O_CLOEXEC, 0, RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS);
			if (rc >= 0)
				move_to(&spot.fd, rc);
		}
	} while (rc == -ELOOP && ++tries < TRIES_MAX);
	if (rc < 0)
		return rc;
	/* With the caller's limit; its signal is blocked here. */
	if (prlimit(call->tid, RLIMIT_FSIZE, NULL, &limit) < 0 || getrlimit(RLIMIT_FSIZE, &own) < 0)
		return -EPERM;
	limit.rlim_max = own.rlim_max;
	if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
		return -EPERM;
	snprintf(proc, sizeof proc, "/proc/self/fd/%d", spot.fd);
	rc = truncate(proc, length) < 0 ? -errno : 0;
	(void)setrlimit(RLIMIT_FSIZE, &own);
	return rc;
}

static long perform(const struct call *call, int nr)
{
	const uint64_t *a = call->args;
	switch (nr) {
	case SYS_openat:
		return do_open(call, (int)a[0], 1, (int)a[2], (mode_t)a[3]);
	case SYS_mkdirat:
		return do_mkdir(call, (int)a[0], 1, (mode_t)a[2]);
	case SYS_unlinkat:
		return do_unlink(call, (int)a[0], 1, (int)a[2]);
	case SYS_symlinkat:
		return do_symlink(call, 0, (int)a[1], 2);
	case SYS_linkat:
		return do_link(call, (int)a[0], 1, (int)a[2], 3, (int)a[4]);
	case SYS_renameat2:
		return do_rename(call, (int)a[0], 1, (int)a[2], 3, (unsigned)a[4]);
	case SYS_truncate:
		return do_truncate(call, 0, (int64_t)a[1]);
#ifdef SYS_renameat
	case SYS_renameat:
		return do_rename(call, (int)a[0], 1, (int)a[2], 3, 0);
#endif
#ifdef SYS_open
	case SYS_open:
		return do_open(call, AT_FDCWD, 0, (int)a[1], (mode_t)a[2]);
	case SYS_creat:
		return do_open(call, AT_FDCWD, 0, O_CREAT | O_WRONLY | O_TRUNC, (mode_t)a[1]);
	case SYS_mkdir:
		return do_mkdir(call, AT_FDCWD, 0, (mode_t)a[1]);
	case SYS_unlink:
		return do_unlink(call, AT_FDCWD, 0, 0);
	case SYS_rmdir:
		return do_unlink(call, AT_FDCWD, 0, AT_REMOVEDIR);
	case SYS_symlink:
		return do_symlink(call, 0, AT_FDCWD, 1);
	case SYS_link:
		return do_link(call, AT_FDCWD, 0, AT_FDCWD, 1, 0);
	case SYS_rename:
		return do_rename(call, AT_FDCWD, 0, AT_FDCWD, 1, 0);
#endif
	}
	return -ENOSYS;
}

/* Larger than ours if the system's structures have grown: it writes its own size. */
union notification {
	struct seccomp_notif notif;
	char room[1024];
};

static void serve_call(void)
{
	static union notification in;
	memset(&in, 0, sizeof in);
	if (ioctl(guard.notify_fd, SECCOMP_IOCTL_NOTIF_RECV, &in) < 0)
		return; /* the caller is gone, or a signal came first */
	static uint64_t args[6];
	for (int i = 0; i < 6; i++)
		args[i] = in.notif.data.args[i];
	struct call call = { .id = in.notif.id, .tid = (pid_t)in.notif.pid, .args = args };
	long rc = perform(&call, in.notif.data.nr);
	if (rc == ANSWERED)
		return;
	union {
		struct seccomp_notif_resp resp;
		char room[256];
	} out = { .resp = { .id = call.id, .val = rc < 0 ? 0 : rc, .error = rc < 0 ? (int32_t)rc : 0 } };
	(void)ioctl(guard.notify_fd, SECCOMP_IOCTL_NOTIF_SEND, &out); /* it may have been killed */
}

/* ---- beginning ---- */

void cell__guard_begin(int listen_fd)
{
	guard.listen_fd = listen_fd;
	guard.umask = umask(0);
	umask(guard.umask);
}

/* Can we see the caller's folders, and read its memory? */
static int try_peer(pid_t pid, const struct cell_guard_hello *hello)
{
	char path[PATH_MAX];
	uint64_t probe = 0;
	struct stat st;
	struct iovec here = { &probe, sizeof probe }, there = { (void *)(uintptr_t)hello->probe_at, sizeof probe };
	if (pid <= 0)
		return EPROTO;
	struct call call = { .tid = pid };
	CELL_AUTO_FD int cwd = open_base(&call, AT_FDCWD);
	if (cwd < 0 || path_of(cwd, path) < 0 || take_umask(&call) < 0 || stat("/proc", &st) < 0 ||
	    process_vm_readv(pid, &here, 1, &there, 1, 0) != (ssize_t)sizeof probe || probe != CELL_GUARD_PROBE)
		return EOPNOTSUPP;
	guard.proc_dev = st.st_dev;
	guard.proc_ino = st.st_ino;
	return 0;
}

static int answer(int fd, int error)
{
	int32_t word = error;
	return send(fd, &word, sizeof word, MSG_NOSIGNAL) == (ssize_t)sizeof word && !error ? 0 : -1;
}

static int receive_listener(int fd)
{
	char byte;
	struct iovec iov = { &byte, 1 };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	int listener = -1;
	struct cmsghdr *c = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC) == 1 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
		memcpy(&listener, CMSG_DATA(c), sizeof listener);
	return listener;
}

/*
 * Meets a process that does not run code yet, so it answers at once or is killed; code that stops it (only a command's can be reached by any)
 * stops what guards its own session.
 */
static void meet(int fd, pid_t pid)
{
	static union {
		struct cell_guard_hello head;
		char bytes[CELL_GUARD_MAX_BYTES];
	} hello;
	ssize_t n = recv(fd, &hello, sizeof hello, 0);
	if (n < (ssize_t)sizeof hello.head)
		return;
	size_t size = (size_t)n - sizeof hello.head;
	bool good = hello.head.version == CELL_GUARD_VERSION && size > 0 && hello.bytes[n - 1] == '\0';
	if (good && guard.n_listeners == CELL_GUARD_MAX_LISTENERS) {
		(void)answer(fd, EMFILE);
		return;
	}
	if (answer(fd, good ? try_peer(pid, &hello.head) : EPROTO) < 0)
		return;
	/* A command has the places of its session, which the code has named first. */
	if (guard.size == 0) {
		memcpy(guard.text, hello.bytes + sizeof hello.head, size);
		guard.size = size;
	}
	int listener = receive_listener(fd);
	(void)ioctl(listener, SET_FLAGS, SYNC_WAKE_UP); /* where there is such a thing */
	if (listener >= 0)
		guard.listeners[guard.n_listeners++] = listener;
	(void)answer(fd, listener < 0 ? EPROTO : 0);
}

void cell__guard_meet(int fd, pid_t pid)
{
	meet(fd, pid);
	close(fd);
}

/* The call at a listener; false: its last process has ended. */
static bool serve(int listener)
{
	struct pollfd now = { .fd = listener, .events = POLLIN };
	guard.notify_fd = listener;
	if (poll(&now, 1, 0) > 0 && (now.revents & POLLIN))
		serve_call();
	else if (now.revents)
		return false;
	return true;
}

static void meet_code(void)
{
	struct ucred peer = { 0 };
	socklen_t size = sizeof peer;
	int fd = accept4(guard.listen_fd, NULL, NULL, SOCK_CLOEXEC);
	cell__close_fd(&guard.listen_fd);
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0)
		peer.pid = 0;
	meet(fd, peer.pid);
	close(fd);
}

void cell__guard_lock_up(void)
{
	static bool locked;
	bool traces = guard.listen_fd >= 0 || guard.n_listeners > 0;
	if (locked)
		return;
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || cell__bound_capabilities() < 0 ||
	    (traces ? cell__keep_capability(CAP_SYS_PTRACE) : cell__drop_capabilities()) < 0)
		_exit(1);
	locked = true;
}

int cell__guard_wait(const sigset_t *wanted, struct pollfd *fds, size_t n_fds)
{
	static int signals = -1;
	static struct pollfd all[2 + CELL_GUARD_MAX_LISTENERS + CELL_GUARD_MAX_FDS];
	struct signalfd_siginfo info;
	if (signals < 0 && (signals = signalfd(-1, wanted, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
		_exit(1);
	for (;;) {
		size_t n = guard.n_listeners, first = 2 + n;
		all[0] = (struct pollfd){ .fd = signals, .events = POLLIN };
		all[1] = (struct pollfd){ .fd = guard.listen_fd, .events = POLLIN };
		for (size_t i = 0; i < n; i++)
			all[2 + i] = (struct pollfd){ .fd = guard.listeners[i], .events = POLLIN };
		for (size_t i = 0; i < n_fds; i++)
			all[first + i] = (struct pollfd){ .fd = fds[i].fd, .events = POLLIN };
		if (poll(all, first + n_fds, -1) < 0)
			continue;
		if (all[0].revents && read(signals, &info, sizeof info) == (ssize_t)sizeof info)
			return (int)info.ssi_signo;
		if (all[1].revents) {
			cell__guard_lock_up();
			meet_code();
		}
		/* From the last one: the last takes the place of one that has ended. */
		for (size_t i = n; i-- > 0;)
			if (all[2 + i].revents && !serve(guard.listeners[i])) {
				close(guard.listeners[i]);
				guard.listeners[i] = guard.listeners[--guard.n_listeners];
			}
		int found = 0;
		for (size_t i = 0; i < n_fds; i++)
			found += (fds[i].revents = all[first + i].revents) != 0;
		if (found > 0)
			return 0;
	}
}
