/*
 * One pod, from the pool to its end.
 *
 *     WAITING ──▶ FINDING: list idle pods ──▶ CLAIMING: patch one of them ──▶ READY ──last kernel gone, for LINGER_MS──▶ REMOVING: delete it
 *                    ▲  │ none is ready: wait       │ somebody else was faster (409, 404)       │
 *                    │  ▼                           ▼                                          └─it ended─▶ FAILED ──▶ REMOVING
 *                    └──┴───────────────────────────┘
 *
 * The pod stays for a moment after its last kernel, because a reset opens the next kernel of the same session at once, and its files are there.
 */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "executors/kubernetes/kubernetes.h"

#define FIRST_PAUSE_MS 50
#define LONGEST_PAUSE_MS 1000
#define LIST_LIMIT "200"
#define GRACE "1"

static void pod_free(struct cell__kube_pod *pod)
{
	struct cell__kube_owner *owner = pod->owner;
	struct cell__kube_pod **at = &owner->pods;

	while (*at != pod)
		at = &(*at)->next;
	*at = pod->next;
	explicit_bzero(pod->claimed_token, sizeof(pod->claimed_token));
	json_decref(pod->config);
	json_decref(pod->found);
	free(pod->key);
	free(pod->url);
	free(pod->receipt);
	free(pod);
	cell__kube_owner_check(owner);
}

static void handle_timer_closed(uv_handle_t *handle)
{
	pod_free(handle->data);
}

static void leave(struct cell__kube_pod *pod)
{
	uv_close((uv_handle_t *)&pod->timer, handle_timer_closed);
}

/* ---- requests ---- */

void cell__kube_pod_ask(struct cell__kube_pod *pod, const char *method, const char *type, char *body,
			void (*done)(void *arg, long status, json_t *answer, const struct cell_error *err), const char *path, ...)
{
	struct cell__kube_call call = { .method = method, .type = type, .body = body, .done = done, .arg = pod };
	CELL_AUTO_FREE char *text = NULL;
	va_list args;

	va_start(args, path);
	if (vasprintf(&text, path, args) < 0)
		text = NULL;
	va_end(args);
	call.path = text;
	if (!text)
		free(body);
	else
		pod->request = cell__kube_start(pod->owner->http, &pod->owner->access, &call);
	if (!pod->request)
		cell__kube_pod_out_of_memory(pod);
}

/* ---- its end ---- */

static void handle_removed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_pod *pod = arg;

	(void)answer;
	pod->request = NULL;
	/* 409: another pod has its name now. */
	if (!status || (status >= 400 && status != 404 && status != 409))
		CELL_KUBE_LOG(pod->owner, CELL_LOG_WARN, "the pod %.80s could not be deleted; it goes with this program's lease: %s",
			      pod->name, err->msg);
	leave(pod);
}

static void ask_removal(struct cell__kube_pod *pod)
{
	struct cell__kube_call call = { .method = "DELETE", .done = handle_removed, .arg = pod };
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT;
	const char *space = pod->owner->access.space;
	int status;

	if (*pod->claim) {
		status = cell__buf_printf(&path, "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/%s/sandboxclaims/%s", space,
					  pod->claim);
	} else if (*pod->uid) {
		status = cell__buf_printf(&path, "/api/v1/namespaces/%s/pods/%s", space, pod->name);
		if (!status) /* not another one that got its name */
			status = cell__buf_printf(&body, "{\"gracePeriodSeconds\":" GRACE ",\"preconditions\":{\"uid\":\"%s\"}}", pod->uid);
	} else {
		leave(pod);
		return;
	}
	call.path = path.data;
	call.body = body.data ? cell__buf_take(&body) : NULL;
	if (status)
		free(call.body);
	else
		pod->request = cell__kube_start(pod->owner->http, &pod->owner->access, &call);
	if (!pod->request)
		leave(pod);
}

void cell__kube_pod_remove(struct cell__kube_pod *pod)
{
	pod->state = CELL_KUBE_REMOVING;
	if (pod->is_patching) /* what it has done must be known first */
		return;
	cell__kube_cancel(cell__take_ptr(pod->request));
	uv_timer_stop(&pod->timer);
	ask_removal(pod);
}

void cell__kube_pod_fail(struct cell__kube_pod *pod, const struct cell_error *err)
{
	if (pod->state >= CELL_KUBE_FAILED)
		return;
	if (!pod->is_patching)
		cell__kube_cancel(cell__take_ptr(pod->request));
	uv_timer_stop(&pod->timer);
	pod->state = CELL_KUBE_FAILED;
	pod->err = *err;
	if (!pod->slots)
		cell__kube_pod_remove(pod);
	else
		cell__kubernetes_refuse(pod);
}

