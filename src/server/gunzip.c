#include "server/gunzip.h"

#include <limits.h>
#include <string.h>
#include <zlib.h>

#include "base/libraries.h"

#define GZIP_ALONE (15 + 16) /* windowBits: the largest window, with a head of gzip */

struct cell__gunzip {
	z_stream stream;
	bool in_member; /* some of a member was read, and not its end */
	bool has_read;  /* a whole member */
};

struct cell__gunzip *cell__gunzip_create(struct cell_error *err)
{
	struct cell__gunzip *gunzip;

	if (cell__library_load(CELL__LIBRARY_ZLIB, err) < 0)
		return NULL;
	gunzip = cell__alloc(1, sizeof(*gunzip));
	if (gunzip && inflateInit2(&gunzip->stream, GZIP_ALONE) == Z_OK)
		return gunzip;
	free(gunzip);
	cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a compressed upload");
	return NULL;
}

void cell__gunzip_destroy(struct cell__gunzip *gunzip)
{
	if (!gunzip)
		return;
	(void)inflateEnd(&gunzip->stream);
	free(gunzip);
}

ssize_t cell__gunzip_next(struct cell__gunzip *gunzip, const char **bytes, size_t *size, char *out, size_t max, struct cell_error *err)
{
	z_stream *stream = &gunzip->stream;
	unsigned given = *size < UINT_MAX ? (unsigned)*size : UINT_MAX, room = max < UINT_MAX ? (unsigned)max : UINT_MAX;
	int rc = Z_OK;

	stream->next_in = (Bytef *)(uintptr_t)*bytes; /* it is only read */
	stream->avail_in = given;
	stream->next_out = (Bytef *)out;
	stream->avail_out = room;
	/* Until there is some output: heads and ends of members give none. */
	while (rc == Z_OK && stream->avail_out == room && (stream->avail_in || gunzip->in_member)) {
		gunzip->in_member = true;
		rc = inflate(stream, Z_NO_FLUSH);
		if (rc == Z_STREAM_END) {
			gunzip->in_member = false;
			gunzip->has_read = true;
			rc = inflateReset(stream);
		}
	}
	*bytes += given - stream->avail_in;
	*size -= given - stream->avail_in;
	/* Nothing more can be said without more bytes. */
	if (rc == Z_OK || (rc == Z_BUF_ERROR && !stream->avail_in))
		return (ssize_t)(room - stream->avail_out);
	if (rc == Z_MEM_ERROR)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a compressed upload");
	return cell_fail(err, CELL_E_INVALID, 0, "the body is not gzip, or is damaged: %s", stream->msg ? stream->msg : "no dictionary");
}

bool cell__gunzip_is_whole(const struct cell__gunzip *gunzip)
{
	return gunzip->has_read && !gunzip->in_member;
}
