/* The control plane: sandboxes are made, found, paused, forked and ended. */
#define _GNU_SOURCE
#include "server/e2b/e2b.h"

#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include "sandbox/machine.h"
#include "server/pool.h"
#include "wire/access.h"

#define PAUSED_US (86400ll * 1000000) /* a paused sandbox is kept for so long */
#define MAX_FORKS 20
#define MAX_LISTED 100
#define METRICS_SLACK_S 5 /* of the times of samples */
#define MAX_PAIRS_BYTES (64u * 1024u) /* of metadata, and of variables */

/* ---- the object ---- */

static void sandbox_free(struct cell__e2b_sandbox *sandbox)
{
	cell__e2b_watchers_end(sandbox);
	cell__pool_unlist(sandbox->server, sandbox->listed);
	free(sandbox->template);
	free(sandbox->network);
	free(sandbox->name);
	json_decref(sandbox->metadata);
	json_decref(sandbox->envs);
	free(sandbox);
}

struct cell__e2b_context *cell__e2b_context_add(struct cell__e2b_sandbox *sandbox, struct cell__served *served, const char *cwd)
{
	struct cell__e2b_context *context = cell__alloc(1, sizeof(*context));

	if (!context || !(context->cwd = cell__strdup(cwd))) {
		free(context);
		return NULL;
	}
	context->sandbox = sandbox;
	context->served = served;
	served->context = context;
	if (sandbox->contexts) {
		context->next = sandbox->contexts->next;
		sandbox->contexts->next = context;
	} else {
		sandbox->contexts = context;
	}
	return context;
}

void cell__e2b_served_ends(struct cell__served *served)
{
	struct cell__e2b_context *context = cell__take_ptr(served->context);
	struct cell__e2b_sandbox *sandbox = context->sandbox;
	struct cell__e2b_context **at = &sandbox->contexts;
	bool is_first = sandbox->contexts == context;

	if (is_first && sandbox->name)
		cell__pool_unname(sandbox->server, served->id);
	if (is_first) { /* the others end with it */
		sandbox->ending = true;
		while (context->next)
			cell__served_end(context->next->served);
	}
	while (*at != context)
		at = &(*at)->next;
	*at = context->next;
	free(context->cwd);
	free(context);
	if (!sandbox->contexts)
		sandbox_free(sandbox);
}

static void pause_sandbox(struct cell__e2b_sandbox *sandbox, int64_t now_us)
{
	sandbox->paused = true;
	sandbox->end_us = now_us + PAUSED_US;
}

void cell__e2b_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__served *served = server->sessions;

	while (served) {
		struct cell__e2b_sandbox *sandbox = cell__e2b_snapshot_by_id(server, served->id);

		served = served->next;
		if (sandbox)
			cell__e2b_watchers_sweep(sandbox, now_us);
		if (!sandbox || now_us < sandbox->end_us)
			continue;
		if (sandbox->pauses && !sandbox->paused) {
			pause_sandbox(sandbox, now_us);
			continue;
		}
		server->counts.sessions_expired++;
		cell__server_log(server, CELL_LOG_INFO, "sandbox %s of \"%s\" expired", cell__e2b_id(sandbox),
				 sandbox->contexts->served->owner);
		cell__served_end(sandbox->contexts->served);
		served = server->sessions; /* its contexts ended too: from the beginning */
	}
}

/* ---- variables ---- */

const char *cell__e2b_home(const struct cell_server *server)
{
	const char *executor = server->session.executor, *mode = server->session.workspace_mode;

	/* A folder of that name on the host may hold the interpreter, which must stay visible. */
	return executor && !strcmp(executor, "sandbox") && (!mode || strcmp(mode, "none")) &&
			       cell__machine_here()->level == CELL_LEVEL_FULL && access(CELL_E2B_HOME, F_OK) < 0
		       ? CELL_E2B_HOME
		       : NULL;
}

