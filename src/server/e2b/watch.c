/*
 * Watching a folder of a sandbox: inotify on its folders, found beneath the workspace without following links.
 *
 *     WatchDir                            a stream of Connect messages: start, filesystem, keepalive
 *     CreateWatcher, GetWatcherEvents,    the same by polling: a watcher has an id, and its events are kept until they are fetched
 *     RemoveWatcher
 *
 *     opening ──▶ waiting ──inotify is readable──▶ working (on the pool: names events, watches new folders) ──▶ waiting
 *                    └────────── its sandbox, its client or its owner is gone ──▶ closing ──▶ freed
 *
 * Who asks for events gets all of what has happened by then, so that clients see their own changes: inotify is read first, and the pool's work
 * awaited.
 *
 * While a watcher opens or works the pool has its descriptors and its list of folders; at other times the loop's thread has them.  Where
 * events were lost (inotify's queue, or more than MAX_EVENTS that nobody fetched) the watcher has failed, and says so: a client that misses
 * a change silently would trust a wrong picture.
 */
#define _GNU_SOURCE
#include "server/e2b/e2b.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "files/files.h"
#include "server/slow_stream.h"
#include "wire/connect.h"

#define RAW_BYTES (64u * 1024u)
#define MAX_ROUNDS 4 /* as many events as may wait for who asks */
#define WATCHED (IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB | IN_ONLYDIR | IN_EXCL_UNLINK)

struct folder {
	int wd;
	char *path; /* below the folder that is watched; "": itself */
};

struct cell__e2b_watcher {
	struct cell_server *server;
	struct cell__e2b_sandbox *sandbox; /* NULL: it is over */
	struct cell__request *request;     /* while it opens */
	struct cell__request *asking;      /* for events, while it works; or NULL */
	int rounds;   /* so many pieces of new events may delay the answer yet */
	char id[CELL_E2B_WATCHER_ID + 1];
	enum cell__e2b_area area;
	char base[PATH_MAX];               /* the folder that is watched, in the area */
	bool recursive, entries, streams;
	int root_fd, fd;                   /* the area; inotify's */
	int64_t kernel_pid;                /* of /tmp: whose it is */
	struct folder *folders;
	size_t n_folders;
	char *raw;
	ssize_t raw_size;
	json_t *found;                     /* events, as clients get them: of the step on the pool */
	json_t *kept;        /* ... that nobody has got */
	struct cell_error err;             /* code != 0: it has failed */
	uv_work_t work;
	uv_poll_t poll;
	bool polls, works, closing;        /* the handle is open; it opens or works; it is freed as soon as it does not */
	/* a stream */
	struct cell__slow_stream out;
	bool told_start;
	struct cell__e2b_watcher *next, **at; /* of the sandbox */
};

/* ---- the end ---- */

static void unlist(struct cell__e2b_watcher *watcher)
{
	if (!watcher->at)
		return;
	*watcher->at = watcher->next;
	if (watcher->next)
		watcher->next->at = watcher->at;
	watcher->at = NULL;
	watcher->sandbox = NULL;
}

static void watcher_free(struct cell__e2b_watcher *watcher)
{
	for (size_t i = 0; i < watcher->n_folders; i++)
		free(watcher->folders[i].path);
	free(watcher->folders);
	free(watcher->raw);
	json_decref(watcher->found);
	json_decref(watcher->kept);
	cell__buf_finish(&watcher->out.text);
	if (watcher->root_fd >= 0)
		close(watcher->root_fd);
	if (watcher->fd >= 0)
		close(watcher->fd);
	free(watcher);
}

static void handle_closed(uv_handle_t *handle)
{
	watcher_free(handle->data);
}

/* Frees it once the pool, the loop and the client have left it. */
static void let_go(struct cell__e2b_watcher *watcher)
{
	unlist(watcher);
	watcher->closing = true;
	if (watcher->works || watcher->out.connection || watcher->request)
		return;
	if (watcher->polls) {
		watcher->polls = false;
		uv_close((uv_handle_t *)&watcher->poll, handle_closed);
	} else {
		watcher_free(watcher);
	}
}

static void wake(struct cell__e2b_watcher *watcher)
{
	cell__slow_stream_wake(&watcher->out, watcher->server);
}

