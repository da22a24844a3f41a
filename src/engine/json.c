/*
 * cell_json_call(): the library with JSON in and JSON out, for languages that call C with strings.
 *
 * Callers' threads only; the engine's thread delivers the result of a run (handle_event) and does nothing else here.  One lock guards the
 * list of sessions and the work under way in each.  No function of the library that waits is called with the lock held.
 *
 *     open ──▶ in the list ──▶ close: out of the list, runs and calls are cancelled, and when no thread uses it any more: closed
 *
 * A thread that uses a session holds it (`users`), so that a close by another thread frees nothing under its feet.  A run that is
 * submitted while the session is being closed cancels itself: `closing` is read after the run has its id.
 */
#include <pthread.h>
#include <string.h>

#include "base/nearest.h"
#include "calls/table.h"
#include "engine/json_options.h"
#include "wire/json_check.h"

#define MAX_REQUEST_BYTES (128u * 1024u * 1024u)

/* A session with the objects that it was opened with. */
struct opened {
	struct opened *next;
	struct cell_session *session;
	struct cell_space *space; /* or NULL, as the next two */
	struct cell_policy *policy;
	struct cell_audit *audit;
	char *executor;
	struct work *work; /* runs and calls under way */
	size_t users;
	bool closing;
};

/* One run or call, on the stack of the thread that waits for it. */
struct work {
	struct work *next;
	struct cell_json *json;
	uint64_t run_id; /* 0: not submitted yet, or a call */
	struct cell_canceller *canceller; /* a call's */
	struct cell_result *result; /* a run's, when it is over */
	bool cancelled;
	bool held; /* close() is cancelling it: it must stay */
};

struct cell_json {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a run is over, a session has a user less */
	struct cell_engine *engine; /* NULL: not needed yet; never changes afterwards */
	struct opened *list;
};

/* What an operation answers: JSON text, or an error. */
struct reply {
	struct cell__buf out;
	struct cell_error err;
	char *message; /* longer than err can hold; or NULL */
};

struct operation {
	const char *name;
	const struct cell__json_field *members;
	int (*run)(struct cell_json *json, const json_t *request, struct reply *reply);
};

/* ---- replies ---- */

static int no_memory(struct reply *reply)
{
	return cell_fail(&reply->err, CELL_E_NOMEM, 0, "out of memory");
}

static int add_text(struct reply *reply, const char *text)
{
	return cell__buf_add_str(&reply->out, text) < 0 ? no_memory(reply) : 0;
}

/* Takes over the text. */
static int add_owned(struct reply *reply, char *text)
{
	int rc = text ? add_text(reply, text) : no_memory(reply);
	free(text);
	return rc;
}

/* ---- sessions and their users ---- */

static const char *text_member(const json_t *request, const char *name)
{
	const char *text = json_string_value(json_object_get(request, name));
	return text && strlen(text) == json_string_length(json_object_get(request, name)) ? text : NULL;
}

/* Holds the session that the request names, until let_go(). */
static struct opened *hold(struct cell_json *json, const json_t *request, struct reply *reply)
{
	const char *id = text_member(request, "session");
	struct opened *found;
	if (!id) {
		cell_fail(&reply->err, CELL_E_INVALID, 0, "\"session\" is missing: the id that \"open\" returned");
		return NULL;
	}
	pthread_mutex_lock(&json->lock);
	for (found = json->list; found && strcmp(cell_session_id(found->session), id) != 0; found = found->next)
		;
	if (found)
		found->users++;
	pthread_mutex_unlock(&json->lock);
	if (!found)
		cell_fail(&reply->err, CELL_E_CLOSED, 0, "session \"%.60s\" is not open", id);
	return found;
}

static void let_go(struct cell_json *json, struct opened *opened)
{
	pthread_mutex_lock(&json->lock);
	opened->users--;
	pthread_cond_broadcast(&json->changed);
	pthread_mutex_unlock(&json->lock);
}

static void cancel(struct opened *opened, const struct work *work)
{
	if (work->run_id)
		(void)cell_session_cancel(opened->session, work->run_id, NULL);
	else
		cell_canceller_cancel(work->canceller);
}

