#define _GNU_SOURCE
#include "spawn/shells.h"

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

#include "core/core.h"
#include "sandbox/mapped.h"
#include "spawn/message.h"

#define PLANS_KEPT 8
#define OLD_MOUNTS 8 /* then they go at once */

/* Plans seen lately, mapped. */
struct known_plan {
	const struct cell_plan *plan;
	size_t spares_wanted;
};

static struct known_plan plans[PLANS_KEPT];
static size_t next_plan;
static struct shell *shells;
static int old_mounts[OLD_MOUNTS]; /* of shells that are gone */
static size_t n_old_mounts;
static uint64_t next_serial = 1;
static struct cell_cgroups groups;
static bool groups_found;

/* ---- pid 1 ---- */

/*
 * What runs as pid 1: it reaps what the code leaves behind, and is there to be killed.  While it has its capabilities the
 * kernel, which has none, cannot trace it; before it gives them up it makes itself untraceable.
 */
static void __attribute__((noreturn)) keep_namespaces(void)
{
	sigset_t wanted;
	sigemptyset(&wanted);
	sigaddset(&wanted, SIGCHLD);
	sigaddset(&wanted, SIGUSR1);
	for (;;) {
		int signal = sigwaitinfo(&wanted, NULL);
		if (signal == SIGUSR1 &&
		    (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		     cell__bound_capabilities() < 0 || cell__drop_capabilities() < 0))
			_exit(1);
		while (waitpid(-1, NULL, WNOHANG | __WALL) > 0) {
		}
	}
}

static void __attribute__((noreturn)) run_shell(const struct cell_plan *plan, const struct cell_cgroup *group, int ready_fd)
{
	struct cell_plan_report report = { .step = -1 };
	struct cell_apply apply = { .plan = plan, .landlock_fd = -1, .start_fd = 3 };
	sigset_t all;
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	/* The spawner's end is ours.  If it is gone already, there is nobody to read our report, and that ends us. */
	int rc = prctl(PR_SET_PDEATHSIG, SIGKILL);
	int kept = rc == 0 ? dup2(ready_fd, 3) : -1;
	if (kept != 3 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0 || syscall(SYS_close_range, 4, ~0u, 0) < 0 ||
	    cell__cgroup_join(group) < 0) {
		report.step = CELL_PLAN_MAX_STEPS - 1; /* before any step */
		report.sys = errno;
	} else {
		(void)cell__apply_stage(&apply, CELL_STAGE_SHELL, &report);
	}
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION };
	if (cell__spawn_send(3, &head, &report, sizeof report, &apply.listen_fd, apply.has_listener, 0) < 0 || report.step >= 0)
		_exit(1);
	close(3);
	if (apply.has_listener)
		close(apply.listen_fd);
	keep_namespaces();
}

/* ---- plans ---- */

static const struct cell_plan *find_plan(uint64_t id)
{
	for (size_t i = 0; i < PLANS_KEPT; i++)
		if (plans[i].plan && plans[i].plan->id == id)
			return plans[i].plan;
	return NULL;
}

const struct cell_plan *cell__shell_plan(int fd)
{
	struct cell_plan head;
	if (pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) {
		errno = EINVAL;
		return NULL;
	}
	const struct cell_plan *plan = find_plan(head.id);
	if (plan)
		return plan;
	plan = cell__plan_map(fd);
	if (!plan)
		return NULL;
	struct known_plan *slot = &plans[next_plan++ % PLANS_KEPT];
	if (slot->plan) {
		/* Spares of a plan that nobody uses any more go. */
		for (struct shell *s = shells; s; s = s->next)
			if (!s->taken && s->plan_id == slot->plan->id)
				cell__shell_kill(s);
		munmap((void *)slot->plan, slot->plan->bytes);
	}
	*slot = (struct known_plan){ .plan = plan };
	return plan;
}

static void want_spares(uint64_t plan_id, size_t wanted)
{
	for (size_t i = 0; i < PLANS_KEPT; i++)
		if (plans[i].plan && plans[i].plan->id == plan_id)
			plans[i].spares_wanted = wanted;
}

