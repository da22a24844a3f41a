/*
 * What a server answers before it serves: that it is starting.
 *
 *     listening ──cell__starting_step()──▶ a client's head is read ──▶ 503 "starting", or 200 for /health ──▶ closed
 *
 * So that a probe tells a server that starts from none, from one that is not ready and from one that leaves.  Nothing of a request is looked at
 * but its path.  Belongs to one thread; not with TLS, where clients wait until the server serves.
 */
#ifndef CELL_SERVER_STARTING_H
#define CELL_SERVER_STARTING_H

#include <stdbool.h>

struct cell__starting;

/* The socket is borrowed.  NULL: out of memory. */
struct cell__starting *cell__starting_create(int listen_fd);
/* Waits for at most so long for something to do, and does it.  False: nobody is connected. */
bool cell__starting_step(struct cell__starting *starting, int wait_ms);
/* Clients that have been accepted get their answer, if they ask soon.  NULL is allowed. */
void cell__starting_destroy(struct cell__starting *starting);
/* In a process that was forked: its clients are the other's.  NULL is allowed. */
void cell__starting_forget(struct cell__starting *starting);

struct cell__starting_thread;

/* The same on a thread; NULL: it cannot be started, and clients wait. */
struct cell__starting_thread *cell__starting_begin(int listen_fd);
void cell__starting_end(struct cell__starting_thread *thread); /* NULL is allowed */

#endif
