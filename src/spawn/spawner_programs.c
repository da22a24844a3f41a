/*
 * The spawner's programs: those that the host runs by process.h; and what starting any program from a message takes.
 *
 * A program with a plan is forked into a shell (shells.h) by an usher, as kernels are (kernel/ext/confine.c), but with
 * CLONE_PARENT, so that it is our child from its first moment:
 *
 *     spawner ──vfork──▶ usher: joins the shell's cgroup and namespaces ──clone──▶ program: EARLY and KERNEL steps, exec
 *                          └── ends
 *
 * It has all capabilities inside its user namespace until the KERNEL steps, and has run nothing but this file by then.  A step
 * that fails is told by the pipe that exec closes; there is no way past it.
 *
 *     (waits for its shell ──▶) started ──exit──▶ dead: its shell is killed ──shell reaped──▶ reported, forgotten
 */
#define _GNU_SOURCE
#include "spawn/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawn/message.h"

#define HIGH_FD 64 /* out of the way of the numbers that a program is given */

/* What a message says of a program.  The strings are in its payload. */
struct launch {
	char **argv, **envp;
	const char *cwd, *path;
	const int *fds;
	size_t n_fds; /* without those of the plans */
	bool has_stdin;
	int report_fd;
	const struct cell_plan *plan, *session; /* NULL: not confined */
	char (*names)[4096];                    /* of a plan that is mapped: what the host calls the files behind fds */
};

static void __attribute__((noreturn)) fail_at(int fd, int stage, int sys, int step)
{
	struct cell_spawn_failure failure = { .stage = stage, .sys = sys, .step = step };
	/* The parent reads it or is gone; either way this process ends. */
	if (write(fd, &failure, sizeof failure) < 0)
		_exit(126);
	_exit(127);
}

void cell__spawner_child_failed(int fd, int stage)
{
	fail_at(fd, stage, errno, -1);
}

void cell__spawner_split(char *payload, size_t size, char **out, size_t max, size_t *ret_n)
{
	size_t n = 0;
	for (char *at = payload; at < payload + size && n < max; at += strlen(at) + 1)
		out[n++] = at;
	out[n] = NULL;
	*ret_n = n;
}

/* ---- in the child: no allocation, no logging ---- */

/* 0, 1, 2, and from 3 on what else it is given; those are in keep[].  The report goes to a high number. */
static void take_fds(struct launch *launch, int keep[CELL_APPLY_MAX_KEEP], int *ret_n_keep)
{
	int extra[CELL_SPAWN_MAX_FDS], n_keep = 0;
	size_t n_std = launch->has_stdin ? 3 : 2;
	/* First out of the way of the numbers that they get. */
	int report_fd = fcntl(launch->report_fd, F_DUPFD_CLOEXEC, HIGH_FD);
	int in = launch->has_stdin ? launch->fds[2] : open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (report_fd < 0 || in < 0 || dup2(in, 0) < 0 || dup2(launch->fds[0], 1) < 0 || dup2(launch->fds[1], 2) < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_FDS);
	for (size_t i = n_std; i < launch->n_fds; i++)
		if ((extra[i] = fcntl(launch->fds[i], F_DUPFD_CLOEXEC, HIGH_FD)) < 0)
			cell__spawner_child_failed(report_fd, CELL_SPAWN_AT_FDS);
	for (size_t i = n_std; i < launch->n_fds; i++)
		if ((keep[n_keep++] = dup2(extra[i], 3 + (int)(i - n_std))) < 0)
			cell__spawner_child_failed(report_fd, CELL_SPAWN_AT_FDS);
	launch->report_fd = keep[n_keep++] = report_fd;
	*ret_n_keep = n_keep;
}

/* As execvpe(), without a shell for files that are no programs.  The most telling error stays. */
static void exec_found(const struct launch *launch)
{
	char file[4096];
	int error = ENOENT;
	const char *name = launch->argv[0], *path = launch->path;
	if (strchr(name, '/')) {
		execve(name, launch->argv, launch->envp);
		return;
	}
	for (; *path; path += strcspn(path, ":"), path += *path == ':') {
		size_t n = strcspn(path, ":");
		int written = snprintf(file, sizeof file, "%.*s/%s", (int)n, path, name);
		if (n == 0 || written < 0 || (size_t)written >= sizeof file)
			continue;
		execve(file, launch->argv, launch->envp);
		if (errno == EACCES)
			error = EACCES;
		else if (errno != ENOENT && errno != ENOTDIR)
			return;
	}
	errno = error;
}

