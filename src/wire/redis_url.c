#define _GNU_SOURCE
#include "wire/redis_url.h"

#include <ctype.h>
#include <string.h>
#include <sys/un.h>

bool cell__redis_url_is(const char *text)
{
	static const char *const schemes[] = { "redis://", "rediss://", "redis+unix://", "unix://" };
	for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
		if (strncasecmp(text, schemes[i], strlen(schemes[i])) == 0)
			return true;
	return false;
}

static void free_secret(char *secret)
{
	if (secret)
		explicit_bzero(secret, strlen(secret));
	free(secret);
}

void cell__redis_url_finish(struct cell__redis_url *url)
{
	free(url->user);
	free_secret(url->password);
	free(url->host);
	free(url->path);
	free(url->prefix);
	free(url->tools_prefix);
	free(url->ca_file);
	free(url->via);
	free(url->shown);
	*url = (struct cell__redis_url){ 0 };
}

static int bad(struct cell_error *err, const char *what)
{
	return cell_fail(err, CELL_E_INVALID, 0, "invalid Redis URL: %s; expected redis://[user:password@]host[:port][/db][?prefix=P]",
			 what);
}

static int digit(char c)
{
	return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

/* A new, decoded copy.  No control characters, well-formed UTF-8. */
static int decode(const char *text, size_t size, const char *what, char **ret, struct cell_error *err)
{
	char *out = cell__alloc(size + 1, 1), *at = out;
	if (!out)
		return cell_fail(err, CELL_E_NOMEM, 0, "read the Redis URL");
	for (size_t i = 0; i < size; i++) {
		char c = text[i];
		if (c == '%' && i + 2 < size && isxdigit((unsigned char)text[i + 1]) && isxdigit((unsigned char)text[i + 2])) {
			c = (char)(digit(text[i + 1]) * 16 + digit(text[i + 2]));
			i += 2;
		}
		if ((unsigned char)c < 0x20 || c == 0x7f) {
			free_secret(out);
			return bad(err, what);
		}
		*at++ = c;
	}
	*at = '\0';
	if (!cell__utf8_ok(out, (size_t)(at - out))) {
		free_secret(out);
		return bad(err, what);
	}
	free_secret(*ret);
	*ret = out;
	return 0;
}

static int number(const char *text, size_t size, int max, int *ret)
{
	int value = 0;
	if (size == 0 || size > 7 || strspn(text, "0123456789") < size)
		return -1;
	for (size_t i = 0; i < size; i++)
		value = value * 10 + (text[i] - '0');
	if (value > max)
		return -1;
	*ret = value;
	return 0;
}

static int parse_login(struct cell__redis_url *url, const char *text, size_t size, struct cell_error *err)
{
	const char *colon = memchr(text, ':', size);
	size_t user = colon ? (size_t)(colon - text) : size;
	if (user > 0 && decode(text, user, "bad user", &url->user, err) < 0)
		return -1;
	if (!colon)
		return 0;
	return decode(colon + 1, size - user - 1, "bad password", &url->password, err);
}

static int parse_host(struct cell__redis_url *url, const char *text, size_t size, struct cell_error *err)
{
	const char *host = text, *end = text + size, *port = NULL;
	size_t host_size = size;
	if (size > 0 && text[0] == '[') {
		const char *close = memchr(text, ']', size);
		if (!close || (close + 1 < end && close[1] != ':'))
			return bad(err, "bad host");
		host = text + 1;
		host_size = (size_t)(close - host);
		port = close + 1 < end ? close + 2 : NULL;
	} else if (memchr(text, ':', size)) {
		port = (const char *)memchr(text, ':', size) + 1;
		host_size = (size_t)(port - 1 - text);
	}
	if (port && number(port, (size_t)(end - port), 65535, &url->port) < 0)
		return bad(err, "bad port");
	if (url->port == 0)
		url->port = CELL__REDIS_PORT;
	if (host_size == 0)
		return (url->host = cell__strdup("localhost")) ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "read the Redis URL");
	return decode(host, host_size, "bad host", &url->host, err);
}

static bool is_key(const char *text, size_t size, const char *key)
{
	return size == strlen(key) && strncmp(text, key, size) == 0;
}

