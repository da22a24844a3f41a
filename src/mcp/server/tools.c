/* The tools that are operations on the space (table.c): each call on a thread of its own. */
#include "mcp/server/server.h"

#include <string.h>

/* ---- operations on the space -------------------------------------------------------- */

static int fail(struct cell__buf *message, const char *words)
{
	cell__buf_add_str(message, words);
	return -1;
}

/* Takes over args. -1: *message has the whole error. */
static int call(struct cell__mcp_job *job, const char *method, json_t *args, const void *raw, size_t raw_size, json_t **ret_json,
		struct cell_answer *ret_answer, struct cell__buf *message)
{
	CELL_AUTO_FREE char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
	struct cell_answer answer = CELL_ANSWER_INIT;
	struct cell_error err = { 0 };
	int status = -1;

	json_decref(args);
	if (!text)
		return fail(message, "out of memory");
	struct cell_session *session = cell__mcp_handle_session(job->handle, &err);

	/* The client is an agent: its requests pass the same gate as its code's calls. */
	if (!session || cell_session_call(session, job->client, job, method, text, raw, raw_size, job->canceller, &answer, &err) < 0) {
		cell__buf_printf(message, "%s: ", cell_code_word(err.code));
		cell__buf_add_str(message, answer.message ? answer.message : err.msg);
	} else {
		*ret_json = json_loads(answer.json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
		status = *ret_json ? 0 : fail(message, "the answer is not JSON");
	}
	if (!status && ret_answer)
		*ret_answer = answer;
	else
		cell_answer_finish(&answer);
	return status;
}

int cell__mcp_space_call(struct cell__mcp_job *job, const char *method, json_t *args, json_t **ret_json, struct cell_answer *ret_answer,
			 struct cell__buf *message)
{
	return call(job, method, args, NULL, 0, ret_json, ret_answer, message);
}

/* Text and structure of the same JSON.  Takes over both: text NULL means that of `structured`. */
static int answer_json(struct cell__mcp_answer_out *out, json_t *structured, json_t *text)
{
	CELL_AUTO_FREE char *words = json_dumps(text ? text : structured, JSON_ENCODE_ANY | JSON_COMPACT);

	json_decref(text);
	out->structured = structured;
	out->content = words ? json_pack("[{s:s, s:s}]", "type", "text", "text", words) : NULL;
	return out->content ? 0 : -1;
}

/* The operation unchanged: a result that is not an object is wrapped in {"result": JSON}. */
int cell__mcp_operate(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	json_t *answer;

	if (call(job, job->tool->operation->method, json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	if (json_is_object(answer))
		return answer_json(out, answer, NULL);
	return answer_json(out, json_pack("{s:O}", "result", answer), answer);
}

/* ---- tools that code can call ------------------------------------------------------------ */

/* As code writes it. */
static int add_tool_name(struct cell__buf *text, const char *name)
{
	bool plain = !strchr(name, '-') && !(*name >= '0' && *name <= '9');

	return plain ? cell__buf_printf(text, "tools.%s", name) : cell__buf_printf(text, "tools[\"%s\"]", name);
}

/* search_tools: "tools.mail.send(to: str): Sends a mail". */
static int add_found(const json_t *found, json_t *lines, struct cell__buf *text)
{
	const json_t *each;
	size_t i;
	int status = 0;

	json_array_foreach(found, i, each) {
		const char *words = json_string_value(json_object_get(each, "description"));
		size_t from = text->size;

		status |= add_tool_name(text, json_string_value(json_object_get(each, "tool")));
		status |= cell__buf_printf(text, ".%s%s%s", json_string_value(json_object_get(each, "signature")), *words ? ": " : "",
					   words);
		if (status || json_array_append_new(lines, json_stringn(text->data + from, text->size - from)) < 0)
			return -1;
		status |= cell__buf_add_str(text, "\n");
	}
	return status;
}

/* list_tools: the tool's name once, then its callables. */
static int add_listed(const json_t *tools, json_t *lines, struct cell__buf *text)
{
	const json_t *tool, *signature;
	size_t i, k;
	int status = 0;

	json_array_foreach(tools, i, tool) {
		const json_t *signatures = json_object_get(tool, "callables");
		const char *problem = json_string_value(json_object_get(tool, "problem"));
		size_t from = text->size;

		status |= add_tool_name(text, json_string_value(json_object_get(tool, "name")));
		status |= problem ? cell__buf_printf(text, ": %s", problem) : 0;
		json_array_foreach(signatures, k, signature)
			status |= cell__buf_printf(text, "\n.%s", json_string_value(signature));
		if (status || json_array_append_new(lines, json_stringn(text->data + from, text->size - from)) < 0)
			return -1;
		status |= cell__buf_add_str(text, "\n");
	}
	return status;
}

int cell__mcp_list_tools(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	bool search = job->tool->operation->id == CELL__OP_TOOLS_SEARCH;
	json_t *asked, *answer, *lines;
	int status;

	if (job->handle->server->opts.compat)
		return cell__mcp_operate(job, args, out, message);
	asked = json_copy((json_t *)args);
	json_object_set_new(asked, "callables", json_true());
	if (call(job, job->tool->operation->method, asked, NULL, 0, &answer, NULL, message) < 0)
		return -1;
	lines = json_array();
	status = search ? add_found(answer, lines, &text) : add_listed(answer, lines, &text);
	if (!status && !text.size)
		status = cell__buf_add_str(&text, search ? "No tool was found; list_tools lists all." : "The code has no tools.");
	json_decref(answer);
	out->structured = json_pack("{s:o}", "result", lines);
	out->content = status ? NULL : json_pack("[{s:s, s:s#}]", "type", "text", "text", text.data, (int)text.size);
	return out->content && out->structured ? 0 : -1;
}

int cell__mcp_get_workflow(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	json_t *answer;

	if (call(job, job->tool->operation->method, json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	if (!json_is_object(answer)) {
		json_decref(answer);
		cell__buf_printf(message, "not_found: workflow '%s' does not exist; list_workflows and search_workflows list those that do",
				 json_string_value(json_object_get(args, "name")));
		return -1;
	}
	return answer_json(out, answer, NULL);
}

/* ---- the session itself ----------------------------------------------------------------- */

static int answer_words(struct cell__mcp_answer_out *out, const char *result, const char *words)
{
	out->structured = json_pack("{s:s}", "result", result);
	out->content = json_pack("[{s:s, s:s}]", "type", "text", "text", words);
	return out->structured && out->content ? 0 : -1;
}

static const char overtaken[] = "interrupted: the session was reset before this cell ran";

int cell__mcp_reset(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell__mcp_handle *handle = job->handle;
	struct cell__mcp_job *dropped, *next;
	struct cell_error err;
	struct cell_session *session;
	int status;

	(void)args;
	/* This thread may run before the one that began the reset has left the lock. */
	pthread_mutex_lock(&handle->server->lock);
	dropped = job->dropped;
	pthread_mutex_unlock(&handle->server->lock);
	for (struct cell__mcp_job *cell = dropped; cell; cell = next) {
		next = cell->after;
		cell__mcp_job_fail(cell, overtaken, sizeof(overtaken) - 1);
	}
	session = cell__mcp_handle_session(handle, &err);
	status = session ? cell_session_reset(session, &err) : -1;
	pthread_mutex_lock(&handle->server->lock);
	handle->n_resets--;
	pthread_cond_broadcast(&handle->changed);
	pthread_mutex_unlock(&handle->server->lock);
	if (status < 0) {
		cell__buf_printf(message, "%s: %s", cell_code_word(err.code), err.msg);
		return -1;
	}
	return answer_words(out, "reset", "The kernel was reset; all variables are lost.");
}

/* Of a session that is continued it is only known afterwards whether it exists. */
static int take_up(struct cell__mcp_handle *handle, struct cell__buf *message)
{
	struct cell_error err;

	if (!handle->resumes || cell__mcp_handle_session(handle, &err))
		return 0;
	cell__buf_printf(message, "%s: %s", cell_code_word(err.code), err.msg);
	return -1;
}

int cell__mcp_interrupt(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	bool runs;

	(void)args;
	if (take_up(job->handle, message) < 0)
		return -1;
	pthread_mutex_lock(&job->handle->server->lock);
	runs = job->handle->running != NULL;
	pthread_mutex_unlock(&job->handle->server->lock);
	if (runs)
		cell_session_interrupt(job->handle->session, NULL);
	return answer_words(out, runs ? "interrupted" : "idle", runs ? "The running cell was interrupted." : "No cell was running.");
}

int cell__mcp_close_session(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;

	(void)args;
	/* Only who has it may remove what was saved. */
	if (take_up(job->handle, message) < 0)
		return -1;
	pthread_mutex_lock(&server->lock);
	job->handle->discards = true;
	cell__mcp_handle_close(job->handle);
	pthread_mutex_unlock(&server->lock);
	cell__mcp_handle_stop(job->handle, true);
	return answer_words(out, "closed", "The session was closed.");
}

/* ---- jobs whose client did not wait ------------------------------------------------------ */

static int no_job(struct cell__buf *message)
{
	return fail(message, "not_found: no such job: its result is kept for ten minutes after its end");
}

int cell__mcp_get_job(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;
	const char *id = json_string_value(json_object_get(args, "job"));
	int64_t until = cell__now_us() + json_integer_value(json_object_get(args, "wait_ms")) * 1000;
	struct cell__mcp_job *found;
	json_t *result = NULL;
	int status;

	pthread_mutex_lock(&server->lock);
	while (!(status = cell__mcp_kept_find(server, job->handle->owner, id, &found, &result)) && found && cell__now_us() < until &&
	       !job->handle->closing && !(job->request && job->request->cancelled)) {
		/* A cancellation does not wake us. */
		int64_t soon = cell__now_us() + 100000;

		cell__mcp_cond_wait(&server->changed, &server->lock, soon < until ? soon : until);
	}
	if (!status && !found && result) {
		out->content = json_incref(json_object_get(result, "content"));
		out->structured = json_incref(json_object_get(result, "structuredContent"));
		out->failed = json_is_true(json_object_get(result, "isError"));
	}
	pthread_mutex_unlock(&server->lock);
	if (status)
		return no_job(message);
	if (found || !result)
		return answer_words(out, found ? "running" : "cancelled", found ? "Still running." : "The job was cancelled.");
	return out->content ? 0 : -1;
}

int cell__mcp_cancel_job(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	struct cell_mcp_server *server = job->handle->server;
	int status;

	pthread_mutex_lock(&server->lock);
	status = cell__mcp_kept_cancel(server, job->handle->owner, json_string_value(json_object_get(args, "job")));
	pthread_mutex_unlock(&server->lock);
	if (status < 0)
		return no_job(message);
	return answer_words(out, status ? "cancelled" : "ended", status ? "The job was cancelled." : "The job had ended.");
}

/* ---- artifacts ------------------------------------------------------------------------ */

/* The bytes that `data` describes; -1: *message has the reason. */
static int artifact_bytes(const json_t *args, struct cell__buf *bytes, struct cell__buf *message)
{
	const char *type = json_string_value(json_object_get(args, "type"));
	const json_t *data = json_object_get(args, "data");
	json_t *parsed;
	int status;

	if (!strcmp(type, "bytes"))
		status = cell__buf_add_unbase64(bytes, json_string_value(data), json_string_length(data));
	else
		status = cell__buf_add(bytes, json_string_value(data), json_string_length(data));
	if (status < 0)
		return fail(message, "invalid: argument 'data' is not base64");
	if (bytes->size > CELL_MCP_MAX_ARTIFACT_BYTES)
		return fail(message, "limit: this is too large for one call; save it in code: artifacts.save(name, data)");
	if (strcmp(type, "json"))
		return 0;
	parsed = json_loadb(bytes->size ? bytes->data : "", bytes->size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
	json_decref(parsed);
	return parsed ? 0 : fail(message, "invalid: argument 'data' is not JSON");
}

int cell__mcp_save_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT;
	json_t *about, *answer;

	if (artifact_bytes(args, &bytes, message) < 0)
		return -1;
	about = json_copy((json_t *)args);
	json_object_del(about, "data");
	if (call(job, job->tool->operation->method, about, bytes.data, bytes.size, &answer, NULL, message) < 0)
		return -1;
	return answer_json(out, answer, NULL);
}

int cell__mcp_load_artifact(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	CELL_AUTO_BUF struct cell__buf data = CELL_BUF_INIT;
	struct cell_answer answer = CELL_ANSWER_INIT;
	json_t *bounded = json_copy((json_t *)args), *info, *shown;
	bool text;
	int status;

	json_object_set_new(bounded, "max_bytes", json_integer(CELL_MCP_MAX_ARTIFACT_BYTES));
	if (call(job, job->tool->operation->method, bounded, NULL, 0, &info, &answer, message) < 0) {
		if (message->size >= 6 && !memcmp(message->data, "limit:", 6))
			cell__buf_add_str(message, "; load it in code: artifacts.load(name)");
		return -1;
	}
	text = cell__utf8_ok(answer.raw_size ? answer.raw : "", answer.raw_size);
	status = text ? cell__buf_add(&data, answer.raw, answer.raw_size) : cell__buf_add_base64(&data, answer.raw, answer.raw_size);
	cell_answer_finish(&answer);
	if (status < 0) {
		json_decref(info);
		return fail(message, "out of memory");
	}
	shown = json_stringn(data.size ? data.data : "", data.size);
	json_object_set_new(info, "encoding", json_string(text ? "utf-8" : "base64"));
	json_object_set(info, "data", shown);
	out->structured = info;
	out->content = json_pack("[{s:s, s:o}]", "type", "text", "text", shown);
	return out->content ? 0 : -1;
}

/* ---- packages ---------------------------------------------------------------------------- */

int cell__mcp_add_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	static const char *const keys[] = { "installed", "already_present", "failed", NULL };
	json_t *answer, *result;

	if (call(job, job->tool->operation->method, json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	result = json_object();
	for (size_t i = 0; keys[i]; i++) {
		json_t *list = json_object_get(answer, keys[i]);

		json_object_set_new(result, keys[i], list ? json_incref(list) : json_array());
	}
	out->failed = json_array_size(json_object_get(result, "failed")) > 0;
	json_decref(answer);
	return answer_json(out, result, NULL);
}

int cell__mcp_remove_dep(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	json_t *answer, *result, *package = json_object_get(args, "package");
	bool was_there;

	if (call(job, job->tool->operation->method, json_copy((json_t *)args), NULL, 0, &answer, NULL, message) < 0)
		return -1;
	was_there = json_is_true(answer);
	json_decref(answer);
	result = json_pack("{s:[], s:[], s:[], s:b}", "removed", "not_found", "failed", "removed_from_config", was_there);
	json_array_append(json_object_get(result, was_there ? "removed" : "not_found"), package);
	return answer_json(out, result, NULL);
}

/* ---- MCP servers --------------------------------------------------------------------------- */

/* The typed package for code to import; *ret_report is the report of cell_gen_mcp(). */
static int make_package(const struct cell_mcp_server *server, const char *name, const json_t *schema, json_t **ret_report,
			struct cell_error *err)
{
	json_t *list = json_pack("{s:O}", "tools", json_object_get(schema, "tools"));
	CELL_AUTO_FREE char *tools = list ? json_dumps(list, JSON_COMPACT) : NULL, *report = NULL;
	CELL_AUTO_BUF struct cell__buf folder = CELL_BUF_INIT;
	struct cell_gen_options options = CELL_GEN_OPTIONS_INIT;

	json_decref(list);
	/* The folder that the code's `import` searches first. */
	if (!tools ||
	    cell__buf_printf(&folder, "%s%smcptools", server->session.cwd ? server->session.cwd : "", server->session.cwd ? "/" : "") < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	options.server = name;
	options.tools_json = tools;
	options.out_dir = folder.data;
	if (cell_gen_mcp(&options, &report, err) < 0)
		return -1;
	*ret_report = json_loads(report, 0, NULL);
	return *ret_report ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
}

/* One text per tool, its module's name; without a package, the tool's. */
static void answer_registered(struct cell__mcp_answer_out *out, const json_t *tools, const json_t *report, const struct cell_error *err)
{
	const json_t *entry, *problem;
	json_t *names = json_array(), *problems = json_array();
	size_t i;

	json_array_foreach(report ? json_object_get(report, "tools") : tools, i, entry)
		json_array_append(names, json_object_get(entry, report ? "module" : "name"));
	json_array_foreach(json_object_get(report, "problems"), i, problem)
		json_array_append_new(problems, json_sprintf("%s: %s", json_string_value(json_object_get(problem, "tool")),
							     json_string_value(json_object_get(problem, "message"))));
	if (!report)
		json_array_append_new(problems, json_sprintf("no package was created: %s: %s", cell_code_word(err->code), err->msg));
	out->content = json_array();
	json_array_foreach(names, i, entry)
		json_array_append_new(out->content, json_pack("{s:s, s:O}", "type", "text", "text", entry));
	json_array_foreach(problems, i, entry)
		json_array_append_new(out->content, json_pack("{s:s, s:o}", "type", "text", "text",
							      json_sprintf("Problem: %s", json_string_value(entry))));
	out->structured = json_pack("{s:o, s:o, s:O?}", "result", names, "problems", problems, "package",
				    json_object_get(report, "package"));
}

int cell__mcp_register_server(struct cell__mcp_job *job, const json_t *args, struct cell__mcp_answer_out *out, struct cell__buf *message)
{
	const char *name = json_string_value(json_object_get(args, "name"));
	json_t *schema, *report = NULL, *done;
	struct cell_error err;

	/* Only a definition on the host may take a server out of the sandbox of the code that uses it. */
	if (json_object_get(json_object_get(args, "params"), "host"))
		return fail(message, "invalid: \"host\" cannot be given here, only in a tool definition in the tools folder");
	if (call(job, job->tool->operation->method, json_copy((json_t *)args), NULL, 0, &done, NULL, message) < 0)
		return -1;
	json_decref(done);
	/* Requesting its tools starts it. */
	if (call(job, cell__operations[CELL__OP_TOOLS_SCHEMA].method, json_pack("{s:s}", "name", name), NULL, 0, &schema, NULL, message) <
	    0) {
		/* The program itself removes the server that it added. */
		cell_space_remove_mcp(job->handle->server->opts.space, name, NULL);
		return -1;
	}
	/* Without a package tools.<server_name>.<tool>() works all the same. */
	(void)make_package(job->handle->server, name, schema, &report, &err);
	answer_registered(out, json_object_get(schema, "tools"), report, &err);
	json_decref(report);
	json_decref(schema);
	return 0;
}
