/*
 * A kernel here is a session of a server that runs in a container: remote.c talks to it, over a Unix socket in a folder that
 * both sides see.  The first session with certain options makes the container, which serves all later ones with the same options.
 *
 *     sweep ──▶ info ──▶ create ──no such image──▶ build ──▶ create ──▶ start ──▶ inspect ──▶ /health, again and again ──▶ ready
 *       └─────────┴────────┴────────────────────────┴─────────┴─────────┴────────┴──────────┴──▶ failed: waiting kernels get the reason
 *     ready ──it ended, or its server cannot be reached──▶ failed (the next session gets a new one) ──last session gone──▶ removed
 *
 * A container has at most one request in progress, or work on the pool (its folder's files), or its timer; a ready one waits for the
 * engine to report its end.
 * `slots` are the kernels that use it or wait for it.
 */
#define _GNU_SOURCE
#include "executors/container/container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "executors/container/dialer.h"
#include "executors/registry.h"
#include "executors/remote/remote.h"

#define WATCH_AGAIN_MS 2000
#define FIRST_PAUSE_MS 10
#define LONGEST_PAUSE_MS 200
#define HEALTH_TIMEOUT_MS 2000L
#define INSPECT_EVERY_US 500000 /* at the container itself, while its server does not answer */
#define SAY_EVERY_US 2000000
#define MAX_LOG_BYTES (32u << 10) /* its end, which has the reason of the container's end */
#define LOG_LINES "100"

#define LOG(container, level, ...) (container)->all->host->log((container)->all->host->log_arg, level, __VA_ARGS__)

struct cell__containers {
	struct cell__executor_host *host; /* first */
	struct container *first;
	void (*done)(void *arg); /* not NULL: all are being removed */
	void *done_arg;
};

enum state { STARTING, READY, FAILED, REMOVING };

struct slot {
	struct container *container;
	struct cell__kernel *kernel;
	struct slot *next;
};

struct container {
	struct cell__containers *all;
	struct container *next;
	enum state state;
	char *key;
	json_t *config;
	struct cell__docker docker, server; /* the engine, and the server inside */
	struct cell__docker_request *request;
	struct cell__image_build *build;
	struct cell__dialer *dialer; /* NULL: its storage is not in Redis */
	bool has_built, creating;
	uv_work_t work;
	bool working; /* the pool does job(), then the loop's thread then() */
	void (*job)(struct container *container);
	void (*then)(struct container *container);
	int listen_fd; /* of the dialer to be made; -1: none */
	struct cell__container_place place;
	char id[65];
	pid_t pid;             /* of the server, its first process; 0: the engine does not report it */
	char *url, *receipt;
	int socket;            /* O_PATH: the server's own, even if the code inside replaces it */
	json_t *orphans;       /* of others, still to be removed */
	size_t orphan;
	struct slot *slots;
	uv_timer_t timer;
	int64_t began_us, inspected_us, said_us, pause_ms;
	struct cell_error err; /* FAILED: why */
	char log[MAX_LOG_BYTES];
	size_t log_size;
};

static void remove_container(struct container *container);
static void create(struct container *container);
static void ask_health(struct container *container);

/* ---- the end ---- */

static void free_all(struct cell__containers *all)
{
	void (*done)(void *) = all->done;
	void *done_arg = all->done_arg;

	free(all);
	done(done_arg);
}

static void container_free(struct container *container)
{
	struct cell__containers *all = container->all;
	struct container **at = &all->first;

	while (*at != container)
		at = &(*at)->next;
	*at = container->next;
	cell__close_fd(&container->socket);
	cell__close_fd(&container->listen_fd);
	cell__docker_finish(&container->docker);
	cell__docker_finish(&container->server);
	json_decref(container->config);
	json_decref(container->orphans);
	free(container->key);
	free(container->url);
	free(container->receipt);
	free(container);
	if (!all->first && all->done)
		free_all(all);
}

static void handle_dialer_closed(void *arg)
{
	container_free(arg);
}

