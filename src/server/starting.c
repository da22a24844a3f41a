/* What a server answers before it serves, see starting.h. */
#define _GNU_SOURCE
#include "server/starting.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/base.h"

#define CLIENTS 32       /* more wait until one is answered */
#define HEAD_BYTES 4096u /* what is read of a head */
#define CLIENT_US 2000000
#define LAST_US 200000   /* for clients that are connected when the server begins to serve */
#define STEP_MS 50

struct client {
	int fd;
	bool answered;
	int64_t since_us;
	size_t size;
	char head[HEAD_BYTES];
};

struct cell__starting {
	int listen_fd;
	size_t n;
	struct client *clients[CLIENTS];
};

struct cell__starting_thread {
	pthread_t thread;
	struct cell__starting *starting;
	atomic_bool ends;
};

struct cell__starting *cell__starting_create(int listen_fd)
{
	struct cell__starting *starting = cell__alloc(1, sizeof(*starting));

	if (starting)
		starting->listen_fd = listen_fd;
	return starting;
}

static void accept_clients(struct cell__starting *starting)
{
	while (starting->n < CLIENTS) {
		struct pollfd ready = { .fd = starting->listen_fd, .events = POLLIN };
		struct client *client;
		int fd = poll(&ready, 1, 0) == 1 ? accept4(starting->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;

		if (fd < 0)
			return;
		client = cell__alloc(1, sizeof(*client));
		if (!client) {
			cell__close_fd(&fd);
			return;
		}
		*client = (struct client){ .fd = fd, .since_us = cell__now_us() };
		starting->clients[starting->n++] = client;
	}
}

static bool asks_for(const struct client *client, const char *path)
{
	const char *at = memchr(client->head, ' ', client->size);
	size_t size = strlen(path);

	return at && client->size - (size_t)(at - client->head) > size + 1 && !memcmp(at + 1, path, size) && strchr(" ?", at[1 + size]);
}

/* It fits into the buffer of a socket: a client that does not take it gets nothing. */
static void answer(struct client *client)
{
	const char *body = asks_for(client, "/health")    ? "{\"status\":\"starting\",\"uptime_seconds\":0}"
			   : asks_for(client, "/ready")   ? "{\"status\":\"starting\",\"executor\":false,\"storage\":false}"
			   : asks_for(client, "/started") ? "{\"status\":\"starting\"}"
							  : "{\"detail\":\"the server is starting\",\"code\":\"busy\"}";
	char text[512];
	int n = snprintf(
		text, sizeof(text),
		"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s",
		asks_for(client, "/health") ? "200 OK" : "503 Service Unavailable", strlen(body), body);

	client->answered = true;
	if (send(client->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
		client->since_us = 0;
	(void)shutdown(client->fd, SHUT_WR); /* what it still sends is read, so that the answer is not lost by a reset */
}

/* False: it is over. */
static bool serve(struct client *client)
{
	char rest[HEAD_BYTES];
	bool is_full = client->size == HEAD_BYTES;
	ssize_t n = recv(client->fd, client->answered || is_full ? rest : client->head + client->size,
			 client->answered || is_full ? sizeof(rest) : HEAD_BYTES - client->size, MSG_DONTWAIT);

	if (n == 0 || cell__now_us() - client->since_us > CLIENT_US)
		return false;
	if (n > 0 && !client->answered) {
		client->size += is_full ? 0 : (size_t)n;
		if (client->size == HEAD_BYTES || memmem(client->head, client->size, "\r\n\r\n", 4))
			answer(client);
	}
	return n > 0 || errno == EAGAIN || errno == EINTR;
}

bool cell__starting_step(struct cell__starting *starting, int wait_ms)
{
	struct pollfd fds[CLIENTS + 1];
	size_t n = starting->n;

	fds[n] = (struct pollfd){ .fd = n < CLIENTS ? starting->listen_fd : -1, .events = POLLIN };
	for (size_t i = 0; i < n; i++)
		fds[i] = (struct pollfd){ .fd = starting->clients[i]->fd, .events = POLLIN };
	if (wait_ms && poll(fds, n + 1, wait_ms) < 0)
		return n > 0;
	accept_clients(starting);
	for (size_t i = starting->n; i-- > 0;) {
		struct client *client = starting->clients[i];

		if (serve(client))
			continue;
		cell__close_fd(&client->fd);
		free(client);
		starting->clients[i] = starting->clients[--starting->n];
	}
	return starting->n > 0;
}

void cell__starting_destroy(struct cell__starting *starting)
{
	int64_t end_us = cell__now_us() + LAST_US;

	if (!starting)
		return;
	starting->listen_fd = -1; /* from now on they are the server's */
	while (starting->n && cell__now_us() < end_us)
		(void)cell__starting_step(starting, STEP_MS);
	cell__starting_forget(starting);
}

void cell__starting_forget(struct cell__starting *starting)
{
	if (!starting)
		return;
	while (starting->n) {
		struct client *client = starting->clients[--starting->n];

		cell__close_fd(&client->fd);
		free(client);
	}
	free(starting);
}

static void *run_thread(void *arg)
{
	struct cell__starting_thread *thread = arg;

	while (!atomic_load(&thread->ends))
		(void)cell__starting_step(thread->starting, STEP_MS);
	return NULL;
}

struct cell__starting_thread *cell__starting_begin(int listen_fd)
{
	struct cell__starting_thread *thread = cell__alloc(1, sizeof(*thread));

	if (!thread)
		return NULL;
	thread->starting = cell__starting_create(listen_fd);
	if (!thread->starting || pthread_create(&thread->thread, NULL, run_thread, thread)) {
		cell__starting_destroy(thread->starting);
		free(thread);
		return NULL;
	}
	return thread;
}

void cell__starting_end(struct cell__starting_thread *thread)
{
	if (!thread)
		return;
	atomic_store(&thread->ends, true);
	(void)pthread_join(thread->thread, NULL);
	cell__starting_destroy(thread->starting);
	free(thread);
}
