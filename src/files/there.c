/*
 * The same for a workspace that another session server has: each function is a request to it (docs/files.md), and that server decides.  It is
 * not trusted more than code: the size of its answers is limited, and a file has as many bytes as it said.
 */
#include "files/files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files/relay.h"

#define MAX_ANSWER_BYTES (16u << 20) /* a listing of CELL_FILES_MAX_LISTED names */

struct cell__there {
	enum cell__file_transfer_kind kind;
	struct cell__elsewhere *place;
	char path[PATH_MAX];
	struct cell__relay *relay; /* NULL: a get that has not begun */
	uint64_t offset, left, whole; /* get */
	uint64_t max_bytes, done;
	const atomic_bool *cancelled;
};

/* ---- requests ---- */

static struct cell__relay *ask(const struct cell__elsewhere *place, const atomic_bool *cancelled, const char *method, const char *path,
			       const char *query, const char *range, bool sends, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf url = CELL_BUF_INIT;
	struct cell__relay *relay = NULL;
	struct curl_slist *headers = NULL, *more;
	CURL *easy = cell__relay_easy(place->socket, place->ca, err);
	if (!easy)
		return NULL;
	int rc = cell__buf_printf(&url, "%s/v1/sessions/%s/files?path=", place->url, place->session);
	rc |= cell__buf_add_percent(&url, path);
	rc |= cell__buf_add_str(&url, query);
	const char *const lines[] = { place->authorization, range };
	for (size_t i = 0; i < 2 && !rc; i++) {
		if (!lines[i])
			continue;
		more = curl_slist_append(headers, lines[i]);
		rc = more ? 0 : -1;
		headers = more ? more : headers;
	}
	if (rc) {
		curl_slist_free_all(headers);
		curl_easy_cleanup(easy);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a request");
		return NULL;
	}
	curl_easy_setopt(easy, CURLOPT_URL, url.data);
	if (!sends && strcmp(method, "GET"))
		curl_easy_setopt(easy, CURLOPT_POSTFIELDS, ""); /* else libcurl announces no length */
	curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, method);
	return cell__relay_start(easy, headers, sends, cancelled, &relay, err) < 0 ? NULL : relay;
}

/* A request without a body; *ret_answer may be NULL. */
static int ask_json(const struct cell__root *root, const char *method, const char *path, const char *query, json_t **ret_answer,
		    struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__relay *relay = ask(root->place, root->cancelled, method, path, query, NULL, false, err);
	int rc = relay ? cell__relay_finish(relay, MAX_ANSWER_BYTES, &text, err) : -1;
	cell__relay_destroy(relay);
	if (rc < 0 || !ret_answer)
		return rc;
	*ret_answer = text.size ? json_loadb(text.data, text.size, 0, NULL) : NULL;
	return *ret_answer ? 0 : cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is not JSON");
}

static bool is_item(const json_t *item, const char *key)
{
	return json_is_string(json_object_get(item, key)) && json_is_string(json_object_get(item, "type")) &&
	       json_is_integer(json_object_get(item, "size")) && json_is_string(json_object_get(item, "mode")) &&
	       json_is_number(json_object_get(item, "mtime"));
}

/* A description as cell__files_describe() makes it, with members that others may have added. */
static bool is_description(const json_t *found)
{
	const json_t *entries = json_object_get(found, "entries"), *item;
	size_t i;
	if (!is_item(found, "path"))
		return false;
	if (strcmp(json_string_value(json_object_get(found, "type")), "folder") != 0)
		return true;
	json_array_foreach(entries, i, item)
		if (!is_item(item, "name"))
			return false;
	return json_is_array(entries) && json_is_boolean(json_object_get(found, "truncated"));
}

static json_t *describe(const struct cell__root *root, const char *path, struct cell_error *err)
{
	json_t *found = NULL;
	if (ask_json(root, "GET", path, "&format=json", &found, err) < 0)
		return NULL;
	if (is_description(found))
		return found;
	json_decref(found);
	cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is not the description of a file");
	return NULL;
}

static int make_folder(const struct cell__root *root, const char *path, struct cell_error *err)
{
	return ask_json(root, "PUT", path, "&format=folder", NULL, err);
}

static int remove_path(const struct cell__root *root, const char *path, bool recursive, struct cell_error *err)
{
	return ask_json(root, "DELETE", path, recursive ? "&recursive=true" : "", NULL, err);
}

/* ---- transfers ---- */

static int stat_there(const struct cell__root *root, const char *path, struct stat *ret_stat, struct cell_error *err)
{
	json_t *found = describe(root, path, err);
	if (!found)
		return -1;
	const char *type = json_string_value(json_object_get(found, "type")), *mode = json_string_value(json_object_get(found, "mode"));
	json_int_t size = json_integer_value(json_object_get(found, "size"));
	double mtime = json_number_value(json_object_get(found, "mtime"));
	int sys = !strcmp(type, "file") ? 0 : !strcmp(type, "folder") ? EISDIR : !strcmp(type, "link") ? ELOOP : EINVAL;
	mtime = mtime > 0 && mtime < 1e11 ? mtime : 0;
	*ret_stat = (struct stat){ .st_mode = S_IFREG | (mode ? strtoul(mode, NULL, 8) & 0777 : 0644), .st_size = size };
	ret_stat->st_mtim.tv_sec = (time_t)mtime;
	ret_stat->st_mtim.tv_nsec = (long)((mtime - (double)(time_t)mtime) * 1e9);
	json_decref(found);
	if (sys)
		return cell__files_fail(err, sys, "read", path);
	return size < 0 ? cell_fail(err, CELL_E_PROTOCOL, 0, "the server's answer is not the description of a file") : 0;
}