/* Adds work that close can cancel.  -1: the session is being closed. */
static int begin_work(struct cell_json *json, struct opened *opened, struct work *work, struct reply *reply)
{
	pthread_mutex_lock(&json->lock);
	bool closing = opened->closing;
	if (!closing) {
		work->json = json;
		work->next = opened->work;
		opened->work = work;
	}
	pthread_mutex_unlock(&json->lock);
	return closing ? cell_fail(&reply->err, CELL_E_CLOSED, 0, "the session is being closed") : 0;
}

static void end_work(struct cell_json *json, struct opened *opened, struct work *work)
{
	pthread_mutex_lock(&json->lock);
	while (work->held)
		pthread_cond_wait(&json->changed, &json->lock);
	struct work **at = &opened->work;
	while (*at != work)
		at = &(*at)->next;
	*at = work->next;
	pthread_mutex_unlock(&json->lock);
}

/* Nobody uses it. */
static void finish(struct opened *opened)
{
	cell_session_close(opened->session);
	cell_space_close(opened->space);
	cell_audit_close(opened->audit);
	cell_policy_destroy(opened->policy);
	free(opened->executor);
	free(opened);
}

/* It is held once, by the caller, who loses it. */
static void close_held(struct cell_json *json, struct opened *opened)
{
	pthread_mutex_lock(&json->lock);
	bool mine = !opened->closing;
	opened->closing = true;
	struct opened **at = &json->list;
	while (*at && *at != opened)
		at = &(*at)->next;
	if (*at)
		*at = opened->next;
	/* Cancelling waits for the engine's thread: without the lock, and the list from its start each time. */
	struct work *work = mine ? opened->work : NULL;
	while (work) {
		if (!work->cancelled && (work->run_id || work->canceller)) {
			work->cancelled = work->held = true;
			pthread_mutex_unlock(&json->lock);
			cancel(opened, work);
			pthread_mutex_lock(&json->lock);
			work->held = false;
			pthread_cond_broadcast(&json->changed);
			work = opened->work;
		} else {
			work = work->next;
		}
	}
	opened->users--;
	pthread_cond_broadcast(&json->changed);
	while (mine && opened->users > 0)
		pthread_cond_wait(&json->changed, &json->lock);
	pthread_mutex_unlock(&json->lock);
	if (mine)
		finish(opened);
}

/* ---- operations: version, engine, open ---- */

static const struct cell__json_field no_members[] = { { "op", CELL__JSON_OTHER, 0 }, { NULL, 0, 0 } };
static const struct cell__json_field session_members[] = { { "op", CELL__JSON_OTHER, 0 },
							   { "session", CELL__JSON_OTHER, 0 },
							   { NULL, 0, 0 } };
static const struct cell__json_field option_members[] = { { "op", CELL__JSON_OTHER, 0 },
							  { "options", CELL__JSON_OTHER, 0 },
							  { NULL, 0, 0 } };

static int do_version(struct cell_json *json, const json_t *request, struct reply *reply)
{
	(void)json, (void)request;
	return add_text(reply, "{\"version\":\"" CELL_VERSION "\"}");
}

/* opts NULL: unless there is one. */
static int make_engine(struct cell_json *json, const struct cell_engine_options *opts, struct cell_error *err)
{
	int rc = 0;
	pthread_mutex_lock(&json->lock);
	if (!json->engine)
		rc = cell_engine_create(opts, &json->engine, err);
	else if (opts)
		rc = cell_fail(err, CELL_E_INVALID, 0, "the engine has been started: its options must come before the first \"open\"");
	pthread_mutex_unlock(&json->lock);
	return rc;
}

static int do_engine(struct cell_json *json, const json_t *request, struct reply *reply)
{
	struct cell_engine_options opts = CELL_ENGINE_OPTIONS_INIT;
	struct cell__json_memory memory = { 0 };
	const json_t *given = json_object_get(request, "options");
	int rc = given ? cell__json_read(given, "\"options\"", cell__json_engine_fields, &opts, &memory, &reply->err) : 0;
	if (rc == 0)
		rc = make_engine(json, &opts, &reply->err);
	cell__json_memory_finish(&memory);
	return rc < 0 ? -1 : add_text(reply, "{}");
}

