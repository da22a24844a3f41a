/*
 * The spawner's programs, which the host runs by process.h; and the common code for starting a program from a message.
 *
 * A program with a plan runs in a jail (jails.h), in a process that waits there: pid 1 forked it, it is in all the namespaces and
 * the cgroup, and has done the EARLY steps.  A message with the descriptors tells it which program to run:
 *
 *     spawner ──PROCESS_START──▶ waiting process: KERNEL steps, exec ──exit──▶ pid 1: reports the status, ends ──▶ spawner reaps it
 *
 * It has all capabilities inside its user namespace until the KERNEL steps, and has run only code of this file by then.  A step
 * that fails is reported by a pipe that exec closes; no failing step is skipped.
 *
 *     (waits for its jail ──▶) started ──▶ dead, with its jail ──▶ reported, forgotten
 *
 * Without namespaces (level no-userns) there is no pid 1: the program is our child, like one without a plan, and does all steps itself.
 * It is a subreaper, as kernels are, so its processes stay below it; processes that it leaves become our children and are swept
 * (spawner.c).  If it has a cgroup that can limit processes, no process can start in there any more once the program has ended.
 */
#define _GNU_SOURCE
#include "spawn/spawner.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawn/message.h"
#include "spawn/proc.h"

#define HIGH_FD 64 /* out of the way of the numbers that a program is given */

/* A program as described by a message. The strings are in its payload. */
struct launch {
	char **argv, **envp;
	const char *cwd, *path;
	const int *fds;
	size_t n_fds; /* without those of the plans */
	bool has_stdin, has_tty;
	int report_fd;
	const struct cell_plan *plan, *session; /* NULL: not confined */
	const struct cell_cgroup *group;        /* to be joined; NULL: it is a member already */
	char **names;      /* of a mapped plan: the host's names of the files from number 3 on */
};

static void signal_command(struct program *program, int signal_number, bool group);

void cell__spawner_failed_at(int fd, int stage, int sys, int step)
{
	struct cell_spawn_failure failure = { .stage = stage, .sys = sys, .step = step };
	/* The parent reads it or is gone; either way this process ends. */
	if (write(fd, &failure, sizeof failure) < 0)
		_exit(126);
	_exit(127);
}

