/*
 * The spawner's zygotes: started from a message of the host's, read when they speak.  What they say of themselves is passed on;
 * what they say of kernels is for spawner.c.
 */
#define _GNU_SOURCE
#include "spawn/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STDERR_TAIL 4000

struct zygote *cell__zygote_find(uint64_t id)
{
	struct zygote *z = cell__spawner.zygotes;
	while (z && z->id != id)
		z = z->next;
	return z;
}

/* In the child: no allocation, no logging. */
static void exec_zygote(char **argv, char **envp, int control_fd, int stderr_fd, int report_fd, pid_t parent)
{
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
		cell__spawner_child_failed(report_fd, CELL_SPAWN_AT_BEGIN);
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null < 0 || dup2(null, 0) < 0 || dup2(stderr_fd, CELL_SPAWN_AT_BEGIN) < 0 || dup2(stderr_fd, CELL_SPAWN_AT_FDS) < 0)
		cell__spawner_child_failed(report_fd, CELL_SPAWN_AT_FDS);
	/* The report pipe must not be overwritten by 3 and 4, which the zygote expects. */
	int report = fcntl(report_fd, F_DUPFD_CLOEXEC, 10);
	int lifeline = fcntl(CELL_SPAWNER_LIFELINE_FD, F_DUPFD_CLOEXEC, 10);
	int control = fcntl(control_fd, F_DUPFD_CLOEXEC, 10);
	if (report < 0 || lifeline < 0 || control < 0 || dup2(control, 3) < 0 || dup2(lifeline, 4) < 0)
		cell__spawner_child_failed(report_fd, CELL_SPAWN_AT_FDS);
	execve(argv[0], argv, envp);
	cell__spawner_child_failed(report, CELL_SPAWN_AT_EXEC);
}

void cell__zygote_start(uint64_t id, int64_t argc, char *payload, size_t size)
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
	struct cell_spawn_failure problem;
	if (read(report[0], &problem, sizeof problem) == sizeof problem) {
		waitpid(pid, NULL, 0);
		failure = problem.sys ? problem.sys : EIO;
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

void cell__zygote_read(struct zygote *zygote)
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

void cell__zygote_died(struct zygote *zygote, int status)
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
