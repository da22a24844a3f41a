#define _GNU_SOURCE
#include "deps/uvlock.h"

#include <stdbool.h>
#include <string.h>

/*
 * The supported part of TOML: lines of tables ("[[package]]"), keys with strings, and arrays of inline tables of strings, which uv writes
 * one to a line or all in one. Strings are basic ones; strings with an escape are skipped.
 */
struct reader {
	const char *at, *end;
	json_t *package; /* NULL: the table is another one */
	bool registry;   /* it is from an index or folder */
};

static void skip(struct reader *reader, const char *chars)
{
	while (reader->at < reader->end && memchr(chars, *reader->at, strlen(chars)))
		reader->at++;
}

static bool take(struct reader *reader, const char *text)
{
	size_t size = strlen(text);
	if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, text, size) != 0)
		return false;
	reader->at += size;
	return true;
}

static void skip_line(struct reader *reader)
{
	const char *stop = memchr(reader->at, '\n', (size_t)(reader->end - reader->at));
	reader->at = stop ? stop + 1 : reader->end;
}

/* Behind its first quote; false: it has no end on this line. */
static bool take_string(struct reader *reader, const char **ret_text, size_t *ret_size)
{
	const char *at = reader->at;
	while (at < reader->end && *at != '"' && *at != '\n' && *at != '\\')
		at++;
	if (at == reader->end || *at != '"')
		return false;
	*ret_text = reader->at;
	*ret_size = (size_t)(at - reader->at);
	reader->at = at + 1;
	return true;
}

/* The size of a bare key; 0: not a key. */
static size_t key_size(const struct reader *reader)
{
	size_t n = 0;
	while (reader->at + n < reader->end && strchr("abcdefghijklmnopqrstuvwxyz-", reader->at[n]) && reader->at[n])
		n++;
	return n;
}

/* "{ url = "...", hash = "sha256:..." }", behind the brace. */
static int read_wheel(struct reader *reader)
{
	static const char sha256[] = "sha256:";
	json_t *hashes = json_object_get(reader->package, "hashes"), *files = json_object_get(reader->package, "files");
	const char *hash = NULL, *path = NULL, *text;
	size_t hash_size = 0, path_size = 0, size;
	for (;;) {
		skip(reader, " \t\n,");
		if (take(reader, "}"))
			break;
		const char *key = reader->at;
		size_t n = key_size(reader);
		reader->at += n;
		if (n == 0 || !take(reader, " = "))
			return -1;
		if (!take(reader, "\"")) { /* a number */
			skip(reader, "0123456789");
			continue;
		}
		if (!take_string(reader, &text, &size))
			return -1;
		if (n == 4 && memcmp(key, "hash", 4) == 0 && size > sizeof sha256 - 1 && memcmp(text, sha256, sizeof sha256 - 1) == 0) {
			hash = text + sizeof sha256 - 1;
			hash_size = size - (sizeof sha256 - 1);
		} else if (n == 4 && memcmp(key, "path", 4) == 0) {
			path = text;
			path_size = size;
		}
	}
	if (hash)
		return json_array_append_new(hashes, json_stringn(hash, hash_size));
	if (path)
		return json_array_append_new(files, json_stringn(path, path_size));
	json_int_t bare = json_integer_value(json_object_get(reader->package, "bare"));
	return json_object_set_new(reader->package, "bare", json_integer(bare + 1));
}

static int read_wheels(struct reader *reader)
{
	for (;;) {
		skip(reader, " \t\n,");
		if (take(reader, "]"))
			return 0;
		if (!take(reader, "{") || read_wheel(reader) < 0)
			return -1;
	}
}

static int read_text(struct reader *reader, const char *key)
{
	const char *text;
	size_t size;
	if (!take_string(reader, &text, &size))
		return -1;
	return json_object_set_new(reader->package, key, json_stringn(text, size));
}

/* A package is added when the next table begins. */
static int end_package(struct reader *reader, json_t *found)
{
	json_t *package = reader->package;
	bool counts = package && reader->registry;
	bool whole = json_object_get(package, "name") && json_object_get(package, "version") &&
		     json_array_size(found) < CELL__UVLOCK_PACKAGES;
	int rc = !counts ? 0 : whole ? json_array_append(found, package) : -1;
	json_decref(package);
	reader->package = NULL;
	reader->registry = false;
	return rc;
}

static int read_line(struct reader *reader, json_t *found)
{
	int rc = 0;
	if (take(reader, "[[package]]\n")) {
		rc = end_package(reader, found);
		reader->package = json_pack("{s:[], s:[], s:i}", "hashes", "files", "bare", 0);
		return rc < 0 || !reader->package ? -1 : 0;
	}
	if (reader->at < reader->end && *reader->at == '[')
		rc = end_package(reader, found);
	else if (reader->package && take(reader, "name = \""))
		rc = read_text(reader, "name");
	else if (reader->package && take(reader, "version = \""))
		rc = read_text(reader, "version");
	else if (reader->package && take(reader, "source = { registry = \""))
		reader->registry = true;
	else if (reader->package && take(reader, "wheels = ["))
		rc = read_wheels(reader);
	skip_line(reader);
	return rc;
}

json_t *cell__uvlock_parse(const char *text, size_t size)
{
	struct reader reader = { .at = text, .end = text + size };
	json_t *found = json_array();
	int rc = found && take(&reader, "version = 1\n") ? 0 : -1; /* of the format */
	while (rc == 0 && reader.at < reader.end)
		rc = read_line(&reader, found);
	if (rc == 0)
		rc = end_package(&reader, found);
	json_decref(reader.package);
	if (rc == 0)
		return found;
	json_decref(found);
	return NULL;
}
