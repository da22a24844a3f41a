/*
 * See dialer.h.
 *
 *     waiting (connections queue up) ──serve──▶ accept ──peer is not the pid──▶ refused with the reason
 *        ▲                                         └──▶ job on the pool: resolve, connect, hand over ──┐
 *        └──────────────────────────────────────────────────────────────────────────────────────────┘
 */
#define _GNU_SOURCE
#include "executors/container/dialer.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "loop/listen.h"

#define MAX_JOBS 2 /* all share the pool */
#define BACKLOG 64
#define CONNECT_TIMEOUT_MS 3000

struct cell__dialer {
	struct cell__loop *loop;
	uv_poll_t poll;
	int fd;
	pid_t pid;
	char *host, *path, port[8];
	unsigned jobs;
	bool closed;             /* the handle is */
	void (*done)(void *arg); /* not NULL: it is being closed */
	void *done_arg;
};

struct job {
	uv_work_t work;
	struct cell__dialer *dialer;
	int client;
};

/* ---- one connection; libuv's pool ---- */

static int connect_to(const struct sockaddr *address, socklen_t size)
{
	CELL_AUTO_FD int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct pollfd wait = { .fd = fd, .events = POLLOUT };
	int error = 0, yes = 1;
	socklen_t error_size = sizeof(error);

	if (fd < 0)
		return -1;
	if (connect(fd, address, size) < 0) {
		if (errno != EINPROGRESS)
			return -1;
		if (poll(&wait, 1, CONNECT_TIMEOUT_MS) != 1) {
			errno = ETIMEDOUT;
			return -1;
		}
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size) < 0 || error) {
			errno = error ? error : EIO;
			return -1;
		}
	}
	if (address->sa_family != AF_UNIX)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	return cell__take_fd(&fd);
}

static int connect_tcp(const struct cell__dialer *dialer, const char **ret_why)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV }, *list = NULL;
	int rc = getaddrinfo(dialer->host, dialer->port, &hints, &list), fd = -1;

	if (rc) {
		*ret_why = gai_strerror(rc);
		return -1;
	}
	for (struct addrinfo *at = list; at && fd < 0; at = at->ai_next)
		fd = connect_to(at->ai_addr, at->ai_addrlen);
	*ret_why = fd < 0 ? strerror(errno) : NULL;
	freeaddrinfo(list);
	return fd;
}

static int connect_unix(const struct cell__dialer *dialer, const char **ret_why)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;

	strcpy(address.sun_path, dialer->path); /* it fits, says cell__dialer_create() */
	fd = connect_to((struct sockaddr *)&address, sizeof(address));
	*ret_why = fd < 0 ? strerror(errno) : NULL;
	return fd;
}

/* A peer that does not read gets nothing: the message fits into the buffer of a new socket. */
static void hand_over(int client, int fd, const char *why)
{
	_Alignas(struct cmsghdr) char room[CMSG_SPACE(sizeof(fd))] = { 0 };
	struct iovec text = { (char *)(fd < 0 ? why : "+"), fd < 0 ? strlen(why) : 1 };
	struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1 };
	struct cmsghdr *head;

	if (fd >= 0) {
		message.msg_control = room;
		message.msg_controllen = sizeof(room);
		head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	}
	(void)sendmsg(client, &message, MSG_NOSIGNAL | MSG_DONTWAIT); /* a peer that has gone needs no message */
}

static void connect_for_client(uv_work_t *work)
{
	struct job *job = work->data;
	const char *why = NULL;
	CELL_AUTO_FD int fd = job->dialer->host ? connect_tcp(job->dialer, &why) : connect_unix(job->dialer, &why);

	hand_over(job->client, fd, why);
}

/* ---- the loop's thread ---- */

static void free_if_over(struct cell__dialer *dialer)
{
	void (*done)(void *) = dialer->done;
	void *arg = dialer->done_arg;

	if (dialer->jobs || !dialer->closed)
		return;
	cell__close_fd(&dialer->fd);
	free(dialer->host);
	free(dialer->path);
	free(dialer);
	if (done)
		done(arg);
}

static void handle_client(uv_poll_t *poll, int status, int events);

