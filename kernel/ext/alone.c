/*
 * Whether a kernel has nothing that a fork would lack, in a few system calls. Asked before every point of undo, so it makes no Python
 * objects: after a fork each page that is written to is copied. Where the answer is not plainly yes, branch.py looks closer.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct entry { /* of getdents64(), which has no declaration */
	uint64_t ino;
	int64_t off;
	unsigned short size;
	unsigned char type;
	char name[];
};

static bool has_one_thread(void)
{
	struct stat st;
	return stat("/proc/self/task", &st) == 0 && st.st_nlink == 3; /* itself, its parent, and one for each thread */
}

static bool has_no_child(void)
{
	siginfo_t info;
	return waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) < 0 && errno == ECHILD;
}

static bool is_known(int fd, const int *known, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (known[i] == fd)
			return true;
	return fd <= 2;
}

static bool has_only(const int *known, size_t n, int dir)
{
	union {
		struct entry align;
		char bytes[2048];
	} buf;
	ssize_t size;
	while ((size = syscall(SYS_getdents64, dir, &buf, sizeof buf)) > 0)
		for (ssize_t at = 0; at < size;) {
			const struct entry *entry = (const struct entry *)(buf.bytes + at);
			at += entry->size;
			if (entry->name[0] != '.' && !is_known(atoi(entry->name), known, n))
				return false;
		}
	return size == 0;
}

/* is_alone(fd, ...) -> True: one thread, no child process, no descriptors but the kernel's own and these */
PyObject *wc_is_alone(PyObject *self, PyObject *args)
{
	(void)self;
	struct wc_ends ends = wc_ends();
	int known[5 + WC_PASSED_FDS] = { ends.sock, ends.out, ends.err, ends.lifeline };
	size_t n = 5;
	for (Py_ssize_t i = 0; i < PyTuple_Size(args) && i < WC_PASSED_FDS; i++)
		known[n++] = (int)PyLong_AsLong(PyTuple_GetItem(args, i));
	if (PyErr_Occurred())
		return NULL;
	bool alone = has_one_thread() && has_no_child();
	int dir = alone ? open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
	known[4] = dir;
	alone = dir >= 0 && has_only(known, n, dir);
	if (dir >= 0)
		close(dir);
	return PyBool_FromLong(alone);
}
