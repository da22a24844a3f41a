/*
 * HTTP requests on the loop: libcurl's multi interface.  libcurl says which sockets and which time it waits for, libuv
 * waits, and nothing blocks; connections are kept and used again.  Belongs to the loop's thread.
 *
 * The owner makes the easy handle with all its options but CURLOPT_PRIVATE, and frees it after the transfer.
 */
#ifndef CELL_LOOP_HTTP_H
#define CELL_LOOP_HTTP_H

#include <curl/curl.h>

#include "loop/loop.h"

struct cell__http;

/* Embedded in what the owner keeps of a request. */
struct cell__http_transfer {
	CURL *easy;
	/* Once for each cell__http_start() that succeeded and was not cancelled, never from inside it. */
	void (*done)(struct cell__http_transfer *transfer, CURLcode code);
};

/* At most so many connections are open at once; more requests wait their turn. */
int cell__http_create(struct cell__loop *loop, long max_connections, struct cell__http **ret_http, struct cell_error *err);
/* No transfer may be under way.  closed() comes from a later turn of the loop. */
void cell__http_close(struct cell__http *http, void (*closed)(void *arg), void *arg);
/* 0, or -1: out of memory.  done() may start it again. */
int cell__http_start(struct cell__http *http, struct cell__http_transfer *transfer);
void cell__http_cancel(struct cell__http *http, struct cell__http_transfer *transfer);
/* What every request of ours has in common: no signals, no proxy, no netrc, HTTP only, no redirects. */
void cell__http_set_common(CURL *easy);

#endif
