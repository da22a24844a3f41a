#include "server/command_stream.h"

#include <string.h>

#define PIECE_BYTES (24u * 1024u) /* of output at once */

static void wake(struct cell__command_reader *reader)
{
	struct cell__command_stream *stream = (struct cell__command_stream *)reader;

	cell__slow_stream_wake(&stream->out, stream->server);
}

const char *cell__command_stream_name(const struct cell__command_stream *stream, const struct cell__command_piece *piece)
{
	if (cell__command_has_tty(stream->reader.command))
		return "pty";
	return piece->stream == CELL_STDERR ? "stderr" : "stdout";
}

/* What comes next, or nothing: then it waits.  -1: out of memory. */
static int fill(void *arg)
{
	struct cell__command_stream *stream = arg;
	struct cell__command_piece piece;
	size_t taken = 0;

	if (stream->tells_start) {
		stream->tells_start = false;
		return stream->form->start(stream);
	}
	cell__command_peek(stream->reader.command, stream->reader.position, &piece);
	if (piece.size) {
		if (piece.size > PIECE_BYTES)
			piece.size = PIECE_BYTES;
		if (stream->form->piece(stream, &piece, &taken) < 0)
			return -1;
		cell__command_took(&stream->reader, piece.position + taken);
		return 0;
	}
	if (!cell__command_has_ended(stream->reader.command) || stream->out.told_end)
		return 0;
	stream->out.told_end = true;
	return stream->form->end(stream);
}

static ssize_t read_stream(void *arg, uint64_t position, char *out, size_t max)
{
	struct cell__command_stream *stream = arg;

	(void)position;
	return cell__slow_stream_read(&stream->out, fill, stream, out, max);
}

static void free_stream(void *arg)
{
	struct cell__command_stream *stream = arg;

	*stream->at = stream->next;
	if (stream->next)
		stream->next->at = stream->at;
	cell__command_detach(&stream->reader);
	cell__buf_finish(&stream->out.text);
	free(stream);
}

void cell__command_streams_sweep(struct cell_server *server, int64_t now_us)
{
	for (struct cell__command_stream *stream = server->command_streams; stream; stream = stream->next) {
		if (!cell__slow_stream_is_silent(&stream->out, now_us))
			continue;
		(void)stream->form->alive(stream);
		wake(&stream->reader);
	}
}

static uint64_t end_of(struct cell__command *command)
{
	struct cell__command_piece piece = { 0 };
	uint64_t position;

	do {
		position = piece.position + piece.size;
		cell__command_peek(command, position, &piece);
	} while (piece.size);
	return position;
}

struct MHD_Response *cell__command_read(struct cell__request *request, struct cell__command *command, const struct cell__command_form *form,
					uint64_t from, bool tells_start)
{
	struct cell_server *server = request->server;
	struct cell__command_stream *stream = cell__alloc(1, sizeof(*stream));
	struct MHD_Response *response = stream ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CELL_SLOW_STREAM_BLOCK_BYTES,
										   read_stream, stream, free_stream)
					       : NULL;

	if (!response) {
		free(stream);
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a stream");
		return NULL;
	}
	*stream = (struct cell__command_stream){
		.form = form,
		.server = server,
		.out = { .connection = request->connection, .text = CELL_BUF_INIT, .moved_us = cell__now_us() },
		.tells_start = tells_start,
		.next = server->command_streams,
		.at = &server->command_streams
	};
	if (stream->next)
		stream->next->at = &stream->next;
	memcpy(stream->sandbox, request->sandbox, sizeof(stream->sandbox));
	server->command_streams = stream;
	cell__command_attach(command, &stream->reader, from == CELL_COMMAND_NOW ? end_of(command) : from, wake);
	MHD_add_response_header(response, "Content-Type", form->type);
	MHD_add_response_header(response, "Cache-Control", "no-store");
	return response;
}
