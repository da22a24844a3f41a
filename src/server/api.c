/* Handlers of the routes that are as the reference has them: sessions, /execute and /api.  Thin. */
#include "server/api.h"

#include <string.h>

/* ---- cells ---- */

static const char *text_of(const json_t *object, const char *name)
{
	return json_string_value(json_object_get(object, name));
}

int64_t cell__timeout_of(struct cell__request *request)
{
	double seconds = json_number_value(json_object_get(request->json ? request->json : request->query, "timeout"));
	int64_t max = request->server->limits.max_timeout_ms;
	int64_t ms = seconds > 0 && seconds < 1e12 ? (int64_t)(seconds * 1000) : 0;

	if (seconds > 0 && !ms)
		ms = 1;
	if (seconds >= 1e12)
		ms = max < 0 ? -1 : max;
	return max >= 0 && ms > max ? max : ms; /* 0: the session's own */
}

static void answer_execute(struct cell__request *request, struct cell_result *result)
{
	const struct cell_outcome *error = cell_result_error(result);

	if (error && error->code == CELL_E_BUSY)
		cell__answer_shortage(request, error->message);
	else if (error && !cell__code_is_outcome(error->code))
		cell__answer_fail(request, (unsigned)cell_code_http_status(error->code), error->code, "%s", error->message);
	else
		cell__answer_text(request, MHD_HTTP_OK, cell__execute_answer(result, request->served->id));
}

static void begin_execute(struct cell__request *request)
{
	const json_t *code = json_object_get(request->json, "code");

	(void)cell__job_begin(request, json_string_value(code), json_string_length(code), cell__timeout_of(request), answer_execute, NULL);
}

/* Most clients that do not name a session have no use for it later. */
static void execute_in_new(struct cell__request *request)
{
	request->served->is_short = true;
	begin_execute(request);
}

void cell__handle_execute(struct cell__request *request)
{
	const char *id = cell__request_header(request, "X-Session-ID");

	if (!id)
		cell__served_open(request, NULL, execute_in_new);
	else if (cell__served_find(request, id, true))
		begin_execute(request);
}

static void answer_session(struct cell__request *request)
{
	cell__answer_json(request, request->route->status, json_pack("{s:s}", "session_id", request->served->id));
}

void cell__handle_sessions(struct cell__request *request)
{
	cell__served_open(request, text_of(request->json, "workspace_id"), answer_session);
}

void cell__handle_reset(struct cell__request *request)
{
	const char *id = cell__request_header(request, "X-Session-ID");

	if (!cell__served_find(request, id ? id : "", true))
		return;
	cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:s,s:s}", "status", "reset", "session_id", request->served->id));
	cell__session_forget_on_loop(request->served->session); /* else its id would wake it */
	cell__served_end(request->served);
}

void cell__handle_health(struct cell__request *request)
{
	struct cell_server *server = request->server;

	cell__answer_json(request, server->draining ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK,
			  json_pack("{s:s,s:f}", "status", server->draining ? "draining" : "healthy", "uptime_seconds",
				    (double)(cell__now_us() - server->started_us) / 1e6));
}

void cell__handle_openapi(struct cell__request *request)
{
	cell__answer_text(request, MHD_HTTP_OK, cell__openapi());
}

static void answer_metrics(struct cell__request *request)
{
	char *text = cell__metrics(request->server);

	if (text)
		cell__answer_bytes(request, "text/plain; version=0.0.4", text, strlen(text));
	else
		cell__answer_fail(request, MHD_HTTP_INTERNAL_SERVER_ERROR, CELL_E_NOMEM, "out of memory for the answer");
}

void cell__handle_metrics(struct cell__request *request)
{
	cell__sample(request->server, request, answer_metrics);
}

/* ---- /info ---- */

static json_t *names_of(const json_t *list)
{
	json_t *names = json_array(), *item;
	size_t i;

	json_array_foreach(list, i, item)
		json_array_append_new(names, json_pack("{s:O,s:O}", "name", json_object_get(item, "name"), "description",
						       json_object_get(item, "description")));
	return names;
}

static void info_workflows(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	const struct cell_server_options *opts = &request->server->opts;
	const char *path = opts->artifacts_path, *workspace = request->workspace->id;

	(void)raw;
	(void)raw_size;
	json_object_set_new(request->json, "workflows", names_of(result));
	if (!path)
		json_object_set_new(request->json, "artifacts_path", json_string(cell__space_artifacts_path(request->workspace->space)));
	else if (*workspace)
		json_object_set_new(request->json, "artifacts_path", json_sprintf("%s/workspaces/%s/artifacts", path, workspace));
	else
		json_object_set_new(request->json, "artifacts_path", json_sprintf("%s/artifacts", path));
	cell__answer_json(request, MHD_HTTP_OK, json_incref(request->json));
}

