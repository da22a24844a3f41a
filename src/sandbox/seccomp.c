/*
 * The list of system calls.  What is not named answers ENOSYS, as if the kernel were older, so that programs fall back to
 * something else; what is refused by name answers EPERM.  Calls of a foreign ABI (i386, x32) answer EPERM.
 *
 * The filter is built once on the host and loaded by processes that have no libseccomp.
 */
#define _GNU_SOURCE
#include "sandbox/seccomp.h"

#include <errno.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <termios.h>

struct group {
	const char *why;
	enum { REFUSED, ALLOWED, LAST } what; /* LAST: the confinement itself needs them; refused by the last filter */
	const char *const *calls;
};

#define CALLS(...) (const char *const[]){ __VA_ARGS__, NULL }

static const struct group groups[] = {
	{ "files: reading, writing and asking about what the mounts and Landlock let a path reach", ALLOWED,
	  CALLS("access", "chdir", "chmod", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3",
		"faccessat", "faccessat2", "fadvise64", "fallocate", "fchdir", "fchmod", "fchmodat", "fchmodat2", "fchown",
		"fchownat", "chown", "lchown", "fcntl", "fdatasync", "fgetxattr", "flistxattr", "flock", "fremovexattr",
		"fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat", "getcwd", "getdents", "getdents64",
		"getxattr", "lgetxattr", "link", "linkat", "listxattr", "llistxattr", "lremovexattr", "lseek", "lsetxattr",
		"lstat", "mkdir", "mkdirat", "newfstatat", "open", "openat", "openat2", "pread64", "preadv", "preadv2",
		"pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv", "removexattr",
		"rename", "renameat", "renameat2", "rmdir", "sendfile", "setxattr", "splice", "stat", "statfs", "statx",
		"symlink", "symlinkat", "sync_file_range", "syncfs", "sync", "tee", "truncate", "umask", "unlink",
		"unlinkat", "utime", "utimensat", "utimes", "vmsplice", "write", "writev", "cachestat") },
	{ "memory of the process itself", ALLOWED,
	  CALLS("brk", "madvise", "membarrier", "memfd_create", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect",
		"mremap", "msync", "munlock", "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect", "mseal",
		"map_shadow_stack") },
	{ "processes and threads, without new namespaces (clone's flags are checked)", ALLOWED,
	  CALLS("execve", "execveat", "exit", "exit_group", "fork", "get_robust_list", "get_thread_area", "getegid", "geteuid",
		"getgid", "getgroups", "getpgid", "getpgrp", "getpid", "getppid", "getpriority", "getresgid", "getresuid",
		"getrlimit", "getrusage", "getsid", "gettid", "getuid", "ioprio_get", "ioprio_set", "prlimit64",
		"rseq", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity", "sched_getattr",
		"sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_yield", "set_robust_list", "set_tid_address", "setpgid",
		"setpriority", "setrlimit", "setsid", "times", "uname", "vfork", "wait4", "waitid", "arch_prctl", "prctl",
		"capget", "getcpu", "restart_syscall", "pidfd_open", "pidfd_send_signal", "riscv_flush_icache",
		"setfsgid", "setfsuid", "setgid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid", "setuid",
		"capset", "sysinfo", "ioctl", "process_mrelease") },
	{ "signals, to what the pid namespace shows", ALLOWED,
	  CALLS("kill", "pause", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn",
		"rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sigaltstack", "signalfd", "signalfd4", "tgkill",
		"tkill", "alarm", "getitimer", "setitimer") },
	{ "time, reading it only", ALLOWED,
	  CALLS("clock_getres", "clock_gettime", "clock_nanosleep", "gettimeofday", "nanosleep", "time", "timer_create",
		"timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime",
		"timerfd_settime") },
	{ "waiting and synchronising", ALLOWED,
	  CALLS("epoll_create", "epoll_create1", "epoll_ctl", "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait",
		"eventfd", "eventfd2", "futex", "futex_waitv", "futex_wait", "futex_wake", "futex_requeue", "inotify_add_watch",
		"inotify_init", "inotify_init1", "inotify_rm_watch", "poll", "ppoll", "pselect6", "select") },
	{ "pipes, sockets of the families below, System V and POSIX IPC of the ipc namespace", ALLOWED,
	  CALLS("accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "pipe", "pipe2",
		"recvfrom", "recvmmsg", "recvmsg", "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown", "socketpair",
		"mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive", "mq_timedsend", "mq_unlink", "msgctl", "msgget",
		"msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl", "shmdt", "shmget") },
	{ "randomness, Landlock on oneself, more seccomp on oneself", ALLOWED,
	  CALLS("getrandom", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "seccomp") },
	{ "asynchronous file I/O of the old kind", ALLOWED,
	  CALLS("io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit") },

	{ "namespaces: a new user namespace brings back every capability in it", REFUSED, CALLS("unshare", "setns") },
	{ "mounts: the file system is as it was made", LAST, CALLS("mount", "umount2", "open_tree", "move_mount", "mount_setattr") },
	{ "more of mounts and roots", REFUSED,
	  CALLS("umount", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick", "statmount", "listmount", "open_tree_attr", "swapon", "swapoff", "quotactl",
		"quotactl_fd", "name_to_handle_at", "open_by_handle_at", "mknod", "mknodat") },
	{ "other processes' memory and state", REFUSED,
	  CALLS("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "move_pages",
		"migrate_pages", "mbind", "set_mempolicy", "set_mempolicy_home_node", "get_mempolicy") },
	{ "the kernel's programmable parts, where its bugs are found", REFUSED,
	  CALLS("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "modify_ldt",
		"set_thread_area", "memfd_secret", "remap_file_pages", "uselib", "lookup_dcookie", "vhangup") },
	{ "slices and classes of the scheduler: who asks for short ones comes before everybody else", REFUSED,
	  CALLS("sched_setattr", "sched_setparam", "sched_setscheduler") },
	{ "keyrings: shared with the user's other processes", REFUSED, CALLS("keyctl", "add_key", "request_key") },
	{ "the machine: modules, boot, clock, names, logs, accounting", REFUSED,
	  CALLS("init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms",
		"kexec_load", "kexec_file_load", "reboot", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime",
		"sethostname", "setdomainname", "syslog", "acct", "iopl", "ioperm", "nfsservctl", "ustat", "sysfs", "_sysctl",
		"fanotify_init", "fanotify_mark", "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules",
		"syslog", "vm86", "vm86old") },
};