/* A decision for every call, or the path of a file. */
static int open_policy(const json_t *value, struct cell_policy **ret_policy, struct cell_error *err)
{
	const char *text = json_string_value(value);
	if (!text || strlen(text) != json_string_length(value))
		return cell_fail(err, CELL_E_INVALID, 0, "\"policy\" must be \"allow\", \"ask\", \"deny\" or the path of a file");
	for (int decision = CELL_DENY; decision <= CELL_ALLOW; decision++) {
		if (strcmp(text, cell_decision_word((enum cell_decision)decision)) != 0)
			continue;
		*ret_policy = cell_policy_of((enum cell_decision)decision);
		return *ret_policy ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	return cell_policy_load(text, ret_policy, err);
}

static int read_gate(const json_t *value, unsigned *ret_gate, struct cell_error *err)
{
	static const char expected[] =
		"\"gate\" must be an array of kinds of calls: tool, shell, install, remove, workflow, artifact, server, question";
	size_t i;
	json_t *each;
	if (!json_is_array(value))
		return cell_fail(err, CELL_E_INVALID, 0, "%s", expected);
	json_array_foreach(value, i, each) {
		const char *word = json_is_string(each) ? json_string_value(each) : "";
		unsigned kind = strcmp(word, "question") == 0 ? CELL_GATE_QUESTIONS : cell__gate_kind_of(word);
		if (!kind)
			return cell_fail(err, CELL_E_INVALID, 0, "%s", expected);
		*ret_gate |= kind;
	}
	return 0;
}

static int open_audit(struct cell_engine *engine, const json_t *value, struct cell_audit **ret_audit, struct cell__json_memory *memory,
		      struct cell_error *err)
{
	static const char *const words[] = {
		[CELL_AUDIT_SYNC_NEVER] = "never", [CELL_AUDIT_SYNC_INTERVAL] = "interval", [CELL_AUDIT_SYNC_ALWAYS] = "always"
	};
	struct cell_audit_options opts = CELL_AUDIT_OPTIONS_INIT;
	if (cell__json_read(value, "\"audit\"", cell__json_audit_fields, &opts, memory, err) < 0)
		return -1;
	const json_t *sync = json_object_get(value, "sync");
	if (sync && !json_is_null(sync)) {
		size_t i = 0;
		while (i < 3 && !(json_is_string(sync) && strcmp(json_string_value(sync), words[i]) == 0))
			i++;
		if (i == 3)
			return cell_fail(err, CELL_E_INVALID, 0, "\"sync\" of \"audit\" must be \"never\", \"interval\" or \"always\"");
		opts.sync = (enum cell_audit_sync)i;
	}
	return cell_audit_open(engine, &opts, ret_audit, err);
}

static const json_t *given(const json_t *options, const char *name)
{
	const json_t *value = json_object_get(options, name);
	return json_is_null(value) ? NULL : value;
}

/* What the options name but cannot hold: policy, audit log, space, container. */
static int open_objects(struct cell_json *json, struct opened *opened, const json_t *options, struct cell_session_options *opts,
			struct cell_container_options *container, struct cell_kubernetes_options *kubernetes,
			struct cell__json_memory *memory, struct cell_error *err)
{
	const json_t *policy = given(options, "policy"), *gate = given(options, "gate"), *audit = given(options, "audit"),
		     *space = given(options, "space"), *box = given(options, "container"), *cluster = given(options, "kubernetes");
	struct cell_space_options space_opts = CELL_SPACE_OPTIONS_INIT;
	if ((gate && read_gate(gate, &opts->gate, err) < 0) ||
	    (box && cell__json_read(box, "\"container\"", cell__json_container_fields, container, memory, err) < 0) ||
	    (cluster && cell__json_read(cluster, "\"kubernetes\"", cell__json_kubernetes_fields, kubernetes, memory, err) < 0) ||
	    (space && cell__json_read(space, "\"space\"", cell__json_space_fields, &space_opts, memory, err) < 0) ||
	    (policy && open_policy(policy, &opened->policy, err) < 0) ||
	    (audit && open_audit(json->engine, audit, &opened->audit, memory, err) < 0) ||
	    (space && cell_space_open(json->engine, &space_opts, &opened->space, err) < 0))
		return -1;
	opts->container = box ? container : NULL;
	opts->kubernetes = cluster ? kubernetes : NULL;
	opts->policy = opened->policy;
	opts->audit = opened->audit;
	opts->space = opened->space;
	/* The host's own calls pass through the same policy and audit log. */
	return opened->space ? cell_space_guard(opened->space, opts, err) : 0;
}

static int do_open(struct cell_json *json, const json_t *request, struct reply *reply)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_container_options container = CELL_CONTAINER_OPTIONS_INIT;
	struct cell_kubernetes_options kubernetes = CELL_KUBERNETES_OPTIONS_INIT;
	struct cell__json_memory memory = { 0 };
	const json_t *options = given(request, "options");
	struct opened *opened = cell__alloc(1, sizeof *opened);
	if (!opened)
		return no_memory(reply);
	int rc = options ? cell__json_read(options, "\"options\"", cell__json_session_fields, &opts, &memory, &reply->err) : 0;
	if (rc == 0)
		rc = make_engine(json, NULL, &reply->err);
	if (rc == 0 && options)
		rc = open_objects(json, opened, options, &opts, &container, &kubernetes, &memory, &reply->err);
	if (rc == 0) {
		opened->executor = cell__strdup(opts.executor ? opts.executor : "subprocess");
		rc = opened->executor ? cell_session_open(json->engine, &opts, &opened->session, &reply->err) : no_memory(reply);
	}
	cell__json_memory_finish(&memory);
	if (rc == 0 && (cell__buf_printf(&reply->out, "{\"session\":\"%s\"}", cell_session_id(opened->session)) < 0))
		rc = no_memory(reply);
	if (rc < 0) {
		finish(opened);
		return -1;
	}
	pthread_mutex_lock(&json->lock);
	opened->next = json->list;
	json->list = opened;
	pthread_mutex_unlock(&json->lock);
	return 0;
}

