#define _GNU_SOURCE
#include "loop/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

int cell__address_set(const char *host, int port, struct cell__address *ret_address, struct cell_error *err)
{
	const char *name = strcasecmp(host, "localhost") ? host : "127.0.0.1";
	struct cell__address address = { .port = port };

	if (strlen(host) >= sizeof(address.host))
		return cell_fail(err, CELL_E_INVALID, 0, "'%.80s' is not a valid address to listen on", host);
	strcpy(address.host, host);
	if (port < 0 || port > 65535)
		return cell_fail(err, CELL_E_INVALID, 0, "port %d is out of range (0-65535)", port);
	if (inet_pton(AF_INET, name, &address.at.v4.sin_addr) == 1) {
		address.at.v4.sin_family = AF_INET;
		address.at.v4.sin_port = htons((uint16_t)port);
		address.size = sizeof(address.at.v4);
		address.loopback = ntohl(address.at.v4.sin_addr.s_addr) >> 24 == 127;
	} else if (inet_pton(AF_INET6, name, &address.at.v6.sin6_addr) == 1) {
		address.at.v6.sin6_family = AF_INET6;
		address.at.v6.sin6_port = htons((uint16_t)port);
		address.size = sizeof(address.at.v6);
		address.loopback = IN6_IS_ADDR_LOOPBACK(&address.at.v6.sin6_addr);
	} else {
		return cell_fail(err, CELL_E_INVALID, 0, "'%s' is not an IP address; give one like 127.0.0.1 or ::1", host);
	}
	*ret_address = address;
	return 0;
}

static int set_path(const char *path, struct cell__address *ret_address, struct cell_error *err)
{
	struct cell__address address = { .loopback = true };
	size_t size = strlen(path);

	if (!size || size >= sizeof(address.at.local.sun_path))
		return cell_fail(err, CELL_E_INVALID, 0, "a socket path has 1 to %zu bytes, but '%.100s' has %zu",
				 sizeof(address.at.local.sun_path) - 1, path, size);
	address.at.local.sun_family = AF_UNIX;
	strcpy(address.at.local.sun_path, path);
	address.size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + 1);
	*ret_address = address;
	return 0;
}

/* A socket that the starter of this program opened: systemd's, for example.  Its own address counts, whatever anybody says of it. */
static int set_given(const char *text, struct cell__address *ret_address, struct cell_error *err)
{
	struct cell__address address = { 0 };
	socklen_t size = sizeof(address.at), flag_size = sizeof(int);
	char *end;
	long fd = strtol(text, &end, 10);
	int listens = 0;

	if (end == text || *end || fd < 3 || fd > 1 << 20)
		return cell_fail(err, CELL_E_INVALID, 0, "invalid address 'fd:%.40s': expected the number of a descriptor from 3", text);
	if (getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag_size) < 0 || !listens ||
	    getsockname((int)fd, &address.at.any, &size) < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "descriptor %ld is not a socket that listens", fd);
	address.size = size;
	address.given_fd = (int)fd;
	if (address.at.any.sa_family == AF_UNIX) {
		address.loopback = true;
	} else if (address.at.any.sa_family == AF_INET) {
		inet_ntop(AF_INET, &address.at.v4.sin_addr, address.host, sizeof(address.host));
		address.port = ntohs(address.at.v4.sin_port);
		address.loopback = ntohl(address.at.v4.sin_addr.s_addr) >> 24 == 127;
	} else if (address.at.any.sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &address.at.v6.sin6_addr, address.host, sizeof(address.host));
		address.port = ntohs(address.at.v6.sin6_port);
		address.loopback = IN6_IS_ADDR_LOOPBACK(&address.at.v6.sin6_addr);
	} else {
		return cell_fail(err, CELL_E_INVALID, 0, "descriptor %ld is neither an Internet nor a Unix socket", fd);
	}
	*ret_address = address;
	return 0;
}

