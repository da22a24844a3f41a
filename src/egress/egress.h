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

/* Environment variables that make programs use the proxy: "K=V", for an initializer. */
#define CELL_EGRESS_AT "127.0.0.1:3128"
#define CELL_EGRESS_ENV                                                                                                             \
	"http_proxy=http://" CELL_EGRESS_AT, "https_proxy=http://" CELL_EGRESS_AT, "HTTP_PROXY=http://" CELL_EGRESS_AT,             \
		"HTTPS_PROXY=http://" CELL_EGRESS_AT, "all_proxy=socks5h://" CELL_EGRESS_AT, "ALL_PROXY=socks5h://" CELL_EGRESS_AT, \
		"no_proxy=localhost,127.0.0.1", "NO_PROXY=localhost,127.0.0.1"
#define CELL_EGRESS_CONNECTIONS 64u /* of one sandbox at once */
#define CELL_EGRESS_RATE 100        /* accepted per second; more wait, ... */
#define CELL_EGRESS_BURST 1000      /* ... except for this many at first */

struct cell__egress;

/* A report about a connection: one when it was decided on, and another when an allowed one has ended. */
struct cell__egress_event {
	const char *protocol; /* "connect", "http", "socks5"; NULL: no request came */
	const char *host;     /* as requested; NULL: unknown */
	unsigned port;
	const char *address;  /* its address; NULL: not resolved */
	const char *refusal;  /* why it was refused or broke; NULL: no problem */
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
	/* Strings are valid during the call.  Returning -1 for a new connection refuses it, for the reason in err. */
	int (*tell)(void *arg, const struct cell__egress_event *event, struct cell_error *err);
	void *arg;
};

int cell__egress_create(const struct cell__egress_options *options, struct cell__egress **ret_egress, struct cell_error *err);
/* Ends and reports all connections; nothing is reported later.  Memory is freed when the loop has closed the handles.  NULL is allowed. */
void cell__egress_close(struct cell__egress *egress);

/* ---- pure ---- */

/* Whether a list entry "name:port" covers this host and port.  "*.name" covers its subdomains; "*" as port covers all ports. */
bool cell__egress_rule_matches(const char *rule, const char *host, unsigned port);

struct cell__egress_wish {
	char host[256];
	unsigned port;
	size_t used;   /* bytes of the request */
	bool plain;    /* not CONNECT: the request itself is forwarded, from `path` on */
	size_t method_size, path, path_end;
};
/* Parses an HTTP request to a proxy.  1: complete; 0: more bytes are needed; -1: not a request. */
int cell__egress_parse_http(const char *bytes, size_t size, struct cell__egress_wish *ret_wish);
/* Parses a SOCKS5 request, after the greeting. */
int cell__egress_parse_socks(const uint8_t *bytes, size_t size, struct cell__egress_wish *ret_wish);

#endif
