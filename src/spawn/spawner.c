/*
 * workcell-spawner: the small program that forks everything.
 *
 * Why it exists: a host with threads, signal handlers and a large heap is a bad place to fork from and a bad
 * parent to be reaped by.  This process has one thread and no Python, and whatever happens to the host it
 * leaves nothing behind.
 *
 * Actors and channels
 *
 *     host ══ fd 3, SOCK_SEQPACKET ══ spawner ══ one SOCK_SEQPACKET each ══ zygotes ── fork ──▶ kernels
 *
 *   fd 4 is the reading end of the lifeline, fd 5 its writing end (see kernel/ext/_workcell.c): while host or
 *   spawner lives, kernels live.
 *
 * Who reaps whom
 *
 *   The spawner daemonises itself, so the host gets no SIGCHLD from it.  Zygotes are its children and die with
 *   it (PDEATHSIG).  Kernels are children of their zygote, which reports their exit; when a zygote dies its kernels
 *   become ours, because we are a subreaper, and are known by their pid.  A kernel is a subreaper too: while it
 *   lives, everything its code started is below it.  When it dies, what it left behind becomes our child.  So:
 *
 *       a child of ours that is neither zygote nor known kernel is the orphan of a dead kernel, and is killed.
 *
 *   KERNEL_EXITED goes to the host only when no orphan is left: "closed" means gone.
 *
 * Sandboxed kernels (a KERNEL_FORK with a plan) are forked into a shell: namespaces with a pid 1 of ours (shells.h).  The
 * zygote forks them through a process that enters the namespaces first and ends at once, so they are children of ours from
 * the start.  A child of ours in another pid namespace is therefore never an orphan; it goes with its shell, and "closed"
 * waits for that.
 *
 * States of a kernel: (waiting for its shell ──▶) forking ──FORKED──▶ alive ──exit──▶ dead, orphans being swept ──▶ reported, forgotten.
 * The host's socket closing, for whatever reason, ends everything.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"
#include "spawn/message.h"
#include "spawn/proc.h"
#include "spawn/shells.h"
#include "wire/spawn_msg.h"

#define CELL_SPAWNER_HOST_FD 3
#define CELL_SPAWNER_LIFELINE_FD 4
#define CELL_SPAWNER_LIFELINE_WRITE_FD 5
#define SWEEP_LIMIT_US 2000000 /* a child in uninterruptible sleep does not hold the report up longer */
#define STDERR_TAIL 4000
#define SHELL_EVENT (1ull << 63) /* with the shell's serial, in an epoll event */
#define LONG_SLICE_NS 100000000u     /* the longest that Linux takes */
#define SPARE_DELAY_MS 3         /* whoever has just taken a shell goes first */

struct zygote {
	uint64_t id;
	pid_t pid;
	int fd;
	int stderr_fd; /* a memfd: what it said before it died */
	struct zygote *next;
};

struct kernel {
	uint64_t id;
	uint64_t zygote;
	pid_t pid; /* 0 while forking */
	int pidfd;
	bool kill_wanted;
	bool dead;
	int64_t status;
	int64_t flags;
	int64_t dead_us;
	struct shell *shell; /* NULL: not sandboxed */
	int64_t share;       /* enum cell_cgroup_share */
	struct cell_spawn_msg request; /* while it waits for its shell */
	int fds[CELL_SPAWN_KERNEL_FDS];
	bool waits;
	struct cell_cgroup_usage usage;
	struct kernel *next;
};

/* A program of process.h: a session of its own, and a subreaper like kernels are. */
struct program {
	uint64_t id;
	pid_t pid;
	bool dead; /* its orphans are being swept; the number is not its own any more */
	int status;
	int64_t dead_us;
	struct program *next;
};

struct cell__spawner {
	struct zygote *zygotes;
	struct program *programs;
	struct kernel *kernels;
	int epoll_fd;
	char message[CELL_LIMIT_SPAWN_MESSAGE]; /* the one that is being handled */
};

static struct cell__spawner cell__spawner;
static int signal_fd;
static uint64_t oom_seen;

/* ---- messages ---- */

