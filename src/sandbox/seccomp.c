/*
 * The list of system calls. Calls that are not listed answer ENOSYS, as if the kernel were older, so that programs fall back to another
 * call; calls that are refused by name answer EPERM. Calls of a foreign ABI (i386, x32) answer EPERM.
 *
 * The filter is built once on the host and loaded by processes that have no libseccomp.
 */
#define _GNU_SOURCE
#include "sandbox/seccomp.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>

#include "base/hole.h"

enum what {
	ALLOWED,
	CONDITIONS, /* depends on the arguments: add_conditions() */
	WATCHING,   /* allowed where the policy shows the machine, unknown elsewhere */
	LAST,       /* the confinement itself needs them; refused by the last filter */
	REFUSED,    /* EPERM */
	UNKNOWN,    /* ENOSYS, on purpose */
};

struct group {
	const char *why;
	enum what what;
	int error; /* LAST and REFUSED: another one than EPERM, where programs then do without */
	const char *const *calls;
};

#define CALLS(...)                \
	(const char *const[])     \
	{                         \
		__VA_ARGS__, NULL \
	}

/* Every call that libseccomp, the headers and the running kernel know is named here: tests/unit/test_filter.c sees to it. */
static const struct group groups[] = {
	{ "files: read, write and stat the paths that the mounts and Landlock allow", ALLOWED, 0,
	  CALLS("access", "chdir", "chmod", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3", "faccessat",
		"faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "chown",
		"lchown", "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock", "fremovexattr", "fsetxattr", "fstat", "fstatfs",
		"fsync", "ftruncate", "futimesat", "getcwd", "getdents", "getdents64", "getxattr", "lgetxattr", "link", "linkat",
		"listxattr", "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "mkdir", "mkdirat", "newfstatat", "open",
		"openat", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat",
		"readv", "removexattr", "rename", "renameat", "renameat2", "rmdir", "sendfile", "setxattr", "stat", "statfs", "statx",
		"symlink", "symlinkat", "sync_file_range", "syncfs", "sync", "truncate", "umask", "unlink", "unlinkat", "utime",
		"utimensat", "utimes", "write", "writev") },
	{ "memory of the process itself", ALLOWED, 0,
	  CALLS("brk", "madvise", "membarrier", "memfd_create", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mremap",
		"msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect", "mseal", "map_shadow_stack") },
	{ "processes and threads, without new namespaces", ALLOWED, 0,
	  CALLS("execve", "execveat", "exit", "exit_group", "fork", "get_robust_list", "get_thread_area", "getegid", "geteuid", "getgid",
		"getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getresgid", "getresuid", "getrlimit", "getrusage",
		"getsid", "gettid", "getuid", "ioprio_get", "ioprio_set", "prlimit64", "rseq", "sched_get_priority_max",
		"sched_get_priority_min", "sched_getaffinity", "sched_getattr", "sched_getparam", "sched_getscheduler",
		"sched_rr_get_interval", "sched_setaffinity", "sched_yield", "set_robust_list", "set_tid_address", "setpgid", "setpriority",
		"setrlimit", "setsid", "times", "uname", "vfork", "wait4", "waitid", "arch_prctl", "prctl", "capget", "getcpu",
		"restart_syscall", "pidfd_open", "pidfd_send_signal", "riscv_flush_icache", "setfsgid", "setfsuid", "setgid", "setgroups",
		"setregid", "setresgid", "setresuid", "setreuid", "setuid", "capset", "sysinfo", "ioctl", "process_mrelease") },
	{ "signals, to processes in the pid namespace", ALLOWED, 0,
	  CALLS("kill", "pause", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn", "rt_sigsuspend",
		"rt_sigtimedwait", "rt_tgsigqueueinfo", "sigaltstack", "signalfd", "signalfd4", "tgkill", "tkill", "alarm", "getitimer",
		"setitimer") },
	{ "time, read only", ALLOWED, 0,
	  CALLS("clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "nanosleep", "time", "timer_create", "timer_delete",
		"timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime") },
	{ "waiting and synchronising", ALLOWED, 0,
	  CALLS("epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "futex",
		"futex_waitv", "futex_wait", "futex_wake", "futex_requeue", "poll", "ppoll", "pselect6", "select") },
	{ "pipes, sockets of the families below, System V and POSIX IPC of the ipc namespace", ALLOWED, 0,
	  CALLS("accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "pipe", "pipe2", "recvfrom",
		"recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown", "mq_getsetattr", "mq_notify", "mq_open",
		"mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop",
		"semtimedop", "shmat", "shmctl", "shmdt", "shmget") },
	{ "random numbers, and further Landlock and seccomp rules for the process itself", ALLOWED, 0,
	  CALLS("getrandom", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp") },
	{ "asynchronous file I/O of the old kind", ALLOWED, 0,
	  CALLS("io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit") },

	{ "no flag for a new namespace; families, types and protocols by name; the usual personality", CONDITIONS, 0,
	  CALLS("clone", "socket", "socketpair", "personality") },
	{ "a watch on a file reports everybody's use of it: a watch on /usr tells which programs others run", WATCHING, ENOSYS,
	  CALLS("inotify_init", "inotify_init1", "inotify_add_watch", "inotify_rm_watch") },

	{ "namespaces: a new user namespace brings back every capability in it", REFUSED, 0, CALLS("unshare", "setns") },
	{ "mounts: the file system view must not change", LAST, 0, CALLS("mount", "umount2", "open_tree", "move_mount", "mount_setattr") },
	{ "modes are passed in memory, which a filter cannot inspect: open and openat do the same", LAST, ENOSYS, CALLS("openat2") },
	{ "more of mounts and roots", REFUSED, 0,
	  CALLS("umount", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick", "statmount", "listmount", "listns",
		"open_tree_attr", "swapon", "swapoff", "quotactl", "quotactl_fd", "name_to_handle_at", "open_by_handle_at", "mknod",
		"mknodat") },
	{ "passing pages of read-only files on without a copy: Dirty Pipe and its successors.  EINVAL means "
	  "that a file cannot be spliced, so programs copy instead",
	  REFUSED, EINVAL, CALLS("splice", "tee", "vmsplice") },
	{ "other processes' memory and state", REFUSED, 0,
	  CALLS("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "move_pages", "migrate_pages",
		"mbind", "set_mempolicy", "set_mempolicy_home_node", "get_mempolicy") },
	{ "the kernel's programmable interfaces, a frequent source of kernel bugs", REFUSED, 0,
	  CALLS("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "modify_ldt",
		"set_thread_area", "memfd_secret", "remap_file_pages", "uselib", "lookup_dcookie", "vhangup", "uprobe", "uretprobe") },
	{ "scheduler slices and classes: a process that asks for short slices runs before all others", REFUSED, 0,
	  CALLS("sched_setattr", "sched_setparam", "sched_setscheduler", "rseq_slice_yield") },
	{ "keyrings: shared with the user's other processes", REFUSED, 0, CALLS("keyctl", "add_key", "request_key") },
	{ "the machine: modules, boot, clock, names, logs, accounting", REFUSED, 0,
	  CALLS("init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms", "kexec_load",
		"kexec_file_load", "reboot", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime", "sethostname",
		"setdomainname", "syslog", "acct", "iopl", "ioperm", "nfsservctl", "ustat", "sysfs", "_sysctl", "fanotify_init",
		"fanotify_mark", "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules", "vm86", "vm86old") },

	{ "flags are passed in memory, which a filter cannot inspect: the C library falls back to clone", UNKNOWN, 0, CALLS("clone3") },
	{ "file attributes passed as structures in memory: the older calls do what programs need", UNKNOWN, 0,
	  CALLS("file_getattr", "file_setattr", "getxattrat", "setxattrat", "listxattrat", "removexattrat") },
	{ "which pages of a file are cached: this reveals who else has read it", UNKNOWN, 0, CALLS("cachestat") },
	{ "numbers without an implementation", UNKNOWN, 0,
	  CALLS("afs_syscall", "epoll_ctl_old", "epoll_wait_old", "getpmsg", "putpmsg", "security", "tuxcall", "vserver") },
};

/* Calls that libseccomp may be too old to know by name.  Since 424 their numbers are the same on every machine. */
static const struct {
	const char *name;
	int nr;
} numbers[] = {
	{ "set_mempolicy_home_node", 450 },
	{ "cachestat", 451 },
	{ "fchmodat2", 452 },
	{ "map_shadow_stack", 453 },
	{ "futex_wake", 454 },
	{ "futex_wait", 455 },
	{ "futex_requeue", 456 },
	{ "statmount", 457 },
	{ "listmount", 458 },
	{ "lsm_get_self_attr", 459 },
	{ "lsm_set_self_attr", 460 },
	{ "lsm_list_modules", 461 },
	{ "mseal", 462 },
	{ "setxattrat", 463 },
	{ "getxattrat", 464 },
	{ "listxattrat", 465 },
	{ "removexattrat", 466 },
	{ "open_tree_attr", 467 },
	{ "file_getattr", 468 },
	{ "file_setattr", 469 },
	{ "listns", 470 },
	{ "rseq_slice_yield", 471 },
};

int cell__filter_number(const char *call)
{
	int nr = seccomp_syscall_resolve_name(call);
	for (size_t i = 0; nr == __NR_SCMP_ERROR && i < sizeof numbers / sizeof *numbers; i++)
		if (strcmp(numbers[i].name, call) == 0)
			nr = numbers[i].nr;
	return nr < 0 ? -1 : nr;
}

static const struct group *find_group(const char *call)
{
	for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
		for (size_t i = 0; groups[g].calls[i]; i++)
			if (strcmp(groups[g].calls[i], call) == 0)
				return &groups[g];
	return NULL;
}

static int error_of(const struct group *group)
{
	return group->what == UNKNOWN ? ENOSYS : group->error ? group->error : EPERM;
}

bool cell__filter_judgement(const char *call, const struct cell__filter_options *options, int *ret_error, bool *ret_conditions)
{
	const struct group *group = find_group(call);
	if (!group)
		return false;
	bool allowed = group->what == ALLOWED || group->what == CONDITIONS || (group->what == WATCHING && options->watch);
	*ret_error = allowed ? 0 : error_of(group);
	*ret_conditions = group->what == CONDITIONS;
	return true;
}

#define EPERM_ACTION SCMP_ACT_ERRNO(EPERM)
#define NEW_NAMESPACES                                                                                               \
	(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP | \
	 0x80u /* CLONE_NEWTIME */)

static struct scmp_arg_cmp compared(unsigned arg, enum scmp_compare how, scmp_datum_t value)
{
	return (struct scmp_arg_cmp){ .arg = arg, .op = how, .datum_a = value };
}

static struct scmp_arg_cmp masked(unsigned arg, scmp_datum_t mask, scmp_datum_t value)
{
	return (struct scmp_arg_cmp){ .arg = arg, .op = SCMP_CMP_MASKED_EQ, .datum_a = mask, .datum_b = value };
}

static int add_groups(scmp_filter_ctx ctx, const struct cell__filter_options *options)
{
	for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
		const struct group *group = &groups[g];
		bool allowed = group->what == ALLOWED || group->what == LAST || (group->what == WATCHING && options->watch) ||
			       (group->error == EINVAL && is_hole("splice"));
		uint32_t action = allowed ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(error_of(group));
		/* Calls that answer ENOSYS need no rule. */
		if (group->what == CONDITIONS || action == SCMP_ACT_ERRNO(ENOSYS))
			continue;
		for (size_t i = 0; group->calls[i]; i++) {
			int nr = cell__filter_number(group->calls[i]);
			if (nr < 0)
				continue; /* another machine's */
			int rc = seccomp_rule_add(ctx, action, nr, 0);
			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

/*
 * Sockets of the internet: TCP and UDP, by their own number or 0. Any other type or protocol (MPTCP, UDP-Lite, SCTP, DCCP, L2TP, ping)
 * would make the kernel load a module for it. A number with bits above 32 set is greater than all of these.
 */
static int add_internet(scmp_filter_ctx ctx, int family)
{
	static const struct {
		unsigned type, protocol;
	} known[] = { { SOCK_STREAM, IPPROTO_TCP }, { SOCK_DGRAM, IPPROTO_UDP } };
	struct scmp_arg_cmp is_family = compared(0, SCMP_CMP_EQ, (scmp_datum_t)family);
	int rc = 0;
	for (size_t k = 0; k < 2; k++) {
		if (is_hole("protocols")) {
			rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2, is_family, masked(1, 0xf, known[k].type));
			continue;
		}
		for (unsigned protocol = 0; protocol <= known[k].protocol; protocol++)
			rc |= seccomp_rule_add(
				ctx, protocol == 0 || protocol == known[k].protocol ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EPROTONOSUPPORT),
				SCMP_SYS(socket), 3, is_family, masked(1, 0xf, known[k].type), compared(2, SCMP_CMP_EQ, protocol));
		rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EPROTONOSUPPORT), SCMP_SYS(socket), 3, is_family, masked(1, 0xf, known[k].type),
				       compared(2, SCMP_CMP_GT, known[k].protocol));
	}
	for (unsigned type = 0; type < 16; type++)
		if (type != SOCK_STREAM && type != SOCK_DGRAM)
			rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(type == SOCK_RAW ? EPERM : ESOCKTNOSUPPORT), SCMP_SYS(socket), 2,
					       is_family, masked(1, 0xf, type));
	return rc;
}

