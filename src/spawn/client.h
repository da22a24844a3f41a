/*
 * The host's side of the spawner: starts it, sends requests, forwards its messages.  Belongs to the loop's thread.
 *
 * States: stopped ──start──▶ running ──end of its socket──▶ stopped (ended() is called).
 */
#ifndef CELL_SPAWN_CLIENT_H
#define CELL_SPAWN_CLIENT_H

#include "loop/loop.h"
#include "wire/spawn_msg.h"

struct cell__spawn_waiting;

struct cell__spawn_client {
	struct cell__loop *loop;
	uv_poll_t *poll; /* NULL while stopped; heap, because closing a handle is asynchronous */
	int fd;
	int lifeline_fd; /* our hold on the kernels' lifeline */
	int received_fd; /* the descriptor that came with the current message; take it with cell__take_fd(); -1: none */
	void (*message)(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size);
	void (*ended)(void *arg);
	void *arg;
	struct cell__spawn_waiting *first, *last; /* messages that its socket does not take yet */
};

void cell__spawn_client_init(struct cell__spawn_client *client, struct cell__loop *loop,
			     void (*message)(void *arg, const struct cell_spawn_msg *head, const char *payload, size_t size),
			     void (*ended)(void *arg), void *arg);
/* Has no effect if the spawner runs. */
int cell__spawn_client_start(struct cell__spawn_client *client, const char *program, struct cell_error *err);
bool cell__spawn_client_running(const struct cell__spawn_client *client);
/*
 * Never waits: messages that the spawner does not take yet are queued.  It waits for us when it reports faster than we read, so that each
 * would wait for the other.
 */
int cell__spawn_client_send(struct cell__spawn_client *client, uint32_t type, uint64_t id, int64_t a, int64_t b, const void *payload,
			    size_t size, const int *fds, size_t n_fds, struct cell_error *err);
/* For messages of three numbers; failures are ignored, because the end of the spawner is reported anyway. */
void cell__spawn_client_tell(struct cell__spawn_client *client, uint32_t type, uint64_t id, int64_t a);
/* Asks the spawner to end all its processes and itself; ended() is called when it has ended. */
void cell__spawn_client_finish(struct cell__spawn_client *client);
/* Drops the connection: the spawner then ends by itself; ended() is not called. */
void cell__spawn_client_stop(struct cell__spawn_client *client);

#endif