static void info_tools(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	request->json = json_pack("{s:o}", "tools", names_of(result));
	cell__ask(request, CELL__OP_WORKFLOWS_LIST, json_object(), NULL, 0, info_workflows);
}

static void info_of(struct cell__request *request)
{
	cell__ask(request, CELL__OP_TOOLS_LIST, json_object(), NULL, 0, info_tools);
}

void cell__handle_info(struct cell__request *request)
{
	cell__with_space(request, info_of);
}

/* ---- operations ---- */

static void ask_operation(struct cell__request *request)
{
	cell__ask(request, request->route->operation->id, cell__request_args(request), NULL, 0, request->route->then);
}

void cell__handle_operation(struct cell__request *request)
{
	cell__with_space(request, ask_operation);
}

/* ---- tools and workflows ---- */

/* {type, size, ...} with the bytes: as `workcell tools call --json` has them. */
static json_t *part_with(json_t *part, const char *bytes, size_t size)
{
	const char *type = text_of(part, "type");
	json_t *whole = json_copy(part);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;

	if (type &&
	    (!strcmp(type, "text") || !strcmp(type, "json") || !strcmp(type, "structured") || json_is_true(json_object_get(part, "text"))))
		json_object_set_new(whole, "text", json_stringn(bytes, size));
	else if (!cell__buf_add_base64(&text, bytes, size))
		json_object_set_new(whole, "data", json_string(text.data ? text.data : ""));
	return whole;
}

static void tool_called(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	const char *kind = text_of(result, "raw"), *bytes = raw;
	json_t *value = NULL, *parts, *part;
	size_t i, at = 0;

	if (kind && !strcmp(kind, "parts")) {
		parts = json_array();
		json_array_foreach(json_object_get(result, "parts"), i, part) {
			size_t size = (size_t)json_integer_value(json_object_get(part, "size"));

			if (size > raw_size - at)
				break;
			json_array_append_new(parts, part_with(part, bytes + at, size));
			at += size;
		}
		cell__answer_json(request, MHD_HTTP_OK, json_pack("{s:n,s:o}", "value", "parts", parts));
		return;
	}
	if (!kind)
		value = json_incref(json_object_get(result, "value"));
	else if (!strcmp(kind, "json"))
		value = json_loadb(raw_size ? bytes : "", raw_size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	if (!value)
		value = kind ? json_stringn(raw_size ? bytes : "", raw_size) : json_null();
	cell__answer_json(request, MHD_HTTP_OK, value ? json_pack("{s:o}", "value", value) : NULL);
}

static void begin_tool_call(struct cell__request *request)
{
	json_t *call = cell__request_args(request);

	if (!json_object_get(call, "args"))
		json_object_set_new(call, "args", json_object());
	cell__ask_session(request, call, tool_called);
}

/* A session determines the rules and the answerer: without one, a session is opened for this call. */
void cell__handle_tool_call(struct cell__request *request)
{
	const char *id = cell__request_header(request, "X-Session-ID");

	if (id) {
		if (cell__served_find(request, id, true))
			begin_tool_call(request);
		return;
	}
	request->ends_session = true;
	cell__served_open(request, NULL, begin_tool_call);
}

/* As the reference has it: params are {name: description or type}. */
static json_t *workflow_of(const json_t *found)
{
	static const char *const names[] = { "name", "description", "source" };
	json_t *item = json_object(), *params = json_object(), *parameter;
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (json_object_get(found, names[i]))
			json_object_set(item, names[i], json_object_get(found, names[i]));
	}
	json_array_foreach(json_object_get(found, "parameters"), i, parameter) {
		const char *words = text_of(parameter, "description");

		json_object_set_new(params, text_of(parameter, "name"), json_string(words && *words ? words : text_of(parameter, "type")));
	}
	json_object_set_new(item, "params", params);
	return item;
}

void cell__answer_workflows(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	json_t *list = json_array(), *item;
	size_t i;

	(void)raw;
	(void)raw_size;
	json_array_foreach(result, i, item)
		json_array_append_new(list, workflow_of(item));
	cell__answer_json(request, MHD_HTTP_OK, list);
}

void cell__answer_workflow(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	if (json_is_null(result))
		cell__answer_fail(request, MHD_HTTP_NOT_FOUND, CELL_E_NOT_FOUND, "Workflow '%s' not found", request->params[0]);
	else
		cell__answer_json(request, request->route->status, workflow_of(result));
}

