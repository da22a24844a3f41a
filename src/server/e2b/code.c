/*
 * The code interpreter: cells with their results as lines of JSON, and contexts.
 *
 *     POST /execute ──▶ variables of this cell, or of the last one: a cell that sets them ──▶ the cell ──▶ lines
 *
 * A context of bash is a Python session whose cells begin with %%bash.
 */
#define _GNU_SOURCE
#include "server/e2b/e2b.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "files/files.h"

/* ---- events as lines ---- */

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static void add_line(struct cell__job *job, const struct cell__buf *json)
{
	(void)cell__events_add(&job->events, NULL, json->data, json->size); /* out of memory costs the line */
}

/* Bytes at the end that begin a character, and do not end it. */
static size_t unfinished(const char *bytes, size_t size)
{
	for (size_t n = 1; n <= 3 && n <= size; n++) {
		unsigned char byte = (unsigned char)bytes[size - n];

		if ((byte & 0xc0) == 0x80)
			continue;
		return (byte >= 0xf0 && n < 4) || (byte >= 0xe0 && n < 3) || (byte >= 0xc0 && n < 2) ? n : 0;
	}
	return 0;
}

static void add_output(struct cell__job *job, int stream, const char *bytes, size_t size)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, json = CELL_BUF_INIT;
	int rc = cell__buf_add_utf8(&text, bytes, size);

	rc |= cell__buf_printf(&json, "{\"type\":\"%s\",\"text\":", stream ? "stderr" : "stdout");
	rc |= cell__buf_add_json_string(&json, text.data ? text.data : "", text.size);
	rc |= cell__buf_printf(&json, ",\"timestamp\":%lld}", now_ns());
	if (!rc && text.size)
		add_line(job, &json);
}

static void add_chunk(struct cell__job *job, const struct cell_event *event)
{
	struct cell__e2b_context *context = job->served->context;
	int stream = event->stream == CELL_STDERR;
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	size_t left;

	if (!context || cell__buf_add(&bytes, context->carry[stream].bytes, context->carry[stream].size) < 0 ||
	    cell__buf_add(&bytes, event->data, event->size) < 0)
		return;
	left = unfinished(bytes.data, bytes.size);
	if (left)
		memcpy(context->carry[stream].bytes, bytes.data + bytes.size - left, left);
	context->carry[stream].size = left;
	if (bytes.size > left)
		add_output(job, stream, bytes.data, bytes.size - left);
}

static const struct {
	const char *type, *field;
	bool is_bytes, is_json;
} forms[] = {
	{ "text/plain", "text", false, false },
	{ "text/html", "html", false, false },
	{ "text/markdown", "markdown", false, false },
	{ "image/svg+xml", "svg", false, false },
	{ "image/png", "png", true, false },
	{ "image/jpeg", "jpeg", true, false },
	{ "application/pdf", "pdf", true, false },
	{ "text/latex", "latex", false, false },
	{ "application/json", "json", false, true },
	{ "application/javascript", "javascript", false, false },
	{ "e2b/data", "data", false, true },
	{ "e2b/chart", "chart", false, true },
	{ "application/vnd.workcell.table+json", "data", false, true },
	{ "application/vnd.workcell.chart+json", "chart", false, true },
};

/* The text of a string is shown without its quotes. */
static void add_text(struct cell__buf *out, const char *text, size_t size, bool is_main, int *rc)
{
	bool is_quoted = is_main && size >= 2 && (*text == '\'' || *text == '"') && text[size - 1] == *text;

	*rc |= cell__buf_add_json_string(out, text + is_quoted, size - 2 * (size_t)is_quoted);
}

