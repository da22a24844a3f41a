/* The service filesystem.Filesystem of E2B's daemon: Connect calls with JSON. */
#define _GNU_SOURCE
#include "server/e2b/e2b.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "files/files.h"

#define MAX_DEPTH 32

/* ---- entries ---- */

static void add_permissions(json_t *entry, bool is_folder, unsigned mode)
{
	char text[11] = "----------";

	text[0] = is_folder ? 'd' : '-';
	for (int i = 0; i < 9; i++) {
		if (mode & (0400u >> i))
			text[1 + i] = "rwx"[i % 3];
	}
	json_object_set_new(entry, "permissions", json_string(text));
}

/* Of a folder as its file system counts it; descriptions of files have 0 there. */
static json_int_t folder_bytes(int root_fd, const char *path)
{
	CELL_AUTO_FD int fd = cell__files_open(root_fd, path, O_PATH);
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? (json_int_t)st.st_size : 0;
}

json_t *cell__e2b_entry(int root_fd, enum cell__e2b_area area, const char *path, const json_t *item, size_t *room)
{
	const char *base = cell__e2b_area_name(area);
	json_t *marks = NULL;
	const char *type = json_string_value(json_object_get(item, "type")), *mode = json_string_value(json_object_get(item, "mode"));
	const char *slash = strrchr(path, '/'), *target = json_string_value(json_object_get(item, "target"));
	double mtime = json_real_value(json_object_get(item, "mtime"));
	bool is_folder = type && !strcmp(type, "folder");
	time_t at = (time_t)mtime;
	char size[24], when[48];
	struct tm tm;
	CELL_AUTO_BUF struct cell__buf full = CELL_BUF_INIT;
	json_t *entry;

	snprintf(size, sizeof(size), "%lld",
		 (long long)(is_folder ? folder_bytes(root_fd, path) : json_integer_value(json_object_get(item, "size"))));
	gmtime_r(&at, &tm);
	strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%S", &tm);
	snprintf(when + strlen(when), sizeof(when) - strlen(when), ".%03dZ", (int)((mtime - (double)at) * 1000) % 1000);
	if (cell__buf_printf(&full, "%s%s%s", base, *path ? "/" : "", path) < 0)
		return NULL;
	entry = json_pack("{s:s,s:s,s:s,s:s,s:i,s:s,s:s,s:s}", "name",
			  !*path  ? strrchr(base, '/') + 1
			  : slash ? slash + 1
				  : path,
			  "type", is_folder ? "FILE_TYPE_DIRECTORY" : "FILE_TYPE_FILE", "path", full.data, "size", size, "mode",
			  mode ? (int)strtol(mode, NULL, 8) : 0, "owner", "user", "group", "user", "modifiedTime", when);
	add_permissions(entry, is_folder, mode ? (unsigned)strtoul(mode, NULL, 8) : 0);
	if (!is_folder && !target)
		marks = cell__files_marks(root_fd, path, CELL_E2B_MARKS, room);
	if (marks)
		json_object_set_new(entry, "metadata", marks);
	if (target) {
		CELL_AUTO_BUF struct cell__buf whole = CELL_BUF_INIT;
		int folder = slash ? (int)(slash - path) : 0;

		/* As it is seen from anywhere; it is not followed. */
		if (*target != '/' && cell__buf_printf(&whole, "%s/%.*s%s%s", base, folder, path, folder ? "/" : "", target) == 0)
			target = whole.data;
		json_object_set_new(entry, "symlinkTarget", json_string(target));
		json_object_set_new(entry, "isSymlink", json_true());
	}
	return entry;
}

/* ---- methods, on the pool ---- */

static void stat_step(struct cell__e2b_work *work)
{
	json_t *item = cell__files_describe(work->root.fd, work->path, &work->err);
	size_t room = CELL_E2B_MARKS_BYTES;

	if (item)
		work->answer = json_pack("{s:o}", "entry", cell__e2b_entry(work->root.fd, work->area, work->path, item, &room));
	json_decref(item);
}

static void add_entries(struct cell__e2b_work *work, json_t *list, const char *path, json_int_t depth, size_t *room)
{
	json_t *item = cell__files_describe(work->root.fd, path, &work->err), *one;
	size_t i;

	if (item && !json_object_get(item, "entries"))
		cell_fail(&work->err, CELL_E_INVALID, 0, "the path is not a directory");
	json_array_foreach(json_object_get(item, "entries"), i, one) {
		CELL_AUTO_BUF struct cell__buf inner = CELL_BUF_INIT;
		const char *type = json_string_value(json_object_get(one, "type"));

		if (json_array_size(list) >= CELL_FILES_MAX_LISTED ||
		    cell__buf_printf(&inner, "%s%s%s", path, *path ? "/" : "", json_string_value(json_object_get(one, "name"))) < 0)
			break;
		json_array_append_new(list, cell__e2b_entry(work->root.fd, work->area, inner.data, one, room));
		if (depth > 1 && type && !strcmp(type, "folder")) {
			struct cell_error err = work->err;

			add_entries(work, list, inner.data, depth - 1, room);
			work->err = err; /* one that is gone, or closed to us, is only named */
		}
	}
	json_decref(item);
}

static void list_step(struct cell__e2b_work *work)
{
	json_t *list = json_array();
	size_t room = CELL_E2B_MARKS_BYTES;

	add_entries(work, list, work->path, work->depth, &room);
	work->answer = json_pack("{s:o}", "entries", list);
}

