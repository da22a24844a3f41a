/*
 * The way out of a sandbox with a filtered network: an HTTP (CONNECT, and plain requests) and SOCKS5 proxy in the engine.
 *
 * The sandbox's own network namespace has nothing but a loopback interface.  The socket on which the proxy listens was made
 * inside it by pid 1 and handed out, so the code reaches it at 127.0.0.1 and we take its connections here.  Names are
 * resolved and checked on this side; addresses of private networks are refused unless the policy lists them by number.
 * Belongs to the loop's thread.
 */
#ifndef CELL_SANDBOX_EGRESS_H
#define CELL_SANDBOX_EGRESS_H

#include <netinet/in.h>

#include "loop/loop.h"
#include "sandbox/policy.h"

#define CELL_EGRESS_PORT 3128
#define CELL_EGRESS_CONNECTIONS 64u /* of one sandbox at once */

struct cell__egress;

struct cell__egress_options {
	struct cell__loop *loop;
	int listen_fd;                       /* taken over */
	const struct cell__policy_list *hosts; /* "name:port"; copied */
	const char *const *more_hosts;       /* the same, NULL-terminated; copied; may be NULL */
	/* One line for each connection asked for: what, and whether it was let through. */
	void (*audit)(void *arg, const char *line);
	void *arg;
};

int cell__egress_create(const struct cell__egress_options *options, struct cell__egress **ret_egress, struct cell_error *err);
/* Ends all connections; the memory goes when the loop has let go of the handles.  NULL is fine. */
void cell__egress_close(struct cell__egress *egress);

/* ---- pure ---- */

/* Does a list entry "name:port" cover this host and port?  "*.name" covers what is below name; "*" as port, every one. */
bool cell__egress_rule_matches(const char *rule, const char *host, unsigned port);
/* Addresses that are nobody's on the internet: loopback, private, link-local, metadata, multicast, and the like. */
bool cell__egress_is_private(const struct sockaddr *address);

struct cell__egress_wish {
	char host[256];
	unsigned port;
	size_t used;   /* bytes of the request */
	bool plain;    /* not CONNECT: the request itself goes on, from `path` */
	size_t method_size, path, path_end;
};
/* An HTTP request to a proxy.  1: it is there; 0: more is needed; -1: it is none. */
int cell__egress_parse_http(const char *bytes, size_t size, struct cell__egress_wish *ret_wish);
/* A SOCKS5 request, after the greeting. */
int cell__egress_parse_socks(const uint8_t *bytes, size_t size, struct cell__egress_wish *ret_wish);

#endif