void cell__spawner_child_failed(int fd, int stage)
{
	cell__spawner_failed_at(fd, stage, errno, -1);
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

/* 0, 1, 2, and from 3 on its further descriptors; those are in keep[]. The report goes to a high number. */
static void take_fds(struct launch *launch, int keep[CELL_APPLY_MAX_KEEP], int *ret_n_keep)
{
	int extra[CELL_SPAWN_MAX_FDS], n_keep = 0;
	size_t n_std = launch->has_stdin ? 3 : 2;
	/* First out of the way of the numbers that they get. */
	int report_fd = fcntl(launch->report_fd, F_DUPFD_CLOEXEC, HIGH_FD);
	int in = launch->has_stdin ? launch->fds[2] : open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (report_fd < 0 || in < 0 || dup2(in, 0) < 0 || dup2(launch->fds[0], 1) < 0 || dup2(launch->fds[1], 2) < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_FDS);
	if (launch->has_tty && ioctl(0, TIOCSCTTY, 0) < 0)
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

/* As execvpe(), without a shell for files that are not executables. Keeps the most informative error. */
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

/* Landlock does not restrict the working directory: without a root of its own, a program enters a folder only if it can read it. */
static int enter_folder(const struct launch *launch)
{
	if (!launch->plan || launch->plan->level == CELL_LEVEL_FULL)
		return chdir(launch->cwd);
	int fd = open(launch->cwd, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -1 : fchdir(fd); /* exec closes it */
}

static void __attribute__((noreturn)) become_program(struct launch *launch)
{
	if (enter_folder(launch) < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_CWD);
	exec_found(launch);
	cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_EXEC);
}

/*
 * A file that the host has opened belongs to the host's user. A program that opens it again (/proc/self/fd/N) would do so as nobody; in the
 * sandbox's own mount, where it has the name that the guard judges, the same file belongs to the program. This is done with the rights of the
 * program. A file that it cannot open there stays unchanged.
 */
static void take_as_own(const struct launch *launch, const int *keep)
{
	size_t n_std = launch->has_stdin ? 3 : 2;
	for (size_t i = n_std; i < launch->n_fds; i++) {
		struct stat theirs, ours;
		char link[32];
		int had = keep[i - n_std], flags = fcntl(had, F_GETFL);
		if (flags < 0 || launch->names[i - n_std][0] != '/' || fstat(had, &theirs) < 0 ||
		    !(S_ISREG(theirs.st_mode) || S_ISDIR(theirs.st_mode)))
			continue;
		/* Without opening it at first: something else may have this name by now. */
		CELL_AUTO_FD int found = open(launch->names[i - n_std], O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (found < 0 || fstat(found, &ours) < 0 || ours.st_dev != theirs.st_dev || ours.st_ino != theirs.st_ino)
			continue;
		snprintf(link, sizeof link, "/proc/self/fd/%d", found);
		CELL_AUTO_FD int fd = open(link, (flags & (O_ACCMODE | O_APPEND | O_PATH | O_DIRECTORY)) | O_CLOEXEC);
		if (fd >= 0)
			(void)dup2(fd, had); /* of numbers that are open already it cannot fail */
	}
}

static void __attribute__((noreturn)) run_steps(struct launch *launch, struct cell_apply *apply, enum cell_plan_stage first)
{
	struct cell_plan_report report = { .step = -1 };
	sigset_t none;
	apply->plan = launch->plan;
	apply->session = launch->session;
	if ((first == CELL_STAGE_EARLY && cell__apply_stage(apply, CELL_STAGE_EARLY, &report) < 0) ||
	    cell__apply_stage(apply, CELL_STAGE_KERNEL, &report) < 0)
		cell__spawner_failed_at(launch->report_fd, CELL_SPAWN_AT_PLAN, report.sys, report.step);
	if (launch->plan->mapped == CELL_MAPPED_MOUNTS)
		take_as_own(launch, apply->keep);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	become_program(launch);
}

/* Runs it as a child of ours: without a plan, or with a plan that has no namespaces. */
static void __attribute__((noreturn)) run_here(struct launch *launch, pid_t parent)
{
	static struct cell_apply apply = { .landlock_fd = -1 };
	sigset_t none;
	sigemptyset(&none);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || setsid() < 0)
		cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_BEGIN);
	take_fds(launch, apply.keep, &apply.n_keep);
	if (launch->plan) {
		/* Only root may leave its groups. */
		if (cell__cgroup_join(launch->group) < 0 || (geteuid() == 0 && syscall(SYS_setgroups, 0, NULL) < 0 && errno != EPERM))
			cell__spawner_child_failed(launch->report_fd, CELL_SPAWN_AT_PLAN);
		run_steps(launch, &apply, CELL_STAGE_EARLY);
	}
	sigprocmask(SIG_SETMASK, &none, NULL);
	become_program(launch);
}

/* ---- messages ---- */

/* Reads the message's strings into a launch; false: invalid. */
static bool read_launch(int64_t argc, size_t n_names, char *payload, size_t size, struct launch *launch)
{
	static char *strings[8192 + 1], *envp[8192 + 1];
	size_t n, words = n_names + 2;
	if (size == 0 || payload[size - 1] != '\0')
		return false;
	cell__spawner_split(payload, size, strings, 8192, &n);
	if (argc < 1 || n < words || (size_t)argc > n - words)
		return false;
	launch->names = strings;
	launch->cwd = strings[n_names];
	launch->path = strings[n_names + 1];
	launch->argv = strings + words;
	memcpy(envp, launch->argv + argc, (n - words - (size_t)argc + 1) * sizeof *envp);
	launch->argv[argc] = NULL;
	launch->envp = envp;
	return true;
}

/* The process that waits in a jail. The spawner writes its messages, but a mistake of ours must not run a program. */
void cell__program_wait(const struct cell_plan *plan, int fd)
{
	static struct cell_apply apply = { .landlock_fd = -1 };
	struct cell_plan_report report = { .step = -1 };
	struct cell_spawn_msg head;
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds;
	apply.plan = plan;
	apply.keep[apply.n_keep++] = fd = fcntl(fd, F_DUPFD_CLOEXEC, HIGH_FD);
	if (fd < 0 || setsid() < 0)
		_exit(1);
	int rc = cell__apply_stage(&apply, CELL_STAGE_EARLY, &report);
	/* Out of the way of the numbers that the program gets. */
	int rules = apply.landlock_fd < 0 ? -1 : fcntl(apply.landlock_fd, F_DUPFD_CLOEXEC, HIGH_FD);
	if (apply.landlock_fd >= 0 && (rules < 0 || close(apply.landlock_fd) < 0))
		_exit(1);
	apply.landlock_fd = rules;
	ssize_t size = cell__spawn_receive(fd, cell__spawner.message, sizeof cell__spawner.message, fds, CELL_SPAWN_MAX_FDS, &n_fds, 0);
	if (size < (ssize_t)sizeof head || n_fds < 4)
		_exit(1);
	memcpy(&head, cell__spawner.message, sizeof head);
	struct launch launch = {
		.plan = plan, .fds = fds, .n_fds = n_fds - 2, .has_stdin = head.b & CELL_SPAWN_WITH_STDIN, .report_fd = fds[n_fds - 1]
	};
	size_t n_names = launch.n_fds - (launch.has_stdin ? 3 : 2);
	if (rc < 0)
		cell__spawner_failed_at(launch.report_fd, CELL_SPAWN_AT_PLAN, report.sys, report.step);
	launch.session = cell__plan_map(fds[n_fds - 2]);
	if (!launch.session)
		cell__spawner_child_failed(launch.report_fd, CELL_SPAWN_AT_PLAN);
	errno = EINVAL;
	if (!read_launch(head.a, n_names, cell__spawner.message + sizeof head, (size_t)size - sizeof head, &launch))
		cell__spawner_child_failed(launch.report_fd, CELL_SPAWN_AT_BEGIN);
	take_fds(&launch, apply.keep, &apply.n_keep);
	run_steps(&launch, &apply, CELL_STAGE_KERNEL);
}

/* The host's name of a file, or "". */
static void name_file(int fd, char name[static 4096])
{
	char link[32];
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, name, 4095);
	name[n > 0 ? n : 0] = '\0';
}

