/* One message of the spawner protocol (wire/spawn_msg.h) onto a socket.  Used by host and spawner. */
#ifndef CELL_SPAWN_MESSAGE_H
#define CELL_SPAWN_MESSAGE_H

#include <stddef.h>

#include "wire/spawn_msg.h"

/* flags: as for sendmsg().  0 or a negative errno; EINTR is taken care of. */
int cell__spawn_send(int fd, const struct cell_spawn_msg *head, const void *payload, size_t size, const int *fds,
		     size_t n_fds, int flags);

#endif
