/*
 * Frames: the messages between host and kernel on one stream socket.
 *
 *     0      1        2     3      4    8         12       16        24
 *     magic  version  type  flags  id   json_len  raw_len  ring_pos  | json | raw
 *
 * Little-endian.  `id` matches answers to questions.  `ring_pos` is the head of the output ring when the
 * kernel sent the frame: the host takes the output up to there first, so frames and output keep their order.
 * The json part carries structure, the raw part bytes that are never escaped.
 *
 * Pure codec: takes bytes, returns consumed / need more / bad, allocates nothing.
 */
#ifndef CELL_WIRE_FRAME_H
#define CELL_WIRE_FRAME_H

#include <stddef.h>
#include <stdint.h>

#define CELL_FRAME_MAGIC 0x57u /* 'W' */
#define CELL_FRAME_VERSION 1u
#define CELL_FRAME_HEADER_BYTES 24u
#define CELL_FRAME_SAME 1u /* flag of a RESULT: the cell changed nothing */
#define CELL_FRAME_MAX_JSON (16u * 1024u * 1024u)
#define CELL_FRAME_MAX_RAW (64u * 1024u * 1024u)

enum cell_frame_type {
	/* host to kernel */
	CELL_FRAME_INIT = 1,  /* json: {"session", "cwd", "env"} */
	CELL_FRAME_RUN = 2,   /* raw: source */
	CELL_FRAME_REPLY = 3, /* answer to CALL */
	CELL_FRAME_SHUTDOWN = 4,
	CELL_FRAME_INTERRUPT = 5, /* for a kernel that gets no signals; id: the run */
	/*
	 * json: {"session", "drop", "heir"} (executor.h); fds: socket, stdout, stderr, ring of the new kernel, which answers with READY there.
	 * In a sandbox: {"drop", "image": true}; fd: the file that its memory is written to.
	 */
	CELL_FRAME_FORK = 6,
	CELL_FRAME_LOAD =
		7, /* instead of INIT; json: {"session", "heir"}; raw: as of INIT; fd: the file that another kernel has written, and earlier ones */
	/* kernel to host */
	CELL_FRAME_READY = 65, /* answer to INIT; json: {"python", "ipython", "error"?} */
	CELL_FRAME_RESULT = 66, /* see docs/protocol.md */
	CELL_FRAME_DISPLAY = 67,
	CELL_FRAME_DOORBELL = 68, /* there is output in the ring */
	CELL_FRAME_CALL = 69, /* namespace call */
	CELL_FRAME_HELLO = 70, /* the kernel is up and waits for INIT */
	/* of a kernel without a ring */
	CELL_FRAME_OUTPUT = 71, /* flags: the stream; raw: bytes */
	CELL_FRAME_SNAPSHOT = 72, /* deno, before HELLO; json (not JSON): head; raw: memory */
	CELL_FRAME_FORKED =
		73, /* answer to FORK; json: {"pid"}, {"image": [inode of earlier file]} or {"error", "held": [[kind, name]...]} */
};

struct cell_frame {
	uint8_t type;
	uint8_t flags;
	uint32_t id;
	uint64_t ring_pos;
	const uint8_t *json;
	uint32_t json_size;
	const uint8_t *raw;
	uint32_t raw_size;
};

enum cell_frame_status {
	CELL_FRAME_OK = 0,
	CELL_FRAME_MORE, /* not all there yet */
	CELL_FRAME_BAD_MAGIC,
	CELL_FRAME_BAD_VERSION,
	CELL_FRAME_BAD_TYPE,
	CELL_FRAME_TOO_BIG,
};

void cell__frame_encode_header(const struct cell_frame *frame, uint8_t out[CELL_FRAME_HEADER_BYTES]);

/*
 * Decodes the frame at the start of bytes[0..size). OK: *ret_frame points into bytes and *ret_used is the frame's size. MORE: *ret_used is
 * the number of bytes needed at least to continue.
 */
enum cell_frame_status cell__frame_decode(const uint8_t *bytes, size_t size, struct cell_frame *ret_frame, size_t *ret_used);
const char *cell__frame_status_word(enum cell_frame_status status);

#endif