void cell__kube_pod_out_of_memory(struct cell__kube_pod *pod)
{
	struct cell_error err;

	cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a pod");
	cell__kube_pod_fail(pod, &err);
}

/* ---- waiting ---- */

static void handle_pause_over(uv_timer_t *timer)
{
	struct cell__kube_pod *pod = timer->data;

	pod->step(pod);
}

void cell__kube_pod_again(struct cell__kube_pod *pod, void (*step)(struct cell__kube_pod *pod), const char *what)
{
	int64_t waited = (cell__now_us() - pod->began_us) / 1000;
	int64_t most = json_integer_value(json_object_get(pod->config, "startup_ms"));
	struct cell_error late;

	if (waited > most) {
		cell_fail(&late, CELL_E_BUSY, 0, "%.150s within %lld s", what, (long long)most / 1000);
		cell__kube_pod_fail(pod, &late);
		return;
	}
	pod->step = step;
	uv_update_time(cell__loop_uv(pod->owner->all->host->loop));
	uv_timer_start(&pod->timer, handle_pause_over, (uint64_t)pod->pause_ms, 0);
	pod->pause_ms = pod->pause_ms * 2 < LONGEST_PAUSE_MS ? pod->pause_ms * 2 : LONGEST_PAUSE_MS;
}

/* ---- claiming one of the pool ---- */

static void none_is_idle(struct cell__kube_pod *pod)
{
	char what[140];

	snprintf(what, sizeof(what), "no idle pod of the pool \"%s\" in the namespace %.60s became ready",
		 json_string_value(json_object_get(pod->config, "pool")), pod->owner->access.space);
	cell__kube_pod_again(pod, cell__kube_pod_find, what);
}

/* The pod that it says we have is the one that we asked for, and is ours. */
static int check_claimed(struct cell__kube_pod *pod, const json_t *answer, struct cell_error *err)
{
	const json_t *labels = json_object_get(json_object_get(answer, "metadata"), "labels");
	const char *owner = json_string_value(json_object_get(labels, CELL_KUBE_OWNER));
	const char *state = json_string_value(json_object_get(labels, CELL_KUBE_STATE));
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE];

	if (!cell__kube_identity(answer, name, uid) || strcmp(name, pod->name) || strcmp(uid, pod->uid) || !owner ||
	    strcmp(owner, pod->owner->lease) || !state || strcmp(state, "claimed"))
		return cell_fail(err, CELL_E_PROTOCOL, 0, "the API server answered a claim with a pod that is not the claimed one");
	return 0;
}

/* Only a pod that is certainly ours may be deleted.  If the answer was lost and it is ours, the list of our pods shows it (watch.c). */
static void forget(struct cell__kube_pod *pod)
{
	pod->name[0] = pod->uid[0] = '\0';
}

static void handle_claimed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_pod *pod = arg;
	bool is_taken = status == 409 || status == 404 || status == 422; /* somebody else was faster, or it has gone */
	struct cell_error why = *err;
	bool is_ours = status && status < 400 && check_claimed(pod, answer, &why) == 0;

	pod->request = NULL;
	pod->is_patching = false;
	if (!is_ours)
		forget(pod);
	if (pod->state == CELL_KUBE_REMOVING) {
		ask_removal(pod);
	} else if (pod->state == CELL_KUBE_FAILED) {
		if (!pod->slots)
			cell__kube_pod_remove(pod);
	} else if (is_taken) {
		pod->state = CELL_KUBE_FINDING;
		cell__kube_pod_again(pod, cell__kube_pod_find, "no pod could be claimed before others did");
	} else if (!is_ours) {
		cell__kube_pod_fail(pod, &why);
	} else {
		cell__kube_pod_take(pod, answer);
	}
}

/* Somewhere among those that are ready: programs that claim at the same time rarely meet. */
static const json_t *choose(struct cell__kube_pod *pod, struct cell_error *err)
{
	const json_t *items = pod->found, *item, *chosen = NULL;
	unsigned ready = 0, random;
	char digits[9];
	size_t i;

	cell__random_hex(digits, sizeof(digits) - 1);
	random = (unsigned)strtoul(digits, NULL, 16);
	err->code = 0;
	json_array_foreach(items, i, item) {
		if (!cell__kube_pod_is_idle(item) || cell__kube_pod_check(pod->config, item, err) < 0)
			continue;
		ready++;
		if (random % ready == 0)
			chosen = item;
		random = random * 1664525u + 1013904223u;
	}
	return chosen;
}

