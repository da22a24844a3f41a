/*
 * workcell-spawner: the small program that forks everything.
 *
 * Why it exists: a host with threads, signal handlers and a large heap is a bad place to fork from and a bad
 * parent to reap children.  This process has one thread and no Python, and it leaves nothing behind, whatever
 * happens to the host.
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
 *   become ours, because we are a subreaper, and we identify them by their pid.  A kernel is a subreaper too: while it
 *   lives, all processes of its code are below it.  When it dies, its remaining processes become our children.  So:
 *
 *       a child of ours that is neither zygote nor known kernel is the orphan of a dead kernel, and is killed.
 *
 *   The fork of a live kernel (kernel/ext/branch.c) is our child before we know its pid.  The host announces it before it asks the kernel
 *   for it, so while one is announced and not adopted, unknown children are left alone.
 *
 *   KERNEL_EXITED goes to the host only when no orphan is left: "closed" means that every process has ended.
 *
 * Sandboxed kernels (a KERNEL_FORK with a plan) are forked into a jail: namespaces with a pid 1 of ours (jails.h).  Their zygote
 * is confined itself, in the zone (zone.h).  It forks them through a process that enters the namespaces first and ends at once, so they
 * are children of the zone's pid 1 from the start, and that pid 1 reports their end to us.  A child of ours in another pid namespace
 * (zygotes and jails of the zone) is never an orphan; it ends with its jail, and "closed" waits for that.  Confined programs are children
 * of their jail's pid 1 (spawner_programs.c).
 *
 * States of a kernel: (waiting for its jail ──▶) forking ──FORKED──▶ alive ──exit──▶ dead, orphans being swept ──▶ reported, forgotten.
 * When the host's socket closes, for whatever reason, everything ends.
 */
#define _GNU_SOURCE
#include "spawn/spawner.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spawn/message.h"
#include "spawn/proc.h"
#include "spawn/zone.h"

#define SWEEP_LIMIT_US 2000000 /* a child in uninterruptible sleep does not hold the report up longer */
#define SWEEP_AGAIN_MS 20
#define JAIL_EVENT (1ull << 63) /* with the jail's serial, in an epoll event */
#define ZONE_EVENT (1ull << 62)
#define COMMANDS_EVENT (1ull << 61) /* with the jail's serial */
#define REPORT_EVENT (1ull << 60)   /* with the program's id */
#define EVENT_ID (REPORT_EVENT - 1)
#define LONG_SLICE_NS 100000000u /* the longest that Linux takes */
#define DROP_DELAY_MS 3
#define ADOPT_TRIES 500
#define ADOPT_QUICK_TRIES 25

struct cell__spawner cell__spawner;
static int signal_fd;
static uint64_t oom_seen;
static bool unswept; /* the last sweep found a process */

/* ---- messages ---- */

void cell__spawner_tell(uint32_t type, uint64_t id, int64_t a, int64_t b, const void *payload, size_t size)
{
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION, .type = type, .id = id, .a = a, .b = b };
	/* If the host has ended, its socket reports that; this message has no receiver. */
	(void)cell__spawn_send(CELL_SPAWNER_HOST_FD, &head, payload, size, NULL, 0, 0);
}

/* Bytes of the next datagram in `message`, 0 at the end, -1 when there is none now. */
ssize_t cell__spawner_receive(int fd, int fds[CELL_SPAWN_MAX_FDS], size_t *ret_n_fds)
{
	ssize_t n = cell__spawn_receive(fd, cell__spawner.message, sizeof cell__spawner.message, fds, CELL_SPAWN_MAX_FDS, ret_n_fds,
					MSG_DONTWAIT);
	if (n < 0)
		return errno == EAGAIN ? -1 : 0;
	return n;
}

int cell__spawner_keep_fd(int fd)
{
	int kept = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, CELL_SPAWNER_KEPT_FD);
	if (kept < 0)
		return fd;
	close(fd);
	return kept;
}

/* ---- looking things up ---- */

struct kernel *cell__spawner_find_kernel(uint64_t id)
{
	struct kernel *k = cell__spawner.by_id[id % CELL_SPAWNER_BUCKETS];
	while (k && k->id != id)
		k = k->id_next;
	return k;
}

