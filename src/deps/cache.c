/*
 * The environments in the user's cache: which there are, whose they are, how large, when last changed; and their removal.
 *
 *     venvs/<key>      sandbox/<key>      wheels/<key>
 *
 * Sandboxed installers filled the second kind: nothing in them is believed, no link is followed, and only the notes beside them are read.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "deps/venv.h"
#include "workcell.h"

#define MAX_PROJECT 4096u
#define NAME_SIZE 64

static const char *const kinds[] = { "venvs", "sandbox", "wheels" };

/* ---- sizes ---- */

static __thread uint64_t counted;

static int count(const char *path, const struct stat *st, int what, struct FTW *at)
{
	(void)path;
	(void)what;
	(void)at;
	counted += (uint64_t)st->st_blocks * 512;
	return 0;
}

static uint64_t size_of(const char *path)
{
	counted = 0;
	(void)nftw(path, count, 16, FTW_PHYS | FTW_MOUNT); /* what cannot be read is not counted */
	return counted;
}

/* ---- listing ---- */

/* The project's storage as it was noted; NULL: an environment of an older version, or not valid UTF-8. */
static json_t *project_of(const char *notes)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, text = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/" CELL__VENV_PROJECT, notes) < 0 ||
	    cell__file_read(AT_FDCWD, path.data, CELL_FILE_NO_LINK, MAX_PROJECT, &text, NULL) < 0)
		return NULL;
	return json_stringn(text.data, text.size);
}

/* 1: the project's folder is gone. A storage that is not a folder cannot be asked from here. */
static bool is_orphan(const json_t *project)
{
	const char *path = json_string_value(project);
	return path && path[0] == '/' && access(path, F_OK) < 0 && errno == ENOENT;
}

static int add_entry(json_t *list, const char *cache, const char *kind, const char *name)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, notes = CELL_BUF_INIT, id = CELL_BUF_INIT;
	bool sandbox = strcmp(kind, "sandbox") == 0;
	struct stat st;
	if (cell__buf_printf(&path, "%s/%s/%s", cache, kind, name) < 0 || cell__buf_printf(&id, "%s/%s", kind, name) < 0 ||
	    cell__buf_printf(&notes, "%s%s", path.data, sandbox ? "/notes" : "") < 0)
		return -1;
	if (lstat(path.data, &st) < 0 || !S_ISDIR(st.st_mode))
		return 0;
	time_t changed = st.st_mtime;
	if (lstat(notes.data, &st) == 0 && st.st_mtime > changed)
		changed = st.st_mtime;
	json_t *project = project_of(notes.data), *packages = NULL;
	if (strcmp(kind, "wheels") != 0 && cell__venv_configured(notes.data, &packages) < 0)
		packages = NULL;
	json_t *entry = json_pack("{s:s, s:s, s:o*, s:b, s:o*, s:I, s:I}", "id", id.data, "kind", kind, "project", project, "orphan",
				  is_orphan(project), "packages", packages, "bytes", (json_int_t)size_of(path.data), "changed",
				  (json_int_t)changed);
	return json_array_append_new(list, entry);
}

int cell_cache_list(const char *cache_dir, char **ret_json, struct cell_error *err)
{
	if (cell__require(err, cache_dir, ret_json) < 0)
		return -1;
	json_t *list = json_array();
	int rc = list ? 0 : -1;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds && rc == 0; i++) {
		CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
		if ((rc = cell__buf_printf(&path, "%s/%s", cache_dir, kinds[i])) < 0)
			break;
		DIR *stream = opendir(path.data);
		if (!stream)
			continue; /* nothing of this kind was ever made */
		struct dirent *entry;
		while (rc == 0 && (entry = readdir(stream)))
			if (entry->d_name[0] != '.' && strlen(entry->d_name) < NAME_SIZE)
				rc = add_entry(list, cache_dir, kinds[i], entry->d_name);
		closedir(stream);
	}
	*ret_json = rc == 0 ? json_dumps(list, JSON_COMPACT) : NULL;
	json_decref(list);
	return *ret_json ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the list of environments");
}

/* ---- removal ---- */

/* "kind/name", and no other path. */
static const char *kind_of(const char *id)
{
	const char *slash = strchr(id, '/');
	for (size_t i = 0; slash && i < sizeof kinds / sizeof *kinds; i++)
		if (strlen(kinds[i]) == (size_t)(slash - id) && strncmp(id, kinds[i], (size_t)(slash - id)) == 0 && slash[1] &&
		    slash[1] != '.' && !strchr(slash + 1, '/') && strlen(slash + 1) < NAME_SIZE)
			return kinds[i];
	return NULL;
}

int cell_cache_remove(const char *cache_dir, const char *id, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT, lock = CELL_BUF_INIT;
	CELL_AUTO_FD int held = -1;
	if (cell__require(err, cache_dir, id) < 0)
		return -1;
	const char *kind = kind_of(id);
	if (!kind)
		return cell_fail(err, CELL_E_INVALID, 0, "'%.80s' is not an id of cell_cache_list()", id);
	const char *name = id + strlen(kind) + 1;
	bool locks = strcmp(kind, "wheels") != 0;
	int rc = cell__buf_printf(&path, "%s/%s", cache_dir, id);
	if (strcmp(kind, "sandbox") == 0)
		rc |= cell__buf_printf(&lock, "%s/" CELL__VENV_LOCK, path.data);
	else
		rc |= cell__buf_printf(&lock, "%s/%s/.%s.lock", cache_dir, kind, name);
	if (rc < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	if (access(path.data, F_OK) < 0)
		return cell_fail(err, CELL_E_NOT_FOUND, errno, "%.200s", path.data);
	if (locks && (rc = cell__venv_lock(lock.data, &held, err)) != 0)
		return rc < 0 ? -1 : cell_fail(err, CELL_E_BUSY, 0, "an installer is working in %.200s", path.data);
	if (cell__venv_remove_tree(path.data) < 0)
		return cell_fail(err, CELL_E_IO, errno, "remove %.200s", path.data);
	if (strcmp(kind, "venvs") == 0)
		unlink(lock.data);
	return 0;
}
