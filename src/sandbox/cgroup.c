/*
 * Version 2 is used where its controllers can be switched on for groups below a folder that we may write to: the one we
 * are in, or one above it (a group with processes in it cannot have groups with limits below; where systemd delegates, the
 * slice above ours is the user's).  Version 1 is used where its hierarchies are mounted and writable.
 */
#define _GNU_SOURCE
#include "sandbox/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEVELS_UP 8
#define CPU_PERIOD_US 100000ull

static const char *const controllers[CELL_CG_COUNT] = { "memory", "pids", "cpu" };

static ssize_t read_file(const char *path, char *out, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	size_t n = 0;
	ssize_t got = 0;
	while (n + 1 < size && (got = read(fd, out + n, size - 1 - n)) > 0)
		n += (size_t)got;
	close(fd);
	out[n] = '\0';
	return got < 0 ? -1 : (ssize_t)n;
}

static int write_in(const char *folder, const char *name, const char *text)
{
	char path[CELL_CGROUP_PATH + 128];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t n = write(fd, text, strlen(text));
	int rc = n < 0 ? -errno : 0;
	close(fd);
	return rc;
}

static uint64_t read_number_in(const char *folder, const char *name)
{
	char path[CELL_CGROUP_PATH + 128], text[64];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return read_file(path, text, sizeof text) > 0 ? strtoull(text, NULL, 10) : 0;
}

/* The number after a key in a file of "key number" lines. */
static uint64_t read_key_in(const char *folder, const char *name, const char *key)
{
	char path[CELL_CGROUP_PATH + 128], text[4096];
	size_t size = strlen(key);
	snprintf(path, sizeof path, "%s/%s", folder, name);
	if (read_file(path, text, sizeof text) <= 0)
		return 0;
	for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		if (strncmp(line, key, size) == 0 && line[size] == ' ')
			return strtoull(line + size, NULL, 10);
	return 0;
}

static bool has_word(const char *text, const char *word)
{
	size_t size = strlen(word);
	for (const char *at = text; (at = strstr(at, word)); at += size)
		if ((at == text || strchr(" ,\n", at[-1])) && strchr(" ,\n", at[size]))
			return true;
	return false;
}

/* ---- where we are ---- */

/*
 * The mount point of a hierarchy and our group in it, from /proc/self/mountinfo and /proc/self/cgroup.  controller NULL:
 * version 2.
 */
static bool find_folder(const char *controller, char *out, size_t size)
{
	static char mounts[65536], groups[8192]; /* one thread, or the loop's */
	char where[512] = "", inside[512] = "";
	if (read_file("/proc/self/mountinfo", mounts, sizeof mounts) <= 0 ||
	    read_file("/proc/self/cgroup", groups, sizeof groups) <= 0)
		return false;
	for (char *line = strtok(mounts, "\n"); line; line = strtok(NULL, "\n")) {
		char root[512], point[512], *tail = strstr(line, " - ");
		char type[32], options[512];
		if (!tail || sscanf(line, "%*d %*d %*s %511s %511s", root, point) != 2 ||
		    sscanf(tail, " - %31s %*s %511s", type, options) != 2)
			continue;
		if (controller ? strcmp(type, "cgroup") != 0 || !has_word(options, controller) : strcmp(type, "cgroup2") != 0)
			continue;
		if (strcmp(root, "/") != 0)
			continue; /* somebody else's part of the tree */
		snprintf(where, sizeof where, "%s", point);
		break;
	}
	for (char *line = strtok(groups, "\n"); line; line = strtok(NULL, "\n")) {
		char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		if (controller ? !has_word(names + 1, controller) && strcmp(names + 1, controller) != 0 : names[1] != '\0')
			continue;
		snprintf(inside, sizeof inside, "%s", strcmp(path, "/") == 0 ? "" : path);
		int n = snprintf(out, size, "%s%s", where, inside);
		return where[0] && n > 0 && (size_t)n < size;
	}
	return false;
}

/* Can groups be made in this folder? */
static bool can_make(const char *folder)
{
	char path[CELL_CGROUP_PATH + 64];
	snprintf(path, sizeof path, "%s/workcell-try-%d", folder, (int)getpid());
	if (mkdir(path, 0755) < 0)
		return false;
	rmdir(path);
	return true;
}

