/*
 * Theory of operation
 *
 *     .cell-lock held ──▶ check <package>/ ──▶ write .cell-gen-<package>/ ──▶ exchange the two
 *                                                       │ failed                   │
 *                                                       ▼                          ▼
 *                                            it is removed, nothing     other files now in .cell-gen-<package>/
 *                                            else has changed           move over; generated ones are removed
 *
 * The name .cell-gen-<package> belongs to the holder of the lock.  One that exists when we begin was left by a process
 * that died: it is emptied in the same way.  Its __init__.py is written last and removed last, so a folder without it was being
 * written, and its files are ours whether or not they begin with the mark already.
 */
#define _GNU_SOURCE
#include "mcp/codegen/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/sized.h"
#include "storage/file.h"

#define DEFAULT_OUT "mcptools"
#define INIT_FILE "__init__.py"
#define MAX_NAME 160 /* a package's name with its prefix */

struct place {
	const struct cell__gen_package *package;
	int out_fd;
	char temp[MAX_NAME];
	char aside[MAX_NAME]; /* the old package, for a moment, if it cannot be exchanged */
};

/* ---- generated files ---- */

/* A file *.py. */
static bool is_module(int dir_fd, const char *name)
{
	struct stat st;
	size_t size = strlen(name);
	return size > 3 && strcmp(name + size - 3, ".py") == 0 && fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       S_ISREG(st.st_mode);
}

static bool is_ours(int dir_fd, const char *name)
{
	static const char mark[] = CELL_GEN_MARK;
	char head[sizeof mark - 1];
	struct stat st;
	if (!is_module(dir_fd, name))
		return false;
	CELL_AUTO_FD int fd = cell__path_open(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0);
	return fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && pread(fd, head, sizeof head, 0) == (ssize_t)sizeof head &&
	       memcmp(head, mark, sizeof head) == 0;
}