/* "K=V" strings, NULL-terminated, in one block; NULL: out of memory. */
static char **make_env(const struct cell_server *server, const json_t *envs)
{
	static const char always[] = "E2B_SANDBOX=true", home_is[] = "HOME=" CELL_E2B_HOME;
	const char *const *base = server->session.env;
	size_t n = 0, m = 0, bytes = 0;
	char **list, *at;
	const char *name;
	json_t *value;

	while (base && base[n])
		bytes += strlen(base[n++]) + 1;
	json_object_foreach((json_t *)envs, name, value)
		bytes += strlen(name) + json_string_length(value) + 2;
	bytes += sizeof(always) + sizeof(home_is);
	/* Pointers first. */
	list = cell__alloc(1, (n + json_object_size(envs) + 3) * sizeof(*list) + bytes);
	if (!list)
		return NULL;
	at = (char *)(list + n + json_object_size(envs) + 3);
	if (cell__e2b_home(server)) { /* the server's own may be another */
		list[m++] = at;
		at = stpcpy(at, home_is) + 1;
	}
	for (size_t i = 0; i < n; i++) {
		list[m++] = at;
		at = stpcpy(at, base[i]) + 1;
	}
	list[m++] = at;
	at = stpcpy(at, always) + 1;
	json_object_foreach((json_t *)envs, name, value) {
		list[m++] = at;
		at = stpcpy(stpcpy(stpcpy(at, name), "="), json_string_value(value)) + 1;
	}
	list[m] = NULL;
	return list;
}

int cell__e2b_prepare(struct cell__request *request, const json_t *envs, const char *network)
{
	request->env = make_env(request->server, envs);
	request->network = network;
	request->workspace_path = cell__e2b_home(request->server);
	request->tables = true;
	return request->env ? 0 : -1;
}

/* An object of strings, or nothing; a new reference.  NULL: it was answered. */
static json_t *take_pairs(struct cell__request *request, const char *field, bool is_env)
{
	json_t *pairs = json_object_get(request->json, field), *value;
	size_t bytes = 0;
	const char *name;

	if (!pairs || json_is_null(pairs))
		return json_object();
	if (!json_is_object(pairs)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "%s must be an object of strings", field);
		return NULL;
	}
	json_object_foreach(pairs, name, value) {
		if (!json_is_string(value) || (is_env && (!*name || strchr(name, '=')))) {
			cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "%s must be an object of strings", field);
			return NULL;
		}
		bytes += strlen(name) + json_string_length(value);
	}
	if (bytes > MAX_PAIRS_BYTES) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_LIMIT, "%s may have at most %u bytes", field, MAX_PAIRS_BYTES);
		return NULL;
	}
	return json_incref(pairs);
}

/* ---- descriptions ---- */

int64_t cell__e2b_read_time(const char *text)
{
	struct tm tm = { 0 };
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	int hours = 0, minutes = 0;
	char sign = '+', *end;
	int64_t seconds;

	if (!rest) {
		seconds = strtoll(text, &end, 10);
		return *text && !*end ? seconds : -1;
	}
	if (*rest == '.')
		rest += 1 + strspn(rest + 1, "0123456789");
	if (strcmp(rest, "Z") && *rest && sscanf(rest, "%c%2d:%2d", &sign, &hours, &minutes) != 3)
		return -1;
	seconds = hours * 3600 + minutes * 60;
	return (int64_t)timegm(&tm) - (sign == '-' ? -seconds : seconds);
}

static json_t *time_text(int64_t seconds, int64_t us)
{
	char text[48];
	time_t at = (time_t)(seconds + us / 1000000);
	struct tm tm;

	gmtime_r(&at, &tm);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
	return json_string(text);
}

static json_t *describe(const struct cell__e2b_sandbox *sandbox)
{
	const struct cell__served *served = sandbox->contexts->served;
	const struct cell_session_options *options = &sandbox->server->session;
	int64_t memory = options->memory_limit > 0 ? options->memory_limit : (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);

	return json_pack("{s:s,s:s,s:s,s:s,s:o,s:o,s:i,s:I,s:i,s:s,s:s,s:O,s:s?,s:{s:s,s:b},s:[]}", "templateID", sandbox->template,
			 "alias", sandbox->template, "sandboxID", served->id, "clientID", "workcell", "startedAt",
			 time_text(served->created_s, 0), "endAt", time_text(time(NULL), sandbox->end_us - cell__now_us()), "cpuCount",
			 get_nprocs(), "memoryMB", (json_int_t)(memory >> 20), "diskSizeMB", 0, "state",
			 sandbox->paused ? "paused" : "running", "envdVersion", CELL_E2B_ENVD_VERSION, "metadata", sandbox->metadata,
			 "domain", sandbox->server->opts.e2b_domain, "lifecycle", "onTimeout", sandbox->pauses ? "pause" : "kill",
			 "autoResume", 0, "volumeMounts");
}

