/*
 * The way out of a sandbox with a filtered network: an HTTP (CONNECT, and plain requests) and SOCKS5 proxy in the engine.
 *
 * The sandbox's own network namespace has nothing but a loopback interface.  The socket on which the proxy listens was made
 * inside it by pid 1 and handed out, so the code reaches it at 127.0.0.1 and we take its connections here.  Names are
 * resolved and checked on this side; addresses of private networks are refused unless the policy lists them by number.
 * Belongs to the loop's thread.
 */
#ifndef CELL_EGRESS_H
#define CELL_EGRESS_H

#include <netinet/in.h>

#include "loop/loop.h"
#include "sandbox/policy.h"

/* What makes programs take this way out: "K=V", for an initializer. */
#define CELL_EGRESS_AT "127.0.0.1:3128"
#define CELL_EGRESS_ENV                                                                                                             \
	"http_proxy=http://" CELL_EGRESS_AT, "https_proxy=http://" CELL_EGRESS_AT, "HTTP_PROXY=http://" CELL_EGRESS_AT,             \
		"HTTPS_PROXY=http://" CELL_EGRESS_AT, "all_proxy=socks5h://" CELL_EGRESS_AT, "ALL_PROXY=socks5h://" CELL_EGRESS_AT, \
		"no_proxy=localhost,127.0.0.1", "NO_PROXY=localhost,127.0.0.1"
#define CELL_EGRESS_CONNECTIONS 64u /* of one sandbox at once */
#define CELL_EGRESS_RATE 100        /* that are taken in a second; more wait, ... */
#define CELL_EGRESS_BURST 1000      /* ... but for so many at first */

struct cell__egress;

/* What is told of a connection: once when it was decided on, and once more when one that was let through has ended. */
struct cell__egress_event {
	const char *protocol; /* "connect", "http", "socks5"; NULL: no request came */
	const char *host;     /* as it was asked for; NULL: not known */
	unsigned port;
	const char *address;  /* where it goes; NULL: no address was looked for or found */
	const char *refusal;  /* why it was not made, or did not last; NULL: all is well */
	bool denied;          /* by the policy */
	bool ended;
	uint64_t sent, received; /* bytes from the code, and to it; ended */
	int64_t duration_us;
};

struct cell__egress_options {
	struct cell__loop *loop;
	int listen_fd;         /* taken over */
	const struct cell__sandbox_policy_list *hosts; /* "name:port"; copied */
	const char *const *more_hosts;       /* the same, NULL-terminated; copied; may be NULL */
	/* Strings are valid during the call.  -1 when a connection is about to be made: then it is not, for the reason in err. */
	int (*tell)(void *arg, const struct cell__egress_event *event, struct cell_error *err);
	void *arg;
};

int cell__egress_create(const struct cell__egress_options *options, struct cell__egress **ret_egress, struct cell_error *err);
/* Ends all connections, and tells so; nothing is told later.  The memory goes when the loop has let go of the handles.  NULL is fine. */
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
