#define _GNU_SOURCE
#include "sandbox/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>

static struct cell__subids zone_ids; /* of the zone that was made last, less the zone's own */

/* Between the range that systemd uses for containers and the one it calls foreign: no tool assigns these. */
#define FIRST_ID 0x70000000u
#define N_IDS 0x0ffe0000u
#define N_ZONE_IDS 0x10000u /* the first of them are for zones (spawn/zone.h), so that a zone maps its own and all of sandboxes */
#define STACK_BYTES 16384u

static unsigned choose(unsigned first, unsigned count)
{
	unsigned number = 0;
	/* Two sandboxes with the same id are equally separated from the host. */
	if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t)sizeof number)
		number = (unsigned)getpid();
	return first + number % count;
}

static unsigned choose_id(void)
{
	return choose(FIRST_ID + N_ZONE_IDS, N_IDS - N_ZONE_IDS);
}

/* Raw system calls alone: the caller may be a child of vfork(). */
static int write_to(pid_t pid, const char *name, const char *text)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
	CELL_AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
	return fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text) ? -1 : 0;
}

static int write_map(pid_t pid, const char *name, unsigned inside, unsigned outside)
{
	char line[64];
	snprintf(line, sizeof line, "%u %u 1", inside, outside);
	return write_to(pid, name, line);
}

static int write_maps(pid_t pid, unsigned uid, unsigned gid, unsigned outside_uid, unsigned outside_gid)
{
	return write_map(pid, "uid_map", uid, outside_uid) < 0 || write_map(pid, "gid_map", gid, outside_gid) < 0 ? -1 : 0;
}

static int open_userns(pid_t pid)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
	return open(path, O_RDONLY | O_CLOEXEC);
}

int cell__mapped_ids(const struct cell_plan *plan, pid_t pid)
{
	unsigned id;
	switch (plan->mapped) {
	case CELL_MAPPED_NOT:
		return write_maps(pid, plan->uid, plan->gid, plan->uid, plan->gid);
	case CELL_MAPPED_MOUNTS:
		id = choose_id();
		return write_maps(pid, plan->uid, plan->gid, id, id);
	case CELL_MAPPED_SUBIDS:
		if (zone_ids.count == 0)
			break;
		id = choose(0, zone_ids.count);
		return write_maps(pid, plan->uid, plan->gid, zone_ids.uid + id, zone_ids.gid + id);
	}
	errno = EPERM;
	return -1;
}

/* Every number means the same inside and outside. */
static int write_zone_map(pid_t pid, const char *name, unsigned caller, unsigned nobody)
{
	char text[160];
	snprintf(text, sizeof text, "%u %u 1\n%u %u 1\n%u %u %u\n", caller, caller, nobody, nobody, FIRST_ID + N_ZONE_IDS,
		 FIRST_ID + N_ZONE_IDS, N_IDS - N_ZONE_IDS);
	return write_to(pid, name, text);
}

int cell__mapped_zone(pid_t pid, const struct cell__subids *ids, struct cell__nobody *ret_nobody)
{
	unsigned nobody = choose(FIRST_ID, N_ZONE_IDS);
	*ret_nobody = (struct cell__nobody){ 0 };
	zone_ids = (struct cell__subids){ 0 };
	if (write_zone_map(pid, "uid_map", geteuid(), nobody) == 0) {
		*ret_nobody = (struct cell__nobody){ nobody, nobody };
		return write_zone_map(pid, "gid_map", getegid(), nobody);
	}
	if (ids) {
		if (cell__subids_map(pid, ids) < 0)
			return -1;
		*ret_nobody = (struct cell__nobody){ ids->uid, ids->gid };
		zone_ids = (struct cell__subids){ ids->uid + 1, ids->gid + 1, ids->count - 1 };
		return 0;
	}
	/* Without privileges one may map oneself. */
	return write_to(pid, "setgroups", "deny") < 0 || write_map(pid, "uid_map", geteuid(), geteuid()) < 0 ||
			       write_map(pid, "gid_map", getegid(), getegid()) < 0
		       ? -1
		       : 0;
}

/* A copy of the mount there, without the mounts below it. */
static int copy_mount(const char *path, int userns_fd)
{
	struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, .userns_fd = (uint64_t)userns_fd };
	CELL_AUTO_FD int tree = (int)syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_NO_AUTOMOUNT);
	if (tree < 0 || syscall(SYS_mount_setattr, tree, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
		return -1;
	return cell__take_fd(&tree);
}

static void send_trees(int fd, int error, const int *trees, size_t n)
{
	struct iovec iov = { &error, sizeof error };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_PLAN_MAX_TREES * sizeof(int))];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	if (n > 0) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), trees, n * sizeof(int));
	}
	while (sendmsg(fd, &msg, MSG_NOSIGNAL) < 0)
		if (errno != EINTR)
			return; /* it has ended, and its end will be noticed */
}

