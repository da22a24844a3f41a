#define _GNU_SOURCE
#include "spawn/message.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

int cell__spawn_send(int fd, const struct cell_spawn_msg *head, const void *payload, size_t size, const int *fds, size_t n_fds, int flags)
{
	struct iovec iov[2] = { { (void *)head, sizeof *head }, { (void *)payload, size } };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_SPAWN_MAX_FDS * sizeof(int))];
	} control = { 0 };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	if (n_fds > 0) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
	}
	while (sendmsg(fd, &msg, MSG_NOSIGNAL | flags) < 0)
		if (errno != EINTR)
			return -errno;
	return 0;
}

ssize_t cell__spawn_receive(int fd, void *room, size_t size, int *fds, size_t max_fds, size_t *ret_n_fds, int flags)
{
	struct iovec iov = { room, size };
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(CELL_SPAWN_MAX_FDS * sizeof(int))];
	} control;
	/* CMSG_LEN, not CMSG_SPACE: the padding would have room for another descriptor. */
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_LEN(max_fds * sizeof(int))
	};
	ssize_t n;
	do
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | flags);
	while (n < 0 && errno == EINTR);
	*ret_n_fds = 0;
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
		*ret_n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		memcpy(fds, CMSG_DATA(c), *ret_n_fds * sizeof(int));
	}
	return n;
}
