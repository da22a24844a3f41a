/*
 * Whether the server at an address is one of ours, before it gets a request with a client's token.
 *
 *     A ──GET /health, X-Workcell-Nonce: 32 random digits──▶ B
 *       ◀── 204, X-Workcell-Proof: HMAC-SHA256 of the nonce and B's own URL, under the key of all servers ──
 *
 * An address comes from a note in the storage of saved sessions, which may be old: the server has died, and a program of somebody else has its
 * address by now, as pods have.  The key lies where the notes are (durable/owners.h), and with --saved-key-file it depends on that too, so that who
 * can write notes cannot prove anything.  B's URL is in the proof: a program that passes greetings on to a real server proves nothing of its own address.
 *
 * It says who answers, and hides nothing: who can change packets between the servers reads tokens all the same.
 */
#define _GNU_SOURCE
#include "server/pool.h"

#include <stdio.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/random.h"
#include "server/peers.h"

#define PURPOSE "workcell server 1"
#define NONCE_DIGITS (CELL_GREETING_NONCE - 1)
#define PROOF_DIGITS (CELL_GREETING_PROOF - 1)
#define HEX "0123456789abcdef"

bool cell__greeting_key(struct cell_server *server, const char *key)
{
	if (strlen(key) != sizeof(server->peer_key) - 1 || strspn(key, HEX) != sizeof(server->peer_key) - 1)
		return false;
	strcpy(server->peer_key, key);
	return true;
}

static bool prove(const struct cell_server *server, const char *nonce, const char *url, char out[static CELL_GREETING_PROOF])
{
	char text[sizeof(PURPOSE) + CELL_GREETING_NONCE + CELL_PEER_URL_BYTES + 2], key[sizeof(server->peer_key) + 64];
	int count = snprintf(text, sizeof(text), PURPOSE "\n%s\n%s", nonce, url);
	int key_count = snprintf(key, sizeof(key), "%s%s", server->peer_key, server->session.saved_key ? server->session.saved_key : "");
	unsigned char mac[EVP_MAX_MD_SIZE];
	unsigned size = 0;

	if (!*server->peer_key || count < 0 || (size_t)count >= sizeof(text) || key_count < 0 || (size_t)key_count >= sizeof(key) ||
	    !HMAC(EVP_sha256(), key, key_count, (const unsigned char *)text, (size_t)count, mac, &size) || 2 * size != PROOF_DIGITS)
		return false;
	for (unsigned i = 0; i < size; i++)
		snprintf(out + (size_t)2 * i, 3, "%02x", mac[i]);
	return true;
}

bool cell__greeting_write(const struct cell__address *peer, char nonce[static CELL_GREETING_NONCE], char out[static CELL_GREETING_BYTES])
{
	CELL_AUTO_FREE char *url = cell__server_url(peer, false);

	if (!url)
		return false;
	cell__random_hex(nonce, NONCE_DIGITS);
	snprintf(out, CELL_GREETING_BYTES, "GET /health HTTP/1.1\r\nHost: %s\r\n" CELL_FORWARD_NONCE ": %s\r\n\r\n",
		 url + strlen("http://"), nonce);
	return true;
}

bool cell__greeting_check(const struct cell_server *server, const struct cell__address *peer, const char *nonce, const char *proof)
{
	CELL_AUTO_FREE char *url = cell__server_url(peer, false);
	char wanted[CELL_GREETING_PROOF];

	return url && proof && strlen(proof) == PROOF_DIGITS && prove(server, nonce, url, wanted) &&
	       !CRYPTO_memcmp(proof, wanted, PROOF_DIGITS);
}

bool cell__greeting_is(const struct cell__request *request, const char *method, const char *path)
{
	const char *nonce = request->server->opts.advertise && !request->is_e2b ? cell__request_header(request, CELL_FORWARD_NONCE) : NULL;

	return nonce && strspn(nonce, HEX) == NONCE_DIGITS && !nonce[NONCE_DIGITS] && !strcmp(method, "GET") && !strcmp(path, "/health");
}

static void handle_greeting(struct cell__request *request)
{
	struct cell_server *server = request->server;
	char proof[CELL_GREETING_PROOF];
	struct MHD_Response *response;

	/* One that leaves still has sessions, and answers for them. */
	if (server->stopping || !prove(server, cell__request_header(request, CELL_FORWARD_NONCE), server->peer_url, proof)) {
		cell__answer_none(request, MHD_HTTP_SERVICE_UNAVAILABLE);
		return;
	}
	response = cell__http_response(NULL, 0, NULL);
	if (response)
		MHD_add_response_header(response, CELL_FORWARD_PROOF, proof);
	cell__answer_response(request, MHD_HTTP_NO_CONTENT, response);
}

const struct cell__route cell__greeting_route = { .method = "GET",
						  .path = "/health",
						  .scope = CELL_SCOPE_OPEN,
						  .handle = handle_greeting,
						  .status = MHD_HTTP_NO_CONTENT,
						  .unlogged = true };
