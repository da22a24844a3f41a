/*
 * The spawner's programs: those that the host runs by process.h; and what starting any program from a message takes.
 */
#define _GNU_SOURCE
#include "spawn/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

void cell__spawner_child_failed(int fd, int stage)
{
	int report[2] = { stage, errno };
	/* The parent reads it or is gone; either way this process ends. */
	if (write(fd, report, sizeof report) < 0)
		_exit(126);
	_exit(127);
}

void cell__spawner_split(char *payload, size_t size, char **out, size_t max, size_t *ret_n)
{
	size_t n = 0;
	for (char *at = payload; at < payload + size && n < max; at += strlen(at) + 1)
		out[n++] = at;
	out[n] = NULL;
	*ret_n = n;
}

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

void cell__program_start(uint64_t id, int64_t argc, bool has_stdin, char *payload, size_t size, const int *fds,
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

void cell__program_signal(uint64_t id, int signal_number, bool group)
{
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->id == id && !p->dead)
			kill(group ? -p->pid : p->pid, signal_number);
}

void cell__program_exited(struct program *program, int status)
{
	kill(-program->pid, SIGKILL); /* what it left in its group */
	program->dead = true;
	program->status = status;
	program->dead_us = cell__now_us();
}