/* Tells the process that waits in a jail which program to run. */
static int tell_waiting(const struct program *program, const char *payload, size_t size, const int *fds, size_t n_fds, int report_fd)
{
	size_t n_std = program->flags & CELL_SPAWN_WITH_STDIN ? 3 : 2, n_names = n_fds - 2 - n_std, at = 0;
	struct cell_spawn_msg head = {
		.version = CELL_SPAWN_VERSION, .type = CELL_SPAWN_PROCESS_START, .a = program->argc, .b = program->flags
	};
	int all[CELL_SPAWN_MAX_FDS];
	CELL_AUTO_FREE char *text = n_names > 0 ? cell__alloc(1, n_names * 4096 + size) : NULL;
	if (n_names > 0) {
		if (!text) {
			errno = ENOMEM;
			return -1;
		}
		for (size_t i = 0; i < n_names; i++, at += strlen(text + at) + 1)
			name_file(fds[n_std + i], text + at);
		memcpy(text + at, payload, size);
	}
	/* Its own descriptors, the session's plan, and in the place of the jail's plan the pipe. */
	memcpy(all, fds, (n_fds - 2) * sizeof *all);
	all[n_fds - 2] = fds[n_fds - 1];
	all[n_fds - 1] = report_fd;
	int rc = cell__spawn_send(program->jail->program_fd, &head, text ? text : payload, at + size, all, n_fds, MSG_DONTWAIT);
	if (text)
		explicit_bzero(text, at + size);
	errno = -rc;
	return rc;
}

/* ---- forking ---- */

/* A child of ours, with launch filled except for the report. */
static pid_t fork_here(struct launch *launch, int report_fd)
{
	pid_t self = getpid();
	pid_t pid = fork();
	if (pid == 0) {
		launch->report_fd = report_fd;
		run_here(launch, self);
	}
	return pid;
}

