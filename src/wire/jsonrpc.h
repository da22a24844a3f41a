/*
 * JSON-RPC 2.0 as the Model Context Protocol uses it, for client and server.  Pure: bytes in, messages out, and back.
 * All input is hostile: size and depth are bounded, and every message is classified before it is used.
 *
 *     bytes ── lines, SSE events or a body ──▶ text ── cell__rpc_read() ──▶ doc ── cell__rpc_get() ──▶ message
 *
 * Ids are strings or whole numbers, as the protocol requires; null only in an error that answers an unreadable message.
 * Batches exist in revision 2025-03-26 only; for other revisions the caller passes batches = false and they are refused.
 */
#ifndef CELL_WIRE_JSONRPC_H
#define CELL_WIRE_JSONRPC_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/base.h"

#define CELL_RPC_MAX_BYTES (32u * 1024u * 1024u) /* one message, or one batch */
#define CELL_RPC_MAX_BATCH 1000u                 /* messages in it */
#define CELL_RPC_MAX_METHOD 256u                 /* bytes of a method's name */
#define CELL_RPC_MAX_ID 1024u                    /* bytes of an id that is a string */

/* JSON-RPC's own codes; our own are in CELL_CODE_TABLE. */
#define CELL_RPC_PARSE_ERROR (-32700)
#define CELL_RPC_INVALID_REQUEST (-32600)
#define CELL_RPC_METHOD_NOT_FOUND (-32601)
#define CELL_RPC_INVALID_PARAMS (-32602)
#define CELL_RPC_INTERNAL_ERROR (-32603)

enum cell__rpc_kind {
	CELL__RPC_REQUEST = 1,
	CELL__RPC_NOTIFICATION,
	CELL__RPC_RESULT,
	CELL__RPC_ERROR,
};

/* The messages of a text: one or several. */
struct cell__rpc_doc {
	json_t *root;
	size_t count;
	bool batch;
};
#define CELL__RPC_DOC_INIT { NULL, 0, false }

/* All pointers are the doc's and live as long as it does. */
struct cell__rpc_message {
	enum cell__rpc_kind kind;
	json_t *id;             /* string or integer; NULL: a notification, or an error that answers an unreadable message */
	const char *method;     /* REQUEST, NOTIFICATION */
	json_t *params;         /* the same; an object or an array, NULL when there are none */
	json_t *result;         /* RESULT */
	int64_t code;           /* ERROR */
	const char *error_text; /* ERROR: its message, UTF-8 without NUL */
	json_t *data;           /* ERROR; or NULL */
};

/*
 * Returns 0, or the JSON-RPC code to answer with (CELL_RPC_PARSE_ERROR, CELL_RPC_INVALID_REQUEST) and a
 * CELL_E_PROTOCOL, CELL_E_LIMIT or CELL_E_NOMEM in *err.  Whole numbers past 64 bits are read as reals, since nothing
 * here can hold them.
 */
int cell__rpc_read(const char *text, size_t size, bool batches, struct cell__rpc_doc *ret_doc, struct cell_error *err);
void cell__rpc_doc_finish(struct cell__rpc_doc *doc);
#define CELL_AUTO_RPC_DOC __attribute__((cleanup(cell__rpc_doc_finish)))
/*
 * The i-th message. Fails as above with CELL_RPC_INVALID_REQUEST; ret_message->id is then its id as far as it was readable (else NULL), for
 * the answer.
 */
int cell__rpc_get(const struct cell__rpc_doc *doc, size_t i, struct cell__rpc_message *ret_message, struct cell_error *err);

/*
 * Append one message as one line of JSON, without the line break; 0, or -1 when out of memory or longer than CELL_RPC_MAX_BYTES (the buffer
 * is then unchanged). Takes nothing over. params, data: may be NULL. id NULL (errors): absent.
 */
int cell__rpc_add_request(struct cell__buf *buf, int64_t id, const char *method, const json_t *params);
int cell__rpc_add_notification(struct cell__buf *buf, const char *method, const json_t *params);
int cell__rpc_add_result(struct cell__buf *buf, const json_t *id, const json_t *result);
int cell__rpc_add_error(struct cell__buf *buf, const json_t *id, int64_t code, const char *message, const json_t *data);

/* ---- lines: the separators of messages on standard streams ---- */

/*
 * Put bytes in, take lines out until no complete line is left, and repeat. A line longer than max_bytes is reported once and skipped, so
 * that the stream can continue. Empty lines are skipped, and a carriage return before the line break is removed.
 */
struct cell__lines {
	struct cell__buf buf;
	size_t start; /* of the bytes not taken yet */
	size_t scanned; /* no line break before this position */
	size_t max_bytes;
	bool skipping; /* in a line that was too long */
};

enum cell__line_status {
	CELL__LINE_MORE = 0, /* no complete line */
	CELL__LINE_OK,
	CELL__LINE_TOO_LONG,
};

void cell__lines_init(struct cell__lines *lines, size_t max_bytes);
void cell__lines_finish(struct cell__lines *lines);
/* -1: out of memory.  Invalidates lines returned by cell__lines_next(). */
int cell__lines_add(struct cell__lines *lines, const char *bytes, size_t size);
enum cell__line_status cell__lines_next(struct cell__lines *lines, const char **ret_line, size_t *ret_size);

#endif