/* ---- run ---- */

static const struct cell__json_field run_members[] = {
	{ "op", CELL__JSON_OTHER, 0 },
	{ "session", CELL__JSON_OTHER, 0 },
	{ "code", CELL__JSON_OTHER, 0 },
	{ "timeout_ms", CELL__JSON_OTHER, 0 },
	{ NULL, 0, 0 },
};

/* Engine's thread. */
static void handle_event(void *arg, const struct cell_event *event)
{
	struct work *work = arg;
	struct cell_json *json = work->json;
	if (event->type != CELL_EVENT_RESULT)
		return;
	pthread_mutex_lock(&json->lock);
	work->result = event->result;
	pthread_cond_broadcast(&json->changed);
	pthread_mutex_unlock(&json->lock);
}

static struct cell_result *wait_for_result(struct cell_json *json, struct opened *opened, struct work *work, uint64_t run_id)
{
	pthread_mutex_lock(&json->lock);
	work->run_id = run_id;
	bool late = opened->closing && !work->cancelled;
	work->cancelled |= late;
	if (late) {
		pthread_mutex_unlock(&json->lock);
		cancel(opened, work);
		pthread_mutex_lock(&json->lock);
	}
	while (!work->result)
		pthread_cond_wait(&json->changed, &json->lock);
	pthread_mutex_unlock(&json->lock);
	return work->result;
}

/* Our failure is an error, not an outcome of the code. */
static int add_result(struct reply *reply, struct cell_result *result)
{
	const struct cell_outcome *outcome = cell_result_error(result);
	int rc;
	if (outcome && !cell__code_is_outcome(outcome->code))
		rc = cell_fail(&reply->err, outcome->code, 0, "%s", outcome->message);
	else
		rc = add_owned(reply, cell_result_json(result));
	cell_result_destroy(result);
	return rc;
}

static int do_run(struct cell_json *json, const json_t *request, struct reply *reply)
{
	const json_t *code = json_object_get(request, "code"), *timeout = given(request, "timeout_ms");
	struct cell_run_options opts = CELL_RUN_OPTIONS_INIT;
	struct work work = { 0 };
	uint64_t run_id;
	if (timeout && !json_is_integer(timeout))
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"timeout_ms\" must be an integer");
	opts.timeout_ms = json_integer_value(timeout);
	if (!json_is_string(code))
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"code\" must be a string");
	struct opened *opened = hold(json, request, reply);
	if (!opened)
		return -1;
	opts.on_event = handle_event;
	opts.event_arg = &work;
	int rc = begin_work(json, opened, &work, reply);
	if (rc == 0) {
		rc = cell_session_start(opened->session, json_string_value(code), json_string_length(code), &opts, &run_id, &reply->err);
		if (rc == 0)
			rc = add_result(reply, wait_for_result(json, opened, &work, run_id));
		end_work(json, opened, &work);
	}
	let_go(json, opened);
	return rc;
}

