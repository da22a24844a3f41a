#include "wire/jwt.h"

#include <limits.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include "wire/oauth.h"

#define P256_BYTES 32u
#define MAX_AUDIENCES 64u

struct cell__jwk {
	char *kid; /* or NULL */
	unsigned algs;
	EVP_PKEY *key;
};

unsigned cell__jwt_alg(const char *name)
{
	return !name                        ? 0
	       : strcmp(name, "RS256") == 0 ? CELL_JWT_RS256
	       : strcmp(name, "PS256") == 0 ? CELL_JWT_PS256
	       : strcmp(name, "ES256") == 0 ? CELL_JWT_ES256
					    : 0;
}

/* ---- keys as SubjectPublicKeyInfo, which every version of libcrypto reads ---- */

static int add_tag(struct cell__buf *out, unsigned char tag, size_t size)
{
	unsigned char head[4] = { tag, (unsigned char)size };
	size_t n = 2;
	if (size > 0xff) {
		head[1] = 0x82;
		head[2] = (unsigned char)(size >> 8);
		head[3] = (unsigned char)size;
		n = 4;
	} else if (size > 0x7f) {
		head[1] = 0x81;
		head[2] = (unsigned char)size;
		n = 3;
	}
	return cell__buf_add(out, head, n);
}

static int add_object(struct cell__buf *out, unsigned char tag, const struct cell__buf *content)
{
	return content->size > 0xffff || add_tag(out, tag, content->size) < 0 || cell__buf_add(out, content->data, content->size) < 0 ? -1
																      : 0;
}

/* A number without its sign: big-endian, without leading zeros but one where the first bit is set. */
static int add_integer(struct cell__buf *out, const unsigned char *bytes, size_t size)
{
	for (; size > 1 && *bytes == 0; size--)
		bytes++;
	bool pad = size > 0 && *bytes & 0x80;
	return size == 0 || add_tag(out, 0x02, size + pad) < 0 || (pad && cell__buf_add(out, "", 1) < 0) ||
			       cell__buf_add(out, bytes, size) < 0
		       ? -1
		       : 0;
}

static EVP_PKEY *read_info(const char *algorithm, size_t algorithm_size, const struct cell__buf *bits)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, all = CELL_BUF_INIT;
	if (cell__buf_add(&body, algorithm, algorithm_size) < 0 || add_object(&body, 0x03, bits) < 0 || add_object(&all, 0x30, &body) < 0)
		return NULL;
	const unsigned char *at = (const unsigned char *)all.data;
	EVP_PKEY *key = d2i_PUBKEY(NULL, &at, (long)all.size);
	if (key && at != (const unsigned char *)all.data + all.size) {
		EVP_PKEY_free(key);
		return NULL;
	}
	return key;
}

/* The bytes of a member in base64url. */
static int read_bytes(const json_t *key, const char *name, struct cell__buf *out)
{
	const json_t *value = json_object_get(key, name);
	size_t size = json_string_length(value);
	if (!json_is_string(value) || size == 0 || size > 2u * CELL_JWT_MAX_RSA_BITS / 8)
		return -1;
	return cell__buf_add_unbase64url(out, json_string_value(value), size);
}

static EVP_PKEY *read_rsa(const json_t *object)
{
	static const char algorithm[] = "\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00"; /* rsaEncryption */
	CELL_AUTO_BUF struct cell__buf n = CELL_BUF_INIT, e = CELL_BUF_INIT, numbers = CELL_BUF_INIT, bits = CELL_BUF_INIT;
	if (read_bytes(object, "n", &n) < 0 || read_bytes(object, "e", &e) < 0 || e.size > 4 || !(e.data[e.size - 1] & 1) ||
	    (e.size == 1 && e.data[0] == 1))
		return NULL;
	if (add_integer(&numbers, (unsigned char *)n.data, n.size) < 0 || add_integer(&numbers, (unsigned char *)e.data, e.size) < 0 ||
	    cell__buf_add(&bits, "", 1) < 0 || add_object(&bits, 0x30, &numbers) < 0)
		return NULL;
	EVP_PKEY *key = read_info(algorithm, sizeof algorithm - 1, &bits);
	int size = key ? EVP_PKEY_bits(key) : 0;
	if (key && (size < (int)CELL_JWT_MIN_RSA_BITS || size > (int)CELL_JWT_MAX_RSA_BITS)) {
		EVP_PKEY_free(key);
		return NULL;
	}
	return key;
}