/* Only families whose reach is bounded elsewhere. */
static int add_sockets(scmp_filter_ctx ctx, bool internet)
{
	struct scmp_arg_cmp is_unix = compared(0, SCMP_CMP_EQ, AF_UNIX);
	int rc = 0;
	for (unsigned type = 0; type < 16; type++) {
		bool known = type == SOCK_STREAM || type == SOCK_DGRAM || type == SOCK_SEQPACKET;
		rc |= seccomp_rule_add(ctx, known ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(ESOCKTNOSUPPORT), SCMP_SYS(socket), 2, is_unix,
				       masked(1, 0xf, type));
	}
	for (int family = 0; family <= AF_INET6; family++) {
		bool inet = family == AF_INET || family == AF_INET6;
		if (inet && internet)
			rc |= add_internet(ctx, family);
		else if (family != AF_UNIX)
			rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
					       compared(0, SCMP_CMP_EQ, (scmp_datum_t)family));
	}
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, compared(0, SCMP_CMP_GT, AF_INET6));
	/* The internet has no pairs; of other families some have, and a module that is loaded for them. */
	if (is_hole("pairs"))
		return rc | seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 0);
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socketpair), 1, is_unix);
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socketpair), 1, compared(0, SCMP_CMP_EQ, 0));
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socketpair), 1, compared(0, SCMP_CMP_GT, AF_UNIX));
	return rc;
}