void cell__answer_deleted(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	cell__answer_json(request, json_is_true(result) ? MHD_HTTP_OK : MHD_HTTP_NOT_FOUND,
			  json_is_true(result)
				  ? json_true()
				  : json_pack("{s:o,s:s}", "detail", json_sprintf("Workflow '%s' not found", request->params[0]), "code",
					      cell_code_word(CELL_E_NOT_FOUND)));
}

/* ---- deps ---- */

/* The space's answer without the host's internal members. */
static json_t *sync_of(const json_t *result)
{
	static const char *const names[] = { "installed", "already_present", "failed" };
	json_t *answer = json_object();

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		json_t *list = json_object_get(result, names[i]);

		json_object_set_new(answer, names[i], list ? json_incref(list) : json_array());
	}
	return answer;
}

void cell__answer_sync(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	cell__answer_json(request, MHD_HTTP_OK, sync_of(result));
}

void cell__answer_removed(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	json_t *package = json_object_get(request->json, "package"), *removed = json_array(), *missing = json_array();

	(void)raw;
	(void)raw_size;
	json_array_append(json_is_true(result) ? removed : missing, package);
	cell__answer_json(request, MHD_HTTP_OK,
			  json_pack("{s:o,s:o,s:[],s:b}", "removed", removed, "not_found", missing, "failed", "removed_from_config",
				    json_is_true(result)));
}

/*
 * Several packages: installed together, unless one of them is invalid, and removed one after the other.  request->query holds the answer
 * as it grows.
 */
static void next_package(struct cell__request *request);

static void add_all(json_t *into, const char *name, const json_t *list)
{
	json_array_extend(json_object_get(into, name), (json_t *)list);
}

static void package_installed(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	(void)raw;
	(void)raw_size;
	add_all(request->query, "installed", json_object_get(result, "installed"));
	add_all(request->query, "already_present", json_object_get(result, "already_present"));
	add_all(request->query, "failed", json_object_get(result, "failed"));
	if (request->together)
		json_array_clear(json_object_get(request->json, "packages"));
	else
		json_array_remove(json_object_get(request->json, "packages"), 0);
	next_package(request);
}

static void package_removed(struct cell__request *request, json_t *result, const void *raw, size_t raw_size)
{
	json_t *packages = json_object_get(request->json, "packages");

	(void)raw;
	(void)raw_size;
	json_array_append(json_object_get(request->query, json_is_true(result) ? "removed" : "not_found"), json_array_get(packages, 0));
	json_array_remove(packages, 0);
	next_package(request);
}

/* An invalid package does not prevent the others. */
static void package_invalid(struct cell__request *request)
{
	json_t *packages = json_object_get(request->json, "packages");

	if (request->together) {
		request->together = false;
		next_package(request);
		return;
	}
	json_array_append(json_object_get(request->query, "failed"), json_array_get(packages, 0));
	json_array_remove(packages, 0);
	next_package(request);
}

static void next_package(struct cell__request *request)
{
	json_t *packages = json_object_get(request->json, "packages");
	json_t *package = request->together && json_array_size(packages) > 0 ? packages : json_array_get(packages, 0);
	bool removes = request->removes;

	if (!package)
		cell__answer_json(request, MHD_HTTP_OK, json_incref(request->query));
	else
		cell__ask(request, removes ? CELL__OP_DEPS_REMOVE : CELL__OP_DEPS_ADD, json_pack("{s:O}", "package", package), NULL, 0,
			  removes ? package_removed : package_installed);
}

static void handle_packages(struct cell__request *request, bool removes)
{
	request->removes = removes;
	request->together = !removes && json_array_size(json_object_get(request->json, "packages")) > 1;
	if (json_array_size(json_object_get(request->json, "packages")) > CELL_SERVER_MAX_PACKAGES) {
		cell__answer_fail(request, MHD_HTTP_CONTENT_TOO_LARGE, CELL_E_LIMIT, "a request may have at most %u packages",
				  CELL_SERVER_MAX_PACKAGES);
		return;
	}
	json_decref(request->query);
	request->query = json_pack("{s:[],s:[],s:[],s:[],s:[]}", "installed", "already_present", "removed", "not_found", "failed");
	request->invalid = package_invalid;
	cell__with_space(request, next_package);
}

void cell__handle_install(struct cell__request *request)
{
	handle_packages(request, false);
}

void cell__handle_uninstall(struct cell__request *request)
{
	handle_packages(request, true);
}
