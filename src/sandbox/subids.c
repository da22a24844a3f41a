/*
 * Theory of operation
 *
 * The programs have privileges that we lack, so they are separate processes, and the caller may be a library in a host that has handlers
 * for SIGCHLD and waits for its own children.  So there is a third process, which shares our memory while we are suspended:
 *
 *     caller ──clone, no signal at its end──▶ starter: all signals blocked ──clone──▶ newuidmap PID ...
 *                                                │                        └──clone──▶ newgidmap PID ...
 *                                                └── waits for both, with a deadline; leaves their statuses in the caller's memory
 */
#define _GNU_SOURCE
#include "sandbox/subids.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/file.h"

#define STACK_BYTES 65536u
#define FILE_MAX_BYTES (1u << 20)
#define TOOL_MS 5000 /* the programs may have to query a directory service */

/* ---- ranges ---- */

bool cell__subids_parse(const char *text, const char *name, unsigned uid, unsigned *ret_first, unsigned *ret_count)
{
	char number[16];
	snprintf(number, sizeof number, "%u", uid);
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		unsigned long first, count;
		size_t n = strcspn(line, ":\n");
		bool ours = (n == strlen(name) && memcmp(line, name, n) == 0) || (n == strlen(number) && memcmp(line, number, n) == 0);
		if (!ours || line[n] != ':' || sscanf(line + n, ":%lu:%lu", &first, &count) != 2)
			continue;
		if (count < CELL_SUBIDS_LEAST || first == 0 || first > UINT32_MAX - 1 || count > UINT32_MAX - 1 - first)
			continue;
		if (uid >= first && uid - first < count)
			continue; /* the caller's own is not another one */
		*ret_first = (unsigned)first;
		*ret_count = (unsigned)count;
		return true;
	}
	return false;
}

static bool find_range(const char *path, const char *name, unsigned *ret_first, unsigned *ret_count)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	return cell__file_read(AT_FDCWD, path, 0, FILE_MAX_BYTES, &text, NULL) == 0 &&
	       cell__subids_parse(text.data, name, geteuid(), ret_first, ret_count);
}

/* ---- programs ---- */

/* The usual folders of these programs, which no user can write to. $PATH is not used. */
static const char *const folders[] = { "/usr/bin", "/bin", "/run/wrappers/bin" };
#define N_FOLDERS (sizeof folders / sizeof *folders)
#define PATH_BYTES 48

/* Owned by root, writable by root only, and with its own privileges. */
static bool find_tool(const char *name, char ret_path[static PATH_BYTES])
{
	for (size_t i = 0; i < N_FOLDERS; i++) {
		struct stat st;
		char path[PATH_BYTES];
		snprintf(path, sizeof path, "%s/%s", folders[i], name);
		if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)) ||
		    !((st.st_mode & S_ISUID) || getxattr(path, "security.capability", NULL, 0) > 0))
			continue;
		memcpy(ret_path, path, sizeof path);
		return true;
	}
	return false;
}

int cell__subids_find(struct cell__subids *ret_ids, char ret_why[static 160], char ret_advice[static 240])
{
	static const char *const tools[] = { "newuidmap", "newgidmap" }, *const files[] = { "/etc/subuid", "/etc/subgid" };
	unsigned first[2], count[2];
	struct passwd entry, *found = NULL;
	char memory[8192], path[PATH_BYTES], number[16];
	*ret_ids = (struct cell__subids){ 0 };
	snprintf(number, sizeof number, "%u", geteuid());
	bool named = getpwuid_r(geteuid(), &entry, memory, sizeof memory, &found) == 0 && found;
	const char *name = named ? entry.pw_name : number;
	for (int i = 0; i < 2; i++)
		if (!find_tool(tools[i], path)) {
			snprintf(ret_why, 160, "%s is not installed", tools[i]);
			snprintf(ret_advice, 240, "install newuidmap and newgidmap (Debian and Ubuntu: `apt install uidmap`)");
			return -1;
		}
	for (int i = 0; i < 2; i++)
		if (!find_range(files[i], name, &first[i], &count[i])) {
			snprintf(ret_why, 160, "%s has no range of %.80s", files[i], name);
			snprintf(ret_advice, 240,
				 "as root, `usermod --add-subuids 200000-265535 --add-subgids 200000-265535 %.80s` (numbers that no "
				 "other line of /etc/subuid and /etc/subgid has)",
				 name);
			return -1;
		}
	if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 0) {
		snprintf(ret_why, 160, "this process may not gain privileges, so newuidmap has none (no_new_privs)");
		snprintf(ret_advice, 240, "start Workcell without no_new_privs");
		return -1;
	}
	/* Containers use ids from the beginning, and have their nobody near the end. */
	unsigned least = count[0] < count[1] ? count[0] : count[1];
	*ret_ids = (struct cell__subids){ .uid = first[0] + least / 2, .gid = first[1] + least / 2, .count = least / 4 };
	return 0;
}