/* Calls that depend on their arguments. */
static int add_conditions(scmp_filter_ctx ctx, const struct cell__filter_options *options)
{
	int rc = add_sockets(ctx, options->internet);
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, masked(0, NEW_NAMESPACES, 0));
	for (unsigned bit = 0; bit < 32; bit++)
		if (NEW_NAMESPACES & (1u << bit))
			rc |= seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(clone), 1, masked(0, 1u << bit, 1u << bit));
	/* Asking for the personality, and the two that everybody has. */
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(personality), 1, compared(0, SCMP_CMP_EQ, 0));
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(personality), 1, compared(0, SCMP_CMP_EQ, 0xffffffffu));
	return rc;
}

/*
 * A second filter for calls that are allowed except for a few arguments: one filter cannot refuse some arguments of a call that it allows.
 * Of two filters the stricter answer counts.
 */
struct refusal {
	const char *what; /* the name of the planted hole without them */
	const char *call;
	int error;
	int n;
	struct {
		unsigned arg;
		uint32_t mask, value;
	} when[2];
};

#define IS(arg, value) { arg, 0xffffffffu, value }
#define HAS(arg, bits) { arg, bits, bits }
#define CREATES O_CREAT
#define UNNAMED (O_TMPFILE & ~O_DIRECTORY)