/* With the token, for clients that may use it. */
json_t *cell__e2b_admission(const struct cell__e2b_sandbox *sandbox)
{
	char token[CELL_E2B_TOKEN + 1];

	if (!cell__e2b_token(sandbox->server, cell__e2b_id(sandbox), token))
		return NULL;
	return json_pack("{s:s,s:s,s:s,s:s,s:s,s:s,s:s,s:s?}", "templateID", sandbox->template, "alias", sandbox->template, "sandboxID",
			 cell__e2b_id(sandbox), "clientID", "workcell", "envdVersion", CELL_E2B_ENVD_VERSION, "envdAccessToken", token,
			 "trafficAccessToken", token, "domain", sandbox->server->opts.e2b_domain);
}

/* ---- creating ---- */

/* Seconds of the field, or otherwise; false: it was answered. */
static bool take_timeout(struct cell__request *request, const char *field, int64_t otherwise, int64_t *ret_seconds)
{
	const json_t *given = json_object_get(request->json, field);
	int64_t seconds = json_is_integer(given) ? json_integer_value(given) : -1;

	if (!given || json_is_null(given))
		seconds = otherwise;
	if (seconds < 0 || seconds > CELL_E2B_MAX_TIMEOUT_S) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "%s must be a number of seconds, from 0 to %d", field,
				  CELL_E2B_MAX_TIMEOUT_S);
		return false;
	}
	*ret_seconds = seconds;
	return true;
}

static bool is_empty(const json_t *value)
{
	return !value || json_is_null(value) || (json_is_array(value) && !json_array_size(value)) ||
	       (json_is_object(value) && !json_object_size(value));
}

/* Refuses what cannot be kept. */
static bool check_wishes(struct cell__request *request)
{
	const json_t *body = request->json;
	const char *template = json_string_value(json_object_get(body, "templateID"));
	static const char *const unknown[] = { "mcp", "iam", "volumeMounts" };

	if (template && strcmp(template, "base") && strcmp(template, "code-interpreter-v1") &&
	    !cell__e2b_snapshot_find(request, template)) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND,
				  "template \"%.60s\" not found: there are no templates here; leave it out", template);
		return false;
	}
	for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		if (is_empty(json_object_get(body, unknown[i])))
			continue;
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED, "%s is not supported: leave it out", unknown[i]);
		return false;
	}
	return true;
}

struct cell__e2b_sandbox *cell__e2b_sandbox_create(struct cell__served *served, const json_t *metadata, const json_t *envs,
						   const char *network, int64_t seconds, bool pauses)
{
	struct cell__e2b_sandbox *sandbox = cell__alloc(1, sizeof(*sandbox));

	if (!sandbox)
		return NULL;
	sandbox->server = served->server;
	sandbox->listed = -1;
	sandbox->template = cell__strdup("code-interpreter-v1");
	sandbox->metadata = json_deep_copy(metadata);
	sandbox->envs = json_deep_copy(envs);
	sandbox->network = network ? cell__strdup(network) : NULL;
	sandbox->pauses = pauses;
	sandbox->end_us = cell__now_us() + seconds * 1000000;
	if (!sandbox->template || !sandbox->metadata || !sandbox->envs || (network && !sandbox->network) ||
	    !cell__e2b_context_add(sandbox, served, CELL_E2B_HOME)) {
		sandbox_free(sandbox);
		return NULL;
	}
	sandbox->listed = cell__pool_list(served->server, served->id);
	return sandbox;
}

static void handle_opened(struct cell__request *request)
{
	struct cell__served *served = request->served;
	struct cell__e2b_sandbox *sandbox = cell__e2b_sandbox_create(
		served, json_object_get(request->kept, "metadata"), json_object_get(request->kept, "envs"), request->network,
		json_integer_value(json_object_get(request->kept, "timeout")), json_is_true(json_object_get(request->json, "autoPause")));

	if (sandbox) {
		cell__answer_json(request, MHD_HTTP_CREATED, cell__e2b_admission(sandbox));
		return;
	}
	cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a sandbox");
	cell__served_end(served);
}