/* Returns their number, or -1 with all of them closed. */
static int copy_trees(const struct cell_plan *plan, int userns_fd, int trees[static CELL_PLAN_MAX_TREES])
{
	int n = 0, error = 0;
	const struct cell_plan_step *step = cell__plan_first(plan);
	for (uint32_t i = 0; !error && i < plan->n_steps; i++, step = cell__plan_next(step)) {
		if (step->op != CELL_OP_TREE)
			continue;
		if (n == (int)CELL_PLAN_MAX_TREES)
			error = E2BIG;
		else if ((trees[n] = copy_mount(cell__step_a(step), userns_fd)) < 0)
			error = errno;
		else
			n++;
	}
	if (!error)
		return n;
	while (n > 0)
		close(trees[--n]);
	errno = error;
	return -1;
}

void cell__mapped_start(const struct cell_plan *plan, pid_t pid, int fd, bool has_ids)
{
	int trees[CELL_PLAN_MAX_TREES], n = has_ids || cell__mapped_ids(plan, pid) == 0 ? 0 : -1;
	if (n == 0 && plan->mapped == CELL_MAPPED_MOUNTS) {
		CELL_AUTO_FD int userns_fd = open_userns(pid);
		n = userns_fd < 0 ? -1 : copy_trees(plan, userns_fd, trees);
	}
	send_trees(fd, n < 0 ? (errno ? errno : EIO) : 0, trees, n < 0 ? 0 : (size_t)n);
	while (n > 0)
		close(trees[--n]);
}

/* ---- trying ---- */

/* The caller ends it; or it goes with the caller, which a signal may end first. */
static int wait_for_the_end(void *parent)
{
	if (syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0 || syscall(SYS_getppid) != *(const pid_t *)parent)
		return 1;
	while (syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0) < 0) {
	}
	return 0;
}

/* A user namespace with these subordinate ids; NULL: in which the caller's ids are `id` outside.  Its process is gone again. */
static int make_userns(unsigned id, const struct cell__subids *ids)
{
	void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED)
		return -1;
	sigset_t all, before;
	pid_t self = getpid();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of the host's runs in it */
	pid_t pid = clone(wait_for_the_end, (char *)stack + STACK_BYTES, CLONE_VM | CLONE_NEWUSER, &self);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	int rc = pid < 0 ? -1 : ids ? cell__subids_map(pid, ids) : write_maps(pid, geteuid(), getegid(), id, id);
	int fd = rc < 0 ? -1 : open_userns(pid), error = errno;
	if (pid > 0) {
		kill(pid, SIGKILL);
		while (waitpid(pid, NULL, __WCLONE) < 0 && errno == EINTR) {
		}
	}
	munmap(stack, STACK_BYTES);
	errno = error;
	return fd;
}

int cell__mapped_trees(const struct cell_plan *plan, unsigned nobody, int trees[static CELL_PLAN_MAX_TREES])
{
	CELL_AUTO_FD int userns_fd = make_userns(nobody, NULL);
	return userns_fd < 0 ? -1 : copy_trees(plan, userns_fd, trees);
}

bool cell__mapped_is_root(void)
{
	unsigned inside = 1, outside = 1;
	char text[64] = "";
	CELL_AUTO_FD int fd = open("/proc/self/uid_map", O_RDONLY | O_CLOEXEC);
	return geteuid() == 0 && fd >= 0 && read(fd, text, sizeof text - 1) > 0 && sscanf(text, "%u %u", &inside, &outside) == 2 &&
	       inside == 0 && outside == 0;
}

bool cell__mapped_possible(void)
{
	/* To map, to copy mounts, to enter the namespaces of a process that is another user's, to find the caller's files. */
	static const int needed[] = { CAP_SETUID, CAP_SETGID, CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_KILL, CAP_DAC_OVERRIDE };
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2] = { { 0, 0, 0 }, { 0, 0, 0 } };
	if (syscall(SYS_capget, &head, caps) < 0)
		return false;
	for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
		if (!(caps[0].effective & (1u << needed[i])))
			return false;
	CELL_AUTO_FD int fd = make_userns(choose_id(), NULL);
	return fd >= 0;
}

