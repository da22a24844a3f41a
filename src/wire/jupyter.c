#include "wire/jupyter.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <stdio.h>
#include <string.h>

#include "wire/json_check.h"

#define PARTS_AFTER_DELIMITER 5 /* signature and the four that it signs */

/* False: OpenSSL failed, which is for lack of memory. */
static bool sign(const char *key, const struct cell__jupyter_part *parts, uint8_t digest[CELL_JUPYTER_DIGEST_BYTES])
{
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *)"SHA256", 0),
		OSSL_PARAM_construct_end(),
	};
	EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
	EVP_MAC_CTX *ctx = mac ? EVP_MAC_CTX_new(mac) : NULL;
	size_t size = 0;
	bool ok = ctx && EVP_MAC_init(ctx, (const unsigned char *)key, strlen(key), params);
	for (int i = 0; i < 4 && ok; i++)
		ok = EVP_MAC_update(ctx, parts[i].data, parts[i].size);
	ok = ok && EVP_MAC_final(ctx, digest, &size, CELL_JUPYTER_DIGEST_BYTES) && size == CELL_JUPYTER_DIGEST_BYTES;
	EVP_MAC_CTX_free(ctx);
	EVP_MAC_free(mac);
	return ok;
}

static void to_hex(const uint8_t digest[CELL_JUPYTER_DIGEST_BYTES], char out[CELL_JUPYTER_SIGNATURE_BYTES + 1])
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < CELL_JUPYTER_DIGEST_BYTES; i++) {
		out[2 * i] = digits[digest[i] >> 4];
		out[2 * i + 1] = digits[digest[i] & 15];
	}
	out[CELL_JUPYTER_SIGNATURE_BYTES] = '\0';
}

static bool was_seen(struct cell__jupyter_seen *seen, const uint8_t digest[CELL_JUPYTER_DIGEST_BYTES])
{
	for (size_t i = 0; i < seen->n; i++)
		if (memcmp(seen->digest[i], digest, CELL_JUPYTER_DIGEST_BYTES) == 0)
			return true;
	memcpy(seen->digest[seen->next], digest, CELL_JUPYTER_DIGEST_BYTES);
	seen->next = (seen->next + 1) % CELL_JUPYTER_SEEN;
	if (seen->n < CELL_JUPYTER_SEEN)
		seen->n++;
	return false;
}

static json_t *load(const struct cell__jupyter_part *part)
{
	/* No kernel publishes so many values that they take more as a tree. */
	if (cell__json_weigh(part->data, part->size) > CELL_LIMIT_TREE_BYTES)
		return NULL;
	json_t *value = json_loadb(part->data, part->size, JSON_ALLOW_NUL, NULL);
	if (json_is_object(value))
		return value;
	json_decref(value);
	return NULL;
}

/* A string member of at most that many bytes, or NULL. */
static const char *text_of(json_t *object, const char *name)
{
	json_t *value = json_object_get(object, name);
	if (!json_is_string(value) || json_string_length(value) > CELL_JUPYTER_ID_BYTES ||
	    strlen(json_string_value(value)) != json_string_length(value))
		return NULL;
	return json_string_value(value);
}

enum cell__jupyter_status cell__jupyter_decode(const struct cell__jupyter_part *parts, size_t n_parts, const char *key,
					       struct cell__jupyter_seen *seen, struct cell__jupyter_message *ret_message)
{
	static const size_t delimiter = sizeof CELL_JUPYTER_DELIMITER - 1;
	uint8_t digest[CELL_JUPYTER_DIGEST_BYTES];
	char expected[CELL_JUPYTER_SIGNATURE_BYTES + 1];
	size_t at = 0;
	while (at < n_parts && (parts[at].size != delimiter || memcmp(parts[at].data, CELL_JUPYTER_DELIMITER, delimiter) != 0))
		at++;
	if (at == n_parts)
		return CELL_JUPYTER_NO_DELIMITER;
	const size_t n_ids = at;
	parts += at + 1;
	n_parts -= at + 1;
	if (n_parts < PARTS_AFTER_DELIMITER)
		return CELL_JUPYTER_TOO_SHORT;
	for (size_t i = 0; i < PARTS_AFTER_DELIMITER; i++)
		if (parts[i].size > CELL_JUPYTER_MAX_PART_BYTES)
			return CELL_JUPYTER_TOO_BIG;
	if (!sign(key, parts + 1, digest))
		return CELL_JUPYTER_BAD_SIGNATURE;
	to_hex(digest, expected);
	if (parts[0].size != CELL_JUPYTER_SIGNATURE_BYTES || CRYPTO_memcmp(parts[0].data, expected, CELL_JUPYTER_SIGNATURE_BYTES) != 0)
		return CELL_JUPYTER_BAD_SIGNATURE;
	if (was_seen(seen, digest))
		return CELL_JUPYTER_REPLAYED;
	struct cell__jupyter_message message = { .header = load(&parts[1]),
						 .parent = load(&parts[2]),
						 .metadata = load(&parts[3]),
						 .content = load(&parts[4]),
						 .n_ids = n_ids,
						 .buffers = n_ids + 1 + PARTS_AFTER_DELIMITER };
	if (!message.header || !message.parent || !message.content || !message.metadata) {
		cell__jupyter_message_finish(&message);
		return CELL_JUPYTER_NOT_JSON;
	}
	message.type = text_of(message.header, "msg_type");
	message.id = text_of(message.header, "msg_id");
	message.parent_id = text_of(message.parent, "msg_id");
	message.parent_session = text_of(message.parent, "session");
	if (!message.parent_id)
		message.parent_id = "";
	if (!message.parent_session)
		message.parent_session = "";
	if (!message.type || !message.id) {
		cell__jupyter_message_finish(&message);
		return CELL_JUPYTER_BAD_HEADER;
	}
	*ret_message = message;
	return CELL_JUPYTER_OK;
}