static int add_part(struct cell__buf *out, const struct cell_mime_part *part, size_t form, bool is_main)
{
	const char *bytes = part->data;
	size_t n = sizeof(forms) / sizeof(forms[0]);
	int rc = 0;

	if (form < n && forms[form].is_json) {
		json_t *value = json_loadb(bytes, part->size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		CELL_AUTO_FREE char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

		json_decref(value);
		return cell__buf_add_str(out, text ? text : "null");
	}
	if ((form < n && forms[form].is_bytes) || !cell__utf8_ok(bytes, part->size)) {
		rc = cell__buf_add_str(out, "\"");
		rc |= cell__buf_add_base64(out, bytes, part->size);
		return rc | cell__buf_add_str(out, "\"");
	}
	add_text(out, bytes, part->size, is_main && form == 0, &rc);
	return rc;
}

static void add_parts(struct cell__job *job, const struct cell_mime_part *parts, size_t n_parts, bool is_main)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT, extra = CELL_BUF_INIT;
	size_t n = sizeof(forms) / sizeof(forms[0]);
	int rc = cell__buf_printf(&json, "{\"type\":\"result\",\"is_main_result\":%s", is_main ? "true" : "false");

	for (size_t i = 0; i < n_parts; i++) {
		size_t form = 0;

		while (form < n && strcmp(forms[form].type, parts[i].type))
			form++;
		if (form < n) {
			rc |= cell__buf_printf(&json, ",\"%s\":", forms[form].field);
			rc |= add_part(&json, &parts[i], form, is_main);
		} else {
			rc |= cell__buf_add_str(&extra, extra.size ? "," : "");
			rc |= cell__buf_add_json_string(&extra, parts[i].type, strlen(parts[i].type));
			rc |= cell__buf_add_str(&extra, ":");
			rc |= add_part(&extra, &parts[i], form, is_main);
		}
	}
	if (extra.size)
		rc |= cell__buf_printf(&json, ",\"extra\":{%s}", extra.data);
	rc |= cell__buf_add_str(&json, "}");
	if (!rc && n_parts)
		add_line(job, &json);
}

static void handle_event(struct cell__job *job, const struct cell_event *event)
{
	if (event->type == CELL_EVENT_CHUNK)
		add_chunk(job, event);
	else if (event->type == CELL_EVENT_DISPLAY)
		add_parts(job, event->parts, event->n_parts, false);
}

static void add_error(struct cell__job *job, const char *name, const char *value, const char *traceback)
{
	CELL_AUTO_BUF struct cell__buf json = CELL_BUF_INIT;
	int rc = cell__buf_add_str(&json, "{\"type\":\"error\",\"name\":");

	rc |= cell__buf_add_json_string(&json, name, strlen(name));
	rc |= cell__buf_add_str(&json, ",\"value\":");
	rc |= cell__buf_add_json_string(&json, value, strlen(value));
	rc |= cell__buf_add_str(&json, ",\"traceback\":");
	rc |= cell__buf_add_json_string(&json, traceback, strlen(traceback));
	rc |= cell__buf_add_str(&json, "}");
	if (!rc)
		add_line(job, &json);
}

static void handle_ended(struct cell__job *job, const struct cell_result *result, const struct cell_error *err)
{
	struct cell__e2b_context *context = job->served->context;
	const struct cell_outcome *outcome = result ? cell_result_error(result) : NULL;
	CELL_AUTO_BUF struct cell__buf count = CELL_BUF_INIT;
	const struct cell_mime_part *parts;
	size_t n;

	if (!context) { /* the sandbox was killed; its clients know that by a broken connection */
		job->events.broken = true;
		return;
	}
	for (int i = 0; i < 2; i++) {
		add_output(job, i, context->carry[i].bytes, context->carry[i].size);
		context->carry[i].size = 0;
	}
	if (result && !outcome) {
		n = cell_result_mime(result, &parts);
		add_parts(job, parts, n, true);
	}
	if (outcome)
		add_error(job, *outcome->type ? outcome->type : cell_code_word(outcome->code), outcome->message, outcome->traceback);
	else if (!result)
		add_error(job, cell_code_word(err->code), err->msg, "");
	if (cell__buf_printf(&count, "{\"type\":\"number_of_executions\",\"execution_count\":%llu}",
			     (unsigned long long)++context->executions) == 0)
		add_line(job, &count);
}

static const struct cell__job_form lines = {
	.events = CELL_EVENTS_LINES,
	.alive = "{\"type\":\"keepalive\"}",
	.event = handle_event,
	.ended = handle_ended,
	.stops = true,
};

/* ---- cells ---- */

static void start_cell(struct cell__request *request)
{
	const json_t *code = json_object_get(request->json, "code");
	const char *language = json_string_value(json_object_get(request->json, "language"));
	bool is_bash = request->served->context ? request->served->context->is_bash || (language && !strcmp(language, "bash")) : false;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	struct cell__job *job;

	if (cell__buf_add_str(&text, is_bash ? "%%bash\n" : "") < 0 ||
	    cell__buf_add(&text, json_string_value(code), json_string_length(code)) < 0) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the cell");
		return;
	}
	request->job_form = &lines;
	if (cell__job_begin(request, text.data ? text.data : "", text.size, 0, NULL, &job))
		cell__job_stream(request, job, 0);
}

