/*
 * URLs in policies.  A pattern with "://" is compared part by part, because a text that seems to begin with a trusted host
 * may lead elsewhere: https://evil.net?.example.org/, https://example.org@evil.net/, https://evil.net\.example.org/.
 *
 * Programs (curl, Python, a browser) parse unusual URLs differently.  So unusual URLs are not interpreted here: a text is a
 * plain URL, which every program parses alike, or it is undecidable.
 *
 *     scheme "://" host [":" port] ["/" path] ["?" query]
 */
#define _GNU_SOURCE
#include "gate/policy.h"

#include <string.h>
#include <strings.h>

#include "base/hole.h"

struct cell__url_glob {
	struct cell__glob *scheme, *host, *port, *path; /* port NULL: the scheme's own; path NULL: none, or "/" */
	struct cell__glob *before_query; /* of the path, for the path alone; NULL where path is */
	bool odd; /* undecidable: no pattern matches it for certain */
};

struct url {
	const char *scheme, *host, *port; /* port NULL: not given */
	size_t scheme_size, host_size, port_size;
	struct cell__buf path; /* begins with a slash; the query is part of it */
	size_t before_query;   /* bytes of the path alone */
};

static bool is_alpha(char c)
{
	return (c | 32) >= 'a' && (c | 32) <= 'z';
}

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static size_t scheme_of(const char *text, size_t size)
{
	size_t n = 0;
	while (n < size && (is_alpha(text[n]) || (n > 0 && (is_digit(text[n]) || memchr("+.-", text[n], 3)))))
		n++;
	return n < size && text[n] == ':' ? n : 0;
}

/* ---- patterns ---- */

static struct cell__glob *part(struct cell__url_glob *url, const char *text, size_t size, bool lower)
{
	const char *problem;
	CELL_AUTO_FREE char *copy = cell__strndup(text, size);
	for (size_t i = 0; copy && lower && i < size; i++)
		if (copy[i] >= 'A' && copy[i] <= 'Z')
			copy[i] = (char)(copy[i] | 32);
	struct cell__glob *glob = copy ? cell__glob_create(copy, &problem) : NULL;
	url->odd |= !glob;
	return glob;
}

void cell__url_glob_destroy(struct cell__url_glob *url)
{
	if (!url)
		return;
	cell__glob_destroy(url->scheme);
	cell__glob_destroy(url->host);
	cell__glob_destroy(url->port);
	cell__glob_destroy(url->path);
	cell__glob_destroy(url->before_query);
	free(url);
}

/*
 * A wildcard must not match into the query: for a pattern that ends in /info, the path of /delete?x=/info is another one. So the path alone
 * has to match as well, by the pattern up to its own "?" if it has one.
 */
static void take_path(struct cell__url_glob *url, const char *text)
{
	size_t size = strcspn(text, "?");
	url->path = part(url, text, strlen(text), false);
	url->before_query = part(url, text, size > 0 && text[size] && text[size - 1] == '\\' ? size - 1 : size, false);
}

int cell__url_glob_create(const char *pattern, struct cell__url_glob **ret_url)
{
	const char *slash = strchr(pattern, '/');
	*ret_url = NULL;
	if (!slash || slash == pattern || slash[-1] != ':' || slash[1] != '/')
		return 0;
	struct cell__url_glob *url = cell__alloc(1, sizeof *url);
	if (!url)
		return -1;
	const char *host = slash + 2;
	size_t size = strcspn(host, "/"), host_size = size;
	const char *colon = memrchr(host, ':', size);
	if (colon) {
		host_size = (size_t)(colon - host);
		url->port = part(url, colon + 1, size - host_size - 1, false);
	}
	url->scheme = part(url, pattern, (size_t)(slash - 1 - pattern), true);
	url->host = part(url, host, host_size, true);
	if (host[size])
		take_path(url, host + size);
	else if (size >= 2 && memcmp(host + size - 2, "**", 2) == 0)
		take_path(url, "**");
	url->odd |= memchr(host, '@', size) != NULL || memchr(host, '\\', size) != NULL;
	*ret_url = url;
	return 0;
}

/* ---- texts ---- */

/* Four numbers, where the last label is one: 127.1, 0x7f000001 and 2130706433 are the same address to some. */
static bool is_plain_host(const char *host, size_t size)
{
	size_t labels = 0, numbers = 0;
	for (size_t i = 0; i < size;) {
		const char *dot = memchr(host + i, '.', size - i);
		size_t n = dot ? (size_t)(dot - host) - i : size - i, digits = 0;
		while (digits < n && is_digit(host[i + digits]))
			digits++;
		bool hex = n >= 2 && host[i] == '0' && (host[i + 1] | 32) == 'x';
		bool number = digits == n && n <= 3 && !(n > 1 && host[i] == '0');
		if (n == 0 || (hex && i + n == size) || (digits == n && !number && i + n == size))
			return false;
		if (i + n == size && number)
			return labels == 3 && numbers == 3;
		labels++;
		numbers += number;
		i += n + 1;
	}
	return size > 0 && host[size - 1] != '.';
}

