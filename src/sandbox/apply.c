/*
 * Theory of operation
 *
 * Paths on the host are opened below the old root with RESOLVE_IN_ROOT, so that a symbolic link there has the same target as on the host. A
 * bind is a detached clone of the tree; it gets its attributes (read-only, no devices, no setuid) before it is attached, so it can never be
 * used without them.
 *
 * Everything is done with the capabilities that the creator of a user namespace has inside it, and with no others: the same code serves
 * root and every other user.
 */
#define _GNU_SOURCE
#include "sandbox/apply.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <linux/seccomp.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "sandbox/guard.h"

#define OPEN_TRIES 1000

/* glibc's <sys/mount.h> and <linux/mount.h> do not go together on every system. */
#define MS_BITS_NOSUID 2
#define MS_BITS_NODEV 4
#define MS_BITS_NOEXEC 8
#define MS_BITS_REC 16384
#define MS_BITS_PRIVATE (1 << 18)
#define MS_BITS_RDONLY 1
#define MS_BITS_REMOUNT 32
#define MS_BITS_BIND 4096
#define UMOUNT_DETACH 2
int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data);
int umount2(const char *target, int flags);

/* ---- files ---- */

/*
 * Opens a path of the host below one of the roots that it has inside the new one. O_PATH. A path that was resolved when the plan was made
 * (`real`) has no links in it: a link found now was put there since.
 */
static int open_in(int root, const char *path, bool real)
{
	struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | (real ? RESOLVE_NO_SYMLINKS : 0) };
	int fd, tries = 0;
	/* If a link contains "..", a mount or rename anywhere in the system can make the kernel fail with EAGAIN. */
	do
		fd = (int)syscall(SYS_openat2, root, path[0] == '/' && path[1] ? path + 1 : ".", &how, sizeof how);
	while (fd < 0 && errno == EAGAIN && ++tries < OPEN_TRIES);
	return fd;
}

static int open_on_host(const char *host_root, const char *path, bool real)
{
	int root = open(host_root, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return -1;
	int fd = open_in(root, path, real), error = errno;
	close(root);
	errno = error;
	return fd;
}

/* A jail binds dozens of things one after the other: meanwhile the two roots stay open. */
static int open_source(struct cell_apply *apply, const char *path, bool mapped, bool real)
{
	const char *name = mapped ? CELL_PLAN_MAPPED_ROOT : CELL_PLAN_OLD_ROOT;
	if (!apply->keeps_parent)
		return open_on_host(name, path, real);
	if (!apply->has_root[mapped]) {
		int root = open(name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (root < 0)
			return -1;
		apply->root_fd[mapped] = root;
		apply->has_root[mapped] = true;
	}
	return open_in(apply->root_fd[mapped], path, real);
}

static void forget_roots(struct cell_apply *apply)
{
	for (int i = 0; i < 2; i++)
		if (apply->has_root[i]) {
			close(apply->root_fd[i]);
			apply->has_root[i] = false;
		}
}

#define LINKS_MAX 8

/* The target of a link of ours, followed by the rest of the path. */
static int splice_link(int at, const char *part, const char *rest, char *out, size_t size)
{
	ssize_t n = readlinkat(at, part, out, size - 1);
	if (n < 0)
		return -1;
	if ((size_t)n + 1 + strlen(rest) >= size) {
		errno = ENAMETOOLONG;
		return -1;
	}
	out[n] = '/';
	strcpy(out + n + 1, rest);
	return 0;
}

/*
 * Opens the parent folder of a path inside the new root, component by component, and makes missing folders above it. Links are followed
 * only if they are our own, that is, on the root's own file system: code that could write to a folder of the host may have put a link
 * there, which would redirect the new file to the host's files below the old root.
 */
static int open_parent(const char *path, char *last, size_t last_size, bool *ret_own)
{
	char rest[4096], next[4096];
	struct stat root_st, st;
	int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC), links = 0;
	int at = root < 0 ? -1 : fcntl(root, F_DUPFD_CLOEXEC, 3), fd = -1;
	if (at < 0 || fstat(root, &root_st) < 0)
		goto fail;
	if ((size_t)snprintf(rest, sizeof rest, "%s", path) >= sizeof rest) {
		errno = ENAMETOOLONG;
		goto fail;
	}
	for (char *part = rest;;) {
		part += strspn(part, "/");
		size_t n = strcspn(part, "/");
		char *after = part + n + strspn(part + n, "/");
		if (n >= last_size) {
			errno = ENAMETOOLONG;
			goto fail;
		}
		memcpy(last, part, n);
		last[n] = '\0';
		fd = n ? openat(at, last, O_PATH | O_NOFOLLOW | O_CLOEXEC) : -1;
		bool is_link = fd >= 0 && fstat(fd, &st) == 0 && S_ISLNK(st.st_mode);
		bool is_ours = is_link && fstat(at, &st) == 0 && st.st_dev == root_st.st_dev && ++links <= LINKS_MAX;
		if (is_link && !is_ours && *after) {
			errno = ELOOP;
			goto fail;
		}
		if (is_ours) {
			close(fd);
			fd = -1;
			if (splice_link(at, last, after, next, sizeof next) < 0)
				goto fail;
			memcpy(rest, next, sizeof rest);
			part = rest;
			if (*rest == '/') {
				close(at);
				at = fcntl(root, F_DUPFD_CLOEXEC, 3);
			}
			continue;
		}
		if (!*after) {
			if (fd >= 0)
				close(fd);
			close(root);
			/* On the root's own file system, exactly at the path: no other process makes or renames files there. */
			*ret_own = links == 0 && fstat(at, &st) == 0 && st.st_dev == root_st.st_dev;
			return at;
		}
		if (fd < 0 && ((mkdirat(at, last, 0755) < 0 && errno != EEXIST) ||
			       (fd = openat(at, last, O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC)) < 0))
			goto fail;
		close(at);
		at = fd;
		part = after;
	}
fail:;
	int error = errno;
	if (at >= 0)
		close(at);
	if (fd >= 0)
		close(fd);
	if (root >= 0)
		close(root);
	errno = error;
	return -1;
}

/*
 * The parent folder of a path, in one step: only if it exists, without links and other mounts on the way to it, and the name in it is not a
 * link. -1: otherwise, see open_parent().
 */
static int open_own_parent(const char *path, size_t parent_size, char *last, size_t last_size)
{
	char parent[256];
	struct stat st;
	struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV };
	const char *name = path + parent_size;
	if (parent_size >= sizeof parent || !*name || strlen(name) >= last_size)
		return -1;
	memcpy(parent, path, parent_size);
	parent[parent_size] = '\0';
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, parent, &how, sizeof how);
	if (fd < 0)
		return -1;
	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? errno != ENOENT : S_ISLNK(st.st_mode)) {
		close(fd);
		return -1;
	}
	strcpy(last, name);
	return fd;
}

