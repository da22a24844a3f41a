/*
 * Version 2 is used if its controllers can be enabled for groups below a folder that we may write to.  A group with
 * processes in it cannot have groups with limits below, unless it is the root of all, so the tree is one of these:
 *
 *     delegated (a service with Delegate=yes)     user's slice (a scope of systemd --user)     root of all
 *      ├── workcell-host   we step aside           ├── x.scope          we are here             ├── (we are here)
 *      └── workcell-1-1    a sandbox               └── workcell-1-1     a sandbox               └── workcell-1-1
 *
 * If our group is not marked as delegated, the groups above it are tried first: then we stay in our group.
 * Version 1 is used if its hierarchies are mounted and writable.
 */
#define _GNU_SOURCE
#include "sandbox/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define LEVELS_UP 8
#define ANCESTORS 64
#define MOVE_TRIES 3
#define SPAWNER_COMM "workcell-spawne" /* as much of its name as Linux keeps */
#define HOST_GROUP "workcell-host"
#define HOST_WEIGHT "1000" /* unsandboxed processes are many, and each of them would count as much as a sandbox */
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

/* Spaces, tabs, newlines and backslashes are octal in mountinfo. */
static void decode(char *text)
{
	char *to = text;
	for (const char *from = text; *from;) {
		if (from[0] == '\\' && from[1] >= '0' && from[1] <= '3' && from[2] >= '0' && from[2] <= '7' && from[3] >= '0' &&
		    from[3] <= '7') {
			*to++ = (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0'));
			from += 4;
		} else {
			*to++ = *from++;
		}
	}
	*to = '\0';
}

/* Our path in the hierarchy with this controller. NULL: not found, or outside of the part that our namespace shows. */
static const char *find_path(char *groups, const char *controller)
{
	char *rest = NULL;
	for (char *line = strtok_r(groups, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = '\0';
		if (controller ? !has_word(names + 1, controller) : names[1] != '\0')
			continue;
		return path[0] == '/' && strncmp(path, "/..", 3) != 0 ? path : NULL;
	}
	return NULL;
}

bool cell__cgroup_locate(char *mountinfo, char *groups, const char *controller, char *out, size_t size)
{
	const char *path = find_path(groups, controller);
	char *rest = NULL;
	for (char *line = strtok_r(mountinfo, "\n", &rest); path && line; line = strtok_r(NULL, "\n", &rest)) {
		char root[512], point[512], *tail = strstr(line, " - ");
		char type[32], options[512];
		if (!tail || sscanf(line, "%*d %*d %*s %511s %511s", root, point) != 2 ||
		    sscanf(tail, " - %31s %*s %511s", type, options) != 2)
			continue;
		if (controller ? strcmp(type, "cgroup") != 0 || !has_word(options, controller) : strcmp(type, "cgroup2") != 0)
			continue;
		decode(root);
		decode(point);
		/* The mount may show only a part of the tree: with us in it, or another part. */
		size_t skip = strcmp(root, "/") == 0 ? 0 : strlen(root);
		if (strncmp(path, root, skip) != 0 || (path[skip] != '\0' && path[skip] != '/'))
			continue;
		int n = snprintf(out, size, "%s%s", point, strcmp(path + skip, "/") == 0 ? "" : path + skip);
		return n > 0 && (size_t)n < size;
	}
	return false;
}

/* controller NULL: version 2. */
static bool find_folder(const char *controller, char *out, size_t size)
{
	static char mounts[262144], groups[8192]; /* one thread, or under the host's lock */
	return read_file("/proc/self/mountinfo", mounts, sizeof mounts) > 0 && read_file("/proc/self/cgroup", groups, sizeof groups) > 0 &&
	       cell__cgroup_locate(mounts, groups, controller, out, size);
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

/*
 * Finds the controllers that groups below this folder can have, and enables those that are off. False: not enough of them. The two required
 * ones are enabled together: alone, pids can be enabled in a group with processes too, which turns it into a threaded group.
 */
static bool controllers_on(const char *folder, bool on[CELL_CG_COUNT])
{
	char path[CELL_CGROUP_PATH + 64], text[1024] = "";
	snprintf(path, sizeof path, "%s/cgroup.subtree_control", folder);
	if (read_file(path, text, sizeof text) < 0)
		return false;
	if (!(has_word(text, "memory") && has_word(text, "pids")) && write_in(folder, "cgroup.subtree_control", "+memory +pids") < 0)
		return false;
	on[CELL_CG_MEMORY] = on[CELL_CG_PIDS] = true;
	/* Not always delegated. */
	on[CELL_CG_CPU] = has_word(text, "cpu") || write_in(folder, "cgroup.subtree_control", "+cpu") == 0;
	return true;
}

/*
 * Whether we started it; or whether it is a spawner (which has no parent of ours) or below one: its host is in the same group, ours or
 * not.
 */
static bool is_ours(pid_t pid)
{
	for (int i = 0; i < ANCESTORS && pid > 0 && pid != getpid(); i++) {
		char path[64], text[512];
		int parent = 0;
		snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
		const char *end = read_file(path, text, sizeof text) > 0 ? strrchr(text, ')') : NULL;
		if (!end || sscanf(end + 1, " %*c %d", &parent) != 1)
			return false;
		if (strstr(text, " (" SPAWNER_COMM ") "))
			return true;
		pid = parent;
	}
	return pid > 0 && pid == getpid();
}

/* False, with nothing moved, if another program's process is in it. */
static bool move_all(const char *from, const char *to)
{
	char path[CELL_CGROUP_PATH + 64], *end;
	static char text[16384];
	snprintf(path, sizeof path, "%s/cgroup.procs", from);
	ssize_t n = read_file(path, text, sizeof text);
	if (n < 0 || (size_t)n == sizeof text - 1)
		return false;
	for (const char *at = text; *at; at = *end ? end + 1 : end)
		if (!is_ours((pid_t)strtol(at, &end, 10)))
			return false;
	for (const char *at = text; *at; at = *end ? end + 1 : end) {
		char number[16];
		snprintf(number, sizeof number, "%ld", strtol(at, &end, 10));
		int rc = write_in(to, "cgroup.procs", number);
		if (rc < 0 && rc != -ESRCH)
			return false;
	}
	return true;
}

/* Moves us and all processes that we started into a group below ours, so that ours has no processes of its own. */
static bool step_aside(const char *folder, bool on[CELL_CG_COUNT])
{
	char path[CELL_CGROUP_PATH + 64], text[1024];
	snprintf(path, sizeof path, "%s/cgroup.controllers", folder);
	if (access(folder, W_OK) < 0 || read_file(path, text, sizeof text) < 0 || !has_word(text, "memory") || !has_word(text, "pids"))
		return false;
	snprintf(path, sizeof path, "%s/" HOST_GROUP, folder);
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return false;
	bool done = false;
	/* A process started in between is in the old group. */
	for (int i = 0; i < MOVE_TRIES && !done && move_all(folder, path); i++)
		done = controllers_on(folder, on);
	if (!done) {
		(void)move_all(path, folder);
		(void)rmdir(path);
	} else if (on[CELL_CG_CPU]) {
		(void)write_in(path, "cpu.weight", HOST_WEIGHT);
	}
	return done;
}

/* systemd marks groups that it has delegated, and does not touch them. */
static bool is_delegated(const char *folder)
{
	char mark[8];
	return getxattr(folder, "user.delegate", mark, sizeof mark) > 0 || getxattr(folder, "trusted.delegate", mark, sizeof mark) > 0;
}

/* The group above; false at the root of the mounted tree. */
static bool go_up(char *folder)
{
	char path[CELL_CGROUP_PATH + 64];
	struct stat st;
	char *slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return false;
	*slash = '\0';
	snprintf(path, sizeof path, "%s/cgroup.subtree_control", folder);
	return stat(path, &st) == 0;
}

static bool find_v2(struct cell_cgroups *groups)
{
	char own[CELL_CGROUP_PATH], folder[CELL_CGROUP_PATH];
	bool on[CELL_CG_COUNT], found = false;
	if (!find_folder(NULL, own, sizeof own))
		return false;
	memcpy(folder, own, sizeof folder);
	if (is_delegated(own))
		found = step_aside(own, on);
	for (int i = 0; i < LEVELS_UP && !found && (i == 0 || go_up(folder)); i++)
		found = access(folder, W_OK) == 0 && controllers_on(folder, on) && can_make(folder);
	if (!found) {
		memcpy(folder, own, sizeof folder);
		found = step_aside(own, on);
	}
	for (int c = 0; found && c < CELL_CG_COUNT; c++)
		snprintf(groups->parent[c], sizeof groups->parent[c], "%s", on[c] ? folder : "");
	if (found)
		groups->version = 2;
	return found;
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
	/* Before Linux 5.15 there is no such file, and half is the minimum. */
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
		snprintf(text, sizeof text, "%llu %llu", (unsigned long long)(limits->cpu_percent * CPU_PERIOD_US / 100), CPU_PERIOD_US);
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

void cell__cgroup_close(const struct cell_cgroup *group)
{
	/* Either may be missing; the caller kills the remaining processes in any case. */
	if (group->path[CELL_CG_PIDS][0])
		(void)write_in(group->path[CELL_CG_PIDS], "pids.max", "0");
	for (int c = 0; group->version == 2 && c < CELL_CG_COUNT; c++)
		if (group->path[c][0])
			(void)write_in(group->path[c], "cgroup.kill", "1");
}

int cell__cgroup_open_join(const struct cell_cgroup *group, int fds[static CELL_CG_COUNT])
{
	int n = 0;
	for (int c = 0; c < CELL_CG_COUNT && !(group->version == 2 && n > 0); c++) {
		char path[CELL_CGROUP_PATH + 128];
		if (!group->path[c][0])
			continue;
		snprintf(path, sizeof path, "%s/%s", group->path[c], group->version == 1 ? "tasks" : "cgroup.procs");
		fds[n] = open(path, O_WRONLY | O_CLOEXEC);
		if (fds[n] < 0) {
			int error = errno;
			while (n > 0)
				close(fds[--n]);
			errno = error;
			return -1;
		}
		n++;
	}
	return n;
}

int cell__cgroup_join_by(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (write(fds[i], "0", 1) < 0)
			return -1;
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
		/* Before Linux 5.19 the peak is not recorded: a process killed for its memory had reached the limit. */
		if (ret_usage->memory_peak == 0)
			ret_usage->memory_peak = ret_usage->oom_kills > 0 ? ret_usage->memory_max
									  : read_number_in(memory, "memory.current");
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

bool cell__cgroup_is_empty(const struct cell_cgroup *group)
{
	char path[CELL_CGROUP_PATH + 128], text[32];
	if (!group->path[CELL_CG_PIDS][0])
		return false;
	snprintf(path, sizeof path, "%s/pids.current", group->path[CELL_CG_PIDS]);
	return read_file(path, text, sizeof text) > 0 && strcmp(text, "0\n") == 0;
}

int cell__cgroup_remove(const struct cell_cgroup *group)
{
	int rc = 0;
	for (int c = 0; c < CELL_CG_COUNT; c++)
		if (group->path[c][0] && rmdir(group->path[c]) < 0 && errno != ENOENT)
			rc = -errno;
	return rc;
}