static void handle_timer_closed(uv_handle_t *handle)
{
	struct container *container = handle->data;

	cell__dialer_close(cell__take_ptr(container->dialer), handle_dialer_closed, container);
}

static void handle_removed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;

	(void)answer;
	container->request = NULL;
	if (!status || (status >= 400 && status != 404))
		LOG(container, CELL_LOG_WARN,
		    "container %.12s could not be removed; the next program that uses containers will remove it: %s", container->id,
		    err->msg);
	uv_close((uv_handle_t *)&container->timer, handle_timer_closed);
}

static struct cell__docker_request *ask(struct container *container, const char *method, const char *path, char *body,
					void (*done)(void *arg, long status, json_t *answer, const struct cell_error *err))
{
	struct cell__docker_call call = {
		.method = method, .path = path, .body = body, .size = body ? strlen(body) : 0, .done = done, .arg = container
	};

	container->request = cell__docker_start(&container->docker, &call);
	return container->request;
}

static void do_job(uv_work_t *work)
{
	struct container *container = work->data;

	container->job(container);
}

static void ask_removal(struct container *container);

static void handle_job_done(uv_work_t *work, int status)
{
	struct container *container = work->data;

	(void)status; /* never cancelled */
	container->working = false;
	if (container->state == REMOVING && container->then != ask_removal)
		remove_container(container);
	else
		container->then(container);
}

/* Looking up paths may block: the pool does it.  job() is the only one to use the container meanwhile, except for its end. */
static void on_pool(struct container *container, void (*job)(struct container *container), void (*then)(struct container *container))
{
	container->working = true;
	container->job = job;
	container->then = then;
	container->work.data = container;
	uv_queue_work(cell__loop_uv(container->all->host->loop), &container->work, do_job, handle_job_done);
}

static void remove_folder(struct container *container)
{
	if (*container->place.folder)
		cell__container_remove_place(container->place.folder);
	container->place.folder[0] = '\0';
}

static void ask_removal(struct container *container)
{
	char path[128];

	snprintf(path, sizeof(path), "/containers/%s?force=true&v=true", container->id);
	if (!*container->id || !ask(container, "DELETE", path, NULL, handle_removed))
		uv_close((uv_handle_t *)&container->timer, handle_timer_closed);
}

static void remove_container(struct container *container)
{
	container->state = REMOVING;
	if (container->creating || container->working) /* its id must be known first; the pool must be done with it */
		return;
	if (container->request)
		cell__docker_cancel(cell__take_ptr(container->request));
	if (container->build)
		cell__image_cancel(cell__take_ptr(container->build));
	uv_timer_stop(&container->timer);
	/* Remove the folder before the container: if we are killed in between, the next program finds the container, but not the folder alone. */
	on_pool(container, remove_folder, ask_removal);
}

/* Kernels that use it see their connections break; waiting kernels are told here. */
static void fail(struct container *container, const struct cell_error *err)
{
	struct slot *next;

	if (container->state >= FAILED)
		return;
	container->state = FAILED;
	container->err = *err;
	if (!container->slots) /* nobody else is told */
		LOG(container, CELL_LOG_WARN, "container: %s", err->msg);
	for (struct slot *slot = container->slots; slot; slot = next) {
		next = slot->next;
		cell__remote_refuse(slot->kernel, &container->err);
	}
	if (!container->slots)
		remove_container(container);
}

static void out_of_memory(struct container *container)
{
	struct cell_error err;

	cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a container");
	fail(container, &err);
}

/* ---- health ---- */

static void watch(struct container *container);

static void handle_watch_again(uv_timer_t *timer)
{
	watch(timer->data);
}