const char *cell__filter_group(size_t i, bool *ret_allowed)
{
	if (i >= sizeof groups / sizeof *groups)
		return NULL;
	*ret_allowed = groups[i].what == ALLOWED;
	return groups[i].why;
}

#define EPERM_ACTION SCMP_ACT_ERRNO(EPERM)
#define NEW_NAMESPACES                                                                                          \
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

static int add_groups(scmp_filter_ctx ctx)
{
	for (size_t g = 0; g < sizeof groups / sizeof *groups; g++)
		for (size_t i = 0; groups[g].calls[i]; i++) {
			int nr = seccomp_syscall_resolve_name(groups[g].calls[i]);
			if (nr < 0)
				continue; /* this machine or this libseccomp has none such: it answers ENOSYS */
			int rc = seccomp_rule_add(ctx, groups[g].what == REFUSED ? EPERM_ACTION : SCMP_ACT_ALLOW, nr, 0);
			if (rc < 0 && rc != -EEXIST)
				return rc;
		}
	return 0;
}

/* Calls that depend on their arguments. */
static int add_conditions(scmp_filter_ctx ctx, const struct cell__filter_options *options)
{
	int rc = 0;
	/* clone3's flags are in memory, where a filter cannot look: without it the C library uses clone. */
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1, masked(0, NEW_NAMESPACES, 0));
	for (unsigned bit = 0; bit < 32; bit++)
		if (NEW_NAMESPACES & (1u << bit))
			rc |= seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(clone), 1,
					       masked(0, 1u << bit, 1u << bit));
	/* Only families whose reach is bounded elsewhere; raw and packet sockets need capabilities that are gone, too. */
	const int families[] = { AF_UNIX, AF_INET, AF_INET6 };
	for (size_t i = 0; i < (options->internet ? 3u : 1u); i++) {
		/* Not SOCK_RAW (3), SOCK_RDM (4), SOCK_PACKET (10): the type's low four bits are 1, 2 or 5. */
		static const unsigned types[] = { SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET };
		for (size_t t = 0; t < 3; t++)
			rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(socket), 2,
					       compared(0, SCMP_CMP_EQ, (scmp_datum_t)families[i]),
					       masked(1, 0xf, types[t]));
		rc |= seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(socket), 2,
				       compared(0, SCMP_CMP_EQ, (scmp_datum_t)families[i]),
				       masked(1, 0xf, SOCK_RAW));
	}
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
			       compared(0, SCMP_CMP_GT, AF_INET6));
	for (int family = 0; family <= AF_INET6; family++)
		if (family != AF_UNIX && !(options->internet && (family == AF_INET || family == AF_INET6)))
			rc |= seccomp_rule_add(ctx, SCMP_ACT_ERRNO(EAFNOSUPPORT), SCMP_SYS(socket), 1,
					       compared(0, SCMP_CMP_EQ, (scmp_datum_t)family));
	/* Asking for the personality, and the two that everybody has. */
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(personality), 1, compared(0, SCMP_CMP_EQ, 0));
	rc |= seccomp_rule_add(ctx, SCMP_ACT_ALLOW, SCMP_SYS(personality), 1, compared(0, SCMP_CMP_EQ, 0xffffffffu));
	return rc;
}

