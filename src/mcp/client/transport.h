/*
 * One connection to an MCP server: messages go in as text and come out as text.  Belongs to the loop's thread.
 *
 *     open ──▶ connected ──lost()──▶ going ──gone()──▶ memory free
 *                  └─────── close() ───┘
 *
 * Contract: open() returning an error means no callback is ever called.  Otherwise message() any number of times, lost()
 * at most once and not after close(), gone() exactly once, last; none of them from inside open(), send(), forget() or
 * close().  After lost() and close() the pointer must not be used.  message() may close the connection.
 */
#ifndef CELL_MCP_CLIENT_TRANSPORT_H
#define CELL_MCP_CLIENT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"
#include "loop/loop.h"
#include "spawn/process.h"

#define CELL_MCP_LIMIT_TAIL 4096u                      /* of a server's stderr, for diagnosis */
#define CELL_MCP_LIMIT_UNREAD (64u * 1024u * 1024u)    /* bytes that a server has not taken */
#define CELL_MCP_CLOSE_GRACE_MS 2000                   /* from the end of its stdin to the kill; for a goodbye by HTTP */

enum cell__mcp_kind { CELL_MCP_STDIO, CELL_MCP_HTTP, CELL_MCP_SSE };

/* How a server is reached, with every ${VAR} resolved: it may contain secrets and is zeroed when finished. */
struct cell__mcp_launch {
	enum cell__mcp_kind kind;
	char **argv;    /* stdio; NULL-terminated, as env and headers */
	char **env;
	char *path;     /* PATH for argv[0] */
	char *cwd;
	struct cell__confinement *confine; /* stdio: a reference; NULL: it runs as the host does */
	/* NULL, or called on the pool before the start: looks up the program's files, or gets a token for `headers`. */
	int (*check)(struct cell__mcp_launch *launch, struct cell_error *err);
	char *url;      /* http, sse */
	bool guessed;   /* http: nobody said so, and an older server may be there */
	bool renew;     /* http: the server refused the token that was used; for check() */
	void *check_arg; /* for check(); freed with check_free() */
	void (*check_free)(void *arg);
	char **headers; /* "Name: value" */
};
void cell__mcp_launch_finish(struct cell__mcp_launch *launch);

struct cell__mcp_transport;

/* One message to send. */
struct cell__mcp_outgoing {
	const char *text;
	size_t size;
	int64_t id;                 /* of a request that needs an answer, else 0 */
	const char *const *headers; /* HTTP: "Name: value", NULL-terminated; NULL: those of the older revisions */
};

struct cell__mcp_rejection {
	struct cell_error err;
	long status;      /* of HTTP; 0: none */
	const char *text; /* the body, if it is JSON; NULL: none */
	size_t size;
};

struct cell__mcp_transport_events {
	/* One message, or a batch. */
	void (*message)(void *owner, const char *text, size_t size);
	/* A request that was sent will have no answer, for this reason; the connection lives on. */
	void (*refused)(void *owner, int64_t id, const struct cell__mcp_rejection *refusal);
	/* The server has dropped our session; it did not process the request with this id (0: no request). Close, and connect again. */
	void (*expired)(void *owner, int64_t id);
	void (*lost)(void *owner, const struct cell_error *err);
	/* A program wrote to its stderr: see the tail. */
	void (*noted)(void *owner);
	void (*gone)(void *owner);
};

struct cell__mcp_transport_ops {
	const char *name;
	int (*send)(struct cell__mcp_transport *transport, const struct cell__mcp_outgoing *out, struct cell_error *err);
	/* The caller no longer waits for the answer.  NULL: no effect. */
	void (*forget)(struct cell__mcp_transport *transport, int64_t id);
	/* Ends the request's stream, which is how a server of revision 2026-07-28 learns that nobody waits. NULL: a message tells it. */
	void (*abandon)(struct cell__mcp_transport *transport, int64_t id);
	/* The protocol's revision is agreed on; from now on the server may send messages on its own. NULL: as above. */
	void (*agreed)(struct cell__mcp_transport *transport, const char *version);
	void (*close)(struct cell__mcp_transport *transport);
};

/* The beginning of every transport's own struct. */
struct cell__mcp_transport {
	const struct cell__mcp_transport_ops *ops;
	const struct cell__mcp_transport_events *events;
	void *owner;
	struct cell__buf *tail; /* the owner's: the end of the server's stderr */
	struct cell__loop *loop;
	bool exited; /* in lost(): it is a program that ran and has ended by itself */
};

/* The argument of an opener. */
struct cell__mcp_transport_spec {
	struct cell__loop *loop;
	struct cell__supervisor *supervisor;
	const struct cell__mcp_launch *launch; /* copied if it is kept */
	int64_t connect_timeout_ms;
	const struct cell__mcp_transport_events *events;
	void *owner;
	struct cell__buf *tail; /* must live until gone() */
};

/* A struct of this size that begins with the transport; the rest is zero.  NULL: out of memory. */
void *cell__mcp_transport_create(size_t size, const struct cell__mcp_transport_ops *vtable, const struct cell__mcp_transport_spec *spec,
				 struct cell_error *err);
/* Calls forget() if there is one; transport may be NULL. */
void cell__mcp_transport_forget(struct cell__mcp_transport *transport, int64_t id);
int cell__mcp_stdio_open(const struct cell__mcp_transport_spec *spec, struct cell__mcp_transport **ret_transport, struct cell_error *err);
int cell__mcp_http_open(const struct cell__mcp_transport_spec *spec, struct cell__mcp_transport **ret_transport, struct cell_error *err);
int cell__mcp_sse_open(const struct cell__mcp_transport_spec *spec, struct cell__mcp_transport **ret_transport, struct cell_error *err);

#endif