int cell__there_open(enum cell__file_transfer_kind kind, struct cell__root *root, const char *path, unsigned mode,
		     struct cell__there **ret_there, struct stat *ret_stat, struct cell_error *err)
{
	struct cell__there *there = cell__alloc(1, sizeof *there);
	char query[32] = "";
	int rc = 0;
	if (!there)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a transfer");
	there->kind = kind;
	there->max_bytes = root->max_bytes;
	there->cancelled = root->cancelled;
	strcpy(there->path, path);
	if (kind == CELL_TRANSFER_GET) {
		rc = stat_there(root, path, ret_stat, err);
		there->left = there->whole = rc < 0 ? 0 : (uint64_t)ret_stat->st_size;
	} else {
		if (kind != CELL_TRANSFER_PUT)
			strcpy(query, "&format=tar");
		else if (mode)
			snprintf(query, sizeof query, "&mode=%03o", mode & 0777);
		there->relay = ask(root->place, root->cancelled, kind == CELL_TRANSFER_PACK ? "GET" : "PUT", path, query, NULL,
				   kind != CELL_TRANSFER_PACK, err);
		rc = there->relay ? 0 : -1;
	}
	there->place = cell__take_ptr(root->place);
	if (rc < 0) {
		cell__there_destroy(there);
		return -1;
	}
	*ret_there = there;
	return 0;
}

void cell__there_destroy(struct cell__there *there)
{
	if (!there)
		return;
	cell__relay_destroy(there->relay);
	cell__elsewhere_destroy(there->place);
	free(there);
}

void cell__there_seek(struct cell__there *there, uint64_t offset, uint64_t size)
{
	there->offset = offset;
	there->left = size;
}

/* A get begins with the first read: then it is known which bytes are wanted. */
static int begin_get(struct cell__there *there, struct cell_error *err)
{
	char range[80];
	bool is_part = there->left < there->whole;
	snprintf(range, sizeof range, "Range: bytes=%" PRIu64 "-%" PRIu64, there->offset, there->offset + there->left - 1);
	struct cell__relay *relay = ask(there->place, there->cancelled, "GET", there->path, "", is_part ? range : NULL, false, err);
	there->relay = relay;
	return relay ? 0 : -1;
}

ssize_t cell__there_read(struct cell__there *there, char *out, size_t max, struct cell_error *err)
{
	if (there->kind == CELL_TRANSFER_PACK)
		return cell__relay_read(there->relay, out, max, err);
	if (there->left == 0)
		return 0;
	if (!there->relay && begin_get(there, err) < 0)
		return -1;
	ssize_t n = cell__relay_read(there->relay, out, there->left < max ? (size_t)there->left : max, err);
	if (n == 0)
		return cell_fail(err, CELL_E_CONFLICT, 0, "the file has become shorter while it was read");
	if (n > 0)
		there->left -= (uint64_t)n;
	return n;
}

int cell__there_write(struct cell__there *there, const char *bytes, size_t size, struct cell_error *err)
{
	if (size > there->max_bytes - there->done)
		return cell_fail(err, CELL_E_LIMIT, EFBIG, "more than %" PRIu64 " bytes are not accepted", there->max_bytes);
	there->done += size;
	return cell__relay_write(there->relay, bytes, size, err);
}

int cell__there_end(struct cell__there *there, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf answer = CELL_BUF_INIT;
	return cell__relay_finish(there->relay, MAX_ANSWER_BYTES, &answer, err);
}

/* ---- wherever it is ---- */

void cell__root_finish(struct cell__root *root)
{
	cell__close_fd(&root->fd);
	cell__elsewhere_destroy(cell__take_ptr(root->place));
}

json_t *cell__root_describe(const struct cell__root *root, const char *path, struct cell_error *err)
{
	return root->place ? describe(root, path, err) : cell__files_describe(root->fd, path, err);
}

int cell__root_make_folder(const struct cell__root *root, const char *path, struct cell_error *err)
{
	if (root->guarded && cell__files_guard(path, err) < 0)
		return -1;
	return root->place ? make_folder(root, path, err) : cell__files_make_folder(root->fd, path, err);
}

int cell__root_remove(const struct cell__root *root, const char *path, bool recursive, struct cell_error *err)
{
	if (root->guarded && cell__files_guard(path, err) < 0)
		return -1;
	return root->place ? remove_path(root, path, recursive, err) : cell__files_remove(root->fd, path, recursive, err);
}
