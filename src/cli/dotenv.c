/*
 * A .env file into the environment: NAME=value lines, `export` before them allowed, # comments, 'as it is' and "with \n".
 * What the environment has already is not touched.  Before any thread is started, since setenv() wants that.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_BYTES (1024u * 1024u)

static bool is_name(const char *name)
{
	if (!isalpha((unsigned char)*name) && *name != '_')
		return false;
	while (isalnum((unsigned char)*name) || *name == '_')
		name++;
	return !*name;
}

/* In place.  False: a quote is not closed, or something follows it. */
static bool unquote(char *value)
{
	char quote = *value, *from = value + 1, *to = value, *end;

	if (quote != '\'' && quote != '"') {
		end = strstr(value, " #");
		if (end)
			*end = '\0';
		for (end = value + strlen(value); end > value && isspace((unsigned char)end[-1]); end--)
			;
		*end = '\0';
		return true;
	}
	for (; *from && *from != quote; from++) {
		if (quote == '"' && *from == '\\' && from[1]) {
			from++;
			*to++ = *from == 'n' ? '\n' : *from == 't' ? '\t' : *from;
		} else {
			*to++ = *from;
		}
	}
	if (!*from)
		return false;
	for (from++; isspace((unsigned char)*from); from++)
		;
	*to = '\0';
	return !*from || *from == '#';
}

static int take_line(char *line, const char *path, int number, struct cell_error *err)
{
	char *equals, *end;

	while (isspace((unsigned char)*line))
		line++;
	if (!*line || *line == '#')
		return 0;
	if (!strncmp(line, "export ", 7))
		line += 7;
	while (isspace((unsigned char)*line))
		line++;
	equals = strchr(line, '=');
	if (equals) {
		*equals = '\0';
		for (end = equals; end > line && isspace((unsigned char)end[-1]); end--)
			;
		*end = '\0';
		for (equals++; *equals == ' ' || *equals == '\t'; equals++)
			;
	}
	/* The value may be a secret and is not repeated. */
	if (!equals || !is_name(line) || !unquote(equals))
		return cell__cli_fail(err, CELL_E_INVALID, 0, "%s:%d: this is no NAME=value", path, number);
	if (setenv(line, equals, 0) < 0)
		return cell__cli_fail(err, CELL_E_NOMEM, errno, "%s:%d", path, number);
	return 0;
}

int cell__cli_load_dotenv(const char *path, struct cell_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), status = 0;
	char *text, *next, *line;
	ssize_t size;

	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? 0 : cell__cli_fail(err, CELL_E_IO, errno, "cannot open %s", path);
	text = malloc(MAX_BYTES + 1);
	size = text ? read(fd, text, MAX_BYTES + 1) : -1;
	close(fd);
	if (size < 0 || size > (ssize_t)MAX_BYTES) {
		free(text);
		return cell__cli_fail(err, size < 0 ? CELL_E_IO : CELL_E_LIMIT, size < 0 ? errno : 0, "cannot read %s", path);
	}
	text[size] = '\0';
	next = text;
	for (int number = 1; !status && (line = strsep(&next, "\n")); number++)
		status = take_line(line, path, number, err);
	free(text);
	return status;
}
