/*
 * --env-file: NAME=value lines, `export` before them allowed, # comments, 'literal' and "with \n".
 *
 * They are for ${VAR} in tool definitions and for KERNEL_ENV_X, and never become the environment of this process: neither this process nor
 * its programs take a PATH, a proxy or a token from there. The environment overrides the file.
 */
#define _GNU_SOURCE 1
#include "cli.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"

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

/* Written before any thread is started, read by all after that; lives as long as the program. */
static char **entries; /* "NAME=value"; NULL-terminated */
static size_t n_entries;

static int keep(const char *name, const char *value)
{
	char **more = reallocarray(entries, n_entries + 2, sizeof(*more));

	if (!more)
		return -1;
	entries = more;
	if (asprintf(&entries[n_entries], "%s=%s", name, value) < 0) {
		entries[n_entries] = NULL;
		return -1;
	}
	entries[++n_entries] = NULL;
	return 0;
}

const char *cell__cli_getenv(const char *name)
{
	const char *value = getenv(name);
	size_t size = strlen(name);

	/* The last one counts, as it does in a shell. */
	for (size_t i = n_entries; !value && i--;) {
		if (!strncmp(entries[i], name, size) && entries[i][size] == '=')
			value = entries[i] + size + 1;
	}
	return value;
}

char *const *cell__cli_env_entries(void)
{
	static char *const none[] = { NULL };

	return entries ? entries : none;
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
		return cell_fail(err, CELL_E_INVALID, 0, "%s:%d: expected NAME=value", path, number);
	return keep(line, equals) < 0 ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for %s", path) : 0;
}

int cell__cli_load_env_file(const char *path, struct cell_error *err)
{
	static bool loaded;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	char *next, *line;
	int status = 0;

	if (!path || loaded)
		return 0;
	if (cell__file_load("--env-file", path, 0, MAX_BYTES, &text, err) < 0)
		return -1;
	next = text.data;
	for (int number = 1; !status && (line = strsep(&next, "\n")); number++)
		status = take_line(line, path, number, err);
	loaded = true;
	return status;
}
