/*
 * POST /run_code, as SandboxFusion has it: programs, each in a fresh process that is confined.
 *
 *     run_code ──▶ waiting (for a lane and a running slot) ──▶ running in a lane ──▶ answered
 *
 *     lane:  opening ──▶ idle ⇄ busy ──▶ closing ──▶ gone
 *
 * A lane is a session of the executor sandbox, whatever the server's executor is, without a workspace, tools and storage.  Its kernel runs
 * no code of clients: it forks a process for each program, and empties the sandbox after it (kernel/workcell_kernel/script.py).  A lane runs
 * programs of one token with one limit on memory.  It is closed when a program has left something that cannot be removed, has killed
 * the kernel, after RUNS programs, and when nobody needs it.  Clients cannot find it: it is not among their sessions.
 */
#include "server/api.h"
#include "server/pool.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "executors/executor.h"
#include "sandbox/policy.h"

#define HEAD "%%%%workcell_script\n" /* of a format */
#define HEAD_FETCHES 1
#define HEAD_IS_BASH 2
#define RUNS 1000
#define IDLE_US 10000000
#define BACKSTOP_MS 2000 /* the kernel ends a program in time; if it does not, the kernel is killed */
#define MIB (1024 * 1024)

/* A program on its way. */
struct script {
	struct cell__request *request;
	struct cell__account *account;
	char *cell;
	size_t cell_size;
	int64_t timeout_ms, memory_bytes, begun_us;
	struct script *next;
};

struct lane {
	struct cell_server *server;
	struct cell_session *session; /* NULL: being opened */
	struct cell__account *account;
	int64_t memory_bytes;
	struct script *script; /* that runs; or that it is opened for */
	uint64_t run_id;
	int64_t used_us;
	unsigned runs;
	bool closing;
	struct cell_session_options options;
	char zygote[CELL_SERVER_MAX_NAME + 24];
	struct lane *next;
};

struct cell__fusion {
	struct lane *lanes;
	struct script *queue, *last;
	int64_t memory_bytes; /* of a sandbox; 0 and -1: no limit */
	bool advancing;
};

static void run_script(struct lane *lane);

/* ---- answers ---- */

static void free_script(struct script *script)
{
	script->account->use->runs--;
	free(script->cell);
	free(script);
}

static json_t *answer_of(const char *status, const char *message, json_t *run, json_t *files)
{
	return json_pack("{s:s,s:s,s:n,s:o?,s:n,s:o}", "status", status, "message", message, "compile_result", "run_result", run,
			 "executor_pod_name", "files", files ? files : json_object());
}

/* Our failure, not the program's: trainers try again, or leave the sample out. */
static void answer_failure(struct script *script, const char *message)
{
	cell__answer_json(script->request, MHD_HTTP_OK, answer_of("SandboxError", message, NULL, NULL));
	free_script(script);
}

static json_t *text_json(const struct cell_text *text)
{
	json_t *json = json_stringn(text->data, text->size);

	return json ? json : json_string("");
}

static json_t *run_json(const struct cell_result *result, const char *status, json_t *code, double seconds)
{
	struct cell_text out, err;

	cell_result_stdout(result, &out);
	cell_result_stderr(result, &err);
	return json_pack("{s:s,s:f,s:o,s:o,s:o}", "status", status, "execution_time", seconds, "return_code", code, "stdout",
			 text_json(&out), "stderr", text_json(&err));
}

/* The kernel has reported the end of the program. */
static json_t *reported(struct lane *lane, const struct cell_result *result, const json_t *value)
{
	json_t *files = json_incref(json_object_get(value, "files")), *code = json_incref(json_object_get(value, "return_code"));
	const char *problem = json_string_value(json_object_get(value, "error"));
	bool late = json_is_true(json_object_get(value, "timed_out")), ran = code || late;
	bool succeeded = json_is_integer(code) && json_integer_value(code) == 0;

	if (json_is_true(json_object_get(value, "spent")))
		lane->runs = RUNS;
	lane->account->cpu->cpu_s += json_number_value(json_object_get(value, "cpu_seconds"));
	if (!ran) {
		json_decref(files);
		return answer_of("SandboxError", problem ? problem : "the sandbox gave no answer", NULL, NULL);
	}
	return answer_of(succeeded ? "Success" : "Failed", problem ? problem : "",
			 run_json(result, late ? "TimeLimitExceeded" : "Finished", code ? code : json_null(),
				  json_number_value(json_object_get(value, "seconds"))),
			 files);
}