/* Waits until the program runs. Returns its pid, or -1 with *ret_failure filled. */
static pid_t start(struct program *program, struct launch *launch, const char *payload, size_t size, const int *fds, size_t n_fds,
		   struct cell_spawn_failure *ret_failure)
{
	int report[2];
	*ret_failure = (struct cell_spawn_failure){ .stage = program->jail ? CELL_SPAWN_AT_PLAN : CELL_SPAWN_AT_BEGIN, .step = -1 };
	if (pipe2(report, O_CLOEXEC) < 0) {
		ret_failure->sys = errno;
		return -1;
	}
	pid_t pid;
	if (program->is_child) {
		pid = fork_here(launch, report[1]);
	} else {
		assert(program->jail);
		pid = tell_waiting(program, payload, size, fds, n_fds, report[1]) < 0 ? -1 : program->jail->program_pid;
	}
	ret_failure->sys = errno;
	close(report[1]);
	struct cell_spawn_failure told;
	if (pid > 0 && read(report[0], &told, sizeof told) == sizeof told) {
		if (program->is_child)
			waitpid(pid, NULL, 0);
		*ret_failure = told;
		pid = -1;
	}
	close(report[0]);
	return pid;
}

/* ---- programs ---- */

/* There may be secrets in it. */
static void free_payload(char *payload, size_t size)
{
	if (payload)
		explicit_bzero(payload, size);
	free(payload);
}

static void forget(struct program *program)
{
	for (struct program **at = &cell__spawner.programs; *at; at = &(*at)->next)
		if (*at == program) {
			*at = program->next;
			break;
		}
	for (size_t i = 0; i < program->n_fds; i++)
		cell__close_fd(&program->fds[i]);
	cell__close_fd(&program->report_fd);
	cell__close_fd(&program->pidfd);
	free_payload(program->payload, program->payload_size);
	free(program);
}

/* It never ran. */
static void fail(struct program *program, const struct cell_spawn_failure *failure)
{
	cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, program->id, -1, failure->sys ? failure->sys : EIO, failure, sizeof *failure);
	if (program->jail)
		cell__jail_give_up(program->jail);
	forget(program);
}

static void tell_started(struct program *program)
{
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION,
				       .type = CELL_SPAWN_PROCESS_STARTED,
				       .id = program->id,
				       .a = program->kernel_id ? program->shown_pid : program->pid };
	struct jail *jail = program->jail;
	(void)cell__spawn_send(CELL_SPAWNER_HOST_FD, &head, NULL, 0, jail ? &jail->listen_fd : NULL, jail && jail->listen_fd >= 0, 0);
	if (jail)
		cell__close_fd(&jail->listen_fd);
}

/* fds: those of the message; the caller keeps them. */
static void launch_program(struct program *program, char *payload, size_t size, const int *fds, size_t n_fds)
{
	struct cell_spawn_failure failure = { .stage = CELL_SPAWN_AT_BEGIN, .sys = EINVAL, .step = -1 };
	struct launch launch = { .fds = fds, .n_fds = n_fds, .has_stdin = program->flags & CELL_SPAWN_WITH_STDIN };
	bool good = true;
	program->is_child = !program->jail || program->jail->program_fd < 0;
	if (program->jail)
		failure.stage = CELL_SPAWN_AT_PLAN;
	if (program->jail && program->is_child) {
		launch.n_fds -= 2;
		launch.plan = cell__jail_plan(fds[n_fds - 2]);
		launch.session = launch.plan ? cell__plan_map(fds[n_fds - 1]) : NULL;
		launch.group = &program->jail->group;
		/* A plan with namespaces is done in them, or not at all. */
		good = launch.session && launch.plan->level == CELL_LEVEL_NO_USERNS;
	}
	if (program->is_child)
		good = good && read_launch(program->argc, 0, payload, size, &launch);
	pid_t pid = good ? start(program, &launch, payload, size, fds, n_fds, &failure) : -1;
	if (launch.session)
		munmap((void *)launch.session, launch.session->bytes);
	if (pid < 0) {
		fail(program, &failure);
		return;
	}
	program->pid = pid;
	tell_started(program);
}

