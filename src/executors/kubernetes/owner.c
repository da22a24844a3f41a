/*
 * This program at one cluster: its access, and the Lease that says that it lives.
 *
 *     turn:  read the access ──▶ make the lease, once ──▶ start the pods that wait            one of these at a time (`busy`)
 *     tick:  read the access ──▶ renew the lease ──▶ list leases ──▶ delete those that nobody renews
 *
 * Whether somebody else still lives is judged by our own clock alone: its lease must not have changed for as long as it is valid while we looked.  The
 * request to delete names the version that we saw, so one that is renewed meanwhile stays.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "executors/kubernetes/kubernetes.h"
#include "executors/remote/remote.h"

#define TICK_MS (CELL_KUBE_LEASE_SECONDS * 1000 / 3)
#define LONGEST_LEASE_SECONDS 3600
#define LEASES "/apis/coordination.k8s.io/v1/namespaces/%s/leases"
#define MOST_OTHERS 10000u

static void tick(struct cell__kube_owner *owner);
static void end(struct cell__kube_owner *owner);

/* ---- its parts ---- */

static void free_all(struct cell__kube_all *all)
{
	void (*done)(void *) = all->done;
	void *done_arg = all->done_arg;

	free(all);
	done(done_arg);
}

static void handle_closed(uv_handle_t *handle)
{
	struct cell__kube_owner *owner = handle->data;
	struct cell__kube_all *all = owner->all;
	struct cell__kube_owner **at = &all->first;

	if (--owner->open_handles)
		return;
	while (*at != owner)
		at = &(*at)->next;
	*at = owner->next;
	cell__kube_access_finish(&owner->access);
	cell__buf_finish(&owner->line);
	json_decref(owner->config);
	json_decref(owner->others);
	json_decref(owner->stale);
	free(owner->key);
	free(owner);
	if (!all->first && all->done)
		free_all(all);
}

static void close_handles(struct cell__kube_owner *owner)
{
	cell__kube_watch_stop(owner);
	uv_close((uv_handle_t *)&owner->timer, handle_closed);
	uv_close((uv_handle_t *)&owner->watch_timer, handle_closed);
}

static void step_done(struct cell__kube_owner *owner)
{
	owner->busy = false;
	if (owner->is_closing)
		end(owner);
	else if (owner->is_due)
		tick(owner);
	else
		cell__kube_owner_turn(owner);
}

/* Takes body over. false: out of memory, or there is no access. */
static bool ask(struct cell__kube_owner *owner, const char *method, const char *type, char *body,
		void (*done)(void *arg, long status, json_t *answer, const struct cell_error *err), const char *name)
{
	struct cell__kube_call call = { .method = method, .type = type, .body = body, .done = done, .arg = owner };
	CELL_AUTO_FREE char *path = NULL;

	if (asprintf(&path, LEASES "%s%s", owner->access.space, *name && *name != '?' ? "/" : "", name) < 0) {
		path = NULL;
		free(body);
		return false;
	}
	call.path = path;
	owner->request = cell__kube_start(owner->http, &owner->access, &call);
	return owner->request != NULL;
}

static void fail_pods(struct cell__kube_owner *owner, enum cell__kube_pod_state first, enum cell__kube_pod_state last,
		      const struct cell_error *err)
{
	struct cell__kube_pod *next;

	for (struct cell__kube_pod *pod = owner->pods; pod; pod = next) {
		next = pod->next;
		if (pod->state >= first && pod->state <= last)
			cell__kube_pod_fail(pod, err);
	}
}

/* ---- the access ---- */

static void read_access(uv_work_t *work)
{
	struct cell__kube_owner *owner = work->data;

	owner->read_err = (struct cell_error){ 0 };
	(void)cell__kube_access_read(owner->config, &owner->read, &owner->read_err);
}

static void handle_read(uv_work_t *work, int status)
{
	struct cell__kube_owner *owner = work->data;

	(void)status; /* never cancelled */
	/* Pods are in the namespace where they were claimed: it does not change on the way. */
	if (!owner->read_err.code && owner->access.url && strcmp(owner->access.space, owner->read.space)) {
		cell__kube_access_finish(&owner->read);
		cell_fail(&owner->read_err, CELL_E_INVALID, 0, "the namespace of this program's configuration has changed: start it again");
	}
	if (!owner->read_err.code) {
		cell__kube_access_finish(&owner->access);
		owner->access = owner->read;
		owner->read = (struct cell__kube_access){ 0 };
	}
	owner->then(owner);
}

