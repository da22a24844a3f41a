#define _GNU_SOURCE
#include "spawn/zone.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/base.h"
#include "sandbox/apply.h"
#include "sandbox/mapped.h"

static struct {
	pid_t pid;
	int fd, user_fd, pid_fd;
	struct cell__nobody nobody;
} zone = { .fd = -1, .user_fd = -1, .pid_fd = -1 };

/* ---- pid 1 ---- */

/* No process in the zone can trace it, and it could do nothing for a tracer. */
static void __attribute__((noreturn)) run_zone(int fd)
{
	sigset_t all, child;
	struct cell__nobody nobody;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	int rc = prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (rc < 0 || dup2(fd, 3) != 3 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0 || syscall(SYS_close_range, 4, ~0u, 0) < 0 ||
	    read(3, &nobody, sizeof nobody) != (ssize_t)sizeof nobody || /* the maps are written; or the spawner is gone */
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || cell__bound_capabilities() < 0 ||
	    (nobody.uid && cell__become(nobody.uid, nobody.gid, true) < 0) || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 ||
	    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || cell__drop_capabilities() < 0 ||
	    write(3, &nobody, sizeof nobody) != (ssize_t)sizeof nobody)
		_exit(1);
	for (;;) {
		struct cell_zone_end end;
		while ((end.pid = waitpid(-1, &end.status, WNOHANG | __WALL)) > 0)
			if (send(3, &end, sizeof end, MSG_NOSIGNAL) < 0 && errno != EINTR)
				_exit(1);
		(void)sigwaitinfo(&child, NULL);
	}
}

/* ---- the spawner's side ---- */

static int open_namespace(pid_t pid, const char *name)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)pid, name);
	return open(path, O_RDONLY | O_CLOEXEC);
}

static void forget(void)
{
	cell__close_fd(&zone.fd);
	cell__close_fd(&zone.user_fd);
	cell__close_fd(&zone.pid_fd);
	zone.pid = 0;
	zone.nobody = (struct cell__nobody){ 0 };
}

static int make(const struct cell__subids *ids)
{
	int pair[2];
	struct cell__nobody told;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	pid_t pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWPID | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		run_zone(pair[1]);
	int error = errno;
	close(pair[1]);
	zone.fd = pair[0];
	if (pid > 0) {
		/* Its namespaces are held by handles: once it has locked itself up, only root could still enter them by its pid. */
		if (cell__mapped_zone(pid, ids, &zone.nobody) == 0 && (zone.user_fd = open_namespace(pid, "user")) >= 0 &&
		    (zone.pid_fd = open_namespace(pid, "pid")) >= 0 && send(zone.fd, &zone.nobody, sizeof zone.nobody, MSG_NOSIGNAL) > 0 &&
		    read(zone.fd, &told, sizeof told) == (ssize_t)sizeof told) {
			zone.pid = pid;
			fcntl(zone.fd, F_SETFL, O_NONBLOCK);
			return 0;
		}
		error = errno ? errno : ECHILD;
		kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
		}
	}
	forget();
	errno = error;
	return -1;
}

/* Without subordinate ids a zone still serves plans with the caller's uid; plans with another uid are refused. */
int cell__zone_make(void)
{
	struct cell__subids ids;
	char why[160], advice[240];
	if (zone.pid > 0)
		return 0;
	if (geteuid() != 0 && cell__subids_find(&ids, why, advice) == 0 && make(&ids) == 0)
		return 0;
	return make(NULL);
}

struct cell__nobody cell__zone_nobody(void)
{
	return zone.nobody;
}

int cell__zone_enter(bool as_nobody)
{
	if ((geteuid() == 0 && syscall(SYS_setgroups, 0, NULL) < 0 && errno != EPERM) || setns(zone.user_fd, CLONE_NEWUSER) < 0 ||
	    setns(zone.pid_fd, CLONE_NEWPID) < 0)
		return -1;
	if (!as_nobody)
		return 0;
	bool root = geteuid() == 0;
	uid_t uid = geteuid();
	gid_t gid = getegid();
	/* Keep the capabilities in the zone for the remaining set-up. */
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0 || cell__become(zone.nobody.uid, zone.nobody.gid, root) < 0)
		return -1;
	if (root)
		return 0;
	/* The jail uses the caller's ids for files until it takes the ids of its plan; these calls return the previous id. */
	syscall(SYS_setfsgid, gid);
	syscall(SYS_setfsuid, uid);
	if (syscall(SYS_setfsgid, -1) != (long)gid || syscall(SYS_setfsuid, -1) != (long)uid) {
		errno = EPERM;
		return -1;
	}
	return prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

pid_t cell__zone_pid(void)
{
	return zone.pid;
}

int cell__zone_fd(void)
{
	return zone.fd;
}

bool cell__zone_read(struct cell_zone_end *ret_end)
{
	return zone.fd >= 0 && recv(zone.fd, ret_end, sizeof *ret_end, MSG_DONTWAIT) == (ssize_t)sizeof *ret_end;
}

void cell__zone_reaped(void)
{
	forget();
}
