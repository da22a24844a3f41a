/*
 * References of an OpenAPI document to other documents: they are loaded into it, and become references within it.  Pure but for the load
 * function of the caller; neither the document nor the others are trusted.
 *
 *     document                           {"$ref": "parts/pet.json#/Pet"}  ->  {"$ref": "#/x-workcell-documents/0/Pet"}
 *     document/x-workcell-documents/0    parts/pet.json, whose own references are rewritten in the same way
 *
 * Places of documents are relative to the first one: a path below its folder, or a URL. Each is loaded once, and their number is bounded, so
 * documents that refer to each other come to an end.
 */
#define _GNU_SOURCE
#include "tools/openapi.h"

#include <stdio.h>
#include <string.h>

#define KEY "x-workcell-documents"
#define MAX_PLACE 1024u
#define MAX_DEPTH 512u /* of a tree */

struct bundle {
	json_t *documents;   /* a list, as KEY */
	json_t *places;      /* place -> index, or -1: it is left alone */
	const struct cell__openapi_loader *loader;
	struct cell__buf *why;
	size_t bytes_left;
};

static bool is_url(const char *text)
{
	return strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
}

/* Appends the segments of a path to out, without "." and ".."; -1: it leads out of the folder or is too long. */
static int add_segments(char *out, size_t room, size_t floor, const char *path, size_t size)
{
	for (size_t at = 0; at <= size;) {
		const size_t n = strcspn(path + at, "/") < size - at ? strcspn(path + at, "/") : size - at;
		const size_t used = strlen(out);
		if (n == 2 && memcmp(path + at, "..", 2) == 0) {
			if (used == floor)
				return -1;
			char *slash = strrchr(out + floor, '/');
			*(slash ? slash : out + floor) = '\0';
		} else if (n > 0 && !(n == 1 && path[at] == '.')) {
			if (used + n + 2 > room)
				return -1;
			snprintf(out + used, room - used, "%s%.*s", used > floor ? "/" : "", (int)n, path + at);
		}
		at += n + 1;
	}
	return 0;
}

/* The place that a reference in the document at `from` names, without its fragment; -1: it leads out. */
static int join(const char *from, const char *reference, char *out, size_t room)
{
	const size_t size = strcspn(reference, "#");
	size_t floor = 0;
	*out = '\0';
	if (is_url(reference))
		return size >= room ? -1 : (snprintf(out, room, "%.*s", (int)size, reference), 0);
	if (strstr(reference, "://") || (*reference == '/' && !is_url(from)) || strlen(from) >= room)
		return -1;
	if (is_url(from)) {
		floor = (size_t)(strstr(from, "://") + 3 - from);
		floor += strcspn(from + floor, "/?#") + 1;
		if (floor + 1 > room)
			return -1;
		snprintf(out, room, "%.*s/", (int)(floor - 1), from);
		from = strlen(from) < floor ? "" : from + floor;
	}
	const char *slash = strrchr(from, '/');
	if (*reference != '/' && slash && add_segments(out, room, floor, from, (size_t)(slash - from)) < 0)
		return -1;
	return add_segments(out, room, floor, reference, size);
}

static int rewrite(struct bundle *bundle, json_t *node, const char *from, long index, unsigned depth);

/* Its index, -1: left alone, -2: failed. */
static long load(struct bundle *bundle, const char *place)
{
	const json_t *known = json_object_get(bundle->places, place);
	json_t *document = NULL;
	if (known)
		return (long)json_integer_value(known);
	const size_t index = json_array_size(bundle->documents);
	if (index == CELL_OPENAPI_LIMIT_DOCUMENTS) {
		cell__buf_printf(bundle->why, "it refers to more than %u other documents", CELL_OPENAPI_LIMIT_DOCUMENTS);
		return -2;
	}
	const int rc = bundle->loader->load(bundle->loader->arg, place, &bundle->bytes_left, &document, bundle->why);
	if (rc < 0)
		return -2;
	json_object_set_new(bundle->places, place, json_integer(document ? (json_int_t)index : -1));
	if (!document)
		return -1;
	if (json_array_append_new(bundle->documents, document) < 0) {
		cell__buf_add_str(bundle->why, "out of memory");
		return -2;
	}
	return rewrite(bundle, document, place, (long)index, MAX_DEPTH) < 0 ? -2 : (long)index;
}

static int rewrite_reference(struct bundle *bundle, json_t *node, const char *reference, const char *from, long index)
{
	char place[MAX_PLACE], made[2 * MAX_PLACE];
	const char *fragment = strchr(reference, '#') ? strchr(reference, '#') + 1 : "";
	if (*reference != '#') {
		if (join(from, reference, place, sizeof place) < 0) {
			cell__buf_printf(bundle->why, "the reference '%.120s' leads out of the document's folder", reference);
			return -1;
		}
		index = load(bundle, place);
	}
	if (index < 0 || strlen(fragment) >= MAX_PLACE)
		return index == -2 ? -1 : 0;
	snprintf(made, sizeof made, "#/" KEY "/%ld%s", index, *fragment == '/' ? fragment : "");
	return json_object_set_new(node, "$ref", json_string(made)) < 0 ? -1 : 0;
}

/* index: of the document that the node is in; -1: the first one, whose references within it stay. */
static int rewrite(struct bundle *bundle, json_t *node, const char *from, long index, unsigned depth)
{
	const char *key;
	json_t *each;
	size_t i;
	if (depth == 0)
		return 0; /* nothing that deep is read either */
	const json_t *reference = json_object_get(node, "$ref");
	if (json_is_string(reference)) {
		CELL_AUTO_FREE char *text = cell__strdup(json_string_value(reference));
		return text ? rewrite_reference(bundle, node, text, from, index) : -1;
	}
	json_object_foreach(node, key, each)
		if (strcmp(key, KEY) != 0 && rewrite(bundle, each, from, index, depth - 1) < 0)
			return -1;
	json_array_foreach(node, i, each)
		if (rewrite(bundle, each, from, index, depth - 1) < 0)
			return -1;
	return 0;
}

int cell__openapi_bundle(json_t *document, const char *place, const struct cell__openapi_loader *loader, struct cell__buf *why)
{
	struct bundle bundle = { json_array(), json_object(), loader, why, CELL_OPENAPI_LIMIT_BYTES };
	int rc = -1;
	json_object_del(document, KEY); /* it is ours */
	if (bundle.documents && bundle.places) {
		rc = rewrite(&bundle, document, place, -1, MAX_DEPTH);
		if (rc == 0 && json_array_size(bundle.documents) > 0)
			rc = json_object_set(document, KEY, bundle.documents);
	}
	if (rc < 0 && why->size == 0)
		cell__buf_add_str(why, "out of memory");
	json_decref(bundle.documents);
	json_decref(bundle.places);
	return rc;
}
