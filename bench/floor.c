/*
 * Actors: the benchmark (asks, measures pings), the echo process (answers pings), the forker (grows on
 * request, forks and measures its own forks).  Each child has one stream socket to the benchmark and nothing
 * else to do; it blocks in read() between requests and exits at end of file.  The benchmark reaps both, the
 * forker reaps what it forked.
 */
#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A RUN frame with `1+1`: header and source.  Its RESULT: header, the lengths as JSON, value and repr. */
#define PING_BYTES (24 + 3)
#define PONG_BYTES (24 + 15 + 2)

struct fork_request {
	uint64_t anon_bytes; /* both 0: fork once */
	uint64_t file_bytes;
};

struct fork_reply {
	int sys; /* errno, or 0 */
	double ns;
};

static int fail(struct cell_error *err, int sys, const char *what)
{
	if (err) {
		err->code = CELL_E_IO;
		err->sys = sys;
		snprintf(err->msg, sizeof(err->msg), "floor: %s: %s", what, sys ? strerror(sys) : "the other process is gone");
	}
	return -1;
}

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* 0: all there; -1: error or end of file (errno 0). */
static int read_all(int fd, void *buf, size_t size)
{
	char *p = buf;

	while (size) {
		ssize_t n = read(fd, p, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			if (n == 0)
				errno = 0;
			return -1;
		}
		p += n;
		size -= (size_t)n;
	}
	return 0;
}

/* The messages are far smaller than a socket's buffer: a short write is an error. */
static int write_all(int fd, const void *buf, size_t size)
{
	ssize_t n;

	do {
		n = send(fd, buf, size, MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n >= 0 && (size_t)n != size)
		errno = EIO;
	return n == (ssize_t)size ? 0 : -1;
}

static void echo_main(int fd)
{
	char ping[PING_BYTES], pong[PONG_BYTES] = { 0 };

	while (!read_all(fd, ping, sizeof(ping)) && !write_all(fd, pong, sizeof(pong)))
		;
	_exit(0);
}

/* Huge pages would make fork cheaper than it is for a Python heap, which is made of small arenas. */
static int grow_anon(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -1;
	madvise(p, size, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < size; i += 4096)
		p[i] = 1;
	return 0;
}

/* Stands for the mapped text of interpreter and libraries: resident, but not copied by fork. */
static int grow_file(size_t size)
{
	int fd = memfd_create("workcell-floor", MFD_CLOEXEC);
	volatile char *p;

	if (fd < 0)
		return -1;
	p = ftruncate(fd, (off_t)size) ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return -1;
	for (size_t i = 0; i < size; i += 4096)
		(void)p[i];
	return 0;
}

static int fork_once(double *ret_ns)
{
	double began = now_ns();
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(0);
	if (pid < 0)
		return -1;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	*ret_ns = now_ns() - began;
	return 0;
}

static void forker_main(int fd)
{
	struct fork_request request;

	while (!read_all(fd, &request, sizeof(request))) {
		struct fork_reply reply = { 0 };
		int failed;

		if (request.anon_bytes || request.file_bytes)
			failed = (request.anon_bytes && grow_anon(request.anon_bytes)) ||
				 (request.file_bytes && grow_file(request.file_bytes));
		else
			failed = fork_once(&reply.ns);
		if (failed)
			reply.sys = errno;
		if (write_all(fd, &reply, sizeof(reply)))
			break;
	}
	_exit(0);
}

static int start_child(void (*child_main)(int fd), int other_fd, int *ret_fd, pid_t *ret_pid)
{
	int fds[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds))
		return -1;
	pid = fork();
	if (pid == 0) {
		/* A copy of the benchmark's end kept here would hide the end of file from its owner. */
		close(fds[0]);
		if (other_fd >= 0)
			close(other_fd);
		child_main(fds[1]);
	}
	close(fds[1]);
	if (pid < 0) {
		close(fds[0]);
		return -1;
	}
	*ret_fd = fds[0];
	*ret_pid = pid;
	return 0;
}

int cell__floor_start(struct cell__floor *floor, struct cell_error *err)
{
	if (start_child(echo_main, -1, &floor->echo_fd, &floor->echo_pid))
		return fail(err, errno, "start the echo process");
	if (start_child(forker_main, floor->echo_fd, &floor->fork_fd, &floor->fork_pid))
		return fail(err, errno, "start the forking process");
	return 0;
}

static int ask_forker(struct cell__floor *floor, const struct fork_request *request, double *ret_ns, const char *what,
		      struct cell_error *err)
{
	struct fork_reply reply;

	if (write_all(floor->fork_fd, request, sizeof(*request)) || read_all(floor->fork_fd, &reply, sizeof(reply)))
		return fail(err, errno, what);
	if (reply.sys)
		return fail(err, reply.sys, what);
	*ret_ns = reply.ns;
	return 0;
}

int cell__floor_inflate(struct cell__floor *floor, size_t anon_bytes, size_t file_bytes, struct cell_error *err)
{
	struct fork_request request = { .anon_bytes = anon_bytes, .file_bytes = file_bytes };
	double unused;

	return ask_forker(floor, &request, &unused, "grow to the zygote's size", err);
}

int cell__floor_fork(struct cell__floor *floor, double *ret_ns, struct cell_error *err)
{
	struct fork_request request = { 0 };

	return ask_forker(floor, &request, ret_ns, "fork", err);
}

int cell__floor_ping(struct cell__floor *floor, double *ret_ns, struct cell_error *err)
{
	char ping[PING_BYTES] = { 0 }, pong[PONG_BYTES];
	double began = now_ns();

	if (write_all(floor->echo_fd, ping, sizeof(ping)) || read_all(floor->echo_fd, pong, sizeof(pong)))
		return fail(err, errno, "ping");
	*ret_ns = now_ns() - began;
	return 0;
}

static void stop_child(int *fd, pid_t *pid)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
	if (*pid > 0)
		while (waitpid(*pid, NULL, 0) < 0 && errno == EINTR)
			;
	*pid = -1;
}

void cell__floor_stop(struct cell__floor *floor)
{
	stop_child(&floor->echo_fd, &floor->echo_pid);
	stop_child(&floor->fork_fd, &floor->fork_pid);
}
