/*
 * The ratchet of the system call filter: every call that libseccomp, the kernel's headers (argv[1]: their macros) or the running
 * kernel know must have been judged, and the filters must answer as was decided.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "sandbox/seccomp.h"

#define NUMBERS 1024

static const char *headers;
static const struct cell__filter_options usual = { .internet = true };
static const struct cell__filter_options watching = { .internet = true, .watch = true };

/* ---- the filters, as the kernel would run them ---- */

/* What one program answers: SECCOMP_RET_*. */
static uint32_t run(const struct cell__buf *filter, const struct seccomp_data *data)
{
	const struct sock_filter *code = (const struct sock_filter *)filter->data;
	size_t n = filter->size / sizeof *code;
	uint32_t a = 0;
	for (size_t pc = 0; pc < n; pc++) {
		const struct sock_filter *i = &code[pc];
		switch (i->code) {
		case BPF_LD | BPF_W | BPF_ABS:
			memcpy(&a, (const char *)data + i->k, sizeof a);
			break;
		case BPF_ALU | BPF_AND | BPF_K:
			a &= i->k;
			break;
		case BPF_JMP | BPF_JA:
			pc += i->k;
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			pc += a == i->k ? i->jt : i->jf;
			break;
		case BPF_JMP | BPF_JGT | BPF_K:
			pc += a > i->k ? i->jt : i->jf;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			pc += a >= i->k ? i->jt : i->jf;
			break;
		case BPF_JMP | BPF_JSET | BPF_K:
			pc += a & i->k ? i->jt : i->jf;
			break;
		case BPF_RET | BPF_K:
			return i->k;
		default:
			fail_msg("instruction 0x%x is not simulated here", i->code);
		}
	}
	fail_msg("the filter has no end");
	return 0;
}

struct filters {
	struct cell__buf list, refusals, last;
};

static void filters_init(struct filters *f, const struct cell__filter_options *options)
{
	struct cell_error err;
	*f = (struct filters){ CELL_BUF_INIT, CELL_BUF_INIT, CELL_BUF_INIT };
	assert_int_equal(cell__filter_build(options, &f->list, &err), 0);
	assert_int_equal(cell__filter_refusals(options, &f->refusals, &err), 0);
	assert_int_equal(cell__filter_last(&f->last, &err), 0);
}

static void filters_finish(struct filters *f)
{
	cell__buf_finish(&f->list);
	cell__buf_finish(&f->refusals);
	cell__buf_finish(&f->last);
}

/* 0: allowed; else the errno.  The stricter answer of all counts; of several errnos that of the filter loaded last. */
static int answer(const struct filters *f, int nr, const uint64_t args[6])
{
	struct seccomp_data data = { .nr = nr, .arch = seccomp_arch_native() };
	const struct cell__buf *order[] = { &f->last, &f->list, &f->refusals };
	for (int i = 0; args && i < 6; i++)
		data.args[i] = args[i];
	for (int i = 0; i < 3; i++) {
		uint32_t action = run(order[i], &data);
		if (action != SECCOMP_RET_ALLOW) {
			assert_int_equal(action & SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ERRNO);
			return (int)(action & SECCOMP_RET_DATA);
		}
	}
	return 0;
}

/* ---- what there is to be judged ---- */

static bool is_judged(const char *call)
{
	int error;
	bool conditions;
	return cell__filter_judgement(call, &usual, &error, &conditions);
}

static void every_call_of_libseccomp(void **state)
{
	(void)state;
	int unjudged = 0, known = 0;
	for (int nr = 0; nr < NUMBERS; nr++) {
		char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, nr);
		if (!name)
			continue;
		known++;
		if (!is_judged(name)) {
			print_error("libseccomp knows %s (%d), and nobody judged it: name it in src/sandbox/seccomp.c\n", name, nr);
			unjudged++;
		}
		free(name);
	}
	assert_true(known > 300);
	assert_int_equal(unjudged, 0);
}

static void every_call_of_the_headers(void **state)
{
	(void)state;
	char line[512], name[128];
	int unjudged = 0, known = 0, nr;
	FILE *file = fopen(headers, "r");
	assert_non_null(file);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "#define __NR_%127s %d", name, &nr) != 2)
			continue;
		known++;
		if (!is_judged(name)) {
			print_error("the headers know %s (%d), and nobody judged it: name it in src/sandbox/seccomp.c\n", name, nr);
			unjudged++;
		}
	}
	fclose(file);
	assert_true(known > 250);
	assert_int_equal(unjudged, 0);
}

