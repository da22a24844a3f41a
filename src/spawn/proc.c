#define _GNU_SOURCE
#include "spawn/proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLICE_DEPTH 256 /* a process below that keeps its slice; two descriptors for each */

static bool pid_name(const char *name, pid_t *ret_pid)
{
	char *end;
	long v = strtol(name, &end, 10);
	if (end == name || *end || v <= 0)
		return false;
	*ret_pid = (pid_t)v;
	return true;
}

/* /proc/PID/task/TID/children, where the kernel was built with it.  False: it was not. */
static bool children_of_thread(pid_t pid, pid_t tid, void (*fn)(pid_t, void *), void *arg)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, tid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	int child;
	while (fscanf(file, "%d", &child) == 1)
		fn(child, arg);
	fclose(file);
	return true;
}

static FILE *open_file(pid_t pid, const char *name)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
	return fopen(path, "re");
}

pid_t cell__proc_parent(pid_t pid)
{
	char line[512];
	FILE *file = open_file(pid, "stat");
	if (!file)
		return 0;
	int parent = 0;
	/* The name may contain any text, also ") R 1 ": the fields begin after the last parenthesis. */
	size_t n = fread(line, 1, sizeof line - 1, file);
	line[n] = '\0';
	char *after = strrchr(line, ')');
	if (!after || sscanf(after + 1, " %*c %d", &parent) != 1)
		parent = 0;
	fclose(file);
	return parent;
}

/* The sum of these lines; second may be NULL. */
static int64_t memory_bytes(pid_t pid, const char *first, const char *second)
{
	char line[256];
	FILE *file = open_file(pid, "smaps_rollup");
	if (!file)
		return -1;
	long long total = 0;
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, first, strlen(first)) || (second && !strncmp(line, second, strlen(second))))
			total += strtoll(strchr(line, ':') + 1, NULL, 10) * 1024;
	fclose(file);
	return total;
}

int64_t cell__proc_private_bytes(pid_t pid)
{
	return memory_bytes(pid, "Private_Clean:", "Private_Dirty:");
}

int64_t cell__proc_shared_bytes(pid_t pid)
{
	return memory_bytes(pid, "Pss:", NULL);
}

static void children_by_scan(pid_t pid, void (*fn)(pid_t, void *), void *arg)
{
	DIR *dir = opendir("/proc");
	if (!dir)
		return;
	struct dirent *entry;
	pid_t other;
	while ((entry = readdir(dir)))
		if (pid_name(entry->d_name, &other) && cell__proc_parent(other) == pid)
			fn(other, arg);
	closedir(dir);
}

void cell__proc_children(pid_t pid, void (*fn)(pid_t child, void *arg), void *arg)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *dir = opendir(path);
	if (!dir)
		return;
	bool answered = true;
	struct dirent *entry;
	pid_t tid;
	while ((entry = readdir(dir)))
		if (pid_name(entry->d_name, &tid))
			answered &= children_of_thread(pid, tid, fn, arg);
	closedir(dir);
	if (!answered)
		children_by_scan(pid, fn, arg);
}

static void kill_below(pid_t pid, void *arg)
{
	int *depth = arg;
	if (*depth > 64)
		return;
	++*depth;
	kill(pid, SIGSTOP); /* so that it starts no process while we read */
	cell__proc_children(pid, kill_below, depth);
	kill(pid, SIGKILL);
	--*depth;
}

void cell__proc_kill_tree(pid_t pid)
{
	int depth = 0;
	kill_below(pid, &depth);
}

/* ---- slices ---- */

/* As in <linux/sched/types.h>, which cannot be included beside the C library's <sched.h>. */
struct sched_attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

struct slice_walk {
	uint64_t slice_ns;
	int depth;
};

static void slice_below(pid_t pid, void *arg)
{
	struct slice_walk *walk = arg;
	char path[64];
	pid_t tid;
	struct dirent *entry;
	snprintf(path, sizeof path, "/proc/%d/task", pid);
	DIR *dir = walk->depth < SLICE_DEPTH ? opendir(path) : NULL;
	while (dir && (entry = readdir(dir))) {
		struct sched_attributes attr = { .size = sizeof attr };
		if (!pid_name(entry->d_name, &tid) || syscall(SYS_sched_getattr, tid, &attr, sizeof attr, 0) < 0)
			continue; /* it has ended */
		attr.runtime = walk->slice_ns;
		(void)syscall(SYS_sched_setattr, tid, &attr, 0);
	}
	if (!dir)
		return;
	closedir(dir);
	walk->depth++;
	cell__proc_children(pid, slice_below, walk);
	walk->depth--;
}

void cell__proc_slice_tree(pid_t pid, uint64_t slice_ns)
{
	struct slice_walk walk = { .slice_ns = slice_ns };
	slice_below(pid, &walk);
}

static bool read_counter(const char *path, const char *key, uint64_t *ret_value)
{
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	char name[64];
	unsigned long long value;
	bool found = false;
	while (!found && fscanf(file, "%63s %llu", name, &value) == 2)
		found = strcmp(name, key) == 0;
	fclose(file);
	if (found)
		*ret_value = value;
	return found;
}

/* Our path in the hierarchy that has this controller ("" for v2), as /proc/self/cgroup names it. */
static bool cgroup_path(const char *controller, char *out, size_t size)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	if (!file)
		return false;
	char line[1024];
	bool found = false;
	while (!found && fgets(line, sizeof line, file)) {
		line[strcspn(line, "\n")] = '\0';
		char *names = strchr(line, ':');
		char *path = names ? strchr(names + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		names++;
		if (*controller == '\0')
			found = *names == '\0';
		else
			for (char *name = strtok(names, ","); name && !found; name = strtok(NULL, ","))
				found = strcmp(name, controller) == 0;
		if (found)
			snprintf(out, size, "%s", path);
	}
	fclose(file);
	return found;
}

uint64_t cell__proc_oom_kills(void)
{
	char group[512], path[768];
	uint64_t count;
	if (cgroup_path("", group, sizeof group)) {
		static const char *const mounts[] = { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" };
		for (int i = 0; i < 2; i++) {
			snprintf(path, sizeof path, "%s%s/memory.events", mounts[i], group);
			if (read_counter(path, "oom_kill", &count))
				return count;
		}
	}
	if (cgroup_path("memory", group, sizeof group)) {
		snprintf(path, sizeof path, "/sys/fs/cgroup/memory%s/memory.oom_control", group);
		if (read_counter(path, "oom_kill", &count))
			return count;
	}
	return read_counter("/proc/vmstat", "oom_kill", &count) ? count : 0;
}

bool cell__proc_has_own_pids(pid_t pid)
{
	char path[64], text[4096];
	snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return false;
	text[n] = '\0';
	const char *line = strstr(text, "\nNSpid:");
	int numbers[2];
	return line && sscanf(line, "\nNSpid: %d %d", &numbers[0], &numbers[1]) == 2;
}

pid_t cell__proc_pid_of(int pidfd)
{
	char path[64], text[512];
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	const char *line = strstr(text, "\nPid:");
	long pid = line ? strtol(line + 5, NULL, 10) : 0;
	return pid > 0 ? (pid_t)pid : 0;
}
