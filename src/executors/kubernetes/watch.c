/*
 * Whether claimed pods still live: a list of the pods of our lease, then a watch from there on, again and again while there are pods.
 *
 *     list ──▶ watch ──it ends, breaks or is too old──▶ after a while: list
 *       └─ a pod that is ours and that nobody uses (the answer to its claim was lost) ─▶ delete it, then list
 *
 * libcurl's callback only collects bytes: the timer's works on them, where requests may be started.  While the API server cannot be reached, the
 * pods may well live: their own connections tell.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "executors/kubernetes/kubernetes.h"

#define AGAIN_MS 1000
#define MAX_LINE_BYTES (4u << 20)
#define WATCH_SECONDS "240"

static void list(struct cell__kube_owner *owner);

static void handle_again(uv_timer_t *timer)
{
	list(timer->data);
}

static void again(struct cell__kube_owner *owner)
{
	uv_update_time(cell__loop_uv(owner->all->host->loop));
	uv_timer_start(&owner->watch_timer, handle_again, AGAIN_MS, 0);
}

static bool start(struct cell__kube_owner *owner, struct cell__kube_call *call, const char *more, const char *value)
{
	CELL_AUTO_FREE char *path = NULL;

	if (asprintf(&path, "/api/v1/namespaces/%s/pods%s%s", owner->access.space, more, value) < 0) {
		path = NULL;
		free(call->body);
		return false;
	}
	call->path = path;
	call->arg = owner;
	owner->watching = cell__kube_start(owner->http, &owner->access, call);
	return owner->watching != NULL;
}

static struct cell__kube_pod *find(struct cell__kube_owner *owner, const char *uid)
{
	struct cell__kube_pod *pod = owner->pods;

	while (pod && strcmp(pod->uid, uid))
		pod = pod->next;
	return pod;
}

static bool is_claiming(const struct cell__kube_owner *owner)
{
	const struct cell__kube_pod *pod = owner->pods;

	while (pod && pod->state != CELL_KUBE_CLAIMING && pod->state != CELL_KUBE_FINDING)
		pod = pod->next;
	return pod != NULL;
}

static void gone(struct cell__kube_pod *pod)
{
	struct cell_error why;

	cell_fail(&why, CELL_E_KERNEL, 0, "the pod was deleted");
	cell__kube_pod_fail(pod, &why);
}

/* ---- the watch ---- */

static void take_event(struct cell__kube_owner *owner, const char *line, size_t size)
{
	json_t *event = json_loadb(line, size, 0, NULL);
	const char *type = json_string_value(json_object_get(event, "type"));
	const json_t *object = json_object_get(event, "object");
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE];
	struct cell__kube_pod *pod = type && cell__kube_identity(object, name, uid) ? find(owner, uid) : NULL;
	struct cell_error why;

	if (pod && pod->state == CELL_KUBE_READY) {
		if (!strcmp(type, "DELETED"))
			gone(pod);
		else if (cell__kube_pod_has_ended(object, &why))
			cell__kube_pod_fail(pod, &why);
	}
	json_decref(event);
}

static void take_lines(struct cell__kube_owner *owner)
{
	size_t from = 0;
	char *end;

	while (from < owner->line.size && (end = memchr(owner->line.data + from, '\n', owner->line.size - from))) {
		size_t size = (size_t)(end - owner->line.data) - from;

		take_event(owner, owner->line.data + from, size);
		from += size + 1;
	}
	cell__buf_shift(&owner->line, from);
}

static void handle_lines(uv_timer_t *timer)
{
	take_lines(timer->data);
}

static bool take_piece(void *arg, const char *bytes, size_t size)
{
	struct cell__kube_owner *owner = arg;

	if (owner->line.size + size > MAX_LINE_BYTES || cell__buf_add(&owner->line, bytes, size) < 0)
		return false;
	if (!uv_is_active((uv_handle_t *)&owner->watch_timer))
		uv_timer_start(&owner->watch_timer, handle_lines, 0, 0);
	return true;
}

