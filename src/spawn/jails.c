#define _GNU_SOURCE
#include "spawn/jails.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/base.h"
#include "base/list.h"
#include "sandbox/mapped.h"
#include "spawn/guard.h"
#include "spawn/message.h"
#include "spawn/proc.h"
#include "spawn/spawner.h"
#include "spawn/zone.h"

#define PLANS_KEPT 8
#define OLD_MOUNTS 8 /* then they go at once */
#define FREE_GROUPS 16
#define SPARES_MAX 16 /* for programs */
#define SPARES_KEPT_US 10000000
#define RUN_GAP_US 20000 /* programs that come sooner one after the other are a run */
#define SPARE_DELAY_MS 3 /* a kernel that has just taken a jail, or a run of programs that finds spares, goes first */
#define JAIL_FDS 3  /* a program's process, the mounts, the way out */

/* Plans seen lately, mapped. */
struct known_plan {
	const struct cell_plan *plan;
	size_t spares_wanted[CELL_JAIL_USES];
	enum jail_place place; /* of those for kernels */
	int64_t program_us;    /* when a program took a jail last */
};

/*
 * Programs come one after the other, and each is over sooner than a jail is made. If a run of them leaves fewer spares than this, or one
 * finds none, the number is doubled, up to SPARES_MAX, until none has come for SPARES_KEPT_US. Waiting until one finds none would not do:
 * in a run each call leaves just enough time to make one jail beside it, at the cost of the call.
 */
static const size_t spares_for[CELL_JAIL_USES] = {
	[CELL_JAIL_FOR_KERNEL] = 1,
	[CELL_JAIL_FOR_PROGRAM] = 2,
};

static struct known_plan plans[PLANS_KEPT];
static size_t next_plan;
static struct jail *spares, *taken_jails; /* spares: also those that failed or have ended */
static int old_mounts[OLD_MOUNTS]; /* of jails that are gone */
static size_t n_old_mounts;
static uint64_t next_serial = 1;
static struct cell_cgroups groups;
static bool groups_found;

/*
 * Groups of programs that have ended, each for the next jail of its plan: making and removing a group costs as much as all namespaces do.
 * A group carries only its limits from one program to the next. Memory of the last one's /tmp counts until its mounts are dropped, which
 * making the next jail does first.
 */
static struct free_group {
	uint64_t plan_id;
	struct cell_cgroup group;
} free_groups[FREE_GROUPS];
static size_t n_free_groups;
static int group_fds[CELL_CG_COUNT]; /* of the jail that is being made */
static size_t n_group_fds;

/* ---- pid 1 ---- */

/* Commands of the session, in pid 1. */
static struct command {
	uint64_t id;
	pid_t pid;
	int guard_fd; /* its end of this is used or closed by the time that it runs its program; -1: closed */
} commands[CELL_SPAWN_MAX_COMMANDS];
static size_t n_commands;

static void tell_command(int fd, uint32_t type, uint64_t id, int64_t a, int64_t b, int pidfd)
{
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION, .type = type, .id = id, .a = a, .b = b };
	(void)cell__spawn_send(fd, &head, NULL, 0, &pidfd, pidfd >= 0, 0); /* without the spawner everything ends */
}

/* The kernel is in its sandbox by now: before, nobody asks for commands. */
static void fork_command(const struct cell_plan *plan, int fd, const struct cell_spawn_msg *head, size_t size, int *fds, size_t n_fds)
{
	int pair[2] = { -1, -1 }, pidfd = -1;
	long pid = -1;
	cell__guard_lock_up();
	errno = EINVAL;
	if (n_commands == CELL_SPAWN_MAX_COMMANDS)
		errno = EAGAIN;
	else if (n_fds >= 4 && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0)
		pid = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, NULL, &pidfd, NULL, NULL);
	if (pid == 0)
		cell__command_join(plan, head, cell__spawner.message + sizeof *head, size, fds, n_fds, pair[1]);
	int error = errno;
	cell__close_fd(&pair[1]);
	if (pid > 0)
		commands[n_commands++] = (struct command){ .id = head->id, .pid = (pid_t)pid, .guard_fd = pair[0] };
	else
		cell__close_fd(&pair[0]);
	tell_command(fd, CELL_SPAWN_PROCESS_STARTED, head->id, pid > 0 ? pid : 0, error, pidfd);
	cell__close_fd(&pidfd);
}

static void signal_command(uint64_t id, int signal_number, bool group)
{
	for (size_t i = 0; i < n_commands; i++)
		if (commands[i].id == id && (!group || kill(-commands[i].pid, signal_number) < 0))
			kill(commands[i].pid, signal_number); /* its group may not be there yet */
}