/* What is found in the kernel under another name, or is called by i386 programs only, whose ABI is refused as a whole. */
static bool is_elsewhere(const char *name)
{
	static const char *const same[] = { "newfstat", "newlstat", "newstat", "newuname", "sendfile64", "ni_syscall" };
	static const char *const i386[] = {
		"fadvise64_64",
		"fstatfs64",
		"gethostname",
		"ipc",
		"llseek",
		"mmap_pgoff",
		"nice",
		"old_getrlimit",
		"old_msgctl",
		"old_readdir",
		"old_semctl",
		"old_shmctl",
		"oldumount",
		"olduname",
		"recv",
		"send",
		"sgetmask",
		"signal",
		"sigpending",
		"sigprocmask",
		"sigsuspend",
		"socketcall",
		"ssetmask",
		"statfs64",
		"sync_file_range2",
		"waitpid",
		"old_select",
		"old_mmap",
		"old_sigaction",
		"sigaction",
		"sigreturn",
		"readdir",
		"oldstat",
		"spu_create",
		"spu_run",
		"rtas",
		"subpage_prot",
		"pciconfig_iobase",
		"pciconfig_read",
		"pciconfig_write",
		"s390_ipc",
		"s390_pci_mmio_read",
		"s390_pci_mmio_write",
		"bdflush",
	};
	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		if (strcmp(name, same[i]) == 0)
			return true;
	for (size_t i = 0; i < sizeof i386 / sizeof *i386; i++)
		if (strcmp(name, i386[i]) == 0)
			return true;
	size_t size = strlen(name);
	return strncmp(name, "ia32_", 5) == 0 || (size > 2 && strcmp(name + size - 2, "16") == 0) ||
	       (size > 2 && strcmp(name + size - 2, "32") == 0);
}

/* Where the kernel shows the names of its functions (it is x86_64's way of naming them). */
static void every_call_of_this_kernel(void **state)
{
	(void)state;
	static const char prefix[] = "__x64_sys_";
	char line[512];
	int unjudged = 0;
	FILE *file = fopen("/proc/kallsyms", "r");
	while (file && fgets(line, sizeof line, file)) {
		char *name = strstr(line, prefix);
		if (!name || name == line || name[-1] != ' ')
			continue;
		name += sizeof prefix - 1;
		name[strcspn(name, " \t\n")] = '\0';
		if (!strchr(name, '.') && !is_judged(name) && !is_elsewhere(name)) {
			print_error("this kernel has %s, and nobody judged it: name it in src/sandbox/seccomp.c\n", name);
			unjudged++;
		}
	}
	if (file)
		fclose(file);
	assert_int_equal(unjudged, 0);
}

/* ---- what the filters answer ---- */

static void check_answers(const struct cell__filter_options *options)
{
	struct filters f;
	filters_init(&f, options);
	for (int nr = 0; nr < NUMBERS; nr++) {
		char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, nr);
		int error = ENOSYS, got = answer(&f, nr, NULL);
		bool conditions = false;
		if (name && cell__filter_judgement(name, options, &error, &conditions) && got != error && !conditions) {
			print_error("%s answers %d, decided was %d\n", name, got, error);
			fail();
		}
		if (!name && got == 0 && nr < 450)
			fail_msg("the number %d has no name and is allowed", nr);
		free(name);
	}
	assert_int_equal(answer(&f, NUMBERS - 1, NULL), ENOSYS);
	filters_finish(&f);
}

static void answers_are_as_decided(void **state)
{
	(void)state;
	const struct cell__filter_options without = { 0 };
	check_answers(&usual);
	check_answers(&watching);
	check_answers(&without);
}

#define MORE(number) ((1ull << 32) | (number))

