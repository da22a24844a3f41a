#define _GNU_SOURCE
#include "session/images.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/file.h"

#define NAME_TRIES 16 /* names that turn out to be taken, one after the other */

/* ---- the folder ---- */

static char *absolute(const char *path, struct cell_error *err)
{
	char here[PATH_MAX];
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	if (path[0] != '/' && !getcwd(here, sizeof here)) {
		cell_fail(err, CELL_E_INVALID, errno, "the current working directory");
		return NULL;
	}
	if ((path[0] != '/' && cell__buf_printf(&out, "%s/", strcmp(here, "/") == 0 ? "" : here) < 0) ||
	    cell__buf_add_str(&out, path) < 0) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	while (out.size > 1 && out.data[out.size - 1] == '/')
		out.data[--out.size] = '\0';
	return cell__buf_take(&out);
}

/* The existing part of the path without symbolic links, followed by the rest unchanged. */
static char *resolve(const char *path, struct cell_error *err)
{
	CELL_AUTO_FREE char *part = cell__strdup(path);
	CELL_AUTO_FREE char *real = NULL;
	struct stat st;
	while (part && !(real = realpath(part, NULL))) {
		char *slash = strrchr(part, '/');
		if (errno != ENOENT) {
			cell_fail(err, CELL_E_INVALID, errno, "images_dir %.160s", path);
			return NULL;
		}
		*slash = '\0';
		if (slash == part) {
			real = cell__strdup("/");
			break;
		}
	}
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	if (!real || cell__buf_printf(&out, "%s%s", strcmp(real, "/") == 0 ? "" : real, path + strlen(part)) < 0) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		return NULL;
	}
	if (stat(real, &st) == 0 && !S_ISDIR(st.st_mode)) {
		cell_fail(err, CELL_E_INVALID, 0, "images_dir %.160s is not a folder", path);
		return NULL;
	}
	return cell__buf_take(&out);
}

int cell__image_folder_init(struct cell__image_folder *folder, const char *path, const char *session_id, struct cell_error *err)
{
	*folder = (struct cell__image_folder){ 0 };
	if (!path)
		return 0;
	if (path[0] == '\0' || !cell__utf8_ok(path, strlen(path)))
		return cell_fail(err, CELL_E_INVALID, 0, "images_dir is %s", path[0] ? "not UTF-8" : "empty");
	snprintf(folder->tag, sizeof folder->tag, "%s", session_id);
	folder->path = absolute(path, err);
	folder->real = folder->path ? resolve(folder->path, err) : NULL;
	if (folder->real)
		return 0;
	cell__image_folder_finish(folder);
	return -1;
}

int cell__image_folder_copy(const struct cell__image_folder *folder, const char *session_id, struct cell__image_folder *ret_copy,
			    struct cell_error *err)
{
	*ret_copy = (struct cell__image_folder){ 0 };
	if (!folder->path)
		return 0;
	snprintf(ret_copy->tag, sizeof ret_copy->tag, "%s", session_id);
	ret_copy->path = cell__strdup(folder->path);
	ret_copy->real = cell__strdup(folder->real);
	if (ret_copy->path && ret_copy->real)
		return 0;
	cell__image_folder_finish(ret_copy);
	return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a session");
}

void cell__image_folder_finish(struct cell__image_folder *folder)
{
	free(cell__take_ptr(folder->path));
	free(cell__take_ptr(folder->real));
}

void cell__image_name(struct cell__image_folder *folder, int64_t wall_ms, const char *type, char out[static CELL__IMAGE_NAME_BYTES])
{
	struct tm tm;
	if (wall_ms < folder->last_ms)
		wall_ms = folder->last_ms;
	folder->last_ms = wall_ms;
	time_t seconds = (time_t)(wall_ms / 1000);
	gmtime_r(&seconds, &tm);
	size_t size = strftime(out, CELL__IMAGE_NAME_BYTES, "%Y%m%dT%H%M%S", &tm);
	snprintf(out + size, CELL__IMAGE_NAME_BYTES - size, "%03dZ-%s-%04u.%s", (int)(wall_ms % 1000), folder->tag, ++folder->count, type);
}

const char *cell__image_type(const void *bytes, size_t size)
{
	if (size >= 8 && memcmp(bytes, "\x89PNG\r\n\x1a\n", 8) == 0)
		return "png";
	if (size >= 3 && memcmp(bytes, "\xff\xd8\xff", 3) == 0)
		return "jpg";
	if (size >= 6 && (memcmp(bytes, "GIF87a", 6) == 0 || memcmp(bytes, "GIF89a", 6) == 0))
		return "gif";
	if (size >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp((const char *)bytes + 8, "WEBP", 4) == 0)
		return "webp";
	return NULL;
}

/* ---- one file, on the pool ---- */