/* A request of the spawner's. */
static void hear_spawner(const struct cell_plan *plan, int *fd)
{
	struct cell_spawn_msg head;
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds = 0;
	ssize_t n = cell__spawn_receive(*fd, cell__spawner.message, sizeof cell__spawner.message, fds, CELL_SPAWN_MAX_FDS, &n_fds,
					MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
		cell__close_fd(fd); /* we are killed when it has ended */
	if (n >= (ssize_t)sizeof head) {
		memcpy(&head, cell__spawner.message, sizeof head);
		if (head.type == CELL_SPAWN_PROCESS_START)
			fork_command(plan, *fd, &head, (size_t)n - sizeof head, fds, n_fds);
		else if (head.type == CELL_SPAWN_PROCESS_SIGNAL)
			signal_command(head.id, (int)head.a, head.b != 0);
	}
	while (n_fds > 0)
		close(fds[--n_fds]);
	if (n > 0)
		explicit_bzero(cell__spawner.message, (size_t)n);
}

static void reap_commands(int fd)
{
	pid_t pid;
	int status;
	while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0)
		for (size_t i = 0; i < n_commands; i++) {
			if (commands[i].pid != pid)
				continue;
			if (fd >= 0)
				tell_command(fd, CELL_SPAWN_PROCESS_EXITED, commands[i].id, status, 0, -1);
			cell__close_fd(&commands[i].guard_fd);
			commands[i] = commands[--n_commands];
			break;
		}
}

/*
 * The main loop of pid 1: it reaps orphans of the code, starts commands, serves as the process to kill, and as the guard of protected names.
 * While it has its capabilities the kernel, which has none, cannot trace it; before it gives them up it makes itself untraceable.
 */
static void __attribute__((noreturn)) keep_namespaces(const struct cell_plan *plan, int fd)
{
	static struct pollfd fds[1 + CELL_SPAWN_MAX_COMMANDS];
	sigset_t wanted;
	sigemptyset(&wanted);
	sigaddset(&wanted, SIGCHLD);
	sigaddset(&wanted, SIGUSR1);
	for (;;) {
		size_t n = 1, of[CELL_SPAWN_MAX_COMMANDS];
		fds[0].fd = fd;
		for (size_t i = 0; i < n_commands; i++)
			if (commands[i].guard_fd >= 0) {
				of[n - 1] = i;
				fds[n++].fd = commands[i].guard_fd;
			}
		int got = cell__guard_wait(&wanted, fds, n);
		if (got == SIGUSR1)
			cell__guard_lock_up();
		for (size_t i = 1; got == 0 && i < n; i++)
			if (fds[i].revents)
				cell__guard_meet(cell__take_fd(&commands[of[i - 1]].guard_fd), commands[of[i - 1]].pid);
		if (got == 0 && fds[0].revents)
			hear_spawner(plan, &fd);
		reap_commands(fd);
	}
}

/* No other process enters this jail: pid 1 locks up at once, and ends with its program. All remaining processes of the jail end with it. */
static void __attribute__((noreturn)) keep_program(pid_t program, int fd)
{
	sigset_t wanted;
	cell__guard_lock_up();
	sigemptyset(&wanted);
	sigaddset(&wanted, SIGCHLD);
	for (;;) {
		pid_t pid;
		int status;
		(void)cell__guard_wait(&wanted, NULL, 0);
		while ((pid = waitpid(-1, &status, WNOHANG | __WALL)) > 0) {
			struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION, .a = status };
			if (pid != program)
				continue;
			(void)cell__spawn_send(fd, &head, NULL, 0, NULL, 0, MSG_DONTWAIT);
			_exit(0);
		}
	}
}

/* Forks the process that will become a program, and fills fds[]: its pidfd, the mounts. -1 with errno set. */
static pid_t fork_program(const struct cell_plan *plan, int fd, int fds[static 2], size_t *n)
{
	int pidfd = -1;
	/* For both: pid 1 locks up afterwards. It takes effect at exec. */
	if (cell__bound_capabilities() < 0)
		return -1;
	long pid = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, NULL, &pidfd, NULL, NULL);
	if (pid == 0)
		cell__program_wait(plan, fd);
	if (pid < 0)
		return -1;
	fds[(*n)++] = pidfd;
	int mounts = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC); /* not there: they go with us */
	if (mounts >= 0)
		fds[(*n)++] = mounts;
	return (pid_t)pid;
}

