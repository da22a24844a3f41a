/*
 * Guests: connections that have not shown a valid token yet. They have a budget, so that clients with a token always find room: the newest
 * guest is let in, and if the budget is exceeded the oldest one is closed, preferably one of the same address. A connection that shows a
 * valid token leaves the list.
 *
 * The caller guards the list, and takes a guest off it before it closes the descriptor.
 */
#ifndef CELL_SERVER_GUESTS_H
#define CELL_SERVER_GUESTS_H

#include <sys/socket.h>

#include "base/base.h"

struct cell__guest {
	int fd;
	int64_t since_us;
	unsigned char address[16];
	bool listed;
	struct cell__guest *next, **at; /* oldest first */
};

struct cell__guests {
	struct cell__guest *first, **end;
	unsigned count, max;
	uint64_t evicted; /* in all */
};

/* Room for this many; fewer where this process may not have many files open. */
void cell__guests_init(struct cell__guests *guests, unsigned max);
/* `from` may be NULL: counts as an address of its own. */
void cell__guests_add(struct cell__guests *guests, struct cell__guest *guest, int fd, const struct sockaddr *from);
/* It may be done already. */
void cell__guests_leave(struct cell__guests *guests, struct cell__guest *guest);
/* The unit that failures are counted by: an IPv4 address, or the network of an IPv6 address. */
void cell__guest_address(const struct sockaddr *from, unsigned char ret_address[16]);

#endif