static void list_kernel(struct kernel *kernel)
{
	struct kernel **bucket = &cell__spawner.by_id[kernel->id % CELL_SPAWNER_BUCKETS];
	kernel->id_next = *bucket;
	*bucket = kernel;
	CELL__LIST_PUSH(cell__spawner.kernels, kernel);
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
		if (p->pid == pid && p->is_child && !p->dead)
			return true;
	return false;
}

/* ---- orphans ---- */

static void read_host(void);

static bool is_orphan(pid_t pid)
{
	return !is_known(pid) && pid != cell__zone_pid() && !cell__jail_by_pid(pid) && !cell__proc_has_own_pids(pid);
}

struct orphans {
	pid_t pids[64]; /* others are found by the next sweep */
	size_t count;
};

static void note_orphan(pid_t pid, void *arg)
{
	struct orphans *orphans = arg;
	if (orphans->count < sizeof orphans->pids / sizeof *orphans->pids && is_orphan(pid))
		orphans->pids[orphans->count++] = pid;
}

/* A branch that is among them was announced before it was forked: the announcement is read after we have seen the branch. */
size_t cell__spawner_sweep(void)
{
	struct orphans orphans = { .count = 0 };
	cell__proc_children(getpid(), note_orphan, &orphans);
	if (orphans.count > 0)
		read_host();
	for (size_t i = 0; cell__spawner.n_branching == 0 && i < orphans.count; i++)
		if (is_orphan(orphans.pids[i]))
			kill(orphans.pids[i], SIGKILL); /* a child of ours that is not reaped yet: its pid cannot have been reused */
	return orphans.count;
}

static void forget_kernel(struct kernel *kernel)
{
	struct kernel **at = &cell__spawner.by_id[kernel->id % CELL_SPAWNER_BUCKETS];
	while (*at != kernel)
		at = &(*at)->id_next;
	*at = kernel->id_next;
	CELL__LIST_REMOVE(cell__spawner.kernels, kernel);
	cell__spawner.n_dead -= kernel->dead;
	cell__spawner.n_enclosed -= kernel->enclosed;
	cell__spawner.n_branching -= kernel->branching;
	cell__close_fd(&kernel->pidfd);
	for (int i = 0; kernel->waits && i < CELL_SPAWN_KERNEL_FDS; i++)
		cell__close_fd(&kernel->fds[i]);
	free(kernel);
}

/* The jail of a dead kernel or program: false while a part of it is left. usage: NULL, or to be filled. */
static bool jail_gone(struct jail **jail, struct cell_cgroup_usage *usage)
{
	if (!*jail)
		return true;
	if ((*jail)->pid != 0) {
		cell__jail_kill(*jail);
		return false;
	}
	if (usage)
		cell__cgroup_usage(&(*jail)->group, usage);
	if (!cell__jail_remove(*jail))
		return false;
	*jail = NULL;
	return true;
}

/* Whether no process of a dead program is left. clean: the sweep found no process. */
static bool program_gone(struct program *program, bool clean)
{
	struct jail *jail = program->jail;
	if (program->is_child)
		return jail_gone(&program->jail, NULL) && clean;
	if (program->kernel_id)
		return true;
	/* All processes ended with its pid 1. A cgroup that cannot be removed yet does not delay the report. */
	cell__jail_release(jail);
	program->jail = NULL;
	return true;
}

/* Whether a dead kernel or program that is not reported yet may have left orphans. */
static bool may_have_orphans(void)
{
	if (cell__spawner.n_dead > cell__spawner.n_enclosed)
		return true;
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->dead && p->is_child)
			return true;
	return false;
}

