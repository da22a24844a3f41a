/*
 * Programs that run for an untrusted caller: confined like the caller's code, or, if their definition says `host: true`, on the host, but
 * independent of all files that the code can write to.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hole.h"
#include "base/home.h"
#include "calls/principal.h"
#include "spawn/confinement.h"
#include "tools/internal.h"

int cell__tools_confine(struct cell__tools *tools, const struct cell__call *call, struct cell__confinement **ret_confinement,
			struct cell_error *err)
{
	if (cell__principal_is_trusted(call->principal)) {
		*ret_confinement = NULL;
		return 0;
	}
	if (!tools->opts.confine)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "programs cannot be confined on this machine");
	return tools->opts.confine(tools->opts.confine_arg, call, ret_confinement, err);
}

bool cell__program_is_codes(const struct cell__confinement *code, const char *path)
{
	return cell__confinement_can_write(code, path) || cell__confinement_can_redirect(code, path);
}

void cell__program_clean_path(const struct cell__confinement *code, char *path)
{
	assert(path);
	char *to = path, *next;
	for (char *from = path; from; from = next) {
		char *end = strchrnul(from, ':');
		next = *end ? end + 1 : NULL;
		*end = '\0';
		/* A relative one means the folder that the program is started in. */
		if (from[0] != '/' || (code && cell__program_is_codes(code, from)))
			continue;
		size_t size = (size_t)(end - from);
		if (to != path)
			*to++ = ':';
		memmove(to, from, size);
		to += size;
	}
	*to = '\0';
}

const char *cell__program_home(const struct cell__tools *tools, bool trusted)
{
	const char *home = trusted && tools->opts.getenv_fn ? tools->opts.getenv_fn(tools->opts.getenv_arg, "HOME") : NULL;
	return home && home[0] == '/' ? home : cell__home_dir();
}

int cell__program_check(const struct cell__confinement *code, const char *command, const char *path, const char *cwd, struct cell__buf *why)
{
	char file[PATH_MAX];
	bool bad = false;
	if (strchr(command, '/')) {
		int written = snprintf(file, sizeof file, "%s%s%s", command[0] == '/' ? "" : cwd, command[0] == '/' ? "" : "/", command);
		bad = written < 0 || (size_t)written >= sizeof file || cell__program_is_codes(code, file);
	} else {
		for (size_t n; !bad && *path; path += n, path += *path == ':') {
			n = strcspn(path, ":");
			int written = snprintf(file, sizeof file, "%.*s/%s", (int)n, path, command);
			if (written < 0 || (size_t)written >= sizeof file || access(file, X_OK) != 0)
				continue;
			bad = cell__program_is_codes(code, file);
			break;
		}
	}
	bad &= !is_hole("program-place");
	if (bad)
		cell__buf_printf(why,
				 "the code can write to the folder of its program '%s'; move the program out of the workspace, and "
				 "give its absolute path",
				 command);
	return bad ? -1 : 0;
}

static char *join(const char *folder, const char *name)
{
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/%s", folder, name) < 0)
		cell__buf_finish(&path);
	return path.data;
}

char *cell__program_cwd(const struct cell__confinement *code, bool host, const char *defined, const char *workspace, struct cell__buf *why)
{
	bool confined = code && !host;
	const char *base = confined ? cell__confinement_cwd(code) : workspace;
	if (defined && defined[0] == '/')
		return cell__strdup(defined);
	if (defined && strcmp(defined, "workspace") == 0)
		return cell__strdup(base);
	if (!code || confined)
		return defined ? join(base, defined) : cell__strdup(base);
	if (!defined)
		return cell__strdup(is_hole("host-cwd") ? workspace : "/");
	cell__buf_printf(why,
			 "its cwd '%s' is relative to a folder that the code controls; with host: true, cwd must be an "
			 "absolute path or the word workspace",
			 defined);
	return NULL;
}