static EVP_PKEY *read_ec(const json_t *object)
{
	/* ecPublicKey, prime256v1 */
	static const char algorithm[] = "\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07";
	const char *curve = json_string_value(json_object_get(object, "crv"));
	CELL_AUTO_BUF struct cell__buf x = CELL_BUF_INIT, y = CELL_BUF_INIT, bits = CELL_BUF_INIT;
	if (!curve || strcmp(curve, "P-256") != 0 || read_bytes(object, "x", &x) < 0 || read_bytes(object, "y", &y) < 0 ||
	    x.size != P256_BYTES || y.size != P256_BYTES)
		return NULL;
	if (cell__buf_add(&bits, "\0\4", 2) < 0 || cell__buf_add(&bits, x.data, x.size) < 0 || cell__buf_add(&bits, y.data, y.size) < 0)
		return NULL;
	return read_info(algorithm, sizeof algorithm - 1, &bits); /* NULL also for a point that is not on the curve */
}

static bool may_verify(const json_t *object)
{
	const json_t *use = json_object_get(object, "use"), *ops = json_object_get(object, "key_ops");
	if (use && (!json_is_string(use) || strcmp(json_string_value(use), "sig") != 0))
		return false;
	return !ops || cell__claims_has(object, "key_ops", "verify");
}

/* False: not a key for us. */
static bool read_key(const json_t *object, struct cell__jwk *key)
{
	const char *type = json_string_value(json_object_get(object, "kty"));
	const json_t *alg = json_object_get(object, "alg"), *kid = json_object_get(object, "kid");
	*key = (struct cell__jwk){ 0 };
	if (!type || !may_verify(object) || (alg && !json_is_string(alg)) || json_string_length(kid) > CELL_JWT_LIMIT_KID)
		return false;
	if (strcmp(type, "RSA") == 0)
		key->algs = CELL_JWT_RS256 | CELL_JWT_PS256;
	else if (strcmp(type, "EC") == 0)
		key->algs = CELL_JWT_ES256;
	if (alg)
		key->algs &= cell__jwt_alg(json_string_value(alg));
	if (key->algs == 0)
		return false;
	key->key = key->algs & CELL_JWT_ES256 ? read_ec(object) : read_rsa(object);
	if (key->key && json_is_string(kid) && !(key->kid = cell__strdup(json_string_value(kid)))) {
		EVP_PKEY_free(cell__take_ptr(key->key));
		return false;
	}
	return key->key;
}

int cell__jwks_parse(const char *text, size_t size, struct cell__jwks *ret_keys, struct cell_error *err)
{
	json_t *root = size <= CELL_JWT_LIMIT_JSON_BYTES ? json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL) : NULL;
	json_t *list = json_object_get(root, "keys"), *one;
	struct cell__jwks keys = { 0 };
	size_t i;
	int rc = 0;
	if (!json_is_array(list))
		rc = cell_fail(err, CELL_E_INVALID, 0, "it is not a set of keys");
	else if (json_array_size(list) > CELL_JWT_LIMIT_KEYS)
		rc = cell_fail(err, CELL_E_LIMIT, 0, "it has more than %u keys", CELL_JWT_LIMIT_KEYS);
	else if (json_array_size(list) > 0 && !(keys.list = cell__alloc(json_array_size(list), sizeof *keys.list)))
		rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for keys");
	json_array_foreach(rc == 0 ? list : NULL, i, one)
		keys.count += read_key(one, &keys.list[keys.count]);
	json_decref(root);
	if (rc == 0 && keys.count == 0)
		rc = cell_fail(err, CELL_E_INVALID, 0, "it has no key for RS256, PS256 or ES256");
	if (rc < 0)
		cell__jwks_finish(&keys);
	else
		*ret_keys = keys;
	return rc;
}

void cell__jwks_finish(struct cell__jwks *keys)
{
	for (size_t i = 0; i < keys->count; i++) {
		free(keys->list[i].kid);
		EVP_PKEY_free(keys->list[i].key);
	}
	free(keys->list);
	*keys = (struct cell__jwks){ 0 };
}

/* ---- tokens ---- */

static json_t *read_part(const char *text, size_t size)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	if (size == 0 || cell__buf_add_unbase64url(&bytes, text, size) < 0)
		return NULL;
	json_t *object = json_loadb(bytes.data, bytes.size, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(object))
		return object;
	json_decref(object);
	return NULL;
}

