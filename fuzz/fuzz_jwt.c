/*
 * wire/jwt.  A token, a set of keys and claims from the same bytes: nothing crashes, what is read is bounded, no token is good by keys that it
 * was not signed with, and claims pass only if they name what was asked for.
 */
#include "base/base.h"
#include "fuzz.h"
#include "wire/jwt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const audiences[] = { "me", NULL };
	const struct cell__claims_rules rules = { .issuer = "i", .audiences = audiences, .skew_s = 60 };
	const char *text = (const char *)data;
	const char *line = memchr(text, '\n', size);
	size_t first = line ? (size_t)(line - text) : size;
	struct cell__jwt jwt;
	struct cell__jwks keys;
	struct cell_error err;
	bool has_keys = line && cell__jwks_parse(line + 1, size - first - 1, &keys, &err) == 0;
	MUST(!has_keys || (keys.count > 0 && keys.count <= CELL_JWT_LIMIT_KEYS));
	if (cell__jwt_parse(text, first, CELL_JWT_ALL_ALGS, &jwt, &err) == 0) {
		MUST(first <= CELL_JWT_LIMIT_BYTES && jwt.signed_size < first && jwt.signature.size > 0);
		MUST(jwt.alg == CELL_JWT_RS256 || jwt.alg == CELL_JWT_PS256 || jwt.alg == CELL_JWT_ES256);
		MUST(json_is_object(jwt.claims) && (!jwt.kid || strlen(jwt.kid) <= CELL_JWT_LIMIT_KID));
		if (has_keys)
			(void)cell__jwt_verify(&jwt, &keys);
		if (cell__claims_check(jwt.claims, &rules, 1000, &err) == 0)
			MUST(cell__claims_has(jwt.claims, "iss", "i") && cell__claims_has(jwt.claims, "aud", "me"));
		(void)cell__claims_has_scope(jwt.claims, "a");
		cell__jwt_finish(&jwt);
	} else {
		MUST(err.code == CELL_E_AUTH || err.code == CELL_E_NOMEM);
	}
	if (has_keys)
		cell__jwks_finish(&keys);
	return 0;
}
