/*
 * The zygote's side: messages of the spawner, exits of children, and the titles of processes.
 *
 * zygote_open() once, then zygote_next() in a loop: requests of the spawner, or exits of children. The zygote has one thread, and os.fork()
 * makes the kernels.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire/spawn_msg.h"

static int zygote_fd = -1;
static int child_signal_fd = -1;
static bool has_ended; /* a child, which is not reaped yet: without it Linux is not asked, because that looks at every child */

/*
 * The memory that `ps` shows as the command line: a kernel writes the name of its session there.  NULL: it was not found.  The zygote
 * looks for it, because a confined kernel has no /proc.
 */
static char *title_at;
static size_t title_size;

static void find_title(uintptr_t begin, uintptr_t end)
{
	if (!begin || end <= begin || end - begin > 65536)
		return;
	title_at = (char *)begin;
	title_size = end - begin;
}

/* title(text): what ps and top show for this process. */
PyObject *wc_title(PyObject *self, PyObject *args)
{
	(void)self;
	const char *text;
	if (!PyArg_ParseTuple(args, "s", &text))
		return NULL;
	prctl(PR_SET_NAME, text);
	if (title_at) {
		/* The last byte stays 0: otherwise the environment would be read as the rest of it. */
		memset(title_at, 0, title_size);
		memcpy(title_at, text, strnlen(text, title_size - 1));
	}
	Py_RETURN_NONE;
}

PyObject *wc_zygote_open(PyObject *self, PyObject *fd)
{
	(void)self;
	zygote_fd = (int)PyLong_AsLong(fd);
	if (PyErr_Occurred())
		return NULL;
	uintptr_t begin, end;
	wc_image_begin(&begin, &end);
	wc_measure_write();
	wc_heap_begin();
	find_title(begin, end);
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	child_signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (child_signal_fd < 0)
		return wc_fail_step("signalfd");
	Py_RETURN_NONE;
}

/* In a freshly forked kernel: removes all state of the zygote. */
PyObject *wc_zygote_leave(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	sigset_t set;
	sigemptyset(&set);
	sigprocmask(SIG_SETMASK, &set, NULL);
	close(child_signal_fd);
	close(zygote_fd);
	child_signal_fd = zygote_fd = -1;
	Py_RETURN_NONE;
}

static PyObject *zygote_receive(void)
{
	char bytes[4096];
	struct iovec iov = { bytes, sizeof bytes };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_SPAWN_MAX_FDS * sizeof(int))];
	} control;
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	ssize_t n = recvmsg(zygote_fd, &msg, MSG_CMSG_CLOEXEC);
	if (n < 0 && errno == EINTR)
		Py_RETURN_NONE;
	if (n <= 0)
		return Py_BuildValue("(s)", "end");
	struct cell_spawn_msg head;
	if ((size_t)n < sizeof head)
		return PyErr_Format(PyExc_ConnectionError, "short message from the spawner");
	memcpy(&head, bytes, sizeof head);
	if (head.version != CELL_SPAWN_VERSION)
		return PyErr_Format(PyExc_ConnectionError, "spawner protocol version %u, expected %u", head.version, CELL_SPAWN_VERSION);
	PyObject *fds = PyList_New(0);
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&msg); fds && c; c = CMSG_NXTHDR(&msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			PyObject *number = PyLong_FromLong(fd);
			if (!number || PyList_Append(fds, number) < 0) {
				Py_XDECREF(number);
				Py_DECREF(fds);
				return NULL;
			}
			Py_DECREF(number);
		}
	}
	if (!fds)
		return NULL;
	return Py_BuildValue("siKLNy#", "message", (int)head.type, (unsigned long long)head.id, (long long)head.b, fds, bytes + sizeof head,
			     (Py_ssize_t)((size_t)n - sizeof head));
}

/*
 * zygote_next(timeout_ms) -> ("message", type, id, b, [fds], payload) | ("exit", pid, status) | ("end",) | None
 * None: the time is up, or a signal came.
 */
PyObject *wc_zygote_next(PyObject *self, PyObject *args)
{
	(void)self;
	int timeout_ms;
	if (!PyArg_ParseTuple(args, "i", &timeout_ms))
		return NULL;
	struct pollfd p[2] = {
		{ .fd = zygote_fd, .events = POLLIN },
		{ .fd = child_signal_fd, .events = POLLIN },
	};
	/* A child's signal is not idle time: its exit is returned before the caller does anything else. */
	do {
		struct signalfd_siginfo info;
		while (read(child_signal_fd, &info, sizeof info) > 0)
			has_ended = true;
		int status;
		pid_t pid = has_ended ? waitpid(-1, &status, WNOHANG) : 0;
		if (pid > 0)
			return Py_BuildValue("sii", "exit", (int)pid, status);
		has_ended = false;
		if (poll(p, 2, timeout_ms) <= 0)
			Py_RETURN_NONE;
	} while (!p[0].revents);
	return zygote_receive();
}

static void attach_fd(struct msghdr *msg, void *space, size_t size, int fd)
{
	msg->msg_control = space;
	msg->msg_controllen = size;
	struct cmsghdr *c = CMSG_FIRSTHDR(msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(c), &fd, sizeof fd);
}

/* zygote_send(type, id, a, b, payload, pid=0): with the pidfd of that process, unless it has ended */
PyObject *wc_zygote_send(PyObject *self, PyObject *args)
{
	(void)self;
	int type, pid = 0;
	unsigned long long id;
	long long a, b;
	const char *payload;
	Py_ssize_t size;
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	if (!PyArg_ParseTuple(args, "iKLLy#|i", &type, &id, &a, &b, &payload, &size, &pid))
		return NULL;
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION, .type = (uint32_t)type, .id = id, .a = a, .b = b };
	struct iovec iov[2] = { { &head, sizeof head }, { (void *)payload, (size_t)size } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	int pidfd = pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1, error = 0;
	if (pidfd >= 0)
		attach_fd(&msg, &control, sizeof control, pidfd);
	while (!error && sendmsg(zygote_fd, &msg, MSG_NOSIGNAL) < 0)
		error = errno == EINTR ? 0 : errno;
	if (pidfd >= 0)
		close(pidfd);
	errno = error;
	if (error)
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}
