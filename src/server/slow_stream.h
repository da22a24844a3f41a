/* An answer whose bytes come now and then: its connection is suspended while there are none.  All of it on the loop. */
#ifndef CELL_SERVER_SLOW_STREAM_H
#define CELL_SERVER_SLOW_STREAM_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"

struct cell_server;

#define CELL_SLOW_STREAM_BLOCK_BYTES (32u * 1024u)

struct cell__slow_stream {
	struct MHD_Connection *connection; /* NULL: it has ended */
	struct cell__buf text;             /* to be sent first; its owner adds to it */
	size_t sent;         /* of it */
	bool told_end;                     /* nothing comes after the text */
	bool suspended;
	int64_t moved_us;
};

/*
 * What a content reader of libmicrohttpd returns. fill(arg) is called when the text has been sent, after it was emptied: it adds what comes
 * next, or nothing, or sets told_end; -1: out of memory.
 */
ssize_t cell__slow_stream_read(struct cell__slow_stream *stream, int (*fill)(void *arg), void *arg, char *out, size_t max);
/* There is something to send. */
void cell__slow_stream_wake(struct cell__slow_stream *stream, struct cell_server *server);
/* True, with an empty text, when it has been silent so long that a sign of life must be added, and the stream woken. */
bool cell__slow_stream_is_silent(struct cell__slow_stream *stream, int64_t now_us);

#endif