int cell__mapped_subids(struct cell__subids *ret_ids, char ret_why[static 160], char ret_advice[static 240])
{
	if (cell__subids_find(ret_ids, ret_why, ret_advice) < 0)
		return -1;
	CELL_AUTO_FD int fd = make_userns(0, ret_ids);
	if (fd >= 0)
		return 0;
	*ret_ids = (struct cell__subids){ 0 };
	snprintf(ret_why, 160, "newuidmap or newgidmap refuses");
	snprintf(ret_advice, 240, "try `unshare --map-auto true`; in a container, start it so that setuid programs have their privileges");
	return -1;
}

/* ---- mounts ---- */

struct mount_point {
	char *path;
	char *device; /* "8:1" */
	char *root;   /* the part of the device that is visible at the path */
	unsigned long id;
	bool covered; /* by one mounted at the same place later */
	bool tried, possible;
};

/* Whether every user may read it; determined once. */
struct checked_folder {
	char *path;
	ino_t inode;
	bool open;
};

struct cell__mounts {
	int fd; /* mountinfo: it reports when mounts have changed */
	struct mount_point *list;
	size_t count;
	bool read;
	const char *chosen[CELL_PLAN_MAX_TREES + 1];
	char *copies[CELL_PLAN_MAX_TREES]; /* the chosen paths that are not mounts */
	struct checked_folder *checked;
	size_t n_checked;
};

struct cell__mounts *cell__mounts_create(void)
{
	struct cell__mounts *mounts = cell__alloc(1, sizeof *mounts);
	if (mounts)
		mounts->fd = open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC);
	return mounts;
}

static void forget(struct cell__mounts *mounts)
{
	for (size_t i = 0; i < mounts->count; i++) {
		free(mounts->list[i].path);
		free(mounts->list[i].device);
		free(mounts->list[i].root);
	}
	free(mounts->list);
	mounts->list = NULL;
	mounts->count = 0;
	mounts->read = false;
}

void cell__mounts_destroy(struct cell__mounts *mounts)
{
	if (!mounts)
		return;
	forget(mounts);
	for (size_t i = 0; i < CELL_PLAN_MAX_TREES; i++)
		free(mounts->copies[i]);
	for (size_t i = 0; i < mounts->n_checked; i++)
		free(mounts->checked[i].path);
	free(mounts->checked);
	cell__close_fd(&mounts->fd);
	free(mounts);
}