/* ---- reset, interrupt, close, sessions ---- */

static int do_reset(struct cell_json *json, const json_t *request, struct reply *reply)
{
	struct opened *opened = hold(json, request, reply);
	if (!opened)
		return -1;
	int rc = cell_session_reset(opened->session, &reply->err);
	let_go(json, opened);
	return rc < 0 ? -1 : add_text(reply, "{}");
}

static int do_interrupt(struct cell_json *json, const json_t *request, struct reply *reply)
{
	struct opened *opened = hold(json, request, reply);
	if (!opened)
		return -1;
	int rc = cell_session_interrupt(opened->session, &reply->err);
	let_go(json, opened);
	return rc < 0 ? -1 : add_text(reply, "{}");
}

static int do_close(struct cell_json *json, const json_t *request, struct reply *reply)
{
	struct opened *opened = hold(json, request, reply);
	if (!opened)
		return -1;
	close_held(json, opened);
	return add_text(reply, "{}");
}

static int do_sessions(struct cell_json *json, const json_t *request, struct reply *reply)
{
	(void)request;
	int rc = cell__buf_add_str(&reply->out, "[");
	pthread_mutex_lock(&json->lock);
	for (const struct opened *each = json->list; each; each = each->next) {
		size_t runs = 0;
		for (const struct work *work = each->work; work; work = work->next)
			runs += !work->canceller;
		rc |= cell__buf_printf(&reply->out, "%s{\"session\":\"%s\",\"runs\":%zu,\"executor\":", each == json->list ? "" : ",",
				       cell_session_id(each->session), runs);
		rc |= cell__buf_add_json_string(&reply->out, each->executor, strlen(each->executor));
		rc |= cell__buf_add_str(&reply->out, "}");
	}
	pthread_mutex_unlock(&json->lock);
	rc |= cell__buf_add_str(&reply->out, "]");
	return rc < 0 ? no_memory(reply) : 0;
}

/* ---- approvals ---- */

static int do_approvals(struct cell_json *json, const json_t *request, struct reply *reply)
{
	char *list = NULL;
	struct opened *opened = hold(json, request, reply);
	if (!opened)
		return -1;
	int rc = cell_session_approvals(opened->session, &list, &reply->err);
	let_go(json, opened);
	return rc < 0 ? -1 : add_owned(reply, list);
}

static const struct cell__json_field answer_members[] = {
	{ "op", CELL__JSON_OTHER, 0 },
	{ "session", CELL__JSON_OTHER, 0 },
	{ "id", CELL__JSON_OTHER, 0 },
	{ "answer", CELL__JSON_OTHER, 0 },
	{ NULL, 0, 0 },
};

static int do_answer(struct cell_json *json, const json_t *request, struct reply *reply)
{
	struct cell_approval_answer answer = CELL_APPROVAL_ANSWER_INIT;
	const json_t *id = json_object_get(request, "id"), *object = json_object_get(request, "answer"), *args = given(object, "args");
	if (!json_is_integer(id) || json_integer_value(id) < 0)
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"id\" must be the number of a request, or 0 for all of them");
	if (!json_is_boolean(json_object_get(object, "accept")))
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"answer\" must be an object with \"accept\": true or false");
	if (cell__json_read(object, "\"answer\"", cell__json_answer_fields, &answer, &(struct cell__json_memory){ 0 }, &reply->err) < 0)
		return -1;
	CELL_AUTO_FREE char *text = args ? json_dumps(args, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
	if (args && !text)
		return no_memory(reply);
	answer.args = text;
	struct opened *opened = hold(json, request, reply);
	if (!opened)
		return -1;
	int rc = cell_session_answer(opened->session, (uint64_t)json_integer_value(id), &answer, &reply->err);
	let_go(json, opened);
	return rc < 0 ? -1 : add_text(reply, "{}");
}

/* ---- call: an operation of the session's space ---- */

static const struct cell__json_field call_members[] = {
	{ "op", CELL__JSON_OTHER, 0 },     { "session", CELL__JSON_OTHER, 0 },
	{ "method", CELL__JSON_OTHER, 0 }, { "args", CELL__JSON_OTHER, 0 },
	{ "raw", CELL__JSON_OTHER, 0 },    { "principal", CELL__JSON_OTHER, 0 },
	{ "client", CELL__JSON_OTHER, 0 }, { NULL, 0, 0 },
};