static const struct refusal refusals[] = {
	/* Typing into another reader's terminal, the console's cut and paste, line disciplines. */
	{ "terminals", "ioctl", EPERM, 1, { IS(1, TIOCSTI) } },
	{ "terminals", "ioctl", EPERM, 1, { IS(1, TIOCLINUX) } },
	{ "terminals", "ioctl", EPERM, 1, { IS(1, TIOCSETD) } },
	{ "terminals", "ioctl", EPERM, 1, { IS(1, TIOCCONS) } },
	/* Handles of namespaces: the parents and owners of ours, by nsfs (0xb7) and by pidfds (0xff). */
	{ "nsfs", "ioctl", EPERM, 1, { { 1, 0xff00u, 0xb700u } } },
	{ "nsfs", "ioctl", EPERM, 1, { { 1, 0xff00u, 0xff00u } } },
	/* Files that gain the rights of their owner or group. */
	{ "setuid", "chmod", EPERM, 1, { HAS(1, S_ISUID) } },
	{ "setuid", "chmod", EPERM, 1, { HAS(1, S_ISGID) } },
	{ "setuid", "fchmod", EPERM, 1, { HAS(1, S_ISUID) } },
	{ "setuid", "fchmod", EPERM, 1, { HAS(1, S_ISGID) } },
	{ "setuid", "fchmodat", EPERM, 1, { HAS(2, S_ISUID) } },
	{ "setuid", "fchmodat", EPERM, 1, { HAS(2, S_ISGID) } },
	{ "setuid", "fchmodat2", EPERM, 1, { HAS(2, S_ISUID) } },
	{ "setuid", "fchmodat2", EPERM, 1, { HAS(2, S_ISGID) } },
	{ "setuid", "mkdir", EPERM, 1, { HAS(1, S_ISUID) } },
	{ "setuid", "mkdir", EPERM, 1, { HAS(1, S_ISGID) } },
	{ "setuid", "mkdirat", EPERM, 1, { HAS(2, S_ISUID) } },
	{ "setuid", "mkdirat", EPERM, 1, { HAS(2, S_ISGID) } },
	{ "setuid", "creat", EPERM, 1, { HAS(1, S_ISUID) } },
	{ "setuid", "creat", EPERM, 1, { HAS(1, S_ISGID) } },
	{ "setuid", "open", EPERM, 2, { HAS(1, CREATES), HAS(2, S_ISUID) } },
	{ "setuid", "open", EPERM, 2, { HAS(1, CREATES), HAS(2, S_ISGID) } },
	{ "setuid", "open", EPERM, 2, { HAS(1, UNNAMED), HAS(2, S_ISUID) } },
	{ "setuid", "open", EPERM, 2, { HAS(1, UNNAMED), HAS(2, S_ISGID) } },
	{ "setuid", "openat", EPERM, 2, { HAS(2, CREATES), HAS(3, S_ISUID) } },
	{ "setuid", "openat", EPERM, 2, { HAS(2, CREATES), HAS(3, S_ISGID) } },
	{ "setuid", "openat", EPERM, 2, { HAS(2, UNNAMED), HAS(3, S_ISUID) } },
	{ "setuid", "openat", EPERM, 2, { HAS(2, UNNAMED), HAS(3, S_ISGID) } },
	/* A lease on a file of the host delays every process that opens it there; a notice reveals that it was opened. */
	{ "leases", "fcntl", EPERM, 1, { IS(1, F_SETLEASE) } },
	{ "leases", "fcntl", EPERM, 1, { IS(1, F_NOTIFY) } },
	/* Reading cached data only, which reveals the same as cachestat. */
	{ "cached", "preadv2", EOPNOTSUPP, 1, { HAS(5, 8 /* RWF_NOWAIT */) } },
	/* Pages merged with other processes' equal pages: the duration of a write reveals that another process has them. */
	{ "merging", "madvise", EINVAL, 1, { IS(2, MADV_MERGEABLE) } },
	{ "merging", "prctl", EINVAL, 1, { IS(0, 67 /* PR_SET_MEMORY_MERGE */) } },
	/* Programs for the kernel, its own TLS, IPsec within UDP. */
	{ "options", "setsockopt", EPERM, 2, { IS(1, SOL_SOCKET), IS(2, SO_ATTACH_FILTER) } },
	{ "options", "setsockopt", EPERM, 2, { IS(1, SOL_SOCKET), IS(2, SO_ATTACH_BPF) } },
	{ "options", "setsockopt", EPERM, 2, { IS(1, SOL_SOCKET), IS(2, SO_ATTACH_REUSEPORT_CBPF) } },
	{ "options", "setsockopt", EPERM, 2, { IS(1, SOL_SOCKET), IS(2, SO_ATTACH_REUSEPORT_EBPF) } },
	{ "options", "setsockopt", ENOPROTOOPT, 2, { IS(1, IPPROTO_TCP), IS(2, 31 /* TCP_ULP */) } },
	{ "options", "setsockopt", ENOPROTOOPT, 2, { IS(1, IPPROTO_UDP), IS(2, 100 /* UDP_ENCAP */) } },
	/* Pages of a mapped file, sent without a copy. */
	{ "options", "setsockopt", EOPNOTSUPP, 2, { IS(1, SOL_SOCKET), IS(2, 60 /* SO_ZEROCOPY */) } },
	/* Urgent bytes between Unix sockets: used to escape Chrome's sandbox in 2025, and programs do not need them. */
	{ "urgent", "sendto", EOPNOTSUPP, 1, { HAS(3, MSG_OOB) } },
	{ "urgent", "sendmsg", EOPNOTSUPP, 1, { HAS(2, MSG_OOB) } },
	{ "urgent", "sendmmsg", EOPNOTSUPP, 1, { HAS(3, MSG_OOB) } },
	{ "urgent", "recvfrom", EOPNOTSUPP, 1, { HAS(3, MSG_OOB) } },
	{ "urgent", "recvmsg", EOPNOTSUPP, 1, { HAS(2, MSG_OOB) } },
	{ "urgent", "recvmmsg", EOPNOTSUPP, 1, { HAS(3, MSG_OOB) } },
};