int cell__address_parse(const char *text, struct cell__address *ret_address, struct cell_error *err)
{
	const char *colon = strrchr(text, ':');
	char host[64];
	size_t size;
	char *end = NULL;
	long port;

	if (!strncmp(text, "unix:", 5))
		return set_path(text + 5, ret_address, err);
	if (!strncmp(text, "fd:", 3))
		return set_given(text + 3, ret_address, err);
	port = colon ? strtol(colon + 1, &end, 10) : -1;
	if (!colon || colon == text || end == colon + 1 || *end || port < 0 || port > 65535)
		return cell_fail(err, CELL_E_INVALID, 0, "invalid address '%.100s': expected HOST:PORT, like 127.0.0.1:8080, or unix:PATH",
				 text);
	size = (size_t)(colon - text);
	if (*text == '[' && colon[-1] == ']') {
		text++;
		size -= 2;
	}
	if (size >= sizeof(host))
		return cell_fail(err, CELL_E_INVALID, 0, "'%.80s' is not a valid address to listen on", text);
	memcpy(host, text, size);
	host[size] = '\0';
	return cell__address_set(host, (int)port, ret_address, err);
}

/* A socket file without a listening process refuses connections. */
static bool is_stale(const struct cell__address *address)
{
	CELL_AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return fd >= 0 && connect(fd, &address->at.any, address->size) < 0 && errno == ECONNREFUSED;
}

/* Before anybody can connect. */
static int make_private(const char *path)
{
	int status = chmod(path, 0600), saved = errno;

	if (status < 0)
		unlink(path);
	errno = saved;
	return status;
}

static int bind_address(int fd, const struct cell__address *address)
{
	const char *path = address->at.local.sun_path;

	if (!bind(fd, &address->at.any, address->size))
		return address->at.any.sa_family == AF_UNIX ? make_private(path) : 0;
	if (errno != EADDRINUSE || address->at.any.sa_family != AF_UNIX)
		return -1;
	if (!is_stale(address) || unlink(path) < 0) {
		errno = EADDRINUSE;
		return -1;
	}
	return bind(fd, &address->at.any, address->size) < 0 ? -1 : make_private(path);
}

/* The caller goes on owning the descriptor: it is ours as a copy. */
static int take_given(const struct cell__address *address, int *ret_fd, struct cell_error *err)
{
	CELL_AUTO_FD int fd = fcntl(address->given_fd, F_DUPFD_CLOEXEC, 3);

	if (fd < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		return cell_fail(err, CELL_E_IO, errno, "take the socket %d", address->given_fd);
	*ret_fd = cell__take_fd(&fd);
	return 0;
}

void cell__listen_end(const struct cell__address *address)
{
	if (address->at.any.sa_family == AF_UNIX && !address->given_fd)
		unlink(address->at.local.sun_path);
}

int cell__listen(struct cell__address *address, int backlog, int *ret_fd, struct cell_error *err)
{
	if (address->given_fd)
		return take_given(address, ret_fd, err);
	CELL_AUTO_FD int fd = socket(address->at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool local = address->at.any.sa_family == AF_UNIX;
	int on = 1, saved;
	socklen_t size = sizeof(address->at);

	if (fd >= 0 && !local)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (fd >= 0 && address->at.any.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (fd < 0 || bind_address(fd, address) < 0 || listen(fd, backlog) < 0) {
		saved = errno;
		if (local)
			return cell_fail(err, CELL_E_IO, saved, "cannot listen on %.120s", address->at.local.sun_path);
		return cell_fail(err, CELL_E_IO, saved, "cannot listen on %s port %d", address->host, address->port);
	}
	if (!local && !getsockname(fd, &address->at.any, &size))
		address->port = ntohs(address->at.any.sa_family == AF_INET ? address->at.v4.sin_port : address->at.v6.sin6_port);
	*ret_fd = cell__take_fd(&fd);
	return 0;
}