struct call {
	const char *method, *client;
	bool host; /* else: an agent */
	char *args;
	struct cell__buf raw;
};

static int read_call(const json_t *request, struct call *call, struct reply *reply)
{
	const char *principal = text_member(request, "principal");
	const json_t *args = given(request, "args"), *raw = given(request, "raw");
	call->method = text_member(request, "method");
	call->client = text_member(request, "client");
	call->host = principal && strcmp(principal, "host") == 0;
	if (!call->method)
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"method\" must be the name of an operation, like \"tools.list\"");
	if (!call->host && !(principal && strcmp(principal, "mcp") == 0))
		return cell_fail(
			&reply->err, CELL_E_INVALID, 0,
			"\"principal\" must be \"host\" (a call of the program itself) or \"mcp\" (of an agent that the program serves)");
	if (given(request, "client") && (!call->client || call->host))
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"client\" must be a string, and only the principal \"mcp\" has one");
	if (args && !json_is_object(args))
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"args\" must be an object");
	if (raw && (!json_is_string(raw) || cell__buf_add_unbase64(&call->raw, json_string_value(raw), json_string_length(raw)) < 0))
		return cell_fail(&reply->err, CELL_E_INVALID, 0, "\"raw\" must be bytes in base64");
	call->args = args ? json_dumps(args, JSON_COMPACT) : NULL;
	return args && !call->args ? no_memory(reply) : 0;
}

static int add_answer(struct reply *reply, struct cell_answer *answer)
{
	int rc = cell__buf_printf(&reply->out, "{\"result\":%s,\"raw\":", answer->json ? answer->json : "null");
	if (answer->raw) {
		rc |= cell__buf_add_str(&reply->out, "\"");
		rc |= cell__buf_add_base64(&reply->out, answer->raw, answer->raw_size);
		rc |= cell__buf_add_str(&reply->out, "\"}");
	} else {
		rc |= cell__buf_add_str(&reply->out, "null}");
	}
	return rc < 0 ? no_memory(reply) : 0;
}

static int make_call(struct cell_json *json, struct opened *opened, const struct call *call, struct reply *reply)
{
	struct work work = { .canceller = cell_canceller_create() };
	struct cell_answer answer = CELL_ANSWER_INIT;
	if (!work.canceller)
		return no_memory(reply);
	int rc = begin_work(json, opened, &work, reply);
	if (rc == 0) {
		if (!opened->space)
			rc = cell_fail(&reply->err, CELL_E_NOT_FOUND, 0,
				       "the session was opened without \"space\", so it has no tools and no storage");
		else if (call->host)
			rc = cell_space_call_with(opened->space, call->method, call->args, call->raw.data, call->raw.size, work.canceller,
						  &answer, &reply->err);
		else
			rc = cell_session_call(opened->session, call->client, NULL, call->method, call->args, call->raw.data,
					       call->raw.size, work.canceller, &answer, &reply->err);
		end_work(json, opened, &work);
	}
	if (rc == 0)
		rc = add_answer(reply, &answer);
	else
		reply->message = cell__take_ptr(answer.message);
	cell_answer_finish(&answer);
	cell_canceller_destroy(work.canceller);
	return rc;
}

static int do_call(struct cell_json *json, const json_t *request, struct reply *reply)
{
	struct call call = { .raw = CELL_BUF_INIT };
	int rc = read_call(request, &call, reply);
	struct opened *opened = rc == 0 ? hold(json, request, reply) : NULL;
	if (opened) {
		rc = make_call(json, opened, &call, reply);
		let_go(json, opened);
	} else {
		rc = -1;
	}
	free(call.args);
	cell__buf_finish(&call.raw);
	return rc;
}

/* ---- the one function ---- */

static const struct operation operations[] = {
	{ "version", no_members, do_version },
	{ "engine", option_members, do_engine },
	{ "open", option_members, do_open },
	{ "run", run_members, do_run },
	{ "reset", session_members, do_reset },
	{ "interrupt", session_members, do_interrupt },
	{ "approvals", session_members, do_approvals },
	{ "answer", answer_members, do_answer },
	{ "call", call_members, do_call },
	{ "close", session_members, do_close },
	{ "sessions", no_members, do_sessions },
};
#define OPERATIONS (sizeof operations / sizeof *operations)

