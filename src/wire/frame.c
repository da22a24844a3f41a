#include "wire/frame.h"

#include <string.h>

static void put32(uint8_t *out, uint32_t v)
{
	for (int i = 0; i < 4; i++)
		out[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get32(const uint8_t *in)
{
	return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

void cell__frame_encode_header(const struct cell_frame *frame, uint8_t out[CELL_FRAME_HEADER_BYTES])
{
	out[0] = CELL_FRAME_MAGIC;
	out[1] = CELL_FRAME_VERSION;
	out[2] = frame->type;
	out[3] = frame->flags;
	put32(out + 4, frame->id);
	put32(out + 8, frame->json_size);
	put32(out + 12, frame->raw_size);
	put32(out + 16, (uint32_t)frame->ring_pos);
	put32(out + 20, (uint32_t)(frame->ring_pos >> 32));
}

static int type_known(uint8_t type)
{
	return (type >= CELL_FRAME_INIT && type <= CELL_FRAME_LOAD) || (type >= CELL_FRAME_READY && type <= CELL_FRAME_FORKED);
}

enum cell_frame_status cell__frame_decode(const uint8_t *bytes, size_t size, struct cell_frame *ret_frame, size_t *ret_used)
{
	/* Noise is recognised from its first byte, without waiting for a whole header that may never come. */
	if (size >= 1 && bytes[0] != CELL_FRAME_MAGIC)
		return CELL_FRAME_BAD_MAGIC;
	if (size >= 2 && bytes[1] != CELL_FRAME_VERSION)
		return CELL_FRAME_BAD_VERSION;
	if (size >= 3 && !type_known(bytes[2]))
		return CELL_FRAME_BAD_TYPE;
	if (size < CELL_FRAME_HEADER_BYTES) {
		*ret_used = CELL_FRAME_HEADER_BYTES;
		return CELL_FRAME_MORE;
	}
	uint32_t json_size = get32(bytes + 8);
	uint32_t raw_size = get32(bytes + 12);
	if (json_size > CELL_FRAME_MAX_JSON || raw_size > CELL_FRAME_MAX_RAW)
		return CELL_FRAME_TOO_BIG;
	size_t total = CELL_FRAME_HEADER_BYTES + (size_t)json_size + raw_size;
	*ret_used = total;
	if (size < total)
		return CELL_FRAME_MORE;
	*ret_frame = (struct cell_frame){
		.type = bytes[2],
		.flags = bytes[3],
		.id = get32(bytes + 4),
		.ring_pos = (uint64_t)get32(bytes + 16) | (uint64_t)get32(bytes + 20) << 32,
		.json = bytes + CELL_FRAME_HEADER_BYTES,
		.json_size = json_size,
		.raw = bytes + CELL_FRAME_HEADER_BYTES + json_size,
		.raw_size = raw_size,
	};
	return CELL_FRAME_OK;
}

const char *cell__frame_status_word(enum cell_frame_status status)
{
	switch (status) {
	case CELL_FRAME_OK:
		return "ok";
	case CELL_FRAME_MORE:
		return "truncated frame";
	case CELL_FRAME_BAD_MAGIC:
		return "bytes that do not start a frame";
	case CELL_FRAME_BAD_VERSION:
		return "frame with another protocol version";
	case CELL_FRAME_BAD_TYPE:
		return "frame of an unknown type";
	case CELL_FRAME_TOO_BIG:
		return "frame larger than the limit";
	}
	return "unknown";
}