static void cell__spawner_tell(uint32_t type, uint64_t id, int64_t a, int64_t b, const void *payload, size_t size)
{
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION, .type = type, .id = id, .a = a, .b = b };
	/* A host that is gone shows at its socket; there is nobody to tell. */
	(void)cell__spawn_send(CELL_SPAWNER_HOST_FD, &head, payload, size, NULL, 0, 0);
}

/* Bytes of the next datagram in `message`, 0 at the end, -1 when there is none now. */
static ssize_t cell__spawner_receive(int fd, int fds[CELL_SPAWN_MAX_FDS], size_t *ret_n_fds)
{
	struct iovec iov = { cell__spawner.message, sizeof cell__spawner.message };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_SPAWN_MAX_FDS * sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t n;
	do
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	*ret_n_fds = 0;
	for (struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL; c; c = CMSG_NXTHDR(&msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
			*ret_n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(fds, CMSG_DATA(c), *ret_n_fds * sizeof(int));
		}
	if (n < 0)
		return errno == EAGAIN ? -1 : 0;
	return n;
}

/* ---- looking things up ---- */

static struct zygote *cell__zygote_find(uint64_t id)
{
	struct zygote *z = cell__spawner.zygotes;
	while (z && z->id != id)
		z = z->next;
	return z;
}

static struct kernel *cell__spawner_find_kernel(uint64_t id)
{
	struct kernel *k = cell__spawner.kernels;
	while (k && k->id != id)
		k = k->next;
	return k;
}

static bool is_known(pid_t pid)
{
	for (struct zygote *z = cell__spawner.zygotes; z; z = z->next)
		if (z->pid == pid)
			return true;
	for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
		if (k->pid == pid)
			return true;
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->pid == pid && !p->dead)
			return true;
	return false;
}

/* ---- orphans ---- */

static void kill_unknown(pid_t pid, void *arg)
{
	size_t *count = arg;
	if (is_known(pid) || cell__shell_by_pid(pid) || cell__proc_has_own_pids(pid))
		return;
	kill(pid, SIGKILL); /* a child of ours that nobody has reaped: the number cannot have been reused */
	(*count)++;
}

static size_t cell__spawner_sweep(void)
{
	size_t count = 0;
	cell__proc_children(getpid(), kill_unknown, &count);
	return count;
}

static void forget_kernel(struct kernel *kernel)
{
	for (struct kernel **at = &cell__spawner.kernels; *at; at = &(*at)->next)
		if (*at == kernel) {
			*at = kernel->next;
			break;
		}
	cell__close_fd(&kernel->pidfd);
	for (int i = 0; kernel->waits && i < CELL_SPAWN_KERNEL_FDS; i++)
		cell__close_fd(&kernel->fds[i]);
	free(kernel);
}

/* A dead kernel's shell: false while something of it is left. */
static bool shell_gone(struct kernel *kernel)
{
	if (!kernel->shell)
		return true;
	if (kernel->shell->pid != 0) {
		cell__shell_kill(kernel->shell);
		return false;
	}
	cell__cgroup_usage(&kernel->shell->group, &kernel->usage);
	if (!cell__shell_remove(kernel->shell))
		return false;
	kernel->shell = NULL;
	return true;
}

/* Reports the dead whose orphans are gone (or will not go). */
static void report_dead(void)
{
	bool any = false;
	for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
		any |= k->dead;
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		any |= p->dead;
	if (!any)
		return;
	bool clean = cell__spawner_sweep() == 0;
	for (struct kernel *k = cell__spawner.kernels, *next; k; k = next) {
		next = k->next;
		if (!k->dead)
			continue;
		bool sandboxed = k->shell != NULL;
		if (!(shell_gone(k) && clean) && cell__now_us() - k->dead_us < SWEEP_LIMIT_US)
			continue;
		if (k->usage.oom_kills > 0 && !k->kill_wanted)
			k->flags |= CELL_SPAWN_EXIT_OOM;
		sandboxed |= k->usage.memory_max > 0 || k->usage.pids_peak > 0;
		cell__spawner_tell(CELL_SPAWN_KERNEL_EXITED, k->id, k->status, k->flags, &k->usage, sandboxed ? sizeof k->usage : 0);
		forget_kernel(k);
	}
	for (struct program **at = &cell__spawner.programs; *at;) {
		struct program *p = *at;
		if (!p->dead || (!clean && cell__now_us() - p->dead_us < SWEEP_LIMIT_US)) {
			at = &p->next;
			continue;
		}
		cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, p->id, p->status, 0, NULL, 0);
		*at = p->next;
		free(p);
	}
}

