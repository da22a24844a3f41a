#include "server/slow_stream.h"

#include <string.h>

#include "server/server.h"

#define ALIVE_US 15000000

static void empty(struct cell__slow_stream *stream)
{
	stream->text.size = stream->sent = 0;
}

ssize_t cell__slow_stream_read(struct cell__slow_stream *stream, int (*fill)(void *arg), void *arg, char *out, size_t max)
{
	size_t n;

	if (stream->sent == stream->text.size) {
		empty(stream);
		if (fill(arg) < 0)
			return MHD_CONTENT_READER_END_WITH_ERROR;
	}
	n = stream->text.size - stream->sent;
	n = n < max ? n : max;
	if (n) {
		memcpy(out, stream->text.data + stream->sent, n);
		stream->sent += n;
		stream->moved_us = cell__now_us();
		return (ssize_t)n;
	}
	if (stream->told_end)
		return MHD_CONTENT_READER_END_OF_STREAM;
	stream->suspended = true;
	MHD_suspend_connection(stream->connection);
	return 0;
}

void cell__slow_stream_wake(struct cell__slow_stream *stream, struct cell_server *server)
{
	if (!stream->suspended)
		return;
	stream->suspended = false;
	MHD_resume_connection(stream->connection);
	cell__http_kick(server);
}

bool cell__slow_stream_is_silent(struct cell__slow_stream *stream, int64_t now_us)
{
	if (!stream->suspended || now_us - stream->moved_us < ALIVE_US)
		return false;
	empty(stream);
	return true;
}
