/*
 * Access checks and URL decoding shared by the HTTP servers. Pure.
 *
 * Host and Origin are checked against DNS rebinding: pages in a browser whose host name resolves to our address.
 */
#ifndef CELL_WIRE_ACCESS_H
#define CELL_WIRE_ACCESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/base.h"

#define CELL_ACCESS_HASH_BYTES 32

/* Tokens are compared by their hashes, in a time that depends neither on where they differ nor on the length of ours. */
void cell__access_hash(const char *token, size_t size, unsigned char ret_hash[CELL_ACCESS_HASH_BYTES]);
bool cell__access_same(const unsigned char *hash, const unsigned char *other);
/* The credential of an Authorization header "Bearer CREDENTIAL"; NULL if it has another form. */
const char *cell__access_bearer(const char *header);
/* Whether it is a loopback name, the address we listen on, or one of `more` (NULL-terminated, may be NULL).  port 0: any. */
bool cell__access_host(const char *host, const char *bound, int port, const char *const *more);
/* A browser names the page that makes the request; other programs send no Origin (NULL). */
bool cell__access_origin(const char *origin, const char *host, const char *const *more);
/*
 * Appends the decoded form of percent-encoded text; plus: '+' is a space. -1, with nothing appended: not well-formed, contains a NUL, not
 * UTF-8, or out of memory.
 */
int cell__url_decode(const char *text, size_t size, bool plus, struct cell__buf *out);

#endif