/* Where there is no group for it, each process of the sandbox lets others go first, as far as anybody may ask for that. */
static void set_share(struct kernel *kernel, int64_t share)
{
	struct shell *shell = kernel ? kernel->shell : NULL;
	if (!shell || kernel->pid <= 0 || kernel->share == share || share < CELL_SHARE_USUAL || share > CELL_SHARE_REST)
		return;
	kernel->share = share;
	if (shell->has_group && cell__cgroup_set_share(&shell->group, (enum cell_cgroup_share)share))
		return;
	/* Twice: what is started meanwhile has its slice from who started it.  Orphans are below pid 1. */
	for (int i = 0; i < 2; i++) {
		cell__proc_slice_tree(kernel->pid, share != CELL_SHARE_USUAL ? LONG_SLICE_NS : 0);
		if (shell->pid > 0)
			cell__proc_slice_tree(shell->pid, share != CELL_SHARE_USUAL ? LONG_SLICE_NS : 0);
	}
}

static void cell__spawner_kernel_died(struct kernel *kernel, int64_t status)
{
	if (kernel->dead)
		return;
	set_share(kernel, CELL_SHARE_USUAL); /* dying takes time on a core: that of all the others in there */
	kernel->dead = true;
	kernel->status = status;
	kernel->dead_us = cell__now_us();
	kernel->pid = -1; /* not ours to know any more */
	if (kernel->shell)
		cell__shell_kill(kernel->shell);
	else if (status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !kernel->kill_wanted) {
		uint64_t now = cell__proc_oom_kills();
		if (now > oom_seen)
			kernel->flags = CELL_SPAWN_EXIT_OOM;
		oom_seen = now;
	}
}

/* ---- zygotes ---- */

static void cell__spawner_child_failed(int fd, int stage)
{
	int report[2] = { stage, errno };
	/* The parent reads it or is gone; either way this process ends. */
	if (write(fd, report, sizeof report) < 0)
		_exit(126);
	_exit(127);
}

/* In the child: no allocation, no logging. */
static void exec_zygote(char **argv, char **envp, int control_fd, int stderr_fd, int report_fd, pid_t parent)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		cell__spawner_child_failed(report_fd, 1);
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0 || dup2(stderr_fd, 1) < 0 || dup2(stderr_fd, 2) < 0)
		cell__spawner_child_failed(report_fd, 2);
	/* The report pipe must not be overwritten by 3 and 4, which the zygote expects. */
	int report = fcntl(report_fd, F_DUPFD_CLOEXEC, 10);
	int lifeline = fcntl(CELL_SPAWNER_LIFELINE_FD, F_DUPFD_CLOEXEC, 10);
	int control = fcntl(control_fd, F_DUPFD_CLOEXEC, 10);
	if (report < 0 || lifeline < 0 || control < 0 || dup2(control, 3) < 0 || dup2(lifeline, 4) < 0)
		cell__spawner_child_failed(report_fd, 3);
	execve(argv[0], argv, envp);
	cell__spawner_child_failed(report, 4);
}

static void cell__spawner_split(char *payload, size_t size, char **out, size_t max, size_t *ret_n)
{
	size_t n = 0;
	for (char *at = payload; at < payload + size && n < max; at += strlen(at) + 1)
		out[n++] = at;
	out[n] = NULL;
	*ret_n = n;
}