static void __attribute__((noreturn)) run_jail(const struct jail *jail, const struct cell_plan *plan, int ready_fd)
{
	struct cell_plan_report report = { .step = -1 };
	struct cell_apply apply = { .plan = plan, .landlock_fd = -1, .start_fd = 3, .ids_come = cell__jail_becomes(jail, plan) };
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	/* In the zone our parent is an usher until the spawner reports that it has ended. */
	char go;
	int rc = jail->place != JAIL_OF_SPAWNER && read(ready_fd, &go, 1) != 1 ? -1 : 0;
	/* We must end with the spawner. If it has ended already, our report has no reader, and that ends us. */
	if (rc == 0)
		rc = prctl(PR_SET_PDEATHSIG, SIGKILL);
	int kept = rc == 0 ? dup2(ready_fd, 3) : -1;
	/* By descriptors: a process with the zone's uid could no longer open the files. */
	if (kept != 3 || cell__cgroup_join_by(group_fds, n_group_fds) < 0 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0 ||
	    syscall(SYS_close_range, 4, ~0u, 0) < 0) {
		report.step = CELL_PLAN_MAX_STEPS - 1; /* before any step */
		report.sys = errno;
	} else {
		(void)cell__apply_stage(&apply, CELL_STAGE_JAIL, &report);
	}
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION };
	int fds[JAIL_FDS];
	size_t n = 0;
	pid_t program = 0;
	if (report.step < 0 && jail->use == CELL_JAIL_FOR_PROGRAM && (program = fork_program(plan, 3, fds, &n)) < 0) {
		report.step = CELL_PLAN_MAX_STEPS - 1;
		report.sys = errno;
	}
	head.a = (int64_t)n;
	if (apply.has_listener)
		fds[n++] = apply.listen_fd;
	if (cell__spawn_send(3, &head, &report, sizeof report, fds, n, 0) < 0 || report.step >= 0)
		_exit(1);
	while (n > 0)
		close(fds[--n]);
	if (apply.has_guard)
		cell__guard_begin(apply.guard_fd);
	if (program > 0)
		keep_program(program, 3);
	keep_namespaces(plan, 3);
}

/* ---- free groups ---- */

/* plan: NULL: all of them. */
static void remove_free_groups(const struct cell_plan *plan)
{
	for (size_t i = n_free_groups; i-- > 0;) {
		if (plan && free_groups[i].plan_id != plan->id)
			continue;
		(void)cell__cgroup_remove(&free_groups[i].group);
		free_groups[i] = free_groups[--n_free_groups];
	}
}

static bool take_free_group(const struct cell_plan *plan, struct cell_cgroup *ret_group)
{
	for (size_t i = 0; i < n_free_groups; i++)
		if (free_groups[i].plan_id == plan->id) {
			*ret_group = free_groups[i].group;
			free_groups[i] = free_groups[--n_free_groups];
			return true;
		}
	return false;
}

/* ---- plans ---- */

static struct known_plan *find_known(uint64_t plan_id)
{
	for (size_t i = 0; i < PLANS_KEPT; i++)
		if (plans[i].plan && plans[i].plan->id == plan_id)
			return &plans[i];
	return NULL;
}

static void set_taken(struct jail *jail, bool taken)
{
	if (jail->taken == taken)
		return;
	if (taken)
		CELL__LIST_REMOVE(spares, jail);
	else
		CELL__LIST_REMOVE(taken_jails, jail);
	jail->taken = taken;
	if (taken)
		CELL__LIST_PUSH(taken_jails, jail);
	else
		CELL__LIST_PUSH(spares, jail);
}

const struct cell_plan *cell__jail_plan(int fd)
{
	struct cell_plan head;
	if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) {
		errno = EINVAL;
		return NULL;
	}
	const struct known_plan *known = find_known(head.id);
	if (known)
		return known->plan;
	const struct cell_plan *plan = cell__plan_map(fd);
	if (!plan)
		return NULL;
	struct known_plan *slot = &plans[next_plan++ % PLANS_KEPT];
	if (slot->plan) {
		/* Remove spares of plans that are no longer used. */
		for (struct jail *s = spares; s; s = s->next)
			if (s->plan_id == slot->plan->id)
				cell__jail_kill(s);
		remove_free_groups(slot->plan);
		munmap((void *)slot->plan, slot->plan->bytes);
	}
	*slot = (struct known_plan){ .plan = plan };
	return plan;
}

static void want_no_spares(uint64_t plan_id, enum cell_jail_use use)
{
	struct known_plan *known = find_known(plan_id);
	if (known)
		known->spares_wanted[use] = 0;
}

/* No process enters the jails of programs later, and the spawner makes them itself; but only the zone has subordinate ids. */
static enum jail_place place_of(const struct known_plan *known, enum cell_jail_use use)
{
	if (use == CELL_JAIL_FOR_KERNEL)
		return known->place;
	return known->plan->mapped == CELL_MAPPED_SUBIDS ? JAIL_OF_NOBODY : JAIL_OF_SPAWNER;
}

