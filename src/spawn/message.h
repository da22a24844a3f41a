/* One message of the spawner protocol (wire/spawn_msg.h) onto a socket, or from it.  Used by host and spawner. */
#ifndef CELL_SPAWN_MESSAGE_H
#define CELL_SPAWN_MESSAGE_H

#include <stddef.h>
#include <sys/types.h>

#include "wire/spawn_msg.h"

/* flags: as for sendmsg().  0 or a negative errno; EINTR is taken care of. */
int cell__spawn_send(int fd, const struct cell_spawn_msg *head, const void *payload, size_t size, const int *fds, size_t n_fds, int flags);
/*
 * The next message into room: its bytes, 0 at the end, -1 with errno.  Descriptors that came with it, at most max_fds (and
 * CELL_SPAWN_MAX_FDS), are in fds; others are dropped.  *ret_n_fds is set in any case.
 */
ssize_t cell__spawn_receive(int fd, void *room, size_t size, int *fds, size_t max_fds, size_t *ret_n_fds, int flags);

#endif
