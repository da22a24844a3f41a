/*
 * The spawner's zygotes: starts them from a message of the host's, and reads their messages. Messages about themselves are passed on;
 * spawner.c handles messages about kernels.
 *
 * A zygote with a plan is confined: an usher enters the zone (zone.h) and clones it, it does the steps of its plan and becomes the
 * interpreter. A step that fails is reported by the pipe that exec closes; no failing step is skipped.
 */
#define _GNU_SOURCE
#include "spawn/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sandbox/mapped.h"
#include "spawn/proc.h"
#include "spawn/zone.h"

#define STDERR_TAIL 4000

struct zygote *cell__zygote_find(uint64_t id)
{
	struct zygote *z = cell__spawner.zygotes;
	while (z && z->id != id)
		z = z->next;
	return z;
}

/* A zygote as described by a message. The strings are in its payload. */
struct launch {
	char **argv, **envp;
	int control_fd, stderr_fd, report_fd;
	const struct cell_plan *plan; /* NULL: not confined */
	bool as_nobody;
	int trees[CELL_PLAN_MAX_TREES]; /* of a plan that is mapped */
	int n_trees;
};

/* ---- in the child: no allocation, no logging ---- */

/* 0 to 4, which the zygote expects.  The report goes to a high number, and the trees are out of the way too. */
static void take_fds(struct launch *launch)
{
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	int report = fcntl(launch->report_fd, F_DUPFD_CLOEXEC, 10);
	int lifeline = fcntl(CELL_SPAWNER_LIFELINE_FD, F_DUPFD_CLOEXEC, 10);
	int control = fcntl(launch->control_fd, F_DUPFD_CLOEXEC, 10);
	int errors = fcntl(launch->stderr_fd, F_DUPFD_CLOEXEC, 10);
	for (int i = 0; i < launch->n_trees; i++)
		if ((launch->trees[i] = fcntl(launch->trees[i], F_DUPFD_CLOEXEC, 10)) < 0)
			cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_FDS);
	if (null < 0 || report < 0 || lifeline < 0 || control < 0 || errors < 0 || dup2(null, 0) < 0 || dup2(errors, 1) < 0 ||
	    dup2(errors, 2) < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_FDS);
	launch->report_fd = report;
	if (dup2(control, 3) < 0 || dup2(lifeline, 4) < 0)
		cell__spawner_child_failed(report, CELL_SPAWN_AT_FDS);
}

/* 1 + a step that was passed over and is missed: less to be seen is fine, another's /proc or keys are not. */
static int missed_step(const struct cell_plan *plan, const struct cell_plan_report *report)
{
	const struct cell_plan_step *step = cell__plan_first(plan);
	for (uint32_t i = 0; i < plan->n_steps; i++, step = cell__plan_next(step))
		if ((report->skipped[i / 8] & (1u << (i % 8))) && (step->op == CELL_OP_PROC || step->op == CELL_OP_SESSION_KEYS))
			return (int)i + 1;
	return 0;
}

/*
 * It has all capabilities in the zone's user namespace until the last steps, and runs only code of this file and apply.c by then. The uid
 * changes after the mounts: the caller's uid makes them, and afterwards the zygote need not own anything.
 */
static void confine(struct launch *launch)
{
	struct cell_apply apply = { .plan = launch->plan, .landlock_fd = -1, .n_trees = (uint32_t)launch->n_trees };
	struct cell_plan_report report = { .step = -1 };
	struct cell__nobody nobody = cell__zone_nobody();
	memcpy(apply.trees, launch->trees, sizeof apply.trees);
	if (cell__apply_stage(&apply, CELL_STAGE_JAIL, &report) < 0 || cell__apply_stage(&apply, CELL_STAGE_EARLY, &report) < 0)
		cell__spawner_failed_at(launch->report_fd, CELL_SPAWN_AT_PLAN, report.sys, report.step);
	if (launch->as_nobody && cell__become(nobody.uid, nobody.gid, geteuid() == 0) < 0)
		cell__spawner_failed_at(launch->report_fd, CELL_SPAWN_AT_PLAN, errno, -1);
	if (cell__apply_stage(&apply, CELL_STAGE_KERNEL, &report) < 0)
		cell__spawner_failed_at(launch->report_fd, CELL_SPAWN_AT_PLAN, report.sys, report.step);
	struct cell_spawn_failure missed = { .step = missed_step(launch->plan, &report) };
	if (missed.step > 0 && write(launch->report_fd, &missed, sizeof missed) < 0)
		_exit(126);
}

static void __attribute__((noreturn)) exec_zygote(struct launch *launch, pid_t parent)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	take_fds(launch);
	if (launch->plan)
		confine(launch);
	/* In the zone its parent has no number; the zone ends with the spawner. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || (!launch->plan && getppid() != parent))
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_BEGIN);
	execve(launch->argv[0], launch->argv, launch->envp);
	cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_EXEC);
}

/* ---- starting ---- */

/* Written by the usher, read by us: we share memory, and are suspended in the meantime. */
static struct {
	pid_t zygote;
	int error;
} usher;