static json_t *answer_json(struct lane *lane, const struct cell_result *result)
{
	const struct cell_outcome *error = cell_result_error(result);
	const char *text = cell_result_value_json(result);
	json_t *value = !error && text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
	double seconds = cell_result_duration_ms(result) / 1e3;
	json_t *answer;

	if (value) {
		answer = reported(lane, result, value);
		json_decref(value);
		return answer;
	}
	lane->runs = RUNS;
	/* A program that ended its own sandbox is a program that was killed. */
	if (error && error->code == CELL_OUT_TIMEOUT)
		return answer_of("Failed", "", run_json(result, "TimeLimitExceeded", json_null(), seconds), NULL);
	if (error && (error->code == CELL_OUT_KERNEL_DIED || error->code == CELL_OUT_LIMIT))
		return answer_of("Failed", error->message, run_json(result, "Finished", json_integer(-9), seconds), NULL);
	return answer_of("SandboxError", error ? error->message : "the sandbox gave no answer", NULL, NULL);
}

/* ---- lanes ---- */

static void handle_closed(void *arg)
{
	struct lane *lane = arg, **at = &lane->server->fusion->lanes;
	struct cell_server *server = lane->server;

	while (*at != lane)
		at = &(*at)->next;
	*at = lane->next;
	free(lane);
	server->use->sessions--;
	cell__fusion_advance(server);
	cell__server_advance(server);
}

static void close_lane(struct lane *lane)
{
	if (lane->closing)
		return;
	lane->closing = true;
	cell__session_close_on_loop(lane->session, handle_closed, lane);
}

static void handle_event(void *arg, const struct cell_event *event)
{
	struct lane *lane = arg;
	struct cell_server *server = lane->server;
	struct script *script;

	if (event->type != CELL_EVENT_RESULT)
		return;
	script = cell__take_ptr(lane->script);
	cell__pool_free_slot(server);
	server->counts.runs++;
	cell__metrics_observe(&server->counts.run_s, cell_result_duration_ms(event->result) / 1e3);
	lane->used_us = cell__now_us();
	lane->runs++;
	cell__answer_json(script->request, MHD_HTTP_OK, answer_json(lane, event->result));
	free_script(script);
	cell_result_destroy(event->result);
	if (lane->runs >= RUNS || server->stopping)
		close_lane(lane);
	cell__jobs_advance(server);
	cell__fusion_advance(server);
	cell__batches_advance(server);
	cell__server_advance(server);
}

static void run_script(struct lane *lane)
{
	struct cell_server *server = lane->server;
	struct script *script = lane->script;
	struct cell_run_options options = CELL_RUN_OPTIONS_INIT;
	CELL_AUTO_FREE char *cell = cell__take_ptr(script->cell);
	struct cell_error err;

	cell__metrics_observe(&server->counts.wait_s, (double)(cell__now_us() - script->begun_us) / 1e6);
	options.timeout_ms = script->timeout_ms + BACKSTOP_MS;
	options.on_event = handle_event;
	options.event_arg = lane;
	if (cell__session_start_on_loop(lane->session, cell, script->cell_size, &options, &lane->run_id, &err) == 0)
		return;
	cell__pool_free_slot(server);
	answer_failure(cell__take_ptr(lane->script), err.msg);
	close_lane(lane);
}

static void handle_opened(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct lane *lane = arg;
	struct cell_server *server = lane->server;

	lane->session = session;
	if (session && !server->stopping) {
		run_script(lane);
		return;
	}
	cell__pool_free_slot(server);
	if (!session)
		cell__server_log(server, CELL_LOG_WARN, "a sandbox for programs could not be opened: %s", err->msg);
	answer_failure(cell__take_ptr(lane->script), session ? "the server is stopping" : err->msg);
	if (session)
		close_lane(lane);
	else
		handle_closed(lane);
}

