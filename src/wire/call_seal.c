#include "wire/call_seal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#define HEX "0123456789abcdef"
#define MAC_BYTES 32u
#define HEAD_MAX (CELL_CALL_SEAL_MAX - 2 * MAC_BYTES - 1)
#define LATEST_S INT64_C(999999999999999999) /* 18 digits */

static int add(const char *text, size_t size, void *hash)
{
	return EVP_DigestUpdate(hash, text, size) == 1 ? 0 : -1;
}

/* The names end with a NUL, which they do not have, and JSON has no two forms here: different calls are different bytes. */
static bool hash_call(const struct cell__sealed_call *call, unsigned char out[static MAC_BYTES])
{
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	unsigned size = 0;
	bool done = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 && !add(call->owner, strlen(call->owner) + 1, hash) &&
		    !add(call->tool, strlen(call->tool) + 1, hash) &&
		    !json_dump_callback(call->args, add, hash, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY) &&
		    EVP_DigestFinal_ex(hash, out, &size) == 1 && size == MAC_BYTES;

	EVP_MD_CTX_free(hash);
	return done;
}

static bool add_mac(const unsigned char *key, const char *head, size_t size, const struct cell__sealed_call *call,
		    char out[static 2 * MAC_BYTES + 1])
{
	unsigned char whole[HEAD_MAX + MAC_BYTES], mac[EVP_MAX_MD_SIZE];
	unsigned mac_size = 0;

	if (size > HEAD_MAX || !hash_call(call, whole + size))
		return false;
	memcpy(whole, head, size);
	if (!HMAC(EVP_sha256(), key, CELL_CALL_SEAL_KEY_BYTES, whole, size + MAC_BYTES, mac, &mac_size) || mac_size != MAC_BYTES)
		return false;
	for (unsigned i = 0; i < MAC_BYTES; i++)
		snprintf(out + (size_t)2 * i, 3, "%02x", mac[i]);
	return true;
}

static bool is_id(const char *text)
{
	return strspn(text, HEX) == CELL_CALL_SEAL_ID_DIGITS && !text[CELL_CALL_SEAL_ID_DIGITS];
}

bool cell__call_seal_write(const unsigned char key[CELL_CALL_SEAL_KEY_BYTES], const struct cell__call_seal *seal,
			   const struct cell__sealed_call *call, char out[static CELL_CALL_SEAL_MAX + 1])
{
	size_t n;

	if (!is_id(seal->session) || !is_id(seal->round) || seal->until_s < 0 || seal->until_s > LATEST_S)
		return false;
	n = (size_t)snprintf(out, CELL_CALL_SEAL_MAX + 1, "%s.%" PRId64 ".%s", seal->session, seal->until_s, seal->round);
	if (!add_mac(key, out, n, call, out + n + 1))
		return false;
	out[n] = '.';
	return true;
}

static bool read_id(const char **at, char out[static CELL_CALL_SEAL_ID_DIGITS + 1])
{
	if (strspn(*at, HEX) != CELL_CALL_SEAL_ID_DIGITS || (*at)[CELL_CALL_SEAL_ID_DIGITS] != '.')
		return false;
	memcpy(out, *at, CELL_CALL_SEAL_ID_DIGITS);
	out[CELL_CALL_SEAL_ID_DIGITS] = '\0';
	*at += CELL_CALL_SEAL_ID_DIGITS + 1;
	return true;
}

bool cell__call_seal_read(const char *text, struct cell__call_seal *ret_seal)
{
	const char *at = text;
	size_t digits;

	if (!read_id(&at, ret_seal->session))
		return false;
	digits = strspn(at, "0123456789");
	if (!digits || digits > 18 || at[digits] != '.')
		return false;
	ret_seal->until_s = strtoll(at, NULL, 10);
	at += digits + 1;
	return read_id(&at, ret_seal->round) && strspn(at, HEX) == (size_t)2 * MAC_BYTES && !at[2 * MAC_BYTES];
}

bool cell__call_seal_check(const unsigned char key[CELL_CALL_SEAL_KEY_BYTES], const char *text, const struct cell__sealed_call *call,
			   int64_t now_s)
{
	char mac[2 * MAC_BYTES + 1];
	struct cell__call_seal seal;
	const char *end = strrchr(text, '.');

	return end && cell__call_seal_read(text, &seal) && add_mac(key, text, (size_t)(end - text), call, mac) &&
	       !CRYPTO_memcmp(mac, end + 1, (size_t)2 * MAC_BYTES) && now_s < seal.until_s;
}