void cell__e2b_handle_create(struct cell__request *request)
{
	CELL_AUTO_FREE char *network = NULL;
	struct cell__e2b_sandbox *snapshot;
	const char *template;
	json_t *metadata = NULL, *envs = NULL;
	int64_t seconds;
	struct cell_error err;

	if (!cell__e2b_body(request) || !check_wishes(request) || !take_timeout(request, "timeout", CELL_E2B_TIMEOUT_S, &seconds) ||
	    !(metadata = take_pairs(request, "metadata", false)))
		return;
	if (cell__e2b_network(request->server, request->json, &network, &err) < 0) {
		json_decref(metadata);
		cell__answer_error(request, &err);
		return;
	}
	envs = take_pairs(request, "envVars", true);
	if (!envs) {
		json_decref(metadata);
		return;
	}
	request->kept = json_pack("{s:o,s:o,s:I,s:s?}", "metadata", metadata, "envs", envs, "timeout", (json_int_t)seconds, "network",
				  network);
	if (!request->kept || cell__e2b_prepare(request, envs, json_string_value(json_object_get(request->kept, "network"))) < 0) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a sandbox");
		return;
	}
	template = json_string_value(json_object_get(request->json, "templateID"));
	snapshot = template ? cell__e2b_snapshot_find(request, template) : NULL;
	if (snapshot)
		cell__e2b_restore(request, snapshot);
	else
		cell__served_open(request, NULL, handle_opened);
}

/* ---- the others ---- */

struct cell__e2b_sandbox *cell__e2b_find(struct cell__request *request)
{
	const char *id = cell__e2b_debug_id(request->server, request->params[0]);
	struct cell__e2b_sandbox *sandbox = cell__e2b_by_id(request->server, id);

	if (sandbox)
		return cell__served_find(request, id, false) ? sandbox : NULL;
	cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "sandbox \"%.40s\" not found", request->params[0]);
	return NULL;
}

void cell__e2b_handle_get(struct cell__request *request)
{
	const struct cell__e2b_sandbox *sandbox = cell__e2b_find(request);
	json_t *answer = sandbox ? describe(sandbox) : NULL;
	char token[CELL_E2B_TOKEN + 1];

	/* Somebody who may only read must not get the right to run. */
	if (answer && request->who.scopes & CELL_SCOPE_RUN && cell__e2b_token(request->server, cell__e2b_id(sandbox), token))
		json_object_set_new(answer, "envdAccessToken", json_string(token));
	if (sandbox)
		cell__answer_json(request, MHD_HTTP_OK, answer);
}

/* Clients encode names and values, and encode the pairs of those again as a form. */
static char *decode_twice(const char *text, size_t size)
{
	CELL_AUTO_BUF struct cell__buf once = CELL_BUF_INIT, twice = CELL_BUF_INIT;

	if (cell__url_decode(text, size, true, &once) < 0 || cell__url_decode(once.data ? once.data : "", once.size, false, &twice) < 0)
		return NULL;
	return twice.data ? cell__buf_take(&twice) : cell__strdup("");
}

/* "k=v&k2=v2" */
static bool has_metadata(const struct cell__e2b_sandbox *sandbox, const char *wanted)
{
	for (const char *at = wanted; *at;) {
		size_t size = strcspn(at, "&"), equals = strcspn(at, "=");
		CELL_AUTO_FREE char *name = equals < size ? decode_twice(at, equals) : NULL;
		CELL_AUTO_FREE char *value = name ? decode_twice(at + equals + 1, size - equals - 1) : NULL;
		const char *found = value ? json_string_value(json_object_get(sandbox->metadata, name)) : NULL;

		if (!found || strcmp(found, value))
			return false;
		at += size + (at[size] == '&');
	}
	return true;
}

/* The newest first; those of one second as they come. */
static int compare_starts(const void *one, const void *other)
{
	return strcmp(json_string_value(json_object_get(*(json_t *const *)other, "startedAt")),
		      json_string_value(json_object_get(*(json_t *const *)one, "startedAt")));
}

static json_t *sorted(json_t *list, bool reversed)
{
	size_t n = json_array_size(list), i;
	json_t **all = cell__alloc(n + 1, sizeof(*all)), *made = json_array(), *one;

	json_array_foreach(list, i, one) {
		if (all)
			all[i] = json_incref(one);
	}
	if (all && n > 1)
		qsort(all, n, sizeof(*all), compare_starts);
	for (i = 0; all && i < n; i++)
		json_array_append_new(made, all[reversed ? n - 1 - i : i]);
	free(all);
	json_decref(list);
	return made;
}

