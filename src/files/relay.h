/*
 * Requests to a session server whose bodies and answers pass through the caller's hands block by block, so that files of any size take the
 * memory of a block.  Everything that the server sends is bounded and checked.
 *
 * Functions block until the server has read or sent something: never on the loop's thread, nor on libuv's pool, which a slow server would
 * fill up.  A relay belongs to one thread at a time.
 */
#ifndef CELL_FILES_RELAY_H
#define CELL_FILES_RELAY_H

#include <curl/curl.h>
#include <stdatomic.h>

#include "base/base.h"

/* A session server, and a session there. */
struct cell__elsewhere {
	char *url;           /* http:// or https://, without a slash at its end */
	char *socket;        /* path of the Unix socket to connect to instead of the URL's host, or NULL */
	char *authorization; /* a header line, or NULL */
	char *ca;            /* file with the certificates to trust, or NULL: the system's */
	char session[65];
};
/* NULL: out of memory.  The strings are copied. */
struct cell__elsewhere *cell__elsewhere_create(const char *url, const char *socket, const char *authorization, const char *ca,
					       const char *session);
/* NULL is allowed. */
void cell__elsewhere_destroy(struct cell__elsewhere *place);

/* A handle with the options that all requests to a server have in common; NULL: err has the reason. */
CURL *cell__relay_easy(const char *socket, const char *ca, struct cell_error *err);
/* What a server refused, in its own words: err gets its code and message. */
int cell__relay_refusal(long status, const struct cell__buf *answer, struct cell_error *err);

struct cell__relay;

/*
 * easy has the URL and the method of the request.  It and its headers are taken over, also by a failure.  sends: a body follows; else there
 * is none.  cancelled: NULL, or the caller's; once it is true the function that waits, and all later ones, fail with CELL_E_CANCELLED.
 */
int cell__relay_start(CURL *easy, struct curl_slist *headers, bool sends, const atomic_bool *cancelled, struct cell__relay **ret_relay,
		      struct cell_error *err);
/* Drops the connection if the answer is not complete.  NULL is allowed. */
void cell__relay_destroy(struct cell__relay *relay);
/* The next bytes of the body. */
int cell__relay_write(struct cell__relay *relay, const char *bytes, size_t size, struct cell_error *err);
/* The next bytes of the answer, after the whole body; 0: its end.  -1: also where the server refuses. */
ssize_t cell__relay_read(struct cell__relay *relay, char *out, size_t max, struct cell_error *err);
/* The rest of the answer, at most max bytes of it. */
int cell__relay_finish(struct cell__relay *relay, size_t max, struct cell__buf *out, struct cell_error *err);

#endif