/* ---- on the pool ---- */

static int add_folder(struct cell__e2b_watcher *watcher, int fd, const char *path)
{
	char link[40];
	struct folder *more;
	int wd;

	if (watcher->n_folders >= CELL_E2B_MAX_WATCHED)
		return cell_fail(&watcher->err, CELL_E_LIMIT, 0, "a watcher may watch at most %u folders", CELL_E2B_MAX_WATCHED);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd); /* the folder that was opened, whatever its name means now */
	wd = inotify_add_watch(watcher->fd, link, WATCHED);
	if (wd < 0)
		return cell_fail(&watcher->err, errno == ENOSPC ? CELL_E_BUSY : CELL_E_IO, errno, "watch the folder");
	for (size_t i = 0; i < watcher->n_folders; i++) {
		if (watcher->folders[i].wd == wd) { /* it was renamed */
			char *copy = cell__strdup(path);

			if (!copy)
				return cell_fail(&watcher->err, CELL_E_NOMEM, 0, "out of memory for a watcher");
			free(watcher->folders[i].path);
			watcher->folders[i].path = copy;
			return 0;
		}
	}
	more = cell__realloc(watcher->folders, (watcher->n_folders + 1) * sizeof(*more));
	if (!more)
		return cell_fail(&watcher->err, CELL_E_NOMEM, 0, "out of memory for a watcher");
	watcher->folders = more;
	more[watcher->n_folders] = (struct folder){ wd, cell__strdup(path) };
	return more[watcher->n_folders++].path ? 0 : cell_fail(&watcher->err, CELL_E_NOMEM, 0, "out of memory for a watcher");
}

static int join(struct cell__buf *out, const char *folder, const char *name)
{
	return cell__buf_printf(out, "%s%s%s", folder, *folder && *name ? "/" : "", name);
}

static const char *event_word(uint32_t mask)
{
	return mask & (IN_CREATE | IN_MOVED_TO) ? "EVENT_TYPE_CREATE"
	       : mask & IN_MODIFY               ? "EVENT_TYPE_WRITE"
	       : mask & IN_DELETE               ? "EVENT_TYPE_REMOVE"
	       : mask & IN_MOVED_FROM           ? "EVENT_TYPE_RENAME"
	       : mask & IN_ATTRIB               ? "EVENT_TYPE_CHMOD"
						: NULL;
}

static void add_event(struct cell__e2b_watcher *watcher, const char *path, const char *word)
{
	CELL_AUTO_BUF struct cell__buf full = CELL_BUF_INIT;
	struct cell_error err;
	size_t room = CELL_E2B_MARKS_BYTES / CELL_E2B_MAX_EVENTS;
	json_t *event = json_pack("{s:s,s:s}", "name", path, "type", word), *item = NULL;

	if (!event) /* the name is not UTF-8 */
		return;
	if (watcher->entries && join(&full, watcher->base, path) == 0)
		item = cell__files_describe(watcher->root_fd, full.data ? full.data : "", &err);
	if (item)
		json_object_set_new(event, "entry",
				    cell__e2b_entry(watcher->root_fd, watcher->area, full.data ? full.data : "", item, &room));
	json_decref(item);
	json_array_append_new(watcher->found, event);
}

/*
 * This folder and, if asked for, those in it.  One that is gone by now is left out.  is_new: it appeared while its parent was watched; what
 * is in it already is told, because nobody watched it before.  What comes at the same moment may be told twice.
 */