void cell__e2b_answer_list(struct cell__request *request, json_t *all)
{
	CELL_AUTO_FREE char *limit_text = cell__e2b_query(request, "limit"), *next = cell__e2b_query(request, "nextToken");
	CELL_AUTO_FREE char *order = cell__e2b_query(request, "order");
	long limit = limit_text ? strtol(limit_text, NULL, 10) : MAX_LISTED, skip = next ? strtol(next, NULL, 10) : 0;
	json_t *page = json_array();
	struct MHD_Response *response;
	size_t n;
	char *text;

	limit = limit < 1 || limit > MAX_LISTED ? MAX_LISTED : limit;
	all = sorted(all, order && !strcmp(order, "asc"));
	n = json_array_size(all);
	for (long i = skip < 0 ? 0 : skip; i < (long)n && (long)json_array_size(page) < limit; i++)
		json_array_append(page, json_array_get(all, (size_t)i));
	text = json_dumps(page, JSON_COMPACT);
	response = text ? cell__http_response(text, strlen(text), "application/json") : NULL;
	if (response && skip >= 0 && skip + limit < (long)n) {
		char token[24];

		snprintf(token, sizeof(token), "%ld", skip + limit);
		MHD_add_response_header(response, "X-Next-Token", token);
	}
	json_decref(all);
	json_decref(page);
	cell__answer_response(request, MHD_HTTP_OK, response);
}

void cell__e2b_handle_list(struct cell__request *request)
{
	CELL_AUTO_FREE char *metadata = cell__e2b_query(request, "metadata"), *state = cell__e2b_query(request, "state");
	CELL_AUTO_FREE char *after = cell__e2b_query(request, "startedAfter"), *template = cell__e2b_query(request, "template");
	int64_t since = after ? cell__e2b_read_time(after) : 0;
	json_t *all;

	if (since < 0) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "startedAfter must be a time like 2026-08-21T20:00:22Z");
		return;
	}
	all = json_array();
	for (struct cell__served *served = request->server->sessions; served; served = served->next) {
		const struct cell__e2b_sandbox *sandbox = cell__e2b_by_id(request->server, served->id);

		if (!sandbox || strcmp(served->owner, request->who.name) || (metadata && !has_metadata(sandbox, metadata)) ||
		    (state && *state && !strstr(state, sandbox->paused ? "paused" : "running")) || served->created_s < since ||
		    (template && strcmp(template, sandbox->template)))
			continue;
		json_array_append_new(all, describe(sandbox)); /* the newest is first in the list */
	}
	if (request->part) /* another worker sorts and cuts */
		cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:o}", "sandboxes", all));
	else
		cell__e2b_answer_list(request, all);
}

void cell__e2b_handle_kill(struct cell__request *request)
{
	if (!cell__e2b_find(request))
		return;
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	cell__served_end(request->served);
}

void cell__e2b_handle_timeout(struct cell__request *request)
{
	struct cell__e2b_sandbox *sandbox;
	int64_t seconds;

	if (!cell__e2b_body(request) || !(sandbox = cell__e2b_find(request)) ||
	    !take_timeout(request, "timeout", CELL_E2B_TIMEOUT_S, &seconds))
		return;
	if (!sandbox->paused)
		sandbox->end_us = cell__now_us() + seconds * 1000000;
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}

/* Never shortens. */
static void extend(struct cell__e2b_sandbox *sandbox, int64_t seconds)
{
	int64_t end = cell__now_us() + seconds * 1000000;

	if (end > sandbox->end_us || sandbox->paused)
		sandbox->end_us = end;
}

void cell__e2b_handle_refresh(struct cell__request *request)
{
	struct cell__e2b_sandbox *sandbox;
	int64_t seconds;

	if (!cell__e2b_body(request) || !(sandbox = cell__e2b_find(request)) ||
	    !take_timeout(request, "duration", CELL_E2B_TIMEOUT_S, &seconds))
		return;
	if (!sandbox->paused)
		extend(sandbox, seconds);
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}

