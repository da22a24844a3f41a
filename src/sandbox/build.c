#define _GNU_SOURCE
#include "sandbox/builder.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/landlock.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/hole.h"
#include "sandbox/seccomp.h"

#define ROOT_BYTES (16ull << 20)
#define TREES_BYTES (1ull << 20)
#define HIDING_BYTES (1ull << 20) /* of a folder made for the neighbours of a hidden file: names only */

#define ALL_NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

/* Landlock's rights by number: older headers lack the last ones. */
#define FS_EXECUTE (1ull << 0)
#define FS_WRITE_FILE (1ull << 1)
#define FS_READ_FILE (1ull << 2)
#define FS_READ_DIR (1ull << 3)
#define FS_MAKE_CHAR (1ull << 6)
#define FS_MAKE_BLOCK (1ull << 11)
#define FS_TRUNCATE (1ull << 14)
#define FS_IOCTL_DEV (1ull << 15)
#define FS_READ (FS_EXECUTE | FS_READ_FILE | FS_READ_DIR)
#define NET_BOTH 3ull
#define SCOPE_BOTH 3ull

#ifdef CELL_PLANTED_HOLES
static bool is_left_out(enum cell_plan_op op)
{
	static const char *const names[CELL_OP_PLACE + 1] = {
		[CELL_OP_SECCOMP] = "seccomp",
		[CELL_OP_RESTRICT] = "landlock",
		[CELL_OP_CAPS] = "caps",
		[CELL_OP_BOUNDS] = "bounds",
		[CELL_OP_DETACH] = "detach",
		[CELL_OP_SEAL] = "seal",
		[CELL_OP_CLOSE_FDS] = "fds",
		[CELL_OP_MASK] = "mask",
		[CELL_OP_RLIMIT] = "rlimits",
		[CELL_OP_NO_NEW_PRIVS] = "nnp",
		[CELL_OP_NOT_DUMPABLE] = "dumpable",
		[CELL_OP_LANDLOCK] = "landlock",
		[CELL_OP_ALLOW] = "landlock",
		[CELL_OP_GUARD] = "guard",
	};
	return names[op] && is_hole(names[op]);
}
#else
#define is_left_out(op) false
#endif

/* Room for each entry of the policy twice: its name, and the target of that name. */
static void list_hidden(struct cell__builder *b, const struct cell__sandbox_policy *policy)
{
	size_t n = 0;
	if (policy->hide.count == 0)
		return;
	b->hidden = cell__alloc(2 * policy->hide.count + 1, sizeof *b->hidden);
	b->failed |= !b->hidden;
	for (size_t i = 0; b->hidden && i < policy->hide.count; i++) {
		char parent[PATH_MAX], real[PATH_MAX];
		const char *path = policy->hide.items[i], *name = strrchr(path, '/');
		struct cell__buf full = CELL_BUF_INIT;
		snprintf(parent, sizeof parent, "%.*s", (int)(name - path), path);
		/* A folder that is not there yet is hidden by the name it will have. */
		const char *folder = realpath(parent[0] ? parent : "/", real) ? real : parent;
		b->failed |= cell__buf_printf(&full, "%s%s", strcmp(folder, "/") == 0 ? "" : folder, name) < 0;
		b->hidden[n] = cell__buf_take(&full);
		n += b->hidden[n] != NULL;
		if (realpath(path, real) && (n == 0 || strcmp(b->hidden[n - 1], real) != 0)) {
			b->hidden[n] = cell__strdup(real);
			b->failed |= !b->hidden[n];
			n += b->hidden[n] != NULL;
		}
	}
}

static void free_hidden(struct cell__builder *b)
{
	cell__strings_free(cell__take_ptr(b->hidden));
}

void cell__builder_begin(struct cell__builder *b, struct cell__buf *out)
{
	struct cell_plan head = { .magic = CELL_PLAN_MAGIC, .version = CELL_PLAN_VERSION };
	*b = (struct cell__builder){ .out = out, .start = out->size };
	b->failed = cell__buf_add(out, &head, sizeof head) < 0;
}

struct cell_plan *cell__builder_head(struct cell__builder *b)
{
	return (struct cell_plan *)(b->out->data + b->start);
}

void cell__builder_step_bytes(struct cell__builder *b, enum cell_plan_stage stage, enum cell_plan_op op, unsigned flags, uint64_t arg,
			      uint64_t arg2, const void *a, size_t a_size, const char *text)
{
	static const char zeros[8];
	size_t b_size = strlen(text), size = sizeof(struct cell_plan_step) + a_size + 1 + b_size + 1;
	size_t pad = (8 - size % 8) % 8;
	struct cell_plan_step made = {
		.bytes = (uint32_t)(size + pad),
		.op = (uint16_t)op,
		.stage = (uint8_t)stage,
		.flags = (uint8_t)flags,
		.arg = arg,
		.arg2 = arg2,
		.a_size = (uint32_t)a_size,
		.b_size = (uint32_t)b_size,
	};
	if (b->failed || is_left_out(op))
		return;
	int rc = cell__buf_add(b->out, &made, sizeof made) | cell__buf_add(b->out, a, a_size) | cell__buf_add(b->out, zeros, 1) |
		 cell__buf_add(b->out, text, b_size + 1) | cell__buf_add(b->out, zeros, pad);
	b->failed = rc < 0;
	b->n_steps++;
}

void cell__builder_step(struct cell__builder *b, enum cell_plan_stage stage, enum cell_plan_op op, unsigned flags, uint64_t arg,
			uint64_t arg2, const char *a, const char *text)
{
	cell__builder_step_bytes(b, stage, op, flags, arg, arg2, a, strlen(a), text);
}