static bool is_spare(const struct jail *jail, const struct known_plan *known, enum cell_jail_use use)
{
	return !jail->failed && jail->use == use && jail->plan_id == known->plan->id && jail->place == place_of(known, use);
}

static size_t count_spares(const struct known_plan *known, enum cell_jail_use use)
{
	size_t n = 0;
	for (struct jail *s = spares; s; s = s->next)
		n += is_spare(s, known, use);
	return n;
}

/* One was taken; ready: it was made ahead. */
static void want_spares(struct known_plan *known, enum cell_jail_use use, enum jail_place place, bool ready)
{
	size_t *wanted = &known->spares_wanted[use];
	if (known->plan->level != CELL_LEVEL_FULL)
		return;
	if (use == CELL_JAIL_FOR_KERNEL) {
		known->place = place;
		*wanted = spares_for[use];
		return;
	}
	int64_t now_us = cell__now_us(), since_us = now_us - known->program_us;
	known->program_us = now_us;
	if (*wanted > 0 && (!ready || (since_us < RUN_GAP_US && count_spares(known, use) < spares_for[use])))
		*wanted = *wanted * 2 < SPARES_MAX ? *wanted * 2 : SPARES_MAX;
	if (*wanted == 0)
		*wanted = spares_for[use];
}

/* ---- making ---- */

/* Groups left by a spawner that was killed: their names contain its pid. */
static void remove_stale_groups(const char *folder)
{
	DIR *dir = folder[0] ? opendir(folder) : NULL;
	struct dirent *entry;
	while (dir && (entry = readdir(dir))) {
		int pid = 0;
		if (sscanf(entry->d_name, "workcell-%d-", &pid) == 1 && pid > 0 && kill(pid, 0) < 0 && errno == ESRCH)
			(void)unlinkat(dirfd(dir), entry->d_name, AT_REMOVEDIR);
	}
	if (dir)
		closedir(dir);
}

static int make_group(struct jail *jail, const struct cell_plan *plan)
{
	char name[64];
	if (!groups_found) {
		cell__cgroups_find(&groups);
		groups_found = true;
		for (int c = 0; c < CELL_CG_COUNT; c++)
			remove_stale_groups(groups.parent[c]);
	}
	if (jail->use == CELL_JAIL_FOR_PROGRAM && take_free_group(plan, &jail->group)) {
		jail->has_group = true;
		return 0;
	}
	snprintf(name, sizeof name, "workcell-%d-%llu", (int)getpid(), (unsigned long long)jail->serial);
	int rc = cell__cgroup_make(&groups, name, &plan->limits, &jail->group);
	jail->has_group = rc == 0;
	errno = -rc;
	return rc;
}

/*
 * A program is a child of its pid 1 and inherits its supplementary groups, which cannot be dropped in its own user namespace any more. Only
 * root may drop them; other users keep groups that the new namespace does not know.
 */
static int leave_groups(const struct jail *jail, const struct cell_plan *plan, gid_t **ret_had, int *ret_n)
{
	if (jail->use != CELL_JAIL_FOR_PROGRAM || plan->mapped || geteuid() != 0)
		return 0;
	int n = getgroups(0, NULL);
	CELL_AUTO_FREE gid_t *had = n > 0 ? cell__alloc((size_t)n, sizeof *had) : NULL;
	if (n == 0)
		return 0;
	if (!had || getgroups(n, had) != n || (syscall(SYS_setgroups, 0, NULL) < 0 && errno != EPERM))
		return -1;
	*ret_n = n;
	*ret_had = cell__take_ptr(had);
	return 0;
}

bool cell__jail_becomes(const struct jail *jail, const struct cell_plan *plan)
{
	return plan->mapped || jail->place == JAIL_OF_NOBODY;
}

/* Written by the ushers, read by us: we share memory, and are suspended in the meantime. */
static volatile struct {
	long pid;
	int error;
} usher;

/*
 * Only a process inside the parent pid namespace can make a pid namespace below it, and of a process that enters a namespace
 * only its children are inside:
 *
 *     spawner ──▶ usher: enters the zone ──▶ usher in the zone ──clone, as the first usher's child──▶ jail
 *
 * So the jail becomes our child when the first usher ends.
 */
static void clone_jail(const struct jail *jail, const struct cell_plan *plan, int ready_fd)
{
	int pidfd = -1;
	long pid = syscall(SYS_clone, cell__apply_birth_flags(plan) | CLONE_PARENT | CLONE_PIDFD | SIGCHLD, NULL, &pidfd, NULL, NULL);
	if (pid == 0)
		run_jail(jail, plan, ready_fd);
	if (pid < 0)
		usher.error = errno;
	usher.pid = pid > 0 ? cell__proc_pid_of(pidfd) : -1; /* -1 as well if the jail was killed meanwhile */
	/* Only a process in the parent namespace may write the maps. Without them the jail ends, because its change of uid fails. */
	if (usher.pid > 0 && cell__jail_becomes(jail, plan))
		(void)cell__mapped_ids(plan, (pid_t)usher.pid);
}

