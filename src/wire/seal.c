#include "wire/seal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#define NONCE_DIGITS 32u
#define HEX "0123456789abcdef"

/* Texts of two purposes never have the same code. */
static bool add_mac(const unsigned char *key, char purpose, const char *text, size_t size, char out[static CELL_SEAL_MAC_DIGITS + 1])
{
	unsigned char whole[1 + CELL_SEAL_MAX], mac[EVP_MAX_MD_SIZE];
	unsigned mac_size = 0;

	if (size > CELL_SEAL_MAX)
		return false;
	whole[0] = (unsigned char)purpose;
	memcpy(whole + 1, text, size);
	if (!HMAC(EVP_sha256(), key, CELL_SEAL_KEY_BYTES, whole, size + 1, mac, &mac_size) || 2 * mac_size != CELL_SEAL_MAC_DIGITS)
		return false;
	for (unsigned i = 0; i < mac_size; i++)
		snprintf(out + (size_t)2 * i, 3, "%02x", mac[i]);
	return true;
}

bool cell__seal_write(const unsigned char key[CELL_SEAL_KEY_BYTES], const char *name, int64_t until_s, const char *nonce,
		      char out[static CELL_SEAL_MAX + 1])
{
	size_t size = strlen(name), n = 0;

	if (!size || size > CELL_SEAL_MAX_NAME || until_s < 0 || strlen(nonce) != NONCE_DIGITS)
		return false;
	for (size_t i = 0; i < size; i++)
		n += (size_t)snprintf(out + n, 3, "%02x", (unsigned char)name[i]);
	n += (size_t)snprintf(out + n, CELL_SEAL_MAX + 1 - n, ".%" PRId64 ".%s", until_s, nonce);
	if (!add_mac(key, 's', out, n, out + n + 1))
		return false;
	out[n] = '.';
	return true;
}

static bool read_name(const char *digits, size_t size, char ret_name[static CELL_SEAL_MAX_NAME + 1])
{
	if (!size || size % 2 || size > (size_t)2 * CELL_SEAL_MAX_NAME || strspn(digits, HEX) != size)
		return false;
	for (size_t i = 0; i < size / 2; i++) {
		char byte[3] = { digits[2 * i], digits[2 * i + 1], '\0' };

		ret_name[i] = (char)strtol(byte, NULL, 16);
		if (!ret_name[i])
			return false;
	}
	ret_name[size / 2] = '\0';
	return true;
}

bool cell__seal_read(const char *text, char ret_name[static CELL_SEAL_MAX_NAME + 1], int64_t *ret_until_s)
{
	size_t name_size = strcspn(text, "."), digits;
	const char *at = text + name_size;

	if (strlen(text) > CELL_SEAL_MAX || !*at++)
		return false;
	digits = strspn(at, "0123456789");
	if (!digits || digits > 18 || at[digits] != '.')
		return false;
	*ret_until_s = strtoll(at, NULL, 10);
	at += digits + 1;
	if (strspn(at, HEX) != NONCE_DIGITS || at[NONCE_DIGITS] != '.')
		return false;
	at += NONCE_DIGITS + 1;
	return strspn(at, HEX) == CELL_SEAL_MAC_DIGITS && !at[CELL_SEAL_MAC_DIGITS] && read_name(text, name_size, ret_name);
}

bool cell__seal_same(const char *text, const char *other)
{
	size_t size = strlen(text);

	return size == strlen(other) && !CRYPTO_memcmp(text, other, size);
}

bool cell__seal_check(const unsigned char key[CELL_SEAL_KEY_BYTES], const char *text)
{
	char mac[CELL_SEAL_MAC_DIGITS + 1];
	const char *end = strrchr(text, '.');

	return end && add_mac(key, 's', text, (size_t)(end - text), mac) && cell__seal_same(mac, end + 1);
}

bool cell__seal_proof(const unsigned char key[CELL_SEAL_KEY_BYTES], const char *text, char out[static CELL_SEAL_MAC_DIGITS + 1])
{
	return add_mac(key, 'p', text, strlen(text), out);
}