static int add_refusals(scmp_filter_ctx ctx)
{
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < sizeof refusals / sizeof *refusals; i++) {
		const struct refusal *r = &refusals[i];
		int nr = cell__filter_number(r->call);
		if (nr < 0 || is_hole(r->what))
			continue;
		struct scmp_arg_cmp when[2];
		for (int k = 0; k < r->n; k++)
			when[k] = masked(r->when[k].arg, r->when[k].mask, r->when[k].value);
		rc = seccomp_rule_add_array(ctx, SCMP_ACT_ERRNO(r->error), nr, (unsigned)r->n, when);
	}
	return rc;
}

/*
 * Without namespaces: Landlock does not prevent connecting to a socket with a path (a container engine's, a key agent's), and IPC objects
 * are those of the machine. A pair of sockets is safe, but a datagram socket can be redirected.
 */
static int add_shared_refusals(scmp_filter_ctx ctx)
{
	static const char *const calls[] = { "mq_open", "mq_unlink", "msgget", "semget", "shmget" };
	int rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1, compared(0, SCMP_CMP_EQ, AF_UNIX));
	rc |= seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(socketpair), 1, masked(1, 0xf, SOCK_DGRAM));
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		int nr = seccomp_syscall_resolve_name(calls[i]);
		if (nr >= 0)
			rc |= seccomp_rule_add(ctx, EPERM_ACTION, nr, 0);
	}
	return rc;
}