/* ---- making ---- */

/* Groups that a spawner left which was killed: their names say which. */
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

static int make_group(struct shell *shell, const struct cell_plan *plan)
{
	char name[64];
	if (!groups_found) {
		cell__cgroups_find(&groups);
		groups_found = true;
		for (int c = 0; c < CELL_CG_COUNT; c++)
			remove_stale_groups(groups.parent[c]);
	}
	snprintf(name, sizeof name, "workcell-%d-%llu", (int)getpid(), (unsigned long long)shell->serial);
	int rc = cell__cgroup_make(&groups, name, &plan->limits, &shell->group);
	shell->has_group = rc == 0;
	errno = -rc;
	return rc;
}

static int start_process(struct shell *shell, const struct cell_plan *plan)
{
	int ready[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ready) < 0)
		return -1;
	long pid = syscall(SYS_clone, cell__apply_birth_flags(plan) | SIGCHLD, NULL, NULL, NULL, NULL);
	if (pid == 0)
		run_shell(plan, &shell->group, ready[1]);
	int error = errno;
	close(ready[1]);
	/* Shared with the child, which closes all that is not its own first: whoever is last takes the mounts down. */
	cell__shells_drop_mounts();
	if (pid > 0 && plan->mapped)
		cell__mapped_start(plan, (pid_t)pid, ready[0]);
	if (pid < 0) {
		close(ready[0]);
		errno = error;
		return -1;
	}
	fcntl(ready[0], F_SETFL, O_NONBLOCK);
	shell->ready_fd = ready[0];
	shell->pid = (pid_t)pid;
	shell->pidfd = (int)syscall(SYS_pidfd_open, shell->pid, 0);
	return shell->pidfd < 0 ? -1 : 0;
}

static struct shell *make_shell(const struct cell_plan *plan)
{
	struct shell *shell = cell__alloc(1, sizeof *shell);
	if (!shell) {
		errno = ENOMEM;
		return NULL;
	}
	*shell = (struct shell){
		.serial = next_serial++, .plan_id = plan->id, .pidfd = -1, .ready_fd = -1, .listen_fd = -1, .mounts_fd = -1, .report.step = -1, .next = shells
	};
	shells = shell;
	bool bare = plan->level != CELL_LEVEL_FULL;
	if (make_group(shell, plan) < 0 || (!bare && start_process(shell, plan) < 0)) {
		int error = errno;
		cell__shell_kill(shell);
		shell->failed = true;
		if (shell->pid == 0)
			(void)cell__shell_remove(shell);
		errno = error;
		return NULL;
	}
	shell->ready = bare;
	return shell;
}

struct shell *cell__shell_take(int plan_fd, size_t spares)
{
	const struct cell_plan *plan = cell__shell_plan(plan_fd);
	if (!plan)
		return NULL;
	struct shell *best = NULL;
	for (struct shell *s = shells; s; s = s->next) {
		struct pollfd end = { .fd = s->pidfd, .events = POLLIN };
		if (!s->taken && s->ready_fd >= 0)
			cell__shell_read(s); /* spares are not watched: they are asked when they are needed */
		if (!s->taken && s->pidfd >= 0 && poll(&end, 1, 0) > 0)
			s->failed = true; /* somebody killed it, and we have not heard of it yet */
	}
	for (struct shell *s = shells; s; s = s->next)
		if (!s->taken && !s->failed && s->plan_id == plan->id && (s->ready || !best))
			best = s;
	if (!best)
		best = make_shell(plan);
	if (!best)
		return NULL;
	best->taken = true;
	want_spares(plan->id, plan->level == CELL_LEVEL_FULL ? spares : 0);
	return best;
}

static const struct known_plan *plan_without_spare(void)
{
	for (size_t i = 0; i < PLANS_KEPT; i++) {
		if (!plans[i].plan || !plans[i].spares_wanted)
			continue;
		size_t has = 0;
		for (struct shell *s = shells; s; s = s->next)
			has += !s->taken && !s->failed && s->plan_id == plans[i].plan->id;
		if (has < plans[i].spares_wanted)
			return &plans[i];
	}
	return NULL;
}