int cell__builder_finish(struct cell__builder *b, struct cell_error *err)
{
	bool hides = b->hidden != NULL;
	free_hidden(b);
	if (b->failed)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
	if (b->n_steps > CELL_PLAN_MAX_STEPS && hides)
		return cell_fail(err, CELL_E_LIMIT, 0,
				 "hiding these paths takes more than the %u steps that a sandbox may have, because every file beside "
				 "a hidden one takes a step; move the hidden files into a separate folder",
				 CELL_PLAN_MAX_STEPS);
	if (b->out->size - b->start > CELL_PLAN_MAX_BYTES || b->n_steps > CELL_PLAN_MAX_STEPS)
		return cell_fail(err, CELL_E_LIMIT, 0, "a sandbox may have at most %u steps, this one needs %u", CELL_PLAN_MAX_STEPS,
				 b->n_steps);
	cell__builder_head(b)->bytes = (uint32_t)(b->out->size - b->start);
	cell__builder_head(b)->n_steps = b->n_steps;
	return 0;
}

#define JAIL(...) cell__builder_step(b, CELL_STAGE_JAIL, __VA_ARGS__)
#define KERNEL(...) cell__builder_step(b, CELL_STAGE_KERNEL, __VA_ARGS__)
#define EARLY_STAGE CELL_STAGE_EARLY
#define EARLY(...) cell__builder_step(b, CELL_STAGE_EARLY, __VA_ARGS__)

/* ---- the file system ---- */

static void show_without_hidden(struct cell__builder *b, enum cell_plan_stage stage, const char *folder, unsigned flags);

static void bind_as(struct cell__builder *b, enum cell_plan_stage stage, const char *from, const char *to, unsigned flags)
{
	if (is_hole("read-only"))
		flags &= ~CELL_BIND_READ_ONLY;
	for (char **hidden = is_hole("hidden") ? NULL : b->hidden; hidden && *hidden; hidden++) {
		if (strcmp(*hidden, from) == 0)
			return;
		if (cell__path_is_under(*hidden, from)) {
			show_without_hidden(b, stage, from, flags);
			return;
		}
	}
	cell__builder_step(b, stage, CELL_OP_BIND, flags, 0, 0, from, to);
}

/* Files of the caller, or that the caller wants to show: if the sandbox has its own uid, it sees them as its own. */
void cell__builder_bind_own(struct cell__builder *b, enum cell_plan_stage stage, const char *path, unsigned flags)
{
	bind_as(b, stage, path, path, flags | (b->mapped ? CELL_BIND_MAPPED : 0));
}

/* One name of a folder that has hidden ones in it. */
static void show_name(struct cell__builder *b, enum cell_plan_stage stage, const char *path, unsigned flags)
{
	char target[PATH_MAX];
	ssize_t n = readlink(path, target, sizeof target - 1);
	if (n < 0) {
		/* It may be gone by the time that this is done. */
		bind_as(b, stage, path, path, flags | CELL_STEP_OPTIONAL);
		return;
	}
	target[n] = '\0';
	for (char **hidden = b->hidden; *hidden; hidden++)
		if (strcmp(*hidden, path) == 0)
			return;
	cell__builder_step(b, stage, CELL_OP_LINK, CELL_STEP_OPTIONAL, 0, 0, target, path);
}

/*
 * A mount over a hidden file would vanish as soon as the host renames another file to its name (as an editor does when it saves). So a
 * folder with a hidden file is replaced by a folder of our own, in which everything else is shown: it never contains the hidden name, nor
 * files that the host puts there later.
 */
static void show_without_hidden(struct cell__builder *b, enum cell_plan_stage stage, const char *folder, unsigned flags)
{
	DIR *dir = opendir(folder);
	cell__builder_step(b, stage, CELL_OP_TMPFS, flags & CELL_STEP_OPTIONAL, HIDING_BYTES, 0755, folder, "");
	for (struct dirent *entry; dir && b->n_steps <= CELL_PLAN_MAX_STEPS && (entry = readdir(dir));) {
		CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (cell__buf_printf(&path, "%s/%s", folder, entry->d_name) < 0)
			b->failed = true;
		else
			show_name(b, stage, path.data, flags);
	}
	if (dir)
		closedir(dir);
	cell__builder_step(b, stage, CELL_OP_SEAL, flags & CELL_STEP_OPTIONAL, 0, 0, folder, "");
}