static void folder_step(struct cell__e2b_work *work)
{
	struct cell_error err;
	json_t *item = cell__files_describe(work->root.fd, work->path, &err);

	if (item && json_object_get(item, "entries"))
		cell_fail(&work->err, CELL_E_EXISTS, 0, "the directory exists");
	else if (item)
		cell_fail(&work->err, CELL_E_INVALID, 0, "the path exists and is not a directory");
	json_decref(item);
	if (!work->err.code && (!work->root.guarded || cell__files_guard(work->path, &work->err) == 0) &&
	    cell__files_make_folder(work->root.fd, work->path, &work->err) == 0)
		stat_step(work);
}

static void move_step(struct cell__e2b_work *work)
{
	if (work->root.guarded && (cell__files_guard(work->path, &work->err) < 0 || cell__files_guard(work->other, &work->err) < 0))
		return;
	if (cell__files_move(work->root.fd, work->path, work->other, &work->err) < 0)
		return;
	strcpy(work->path, work->other);
	stat_step(work);
}

static void remove_step(struct cell__e2b_work *work)
{
	if (work->root.guarded && cell__files_guard(work->path, &work->err) < 0)
		return;
	if (cell__files_remove(work->root.fd, work->path, true, &work->err) < 0 && work->err.code == CELL_E_NOT_FOUND)
		work->err.code = 0; /* as E2B's */
	work->answer = json_object();
}

static const struct method {
	const char *name;
	void (*step)(struct cell__e2b_work *work);
	const char *verb; /* NULL: it changes nothing */
} methods[] = {
	{ "Stat", stat_step, NULL },   { "ListDir", list_step, NULL },      { "MakeDir", folder_step, "make_folder" },
	{ "Move", move_step, "move" }, { "Remove", remove_step, "remove" },
};

static bool take_path(struct cell__request *request, const struct cell__e2b_sandbox *sandbox, const char *field,
		      struct cell__e2b_place *ret_place)
{
	const json_t *given = json_object_get(request->json, field);
	struct cell_error err;

	if (given && !json_is_string(given)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "%s must be a string", field);
		return false;
	}
	if (cell__e2b_path(sandbox, given ? json_string_value(given) : "", ret_place, &err) == 0)
		return true;
	cell__answer_error(request, &err);
	return false;
}

static const char *const watching[] = { "WatchDir", "CreateWatcher", "GetWatcherEvents", "RemoveWatcher" };
enum { WATCH_DIR, CREATE_WATCHER, WATCHER_EVENTS, REMOVE_WATCHER, WATCH_METHODS };

static void handle_watching(struct cell__request *request, int method)
{
	struct cell__e2b_sandbox *sandbox;
	struct cell__e2b_place place;

	if ((method == WATCH_DIR && !cell__e2b_unwrap(request)) || !cell__e2b_body(request) || !(sandbox = cell__e2b_enter(request)))
		return;
	if (!request->served->session)
		cell__answer_fail(request, MHD_HTTP_GONE, CELL_E_EXPIRED, "The sandbox was not found");
	else if (method == WATCHER_EVENTS)
		cell__e2b_watcher_events(request, sandbox);
	else if (method == REMOVE_WATCHER)
		cell__e2b_watcher_remove(request, sandbox);
	else if (take_path(request, sandbox, "path", &place))
		cell__e2b_watch(request, sandbox, &place, method == WATCH_DIR);
}

/* Both paths of a move are in one area, because a rename does not lead to another file system.  False: it was answered. */
static bool take_paths(struct cell__request *request, const struct cell__e2b_sandbox *sandbox, struct cell__e2b_work *work, bool moves)
{
	struct cell__e2b_place place;

	if (!take_path(request, sandbox, moves ? "source" : "path", &place))
		return false;
	work->area = place.area;
	strcpy(work->path, place.path);
	if (!moves)
		return true;
	if (!take_path(request, sandbox, "destination", &place))
		return false;
	strcpy(work->other, place.path);
	if (place.area == work->area)
		return true;
	cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID,
			  CELL_E2B_TMP " is another file system than " CELL_E2B_HOME ": move the file with a command");
	return false;
}

void cell__e2b_handle_filesystem(struct cell__request *request)
{
	const char *name = request->params[0];
	const struct method *method = methods, *end = methods + sizeof(methods) / sizeof(methods[0]);
	const struct cell__e2b_sandbox *sandbox;
	struct cell__e2b_work *work;

	for (int i = 0; i < WATCH_METHODS; i++) {
		if (!strcmp(watching[i], name)) {
			handle_watching(request, i);
			return;
		}
	}
	while (method < end && strcmp(method->name, name))
		method++;
	if (method == end) {
		cell__answer_fail(request, MHD_HTTP_NOT_IMPLEMENTED, CELL_E_UNSUPPORTED, "%.60s is not supported", name);
		return;
	}
	if (!cell__e2b_body(request) || !(sandbox = cell__e2b_enter(request)) || !(work = cell__e2b_work_create(request)))
		return;
	work->step = method->step;
	work->verb = method->verb;
	work->writes = method->verb != NULL;
	work->depth = json_integer_value(json_object_get(request->json, "depth"));
	work->depth = work->depth < 1 ? 1 : work->depth > MAX_DEPTH ? MAX_DEPTH : work->depth;
	if (take_paths(request, sandbox, work, method->step == move_step))
		cell__e2b_work_start(work);
	else
		cell__e2b_work_free(work);
}