/* On separate stacks: a function that returned twice, as vfork() does, would find its variables changed. */
#define USHER_STACK 65536
static _Alignas(16) char usher_stacks[2][USHER_STACK];

struct usher_job {
	const struct jail *jail;
	const struct cell_plan *plan;
	int ready_fd;
};

/*
 * Runs fn as a process that shares our memory and descriptors, and waits for its end; -1 with errno. It ends without SIGCHLD, for which the
 * spawner would ask Linux about each of its children.
 */
static int usher_in(int (*fn)(void *arg), char *stack, struct usher_job *job)
{
	pid_t pid = clone(fn, stack + USHER_STACK, CLONE_VM | CLONE_VFORK | CLONE_FILES, job);
	while (pid > 0 && waitpid(pid, NULL, __WALL) < 0 && errno == EINTR) {
	}
	return pid > 0 ? 0 : -1;
}

/* In an usher: descriptors of its own, without those of other sessions, which would be copied for the jail and closed by it one by one. */
static int leave_kept_fds(int ready_fd)
{
	int first = ready_fd < CELL_SPAWNER_KEPT_FD ? CELL_SPAWNER_KEPT_FD : ready_fd + 1;
	for (size_t i = 0; i < n_group_fds; i++)
		first = group_fds[i] < first ? first : group_fds[i] + 1;
	return (int)syscall(SYS_close_range, first, ~0u, CLOSE_RANGE_UNSHARE);
}

static int run_inner_usher(void *arg)
{
	const struct usher_job *job = arg;
	clone_jail(job->jail, job->plan, job->ready_fd);
	_exit(0);
}

static int run_usher(void *arg)
{
	struct usher_job *job = arg;
	if (cell__zone_enter(job->jail->place == JAIL_OF_NOBODY) < 0 || leave_kept_fds(job->ready_fd) < 0 ||
	    usher_in(run_inner_usher, usher_stacks[1], job) < 0)
		usher.error = errno;
	_exit(0);
}

static long clone_process(const struct jail *jail, const struct cell_plan *plan, int ready_fd)
{
	if (jail->place == JAIL_OF_SPAWNER) {
		long pid = syscall(SYS_clone, cell__apply_birth_flags(plan) | SIGCHLD, NULL, NULL, NULL, NULL);
		if (pid == 0)
			run_jail(jail, plan, ready_fd);
		return pid;
	}
	struct usher_job job = { jail, plan, ready_fd };
	usher.pid = -1;
	usher.error = ENOMEM; /* for an usher that cannot report: it ended with the zone, of which Linux says that later */
	if (usher_in(run_usher, usher_stacks[0], &job) < 0)
		return -1;
	errno = usher.error;
	return usher.pid;
}

/* Tells the jail that the usher has ended; a receiver that is gone has ended by itself. */
static void tell_go(const struct jail *jail, int fd)
{
	char go = 1;
	if (jail->place != JAIL_OF_SPAWNER)
		(void)send(fd, &go, 1, MSG_NOSIGNAL);
}

static int start_process(struct jail *jail, const struct cell_plan *plan)
{
	int ready[2], n_had = 0, n = cell__cgroup_open_join(&jail->group, group_fds);
	CELL_AUTO_FREE gid_t *had = NULL;
	if (n < 0)
		return -1;
	n_group_fds = (size_t)n;
	long pid = socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ready) < 0 ? -1 : 0;
	if (pid < 0)
		ready[0] = ready[1] = -1;
	else
		pid = leave_groups(jail, plan, &had, &n_had);
	if (pid == 0)
		pid = clone_process(jail, plan, ready[1]);
	int error = errno;
	if (had && syscall(SYS_setgroups, n_had, had) < 0 && errno != EPERM)
		_exit(1); /* the next steps would run with other rights than the host's */
	while (n > 0)
		close(group_fds[--n]);
	cell__close_fd(&ready[1]);
	/* Shared with the child, which first closes all descriptors that it does not need: the last holder unmounts. */
	cell__jails_drop_mounts();
	if (pid > 0)
		tell_go(jail, ready[0]);
	if (pid > 0 && cell__jail_becomes(jail, plan))
		cell__mapped_start(plan, (pid_t)pid, ready[0], jail->place != JAIL_OF_SPAWNER);
	if (pid < 0) {
		cell__close_fd(&ready[0]);
		errno = error;
		return -1;
	}
	fcntl(ready[0], F_SETFL, O_NONBLOCK);
	jail->ready_fd = ready[0];
	jail->pid = (pid_t)pid;
	jail->pidfd = cell__spawner_keep_fd((int)syscall(SYS_pidfd_open, jail->pid, 0));
	return jail->pidfd < 0 ? -1 : 0;
}