static void cell__zygote_start(uint64_t id, int64_t argc, char *payload, size_t size)
{
	static char *strings[1024 + 1];
	static char *envp[1024 + 1];
	size_t n;
	int pair[2] = { -1, -1 }, report[2] = { -1, -1 };
	CELL_AUTO_FD int stderr_fd = -1;
	struct zygote *zygote = NULL;
	int failure = EINVAL;
	if (size == 0 || payload[size - 1] != '\0')
		goto fail;
	cell__spawner_split(payload, size, strings, 1024, &n);
	if (argc < 1 || (size_t)argc > n)
		goto fail;
	memcpy(envp, strings + argc, (n - (size_t)argc + 1) * sizeof *envp);
	strings[argc] = NULL;
	zygote = cell__alloc(1, sizeof *zygote);
	stderr_fd = memfd_create("workcell-zygote-stderr", MFD_CLOEXEC);
	if (!zygote || stderr_fd < 0 || fcntl(stderr_fd, F_SETFL, O_APPEND) < 0 ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 || pipe2(report, O_CLOEXEC) < 0) {
		failure = errno ? errno : ENOMEM;
		goto fail;
	}
	pid_t self = getpid();
	pid_t pid = fork();
	if (pid < 0) {
		failure = errno;
		goto fail;
	}
	if (pid == 0)
		exec_zygote(strings, envp, pair[1], stderr_fd, report[1], self);
	cell__close_fd(&pair[1]);
	cell__close_fd(&report[1]);
	int problem[2];
	if (read(report[0], problem, sizeof problem) == sizeof problem) {
		waitpid(pid, NULL, 0);
		failure = problem[1] ? problem[1] : EIO;
		goto fail;
	}
	cell__close_fd(&report[0]);
	*zygote = (struct zygote){ .id = id, .pid = pid, .fd = pair[0], .stderr_fd = cell__take_fd(&stderr_fd),
				   .next = cell__spawner.zygotes };
	cell__spawner.zygotes = zygote;
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = id };
	epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, pair[0], &event);
	return;
fail:
	cell__spawner_tell(CELL_SPAWN_ZYGOTE_EXITED, id, -1, failure, NULL, 0);
	cell__close_fd(&pair[0]);
	cell__close_fd(&pair[1]);
	cell__close_fd(&report[0]);
	cell__close_fd(&report[1]);
	free(zygote);
}

static void cell__spawner_tell_forked(struct kernel *kernel)
{
	struct shell *shell = kernel->shell;
	struct cell_spawn_msg head = {
		.version = CELL_SPAWN_VERSION, .type = CELL_SPAWN_KERNEL_FORKED, .id = kernel->id, .a = kernel->pid
	};
	(void)cell__spawn_send(CELL_SPAWNER_HOST_FD, &head, shell ? &shell->report : NULL, shell ? sizeof shell->report : 0,
			       shell ? &shell->listen_fd : NULL, shell && shell->listen_fd >= 0, 0);
	if (shell)
		cell__close_fd(&shell->listen_fd);
}

/* A kernel that never was.  Its shell, if there is one, may be broken: it goes too. */
static void cell__spawner_fork_failed(struct kernel *kernel, int error)
{
	struct shell *shell = kernel->shell;
	cell__spawner_tell(CELL_SPAWN_KERNEL_FORKED, kernel->id, 0, error ? error : EIO, shell ? &shell->report : NULL,
			   shell ? sizeof shell->report : 0);
	if (shell) {
		shell->failed = true;
		cell__shell_kill(shell);
		shell->taken = false; /* nobody's: reap() removes it */
		if (shell->pid == 0)
			(void)cell__shell_remove(shell);
	}
	forget_kernel(kernel);
}

static void handle_zygote_message(struct zygote *zygote, ssize_t size)
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
		cell__spawner_tell(head.type, zygote->id, zygote->pid, 0, cell__spawner.message + sizeof head,
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
		kernel->pid = (pid_t)head.a;
		kernel->pidfd = (int)syscall(SYS_pidfd_open, kernel->pid, 0);
		if (kernel->shell)
			cell__shell_joined(kernel->shell);
		cell__spawner_tell_forked(kernel);
		if (kernel->pidfd < 0 && errno == ESRCH)
			cell__spawner_kernel_died(kernel, -1); /* sandboxed, and reaped before we knew it */
		if (kernel->kill_wanted && kernel->pidfd >= 0)
			syscall(SYS_pidfd_send_signal, kernel->pidfd, SIGKILL, NULL, 0);
		break;
	case CELL_SPAWN_KERNEL_EXITED:
		kernel = cell__spawner_find_kernel(head.id);
		if (kernel && kernel->zygote == zygote->id)
			cell__spawner_kernel_died(kernel, head.a);
		break;
	}
}