static int read_head(const json_t *head, unsigned algs, struct cell__jwt *jwt, struct cell_error *err)
{
	const char *alg = json_string_value(json_object_get(head, "alg"));
	const json_t *kid = json_object_get(head, "kid");
	if (json_object_get(head, "crit"))
		return cell_fail(err, CELL_E_AUTH, 0, "the token has critical extensions");
	jwt->alg = cell__jwt_alg(alg) & algs;
	if (jwt->alg == 0)
		return cell_fail(err, CELL_E_AUTH, 0, "the token's signature is not RS256, PS256 or ES256, or not allowed");
	if (kid && (!json_is_string(kid) || json_string_length(kid) > CELL_JWT_LIMIT_KID))
		return cell_fail(err, CELL_E_AUTH, 0, "the token's key id is not valid");
	if (kid && !(jwt->kid = cell__strdup(json_string_value(kid))))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a token");
	return 0;
}

int cell__jwt_parse(const char *text, size_t size, unsigned algs, struct cell__jwt *ret_jwt, struct cell_error *err)
{
	struct cell__jwt jwt = { .text = text, .signature = CELL_BUF_INIT };
	if (size > CELL_JWT_LIMIT_BYTES)
		return cell_fail(err, CELL_E_AUTH, 0, "the token has more than %u bytes", CELL_JWT_LIMIT_BYTES);
	const char *first = memchr(text, '.', size);
	const char *second = first ? memchr(first + 1, '.', size - (size_t)(first + 1 - text)) : NULL;
	if (!second || memchr(second + 1, '.', size - (size_t)(second + 1 - text)))
		return cell_fail(err, CELL_E_AUTH, 0, "the token is not a signed JWT");
	jwt.signed_size = (size_t)(second - text);
	json_t *head = read_part(text, (size_t)(first - text));
	jwt.claims = read_part(first + 1, (size_t)(second - first - 1));
	size_t signature = size - jwt.signed_size - 1;
	int rc = 0;
	if (!head || !jwt.claims)
		rc = cell_fail(err, CELL_E_AUTH, 0, "the token is not a signed JWT");
	else if ((rc = read_head(head, algs, &jwt, err)) == 0 &&
		 (signature == 0 || cell__buf_add_unbase64url(&jwt.signature, second + 1, signature) < 0 || jwt.signature.size == 0))
		rc = cell_fail(err, CELL_E_AUTH, 0, "the token is not signed");
	json_decref(head);
	if (rc < 0)
		cell__jwt_finish(&jwt);
	else
		*ret_jwt = jwt;
	return rc;
}

void cell__jwt_finish(struct cell__jwt *jwt)
{
	free(jwt->kid);
	json_decref(jwt->claims);
	cell__buf_finish(&jwt->signature);
	*jwt = (struct cell__jwt){ .signature = CELL_BUF_INIT };
}

/* JWS has the two numbers of an ECDSA signature side by side, libcrypto wants them as DER. */
static int ecdsa_der(const struct cell__buf *raw, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf numbers = CELL_BUF_INIT;
	const unsigned char *bytes = (const unsigned char *)raw->data;
	if (raw->size != 2u * P256_BYTES || add_integer(&numbers, bytes, P256_BYTES) < 0 ||
	    add_integer(&numbers, bytes + P256_BYTES, P256_BYTES) < 0)
		return -1;
	return add_object(out, 0x30, &numbers);
}

static bool is_signed(const struct cell__jwt *jwt, EVP_PKEY *key)
{
	CELL_AUTO_BUF struct cell__buf der = CELL_BUF_INIT;
	const struct cell__buf *signature = &jwt->signature;
	if (jwt->alg == CELL_JWT_ES256) {
		if (ecdsa_der(&jwt->signature, &der) < 0)
			return false;
		signature = &der;
	}
	EVP_MD_CTX *digest = EVP_MD_CTX_new();
	EVP_PKEY_CTX *options = NULL; /* the digest's */
	bool good = digest && EVP_DigestVerifyInit(digest, &options, EVP_sha256(), NULL, key) == 1;
	if (good && jwt->alg == CELL_JWT_PS256)
		good = EVP_PKEY_CTX_set_rsa_padding(options, RSA_PKCS1_PSS_PADDING) == 1 &&
		       EVP_PKEY_CTX_set_rsa_pss_saltlen(options, RSA_PSS_SALTLEN_DIGEST) == 1 &&
		       EVP_PKEY_CTX_set_rsa_mgf1_md(options, EVP_sha256()) == 1;
	good = good && EVP_DigestVerify(digest, (const unsigned char *)signature->data, signature->size, (const unsigned char *)jwt->text,
					jwt->signed_size) == 1;
	EVP_MD_CTX_free(digest);
	return good;
}