size_t cell__shell_spares_wanted(void)
{
	const struct known_plan *known = plan_without_spare();
	return known ? known->spares_wanted : 0;
}

void cell__shell_make_spare(void)
{
	const struct known_plan *known = plan_without_spare();
	if (known && !make_shell(known->plan))
		want_spares(known->plan->id, 0); /* the next kernel will be told why */
}

/* ---- life ---- */

struct shell *cell__shell_by_serial(uint64_t serial)
{
	struct shell *shell = shells;
	while (shell && shell->serial != serial)
		shell = shell->next;
	return shell;
}

struct shell *cell__shell_by_pid(pid_t pid)
{
	struct shell *shell = shells;
	while (shell && shell->pid != pid)
		shell = shell->next;
	return shell;
}

void cell__shell_read(struct shell *shell)
{
	struct {
		struct cell_spawn_msg head;
		char report[sizeof(struct cell_plan_report)];
	} message;
	size_t n_fds;
	ssize_t n = cell__spawn_receive(shell->ready_fd, &message, sizeof message, &shell->listen_fd, 1, &n_fds, MSG_DONTWAIT);
	if (n < 0 && errno == EAGAIN)
		return;
	cell__close_fd(&shell->ready_fd);
	if (n == (ssize_t)(sizeof message.head + sizeof message.report))
		memcpy(&shell->report, message.report, sizeof shell->report);
	else
		shell->report = (struct cell_plan_report){ .step = CELL_PLAN_MAX_STEPS - 1, .sys = ECHILD };
	shell->ready = shell->report.step < 0;
	shell->failed = !shell->ready;
	if (shell->failed && !shell->taken)
		want_spares(shell->plan_id, 0);
}

void cell__shell_joined(struct shell *shell)
{
	if (shell->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, shell->pidfd, SIGUSR1, NULL, 0);
}

void cell__shell_keep_mounts(struct shell *shell)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/ns/mnt", (int)shell->pid);
	shell->mounts_fd = open(path, O_RDONLY | O_CLOEXEC); /* -1: they go with it */
}

bool cell__shells_have_mounts(void)
{
	return n_old_mounts > 0;
}

void cell__shells_drop_mounts(void)
{
	while (n_old_mounts > 0)
		close(old_mounts[--n_old_mounts]);
}

void cell__shell_kill(struct shell *shell)
{
	if (shell->pidfd >= 0)
		syscall(SYS_pidfd_send_signal, shell->pidfd, SIGKILL, NULL, 0);
	else if (shell->pid > 0)
		kill(shell->pid, SIGKILL);
}

void cell__shell_give_up(struct shell *shell)
{
	shell->failed = true;
	cell__shell_kill(shell);
	shell->taken = false; /* nobody's: it is removed when it is reaped */
	if (shell->pid == 0)
		(void)cell__shell_remove(shell);
}

void cell__shell_reaped(struct shell *shell)
{
	shell->pid = 0;
	shell->ready = false;
	shell->failed = true;
	cell__close_fd(&shell->pidfd);
}

bool cell__shell_remove(struct shell *shell)
{
	if (shell->pid != 0 || (shell->has_group && cell__cgroup_remove(&shell->group) == -EBUSY))
		return false;
	for (struct shell **at = &shells; *at; at = &(*at)->next)
		if (*at == shell) {
			*at = shell->next;
			break;
		}
	cell__close_fd(&shell->ready_fd);
	cell__close_fd(&shell->listen_fd);
	cell__close_fd(&shell->pidfd);
	if (shell->mounts_fd >= 0 && n_old_mounts < OLD_MOUNTS)
		old_mounts[n_old_mounts++] = cell__take_fd(&shell->mounts_fd);
	cell__close_fd(&shell->mounts_fd);
	free(shell);
	return true;
}

void cell__shells_remove_all(void)
{
	for (struct shell *shell = shells, *next; shell; shell = next) {
		next = shell->next;
		shell->pid = 0;
		(void)cell__shell_remove(shell);
	}
}
