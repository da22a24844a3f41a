/*
 * tools/openapi, openapi_refs and multipart: a document as JSON, then, behind a NUL each, the arguments of a call and the documents that the
 * first one refers to.  Whatever comes in, each callable has a name and a path, no argument changes where a request goes or adds a header to
 * a part of its body, and no reference leads out of the document's folder.
 */
#define _GNU_SOURCE
#include "fuzz.h"
#include "tools/openapi.h"

#define BASE "https://host/base"
#define MAX_OTHERS 4u

/* The documents that others refer to; a place chooses one of them by its first byte. */
struct others {
	const uint8_t *at[MAX_OTHERS];
	size_t size[MAX_OTHERS], count, loaded;
};

static int load(void *arg, const char *place, size_t *bytes_left, json_t **ret_document, struct cell__buf *why)
{
	struct others *others = arg;
	const bool url = strncmp(place, "http://", 7) == 0 || strncmp(place, "https://", 8) == 0;
	MUST(++others->loaded <= CELL_OPENAPI_LIMIT_DOCUMENTS + 1 || others->count == 0);
	MUST(!strchr(place, '#') && strlen(place) < 1024);
	if (!url) {
		MUST(*place != '/' && !strstr(place, "://"));
		for (const char *part = place; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
			MUST(strncmp(part, "..", 2) != 0 || (part[2] != '/' && part[2] != '\0'));
	}
	if (others->count == 0)
		return 0;
	const size_t chosen = (unsigned char)*place % others->count;
	if (others->size[chosen] > *bytes_left) {
		cell__buf_add_str(why, "too large");
		return -1;
	}
	*bytes_left -= others->size[chosen];
	*ret_document = json_loadb((const char *)others->at[chosen], others->size[chosen], 0, NULL);
	if (!*ret_document)
		cell__buf_add_str(why, "not JSON");
	return *ret_document ? 0 : -1;
}

/* Every reference leads into this document, down to the depth that is read. */
static void check_references(const json_t *node, unsigned depth)
{
	const json_t *reference = json_object_get(node, "$ref");
	const char *key;
	json_t *each;
	size_t i;
	if (depth == 0)
		return;
	if (json_is_string(reference)) {
		MUST(json_string_value(reference)[0] == '#' || json_string_length(reference) >= 1024);
		return;
	}
	json_object_foreach((json_t *)node, key, each)
		check_references(each, depth - 1);
	json_array_foreach(node, i, each)
		check_references(each, depth - 1);
}

/* Each part has the headers that multipart.c writes, and no others. */
static void check_parts(const struct cell__httpreq *req)
{
	static const char is[] = "Content-Type: multipart/form-data; boundary=";
	char mark[64] = "";
	for (size_t i = 0; i < req->n_headers; i++)
		if (strncmp(req->headers[i], is, sizeof is - 1) == 0)
			snprintf(mark, sizeof mark, "--%s", req->headers[i] + sizeof is - 1);
	const size_t length = strlen(mark);
	if (length == 0)
		return;
	MUST(length == 34 && req->body);
	const char *at = req->body, *end = req->body + req->body_size;
	for (;; at = memmem(at, (size_t)(end - at), mark, length)) {
		MUST(at && (size_t)(end - at) >= length + 4 && memcmp(at, mark, length) == 0);
		at += length;
		if (memcmp(at, "--\r\n", 4) == 0)
			break;
		const char *stop = memmem(at, (size_t)(end - at), "\r\n\r\n", 4);
		static const char first[] = "\r\nContent-Disposition: form-data; name=\"", second[] = "\r\nContent-Type: ";
		MUST(stop && (size_t)(stop - at) > sizeof first - 1 && memcmp(at, first, sizeof first - 1) == 0);
		at += sizeof first - 1;
		const char *line = memmem(at, (size_t)(stop - at), "\r\n", 2);
		MUST(!line || ((size_t)(stop - line) > sizeof second - 1 && memcmp(line, second, sizeof second - 1) == 0));
		MUST(!line || !memmem(line + 2, (size_t)(stop - line) - 2, "\r\n", 2));
		for (; at < stop; at++)
			MUST(*at != '\n' || at[-1] == '\r');
	}
	MUST(at + 4 == end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct others others = { 0 };
	const uint8_t *part[2 + MAX_OTHERS], *end = data + size;
	size_t sizes[2 + MAX_OTHERS], parts = 0;
	for (const uint8_t *at = data; at && parts < 2 + MAX_OTHERS; parts++) {
		const uint8_t *nul = at < end ? memchr(at, '\0', (size_t)(end - at)) : NULL;
		part[parts] = at;
		sizes[parts] = (size_t)((nul ? nul : end) - at);
		at = nul ? nul + 1 : NULL;
	}
	for (size_t i = 2; i < parts; i++, others.count++) {
		others.at[others.count] = part[i];
		others.size[others.count] = sizes[i];
	}
	json_t *document = json_loadb((const char *)part[0], sizes[0], 0, NULL);
	json_t *args = parts > 1 ? json_loadb((const char *)part[1], sizes[1], 0, NULL) : NULL;
	if (!json_is_object(args)) {
		json_decref(args);
		args = json_object();
	}
	const struct cell__openapi_wish wish = { .server = BASE };
	const struct cell__openapi_loader loader = { load, &others };
	struct cell__tool_entry *tool = cell__alloc(1, sizeof *tool);
	CELL_AUTO_BUF struct cell__buf why = CELL_BUF_INIT;
	tool->refs = 1;
	int rc = 0;
	if (json_is_object(document)) {
		rc = cell__openapi_bundle(document, size % 2 ? "https://host/api/openapi.json" : "openapi.json", &loader, &why);
		MUST(rc == 0 || why.size > 0);
		if (rc == 0 && others.count > 0)
			check_references(document, 500);
	}
	if (rc == 0 && document)
		rc = cell__openapi_read(document, &wish, tool, &why);
	MUST(rc == 0 || why.size > 0);
	for (size_t i = 0; i < tool->n_callables && rc == 0 && document; i++) {
		struct cell__httpreq req = { 0 };
		CELL_AUTO_BUF struct cell__buf reason = CELL_BUF_INIT;
		MUST(cell__tool_name_ok(tool->callables[i].name) && tool->callables[i].path[0] == '/');
		if (cell__httpreq_build(tool, &tool->callables[i], args, &req, &reason) == 0) {
			MUST(strncmp(req.url, tool->base_url, strlen(tool->base_url)) == 0);
			check_parts(&req);
		} else {
			MUST(reason.size > 0);
		}
		cell__httpreq_finish(&req);
	}
	cell__tool_unref(tool);
	json_decref(document);
	json_decref(args);
	return 0;
}