enum cell__jwt_verdict cell__jwt_verify(const struct cell__jwt *jwt, const struct cell__jwks *keys)
{
	enum cell__jwt_verdict verdict = CELL_JWT_UNKNOWN;
	for (size_t i = 0; i < keys->count && verdict != CELL_JWT_GOOD; i++) {
		const struct cell__jwk *key = &keys->list[i];
		if (!(key->algs & jwt->alg) || (jwt->kid && (!key->kid || strcmp(jwt->kid, key->kid) != 0)))
			continue;
		verdict = is_signed(jwt, key->key) ? CELL_JWT_GOOD : CELL_JWT_BAD;
	}
	return verdict;
}

/* ---- claims ---- */

bool cell__claims_has(const json_t *claims, const char *name, const char *value)
{
	const json_t *claim = json_object_get(claims, name);
	if (json_is_string(claim))
		return strcmp(json_string_value(claim), value) == 0;
	for (size_t i = 0; i < json_array_size(claim) && i < MAX_AUDIENCES; i++) {
		const char *one = json_string_value(json_array_get(claim, i));
		if (one && strcmp(one, value) == 0)
			return true;
	}
	return false;
}

static bool has_word(const char *words, const char *word)
{
	size_t size = strlen(word);
	for (const char *at = words; *at; at += strspn(at, " ")) {
		size_t n = strcspn(at, " ");
		if (n == size && memcmp(at, word, size) == 0)
			return true;
		at += n;
	}
	return false;
}

bool cell__claims_has_scope(const json_t *claims, const char *scope)
{
	static const char *const names[] = { "scope", "scp" };
	for (size_t i = 0; i < 2; i++) {
		const char *words = json_string_value(json_object_get(claims, names[i]));
		if (words ? has_word(words, scope) : cell__claims_has(claims, names[i], scope))
			return true;
	}
	return false;
}

/* A NumericDate, which may have a fraction.  -1: it is not one; 1: it is missing. */
static int read_time(const json_t *claims, const char *name, int64_t *ret_s)
{
	const json_t *claim = json_object_get(claims, name);
	double value = json_number_value(claim);
	if (!claim)
		return 1;
	if (!json_is_number(claim) || !(value >= 0 && value < 1e15))
		return -1;
	*ret_s = (int64_t)value;
	return 0;
}

static int check_times(const json_t *claims, const struct cell__claims_rules *rules, int64_t now_s, struct cell_error *err)
{
	int64_t expires = INT64_MAX, begins = 0, issued = 0;
	int missing = read_time(claims, "exp", &expires);
	if (missing < 0 || read_time(claims, "nbf", &begins) < 0 || read_time(claims, "iat", &issued) < 0)
		return cell_fail(err, CELL_E_AUTH, 0, "the token's times are not valid");
	if (missing && !rules->answered)
		return cell_fail(err, CELL_E_AUTH, 0, "the token does not expire");
	if (!missing && now_s >= expires + rules->skew_s)
		return cell_fail(err, CELL_E_AUTH, 0, "the token has expired");
	if (begins > now_s + rules->skew_s || issued > now_s + rules->skew_s)
		return cell_fail(err, CELL_E_AUTH, 0, "the token is not valid yet");
	return 0;
}

int cell__claims_check(const json_t *claims, const struct cell__claims_rules *rules, int64_t now_s, struct cell_error *err)
{
	const json_t *issuer = json_object_get(claims, "iss");
	if (!(rules->answered && !issuer) && (!json_is_string(issuer) || strcmp(json_string_value(issuer), rules->issuer) != 0))
		return cell_fail(err, CELL_E_AUTH, 0, "the token is of another issuer");
	for (const char *const *audience = rules->audiences; *audience; audience++) {
		if (cell__claims_has(claims, "aud", *audience))
			return check_times(claims, rules, now_s, err);
	}
	return cell_fail(err, CELL_E_AUTH, 0, "the token is for another audience");
}