static struct jail *make_jail(const struct cell_plan *plan, enum cell_jail_use use, enum jail_place place)
{
	struct jail *jail = cell__alloc(1, sizeof *jail);
	if (!jail) {
		errno = ENOMEM;
		return NULL;
	}
	*jail = (struct jail){ .serial = next_serial++,
			       .plan_id = plan->id,
			       .use = use,
			       .flags = plan->clone_flags,
			       .place = place,
			       .pidfd = -1,
			       .ready_fd = -1,
			       .listen_fd = -1,
			       .mounts_fd = -1,
			       .command_fd = -1,
			       .program_fd = -1,
			       .program_pidfd = -1,
			       .report.step = -1 };
	CELL__LIST_PUSH(spares, jail);
	bool bare = plan->level != CELL_LEVEL_FULL;
	if (make_group(jail, plan) < 0 || (!bare && start_process(jail, plan) < 0)) {
		int error = errno;
		cell__jail_kill(jail);
		jail->failed = true;
		if (jail->pid == 0)
			(void)cell__jail_remove(jail);
		errno = error;
		return NULL;
	}
	jail->ready = bare;
	return jail;
}

struct jail *cell__jail_take(int plan_fd, enum cell_jail_use use, enum jail_place zygote_place)
{
	const struct cell_plan *plan = cell__jail_plan(plan_fd);
	if (!plan)
		return NULL;
	enum jail_place place = place_of(&(struct known_plan){ .plan = plan, .place = zygote_place }, use);
	if (plan->mapped == CELL_MAPPED_SUBIDS) {
		if (cell__spawner_need_zone() < 0)
			return NULL;
		if (cell__zone_nobody().uid == 0) {
			errno = EPERM; /* newuidmap served the host, and fails now */
			return NULL;
		}
	}
	struct jail *best = NULL;
	for (struct jail *s = spares; s; s = s->next) {
		struct pollfd end = { .fd = s->pidfd, .events = POLLIN };
		if (s->ready_fd >= 0)
			cell__jail_read(s); /* it may have reported since the last event */
		if (s->pidfd >= 0 && poll(&end, 1, 0) > 0)
			s->failed = true; /* it was killed, and we have not been notified yet */
	}
	for (struct jail *s = spares; s; s = s->next)
		if (!s->failed && s->use == use && s->place == place && s->plan_id == plan->id && (s->ready || !best))
			best = s;
	if (!best)
		best = make_jail(plan, use, place);
	if (!best)
		return NULL;
	set_taken(best, true);
	want_spares(find_known(plan->id), use, place, best->ready);
	return best;
}

/* The plan that needs one most; ret_has: how many it has. */
static const struct known_plan *plan_without_spare(enum cell_jail_use use, size_t *ret_has)
{
	const struct known_plan *poorest = NULL;
	for (size_t i = 0; i < PLANS_KEPT; i++) {
		if (!plans[i].plan || !plans[i].spares_wanted[use])
			continue;
		size_t has = count_spares(&plans[i], use);
		if (has < plans[i].spares_wanted[use] && (!poorest || has < *ret_has)) {
			poorest = &plans[i];
			*ret_has = has;
		}
	}
	return poorest;
}

int cell__jail_spare_delay(enum cell_jail_use use)
{
	size_t has;
	if (!plan_without_spare(use, &has))
		return -1;
	return use == CELL_JAIL_FOR_PROGRAM && has < spares_for[use] ? 0 : SPARE_DELAY_MS;
}

int cell__jails_shrink(void)
{
	int next_ms = -1;
	for (size_t i = 0; i < PLANS_KEPT; i++) {
		size_t *wanted = &plans[i].spares_wanted[CELL_JAIL_FOR_PROGRAM];
		if (!plans[i].plan || *wanted <= spares_for[CELL_JAIL_FOR_PROGRAM])
			continue;
		int64_t left_us = plans[i].program_us + SPARES_KEPT_US - cell__now_us();
		if (left_us > 0) {
			int ms = (int)(left_us / 1000) + 1;
			next_ms = next_ms < 0 || ms < next_ms ? ms : next_ms;
			continue;
		}
		*wanted = spares_for[CELL_JAIL_FOR_PROGRAM];
		size_t has = 0;
		for (struct jail *s = spares; s; s = s->next)
			if (is_spare(s, &plans[i], CELL_JAIL_FOR_PROGRAM) && ++has > *wanted) {
				s->failed = true;
				cell__jail_kill(s);
			}
	}
	return next_ms;
}