void cell__e2b_handle_pause(struct cell__request *request)
{
	struct cell__e2b_sandbox *sandbox;

	if (!cell__e2b_body(request) || !(sandbox = cell__e2b_find(request)))
		return;
	if (json_is_false(json_object_get(request->json, "memory"))) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED,
				  "a sandbox that pauses keeps its memory: mode \"filesystem\" is not supported");
		return;
	}
	if (sandbox->paused) {
		cell__answer_fail(request, MHD_HTTP_CONFLICT, CELL_E_EXISTS, "the sandbox is paused already");
		return;
	}
	pause_sandbox(sandbox, cell__now_us());
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}

void cell__e2b_handle_connect(struct cell__request *request)
{
	struct cell__e2b_sandbox *sandbox;
	int64_t seconds;
	bool was_paused;

	if (!cell__e2b_body(request) || !(sandbox = cell__e2b_find(request)) ||
	    !take_timeout(request, "timeout", CELL_E2B_TIMEOUT_S, &seconds))
		return;
	was_paused = sandbox->paused;
	if (was_paused && json_is_false(json_object_get(request->json, "memory"))) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED,
				  "on_resume \"reboot\" is not supported: use \"restore\"");
		return;
	}
	extend(sandbox, seconds);
	sandbox->paused = false;
	cell__answer_json(request, was_paused ? MHD_HTTP_CREATED : MHD_HTTP_OK, cell__e2b_admission(sandbox));
}

static void handle_forked(struct cell__request *request, struct cell__served **forks, size_t n)
{
	struct cell__e2b_sandbox *source = request->served->context ? request->served->context->sandbox : NULL;
	json_t *list = json_array();

	for (size_t i = 0; i < n; i++) {
		struct cell__e2b_sandbox *sandbox = source ? cell__e2b_sandbox_create(
								     forks[i], source->metadata, source->envs, source->network,
								     json_integer_value(json_object_get(request->kept, "timeout")),
								     source->pauses)
							   : NULL;

		if (sandbox) {
			json_array_append_new(list, json_pack("{s:o}", "sandbox", cell__e2b_admission(sandbox)));
		} else {
			json_array_append_new(list, json_pack("{s:{s:i,s:s}}", "error", "code", 500, "message", "the sandbox has ended"));
			cell__served_end(forks[i]);
		}
	}
	cell__answer_json(request, MHD_HTTP_CREATED, list);
}

void cell__e2b_handle_fork(struct cell__request *request)
{
	const json_t *count;
	int64_t seconds;

	if (!cell__e2b_body(request) || !cell__e2b_find(request) || !take_timeout(request, "timeout", CELL_E2B_TIMEOUT_S, &seconds))
		return;
	count = json_object_get(request->json, "count");
	if (count && (!json_is_integer(count) || json_integer_value(count) < 1 || json_integer_value(count) > MAX_FORKS)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "count must be from 1 to %d", MAX_FORKS);
		return;
	}
	request->kept = json_pack("{s:I}", "timeout", (json_int_t)seconds);
	cell__served_fork(request, count ? (size_t)json_integer_value(count) : 1, NULL, false, handle_forked);
}

static void answer_metrics(struct cell__request *request)
{
	const struct cell__consumed *consumed = &request->served->consumed;
	CELL_AUTO_FREE char *start = cell__e2b_query(request, "start"), *end = cell__e2b_query(request, "end");
	struct sysinfo machine = { 0 };
	json_t *list = json_array();
	int64_t now = time(NULL);

	sysinfo(&machine);
	/* There is one sample, of now. */
	if (consumed->known && (!start || cell__e2b_read_time(start) <= now) && (!end || cell__e2b_read_time(end) >= now - METRICS_SLACK_S))
		json_array_append_new(list,
				      json_pack("{s:o,s:I,s:i,s:f,s:I,s:I,s:i,s:I,s:i}", "timestamp", time_text(time(NULL), 0),
						"timestampUnix", (json_int_t)time(NULL), "cpuCount", get_nprocs(), "cpuUsedPct",
						request->served->cpu_since_s * 100, "memUsed", (json_int_t)consumed->memory_bytes,
						"memTotal", (json_int_t)machine.totalram * machine.mem_unit, "memCache", 0, "diskUsed",
						(json_int_t)(consumed->disk_bytes > 0 ? consumed->disk_bytes : 0), "diskTotal", 0));
	cell__answer_json(request, MHD_HTTP_OK, list);
}

void cell__e2b_handle_metrics(struct cell__request *request)
{
	if (cell__e2b_find(request))
		cell__sample(request->server, request, answer_metrics);
}
