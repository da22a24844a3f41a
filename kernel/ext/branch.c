/*
 * The fork of a live kernel.
 *
 * Theory of operation
 *
 *   The new kernel must not be a child of the old one: it outlives it, and the code of the old one must not wait for it or find it among
 *   its children. A kernel is a subreaper, so a double fork would not help either. Hence a third process for a moment, as in confine.c,
 *   which is not the kernel's child but its sibling (CLONE_PARENT):
 *
 *       kernel ──clone(VM, VFORK, PARENT)──▶ usher ──fork──▶ branch
 *                                              └── ends; the branch becomes a child of the spawner, the next subreaper
 *
 *   The usher shares the kernel's memory and the kernel is suspended in the meantime, so there is one copy of the page tables. fork() is
 *   the C library's: handlers that libraries registered with pthread_atfork() run (OpenBLAS ends its threads there, and starts them again
 *   with their next use). The usher has a stack of its own, because both return from clone(); the branch jumps from there to the stack of
 *   the kernel, of which it has a copy.
 */
#define _GNU_SOURCE
#undef _FORTIFY_SOURCE /* its longjmp() ends a program that jumps from one stack to another; clang has __builtin_longjmp() only for x86 */
#include "ext.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#define STACK_BYTES (256 * 1024) /* for the handlers */

/* Written by the usher, read by the kernel: they share memory. */
static volatile struct {
	pid_t branch;
	int error;
} usher;
static jmp_buf to_kernel_stack;
static char *stack; /* the usher's; not a local variable, which would be lost where the branch jumps to */

static int run_usher(void *unused)
{
	(void)unused;
	usher.branch = fork();
	if (usher.branch == 0)
		_longjmp(to_kernel_stack, 1);
	usher.error = errno;
	_exit(0);
}

static void __attribute__((noinline)) start_usher(void)
{
	if (clone(run_usher, stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | CLONE_PARENT | SIGCHLD, NULL) < 0)
		usher.error = errno;
}

/* branch() -> the new kernel's pid; 0 in the new kernel */
PyObject *wc_branch(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED)
		return PyErr_SetFromErrno(PyExc_OSError);
	PyOS_BeforeFork();
	usher.branch = -1;
	usher.error = 0;
	if (_setjmp(to_kernel_stack) != 0) {
		PyOS_AfterFork_Child();
		munmap(stack, STACK_BYTES);
		return PyLong_FromLong(0);
	}
	start_usher();
	PyOS_AfterFork_Parent();
	munmap(stack, STACK_BYTES);
	if (usher.branch <= 0) {
		errno = usher.error ? usher.error : EIO;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	return PyLong_FromLong(usher.branch);
}