static void cell__zygote_read(struct zygote *zygote)
{
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds;
	ssize_t n;
	while ((n = cell__spawner_receive(zygote->fd, fds, &n_fds)) > 0) {
		for (size_t i = 0; i < n_fds; i++)
			close(fds[i]);
		handle_zygote_message(zygote, n);
	}
	if (n == 0) {
		/* It closed its end: nothing more can be asked of it.  Its exit comes by SIGCHLD. */
		epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_DEL, zygote->fd, NULL);
		kill(zygote->pid, SIGKILL);
	}
}

static void cell__zygote_died(struct zygote *zygote, int status)
{
	cell__zygote_read(zygote); /* what it said last still counts */
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

/* ---- programs ---- */

/* In the child: no allocation, no logging. */
static void exec_program(const char *file, char **argv, char **envp, const char *cwd, const int *fds, size_t n_fds,
			 bool has_stdin, int report_fd, pid_t parent)
{
	int extra[CELL_SPAWN_MAX_FDS];
	size_t n_std = has_stdin ? 3 : 2;
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 ||
	    setsid() < 0)
		cell__spawner_child_failed(report_fd, 1);
	int in = has_stdin ? fds[2] : open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (in < 0 || dup2(in, 0) < 0 || dup2(fds[0], 1) < 0 || dup2(fds[1], 2) < 0)
		cell__spawner_child_failed(report_fd, 2);
	if (n_fds > n_std) {
		/* First out of the way of the numbers that they get. */
		report_fd = fcntl(report_fd, F_DUPFD_CLOEXEC, 64);
		for (size_t i = n_std; i < n_fds; i++)
			if ((extra[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 64)) < 0)
				cell__spawner_child_failed(report_fd, 2);
		for (size_t i = n_std; i < n_fds; i++)
			if (dup2(extra[i], 3 + (int)(i - n_std)) < 0)
				cell__spawner_child_failed(report_fd, 2);
	}
	if (chdir(cwd) < 0)
		cell__spawner_child_failed(report_fd, 3);
	execve(file, argv, envp);
	cell__spawner_child_failed(report_fd, 4);
}

/* Where a command is.  With a slash it is where it says. */
static bool find_command(const char *name, const char *path, char *out, size_t size)
{
	if (strchr(name, '/'))
		return (size_t)snprintf(out, size, "%s", name) < size;
	while (*path) {
		size_t n = strcspn(path, ":");
		int written = snprintf(out, size, "%.*s/%s", (int)n, path, name);
		if (n > 0 && written > 0 && (size_t)written < size && access(out, X_OK) == 0)
			return true;
		path += n + (path[n] == ':');
	}
	return false;
}

static void cell__program_start(uint64_t id, int64_t argc, bool has_stdin, char *payload, size_t size, const int *fds,
				size_t n_fds)
{
	static char *strings[8192 + 1], *envp[8192 + 1];
	char file[4096];
	size_t n;
	int report[2] = { -1, -1 }, failure = EINVAL;
	struct program *program = NULL;
	if (size == 0 || payload[size - 1] != '\0' || n_fds < (has_stdin ? 3u : 2u))
		goto fail;
	cell__spawner_split(payload, size, strings, 8192, &n);
	if (argc < 1 || (size_t)argc + 2 > n)
		goto fail;
	char **argv = strings + 2;
	memcpy(envp, argv + argc, (n - 2 - (size_t)argc + 1) * sizeof *envp);
	argv[argc] = NULL;
	failure = ENOENT;
	if (!find_command(argv[0], strings[1], file, sizeof file))
		goto fail;
	program = cell__alloc(1, sizeof *program);
	if (!program || pipe2(report, O_CLOEXEC) < 0) {
		failure = program ? errno : ENOMEM;
		goto fail;
	}
	pid_t self = getpid();
	pid_t pid = fork();
	if (pid == 0)
		exec_program(file, argv, envp, strings[0], fds, n_fds, has_stdin, report[1], self);
	failure = errno;
	cell__close_fd(&report[1]);
	int problem[2];
	if (pid < 0 || read(report[0], problem, sizeof problem) == sizeof problem) {
		if (pid > 0) {
			waitpid(pid, NULL, 0);
			failure = problem[1] ? problem[1] : EIO;
		}
		goto fail;
	}
	cell__close_fd(&report[0]);
	*program = (struct program){ .id = id, .pid = pid, .next = cell__spawner.programs };
	cell__spawner.programs = program;
	cell__spawner_tell(CELL_SPAWN_PROCESS_STARTED, id, pid, 0, NULL, 0);
	return;
fail:
	cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, id, -1, failure, NULL, 0);
	cell__close_fd(&report[0]);
	cell__close_fd(&report[1]);
	free(program);
}

