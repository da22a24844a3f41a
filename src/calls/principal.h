/*
 * The principal: on whose behalf a call is made.  Plain data without an owner; any thread.
 *
 * Every struct cell__call carries one, and the functions that submit a call take it as an argument: there is no default.
 * Memory that was only zeroed is a principal of no kind that is not trusted.
 *
 * Trust is about the host: an untrusted principal must not make the host run code of its choice (build a source
 * distribution, start a program, load a package).  The trust of code, of an MCP client and of an HTTP client is that of
 * the executor their code runs in: a client that may only run confined code gets no further through its own calls.
 */
#ifndef CELL_CALLS_PRINCIPAL_H
#define CELL_CALLS_PRINCIPAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cell__principal_kind {
	CELL__PRINCIPAL_NONE,
	CELL__PRINCIPAL_HOST, /* the program that links the library, and its user */
	CELL__PRINCIPAL_CODE,     /* of a session */
	CELL__PRINCIPAL_HTTP,     /* a client of the session server */
	CELL__PRINCIPAL_MCP,      /* a client of the MCP server: an agent */
};

/* How much an untrusted principal may make the host store; 0: nothing, UINT64_MAX: no limit. */
struct cell__host_limits {
	/* how full a storage may be for it to add more */
	uint64_t bytes, artifacts; /* artifacts, and what is in them */
	uint64_t index_bytes;      /* their descriptions and metadata */
	uint64_t workflows;
	uint64_t audit_bytes;      /* of records in the audit log, a second (gate/pace.h) */
};

struct cell__principal {
	enum cell__principal_kind kind;
	bool trusted;    /* its executor does not confine code, or it is the host itself */
	unsigned scopes; /* HTTP: of its token (server.h) */
	struct cell__host_limits limits; /* limits of an untrusted principal */
	char name[72];   /* name for the audit log: the token's or the client's; "": none */
};

/* The host program itself. */
extern const struct cell__principal cell__principal_host;

/* limits are copied; name may be NULL. */
void cell__principal_init(struct cell__principal *principal, enum cell__principal_kind kind, bool trusted,
			  const struct cell__host_limits *limits, const char *name);
/* NULL is not trusted. */
bool cell__principal_is_trusted(const struct cell__principal *principal);
/* "host", "code", "http", "mcp". */
const char *cell__principal_word(const struct cell__principal *principal);
/* 0: unknown word. */
enum cell__principal_kind cell__principal_kind_of(const char *word);

#endif