static void handle_env_set(struct cell__request *request, struct cell_result *result)
{
	(void)result; /* a kernel that fails here fails the cell too */
	start_cell(request);
}

/* Variables of one cell: those of the cell before are restored first.  Defines no names, and its value is None. */
static void set_env(struct cell__request *request, const json_t *env)
{
	CELL_AUTO_FREE char *pairs = env ? json_dumps(env, JSON_COMPACT | JSON_ENSURE_ASCII) : cell__strdup("{}");
	CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;

	/* JSON of strings is Python too; surrogate pairs are not, so they are decoded by json. */
	if (!pairs ||
	    cell__buf_add_str(
		    &code, "(lambda o, s, n: ([o.environ.pop(k, None) if v is None else o.environ.__setitem__(k, v) for k, v in s.items()],"
			   " s.clear(), s.update({k: o.environ.get(k) for k in n}), o.environ.update(n), None)[-1])"
			   "(__import__('os'), __import__('sys').__dict__.setdefault('_workcell_cell_env', {}), "
			   "__import__('json').loads(") < 0 ||
	    cell__buf_add_json_string(&code, pairs, strlen(pairs)) < 0 || cell__buf_add_str(&code, "))") < 0) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the cell");
		return;
	}
	(void)cell__job_begin(request, code.data, code.size, 0, handle_env_set, NULL);
}

static bool is_language(struct cell__request *request, const char *language)
{
	if (!language || !strcmp(language, "python") || !strcmp(language, "bash"))
		return true;
	cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_UNSUPPORTED, "language \"%.40s\" is not supported: use python or bash",
			  language);
	return false;
}

static bool check_env(struct cell__request *request, const json_t *env)
{
	const char *name;
	json_t *value;

	if (env && !json_is_object(env) && !json_is_null(env)) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "env_vars must be an object of strings");
		return false;
	}
	json_object_foreach((json_t *)env, name, value) {
		if (json_is_string(value) && *name && !strchr(name, '=') && strlen(json_string_value(value)) == json_string_length(value))
			continue;
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "env_vars must be an object of strings");
		return false;
	}
	return true;
}

/* The session of a context of this sandbox, as request->served; false: it was answered. */
static bool enter_context(struct cell__request *request, const struct cell__e2b_sandbox *sandbox, const char *id)
{
	struct cell__e2b_context *context = sandbox->contexts;

	while (context && strcmp(context->served->id, id))
		context = context->next;
	cell__served_release(request);
	if (context)
		return cell__served_find(request, id, false);
	cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "context \"%.40s\" not found", id);
	return false;
}

void cell__e2b_handle_execute(struct cell__request *request)
{
	const json_t *body = cell__e2b_body(request), *env = json_object_get(body, "env_vars");
	const char *id = json_string_value(json_object_get(body, "context_id"));
	const struct cell__e2b_sandbox *sandbox;

	if (!body || !is_language(request, json_string_value(json_object_get(body, "language"))) || !check_env(request, env))
		return;
	if (!json_is_string(json_object_get(body, "code"))) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "code must be a string");
		return;
	}
	sandbox = cell__e2b_enter(request);
	if (!sandbox || (id && !enter_context(request, sandbox, id)))
		return;
	if (json_object_size(env) || request->served->context->has_env) {
		request->served->context->has_env = json_object_size(env) > 0;
		set_env(request, json_object_size(env) ? env : NULL);
	} else {
		start_cell(request);
	}
}

/* ---- contexts ---- */

static json_t *describe(const struct cell__e2b_context *context)
{
	return json_pack("{s:s,s:s,s:s}", "id", context->served->id, "language", context->is_bash ? "bash" : "python", "cwd", context->cwd);
}

void cell__e2b_handle_contexts(struct cell__request *request)
{
	const struct cell__e2b_sandbox *sandbox = cell__e2b_enter(request);
	json_t *list;

	if (!sandbox)
		return;
	list = json_array();
	for (const struct cell__e2b_context *context = sandbox->contexts; context; context = context->next)
		json_array_append_new(list, describe(context));
	cell__answer_json(request, MHD_HTTP_OK, list);
}