static void __attribute__((noreturn)) become_program(struct launch *launch)
{
	if (chdir(launch->cwd) < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_CWD);
	exec_found(launch);
	cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_EXEC);
}

static void __attribute__((noreturn)) run_plain(struct launch *launch, pid_t parent)
{
	int keep[CELL_APPLY_MAX_KEEP], n_keep;
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 ||
	    setsid() < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_BEGIN);
	take_fds(launch, keep, &n_keep);
	become_program(launch);
}

/*
 * A file that the host has opened is the host's user's.  A program that opens it anew (/proc/self/fd/N) does so as nobody; behind the copy
 * of the mount the same file is the program's own.  One that cannot be found there any more stays as it is.
 */
static void take_as_own(const struct launch *launch, const int *keep)
{
	size_t n_std = launch->has_stdin ? 3 : 2;
	int root = open(CELL_PLAN_MAPPED_ROOT, O_PATH | O_DIRECTORY | O_CLOEXEC);
	for (size_t i = n_std; root >= 0 && i < launch->n_fds; i++) {
		struct stat theirs, ours;
		int had = keep[i - n_std], flags = fcntl(had, F_GETFL);
		if (flags < 0 || launch->names[i][0] != '/' || fstat(had, &theirs) < 0 || !(S_ISREG(theirs.st_mode) || S_ISDIR(theirs.st_mode)))
			continue;
		struct open_how how = { .flags = (uint64_t)(flags & (O_ACCMODE | O_APPEND | O_PATH | O_DIRECTORY)) | O_CLOEXEC,
					.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };
		int fd = (int)syscall(SYS_openat2, root, launch->names[i] + 1, &how, sizeof how);
		if (fd >= 0 && fstat(fd, &ours) == 0 && ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino)
			(void)dup2(fd, had); /* of numbers that are open already it cannot fail */
		if (fd >= 0)
			close(fd);
	}
	if (root >= 0)
		close(root);
}

/* It dies with its shell, and that with us. */
static void __attribute__((noreturn)) run_confined(struct launch *launch)
{
	struct cell_apply apply = { .plan = launch->plan, .session = launch->session, .landlock_fd = -1 };
	struct cell_plan_report report = { .step = -1 };
	sigset_t none;
	if (setsid() < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_BEGIN);
	take_fds(launch, apply.keep, &apply.n_keep);
	if (launch->plan->mapped)
		take_as_own(launch, apply.keep);
	if (cell__apply_stage(&apply, CELL_STAGE_EARLY, &report) < 0 || cell__apply_stage(&apply, CELL_STAGE_KERNEL, &report) < 0)
		fail_at(launch->report_fd, CELL_SPAWN_AT_PLAN, report.sys, report.step);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	become_program(launch);
}

/* ---- forking ---- */

/* Written by the usher, read by us: we share memory, and stand still meanwhile. */
static struct {
	pid_t program;
	int error;
} usher;

static void run_usher(struct launch *launch, struct shell *shell)
{
	if (cell__cgroup_join(&shell->group) < 0 ||
	    /* Only root may; everybody else keeps groups that the new namespace does not know. */
	    (geteuid() == 0 && syscall(SYS_setgroups, 0, NULL) < 0 && errno != EPERM) ||
	    cell__apply_join(shell->pidfd, launch->plan) < 0) {
		usher.error = errno;
		return;
	}
	usher.program = (pid_t)syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);
	if (usher.program == 0)
		run_confined(launch);
	usher.error = errno;
}

static void name_files(struct launch *launch)
{
	static char names[CELL_SPAWN_MAX_FDS][4096];
	launch->names = names;
	for (size_t i = 0; i < launch->n_fds; i++) {
		char link[32];
		snprintf(link, sizeof link, "/proc/self/fd/%d", launch->fds[i]);
		ssize_t n = readlink(link, names[i], sizeof names[i] - 1);
		names[i][n > 0 ? n : 0] = '\0';
	}
}