static pid_t fork_into_zone(struct launch *launch, pid_t self)
{
	usher.zygote = -1;
	usher.error = 0;
	pid_t pid = vfork();
	if (pid == 0) {
		if (cell__zone_enter(false) == 0) {
			usher.zygote = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
			if (usher.zygote == 0)
				exec_zygote(launch, self);
		}
		usher.error = errno;
		_exit(0);
	}
	if (pid < 0)
		return -1;
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
	}
	errno = usher.error;
	return usher.zygote;
}

/* Its number, or -1 with *ret_failure filled. */
static pid_t launch_zygote(struct launch *launch, int *ret_missed, struct cell_spawn_failure *ret_failure)
{
	int report[2];
	pid_t self = getpid();
	*ret_failure = (struct cell_spawn_failure){ .stage = launch->plan ? CELL_SPAWN_AT_PLAN : CELL_SPAWN_AT_BEGIN, .step = -1 };
	if (pipe2(report, O_CLOEXEC) < 0) {
		ret_failure->sys = errno;
		return -1;
	}
	launch->report_fd = report[1];
	pid_t pid = launch->plan ? fork_into_zone(launch, self) : fork();
	if (pid == 0)
		exec_zygote(launch, self);
	ret_failure->sys = errno;
	close(report[1]);
	struct cell_spawn_failure told;
	while (pid > 0 && read(report[0], &told, sizeof told) == sizeof told) {
		if (told.stage == 0) {
			*ret_missed = told.step;
			continue;
		}
		waitpid(pid, NULL, 0);
		*ret_failure = told;
		pid = -1;
	}
	close(report[0]);
	return pid;
}

/* The zone, and the mounts that the zygote is shown as its own. */
static int prepare(struct launch *launch, int plan_fd)
{
	launch->plan = cell__plan_map(plan_fd);
	if (!launch->plan || cell__spawner_need_zone() < 0)
		return -1;
	launch->as_nobody = launch->plan->mapped != CELL_MAPPED_NOT;
	if (!launch->as_nobody)
		return 0;
	if (cell__zone_nobody().uid == 0) {
		errno = EPERM;
		return -1;
	}
	if (launch->plan->mapped != CELL_MAPPED_MOUNTS)
		return 0; /* it mounts everything itself, as the caller */
	launch->n_trees = cell__mapped_trees(launch->plan, cell__zone_nobody().uid, launch->trees);
	return launch->n_trees < 0 ? -1 : 0;
}

/* Reads the message's strings into a launch; false: invalid. */
static bool read_launch(struct launch *launch, int64_t argc, char *payload, size_t size)
{
	static char *strings[1024 + 1];
	static char *envp[1024 + 1];
	size_t n;
	if (size == 0 || payload[size - 1] != '\0')
		return false;
	cell__spawner_split(payload, size, strings, 1024, &n);
	if (argc < 1 || (size_t)argc > n)
		return false;
	memcpy(envp, strings + argc, (n - (size_t)argc + 1) * sizeof *envp);
	strings[argc] = NULL;
	launch->argv = strings;
	launch->envp = envp;
	return true;
}

void cell__zygote_start(uint64_t id, int64_t argc, char *payload, size_t size, int plan_fd)
{
	struct launch launch = { .report_fd = -1 };
	int pair[2] = { -1, -1 }, missed = 0;
	CELL_AUTO_FD int stderr_fd = -1;
	struct cell_spawn_failure failure = { .stage = CELL_SPAWN_AT_BEGIN, .sys = EINVAL, .step = -1 };
	struct zygote *zygote = NULL;
	pid_t pid = -1;
	if (!read_launch(&launch, argc, payload, size))
		goto out;
	zygote = cell__alloc(1, sizeof *zygote);
	stderr_fd = memfd_create("workcell-zygote-stderr", MFD_CLOEXEC);
	if (!zygote || stderr_fd < 0 || fcntl(stderr_fd, F_SETFL, O_APPEND) < 0 ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		failure.sys = errno ? errno : ENOMEM;
		goto out;
	}
	if (plan_fd >= 0 && prepare(&launch, plan_fd) < 0) {
		failure = (struct cell_spawn_failure){ .stage = CELL_SPAWN_AT_PLAN, .sys = errno, .step = -1 };
		goto out;
	}
	launch.control_fd = pair[1];
	launch.stderr_fd = stderr_fd;
	pid = launch_zygote(&launch, &missed, &failure);
	if (pid > 0) {
		*zygote = (struct zygote){ .id = id,
					   .pid = pid,
					   .fd = cell__take_fd(&pair[0]),
					   .stderr_fd = cell__take_fd(&stderr_fd),
					   .place = launch.as_nobody ? JAIL_OF_NOBODY
						    : launch.plan    ? JAIL_IN_ZONE
								     : JAIL_OF_SPAWNER,
					   .missed = missed,
					   .next = cell__spawner.zygotes };
		cell__spawner.zygotes = zygote;
		struct epoll_event event = { .events = EPOLLIN, .data.u64 = id };
		epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, zygote->fd, &event);
	}