/* Which controllers groups below this folder can have; those that are not on are switched on.  False: not enough of them. */
static bool controllers_on(const char *folder, bool on[CELL_CG_COUNT])
{
	char path[CELL_CGROUP_PATH + 64], text[1024] = "", word[16];
	snprintf(path, sizeof path, "%s/cgroup.subtree_control", folder);
	if (read_file(path, text, sizeof text) < 0)
		return false;
	for (int c = 0; c < CELL_CG_COUNT; c++) {
		snprintf(word, sizeof word, "+%s", controllers[c]);
		on[c] = has_word(text, controllers[c]) || write_in(folder, "cgroup.subtree_control", word) == 0;
	}
	return on[CELL_CG_MEMORY] && on[CELL_CG_PIDS]; /* cpu is not always delegated */
}

static bool find_v2(struct cell_cgroups *groups)
{
	char folder[CELL_CGROUP_PATH];
	struct stat st;
	if (!find_folder(NULL, folder, sizeof folder))
		return false;
	for (int i = 0; i < LEVELS_UP; i++) {
		char probe[CELL_CGROUP_PATH + 64];
		bool on[CELL_CG_COUNT];
		snprintf(probe, sizeof probe, "%s/cgroup.subtree_control", folder);
		if (stat(probe, &st) < 0)
			return false;
		if (access(folder, W_OK) == 0 && controllers_on(folder, on) && can_make(folder)) {
			for (int c = 0; c < CELL_CG_COUNT; c++)
				snprintf(groups->parent[c], sizeof groups->parent[c], "%s", on[c] ? folder : "");
			groups->version = 2;
			return true;
		}
		char *slash = strrchr(folder, '/');
		if (!slash || slash == folder)
			return false;
		*slash = '\0';
	}
	return false;
}

void cell__cgroups_find(struct cell_cgroups *ret_groups)
{
	memset(ret_groups, 0, sizeof *ret_groups);
	if (find_v2(ret_groups))
		return;
	for (int c = 0; c < CELL_CG_COUNT; c++) {
		char folder[CELL_CGROUP_PATH];
		if (!find_folder(controllers[c], folder, sizeof folder) || !can_make(folder))
			continue;
		snprintf(ret_groups->parent[c], sizeof ret_groups->parent[c], "%s", folder);
		ret_groups->version = 1;
	}
}

/* ---- groups ---- */

static int set_number(const char *folder, const char *name, uint64_t value)
{
	char text[32];
	snprintf(text, sizeof text, "%llu", (unsigned long long)value);
	return write_in(folder, name, text);
}

static int set_weight(int version, const char *folder, uint64_t weight)
{
	return version == 2 ? set_number(folder, "cpu.weight", weight) : set_number(folder, "cpu.shares", weight * 1024 / 100);
}

bool cell__cgroup_set_share(const struct cell_cgroup *group, enum cell_cgroup_share share)
{
	const char *cpu = group->path[CELL_CG_CPU];
	if (!cpu[0])
		return false;
	/* Before Linux 5.15 there is no such file, and half is the least. */
	if (write_in(cpu, "cpu.idle", share == CELL_SHARE_REST ? "1" : "0") == 0 && share == CELL_SHARE_REST)
		return true;
	return set_weight(group->version, cpu, share == CELL_SHARE_USUAL ? CELL_PLAN_WEIGHT : CELL_PLAN_WEIGHT / 2) == 0;
}

static int limit_v2(const struct cell_cgroup *group, const struct cell_plan_limits *limits)
{
	char text[64];
	int rc = 0;
	const char *folder = group->path[CELL_CG_MEMORY], *pids = group->path[CELL_CG_PIDS], *cpu = group->path[CELL_CG_CPU];
	if (folder[0] && limits->memory_bytes) {
		rc = set_number(folder, "memory.max", limits->memory_bytes);
		(void)write_in(folder, "memory.swap.max", "0"); /* absent without swap accounting */
		if (rc == 0)
			rc = write_in(folder, "memory.oom.group", "1");
	}
	if (rc == 0 && pids[0] && limits->pids)
		rc = set_number(pids, "pids.max", limits->pids + 1);
	if (rc == 0 && cpu[0] && limits->cpu_percent) {
		snprintf(text, sizeof text, "%llu %llu", (unsigned long long)(limits->cpu_percent * CPU_PERIOD_US / 100),
			 CPU_PERIOD_US);
		rc = write_in(cpu, "cpu.max", text);
	}
	if (rc == 0 && cpu[0] && limits->cpu_weight)
		rc = set_weight(2, cpu, limits->cpu_weight);
	return rc;
}

