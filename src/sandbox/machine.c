#define _GNU_SOURCE
#include "sandbox/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "sandbox/apply.h"
#include "sandbox/guard.h"
#include "sandbox/mapped.h"

#define STACK_BYTES (64u * 1024u)
#define ALL_NAMESPACES (CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

/* A plan of the steps that fail where user namespaces are forbidden in one way or another. */
struct trial {
	_Alignas(8) char bytes[sizeof(struct cell_plan) + 2 * (sizeof(struct cell_plan_step) + 8)];
	struct cell_plan_report report;
};

static void trial_init(struct trial *trial)
{
	const struct cell_plan head = { .n_steps = 2, .clone_flags = ALL_NAMESPACES };
	const struct {
		uint16_t op;
		uint64_t arg, arg2;
	} steps[2] = { { CELL_OP_IDS, geteuid(), getegid() }, { CELL_OP_ROOT, 65536, 0 } };
	size_t at = sizeof head;
	memset(trial, 0, sizeof *trial);
	trial->report.step = -1;
	memcpy(trial->bytes, &head, sizeof head);
	for (int i = 0; i < 2; i++) {
		const struct cell_plan_step step = {
			.bytes = sizeof step + 8, .op = steps[i].op, .stage = CELL_STAGE_JAIL, .arg = steps[i].arg, .arg2 = steps[i].arg2
		};
		memcpy(trial->bytes + at, &step, sizeof step);
		at += step.bytes;
	}
}

static int try_confinement(void *arg)
{
	struct trial *trial = arg;
	struct cell_apply apply = { .plan = (const struct cell_plan *)trial->bytes, .landlock_fd = -1 };
	return cell__apply_stage(&apply, CELL_STAGE_JAIL, &trial->report) < 0 ? 1 : 0;
}

static long read_number(const char *path, long missing)
{
	char text[32] = "";
	CELL_AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
	return n > 0 ? strtol(text, NULL, 10) : missing;
}

static void explain(struct cell__machine *machine, const char *what, int error)
{
	snprintf(machine->reason, sizeof machine->reason, "%s: %s", what, strerror(error));
	if (geteuid() != 0 && prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 1)
		snprintf(machine->advice, sizeof machine->advice,
			 "this process is not dumpable: call cell_executor_probe() before prctl(PR_SET_DUMPABLE, 0)");
	else if (read_number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", 0) == 1)
		snprintf(machine->advice, sizeof machine->advice, "%s", CELL_ADVICE_APPARMOR);
	else if (read_number("/proc/sys/kernel/unprivileged_userns_clone", 1) == 0)
		snprintf(machine->advice, sizeof machine->advice, "as root, `sysctl kernel.unprivileged_userns_clone=1`");
	else if (read_number("/proc/sys/user/max_user_namespaces", 1) == 0)
		snprintf(machine->advice, sizeof machine->advice, "as root, `sysctl user.max_user_namespaces=10000`");
	else if (error == ENOSYS)
		snprintf(machine->advice, sizeof machine->advice, "the kernel is older than Linux 5.12, or lacks namespaces");
	else
		snprintf(machine->advice, sizeof machine->advice,
			 "in a container, start the container with seccomp and AppArmor profiles that allow user namespaces");
}

static bool try_namespaces(struct cell__machine *machine)
{
	void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	struct trial trial;
	trial_init(&trial);
	if (stack == MAP_FAILED) {
		explain(machine, "make a process", errno);
		return false;
	}
	/* No exit signal: the host does not notice it. Memory is shared and we wait, as with vfork(). */
	pid_t pid = clone(try_confinement, (char *)stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | ALL_NAMESPACES, &trial);
	int error = errno, status = 0;
	if (pid > 0)
		while (waitpid(pid, &status, __WCLONE) < 0 && errno == EINTR) {
		}
	munmap(stack, STACK_BYTES);
	if (pid < 0)
		explain(machine, "user namespaces cannot be created", error);
	else if (trial.report.step == 0)
		explain(machine, "a user namespace was created but grants no rights", trial.report.sys);
	else if (trial.report.step == 1)
		explain(machine, "a user namespace was created but nothing can be mounted in it", trial.report.sys);
	return pid > 0 && trial.report.step < 0;
}

static void probe_subids(struct cell__machine *machine)
{
	/* A group of version 1 is joined with the uid of the process that opened it. */
	if (machine->cgroups.version == 1) {
		snprintf(machine->no_subids, sizeof machine->no_subids, "cgroups of version 1 count processes of one's own uid alone");
		snprintf(machine->subids_advice, sizeof machine->subids_advice, "use a system with cgroups of version 2");
		return;
	}
	(void)cell__mapped_subids(&machine->subids, machine->no_subids, machine->subids_advice);
}

void cell__machine_probe(struct cell__machine *ret_machine)
{
	struct cell__machine machine = { .level = CELL_LEVEL_UNAVAILABLE };
	long abi = syscall(SYS_landlock_create_ruleset, NULL, 0, 1 /* LANDLOCK_CREATE_RULESET_VERSION */);
	uint32_t action = SECCOMP_RET_ALLOW;
	machine.landlock_abi = abi > 0 ? (int)abi : 0;
	machine.seccomp = syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
	machine.guards = cell__guard_is_possible();
	machine.is_root = cell__mapped_is_root();
	cell__cgroups_find(&machine.cgroups);
	if (!machine.seccomp) {
		snprintf(machine.reason, sizeof machine.reason, "this kernel has no seccomp filters");
		snprintf(machine.advice, sizeof machine.advice, "use a kernel with CONFIG_SECCOMP_FILTER");
	} else if (try_namespaces(&machine)) {
		machine.level = CELL_LEVEL_FULL;
		machine.own_uid = cell__mapped_possible();
		if (!machine.own_uid && geteuid() != 0)
			probe_subids(&machine);
	} else if (machine.landlock_abi > 0) {
		machine.level = CELL_LEVEL_NO_USERNS;
	}
	*ret_machine = machine;
}

unsigned cell__machine_mapped(const struct cell__machine *machine)
{
	return !machine->trees ? CELL_MAPPED_NOT : machine->own_uid ? CELL_MAPPED_MOUNTS : CELL_MAPPED_SUBIDS;
}

static struct cell__machine here;
static pthread_once_t here_once = PTHREAD_ONCE_INIT;

static void probe_here(void)
{
	cell__machine_probe(&here);
}

const struct cell__machine *cell__machine_here(void)
{
	pthread_once(&here_once, probe_here);
	return &here;
}