/*
 * A second filter for what is allowed but for a few arguments: in one filter a call that is allowed anyhow cannot be refused
 * for some.  Of two filters the stricter answer counts.
 */
static int add_refusals(scmp_filter_ctx ctx)
{
	/* Typing into a terminal that somebody else reads, the console's cut and paste, line disciplines. */
	static const unsigned requests[] = { TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS };
	int rc = 0;
	for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
		rc |= seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(ioctl), 1,
				       masked(1, 0xffffffffu, requests[i]));
	/* Files that gain the rights of their owner. */
	static const struct {
		int nr;
		unsigned arg;
	} modes[] = { { SCMP_SYS(chmod), 1 }, { SCMP_SYS(fchmod), 1 }, { SCMP_SYS(fchmodat), 2 }, { SCMP_SYS(mkdir), 1 },
		      { SCMP_SYS(creat), 1 }, { SCMP_SYS(mkdirat), 2 } };
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
		for (unsigned bit = 02000; bit <= 04000; bit *= 2)
			rc |= seccomp_rule_add(ctx, EPERM_ACTION, modes[i].nr, 1,
					       masked(modes[i].arg, bit, bit));
	return rc;
}

/*
 * Without namespaces: Landlock keeps nobody from connecting to a socket that has a path (a container engine's, an agent's for
 * keys), and IPC objects are those of the machine.  A pair of sockets is fine, but one for datagrams can be pointed elsewhere.
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
	if (size <= 0 || cell__buf_reserve(out, (size_t)size) < 0 ||
	    pread(fd, out->data + out->size, (size_t)size, 0) != (ssize_t)size)
		return cell_fail(err, CELL_E_SANDBOX, 0, "build the system call filter: it cannot be read back");
	out->size += (size_t)size;
	return 0;
}

int cell__filter_last(struct cell__buf *out, struct cell_error *err)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
	if (!ctx)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the system call filter");
	int rc = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, EPERM_ACTION);
	for (size_t g = 0; rc == 0 && g < sizeof groups / sizeof *groups; g++)
		for (size_t i = 0; rc == 0 && groups[g].what == LAST && groups[g].calls[i]; i++) {
			int nr = seccomp_syscall_resolve_name(groups[g].calls[i]);
			if (nr >= 0)
				rc = seccomp_rule_add(ctx, EPERM_ACTION, nr, 0);
		}
	return export_filter(ctx, rc, out, err);
}

int cell__filter_refusals(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ALLOW);
	if (!ctx)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the system call filter");
	int rc = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, EPERM_ACTION);
	if (rc == 0)
		rc = add_refusals(ctx);
	if (rc == 0 && options->shared)
		rc = add_shared_refusals(ctx);
	/* By path only: what is open for writing, or is opened to be cut, Landlock has let through. */
	if (rc == 0 && options->cuts)
		rc = seccomp_rule_add(ctx, EPERM_ACTION, SCMP_SYS(truncate), 0);
	return export_filter(ctx, rc, out, err);
}

int cell__filter_build(const struct cell__filter_options *options, struct cell__buf *out, struct cell_error *err)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_ERRNO(ENOSYS));
	if (!ctx)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the system call filter");
	int rc = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, EPERM_ACTION);
	/* A binary tree instead of a long chain: a call costs the same wherever it stands. */
	if (rc == 0)
		rc = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	if (rc == 0)
		rc = add_groups(ctx);
	if (rc == 0)
		rc = add_conditions(ctx, options);
	return export_filter(ctx, rc, out, err);
}