static int add_tree(struct cell__e2b_watcher *watcher, const char *path, unsigned depth, bool is_new)
{
	CELL_AUTO_BUF struct cell__buf full = CELL_BUF_INIT;
	json_t *item, *one;
	size_t i;
	int fd, rc;

	if (depth > CELL_FILES_MAX_DEPTH || join(&full, watcher->base, path) < 0)
		return 0;
	fd = cell__files_open(watcher->root_fd, full.data ? full.data : "", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return depth ? 0
			     : cell_fail(&watcher->err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_INVALID, errno,
					 "the folder cannot be watched");
	rc = add_folder(watcher, fd, path);
	close(fd);
	if (rc < 0 || !watcher->recursive)
		return rc;
	item = cell__files_describe(watcher->root_fd, full.data ? full.data : "", &(struct cell_error){ 0 });
	json_array_foreach(json_object_get(item, "entries"), i, one) {
		CELL_AUTO_BUF struct cell__buf inner = CELL_BUF_INIT;
		const char *type = json_string_value(json_object_get(one, "type")), *name = json_string_value(json_object_get(one, "name"));

		if (rc || !type || !name || !strncmp(name, CELL_FILES_TEMPORARY, strlen(CELL_FILES_TEMPORARY)) ||
		    join(&inner, path, name) < 0)
			continue;
		if (is_new && json_array_size(watcher->found) <= CELL_E2B_MAX_EVENTS)
			add_event(watcher, inner.data, event_word(IN_CREATE));
		if (is_new && !strcmp(type, "file") && json_array_size(watcher->found) <= CELL_E2B_MAX_EVENTS)
			add_event(watcher, inner.data, event_word(IN_MODIFY));
		if (!strcmp(type, "folder"))
			rc = add_tree(watcher, inner.data, depth + 1, is_new);
	}
	json_decref(item);
	return rc;
}

static void do_open(uv_work_t *work)
{
	struct cell__e2b_watcher *watcher = work->data;

	watcher->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (watcher->fd < 0)
		cell_fail(&watcher->err, CELL_E_BUSY, errno, "make a watcher");
	else
		(void)add_tree(watcher, "", 0, false);
}

static const struct folder *find_folder(const struct cell__e2b_watcher *watcher, int wd)
{
	for (size_t i = 0; i < watcher->n_folders; i++) {
		if (watcher->folders[i].wd == wd)
			return &watcher->folders[i];
	}
	return NULL;
}

static void forget_folder(struct cell__e2b_watcher *watcher, int wd)
{
	for (size_t i = 0; i < watcher->n_folders; i++) {
		if (watcher->folders[i].wd != wd)
			continue;
		free(watcher->folders[i].path);
		watcher->folders[i] = watcher->folders[--watcher->n_folders];
		return;
	}
}

static void do_events(uv_work_t *work)
{
	struct cell__e2b_watcher *watcher = work->data;
	const struct inotify_event *event;
	uint32_t uploaded = 0; /* the cookie of its rename */

	/* The system gives whole events, aligned. */
	for (ssize_t at = 0; !watcher->err.code && at < watcher->raw_size; at += (ssize_t)(sizeof(*event) + event->len)) {
		CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
		const struct folder *folder;
		const char *word;

		event = (const struct inotify_event *)(const void *)(watcher->raw + at);
		folder = find_folder(watcher, event->wd);
		word = event_word(event->mask);
		if (event->mask & IN_Q_OVERFLOW)
			cell_fail(&watcher->err, CELL_E_LIMIT, 0, "too many changes at once: events were lost; watch the folder again");
		else if (event->mask & IN_IGNORED)
			forget_folder(watcher, event->wd);
		else if (folder && word && event->len && !strncmp(event->name, CELL_FILES_TEMPORARY, strlen(CELL_FILES_TEMPORARY)))
			uploaded = event->mask & IN_MOVED_FROM ? event->cookie : uploaded;
		else if (folder && word && event->len && join(&path, folder->path, event->name) == 0) {
			add_event(watcher, path.data, word);
			/* An upload appears by a rename: for its watchers it was written, and got its permissions. */
			if (event->mask & IN_MOVED_TO && event->cookie == uploaded) {
				add_event(watcher, path.data, event_word(IN_MODIFY));
				add_event(watcher, path.data, event_word(IN_ATTRIB));
			}
			if (watcher->recursive && event->mask & IN_ISDIR && event->mask & (IN_CREATE | IN_MOVED_TO))
				(void)add_tree(watcher, path.data, 1, true);
		}
	}
}

/* ---- waiting ---- */

static void handle_readable(uv_poll_t *poll, int status, int events);

static void wait_for_more(struct cell__e2b_watcher *watcher)
{
	if (!watcher->err.code && uv_poll_start(&watcher->poll, UV_READABLE, handle_readable) < 0)
		cell_fail(&watcher->err, CELL_E_IO, 0, "wait for changes");
}

static void handle_worked(uv_work_t *work, int status);

/* Reads events, and lets the pool work on them.  False: there are none, or it failed. */
static bool take_events(struct cell__e2b_watcher *watcher)
{
	if (watcher->err.code)
		return false;
	watcher->raw_size = read(watcher->fd, watcher->raw, RAW_BYTES);
	if (watcher->raw_size <= 0) {
		if (errno != EAGAIN)
			cell_fail(&watcher->err, CELL_E_IO, errno, "read changes");
		return false;
	}
	watcher->works = true;
	uv_queue_work(cell__loop_uv(watcher->server->engine->loop), &watcher->work, do_events, handle_worked);
	return true;
}

/* The events so far, and no longer than that. */
static void answer_events(struct cell__e2b_watcher *watcher, struct cell__request *request)
{
	if (watcher->err.code && !json_array_size(watcher->kept)) { /* what was seen before comes first */
		cell__answer_fail(request, watcher->err.code == CELL_E_EXPIRED ? MHD_HTTP_NOT_FOUND : MHD_HTTP_TOO_MANY_REQUESTS,
				  watcher->err.code, "%s", watcher->err.msg);
		let_go(watcher);
		return;
	}
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "events", json_copy(watcher->kept)));
	json_array_clear(watcher->kept);
}