/* ---- commands ---- */

/*
 * A command runs where the code of a kernel runs, and code may run there meanwhile: it could delay the start, and we do not wait for it.
 *
 *     asked ──pid 1 has forked it, it runs its program──▶ told ──exit──▶ dead ──▶ reported, forgotten
 *
 * In a jail pid 1 is its parent, and processes that it leaves live as long as the jail.  Without one it is our child, like other programs.
 */
static void start_command(struct program *program, char *payload, size_t size, const int *fds, size_t n_fds)
{
	struct kernel *kernel = cell__spawner_find_kernel((uint64_t)program->flags >> CELL_SPAWN_KERNEL_SHIFT);
	bool confined = program->flags & CELL_SPAWN_WITH_PLAN;
	struct cell_spawn_failure failure = { .stage = CELL_SPAWN_AT_BEGIN, .sys = ESRCH, .step = -1 };
	struct launch launch = { .fds = fds,
				 .n_fds = n_fds,
				 .has_stdin = program->flags & CELL_SPAWN_WITH_STDIN,
				 .has_tty = program->flags & CELL_SPAWN_WITH_TTY };
	int report[2] = { -1, -1 }, rc = -1;
	if (!kernel || kernel->dead || kernel->kill_wanted || kernel->pid <= 0 || confined != (kernel->jail != NULL)) {
		fail(program, &failure);
		return;
	}
	program->kernel_id = kernel->id;
	program->is_child = !kernel->jail || kernel->jail->pid == 0;
	errno = EINVAL;
	if (pipe2(report, O_CLOEXEC) == 0 && cell__spawner_watch_report(report[0], program->id) == 0) {
		fcntl(report[0], F_SETFL, O_NONBLOCK);
		if (!program->is_child) {
			struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION,
						       .type = CELL_SPAWN_PROCESS_START,
						       .id = program->id,
						       .a = program->argc,
						       .b = program->flags };
			int all[CELL_SPAWN_MAX_FDS];
			memcpy(all, fds, (n_fds - 2) * sizeof *all);
			all[n_fds - 2] = fds[n_fds - 1];
			all[n_fds - 1] = report[1];
			program->home = kernel->jail;
			rc = cell__spawner_watch_commands(kernel->jail);
			if (rc == 0)
				rc = cell__jail_start_command(kernel->jail, &head, payload, size, all, n_fds);
		} else {
			bool good = true;
			if (confined) {
				launch.n_fds -= 2;
				launch.plan = cell__jail_plan(fds[n_fds - 2]);
				launch.session = launch.plan ? cell__plan_map(fds[n_fds - 1]) : NULL;
				launch.group = &kernel->jail->group;
				good = launch.session && launch.plan->level == CELL_LEVEL_NO_USERNS;
			}
			if (good && read_launch(program->argc, 0, payload, size, &launch))
				rc = fork_here(&launch, report[1]);
			program->pid = rc > 0 ? rc : 0;
			program->shown_pid = program->pid;
		}
	}
	failure.sys = errno;
	if (launch.session)
		munmap((void *)launch.session, launch.session->bytes);
	cell__close_fd(&report[1]);
	program->report_fd = report[0];
	if (rc < 0)
		fail(program, &failure);
}

static struct program *find_program(uint64_t id)
{
	struct program *p = cell__spawner.programs;
	while (p && p->id != id)
		p = p->next;
	return p;
}

static void kill_command(struct program *program)
{
	program->kill_wanted = true;
	/*
	 * With all that it has started, also in other process groups: it is a subreaper.  It is no child of ours, so its number may be
	 * another's by now; of a process that could be stopped by its descriptor it is not.
	 */
	if (program->pidfd >= 0 && syscall(SYS_pidfd_send_signal, program->pidfd, SIGSTOP, NULL, 0) == 0) {
		if (program->pid > 0)
			cell__proc_kill_tree(program->pid);
		syscall(SYS_pidfd_send_signal, program->pidfd, SIGKILL, NULL, 0);
	}
}