/* Reports the dead whose orphans are gone (or will not go). */
static void report_dead(void)
{
	/* Code that forks faster than it is killed is still being killed after the report. */
	bool clean = !(may_have_orphans() || unswept) || cell__spawner_sweep() == 0;
	unswept = !clean;
	for (struct program *p = cell__spawner.programs, *next; p; p = next) {
		next = p->next;
		if (p->dead && (program_gone(p, clean) || cell__now_us() - p->dead_us >= SWEEP_LIMIT_US))
			cell__program_report(p);
	}
	for (struct kernel *k = cell__spawner.n_dead > 0 ? cell__spawner.kernels : NULL, *next; k; k = next) {
		next = k->next;
		if (!k->dead)
			continue;
		bool sandboxed = k->jail != NULL;
		if (!(jail_gone(&k->jail, &k->usage) && !cell__commands_left(k->id) && (clean || k->enclosed)) &&
		    cell__now_us() - k->dead_us < SWEEP_LIMIT_US)
			continue;
		if (k->usage.oom_kills > 0 && !k->kill_wanted)
			k->flags |= CELL_SPAWN_EXIT_OOM;
		sandboxed |= k->usage.memory_max > 0 || k->usage.pids_peak > 0;
		cell__spawner_tell(CELL_SPAWN_KERNEL_EXITED, k->id, k->status, k->flags, &k->usage, sandboxed ? sizeof k->usage : 0);
		if (k->jail)
			cell__jail_give_up(k->jail);
		forget_kernel(k);
	}
}

/* ---- kernels ---- */

/* Without a group for it, each process of the sandbox lowers its own scheduling priority as far as unprivileged processes may. */
static void set_share(struct kernel *kernel, int64_t share)
{
	struct jail *jail = kernel ? kernel->jail : NULL;
	if (!jail || kernel->pid <= 0 || kernel->share == share || share < CELL_SHARE_USUAL || share > CELL_SHARE_REST)
		return;
	kernel->share = share;
	if (jail->has_group && cell__cgroup_set_share(&jail->group, (enum cell_cgroup_share)share))
		return;
	/* Twice: a process started in between inherits its slice from its parent. Orphans are below pid 1. */
	for (int i = 0; i < 2; i++) {
		cell__proc_slice_tree(kernel->pid, share != CELL_SHARE_USUAL ? LONG_SLICE_NS : 0);
		if (jail->pid > 0)
			cell__proc_slice_tree(jail->pid, share != CELL_SHARE_USUAL ? LONG_SLICE_NS : 0);
	}
}

void cell__spawner_kernel_died(struct kernel *kernel, int64_t status)
{
	if (kernel->dead)
		return;
	set_share(kernel, CELL_SHARE_USUAL); /* dying takes time on a core: that of all the others in there */
	kernel->dead = true;
	kernel->enclosed = kernel->jail && (kernel->jail->flags & CLONE_NEWPID);
	cell__spawner.n_dead++;
	cell__spawner.n_enclosed += kernel->enclosed;
	kernel->status = status;
	kernel->dead_us = cell__now_us();
	kernel->pid = -1; /* not ours to know any more */
	cell__commands_kill(kernel->id);
	if (kernel->jail)
		cell__jail_kill(kernel->jail);
	else if (status >= 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && !kernel->kill_wanted) {
		uint64_t now = cell__proc_oom_kills();
		if (now > oom_seen)
			kernel->flags = CELL_SPAWN_EXIT_OOM;
		oom_seen = now;
	}
}

void cell__spawner_tell_forked(struct kernel *kernel)
{
	struct jail *jail = kernel->jail;
	struct cell_spawn_msg head = {
		.version = CELL_SPAWN_VERSION, .type = CELL_SPAWN_KERNEL_FORKED, .id = kernel->id, .a = kernel->pid
	};
	(void)cell__spawn_send(CELL_SPAWNER_HOST_FD, &head, jail ? &jail->report : NULL, jail ? sizeof jail->report : 0,
			       jail ? &jail->listen_fd : NULL, jail && jail->listen_fd >= 0, 0);
	if (jail)
		cell__close_fd(&jail->listen_fd);
}

/* A kernel that never was.  Its jail, if there is one, may be broken: it goes too. */
void cell__spawner_fork_failed(struct kernel *kernel, int error)
{
	struct jail *jail = kernel->jail;
	cell__spawner_tell(CELL_SPAWN_KERNEL_FORKED, kernel->id, 0, error ? error : EIO, jail ? &jail->report : NULL,
			   jail ? sizeof jail->report : 0);
	if (jail)
		cell__jail_give_up(jail);
	forget_kernel(kernel);
}