static void handle_moved(struct cell__request *request, struct cell_result *result)
{
	const struct cell_outcome *outcome = cell_result_error(result);
	const struct cell__e2b_context *context = request->served->context;

	if (outcome || !context) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "cwd: %s",
				  outcome ? outcome->message : "the sandbox has ended");
		cell__served_end(request->served);
		return;
	}
	cell__answer_json(request, MHD_HTTP_OK, describe(context));
}

static void handle_opened(struct cell__request *request)
{
	struct cell__e2b_sandbox *sandbox = cell__e2b_by_id(request->server, request->sandbox);
	const char *cwd = json_string_value(json_object_get(request->json, "cwd")),
		   *inner = json_string_value(json_object_get(request->kept, "cwd"));
	const char *language = json_string_value(json_object_get(request->json, "language"));
	struct cell__e2b_context *context = NULL;
	CELL_AUTO_BUF struct cell__buf code = CELL_BUF_INIT;

	if (sandbox)
		context = cell__e2b_context_add(sandbox, request->served, cwd ? cwd : CELL_E2B_HOME);
	if (!context) {
		cell__answer_fail(request, MHD_HTTP_BAD_GATEWAY, CELL_E_EXPIRED, "The sandbox was not found");
		cell__served_end(request->served);
		return;
	}
	context->is_bash = language && !strcmp(language, "bash");
	if (!inner || !*inner) {
		cell__answer_json(request, MHD_HTTP_OK, describe(context));
		return;
	}
	if (cell__buf_add_str(&code, "__import__('os').chdir(") < 0 || cell__buf_add_json_string(&code, inner, strlen(inner)) < 0 ||
	    cell__buf_add_str(&code, ")") < 0) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the cell");
		return;
	}
	(void)cell__job_begin(request, code.data, code.size, 0, handle_moved, NULL);
}

void cell__e2b_handle_context_create(struct cell__request *request)
{
	const json_t *body = cell__e2b_body(request);
	const char *cwd = json_string_value(json_object_get(body, "cwd"));
	const struct cell__e2b_sandbox *sandbox;
	char path[PATH_MAX] = "";
	size_t n = 0;
	struct cell_error err;

	if (!body || !is_language(request, json_string_value(json_object_get(body, "language"))) || !(sandbox = cell__e2b_enter(request)))
		return;
	for (const struct cell__e2b_context *context = sandbox->contexts; context; context = context->next)
		n++;
	if (n >= CELL_E2B_MAX_CONTEXTS) {
		cell__answer_busy(request, 5, "the sandbox has as many contexts as it may have");
		return;
	}
	if (cwd && cell__e2b_cwd(sandbox, cwd, path, &err) < 0) {
		cell__answer_error(request, &err);
		return;
	}
	request->kept = json_pack("{s:s,s:s?}", "cwd", path, "network", sandbox->network);
	if (!request->kept || cell__e2b_prepare(request, sandbox->envs, json_string_value(json_object_get(request->kept, "network"))) < 0) {
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for a context");
		return;
	}
	request->beside = cell__take_ptr(request->served); /* with its hold */
	cell__served_open(request, *request->beside->workspace->id ? request->beside->workspace->id : NULL, handle_opened);
}

void cell__e2b_handle_context_remove(struct cell__request *request)
{
	const struct cell__e2b_sandbox *sandbox = cell__e2b_enter(request);

	if (!sandbox || !enter_context(request, sandbox, request->params[0]))
		return;
	if (sandbox->contexts->served == request->served) {
		cell__answer_fail(request, MHD_HTTP_BAD_REQUEST, CELL_E_INVALID, "the default context cannot be removed: restart it");
		return;
	}
	cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	cell__served_end(request->served);
}

static void handle_reset(void *arg, struct cell_session *session, const struct cell_error *err)
{
	struct cell__request *request = arg;

	if (session)
		cell__answer_none(request, MHD_HTTP_NO_CONTENT);
	else
		cell__answer_error(request, err);
}

void cell__e2b_handle_context_restart(struct cell__request *request)
{
	const struct cell__e2b_sandbox *sandbox = cell__e2b_enter(request);
	struct cell_error err;

	if (!sandbox || !enter_context(request, sandbox, request->params[0]))
		return;
	request->served->context->executions = 0;
	if (cell__session_reset_on_loop(request->served->session, handle_reset, request, &err) < 0)
		cell__answer_error(request, &err);
}

void cell__e2b_handle_health(struct cell__request *request)
{
	if (cell__e2b_enter(request))
		cell__answer_none(request, MHD_HTTP_NO_CONTENT);
}
