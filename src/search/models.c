/*
 * Folders of models for searches by meaning: installing, listing, removing.  Reads and writes files on the calling thread; no engine.
 *
 * A model is copied into a folder beside its place, complete, and moved there by one rename.  Sources are regular files, opened without following
 * a last link; only names that a model has are taken.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "base/tree.h"
#include "loop/http.h"
#include "search/onnx.h"

#define BLOCK_BYTES (256u * 1024u)
#define MAX_NAME 64u
#define N_PARTS 3u

static const struct {
	const char *name;
	size_t max;
	bool needed;
} parts[N_PARTS] = {
	{ "model.onnx", CELL__ONNX_MODEL_BYTES, true },
	{ "tokenizer.json", CELL__ONNX_TOKENIZER_BYTES, true },
	{ "libonnxruntime.so", CELL__ONNX_MODEL_BYTES, false },
};

/* The part that a file is by its name: "x.onnx", "x-tokenizer.json", "libonnxruntime.so.1.20.1"; -1: none. */
static int part_of(const char *name)
{
	size_t size = strlen(name);

	if (size > 5 && !strcmp(name + size - 5, ".onnx"))
		return 0;
	if (size >= 14 && !strcmp(name + size - 14, "tokenizer.json"))
		return 1;
	return strncmp(name, "libonnxruntime.so", 17) ? -1 : 2;
}

static bool is_model_name(const char *name)
{
	size_t size = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return size && !name[size] && size <= MAX_NAME && name[0] != '.';
}

/* Copies and hashes.  -1: *err has the reason. */
static int copy_file(int from, int to, size_t max, const char *shown, char ret_digest[65], struct cell_error *err)
{
	CELL_AUTO_FREE char *block = cell__alloc(1, BLOCK_BYTES);
	EVP_MD_CTX *hash = EVP_MD_CTX_new();
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned size = 0;
	size_t total = 0;
	ssize_t n = 1;
	int status = block && hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 ? 0
										       : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");

	while (!status && (n = read(from, block, BLOCK_BYTES)) > 0) {
		total += (size_t)n;
		if (total > max)
			status = cell_fail(err, CELL_E_LIMIT, 0, "%.150s is larger than %zu bytes", shown, max);
		else if (cell__fd_write_all(to, block, (size_t)n) < 0)
			status = cell_fail(err, CELL_E_IO, errno, "cannot write a copy of %.150s", shown);
		else
			EVP_DigestUpdate(hash, block, (size_t)n);
	}
	if (!status && (n < 0 || fsync(to) < 0))
		status = cell_fail(err, CELL_E_IO, errno, "cannot copy %.150s", shown);
	if (!status && EVP_DigestFinal_ex(hash, digest, &size) == 1) {
		for (unsigned i = 0; i < 32; i++)
			snprintf(ret_digest + 2 * i, 3, "%02x", digest[i]);
	}
	EVP_MD_CTX_free(hash);
	return status;
}

struct installing {
	int dir_fd; /* of the new folder */
	bool have[N_PARTS];
	json_t *files;
};

