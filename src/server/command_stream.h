/*
 * One client that reads a command's output over HTTP, in the form of its protocol.  Loop's thread.
 *
 * While it reads, the command waits for it (session/commands.h), and nothing is lost.  A client that went away is noticed with the next thing
 * that is sent to it: now and then that is one that tells nothing.
 */
#ifndef CELL_SERVER_COMMAND_STREAM_H
#define CELL_SERVER_COMMAND_STREAM_H

#include "server/server.h"
#include "server/slow_stream.h"
#include "session/commands.h"

/* The output from now on, not what is kept of it. */
#define CELL_COMMAND_NOW UINT64_MAX

struct cell__command_stream {
	struct cell__command_reader reader; /* first */
	const struct cell__command_form *form;
	struct cell_server *server;
	struct cell__slow_stream out; /* the form's functions add to its text */
	bool tells_start;
	char sandbox[33]; /* of E2B's clients; "": none */
	struct cell__command_stream *next, **at; /* of the server */
};

/* How a protocol writes it.  Each adds to stream->out.text; -1: out of memory. */
struct cell__command_form {
	const char *type; /* of the response */
	int (*start)(struct cell__command_stream *stream);
	/* *ret_taken: how many of its bytes, at least one. */
	int (*piece)(struct cell__command_stream *stream, const struct cell__command_piece *piece, size_t *ret_taken);
	int (*end)(struct cell__command_stream *stream);
	int (*alive)(struct cell__command_stream *stream);
};

/* "stdout", "stderr" or "pty". */
const char *cell__command_stream_name(const struct cell__command_stream *stream, const struct cell__command_piece *piece);
/* The output from this position on, to be answered with; NULL: the request was answered. */
struct MHD_Response *cell__command_read(struct cell__request *request, struct cell__command *command, const struct cell__command_form *form,
					uint64_t from, bool tells_start);

#endif
