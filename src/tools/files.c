/*
 * A directory of definitions, read again when it has changed.
 *
 * Changes are detected by stat: the directory's time for added and removed files, a file's time, size and inode for its contents. Times
 * have the resolution of the kernel's clock tick, so a file that changed just before it was read may change again with the same time; it is
 * marked racy and read again next time.
 *
 * The registry watches its directories if it can (loop/watch.h), and checks the files only after an event.  All of this may block, so the
 * pool works on a copy of a directory that has no tools in it: these belong to the loop's thread (refresh.c).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "tools/internal.h"

#define RACY_MS 100

static void finish_file(struct cell__tool_file *file)
{
	free(file->path);
	cell__tool_unref(file->tool);
	cell__problems_finish(&file->problems);
}

static void drop_files(struct cell__tool_dir *dir)
{
	for (size_t i = 0; i < dir->n_files; i++)
		finish_file(&dir->files[i]);
	free(dir->files);
	dir->files = NULL;
	dir->n_files = 0;
}

void cell__tool_dir_finish(struct cell__tool_dir *dir)
{
	drop_files(dir);
	cell__problems_finish(&dir->problems);
	free(dir->path);
}

static bool is_racy(const struct stat *st)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	int64_t age_ms = (int64_t)(now.tv_sec - st->st_mtim.tv_sec) * 1000 + (now.tv_nsec - st->st_mtim.tv_nsec) / 1000000;
	return age_ms < RACY_MS;
}

/* ---- one file ---- */

static void read_file(struct cell__tool_file *file)
{
	cell__tool_unref(file->tool);
	file->tool = NULL;
	file->kept = false;
	cell__problems_finish(&file->problems);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	/* O_NONBLOCK: neither a pipe nor a device may stop us. */
	CELL_AUTO_FD int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int rc = fd < 0 || fstat(fd, &file->seen) < 0 ? -1 : cell__file_read_fd(fd, CELL_TOOL_LIMIT_FILE_BYTES, &text, NULL);
	int sys = errno;
	file->racy = rc == 0 && is_racy(&file->seen);
	if (rc < 0 && sys == EFBIG)
		cell__problem_add(&file->problems, file->path, 1, "larger than %u bytes", CELL_TOOL_LIMIT_FILE_BYTES);
	else if (rc < 0)
		cell__problem_add(&file->problems, file->path, 1, "cannot be read: %s",
				  sys == EINVAL ? "it is not a regular file" : strerrordesc_np(sys));
	else
		file->tool = cell__tool_load(file->path, text.data, text.size, &file->problems);
}

static bool refresh_file(struct cell__tool_file *file)
{
	struct stat st = { 0 };
	if (stat(file->path, &st) < 0 && file->seen.st_ino == 0)
		return false; /* could not be read, and still cannot */
	if (!file->racy && cell__file_same(&st, &file->seen))
		return false;
	file->seen = st;
	read_file(file);
	return true;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct cell__tool_file *)a)->path, ((const struct cell__tool_file *)b)->path);
}

/* Keeps the definitions that were read before. */
static void take_old(struct cell__tool_dir *dir, struct cell__tool_file *file)
{
	struct cell__tool_file *old = dir->n_files ? bsearch(file, dir->files, dir->n_files, sizeof *file, by_path) : NULL;
	if (!old)
		return;
	file->seen = old->seen;
	file->racy = old->racy;
	file->kept = old->kept;
	file->tool = cell__take_ptr(old->tool);
	file->problems = old->problems;
	old->problems = (struct cell__problems){ 0 };
}

/* ---- definitions in no file ---- */

static void load_text(struct cell__tool_file *file, const char *name, const json_t *text)
{
	if (!json_is_string(text)) {
		cell__problem_add(&file->problems, file->path, 1, "is not a JSON object, or is too large");
		return;
	}
	file->tool = cell__tool_load(file->path, json_string_value(text), json_string_length(text), &file->problems);
	if (file->tool && strcmp(file->tool->name, name) != 0) {
		cell__problem_add(&file->problems, file->path, 1, "calls itself '%.64s'", file->tool->name);
		cell__tool_unref(file->tool);
		file->tool = NULL;
	}
}

int cell__tool_dir_set(struct cell__tool_dir *dir, const char *where, json_t *texts, const json_t *old)
{
	size_t count = json_object_size(texts);
	struct cell__tool_dir next = { 0 };
	const char *name;
	json_t *text;
	if (count > CELL_TOOL_LIMIT_FILES)
		cell__problem_add(&next.problems, where, 1, "there are %zu tools, at most %u are allowed", count, CELL_TOOL_LIMIT_FILES);
	next.path = cell__strdup(where);
	next.files = cell__alloc(count + 1, sizeof *next.files);
	if (!next.path || !next.files) {
		cell__tool_dir_finish(&next);
		return -1;
	}
	json_object_foreach(texts, name, text) {
		struct cell__buf path = CELL_BUF_INIT;
		if (next.n_files == CELL_TOOL_LIMIT_FILES || cell__buf_printf(&path, "%s/%s", where, name) < 0)
			break;
		next.files[next.n_files++] = (struct cell__tool_file){ .path = path.data };
	}
	qsort(next.files, next.n_files, sizeof *next.files, by_path);
	for (size_t i = 0; i < next.n_files; i++) {
		struct cell__tool_file *file = &next.files[i];
		name = file->path + strlen(where) + 1;
		text = json_object_get(texts, name);
		if (old && json_equal(text, json_object_get(old, name)))
			take_old(dir, file);
		if (!file->tool && !file->problems.count)
			load_text(file, name, text);
	}
	cell__tool_dir_finish(dir);
	*dir = next;
	return 0;
}

