/*
 * Rejects what a proxy and we might parse differently (request smuggling).
 *
 * libmicrohttpd up to 0.9.76 is lenient with heads: a line may end with LF alone, a NUL cuts a value off, a folded line is
 * appended to the name of its header, and a line that begins with a colon or a NUL ends the head, so that the rest is taken
 * for another request.  It does not report these.  But it cuts the head into strings in place:
 *
 *     POST\0/mcp\0HTTP/1.1\0\0Host\0 localhost\0\0Content-Length\0 2\0\0\0\0
 *     method url  version     name   value        name             value    the empty line
 *
 * So a head whose every byte is accounted for by consecutive strings, and two bytes after each line, had none of these.
 * Later versions refuse them by themselves (MHD_OPTION_STRICT_FOR_CLIENT).
 */
#define _GNU_SOURCE /* strverscmp */
#include "base/hole.h"
#include "server/server.h"

#include <string.h>
#include <strings.h>

#define NAME_CHARACTERS "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define LINE_END 2 /* bytes of CRLF */

/* Headers that we use, and that have one value. */
static const char *const single[] = { "Host",           "Authorization",        "Origin",
				      "Content-Length", "Transfer-Encoding",    "X-Session-ID",
				      "Mcp-Session-Id", "MCP-Protocol-Version", "Last-Event-ID",
				      "Cookie",         "X-CSRF-Token" };
#define N_SINGLE (sizeof(single) / sizeof(single[0]))

struct head {
	unsigned counts[N_SINGLE];
	bool odd_encoding, bad_length, bad_name, bad_value;
	bool gaps;       /* bytes that belong to no text */
	const char *end; /* of the line before */
	size_t size;     /* in all */
};

static unsigned count_of(const struct head *head, const char *name)
{
	size_t i = 0;

	while (strcmp(single[i], name))
		i++;
	return head->counts[i];
}

/* Spaces between the colon and the value. */
static bool is_space(const char *from, const char *to)
{
	for (; from < to; from++) {
		if (*from != ' ' && *from != '\t')
			return false;
	}
	return true;
}

static enum MHD_Result check_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value)
{
	struct head *head = arg;
	const char *after = name + strlen(name) + 1; /* the colon */

	(void)kind;
	/* libmicrohttpd takes "Content-Length : 3" for a header of another name; others do not. */
	head->bad_name |= !*name || name[strspn(name, NAME_CHARACTERS)];
	for (size_t i = 0; i < N_SINGLE; i++)
		head->counts[i] += !strcasecmp(name, single[i]);
	if (!strcasecmp(name, "Content-Length"))
		head->bad_length |= !value || !*value || value[strspn(value, "0123456789")];
	else if (!strcasecmp(name, "Transfer-Encoding"))
		head->odd_encoding |= !value || strcasecmp(value, "chunked");
	head->gaps |= !value || name != head->end + LINE_END || value < after || (size_t)(value - after) > head->size ||
		      !is_space(after, value);
	for (const char *at = value; at && *at; at++)
		head->bad_value |= (unsigned char)*at < ' ' && *at != '\t';
	head->end = value ? value + strlen(value) : after;
	return MHD_YES;
}

/* Is every byte of the head accounted for? */
static bool is_whole(const struct head *head, const char *method, const char *url, size_t url_size, const char *version)
{
	if (strverscmp(MHD_get_version(), "0.9.77") >= 0)
		return true;
	return !head->gaps && url == method + strlen(method) + 1 && version == url + url_size + 1 &&
	       head->end + 2 * LINE_END == method + head->size;
}

const char *cell__head_wrong(struct MHD_Connection *connection, const char *method, const char *url, size_t url_size, const char *version,
			     bool *ret_chunked)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
	struct head head = { .end = version + strlen(version), .size = info ? info->header_size : 0 };
	unsigned lengths, encodings;

	MHD_get_connection_values(connection, MHD_HEADER_KIND, check_header, &head);
	lengths = count_of(&head, "Content-Length");
	encodings = count_of(&head, "Transfer-Encoding");
	*ret_chunked = encodings;
	if (is_hole("smuggling"))
		return NULL;
	if (strcmp(version, "HTTP/1.1") && (strcmp(version, "HTTP/1.0") || encodings))
		return "only HTTP/1.1, and HTTP/1.0 without Transfer-Encoding, are supported";
	if (lengths > 1 || head.bad_length || (lengths && encodings))
		return "the length of the body is given more than once";
	if (head.bad_name)
		return "a header name contains invalid characters";
	if (encodings > 1 || head.odd_encoding)
		return "the only supported Transfer-Encoding is chunked, given once";
	if (count_of(&head, "Host") > 1 || (!count_of(&head, "Host") && !strcmp(version, "HTTP/1.1")))
		return "exactly one Host header is required";
	for (size_t i = 0; i < N_SINGLE; i++) {
		if (head.counts[i] > 1)
			return !strcmp(single[i], "Authorization") ? "more than one Authorization header"
								   : "a header that may be given once is repeated";
	}
	if (head.bad_value)
		return "a header value contains control characters";
	if (!is_whole(&head, method, url, url_size, version))
		return "a header line does not end with CR LF, is folded, or contains a NUL";
	return NULL;
}