static int limit_v1(const struct cell_cgroup *group, const struct cell_plan_limits *limits)
{
	int rc = 0;
	const char *memory = group->path[CELL_CG_MEMORY], *pids = group->path[CELL_CG_PIDS], *cpu = group->path[CELL_CG_CPU];
	if (memory[0] && limits->memory_bytes) {
		rc = set_number(memory, "memory.limit_in_bytes", limits->memory_bytes);
		(void)set_number(memory, "memory.memsw.limit_in_bytes", limits->memory_bytes); /* absent without swap accounting */
	}
	if (rc == 0 && pids[0] && limits->pids)
		rc = set_number(pids, "pids.max", limits->pids + 1);
	if (rc == 0 && cpu[0] && limits->cpu_percent) {
		rc = set_number(cpu, "cpu.cfs_period_us", CPU_PERIOD_US);
		if (rc == 0)
			rc = set_number(cpu, "cpu.cfs_quota_us", limits->cpu_percent * CPU_PERIOD_US / 100);
	}
	if (rc == 0 && cpu[0] && limits->cpu_weight)
		rc = set_weight(1, cpu, limits->cpu_weight);
	return rc;
}

static bool wanted(int controller, const struct cell_plan_limits *limits)
{
	return controller == CELL_CG_MEMORY ? limits->memory_bytes > 0
	       : controller == CELL_CG_PIDS ? limits->pids > 0
					    : limits->cpu_percent > 0 || limits->cpu_weight > 0;
}

int cell__cgroup_make(const struct cell_cgroups *groups, const char *name, const struct cell_plan_limits *limits,
		      struct cell_cgroup *ret_group)
{
	int rc = 0;
	memset(ret_group, 0, sizeof *ret_group);
	ret_group->version = groups->version;
	for (int c = 0; rc == 0 && c < CELL_CG_COUNT; c++) {
		if (!groups->parent[c][0] || !wanted(c, limits))
			continue;
		snprintf(ret_group->path[c], sizeof ret_group->path[c], "%s/%s", groups->parent[c], name);
		if (mkdir(ret_group->path[c], 0755) < 0 && !(groups->version == 2 && errno == EEXIST)) {
			rc = -errno;
			ret_group->path[c][0] = '\0';
		}
	}
	if (rc == 0)
		rc = groups->version == 2 ? limit_v2(ret_group, limits) : limit_v1(ret_group, limits);
	if (rc < 0)
		(void)cell__cgroup_remove(ret_group);
	return rc;
}

int cell__cgroup_join(const struct cell_cgroup *group)
{
	for (int c = 0; c < CELL_CG_COUNT; c++) {
		if (!group->path[c][0])
			continue;
		/* Version 1: `tasks` moves one thread, without the lock over all of the system that `cgroup.procs` takes. */
		int rc = write_in(group->path[c], group->version == 1 ? "tasks" : "cgroup.procs", "0");
		if (rc < 0) {
			errno = -rc;
			return -1;
		}
		if (group->version == 2)
			break;
	}
	return 0;
}

void cell__cgroup_usage(const struct cell_cgroup *group, struct cell_cgroup_usage *ret_usage)
{
	const char *memory = group->path[CELL_CG_MEMORY], *pids = group->path[CELL_CG_PIDS];
	memset(ret_usage, 0, sizeof *ret_usage);
	if (memory[0] && group->version == 2) {
		ret_usage->memory_peak = read_number_in(memory, "memory.peak");
		ret_usage->memory_max = read_number_in(memory, "memory.max");
		ret_usage->oom_kills = read_key_in(memory, "memory.events", "oom_kill");
	} else if (memory[0]) {
		ret_usage->memory_peak = read_number_in(memory, "memory.max_usage_in_bytes");
		ret_usage->memory_max = read_number_in(memory, "memory.limit_in_bytes");
		ret_usage->oom_kills = read_key_in(memory, "memory.oom_control", "oom_kill");
	}
	if (pids[0]) {
		ret_usage->pids_peak = read_number_in(pids, "pids.peak");
		ret_usage->pids_refused = read_key_in(pids, "pids.events", "max");
	}
}

int cell__cgroup_remove(const struct cell_cgroup *group)
{
	int rc = 0;
	for (int c = 0; c < CELL_CG_COUNT; c++)
		if (group->path[c][0] && rmdir(group->path[c]) < 0 && errno != ENOENT)
			rc = -errno;
	return rc;
}