/* ---- the directory ---- */

bool cell__tool_file_wanted(const char *name)
{
	const char *dot = strrchr(name, '.');
	return name[0] != '.' && dot && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

static int add_entry(struct cell__tool_dir *next, const char *dir_path, const char *name)
{
	struct cell__buf path = CELL_BUF_INIT;
	struct cell__tool_file *files = cell__realloc(next->files, (next->n_files + 1) * sizeof *files);
	if (files)
		next->files = files;
	if (!files || cell__buf_printf(&path, "%s/%s", dir_path, name) < 0) {
		cell__buf_finish(&path);
		return -1;
	}
	files[next->n_files++] = (struct cell__tool_file){ .path = path.data };
	return 0;
}

static void scan(struct cell__tool_dir *dir)
{
	dir->kept = false;
	cell__problems_finish(&dir->problems);
	DIR *stream = opendir(dir->path);
	if (!stream) {
		cell__problem_add(&dir->problems, dir->path, 1, "cannot be read: %s", strerrordesc_np(errno));
		drop_files(dir);
		return;
	}
	struct cell__tool_dir next = { 0 };
	struct dirent *entry;
	while ((entry = readdir(stream))) {
		if (!cell__tool_file_wanted(entry->d_name))
			continue;
		if (next.n_files >= CELL_TOOL_LIMIT_FILES) {
			cell__problem_add(&dir->problems, dir->path, 1, "more than %u YAML files", CELL_TOOL_LIMIT_FILES);
			break;
		}
		if (add_entry(&next, dir->path, entry->d_name) < 0) {
			cell__problem_add(&dir->problems, dir->path, 1, "out of memory");
			break;
		}
	}
	closedir(stream);
	if (next.n_files)
		qsort(next.files, next.n_files, sizeof *next.files, by_path);
	for (size_t i = 0; i < next.n_files; i++) {
		take_old(dir, &next.files[i]);
		refresh_file(&next.files[i]);
		if (!next.files[i].kept && !next.files[i].tool && next.files[i].problems.count == 0)
			read_file(&next.files[i]);
	}
	drop_files(dir);
	dir->files = next.files;
	dir->n_files = next.n_files;
}

bool cell__tool_dir_refresh(struct cell__tool_dir *dir, bool all, const char *only)
{
	struct stat st = { 0 };
	if (stat(dir->path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR)) {
		bool was = dir->there;
		dir->there = dir->kept = false;
		drop_files(dir);
		cell__problems_finish(&dir->problems);
		return was;
	}
	if (!dir->there || dir->racy || !cell__file_same(&st, &dir->seen)) {
		dir->there = true;
		dir->seen = st;
		dir->racy = is_racy(&st);
		scan(dir);
		return true;
	}
	bool changed = false;
	for (size_t i = 0; i < dir->n_files; i++)
		if (all || (only && strcmp(only, dir->files[i].path) == 0))
			changed |= refresh_file(&dir->files[i]);
	return changed;
}

bool cell__tool_dir_watchable(const struct cell__tool_dir *dir)
{
	/* A file with another hard link can change there, without an event here. */
	for (size_t i = 0; i < dir->n_files; i++) {
		struct stat st;
		if (lstat(dir->files[i].path, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
			return false;
	}
	/* An empty one may be replaced unnoticed while a process holds it open; and checking it costs nothing. */
	return dir->there && dir->n_files > 0;
}

/* ---- copies ---- */

int cell__tool_dir_copy(const struct cell__tool_dir *dir, struct cell__tool_dir *ret_copy)
{
	struct cell__tool_dir copy = { .path = cell__strdup(dir->path), .seen = dir->seen, .there = dir->there, .racy = dir->racy };
	copy.files = cell__alloc(dir->n_files + 1, sizeof *copy.files);
	bool ok = copy.path && copy.files;
	for (size_t i = 0; ok && i < dir->n_files; i++) {
		const struct cell__tool_file *file = &dir->files[i];
		copy.files[i] = (struct cell__tool_file){
			.path = cell__strdup(file->path), .seen = file->seen, .racy = file->racy, .kept = true
		};
		copy.n_files++;
		ok = copy.files[i].path != NULL;
	}
	if (!ok) {
		cell__tool_dir_finish(&copy);
		return -1;
	}
	copy.kept = true;
	*ret_copy = copy;
	return 0;
}

void cell__tool_dir_replace(struct cell__tool_dir *dir, struct cell__tool_dir *copy)
{
	for (size_t i = 0; i < copy->n_files; i++)
		if (copy->files[i].kept)
			take_old(dir, &copy->files[i]);
	if (copy->kept) {
		copy->problems = dir->problems;
		dir->problems = (struct cell__problems){ 0 };
		copy->kept = false;
	}
	cell__tool_dir_finish(dir);
	*dir = *copy;
	*copy = (struct cell__tool_dir){ 0 };
}