out:
	if (pid <= 0) {
		cell__spawner_tell(CELL_SPAWN_ZYGOTE_EXITED, id, -1, failure.sys ? failure.sys : EIO, &failure,
				   plan_fd >= 0 ? sizeof failure : 0);
		free(zygote);
	}
	while (launch.n_trees > 0)
		close(launch.trees[--launch.n_trees]);
	if (launch.plan)
		munmap((void *)launch.plan, launch.plan->bytes);
	cell__close_fd(&pair[0]);
	cell__close_fd(&pair[1]);
}

/* ---- messages of zygotes ---- */

static void kernel_forked(struct zygote *zygote, struct kernel *kernel, const struct cell_spawn_msg *head, int *pidfd)
{
	bool in_zone = zygote->place != JAIL_OF_SPAWNER;
	kernel->pid = in_zone ? (*pidfd >= 0 ? cell__proc_pid_of(*pidfd) : 0) : (pid_t)head->a;
	kernel->zone_pid = in_zone ? (pid_t)head->a : 0;
	kernel->pidfd = in_zone ? cell__take_fd(pidfd) : (int)syscall(SYS_pidfd_open, kernel->pid, 0);
	bool gone = in_zone ? kernel->pid == 0 : kernel->pidfd < 0 && errno == ESRCH;
	/* The host needs a pid before it is told of the end: that of pid 1, with which the whole sandbox ends. */
	if (gone && in_zone && kernel->jail)
		kernel->pid = kernel->jail->pid;
	if (kernel->pid <= 0) {
		cell__spawner_fork_failed(kernel, ECHILD);
		return;
	}
	kernel->pidfd = cell__spawner_keep_fd(kernel->pidfd);
	if (kernel->jail)
		cell__jail_joined(kernel->jail);
	cell__spawner_tell_forked(kernel);
	if (gone)
		cell__spawner_kernel_died(kernel, -1); /* sandboxed, and reaped before we knew it */
	if (kernel->kill_wanted && kernel->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, kernel->pidfd, SIGKILL, NULL, 0);
}

static void handle_zygote_message(struct zygote *zygote, ssize_t size, int *pidfd)
{
	struct cell_spawn_msg head;
	if ((size_t)size < sizeof head)
		return;
	memcpy(&head, cell__spawner.message, sizeof head);
	if (head.version != CELL_SPAWN_VERSION)
		return;
	struct kernel *kernel;
	switch (head.type) {
	case CELL_SPAWN_ZYGOTE_READY:
	case CELL_SPAWN_ZYGOTE_WARMED:
		cell__spawner_tell(head.type, zygote->id, zygote->pid, zygote->missed, cell__spawner.message + sizeof head,
				   (size_t)size - sizeof head);
		break;
	case CELL_SPAWN_KERNEL_FORKED:
		kernel = cell__spawner_find_kernel(head.id);
		if (!kernel || kernel->zygote != zygote->id || kernel->pid != 0)
			break;
		if (head.a <= 0) {
			cell__spawner_fork_failed(kernel, (int)head.b);
			break;
		}
		kernel_forked(zygote, kernel, &head, pidfd);
		break;
	case CELL_SPAWN_KERNEL_EXITED:
		kernel = cell__spawner_find_kernel(head.id);
		if (kernel && kernel->zygote == zygote->id)
			cell__spawner_kernel_died(kernel, head.a);
		break;
	}
}

void cell__zygote_read(struct zygote *zygote)
{
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds;
	ssize_t n;
	while ((n = cell__spawner_receive(zygote->fd, fds, &n_fds)) > 0) {
		int pidfd = n_fds > 0 ? fds[0] : -1;
		handle_zygote_message(zygote, n, &pidfd);
		cell__close_fd(&pidfd);
		for (size_t i = 1; i < n_fds; i++)
			close(fds[i]);
	}
	if (n == 0) {
		/* It closed its end, so it takes no further requests. SIGCHLD reports its exit. */
		epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_DEL, zygote->fd, NULL);
		kill(zygote->pid, SIGKILL);
	}
}

void cell__zygote_died(struct zygote *zygote, int status)
{
	cell__zygote_read(zygote); /* its last messages still count */
	for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
		if (k->zygote == zygote->id && k->pid == 0)
			cell__spawner_kernel_died(k, -1);
	char tail[STDERR_TAIL];
	off_t end = lseek(zygote->stderr_fd, 0, SEEK_END);
	off_t start = end > STDERR_TAIL ? end - STDERR_TAIL : 0;
	ssize_t n = pread(zygote->stderr_fd, tail, sizeof tail, start);
	cell__spawner_tell(CELL_SPAWN_ZYGOTE_EXITED, zygote->id, status, 0, tail, n > 0 ? (size_t)n : 0);
	for (struct zygote **at = &cell__spawner.zygotes; *at; at = &(*at)->next)
		if (*at == zygote) {
			*at = zygote->next;
			break;
		}
	close(zygote->fd);
	close(zygote->stderr_fd);
	free(zygote);
	cell__spawner_sweep();
}
