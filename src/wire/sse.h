/* Server-Sent Events (text/event-stream of the HTML standard): an incremental parser and a writer. Pure; input is hostile and bounded. */
#ifndef CELL_WIRE_SSE_H
#define CELL_WIRE_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define CELL_SSE_MAX_NAME 256u           /* bytes of an event's type */
#define CELL_SSE_MAX_ID 4096u            /* bytes of an event's id */
#define CELL_SSE_MAX_RETRY_MS 3600000    /* a larger request counts as this */

/* Valid until the next call with the parser. */
struct cell__sse_event {
	const char *type;  /* "message" unless the event has a type */
	const char *data;  /* NUL-terminated; may have NULs inside */
	size_t size;
	const char *id;    /* the last id seen in the stream, "" without one; the value for Last-Event-ID */
};

struct cell__sse {
	size_t max_bytes;       /* of one event's data, and of one line */
	struct cell__buf line;
	struct cell__buf data;
	char type[CELL_SSE_MAX_NAME + 1];
	char new_id[CELL_SSE_MAX_ID + 1]; /* of the event being read; counts when it ends */
	char id[CELL_SSE_MAX_ID + 1];
	int64_t retry_ms;       /* as the server requested; -1: it did not */
	unsigned start;         /* how much of a byte order mark has been seen; 3: past it */
	bool after_cr;          /* a line feed that comes next belongs to the carriage return */
	bool has_data;
	bool dispatched;        /* the event was returned and must be cleared */
	bool failed;
};

void cell__sse_init(struct cell__sse *sse, size_t max_bytes);
void cell__sse_finish(struct cell__sse *sse);
/* A new connection of the same stream: drops the incomplete event; id and retry_ms stay. */
void cell__sse_restart(struct cell__sse *sse);
/*
 * Reads from *bytes and advances it. Returns 1 with an event, 0 when all is read and no event is complete, or -1 when the stream exceeds a
 * bound or out of memory (and -1 from then on).
 */
int cell__sse_next(struct cell__sse *sse, const char **bytes, size_t *size, struct cell__sse_event *ret_event, struct cell_error *err);

/*
 * Append to the output. 0, or -1 when out of memory or type or id contain a line break or a NUL (nothing is appended then). type NULL:
 * "message", left out; id NULL: left out; "" resets the id.
 */
int cell__sse_add_event(struct cell__buf *buf, const char *type, const char *id, const char *data, size_t size);
/* A comment: keeps a connection alive.  text without line breaks. */
int cell__sse_add_comment(struct cell__buf *buf, const char *text);
/* The id of an event of a server with several streams, "STREAM-EVENT"; false: not such an id. */
bool cell__sse_read_id(const char *text, uint64_t *ret_stream, uint64_t *ret_event);

#endif