static void handle_end_known(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	json_t *state = json_object_get(answer, "State");
	struct cell_error why;

	(void)err;
	container->request = NULL;
	if (status == 200)
		cell_fail(&why, CELL_E_KERNEL, 0, "the container ended with status %d%s",
			  (int)json_integer_value(json_object_get(state, "ExitCode")),
			  json_is_true(json_object_get(state, "OOMKilled")) ? ": it was out of memory" : "");
	else
		cell_fail(&why, CELL_E_KERNEL, 0, "the container was removed");
	fail(container, &why);
}

/* While the engine cannot be reached the container may well live: its sessions will tell. */
static void handle_ended(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	char path[128];

	(void)answer;
	(void)err;
	container->request = NULL;
	snprintf(path, sizeof(path), "/containers/%s/json", container->id);
	if (status != 200 && status != 404) {
		uv_update_time(cell__loop_uv(container->all->host->loop));
		uv_timer_start(&container->timer, handle_watch_again, WATCH_AGAIN_MS, 0);
	} else if (!ask(container, "GET", path, NULL, handle_end_known)) {
		out_of_memory(container);
	}
}

/* The engine answers when the container has ended. */
static void watch(struct container *container)
{
	char path[128];
	struct cell__docker_call call = { .method = "POST", .path = path, .timeout_ms = -1, .done = handle_ended, .arg = container };

	snprintf(path, sizeof(path), "/containers/%s/wait", container->id);
	container->request = cell__docker_start(&container->docker, &call);
	if (!container->request)
		out_of_memory(container);
}

static void keep_socket(struct container *container)
{
	container->err.code = 0;
	if (cell__container_keep_socket(container->server.socket, container->pid, &container->socket, &container->err) == 0)
		cell__container_close_place(container->place.folder);
}

static void become_ready(struct container *container)
{
	struct slot *next;
	struct cell_error err = container->err;

	if (err.code) {
		fail(container, &err);
		return;
	}
	container->receipt = cell__container_receipt(container->config, container->id);
	if (!container->receipt || asprintf(&container->url, "unix:/proc/self/fd/%d", container->socket) < 0) {
		container->url = NULL;
		out_of_memory(container);
		return;
	}
	container->state = READY;
	watch(container);
	LOG(container, CELL_LOG_INFO, "container %.12s is ready after %lld ms", container->id,
	    (long long)(cell__now_us() - container->began_us) / 1000);
	for (struct slot *slot = container->slots; slot; slot = next) {
		next = slot->next;
		cell__remote_connect(slot->kernel, container->url, *container->place.token ? container->place.token : NULL,
				     container->receipt);
	}
}

/* Keeps the last part of it. */
static bool take_log(void *arg, const char *bytes, size_t size)
{
	struct container *container = arg;
	size_t room = sizeof(container->log) - 1, kept = container->log_size;

	if (size > room) {
		bytes += size - room;
		size = room;
	}
	if (kept + size > room) {
		memmove(container->log, container->log + (kept + size - room), room - size);
		kept = room - size;
	}
	memcpy(container->log + kept, bytes, size);
	container->log_size = kept + size;
	return true;
}

static void handle_log(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	struct cell_error why;

	(void)answer;
	(void)status;
	(void)err;
	container->request = NULL;
	cell__container_read_log(container->log, container->log_size, container->err.msg, &why);
	fail(container, &why);
}

static void handle_inspected(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	json_t *state = json_object_get(answer, "State");
	char path[160];
	struct cell__docker_call call = { .method = "GET", .path = path, .piece = take_log, .done = handle_log, .arg = container };

	container->request = NULL;
	if (!status || status >= 400) {
		fail(container, err);
		return;
	}
	if (json_is_true(json_object_get(state, "Running"))) {
		ask_health(container);
		return;
	}
	cell_fail(&container->err, CELL_E_KERNEL, 0, "the container ended with status %d%s before its server answered",
		  (int)json_integer_value(json_object_get(state, "ExitCode")),
		  json_is_true(json_object_get(state, "OOMKilled")) ? " (out of memory)" : "");
	snprintf(path, sizeof(path), "/containers/%s/logs?stdout=true&stderr=true&tail=" LOG_LINES, container->id);
	container->request = cell__docker_start(&container->docker, &call);
	if (!container->request)
		out_of_memory(container);
}