/* Hands a request on to the zygote; the fds stay the caller's. */
static void pass_on(struct kernel *kernel, const struct cell_spawn_msg *head, const int *fds)
{
	struct zygote *zygote = cell__zygote_find(kernel->zygote);
	struct jail *jail = kernel->jail;
	int all[CELL_SPAWN_MAX_FDS], n_groups = 0;
	size_t n = jail ? CELL_SPAWN_KERNEL_FDS : CELL_SPAWN_KERNEL_FDS - 1;
	struct cell_spawn_join join = { 0 };
	memcpy(all, fds, n * sizeof *all);
	if (jail) {
		const struct cell_plan *plan = cell__jail_plan(fds[CELL_SPAWN_PLAN_FD]);
		memcpy(all + n, jail->namespaces, jail->n_namespaces * sizeof *all);
		n += jail->n_namespaces;
		n_groups = plan ? cell__cgroup_open_join(&jail->group, all + n) : -1;
		join = (struct cell_spawn_join){ .n_namespaces = (uint32_t)jail->n_namespaces,
						 .n_groups = (uint32_t)n_groups,
						 .becomes = plan && cell__jail_becomes(jail, plan) };
	}
	if (n_groups < 0) {
		cell__spawner_fork_failed(kernel, errno);
		return;
	}
	/* The host keeps the messages in flight far below the socket's buffer; a full buffer means the zygote hangs. */
	int rc = zygote ? cell__spawn_send(zygote->fd, head, &join, jail ? sizeof join : 0, all, n + (size_t)n_groups, MSG_DONTWAIT)
			: -ESRCH;
	while (n_groups > 0)
		close(all[n + (size_t)--n_groups]);
	if (jail)
		cell__jail_close_namespaces(jail);
	if (rc < 0)
		cell__spawner_fork_failed(kernel, -rc);
}

void cell__spawner_watch_jail(struct jail *jail)
{
	/* Once: later output of a jail is read when it has ended. */
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.u64 = JAIL_EVENT | jail->serial };
	epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, jail->ready_fd, &event);
}

int cell__spawner_watch_report(int fd, uint64_t program_id)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = REPORT_EVENT | program_id };
	return epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

int cell__spawner_watch_commands(struct jail *jail)
{
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = COMMANDS_EVENT | jail->serial };
	return epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, jail->command_fd, &event) < 0 && errno != EEXIST ? -1 : 0;
}

int cell__spawner_need_zone(void)
{
	if (cell__zone_pid() > 0)
		return 0;
	if (cell__zone_make() < 0)
		return -1;
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = ZONE_EVENT };
	if (epoll_ctl(cell__spawner.epoll_fd, EPOLL_CTL_ADD, cell__zone_fd(), &event) == 0)
		return 0;
	int error = errno; /* without it the end of a kernel would not be noticed */
	kill(cell__zone_pid(), SIGKILL);
	waitpid(cell__zone_pid(), NULL, 0);
	cell__zone_reaped();
	errno = error;
	return -1;
}

/* Kernels in the zone that ended. A zygote reports a kernel before its end is read here, or finds that it has ended already. */
static void read_zone(void)
{
	struct cell_zone_end end;
	while (cell__zone_read(&end)) {
		for (struct zygote *z = cell__spawner.zygotes, *next; z; z = next) {
			next = z->next;
			cell__zygote_read(z);
		}
		for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
			if (k->zone_pid == end.pid && k->pid > 0) {
				cell__spawner_kernel_died(k, end.status);
				break;
			}
	}
}

/* Its pid 1 was killed: every process in it has ended. */
static void zone_exited(void)
{
	read_zone();
	cell__zone_reaped();
	for (struct kernel *k = cell__spawner.kernels; k; k = k->next)
		if (k->zone_pid > 0 && k->pid > 0)
			cell__spawner_kernel_died(k, -1);
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
	*kernel = (struct kernel){ .id = id, .zygote = zygote_id, .pidfd = -1 };
	list_kernel(kernel);
	if (sandboxed) {
		kernel->jail = cell__jail_take(fds[CELL_SPAWN_PLAN_FD], CELL_JAIL_FOR_KERNEL, zygote->place);
		if (!kernel->jail) {
			cell__spawner_fork_failed(kernel, errno);
			return;
		}
		if (!kernel->jail->ready) {
			kernel->waits = true;
			kernel->request = *head;
			memcpy(kernel->fds, fds, sizeof kernel->fds);
			memset(fds, -1, n_fds * sizeof *fds); /* kept */
			cell__spawner_watch_jail(kernel->jail);
			return;
		}
	}
	pass_on(kernel, head, fds);
}

