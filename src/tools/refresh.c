/*
 * Reads directories again after they have changed.  Looking up and reading files may block, so the pool does it.
 *
 *     call ──watched, and nothing has changed──▶ handled at once
 *       └──▶ waits ──▶ reading, on copies of the directories (pool) ──▶ adopted, with the watch that it began (loop) ──▶ handled
 *
 * There is one reading at a time.  A call that comes while it is under way may have been made after a change that the reading did not see:
 * it is handled after that reading if the new watch has nothing to report, else it waits for the next reading.
 *
 * Calls of one session keep their order: as long as one of them waits, later ones wait behind it, also those that use no file.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>

#include "tools/internal.h"

#define REFRESHES_BETWEEN_WATCHES 256 /* after a failure, watching is not tried with every call */

struct cell__reading {
	uv_work_t work;
	struct cell__tools *tools; /* not for the pool */
	struct cell__tool_dir *dirs;
	size_t n_dirs;
	char *only; /* the one file that matters, besides added and removed ones; NULL: all */
	bool may_watch, changed;
	struct cell__watch watch;
};

static void destroy_reading(struct cell__reading *reading)
{
	for (size_t i = 0; i < reading->n_dirs; i++)
		cell__tool_dir_finish(&reading->dirs[i]);
	free(reading->dirs);
	free(reading->only);
	cell__watch_end(&reading->watch);
	free(reading);
}

/* ---- on the pool ---- */

/* Before the directories are read, so that no change is missed. */
static bool begin_watch(struct cell__reading *reading)
{
	if (!reading->may_watch || cell__watch_begin(&reading->watch) < 0)
		return false;
	for (size_t i = 0; i < reading->n_dirs; i++)
		if (cell__watch_path(&reading->watch, reading->dirs[i].path) < 0)
			return false;
	return true;
}

static bool refresh_dirs(struct cell__reading *reading, const char *only)
{
	bool changed = false;
	for (size_t i = 0; i < reading->n_dirs; i++)
		changed |= cell__tool_dir_refresh(&reading->dirs[i], !only, only);
	return changed;
}

static void do_read(uv_work_t *work)
{
	struct cell__reading *reading = work->data;
	bool watching = begin_watch(reading);
	reading->changed = refresh_dirs(reading, watching ? NULL : reading->only);
	/* The tool may now have another name, and its old name may be in any other file. */
	if (!watching && reading->only && reading->changed)
		refresh_dirs(reading, NULL);
	for (size_t i = 0; i < reading->n_dirs && watching; i++)
		watching = cell__tool_dir_watchable(&reading->dirs[i]);
	if (!watching)
		cell__watch_end(&reading->watch);
}

/* ---- on the loop ---- */

/* False: the directories must be read; until then the watch, whose events have been consumed, has nothing more to say. */
static bool is_quiet(struct cell__tools *tools)
{
	if (tools->n_dirs == 0 || cell__watch_quiet(&tools->watch, cell__tool_file_wanted))
		return true;
	cell__watch_end(&tools->watch);
	return false;
}

static void adopt(struct cell__tools *tools, struct cell__reading *reading)
{
	for (size_t i = 0; i < reading->n_dirs; i++)
		cell__tool_dir_replace(&tools->dirs[i], &reading->dirs[i]);
	cell__watch_end(&tools->watch);
	if (reading->n_dirs == tools->n_dirs) {
		tools->watch.fd = cell__take_fd(&reading->watch.fd);
		if (reading->may_watch && tools->watch.fd < 0)
			tools->watch_at = tools->refreshes + REFRESHES_BETWEEN_WATCHES;
	}
	if (reading->changed)
		cell__tools_reindex(tools);
}

static void handle_read(uv_work_t *work, int status);

/* -1: out of memory. */
static int start_reading(struct cell__tools *tools, const char *only)
{
	struct cell__reading *reading = cell__alloc(1, sizeof *reading);
	if (!reading)
		return -1;
	*reading = (struct cell__reading){ .tools = tools, .watch = CELL__WATCH_INIT };
	reading->work.data = reading;
	reading->may_watch = ++tools->refreshes >= tools->watch_at;
	reading->only = only ? cell__strdup(only) : NULL; /* without memory: all files */
	reading->dirs = cell__alloc(tools->n_dirs, sizeof *reading->dirs);
	while (reading->dirs && reading->n_dirs < tools->n_dirs &&
	       cell__tool_dir_copy(&tools->dirs[reading->n_dirs], &reading->dirs[reading->n_dirs]) == 0)
		reading->n_dirs++;
	if (reading->n_dirs < tools->n_dirs) {
		destroy_reading(reading);
		return -1;
	}
	for (struct cell__tools_wait *wait = tools->waits; wait; wait = wait->next)
		wait->served = true;
	tools->reading = reading;
	tools->on_pool++;
	uv_queue_work(cell__loop_uv(tools->opts.loop), &reading->work, do_read, handle_read);
	return 0;
}