static void handle_pause_over(uv_timer_t *timer)
{
	struct container *container = timer->data;
	int64_t now = cell__now_us();
	char path[128];

	if (now - container->said_us > SAY_EVERY_US) {
		container->said_us = now;
		LOG(container, CELL_LOG_INFO, "container %.12s: waiting for its server, %lld s", container->id,
		    (long long)(now - container->began_us) / 1000000);
	}
	if (now - container->inspected_us < INSPECT_EVERY_US) {
		ask_health(container);
		return;
	}
	container->inspected_us = now;
	snprintf(path, sizeof(path), "/containers/%s/json", container->id);
	if (!ask(container, "GET", path, NULL, handle_inspected))
		out_of_memory(container);
}

static void handle_health(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	int64_t waited = (cell__now_us() - container->began_us) / 1000;
	int64_t most = cell__container_startup_ms(container->config);
	const char *state = json_string_value(json_object_get(answer, "status"));
	bool is_starting = status == 200 && state && strcmp(state, "starting") == 0; /* it lives, but refuses sessions */
	struct cell_error late;

	container->request = NULL;
	if (status == 200 && !is_starting) {
		on_pool(container, keep_socket, become_ready);
	} else if (waited > most) {
		cell_fail(&late, CELL_E_TIMEOUT, 0, "the container did not become healthy within %lld s: %.150s", (long long)most / 1000,
			  is_starting ? "its server is still starting" : err->msg);
		fail(container, &late);
	} else {
		uv_update_time(cell__loop_uv(container->all->host->loop));
		uv_timer_start(&container->timer, handle_pause_over, (uint64_t)container->pause_ms, 0);
		container->pause_ms = container->pause_ms * 2 < LONGEST_PAUSE_MS ? container->pause_ms * 2 : LONGEST_PAUSE_MS;
	}
}

static void ask_health(struct container *container)
{
	struct cell__docker_call call = {
		.method = "GET", .path = "/health", .timeout_ms = HEALTH_TIMEOUT_MS, .done = handle_health, .arg = container
	};

	container->request = cell__docker_start(&container->server, &call);
	if (!container->request)
		out_of_memory(container);
}

/* ---- making it ---- */

/* Only its server, and no other process in it, gets connections to Redis. */
static void handle_first_inspection(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	json_t *state = json_object_get(answer, "State");
	json_int_t pid = json_integer_value(json_object_get(state, "Pid"));
	struct cell_error why;

	if (status == 200 && cell__container_check(container->config, answer, &why) < 0) {
		container->request = NULL;
		fail(container, &why);
		return;
	}
	container->pid = status == 200 && pid > 0 ? (pid_t)pid : 0;
	if (container->pid && container->dialer)
		cell__dialer_serve(container->dialer, container->pid);
	handle_inspected(arg, status, answer, err);
}

static void handle_started(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	char path[128];

	(void)answer;
	container->request = NULL;
	if (!status || status >= 400) {
		fail(container, err);
		return;
	}
	container->began_us = container->inspected_us = container->said_us = cell__now_us();
	container->pause_ms = FIRST_PAUSE_MS;
	snprintf(path, sizeof(path), "/containers/%s/json", container->id);
	if (!ask(container, "GET", path, NULL, handle_first_inspection))
		out_of_memory(container);
}

static void say_line(void *arg, const char *line)
{
	struct container *container = arg;

	LOG(container, CELL_LOG_INFO, "build: %s", line);
}

static void handle_image(void *arg, const struct cell_error *err)
{
	struct container *container = arg;

	container->build = NULL;
	if (err)
		fail(container, err);
	else
		create(container);
}

