/*
 * The own /tmp of a sandbox, for a client of its session.
 *
 * It is a file system of the kernel's mount namespace, found below /proc/PID/root.  The pid may be another process's by then, when the kernel
 * has ended and the loop does not know it yet.  So the root is opened once, and counts only if the session's workspace is where its code sees
 * it, which only sessions of the same workspace have in common, and if its /tmp is a file system in memory of its own, not a folder of the host
 * that a policy shows under that name.  Code cannot change any of this: it can neither mount nor leave its root.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "layer/layer.h"
#include "sandbox/machine.h"
#include "session/session.h"

int cell__tmp_check(const struct cell_session *session, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	if (!session->executor->works_here || !options->confined)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0,
				 "with the executor \"%s\" /tmp is not the session's own: its files cannot be reached from outside",
				 session->executor->name);
	if (cell__machine_here()->level != CELL_LEVEL_FULL)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "a sandbox of level no-userns has no /tmp");
	if (options->confine.workspace == CELL_WORKSPACE_NONE)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "a session without a workspace has no files for its clients");
	return 0;
}

static int open_inside(int root_fd, const char *path)
{
	struct open_how how = { .flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };
	return (int)syscall(SYS_openat2, root_fd, path, &how, sizeof how);
}

static bool is_same_folder(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Whether this root is that of the session's kernel. */
static int check_root_folder(const struct cell_session *session, int root_fd, struct cell_error *err)
{
	const struct cell__options *options = &session->options;
	const char *outside = session->layer ? cell__layer_upper(session->layer) : options->cwd;
	CELL_AUTO_FD int view = -1;
	struct stat seen, real;
	if (session->layer) {
		/* An overlay has a mark. */
		if (cell__layer_find_view(session->layer, root_fd, &view, err) < 0)
			return -1;
		if (cell__layer_form(session->layer) == CELL_LAYER_OVERLAY)
			return 0;
	} else {
		CELL_AUTO_FREE char *path = realpath(options->cwd, NULL);
		view = path ? open_inside(root_fd, path) : -1;
	}
	if (view < 0 || fstat(view, &seen) < 0 || stat(outside, &real) < 0)
		return cell_fail(err, CELL_E_IO, errno, "reach the files of the session's kernel");
	return is_same_folder(&seen, &real) ? 0 : cell_fail(err, CELL_E_IO, 0, "the files of the process are not those of the session");
}

/* Whether it is a file system in memory, neither that of the root nor one of ours. */
static bool is_own(int fd, const struct stat *root)
{
	struct statfs system;
	struct stat here, ours;
	return fstatfs(fd, &system) == 0 && (unsigned long)system.f_type == TMPFS_MAGIC && fstat(fd, &here) == 0 &&
	       here.st_dev != root->st_dev && (stat("/tmp", &ours) < 0 || here.st_dev != ours.st_dev);
}

int cell__tmp_open(const struct cell_session *session, int64_t pid, int *ret_fd, struct cell_error *err)
{
	char path[64];
	struct stat theirs, ours;
	snprintf(path, sizeof path, "/proc/%lld/root", (long long)pid);
	CELL_AUTO_FD int root = pid > 0 ? open(path, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
	if (root < 0 || fstat(root, &theirs) < 0 || stat("/", &ours) < 0)
		return cell_fail(err, CELL_E_IO, pid > 0 ? errno : ESRCH, "reach the files of the session's kernel");
	if (is_same_folder(&theirs, &ours))
		return cell_fail(err, CELL_E_IO, 0, "the process is not the session's kernel");
	if (check_root_folder(session, root, err) < 0)
		return -1;
	CELL_AUTO_FD int tmp = open_inside(root, "tmp");
	if (tmp < 0)
		return cell_fail(err, CELL_E_IO, errno, "open /tmp of the sandbox");
	if (!is_own(tmp, &theirs))
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "/tmp of the sandbox is a folder of the host: the policy shows it");
	*ret_fd = cell__take_fd(&tmp);
	return 0;
}