static void handle_worked(uv_work_t *work, int status)
{
	struct cell__e2b_watcher *watcher = work->data;
	struct cell__request *asking = watcher->asking;
	json_t *event;
	size_t i;

	(void)status; /* never cancelled */
	watcher->works = false;
	if (watcher->closing) {
		if (asking)
			cell__answer_fail(asking, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "watcher \"%s\" not found", watcher->id);
		let_go(watcher);
		return;
	}
	json_array_foreach(watcher->found, i, event) {
		if (json_array_size(watcher->kept) < CELL_E2B_MAX_EVENTS)
			json_array_append(watcher->kept, event);
		else if (!watcher->err.code)
			cell_fail(&watcher->err, CELL_E_LIMIT, 0,
				  "more than %u events were not fetched: events were lost; watch the folder again", CELL_E2B_MAX_EVENTS);
	}
	json_array_clear(watcher->found);
	if (asking && watcher->rounds-- > 0 && take_events(watcher))
		return;
	wait_for_more(watcher);
	wake(watcher);
	watcher->asking = NULL;
	if (asking)
		answer_events(watcher, asking);
}

static void handle_readable(uv_poll_t *poll, int status, int events)
{
	struct cell__e2b_watcher *watcher = poll->data;

	(void)events;
	uv_poll_stop(&watcher->poll);
	if (status < 0)
		cell_fail(&watcher->err, CELL_E_IO, -status, "read changes");
	if (take_events(watcher))
		return;
	wait_for_more(watcher);
	wake(watcher);
}

/* ---- streams ---- */

static int add_message(struct cell__e2b_watcher *watcher, const json_t *message, unsigned flags)
{
	CELL_AUTO_FREE char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;

	return text ? cell__connect_add(&watcher->out.text, flags, text, strlen(text)) : -1;
}

/* The next messages, or none: then it waits.  -1: out of memory. */
static int fill(void *arg)
{
	struct cell__e2b_watcher *watcher = arg;
	json_t *message, *event;
	size_t i;
	int rc = 0;

	if (!watcher->told_start) {
		watcher->told_start = true;
		return cell__connect_add(&watcher->out.text, 0, "{\"start\":{}}", 12);
	}
	json_array_foreach(watcher->kept, i, event) {
		message = json_pack("{s:O}", "filesystem", event);
		rc |= add_message(watcher, message, 0);
		json_decref(message);
	}
	json_array_clear(watcher->kept);
	if (!watcher->out.told_end && (watcher->err.code || !watcher->sandbox)) {
		watcher->out.told_end = true;
		message = watcher->err.code
				  ? json_pack("{s:{s:s,s:s}}", "error", "code",
					      watcher->err.code == CELL_E_EXPIRED ? "not_found" : "resource_exhausted", "message",
					      watcher->err.msg)
				  : json_pack("{s:{s:s,s:s}}", "error", "code", "unavailable", "message", "The sandbox was not found");
		rc |= add_message(watcher, message, CELL_CONNECT_END);
		json_decref(message);
	}
	return rc ? -1 : 0;
}