static void claim(struct cell__kube_pod *pod, char *patch)
{
	struct cell__kube_owner *owner = pod->owner;
	struct cell__kube_call call = {
		.method = "PATCH", .type = CELL_KUBE_MERGE_PATCH, .body = patch, .done = handle_claimed, .arg = pod
	};
	CELL_AUTO_BUF struct cell__buf path = CELL_BUF_INIT;

	if (cell__buf_printf(&path, "/api/v1/namespaces/%s/pods/%s", owner->access.space, pod->name) < 0) {
		free(patch);
	} else {
		call.path = path.data;
		pod->request = cell__kube_start(owner->http, &owner->access, &call);
	}
	if (!pod->request) {
		forget(pod);
		cell__kube_pod_out_of_memory(pod);
		return;
	}
	pod->state = CELL_KUBE_CLAIMING;
	pod->is_patching = true;
}

static void handle_found(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_pod *pod = arg;
	struct cell__kube_owner *owner = pod->owner;
	const json_t *chosen;
	struct cell_error why = { 0 };
	char *patch;

	pod->request = NULL;
	if (!status || status >= 400) {
		cell__kube_pod_fail(pod, err);
		return;
	}
	json_decref(pod->found);
	pod->found = json_incref(json_object_get(answer, "items"));
	chosen = choose(pod, &why);
	if (!chosen && why.code) {
		cell__kube_pod_fail(pod, &why);
		return;
	}
	if (!chosen || !cell__kube_identity(chosen, pod->name, pod->uid)) {
		forget(pod);
		none_is_idle(pod);
		return;
	}
	patch = cell__kube_claim_patch(chosen, owner->lease, owner->lease_uid);
	if (!patch) {
		cell_fail(&why, CELL_E_PROTOCOL, 0, "the API server names a pod without a resource version");
		forget(pod);
		cell__kube_pod_fail(pod, &why);
		return;
	}
	claim(pod, patch);
}

void cell__kube_pod_find(struct cell__kube_pod *pod)
{
	pod->state = CELL_KUBE_FINDING;
	if (json_object_get(pod->config, "warm_pool")) {
		cell__kube_sandbox_claim(pod);
		return;
	}
	/* The pool's name is a label's value: it needs no escapes. */
	cell__kube_pod_ask(pod, "GET", NULL, NULL, handle_found,
			   "/api/v1/namespaces/%s/pods?limit=" LIST_LIMIT "&labelSelector=" CELL_KUBE_POOL "%%3D%s," CELL_KUBE_STATE
			   "%%3Didle&fieldSelector=status.phase%%3DRunning",
			   pod->owner->access.space, json_string_value(json_object_get(pod->config, "pool")));
}

void cell__kube_pod_take(struct cell__kube_pod *pod, const json_t *description)
{
	struct cell__kube_owner *owner = pod->owner;
	struct cell_error err = { 0 };

	if (!cell__kube_pod_is_ready(description) || cell__kube_pod_has_ended(description, &err))
		(void)(err.code || cell_fail(&err, CELL_E_UNAVAILABLE, 0, "the pod %.80s ended while it was claimed", pod->name));
	else if (cell__kube_pod_check(pod->config, description, &err) == 0 &&
		 cell__kube_pod_url(pod->config, description, owner->access.is_local, &pod->url, &err) == 0 &&
		 cell__kube_pod_token(owner->access.pool_key, pod->uid, pod->claimed_token, &err) == 0 &&
		 !(pod->receipt = cell__kube_receipt(pod->config, description)))
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a pod");
	json_decref(cell__take_ptr(pod->found));
	if (err.code) {
		cell__kube_pod_fail(pod, &err);
		return;
	}
	pod->state = CELL_KUBE_READY;
	CELL_KUBE_LOG(owner, CELL_LOG_INFO, "claimed the pod %.80s after %lld ms", pod->name,
		      (long long)(cell__now_us() - pod->began_us) / 1000);
	cell__kube_watch_start(owner);
	cell__kubernetes_connect(pod);
}

struct cell__kube_pod *cell__kube_pod_create(struct cell__kube_owner *owner, const char *key, const char *config, struct cell_error *err)
{
	struct cell__kube_pod *pod = cell__alloc(1, sizeof(*pod));

	if (pod)
		*pod = (struct cell__kube_pod){ .owner = owner,
						.next = owner->pods,
						.key = cell__strdup(key),
						.config = json_loads(config, 0, NULL),
						.began_us = cell__now_us(),
						.pause_ms = FIRST_PAUSE_MS };
	if (!pod || !pod->key || !pod->config) {
		if (pod) {
			json_decref(pod->config);
			free(pod->key);
		}
		free(pod);
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a pod");
		return NULL;
	}
	owner->pods = pod;
	uv_timer_init(cell__loop_uv(owner->all->host->loop), &pod->timer);
	pod->timer.data = pod;
	return pod;
}