static void announce_branch(uint64_t id)
{
	struct kernel *kernel = cell__alloc(1, sizeof *kernel);
	if (!kernel) {
		cell__spawner_tell(CELL_SPAWN_KERNEL_FORKED, id, 0, ENOMEM, NULL, 0);
		return;
	}
	*kernel = (struct kernel){ .id = id, .pidfd = -1, .branching = true };
	cell__spawner.n_branching++;
	list_kernel(kernel);
}

/*
 * The word of a kernel is not taken for it: only an unknown child of ours can be its branch.  The kernel may go on before the process
 * between the two (kernel/ext/branch.c) has ended entirely, and only then is the branch ours.
 */
static bool is_our_orphan(pid_t pid)
{
	if (pid <= 1 || !is_orphan(pid))
		return false;
	for (int tries = 0; tries < ADOPT_TRIES; tries++) {
		pid_t parent = cell__proc_parent(pid);
		if (parent == getpid() || parent == 0)
			return parent != 0;
		usleep(tries < ADOPT_QUICK_TRIES ? 20 : 1000); /* on a busy machine it may wait for a CPU to end */
	}
	return false;
}

static void adopt_branch(uint64_t id, pid_t pid)
{
	struct kernel *kernel = cell__spawner_find_kernel(id);
	if (!kernel || !kernel->branching)
		return;
	if (!is_our_orphan(pid)) {
		cell__spawner_fork_failed(kernel, ECHILD);
		return;
	}
	kernel->branching = false;
	cell__spawner.n_branching--;
	kernel->pid = pid;
	kernel->pidfd = cell__spawner_keep_fd((int)syscall(SYS_pidfd_open, pid, 0));
	cell__spawner_tell_forked(kernel);
	if (kernel->kill_wanted && kernel->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, kernel->pidfd, SIGKILL, NULL, 0);
}

/* A jail has reported its progress. */
static void jail_spoke(struct jail *jail)
{
	struct kernel *kernel = cell__spawner.kernels;
	cell__jail_read(jail);
	if (jail->ready_fd >= 0)
		return;
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->jail == jail && p->pid == 0) {
			cell__program_jail_spoke(p);
			return;
		}
	while (kernel && kernel->jail != jail)
		kernel = kernel->next;
	if (!kernel || !kernel->waits || kernel->dead)
		return;
	uint64_t id = kernel->id;
	if (jail->ready && !kernel->kill_wanted) {
		pass_on(kernel, &kernel->request, kernel->fds);
		if (cell__spawner_find_kernel(id)) { /* pass_on() may have ended it */
			for (int i = 0; i < CELL_SPAWN_KERNEL_FDS; i++)
				cell__close_fd(&kernel->fds[i]);
			kernel->waits = false;
		}
	} else if (kernel->kill_wanted) {
		cell__spawner_kernel_died(kernel, -1);
	} else {
		cell__spawner_fork_failed(kernel, jail->report.sys);
	}
}

static void signal_kernel(uint64_t id, int signal)
{
	struct kernel *kernel = cell__spawner_find_kernel(id);
	if (!kernel || kernel->dead)
		return;
	if (signal == SIGKILL)
		kernel->kill_wanted = true;
	if (signal == SIGKILL && kernel->jail && kernel->pid > 0) {
		set_share(kernel, CELL_SHARE_USUAL);
		cell__jail_kill(kernel->jail); /* with all that is in it */
	}
	if (kernel->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, kernel->pidfd, signal, NULL, 0);
}

/* ---- requests of the host ---- */

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
			cell__zygote_start(head.id, head.a, payload, payload_size, n_fds > 0 ? fds[0] : -1);
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
			cell__program_start(&head, payload, payload_size, fds, n_fds);
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
		case CELL_SPAWN_KERNEL_BRANCH:
			announce_branch(head.id);
			break;
		case CELL_SPAWN_KERNEL_ADOPT:
			adopt_branch(head.id, (pid_t)head.a);
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
	/* A program's environment may hold secrets: jails that are forked later must not have it in their memory. */
	explicit_bzero(cell__spawner.message, (size_t)size);
}

