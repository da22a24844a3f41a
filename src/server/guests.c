#include "server/guests.h"

#include <assert.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/resource.h>

#include "base/hole.h"

void cell__guest_address(const struct sockaddr *from, unsigned char ret_address[16])
{
	memset(ret_address, 0, 16);
	if (from && from->sa_family == AF_INET)
		memcpy(ret_address, &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
	else if (from && from->sa_family == AF_INET6)
		memcpy(ret_address, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 8);
}

void cell__guests_init(struct cell__guests *guests, unsigned max)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur / 4 < max)
		max = (unsigned)(files.rlim_cur / 4);
	*guests = (struct cell__guests){ .end = &guests->first, .max = max ? max : 1 };
}

void cell__guests_leave(struct cell__guests *guests, struct cell__guest *guest)
{
	if (!guest->listed)
		return;
	guest->listed = false;
	*guest->at = guest->next;
	if (guest->next)
		guest->next->at = guest->at;
	else
		guests->end = guest->at;
	guests->count--;
}

/* The reader of the connection sees its end and closes it. */
static void evict(struct cell__guests *guests, struct cell__guest *guest)
{
	cell__guests_leave(guests, guest);
	guests->evicted++;
	shutdown(guest->fd, SHUT_RDWR);
}

void cell__guests_add(struct cell__guests *guests, struct cell__guest *guest, int fd, const struct sockaddr *from)
{
	struct cell__guest *neighbour = NULL; /* the oldest of the same address */
	unsigned neighbours = 0;

	*guest = (struct cell__guest){ .fd = fd, .since_us = cell__now_us(), .listed = true, .at = guests->end };
	cell__guest_address(from, guest->address);
	for (struct cell__guest *other = guests->first; other; other = other->next) {
		if (memcmp(other->address, guest->address, sizeof(guest->address)))
			continue;
		if (!neighbours++)
			neighbour = other;
	}
	*guests->end = guest;
	guests->end = &guest->next;
	guests->count++;
	if (is_hole("guests"))
		return;
	/* One address has at most three quarters of the room. */
	if (neighbour && neighbours + 1 > guests->max - guests->max / 4)
		evict(guests, neighbour);
	else if (guests->count > guests->max) {
		assert(guests->first); /* our guest at least */
		evict(guests, guests->first);
	}
}
