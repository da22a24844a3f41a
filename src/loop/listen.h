/* Addresses to listen on: HOST:PORT, [V6]:PORT, unix:PATH, or fd:N for a socket that listens already.  Any thread. */
#ifndef CELL_LOOP_LISTEN_H
#define CELL_LOOP_LISTEN_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/base.h"

struct cell__address {
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_un local;
	} at;
	socklen_t size;
	bool loopback; /* not reachable from other machines; also set for unix: */
	char host[64]; /* as given, without brackets; "" for unix: */
	int port;      /* 0 for unix: */
	int given_fd;  /* fd: the socket, else 0 */
};

/* host: an address, or "localhost". */
int cell__address_set(const char *host, int port, struct cell__address *ret_address, struct cell_error *err);
int cell__address_parse(const char *text, struct cell__address *ret_address, struct cell_error *err);
/*
 * Opens a listening socket, or takes the given one.  Port 0 is replaced by the port that was chosen.  A socket file that a dead process left behind is
 * replaced; ours is accessible to this user only.
 */
int cell__listen(struct cell__address *address, int backlog, int *ret_fd, struct cell_error *err);
/* Removes the socket file that cell__listen() made, before the socket is closed: until then nobody else can have made it. */
void cell__listen_end(const struct cell__address *address);

#endif