bool cell__builder_is_system(const char *path)
{
	static const char *const folders[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32" };
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		if (cell__path_is_under(path, folders[i]))
			return true;
	return false;
}

/* Folders that must never be shown completely. */
static bool is_too_much(const char *path)
{
	static const char *const exact[] = { "/", "/etc", "/proc", "/sys", "/dev", "/run", "/var", "/home", "/root", "/boot" };
	for (size_t i = 0; i < sizeof exact / sizeof *exact; i++)
		if (strcmp(path, exact[i]) == 0)
			return true;
	return cell__path_is_under(path, "/proc") || cell__path_is_under(path, "/sys") || cell__path_is_under(path, "/dev");
}

/* Shows a path as the host resolves it, and a link at the name it is known by. */
static void link_known(struct cell__builder *b, enum cell_plan_stage stage, const char *path)
{
	char real[PATH_MAX];
	if (realpath(path, real) && strcmp(path, real) != 0 && !cell__builder_is_system(path))
		cell__builder_step(b, stage, CELL_OP_LINK, CELL_STEP_OPTIONAL, 0, 0, real, path);
}

static void bind_known(struct cell__builder *b, enum cell_plan_stage stage, const char *path, unsigned flags)
{
	char real[PATH_MAX];
	if (!realpath(path, real)) {
		/* It no longer exists, so there is nothing to show. If the policy asks for it, the receipt says that it is missing. */
		if (stage == CELL_STAGE_JAIL)
			cell__builder_bind_own(b, stage, path, flags | CELL_STEP_OPTIONAL);
		return;
	}
	if (!(cell__builder_is_system(real) && (flags & CELL_BIND_READ_ONLY)))
		cell__builder_bind_own(b, stage, real, flags);
	link_known(b, stage, path);
}

static void system_folders(struct cell__builder *b)
{
	static const char *const links[] = { "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32" };
	bind_as(b, CELL_STAGE_JAIL, "/usr", "/usr", CELL_BIND_READ_ONLY);
	for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
		struct stat st;
		char target[PATH_MAX];
		if (lstat(links[i], &st) < 0)
			continue;
		ssize_t n = S_ISLNK(st.st_mode) ? readlink(links[i], target, sizeof target - 1) : -1;
		if (n > 0) {
			target[n] = '\0';
			JAIL(CELL_OP_LINK, 0, 0, 0, target, links[i]);
		} else if (S_ISDIR(st.st_mode)) {
			bind_as(b, CELL_STAGE_JAIL, links[i], links[i], CELL_BIND_READ_ONLY);
		}
	}
	static const char *const settings[] = {
		"/etc/alternatives", "/etc/ca-certificates", "/etc/ca-certificates.conf",
		"/etc/fonts",        "/etc/ld.so.cache",     "/etc/ld.so.conf",
		"/etc/ld.so.conf.d", "/etc/localtime",       "/etc/magic",
		"/etc/mime.types",   "/etc/os-release",      "/etc/pki/tls/certs",
		"/etc/protocols",    "/etc/python3",         "/etc/services",
		"/etc/ssl/certs",    "/etc/ssl/openssl.cnf", "/etc/terminfo",
		"/etc/timezone",
	};
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
		if (access(settings[i], F_OK) == 0)
			bind_as(b, CELL_STAGE_JAIL, settings[i], settings[i], CELL_BIND_READ_ONLY);
}