static void cell__program_signal(uint64_t id, int signal_number, bool group)
{
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->id == id && !p->dead)
			kill(group ? -p->pid : p->pid, signal_number);
}

static void cell__program_exited(struct program *program, int status)
{
	kill(-program->pid, SIGKILL); /* what it left in its group */
	program->dead = true;
	program->status = status;
	program->dead_us = cell__now_us();
}

/* ---- the host's wishes ---- */

/* Hands a request on to the zygote; the fds stay the caller's. */
static void pass_on(struct kernel *kernel, const struct cell_spawn_msg *head, const int *fds)
{
	struct zygote *zygote = cell__zygote_find(kernel->zygote);
	struct shell *shell = kernel->shell;
	int all[CELL_SPAWN_MAX_FDS];
	size_t n = shell ? CELL_SPAWN_KERNEL_FDS : CELL_SPAWN_KERNEL_FDS - 1;
	memcpy(all, fds, n * sizeof *all);
	if (shell && shell->pidfd >= 0)
		all[n++] = shell->pidfd;
	/* The host bounds what it has in flight far below the socket's buffer; full means the zygote hangs. */
	int rc = zygote ? cell__spawn_send(zygote->fd, head, shell ? &shell->group : NULL, shell ? sizeof shell->group : 0, all, n,
					   MSG_DONTWAIT)
			: -ESRCH;
	if (rc < 0)
		cell__spawner_fork_failed(kernel, -rc);
}

static void watch_shell(struct shell *shell)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = SHELL_EVENT | shell->serial };
	epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, shell->ready_fd, &event);
}

static void fork_kernel(const struct cell_spawn_msg *head, int *fds, size_t n_fds)
{
	uint64_t id = head->id, zygote_id = (uint64_t)head->a;
	struct zygote *zygote = cell__zygote_find(zygote_id);
	struct kernel *kernel = cell__alloc(1, sizeof *kernel);
	bool sandboxed = n_fds == CELL_SPAWN_KERNEL_FDS;
	if (!zygote || !kernel || (n_fds != CELL_SPAWN_KERNEL_FDS - 1 && !sandboxed)) {
		free(kernel);
		cell__spawner_tell(CELL_SPAWN_KERNEL_FORKED, id, 0, zygote ? ENOMEM : ESRCH, NULL, 0);
		return;
	}
	*kernel = (struct kernel){ .id = id, .zygote = zygote_id, .pidfd = -1, .next = cell__spawner.kernels };
	cell__spawner.kernels = kernel;
	if (sandboxed) {
		kernel->shell = cell__shell_take(fds[CELL_SPAWN_PLAN_FD]);
		if (!kernel->shell) {
			cell__spawner_fork_failed(kernel, errno);
			return;
		}
		if (!kernel->shell->ready) {
			kernel->waits = true;
			kernel->request = *head;
			memcpy(kernel->fds, fds, sizeof kernel->fds);
			memset(fds, -1, n_fds * sizeof *fds); /* kept */
			watch_shell(kernel->shell);
			return;
		}
	}
	pass_on(kernel, head, fds);
}