void cell__jail_make_spare(enum cell_jail_use use)
{
	size_t has;
	const struct known_plan *known = plan_without_spare(use, &has);
	struct jail *jail = known ? make_jail(known->plan, use, place_of(known, use)) : NULL;
	if (known && !jail)
		want_no_spares(known->plan->id, use); /* the next request will get the reason */
	else if (jail && jail->ready_fd >= 0)
		cell__spawner_watch_jail(jail); /* so that it is read, and its namespaces are open, before it is needed */
}

/* ---- life ---- */

struct jail *cell__jail_by_serial(uint64_t serial)
{
	struct jail *jail = spares;
	while (jail && jail->serial != serial)
		jail = jail->next;
	for (jail = jail ? jail : taken_jails; jail && jail->serial != serial;)
		jail = jail->next;
	return jail;
}

struct jail *cell__jail_by_pid(pid_t pid)
{
	struct jail *jail = spares;
	while (jail && jail->pid != pid)
		jail = jail->next;
	for (jail = jail ? jail : taken_jails; jail && jail->pid != pid;)
		jail = jail->next;
	return jail;
}

/* The descriptors of a program's jail: its process, its mounts; then the socket of the way out. */
static bool take_fds(struct jail *jail, int64_t n_own, const int *fds, size_t n)
{
	bool good = n_own >= (jail->use == CELL_JAIL_FOR_PROGRAM) && (size_t)n_own <= n && n <= (size_t)n_own + 1;
	int *const own[] = { &jail->program_pidfd, &jail->mounts_fd };
	for (size_t i = 0; i < n; i++)
		*(i < (size_t)n_own && i < 2 ? own[i] : &jail->listen_fd) = fds[i];
	if (good && jail->program_pidfd >= 0)
		jail->program_pid = cell__proc_pid_of(jail->program_pidfd);
	return good && (jail->program_pidfd < 0 || jail->program_pid > 0);
}

void cell__jail_close_namespaces(struct jail *jail)
{
	while (jail->n_namespaces > 0)
		cell__close_fd(&jail->namespaces[--jail->n_namespaces]);
}

/* A zygote has no rights over the jail's process, but over its namespaces. */
static int open_namespaces(struct jail *jail)
{
	static const struct {
		unsigned flag;
		const char *name;
	} kinds[CELL_JAIL_NAMESPACES] = {
		{ CLONE_NEWUSER, "user" }, { CLONE_NEWPID, "pid" },       { CLONE_NEWNET, "net" }, { CLONE_NEWIPC, "ipc" },
		{ CLONE_NEWUTS, "uts" },   { CLONE_NEWCGROUP, "cgroup" }, { CLONE_NEWNS, "mnt" },
	};
	for (size_t i = 0; i < CELL_JAIL_NAMESPACES; i++) {
		char path[64];
		if (!(jail->flags & kinds[i].flag))
			continue;
		snprintf(path, sizeof path, "/proc/%d/ns/%s", (int)jail->pid, kinds[i].name);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return -1;
		jail->namespaces[jail->n_namespaces++] = fd;
	}
	return 0;
}

