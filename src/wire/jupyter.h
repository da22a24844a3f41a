/*
 * Jupyter's messages, protocol 5.3, between a client and a Jupyter kernel on ZeroMQ sockets.
 *
 *     [routing ids ...] <IDS|MSG>  signature  header  parent_header  metadata  content  [buffers ...]
 *
 * The signature is the HMAC-SHA256, in hexadecimal, of the four JSON parts under the key of the connection file.
 *
 * Pure codec: takes parts, returns a message or an error.
 */
#ifndef CELL_WIRE_JUPYTER_H
#define CELL_WIRE_JUPYTER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define CELL_JUPYTER_VERSION "5.3"
#define CELL_JUPYTER_MAX_PARTS 64u
#define CELL_JUPYTER_MAX_PART_BYTES (64u * 1024u * 1024u)
#define CELL_JUPYTER_SIGNATURE_BYTES 64u /* in hexadecimal */
#define CELL_JUPYTER_DIGEST_BYTES 32u
#define CELL_JUPYTER_SEEN 512u           /* signatures remembered to refuse replayed messages */
#define CELL_JUPYTER_ID_BYTES 128u       /* the longest message id and session id that is accepted */

struct cell__jupyter_part {
	const void *data;
	size_t size;
};

/* The signatures that were seen last. Zeroed: empty. */
struct cell__jupyter_seen {
	uint8_t digest[CELL_JUPYTER_SEEN][CELL_JUPYTER_DIGEST_BYTES];
	size_t n, next;
};

struct cell__jupyter_message {
	const char *type, *id;                 /* of its header; never NULL */
	const char *parent_id, *parent_session; /* of the request it belongs to; "" without one */
	json_t *content, *metadata;            /* objects */
	json_t *header, *parent;
	size_t n_ids;     /* routing ids: the parts before the delimiter */
	size_t buffers;   /* index of the first part behind the content */
};

enum cell__jupyter_status {
	CELL_JUPYTER_OK = 0,
	CELL_JUPYTER_NO_DELIMITER,
	CELL_JUPYTER_TOO_SHORT,
	CELL_JUPYTER_TOO_BIG,
	CELL_JUPYTER_BAD_SIGNATURE,
	CELL_JUPYTER_REPLAYED,
	CELL_JUPYTER_NOT_JSON,
	CELL_JUPYTER_BAD_HEADER,
};

/* OK: *ret_message is the caller's to finish; all it points to is its own. */
enum cell__jupyter_status cell__jupyter_decode(const struct cell__jupyter_part *parts, size_t n_parts, const char *key,
					       struct cell__jupyter_seen *seen, struct cell__jupyter_message *ret_message);
void cell__jupyter_message_finish(struct cell__jupyter_message *message);
const char *cell__jupyter_status_word(enum cell__jupyter_status status);

/* The four JSON parts of a message and its signature; parent (NULL: none), content and metadata are JSON texts. */
struct cell__jupyter_out {
	const char *type, *id, *session, *date;
	const char *parent, *metadata, *content;
	size_t content_size;
};
/* The header's text goes into *ret_header; -1: out of memory. */
int cell__jupyter_encode(const struct cell__jupyter_out *out, const char *key, struct cell__buf *ret_header,
			 char ret_signature[CELL_JUPYTER_SIGNATURE_BYTES + 1]);

#define CELL_JUPYTER_DELIMITER "<IDS|MSG>"

/* ---- the connection file: where a kernel listens ---- */

#define CELL_JUPYTER_MAX_CONNECTION_BYTES (64u * 1024u)
#define CELL_JUPYTER_ENDPOINT_BYTES 256u
#define CELL_JUPYTER_MAX_KEY_BYTES 256u

enum cell__jupyter_port {
	CELL_JUPYTER_PORT_SHELL,
	CELL_JUPYTER_PORT_IOPUB,
	CELL_JUPYTER_PORT_STDIN,
	CELL_JUPYTER_PORT_CONTROL,
	CELL_JUPYTER_PORT_HB,
	CELL_JUPYTER_PORTS
};

struct cell__jupyter_connection {
	char endpoint[CELL_JUPYTER_PORTS][CELL_JUPYTER_ENDPOINT_BYTES]; /* "tcp://127.0.0.1:5555", "ipc:///run/kernel-1" */
	char key[CELL_JUPYTER_MAX_KEY_BYTES + 1];                       /* never empty */
};
/* A file without a key or with another signature scheme than hmac-sha256 is refused: anybody could send code. */
int cell__jupyter_connection_parse(const char *text, size_t size, struct cell__jupyter_connection *ret_connection, struct cell_error *err);

#endif
