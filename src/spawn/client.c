#define _GNU_SOURCE
#include "spawn/client.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "spawn/message.h"

void cell__spawn_client_init(struct cell__spawn_client *client, struct cell__loop *loop,
			     void (*message)(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size),
			     void (*ended)(void *arg), void *arg)
{
	*client = (struct cell__spawn_client){
		.loop = loop, .fd = -1, .lifeline_fd = -1, .received_fd = -1, .message = message, .ended = ended, .arg = arg
	};
}

bool cell__spawn_client_running(const struct cell__spawn_client *client)
{
	return client->poll != NULL;
}

struct cell__spawn_waiting {
	struct cell_spawn_msg head;
	int fds[CELL_SPAWN_MAX_FDS];
	size_t n_fds, size;
	struct cell__spawn_waiting *next;
	char payload[];
};

static void free_handle(uv_handle_t *handle)
{
	free(handle);
}

static void drop_first(struct cell__spawn_client *client)
{
	struct cell__spawn_waiting *waiting = client->first;
	client->first = waiting->next;
	if (!client->first)
		client->last = NULL;
	for (size_t i = 0; i < waiting->n_fds; i++)
		cell__close_fd(&waiting->fds[i]);
	free(waiting);
}

void cell__spawn_client_stop(struct cell__spawn_client *client)
{
	while (client->first)
		drop_first(client);
	if (client->poll) {
		uv_poll_stop(client->poll);
		uv_close((uv_handle_t *)client->poll, free_handle);
		client->poll = NULL;
	}
	cell__close_fd(&client->fd);
	cell__close_fd(&client->lifeline_fd);
}

void cell__spawn_client_finish(struct cell__spawn_client *client)
{
	while (client->first)
		drop_first(client); /* it ends all anyway */
	shutdown(client->fd, SHUT_WR);
}

static void handle_ready(uv_poll_t *poll, int status, int events);

static void send_waiting(struct cell__spawn_client *client)
{
	while (client->first) {
		struct cell__spawn_waiting *waiting = client->first;
		int rc = cell__spawn_send(client->fd, &waiting->head, waiting->payload, waiting->size, waiting->fds, waiting->n_fds,
					  MSG_DONTWAIT);
		if (rc == -EAGAIN)
			return;
		drop_first(client); /* any other failure is the spawner's end, which is reported */
	}
	uv_poll_start(client->poll, UV_READABLE, handle_ready);
}

static int wait_to_send(struct cell__spawn_client *client, const struct cell_spawn_msg *head, const void *payload, size_t size,
			const int *fds, size_t n_fds)
{
	struct cell__spawn_waiting *waiting = cell__alloc(1, sizeof *waiting + size);
	if (!waiting)
		return -ENOMEM;
	waiting->head = *head;
	waiting->size = size;
	if (size > 0)
		memcpy(waiting->payload, payload, size);
	for (; waiting->n_fds < n_fds; waiting->n_fds++)
		if ((waiting->fds[waiting->n_fds] = fcntl(fds[waiting->n_fds], F_DUPFD_CLOEXEC, 3)) < 0)
			break;
	if (waiting->n_fds < n_fds) {
		int error = errno;
		while (waiting->n_fds > 0)
			cell__close_fd(&waiting->fds[--waiting->n_fds]);
		free(waiting);
		return -error;
	}
	if (client->last)
		client->last->next = waiting;
	else
		client->first = waiting;
	client->last = waiting;
	uv_poll_start(client->poll, UV_READABLE | UV_WRITABLE, handle_ready);
	return 0;
}

static void handle_ready(uv_poll_t *poll, int status, int events)
{
	(void)status;
	struct cell__spawn_client *client = poll->data;
	char bytes[16384];
	if (events & UV_WRITABLE)
		send_waiting(client);
	if (!(events & UV_READABLE) && status == 0)
		return;
	/* Bounded, so that a spawner with many messages leaves the loop to others; the rest wakes us again. */
	for (int i = 0; i < 64 && client->poll == poll; i++) {
		size_t n_fds;
		ssize_t n = cell__spawn_receive(client->fd, bytes, sizeof bytes, &client->received_fd, 1, &n_fds, MSG_DONTWAIT);
		if (n < 0 && errno == EAGAIN)
			return;
		struct cell_spawn_msg head;
		if (n >= (ssize_t)sizeof head) {
			memcpy(&head, bytes, sizeof head);
			if (head.version == CELL_SPAWN_VERSION) {
				client->message(client->arg, &head, bytes + sizeof head, (size_t)n - sizeof head);
				cell__close_fd(&client->received_fd); /* nobody took it */
				continue;
			}
		}
		/* The lifeline is still held: the owner can inspect each kernel's children before the kernels end. */
		uv_poll_stop(poll);
		client->ended(client->arg); /* may stop us and free the client */
		return;
	}
}