/* A shell has said how far it got. */
static void shell_spoke(struct shell *shell)
{
	struct kernel *kernel = cell__spawner.kernels;
	cell__shell_read(shell);
	if (shell->ready_fd >= 0)
		return;
	while (kernel && kernel->shell != shell)
		kernel = kernel->next;
	if (!kernel || !kernel->waits || kernel->dead)
		return;
	if (shell->ready && !kernel->kill_wanted) {
		pass_on(kernel, &kernel->request, kernel->fds);
		/* pass_on() may have ended it */
		struct kernel *still = cell__spawner.kernels;
		while (still && still != kernel)
			still = still->next;
		if (still) {
			for (int i = 0; i < CELL_SPAWN_KERNEL_FDS; i++)
				cell__close_fd(&kernel->fds[i]);
			kernel->waits = false;
		}
	} else if (kernel->kill_wanted) {
		cell__spawner_kernel_died(kernel, -1);
	} else {
		cell__spawner_fork_failed(kernel, shell->report.sys);
	}
}

static void signal_kernel(uint64_t id, int signal)
{
	struct kernel *kernel = cell__spawner_find_kernel(id);
	if (!kernel || kernel->dead)
		return;
	if (signal == SIGKILL)
		kernel->kill_wanted = true;
	if (signal == SIGKILL && kernel->shell && kernel->pid > 0) {
		set_share(kernel, CELL_SHARE_USUAL);
		cell__shell_kill(kernel->shell); /* with all that is in it */
	}
	if (kernel->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, kernel->pidfd, signal, NULL, 0);
}

static void handle_host_message(ssize_t size, int *fds, size_t n_fds)
{
	struct cell_spawn_msg head;
	if ((size_t)size < sizeof head)
		return;
	memcpy(&head, cell__spawner.message, sizeof head);
	char *payload = cell__spawner.message + sizeof head;
	size_t payload_size = (size_t)size - sizeof head;
	struct zygote *zygote;
	if (head.version == CELL_SPAWN_VERSION)
		switch (head.type) {
		case CELL_SPAWN_ZYGOTE_START:
			cell__zygote_start(head.id, head.a, payload, payload_size);
			break;
		case CELL_SPAWN_ZYGOTE_STOP:
			zygote = cell__zygote_find(head.id);
			if (zygote)
				kill(zygote->pid, SIGKILL);
			break;
		case CELL_SPAWN_ZYGOTE_WARM:
			zygote = cell__zygote_find(head.id);
			if (zygote)
				(void)cell__spawn_send(zygote->fd, &head, NULL, 0, NULL, 0, MSG_DONTWAIT);
			break;
		case CELL_SPAWN_PROCESS_START:
			cell__program_start(head.id, head.a, head.b != 0, payload, payload_size, fds, n_fds);
			break;
		case CELL_SPAWN_PROCESS_KILL:
			cell__program_signal(head.id, SIGKILL, true);
			break;
		case CELL_SPAWN_PROCESS_SIGNAL:
			cell__program_signal(head.id, (int)head.a, head.b != 0);
			break;
		case CELL_SPAWN_KERNEL_FORK:
			fork_kernel(&head, fds, n_fds);
			break;
		case CELL_SPAWN_KERNEL_SIGNAL:
			signal_kernel(head.id, (int)head.a);
			break;
		case CELL_SPAWN_KERNEL_KILL:
			signal_kernel(head.id, SIGKILL);
			break;
		case CELL_SPAWN_KERNEL_SHARE:
			set_share(cell__spawner_find_kernel(head.id), head.a);
			break;
		}
	for (size_t i = 0; i < n_fds; i++)
		cell__close_fd(&fds[i]);
}

/* ---- life and death ---- */

static void kill_any(pid_t pid, void *arg)
{
	(void)arg;
	kill(pid, SIGKILL);
}

/*
 * Kernels go by their pidfd (they may be grandchildren), then whatever is or becomes our child, until none is left.
 */
