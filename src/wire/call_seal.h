/*
 * The `requestState` of MCP (revision 2026-07-28): what a client gets with the questions of a call, and brings back with the answers.  Pure.
 *
 *     SESSION, 32 hex digits . seconds since 1970 . ROUND, 32 hex digits . HMAC-SHA256, 64 hex digits
 *
 * The code is over these, over who may bring it (the principal) and over the call that it belongs to (tool and arguments), which are not in the
 * text: whoever reads a seal learns no more than the id of a session of their own.  That a round counts once is for the reader to keep.
 */
#ifndef CELL_WIRE_CALL_SEAL_H
#define CELL_WIRE_CALL_SEAL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define CELL_CALL_SEAL_KEY_BYTES 32u
#define CELL_CALL_SEAL_ID_DIGITS 32u
#define CELL_CALL_SEAL_MAX (CELL_CALL_SEAL_ID_DIGITS + 1 + 18 + 1 + CELL_CALL_SEAL_ID_DIGITS + 1 + 64)

struct cell__call_seal {
	char session[CELL_CALL_SEAL_ID_DIGITS + 1], round[CELL_CALL_SEAL_ID_DIGITS + 1];
	int64_t until_s;
};

/* What a seal is good for. */
struct cell__sealed_call {
	const char *owner, *tool;
	const json_t *args;
};

/* False: a part is not of its form, or there is no memory. */
bool cell__call_seal_write(const unsigned char key[CELL_CALL_SEAL_KEY_BYTES], const struct cell__call_seal *seal,
			   const struct cell__sealed_call *call, char out[static CELL_CALL_SEAL_MAX + 1]);
/* Only the form: whoever has not the key learns where it belongs to, and believes nothing. */
bool cell__call_seal_read(const char *text, struct cell__call_seal *ret_seal);
/* Whether it was made with this key for this call of this principal, and has not expired. */
bool cell__call_seal_check(const unsigned char key[CELL_CALL_SEAL_KEY_BYTES], const char *text, const struct cell__sealed_call *call,
			   int64_t now_s);

#endif