static void own_settings(struct cell__builder *b, const struct cell__sandbox_policy *policy)
{
	char text[512];
	unsigned uid = geteuid(), gid = getegid();
	snprintf(text, sizeof text, "%ssandbox:x:%u:%u:sandbox:" CELL_PLAN_HOME ":/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		 uid ? "root:x:0:0:root:/:/bin/false\n" : "", uid, gid);
	JAIL(CELL_OP_FILE, 0, 0, 0, "/etc/passwd", text);
	snprintf(text, sizeof text, "%ssandbox:x:%u:\nnogroup:x:65534:\n", gid ? "root:x:0:\n" : "", gid);
	JAIL(CELL_OP_FILE, 0, 0, 0, "/etc/group", text);
	JAIL(CELL_OP_FILE, 0, 0, 0, "/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n");
	JAIL(CELL_OP_FILE, 0, 0, 0, "/etc/hostname", "sandbox\n");
	JAIL(CELL_OP_FILE, 0, 0, 0, "/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n");
	if (policy->network == CELL_NET_FULL && access("/etc/resolv.conf", F_OK) == 0)
		bind_as(b, CELL_STAGE_JAIL, "/etc/resolv.conf", "/etc/resolv.conf", CELL_BIND_READ_ONLY);
	else
		JAIL(CELL_OP_FILE, 0, 0, 0, "/etc/resolv.conf", "");
}

static void devices(struct cell__builder *b, const struct cell__sandbox_policy *policy)
{
	static const char *const names[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		bind_as(b, CELL_STAGE_JAIL, names[i], names[i], CELL_BIND_DEVICES | CELL_BIND_NO_EXEC);
	JAIL(CELL_OP_LINK, 0, 0, 0, "/proc/self/fd", "/dev/fd");
	JAIL(CELL_OP_LINK, 0, 0, 0, "/proc/self/fd/0", "/dev/stdin");
	JAIL(CELL_OP_LINK, 0, 0, 0, "/proc/self/fd/1", "/dev/stdout");
	JAIL(CELL_OP_LINK, 0, 0, 0, "/proc/self/fd/2", "/dev/stderr");
	JAIL(CELL_OP_TMPFS, 0, policy->tmp_bytes, 01777, "/dev/shm", "");
	JAIL(CELL_OP_DIR, 0, 0755, 0, "/dev/pts", "");
	JAIL(CELL_OP_PTS, CELL_STEP_OPTIONAL, 0, 0, "/dev/pts", "");
	JAIL(CELL_OP_LINK, 0, 0, 0, "pts/ptmx", "/dev/ptmx");
}

/*
 * Files in /proc that describe or change the whole machine and help an attacker. /proc/sys matters most: its files trust the host's root by
 * number only. These are hidden even if they do not exist yet.
 */
static const char *const masked[] = {
	"acpi",         "asound",      "bus",      "config.gz",   "driver",     "fs",         "irq",           "kallsyms",   "kcore",
	"key-users",    "keys",        "kmsg",     "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "modules",    "mtrr",
	"pagetypeinfo", "sched_debug", "scsi",     "slabinfo",    "swaps",      "sys",        "sysrq-trigger", "sysvipc",    "timer_list",
	"timer_stats",  "vmallocinfo", "zoneinfo", "iomem",       "ioports",    "interrupts", "diskstats",     "partitions",
};

/* Files that programs cannot work without, and that reveal little. */
static const char *const shown[] = {
	"cpuinfo", "filesystems", "loadavg", "meminfo", "mounts", "net", "self", "stat", "thread-self", "uptime", "version", "vmstat",
};

static bool is_listed(const char *name, const char *const *list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(name, list[i]) == 0)
			return true;
	return false;
}

static void mask_proc(struct cell__builder *b, const char *name)
{
	char path[sizeof "/proc/" + NAME_MAX];
	snprintf(path, sizeof path, "/proc/%s", name);
	JAIL(CELL_OP_MASK, 0, 1, 0, path, "");
}

/*
 * Shows only processes if no more is needed; else hides all present names except the list above. If the kernel cannot do that (before Linux
 * 5.8), the first step is skipped and the rest covers both cases.
 */
static void own_proc(struct cell__builder *b, const struct cell__sandbox_policy *policy)
{
	JAIL(CELL_OP_DIR, 0, 0755, 0, "/proc", "");
	if (!policy->shows_machine && !is_hole("subset") && !is_hole("mask"))
		JAIL(CELL_OP_PROC, CELL_STEP_OPTIONAL, CELL_PROC_PROCESSES, 0, "/proc", "");
	JAIL(CELL_OP_PROC, CELL_STEP_OPTIONAL, CELL_PROC_WHOLE, 0, "/proc", "");
	for (size_t i = 0; i < sizeof masked / sizeof *masked; i++)
		mask_proc(b, masked[i]);
	DIR *dir = opendir("/proc");
	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (entry->d_name[0] != '.' && strspn(entry->d_name, "0123456789") != strlen(entry->d_name) &&
		    !is_listed(entry->d_name, masked, sizeof masked / sizeof *masked) &&
		    !is_listed(entry->d_name, shown, sizeof shown / sizeof *shown))
			mask_proc(b, entry->d_name);
	if (dir)
		closedir(dir);
	/* Files there are not renamed. */
	for (size_t i = 0; i < policy->hide.count; i++)
		if (cell__path_is_under(policy->hide.items[i], "/proc"))
			JAIL(CELL_OP_MASK, 0, 0, 0, policy->hide.items[i], "");
}

/* A root with the system's folders and the interpreter's, without /proc. */
void cell__builder_root(struct cell__builder *b, const struct cell__sandbox_policy *policy, const struct cell__machine *machine,
			const struct cell__plan_env *env)
{
	JAIL(CELL_OP_ROOT, 0, ROOT_BYTES, 0, "", "");
	/* One mount, so that all goes at once: the first of them, or one for all. */
	if (b->mapped && machine->trees[0] && strcmp(machine->trees[0], "/") != 0)
		JAIL(CELL_OP_TMPFS, 0, TREES_BYTES, 0700, CELL_PLAN_MAPPED_ROOT, "");
	for (size_t i = 0; b->mapped && machine->trees[i]; i++)
		JAIL(CELL_OP_TREE, 0, 0, 0, machine->trees[i], "");
	JAIL(CELL_OP_TMPFS, 0, policy->tmp_bytes, 01777, "/tmp", "");
	system_folders(b);
	own_settings(b, policy);
	devices(b, policy);
	JAIL(CELL_OP_DIR, 0, 0755, 0, "/run", "");
	JAIL(CELL_OP_LINK, 0, 0, 0, "/tmp", "/var/tmp");
	for (size_t i = 0; env->folders && env->folders[i]; i++)
		cell__builder_bind_own(b, CELL_STAGE_JAIL, env->folders[i], CELL_BIND_READ_ONLY);
	for (size_t i = 0; env->links && env->links[i]; i += 2)
		JAIL(CELL_OP_LINK, CELL_STEP_OPTIONAL, 0, 0, env->links[i + 1], env->links[i]);
}

bool cell__policy_protects(const struct cell__sandbox_policy *policy)
{
	for (size_t i = 0; i < policy->unprotect.count; i++)
		if (strcmp(policy->unprotect.items[i], CELL_UNPROTECT_ALL) == 0)
			return false;
	return true;
}

static bool can_guard(const struct cell__machine *machine)
{
	return machine->level == CELL_LEVEL_FULL && machine->guards;
}

bool cell__plan_guards(const struct cell__sandbox_policy *policy, const struct cell__machine *machine)
{
	return can_guard(machine) && cell__policy_protects(policy) &&
	       (cell__workspace_is_writable(policy->workspace) || policy->write.count > 0);
}

static void jail_stage(struct cell__builder *b, const struct cell__sandbox_policy *policy, const struct cell__machine *machine,
		       const struct cell__plan_env *env)
{
	unsigned flags = ALL_NAMESPACES & ~(policy->network == CELL_NET_FULL ? (unsigned)CLONE_NEWNET : 0u);
	if (is_hole("net"))
		flags &= ~(unsigned)CLONE_NEWNET;
	if (is_hole("ipc"))
		flags &= ~(unsigned)CLONE_NEWIPC;
	if (is_hole("cgroup"))
		flags &= ~(unsigned)CLONE_NEWCGROUP;
	JAIL(CELL_OP_NAMESPACES, 0, flags, 0, "", "");
	JAIL(CELL_OP_IDS, b->mapped ? CELL_BIND_MAPPED : 0, geteuid(), getegid(), "", "");
	cell__builder_root(b, policy, machine, env);
	own_proc(b, policy);
	if (cell__plan_guards(policy, machine))
		JAIL(CELL_OP_GUARD_SOCKET, 0, 0, 0, "", "");
	for (size_t i = 0; i < policy->read.count; i++)
		bind_known(b, CELL_STAGE_JAIL, policy->read.items[i], CELL_BIND_READ_ONLY);
	for (size_t i = 0; i < policy->write.count; i++)
		bind_known(b, CELL_STAGE_JAIL, policy->write.items[i], 0);
	if (flags & CLONE_NEWNET)
		JAIL(CELL_OP_LOOPBACK, 0, 0, 0, "", "");
	if (policy->network == CELL_NET_ALLOW || policy->network == CELL_NET_DEPS)
		JAIL(CELL_OP_LISTEN, 0, CELL_EGRESS_PORT, 0, "", "");
	JAIL(CELL_OP_HOSTNAME, 0, 0, 0, "sandbox", "");
	if (!b->failed)
		cell__builder_head(b)->clone_flags = flags;
}

/* ---- the process ---- */

static void rlimit(struct cell__builder *b, int resource, uint64_t value)
{
	KERNEL(CELL_OP_RLIMIT, 0, (uint64_t)resource, value, "", "");
}

static void rlimits(struct cell__builder *b, const struct cell__sandbox_policy *policy, const struct cell__machine *machine)
{
	rlimit(b, RLIMIT_CORE, 0);
	if (policy->files)
		rlimit(b, RLIMIT_NOFILE, policy->files);
	if (policy->file_size_bytes)
		rlimit(b, RLIMIT_FSIZE, policy->file_size_bytes);
	if (policy->pids)
		rlimit(b, RLIMIT_NPROC, policy->pids + 1);
	if (policy->cpu_time_ms)
		rlimit(b, RLIMIT_CPU, (policy->cpu_time_ms + 999) / 1000);
	if (policy->memory_bytes && !machine->cgroups.parent[CELL_CG_MEMORY][0])
		rlimit(b, RLIMIT_DATA, policy->memory_bytes); /* of each process: the best there is without a group */
}

static uint64_t rights_of_abi(int abi)
{
	return abi >= 5 ? (1ull << 16) - 1 : abi >= 3 ? (1ull << 15) - 1 : abi >= 2 ? (1ull << 14) - 1 : (1ull << 13) - 1;
}

/* The new root's /var/tmp is a link to /tmp, and a session's rules follow no links. */
static const char *inside(const struct cell__builder *b, const char *path)
{
	return b->own_root && cell__path_is_under(path, "/var/tmp") ? path + strlen("/var") : path;
}

static void allow(struct cell__builder *b, enum cell_plan_stage stage, const char *path, uint64_t rights)
{
	if (b->rights)
		cell__builder_step(b, stage, CELL_OP_ALLOW, 0, rights & b->rights, 0, inside(b, path), "");
}

#define FS_WRITE (b->rights & ~(FS_MAKE_CHAR | FS_MAKE_BLOCK | FS_IOCTL_DEV))

static void allow_known(struct cell__builder *b, enum cell_plan_stage stage, const char *path, uint64_t rights)
{
	char real[PATH_MAX];
	if (realpath(path, real) && !(cell__builder_is_system(real) && rights == FS_READ))
		allow(b, stage, real, rights);
}

static void landlock(struct cell__builder *b, const struct cell__sandbox_policy *policy, const struct cell__machine *machine,
		     const struct cell__plan_env *env, bool full)
{
	static const char *const seen[] = { "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32" };
	static const char *const settings[] = {
		"/etc/alternatives", "/etc/ca-certificates", "/etc/fonts",         "/etc/ld.so.cache", "/etc/ld.so.conf",
		"/etc/ld.so.conf.d", "/etc/localtime",       "/etc/mime.types",    "/etc/os-release",  "/etc/pki/tls/certs",
		"/etc/protocols",    "/etc/python3",         "/etc/services",      "/etc/ssl/certs",   "/etc/ssl/openssl.cnf",
		"/etc/terminfo",     "/etc/timezone",        "/etc/nsswitch.conf", "/etc/passwd",      "/etc/group",
		"/etc/hosts",        "/etc/resolv.conf",     "/proc/cpuinfo",      "/proc/meminfo",    "/proc/stat",
		"/proc/self",        "/proc/uptime",         "/proc/loadavg",      "/proc/version",    "/proc/filesystems",
	};
	if (machine->landlock_abi < 1)
		return;
	b->rights = rights_of_abi(machine->landlock_abi);
	uint64_t net = !full && machine->landlock_abi >= 4 && policy->network != CELL_NET_FULL ? NET_BOTH : 0;
	uint64_t scope = machine->landlock_abi >= 6 ? SCOPE_BOTH : 0;
	/* Old kernels accept the network member only together with the members before it. */
	if (scope && machine->landlock_abi < 6)
		scope = 0;
	EARLY(CELL_OP_LANDLOCK, 0, b->rights, net | scope << 32, "", "");
	for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
		char real[PATH_MAX];
		/* If they are links into the first one, its rule covers them. */
		if (i == 0 || (realpath(seen[i], real) && !cell__path_is_under(real, seen[0])))
			allow(b, EARLY_STAGE, seen[i], FS_READ);
	}
	if (full) {
		/* The root contains only objects that the plan put there; names may be listed, contents are granted one by one. */
		allow(b, EARLY_STAGE, "/", FS_READ_DIR);
		allow(b, EARLY_STAGE, "/etc", FS_READ_FILE | FS_READ_DIR);
		allow(b, EARLY_STAGE, "/proc", FS_READ_FILE | FS_READ_DIR);
		allow(b, EARLY_STAGE, "/tmp", FS_WRITE);
		allow(b, EARLY_STAGE, "/dev/shm", FS_WRITE);
		allow(b, EARLY_STAGE, "/dev/pts", FS_READ_FILE | FS_WRITE_FILE | FS_READ_DIR | FS_IOCTL_DEV);
	} else {
		for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
			allow(b, EARLY_STAGE, settings[i], FS_READ_FILE | FS_READ_DIR);
	}
	static const char *const nodes[] = { "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom" };
	for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
		allow(b, EARLY_STAGE, nodes[i], FS_READ_FILE | FS_WRITE_FILE | FS_TRUNCATE | FS_IOCTL_DEV);
	for (size_t i = 0; env->folders && env->folders[i]; i++)
		allow(b, EARLY_STAGE, env->folders[i], FS_READ);
	for (size_t i = 0; i < policy->read.count; i++)
		allow_known(b, EARLY_STAGE, policy->read.items[i], FS_READ);
	for (size_t i = 0; i < policy->write.count; i++)
		allow_known(b, EARLY_STAGE, policy->write.items[i], FS_WRITE);
}