static int make_file(int parent, const char *name, const char *content, size_t size)
{
	int fd = openat(parent, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return -1;
	ssize_t n = size > 0 ? write(fd, content, size) : 0;
	int error = n < 0 ? errno : EIO;
	close(fd);
	errno = error;
	return n == (ssize_t)size ? 0 : -1;
}

static void forget_parent(struct cell_apply *apply)
{
	if (apply->has_parent)
		close(apply->parent_fd);
	apply->has_parent = false;
}

/*
 * A jail makes dozens of things in a few folders of its root, one after the other: the last folder stays open.  Not one of the host's,
 * where others may be renaming, and not past a mount that could cover it (run_step()).
 */
static int find_parent(struct cell_apply *apply, const char *path, char *last, size_t last_size)
{
	const char *name = strrchr(path, '/') + 1; /* of absolute paths */
	size_t n = (size_t)(name - path);
	struct stat st;
	if (apply->has_parent && *name && strlen(name) < last_size && strlen(apply->parent) == n && memcmp(apply->parent, path, n) == 0) {
		strcpy(last, name);
		/* A link of ours at that name is followed: below. */
		if (fstatat(apply->parent_fd, last, &st, AT_SYMLINK_NOFOLLOW) < 0 ? errno == ENOENT : !S_ISLNK(st.st_mode))
			return apply->parent_fd;
	}
	forget_parent(apply);
	bool own = true;
	int fd = apply->keeps_parent ? open_own_parent(path, n, last, last_size) : -1;
	if (fd < 0)
		fd = open_parent(path, last, last_size, &own);
	if (fd >= 0 && own && apply->keeps_parent && *name && n < sizeof apply->parent) {
		memcpy(apply->parent, path, n);
		apply->parent[n] = '\0';
		apply->parent_fd = fd;
		apply->has_parent = true;
	}
	return fd;
}

/* Makes one object at a path inside: `make` gets its folder and its name. */
static int make_at(struct cell_apply *apply, const char *path, int (*make)(int parent, const char *name, const void *arg), const void *arg)
{
	char last[NAME_MAX + 1];
	int parent = find_parent(apply, path, last, sizeof last);
	if (parent < 0)
		return -1;
	int rc = make(parent, last, arg);
	int error = errno;
	if (!apply->has_parent)
		close(parent);
	errno = error;
	return rc;
}

static int make_folder(int parent, const char *name, const void *mode)
{
	return mkdirat(parent, name, *(const mode_t *)mode) < 0 && errno != EEXIST ? -1 : 0;
}

static int make_link(int parent, const char *name, const void *target)
{
	return symlinkat(target, parent, name) < 0 && errno != EEXIST ? -1 : 0;
}

static int make_content(int parent, const char *name, const void *arg)
{
	const struct cell_plan_step *step = arg;
	return make_file(parent, name, cell__step_b(step), step->b_size);
}

struct mounting {
	const struct cell_apply *apply;
	int tree;
	const struct stat *like;
};

/* Mounts a tree on a folder or a file of that name, which is made if it does not exist. */
static int mount_at(int parent, const char *name, const void *arg)
{
	const struct mounting *what = arg;
	bool folder = S_ISDIR(what->like->st_mode);
	struct stat there;
	/* In a folder of the jail's own root no other process can put a link there. */
	if (what->apply->has_parent) {
		if ((folder ? mkdirat(parent, name, 0755) : mknodat(parent, name, S_IFREG | 0644, 0)) < 0 && errno != EEXIST)
			return -1;
		return (int)syscall(SYS_move_mount, what->tree, "", parent, name, MOVE_MOUNT_F_EMPTY_PATH); /* follows no link */
	}
	if (fstatat(parent, name, &there, AT_SYMLINK_NOFOLLOW) < 0 &&
	    (folder ? mkdirat(parent, name, 0755) : make_file(parent, name, "", 0)) < 0 && errno != EEXIST)
		return -1;
	int fd = openat(parent, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	int rc = fd < 0 ? -1 : fstat(fd, &there);
	if (rc == 0 && S_ISLNK(there.st_mode)) {
		errno = ELOOP;
		rc = -1;
	}
	if (rc == 0)
		rc = (int)syscall(SYS_move_mount, what->tree, "", fd, "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
	int error = errno;
	if (fd >= 0)
		close(fd);
	errno = error;
	return rc;
}

static int set_attributes(int fd, const char *path, uint64_t set)
{
	struct mount_attr attr = { .attr_set = set };
	return (int)syscall(SYS_mount_setattr, fd, path, (path[0] ? 0 : AT_EMPTY_PATH) | AT_RECURSIVE, &attr, sizeof attr);
}

static int bind_tree(struct cell_apply *apply, const char *source, const char *target, unsigned flags, bool real)
{
	int from = flags & CELL_BIND_INSIDE ? open(source, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
					    : open_source(apply, source, flags & CELL_BIND_MAPPED, real);
	if (from < 0)
		return -1;
	struct stat st;
	int rc = -1;
	int tree = (int)syscall(SYS_open_tree, from, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
	uint64_t set = MOUNT_ATTR_NOSUID;
	if (flags & CELL_BIND_READ_ONLY)
		set |= MOUNT_ATTR_RDONLY;
	if (!(flags & CELL_BIND_DEVICES))
		set |= MOUNT_ATTR_NODEV;
	if (flags & CELL_BIND_NO_EXEC)
		set |= MOUNT_ATTR_NOEXEC;
	if (tree >= 0 && fstat(from, &st) == 0 && set_attributes(tree, "", set) == 0)
		rc = make_at(apply, target, mount_at, &(struct mounting){ .apply = apply, .tree = tree, .like = &st });
	int error = errno;
	if (tree >= 0)
		close(tree);
	close(from);
	errno = error;
	return rc;
}

struct layering {
	int lower, upper, work; /* work -1: read-only */
};

/* Paths of descriptors: neither the code's names nor separators of options can be in them. */
static int overlay_at(int parent, const char *name, const void *arg)
{
	const struct layering *layers = arg;
	char target[32], options[160];
	if (mkdirat(parent, name, 0755) < 0 && errno != EEXIST)
		return -1;
	int fd = openat(parent, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -1;
	snprintf(target, sizeof target, "/proc/self/fd/%d", fd);
	if (layers->work >= 0)
		snprintf(options, sizeof options, "userxattr,lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d",
			 layers->lower, layers->upper, layers->work);
	else
		snprintf(options, sizeof options, "userxattr,lowerdir=/proc/self/fd/%d:/proc/self/fd/%d", layers->upper, layers->lower);
	int rc = mount("overlay", target, "overlay", MS_BITS_NOSUID | MS_BITS_NODEV | (layers->work < 0 ? MS_BITS_RDONLY : 0), options);
	int error = errno;
	close(fd);
	errno = error;
	return rc;
}

static int mount_layer(struct cell_apply *apply, const char *workspace, const char *folder, unsigned flags)
{
	const int how = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	struct layering layers = { open_source(apply, workspace, flags & CELL_BIND_MAPPED, true), -1, -1 };
	int at = layers.lower < 0 ? -1 : open_source(apply, folder, flags & CELL_BIND_MAPPED, true), rc = -1;
	if (at >= 0 && (layers.upper = openat(at, "upper", how)) >= 0 &&
	    ((flags & CELL_BIND_READ_ONLY) || (layers.work = openat(at, "work", how)) >= 0))
		rc = make_at(apply, workspace, overlay_at, &layers);
	int error = errno;
	const int fds[] = { layers.lower, layers.upper, layers.work, at };
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	errno = error;
	return rc;
}

static int mount_tmpfs(const char *path, uint64_t bytes, uint64_t mode)
{
	char options[96];
	/* An inode costs about a kilobyte of the kernel's memory: their number is bounded with the bytes. */
	snprintf(options, sizeof options, "size=%llu,nr_inodes=%llu,mode=%o", (unsigned long long)bytes,
		 (unsigned long long)(bytes / 2048 + 1024), (unsigned)mode);
	return mount(CELL_PLAN_TMPFS, path, "tmpfs", MS_BITS_NOSUID | MS_BITS_NODEV, options);
}

static int mount_proc(struct cell_apply *apply, const char *path, uint64_t how)
{
	char status[4096];
	unsigned long flags = MS_BITS_NOSUID | MS_BITS_NODEV | MS_BITS_NOEXEC;
	if ((size_t)snprintf(status, sizeof status, "%s/self/status", path) < sizeof status && access(status, F_OK) == 0)
		return 0;
	if (how != CELL_PROC_READ_ONLY) {
		int rc = mount("proc", path, "proc", flags, how == CELL_PROC_PROCESSES ? "subset=pid" : NULL);
		apply->processes_alone |= rc == 0 && how == CELL_PROC_PROCESSES;
		return rc;
	}
	if (mount("proc", path, "proc", flags | MS_BITS_RDONLY, NULL) == 0)
		return 0;
	/* Programs find their libraries by /proc/self/exe: the host's serves for that, and the step counts as passed over. */
	int error = errno;
	(void)bind_tree(apply, "/proc", path, CELL_BIND_READ_ONLY | CELL_BIND_NO_EXEC, false);
	errno = error;
	return -1;
}

/*
 * The new root is mounted over /tmp, which every system has; pivot_root takes it from there, and /tmp of the host is
 * seen again below the old root.
 */
static int make_root(uint64_t bytes)
{
	if (mount(NULL, "/", NULL, MS_BITS_REC | MS_BITS_PRIVATE, NULL) < 0 || mount_tmpfs("/tmp", bytes, 0755) < 0 || chdir("/tmp") < 0 ||
	    mkdir(&CELL_PLAN_OLD_ROOT[1], 0700) < 0)
		return -1;
	if (syscall(SYS_pivot_root, ".", &CELL_PLAN_OLD_ROOT[1]) < 0)
		return -1;
	return chdir("/");
}

/* A masked folder is an empty one, a masked file an empty one. */
static int mask(const char *path)
{
	struct stat st;
	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -1; /* missing, so there is nothing to hide */
	if (S_ISDIR(st.st_mode))
		return mount("tmpfs", path, "tmpfs", MS_BITS_RDONLY | MS_BITS_NOSUID | MS_BITS_NODEV | MS_BITS_NOEXEC,
			     "size=4k,nr_inodes=2,mode=555");
	return mount("/dev/null", path, NULL, MS_BITS_BIND, NULL);
}

static int write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	ssize_t n = write(fd, text, strlen(text));
	int error = errno;
	close(fd);
	errno = error;
	return n < 0 ? -1 : 0;
}

/* One user and one group, the same inside and outside: the creator of the namespace may map just these without help. */
static int map_ids(uid_t uid, gid_t gid)
{
	char line[64];
	if (write_text("/proc/self/setgroups", "deny") < 0)
		return -1;
	snprintf(line, sizeof line, "%u %u 1", uid, uid);
	if (write_text("/proc/self/uid_map", line) < 0)
		return -1;
	snprintf(line, sizeof line, "%u %u 1", gid, gid);
	return write_text("/proc/self/gid_map", line);
}

/* The process that started us writes the maps, and sends the mounts with its message. */
static int take_trees(struct cell_apply *apply)
{
	int error = 0;
	struct iovec iov = { &error, sizeof error };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_PLAN_MAX_TREES * sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t n;
	do
		n = recvmsg(apply->start_fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof error || error) {
		errno = n < 0 ? errno : error ? error : ECHILD;
		return -1;
	}
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		apply->n_trees = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(apply->trees, CMSG_DATA(c), apply->n_trees * sizeof(int));
	}
	return 0;
}

/*
 * A process that becomes another user is not dumpable any more, and an ordinary user's spawner could not open its namespaces: that is put
 * back.  The caller's memory may be its parent's.
 */
int cell__become(uid_t uid, gid_t gid, bool leaves_groups)
{
	int dumpable = (int)syscall(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0);
	if ((leaves_groups && syscall(SYS_setgroups, 0, NULL) < 0) || syscall(SYS_setresgid, gid, gid, gid) < 0 ||
	    syscall(SYS_setresuid, uid, uid, uid) < 0)
		return -1;
	return dumpable == 1 ? (int)syscall(SYS_prctl, PR_SET_DUMPABLE, 1, 0, 0, 0) : 0;
}

/*
 * Copies folders that only the caller may enter or reach, while our file system uid is still the caller's (spawn/zone.c). Made private
 * first, so that later mounts of the host do not appear in the copies.
 */
static int copy_folders(struct cell_apply *apply)
{
	const struct cell_plan_step *step = cell__plan_first(apply->plan);
	if (mount(NULL, "/", NULL, MS_BITS_REC | MS_BITS_PRIVATE, NULL) < 0)
		return -1;
	for (uint32_t i = 0; i < apply->plan->n_steps; i++, step = cell__plan_next(step)) {
		if (step->op != CELL_OP_TREE)
			continue;
		if (apply->n_trees == CELL_PLAN_MAX_TREES) {
			errno = E2BIG;
			return -1;
		}
		int from = open_on_host("/", cell__step_a(step), true), tree = -1;
		if (from >= 0)
			tree = (int)syscall(SYS_open_tree, from, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE);
		int error = errno;
		if (from >= 0)
			close(from);
		errno = error;
		if (tree < 0)
			return -1;
		apply->trees[apply->n_trees++] = tree;
	}
	return 0;
}

static int take_ids(struct cell_apply *apply)
{
	const struct cell_plan *plan = apply->plan;
	if ((plan->mapped == CELL_MAPPED_SUBIDS && copy_folders(apply) < 0) || take_trees(apply) < 0 ||
	    cell__become(plan->uid, plan->gid, plan->mapped != CELL_MAPPED_NOT) < 0)
		return -1;
	/* That a process ends with its parent is forgotten when it becomes another user. */
	return prctl(PR_SET_PDEATHSIG, SIGKILL);
}

int cell__apply_join(const int *fds, size_t n, const struct cell_plan *plan, bool becomes)
{
	if (n == 1 && setns(fds[0], (int)plan->clone_flags) < 0)
		return -1;
	for (size_t i = 0; n > 1 && i < n; i++)
		if (setns(fds[i], 0) < 0)
			return -1;
	return becomes ? cell__become(plan->uid, plan->gid, plan->mapped != CELL_MAPPED_NOT) : 0;
}

static int attach_tree(struct cell_apply *apply, const char *path)
{
	char target[4096 + sizeof CELL_PLAN_MAPPED_ROOT];
	if (apply->next_tree >= apply->n_trees) {
		errno = EBADF;
		return -1;
	}
	int tree = apply->trees[apply->next_tree++];
	snprintf(target, sizeof target, CELL_PLAN_MAPPED_ROOT "%s", strcmp(path, "/") == 0 ? "" : path);
	struct stat st; /* the mounted object may be a file */
	int rc = fstat(tree, &st);
	if (rc == 0)
		rc = make_at(apply, target, mount_at, &(struct mounting){ .apply = apply, .tree = tree, .like = &st });
	int error = errno;
	close(tree);
	errno = error;
	return rc;
}

static int detach_host(void)
{
	static const char *const roots[] = { CELL_PLAN_OLD_ROOT, CELL_PLAN_MAPPED_ROOT };
	for (int i = 0; i < 2; i++)
		if ((umount2(roots[i], UMOUNT_DETACH) < 0 || rmdir(roots[i]) < 0) && !(i == 1 && errno == ENOENT))
			return -1;
	return 0;
}

static int loopback_up(void)
{
	struct ifreq request = { .ifr_name = "lo" };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	request.ifr_flags = IFF_UP | IFF_RUNNING;
	int rc = ioctl(fd, SIOCSIFFLAGS, &request);
	int error = errno;
	close(fd);
	errno = error;
	return rc;
}

static int listen_at(struct cell_apply *apply, uint64_t port)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (bind(fd, (struct sockaddr *)&here, sizeof here) < 0 || listen(fd, 64) < 0) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	apply->listen_fd = fd;
	apply->has_listener = true;
	return 0;
}

static int listen_for_guard(struct cell_apply *apply)
{
	const struct sockaddr_un here = { .sun_family = AF_UNIX, .sun_path = CELL_GUARD_SOCKET };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (bind(fd, (const struct sockaddr *)&here, sizeof here) < 0 || listen(fd, 1) < 0) {
		int error = errno;
		close(fd);
		errno = error;
		return -1;
	}
	apply->guard_fd = fd;
	apply->has_guard = true;
	return 0;
}

/* ---- the process ---- */

int cell__bound_capabilities(void)
{
	/* Dropping one copies the credentials. If a parent of ours has dropped the first, ask before each of the others. */
	bool asks = prctl(PR_CAPBSET_READ, 0, 0, 0, 0) == 0;
	for (int cap = 0; cap < 64; cap++) {
		int has = asks ? prctl(PR_CAPBSET_READ, cap, 0, 0, 0) : 1;
		if (has > 0)
			has = prctl(PR_CAPBSET_DROP, cap, 0, 0, 0);
		if (has < 0 && errno == EINVAL)
			break; /* there are no more */
		if (has < 0)
			return -1;
	}
	/* uid 0 has no privileges: exec gives it no capabilities, and that cannot be changed any more. */
	unsigned long bits = SECBIT_NOROOT | SECBIT_NOROOT_LOCKED | SECBIT_NO_SETUID_FIXUP | SECBIT_NO_SETUID_FIXUP_LOCKED |
			     SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_CAP_AMBIENT_RAISE | SECBIT_NO_CAP_AMBIENT_RAISE_LOCKED;
	if (prctl(PR_SET_SECUREBITS, bits, 0, 0, 0) < 0 && errno != EPERM)
		return -1;
	return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) < 0 && errno != EINVAL ? -1 : 0;
}

static int set_capabilities(uint64_t caps)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct sets[2] = { { (uint32_t)caps, (uint32_t)caps, 0 },
						  { (uint32_t)(caps >> 32), (uint32_t)(caps >> 32), 0 } };
	return (int)syscall(SYS_capset, &head, sets);
}

int cell__drop_capabilities(void)
{
	return set_capabilities(0);
}

int cell__keep_capability(int cap)
{
	return set_capabilities(1ull << cap);
}

/* Closes every descriptor from 3 up except the kept ones. */
static int close_others(const struct cell_apply *apply)
{
	unsigned from = 3;
	for (;;) {
		unsigned next = ~0u;
		for (int i = 0; i < apply->n_keep; i++)
			if (apply->keep[i] >= 0 && (unsigned)apply->keep[i] >= from && (unsigned)apply->keep[i] < next)
				next = (unsigned)apply->keep[i];
		if (apply->landlock_fd >= 0 && (unsigned)apply->landlock_fd >= from && (unsigned)apply->landlock_fd < next)
			next = (unsigned)apply->landlock_fd;
		if (next > from && syscall(SYS_close_range, from, next == ~0u ? ~0u : next - 1, 0) < 0)
			return -1;
		if (next == ~0u)
			return 0;
		from = next + 1;
	}
}

static int limit(uint64_t resource, uint64_t value)
{
	struct rlimit now;
	if (getrlimit((int)resource, &now) < 0)
		return -1;
	/* A lower limit that is in force already stays. */
	if (now.rlim_max < value)
		value = now.rlim_max;
	/* The soft limit on CPU time sends a signal that names it; the hard limit, a little later, kills. */
	struct rlimit wanted = { value, resource == RLIMIT_CPU && now.rlim_max > value ? value + 2 : value };
	return setrlimit((int)resource, &wanted);
}

/* ---- Landlock ---- */

/* As in the header of a kernel that has all of it; older headers lack the last members. */
struct ruleset {
	uint64_t fs, net, scoped;
};

static int landlock_begin(struct cell_apply *apply, const struct cell_plan_step *step)
{
	struct ruleset rules = { .fs = step->arg, .net = step->arg2 & 0xffffffffu, .scoped = step->arg2 >> 32 };
	size_t size = rules.scoped ? 24 : rules.net ? 16 : 8;
	apply->landlock_fd = (int)syscall(SYS_landlock_create_ruleset, &rules, size, 0);
	return apply->landlock_fd < 0 ? -1 : 0;
}

/* Rights that only a folder can have. */
#define FOLDER_RIGHTS                                                                                                                  \
	(LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR | \
	 LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |     \
	 LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM | (1ull << 13) /* REFER */)

static int landlock_allow(struct cell_apply *apply, const struct cell_plan_step *step)
{
	struct landlock_path_beneath_attr rule = { .allowed_access = step->arg };
	struct stat st;
	/* A session's paths are real ones: a link that another session put there since then leads nowhere. */
	struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = step->stage == CELL_STAGE_SESSION_RULES ? RESOLVE_NO_SYMLINKS : 0 };
	rule.parent_fd = (int)syscall(SYS_openat2, AT_FDCWD, cell__step_a(step), &how, sizeof how);
	if (rule.parent_fd < 0)
		return errno == ENOENT || errno == EACCES ? 0 : -1; /* a right to nothing */
	int rc = fstat(rule.parent_fd, &st);
	if (rc == 0) {
		if (!S_ISDIR(st.st_mode))
			rule.allowed_access &= ~FOLDER_RIGHTS;
		rc = (int)syscall(SYS_landlock_add_rule, apply->landlock_fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
	}
	int error = errno;
	close(rule.parent_fd);
	errno = error;
	return rc;
}

static int landlock_restrict(struct cell_apply *apply)
{
	int rc = (int)syscall(SYS_landlock_restrict_self, apply->landlock_fd, 0);
	int error = errno;
	close(apply->landlock_fd);
	apply->landlock_fd = -1;
	errno = error;
	return rc;
}

static int load_filter(const struct cell_plan_step *step)
{
	struct sock_fprog program = {
		.len = (unsigned short)(step->a_size / sizeof(struct sock_filter)),
		.filter = (struct sock_filter *)cell__step_a(step),
	};
	return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

/* ---- steps ---- */

static int run_step(struct cell_apply *apply, const struct cell_plan_step *step, struct cell_plan_report *report)
{
	const char *a = cell__step_a(step), *b = cell__step_b(step);
	/* These make their mount point, or mount nothing; others may cover the folder. */
	if (step->op < CELL_OP_TREE || step->op > CELL_OP_TMPFS) {
		forget_parent(apply);
		forget_roots(apply);
	}
	switch ((enum cell_plan_op)step->op) {
	case CELL_OP_NAMESPACES:
		return unshare((int)step->arg & ~cell__apply_birth_flags(apply->plan));
	case CELL_OP_IDS:
		return apply->ids_come ? take_ids(apply) : map_ids((uid_t)step->arg, (gid_t)step->arg2);
	case CELL_OP_TREE:
		return attach_tree(apply, a);
	case CELL_OP_ROOT:
		return make_root(step->arg);
	case CELL_OP_DIR:
		return make_at(apply, a, make_folder, &(mode_t){ (mode_t)step->arg });
	case CELL_OP_LINK:
		return make_at(apply, b, make_link, a);
	case CELL_OP_FILE:
		return make_at(apply, a, make_content, step);
	case CELL_OP_BIND:
		return bind_tree(apply, a, b, step->flags, step->stage == CELL_STAGE_SESSION_FILES);
	case CELL_OP_OVERLAY:
		return mount_layer(apply, a, b, step->flags);
	case CELL_OP_TMPFS:
		if (make_at(apply, a, make_folder, &(mode_t){ 0755 }) < 0)
			return -1;
		return mount_tmpfs(a, step->arg, step->arg2);
	case CELL_OP_PROC:
		return mount_proc(apply, a, step->arg);
	case CELL_OP_PTS:
		return mount("devpts", a, "devpts", MS_BITS_NOSUID | MS_BITS_NOEXEC, "newinstance,ptmxmode=0666,mode=620");
	case CELL_OP_MASK:
		return step->arg == 1 && apply->processes_alone ? 0 : mask(a);
	case CELL_OP_LOOPBACK:
		return loopback_up();
	case CELL_OP_HOSTNAME:
		return sethostname(a, step->a_size);
	case CELL_OP_LISTEN:
		return listen_at(apply, step->arg);
	case CELL_OP_SESSION:
		if (!apply->session)
			return 0;
		struct cell_apply inner = { .plan = apply->session, .landlock_fd = apply->landlock_fd };
		return cell__apply_stage(&inner, (enum cell_plan_stage)step->arg, report);
	case CELL_OP_DETACH:
		return detach_host();
	case CELL_OP_SEAL:
		return mount(NULL, a[0] ? a : "/", NULL, MS_BITS_REMOUNT | MS_BITS_BIND | MS_BITS_RDONLY | MS_BITS_NOSUID | MS_BITS_NODEV,
			     NULL);
	case CELL_OP_RLIMIT:
		return limit(step->arg, step->arg2);
	case CELL_OP_CLOSE_FDS:
		return close_others(apply);
	case CELL_OP_SESSION_KEYS:
		return syscall(SYS_keyctl, 1 /* KEYCTL_JOIN_SESSION_KEYRING */, NULL) < 0 && errno != ENOSYS ? -1 : 0;
	case CELL_OP_NO_NEW_PRIVS:
		return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	case CELL_OP_NOT_DUMPABLE:
		return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	case CELL_OP_BOUNDS:
		return cell__bound_capabilities();
	case CELL_OP_CAPS:
		return cell__drop_capabilities();
	case CELL_OP_LANDLOCK:
		return landlock_begin(apply, step);
	case CELL_OP_ALLOW:
		return landlock_allow(apply, step);
	case CELL_OP_RESTRICT:
		return landlock_restrict(apply);
	case CELL_OP_SECCOMP:
		return load_filter(step);
	case CELL_OP_GUARD_SOCKET:
		return listen_for_guard(apply);
	case CELL_OP_GUARD:
		return cell__guard_join(apply->session, step, apply->joins ? apply->join_fd : -1);
	case CELL_OP_PLACE:
		return 0;
	}
	errno = EINVAL;
	return -1;
}

/*
 * Steps that concern the whole sandbox were done by its first process, and the files of the host are gone.  The bounds of capabilities are
 * inherited, and cannot be set again without the right that they took.
 */
static bool is_done(const struct cell_plan_step *step)
{
	return (step->op == CELL_OP_SESSION && step->arg == CELL_STAGE_SESSION_FILES) || step->op == CELL_OP_DETACH ||
	       step->op == CELL_OP_SEAL || step->op == CELL_OP_BOUNDS;
}

int cell__apply_stage(struct cell_apply *apply, enum cell_plan_stage stage, struct cell_plan_report *report)
{
	const struct cell_plan_step *step = cell__plan_first(apply->plan);
	/* A session's steps are few and only links are optional; their skips are not reported one by one. */
	bool inner = stage >= CELL_STAGE_SESSION_FILES;
	apply->keeps_parent = stage == CELL_STAGE_JAIL;
	for (uint32_t i = 0; i < apply->plan->n_steps; i++, step = cell__plan_next(step)) {
		if (step->stage != stage || (apply->joins && is_done(step)))
			continue;
		if (run_step(apply, step, report) == 0)
			continue;
		if (step->flags & CELL_STEP_OPTIONAL) {
			if (!inner)
				report->skipped[i / 8] |= (uint8_t)(1u << (i % 8));
			continue;
		}
		/* In a session's plan: counted on from the end of the other one's. */
		report->sys = errno;
		if (report->step < 0)
			report->step = (int32_t)i + (inner ? (int32_t)CELL_PLAN_MAX_STEPS : 0);
		forget_parent(apply);
		forget_roots(apply);
		return -1;
	}
	forget_parent(apply);
	forget_roots(apply);
	return 0;
}

int cell__apply_birth_flags(const struct cell_plan *plan)
{
	/* A process cannot move itself into another pid namespace, and that needs the user namespace first. */
	return (int)plan->clone_flags & (CLONE_NEWUSER | CLONE_NEWPID);
}

const struct cell_plan *cell__plan_map(int fd)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return NULL;
	if (st.st_size <= 0 || st.st_size > CELL_PLAN_MAX_BYTES) {
		errno = EINVAL;
		return NULL;
	}
	void *bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (bytes == MAP_FAILED)
		return NULL;
	if (!cell__plan_check(bytes, (size_t)st.st_size)) {
		munmap(bytes, (size_t)st.st_size);
		errno = EINVAL;
		return NULL;
	}
	return bytes;
}

/* ---- checking ---- */

bool cell__plan_check(const void *bytes, size_t size)
{
	const struct cell_plan *plan = bytes;
	if (size < sizeof *plan || size > CELL_PLAN_MAX_BYTES || plan->magic != CELL_PLAN_MAGIC || plan->version != CELL_PLAN_VERSION ||
	    plan->bytes != size || plan->n_steps > CELL_PLAN_MAX_STEPS)
		return false;
	size_t at = sizeof *plan;
	for (uint32_t i = 0; i < plan->n_steps; i++) {
		if (size - at < sizeof(struct cell_plan_step))
			return false;
		const struct cell_plan_step *step = (const struct cell_plan_step *)((const char *)bytes + at);
		uint64_t need = sizeof *step + (uint64_t)step->a_size + 1 + (uint64_t)step->b_size + 1;
		if (step->bytes % 8 != 0 || step->bytes < need || step->bytes > size - at || step->text[step->a_size] != '\0' ||
		    step->text[(size_t)step->a_size + 1 + step->b_size] != '\0')
			return false;
		at += step->bytes;
	}
	return at == size;
}
