/*
 * Environments of the `subprocess` executor: an interpreter with its preloads, and the zygote that its kernels are forked
 * from, from its start to its end.  Sandboxed kernels have a zygote that is confined itself, and of their own.
 */
#define _GNU_SOURCE
#include "executors/subprocess/kernel.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "base/hole.h"
#include "sandbox/build.h"

#define SITE_REFUSED 77   /* what sitecheck.py ends with */
#define WRITABLE_NAMED 64 /* folders that it gets by name */
#define FORKS_IN_FLIGHT 64 /* per zygote; far below the capacity of its socket */
#define ZONE_TRIES 4        /* starts of a zygote whose zone died, and how long its processes are given to end */
#define ZONE_DELAY_MS 25

bool cell__sub_env_serves(const struct cell__sub_env *env, const char *python, const char *preload, const char *owner,
			  enum cell__zygote_kind kind)
{
	return !env->ending && env->kind == kind && strcmp(env->python, python) == 0 && strcmp(env->preload, preload) == 0 &&
	       (strcmp(env->owner, owner) == 0 || is_hole("zygote-owner"));
}

int cell__sub_env_find(struct cell__subprocess *sub, const char *python, const char *preload, const char *owner,
		       enum cell__zygote_kind kind, struct cell__sub_env **ret_env, struct cell_error *err)
{
	for (struct cell__sub_env *env = sub->envs; env; env = env->next)
		if (cell__sub_env_serves(env, python, preload, owner, kind)) {
			*ret_env = env;
			return 0;
		}
	struct cell__sub_env *env = cell__alloc(1, sizeof *env);
	if (env) {
		env->python = cell__strdup(python);
		env->preload = cell__strdup(preload);
		env->owner = cell__strdup(owner);
	}
	if (!env || !env->python || !env->preload || !env->owner) {
		if (env) {
			free(env->owner);
			free(env->python);
			free(env->preload);
		}
		free(env);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	env->sub = sub;
	env->kind = kind;
	uv_timer_init(cell__loop_uv(sub->host->loop), &env->timer);
	env->timer.data = env;
	sub->open_handles++;
	if (!sub->shares.loop) {
		cell__cpu_shares_init(&sub->shares, cell__loop_uv(sub->host->loop), cell__sub_tell_share);
		sub->open_handles++;
	}
	pthread_mutex_lock(&sub->lock);
	env->next = sub->envs;
	sub->envs = env;
	pthread_mutex_unlock(&sub->lock);
	*ret_env = env;
	return 0;
}

/* Every waiter for this environment's zygote gets the reason. */
static void fail_waiting(struct cell__sub_env *env, const struct cell_error *err)
{
	for (struct cell__sub_kernel *k = env->fresh; k; k = k->fresh_next)
		if (k->state == CELL_KERNEL_WAITING) {
			k->error = *err;
			cell__sub_kernel_gone_later(k);
		}
	cell__sub_end_prewarms(env, err);
}

/* Has its zygote forked as many kernels as one may? */
static bool is_worn(const struct cell__sub_env *env)
{
	return env->sub->zygote_forks > 0 && env->forks >= env->sub->zygote_forks;
}

void cell__sub_fork_waiting(struct cell__sub_env *env)
{
	if (env->state != CELL_ENV_READY)
		return;
	while (env->in_flight < FORKS_IN_FLIGHT && !is_worn(env)) {
		struct cell__sub_kernel *oldest = env->fresh;
		while (oldest && (oldest->state != CELL_KERNEL_WAITING || oldest->preparing))
			oldest = oldest->fresh_next;
		if (!oldest)
			return;
		if (cell__sub_kernel_fork(oldest, &oldest->error) < 0)
			cell__sub_kernel_gone_later(oldest);
		else if (oldest->init && oldest->state == CELL_KERNEL_FORKING)
			cell__sub_kernel_configure(oldest); /* the socket holds it until the kernel is up */
	}
}

/* ---- its zygote ---- */

void cell__sub_zygote_failed(struct cell__sub_env *env, const struct cell_error *err)
{
	env->state = CELL_ENV_NONE;
	uv_timer_stop(&env->timer);
	if (env->zygote_id)
		cell__spawn_client_tell(&env->sub->supervisor->client, CELL_SPAWN_ZYGOTE_STOP, env->zygote_id, 0);
	env->zygote_id = 0;
	fail_waiting(env, err);
}

static void handle_start_timeout(uv_timer_t *timer)
{
	struct cell__sub_env *env = timer->data;
	struct cell_error err;
	cell_fail(&err, CELL_E_TIMEOUT, 0, "%s was not ready after %lld s; is it a Python interpreter, and do its preloads finish?",
		  env->python, (long long)(env->sub->start_timeout_ms / 1000));
	cell__sub_zygote_failed(env, &err);
}

static int add_once(json_t *list, const char *path, size_t size)
{
	const char *known;
	for (size_t i = 0; (known = json_string_value(json_array_get(list, i))); i++)
		if (strncmp(known, path, size) == 0 && known[size] == '\0')
			return 0;
	return json_array_append_new(list, json_stringn(path, size));
}

/*
 * The folders that sandboxed code can write to now, as a JSON list; "" for none. If there are many, names their parents instead: sessions
 * of a server have their folders side by side.
 */
static char *writable_folders(struct cell__sub_env *env)
{
	const struct cell__writable_list *all = cell__places_writable(env->sub->host->places);
	size_t count = 0;
	json_t *list = json_array();
	int rc = list ? 0 : -1;
	if (!all) {
		json_decref(list);
		return cell__strdup("");
	}
	for (const struct cell__writable_list *at = all; at; at = at->next)
		count += at->count;
	for (const struct cell__writable_list *at = all; at; at = at->next)
		for (size_t i = 0; i < at->count; i++) {
			const char *path = at->items[i].path, *slash = strrchr(path, '/');
			bool above = count > WRITABLE_NAMED && slash != path;
			rc |= add_once(list, path, above ? (size_t)(slash - path) : strlen(path));
		}
	char *text = rc == 0 ? json_dumps(list, JSON_COMPACT) : NULL;
	json_decref(list);
	return text;
}

static bool is_for(const struct cell__sub_env *env, const char *purpose)
{
	const size_t size = strlen(env->owner), end = strlen(purpose);
	return size >= end && strcmp(env->owner + size - end, purpose) == 0;
}

/*
 * argv and environment of a zygote: NUL-terminated strings, one after another.  -I: no variables, no folder of the person's own
 * packages, no script's or current folder on the path.  For recorded sessions the variables are ours and one fixes the hashes of texts, which
 * decide the order of sets; zygote.py does what -I does to the path.
 */
static int zygote_payload(struct cell__sub_env *env, struct cell__buf *payload, int *ret_argc)
{
	struct cell__subprocess *sub = env->sub;
	CELL_AUTO_BUF struct cell__buf script = CELL_BUF_INIT, check = CELL_BUF_INIT;
	CELL_AUTO_FREE char *writable = writable_folders(env);
	if (!writable || cell__buf_printf(&script, "%s/workcell_kernel/zygote.py", sub->kernel_dir) < 0 ||
	    cell__buf_printf(&check, "%s/workcell_kernel/sitecheck.py", sub->kernel_dir) < 0)
		return -1;
	bool checks = writable[0] && !is_hole("sitecheck");
	const char *const first[] = { env->python, "-I", "-S", check.data, writable };
	for (size_t i = 0; checks && i < sizeof first / sizeof *first; i++)
		if (cell__buf_add(payload, first[i], strlen(first[i]) + 1) < 0)
			return -1;
	bool recorded = is_for(env, CELL__ZYGOTE_RECORDED), programs = is_for(env, CELL__ZYGOTE_PROGRAMS);
	*ret_argc = (checks ? 11 : 6) + programs;
	/* The zygote's own settings; sessions get theirs in INIT. */
	CELL_AUTO_BUF struct cell__buf home = CELL_BUF_INIT;
	if (cell__buf_printf(&home, "HOME=%s", cell__home_dir()) < 0)
		return -1;
	const char *const strings[] = { env->python,
					recorded               ? "-s"
					: is_hole("user-site") ? "-E"
							       : "-I",
					script.data,
					"3",
					"4",
					env->preload,
					programs ? "programs" : NULL,
					"LANG=C.UTF-8",
					"PATH=/usr/local/bin:/usr/bin:/bin",
					home.data,
					recorded ? "PYTHONHASHSEED=0" : NULL,
					programs ? "LD_BIND_NOW=1" : NULL }; /* each fork would resolve the same names again */
	for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
		if (strings[i] && cell__buf_add(payload, strings[i], strlen(strings[i]) + 1) < 0)
			return -1;
	return 0;
}

int cell__sub_zygote_start(struct cell__sub_env *env, struct cell_error *err)
{
	struct cell__subprocess *sub = env->sub;
	if (env->state != CELL_ENV_NONE)
		return 0;
	env->starts++;
	if (cell__supervisor_start(sub->supervisor, err) < 0 || cell__sub_check_files(env, NULL, 0, err) < 0)
		return -1;
	env->state = CELL_ENV_STARTING;
	env->warm = false;
	env->forks = 0;
	for (struct cell__sub_pool *pool = env->pools; pool; pool = pool->next)
		pool->deaths = 0;
	env->started_us = cell__now_us();
	if (sub->start_timeout_ms > 0)
		uv_timer_start(&env->timer, handle_start_timeout, (uint64_t)sub->start_timeout_ms, 0);
	return 0;
}

static int send_start(struct cell__sub_env *env, struct cell_error *err)
{
	struct cell__supervisor *supervisor = env->sub->supervisor;
	CELL_AUTO_BUF struct cell__buf payload = CELL_BUF_INIT;
	int argc = 0;
	if (zygote_payload(env, &payload, &argc) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	env->zygote_id = supervisor->next_id++;
	return cell__spawn_client_send(&supervisor->client, CELL_SPAWN_ZYGOTE_START, env->zygote_id, argc, 0, payload.data, payload.size,
				       env->plan ? &env->plan->fd : NULL, env->plan ? 1 : 0, err);
}

void cell__sub_zygote_planned(struct cell__sub_env *env, struct cell__sandbox_plan *plan)
{
	struct cell_error err;
	cell__sandbox_plan_unref(env->plan);
	env->plan = plan;
	if (send_start(env, &err) < 0)
		cell__sub_zygote_failed(env, &err);
}

static void free_hosts(struct cell__sub_env *env)
{
	cell__strings_free(cell__take_ptr(env->index_hosts));
}

static void take_hosts(struct cell__sub_env *env, json_t *list)
{
	size_t n = json_array_size(list), kept = 0;
	free_hosts(env);
	env->index_hosts = cell__alloc(n + 1, sizeof *env->index_hosts);
	for (size_t i = 0; env->index_hosts && i < n; i++) {
		const char *host = json_string_value(json_array_get(list, i));
		if (host && (env->index_hosts[kept] = cell__strdup(host)))
			kept++;
	}
}

void cell__sub_zygote_ready(struct cell__sub_env *env, int64_t pid, int64_t missed, const char *payload, size_t size)
{
	struct cell_error err;
	const char *preload_error = NULL;
	json_t *ready = json_loadb(payload, size, 0, NULL);
	env->missed = (int)missed;
	if (!ready)
		ready = json_object(); /* a zygote that reports nothing has no files */
	if (!ready)
		cell_fail(&err, CELL_E_NOMEM, 0, "out of memory");
	else if (json_unpack(ready, "{s:s}", "preload_error", &preload_error) == 0)
		cell_fail(&err, CELL_E_PRELOAD, 0, "%s cannot preload %.160s", env->python, preload_error);
	else if (cell__sub_check_files(env, json_incref(ready), pid, &err) == 0)
		err.code = 0;
	json_decref(ready);
	if (err.code)
		cell__sub_zygote_failed(env, &err);
}

void cell__sub_zygote_known(struct cell__sub_env *env, int64_t pid, json_t *ready, struct cell__sub_files *files)
{
	struct cell__subprocess *sub = env->sub;
	const char *version = "", *ipython = "";
	pthread_mutex_lock(&sub->lock);
	struct cell__sub_files *before = env->files;
	env->files = files;
	pthread_mutex_unlock(&sub->lock);
	cell__sub_files_unref(before);
	take_hosts(env, json_object_get(ready, "index"));
	(void)json_unpack(ready, "{s?s, s?s}", "version", &version, "ipython", &ipython);
	uv_timer_stop(&env->timer);
	env->state = CELL_ENV_READY;
	env->zone_deaths = 0;
	env->info = (struct cell_env_info){
		.size = sizeof env->info,
		.zygote_pid = pid,
		.start_ms = (double)(cell__now_us() - env->started_us) / 1000.0,
	};
	snprintf(env->info.python, sizeof env->info.python, "%s", env->python);
	snprintf(env->info.version, sizeof env->info.version, "%s", version);
	snprintf(env->info.ipython, sizeof env->info.ipython, "%s", ipython);
	CELL_SUB_LOG(sub, CELL_LOG_INFO, "%s (Python %s) is ready", env->python, env->info.version);
	uv_timer_start(&env->timer, cell__sub_handle_refill, CELL_SUB_REFILL_DELAY_MS, 0);
	if (env->prewarms && !env->warm)
		cell__spawn_client_tell(&sub->supervisor->client, CELL_SPAWN_ZYGOTE_WARM, env->zygote_id, 0);
	cell__sub_fork_waiting(env);
	if (env->warm)
		cell__sub_zygote_warmed(env);
}

void cell__sub_zygote_warmed(struct cell__sub_env *env)
{
	env->warm = true;
	cell__sub_check_prewarms(env);
	cell__sub_pool_fill(env);
	cell__sub_check_prewarms(env);
}

/* The last line of a dead zygote's output that mentions an error, or else the last line. */
static void last_words(const char *text, size_t size, char *out, size_t out_size)
{
	const char *best = NULL;
	size_t best_size = 0;
	bool best_is_error = false;
	for (const char *at = text; at < text + size;) {
		const char *end = memchr(at, '\n', (size_t)(text + size - at));
		size_t n = (size_t)((end ? end : text + size) - at);
		bool is_error = memmem(at, n, "rror", 4) || memmem(at, n, "too old", 7);
		if (n > 0 && (is_error || !best_is_error)) {
			best = at;
			best_size = n;
			best_is_error = is_error;
		}
		at += n + 1;
	}
	size_t n = 0;
	for (size_t i = 0; i < best_size && n + 1 < out_size; i++)
		out[n++] = (unsigned char)best[i] >= 0x20 && (unsigned char)best[i] < 0x7f ? best[i] : '?';
	out[n] = '\0';
}

static void handle_start_again(uv_timer_t *timer)
{
	struct cell__sub_env *env = timer->data;
	struct cell_error err;
	if (cell__sub_zygote_start(env, &err) < 0)
		fail_waiting(env, &err);
}

/*
 * The pid 1 of the zone (spawn/zone.h) was killed, by the OOM killer or a person: the zygote ended with it, or could not be cloned into it,
 * which Linux answers with ENOMEM until the spawner has reaped every process of the zone.
 */
static bool died_with_zone(const struct cell__sub_env *env, int64_t status, int64_t failure, const struct cell_spawn_failure *told)
{
	if (!env->plan || env->zone_deaths >= ZONE_TRIES)
		return false;
	if (failure)
		return failure == ENOMEM && told->stage == CELL_SPAWN_AT_PLAN && told->step < 0;
	return status >= 0 && WIFSIGNALED((int)status) && WTERMSIG((int)status) == SIGKILL;
}

void cell__sub_zygote_exited(struct cell__sub_env *env, int64_t status, int64_t failure, const char *payload, size_t size)
{
	bool starting = env->state == CELL_ENV_STARTING;
	struct cell_error err = { 0 };
	char words[120], how[48];
	struct cell_spawn_failure told = { 0 };
	if (failure && size == sizeof told) {
		memcpy(&told, payload, sizeof told);
		size = 0;
	}
	if (starting && died_with_zone(env, status, failure, &told)) {
		env->zone_deaths++;
		env->state = CELL_ENV_NONE;
		env->zygote_id = 0;
		uv_timer_start(&env->timer, handle_start_again, ZONE_DELAY_MS, 0);
		return;
	}
	last_words(payload, size, words, sizeof words);
	if (status >= 0 && WIFSIGNALED((int)status))
		snprintf(how, sizeof how, "died of signal %d", WTERMSIG((int)status));
	else
		snprintf(how, sizeof how, "ended with status %d", status >= 0 ? WEXITSTATUS((int)status) : -1);
	if (status >= 0 && WIFEXITED((int)status) && WEXITSTATUS((int)status) == SITE_REFUSED)
		cell_fail(&err, CELL_E_INVALID, 0, "the interpreter %.60s %s; use another interpreter or workspace, or --workspace-mode ro",
			  env->python, words);
	else if (failure && told.stage == CELL_SPAWN_AT_PLAN && env->plan && told.step >= 0)
		cell__plan_failure((const struct cell_plan *)env->plan->bytes, NULL,
				   &(struct cell_plan_report){ .step = told.step, .sys = told.sys }, &err);
	else if (failure && told.stage == CELL_SPAWN_AT_PLAN && env->plan &&
		 ((const struct cell_plan *)env->plan->bytes)->mapped == CELL_MAPPED_SUBIDS)
		cell_fail(&err, CELL_E_SANDBOX, (int)failure,
			  "confine the zygote of %.100s with a subordinate id: newuidmap or newgidmap worked before and fails now",
			  env->python);
	else if (failure && told.stage == CELL_SPAWN_AT_PLAN)
		cell_fail(&err, CELL_E_SANDBOX, (int)failure, "confine the zygote of %s", env->python);
	else if (failure)
		cell_fail(&err, CELL_E_PYTHON, (int)failure, "start interpreter %s", env->python);
	else if (words[0] && !strstr(words, "-h' for more information")) /* the message of an interpreter that does not know our flags */
		cell_fail(&err, CELL_E_PYTHON, 0, "%s %s before it was ready: %s", env->python, how, words);
	else
		cell_fail(&err, CELL_E_PYTHON, 0, "%s %s before it was ready; is it a CPython 3.9 or later?", env->python, how);
	env->state = CELL_ENV_NONE;
	env->zygote_id = 0;
	uv_timer_stop(&env->timer);
	if (starting) {
		fail_waiting(env, &err);
		return;
	}
	CELL_SUB_LOG(env->sub, CELL_LOG_WARN, "the zygote of %s %s; the next use starts another", env->python, how);
	/* A new zygote serves the remaining waiters. */
	bool wanted = env->prewarms != NULL;
	for (struct cell__sub_kernel *k = env->fresh; k; k = k->fresh_next)
		wanted |= k->state == CELL_KERNEL_WAITING;
	if (wanted && cell__sub_zygote_start(env, &err) < 0)
		fail_waiting(env, &err);
}

/* ---- its end ---- */

static void stop_zygote(struct cell__sub_env *env)
{
	if (env->zygote_id)
		cell__spawn_client_tell(&env->sub->supervisor->client, CELL_SPAWN_ZYGOTE_STOP, env->zygote_id, 0);
	env->state = CELL_ENV_NONE;
	env->zygote_id = 0;
	env->warm = false;
}

void cell__sub_zygote_rotate(struct cell__sub_env *env)
{
	struct cell_error err;
	if (env->state != CELL_ENV_READY || env->in_flight > 0 || env->ending || !is_worn(env))
		return;
	/* Its kernels stay alive, also those in the pool. */
	stop_zygote(env);
	if (cell__sub_zygote_start(env, &err) < 0)
		fail_waiting(env, &err);
}

/* Does a session use it, or wait for it? */
static bool is_used(const struct cell__sub_env *env, bool also_pooled)
{
	return env->n_kernels > (also_pooled ? 0 : env->n_pooled) || env->prewarms;
}

static void close_env(struct cell__sub_env *env)
{
	struct cell__sub_env **at = &env->sub->envs;
	while (*at != env)
		at = &(*at)->next;
	pthread_mutex_lock(&env->sub->lock);
	*at = env->next;
	pthread_mutex_unlock(&env->sub->lock);
	uv_close((uv_handle_t *)&env->timer, cell__sub_handle_env_closed);
}

static void handle_idle(uv_timer_t *timer)
{
	struct cell__sub_env *env = timer->data;
	bool any = false;
	if (is_used(env, false))
		return;
	pthread_mutex_lock(&env->sub->lock);
	env->ending = true;
	pthread_mutex_unlock(&env->sub->lock);
	stop_zygote(env);
	for (struct cell__sub_kernel *k = env->sub->kernels; k; k = k->next) {
		any |= k->env == env;
		if (k->env != env || k->asked)
			continue;
		k->asked = true;
		if (k->state == CELL_KERNEL_WAITING)
			cell__sub_kernel_gone_later(k);
		else
			cell__sub_kernel_kill(k);
	}
	if (!any)
		close_env(env);
}

void cell__sub_env_rest(struct cell__sub_env *env)
{
	if (env->ending && !is_used(env, true) && !uv_is_closing((uv_handle_t *)&env->timer))
		close_env(env);
	else if (!env->ending && *env->owner && env->state != CELL_ENV_STARTING && !is_used(env, false))
		uv_timer_start(&env->timer, handle_idle, CELL_SUB_ZYGOTE_IDLE_MS, 0);
}

void cell__sub_handle_env_closed(uv_handle_t *handle)
{
	struct cell__sub_env *env = handle->data;
	struct cell__subprocess *sub = env->sub;
	env->closed = true;
	if (env->checking > 0)
		return;
	free(env->python);
	free(env->preload);
	free(env->owner);
	cell__sub_files_unref(env->files);
	cell__sandbox_plan_unref(env->plan);
	cell__places_untrust(sub->host->places, &env->places);
	cell__place_list_finish(&env->places);
	free_hosts(env);
	while (env->pools) {
		struct cell__sub_pool *next = env->pools->next;
		cell__sandbox_plan_unref(env->pools->plan);
		cell__buf_finish(&env->pools->session);
		cell__buf_finish(&env->pools->files);
		free(env->pools);
		env->pools = next;
	}
	free(env);
	sub->open_handles--;
	cell__sub_maybe_destroyed(sub);
}