static const struct operation *find_operation(const char *name, struct cell_error *err)
{
	const char *words[OPERATIONS + 1] = { NULL };
	for (size_t i = 0; i < OPERATIONS; i++) {
		words[i] = operations[i].name;
		if (name && strcmp(name, words[i]) == 0)
			return &operations[i];
	}
	const char *near = name ? cell__nearest(name, words) : NULL;
	if (!name)
		cell_fail(err, CELL_E_INVALID, 0,
			  "\"op\" is missing: version, engine, open, run, reset, interrupt, approvals, answer, call, close or sessions");
	else
		cell_fail(err, CELL_E_INVALID, 0, "\"%.60s\" is not an operation%s%s%s", name, near ? "; did you mean \"" : "",
			  near ? near : "", near ? "\"?" : "");
	return NULL;
}

static int answer_request(struct cell_json *json, const char *text, struct reply *reply)
{
	size_t size = strlen(text);
	json_error_t problem;
	if (size > MAX_REQUEST_BYTES || cell__json_weigh(text, size) > CELL_LIMIT_TREE_BYTES)
		return cell_fail(&reply->err, CELL_E_LIMIT, 0,
				 "the request is too large: %zu bytes, at most %u, and at most %u for its tree", size, MAX_REQUEST_BYTES,
				 CELL_LIMIT_TREE_BYTES);
	json_t *request = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
	int rc = -1;
	if (!request) {
		cell_fail(&reply->err, CELL_E_INVALID, 0, "the request is not JSON: line %d, column %d: %.150s", problem.line,
			  problem.column, problem.text);
	} else if (!json_is_object(request)) {
		cell_fail(&reply->err, CELL_E_INVALID, 0, "the request must be a JSON object");
	} else {
		const struct operation *operation = find_operation(text_member(request, "op"), &reply->err);
		if (operation && cell__json_read(request, "the request", operation->members, NULL, NULL, &reply->err) == 0)
			rc = operation->run(json, request, reply);
	}
	json_decref(request);
	return rc;
}

/* The text of a message may come from a tool, an installer or a file name, and JSON must be UTF-8. */
static int add_error(struct cell__buf *out, const struct reply *reply)
{
	const char *message = reply->message ? reply->message : reply->err.msg;
	CELL_AUTO_BUF struct cell__buf clean = CELL_BUF_INIT;
	int rc = cell__buf_add_utf8(&clean, message, strlen(message));
	rc |= cell__buf_printf(out, "{\"error\":{\"code\":\"%s\",\"message\":", cell_code_word(reply->err.code));
	rc |= cell__buf_add_json_string(out, clean.data ? clean.data : "", clean.size);
	return rc | cell__buf_add_str(out, "}}");
}

char *cell_json_call(struct cell_json *json, const char *request)
{
	struct reply reply = { .out = CELL_BUF_INIT };
	CELL_AUTO_BUF struct cell__buf out = CELL_BUF_INIT;
	int rc = cell__require(&reply.err, json, request);
	if (rc == 0)
		rc = cell__buf_add_str(&reply.out, "{\"ok\":") < 0 ? no_memory(&reply) : answer_request(json, request, &reply);
	if (rc == 0)
		rc = add_text(&reply, "}");
	if (rc == 0)
		out = reply.out;
	else
		cell__buf_finish(&reply.out);
	bool failed = rc < 0 && add_error(&out, &reply) < 0;
	free(reply.message);
	return failed ? NULL : cell__buf_take(&out);
}

struct cell_json *cell_json_create(void)
{
	struct cell_json *json = cell__alloc(1, sizeof *json);
	if (!json)
		return NULL;
	pthread_mutex_init(&json->lock, NULL);
	pthread_cond_init(&json->changed, NULL);
	return json;
}

void cell_json_destroy(struct cell_json *json)
{
	if (!json)
		return;
	while (json->list) {
		struct opened *opened = json->list;
		json->list = opened->next;
		finish(opened);
	}
	cell_engine_destroy(json->engine);
	pthread_cond_destroy(&json->changed);
	pthread_mutex_destroy(&json->lock);
	free(json);
}

void cell_free(void *memory)
{
	free(memory);
}
