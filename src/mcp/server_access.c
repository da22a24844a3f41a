/*
 * Who may come in by HTTP: the token first (compared in constant time), then Host and Origin, against pages in a browser that
 * were told that our address is their own.  Pure: no connection, no allocation.
 */
#include "mcp/server.h"

#include <openssl/crypto.h>
#include <string.h>
#include <strings.h>

#define MAX_DIGITS 19 /* of a number that certainly fits */

static bool has_token(const char *token, const char *given)
{
	size_t size;

	if (!token)
		return true;
	if (!given || strncasecmp(given, "Bearer ", 7))
		return false;
	size = strlen(token);
	return strlen(given + 7) == size && !CRYPTO_memcmp(given + 7, token, size);
}

static bool is_listed(const char *const *list, const char *value)
{
	for (; list && *list; list++) {
		if (!strcasecmp(*list, value))
			return true;
	}
	return false;
}

/* Is it `name`, with our port or none? */
static bool is_host(int our_port, const char *host, const char *name)
{
	size_t size = strlen(name);
	char port[16];

	snprintf(port, sizeof(port), ":%d", our_port);
	return !strncasecmp(host, name, size) && (!host[size] || !strcmp(host + size, port));
}

static bool host_ok(const struct cell_mcp_http_options *opts, int port, const char *host)
{
	char bracketed[128];

	if (!host)
		return false;
	snprintf(bracketed, sizeof(bracketed), strchr(opts->host, ':') ? "[%s]" : "%s", opts->host);
	return is_host(port, host, "localhost") || is_host(port, host, "127.0.0.1") || is_host(port, host, "[::1]") ||
	       is_host(port, host, bracketed) || is_listed(opts->hosts, host);
}

/* A browser says from which page it asks; programs say nothing. */
static bool origin_ok(const struct cell_mcp_http_options *opts, const char *origin, const char *host)
{
	return !origin || is_listed(opts->origins, origin) || (!strncasecmp(origin, "http://", 7) && !strcasecmp(origin + 7, host));
}

unsigned cell__mcp_access(const struct cell_mcp_http_options *opts, int port, const struct cell__mcp_head *head,
			  const char **ret_words)
{
	*ret_words = "a bearer token is needed";
	if (!has_token(opts->token, head->authorization))
		return 401;
	*ret_words = "this Host is not ours (--allow-host)";
	if (!host_ok(opts, port, head->host))
		return 403;
	*ret_words = "this Origin may not connect (--allow-origin)";
	if (!origin_ok(opts, head->origin, head->host))
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
