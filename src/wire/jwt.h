/*
 * Access tokens that are signed (JWT, RFC 7519 and 9068), the keys that they are signed with (JWKS, RFC 7517), and claims, which answers of
 * token introspection (RFC 7662) have too.  Pure: no I/O and no clock.  Everything read is hostile.
 *
 * Signatures are RS256, PS256 and ES256 alone.  The algorithm of a token must fit the type of its key, and keys are public: there is no
 * secret key that a token could be made with from one of them, and "none" is not the name of an algorithm.  Keys that a token
 * brings along or points to (jwk, jku, x5c, x5u) are ignored.
 */
#ifndef CELL_WIRE_JWT_H
#define CELL_WIRE_JWT_H

#include <jansson.h>
#include <stdbool.h>

#include "base/base.h"

#define CELL_JWT_LIMIT_BYTES 16384u       /* of a token */
#define CELL_JWT_LIMIT_JSON_BYTES (256u * 1024u) /* of a set of keys, of an issuer's metadata, of an answer about a token */
#define CELL_JWT_LIMIT_KEYS 64u
#define CELL_JWT_LIMIT_KID 256u
#define CELL_JWT_LIMIT_TEXT 1024u         /* of a claim that is compared or shown */
#define CELL_JWT_MIN_RSA_BITS 2048u
#define CELL_JWT_MAX_RSA_BITS 4096u       /* a check on the loop takes no more than about 0.1 ms */

enum cell__jwt_alg { CELL_JWT_RS256 = 1, CELL_JWT_PS256 = 2, CELL_JWT_ES256 = 4 };
#define CELL_JWT_ALL_ALGS 7u
/* 0: not one of these. */
unsigned cell__jwt_alg(const char *name);

/* ---- keys ---- */

struct cell__jwk;
struct cell__jwks {
	struct cell__jwk *list;
	size_t count;
};

/* Keys of other types and uses, and those that are too short or too long, are left out.  -1: it is not a set, or no key is left. */
int cell__jwks_parse(const char *text, size_t size, struct cell__jwks *ret_keys, struct cell_error *err);
void cell__jwks_finish(struct cell__jwks *keys);

/* ---- tokens ---- */

struct cell__jwt {
	const char *text;      /* borrowed */
	size_t signed_size;    /* of the part that is signed */
	unsigned alg;
	char *kid;             /* or NULL */
	json_t *claims;
	struct cell__buf signature;
};

/* Nothing about it is proved yet.  -1: not a token that could be valid. */
int cell__jwt_parse(const char *text, size_t size, unsigned algs, struct cell__jwt *ret_jwt, struct cell_error *err);
void cell__jwt_finish(struct cell__jwt *jwt);

enum cell__jwt_verdict {
	CELL_JWT_GOOD,
	CELL_JWT_BAD,     /* a key was found, and the signature is not its */
	CELL_JWT_UNKNOWN, /* no key has this id and fits the algorithm: it may be a new one */
};
enum cell__jwt_verdict cell__jwt_verify(const struct cell__jwt *jwt, const struct cell__jwks *keys);

/* ---- claims ---- */

struct cell__claims_rules {
	const char *issuer;
	const char *const *audiences; /* NULL-terminated: one of them must be named */
	int64_t skew_s;
	bool answered; /* by the issuer itself: iss and exp may be missing */
};

/* The time, the issuer and the audience.  -1: CELL_E_AUTH, with the reason. */
int cell__claims_check(const json_t *claims, const struct cell__claims_rules *rules, int64_t now_s, struct cell_error *err);
/* Whether the claim is this text, or a list with it. */
bool cell__claims_has(const json_t *claims, const char *name, const char *value);
/* Whether `scope` or `scp`, a text with spaces or a list, names this scope. */
bool cell__claims_has_scope(const json_t *claims, const char *scope);

#endif
