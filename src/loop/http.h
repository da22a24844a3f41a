/*
 * HTTP requests on the loop: libcurl's multi interface.  libcurl names the sockets and the time that it waits for, libuv
 * waits, and nothing blocks; connections are kept and used again.  Belongs to the loop's thread.
 *
 * This is the only place that sets libcurl's options: owners describe a request.  All requests have in common: no signals, no
 * proxy, no netrc, HTTP and HTTPS alone, no redirects, no waiting for "100 Continue".
 */
#ifndef CELL_LOOP_HTTP_H
#define CELL_LOOP_HTTP_H

#include <curl/curl.h>

#include "loop/loop.h"

struct cell__http;

/* The request to send.  Only the body must stay valid until the transfer is done. */
struct cell__http_request {
	const char *method;
	const char *url;        /* http:// or https:// */
	const void *body;       /* NULL: none, which is not the same as an empty one */
	size_t body_size;
	const char *socket;     /* path of the Unix socket to connect to instead of the URL's host; NULL: none */
	const char *ca;         /* file with the certificates to trust; NULL: the system's */
	const char *ca_pem;     /* the certificates themselves, instead of a file; NULL: as `ca` says */
	const char *cert_pem, *key_pem; /* the client's own; NULL: none */
	int64_t connect_ms;     /* 0: libcurl's own limit */
	int64_t timeout_ms;     /* time limit of the whole transfer; 0: none */
	int64_t silence_s;      /* fail when no data arrives for this long; 0: never */
	/*
	 * When a kept connection ends before the first byte of the answer, libcurl sends the request again over a new one.  POST and PATCH are not:
	 * the first one may have been carried out.  This one changes nothing, so it may be sent twice.
	 */
	bool repeats;
	bool path_as_is; /* leave /../ in the URL to the server */
};

/* Embedded in the owner's request; zero it before use, except for the functions. */
struct cell__http_transfer {
	/* Once for each cell__http_start() that succeeded and was not cancelled, never from inside it. */
	void (*done)(struct cell__http_transfer *transfer, CURLcode code);
	/* A piece of the response's body: returns its size, 0 to end the transfer, or CURL_WRITEFUNC_PAUSE. */
	size_t (*body)(struct cell__http_transfer *transfer, const char *bytes, size_t size);
	/* A line of the response's head; may be NULL. */
	void (*header)(struct cell__http_transfer *transfer, const char *line, size_t size);
	CURL *easy; /* for curl_easy_getinfo() and curl_easy_pause(); NULL before the first start */
	struct curl_slist *headers;
	bool once, sent, refused; /* it may be sent once; it was; libcurl wanted to send it again */
	char message[CURL_ERROR_SIZE];
};

/* The maximum number of open connections; further requests wait. */
int cell__http_create(struct cell__loop *loop, long max_connections, struct cell__http **ret_http, struct cell_error *err);
/* No transfer may be running.  closed() is called in a later iteration of the loop. */
void cell__http_close(struct cell__http *http, void (*closed)(void *arg), void *arg);
/* "Name: value", for every start that follows.  0, or -1: out of memory. */
int cell__http_add_header(struct cell__http_transfer *transfer, const char *line);
void cell__http_clear_headers(struct cell__http_transfer *transfer);
/* 0, or -1: out of memory.  done() may start it again. */
int cell__http_start(struct cell__http *http, struct cell__http_transfer *transfer, const struct cell__http_request *request);
void cell__http_cancel(struct cell__http *http, struct cell__http_transfer *transfer);
/* Frees the members of the transfer, with headers zeroed; it must not be running. */
void cell__http_finish(struct cell__http_transfer *transfer);
/*
 * One request, without a loop: blocks the caller, which must not be the loop's thread.  For services that a remote party names: no redirects,
 * a limited body, and no address of a private network unless it is allowed.
 */
struct cell__http_reply {
	long status;
	struct cell__buf body; /* NUL-terminated */
	struct cell__buf challenge; /* WWW-Authenticate, all of them joined by commas */
	struct cell__buf location; /* of a redirect, NUL-terminated; empty: none */
	bool private_address; /* it came from this computer or a private network */
};
struct cell__http_rules {
	size_t max_body;
	bool allow_private;
};
int cell__http_perform(const struct cell__http_request *request, const char *const *headers, const struct cell__http_rules *rules,
		       struct cell__http_reply *reply, struct cell_error *err);
void cell__http_reply_finish(struct cell__http_reply *reply);

/* Of the response; 0: there is none. */
long cell__http_status(const struct cell__http_transfer *transfer);
/* Why a transfer failed, for a person. */
const char *cell__http_explain(const struct cell__http_transfer *transfer, CURLcode code);

#endif