static void handle_handed_over(uv_work_t *work, int status)
{
	struct job *job = work->data;
	struct cell__dialer *dialer = job->dialer;

	(void)status; /* never cancelled */
	cell__close_fd(&job->client);
	free(job);
	if (dialer->jobs-- == MAX_JOBS && !dialer->done)
		uv_poll_start(&dialer->poll, UV_READABLE, handle_client);
	free_if_over(dialer);
}

static void handle_client(uv_poll_t *poll, int status, int events)
{
	struct cell__dialer *dialer = poll->data;
	struct ucred peer = { 0 };
	socklen_t size = sizeof(peer);
	struct job *job;

	(void)events;
	CELL_AUTO_FD int fd = status < 0 ? -1 : accept4(dialer->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || peer.pid != dialer->pid) {
		hand_over(fd, -1, "permission denied");
		return;
	}
	job = cell__alloc(1, sizeof(*job));
	if (!job) {
		hand_over(fd, -1, "out of memory");
		return;
	}
	*job = (struct job){ .work.data = job, .dialer = dialer, .client = cell__take_fd(&fd) };
	if (++dialer->jobs == MAX_JOBS)
		uv_poll_stop(&dialer->poll);
	uv_queue_work(cell__loop_uv(dialer->loop), &job->work, connect_for_client, handle_handed_over);
}

int cell__dialer_listen(const char *at, uid_t uid, gid_t gid, int *ret_fd, struct cell_error *err)
{
	struct cell__address address;
	char text[160];
	CELL_AUTO_FD int fd = -1;

	snprintf(text, sizeof(text), "unix:%s", at);
	if (cell__address_parse(text, &address, err) < 0 || cell__listen(&address, BACKLOG, &fd, err) < 0)
		return -1;
	if (geteuid() != uid && chown(at, uid, gid) < 0)
		return cell_fail(err, CELL_E_IO, errno, "change the owner of %.100s to user %u", at, (unsigned)uid);
	*ret_fd = cell__take_fd(&fd);
	return 0;
}

int cell__dialer_create(struct cell__loop *loop, int *fd, const char *host, int port, const char *path, struct cell__dialer **ret_dialer,
			struct cell_error *err)
{
	struct sockaddr_un limit;
	CELL_AUTO_FREE char *host_copy = host ? cell__strdup(host) : NULL, *path_copy = path ? cell__strdup(path) : NULL;
	CELL_AUTO_FREE struct cell__dialer *dialer = cell__alloc(1, sizeof(*dialer));

	if (!host && (!path || strlen(path) >= sizeof(limit.sun_path)))
		return cell_fail(err, CELL_E_INVALID, 0,
				 "Redis's address is missing, or its socket's path is longer than %zu bytes: use a shorter one",
				 sizeof(limit.sun_path) - 1);
	if (!dialer || (host && !host_copy) || (path && !path_copy))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a container");
	*dialer = (struct cell__dialer){ .loop = loop, .pid = -1 };
	if (uv_poll_init(cell__loop_uv(loop), &dialer->poll, *fd) < 0) /* which makes it not block */
		return cell_fail(err, CELL_E_IO, 0, "listen for a container's storage");
	dialer->poll.data = dialer;
	dialer->fd = cell__take_fd(fd);
	dialer->host = cell__take_ptr(host_copy);
	dialer->path = cell__take_ptr(path_copy);
	snprintf(dialer->port, sizeof(dialer->port), "%d", port);
	*ret_dialer = cell__take_ptr(dialer);
	return 0;
}

void cell__dialer_serve(struct cell__dialer *dialer, pid_t pid)
{
	dialer->pid = pid;
	uv_poll_start(&dialer->poll, UV_READABLE, handle_client);
}

static void handle_closed(uv_handle_t *handle)
{
	struct cell__dialer *dialer = handle->data;

	dialer->closed = true;
	free_if_over(dialer);
}

void cell__dialer_close(struct cell__dialer *dialer, void (*done)(void *arg), void *arg)
{
	if (!dialer) {
		done(arg);
		return;
	}
	dialer->done = done;
	dialer->done_arg = arg;
	uv_close((uv_handle_t *)&dialer->poll, handle_closed);
}
