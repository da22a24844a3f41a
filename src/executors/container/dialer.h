/*
 * Connections to one server for one process that cannot reach it itself, as in a container without a network.
 *
 * The process connects to a Unix socket of ours and receives a connected socket (SCM_RIGHTS, with one byte), or else the text of the
 * error; then we close the connection.  Only the process with the given pid is served, because the code beside it has the same
 * user.  Loop's thread; connections are made on libuv's pool.
 */
#ifndef CELL_EXECUTORS_CONTAINER_DIALER_H
#define CELL_EXECUTORS_CONTAINER_DIALER_H

#include "loop/loop.h"

struct cell__dialer;

/* Makes the socket at `at`, which belongs to the user.  Any thread but the loop's. */
int cell__dialer_listen(const char *at, uid_t uid, gid_t gid, int *ret_fd, struct cell_error *err);
/* On that socket, which is taken over.  The server: host and port, or the path of a socket.  Copied.  No process is served yet. */
int cell__dialer_create(struct cell__loop *loop, int *fd, const char *host, int port, const char *path, struct cell__dialer **ret_dialer,
			struct cell_error *err);
void cell__dialer_serve(struct cell__dialer *dialer, pid_t pid);
/* done(arg) is called when the dialer is freed: inside this call if it is NULL. */
void cell__dialer_close(struct cell__dialer *dialer, void (*done)(void *arg), void *arg);

#endif