static int filters(struct cell__builder *b, const struct cell__sandbox_policy *policy, bool full, int abi, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf list = CELL_BUF_INIT, refusals = CELL_BUF_INIT, last = CELL_BUF_INIT;
	/* Without a network namespace, access to a part of the network cannot be granted: it is all or nothing. */
	struct cell__filter_options options = { .internet = full || policy->network == CELL_NET_FULL || is_hole("lower-network"),
						.shared = !full && !is_hole("lower-sockets"),
						.cuts = !full && abi < 3,
						.watch = policy->shows_machine || is_hole("watch") };
	if (cell__filter_refusals(&options, &refusals, err) < 0 || cell__filter_build(&options, &list, err) < 0 ||
	    cell__filter_last(&last, err) < 0)
		return -1;
	cell__builder_step_bytes(b, CELL_STAGE_EARLY, CELL_OP_SECCOMP, 0, 0, 0, refusals.data, refusals.size, "refused arguments");
	cell__builder_step_bytes(b, CELL_STAGE_EARLY, CELL_OP_SECCOMP, 0, 1, 0, list.data, list.size, "allowed calls");
	cell__builder_step_bytes(b, CELL_STAGE_KERNEL, CELL_OP_SECCOMP, 0, 2, 0, last.data, last.size, "no more mounts, no more keys");
	return 0;
}

