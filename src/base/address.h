/* Addresses of the network.  Pure. */
#ifndef CELL_BASE_ADDRESS_H
#define CELL_BASE_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* Addresses that are not public: loopback, private, link-local, metadata, multicast, and similar. */
bool cell__address_is_private(const struct sockaddr *address);

#endif
