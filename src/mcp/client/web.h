/*
 * The HTTP of one connection: exchanges in progress, their received bytes that are not processed yet, and their end.
 * Shared by the two transports that use it.  Belongs to the loop's thread.
 *
 *     exchange:  made ──start()──▶ running ──event()*──▶ end() ──┬──▶ start() again: a redirect, a stream that continues
 *                                     └──────── drop() ──────────┴──▶ free, from a later iteration of the loop
 *
 * libcurl must not be called from its own callbacks, so received bytes are stored and processed afterwards.  Therefore
 * event() and end() may do anything, even close the whole web.
 */
#ifndef CELL_MCP_CLIENT_WEB_H
#define CELL_MCP_CLIENT_WEB_H

#include "loop/http.h"
#include "mcp/client/transport.h"
#include "wire/sse.h"

#define CELL_WEB_LIMIT_EXCHANGES 1024u          /* of one connection */
#define CELL_WEB_LIMIT_CONNECTIONS 300          /* open at once; more than CELL_MCP_LIMIT_SENT */
#define CELL_WEB_LIMIT_ERROR_TEXT 16384u        /* kept of a failed response */
#define CELL_WEB_LIMIT_SESSION 1024u            /* bytes of a session's id */
#define CELL_WEB_LIMIT_REDIRECTS 5
#define CELL_WEB_LIMIT_CHALLENGE 8192u          /* bytes of WWW-Authenticate */

struct cell__web;

struct cell__exchange {
	struct cell__http_transfer transfer;
	struct cell__web *web;
	/* the question */
	const char *method;      /* "POST", "GET", "DELETE" */
	int64_t id;              /* of the request to answer; 0: none, or no longer */
	struct cell__buf body;
	const char *accept;
	char **headers;          /* of revision 2026-07-28; NULL: it is a message of an older one */
	/* the answer */
	long status;
	bool is_sse, is_json, too_big;
	struct cell__buf text;   /* a body that is not an event stream */
	struct cell__sse sse;
	struct cell__buf inbox;  /* of the stream, not processed yet */
	char session[CELL_WEB_LIMIT_SESSION + 1]; /* Mcp-Session-Id, or "" */
	struct cell__buf challenge; /* WWW-Authenticate */
	CURLcode code;
	/* the owner's */
	int kind;
	unsigned tries;          /* in a row without anything new */
	unsigned redirects;
	bool fresh;              /* events came since the last start */
	bool late;               /* it was sent when all was agreed on */
	bool held;               /* not sent yet */
	int64_t at_us;           /* when tick() processes it; 0: never */
	/* web.c's */
	bool running, ended, dead;
	struct cell__exchange *next;
};

struct cell__web_ops {
	/* headers of a request beside web->headers; 0 or -1. NULL: no further headers */
	int (*add_headers)(struct cell__web *web, struct cell__exchange *exchange);
	void (*event)(struct cell__web *web, struct cell__exchange *exchange, const struct cell__sse_event *event);
	void (*end)(struct cell__web *web, struct cell__exchange *exchange);
	void (*tick)(struct cell__web *web, struct cell__exchange *exchange); /* its time has come; NULL: cell__exchange_at() is not used */
	void (*gone)(struct cell__web *web); /* after close(): the struct's memory is the owner's again */
};

struct cell__web {
	struct cell__loop *loop;
	struct cell__http *http;
	char *url;
	char **headers; /* of every request; may hold secrets */
	int64_t connect_timeout_ms;
	const struct cell__web_ops *ops;
	/* web.c's */
	uv_timer_t timer;
	int64_t armed_us;
	struct cell__exchange *list;
	size_t count;
	bool closing, timer_closed, http_closed;
};

/* Copies url and headers. */
int cell__web_init(struct cell__web *web, const struct cell__web_ops *ops, const struct cell__mcp_transport_spec *spec,
		   struct cell_error *err);
/* Drops all exchanges; gone() is called from a later iteration of the loop. */
void cell__web_close(struct cell__web *web);

struct cell__exchange *cell__exchange_create(struct cell__web *web, const char *method, const char *accept, struct cell_error *err);
/* A POST with this body, which is copied. */
struct cell__exchange *cell__exchange_create_post(struct cell__web *web, const char *accept, int kind, const struct cell__mcp_outgoing *out,
						  struct cell_error *err);
int cell__exchange_add_header(struct cell__exchange *exchange, const char *name, const char *value);
/* Sends the request, also repeatedly: resets the state of an earlier answer except for the position in the stream. */
int cell__exchange_start(struct cell__exchange *exchange, const char *url, long timeout_ms, struct cell_error *err);
void cell__exchange_drop(struct cell__exchange *exchange);
/* tick() at this time. */
void cell__exchange_at(struct cell__exchange *exchange, int64_t at_us);
/* A message about the failure. */
void cell__exchange_explain(const struct cell__exchange *exchange, struct cell_error *ret_err);
/* The absolute URL that `target` means at `base`; free() it.  NULL: not a URL, one of another origin, or out of memory. */
char *cell__web_resolve(const char *base, const char *target);

#endif
