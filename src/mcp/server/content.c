/* Content of the protocol that code or a program gives: what a client may be sent.  Pure. */
#include "mcp/server/server.h"

#include <string.h>

#include "mcp/server/uri.h"

static bool has_text(const json_t *object, const char *name)
{
	return json_is_string(json_object_get(object, name));
}

static bool is_base64(const json_t *text)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;

	return json_is_string(text) && !cell__buf_add_unbase64(&bytes, json_string_value(text), json_string_length(text));
}

bool cell__mcp_is_contents(const json_t *contents)
{
	return json_is_object(contents) && has_text(contents, "uri") &&
	       (has_text(contents, "text") != is_base64(json_object_get(contents, "blob")));
}

bool cell__mcp_is_content(const json_t *block)
{
	const char *type = json_string_value(json_object_get(block, "type"));

	if (!type)
		return false;
	if (!strcmp(type, "text"))
		return has_text(block, "text");
	if (!strcmp(type, "image") || !strcmp(type, "audio"))
		return has_text(block, "mimeType") && is_base64(json_object_get(block, "data"));
	if (!strcmp(type, "resource"))
		return cell__mcp_is_contents(json_object_get(block, "resource"));
	return !strcmp(type, "resource_link") && has_text(block, "uri") && has_text(block, "name");
}

bool cell__mcp_is_content_list(const json_t *list)
{
	const json_t *block;
	size_t i;

	json_array_foreach(list, i, block) {
		if (!cell__mcp_is_content(block))
			return false;
	}
	return json_is_array(list);
}

static bool is_text_type(const char *type)
{
	return !strncmp(type, "text/", 5) || !strcmp(type, "application/json") || !strcmp(type, "image/svg+xml") ||
	       !strcmp(type, "application/xml") || !strcmp(type, "application/javascript");
}

json_t *cell__mcp_contents(const char *uri, const char *type, const void *bytes, size_t size)
{
	CELL_AUTO_BUF struct cell__buf blob = CELL_BUF_INIT;
	json_t *contents;

	if ((!type || is_text_type(type)) && cell__utf8_ok(bytes, size)) {
		contents = json_pack("{s:s, s:o}", "uri", uri, "text", json_stringn(size ? bytes : "", size));
	} else {
		if (cell__buf_add_base64(&blob, bytes, size) < 0)
			return NULL;
		contents = json_pack("{s:s, s:s#}", "uri", uri, "blob", blob.size ? blob.data : "", (int)blob.size);
	}
	if (contents && type)
		json_object_set_new(contents, "mimeType", json_string(type));
	return contents;
}

json_t *cell__mcp_content(const char *uri, const char *type, const void *bytes, size_t size)
{
	CELL_AUTO_BUF struct cell__buf data = CELL_BUF_INIT;
	bool audio = !strncmp(type, "audio/", 6);
	json_t *contents;

	if (audio || (!strncmp(type, "image/", 6) && strcmp(type, "image/svg+xml")))
		return cell__buf_add_base64(&data, bytes, size) < 0
			       ? NULL
			       : json_pack("{s:s, s:s#, s:s}", "type", audio ? "audio" : "image", "data", data.size ? data.data : "",
					   (int)data.size, "mimeType", type);
	contents = cell__mcp_contents(uri, type, bytes, size);
	return contents ? json_pack("{s:s, s:o}", "type", "resource", "resource", contents) : NULL;
}