/* ---- life and death ---- */

static void kill_any(pid_t pid, void *arg)
{
	(void)arg;
	kill(pid, SIGKILL);
}

/* Sleeps until a child ends, or for a millisecond: a child may come to us without a signal. */
static void wait_for_child(void)
{
	struct pollfd child = { .fd = signal_fd, .events = POLLIN };
	struct signalfd_siginfo info;
	if (poll(&child, 1, 1) > 0)
		(void)!read(signal_fd, &info, sizeof info);
}

/* Kills kernels by their pidfd (they may be grandchildren), then every child that we have or get, until none is left. */
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
			wait_for_child();
	}
	cell__jails_remove_all();
	_exit(0);
}

static void jail_exited(struct jail *jail)
{
	if (jail->ready_fd >= 0)
		jail_spoke(jail); /* its last report still counts */
	int status = cell__jail_program_status(jail);
	cell__commands_ended(jail);
	cell__jail_reaped(jail);
	for (struct program *p = cell__spawner.programs; p; p = p->next)
		if (p->jail == jail && p->pid > 0 && !p->is_child)
			cell__program_exited(p, status);
	/* serve() frees the entries without an owner. */
}

static void reap(void)
{
	struct signalfd_siginfo info;
	while (read(signal_fd, &info, sizeof info) > 0) {
	}
	/* A sandboxed kernel is our child before its zygote has reported its pid. */
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
			if (p->pid == pid && p->is_child && !p->dead) {
				cell__program_exited(p, status);
				break;
			}
		struct jail *jail = cell__jail_by_pid(pid);
		if (jail)
			jail_exited(jail);
		if (pid == cell__zone_pid())
			zone_exited();
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

/* Of two timeouts; -1: none. */
static int sooner(int a_ms, int b_ms)
{
	return a_ms < 0 || (b_ms >= 0 && b_ms < a_ms) ? b_ms : a_ms;
}

static void serve(void)
{
	for (;;) {
		struct epoll_event events[16];
		int for_program = cell__jail_spare_delay(CELL_JAIL_FOR_PROGRAM), for_kernel = cell__jail_spare_delay(CELL_JAIL_FOR_KERNEL);
		int delay = sooner(for_program, for_kernel);
		if (cell__jails_tidy() || cell__spawner.n_dead > 0 || may_have_orphans() || unswept)
			delay = sooner(delay, SWEEP_AGAIN_MS);
		if (cell__jails_have_mounts())
			delay = sooner(delay, DROP_DELAY_MS);
		delay = sooner(delay, cell__jails_shrink());
		int n = epoll_wait(cell__spawner.epoll_fd, events, 16, delay);
		if (n == 0 && for_program == 0)
			cell__jail_make_spare(CELL_JAIL_FOR_PROGRAM);
		else if (n == 0 && for_kernel >= 0)
			cell__jail_make_spare(CELL_JAIL_FOR_KERNEL);
		else if (n == 0 && for_program > 0)
			cell__jail_make_spare(CELL_JAIL_FOR_PROGRAM);
		else if (n == 0)
			cell__jails_drop_mounts();
		for (int i = 0; i < n; i++) {
			uint64_t which = events[i].data.u64;
			struct zygote *zygote = which > 1 && which < REPORT_EVENT ? cell__zygote_find(which) : NULL;
			struct jail *jail = which & JAIL_EVENT ? cell__jail_by_serial(which & ~JAIL_EVENT) : NULL;
			if (jail && jail->ready_fd >= 0)
				jail_spoke(jail);
			else if (which == 0)
				read_host();
			else if (which == 1)
				reap();
			else if (which == ZONE_EVENT)
				read_zone();
			else if (which & COMMANDS_EVENT && (jail = cell__jail_by_serial(which & EVENT_ID)))
				cell__jail_commands(jail);
			else if (which & REPORT_EVENT)
				cell__command_reported(which & EVENT_ID);
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