static void with_access(struct cell__kube_owner *owner, void (*then)(struct cell__kube_owner *owner))
{
	owner->busy = true;
	owner->then = then;
	owner->work.data = owner;
	uv_queue_work(cell__loop_uv(owner->all->host->loop), &owner->work, read_access, handle_read);
}

/* ---- the lease ---- */

static void write_now(char text[32])
{
	struct timespec now;
	struct tm parts;
	size_t size;

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &parts);
	size = strftime(text, 32, "%Y-%m-%dT%H:%M:%S", &parts);
	snprintf(text + size, 32 - size, ".%06ldZ", now.tv_nsec / 1000);
}

static char *text_of_json(json_t *root)
{
	char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;

	json_decref(root);
	return text;
}

static void start_waiting(struct cell__kube_owner *owner)
{
	struct cell__kube_pod *next;

	for (struct cell__kube_pod *pod = owner->pods; pod; pod = next) {
		next = pod->next;
		if (pod->state == CELL_KUBE_WAITING)
			cell__kube_pod_find(pod);
	}
}

static void handle_tick(uv_timer_t *timer)
{
	struct cell__kube_owner *owner = timer->data;

	owner->is_due = true;
	if (!owner->busy)
		tick(owner);
}

static void handle_lease_made(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE];
	struct cell_error odd;

	owner->request = NULL;
	if (!status || status >= 400) {
		fail_pods(owner, CELL_KUBE_WAITING, CELL_KUBE_WAITING, err);
	} else if (!cell__kube_identity(answer, name, uid) || strcmp(name, owner->lease)) {
		cell_fail(&odd, CELL_E_PROTOCOL, 0, "the API server created a lease without the name and uid that it must have");
		fail_pods(owner, CELL_KUBE_WAITING, CELL_KUBE_WAITING, &odd);
	} else {
		strcpy(owner->lease_uid, uid);
		uv_update_time(cell__loop_uv(owner->all->host->loop));
		uv_timer_start(&owner->timer, handle_tick, TICK_MS, TICK_MS);
		start_waiting(owner);
	}
	step_done(owner);
}

static void out_of_memory(struct cell__kube_owner *owner)
{
	struct cell_error err;

	cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a lease");
	fail_pods(owner, CELL_KUBE_WAITING, CELL_KUBE_WAITING, &err);
	step_done(owner);
}

static void make_lease(struct cell__kube_owner *owner)
{
	char random[25], now[32], holder[160], host[128] = "";
	char *body;

	cell__random_hex(random, sizeof(random) - 1);
	snprintf(owner->lease, sizeof(owner->lease), "workcell-%s", random);
	write_now(now);
	(void)gethostname(host, sizeof(host) - 1);
	snprintf(holder, sizeof(holder), "%s/%ld", host, (long)getpid());
	body = text_of_json(json_pack("{s:s,s:s,s:{s:s,s:{s:s}},s:{s:s,s:i,s:s,s:s}}", "apiVersion", "coordination.k8s.io/v1", "kind",
				      "Lease", "metadata", "name", owner->lease, "labels", CELL_KUBE_OWNER, "lease", "spec",
				      "holderIdentity", holder, "leaseDurationSeconds", CELL_KUBE_LEASE_SECONDS, "acquireTime", now,
				      "renewTime", now));
	if (!body || !ask(owner, "POST", NULL, body, handle_lease_made, ""))
		out_of_memory(owner);
}

static void handle_turn(struct cell__kube_owner *owner)
{
	if (owner->read_err.code) {
		fail_pods(owner, CELL_KUBE_WAITING, CELL_KUBE_WAITING, &owner->read_err);
		step_done(owner);
	} else if (!*owner->lease_uid) {
		make_lease(owner);
	} else {
		start_waiting(owner);
		step_done(owner);
	}
}