static int export_filter(scmp_filter_ctx ctx, int rc, struct cell__buf *out, struct cell_error *err)
{
	CELL_AUTO_FD int fd = memfd_create("workcell-filter", MFD_CLOEXEC);
	if (rc == 0)
		rc = fd < 0 ? -errno : seccomp_export_bpf(ctx, fd);
	seccomp_release(ctx);
	if (rc < 0)
		return cell_fail(err, CELL_E_SANDBOX, -rc, "build the system call filter");
	off_t size = lseek(fd, 0, SEEK_END);
	if (size <= 0 || cell__buf_reserve(out, (size_t)size) < 0 || pread(fd, out->data + out->size, (size_t)size, 0) != (ssize_t)size)
		return cell_fail(err, CELL_E_SANDBOX, 0, "build the system call filter: it cannot be read back");
	out->size += (size_t)size;
	return 0;
}

static int no_filter(struct cell_error *err)
{
	return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the system call filter");
}

/* tree: a binary tree instead of a long chain, so that every call costs the same. *ret_rc is libseccomp's; NULL: out of memory. */
static scmp_filter_ctx new_filter(uint32_t otherwise, bool tree, int *ret_rc)
{
	scmp_filter_ctx ctx = seccomp_init(otherwise);
	if (!ctx)
		return NULL;
	*ret_rc = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, EPERM_ACTION);
	if (*ret_rc == 0 && tree)
		*ret_rc = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	return ctx;
}

/*
 * A filter that allows all calls except those of these groups that `passes` (may be NULL) does not let through. *ret_rc is libseccomp's;
 * NULL: out of memory.
 */
static scmp_filter_ctx refuse_groups(enum what what, bool (*passes)(const struct group *group, const char *call), int *ret_rc)
{
	int rc;
	scmp_filter_ctx ctx = new_filter(SCMP_ACT_ALLOW, false, &rc);
	if (!ctx)
		return NULL;
	for (size_t g = 0; rc == 0 && g < sizeof groups / sizeof *groups; g++)
		for (size_t i = 0; rc == 0 && groups[g].what == what && groups[g].calls[i]; i++) {
			int nr = cell__filter_number(groups[g].calls[i]);
			if (nr >= 0 && !(passes && passes(&groups[g], groups[g].calls[i])))
				rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(error_of(&groups[g])), nr, 0);
		}
	*ret_rc = rc;
	return ctx;
}