static int add_file(struct installing *installing, int dir_fd, const char *path, const char *name, struct cell_error *err)
{
	int part = part_of(name);
	CELL_AUTO_FD int from = -1;
	CELL_AUTO_FD int to = -1;
	char digest[65] = "";
	struct stat info;

	if (part < 0)
		return 0;
	if (installing->have[part])
		return cell_fail(err, CELL_E_INVALID, 0, "there are two files for %s: give one of them", parts[part].name);
	from = openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (from < 0 || fstat(from, &info) < 0)
		return cell_fail(err, CELL_E_NOT_FOUND, errno, "cannot open %.150s", path);
	if (!S_ISREG(info.st_mode))
		return cell_fail(err, CELL_E_INVALID, 0, "%.150s is not a file", path);
	to = openat(installing->dir_fd, parts[part].name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (to < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot make %s", parts[part].name);
	if (copy_file(from, to, parts[part].max, path, digest, err) < 0)
		return -1;
	installing->have[part] = true;
	json_array_append_new(installing->files,
			      json_pack("{s:s, s:I, s:s}", "file", parts[part].name, "bytes", (json_int_t)info.st_size, "sha256", digest));
	return 0;
}

/* ---- from the web ---- */

static bool is_url(const char *source)
{
	return !strncmp(source, "https://", 8) || !strncmp(source, "http://", 7);
}

/*
 * The user names the first address, which may be on a private network; a public server may not send us to one, nor from https to http. http is
 * for servers on this computer or a private network.
 */
static int fetch(const char *url, size_t max, struct cell__http_reply *reply, struct cell_error *err)
{
	CELL_AUTO_FREE char *at = cell__strdup(url);
	bool allow_private = true;

	for (int i = 0; at && i <= CELL__ONNX_REDIRECTS; i++) {
		const struct cell__http_request request = {
			.method = "GET", .url = at, .timeout_ms = CELL__ONNX_DOWNLOAD_MS, .silence_s = CELL__ONNX_SILENCE_S
		};
		const struct cell__http_rules rules = { .max_body = max, .allow_private = allow_private };

		cell__http_reply_finish(reply);
		*reply = (struct cell__http_reply){ 0 };
		if (cell__http_perform(&request, NULL, &rules, reply, err) < 0)
			return -1;
		if (!strncmp(at, "http://", 7) && !reply->private_address)
			return cell_fail(err, CELL_E_INVALID, 0, "%.120s: a public server needs https", at);
		if (reply->status == 200)
			return 0;
		if (reply->status < 300 || reply->status > 399 || reply->location.size == 0)
			return cell_fail(err, CELL_E_IO, 0, "%.120s answered with the status %ld", at, reply->status);
		if (!is_url(reply->location.data) || (!strncmp(at, "https://", 8) && strncmp(reply->location.data, "https://", 8) != 0))
			return cell_fail(err, CELL_E_FORBIDDEN, 0, "%.100s redirects to %.100s, which is not https", at,
					 reply->location.data);
		allow_private = reply->private_address;
		free(at);
		at = cell__strdup(reply->location.data);
	}
	return at ? cell_fail(err, CELL_E_LIMIT, 0, "%.150s redirects more than %d times", url, CELL__ONNX_REDIRECTS)
		  : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

static int keep_bytes(struct installing *installing, int part, const struct cell__buf *body, struct cell_error *err)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	char hex[65] = "";
	unsigned size = 0;
	CELL_AUTO_FD int to = openat(installing->dir_fd, parts[part].name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	if (to < 0 || cell__fd_write_all(to, body->data, body->size) < 0 || fsync(to) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot write %s", parts[part].name);
	if (EVP_Digest(body->data, body->size, digest, &size, EVP_sha256(), NULL) != 1)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	for (unsigned i = 0; i < 32; i++)
		snprintf(hex + 2 * i, 3, "%02x", digest[i]);
	installing->have[part] = true;
	json_array_append_new(installing->files,
			      json_pack("{s:s, s:I, s:s}", "file", parts[part].name, "bytes", (json_int_t)body->size, "sha256", hex));
	return 0;
}

/* The part is known by the last name in the path. */
static int add_url(struct installing *installing, const char *url, struct cell_error *err)
{
	size_t path = strcspn(url, "?#"), start = path;
	struct cell__http_reply reply = { 0 };
	int part, status;

	while (start > 0 && url[start - 1] != '/')
		start--;
	CELL_AUTO_FREE char *name = cell__strndup(url + start, path - start);
	if (!name)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	part = part_of(name);
	if (part < 0)
		return cell_fail(err, CELL_E_INVALID, 0, "%.150s is not a part of a model: *.onnx, *tokenizer.json or libonnxruntime.so*",
				 url);
	if (installing->have[part])
		return cell_fail(err, CELL_E_INVALID, 0, "there are two files for %s: give one of them", parts[part].name);
	status = fetch(url, parts[part].max < CELL__ONNX_DOWNLOAD_BYTES ? parts[part].max : CELL__ONNX_DOWNLOAD_BYTES, &reply, err);
	if (!status)
		status = keep_bytes(installing, part, &reply.body, err);
	cell__http_reply_finish(&reply);
	return status;
}

/* A file, or the files of a folder. */
static int add_source(struct installing *installing, const char *source, struct cell_error *err)
{
	const char *slash = strrchr(source, '/');

	if (is_url(source))
		return add_url(installing, source, err);

	int fd = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC), status = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (fd < 0 && errno == ENOTDIR)
		return part_of(slash ? slash + 1 : source) < 0
			       ? cell_fail(
					 err, CELL_E_INVALID, 0,
					 "%.150s is not a part of a model: *.onnx, *tokenizer.json, libonnxruntime.so* or a folder of them",
					 source)
			       : add_file(installing, AT_FDCWD, source, slash ? slash + 1 : source, err);
	if (!dir) {
		int saved = errno;

		cell__close_fd(&fd);
		return cell_fail(err, CELL_E_NOT_FOUND, saved, "cannot open %.150s", source);
	}
	while (!status && (entry = readdir(dir)))
		status = add_file(installing, dirfd(dir), entry->d_name, entry->d_name, err);
	closedir(dir);
	return status;
}

static int open_models(const char *dir, bool make, struct cell_error *err)
{
	CELL_AUTO_FREE char *path = cell__strdup(dir);
	int fd;

	for (char *slash = path && make ? strchr(path + 1, '/') : NULL; slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		mkdir(path, 0700); /* the last one reports */
		*slash = '/';
	}
	if (make && mkdir(dir, 0700) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "cannot make %.150s", dir);
	fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? cell_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno, "cannot open %.150s", dir) : fd;
}

/* With everything in place: takes the name. */
static int take_place(int models_fd, const char *temp, const char *name, struct cell_error *err)
{
	if (renameat2(models_fd, temp, models_fd, name, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "cannot name the model %.64s", name);
	/* Replaces an earlier one at once; processes that have loaded it keep it. */
	if (renameat2(models_fd, temp, models_fd, name, RENAME_EXCHANGE) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot replace the model %.64s", name);
	return cell__tree_remove(models_fd, temp) < 0 ? cell_fail(err, CELL_E_IO, errno, "cannot remove the earlier model") : 0;
}

int cell_model_install(const char *models_dir, const char *name, const char *const *sources, const char *sha256, char **ret_json,
		       struct cell_error *err)
{
	struct installing installing = { .dir_fd = -1 };
	CELL_AUTO_FD int models_fd = -1;
	char temp[48], random[17];
	int status = 0;

	if (cell__require(err, models_dir, name, sources, ret_json) < 0)
		return -1;
	if (!is_model_name(name))
		return cell_fail(err, CELL_E_INVALID, 0, "\"%.64s\" is not a name for a model: letters, digits, '.', '_', '-'", name);
	models_fd = open_models(models_dir, true, err);
	if (models_fd < 0)
		return -1;
	cell__random_hex(random, 16);
	snprintf(temp, sizeof(temp), ".new-%s", random);
	if (mkdirat(models_fd, temp, 0700) < 0 ||
	    (installing.dir_fd = openat(models_fd, temp, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0)
		return cell_fail(err, CELL_E_IO, errno, "cannot make a folder in %.150s", models_dir);
	installing.files = json_array();
	for (size_t i = 0; sources[i] && !status; i++)
		status = add_source(&installing, sources[i], err);
	for (size_t i = 0; i < N_PARTS && !status; i++) {
		if (parts[i].needed && !installing.have[i])
			status = cell_fail(err, CELL_E_INVALID, 0, "the sources have no file for %s", parts[i].name);
	}
	for (size_t i = 0; i < json_array_size(installing.files) && !status && sha256; i++) {
		const json_t *file = json_array_get(installing.files, i);

		if (!strcmp(json_string_value(json_object_get(file, "file")), "model.onnx") &&
		    strcasecmp(json_string_value(json_object_get(file, "sha256")), sha256))
			status = cell_fail(err, CELL_E_INVALID, 0, "the SHA-256 of the model is %s",
					   json_string_value(json_object_get(file, "sha256")));
	}
	if (!status)
		status = take_place(models_fd, temp, name, err);
	if (status)
		cell__tree_remove(models_fd, temp);
	cell__close_fd(&installing.dir_fd);
	if (!status && !(*ret_json = json_dumps(installing.files, JSON_COMPACT)))
		status = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	json_decref(installing.files);
	return status;
}

int cell_model_list(const char *models_dir, char **ret_json, struct cell_error *err)
{
	json_t *list = json_array();
	struct dirent *entry;
	struct stat info;
	DIR *dir;
	int fd;

	if (cell__require(err, models_dir, ret_json) < 0) {
		json_decref(list);
		return -1;
	}
	fd = open_models(models_dir, false, NULL);
	dir = fd < 0 ? NULL : fdopendir(fd);
	while (dir && (entry = readdir(dir))) {
		json_int_t bytes = 0;
		bool whole = is_model_name(entry->d_name);

		for (size_t i = 0; i < N_PARTS && whole; i++) {
			CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

			if (cell__buf_printf(&path, "%s/%s", entry->d_name, parts[i].name) < 0 ||
			    fstatat(dirfd(dir), path.data, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(info.st_mode))
				whole = !parts[i].needed;
			else
				bytes += info.st_size;
		}
		if (whole)
			json_array_append_new(list, json_pack("{s:s, s:I}", "name", entry->d_name, "bytes", bytes));
	}
	if (dir)
		closedir(dir);
	*ret_json = json_dumps(list, JSON_COMPACT);
	json_decref(list);
	return *ret_json ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

int cell_model_remove(const char *models_dir, const char *name, struct cell_error *err)
{
	CELL_AUTO_FD int fd = -1;
	struct stat info;

	if (cell__require(err, models_dir, name) < 0)
		return -1;
	fd = open_models(models_dir, false, err);
	if (fd < 0)
		return -1;
	if (!is_model_name(name) || fstatat(fd, name, &info, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(info.st_mode))
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "there is no model \"%.64s\"", name);
	return cell__tree_remove(fd, name) < 0 ? cell_fail(err, CELL_E_IO, errno, "cannot remove the model %.64s", name) : 0;
}