static ssize_t read_stream(void *arg, uint64_t position, char *out, size_t max)
{
	struct cell__e2b_watcher *watcher = arg;

	(void)position;
	return cell__slow_stream_read(&watcher->out, fill, watcher, out, max);
}

static void end_stream(void *arg)
{
	struct cell__e2b_watcher *watcher = arg;

	watcher->out.connection = NULL;
	let_go(watcher);
}

static int64_t pid_of_kernel(const struct cell__e2b_watcher *watcher)
{
	struct cell_session *session = watcher->sandbox ? watcher->sandbox->contexts->served->session : NULL;

	return session ? cell__session_pid_on_loop(session) : 0;
}

static bool tmp_has_ended(const struct cell__e2b_watcher *watcher)
{
	return watcher->area == CELL_E2B_IN_TMP && watcher->polls && !watcher->works && watcher->root_fd >= 0 &&
	       pid_of_kernel(watcher) != watcher->kernel_pid;
}

/* Its files are memory, which an open folder would keep. */
static void end_tmp(struct cell__e2b_watcher *watcher)
{
	uv_poll_stop(&watcher->poll);
	cell__close_fd(&watcher->root_fd);
	if (!watcher->err.code)
		cell_fail(&watcher->err, CELL_E_EXPIRED, 0, "the sandbox's /tmp has ended with its process: watch the new one");
	wake(watcher);
}

void cell__e2b_watchers_sweep(struct cell__e2b_sandbox *sandbox, int64_t now_us)
{
	static const char alive[] = "{\"keepalive\":{}}";

	for (struct cell__e2b_watcher *watcher = sandbox->watchers; watcher; watcher = watcher->next) {
		if (tmp_has_ended(watcher)) {
			end_tmp(watcher);
			continue;
		}
		if (!cell__slow_stream_is_silent(&watcher->out, now_us))
			continue;
		(void)cell__connect_add(&watcher->out.text, 0, alive, sizeof(alive) - 1);
		wake(watcher);
	}
}

void cell__e2b_watchers_end(struct cell__e2b_sandbox *sandbox)
{
	while (sandbox->watchers) {
		struct cell__e2b_watcher *watcher = sandbox->watchers;

		unlist(watcher);
		if (watcher->out.connection)
			wake(watcher); /* it tells its client, which lets it go */
		else if (!watcher->request)
			let_go(watcher);
	}
}

/* ---- opening ---- */

static void refuse(struct cell__e2b_watcher *watcher, const struct cell_error *err)
{
	struct cell__request *request = cell__take_ptr(watcher->request);

	cell__answer_error(request, err);
	let_go(watcher);
}

static void answer_stream(struct cell__e2b_watcher *watcher, struct cell__request *request)
{
	struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, CELL_SLOW_STREAM_BLOCK_BYTES, read_stream,
									  watcher, end_stream);

	if (!response) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a watcher");
		let_go(watcher);
		return;
	}
	watcher->out.connection = request->connection;
	watcher->out.moved_us = cell__now_us();
	MHD_add_response_header(response, "Content-Type", "application/connect+json");
	MHD_add_response_header(response, "Cache-Control", "no-store");
	cell__answer_response(request, MHD_HTTP_OK, response);
}

static void handle_opened(uv_work_t *work, int status)
{
	struct cell__e2b_watcher *watcher = work->data;
	struct cell_error err = watcher->err;
	struct cell__request *request;

	(void)status;
	watcher->works = false;
	if (!err.code && !watcher->sandbox)
		cell_fail(&err, CELL_E_EXPIRED, 0, "The sandbox was not found");
	if (!err.code && uv_poll_init(cell__loop_uv(watcher->server->engine->loop), &watcher->poll, watcher->fd) < 0)
		cell_fail(&err, CELL_E_BUSY, 0, "too many descriptors are open for another watcher");
	if (err.code) {
		refuse(watcher, &err);
		return;
	}
	watcher->polls = true;
	watcher->poll.data = watcher;
	wait_for_more(watcher);
	request = cell__take_ptr(watcher->request);
	if (watcher->streams)
		answer_stream(watcher, request);
	else
		cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:s}", "watcherId", watcher->id));
}