int cell__filter_last(struct cell__buf *out, struct cell_error *err)
{
	int rc;
	scmp_filter_ctx ctx = refuse_groups(LAST, NULL, &rc);
	return ctx ? export_filter(ctx, rc, out, err) : no_filter(err);
}

/* Kernels enter their namespaces and get a keyring of their own while the zygote's filter is the only one. */
static bool is_needed_by_zygotes(const struct group *group, const char *call)
{
	if (group->error == EINVAL && is_hole("splice"))
		return true; /* kernels inherit this filter */
	return strcmp(call, "setns") == 0 || strcmp(call, "keyctl") == 0;
}

int cell__filter_zygote(struct cell__buf *out, struct cell_error *err)
{
	static const int families[] = { AF_NETLINK, AF_PACKET, AF_ALG,       AF_VSOCK, AF_XDP, AF_RXRPC,
					AF_KEY,     AF_TIPC,   AF_BLUETOOTH, AF_CAN,   AF_NFC };
	int rc;
	scmp_filter_ctx ctx = refuse_groups(REFUSED, is_needed_by_zygotes, &rc);
	if (!ctx)
		return no_filter(err);
	for (unsigned bit = 0; rc == 0 && bit < 32; bit++)
		if (NEW_NAMESPACES & (1u << bit))
			rc = seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(clone), 1, masked(0, 1u << bit, 1u << bit));
	/* Its flags are in memory, which a filter cannot read: the C library falls back to clone. */
	if (rc == 0)
		rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
	for (size_t i = 0; rc == 0 && i < sizeof families / sizeof *families; i++)
		rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
				      compared(0, SCMP_CMP_EQ, (uint64_t)families[i]));
	return export_filter(ctx, rc, out, err);
}

int cell__filter_refusals(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err)
{
	int rc;
	scmp_filter_ctx ctx = new_filter(SCMP_ACT_ALLOW, true, &rc);
	if (!ctx)
		return no_filter(err);
	if (rc == 0)
		rc = add_refusals(ctx);
	if (rc == 0 && options->shared)
		rc = add_shared_refusals(ctx);
	/* By path only: Landlock has already checked files that are open for writing, or are opened to be truncated. */
	if (rc == 0 && options->cuts)
		rc = seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(truncate), 0);
	return export_filter(ctx, rc, out, err);
}

int cell__filter_guard(struct cell__buf *out, struct cell_error *err)
{
	static const char *const calls[] = { "creat",     "link",  "linkat",  "mkdir",     "mkdirat",  "rename", "renameat",
					     "renameat2", "rmdir", "symlink", "symlinkat", "truncate", "unlink", "unlinkat" };
	/* O_RDWR is another bit than O_WRONLY.  With O_PATH the others mean nothing. */
	static const unsigned bits[] = { O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, UNNAMED };
	static const struct {
		const char *call;
		unsigned arg;
	} opens[] = { { "open", 1 }, { "openat", 2 } };
	int rc;
	scmp_filter_ctx ctx = new_filter(SCMP_ACT_ALLOW, true, &rc);
	if (!ctx)
		return no_filter(err);
	for (size_t i = 0; rc == 0 && i < sizeof calls / sizeof *calls; i++) {
		int nr = cell__filter_number(calls[i]);
		if (nr >= 0)
			rc = seccomp_rule_add(ctx, SCMP_ACT_NOTIFY, nr, 0);
	}
	for (size_t i = 0; i < sizeof opens / sizeof *opens; i++)
		for (size_t k = 0; rc == 0 && k < sizeof bits / sizeof *bits; k++) {
			int nr = cell__filter_number(opens[i].call);
			if (nr >= 0)
				rc = seccomp_rule_add(ctx, SCMP_ACT_NOTIFY, nr, 1, masked(opens[i].arg, bits[k] | O_PATH, bits[k]));
		}
	return export_filter(ctx, rc, out, err);
}

int cell__filter_build(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err)
{
	int rc;
	scmp_filter_ctx ctx = new_filter(SCMP_ACT_ERRNO(ENOSYS), true, &rc);
	if (!ctx)
		return no_filter(err);
	if (rc == 0)
		rc = add_groups(ctx, options);
	if (rc == 0)
		rc = add_conditions(ctx, options);
	return export_filter(ctx, rc, out, err);
}