static pid_t fork_into(struct launch *launch, struct shell *shell)
{
	if (launch->plan->mapped)
		name_files(launch);
	usher.program = -1;
	usher.error = 0;
	pid_t pid = vfork();
	if (pid == 0) {
		run_usher(launch, shell);
		_exit(0);
	}
	if (pid < 0)
		return -1;
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
	}
	if (usher.program < 0) {
		errno = usher.error ? usher.error : EIO;
		return -1;
	}
	cell__shell_keep_mounts(shell);
	cell__shell_joined(shell);
	return usher.program;
}

/* Its number, or -1 with *ret_failure filled. */
static pid_t start(struct launch *launch, struct shell *shell, struct cell_spawn_failure *ret_failure)
{
	int report[2];
	*ret_failure = (struct cell_spawn_failure){ .stage = shell ? CELL_SPAWN_AT_PLAN : CELL_SPAWN_AT_BEGIN, .step = -1 };
	if (pipe2(report, O_CLOEXEC) < 0) {
		ret_failure->sys = errno;
		return -1;
	}
	launch->report_fd = report[1];
	pid_t self = getpid();
	pid_t pid = shell ? fork_into(launch, shell) : fork();
	if (pid == 0)
		run_plain(launch, self);
	ret_failure->sys = errno;
	close(report[1]);
	struct cell_spawn_failure told;
	if (pid > 0 && read(report[0], &told, sizeof told) == sizeof told) {
		waitpid(pid, NULL, 0);
		*ret_failure = told;
		pid = -1;
	}
	close(report[0]);
	return pid;
}

/* ---- programs ---- */

static void forget(struct program *program)
{
	for (struct program **at = &cell__spawner.programs; *at; at = &(*at)->next)
		if (*at == program) {
			*at = program->next;
			break;
		}
	for (size_t i = 0; i < program->n_fds; i++)
		cell__close_fd(&program->fds[i]);
	free(program->payload);
	free(program);
}

/* It never ran. */
static void fail(struct program *program, const struct cell_spawn_failure *failure)
{
	cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, program->id, -1, failure->sys ? failure->sys : EIO, failure, sizeof *failure);
	if (program->shell)
		cell__shell_give_up(program->shell);
	forget(program);
}

static void tell_started(struct program *program)
{
	struct cell_spawn_msg head = {
		.version = CELL_SPAWN_VERSION, .type = CELL_SPAWN_PROCESS_STARTED, .id = program->id, .a = program->pid
	};
	struct shell *shell = program->shell;
	(void)cell__spawn_send(CELL_SPAWNER_HOST_FD, &head, NULL, 0, shell ? &shell->listen_fd : NULL,
			       shell && shell->listen_fd >= 0, 0);
	if (shell)
		cell__close_fd(&shell->listen_fd);
}

/* The message's strings into a launch; false: it is not one. */
static bool read_launch(struct program *program, char *payload, size_t size, struct launch *launch)
{
	static char *strings[8192 + 1], *envp[8192 + 1];
	size_t n, argc = (size_t)program->argc;
	if (size == 0 || payload[size - 1] != '\0')
		return false;
	cell__spawner_split(payload, size, strings, 8192, &n);
	if (program->argc < 1 || argc + 2 > n)
		return false;
	launch->argv = strings + 2;
	memcpy(envp, launch->argv + argc, (n - 2 - argc + 1) * sizeof *envp);
	launch->argv[argc] = NULL;
	launch->envp = envp;
	launch->cwd = strings[0];
	launch->path = strings[1];
	return true;
}