static void signal_command(struct program *program, int signal_number, bool group)
{
	struct cell_spawn_msg head = {
		.version = CELL_SPAWN_VERSION, .type = CELL_SPAWN_PROCESS_SIGNAL, .id = program->id, .a = signal_number, .b = group
	};
	if (signal_number == SIGKILL)
		kill_command(program);
	if (program->home)
		(void)cell__jail_start_command(program->home, &head, NULL, 0, NULL, 0); /* to its group, which it may have left */
}

static void command_runs(struct program *program)
{
	if (program->told || program->shown_pid <= 0 || program->report_fd >= 0)
		return;
	program->told = true;
	tell_started(program);
}

void cell__command_reported(uint64_t id)
{
	struct cell_spawn_failure told;
	struct program *program = find_program(id);
	if (!program || program->report_fd < 0)
		return;
	ssize_t n = read(program->report_fd, &told, sizeof told);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	cell__close_fd(&program->report_fd);
	if (n == (ssize_t)sizeof told) {
		fail(program, &told);
		return;
	}
	command_runs(program);
}

/* Its process has ended.  False: it never ran its program, and is forgotten. */
static bool hear_last(struct program *program)
{
	uint64_t id = program->id;
	cell__command_reported(id);
	if (find_program(id) != program)
		return false;
	cell__close_fd(&program->report_fd);
	command_runs(program);
	return true;
}

static void command_ended(struct program *program, int status)
{
	if (program->dead || !hear_last(program))
		return;
	program->dead = true;
	program->status = status;
	program->dead_us = cell__now_us();
	program->home = NULL;
}

void cell__jail_commands(struct jail *jail)
{
	struct cell_spawn_msg head;
	int fd, rc;
	while ((rc = cell__jail_hear_command(jail, &head, &fd)) > 0) {
		struct program *program = find_program(head.id);
		bool known = head.version == CELL_SPAWN_VERSION && program && program->home == jail;
		if (known && head.type == CELL_SPAWN_PROCESS_EXITED) {
			command_ended(program, (int)head.a);
		} else if (known && head.a <= 0) {
			struct cell_spawn_failure failure = { .stage = CELL_SPAWN_AT_BEGIN, .sys = (int)head.b, .step = -1 };
			fail(program, &failure);
		} else if (known) {
			program->pid = fd >= 0 ? cell__proc_pid_of(fd) : 0;
			program->shown_pid = head.a;
			program->pidfd = cell__spawner_keep_fd(cell__take_fd(&fd));
			if (program->kill_wanted)
				kill_command(program);
			command_runs(program);
		}
		cell__close_fd(&fd);
	}
	if (rc < 0)
		cell__close_fd(&jail->command_fd); /* pid 1 ends, and then all commands have */
}

void cell__commands_ended(const struct jail *jail)
{
	for (struct program *p = cell__spawner.programs, *next; p; p = next) {
		next = p->next;
		if (p->home == jail)
			command_ended(p, SIGKILL);
	}
}

void cell__commands_kill(uint64_t kernel_id)
{
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->kernel_id == kernel_id && p->is_child && p->pid > 0 && !p->dead)
			kill(-p->pid, SIGKILL); /* what it leaves is swept */
}

bool cell__commands_left(uint64_t kernel_id)
{
	for (const struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->kernel_id == kernel_id)
			return true;
	return false;
}

void cell__command_join(const struct cell_plan *plan, const struct cell_spawn_msg *head, char *payload, size_t size, const int *fds,
			size_t n_fds, int guard_fd)
{
	static struct cell_apply apply = { .landlock_fd = -1, .joins = true };
	struct launch launch = { .plan = plan,
				 .fds = fds,
				 .n_fds = n_fds - 2,
				 .has_stdin = head->b & CELL_SPAWN_WITH_STDIN,
				 .has_tty = head->b & CELL_SPAWN_WITH_TTY,
				 .report_fd = fds[n_fds - 1] };
	apply.join_fd = fcntl(guard_fd, F_DUPFD_CLOEXEC, HIGH_FD);
	launch.session = cell__plan_map(fds[n_fds - 2]);
	if (!launch.session || apply.join_fd < 0)
		cell__spawner_child_failed(launch.report_fd, CELL_SPAWN_AT_PLAN);
	/* Processes that lose their parent stay below it, where it can be killed with all of them. */
	if (setsid() < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0 || !read_launch(head->a, 0, payload, size, &launch))
		cell__spawner_child_failed(launch.report_fd, CELL_SPAWN_AT_BEGIN);
	take_fds(&launch, apply.keep, &apply.n_keep);
	apply.keep[apply.n_keep++] = apply.join_fd;
	run_steps(&launch, &apply, CELL_STAGE_EARLY);
}

