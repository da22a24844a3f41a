/*
 * wire/frame.  Input: two bytes that say where the stream is split, then the stream.  Fed whole or in two pieces, the
 * same frames come out, and what is decoded encodes to the same bytes.
 */
#include "fuzz.h"
#include "wire/frame.h"

#define MAX_FRAMES 4096

struct found {
	size_t at, used;
	enum cell_frame_status status;
};

static void check_frame(const uint8_t *bytes, size_t left, const struct cell_frame *frame, size_t used)
{
	uint8_t header[CELL_FRAME_HEADER_BYTES];
	MUST(used <= left);
	MUST(frame->json_size <= CELL_FRAME_MAX_JSON && frame->raw_size <= CELL_FRAME_MAX_RAW);
	MUST(used == CELL_FRAME_HEADER_BYTES + (size_t)frame->json_size + frame->raw_size);
	MUST(frame->json == bytes + CELL_FRAME_HEADER_BYTES && frame->raw == frame->json + frame->json_size);
	cell__frame_encode_header(frame, header);
	MUST(memcmp(header, bytes, sizeof header) == 0);
}

/* Decodes what can be decoded of bytes[at..end); the last entry says why it stopped. */
static size_t decode(const uint8_t *bytes, size_t *at, size_t end, struct found *out, size_t n)
{
	while (n < MAX_FRAMES) {
		uint8_t *piece = fuzz_copy(bytes + *at, end - *at);
		struct cell_frame frame;
		size_t used = 0;
		enum cell_frame_status status = cell__frame_decode(piece, end - *at, &frame, &used);
		if (status == CELL_FRAME_OK)
			check_frame(piece, end - *at, &frame, used);
		if (status == CELL_FRAME_MORE)
			MUST(used > end - *at);
		free(piece);
		if (status == CELL_FRAME_MORE)
			break;
		out[n++] = (struct found){ *at, used, status };
		if (status != CELL_FRAME_OK)
			break;
		*at += used;
	}
	return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct found whole[MAX_FRAMES], pieces[MAX_FRAMES];
	if (size < 2)
		return 0;
	size_t split = data[0] | (size_t)data[1] << 8;
	data += 2;
	size -= 2;
	if (split > size)
		split = size;
	size_t at = 0, n_whole = decode(data, &at, size, whole, 0);
	at = 0;
	size_t n = decode(data, &at, split, pieces, 0);
	if (n == 0 || pieces[n - 1].status == CELL_FRAME_OK)
		n = decode(data, &at, size, pieces, n);
	MUST(n == n_whole);
	for (size_t i = 0; i < n; i++) {
		MUST(whole[i].at == pieces[i].at && whole[i].status == pieces[i].status);
		MUST(whole[i].status != CELL_FRAME_OK || whole[i].used == pieces[i].used);
	}
	return 0;
}
