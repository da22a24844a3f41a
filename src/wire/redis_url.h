/*
 * The URL of a storage in Redis:
 *
 *     redis://[[user][:password]@]host[:port][/db][?prefix=P...]       port 6379, db 0
 *     rediss://...                                                     the same over TLS
 *     redis+unix://[[user][:password]@]/path/of/socket[?db=N...]       also unix://
 *
 * Parts are percent-decoded.  Options: prefix, tools_prefix, db, ssl_ca_certs (a file; default: the system's), ssl_cert_reqs=none; via
 * (the path of a socket that hands out connections to the server, executors/container/dialer.h).
 * Pure: takes any text.  Errors never repeat the URL, which may hold a password.
 */
#ifndef CELL_WIRE_REDIS_URL_H
#define CELL_WIRE_REDIS_URL_H

#include "base/base.h"

#define CELL__REDIS_PORT 6379
#define CELL__REDIS_DEFAULT_PREFIX "py_code_mode"
#define CELL__REDIS_URL_BYTES 4096u
#define CELL__REDIS_PREFIX_BYTES 256u
#define CELL__REDIS_DATABASES 1000000

struct cell__redis_url {
	bool tls, insecure; /* insecure: the certificate is not checked */
	char *user, *password; /* NULL: none */
	char *host;            /* NULL: a Unix socket */
	char *path;            /* of the socket */
	int port, db;
	char *prefix;
	char *tools_prefix;    /* NULL: prefix:tools */
	char *ca_file;         /* NULL: the system's */
	char *via;             /* NULL: we connect ourselves */
	char *shown;           /* "host:6379" or the socket's path, for messages */
};

/* Whether this is the URL of a storage in Redis, not the path of a folder. */
bool cell__redis_url_is(const char *text);
/* After an error no finish is needed. */
int cell__redis_url_parse(const char *text, struct cell__redis_url *ret_url, struct cell_error *err);
/* Passwords are overwritten. */
void cell__redis_url_finish(struct cell__redis_url *url);

#endif
