/* Paths, files and interpreters as people name them.  The benchmark has this file too. */
#define _GNU_SOURCE 1
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

char *cell__cli_absolute(const char *path, struct cell_error *err)
{
	char *cwd = NULL, *joined = NULL;

	if (path[0] == '/') {
		joined = strdup(path);
	} else {
		cwd = getcwd(NULL, 0);
		if (!cwd) {
			cell_fail(err, CELL_E_IO, errno, "cannot tell the current directory");
			return NULL;
		}
		if (asprintf(&joined, "%s/%s", strcmp(cwd, "/") ? cwd : "", path) < 0)
			joined = NULL;
	}
	free(cwd);
	if (!joined)
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
	return joined;
}

int cell__cli_find_python(const char *name, char **ret_path, struct cell_error *err)
{
	const char *path = getenv("PATH"), *next;
	char *found;

	if (!name)
		name = "python3";
	if (strchr(name, '/')) {
		found = cell__cli_absolute(name, err);
		if (!found)
			return -1;
		*ret_path = found;
		return 0;
	}
	for (; path && *name; path = *next ? next + 1 : NULL) {
		struct stat st;
		char *candidate;

		next = strchrnul(path, ':');
		if (asprintf(&candidate, "%.*s%s%s", (int)(next - path), path, next > path ? "/" : "", name) < 0)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a path");
		if (!stat(candidate, &st) && S_ISREG(st.st_mode) && !access(candidate, X_OK)) {
			found = cell__cli_absolute(candidate, err);
			free(candidate);
			if (!found)
				return -1;
			*ret_path = found;
			return 0;
		}
		free(candidate);
	}
	return cell_fail(err, CELL_E_PYTHON, 0, "there is no '%s' on $PATH; install Python 3.9 or newer, or give --python PATH", name);
}

int cell__cli_choose_python(const char *name, const char *version, char **ret_path, struct cell_error *err)
{
	const char *path = getenv("PATH");

	if (!version)
		return cell__cli_find_python(name, ret_path, err);
	if (name)
		return cell_fail(err, CELL_E_INVALID, 0, "--python and --python-version both name the interpreter; give one");
	return cell_find_python(version, path ? path : "", ret_path, err);
}

int cell__cli_check_dir(const char *flag, const char *path, struct cell_error *err)
{
	struct stat st;

	if (stat(path, &st))
		return cell_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno, "%s %s", flag, path);
	if (!S_ISDIR(st.st_mode))
		return cell_fail(err, CELL_E_IO, ENOTDIR, "%s %s", flag, path);
	return 0;
}

int cell__cli_read_file(const char *path, char **ret_text, size_t *ret_size, struct cell_error *err)
{
	bool is_stdin = !strcmp(path, "-");
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	int status = is_stdin ? cell__fd_read_all(STDIN_FILENO, CELL_CLI_MAX_CODE_BYTES, &text)
			      : cell__file_read(AT_FDCWD, path, CELL_FILE_ANY, CELL_CLI_MAX_CODE_BYTES, &text, NULL);

	if (status < 0) {
		int saved = errno;

		/* The person named it: that it cannot be read is not a failure of ours. */
		status = cell__file_fail(err, NULL, is_stdin ? "stdin" : path, CELL_CLI_MAX_CODE_BYTES, saved);
		if (saved == EACCES || saved == EPERM)
			err->code = CELL_E_FORBIDDEN;
		else if (saved == EISDIR || saved == EINVAL)
			err->code = CELL_E_INVALID;
		return status;
	}
	*ret_size = text.size;
	*ret_text = cell__buf_take(&text);
	return 0;
}

char *cell__cli_models_dir(const char *name)
{
	const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	char *path = NULL;
	int n = -1;

	if (data && *data == '/')
		n = asprintf(&path, "%s/workcell/models%s%s", data, name ? "/" : "", name ? name : "");
	else if (home && *home == '/')
		n = asprintf(&path, "%s/.local/share/workcell/models%s%s", home, name ? "/" : "", name ? name : "");
	return n < 0 ? NULL : path;
}

char *cell__cli_state_path(const char *name)
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char *path = NULL;
	int n = -1;

	if (state && *state == '/')
		n = asprintf(&path, "%s/workcell/%s", state, name);
	else if (home && *home == '/')
		n = asprintf(&path, "%s/.local/state/workcell/%s", home, name);
	if (n < 0)
		return NULL;
	for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		n = mkdir(path, 0700);
		*slash = '/';
		if (n < 0 && errno != EEXIST) {
			free(path);
			return NULL;
		}
	}
	return path;
}

int cell__cli_make_folders(char *path, mode_t mode, struct cell_error *err)
{
	for (char *at = path + 1;; at++) {
		char end = *at;

		if (end && end != '/')
			continue;
		*at = '\0';
		if (mkdir(path, mode) < 0 && errno != EEXIST)
			return cell_fail(err, CELL_E_IO, errno, "cannot make %s", path);
		*at = end;
		if (!end)
			return 0;
	}
}
