/*
 * Bodies of type multipart/form-data.  Pure but for the boundary, which is random: no content can contain it but by chance.
 *
 * A file is an object with "base64" or "content" and, if it is given, "filename" and "type". Other members are texts; lists are a part for
 * each value, objects are JSON.
 */
#define _GNU_SOURCE
#include <string.h>

#include "base/base64.h"
#include "base/random.h"
#include "tools/internal.h"

#define MAX_TYPE 100u

struct writer {
	struct cell__buf *out;
	struct cell__buf *why;
	const char *boundary;
};

static int no_memory(const struct writer *writer)
{
	cell__buf_add_str(writer->why, "out of memory");
	return -1;
}

/* As browsers write names: what could end the value or the line is percent-encoded. */
static int add_quoted(struct cell__buf *out, const char *text, size_t size)
{
	int rc = cell__buf_add_str(out, "\"");
	for (size_t i = 0; i < size && rc == 0; i++) {
		const unsigned char c = (unsigned char)text[i];
		rc = c < 0x20 || c == '"' || c == 0x7f ? cell__buf_printf(out, "%%%02X", c) : cell__buf_add(out, &text[i], 1);
	}
	return rc < 0 ? -1 : cell__buf_add_str(out, "\"");
}

static bool is_media_type(const char *text)
{
	const char *slash = strchr(text, '/');
	for (const char *at = text; *at; at++)
		if ((unsigned char)*at <= 0x20 || (unsigned char)*at >= 0x7f || strchr("\"(),:;<>@[\\]{}", *at))
			return false;
	return slash && slash > text && slash[1] && !strchr(slash + 1, '/') && strlen(text) <= MAX_TYPE;
}

/* filename NULL: the part has none; type NULL: plain text. */
static int add_part(const struct writer *writer, const char *name, const json_t *filename, const char *type, const char *data, size_t size)
{
	struct cell__buf *out = writer->out;
	int rc = cell__buf_printf(out, "--%s\r\nContent-Disposition: form-data; name=", writer->boundary) |
		 add_quoted(out, name, strlen(name));
	if (rc == 0 && filename)
		rc = cell__buf_add_str(out, "; filename=") | add_quoted(out, json_string_value(filename), json_string_length(filename));
	if (rc == 0 && type)
		rc = cell__buf_printf(out, "\r\nContent-Type: %s", type);
	if (rc == 0)
		rc = cell__buf_add_str(out, "\r\n\r\n") | cell__buf_add(out, data, size) | cell__buf_add_str(out, "\r\n");
	return rc < 0 ? no_memory(writer) : 0;
}

static bool is_file(const json_t *value)
{
	return json_is_string(json_object_get(value, "base64")) || json_is_string(json_object_get(value, "content"));
}

static int add_file(const struct writer *writer, const char *name, const json_t *value)
{
	const json_t *base64 = json_object_get(value, "base64"), *content = json_object_get(value, "content");
	const json_t *filename = json_object_get(value, "filename"), *type = json_object_get(value, "type");
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	json_t *fallback = json_string("file");
	int rc = -1;
	if ((base64 && content) || (filename && !json_is_string(filename)) ||
	    (type && (!json_is_string(type) || !is_media_type(json_string_value(type)))))
		cell__buf_printf(
			writer->why,
			"Argument '%.60s' must be a file: {\"base64\": ...} or {\"content\": ...}, and \"filename\" and \"type\" as texts",
			name);
	else if (base64 && cell__buf_add_unbase64(&bytes, json_string_value(base64), json_string_length(base64)) < 0)
		cell__buf_printf(writer->why, "Argument '%.60s': base64 is not valid", name);
	else
		rc = add_part(writer, name, filename ? filename : fallback, type ? json_string_value(type) : "application/octet-stream",
			      base64 ? bytes.data : json_string_value(content), base64 ? bytes.size : json_string_length(content));
	json_decref(fallback);
	return rc;
}

static int add_value(const struct writer *writer, const char *name, const json_t *value, bool listed)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FREE char *shown = NULL;
	const json_t *each;
	size_t i;
	if (is_file(value))
		return add_file(writer, name, value);
	if (json_is_array(value) && !listed) {
		json_array_foreach(value, i, each)
			if (add_value(writer, name, each, true) < 0)
				return -1;
		return 0;
	}
	if (json_is_object(value) || json_is_array(value)) {
		shown = json_dumps(value, JSON_COMPACT);
		return shown ? add_part(writer, name, NULL, "application/json", shown, strlen(shown)) : no_memory(writer);
	}
	if (json_is_null(value))
		return 0;
	return cell__arg_text(value, &text) < 0 ? no_memory(writer) : add_part(writer, name, NULL, NULL, text.data, text.size);
}

int cell__multipart_write(const json_t *body, struct cell__buf *out, char **ret_type, struct cell__buf *why)
{
	char boundary[33] = "";
	struct writer writer = { out, why, boundary };
	struct cell__buf type = CELL_BUF_INIT;
	const char *name;
	json_t *value;
	if (!json_is_object(body)) {
		cell__buf_add_str(why, "The body of this request is a form: it must be an object");
		return -1;
	}
	cell__random_hex(boundary, sizeof boundary - 1);
	json_object_foreach((json_t *)body, name, value) {
		if (add_value(&writer, name, value, false) < 0)
			return -1;
		if (out->size > CELL_TOOL_LIMIT_BODY_BYTES)
			break; /* the caller refuses it */
	}
	if (cell__buf_printf(out, "--%s--\r\n", boundary) < 0 ||
	    cell__buf_printf(&type, "multipart/form-data; boundary=%s", boundary) < 0) {
		cell__buf_finish(&type);
		return no_memory(&writer);
	}
	*ret_type = cell__buf_take(&type);
	return 0;
}
