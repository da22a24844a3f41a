/*
 * A name with an expiry date, sealed: what a browser keeps as a cookie instead of a token.  Pure.
 *
 *     NAME in hex . seconds since 1970 . 32 random hex digits . HMAC-SHA256 of all that, 64 hex digits
 *
 * The key is the hash of the token that was shown at the login, so a seal is worth nothing once the token is replaced, every process that
 * knows the tokens can check it, and nobody can compute the token from it.
 */
#ifndef CELL_WIRE_SEAL_H
#define CELL_WIRE_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CELL_SEAL_MAX_NAME 64u
#define CELL_SEAL_KEY_BYTES 32u
#define CELL_SEAL_MAC_DIGITS 64u
#define CELL_SEAL_MAX (2 * CELL_SEAL_MAX_NAME + 1 + 20 + 1 + 32 + 1 + CELL_SEAL_MAC_DIGITS)

/* nonce: 32 hex digits.  False: the name is empty or too long, or libcrypto failed. */
bool cell__seal_write(const unsigned char key[CELL_SEAL_KEY_BYTES], const char *name, int64_t until_s, const char *nonce,
		      char out[static CELL_SEAL_MAX + 1]);
/* Reads it without checking the seal, to find the key.  False: not of this form. */
bool cell__seal_read(const char *text, char ret_name[static CELL_SEAL_MAX_NAME + 1], int64_t *ret_until_s);
/* Whether it was sealed with this key. */
bool cell__seal_check(const unsigned char key[CELL_SEAL_KEY_BYTES], const char *text);
/* A second secret that belongs to a seal, which the page sends in a header: a cookie alone proves nothing. */
bool cell__seal_proof(const unsigned char key[CELL_SEAL_KEY_BYTES], const char *text, char out[static CELL_SEAL_MAC_DIGITS + 1]);
/* In a time that does not depend on where they differ. */
bool cell__seal_same(const char *text, const char *other);

#endif
