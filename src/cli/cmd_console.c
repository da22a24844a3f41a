/*
 * `workcell console`: the link to the console, and the browser that opens it.
 *
 * The link contains a code that logs in once.  Other users can read the arguments of our processes, so the browser is given a file that only
 * this user can read, which leads to the link.  The code is in the link's fragment, which browsers send to nobody.
 */
#define _GNU_SOURCE 1
#include "serve.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPENER "xdg-open"

static bool has_desktop(void)
{
	return cell__serve_variable("DISPLAY") || cell__serve_variable("WAYLAND_DISPLAY");
}

/* free() it.  NULL: it cannot be made. */
static char *write_page(const char *link)
{
	const char *folder = cell__serve_variable("XDG_RUNTIME_DIR");
	char *path = NULL;
	int fd;

	if (asprintf(&path, "%s/workcell-console-XXXXXX.html", folder ? folder : "/tmp") < 0)
		return NULL;
	fd = mkostemps(path, 5, O_CLOEXEC); /* 0600 */
	if (fd < 0) {
		free(path);
		return NULL;
	}
	dprintf(fd, "<!DOCTYPE html><meta charset=\"utf-8\"><title>Workcell</title><meta http-equiv=\"refresh\" content=\"0;url=%s\">\n",
		link);
	close(fd);
	return path;
}

/* A shell starts it and ends at once: nobody waits for the browser. */
static void start_browser(const char *path)
{
	char *const argv[] = { (char *)"sh", (char *)"-c", (char *)"exec >/dev/null 2>&1 </dev/null; " OPENER " \"$1\" &",
			       (char *)"sh", (char *)path, NULL };
	posix_spawnattr_t attributes;
	pid_t pid;

	if (posix_spawnattr_init(&attributes))
		return;
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
	if (!posix_spawn(&pid, "/bin/sh", NULL, &attributes, argv, environ))
		waitpid(pid, NULL, 0);
	posix_spawnattr_destroy(&attributes);
}

static char *page; /* until the server ends */

void cell__console_hide(void)
{
	if (page)
		unlink(page);
	free(page);
	page = NULL;
}

void cell__console_show(const char *url, const char *code)
{
	char *link = NULL;

	if (strncmp(url, "http", 4)) {
		dprintf(STDERR_FILENO, "workcell: a browser cannot open %s: use --listen HOST:PORT\n", url);
		return;
	}
	if (asprintf(&link, "%s/console/#code=%s", url, code) < 0)
		return;
	printf("%s\n", link);
	fflush(stdout);
	page = has_desktop() ? write_page(link) : NULL;
	if (page)
		start_browser(page);
	free(link);
}
