/*
 * Programs that run for an untrusted caller: confined like the caller's code, or, if their definition says `host: true`, on the host, but
 * independent of all files that the code can write to.
 *
 * Sessions of untrusted code have a confinement from the beginning. For an untrusted client of trusted code, and for a call outside of any
 * session, it is made with the first call, by the pool, because that looks up paths. Calls of the same session wait for the same one.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hole.h"
#include "base/home.h"
#include "base/list.h"
#include "calls/principal.h"
#include "spawn/confinement.h"
#include "tools/internal.h"

struct confining {
	uv_work_t work;
	struct cell__tools *tools;
	void *making;
	char *session_id; /* "": outside of any session */
	struct cell__confine_wait *waits;
	struct confining *prev, *next;
};

static void do_make(uv_work_t *work)
{
	struct confining *confining = work->data;
	confining->tools->opts.confine->make(confining->making);
}

static void handle_made(uv_work_t *work, int status)
{
	struct confining *confining = work->data;
	struct cell__tools *tools = confining->tools;
	struct cell__confinement *confinement = NULL;
	struct cell_error err = { 0 };
	(void)status; /* never cancelled */
	CELL__LIST_REMOVE(tools->confining, confining);
	(void)tools->opts.confine->end(confining->making, &confinement, &err);
	while (confining->waits) {
		struct cell__confine_wait *wait = confining->waits;
		confining->waits = wait->next;
		wait->ready(wait, cell__confinement_ref(confinement), &err);
	}
	cell__confinement_unref(confinement);
	free(confining->session_id);
	free(confining);
	cell__tools_left_pool(tools);
}

/* The one that is under way for this session, or a new one.  NULL: out of memory. */
static struct confining *confining_for(struct cell__tools *tools, const struct cell__call *call)
{
	const char *session_id = call->session_id ? call->session_id : "";
	struct confining *confining = tools->confining;
	while (confining && strcmp(confining->session_id, session_id) != 0)
		confining = confining->next;
	if (confining || !(confining = cell__alloc(1, sizeof *confining)))
		return confining;
	confining->session_id = cell__strdup(session_id);
	confining->making = confining->session_id ? tools->opts.confine->begin(tools->opts.confine_arg, call) : NULL;
	if (!confining->making) {
		free(confining->session_id);
		free(confining);
		return NULL;
	}
	confining->tools = tools;
	confining->work.data = confining;
	CELL__LIST_PUSH(tools->confining, confining);
	tools->on_pool++;
	uv_queue_work(cell__loop_uv(tools->opts.loop), &confining->work, do_make, handle_made);
	return confining;
}

int cell__tools_confine(struct cell__tools *tools, const struct cell__call *call, struct cell__confine_wait *wait,
			struct cell__confinement **ret_confinement, struct cell_error *err)
{
	struct cell__confinement *confinement = NULL;
	if (cell__principal_is_trusted(call->principal)) {
		*ret_confinement = NULL;
		return 0;
	}
	if (!tools->opts.confine)
		return cell_fail(err, CELL_E_UNAVAILABLE, 0, "programs cannot be confined on this machine");
	if (tools->opts.confine->find(tools->opts.confine_arg, call, &confinement, err) < 0)
		return -1;
	if (confinement) {
		*ret_confinement = confinement;
		return 0;
	}
	struct confining *confining = confining_for(tools, call);
	if (!confining)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	struct cell__confine_wait **last = &confining->waits;
	while (*last)
		last = &(*last)->next;
	wait->next = NULL;
	*last = wait;
	return 1;
}

void cell__tools_confine_cancel(struct cell__tools *tools, struct cell__confine_wait *wait)
{
	for (struct confining *confining = tools->confining; confining; confining = confining->next) {
		struct cell__confine_wait **at = &confining->waits;
		while (*at && *at != wait)
			at = &(*at)->next;
		if (*at)
			*at = wait->next;
	}
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
