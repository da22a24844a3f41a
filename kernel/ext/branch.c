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
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
static int passed_fds[WC_PASSED_FDS]; /* that came with a FORK frame and were not taken yet */
static int n_passed;

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

/* ---- the new kernel ---- */

static void close_passed(void)
{
	while (n_passed > 0)
		close(passed_fds[--n_passed]);
}

void wc_keep_passed(struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		close_passed();
		n_passed = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(passed_fds, CMSG_DATA(c), (size_t)n_passed * sizeof(int));
	}
}

/* take_fds() -> [socket, stdout, stderr, ring] that came with the last FORK frame */
PyObject *wc_take_fds(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	PyObject *list = PyList_New(0);
	for (int i = 0; list && i < n_passed; i++) {
		PyObject *number = PyLong_FromLong(passed_fds[i]);
		if (!number || PyList_Append(list, number) < 0)
			Py_CLEAR(list);
		Py_XDECREF(number);
	}
	if (list)
		n_passed = 0;
	return list;
}

/* The old descriptor's number, and whatever was duplicated from it, leads to the new one from now on. */
static int replace_fd(int new_fd, int old_fd)
{
	struct stat old, other;
	if (fstat(old_fd, &old) < 0)
		return -1;
	for (int fd = 0; fd < old_fd; fd++) {
		int flags = fcntl(fd, F_GETFD);
		if (flags < 0 || fd == new_fd || fstat(fd, &other) < 0 || other.st_ino != old.st_ino || other.st_dev != old.st_dev)
			continue;
		if (dup3(new_fd, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0) < 0)
			return -1;
	}
	if (dup3(new_fd, old_fd, O_CLOEXEC) < 0)
		return -1;
	return close(new_fd);
}

/*
 * become_branch(socket, stdout, stderr, ring): in a fork of this kernel. Descriptors keep their numbers and the ring its address: event
 * loops and views of the memory refer to them.
 */
PyObject *wc_become_branch(PyObject *self, PyObject *args)
{
	(void)self;
	int sock, out, err, ring_fd;
	struct wc_ends old = wc_ends();
	if (!PyArg_ParseTuple(args, "iiii", &sock, &out, &err, &ring_fd) || wc_lead(old.lifeline) < 0)
		return NULL;
	if (old.lifeline >= 0)
		close(old.lifeline);
	if (replace_fd(out, old.out) < 0 || replace_fd(err, old.err) < 0 || dup3(sock, old.sock, O_CLOEXEC) < 0)
		return wc_fail_step("take over descriptors");
	close(sock);
	if (wc_begin_again(ring_fd) < 0)
		return NULL;
	Py_RETURN_NONE;
}