static void handle_root(void *arg, const struct cell__root *root, const struct cell_error *err)
{
	struct cell__e2b_watcher *watcher = arg;

	if (!root) {
		refuse(watcher, err);
		return;
	}
	watcher->root_fd = root->fd;
	watcher->kernel_pid = pid_of_kernel(watcher);
	watcher->works = true;
	uv_queue_work(cell__loop_uv(watcher->server->engine->loop), &watcher->work, do_open, handle_opened);
}

static struct cell__e2b_watcher *watcher_create(struct cell__request *request, struct cell__e2b_sandbox *sandbox)
{
	struct cell__e2b_watcher *watcher = cell__alloc(1, sizeof(*watcher));

	if (!watcher)
		return NULL;
	watcher->server = request->server;
	watcher->request = request;
	watcher->root_fd = watcher->fd = -1;
	watcher->work.data = watcher;
	watcher->out.text = (struct cell__buf)CELL_BUF_INIT;
	watcher->raw = cell__alloc(1, RAW_BYTES);
	watcher->found = json_array();
	watcher->kept = json_array();
	cell__random_hex(watcher->id, CELL_E2B_WATCHER_ID);
	watcher->sandbox = sandbox;
	watcher->next = sandbox->watchers;
	watcher->at = &sandbox->watchers;
	if (watcher->next)
		watcher->next->at = &watcher->next;
	sandbox->watchers = watcher;
	return watcher;
}

void cell__e2b_watch(struct cell__request *request, struct cell__e2b_sandbox *sandbox, const struct cell__e2b_place *place, bool streams)
{
	struct cell__e2b_watcher *watcher;
	struct cell_error err;
	size_t n = 0;

	for (const struct cell__e2b_watcher *one = sandbox->watchers; one; one = one->next)
		n++;
	if (n >= CELL_E2B_MAX_WATCHERS) {
		cell__answer_busy(request, 5, "the sandbox has as many watchers as it may have: remove one");
		return;
	}
	watcher = watcher_create(request, sandbox);
	if (!watcher || !watcher->raw || !watcher->found || !watcher->kept) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a watcher");
		if (watcher) {
			watcher->request = NULL;
			let_go(watcher);
		}
		return;
	}
	watcher->recursive = json_is_true(json_object_get(request->json, "recursive"));
	watcher->entries = json_is_true(json_object_get(request->json, "includeEntry"));
	watcher->streams = streams;
	watcher->area = place->area;
	strcpy(watcher->base, place->path);
	if (cell__e2b_open_area(request->served->session, place->area, false, handle_root, watcher, &err) < 0)
		refuse(watcher, &err);
}

/* ---- polling ---- */

/* The watcher that the request names; NULL: it was answered. */
static struct cell__e2b_watcher *find(struct cell__request *request, struct cell__e2b_sandbox *sandbox)
{
	const char *id = json_string_value(json_object_get(request->json, "watcherId"));

	for (struct cell__e2b_watcher *watcher = sandbox->watchers; id && watcher; watcher = watcher->next) {
		if (!watcher->streams && !watcher->request && !strcmp(watcher->id, id))
			return watcher;
	}
	cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "watcher \"%.40s\" not found", id ? id : "");
	return NULL;
}

void cell__e2b_watcher_events(struct cell__request *request, struct cell__e2b_sandbox *sandbox)
{
	struct cell__e2b_watcher *watcher = find(request, sandbox);

	if (!watcher)
		return;
	if (!watcher->works) {
		uv_poll_stop(&watcher->poll);
		if (!take_events(watcher))
			wait_for_more(watcher);
	}
	if (!watcher->works || watcher->asking) { /* a second one does not wait for the first */
		answer_events(watcher, request);
		return;
	}
	watcher->asking = request;
	watcher->rounds = MAX_ROUNDS;
}

void cell__e2b_watcher_remove(struct cell__request *request, struct cell__e2b_sandbox *sandbox)
{
	struct cell__e2b_watcher *watcher = find(request, sandbox);

	if (!watcher)
		return;
	let_go(watcher);
	cell__answer_json(request, MHD_HTTP_OK, json_object());
}