/* No rights of the server's sessions: no space, no workspace, and the sandbox's own policy. */
static void fill_options(struct lane *lane)
{
	const struct cell_session_options *base = &lane->server->session;
	struct cell_session_options *options = &lane->options;

	cell_session_options_init(options);
	options->executor = "sandbox";
	options->workspace_mode = "none";
	options->python = base->python;
	options->preload = base->preload;
	options->env = base->env;
	options->trusted = base->trusted;
	options->sandbox_policy = base->sandbox_policy;
	options->network = base->network;
	options->network_disabled = base->network_disabled;
	options->cpu_quota = base->cpu_quota;
	options->pids_limit = base->pids_limit;
	options->disk_limit = base->disk_limit;
	options->max_output_bytes = base->max_output_bytes;
	options->memory_limit = lane->memory_bytes;
	options->grace_ms = 100;
	options->no_spill = 1;
	if (lane->server->opts.zygote_per != CELL_ZYGOTE_PER_ENGINE)
		snprintf(lane->zygote, sizeof(lane->zygote), "token %s" CELL__ZYGOTE_PROGRAMS, lane->account->name);
	else
		snprintf(lane->zygote, sizeof(lane->zygote), CELL__ZYGOTE_PROGRAMS);
	options->zygote_owner = lane->zygote;
}

void cell__fusion_prewarm(struct cell_server *server)
{
	struct lane lane = { .server = server };
	struct cell_error err;

	/* Tokens with a zygote each are not known before they come. */
	if (!server->fusion || server->opts.zygote_per != CELL_ZYGOTE_PER_ENGINE)
		return;
	lane.memory_bytes = server->fusion->memory_bytes;
	fill_options(&lane);
	if (cell_session_prewarm(server->engine, &lane.options, &err) < 0)
		cell__server_log(server, CELL_LOG_WARN, "programs cannot be run: %s", err.msg);
}

static void open_lane(struct cell_server *server, struct script *script)
{
	struct lane *lane = cell__alloc(1, sizeof(*lane));
	struct cell_error err;

	if (!lane) {
		server->use->sessions--;
		cell__pool_free_slot(server);
		answer_failure(script, "out of memory for a sandbox");
		return;
	}
	*lane = (struct lane){ .server = server,
			       .account = script->account,
			       .memory_bytes = script->memory_bytes,
			       .script = script,
			       .next = server->fusion->lanes };
	server->fusion->lanes = lane;
	fill_options(lane);
	if (cell__session_open_on_loop(server->engine, &lane->options, handle_opened, lane, &err) < 0)
		handle_opened(lane, NULL, &err);
}

/* ---- the queue ---- */

static bool fits(const struct lane *lane, const struct script *script)
{
	return lane->account == script->account && lane->memory_bytes == script->memory_bytes;
}

/* An idle lane for it, or NULL; then *ret_other is one that it cannot use. */
static struct lane *idle_lane(const struct cell_server *server, const struct script *script, struct lane **ret_other)
{
	*ret_other = NULL;
	for (struct lane *lane = server->fusion->lanes; lane; lane = lane->next) {
		if (lane->script || lane->closing)
			continue;
		if (fits(lane, script))
			return lane;
		*ret_other = lane;
	}
	return NULL;
}

static bool take_session(struct cell_server *server)
{
	bool is_free;

	cell__pool_lock(server);
	is_free = CELL_ALL(server, sessions) < server->limits.max_sessions;
	server->use->sessions += is_free;
	cell__pool_unlock(server);
	return is_free;
}

/* A slot is taken for it. */
static bool start_script(struct cell_server *server, struct script *script)
{
	struct lane *other, *lane = idle_lane(server, script, &other);

	if (lane) {
		lane->script = script;
		run_script(lane);
	} else if (take_session(server)) {
		open_lane(server, script);
	} else {
		if (other)
			close_lane(other);
		return false;
	}
	return true;
}

/* Other workers see since when. */
static bool waits(struct cell_server *server)
{
	const struct script *first = server->fusion->queue;

	server->use->oldest_script_us = first ? first->begun_us : 0;
	return first;
}