void cell__jail_read(struct jail *jail)
{
	struct {
		struct cell_spawn_msg head;
		char report[sizeof(struct cell_plan_report)];
	} message;
	size_t n_fds;
	int fds[JAIL_FDS];
	ssize_t n = cell__spawn_receive(jail->ready_fd, &message, sizeof message, fds, JAIL_FDS, &n_fds, MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return;
	if (n != (ssize_t)(sizeof message.head + sizeof message.report))
		jail->report = (struct cell_plan_report){ .step = CELL_PLAN_MAX_STEPS - 1, .sys = ECHILD };
	else
		memcpy(&jail->report, message.report, sizeof jail->report);
	if (n > 0 && !take_fds(jail, message.head.a, fds, n_fds) && jail->report.step < 0)
		jail->report = (struct cell_plan_report){ .step = CELL_PLAN_MAX_STEPS - 1, .sys = EPROTO };
	if (jail->report.step < 0 && jail->use == CELL_JAIL_FOR_KERNEL && jail->place != JAIL_OF_SPAWNER && open_namespaces(jail) < 0)
		jail->report = (struct cell_plan_report){ .step = CELL_PLAN_MAX_STEPS - 1, .sys = errno };
	jail->ready = jail->report.step < 0;
	jail->failed = !jail->ready;
	if (jail->ready && jail->use == CELL_JAIL_FOR_PROGRAM)
		jail->program_fd = cell__take_fd(&jail->ready_fd);
	else if (jail->ready)
		jail->command_fd = cell__spawner_keep_fd(cell__take_fd(&jail->ready_fd));
	cell__close_fd(&jail->ready_fd);
	if (jail->failed && !jail->taken)
		want_no_spares(jail->plan_id, jail->use);
}

int cell__jail_program_status(struct jail *jail)
{
	struct cell_spawn_msg head;
	size_t n_fds;
	ssize_t n = jail->program_fd < 0 ? -1 : cell__spawn_receive(jail->program_fd, &head, sizeof head, NULL, 0, &n_fds, MSG_DONTWAIT);
	return n == (ssize_t)sizeof head ? (int)head.a : SIGKILL;
}

int cell__jail_start_command(struct jail *jail, const struct cell_spawn_msg *head, const char *payload, size_t size, const int *fds,
			     size_t n_fds)
{
	int rc = jail->command_fd < 0 ? -ESRCH : cell__spawn_send(jail->command_fd, head, payload, size, fds, n_fds, MSG_DONTWAIT);
	errno = -rc;
	return rc < 0 ? -1 : 0;
}

int cell__jail_hear_command(struct jail *jail, struct cell_spawn_msg *ret_head, int *ret_fd)
{
	size_t n_fds = 0;
	*ret_fd = -1;
	ssize_t n = jail->command_fd < 0
			    ? 0
			    : cell__spawn_receive(jail->command_fd, ret_head, sizeof *ret_head, ret_fd, 1, &n_fds, MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return 0;
	return n == (ssize_t)sizeof *ret_head ? 1 : -1;
}

void cell__jail_joined(struct jail *jail)
{
	if (jail->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, jail->pidfd, SIGUSR1, NULL, 0);
}

bool cell__jails_have_mounts(void)
{
	return n_old_mounts > 0;
}

void cell__jails_drop_mounts(void)
{
	while (n_old_mounts > 0)
		close(old_mounts[--n_old_mounts]);
}

void cell__jail_kill(struct jail *jail)
{
	if (jail->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, jail->pidfd, SIGKILL, NULL, 0);
	else if (jail->pid > 0)
		kill(jail->pid, SIGKILL);
}

void cell__jail_release(struct jail *jail)
{
	set_taken(jail, false);
}

void cell__jail_give_up(struct jail *jail)
{
	jail->failed = true;
	cell__jail_kill(jail);
	set_taken(jail, false); /* unused: it is removed when it is reaped */
	if (jail->pid == 0)
		(void)cell__jail_remove(jail);
}

void cell__jail_reaped(struct jail *jail)
{
	jail->pid = 0;
	jail->ready = false;
	jail->failed = true;
	cell__close_fd(&jail->pidfd);
}

/* Of a program that ran in namespaces: all its processes have ended with pid 1. One without them closes its group for good. */
static bool keep_group(struct jail *jail)
{
	if (!jail->has_group || jail->use != CELL_JAIL_FOR_PROGRAM || !jail->flags || n_free_groups == FREE_GROUPS ||
	    !find_known(jail->plan_id) || !cell__cgroup_is_empty(&jail->group))
		return false;
	free_groups[n_free_groups++] = (struct free_group){ .plan_id = jail->plan_id, .group = jail->group };
	jail->has_group = false;
	return true;
}

bool cell__jail_remove(struct jail *jail)
{
	if (jail->pid != 0 || (!keep_group(jail) && jail->has_group && cell__cgroup_remove(&jail->group) == -EBUSY))
		return false;
	set_taken(jail, false);
	CELL__LIST_REMOVE(spares, jail);
	cell__close_fd(&jail->ready_fd);
	cell__close_fd(&jail->listen_fd);
	cell__close_fd(&jail->pidfd);
	cell__close_fd(&jail->command_fd);
	cell__close_fd(&jail->program_fd);
	cell__close_fd(&jail->program_pidfd);
	if (jail->mounts_fd >= 0 && n_old_mounts < OLD_MOUNTS)
		old_mounts[n_old_mounts++] = cell__take_fd(&jail->mounts_fd);
	cell__close_fd(&jail->mounts_fd);
	cell__jail_close_namespaces(jail);
	free(jail);
	return true;
}

bool cell__jails_tidy(void)
{
	bool left = false;
	for (struct jail *jail = spares, *next; jail; jail = next) {
		next = jail->next;
		if (jail->failed && jail->pid == 0)
			left |= !cell__jail_remove(jail);
	}
	return left;
}

void cell__jails_remove_all(void)
{
	while (taken_jails)
		set_taken(taken_jails, false);
	for (struct jail *jail = spares, *next; jail; jail = next) {
		next = jail->next;
		jail->pid = 0;
		(void)cell__jail_remove(jail);
	}
	remove_free_groups(NULL);
}