/* Opens a folder component by component, making missing ones; follows no symbolic link. -1 with errno. */
static int open_folder(const char *path)
{
	char part[NAME_MAX + 1];
	CELL_AUTO_FD int at = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	while (at >= 0) {
		path += strspn(path, "/");
		size_t size = strcspn(path, "/");
		if (size == 0)
			return cell__take_fd(&at);
		if (size > NAME_MAX) {
			errno = ENAMETOOLONG;
			return -1;
		}
		memcpy(part, path, size);
		part[size] = '\0';
		path += size;
		int next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0 && errno == ENOENT) {
			if (mkdirat(at, part, 0777) < 0 && errno != EEXIST)
				return -1;
			next = openat(at, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		}
		if (next < 0)
			return -1;
		cell__close_fd(&at);
		at = next;
	}
	return -1;
}

/* 0 or an errno.  Closes fd, which may be the first to tell that the disk is full. */
static int fill(int fd, const char *bytes, size_t size)
{
	int error = cell__fd_write_all(fd, bytes, size) < 0 ? errno : 0;
	return close(fd) < 0 && error == 0 && errno != EINTR ? errno : error;
}

/* Gives a file its name, unless that is taken.  0 or an errno. */
static int rename_new(int folder, const char *from, const char *to)
{
	if (renameat2(folder, from, folder, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return errno;
	/* A file system that does not know the flag. */
	if (linkat(folder, from, folder, to, 0) < 0)
		return errno;
	unlinkat(folder, from, 0);
	return 0;
}

int cell__image_write(const char *real, const char *name, const void *bytes, size_t size)
{
	char temp[CELL__IMAGE_NAME_BYTES + 8];
	CELL_AUTO_FD int folder = open_folder(real);
	if (folder < 0)
		return -1;
	snprintf(temp, sizeof temp, ".%s.tmp", name);
	int fd = openat(folder, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (fd < 0)
		return -1;
	int error = fill(fd, bytes, size);
	if (error == 0)
		error = rename_new(folder, temp, name);
	if (error == 0)
		return 0;
	unlinkat(folder, temp, 0);
	errno = error;
	return -1;
}

/* ---- one after the other ---- */

struct cell__image_job {
	size_t number;
	const void *bytes;
	size_t size;
	const char *type;
	char *path; /* the folder's, then the name; there is room for it from the beginning */
	size_t name_at;
	struct cell__image_job *next;
};

static void start_job(struct cell__image_queue *queue);

/* On the pool's thread: touches error and the first job, which the loop does not touch in the meantime. */
static void write_job(uv_work_t *work)
{
	struct cell__image_queue *queue = work->data;
	const struct cell__image_job *job = queue->first;
	int rc = cell__image_write(queue->folder->real, job->path + job->name_at, job->bytes, job->size);
	queue->error = rc < 0 ? errno : 0;
}

static void handle_written(uv_work_t *work, int status)
{
	(void)status; /* never cancelled */
	struct cell__image_queue *queue = work->data;
	struct cell__image_job *job = queue->first;
	if (queue->error == EEXIST && ++queue->tries < NAME_TRIES) {
		start_job(queue);
		return;
	}
	int error = queue->error;
	size_t number = job->number;
	CELL_AUTO_FREE char *path = cell__take_ptr(job->path);
	queue->tries = 0;
	queue->bytes -= job->size;
	queue->first = job->next;
	if (!queue->first)
		queue->last = NULL;
	free(job);
	if (queue->first)
		start_job(queue);
	queue->written(queue->arg, number, error == 0 ? cell__take_ptr(path) : NULL, error); /* the queue may be gone now */
}

static void start_job(struct cell__image_queue *queue)
{
	struct cell__image_job *job = queue->first;
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	cell__image_name(queue->folder, (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000, job->type, job->path + job->name_at);
	/* Fails only without a work function. */
	(void)uv_queue_work(cell__loop_uv(queue->loop), &queue->work, write_job, handle_written);
}

void cell__image_queue_init(struct cell__image_queue *queue, struct cell__loop *loop, struct cell__image_folder *folder,
			    void (*written)(void *arg, size_t number, char *path, int error), void *arg)
{
	*queue = (struct cell__image_queue){ .loop = loop, .folder = folder, .written = written, .arg = arg };
	queue->work.data = queue;
}

int cell__image_queue_add(struct cell__image_queue *queue, size_t number, const void *bytes, size_t size)
{
	const char *folder = strcmp(queue->folder->path, "/") == 0 ? "" : queue->folder->path;
	size_t name_at = strlen(folder) + 1;
	struct cell__image_job *job = cell__alloc(1, sizeof *job);
	char *path = cell__alloc(1, name_at + CELL__IMAGE_NAME_BYTES);
	if (!job || !path) {
		free(job);
		free(path);
		return -1;
	}
	sprintf(path, "%s/", folder);
	*job = (struct cell__image_job){
		.number = number, .bytes = bytes, .size = size, .type = cell__image_type(bytes, size), .path = path, .name_at = name_at
	};
	if (!job->type)
		job->type = "png";
	queue->bytes += size;
	if (queue->last)
		queue->last->next = job;
	else
		queue->first = job;
	queue->last = job;
	if (queue->first == job)
		start_job(queue);
	return 0;
}
