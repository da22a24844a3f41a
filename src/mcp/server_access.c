/*
 * Who may come in by HTTP: the token first (compared in constant time), then Host and Origin, against pages in a browser that
 * were told that our address is their own.  Pure: no connection, no allocation.
 */
#include "mcp/server.h"

#include <string.h>

#include "wire/access.h"

#define MAX_DIGITS 19 /* of a number that certainly fits */

static bool has_token(const unsigned char *hash, const char *authorization)
{
	const char *given = cell__access_bearer(authorization);
	unsigned char other[CELL_ACCESS_HASH_BYTES];

	if (!hash)
		return true;
	if (!given)
		return false;
	cell__access_hash(given, strlen(given), other);
	return cell__access_same(hash, other);
}

unsigned cell__mcp_access(const struct cell_mcp_http_options *opts, const unsigned char *hash, int port,
			  const struct cell__mcp_head *head, const char **ret_words)
{
	*ret_words = "a bearer token is needed";
	if (!has_token(hash, head->authorization))
		return 401;
	*ret_words = "this Host is not ours (--allow-host)";
	if (!cell__access_host(head->host, opts->host, port, opts->hosts))
		return 403;
	*ret_words = "this Origin may not connect (--allow-origin)";
	if (!cell__access_origin(head->origin, head->host, opts->origins))
		return 403;
	*ret_words = "there is only /mcp";
	if (strcmp(head->url, "/mcp"))
		return 404;
	*ret_words = "MCP-Protocol-Version is none that is spoken here";
	if (head->version && !cell__mcp_speaks(head->version))
		return 400;
	return 0;
}

/* Digits and nothing else; where they end. */
static const char *read_number(const char *text, uint64_t *ret_number)
{
	size_t size = strspn(text, "0123456789");

	*ret_number = 0;
	if (!size || size > MAX_DIGITS)
		return NULL;
	for (size_t i = 0; i < size; i++)
		*ret_number = *ret_number * 10 + (uint64_t)(text[i] - '0');
	return text + size;
}

bool cell__mcp_event_id(const char *text, uint64_t *ret_stream, uint64_t *ret_event)
{
	const char *rest = read_number(text, ret_stream);

	rest = rest && *rest == '-' ? read_number(rest + 1, ret_event) : NULL;
	return rest && !*rest;
}
