/*
 * One connection to a Redis server: bytes out, replies in, with time limits.  Blocking; belongs to one thread at a time,
 * never the loop's.  hiredis parses the replies; sockets and TLS are ours, so that everything is bounded and no
 * SIGPIPE is raised.
 */
#ifndef CELL_STORAGE_REDIS_CONN_H
#define CELL_STORAGE_REDIS_CONN_H

#include <hiredis/hiredis.h>
#include <openssl/ssl.h>

#include "base/base.h"
#include "wire/redis_url.h"

#define CELL__REDIS_CONNECT_MS 3000                       /* to be connected and let in */
#define CELL__REDIS_REPLY_MS 10000                        /* without a byte of a reply */
#define CELL__REDIS_REPLY_BYTES ((size_t)64 << 20)        /* of all replies to one batch */
#define CELL__REDIS_REPLY_ELEMENTS (4u * 1024u * 1024u)   /* of one array */

/* Commands to be sent together. */
struct cell__redis_batch {
	struct cell__buf text;
	size_t n;
	bool failed; /* out of memory */
};
#define CELL__REDIS_BATCH_INIT { CELL_BUF_INIT, 0, false }
void cell__redis_batch_finish(struct cell__redis_batch *batch);
#define CELL_AUTO_BATCH __attribute__((cleanup(cell__redis_batch_finish)))
/* As redisCommand(): words separated by spaces, with %s (text), %b (bytes and size_t), %d, %lld. */
void cell__redis_add(struct cell__redis_batch *batch, const char *fmt, ...);
/* A command as its words, the last NULL; the word that is `bytes` has `size` bytes. */
void cell__redis_add_words(struct cell__redis_batch *batch, const char *const *words, const char *bytes, size_t size);

struct cell__redis_replies {
	redisReply **list;
	size_t n;
};
#define CELL__REDIS_REPLIES_INIT { NULL, 0 }
void cell__redis_replies_finish(struct cell__redis_replies *replies);
#define CELL_AUTO_REPLIES __attribute__((cleanup(cell__redis_replies_finish)))

struct cell__redis_conn {
	int fd;
	SSL *ssl; /* NULL: plain */
	redisReader *reader;
	redisReplyObjectFunctions functions;
	__typeof__(((redisReplyObjectFunctions *)0)->createArray) create_array; /* hiredis's own */
	struct cell__redis_conn *next; /* for its owner */
};

/* The certificates that servers are checked by; SSL_CTX_free() it. */
int cell__redis_tls_create(const struct cell__redis_url *url, SSL_CTX **ret_tls, struct cell_error *err);
/* Connected and let in, with the database chosen.  CELL_E_IO with EACCES: it will not be let in by trying again. */
int cell__redis_conn_open(const struct cell__redis_url *url, SSL_CTX *tls, struct cell__redis_conn **ret_conn, struct cell_error *err);
void cell__redis_conn_close(struct cell__redis_conn *conn); /* NULL is allowed */
/* Whether the connection is idle: no unexpected bytes and no end of stream. */
bool cell__redis_conn_quiet(const struct cell__redis_conn *conn);
/*
 * Sends the batch and reads its replies, which may be errors of the server. After a failure the connection cannot be used again; *ret_sent:
 * whether the server may have seen some of the batch.
 */
int cell__redis_conn_run(struct cell__redis_conn *conn, const struct cell__redis_batch *batch, struct cell__redis_replies *ret_replies,
			 bool *ret_sent, struct cell_error *err);
/* The message of a server's error, with advice. */
int cell__redis_fail(struct cell_error *err, const char *shown, const redisReply *reply);
#ifdef __clang_analyzer__ /* as cell_fail() */
#define cell__redis_fail(...) ((void)cell__redis_fail(__VA_ARGS__), -1)
#endif

#endif
