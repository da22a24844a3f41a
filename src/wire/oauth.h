/*
 * What OAuth writes into headers and URLs: challenges, well-known addresses, queries.  Pure; everything read is hostile.
 */
#ifndef CELL_WIRE_OAUTH_H
#define CELL_WIRE_OAUTH_H

#include <stdbool.h>

#include "base/base.h"

#define CELL_OAUTH_LIMIT_VALUE 4096u /* bytes of one parameter of a challenge, or of a query */

/*
 * The value of a parameter of a Bearer challenge ("scope", "resource_metadata", "error"), from the value of a WWW-Authenticate header, which
 * may have several challenges.  free() it.  NULL: it is not there, or not valid.
 */
char *cell__oauth_challenge(const char *header, const char *name);

/*
 * The parts of an absolute http or https URL; no user, no fragment.  -1: it is not one.  `path` starts at its slash, or is "" .
 */
struct cell__oauth_url {
	char origin[300]; /* scheme://host[:port], in lower case */
	char host[256];
	const char *path; /* in the text that was read: with the query, if there is one */
	size_t path_size; /* without it */
	bool secure;
};
int cell__oauth_url_read(const char *url, struct cell__oauth_url *ret_url);
/* Is it this computer: localhost, 127.x.x.x, [::1]? */
bool cell__oauth_is_loopback(const char *host);

/* Appends bytes as base64url without padding. */
int cell__buf_add_base64url(struct cell__buf *buf, const void *bytes, size_t size);
/* The other way round: -1 also if a character does not belong there, or says more than the bytes. */
int cell__buf_add_unbase64url(struct cell__buf *buf, const char *text, size_t size);
/* Appends "name=value" with what a form or query needs, and "&" before it unless it is the first. */
int cell__buf_add_query(struct cell__buf *buf, bool *first, const char *name, const char *value);
/* The decoded value of a name in a query or form; free() it.  NULL: not there, there twice, or not valid. */
char *cell__query_value(const char *query, size_t size, const char *name);

#endif