void cell__fusion_advance(struct cell_server *server)
{
	struct cell__fusion *fusion = server->fusion;

	if (!fusion || fusion->advancing)
		return;
	fusion->advancing = true;
	while (waits(server) && cell__pool_take_slot(server, fusion->queue->begun_us)) {
		struct script *script = fusion->queue;

		fusion->queue = script->next;
		if (!fusion->queue)
			fusion->last = NULL;
		if (!start_script(server, script)) {
			script->next = fusion->queue;
			fusion->queue = script;
			if (!fusion->last)
				fusion->last = script;
			server->use->oldest_script_us = 0; /* it waits for a session, not for the slot */
			cell__pool_free_slot(server);
			break;
		}
		server->use->queued--;
	}
	fusion->advancing = false;
}

static bool has_left(const struct script *script)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(script->request->connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	char byte;

	return info && recv(info->connect_fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void enqueue(struct cell__fusion *fusion, struct script *script)
{
	if (fusion->last)
		fusion->last->next = script;
	else
		fusion->queue = script;
	fusion->last = script;
}

/* All programs that wait, first to last. */
static struct script *take_queue(struct cell__fusion *fusion)
{
	fusion->last = NULL;
	return cell__take_ptr(fusion->queue);
}

/* Programs whose client is gone do not run; lanes that nobody uses end. */
void cell__fusion_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__fusion *fusion = server->fusion;
	struct script *script = fusion ? take_queue(fusion) : NULL, *next;

	if (!fusion)
		return;
	for (; script; script = next) {
		next = script->next;
		script->next = NULL;
		if (has_left(script)) {
			server->use->queued--;
			answer_failure(script, "the client is gone");
			continue;
		}
		enqueue(fusion, script);
	}
	for (struct lane *lane = fusion->lanes, *after; lane; lane = after) {
		after = lane->next;
		if (lane->script && lane->session && has_left(lane->script))
			cell__session_cancel_on_loop(lane->session, lane->run_id);
		else if (!lane->script && now_us - lane->used_us > IDLE_US)
			close_lane(lane);
	}
	cell__fusion_advance(server);
}

void cell__fusion_stop(struct cell_server *server)
{
	struct cell__fusion *fusion = server->fusion;
	struct script *script = fusion ? take_queue(fusion) : NULL, *next;

	if (!fusion)
		return;
	for (; script; script = next) {
		next = script->next;
		server->use->queued--;
		answer_failure(script, "the server is stopping");
	}
	for (struct lane *lane = fusion->lanes, *after; lane; lane = after) {
		after = lane->next;
		if (lane->session)
			close_lane(lane);
	}
}

/* ---- requests ---- */

/* What a program has besides its code, as JSON; "" for one in Python alone.  NULL: out of memory. */
static char *options_of(const json_t *body, bool is_bash)
{
	const json_t *stdin_ = json_object_get(body, "stdin"), *files = json_object_get(body, "files"),
		     *fetched = json_object_get(body, "fetch_files");
	json_t *options;
	char *text;

	if (!is_bash && !json_is_string(stdin_) && json_object_size(files) == 0 && json_array_size(fetched) == 0)
		return cell__strdup("");
	options = json_pack("{s:s,s:O?,s:O?,s:O?}", "language", is_bash ? "bash" : "python", "stdin", stdin_, "files", files, "fetch",
			    fetched);
	text = options ? json_dumps(options, JSON_COMPACT) : NULL;
	json_decref(options);
	return text;
}

/* The program as its kernel reads it (kernel/ext/script.c); NULL: out of memory. */
static char *cell_of(const json_t *body, int64_t timeout_ms, size_t *ret_size)
{
	const json_t *code = json_object_get(body, "code");
	bool is_bash = !strcmp(json_string_value(json_object_get(body, "language")), "bash"),
	     fetches = json_array_size(json_object_get(body, "fetch_files")) > 0;
	CELL_AUTO_FREE char *options = options_of(body, is_bash);
	CELL_AUTO_BUF struct cell__buf cell = CELL_BUF_INIT;

	if (!options ||
	    cell__buf_printf(&cell, HEAD "%lld %zu %d\n%s", (long long)timeout_ms, strlen(options),
			     (fetches ? HEAD_FETCHES : 0) | (is_bash ? HEAD_IS_BASH : 0), options) < 0 ||
	    cell__buf_add(&cell, json_string_value(code), json_string_length(code)) < 0)
		return NULL;
	*ret_size = cell.size;
	return cell__buf_take(&cell);
}

static bool files_ok(const json_t *files)
{
	const char *name;
	json_t *content;

	json_object_foreach((json_t *)files, name, content) {
		if (!json_is_string(content) && !json_is_null(content))
			return false;
	}
	return true;
}

/* The operator's limit is not raised by a client. */
static int64_t memory_of(const struct cell__request *request)
{
	int64_t most = request->server->fusion->memory_bytes, asked = json_integer_value(json_object_get(request->json, "memory_limit_MB"));

	if (asked <= 0 || asked > INT64_MAX / MIB)
		return most;
	return most > 0 && asked * MIB > most ? most : asked * MIB;
}

static void begin(struct cell__request *request, struct cell__account *account, int64_t memory_bytes)
{
	struct cell_server *server = request->server;
	struct cell__fusion *fusion = server->fusion;
	const json_t *given = json_object_get(request->json, "run_timeout");
	double seconds = given ? json_number_value(given) : 10, most = (double)server->limits.max_timeout_ms / 1e3;
	struct script *script;

	if (!(script = cell__alloc(1, sizeof(*script)))) {
		server->use->queued--;
		account->use->runs--;
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a program");
		return;
	}
	if (server->limits.max_timeout_ms < 0)
		most = 1e9;
	seconds = seconds < most ? seconds : most;
	seconds = seconds > 0 ? seconds : 0;
	*script = (struct script){ .request = request,
				   .account = account,
				   .timeout_ms = (int64_t)(seconds * 1000),
				   .memory_bytes = memory_bytes,
				   .begun_us = cell__now_us() };
	script->cell = cell_of(request->json, script->timeout_ms, &script->cell_size);
	if (!script->cell) {
		server->use->queued--;
		answer_failure(script, "out of memory for a program");
		return;
	}
	enqueue(fusion, script);
	cell__fusion_advance(server);
}

/* Counts a program that waits; false: a limit is reached, and it was answered. */
static bool admit(struct cell__request *request, struct cell__account *account)
{
	struct cell_server *server = request->server;
	bool is_full, may_run;

	cell__pool_lock(server);
	is_full = CELL_ALL(server, queued) >= server->limits.max_queue;
	may_run = !is_full && cell__account_may_run(request, account);
	server->use->queued += may_run;
	account->use->runs += may_run;
	cell__pool_unlock(server);
	if (is_full)
		cell__answer_busy(request, 1, "too many programs are waiting");
	return may_run;
}

void cell__handle_run_code(struct cell__request *request)
{
	struct cell_server *server = request->server;
	struct cell__account *account = cell__account_get(server, &request->who);
	int64_t memory_bytes;

	if (!server->fusion) {
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "this server was started without --sandbox-fusion");
		return;
	}
	memory_bytes = memory_of(request);
	if (memory_bytes > 0 && memory_bytes < 16 * MIB)
		cell__answer_fail(request, MHD_HTTP_UNPROCESSABLE_CONTENT, CELL_E_INVALID,
				  "memory_limit_MB is too small: a sandbox needs at least 16");
	else if (!files_ok(json_object_get(request->json, "files")))
		cell__answer_fail(request, MHD_HTTP_UNPROCESSABLE_CONTENT, CELL_E_INVALID,
				  "files: contents must be strings in base64, or null");
	else if (server->draining)
		cell__answer_busy(request, 5, "the server is stopping");
	else if (!account)
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a program");
	else if (admit(request, account))
		begin(request, account, memory_bytes);
}

int cell__fusion_create(struct cell_server *server, struct cell_error *err)
{
	struct cell__sandbox_policy policy = { 0 };
	const char *name = server->session.sandbox_policy ? server->session.sandbox_policy : CELL_POLICY_DEFAULT;

	if (!server->opts.sandbox_fusion)
		return 0;
	if (cell__sandbox_policy_load(&policy, name, err) < 0)
		return -1;
	server->fusion = cell__alloc(1, sizeof(*server->fusion));
	if (server->fusion)
		server->fusion->memory_bytes = server->session.memory_limit ? server->session.memory_limit : (int64_t)policy.memory_bytes;
	cell__sandbox_policy_finish(&policy);
	return server->fusion ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a server");
}