/* ---- mapping ---- */

#define N_WORDS 8

struct tool {
	char path[PATH_BYTES];
	char words[N_WORDS][16];
	char *argv[N_WORDS + 1];
	char *stack; /* its end */
	pid_t pid;
	int status;
};

struct starting {
	struct tool tools[2];
	int error;
};

static void set_words(struct tool *tool, pid_t pid, unsigned own, unsigned first, unsigned count)
{
	const unsigned numbers[N_WORDS - 1] = { (unsigned)pid, own, own, 1, first, first, count };
	for (int i = 0; i < N_WORDS - 1; i++) {
		snprintf(tool->words[i + 1], sizeof tool->words[i + 1], "%u", numbers[i]);
		tool->argv[i + 1] = tool->words[i + 1];
	}
	tool->argv[0] = tool->path;
}

/* From here on raw system calls alone: memory is the caller's. */
static int exec_tool(void *arg)
{
	static char *const no_environment[] = { NULL };
	const struct tool *tool = arg;
	syscall(SYS_close_range, 0u, ~0u, 0u);
	if (open("/dev/null", O_RDWR) != 0 || dup2(0, 1) != 1 || dup2(0, 2) != 2)
		_exit(127);
	execve(tool->path, tool->argv, no_environment);
	_exit(127);
}

static int64_t left_ms(const struct timespec *end)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)(end->tv_sec - now.tv_sec) * 1000 + (end->tv_nsec - now.tv_nsec) / 1000000;
}

/* Kills it past the deadline: its real uid is ours. */
static void wait_tool(struct tool *tool, const struct timespec *end)
{
	sigset_t child;
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	for (;;) {
		pid_t pid = waitpid(tool->pid, &tool->status, WNOHANG);
		if (pid == tool->pid || (pid < 0 && errno != EINTR))
			return;
		int64_t ms = left_ms(end);
		if (ms <= 0) {
			kill(tool->pid, SIGKILL);
			while (waitpid(tool->pid, NULL, 0) < 0 && errno == EINTR) {
			}
			return; /* its status says that it failed, whatever happened since */
		}
		struct timespec wait = { ms / 1000, ms % 1000 * 1000000 };
		(void)sigtimedwait(&child, NULL, &wait);
	}
}

static int run_tools(void *arg)
{
	struct starting *starting = arg;
	struct timespec end;
	struct sigaction usual = { .sa_handler = SIG_DFL };
	sigaction(SIGCHLD, &usual, NULL); /* of this process only: with SIGCHLD ignored there would be nothing to wait for */
	clock_gettime(CLOCK_MONOTONIC, &end);
	end.tv_sec += TOOL_MS / 1000;
	for (int i = 0; i < 2; i++) {
		struct tool *tool = &starting->tools[i];
		tool->status = -1;
		tool->pid = clone(exec_tool, tool->stack, CLONE_VM | CLONE_VFORK | SIGCHLD, tool);
		if (tool->pid < 0)
			starting->error = errno;
	}
	for (int i = 0; i < 2; i++)
		if (starting->tools[i].pid > 0)
			wait_tool(&starting->tools[i], &end);
	return 0;
}

int cell__subids_map(pid_t pid, const struct cell__subids *ids)
{
	struct starting starting = { 0 };
	if (ids->count < 2 || !find_tool("newuidmap", starting.tools[0].path) || !find_tool("newgidmap", starting.tools[1].path)) {
		errno = ENOENT;
		return -1;
	}
	char *stacks = mmap(NULL, 3 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stacks == MAP_FAILED)
		return -1;
	set_words(&starting.tools[0], pid, geteuid(), ids->uid, ids->count);
	set_words(&starting.tools[1], pid, getegid(), ids->gid, ids->count);
	starting.tools[0].stack = stacks + STACK_BYTES;
	starting.tools[1].stack = stacks + 2 * STACK_BYTES;
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before); /* no handler of the host's runs in them */
	pid_t starter = clone(run_tools, stacks + 3 * STACK_BYTES, CLONE_VM | CLONE_VFORK, &starting);
	if (starter < 0)
		starting.error = errno;
	while (starter > 0 && waitpid(starter, NULL, __WCLONE) < 0 && errno == EINTR) {
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	munmap(stacks, 3 * STACK_BYTES);
	if (!starting.error && starting.tools[0].status == 0 && starting.tools[1].status == 0)
		return 0;
	errno = starting.error ? starting.error : EPERM;
	return -1;
}
