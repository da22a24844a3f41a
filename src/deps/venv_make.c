/*
 * A venv for untrusted principals, made by the host itself: two folders, some links and pyvenv.cfg, as `python -m venv` and `uv venv` make
 * them. No program is run for it, and no other process has written to it when it is moved into place.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "deps/venv.h"

/* "cpython-3.11.2": where the number is, and the size of "3.11". */
static const char *series_of(const char *version, size_t *ret_size)
{
	const char *number = strchr(version, '-') + 1;
	*ret_size = (size_t)(strrchr(number, '.') - number);
	return number;
}

bool cell__venv_can_make(const char *version, const char *base)
{
	/* Settings are lines. */
	return strncmp(version, "cpython-", 8) == 0 && base && base[0] == '/' && !strpbrk(base, "\r\n");
}

static int make_folders(int fd, const char *series, size_t size)
{
	CELL_AUTO_BUF struct cell__buf lib = CELL_BUF_INIT, site = CELL_BUF_INIT;
	if (cell__buf_printf(&lib, "lib/python%.*s", (int)size, series) < 0 || cell__buf_printf(&site, "%s/site-packages", lib.data) < 0) {
		errno = ENOMEM;
		return -1;
	}
	const char *const folders[] = { "bin", "lib", lib.data, site.data };
	for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
		if (mkdirat(fd, folders[i], 0755) < 0)
			return -1;
	return symlinkat("lib", fd, "lib64");
}

static int make_links(int fd, const char *base, const char *series, size_t size)
{
	CELL_AUTO_BUF struct cell__buf third = CELL_BUF_INIT;
	if (cell__buf_printf(&third, "bin/python%.*s", (int)size, series) < 0) {
		errno = ENOMEM;
		return -1;
	}
	return symlinkat(base, fd, "bin/python") < 0 || symlinkat("python", fd, "bin/python3") < 0 ||
			       symlinkat("python", fd, third.data) < 0
		       ? -1
		       : 0;
}

int cell__venv_make(const char *made, const char *version, const char *base, const char *prompt)
{
	CELL_AUTO_BUF struct cell__buf settings = CELL_BUF_INIT;
	size_t size;
	const char *series = series_of(version, &size), *name = strrchr(base, '/');
	if (cell__buf_printf(
		    &settings,
		    "home = %.*s\nimplementation = CPython\nversion_info = %s\ninclude-system-site-packages = false\nprompt = %s\n",
		    name > base ? (int)(name - base) : 1, base, series, prompt) < 0) {
		errno = ENOMEM;
		return -1;
	}
	if (mkdir(made, 0755) < 0)
		return -1;
	CELL_AUTO_FD int fd = open(made, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || make_folders(fd, series, size) < 0 || make_links(fd, base, series, size) < 0)
		return -1;
	CELL_AUTO_FD int file = openat(fd, "pyvenv.cfg", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	ssize_t n = file < 0 ? -1 : write(file, settings.data, settings.size);
	if (n >= 0 && (size_t)n < settings.size)
		errno = ENOSPC;
	return n == (ssize_t)settings.size ? 0 : -1;
}