static void end_everything(void)
{
	for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
		if (k->pidfd >= 0)
			syscall(SYS_pidfd_send_signal, k->pidfd, SIGKILL, NULL, 0);
	int64_t deadline = cell__now_us() + 5000000;
	while (cell__now_us() < deadline) {
		cell__proc_children(getpid(), kill_any, NULL);
		pid_t pid = waitpid(-1, NULL, WNOHANG);
		if (pid < 0 && errno == ECHILD)
			break;
		if (pid == 0)
			usleep(1000);
	}
	cell__shells_remove_all();
	_exit(0);
}

static void shell_exited(struct shell *shell)
{
	if (shell->ready_fd >= 0)
		shell_spoke(shell); /* what it said last still counts */
	cell__shell_reaped(shell);
	if (!shell->taken)
		(void)cell__shell_remove(shell);
}

static void reap(void)
{
	struct signalfd_siginfo info;
	while (read(signal_fd, &info, sizeof info) > 0) {
	}
	/* A sandboxed kernel is our child before its zygote has told us its number. */
	for (struct zygote *z = cell__spawner.zygotes, *next; z; z = next) {
		next = z->next;
		cell__zygote_read(z);
	}
	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid <= 0)
			return;
		for (struct zygote *z = cell__spawner.zygotes; z; z = z->next)
			if (z->pid == pid) {
				cell__zygote_died(z, status);
				break;
			}
		for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
			if (k->pid == pid) {
				cell__spawner_kernel_died(k, status);
				break;
			}
		for (struct program *p = cell__spawner.programs; p; p = p->next)
			if (p->pid == pid && !p->dead) {
				cell__program_exited(p, status);
				break;
			}
		struct shell *shell = cell__shell_by_pid(pid);
		if (shell)
			shell_exited(shell);
	}
}

static void read_host(void)
{
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds;
	ssize_t n;
	while ((n = cell__spawner_receive(CELL_SPAWNER_HOST_FD, fds, &n_fds)) > 0)
		handle_host_message(n, fds, n_fds);
	if (n == 0)
		end_everything();
}

static bool anybody_dead(void)
{
	for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
		if (k->dead)
			return true;
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->dead)
			return true;
	return false;
}

static void serve(void)
{
	for (;;) {
		struct epoll_event events[16];
		bool spare = cell__shell_spare_wanted();
		int n = epoll_wait(cell__spawner.epoll_fd, events, 16, spare ? SPARE_DELAY_MS : anybody_dead() ? 20 : -1);
		if (n == 0 && spare)
			cell__shell_make_spare();
		for (int i = 0; i < n; i++) {
			uint64_t which = events[i].data.u64;
			struct zygote *zygote = which > 1 ? cell__zygote_find(which) : NULL;
			struct shell *shell = which & SHELL_EVENT ? cell__shell_by_serial(which & ~SHELL_EVENT) : NULL;
			if (shell && shell->ready_fd >= 0)
				shell_spoke(shell);
			else if (which == 0)
				read_host();
			else if (which == 1)
				reap();
			else if (zygote)
				cell__zygote_read(zygote);
		}
		report_dead();
	}
}

static void watch(int fd, uint64_t which)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = which };
	if (epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
		_exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 2 || strcmp(argv[1], "serve") != 0 || fcntl(CELL_SPAWNER_HOST_FD, F_GETFD) < 0) {
		fprintf(stderr, "workcell-spawner is started by libworkcell, not by hand.\n");
		return 2;
	}
	/* The host waits for the first process and is done with us: no SIGCHLD later, no zombie. */
	pid_t pid = fork();
	if (pid != 0)
		_exit(pid < 0 ? 1 : 0);
	setsid();
	for (int fd = CELL_SPAWNER_HOST_FD; fd <= CELL_SPAWNER_LIFELINE_WRITE_FD; fd++)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	syscall(SYS_close_range, CELL_SPAWNER_LIFELINE_WRITE_FD + 1, ~0u, 0);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	if (chdir("/") < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		_exit(1);
	sigset_t all, child;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	signal_fd = signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
	cell__spawner.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (signal_fd < 0 || cell__spawner.epoll_fd < 0)
		_exit(1);
	oom_seen = cell__proc_oom_kills();
	watch(CELL_SPAWNER_HOST_FD, 0);
	watch(signal_fd, 1);
	serve();
}