/* Ends the waits that the last reading serves, and starts the next one for the others. */
static void serve(struct cell__tools *tools)
{
	struct cell__tools_wait *wait;
	tools->serving = true;
	while ((wait = tools->waits) && (wait->served || is_quiet(tools))) {
		tools->waits = wait->next;
		wait->ready(wait);
	}
	tools->serving = false;
	if (!tools->waits || start_reading(tools, NULL) == 0)
		return;
	while ((wait = tools->waits)) { /* without memory they are handled with the known tools */
		tools->waits = wait->next;
		wait->ready(wait);
	}
}

static void handle_read(uv_work_t *work, int status)
{
	struct cell__reading *reading = work->data;
	struct cell__tools *tools = reading->tools;
	(void)status; /* never cancelled */
	tools->reading = NULL;
	if (!tools->closing) {
		adopt(tools, reading);
		serve(tools);
	}
	destroy_reading(reading);
	cell__tools_left_pool(tools);
}

/* ---- waits ---- */

static bool add_wait(struct cell__tools *tools, struct cell__tools_wait *wait, const char *only)
{
	struct cell__tools_wait **last = &tools->waits;
	while (*last)
		last = &(*last)->next;
	wait->next = NULL;
	wait->served = false;
	*last = wait;
	if (tools->reading || tools->serving || start_reading(tools, only) == 0)
		return true;
	*last = NULL;
	return false;
}

bool cell__tools_wait(struct cell__tools *tools, struct cell__tools_wait *wait)
{
	wait->session_id = "";
	return !is_quiet(tools) && add_wait(tools, wait, NULL);
}

void cell__tools_wait_cancel(struct cell__tools *tools, struct cell__tools_wait *wait)
{
	struct cell__tools_wait **at = &tools->waits;
	while (*at && *at != wait)
		at = &(*at)->next;
	if (*at)
		*at = wait->next;
}

/* ---- calls ---- */

struct waiting {
	struct cell__parked base;
	struct cell__tools_wait wait;
};

static void destroy_waiting(struct waiting *waiting)
{
	cell__parked_finish(&waiting->base);
	free(waiting);
}

static void handle_cancel(struct cell__call *call)
{
	struct waiting *waiting = call->handler;
	cell__tools_wait_cancel(waiting->base.tools, &waiting->wait);
	destroy_waiting(waiting);
}

static struct waiting *of_wait(struct cell__tools_wait *wait)
{
	return (struct waiting *)((char *)wait - offsetof(struct waiting, wait));
}

static void handle_ready(struct cell__tools_wait *wait)
{
	struct waiting *waiting = of_wait(wait);
	struct cell__tools *tools = waiting->base.tools;
	struct cell__call *before = tools->fresh;
	tools->fresh = cell__parked_take(&waiting->base);
	cell__parked_handle(&waiting->base);
	tools->fresh = before;
	destroy_waiting(waiting);
}

static bool is_behind(const struct cell__tools *tools, const struct cell__call *call)
{
	for (const struct cell__tools_wait *wait = tools->waits; wait; wait = wait->next)
		if (*wait->session_id && call->session_id && strcmp(wait->session_id, call->session_id) == 0)
			return true;
	return false;
}

bool cell__tools_must_read(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call,
			   const struct cell__tool_entry *tool)
{
	if (tools->fresh == call || tools->settled == call)
		return false;
	if (!is_behind(tools, call) && ((tool && !tool->file) || is_quiet(tools)))
		return false;
	struct waiting *waiting = cell__alloc(1, sizeof *waiting);
	if (!waiting || cell__parked_init(&waiting->base, tools, view, call, handle_cancel, waiting) < 0) {
		free(waiting);
		return false; /* without memory it is handled with the known tools */
	}
	waiting->wait.ready = handle_ready;
	waiting->wait.session_id = call->session_id ? call->session_id : "";
	if (add_wait(tools, &waiting->wait, tool ? tool->file : NULL))
		return true;
	cell__parked_take(&waiting->base);
	destroy_waiting(waiting);
	return false;
}

void cell__tools_fail_waiting(struct cell__tools *tools)
{
	while (tools->waits) {
		struct waiting *waiting = of_wait(tools->waits);
		tools->waits = tools->waits->next;
		struct cell__call *call = cell__parked_take(&waiting->base);
		destroy_waiting(waiting);
		call->fail(call, CELL_E_CLOSED, "ToolCallError", "the session's tools are closed");
	}
}

void cell__tools_handle_read(struct cell__tools *tools, const struct cell__tools_view *view, struct cell__call *call)
{
	struct cell__call *before = tools->fresh;
	tools->fresh = call;
	cell__tools_handle(tools, view, call);
	tools->fresh = before;
}
