#define _GNU_SOURCE
#include "sandbox/guard.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Since Linux 5.19: a call that was handed over is not begun again because of a signal, after it was performed. */
#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#define FLAGS (SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)

bool cell__guard_is_possible(void)
{
	/* Flags are looked at before the filter. */
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, FLAGS, NULL) < 0 && errno == EFAULT;
}

struct hello {
	struct cell_guard_hello head;
	char text[CELL_GUARD_MAX_BYTES - sizeof(struct cell_guard_hello)];
	size_t size;
};

static int add(struct hello *hello, char kind, const char *text)
{
	size_t n = strlen(text);
	if (sizeof hello->text - hello->size < n + 2) {
		errno = E2BIG;
		return -1;
	}
	hello->text[hello->size] = kind;
	memcpy(hello->text + hello->size + 1, text, n + 1);
	hello->size += n + 2;
	return 0;
}

/* 1: something is protected; 0: nothing is. */
static int fill(struct hello *hello, const struct cell_plan *session, const struct cell_plan_step *names)
{
	int found = 0;
	const struct cell_plan_step *step = session ? cell__plan_first(session) : NULL;
	for (uint32_t i = 0; session && i < session->n_steps; i++, step = cell__plan_next(step)) {
		if (step->op != CELL_OP_PLACE)
			continue;
		if (add(hello, step->arg ? CELL_GUARD_PROTECTED : CELL_GUARD_FREE, cell__step_a(step)) < 0)
			return -1;
		found |= step->arg != 0;
	}
	/* Names have no slash. */
	for (const char *at = cell__step_b(names); *at;) {
		char name[256] = "";
		size_t n = strcspn(at, "/");
		if (n >= sizeof name) {
			errno = EINVAL;
			return -1;
		}
		memcpy(name, at, n);
		if (n > 0 && add(hello, CELL_GUARD_UNPROTECT, name) < 0)
			return -1;
		at += n + (at[n] == '/');
	}
	return found;
}

/* Waits for pid 1's answer; -1 with errno. */
static int hear(int fd)
{
	int32_t error = 0;
	ssize_t n;
	do
		n = recv(fd, &error, sizeof error, 0);
	while (n < 0 && errno == EINTR);
	if (n != (ssize_t)sizeof error || error) {
		errno = n < 0 ? errno : n == (ssize_t)sizeof error ? error : EPIPE;
		return -1;
	}
	return 0;
}

static int send_listener(int fd, int listener)
{
	char byte = 0;
	struct iovec iov = { &byte, 1 };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &listener, sizeof listener);
	return sendmsg(fd, &msg, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

/*
 * pid 1 reads the paths in the memory of the code's processes.  It has no rights over one that is not dumpable: its user namespace is that of
 * the zygote, which is not ours.  Programs that the code executes are dumpable anyway, and no other process sees ours.
 */
static int meet(int fd, struct hello *hello, const struct cell_plan_step *step)
{
	static uint64_t probe = CELL_GUARD_PROBE;
	struct sock_fprog program = {
		.len = (unsigned short)(step->a_size / sizeof(struct sock_filter)),
		.filter = (struct sock_filter *)cell__step_a(step),
	};
	hello->head = (struct cell_guard_hello){ .version = CELL_GUARD_VERSION, .probe_at = (uintptr_t)&probe };
	if (prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) < 0 || send(fd, hello, sizeof hello->head + hello->size, MSG_NOSIGNAL) < 0)
		return -1;
	if (hear(fd) < 0) {
		int error = errno;
		if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)
			errno = error;
		return -1;
	}
	int listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, FLAGS, &program);
	if (listener < 0)
		return -1;
	int rc = send_listener(fd, listener);
	if (rc == 0)
		rc = hear(fd);
	int error = errno;
	close(listener);
	errno = error;
	return rc;
}

int cell__guard_join(const struct cell_plan *session, const struct cell_plan_step *step, int known_fd)
{
	static struct hello hello;
	static const struct sockaddr_un at = { .sun_family = AF_UNIX, .sun_path = CELL_GUARD_SOCKET };
	hello.size = 0;
	int rc = fill(&hello, session, step);
	if (rc <= 0)
		return rc;
	if (known_fd >= 0)
		return meet(known_fd, &hello, step);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	rc = connect(fd, (const struct sockaddr *)&at, sizeof at);
	if (rc == 0)
		rc = meet(fd, &hello, step);
	int error = errno;
	close(fd);
	errno = error;
	return rc;
}