/* Duplicates fd to a number that the child's 3, 4 and 5 cannot hit. */
static int high_fd(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, 16);
}

static int launch(const char *program, int sock, int lifeline_read, int lifeline_write, struct cell_error *err)
{
	CELL_AUTO_FD int a = high_fd(sock);
	CELL_AUTO_FD int b = high_fd(lifeline_read);
	CELL_AUTO_FD int c = high_fd(lifeline_write);
	if (a < 0 || b < 0 || c < 0)
		return cell_fail(err, CELL_E_SPAWNER, errno, "start the spawner");
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	posix_spawn_file_actions_adddup2(&actions, a, 3);
	posix_spawn_file_actions_adddup2(&actions, b, 4);
	posix_spawn_file_actions_adddup2(&actions, c, 5);
	sigset_t none, all;
	sigemptyset(&none);
	sigfillset(&all);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	char *const argv[] = { (char *)"workcell-spawner", (char *)"serve", NULL };
	char *const envp[] = { NULL };
	pid_t pid;
	int rc = posix_spawn(&pid, program, &actions, &attr, argv, envp);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attr);
	if (rc != 0)
		return cell_fail(err, CELL_E_SPAWNER, rc, "start %s (is Workcell installed completely?)", program);
	/*
	 * It forks itself into the background at once; waiting takes about a millisecond and happens once. A host that reaps every child
	 * (wait(-1), SIGCHLD ignored) may be faster: then there is nothing to wait for.
	 */
	int status = 0;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
		return cell_fail(err, CELL_E_SPAWNER, 0, "%s failed with status %d", program, WEXITSTATUS(status));
	return 0;
}

int cell__spawn_client_start(struct cell__spawn_client *client, const char *program, struct cell_error *err)
{
	if (client->poll)
		return 0;
	int pair[2], life[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return cell_fail(err, CELL_E_SPAWNER, errno, "make the spawner's socket");
	CELL_AUTO_FD int ours = pair[0];
	CELL_AUTO_FD int theirs = pair[1];
	if (pipe2(life, O_CLOEXEC) < 0)
		return cell_fail(err, CELL_E_SPAWNER, errno, "make the lifeline pipe");
	CELL_AUTO_FD int life_read = life[0];
	CELL_AUTO_FD int life_write = life[1];
	if (launch(program, theirs, life_read, life_write, err) < 0)
		return -1;
	uv_poll_t *poll = cell__alloc(1, sizeof *poll);
	if (!poll)
		return cell_fail(err, CELL_E_NOMEM, 0, "start the spawner: out of memory");
	int rc = uv_poll_init(cell__loop_uv(client->loop), poll, ours);
	if (rc < 0) {
		free(poll);
		return cell_fail(err, CELL_E_SPAWNER, -rc, "watch the spawner");
	}
	poll->data = client;
	uv_poll_start(poll, UV_READABLE, handle_ready);
	client->poll = poll;
	client->fd = cell__take_fd(&ours);
	client->lifeline_fd = cell__take_fd(&life_write);
	return 0;
}

int cell__spawn_client_send(struct cell__spawn_client *client, uint32_t type, uint64_t id, int64_t a, int64_t b, const void *payload,
			    size_t size, const int *fds, size_t n_fds, struct cell_error *err)
{
	struct cell_spawn_msg head = { .version = CELL_SPAWN_VERSION, .type = type, .id = id, .a = a, .b = b };
	if (client->fd < 0)
		return cell_fail(err, CELL_E_SPAWNER, 0, "the spawner is not running");
	if (sizeof head + size > CELL_LIMIT_SPAWN_MESSAGE)
		return cell_fail(err, CELL_E_LIMIT, 0, "arguments and environment are larger than %u bytes", CELL_LIMIT_SPAWN_MESSAGE);
	int rc = client->first ? -EAGAIN : cell__spawn_send(client->fd, &head, payload, size, fds, n_fds, MSG_DONTWAIT);
	if (rc == -EAGAIN)
		rc = wait_to_send(client, &head, payload, size, fds, n_fds);
	return rc < 0 ? cell_fail(err, CELL_E_SPAWNER, -rc, "ask the spawner") : 0;
}

void cell__spawn_client_tell(struct cell__spawn_client *client, uint32_t type, uint64_t id, int64_t a)
{
	(void)cell__spawn_client_send(client, type, id, a, 0, NULL, 0, NULL, 0, NULL);
}