/* ---- starting ---- */

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
	*program = (struct program){
		.id = head->id, .argc = head->a, .flags = head->b, .report_fd = -1, .pidfd = -1, .next = cell__spawner.programs
	};
	cell__spawner.programs = program;
	if (head->b & CELL_SPAWN_IN_KERNEL) {
		start_command(program, payload, size, fds, n_fds);
		return;
	}
	if (confined && !(program->jail = cell__jail_take(fds[n_fds - 2], CELL_JAIL_FOR_PROGRAM, JAIL_OF_SPAWNER))) {
		failure.sys = errno;
		fail(program, &failure);
		return;
	}
	if (!program->jail || program->jail->ready) {
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
	cell__spawner_watch_jail(program->jail);
}

void cell__program_jail_spoke(struct program *program)
{
	struct jail *jail = program->jail;
	if (jail->ready) {
		char *payload = cell__take_ptr(program->payload);
		int fds[CELL_SPAWN_MAX_FDS];
		size_t n_fds = program->n_fds, size = program->payload_size;
		memcpy(fds, program->fds, sizeof fds);
		program->n_fds = 0;
		launch_program(program, payload, size, fds, n_fds);
		free_payload(payload, size);
		for (size_t i = 0; i < n_fds; i++)
			cell__close_fd(&fds[i]);
		return;
	}
	struct cell_spawn_failure failure = { .stage = CELL_SPAWN_AT_PLAN, .sys = jail->report.sys, .step = jail->report.step };
	fail(program, &failure);
}

void cell__program_signal(uint64_t id, int signal_number, bool group)
{
	struct program *p = cell__spawner.programs;
	while (p && p->id != id)
		p = p->next;
	if (!p || p->dead)
		return;
	if (p->kernel_id && !p->is_child) {
		signal_command(p, signal_number, group);
		return;
	}
	if (p->pid == 0 && signal_number == SIGKILL) {
		/* It waits for its jail still: then it ended before it began. */
		cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, p->id, SIGKILL, 0, NULL, 0);
		cell__jail_give_up(p->jail);
		forget(p);
	} else if (p->pid > 0 && p->is_child) {
		kill(group ? -p->pid : p->pid, signal_number);
	} else if (group && signal_number == SIGKILL) {
		cell__jail_kill(p->jail); /* with all its processes, whatever group they are in */
	} else if (p->pid > 0) {
		/* Its number may be another's by now.  The group since Linux 6.9; before that it alone. */
		int fd = p->jail->program_pidfd;
		if (!group || syscall(SYS_pidfd_send_signal, fd, signal_number, NULL, 4 /* PIDFD_SIGNAL_PROCESS_GROUP */) < 0)
			syscall(SYS_pidfd_send_signal, fd, signal_number, NULL, 0);
	}
}

void cell__program_exited(struct program *program, int status)
{
	if (program->kernel_id && !hear_last(program))
		return;
	if (program->is_child)
		kill(-program->pid, SIGKILL); /* processes left in its group */
	if (program->is_child && program->jail)
		cell__cgroup_close(&program->jail->group);
	program->dead = true;
	program->status = status;
	program->dead_us = cell__now_us();
}

void cell__program_report(struct program *program)
{
	cell__spawner_tell(CELL_SPAWN_PROCESS_EXITED, program->id, program->status, 0, NULL, 0);
	if (program->jail)
		cell__jail_give_up(program->jail);
	forget(program);
}