static void handle_watched(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;

	(void)status;
	(void)answer;
	(void)err;
	owner->watching = NULL;
	take_lines(owner);
	cell__buf_finish(&owner->line);
	owner->line = (struct cell__buf)CELL_BUF_INIT;
	again(owner);
}

static void watch(struct cell__kube_owner *owner, const char *version)
{
	struct cell__kube_call call = { .method = "GET", .streams = true, .piece = take_piece, .done = handle_watched };
	CELL_AUTO_FREE char *query = NULL;

	if (asprintf(&query,
		     "?watch=true&allowWatchBookmarks=true&timeoutSeconds=" WATCH_SECONDS
		     "&resourceVersion=%s&labelSelector=" CELL_KUBE_OWNER "%%3D",
		     version) < 0) {
		query = NULL;
		again(owner);
		return;
	}
	if (!start(owner, &call, query, owner->lease))
		again(owner);
}

/* ---- the list ---- */

static void handle_stray(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;

	(void)status;
	(void)answer;
	(void)err;
	owner->watching = NULL;
	again(owner);
}

static bool remove_stray(struct cell__kube_owner *owner, const char *name, const char *uid)
{
	struct cell__kube_call call = { .method = "DELETE", .done = handle_stray };

	if (asprintf(&call.body, "{\"gracePeriodSeconds\":1,\"preconditions\":{\"uid\":\"%s\"}}", uid) < 0)
		return false;
	return start(owner, &call, "/", name);
}

/* Returns whether a request was started. */
static bool take_list(struct cell__kube_owner *owner, const json_t *items)
{
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE], stray[CELL_KUBE_NAME_SIZE] = "", stray_uid[CELL_KUBE_UID_SIZE] = "";
	struct cell__kube_pod *pod, *next;
	struct cell_error why;
	const json_t *item;
	size_t i;

	for (pod = owner->pods; pod; pod = pod->next)
		pod->has_listed = pod->state != CELL_KUBE_READY;
	json_array_foreach(items, i, item) {
		if (!cell__kube_identity(item, name, uid))
			continue;
		pod = find(owner, uid);
		if (!pod) {
			strcpy(stray, name);
			strcpy(stray_uid, uid);
			continue;
		}
		pod->has_listed = true;
		if (pod->state == CELL_KUBE_READY && cell__kube_pod_has_ended(item, &why))
			cell__kube_pod_fail(pod, &why);
	}
	for (pod = owner->pods; pod; pod = next) {
		next = pod->next;
		if (!pod->has_listed && pod->state == CELL_KUBE_READY)
			gone(pod);
	}
	return *stray && !is_claiming(owner) && remove_stray(owner, stray, stray_uid);
}

static void handle_listed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;
	const json_t *meta = json_object_get(answer, "metadata"), *items = json_object_get(answer, "items");
	const char *version = json_string_value(json_object_get(meta, "resourceVersion"));

	(void)err;
	owner->watching = NULL;
	if (status != 200 || !json_is_array(items) || !version || !*version || strspn(version, "0123456789") != strlen(version)) {
		again(owner);
		return;
	}
	if (!take_list(owner, items))
		watch(owner, version);
}

static void list(struct cell__kube_owner *owner)
{
	struct cell__kube_call call = { .method = "GET", .done = handle_listed };

	/* Without pods nothing can end: the next pod starts it again. */
	if (owner->pods && !owner->is_closing && !start(owner, &call, "?labelSelector=" CELL_KUBE_OWNER "%3D", owner->lease))
		again(owner);
}

void cell__kube_watch_start(struct cell__kube_owner *owner)
{
	if (!owner->watching && !uv_is_active((uv_handle_t *)&owner->watch_timer))
		list(owner);
}

void cell__kube_watch_stop(struct cell__kube_owner *owner)
{
	cell__kube_cancel(cell__take_ptr(owner->watching));
	uv_timer_stop(&owner->watch_timer);
}
