#define _GNU_SOURCE 1
#include "picture.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/base64.h"
#include "base/file.h"
#include "cli.h"

#define DRAWN_BYTES (8u << 20) /* larger ones are saved */
#define KITTY_CHUNK 4096u      /* of base64, by the protocol */
#define NAME_TRIES 100

static bool is_env(const char *name, const char *value)
{
	const char *found = getenv(name);

	return found && !strcmp(found, value);
}

static bool has_env(const char *name)
{
	const char *found = getenv(name);

	return found && *found;
}

enum cell_cli_pictures cell__pictures_of_terminal(void)
{
	/* A multiplexer has the variables of the terminal around it, and does not hand pictures on. */
	if (has_env("TMUX") || has_env("STY"))
		return CELL_PICTURES_SAVED;
	if (has_env("KITTY_WINDOW_ID") || is_env("TERM", "xterm-kitty") || is_env("TERM", "xterm-ghostty") ||
	    is_env("TERM_PROGRAM", "ghostty"))
		return CELL_PICTURES_KITTY;
	if (is_env("TERM_PROGRAM", "iTerm.app") || is_env("TERM_PROGRAM", "WezTerm") || is_env("LC_TERMINAL", "iTerm2"))
		return CELL_PICTURES_ITERM;
	return CELL_PICTURES_SAVED;
}

const char *cell__picture_type(const void *bytes, size_t size)
{
	if (size >= 8 && !memcmp(bytes, "\x89PNG\r\n\x1a\n", 8))
		return "png";
	if (size >= 3 && !memcmp(bytes, "\xff\xd8\xff", 3))
		return "jpg";
	return NULL;
}

int cell__picture_draw(enum cell_cli_pictures how, const void *bytes, size_t size, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	const char *type = cell__picture_type(bytes, size);
	int rc = 0;

	if (how == CELL_PICTURES_SAVED || !type || size > DRAWN_BYTES || (how == CELL_PICTURES_KITTY && strcmp(type, "png") != 0))
		return 1;
	if (cell__buf_add_base64(&text, bytes, size) < 0)
		return -1;
	if (how == CELL_PICTURES_ITERM)
		return cell__buf_printf(out, "\033]1337;File=inline=1;size=%zu:%s\a\n", size, text.data);
	for (size_t at = 0; at < text.size && rc == 0; at += KITTY_CHUNK) {
		size_t chunk = text.size - at < KITTY_CHUNK ? text.size - at : KITTY_CHUNK;

		rc = cell__buf_printf(out, "\033_G%sm=%d;%.*s\033\\", at ? "" : "a=T,f=100,q=2,", at + chunk < text.size, (int)chunk,
				      text.data + at);
	}
	return rc < 0 ? -1 : cell__buf_add(out, "\n", 1);
}

int cell__picture_save(const void *bytes, size_t size, char **ret_path, struct cell_error *err)
{
	CELL_AUTO_FREE char *folder = cell__cli_state_path("images/");
	const char *type = cell__picture_type(bytes, size);
	time_t now = time(NULL);
	char stamp[32];
	struct tm tm;

	if (!folder || !type)
		return cell_fail(err, CELL_E_IO, 0, "%s",
				 type ? "set HOME to the folder that pictures are to be saved below" : "the data is neither PNG nor JPEG");
	localtime_r(&now, &tm);
	strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &tm);
	for (unsigned i = 1; i <= NAME_TRIES; i++) {
		CELL_AUTO_FREE char *path = NULL;
		CELL_AUTO_FD int fd = -1;

		if (asprintf(&path, "%s%s-%u.%s", folder, stamp, i, type) < 0) {
			path = NULL;
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		}
		fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0 && errno == EEXIST)
			continue;
		if (fd < 0 || cell__fd_write_all(fd, bytes, size) < 0)
			return cell_fail(err, CELL_E_IO, errno, "write %s", path);
		*ret_path = cell__take_ptr(path);
		return 0;
	}
	return cell_fail(err, CELL_E_IO, EEXIST, "write to %s", folder);
}