void cell__kube_owner_turn(struct cell__kube_owner *owner)
{
	const struct cell__kube_pod *pod = owner->pods;

	while (pod && pod->state != CELL_KUBE_WAITING)
		pod = pod->next;
	if (pod && !owner->busy && !owner->is_closing)
		with_access(owner, handle_turn);
}

/* ---- the leases of others ---- */

static void remove_stale(struct cell__kube_owner *owner);

static void handle_stale_removed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;

	(void)answer;
	owner->request = NULL;
	if (status && status < 400)
		CELL_KUBE_LOG(owner, CELL_LOG_INFO, "removed the lease of a program that has died; its pods go with it");
	else if (status != 404 && status != 409) /* removed or renewed meanwhile */
		CELL_KUBE_LOG(owner, CELL_LOG_WARN, "cannot remove the lease of a program that has died: %s", err->msg);
	remove_stale(owner);
}

static void remove_stale(struct cell__kube_owner *owner)
{
	const json_t *lease = json_array_get(owner->stale, owner->removing);
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE];
	const char *version = json_string_value(json_object_get(json_object_get(lease, "metadata"), "resourceVersion"));
	char *body;

	owner->removing++;
	if (!lease || owner->is_closing) {
		step_done(owner);
		return;
	}
	if (!cell__kube_identity(lease, name, uid)) { /* only those that have one are stale */
		remove_stale(owner);
		return;
	}
	body = text_of_json(
		json_pack("{s:{s:s,s:s},s:s}", "preconditions", "uid", uid, "resourceVersion", version, "propagationPolicy", "Background"));
	if (!body || !ask(owner, "DELETE", NULL, body, handle_stale_removed, name))
		step_done(owner);
}

/* What is known of a lease: {"version", "since"}.  Returns whether nobody has renewed it for as long as it is valid. */
static bool is_stale(struct cell__kube_owner *owner, const json_t *lease, json_t *known)
{
	const json_t *spec = json_object_get(lease, "spec"), *before;
	const char *version = json_string_value(json_object_get(json_object_get(lease, "metadata"), "resourceVersion"));
	char name[CELL_KUBE_NAME_SIZE], uid[CELL_KUBE_UID_SIZE];
	int64_t now = cell__now_us(), since = now, seconds = json_integer_value(json_object_get(spec, "leaseDurationSeconds"));

	if (!version || !cell__kube_identity(lease, name, uid) || !strcmp(name, owner->lease))
		return false;
	before = json_object_get(owner->others, name);
	if (before && !strcmp(json_string_value(json_object_get(before, "version")), version))
		since = json_integer_value(json_object_get(before, "since"));
	(void)json_object_set_new(known, name, json_pack("{s:s,s:I}", "version", version, "since", (json_int_t)since));
	if (seconds < CELL_KUBE_LEASE_SECONDS)
		seconds = CELL_KUBE_LEASE_SECONDS;
	return now - since > (seconds > LONGEST_LEASE_SECONDS ? LONGEST_LEASE_SECONDS : seconds) * 1000000;
}

static void handle_leases(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;
	json_t *known = json_object(), *stale = json_array(), *lease;
	size_t i;

	(void)err;
	owner->request = NULL;
	if (status == 200 && known && stale && json_array_size(json_object_get(answer, "items")) <= MOST_OTHERS) {
		json_array_foreach(json_object_get(answer, "items"), i, lease) {
			if (is_stale(owner, lease, known))
				json_array_append(stale, lease);
		}
		json_decref(owner->others);
		owner->others = json_incref(known);
	}
	json_decref(known);
	json_decref(owner->stale);
	owner->stale = stale;
	owner->removing = 0;
	remove_stale(owner);
}