/* fds: those of the message; they stay the caller's. */
static void launch_program(struct program *program, char *payload, size_t size, const int *fds, size_t n_fds)
{
	struct cell_spawn_failure failure = { .stage = CELL_SPAWN_AT_BEGIN, .sys = EINVAL, .step = -1 };
	struct launch launch = { .fds = fds, .n_fds = n_fds, .has_stdin = program->flags & CELL_SPAWN_WITH_STDIN };
	pid_t pid = -1;
	if (program->shell) {
		launch.n_fds -= 2;
		launch.plan = cell__shell_plan(fds[n_fds - 2]);
		launch.session = launch.plan ? cell__plan_map(fds[n_fds - 1]) : NULL;
		failure.stage = CELL_SPAWN_AT_PLAN;
	}
	if (read_launch(program, payload, size, &launch) && (!program->shell || launch.session))
		pid = start(&launch, program->shell, &failure);
	if (launch.session)
		munmap((void *)launch.session, launch.session->bytes);
	if (pid < 0) {
		fail(program, &failure);
		return;
	}
	program->pid = pid;
	tell_started(program);
}

void cell__program_start(const struct cell_spawn_msg *head, char *payload, size_t size, int *fds, size_t n_fds)
{
	bool confined = head->b & CELL_SPAWN_WITH_PLAN;
	size_t least = 2 + (head->b & CELL_SPAWN_WITH_STDIN ? 1 : 0) + (confined ? 2 : 0);
	struct cell_spawn_failure failure = { .stage = confined ? CELL_SPAWN_AT_PLAN : CELL_SPAWN_AT_BEGIN, .step = -1 };
	struct program *program = cell__alloc(1, sizeof *program);
	if (!program || n_fds < least) {
		free(program);
		failure.sys = program ? EINVAL : ENOMEM;
		cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, head->id, -1, failure.sys, &failure, sizeof failure);
		return;
	}
	*program = (struct program){ .id = head->id, .argc = head->a, .flags = head->b, .next = cell__spawner.programs };
	cell__spawner.programs = program;
	if (confined && !(program->shell = cell__shell_take(fds[n_fds - 2], CELL_SHELL_SPARES_PROGRAM))) {
		failure.sys = errno;
		fail(program, &failure);
		return;
	}
	if (!program->shell || program->shell->ready) {
		launch_program(program, payload, size, fds, n_fds);
		return;
	}
	program->payload = cell__alloc(1, size);
	if (!program->payload) {
		failure.sys = ENOMEM;
		fail(program, &failure);
		return;
	}
	memcpy(program->payload, payload, size);
	program->payload_size = size;
	memcpy(program->fds, fds, n_fds * sizeof *fds);
	program->n_fds = n_fds;
	memset(fds, -1, n_fds * sizeof *fds); /* kept */
	cell__spawner_watch_shell(program->shell);
}

void cell__program_shell_spoke(struct program *program)
{
	struct shell *shell = program->shell;
	if (shell->ready) {
		CELL_AUTO_FREE char *payload = cell__take_ptr(program->payload);
		int fds[CELL_SPAWN_MAX_FDS];
		size_t n_fds = program->n_fds;
		memcpy(fds, program->fds, sizeof fds);
		program->n_fds = 0;
		launch_program(program, payload, program->payload_size, fds, n_fds);
		for (size_t i = 0; i < n_fds; i++)
			cell__close_fd(&fds[i]);
		return;
	}
	struct cell_spawn_failure failure = { .stage = CELL_SPAWN_AT_PLAN, .sys = shell->report.sys, .step = shell->report.step };
	fail(program, &failure);
}

void cell__program_signal(uint64_t id, int signal_number, bool group)
{
	struct program *p = cell__spawner.programs;
	while (p && p->id != id)
		p = p->next;
	if (!p || p->dead)
		return;
	if (p->pid == 0 && signal_number == SIGKILL) {
		/* It waits for its shell still: then it ended before it began. */
		cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, p->id, SIGKILL, 0, NULL, 0);
		cell__shell_give_up(p->shell);
		forget(p);
	} else if (p->pid > 0) {
		kill(group ? -p->pid : p->pid, signal_number);
		if (p->shell && group && signal_number == SIGKILL)
			cell__shell_kill(p->shell); /* with all that is in it, whatever group it has gone to */
	}
}

void cell__program_exited(struct program *program, int status)
{
	if (program->shell)
		cell__shell_kill(program->shell);
	else
		kill(-program->pid, SIGKILL); /* what it left in its group */
	program->dead = true;
	program->status = status;
	program->dead_us = cell__now_us();
}

void cell__program_report(struct program *program)
{
	cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, program->id, program->status, 0, NULL, 0);
	forget(program);
}