static int parse_option(struct cell__redis_url *url, const char *text, size_t size, struct cell_error *err)
{
	const char *equals = memchr(text, '=', size);
	size_t key = equals ? (size_t)(equals - text) : size;
	const char *value = equals ? equals + 1 : text + size;
	size_t value_size = (size_t)(text + size - value);
	if (size == 0)
		return 0;
	if (is_key(text, key, "prefix"))
		return decode(value, value_size, "bad prefix", &url->prefix, err);
	if (is_key(text, key, "tools_prefix"))
		return decode(value, value_size, "bad tools_prefix", &url->tools_prefix, err);
	if (is_key(text, key, "db"))
		return number(value, value_size, CELL__REDIS_DATABASES, &url->db) < 0 ? bad(err, "bad db") : 0;
	if (is_key(text, key, "via")) {
		if (decode(value, value_size, "bad via", &url->via, err) < 0)
			return -1;
		return url->via[0] != '/' || strlen(url->via) >= sizeof((struct sockaddr_un *)0)->sun_path ? bad(err, "bad via") : 0;
	}
	if (is_key(text, key, "ssl_ca_certs") && url->tls)
		return decode(value, value_size, "bad ssl_ca_certs", &url->ca_file, err);
	if (is_key(text, key, "ssl_cert_reqs") && url->tls) {
		url->insecure = is_key(value, value_size, "none");
		if (url->insecure || is_key(value, value_size, "required"))
			return 0;
		return cell_fail(err, CELL_E_INVALID, 0, "ssl_cert_reqs in the Redis URL must be \"required\" or \"none\"");
	}
	return cell_fail(err, CELL_E_INVALID, 0, "unknown option in the Redis URL; known options: prefix, tools_prefix, db%s",
			 url->tls ? ", ssl_ca_certs and ssl_cert_reqs" : "");
}

static int parse_options(struct cell__redis_url *url, const char *text, struct cell_error *err)
{
	while (text && *text) {
		size_t size = strcspn(text, "&");
		if (parse_option(url, text, size, err) < 0)
			return -1;
		text += size + (text[size] == '&');
	}
	if (!url->prefix && !(url->prefix = cell__strdup(CELL__REDIS_DEFAULT_PREFIX)))
		return cell_fail(err, CELL_E_NOMEM, 0, "read the Redis URL");
	if (!url->prefix[0] || strlen(url->prefix) > CELL__REDIS_PREFIX_BYTES)
		return cell_fail(err, CELL_E_INVALID, 0, "the prefix in the Redis URL must have 1 to %u bytes", CELL__REDIS_PREFIX_BYTES);
	if (url->tools_prefix && (!url->tools_prefix[0] || strlen(url->tools_prefix) > CELL__REDIS_PREFIX_BYTES))
		return cell_fail(err, CELL_E_INVALID, 0, "tools_prefix in the Redis URL must have 1 to %u bytes", CELL__REDIS_PREFIX_BYTES);
	return 0;
}

static int show(struct cell__redis_url *url, struct cell_error *err)
{
	struct cell__buf shown = CELL_BUF_INIT;
	bool six = url->host && strchr(url->host, ':');
	int rc = url->host ? cell__buf_printf(&shown, "%s%s%s:%d", six ? "[" : "", url->host, six ? "]" : "", url->port)
			   : cell__buf_add_str(&shown, url->path);
	url->shown = rc < 0 ? NULL : cell__buf_take(&shown);
	return url->shown ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "read the Redis URL");
}

static int parse(struct cell__redis_url *url, const char *text, struct cell_error *err)
{
	size_t scheme = strcspn(text, ":");
	bool local = scheme == 4 || scheme == 10;
	url->tls = scheme == 6;
	const char *at = text + scheme + 3;
	const char *options = strchrnul(at, '?'), *end = options;
	/* The last '@' before the path: a password may contain an unescaped one. A socket's path may contain one too. */
	const char *stop = local ? end : at + strcspn(at, "/?");
	const char *login_end = memrchr(at, '@', (size_t)(stop - at));
	if (local && login_end && at[0] == '/')
		login_end = NULL;
	if (login_end) {
		if (parse_login(url, at, (size_t)(login_end - at), err) < 0)
			return -1;
		at = login_end + 1;
	}
	if (local) {
		if (*at != '/')
			return bad(err, "the socket path is not absolute");
		if (decode(at, (size_t)(end - at), "bad path", &url->path, err) < 0)
			return -1;
		if (strlen(url->path) >= sizeof((struct sockaddr_un *)0)->sun_path)
			return bad(err, "the socket path is too long");
	} else {
		const char *path = memchr(at, '/', (size_t)(end - at));
		if (parse_host(url, at, (size_t)((path ? path : end) - at), err) < 0)
			return -1;
		if (path && path + 1 < end && number(path + 1, (size_t)(end - path - 1), CELL__REDIS_DATABASES, &url->db) < 0)
			return bad(err, "bad db");
	}
	if (parse_options(url, *options ? options + 1 : NULL, err) < 0)
		return -1;
	if (url->user && !url->password)
		return bad(err, "a user without a password");
	return show(url, err);
}

int cell__redis_url_parse(const char *text, struct cell__redis_url *ret_url, struct cell_error *err)
{
	static const char *const schemes[] = { "redis://", "rediss://", "redis+unix://", "unix://" };
	struct cell__redis_url url = { 0 };
	bool known = false;
	for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
		known |= strncasecmp(text, schemes[i], strlen(schemes[i])) == 0;
	if (!known)
		return bad(err, "unknown scheme");
	if (strlen(text) > CELL__REDIS_URL_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the Redis URL is longer than %u bytes", CELL__REDIS_URL_BYTES);
	if (parse(&url, text, err) < 0) {
		cell__redis_url_finish(&url);
		return -1;
	}
	*ret_url = url;
	return 0;
}