static bool take_authority(const char *at, size_t size, struct url *url)
{
	const char *colon = memchr(at, ':', size);
	url->host = at;
	url->host_size = colon ? (size_t)(colon - at) : size;
	for (size_t i = 0; i < url->host_size; i++)
		if (!is_alpha(at[i]) && !is_digit(at[i]) && !memchr("._-", at[i], 3))
			return false;
	if (!is_plain_host(at, url->host_size))
		return false;
	if (!colon)
		return true;
	url->port = colon + 1;
	url->port_size = size - url->host_size - 1;
	for (size_t i = 0; i < url->port_size; i++)
		if (!is_digit(url->port[i]))
			return false;
	return url->port_size > 0 && url->port_size <= 5 && url->port[0] != '0';
}

/* 1: a plain URL; 0: possibly a URL, but not a plain one; -1: not a URL. */
static int take_url(const char *text, size_t size, struct url *url)
{
	bool plain = true;
	for (size_t i = 0; i < size; i++)
		plain &= (unsigned char)text[i] > ' ' && text[i] != 0x7f && text[i] != '\\' && text[i] != '#';
	size_t scheme = scheme_of(text, size);
	if (!scheme)
		return size > 1 && text[0] == '/' && text[1] == '/' ? 0
		       : size && (unsigned char)text[0] <= ' '      ? 0
		       : plain || !size                             ? -1
								    : 0;
	if (!plain || size - scheme < 4 || memcmp(text + scheme, "://", 3) != 0)
		return 0;
	const char *at = text + scheme + 3;
	size_t left = size - scheme - 3, n = 0;
	while (n < left && at[n] != '/' && at[n] != '?')
		n++;
	url->scheme = text;
	url->scheme_size = scheme;
	if (!take_authority(at, n, url))
		return 0;
	if ((n == left || at[n] != '/') && cell__buf_add_str(&url->path, "/") < 0)
		return 0;
	if (cell__buf_add(&url->path, at + n, left - n) < 0)
		return 0;
	const char *query = memchr(url->path.data, '?', url->path.size);
	url->before_query = query ? (size_t)(query - url->path.data) : url->path.size;
	return 1;
}

/* ---- comparing ---- */

static bool matches(const struct cell__glob *glob, const char *text, size_t size, uint64_t *steps)
{
	char lower[256];
	if (size > sizeof lower)
		return false;
	for (size_t i = 0; i < size; i++)
		lower[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 32 : text[i]);
	return cell__glob_match(glob, CELL__GLOB_TEXT, lower, size, steps);
}

static bool is_usual_port(const struct url *url)
{
	static const struct {
		const char *scheme, *port;
	} usual[] = { { "http", "80" }, { "https", "443" }, { "ws", "80" }, { "wss", "443" }, { "ftp", "21" } };
	for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
		if (url->scheme_size == strlen(usual[i].scheme) && strncasecmp(url->scheme, usual[i].scheme, url->scheme_size) == 0)
			return url->port_size == strlen(usual[i].port) && memcmp(url->port, usual[i].port, url->port_size) == 0;
	return false;
}

static bool port_matches(const struct cell__url_glob *glob, const struct url *url, uint64_t *steps)
{
	if (!glob->port)
		return !url->port || is_usual_port(url);
	return url->port && matches(glob->port, url->port, url->port_size, steps);
}

static bool path_matches(const struct cell__url_glob *glob, const struct url *url, uint64_t *steps)
{
	if (!glob->path)
		return url->path.size == 1;
	return cell__glob_match(glob->path, CELL__GLOB_PATH, url->path.data, url->path.size, steps) &&
	       (url->before_query == url->path.size || is_hole("policy-query") ||
		cell__glob_match(glob->before_query, CELL__GLOB_PATH, url->path.data, url->before_query, steps));
}

enum cell__url_verdict cell__url_match(const struct cell__url_glob *glob, const char *text, size_t size, uint64_t *steps)
{
	struct url url = { .path = CELL_BUF_INIT };
	int kind = take_url(text, size, &url);
	enum cell__url_verdict verdict = CELL__URL_DIFFERS;
	if (is_hole("policy-url"))
		verdict = CELL__URL_NONE;
	else if (kind <= 0)
		verdict = kind < 0 ? CELL__URL_NONE : CELL__URL_ODD;
	else if (!glob->odd && matches(glob->scheme, url.scheme, url.scheme_size, steps) &&
		 matches(glob->host, url.host, url.host_size, steps)) {
		verdict = !path_matches(glob, &url, steps)  ? CELL__URL_DIFFERS
			  : port_matches(glob, &url, steps) ? CELL__URL_MATCHES
							    : CELL__URL_PORT;
	}
	cell__buf_finish(&url.path);
	return verdict;
}