/* The last step, so that the others need not go through it. */
static int guard(struct cell__builder *b, const struct cell__sandbox_policy *policy, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf filter = CELL_BUF_INIT, names = CELL_BUF_INIT;
	if (cell__filter_guard(&filter, err) < 0)
		return -1;
	for (size_t i = 0; i < policy->unprotect.count; i++)
		b->failed |= cell__buf_printf(&names, "%s/", policy->unprotect.items[i]) < 0;
	cell__builder_step_bytes(b, CELL_STAGE_KERNEL, CELL_OP_GUARD, 0, 0, 0, filter.data, filter.size, names.data ? names.data : "");
	return 0;
}

static int kernel_stage(struct cell__builder *b, const struct cell__sandbox_policy *policy, const struct cell__machine *machine,
			const struct cell__plan_env *env, bool full, struct cell_error *err)
{
	/* Early: steps that do not depend on the session and do not prevent later steps. */
	EARLY(CELL_OP_CLOSE_FDS, 0, 0, 0, "", "");
	EARLY(CELL_OP_SESSION_KEYS, CELL_STEP_OPTIONAL, 0, 0, "", "");
	EARLY(CELL_OP_NO_NEW_PRIVS, 0, 0, 0, "", "");
	/* Without a user namespace only root may do this; other users gain nothing by exec either, because they cannot gain privileges. */
	EARLY(CELL_OP_BOUNDS, full ? 0 : CELL_STEP_OPTIONAL, 0, 0, "", "");
	landlock(b, policy, machine, env, full);
	if (full) {
		KERNEL(CELL_OP_SESSION, 0, CELL_STAGE_SESSION_FILES, 0, "", "");
		KERNEL(CELL_OP_DETACH, 0, 0, 0, "", "");
		KERNEL(CELL_OP_SEAL, 0, 0, 0, "", "");
	}
	rlimits(b, policy, machine);
	if (machine->landlock_abi > 0) {
		KERNEL(CELL_OP_SESSION, 0, CELL_STAGE_SESSION_RULES, 0, "", "");
		KERNEL(CELL_OP_RESTRICT, 0, 0, 0, "", "");
	}
	KERNEL(CELL_OP_NOT_DUMPABLE, 0, 0, 0, "", "");
	KERNEL(CELL_OP_CAPS, 0, 0, 0, "", "");
	if (filters(b, policy, full, machine->landlock_abi, err) < 0)
		return -1;
	return cell__plan_guards(policy, machine) ? guard(b, policy, err) : 0;
}

static int refuse_entry(const struct cell__sandbox_policy *policy, const struct cell__sandbox_policy_list *list, size_t i, const char *why,
			struct cell_error *err)
{
	return cell_fail(err, CELL_E_INVALID, 0, "policy %.60s, line %d: %.70s %.80s", policy->name, list->lines[i], list->items[i], why);
}

/* Writable places are checked against all files that the host trusts (places.h). */
static int check_lists(const struct cell__sandbox_policy *policy, const struct cell__plan_env *env, struct cell_error *err)
{
	for (size_t i = 0; i < policy->hide.count; i++) {
		bool needed = cell__path_is_under("/usr", policy->hide.items[i]) || cell__path_is_under("/lib64", policy->hide.items[i]);
		for (char **folder = env->folders; folder && *folder; folder++)
			needed |= cell__path_lies_in(*folder, policy->hide.items[i]);
		if (needed)
			return refuse_entry(policy, &policy->hide, i, "cannot be hidden: no program runs without it", err);
		for (size_t w = 0; w < policy->write.count; w++)
			if (cell__path_lies_in(policy->hide.items[i], policy->write.items[w]))
				return refuse_entry(policy, &policy->hide, i, "cannot be hidden: it is inside a writable folder", err);
	}
	return 0;
}

bool cell__plan_holds_pids(const struct cell__machine *machine, bool mapped)
{
	return machine->cgroups.parent[CELL_CG_PIDS][0] || mapped || !machine->is_root;
}

