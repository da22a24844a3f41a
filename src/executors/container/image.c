/*
 * Building an image: the context's files as a tar archive to POST /build, and the engine's progress, line by line.
 *
 *     pack (a thread of libuv's pool) ──▶ POST /build ──{"stream": ...} lines──▶ done
 *
 * The archive has no times and owners in it and is in the order of names, so the engine's cache recognises it.
 */
#define _GNU_SOURCE
#include "executors/container/container.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define DOCKERFILE "packaging/Dockerfile"
#define MAX_CONTEXT_BYTES (256u << 20)
#define MAX_DEPTH 32
#define MAX_LINE_BYTES (64u << 10)
#define BLOCK 512u

struct cell__image_build {
	uv_work_t work;
	struct cell__docker *docker;
	struct cell__docker_request *request;
	char *context, *path;
	struct cell__buf archive, lines, last;
	struct cell_error err;
	bool packing, cancelled;
	void (*line)(void *arg, const char *line);
	void (*done)(void *arg, const struct cell_error *err);
	void *arg;
};

/* ---- the archive; libuv's pool ---- */

struct header { /* ustar */
	char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], sum[8], type, link[100], magic[6], version[2], user[32], group[32];
	char major[8], minor[8], prefix[155], rest[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a tar header must be one block");

/* Fields are padded with NULs and need no NUL at their end. */
static void put(char *to, size_t room, const char *text, size_t size)
{
	memcpy(to, text, size < room ? size : room);
}

static int add_header(struct cell__buf *archive, const char *name, char type, unsigned mode, size_t size, const char *link,
		      struct cell_error *err)
{
	struct header header = { .type = type };
	size_t length = strlen(name), cut = 0;
	unsigned sum = 0;

	if (length > sizeof(header.name)) { /* the first part goes to `prefix`, up to a slash */
		for (size_t i = length - sizeof(header.name) - 1; i < length && i <= sizeof(header.prefix) && !cut; i++)
			cut = name[i] == '/' ? i : 0;
		if (!cut)
			return cell_fail(err, CELL_E_LIMIT, 0, "the path %.100s... is too long for an archive", name);
		put(header.prefix, sizeof(header.prefix), name, cut++);
	}
	put(header.name, sizeof(header.name), name + cut, length - cut);
	snprintf(header.mode, sizeof(header.mode), "%07o", mode);
	snprintf(header.uid, sizeof(header.uid), "%07o", 0u);
	snprintf(header.gid, sizeof(header.gid), "%07o", 0u);
	snprintf(header.size, sizeof(header.size), "%011zo", size);
	snprintf(header.mtime, sizeof(header.mtime), "%011o", 0u);
	put(header.link, sizeof(header.link), link, strlen(link));
	memcpy(header.magic, "ustar", 6);
	memcpy(header.version, "00", 2);
	memset(header.sum, ' ', sizeof(header.sum));
	for (size_t i = 0; i < sizeof(header); i++)
		sum += ((unsigned char *)&header)[i];
	snprintf(header.sum, sizeof(header.sum), "%06o", sum);
	return cell__buf_add(archive, &header, sizeof(header)) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the build context")
								   : 0;
}

static int add_zeros(struct cell__buf *archive, size_t size)
{
	static const char zeros[2 * BLOCK];

	return cell__buf_add(archive, zeros, size);
}

static int add_file(struct cell__buf *archive, int fd, const char *name, const struct stat *st, struct cell_error *err)
{
	size_t size = (size_t)st->st_size, got = 0;
	ssize_t n;

	if (size > MAX_CONTEXT_BYTES || archive->size + size > MAX_CONTEXT_BYTES)
		return cell_fail(err, CELL_E_LIMIT, 0, "the build context is larger than %u MiB", MAX_CONTEXT_BYTES >> 20);
	if (add_header(archive, name, '0', st->st_mode & 0111 ? 0755 : 0644, size, "", err) < 0)
		return -1;
	if (cell__buf_reserve(archive, size + BLOCK) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the build context");
	while (got < size && (n = read(fd, archive->data + archive->size, size - got)) > 0) {
		archive->size += (size_t)n;
		got += (size_t)n;
	}
	if (got < size)
		return cell_fail(err, CELL_E_IO, errno, "read %.150s", name);
	return add_zeros(archive, (BLOCK - size % BLOCK) % BLOCK) < 0
		       ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the build context")
		       : 0;
}

/* Skips files that are not sources: hidden files, caches. */
static int is_wanted(const struct dirent *entry)
{
	const char *name = entry->d_name;

	return *name != '.' && strcmp(name, "__pycache__") && strcmp(name, "node_modules");
}

static int add_folder(struct cell__buf *archive, int fd, const char *name, int depth, struct cell_error *err);

/* Build output is not a source either: build, build-asan and similar, and meson's build folders, whatever their name. */
static bool is_build_folder(int fd, const char *name, int depth)
{
	return (!depth && !strncmp(name, "build", 5)) || !faccessat(fd, "build.ninja", F_OK, 0);
}

static int add_entry(struct cell__buf *archive, int folder, const char *entry, const char *name, int depth, struct cell_error *err)
{
	char link[101];
	struct stat st;
	ssize_t n;

	if (fstatat(folder, entry, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return cell_fail(err, CELL_E_IO, errno, "look at %.150s", name);
	if (S_ISLNK(st.st_mode)) {
		n = readlinkat(folder, entry, link, sizeof(link));
		if (n < 0 || (size_t)n == sizeof(link))
			return cell_fail(err, CELL_E_LIMIT, 0, "the link %.150s is too long for an archive", name);
		link[n] = '\0';
		return add_header(archive, name, '2', 0777, 0, link, err);
	}
	if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
		return 0;
	CELL_AUTO_FD int fd = openat(folder, entry, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return cell_fail(err, CELL_E_IO, errno, "open %.150s", name);
	if (S_ISREG(st.st_mode))
		return add_file(archive, fd, name, &st, err);
	if (is_build_folder(fd, entry, depth))
		return 0;
	return add_header(archive, name, '5', 0755, 0, "", err) < 0 ? -1 : add_folder(archive, fd, name, depth + 1, err);
}

static int add_folder(struct cell__buf *archive, int fd, const char *name, int depth, struct cell_error *err)
{
	struct dirent **entries = NULL;
	char path[PATH_MAX];
	int n, status = 0;

	if (depth > MAX_DEPTH)
		return cell_fail(err, CELL_E_LIMIT, 0, "the build context is more than %d folders deep", MAX_DEPTH);
	n = scandirat(fd, ".", &entries, is_wanted, alphasort);
	if (n < 0)
		return cell_fail(err, CELL_E_IO, errno, "list %.150s", *name ? name : "the build context");
	for (int i = 0; i < n; i++) {
		if (!status && snprintf(path, sizeof(path), "%s%s%s", name, *name ? "/" : "", entries[i]->d_name) >= (int)sizeof(path))
			status = cell_fail(err, CELL_E_LIMIT, 0, "a path of the build context is too long");
		if (!status)
			status = add_entry(archive, fd, entries[i]->d_name, path, depth, err);
		free(entries[i]);
	}
	free(entries);
	return status;
}

static void pack(uv_work_t *work)
{
	struct cell__image_build *build = work->data;
	CELL_AUTO_FD int fd = open(build->context, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		cell_fail(&build->err, CELL_E_NOT_FOUND, errno, "the build context %.150s", build->context);
	else if (faccessat(fd, DOCKERFILE, R_OK, 0) < 0)
		cell_fail(&build->err, CELL_E_NOT_FOUND, errno, "%.150s/" DOCKERFILE, build->context);
	else if (!add_folder(&build->archive, fd, "", 0, &build->err) && add_zeros(&build->archive, 2 * BLOCK) < 0)
		cell_fail(&build->err, CELL_E_NOMEM, 0, "out of memory for the build context");
}

/* ---- the request ---- */

static void build_free(struct cell__image_build *build)
{
	cell__buf_finish(&build->archive);
	cell__buf_finish(&build->lines);
	cell__buf_finish(&build->last);
	free(build->context);
	free(build->path);
	free(build);
}

static void end(struct cell__image_build *build, const struct cell_error *err)
{
	void (*done)(void *, const struct cell_error *) = build->done;
	struct cell_error copy = { 0 };
	void *arg = build->arg;

	if (err)
		copy = *err;
	build_free(build);
	done(arg, err ? &copy : NULL);
}

/* One object of the stream; other lines are skipped. */
static void take_line(struct cell__image_build *build, const char *text, size_t size)
{
	json_t *root = json_loadb(text, size, 0, NULL);
	const char *words = json_string_value(json_object_get(root, "stream")), *error = json_string_value(json_object_get(root, "error"));

	if (!words)
		words = json_string_value(json_object_get(root, "status"));
	if (error && !build->err.code)
		cell_fail(&build->err, CELL_E_INSTALL, 0, "the image could not be built: %.*s", (int)strcspn(error, "\r\n"), error);
	for (; words && *words; words += strcspn(words, "\r\n"), words += strspn(words, "\r\n")) {
		build->last.size = 0;
		if (strcspn(words, "\r\n") && !cell__buf_add_utf8(&build->last, words, strcspn(words, "\r\n")))
			build->line(build->arg, build->last.data);
	}
	json_decref(root);
}

static bool take_piece(void *arg, const char *bytes, size_t size)
{
	struct cell__image_build *build = arg;
	const char *end;

	if (cell__buf_add(&build->lines, bytes, size) < 0)
		return false;
	while (build->lines.size && (end = memchr(build->lines.data, '\n', build->lines.size))) {
		take_line(build, build->lines.data, (size_t)(end - build->lines.data));
		cell__buf_shift(&build->lines, (size_t)(end - build->lines.data) + 1);
	}
	return build->lines.size <= MAX_LINE_BYTES;
}

static void handle_built(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__image_build *build = arg;

	(void)answer;
	if (!status || status >= 400)
		end(build, err);
	else
		end(build, build->err.code ? &build->err : NULL);
}

static void handle_packed(uv_work_t *work, int status)
{
	struct cell__image_build *build = work->data;
	struct cell__docker_call call = { .method = "POST",
					  .path = build->path,
					  .type = "application/x-tar",
					  .timeout_ms = -1,
					  .piece = take_piece,
					  .done = handle_built,
					  .arg = build };

	(void)status; /* never cancelled */
	build->packing = false;
	if (build->cancelled) {
		build_free(build);
		return;
	}
	if (!build->err.code) {
		call.size = build->archive.size;
		call.body = cell__buf_take(&build->archive);
		if (call.body)
			build->request = cell__docker_start(build->docker, &call);
		if (!build->request)
			cell_fail(&build->err, CELL_E_NOMEM, 0, "out of memory to build an image");
	}
	if (build->err.code)
		end(build, &build->err);
}

/* Names were checked before: only escaped characters are special in a URL. */
static int set_path(struct cell__image_build *build, const json_t *config)
{
	const char *base = json_string_value(json_object_get(config, "base"));
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	int rc = cell__buf_printf(&path, "/build?dockerfile=" DOCKERFILE "&t=%s&rm=1&forcerm=1&version=1&networkmode=host",
				  json_string_value(json_object_get(config, "image")));

	if (base)
		rc |= cell__buf_printf(&path, "&buildargs=%%7B%%22BASE%%22%%3A%%22%s%%22%%7D", base);
	build->path = rc ? NULL : cell__buf_take(&path);
	return build->path ? 0 : -1;
}

struct cell__image_build *cell__image_build(struct cell__loop *loop, struct cell__docker *docker, const json_t *config,
					    void (*line)(void *arg, const char *line),
					    void (*done)(void *arg, const struct cell_error *err), void *arg)
{
	struct cell__image_build *build = cell__alloc(1, sizeof(*build));
	const char *context = json_string_value(json_object_get(config, "context"));

	if (!build)
		return NULL;
	*build = (struct cell__image_build){ .docker = docker, .line = line, .done = done, .arg = arg, .packing = true };
	build->work.data = build;
	build->context = cell__strdup(context ? context : "");
	if (!build->context || set_path(build, config) < 0 || uv_queue_work(cell__loop_uv(loop), &build->work, pack, handle_packed) < 0) {
		build_free(build);
		return NULL;
	}
	return build;
}

void cell__image_cancel(struct cell__image_build *build)
{
	if (build->packing) {
		build->cancelled = true;
		return;
	}
	cell__docker_cancel(build->request);
	build_free(build);
}