static bool is_dots(const char *name)
{
	return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static DIR *open_list(int dir_fd)
{
	int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd >= 0 ? fdopendir(fd) : NULL;
	if (!list)
		cell__close_fd(&fd);
	return list;
}

static bool is_empty(int dir_fd)
{
	DIR *list = open_list(dir_fd);
	bool empty = true;
	for (struct dirent *entry; list && empty && (entry = readdir(list));)
		empty = is_dots(entry->d_name);
	if (list)
		closedir(list);
	return list && empty;
}

/* Python's compiled copies: they may be of files that change now, and it makes new ones. */
static void remove_compiled(int dir_fd)
{
	CELL_AUTO_FD int fd = cell__path_open(dir_fd, "__pycache__", O_RDONLY | O_DIRECTORY, 0);
	DIR *list = fd >= 0 ? open_list(fd) : NULL;
	if (!list)
		return;
	for (struct dirent *entry; (entry = readdir(list));) {
		size_t size = strlen(entry->d_name);
		if (size > 4 && strcmp(entry->d_name + size - 4, ".pyc") == 0)
			unlinkat(fd, entry->d_name, 0);
	}
	closedir(list);
	unlinkat(dir_fd, "__pycache__", AT_REMOVEDIR); /* stays if it contains other files */
}

static int move(int from_fd, int to_fd, const char *name)
{
	int rc = renameat2(from_fd, name, to_fd, name, RENAME_NOREPLACE);
	if (rc == 0 || errno != EINVAL)
		return rc;
	/* A file system that cannot rename without replacing: we check ourselves. */
	if (faccessat(to_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
		errno = EEXIST;
		return -1;
	}
	return renameat(from_fd, name, to_fd, name);
}

/*
 * Removes the temporary folder: deletes generated files, moves the rest into the package's folder (`to_fd`; -1: there is none, and the rest
 * stays). 0, or -1 with errno.
 */
static int remove_temp(const struct place *place, int to_fd)
{
	CELL_AUTO_FD int fd = cell__path_open(place->out_fd, place->temp, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return errno == ENOENT ? 0 : -1;
	bool whole = is_ours(fd, INIT_FILE);
	remove_compiled(fd);
	DIR *list = open_list(fd);
	if (!list)
		return -1;
	int saved = 0;
	for (struct dirent *entry; (entry = readdir(list));) {
		const char *name = entry->d_name;
		int rc = 0;
		if (is_dots(name) || (whole && strcmp(name, INIT_FILE) == 0))
			continue;
		if (is_ours(fd, name) || (!whole && is_module(fd, name)))
			rc = unlinkat(fd, name, 0);
		else if (to_fd >= 0)
			rc = move(fd, to_fd, name);
		if (rc < 0)
			saved = errno;
	}
	closedir(list);
	if (saved == 0 && whole && unlinkat(fd, INIT_FILE, 0) < 0)
		saved = errno;
	if (saved == 0 && unlinkat(place->out_fd, place->temp, AT_REMOVEDIR) < 0)
		saved = errno;
	errno = saved;
	return saved ? -1 : 0;
}

/* ---- before ---- */

/* Whether we may replace the existing folder. */
static int check_old(const struct place *place, const char *out_dir, int old_fd, struct cell_error *err)
{
	const struct cell__gen_package *package = place->package;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	size_t size = strlen(package->head);
	if (is_empty(old_fd))
		return 0;
	if (!is_ours(old_fd, INIT_FILE) || cell__path_read(old_fd, INIT_FILE, CELL_GEN_LIMIT_MODULE_BYTES, &text, NULL) < 0)
		return cell_fail(err, CELL_E_EXISTS, 0, "%.80s/%s already exists and was not created by `workcell gen mcp`: move it away",
				 out_dir, package->name);
	if (text.size < size || memcmp(text.data, package->head, size) != 0)
		return cell_fail(err, CELL_E_EXISTS, 0, "%.80s/%s was created for another server: choose another name or folder", out_dir,
				 package->name);
	for (size_t i = 0; i < package->n_files; i++) {
		const char *name = package->files[i].name;
		if (faccessat(old_fd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0 && !is_ours(old_fd, name))
			return cell_fail(err, CELL_E_EXISTS, 0, "%.60s/%s/%.60s was not created by `workcell gen mcp`: move it away",
					 out_dir, package->name, name);
	}
	return 0;
}

static int write_file(int dir_fd, const struct cell__gen_file *file)
{
	CELL_AUTO_FD int fd = openat(dir_fd, file->name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (fd < 0)
		return -1;
	for (size_t at = 0; at < file->size;) {
		ssize_t n = write(fd, file->text + at, file->size - at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		at += (size_t)n;
	}
	return 0;
}

static int write_temp(const struct place *place, struct cell_error *err)
{
	if (mkdirat(place->out_fd, place->temp, 0777) < 0)
		return cell_fail(err, CELL_E_IO, errno, "make %s", place->temp);
	CELL_AUTO_FD int fd = cell__path_open(place->out_fd, place->temp, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "open %s", place->temp);
	for (size_t i = 0; i < place->package->n_files; i++)
		if (write_file(fd, &place->package->files[i]) < 0)
			return cell_fail(err, CELL_E_IO, errno, "write %.100s", place->package->files[i].name);
	return 0;
}

/* ---- the exchange ---- */

/* 0, or -1 with errno and everything as before. */
static int swap(const struct place *place, bool old)
{
	int fd = place->out_fd;
	const char *name = place->package->name, *temp = place->temp;
	if (renameat2(fd, temp, fd, name, old ? RENAME_EXCHANGE : RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -1;
	/* A file system without it: there is a moment in which the package is away. */
	if (old && renameat(fd, name, fd, place->aside) < 0)
		return -1;
	if (renameat(fd, temp, fd, name) < 0) {
		int saved = errno;
		if (old)
			(void)renameat(fd, place->aside, fd, name);
		errno = saved;
		return -1;
	}
	return old ? renameat(fd, place->aside, fd, temp) : 0;
}

/* A process may have died in that moment: the old package is restored, or emptied as after every exchange. */
static int recover(const struct place *place)
{
	int fd = place->out_fd;
	if (faccessat(fd, place->aside, F_OK, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -1;
	bool away = faccessat(fd, place->package->name, F_OK, AT_SYMLINK_NOFOLLOW) < 0;
	return renameat(fd, place->aside, fd, away ? place->package->name : place->temp);
}

static int replace(const struct place *place, const char *out_dir, struct cell_error *err)
{
	const char *name = place->package->name;
	if (recover(place) < 0)
		return cell_fail(err, CELL_E_IO, errno, "put %.80s/%s back", out_dir, name);
	CELL_AUTO_FD int old_fd = cell__path_open(place->out_fd, name, O_RDONLY | O_DIRECTORY, 0);
	bool old = old_fd >= 0;
	if (!old && errno != ENOENT)
		return cell_fail(err, errno == ENOTDIR || errno == ELOOP ? CELL_E_EXISTS : CELL_E_IO, errno, "%.80s/%s", out_dir, name);
	if (old && check_old(place, out_dir, old_fd, err) < 0)
		return -1;
	if (remove_temp(place, old_fd) < 0)
		return cell_fail(err, CELL_E_IO, errno, "remove %.80s/%s, which was left behind", out_dir, place->temp);
	if (write_temp(place, err) < 0) {
		(void)remove_temp(place, -1);
		return -1;
	}
	if (swap(place, old) < 0) {
		cell_fail(err, CELL_E_IO, errno, "put %.80s/%s in its place", out_dir, name);
		(void)remove_temp(place, -1);
		return -1;
	}
	CELL_AUTO_FD int new_fd = cell__path_open(place->out_fd, name, O_RDONLY | O_DIRECTORY, 0);
	if (old && (new_fd < 0 || remove_temp(place, new_fd) < 0))
		return cell_fail(err, CELL_E_IO, errno, "the package %s was replaced, but the old files are still in %.80s/%s", name,
				 out_dir, place->temp);
	return 0;
}

/*
 * The folder of the packages, made when missing. It is often in a workspace (mcptools/ of an MCP server's), where code may have put a link
 * in its place: links are not followed. -1 with errno.
 */
static int open_out(const char *out_dir)
{
	CELL_AUTO_FREE char *path = cell__strdup(out_dir);
	if (!path) {
		errno = ENOMEM;
		return -1;
	}
	for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
		path[n - 1] = '\0';
	char *slash = strrchr(path, '/');
	const char *name = slash ? slash + 1 : path, *parent = !slash ? "." : slash == path ? "/" : path;
	if (name[0] == '\0' || is_dots(name))
		return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (slash && slash != path)
		*slash = '\0';
	if (cell__mkdir_all(parent) < 0)
		return -1;
	CELL_AUTO_FD int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -1 : cell__dir_open(fd, name, true);
}

int cell__gen_write(const struct cell__gen_package *package, const char *out_dir, struct cell_error *err)
{
	CELL_AUTO_FD int out_fd = open_out(out_dir);
	if (out_fd < 0 && (errno == ELOOP || errno == EXDEV))
		return cell_fail(err, CELL_E_INVALID, 0, "%.120s is %s, which is not followed: give the actual folder", out_dir,
				 errno == ELOOP ? "a symbolic link" : "another mount");
	if (out_fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "open %.150s", out_dir);
	CELL_AUTO_FD int lock_fd = -1;
	if (cell__dir_lock(out_fd, true, &lock_fd, err) < 0)
		return cell_fail_wrap(err, "%.100s", out_dir);
	struct place place = { .package = package, .out_fd = out_fd };
	snprintf(place.temp, sizeof place.temp, ".cell-gen-%s", package->name);
	snprintf(place.aside, sizeof place.aside, ".cell-gen-%s-old", package->name);
	return replace(&place, out_dir, err);
}

/* ---- the public function ---- */

static char *report(const struct cell__gen_package *package, const char *out_dir)
{
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_add_utf8(&path, out_dir, strlen(out_dir)) < 0 || cell__buf_printf(&path, "/%s", package->name) < 0)
		return NULL;
	json_t *all = json_pack("{s:s, s:s, s:O, s:O}", "package", package->name, "path", path.data, "tools", package->tools, "problems",
				package->problems);
	char *text = all ? json_dumps(all, JSON_COMPACT) : NULL;
	json_decref(all);
	return text;
}

int cell_gen_mcp(const struct cell_gen_options *opts, char **ret_json, struct cell_error *err)
{
	if (cell__require(err, opts) < 0)
		return -1;
	struct cell_gen_options all = CELL_GEN_OPTIONS_INIT;
	if (cell__sized_read(&all, sizeof all, opts, "cell_gen_options", err) < 0)
		return -1;
	if (!all.server || !all.tools_json)
		return cell_fail(err, CELL_E_INVALID, 0, "cell_gen_mcp() needs a server's name and its list of tools");
	const char *out_dir = all.out_dir ? all.out_dir : DEFAULT_OUT;
	if (!*out_dir)
		return cell_fail(err, CELL_E_INVALID, 0, "the name of the folder is empty");
	json_t *tools = cell__gen_parse(all.tools_json, strlen(all.tools_json), err);
	if (!tools)
		return -1;
	struct cell__codegen_options how = { .server = all.server, .async_api = all.async_api != 0 };
	struct cell__gen_package package = { 0 };
	int rc = cell__gen_package(&how, tools, &package, err);
	json_decref(tools);
	if (rc < 0)
		return -1;
	rc = cell__gen_write(&package, out_dir, err);
	if (rc == 0 && ret_json) {
		*ret_json = report(&package, out_dir);
		if (!*ret_json)
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the report; the package was created");
	}
	cell__gen_package_finish(&package);
	return rc;
}