int cell__plan_build(const struct cell__sandbox_policy *policy, const struct cell__machine *machine, const struct cell__plan_env *env,
		     uint64_t id, struct cell__buf *out, struct cell_error *err)
{
	struct cell__builder builder, *b = &builder;
	enum cell_plan_level level = machine->level;
	if (level < policy->level || level == CELL_LEVEL_UNAVAILABLE)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "this machine cannot provide sandbox level \"%s\" (best: %s): %.76s; %.105s",
				 cell__level_word(policy->level), cell__level_word(level), machine->reason, machine->advice);
	bool full = level == CELL_LEVEL_FULL;
	if (!full && (policy->network == CELL_NET_ALLOW || policy->network == CELL_NET_DEPS))
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "network: %s needs network namespaces: %.76s; %.105s",
				 cell__network_word(policy->network), machine->reason, machine->advice);
	if (!full && policy->hide.count)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "hide needs mount namespaces: %.76s; %.105s", machine->reason,
				 machine->advice);
	if (policy->pids && policy->pids_asked && !cell__plan_holds_pids(machine, machine->trees))
		return cell_fail(err, CELL_E_UNAVAILABLE, 0,
				 "the limit of %llu processes cannot be enforced: no pids cgroup can be used and root is exempt from "
				 "rlimits; run as another user or with a delegated pids cgroup, or set pids: none",
				 (unsigned long long)policy->pids);
	if (check_lists(policy, env, err) < 0)
		return -1;
	cell__builder_begin(b, out);
	b->mapped = full && machine->trees;
	list_hidden(b, policy);
	if (full)
		jail_stage(b, policy, machine, env);
	if (kernel_stage(b, policy, machine, env, full, err) < 0) {
		free_hidden(b);
		return -1;
	}
	if (!b->failed) {
		struct cell_plan *head = cell__builder_head(b);
		head->id = id;
		head->level = (uint32_t)level;
		head->uid = geteuid();
		head->gid = getegid();
		head->mapped = full ? cell__machine_mapped(machine) : CELL_MAPPED_NOT;
		snprintf(head->not_mapped, sizeof head->not_mapped, "%.*s", (int)sizeof head->not_mapped - 1,
			 full ? machine->no_trees : "");
		head->limits = (struct cell_plan_limits){
			.memory_bytes = policy->memory_bytes,
			.cpu_percent = policy->cpu_percent,
			.cpu_weight = CELL_PLAN_WEIGHT,
			.pids = policy->pids,
		};
	}
	return cell__builder_finish(b, err);
}

/* ---- the session's part ---- */

/*
 * Checks the policy's places against the folders of this session. The code controls everything in a writable folder: a mount over a file
 * there would vanish as soon as the host renames a file to that name.
 */
static int check_places(const struct cell__plan_session *session, struct cell_error *err)
{
	const struct cell__sandbox_policy *policy = session->policy;
	const char *workspace = session->cwd;
	if (session->mode == CELL_WORKSPACE_NONE)
		return 0;
	for (size_t i = 0; i < policy->hide.count; i++)
		if (cell__path_lies_in(workspace, policy->hide.items[i]))
			return refuse_entry(policy, &policy->hide, i, "cannot be hidden: the workspace is inside it", err);
	for (size_t i = 0; i < policy->write.count; i++)
		if (cell__path_lies_in(workspace, policy->write.items[i]))
			return refuse_entry(policy, &policy->write, i,
					    "cannot be writable: the workspace is inside it; use workspace: rw instead", err);
	if (!cell__workspace_is_writable(session->mode))
		return 0;
	for (size_t i = 0; i < policy->write.count; i++)
		if (cell__path_lies_in(policy->write.items[i], workspace))
			return refuse_entry(policy, &policy->write, i, "is inside the workspace, which is already writable", err);
	for (size_t i = 0; i < policy->read.count; i++)
		if (cell__path_lies_in(policy->read.items[i], workspace))
			return refuse_entry(
				policy, &policy->read, i,
				"is inside the writable workspace; use workspace: ro, and list writable folders under write:", err);
	for (size_t i = 0; i < policy->hide.count; i++)
		if (cell__path_lies_in(policy->hide.items[i], workspace))
			return refuse_entry(
				policy, &policy->hide, i,
				"is inside the writable workspace; use workspace: ro, and list writable folders under write:", err);
	return 0;
}

/* Protection that was asked for, if only by default, is enforced or refused. */
static int check_protection(const struct cell__machine *machine, const struct cell__plan_session *session, struct cell_error *err)
{
	bool writes = cell__workspace_is_writable(session->mode) || session->policy->write.count > 0;
	if (!writes || can_guard(machine) || !cell__policy_protects(session->policy))
		return 0;
	return cell_fail(
		err, CELL_E_UNAVAILABLE, 0,
		"protected names (.git, Makefile, ...) cannot be enforced in writable folders: %.50s; use workspace: ro or none, or let "
		"the code write them: filesystem: {unprotect: [\"*\"]} in the policy",
		machine->level == CELL_LEVEL_FULL ? "Linux is older than 5.19" : "there are no user namespaces");
}

static bool meet(const char *one, const char *other)
{
	return cell__path_is_under(one, other) || cell__path_is_under(other, one);
}

/* The second name of the workspace must not cover anything that the sandbox shows. */
static int check_shown(const struct cell__plan_session *session, const struct cell__machine *machine, struct cell_error *err)
{
	const char *path = session->shown;
	const struct cell__sandbox_policy_list *lists[] = { &session->policy->read, &session->policy->write };
	bool taken = is_too_much(path) || cell__builder_is_system(path) || meet(path, CELL_PLAN_HOME) || meet(path, session->cwd) ||
		     meet(path, session->workspace);
	if (machine->level != CELL_LEVEL_FULL || session->mode == CELL_WORKSPACE_NONE)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "workspace_path needs mount namespaces and a workspace");
	if (path[0] != '/' || strstr(path, "/.") || strstr(path, "//") || path[strlen(path) - 1] == '/')
		return cell_fail(err, CELL_E_INVALID, 0, "workspace_path is \"%.100s\", expected an absolute path without . and ..", path);
	for (char **folder = session->env ? session->env->folders : NULL; folder && *folder; folder++)
		taken |= meet(path, *folder);
	for (size_t l = 0; l < 2; l++)
		for (size_t i = 0; i < lists[l]->count; i++)
			taken |= meet(path, lists[l]->items[i]);
	for (size_t i = 0; session->read && session->read[i]; i++)
		taken |= meet(path, session->read[i]);
	return taken ? cell_fail(err, CELL_E_INVALID, 0, "workspace_path: the sandbox shows other files at %.120s", path) : 0;
}