static void build_image(struct container *container, const struct cell_error *err)
{
	const char *image = json_string_value(json_object_get(container->config, "image"));
	struct cell_error missing;

	if (!json_object_get(container->config, "context") || container->has_built) {
		cell_fail(&missing, CELL_E_UNAVAILABLE, 0, "%.120s; build the image: workcell container build --image %.60s", err->msg,
			  image);
		fail(container, &missing);
		return;
	}
	LOG(container, CELL_LOG_INFO, "image %s not found: building it", image);
	container->has_built = true;
	container->build = cell__image_build(container->all->host->loop, &container->docker, container->config, say_line, handle_image,
					     container);
	if (!container->build)
		out_of_memory(container);
}

static bool is_id(const char *id)
{
	return id && *id && strlen(id) <= 64 && !id[strspn(id, "0123456789abcdef")];
}

static void handle_created(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;
	const char *id = json_string_value(json_object_get(answer, "Id"));
	struct cell_error odd;
	char path[128];

	container->request = NULL;
	container->creating = false;
	if (status == 404 && container->state == STARTING) {
		build_image(container, err);
		return;
	}
	if ((!status || status >= 400) && container->state == STARTING) {
		fail(container, err);
		return;
	}
	if (container->state == STARTING && !is_id(id)) {
		cell_fail(&odd, CELL_E_PROTOCOL, 0, "the container engine created a container without a valid id");
		fail(container, &odd);
		return;
	}
	if (is_id(id))
		strcpy(container->id, id);
	if (container->state != STARTING) {
		remove_container(container);
		return;
	}
	snprintf(path, sizeof(path), "/containers/%s/start", id);
	if (!ask(container, "POST", path, NULL, handle_started))
		out_of_memory(container);
}

static void create(struct container *container)
{
	const char *name = json_string_value(json_object_get(container->config, "name"));
	char *body = cell__container_body(container->config, &container->place);
	char path[256], made[17];

	cell__random_hex(made, sizeof(made) - 1);
	snprintf(path, sizeof(path), "/containers/create?name=%s%s", name ? name : "workcell-", name ? "" : made);
	container->creating = body && ask(container, "POST", path, body, handle_created);
	if (!container->creating)
		out_of_memory(container);
}

static void handle_info(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;

	container->request = NULL;
	if (!status || status >= 400)
		fail(container, err);
	else if (cell__container_take_info(container->config, answer) < 0)
		out_of_memory(container);
	else
		create(container);
}

/* Root's engine has root's users. */
static void learn_engine(struct container *container)
{
	if (geteuid() == 0)
		create(container);
	else if (!ask(container, "GET", "/info", NULL, handle_info))
		out_of_memory(container);
}

/* ---- containers that other programs left ---- */

static void remove_next_orphan(struct container *container);

static void handle_orphan_removed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;

	(void)answer;
	container->request = NULL;
	if (status && status < 400)
		LOG(container, CELL_LOG_INFO, "removed a container that a dead program had left behind");
	else if (status != 404 && status != 409) /* removed already, or another program is removing it */
		LOG(container, CELL_LOG_WARN, "cannot remove a container that a dead program had left behind: %s", err->msg);
	remove_next_orphan(container);
}

/* The one that was found last. */
static const json_t *orphan_of(const struct container *container)
{
	return json_array_get(container->orphans, container->orphan - 1);
}

static void remove_orphans_folder(struct container *container)
{
	const char *folder = json_string_value(
		json_object_get(json_object_get(orphan_of(container), "Labels"), CELL_CONTAINER_FOLDER_LABEL));

	if (folder && !strncmp(folder, CELL_CONTAINER_FOLDER, strlen(CELL_CONTAINER_FOLDER)) &&
	    !strchr(folder + strlen(CELL_CONTAINER_FOLDER), '/'))
		cell__container_remove_place(folder);
}

static void remove_orphan(struct container *container)
{
	char path[128];

	snprintf(path, sizeof(path), "/containers/%s?force=true&v=true", json_string_value(json_object_get(orphan_of(container), "Id")));
	if (!ask(container, "DELETE", path, NULL, handle_orphan_removed))
		out_of_memory(container);
}