static void handle_renewed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;
	struct cell_error lost;

	(void)answer;
	owner->request = NULL;
	if (status == 404 || status == 409) {
		cell_fail(
			&lost, CELL_E_KERNEL, 0,
			"the lease of this program was removed, and its pods with it: it could not be renewed for %d s, or somebody deleted it",
			CELL_KUBE_LEASE_SECONDS);
		uv_timer_stop(&owner->timer);
		owner->lease_uid[0] = '\0';
		fail_pods(owner, CELL_KUBE_FINDING, CELL_KUBE_READY, &lost);
		step_done(owner);
		return;
	}
	if (!status || status >= 400) {
		if (!owner->has_warned)
			CELL_KUBE_LOG(owner, CELL_LOG_WARN, "the lease of this program cannot be renewed: %s", err->msg);
		owner->has_warned = true;
		step_done(owner);
		return;
	}
	owner->has_warned = false;
	if (!ask(owner, "GET", NULL, NULL, handle_leases, "?labelSelector=" CELL_KUBE_OWNER "%3Dlease"))
		step_done(owner);
}

static void renew(struct cell__kube_owner *owner)
{
	char now[32];
	char *body;

	if (owner->read_err.code && !owner->has_warned) {
		CELL_KUBE_LOG(owner, CELL_LOG_WARN, "the access to the cluster cannot be read any more: %s", owner->read_err.msg);
		owner->has_warned = true;
	}
	/* What was read before may still be valid. */
	write_now(now);
	body = text_of_json(json_pack("{s:{s:s},s:{s:s}}", "metadata", "uid", owner->lease_uid, "spec", "renewTime", now));
	if (!body || !ask(owner, "PATCH", CELL_KUBE_MERGE_PATCH, body, handle_renewed, owner->lease))
		step_done(owner);
}

static void tick(struct cell__kube_owner *owner)
{
	owner->is_due = false;
	if (*owner->lease_uid)
		with_access(owner, renew);
}

/* ---- its life ---- */

static void handle_lease_removed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct cell__kube_owner *owner = arg;

	(void)answer;
	owner->request = NULL;
	if (!status || (status >= 400 && status != 404 && status != 409))
		CELL_KUBE_LOG(owner, CELL_LOG_WARN, "the lease of this program could not be deleted; others will find it expired: %s",
			      err->msg);
	close_handles(owner);
}

/* Closing: everything else has ended first. */
static void end(struct cell__kube_owner *owner)
{
	char *body;

	if (owner->pods || owner->busy)
		return;
	uv_timer_stop(&owner->timer);
	body = *owner->lease_uid ? text_of_json(json_pack("{s:{s:s},s:s}", "preconditions", "uid", owner->lease_uid, "propagationPolicy",
							  "Background"))
				 : NULL;
	owner->busy = true;
	if (!body || !ask(owner, "DELETE", NULL, body, handle_lease_removed, owner->lease))
		close_handles(owner);
}

void cell__kube_owner_check(struct cell__kube_owner *owner)
{
	if (owner->is_closing)
		end(owner);
}

void cell__kube_owner_close(struct cell__kube_owner *owner)
{
	struct cell__kube_pod *next;

	owner->is_closing = true;
	for (struct cell__kube_pod *pod = owner->pods; pod; pod = next) {
		next = pod->next;
		if (pod->state != CELL_KUBE_REMOVING)
			cell__kube_pod_remove(pod);
	}
	end(owner);
}

struct cell__kube_owner *cell__kube_owner_of(struct cell__kube_all *all, const char *cluster, struct cell_error *err)
{
	struct cell__kube_owner *owner = all->first;
	struct cell__http *http;

	while (owner && strcmp(owner->key, cluster))
		owner = owner->next;
	if (owner)
		return owner;
	http = cell__remote_http(all->host, err);
	owner = http ? cell__alloc(1, sizeof(*owner)) : NULL;
	if (owner)
		*owner = (struct cell__kube_owner){ .all = all,
						    .next = all->first,
						    .key = cell__strdup(cluster),
						    .config = json_loads(cluster, 0, NULL),
						    .others = json_object(),
						    .http = http,
						    .open_handles = 2 };
	if (!owner || !owner->key || !owner->config || !owner->others) {
		if (owner) {
			json_decref(owner->config);
			json_decref(owner->others);
			free(owner->key);
		}
		free(owner);
		if (http)
			cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a cluster");
		return NULL;
	}
	all->first = owner;
	uv_timer_init(cell__loop_uv(all->host->loop), &owner->timer);
	uv_timer_init(cell__loop_uv(all->host->loop), &owner->watch_timer);
	owner->timer.data = owner->watch_timer.data = owner;
	return owner;
}