void cell__jupyter_message_finish(struct cell__jupyter_message *message)
{
	json_decref(message->header);
	json_decref(message->parent);
	json_decref(message->content);
	json_decref(message->metadata);
	*message = (struct cell__jupyter_message){ 0 };
}

const char *cell__jupyter_status_word(enum cell__jupyter_status status)
{
	switch (status) {
	case CELL_JUPYTER_OK:
		return "fine";
	case CELL_JUPYTER_NO_DELIMITER:
		return "a message without its delimiter";
	case CELL_JUPYTER_TOO_SHORT:
		return "a message with parts missing";
	case CELL_JUPYTER_TOO_BIG:
		return "a message that is too large";
	case CELL_JUPYTER_BAD_SIGNATURE:
		return "a message with a wrong signature";
	case CELL_JUPYTER_REPLAYED:
		return "a message that was sent before";
	case CELL_JUPYTER_NOT_JSON:
		return "a message whose parts are not JSON objects";
	case CELL_JUPYTER_BAD_HEADER:
		return "a message without type and id";
	}
	return "?";
}

int cell__jupyter_encode(const struct cell__jupyter_out *out, const char *key, struct cell__buf *ret_header,
			 char ret_signature[CELL_JUPYTER_SIGNATURE_BYTES + 1])
{
	uint8_t digest[CELL_JUPYTER_DIGEST_BYTES];
	if (cell__buf_printf(ret_header,
			     "{\"msg_id\":\"%s\",\"msg_type\":\"%s\",\"session\":\"%s\",\"username\":\"workcell\",\"date\":\"%s\","
			     "\"version\":\"" CELL_JUPYTER_VERSION "\"}",
			     out->id, out->type, out->session, out->date) < 0)
		return -1;
	struct cell__jupyter_part parts[4] = {
		{ ret_header->data, ret_header->size },
		{ out->parent ? out->parent : "{}", out->parent ? strlen(out->parent) : 2 },
		{ out->metadata, strlen(out->metadata) },
		{ out->content, out->content_size },
	};
	if (!sign(key, parts, digest))
		return -1;
	to_hex(digest, ret_signature);
	return 0;
}

/* ---- the connection file ---- */

static int read_endpoint(const json_t *root, const char *transport, const char *ip, const char *name, char *endpoint,
			 struct cell_error *err)
{
	const json_t *port = json_object_get(root, name);
	if (!json_is_integer(port) || json_integer_value(port) < 1 || json_integer_value(port) > 65535)
		return cell_fail(err, CELL_E_INVALID, 0, "the connection file's %s is not a port (1-65535)", name);
	int n = snprintf(endpoint, CELL_JUPYTER_ENDPOINT_BYTES, "%s://%s%s%lld", transport, ip, strcmp(transport, "ipc") == 0 ? "-" : ":",
			 (long long)json_integer_value(port));
	if (n < 0 || (size_t)n >= CELL_JUPYTER_ENDPOINT_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the connection file's ip is too long");
	return 0;
}

int cell__jupyter_connection_parse(const char *text, size_t size, struct cell__jupyter_connection *ret_connection, struct cell_error *err)
{
	static const char *const ports[CELL_JUPYTER_PORTS] = { "shell_port", "iopub_port", "stdin_port", "control_port", "hb_port" };
	struct cell__jupyter_connection connection;
	json_error_t bad;
	json_t *root = size <= CELL_JUPYTER_MAX_CONNECTION_BYTES ? json_loadb(text, size, 0, &bad) : NULL;
	const char *transport = json_string_value(json_object_get(root, "transport")), *ip = json_string_value(json_object_get(root, "ip"));
	const char *key = json_string_value(json_object_get(root, "key"));
	const char *scheme = json_string_value(json_object_get(root, "signature_scheme"));
	int rc = 0;
	if (!json_is_object(root))
		rc = cell_fail(err, CELL_E_INVALID, 0, "the connection file is not a JSON object");
	else if (transport && strcmp(transport, "tcp") != 0 && strcmp(transport, "ipc") != 0)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the connection file's transport is '%.40s', expected tcp or ipc", transport);
	else if (!ip || !*ip || strlen(ip) != json_string_length(json_object_get(root, "ip")))
		rc = cell_fail(err, CELL_E_INVALID, 0, "the connection file has no ip");
	else if (scheme && strcmp(scheme, "hmac-sha256") != 0)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the connection file's signature_scheme is '%.40s', expected hmac-sha256", scheme);
	else if (!key || !*key)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the connection file has no key: anybody who reaches the kernel could run code");
	else if (strlen(key) > CELL_JUPYTER_MAX_KEY_BYTES || strlen(key) != json_string_length(json_object_get(root, "key")))
		rc = cell_fail(err, CELL_E_LIMIT, 0, "the connection file's key is longer than %u bytes", CELL_JUPYTER_MAX_KEY_BYTES);
	for (size_t i = 0; rc == 0 && i < CELL_JUPYTER_PORTS; i++)
		rc = read_endpoint(root, transport ? transport : "tcp", ip, ports[i], connection.endpoint[i], err);
	if (rc == 0) {
		snprintf(connection.key, sizeof connection.key, "%s", key);
		*ret_connection = connection;
	}
	json_decref(root);
	return rc;
}