/* Blanks, line ends and backslashes are octal there. */
static void unescape(char *text)
{
	char *to = text;
	for (char *at = text; *at; to++)
		if (at[0] == '\\' && at[1] >= '0' && at[1] <= '3' && at[2] && at[3]) {
			*to = (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0'));
			at += 4;
		} else {
			*to = *at++;
		}
	*to = '\0';
}

static int add_line(struct cell__mounts *mounts, char *line)
{
	char *rest = NULL, *fields[5] = { NULL };
	size_t n = 0;
	for (char *word = strtok_r(line, " ", &rest); word && n < 5; word = strtok_r(NULL, " ", &rest))
		fields[n++] = word;
	if (n < 5)
		return 0;
	unescape(fields[3]);
	unescape(fields[4]);
	struct mount_point *more = cell__realloc(mounts->list, (mounts->count + 1) * sizeof *more);
	if (!more)
		return -1;
	mounts->list = more;
	struct mount_point *point = &more[mounts->count++];
	*point = (struct mount_point){ .path = cell__strdup(fields[4]),
				       .device = cell__strdup(fields[2]),
				       .root = cell__strdup(fields[3]),
				       .id = strtoul(fields[0], NULL, 10) };
	for (size_t i = 0; i + 1 < mounts->count; i++)
		more[i].covered |= strcmp(more[i].path, fields[4]) == 0;
	return point->path && point->device && point->root ? 0 : -1;
}

static int read_mounts(struct cell__mounts *mounts)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char part[4096];
	ssize_t n;
	forget(mounts);
	if (mounts->fd < 0 || lseek(mounts->fd, 0, SEEK_SET) < 0)
		return -1;
	while ((n = read(mounts->fd, part, sizeof part)) > 0)
		if (cell__buf_add(&text, part, (size_t)n) < 0)
			return -1;
	if (n < 0 || cell__buf_add(&text, "", 1) < 0)
		return -1;
	char *rest = NULL;
	for (char *line = strtok_r(text.data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		if (add_line(mounts, line) < 0)
			return -1;
	mounts->read = true;
	return 0;
}

/* As they are now. */
static int refresh(struct cell__mounts *mounts)
{
	struct pollfd changed = { .fd = mounts->fd, .events = POLLPRI };
	return !mounts->read || poll(&changed, 1, 0) != 0 ? read_mounts(mounts) : 0;
}

static bool is_under(const char *path, const char *folder)
{
	size_t n = strlen(folder);
	return strcmp(folder, "/") == 0 || (strncmp(path, folder, n) == 0 && (path[n] == '/' || path[n] == '\0'));
}

static bool can_be_mapped(struct mount_point *point)
{
	if (!point->tried) {
		CELL_AUTO_FD int userns_fd = make_userns(choose_id(), NULL);
		CELL_AUTO_FD int tree = userns_fd < 0 ? -1 : copy_mount(point->path, userns_fd);
		point->possible = tree >= 0;
		point->tried = userns_fd >= 0;
	}
	return point->possible;
}

/* The mount that contains a path; mounts->count: not found. */
static size_t find_mount(const struct cell__mounts *mounts, const char *path)
{
	size_t on = mounts->count;
	for (size_t i = 0; i < mounts->count; i++) {
		const struct mount_point *point = &mounts->list[i];
		if (!point->covered && is_under(path, point->path) &&
		    (on == mounts->count || strlen(point->path) > strlen(mounts->list[on].path)))
			on = i;
	}
	return on;
}

/* Marks the mounts that a path needs: the mount that contains it, and every mount below it. */
static bool choose_mounts(struct cell__mounts *mounts, const char *path, bool *chosen, char *ret_why)
{
	size_t on = find_mount(mounts, path);
	for (size_t i = 0; i < mounts->count; i++) {
		struct mount_point *point = &mounts->list[i];
		if (point->covered || (i != on && !is_under(point->path, path)))
			continue;
		if (!can_be_mapped(point)) {
			snprintf(ret_why, 160, "%.150s", point->path);
			return false;
		}
		chosen[i] = true;
	}
	if (on == mounts->count)
		snprintf(ret_why, 160, "%.150s", path);
	return on < mounts->count;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *const *cell__mounts_of(struct cell__mounts *mounts, const char *const *paths, char ret_why[static 160])
{
	size_t n = 0;
	snprintf(ret_why, 160, "/proc/self/mountinfo");
	if (refresh(mounts) < 0)
		return NULL;
	bool *chosen = cell__alloc(mounts->count + 1, sizeof *chosen);
	bool ok = chosen != NULL;
	for (size_t i = 0; ok && paths[i]; i++)
		ok = choose_mounts(mounts, paths[i], chosen, ret_why);
	for (size_t i = 0; ok && i < mounts->count; i++) {
		if (!chosen[i])
			continue;
		if (n == CELL_PLAN_MAX_TREES) {
			snprintf(ret_why, 160, "more than %u mounts", CELL_PLAN_MAX_TREES);
			ok = false;
			break;
		}
		mounts->chosen[n++] = mounts->list[i].path;
	}
	mounts->chosen[n] = NULL;
	/* A prefix of a name sorts before the name. */
	qsort(mounts->chosen, n, sizeof *mounts->chosen, compare_names);
	free(chosen);
	return ok ? mounts->chosen : NULL;
}

/* ---- files that every user may read ---- */

static bool is_open(const char *path)
{
	struct stat st;
	if (stat(path, &st) < 0)
		return errno == ENOENT || errno == ELOOP; /* a dangling link does not matter */
	unsigned needed = S_ISDIR(st.st_mode) ? S_IROTH | S_IXOTH : S_ISREG(st.st_mode) ? S_IROTH : 0;
	return (st.st_mode & needed) == needed;
}

/* Two levels, which contain a whole prefix except libraries, and the packages there: the effect of a private umask is noticed. */
static bool is_open_below(const char *folder)
{
	static const char *const below[] = { "*", "*/*", "lib*/python3*/*", "lib*/python3*/*-packages/*" };
	bool open = is_open(folder);
	for (size_t i = 0; open && i < sizeof below / sizeof *below; i++) {
		CELL_AUTO_BUF struct cell__buf pattern = CELL_BUF_INIT;
		glob_t found = { 0 };
		/* A name with glob characters is not searched further. */
		if (strpbrk(folder, "*?[\\") || cell__buf_printf(&pattern, "%s/%s", folder, below[i]) < 0)
			return false;
		if (glob(pattern.data, GLOB_NOSORT, NULL, &found) == 0)
			for (size_t k = 0; open && k < found.gl_pathc; k++)
				open = is_open(found.gl_pathv[k]);
		globfree(&found);
	}
	return open;
}

static bool check_folder(struct cell__mounts *mounts, const char *path)
{
	struct stat st;
	if (stat(path, &st) < 0)
		return false;
	for (size_t i = 0; i < mounts->n_checked; i++)
		if (mounts->checked[i].inode == st.st_ino && strcmp(mounts->checked[i].path, path) == 0)
			return mounts->checked[i].open;
	bool open = is_open_below(path);
	char *copy = cell__strdup(path);
	struct checked_folder *more = copy ? cell__realloc(mounts->checked, (mounts->n_checked + 1) * sizeof *more) : NULL;
	if (!more) {
		free(copy);
		return open; /* the next call checks again */
	}
	mounts->checked = more;
	more[mounts->n_checked++] = (struct checked_folder){ copy, st.st_ino, open };
	return open;
}

const char *const *cell__mounts_open_to_all(struct cell__mounts *mounts, const char *const *paths, char ret_why[static 160])
{
	size_t n = 0;
	for (size_t i = 0; paths[i]; i++) {
		bool covered = false;
		for (size_t k = 0; paths[k] && !covered; k++)
			covered = k != i && is_under(paths[i], paths[k]) && (strcmp(paths[i], paths[k]) != 0 || k < i);
		if (!check_folder(mounts, paths[i])) {
			snprintf(ret_why, 160, "%.120s is not world-readable", paths[i]);
			return NULL;
		}
		if (covered)
			continue;
		if (n == CELL_PLAN_MAX_TREES) {
			snprintf(ret_why, 160, "more than %u folders", CELL_PLAN_MAX_TREES);
			return NULL;
		}
		free(mounts->copies[n]);
		mounts->chosen[n] = mounts->copies[n] = cell__strdup(paths[i]);
		if (!mounts->copies[n++]) {
			snprintf(ret_why, 160, "no memory");
			return NULL;
		}
	}
	mounts->chosen[n] = NULL;
	return mounts->chosen;
}

/* ---- other names ---- */

/* The rest of a path that is under the folder: "" or "/rest". */
static const char *below(const char *path, const char *folder)
{
	return strcmp(folder, "/") == 0 ? strcmp(path, "/") == 0 ? "" : path : path + strlen(folder);
}

struct naming {
	const struct cell__mounts *mounts;
	const char *path; /* known already, and all below it */
	int (*each)(void *arg, const char *name);
	void *arg;
};

/* Where mounts show the folder `root` of a device, or a part of it. */
static int name_root(const struct naming *naming, const char *device, const char *root)
{
	for (size_t i = 0; i < naming->mounts->count; i++) {
		const struct mount_point *point = &naming->mounts->list[i];
		CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
		bool holds = is_under(root, point->root);
		if (point->covered || strcmp(point->device, device) != 0 || (!holds && !is_under(point->root, root)))
			continue;
		const char *rest = holds ? below(root, point->root) : "";
		if (cell__buf_printf(&name, "%s%s", strcmp(point->path, "/") == 0 && *rest ? "" : point->path, rest) < 0) {
			errno = ENOMEM;
			return -1;
		}
		int rc = is_under(name.data, naming->path) ? 0 : naming->each(naming->arg, name.data);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/*
 * In a chroot whose root is not a mount, the part of the device that it shows is unknown: each mount of the device may be a part of the
 * path.
 */
static int name_device(const struct naming *naming)
{
	struct stat st;
	char device[32];
	if (stat(naming->path, &st) < 0)
		return -1;
	snprintf(device, sizeof device, "%u:%u", major(st.st_dev), minor(st.st_dev));
	int rc = 0;
	for (size_t i = 0; rc >= 0 && i < naming->mounts->count; i++) {
		const struct mount_point *point = &naming->mounts->list[i];
		if (!point->covered && strcmp(point->device, device) == 0 && !is_under(point->path, naming->path))
			rc = naming->each(naming->arg, point->path);
	}
	return rc;
}

static int name_path(const struct naming *naming, const struct mount_point *point)
{
	CELL_AUTO_BUF struct cell__buf root = CELL_BUF_INIT;
	const char *rest = below(naming->path, point->path);
	if (cell__buf_printf(&root, "%s%s", strcmp(point->root, "/") == 0 && *rest ? "" : point->root, rest) < 0) {
		errno = ENOMEM;
		return -1;
	}
	return name_root(naming, point->device, root.data);
}

int cell__mounts_names(struct cell__mounts *mounts, const char *path, int (*each)(void *arg, const char *name), void *arg)
{
	const struct naming naming = { mounts, path, each, arg };
	if (refresh(mounts) < 0)
		return -1;
	size_t on = find_mount(mounts, path);
	int rc = on < mounts->count ? name_path(&naming, &mounts->list[on]) : name_device(&naming);
	for (size_t i = 0; rc >= 0 && i < mounts->count; i++) {
		const struct mount_point *point = &mounts->list[i];
		if (i != on && !point->covered && is_under(point->path, path))
			rc = name_root(&naming, point->device, point->root);
	}
	return rc;
}