static void remove_next_orphan(struct container *container)
{
	const json_t *entry;

	while ((entry = json_array_get(container->orphans, container->orphan))) {
		container->orphan++;
		if (!is_id(json_string_value(json_object_get(entry, "Id"))) || !cell__container_is_orphan(entry))
			continue;
		on_pool(container, remove_orphans_folder, remove_orphan);
		return;
	}
	learn_engine(container);
}

static void handle_listed(void *arg, long status, json_t *answer, const struct cell_error *err)
{
	struct container *container = arg;

	container->request = NULL;
	if (!status || status >= 400) {
		fail(container, err);
		return;
	}
	container->orphans = json_incref(answer);
	remove_next_orphan(container);
}

/* ---- opening ---- */

static int container_create(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state,
			    struct cell_error *err)
{
	(void)opts;
	return cell__executor_create_state(host, sizeof(struct cell__containers), ret_state, err);
}

static int make_dialer(struct container *container, struct cell_error *err)
{
	const json_t *redis = json_object_get(container->config, "redis");

	if (!redis)
		return 0;
	return cell__dialer_create(container->all->host->loop, &container->listen_fd, json_string_value(json_object_get(redis, "host")),
				   (int)json_integer_value(json_object_get(redis, "port")),
				   json_string_value(json_object_get(redis, "path")), &container->dialer, err);
}

static void make_folder(struct container *container)
{
	const json_t *config = container->config;
	char at[sizeof(container->place.folder) + 32];

	if (cell__container_make_place(config, &container->place, &container->err) < 0 || !json_object_get(config, "redis"))
		return;
	snprintf(at, sizeof(at), "%s/" CELL_CONTAINER_DIALER, container->place.folder);
	(void)cell__dialer_listen(at, (uid_t)json_integer_value(json_object_get(config, "uid")),
				  (gid_t)json_integer_value(json_object_get(config, "gid")), &container->listen_fd, &container->err);
}

static void handle_folder_made(struct container *container)
{
	struct cell_error err = container->err;
	char server[sizeof(container->place.folder) + 32];

	snprintf(server, sizeof(server), "unix://%s/server.sock", container->place.folder);
	if (!err.code && cell__docker_init(&container->server, container->docker.http, server, &err) == 0 &&
	    make_dialer(container, &err) == 0 &&
	    !ask(container, "GET", "/containers/json?all=true&filters=%7B%22label%22%3A%5B%22" CELL_CONTAINER_LABEL "%22%5D%7D", NULL,
		 handle_listed))
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory for a container");
	if (err.code)
		fail(container, &err);
}

/* Its folder is being made, or it is NULL. */
static struct container *make_container(struct cell__containers *all, const char *key, struct cell_error *err)
{
	struct container *container = cell__alloc(1, sizeof(*container));
	struct cell__http *http = cell__remote_http(all->host, err);
	int status;

	if (!container || !http) {
		if (!container)
			cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a container");
		free(container);
		return NULL;
	}
	*container = (struct container){
		.all = all, .key = cell__strdup(key), .config = json_loads(key, 0, NULL), .socket = -1, .listen_fd = -1, .next = all->first
	};
	all->first = container;
	uv_timer_init(cell__loop_uv(all->host->loop), &container->timer);
	container->timer.data = container;
	status = !container->key || !container->config ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a container") : 0;
	if (!status)
		status = cell__docker_init(&container->docker, http, json_string_value(json_object_get(container->config, "engine")), err);
	if (status) {
		container->state = REMOVING;
		uv_close((uv_handle_t *)&container->timer, handle_timer_closed);
		return NULL;
	}
	on_pool(container, make_folder, handle_folder_made);
	return container;
}

static struct container *find_container(struct cell__containers *all, const char *key)
{
	struct container *container = all->first;

	while (container &&
	       (container->state > READY || json_is_true(json_object_get(container->config, "each")) || strcmp(container->key, key)))
		container = container->next;
	return container;
}