static void arguments_are_looked_at(void **state)
{
	(void)state;
	static const struct {
		const char *call;
		uint64_t args[6];
		int error;
	} rows[] = {
		/* setuid and setgid bits by each call that has a mode */
		{ "chmod", { 0, 0755 }, 0 },
		{ "chmod", { 0, 04755 }, EPERM },
		{ "chmod", { 0, 02755 }, EPERM },
		{ "chmod", { 0, MORE(06755) }, EPERM },
		{ "fchmod", { 3, 04755 }, EPERM },
		{ "fchmodat", { 0, 0, 02755 }, EPERM },
		{ "fchmodat2", { 0, 0, 0755, 0 }, 0 },
		{ "fchmodat2", { 0, 0, 04755, 0 }, EPERM },
		{ "fchmodat2", { 0, 0, MORE(02755), 0x1000 }, EPERM },
		{ "mkdir", { 0, 02755 }, EPERM },
		{ "mkdirat", { 0, 0, 04755 }, EPERM },
		{ "creat", { 0, 04755 }, EPERM },
		{ "open", { 0, O_RDONLY, 04755 }, 0 }, /* no file is made: the mode is whatever was in the register */
		{ "open", { 0, O_CREAT | O_WRONLY, 0755 }, 0 },
		{ "open", { 0, O_CREAT | O_WRONLY, 04755 }, EPERM },
		{ "open", { 0, O_TMPFILE | O_RDWR, 04755 }, EPERM },
		{ "open", { 0, O_DIRECTORY, 04755 }, 0 },
		{ "openat", { 0, 0, O_CREAT | O_EXCL, 02755 }, EPERM },
		{ "openat", { 0, 0, MORE(O_CREAT), MORE(02755) }, EPERM },
		{ "openat", { 0, 0, O_TMPFILE | O_RDWR, 02700 }, EPERM },
		{ "openat", { 0, 0, O_TMPFILE | O_RDWR, 0600 }, 0 },
		{ "openat2", { 0 }, ENOSYS },
		/* files of the host */
		{ "fcntl", { 3, F_SETFL, 0 }, 0 },
		{ "fcntl", { 3, F_SETLEASE, F_WRLCK }, EPERM },
		{ "fcntl", { 3, MORE(F_SETLEASE), F_RDLCK }, EPERM },
		{ "fcntl", { 3, F_NOTIFY, 1 }, EPERM },
		{ "fcntl", { 3, F_GETLEASE, 0 }, 0 },
		/* terminals, handles of namespaces */
		{ "ioctl", { 0, 0x5413 /* TIOCGWINSZ */ }, 0 },
		{ "ioctl", { 0, 0x5412 /* TIOCSTI */ }, EPERM },
		{ "ioctl", { 0, MORE(0x5412) }, EPERM },
		{ "ioctl", { 0, 0xb701 /* NS_GET_USERNS */ }, EPERM },
		{ "ioctl", { 0, 0x8008b705 /* NS_GET_MNTNS_ID */ }, EPERM },
		{ "ioctl", { 0, 0xff03 /* PIDFD_GET_MNT_NAMESPACE */ }, EPERM },
		/* sockets */
		{ "socket", { AF_INET, SOCK_STREAM, 0 }, 0 },
		{ "socket", { AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 6 }, 0 },
		{ "socket", { AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 17 }, 0 },
		{ "socket", { AF_INET, SOCK_STREAM, 262 /* MPTCP */ }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_STREAM, 132 /* SCTP */ }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_STREAM, 17 }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_DGRAM, 136 /* UDP-Lite */ }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_DGRAM, 1 /* ICMP */ }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_DGRAM, 115 /* L2TP */ }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_DGRAM, MORE(17) }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_STREAM, (uint64_t)-1 }, EPROTONOSUPPORT },
		{ "socket", { AF_INET, SOCK_SEQPACKET, 0 }, ESOCKTNOSUPPORT },
		{ "socket", { AF_INET, 6 /* SOCK_DCCP */, 33 }, ESOCKTNOSUPPORT },
		{ "socket", { AF_INET, SOCK_RAW, 1 }, EPERM },
		{ "socket", { AF_INET, MORE(SOCK_RAW), 1 }, EPERM },
		{ "socket", { MORE(AF_INET), SOCK_STREAM, 0 }, EAFNOSUPPORT },
		{ "socket", { AF_NETLINK, SOCK_RAW, 6 /* XFRM */ }, EAFNOSUPPORT },
		{ "socket", { 33 /* AF_RXRPC */, SOCK_DGRAM, AF_INET }, EAFNOSUPPORT },
		{ "socket", { 38 /* AF_ALG */, SOCK_SEQPACKET, 0 }, EAFNOSUPPORT },
		{ "socket", { AF_UNIX, SOCK_STREAM, 0 }, 0 },
		{ "socket", { AF_UNIX, SOCK_RAW, 0 }, ESOCKTNOSUPPORT },
		{ "socketpair", { AF_UNIX, SOCK_DGRAM, 0 }, 0 },
		{ "socketpair", { 30 /* AF_TIPC */, SOCK_STREAM, 0 }, EAFNOSUPPORT },
		{ "socketpair", { MORE(AF_UNIX), SOCK_STREAM, 0 }, EAFNOSUPPORT },
		{ "socketpair", { 0, SOCK_STREAM, 0 }, EAFNOSUPPORT },
		{ "setsockopt", { 3, SOL_SOCKET, SO_REUSEADDR }, 0 },
		{ "setsockopt", { 3, SOL_SOCKET, SO_ATTACH_FILTER }, EPERM },
		{ "setsockopt", { 3, MORE(SOL_SOCKET), MORE(SO_ATTACH_FILTER) }, EPERM },
		{ "setsockopt", { 3, 6, 31 /* TCP_ULP */ }, ENOPROTOOPT },
		{ "setsockopt", { 3, 17, 100 /* UDP_ENCAP */ }, ENOPROTOOPT },
		{ "setsockopt", { 3, SOL_SOCKET, 60 /* SO_ZEROCOPY */ }, EOPNOTSUPP },
		{ "setsockopt", { 3, 6, 1 /* TCP_NODELAY */ }, 0 },
		{ "sendto", { 3, 0, 1, MSG_NOSIGNAL }, 0 },
		{ "sendto", { 3, 0, 1, MSG_OOB }, EOPNOTSUPP },
		{ "recvmsg", { 3, 0, MSG_OOB | MSG_PEEK }, EOPNOTSUPP },
		/* the rest */
		{ "clone", { 0x11 }, 0 },
		{ "clone", { 0x10000011 }, EPERM },
		{ "clone", { 0x91 /* a time namespace */ }, EPERM },
		{ "clone3", { 0 }, ENOSYS },
		{ "personality", { 0xffffffff }, 0 },
		{ "personality", { 0x0040000 }, ENOSYS },
		{ "madvise", { 0, 0, MADV_DONTNEED }, 0 },
		{ "madvise", { 0, 0, MADV_MERGEABLE }, EINVAL },
		{ "prctl", { 67, 1 }, EINVAL },
		{ "prctl", { 15 /* PR_SET_NAME */ }, 0 },
		{ "splice", { 0 }, EINVAL },
		{ "inotify_init1", { 0 }, ENOSYS },
		{ "cachestat", { 0 }, ENOSYS },
		{ "preadv2", { 3, 0, 1, 0, 0, 0 }, 0 },
		{ "preadv2", { 3, 0, 1, 0, 0, 8 /* RWF_NOWAIT */ }, EOPNOTSUPP },
	};
	struct filters f;
	filters_init(&f, &usual);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		int nr = cell__filter_number(rows[i].call);
		int got = nr < 0 ? rows[i].error : answer(&f, nr, rows[i].args);
		if (got != rows[i].error)
			fail_msg("row %zu: %s(0x%llx, 0x%llx, 0x%llx, 0x%llx) answers %d, not %d", i, rows[i].call,
				 (unsigned long long)rows[i].args[0], (unsigned long long)rows[i].args[1],
				 (unsigned long long)rows[i].args[2], (unsigned long long)rows[i].args[3], got, rows[i].error);
	}
	filters_finish(&f);
	filters_init(&f, &watching);
	assert_int_equal(answer(&f, cell__filter_number("inotify_init1"), NULL), 0);
	filters_finish(&f);
}

/* A call of i386 or x32 is refused by every filter that could see it. */
static void other_machines_are_refused(void **state)
{
	(void)state;
	struct filters f;
	filters_init(&f, &usual);
	struct seccomp_data foreign = { .nr = 20, .arch = AUDIT_ARCH_I386 };
	if (seccomp_arch_native() != SCMP_ARCH_X86)
		assert_int_equal(run(&f.list, &foreign), SECCOMP_RET_ERRNO | EPERM);
	if (seccomp_arch_native() == SCMP_ARCH_X86_64)
		assert_int_equal(answer(&f, 0x40000000 + 39, NULL), EPERM);
	filters_finish(&f);
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s FILE (macros of asm/unistd.h)\n", argv[0]);
		return 2;
	}
	headers = argv[1];
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_call_of_libseccomp),  cmocka_unit_test(every_call_of_the_headers),
		cmocka_unit_test(every_call_of_this_kernel), cmocka_unit_test(answers_are_as_decided),
		cmocka_unit_test(arguments_are_looked_at),   cmocka_unit_test(other_machines_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