/* The layer's own folder shows nowhere else. */
static void show_layer(struct cell__builder *b, const struct cell__plan_session *session)
{
	unsigned flags = (b->mapped ? CELL_BIND_MAPPED : 0) | (session->layer_read_only ? CELL_BIND_READ_ONLY : 0);
	cell__builder_step(b, CELL_STAGE_SESSION_FILES, session->layer_is_copy ? CELL_OP_BIND : CELL_OP_OVERLAY, flags, 0, 0,
			   session->layer_is_copy ? session->layer : session->cwd, session->layer_is_copy ? session->cwd : session->layer);
}

static void session_files(struct cell__builder *b, const struct cell__plan_session *session)
{
	char real[PATH_MAX];
	const char *workspace = session->cwd;
	bool writable = session->mode == CELL_WORKSPACE_RW;
	if (session->mode == CELL_WORKSPACE_COW)
		show_layer(b, session);
	else if (session->mode != CELL_WORKSPACE_NONE)
		cell__builder_bind_own(b, CELL_STAGE_SESSION_FILES, workspace, writable ? 0 : CELL_BIND_READ_ONLY);
	if (session->mode != CELL_WORKSPACE_NONE) {
		if (strcmp(session->workspace, workspace) != 0)
			cell__builder_step(b, CELL_STAGE_SESSION_FILES, CELL_OP_LINK, CELL_STEP_OPTIONAL, 0, 0, workspace,
					   session->workspace);
		/* The same mount once more, so that a layer is one file system under both names. */
		if (session->shown)
			cell__builder_step(b, CELL_STAGE_SESSION_FILES, CELL_OP_BIND, CELL_BIND_INSIDE, 0, 0, inside(b, workspace),
					   session->shown);
	}
	for (size_t i = 0; session->read && session->read[i]; i++)
		bind_known(b, CELL_STAGE_SESSION_FILES, session->read[i], CELL_BIND_READ_ONLY);
	/* After the read-only ones: a writable folder may be inside one of them. */
	for (size_t i = 0; session->write && session->write[i]; i++)
		bind_known(b, CELL_STAGE_SESSION_FILES, session->write[i], 0);
	for (size_t i = 0; session->mode == CELL_WORKSPACE_RO && i < session->policy->write.count; i++)
		if (realpath(session->policy->write.items[i], real) && cell__path_is_under(real, workspace))
			cell__builder_bind_own(b, CELL_STAGE_SESSION_FILES, real, 0);
}

static void place(struct cell__builder *b, const char *path, bool is_protected)
{
	char real[PATH_MAX];
	if (realpath(path, real))
		cell__builder_step(b, CELL_STAGE_SESSION_RULES, CELL_OP_PLACE, 0, is_protected, 0, inside(b, real), "");
}

/* For the guard: places that the code may write to.  Names are protected in those that a policy opens, not in those of an installer. */
static void session_places(struct cell__builder *b, const struct cell__plan_session *session)
{
	if (cell__workspace_is_writable(session->mode))
		place(b, session->cwd, true);
	if (cell__workspace_is_writable(session->mode) && session->shown)
		cell__builder_step(b, CELL_STAGE_SESSION_RULES, CELL_OP_PLACE, 0, true, 0, session->shown, "");
	for (size_t i = 0; i < session->policy->write.count; i++)
		place(b, session->policy->write.items[i], true);
	for (size_t i = 0; session->write && session->write[i]; i++)
		place(b, session->write[i], false);
}

int cell__plan_workspace(const char *workspace, enum cell__workspace_mode mode, char **ret_cwd, struct cell_error *err)
{
	char real[PATH_MAX] = CELL_PLAN_HOME;
	if (mode != CELL_WORKSPACE_NONE) {
		if (!realpath(workspace, real))
			return cell_fail(err, CELL_E_INVALID, errno, "workspace %.160s", workspace);
		if (is_too_much(real) || cell__builder_is_system(real))
			return cell_fail(
				err, CELL_E_INVALID, 0,
				"%.120s cannot be a sandbox's workspace because it is part of the system; use a separate folder as "
				"--cwd, or --workspace-mode none",
				real);
	}
	*ret_cwd = cell__strdup(real);
	return *ret_cwd ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a sandbox");
}

int cell__plan_build_session(const struct cell__machine *machine, const struct cell__plan_session *session, struct cell__buf *out,
			     struct cell_error *err)
{
	struct cell__builder builder, *b = &builder;
	cell__builder_begin(b, out);
	b->rights = machine->landlock_abi > 0 ? rights_of_abi(machine->landlock_abi) : 0;
	b->mapped = session->mapped;
	b->own_root = machine->level == CELL_LEVEL_FULL;
	if (check_places(session, err) < 0 || check_protection(machine, session, err) < 0 ||
	    (session->shown && check_shown(session, machine, err) < 0))
		return -1;
	if (session->mode == CELL_WORKSPACE_COW && (!session->layer || machine->level != CELL_LEVEL_FULL))
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "workspace: cow needs a session and mount namespaces; use rw, ro or none");
	list_hidden(b, session->policy);
	if (machine->level == CELL_LEVEL_FULL)
		session_files(b, session);
	if (session->mode != CELL_WORKSPACE_NONE)
		allow(b, CELL_STAGE_SESSION_RULES, session->cwd, cell__workspace_is_writable(session->mode) ? FS_WRITE : FS_READ);
	for (size_t i = 0; session->read && session->read[i]; i++)
		allow_known(b, CELL_STAGE_SESSION_RULES, session->read[i], FS_READ);
	for (size_t i = 0; session->write && session->write[i]; i++)
		allow_known(b, CELL_STAGE_SESSION_RULES, session->write[i], FS_WRITE);
	if (cell__plan_guards(session->policy, machine))
		session_places(b, session);
	return cell__builder_finish(b, err);
}