/* A misbehaving server, for whatever reason, gets no further sessions; a container for one session ends with it. */
static void handle_gone(void *arg, const struct cell__exit *how)
{
	struct slot *slot = arg, **at = &slot->container->slots;
	struct container *container = slot->container;

	while (*at != slot)
		at = &(*at)->next;
	*at = slot->next;
	free(slot);
	if (container->state == READY &&
	    (how->suspect || how->error.code == CELL_E_IO || how->error.code == CELL_E_PROTOCOL || how->error.code == CELL_E_AUTH))
		container->state = FAILED;
	if (!container->slots && (container->state == FAILED || json_is_true(json_object_get(container->config, "each"))))
		remove_container(container);
}

static int container_open(struct cell__executor_host *host, const struct cell__kernel_spec *spec, const struct cell__kernel_events *events,
			  void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	const struct cell__container_own *own = spec->own;
	struct cell__containers *all = *cell__executor_state(host, &cell__container_executor);
	struct container *container;
	struct slot *slot = cell__alloc(1, sizeof(*slot));

	if (!slot)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	container = find_container(all, own->config);
	if (!container)
		container = make_container(all, own->config, err);
	if (!container ||
	    cell__remote_wait(host, &cell__container_executor, own->remote, events, owner, handle_gone, slot, &slot->kernel, err) < 0) {
		free(slot);
		return -1; /* a container that was made for it serves the next one */
	}
	slot->container = container;
	slot->next = container->slots;
	container->slots = slot;
	*ret_kernel = slot->kernel;
	if (container->state == READY)
		cell__remote_connect(slot->kernel, container->url, *container->place.token ? container->place.token : NULL,
				     container->receipt);
	return 0;
}

static int container_fork(struct cell__kernel *kernel, const char *session_id, const struct cell__layer *layer, unsigned flags,
			  const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct slot *slot = cell__alloc(1, sizeof(*slot));
	struct container *container;

	(void)session_id; /* the server has its own */
	(void)layer;
	if (!slot)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	container = ((struct slot *)cell__remote_gone_arg(kernel))->container;
	if (cell__remote_branch(kernel, flags, events, owner, handle_gone, slot, &slot->kernel, err) < 0) {
		free(slot);
		return -1;
	}
	slot->container = container;
	slot->next = container->slots;
	container->slots = slot;
	*ret_kernel = slot->kernel;
	return 0;
}

/* At the usual path: only the options of a session name another one. */
static void container_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	CELL_AUTO_FD int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = CELL_DOCKER_SOCKET_PATH };

	(void)host;
	info->available = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0;
	if (info->available)
		return;
	snprintf(info->reason, sizeof(info->reason), "no container engine at %s: %s", CELL_DOCKER_SOCKET_PATH, strerror(errno));
	snprintf(info->advice, sizeof(info->advice),
		 "install Docker or Podman, or set DOCKER_HOST or --container-host to an engine elsewhere");
}

static void container_destroy(void *state, void (*done)(void *arg), void *arg)
{
	struct cell__containers *all = state;
	struct container *next;

	all->done = done;
	all->done_arg = arg;
	if (!all->first) {
		free_all(all);
		return;
	}
	for (struct container *container = all->first; container; container = next) {
		next = container->next;
		if (container->state != REMOVING)
			remove_container(container);
	}
}

const struct cell__executor cell__container_executor = {
	.name = "container",
	.isolation = "container",
	.takes = CELL_TAKES_CONTAINER | CELL_TAKES_WORKSPACE | CELL_TAKES_LIMITS | CELL_TAKES_NETWORK | CELL_TAKES_LAYER,
	.calls_there = true,
	.create = container_create,
	.destroy = container_destroy,
	.read_options = cell__container_read_options,
	.free_options = cell__container_free_options,
	.probe = container_probe,
	.open = container_open,
	.fork = container_fork,
	CELL__REMOTE_KERNEL,
	.receipt = "{\"executor\":\"container\"}",
};
